//! What the parameter server holds of each fragment, in bounded memory.
//!
//! A ring indexed by fragment number, four windows long; with several servers, by the number
//! among the fragments of the part (P-6). Contributions can be under way for two
//! windows of fragments at most (W-2, seen from the slowest and from the fastest worker), and
//! results are kept for two more. A newer fragment that needs the slot of an older one evicts it:
//! by W-2 all workers have the older one's result.

use crate::lists::Lists;
use tally_kernels::{Kernels, MAX_WORKERS};
use tally_wire::{Element, Flags, FragmentId, Part, Time};

/// Rounds of asking: the first is REMIND alone; each period is twice the one before.
pub(super) const ROUNDS: usize = 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Collecting,
    Done,
}

/// Frames that a fragment has to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) remind: bool,
    /// Ranks to ask.
    pub(super) nack: u64,
    pub(super) result: bool,
}

/// How asking for a fragment went, from which [`Timeout`](super::timeout::Timeout) learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// How often REMIND was sent.
    pub(super) times: u8,
    /// How often it had been when the switch last gave something.
    pub(super) given: u8,
    /// The switch has said that it had nothing.
    pub(super) nothing: bool,
}

impl Asked {
    /// Takes note of a partial of contributions that were sent for the first time. Says whether
    /// they reached the switch after it had been asked.
    pub(super) fn was_too_early(&mut self) -> bool {
        let answered = self.nothing || (1..self.times).contains(&self.given);
        self.given = self.times;
        answered
    }
}

pub(super) struct Entry {
    pub(super) state: State,
    pub(super) fragment: FragmentId,
    pub(super) element: Element,
    pub(super) priority: u8,
    pub(super) overflow: bool,
    /// MARKED and COLLISION, as far as parts of it had them.
    pub(super) congestion: Flags,
    pub(super) asked: Asked,
    /// Ranks whose contributions are here.
    pub(super) have: u64,
    /// f32: ranks `0..folded` are in `sum`.
    folded: u8,
    /// The sum so far; none before the first integer contribution or rank 0's f32. Of sub-32-bit
    /// types the sum of all, once they are there.
    sum: Option<Box<[u8]>>,
    /// f32: contributions that came ahead of their turn. Sub-32-bit types: all.
    ahead: Vec<(u8, Box<[u8]>)>,
    pub(super) born: Time,
    /// When its round of asking began.
    pub(super) armed: Time,
    pub(super) pending: Pending,
    /// In the queue of slots that have something pending.
    pub(super) queued: bool,
}

impl Entry {
    fn free() -> Self {
        Self {
            state: State::Free,
            fragment: FragmentId(0),
            element: Element::None,
            priority: 0,
            overflow: false,
            congestion: Flags::NONE,
            asked: Asked::default(),
            have: 0,
            folded: 0,
            sum: None,
            ahead: Vec::new(),
            born: Time(0),
            armed: Time(0),
            pending: Pending::default(),
            queued: false,
        }
    }

    pub(super) fn result(&self) -> Option<&[u8]> {
        self.sum.as_deref().filter(|_| self.state == State::Done)
    }
}

/// What became of a partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// Something new.
    New,
    /// Nothing new.
    Duplicate,
    /// Overlaps with what is here, so that these ranks have to be asked for.
    Overlap { missing: u64 },
}

/// Slots for the fragments of a part, with windows of up to `window` fragments of all parts.
pub(super) fn slots(window: u16, part: Part) -> usize {
    let all = (4 * usize::from(window.max(1))).next_power_of_two();
    (all / usize::from(part.count())).max(1)
}

pub(super) struct Table {
    pub(super) entries: Box<[Entry]>,
    pub(super) lists: Lists<ROUNDS>,
    part: Part,
    payload_bytes: usize,
    spare: Vec<Box<[u8]>>,
    kernels: Kernels,
}

