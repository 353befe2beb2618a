//! What the session's caller sees: configuration, events and counters.

use crate::error::{Hint, Ranks};
use tally_wire::control::Reason;
use tally_wire::{DEFAULT_PORT, Epoch, JobId, Key, Part, Rank};

/// Which job the parameter server serves.
#[derive(Clone, Debug)]
pub struct PsConfig {
    /// The job, as in the switch's configuration.
    pub job: JobId,
    /// Its key.
    pub key: Key,
    /// A random number, not 0, for this process.
    pub instance: u64,
    /// First UDP port of the switch.
    pub port: u16,
    /// The fragments that it completes.
    pub part: Part,
}

impl PsConfig {
    /// The configuration of the job's only server, with the protocol's port.
    #[must_use]
    pub fn new(job: JobId, key: Key, instance: u64) -> Self {
        Self {
            job,
            key,
            instance,
            port: DEFAULT_PORT,
            part: Part::ONLY,
        }
    }
}

/// Something that the caller may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsEvent {
    /// The switch has taken us in, and no incarnation runs.
    Joined {
        /// As the server of these fragments.
        part: Part,
    },
    /// An incarnation runs.
    Running {
        /// Which.
        epoch: Epoch,
        /// How many workers it has.
        workers: u8,
    },
    /// All workers have left.
    Ended {
        /// Which incarnation has ended.
        epoch: Epoch,
    },
    /// The incarnation has failed; its state is forgotten.
    Aborted {
        /// Why.
        reason: Reason,
        /// Who was lost, or left.
        rank: Option<Rank>,
        /// For whom that one had waited in vain, if that is why (J-10).
        behind: Ranks,
    },
    /// The switch refuses us; we keep trying.
    Refused(Hint),
    /// We have left. The session is closed.
    Left,
}

/// Counters of a session, over all incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PsStats {
    /// Partials taken in.
    pub partials: u64,
    /// Partials that brought nothing new.
    pub duplicates: u64,
    /// Partials dropped because they overlapped.
    pub overlaps: u64,
    /// Fragments finished here.
    pub results: u64,
    /// Results sent again to workers that had lost them.
    pub results_resent: u64,
    /// PROBEs of workers that missed a result.
    pub probes: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// REMINDs sent.
    pub reminds: u64,
    /// Answers that the switch has nothing.
    pub not_here: u64,
    /// Fragments forgotten, because the switch had finished them.
    pub forgotten: u64,
    /// Fragments with an element of integers that saturated.
    pub overflows: u64,
    /// Frames of another epoch, or of fragments that are too old.
    pub late: u64,
    /// Frames that are malformed, of another job or member, or do not fit their fragment.
    pub foreign: u64,
    /// Control frames whose HMAC or instance was not right.
    pub unauthentic: u64,
}
