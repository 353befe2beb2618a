//! What of a fragment has gone to the PS already, so that the rest can follow without being asked.
//!
//! Where slots are taken from one another, a fragment comes apart: some of its contributions found
//! no slot, or were evicted from one, and are with the PS; the others find one free and wait in it
//! for a last one that never comes, until the PS misses them (REMIND). The switch has seen all of
//! them pass. So it notes by fragment which ranks went to the PS, and a slot leaves as soon as what
//! it has and what went there are all (S-8).
//!
//! The note is a hint and no state of the sum: what it says has gone may have been lost on the way,
//! and then the PS asks as ever. That it is wrong costs a frame and never a result.

use tally_wire::FragmentId;

#[derive(Clone, Copy)]
struct Note {
    fragment: FragmentId,
    /// None: no note.
    ranks: u64,
}

/// Notes on the fragments of one job that its ring of results spans.
pub(crate) struct SentToPs {
    notes: Box<[Note]>,
    /// log2 of the number of shards, as in the ring.
    shift: u32,
}

impl SentToPs {
    /// Room for the last `fragments` fragments of the job, all shards together.
    pub(crate) fn new(fragments: u32, shift: u32) -> Self {
        let len = fragments.div_ceil(1 << shift).max(1).next_power_of_two();
        let none = Note {
            fragment: FragmentId(0),
            ranks: 0,
        };
        Self {
            notes: vec![none; len as usize].into_boxed_slice(),
            shift,
        }
    }

    #[inline]
    fn at(&self, fragment: FragmentId) -> usize {
        (fragment.0 >> self.shift) as usize & (self.notes.len() - 1)
    }

    /// The ranks of the fragment that went to the PS.
    #[inline]
    pub(crate) fn ranks(&self, fragment: FragmentId) -> u64 {
        let note = self.notes[self.at(fragment)];
        if note.fragment == fragment {
            note.ranks
        } else {
            0
        }
    }

    /// These went there. What was noted of a fragment two windows back is forgotten.
    #[inline]
    pub(crate) fn add(&mut self, fragment: FragmentId, ranks: u64) {
        let ranks = self.ranks(fragment) | ranks;
        self.notes[self.at(fragment)] = Note { fragment, ranks };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_add_up_by_fragment() {
        let mut e = SentToPs::new(8, 0);
        assert_eq!(e.ranks(FragmentId(0)), 0);
        e.add(FragmentId(3), 0b001);
        e.add(FragmentId(3), 0b100);
        e.add(FragmentId(4), 0b010);
        assert_eq!(e.ranks(FragmentId(3)), 0b101);
        assert_eq!(e.ranks(FragmentId(4)), 0b010);
        assert_eq!(e.ranks(FragmentId(11)), 0, "another one in its place");
    }

    #[test]
    fn a_later_fragment_takes_the_place_and_inherits_nothing() {
        let mut e = SentToPs::new(8, 0);
        e.add(FragmentId(3), 0b001);
        e.add(FragmentId(11), 0b010);
        assert_eq!(e.ranks(FragmentId(11)), 0b010);
        assert_eq!(e.ranks(FragmentId(3)), 0);
    }

    #[test]
    fn shards_share_the_span() {
        let mut e = SentToPs::new(8, 2);
        e.add(FragmentId(1), 0b1);
        e.add(FragmentId(5), 0b10);
        assert_eq!(e.ranks(FragmentId(1)), 0b1);
        assert_eq!(e.ranks(FragmentId(5)), 0b10);
    }
}
