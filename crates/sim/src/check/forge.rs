//! Frames from a host that is no member of anything: recorded ones, claims of being a member or the switch,
//! and headers with a few bits changed. None of them may have any effect.
//!
//! Those that claim to be the switch reach hosts directly, as if the switch forwarded everything: what a member
//! believes must not depend on what the switch keeps from it.

use super::data::Contributor;
use crate::frame::{Address, Destination, HostId};
use crate::rng::Rng;
use crate::switch::SWITCH_HOST;
use crate::world::World;
use tally_engine::PortId;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{AuthTag, Element, Flags, Header, Kind, Rank};

/// The source of forged frames that claim to come from the switch, by which checkers know them: its port is
/// none that the switch sends from.
pub const FORGED_SWITCH: Address = Address {
    host: SWITCH_HOST,
    udp_port: u16::MAX,
};

/// Sends one such frame, made from one that came to the switch not long ago.
pub fn forge(world: &mut World<Contributor>, rng: &mut Rng, forger: HostId) {
    let Some(tap) = world.tap.as_ref().filter(|tap| !tap.is_empty()) else {
        return;
    };
    let of = &tap[rng.below(tap.len() as u64) as usize];
    let mut datagram = of.datagram().to_vec();
    let (mut from, mut to) = (of.from, of.to);
    let mut port = PortId(forger.0);
    match rng.below(12) {
        // As recorded, from an address of its own.
        0 => {
            from = Address {
                host: forger,
                udp_port: from.udp_port,
            };
        }
        // As recorded, with the sender's address: only the port of the switch tells.
        1 => {}
        2 | 3 => {
            for _ in 0..rng.between(1, 3) {
                let bit = rng.below(8 * HEADER_BYTES as u64) as usize;
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
        }
        4 => from.host = SWITCH_HOST,
        5 => to = Destination::Switch(rng.next() as u16),
        // A result of its own making.
        6 => {
            if let Ok(header) = Header::parse(&datagram)
                && header.kind == Kind::Data
            {
                let result = Header {
                    kind: Kind::Result,
                    flags: Flags::FROM_PS,
                    rank: Rank::PS,
                    bitmap: 0,
                    tag: AuthTag(rng.next()),
                    ..header
                };
                result.emit(&mut datagram);
                datagram[HEADER_BYTES..].fill(0xee);
            }
        }
        // A worker's result, from its own port and address: only the tag tells.
        7 => {
            if let Ok(header) = Header::parse(&datagram)
                && header.kind == Kind::Data
                && usize::from(from.host.0) < world.hosts.len()
            {
                let result = Header {
                    kind: Kind::Result,
                    flags: Flags::NONE,
                    bitmap: 0,
                    tag: AuthTag(rng.next()),
                    ..header
                };
                result.emit(&mut datagram);
                datagram[HEADER_BYTES..].fill(0xee);
                port = PortId(from.host.0);
            }
        }
        _ => {
            if let Ok(header) = Header::parse(&datagram)
                && !header.kind.is_control()
            {
                let host = HostId(rng.below(world.hosts.len() as u64) as u16);
                let (to, datagram) = as_switch(&header, host, rng);
                world.deliver(host, FORGED_SWITCH, to, &datagram);
            }
            return;
        }
    }
    world.inject(port, from, to, &datagram);
}

/// A frame about the same fragment or one nearby that only the switch sends, with a tag that was seen or guessed.
fn as_switch(header: &Header, host: HostId, rng: &mut Rng) -> (Destination, Vec<u8>) {
    let kinds = [
        Kind::Result,
        Kind::Partial,
        Kind::NotHere,
        Kind::Nack,
        Kind::Probe,
    ];
    let kind = kinds[rng.below(kinds.len() as u64) as usize];
    let is_long = kind.has_elements();
    let element = if header.element == Element::None {
        Element::I32
    } else {
        header.element
    };
    let worker = Rank(rng.below(64) as u8);
    let rank = if matches!(kind, Kind::Nack | Kind::Probe) {
        worker
    } else {
        Rank::SWITCH
    };
    let forged = Header {
        kind,
        flags: Flags::NONE,
        element: if is_long { element } else { Element::None },
        fragment: header.fragment.plus(rng.below(3) as u32),
        rank,
        units: if is_long { header.units.max(1) } else { 0 },
        bitmap: if kind == Kind::Partial { 1 } else { 0 },
        tag: if rng.chance(300_000) {
            header.tag
        } else {
            AuthTag(rng.next())
        },
        ..*header
    };
    let mut datagram = vec![0xee; forged.datagram_bytes()];
    forged.emit(&mut datagram);
    forged.emit_trailer(&mut datagram[HEADER_BYTES + forged.payload_bytes()..]);
    let to = if kind == Kind::Result {
        Destination::Group(header.job)
    } else {
        Destination::Host(host)
    };
    (to, datagram)
}
