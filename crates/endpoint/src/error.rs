//! Why a worker's session ends without a result, in words that say what to do about it.

mod tree;

pub use tree::TreeFailure;

use core::fmt;
use core::time::Duration;
use tally_wire::control::{LeaveCode, Reason};
use tally_wire::{Part, Rank, RankRange, Refuse};
use thiserror::Error;

/// Something that the switch said without a valid HMAC, or that may yet change: worth telling when
/// time runs out, but never acted upon (J-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Hint {
    /// The switch has no such job.
    #[error("the switch says that it has no such job")]
    UnknownJob,
    /// The switch has another key for the job.
    #[error("the switch says that the job's key is another one")]
    BadKey,
    /// Another process has this rank.
    #[error("the switch says that the rank is taken by another process that still lives")]
    RankTaken,
    /// The switch drains the job.
    #[error(
        "the switch says that the job is drained: it begins no epoch until the operator ends that"
    )]
    Draining,
    /// The tenant has all the jobs that it may have.
    #[error("the switch says that the tenant has {0} jobs with this one, allowed are {1}")]
    TenantJobs(u32, u32),
    /// The tenant has all the workers that it may have.
    #[error("the switch says that the tenant has {0} workers with this job, allowed are {1}")]
    TenantWorkers(u32, u32),
    /// The switch has another number of parameter servers for the job (P-6).
    #[error(
        "the switch says that the job has {1} parameter servers, this one is configured as 1 of {0}"
    )]
    Parts(u32, u32),
    /// The switch waits for its parent in the job's tree (TR-22).
    #[error("the switch waits for its parent {}{}", .switch, Parents(*.reason))]
    Parent {
        /// The parent.
        switch: ShortName,
        /// Why the parent refuses the switch, if it does.
        reason: Option<Reason>,
    },
}

/// Name of a switch, as far as 23 bytes go: errors stay small.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShortName {
    bytes: [u8; 23],
    len: u8,
}

impl ShortName {
    fn new(name: &str) -> Self {
        let mut bytes = [0; 23];
        let len = name.floor_char_boundary(bytes.len());
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self {
            bytes,
            len: len as u8,
        }
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = core::str::from_utf8(&self.bytes[..usize::from(self.len)]);
        write!(f, "{:?}", name.unwrap_or_default())
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Hint {
    /// What REFUSE(PARENT) says.
    pub(crate) fn of_parent(refuse: &Refuse) -> Self {
        Self::Parent {
            switch: (refuse.concern)
                .map_or(ShortName::new(""), |it| ShortName::new(it.switch.as_str())),
            reason: Reason::from_number(refuse.found),
        }
    }
}

/// Why a parent refuses a switch.
struct Parents(Option<Reason>);

impl fmt::Display for Parents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "",
            Some(Reason::UnknownJob) => ", which has no such job",
            Some(Reason::BadMac) => ", which has another switch key",
            Some(Reason::BadRank | Reason::Workers) => ", which has another tree configured",
            Some(Reason::RankTaken) => {
                ", where the job runs: it ends once it has missed the workers that were here before"
            }
            Some(_) => ", which refuses it",
        })
    }
}

/// A set of ranks, printed as `1, 2, 5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks(pub u64);

