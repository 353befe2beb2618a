//! One job on a regular tree of switches, all of whose workers join at once.

use super::super::feed::Feed;
use super::super::scenario::{FRAGMENT_BYTES, GBIT_PER_S};
use super::super::setup::{DELAY, Pool, UNITS, switch_config};
use super::{Args, peak_memory_bytes};
use crate::address::{Address, SessionId, SwitchId};
use crate::fabric;
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::tree::Tree;
use crate::world::{App, World, WorldConfig};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tally_endpoint::{Event, PsConfig, WorkerConfig};
use tally_engine::PolicyName;
use tally_kernels::Kernels;
use tally_report::{Machine, Report, Target};
use tally_wire::{JobId, Key, Time};

const JOB: JobId = JobId(1);
const WINDOW: u16 = 64;
/// The UDP port of workers; that of a node's parameter server is so much more.
const UDP_PORT: u16 = 40_000;
/// Joining and all that may take, in simulated time.
const LIMIT: Duration = Duration::from_secs(60);
/// Workers of a tree at most, over all its levels.
const WORKERS_MAX: u64 = 4096;

#[derive(Serialize)]
struct Parameters {
    levels: u32,
    fan_in: u16,
    fragments: u64,
    slots: u32,
    seed: u64,
}

#[derive(Serialize)]
struct Results {
    workers: u16,
    switches: usize,
    joined_ms: f64,
    done_ms: f64,
    wall_s: f64,
    events: u64,
    peak_memory_bytes: u64,
}

/// The job, as the run sees it.
struct Run {
    start: Time,
    workers: usize,
    fragments: u64,
    running: usize,
    left: usize,
    joined: Option<Time>,
    done: Option<Time>,
    results: usize,
    failure: Option<String>,
}

impl App<Feed> for Run {
    fn worker_event(&mut self, world: &mut World<Feed>, session: SessionId, event: Event) {
        match event {
            Event::Running { .. } => {
                self.running += 1;
                if self.running == self.workers {
                    self.joined = Some(world.now);
                }
                let fragments = self.fragments;
                world.with_worker(session, |now, worker, feed| {
                    feed.submit(0, fragments);
                    worker.submit(now, fragments, 128);
                    worker.finish(now);
                });
            }
            Event::Finished => {
                self.left += 1;
                if self.left == self.workers {
                    world.stop();
                }
            }
            Event::Failed(error) => {
                let failure = format!("worker {}: {error}", session.0);
                self.failure.get_or_insert(failure);
                world.stop();
            }
            _ => {}
        }
    }

    fn news(&mut self, world: &mut World<Feed>, session: SessionId) {
        let mut finished = Vec::new();
        world.with_worker(session, |_, _, feed| feed.take_finished(&mut finished));
        self.results += finished.len();
        if self.results == self.workers {
            self.done = Some(world.now);
        }
    }

    fn alarm(&mut self, _: &mut World<Feed>, _: u64) {}
}

/// Simulates, and says what it took.
///
/// # Errors
/// When a sum is wrong or the job does not end.
pub fn run_args(args: &Args, json: bool) -> Result<ExitCode> {
    let workers = u64::from(args.fan_in).pow(args.levels);
    ensure!(
        (2..=64).contains(&args.fan_in) && workers <= WORKERS_MAX,
        "a fan-in of 2 to 64, and at most {WORKERS_MAX} workers: found {workers}"
    );
    ensure!(args.slots.is_power_of_two(), "slots: a power of two");
    let clock = Instant::now();
    let tree = Tree::regular(args.levels, args.fan_in);
    let (mut world, mut app) = start(args, &tree)?;
    let until = world.now.after(LIMIT);
    let ended = world.run(&mut app, until);
    if let Some(failure) = app.failure {
        bail!("{failure}");
    }
    ensure!(
        ended,
        "not ended in {LIMIT:?} of simulated time: {} of {} workers have run, {} have left",
        app.running,
        app.workers,
        app.left
    );
    let feeds = (0..app.workers).filter_map(|n| world.worker(SessionId(n as u32)));
    let wrong: u64 = feeds.map(|(_, feed)| feed.wrong).sum();
    ensure!(wrong == 0, "{wrong} sums are wrong");
    let lost: u64 = world.switches.iter().map(|s| s.ledger().lost()).sum();
    ensure!(lost == 0, "the engines lost {lost} frames");
    let ms = |at: Option<Time>| at.map_or(f64::NAN, |at| at.since(app.start).as_secs_f64() * 1e3);
    let results = Results {
        workers: tree.workers(),
        switches: tree.nodes.len(),
        joined_ms: ms(app.joined),
        done_ms: ms(app.done),
        wall_s: clock.elapsed().as_secs_f64(),
        events: world.happened,
        peak_memory_bytes: peak_memory_bytes()?,
    };
    report(args, &results, json)
}

