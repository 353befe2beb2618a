//! A frame of the simulated network: real bytes, from Ethernet on.
//!
//! Frames are shared by reference, like mbufs; only the single owner of a frame writes to it. The
//! bytes go back to a free list when the last reference is dropped, so nothing is allocated per
//! frame. For checkers a frame also says who really made it ([`Origin`]), and whether the engine
//! has it ([`Frame::enter`]).

use crate::address::{HostId, SwitchId};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use tally_wire::frame::{UDP_END, emit_udp};
use tally_wire::{Addresses, Ecn, Header, UdpFrame};

/// The true sender of a frame; its headers may claim another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A session of this host.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
    /// The hostile host.
    Forger,
    /// The hostile host, handed to its victim directly.
    Planted,
}

/// Bytes in front of a datagram at most: tags, too.
pub const HEADERS_ROOM: usize = 128;

/// A frame's bytes.
struct Body {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
    origin: Cell<Origin>,
}

thread_local! {
    /// Bodies out of use. A world lives on one thread.
    static FREE: RefCell<Vec<Rc<Body>>> = const { RefCell::new(Vec::new()) };
    /// References that there are.
    static LIVE: Cell<u64> = const { Cell::new(0) };
}

/// References to frames on this thread: in flight, in queues, held by switches.
#[must_use]
pub fn live() -> u64 {
    LIVE.get()
}

/// What the engine has, and what disappeared in it.
#[derive(Clone, Default)]
pub struct Ledger(Rc<Counts>);

#[derive(Default)]
struct Counts {
    live: Cell<u64>,
    lost: Cell<u64>,
}

impl Ledger {
    /// Frames that the engine has.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.0.live.get()
    }

    /// Frames that the engine neither sent nor gave back.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.lost.get()
    }
}

/// A frame: one reference to its bytes.
pub struct Frame {
    /// `None` only while it is dropped.
    body: Option<Rc<Body>>,
    /// Whose engine has it.
    ledger: Cell<Option<Rc<Counts>>>,
    /// In the diary.
    number: Cell<u64>,
    /// The engine has read or written its elements.
    is_read: Cell<bool>,
}

/// The number of a frame that is no contribution, or of which no diary is kept.
pub const UNNUMBERED: u64 = u64::MAX;

impl Frame {
    fn of(body: Rc<Body>) -> Self {
        LIVE.set(LIVE.get() + 1);
        Self {
            body: Some(body),
            ledger: Cell::new(None),
            number: Cell::new(UNNUMBERED),
            is_read: Cell::new(false),
        }
    }

    /// An empty frame of this maker, with room for `room` bytes.
    #[must_use]
    pub fn empty(room: usize, origin: Origin) -> Self {
        let free = FREE.with_borrow_mut(Vec::pop);
        let body = free.filter(|body| body.bytes.len() >= room);
        let mut body = body.unwrap_or_else(|| {
            Rc::new(Body {
                bytes: vec![0xa5; room].into(),
                start: 0,
                len: 0,
                origin: Cell::new(origin),
            })
        });
        if let Some(body) = Rc::get_mut(&mut body) {
            (body.start, body.len) = (0, 0);
            body.origin.set(origin);
        }
        Self::of(body)
    }

    /// A datagram with these headers, in a frame with so much room.
    #[must_use]
    pub fn datagram(room: usize, origin: Origin, addresses: &Addresses, datagram: &[u8]) -> Self {
        let mut frame = Self::empty(room, origin);
        let bytes = frame.fill(UDP_END + datagram.len());
        emit_udp(bytes, addresses, datagram.len());
        bytes[UDP_END..].copy_from_slice(datagram);
        frame
    }

    /// The first `bytes` bytes, for its single owner to write.
    ///
    /// # Panics
    /// If it is shared, or has not so much room.
    pub fn fill(&mut self, bytes: usize) -> &mut [u8] {
        let body = self.body_mut().expect("the frame is new");
        body.len = bytes;
        &mut body.bytes[..bytes]
    }

    fn body(&self) -> &Body {
        self.body.as_ref().expect("it is not dropped yet")
    }

    fn body_mut(&mut self) -> Option<&mut Body> {
        Rc::get_mut(self.body.as_mut()?)
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let body = self.body();
        &body.bytes[body.start..body.start + body.len]
    }

