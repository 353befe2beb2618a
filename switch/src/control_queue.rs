//! JOIN and LEAVE on their way from the data cores to the control thread: a bounded queue, shared
//! fairly.
//!
//! Each port has room for [`WAITING_MAX`] frames of its own. A port that floods them fills its own
//! share; a member at another port always finds room, and waits at most for what is queued before
//! it.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tally_engine::{ControlFrame, DropReason};

/// Frames of one port that wait at most. A confirmation round (J-5) has every member behind a port
/// say JOIN at once.
pub const WAITING_MAX: usize = 256;

/// By ingress port, frames that wait.
type Waiting = Arc<[AtomicUsize]>;

/// The data cores' end.
#[derive(Clone)]
pub struct ControlSender {
    frames: Sender<ControlFrame>,
    waiting: Waiting,
}

/// The control thread's end.
pub struct ControlReceiver {
    frames: Receiver<ControlFrame>,
    waiting: Waiting,
}

/// A queue for a switch of so many ports.
#[must_use]
pub fn control_queue(ports: usize) -> (ControlSender, ControlReceiver) {
    let (send, receive) = bounded(ports * WAITING_MAX);
    let waiting: Waiting = (0..ports).map(|_| AtomicUsize::new(0)).collect();
    let sender = ControlSender {
        frames: send,
        waiting: Arc::clone(&waiting),
    };
    let receiver = ControlReceiver {
        frames: receive,
        waiting,
    };
    (sender, receiver)
}

impl ControlSender {
    /// Adds a frame, without waiting.
    ///
    /// # Errors
    /// If the ingress port's share is full, or the control thread has ended.
    pub fn send(&self, frame: ControlFrame) -> Result<(), DropReason> {
        let waiting = &self.waiting[usize::from(frame.from.port.0)];
        // Counted before it is there: the receiver may be faster.
        if waiting.fetch_add(1, Relaxed) < WAITING_MAX && self.frames.try_send(frame).is_ok() {
            return Ok(());
        }
        waiting.fetch_sub(1, Relaxed);
        Err(DropReason::ControlFull)
    }
}

impl ControlReceiver {
    /// Frames that wait.
    pub fn waiting(&self) -> usize {
        self.frames.len()
    }

    /// Takes the next frame, which is waited for so long.
    ///
    /// # Errors
    /// If none comes, or none can come any more.
    pub fn receive(&self, patience: Duration) -> Result<ControlFrame, RecvTimeoutError> {
        let frame = self.frames.recv_timeout(patience)?;
        self.waiting[usize::from(frame.from.port.0)].fetch_sub(1, Relaxed);
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tally_engine::{Member, PortId};
    use tally_wire::control::DATAGRAM_BYTES;
    use tally_wire::{AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Kind, Mac, Rank};

    fn join(port: u16) -> ControlFrame {
        ControlFrame {
            from: Member {
                port: PortId(port),
                mac: Mac([2, 0, 0, 0, 0, 1]),
                ip: Ipv4Addr::new(10, 84, 0, 1),
                udp_port: 4000,
            },
            header: Header {
                kind: Kind::Join,
                flags: Flags::NONE,
                priority: 0,
                element: Element::None,
                job: JobId(7),
                epoch: Epoch(1),
                fragment: FragmentId(0),
                rank: Rank(0),
                units: 2,
                bitmap: 0,
                tag: AuthTag::NONE,
            },
            datagram: Box::new([0; DATAGRAM_BYTES]),
        }
    }

    #[test]
    fn a_flood_from_other_ports_leaves_room_for_a_member() {
        let (sender, receiver) = control_queue(3);
        for port in [0, 2] {
            let sent = (0..1000).filter(|_| sender.send(join(port)).is_ok());
            assert_eq!(sent.count(), WAITING_MAX);
        }
        assert_eq!(sender.send(join(1)), Ok(()));
        assert_eq!(sender.send(join(0)), Err(DropReason::ControlFull));
        // What was taken makes room again, for its own port.
        let taken = receiver.receive(Duration::ZERO).unwrap();
        assert_eq!(taken.from.port, PortId(0));
        assert_eq!(sender.send(join(2)), Err(DropReason::ControlFull));
        assert_eq!(sender.send(join(0)), Ok(()));
        let rest = std::iter::from_fn(|| receiver.receive(Duration::ZERO).ok());
        assert_eq!(rest.count(), 2 * WAITING_MAX + 1);
        let waiting = receiver.waiting.iter().map(|port| port.load(Relaxed));
        assert_eq!(waiting.sum::<usize>(), 0);
    }
}
