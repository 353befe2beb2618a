//! SwitchML's frames through a data core on `net_ring` ports, whose other ends are here: what
//! leaves, byte by byte, what is dropped and why, and that every buffer is back at the end.

#![allow(clippy::unwrap_used)]

mod common;

use common::{CoreHandle, JOB, OWN, header as native_header, switchml_core};
use crossbeam_channel::bounded;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, Mbuf, Mempool, MempoolConfig, Port, PortConfig, RingPairConfig, StartedPort,
    ring_pair,
};
use tally_engine::queue::QueueConfig;
use tally_engine::switchml::{
    Command, HostAddress, Session, SessionId, SwitchmlConfig, Whereabouts,
};
use tally_engine::{DropReason, Drops, Member, PortId, Reply};
use tally_packet::Ready;
use tally_switch::handover::handover;
use tally_switch::messages::{CoreCommand, CoreReport};
use tally_wire::frame::internet_checksum;
use tally_wire::neighbour::arp_request;
use tally_wire::switchml::{FIRST_PORT, HEADERS_BYTES, Header, Size, emit_request};
use tally_wire::{Addresses, Mac};

const PATIENCE: Duration = Duration::from_secs(20);
/// Slots of a session, and frames that they may keep, in the tests.
const SLOTS: u16 = 16;
const HELD: u32 = 12;

fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

fn ip(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, host)
}

/// A worker's host is its number; so is the port that it is behind.
fn station(host: u8) -> HostAddress {
    HostAddress {
        mac: mac(host),
        ip: ip(host),
    }
}

/// The switch's address that a host was told.
fn told(host: u8) -> Mac {
    Mac([6, 0xaa, 0, 0, 0, host])
}

fn session(id: u64, size: Size, hosts: &[u8]) -> Arc<Session> {
    Arc::new(Session {
        id: SessionId(id),
        size,
        workers: hosts.iter().map(|&host| station(host)).collect(),
        switch_macs: hosts.iter().map(|&host| told(host)).collect(),
    })
}

fn addresses(host: u8) -> Addresses {
    Addresses {
        src_mac: mac(host),
        dst_mac: told(host),
        src_ip: ip(host),
        dst_ip: OWN.ip,
        src_port: 4000 + u16::from(host),
        dst_port: FIRST_PORT,
    }
}

fn header(size: Size, slot: u16, set: bool) -> Header {
    Header {
        size,
        job: 9,
        packet: [1, 2, 3, 4],
        slot,
        set,
        exponents: [0, 0],
    }
}

fn element(host: u8, n: usize) -> i32 {
    (n as i32 + 1).wrapping_mul(0x0101_0101 * i32::from(host))
}

/// A contribution as the published clients send it: no checksum is right.
fn request(host: u8, header: &Header) -> Vec<u8> {
    request_from(&addresses(host), host, header)
}

fn request_from(addresses: &Addresses, host: u8, header: &Header) -> Vec<u8> {
    let mut frame = vec![0; HEADERS_BYTES];
    emit_request(&mut frame, addresses, header);
    let elements = (0..header.size.elements()).map(|n| element(host, n));
    frame.extend(elements.flat_map(i32::to_be_bytes));
    frame
}

/// A reply to a host, written out byte by byte, with the sum of the contributions of these hosts.
fn reply(host: u8, header: &Header, summed: &[u8]) -> Vec<u8> {
    let payload = header.size.payload_bytes();
    let mut f = Vec::new();
    f.extend(mac(host).0);
    f.extend(told(host).0);
    f.extend([8, 0]);
    f.extend([0x45, 0]);
    f.extend((20 + 8 + 10 + payload as u16).to_be_bytes());
    f.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    f.extend(OWN.ip.octets());
    f.extend(ip(host).octets());
    let checksum = internet_checksum(&f[14..34]);
    f[24..26].copy_from_slice(&checksum.to_be_bytes());
    f.extend(FIRST_PORT.to_be_bytes());
    f.extend((4000 + u16::from(host)).to_be_bytes());
    f.extend((8 + 10 + payload as u16).to_be_bytes());
    f.extend([0, 0]);
    f.push(0x10 | header.size.code());
    f.push(header.job);
    f.extend(header.packet);
    f.extend((header.slot | if header.set { 0x8000 } else { 0 }).to_be_bytes());
    f.extend(header.exponents.map(i8::cast_unsigned));
    for n in 0..header.size.elements() {
        let elements = summed.iter().map(|&host| element(host, n));
        f.extend(elements.fold(0, i32::wrapping_add).to_be_bytes());
    }
    f
}

