//! Who has which contribution: what came into a slot of the switch must leave it, once.
//!
//! Kept from what is seen at the switch alone. A contribution that the engine took (it did not give
//! the buffer back unread, nor send it on as it came) is in its custody until a PARTIAL that has
//! its rank, or the result, leaves. So it is a violation
//!
//! * to take a contribution that it has already;
//! * to answer that nothing is here (NOT_HERE) while it has some;
//! * to publish a result of its own without having had all.
//!
//! At a node of a tree that has a parent, the sum leaves as DATA, and what comes after it must not
//! be taken.
//!
//! A fragment that is a window or more behind the newest of its job has a result, and its slot may
//! be given up at any moment (S-5): of those nothing is checked.

use super::findings::{Checker, Findings};
use crate::address::SwitchId;
use crate::switch::Did;
use std::collections::BTreeMap;
use tally_wire::{Flags, FragmentId, Header, Kind, Rank, all_ranks};

/// What the switch has.
pub struct Custody {
    switch: SwitchId,
    /// By job, epoch and fragment: the ranks.
    has: BTreeMap<(u16, u16, u32), u64>,
    /// By job and epoch: the newest fragment that a contribution or a result was of.
    newest: BTreeMap<(u16, u16), FragmentId>,
}

impl Custody {
    /// A switch that has nothing.
    #[must_use]
    pub const fn new(switch: SwitchId) -> Self {
        Self {
            switch,
            has: BTreeMap::new(),
            newest: BTreeMap::new(),
        }
    }

    /// The switch has started anew.
    pub fn forget(&mut self) {
        self.has.clear();
        self.newest.clear();
    }

    /// Takes note of what the engine did in one event. `workers` says how many a job of the switch
    /// has, and `window` is the largest that the switch serves.
    pub fn note(
        &mut self,
        did: &[Did],
        findings: &Findings,
        workers: impl Fn(u16) -> Option<u8>,
        window: u16,
    ) {
        let s = self.switch.0;
        for did in did {
            let (Did::Took(header)
            | Did::Sent(header)
            | Did::Relayed(header)
            | Did::Refused(header)) = did;
            let Some(workers) = workers(header.job.0) else {
                let is_refused = matches!(did, Did::Refused(_));
                findings.require(is_refused, Checker::Custody, || {
                    format!("switch {s} serves a job that is not its own: {did:?}")
                });
                continue;
            };
            if let Did::Took(header) | Did::Sent(header) | Did::Relayed(header) = did
                && self.is_past(header, window)
            {
                continue;
            }
            match did {
                Did::Took(header) => self.took(header, findings),
                Did::Refused(_) => {}
                Did::Sent(header) => self.sent(header, findings, workers),
                Did::Relayed(header) => {
                    let key = (header.job.0, header.epoch.0, header.fragment.0);
                    self.has.remove(&key);
                }
            }
        }
    }

    /// Whether the header's fragment is a window or more behind its job's newest, and forgets it
    /// then.
    fn is_past(&mut self, header: &Header, window: u16) -> bool {
        let (job, epoch, fragment) = (header.job.0, header.epoch.0, header.fragment);
        let newest = self.newest.entry((job, epoch)).or_insert(fragment);
        if matches!(header.kind, Kind::Data | Kind::Partial | Kind::Result)
            && fragment.ahead_of(*newest) > 0
        {
            let new = fragment.ahead_of(*newest) as u32;
            for n in 0..new.min(4 * u32::from(window)) {
                let past = fragment.0.wrapping_sub(u32::from(window) + n);
                self.has.remove(&(job, epoch, past));
            }
            *newest = fragment;
        }
        let is_past = newest.ahead_of(fragment) >= i32::from(window);
        if is_past {
            self.has.remove(&(job, epoch, fragment.0));
        }
        is_past
    }

    fn took(&mut self, header: &Header, findings: &Findings) {
        let s = self.switch.0;
        let key = (header.job.0, header.epoch.0, header.fragment.0);
        let ranks = self.has.entry(key).or_default();
        findings.require(*ranks & header.bitmap == 0, Checker::Custody, || {
            format!("switch {s} takes what it has ({ranks:#x}): {header:?}")
        });
        *ranks |= header.bitmap;
    }

    fn sent(&mut self, header: &Header, findings: &Findings, workers: u8) {
        let s = self.switch.0;
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
                    format!(
                        "switch {s} publishes a result of {ranks:#x}, all are {all:#x}: {header:?}"
                    )
                });
            }
            // To the parent. From now on all contributions are late, until the result is there.
            Kind::Data => {
                self.has.insert(key, u64::MAX);
            }
            Kind::NotHere if !header.flags.has(Flags::FINISHED) => {
                let ranks = self.has.get(&key).copied().unwrap_or(0);
                findings.require(ranks == 0, Checker::Custody, || {
                    format!(
                        "switch {s} says that it has nothing and has had {ranks:#x}: {header:?}"
                    )
                });
            }
            _ => {}
        }
    }
}
