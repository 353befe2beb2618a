//! What a worker, a parameter server and the agent of a host are told about their switch, job and
//! transport.
//!
//! JSON files; every key is in these types, and one that is not is an error that lists those that
//! are (`tally-config`). [`WorkerConfig::check`] and [`PsConfig::check`] then look for values that
//! have the right type and make no sense.

mod changes;
mod controller;
mod host;
mod ranks;
mod rina;
mod ring;

pub use changes::Changes;
pub use controller::AgentController;
pub use host::{
    Access, AgentConfig, AgentJob, AgentPs, AgentTransport, Control, DEFAULT_SOCKET, Mode,
    control_socket_of,
};
pub use ranks::RANKS_PER_HOST_MAX;
pub use rina::{Algorithm, JobRina, RinaRack};
pub use ring::{AgentRing, CoordinatorAddress};

use crate::event::{LogSection, MetricsSection};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;
use tally_config::ConfigError;
use tally_wire::part::is_count;
use tally_wire::{
    DEFAULT_PORT, JobId, Key, MAX_PAYLOAD_BYTES, MAX_TREE_WORKERS, Mac, Part, UNIT_BYTES,
};

/// A worker's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerConfig {
    /// Where the switch is.
    pub switch: SwitchAddress,
    /// The job to take part in.
    pub job: WorkerJob,
    /// How frames get there.
    pub transport: Transport,
    /// Bytes of elements in a frame: a multiple of 64, up to 8192.
    #[serde(default = "default_payload_bytes")]
    pub payload_bytes: u32,
    /// Fragments that may be unfinished.
    #[serde(default = "default_window")]
    pub window: u16,
    /// When to give up.
    #[serde(default)]
    pub timeouts: Timeouts,
}

/// A parameter server's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PsConfig {
    /// Where the switch is.
    pub switch: SwitchAddress,
    /// The jobs to serve.
    pub jobs: Vec<PsJob>,
    /// How frames get there.
    pub transport: Transport,
    /// What the log writes, and how.
    #[serde(default, skip_serializing_if = "LogSection::is_default")]
    pub log: LogSection,
    /// Where metrics are served over HTTP; without it, nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsSection>,
}

/// Where the switch is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchAddress {
    /// Its IPv4 address.
    pub address: Ipv4Addr,
    /// Its first UDP port.
    #[serde(default = "default_port")]
    pub port: u16,
}

/// A job, as its worker knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerJob {
    /// Its number in the switch's configuration.
    pub id: u16,
    /// Its key in the switch's configuration: 16 to 64 bytes in hexadecimal.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// How many workers it has: 1 to 64 at one switch, to 4096 in a tree of switches.
    pub workers: u16,
    /// Which of them this is, from 0; in a tree, of all switches. May be given on the command line
    /// instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u16>,
    /// Who gets a slot in the switch when there are not enough, and leaves a full port first: 0
    /// lowest to 255 highest. Without it each fragment's is computed from what the worker measures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
}

/// A job, as its parameter server knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PsJob {
    /// Its number in the switch's configuration.
    pub id: u16,
    /// Its key in the switch's configuration: 16 to 64 bytes in hexadecimal.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// Which part of the job's fragments it completes, from 0.
    #[serde(default, skip_serializing_if = "is_default_part")]
    pub part: u8,
    /// How many parts there are, each with a parameter server: `parameter_servers` in the switch's
    /// configuration.
    #[serde(default = "default_parts", skip_serializing_if = "is_default_parts")]
    pub parts: u8,
}

impl PsJob {
    /// A job of which this is the only parameter server.
    #[must_use]
    pub const fn new(id: u16, key: Key) -> Self {
        Self {
            id,
            key,
            part: 0,
            parts: default_parts(),
        }
    }

    /// Its part; of all fragments if the numbers make no sense, which
    /// [`check`](PsConfig::check) refuses.
    #[must_use]
    pub fn part(&self) -> Part {
        Part::new(self.part, self.parts).unwrap_or(Part::ONLY)
    }
}

