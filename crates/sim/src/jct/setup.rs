//! Switches and cables of a run: one switch, or leaves below a spine.
//!
//! Hosts follow, and then [`Sites::introduce`]: a switch that has been told something takes no
//! further cable.

use super::feed::Feed;
use super::scenario::{FRAGMENT_BYTES, LeafSpine, Scenario, Scheme, job_id};
use crate::address::{Node, SwitchId};
use crate::fabric::{self, Trunk};
use crate::link::LinkConfig;
use crate::switch::{Steering, SwitchConfig, forwarding_config};
use crate::world::{World, WorldConfig};
use std::time::Duration;
use tally_engine::queue::QueueConfig;
use tally_engine::{JobConfig, PolicyName, PoolConfig, PoolJob, PortId, RegistryConfig};
use tally_kernels::Kernels;
use tally_wire::frame::group_of;
use tally_wire::{DEFAULT_PORT, JobId, Key, Mac};

/// Units of the payload that is really summed.
pub(super) const UNITS: u8 = 1;
/// One way over any cable.
pub(super) const DELAY: Duration = Duration::from_nanos(2500);
/// What the queue of an ordinary switch holds: the frames of one class of ours.
const BRIDGE_BYTES: u64 = 512 * 1112;

/// A switch's pool.
#[derive(Clone, Copy)]
pub(super) struct Pool {
    pub(super) policy: PolicyName,
    pub(super) slots: u32,
    /// None: the policy's default.
    pub(super) ways: Option<u32>,
    pub(super) window: u16,
}

/// A switch of one core that handles each frame as it comes.
pub(super) fn switch_config(
    id: SwitchId,
    jobs: Vec<JobConfig>,
    pool: Pool,
    is_in_fabric: bool,
) -> SwitchConfig {
    let Pool {
        policy,
        slots,
        ways,
        window,
    } = pool;
    SwitchConfig {
        pool: PoolConfig {
            slots,
            ways: ways.unwrap_or(policy.default_ways()).min(slots),
            held: 0,
            window,
            shards: 1,
            shard: 0,
            jobs: (jobs.iter().map(|job| job.id))
                .map(PoolJob::unlimited)
                .collect(),
            policy,
            places: 0,
        },
        registry: RegistryConfig {
            mac: id.mac(),
            base_port: DEFAULT_PORT,
            shards: 1,
            window,
            units: UNITS,
            member_timeout: Duration::from_secs(5),
            secret: [7; 32],
            fabric: is_in_fabric.then(|| fabric::own(id)),
        },
        jobs,
        queue: QueueConfig::default(),
        control_delay: Duration::from_micros(20),
        poll: None,
        steering: Steering::Rules,
        kernels: Kernels::best(),
        forwarding: forwarding_config(0),
        switchml: None,
        netreduce: None,
    }
}

/// Where hosts are connected, and who aggregates for them.
pub(super) struct Sites {
    /// For each leaf: what the cables of its hosts go to, and the switch that their jobs are at.
    leaves: Vec<(Node, SwitchId)>,
    /// The switches of a job's nodes, the root's first: each has a PS.
    pub(super) nodes: Vec<SwitchId>,
    /// Each leaf's: its end, and the port at the spine.
    uplinks: Vec<(Node, PortId, PortId)>,
    /// Those of child switches, by switch.
    trunks: Vec<Option<Trunk>>,
}

/// The spine, or the only switch.
const ROOT: SwitchId = SwitchId(0);

