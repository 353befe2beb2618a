//! A platform in plain memory, for tests and the fuzz target.
//!
//! A [`Packet`] behaves as an mbuf does: it has headroom and room behind its bytes, it is shared by
//! reference count, and two of them make a chain. [`Memory`] is the pool: it counts the segments
//! that are alive, so that a test can assert that all are back, and it may be exhausted. A
//! [`Driver`] keeps what leaves, by port and by core.

use std::cell::Cell;
use std::rc::Rc;
use tally_engine::{Frame, Handover, Platform, PortId, Transmit};

/// Bytes in front of a new frame.
const HEADROOM: usize = 128;
/// What fresh memory holds.
const FRESH: u8 = 0xa5;

struct Pool {
    /// Segments that exist.
    alive: Cell<usize>,
    /// Segments that may exist.
    limit: Cell<usize>,
    /// Whether it gives frames in bulk.
    bulk: Cell<bool>,
    /// Bytes that a segment has room for.
    room: usize,
}

/// The pool that a core takes frames from. Clones are the same pool.
#[derive(Clone)]
pub struct Memory(Rc<Pool>);

impl Memory {
    /// A pool of frames of at most so many bytes.
    pub fn new(frame_bytes_max: usize) -> Self {
        Self(Rc::new(Pool {
            alive: Cell::new(0),
            limit: Cell::new(usize::MAX),
            bulk: Cell::new(true),
            room: frame_bytes_max,
        }))
    }

    /// At most so many segments exist from now on. Those that exist already stay.
    pub fn set_limit(&self, segments: usize) {
        self.0.limit.set(segments);
    }

    /// Whether frames may be taken many at a time; else only one by one.
    pub fn set_bulk(&self, bulk: bool) {
        self.0.bulk.set(bulk);
    }

    /// Segments that exist: a frame is one, a chain is two.
    pub fn alive(&self) -> usize {
        self.0.alive.get()
    }

    /// A received frame.
    ///
    /// # Panics
    /// If the pool is exhausted or the frame is too long for it.
    pub fn packet(&self, bytes: &[u8]) -> Packet {
        let mut packet = self.alloc().expect("a frame of the pool");
        let room = packet.append(bytes.len()).expect("room for the frame");
        room.copy_from_slice(bytes);
        packet
    }

    /// A received frame whose bytes from `at` on are in a second segment.
    ///
    /// # Panics
    /// As [`packet`](Self::packet).
    pub fn segmented(&self, bytes: &[u8], at: usize) -> Packet {
        let (head, tail) = bytes.split_at(at);
        let chain = Packet::chain(self.packet(head), self.packet(tail));
        chain.expect("two segments")
    }
}

impl Platform for Memory {
    type Frame = Packet;

    fn alloc(&self) -> Option<Packet> {
        if self.0.alive.get() >= self.0.limit.get() {
            return None;
        }
        self.0.alive.set(self.0.alive.get() + 1);
        Some(Packet {
            head: Rc::new(Segment {
                bytes: vec![FRESH; HEADROOM + self.0.room].into(),
                start: HEADROOM,
                len: 0,
                pool: Rc::clone(&self.0),
            }),
            tail: None,
            bad_checksum: false,
            cut: None,
        })
    }

    fn alloc_bulk(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        if !self.0.bulk.get() || self.0.limit.get().saturating_sub(self.0.alive.get()) < n {
            return false;
        }
        out.extend((0..n).filter_map(|_| self.alloc()));
        true
    }

    fn copy(&self, frame: &Packet) -> Option<Packet> {
        let bytes = frame.bytes();
        if bytes.len() > self.0.room {
            return None;
        }
        let mut copy = self.alloc()?;
        copy.append(bytes.len())?.copy_from_slice(&bytes);
        copy.bad_checksum = frame.bad_checksum;
        Some(copy)
    }

    fn frame_bytes_max(&self) -> usize {
        self.0.room
    }
}

struct Segment {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
    pool: Rc<Pool>,
}

impl Segment {
    fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.pool.alive.set(self.pool.alive.get() - 1);
    }
}

/// A frame: one reference to one or two segments.
pub struct Packet {
    head: Rc<Segment>,
    tail: Option<Rc<Segment>>,
    bad_checksum: bool,
    /// Bytes of the headers and of each part, of a superframe.
    cut: Option<(usize, usize)>,
}

impl Packet {
    /// The bytes of all segments.
    pub fn bytes(&self) -> Vec<u8> {
        let tail = self.tail.iter().flat_map(|tail| tail.data());
        self.head.data().iter().chain(tail).copied().collect()
    }

    /// The same frame, of which the port found a checksum wrong.
    pub fn with_bad_checksum(mut self) -> Self {
        self.bad_checksum = true;
        self
    }

