//! Asks the switch for each job, without becoming a member.
//!
//! A JOIN with another challenge than the current one has no effect but REFUSE(CHALLENGE) (J-2),
//! and 0 never is the current one. That answer has a MAC under the job's key; a switch that does
//! not know the job, or has another key for it, answers with a hint (section 4). So each of the
//! three is told apart, and a place is never taken, refreshed or given up, nor an incarnation
//! opened.

use crate::link::{Link, LinkError};
use std::time::{Duration, Instant};
use tally_endpoint::Transmit;
use tally_wire::control::{DATAGRAM_BYTES, JoinTree, Reason, Role};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Join, Key, Kind, MAX_WORKERS, Part,
    Rank, Refuse,
};

/// For the answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Before it is asked again; twice as long each time.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Datagrams that leave as one.
const TRAIN: usize = 4;
/// For an answer to a train, and how often it is sent: one may be lost.
const TRAIN_WITHIN: Duration = Duration::from_millis(300);
const TRAINS: u32 = 3;

/// A job to ask for.
pub(super) struct Asked {
    pub(super) job: JobId,
    pub(super) key: Key,
    pub(super) workers: u16,
    pub(super) units: u8,
    pub(super) window: u16,
}

/// A job as the switch has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// Its workers; `None` if the switch does not say.
    pub(super) workers: Option<u16>,
    /// Whether its parameter server has joined.
    pub(super) has_ps: bool,
}

/// What the switch says of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It knows the job, and has our key.
    Known(Job),
    /// It does not know the job.
    Unknown,
    /// It has another key.
    OtherKey,
    /// It claims to know the job, under another key than ours: it is not the switch.
    Forged,
}

/// Asks for all jobs until each is answered, or for two seconds; `None` for those that are not.
pub(super) fn ask(
    link: &mut dyn Link,
    port: u16,
    jobs: &[Asked],
    instance: u64,
) -> Result<Vec<Option<Said>>, LinkError> {
    let mut said = vec![None; jobs.len()];
    let began = Instant::now();
    let (mut next, mut pause) = (began, AGAIN_AFTER);
    while said.contains(&None) && began.elapsed() < ANSWER_WITHIN {
        if Instant::now() >= next {
            for (of, _) in jobs.iter().zip(&said).filter(|(_, said)| said.is_none()) {
                send(link, port, of, instance, 1)?;
            }
            next = Instant::now() + pause;
            pause *= 2;
        }
        link.receive(&mut |_, datagram| {
            for (of, said) in jobs.iter().zip(&mut said) {
                // The first word counts, but for a forged one.
                let new = answer(datagram, of, instance);
                if new.is_some() && (said.is_none() || *said == Some(Said::Forged)) {
                    *said = new;
                }
            }
        })?;
        if said.contains(&None) {
            link.wait(Duration::from_millis(10), Duration::ZERO, None)?;
        }
    }
    Ok(said)
}

/// Whether datagrams get to the switch that are handed to the kernel as one.
pub(super) fn trains_arrive(
    link: &mut dyn Link,
    port: u16,
    of: &Asked,
    instance: u64,
) -> Result<bool, LinkError> {
    for n in 0..TRAINS {
        // Of its own, so that answers to what was asked before do not count.
        let instance = instance.wrapping_add(1 + u64::from(n)).max(1);
        send(link, port, of, instance, TRAIN)?;
        let until = Instant::now() + TRAIN_WITHIN;
        while Instant::now() < until {
            let mut answered = false;
            link.receive(&mut |_, datagram| answered |= answer(datagram, of, instance).is_some())?;
            if answered {
                return Ok(true);
            }
            link.wait(Duration::from_millis(10), Duration::ZERO, None)?;
        }
    }
    Ok(false)
}

/// Sends `n` JOINs at once. A link that does not take any now is asked again with the next ones.
fn send(
    link: &mut dyn Link,
    port: u16,
    of: &Asked,
    instance: u64,
    n: usize,
) -> Result<(), LinkError> {
    let mut left = n;
    link.send(&mut |out| {
        left = left.checked_sub(1)?;
        let len = join(out, of, instance);
        Some(Transmit { len, port })
    })?;
    Ok(())
}

