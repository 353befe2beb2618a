//! A switch with a card, as a process. This process is the hosts and a card in software, with
//! faults on demand.
//!
//! Three workers and a PS, as little of them as the protocol needs, sum one fragment after the
//! other. Their job is offloaded to the card, the card fails in each way that it can, and the job
//! resumes in software. Every result must be the sum of each contribution, once.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/card.rs"]
mod software_card;

use common::{JOB, KEY, OWN, connect, fixed_job, wait_until, write_config};
use software_card::{Fault, SoftwareCard};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tally_bridge::tags;
use tally_dpdk::{Eal, EalConfig, Mempool, MempoolConfig, StartedPort};
use tally_schema::switch::config::{CardJobs, CardSection, FixedMember, Registers};
use tally_schema::switch::report::{CardState, Report};
use tally_wire::frame::{UDP_END, emit, group_of};
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, HEADERS_BYTES, Header,
    JobId, Key, Kind, Mac, Rank, UdpFrame,
};

const WORKERS: u8 = 3;
const ALL: u64 = (1 << WORKERS) - 1;
/// The PS's place among the hosts, and the card's.
const PS: u8 = WORKERS;
const CARD: u8 = WORKERS + 1;
const PAYLOAD: usize = 256;
const WINDOW: u32 = 32;
/// After so long without a result, a worker and the PS ask again.
const RTO: Duration = Duration::from_millis(20);
/// A job may stand still for so long when its card fails.
const STANDSTILL: Duration = Duration::from_secs(1);

fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

fn ip(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, host + 1)
}

fn udp_port(host: u8) -> u16 {
    40000 + u16::from(host)
}

/// What rank adds to each element of a fragment.
fn value(rank: u8, fragment: u32) -> i32 {
    (1000 * (i32::from(rank) + 1)) * (fragment.cast_signed() % 1000 + 1)
}

fn sum(bitmap: u64, fragment: u32) -> i32 {
    (0..WORKERS)
        .filter(|rank| bitmap & 1 << rank != 0)
        .map(|rank| value(rank, fragment))
        .sum()
}

/// DPDK, once for this process.
fn dpdk() -> &'static (Eal, Mempool) {
    static DPDK: OnceLock<(Eal, Mempool)> = OnceLock::new();
    DPDK.get_or_init(|| {
        let eal = Eal::init(&EalConfig::no_huge(128)).unwrap();
        let config = MempoolConfig {
            frames: 16383,
            cache_frames: 0,
            frame_bytes_max: 2048,
            socket: None,
        };
        let pool = Mempool::new(&eal, "hosts", &config).unwrap();
        (eal, pool)
    })
}

/// One switch at a time: the machine has few CPUs, and a card that does not answer in time has
/// failed.
static ALONE: Mutex<()> = Mutex::new(());

struct World {
    folder: tempfile::TempDir,
    switch: Option<Child>,
    card: SoftwareCard,
    hosts: Vec<StartedPort>,
    cores: u32,
    // --- The members. ---
    /// By rank and fragment.
    results: Vec<BTreeMap<u32, i32>>,
    sent: Vec<u32>,
    /// When a contribution was last sent.
    asked: Vec<BTreeMap<u32, Instant>>,
    /// Pieces of fragments at the PS, with their ranks, and when it asked last.
    pieces: BTreeMap<u32, (u64, Instant, bool)>,
    done: BTreeMap<u32, i32>,
    last: Instant,
    longest: Duration,
    _alone: MutexGuard<'static, ()>,
}

/// The job is listed for the card.
fn listed() -> CardJobs {
    CardJobs::List(vec![JOB.0])
}

fn port_name(host: u8) -> String {
    format!("p{host}")
}

