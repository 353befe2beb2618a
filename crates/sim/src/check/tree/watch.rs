//! Checkers that look at a world of trees from outside: at sums on their way, and at who gets on.

use super::{SLACK, TreeScenario};
use crate::address::{HostId, Place, SwitchId};
use crate::check::data::Contributor;
use crate::check::ending::Incarnation;
use crate::check::findings::Checker;
use crate::check::setup::job_id;
use crate::frame::{Frame, Origin};
use crate::host::Kind as Session;
use crate::oracle::TreeSums;
use crate::tree::Member;
use crate::world::World;
use std::time::Duration;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Header, Kind, Rank};

/// A job whose members all live has a result at least this often when nothing goes wrong.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events for each fragment of each worker, on average, at most.
const EVENTS_PER_FRAGMENT: u64 = 1000;

/// Looks at a frame with elements that comes to a switch or to a host.
pub(super) fn look_at_frame(scenario: &TreeScenario, place: Place, frame: &Frame) {
    let Some((header, datagram)) = frame.tally() else {
        return;
    };
    if !header.kind.has_elements() {
        return;
    }
    let of = |i: &&Incarnation| i.epoch == Some(header.epoch) && job_id(i.facts.job) == header.job;
    let Some(incarnation) = scenario.incarnations.iter().rev().find(of) else {
        return;
    };
    let facts = &incarnation.facts;
    let (Some(seq), Some(tree)) = (facts.seq_of(header.fragment.0), &facts.tree) else {
        return;
    };
    if facts.overflow == Some(seq) || header.units != facts.options.units {
        return;
    }
    let payload = &datagram[HEADER_BYTES..][..header.payload_bytes()];
    let look = Look {
        scenario,
        job: facts.job,
        seq,
        header: &header,
        payload,
        tree,
        place,
        element_is_right: header.element == facts.options.element(seq),
    };
    match (place, frame.origin()) {
        (Place::Switch(at, _), Origin::Host(host)) => look.at_switch_of_host(at, host, frame),
        (Place::Switch(at, _), Origin::Switch(from)) => look.at_switch_of_switch(at, from, frame),
        (Place::Host(host), Origin::Switch(from)) => look.at_host(host, from, frame),
        // Forged frames may say what they like.
        _ => {}
    }
}

/// A frame with elements, and what is known of its fragment.
struct Look<'a> {
    scenario: &'a TreeScenario,
    job: usize,
    seq: u64,
    header: &'a Header,
    payload: &'a [u8],
    tree: &'a TreeSums,
    place: Place,
    element_is_right: bool,
}

impl Look<'_> {
    fn require(&self, holds: bool, checker: Checker, what: &str) {
        let findings = &self.scenario.findings;
        findings.require(holds && self.element_is_right, checker, || {
            let (job, seq) = (self.job, self.seq);
            format!(
                "job {job}, fragment {seq}, at {}: {what}: {:?}",
                self.place, self.header
            )
        });
    }

    fn node_at(&self, switch: SwitchId) -> Option<usize> {
        self.scenario.options.jobs[self.job].node_of(switch.0.into())
    }

    fn sum(&self, node: usize) -> std::rc::Rc<[u8]> {
        self.tree.sum(node, self.seq, self.header.element)
    }

    /// A worker's contribution or result, or a parameter server's result.
    fn at_switch_of_host(&self, at: SwitchId, host: HostId, frame: &Frame) {
        // On its way to another switch it is looked at there.
        if !frame.bytes().starts_with(&at.mac().0) {
            return;
        }
        let Some(node) = self.node_at(at) else { return };
        match self.header.kind {
            Kind::Data => {
                let of_job = &self.scenario.hosts[self.job];
                let Some(rank) = of_job.iter().position(|of| *of == host) else {
                    return;
                };
                let mut expected = vec![0; self.payload.len()];
                let element = self.header.element;
                self.tree
                    .write(rank as u16, self.seq, element, &mut expected);
                let local = Member::Host(rank as u16);
                let is_own = self.tree.tree().member(node, self.header.rank.0) == Some(local);
                let right = is_own && expected == self.payload;
                self.require(
                    right,
                    Checker::Payload,
                    "what was sent is not the contribution",
                );
            }
            Kind::Result if self.header.rank == Rank::PS => {
                let right = *self.sum(node) == *self.payload;
                self.require(
                    right,
                    Checker::ExactSum,
                    "a PS's RESULT is not its node's sum",
                );
            }
            Kind::Result => {
                let right = *self.sum(0) == *self.payload;
                self.require(right, Checker::ExactSum, "a worker's RESULT is not the sum");
            }
            _ => {}
        }
    }

    /// A child's sum to its parent, a result, or something on its way to a host.
    fn at_switch_of_switch(&self, at: SwitchId, from: SwitchId, frame: &Frame) {
        let is_group = frame.bytes().first().is_some_and(|first| first & 1 == 1);
        if !is_group && !frame.bytes().starts_with(&at.mac().0) {
            return;
        }
        let (Some(node), Some(maker)) = (self.node_at(at), self.node_at(from)) else {
            return;
        };
        let nodes = &self.tree.tree().nodes;
        match self.header.kind {
            Kind::Data => {
                let local = self.tree.tree().member(node, self.header.rank.0);
                let is_child = local == Some(Member::Child(maker));
                let right = is_child && *self.sum(maker) == *self.payload;
                self.require(
                    right,
                    Checker::ExactSum,
                    "a child's DATA is not its node's sum",
                );
            }
            Kind::Result => {
                let is_near =
                    nodes[node].parent == Some(maker) || nodes[maker].parent == Some(node);
                let right = is_near && *self.sum(0) == *self.payload;
                self.require(
                    right,
                    Checker::ExactSum,
                    "a RESULT on a trunk is not the sum",
                );
            }
            _ => {}
        }
    }

    /// A result, or a part for a parameter server.
    fn at_host(&self, host: HostId, from: SwitchId, frame: &Frame) {
        match self.header.kind {
            Kind::Result => {
                let right = *self.sum(0) == *self.payload;
                self.require(right, Checker::ExactSum, "a RESULT is not the sum");
            }
            Kind::Partial => {
                let Some((udp, _)) = frame.udp() else { return };
                let to = udp.addresses.dst_port;
                let of_job = &self.scenario.ps[self.job];
                let part_of = |ps: &super::NodePs| {
                    let part = to.checked_sub(ps.address.udp_port).map(usize::from);
                    part.filter(|&it| ps.address.host == host && it < ps.sessions.len())
                };
                let mut places = of_job.iter().enumerate();
                let found = places.find_map(|(node, ps)| Some((node, ps, part_of(ps)?)));
                let Some((node, ps, part)) = found else {
                    return;
                };
                let fragment = self.header.fragment.0 as usize;
                self.require(
                    fragment % ps.sessions.len() == part,
                    Checker::ExactSum,
                    "a PARTIAL comes to the PS of another part",
                );
                let (element, bitmap) = (self.header.element, self.header.bitmap);
                let expected = self.tree.partial(node, self.seq, element, bitmap);
                let right = self.node_at(from) == Some(node)
                    && self.tree.may_be_partial(node, element, bitmap)
                    && expected == self.payload;
                self.require(
                    right,
                    Checker::ExactSum,
                    "a PARTIAL is not its members' sum",
                );
            }
            _ => {}
        }
    }
}

