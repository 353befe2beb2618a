//! A frame: an owned DPDK buffer.
//!
//! # How it works
//!
//! An [`Mbuf`] is one pointer and owns one reference to the buffer behind it. The bytes of a frame
//! and its lengths may be changed only while that reference is the only one; [`Mbuf::share`]
//! makes a second, after which both can be read and sent, and neither changed until the
//! other is gone. So a result that leaves on eight ports is written once and shared seven times.
//!
//! All accessors are plain loads and stores on DPDK's structure: no call per packet.
//!
//! # The catches
//!
//! - A frame may consist of several segments: the NIC made it so, or [`Mbuf::chain`] did.
//!   [`Mbuf::data`] is the first, [`Mbuf::parts`] are all; see [`Mbuf::is_contiguous`] and
//!   [`Mbuf::linearize`]. Each segment counts its own references, so headers of one frame can stand
//!   in front of a payload that many frames have.
//! - Bytes that [`Mbuf::append`] and [`Mbuf::prepend`] add hold the buffer's former contents, which
//!   may be another frame's: write them all before sending.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk_sys as sys;

use crate::port_info::PortId;

/// Half of the counter's range, as in `Arc`: so many threads can't add one each at once.
const REFERENCES_MAX: u16 = u16::MAX / 2;

/// A frame. Dropping it gives the buffer back to the pool that it came from, once no other frame
/// shares it.
///
/// It may be moved to other threads, but is not `Sync`: two threads that share a frame have
/// an `Mbuf` each.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: a buffer may be used and freed on any thread; pools are made for many producers. The
// only thing that another thread may do with the same buffer at the same time is through its own
// reference, and then all either does is read, or change the atomic reference count.
unsafe impl Send for Mbuf {}

const _: () = assert!(size_of::<Mbuf>() == size_of::<*mut sys::rte_mbuf>());
const _: () = assert!(size_of::<Option<Mbuf>>() == size_of::<Mbuf>());

/// What the NIC says about a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// Nothing: the driver doesn't check, or the frame has none that it knows of.
    Unknown,
    /// It is wrong.
    Bad,
    /// It is right.
    Good,
    /// The field in the frame is not filled in, but the data is known to be intact (a frame from
    /// a virtual machine on the same host).
    NotFilledIn,
}

/// Reads a field of the descriptor other than the reference count. By place, never through a
/// reference to the whole: that would claim that the count, too, doesn't change meanwhile.
macro_rules! field {
    ($mbuf:expr, $name:ident) => {
        // SAFETY: the buffer is valid while a reference to it is held. No code writes to this field
        // while the `Mbuf` is borrowed: all writes go through `&mut` to the only reference.
        unsafe { *sys::rte_mbuf::$name($mbuf.0.as_ptr()) }
    };
}

mod superframe;

pub use superframe::Cut;

