//! Membership of the job: JOIN, LEAVE, the switch's answers, and the session's end.

use super::awaiting::Awaiting;
use super::congestion::{Congestion, in_flight};
use super::interface::{Event, Members, WorkerConfig};
use super::place::Global;
use super::{ALIVE, EAGER, Phase, Worker};
use crate::Transmit;
use crate::error::{Awaited, Hint, Ranks, TreeFailure, WorkerError};
use core::time::Duration;
use tally_wire::control::{JoinTree, LeaveCode, LeaveTree, Reason, Role, State};
use tally_wire::{
    Accept, Epoch, FragmentId, Join, Leave, MAX_WORKERS, Part, Rank, RankRange, Refuse, Time,
    all_ranks,
};

/// How long LEAVE with an error is repeated without an answer.
const LEAVE_FAILED: Duration = Duration::from_millis(300);

impl Worker {
    pub(super) fn handle_accept(&mut self, now: Time, epoch: Epoch, accept: Accept) {
        match self.phase {
            Phase::Closed => return,
            // Once contributions are out under an epoch, another one is not ours.
            Phase::Running | Phase::Leaving { .. }
                if (epoch, accept.salt) != (self.control.epoch, self.control.salt) =>
            {
                self.stats.late += 1;
                return;
            }
            _ => {}
        }
        self.last_heard = now;
        self.hint = None;
        self.control.enter(epoch, &accept);
        let news = self.members() != Some(members(&accept));
        if let Some(place) = accept.place {
            self.local = place.local;
        }
        self.came |= members(&accept).joined;
        self.accepted = Some(accept);
        self.told = accept.behind.map(|behind| (now, behind));
        match (&self.phase, accept.state) {
            (Phase::Joining, State::Running) => {
                self.phase = Phase::Running;
                self.awaiting = Awaiting::new(now);
                if !self.delivered {
                    self.awaiting.begins(now);
                }
                self.next_control = now.after(ALIVE);
                self.last_progress = now;
                self.events.push_back(Event::Running { epoch });
                self.leave_if_done(now);
            }
            (Phase::Joining, State::Waiting) if news => {
                self.events.push_back(Event::Waiting(members(&accept)));
            }
            // An ACCEPT that was under way when we left with an error may be mistaken for the
            // answer; then the switch notices our silence instead.
            (Phase::Leaving { error, .. }, state) if error.is_some() || state == State::Ended => {
                self.close();
            }
            _ => {}
        }
    }