/// The bytes of a frame, in any number of segments.
fn whole(frame: &Mbuf) -> Vec<u8> {
    frame.parts().flatten().copied().collect()
}

fn pool(eal: &Eal, name: &str) -> Mempool {
    let config = MempoolConfig {
        frames: 4095,
        cache_frames: 0,
        frame_bytes_max: 9216,
        socket: None,
    };
    Mempool::new(eal, name, &config).unwrap()
}

/// A data core with SwitchML, and the other ends of its ports.
struct Rig {
    pool: Mempool,
    inner: Vec<Port<tally_dpdk::Started>>,
    outer: Vec<StartedPort>,
    core: JoinHandle<CoreReport>,
    handle: CoreHandle,
}

impl Rig {
    /// With so many ports, which send frames of several segments or not.
    fn new(eal: &Eal, name: &str, ports: u16, chains: bool) -> Self {
        let pool = pool(eal, &format!("{name}p"));
        let (mut inner, mut outer, mut rx, mut tx) = (vec![], vec![], vec![], vec![]);
        for n in 0..ports {
            let (a, b) = ring_pair(eal, &format!("{name}{n}"), &RingPairConfig::default()).unwrap();
            let config = PortConfig {
                tx_multi_segment: chains,
                ..PortConfig::default()
            };
            let start = |port: Port<_>| {
                let port: Port<tally_dpdk::Configured> = port
                    .configure(&config, std::slice::from_ref(&pool))
                    .unwrap();
                port.start().unwrap()
            };
            let mut started = start(a);
            rx.push((PortId(n), started.rx.pop().unwrap()));
            tx.push(Ok((started.tx.pop().unwrap(), QueueConfig::default())));
            inner.push(started.port);
            outer.push(start(b));
        }
        let ways = handover(1).pop().unwrap();
        let member = |rank: u8| Member {
            port: PortId(u16::from(rank)),
            mac: mac(100 + rank),
            ip: ip(100 + rank),
            udp_port: 40000,
        };
        let config = SwitchmlConfig {
            sessions: 2,
            slots: SLOTS,
            held: HELD,
            shards: 1,
            shard: 0,
        };
        let switchml = Some((config, chains));
        let (core, handle) = switchml_core(rx, tx, ways, &pool, 256, member, switchml);
        Self {
            pool,
            inner,
            outer,
            core: std::thread::spawn(move || core.run()),
            handle,
        }
    }

    fn ask<T, C>(&self, command: impl FnOnce(Reply<T>) -> C) -> T
    where
        T: Send + 'static,
        C: Into<CoreCommand>,
    {
        let (answer, answered) = bounded(1);
        let reply = Box::new(move |value| answer.send(value).unwrap());
        self.handle.commands.send(command(reply).into()).unwrap();
        answered.recv_timeout(PATIENCE).unwrap()
    }

    fn bind(&self, session: &Arc<Session>) -> bool {
        let whereabouts = Arc::new(Whereabouts::new(session.workers.len()));
        self.ask(|done| Command::Bind(Arc::clone(session), whereabouts, done))
    }

    fn unbind(&self, id: u64) {
        self.ask(|done| Command::Unbind(SessionId(id), done));
    }

    fn report(&self) -> CoreReport {
        self.ask(CoreCommand::Report)
    }

    /// Sends frames into a port, and waits until the core has taken them.
    fn send(&mut self, port: u8, frames: &[Vec<u8>]) {
        let before = self.report().ports[usize::from(port)].rx_frames;
        let copy = |frame: &Vec<u8>| self.pool.alloc_copy(frame).unwrap();
        let mut out: Vec<_> = frames.iter().map(copy).collect();
        let start = Instant::now();
        while !out.is_empty() {
            self.outer[usize::from(port)].tx[0].burst(&mut out);
            assert!(start.elapsed() < PATIENCE, "the core takes nothing");
        }
        let all = before + frames.len() as u64;
        while self.report().ports[usize::from(port)].rx_frames < all {
            assert!(start.elapsed() < PATIENCE, "the core takes nothing");
        }
        // What a turn makes leaves before its end; the report comes in the next.
        self.report();
    }

