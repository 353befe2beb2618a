//! Frames that wait for a port: a data core over `net_ring` ports, some of which no host reads for
//! a while.
//!
//! Until a port blocks it takes [`RING`] frames, and the stage before it [`STAGE_FRAMES`]; all that
//! follows waits in the queue, so it is known which frame does and how it leaves.

#![allow(clippy::unwrap_used)]

mod common;

use common::{CoreHandle, JOB, OWN, SECRET, data_core, header};
use crossbeam_channel::bounded;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, Mbuf, Mempool, MempoolConfig, PortConfig, RingPairConfig, StartedPort,
    ring_pair,
};
use tally_engine::egress::class_of_frame;
use tally_engine::queue::QueueConfig;
use tally_engine::{
    Command, DropReason, Member, PolicyName, PortId, Ports, Registry, RegistryConfig,
};
use tally_kernels::Backend;
use tally_schema::switch::report::Report;
use tally_switch::board::Board;
use tally_switch::handover::{Handover, Inbox, Outbox, handover};
use tally_switch::messages::{CoreCommand, CoreReport};
use tally_switch::plane::Directory;
use tally_switch::platform::{Driver, STAGE_FRAMES};
use tally_switch::report::{self, PortShape, Shape};
use tally_wire::Ecn;
use tally_wire::frame::{emit, internet_checksum, mark};
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, Kind, Mac, Rank,
    UdpFrame,
};

/// Frames that a `net_ring` holds.
const RING: usize = 63;
/// Frames that a port takes before its queue begins to fill.
const TAKEN: usize = RING + STAGE_FRAMES;
const PATIENCE: Duration = Duration::from_secs(20);

const LOW: u8 = Ecn::NotEct as u8;
/// Precedence 7.
const HIGH: u8 = 0xe0 | Ecn::NotEct as u8;

/// Host n is on port n: workers 0 and 1, the PS is 2.
fn member(host: u8) -> Member {
    Member {
        port: PortId(host.into()),
        mac: Mac([2, 0, 0, 0, 0, host]),
        ip: Ipv4Addr::new(10, 84, 0, host + 1),
        udp_port: 40000 + u16::from(host),
    }
}

/// A frame that is not Tally's, with a number to know it by.
fn ordinary(from: u8, to: u8, tos: u8, n: u32) -> Vec<u8> {
    let mut f = Vec::new();
    f.extend(member(to).mac.0);
    f.extend(member(from).mac.0);
    f.extend([8, 0, 0x45, tos, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0]);
    f.extend(member(from).ip.octets());
    f.extend(member(to).ip.octets());
    let checksum = internet_checksum(&f[14..34]);
    f[24..26].copy_from_slice(&checksum.to_be_bytes());
    f.extend(n.to_be_bytes());
    f.resize(60, 0);
    f
}

fn data(rank: u8, fragment: u32, priority: u8) -> Vec<u8> {
    data_with(Flags::NONE, rank, fragment, priority)
}

fn data_with(flags: Flags, rank: u8, fragment: u32, priority: u8) -> Vec<u8> {
    let header = Header {
        flags,
        priority,
        ..header(rank, fragment, 64)
    };
    let worker = member(rank);
    let addresses = Addresses {
        src_mac: worker.mac,
        dst_mac: OWN.mac,
        src_ip: worker.ip,
        dst_ip: OWN.ip,
        src_port: worker.udp_port,
        dst_port: OWN.base_port,
    };
    let mut f = vec![0; HEADERS_BYTES + 64];
    emit(&mut f, &addresses, &header);
    f
}

fn remind(fragment: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Remind,
        element: Element::None,
        rank: Rank::PS,
        units: 0,
        bitmap: 0,
        ..header(0, fragment, 64)
    };
    let ps = member(2);
    let addresses = Addresses {
        src_mac: ps.mac,
        dst_mac: OWN.mac,
        src_ip: ps.ip,
        dst_ip: OWN.ip,
        src_port: ps.udp_port,
        dst_port: OWN.base_port,
    };
    let mut f = vec![0; HEADERS_BYTES];
    emit(&mut f, &addresses, &SECRET.seal(header));
    f
}

