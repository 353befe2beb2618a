//! Receiving: superframes into one buffer for each of their datagrams.
//!
//! # How it works
//!
//! Where the datagrams of a superframe are to go must be said before it comes. So they are taken to
//! be as long as those of the last one: the first buffer gets the headers and a datagram, every
//! other a datagram behind the room for its headers, which are then copied. If the guess was wrong,
//! or an ordinary frame is longer, its bytes are moved to where they belong.
//!
//! A switch forwards superframes that are not to itself
//! ([`forward_superframes`](PacketRx::forward_superframes)). Such a one stays one frame: the same
//! buffers as a chain, with headers in the first, which says how it is to be cut ([`Cut`]).

use crate::flag::Flag;
use crate::socket::{Socket, no_message, offload_part, part, point};
use crate::superframe::{BYTES_MAX, DATAGRAMS_MAX, Offload, cut, finish_checksum};
use crate::vlan::{Aside, TAG_BYTES};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tally_dpdk::{Cut, Mbuf, Mempool};
use tally_wire::field::{be16, ethernet, ipv4};
use tally_wire::frame::{ETHERTYPE_IPV4, GROUP_PREFIX, UDP_END};
use tally_wire::superframe::{SUPERFRAME_HEADERS_BYTES_MAX, Superframe};

/// Frames or superframes taken in one system call.
const MESSAGES: usize = 4;
/// Parts of a message: what the kernel says of it, buffers, and what is beyond them.
const PARTS_MAX: usize = DATAGRAMS_MAX + 2;
/// Bytes of the longest frame or superframe.
const FRAME_BYTES_MAX: usize = BYTES_MAX + UDP_END + 64;

/// The socket of a port, for the thread that looks after it.
pub struct Monitor(Arc<Socket>);

impl Monitor {
    /// The number of the interface that it was opened on. A later interface of the same name has
    /// another one.
    #[must_use]
    pub fn interface_index(&self) -> u32 {
        self.0.interface_index()
    }

    /// Frames that the kernel dropped since the last call because too many waited.
    #[must_use]
    pub fn take_dropped(&self) -> u64 {
        self.0.take_dropped()
    }
}

/// The receiving side of a port.
pub struct PacketRx {
    socket: Arc<Socket>,
    flag: Flag,
    pool: Mempool,
    messages: Vec<Message>,
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    /// Received, and not yet asked for.
    ready: VecDeque<Mbuf>,
    /// How many of them, from the front, came as one, and the next, and so on.
    trains: VecDeque<usize>,
    /// Length of a superframe's datagrams, as the last one had it; before the first, as much as
    /// fits a buffer.
    datagram_bytes: usize,
    gathered: Vec<u8>,
    /// Of one superframe, in order.
    chained: Vec<Mbuf>,
    /// Superframes stay whole unless they are datagrams to this address.
    cut_only: Option<Ipv4Addr>,
    unsupported: u64,
    no_buffer: u64,
    /// `Send`, not `Sync`.
    _one_thread: PhantomData<Cell<()>>,
}

// SAFETY: the pointers in `headers` and `parts` are written before each system call and not used
// after it. All else may be used on any thread.
unsafe impl Send for PacketRx {}

/// Where a message is received into.
struct Message {
    offload: Offload,
    aside: Aside,
    /// Each as long as headers and a datagram.
    buffers: Vec<Mbuf>,
    /// What is longer.
    rest: Box<[u8]>,
}

impl PacketRx {
    pub(crate) fn new(socket: Arc<Socket>, flag: Flag, pool: Mempool) -> Self {
        let message = || Message {
            offload: Offload::default(),
            aside: Aside::new(),
            buffers: Vec::with_capacity(DATAGRAMS_MAX),
            rest: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
        };
        let datagram_bytes = pool.frame_bytes_max() - UDP_END;
        Self {
            socket,
            flag,
            pool,
            messages: (0..MESSAGES).map(|_| message()).collect(),
            headers: vec![no_message(); MESSAGES],
            parts: Vec::with_capacity(MESSAGES * PARTS_MAX),
            ready: VecDeque::with_capacity(MESSAGES * DATAGRAMS_MAX),
            trains: VecDeque::with_capacity(MESSAGES),
            datagram_bytes,
            gathered: Vec::with_capacity(FRAME_BYTES_MAX),
            chained: Vec::with_capacity(DATAGRAMS_MAX),
            cut_only: None,
            unsupported: 0,
            no_buffer: 0,
            _one_thread: PhantomData,
        }
    }