const fn default_parts() -> u8 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_default_part(part: &u8) -> bool {
    *part == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_default_parts(parts: &u8) -> bool {
    *parts == default_parts()
}

/// How frames get to the switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Transport {
    /// The kernel's UDP.
    Udp {
        /// The local address and port; port 0 lets the kernel choose.
        bind: SocketAddrV4,
    },
    /// A port of its own, through DPDK.
    Dpdk {
        /// Memory and drivers.
        #[serde(default)]
        eal: Eal,
        /// The device: `net_memif0,role=client,…` for a virtual one, `0000:01:00.0` for PCI.
        device: String,
        /// Its Ethernet address.
        #[serde(serialize_with = "crate::text::serialize", deserialize_with = "mac")]
        #[schemars(with = "String")]
        mac: Mac,
        /// Its IPv4 address.
        address: Ipv4Addr,
        /// Its UDP port.
        #[serde(default = "default_source_port")]
        port: u16,
    },
}

/// DPDK's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Eal {
    /// Where memory comes from.
    pub memory: Memory,
    /// How much of it.
    pub megabytes: u32,
}

/// Where DPDK's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Ordinary pages: enough for virtual devices.
    NoHuge,
    /// Huge pages: needed for a NIC.
    Hugepages,
}

impl Default for Eal {
    fn default() -> Self {
        Self {
            memory: Memory::NoHuge,
            megabytes: 64,
        }
    }
}

/// When to give up, in milliseconds (J-7, J-9).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Without an answer to JOIN, or with members missing.
    pub join_ms: u64,
    /// Without a result while the job runs.
    pub stall_ms: u64,
    /// For the others to finish, after our own last result.
    pub linger_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            join_ms: 30_000,
            stall_ms: 10_000,
            linger_ms: 2_000,
        }
    }
}

impl Timeouts {
    /// `join_ms`.
    #[must_use]
    pub const fn join(&self) -> Duration {
        Duration::from_millis(self.join_ms)
    }

    /// `stall_ms`.
    #[must_use]
    pub const fn stall(&self) -> Duration {
        Duration::from_millis(self.stall_ms)
    }

    /// `linger_ms`.
    #[must_use]
    pub const fn linger(&self) -> Duration {
        Duration::from_millis(self.linger_ms)
    }
}

const fn default_port() -> u16 {
    DEFAULT_PORT
}

const fn default_source_port() -> u16 {
    40_000
}

const fn default_payload_bytes() -> u32 {
    1024
}

const fn default_window() -> u16 {
    256
}

fn mac<'de, D: Deserializer<'de>>(d: D) -> Result<Mac, D::Error> {
    let mac: Mac = String::deserialize(d)?.parse().map_err(D::Error::custom)?;
    if mac.is_group() || mac == Mac::default() {
        return Err(D::Error::custom(format!(
            "found {mac}, expected the address of one port: not a group, not zero"
        )));
    }
    Ok(mac)
}

fn check_switch(path: &Path, switch: &SwitchAddress) -> Result<(), ConfigError> {
    let a = switch.address;
    if a.is_multicast() || a.is_broadcast() || a.is_unspecified() {
        let allowed = "the address of one host";
        return Err(ConfigError::value(path, "switch.address", a, allowed));
    }
    if switch.port == 0 {
        return Err(ConfigError::value(path, "switch.port", 0, "1 to 65535"));
    }
    Ok(())
}

fn check_frames(path: &Path, payload_bytes: u32, window: u16) -> Result<(), ConfigError> {
    let bytes = payload_bytes as usize;
    if bytes == 0 || bytes > MAX_PAYLOAD_BYTES || !bytes.is_multiple_of(UNIT_BYTES) {
        let allowed = format!("a multiple of {UNIT_BYTES}, up to {MAX_PAYLOAD_BYTES}");
        return Err(ConfigError::value(path, "payload_bytes", bytes, allowed));
    }
    if window == 0 {
        return Err(ConfigError::value(path, "window", 0, "1 to 65535"));
    }
    Ok(())
}

