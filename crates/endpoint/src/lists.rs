//! Lists over a fixed set of slots, for timers in constant time.
//!
//! Entries that share a timeout expire in the order in which they were armed. So one list for
//! every timeout in use, appended to at the tail, is sorted without sorting: the head expires
//! first. Links are kept beside the slots, so that moving a slot allocates nothing.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
    /// The list that the slot is in, or `L`.
    list: u8,
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

/// `L` doubly linked lists; every slot is in one of them or in none.
pub(crate) struct Lists<const L: usize> {
    links: Box<[Link]>,
    ends: [Ends; L],
}

impl<const L: usize> Lists<L> {
    pub(crate) fn new(slots: usize) -> Self {
        const { assert!(L < u8::MAX as usize) };
        assert!(slots < NONE as usize);
        let out = Link {
            prev: NONE,
            next: NONE,
            list: L as u8,
        };
        let empty = Ends {
            head: NONE,
            tail: NONE,
        };
        Self {
            links: vec![out; slots].into_boxed_slice(),
            ends: [empty; L],
        }
    }

    /// The list that `slot` is in.
    pub(crate) fn list_of(&self, slot: usize) -> Option<usize> {
        let list = usize::from(self.links[slot].list);
        (list < L).then_some(list)
    }

    pub(crate) fn head(&self, list: usize) -> Option<usize> {
        let head = self.ends[list].head;
        (head != NONE).then_some(head as usize)
    }

    /// Appends `slot`, which must be in no list.
    pub(crate) fn push(&mut self, list: usize, slot: usize) {
        debug_assert_eq!(self.list_of(slot), None);
        let tail = self.ends[list].tail;
        self.links[slot] = Link {
            prev: tail,
            next: NONE,
            list: list as u8,
        };
        if tail == NONE {
            self.ends[list].head = slot as u32;
        } else {
            self.links[tail as usize].next = slot as u32;
        }
        self.ends[list].tail = slot as u32;
    }

    /// Takes `slot` out of the list that it is in, if any.
    pub(crate) fn remove(&mut self, slot: usize) {
        let Some(list) = self.list_of(slot) else {
            return;
        };
        let Link { prev, next, .. } = self.links[slot];
        if prev == NONE {
            self.ends[list].head = next;
        } else {
            self.links[prev as usize].next = next;
        }
        if next == NONE {
            self.ends[list].tail = prev;
        } else {
            self.links[next as usize].prev = prev;
        }
        self.links[slot].list = L as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_vectors_do(steps in prop::collection::vec((0usize..8, 0usize..4), 0..200)) {
            let mut lists = Lists::<3>::new(8);
            let mut model: [Vec<usize>; 3] = Default::default();
            for (slot, list) in steps {
                lists.remove(slot);
                model.iter_mut().for_each(|l| l.retain(|&s| s != slot));
                if list < 3 {
                    lists.push(list, slot);
                    model[list].push(slot);
                }
                for (i, want) in model.iter().enumerate() {
                    prop_assert_eq!(lists.head(i), want.first().copied());
                    for &s in want {
                        prop_assert_eq!(lists.list_of(s), Some(i));
                    }
                }
            }
            for (i, want) in model.iter().enumerate() {
                for &s in want {
                    prop_assert_eq!(lists.head(i), Some(s));
                    lists.remove(s);
                }
                prop_assert_eq!(lists.head(i), None);
            }
        }
    }
}
