//! The fabric: which ports lead to other switches, and the key that these share.
//!
//! A link leads *up* to a switch of the tier above, or down to one of the tier below. Frames from
//! above never leave upwards, so no frame goes round (docs/FABRIC.md). [`Config::check`] finds what
//! contradicts itself in one file, [`check_links`] what contradicts itself in the files of all
//! switches.

mod links;
#[cfg(test)]
mod tests;

pub use links::{LinkFindings, check_links};

use super::check::Faults;
use super::{Config, PortSection};
use serde::{Deserialize, Serialize};
use std::fmt;
use tally_engine::PortId;
use tally_engine::forwarding::FloodLimits;
use tally_wire::Key;
use tally_wire::fabric::{FRAME_BYTES_MAX, NAME_MAX};

/// Links of one switch at most.
const LINKS_MAX: usize = 256;
/// MTU of a port of the fabric at least: the longest frame between switches is not fragmented.
const MTU_MIN: u16 = FRAME_BYTES_MAX as u16;

/// Links to other switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricSection {
    /// The key of all switches of the fabric: 32 to 128 hexadecimal digits.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// Their key before that, while switches may still have it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::key::option"
    )]
    #[schemars(with = "Option<crate::key::KeyText>")]
    pub previous_key: Option<Key>,
    /// The links, at least one.
    pub links: Vec<LinkSection>,
    /// Frames of each kind from one link that are flooded in a second; 0: no limit.
    #[serde(default = "default_floods_per_s")]
    pub floods_per_s: u32,
}

/// A link to another switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkSection {
    /// The port: its name, or its number in `ports`, counted from 0.
    pub port: PortRef,
    /// Name of the switch at the other end.
    pub switch: String,
    /// Whether that switch is in the tier above.
    pub up: bool,
}

/// A port, by number or name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum PortRef {
    /// Its number in `ports`, counted from 0.
    Number(u16),
    /// Its name.
    Name(String),
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => write!(f, "`{}`", name.escape_default()),
        }
    }
}

/// What all hosts behind a link may flood together: ten times what one port may by default.
const fn default_floods_per_s() -> u32 {
    100_000
}

impl FabricSection {
    /// With this key and these links.
    #[must_use]
    pub const fn new(key: Key, links: Vec<LinkSection>) -> Self {
        Self {
            key,
            previous_key: None,
            links,
            floods_per_s: default_floods_per_s(),
        }
    }

    /// The limits of floods of a link, by kind.
    #[must_use]
    pub const fn floods(&self) -> FloodLimits {
        FloodLimits::each(self.floods_per_s)
    }

    /// Whether switches are below this one.
    #[must_use]
    pub fn has_below(&self) -> bool {
        self.links.iter().any(|link| !link.up)
    }
}

impl LinkSection {
    /// A link at a port of this name.
    #[must_use]
    pub fn new(port: &str, switch: &str, up: bool) -> Self {
        Self {
            port: PortRef::Name(port.to_owned()),
            switch: switch.to_owned(),
            up,
        }
    }
}

impl Config {
    /// The port that a reference means.
    #[must_use]
    pub fn port_of(&self, port: &PortRef) -> Option<PortId> {
        let at = match port {
            PortRef::Number(number) => usize::from(*number),
            PortRef::Name(name) => self.ports.iter().position(|it| it.label() == name)?,
        };
        (at < self.ports.len()).then_some(PortId(at as u16))
    }

    /// The links to other switches with their ports, in the order of the file.
    pub fn fabric_links(&self) -> impl Iterator<Item = (PortId, &LinkSection)> {
        let links = self.fabric.iter().flat_map(|fabric| &fabric.links);
        links.filter_map(|link| Some((self.port_of(&link.port)?, link)))
    }

    /// Whether a switch is at the other end of a port.
    #[must_use]
    pub fn is_fabric_port(&self, port: PortId) -> bool {
        self.fabric_links().any(|(at, _)| at == port)
    }

    pub(super) fn check_fabric(&self, faults: &mut Faults<'_>) {
        let Some(fabric) = &self.fabric else { return };
        let needs_name = self.name.is_none();
        let allowed = "the switch's name, by which `fabric.links` of others call it";
        faults.test(needs_name, "name", &"none beside `fabric`", allowed);
        let links = fabric.links.len();
        let is_bad = !(1..=LINKS_MAX).contains(&links);
        let allowed = format!("1 to {LINKS_MAX} of them");
        faults.test(is_bad, "fabric.links", &links, &allowed);
        for (i, link) in fabric.links.iter().enumerate() {
            self.check_link(i, link, &fabric.links[..i], faults);
        }
    }

    fn check_link(
        &self,
        i: usize,
        link: &LinkSection,
        before: &[LinkSection],
        faults: &mut Faults<'_>,
    ) {
        let key = |field| format!("fabric.links[{i}].{field}");
        let name = &link.switch;
        let is_good =
            (1..=NAME_MAX).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic());
        let found = format_args!("`{}`", name.escape_default());
        let allowed = "1 to 64 visible ASCII characters";
        faults.test(!is_good, key("switch"), &found, allowed);
        let is_own = self.name.as_ref() == Some(name);
        let allowed = "the name of another switch";
        faults.test(is_own, key("switch"), &found, allowed);
        let is_both = before
            .iter()
            .any(|it| it.switch == *name && it.up != link.up);
        let allowed = "the same for all links to one switch";
        faults.test(is_both, key("up"), &link.up, allowed);
        let Some(port) = self.port_of(&link.port) else {
            let names: Vec<_> = self.ports.iter().map(PortSection::label).collect();
            let allowed = format!("one of {}", names.join(", "));
            return faults.test(true, key("port"), &link.port, &allowed);
        };
        let is_again = before.iter().any(|it| self.port_of(&it.port) == Some(port));
        let found = format_args!("{} a second time", link.port);
        faults.test(is_again, key("port"), &found, "a port for each link");
        let is_card = self.card_port() == Some(port);
        let allowed = "a port that is not the card's";
        faults.test(is_card, key("port"), &link.port, allowed);
        let mtu = self.ports[usize::from(port.0)].mtu;
        let found = format_args!("{} with an MTU of {mtu}", link.port);
        let allowed = format!("a port with an MTU of {MTU_MIN} or more");
        faults.test(mtu < MTU_MIN, key("port"), &found, &allowed);
    }
}
