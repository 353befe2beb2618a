//! SwitchML's clients: where their controller listens, and what their sessions may have.
//!
//! Without the section the switch knows nothing of them. `sessions` and `slots` are how many places
//! there are; `held` is packet memory: a slot that has a contribution keeps its frame, a finished
//! one until the slot is used anew. A worker has as many slots under way as its client is told to
//! (its outstanding packets), each with two sets; the default is enough for eight sessions of 256
//! of them.

use super::{Config, ConfigError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use tally_engine::switchml::SwitchmlConfig;
use tally_engine::switchml::controller::ControllerConfig;
use tally_wire::switchml::{FIRST_PORT, MAX_SLOTS, PORTS, Size};

/// Most sessions at one time.
const MAX_SESSIONS: u16 = 256;
/// Most frames that slots may keep.
const MAX_HELD: u32 = 1 << 22;
/// How long a listen address without a list of hosts waits for a second job when all ranks of one
/// have come.
const GRACE_PERIOD: Duration = Duration::from_secs(1);
/// A day.
const MAX_TIMEOUT_S: u64 = 86_400;
/// Bytes of headers that count against the MTU.
const HEADERS_IN_MTU: usize =
    tally_wire::switchml::HEADERS_BYTES - tally_wire::frame::ETHERNET_BYTES;

/// SwitchML's clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchmlSection {
    /// Where the controller listens: one address for each of the jobs that run at the same time.
    pub listen: Vec<Listen>,
    /// Networks whose hosts may call the controller; none: all hosts.
    #[serde(default)]
    pub allow: Vec<Network>,
    /// Sessions at one time.
    #[serde(default = "default_sessions")]
    pub sessions: u16,
    /// Slots of each session, all data cores together.
    #[serde(default = "default_slots")]
    pub slots: u16,
    /// Frames that all slots may keep, of all sessions and data cores together.
    #[serde(default = "default_held")]
    pub held: u32,
    /// What the addresses that workers are told are made of, in 64 hexadecimal digits; random if it
    /// is left out. Only for measurements that replay captures, which have to be written before.
    #[serde(default, with = "secret", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub secret: Option<[u8; 32]>,
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

/// An address at which the controller listens: alone, or with the hosts of the job that it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ListenText", into = "ListenText")]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// The hosts that the job's ranks call from, by rank; none: any.
    pub workers: Vec<IpAddr>,
}

#[derive(PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
enum ListenText {
    Address(String),
    Job(ListenJob),
}

#[derive(PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListenJob {
    address: String,
    workers: Vec<IpAddr>,
}

impl SwitchmlSection {
    /// For the jobs at these addresses, with everything else as it is by default.
    #[must_use]
    pub fn new(listen: Vec<Listen>) -> Self {
        Self {
            listen,
            allow: Vec::new(),
            sessions: default_sessions(),
            slots: default_slots(),
            held: default_held(),
            secret: None,
            quiet_ports: Vec::new(),
            setup_timeout_s: default_timeout_s(),
            idle_timeout_s: default_timeout_s(),
        }
    }
}

impl schemars::JsonSchema for Listen {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        ListenText::json_schema(generator)
    }
}

impl schemars::JsonSchema for Network {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            workers: Vec::new(),
        }
    }
}

impl From<Listen> for ListenText {
    fn from(Listen { address, workers }: Listen) -> Self {
        let address = address.to_string();
        if workers.is_empty() {
            return Self::Address(address);
        }
        Self::Job(ListenJob { address, workers })
    }
}

impl TryFrom<ListenText> for Listen {
    type Error = String;

    fn try_from(text: ListenText) -> Result<Self, String> {
        let (address, workers) = match text {
            ListenText::Address(address) => (address, Vec::new()),
            ListenText::Job(ListenJob { address, workers }) => (address, workers),
        };
        let problem =
            || format!("found `{address}`, expected an address and a port, as 0.0.0.0:50099");
        Ok(Self {
            address: address.parse().map_err(|_| problem())?,
            workers,
        })
    }
}

mod secret {
    use crate::hex;
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        secret: &Option<[u8; 32]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&hex::Hex(secret.as_ref().map_or(&[], |it| it)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<[u8; 32]>, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = hex::parse(&text).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Some)
            .ok_or_else(|| de::Error::custom("expected 64 hexadecimal digits"))
    }
}

