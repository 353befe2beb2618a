//! What is played: frames and commands, drawn from a seed.
//!
//! A script is of a few jobs, each with a handful of fragments under way, whose slots mostly
//! overlap. Its moods are drawn first: what is frequent in it, what priorities there are, how fast
//! fragments are finished or given up. So one script is of collisions, another of losses, another
//! of junk, and most of some of everything.

use super::card::{Own, Shape, hash_of};
use super::common::switch::ADDRESS;
use super::rng::Rng;
use std::net::Ipv4Addr;
use tally_card::{Flaw, Gaps};
use tally_engine::offload::tags::{mask_mac, port_mac, probe_mac};
use tally_engine::{Member, PortId, Roster};
use tally_wire::frame::emit;
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, HEADERS_BYTES, Header,
    JobId, Kind, Mac, Rank,
};

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Step {
    Frame(Vec<u8>, Flaw),
    /// Into a place that is free or has this epoch of the job.
    Load(u8, Box<Roster>),
    Unload(u8),
    /// How the streams go from here on.
    Gaps(Gaps, u64),
    /// All must have come out.
    Settle,
    /// While frames are on their way: what is loaded is loaded again as it is, or the counters are
    /// read.
    Reload(u8, Box<Roster>),
    Read,
}

/// The switch of all scripts.
pub const OWN: Own = Own {
    mac: ADDRESS.mac,
    ip: ADDRESS.ip,
    base_port: ADDRESS.base_port,
    shards: 4,
};

/// Of all jobs: the card has none, and the reference must behave as if the switch did the rest.
pub const SECRET: EpochSecret = EpochSecret::new([7; 16]);

/// What a worker or PS sends to the switch, tagged as the switch does.
pub fn frame_of(from: &Member, header: &Header, payload: &[u8], own: &Own) -> Vec<u8> {
    let shard = header.fragment.0 & (u32::from(own.shards) - 1);
    let addresses = Addresses {
        src_mac: from.mac,
        dst_mac: port_mac(from.port),
        src_ip: from.ip,
        dst_ip: own.ip,
        src_port: from.udp_port,
        dst_port: own.base_port.wrapping_add(shard as u16),
    };
    let mut frame = vec![0; HEADERS_BYTES];
    emit(&mut frame, &addresses, header);
    frame.extend_from_slice(payload);
    let behind = frame.len();
    frame.resize(behind + header.kind.trailer_bytes(), 0);
    header.emit_trailer(&mut frame[behind..]);
    frame
}

/// A member at an address of its own.
pub fn member(n: u32, port: u16) -> Member {
    let [_, _, high, low] = n.to_be_bytes();
    Member {
        port: PortId(port),
        mac: Mac([0x02, 0, 0, 1, high, low]),
        ip: Ipv4Addr::new(10, 1, high, low),
        udp_port: 40_000 + (n & 0xfff) as u16,
    }
}

/// The header of a worker's contribution.
pub fn data(roster: &Roster, element: Element, fragment: u32, rank: u8) -> Header {
    Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 0,
        element,
        job: roster.job,
        epoch: roster.epoch,
        fragment: FragmentId(fragment),
        rank: Rank(rank),
        units: roster.units,
        bitmap: 1 << rank,
        tag: AuthTag::NONE,
    }
}

/// The header of a frame without elements. The card accepts any tag, since the switch has verified
/// it.
pub fn word(roster: &Roster, kind: Kind, fragment: u32, rank: Rank, tag: u64) -> Header {
    Header {
        kind,
        element: Element::None,
        rank,
        units: 0,
        bitmap: 0,
        tag: AuthTag(tag),
        ..data(roster, Element::None, fragment, 0)
    }
}

/// The header of a result from the PS or from a worker.
pub fn result(roster: &Roster, element: Element, fragment: u32, rank: Rank, tag: u64) -> Header {
    Header {
        kind: Kind::Result,
        rank,
        bitmap: 0,
        tag: AuthTag(tag),
        ..data(roster, element, fragment, 0)
    }
}

struct Live {
    fragment: u32,
    sent: u64,
}

struct Job {
    place: u8,
    roster: Roster,
    element: Element,
    /// Fragments under way.
    live: Vec<Live>,
    /// The next new one.
    next: u32,
    /// Some that went before.
    gone: Vec<u32>,
}

