//! Checkers that look at the whole from outside: at frames on their way, at how much there is of
//! everything, and at who gets on.

use super::Scenario;
use crate::address::Place;
use crate::check::data::{Contributor, Facts};
use crate::check::ending::Incarnation;
use crate::check::findings::Checker;
use crate::check::ring::Rings;
use crate::check::session::Sessions;
use crate::check::setup::job_id;
use crate::check::switchml;
use crate::frame::{Frame, Origin};
use crate::world::World;
use std::time::Duration;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Header, Kind};

/// A job whose members all live has a result at least this often when nothing goes wrong: time for
/// another parameter server to take the place of one that died, and for a doubled timeout.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events for each fragment of each worker, on average, at most.
const EVENTS_PER_FRAGMENT: u64 = 400;

impl Scenario {
    /// The incarnation that a frame of element type is of.
    fn facts_of(&self, header: &Header) -> Option<&Incarnation> {
        let of = |i: &&Incarnation| {
            i.epoch == Some(header.epoch) && i.facts.job as u16 * 3 + 1 == header.job.0
        };
        self.incarnations.iter().rev().find(of)
    }
}

/// Looks at a frame that comes to the switch or to a host.
pub fn look_at_frame(scenario: &Scenario, place: Place, frame: &Frame) {
    let Some((header, datagram)) = frame.tally() else {
        return;
    };
    if !header.kind.has_elements() {
        return;
    }
    // Forged frames may say what they like.
    match (place, frame.origin()) {
        (Place::Switch(..), Origin::Host(_)) | (Place::Host(_), Origin::Switch(_)) => {}
        _ => return,
    }
    let Some(incarnation) = scenario.facts_of(&header) else {
        return;
    };
    let facts = &incarnation.facts;
    let Some(seq) = facts.seq_of(header.fragment.0) else {
        return;
    };
    if facts.overflow == Some(seq) || header.units != facts.options.units {
        return;
    }
    let payload = &datagram[HEADER_BYTES..][..header.payload_bytes()];
    match (place, header.kind) {
        (Place::Switch(..), Kind::Data) => look_at_data(scenario, facts, &header, seq, payload),
        // One that comes to the switch may be forged; what the switch makes of it is looked at.
        (Place::Host(_), Kind::Result) => {
            let right = facts.is_sum(seq, payload);
            scenario.findings.require(right, Checker::ExactSum, || {
                format!("a RESULT at {place} is not the sum: {header:?}")
            });
        }
        (Place::Host(_), Kind::Partial) => {
            let right = facts.is_partial(seq, header.bitmap, payload);
            scenario.findings.require(right, Checker::ExactSum, || {
                format!("a PARTIAL is not the sum of its ranks: {header:?}")
            });
        }
        _ => {}
    }
}

fn look_at_data(scenario: &Scenario, facts: &Facts, header: &Header, seq: u64, payload: &[u8]) {
    let mut expected = vec![0; payload.len()];
    facts.write(header.rank.0, seq, &mut expected);
    let right = expected == payload && header.element == facts.options.element(seq);
    scenario.findings.require(right, Checker::Payload, || {
        format!("what was sent is not the contribution: {header:?}")
    });
}

/// Nothing grows.
pub fn look(scenario: &Scenario, world: &World<Contributor>) {
    let windows = |i: &Incarnation| i.facts.window * i.members.len() as u64;
    let windows = scenario
        .current
        .iter()
        .map(|&n| windows(&scenario.incarnations[n]));
    // Each unfinished fragment has a few frames at each worker and at the PS, and copies of them.
    // An alarm that is brought forward leaves the later one behind, which rings to no effect.
    let bound = 20_000 + 60 * windows.sum::<u64>();
    let pending = world.pending() as u64;
    scenario
        .findings
        .require(pending <= bound, Checker::Memory, || {
            format!("{pending} events are to come, and {bound} would be many")
        });
}

/// A job's count of its slots, which its limits go by, is how many it has.
pub fn look_at_slots(scenario: &Scenario, world: &World<Contributor>) {
    let ids = (0..scenario.options.jobs.len()).map(job_id);
    let shards = world.switches.iter().enumerate();
    let shards = shards.flat_map(|(s, switch)| switch.shards().enumerate().map(move |of| (s, of)));
    for (s, (n, shard)) in shards {
        for id in ids.clone() {
            let (has, counted) = (
                shard.holders().filter(|job| *job == id).count(),
                shard.slots_of(id),
            );
            scenario
                .findings
                .require(has == counted as usize, Checker::Leak, || {
                    format!(
                        "switch {s}, shard {n} counts {counted} slots of job {}, which has {has}",
                        id.0
                    )
                });
        }
    }
}

/// Incarnations that should be over are.
pub fn look_for_late(scenario: &Scenario, world: &World<Contributor>) {
    for &n in &scenario.current {
        let incarnation = &scenario.incarnations[n];
        if incarnation.is_over() {
            continue;
        }
        let (member, join) = (
            scenario.options.member_timeout,
            scenario.options.join_timeout,
        );
        let due = incarnation.due(scenario.quiet_since, member, join);
        scenario
            .findings
            .require(world.now <= due, Checker::Convergence, || {
                let open = incarnation.members.iter().enumerate();
                let open = open
                    .filter(|(_, m)| m.ending.is_none())
                    .map(|(rank, _)| rank);
                format!(
                    "incarnation {n} of job {} is not over: ranks {:?} have not ended",
                    incarnation.facts.job,
                    open.collect::<Vec<_>>()
                )
            });
    }
}

/// A job whose members all live and have been told to run gets on.
pub fn look_for_starvation(scenario: &mut Scenario, world: &World<Contributor>) {
    for n in scenario.current.clone() {
        let results = scenario.results(world, n);
        let quiet = scenario.quiet_since;
        let incarnation = &mut scenario.incarnations[n];
        let waits = incarnation.is_hurt()
            || incarnation
                .members
                .iter()
                .any(|m| !m.has_run || m.ending.is_some());
        let fragments = incarnation.facts.options.fragments();
        let done = results == fragments * incarnation.members.len() as u64;
        if waits || done || results != incarnation.progress.0 {
            incarnation.progress = (results, world.now);
        }
        let since = incarnation.progress.1.max(quiet);
        let job = incarnation.facts.job;
        scenario.findings.require(
            world.now.since(since) <= PATIENCE,
            Checker::Starvation,
            || {
                format!(
                    "job {job} (incarnation {n}) has had no result since {} ns",
                    since.0
                )
            },
        );
    }
}

/// How much happened, for what was done.
pub fn look_at_totals(scenario: &Scenario, world: &World<Contributor>) {
    let fragments = scenario.expected_fragments;
    // Members that live say so all the time.
    let seconds = world.now.0 / 1_000_000_000 + 1;
    let bound = fragments * EVENTS_PER_FRAGMENT
        + 1_000_000
        + seconds * (scenario.hosts.len() as u64 + 5) * 200
        // Each may be flooded.
        + scenario.options.forged_per_s * (10 + 4 * world.hosts.len() as u64) * seconds
        + scenario.switchml.as_ref().map_or(0, switchml::Session::events_max)
        + scenario.sessions.as_ref().map_or(0, Sessions::events_max)
        + (scenario.rings.as_ref()).map_or(0, |rings: &Rings| rings.events_max(seconds));
    scenario
        .findings
        .require(world.happened <= bound, Checker::Memory, || {
            format!(
                "{} events happened for {fragments} fragments",
                world.happened
            )
        });
}