impl Table {
    /// For workers with windows of up to `window` fragments.
    pub(super) fn new(window: u16, payload_bytes: usize, kernels: Kernels, part: Part) -> Self {
        let slots = slots(window, part);
        Self {
            part,
            entries: (0..slots).map(|_| Entry::free()).collect(),
            lists: Lists::new(slots),
            payload_bytes,
            spare: Vec::new(),
            kernels,
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    fn slot(&self, fragment: FragmentId) -> usize {
        self.part.number(fragment) as usize & (self.entries.len() - 1)
    }

    /// The slot that holds `fragment`.
    pub(super) fn find(&self, fragment: FragmentId) -> Option<usize> {
        let slot = self.slot(fragment);
        let entry = &self.entries[slot];
        (entry.state != State::Free && entry.fragment == fragment).then_some(slot)
    }

    /// The slot for `fragment`, taken now if it has none; `None` when it is older than what the
    /// slot holds.
    pub(super) fn find_or_take(
        &mut self,
        now: Time,
        fragment: FragmentId,
        element: Element,
        priority: u8,
    ) -> Option<usize> {
        let slot = self.slot(fragment);
        let entry = &self.entries[slot];
        if entry.state != State::Free {
            if entry.fragment == fragment {
                return Some(slot);
            }
            // Behind, but by no more than frames can be late: anything else is a fragment from
            // before half a turn of the numbers.
            let behind = i64::from(entry.fragment.ahead_of(fragment));
            let span = self.entries.len() as i64 * i64::from(self.part.count());
            if (1..=2 * span).contains(&behind) {
                return None;
            }
            self.free(slot);
        }
        let entry = &mut self.entries[slot];
        *entry = Entry {
            state: State::Collecting,
            fragment,
            element,
            priority,
            born: now,
            armed: now,
            queued: entry.queued,
            ahead: core::mem::take(&mut entry.ahead),
            ..Entry::free()
        };
        self.lists.push(0, slot);
        Some(slot)
    }

    pub(super) fn free(&mut self, slot: usize) {
        self.lists.remove(slot);
        self.drop_ahead(slot);
        let entry = &mut self.entries[slot];
        entry.state = State::Free;
        entry.have = 0;
        entry.folded = 0;
        entry.pending = Pending::default();
        self.spare.extend(entry.sum.take());
    }

    fn drop_ahead(&mut self, slot: usize) {
        let ahead = self.entries[slot].ahead.drain(..);
        self.spare.extend(ahead.map(|(_, payload)| payload));
    }

    fn buffer_with(&mut self, payload: &[u8]) -> Box<[u8]> {
        match self.spare.pop() {
            Some(mut buffer) => {
                buffer.copy_from_slice(payload);
                buffer
            }
            None => payload.into(),
        }
    }

    /// Combines a partial with what the slot holds (P-1). `payload` has the table's length and
    /// the entry's element type.
    pub(super) fn merge(&mut self, slot: usize, bitmap: u64, payload: &[u8]) -> Merged {
        let element = self.entries[slot].element;
        if element.is_narrow() {
            self.merge_narrow(slot, bitmap, payload)
        } else if element.is_ordered() {
            self.merge_ordered(slot, bitmap, payload)
        } else {
            self.merge_unordered(slot, bitmap, payload)
        }
    }

    fn merge_unordered(&mut self, slot: usize, bitmap: u64, payload: &[u8]) -> Merged {
        let entry = &mut self.entries[slot];
        if entry.have & bitmap != 0 {
            return match bitmap & !entry.have {
                0 => Merged::Duplicate,
                missing => Merged::Overlap { missing },
            };
        }
        entry.have |= bitmap;
        match &mut entry.sum {
            Some(sum) if entry.element == Element::I32 => {
                entry.overflow |= self.kernels.sum_i32(sum, payload);
            }
            Some(sum) => self.kernels.max_u8(sum, payload),
            None => {
                let buffer = self.buffer_with(payload);
                self.entries[slot].sum = Some(buffer);
            }
        }
        Merged::New
    }

    /// f32. A bitmap is one rank or a fold of ranks 0..k (H-3), so the longer fold wins: it has
    /// the same bits wherever it was made.
    fn merge_ordered(&mut self, slot: usize, bitmap: u64, payload: &[u8]) -> Merged {
        let entry = &mut self.entries[slot];
        let ranks = bitmap.trailing_ones() as u8;
        if ranks == 0 {
            let rank = bitmap.trailing_zeros() as u8;
            if entry.have >> rank & 1 == 1 {
                return Merged::Duplicate;
            }
            let buffer = self.buffer_with(payload);
            self.entries[slot].ahead.push((rank, buffer));
        } else {
            if ranks <= entry.folded {
                return Merged::Duplicate;
            }
            entry.folded = ranks;
            match &mut entry.sum {
                Some(sum) => sum.copy_from_slice(payload),
                None => {
                    let buffer = self.buffer_with(payload);
                    self.entries[slot].sum = Some(buffer);
                }
            }
        }
        let entry = &mut self.entries[slot];
        entry.have |= bitmap;
        // Fold what has its turn now; forget what the fold has swallowed.
        if let Some(sum) = &mut entry.sum {
            while let Some(at) = entry.ahead.iter().position(|a| a.0 <= entry.folded) {
                let (rank, payload) = entry.ahead.swap_remove(at);
                if rank == entry.folded {
                    self.kernels.sum_f32(sum, &payload);
                    entry.folded += 1;
                }
                self.spare.push(payload);
            }
        }
        Merged::New
    }

    /// Merges sub-32-bit types. A bitmap is one rank or all of the job: the caller has made sure.
    fn merge_narrow(&mut self, slot: usize, bitmap: u64, payload: &[u8]) -> Merged {
        if self.entries[slot].have & bitmap == bitmap {
            return Merged::Duplicate;
        }
        let buffer = self.buffer_with(payload);
        let entry = &mut self.entries[slot];
        if bitmap.is_power_of_two() {
            entry.ahead.push((bitmap.trailing_zeros() as u8, buffer));
        } else {
            entry.sum = Some(buffer);
        }
        entry.have |= bitmap;
        Merged::New
    }

    /// Sums the contributions of all ranks, unless their sum came from the switch.
    fn fold_narrow(&mut self, slot: usize) {
        let entry = &mut self.entries[slot];
        if entry.sum.is_some() {
            return;
        }
        entry.ahead.sort_unstable_by_key(|&(rank, _)| rank);
        let Some(((_, sum), rest)) = entry.ahead.split_first_mut() else {
            return;
        };
        let mut payloads: [&[u8]; MAX_WORKERS as usize] = [&[]; MAX_WORKERS as usize];
        for (to, (_, payload)) in payloads.iter_mut().zip(&*rest) {
            *to = payload;
        }
        let payloads = &payloads[..rest.len()];
        entry.overflow |= match entry.element {
            Element::I16 => self.kernels.fold_i16(sum, payloads),
            Element::I8 => self.kernels.fold_i8(sum, payloads),
            Element::F16 => {
                self.kernels.fold_f16(sum, payloads);
                false
            }
            _ => {
                self.kernels.fold_bf16(sum, payloads);
                false
            }
        };
        entry.sum = Some(entry.ahead.swap_remove(0).1);
    }

    /// Marks the slot's fragment complete: all contributions are there.
    pub(super) fn complete(&mut self, slot: usize) {
        if self.entries[slot].element.is_narrow() {
            self.fold_narrow(slot);
        }
        self.close(slot);
    }

    fn close(&mut self, slot: usize) {
        self.lists.remove(slot);
        self.drop_ahead(slot);
        let entry = &mut self.entries[slot];
        entry.state = State::Done;
        entry.pending = Pending {
            result: true,
            ..Pending::default()
        };
    }
}

#[cfg(test)]
mod tests;
