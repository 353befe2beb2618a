//! What the files of a whole fabric say of its links.

use super::LinkSection;
use crate::switch::config::Config;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_wire::fabric::{REACH_MAX, SwitchId};

/// What was found in the files of a fabric.
#[derive(Debug, Default)]
pub struct LinkFindings {
    /// Contradictions.
    pub faults: Vec<ConfigError>,
    /// What works, but not as one would expect.
    pub warnings: Vec<String>,
}

/// One switch of the fabric.
struct Switch<'a> {
    path: &'a Path,
    name: &'a str,
    config: &'a Config,
}

impl<'a> Switch<'a> {
    fn links(&self) -> impl Iterator<Item = (usize, &'a LinkSection)> {
        let fabric = self.config.fabric.iter();
        fabric.flat_map(|fabric| &fabric.links).enumerate()
    }

    fn links_to(&self, name: &str) -> impl Iterator<Item = (usize, &'a LinkSection)> {
        self.links().filter(move |(_, link)| link.switch == name)
    }

    fn fault(&self, key: String, found: impl std::fmt::Display, allowed: &str) -> ConfigError {
        ConfigError::value(self.path, key, found, allowed)
    }
}

/// Checks the files of all switches of a fabric against each other: names, addresses and keys,
/// links that both ends have, and tiers.
#[must_use]
pub fn check_links(files: &[(PathBuf, Config)]) -> LinkFindings {
    let mut found = LinkFindings::default();
    let switches = switches(files, &mut found.faults);
    for switch in switches.values() {
        check_identity(switch, &switches, &mut found.faults);
        check_ends(switch, &switches, &mut found.faults);
    }
    check_tiers(&switches, &mut found);
    found
}

/// The switches by name: each name once.
fn switches<'a>(
    files: &'a [(PathBuf, Config)],
    faults: &mut Vec<ConfigError>,
) -> BTreeMap<&'a str, Switch<'a>> {
    let mut switches: BTreeMap<&str, Switch<'_>> = BTreeMap::new();
    for (path, config) in files.iter().filter(|(_, config)| config.fabric.is_some()) {
        // A file without a name has a fault of its own.
        let Some(name) = config.name.as_deref() else {
            continue;
        };
        let switch = Switch { path, name, config };
        if let Some(other) = switches.get(name) {
            let found = format!("`{name}`, as in {}", other.path.display());
            faults.push(switch.fault("name".into(), found, "a name of its own"));
        } else {
            switches.insert(name, switch);
        }
    }
    switches
}

fn check_identity(
    switch: &Switch<'_>,
    switches: &BTreeMap<&str, Switch<'_>>,
    faults: &mut Vec<ConfigError>,
) {
    let others = switches
        .values()
        .take_while(|other| other.name != switch.name);
    for other in others {
        let at = other.path.display();
        let (own, its) = (&switch.config.address, &other.config.address);
        if own.mac == its.mac {
            let found = format!("{}, as in {at}", own.mac);
            faults.push(switch.fault("address.mac".into(), found, "an address of its own"));
        }
        if own.ip == its.ip {
            let found = format!("{}, as in {at}", own.ip);
            faults.push(switch.fault("address.ip".into(), found, "an address of its own"));
        }
        if SwitchId::of(switch.name) == SwitchId::of(other.name) {
            let found = format!(
                "`{}`, whose hash is that of `{}` in {at}",
                switch.name, other.name
            );
            faults.push(switch.fault("name".into(), found, "another name"));
        }
        let keys = |config: &Config| {
            let fabric = config.fabric.clone();
            fabric.map_or_else(Vec::new, |it| {
                std::iter::once(it.key).chain(it.previous_key).collect()
            })
        };
        let (own, its) = (keys(switch.config), keys(other.config));
        if !own.iter().any(|key| its.contains(key)) {
            let found = format!("another key than in {at}");
            faults.push(switch.fault("fabric.key".into(), found, "one key in all switches"));
        }
    }
}