fn join(out: &mut [u8], of: &Asked, instance: u64) -> usize {
    let header = Header {
        kind: Kind::Join,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job: of.job,
        epoch: Epoch(0),
        fragment: FragmentId(0),
        rank: Rank(0),
        units: CONTROL_UNITS,
        bitmap: 0,
        tag: AuthTag::NONE,
    };
    header.emit(out);
    let is_wide = usize::from(of.workers) > MAX_WORKERS;
    let join = Join {
        instance,
        challenge: 0,
        role: Role::Worker,
        // A wide job's rank and workers are behind the header (TR-20).
        workers: if is_wide { 0 } else { of.workers as u8 },
        units: of.units,
        running: false,
        window: of.window,
        shape: [0; 32],
        sent: None,
        awaiting: 0,
        salt: 0,
        tree: is_wide.then_some(JoinTree::Worker {
            rank: 0,
            workers: of.workers,
        }),
        part: Part::ONLY,
    };
    join.emit(out);
    of.key.seal(out);
    DATAGRAM_BYTES
}

fn answer(datagram: &[u8], of: &Asked, instance: u64) -> Option<Said> {
    let header = Header::parse(datagram).ok()?;
    if header.kind != Kind::Refuse || header.job != of.job {
        return None;
    }
    let refuse = Refuse::parse(datagram).ok()?;
    if refuse.instance != instance {
        return None;
    }
    Some(match refuse.reason {
        Reason::UnknownJob => Said::Unknown,
        Reason::BadMac => Said::OtherKey,
        _ if of.key.verify(datagram) => {
            let says = refuse.reason == Reason::Challenge;
            let workers = u16::try_from(refuse.allowed).ok();
            Said::Known(Job {
                workers: workers.filter(|&n| says && n > 0),
                has_ps: refuse.found > 0,
            })
        }
        _ => Said::Forged,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked {
            job: JobId(7),
            key: Key::new(&[1; 16]).unwrap(),
            workers: 2,
            units: 16,
            window: 256,
        }
    }

    #[test]
    fn a_join_never_has_a_challenge_that_could_be_the_current_one() {
        let mut out = [0xa5; DATAGRAM_BYTES];
        assert_eq!(join(&mut out, &asked(), 9), DATAGRAM_BYTES);
        assert!(asked().key.verify(&out));
        let join = Join::parse(&out).unwrap();
        assert_eq!((join.challenge, join.instance), (0, 9));
        assert_eq!((join.workers, join.tree), (2, None));
        assert_eq!(Header::parse(&out).unwrap().epoch, Epoch(0));
        let workers = 65;
        let of = Asked { workers, ..asked() };
        super::join(&mut out, &of, 9);
        let join = Join::parse(&out).unwrap();
        let tree = JoinTree::Worker { rank: 0, workers };
        assert_eq!((join.workers, join.tree), (0, Some(tree)));
    }

    #[test]
    fn answers_are_told_apart() {
        let refuse = |reason, instance, key: Option<&Key>, found: u32, allowed: u32| {
            let mut out = [0; DATAGRAM_BYTES];
            join(&mut out, &asked(), 1);
            let header = Header {
                kind: Kind::Refuse,
                ..Header::parse(&out).unwrap()
            };
            header.emit(&mut out);
            let refuse = Refuse {
                instance,
                challenge: 5,
                reason,
                about: None,
                found,
                allowed,
                behind: 0,
                concern: None,
            };
            refuse.emit(&mut out);
            if let Some(key) = key {
                key.seal(&mut out);
            }
            out
        };
        let (of, other) = (asked(), Key::new(&[2; 16]).unwrap());
        let said = |datagram: [u8; DATAGRAM_BYTES]| answer(&datagram, &of, 9);
        let challenge = Reason::Challenge;
        let known = |workers, has_ps| Some(Said::Known(Job { workers, has_ps }));
        let ours = |found, allowed| said(refuse(challenge, 9, Some(&of.key), found, allowed));
        assert_eq!(ours(1, 4), known(Some(4), true));
        assert_eq!(ours(0, 4), known(Some(4), false));
        // As a switch says that does not know of these numbers.
        assert_eq!(ours(0, 0), known(None, false));
        assert_eq!(ours(1, 4096), known(Some(4096), true));
        assert_eq!(ours(0, 70_000), known(None, false));
        let forged = refuse(challenge, 9, Some(&other), 0, 0);
        assert_eq!(said(forged), Some(Said::Forged));
        let hint = |reason, instance| said(refuse(reason, instance, None, 0, 0));
        assert_eq!(hint(Reason::UnknownJob, 9), Some(Said::Unknown));
        assert_eq!(hint(Reason::BadMac, 9), Some(Said::OtherKey));
        assert_eq!(hint(Reason::BadMac, 8), None);
        assert_eq!(answer(&[0; 22], &of, 9), None);
    }
}