    /// Who made it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.body().origin.get()
    }

    /// Says who made it.
    pub fn set_origin(&self, origin: Origin) {
        self.body().origin.set(origin);
    }

    /// Its headers and where its datagram is, if it is UDP without tags.
    #[must_use]
    pub fn udp(&self) -> Option<(UdpFrame, Range<usize>)> {
        let udp = UdpFrame::parse(self.bytes()).ok()?;
        Some((udp, UDP_END..UDP_END + udp.datagram_bytes))
    }

    /// Its Tally header and datagram, if it has one.
    #[must_use]
    pub fn tally(&self) -> Option<(Header, &[u8])> {
        let (udp, range) = self.udp()?;
        let datagram = &self.bytes()[range];
        let header = Header::parse(datagram).ok()?;
        Some((header.received_with(udp.ecn), datagram))
    }

    /// Whether it met congestion.
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        self.bytes()
            .get(15)
            .map_or(Ecn::NotEct, |&tos| Ecn::from_tos(tos))
    }

    /// A copy with a single owner.
    #[must_use]
    pub fn copied(&self) -> Self {
        let mut copy = Self::empty(self.body().bytes.len(), self.origin());
        copy.fill(self.bytes().len()).copy_from_slice(self.bytes());
        copy
    }

    /// The engine takes it; `number` is its place in the diary.
    pub fn enter(&self, ledger: &Ledger, number: u64) {
        ledger.0.live.set(ledger.0.live.get() + 1);
        self.ledger.set(Some(Rc::clone(&ledger.0)));
        self.number.set(number);
        self.is_read.set(false);
    }

    /// The engine gives it back or sends it. Returns its number in the diary, and whether the
    /// engine read it.
    pub fn leave(&self) -> (u64, bool) {
        if let Some(counts) = self.ledger.take() {
            counts.live.set(counts.live.get() - 1);
        }
        (self.number.get(), self.is_read.get())
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // At the end of the thread there is no number any more.
        let _ = LIVE.try_with(|live| live.set(live.get() - 1));
        if let Some(counts) = self.ledger.take() {
            counts.live.set(counts.live.get() - 1);
            counts.lost.set(counts.lost.get() + 1);
        }
        if let Some(body) = self.body.take()
            && Rc::strong_count(&body) == 1
        {
            // At the end of the thread there is no list any more.
            let _ = FREE.try_with(|free| free.borrow_mut().push(body));
        }
    }
}

/// References to one frame.
pub struct Shares<'a> {
    frame: &'a Frame,
    left: u16,
}

impl Iterator for Shares<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        self.left = self.left.checked_sub(1)?;
        Some(tally_engine::Frame::share(self.frame))
    }
}

impl tally_engine::Frame for Frame {
    type Shares<'a> = Shares<'a>;

    #[inline]
    fn data(&self) -> &[u8] {
        self.bytes()
    }

    fn data_mut(&mut self) -> Option<&mut [u8]> {
        let body = self.body_mut()?;
        Some(&mut body.bytes[body.start..body.start + body.len])
    }

    fn frame_bytes(&self) -> usize {
        self.body().len
    }

    fn is_contiguous(&self) -> bool {
        true
    }

    fn is_unique(&self) -> bool {
        self.body
            .as_ref()
            .is_some_and(|body| Rc::strong_count(body) == 1)
    }

    fn set_len(&mut self, bytes: usize) -> bool {
        let Some(body) = self.body_mut() else {
            return false;
        };
        let fits = body.start + bytes <= body.bytes.len();
        if fits {
            body.len = bytes;
        }
        fits
    }

    fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let body = self.body_mut()?;
        let end = body.start + body.len;
        body.len += bytes;
        body.bytes.get_mut(end..end + bytes)
    }

    fn adj(&mut self, bytes: usize) -> bool {
        let Some(body) = self.body_mut() else {
            return false;
        };
        let fits = bytes <= body.len;
        if fits {
            body.start += bytes;
            body.len -= bytes;
        }
        fits
    }

    fn share(&self) -> Self {
        Self::of(Rc::clone(
            self.body.as_ref().expect("it is not dropped yet"),
        ))
    }

    fn share_many(&self, references: u16) -> Shares<'_> {
        Shares {
            frame: self,
            left: references,
        }
    }

    fn chain(mut head: Self, tail: Self) -> Option<Self> {
        tally_engine::Frame::append(&mut head, tail.bytes().len())?.copy_from_slice(tail.bytes());
        Some(head)
    }

    fn elements(&self, at: usize) -> &[u8] {
        self.is_read.set(true);
        &self.bytes()[at..]
    }

    fn elements_mut(&mut self, at: usize) -> Option<&mut [u8]> {
        self.is_read.set(true);
        tally_engine::Frame::data_mut(self).map(|bytes| &mut bytes[at..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_engine::Frame as _;

    #[test]
    fn a_frame_is_written_by_its_single_owner_only() {
        let mut frame = Frame::empty(100, Origin::Forger);
        frame.fill(40).fill(7);
        let shared = frame.share();
        assert!(frame.data_mut().is_none() && !frame.set_len(10) && !frame.is_unique());
        drop(shared);
        assert!(frame.adj(10) && frame.set_len(90) && !frame.set_len(91));
        assert_eq!(frame.bytes()[..30], [7; 30]);
    }

    #[test]
    fn what_the_engine_neither_sends_nor_gives_back_is_lost() {
        let ledger = Ledger::default();
        let empty = || Frame::empty(10, Origin::Forger);
        let (kept, lost) = (empty(), empty());
        kept.enter(&ledger, 1);
        lost.enter(&ledger, 2);
        assert_eq!((ledger.live(), ledger.lost()), (2, 0));
        drop(lost);
        assert_eq!(kept.leave(), (1, false));
        drop(kept);
        assert_eq!((ledger.live(), ledger.lost()), (0, 1));
    }
}
