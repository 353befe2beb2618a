//! State machine of a worker of a rack that sums, other than its agent.

use crate::member::Action;
use crate::order::RackQueue;
use crate::plan::{Operation, Phase, Piece, Plan, Segment};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A worker of a rack that sums, other than its agent: it submits its elements in the rack's order
/// and takes results.
///
/// It brings zeros to what its agent multicasts, and does so after it has the rack's partial sum of
/// the segment. So that sum never overwrites the result, and the worker's elements are in its
/// buffer for as long as the switch may ask for them once more.
#[derive(Clone, Debug)]
pub struct RackWorker {
    plan: Arc<Plan>,
    member: usize,
    operation: Operation,
    queue: RackQueue,
    provided: BTreeSet<Segment>,
    actions: VecDeque<Action>,
}

impl RackWorker {
    /// A worker of this member of the ring.
    ///
    /// # Panics
    /// If the member is no rack that sums.
    #[must_use]
    pub fn new(plan: Arc<Plan>, member: usize, operation: Operation) -> Self {
        assert!(plan.is_rack(member));
        let mut queue = RackQueue::new(&plan, member, operation);
        if !operation.reduces() {
            let gathered = plan.rack_order(member, operation);
            let others = gathered.filter(|piece| plan.owner(piece.segment) != member);
            others.for_each(|piece| queue.insert(piece));
        }
        let mut worker = Self {
            plan,
            member,
            operation,
            queue,
            provided: BTreeSet::new(),
            actions: VecDeque::new(),
        };
        worker.submit();
        worker
    }

    /// The worker's own elements of a segment are in its buffer. More than once is as once.
    pub fn provide(&mut self, segment: Segment) {
        if !self.provided.insert(segment) {
            return;
        }
        if self.operation.reduces() {
            self.queue.insert(Piece::reduce(segment));
        } else if self.plan.owner(segment) == self.member {
            self.queue.insert(Piece::gather(segment));
        }
        self.submit();
    }

    fn submit(&mut self) {
        while let Some(piece) = self.queue.pop() {
            self.actions.push_back(Action::Contribute(piece));
        }
    }

    /// The switch's result of a piece is in the buffer.
    ///
    /// # Panics
    /// If the piece was not submitted, or has its result.
    pub fn summed(&mut self, piece: Piece) {
        assert!(self.queue.close(piece), "no result of {piece:?} is due");
        let is_own = self.plan.owner(piece.segment) == self.member;
        if piece.phase == Phase::Gather || is_own {
            self.actions.push_back(Action::Deliver(piece.segment));
        } else if self.operation.gathers() {
            self.queue.insert(Piece::gather(piece.segment));
            self.submit();
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether all results have come, and all actions were taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.queue.is_done() && self.actions.is_empty()
    }
}