/// What a frame that leaves is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Ordinary(u32),
    Tally(Kind, u32, Flags, Ecn),
}

fn left(frame: &[u8]) -> Left {
    assert_eq!(internet_checksum(&frame[14..34]), 0, "IPv4 checksum");
    match UdpFrame::parse(frame) {
        Ok(udp) => {
            let h = Header::parse(udp.datagram(frame)).unwrap();
            Left::Tally(h.kind, h.fragment.0, h.flags, udp.ecn)
        }
        Err(_) => Left::Ordinary(u32::from_be_bytes(frame[34..38].try_into().unwrap())),
    }
}

/// A result, unless another switch marked it before.
fn result(fragment: u32, ecn: Ecn) -> Left {
    Left::Tally(Kind::Result, fragment, Flags::NONE, ecn)
}

fn ordinaries(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Left> {
    numbers.map(Left::Ordinary)
}

/// A data core, and hosts at the other ends of its three ports.
struct World {
    hosts: Vec<StartedPort>,
    /// Kept for as long as the core has their queues.
    ports: Vec<tally_dpdk::Port<tally_dpdk::Started>>,
    pool: Mempool,
    sent: [u64; 3],
    core: JoinHandle<CoreReport>,
    handle: CoreHandle,
    /// Of another core, which is played by the test.
    other: (Inbox, Outbox),
}

impl World {
    fn new(eal: &Eal, name: &str, queue: QueueConfig) -> Self {
        let pool = MempoolConfig {
            frames: 4095,
            cache_frames: 0,
            ..MempoolConfig::default()
        };
        let pool = Mempool::new(eal, name, &pool).unwrap();
        let (mut hosts, mut ports, mut rx, mut tx) = (vec![], vec![], vec![], vec![]);
        for n in 0..3 {
            let rings = RingPairConfig {
                queues: 1,
                frames: RING as u32 + 1,
            };
            let (inner, outer) = ring_pair(eal, &format!("{name}{n}"), &rings).unwrap();
            let start = |port: tally_dpdk::Port<_>| {
                port.configure(&PortConfig::default(), std::slice::from_ref(&pool))
                    .unwrap()
                    .start()
                    .unwrap()
            };
            let mut inner = start(inner);
            rx.push((PortId(n), inner.rx.pop().unwrap()));
            tx.push(Ok((inner.tx.pop().unwrap(), queue)));
            ports.push(inner.port);
            hosts.push(start(outer));
        }
        let mut ways = handover(2);
        let other = ways.pop().unwrap();
        let way = ways.pop().unwrap();
        let (core, handle) = data_core(rx, tx, way, &pool, 64, member);
        let core = std::thread::spawn(move || core.run());
        let mut world = Self {
            hosts,
            ports,
            pool,
            sent: [0; 3],
            core,
            handle,
            other,
        };
        // So that the core knows where they are. It drops each: that is where it came from.
        for host in 0..3 {
            world.send(host, [ordinary(host, host, 0, 0)]);
        }
        world
    }

    fn report(&self) -> CoreReport {
        let (answer, reports) = bounded(1);
        self.handle
            .commands
            .send(CoreCommand::Report(Box::new(move |report| {
                answer.send(report).unwrap();
            })))
            .unwrap();
        reports.recv_timeout(PATIENCE).unwrap()
    }

    /// Sends from a host, and waits until the core has done with all it can.
    fn send(&mut self, host: u8, frames: impl IntoIterator<Item = Vec<u8>>) {
        let at = usize::from(host);
        let mut frames: Vec<_> = frames
            .into_iter()
            .map(|frame| self.pool.alloc_copy(&frame).unwrap())
            .collect();
        self.sent[at] += frames.len() as u64;
        let start = Instant::now();
        while !frames.is_empty() || self.report().ports[at].rx_frames < self.sent[at] {
            self.hosts[at].tx[0].burst(&mut frames);
            assert!(start.elapsed() < PATIENCE, "the core takes no frames");
        }
    }

    /// Sends ordinary frames to a host that are numbered in that order.
    fn send_ordinary(&mut self, from: u8, to: u8, tos: u8, numbers: std::ops::Range<u32>) {
        self.send(from, numbers.map(|n| ordinary(from, to, tos, n)));
    }

    /// Receives exactly as many frames at a host.
    fn receive(&mut self, host: u8, count: usize) -> Vec<Left> {
        let mut frames: Vec<Mbuf> = Vec::new();
        let start = Instant::now();
        while frames.len() < count && start.elapsed() < PATIENCE {
            self.hosts[usize::from(host)].rx[0].burst(&mut frames, 32);
        }
        // Any other frame would come now.
        self.report();
        self.report();
        self.hosts[usize::from(host)].rx[0].burst(&mut frames, 32);
        assert_eq!(frames.len(), count, "frames at host {host}");
        frames.iter().map(|frame| left(frame.data())).collect()
    }

    /// Takes all down, and sees to it that no buffer is lost.
    fn end(self) -> CoreReport {
        self.handle.stop.store(true, Ordering::Relaxed);
        let report = self.core.join().unwrap();
        drop((self.hosts, self.ports, self.other, self.handle.commands));
        assert_eq!(self.pool.in_use(), 0, "buffers missing");
        report
    }
}

/// One process has one EAL, so the cases are in one test.
#[test]
fn queues() {
    let eal = Eal::init(&EalConfig::no_huge(128)).unwrap();
    high_frames_overtake_and_low_ones_are_served(&eal);
    a_full_class_drops_and_counts(&eal);
    what_joins_a_long_queue_is_marked(&eal);
    results_are_marked_for_all_ports_or_none(&eal);
    partials_and_control_frames_wait_like_others(&eal);
    what_arrives_marked_is_not_forgotten(&eal);
}

fn high_frames_overtake_and_low_ones_are_served(eal: &Eal) {
    let queue = QueueConfig {
        guard: 7,
        ..QueueConfig::default()
    };
    let mut w = World::new(eal, "prio", queue);
    let taken = TAKEN as u32;
    w.send_ordinary(0, 2, LOW, 0..taken + 10);
    w.send_ordinary(1, 2, HIGH, 1000..1020);
    let mut expected: Vec<_> = ordinaries(0..taken).collect();
    // A low one after every seven.
    for (low, high) in (taken..).zip([1000..1007, 1007..1014]) {
        expected.extend(ordinaries(high).chain([Left::Ordinary(low)]));
    }
    expected.extend(ordinaries(1014..1020).chain(ordinaries(taken + 2..taken + 10)));
    assert_eq!(w.receive(2, TAKEN + 30), expected);

    // While high ones come without end, low ones still get theirs.
    w.send_ordinary(0, 2, LOW, 0..taken + 4);
    w.send_ordinary(1, 2, HIGH, 1000..1100);
    let mut seen = Vec::new();
    for round in 0..4 {
        w.send_ordinary(1, 2, HIGH, 2000 + 40 * round..2040 + 40 * round);
        let mut frames = Vec::new();
        w.hosts[2].rx[0].burst(&mut frames, 32);
        seen.extend(frames.iter().map(|f| left(f.data())));
    }
    seen.extend(w.receive(2, TAKEN + 4 + 100 + 160 - seen.len()));
    for (n, low) in (taken..taken + 4).enumerate() {
        let at = seen.iter().position(|&f| f == Left::Ordinary(low));
        assert_eq!(at, Some(TAKEN + 8 * n + 7));
    }

    // What another core hands over keeps its class.
    w.send_ordinary(0, 2, LOW, 0..taken + 2);
    for (class, n) in [(0, 3000), (7, 3001)] {
        let mbuf = w.pool.alloc_copy(&ordinary(0, 2, 0, n)).unwrap();
        let handed = Handover::Egress(PortId(2), class, mbuf);
        assert_eq!(w.other.1.send(0, &mut vec![handed]), 0);
    }
    // It takes them between one answer and the next.
    w.report();
    w.report();
    let seen = w.receive(2, TAKEN + 4);
    let expected = [3001, taken, taken + 1, 3000].map(Left::Ordinary);
    assert_eq!(seen[TAKEN..], expected);

    // And so does what this core hands over.
    let mut ways = handover(2);
    let (mut inbox, _) = ways.pop().unwrap();
    let (_, outbox) = ways.pop().unwrap();
    let mut driver = Driver {
        tx: vec![None],
        outbox,
        capture: None,
    };
    let mut ports = Ports::new(vec![Err(1)], 2, STAGE_FRAMES);
    ports.send(PortId(0), 5, w.pool.alloc().unwrap());
    ports.transmit(&mut driver);
    let mut handed = Vec::new();
    inbox.take(&mut handed);
    assert!(matches!(handed[..], [Handover::Egress(PortId(0), 5, _)]));

    // But no ordinary frame that the port would never give back, as net_tap does.
    ports.set_longest_frames(vec![100]);
    for bytes in [100, 101] {
        let mut mbuf = w.pool.alloc().unwrap();
        mbuf.append(bytes).unwrap().fill(0);
        ports.forward(PortId(0), 5, mbuf);
    }
    ports.transmit(&mut driver);
    inbox.take(&mut handed);
    assert_eq!((handed.len(), ports.frame_too_long), (2, 1));
    drop((handed, ports, driver));

    let report = w.end();
    assert_eq!(report.queues[2].dropped_total(), 0);
    assert!(report.queues[2].queue_frames_max >= 104);
    assert_eq!(report.queues[0].queue_frames_max, 0);
}

fn a_full_class_drops_and_counts(eal: &Eal) {
    let queue = QueueConfig {
        frames: 40,
        ..QueueConfig::default()
    };
    let mut w = World::new(eal, "full", queue);
    let taken = TAKEN as u32;
    w.send_ordinary(0, 2, 0x60, 0..taken + 47);
    w.send_ordinary(0, 2, LOW, 1000..1040);
    w.send_ordinary(0, 2, HIGH, 2000..2041);
    let report = w.report();
    assert_eq!(
        report.queues[2].tx_dropped_by_class,
        [0, 0, 0, 7, 0, 0, 0, 1]
    );
    assert_eq!(report.counters.dropped(DropReason::TxFull), 8);
    assert_eq!(report.queues[2].queue_frames_max, 120);
    let shown = shown(&report);
    assert_eq!(shown.ports[2].tx_dropped, 8);
    assert_eq!(
        shown.ports[2].queue.tx_dropped_by_class,
        [0, 0, 0, 7, 0, 0, 0, 1]
    );
    assert_eq!(shown.ports[2].queue.queue_frames_max, 120);
    assert_eq!(shown.drops["tx-full"], 8);
    let text = shown.to_string();
    assert!(
        text.contains("c            dropped by class, 0 to 7: 0 0 0 7 0 0 0 1\n"),
        "{text}"
    );
    assert!(!text.contains("a            dropped"), "{text}");
    // Other ports continue.
    w.send_ordinary(0, 1, LOW, 0..1);
    assert_eq!(w.receive(1, 1), [Left::Ordinary(0)]);
    let seen = w.receive(2, TAKEN + 120);
    let of = |from: u32| {
        let class = seen
            .iter()
            .filter(move |f| matches!(f, Left::Ordinary(n) if (from..from + 1000).contains(n)));
        class.copied().collect::<Vec<_>>()
    };
    assert_eq!(of(0), ordinaries(0..taken + 40).collect::<Vec<_>>());
    assert_eq!(of(1000), ordinaries(1000..1040).collect::<Vec<_>>());
    assert_eq!(of(2000), ordinaries(2000..2040).collect::<Vec<_>>());
    // What still waits when the switch ends goes back as well.
    w.send_ordinary(0, 2, LOW, 0..taken + 47);
    w.end();
}

/// What the operator sees of it.
fn shown(core: &CoreReport) -> Report {
    let port = |name: &str| PortShape {
        name: name.to_owned(),
        ..PortShape::default()
    };
    let shape = Shape {
        name: None,
        config_version: std::sync::Arc::default(),
        policy: PolicyName::Esa,
        kernel: Backend::Scalar,
        slots: 64,
        ways: 1,
        pool_bytes: 64 << 10,
        fabric: tally_switch::fabric::FabricBoard::default(),
        board: Board::new(["a", "b", "c"].map(port)),
        cores: vec![0],
        switchml: None,
        netreduce: None,
    };
    let config = RegistryConfig {
        mac: OWN.mac,
        base_port: OWN.base_port,
        shards: 1,
        window: 16,
        units: 1,
        member_timeout: Duration::from_secs(5),
        secret: [0; 32],
        fabric: None,
    };
    let registry = Registry::new(config, Vec::new());
    report::report(
        &shape,
        Duration::from_secs(1),
        std::slice::from_ref(core),
        &registry,
        &Directory::default(),
        None,
    )
}

fn what_joins_a_long_queue_is_marked(eal: &Eal) {
    let queue = QueueConfig {
        mark_frames: 20,
        ..QueueConfig::default()
    };
    let mut w = World::new(eal, "mark", queue);
    let ect = Ecn::Ect0 as u8;
    let ce = |frame: &[u8]| Ecn::from_tos(frame[15]) == Ecn::Ce;
    w.send_ordinary(0, 2, ect, 0..TAKEN as u32 + 30);
    // Senders that do not take part.
    w.send_ordinary(0, 2, LOW, 1000..1010);
    // Of the higher class none waits yet.
    w.send_ordinary(0, 2, HIGH | ect, 2000..2030);
    assert_eq!(w.report().queues[2].ecn_marked, 20);
    let mut frames = Vec::new();
    let start = Instant::now();
    while frames.len() < TAKEN + 70 && start.elapsed() < PATIENCE {
        w.hosts[2].rx[0].burst(&mut frames, 32);
    }
    assert_eq!(frames.len(), TAKEN + 70);
    for frame in &frames {
        let Left::Ordinary(n) = left(frame.data()) else {
            panic!("not sent")
        };
        let marked = (TAKEN as u32 + 20..1000).contains(&n) || n >= 2020;
        assert_eq!(ce(frame.data()), marked, "frame {n}");
        let tos = match n {
            0..1000 => ect,
            1000..2000 => LOW,
            _ => HIGH | ect,
        };
        let mut expected = ordinary(0, 2, tos, n);
        assert_eq!(mark(&mut expected) && marked, marked);
        if !marked {
            expected = ordinary(0, 2, tos, n);
        }
        assert_eq!(frame.data(), expected, "frame {n}");
    }
    drop(frames);
    w.end();
}

fn results_are_marked_for_all_ports_or_none(eal: &Eal) {
    let queue = QueueConfig {
        mark_frames: 20,
        ..QueueConfig::default()
    };
    let mut w = World::new(eal, "result", queue);
    let sum = |w: &mut World, fragment, priority| {
        w.send(0, [data(0, fragment, priority)]);
        w.send(1, [data(1, fragment, priority)]);
    };
    sum(&mut w, 0, 0);
    assert_eq!(w.receive(0, 1), [result(0, Ecn::Ect0)]);
    assert_eq!(w.receive(1, 1), [result(0, Ecn::Ect0)]);
    // Worker 1 stops reading.
    let taken = TAKEN as u32;
    w.send_ordinary(2, 1, LOW, 0..taken + 20);
    // Of the highest class, none is before it. Of the lowest, many are at one port, and so the
    // result is marked at both.
    sum(&mut w, 1, 255);
    sum(&mut w, 2, 0);
    let at_0 = [result(1, Ecn::Ect0), result(2, Ecn::Ce)];
    assert_eq!(w.receive(0, 2), at_0);
    // Once more what has left before: as it was then.
    w.send(1, [data_with(Flags::RESEND, 1, 0, 0)]);
    let mut at_1: Vec<_> = ordinaries(0..taken).collect();
    at_1.push(result(1, Ecn::Ect0));
    at_1.extend(ordinaries(taken..taken + 20));
    at_1.extend([result(2, Ecn::Ce), result(0, Ecn::Ect0)]);
    assert_eq!(w.receive(1, TAKEN + 23), at_1);
    let report = w.end();
    let marked: Vec<_> = report.queues.iter().map(|q| q.ecn_marked).collect();
    assert_eq!(marked, [0, 1, 0]);
    assert_eq!(report.counters.results_again, 1);
}

fn partials_and_control_frames_wait_like_others(eal: &Eal) {
    let queue = QueueConfig {
        mark_frames: 20,
        ..QueueConfig::default()
    };
    let mut w = World::new(eal, "partial", queue);
    let taken = TAKEN as u32;
    w.send_ordinary(0, 2, LOW, 0..taken + 20);
    // The PS asks for what slots have.
    w.send(0, [data_with(Flags::NONE, 0, 0, 0)]);
    w.send(0, [data_with(Flags::NONE, 0, 1, 128)]);
    w.send(2, [remind(0)]);
    w.send(2, [remind(1)]);
    let refuse = Header {
        kind: Kind::Refuse,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job: JOB,
        epoch: Epoch(1),
        fragment: FragmentId(0),
        rank: Rank::PS,
        units: 2,
        bitmap: 0,
        tag: AuthTag::NONE,
    };
    let mut datagram = Box::new([0; 22 + 128]);
    refuse.emit(&mut datagram[..]);
    w.handle
        .commands
        .send(Command::Send(member(2), datagram).into())
        .unwrap();
    w.report();
    let partial = |fragment, ecn| Left::Tally(Kind::Partial, fragment, Flags::NONE, ecn);
    let mut expected: Vec<_> = ordinaries(0..taken).collect();
    expected.push(Left::Tally(Kind::Refuse, 0, Flags::NONE, Ecn::Ect0));
    expected.push(partial(1, Ecn::Ect0));
    expected.extend(ordinaries(taken..taken + 20));
    expected.push(partial(0, Ecn::Ce));
    assert_eq!(w.receive(2, TAKEN + 23), expected);
    w.end();
}

fn what_arrives_marked_is_not_forgotten(eal: &Eal) {
    let mut w = World::new(eal, "arrive", QueueConfig::default());
    let ce = |fragment| {
        let mut frame = data(0, fragment, 0);
        assert!(mark(&mut frame));
        frame
    };
    // In one train, so that frames that are like the last one take the short way.
    w.send(
        0,
        [
            data(0, 0, 0),
            ce(1),
            ce(2),
            ce(3),
            data(0, 4, 0),
            data(0, 5, 0),
        ],
    );
    w.send(1, (0..6).map(|fragment| data(1, fragment, 0)));
    let expected: Vec<_> = (0..6)
        .map(|fragment| {
            let marked = Flags::MARKED.when((1..4).contains(&fragment));
            Left::Tally(Kind::Result, fragment, marked, Ecn::Ect0)
        })
        .collect();
    assert_eq!(w.receive(0, 6), expected);
    assert_eq!(w.receive(1, 6), expected);
    w.end();
}

#[test]
fn the_class_of_an_ordinary_frame_is_its_precedence() {
    for precedence in 0..8 {
        let tos = (precedence as u8) << 5 | 0x1f;
        let mut frame = ordinary(0, 1, tos, 0);
        assert_eq!(class_of_frame(&frame), precedence);
        frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x60 | tos >> 4, tos << 4]);
        assert_eq!(class_of_frame(&frame), precedence, "IPv6");
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(class_of_frame(&frame), 0, "ARP");
        assert_eq!(class_of_frame(&frame[..15]), 0);
    }
}