    /// What has left on a port until now.
    fn left(&mut self, port: u8) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while self.outer[usize::from(port)].rx[0].burst(&mut frames, 32) > 0 {}
        frames.iter().map(whole).collect()
    }

    /// Ends the core; every buffer must be back.
    fn end(self) -> CoreReport {
        self.handle.stop.store(true, Ordering::Relaxed);
        let report = self.core.join().unwrap();
        drop((self.inner, self.outer));
        assert!(self.pool.is_whole(), "{} frames miss", self.pool.in_use());
        report
    }
}

/// One process has one EAL, so the cases are in one test.
#[test]
fn switchml() {
    let eal = Eal::init(&EalConfig::no_huge(512)).unwrap();
    every_row_of_the_table(&eal, "chain", true);
    every_row_of_the_table(&eal, "copy", false);
    each_size_and_many_ports(&eal);
    results_in_flight_are_read_only(&eal);
    hostile_frames_have_their_counters(&eal);
    a_forged_first_frame_changes_nothing(&eal);
    a_copied_secret_ends_all_sums(&eal);
    made_up_members_get_nothing(&eal);
    floods_spare_members_and_members_are_found(&eal);
    native_jobs_run_beside(&eal);
    what_hardware_says_of_checksums_does_not_count(&eal);
}

fn every_row_of_the_table(eal: &Eal, name: &str, chains: bool) {
    let mut rig = Rig::new(eal, name, 3, chains);
    assert!(rig.bind(&session(7, Size::B2048, &[0, 1])));
    let h = |set| header(Size::B2048, 3, set);

    // First and last; the result has the last one's job and packet number and the larger exponents.
    let first = Header {
        exponents: [5, -7],
        ..h(false)
    };
    let last = Header {
        job: 200,
        packet: [9, 8, 7, 6],
        exponents: [4, -6],
        ..h(false)
    };
    rig.send(0, &[request(0, &first)]);
    assert!(rig.left(0).is_empty() && rig.left(1).is_empty());
    // A duplicate before: dropped.
    rig.send(0, &[request(0, &first)]);
    rig.send(1, &[request(1, &last)]);
    let result = Header {
        exponents: [5, -6],
        ..last
    };
    assert!(rig.left(0) == [reply(0, &result, &[0, 1])]);
    assert!(rig.left(1) == [reply(1, &result, &[0, 1])]);
    // A duplicate after: to its sender alone, with its own job and packet number, to the address
    // that it came from now.
    let again = Header {
        job: 1,
        packet: [0; 4],
        ..first
    };
    let moved = Addresses {
        src_port: 4999,
        dst_port: FIRST_PORT + 15,
        ..addresses(0)
    };
    rig.send(0, &[request_from(&moved, 0, &again)]);
    let mut expected = reply(
        0,
        &Header {
            exponents: [5, -6],
            ..again
        },
        &[0, 1],
    );
    expected[34..36].copy_from_slice(&(FIRST_PORT + 15).to_be_bytes());
    expected[36..38].copy_from_slice(&4999_u16.to_be_bytes());
    assert!(rig.left(0) == [expected]);
    assert!(rig.left(1).is_empty());

    // The other set, padded to no purpose, and the first one again, for which the sum starts anew.
    for set in [true, false, true] {
        let mut padded = request(1, &h(set));
        padded.extend([0xa5; 30]);
        rig.send(1, &[padded]);
        rig.send(0, &[request(0, &h(set))]);
        for host in [0, 1] {
            assert!(
                rig.left(host) == [reply(host, &h(set), &[0, 1])],
                "{set} {host}"
            );
        }
    }
    let report = rig.report();
    let switchml = report.switchml.as_ref().unwrap();
    let status = &switchml.sessions[0];
    assert_eq!(
        (status.counters.contributions, status.counters.results),
        (8, 4)
    );
    assert_eq!(
        (status.counters.answered, status.counters.duplicates),
        (1, 1)
    );
    assert_eq!(status.counters.held, 1, "the last result rests");
    assert_eq!(report.counters.dropped(DropReason::Duplicate), 1);
    assert_eq!(report.counters.drops.total(), 1);
    let copied: Vec<_> = report.rare.iter().map(|port| port.replies_copied).collect();
    assert_eq!(copied, if chains { [0, 0, 0] } else { [5, 4, 0] });

    // At the end of the session its frames go back, the core's stock does at the core's.
    rig.unbind(7);
    let report = rig.report();
    assert_eq!(report.switchml.unwrap().in_use.held_in_use, 0);
    rig.send(0, &[request(0, &h(false))]);
    assert!(rig.left(0).is_empty());
    let report = rig.end();
    assert_eq!(report.counters.dropped(DropReason::SwitchmlStation), 1);
}

