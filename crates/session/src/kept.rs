//! The results of the last two windows, for workers that lost theirs.
//!
//! The protocol asks for results up to two windows back. Sums that give the same bits again where
//! they are kept are not copied; all others go here, by their fragments' numbers.

use std::ops::Range;
use tally_wire::Element;

/// Windows of fragments whose results are there for others. Who lacks one has a result for none
/// that is a window later (W-2), and we have one for none that they have not sent: one would do.
/// Frames may be slow.
const WINDOWS: usize = 2;

/// Copies of results of the last two windows, by fragment, with their types.
pub(crate) struct ResultCache {
    payloads: Box<[u8]>,
    tags: Box<[Tag]>,
    payload_bytes: usize,
}

/// No fragment's number.
const NOTHING: u64 = u64::MAX;

/// Of which result a slot is.
#[derive(Clone, Copy)]
struct Tag {
    seq: u64,
    element: Element,
}

impl ResultCache {
    /// With places for two windows of `window`.
    pub(crate) fn new(window: u16, payload_bytes: usize) -> Self {
        let slots = (WINDOWS * usize::from(window)).next_power_of_two();
        let nothing = Tag {
            seq: NOTHING,
            element: Element::None,
        };
        Self {
            payloads: vec![0; slots * payload_bytes].into_boxed_slice(),
            tags: vec![nothing; slots].into_boxed_slice(),
            payload_bytes,
        }
    }

    /// How many fragments there is room for.
    pub(crate) fn fragments(&self) -> u64 {
        self.tags.len() as u64
    }

    fn slot(&self, seq: u64) -> (usize, Range<usize>) {
        let slot = seq as usize & (self.tags.len() - 1);
        let at = slot * self.payload_bytes;
        (slot, at..at + self.payload_bytes)
    }

    /// Copies a result.
    pub(crate) fn put(&mut self, seq: u64, element: Element, payload: &[u8]) {
        let (slot, range) = self.slot(seq);
        self.tags[slot] = Tag { seq, element };
        self.payloads[range].copy_from_slice(payload);
    }

    /// The place for a copy of an older result, unless that of a newer one is in it.
    pub(crate) fn room(&mut self, seq: u64, element: Element) -> Option<&mut [u8]> {
        let (slot, range) = self.slot(seq);
        let tag = &mut self.tags[slot];
        if tag.seq != NOTHING && tag.seq > seq {
            return None;
        }
        *tag = Tag { seq, element };
        Some(&mut self.payloads[range])
    }

    /// The copy of a result and its type, if there is one.
    pub(crate) fn get(&self, seq: u64) -> Option<(Element, &[u8])> {
        let (slot, range) = self.slot(seq);
        let tag = self.tags[slot];
        (tag.seq == seq).then(|| (tag.element, &self.payloads[range]))
    }
}
