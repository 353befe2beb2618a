//! What the agent of a host is told: its socket, its switch, and the jobs that processes may take
//! part in.

use super::ranks::{RANKS_PER_HOST_MAX, default_ranks_per_host, is_one};
use super::{
    AgentController, AgentRing, Algorithm, Eal, JobRina, PsConfig, PsJob, SwitchAddress, Timeouts,
    Transport, WorkerConfig, WorkerJob, check_frames, check_jobs, check_parts, check_switch,
    check_workers, default_payload_bytes, default_source_port, default_window, mac,
};
use crate::event::{LogSection, MetricsSection};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_wire::{Key, Mac, UNIT_BYTES};

/// Where processes find the agent, unless it is configured.
pub const DEFAULT_SOCKET: &str = "/run/tally/agent/agent.sock";

/// An agent's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// Where processes find it.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Who may connect to it.
    #[serde(default)]
    pub access: Access,
    /// Where the switch is.
    pub switch: SwitchAddress,
    /// How frames get there.
    pub transport: AgentTransport,
    /// The jobs that processes may take part in.
    pub jobs: Vec<AgentJob>,
    /// Rings of RoCEv2 hosts (NetReduce) that processes may take part in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<AgentRing>,
    /// Bytes of elements in a frame: a multiple of 64, up to 8192.
    #[serde(default = "default_payload_bytes")]
    pub payload_bytes: u32,
    /// Fragments that may be unfinished, of each process.
    #[serde(default = "default_window")]
    pub window: u16,
    /// When to give up.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Memory that each process may share with the agent, in units of 2^20 bytes.
    #[serde(default = "default_memory_mib")]
    pub memory_mib: u32,
    /// Processes at a time.
    #[serde(default = "default_processes")]
    pub processes: u16,
    /// Where and by whom the agent is changed while it runs.
    #[serde(default)]
    pub control: Control,
    /// A parameter server in the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ps: Option<AgentPs>,
    /// Who tells this host its places in jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<AgentController>,
    /// What the log writes, and how.
    #[serde(default, skip_serializing_if = "LogSection::is_default")]
    pub log: LogSection,
    /// Where metrics are served over HTTP; without it, nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsSection>,
}

/// Where and by whom the agent is changed while it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Path of the socket; `.control` behind that of the agent's socket if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The group whose members may change the agent, beside root and the agent's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A parameter server in the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentPs {
    /// The jobs that it serves; those of the agent if there is no list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<PsJob>>,
}

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Access {
    /// The mode of the socket file, in octal digits.
    pub mode: Mode,
    /// The group of the socket file, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl Access {
    /// Whether nothing is configured.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Default for Mode {
    fn default() -> Self {
        Self(0o660)
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{:04o}", self.0))
    }
}

impl schemars::JsonSchema for Mode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Mode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^[0-7]{1,4}$"})
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let mode = u32::from_str_radix(&text, 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777 && text.len() <= 4);
        mode.map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "found `{text}`, expected octal digits such as \"0660\""
            ))
        })
    }
}

/// How the agent's frames get to the switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum AgentTransport {
    /// The kernel's UDP, with a socket for each process.
    Udp {
        /// The host's address in the switch's network.
        bind: Ipv4Addr,
    },
    /// A port of its own, through DPDK, that all processes share.
    Dpdk {
        /// Memory and drivers.
        #[serde(default)]
        eal: Eal,
        /// The device.
        device: String,
        /// Its Ethernet address.
        #[serde(serialize_with = "crate::text::serialize", deserialize_with = "mac")]
        #[schemars(with = "String")]
        mac: Mac,
        /// Its IPv4 address.
        address: Ipv4Addr,
        /// The first process's UDP port; the others' follow.
        #[serde(default = "default_source_port")]
        port: u16,
    },
}

/// A job, as the agents of its hosts know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentJob {
    /// Its number in the switch's configuration.
    pub id: u16,
    /// Its key in the switch's configuration: 16 to 64 bytes in hexadecimal.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// Ranks of the job: 1 to 64 workers at one switch, to 4096 in a tree of switches.
    pub workers: u16,
    /// Ranks of each host that are one worker of the switch, 1 to 64: with N of them `workers` here
    /// is N times that of the switch. Rank r is on host r / N.
    #[serde(default = "default_ranks_per_host", skip_serializing_if = "is_one")]
    pub ranks_per_host: u16,
    /// The priority of collectives that have none of their own, as that of a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// What sums the job.
    #[serde(default, skip_serializing_if = "Algorithm::is_switch")]
    pub algorithm: Algorithm,
    /// Racks and hosts, for `algorithm` ring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rina: Option<JobRina>,
}

