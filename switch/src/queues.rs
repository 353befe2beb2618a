//! Receive and transmit queues of a data core: of a DPDK port, or of an interface of the kernel.

use tally_dpdk::{Mbuf, RxQueue, TxQueue, free_bulk};
use tally_packet::{PacketRx, PacketTx, Segmenter};

/// Where frames come from.
pub enum Rx {
    /// A queue of a DPDK port.
    Dpdk(RxQueue),
    /// An interface of the kernel.
    Kernel(Box<PacketRx>),
    /// Nowhere: the port is down.
    Closed,
}

impl Rx {
    /// Takes up to `max` frames that have arrived, appends them to `out`, and says how many. Does
    /// not wait.
    #[inline]
    pub fn burst(&mut self, out: &mut Vec<Mbuf>, max: usize) -> usize {
        match self {
            Self::Dpdk(queue) => queue.burst(out, max),
            Self::Kernel(interface) => interface.burst(out, max),
            Self::Closed => 0,
        }
    }

    /// Frames that arrived and could not be taken, as far as we know.
    #[must_use]
    pub fn refused(&self) -> u64 {
        match self {
            Self::Dpdk(_) | Self::Closed => 0,
            Self::Kernel(interface) => interface.unsupported() + interface.no_buffer(),
        }
    }
}

/// Where frames go to.
pub enum Tx {
    /// A queue of a DPDK port.
    Dpdk(TxQueue),
    /// The same beside ports that receive superframes, which are cut for it.
    Cutting(Box<(TxQueue, Segmenter)>),
    /// An interface of the kernel.
    Kernel(Box<PacketTx>),
    /// Nowhere: the port is down. With the number of frames that went there.
    Closed(u64),
}

impl Tx {
    /// Sends as many frames as are taken now, first ones first, and says how many. These leave the
    /// vector.
    #[inline]
    pub fn burst(&mut self, frames: &mut Vec<Mbuf>) -> usize {
        match self {
            Self::Dpdk(queue) => queue.burst(frames),
            Self::Cutting(both) => {
                let (queue, segmenter) = &mut **both;
                segmenter.send(frames, |frames| {
                    queue.burst(frames);
                })
            }
            Self::Kernel(interface) => interface.burst(frames),
            Self::Closed(lost) => {
                let n = frames.len();
                *lost += n as u64;
                free_bulk(frames);
                n
            }
        }
    }

    /// Frames that were taken and could not be sent, as far as we know.
    #[must_use]
    pub fn refused(&self) -> u64 {
        match self {
            Self::Dpdk(queue) => queue.chained_dropped(),
            Self::Cutting(both) => both.0.chained_dropped() + both.1.no_buffer(),
            Self::Kernel(interface) => interface.errors(),
            Self::Closed(lost) => *lost,
        }
    }
}