/// Weights of what comes next.
#[derive(Clone, Copy)]
enum Move {
    Data,
    Resend,
    Retransmit,
    Remind,
    Nack,
    Probe,
    ResultOfPs,
    ResultOfWorker,
    Special,
    Wrong,
    Junk,
    Ordinary,
    Flawed,
    Command,
    GiveUp,
    Align,
}

const MOVES: [(Move, u32); 16] = [
    (Move::Data, 700),
    (Move::Resend, 40),
    (Move::Retransmit, 40),
    (Move::Remind, 30),
    (Move::Nack, 10),
    (Move::Probe, 40),
    (Move::ResultOfPs, 30),
    (Move::ResultOfWorker, 10),
    (Move::Special, 20),
    (Move::Wrong, 20),
    (Move::Junk, 40),
    (Move::Ordinary, 15),
    (Move::Flawed, 5),
    (Move::Command, 3),
    (Move::GiveUp, 15),
    (Move::Align, 4),
];

/// Draws scripts.
pub struct Author {
    rng: Rng,
    shape: Shape,
    jobs: Vec<Job>,
    weights: Vec<(Move, u32)>,
    priorities: Vec<u8>,
    /// Of a thousand: in rank order; payloads of extremes; element types mixed; OVERFLOW, and
    /// COLLISION, of a child switch.
    in_order: u32,
    extremes: u32,
    mixed: u32,
    child_flags: u32,
    live_max: usize,
    epochs: u16,
    hosts: u32,
    script: Vec<Step>,
}

