//! Why a call is refused, in words for the person who started the job.
//!
//! The published clients print the text of a gRPC error and end, and look at nothing else: so the
//! text has to say what was found, what is allowed, and who is waited for.

use super::LISTEN_HINT;
use crate::switchml::{HostAddress, SessionId};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tally_wire::{MAX_WORKERS, Mac};
use thiserror::Error;

/// The status codes of gRPC that refusals have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Something in the request is wrong in any state.
    InvalidArgument,
    /// A place is taken.
    AlreadyExists,
    /// Two jobs are in each other's way.
    Aborted,
    /// A rank that is needed has gone.
    Unavailable,
    /// A rank that is needed did not come.
    DeadlineExceeded,
    /// All sessions are in use, or all that one host may have.
    ResourceExhausted,
    /// The caller is not the host that may say this.
    PermissionDenied,
    /// The switch could not do it.
    Internal,
}

/// What several ranks wait for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The root's value.
    Broadcast,
    /// All the others.
    Barrier,
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broadcast => "Broadcast",
            Self::Barrier => "Barrier",
        })
    }
}

/// Some ranks of a job, and where they are, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks(pub Vec<(u32, Option<SocketAddr>)>);

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        for (n, (rank, address)) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { " " } else { ", " })?;
            write!(f, "{rank}")?;
            if let Some(address) = address {
                write!(f, " ({address})")?;
            }
        }
        Ok(())
    }
}

/// Addresses of connections of which nothing else is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strangers(pub Vec<SocketAddr>);

impl fmt::Display for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = String::new();
        for address in &self.0 {
            let comma = if list.is_empty() { "" } else { ", " };
            let _ = write!(list, "{comma}{address}");
        }
        f.write_str(&list)
    }
}

/// Hosts that the configuration lists, by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers(pub Vec<IpAddr>);

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, peer) in self.0.iter().enumerate() {
            let comma = if rank == 0 { "" } else { ", " };
            write!(f, "{comma}rank {rank} at {peer}")?;
        }
        Ok(())
    }
}

