//! State machine of one member: a worker of its own, or the agent of a rack whose switch sums.

use crate::order::{InOrder, RackQueue};
use crate::plan::{Operation, Phase, Piece, Plan, Segment};
use std::collections::VecDeque;
use std::sync::Arc;
use thiserror::Error;

/// What the driver does next. Elements are those of the named segment in the worker's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Add what came from the predecessor for this segment to the worker's own elements.
    Add(Segment),
    /// Submit the piece to the rack's switch, and call `summed` with the result in the buffer.
    ///
    /// In the reduce phase it is a sum. In the gather phase it is a broadcast from the agent, or,
    /// in an all-gather by itself and of the member's own chunk, a broadcast of each worker's part.
    Contribute(Piece),
    /// Send the piece to the successor.
    Send(Piece),
    /// The segment of the worker's buffer has its result.
    Deliver(Segment),
}

/// Why a piece from the predecessor is refused. The predecessor violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no such segment.
    #[error("segment {found} of {segments}")]
    Unknown {
        /// The number that came.
        found: u32,
        /// Number of segments.
        segments: u32,
    },
    /// The operation does not have the phase.
    #[error("a piece of a phase that the operation does not have")]
    Phase,
    /// The reduction of the chunk begins here, or its sum was made here.
    #[error("a piece of chunk {owner}, which member {member} sends and does not receive")]
    Origin {
        /// Owner of the chunk.
        owner: usize,
        /// This member.
        member: usize,
    },
    /// It has come before.
    #[error("segment {0} has come twice")]
    Duplicate(u32),
    /// A sum without the elements of this member.
    #[error("the sum of segment {0} came before this member sent its partial sum")]
    Early(u32),
}

/// What has become of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The worker's own elements, or the predecessor's partial sum, are missing.
    Waiting,
    /// At the rack's switch.
    InRack,
    /// The partial sum waits for others to be sent first.
    Queued,
    /// The partial sum was sent on.
    Passed,
    /// The buffer has the result.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    has_own: bool,
    has_partial: bool,
    stage: Stage,
}

/// One member of the ring. See the crate's documentation.
///
/// Order of calls: an event ([`provide`](Self::provide), [`receive`](Self::receive),
/// [`summed`](Self::summed)), then [`poll_action`](Self::poll_action) until `None`.
#[derive(Clone, Debug)]
pub struct Member {
    plan: Arc<Plan>,
    index: usize,
    operation: Operation,
    progress: Vec<Progress>,
    /// Segments without result: those that this member is to have.
    missing: usize,
    sends: InOrder,
    rack: Option<RackQueue>,
    actions: VecDeque<Action>,
}

