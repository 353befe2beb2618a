//! Superframes: frames that become several where they are cut.
//!
//! How a frame is to be cut travels in its descriptor, in the fields in which DPDK keeps it for
//! what a NIC has joined (`RTE_MBUF_F_RX_LRO`, `tso_segsz`), so pools reset it and copies have it.
//! The catch: of the lengths of headers DPDK has one for each layer, and we use one for all.

use super::Mbuf;
use dpdk_sys as sys;
use std::mem::ManuallyDrop;

/// Bits of a field of `tx_offload`.
const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

const HEADERS_BYTES_MAX: u64 = mask(sys::TALLY_L3_LEN_BITS);
const SEGMENT_BYTES_MAX: u64 = mask(sys::TALLY_TSO_SEGSZ_BITS);
const _: () = assert!(SEGMENT_BYTES_MAX >= u16::MAX as u64);

/// How a superframe is cut: each frame has the headers, and a part of what is behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of the headers: 511 at most.
    pub headers_bytes: u16,
    /// Bytes of each part but the last; at least 1.
    pub segment_bytes: u16,
}

impl Mbuf {
    /// How the frame is to be cut, if it is a superframe.
    #[inline]
    #[must_use]
    pub fn cut(&self) -> Option<Cut> {
        if self.is_superframe() {
            self.read_cut()
        } else {
            None
        }
    }

    /// Whether the frame is to be cut.
    #[inline]
    #[must_use]
    pub fn is_superframe(&self) -> bool {
        field!(self, ol_flags) & sys::TALLY_RX_LRO != 0
    }

    fn read_cut(&self) -> Option<Cut> {
        let lengths = field!(self, tx_offload);
        let cut = Cut {
            headers_bytes: (lengths >> sys::TALLY_L3_LEN_BIT & HEADERS_BYTES_MAX) as u16,
            segment_bytes: (lengths >> sys::TALLY_TSO_SEGSZ_BIT & SEGMENT_BYTES_MAX) as u16,
        };
        (cut.segment_bytes > 0).then_some(cut)
    }

    /// Says how the frame is to be cut. `false`, and no change, if it is shared, or a length is out
    /// of range.
    #[must_use]
    pub fn set_cut(&mut self, cut: Cut) -> bool {
        let headers_bytes = u64::from(cut.headers_bytes);
        if !self.is_unique() || headers_bytes > HEADERS_BYTES_MAX || cut.segment_bytes == 0 {
            return false;
        }
        let lengths = headers_bytes << sys::TALLY_L3_LEN_BIT
            | u64::from(cut.segment_bytes) << sys::TALLY_TSO_SEGSZ_BIT;
        let raw = self.0.as_ptr();
        // SAFETY: the descriptor is valid, ours is the only reference, and `self` is borrowed
        // mutably, so no other code looks at these fields.
        unsafe {
            *sys::rte_mbuf::tx_offload(raw) = lengths;
            *sys::rte_mbuf::ol_flags(raw) |= sys::TALLY_RX_LRO;
        }
        true
    }

    /// Frames that it becomes: 1 of an ordinary one.
    #[inline]
    #[must_use]
    pub fn wire_frames(&self) -> usize {
        self.cut().map_or(1, |cut| {
            let payload = self.len().saturating_sub(cut.headers_bytes.into());
            payload.div_ceil(cut.segment_bytes.into()).max(1)
        })
    }

    /// Bytes of the longest frame that it becomes: its own length, of an ordinary one.
    #[inline]
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.cut().map_or(self.len(), |cut| {
            let longest = usize::from(cut.headers_bytes) + usize::from(cut.segment_bytes);
            longest.min(self.len())
        })
    }

    /// One frame of many: the bytes of `head`, then those of each of `tails`, without a copy.
    ///
    /// # Errors
    ///
    /// What was chained before the first of `tails` that is shared or in several segments; that
    /// one and those behind it are dropped. `head` alone, if it is itself so.
    pub fn chain_all(head: Self, tails: impl Iterator<Item = Self>) -> Result<Self, Self> {
        if !head.is_resizable() {
            return Err(head);
        }
        let mut last = head.0;
        for tail in tails {
            let segments = field!(head, nb_segs);
            if !tail.is_resizable() || segments == u16::MAX {
                return Err(head);
            }
            let bytes = head.len() + tail.len();
            let Ok(bytes) = u32::try_from(bytes) else {
                return Err(head);
            };
            // The chain's reference to the tail is what `tail` was.
            let tail = ManuallyDrop::new(tail).0;
            let raw = head.0.as_ptr();
            // SAFETY: the buffers are valid. `head`, which we own, is the only reference to the
            // frame, whose last segment is `last`; it was the only one to itself when it was added,
            // and no other code looks at these fields. `tail` is another buffer, since ours was the
            // only reference to it, and of one segment, so its `next` is null and ends the chain.
            unsafe {
                *sys::rte_mbuf::next(last.as_ptr()) = tail.as_ptr();
                *sys::rte_mbuf::nb_segs(raw) = segments + 1;
                *sys::rte_mbuf::pkt_len(raw) = bytes;
            }
            last = tail;
        }
        Ok(head)
    }
}
