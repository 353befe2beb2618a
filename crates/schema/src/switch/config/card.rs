//! The card that aggregates in hardware: the port that it is behind, where its registers are, and
//! whose jobs it gets.
//!
//! Its port is like any other for DPDK, and for nothing else: no host is behind it.

use super::{Config, ConfigError, PortSection};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use tally_engine::{PolicyName, PortId};

/// Resources of a PCI device that may be memory.
const BARS: u8 = 6;
/// What registers begin at a multiple of, in a resource: the smallest page of any machine.
const OFFSET_STEP: u64 = 4096;
/// Least workers of a job of a card's.
const WORKERS_MIN: u8 = 2;

/// The card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CardSection {
    /// Name of the port that it is behind.
    pub port: String,
    /// Where its registers are.
    pub registers: Registers,
    /// Which jobs it gets.
    #[serde(default)]
    pub jobs: CardJobs,
}

/// Where the registers of a card are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Registers {
    /// Behind a Unix socket: a simulated card.
    Socket(PathBuf),
    /// In memory of a PCI device.
    Bar(BarSection),
}

/// Memory of a PCI device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BarSection {
    /// Its PCI address.
    pub device: String,
    /// The number of the resource.
    #[serde(default)]
    pub resource: u8,
    /// The byte of it at which the registers begin.
    #[serde(default)]
    pub offset: u64,
}

impl fmt::Display for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Bar(bar) => {
                write!(f, "{}, resource {}", bar.device, bar.resource)?;
                match bar.offset {
                    0 => Ok(()),
                    offset => write!(f, " at 0x{offset:x}"),
                }
            }
        }
    }
}

/// Which jobs a card gets, of those that fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CardJobs {
    /// Those that have most to do.
    #[default]
    Auto,
    /// These.
    List(Vec<u16>),
}

impl Serialize for CardJobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::List(jobs) => jobs.serialize(serializer),
        }
    }
}

impl schemars::JsonSchema for CardJobs {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CardJobs".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let list = <Vec<u16>>::json_schema(generator);
        schemars::json_schema!({"anyOf": [{"const": "auto"}, list]})
    }
}

impl<'de> Deserialize<'de> for CardJobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Jobs;
        impl<'de> Visitor<'de> for Jobs {
            type Value = CardJobs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a list of job numbers")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<CardJobs, E> {
                match text {
                    "auto" => Ok(CardJobs::Auto),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<CardJobs, A::Error> {
                let mut jobs = Vec::new();
                while let Some(job) = seq.next_element()? {
                    jobs.push(job);
                }
                Ok(CardJobs::List(jobs))
            }
        }
        deserializer.deserialize_any(Jobs)
    }
}

impl Config {
    /// The ports that hosts are behind.
    pub fn member_ports(&self) -> impl Iterator<Item = &PortSection> {
        let card = self.card.as_ref().map(|card| card.port.as_str());
        let is_card = move |port: &&PortSection| Some(port.label()) != card;
        self.ports.iter().filter(is_card)
    }

    /// The port that the card is behind, if there is one.
    #[must_use]
    pub fn card_port(&self) -> Option<PortId> {
        let name = &self.card.as_ref()?.port;
        let at = self.ports.iter().position(|port| port.label() == name);
        at.map(|at| PortId(at as u16))
    }