/// A session's number as the published clients print it.
impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.mac, self.ip)
    }
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No job has that many workers.
    #[error("num_workers is {found}; allowed are 1 to {}", MAX_WORKERS)]
    Workers {
        /// What was said.
        found: u32,
    },
    /// No such rank.
    #[error("rank is {found}; allowed are 0 to {}, as num_workers is {workers}", .workers - 1)]
    Rank {
        /// What was said.
        found: u32,
        /// The number of workers, as this request has it.
        workers: u32,
    },
    /// No such root.
    #[error("root is {found}; allowed are 0 to {}, as num_workers is {workers}", .workers - 1)]
    Root {
        /// What was said.
        found: u32,
        /// The number of workers, as this request has it.
        workers: u32,
    },
    /// Another number of workers, or another root, than the ranks before said.
    #[error(
        "{what} is {found}, but a job with {what} {allowed} is being set up here: {present} came first; {}",
        LISTEN_HINT
    )]
    Differs {
        /// The field.
        what: &'static str,
        /// What was said.
        found: u32,
        /// What the others said.
        allowed: u32,
        /// The others.
        present: Ranks,
    },
    /// Two connections claim a rank: two jobs came at once, and nothing says which rank is of
    /// which.
    #[error(
        "rank {rank} of {workers} came twice, from {first} and from {second}: two jobs at one listen address, whose ranks cannot be told apart, so both are refused; {}",
        LISTEN_HINT
    )]
    Mixed {
        /// The rank.
        rank: u32,
        /// Workers of each job.
        workers: u32,
        /// Where the first came from.
        first: SocketAddr,
        /// Where the second came from.
        second: SocketAddr,
    },
    /// Two jobs came at once a moment ago, and this may be one of their ranks.
    #[error(
        "two jobs met at this listen address less than {} s ago, and rank {rank} may be of either; {}", .quiet.as_secs_f64(),
        LISTEN_HINT
    )]
    MixedBefore {
        /// The rank.
        rank: u32,
        /// How long all are refused.
        quiet: Duration,
    },
    /// Another job has the address, and this could be one of its ranks that came too late.
    #[error(
        "job {session} has this listen address as long as its connections are open ({present}), and this call is of none of its workers: if it belongs to that job, the job's sums are mixed with another's, so end it; {}",
        LISTEN_HINT
    )]
    AddressHeld {
        /// The job.
        session: SessionId,
        /// Its connections.
        present: Ranks,
    },
    /// The listen address is for other workers.
    #[error(
        "rank {rank} of {workers} calls from {found}; this listen address is for {allowed} (workers in switchml.listen)"
    )]
    NotExpected {
        /// The rank.
        rank: u32,
        /// Of how many.
        workers: u32,
        /// Where the call came from.
        found: IpAddr,
        /// The workers that the configuration lists, by rank.
        allowed: Peers,
    },
    /// The number of another session.
    #[error("{session} is the number of another job, which {found} has no part in as rank {rank}")]
    Number {
        /// The number.
        session: SessionId,
        /// The rank that brought it.
        rank: u32,
        /// Where the call came from.
        found: IpAddr,
    },
    /// Another host has this rank in the job.
    #[error("rank {rank} of job {session} is at {allowed}; this call is from {found}")]
    RankOfJob {
        /// The job.
        session: SessionId,
        /// The rank.
        rank: u32,
        /// Where the call came from.
        found: IpAddr,
        /// Where the rank is.
        allowed: IpAddr,
    },
    /// Another host was let in as this station.
    #[error(
        "{station} is rank {rank} of session {session}, which {allowed} was let in as: only calls from there, or from the station's own address, may begin it anew, and this one is from {found}"
    )]
    StationTaken {
        /// The station.
        station: HostAddress,
        /// Its session.
        session: SessionId,
        /// Its rank there.
        rank: u32,
        /// Where the call came from.
        found: IpAddr,
        /// From where it may come.
        allowed: IpAddr,
    },
    /// A host has begun too many sessions whose workers have not come.
    #[error("{allowed} sessions that {peer} began wait for their workers, and no more may")]
    Waiting {
        /// The host.
        peer: IpAddr,
        /// How many may.
        allowed: usize,
    },
    /// A host has too many calls that wait.
    #[error("{allowed} calls from {peer} wait for their answers, and no more may")]
    Calls {
        /// The host.
        peer: IpAddr,
        /// How many may.
        allowed: usize,
    },
    /// The same connection called again for the same rank; this is what its earlier call hears.
    #[error("rank {rank} called {meeting} again, on the same connection")]
    CalledAgain {
        /// What was called.
        meeting: Meeting,
        /// By whom.
        rank: u32,
    },
    /// A rank's connection has closed.
    #[error("{lost} closed its connection, and this {meeting} of {workers} workers needs it")]
    Lost {
        /// What was waited for.
        meeting: Meeting,
        /// Who has gone; one.
        lost: Ranks,
        /// Of how many.
        workers: u32,
    },
    /// A rank has gone over to another job.
    #[error("{left} left job {session} for another one while others waited for it")]
    Left {
        /// Who has gone; one.
        left: Ranks,
        /// The job.
        session: SessionId,
    },
    /// A connection without a rank has closed.
    #[error("the connection from {lost} closed, and this Barrier of {workers} workers needs it")]
    StrangerLost {
        /// Where it came from.
        lost: SocketAddr,
        /// Of how many.
        workers: u32,
    },
    /// Not all came in time.
    #[error("{meeting} of {workers} workers: within {} s there came no {missing}", .patience.as_secs_f64())]
    Late {
        /// What was waited for.
        meeting: Meeting,
        /// How many were to come.
        workers: u32,
        /// How long was waited.
        patience: Duration,
        /// Who did not come.
        missing: Ranks,
    },
    /// Not all came in time to a barrier of connections without a rank.
    #[error(
        "Barrier of {workers} workers: within {} s there came only {}, from {present}", .patience.as_secs_f64(), .present.0.len()
    )]
    StrangersLate {
        /// How many were to come.
        workers: u32,
        /// How long was waited.
        patience: Duration,
        /// Who came.
        present: Strangers,
    },
    /// Another number of workers than the job has.
    #[error("num_workers of this Barrier is {found}; its job's is {allowed}")]
    BarrierWorkers {
        /// What was said.
        found: u32,
        /// What the job has.
        allowed: u32,
    },
    /// A job with the same number was begun anew.
    #[error("job {session} was begun anew by other connections")]
    Superseded {
        /// The number that its root gave it.
        session: SessionId,
    },
    /// A host may not call.
    #[error("{peer} is in none of the networks of switchml.allow; its connection was closed")]
    NotAllowed {
        /// The host.
        peer: IpAddr,
    },
    /// A host has too many connections.
    #[error("{peer} has {allowed} connections open, and no more may; its connection was closed")]
    Connections {
        /// The host.
        peer: IpAddr,
        /// How many may.
        allowed: usize,
    },
    /// All hosts together have too many.
    #[error(
        "all {allowed} connections that the switch has descriptors for are open; this one was closed"
    )]
    AllConnections {
        /// How many may.
        allowed: usize,
    },
    /// No packet has that size.
    #[error("packet_size is {found}; allowed are 0 (128 bytes) to 6 (8192 bytes)")]
    Size {
        /// What was said.
        found: i32,
    },
    /// The switch's ports do not carry packets of that size.
    #[error("packets of {found} bytes are too large: the switch's ports carry up to {allowed}")]
    SizeOfPorts {
        /// Bytes of a packet's elements.
        found: usize,
        /// The most.
        allowed: usize,
    },
    /// No station has this address.
    #[error(
        "mac is {found:#x}; allowed is the address of one station, its first byte the most significant of 48 bits"
    )]
    Mac {
        /// What was said.
        found: u64,
    },
    /// No host has this address.
    #[error("ipv4 is {found} ({:#x}); allowed is the address of one host, as an integer in host order", .found.to_bits())]
    Ip {
        /// What was said.
        found: Ipv4Addr,
    },
    /// The switch itself has this address.
    #[error("{mac} {ip} is, or is half of, the switch's own address")]
    Own {
        /// What was said.
        mac: Mac,
        /// What was said.
        ip: Ipv4Addr,
    },
    /// Something differs from what the session's other ranks said.
    #[error("{what} is {found}; in session {session} it is {allowed}")]
    SessionDiffers {
        /// The session.
        session: SessionId,
        /// The field.
        what: &'static str,
        /// What was said.
        found: u32,
        /// What the others said.
        allowed: u32,
    },
    /// Another station has this rank.
    #[error("rank {rank} of session {session} is {allowed}, and cannot be {found} too")]
    RankOfSession {
        /// The session.
        session: SessionId,
        /// The rank.
        rank: u32,
        /// Who asks.
        found: HostAddress,
        /// Who has it.
        allowed: HostAddress,
    },
    /// This station has another rank.
    #[error("{station} is rank {allowed} of session {session}, and cannot be rank {found} too")]
    StationOfSession {
        /// The session.
        session: SessionId,
        /// Who asks.
        station: HostAddress,
        /// For which rank.
        found: u32,
        /// Which it has.
        allowed: u32,
    },
    /// All sessions are in use.
    #[error(
        "all {allowed} sessions that the switch is configured for (switchml.sessions) are in use"
    )]
    Full {
        /// How many there are.
        allowed: usize,
    },
    /// The data path did not take the session.
    #[error("the switch cannot begin session {session}: {why}")]
    Bind {
        /// The session.
        session: SessionId,
        /// Why, in its words.
        why: String,
    },
    /// The session ended while its ranks met.
    #[error("session {session} has ended: {why}")]
    Ended {
        /// The session.
        session: SessionId,
        /// Why.
        why: super::End,
    },
}

