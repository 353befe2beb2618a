//! SwitchML's part of the dispatch: what a script's bytes mean there, and the oracle, which is the
//! model of the table, one for each of two shards.

use super::dispatch::{SHARDS, SWITCH_IP, Script, State};
use super::pair::{session, station, told};
use super::plain::host;
use super::platform::Memory;
use super::switch::{Switch, ask};
use super::table::{Table, Verdict};
use std::sync::Arc;
use tally_engine::switchml::{
    Arrival, Command as SwitchmlCommand, Destination, HostAddress, Route, SessionId,
    SwitchmlConfig, Whereabouts,
};
use tally_engine::{Command, DialectCommand, Dialects, DropReason, Member, PortId};
use tally_wire::switchml::{
    FIRST_PORT, HEADERS_BYTES, Header, Size, emit_reply, emit_request, is_port,
};
use tally_wire::{Addresses, UdpFrame};

const SLOTS: u16 = 4;
/// Workers of the sessions, by what chooses them; some are in two.
const SESSIONS: [(u64, Size, std::ops::Range<u8>); 4] = [
    (1, Size::B128, 0..3),
    (2, Size::B256, 10..12),
    (1, Size::B256, 2..4),
    (3, Size::B128, 11..12),
];

/// A frame to one of SwitchML's ports.
pub struct Request<'a> {
    route: Route,
    arrival: Arrival,
    /// From its header on.
    datagram: &'a [u8],
}

impl<'a> Request<'a> {
    /// The frame, if it is to one of SwitchML's ports.
    pub fn of(port: PortId, udp: &UdpFrame, frame: &'a [u8]) -> Option<Self> {
        let a = udp.addresses;
        let from = HostAddress {
            mac: a.src_mac,
            ip: a.src_ip,
        };
        is_port(a.dst_port).then(|| Self {
            route: Route {
                from,
                to: a.dst_mac,
            },
            arrival: Arrival {
                port,
                udp_port: a.src_port,
                own_port: a.dst_port,
                tos: frame[15],
            },
            datagram: udp.datagram(frame),
        })
    }
}

/// All clients: what both shards should know of them.
pub struct Clients {
    tables: [Table; SHARDS as usize],
}

impl Clients {
    /// A shard. `layout` says how many buffers may be kept.
    pub fn config(layout: u8, shard: u8) -> SwitchmlConfig {
        SwitchmlConfig {
            sessions: 2,
            slots: SLOTS,
            held: [64, 4, 1, 0][usize::from(layout >> 4 & 3)],
            shards: SHARDS,
            shard,
        }
    }

    /// No session.
    pub fn new(layout: u8) -> Self {
        Self {
            tables: [0, 1].map(|shard| Table::new(Self::config(layout, shard))),
        }
    }

    /// Begins a session on all cores.
    pub fn bind(&mut self, switch: &mut Switch<Dialects<Memory>>, choice: usize) {
        let (id, size, workers) = SESSIONS[choice].clone();
        let whereabouts = Arc::new(Whereabouts::new(workers.len()));
        let session = session(id, size, workers);
        let shared = Arc::new(session.clone());
        for (table, core) in self.tables.iter_mut().zip(&mut switch.cores) {
            let bound = ask(|reply| {
                let (session, whereabouts) = (Arc::clone(&shared), Arc::clone(&whereabouts));
                let bind = SwitchmlCommand::Bind(session, whereabouts, reply);
                core.command(Command::Dialect(DialectCommand::Switchml(bind)));
            });
            assert_eq!(bound, table.bind(session.clone()));
        }
        switch.poll();
        assert_eq!(switch.take(), [], "binding sends nothing");
    }

    fn unbind(&mut self, switch: &mut Switch<Dialects<Memory>>, id: u64) {
        for (table, core) in self.tables.iter_mut().zip(&mut switch.cores) {
            table.unbind(id);
            ask(|reply| {
                let unbind = SwitchmlCommand::Unbind(SessionId(id), reply);
                core.command(Command::Dialect(DialectCommand::Switchml(unbind)));
            });
        }
        switch.poll();
        assert_eq!(switch.take(), [], "unbinding sends nothing");
    }

    /// Ends all sessions.
    pub fn unbind_all(&mut self, switch: &mut Switch<Dialects<Memory>>) {
        (1..4).for_each(|id| self.unbind(switch, id));
    }

    /// Ports from which members have spoken.
    pub fn ports(&self) -> Vec<PortId> {
        let spoken = self.tables[0].spoken().into_iter();
        spoken.map(|(.., port)| PortId(port)).collect()
    }

    /// An operation; most make a frame.
    pub fn operation(
        &mut self,
        switch: &mut Switch<Dialects<Memory>>,
        script: &mut Script<'_>,
    ) -> Vec<(Member, Vec<u8>)> {
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
                self.bind(switch, script.below(4));
                Vec::new()
            }
            5 => {
                let id = SESSIONS[script.below(4)].0;
                self.unbind(switch, id);
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

    /// Compares what a frame led to with the model; says how many replies left.
    pub fn validate(
        &mut self,
        request: &Request<'_>,
        sent: &[(PortId, Vec<u8>)],
        before: &State,
        after: &State,
    ) -> u64 {
        let (verdict, at) = match Header::parse(request.datagram) {
            Ok(header) => {
                let at = usize::from(header.slot) % self.tables.len();
                (self.arrive(at, request, &header), at)
            }
            Err(error) => (Verdict::Dropped(DropReason::from(error)), 0),
        };
        let mut expected = before.switchml[at].0;
        expected.drops = after.switchml[at].0.drops;
        let mut replies = Vec::new();
        match &verdict {
            Verdict::Dropped(reason) => {
                assert_eq!(after.reason_since(before), Some(*reason));
            }
            Verdict::Added => expected.contributions += 1,
            Verdict::Sent(to, header, sum) => {
                let is_result = after.switchml[at].0.results > expected.results;
                expected.results += u64::from(is_result);
                expected.contributions += u64::from(is_result);
                expected.answered += u64::from(!is_result);
                replies = to.iter().map(|to| reply(to, header, sum)).collect();
            }
        }
        assert_eq!(after.switchml[at].0, expected, "{verdict:?}");
        let mut sent = sent.to_vec();
        replies.sort_unstable();
        sent.sort_unstable();
        assert_eq!(sent, replies, "{verdict:?}");
        for (table, (_, kept)) in self.tables.iter().zip(after.switchml) {
            assert_eq!(kept, table.kept());
        }
        replies.len() as u64
    }

    /// What the model says. A worker's first port is known to all shards.
    fn arrive(&mut self, at: usize, request: &Request<'_>, header: &Header) -> Verdict {
        let payload = &request.datagram[10..];
        let table = &mut self.tables[at];
        let verdict = table.arrive(&request.route, &request.arrival, header, payload);
        let spoken = table.spoken();
        self.tables
            .iter_mut()
            .for_each(|table| table.note_spoken(&spoken));
        verdict
    }
}

/// The frame of a reply, and the port that it leaves by.
fn reply(to: &Destination, header: &Header, sum: &[u8]) -> (PortId, Vec<u8>) {
    let addresses = Addresses {
        src_mac: to.own_mac,
        dst_mac: to.mac,
        src_ip: SWITCH_IP,
        dst_ip: to.ip,
        src_port: to.own_port,
        dst_port: to.udp_port,
    };
    let mut frame = vec![0; HEADERS_BYTES];
    emit_reply(&mut frame, &addresses, header);
    frame.extend_from_slice(sum);
    (to.port, frame)
}

/// What a worker of a session says, or a station says that would be one: session, rank, set and
/// slot.
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
