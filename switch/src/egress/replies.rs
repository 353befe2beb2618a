//! SwitchML's replies: for each worker its own headers, and the one sum that all of them share.
//!
//! A sum is what remains of the first contribution's frame when its headers are cut off. A reply is a frame of two
//! segments: 52 bytes of headers in a fresh buffer, and the sum by reference. Frames for the headers are taken
//! from the pool many at a time.
//!
//! The catch: a driver that sends no frames of several segments gets a copy of the sum for each worker behind it,
//! which is counted ([`ReplyCounters`]). Those are `net_af_xdp`, `net_memif` since DPDK 23.03, and
//! NICs whose driver does not announce multi-segment transmission.

use super::Ports;
use tally_dpdk::{Mbuf, Mempool};
use tally_engine::queue::class_of;
use tally_engine::switchml::{Destination, Replies};
use tally_engine::{Buffer, PortId};
use tally_wire::Addresses;
use tally_wire::switchml::{HEADERS_BYTES, Header, emit_reply};

/// Frames for headers that a core has at hand, at most.
pub const HEADS_FRAMES: usize = 64;

/// The elements of a SwitchML frame, without its headers: what its engine calls a buffer.
pub struct Elements(pub Mbuf);

impl Buffer for Elements {
    #[inline]
    fn payload(&self) -> &[u8] {
        self.0.data()
    }

    #[inline]
    fn payload_mut(&mut self) -> &mut [u8] {
        self.0
            .data_mut()
            .expect("the engine writes only to frames it never shared")
    }
}

/// What SwitchML adds to what is counted of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyCounters {
    /// Replies for which the sum was copied, because the port's driver sends no frames of several segments.
    pub copied: u64,
    /// Frames that were not flooded to it, because a member of a session is behind it.
    pub spared: u64,
}

impl ReplyCounters {
    /// Adds another core's counts.
    pub fn add(&mut self, other: &Self) {
        self.copied += other.copied;
        self.spared += other.spared;
    }
}

/// What a core needs for replies.
pub(super) struct Heads {
    pool: Mempool,
    stock: Vec<Mbuf>,
    /// By port, whether its driver sends frames of several segments.
    chains: Vec<bool>,
}

impl Heads {
    /// An empty frame; `None` if the pool is dry.
    #[inline]
    fn take(&mut self) -> Option<Mbuf> {
        if self.stock.is_empty() && !self.pool.alloc_bulk(&mut self.stock, HEADS_FRAMES) {
            return self.pool.alloc();
        }
        self.stock.pop()
    }
}

impl Ports {
    /// Makes it possible to reply to SwitchML's workers. `chains` says of each port whether it sends frames
    /// of several segments.
    pub fn serve_switchml(&mut self, pool: &Mempool, chains: Vec<bool>) {
        self.heads = Some(Heads {
            pool: pool.clone(),
            stock: Vec::with_capacity(HEADS_FRAMES),
            chains,
        });
    }

    /// A reply as a frame; `None` if the pool is dry. `share` gives a reference to the sum.
    #[inline]
    fn reply_frame(
        &mut self,
        port: PortId,
        addresses: &Addresses,
        header: &Header,
        sum: &Mbuf,
        share: impl FnOnce() -> Option<Mbuf>,
    ) -> Option<Mbuf> {
        let heads = self.heads.as_mut()?;
        let mut head = heads.take()?;
        let at = usize::from(port.0);
        if heads.chains[at] {
            emit_reply(head.append(HEADERS_BYTES)?, addresses, header);
            return Mbuf::chain(head, share()?).ok();
        }
        let elements = sum.data();
        let frame = head.append(HEADERS_BYTES + elements.len())?;
        emit_reply(frame, addresses, header);
        frame[HEADERS_BYTES..].copy_from_slice(elements);
        self.replies[at].copied += 1;
        Some(head)
    }

    #[inline]
    fn reply_by(
        &mut self,
        to: &Destination,
        header: &Header,
        tos: u8,
        sum: &Mbuf,
        share: impl FnOnce() -> Option<Mbuf>,
    ) {
        let addresses = Addresses {
            src_mac: to.own_mac,
            dst_mac: to.mac,
            src_ip: self.own.ip,
            dst_ip: to.ip,
            src_port: to.own_port,
            dst_port: to.udp_port,
        };
        match self.reply_frame(to.port, &addresses, header, sum, share) {
            // A size that this port does not carry: its worker hears nothing, as from any switch.
            Some(frame) => self.forward(to.port, class_of(tos), frame),
            None => self.no_buffer += 1,
        }
    }
}

impl Replies<Elements> for Ports {
    #[inline]
    fn reply(&mut self, to: &Destination, header: &Header, tos: u8, Elements(sum): &Elements) {
        self.reply_by(to, header, tos, sum, || Some(sum.share()));
    }

    #[inline]
    fn reply_all(
        &mut self,
        to: &[Destination],
        header: &Header,
        tos: u8,
        Elements(sum): &Elements,
    ) {
        // Not one by one: after the first, each would be a locked instruction. Ports that take copies leave some.
        let mut shares = sum.share_many(to.len() as u16);
        for to in to {
            self.reply_by(to, header, tos, sum, || shares.next());
        }
    }

    #[inline]
    fn discard(&mut self, Elements(mbuf): Elements) {
        self.recycle(mbuf);
    }
}
