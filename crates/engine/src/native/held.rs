//! Contributions that came ahead of their turn, for element types whose sum has an order, and all
//! but rank 0's of those whose sum is computed wider than they are (S-1).
//!
//! Each slot has a list, sorted by rank, in one arena of fixed size. Lists are at most 63 long.
//!
//! A job takes a node from its own minimum first, then from those that no job is guaranteed. A held
//! contribution cannot be evicted, so the minimums of jobs that do not run are reserved, too.

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

/// Whose minimum a held contribution is counted against: a job's index in the pool's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u16);

/// What an owner holds, and the nodes that are reserved for it.
#[derive(Clone, Copy)]
struct Quota {
    held: u32,
    min: u32,
}

struct Node<B> {
    buffer: Option<B>,
    next: u32,
    owner: Owner,
    rank: Rank,
}

/// The arena of all lists of a shard.
pub(crate) struct Arena<B> {
    nodes: Box<[Node<B>]>,
    free: u32,
    in_use: u32,
    /// By owner.
    quotas: Box<[Quota]>,
    /// Free nodes less those that are reserved. Below 0 after minimums were raised that others
    /// still use: the nodes become free as theirs are summed.
    unreserved: i64,
}

impl<B> Arena<B> {
    /// `minimums` are by the jobs' indexes, together at most `capacity`.
    pub(crate) fn with_minimums(capacity: u32, minimums: impl Iterator<Item = u32>) -> Self {
        let next_of = |i: u32| if i + 1 == capacity { NIL } else { i + 1 };
        let quotas: Box<[Quota]> = minimums.map(|min| Quota { held: 0, min }).collect();
        let reserved: u32 = quotas.iter().map(|quota| quota.min).sum();
        Self {
            nodes: (0..capacity)
                .map(|i| Node {
                    buffer: None,
                    next: next_of(i),
                    owner: Owner(0),
                    rank: Rank(0),
                })
                .collect(),
            free: if capacity == 0 { NIL } else { 0 },
            in_use: 0,
            quotas,
            unreserved: i64::from(capacity) - i64::from(reserved),
        }
    }

    /// Sets the minimums, by the jobs' indexes. What is held stays.
    pub(crate) fn set_minimums(&mut self, minimums: impl Iterator<Item = u32>) {
        let free = self.nodes.len() as i64 - i64::from(self.in_use);
        let mut reserved = 0;
        for (quota, min) in self.quotas.iter_mut().zip(minimums) {
            quota.min = min;
            reserved += i64::from(min.saturating_sub(quota.held));
        }
        self.unreserved = free - reserved;
    }

    /// The owner of what the `index`-th job of the pool's configuration holds.
    pub(crate) fn owner(&self, index: usize) -> Owner {
        assert!(index < self.quotas.len(), "a job without a quota");
        Owner(index as u16)
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Puts a contribution into the list; the buffer comes back when the owner has its minimum and
    /// all other free nodes are reserved, or no node is free. The rank is not in the list yet.
    pub(crate) fn insert(
        &mut self,
        list: &mut List,
        owner: Owner,
        rank: Rank,
        buffer: B,
    ) -> Result<(), B> {
        let quota = &mut self.quotas[usize::from(owner.0)];
        let is_reserved = quota.held < quota.min;
        if self.free == NIL || !is_reserved && self.unreserved <= 0 {
            return Err(buffer);
        }
        self.unreserved -= i64::from(!is_reserved);
        quota.held += 1;
        let at = self.free;
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
            next: after,
            owner,
            rank,
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
        let quota = &mut self.quotas[usize::from(node.owner.0)];
        quota.held -= 1;
        self.unreserved += i64::from(quota.held >= quota.min);
        Some((node.rank, buffer))
    }
}

impl<B: Buffer> Arena<B> {
    /// Sums all contributions of the list, in order of rank, and that of rank 0, `sum`, which
    /// becomes the sum; the list is empty then. Says whether an integer saturated.
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

/// Sums the payloads of all ranks but 0 and that of rank 0, `sum`. Says whether an integer
/// saturated.
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
        Element::Bf16 => {
            kernels.fold_bf16(sum, payloads);
            false
        }
        _ => unreachable!("{element:?} is not narrow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_nodes_come_home() {
        let mut arena = Arena::with_minimums(5, [0].into_iter());
        let own = arena.owner(0);
        let (mut a, mut b) = (List::EMPTY, List::EMPTY);
        assert_eq!(arena.insert(&mut b, own, Rank(1), 1), Ok(()));
        for rank in [7, 3, 5] {
            assert_eq!(arena.insert(&mut a, own, Rank(rank), rank), Ok(()));
        }
        assert_eq!(arena.insert(&mut b, own, Rank(0), 0), Ok(()));
        assert_eq!(arena.insert(&mut b, own, Rank(2), 99), Err(99), "full");
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
            assert_eq!(arena.insert(&mut a, own, Rank(rank), rank), Ok(()));
        }
    }