impl Ranks {
    /// They, in order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..64).filter(move |rank| self.0 >> rank & 1 == 1)
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for rank in self.iter() {
            write!(f, "{separator}{rank}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Whom a result that does not come waits for, as far as the switch has said (J-10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// It has not said, or not lately.
    Unknown,
    /// These have not contributed.
    Ranks(Ranks),
    /// Of a job of more than 64 workers, these, and perhaps others.
    Range(RankRange),
    /// All have contributed: the sum is missing.
    NoRank,
}

/// Why a worker's session failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkerError {
    /// No good answer to JOIN.
    #[error("the switch did not {} within {after:?}{}", Accepted(.hint), Also(.hint))]
    NoAnswer {
        /// How long it was tried.
        after: Duration,
        /// The last thing heard, if anything was.
        hint: Option<Hint>,
    },
    /// The job never got all its members.
    #[error(
        "the job did not start within {after:?}: {}{}",
        Missing(*.missing, *.range, *.missing_ps), Also(.hint)
    )]
    NotStarted {
        /// How long it was waited for.
        after: Duration,
        /// Ranks that have not joined; of those that also waited and gave up before, only if there
        /// are no others.
        missing: Ranks,
        /// Of a job of more than 64 workers, ranks that have not joined; others may be missing.
        range: Option<RankRange>,
        /// The parameter server that has not joined, if one has not.
        missing_ps: Option<Part>,
        /// The last thing heard besides, if anything was.
        hint: Option<Hint>,
    },
    /// Our rank is not one of the job's.
    #[error("rank {rank} is none of the job's {workers} workers (ranks count from 0)")]
    BadRank {
        /// Ours.
        rank: u32,
        /// The job's number of workers.
        workers: u32,
    },
    /// We expect another number of workers than the switch's configuration has.
    #[error("we expect {expected} workers, but the job has {workers}{}", NeedsTree(*.expected, *.workers))]
    Workers {
        /// Ours.
        expected: u32,
        /// The job's.
        workers: u32,
    },
    /// Our payload is another one than that of the member named, or too large for the switch.
    #[error(
        "payloads of {} bytes do not fit: {} {} bytes", found * 64,
        ByRank(*.by), allowed * 64
    )]
    Payload {
        /// Ours, in units of 64 bytes.
        found: u32,
        /// What is allowed, in units of 64 bytes.
        allowed: u32,
        /// The rank whose payload it is; none: the switch's port.
        by: Option<Rank>,
    },
    /// Another worker has another shape (D-1).
    #[error("{} has another payload size, another `ranks_per_host` or another version of sessions than we do: run one release of Tally with the same values at all ranks", ByRank(*.by))]
    Shape {
        /// Who.
        by: Option<Rank>,
    },
    /// Our window has become too large for the switch: it was started anew with less.
    #[error("a window of {found} fragments is too large: the switch serves up to {allowed}")]
    Window {
        /// Ours.
        found: u32,
        /// The largest that the switch serves.
        allowed: u32,
    },
    /// Another worker fell silent.
    #[error("{} has been silent for too long, so the job has failed", ByRank(*.rank))]
    MemberLost {
        /// Who.
        rank: Option<Rank>,
    },
    /// Another worker left.
    #[error("{} left the job{}", ByRank(*.rank), Left(*.code))]
    MemberFailed {
        /// Who.
        rank: Option<Rank>,
        /// With what, if it is a code that we know.
        code: Option<LeaveCode>,
        /// The fragment that overflowed, counted from the start of the job, for that code.
        fragment: Option<u64>,
    },
    /// The job has gone on without us.
    #[error("the job has started anew without us")]
    StaleEpoch,
    /// The operator removed the job.
    #[error("the job was removed from the switch")]
    Removed,
    /// The sum of i32 elements left their range.
    #[error("i32 overflow in fragment {fragment}")]
    Overflow {
        /// Counted from the start of the job.
        fragment: u64,
    },
    /// Nothing that is authentic was heard from the switch.
    #[error("the switch has been silent for {after:?}{}", Except(.hint))]
    SwitchSilent {
        /// For how long.
        after: Duration,
        /// The last thing heard since, if anything was: the switch may run again with another
        /// configuration.
        hint: Option<Hint>,
    },
    /// The switch answers, but no result comes.
    #[error("no result for {after:?}, although the switch answers: {}", Suspect(*.awaited, *.missing_ps))]
    Stalled {
        /// For how long.
        after: Duration,
        /// The first that has none, counted from the start of the job.
        fragment: u64,
        /// Whom it waits for.
        awaited: Awaited,
        /// The parameter server that is missing, if the switch says so of one.
        missing_ps: Option<Part>,
    },
    /// Another worker left, because it had waited in vain for what some have not contributed.
    #[error("{} gave up waiting{}: {}", ByRank(*.rank), ForUs(*.ours), Tardy(*.behind))]
    GaveUp {
        /// Who.
        rank: Option<Rank>,
        /// The ranks that had not contributed.
        behind: Ranks,
        /// The fragment that it waited for, counted from the start of the job.
        fragment: Option<u64>,
        /// Whether we are one of them.
        ours: bool,
    },
    /// The job ended somewhere in its tree of switches (TR-25).
    #[error("{0}")]
    InTree(Box<TreeFailure>),
    /// The user of the session stopped it.
    #[error("interrupted")]
    Interrupted,
    /// The user of the session ended it.
    #[error("given up")]
    GivenUp,
}

