//! A ring of RoCEv2 hosts (NetReduce), as the agents of its hosts are told about it.

use super::ranks::{RANKS_PER_HOST_MAX, default_ranks_per_host, is_one};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use tally_config::ConfigError;
use tally_wire::Key;
use tally_wire::netreduce::{DEFAULT_DSCP, MEMBERS};

/// TCP port of a coordinator by default.
const DEFAULT_COORDINATOR_PORT: u16 = 4790;
const DEFAULT_PACKETS: u16 = 170;
const DEFAULT_WINDOW: u16 = 2;
const DSCP_MAX: u8 = 63;

/// A ring whose hosts' NICs carry the elements; processes take part in it as in a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRing {
    /// Its number in the switch's configuration, and that of the job for processes.
    pub id: u16,
    /// Its key in the switch's configuration: 16 to 64 bytes in hexadecimal.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// Ranks of the ring's processes: `ranks_per_host` on each of 2 to 64 hosts.
    pub workers: u16,
    /// Ranks of each host, 1 to 64. The host of rank r is member r / N of the ring.
    #[serde(default = "default_ranks_per_host", skip_serializing_if = "is_one")]
    pub ranks_per_host: u16,
    /// IPv4 address of this host's RoCE device.
    pub address: Ipv4Addr,
    /// Where the agent of member 0 listens for the others.
    pub coordinator: CoordinatorAddress,
    /// DSCP of the ring's packets, as the switch has it.
    #[serde(default = "default_dscp")]
    pub dscp: u8,
    /// Packets of a message, as all agents of the ring have it.
    #[serde(default = "default_packets")]
    pub message_packets: u16,
    /// Messages in flight, as all agents of the ring have it.
    #[serde(default = "default_window")]
    pub window_messages: u16,
}

/// A TCP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorAddress {
    /// Its IPv4 address.
    pub address: Ipv4Addr,
    /// Its port; each ring needs its own.
    #[serde(default = "default_port")]
    pub port: u16,
}

impl From<CoordinatorAddress> for SocketAddr {
    fn from(it: CoordinatorAddress) -> Self {
        (it.address, it.port).into()
    }
}

const fn default_port() -> u16 {
    DEFAULT_COORDINATOR_PORT
}

const fn default_dscp() -> u8 {
    DEFAULT_DSCP
}

const fn default_packets() -> u16 {
    DEFAULT_PACKETS
}

const fn default_window() -> u16 {
    DEFAULT_WINDOW
}

impl AgentRing {
    /// Members of the ring.
    #[must_use]
    pub const fn hosts(&self) -> u16 {
        self.workers / self.ranks_per_host
    }

    pub(super) fn check(&self, path: &Path, i: usize) -> Result<(), ConfigError> {
        let wrong = |name: &str, found: &dyn std::fmt::Display, allowed: String| {
            Err(ConfigError::value(
                path,
                format!("rings[{i}].{name}"),
                found,
                allowed,
            ))
        };
        let (workers, each) = (self.workers, self.ranks_per_host);
        if !(1..=RANKS_PER_HOST_MAX).contains(&each) {
            return wrong(
                "ranks_per_host",
                &each,
                format!("1 to {RANKS_PER_HOST_MAX}"),
            );
        }
        let (least, most) = (*MEMBERS.start() as u16 * each, *MEMBERS.end() as u16 * each);
        if !(least..=most).contains(&workers) || !workers.is_multiple_of(each) {
            let multiple = if each == 1 {
                String::new()
            } else {
                format!(", a multiple of {each}")
            };
            return wrong("workers", &workers, format!("{least} to {most}{multiple}"));
        }
        if self.address.is_unspecified() || self.address.is_multicast() {
            return wrong(
                "address",
                &self.address,
                "the address of a RoCE device".into(),
            );
        }
        let CoordinatorAddress { address, port } = self.coordinator;
        if address.is_unspecified() || address.is_multicast() {
            let allowed = "the address of the host that is member 0";
            return wrong("coordinator.address", &address, allowed.into());
        }
        if port == 0 {
            return wrong("coordinator.port", &port, "1 to 65535".into());
        }
        if self.dscp > DSCP_MAX {
            return wrong("dscp", &self.dscp, format!("0 to {DSCP_MAX}"));
        }
        if self.message_packets == 0 {
            return wrong("message_packets", &0, "1 to 65535".into());
        }
        if self.window_messages == 0 {
            return wrong("window_messages", &0, "1 to 65535".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AgentConfig, AgentJob};
    use std::path::Path;

    fn agent(ring: &str) -> Result<AgentConfig, String> {
        let text = format!(
            r#"{{"switch": {{"address": "10.84.0.254"}},
                "transport": {{"type": "udp", "bind": "10.84.0.1"}},
                "jobs": [{{"id": 7, "key": "000102030405060708090a0b0c0d0e0f", "workers": 4}}],
                "rings": [{{"key": "f00102030405060708090a0b0c0d0e0f", {ring}}}]}}"#
        );
        let config: AgentConfig =
            tally_config::parse("a.json", text.as_bytes()).map_err(|it| it.to_string())?;
        config
            .check(Path::new("a.json"))
            .map_err(|it| it.to_string())?;
        Ok(config)
    }

    const PLACE: &str = r#""address": "10.84.0.1", "coordinator": {"address": "10.84.0.1"}"#;

    #[test]
    fn a_ring_has_defaults_and_is_a_job_for_processes() {
        let config = agent(&format!(
            r#""id": 8, "workers": 8, "ranks_per_host": 4, {PLACE}"#
        ))
        .unwrap();
        let ring = &config.rings[0];
        assert_eq!((ring.hosts(), ring.dscp), (2, 28));
        assert_eq!((ring.message_packets, ring.window_messages), (170, 2));
        assert_eq!(ring.coordinator.port, 4790);
        let job = AgentJob::from(ring);
        assert_eq!((job.id, job.workers, job.hosts()), (8, 8, 2));
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        for (ring, found, allowed) in [
            (
                r#""id": 7, "workers": 2"#,
                "rings[0].id: found 7",
                "a number of its own: a job has it",
            ),
            (
                r#""id": 8, "workers": 1"#,
                "rings[0].workers: found 1",
                "2 to 64",
            ),
            (
                r#""id": 8, "workers": 65"#,
                "rings[0].workers: found 65",
                "2 to 64",
            ),
            (
                r#""id": 8, "workers": 9, "ranks_per_host": 4"#,
                "rings[0].workers: found 9",
                "8 to 256, a multiple of 4",
            ),
            (
                r#""id": 8, "workers": 2, "ranks_per_host": 0"#,
                "rings[0].ranks_per_host: found 0",
                "1 to 64",
            ),
            (
                r#""id": 8, "workers": 2, "dscp": 64"#,
                "rings[0].dscp: found 64",
                "0 to 63",
            ),
            (
                r#""id": 8, "workers": 2, "window_messages": 0"#,
                "rings[0].window_messages: found 0",
                "1 to 65535",
            ),
        ] {
            let error = agent(&format!("{ring}, {PLACE}")).unwrap_err();
            assert!(
                error.contains(&format!("{found}, expected {allowed}")),
                "{error}"
            );
        }
        let nowhere = r#""address": "0.0.0.0", "coordinator": {"address": "10.84.0.1"}"#;
        let error = agent(&format!(r#""id": 8, "workers": 2, {nowhere}"#)).unwrap_err();
        assert!(error.contains("rings[0].address"), "{error}");
    }
}