fn each_size_and_many_ports(eal: &Eal) {
    let mut rig = Rig::new(eal, "size", 6, true);
    let hosts = [0, 1, 2, 3, 4];
    for size in Size::ALL {
        // The same hosts anew: the older session has them no more, and the place is the same.
        assert!(rig.bind(&session(1, size, &hosts)));
        let h = header(size, 0, false);
        for &host in &hosts {
            rig.send(host, &[request(host, &h)]);
        }
        for &host in &hosts {
            let left = rig.left(host);
            assert!(left == [reply(host, &h, &hosts)], "{size:?} to {host}");
        }
    }
    assert!(rig.left(5).is_empty());
    // Alone in a session: each frame is answered at once.
    assert!(rig.bind(&session(2, Size::B128, &[5])));
    let h = header(Size::B128, 15, true);
    rig.send(5, &vec![request(5, &h); 3]);
    assert!(rig.left(5) == vec![reply(5, &h, &[5]); 3]);
    // No third session, and no session without end.
    assert!(!rig.bind(&session(3, Size::B128, &[9])));
    assert!(!rig.bind(&session(4, Size::B128, &[])));
    let report = rig.end();
    assert_eq!(report.counters.drops.total(), 0);
}

/// Results that no host fetches from the port stay what they are while their slot is used anew.
fn results_in_flight_are_read_only(eal: &Eal) {
    let mut rig = Rig::new(eal, "hold", 2, true);
    assert!(rig.bind(&session(7, Size::B1024, &[0, 1])));
    let mut expected = [vec![], vec![]];
    for round in 0..20_u8 {
        for slot in 0..3 {
            let set = round % 2 == 1;
            let h = Header {
                job: round,
                ..header(Size::B1024, slot, set)
            };
            // Other values each round.
            for (at, host) in [(0, 0), (1, 1)] {
                let mut frame = request(host, &h);
                frame[HEADERS_BYTES + 3] = round;
                rig.send(at, &[frame]);
                let mut reply = reply(host, &h, &[0, 1]);
                let first = i32::from_be_bytes([0, 0, 0, round])
                    .wrapping_add((element(1, 0) as u32 & 0xffff_ff00) as i32 | i32::from(round));
                reply[HEADERS_BYTES..HEADERS_BYTES + 4].copy_from_slice(&first.to_be_bytes());
                expected[usize::from(host)].push(reply);
            }
        }
    }
    for host in [0, 1] {
        assert!(rig.left(host) == expected[usize::from(host)], "to {host}");
    }
    rig.end();
}

