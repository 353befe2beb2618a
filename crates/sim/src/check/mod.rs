//! `tally-sim check`: random worlds with faults of all kinds, and checkers of what must hold.
//!
//! A seed stands for the [`options`] of a run: jobs, switch, network, and incidents. [`scenario`]
//! runs it, in three phases: faults; no faults, when everything must end as the rules of membership
//! say ([`ending`]); and each job once more from the start. [`data`] and watchers of the whole
//! check all the while, and the first violation ends the run.
//!
//! A seed that fails is run again with a trace, and its last events are printed.

pub mod card;
pub mod claims;
pub mod command;
pub mod custody;
pub mod data;
pub mod ending;
pub mod fabric;
pub mod findings;
pub mod forge;
pub mod options;
pub mod ring;
pub mod scenario;
pub mod session;
mod setup;
pub mod switchml;
pub mod tree;

use crate::switch::Switch;
use crate::trace::Trace;
use crate::world::{App, World};
use data::Contributor;
use findings::{Checker, Finding, Findings};
use options::Options;
use options::tree::TreeOptions;
use ring::Rings;
use scenario::Scenario;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tree::TreeScenario;

/// What became of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub seed: u64,
    /// What was found, if anything.
    pub finding: Option<Finding>,
    /// The last events, if asked for.
    pub trace: Option<String>,
    /// What happened, in numbers.
    pub totals: Totals,
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// Events.
    pub events: u64,
    /// Fragments of workers that were to be summed.
    pub fragments: u64,
    /// Contributions that were summed in the switch, since it last started.
    pub summed: u64,
    /// Those of them that were summed with others of their turn.
    pub grouped: u64,
    /// Results of SwitchML, since the switch last started.
    pub switchml: u64,
    /// Worlds with rings.
    pub rings: u64,
    /// All-reduces of rings that are done, over all ranks.
    pub ring_all_reduces: u64,
    /// Epochs of rings.
    pub ring_epochs: u64,
    /// Sums of packets of rings, since the switch last started.
    pub ring_sums: u64,
    /// Packets of rings that were answered with a kept sum, since the switch last started.
    pub ring_sums_again: u64,
    /// Rings over trees of switches.
    pub ring_trees: u64,
    /// Partial sums that leaves sent again.
    pub ring_partials_again: u64,
    /// Collectives of sessions that are done, over all ranks.
    pub collectives: u64,
    /// Worlds with a card.
    pub cards: u64,
    /// Jobs offloaded to it, and jobs resumed in software while it worked.
    pub moves: u64,
    /// Failures of it while it had jobs.
    pub failovers: u64,
    /// Its results, since the switch last started.
    pub card_results: u64,
    /// Frames of its own devising.
    pub card_hostile: u64,
    /// Whole frames that forwarding decided on.
    pub whole: u64,
    /// Those of them that it forwarded or answered.
    pub forwarded: u64,
    /// Worlds with two switches.
    pub fabrics: u64,
    /// Frames over their trunks.
    pub trunk: u64,
    /// Worlds with trees of switches.
    pub trees: u64,
    /// Of them, worlds whose trunks are double.
    pub loops: u64,
    /// Incarnations of jobs.
    pub incarnations: u64,
    /// Things that went wrong on purpose.
    pub incidents: u64,
}

impl Totals {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Self) {
        self.simulated_ms += other.simulated_ms;
        self.events += other.events;
        self.fragments += other.fragments;
        self.summed += other.summed;
        self.grouped += other.grouped;
        self.switchml += other.switchml;
        self.rings += other.rings;
        self.ring_all_reduces += other.ring_all_reduces;
        self.ring_epochs += other.ring_epochs;
        self.ring_sums += other.ring_sums;
        self.ring_sums_again += other.ring_sums_again;
        self.ring_trees += other.ring_trees;
        self.ring_partials_again += other.ring_partials_again;
        self.collectives += other.collectives;
        self.cards += other.cards;
        self.moves += other.moves;
        self.failovers += other.failovers;
        self.card_results += other.card_results;
        self.card_hostile += other.card_hostile;
        self.whole += other.whole;
        self.forwarded += other.forwarded;
        self.fabrics += other.fabrics;
        self.trunk += other.trunk;
        self.trees += other.trees;
        self.loops += other.loops;
        self.incarnations += other.incarnations;
        self.incidents += other.incidents;
    }
}

/// What a seed stands for, as text.
#[must_use]
pub fn describe(seed: u64) -> String {
    match TreeOptions::draw(seed) {
        Some(options) => options.to_string(),
        None => Options::draw(seed).to_string(),
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, trace_records: usize) -> Outcome {
    match TreeOptions::draw(seed) {
        Some(options) => run_tree(options, trace_records),
        None => run_options(Options::draw(seed), trace_records),
    }
}

/// Lets a world's time pass until its scenario stops it; at `end`, it is late.
fn play(
    world: &mut World<Contributor>,
    scenario: &mut impl App<Contributor>,
    findings: &Findings,
    limit: Duration,
    trace_records: usize,
) {
    if trace_records > 0 {
        world.trace = Some(Trace::new(trace_records));
    }
    let end = world.now.after(limit);
    IN_RUN.set(true);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        if !world.run(scenario, end) {
            let text = || format!("the run has not ended at {} ns", world.now.0);
            findings.report(Checker::Convergence, text);
        }
    }));
    IN_RUN.set(false);
    if let Err(panic) = ran {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        findings.report(Checker::Panic, || text.unwrap_or("a panic").to_owned());
    }
}

