//! Contributions that came ahead of their turn, for element types whose sum has an order, and all
//! but rank 0's of those whose sum is computed wider than they are (S-1).
//!
//! Each slot has a list, sorted by rank, in one arena of fixed size. Lists are at most 63 long.

use crate::buffer::{Buffer, Egress};
use tally_kernels::{Kernels, MAX_WORKERS};
use tally_wire::{Element, Rank};

const NIL: u32 = u32::MAX;

/// A slot's list of held contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List(u32);

impl List {
    pub(crate) const EMPTY: Self = Self(NIL);

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == NIL
    }
}

struct Node<B> {
    buffer: Option<B>,
    rank: Rank,
    next: u32,
}

/// The arena of all lists of a shard.
pub(crate) struct Arena<B> {
    nodes: Box<[Node<B>]>,
    free: u32,
    in_use: u32,
}

impl<B> Arena<B> {
    pub(crate) fn new(capacity: u32) -> Self {
        let next_of = |i: u32| if i + 1 == capacity { NIL } else { i + 1 };
        Self {
            nodes: (0..capacity)
                .map(|i| Node {
                    buffer: None,
                    rank: Rank(0),
                    next: next_of(i),
                })
                .collect(),
            free: if capacity == 0 { NIL } else { 0 },
            in_use: 0,
        }
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Puts a contribution into the list; the buffer comes back when the arena is full. The rank
    /// is not in the list yet.
    pub(crate) fn insert(&mut self, list: &mut List, rank: Rank, buffer: B) -> Result<(), B> {
        let at = self.free;
        if at == NIL {
            return Err(buffer);
        }
        let mut before = NIL;
        let mut after = list.0;
        while after != NIL && self.nodes[after as usize].rank < rank {
            before = after;
            after = self.nodes[after as usize].next;
        }
        let node = &mut self.nodes[at as usize];
        self.free = node.next;
        *node = Node {
            buffer: Some(buffer),
            rank,
            next: after,
        };
        if before == NIL {
            list.0 = at;
        } else {
            self.nodes[before as usize].next = at;
        }
        self.in_use += 1;
        Ok(())
    }

    /// Takes the contribution of lowest rank out of the list if `wanted` says so.
    #[inline]
    pub(crate) fn take_first_if(
        &mut self,
        list: &mut List,
        wanted: impl FnOnce(Rank) -> bool,
    ) -> Option<(Rank, B)> {
        let node = self.nodes.get_mut(list.0 as usize)?;
        if !wanted(node.rank) {
            return None;
        }
        let buffer = node.buffer.take()?;
        let at = list.0;
        list.0 = node.next;
        node.next = self.free;
        self.free = at;
        self.in_use -= 1;
        Some((node.rank, buffer))
    }
}

impl<B: Buffer> Arena<B> {
    /// Sums all contributions of the list, in order of rank, and that of rank 0, `sum`, which becomes the
    /// sum; the list is empty then. Says whether an integer saturated.
    pub(crate) fn fold_narrow(
        &mut self,
        list: &mut List,
        element: Element,
        sum: &mut B,
        kernels: &Kernels,
        egress: &mut impl Egress<B>,
    ) -> bool {
        let mut payloads: [&[u8]; MAX_WORKERS as usize] = [&[]; MAX_WORKERS as usize];
        let mut count = 0;
        let mut at = list.0;
        while let Some(Node {
            buffer: Some(buffer),
            next,
            ..
        }) = self.nodes.get(at as usize)
        {
            payloads[count] = buffer.payload();
            count += 1;
            at = *next;
        }
        let saturated = fold_narrow(kernels, element, sum.payload_mut(), &payloads[..count]);
        while let Some((_, held)) = self.take_first_if(list, |_| true) {
            egress.discard(held);
        }
        saturated
    }
}

/// Sums the payloads of all ranks but 0 and that of rank 0, `sum`. Says whether an integer saturated.
pub(crate) fn fold_narrow(
    kernels: &Kernels,
    element: Element,
    sum: &mut [u8],
    payloads: &[&[u8]],
) -> bool {
    match element {
        Element::I16 => kernels.fold_i16(sum, payloads),
        Element::I8 => kernels.fold_i8(sum, payloads),
        Element::F16 => {
            kernels.fold_f16(sum, payloads);
            false
        }
        _ => {
            debug_assert_eq!(element, Element::Bf16);
            kernels.fold_bf16(sum, payloads);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_nodes_come_home() {
        let mut arena = Arena::new(5);
        let (mut a, mut b) = (List::EMPTY, List::EMPTY);
        assert_eq!(arena.insert(&mut b, Rank(1), 1), Ok(()));
        for rank in [7, 3, 5] {
            assert_eq!(arena.insert(&mut a, Rank(rank), rank), Ok(()));
        }
        assert_eq!(arena.insert(&mut b, Rank(0), 0), Ok(()));
        assert_eq!(arena.insert(&mut b, Rank(2), 99), Err(99), "full");
        assert_eq!(arena.take_first_if(&mut a, |r| r == Rank(5)), None);
        let mut drained = Vec::new();
        for list in [&mut a, &mut b] {
            while let Some((rank, value)) = arena.take_first_if(list, |_| true) {
                assert_eq!(rank.0, value);
                drained.push(value);
            }
            assert!(list.is_empty());
        }
        assert_eq!(drained, [3, 5, 7, 0, 1]);
        assert_eq!(arena.in_use(), 0);
        for rank in 0..5 {
            assert_eq!(arena.insert(&mut a, Rank(rank), rank), Ok(()));
        }
    }

    #[test]
    fn an_arena_of_nothing_is_always_full() {
        let mut arena = Arena::new(0);
        let mut list = List::EMPTY;
        assert_eq!(arena.insert(&mut list, Rank(1), ()), Err(()));
    }
}
