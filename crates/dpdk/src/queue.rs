//! The data path: bursts of frames in and out of a port.
//!
//! # How it works
//!
//! A queue belongs to one thread at a time: bursts take `&mut self`. A burst is one call into the
//! driver, with the vector's own memory as the array of frames.
//!
//! # The catches
//!
//! - A frame that [`TxQueue::burst`] has taken isn't free yet: the driver holds it until it is
//!   sent, and some drivers look at that only during later bursts. A pool is whole only after its
//!   ports are closed.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::device::PortInner;
use crate::mbuf::Mbuf;
use crate::port_info::PortId;

/// A port's receive queue.
pub struct RxQueue {
    port: Arc<PortInner>,
    queue: u16,
    /// `Send`, not `Sync`.
    _one_thread: PhantomData<Cell<()>>,
}

impl RxQueue {
    pub(crate) fn new(port: Arc<PortInner>, queue: u16) -> Self {
        Self {
            port,
            queue,
            _one_thread: PhantomData,
        }
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> PortId {
        PortId(self.port.id())
    }

    /// Its number within the port.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// Takes up to `max` frames that have arrived, appends them to `out`, and returns how many.
    /// Doesn't wait. Nothing is allocated on Rust's heap if `out` has the capacity. Some drivers
    /// return no more than 32 or a multiple of 4 or 8: ask for 32.
    #[inline]
    pub fn burst(&mut self, out: &mut Vec<Mbuf>, max: usize) -> usize {
        let max = max.min(usize::from(u16::MAX));
        out.reserve(max);
        let spare = out.spare_capacity_mut().as_mut_ptr();
        // SAFETY: the port is started and has this queue, for as long as `self.port` is held. No
        // other thread uses the queue: it has one `RxQueue`, borrowed mutably. There is room
        // for `max` pointers, and an `Mbuf` is laid out as one.
        let n =
            unsafe { sys::tally_rx_burst(self.port.id(), self.queue, spare.cast(), max as u16) };
        let n = usize::from(n);
        debug_assert!(n <= max);
        // SAFETY: n elements after the end, within capacity, have been written; each is a valid
        // buffer of which the driver has given us one reference.
        unsafe { out.set_len(out.len() + n) };
        n
    }
}

/// A port's transmit queue.
pub struct TxQueue {
    port: Arc<PortInner>,
    queue: u16,
    multi_segment: bool,
    chained_dropped: u64,
    /// `Send`, not `Sync`.
    _one_thread: PhantomData<Cell<()>>,
}

impl TxQueue {
    pub(crate) fn new(port: Arc<PortInner>, queue: u16, multi_segment: bool) -> Self {
        Self {
            port,
            queue,
            multi_segment,
            chained_dropped: 0,
            _one_thread: PhantomData,
        }
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> PortId {
        PortId(self.port.id())
    }

    /// Its number within the port.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// Sends the frames that the driver takes, first ones first, and returns their number. Exactly
    /// these leave the vector; the others remain the caller's, in order. Doesn't wait for the wire.
    ///
    /// A driver may take a frame and drop it, for example if it is too long; then the port's
    /// `tx_errors` counts it. On a port without
    /// [`tx_multi_segment`](crate::PortConfig::tx_multi_segment), frames of several segments are
    /// made contiguous, and those that can't be are dropped and counted: see
    /// [`TxQueue::chained_dropped`].
    #[inline]
    pub fn burst(&mut self, frames: &mut Vec<Mbuf>) -> usize {
        if !self.multi_segment && !frames.iter().all(Mbuf::is_contiguous) {
            self.flatten(frames);
        }
        let n = frames.len();
        // Since DPDK 23.03 `net_memif` reads the first pointer of an empty burst.
        if n == 0 {
            return 0;
        }
        let offered = n.min(usize::from(u16::MAX)) as u16;
        let start = frames.as_mut_ptr();
        // SAFETY: shrinking to zero, so that no frame is in the vector while it may be the
        // driver's.
        unsafe { frames.set_len(0) };
        // SAFETY: the port is started and has this queue, for as long as `self.port` is held. No
        // other thread uses the queue: it has one `TxQueue`, borrowed mutably. There are `offered`
        // pointers to valid buffers, an `Mbuf` being laid out as one, and each is a reference that
        // is ours to give away.
        let sent =
            unsafe { sys::tally_tx_burst(self.port.id(), self.queue, start.cast(), offered) };
        debug_assert!(sent <= offered);
        let sent = usize::from(sent).min(n);
        let left = n - sent;
        if sent != 0 && left != 0 {
            // SAFETY: both ranges are within the n elements of before; they may overlap.
            unsafe { ptr::copy(start.add(sent), start, left) };
        }
        // SAFETY: the first `left` elements are the frames that the driver has not taken, each
        // once; the sent ones are the driver's and no longer here.
        unsafe { frames.set_len(left) };
        sent
    }

    /// How many frames have been dropped because they consist of several segments and the port
    /// sends single ones only.
    #[must_use]
    pub fn chained_dropped(&self) -> u64 {
        self.chained_dropped
    }

    #[cold]
    fn flatten(&mut self, frames: &mut Vec<Mbuf>) {
        let before = frames.len();
        frames.retain_mut(Mbuf::linearize);
        self.chained_dropped += (before - frames.len()) as u64;
    }
}

impl fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxQueue({}.{})", self.port.id(), self.queue)
    }
}

impl fmt::Debug for TxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxQueue({}.{})", self.port.id(), self.queue)
    }
}
