//! Jobs whose windows fill slow links for tens of milliseconds, without loss.
//!
//! Hosts give their links the whole window at once, as through a socket with a large buffer. So a
//! contribution waits in its own host for most of its round trip.
#![allow(clippy::unwrap_used)]

use std::time::Duration;
use tally_endpoint::{Event, PsConfig, WorkerConfig};
use tally_engine::queue::QueueConfig;
use tally_engine::{JobConfig, PolicyName, PoolConfig, PoolJob, RegistryConfig};
use tally_kernels::Kernels;
use tally_sim::address::{Address, HostId, SessionId, SwitchId};
use tally_sim::fabric;
use tally_sim::jct::feed::Feed;
use tally_sim::link::{LinkConfig, OVERHEAD_BYTES};
use tally_sim::rng::Rng;
use tally_sim::switch::{Steering, SwitchConfig, forwarding_config};
use tally_sim::tree::Tree;
use tally_sim::world::{App, World, WorldConfig};
use tally_wire::header::HEADER_BYTES;
use tally_wire::{DEFAULT_PORT, JobId, Key, Time};

const JOB: JobId = JobId(1);
const UDP_PORT: u16 = 40_000;
const UNITS: u8 = 1;
const PAYLOAD_BYTES: u32 = 1408;
const FRAME_BYTES: u32 = PAYLOAD_BYTES + HEADER_BYTES as u32 + OVERHEAD_BYTES;
const DELAY: Duration = Duration::from_micros(20);
const LIMIT: Duration = Duration::from_secs(300);

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    /// Leaves below a root; 0: one switch.
    leaves: u16,
    /// Workers of each leaf, or of the switch.
    hosts: u16,
    /// Rates of links, each way.
    host_mbit: f64,
    uplink_mbit: f64,
    window: u16,
    /// Fragments of an all-reduce.
    fragments: u64,
    /// All-reduces, one after the other.
    repeat: u32,
    /// A random host does not run for this long, once in `stall_every`. Zero: all run.
    stall: Duration,
    stall_every: Duration,
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    workers: u64,
    /// Time, in times that the narrowest link needs.
    times: f64,
    /// Payloads on all links beyond those needed, as a share of those.
    payloads_again: f64,
    /// Contributions that workers retransmitted.
    contributions_again: u64,
    /// PROBEs of workers.
    probes: u64,
}

struct Run {
    scenario: Scenario,
    workers: usize,
    /// Workers that the job runs for.
    running: usize,
    /// All-reduces that a worker has not begun.
    left: Vec<u32>,
    /// Workers that have all results.
    done: usize,
    begins: Option<Time>,
    ends: Option<Time>,
    /// Which host stalls.
    rng: Rng,
    failure: Option<String>,
}

impl Run {
    /// The next all-reduce of a worker.
    fn submit(&mut self, world: &mut World<Feed>, rank: usize) {
        if self.left[rank] == 0 {
            self.done += 1;
            if self.done == self.workers {
                self.ends = Some(world.now);
                world.stop();
            }
            return;
        }
        self.left[rank] -= 1;
        let fragments = self.scenario.fragments;
        world.with_worker(SessionId(rank as u32), |now, worker, feed| {
            feed.submit(0, fragments);
            worker.submit(now, fragments, 128);
        });
    }
}

impl App<Feed> for Run {
    fn worker_event(&mut self, world: &mut World<Feed>, _: SessionId, event: Event) {
        match event {
            Event::Running { .. } => {
                self.running += 1;
                if self.running == self.workers {
                    self.begins = Some(world.now);
                    for rank in 0..self.workers {
                        self.submit(world, rank);
                    }
                    if !self.scenario.stall.is_zero() {
                        world.alarm(world.now.after(self.scenario.stall_every), 0);
                    }
                }
            }
            Event::Failed(error) => {
                self.failure = Some(error.to_string());
                world.stop();
            }
            _ => {}
        }
    }

