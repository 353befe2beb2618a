//! What is simulated: jobs, the network, and what is random of them.

use super::models::{Model, Plan};
use crate::link::OVERHEAD_BYTES;
use crate::rng::Rng;
use crate::tree::Tree;
use serde::Serialize;
use std::rc::Rc;
use std::time::Duration;
use tally_engine::PolicyName;
use tally_engine::native::policy::Static;
use tally_wire::JobId;
use tally_wire::header::HEADER_BYTES;

/// Payload that a fragment stands for.
pub const FRAGMENT_BYTES: u64 = 1024;
/// What a fragment's frame takes of the wire.
pub(super) const FRAME_BYTES: u64 = FRAGMENT_BYTES + HEADER_BYTES as u64 + OVERHEAD_BYTES as u64;
/// Rate of every cable of a host.
pub(super) const GBIT_PER_S: f64 = 100.0;

/// What is simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scenario {
    /// Models of the jobs, in turn.
    #[serde(serialize_with = "names")]
    pub mix: Vec<Model>,
    /// Jobs.
    pub jobs: usize,
    /// Workers of the first job, of the second, and so on, in turn.
    pub workers: Vec<u8>,
    /// Slots of the pool.
    pub slots: u32,
    /// Slots that a fragment may be in; none: the policy's default.
    pub ways: Option<u32>,
    /// Fragments that a worker may have unfinished; the switch may serve fewer.
    pub window: u16,
    /// What parameters and computation are divided by.
    pub scale: u64,
    /// Iterations of each job.
    pub iterations: u32,
    /// Workers do not know the number of iterations.
    #[serde(skip_serializing_if = "is_false")]
    pub unknown_lengths: bool,
    /// Worker `r` of all jobs is at host `r`, and they share its NIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_nic: Option<NicService>,
    /// The PS of a job is at a host of one of its workers.
    #[serde(skip_serializing_if = "is_false")]
    pub colocated_ps: bool,
    /// Hosts that stall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalls: Option<Stalls>,
    /// Leaves and a spine in place of one switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<LeafSpine>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(it: &bool) -> bool {
    !*it
}

fn names<S: serde::Serializer>(mix: &[Model], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(mix.iter().map(|m| m.name()))
}

impl Scenario {
    /// Windows as the real switch serves them: no larger than the slots that a job may use.
    #[must_use]
    pub fn served_window(&self, policy: PolicyName) -> u16 {
        let slots = match policy {
            PolicyName::Static => Static::share(self.jobs, self.slots),
            PolicyName::Esa | PolicyName::Fcfs => self.slots,
            PolicyName::None => u32::MAX,
        };
        self.window.min(u16::try_from(slots).unwrap_or(u16::MAX))
    }

    /// Payload that the switch has room for, in KiB: its slots, and a ring of two windows of
    /// results for each job.
    pub(super) fn memory_kib(&self, policy: PolicyName) -> u64 {
        let slots = match policy {
            PolicyName::None => 0,
            _ => u64::from(self.slots),
        };
        let results = self.jobs as u64 * 2 * u64::from(self.served_window(policy));
        (slots + results) * FRAGMENT_BYTES / 1024
    }

    pub(super) fn workers(&self, job: usize) -> u8 {
        self.workers[job % self.workers.len()]
    }
}

/// Times in which a host's processes do not run and what arrives waits: each is drawn evenly
/// between 0 and twice its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stalls {
    /// Mean of a stall.
    pub mean_us: u32,
    /// Mean between two.
    pub every_us: u32,
}

/// How the sessions of a host share its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicService {
    /// Each in its turn.
    RoundRobin,
    /// In the agent's order, [`NicOrder`](tally_endpoint::nic::NicOrder).
    Ordered,
}

/// How gradients are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// By leaf and spine.
    Tree,
    /// By the leaf; the leaves' sums by a PS behind the spine, as with ATP's first level alone.
    LeafOnly,
    /// By a PS behind the spine alone.
    Ps,
    /// By hosts, in a ring whose neighbours are at one leaf where they can be.
    Ring,
    /// By hosts, in a ring whose neighbours are at different leaves.
    RingScattered,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Tree,
        Self::LeafOnly,
        Self::Ps,
        Self::Ring,
        Self::RingScattered,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::LeafOnly => "leaf-only",
            Self::Ps => "ps",
            Self::Ring => "ring",
            Self::RingScattered => "ring-scattered",
        }
    }
}

/// Leaves below a spine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeafSpine {
    /// Leaves.
    pub leaves: u8,
    /// Rate of each leaf's uplinks together.
    pub uplink_gbit_per_s: u32,
    /// How gradients are summed.
    pub scheme: Scheme,
}

/// What crosses the links, in gradients of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Crossings {
    /// A worker's cable, one way.
    pub(super) worker: f64,
    /// A leaf's uplinks, upward and downward: of one job.
    pub(super) uplink: (f64, f64),
    /// The cable to the PS.
    pub(super) ps: f64,
}

impl LeafSpine {
    /// A job's tree, if switches sum at all levels.
    #[must_use]
    pub fn tree(&self, workers: u8) -> Tree {
        let leaf = (Some(0), u16::from(workers / self.leaves));
        let leaves = (0..self.leaves).map(|_| leaf);
        Tree::new(&[(None, 0)].into_iter().chain(leaves).collect::<Vec<_>>())
    }

    pub(super) fn crossings(&self, workers: u8) -> Crossings {
        let (n, leaves) = (f64::from(workers), f64::from(self.leaves));
        let at_leaf = n / leaves;
        // Each rank sends each of n - 1 parts of n twice.
        let ring = 2.0 * (n - 1.0) / n;
        let (worker, uplink, ps) = match self.scheme {
            Scheme::Tree => (1.0, (1.0, 1.0), 0.0),
            Scheme::LeafOnly => (1.0, (1.0, 1.0), leaves),
            Scheme::Ps => (1.0, (at_leaf, 1.0), n),
            Scheme::Ring => (ring, (ring, ring), 0.0),
            Scheme::RingScattered => (ring, (ring * at_leaf, ring * at_leaf), 0.0),
        };
        Crossings { worker, uplink, ps }
    }
}

/// The number of a job.
pub(super) const fn job_id(job: usize) -> JobId {
    JobId(job as u16 + 1)
}

/// What is random in a run, in the order in which it is drawn: the same for all policies and
/// schemes.
pub(super) struct Draws {
    pub(super) world: u64,
    pub(super) plans: Vec<Rc<Plan>>,
    /// By job, from when all run to its start.
    pub(super) offsets: Vec<Duration>,
    /// By job and rank: the instance, and what computation varies by.
    pub(super) workers: Vec<Vec<(u64, Rng)>>,
    pub(super) rng: Rng,
}

impl Draws {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let world = rng.next();
        let plans: Vec<_> = (0..scenario.jobs)
            .map(|job| scenario.mix[job % scenario.mix.len()])
            .map(|model| Rc::new(Plan::new(model, scenario.scale, FRAGMENT_BYTES)))
            .collect();
        let longest = plans.iter().map(|p| p.computation()).max();
        let longest = longest.unwrap_or_default().as_nanos() as u64;
        let offsets = plans
            .iter()
            .map(|_| Duration::from_nanos(rng.below(longest.max(1))));
        let offsets = offsets.collect();
        let mut worker = || (rng.next() | 1, rng.fork());
        let workers = (0..scenario.jobs)
            .map(|job| (0..scenario.workers(job)).map(|_| worker()).collect())
            .collect();
        Self {
            world,
            plans,
            offsets,
            workers,
            rng,
        }
    }
}