impl Mbuf {
    /// Takes over one reference.
    ///
    /// # Safety
    ///
    /// `raw` is a valid buffer, and one of its references is the caller's to give.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// The descriptor, to be read.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *const sys::rte_mbuf {
        self.0.as_ptr()
    }

    /// Where the first segment's data is in its buffer: offset and length in bytes.
    #[inline]
    fn span(&self) -> (usize, usize) {
        (
            usize::from(field!(self, data_off)),
            usize::from(field!(self, data_len)),
        )
    }

    #[inline]
    fn capacity(&self) -> usize {
        usize::from(field!(self, buf_len))
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        field!(self, buf_addr).cast()
    }

    /// Whether lengths may be changed: unshared and of one segment.
    #[inline]
    fn is_resizable(&self) -> bool {
        self.is_unique() && self.is_contiguous()
    }

    /// Moves the ends of the frame, which is resizable.
    #[inline]
    fn set_span(&mut self, offset: usize, bytes: usize) {
        debug_assert!(self.is_resizable() && offset + bytes <= self.capacity());
        let raw = self.0.as_ptr();
        // SAFETY: the buffer is valid, ours is the only reference, and `self` is borrowed mutably,
        // so no other code looks at these fields. Both numbers fit: they are within a capacity of
        // 16 bits.
        unsafe {
            *sys::rte_mbuf::data_off(raw) = offset as u16;
            *sys::rte_mbuf::data_len(raw) = bytes as u16;
            *sys::rte_mbuf::pkt_len(raw) = bytes as u32;
        }
    }

    #[inline]
    fn references(&self) -> &AtomicU16 {
        // SAFETY: the field is valid and aligned for as long as `self` is borrowed, and all
        // accesses to it while it may be shared are atomic, DPDK's as well.
        unsafe { AtomicU16::from_ptr(sys::rte_mbuf::refcnt(self.0.as_ptr())) }
    }

    /// Length of the whole frame in bytes, over all segments.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        field!(self, pkt_len) as usize
    }

    /// Whether the frame has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of segments: 1 unless the frame was longer than a buffer of its pool.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> usize {
        usize::from(field!(self, nb_segs))
    }

    /// Whether [`Mbuf::data`] is the whole frame.
    #[inline]
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        field!(self, nb_segs) == 1
    }

    /// The bytes of the first segment.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let (offset, bytes) = self.span();
        // SAFETY: offset and length describe a part of the buffer: drivers set them so, and so do
        // we. The memory was mapped zeroed, so every byte has a value. It is not written to while
        // `self` is borrowed: writing takes `&mut` to the only reference.
        unsafe { slice::from_raw_parts(self.start().add(offset), bytes) }
    }

    /// The bytes of the first segment, to be changed; `None` while the frame is shared.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        let (offset, bytes) = self.span();
        // SAFETY: as in `data`. Ours is the only reference, and others are only made from `self`,
        // which is borrowed mutably for as long as the slice: so there is no other way to the
        // bytes.
        Some(unsafe { slice::from_raw_parts_mut(self.start().add(offset), bytes) })
    }

    /// Whether this is the only reference to the frame, so that it may be changed.
    #[inline]
    #[must_use]
    pub fn is_unique(&self) -> bool {
        // Acquire: what the other holders read, they have read before we write. It pairs with the
        // release in their drop.
        self.references().load(Ordering::Acquire) == 1
    }

    /// Another reference to the same frame. Until one of the two is dropped or sent and done with,
    /// both can only be read.
    ///
    /// # Panics
    ///
    /// If there are 32 767 references already.
    #[inline]
    #[must_use]
    pub fn share(&self) -> Self {
        self.retain_frame(1);
        Self(self.0)
    }

    /// As many references to the same frame as [`share`](Self::share) would give in `n` calls, for
    /// the price of one.
    ///
    /// # Panics
    ///
    /// If there would be more than 32 767 references.
    #[inline]
    #[must_use]
    pub fn share_many(&self, n: u16) -> Shares<'_> {
        if n != 0 {
            self.retain_frame(n);
        }
        Shares {
            frame: self,
            left: n,
        }
    }

    #[inline]
    fn retain_frame(&self, n: u16) {
        if self.is_contiguous() {
            self.retain(n);
        } else {
            self.retain_segments(n);
        }
    }

    #[inline]
    fn retain(&self, n: u16) {
        let references = self.references();
        // As DPDK does: while the only reference is ours, no other thread can change the count, and
        // the locked instruction can be saved.
        if n > REFERENCES_MAX {
            too_many_references();
        } else if references.load(Ordering::Relaxed) == 1 {
            references.store(1 + n, Ordering::Relaxed);
        } else if references.fetch_add(n, Ordering::Relaxed) > REFERENCES_MAX - n {
            references.fetch_sub(n, Ordering::Relaxed);
            too_many_references();
        }
    }

    #[cold]
    fn retain_segments(&self, n: u16) {
        // Each segment counts its own references.
        let mut next = Some(self.0);
        while let Some(segment) = next {
            // A borrowed view of the segment: its reference stays where it is.
            let segment = ManuallyDrop::new(Self(segment));
            segment.retain(n);
            next = NonNull::new(field!(segment, next));
        }
    }

    /// One frame of two: the bytes of `head`, then those of `tail`, without a copy. `tail` may be
    /// shared; its other holders keep what they have, and none can change it while this frame is
    /// under way.
    ///
    /// # Errors
    ///
    /// Both, as they were, unless `head` is the only reference to its buffer and each is in one
    /// segment.
    #[inline]
    pub fn chain(head: Self, tail: Self) -> Result<Self, (Self, Self)> {
        if !head.is_resizable() || !tail.is_contiguous() {
            return Err((head, tail));
        }
        // Two lengths of 16 bits each.
        let bytes = head.len() + tail.len();
        let raw = head.0.as_ptr();
        // The head's reference to the tail is what `tail` was.
        let tail = ManuallyDrop::new(tail);
        // SAFETY: the buffer is valid and `head`, which we own, is the only reference to it, so
        // no other code looks at these fields; that also makes `tail` another buffer. `tail` ends
        // the chain: it is contiguous, so its own `next` is null. Nothing of it is written to.
        // Freeing the frame gives up one reference to each of the two, which is what it owns.
        unsafe {
            *sys::rte_mbuf::next(raw) = tail.0.as_ptr();
            *sys::rte_mbuf::nb_segs(raw) = 2;
            *sys::rte_mbuf::pkt_len(raw) = bytes as u32;
        }
        Ok(head)
    }

    /// The bytes of each segment, in order.
    #[inline]
    pub fn parts(&self) -> Parts<'_> {
        Parts {
            next: Some(self.0),
            frame: PhantomData,
        }
    }

    /// Whether both are references to the same buffer.
    #[inline]
    #[must_use]
    pub fn is_same_buffer(&self, other: &Self) -> bool {
        ptr::eq(self.0.as_ptr(), other.0.as_ptr())
    }

    /// The port it was received on. `net_ring` doesn't set it.
    #[inline]
    #[must_use]
    pub fn port(&self) -> PortId {
        PortId(field!(self, port))
    }

    /// What the NIC says about the IPv4 header's checksum, where
    /// [`PortConfig::rx_checksum`](crate::PortConfig::rx_checksum) is on and supported.
    #[inline]
    #[must_use]
    pub fn ip_checksum(&self) -> ChecksumState {
        match field!(self, ol_flags) & sys::TALLY_RX_IP_CKSUM_MASK {
            0 => ChecksumState::Unknown,
            sys::TALLY_RX_IP_CKSUM_BAD => ChecksumState::Bad,
            sys::TALLY_RX_IP_CKSUM_GOOD => ChecksumState::Good,
            _ => ChecksumState::NotFilledIn,
        }
    }

    /// What the NIC says about the UDP or TCP checksum; as [`Mbuf::ip_checksum`].
    #[inline]
    #[must_use]
    pub fn l4_checksum(&self) -> ChecksumState {
        match field!(self, ol_flags) & sys::TALLY_RX_L4_CKSUM_MASK {
            0 => ChecksumState::Unknown,
            sys::TALLY_RX_L4_CKSUM_BAD => ChecksumState::Bad,
            sys::TALLY_RX_L4_CKSUM_GOOD => ChecksumState::Good,
            _ => ChecksumState::NotFilledIn,
        }
    }

    /// Room after the first segment's data, in bytes.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let (offset, bytes) = self.span();
        self.capacity() - offset - bytes
    }

    /// Room before the first segment's data, in bytes.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.span().0
    }

    /// Makes the frame `bytes` longer at its end and returns the new part, whose content is
    /// arbitrary. `None`, and no change, without the room, while shared, or if not contiguous.
    #[inline]
    #[must_use]
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if !self.is_resizable() || bytes > self.tailroom() {
            return None;
        }
        let (offset, old) = self.span();
        self.set_span(offset, old + bytes);
        self.data_mut().map(|data| &mut data[old..])
    }

    /// Makes the frame `bytes` longer at its start and returns the new part, whose content is
    /// arbitrary. `None`, and no change, without the room, while shared, or if not contiguous.
    ///
    /// The start of the frame moves: it keeps its alignment only if `bytes` is a multiple of 64.
    #[inline]
    #[must_use]
    pub fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if !self.is_resizable() || bytes > self.headroom() {
            return None;
        }
        let (offset, old) = self.span();
        self.set_span(offset - bytes, old + bytes);
        self.data_mut().map(|data| &mut data[..bytes])
    }

    /// Cuts `bytes` off the end. `false`, and no change, if the frame is shorter, shared or not
    /// contiguous.
    #[inline]
    #[must_use]
    pub fn trim(&mut self, bytes: usize) -> bool {
        let (offset, old) = self.span();
        let possible = self.is_resizable() && bytes <= old;
        if possible {
            self.set_span(offset, old - bytes);
        }
        possible
    }

    /// Cuts `bytes` off the start. `false`, and no change, if the frame is shorter, shared or not
    /// contiguous.
    #[inline]
    #[must_use]
    pub fn adj(&mut self, bytes: usize) -> bool {
        let (offset, old) = self.span();
        let possible = self.is_resizable() && bytes <= old;
        if possible {
            self.set_span(offset + bytes, old - bytes);
        }
        possible
    }

    /// Sets the length; bytes beyond the old end have arbitrary content. `false`, and no change, if
    /// it doesn't fit the buffer, or the frame is shared or not contiguous.
    #[inline]
    #[must_use]
    pub fn set_len(&mut self, bytes: usize) -> bool {
        let (offset, _) = self.span();
        let possible = self.is_resizable() && bytes <= self.capacity() - offset;
        if possible {
            self.set_span(offset, bytes);
        }
        possible
    }

    /// Copies the later segments behind the first one, so that [`Mbuf::data`] is the whole frame.
    /// `false`, and no change, if the first segment hasn't the room or any of them is shared.
    #[must_use]
    pub fn linearize(&mut self) -> bool {
        if self.is_contiguous() {
            return true;
        }
        let mut next = Some(self.0);
        while let Some(segment) = next {
            // A borrowed view of the segment: its reference stays where it is.
            let segment = ManuallyDrop::new(Self(segment));
            if !segment.is_unique() {
                return false;
            }
            next = NonNull::new(field!(segment, next));
        }
        // SAFETY: the frame is valid and no other reference exists to any of its segments, which
        // the call writes to and frees.
        unsafe { sys::tally_mbuf_linearize(self.0.as_ptr()) == 0 }
    }

    /// Asks for the cache line at this offset into the frame, to be there in some 100 ns. Any
    /// offset will do. Reads the descriptor; see [`Mbuf::prefetch_descriptor`].
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        prefetch(self.start().wrapping_add(self.span().0 + offset));
    }

    /// Asks for the descriptor, which every other method reads. Drivers leave it in the cache
    /// when they receive a frame; it is not there if another core did.
    #[inline]
    pub fn prefetch_descriptor(&self) {
        prefetch(self.0.as_ptr().cast());
    }
}