/// Runs a world of trees.
#[must_use]
pub fn run_tree(options: TreeOptions, trace_records: usize) -> Outcome {
    let (seed, incidents) = (options.base.seed, options.incidents.len());
    let loops = u64::from(options.has_loops);
    let findings = Findings::default();
    let (mut world, mut scenario) = TreeScenario::new(options, findings.clone());
    let limit = scenario.deadline();
    play(&mut world, &mut scenario, &findings, limit, trace_records);
    let counters = || world.switches.iter().map(Switch::counters);
    let of_rings = || world.switches.iter().map(Switch::ring_counters);
    let rings = scenario.rings.as_ref();
    Outcome {
        seed,
        finding: findings.first(),
        trace: world.trace.as_ref().map(ToString::to_string),
        totals: Totals {
            rings: u64::from(rings.is_some()),
            ring_trees: rings.map_or(0, Rings::trees),
            ring_all_reduces: rings.map_or(0, Rings::all_reduces),
            ring_epochs: rings.map_or(0, Rings::epochs),
            ring_sums: of_rings().map(|it| it.sums).sum(),
            ring_sums_again: of_rings().map(|it| it.sums_again).sum(),
            ring_partials_again: of_rings().map(|it| it.partials_again).sum(),
            simulated_ms: world.now.0 / 1_000_000,
            events: world.happened,
            fragments: scenario.expected_fragments,
            summed: counters().map(|c| c.contributions).sum(),
            grouped: counters().map(|c| c.grouped).sum(),
            trees: 1,
            loops,
            incarnations: scenario.incarnations.len() as u64,
            incidents: incidents as u64,
            ..Totals::default()
        },
    }
}

fn run_options(options: Options, trace_records: usize) -> Outcome {
    let seed = options.seed;
    let findings = Findings::default();
    let (mut world, mut scenario) = Scenario::new(options, findings.clone());
    let limit = scenario.deadline();
    play(&mut world, &mut scenario, &findings, limit, trace_records);
    let switches = || world.switches.iter();
    let counters = || switches().map(Switch::counters);
    let card = world.switches[0].card.as_ref();
    let control = card.map(|card| card.totals).unwrap_or_default();
    let (rings, of_rings) = (scenario.rings.as_ref(), world.switches[0].ring_counters());
    Outcome {
        seed,
        finding: findings.first(),
        trace: world.trace.as_ref().map(ToString::to_string),
        totals: Totals {
            simulated_ms: world.now.0 / 1_000_000,
            events: world.happened,
            fragments: scenario.expected_fragments,
            summed: counters().map(|c| c.contributions).sum(),
            grouped: counters().map(|c| c.grouped).sum(),
            switchml: switches().map(|s| s.switchml_counters().results).sum(),
            rings: u64::from(rings.is_some()),
            ring_all_reduces: rings.map_or(0, Rings::all_reduces),
            ring_epochs: rings.map_or(0, Rings::epochs),
            ring_sums: of_rings.sums,
            ring_sums_again: of_rings.sums_again,
            ring_trees: 0,
            ring_partials_again: 0,
            collectives: scenario.sessions.as_ref().map_or(0, |it| it.done),
            cards: u64::from(card.is_some()),
            moves: control.offloaded + control.resumed,
            failovers: control.failovers,
            card_results: world.switches[0].card_traffic().results,
            card_hostile: card.map_or(0, |card| card.card.borrow().hostile),
            whole: scenario.whole,
            forwarded: scenario.forwarded,
            fabrics: scenario.fabric.is_some().into(),
            trunk: scenario.fabric.as_ref().map_or(0, |of| of.frames(&world)),
            trees: 0,
            loops: 0,
            incarnations: scenario.incarnations.len() as u64,
            incidents: scenario.options.incidents.len() as u64,
        },
    }
}

thread_local! {
    /// Panics are caught, and reported with their seed.
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics that are caught from being printed as they happen.
pub fn quiet_panics() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !IN_RUN.get() {
            loud(info);
        }
    }));
}

/// Runs seeds on several threads until `take` says that it has seen enough. Outcomes come in any
/// order.
pub fn run_many(
    seeds: std::ops::Range<u64>,
    threads: usize,
    take: impl FnMut(Outcome) -> bool + Send,
) {
    let next = AtomicU64::new(seeds.start);
    let enough = AtomicBool::new(false);
    let take = Mutex::new(take);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = run(seed, 0);
                    // What panics in a run is caught there; nothing panics with the lock.
                    let Ok(mut take) = take.lock() else { return };
                    if !take(outcome) {
                        enough.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}
