//! What a session says of itself while it runs.

use serde::Serialize;
use tally_endpoint::{Members, Ranks, Server};
use tally_schema::agent::report::{Congestion, Latency, Retransmissions};
use tally_schema::agent::status::{Slowest, ranks_text};

/// What has become of a session, in numbers.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SessionReport {
    /// The job.
    pub job: u16,
    /// Its incarnation, once it runs.
    pub epoch: Option<u16>,
    /// Our rank, the first of several.
    pub rank: u16,
    /// Ranks of the job.
    pub workers: u16,
    /// Bytes of elements in a frame.
    pub payload_bytes: u32,
    /// Fragments that may be unfinished.
    pub window: u16,
    /// Collectives whose buffers have been fetched.
    pub collectives: u64,
    /// Collectives that were submitted and are not done.
    pub waiting: u64,
    /// Ranks that the first of them waits for, once it has done so for about a second.
    pub behind: Vec<u16>,
    /// The slowest rank, as far as all have said how much they wait.
    pub slowest: Option<Slowest>,
    /// Bytes of the buffers that have been fetched.
    pub bytes: u64,
    /// Fragments contributed, descriptors among them.
    pub fragments: u64,
    /// Results finished by the switch.
    pub from_switch: u64,
    /// Results finished by the parameter server.
    pub from_ps: u64,
    /// Contributions sent again.
    pub retransmissions: Retransmissions,
    /// Results sent to the parameter server for workers that had lost them.
    pub results_resent: u64,
    /// Results that had come before.
    pub duplicates: u64,
    /// Frames of another epoch.
    pub late: u64,
    /// Frames that were none of ours.
    pub foreign: u64,
    /// The lowest priority that a collective had.
    pub priority_min: Option<u8>,
    /// The highest.
    pub priority_max: Option<u8>,
    /// What the network said, and what it made of the windows.
    pub congestion: Congestion,
    /// From a contribution to its result.
    pub latency_us: Latency,
    /// Typical latency (lower quartile) now.
    pub typical_us: Option<f64>,
    /// Timeout now.
    pub rto_us: f64,
}

/// The members that a job waits for, in words. Each worker is `parts` ranks.
#[must_use]
pub fn missing(members: Members, parts: u16) -> Option<String> {
    let workers: Vec<_> = match members.range {
        Some(range) => range.iter().collect(),
        None => Ranks(members.missing).iter().map(u16::from).collect(),
    };
    let ranks = ranks_of(&workers, parts);
    match (ranks.is_empty(), members.missing_ps.map(Server)) {
        (true, None) => None,
        (true, Some(ps)) => Some(ps.to_string()),
        (false, None) => Some(ranks_text(&ranks)),
        (false, Some(ps)) => Some(format!("{} and {ps}", ranks_text(&ranks))),
    }
}

/// The ranks that workers are, `parts` each.
#[must_use]
pub fn ranks_of(workers: &[u16], parts: u16) -> Vec<u16> {
    let of = |worker: &u16| worker * parts..(worker + 1) * parts;
    workers.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::{Part, RankRange};

    #[test]
    fn missing_members_are_named() {
        let members = |bits, range: Option<(u16, u16)>, missing_ps| Members {
            joined: 0,
            missing: bits,
            range: range.and_then(|(first, end)| RankRange::new(first, end)),
            missing_ps,
        };
        let text = |it| missing(it, 1).unwrap_or_default();
        assert_eq!(missing(members(0, None, None), 1), None);
        assert_eq!(text(members(0b101, None, None)), "ranks 0, 2");
        let both = text(members(2, None, Some(Part::ONLY)));
        assert_eq!(both, "rank 1 and the parameter server");
        let one_of_four = text(members(0, None, Part::new(3, 4)));
        assert_eq!(one_of_four, "the parameter server of part 3 of 4");
        let many = text(members(0, Some((70, 90)), None));
        assert_eq!(many, "ranks 70 to 89");
        let one = text(members(0, Some((4095, 4096)), None));
        assert_eq!(one, "rank 4095");
        let of_hosts = missing(members(0b101, None, None), 2);
        assert_eq!(of_hosts.unwrap(), "ranks 0, 1, 4, 5");
    }
}
