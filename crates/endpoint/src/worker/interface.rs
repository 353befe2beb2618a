//! What a worker's session and its caller tell each other.

use super::CongestionStats;
use crate::error::WorkerError;
use core::time::Duration;
use tally_wire::control::Shape;
use tally_wire::{DEFAULT_PORT, Element, Epoch, JobId, Key, Part, RankRange};

/// What a worker wants to take part in, and how.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The job, as in the switch's configuration.
    pub job: JobId,
    /// Its key.
    pub key: Key,
    /// Our global rank, from 0.
    pub rank: u16,
    /// Workers of the job, 1..=4096; above 64 the job has a tree of switches.
    pub workers: u16,
    /// Units of 64 bytes in every element payload, 1..=128.
    pub units: u8,
    /// Fragments that may be unfinished, at least 1.
    pub window: u16,
    /// What all workers must agree on.
    pub shape: Shape,
    /// A random number, not 0, for this session alone.
    pub instance: u64,
    /// First UDP port of the switch.
    pub port: u16,
    /// How long to try to join, and to wait for the other members (J-9).
    pub join_timeout: Duration,
    /// How long to go without a result (J-9).
    pub stall_timeout: Duration,
    /// How long to keep answering the others after our own last result (J-7).
    pub linger: Duration,
    /// The number of the first fragment: 0 (W-1), except in tests of the wrap.
    pub first_fragment: u64,
}

impl WorkerConfig {
    /// A configuration with the protocol's defaults: 1 KiB payloads, a window of 256, and 30, 10
    /// and 2 seconds.
    #[must_use]
    pub fn new(
        job: JobId,
        key: Key,
        rank: impl Into<u16>,
        workers: impl Into<u16>,
        shape: Shape,
        instance: u64,
    ) -> Self {
        Self {
            job,
            key,
            rank: rank.into(),
            workers: workers.into(),
            units: 16,
            window: 256,
            shape,
            instance,
            port: DEFAULT_PORT,
            join_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            first_fragment: 0,
        }
    }
}

/// A fragment's contribution, as far as it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contribution {
    /// Written; of this element type.
    Ready(Element),
    /// It depends on a result that has not come; ask again after the next one.
    NotReady,
    /// There is none: an integer of it left its range before it was sent. The job ends as at a
    /// result that overflowed.
    Overflow,
}

/// How a result came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Time from sending the contribution first to the result.
    pub latency: Duration,
    /// Whether the PS finished it.
    pub from_ps: bool,
}

/// What the fragments contain: the caller's side of a [`Worker`](super::Worker).
///
/// Fragments have their number in the job, which does not wrap. Payloads have the configured
/// number of units.
pub trait Gradients {
    /// Writes our contribution to fragment `seq`, all of `payload`. Fragments are asked for in
    /// order; after `Ready`, again whenever a NACK asks for one, and then the same must be written.
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution;

    /// Takes the result of fragment `seq`. Called once for each, not always in order.
    fn result(&mut self, seq: u64, element: Element, payload: &[u8], delivery: Delivery);

    /// Writes the result of fragment `seq` as it came, for a worker that lost it; `None` when it
    /// is not kept any more. It is asked for up to two windows back.
    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element>;
}

/// Something that the caller may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member joined, and the job waits for more.
    Waiting(Members),
    /// All have joined; contributions go out.
    Running {
        /// The incarnation.
        epoch: Epoch,
    },
    /// All fragments that were submitted have their results.
    Delivered,
    /// We have left, all is done. The session is closed.
    Finished,
    /// There will be no (more) results. The session is closed.
    Failed(WorkerError),
}

/// Who takes part, as the switch said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// Ranks that have joined; in a tree, of those at our switch.
    pub joined: u64,
    /// Ranks that have not.
    pub missing: u64,
    /// Of a job of more than 64 workers, ranks that have not; others may be missing.
    pub range: Option<RankRange>,
    /// The PS that has not, if one has not: its part, or [`Part::ONLY`] of one at another switch of
    /// the tree.
    pub missing_ps: Option<Part>,
}

/// What was sent because a frame seemed lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retransmissions {
    /// PROBEs because the timeout passed.
    pub probes_timeout: u64,
    /// PROBEs because a fragment that was sent later had its result.
    pub probes_early: u64,
    /// Contributions retransmitted because of a NACK.
    pub contributions: u64,
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Contributions sent for the first time.
    pub fragments: u64,
    /// Results that the switch finished.
    pub from_switch: u64,
    /// Results that the PS finished.
    pub from_ps: u64,
    /// Probes and retransmitted contributions.
    pub retransmissions: Retransmissions,
    /// Results sent in answer to a NACK.
    pub results_resent: u64,
    /// Results that we already had.
    pub duplicates: u64,
    /// Frames of another epoch or before the job ran.
    pub late: u64,
    /// Frames that are malformed, of another job or member, or answer nothing that we sent.
    pub foreign: u64,
    /// Frames whose tag, or HMAC or instance, was not right.
    pub unauthentic: u64,
    /// What the windows did.
    pub congestion: CongestionStats,
}

/// The rank that awaits results for the least part of its time, in the last seconds: the one that
/// the others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowest {
    /// Which; its global rank.
    pub rank: u16,
    /// For how much of its time it does, in thousandths.
    pub awaiting: u16,
    /// And we.
    pub ours: u16,
}