    #[test]
    fn an_arena_of_nothing_is_always_full() {
        let mut arena = Arena::with_minimums(0, [0].into_iter());
        let mut list = List::EMPTY;
        let own = arena.owner(0);
        assert_eq!(arena.insert(&mut list, own, Rank(1), ()), Err(()));
    }

    #[test]
    fn a_minimum_that_is_raised_is_there_as_soon_as_others_free_nodes() {
        let mut arena = Arena::with_minimums(4, [0, 0].into_iter());
        let [first, second] = [0, 1].map(|index| arena.owner(index));
        let mut lists = [List::EMPTY; 2];
        for rank in 0..4 {
            assert_eq!(arena.insert(&mut lists[0], first, Rank(rank), rank), Ok(()));
        }
        arena.set_minimums([0, 2].into_iter());
        assert_eq!(arena.insert(&mut lists[1], second, Rank(0), 9), Err(9));
        assert!(arena.take_first_if(&mut lists[0], |_| true).is_some());
        assert_eq!(
            arena.insert(&mut lists[0], first, Rank(0), 0),
            Err(0),
            "what becomes free is the second one's"
        );
        assert_eq!(arena.insert(&mut lists[1], second, Rank(0), 0), Ok(()));
        assert!(arena.take_first_if(&mut lists[0], |_| true).is_some());
        assert_eq!(arena.insert(&mut lists[1], second, Rank(1), 1), Ok(()));
        arena.set_minimums([0, 0].into_iter());
        for list in &mut lists {
            while arena.take_first_if(list, |_| true).is_some() {}
        }
        for rank in 0..4 {
            assert_eq!(arena.insert(&mut lists[0], first, Rank(rank), rank), Ok(()));
        }
    }

    #[test]
    fn a_minimum_is_reserved_and_the_rest_is_first_come_first_served() {
        let mut arena = Arena::with_minimums(8, [3, 1, 0].into_iter());
        let [first, second, third] = [0, 1, 2].map(|index| arena.owner(index));
        let mut lists = [List::EMPTY; 3];
        let fill = |arena: &mut Arena<()>, list: &mut List, owner| {
            let fits = |&rank: &u8| arena.insert(list, owner, Rank(rank), ()).is_ok();
            (0..).take_while(fits).count()
        };
        assert_eq!(fill(&mut arena, &mut lists[2], third), 4, "8 less 3 and 1");
        assert_eq!(fill(&mut arena, &mut lists[1], second), 1);
        assert_eq!(fill(&mut arena, &mut lists[0], first), 3);
        assert_eq!(arena.in_use(), 8);
        // A node that was of a minimum is reserved again, any other is anyone's.
        for (at, others_get) in [(0, 0), (1, 0), (2, 1)] {
            arena.take_first_if(&mut lists[at], |_| true).unwrap();
            let other = [second, first, first][at];
            let mut list = List::EMPTY;
            assert_eq!(fill(&mut arena, &mut list, other), others_get, "{at}");
            while arena.take_first_if(&mut list, |_| true).is_some() {}
            let own = [first, second, third][at];
            assert_eq!(fill(&mut arena, &mut lists[at], own), 1, "{at}");
        }
    }
}