    pub(super) fn handle_refuse(&mut self, now: Time, refuse: &Refuse) {
        if self.is_closed() {
            return;
        }
        // Only hints come without authentication, and they do nothing else.
        match refuse.reason {
            Reason::UnknownJob => return self.hint = Some(Hint::UnknownJob),
            // The switch does not have the next key yet, or has lost the one before.
            Reason::BadMac if self.control.next_key.is_some() => return,
            Reason::BadMac => return self.hint = Some(Hint::BadKey),
            _ => {}
        }
        self.last_heard = now;
        if refuse.reason == Reason::Challenge {
            if self.control.challenge != refuse.challenge {
                self.control.challenge = refuse.challenge;
                self.next_control = now;
            }
            return;
        }
        if matches!(self.phase, Phase::Leaving { .. }) {
            return self.close();
        }
        let (found, allowed) = (refuse.found, refuse.allowed);
        if let Some(failure) = self.failure_in_tree(refuse) {
            return self.fail(WorkerError::InTree(Box::new(failure)));
        }
        let error = match refuse.reason {
            // Nor is a worker told of the parts of parameter servers.
            Reason::UnknownJob | Reason::BadMac | Reason::Challenge | Reason::Parts => return,
            Reason::RankTaken => return self.hint = Some(Hint::RankTaken),
            Reason::Draining => return self.hint = Some(Hint::Draining),
            Reason::TenantJobs => return self.hint = Some(Hint::TenantJobs(found, allowed)),
            Reason::TenantWorkers => return self.hint = Some(Hint::TenantWorkers(found, allowed)),
            Reason::Parent => return self.hint = Some(Hint::of_parent(refuse)),
            Reason::BadRank => WorkerError::BadRank {
                rank: found,
                workers: allowed,
            },
            Reason::Workers => WorkerError::Workers {
                expected: found,
                workers: allowed,
            },
            Reason::Payload => WorkerError::Payload {
                found,
                allowed,
                by: refuse.about,
            },
            Reason::Shape => WorkerError::Shape { by: refuse.about },
            // A copy of a JOIN from before the window was made smaller.
            Reason::Window if u32::from(self.config.window) <= allowed => return,
            Reason::Window if matches!(self.phase, Phase::Joining) && allowed >= 1 => {
                let allowed = u16::try_from(allowed).unwrap_or(u16::MAX);
                self.config.window = self.config.window.min(allowed);
                self.window.narrow(self.config.window);
                self.congestion = Congestion::new(in_flight(self.config.window));
                return self.next_control = now;
            }
            Reason::Window => WorkerError::Window { found, allowed },
            Reason::MemberLost => WorkerError::MemberLost { rank: refuse.about },
            Reason::MemberFailed if refuse.behind != 0 => WorkerError::GaveUp {
                rank: refuse.about,
                behind: Ranks(refuse.behind),
                fragment: self.window.seq_of(FragmentId(allowed)),
                ours: refuse.behind & self.local.bit() != 0,
            },
            Reason::MemberFailed => {
                let code = LeaveCode::from_number(found);
                let overflow = code == Some(LeaveCode::Overflow);
                let fragment = self.window.seq_of(FragmentId(allowed));
                WorkerError::MemberFailed {
                    rank: refuse.about,
                    code,
                    fragment: fragment.filter(|_| overflow),
                }
            }
            Reason::StaleEpoch => WorkerError::StaleEpoch,
            Reason::Removed => WorkerError::Removed,
        };
        self.fail(error);
    }

    /// A final reason that concerns ranks and switches of a tree.
    fn failure_in_tree(&self, refuse: &Refuse) -> Option<TreeFailure> {
        let concern = refuse.concern.filter(|_| refuse.reason.is_final())?;
        let mut failure = TreeFailure {
            reason: refuse.reason,
            found: refuse.found,
            allowed: refuse.allowed,
            concern,
            fragment: None,
            ours: (concern.behind).is_some_and(|it| it.contains(self.config.rank)),
        };
        if failure.code() == Some(LeaveCode::Overflow) {
            failure.fragment = self.window.seq_of(FragmentId(refuse.allowed));
        }
        Some(failure)
    }

    pub(super) fn fail(&mut self, error: WorkerError) {
        self.phase = Phase::Closed;
        self.events.push_back(Event::Failed(error));
    }

    /// Ends *leaving*.
    pub(super) fn close(&mut self) {
        if let Phase::Leaving { error, .. } = core::mem::replace(&mut self.phase, Phase::Closed) {
            self.events.push_back(match error {
                None => Event::Finished,
                Some(error) => Event::Failed(error),
            });
        }
    }

    pub(super) fn leave_if_done(&mut self, now: Time) {
        if self.finishing && self.delivered && matches!(self.phase, Phase::Running) {
            self.next_control = now;
            self.phase = Phase::Leaving {
                code: LeaveCode::Finished,
                fragment: FragmentId(0),
                behind: Ranks(0),
                elsewhere: None,
                error: None,
                until: now.after(self.config.linger),
            };
        }
    }

    pub(super) fn leave_with(&mut self, now: Time, code: LeaveCode, seq: u64, error: WorkerError) {
        match self.phase {
            Phase::Closed => {}
            // Without an answer yet the switch knows nothing of us that it would have to forget.
            Phase::Joining if self.accepted.is_none() => self.fail(error),
            Phase::Leaving { error: Some(_), .. } => {}
            _ => {
                let (behind, elsewhere) = self.accused(&error);
                self.next_control = now;
                self.phase = Phase::Leaving {
                    code,
                    fragment: FragmentId(seq as u32),
                    behind,
                    elsewhere,
                    error: Some(error),
                    until: now.after(LEAVE_FAILED),
                };
            }
        }
    }

