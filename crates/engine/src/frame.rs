//! The platform that a core runs on.

use crate::forwarding::Verdict;
use crate::{DropReason, PortId};
pub use tally_frame::Frame;
use tally_wire::frame::ETHERNET_BYTES;
use tally_wire::{Header, Time};

/// What a core runs on.
pub trait Platform {
    /// Its frames.
    type Frame: Frame;

    /// An empty frame; `None` if the pool is exhausted.
    fn alloc(&self) -> Option<Self::Frame>;

    /// Appends `n` empty frames to `out`, or none (`false`).
    fn alloc_bulk(&self, out: &mut Vec<Self::Frame>, n: usize) -> bool;

    /// A copy in one segment with a single reference; `None` if the pool is exhausted.
    fn copy(&self, frame: &Self::Frame) -> Option<Self::Frame>;

    /// Bytes that one frame of the pool has room for.
    fn frame_bytes_max(&self) -> usize;

    /// Whether [`observe`](Self::observe) does anything.
    const OBSERVES: bool = false;

    /// For checkers: what the core does with frames. Nothing by default.
    #[inline(always)]
    fn observe(&self, _event: Observed<'_, Self::Frame>) {}
}

/// What the core or the native protocol does with a frame.
pub enum Observed<'a, F> {
    /// The core decides on a frame of this port and with this Ethernet header that is not a
    /// datagram for the switch.
    Decided(
        PortId,
        &'a [u8; ETHERNET_BYTES],
        Result<Verdict, DropReason>,
    ),
    /// The core or SwitchML made this frame its own answer.
    Answered(&'a F),
    /// The native protocol takes this frame over, admitted.
    Admitted(&'a Header, &'a F),
    /// The native protocol sends this frame, with this header, to one member.
    Sent(&'a Header, &'a F),
    /// The native protocol publishes this frame, with this header; `born` is the time of the first
    /// contribution.
    Published(&'a Header, &'a F, Option<Time>),
    /// The native protocol is done with this frame.
    Discarded(&'a F),
}