    /// The same frame as a superframe: headers of so many bytes, and behind them parts.
    pub fn cut_into(mut self, headers_bytes: usize, part_bytes: usize) -> Self {
        self.cut = Some((headers_bytes, part_bytes));
        self
    }

    /// The first segment, if it may be written.
    fn own(&mut self) -> Option<&mut Segment> {
        if self.tail.is_some() && self.cut.is_none() {
            return None;
        }
        Rc::get_mut(&mut self.head)
    }
}

impl Frame for Packet {
    type Shares<'a> = std::vec::IntoIter<Self>;

    fn data(&self) -> &[u8] {
        self.head.data()
    }

    fn data_mut(&mut self) -> Option<&mut [u8]> {
        let segment = self.own()?;
        Some(&mut segment.bytes[segment.start..segment.start + segment.len])
    }

    fn frame_bytes(&self) -> usize {
        self.head.len + self.tail.as_ref().map_or(0, |tail| tail.len)
    }

    fn wire_frames(&self) -> usize {
        self.cut.map_or(1, |(headers, part)| {
            (self.frame_bytes() - headers).div_ceil(part)
        })
    }

    fn wire_bytes(&self) -> usize {
        self.cut
            .map_or(self.frame_bytes(), |(headers, part)| headers + part)
    }

    fn is_contiguous(&self) -> bool {
        self.tail.is_none()
    }

    fn is_unique(&self) -> bool {
        Rc::strong_count(&self.head) == 1
    }

    fn set_len(&mut self, bytes: usize) -> bool {
        let Some(segment) = self.own() else {
            return false;
        };
        let fits = segment.start + bytes <= segment.bytes.len();
        if fits {
            segment.len = bytes;
        }
        fits
    }

    fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let end = self.frame_bytes();
        if !self.set_len(end + bytes) {
            return None;
        }
        self.data_mut().map(|data| &mut data[end..])
    }

    fn adj(&mut self, bytes: usize) -> bool {
        let Some(segment) = self.own().filter(|segment| segment.len >= bytes) else {
            return false;
        };
        segment.start += bytes;
        segment.len -= bytes;
        true
    }

    fn share(&self) -> Self {
        Self {
            head: Rc::clone(&self.head),
            tail: self.tail.clone(),
            bad_checksum: self.bad_checksum,
            cut: self.cut,
        }
    }

    /// All exist at once, as references that are counted at once do.
    fn share_many(&self, references: u16) -> Self::Shares<'_> {
        let shares: Vec<_> = (0..references).map(|_| self.share()).collect();
        shares.into_iter()
    }

    fn chain(head: Self, tail: Self) -> Option<Self> {
        if head.tail.is_some() || tail.tail.is_some() {
            return None;
        }
        Some(Self {
            head: head.head,
            tail: Some(tail.head),
            bad_checksum: head.bad_checksum,
            cut: None,
        })
    }

    fn has_bad_checksum(&self) -> bool {
        self.bad_checksum
    }
}

/// The driver's side of the way out: it keeps what leaves.
pub struct Driver {
    /// By port, frames that left.
    pub sent: Vec<Vec<Packet>>,
    /// By port, frames that it still takes.
    pub room: Vec<usize>,
    /// By core, frames handed over.
    pub handed: Vec<Vec<Handover<Packet>>>,
    /// Frames that may wait for each other core.
    pub handover_room: usize,
}

impl Driver {
    /// A driver that takes everything.
    pub fn new(ports: usize, cores: usize) -> Self {
        Self {
            sent: (0..ports).map(|_| Vec::new()).collect(),
            room: vec![usize::MAX; ports],
            handed: (0..cores).map(|_| Vec::new()).collect(),
            handover_room: usize::MAX,
        }
    }

    /// What left since the last call, port by port; the frames are given back.
    pub fn take(&mut self) -> Vec<(PortId, Vec<u8>)> {
        let mut all = Vec::new();
        for (port, frames) in self.sent.iter_mut().enumerate() {
            let port = PortId(port as u16);
            all.extend(frames.drain(..).map(|frame| (port, frame.bytes())));
        }
        all
    }
}

impl Transmit<Packet> for Driver {
    fn room(&self, port: PortId) -> usize {
        self.room[usize::from(port.0)]
    }

    fn transmit(&mut self, port: PortId, frames: &mut Vec<Packet>) -> usize {
        let room = &mut self.room[usize::from(port.0)];
        let taken = frames.len().min(*room);
        *room -= taken;
        self.sent[usize::from(port.0)].extend(frames.drain(..taken));
        taken
    }

    fn hand_over(&mut self, core: usize, frames: &mut Vec<Handover<Packet>>) -> u64 {
        let waiting = &mut self.handed[core];
        let room = self.handover_room.saturating_sub(waiting.len());
        let dropped = frames.len().saturating_sub(room);
        waiting.extend(frames.drain(..).take(room));
        dropped as u64
    }
}