impl Sites {
    /// The world of a scenario without its hosts.
    pub(super) fn build(
        scenario: &Scenario,
        policy: PolicyName,
        keys: &[Key],
        seed: u64,
    ) -> (World<Feed>, Self) {
        let config = WorldConfig {
            seed,
            units_max: UNITS,
            mtu: 0,
            nominal_payload_bytes: Some(FRAGMENT_BYTES as u32),
        };
        let pool = |policy| Pool {
            policy,
            slots: scenario.slots,
            ways: scenario.ways,
            window: scenario.served_window(policy),
        };
        let flat = |policy| {
            let jobs = (0..scenario.jobs).map(|job| JobConfig {
                id: job_id(job),
                key: keys[job].clone(),
                workers: scenario.workers(job),
                previous_key: None,
                servers: 1,
                tree: None,
            });
            switch_config(ROOT, jobs.collect(), pool(policy), false)
        };
        let Some(fabric) = scenario.fabric else {
            let sites = Self {
                leaves: vec![(ROOT.into(), ROOT)],
                nodes: vec![ROOT],
                uplinks: Vec::new(),
                trunks: Vec::new(),
            };
            return (World::new(config, flat(policy)), sites);
        };
        let uplink = LinkConfig::new(f64::from(fabric.uplink_gbit_per_s), DELAY);
        if fabric.scheme == Scheme::Ps {
            let mut world = World::new(config, flat(PolicyName::None));
            let sites = Self::ordinary(&mut world, fabric, uplink);
            return (world, sites);
        }
        let at_root = match fabric.scheme {
            Scheme::LeafOnly => PolicyName::None,
            _ => policy,
        };
        let switches: Vec<_> = (0..=fabric.leaves).map(|n| SwitchId(n.into())).collect();
        let config_of = |node: usize, policy| {
            let jobs = (0..scenario.jobs).map(|job| {
                let tree = fabric.tree(scenario.workers(job));
                let job = (job_id(job), keys[job].clone());
                fabric::job_config(job, &tree, &switches, node)
            });
            switch_config(switches[node], jobs.collect(), pool(policy), true)
        };
        let mut world = World::new(config, config_of(0, at_root));
        for node in 1..switches.len() {
            world.add_switch(config_of(node, policy));
        }
        let mut above = vec![Some(0); switches.len()];
        above[0] = None;
        let trunks = fabric::connect(&mut world, &above, (uplink, uplink));
        let lower = switches.iter().zip(&trunks);
        let uplinks = lower.filter_map(|(&leaf, trunk)| {
            let trunk = trunk.as_ref()?;
            Some((leaf.into(), trunk.lower, trunk.upper))
        });
        let sites = Self {
            leaves: switches[1..]
                .iter()
                .map(|&leaf| (leaf.into(), leaf))
                .collect(),
            uplinks: uplinks.collect(),
            nodes: switches,
            trunks,
        };
        (world, sites)
    }

    /// Leaves that are ordinary switches.
    fn ordinary(world: &mut World<Feed>, fabric: LeafSpine, link: LinkConfig) -> Self {
        let up = LinkConfig {
            backlog_bytes: BRIDGE_BYTES,
            ..link
        };
        let leaves = (0..fabric.leaves).map(|_| {
            let leaf: Node = world.add_bridge().into();
            let (lower, upper) = world.add_trunk(leaf, ROOT, up, link);
            (leaf, lower, upper)
        });
        let uplinks: Vec<_> = leaves.collect();
        Self {
            leaves: uplinks.iter().map(|&(leaf, ..)| (leaf, ROOT)).collect(),
            nodes: vec![ROOT],
            uplinks,
            trunks: Vec::new(),
        }
    }

    /// Where a worker's cable goes to, and the switch that its job is at: ranks are spread evenly,
    /// neighbours at one leaf.
    pub(super) fn of_worker(&self, rank: u8, workers: u8) -> (Node, SwitchId) {
        self.leaves[usize::from(rank) * self.leaves.len() / usize::from(workers)]
    }

    /// Tells leaves what they must know, once all hosts are connected: where the parent is, and
    /// which ports are of which group.
    pub(super) fn introduce(&self, world: &mut World<Feed>, jobs: &[JobId]) {
        for (leaf, &trunk) in self.trunks.iter().enumerate() {
            fabric::introduce(world, SwitchId(leaf as u16), trunk, jobs);
        }
    }

    /// Has an ordinary leaf send a job's results to a worker's port, as by IGMP snooping.
    pub(super) fn join_group(&self, world: &mut World<Feed>, at: (Node, PortId), job: JobId) {
        if let (Node::Bridge(id), port) = at {
            let group = Mac::of_group(group_of(job));
            world.bridges[usize::from(id.0)].join(group, port);
        }
    }

    /// Bytes that left on the uplink of a leaf, up and down: the mean of all leaves.
    pub(super) fn uplink_bytes(&self, world: &World<Feed>) -> Option<(f64, f64)> {
        let leaves = self.uplinks.len() as f64;
        let bytes = |node, port: PortId| {
            let link = &world.ports(node)[usize::from(port.0)].link;
            link.stats.wire_bytes as f64 / leaves
        };
        let each = self
            .uplinks
            .iter()
            .map(|&(leaf, lower, upper)| (bytes(leaf, lower), bytes(ROOT.into(), upper)));
        each.reduce(|sum, leaf| (sum.0 + leaf.0, sum.1 + leaf.1))
    }
}
