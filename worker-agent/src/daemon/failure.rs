//! The agent's errors, as a training process gets to hear them, and what it waits for before there
//! is one.

use crate::error::AgentError;
use tally_endpoint::{Awaited, WorkerError};
use tally_local::{Awaited as Cause, Class, Failure, Ranks};
use tally_schema::agent::status::ranks_text;
use tally_verbs::Cause as RingCause;
use tally_wire::{Rank, RankRange};

impl From<&AgentError> for Failure {
    fn from(error: &AgentError) -> Self {
        let (class, ranks, hint) = match error {
            AgentError::Link(_) => (
                Class::Link,
                Ranks::NONE,
                "the agent's `transport` must suit this host",
            ),
            AgentError::Join { source, .. } => {
                let hint = match source {
                    WorkerError::NotStarted { .. } => {
                        "start all ranks of the job within the agents' `timeouts.join_ms`"
                    }
                    WorkerError::Window { .. } | WorkerError::Payload { .. } => {
                        "all agents of a job need the same `payload_bytes`, and no more than the switch takes"
                    }
                    _ => "",
                };
                (Class::Join, ranks_of(source), hint)
            }
            AgentError::Overflow { source, .. } => {
                let hint = "scale the elements down, or use a wider type";
                (Class::Overflow, ranks_of(source), hint)
            }
            AgentError::Mismatch { source, .. } => {
                let hint = "every rank must submit the same collectives in the same order";
                (Class::Mismatch, Ranks::of_bits(source.ranks.0), hint)
            }
            AgentError::Silence { source, .. } => {
                let ranks = ranks_of(source);
                let hint = if ranks.is_empty() {
                    "see whether all ranks are alive and came to this collective, and `tally-switch --stats`"
                } else {
                    "see what keeps it, or give it more time with the agents' `timeouts.stall_ms`"
                };
                (Class::Silence, ranks, hint)
            }
            AgentError::Job { source, .. } => {
                let hint = "see what that one's log says, and start the job again at all ranks";
                let ranks = ranks_of(source);
                (
                    Class::Member,
                    ranks,
                    if ranks.is_empty() { "" } else { hint },
                )
            }
            AgentError::Ring(error) => match error.cause {
                RingCause::Device(_) => (
                    Class::Link,
                    Ranks::NONE,
                    "see `rings[].address` of the agent, `rdma link`, and the agent's limit of locked memory \
                     (LimitMEMLOCK=infinity)",
                ),
                RingCause::Listen(..) => (
                    Class::Link,
                    Ranks::NONE,
                    "see `rings[].coordinator` of the agent: each ring needs a port of its own",
                ),
                RingCause::Join(_) => (
                    Class::Join,
                    Ranks::NONE,
                    "start all ranks of the ring within the agents' `timeouts.join_ms`",
                ),
                RingCause::Send { .. } | RingCause::Receive { .. } => (
                    Class::Silence,
                    Ranks::NONE,
                    "see whether the switch serves the ring (`tallyctl show rings`), and start again at all ranks",
                ),
                RingCause::Rendezvous(_)
                | RingCause::Message { .. }
                | RingCause::Poll(_)
                | RingCause::Ended => (
                    Class::Member,
                    Ranks::NONE,
                    "see what that one's log says, and start again at all ranks",
                ),
            },
            AgentError::Interrupted => (Class::Stopped, Ranks::NONE, ""),
            _ => (Class::Other, Ranks::NONE, ""),
        };
        // The text for people names job and rank.
        let text = error.to_string();
        let text = text
            .strip_prefix("job ")
            .and_then(|rest| rest.split_once(" failed: "))
            .filter(|(job, _)| job.bytes().all(|byte| byte.is_ascii_digit()))
            .map_or(text.as_str(), |(_, rest)| rest);
        let separator = if hint.is_empty() { "" } else { "; " };
        Self {
            class,
            ranks,
            text: format!("{text}{separator}{hint}"),
        }
    }
}

/// The error, for processes of a worker that is `parts` ranks: its ranks are those of the job.
pub(super) fn failure_of(error: &AgentError, parts: u16) -> Failure {
    let failure = Failure::from(error);
    Failure {
        ranks: of_workers(failure.ranks, parts),
        text: with_hosts(failure.text, parts),
        ..failure
    }
}

