//! Rings of `tally-rina`'s state machines over simulated links.
//!
//! Elements are not simulated. Each segment of a worker stands for one random number, and the sum
//! that arrives everywhere must be that of all numbers: each once.

use super::fabric::{Fabric, Shape};
use super::network::{Network, Route, SECOND, Span, Time, To};
use crate::rng::mix;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use tally_rina::model::Forwarder;
use tally_rina::{Action, Member, Operation, Phase, Piece, Plan, Rack, RackWorker, Segment};

/// Bytes of an element.
pub const ELEMENT_BYTES: u64 = 4;

/// What to simulate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Transfer {
    /// Bytes of an all-reduce.
    pub bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes that a worker has at its switch at most, without result, and to its successor,
    /// without acknowledgement.
    pub window_bytes: u64,
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Seconds until the last worker has all results.
    pub seconds: f64,
    /// Chunks that the first member has sent.
    pub steps: usize,
    /// Most bytes that a host's link has carried, in one direction.
    pub link_bytes: u64,
}

/// Sum of numbers, and how many they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Value {
    sum: u64,
    count: u32,
}

impl Value {
    fn add(&mut self, other: Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.count += other.count;
    }
}

/// A worker in a ring.
#[derive(Clone, Copy, Debug)]
struct Place {
    ring: usize,
    member: usize,
    worker: usize,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    /// From the predecessor.
    Came {
        at: Place,
        piece: Piece,
        value: Value,
    },
    /// From a worker to its switch.
    Contributed {
        from: Place,
        piece: Piece,
        value: Value,
    },
    /// From a switch to a worker.
    Summed {
        at: Place,
        piece: Piece,
        value: Value,
    },
    /// The same to an agent, whose state machine the switch has told.
    Copied,
    /// To a member: its successor has received these bytes.
    Acknowledged { at: Place, bytes: u64 },
}

#[derive(Debug)]
enum Machine {
    Member(Member),
    Other(RackWorker),
}

impl Machine {
    fn provide(&mut self, segment: Segment) {
        match self {
            Self::Member(member) => member.provide(segment),
            Self::Other(other) => other.provide(segment),
        }
    }

