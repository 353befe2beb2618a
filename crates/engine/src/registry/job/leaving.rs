//! LEAVE: a member has finished, gives up, or asks how its epoch ended.

use super::super::event::Event;
use super::visit::{Refusal, Visit};
use super::{Incarnation, Job, Phase};
use tally_wire::control::{LeaveCode, Reason, State};
use tally_wire::{Leave, Rank};

impl Job {
    pub(in crate::registry) fn leave(&mut self, visit: &mut Visit<'_>, leave: &Leave) {
        let current = leave.challenge == self.challenge(visit.config);
        // The end of an epoch changes the challenge; who missed the news leaves with the old one.
        if let Some(end) = self.ended
            && end.incarnation == visit.incarnation
            && visit.rank.is_worker()
            && (current || end.challenge == leave.challenge)
        {
            return match end.outcome {
                Ok(()) => self.accept(visit, State::Ended),
                Err(refusal) => self.refuse(visit, refusal),
            };
        }
        if self.removed.is_some() {
            return self.refuse(visit, Refusal::new(Reason::Removed));
        }
        if !current {
            return self.refuse(visit, Refusal::new(Reason::Challenge));
        }
        if self.fixed {
            return self.refuse(visit, Refusal::new(Reason::RankTaken));
        }
        let rank = visit.rank;
        if rank == Rank::PS {
            if self
                .ps
                .as_ref()
                .is_some_and(|membership| membership.is(visit))
            {
                self.say_left(visit);
                self.lose_ps();
            }
            return self.accept(visit, State::Ended);
        }
        let open = matches!(self.phase, Phase::Running | Phase::Paused);
        let Some(membership) = self.workers.get(usize::from(rank.0)) else {
            let refusal = Refusal::numbers(Reason::BadRank, rank.0, self.config.workers);
            return self.refuse(visit, refusal);
        };
        let finished = leave.code == LeaveCode::Finished;
        let has_joined = membership.is_some();
        let stale = match (self.phase, membership) {
            // The switch had restarted: the others still need this one's answers (R-3, J-7).
            (Phase::Idle, _) => !finished || visit.incarnation == Incarnation::NONE,
            (_, Some(membership)) => !membership.is(visit),
            (_, None) => false,
        };
        if stale || self.is_stale(visit.incarnation) {
            return self.refuse(visit, Refusal::new(Reason::StaleEpoch));
        }
        if !finished {
            if has_joined {
                self.say_left(visit);
            }
            if open {
                let refusal = Refusal {
                    behind: leave.behind & self.all() & !rank.bit(),
                    ..Refusal::numbers(Reason::MemberFailed, leave.code as u8, leave.fragment.0)
                };
                self.fail(visit.config, refusal.about(rank), &mut visit.actions);
            } else if has_joined {
                // It had joined and changed its mind before all were there.
                self.vacate(rank);
            }
            return self.accept(visit, State::Ended);
        }
        self.resume(visit);
        self.enter(visit);
        if self.left & rank.bit() == 0 {
            self.say_left(visit);
        }
        self.left |= rank.bit();
        if self.left == self.all() {
            self.finish(visit);
        } else {
            self.run_if_complete(visit);
            self.accept(visit, self.state());
        }
    }

    fn say_left(&mut self, visit: &Visit<'_>) {
        self.events.push(Event::Left {
            job: self.config.id,
            rank: visit.rank,
            member: visit.from,
        });
    }
}