fn hostile_frames_have_their_counters(eal: &Eal) {
    let mut rig = Rig::new(eal, "evil", 3, true);
    assert!(rig.bind(&session(7, Size::B256, &[0, 1])));
    let h = header(Size::B256, 0, false);
    let good = request(0, &h);
    rig.send(0, std::slice::from_ref(&good));
    let with = |at: usize, bytes: &[u8]| {
        let mut f = request(1, &h);
        f[at..at + bytes.len()].copy_from_slice(bytes);
        f
    };
    let said = |change: fn(&mut Header)| {
        let mut h = h;
        change(&mut h);
        request(1, &h)
    };
    let from = |change: fn(&mut Addresses)| {
        let mut a = addresses(1);
        change(&mut a);
        request_from(&a, 1, &h)
    };
    let mut short = request(1, &h);
    short.truncate(HEADERS_BYTES - 1);
    short[16..18].copy_from_slice(&37_u16.to_be_bytes());
    short[38..40].copy_from_slice(&17_u16.to_be_bytes());
    let mut long = request(1, &h);
    long.extend([0; 4]);
    long[16..18].copy_from_slice(&298_u16.to_be_bytes());
    long[38..40].copy_from_slice(&278_u16.to_be_bytes());
    let mut frames = vec![
        (DropReason::HeaderTruncated, short),
        (DropReason::Length, long),
        (DropReason::Kind, with(42, &[0x01])),
        (DropReason::Kind, with(42, &[0x21])),
        (DropReason::SwitchmlSize, with(42, &[0x17])),
        (DropReason::Length, with(42, &[0x13])),
        (DropReason::SwitchmlSize, said(|h| h.size = Size::B128)),
        (DropReason::SwitchmlSize, said(|h| h.size = Size::B8192)),
        (DropReason::SwitchmlSlot, said(|h| h.slot = SLOTS)),
        (DropReason::SwitchmlSlot, said(|h| h.slot = 16383)),
        (DropReason::SwitchmlStation, from(|a| a.src_mac = mac(9))),
        (DropReason::SwitchmlStation, from(|a| a.src_ip = ip(9))),
        (DropReason::SwitchmlStation, from(|a| a.src_ip = ip(0))),
        (DropReason::SpoofedSwitch, from(|a| a.src_ip = OWN.ip)),
        (DropReason::SpoofedSwitch, from(|a| a.src_mac = OWN.mac)),
        (
            DropReason::NotOurs,
            from(|a| (a.dst_mac, a.dst_ip) = (OWN.mac, ip(77))),
        ),
        (
            DropReason::UdpPort,
            from(|a| (a.dst_mac, a.dst_port) = (OWN.mac, FIRST_PORT + 16)),
        ),
        (
            DropReason::UdpPort,
            from(|a| (a.dst_mac, a.dst_port) = (OWN.mac, FIRST_PORT - 1)),
        ),
        (DropReason::SwitchmlForged, from(|a| a.dst_mac = OWN.mac)),
        (DropReason::SwitchmlForged, from(|a| a.dst_mac = told(0))),
        (DropReason::SwitchmlForged, from(|a| a.dst_mac = mac(77))),
    ];
    for len in 1..good.len() {
        let reason = match len {
            0..34 => DropReason::Truncated,
            _ => DropReason::IpLength,
        };
        // What is cut before its UDP header is nothing of ours.
        let mut cut = request(1, &h);
        cut[..6].copy_from_slice(&OWN.mac.0);
        frames.push((reason, cut[..len].to_vec()));
    }
    let mut expected = Drops::default();
    for (reason, frame) in &frames {
        expected[*reason] += 1;
        rig.send(1, std::slice::from_ref(frame));
    }
    // Another port cannot speak for it, before and after it has spoken itself.
    for host in [0, 1] {
        let mut forged = addresses(host);
        forged.dst_mac = OWN.mac;
        rig.send(2, &[request_from(&forged, host, &h)]);
        expected[DropReason::SwitchmlForged] += 1;
    }
    // More than may be kept: so many slots of one worker. Each is sent again by its client later.
    // A session leaves the other one that there may be its share.
    let kept = HELD * 3 / 4;
    let greedy: Vec<_> = (1..SLOTS)
        .map(|slot| request(0, &header(Size::B256, slot, false)))
        .collect();
    rig.send(0, &greedy);
    expected[DropReason::SwitchmlHeld] += (u64::from(SLOTS) - 1) - u64::from(kept - 1);
    let report = rig.report();
    assert_eq!(report.counters.drops, expected);
    assert_eq!(report.switchml.unwrap().in_use.held_in_use, kept);
    assert!((0..3).all(|port| rig.left(port).is_empty()));
    // The sum that was there all the time is what it was.
    rig.send(1, &[request(1, &h)]);
    assert!(rig.left(0) == [reply(0, &h, &[0, 1])]);
    assert!(rig.left(1) == [reply(1, &h, &[0, 1])]);
    // With a session more in the same place, nothing of the old one is left.
    rig.unbind(7);
    assert!(rig.bind(&session(8, Size::B256, &[1, 0])));
    rig.send(1, &[request(1, &h)]);
    assert!(rig.left(0).is_empty() && rig.left(1).is_empty());
    rig.end();
}

