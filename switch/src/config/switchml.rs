//! SwitchML's clients: where their controller listens, and what their sessions may have.
//!
//! Without the section the switch knows nothing of them. `sessions` and `slots` are how many places there are;
//! `held` is packet memory: a slot that has a contribution keeps its frame, a finished one until the slot is used
//! anew. A worker has as many slots under way as its client is told to (its outstanding packets), each with two sets;
//! the default is enough for eight sessions of 256 of them.

use super::{Config, ConfigError};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tally_engine::switchml::SwitchmlConfig;
use tally_engine::switchml::controller::ControllerConfig;
use tally_wire::switchml::{FIRST_PORT, MAX_SLOTS, PORTS, Size};

/// Most sessions at one time.
const MAX_SESSIONS: u16 = 256;
/// Most frames that slots may keep.
const MAX_HELD: u32 = 1 << 22;
/// A day.
const MAX_TIMEOUT_S: u64 = 86_400;
/// Bytes of headers that count against the MTU.
const HEADERS_IN_MTU: usize =
    tally_wire::switchml::HEADERS_BYTES - tally_wire::frame::ETHERNET_BYTES;

/// SwitchML's clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchmlSection {
    /// Where the controller listens: one address for each of the jobs that start at the same moment.
    #[serde(deserialize_with = "addresses")]
    pub listen: Vec<SocketAddr>,
    /// Sessions at one time.
    #[serde(default = "default_sessions")]
    pub sessions: u16,
    /// Slots of each session, all data cores together.
    #[serde(default = "default_slots")]
    pub slots: u16,
    /// Frames that all slots may keep, of all sessions and data cores together.
    #[serde(default = "default_held")]
    pub held: u32,
    /// Names of ports to which nothing is flooded, because nothing but clients is behind them.
    #[serde(default)]
    pub quiet_ports: Vec<String>,
    /// How long a set-up waits for its other workers.
    #[serde(default = "default_timeout_s")]
    pub setup_timeout_s: u64,
    /// A session that is silent for longer, and whose clients have hung up, ends.
    #[serde(default = "default_timeout_s")]
    pub idle_timeout_s: u64,
}

fn addresses<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<SocketAddr>, D::Error> {
    let parse = |text: String| {
        text.parse().map_err(|_| {
            let problem =
                format!("found `{text}`, expected an address and a port, as 0.0.0.0:50099");
            serde::de::Error::custom(problem)
        })
    };
    Vec::<String>::deserialize(from)?
        .into_iter()
        .map(parse)
        .collect()
}

const fn default_sessions() -> u16 {
    8
}
const fn default_slots() -> u16 {
    8192
}
const fn default_held() -> u32 {
    4096
}
const fn default_timeout_s() -> u64 {
    300
}

impl Config {
    /// The longest packet of a SwitchML session that all ports carry.
    #[must_use]
    pub fn switchml_size(&self) -> Size {
        let mtu = self.member_ports().map(|port| port.mtu).min().unwrap_or(0);
        let room = usize::from(mtu).saturating_sub(HEADERS_IN_MTU);
        let fits = |size: &&Size| size.payload_bytes() <= room;
        let longest = Size::ALL.iter().rfind(fits);
        // Every MTU that a port may have carries the first.
        longest.copied().unwrap_or(Size::B128)
    }

    /// What there is for SwitchML, in words.
    #[must_use]
    pub fn switchml_summary(&self) -> String {
        self.switchml.as_ref().map_or_else(
            || "no SwitchML".to_owned(),
            |section| {
                format!(
                    "SwitchML with {} sessions of {} slots and packets up to {} bytes",
                    section.sessions,
                    section.slots,
                    self.switchml_size().payload_bytes()
                )
            },
        )
    }

    /// What SwitchML's controller is told; `None` without SwitchML.
    #[must_use]
    pub fn switchml_controller(&self) -> Option<ControllerConfig> {
        self.switchml.as_ref().map(|section| ControllerConfig {
            listens: section.listen.len(),
            sessions: usize::from(section.sessions),
            mac: self.address.mac,
            ip: self.address.ip,
            size_max: self.switchml_size(),
            setup_timeout: Duration::from_secs(section.setup_timeout_s),
            idle_timeout: Duration::from_secs(section.idle_timeout_s),
        })
    }

