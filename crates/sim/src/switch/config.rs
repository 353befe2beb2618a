//! What a simulated switch is started with.

use crate::address::SwitchId;
use std::time::Duration;
use tally_engine::forwarding::FloodLimits;
use tally_engine::queue::QueueConfig;
use tally_engine::switchml::SwitchmlConfig;
use tally_engine::{ForwardingConfig, JobConfig, PoolConfig, RegistryConfig};
use tally_kernels::Kernels;

/// How cores poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollConfig {
    /// From the first frame of a poll iteration to its beginning at most; each is drawn.
    pub lasting: Duration,
    /// Frames received from a port in an iteration at most.
    pub burst: usize,
}

/// Which core receives a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// The core whose shard the UDP port names: the NIC has flow rules, and queues for each core.
    Rules,
    /// The core that owns the port; it also sends on it. Frames of other shards are handed over.
    Owner,
}

/// What a switch is started with.
#[derive(Clone)]
pub struct SwitchConfig {
    /// Each shard's pool; `shard` is filled in.
    pub pool: PoolConfig,
    /// What the registry is told; `mac` is filled in.
    pub registry: RegistryConfig,
    /// The jobs.
    pub jobs: Vec<JobConfig>,
    /// The queues of each port.
    pub queue: QueueConfig,
    /// How long the registry takes.
    pub control_delay: Duration,
    /// How cores poll; none: each frame has an iteration of its own, at once.
    pub poll: Option<PollConfig>,
    /// Which core receives a frame.
    pub steering: Steering,
    /// The kernels that sum.
    pub kernels: Kernels,
    /// Forwarding; `ports`, `mac` and `ip` are filled in.
    pub forwarding: ForwardingConfig,
    /// SwitchML, if it is served; `shards` and `shard` are filled in.
    pub switchml: Option<SwitchmlConfig>,
    /// DSCP of rings, if they are served.
    pub netreduce: Option<u8>,
}

/// Forwarding with this random seed, and limits of addresses and floods that a hostile host
/// exceeds.
#[must_use]
pub const fn forwarding_config(seed: u64) -> ForwardingConfig {
    ForwardingConfig {
        mac: SwitchId(0).mac(),
        ip: SwitchId(0).ip(),
        ports: 0,
        ageing_s: 300,
        addresses: 16,
        floods_per_s: FloodLimits::each(200),
        answers_per_s: 500,
        seed,
    }
}