#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that may name any address, and every x86-64 processor has the instruction.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cold]
fn too_many_references() -> ! {
    panic!("more than {REFERENCES_MAX} references to one frame");
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        if self.is_contiguous() {
            let references = self.references();
            // The order is that of rte_pktmbuf_prefree_seg: if ours is the only reference, no other
            // thread can make another meanwhile, and no locked instruction is needed.
            if references.load(Ordering::Acquire) != 1 {
                // Release: our reads are done before the last holder reuses the buffer. Acquire:
                // if that is us, the others' are.
                if references.fetch_sub(1, Ordering::AcqRel) != 1 {
                    return;
                }
                // The last one after all. DPDK keeps free buffers with a count of one.
                references.store(1, Ordering::Relaxed);
            }
        }
        // SAFETY: the buffer is valid and we give up our reference, once: `self` is being dropped.
        // A contiguous frame has a count of one here, so it goes to its pool; the segments of
        // another are counted and freed by the call.
        unsafe { sys::tally_mbuf_free(self.0.as_ptr()) };
    }
}

/// The bytes of a frame, segment by segment: [`Mbuf::parts`].
pub struct Parts<'a> {
    next: Option<NonNull<sys::rte_mbuf>>,
    frame: PhantomData<&'a Mbuf>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        // A borrowed view of the segment: its reference stays where it is.
        let segment = ManuallyDrop::new(Mbuf(self.next?));
        self.next = NonNull::new(field!(segment, next));
        let (offset, bytes) = segment.span();
        // SAFETY: as in `Mbuf::data`. The frame, which is borrowed for as long as the slice, holds
        // a reference to each of its segments; they are written to only through the only reference,
        // mutably.
        Some(unsafe { slice::from_raw_parts(segment.start().add(offset), bytes) })
    }
}