impl World {
    fn new(cores: u32, jobs: CardJobs) -> Self {
        static NUMBERS: AtomicU16 = AtomicU16::new(0);
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let first = NUMBERS.fetch_add(u16::from(CARD) + 1, Ordering::SeqCst);
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("memif.sock");
        let arguments = |role: &str, id: u8| {
            format!(
                "role={role},id={id},socket={},socket-abstract=no,bsize=2048,rsize=9",
                socket.display()
            )
        };
        let port = |id: u8| {
            let device = format!("net_memif{id},{}", arguments("server", id));
            common::port(port_name(id), device)
        };
        let member = |host: u8| FixedMember {
            port: port_name(host),
            mac: mac(host),
            ip: ip(host),
            udp_port: udp_port(host),
        };
        let path = |name: &str| folder.path().join(name);
        let mut config = common::config(folder.path(), (0..=CARD).map(port).collect());
        config.cores = (0..cores as usize).collect();
        config.pool.slots = Some(128);
        config.window = 64;
        let workers = (0..WORKERS).map(member).collect();
        config.jobs = vec![fixed_job(PAYLOAD, workers, member(PS))];
        config.card = Some(CardSection {
            port: port_name(CARD),
            registers: Registers::Socket(path("card.sock")),
            jobs,
        });
        let switch = Command::new(env!("CARGO_BIN_EXE_tally-switch"))
            .arg("--config")
            .arg(write_config(folder.path(), &config))
            .arg("--report")
            .arg(path("report.json"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the switch listens", || {
            path("stats").exists() && socket.exists()
        });
        let (eal, pool) = dpdk();
        let mut hosts: Vec<_> = (0..=CARD)
            .map(|id| {
                connect(
                    eal,
                    pool,
                    first + u16::from(id),
                    &arguments("client", id),
                    1,
                )
            })
            .collect();
        let card = hosts.pop().unwrap();
        let card = SoftwareCard::start(card, pool, &path("card.sock"), 2);
        let ranks = usize::from(WORKERS);
        Self {
            folder,
            switch: Some(switch),
            card,
            hosts,
            cores,
            results: vec![BTreeMap::new(); ranks],
            sent: vec![0; ranks],
            asked: vec![BTreeMap::new(); ranks],
            pieces: BTreeMap::new(),
            done: BTreeMap::new(),
            last: Instant::now(),
            longest: Duration::ZERO,
            _alone: alone,
        }
    }

    fn report(&self) -> Report {
        let mut text = Vec::new();
        let stream = UnixStream::connect(self.folder.path().join("stats"));
        stream.unwrap().read_to_end(&mut text).unwrap();
        simd_json::from_slice(&mut text).unwrap()
    }

    fn has_job(&self) -> bool {
        self.report().jobs[0].on_card
    }

    /// Sums until the card has the job.
    fn run_until_on_card(&mut self) {
        let start = Instant::now();
        while !self.has_job() {
            assert!(start.elapsed() < common::PATIENCE, "{}", self.report());
            self.run(50);
        }
    }

    /// Ends the switch, in order and with all buffers in their pool.
    fn end(mut self) -> Report {
        let mut switch = self.switch.take().unwrap();
        let kill = Command::new("kill").arg(switch.id().to_string()).status();
        assert!(kill.unwrap().success());
        assert!(switch.wait().unwrap().success());
        let mut report = std::fs::read(self.folder.path().join("report.json")).unwrap();
        let report: Report = simd_json::from_slice(&mut report).unwrap();
        assert_eq!(report.frames_missing, Some(0));
        report
    }

    fn send_raw(&mut self, host: u8, frame: &[u8]) {
        let mut frames = vec![dpdk().1.alloc_copy(frame).unwrap()];
        wait_until("the switch takes a frame", || {
            self.hosts[usize::from(host)].tx[0].burst(&mut frames);
            frames.is_empty()
        });
    }

    fn send(&mut self, host: u8, header: &Header, value: i32) {
        let shard = (header.fragment.0 % self.cores) as u16;
        let addresses = Addresses {
            src_mac: mac(host),
            dst_mac: OWN.mac,
            src_ip: ip(host),
            dst_ip: OWN.ip,
            src_port: udp_port(host),
            dst_port: OWN.base_port + shard,
        };
        let mut frame = vec![0; HEADERS_BYTES];
        emit(&mut frame, &addresses, &secret().seal(*header));
        frame.extend(value.to_be_bytes().repeat(header.payload_bytes() / 4));
        self.send_raw(host, &frame);
    }

    fn contribute(&mut self, rank: u8, fragment: u32, flags: Flags) {
        self.asked[usize::from(rank)].insert(fragment, Instant::now());
        let header = Header {
            flags,
            ..header(Kind::Data, fragment, Rank(rank), 1 << rank)
        };
        self.send(rank, &header, value(rank, fragment));
    }

    /// Sums so many fragments more.
    fn run(&mut self, fragments: u32) {
        let end = self.sent[0] + fragments;
        self.last = Instant::now();
        let start = Instant::now();
        while self
            .results
            .iter()
            .any(|results| results.len() < end as usize)
        {
            assert!(start.elapsed() < common::PATIENCE, "{}", self.state());
            self.step(end);
        }
    }

