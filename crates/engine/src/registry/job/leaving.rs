//! LEAVE: a member has finished, gives up, or asks how its epoch ended.

use super::super::event::Event;
use super::link::Wanted;
use super::node::IN_HEADER;
use super::visit::{Refusal, Visit};
use super::{Incarnation, Job, Phase};
use tally_wire::control::{LeaveCode, LeaveTree, Reason, State};
use tally_wire::{Leave, Part, Rank};

impl Job {
    pub(in crate::registry) fn leave(&mut self, visit: &mut Visit<'_>, leave: &Leave) {
        let current = leave.challenge == self.challenge(visit.config);
        let located = self.locate_leaver(visit, leave);
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
        if let Err(refusal) = located {
            return self.refuse(visit, refusal);
        }
        let rank = visit.rank;
        if rank == Rank::PS {
            self.server_leaves(visit);
            return self.accept(visit, State::Ended);
        }
        let open = matches!(self.phase, Phase::Running | Phase::Paused);
        let Some(membership) = self.workers.get(usize::from(rank.0)) else {
            let refusal = Refusal::numbers(Reason::BadRank, rank.0, self.members());
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
                self.say_left(visit, Part::ONLY);
            }
            if open {
                let refusal = self.failure(visit, leave);
                self.fail(visit.config, refusal, &mut visit.actions);
            } else if has_joined {
                // It had joined and changed its mind before all were there.
                self.vacate(rank);
            }
            return self.accept(visit, State::Ended);
        }
        if self.phase == Phase::Idle && self.link.is_some() {
            // No answer: it says so again, and the parent has to give the epoch first.
            let wanted = Wanted {
                incarnation: visit.incarnation,
                running: true,
                units: 0,
                shape: [0; 32],
                at: visit.now,
            };
            self.ask_parent(visit, wanted);
            return;
        }
        self.resume(visit);
        self.enter(visit);
        if let Some(it) = &mut self.workers[usize::from(rank.0)] {
            it.ready = true;
        }
        if self.left & rank.bit() == 0 {
            self.say_left(visit, Part::ONLY);
        }
        self.left |= rank.bit();
        if self.left == self.all() && self.link.is_none() {
            self.finish(visit);
        } else {
            self.run_if_complete(visit);
            self.accept(visit, self.state());
        }
    }

    /// Finds the local rank of the one that says LEAVE (TR-20).
    fn locate_leaver(&self, visit: &mut Visit<'_>, leave: &Leave) -> Result<(), Refusal> {
        let is_child = self.switches() & visit.rank.bit() != 0;
        match leave.tree {
            Some(LeaveTree::Switch(_)) if visit.by_switch && is_child => Ok(()),
            Some(LeaveTree::Switch(_)) => Err(Refusal::numbers(
                Reason::BadRank,
                visit.rank.0,
                self.members(),
            )),
            Some(LeaveTree::Worker { rank, .. }) if self.total() > IN_HEADER => {
                self.locate_rank(visit, rank)
            }
            _ if visit.rank == Rank::PS => Ok(()),
            _ => self.locate_rank(visit, u16::from(visit.rank.0)),
        }
    }

    /// Why the job fails of which a member leaves.
    fn failure(&self, visit: &Visit<'_>, leave: &Leave) -> Refusal {
        let rank = visit.rank;
        match leave.tree {
            Some(LeaveTree::Switch(Some(cause))) => Refusal {
                concern: Some(cause.concern),
                ..Refusal::numbers(cause.reason, cause.found, cause.allowed)
            },
            tree => {
                let refusal = Refusal {
                    behind: leave.behind & self.all() & !rank.bit(),
                    ..Refusal::numbers(Reason::MemberFailed, leave.code as u8, leave.fragment.0)
                };
                let mut refusal = self.globalise(visit.config, refusal.about(rank));
                if let Some(LeaveTree::Worker { behind, .. }) = tree
                    && let Some(concern) = &mut refusal.concern
                {
                    concern.behind = concern.behind.or(behind);
                }
                refusal
            }
        }
    }

    pub(super) fn say_left(&mut self, visit: &Visit<'_>, part: Part) {
        self.events.push(Event::Left {
            job: self.config.id,
            rank: visit.rank,
            part,
            member: visit.from,
        });
    }
}