/// Incarnations that should be over are.
pub(super) fn look_for_late(scenario: &TreeScenario, world: &World<Contributor>) {
    let base = &scenario.options.base;
    for &n in &scenario.current {
        let incarnation = &scenario.incarnations[n];
        if incarnation.is_over() {
            continue;
        }
        // Its loss is passed on level by level, each with its own timeout.
        let member = base.member_timeout * 2;
        let due = incarnation.due(scenario.quiet_since, member, base.join_timeout);
        let findings = &scenario.findings;
        findings.require(world.now <= due, Checker::Convergence, || {
            let open = incarnation.members.iter().enumerate();
            let open = open.filter(|(_, m)| m.ending.is_none());
            let open: Vec<_> = open.map(|(rank, _)| rank).collect();
            let job = incarnation.facts.job;
            format!("incarnation {n} of job {job} is not over: ranks {open:?} have not ended")
        });
    }
}

/// A job whose members all live and have been told to run gets on.
pub(super) fn look_for_starvation(scenario: &mut TreeScenario, world: &World<Contributor>) {
    for n in scenario.current.clone() {
        let incarnation = &mut scenario.incarnations[n];
        let sessions = incarnation.members.iter().filter_map(|m| m.session);
        let results = sessions.filter_map(|id| match &world.session(id).kind {
            Session::Worker(_, data) => Some(data.results),
            _ => None,
        });
        let results: u64 = results.sum();
        let members = incarnation.members.iter();
        let waits =
            incarnation.is_hurt() || members.clone().any(|m| !m.has_run || m.ending.is_some());
        let fragments = incarnation.facts.options.fragments();
        let done = results == fragments * members.len() as u64;
        if waits || done || results != incarnation.progress.0 {
            incarnation.progress = (results, world.now);
        }
        let since = incarnation.progress.1.max(scenario.quiet_since);
        let job = incarnation.facts.job;
        let is_fed = world.now.since(since) <= PATIENCE;
        scenario.findings.require(is_fed, Checker::Starvation, || {
            let since = since.0;
            format!("job {job} (incarnation {n}) has had no result since {since} ns")
        });
    }
}

/// How much happened, for what was done, and how much is to come.
pub(super) fn look_at_totals(scenario: &TreeScenario, world: &World<Contributor>) {
    let fragments = scenario.expected_fragments;
    // Members that live say so all the time.
    let seconds = world.now.0 / 1_000_000_000 + 1;
    let hosts = world.hosts.len() as u64;
    let switches = world.switches.len() as u64;
    let forged = scenario.options.base.forged_per_s;
    let bound = fragments * EVENTS_PER_FRAGMENT
        + 1_000_000
        + seconds * (hosts + switches + 5) * 400
        + forged * (10 + 4 * (hosts + switches)) * seconds
        + (scenario.rings.as_ref()).map_or(0, |rings| 4 * rings.events_max(seconds));
    let findings = &scenario.findings;
    findings.require(world.happened <= bound, Checker::Memory, || {
        let happened = world.happened;
        format!("{happened} events happened for {fragments} fragments")
    });
    let windows = scenario.current.iter().map(|&n| {
        let incarnation = &scenario.incarnations[n];
        incarnation.facts.window * (incarnation.members.len() + 2 * world.switches.len()) as u64
    });
    let bound = 20_000 + 60 * windows.sum::<u64>();
    let pending = world.pending() as u64;
    findings.require(pending <= bound, Checker::Memory, || {
        format!("{pending} events are to come, and {bound} would be many")
    });
}

/// What work and repair may take.
const _: () = assert!(SLACK.as_secs() >= PATIENCE.as_secs());