/// A host on a port of its own that knows a worker's addresses, and speaks before the worker does.
fn a_forged_first_frame_changes_nothing(eal: &Eal) {
    let mut rig = Rig::new(eal, "forge", 3, true);
    assert!(rig.bind(&session(7, Size::B256, &[0, 1])));
    let h = header(Size::B256, 3, false);
    let mut expected = 0;
    for to in [OWN.mac, told(1), mac(0), Mac([6, 0xaa, 0, 0, 0, 9])] {
        let forged = Addresses {
            dst_mac: to,
            ..addresses(0)
        };
        // Not what the worker says, so that it would show in the sum.
        rig.send(2, &[request_from(&forged, 5, &h)]);
        expected += 1;
    }
    let report = rig.report();
    assert_eq!(
        report.counters.dropped(DropReason::SwitchmlForged),
        expected
    );
    assert_eq!(report.counters.drops.total(), expected);
    let status = &report.switchml.unwrap().sessions[0];
    assert_eq!(status.ranks[0].port, None);
    assert_eq!(status.ranks[0].counters.forged, expected);
    assert_eq!(status.ranks[0].forged_from, Some(PortId(2)));
    // To the secrets nothing is flooded, so no host learns them.
    assert!((0..3).all(|port| rig.left(port).is_empty()));
    for host in [1, 0] {
        rig.send(host, &[request(host, &h)]);
    }
    assert!(rig.left(0) == [reply(0, &h, &[0, 1])]);
    assert!(rig.left(1) == [reply(1, &h, &[0, 1])]);
    assert!(rig.left(2).is_empty());
    // After the session, too, its secrets are flooded to no host.
    rig.unbind(7);
    rig.send(0, &[request(0, &h)]);
    assert!((1..3).all(|port| rig.left(port).is_empty()));
    rig.end();
}

fn a_copied_secret_ends_all_sums(eal: &Eal) {
    let mut rig = Rig::new(eal, "copied", 3, true);
    assert!(rig.bind(&session(7, Size::B256, &[0, 1])));
    let h = |slot| header(Size::B256, slot, false);
    rig.send(0, &[request(0, &h(0))]);
    rig.send(2, &[request(0, &h(1))]);
    // Which of the two is the worker is unknown, so no sum with it is sent.
    rig.send(1, &[request(1, &h(0)), request(1, &h(1))]);
    rig.send(0, &[request(0, &h(1))]);
    assert!((0..3).all(|port| rig.left(port).is_empty()));
    let report = rig.report();
    assert_eq!(report.counters.dropped(DropReason::SwitchmlPort), 4);
    let status = &report.switchml.unwrap().sessions[0];
    assert_eq!(status.counters.results, 0);
    let conflict = status.conflict.unwrap();
    assert_eq!((conflict.rank, conflict.ports), (0, [PortId(0), PortId(2)]));
    rig.end();
}

/// A session of other hosts' addresses, of which none has spoken to the address that it was told.
fn made_up_members_get_nothing(eal: &Eal) {
    let mut rig = Rig::new(eal, "madeup", 4, true);
    // Host 1 is an ordinary one, and is known.
    let ordinary = broadcast(1, [0x86, 0xdd]);
    rig.send(1, std::slice::from_ref(&ordinary));
    for port in [0, 2, 3] {
        assert!(rig.left(port) == [ordinary.clone()]);
    }
    assert!(rig.bind(&session(7, Size::B256, &[1])));
    // The forger knows the session's secret, but not host 1's.
    let forged = Addresses {
        dst_mac: OWN.mac,
        ..addresses(1)
    };
    rig.send(
        2,
        &[request_from(&forged, 1, &header(Size::B256, 0, false))],
    );
    let flood = broadcast(3, [0x86, 0xdd]);
    rig.send(3, std::slice::from_ref(&flood));
    for port in 0..3 {
        assert!(rig.left(port) == [flood.clone()], "{port}");
    }
    let ask = arp_request(mac(3), ip(3), ip(1)).to_vec();
    rig.send(3, std::slice::from_ref(&ask));
    assert!(rig.left(3).is_empty(), "it is not answered in its name");
    assert!((0..3).all(|port| rig.left(port) == [ask.clone()]));
    // It has spoken, from where it is: what it gets is its own.
    rig.send(2, &[request(1, &header(Size::B256, 0, false))]);
    assert_eq!(rig.left(2).len(), 1);
    rig.send(3, std::slice::from_ref(&flood));
    assert!(rig.left(2).is_empty());
    for port in 0..2 {
        assert!(rig.left(port) == [flood.clone()], "{port}");
    }
    rig.end();
}

fn broadcast(from: u8, ethertype: [u8; 2]) -> Vec<u8> {
    let mut frame = vec![0x5a; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac(from).0);
    frame[12..14].copy_from_slice(&ethertype);
    frame
}

