//! The platform that a core runs on.

pub use tally_frame::Frame;
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

    /// For checkers: what the native protocol does with frames. Nothing by default.
    #[inline(always)]
    fn observe(&self, _event: Observed<'_, Self::Frame>) {}
}

/// What the native protocol does with a frame.
pub enum Observed<'a, F> {
    /// It takes this frame over, admitted.
    Admitted(&'a Header, &'a F),
    /// It sends this frame, with this header, to one member.
    Sent(&'a Header, &'a F),
    /// It publishes this frame, with this header; `born` is the time of the first contribution.
    Published(&'a Header, &'a F, Option<Time>),
    /// It is done with this frame.
    Discarded(&'a F),
}
