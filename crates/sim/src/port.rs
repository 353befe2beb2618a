//! Ports, and the way of a frame over a cable to its arrival.

use crate::address::Peer;
use crate::events::{Event, EventQueue};
use crate::frame::Frame;
use crate::link::{ETHERNET_OVERHEAD_BYTES, Link, LinkConfig, OVERHEAD_BYTES, SHORTEST_BYTES};
use crate::rng::Rng;
use tally_engine::Frame as _;
use tally_wire::Time;
use tally_wire::frame::UDP_END;
use tally_wire::header::HEADER_BYTES;

/// A port, with its direction of the cable.
pub struct Port {
    /// To the peer.
    pub link: Link,
    /// The other end.
    pub peer: Peer,
    /// An event that transmits from the queues is scheduled.
    pub(crate) is_armed: bool,
}

impl Port {
    pub(crate) fn new(link: LinkConfig, peer: Peer) -> Self {
        Self {
            link: Link::new(link),
            peer,
            is_armed: false,
        }
    }

    /// Gives a frame to the cable. What the cable has no room for is lost.
    pub(crate) fn send(&mut self, frame: Frame, out: &mut Outside<'_>) {
        let bytes = wire_bytes(frame.bytes(), out.nominal_payload_bytes);
        let Some(left) = self.link.take(out.now, bytes) else {
            return;
        };
        let arrivals = self.link.fly(left, has_elements(frame.bytes()), out.rng);
        if let Some(at) = arrivals.copy {
            out.events.push(at, arrival(self.peer, frame.copied()));
        }
        if let Some(at) = arrivals.first {
            // A switch receives into buffers of its own; hosts and ordinary switches only read.
            let frame = match self.peer {
                Peer::Switch(..) if !frame.is_unique() => frame.copied(),
                _ => frame,
            };
            out.events.push(at, arrival(self.peer, frame));
        }
    }
}

/// What the switch needs of the world.
pub struct Outside<'a> {
    /// The time.
    pub now: Time,
    /// Where frames arrive.
    pub events: &'a mut EventQueue<Event>,
    /// For faults.
    pub rng: &'a mut Rng,
    /// Payload bytes that element frames stand for on the wire; none: what they have.
    pub nominal_payload_bytes: Option<u32>,
}

/// The arrival of a frame at the other end of a cable.
pub(crate) fn arrival(peer: Peer, frame: Frame) -> Event {
    match peer {
        Peer::Host(host) => Event::ToHost(host, frame),
        Peer::Switch(switch, port) => Event::ToSwitch(switch, port, frame),
        Peer::Bridge(bridge, port) => Event::ToBridge(bridge, port, frame),
        Peer::Card(switch) => Event::ToCard(switch, frame),
    }
}

/// Whether a frame is DATA, RESULT or PARTIAL, as the low half of its datagram's first byte says.
pub(crate) fn has_elements(frame: &[u8]) -> bool {
    frame
        .get(UDP_END)
        .is_some_and(|first| (5..=7).contains(&(first & 0xf)))
}

/// Bytes that a frame takes on the wire.
pub(crate) fn wire_bytes(frame: &[u8], nominal_payload_bytes: Option<u32>) -> u32 {
    let bytes = match nominal_payload_bytes {
        Some(payload) if has_elements(frame) => payload + HEADER_BYTES as u32 + OVERHEAD_BYTES,
        _ => frame.len() as u32 + ETHERNET_OVERHEAD_BYTES,
    };
    bytes.max(SHORTEST_BYTES)
}