    fn news(&mut self, world: &mut World<Feed>, session: SessionId) {
        let mut finished = Vec::new();
        world.with_worker(session, |_, _, feed| feed.take_finished(&mut finished));
        for _ in finished {
            self.submit(world, session.0 as usize);
        }
    }

    fn alarm(&mut self, world: &mut World<Feed>, _: u64) {
        let host = self.rng.below(self.workers as u64) as u16;
        world.put_to_sleep(HostId(host), world.now.after(self.scenario.stall));
        world.alarm(world.now.after(self.scenario.stall_every), 0);
    }
}

fn switch_config(id: SwitchId, job: JobConfig, window: u16) -> SwitchConfig {
    SwitchConfig {
        pool: PoolConfig {
            slots: 2 * u32::from(window).next_power_of_two(),
            ways: PolicyName::Esa.default_ways(),
            held: 0,
            window,
            shards: 1,
            shard: 0,
            jobs: vec![PoolJob::unlimited(JOB)],
            policy: PolicyName::Esa,
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
            fabric: job.tree.is_some().then(|| fabric::own(id)),
        },
        jobs: vec![job],
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

fn run(scenario: Scenario, seed: u64) -> Outcome {
    let Scenario { leaves, hosts, .. } = scenario;
    let mut rng = Rng::new(seed);
    let key = Key::new(b"the key of the job on slow links").unwrap();
    let mut spec = vec![(None, if leaves == 0 { hosts } else { 0 })];
    spec.extend((0..leaves).map(|_| (Some(0), hosts)));
    let tree = Tree::new(&spec);
    let switches: Vec<_> = (0..tree.nodes.len()).map(|n| SwitchId(n as u16)).collect();
    let config = |node: usize| {
        let job = fabric::job_config((JOB, key.clone()), &tree, &switches, node);
        switch_config(switches[node], job, scenario.window)
    };
    let of_world = WorldConfig {
        seed: rng.next(),
        units_max: UNITS,
        mtu: 0,
        nominal_payload_bytes: Some(PAYLOAD_BYTES),
    };
    let mut world = World::new(of_world, config(0));
    for node in 1..tree.nodes.len() {
        world.add_switch(config(node));
    }
    let uplink = LinkConfig::new(scenario.uplink_mbit / 1e3, DELAY);
    let link = LinkConfig::new(scenario.host_mbit / 1e3, DELAY);
    let above: Vec<_> = tree.nodes.iter().map(|node| node.parent).collect();
    let trunks = fabric::connect(&mut world, &above, (uplink, uplink));
    let total = tree.workers();
    let worker_hosts: Vec<_> = (0..total)
        .map(|rank| world.add_host(switches[tree.place(rank).0], link, link, Duration::ZERO))
        .collect();
    let ps_hosts: Vec<_> = (switches.iter())
        .map(|&at| world.add_host(at, link, link, Duration::ZERO))
        .collect();
    for (node, &switch) in switches.iter().enumerate().skip(1) {
        fabric::introduce(&mut world, switch, trunks[node], &[JOB]);
    }
    let address = |host| Address {
        host,
        udp_port: UDP_PORT,
    };
    for (rank, &host) in (0..).zip(&worker_hosts) {
        let mut config = WorkerConfig::new(JOB, key.clone(), rank, total, [0; 32], rng.next() | 1);
        config.units = UNITS;
        config.window = scenario.window;
        let at = switches[tree.place(rank).0];
        world.start_worker(at, address(host), config, Feed::new(JOB, rank, total));
    }
    for (&at, host) in switches.iter().zip(ps_hosts) {
        let config = PsConfig::new(JOB, key.clone(), rng.next() | 1);
        world.start_ps(at, address(host), config, Kernels::best());
    }
    let mut app = Run {
        scenario,
        workers: usize::from(total),
        running: 0,
        left: vec![scenario.repeat; usize::from(total)],
        begins: None,
        ends: None,
        done: 0,
        rng,
        failure: None,
    };
    let until = world.now.after(LIMIT);
    let ended = world.run(&mut app, until);
    assert_eq!(app.failure, None);
    assert!(ended, "did not end in {LIMIT:?}");
    let (mut contributions_again, mut probes) = (0, 0);
    for rank in 0..u32::from(total) {
        let (worker, feed) = world.worker(SessionId(rank)).unwrap();
        assert_eq!(feed.wrong, 0);
        let again = worker.stats().retransmissions;
        contributions_again += again.contributions;
        probes += again.probes_timeout + again.probes_early;
    }
    let ports = world.switches.iter().flat_map(|switch| &switch.ports);
    let links = ports.map(|port| &port.link);
    let links = links.chain(world.hosts.iter().map(|host| &host.uplink));
    let payloads: u64 = links.map(|link| link.stats.element_frames).sum();
    let fragments = scenario.fragments * u64::from(scenario.repeat);
    let needed = 2 * fragments * u64::from(total + leaves);
    let narrowest = scenario.host_mbit.min(scenario.uplink_mbit);
    let bound = fragments as f64 * f64::from(8 * FRAME_BYTES) / (narrowest * 1e6);
    let took = app.ends.unwrap().since(app.begins.unwrap());
    Outcome {
        workers: total.into(),
        times: took.as_secs_f64() / bound,
        payloads_again: payloads as f64 / needed as f64 - 1.0,
        contributions_again,
        probes,
    }
}

const MS: Duration = Duration::from_millis(1);
/// 160 fragments are 19 ms of a host's link, and 38 ms of an uplink of half its rate.
const ONE_SWITCH: Scenario = Scenario {
    leaves: 0,
    hosts: 8,
    host_mbit: 100.0,
    uplink_mbit: 100.0,
    window: 256,
    fragments: 1000,
    repeat: 3,
    stall: Duration::ZERO,
    stall_every: Duration::ZERO,
};
const TREE: Scenario = Scenario {
    leaves: 4,
    hosts: 4,
    ..ONE_SWITCH
};

#[test]
fn without_loss_nothing_is_sent_again_however_long_queues_are() {
    let slow_uplinks = Scenario {
        uplink_mbit: 50.0,
        ..TREE
    };
    for scenario in [ONE_SWITCH, TREE, slow_uplinks] {
        for window in [32, 64, 256] {
            let outcome = run(Scenario { window, ..scenario }, 1);
            assert_eq!(outcome.payloads_again, 0.0, "{outcome:?}");
            assert_eq!(outcome.probes, 0, "{outcome:?}");
            assert!(outcome.times < 1.1, "{outcome:?}");
        }
    }
}

/// The peers of a host that has stalled send PROBEs, and the switch NACKs: for what the host has
/// sent meanwhile, and which waits for its link. To send that again would stall the host once more.
#[test]
fn a_host_that_stalls_takes_no_more_time_than_its_stalls() {
    let stalls = [
        (ONE_SWITCH, 32, 4, 11),
        (ONE_SWITCH, 64, 10, 30),
        (ONE_SWITCH, 256, 30, 100),
        (TREE, 64, 10, 30),
        (TREE, 256, 30, 100),
    ];
    for (scenario, window, stall, every) in stalls {
        let scenario = Scenario {
            window,
            stall: stall * MS,
            stall_every: every * MS,
            ..scenario
        };
        let outcome = run(scenario, 1);
        let share = f64::from(stall) / f64::from(every);
        assert!(
            outcome.times < 1.0 / (1.0 - share),
            "{scenario:?} {outcome:?}"
        );
        assert!(outcome.payloads_again < 0.05, "{scenario:?} {outcome:?}");
        let sent = u64::from(scenario.repeat) * scenario.fragments * outcome.workers;
        assert!(outcome.contributions_again < sent / 100, "{outcome:?}");
    }
}
