//! Who has which contribution: what came into a slot of the switch must leave it, once.
//!
//! Kept from what is seen at the switch alone. A contribution that the engine took (it did not give the
//! buffer back unread, nor send it on as it came) is in its custody until a PARTIAL that has its rank, or the result, leaves. So it is a violation
//!
//! * to take a contribution that it has already;
//! * to answer that nothing is here (NOT_HERE) while it has some;
//! * to publish a result of its own without having had all.

use super::findings::{Checker, Findings};
use crate::switch::Did;
use std::collections::BTreeMap;
use tally_wire::{Flags, Header, Kind, Rank, all_ranks};

/// What the switch has.
#[derive(Default)]
pub struct Custody {
    /// By job, epoch and fragment: the ranks.
    has: BTreeMap<(u16, u16, u32), u64>,
}

impl Custody {
    /// The switch has started anew.
    pub fn forget(&mut self) {
        self.has.clear();
    }

    /// Takes note of what the engine did in one event. `workers` says how many a job has, and `window`
    /// is the largest that the switch serves.
    pub fn note(
        &mut self,
        did: &[Did],
        findings: &Findings,
        workers: impl Fn(u16) -> u8,
        window: u16,
    ) {
        for did in did {
            match did {
                Did::Took(header) => self.took(header, findings, window),
                Did::Refused(_) => {}
                Did::Sent(header) => self.sent(header, findings, workers(header.job.0)),
                Did::Relayed(header) => {
                    let key = (header.job.0, header.epoch.0, header.fragment.0);
                    self.has.remove(&key);
                }
            }
        }
    }

    fn took(&mut self, header: &Header, findings: &Findings, window: u16) {
        let key = (header.job.0, header.epoch.0, header.fragment.0);
        let ranks = self.has.entry(key).or_default();
        findings.require(*ranks & header.bitmap == 0, Checker::Custody, || {
            format!("takes what it has ({ranks:#x}): {header:?}")
        });
        *ranks |= header.bitmap;
        // Older than a window: everybody has the result (W-2), and the slot may be given up (S-5).
        let past = header.fragment.0.wrapping_sub(u32::from(window));
        self.has.remove(&(key.0, key.1, past));
    }

    fn sent(&mut self, header: &Header, findings: &Findings, workers: u8) {
        let key = (header.job.0, header.epoch.0, header.fragment.0);
        match header.kind {
            Kind::Partial => {
                if let Some(ranks) = self.has.get_mut(&key) {
                    *ranks &= !header.bitmap;
                }
            }
            Kind::Result if header.rank == Rank::SWITCH => {
                let ranks = self.has.remove(&key).unwrap_or(0);
                let own = !header.flags.has(Flags::FROM_PS);
                let all = all_ranks(workers);
                findings.require(!own || ranks == all, Checker::Custody, || {
                    format!("publishes a result of {ranks:#x}, all are {all:#x}: {header:?}")
                });
            }
            Kind::NotHere if !header.flags.has(Flags::FINISHED) => {
                let ranks = self.has.get(&key).copied().unwrap_or(0);
                findings.require(ranks == 0, Checker::Custody, || {
                    format!("says that it has nothing and has had {ranks:#x}: {header:?}")
                });
            }
            _ => {}
        }
    }
}
