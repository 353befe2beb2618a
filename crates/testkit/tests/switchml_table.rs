//! SwitchML's dialect at a real switch, frame by frame: every row of the protocol's table as a
//! scripted exchange, with frames that this file builds and reads byte by byte.
//!
//! One switch with four `net_memif` ports; the workers of each session are behind them in turn, all
//! played by this process, which has the other ends. Sessions follow each other, with the same
//! stations: each ends the one before. Nothing came when two fences on each port, ARP requests that
//! the switch answers behind all else, brought nothing but their answers.
//!
//! Uses the release program (`cargo build --release`). Any user may run it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, Mbuf, Mempool, MempoolConfig, PortConfig, RxQueue, StartedPort, TxQueue,
    connect,
};
use tally_schema::switch::report::Report;
use tally_testkit::cluster::Program;
use tally_testkit::replay::Switch;
use tally_testkit::switchml::control::{Control, Member};
use tally_testkit::switchml::link::Peer;
use tally_wire::Mac;
use tally_wire::neighbour::{arp_request, arp_sender};
use tally_wire::switchml::Size;

const SWITCH: Peer = Peer {
    mac: Mac([0x02, 0x54, 0x41, 0x4c, 0x4c, 0x59]),
    ip: Ipv4Addr::new(10, 84, 0, 254),
};
/// The address of the switch that each station was told, by the station's own.
static TOLD: Mutex<BTreeMap<[u8; 6], Mac>> = Mutex::new(BTreeMap::new());

/// The switch, as a station knows it: at the address that it was told, or at the public one.
fn switch_of(station: Peer) -> Peer {
    let told = TOLD.lock().unwrap();
    Peer {
        mac: told.get(&station.mac.0).copied().unwrap_or(SWITCH.mac),
        ..SWITCH
    }
}

const PORTS: usize = 4;
const SLOTS: u16 = 1000;
const PATIENCE: Duration = Duration::from_secs(5);

/// One of the switch's ports, seen from outside.
struct Line {
    rx: RxQueue,
    tx: TxQueue,
    came: VecDeque<Vec<u8>>,
    _port: tally_dpdk::Port<tally_dpdk::Started>,
}

struct Rig {
    lines: Vec<Line>,
    pool: Mempool,
    switch: Program,
    stats: PathBuf,
    controller: SocketAddr,
    sessions: u64,
    folder: tempfile::TempDir,
}

/// What a frame says behind UDP, and whence and whither.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    own_port: u16,
    switch_port: u16,
    /// Bytes 42 to 51 of the frame.
    kind_and_size: u8,
    job: u8,
    packet: [u8; 4],
    place: u16,
    exponents: [i8; 2],
    elements: Vec<i32>,
}

const SET: u16 = 0x8000;

/// A message of 32 elements in a slot and set, all of them `value`.
fn message(place: u16, value: i32) -> Message {
    Message {
        own_port: 4000,
        switch_port: 0xbee0,
        kind_and_size: 0x10,
        job: 7,
        packet: [1, 2, 3, 4],
        place,
        exponents: [0, 0],
        elements: vec![value; 32],
    }
}

impl Message {
    /// With another packet number and job.
    fn named(&self, job: u8, packet: u32) -> Self {
        Self {
            job,
            packet: packet.to_ne_bytes(),
            ..self.clone()
        }
    }

    fn with(&self, exponents: [i8; 2]) -> Self {
        Self {
            exponents,
            ..self.clone()
        }
    }

    /// What must come of it for this sum.
    fn sum(&self, value: i32) -> Self {
        Self {
            elements: vec![value; self.elements.len()],
            ..self.clone()
        }
    }

    fn payload(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind_and_size, self.job];
        bytes.extend(self.packet);
        bytes.extend(self.place.to_be_bytes());
        bytes.extend(self.exponents.map(i8::cast_unsigned));
        bytes.extend(self.elements.iter().flat_map(|x| x.to_be_bytes()));
        bytes
    }
}

