//! Packet memory of the switch, and what checkers see of the cores through it.
//!
//! Every frame that the engine takes is counted in a [`Ledger`] until the engine sends it or gives
//! it back. One that merely disappears is *lost*: in the real switch its contribution would be.

use crate::address::SwitchId;
use crate::frame::{Frame, Ledger, Origin, UNNUMBERED};
use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tally_engine::forwarding::Verdict;
use tally_engine::{DropReason, Member, Observed, Platform, PortId, Roster};
use tally_wire::frame::ETHERNET_BYTES;
use tally_wire::{Header, JobId, Kind, Mac};

/// What the engine did with a frame, for checkers.
#[derive(Clone, Copy, Debug)]
pub enum Did {
    /// It took this contribution into a slot.
    Took(Header),
    /// It gave this contribution back, or sent it on, as it came.
    Refused(Header),
    /// It sent this, which is more or other than a contribution of the iteration.
    Sent(Header),
    /// It published a result that a member had (S-2, S-4).
    Relayed(Header),
}

/// What the engine did, in order.
///
/// Contributions of an iteration come before what left because of them. Nothing is asked of the
/// engine: what became of a contribution shows in what becomes of its buffer.
#[derive(Default)]
pub struct Diary {
    did: Vec<Did>,
    /// The number of the first entry.
    first: u64,
}

impl Diary {
    /// A contribution is given to the engine, which will take it unless something else is seen.
    fn came(&mut self, header: &Header) -> u64 {
        self.did.push(Did::Took(*header));
        self.first + self.did.len() as u64 - 1
    }

    /// A buffer leaves the engine, perhaps with this header: says whether it does so as it came, in
    /// the same iteration.
    fn left(&mut self, number: u64, header: Option<&Header>) -> bool {
        if let Some(at) = number.checked_sub(self.first)
            && let Some(entry) = self.did.get_mut(at as usize)
            && let Did::Took(came) = *entry
            && header.is_none_or(|left| left.bitmap == came.bitmap)
        {
            *entry = Did::Refused(came);
            return true;
        }
        false
    }
}

/// A decision of forwarding, for checkers.
#[derive(Clone, Copy, Debug)]
pub struct Transit {
    /// The port it came from.
    pub ingress: PortId,
    /// Its Ethernet destination.
    pub destination: Mac,
    /// Its Ethernet source.
    pub source: Mac,
    /// The port of the bound member with its source address.
    pub source_port: Option<PortId>,
    /// The port of the bound member with its destination address.
    pub destination_port: Option<PortId>,
    /// The decision.
    pub verdict: Result<Verdict, DropReason>,
}

#[derive(Default)]
struct Seen {
    ledger: Ledger,
    diary: Option<Diary>,
    transits: Option<Vec<Transit>>,
    /// Members of the jobs that are bound.
    bound: BTreeMap<JobId, Vec<Member>>,
}

/// The switch's packet memory; its clones are one.
#[derive(Clone)]
pub struct Memory {
    switch: SwitchId,
    room: usize,
    seen: Rc<RefCell<Seen>>,
}

impl Memory {
    pub(super) fn new(switch: SwitchId, room: usize) -> Self {
        Self {
            switch,
            room,
            seen: Rc::default(),
        }
    }

    /// Bytes that a frame has room for.
    pub(super) const fn room(&self) -> usize {
        self.room
    }

    /// Has a diary kept, and decisions of forwarding.
    pub fn record(&self) {
        let mut seen = self.seen.borrow_mut();
        seen.diary = Some(Diary::default());
        seen.transits = Some(Vec::new());
    }