/// The error of a rack's session, whose ranks are hosts from `first` on, each of `parts` ranks.
pub(super) fn failure_in_rack(error: &AgentError, first: u16, parts: u16) -> Failure {
    let failure = Failure::from(error);
    let hosts = failure.ranks.iter().map(|host| first + host);
    let ranks: Vec<u16> = hosts
        .flat_map(|host| host * parts..(host + 1) * parts)
        .collect();
    let text = if ranks.is_empty() || (first, parts) == (0, 1) {
        failure.text
    } else {
        let numbers = ranks_text(&ranks);
        format!(
            "{numbers} (numbers of hosts in their rack follow): {}",
            failure.text
        )
    };
    Failure {
        ranks: set_of(&ranks),
        text,
        ..failure
    }
}

/// Some ranks, as errors have them: without those behind the first run, if any is above the first
/// 64.
pub(super) fn set_of(ranks: &[u16]) -> Ranks {
    if ranks.iter().all(|&rank| rank < 64) {
        return Ranks::of_bits(ranks.iter().fold(0, |bits, rank| bits | 1 << rank));
    }
    let first = ranks.first().copied().unwrap_or_default();
    let run = (first..).zip(ranks).take_while(|(a, b)| a == *b).count();
    Ranks::of_range(first, first + run as u16)
}

/// The ranks that workers are, `parts` each; without those behind the first run, if any is above
/// the first 64.
fn of_workers(workers: Ranks, parts: u16) -> Ranks {
    if parts == 1 {
        return workers;
    }
    let of = |worker: u16| worker * parts..(worker + 1) * parts;
    if workers.iter().flat_map(of).all(|rank| rank < 64) {
        let bits = workers
            .iter()
            .flat_map(of)
            .fold(0, |bits, rank| bits | 1 << rank);
        return Ranks::of_bits(bits);
    }
    let run = workers.run();
    run.map_or(Ranks::NONE, |(first, end)| {
        Ranks::of_range(first * parts, end * parts)
    })
}

/// A text in which ranks are those of the switch, said so.
fn with_hosts(text: String, parts: u16) -> String {
    match parts {
        1 => text,
        _ => format!(
            "{text} (ranks here are hosts: rank 1 is ranks {parts} to {} of the job)",
            2 * parts - 1
        ),
    }
}

/// What a process's oldest collective waits for, from
/// [`Session::stall`](crate::session::Session::stall).
pub(super) fn cause(stall: Option<(WorkerError, Option<String>)>, parts: u16) -> Cause {
    let Some((error, name)) = stall else {
        let text = "the agent has no collective of this process under way".into();
        return Cause {
            ranks: Ranks::NONE,
            text,
        };
    };
    let ranks = of_workers(ranks_of(&error), parts);
    let text = match error {
        WorkerError::Stalled {
            after,
            awaited: Awaited::Unknown,
            missing_ps: None,
            ..
        } => format!(
            "no result for {after:?}, although the switch answers; the agent does not know which ranks are missing, \
             and does at the earliest 1.5 s after the last result"
        ),
        error => error.to_string(),
    };
    let text = match name.filter(|it| !it.is_empty()) {
        Some(name) => format!("waiting for {name}: {text}"),
        None => text,
    };
    let text = with_hosts(text, parts);
    Cause { ranks, text }
}