/// The sum of 16-bit words (RFC 1071).
fn words(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn udp_frame(from: (Peer, u16), to: (Peer, u16), ttl: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to.0.mac.0, from.0.mac.0].concat();
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((payload.len() as u16 + 28).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, ttl, 17, 0, 0]);
    frame.extend(from.0.ip.octets());
    frame.extend(to.0.ip.octets());
    frame.extend(from.1.to_be_bytes());
    frame.extend(to.1.to_be_bytes());
    frame.extend((payload.len() as u16 + 8).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// As published clients send it: no IPv4 checksum, and for UDP that of the pseudo header.
fn request(from: Peer, message: &Message) -> Vec<u8> {
    request_to(switch_of(from), from, message)
}

fn request_to(switch: Peer, from: Peer, message: &Message) -> Vec<u8> {
    let payload = message.payload();
    let to = (switch, message.switch_port);
    let mut frame = udp_frame((from, message.own_port), to, 128, &payload);
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, 17]);
    pseudo.extend(&frame[38..40]);
    frame[40..42].copy_from_slice(&words(&pseudo).to_be_bytes());
    frame
}

/// As the switch must answer.
fn reply(to: Peer, message: &Message) -> Vec<u8> {
    let from = (switch_of(to), message.switch_port);
    let mut frame = udp_frame(from, (to, message.own_port), 64, &message.payload());
    let checksum = !words(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// A rank's station, in a group of them that no other shares.
fn station(group: u8, rank: u8) -> Peer {
    Peer {
        mac: Mac([0x02, 0x84, 0, 0, group, rank]),
        ip: Ipv4Addr::new(10, 84, group + 1, rank + 1),
    }
}

/// The port that a rank is behind.
fn port_of(rank: u8) -> usize {
    usize::from(rank) % PORTS
}

impl Line {
    fn send(&mut self, pool: &Mempool, frame: &[u8]) {
        let mut out: Vec<Mbuf> = pool.alloc_copy(frame).into_iter().collect();
        let start = Instant::now();
        while !out.is_empty() {
            self.tx.burst(&mut out);
            assert!(start.elapsed() < PATIENCE, "the port takes nothing");
        }
    }

    fn poll(&mut self) {
        let mut burst = Vec::new();
        self.rx.burst(&mut burst, 32);
        for mut mbuf in burst {
            assert!(mbuf.is_contiguous() || mbuf.linearize(), "in pieces");
            self.came.push_back(mbuf.data().to_vec());
        }
    }

    fn next(&mut self) -> Vec<u8> {
        let start = Instant::now();
        while self.came.is_empty() {
            assert!(start.elapsed() < PATIENCE, "nothing comes");
            self.poll();
        }
        self.came.pop_front().unwrap()
    }

    /// Waits until the switch has taken all that was sent before, and all of its answers are here.
    fn fence(&mut self, pool: &Mempool, number: u8) {
        let own = (
            Mac([0x02, 0x84, 0, 0, 0xff, number]),
            Ipv4Addr::new(10, 84, 0, 200 + number),
        );
        for _ in 0..2 {
            self.send(pool, &arp_request(own.0, own.1, SWITCH.ip));
            let start = Instant::now();
            let is_answer = |frame: &Vec<u8>| arp_sender(frame, SWITCH.ip).is_some();
            let at = loop {
                if let Some(at) = self.came.iter().position(is_answer) {
                    break at;
                }
                assert!(start.elapsed() < PATIENCE, "the fence does not answer");
                self.poll();
            };
            self.came.remove(at);
        }
    }
}

impl Rig {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        // Another process may take the port before the switch does; then the switch says so.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let controller = listener.local_addr().unwrap();
        drop(listener);
        let device = |port: usize, role: &str| {
            let socket = file("memif.sock").display().to_string();
            format!(
                "net_memif{port},role={role},id={port},socket={socket},socket-abstract=no,bsize=9216,rsize=8"
            )
        };
        let port = |port| {
            let device = device(port, "server");
            format!(r#"{{"name": "port{port}", "device": "{device}", "mtu": 9000}}"#)
        };
        let ports: Vec<_> = (0..PORTS).map(port).collect();
        let (config, stats) = (file("switch.json"), file("switch.sock"));
        let text = format!(
            r#"{{"address": {{"mac": "{}", "ip": "{}"}}, "ports": [{}], "stats_socket": "{}",
            "switchml": {{"listen": ["{controller}"], "sessions": 4, "slots": {SLOTS}, "held": 512}}}}"#,
            SWITCH.mac,
            SWITCH.ip,
            ports.join(", "),
            stats.display()
        );
        std::fs::write(&config, text).unwrap();
        let switch = Switch::at(&programs().join("tally-switch")).unwrap();
        let switch = switch.start(&config, &file("switch.log")).unwrap();
        let eal = Eal::init(&EalConfig::no_huge(256)).unwrap();
        let pool = MempoolConfig {
            frames: 4095,
            frame_bytes_max: 9216,
            ..MempoolConfig::default()
        };
        let pool = Mempool::new(&eal, "table", &pool).unwrap();
        let lines = (0..PORTS).map(|port| {
            let config = PortConfig {
                mtu: Some(9000),
                ..PortConfig::default()
            };
            let started = connect(&eal, &device(port, "client"), &config, &pool, PATIENCE);
            let StartedPort {
                port,
                mut rx,
                mut tx,
            } = started.unwrap();
            Line {
                rx: rx.remove(0),
                tx: tx.remove(0),
                came: VecDeque::new(),
                _port: port,
            }
        });
        Self {
            lines: lines.collect(),
            pool,
            switch,
            stats,
            controller,
            sessions: 0,
            folder,
        }
    }

    /// A session whose stations are the first of a group.
    fn session(&mut self, group: u8, workers: u8, size: Size) -> Job {
        self.sessions += 1;
        let control = Control::connect(&self.controller.to_string(), PATIENCE).unwrap();
        for rank in 0..workers {
            let station = station(group, rank);
            let member = Member {
                rank,
                workers,
                station,
                size,
            };
            let joined = control.udp_session(member.request(self.sessions)).unwrap();
            assert_eq!(
                (joined.session, joined.switch.ip),
                (self.sessions, SWITCH.ip)
            );
            assert_ne!(joined.switch.mac, SWITCH.mac);
            let mut told = TOLD.lock().unwrap();
            told.insert(station.mac.0, joined.switch.mac);
        }
        Job {
            group,
            workers,
            _control: control,
        }
    }

    fn send(&mut self, job: &Job, rank: u8, message: &Message) {
        self.send_frame(port_of(rank), &request(station(job.group, rank), message));
    }

    fn send_frame(&mut self, port: usize, frame: &[u8]) {
        self.lines[port].send(&self.pool, frame);
    }

    /// The next frame at a rank's port is this reply to it.
    #[track_caller]
    fn gets(&mut self, job: &Job, rank: u8, message: &Message) {
        let found = self.lines[port_of(rank)].next();
        let expected = reply(station(job.group, rank), message);
        assert_eq!(
            (&found[..expected.len().min(60)], found.len()),
            (&expected[..expected.len().min(60)], expected.len()),
            "rank {rank}"
        );
        assert_eq!(found, expected, "rank {rank}");
    }

    /// Each of the job's ranks gets this, in any order at each port.
    #[track_caller]
    fn all_get(&mut self, job: &Job, message: &Message) {
        for port in 0..PORTS {
            let ranks = (0..job.workers).filter(|rank| port_of(*rank) == port);
            let mut expected: Vec<_> = ranks
                .map(|rank| reply(station(job.group, rank), message))
                .collect();
            let mut found: Vec<_> = expected.iter().map(|_| self.lines[port].next()).collect();
            expected.sort();
            found.sort();
            assert_eq!(found, expected, "port {port}");
        }
    }

    /// No port receives a frame.
    #[track_caller]
    fn silent(&mut self) {
        for (number, line) in (0..).zip(&mut self.lines) {
            line.fence(&self.pool, number);
            assert_eq!(line.came.len(), 0, "{:x?} at port {number}", line.came);
        }
    }

    fn report(&self) -> Report {
        let mut text = Vec::new();
        let mut stream = UnixStream::connect(&self.stats).unwrap();
        stream.read_to_end(&mut text).unwrap();
        simd_json::from_slice(&mut text).unwrap()
    }

    /// A line of the log with all of these words, in the end.
    #[track_caller]
    fn logged(&self, words: &[&str]) {
        let start = Instant::now();
        loop {
            let log = std::fs::read_to_string(self.folder.path().join("switch.log")).unwrap();
            let found = |line: &str| words.iter().all(|word| line.contains(word));
            if log.lines().any(found) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{words:?} not in {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn drops(&self) -> BTreeMap<String, u64> {
        let report = self.report();
        let drops = report.drops.iter();
        drops.map(|(reason, n)| (reason.to_string(), *n)).collect()
    }

    /// Sends a frame that must be dropped, for this reason.
    #[track_caller]
    fn dropped(&mut self, port: usize, frame: &[u8], reason: &str) {
        let before = self.drops();
        self.send_frame(port, frame);
        self.silent();
        let mut expected = before;
        *expected.entry(reason.into()).or_default() += 1;
        assert_eq!(self.drops(), expected);
    }
}

struct Job {
    group: u8,
    workers: u8,
    _control: Control,
}

fn first_middle_and_last(rig: &mut Rig) {
    let job = rig.session(0, 3, Size::B128);
    for (rank, value) in [(2, 1), (0, 20)] {
        rig.send(&job, rank, &message(5, value).named(rank, 9));
        rig.silent();
    }
    let last = message(5, 300).named(99, 0xdead_beef);
    rig.send(&job, 1, &last);
    rig.all_get(&job, &last.sum(321));
    rig.silent();
}

fn duplicates_before_and_after_completion(rig: &mut Rig) {
    let job = rig.session(0, 3, Size::B128);
    let m = message(0, 1);
    rig.send(&job, 0, &m);
    let again = request(station(0, 0), &message(0, 1000));
    rig.dropped(port_of(0), &again, "duplicate");
    rig.send(&job, 1, &m);
    rig.send(&job, 2, &m);
    rig.all_get(&job, &m.sum(3));
    // With the job and packet of the retransmission, whose elements do not matter.
    for rank in [1, 0, 2, 2] {
        let again = message(0, 77).named(rank + 40, 123).with([9, 9]);
        rig.send(&job, rank, &again);
        rig.gets(&job, rank, &again.sum(3).with([0, 0]));
    }
    rig.silent();
}

fn both_exponents_by_maximum(rig: &mut Rig) {
    let job = rig.session(0, 3, Size::B128);
    for (slot, exponents, most) in [
        (0, [[-128, 5], [-127, 127], [-126, 0]], [-126, 127]),
        (1, [[3, -1], [2, -2], [1, -3]], [3, -1]),
        (2, [[-5, 0], [-5, -128], [-128, -128]], [-5, 0]),
    ] {
        let m = message(slot, 1);
        for (rank, exponents) in (0..).zip(exponents) {
            rig.send(&job, rank, &m.with(exponents));
        }
        rig.all_get(&job, &m.sum(3).with(most));
        rig.send(&job, 1, &m.with([127, 127]));
        rig.gets(&job, 1, &m.sum(3).with(most));
    }
    rig.silent();
}

fn a_set_is_cleared_by_the_other_and_used_anew(rig: &mut Rig) {
    let job = rig.session(0, 2, Size::B128);
    for (round, set) in [0, SET, 0, SET, 0].into_iter().enumerate() {
        let value = 10_i32.pow(round as u32);
        let m = message((SLOTS - 1) | set, value)
            .with([round as i8, 0])
            .named(0, round as u32);
        rig.send(&job, 0, &m);
        rig.silent();
        rig.send(&job, 1, &m);
        // Nothing is left of what was there two rounds ago.
        rig.all_get(&job, &m.sum(2 * value));
    }
}

fn the_other_set_stays_until_all_have_moved_on(rig: &mut Rig) {
    let job = rig.session(0, 3, Size::B128);
    let (old, new) = (message(3, 1), message(3 | SET, 10));
    for rank in 0..3 {
        rig.send(&job, rank, &old);
    }
    rig.all_get(&job, &old.sum(3));
    rig.send(&job, 0, &new);
    rig.send(&job, 1, &new);
    // Who has not moved may ask for it still.
    rig.send(&job, 2, &old);
    rig.gets(&job, 2, &old.sum(3));
    // Who has, has no more to look for there.
    let late = request(station(0, 1), &old);
    rig.dropped(port_of(1), &late, "switchml-set");
    rig.send(&job, 2, &new);
    rig.all_get(&job, &new.sum(30));
    rig.silent();
}

fn sums_wrap(rig: &mut Rig) {
    let job = rig.session(0, 2, Size::B128);
    for (slot, a, b) in [
        (0, i32::MAX, 1),
        (1, i32::MIN, i32::MIN),
        (2, i32::MIN, -1),
        (3, 0x00ff_ffff, 1),
        (4, -1, 1),
    ] {
        rig.send(&job, 0, &message(slot, a));
        rig.send(&job, 1, &message(slot, b));
        rig.all_get(&job, &message(slot, a.wrapping_add(b)));
    }
}

fn one_worker_is_answered_each_time(rig: &mut Rig) {
    let job = rig.session(0, 1, Size::B128);
    for place in [0, SET, 0, 1, SET] {
        for _ in 0..2 {
            let m = message(place, i32::from(place)).with([4, -4]);
            rig.send(&job, 0, &m);
            rig.gets(&job, 0, &m);
        }
    }
    rig.silent();
}

fn sixty_four_workers(rig: &mut Rig) {
    let job = rig.session(0, 64, Size::B256);
    for place in [0, SET, 0] {
        let m = Message {
            kind_and_size: 0x11,
            elements: vec![1; 64],
            ..message(place, 0)
        };
        for rank in (0..63).rev() {
            rig.send(&job, rank, &m.with([rank.cast_signed(), 0]));
        }
        rig.silent();
        rig.send(&job, 63, &m);
        rig.all_get(&job, &m.sum(64).with([62, 0]));
        rig.send(&job, 33, &m);
        rig.gets(&job, 33, &m.sum(64).with([62, 0]));
    }
}

fn every_size(rig: &mut Rig) {
    for size in Size::ALL {
        let job = rig.session(0, 2, size);
        let elements: Vec<_> = (0..size.elements() as i32)
            .map(|n| n.wrapping_mul(0x0101_0101))
            .collect();
        let m = Message {
            kind_and_size: 0x10 | size.code(),
            elements,
            ..message(0, 0)
        };
        let doubled = m.elements.iter().map(|x| x.wrapping_mul(2)).collect();
        rig.send(&job, 0, &m);
        rig.send(&job, 1, &m);
        rig.all_get(
            &job,
            &Message {
                elements: doubled,
                ..m.clone()
            },
        );
        let other = if size == Size::B128 {
            Size::B256
        } else {
            Size::B128
        };
        let other = Message {
            kind_and_size: 0x10 | other.code(),
            elements: vec![1; other.elements()],
            ..m.clone()
        };
        rig.dropped(port_of(0), &request(station(0, 0), &other), "switchml-size");
        let unknown = Message {
            kind_and_size: 0x17,
            ..m
        };
        rig.dropped(
            port_of(0),
            &request(station(0, 0), &unknown),
            "switchml-size",
        );
    }
}

fn packets_of_no_session_are_dropped(rig: &mut Rig) {
    let _job = rig.session(0, 2, Size::B128);
    let m = message(0, 1);
    let frame = |station, m: &Message| request(station, m);
    rig.dropped(2, &frame(station(0, 2), &m), "switchml-no-session");
    // A member's address of one kind, and not of the other.
    let half = Peer {
        ip: station(0, 2).ip,
        ..station(0, 1)
    };
    rig.dropped(1, &frame(half, &m), "switchml-no-session");
    let half = Peer {
        mac: station(0, 2).mac,
        ..station(0, 1)
    };
    rig.dropped(1, &frame(half, &m), "switchml-no-session");
    rig.dropped(
        0,
        &frame(station(0, 0), &message(SLOTS, 1)),
        "switchml-slot",
    );
    rig.dropped(
        0,
        &frame(station(0, 0), &message(0x3fff, 1)),
        "switchml-slot",
    );
    // Those of RoCE, and none at all.
    for kind in [0x00, 0x20, 0x30, 0xf0] {
        let m = Message {
            kind_and_size: kind,
            ..m.clone()
        };
        rig.dropped(0, &frame(station(0, 0), &m), "type");
    }
    let short = Message {
        elements: vec![1; 31],
        ..m.clone()
    };
    rig.dropped(0, &frame(station(0, 0), &short), "payload-length");
    let long = Message {
        elements: vec![1; 33],
        ..m.clone()
    };
    rig.dropped(0, &frame(station(0, 0), &long), "payload-length");
}

/// A host behind port 2 speaks in a worker's name before the worker does, with what everybody may
/// know.
fn forged_first_frames_change_nothing(rig: &mut Rig) {
    let job = rig.session(0, 2, Size::B128);
    let victim = station(0, 0);
    for to in [SWITCH, switch_of(station(0, 1))] {
        for place in [0, SET] {
            let forged = request_to(to, victim, &message(place, 1_000_000));
            rig.dropped(2, &forged, "switchml-forged");
        }
    }
    for place in [0, SET] {
        let m = message(place, 10);
        rig.send(&job, 1, &m);
        rig.silent();
        rig.send(&job, 0, &message(place, 1));
        rig.all_get(&job, &message(place, 11));
    }
    rig.silent();
    rig.logged(&["rank 0", "port port2", "switchml-forged"]);
}

/// A forger has read a worker's frames: the switch cannot tell which of the two is the worker.
fn a_worker_at_two_ports_ends_its_session(rig: &mut Rig) {
    let job = rig.session(0, 2, Size::B128);
    rig.send(&job, 0, &message(0, 1));
    rig.silent();
    rig.dropped(2, &request(station(0, 0), &message(1, 1)), "switchml-port");
    rig.send(&job, 1, &message(0, 1));
    rig.silent();
    let id = format!("session {:#x} ends", rig.sessions);
    rig.logged(&[&id, "rank 0", "from port port0 and from port port2"]);
    rig.dropped(
        0,
        &request(station(0, 0), &message(0, 1)),
        "switchml-no-session",
    );
}

fn replies_go_where_the_worker_last_sent_from_for_the_slot(rig: &mut Rig) {
    let job = rig.session(0, 2, Size::B128);
    let from = |own_port, switch_port, slot| Message {
        own_port,
        switch_port,
        ..message(slot, 1)
    };
    // Slots of two threads of one worker.
    rig.send(&job, 0, &from(4000, 0xbee0, 0));
    rig.send(&job, 0, &from(4001, 0xbee5, 1));
    rig.send(&job, 1, &from(5000, 0xbee0, 1));
    rig.gets(&job, 0, &from(4001, 0xbee5, 1).sum(2));
    rig.gets(&job, 1, &from(5000, 0xbee0, 1).sum(2));
    // It moves, and says so by a duplicate that is dropped. The switch has seen it before the other
    // worker's packet comes by another port.
    let moved = request(station(0, 0), &from(4444, 0xbeef, 0));
    rig.dropped(port_of(0), &moved, "duplicate");
    rig.send(&job, 1, &from(65535, 0xbee1, 0));
    rig.gets(&job, 0, &from(4444, 0xbeef, 0).sum(2));
    rig.gets(&job, 1, &from(65535, 0xbee1, 0).sum(2));
    rig.send(&job, 1, &from(1, 0xbeea, 0));
    rig.gets(&job, 1, &from(1, 0xbeea, 0).sum(2));
    rig.silent();
}

fn bits_without_meaning_are_ignored_and_not_sent(rig: &mut Rig) {
    let job = rig.session(0, 2, Size::B128);
    let m = message(9 | SET, 1);
    let odd = Message {
        kind_and_size: 0x18,
        place: m.place | 0x4000,
        ..m.clone()
    };
    rig.send(&job, 0, &odd);
    rig.send(&job, 1, &odd);
    rig.all_get(&job, &m.sum(2));
}

fn checksums_do_not_matter(rig: &mut Rig) {
    let job = rig.session(0, 2, Size::B128);
    for (slot, checksums) in [(0, [0, 0]), (1, [0xffff, 0xffff]), (2, [1, 2])] {
        let m = message(slot, 1);
        for rank in 0..2 {
            let mut frame = request(station(0, rank), &m);
            frame[24..26].copy_from_slice(&u16::to_be_bytes(checksums[0]));
            frame[40..42].copy_from_slice(&u16::to_be_bytes(checksums[1]));
            rig.send_frame(port_of(rank), &frame);
        }
        rig.all_get(&job, &m.sum(2));
    }
}

fn sessions_have_slots_of_their_own(rig: &mut Rig) {
    let jobs = [(0, 2), (1, 3), (2, 2)].map(|(group, n)| rig.session(group, n, Size::B128));
    let m = |job: &Job| message(0, 10_i32.pow(job.group.into())).named(job.group, 5);
    for job in &jobs {
        for rank in 0..job.workers - 1 {
            rig.send(job, rank, &m(job));
        }
    }
    rig.silent();
    for job in &jobs {
        rig.send(job, job.workers - 1, &m(job));
        rig.all_get(
            job,
            &m(job).sum(m(job).elements[0] * i32::from(job.workers)),
        );
    }
    rig.silent();
}

fn a_session_that_is_set_up_anew_knows_nothing_of_the_old_one(rig: &mut Rig) {
    let old = rig.session(0, 2, Size::B128);
    rig.send(&old, 0, &message(0, 1));
    rig.send(&old, 1, &message(1, 1));
    rig.silent();
    let new = rig.session(0, 2, Size::B128);
    let m = message(0, 100);
    rig.send(&new, 1, &m);
    rig.silent();
    rig.send(&new, 0, &m);
    rig.all_get(&new, &m.sum(200));
    drop(old);
    rig.send(&new, 0, &m);
    rig.gets(&new, 0, &m.sum(200));
}

fn whom_others_wait_for_is_in_the_report(rig: &mut Rig) {
    let job = rig.session(0, 3, Size::B128);
    rig.send(&job, 0, &message(0, 1));
    rig.send(&job, 2, &message(0, 1));
    std::thread::sleep(Duration::from_millis(1200));
    let sessions = rig.report().switchml.unwrap().sessions;
    let session = sessions
        .iter()
        .find(|session| session.id == format!("{:#x}", rig.sessions));
    let ranks = &session.unwrap_or_else(|| panic!("{sessions:?}")).ranks;
    assert_eq!(
        [0, 1, 2].map(|rank| ranks[rank].counters.behind),
        [0, 1, 0],
        "{sessions:?}"
    );
    assert!(
        ranks[1].counters.behind_s > 1.0 && ranks[1].counters.frames == 0,
        "{sessions:?}"
    );
    rig.send(&job, 1, &message(0, 1));
    rig.all_get(&job, &message(0, 3));
    let sessions = rig.report().switchml.unwrap().sessions;
    assert!(
        sessions
            .iter()
            .flat_map(|s| &s.ranks)
            .all(|rank| rank.counters.behind == 0),
        "{sessions:?}"
    );
}

type Row = fn(&mut Rig);

#[test]
fn every_row_of_the_table() {
    let _alone = alone();
    let mut rig = Rig::start();
    let rows: [(&str, Row); 18] = [
        ("first, middle, last", first_middle_and_last),
        ("duplicates", duplicates_before_and_after_completion),
        ("exponents", both_exponents_by_maximum),
        (
            "clearing and reuse",
            a_set_is_cleared_by_the_other_and_used_anew,
        ),
        (
            "the shadow copy",
            the_other_set_stays_until_all_have_moved_on,
        ),
        ("wrap", sums_wrap),
        ("one worker", one_worker_is_answered_each_time),
        ("64 workers", sixty_four_workers),
        ("sizes", every_size),
        ("strangers", packets_of_no_session_are_dropped),
        ("forged frames", forged_first_frames_change_nothing),
        ("two ports", a_worker_at_two_ports_ends_its_session),
        (
            "addresses",
            replies_go_where_the_worker_last_sent_from_for_the_slot,
        ),
        ("spare bits", bits_without_meaning_are_ignored_and_not_sent),
        ("checksums", checksums_do_not_matter),
        ("tenants", sessions_have_slots_of_their_own),
        (
            "a new session",
            a_session_that_is_set_up_anew_knows_nothing_of_the_old_one,
        ),
        ("stragglers", whom_others_wait_for_is_in_the_report),
    ];
    for (name, row) in rows {
        // Read when the test fails.
        println!("{name}");
        row(&mut rig);
    }
    // It has its buffers back, or says that it has not.
    let Rig { switch, .. } = rig;
    switch.stop(Duration::from_secs(10)).unwrap();
}
