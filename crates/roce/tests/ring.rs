//! Rings of hosts around a plain model of the switch that sums, over links with faults, in virtual
//! time.

#![allow(clippy::unwrap_used)]

use half::bf16;
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;
use tally_roce::Config;
use tally_roce::ring::{self, AllReduce, Event, Failure, Host, HostConfig, Ring, RingError, Span};
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{
    Channel, Element, RING_HEADER_BYTES, RingEpoch, RingHeader, RingHeaderError, RingId, RingSecret,
};
use tally_wire::roce::{Opcode, PORT, Packet, Psn, QueuePair, Verb, seal};
use tally_wire::{Addresses, Key, Mac, Time, UdpFrame};

const MTU: usize = 256;
const PACKETS: usize = 3;
const WINDOW: u32 = 2;
const RKEY: u32 = 0x77;
const RING: RingId = RingId(5);
const EPOCH: RingEpoch = RingEpoch(9);
const TIMEOUT: Duration = Duration::from_micros(500);
const RETRIES: u32 = 30;

fn secret() -> RingSecret {
    Key::new(&[3; 32]).unwrap().ring_secret(RING)
}

fn ip(rank: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1)
}

/// The connection from a rank to the next.
fn channel(rank: usize, n: usize) -> Channel {
    let to = (rank + 1) % n;
    Channel {
        source: ip(rank),
        destination: ip(to),
        qp: QueuePair(0x100 + to as u32),
    }
}

fn ring_config(rank: usize, n: usize) -> ring::Config {
    ring::Config {
        ring: RING,
        secret: secret(),
        epoch: EPOCH,
        rank: rank as u8,
        members: n as u8,
        to: channel(rank, n),
        from: channel((rank + n - 1) % n, n),
        message_bytes: ring::message_bytes(PACKETS, MTU),
        window: WINDOW,
    }
}

