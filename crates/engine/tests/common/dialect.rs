//! The part of the dispatch that speaks SwitchML's dialect: what a script's bytes mean there, and the way of
//! a frame behind UDP. The oracle is the model of the table, one for each of two shards.

use super::dispatch::{SWITCH_IP, Script};
use super::pair::{Pair, session, station, told};
use super::plain::host;
use super::table::Verdict;
use tally_engine::switchml::{Arrival, Route, SwitchmlConfig};
use tally_engine::{DropReason, Member, PortId};
use tally_kernels::Kernels;
use tally_wire::switchml::{FIRST_PORT, HEADERS_BYTES, Header, Size, emit_request};
use tally_wire::{Addresses, UdpFrame};

const SHARDS: u8 = 2;
const SLOTS: u16 = 4;
/// Workers of the sessions, by what chooses them; some are in two.
const SESSIONS: [(u64, Size, std::ops::Range<u8>); 4] = [
    (1, Size::B128, 0..3),
    (2, Size::B256, 10..12),
    (1, Size::B256, 2..4),
    (3, Size::B128, 11..12),
];

/// Both shards.
pub struct Dialect {
    shards: [Pair; SHARDS as usize],
}

impl Dialect {
    /// `layout` says how many buffers may be kept, and whether two sessions are there.
    pub fn new(layout: u8) -> Self {
        let held = [64, 4, 1, 0][usize::from(layout >> 4 & 3)];
        let pair = |shard| {
            let config = SwitchmlConfig {
                sessions: 2,
                slots: SLOTS,
                held,
                shards: SHARDS,
                shard,
            };
            Pair::new(config, Kernels::best())
        };
        let mut dialect = Self {
            shards: [pair(0), pair(1)],
        };
        if layout < 0xc0 {
            (0..2).for_each(|choice| dialect.bind(choice));
        }
        dialect
    }

    fn bind(&mut self, choice: usize) {
        let (id, size, workers) = SESSIONS[choice].clone();
        let session = session(id, size, workers);
        let bound = self.shards.each_mut().map(|pair| pair.bind(&session));
        assert_eq!(bound[0], bound[1], "shards differ");
    }

    /// Frames dropped.
    pub fn drops(&self) -> u64 {
        let shards = self.shards.iter();
        shards
            .map(|s| s.shard.counters().drops.iter().sum::<u64>())
            .sum()
    }

    pub fn unbind_all(&mut self) {
        for pair in &mut self.shards {
            (1..4).for_each(|id| pair.unbind(id));
        }
    }

    /// An operation; most make a frame.
    pub fn operation(&mut self, script: &mut Script<'_>) -> Vec<(Member, Vec<u8>)> {
        match script.byte() % 8 {
            0..3 => vec![contribution(script)],
            3 => {
                // All that a sum needs.
                let (choice, place) = (script.byte(), script.byte());
                let ranks = 0..SESSIONS[usize::from(choice) % 4].2.len() as u8;
                let say = |rank| contribution(&mut Script(&[choice, rank, place, 7]));
                ranks.map(say).collect()
            }
            4 => {
                self.bind(script.below(4));
                Vec::new()
            }
            5 => {
                let id = SESSIONS[script.below(4)].0;
                self.shards.iter_mut().for_each(|pair| pair.unbind(id));
                Vec::new()
            }
            6 => {
                let (from, mut frame) = contribution(script);
                for _ in 0..1 + script.below(3) {
                    let (at, flip) = (script.below(HEADERS_BYTES + 8), script.byte());
                    frame[at] ^= flip;
                }
                vec![(from, frame)]
            }
            _ => {
                let (from, mut frame) = contribution(script);
                let noise = script.bytes(frame.len() - 42);
                frame[42..42 + noise.len()].copy_from_slice(noise);
                vec![(from, frame)]
            }
        }
    }

    /// A frame to one of the dialect's ports: how many replies it led to, or `None` if it was dropped.
    pub fn take(&mut self, port: PortId, udp: &UdpFrame, frame: &[u8]) -> Option<u64> {
        let datagram = udp.datagram(frame);
        let header = match Header::parse(datagram) {
            Ok(header) => header,
            Err(error) => {
                self.shards[0].shard.count_drop(DropReason::from(error));
                return None;
            }
        };
        let a = udp.addresses;
        let arrival = Arrival {
            port,
            udp_port: a.src_port,
            own_port: a.dst_port,
            tos: frame[15],
        };
        let from = tally_engine::switchml::Station {
            mac: a.src_mac,
            ip: a.src_ip,
        };
        let route = Route {
            from,
            to: a.dst_mac,
        };
        let at = self.shards[0].shard.shard_of(&header);
        match self.shards[at].arrive(&route, &arrival, &header, &datagram[10..]) {
            Verdict::Dropped(_) => None,
            Verdict::Added => Some(0),
            Verdict::Sent(to, ..) => Some(to.len() as u64),
        }
    }
}

/// What a worker of a session says, or a station says that would be one: session, rank, set and slot.
fn contribution(script: &mut Script<'_>) -> (Member, Vec<u8>) {
    let (_, size, workers) = SESSIONS[script.below(4)].clone();
    let rank = script.byte();
    let worker = station(workers.start + rank % 4);
    let place = script.byte();
    let header = Header {
        size,
        job: place >> 3,
        packet: [rank, place, 0, 0],
        slot: u16::from(place >> 1 & 3) + u16::from(place > 240),
        set: place & 1 == 1,
        exponents: [rank.cast_signed(), place.cast_signed()],
    };
    let value = script.byte();
    let port = host(u16::from(worker.mac.0[5])).port;
    let addresses = Addresses {
        src_mac: worker.mac,
        dst_mac: told(worker),
        src_ip: worker.ip,
        dst_ip: SWITCH_IP,
        src_port: 4000 + u16::from(value & 1),
        dst_port: FIRST_PORT + u16::from(value >> 7),
    };
    let mut frame = vec![value; HEADERS_BYTES + size.payload_bytes()];
    emit_request(&mut frame, &addresses, &header);
    let from = Member {
        port,
        mac: worker.mac,
        ip: worker.ip,
        udp_port: addresses.src_port,
    };
    (from, frame)
}