    fn summed(&mut self, piece: Piece) {
        match self {
            Self::Member(member) => member.summed(piece),
            Self::Other(other) => other.summed(piece),
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        match self {
            Self::Member(member) => member.poll_action(),
            Self::Other(other) => other.poll_action(),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Member(member) => member.is_done(),
            Self::Other(other) => other.is_done(),
        }
    }
}

#[derive(Debug)]
struct Worker {
    machine: Machine,
    host: usize,
    /// By segment.
    values: Vec<Value>,
    delivered: Vec<bool>,
    /// To be contributed once the window has room.
    waiting: VecDeque<Piece>,
    /// Bytes contributed without result.
    open: u64,
    /// To be sent to the successor once the transport's window has room.
    to_send: VecDeque<Piece>,
    /// Bytes sent without acknowledgement.
    in_flight: u64,
    /// The ring that it begins when it is done here, and its member there.
    next: Option<Place>,
}

/// Contributions to one piece at a switch.
#[derive(Debug, Default)]
struct Slot {
    span: Span,
    value: Value,
    contributions: usize,
}

#[derive(Debug)]
struct Ring {
    plan: Arc<Plan>,
    operation: Operation,
    /// By member and worker.
    workers: Vec<Vec<Worker>>,
    held: HashMap<(usize, Segment), Value>,
    slots: HashMap<(usize, Piece), Slot>,
}

/// Rings that share the links of a fabric.
#[derive(Debug)]
pub struct Rings {
    network: Network<Message>,
    fabric: Fabric,
    switch_sends: bool,
    window: u64,
    rings: Vec<Ring>,
    sent: BTreeSet<(Phase, usize)>,
    end: Time,
}

/// The racks of a shape in the order of the ring. The ranks of each begin at another worker for
/// each of several rings, so that agents differ.
fn racks(shape: &Shape, shift: usize) -> Vec<Rack> {
    let rack = |rack: usize| Rack {
        workers: (0..shape.workers)
            .map(|n| (rack * shape.workers + (n + shift) % shape.workers) as u16)
            .collect(),
        sums: shape.sums(rack),
    };
    (0..shape.racks).map(rack).collect()
}

/// A plan with segments of the transfer's length.
fn plan(racks: &[Rack], elements: u64, transfer: Transfer) -> Result<Arc<Plan>> {
    let segment = (transfer.segment_bytes / ELEMENT_BYTES).max(1);
    Ok(Arc::new(Plan::balanced(racks, elements, segment)?))
}

/// Simulates an all-reduce by Rina's ring; without summing racks, by a ring of all workers.
///
/// # Errors
/// A wrong sum, or a worker that waits without end.
pub fn rina(shape: Shape, transfer: Transfer, forwarder: Forwarder) -> Result<Outcome> {
    let count = match forwarder {
        Forwarder::Agents(agents) => agents.clamp(1, shape.workers),
        Forwarder::Switch => 1,
    };
    // The rings of several agents share a worker's window.
    let window_bytes = transfer.window_bytes / count as u64;
    let transfer = Transfer {
        window_bytes,
        ..transfer
    };
    let mut all = Rings::new(shape, transfer, forwarder);
    let elements = transfer.bytes / ELEMENT_BYTES;
    for n in 0..count {
        let part = elements * (n as u64 + 1) / count as u64 - elements * n as u64 / count as u64;
        let hosts: Vec<_> = (0..shape.all()).collect();
        let plan = plan(&racks(&shape, n), part, transfer)?;
        all.ring(plan, Operation::AllReduce, &hosts);
    }
    all.run(0..count)
}

/// Simulates a hierarchical ring: reduce-scatter in each rack, all-reduce of each chunk between the
/// racks, all-gather in each rack.
///
/// # Errors
/// As [`rina`].
pub fn hierarchical(shape: Shape, transfer: Transfer) -> Result<Outcome> {
    let mut all = Rings::new(shape, transfer, Forwarder::Switch);
    let elements = transfer.bytes / ELEMENT_BYTES;
    let flat = |count: usize| {
        let workers = (0..count as u16).collect();
        let sums = false;
        vec![Rack { workers, sums }]
    };
    let inside = plan(&flat(shape.workers), elements, transfer)?;
    let chunk = elements / shape.workers as u64;
    let between = plan(&flat(shape.racks), chunk, transfer)?;
    let hosts_of = |rack: usize| (0..shape.workers).map(move |n| rack * shape.workers + n);
    for rack in 0..shape.racks {
        let hosts: Vec<_> = hosts_of(rack).collect();
        all.ring(Arc::clone(&inside), Operation::ReduceScatter, &hosts);
    }
    for n in 0..shape.workers {
        let hosts: Vec<_> = (0..shape.racks)
            .map(|rack| rack * shape.workers + n)
            .collect();
        all.ring(Arc::clone(&between), Operation::AllReduce, &hosts);
    }
    for rack in 0..shape.racks {
        let hosts: Vec<_> = hosts_of(rack).collect();
        all.ring(Arc::clone(&inside), Operation::AllGather, &hosts);
    }
    let place = |ring, member| Place {
        ring,
        member,
        worker: 0,
    };
    for rack in 0..shape.racks {
        for n in 0..shape.workers {
            let between = shape.racks + n;
            all.rings[rack].workers[n][0].next = Some(place(between, rack));
            let last = shape.racks + shape.workers + rack;
            all.rings[between].workers[rack][0].next = Some(place(last, n));
        }
    }
    all.run(0..shape.racks)
}

impl Rings {
    fn new(shape: Shape, transfer: Transfer, forwarder: Forwarder) -> Self {
        let mut network = Network::default();
        Self {
            fabric: Fabric::new(shape, &mut network),
            network,
            switch_sends: forwarder == Forwarder::Switch,
            window: transfer.window_bytes,
            rings: Vec::new(),
            sent: BTreeSet::new(),
            end: 0,
        }
    }

