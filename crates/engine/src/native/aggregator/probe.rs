//! PROBE: a worker that misses a result gets it, or has a rank asked whose contribution is missing.

use super::{Aggregator, find, key_of};
use crate::buffer::{Buffer, Egress, To};
use crate::counters::DropReason;
use crate::native::ring::ResultState;
use tally_wire::{Header, Kind, Rank, Time};

impl<B: Buffer> Aggregator<B> {
    /// S-7: a worker misses a result. It gets it, or a rank whose contribution is missing is asked.
    pub(super) fn probe(
        &mut self,
        now: Time,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) {
        self.counters.probes += 1;
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        let Some(job) = self.jobs[place].as_ref() else {
            return;
        };
        match job.ring.state(header.fragment) {
            ResultState::Open => {
                if let Asked::Rank(_) = self.ask_for(place, header.rank, header, buffer, egress) {
                    self.counters.probe_nacks += 1;
                }
            }
            ResultState::Finished(frame) => {
                self.counters.results_again += 1;
                egress.republish(&job.roster, header.rank, frame);
                egress.discard(buffer);
            }
            ResultState::SentUp(_) => self.probe_up(now, place, header, buffer, egress),
            ResultState::Old => {
                self.counters.drop(DropReason::Late);
                egress.discard(buffer);
            }
        }
    }

    /// Asks for what is missing of an open fragment, by one frame: the first missing rank from
    /// `from` on, or the PS, or, where nothing says which rank is missing, `from` itself. `header`
    /// and `buffer` are of the frame that asks for it, which has no payload.
    pub(super) fn ask_for(
        &mut self,
        place: usize,
        from: Rank,
        header: &Header,
        buffer: B,
        egress: &mut impl Egress<B>,
    ) -> Asked {
        let Some(job) = self.jobs[place].as_ref() else {
            egress.discard(buffer);
            return Asked::Ps;
        };
        let noted = job.sent_to_ps.ranks(header.fragment);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        let missing = find(&self.slots, &self.tags, &set, key_of(header))
            .map(|at| &self.slots[at])
            .filter(|slot| slot.sum.is_some() || !slot.held.is_empty())
            .map_or(0, |slot| job.all & !(slot.bitmap | noted));
        let rank = next_rank(if missing == 0 { job.all } else { missing }, from);
        let is_at_ps = missing == 0 && noted != 0;
        let (kind, to, asked) = if is_at_ps {
            (Kind::Probe, To::Ps, Asked::Ps)
        } else {
            (Kind::Nack, To::Worker(rank), Asked::Rank(rank))
        };
        let header = job.roster.secret.seal(Header {
            kind,
            rank,
            ..*header
        });
        egress.send(&job.roster, to, &header, buffer);
        asked
    }
}

/// Who was asked for what is missing.
pub(super) enum Asked {
    Rank(Rank),
    Ps,
}

/// The first of these ranks from `from` on, cyclically; `ranks` is not empty.
#[inline]
fn next_rank(ranks: u64, from: Rank) -> Rank {
    let above = ranks & u64::MAX.checked_shl(from.0.into()).unwrap_or(0);
    let first = if above == 0 { ranks } else { above };
    Rank(first.trailing_zeros() as u8)
}