/// The ranks that an error is about.
fn ranks_of(error: &WorkerError) -> Ranks {
    let one = |rank: &Option<Rank>| {
        let rank = rank.filter(|it| it.0 < 64).map(|it| u16::from(it.0));
        rank.map_or(Ranks::NONE, |rank| Ranks::of_range(rank, rank + 1))
    };
    let range = |range: RankRange| Ranks::of_range(range.first(), range.end());
    match error {
        WorkerError::NotStarted {
            range: Some(missing),
            ..
        } => range(*missing),
        WorkerError::NotStarted { missing, .. } => Ranks::of_bits(missing.0),
        WorkerError::MemberLost { rank } | WorkerError::MemberFailed { rank, .. } => one(rank),
        WorkerError::Stalled { awaited, .. } => match awaited {
            Awaited::Ranks(ranks) => Ranks::of_bits(ranks.0),
            Awaited::Range(ranks) => range(*ranks),
            Awaited::NoRank | Awaited::Unknown => Ranks::NONE,
        },
        WorkerError::GaveUp { behind, .. } => Ranks::of_bits(behind.0),
        WorkerError::Payload { by, .. } | WorkerError::Shape { by } => one(by),
        WorkerError::InTree(it) => {
            let ranks = it.concern.behind.or(it.concern.ranks);
            ranks.map_or(Ranks::NONE, range)
        }
        _ => Ranks::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Mismatch;
    use std::time::Duration;
    use tally_endpoint::{Ranks as Bits, TreeFailure};
    use tally_wire::SwitchName;
    use tally_wire::control::{Concern, LeaveCode, Reason};

    fn range(first: u16, end: u16) -> RankRange {
        RankRange::new(first, end).unwrap()
    }

    #[test]
    fn ranks_of_hosts_are_those_of_the_job() {
        let bits = |workers: u64, parts| of_workers(Ranks::of_bits(workers), parts).bits();
        assert_eq!(bits(0b101, 1), 0b101);
        assert_eq!(bits(0b101, 2), 0b11_0011);
        assert_eq!(of_workers(Ranks::NONE, 4), Ranks::NONE);
        let run = |workers, parts| of_workers(workers, parts).run();
        assert_eq!(run(Ranks::of_bits(1 << 40), 2), Some((80, 82)));
        assert_eq!(run(Ranks::of_bits(1 << 63), 64), Some((4032, 4096)));
        assert_eq!(run(Ranks::of_range(100, 103), 8), Some((800, 824)));
        let lost = AgentError::Job {
            job: 7,
            source: WorkerError::MemberLost {
                rank: Some(Rank(1)),
            },
        };
        let failure = failure_of(&lost, 4);
        assert_eq!(failure.ranks.bits(), 0b1111_0000);
        let hosts = "(ranks here are hosts: rank 1 is ranks 4 to 7 of the job)";
        assert!(failure.text.ends_with(hosts), "{}", failure.text);
        assert_eq!(failure_of(&lost, 1), Failure::from(&lost));
    }

    #[test]
    fn a_cause_names_the_collective_and_the_ranks_as_far_as_they_are_known() {
        let stalled = |awaited| WorkerError::Stalled {
            after: Duration::from_millis(2300),
            fragment: 3,
            awaited,
            missing_ps: None,
        };
        let name = || Some("layer1.weight".to_owned());
        let known = cause(Some((stalled(Awaited::Ranks(Bits(0b100))), name())), 1);
        assert_eq!(known.ranks.bits(), 0b100);
        assert_eq!(
            known.text,
            "waiting for layer1.weight: no result for 2.3s, although the switch answers: rank 2 has not contributed"
        );
        let unknown = cause(Some((stalled(Awaited::Unknown), name())), 1);
        assert!(unknown.ranks.is_empty());
        let text = unknown.text;
        assert!(text.contains("does not know which ranks"), "{text}");
        let silent = WorkerError::SwitchSilent {
            after: Duration::from_secs(2),
            hint: None,
        };
        let text = cause(Some((silent, None)), 1).text;
        assert!(text.contains("silent for 2s"), "{text}");
        let not_started = WorkerError::NotStarted {
            after: Duration::from_secs(2),
            missing: Bits(0b1010),
            range: None,
            missing_ps: None,
            hint: None,
        };
        let joining = cause(Some((not_started, None)), 1);
        assert_eq!(joining.ranks.bits(), 0b1010);
        let text = joining.text;
        assert!(text.contains("ranks 1, 3 are missing"), "{text}");
        let many = cause(
            Some((stalled(Awaited::Range(range(4000, 4096))), name())),
            1,
        );
        assert_eq!(many.ranks, Ranks::of_range(4000, 4096));
        let text = many.text;
        assert!(text.contains("ranks 4000 to 4095 have not"), "{text}");
        let not_started = WorkerError::NotStarted {
            after: Duration::from_secs(2),
            missing: Bits(0),
            range: Some(range(70, 90)),
            missing_ps: None,
            hint: None,
        };
        let joining = cause(Some((not_started, None)), 1);
        assert_eq!(joining.ranks, Ranks::of_range(70, 90));
        let text = joining.text;
        assert!(text.contains("ranks 70 to 89 are missing"), "{text}");
        assert!(cause(None, 1).text.contains("no collective"));
    }

    /// TR-25: a failure elsewhere in a tree has the class of the same failure without one.
    #[test]
    fn failures_in_a_tree_have_their_class_and_ranks() {
        let failure = |reason, found| {
            let source = WorkerError::InTree(Box::new(TreeFailure {
                reason,
                found,
                allowed: 5000,
                concern: Concern {
                    ranks: RankRange::new(8, 12),
                    switch: SwitchName::new("leaf3"),
                    whole: true,
                    behind: (found == LeaveCode::Stalled as u32)
                        .then(|| RankRange::one(13))
                        .flatten(),
                },
                fragment: None,
                ours: false,
            }));
            Failure::from(&AgentError::of_session(source, 7, 1, false, None, |_| None))
        };
        let lost = failure(Reason::MemberLost, 5003);
        assert_eq!((lost.class, lost.ranks.bits()), (Class::Member, 0xf00));
        let want = "ranks 8 to 11 lost: switch \"leaf3\" silent for 5.003s";
        assert!(lost.text.starts_with(want), "{}", lost.text);
        let stalled = failure(Reason::MemberFailed, LeaveCode::Stalled as u32);
        assert_eq!(
            (stalled.class, stalled.ranks.bits()),
            (Class::Silence, 1 << 13)
        );
        assert!(
            stalled.text.contains("rank 13 has not contributed"),
            "{}",
            stalled.text
        );
        let overflow = failure(Reason::MemberFailed, LeaveCode::Overflow as u32);
        assert_eq!(overflow.class, Class::Overflow);
    }

    #[test]
    fn classes_ranks_and_words_are_those_of_the_error() {
        let lost = AgentError::Job {
            job: 7,
            source: WorkerError::MemberLost {
                rank: Some(Rank(2)),
            },
        };
        let failure = Failure::from(&lost);
        assert_eq!(
            (failure.class, failure.ranks.bits()),
            (Class::Member, 0b100)
        );
        assert!(
            failure.text.starts_with("rank 2 has been silent"),
            "{}",
            failure.text
        );
        assert!(failure.text.ends_with("at all ranks"), "{}", failure.text);

        let missing = AgentError::Join {
            job: 7,
            rank: 0,
            source: WorkerError::NotStarted {
                after: Duration::from_secs(1),
                missing: Bits(0b1010),
                range: None,
                missing_ps: None,
                hint: None,
            },
            trouble: None,
        };
        let failure = Failure::from(&missing);
        assert_eq!((failure.class, failure.ranks.bits()), (Class::Join, 0b1010));
        assert!(
            failure.text.contains("ranks 1, 3 are missing"),
            "{}",
            failure.text
        );
        assert!(
            failure.text.contains("timeouts.join_ms"),
            "{}",
            failure.text
        );

        let stalled = AgentError::Silence {
            job: 7,
            source: WorkerError::Stalled {
                after: Duration::from_secs(10),
                fragment: 3,
                awaited: Awaited::Ranks(Bits(0b101)),
                missing_ps: None,
            },
            tensors: Some("layer1.weight".into()),
            trouble: None,
        };
        let failure = Failure::from(&stalled);
        assert_eq!(
            (failure.class, failure.ranks.bits()),
            (Class::Silence, 0b101)
        );
        assert!(
            failure.text.starts_with(
                "waiting for layer1.weight: no result for 10s, although the switch answers: \
                 ranks 0, 2 have not contributed; "
            ),
            "{}",
            failure.text
        );

        let differ = AgentError::Mismatch {
            job: 7,
            source: Box::new(Mismatch {
                ticket: 3,
                ours: "a".into(),
                ranks: Bits(1 << 63),
                differing: vec![(Bits(1 << 63), "b".into())],
                majority: Some("a".into()),
                unlike: None,
            }),
        };
        let failure = Failure::from(&differ);
        assert_eq!(
            (failure.class, failure.ranks.bits()),
            (Class::Mismatch, 1 << 63)
        );
        assert!(failure.text.contains("rank 63"), "{}", failure.text);
    }
}