    /// Another ring; `hosts` has the host of each rank.
    fn ring(&mut self, plan: Arc<Plan>, operation: Operation, hosts: &[usize]) {
        let ring = self.rings.len();
        let workers = (0..plan.members()).map(|member| {
            let ranks = plan.workers_of(member).iter().enumerate();
            let worker = |(worker, &rank): (usize, &u16)| Worker {
                machine: if worker == 0 {
                    Machine::Member(Member::new(Arc::clone(&plan), member, operation))
                } else {
                    Machine::Other(RackWorker::new(Arc::clone(&plan), member, operation))
                },
                host: hosts[usize::from(rank)],
                values: (0..plan.segments())
                    .map(|segment| number(ring, rank, segment))
                    .collect(),
                delivered: vec![false; plan.segments() as usize],
                waiting: VecDeque::new(),
                open: 0,
                to_send: VecDeque::new(),
                in_flight: 0,
                next: None,
            };
            ranks.map(worker).collect()
        });
        self.rings.push(Ring {
            workers: workers.collect(),
            operation,
            held: HashMap::new(),
            slots: HashMap::new(),
            plan,
        });
    }

    /// Runs until nothing is under way. `first` are the rings that begin at once.
    fn run(mut self, first: std::ops::Range<usize>) -> Result<Outcome> {
        for ring in first {
            for member in 0..self.rings[ring].workers.len() {
                for worker in 0..self.rings[ring].workers[member].len() {
                    let at = Place {
                        ring,
                        member,
                        worker,
                    };
                    self.begin(at, 0);
                }
            }
        }
        while let Some((message, span)) = self.network.poll() {
            if !matches!(message, Message::Acknowledged { .. }) {
                self.end = self.end.max(span.tail);
            }
            self.receive(message, span)?;
        }
        for (n, ring) in self.rings.iter().enumerate() {
            ring.check(n)?;
        }
        let hosts = 0..self.fabric.shape().all();
        let links = hosts.flat_map(|host| self.fabric.links(host));
        let link_bytes = links.map(|link| self.network.bytes(link)).max();
        Ok(Outcome {
            seconds: self.end as f64 / SECOND,
            steps: self.sent.len(),
            link_bytes: link_bytes.unwrap_or_default(),
        })
    }

    fn worker(&mut self, at: Place) -> &mut Worker {
        &mut self.rings[at.ring].workers[at.member][at.worker]
    }

    /// All own elements of a worker are there.
    fn begin(&mut self, at: Place, now: Time) {
        let segments = self.rings[at.ring].plan.segments();
        for segment in (0..segments).map(Segment) {
            self.worker(at).machine.provide(segment);
        }
        self.act(at, Span::at(now));
    }

    fn receive(&mut self, message: Message, span: Span) -> Result<()> {
        match message {
            Message::Came { at, piece, value } => {
                self.acknowledge(at, piece, span.tail);
                let is_rack = self.rings[at.ring].plan.is_rack(at.member);
                let worker = self.worker(at);
                match &mut worker.machine {
                    Machine::Member(member) => member.receive(piece)?,
                    Machine::Other(_) => unreachable!("the first worker is the member"),
                }
                match piece.phase {
                    Phase::Gather => worker.values[piece.segment.0 as usize] = value,
                    Phase::Reduce => {
                        let key = (at.member, piece.segment);
                        self.rings[at.ring].held.insert(key, value);
                    }
                }
                // A sum that a switch sends on is there with its first byte.
                let is_at_switch = is_rack && self.switch_sends && piece.phase == Phase::Gather;
                let time = if is_at_switch {
                    span
                } else {
                    Span::at(span.tail)
                };
                self.act(at, time);
            }
            Message::Contributed { from, piece, value } => {
                self.contributed(from, piece, value, span);
            }
            Message::Summed { at, piece, value } => self.summed(at, piece, value, span.tail),
            Message::Copied => {}
            Message::Acknowledged { at, bytes } => {
                self.worker(at).in_flight -= bytes;
                self.transmit(at, Span::at(span.tail));
            }
        }
        Ok(())
    }

    /// A switch's result is at a worker.
    fn summed(&mut self, at: Place, piece: Piece, value: Value, now: Time) {
        let bytes = self.window_bytes(at, piece);
        let worker = self.worker(at);
        worker.values[piece.segment.0 as usize] = value;
        worker.open -= bytes;
        worker.machine.summed(piece);
        self.act(at, Span::at(now));
    }