impl Member {
    /// A member of the plan's ring.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn new(plan: Arc<Plan>, index: usize, operation: Operation) -> Self {
        assert!(index < plan.members());
        let own = plan.segments_of(index).count();
        let all = plan.segments() as usize;
        let segments = (0..plan.segments()).map(Segment);
        let progress = segments.map(|segment| Progress {
            has_own: false,
            has_partial: plan.position(index, plan.owner(segment)) == 0,
            stage: Stage::Waiting,
        });
        let missing = if operation.gathers() { all } else { own };
        let rack = plan
            .is_rack(index)
            .then(|| RackQueue::new(&plan, index, operation));
        Self {
            progress: progress.collect(),
            index,
            operation,
            missing,
            sends: InOrder::new(plan.send_order(index, operation)),
            rack,
            actions: VecDeque::new(),
            plan,
        }
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The worker's own elements of a segment are in its buffer. More than once is as once.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn provide(&mut self, segment: Segment) {
        let progress = &mut self.progress[segment.0 as usize];
        if std::mem::replace(&mut progress.has_own, true) {
            return;
        }
        if self.operation.reduces() {
            self.join(segment);
        } else if self.plan.owner(segment) == self.index {
            self.contribute_or(Piece::gather(segment), Self::finish);
        }
    }

    /// A piece has come from the predecessor.
    ///
    /// In the reduce phase, the driver keeps its elements until [`Action::Add`]. In the gather
    /// phase it writes them to the buffer at once.
    ///
    /// # Errors
    /// A piece that no predecessor sends. Nothing has changed.
    pub fn receive(&mut self, piece: Piece) -> Result<(), Refused> {
        let Piece { phase, segment } = piece;
        let segments = self.plan.segments();
        let found = segment.0;
        if found >= segments {
            return Err(Refused::Unknown { found, segments });
        }
        let owner = self.plan.owner(segment);
        let member = self.index;
        match phase {
            Phase::Reduce if !self.operation.reduces() => Err(Refused::Phase),
            Phase::Gather if !self.operation.gathers() => Err(Refused::Phase),
            Phase::Reduce if self.plan.position(member, owner) == 0 => {
                Err(Refused::Origin { owner, member })
            }
            Phase::Gather if owner == member => Err(Refused::Origin { owner, member }),
            Phase::Reduce => self.receive_partial(segment),
            Phase::Gather => self.receive_sum(segment),
        }
    }

    fn receive_partial(&mut self, segment: Segment) -> Result<(), Refused> {
        let progress = &mut self.progress[segment.0 as usize];
        if std::mem::replace(&mut progress.has_partial, true) {
            return Err(Refused::Duplicate(segment.0));
        }
        self.join(segment);
        Ok(())
    }

    fn receive_sum(&mut self, segment: Segment) -> Result<(), Refused> {
        let due = if self.operation.reduces() {
            Stage::Passed
        } else {
            Stage::Waiting
        };
        match self.progress[segment.0 as usize].stage {
            Stage::Done => Err(Refused::Duplicate(segment.0)),
            stage if stage != due => Err(Refused::Early(segment.0)),
            _ => {
                self.finish(Piece::gather(segment));
                self.contribute(Piece::gather(segment));
                Ok(())
            }
        }
    }

    /// The switch's result of a piece is in the buffer.
    ///
    /// # Panics
    /// If the piece was not submitted, or has its result.
    pub fn summed(&mut self, piece: Piece) {
        let is_due = self.rack.as_mut().is_some_and(|rack| rack.close(piece));
        assert!(is_due, "no result of {piece:?} is due");
        match (piece.phase, self.progress[piece.segment.0 as usize].stage) {
            (Phase::Reduce, Stage::InRack) => self.pass(piece),
            (Phase::Gather, Stage::InRack) => self.finish(piece),
            // Its own multicast.
            (Phase::Gather, Stage::Done) => {}
            (phase, stage) => unreachable!("{phase:?} in {stage:?}"),
        }
    }

    /// Adds the own elements to the predecessor's, once both are there.
    fn join(&mut self, segment: Segment) {
        let progress = self.progress[segment.0 as usize];
        if !(progress.has_own && progress.has_partial) {
            return;
        }
        assert_eq!(progress.stage, Stage::Waiting);
        if self.plan.position(self.index, self.plan.owner(segment)) > 0 {
            self.actions.push_back(Action::Add(segment));
        }
        self.contribute_or(Piece::reduce(segment), Self::pass);
    }

    /// Submits a piece to the rack's switch; without one, does what follows the switch's result.
    fn contribute_or(&mut self, piece: Piece, then: fn(&mut Self, Piece)) {
        if self.rack.is_some() {
            self.progress[piece.segment.0 as usize].stage = Stage::InRack;
            self.contribute(piece);
        } else {
            then(self, piece);
        }
    }

    /// Submits a piece to the rack's switch, if there is one, in the rack's order.
    fn contribute(&mut self, piece: Piece) {
        if let Some(rack) = &mut self.rack {
            rack.insert(piece);
            while let Some(piece) = rack.pop() {
                self.actions.push_back(Action::Contribute(piece));
            }
        }
    }

    /// Sends a partial sum on; the last member has the sum.
    fn pass(&mut self, piece: Piece) {
        if self.plan.owner(piece.segment) == self.index {
            self.finish(piece);
        } else {
            self.progress[piece.segment.0 as usize].stage = Stage::Queued;
            self.send(piece);
        }
    }

    /// The buffer has the result of a segment.
    fn finish(&mut self, piece: Piece) {
        let segment = piece.segment;
        self.progress[segment.0 as usize].stage = Stage::Done;
        self.missing -= 1;
        self.actions.push_back(Action::Deliver(segment));
        let distance = self.plan.distance(self.index, self.plan.owner(segment));
        if self.operation.gathers() && distance + 1 < self.plan.members() {
            self.send(Piece::gather(segment));
        }
    }

    /// Sends a piece to the successor, in order.
    fn send(&mut self, piece: Piece) {
        self.sends.insert(piece);
        while let Some(piece) = self.sends.pop() {
            if piece.phase == Phase::Reduce {
                self.progress[piece.segment.0 as usize].stage = Stage::Passed;
            }
            self.actions.push_back(Action::Send(piece));
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether nothing is left to do: all results are there, all that the others need was sent, and
    /// all actions were taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let in_rack = self.rack.as_ref().is_some_and(|rack| !rack.is_done());
        self.missing == 0 && self.sends.is_done() && !in_rack && self.actions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Rack;

    fn plan(elements: u64) -> Arc<Plan> {
        let rack = |workers: &[u16], sums| Rack {
            workers: workers.into(),
            sums,
        };
        let racks = [rack(&[0, 1], true), rack(&[2, 3], false)];
        Arc::new(Plan::balanced(&racks, elements, 1).unwrap())
    }

    fn actions(member: &mut Member) -> Vec<Action> {
        std::iter::from_fn(|| member.poll_action()).collect()
    }

    #[test]
    fn an_agent_adds_has_the_switch_sum_and_sends_on() {
        let mut agent = Member::new(plan(3), 0, Operation::AllReduce);
        let s = Segment;
        (0..3).for_each(|n| agent.provide(s(n)));
        // Chunk 2 begins here.
        assert_eq!(
            actions(&mut agent),
            [Action::Contribute(Piece::reduce(s(2)))]
        );
        agent.summed(Piece::reduce(s(2)));
        assert_eq!(actions(&mut agent), [Action::Send(Piece::reduce(s(2)))]);
        // In the rack chunk 1 is before chunk 0.
        agent.receive(Piece::reduce(s(0))).unwrap();
        assert_eq!(actions(&mut agent), [Action::Add(s(0))]);
        agent.receive(Piece::reduce(s(1))).unwrap();
        assert_eq!(
            actions(&mut agent),
            [
                Action::Add(s(1)),
                Action::Contribute(Piece::reduce(s(1))),
                Action::Contribute(Piece::reduce(s(0)))
            ]
        );
        agent.summed(Piece::reduce(s(0)));
        assert_eq!(actions(&mut agent), [Action::Deliver(s(0))]);
        // Sends are in order, too.
        agent.summed(Piece::reduce(s(1)));
        let sends = [Piece::reduce(s(1)), Piece::gather(s(0))];
        assert_eq!(actions(&mut agent), sends.map(Action::Send));
        agent.receive(Piece::gather(s(2))).unwrap();
        agent.receive(Piece::gather(s(1))).unwrap();
        let last = actions(&mut agent);
        assert!(last.contains(&Action::Send(Piece::gather(s(2)))));
        assert!(!last.contains(&Action::Send(Piece::gather(s(1)))));
        assert!(!agent.is_done(), "the rack lacks two sums");
        agent.summed(Piece::gather(s(2)));
        agent.summed(Piece::gather(s(1)));
        assert!(agent.is_done());
    }

    #[test]
    fn what_no_predecessor_sends_is_refused() {
        let mut member = Member::new(plan(3), 1, Operation::AllReduce);
        let s = Segment;
        let error = member.receive(Piece::reduce(s(3)));
        let (found, segments) = (3, 3);
        assert_eq!(error, Err(Refused::Unknown { found, segments }));
        let error = member.receive(Piece::reduce(s(0)));
        let (owner, member_index) = (0, 1);
        let origin = Refused::Origin {
            owner,
            member: member_index,
        };
        assert_eq!(error, Err(origin));
        assert!(matches!(
            member.receive(Piece::gather(s(1))),
            Err(Refused::Origin { .. })
        ));
        assert_eq!(member.receive(Piece::gather(s(0))), Err(Refused::Early(0)));
        member.receive(Piece::reduce(s(1))).unwrap();
        assert_eq!(
            member.receive(Piece::reduce(s(1))),
            Err(Refused::Duplicate(1))
        );
        member.provide(s(0));
        member.receive(Piece::gather(s(0))).unwrap();
        assert_eq!(
            member.receive(Piece::gather(s(0))),
            Err(Refused::Duplicate(0))
        );
        let mut scatters = Member::new(plan(3), 1, Operation::ReduceScatter);
        assert_eq!(scatters.receive(Piece::gather(s(0))), Err(Refused::Phase));
    }
}