    /// Whom LEAVE names: local ranks, and global ones elsewhere.
    fn accused(&self, error: &WorkerError) -> (Ranks, Option<RankRange>) {
        let WorkerError::Stalled {
            awaited: Awaited::Ranks(_) | Awaited::Range(_),
            ..
        } = error
        else {
            return (Ranks(0), None);
        };
        let ranks = self.told.map_or(0, |(_, behind)| behind.ranks) & !self.local.bit();
        let place = self.accepted.as_ref().and_then(|accept| accept.place);
        (Ranks(ranks), place.and_then(|place| place.elsewhere))
    }

    /// What LEAVE says of our place in a tree.
    fn leave_tree(&self, behind: Option<RankRange>) -> Option<LeaveTree> {
        let wide = is_wide(&self.config);
        (wide || behind.is_some()).then_some(LeaveTree::Worker {
            rank: if wide { self.config.rank } else { 0 },
            behind,
        })
    }

    pub(super) fn transmit_control(&mut self, now: Time, out: &mut [u8]) -> Transmit {
        let len = match self.phase {
            Phase::Leaving {
                code,
                fragment,
                behind,
                elsewhere,
                ..
            } => {
                self.next_control = now.after(EAGER);
                let leave = Leave {
                    instance: self.control.instance,
                    challenge: self.control.challenge,
                    code,
                    fragment,
                    behind: behind.0,
                    salt: self.control.salt,
                    tree: self.leave_tree(elsewhere),
                };
                self.control.emit_leave(&leave, out)
            }
            _ => {
                let running = matches!(self.phase, Phase::Running);
                let wide = is_wide(&self.config);
                let eager = self.control.apart(EAGER, now);
                self.next_control = now.after(if running { ALIVE } else { eager });
                let join = Join {
                    instance: self.control.instance,
                    challenge: self.control.challenge,
                    role: Role::Worker,
                    workers: if wide { 0 } else { self.config.workers as u8 },
                    units: self.config.units,
                    running,
                    window: self.config.window,
                    shape: self.config.shape,
                    sent: running.then(|| FragmentId(self.window.next() as u32)),
                    awaiting: if running { self.awaiting.look(now) } else { 0 },
                    salt: self.control.salt,
                    tree: wide.then_some(JoinTree::Worker {
                        rank: self.config.rank,
                        workers: self.config.workers,
                    }),
                    part: Part::ONLY,
                };
                self.control.emit_join(&join, out)
            }
        };
        Transmit {
            len,
            port: self.config.port,
        }
    }
}

/// The members that an ACCEPT names.
pub(super) fn members(accept: &Accept) -> Members {
    let place = accept.place;
    let elsewhere = place.and_then(|place| place.elsewhere);
    let is_elsewhere = place.is_some_and(|place| place.ps_elsewhere);
    let missing = all_ranks(accept.workers) & !accept.joined;
    let missing = Global::of(place, missing, elsewhere);
    Members {
        joined: Global::of(place, accept.joined, None).ranks.0,
        missing: missing.ranks.0,
        range: missing.range,
        missing_ps: accept.missing_ps.or(is_elsewhere.then_some(Part::ONLY)),
    }
}

/// Whether the job has more workers than the header has ranks (TR-20).
fn is_wide(config: &WorkerConfig) -> bool {
    usize::from(config.workers) > MAX_WORKERS
}

/// The rank in the headers of JOIN and LEAVE.
pub(super) fn header_rank(config: &WorkerConfig) -> Rank {
    Rank(if is_wide(config) {
        0
    } else {
        config.rank as u8
    })
}
