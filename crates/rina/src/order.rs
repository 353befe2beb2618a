//! Pieces that become ready in any order and leave in a fixed one.

use crate::plan::{Operation, Piece, Plan};
use std::collections::BTreeSet;

/// Pieces in a fixed order, each of which waits until it is ready and all before it have left.
#[derive(Clone, Debug)]
pub(crate) struct InOrder {
    order: Vec<Piece>,
    /// The next one to leave.
    next: usize,
    /// Those that are ready and have not left.
    ready: BTreeSet<Piece>,
}

impl InOrder {
    pub(crate) fn new(order: impl Iterator<Item = Piece>) -> Self {
        Self {
            order: order.collect(),
            next: 0,
            ready: BTreeSet::new(),
        }
    }

    /// A piece is ready.
    pub(crate) fn insert(&mut self, piece: Piece) {
        assert!(self.ready.insert(piece), "{piece:?} is ready twice");
    }

    /// The next piece, if it is ready.
    pub(crate) fn pop(&mut self) -> Option<Piece> {
        let piece = *self.order.get(self.next)?;
        self.ready.remove(&piece).then(|| {
            self.next += 1;
            piece
        })
    }

    /// Whether all have left.
    pub(crate) fn is_done(&self) -> bool {
        let is_done = self.next == self.order.len();
        assert!(!is_done || self.ready.is_empty(), "pieces of no turn");
        is_done
    }
}

/// The pieces of a rack, in the order in which its workers submit them, and those at the switch.
#[derive(Clone, Debug)]
pub(crate) struct RackQueue {
    pieces: InOrder,
    /// Those submitted, without result.
    open: BTreeSet<Piece>,
}

impl RackQueue {
    pub(crate) fn new(plan: &Plan, member: usize, operation: Operation) -> Self {
        Self {
            pieces: InOrder::new(plan.rack_order(member, operation)),
            open: BTreeSet::new(),
        }
    }

    /// A piece can be submitted.
    pub(crate) fn insert(&mut self, piece: Piece) {
        self.pieces.insert(piece);
    }

    /// The next piece to submit, if it can be.
    pub(crate) fn pop(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop()?;
        self.open.insert(piece);
        Some(piece)
    }

    /// A piece's result has come; false if none was due.
    pub(crate) fn close(&mut self, piece: Piece) -> bool {
        self.open.remove(&piece)
    }

    /// Whether all were submitted, and all results have come.
    pub(crate) fn is_done(&self) -> bool {
        self.pieces.is_done() && self.open.is_empty()
    }
}
