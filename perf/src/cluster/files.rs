//! The files through which programs are told what to do and say what they did: configurations, as far
//! as a cluster fills them in, and reports, as far as its users read them.

use super::Timeouts;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let mut text = std::fs::read(path).with_context(|| path.display().to_string())?;
    simd_json::from_slice(&mut text).with_context(|| path.display().to_string())
}

#[derive(Serialize)]
pub(super) struct SwitchConfig<'a> {
    pub(super) address: SwitchAddress<'a>,
    pub(super) cores: &'a [usize],
    pub(super) ports: Vec<SwitchPort>,
    pub(super) pool: SwitchPool<'a>,
    pub(super) jobs: Vec<SwitchJob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) switchml: Option<SwitchmlSection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) card: Option<CardSection>,
    pub(super) window: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) member_timeout_ms: Option<u32>,
    pub(super) stats_socket: PathBuf,
}

#[derive(Serialize)]
pub(super) struct CardSection {
    pub(super) port: &'static str,
    pub(super) registers: CardRegisters,
    pub(super) jobs: Vec<u16>,
}

#[derive(Serialize)]
pub(super) struct CardRegisters {
    pub(super) socket: PathBuf,
}

#[derive(Serialize)]
pub(super) struct SwitchmlSection {
    pub(super) listen: Vec<SocketAddr>,
}

#[derive(Serialize)]
pub(super) struct SwitchAddress<'a> {
    pub(super) mac: &'a str,
    pub(super) ip: Ipv4Addr,
}

#[derive(Serialize)]
pub(super) struct SwitchPort {
    pub(super) name: String,
    pub(super) device: String,
    pub(super) mtu: u16,
}

#[derive(Serialize)]
pub(super) struct SwitchPool<'a> {
    pub(super) policy: &'a str,
    pub(super) slots: Option<u32>,
}

#[derive(Serialize)]
pub(super) struct SwitchJob {
    pub(super) id: u16,
    pub(super) key: String,
    pub(super) workers: u8,
}

#[derive(Serialize)]
pub(super) struct AgentSwitch {
    pub(super) address: Ipv4Addr,
}

#[derive(Serialize)]
pub(super) struct PsConfig<'a> {
    pub(super) switch: AgentSwitch,
    pub(super) jobs: [PsJob; 1],
    pub(super) transport: &'a Transport,
}

#[derive(Serialize)]
pub(super) struct PsJob {
    pub(super) id: u16,
    pub(super) key: String,
}

#[derive(Serialize)]
pub(super) struct WorkerConfig<'a> {
    pub(super) switch: AgentSwitch,
    pub(super) job: WorkerJob,
    pub(super) transport: &'a Transport,
    pub(super) payload_bytes: u16,
    pub(super) window: u16,
    pub(super) timeouts: &'a Timeouts,
}

#[derive(Serialize)]
pub(super) struct WorkerJob {
    pub(super) id: u16,
    pub(super) key: String,
    pub(super) workers: u8,
    pub(super) rank: u8,
}

#[derive(Serialize)]
pub(super) struct AgentConfig<'a> {
    pub(super) socket: &'a Path,
    pub(super) switch: AgentSwitch,
    pub(super) jobs: [SwitchJob; 1],
    pub(super) transport: AgentTransport,
    pub(super) payload_bytes: u16,
    pub(super) window: u16,
    pub(super) timeouts: &'a Timeouts,
}

/// The `transport` of the agent of a host, which has no port.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum AgentTransport {
    Udp { bind: Ipv4Addr },
}

/// The `transport` of a worker's or a parameter server's configuration.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Transport {
    Udp {
        bind: String,
    },
    Dpdk {
        device: String,
        mac: String,
        address: Ipv4Addr,
    },
}

/// What an agent reports of one all-reduce, as far as the cluster's users read it.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct WorkerReport {
    /// Payload bits of the input per second, in Gbit/s, from the first frame to the last result.
    pub goodput_gbit_per_s: f64,
    /// That time.
    pub seconds: f64,
    /// Of each round, from its first contribution to its last result.
    pub round_seconds: Vec<f64>,
    /// Fragments.
    pub fragments: u64,
    /// Results that the switch finished.
    pub from_switch: u64,
    /// Results that the PS finished.
    pub from_ps: u64,
    /// Probes and retransmitted contributions.
    pub retransmissions: Retransmissions,
    /// Results sent to the parameter server for workers that had lost them.
    pub results_resent: u64,
    /// From contribution to result.
    pub latency_us: LatencyReport,
    /// Losses made on purpose, where there is an injector.
    pub loss: Option<Injected>,
}

/// What a parameter server reports, as far as the cluster's users read it.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct PsReport {
    /// Its jobs.
    pub jobs: Vec<PsJobReport>,
    /// Losses made on purpose, where there is an injector.
    pub loss: Option<Injected>,
}

/// One job of a parameter server.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct PsJobReport {
    /// Results sent again.
    pub results_resent: u64,
    /// Fragments that it asked workers for.
    pub nacks: u64,
}

/// Datagrams at an injector of losses, by what they carry.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Injected {
    /// All lost datagrams that were to leave.
    pub sent: u64,
    /// All lost datagrams that had arrived.
    pub received: u64,
    /// Datagrams with elements.
    pub elements: Traffic,
    /// Datagrams by kind.
    pub by_kind: BTreeMap<String, Traffic>,
}

/// Datagrams at an injector of losses.
#[derive(Clone, Copy, Debug, Default, Serialize, serde::Deserialize)]
pub struct Traffic {
    /// Datagrams that were to leave, with the lost ones.
    pub sent: u64,
    /// The lost ones of them.
    pub sent_lost: u64,
    /// Datagrams that arrived, with the lost ones.
    pub received: u64,
    /// The lost ones of them.
    pub received_lost: u64,
}

impl Traffic {
    /// Datagrams lost in both directions.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sent_lost + self.received_lost
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_lost += other.sent_lost;
        self.received += other.received;
        self.received_lost += other.received_lost;
    }
}

/// PROBEs by reason, and the contributions that NACKs asked for.
#[derive(Clone, Copy, Debug, Default, Serialize, serde::Deserialize)]
pub struct Retransmissions {
    /// PROBEs after a timeout.
    pub timeout: u64,
    /// PROBEs because later fragments had results.
    pub early: u64,
    /// Contributions retransmitted because of a NACK.
    pub nack: u64,
}

impl Retransmissions {
    /// Contributions retransmitted.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.nack
    }

    /// Those of several workers.
    #[must_use]
    pub fn of_all(workers: impl IntoIterator<Item = Self>) -> Self {
        workers.into_iter().fold(Self::default(), |all, one| Self {
            timeout: all.timeout + one.timeout,
            early: all.early + one.early,
            nack: all.nack + one.nack,
        })
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct LatencyReport {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}