/// That each link is in the files of both of its ends.
fn check_ends(
    switch: &Switch<'_>,
    switches: &BTreeMap<&str, Switch<'_>>,
    faults: &mut Vec<ConfigError>,
) {
    let mut seen = BTreeSet::new();
    for (i, link) in switch.links() {
        let key = |field| format!("fabric.links[{i}].{field}");
        let Some(other) = switches.get(link.switch.as_str()) else {
            let known: Vec<_> = switches.keys().copied().collect();
            let found = format!("`{}`, which is in none of the files", link.switch);
            let allowed = format!("one of {}", known.join(", "));
            faults.push(switch.fault(key("switch"), found, &allowed));
            continue;
        };
        if !seen.insert(other.name) {
            continue;
        }
        let at = other.path.display();
        let (here, there) = (
            switch.links_to(other.name).count(),
            other.links_to(switch.name).count(),
        );
        if here != there {
            let found = format!("{here} links to `{}`", other.name);
            let allowed = format!("{there}, as {at} has to `{}`", switch.name);
            faults.push(switch.fault(key("switch"), found, &allowed));
        }
        let is_same = (other.links_to(switch.name)).any(|(_, back)| back.up == link.up);
        if is_same && switch.name > other.name {
            let found = format!("{}, as {at} has for `{}`", link.up, switch.name);
            faults.push(switch.fault(key("up"), found, "up at one end, down at the other"));
        }
    }
}

/// That no switch is above itself, that a hello has room for the lowest tier, and where hosts are
/// not to be.
fn check_tiers(switches: &BTreeMap<&str, Switch<'_>>, found: &mut LinkFindings) {
    // The number of tiers below each: a switch whose lower ones are all known is the next.
    let mut tiers: BTreeMap<&str, usize> = BTreeMap::new();
    loop {
        let known = tiers.len();
        for switch in switches
            .values()
            .filter(|it| !tiers.contains_key(it.name))
            .collect::<Vec<_>>()
        {
            let mut below = switch
                .links()
                .filter(|(_, link)| !link.up && switches.contains_key(link.switch.as_str()));
            let tier = below.try_fold(0, |tier, (_, link)| {
                Some(tier.max(tiers.get(link.switch.as_str())? + 1))
            });
            if let Some(tier) = tier {
                tiers.insert(switch.name, tier);
            }
        }
        if tiers.len() == known {
            break;
        }
    }
    if let Some(switch) = switches.values().find(|it| !tiers.contains_key(it.name)) {
        let names: Vec<_> = switches
            .keys()
            .filter(|it| !tiers.contains_key(*it))
            .copied()
            .collect();
        let value = format!("`{}` above or below a loop of switches", switch.name);
        let allowed = format!("tiers; look at {}", names.join(", "));
        found
            .faults
            .push(switch.fault("fabric.links".into(), value, &allowed));
    }
    let mut lowest = switches
        .values()
        .filter(|it| tiers.get(it.name) == Some(&0));
    if let Some(switch) = lowest.nth(REACH_MAX) {
        let value = format!(
            "`{}`, number {} of the lowest tier by name",
            switch.name,
            REACH_MAX + 1
        );
        let allowed = format!("at most {REACH_MAX} switches without switches below");
        found
            .faults
            .push(switch.fault("fabric.links".into(), value, &allowed));
    }
    for switch in switches
        .values()
        .filter(|it| tiers.get(it.name).is_some_and(|&tier| tier > 0))
    {
        let is_alone = tiers
            .values()
            .filter(|&&tier| Some(&tier) == tiers.get(switch.name))
            .count()
            == 1;
        let hosts = hosts_of(switch.config);
        if !is_alone && !hosts.is_empty() {
            found.warnings.push(format!(
                "{}: ports {} are hosts' at a switch with switches below and others beside it: hosts there are \
                 reached from below it only while frames come up by this switch; attach hosts to the lowest tier",
                switch.path.display(),
                hosts.join(", ")
            ));
        }
    }
}

/// Ports that lead to no switch and no card.
fn hosts_of(config: &Config) -> Vec<&str> {
    let fabric: BTreeSet<_> = config.fabric_links().map(|(port, _)| port.0).collect();
    let card = config.card_port().map(|port| port.0);
    let ports = config.ports.iter().zip(0_u16..);
    let hosts = ports.filter(|(_, at)| !fabric.contains(at) && Some(*at) != card);
    hosts.map(|(port, _)| port.label()).collect()
}