fn floods_spare_members_and_members_are_found(eal: &Eal) {
    let mut rig = Rig::new(eal, "flood", 4, true);
    let ipv6 = broadcast(3, [0x86, 0xdd]);
    rig.send(3, std::slice::from_ref(&ipv6));
    for port in 0..3 {
        assert!(rig.left(port) == [ipv6.clone()], "no host is a member yet");
    }
    assert!(rig.bind(&session(7, Size::B256, &[0, 1])));
    // Not seen: who knows where they are.
    rig.send(3, std::slice::from_ref(&ipv6));
    for port in 0..3 {
        assert!(rig.left(port) == [ipv6.clone()], "no member was seen");
    }
    let h = header(Size::B256, 0, false);
    rig.send(0, &[request(0, &h)]);
    rig.send(3, std::slice::from_ref(&ipv6));
    assert!(rig.left(0).is_empty());
    for port in 1..3 {
        assert!(rig.left(port) == [ipv6.clone()]);
    }
    // Unknown, but for a member.
    let mut unicast = broadcast(3, [0x88, 0xb5]);
    unicast[..6].copy_from_slice(&mac(77).0);
    rig.send(3, std::slice::from_ref(&unicast));
    assert!(rig.left(0).is_empty() && rig.left(1) == [unicast.clone()] && rig.left(2).len() == 1);
    unicast[..6].copy_from_slice(&mac(0).0);
    rig.send(3, std::slice::from_ref(&unicast));
    assert!(rig.left(0) == [unicast.clone()] && rig.left(1).is_empty());
    // A question for a member is answered in its name, also if it is asked of it alone.
    let mut ask = arp_request(mac(3), ip(3), ip(0)).to_vec();
    for _ in 0..2 {
        rig.send(3, std::slice::from_ref(&ask));
        let [answer] = &rig.left(3)[..] else {
            panic!("one answer")
        };
        assert_eq!(answer[..14], [&mac(3).0[..], &mac(0).0, &[8, 6]].concat());
        assert_eq!(
            answer[20..32],
            [&[0, 2][..], &mac(0).0, &ip(0).octets()].concat()
        );
        assert!((0..3).all(|port| rig.left(port).is_empty()));
        ask[..6].copy_from_slice(&mac(0).0);
    }
    // For others, and for the switch, as before.
    let ask = arp_request(mac(3), ip(3), ip(1)).to_vec();
    rig.send(3, std::slice::from_ref(&ask));
    assert!(rig.left(1) == [ask] && rig.left(0).is_empty() && rig.left(2).len() == 1);
    let ask = arp_request(mac(3), ip(3), OWN.ip).to_vec();
    rig.send(3, std::slice::from_ref(&ask));
    assert_eq!(rig.left(3)[0][22..28], OWN.mac.0);
    // What a member floods goes to all others, and after the session it hears them again.
    let own = broadcast(0, [0x86, 0xdd]);
    rig.send(0, std::slice::from_ref(&own));
    for port in 1..4 {
        assert!(rig.left(port) == [own.clone()]);
    }
    rig.unbind(7);
    rig.send(3, std::slice::from_ref(&ipv6));
    assert!(rig.left(0) == [ipv6]);
    let report = rig.end();
    let spared: Vec<_> = report.rare.iter().map(|port| port.floods_spared).collect();
    assert_eq!(spared, [3, 0, 0, 0]);
}

