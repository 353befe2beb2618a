//! One all-reduce of the ring: the state machine of this host, with elements.
//!
//! The state machine names pieces. Here they are added, sent to the successor, and summed by the
//! rack's session, each as a collective of its own.

use super::content::{Join, join};
use super::link::Link;
use super::wire::{Header, Kind, SEGMENT_BYTES};
use crate::session::{Collective, CollectiveKind, Refused, Session};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tally_kernels::Kernels;
use tally_rina::{Action, Member, Operation, Phase, Piece, Plan, Rack, RackWorker, Segment};
use tally_session::{Arithmetic, Dtype};
use tally_wire::netreduce::Element;

/// Pieces of a rack in flight.
const IN_RACK_MAX: usize = 64;

/// What is wrong about a piece.
pub(super) enum Wrong {
    /// The predecessor does not keep to the protocol.
    Piece(String),
    /// The sum of an integer has left its range.
    Overflow,
}

/// The state machine.
enum Machine {
    /// A host by itself, or a rack's agent.
    Member(Member),
    /// Another worker of a rack.
    Worker(RackWorker),
}

impl Machine {
    fn poll_action(&mut self) -> Option<Action> {
        match self {
            Self::Member(it) => it.poll_action(),
            Self::Worker(it) => it.poll_action(),
        }
    }

    fn summed(&mut self, piece: Piece) {
        match self {
            Self::Member(it) => it.summed(piece),
            Self::Worker(it) => it.summed(piece),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Member(it) => it.is_done(),
            Self::Worker(it) => it.is_done(),
        }
    }
}

/// Where this host is in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) member: usize,
    /// Which of the rack's hosts; 0 is the agent.
    pub(super) worker: usize,
}

pub(super) struct Pass {
    /// Its number in messages.
    pub(super) number: u32,
    /// The predecessor has begun it, too.
    pub(super) is_opened: bool,
    /// A result of the rack has come.
    pub(super) has_rack_result: bool,
    /// What the pieces are parts of in the rack's session, whose name says all of it.
    of: Collective,
    how: Join,
    plan: Arc<Plan>,
    worker: usize,
    member: usize,
    machine: Machine,
    to_send: VecDeque<Piece>,
    to_submit: VecDeque<Piece>,
    /// By the rack session's ticket.
    in_rack: HashMap<u64, Piece>,
    kernels: Kernels,
    /// Elements that came for the `Add` that follows.
    incoming: Vec<u8>,
}

impl Pass {
    /// All elements of this host are there.
    pub(super) fn new(
        racks: &[Rack],
        at: Place,
        number: u32,
        of: Collective,
        (how, bytes): (Join, usize),
    ) -> Self {
        let (size, segment) = (how.bytes(), (SEGMENT_BYTES / how.bytes()) as u64);
        // The configuration was checked, and 2^32 segments are more than there is memory.
        let plan = Plan::balanced(racks, (bytes / size) as u64, segment)
            .unwrap_or_else(|why| unreachable!("{why}"));
        let plan = Arc::new(plan);
        let operation = Operation::AllReduce;
        let segments = (0..plan.segments()).map(Segment);
        let machine = if at.worker == 0 {
            let mut member = Member::new(plan.clone(), at.member, operation);
            segments.for_each(|it| member.provide(it));
            Machine::Member(member)
        } else {
            let mut worker = RackWorker::new(plan.clone(), at.member, operation);
            segments.for_each(|it| worker.provide(it));
            Machine::Worker(worker)
        };
        Self {
            number,
            is_opened: false,
            has_rack_result: false,
            of,
            how,
            plan,
            worker: at.worker,
            member: at.member,
            machine,
            to_send: VecDeque::new(),
            to_submit: VecDeque::new(),
            in_rack: HashMap::new(),
            kernels: Kernels::best(),
            incoming: Vec::new(),
        }
    }

    /// Bytes of a segment in the elements.
    fn range(&self, segment: Segment) -> std::ops::Range<usize> {
        let range = self.plan.range(segment);
        let size = self.how.bytes() as u64;
        (range.start * size) as usize..(range.end * size) as usize
    }