/// Why more workers than a switch has place for are not the job's.
struct NeedsTree(u32, u32);

impl fmt::Display for NeedsTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = tally_wire::MAX_WORKERS as u32;
        if self.0 <= most || self.1 > most {
            return Ok(());
        }
        write!(
            f,
            ": a switch has {most} members, and a tree of switches more (docs/FABRIC.md)"
        )
    }
}

/// What did not happen: silence is no refusal.
struct Accepted<'a>(&'a Option<Hint>);

impl fmt::Display for Accepted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "let us join",
            None => "answer",
        })
    }
}

struct Also<'a>(&'a Option<Hint>);

impl fmt::Display for Also<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

struct Except<'a>(&'a Option<Hint>);

impl fmt::Display for Except<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |hint| {
            write!(
                f,
                ", except for an answer without a valid HMAC: {hint}; compare this job in its configuration and ours"
            )
        };
        self.0.map_or(Ok(()), told)
    }
}

struct Missing(Ranks, Option<RankRange>, Option<Part>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(range) = self.1 {
            let verb = if range.count() == 1 { "is" } else { "are" };
            write!(f, "{range} {verb} missing")?;
            return match self.2 {
                None => Ok(()),
                Some(Part::ONLY) => f.write_str(" and so is a parameter server"),
                Some(part) => write!(f, " and so is {}", Server(part)),
            };
        }
        match (self.0.0.count_ones(), self.2.map(Server)) {
            (0, None) => write!(f, "all have joined, but the switch does not say so"),
            (0, Some(ps)) => write!(f, "{ps} is missing"),
            (1, None) => write!(f, "rank {} is missing", self.0),
            (_, None) => write!(f, "ranks {} are missing", self.0),
            (1, Some(ps)) => write!(f, "rank {} and {ps} are missing", self.0),
            (_, Some(ps)) => write!(f, "ranks {} and {ps} are missing", self.0),
        }
    }
}

/// A parameter server in words, with its part if there are several.
#[derive(Clone, Copy, Debug)]
pub struct Server(pub Part);

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.count() {
            1 => f.write_str("the parameter server"),
            count => write!(
                f,
                "the parameter server of part {} of {count}",
                self.0.index()
            ),
        }
    }
}

struct ByRank(Option<Rank>);

impl fmt::Display for ByRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "{rank}"),
            None => write!(f, "the switch"),
        }
    }
}

struct Left(Option<LeaveCode>);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "",
            Some(LeaveCode::Finished) => " before it had begun",
            Some(LeaveCode::Failed) => " because of an error of its own",
            Some(LeaveCode::Overflow) => " because of an i32 overflow",
            Some(LeaveCode::Interrupted) => " because it was interrupted",
            Some(LeaveCode::Stalled) => " because it got no results any more",
        })
    }
}

struct Suspect(Awaited, Option<Part>);

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1.map(Server)) {
            (Awaited::Ranks(ranks), None) => Tardy(ranks).fmt(f),
            (Awaited::Ranks(ranks), Some(ps)) => {
                write!(f, "{}, and {ps} is missing", Tardy(ranks))
            }
            (Awaited::Range(range), _) => {
                let verb = if range.count() == 1 { "has" } else { "have" };
                write!(f, "{range} {verb} not contributed")
            }
            (_, Some(ps)) => write!(f, "{ps} is missing"),
            (Awaited::NoRank, None) => f.write_str(
                "every rank has contributed, and the sum comes neither from the switch nor from the parameter server",
            ),
            (Awaited::Unknown, None) => {
                f.write_str("another worker does not contribute, or the network loses too much")
            }
        }
    }
}

struct ForUs(bool);

impl fmt::Display for ForUs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { " for us" } else { "" })
    }
}

/// Those that have not contributed.
struct Tardy(Ranks);

impl fmt::Display for Tardy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, verb) = match self.0.0.count_ones() {
            1 => ("rank", "has"),
            _ => ("ranks", "have"),
        };
        write!(f, "{who} {} {verb} not contributed", self.0)
    }
}