fn check_workers(path: &Path, key: impl Into<String>, workers: u16) -> Result<(), ConfigError> {
    if !(1..=MAX_TREE_WORKERS).contains(&workers) {
        let allowed = format!("1 to {MAX_TREE_WORKERS}");
        return Err(ConfigError::value(path, key, workers, allowed));
    }
    Ok(())
}

/// That the list `name` has each job once. It may be empty: jobs are added to daemons that run.
fn check_jobs(path: &Path, name: &str, jobs: impl Iterator<Item = u16>) -> Result<(), ConfigError> {
    let mut seen = Vec::new();
    for id in jobs {
        if seen.contains(&id) {
            let key = format!("{name}[{}].id", seen.len());
            return Err(ConfigError::value(path, key, id, "every job once"));
        }
        seen.push(id);
    }
    Ok(())
}

/// That each job of the list `name` has a part that there is.
fn check_parts(path: &Path, name: &str, jobs: &[PsJob]) -> Result<(), ConfigError> {
    for (i, PsJob { part, parts, .. }) in jobs.iter().enumerate() {
        if !is_count(*parts) {
            let key = format!("{name}[{i}].parts");
            return Err(ConfigError::value(path, key, parts, "1, 2, 4, 8 or 16"));
        }
        if part >= parts {
            let key = format!("{name}[{i}].part");
            let allowed = format!("0 to {}, below `parts`", parts - 1);
            return Err(ConfigError::value(path, key, part, allowed));
        }
    }
    Ok(())
}

impl SwitchAddress {
    /// At the default UDP port.
    #[must_use]
    pub const fn new(address: Ipv4Addr) -> Self {
        Self {
            address,
            port: default_port(),
        }
    }
}

impl Transport {
    /// The kernel's UDP, at a port that it chooses.
    #[must_use]
    pub const fn udp(address: Ipv4Addr) -> Self {
        Self::Udp {
            bind: SocketAddrV4::new(address, 0),
        }
    }

    /// A device of DPDK's, with everything else as it is by default.
    #[must_use]
    pub fn dpdk(device: impl Into<String>, mac: Mac, address: Ipv4Addr) -> Self {
        Self::Dpdk {
            eal: Eal::default(),
            device: device.into(),
            mac,
            address,
            port: default_source_port(),
        }
    }
}

impl WorkerConfig {
    /// With everything else as it is by default.
    #[must_use]
    pub fn new(switch: SwitchAddress, job: WorkerJob, transport: Transport) -> Self {
        Self {
            switch,
            job,
            transport,
            payload_bytes: default_payload_bytes(),
            window: default_window(),
            timeouts: Timeouts::default(),
        }
    }

    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// What does not fit, with its key.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let config: Self = tally_config::load(&path)?;
        config.check(path.as_ref())?;
        Ok(config)
    }

    /// Looks for values that make no sense; `path` is only for errors.
    ///
    /// # Errors
    /// The first one found.
    pub fn check(&self, path: &Path) -> Result<(), ConfigError> {
        check_switch(path, &self.switch)?;
        let job = &self.job;
        check_workers(path, "job.workers", job.workers)?;
        if let Some(rank) = job.rank
            && rank >= job.workers
        {
            let allowed = format!(
                "0 to {}, as there are {} workers",
                job.workers - 1,
                job.workers
            );
            return Err(ConfigError::value(path, "job.rank", rank, allowed));
        }
        check_frames(path, self.payload_bytes, self.window)
    }

    /// Payload in units of the header.
    #[must_use]
    pub const fn units(&self) -> u8 {
        (self.payload_bytes as usize / UNIT_BYTES) as u8
    }
}

impl PsConfig {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// What does not fit, with its key.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let config: Self = tally_config::load(&path)?;
        config.check(path.as_ref())?;
        Ok(config)
    }

    /// Looks for values that make no sense; `path` is only for errors.
    ///
    /// # Errors
    /// The first one found.
    pub fn check(&self, path: &Path) -> Result<(), ConfigError> {
        check_switch(path, &self.switch)?;
        check_jobs(path, "jobs", self.jobs.iter().map(|job| job.id))?;
        check_parts(path, "jobs", &self.jobs)
    }
}

