//! Frames from a host that is no member of anything: recorded ones, claims of being somebody else,
//! and headers with a few bits changed. None of them may have any effect.

use super::data::Contributor;
use crate::frame::{Address, Destination, HostId};
use crate::rng::Rng;
use crate::switch::SWITCH_HOST;
use crate::world::World;
use tally_engine::PortId;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Flags, Header, Kind, Rank};

/// Sends one such frame, made from one that came to the switch not long ago.
pub fn forge(world: &mut World<Contributor>, rng: &mut Rng, forger: HostId) {
    let Some(tap) = world.tap.as_ref().filter(|tap| !tap.is_empty()) else {
        return;
    };
    let of = &tap[rng.below(tap.len() as u64) as usize];
    let mut datagram = of.datagram().to_vec();
    let (mut from, mut to) = (of.from, of.to);
    match rng.below(7) {
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
        _ => {
            if let Ok(header) = Header::parse(&datagram)
                && header.kind == Kind::Data
            {
                let result = Header {
                    kind: Kind::Result,
                    flags: Flags::FROM_PS,
                    rank: Rank::PS,
                    bitmap: u64::MAX,
                    ..header
                };
                result.emit(&mut datagram);
                datagram[HEADER_BYTES..].fill(0xee);
            }
        }
    }
    let port = PortId(forger.0);
    world.inject(port, from, to, &datagram);
}