    fn state(&self) -> String {
        let lens: Vec<_> = self.results.iter().map(BTreeMap::len).collect();
        format!(
            "{lens:?} of {:?}, PS {:?}\n{}",
            self.sent,
            self.pieces,
            self.report()
        )
    }

    fn step(&mut self, end: u32) {
        for rank in 0..WORKERS {
            let at = usize::from(rank);
            let open = self.results[at].len() as u32;
            let oldest = (open.saturating_sub(WINDOW)..)
                .find(|n| !self.results[at].contains_key(n))
                .unwrap();
            while self.sent[at] < end.min(oldest + WINDOW) {
                self.contribute(rank, self.sent[at], Flags::NONE);
                self.sent[at] += 1;
            }
            let late = |at: &Instant| at.elapsed() > RTO;
            let again: Vec<_> = self.asked[at]
                .iter()
                .filter(|(_, asked)| late(asked))
                .map(|(&n, _)| n)
                .collect();
            for fragment in again {
                self.asked[at].insert(fragment, Instant::now());
                let header = header(Kind::Probe, fragment, Rank(rank), 0);
                self.send(rank, &header, 0);
            }
        }
        for host in 0..=PS {
            let mut frames = Vec::new();
            self.hosts[usize::from(host)].rx[0].burst(&mut frames, 32);
            for mbuf in frames {
                self.receive(host, mbuf.data());
            }
        }
        let open: Vec<_> = self
            .pieces
            .iter()
            .filter(|(_, (_, asked, _))| asked.elapsed() > RTO)
            .map(|(&n, _)| n)
            .collect();
        for fragment in open {
            let (have, asked, reminded) = self.pieces.get_mut(&fragment).unwrap();
            *asked = Instant::now();
            let have = *have;
            if std::mem::replace(reminded, true) {
                self.nack(fragment, ALL & !have);
            }
            let header = header(Kind::Remind, fragment, Rank::PS, 0);
            self.send(PS, &header, 0);
        }
    }

    fn receive(&mut self, host: u8, frame: &[u8]) {
        let Ok(udp) = UdpFrame::parse(frame) else {
            panic!("host {host} gets {frame:02x?}")
        };
        assert_eq!(frame[6..12], OWN.mac.0, "in the switch's own name");
        assert_eq!(udp.addresses.src_ip, OWN.ip);
        let header = Header::parse(udp.datagram(frame)).unwrap();
        assert_eq!((header.job, header.epoch), (JOB, Epoch(1)));
        let n = header.fragment.0;
        assert!(secret().verifies(&header), "{header:?}");
        let payload = &udp.datagram(frame)[HEADERS_BYTES - UDP_END..][..header.payload_bytes()];
        let found = payload
            .first_chunk()
            .map(|bytes| i32::from_be_bytes(*bytes));
        if header.kind.has_elements() {
            let is_part = header.kind == Kind::Partial;
            let expected = sum(if is_part { header.bitmap } else { ALL }, n);
            assert_eq!(found, Some(expected), "{header:?}");
            assert!(*payload == expected.to_be_bytes().repeat(PAYLOAD / 4));
        }
        if host == PS {
            return self.receive_at_ps(&header);
        }
        match header.kind {
            Kind::Result => {
                assert_eq!(udp.addresses.dst_ip, group_of(JOB));
                let rank = usize::from(host);
                self.asked[rank].remove(&n);
                if self.results[rank].insert(n, found.unwrap()).is_none() {
                    self.longest = self.longest.max(self.last.elapsed());
                    self.last = Instant::now();
                }
            }
            Kind::Nack => {
                assert_eq!(header.rank, Rank(host));
                if let Some(&result) = self.results[usize::from(host)].get(&n) {
                    let header = self::header(Kind::Result, n, Rank(host), ALL);
                    self.send(host, &header, result);
                } else if n < self.sent[usize::from(host)] {
                    self.contribute(host, n, Flags::RESEND);
                }
            }
            kind => panic!("a worker gets {kind:?}"),
        }
    }

