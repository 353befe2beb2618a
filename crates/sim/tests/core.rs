//! The core alone: jobs on a good network, and how fast they are simulated.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Contribution, Delivery, Event, Gradients, PsConfig, WorkerConfig};
use tally_engine::queue::QueueConfig;
use tally_engine::{JobConfig, PolicyName, PoolConfig, RegistryConfig};
use tally_kernels::Kernels;
use tally_sim::frame::{Address, HostId};
use tally_sim::host::{Data, SessionId};
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

fn world(
    jobs: u16,
    workers: u8,
    window: u16,
    seed: u64,
    turn: Option<PollConfig>,
) -> (World<Numbers>, Vec<SessionId>) {
    let key = |job: u16| Key::new(&[job as u8; 16]).unwrap();
    let switch = SwitchConfig {
        pool: PoolConfig {
            slots: 4096,
            ways: 1,
            held: 64,
            window,
            shards: 1,
            shard: 0,
            jobs: usize::from(jobs),
            limits: Vec::new(),
            policy: PolicyName::Esa,
        },
        registry: RegistryConfig {
            mac: tally_sim::switch::SWITCH_MAC,
            base_port: DEFAULT_PORT,
            shards: 1,
            window,
            units: 1,
            member_timeout: Duration::from_secs(5),
            secret: [7; 32],
        },
        jobs: (0..jobs)
            .map(|job| JobConfig {
                id: JobId(job),
                key: key(job),
                workers,
            })
            .collect(),
        queue: QueueConfig::default(),
        control_delay: Duration::from_micros(20),
        poll: turn,
        steering: Steering::Rules,
        kernels: Kernels::best(),
        forwarding: tally_sim::switch::forwarding_config(seed),
        switchml: None,
    };
    let config = WorldConfig {
        seed,
        units_max: 1,
        nominal_payload_bytes: Some(1024),
    };
    let mut world = World::new(config, switch);
    let link = LinkConfig::new(100.0, Duration::from_micros(2));
    let mut sessions = Vec::new();
    for job in 0..jobs {
        let contributions = Contributions {
            salt: u64::from(job),
            workers,
            infinite_ppm: 0,
        };
        let sums = Rc::new(RefCell::new(Sums::new(contributions, 64, 1024)));
        for rank in 0..workers {
            let host = world.add_host(link, link, Duration::from_micros(2));
            let instance = u64::from(rank) + 1;
            let mut config =
                WorkerConfig::new(JobId(job), key(job), rank, workers, [1; 32], instance);
            (config.units, config.window) = (1, window);
            let data = Numbers {
                rank,
                contributions,
                sums: Rc::clone(&sums),
                results: 0,
            };
            sessions.push(world.start_worker(at(host), config, data));
        }
        let host = world.add_host(link, link, Duration::from_micros(2));
        world.start_ps(
            at(host),
            PsConfig::new(JobId(job), key(job), 99),
            Kernels::best(),
        );
    }
    (world, sessions)
}

fn at(host: HostId) -> Address {
    Address {
        host,
        udp_port: 40_000,
    }
}

fn run(jobs: u16, workers: u8, window: u16, fragments: u64) -> World<Numbers> {
    run_with(None, jobs, workers, window, fragments)
}

fn run_with(
    turn: Option<PollConfig>,
    jobs: u16,
    workers: u8,
    window: u16,
    fragments: u64,
) -> World<Numbers> {
    let (mut world, sessions) = world(jobs, workers, window, 1, turn);
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
    for shard in world.switch.shards() {
        assert_eq!(shard.slots_in_use(), 0);
    }
    assert_eq!(world.switch.ledger().live(), 0);
    assert_eq!(world.switch.ledger().lost(), 0);
    world
}

#[test]
fn jobs_on_a_good_network_end_well() {
    let world = run(3, 4, 64, 500);
    let counters = world.switch.counters();
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
    let counters = run_with(Some(turn), 3, 4, 64, 500).switch.counters();
    assert_eq!(counters.contributions, 3 * 4 * 500);
    assert!(counters.grouped > 3 * 4 * 250, "{}", counters.grouped);
    assert!(counters.slots_taken < 3 * 250, "{}", counters.slots_taken);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let happened = |_| {
        let world = run(2, 3, 16, 300);
        (world.happened, world.now, world.hosts[0].uplink.stats)
    };
    assert_eq!(happened(0), happened(1));
}