/// Path of the control socket beside an agent's socket.
#[must_use]
pub fn control_socket_of(socket: &Path) -> PathBuf {
    let mut name = socket.file_name().unwrap_or_default().to_owned();
    name.push(".control");
    socket.with_file_name(name)
}

fn default_socket() -> PathBuf {
    DEFAULT_SOCKET.into()
}

const fn default_memory_mib() -> u32 {
    16 << 10
}

const fn default_processes() -> u16 {
    64
}

impl From<&AgentRing> for AgentJob {
    /// The ring as processes see it.
    fn from(ring: &AgentRing) -> Self {
        Self {
            id: ring.id,
            key: ring.key.clone(),
            workers: ring.workers,
            ranks_per_host: ring.ranks_per_host,
            priority: None,
            algorithm: Algorithm::Switch,
            rina: None,
        }
    }
}

impl AgentJob {
    /// A job that a switch sums, with one rank on each host.
    #[must_use]
    pub const fn new(id: u16, key: Key, workers: u16) -> Self {
        Self {
            id,
            key,
            workers,
            ranks_per_host: default_ranks_per_host(),
            priority: None,
            algorithm: Algorithm::Switch,
            rina: None,
        }
    }

    /// Racks and hosts, if a ring sums the job.
    #[must_use]
    pub fn ring(&self) -> Option<&JobRina> {
        self.rina
            .as_ref()
            .filter(|_| self.algorithm == Algorithm::Ring)
    }

    /// Workers that the switch has; in a ring, hosts.
    #[must_use]
    pub const fn hosts(&self) -> u16 {
        self.workers / self.ranks_per_host
    }

    fn check(&self, path: &Path, i: usize) -> Result<(), ConfigError> {
        let (workers, each) = (self.workers, self.ranks_per_host);
        check_workers(path, format!("jobs[{i}].workers"), workers)?;
        let key = format!("jobs[{i}].ranks_per_host");
        if !(1..=RANKS_PER_HOST_MAX).contains(&each) {
            let allowed = format!("1 to {RANKS_PER_HOST_MAX}");
            return Err(ConfigError::value(path, key, each, allowed));
        }
        if !workers.is_multiple_of(each) {
            let allowed = format!("a divisor of {workers}, the job's workers");
            return Err(ConfigError::value(path, key, each, allowed));
        }
        let key = format!("jobs[{i}]");
        match &self.rina {
            Some(rina) => rina.check(path, &key, self.hosts().into()),
            None if self.algorithm == Algorithm::Ring => {
                let allowed = "racks and hosts, as `algorithm` is ring";
                let key = format!("{key}.rina");
                Err(ConfigError::value(path, key, "nothing", allowed))
            }
            None => Ok(()),
        }
    }
}