fn report(args: &Args, results: &Results, json: bool) -> Result<ExitCode> {
    let gib = results.peak_memory_bytes as f64 / f64::from(1 << 30);
    let table = format!(
        "{} workers at {} switches of {} levels, {} fragments each, {} slots, esa, seed {}: every \
         sum right\n\
         all run {:.1} ms after they started at once, all results after {:.1} ms\n\
         {} events in {:.1} s; {gib:.2} GiB at most\n",
        results.workers,
        results.switches,
        args.levels,
        args.fragments,
        args.slots,
        args.seed,
        results.joined_ms,
        results.done_ms,
        results.events,
        results.wall_s,
    );
    let targets = vec![
        Target::at_most("joining", results.joined_ms, "ms", 1000.0, "simulated time"),
        Target::at_most("wall time", results.wall_s, "s", 600.0, "one thread"),
        Target::at_most("peak memory", gib, "GiB", 8.0, "VmHWM of the process"),
    ];
    let parameters = Parameters {
        levels: args.levels,
        fan_in: args.fan_in,
        fragments: args.fragments,
        slots: args.slots,
        seed: args.seed,
    };
    let report = Report::new(Machine::detect(), &parameters, results, targets, table)?;
    report.print(json)?;
    Ok(if report.is_missed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The world with all its processes.
fn start(args: &Args, tree: &Tree) -> Result<(World<Feed>, Run)> {
    let mut rng = Rng::new(args.seed);
    let key = Key::new(b"the key of the job on the tree 1")?;
    let switches: Vec<_> = (0..tree.nodes.len()).map(|n| SwitchId(n as u16)).collect();
    let config = |node: usize| {
        let job = fabric::job_config((JOB, key.clone()), tree, &switches, node);
        let pool = Pool {
            policy: PolicyName::Esa,
            slots: args.slots,
            ways: None,
            window: WINDOW,
        };
        switch_config(switches[node], vec![job], pool, true)
    };
    let config_of_world = WorldConfig {
        seed: rng.next(),
        units_max: UNITS,
        mtu: 0,
        nominal_payload_bytes: Some(FRAGMENT_BYTES as u32),
    };
    let mut world = World::new(config_of_world, config(0));
    for node in 1..tree.nodes.len() {
        world.add_switch(config(node));
    }
    let link = LinkConfig::new(GBIT_PER_S, DELAY);
    let above: Vec<_> = tree.nodes.iter().map(|node| node.parent).collect();
    let trunks = fabric::connect(&mut world, &above, (link, link));
    let hosts: Vec<_> = (0..tree.workers())
        .map(|rank| {
            let at = switches[tree.place(rank).0];
            world.add_host(at, link, link, Duration::from_micros(1))
        })
        .collect();
    let ps_hosts: Vec<_> = switches
        .iter()
        .map(|&at| world.add_host(at, link, link, Duration::ZERO))
        .collect();
    for (node, &switch) in switches.iter().enumerate().skip(1) {
        fabric::introduce(&mut world, switch, trunks[node], &[JOB]);
    }
    let total = tree.workers();
    for (rank, host) in (0..).zip(hosts) {
        let mut config = WorkerConfig::new(JOB, key.clone(), rank, total, [0; 32], rng.next() | 1);
        config.units = UNITS;
        config.window = WINDOW;
        let address = Address {
            host,
            udp_port: UDP_PORT,
        };
        let at = switches[tree.place(rank).0];
        world.start_worker(at, address, config, Feed::new(JOB, rank, total));
    }
    for (&at, host) in switches.iter().zip(ps_hosts) {
        let config = PsConfig::new(JOB, key.clone(), rng.next() | 1);
        let address = Address {
            host,
            udp_port: UDP_PORT,
        };
        world.start_ps(at, address, config, Kernels::best());
    }
    let run = Run {
        start: world.now,
        workers: usize::from(total),
        fragments: args.fragments,
        running: 0,
        left: 0,
        joined: None,
        done: None,
        results: 0,
        failure: None,
    };
    Ok((world, run))
}
