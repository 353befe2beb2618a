//! The results of the last two windows, for workers that lost theirs.
//!
//! The protocol asks for results up to two windows back. Who keeps sums where they give the same bits again
//! copies none; all others go here, by their fragments' numbers.

use std::ops::Range;
use tally_wire::Element;

/// Windows of fragments whose results are there for others. Who lacks one has a result for none that is a
/// window later (W-2), and we have one for none that they have not sent: one would do. Frames may be slow.
const WINDOWS: usize = 2;

/// How many fragments' results are there for others, with a window of `window`.
pub(crate) fn fragments(window: u16) -> usize {
    WINDOWS * usize::from(window)
}

/// The results of the last two windows, by fragment: their types, and as they came if they were copied.
pub(crate) struct Kept {
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
    copied: bool,
}

impl Kept {
    /// With places for two windows of `window`.
    pub(crate) fn new(window: u16, payload_bytes: usize) -> Self {
        let slots = fragments(window).next_power_of_two();
        let nothing = Tag {
            seq: NOTHING,
            element: Element::None,
            copied: false,
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

    /// Takes note of a result, with a copy of it or not.
    pub(crate) fn put(&mut self, seq: u64, element: Element, copy: Option<&[u8]>) {
        let (slot, range) = self.slot(seq);
        let copied = copy.is_some();
        self.tags[slot] = Tag {
            seq,
            element,
            copied,
        };
        if let Some(payload) = copy {
            self.payloads[range].copy_from_slice(payload);
        }
    }

    /// The place for a copy of an older result, unless that of a newer one is in it.
    pub(crate) fn room(&mut self, seq: u64, element: Element) -> Option<&mut [u8]> {
        let (slot, range) = self.slot(seq);
        let tag = &mut self.tags[slot];
        if tag.seq != NOTHING && tag.seq > seq {
            return None;
        }
        *tag = Tag {
            seq,
            element,
            copied: true,
        };
        Some(&mut self.payloads[range])
    }

    /// The result's type, and its copy if there is one.
    pub(crate) fn get(&self, seq: u64) -> Option<(Element, Option<&[u8]>)> {
        let (slot, range) = self.slot(seq);
        let tag = self.tags[slot];
        (tag.seq == seq).then(|| (tag.element, tag.copied.then(|| &self.payloads[range])))
    }
}