    pub(super) fn check_card(&self, path: &Path) -> Result<(), ConfigError> {
        let Some(card) = &self.card else {
            return Ok(());
        };
        let bad = |key: &str, found: &dyn fmt::Display, allowed: &str| {
            Err(ConfigError::value(
                path,
                format!("card.{key}"),
                found,
                allowed,
            ))
        };
        if self.card_port().is_none() {
            let names: Vec<_> = self.ports.iter().map(PortSection::label).collect();
            let allowed = format!("one of {}", names.join(", "));
            return bad("port", &format!("`{}`", card.port), &allowed);
        }
        let port = self.ports.iter().find(|port| port.label() == card.port);
        if let Some(port) = port.filter(|port| port.interface().is_some()) {
            let found = format!("`{}`, device `{}`", card.port, port.device);
            let allowed = "a DPDK device, as net_memif0 or net_af_packet0,iface=card: a card takes no superframes";
            return bad("port", &found, allowed);
        }
        if self.member_ports().next().is_none() {
            let found = format!("`{}`, the only port", card.port);
            return bad("port", &found, "another port beside it, for hosts");
        }
        if self.pool.policy != PolicyName::Esa {
            let found = format!("a card, and pool.policy {}", self.pool.policy);
            return bad("port", &found, "pool.policy esa, which is what cards do");
        }
        match &card.registers {
            Registers::Socket(socket) if socket.as_os_str().is_empty() => {
                return bad("registers.socket", &"nothing", "the path of a Unix socket");
            }
            Registers::Bar(bar) if !is_pci_address(&bar.device) => {
                let found = format!("`{}`", bar.device);
                return bad(
                    "registers.bar.device",
                    &found,
                    "a PCI address, as 0000:01:00.0",
                );
            }
            Registers::Bar(bar) if bar.resource >= BARS => {
                return bad("registers.bar.resource", &bar.resource, "0 to 5");
            }
            Registers::Bar(bar) if !bar.offset.is_multiple_of(OFFSET_STEP) => {
                let allowed = format!("a multiple of {OFFSET_STEP}, as 1048576 (0x100000)");
                return bad("registers.bar.offset", &bar.offset, &allowed);
            }
            _ => {}
        }
        if let CardJobs::List(jobs) = &card.jobs {
            self.check_card_jobs(path, jobs)?;
        }
        Ok(())
    }

    fn check_card_jobs(&self, path: &Path, jobs: &[u16]) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        for (i, &number) in jobs.iter().enumerate() {
            let bad = |found: &str, allowed: &str| {
                let key = format!("card.jobs[{i}]");
                Err(ConfigError::value(path, key, found, allowed))
            };
            let Some(job) = self.jobs.iter().find(|job| job.id == number) else {
                let ids: Vec<_> = self.jobs.iter().map(|job| job.id.to_string()).collect();
                return bad(
                    &number.to_string(),
                    &format!("one of jobs[].id: {}", ids.join(", ")),
                );
            };
            if !seen.insert(number) {
                return bad(&format!("{number} a second time"), "each job once");
            }
            if let Some(parent) = job.parent() {
                return bad(
                    &format!("{number}, whose sums go to parent `{parent}`"),
                    "a job without a tree, or whose root this switch is: a card has no parent",
                );
            }
            if job.parameter_servers > 1 {
                return bad(
                    &format!(
                        "{number}, which has {} parameter servers",
                        job.parameter_servers
                    ),
                    "a job with 1",
                );
            }
            if job.members() < WORKERS_MIN {
                return bad(
                    &format!(
                        "{number}, which has {} worker or child switch",
                        job.members()
                    ),
                    "a job of two workers or more, child switches included",
                );
            }
            if !job.may_be_on_card() {
                return bad(
                    &format!("{number}, which has min_slots or max_slots"),
                    "a job without: a card has slots of its own, and no limits",
                );
            }
        }
        Ok(())
    }
}

impl super::JobSection {
    /// Whether a card does all that is configured for the job.
    #[must_use]
    pub fn may_be_on_card(&self) -> bool {
        let is_limited = self.min_slots.is_some() || self.max_slots.is_some();
        self.members() >= WORKERS_MIN
            && !is_limited
            && self.parent().is_none()
            && self.parameter_servers == 1
    }
}

