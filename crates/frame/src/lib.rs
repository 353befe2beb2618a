//! A frame in packet memory, as the switch core sees it.
//!
//! The core runs on any memory: DPDK's mbufs, the simulator's frames, the fuzz target's bytes. A
//! [`Frame`] is one owned reference. Dropping it gives the reference back.

/// A frame in packet memory: one reference, owned.
pub trait Frame: Sized {
    /// References that [`share_many`](Self::share_many) makes.
    type Shares<'a>: Iterator<Item = Self>
    where
        Self: 'a;

    /// The bytes of the first segment, from Ethernet on.
    fn data(&self) -> &[u8];

    /// The bytes of the first segment, to be written; `None` if it is shared, or the frame has
    /// several and is no superframe.
    fn data_mut(&mut self) -> Option<&mut [u8]>;

    /// Bytes in all segments.
    fn frame_bytes(&self) -> usize;

    /// Frames that it is on a wire: several if it is a superframe.
    #[inline]
    fn wire_frames(&self) -> usize {
        1
    }

    /// Bytes of the longest frame that it is on a wire.
    #[inline]
    fn wire_bytes(&self) -> usize {
        self.frame_bytes()
    }

    /// Whether it has one segment.
    fn is_contiguous(&self) -> bool;

    /// Whether this is the only reference.
    fn is_unique(&self) -> bool;

    /// Sets the length; `false` if the frame is shared, has several segments or no room.
    fn set_len(&mut self, bytes: usize) -> bool;

    /// Adds bytes at the end, with any contents; `None` if there is no room.
    fn append(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Cuts bytes off at the front; `false` if it has fewer.
    fn adj(&mut self, bytes: usize) -> bool;

    /// One more reference to the same bytes.
    fn share(&self) -> Self;

    /// `n` more references, counted at once.
    fn share_many(&self, references: u16) -> Self::Shares<'_>;

    /// `head` with `tail` behind it, as one frame of two segments; `None` if that is too many.
    fn chain(head: Self, tail: Self) -> Option<Self>;

    /// Whether the port's hardware found a checksum wrong.
    fn has_bad_checksum(&self) -> bool {
        false
    }

    /// Fetches the headers into the cache.
    fn prefetch(&self) {}

    /// Fetches the descriptor into the cache, of a frame that another core wrote.
    fn prefetch_descriptor(&self) {}

    /// What is to be summed: the bytes from `at` on.
    #[inline]
    fn elements(&self, at: usize) -> &[u8] {
        &self.data()[at..]
    }

    /// What is summed into: the bytes from `at` on; `None` as for [`data_mut`](Self::data_mut).
    #[inline]
    fn elements_mut(&mut self, at: usize) -> Option<&mut [u8]> {
        self.data_mut().map(|data| &mut data[at..])
    }

    /// Gives frames back to their pools, in bulk.
    fn free_bulk(frames: &mut Vec<Self>) {
        frames.clear();
    }
}