impl Refusal {
    /// Its status code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Workers { .. }
            | Self::Rank { .. }
            | Self::Root { .. }
            | Self::Differs { .. }
            | Self::BarrierWorkers { .. }
            | Self::Size { .. }
            | Self::SizeOfPorts { .. }
            | Self::Mac { .. }
            | Self::Ip { .. }
            | Self::Own { .. }
            | Self::SessionDiffers { .. } => Code::InvalidArgument,
            Self::RankOfSession { .. }
            | Self::StationOfSession { .. }
            | Self::Number { .. }
            | Self::RankOfJob { .. } => Code::AlreadyExists,
            Self::StationTaken { .. } | Self::NotExpected { .. } | Self::NotAllowed { .. } => {
                Code::PermissionDenied
            }
            Self::Mixed { .. }
            | Self::MixedBefore { .. }
            | Self::AddressHeld { .. }
            | Self::CalledAgain { .. }
            | Self::Left { .. }
            | Self::Superseded { .. }
            | Self::Ended { .. } => Code::Aborted,
            Self::Lost { .. } | Self::StrangerLost { .. } => Code::Unavailable,
            Self::Late { .. } | Self::StrangersLate { .. } => Code::DeadlineExceeded,
            Self::Full { .. }
            | Self::Waiting { .. }
            | Self::Calls { .. }
            | Self::Connections { .. }
            | Self::AllConnections { .. } => Code::ResourceExhausted,
            Self::Bind { .. } => Code::Internal,
        }
    }
}