    fn receive_at_ps(&mut self, header: &Header) {
        let n = header.fragment.0;
        match header.kind {
            Kind::Partial if self.done.contains_key(&n) => {
                if header.flags.has(Flags::RESEND) {
                    self.publish(n);
                }
            }
            Kind::Partial => {
                let (have, ..) = self.pieces.entry(n).or_insert((0, Instant::now(), false));
                if *have & header.bitmap != 0 {
                    let missing = header.bitmap & !*have;
                    return self.nack(n, missing);
                }
                *have |= header.bitmap;
                if *have == ALL {
                    self.pieces.remove(&n);
                    self.done.insert(n, sum(ALL, n));
                    self.publish(n);
                }
            }
            Kind::Probe if self.done.contains_key(&n) => self.publish(n),
            Kind::Probe => {
                let have = self.pieces.get(&n).map_or(0, |(have, ..)| *have);
                self.nack(n, ALL & !have);
            }
            Kind::NotHere if header.flags.has(Flags::FINISHED) => {
                self.pieces.remove(&n);
            }
            Kind::NotHere => {
                let have = self.pieces.get(&n).map_or(ALL, |(have, ..)| *have);
                self.nack(n, ALL & !have);
            }
            kind => panic!("a PS gets {kind:?}"),
        }
    }

    fn publish(&mut self, n: u32) {
        let header = header(Kind::Result, n, Rank::PS, ALL);
        self.send(PS, &header, self.done[&n]);
    }

    fn nack(&mut self, n: u32, ranks: u64) {
        for rank in (0..WORKERS).filter(|rank| ranks & 1 << rank != 0) {
            let header = header(Kind::Nack, n, Rank(rank), 1 << rank);
            self.send(PS, &header, 0);
        }
    }

    /// The card fails in mid-run; the job resumes in software soon, and returns to the card when
    /// that works again.
    fn fails(&mut self, fault: Fault, why: &[&str]) {
        self.run_until_on_card();
        let before = self.report().card.unwrap();
        self.longest = Duration::ZERO;
        let first = self.sent[0];
        // In the middle of a window.
        while self.results[0].len() < first as usize + 100 {
            self.step(first + 200);
        }
        self.card.fail(fault);
        let failed = Instant::now();
        let card = loop {
            self.run(50);
            let report = self.report();
            let card = report.card.unwrap();
            if card.state == CardState::Failed || card.events.failures > before.events.failures {
                assert!(!report.jobs[0].on_card);
                break card;
            }
            assert!(failed.elapsed() < STANDSTILL, "{fault:?} was not noticed");
        };
        for word in why {
            let text = card.why.as_deref().unwrap_or_default();
            assert!(
                text.contains(word),
                "{fault:?}: `{text}` does not say `{word}`"
            );
        }
        assert!(self.longest < STANDSTILL, "{fault:?}: {:?}", self.longest);
        eprintln!("{fault:?}: stood still for {:?}", self.longest);
        self.run(100);
        self.card.fail(Fault::None);
        self.run_until_on_card();
        self.run(100);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut switch) = self.switch.take() {
            let _ = switch.kill();
            let _ = switch.wait();
        }
    }
}

/// Of members that the configuration fixes.
fn secret() -> EpochSecret {
    let key: Key = KEY.parse().unwrap();
    key.epoch_secret(JOB, Epoch(1), 0)
}

fn header(kind: Kind, fragment: u32, rank: Rank, bitmap: u64) -> Header {
    let elements = kind.has_elements();
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
        element: if elements {
            Element::I32
        } else {
            Element::None
        },
        job: JOB,
        epoch: Epoch(1),
        fragment: FragmentId(fragment),
        rank,
        units: if elements { (PAYLOAD / 64) as u8 } else { 0 },
        bitmap: if kind == Kind::Data { bitmap } else { 0 },
        tag: AuthTag::NONE,
    }
}

#[test]
fn a_card_has_the_job_and_reports_say_so() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut w = World::new(if cpus > 1 { 2 } else { 1 }, listed());
    w.run_until_on_card();
    let before = w.report();
    w.run(2000);
    let after = w.report();
    for name in ["contributions", "results", "results_from_ps", "partials"] {
        assert_eq!(
            before.counters[name], after.counters[name],
            "{name} in software"
        );
    }
    let (before, after) = (before.card.unwrap(), after.card.unwrap());
    // Some are sent once more, where this machine is slow.
    assert!(after.traffic.results - before.traffic.results >= 2000);
    assert!(after.traffic.given - before.traffic.given >= 6000);
    assert_eq!((after.state, after.jobs), (CardState::Working, vec![7]));
    assert_eq!(
        (after.slots, after.places, after.events.failures),
        (256, 2, 0)
    );
    assert!(after.traffic.probes > 0);

    // Nothing else reaches the card, and nothing is learnt behind it.
    let taken = w.card.taken();
    let mut flood = vec![0xff; 60];
    flood[6..12].copy_from_slice(&mac(90).0);
    flood[12..14].copy_from_slice(&[0x88, 0xb6]);
    w.send_raw(0, &flood);
    let mut frames = Vec::new();
    wait_until("others are flooded to", || {
        w.hosts[1].rx[0].burst(&mut frames, 8) > 0
    });
    frames.clear();
    wait_until("others are flooded to", || {
        w.hosts[2].rx[0].burst(&mut frames, 8) > 0 && w.hosts[3].rx[0].burst(&mut frames, 8) > 0
    });
    assert_eq!(w.card.taken(), taken);
    w.run(10);
    let report = w.end();
    let card = report.card.as_ref().unwrap();
    assert!(card.counts.counters["results"] >= 2000, "mirrored: {card}");
    let text = report.to_string();
    assert!(text.contains("with PS, on the card"), "{text}");
    assert!(text.contains("card         working"), "{text}");
}