impl WorkerJob {
    /// Its number as the wire's type.
    #[must_use]
    pub const fn job_id(&self) -> JobId {
        JobId(self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{parse, round_trip, write};

    const WORKER: &str = r#"{
        "switch": {"address": "10.84.0.254", "port": 31249},
        "job": {"id": 7, "key": "000102030405060708090a0b0c0d0e0f", "workers": 4, "rank": 0},
        "transport": {"type": "udp", "bind": "10.84.0.1:0"},
        "payload_bytes": 1024, "window": 256,
        "timeouts": {"join_ms": 5000}
    }"#;

    fn worker(text: &str) -> Result<WorkerConfig, ConfigError> {
        let config: WorkerConfig = tally_config::parse("w.json", text.as_bytes())?;
        config.check(Path::new("w.json"))?;
        Ok(config)
    }

    #[test]
    fn a_worker_loads_with_defaults() {
        let config = worker(WORKER).unwrap();
        assert_eq!(config.timeouts.stall_ms, 10_000);
        assert_eq!(config.timeouts.join_ms, 5000);
        assert_eq!(config.job.priority, None);
        assert_eq!(config.units(), 16);
        let fixed = WORKER.replace("\"rank\": 0", "\"rank\": 0, \"priority\": 9");
        assert_eq!(worker(&fixed).unwrap().job.priority, Some(9));
    }

    #[test]
    fn what_is_left_out_is_as_in_a_value_made_here() {
        let config = worker(&WORKER.replace(r#", "window": 256"#, "")).unwrap();
        let address = "10.84.0.254".parse().unwrap();
        let transport = Transport::udp("10.84.0.1".parse().unwrap());
        let made = WorkerConfig::new(
            SwitchAddress::new(address),
            config.job.clone(),
            transport.clone(),
        );
        let timeouts = config.timeouts;
        assert_eq!(WorkerConfig { timeouts, ..made }, config);
        assert_eq!(timeouts.linger_ms, Timeouts::default().linger_ms);
        let dpdk = r#"{"type": "dpdk", "device": "net_memif0", "mac": "02:00:00:00:00:01",
                       "address": "10.84.0.1"}"#;
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let made = Transport::dpdk("net_memif0", mac, "10.84.0.1".parse().unwrap());
        assert_eq!(parse::<Transport>(dpdk), made);
    }

    /// Every key, none with its default.
    #[test]
    fn configurations_are_written_as_they_were_read() {
        let udp = r#"{
            "switch": {"address": "10.84.0.254", "port": 4000},
            "job": {"id": 7, "key": "000102030405060708090a0b0c0d0e0f", "workers": 4, "rank": 1, "priority": 9},
            "transport": {"type": "udp", "bind": "10.84.0.1:5000"},
            "payload_bytes": 2048, "window": 64,
            "timeouts": {"join_ms": 1, "stall_ms": 2, "linger_ms": 3}
        }"#;
        round_trip::<WorkerConfig>(udp);
        round_trip::<PsConfig>(
            r#"{
            "switch": {"address": "10.84.0.254", "port": 4000},
            "jobs": [{"id": 7, "key": "000102030405060708090a0b0c0d0e0f"}],
            "transport": {"type": "dpdk", "eal": {"memory": "hugepages", "megabytes": 128},
                          "device": "0000:01:00.0", "mac": "02:00:00:00:00:01", "address": "10.84.0.1",
                          "port": 5000}
        }"#,
        );
    }

