//! The switches, trunks and hosts of a world of trees, and what its processes are told.

use super::NodePs;
use crate::address::{Address, HostId, SwitchId};
use crate::check::data::Contributor;
use crate::check::options::tree::TreeOptions;
use crate::check::ring::Rings;
use crate::check::setup::{ADDRESSES, job_id, key, link_config, switch_config};
use crate::fabric::{self, Trunk};
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::switch::SwitchConfig;
use crate::world::{World, WorldConfig};
use std::collections::BTreeMap;
use std::time::Duration;
use tally_endpoint::{PsConfig, WorkerConfig};
use tally_engine::{JobConfig, PoolJob};
use tally_wire::netreduce::DEFAULT_DSCP;

/// Where processes may run.
pub(super) struct Places {
    /// By job and global rank.
    pub workers: Vec<Vec<HostId>>,
    /// By job and node.
    pub ps: Vec<Vec<NodePs>>,
    /// The hostile host, at the first switch.
    pub forger: HostId,
    /// Another one, and the switch that it is at.
    pub spy: Option<(HostId, usize)>,
}

/// The world with its switches, and by switch the trunks above it.
pub(super) fn switches(
    options: &TreeOptions,
    config: WorldConfig,
    rng: &mut Rng,
) -> (World<Contributor>, Vec<Vec<Trunk>>) {
    let config_of = |switch, rng: &mut Rng| node_config(options, switch, rng);
    let mut world = World::new(config, config_of(0, rng));
    for switch in 1..options.above.len() {
        world.add_switch(config_of(switch, rng));
    }
    for switch in &world.switches {
        switch.memory.record();
    }
    let link = link_config(&options.base, options.base.faults);
    let [up, down] = options.trunk_faults.map(|faults| LinkConfig {
        delay: options.trunk_delay,
        faults,
        ..link
    });
    let mut trunks = vec![Vec::new(); options.above.len()];
    for _ in 0..1 + usize::from(options.has_loops) {
        let connected = fabric::connect(&mut world, &options.above, (up, down));
        for (of, trunk) in trunks.iter_mut().zip(connected) {
            of.extend(trunk);
        }
    }
    if options.has_loops {
        fabric::join(&mut world, &trunks);
    }
    (world, trunks)
}

/// Connects all hosts.
pub(super) fn hosts(
    options: &TreeOptions,
    world: &mut World<Contributor>,
    rng: &mut Rng,
) -> Places {
    let link = link_config(&options.base, options.base.faults);
    let ahead = options.base.ahead;
    let mut workers = Vec::new();
    for job in &options.jobs {
        let n = usize::from(job.tree.workers());
        // A poll iteration goes by ports: ranks are not to be in the same order.
        let mut order: Vec<_> = (0..n).collect();
        for n in (1..n).rev() {
            order.swap(n, rng.below(n as u64 + 1) as usize);
        }
        let mut hosts = vec![HostId(0); n];
        for rank in order {
            let (node, _) = job.tree.place(rank as u16);
            let switch = SwitchId(job.switches[node] as u16);
            hosts[rank] = world.add_host(switch, link, link, ahead);
        }
        workers.push(hosts);
    }
    // By switch.
    let mut shared = BTreeMap::new();
    let mut udp_port = 50_000;
    let mut ps = Vec::new();
    for (n, job) in options.jobs.iter().enumerate() {
        let mut of_job = Vec::new();
        for (node, &at) in job.ps_at.iter().enumerate() {
            let mut add = || world.add_host(SwitchId(at as u16), link, link, ahead);
            let host = if options.shared_ps_host {
                *shared.entry(at).or_insert_with(add)
            } else {
                add()
            };
            let parts = usize::from(parts(options, n, node));
            of_job.push(NodePs {
                sessions: vec![None; parts],
                address: Address { host, udp_port },
            });
            udp_port += parts as u16;
        }
        ps.push(of_job);
    }
    // Behind all members: a poll iteration goes by ports, and no copy may overtake its original.
    let forger = world.add_host(SwitchId(0), link, link, Duration::ZERO);
    // Drawn apart, so that the rest of a seed's world is as without it.
    let rng = &mut Rng::new(options.base.seed ^ 0x59_5059);
    let spy = (options.above.len() > 1).then(|| {
        let at = rng.between(1, options.above.len() as u64 - 1) as usize;
        let host = world.add_host(SwitchId(at as u16), link, link, Duration::ZERO);
        (host, at)
    });
    Places {
        workers,
        ps,
        forger,
        spy,
    }
}

