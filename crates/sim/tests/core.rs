//! The core alone: jobs on a good network, and how fast they are simulated.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Contribution, Delivery, Event, Gradients, PsConfig, WorkerConfig};
use tally_engine::queue::QueueConfig;
use tally_engine::{JobConfig, PolicyName, PoolConfig, PoolJob, RegistryConfig};
use tally_kernels::Kernels;
use tally_sim::address::{Address, HostId, SessionId, SwitchId};
use tally_sim::host::Data;
use tally_sim::link::LinkConfig;
use tally_sim::oracle::{Contributions, Sums};
use tally_sim::switch::{PollConfig, Steering, SwitchConfig};
use tally_sim::world::{App, World, WorldConfig};
use tally_wire::{DEFAULT_PORT, Element, JobId, Key, Time};

struct Numbers {
    rank: u8,
    contributions: Contributions,
    sums: Rc<RefCell<Sums>>,
    results: u64,
}

impl Gradients for Numbers {
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        self.contributions
            .write(self.rank, seq, Element::I32, payload);
        Contribution::Ready(Element::I32)
    }

    fn result(&mut self, seq: u64, element: Element, payload: &[u8], _: Delivery) {
        assert_eq!(payload, self.sums.borrow_mut().sum(seq, element));
        self.results += 1;
    }

    fn stored_result(&mut self, _: u64, _: &mut [u8]) -> Option<Element> {
        None
    }
}

impl Data for Numbers {}

#[derive(Default)]
struct Count {
    finished: usize,
}

impl App<Numbers> for Count {
    fn worker_event(&mut self, _: &mut World<Numbers>, _: SessionId, event: Event) {
        match event {
            Event::Finished => self.finished += 1,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }

    fn alarm(&mut self, _: &mut World<Numbers>, _: u64) {}
}

const LINK_DELAY: Duration = Duration::from_micros(2);

fn key(job: u16) -> Key {
    Key::new(&[job as u8; 16]).unwrap()
}

/// Jobs of a world, numbered from `first` on.
#[derive(Clone, Copy)]
struct Jobs {
    first: u16,
    count: u16,
    workers: u8,
    window: u16,
    slots: u32,
    /// By which each rank's link is longer than the one's before.
    spread: Duration,
}

impl Jobs {
    fn switch(self, turn: Option<PollConfig>) -> SwitchConfig {
        let ids = self.first..self.first + self.count;
        SwitchConfig {
            pool: PoolConfig {
                slots: self.slots,
                ways: 1,
                held: 64,
                window: self.window,
                shards: 1,
                shard: 0,
                jobs: ids
                    .clone()
                    .map(|id| PoolJob::unlimited(JobId(id)))
                    .collect(),
                policy: PolicyName::Esa,
                places: 0,
            },
            registry: RegistryConfig {
                mac: SwitchId(0).mac(),
                base_port: DEFAULT_PORT,
                shards: 1,
                window: self.window,
                units: 1,
                member_timeout: Duration::from_secs(5),
                secret: [7; 32],
                fabric: None,
            },
            jobs: ids
                .map(|job| JobConfig {
                    id: JobId(job),
                    key: key(job),
                    workers: self.workers,
                    previous_key: None,
                    servers: 1,
                    tree: None,
                })
                .collect(),
            queue: QueueConfig::default(),
            control_delay: Duration::from_micros(20),
            poll: turn,
            steering: Steering::Rules,
            kernels: Kernels::best(),
            forwarding: tally_sim::switch::forwarding_config(1),
            switchml: None,
            netreduce: None,
        }
    }