    #[test]
    fn every_example_is_good_and_survives_being_written() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let (mut workers, mut servers, mut agents) = (0, 0, 0);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !name.ends_with(".json") {
                continue;
            }
            if name.starts_with("worker") {
                let config = WorkerConfig::load(&path).unwrap();
                assert_eq!(parse::<WorkerConfig>(&write(&config)), config, "{name}");
                workers += 1;
            } else if name.starts_with("ps") {
                let config = PsConfig::load(&path).unwrap();
                assert_eq!(parse::<PsConfig>(&write(&config)), config, "{name}");
                servers += 1;
            } else if name.starts_with("agent") {
                let config = AgentConfig::load(&path).unwrap();
                assert_eq!(parse::<AgentConfig>(&write(&config)), config, "{name}");
                agents += 1;
            } else {
                // They have tests of their own.
                let is_known = name.starts_with("switch") || name == "fleet.json";
                assert!(is_known, "{name}: whose configuration is it?");
            }
        }
        assert!(workers >= 2 && servers >= 1 && agents >= 2);
    }

    #[test]
    fn dpdk_loads() {
        let text = WORKER.replace(
            r#"{"type": "udp", "bind": "10.84.0.1:0"}"#,
            r#"{"type": "dpdk", "device": "net_memif0,role=client", "mac": "02:00:00:00:00:01",
                "address": "10.84.0.1", "eal": {"memory": "hugepages", "megabytes": 128}}"#,
        );
        let config = worker(&text).unwrap();
        let Transport::Dpdk { eal, .. } = config.transport else {
            panic!("another transport");
        };
        assert_eq!(eal.memory, Memory::Hugepages);
    }

    #[test]
    fn impossible_values_are_named() {
        for (from, to, want) in [
            (
                "\"rank\": 0",
                "\"rank\": 4",
                "w.json: job.rank: found 4, expected 0 to 3, as there are 4 workers",
            ),
            (
                "\"workers\": 4",
                "\"workers\": 4097",
                "w.json: job.workers: found 4097, expected 1 to 4096",
            ),
            (
                "1024",
                "1000",
                "w.json: payload_bytes: found 1000, expected a multiple of 64, up to 8192",
            ),
            ("256", "0", "w.json: window: found 0, expected 1 to 65535"),
            (
                "10.84.0.254",
                "239.1.1.1",
                "w.json: switch.address: found 239.1.1.1, expected the address of one host",
            ),
            (
                "0e0f\"",
                "0e0\"",
                "w.json: job.key: not a key: 16 to 64 bytes written as 32 to 128 hexadecimal digits",
            ),
        ] {
            let error = worker(&WORKER.replace(from, to)).unwrap_err();
            assert_eq!(error.to_string(), want);
        }
        let error = worker(&WORKER.replace("\"bind\"", "\"bnid\"")).unwrap_err();
        assert!(error.to_string().contains("bnid"), "{error}");
        let error = worker(&WORKER.replace("\"udp\"", "\"tcp\"")).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("unknown variant `tcp`, expected `udp` or `dpdk`"),
            "{error}"
        );
    }

    #[test]
    fn a_ps_serves_every_job_once() {
        let job = r#"{"id": 7, "key": "000102030405060708090a0b0c0d0e0f"}"#;
        let ps = |jobs: &str| {
            let text = format!(
                r#"{{"switch": {{"address": "10.84.0.254"}}, "jobs": [{jobs}],
                    "transport": {{"type": "udp", "bind": "10.84.0.9:0"}}}}"#
            );
            let config: PsConfig = tally_config::parse("p.json", text.as_bytes()).unwrap();
            config.check(Path::new("p.json")).map_err(|e| e.to_string())
        };
        assert_eq!(ps(job), Ok(()));
        assert_eq!(
            ps(&format!("{job},{job}")),
            Err("p.json: jobs[1].id: found 7, expected every job once".into())
        );
        // Jobs are added while it runs.
        assert_eq!(ps(""), Ok(()));
        let part = |part: &str| ps(&job.replace('}', &format!(", {part}}}")));
        assert_eq!(part(r#""part": 3, "parts": 4"#), Ok(()));
        for (wrong, problem) in [
            (
                r#""parts": 3"#,
                "jobs[0].parts: found 3, expected 1, 2, 4, 8 or 16",
            ),
            (
                r#""part": 2, "parts": 2"#,
                "jobs[0].part: found 2, expected 0 to 1, below `parts`",
            ),
            (
                r#""part": 1"#,
                "jobs[0].part: found 1, expected 0 to 0, below `parts`",
            ),
        ] {
            assert_eq!(part(wrong), Err(format!("p.json: {problem}")));
        }
    }
}