    /// Carries out what a worker is to do; the cause is there in a span.
    fn act(&mut self, at: Place, span: Span) {
        while let Some(action) = self.worker(at).machine.poll_action() {
            match action {
                Action::Add(segment) => {
                    let held = self.rings[at.ring].held.remove(&(at.member, segment));
                    let value = held.unwrap_or_default();
                    self.worker(at).values[segment.0 as usize].add(value);
                }
                Action::Contribute(piece) => {
                    let is_there = at.worker == 0 && piece.phase == Phase::Gather;
                    if is_there && self.switch_sends {
                        // It is at the switch, without a place in the window of its host.
                        let value = self.value(at, piece);
                        self.contributed(at, piece, value, span);
                    } else {
                        self.worker(at).waiting.push_back(piece);
                    }
                }
                Action::Send(piece) => {
                    self.worker(at).to_send.push_back(piece);
                    self.transmit(at, span);
                }
                Action::Deliver(segment) => {
                    let delivered = &mut self.worker(at).delivered[segment.0 as usize];
                    assert!(!std::mem::replace(delivered, true));
                }
            }
        }
        self.contribute(at, span.tail);
        let worker = self.worker(at);
        if worker.machine.is_done()
            && let Some(next) = worker.next.take()
        {
            self.begin(next, span.tail);
        }
    }

    fn bytes(&self, ring: usize, segment: Segment) -> u64 {
        let range = self.rings[ring].plan.range(segment);
        (range.end - range.start) * ELEMENT_BYTES
    }

    /// Bytes that a contribution takes of a window.
    fn window_bytes(&self, at: Place, piece: Piece) -> u64 {
        self.bytes(at.ring, piece.segment)
    }

    /// What a worker contributes: in the gather phase all but the agent contribute zeros.
    fn value(&mut self, at: Place, piece: Piece) -> Value {
        if piece.phase == Phase::Gather && at.worker > 0 {
            return Value::default();
        }
        self.worker(at).values[piece.segment.0 as usize]
    }

    /// Contributes what the window has room for.
    fn contribute(&mut self, at: Place, now: Time) {
        while let Some(&piece) = self.worker(at).waiting.front() {
            let bytes = self.window_bytes(at, piece);
            let window = self.window;
            let worker = self.worker(at);
            if worker.open > 0 && worker.open + bytes > window {
                return;
            }
            worker.open += bytes;
            worker.waiting.pop_front();
            let host = worker.host;
            let route = self.fabric.to_switch(host);
            let value = self.value(at, piece);
            // Where the switch multicasts what comes from the predecessor, no worker sends zeros.
            let has_none = self.switch_sends && piece.phase == Phase::Gather;
            let sent = if has_none { 0 } else { bytes as u32 };
            let from = at;
            let message = Message::Contributed { from, piece, value };
            self.network
                .send(route, sent, Span::at(now), To::Switch, message);
        }
    }

    /// A contribution is at the switch; the last one completes the piece.
    fn contributed(&mut self, from: Place, piece: Piece, value: Value, span: Span) {
        let ring = &mut self.rings[from.ring];
        let count = ring.plan.workers_of(from.member).len();
        let slot = ring.slots.entry((from.member, piece)).or_default();
        slot.value.add(value);
        slot.contributions += 1;
        slot.span = slot.span.join(span);
        if slot.contributions < count {
            return;
        }
        let Slot { span, value, .. } = ring.slots.remove(&(from.member, piece)).unwrap_or_default();
        let is_own = ring.plan.owner(piece.segment) == from.member;
        let is_result = is_own || piece.phase == Phase::Gather;
        // A switch that sends partial sums on has a header for the workers of its rack.
        let bytes = if self.switch_sends && !is_result {
            0
        } else {
            self.bytes(from.ring, piece.segment) as u32
        };
        for worker in 0..count {
            let at = Place { worker, ..from };
            let host = self.worker(at).host;
            let rack = self.fabric.shape().rack(host);
            let route = self.fabric.from_switch(rack, host);
            let mut message = Message::Summed { at, piece, value };
            if worker == 0 && self.switch_sends {
                message = Message::Copied;
                let bytes = self.window_bytes(at, piece);
                let agent = self.worker(at);
                agent.values[piece.segment.0 as usize] = value;
                if piece.phase == Phase::Reduce {
                    agent.open -= bytes;
                }
                agent.machine.summed(piece);
            }
            self.network.send(route, bytes, span, To::Host, message);
        }
        if self.switch_sends {
            let agent = Place { worker: 0, ..from };
            self.act(agent, span);
        }
    }