    /// Starts them at a switch, with parameter servers on hosts of another or the same one; returns
    /// the workers' sessions.
    fn start(
        self,
        world: &mut World<Numbers>,
        switch: SwitchId,
        ps_switch: SwitchId,
    ) -> Vec<SessionId> {
        let link = LinkConfig::new(100.0, LINK_DELAY);
        let mut sessions = Vec::new();
        for job in self.first..self.first + self.count {
            let contributions = Contributions {
                salt: u64::from(job),
                workers: self.workers,
                infinite_ppm: 0,
            };
            let sums = Rc::new(RefCell::new(Sums::new(contributions, 64, 1024)));
            for rank in 0..self.workers {
                let delay = LINK_DELAY + self.spread * u32::from(rank);
                let link = LinkConfig::new(100.0, delay);
                let host = world.add_host(switch, link, link, LINK_DELAY);
                let instance = u64::from(rank) + 1;
                let (job, key) = (JobId(job), key(job));
                let mut config = WorkerConfig::new(job, key, rank, self.workers, [1; 32], instance);
                (config.units, config.window) = (1, self.window);
                let data = Numbers {
                    rank,
                    contributions,
                    sums: Rc::clone(&sums),
                    results: 0,
                };
                sessions.push(world.start_worker(switch, at(host), config, data));
            }
            let host = world.add_host(ps_switch, link, link, LINK_DELAY);
            let config = PsConfig::new(JobId(job), key(job), 99);
            world.start_ps(switch, at(host), config, Kernels::best());
        }
        sessions
    }
}

fn world_config() -> WorldConfig {
    WorldConfig {
        seed: 1,
        units_max: 1,
        mtu: 0,
        nominal_payload_bytes: Some(1024),
    }
}

fn at(host: HostId) -> Address {
    Address {
        host,
        udp_port: 40_000,
    }
}

/// Runs jobs of so many fragments to their ends.
fn finish(world: &mut World<Numbers>, sessions: Vec<SessionId>, fragments: u64) {
    for &id in &sessions {
        world.with_worker(id, |now, worker, _| {
            worker.submit(now, fragments, 9);
            worker.finish(now);
        });
    }
    let mut count = Count::default();
    world.run(&mut count, Time(20_000_000_000));
    assert_eq!(count.finished, sessions.len());
    for id in sessions {
        let data = world.worker(id).unwrap().1;
        assert_eq!(data.results, fragments);
    }
    for switch in &world.switches {
        for shard in switch.shards() {
            assert_eq!(shard.slots_in_use(), 0);
        }
        assert_eq!(switch.ledger().live(), 0);
        assert_eq!(switch.ledger().lost(), 0);
    }
}

fn run(
    turn: Option<PollConfig>,
    count: u16,
    workers: u8,
    window: u16,
    fragments: u64,
) -> World<Numbers> {
    let jobs = Jobs {
        first: 0,
        count,
        workers,
        window,
        slots: 4096,
        spread: Duration::ZERO,
    };
    let mut world = World::new(world_config(), jobs.switch(turn));
    let sessions = jobs.start(&mut world, SwitchId(0), SwitchId(0));
    finish(&mut world, sessions, fragments);
    world
}

#[test]
fn jobs_on_a_good_network_end_well() {
    let world = run(None, 3, 4, 64, 500);
    let counters = world.switches[0].counters();
    assert_eq!(counters.contributions, 3 * 4 * 500);
    assert_eq!(counters.grouped, 0, "without turns, frames are taken alone");
}

/// Contributions that come in one turn are summed together, and most fragments need no slot.
#[test]
fn turns_put_fragments_together() {
    let turn = PollConfig {
        lasting: Duration::from_micros(4),
        burst: 32,
    };
    let counters = run(Some(turn), 3, 4, 64, 500).switches[0].counters();
    assert_eq!(counters.contributions, 3 * 4 * 500);
    assert!(counters.grouped > 3 * 4 * 250, "{}", counters.grouped);
    assert!(counters.slots_taken < 3 * 250, "{}", counters.slots_taken);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let happened = |_| {
        let world = run(None, 2, 3, 16, 300);
        (world.happened, world.now, world.hosts[0].uplink.stats)
    };
    assert_eq!(happened(0), happened(1));
}

/// Two switches with a job each, whose parameter servers are on the other side of a trunk.
#[test]
fn a_trunk_joins_two_switches_that_sum_for_themselves() {
    let jobs = |first| Jobs {
        first,
        count: 1,
        workers: 3,
        window: 64,
        // Most fragments find their slot taken.
        slots: 1,
        spread: Duration::from_micros(20),
    };
    let (a, b) = (SwitchId(0), SwitchId(1));
    let mut world = World::new(world_config(), jobs(0).switch(None));
    assert_eq!(world.add_switch(jobs(1).switch(None)), b);
    let mut trunk = LinkConfig::new(100.0, Duration::from_micros(10));
    trunk.faults.loss_ppm = 20_000;
    let ports = world.add_trunk(a, b, trunk, trunk);
    let mut sessions = jobs(0).start(&mut world, a, b);
    sessions.extend(jobs(1).start(&mut world, b, a));
    finish(&mut world, sessions, 500);
    for (switch, port) in [(a, ports.0), (b, ports.1)] {
        let switch = &world.switches[usize::from(switch.0)];
        let stats = switch.ports[usize::from(port.0)].link.stats;
        assert!(stats.element_frames > 100 && stats.lost > 5, "{stats:?}");
        let counters = switch.counters();
        assert!(counters.results_from_ps > 100, "{counters:?}");
    }
}