    /// Has superframes of TCP and UDP, with up to two VLAN tags, come as one frame each
    /// ([`Mbuf::cut`]). Datagrams to `address` and to groups of jobs come one by one. Until then,
    /// those of UDP over IPv4 are cut and others are dropped and counted.
    pub fn forward_superframes(&mut self, address: Ipv4Addr) {
        self.cut_only = Some(address);
    }

    /// What a [`Ready`](crate::Ready) looks at, and where it says what it saw.
    pub(crate) fn watched(&self) -> (&Socket, &Flag) {
        (&self.socket, &self.flag)
    }

    /// What another thread may ask of its socket.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor(Arc::clone(&self.socket))
    }

    /// Takes up to `max` frames that had arrived when [`Ready`](crate::Ready) looked, appends them
    /// to `out`, and returns how many. Doesn't wait. Nothing is allocated on Rust's heap if `out`
    /// has the capacity.
    pub fn burst(&mut self, out: &mut Vec<Mbuf>, max: usize) -> usize {
        if self.ready.is_empty() && self.flag.is_set() {
            self.receive();
        }
        let mut n = 0;
        while let Some(train) = self.trains.front_mut() {
            // What came as one is asked for as one, if it can be, so that what it leads to leaves
            // as one.
            if n > 0 && n + *train > max {
                break;
            }
            let taken = (*train).min(max - n);
            n += taken;
            *train -= taken;
            if *train > 0 {
                break;
            }
            self.trains.pop_front();
        }
        out.extend(self.ready.drain(..n));
        n
    }

    /// Dropped: superframes of other kinds, superframes that this kernel does not pass on, and
    /// frames that are longer than a buffer.
    #[must_use]
    pub fn unsupported(&self) -> u64 {
        self.unsupported
    }

    /// Frames dropped because the pool was dry.
    #[must_use]
    pub fn no_buffer(&self) -> u64 {
        self.no_buffer
    }

    fn receive(&mut self) {
        let wanted = BYTES_MAX.div_ceil(self.datagram_bytes.max(1));
        let wanted = wanted.clamp(1, DATAGRAMS_MAX);
        let frame_bytes = UDP_END + self.datagram_bytes;
        self.parts.clear();
        let mut n = 0;
        for message in &mut self.messages {
            message.buffers.truncate(wanted);
            let missing = wanted - message.buffers.len();
            // Without, fewer do, and what is beyond is copied.
            self.pool.alloc_bulk(&mut message.buffers, missing);
            for buffer in &mut message.buffers {
                // It has room for it: `datagram_bytes` was made to fit, and it is not shared.
                let _ = buffer.set_len(frame_bytes);
            }
            if message.buffers.is_empty() {
                break;
            }
            message.aside.attach(&mut self.headers[n]);
            self.parts.push(offload_part(&mut message.offload));
            let parts = &mut self.parts;
            for (at, buffer) in message.buffers.iter_mut().enumerate() {
                let from = if at == 0 { 0 } else { UDP_END };
                if let Some(bytes) = buffer.data_mut() {
                    parts.push(part(&mut bytes[from..]));
                }
            }
            parts.push(part(&mut message.rest));
            n += 1;
        }
        if n == 0 {
            return;
        }
        let numbers = self.messages[..n].iter().map(|it| it.buffers.len() + 2);
        point(&mut self.headers, &mut self.parts, numbers);
        // SAFETY: `n` headers, each with parts that are within buffers that only we have, and with
        // room for what is said beside them; all of it lives until the call returns.
        let got = unsafe {
            libc::recvmmsg(
                self.socket.fd(),
                self.headers.as_mut_ptr(),
                n as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let got = usize::try_from(got).unwrap_or_else(|_| {
            // One that the kernel has no word for is gone. Else there is nothing, or the interface
            // is down for now: it may come up again.
            let is_nameless = io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
            self.unsupported += u64::from(is_nameless);
            0
        });
        self.flag.set(got == n);
        for at in 0..got {
            let header = &self.headers[at];
            let cut_off = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let bytes = (header.msg_len as usize).saturating_sub(size_of::<Offload>());
            let before = self.ready.len();
            if cut_off || !self.take(at, bytes) {
                self.unsupported += 1;
            }
            self.trains.push_back(self.ready.len() - before);
        }
    }

    /// Makes frames of what was received into a message; `false` if there are none to be made of
    /// it.
    fn take(&mut self, at: usize, bytes: usize) -> bool {
        let message = &mut self.messages[at];
        let mut offload = message.offload;
        let tag = message.aside.tag();
        let frame_bytes = message.buffers[0].len();
        if offload.gso_type != Offload::NONE
            && let Some(address) = self.cut_only
            && !is_to(address, message.buffers[0].data())
        {
            // All headers are to be in one piece.
            let head = if frame_bytes >= bytes.min(SUPERFRAME_HEADERS_BYTES_MAX) {
                message.buffers[0].data()
            } else {
                self.gather(at, bytes);
                &self.gathered
            };
            let head = &head[..head.len().min(bytes)];
            let Some(superframe) = forwarded(head, bytes, &offload) else {
                return false;
            };
            if superframe.segments() > 1 {
                return self.take_whole(at, bytes, &superframe);
            }
            // A frame like any other.
            offload.gso_type = Offload::NONE;
        }
        let message = &mut self.messages[at];
        if offload.gso_type == Offload::NONE {
            let mut frame = if bytes > frame_bytes {
                self.gather(at, bytes);
                let Some(mut frame) = self.pool.alloc() else {
                    self.no_buffer += 1;
                    return true;
                };
                let Some(room) = frame.append(bytes) else {
                    return false;
                };
                room.copy_from_slice(&self.gathered);
                frame
            } else {
                let mut frame = message.buffers.remove(0);
                let _ = frame.set_len(bytes);
                frame
            };
            // Where its checksum is was said of the frame without tag.
            finish(&mut frame, &offload, self.cut_only);
            if tag.is_some_and(|tag| !tag.put_back(&mut frame)) {
                return false;
            }
            self.ready.push_back(frame);
            return true;
        }
        // VLAN tags and options would make the headers longer.
        let headers = usize::from(offload.csum_start) + 8;
        let datagram_bytes = usize::from(offload.gso_size);
        let is_udp = offload.gso_type == Offload::UDP && headers == UDP_END;
        if !is_udp || datagram_bytes == 0 || tag.is_some() {
            return false;
        }
        let Some(payload) = bytes.checked_sub(UDP_END).filter(|&payload| payload > 0) else {
            return false;
        };
        let frames = payload.div_ceil(datagram_bytes);
        if datagram_bytes != frame_bytes - UDP_END || frames > message.buffers.len() {
            return self.take_apart(at, bytes, datagram_bytes);
        }
        let Some(head) = message.buffers[0].data().first_chunk().copied() else {
            return false;
        };
        let (whole, last) = (
            cut(&head, datagram_bytes),
            payload - (frames - 1) * datagram_bytes,
        );
        for (at, mut frame) in message.buffers.drain(..frames).enumerate() {
            if at == frames - 1 && last != datagram_bytes {
                let _ = frame.set_len(UDP_END + last);
                write_headers(&mut frame, &cut(&head, last));
            } else {
                write_headers(&mut frame, &whole);
            }
            self.ready.push_back(frame);
        }
        true
    }

    /// A superframe that stays one: a chain of the buffers that it was received into.
    fn take_whole(&mut self, at: usize, bytes: usize, superframe: &Superframe) -> bool {
        let (headers_bytes, segment_bytes) =
            (superframe.headers_bytes(), superframe.segment_bytes());
        let frame_bytes_max = self.pool.frame_bytes_max();
        // As a frame of its own no buffer would hold it.
        if headers_bytes + segment_bytes > frame_bytes_max {
            return false;
        }
        let tag = self.messages[at].aside.tag();
        let longest = frame_bytes_max - UDP_END;
        let is_as_guessed = self.messages[at].buffers[0].len() == frame_bytes_max;
        self.datagram_bytes = longest;
        self.chained.clear();
        let mut left = bytes;
        if is_as_guessed {
            let buffers = &mut self.messages[at].buffers;
            let used = 1 + bytes.saturating_sub(frame_bytes_max).div_ceil(longest);
            let used = used.min(buffers.len());
            for (at, mut buffer) in buffers.drain(..used).enumerate() {
                // Unshared and as long as they can be.
                if at > 0 {
                    let _ = buffer.adj(UDP_END);
                }
                if buffer.len() > left {
                    let _ = buffer.set_len(left);
                }
                left -= buffer.len();
                self.chained.push(buffer);
            }
        }
        if left > 0 {
            let rest = if is_as_guessed {
                &*self.messages[at].rest
            } else {
                self.gather(at, bytes);
                &*self.gathered
            };
            for part in rest[..left].chunks(frame_bytes_max) {
                let Some(buffer) = self.pool.alloc_copy(part) else {
                    self.no_buffer += 1;
                    self.chained.clear();
                    return true;
                };
                self.chained.push(buffer);
            }
        }
        let mut chained = self.chained.drain(..);
        let Some(mut head) = chained.next() else {
            return false;
        };
        let Some(headers) = head.data_mut() else {
            return false;
        };
        // A hostile kernel neighbour may have left anything there.
        superframe.open_checksum(headers);
        let mut cut = Cut {
            headers_bytes: headers_bytes as u16,
            segment_bytes: segment_bytes as u16,
        };
        if let Some(tag) = tag {
            if !tag.put_back(&mut head) {
                return false;
            }
            cut.headers_bytes += TAG_BYTES as u16;
        }
        let Ok(mut frame) = Mbuf::chain_all(head, chained) else {
            return false;
        };
        if !frame.set_cut(cut) {
            return false;
        }
        self.ready.push_back(frame);
        true
    }

    /// All bytes of a message, one after the other.
    fn gather(&mut self, at: usize, bytes: usize) {
        let message = &self.messages[at];
        self.gathered.clear();
        for (at, buffer) in message.buffers.iter().enumerate() {
            let from = if at == 0 { 0 } else { UDP_END };
            self.gathered.extend_from_slice(&buffer.data()[from..]);
        }
        let rest = bytes.saturating_sub(self.gathered.len());
        self.gathered.extend_from_slice(&message.rest[..rest]);
        self.gathered.truncate(bytes);
    }

    /// Frames of a superframe that is not as the last one was.
    fn take_apart(&mut self, at: usize, bytes: usize, datagram_bytes: usize) -> bool {
        if UDP_END + datagram_bytes > self.pool.frame_bytes_max() {
            return false;
        }
        self.gather(at, bytes);
        self.datagram_bytes = datagram_bytes;
        let Some(head) = self.gathered.first_chunk().copied() else {
            return false;
        };
        for datagram in self.gathered[UDP_END..].chunks(datagram_bytes) {
            let Some(mut frame) = self.pool.alloc() else {
                self.no_buffer += 1;
                continue;
            };
            let Some(room) = frame.append(UDP_END + datagram.len()) else {
                return false;
            };
            room[..UDP_END].copy_from_slice(&cut(&head, datagram.len()));
            room[UDP_END..].copy_from_slice(datagram);
            self.ready.push_back(frame);
        }
        true
    }
}

fn write_headers(frame: &mut Mbuf, headers: &[u8; UDP_END]) {
    if let Some(bytes) = frame.data_mut() {
        bytes[..UDP_END].copy_from_slice(headers);
    }
}

/// Without checksums of datagrams to `address`, or, if there is none, of all.
fn finish(frame: &mut Mbuf, offload: &Offload, address: Option<Ipv4Addr>) {
    if offload.flags & Offload::CHECKSUM_OPEN != 0
        && let Some(bytes) = frame.data_mut()
    {
        let may_omit = address.is_none_or(|address| is_to(address, bytes));
        finish_checksum(bytes, offload, may_omit);
    }
}

/// Whether a frame without VLAN tag is of IPv4, to this address or to the group of a job: results
/// of a parent switch are to the switch, too.
fn is_to(address: Ipv4Addr, frame: &[u8]) -> bool {
    let head = frame.first_chunk::<UDP_END>();
    head.is_some_and(|h| {
        let to = &h[ipv4::DST];
        be16(h, ethernet::ETHERTYPE) == ETHERTYPE_IPV4
            && (to == address.octets() || to.starts_with(&GROUP_PREFIX))
    })
}

/// What a superframe that is to be forwarded consists of, if its headers and the kernel agree.
fn forwarded(head: &[u8], bytes: usize, offload: &Offload) -> Option<Superframe> {
    let superframe = Superframe::parse(head, bytes, offload.gso_size)?;
    let agreed = offload.flags & Offload::CHECKSUM_OPEN != 0
        && usize::from(offload.csum_start) == superframe.transport_at()
        && usize::from(offload.csum_offset) == superframe.checksum_offset()
        && offload.gso_type & !Offload::ECN == Offload::kind_of(superframe.kind());
    agreed.then_some(superframe)
}