fn host(rank: usize, n: usize, verb: Verb) -> Host {
    // Near the wrap, each side at another place.
    let first = |to: bool, rank: usize| Psn::new(0xff_fffa + 2 * rank as u32 + u32::from(to));
    let connection = |peer: usize, to: bool| Config {
        addresses: Addresses {
            src_mac: Mac([2, 0, 0, 0, 0, rank as u8]),
            dst_mac: Mac([2, 0, 0, 0, 0, peer as u8]),
            src_ip: ip(rank),
            dst_ip: ip(peer),
            src_port: 50_000,
            dst_port: PORT,
        },
        local: QueuePair(if to { 0x200 } else { 0x100 } + rank as u32),
        remote: QueuePair(if to { 0x100 } else { 0x200 } + peer as u32),
        mtu: MTU,
        first: first(to, rank),
        remote_first: first(!to, peer),
        in_flight: 20,
        timeout: TIMEOUT,
        retries: RETRIES,
        dscp: 28,
        memory: Vec::new(),
        rkey: RKEY,
    };
    Host::new(HostConfig {
        ring: ring_config(rank, n),
        verb,
        to: connection((rank + 1) % n, true),
        from: connection((rank + n - 1) % n, false),
    })
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// The sum of elements in the order of ranks.
fn fold(element: Element, parts: &[&[u8]]) -> Vec<u8> {
    let words = |width: usize| {
        let at = (0..parts[0].len()).step_by(width);
        at.map(move |at| parts.iter().map(move |part| &part[at..at + width]))
    };
    match element {
        Element::I32 => words(4)
            .flat_map(|words| {
                let words = words.map(|it| i32::from_le_bytes(it.try_into().unwrap()));
                words.fold(0, i32::wrapping_add).to_le_bytes()
            })
            .collect(),
        Element::F32 => words(4)
            .flat_map(|words| {
                let words = words.map(|it| f32::from_le_bytes(it.try_into().unwrap()));
                words.reduce(|a, b| a + b).unwrap().to_le_bytes()
            })
            .collect(),
        _ => words(2)
            .flat_map(|words| {
                let words = words.map(|it| bf16::from_le_bytes(it.try_into().unwrap()).to_f32());
                bf16::from_f32(words.reduce(|a, b| a + b).unwrap()).to_le_bytes()
            })
            .collect(),
    }
}

/// A contribution in which any other order of adding gives other bits somewhere.
fn contribution(element: Element, rank: usize, n: usize, bytes: usize) -> Vec<u8> {
    let mut rng = Rng((rank * 1000 + n) as u64 * 2 + 1);
    let mut tensor = Vec::new();
    for _ in 0..bytes / element.bytes() {
        let float = (rng.below(2000) as f32 - 1000.0) * 10f32.powi(rng.below(7) as i32);
        match element {
            Element::I32 => tensor.extend((rng.below(1 << 32) as i32).to_le_bytes()),
            Element::F32 => tensor.extend(float.to_le_bytes()),
            _ => tensor.extend(bf16::from_f32(float).to_le_bytes()),
        }
    }
    tensor
}

/// A message as the switch knows it.
#[derive(Clone, Copy)]
struct Known {
    header: RingHeader,
    first: Psn,
}

#[derive(Default)]
struct Slot {
    held: BTreeMap<usize, Vec<u8>>,
    sum: Option<Vec<u8>>,
}

/// The switch as N-7 to N-9 say, without a limit of its memory.
struct Switch {
    n: usize,
    /// By rank.
    known: Vec<Vec<Known>>,
    slots: BTreeMap<(u32, u32), Slot>,
    /// It forwards everything as it is.
    is_plain: bool,
}

impl Switch {
    /// The frames that leave.
    fn receive(&mut self, mut frame: Vec<u8>) -> Vec<Vec<u8>> {
        let udp = UdpFrame::parse(&frame).unwrap();
        let packet = Packet::parse(udp.datagram(&frame)).unwrap();
        let channel_of = Channel::of(&udp, packet.bth.qp);
        let rank = (0..self.n).find(|&rank| channel(rank, self.n) == channel_of);
        let (Some(rank), Opcode::Message { place, .. }, false) =
            (rank, packet.bth.opcode, self.is_plain)
        else {
            return vec![frame];
        };
        assert_eq!(frame[15] >> 2, 28, "DSCP of the ring");
        let psn = packet.bth.psn;
        let mut payload = UDP_END + packet.payload.start..UDP_END + packet.payload.end;
        if place.begins() {
            let header =
                RingHeader::parse(&frame[payload.clone()], &secret(), &channel_of).unwrap();
            assert!(!header.is_summed && usize::from(header.rank) == rank);
            if self.known[rank].iter().all(|it| it.first != psn) {
                if header.message as usize != self.known[rank].len() {
                    // N-12: after a restart it knows none of the connections.
                    return Vec::new();
                }
                self.known[rank].push(Known { header, first: psn });
            }
        }
        let packets = |known: &Known| known.header.message_bytes().div_ceil(MTU as u64) as u32;
        let is_in = |known: &&Known| psn.since(known.first) < packets(known);
        let Some(&Known { header, first }) = self.known[rank].iter().rfind(is_in) else {
            if self.known[rank].is_empty() {
                return Vec::new();
            }
            // Ahead of a message whose first packet is lost. It is not forwarded as it is: its
            // receiver would take it if it came behind that packet's retransmission.
            return vec![ahead(frame)];
        };
        let at = psn.since(first);
        let slot = self.slots.entry((header.message, at)).or_default();
        if at == 0 {
            let summed = RingHeader {
                is_summed: true,
                ..header
            };
            let emitted = summed.emit(&secret(), &channel_of);
            frame[payload.start..payload.start + RING_HEADER_BYTES].copy_from_slice(&emitted);
            payload.start += RING_HEADER_BYTES;
        }
        if slot.sum.is_none() {
            slot.held.insert(rank, frame);
            if slot.held.len() < self.n {
                return Vec::new();
            }
            // All payloads of one place in a message have one length, and one end of the frame.
            let behind = |frame: &Vec<u8>| frame.len() - payload.len() - 4;
            let parts = slot
                .held
                .values()
                .map(|it| &it[behind(it)..it.len() - 4])
                .collect::<Vec<_>>();
            slot.sum = Some(fold(header.element, &parts));
        } else {
            slot.held = BTreeMap::from([(rank, frame)]);
        }
        let sum = slot.sum.as_ref().unwrap();
        let released = std::mem::take(&mut slot.held)
            .into_values()
            .map(|mut frame| {
                let end = frame.len() - 4;
                frame[end - sum.len()..end].copy_from_slice(sum);
                seal(&mut frame);
                frame
            });
        released.collect()
    }
}

/// A packet of an unknown message, with a PSN that its receiver refuses and never comes to.
fn ahead(mut frame: Vec<u8>) -> Vec<u8> {
    let psn = UDP_END + 9..UDP_END + 12;
    let bytes = [&[0], &frame[psn.clone()]].concat();
    let far = Psn::new(u32::from_be_bytes(bytes.try_into().unwrap())).after(1 << 22);
    frame[psn].copy_from_slice(&far.get().to_be_bytes()[1..]);
    seal(&mut frame);
    frame
}

/// What a link does to frames, of 100.
#[derive(Clone, Copy, Default)]
struct Faults {
    lost: u64,
    copied: u64,
    delayed: u64,
}

struct World {
    hosts: Vec<Host>,
    switch: Switch,
    /// On their way to the switch, and to each host: when they arrive.
    up: VecDeque<(Time, Vec<u8>)>,
    down: VecDeque<(Time, Vec<u8>)>,
    dead: Option<usize>,
    /// Frames that hosts receive until the switch dies, and restarts before they notice.
    until_restart: Option<usize>,
    /// Until then the switch is down.
    down_until: Time,
    faults: Faults,
    rng: Rng,
    now: Time,
    events: Vec<Vec<Event>>,
}

impl World {
    fn new(n: usize, verb: Verb, faults: Faults, seed: u64) -> Self {
        Self {
            hosts: (0..n).map(|rank| host(rank, n, verb)).collect(),
            switch: Switch {
                n,
                known: vec![Vec::new(); n],
                slots: BTreeMap::new(),
                is_plain: false,
            },
            up: VecDeque::new(),
            down: VecDeque::new(),
            dead: None,
            until_restart: None,
            down_until: Time(0),
            faults,
            rng: Rng(seed * 2 + 1),
            now: Time(1),
            events: vec![Vec::new(); n],
        }
    }

    /// When a frame that leaves now arrives, once, twice or not at all.
    fn fly(&mut self) -> Vec<Time> {
        let hit = |rng: &mut Rng, percent| rng.below(100) < percent;
        if hit(&mut self.rng, self.faults.lost) {
            return Vec::new();
        }
        let delayed = hit(&mut self.rng, self.faults.delayed);
        let delay = 5_000 + u64::from(delayed) * self.rng.below(100_000);
        let arrives = Time(self.now.0 + delay);
        let copies = 1 + usize::from(hit(&mut self.rng, self.faults.copied));
        vec![arrives; copies]
    }

    fn send(&mut self) {
        for rank in 0..self.hosts.len() {
            let mut out = vec![0; self.hosts[rank].frame_max()];
            while self.dead != Some(rank)
                && let Some(bytes) = self.hosts[rank].poll_transmit(self.now, &mut out)
            {
                for arrives in self.fly() {
                    self.up.push_back((arrives, out[..bytes].to_vec()));
                }
            }
            while let Some(event) = self.hosts[rank].poll_event() {
                self.events[rank].push(event);
            }
        }
    }

    /// Runs until nothing is left to do, or for a second.
    fn run(&mut self) {
        let end = self.now.after(Duration::from_secs(1));
        while self.now < end {
            self.send();
            let arrivals = self.up.iter().chain(&self.down).map(|(at, _)| *at);
            let timeouts = self.hosts.iter().filter_map(Host::poll_timeout);
            let Some(next) = arrivals.chain(timeouts).min() else {
                return;
            };
            self.now = self.now.max(next);
            while let Some(at) = self.up.iter().position(|(at, _)| *at <= self.now) {
                let (_, frame) = self.up.remove(at).unwrap();
                if self.now < self.down_until {
                    continue;
                }
                for frame in self.switch.receive(frame) {
                    for arrives in self.fly() {
                        self.down.push_back((arrives, frame.clone()));
                    }
                }
            }
            while let Some(at) = self.down.iter().position(|(at, _)| *at <= self.now) {
                let (_, frame) = self.down.remove(at).unwrap();
                let to = usize::from(frame[33]) - 1;
                if self.dead != Some(to) {
                    self.hosts[to].receive(&frame, self.now);
                }
                self.until_restart = self.until_restart.map(|frames| frames.saturating_sub(1));
                if self.until_restart == Some(0) {
                    self.restart_switch();
                }
            }
            let now = self.now;
            let dead = self.dead;
            let alive = self.hosts.iter_mut().enumerate();
            for (_, host) in alive.filter(|(rank, _)| dead != Some(*rank)) {
                host.handle_timeout(now);
            }
        }
    }

    fn restart_switch(&mut self) {
        self.until_restart = None;
        self.down_until = self.now.after(TIMEOUT / 2);
        self.up.clear();
        self.down.clear();
        self.switch.known.iter_mut().for_each(Vec::clear);
        self.switch.slots.clear();
    }

    fn submit(&mut self, number: usize, element: Element, bytes: usize) {
        for rank in 0..self.hosts.len() {
            let tensor = contribution(element, rank, number, bytes);
            let all_reduce = self.hosts[rank].submit(element, tensor);
            assert_eq!(all_reduce, AllReduce(number as u64));
        }
    }
}

const ALL_FAULTS: Faults = Faults {
    lost: 5,
    copied: 10,
    delayed: 10,
};

/// Elements and bytes of all-reduces one behind the other.
const WORK: [(Element, usize); 10] = [
    (Element::I32, 0),
    (Element::F32, 4),
    (Element::Bf16, 2),
    (Element::Bf16, 0),
    (Element::I32, 3 * MTU - 32),
    (Element::Bf16, 3 * MTU - 32 + 2),
    (Element::F32, 10_000),
    (Element::Bf16, MTU - 32),
    (Element::Bf16, MTU - 30),
    (Element::I32, 5_000),
];

#[test]
fn every_all_reduce_is_the_sum_of_all_over_links_with_faults() {
    for seed in 0..60 {
        let n = 2 + seed as usize % 4;
        let verb = [Verb::Send, Verb::Write][seed as usize / 4 % 2];
        let faults = match seed % 3 {
            0 => Faults::default(),
            _ => ALL_FAULTS,
        };
        let mut world = World::new(n, verb, faults, seed);
        for (number, (element, bytes)) in WORK.into_iter().enumerate() {
            world.submit(number, element, bytes);
        }
        world.run();
        for rank in 0..n {
            let done: Vec<_> = WORK
                .into_iter()
                .enumerate()
                .map(|(number, (element, bytes))| {
                    let all = (0..n).map(|rank| contribution(element, rank, number, bytes));
                    let all: Vec<_> = all.collect();
                    let parts: Vec<_> = all.iter().map(Vec::as_slice).collect();
                    Event::Done {
                        all_reduce: AllReduce(number as u64),
                        tensor: fold(element, &parts),
                    }
                })
                .collect();
            assert!(world.events[rank] == done, "seed {seed} rank {rank}");
            if seed % 3 == 0 {
                let [to, from] = world.hosts[rank].counters();
                assert_eq!((to.retransmitted, from.duplicates), (0, 0), "seed {seed}");
                assert_eq!((to.dropped, from.dropped), (0, 0), "seed {seed}");
            }
        }
    }
}

/// N-15: a NIC that sends a packet again reads the memory again, and there may be a sum by then. A
/// switch that has forgotten the ring must not take it for a contribution.
#[test]
fn a_restart_of_the_switch_at_any_frame_ends_the_epoch_or_changes_no_sum() {
    let n = 3;
    let work = [(Element::I32, 4), (Element::I32, 2 * MTU)];
    let mut failed = 0;
    for verb in [Verb::Send, Verb::Write] {
        for frames in 1..40 {
            let mut world = World::new(n, verb, Faults::default(), 1);
            for (number, (element, bytes)) in work.into_iter().enumerate() {
                world.submit(number, element, bytes);
            }
            world.until_restart = Some(frames);
            world.run();
            for (rank, events) in world.events.iter().enumerate() {
                for event in events {
                    let Event::Done { all_reduce, tensor } = event else {
                        failed += 1;
                        continue;
                    };
                    let (element, bytes) = work[all_reduce.0 as usize];
                    let number = all_reduce.0 as usize;
                    let all: Vec<_> = (0..n)
                        .map(|rank| contribution(element, rank, number, bytes))
                        .collect();
                    let parts: Vec<_> = all.iter().map(Vec::as_slice).collect();
                    assert!(
                        *tensor == fold(element, &parts),
                        "{verb:?} {frames} rank {rank}"
                    );
                }
            }
        }
    }
    assert!(failed > 0, "no restart hit a message under way");
}

#[test]
fn a_host_that_dies_ends_all_others_in_bounded_time() {
    let mut world = World::new(4, Verb::Send, Faults::default(), 1);
    world.submit(0, Element::F32, 10_000);
    world.dead = Some(2);
    let start = world.now;
    world.run();
    for rank in [0, 1, 3] {
        let timeout = Failure::Successor(tally_roce::Failure::Timeout);
        assert_eq!(world.events[rank], [Event::Failed(timeout)], "rank {rank}");
        assert_eq!(world.hosts[rank].poll_timeout(), None);
    }
    let limit = TIMEOUT * (RETRIES + 2);
    assert!(world.now.since(start) < limit, "{:?}", world.now);
}

#[test]
fn a_message_that_no_switch_has_summed_is_refused() {
    let mut world = World::new(3, Verb::Write, Faults::default(), 1);
    world.switch.is_plain = true;
    world.submit(0, Element::F32, 400);
    world.run();
    let refused = Event::Failed(Failure::Message(RingError::NotSummed));
    assert_eq!(
        world.events,
        [[refused.clone()], [refused.clone()], [refused]]
    );
}

/// The header of an epoch's first message, as a rank sends it.
fn opening(rank: u8) -> RingHeader {
    RingHeader {
        element: Element::I32,
        rank,
        is_summed: false,
        ring: RING,
        epoch: EPOCH,
        message: 0,
        bytes: 4,
    }
}

/// Posts the first message of the epoch of rank 0 of 3, and has it acknowledged and summed.
fn open(ring: &mut Ring) {
    let post = ring.poll_post().unwrap();
    let header = RingHeader::parse(&post.header, &secret(), &channel(0, 3)).unwrap();
    assert_eq!((header, post.message), (opening(0), 0));
    assert_eq!((post.span.range, post.span.pad), (0..0, 4));
    assert_eq!(ring.poll_post(), None, "it is not acknowledged");
    ring.sent(0);
    let summed = RingHeader {
        is_summed: true,
        ..opening(2)
    };
    let front = summed.emit(&secret(), &channel(2, 3));
    assert_eq!(ring.received(&front, 36).map(|it| it.range), Ok(0..0));
}

#[test]
fn the_window_bounds_what_is_posted_without_its_sum() {
    let mut ring = Ring::new(ring_config(0, 3));
    let message = ring.config().message_bytes;
    let first = ring.submit(Element::I32, 3 * message + 4);
    let second = ring.submit(Element::F16, 6);
    let span = |all_reduce, range, pad| Span {
        all_reduce,
        range,
        pad,
    };
    let spans = [
        span(first, 0..message, 0),
        span(first, message..2 * message, 0),
        span(first, 2 * message..3 * message, 0),
        span(first, 3 * message..3 * message + 4, 0),
        span(second, 0..6, 2),
    ];
    open(&mut ring);
    let mut posts = Vec::new();
    for sum in 0..5 {
        posts.extend(std::iter::from_fn(|| ring.poll_post()));
        assert_eq!(posts.len(), (sum + WINDOW as usize).min(5), "sum {sum}");
        let header = RingHeader::parse(&posts[sum].header, &secret(), &channel(0, 3)).unwrap();
        let expected = RingHeader {
            element: [Element::I32, Element::F16][sum / 4],
            rank: 0,
            is_summed: false,
            ring: RING,
            epoch: EPOCH,
            message: sum as u32 + 1,
            bytes: [message, message, message, 4, 8][sum] as u32,
        };
        assert_eq!((header, posts[sum].message), (expected, sum as u32 + 1));
        assert_eq!(posts[sum].span, spans[sum]);
        let summed = RingHeader {
            rank: 2,
            is_summed: true,
            ..expected
        };
        let bytes = RING_HEADER_BYTES + expected.bytes as usize;
        let front = summed.emit(&secret(), &channel(2, 3));
        assert_eq!(ring.received(&front, bytes), Ok(spans[sum].clone()));
        let done = std::iter::from_fn(|| ring.poll_done()).collect::<Vec<_>>();
        let expected = match sum {
            3 => vec![first],
            4 => vec![second],
            _ => Vec::new(),
        };
        assert_eq!(done, expected, "sum {sum}");
    }
    assert_eq!((ring.pending(), ring.poll_post()), (0, None));
}

#[test]
fn a_message_that_is_not_the_next_sum_is_an_error() {
    let right = RingHeader {
        element: Element::F32,
        rank: 1,
        is_summed: true,
        ring: RING,
        epoch: EPOCH,
        message: 1,
        bytes: 8,
    };
    let received = |header: RingHeader, channel: &Channel, bytes: usize| {
        let mut ring = Ring::new(ring_config(0, 2));
        ring.submit(Element::F32, 8);
        ring.poll_post().unwrap();
        ring.sent(0);
        let summed = RingHeader {
            is_summed: true,
            ..opening(1)
        };
        let front = summed.emit(&secret(), &self::channel(1, 2));
        ring.received(&front, 36)
            .unwrap_or_else(|error| panic!("{error}"));
        ring.poll_post().unwrap();
        ring.received(&header.emit(&secret(), channel), bytes)
    };
    let own = channel(1, 2);
    assert!(received(right, &own, 40).is_ok());
    let cases = [
        (
            RingHeader {
                ring: RingId(6),
                ..right
            },
            RingError::Ring(RingId(6)),
        ),
        (
            RingHeader {
                epoch: RingEpoch(8),
                ..right
            },
            RingError::Epoch(RingEpoch(8)),
        ),
        (
            RingHeader { rank: 0, ..right },
            RingError::Rank {
                found: 0,
                expected: 1,
            },
        ),
        (
            RingHeader {
                is_summed: false,
                ..right
            },
            RingError::NotSummed,
        ),
        (
            RingHeader {
                message: 2,
                ..right
            },
            RingError::Message {
                found: 2,
                expected: 1,
            },
        ),
        (
            RingHeader {
                element: Element::I32,
                ..right
            },
            RingError::Element {
                found: Element::I32,
                expected: Element::F32,
            },
        ),
        (
            RingHeader { bytes: 4, ..right },
            RingError::Bytes {
                found: 4,
                expected: 8,
            },
        ),
    ];
    for (header, error) in cases {
        assert_eq!(received(header, &own, 40), Err(error), "{header:?}");
    }
    let tag = RingError::Header(RingHeaderError::Tag);
    assert_eq!(received(right, &channel(0, 2), 40), Err(tag));
    for bytes in [36, 44] {
        let found = bytes - RING_HEADER_BYTES;
        let error = RingError::Bytes { found, expected: 8 };
        assert_eq!(received(right, &own, bytes), Err(error));
    }
    let mut ring = Ring::new(ring_config(0, 2));
    ring.submit(Element::F32, 8);
    let early = RingHeader {
        message: 0,
        ..right
    };
    let front = early.emit(&secret(), &own);
    assert_eq!(ring.received(&front, 40), Err(RingError::Unposted(0)));
    let truncated = RingError::Header(RingHeaderError::Truncated);
    assert_eq!(ring.received(&front[..31], 31), Err(truncated));
}
