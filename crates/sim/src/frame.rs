//! A frame of the simulated network, and the pool that frames are taken from.
//!
//! The datagram (Tally header and payload) is real bytes, as sessions emit them and the engine sums
//! them. Addresses are numbers in place of headers. A frame may stand for a larger one on the wire:
//! `wire_bytes` is what links charge.
//!
//! Frames are shared by reference, like the switch's buffers; only a frame's single owner writes to
//! it. Whoever is done with one gives it to the [`Pool`], so that nothing is allocated per frame.

use crate::switch::{SWITCH_HOST, SWITCH_MAC};
use std::net::Ipv4Addr;
use std::rc::Rc;
use tally_engine::{Member, PortId};
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Ecn, JobId, Mac};

/// A host, and the port of the switch that its cable goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u16);

/// A host's address with a UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whose; also says MAC and IPv4 address.
    pub host: HostId,
    /// UDP port.
    pub udp_port: u16,
}

impl Address {
    /// The Ethernet address.
    #[must_use]
    pub const fn mac(self) -> Mac {
        let [high, low] = self.host.0.to_be_bytes();
        if self.host.0 == SWITCH_HOST.0 {
            SWITCH_MAC
        } else {
            Mac([2, 0, 0, 0, high, low])
        }
    }

    /// The IPv4 address.
    #[must_use]
    pub const fn ip(self) -> Ipv4Addr {
        let [high, low] = self.host.0.to_be_bytes();
        Ipv4Addr::new(10, 0, high, low)
    }

    /// What the switch's adapter makes of a frame from this address that came in on `port`.
    #[must_use]
    pub const fn member(self, port: PortId) -> Member {
        Member {
            port,
            mac: self.mac(),
            ip: self.ip(),
            udp_port: self.udp_port,
        }
    }

    /// The address of a member.
    #[must_use]
    pub const fn of(member: &Member) -> Self {
        let [_, _, high, low] = member.ip.octets();
        Self {
            host: HostId(u16::from_be_bytes([high, low])),
            udp_port: member.udp_port,
        }
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The switch, at this UDP port.
    Switch(u16),
    /// One member.
    Member(Address),
    /// The workers of a job.
    Group(JobId),
    /// Every session at a host, which no true frame does.
    Host(HostId),
    /// Where its Ethernet header says: the bytes are a whole frame, from Ethernet on, and `from` is
    /// who sent it, which its headers may deny.
    Ethernet,
}

/// Bytes of a [`Destination::Ethernet`] frame in front of its datagram at most, or of one without.
pub const HEADERS_ROOM: usize = 128;

/// A frame's contents.
#[derive(Clone, Debug)]
pub struct Body {
    bytes: Box<[u8]>,
    len: u32,
    /// Bytes that it takes on a link: preamble, headers, payload, check sequence and gap.
    pub wire_bytes: u32,
    /// The source that its headers claim.
    pub from: Address,
    /// Where it goes.
    pub to: Destination,
    /// Congestion, as in the IP header.
    pub ecn: Ecn,
}

impl Body {
    /// Tally header and payload.
    #[inline]
    #[must_use]
    pub fn datagram(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// Tally header and payload, to be changed.
    #[inline]
    pub fn datagram_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len as usize]
    }

    /// All the room for a datagram; [`set_len`](Self::set_len) says how much of it is used.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Says how long the datagram is.
    ///
    /// # Panics
    /// If there is not so much room.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len());
        self.len = len as u32;
    }

    /// The payload behind the Tally header.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..self.len as usize]
    }
}

/// A frame: shared contents.
#[derive(Clone, Debug)]
pub struct Frame(Rc<Body>);

impl std::ops::Deref for Frame {
    type Target = Body;

    #[inline]
    fn deref(&self) -> &Body {
        &self.0
    }
}

impl Frame {
    /// The contents, to be changed by their single owner.
    ///
    /// # Panics
    /// If the frame is shared.
    #[inline]
    pub fn body_mut(&mut self) -> &mut Body {
        Rc::get_mut(&mut self.0).expect("only a frame's single owner writes to it")
    }

    /// Whether nobody else has it.
    #[inline]
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

/// Frames out of use.
pub struct Pool {
    free: Vec<Frame>,
    room: usize,
}

impl Pool {
    /// Frames with room for datagrams of so many bytes, and for the headers of whole frames.
    #[must_use]
    pub const fn new(datagram_bytes: usize) -> Self {
        let free = Vec::new();
        let room = datagram_bytes + HEADERS_ROOM;
        Self { free, room }
    }

    /// A frame of one owner, with anything in it.
    #[inline]
    pub fn take(&mut self) -> Frame {
        self.free.pop().unwrap_or_else(|| {
            let nobody = Address {
                host: HostId(0),
                udp_port: 0,
            };
            Frame(Rc::new(Body {
                bytes: vec![0xa5; self.room].into(),
                len: 0,
                wire_bytes: 0,
                from: nobody,
                to: Destination::Switch(0),
                ecn: Ecn::Ect0,
            }))
        })
    }

    /// A copy of one owner.
    pub fn copy(&mut self, of: &Frame) -> Frame {
        let mut copy = self.take();
        let body = copy.body_mut();
        body.set_len(of.datagram().len());
        body.datagram_mut().copy_from_slice(of.datagram());
        body.wire_bytes = of.wire_bytes;
        body.from = of.from;
        body.to = of.to;
        body.ecn = of.ecn;
        copy
    }

    /// Takes a frame back; the last one to give it back makes it free.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        if frame.is_unique() {
            self.free.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_the_roster() {
        for host in [0, 1, 255, 256, 65_535] {
            let address = Address {
                host: HostId(host),
                udp_port: host ^ 0x55,
            };
            assert_eq!(Address::of(&address.member(PortId(3))), address);
        }
    }

    #[test]
    fn a_frame_is_free_when_the_last_owner_gives_it_back() {
        let mut pool = Pool::new(100);
        let mut frame = pool.take();
        frame.body_mut().set_len(40);
        let shared = frame.clone();
        pool.give(frame);
        assert!(pool.free.is_empty());
        pool.give(shared);
        assert_eq!(pool.free.len(), 1);
        assert!(pool.take().is_unique());
    }
}