#[test]
fn what_a_card_may_not_send_reaches_no_host() {
    let mut w = World::new(1, listed());
    w.run_until_on_card();
    let to_group = |change: &dyn Fn(&mut Addresses, &mut Header)| {
        let group = group_of(JOB);
        let mut addresses = Addresses {
            src_mac: tags::mask_mac(0b111),
            dst_mac: Mac::of_group(group),
            src_ip: OWN.ip,
            dst_ip: group,
            src_port: OWN.base_port,
            dst_port: OWN.base_port,
        };
        let mut header = header(Kind::Result, 9999, Rank::SWITCH, ALL);
        change(&mut addresses, &mut header);
        let mut frame = vec![0; HEADERS_BYTES + header.payload_bytes()];
        emit(&mut frame, &addresses, &header);
        frame
    };
    let mut cut = to_group(&|_, _| ());
    cut.truncate(100);
    let frames = [
        // To ports without a worker: the PS's, the card's own, none.
        to_group(&|a, _| a.src_mac = tags::mask_mac(0b1000)),
        to_group(&|a, _| a.src_mac = tags::mask_mac(0b1_0001)),
        to_group(&|a, _| a.src_mac = tags::mask_mac(0)),
        // In another name, to another address, from nowhere.
        to_group(&|a, _| a.src_ip = ip(1)),
        to_group(&|a, _| a.dst_ip = ip(1)),
        to_group(&|a, _| a.src_mac = OWN.mac),
        to_group(&|a, _| a.src_mac = mac(2)),
        // What only others say.
        to_group(&|_, h| h.rank = Rank::PS),
        to_group(&|_, h| *h = header(Kind::Data, 9999, Rank(0), 1)),
        cut,
        vec![0xff; 60],
        vec![0; 14],
    ];
    let strays = [
        to_group(&|_, h| h.job = JobId(8)),
        to_group(&|_, h| h.epoch = Epoch(2)),
    ];
    let returned = to_group(&|a, _| a.dst_mac = tags::port_mac(tally_engine::PortId(0)));
    let mut returned = returned;
    returned[6..12].copy_from_slice(&mac(0).0);
    let drops = |report: &Report, name: &str| report.drops.get(name).copied().unwrap_or(0);
    let before = w.report();
    let expected = (frames.len() as u64, strays.len() as u64);
    for frame in frames.into_iter().chain(strays).chain([returned]) {
        w.card.inject(frame);
    }
    // Hosts look at all that they get.
    w.run(500);
    let after = w.report();
    let more = |name: &str| drops(&after, name) - drops(&before, name);
    assert_eq!(
        (more("card-frame"), more("card-stray")),
        expected,
        "{after}"
    );
    assert!(more("card-returned") >= 1);
    w.end();
}

#[test]
fn a_job_survives_registers_that_hang_or_end() {
    let mut w = World::new(1, listed());
    w.fails(Fault::Hang, &["not answered"]);
    w.fails(Fault::Gone, &["closed"]);
    w.fails(Fault::Deaf, &["data path has not answered"]);
    assert!(
        w.end().card.unwrap().events.failures >= 3,
        "a busy machine may add to them"
    );
}

#[test]
fn a_job_survives_registers_that_make_no_sense() {
    let mut w = World::new(1, CardJobs::Auto);
    w.fails(Fault::Ones, &["0xffffffff"]);
    w.fails(Fault::Stranger, &["0x12345678"]);
    w.fails(Fault::Broken, &["internal check"]);
    assert!(
        w.end().card.unwrap().events.failures >= 3,
        "a busy machine may add to them"
    );
}