    /// Takes a piece of the predecessor's.
    pub(super) fn receive(
        &mut self,
        header: &Header,
        body: &[u8],
        elements: &mut [u8],
    ) -> Result<(), Wrong> {
        let segment = Segment(header.segment);
        let phase = header.phase;
        let Machine::Member(member) = &mut self.machine else {
            unreachable!("only members are connected");
        };
        member
            .receive(Piece { phase, segment })
            .map_err(|why| Wrong::Piece(why.to_string()))?;
        let range = self.range(segment);
        if range.len() != body.len() {
            let (found, allowed) = (body.len(), range.len());
            let text = format!("segment {} of {found} bytes, expected {allowed}", segment.0);
            return Err(Wrong::Piece(text));
        }
        match phase {
            Phase::Gather => elements[range].copy_from_slice(body),
            Phase::Reduce => {
                self.incoming.clear();
                self.incoming.extend_from_slice(body);
            }
        }
        self.act(elements)
    }

    /// Does what the state machine asks for.
    pub(super) fn act(&mut self, elements: &mut [u8]) -> Result<(), Wrong> {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Add(segment) => {
                    let own = &mut elements[self.range(segment)];
                    if join(&self.kernels, self.how, own, &self.incoming) {
                        return Err(Wrong::Overflow);
                    }
                }
                Action::Contribute(piece) => self.to_submit.push_back(piece),
                Action::Send(piece) => self.to_send.push_back(piece),
                Action::Deliver(_) => {}
            }
        }
        Ok(())
    }

    /// Queues pieces for the successor; whether there were any.
    pub(super) fn send(&mut self, now: Instant, link: &mut Link, elements: &[u8]) -> bool {
        let mut is_busy = false;
        while link.has_room()
            && let Some(piece) = self.to_send.pop_front()
        {
            let body = &elements[self.range(piece.segment)];
            let header = Header {
                phase: piece.phase,
                pass: self.number,
                segment: piece.segment.0,
                ..Header::new(Kind::Piece, body.len())
            };
            link.send(now, &header, body);
            is_busy = true;
        }
        is_busy
    }

    /// Submits pieces to the rack's session; whether there were any.
    pub(super) fn submit(&mut self, rack: &mut Session, elements: &[u8]) -> Result<bool, Refused> {
        let mut is_busy = false;
        while self.in_rack.len() < IN_RACK_MAX
            && let Some(piece) = self.to_submit.pop_front()
        {
            let range = self.range(piece.segment);
            let (kind, dtype) = match (piece.phase, self.how) {
                (Phase::Gather, _) => (CollectiveKind::Broadcast { root: 0 }, Dtype::I8),
                (Phase::Reduce, Join::Max) => (CollectiveKind::Max, Dtype::I8),
                (Phase::Reduce, Join::Sum(element)) => (CollectiveKind::Sum, dtype_of(element)),
            };
            let collective = Collective {
                kind,
                dtype,
                arithmetic: Arithmetic::Own,
                ..self.of.clone()
            };
            let buffer = match piece.phase {
                Phase::Gather if self.worker > 0 => vec![0; range.len()],
                _ => elements[range].to_vec(),
            };
            let ticket = rack.submit(collective, Box::new(buffer))?;
            self.in_rack.insert(ticket.0, piece);
            is_busy = true;
        }
        Ok(is_busy)
    }

    /// Takes a result of the rack's session.
    pub(super) fn take(
        &mut self,
        done: &crate::session::Done,
        elements: &mut [u8],
    ) -> Result<(), Wrong> {
        let Some(piece) = self.in_rack.remove(&done.ticket.0) else {
            // That of the barrier in front of all.
            return Ok(());
        };
        self.has_rack_result = true;
        let is_own = self.plan.owner(piece.segment) == self.member;
        let is_wanted = match piece.phase {
            Phase::Reduce => self.worker == 0 || is_own,
            Phase::Gather => self.worker > 0,
        };
        if is_wanted {
            let range = self.range(piece.segment);
            done.buffer.read(0, &mut elements[range]);
        }
        self.machine.summed(piece);
        self.act(elements)
    }

    /// Whether this host has all results, and has queued all that others need.
    pub(super) fn is_done(&self) -> bool {
        self.machine.is_done()
            && self.to_send.is_empty()
            && self.to_submit.is_empty()
            && self.in_rack.is_empty()
    }

    /// Whether pieces wait for others of the rack.
    pub(super) fn waits_for_rack(&self) -> bool {
        !self.in_rack.is_empty()
    }
}

const fn dtype_of(element: Element) -> Dtype {
    match element {
        Element::I32 => Dtype::I32,
        Element::F32 => Dtype::F32,
        Element::F16 => Dtype::F16,
        Element::Bf16 => Dtype::Bf16,
    }
}
