//! Mbufs as the switch core's frames.

use crate::mbuf::{ChecksumState, Mbuf, Shares, free_bulk};
use tally_frame::Frame;

impl Frame for Mbuf {
    type Shares<'a> = Shares<'a>;

    #[inline]
    fn data(&self) -> &[u8] {
        self.data()
    }

    #[inline]
    fn data_mut(&mut self) -> Option<&mut [u8]> {
        self.data_mut()
    }

    #[inline]
    fn frame_bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn wire_frames(&self) -> usize {
        self.wire_frames()
    }

    #[inline]
    fn wire_bytes(&self) -> usize {
        self.wire_bytes()
    }

    #[inline]
    fn is_contiguous(&self) -> bool {
        self.is_contiguous()
    }

    #[inline]
    fn is_unique(&self) -> bool {
        self.is_unique()
    }

    #[inline]
    fn set_len(&mut self, bytes: usize) -> bool {
        self.set_len(bytes)
    }

    #[inline]
    fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.append(bytes)
    }

    #[inline]
    fn adj(&mut self, bytes: usize) -> bool {
        self.adj(bytes)
    }

    #[inline]
    fn share(&self) -> Self {
        self.share()
    }

    #[inline]
    fn share_many(&self, references: u16) -> Shares<'_> {
        self.share_many(references)
    }

    #[inline]
    fn chain(head: Self, tail: Self) -> Option<Self> {
        Self::chain(head, tail).ok()
    }

    #[inline]
    fn has_bad_checksum(&self) -> bool {
        self.ip_checksum() == ChecksumState::Bad || self.l4_checksum() == ChecksumState::Bad
    }

    #[inline]
    fn prefetch(&self) {
        self.prefetch(0);
    }

    #[inline]
    fn prefetch_descriptor(&self) {
        self.prefetch_descriptor();
    }

    #[inline]
    fn free_bulk(frames: &mut Vec<Self>) {
        free_bulk(frames);
    }
}