/// References made by [`Mbuf::share_many`]. Those that are not taken are dropped with it.
pub struct Shares<'a> {
    frame: &'a Mbuf,
    left: u16,
}

impl Iterator for Shares<'_> {
    type Item = Mbuf;

    #[inline]
    fn next(&mut self) -> Option<Mbuf> {
        self.left = self.left.checked_sub(1)?;
        // One of the references that were counted when this was made, each given out once.
        Some(Mbuf(self.frame.0))
    }
}

impl Drop for Shares<'_> {
    #[inline]
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// Drops all frames, with one call into the pool for those that follow one another of one: cheaper
/// than one by one. The vector keeps its capacity.
pub fn free_bulk(frames: &mut Vec<Mbuf>) {
    let n = frames.len();
    // SAFETY: shrinking to zero. The elements are given up to the call below.
    unsafe { frames.set_len(0) };
    let mut start = frames.as_mut_ptr();
    let mut left = n;
    while left != 0 {
        let part = left.min(u32::MAX as usize);
        // SAFETY: `part` pointers, each one reference that was the vector's and is now the call's
        // to free; an `Mbuf` is laid out as a pointer. The call may write over them: no element is
        // the vector's any more.
        unsafe { sys::tally_free_bulk(start.cast(), part as u32) };
        // SAFETY: still within the vector's elements or one past them.
        start = unsafe { start.add(part) };
        left -= part;
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("len", &self.len())
            .field("segments", &self.segments())
            .field("references", &self.references().load(Ordering::Relaxed))
            .field("port", &self.port())
            .finish()
    }
}
