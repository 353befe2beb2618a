//! Membership of the job: JOIN, LEAVE, the switch's answers, and the session's end.

use super::awaiting::Awaiting;
use super::congestion::{Congestion, in_flight};
use super::interface::{Event, Members};
use super::{ALIVE, EAGER, Phase, Worker};
use crate::Transmit;
use crate::error::{Awaited, Hint, Ranks, WorkerError};
use core::time::Duration;
use tally_wire::control::{LeaveCode, Reason, Role, State};
use tally_wire::{Accept, Epoch, FragmentId, Join, Leave, Refuse, Time, all_ranks};

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
        self.came |= accept.joined;
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
        let error = match refuse.reason {
            Reason::UnknownJob | Reason::BadMac | Reason::Challenge => return,
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
                ours: refuse.behind & self.control.rank.bit() != 0,
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
                self.next_control = now;
                self.phase = Phase::Leaving {
                    code,
                    fragment: FragmentId(seq as u32),
                    behind: match error {
                        WorkerError::Stalled {
                            awaited: Awaited::Ranks(ranks),
                            ..
                        } => ranks,
                        _ => Ranks(0),
                    },
                    error: Some(error),
                    until: now.after(LEAVE_FAILED),
                };
            }
        }
    }

    pub(super) fn transmit_control(&mut self, now: Time, out: &mut [u8]) -> Transmit {
        let len = match self.phase {
            Phase::Leaving {
                code,
                fragment,
                behind,
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
                    tree: None,
                };
                self.control.emit_leave(&leave, out)
            }
            _ => {
                let running = matches!(self.phase, Phase::Running);
                let eager = self.control.apart(EAGER, now);
                self.next_control = now.after(if running { ALIVE } else { eager });
                let join = Join {
                    instance: self.control.instance,
                    challenge: self.control.challenge,
                    role: Role::Worker,
                    workers: self.config.workers,
                    units: self.config.units,
                    running,
                    window: self.config.window,
                    shape: self.config.shape,
                    sent: running.then(|| FragmentId(self.window.next() as u32)),
                    awaiting: if running { self.awaiting.look(now) } else { 0 },
                    salt: self.control.salt,
                    tree: None,
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
    Members {
        joined: accept.joined,
        missing: all_ranks(accept.workers) & !accept.joined,
        ps: accept.ps,
    }
}