impl Author {
    /// A script of about so many frames.
    pub fn write(seed: u64, shape: Shape, frames: usize) -> Vec<Step> {
        let mut rng = Rng(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let mood = |rng: &mut Rng, weight| weight * rng.of(&[0, 1, 1, 1, 2, 8]);
        let weights = MOVES
            .iter()
            .map(|&(what, weight)| match what {
                Move::Data => (what, weight),
                _ => (what, mood(&mut rng, weight)),
            })
            .collect();
        let priorities = match rng.below(4) {
            0 => vec![rng.byte()],
            1 => vec![0, 1, 2, 3, 255],
            2 => (0..=255).collect(),
            _ => vec![100, 100, 100, 101, 50, 200],
        };
        let mut author = Self {
            shape,
            jobs: Vec::new(),
            weights,
            priorities,
            in_order: rng.of(&[0, 500, 900, 1000]),
            extremes: rng.of(&[0, 300, 1000]),
            mixed: rng.of(&[0, 0, 20, 300]),
            child_flags: rng.of(&[0, 20, 100, 500]),
            live_max: 1 + rng.index(12),
            epochs: rng.next() as u16,
            hosts: 0,
            script: Vec::new(),
            rng,
        };
        let jobs = 1 + author.rng.index(usize::from(shape.jobs));
        for place in 0..jobs {
            author.open(place as u8);
        }
        author.draw_gaps();
        let mut until_settle = 0;
        while author.script.len() < frames {
            author.step();
            if until_settle == 0 {
                author.script.push(Step::Settle);
                until_settle = 1 + author.rng.below(200);
            }
            until_settle -= 1;
        }
        author.script.push(Step::Settle);
        author.script
    }

    fn draw_gaps(&mut self) {
        let rng = &mut self.rng;
        let some = [0, 0, 0, 0, 20, 100, 200];
        let gaps = Gaps {
            input: rng.of(&some),
            output: rng.of(&some),
            longer: rng.of(&[0, 0, 128, 240]),
        };
        let seed = rng.next();
        self.script.push(Step::Gaps(gaps, seed));
    }

    /// A job that is new to this place.
    fn open(&mut self, place: u8) {
        let rng = &mut self.rng;
        // Two jobs of one number cannot be.
        let job = loop {
            let job = JobId(rng.of(&[1, 2, 7, 0x100, 0xffff, 0, rng.0 as u16]));
            if self.jobs.iter().all(|other| other.roster.job != job) {
                break job;
            }
            rng.next();
        };
        self.epochs = self.epochs.wrapping_add(1);
        let most = u32::from(self.shape.members) - 1;
        let small = rng.below(most.min(3));
        let any = rng.below(most);
        let workers = 2 + rng.of(&[small, small, any]);
        let units = match rng.below(3) {
            0 => 1,
            1 => self.shape.units,
            _ => 1 + rng.below(self.shape.units.into()) as u8,
        };
        let spread = rng.of(&[1, 3, 16]);
        let mut host = |rng: &mut Rng| {
            self.hosts += 1;
            member(self.hosts, rng.below(spread) as u16)
        };
        let members = (0..workers).map(|_| host(rng)).collect();
        let ps = host(rng);
        let any_children = rng.next();
        let roster = Roster::new(job, Epoch(self.epochs), SECRET, units, members, ps);
        let children = rng.of(&[0, 0, any_children, u64::MAX]) & roster.all();
        let roster = roster.with_switches(children);
        // Where fragments begin: anywhere, but on the slots of the other jobs.
        let random = rng.next() as u32;
        let start = rng.of(&[0, 0xffff_fff0, 0x7fff_fff0, random]);
        let near = hash_of(job).wrapping_add(start) & (self.shape.slots - 1);
        let next = start.wrapping_sub(near).wrapping_add(rng.below(8));
        let any_element = rng.of(&Element::ALL);
        let element = rng.of(&[
            Element::I32,
            Element::I32,
            Element::I32,
            Element::F32,
            Element::F32,
            Element::Scale,
            any_element,
        ]);
        self.jobs.retain(|other| other.place != place);
        self.script
            .push(Step::Load(place, Box::new(roster.clone())));
        self.jobs.push(Job {
            place,
            roster,
            element,
            live: Vec::new(),
            next,
            gone: vec![next.wrapping_sub(1)],
        });
    }

    fn step(&mut self) {
        let sum = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut at = self.rng.below(sum);
        let found = self.weights.iter().find(|(_, weight)| {
            let found = at < *weight;
            at = at.wrapping_sub(*weight);
            found
        });
        let what = found.map_or(Move::Data, |(what, _)| *what);
        if self.jobs.is_empty() {
            return self.open(0);
        }
        let n = self.rng.index(self.jobs.len());
        match what {
            Move::Data => self.contribute(n),
            Move::Resend => {
                let (fragment, rank) = self.some(n);
                let header = self.data(n, fragment, rank);
                let flags = header.flags.with(Flags::RESEND);
                self.send(n, &Header { flags, ..header });
            }
            Move::Retransmit => {
                let (fragment, rank) = self.some(n);
                let header = self.data(n, fragment, rank);
                self.send(n, &header);
            }
            Move::Special => self.special(n),
            Move::Remind => {
                let (fragment, _) = self.some(n);
                self.word(n, Kind::Remind, fragment, Rank::PS);
            }
            Move::Probe => {
                let (fragment, rank) = self.some(n);
                self.word(n, Kind::Probe, fragment, Rank(rank));
            }
            Move::Nack => {
                let (fragment, rank) = self.some(n);
                let rank = Rank(if self.rng.chance(30) {
                    self.rng.below(64) as u8
                } else {
                    rank
                });
                self.word(n, Kind::Nack, fragment, rank);
            }
            Move::ResultOfPs | Move::ResultOfWorker => self.result(n, what),
            Move::Wrong => self.wrong(n),
            Move::Junk => {
                let mut frame = self.valid(n);
                for _ in 0..1 + self.rng.below(10) / 9 {
                    self.damage(&mut frame);
                }
                self.frame(frame, Flaw::None);
            }
            Move::Ordinary => {
                let frame = self.ordinary();
                self.frame(frame, Flaw::None);
            }
            Move::Flawed => {
                let frame = match self.rng.below(4) {
                    0 => self.ordinary(),
                    _ => self.valid(n),
                };
                let flaw = self.rng.of(&[Flaw::Bad, Flaw::ShortBeat, Flaw::Hole]);
                self.frame(frame, flaw);
            }
            Move::Command => self.command(n),
            Move::GiveUp => {
                let job = &mut self.jobs[n];
                if !job.live.is_empty() {
                    let at = self.rng.index(job.live.len());
                    let live = job.live.swap_remove(at);
                    remember(job, live.fragment);
                }
            }
            Move::Align => self.align(n),
        }
    }

    /// The next of what an orderly worker has to say.
    fn contribute(&mut self, n: usize) {
        let rng = &mut self.rng;
        let job = &mut self.jobs[n];
        if job.live.len() < self.live_max {
            job.live.push(Live {
                fragment: job.next,
                sent: 0,
            });
            job.next = job.next.wrapping_add(1);
        }
        let at = rng.index(job.live.len());
        let live = &mut job.live[at];
        let missing = job.roster.all() & !live.sent;
        let workers = job.roster.workers.len() as u32;
        let rank = if rng.chance(self.in_order) {
            missing.trailing_zeros() as u8
        } else {
            let mut rank = rng.below(workers);
            while missing >> rank & 1 == 0 {
                rank = (rank + 1) % workers;
            }
            rank as u8
        };
        live.sent |= 1 << rank;
        let fragment = live.fragment;
        if live.sent == job.roster.all() {
            job.live.swap_remove(at);
            remember(job, fragment);
        }
        let header = self.data(n, fragment, rank);
        self.send(n, &header);
    }

    /// A fragment that has been seen or will be soon, and a rank.
    fn some(&mut self, n: usize) -> (u32, u8) {
        let rng = &mut self.rng;
        let job = &self.jobs[n];
        let rank = rng.index(job.roster.workers.len()) as u8;
        let fragment = match rng.below(8) {
            0..4 if !job.live.is_empty() => job.live[rng.index(job.live.len())].fragment,
            7 => job.next.wrapping_sub(rng.below(2 * self.shape.ring)),
            _ => job.gone[rng.index(job.gone.len())],
        };
        (fragment, rank)
    }

    /// DATA at the edges of what rings, windows and serial numbers reach.
    fn special(&mut self, n: usize) {
        let rng = &mut self.rng;
        let Shape { ring, slots, .. } = self.shape;
        let job = &mut self.jobs[n];
        let distance = rng.of(&[ring / 2, ring, slots, 2 * ring, ring / 4]);
        let distance = distance.wrapping_add(rng.below(3)).wrapping_sub(1);
        let fragment = match rng.below(40) {
            0 => job.next.wrapping_add(0x8000_0000 - rng.below(2)),
            1 => job.next.wrapping_add(0x7fff_ffff),
            2..12 => job.next.wrapping_add(distance),
            _ => job.next.wrapping_sub(distance),
        };
        let rank = rng.index(job.roster.workers.len()) as u8;
        // Or the job would be behind from here on, and stay there.
        if fragment.wrapping_sub(job.next).cast_signed() > 0 && rng.chance(900) {
            job.next = fragment.wrapping_add(1);
        }
        remember(job, fragment);
        let mut header = self.data(n, fragment, rank);
        if self.rng.chance(100) {
            header.flags = header.flags.with(Flags::RESEND);
        }
        self.send(n, &header);
    }

    /// This job's next fragments fall where others are.
    fn align(&mut self, n: usize) {
        let other = self.rng.index(self.jobs.len());
        let at = |job: &Job| hash_of(job.roster.job).wrapping_add(job.next);
        let mask = self.shape.slots - 1;
        let distance = at(&self.jobs[other]).wrapping_sub(at(&self.jobs[n])) & mask;
        self.jobs[n].next = self.jobs[n].next.wrapping_add(distance);
    }

    fn word(&mut self, n: usize, kind: Kind, fragment: u32, rank: Rank) {
        let tag = self.rng.next();
        let header = word(&self.jobs[n].roster, kind, fragment, rank, tag);
        let priority = self.priority();
        self.send(n, &Header { priority, ..header });
    }

    fn result(&mut self, n: usize, what: Move) {
        let (fragment, rank) = self.some(n);
        let rank = match what {
            Move::ResultOfPs => Rank::PS,
            _ => Rank(rank),
        };
        let tag = self.rng.next();
        let job = &self.jobs[n];
        let mut header = result(&job.roster, job.element, fragment, rank, tag);
        header.priority = self.priority();
        header.flags = Flags(self.rng.byte() & self.rng.byte() & 0x36);
        self.send(n, &header);
    }

    /// What no member may say, or not so.
    fn wrong(&mut self, n: usize) {
        let (fragment, rank) = self.some(n);
        let tag = self.rng.next();
        let roster = &self.jobs[n].roster;
        let mut header = match self.rng.below(5) {
            0 => word(roster, Kind::Remind, fragment, Rank::PS, tag),
            1 => word(roster, Kind::Nack, fragment, Rank(rank), tag),
            2 => result(roster, Element::I32, fragment, Rank(rank), tag),
            3 => word(roster, Kind::Probe, fragment, Rank(rank), tag),
            _ => self.data(n, fragment, rank),
        };
        let mut from = self.member_of(n, &header);
        let rng = &mut self.rng;
        match rng.below(11) {
            0 => from.port = PortId((from.port.0 + 1) & 15),
            1 => from.mac.0[5] ^= 1 << rng.below(8),
            2 => from.udp_port ^= 1 << rng.below(16),
            3 => from.ip = Ipv4Addr::from_bits(from.ip.to_bits() ^ 1 << rng.below(32)),
            4 => header.epoch.0 = header.epoch.0.wrapping_sub(1),
            5 => header.rank = Rank(rng.below(64) as u8),
            6 => header.job = JobId(rng.of(&[1, 2, 3, 7, 8])),
            7 => header.units = header.units.wrapping_add(1).min(127),
            8 => header.kind = rng.of(&[Kind::Partial, Kind::NotHere]),
            9 => from.port = PortId(rng.of(&[16, 0x100, 0xffff])),
            _ => header.element = rng.of(&Element::ALL),
        }
        if header.kind == Kind::Data {
            header.bitmap = header.rank.bit();
        }
        if header.kind == Kind::Partial {
            header.rank = Rank::SWITCH;
            header.element = Element::I32;
            header.units = header.units.max(1);
            header.bitmap |= 1;
        }
        if header.kind == Kind::NotHere {
            header.rank = Rank::SWITCH;
            header.element = Element::None;
            header.units = 0;
            header.bitmap = 0;
        }
        if !header.kind.has_elements() {
            header.element = Element::None;
            header.units = 0;
        }
        if header.check().is_err() {
            return;
        }
        let payload = self.payload(header.element, header.units);
        let frame = frame_of(&from, &header, &payload, &OWN);
        self.frame(frame, Flaw::None);
    }

    /// A sound frame of any kind, to be spoilt.
    fn valid(&mut self, n: usize) -> Vec<u8> {
        let (fragment, rank) = self.some(n);
        let tag = self.rng.next();
        let job = &self.jobs[n];
        let header = match self.rng.below(11) {
            0 => word(&job.roster, Kind::Remind, fragment, Rank::PS, tag),
            1 => word(&job.roster, Kind::Nack, fragment, Rank(rank), tag),
            2 => result(&job.roster, job.element, fragment, Rank::PS, tag),
            3 => result(&job.roster, job.element, fragment, Rank(rank), tag),
            4 => word(&job.roster, Kind::Probe, fragment, Rank(rank), tag),
            5 => Header {
                kind: self.rng.of(&[Kind::Join, Kind::Leave, Kind::Accept]),
                units: 2,
                bitmap: 0,
                element: Element::None,
                ..data(&job.roster, Element::None, 0, rank)
            },
            _ => self.data(n, fragment, rank),
        };
        let from = self.member_of(n, &header);
        let payload = self.payload(header.element, header.units);
        frame_of(&from, &header, &payload, &OWN)
    }

    /// One thing about a frame that is otherwise.
    pub fn damage(&mut self, frame: &mut Vec<u8>) {
        let rng = &mut self.rng;
        let max = self.shape.frame_max();
        let at = rng.index(frame.len().min(HEADERS_BYTES));
        if frame.len() < HEADERS_BYTES {
            // It has been cut before.
            frame[at] ^= 1 << rng.below(8);
            return;
        }
        let add16 = |frame: &mut [u8], at: usize, n: u16| {
            let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
            frame[at..at + 2].copy_from_slice(&old.wrapping_add(n).to_be_bytes());
        };
        match rng.below(24) {
            0..6 => frame[at] ^= 1 << rng.below(8),
            6..9 => frame[at] = rng.byte(),
            9 => frame.truncate(1 + rng.index(frame.len())),
            10 => frame.truncate(1 + rng.index(HEADERS_BYTES + 2)),
            11 => frame.resize(frame.len() + 1 + rng.index(100), 0xee),
            12 => {
                let size = rng.of(&[max - 1, max, max + 1, max + 64, 2 * max, 5000]);
                frame.resize(size, 0xdd);
            }
            13 => {
                let vlan = rng.of(&[0x8100_u16, 0x88a8, 0x9100]).to_be_bytes();
                let tag = [vlan[0], vlan[1], 0, 5];
                frame.splice(12..12, tag);
            }
            14 => {
                frame[14] = 0x46;
                add16(frame, 16, 4);
                frame.splice(34..34, [1, 1, 1, 1]);
            }
            15 => add16(
                frame,
                16,
                rng.of(&[1, 0xffff, 64, 0u16.wrapping_sub(64), 20]),
            ),
            16 => add16(frame, 38, rng.of(&[1, 0xffff, 64, 0u16.wrapping_sub(64)])),
            17 => {
                // Both lengths, so that only the header's units tell.
                let n = rng.of(&[1, 0xffff, 64, 0u16.wrapping_sub(64), 0u16.wrapping_sub(30)]);
                add16(frame, 16, n);
                add16(frame, 38, n);
                let longer = n.cast_signed().max(0).unsigned_abs();
                frame.resize(frame.len() + usize::from(longer), 0x77);
            }
            18 => {
                let mac = match rng.below(7) {
                    0 => OWN.mac,
                    1 => Mac::BROADCAST,
                    2 => Mac([1, 0, 0x5e, 84, 0, 7]),
                    3 => probe_mac(3),
                    4 => mask_mac(3),
                    5 => port_mac(PortId(rng.below(17) as u16)),
                    _ => Mac([0x02, 0x54, 0x43, 3, 0, 0]),
                };
                frame[..6].copy_from_slice(&mac.0);
            }
            19 => frame[6..12].copy_from_slice(&OWN.mac.0),
            20 => {
                let at = rng.of(&[26, 30]);
                frame[at..at + 4].copy_from_slice(&OWN.ip.octets());
            }
            21 => {
                let port = OWN
                    .base_port
                    .wrapping_add(rng.below(6) as u16)
                    .wrapping_sub(1);
                frame[36..38].copy_from_slice(&port.to_be_bytes());
            }
            22 => frame[15] = rng.byte(),
            _ => {
                let at = rng.of(&[42, 43, 45, 46, 47, 54, 55, 63]);
                frame[at] = rng.byte();
            }
        }
    }

    fn ordinary(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        let bytes = rng.of(&[1, 5, 6, 13, 14, 60, 64, 65, 128, 1514, 1600]);
        let some = 1 + rng.index(1500);
        let bytes = rng.of(&[bytes, some]);
        let mut frame: Vec<u8> = (0..bytes).map(|_| rng.byte()).collect();
        if bytes >= 14 {
            let ethertype = rng.of(&[0x0800_u16, 0x0806, 0x86dd, 0x88b5]);
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            match rng.below(4) {
                0 => frame[..6].copy_from_slice(&probe_mac(9).0),
                1 => frame[..6].copy_from_slice(&port_mac(PortId(3)).0),
                _ => {}
            }
        }
        frame
    }

    fn command(&mut self, n: usize) {
        let place = self.jobs[n].place;
        match self.rng.below(10) {
            0..2 => {
                self.script.push(Step::Unload(place));
                self.jobs.remove(n);
            }
            2 => {
                self.script.push(Step::Unload(place));
                self.jobs.remove(n);
                self.open(place);
            }
            3..5 => {
                let free = (0..self.shape.jobs).find(|p| self.jobs.iter().all(|j| j.place != *p));
                if let Some(free) = free {
                    self.open(free);
                }
            }
            5..7 => {
                // A member comes back from elsewhere.
                let port = self.rng.below(16) as u16;
                self.hosts += 1;
                let moved = member(self.hosts, port);
                let job = &mut self.jobs[n];
                let Roster {
                    job: id,
                    epoch,
                    units,
                    mut workers,
                    mut servers,
                    switches,
                    ..
                } = job.roster.clone();
                let at = self.rng.index(workers.len() + 1);
                *workers.get_mut(at).unwrap_or(&mut servers[0]) = moved;
                job.roster = Roster::new(id, epoch, SECRET, units, workers, servers[0])
                    .with_switches(switches);
                let roster = Box::new(job.roster.clone());
                self.script.push(Step::Load(place, roster));
            }
            7 => {
                let roster = Box::new(self.jobs[n].roster.clone());
                self.script.push(Step::Reload(place, roster));
            }
            8 => self.script.push(Step::Read),
            _ => self.draw_gaps(),
        }
    }

    fn priority(&mut self) -> u8 {
        self.rng.of(&self.priorities)
    }

    fn data(&mut self, n: usize, fragment: u32, rank: u8) -> Header {
        let job = &self.jobs[n];
        let element = if self.rng.chance(self.mixed) {
            self.rng.of(&Element::ALL)
        } else {
            job.element
        };
        let header = data(&job.roster, element, fragment, rank);
        let is_child = job.roster.switches & header.rank.bit() != 0;
        let priority = self.priority();
        // Workers send flags of sums (TR-7) only in error.
        let of_sum = if is_child { self.child_flags } else { 3 };
        let flags = Flags::MARKED
            .when(self.rng.chance(30))
            .with(Flags::OVERFLOW.when(self.rng.chance(of_sum)))
            .with(Flags::COLLISION.when(self.rng.chance(of_sum)));
        Header {
            priority,
            flags,
            ..header
        }
    }

    fn member_of(&self, n: usize, header: &Header) -> Member {
        let roster = &self.jobs[n].roster;
        let sender = match header.kind {
            Kind::Remind | Kind::Nack => Rank::PS,
            _ => header.rank,
        };
        *roster.member(sender).unwrap_or(&roster.servers[0])
    }

    /// From the member that may say so.
    fn send(&mut self, n: usize, header: &Header) {
        let from = self.member_of(n, header);
        let payload = self.payload(header.element, header.units);
        let mut frame = frame_of(&from, header, &payload, &OWN);
        match self.rng.below(50) {
            // Congestion, and padding.
            0 => frame[15] = 3,
            1 => frame.resize(frame.len() + 1 + self.rng.index(70), 0xaa),
            _ => {}
        }
        self.frame(frame, Flaw::None);
    }

    fn frame(&mut self, frame: Vec<u8>, flaw: Flaw) {
        if !frame.is_empty() {
            self.script.push(Step::Frame(frame, flaw));
        }
    }

    fn payload(&mut self, element: Element, units: u8) -> Vec<u8> {
        let bytes = usize::from(units) * 64;
        let rng = &mut self.rng;
        let mut payload = Vec::with_capacity(bytes);
        let extremes = rng.chance(self.extremes);
        while payload.len() < bytes {
            let random = rng.next();
            match element {
                Element::F32 if extremes => {
                    payload.extend(float(rng).to_le_bytes());
                }
                Element::I32 if extremes => {
                    let small = i32::from(random as i8);
                    let value = rng.of(&[
                        i32::MAX,
                        i32::MIN,
                        i32::MAX - 1,
                        i32::MIN + 1,
                        -1,
                        0,
                        1,
                        0x4000_0000,
                        small,
                    ]);
                    payload.extend(value.to_be_bytes());
                }
                Element::I32 => payload.extend(((random as i32) >> 4).to_be_bytes()),
                Element::F32 => {
                    let value = f32::from_bits(random as u32 & 0x807f_ffff | 0x3f80_0000);
                    payload.extend(value.to_le_bytes());
                }
                _ => payload.extend(random.to_be_bytes()),
            }
        }
        payload
    }
}

/// Bits of a float at some edge.
fn float(rng: &mut Rng) -> u32 {
    const EDGES: [u32; 14] = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7f80_0001,
        0xffff_ffff,
        0x3f80_0000,
    ];
    let random = rng.next() as u32;
    match rng.below(4) {
        0 => rng.of(&EDGES),
        // Close exponents, so that sums cancel and round.
        1 => random & 0x81ff_ffff | 0x3e00_0000,
        2 => random & 0x80ff_ffff,
        _ => random,
    }
}

fn remember(job: &mut Job, fragment: u32) {
    job.gone.push(fragment);
    if job.gone.len() > 16 {
        job.gone.swap_remove((fragment as usize) % 16);
    }
}