/// An IPv4 network, or one host of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    first: Ipv4Addr,
    bits: u8,
}

impl Network {
    /// Whether a host is in it.
    #[must_use]
    pub fn has(&self, host: IpAddr) -> bool {
        let IpAddr::V4(host) = host.to_canonical() else {
            return false;
        };
        let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
        (host.to_bits() ^ self.first.to_bits()) & mask == 0
    }
}

impl From<Network> for String {
    fn from(Network { first, bits }: Network) -> Self {
        match bits {
            32 => first.to_string(),
            bits => format!("{first}/{bits}"),
        }
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (first, bits) = text.split_once('/').unwrap_or((&text, "32"));
        let network = || {
            let (first, bits) = (first.parse().ok()?, bits.parse().ok()?);
            let network = Self { first, bits };
            let host = u32::MAX.checked_shr(bits.into()).unwrap_or(0);
            (bits <= 32 && first.to_bits() & host == 0).then_some(network)
        };
        network().ok_or_else(|| {
            format!(
                "found `{text}`, expected an IPv4 address or a network whose host bits are 0, as 10.1.0.0/24"
            )
        })
    }
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

    /// What the operator should know about who may call SwitchML's controller.
    #[must_use]
    pub fn switchml_warning(&self) -> Option<String> {
        let section = self.switchml.as_ref()?;
        let is_open = |l: &&Listen| !l.address.ip().is_loopback() && l.workers.is_empty();
        let open = section.listen.iter().find(is_open)?;
        section.allow.is_empty().then(|| {
            format!(
                "any host that reaches {} may set up SwitchML sessions; list the workers' networks in \
                 switchml.allow, or the workers in this entry of switchml.listen",
                open.address
            )
        })
    }

    /// What SwitchML's controller is told, with a secret that is random in each start; `None`
    /// without SwitchML.
    #[must_use]
    pub fn switchml_controller(&self, secret: [u8; 32]) -> Option<ControllerConfig> {
        let workers = |listen: &Listen| listen.workers.clone();
        self.switchml.as_ref().map(|section| ControllerConfig {
            listens: section.listen.iter().map(workers).collect(),
            secret: section.secret.unwrap_or(secret),
            grace_period: GRACE_PERIOD,
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
    #[must_use]
    pub fn switchml_frames(&self) -> u32 {
        let heads = self.cores.len() as u32 * tally_engine::switchml::STOCK_FRAMES as u32;
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
            let Listen { address, workers } = address;
            if !addresses.insert(address) {
                let found = format!("{address} a second time");
                return bad(&format!("listen[{i}]"), &found, "each address once");
            }
            if workers.len() > tally_wire::MAX_WORKERS {
                let key = format!("listen[{i}].workers");
                let allowed = format!("up to {}, one for each rank", tally_wire::MAX_WORKERS);
                return bad(&key, &workers.len(), &allowed);
            }
            let is_out = |host: &&IpAddr| {
                !section.allow.is_empty()
                    && !section.allow.iter().any(|network| network.has(**host))
            };
            if let Some(host) = workers.iter().find(is_out) {
                let key = format!("listen[{i}].workers");
                return bad(&key, host, "hosts of the networks in switchml.allow");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_their_hosts_and_no_others() {
        let network = |text: &str| Network::try_from(text.to_owned());
        let has = |text: &str, host: &str| network(text).unwrap().has(host.parse().unwrap());
        assert!(has("10.1.0.0/24", "10.1.0.255") && !has("10.1.0.0/24", "10.1.1.0"));
        assert!(has("10.1.0.7", "10.1.0.7") && !has("10.1.0.7", "10.1.0.6"));
        assert!(has("10.1.0.7", "::ffff:10.1.0.7") && !has("0.0.0.0/0", "2001:db8::1"));
        assert!(has("0.0.0.0/0", "203.0.113.9"));
        for bad in [
            "",
            "10.1.0.1/24",
            "10.1.0.0/33",
            "10.1.0/24",
            "host",
            "10.1.0.0/-1",
        ] {
            let error = network(bad).unwrap_err();
            assert!(
                error.starts_with(&format!("found `{bad}`, expected")),
                "{error}"
            );
        }
    }
}
