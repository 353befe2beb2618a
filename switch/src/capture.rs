//! Capture: copies of frames that data cores take for a client of the request channel.
//!
//! A data core that captures takes another path for each burst (`datapath/capturing.rs`). A core
//! that does not looks at one pointer for each burst.
//!
//! Copies go through a bounded queue. If it is full, the copy is lost and counted; the data path
//! never waits.
//!
//! Catches: a captured frame is summed alone, so a core that captures is slower. A result that
//! found a full queue counts as `tx-full` at the contribution that completed it. A frame that one
//! core hands to another one, which drops it, is captured twice.

use crate::queues::Tx;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tally_dpdk::Mbuf;
use tally_engine::{DropReason, PortId};
use tally_wire::frame::UDP_END;
use tally_wire::{Header, JobId, Time, UdpFrame};
use tokio::sync::mpsc::Sender;

/// Copies that wait for the client, at most.
pub const WAITING_MAX: usize = 8192;

/// Which frames are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of one port.
    pub port: Option<PortId>,
    /// Those of one job.
    pub job: Option<JobId>,
    /// All, or dropped ones.
    pub wanted: Wanted,
}

/// What becomes of a frame that is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Anything.
    #[default]
    All,
    /// It is dropped.
    Drops,
    /// It is dropped for this reason.
    Reason(DropReason),
}

impl Wanted {
    fn takes(self, drop: Option<DropReason>) -> bool {
        match self {
            Self::All => true,
            Self::Drops => drop.is_some(),
            Self::Reason(reason) => drop == Some(reason),
        }
    }
}

/// The copy of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// When, by the switch's clock.
    pub at: Time,
    /// The port.
    pub port: PortId,
    /// Whether it left by the port; else it came in.
    pub sent: bool,
    /// Why it was dropped, if it was.
    pub drop: Option<DropReason>,
    /// Its length.
    pub bytes: u32,
    /// Its first bytes.
    pub data: Box<[u8]>,
}

/// What all cores that capture share.
#[derive(Debug)]
pub struct Budget {
    /// Frames that may still be copied.
    left: AtomicU64,
    /// Frames that the queue had no room for.
    lost: AtomicU64,
}

impl Budget {
    /// For so many frames.
    #[must_use]
    pub fn new(frames: u64) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(frames),
            lost: AtomicU64::new(0),
        })
    }

    /// Frames so far that the queue had no room for.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// A capture, as one data core has it.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Which frames.
    pub filter: Filter,
    /// Bytes of each.
    pub snaplen: usize,
    /// How many, of all cores.
    pub budget: Arc<Budget>,
    /// When the switch started.
    pub epoch: Instant,
    /// Where copies go.
    pub out: Sender<Copied>,
}

impl Capture {
    /// A copy of a frame that port and job of the filter take.
    pub(crate) fn copy(&self, port: PortId, sent: bool, frame: &Mbuf) -> Option<Copied> {
        let Filter { port: of, job, .. } = self.filter;
        let data = frame.data();
        let is_wanted =
            of.is_none_or(|of| of == port) && job.is_none_or(|job| job_of(data) == Some(job));
        is_wanted.then(|| Copied {
            at: Time(self.epoch.elapsed().as_nanos() as u64),
            port,
            sent,
            drop: None,
            bytes: frame.len() as u32,
            data: data[..data.len().min(self.snaplen)].into(),
        })
    }

    /// Puts a copy into the queue.
    fn give(&self, copied: Copied) {
        let takes_one = |left: u64| left.checked_sub(1);
        let has_room = self.budget.left.fetch_update(Relaxed, Relaxed, takes_one);
        if has_room.is_ok() && self.out.try_send(copied).is_err() {
            self.budget.left.fetch_add(1, Relaxed);
            self.budget.lost.fetch_add(1, Relaxed);
        }
    }

    /// Sends a burst as [`Tx::burst`] does, and copies what was taken.
    #[cold]
    #[inline(never)]
    pub fn transmit(&self, port: PortId, tx: &mut Tx, frames: &mut Vec<Mbuf>) -> usize {
        if self.filter.wanted != Wanted::All {
            return tx.burst(frames);
        }
        let copies: Vec<_> = (frames.iter())
            .map(|frame| self.copy(port, true, frame))
            .collect();
        let sent = tx.burst(frames);
        copies
            .into_iter()
            .take(sent)
            .flatten()
            .for_each(|copied| self.give(copied));
        sent
    }

    /// Puts the copy of a frame that came in into the queue, if its end is wanted.
    pub(crate) fn give_received(&self, copied: Option<Copied>, drop: Option<DropReason>) {
        if let Some(copied) = copied
            && self.filter.wanted.takes(drop)
        {
            self.give(Copied { drop, ..copied });
        }
    }
}

/// The job of a frame of Tally's protocol.
fn job_of(frame: &[u8]) -> Option<JobId> {
    let udp = UdpFrame::parse(frame).ok()?;
    let datagram = frame.get(UDP_END..UDP_END + udp.datagram_bytes)?;
    Some(Header::parse(datagram).ok()?.job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::channel;

    #[test]
    fn copies_beyond_the_queue_are_lost_and_take_nothing_of_the_number() {
        let (out, mut copies) = channel(1);
        let capture = Capture {
            filter: Filter::default(),
            snaplen: 64,
            budget: Budget::new(2),
            epoch: Instant::now(),
            out,
        };
        let copied = |port| Copied {
            at: Time(0),
            port: PortId(port),
            sent: false,
            drop: None,
            bytes: 60,
            data: Box::default(),
        };
        capture.give(copied(0));
        capture.give(copied(1));
        assert_eq!(copies.try_recv().unwrap().port, PortId(0));
        capture.give(copied(2));
        assert_eq!(copies.try_recv().unwrap().port, PortId(2));
        assert_eq!(capture.budget.lost(), 1);
        // Both are there.
        capture.give(copied(3));
        assert!(copies.try_recv().is_err());
        assert_eq!(capture.budget.lost(), 1);
    }

    #[test]
    fn a_frame_is_wanted_by_its_end() {
        let reason = DropReason::UnknownJob;
        let ends = [None, Some(reason), Some(DropReason::Late)];
        let takes = |wanted: Wanted| ends.map(|end| wanted.takes(end));
        assert_eq!(takes(Wanted::All), [true; 3]);
        assert_eq!(takes(Wanted::Drops), [false, true, true]);
        assert_eq!(takes(Wanted::Reason(reason)), [false, true, false]);
    }
}
