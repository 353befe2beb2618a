//! PROBE: a worker that misses a result gets it, or has a rank asked whose contribution is missing.

use super::{Aggregator, find, key_of};
use crate::buffer::{Buffer, Egress, To};
use crate::counters::DropReason;
use crate::native::ring::ResultState;
use tally_wire::{Header, Kind, Rank};

impl<B: Buffer> Aggregator<B> {
    /// S-7: a worker misses a result. It gets it, or a rank whose contribution is missing is asked.
    pub(super) fn probe(&mut self, header: &Header, buffer: B, egress: &mut impl Egress<B>) {
        self.counters.probes += 1;
        let place = usize::from(self.index[usize::from(header.job.0)]) - 1;
        let Some(job) = self.jobs[place].as_ref() else {
            return;
        };
        match job.ring.state(header.fragment) {
            ResultState::Open => {}
            ResultState::Finished(frame) => {
                self.counters.results_again += 1;
                egress.republish(&job.roster, header.rank, frame);
                egress.discard(buffer);
                return;
            }
            ResultState::Old => {
                self.counters.drop(DropReason::Late);
                egress.discard(buffer);
                return;
            }
        }
        let noted = job.sent_to_ps.ranks(header.fragment);
        let set = job.placement.set(header.fragment.0 >> self.shift);
        let missing = find(&self.slots, &self.tags, &set, key_of(header))
            .map(|at| &self.slots[at])
            .filter(|slot| slot.sum.is_some() || !slot.held.is_empty())
            .map_or(0, |slot| job.all & !(slot.bitmap | noted));
        if missing == 0 && noted != 0 {
            egress.send(&job.roster, To::Ps, header, buffer);
            return;
        }
        let rank = if missing == 0 {
            header.rank
        } else {
            next_rank(missing, header.rank)
        };
        self.counters.probe_nacks += 1;
        let nack = job.roster.secret.seal(Header {
            kind: Kind::Nack,
            rank,
            ..*header
        });
        egress.send(&job.roster, To::Worker(rank), &nack, buffer);
    }
}

/// The first of these ranks from `from` on, cyclically; `ranks` is not empty.
#[inline]
fn next_rank(ranks: u64, from: Rank) -> Rank {
    let above = ranks & u64::MAX.checked_shl(from.0.into()).unwrap_or(0);
    let first = if above == 0 { ranks } else { above };
    Rank(first.trailing_zeros() as u8)
}