/// Connects the hosts of rings to the switches below the first, which is the root.
pub(super) fn rings(options: &TreeOptions, world: &mut World<Contributor>) -> Option<Rings> {
    let (rings, at) = options.rings.as_ref()?;
    let link = link_config(&options.base, options.base.faults);
    let at: Vec<_> = at.iter().map(|&switch| SwitchId(switch as u16)).collect();
    let rng = Rng::new(options.base.seed ^ 0x4e7_7ee5);
    Some(Rings::new(world, rings, link, (&at, SwitchId(0)), rng))
}

/// The configuration of a switch with its jobs.
fn node_config(options: &TreeOptions, switch: usize, rng: &mut Rng) -> SwitchConfig {
    let id = SwitchId(switch as u16);
    let mut config = switch_config(&options.base, id, options.base.units_max(), rng);
    let jobs = options.jobs.iter().enumerate();
    let jobs = jobs.filter_map(|(job, of)| Some((job, of.node_of(switch)?)));
    config.jobs = jobs
        .map(|(job, node)| job_config(options, job, node))
        .collect();
    config.pool.jobs = config
        .jobs
        .iter()
        .map(|job| PoolJob::unlimited(job.id))
        .collect();
    config.pool.places = config.jobs.len() as u16;
    config.forwarding.addresses = ADDRESSES;
    config.registry.fabric = Some(fabric::own(id));
    config.netreduce = options.rings.as_ref().map(|_| DEFAULT_DSCP);
    config
}

/// A job as the switch of this node knows it.
fn job_config(options: &TreeOptions, job: usize, node: usize) -> JobConfig {
    let of = &options.jobs[job];
    let switches = of.switches.iter().map(|&switch| SwitchId(switch as u16));
    let switches: Vec<_> = switches.collect();
    JobConfig {
        servers: parts(options, job, node),
        ..fabric::job_config((job_id(job), key(job)), &of.tree, &switches, node)
    }
}

/// Parameter servers of a node, by the seed alone: its switch and its hosts ask for them.
fn parts(options: &TreeOptions, job: usize, node: usize) -> u8 {
    let place = (job as u64) << 32 | node as u64;
    let place = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let rng = &mut Rng::new(options.base.seed ^ 0x50_5350 ^ place);
    rng.pick(&[1, 1, 2, 4])
}

/// Tells a switch where the parents of its nodes are, unless hellos do.
pub(super) fn introduce(
    options: &TreeOptions,
    world: &mut World<Contributor>,
    trunks: &[Vec<Trunk>],
    switch: usize,
) {
    if options.has_loops {
        return;
    }
    let jobs = options.jobs.iter().enumerate();
    let jobs = jobs.filter(|(_, of)| {
        let node = of.node_of(switch);
        node.is_some_and(|node| of.tree.nodes[node].parent.is_some())
    });
    let jobs: Vec<_> = jobs.map(|(job, _)| job_id(job)).collect();
    let trunk = trunks[switch].first().copied();
    fabric::introduce(world, SwitchId(switch as u16), trunk, &jobs);
}

/// What a worker's process is started with.
pub(super) fn worker_config(
    options: &TreeOptions,
    job: usize,
    rank: u8,
    instance: u64,
) -> WorkerConfig {
    let (base, of) = (&options.base, &options.jobs[job].options);
    let mut config = WorkerConfig::new(job_id(job), key(job), rank, of.workers, [7; 32], instance);
    config.units = of.units;
    config.window = of.window;
    config.join_timeout = base.join_timeout;
    config.stall_timeout = base.stall_timeout;
    config.first_fragment = of.first;
    config
}

/// What the process of a parameter server is started with.
pub(super) fn ps_config(job: usize, instance: u64) -> PsConfig {
    PsConfig::new(job_id(job), key(job), instance)
}
