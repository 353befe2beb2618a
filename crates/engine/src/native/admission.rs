//! What admits a frame: the right that a check of its header against its job's roster gives.

/// Most jobs that run at a time.
pub const MAX_JOBS: usize = 255;

/// A frame's right to be handled: what [`Aggregator::admit`](crate::Aggregator::admit) says of it,
/// and [`Aggregator::still_admits`](crate::Aggregator::still_admits) of frames like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Place of its job.
    pub(crate) place: u8,
    /// Whether it came from the parent of the job's node.
    pub(crate) is_parents: bool,
    /// The rosters that it was checked against.
    pub(crate) rosters: u64,
}