/// A job of Tally's own on the same ports in the same turns.
fn native_jobs_run_beside(eal: &Eal) {
    let mut rig = Rig::new(eal, "both", 3, true);
    assert!(rig.bind(&session(7, Size::B256, &[0, 1])));
    let native = |rank: u8, fragment: u32| {
        let addresses = Addresses {
            src_mac: mac(100 + rank),
            dst_mac: OWN.mac,
            src_ip: ip(100 + rank),
            src_port: 40000,
            dst_port: OWN.base_port,
            ..addresses(0)
        };
        let mut frame = vec![0; tally_wire::HEADERS_BYTES];
        tally_wire::frame::emit(&mut frame, &addresses, &native_header(rank, fragment, 256));
        frame.extend(std::iter::repeat_n(fragment as u8, 256));
        frame
    };
    let h = |slot| header(Size::B256, slot, false);
    for host in [0, 1] {
        let mixed: Vec<_> = (0..8)
            .flat_map(|n| [native(host, u32::from(n)), request(host, &h(n))])
            .collect();
        rig.send(host, &mixed);
    }
    for host in [0, 1] {
        let (ours, theirs): (Vec<_>, Vec<_>) = rig.left(host).into_iter().partition(|f| f[0] == 1);
        assert_eq!(ours.len(), 8);
        for (fragment, frame) in ours.iter().enumerate() {
            let sums = frame[tally_wire::HEADERS_BYTES..].iter();
            assert!(sums.copied().all(|byte| byte == 2 * fragment as u8));
            assert_eq!(frame[32..34], JOB.0.to_be_bytes());
        }
        let expected: Vec<_> = (0..8).map(|n| reply(host, &h(n), &[0, 1])).collect();
        assert!(theirs == expected);
    }
    let report = rig.end();
    assert_eq!(report.counters.results, 8);
    assert_eq!(report.counters.drops.total(), 0);
}

/// `net_tap` checks checksums as a NIC does; those of the published clients are wrong.
fn what_hardware_says_of_checksums_does_not_count(eal: &Eal) {
    let name = format!("ts{}", std::process::id() % 100_000);
    let pool = pool(eal, "tapp");
    let Ok(port) = Port::vdev(eal, "net_tap9", &format!("iface={name}")) else {
        eprintln!("SKIPPED: no net_tap here, which wants root");
        return;
    };
    assert!(port.info().rx_checksum && port.info().tx_multi_segment);
    let config = PortConfig {
        tx_multi_segment: true,
        ..PortConfig::default()
    };
    let mut started = port
        .configure(&config, std::slice::from_ref(&pool))
        .unwrap()
        .start()
        .unwrap();
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    let up = std::process::Command::new("ip")
        .args(["link", "set", &name, "up"])
        .status();
    assert!(up.unwrap().success());
    let rx = vec![(PortId(0), started.rx.pop().unwrap())];
    let tx = vec![Ok((started.tx.pop().unwrap(), QueueConfig::default()))];
    let ways = handover(1).pop().unwrap();
    let member = |rank: u8| Member {
        port: PortId(0),
        mac: mac(rank),
        ip: ip(rank),
        udp_port: 40000,
    };
    let config = SwitchmlConfig {
        sessions: 1,
        slots: SLOTS,
        held: HELD,
        shards: 1,
        shard: 0,
    };
    let switchml = Some((config, true));
    let (core, handle) = switchml_core(rx, tx, ways, &pool, 256, member, switchml);
    let core = std::thread::spawn(move || core.run());
    let (bound, wait) = bounded(1);
    let whereabouts = Arc::new(Whereabouts::new(2));
    let bound = Box::new(move |bound_it| bound.send(bound_it).unwrap());
    let command = Command::Bind(session(7, Size::B256, &[1, 2]), whereabouts, bound);
    handle.commands.send(command.into()).unwrap();
    assert!(wait.recv_timeout(PATIENCE).unwrap());
    {
        let mut ready = Ready::new().unwrap();
        let (mut from_wire, mut wire) = tally_packet::open(&name, &pool, &mut ready).unwrap();
        let h = header(Size::B256, 2, false);
        // Tally's own with a checksum as wrong is dropped.
        let mut ours = request(1, &h);
        ours[..6].copy_from_slice(&OWN.mac.0);
        ours[36..38].copy_from_slice(&OWN.base_port.to_be_bytes());
        let frames = [ours, request(1, &h), request(2, &h)];
        let mut out: Vec<_> = frames.iter().map(|f| pool.alloc_copy(f).unwrap()).collect();
        wire.burst(&mut out);
        let (mut got, mut burst) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while got.len() < 2 && start.elapsed() < PATIENCE {
            ready.look(Duration::from_millis(1));
            from_wire.burst(&mut burst, 32);
            got.extend(burst.drain(..).map(|frame| whole(&frame)));
        }
        assert!(got == [reply(1, &h, &[1, 2]), reply(2, &h, &[1, 2])]);
    }
    handle.stop.store(true, Ordering::Relaxed);
    let report = core.join().unwrap();
    assert_eq!(report.counters.dropped(DropReason::Checksum), 1);
    assert_eq!(report.switchml.unwrap().sessions[0].counters.results, 1);
    drop(started);
    assert!(pool.is_whole());
}