    /// SwitchML's shard of one data core; `None` without SwitchML.
    #[must_use]
    pub fn switchml_shard(&self, shard: u8) -> Option<SwitchmlConfig> {
        let cores = self.cores.len() as u8;
        self.switchml.as_ref().map(|section| SwitchmlConfig {
            sessions: usize::from(section.sessions),
            slots: section.slots,
            held: section.held / u32::from(cores),
            shards: cores,
            shard,
        })
    }

    /// By port, whether `switchml.quiet_ports` has it.
    pub fn switchml_quiet(&self) -> impl Iterator<Item = bool> {
        let quiet = self.switchml.as_ref().map(|section| &section.quiet_ports);
        let ports = self.ports.iter();
        ports.map(move |port| quiet.is_some_and(|names| names.iter().any(|n| n == port.label())))
    }

    /// Frames that SwitchML needs beyond those of a switch without it, all data cores together.
    pub(super) fn switchml_frames(&self) -> u32 {
        let heads = self.cores.len() as u32 * crate::egress::HEADS_FRAMES as u32;
        let held = self.switchml.as_ref().map(|section| section.held);
        held.map_or(0, |held| held + heads)
    }

    pub(super) fn check_switchml(&self, path: &Path) -> Result<(), ConfigError> {
        let Some(section) = &self.switchml else {
            return Ok(());
        };
        let bad = |key: &str, found: &dyn std::fmt::Display, allowed: &str| {
            let key = format!("switchml.{key}");
            Err(ConfigError::value(path, key, found, allowed))
        };
        if section.listen.is_empty() {
            return bad(
                "listen",
                &"none",
                "at least one address, as 0.0.0.0:50099; leave the section out for no SwitchML",
            );
        }
        let mut addresses = BTreeSet::new();
        for (i, address) in section.listen.iter().enumerate() {
            if !addresses.insert(address) {
                let found = format!("{address} a second time");
                return bad(&format!("listen[{i}]"), &found, "each address once");
            }
        }
        for (i, name) in section.quiet_ports.iter().enumerate() {
            let mut labels = self.ports.iter().map(super::PortSection::label);
            if !labels.any(|label| label == name) {
                let names: Vec<_> = self.ports.iter().map(super::PortSection::label).collect();
                let allowed = format!("the name of a port: {}", names.join(", "));
                return bad(&format!("quiet_ports[{i}]"), &format!("`{name}`"), &allowed);
            }
        }
        let cores = self.cores.len();
        let SwitchmlSection {
            sessions,
            slots,
            held,
            setup_timeout_s,
            idle_timeout_s,
            ..
        } = *section;
        if !(1..=MAX_SESSIONS).contains(&sessions) {
            let allowed = format!("1 to {MAX_SESSIONS}");
            return bad("sessions", &sessions, &allowed);
        }
        if usize::from(slots) < cores || slots > MAX_SLOTS {
            let allowed = format!("{cores} (one for each core) to {MAX_SLOTS}");
            return bad("slots", &slots, &allowed);
        }
        if (held as usize) < cores || held > MAX_HELD {
            let allowed = format!("{cores} (one for each core) to {MAX_HELD} frames");
            return bad("held", &held, &allowed);
        }
        for (key, seconds) in [
            ("setup_timeout_s", setup_timeout_s),
            ("idle_timeout_s", idle_timeout_s),
        ] {
            if !(1..=MAX_TIMEOUT_S).contains(&seconds) {
                let allowed = format!("1 to {MAX_TIMEOUT_S} seconds");
                return bad(key, &seconds, &allowed);
            }
        }
        let first = self.address.udp_port;
        let end = usize::from(first) + cores;
        let ports = usize::from(FIRST_PORT)..usize::from(FIRST_PORT + PORTS);
        if usize::from(first) < ports.end && end > ports.start {
            let found = format!("{first}, for {cores} cores");
            let allowed = format!(
                "ports outside of {FIRST_PORT} to {}, which are SwitchML's",
                ports.end - 1
            );
            return Err(ConfigError::value(
                path,
                "address.udp_port".to_owned(),
                found,
                allowed,
            ));
        }
        Ok(())
    }
}