    /// What the engine has.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.seen.borrow().ledger.clone()
    }

    /// What the engine did since [`clear`](Self::clear), if it is recorded.
    pub fn did(&self) -> Ref<'_, [Did]> {
        Ref::map(self.seen.borrow(), |seen| {
            seen.diary.as_ref().map_or(&[][..], |diary| &diary.did)
        })
    }

    /// Forgets what the engine did.
    pub fn clear(&self) {
        if let Some(diary) = &mut self.seen.borrow_mut().diary {
            diary.first += diary.did.len() as u64;
            diary.did.clear();
        }
    }

    /// Decisions of forwarding since the last call, if they are recorded.
    #[must_use]
    pub fn transits(&self) -> Vec<Transit> {
        let mut seen = self.seen.borrow_mut();
        seen.transits.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// The switch has stopped.
    pub(super) fn forget(&self) {
        let mut seen = self.seen.borrow_mut();
        seen.ledger = Ledger::default();
        seen.bound.clear();
    }

    pub(super) fn bound(&self, roster: &Roster) {
        let members = roster.workers.iter().chain(&roster.servers);
        let mut seen = self.seen.borrow_mut();
        seen.bound.insert(roster.job, members.copied().collect());
    }

    pub(super) fn unbound(&self, job: JobId) {
        self.seen.borrow_mut().bound.remove(&job);
    }
}

impl Seen {
    /// The port of the bound member with this address.
    fn port_of(&self, mac: Mac) -> Option<PortId> {
        let mut members = self.bound.values().flatten();
        members.find(|member| member.mac == mac).map(|m| m.port)
    }

    fn decided(
        &mut self,
        ingress: PortId,
        header: &[u8; ETHERNET_BYTES],
        verdict: Result<Verdict, DropReason>,
    ) {
        let &[a, b, c, d, e, f, g, h, i, j, k, l, ..] = header;
        let (destination, source) = (Mac([a, b, c, d, e, f]), Mac([g, h, i, j, k, l]));
        let transit = Transit {
            ingress,
            destination,
            source,
            source_port: self.port_of(source),
            destination_port: self.port_of(destination),
            verdict,
        };
        if let Some(transits) = &mut self.transits {
            transits.push(transit);
        }
    }
}

impl Platform for Memory {
    type Frame = Frame;
    const OBSERVES: bool = true;

    fn alloc(&self) -> Option<Frame> {
        Some(Frame::empty(self.room, Origin::Switch(self.switch)))
    }

    fn alloc_bulk(&self, out: &mut Vec<Frame>, n: usize) -> bool {
        out.extend((0..n).map(|_| Frame::empty(self.room, Origin::Switch(self.switch))));
        true
    }

    fn copy(&self, frame: &Frame) -> Option<Frame> {
        Some(frame.copied())
    }

    fn frame_bytes_max(&self) -> usize {
        self.room
    }

    fn observe(&self, event: Observed<'_, Frame>) {
        let seen = &mut *self.seen.borrow_mut();
        match event {
            Observed::Decided(port, header, verdict) => seen.decided(port, header, verdict),
            Observed::Answered(frame) => frame.set_origin(Origin::Switch(self.switch)),
            Observed::Admitted(header, frame) => {
                let number = match &mut seen.diary {
                    Some(diary) if header.kind == Kind::Data => diary.came(header),
                    _ => UNNUMBERED,
                };
                frame.enter(&seen.ledger, number);
            }
            // A node's sum, which stays in the ring as a result does.
            Observed::Sent(header, frame) if header.kind == Kind::Data => {
                frame.set_origin(Origin::Switch(self.switch));
                if let Some(diary) = &mut seen.diary {
                    diary.did.push(Did::Sent(*header));
                }
            }
            Observed::Sent(header, frame) => {
                let (number, _) = frame.leave();
                frame.set_origin(Origin::Switch(self.switch));
                let Some(diary) = &mut seen.diary else {
                    return;
                };
                if !header.kind.has_elements() {
                    // Its buffer may have been a contribution's, which was late (TR-3).
                    diary.left(number, None);
                    diary.did.push(Did::Sent(*header));
                } else if !diary.left(number, Some(header)) {
                    diary.did.push(Did::Sent(*header));
                }
            }
            Observed::Published(header, frame, born) => {
                frame.set_origin(Origin::Switch(self.switch));
                if let Some(diary) = &mut seen.diary {
                    let did = if born.is_some() {
                        Did::Sent
                    } else {
                        Did::Relayed
                    };
                    diary.did.push(did(*header));
                }
            }
            Observed::Discarded(frame) => {
                let (number, is_read) = frame.leave();
                if let Some(diary) = &mut seen.diary
                    && !is_read
                {
                    diary.left(number, None);
                }
            }
        }
    }
}