    /// Whether a member's pieces leave at its rack's switch, which has no window.
    fn sends_at_switch(&self, at: Place) -> bool {
        self.switch_sends && self.rings[at.ring].plan.is_rack(at.member)
    }

    /// Tells a piece's sender that it has come.
    fn acknowledge(&mut self, to: Place, piece: Piece, now: Time) {
        let count = self.rings[to.ring].plan.members();
        let at = Place {
            member: (to.member + count - 1) % count,
            ..to
        };
        if self.sends_at_switch(at) {
            return;
        }
        let bytes = self.bytes(at.ring, piece.segment);
        let back = now + self.fabric.delay();
        let message = Message::Acknowledged { at, bytes };
        let nowhere = Route::default();
        self.network
            .send(nowhere, 0, Span::at(back), To::Host, message);
    }

    /// Sends to the successor what the transport's window has room for.
    fn transmit(&mut self, at: Place, span: Span) {
        while let Some(&piece) = self.worker(at).to_send.front() {
            if !self.sends_at_switch(at) {
                let (bytes, window) = (self.bytes(at.ring, piece.segment), self.window);
                let worker = self.worker(at);
                if worker.in_flight > 0 && worker.in_flight + bytes > window {
                    return;
                }
                worker.in_flight += bytes;
            }
            self.worker(at).to_send.pop_front();
            self.send(at, piece, span);
        }
    }

    fn send(&mut self, from: Place, piece: Piece, span: Span) {
        let plan = Arc::clone(&self.rings[from.ring].plan);
        if from.ring == 0 && from.member == 0 {
            self.sent.insert((piece.phase, plan.owner(piece.segment)));
        }
        let to = Place {
            member: plan.successor(from.member),
            ..from
        };
        let (host, other) = (self.worker(from).host, self.worker(to).host);
        let rack_of = |host| self.fabric.shape().rack(host);
        let is_at_switch = |member| self.switch_sends && plan.is_rack(member);
        let to_switch = is_at_switch(to.member) && piece.phase == Phase::Gather;
        let route: Route = match (is_at_switch(from.member), to_switch) {
            (false, false) => self.fabric.between(host, other),
            (false, true) => self.fabric.to_rack(host, rack_of(other)),
            (true, false) => self.fabric.from_switch(rack_of(host), other),
            (true, true) => self.fabric.between_racks(rack_of(host), rack_of(other)),
        };
        let value = self.worker(from).values[piece.segment.0 as usize];
        let bytes = self.bytes(from.ring, piece.segment) as u32;
        let at = to;
        let message = Message::Came { at, piece, value };
        let to = if to_switch { To::Switch } else { To::Host };
        self.network.send(route, bytes, span, to, message);
    }
}

/// The number that a segment of a rank stands for.
fn number(ring: usize, rank: u16, segment: u32) -> Value {
    let place = (ring as u64) << 48 | u64::from(rank) << 32 | u64::from(segment);
    Value {
        sum: mix(place.wrapping_add(0x9e37_79b9_7f4a_7c15)),
        count: 1,
    }
}

impl Ring {
    /// Whether all workers have the sums that they are to have.
    fn check(&self, ring: usize) -> Result<()> {
        let plan = &self.plan;
        ensure!(
            self.held.is_empty() && self.slots.is_empty(),
            "ring {ring}: partial sums are left over"
        );
        for segment in (0..plan.segments()).map(Segment) {
            let owner = plan.owner(segment);
            let mut expected = Value::default();
            for (member, workers) in self.workers.iter().enumerate() {
                for rank in (0..workers.len()).map(|worker| plan.workers_of(member)[worker]) {
                    if self.operation.reduces() || member == owner {
                        expected.add(number(ring, rank, segment.0));
                    }
                }
            }
            for (member, workers) in self.workers.iter().enumerate() {
                for (worker, it) in workers.iter().enumerate() {
                    let at = segment.0 as usize;
                    ensure!(
                        it.machine.is_done(),
                        "ring {ring}: worker {worker} of member {member} waits without end"
                    );
                    let is_due = self.operation.gathers() || member == owner;
                    ensure!(
                        it.delivered[at] == is_due && (!is_due || it.values[at] == expected),
                        "ring {ring}: worker {worker} of member {member} has a wrong sum of {segment:?}"
                    );
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
