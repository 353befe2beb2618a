//! DPDK as the platform of the switch core.

use crate::capture::Capture;
use crate::handover::Outbox;
use crate::queues::Tx;
use tally_dpdk::{Mbuf, Mempool};
use tally_engine::{Handover, Platform, PortId, Transmit};

/// Frames that a driver is offered at a time.
pub const STAGE_FRAMES: usize = 32;

/// The pool that a core takes frames from.
#[derive(Clone)]
pub struct Memory(pub Mempool);

impl Platform for Memory {
    type Frame = Mbuf;

    #[inline]
    fn alloc(&self) -> Option<Mbuf> {
        self.0.alloc()
    }

    #[inline]
    fn alloc_bulk(&self, out: &mut Vec<Mbuf>, n: usize) -> bool {
        self.0.alloc_bulk(out, n)
    }

    fn copy(&self, frame: &Mbuf) -> Option<Mbuf> {
        self.0.copy(frame)
    }

    fn frame_bytes_max(&self) -> usize {
        self.0.frame_bytes_max()
    }
}

/// A core's ways out: transmit queues and rings to other cores.
pub struct Driver {
    /// By port, the transmit queue if it is this core's.
    pub tx: Vec<Option<Tx>>,
    /// To other cores.
    pub outbox: Outbox,
    /// What copies frames, while there is a capture.
    pub capture: Option<Box<Capture>>,
}

impl Driver {
    /// Frames that each port took and could not send; of ports of other cores, none.
    pub fn refused(&self) -> impl Iterator<Item = u64> {
        let of = |tx: &Option<Tx>| tx.as_ref().map_or(0, Tx::refused);
        self.tx.iter().map(of)
    }
}

impl Transmit<Mbuf> for Driver {
    #[inline]
    fn room(&self, _: PortId) -> usize {
        STAGE_FRAMES
    }

    #[inline]
    fn transmit(&mut self, port: PortId, frames: &mut Vec<Mbuf>) -> usize {
        match &mut self.tx[usize::from(port.0)] {
            Some(tx) => match &self.capture {
                None => tx.burst(frames),
                Some(capture) => capture.transmit(port, tx, frames),
            },
            None => 0,
        }
    }

    #[inline]
    fn hand_over(&mut self, core: usize, frames: &mut Vec<Handover<Mbuf>>) -> u64 {
        self.outbox.send(core, frames)
    }
}