/// `0000:01:00.0`.
fn is_pci_address(text: &str) -> bool {
    let is_hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let parts: Vec<_> = text.split([':', '.']).collect();
    let separators: String = text.chars().filter(|c| matches!(c, ':' | '.')).collect();
    matches!(parts.as_slice(), [a, b, c, d] if is_hex(a, 4) && is_hex(b, 2) && is_hex(c, 2) && is_hex(d, 1))
        && separators == "::."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(ports: &str, jobs: &str, rest: &str) -> Result<Config, String> {
        let text = format!(
            r#"{{ "address": {{ "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" }},
                  "ports": [{ports}], "jobs": [{jobs}], {rest} }}"#
        );
        let path = Path::new("switch.json");
        let config: Config =
            tally_config::parse(path, text.as_bytes()).map_err(|e| e.to_string())?;
        config.check(path).map_err(|e| e.to_string())?;
        Ok(config)
    }

    const PORTS: &str =
        r#"{ "device": "net_null0", "mtu": 9000 }, { "name": "card", "device": "net_null1" }"#;
    const JOBS: &str = r#"
        { "id": 7, "key": "00112233445566778899aabbccddeeff", "workers": 4 },
        { "id": 8, "key": "00112233445566778899aabbccdd0008", "workers": 1 },
        { "id": 9, "key": "00112233445566778899aabbccdd0009", "workers": 4, "max_slots": 5 }"#;

    /// A switch with a card and one job in a tree.
    fn in_tree(job: &str, listed: &str) -> Result<Config, String> {
        let ports = format!(r#"{PORTS}, {{ "device": "net_null2" }}, {{ "device": "net_null3" }}"#);
        let job = format!(r#"{{ "id": 7, "key": "00112233445566778899aabbccddeeff", {job} }}"#);
        let rest = format!(
            r#""name": "spine", "fabric": {{ "key": "9f1c7be02d5a4638a1b47c90e6d3f258", "links": [
                {{ "port": 2, "switch": "leaf1", "up": false }},
                {{ "port": 3, "switch": "core", "up": true }} ] }},
            "card": {{ "port": "card", "registers": {{ "socket": "x" }}{listed} }}"#
        );
        parse(&ports, &job, &rest)
    }

    /// The root has what a card needs to serve; another node's sums would have to go up.
    #[test]
    fn a_card_serves_the_root_of_a_tree_and_no_switch_with_a_parent() {
        let listed = r#", "jobs": [7]"#;
        let children = r#""children": [ { "switch": "leaf1", "ranks": 2 } ]"#;
        let root = |workers: u8| {
            let total = workers + 2;
            format!(r#""workers": {workers}, "tree": {{ "total": {total}, {children} }}"#)
        };
        let may = |config: Config| config.jobs[0].may_be_on_card();
        assert!(may(in_tree(&root(1), listed).unwrap()));
        // One child alone has no sum.
        assert!(!may(in_tree(&root(0), "").unwrap()));
        let names = ["card.jobs[0]", "1 worker or child switch"];
        refused(in_tree(&root(0), listed), &names);
        let below = format!(
            r#""workers": 2, "tree": {{ "total": 8, "parent": "core", "rank": 0, {children} }}"#
        );
        assert!(!may(in_tree(&below, "").unwrap()));
        let names = ["card.jobs[0]", "parent `core`", "whose root"];
        refused(in_tree(&below, listed), &names);
    }

    fn card(section: &str) -> Result<Config, String> {
        parse(PORTS, JOBS, &format!(r#""card": {{ {section} }}"#))
    }

    #[test]
    fn its_port_is_no_member_s() {
        let config =
            card(r#""port": "card", "registers": { "socket": "/run/card.sock" }"#).unwrap();
        assert_eq!(config.card_port(), Some(PortId(1)));
        assert_eq!(config.member_ports().count(), 1);
        assert_eq!(config.units(), 128, "by the MTU of ports with hosts");
        let section = config.card.unwrap();
        assert_eq!(section.jobs, CardJobs::Auto);
        assert_eq!(section.registers.to_string(), "/run/card.sock");
        let config = card(
            r#""port": "card", "registers": { "bar": { "device": "0000:01:00.0", "resource": 2 } }, "jobs": [7]"#,
        );
        let section = config.unwrap().card.unwrap();
        assert_eq!(section.jobs, CardJobs::List(vec![7]));
        assert_eq!(section.registers.to_string(), "0000:01:00.0, resource 2");
        // OpenNIC's user box.
        let config = card(
            r#""port": "card", "registers": { "bar": { "device": "0000:01:00.0", "resource": 2, "offset": 1048576 } }"#,
        );
        let registers = config.unwrap().card.unwrap().registers;
        let text = "0000:01:00.0, resource 2 at 0x100000";
        assert_eq!(registers.to_string(), text);
    }

    #[track_caller]
    fn refused(config: Result<Config, String>, names: &[&str]) {
        let error = config.unwrap_err();
        for name in names.iter().chain(&["switch.json"]) {
            assert!(error.contains(name), "`{error}` does not name `{name}`");
        }
    }

    #[test]
    fn mistakes_name_the_key_what_was_found_and_what_is_allowed() {
        let with = |rest: &str| {
            card(&format!(
                r#""registers": {{ "socket": "/run/card.sock" }}, {rest}"#
            ))
        };
        refused(
            with(r#""port": "cord""#),
            &["card.port", "`cord`", "one of net_null0, card"],
        );
        refused(
            parse(
                &PORTS.replace("net_null1", "packet1,iface=eth1"),
                JOBS,
                r#""card": { "port": "card", "registers": { "socket": "x" } }"#,
            ),
            &[
                "card.port",
                "packet1,iface=eth1",
                "net_af_packet",
                "superframes",
            ],
        );
        refused(with(r#""jobs": "auto""#), &["card", "port"]);
        refused(card(r#""port": "card""#), &["card", "registers"]);
        let jobs = |jobs: &str| with(&format!(r#""port": "card", "jobs": {jobs}"#));
        refused(
            jobs(r#""all""#),
            &["card.jobs", "all", "auto", "job numbers"],
        );
        refused(jobs("7"), &["card.jobs", "7", "auto"]);
        refused(jobs("[7, 5]"), &["card.jobs[1]", "found 5", "7, 8, 9"]);
        refused(jobs("[7, 7]"), &["card.jobs[1]", "second time"]);
        refused(jobs("[8]"), &["card.jobs[0]", "1 worker", "two workers"]);
        refused(jobs("[9]"), &["card.jobs[0]", "max_slots", "without"]);
        refused(jobs("[70000]"), &["card.jobs[0]", "70000"]);
        let registers = |registers: &str| {
            card(&format!(
                r#""port": "card", "registers": {{ {registers} }}"#
            ))
        };
        refused(
            registers(r#""socket": """#),
            &["card.registers.socket", "nothing"],
        );
        refused(
            registers(r#""pipe": "x""#),
            &["card.registers", "pipe", "socket"],
        );
        for device in [
            "01:00.0",
            "0000:01:00:0",
            "net_null1",
            "../0000:01:00.0",
            "",
        ] {
            refused(
                registers(&format!(r#""bar": {{ "device": "{device}" }}"#)),
                &["card.registers.bar.device", device, "0000:01:00.0"],
            );
        }
        refused(
            registers(r#""bar": { "device": "0000:01:00.0", "resource": 6 }"#),
            &["card.registers.bar.resource", "6", "0 to 5"],
        );
        let offset = |offset: &str| {
            registers(&format!(
                r#""bar": {{ "device": "0000:01:00.0", "offset": {offset} }}"#
            ))
        };
        refused(
            offset("1048580"),
            &["card.registers.bar.offset", "1048580", "multiple of 4096"],
        );
        refused(offset("-4096"), &["card.registers.bar.offset", "-4096"]);
        refused(
            offset(r#""0x100000""#),
            &["card.registers.bar.offset", "0x100000"],
        );
        let section = r#""card": { "port": "card", "registers": { "socket": "x" } }"#;
        refused(
            parse(
                r#"{ "name": "card", "device": "net_null0" }"#,
                JOBS,
                section,
            ),
            &["card.port", "only port"],
        );
        refused(
            parse(
                PORTS,
                JOBS,
                &format!(r#"{section}, "pool": {{ "policy": "fcfs" }}"#),
            )
            .map_err(|e| e.replace("max_slots", "")),
            &["card.port", "fcfs", "pool.policy esa"],
        );
        let member =
            r#"{ "port": "card", "mac": "02:00:00:00:00:01", "ip": "10.84.0.1", "udp_port": 1 }"#;
        let job = format!(
            r#"{{ "id": 7, "key": "00112233445566778899aabbccddeeff", "workers": 1,
                  "fixed": {{ "payload_bytes": 64, "workers": [{member}], "ps": {member} }} }}"#
        );
        refused(
            parse(PORTS, &job, section),
            &[
                "jobs[0].fixed.workers[0].port",
                "`card`",
                "one of net_null0",
            ],
        );
    }
}
