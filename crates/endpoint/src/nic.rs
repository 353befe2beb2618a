//! Order of the sessions that share a NIC: which of them sends next (C-7).
//!
//! Jobs that share a host share its NIC. If all of them send at an equal share, all of them end
//! late; if one sends first, it ends early and the others hardly later than before. So the session
//! whose next fragment has the highest priority sends first, as at the switch. That is what the
//! job's owner wants, or what [`Profile`](crate::Profile) measures: the job with the least time
//! left, or with the least time so far where that is unknown. Among equal priorities it is the
//! session with the least work left (SRPT), or the least work done where that is unknown (LAS).
//!
//! A transport with several sessions offers the [`Demand`] of each to a [`NicOrder`] whenever its
//! NIC has room, and then has them send as [`NicOrder::next`] says.
//!
//! What holds in every round:
//!
//! 1. *Control first.* A session whose control frame is due sends one frame before any session
//!    sends elements.
//! 2. *Order.* A session sends elements only once those before it have nothing to send, but for
//!    rule 3. Those behind a session that the NIC had no room for are *passed over*.
//! 3. *No starvation.* After [`GUARD`] frames in order while sessions are passed over, one frame is
//!    due from the session that has waited longest. So of `n` sessions each sends at least one of
//!    about `n` · (`GUARD` + 1) frames, as long as it has something to send.
//! 4. *No idling.* The NIC gets frames as long as any session has something to send.
//!
//! Work done counts in octaves, and jobs at equal work are in the order of their numbers. So jobs
//! that are alike do not take turns, and the order is the same at all their hosts. If hosts
//! disagreed about two jobs, each job would wait for the other at some host.
//!
//! The catch: what the NIC or the kernel has taken is out of reach. Its queue must be short, a few
//! microseconds, for the order to have an effect.

use core::cmp::Reverse;

/// Frames in order for each frame of a session that is passed over.
pub const GUARD: usize = 16;

/// What a session has to send now, as far as the order depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// A frame is due that others' progress depends on (C-4).
    pub control: bool,
    /// Priority of the fragment that is next.
    pub priority: u8,
    /// Work left, in units of elements; the octave of work done where that is unknown.
    pub work: u64,
    /// Number of the job.
    pub job: u16,
}

/// The power of 2 that `work` has reached; 0 for less than a mebibyte.
pub(crate) const fn octave(work: u64) -> u64 {
    const LEAST: u64 = (1 << 20) / tally_wire::UNIT_BYTES as u64;
    if work < LEAST { 0 } else { 1 << work.ilog2() }
}

/// A session's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The session, as it was offered.
    pub at: usize,
    /// Limit of frames.
    pub most: usize,
}

/// A session that was offered.
#[derive(Clone, Copy, Debug)]
struct Offer {
    at: usize,
    demand: Demand,
}

/// What is known of a session.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// The last round that it was offered in.
    round: u64,
    /// Number of the turn that it had last, or of the first offer since it had nothing to send.
    turn: u64,
}

/// Which rule gives the next turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rule {
    /// Offers are being taken.
    #[default]
    Offers,
    /// To the offer with this index, or one behind it.
    Control(usize),
    /// After this number of turns by this rule.
    Guard(usize),
    /// To the offer with this index.
    Order(usize),
}

/// Order of the sessions that share a NIC. A session is known by its index in the caller's list.
#[derive(Debug, Default)]
pub struct NicOrder {
    offers: Vec<Offer>,
    rule: Rule,
    /// The session whose turn it is.
    current: usize,
    round: u64,
    turns: u64,
    /// Frames in order in this round.
    in_order: usize,
    /// Frames in order while sessions were passed over, for which the guard has not had its own.
    owed: usize,
    past: Vec<Past>,
}

impl NicOrder {
    /// Takes part in the round with what it has to send. A round is over with [`end`](Self::end).
    pub fn offer(&mut self, at: usize, demand: Demand) {
        debug_assert_eq!(self.rule, Rule::Offers);
        if self.past.len() <= at {
            self.past.resize(at + 1, Past::default());
        }
        let past = &mut self.past[at];
        if past.round != self.round {
            // It had nothing to send in the last round: it begins to wait.
            past.turn = self.turns;
        }
        past.round = self.round + 1;
        self.offers.push(Offer { at, demand });
    }

    /// Whose turn it is; `None`: none has anything more to send. [`sent`](Self::sent) must follow.
    #[allow(
        clippy::should_implement_trait,
        reason = "it is no iterator: `sent` must follow"
    )]
    pub fn next(&mut self) -> Option<Turn> {
        if self.rule == Rule::Offers {
            self.offers.sort_unstable_by_key(|it| key(&it.demand));
            self.rule = Rule::Control(0);
        }
        if let Rule::Control(from) = self.rule {
            let behind = self.offers.iter().enumerate().skip(from);
            if let Some((n, offer)) = behind.into_iter().find(|(_, it)| it.demand.control) {
                self.rule = Rule::Control(n);
                return Some(self.turn(offer.at, 1));
            }
            self.rule = Rule::Guard(0);
        }
        if let Rule::Guard(turns) = self.rule {
            let others = self.offers.get(1..).unwrap_or_default();
            // Each may have nothing to send after all.
            if self.owed >= GUARD && turns < others.len() {
                let longest = others.iter().min_by_key(|it| self.past[it.at].turn);
                if let Some(&Offer { at, .. }) = longest {
                    return Some(self.turn(at, self.owed / GUARD));
                }
            }
            self.rule = Rule::Order(0);
        }
        let Rule::Order(n) = self.rule else {
            unreachable!("the other rules have been tried");
        };
        let at = self.offers.get(n)?.at;
        Some(self.turn(at, usize::MAX))
    }

    fn turn(&mut self, at: usize, most: usize) -> Turn {
        self.current = at;
        Turn { at, most }
    }

    /// Notes what came of the turn: the number of frames, and whether the session has nothing more
    /// to send.
    pub fn sent(&mut self, frames: usize, is_dry: bool) {
        self.turns += 1;
        match &mut self.rule {
            Rule::Offers => debug_assert!(false, "no turn"),
            Rule::Control(n) => *n += 1,
            Rule::Guard(turns) => {
                *turns += 1;
                self.owed -= (frames * GUARD).min(self.owed);
                self.past[self.current].turn = self.turns;
            }
            Rule::Order(n) => {
                *n += usize::from(is_dry);
                self.in_order += frames;
                self.past[self.current].turn = self.turns;
            }
        }
    }

    /// Ends a round: the NIC is full, or none has anything more to send.
    pub fn end(&mut self) {
        let (Rule::Order(n), waiting) = (self.rule, self.offers.len()) else {
            // The NIC was full before.
            return self.begin();
        };
        if n >= waiting {
            self.owed = 0;
        } else if n + 1 < waiting {
            self.owed += self.in_order;
        }
        self.begin();
    }

    fn begin(&mut self) {
        self.offers.clear();
        self.rule = Rule::Offers;
        self.in_order = 0;
        self.round += 1;
    }
}

/// Less is earlier.
fn key(demand: &Demand) -> (Reverse<u8>, u64, u16) {
    (Reverse(demand.priority), demand.work, demand.job)
}

#[cfg(test)]
mod tests;