impl AgentConfig {
    /// With everything else as it is by default.
    #[must_use]
    pub fn new(switch: SwitchAddress, transport: AgentTransport, jobs: Vec<AgentJob>) -> Self {
        Self {
            socket: default_socket(),
            access: Access::default(),
            switch,
            transport,
            jobs,
            rings: Vec::new(),
            payload_bytes: default_payload_bytes(),
            window: default_window(),
            timeouts: Timeouts::default(),
            memory_mib: default_memory_mib(),
            processes: default_processes(),
            control: Control::default(),
            ps: None,
            controller: None,
            log: LogSection::default(),
            metrics: None,
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
        self.controller
            .as_ref()
            .map_or(Ok(()), |it| it.check(path))?;
        check_jobs(path, "jobs", self.jobs.iter().map(|job| job.id))?;
        let ps_jobs = self.ps.iter().filter_map(|ps| ps.jobs.as_ref()).flatten();
        check_jobs(path, "ps.jobs", ps_jobs.map(|job| job.id))?;
        let ps_jobs = self.ps.as_ref().and_then(|ps| ps.jobs.as_deref());
        check_parts(path, "ps.jobs", ps_jobs.unwrap_or_default())?;
        for (i, job) in self.jobs.iter().enumerate() {
            job.check(path, i)?;
            // The worker's own checks, with this file's keys.
            self.worker(job, 0).check(path).map_err(|error| {
                let ConfigError::Content { path, key, problem } = error else {
                    return error;
                };
                let of_job = key.strip_prefix("job.");
                let key = of_job.map_or(key.clone(), |it| format!("jobs[{i}].{it}"));
                ConfigError::Content { path, key, problem }
            })?;
        }
        self.check_racks(path)?;
        check_jobs(path, "rings", self.rings.iter().map(|ring| ring.id))?;
        for (i, ring) in self.rings.iter().enumerate() {
            if self.jobs.iter().any(|job| job.id == ring.id) {
                let allowed = "a number of its own: a job has it";
                return Err(ConfigError::value(
                    path,
                    format!("rings[{i}].id"),
                    ring.id,
                    allowed,
                ));
            }
            ring.check(path, i)?;
        }
        if self.jobs.is_empty() {
            check_frames(path, self.payload_bytes, self.window)?;
        }
        if self.memory_mib == 0 {
            let allowed = "1 to 4294967295";
            return Err(ConfigError::value(path, "memory_mib", 0, allowed));
        }
        if self.processes == 0 {
            return Err(ConfigError::value(path, "processes", 0, "1 to 65535"));
        }
        if let AgentTransport::Dpdk { port, .. } = self.transport
            && u16::MAX - port < self.processes - 1
        {
            let (found, most) = (self.processes, u32::from(u16::MAX - port) + 1);
            let allowed = format!("1 to {most}, as each has a UDP port from {port} on");
            return Err(ConfigError::value(path, "processes", found, allowed));
        }
        Ok(())
    }

    /// That no two rings listen at one address, and that racks that sum can be reached.
    fn check_racks(&self, path: &Path) -> Result<(), ConfigError> {
        let mut seen = Vec::new();
        for (i, job) in self.jobs.iter().enumerate() {
            let racks = job.ring().map_or(&[][..], |it| &it.racks);
            let is_dpdk = matches!(self.transport, AgentTransport::Dpdk { .. });
            if is_dpdk && racks.iter().any(|rack| rack.sums) {
                let allowed = format!("udp, as racks of jobs[{i}] sum");
                return Err(ConfigError::value(path, "transport.type", "dpdk", allowed));
            }
            for host in racks.iter().flat_map(|rack| &rack.hosts) {
                let other = seen.iter().find(|(_, at)| *at == host);
                if let Some((other, _)) = other {
                    let allowed = format!("a port of its own: jobs[{other}] has it");
                    let key = format!("jobs[{i}].rina");
                    return Err(ConfigError::value(path, key, host, allowed));
                }
                seen.push((i, host));
            }
        }
        Ok(())
    }

    /// Payload in units of the header.
    #[must_use]
    pub const fn units(&self) -> u8 {
        (self.payload_bytes as usize / UNIT_BYTES) as u8
    }

    /// Path of the socket by which the agent is changed while it runs.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        match &self.control.socket {
            Some(path) => path.clone(),
            None => control_socket_of(&self.socket),
        }
    }

    /// What the parameter server in the agent would be told as a program of its own.
    #[must_use]
    pub fn parameter_server(&self) -> Option<PsConfig> {
        let jobs = self.ps.as_ref()?.jobs.clone();
        let of_agent = |job: &AgentJob| PsJob::new(job.id, job.key.clone());
        Some(PsConfig {
            switch: self.switch,
            jobs: jobs.unwrap_or_else(|| self.jobs.iter().map(of_agent).collect()),
            transport: self.transport_of_one(),
            log: self.log,
            metrics: None,
        })
    }

    /// The transport of one worker, or of the parameter server.
    #[must_use]
    pub fn transport_of_one(&self) -> Transport {
        match &self.transport {
            AgentTransport::Udp { bind } => Transport::udp(*bind),
            AgentTransport::Dpdk {
                eal,
                device,
                mac,
                address,
                port,
            } => Transport::Dpdk {
                eal: *eal,
                device: device.clone(),
                mac: *mac,
                address: *address,
                port: *port,
            },
        }
    }

    /// What the worker would be told that has rank `rank` of `job`: at the switch its number is
    /// that of the host.
    #[must_use]
    pub fn worker(&self, job: &AgentJob, rank: u16) -> WorkerConfig {
        WorkerConfig {
            switch: self.switch,
            job: WorkerJob {
                id: job.id,
                key: job.key.clone(),
                workers: job.hosts(),
                rank: Some(rank / job.ranks_per_host),
                priority: job.priority,
            },
            transport: self.transport_of_one(),
            payload_bytes: self.payload_bytes,
            window: self.window,
            timeouts: self.timeouts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::round_trip;

    const AGENT: &str = r#"{
        "switch": {"address": "10.84.0.254"},
        "transport": {"type": "udp", "bind": "10.84.0.1"},
        "jobs": [{"id": 7, "key": "000102030405060708090a0b0c0d0e0f", "workers": 4, "priority": 3},
                 {"id": 8, "key": "f00102030405060708090a0b0c0d0e0f", "workers": 2}]
    }"#;

    fn agent(text: &str) -> Result<AgentConfig, String> {
        let config: AgentConfig =
            tally_config::parse("a.json", text.as_bytes()).map_err(|e| e.to_string())?;
        config
            .check(Path::new("a.json"))
            .map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn an_agent_loads_with_defaults_and_is_its_workers() {
        let config = agent(AGENT).unwrap();
        assert_eq!(config.socket, Path::new(DEFAULT_SOCKET));
        assert_eq!(config.access.mode, Mode(0o660));
        let worker = config.worker(&config.jobs[0], 3);
        assert_eq!((worker.job.rank, worker.job.priority), (Some(3), Some(3)));
        let Transport::Udp { bind } = worker.transport else {
            panic!("another transport");
        };
        assert_eq!(bind, "10.84.0.1:0".parse().unwrap());
        let open = AGENT.replace(
            "\"jobs\"",
            "\"access\": {\"mode\": \"0666\", \"group\": \"tally\"}, \"jobs\"",
        );
        assert_eq!(agent(&open).unwrap().access.mode, Mode(0o666));
    }

    #[test]
    fn a_host_of_several_ranks_is_one_worker() {
        let of = |each: &str| agent(&AGENT.replacen("4,", &format!("4, {each},"), 1));
        let config = of(r#""ranks_per_host": 2"#).unwrap();
        let worker = |rank| config.worker(&config.jobs[0], rank).job;
        assert_eq!(
            [0, 1, 2, 3].map(|it| worker(it).rank),
            [0, 0, 1, 1].map(Some)
        );
        assert_eq!((worker(3).workers, config.jobs[0].hosts()), (2, 2));
        for (wrong, allowed) in [
            (0, "1 to 64"),
            (65, "1 to 64"),
            (3, "a divisor of 4, the job's workers"),
        ] {
            let error = of(&format!("\"ranks_per_host\": {wrong}")).unwrap_err();
            let want = format!("jobs[0].ranks_per_host: found {wrong}, expected {allowed}");
            assert!(error.ends_with(&want), "{error}");
        }
    }

    /// Every key, none with its default.
    #[test]
    fn a_configuration_is_written_as_it_was_read() {
        let text = r#"{
            "socket": "/tmp/agent.sock",
            "access": {"mode": "0600", "group": "tally"},
            "switch": {"address": "10.84.0.254", "port": 4000},
            "transport": {"type": "dpdk", "eal": {"memory": "hugepages", "megabytes": 128},
                          "device": "0000:01:00.0", "mac": "02:00:00:00:00:01", "address": "10.84.0.1",
                          "port": 5000},
            "jobs": [{"id": 7, "key": "000102030405060708090a0b0c0d0e0f", "workers": 4, "ranks_per_host": 2,
                      "priority": 3, "algorithm": "ring",
                      "rina": {"racks": [{"sums": false, "hosts": ["10.1.0.1:4791", "10.1.0.2:4791"]}]}}],
            "payload_bytes": 2048, "window": 64,
            "timeouts": {"join_ms": 1, "stall_ms": 2, "linger_ms": 3},
            "memory_mib": 64, "processes": 8,
            "control": {"socket": "/tmp/agent.control", "group": "operators"},
            "ps": {"jobs": [{"id": 9, "key": "000102030405060708090a0b0c0d0e0f"}]},
            "controller": {"addresses": ["a:1", "[::1]:2"], "certificate": "h.crt", "key": "h.key",
                           "ca": "ca.crt", "server_name": "controller", "host": "h0"}
        }"#;
        let config: AgentConfig = round_trip(text);
        assert_eq!(config.access.mode, Mode(0o600));
        let config = agent(AGENT).unwrap();
        let (transport, jobs) = (config.transport.clone(), config.jobs.clone());
        assert_eq!(AgentConfig::new(config.switch, transport, jobs), config);
    }

    #[test]
    fn the_parameter_server_has_the_agent_s_jobs_or_its_own_list() {
        let config = agent(AGENT).unwrap();
        assert_eq!(config.parameter_server(), None);
        assert_eq!(
            config.control_socket(),
            Path::new("/run/tally/agent/agent.sock.control")
        );
        let config = agent(&AGENT.replace("\"jobs\"", "\"ps\": {}, \"jobs\"")).unwrap();
        let ps = config.parameter_server().unwrap();
        assert_eq!(ps.jobs.iter().map(|it| it.id).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(ps.jobs[1].key, config.jobs[1].key);
        assert_eq!(ps.transport, Transport::udp("10.84.0.1".parse().unwrap()));
        let own = AGENT.replacen(
            "\"jobs\"",
            r#""ps": {"jobs": [{"id": 9, "key": "e00102030405060708090a0b0c0d0e0f"}]}, "jobs""#,
            1,
        );
        let ps = agent(&own).unwrap().parameter_server().unwrap();
        assert_eq!(ps.jobs.iter().map(|it| it.id).collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn impossible_values_are_named() {
        for (from, to, want) in [
            (
                "\"id\": 8",
                "\"id\": 7",
                "a.json: jobs[1].id: found 7, expected every job once",
            ),
            (
                "\"workers\": 2",
                "\"workers\": 4097",
                "a.json: jobs[1].workers: found 4097, expected 1 to 4096",
            ),
            (
                "\"workers\": 2",
                "\"workers\": 0",
                "a.json: jobs[1].workers: found 0, expected 1 to 4096",
            ),
            (
                "\"jobs\"",
                "\"payload_bytes\": 100, \"jobs\"",
                "a.json: payload_bytes: found 100, expected a multiple of 64, up to 8192",
            ),
            (
                "\"jobs\"",
                "\"access\": {\"mode\": \"rw\"}, \"jobs\"",
                "a.json: access.mode: found `rw`, expected octal digits such as \"0660\"",
            ),
            (
                "\"jobs\"",
                "\"controller\": {\"addresses\": [\"c0\"], \"certificate\": \"a\", \"key\": \"b\", \"ca\": \"c\"}, \"jobs\"",
                "a.json: controller.addresses[0]: found c0, expected HOST:PORT",
            ),
            (
                "\"jobs\"",
                "\"controller\": {\"addresses\": [], \"certificate\": \"a\", \"key\": \"b\", \"ca\": \"c\"}, \"jobs\"",
                "a.json: controller.addresses: found none, expected one HOST:PORT or more",
            ),
            (
                "\"jobs\"",
                "\"memory_mib\": 0, \"jobs\"",
                "a.json: memory_mib: found 0, expected 1 to 4294967295",
            ),
            (
                "\"jobs\"",
                "\"processes\": 0, \"jobs\"",
                "a.json: processes: found 0, expected 1 to 65535",
            ),
        ] {
            assert_eq!(agent(&AGENT.replace(from, to)).unwrap_err(), want);
        }
    }

    #[test]
    fn every_process_at_a_port_has_a_udp_port() {
        let with = |port: u16| {
            let transport = format!(
                r#"{{"type": "dpdk", "device": "net_null0", "mac": "02:00:00:00:00:01",
                    "address": "10.84.0.1", "port": {port}}}"#
            );
            agent(&AGENT.replace(r#"{"type": "udp", "bind": "10.84.0.1"}"#, &transport))
        };
        assert!(with(65_472).is_ok());
        let want =
            "a.json: processes: found 64, expected 1 to 63, as each has a UDP port from 65473 on";
        assert_eq!(with(65_473).unwrap_err(), want);
    }
}
