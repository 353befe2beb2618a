//! The process: what it does with its registers, its port, and signals.

#![allow(clippy::unwrap_used)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tally_bridge::{Card, CardError, Own, Socket, Window, registers, tags};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, Port, PortConfig, StartedPort,
};
use tally_engine::{Member, PortId, Roster};
use tally_wire::frame::{Addresses, emit};
use tally_wire::{
    AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Kind,
    Mac, Rank, UdpFrame,
};

/// A machine that runs all tests at once may be slow.
const PATIENCE: Duration = Duration::from_secs(30);

const OWN: Own = Own {
    mac: Mac([0x02, 0x54, 0x41, 0x4c, 0x4c, 0x59]),
    ip: Ipv4Addr::new(10, 84, 0, 254),
    base_port: 9000,
    shards: 2,
};

/// A card, and where it is.
struct Process {
    folder: tempfile::TempDir,
    child: Child,
}

impl Process {
    fn command(folder: &Path, port: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tally-card"));
        command
            .args(["run", "--json", "--port", port, "--registers"])
            .arg(folder.join("card.sock"))
            .args(more)
            .stdout(Stdio::piped());
        command
    }

    fn start(folder: tempfile::TempDir, port: &str, more: &[&str]) -> Self {
        let child = Self::command(folder.path(), port, more).spawn().unwrap();
        Self { folder, child }
    }

    /// There is no peer at the other end of its port.
    fn alone(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = lonely(folder.path());
        Self::start(folder, &port, more)
    }

    fn socket_path(&self) -> PathBuf {
        self.folder.path().join("card.sock")
    }

    fn socket(&self) -> Socket {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Socket::connect(self.socket_path()) {
                Ok(socket) => return socket,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// A connection that is served: the card may still begin, or have another driver, and no driver
    /// waits for long.
    fn served(&self) -> Socket {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut socket = self.socket();
            match socket.read(registers::ID) {
                Ok(id) => {
                    assert_eq!(id, registers::ID_VALUE);
                    return socket;
                }
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    fn card(&self) -> Card<Socket> {
        // It may not be there yet, or still have another driver.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Card::open(self.socket()) {
                Ok(card) => return card,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    /// Ends it, and gives its summary.
    fn end(mut self, signal: Signal) -> String {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let mut text = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert!(self.child.wait().unwrap().success());
        assert!(!self.socket_path().exists(), "it takes its socket with it");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lonely(folder: &Path) -> String {
    let socket = folder.join("memif.sock");
    format!(
        "net_memif0,role=client,id=0,socket-abstract=no,socket={}",
        socket.display()
    )
}

#[test]
fn registers_are_served_before_the_port_is_there() {
    let process = Process::alone(&["--seed", "7", "--registers-mode", "600"]);
    let mut card = process.card();
    let mode = fs::metadata(process.socket_path()).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let has = *card.capabilities();
    assert_eq!((has.slots, has.payload_bytes), (1024, 1024));
    for _ in 0..20 {
        card.alive().unwrap();
        sleep(Duration::from_millis(20));
    }
    card.set_own(&OWN).unwrap();
    assert_eq!(card.counters().unwrap().get("frames_in"), Some(0));
    drop(card);
    // The next driver.
    let mut card = process.card();
    card.alive().unwrap();
    drop(card);
    let summary = process.end(Signal::SIGTERM);
    assert!(summary.contains("\"seed\":7"), "{summary}");
    assert!(summary.contains("\"frames_in\":0"), "{summary}");
}

#[test]
fn a_card_may_say_that_it_has_few_places() {
    let process = Process::alone(&["--places", "2"]);
    let mut card = process.card();
    assert_eq!(card.capabilities().jobs, 2);
    for job in [7, 8] {
        card.load(&roster(job)).unwrap();
    }
    let error = card.load(&roster(9)).unwrap_err();
    assert!(error.to_string().contains("2 places"), "{error}");
    assert!(!error.is_failure());
    drop(card);
    process.end(Signal::SIGTERM);
}

#[test]
fn time_passes_while_nothing_happens() {
    let process = Process::alone(&[]);
    let mut socket = process.served();
    let uptime = |socket: &mut Socket| socket.read(registers::UPTIME).unwrap();
    let (since, before) = (Instant::now(), uptime(&mut socket));
    sleep(Duration::from_millis(500));
    let moved = uptime(&mut socket) - before;
    let passed = since.elapsed().as_millis() as u32;
    assert!(
        (450..=passed + 50).contains(&moved),
        "{moved} of {passed} ms"
    );
    process.end(Signal::SIGINT);
}

#[test]
fn a_driver_that_makes_no_sense_is_sent_away_and_the_next_one_served() {
    let process = Process::alone(&[]);
    drop(process.socket());
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[1, 1, 0, 0, 0, 0, 0, 0],
    ] {
        let mut stream = UnixStream::connect(process.socket_path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(nonsense).unwrap();
        let mut answer = Vec::new();
        // Closed, or reset for what it has not read.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    // Half a request, and gone.
    let mut stream = UnixStream::connect(process.socket_path()).unwrap();
    stream.write_all(&[1, 0, 0]).unwrap();
    drop(stream);
    drop(process.served());
    // What a card does not have.
    for address in [0x3fc, 0x041, 0x800, 0xfffc] {
        let mut socket = process.served();
        let outcome = socket.read(address);
        assert!(matches!(outcome, Err(CardError::Refused { .. })));
    }
    process.end(Signal::SIGTERM);
}

#[test]
fn a_socket_that_a_crash_left_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("card.sock")).unwrap());
    let port = lonely(folder.path());
    let process = Process::start(folder, &port, &[]);
    drop(process.card());
    let second = Process::command(process.folder.path(), &port, &[])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    assert!(told.contains("another card listens"), "{told}");
    drop(process.card());
    process.end(Signal::SIGTERM);
    // What is no socket is not removed.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("card.sock");
    fs::write(&file, "precious").unwrap();
    let refused = Process::command(folder.path(), &lonely(folder.path()), &[])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[test]
fn what_is_wrong_with_the_command_line_is_said() {
    let told = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Process::command(folder.path(), "net_nonsense0", more);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert!(!output.status.success(), "{more:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(told(&["--fault", "burn=1"]).contains("hang-after=N"));
    assert!(told(&["--fault", "drop=2"]).contains("probability"));
    assert!(told(&["--registers-mode", "rw"]).contains("660"));
    assert!(told(&["--places", "9"]).contains("1..=8"));
    let trace = told(&["--trace", "/nowhere/card.fst"]);
    assert!(trace.contains("--features trace") || trace.contains("cannot be written"));
    assert!(told(&[]).contains("net_nonsense0"));
    let told_of = |port: &str, registers: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tally-card"));
        command.args(["run", "--port", port, "--registers", registers]);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // What the switch has, and a card does not.
    let packet = told_of("packet0,iface=lo", "/tmp/card.sock");
    assert!(packet.contains("net_af_packet0,iface="), "{packet}");
    let nowhere = told_of(
        "net_memif0,role=client,id=0,socket=/nowhere/memif.sock,socket-abstract=no",
        "/nowhere/card.sock",
    );
    assert!(nowhere.contains("no folder /nowhere"), "{nowhere}");
}

/// The switch's end of a card's port.
struct Switch {
    eal: Eal,
    pool: Mempool,
    _thread: EalThread,
}

struct Link {
    port: StartedPort,
    arrived: Vec<Mbuf>,
}

impl Switch {
    fn new() -> Self {
        let eal = Eal::init(&EalConfig::no_huge(64)).unwrap();
        let thread = EalThread::register(&eal).unwrap();
        let pool = MempoolConfig {
            frames: 2047,
            ..MempoolConfig::default()
        };
        Self {
            pool: Mempool::new(&eal, "switch", &pool).unwrap(),
            eal,
            _thread: thread,
        }
    }

    fn open(&self, name: &str, arguments: &str) -> StartedPort {
        let port = Port::vdev(&self.eal, name, arguments).unwrap();
        let pools = std::slice::from_ref(&self.pool);
        let port = port.configure(&PortConfig::default(), pools).unwrap();
        port.start().unwrap()
    }

    /// A card behind a port of its own.
    fn attach(&self, number: u8, more: &[&str]) -> (Process, Card<Socket>, Link) {
        let folder = tempfile::tempdir().unwrap();
        let server = memif(folder.path(), "server", number);
        let port = self.open(&format!("net_memif{number}"), &server);
        let client = memif(folder.path(), "client", number);
        let process = Process::start(folder, &format!("net_memif0,{client}"), more);
        let link = Link::up(port);
        let mut card = process.card();
        card.set_own(&OWN).unwrap();
        (process, card, link)
    }
}

fn memif(folder: &Path, role: &str, number: u8) -> String {
    let socket = folder.join("memif.sock");
    let socket = socket.display();
    format!("role={role},id={number},socket-abstract=no,socket={socket}")
}

impl Link {
    fn up(port: StartedPort) -> Self {
        let deadline = Instant::now() + PATIENCE;
        while !port.port.link().unwrap().up {
            assert!(Instant::now() < deadline, "no link");
            sleep(Duration::from_millis(5));
        }
        let arrived = Vec::new();
        Self { port, arrived }
    }

    fn send(&mut self, switch: &Switch, frames: &[Vec<u8>]) {
        let deadline = Instant::now() + PATIENCE;
        let copies = frames.iter().map(|it| switch.pool.alloc_copy(it).unwrap());
        let mut frames: Vec<Mbuf> = copies.collect();
        while !frames.is_empty() {
            self.port.tx[0].burst(&mut frames);
            assert!(Instant::now() < deadline, "the port takes no frames");
        }
    }

    /// So many frames.
    fn receive(&mut self, n: usize) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut frames = Vec::new();
        while frames.len() < n {
            self.port.rx[0].burst(&mut self.arrived, 32);
            frames.extend(self.arrived.drain(..).map(|it| it.data().to_vec()));
            assert!(Instant::now() < deadline, "{} of {n} frames", frames.len());
            sleep(Duration::from_micros(100));
        }
        assert_eq!(frames.len(), n);
        frames
    }

    /// What has come when nothing comes any more.
    fn receive_all(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(500) {
            if self.port.rx[0].burst(&mut self.arrived, 32) > 0 {
                quiet = Instant::now();
            }
            frames.extend(self.arrived.drain(..).map(|it| it.data().to_vec()));
            sleep(Duration::from_micros(100));
        }
        frames
    }
}

fn member(rank: u8, port: u16) -> Member {
    Member {
        port: PortId(port),
        mac: Mac([0x02, 0, 0, 0, 0, rank]),
        ip: Ipv4Addr::new(10, 84, 0, rank),
        udp_port: 7000 + u16::from(rank),
    }
}

fn roster(job: u16) -> Roster {
    let workers = vec![member(0, 3), member(1, 5)];
    let secret = EpochSecret::new([job as u8; 16]);
    Roster::new(JobId(job), Epoch(2), secret, 16, workers, member(200, 6))
}

/// What a worker says: its elements are `rank + 1` times fragment and place.
fn contribution(roster: &Roster, rank: u8, fragment: u32) -> Vec<u8> {
    let from = roster.workers[usize::from(rank)];
    let addresses = Addresses {
        src_mac: from.mac,
        dst_mac: tags::port_mac(from.port),
        src_ip: from.ip,
        dst_ip: OWN.ip,
        src_port: from.udp_port,
        dst_port: OWN.base_port + (fragment % u32::from(OWN.shards)) as u16,
    };
    let header = Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 10,
        element: Element::I32,
        job: roster.job,
        epoch: roster.epoch,
        fragment: FragmentId(fragment),
        rank: Rank(rank),
        units: roster.units,
        bitmap: Rank(rank).bit(),
        tag: AuthTag::NONE,
    };
    let mut frame = vec![0; HEADERS_BYTES];
    emit(&mut frame, &addresses, &header);
    let value = |at: i32| (i32::from(rank) + 1) * (fragment as i32 * 1000 + at);
    frame.extend((0..256).flat_map(|at| value(at).to_be_bytes()));
    frame
}

fn check_result(roster: &Roster, frame: &[u8]) -> u32 {
    assert_eq!(frame.len(), HEADERS_BYTES + 1024);
    let udp = UdpFrame::parse(frame).unwrap();
    assert_eq!(tags::mask_of(udp.addresses.src_mac), Some(1 << 3 | 1 << 5));
    assert_eq!(udp.addresses.src_ip, OWN.ip);
    let header = Header::parse(udp.datagram(frame)).unwrap();
    assert_eq!((header.kind, header.job), (Kind::Result, roster.job));
    let fragment = header.fragment.0;
    for (at, element) in (0..).zip(frame[HEADERS_BYTES..].as_chunks::<4>().0) {
        let sum = 3 * (fragment as i32 * 1000 + at);
        assert_eq!(i32::from_be_bytes(*element), sum, "{fragment} {at}");
    }
    fragment
}

/// One test, for DPDK starts once in a process.
#[test]
fn frames() {
    let switch = Switch::new();
    sums_over_memif(&switch);
    sums_over_veth(&switch);
    a_port_comes_back(&switch);
    damaged_frames_are_counted(&switch);
    a_card_that_hangs_is_seen(&switch);
    a_reset_is_seen(&switch);
    lost_frames_are_those_asked_for(&switch);
    assert!(switch.pool.is_whole());
}

fn sums_over_memif(switch: &Switch) {
    let (process, mut card, mut link) = switch.attach(0, &["--log"]);
    let roster = roster(9);
    card.load(&roster).unwrap();
    let fragments = 200;
    for first in (0..fragments).step_by(20) {
        let window = first..first + 20;
        let both = window
            .clone()
            .flat_map(|n| [0, 1].map(|rank| contribution(&roster, rank, n)));
        link.send(switch, &both.collect::<Vec<_>>());
        let results = link.receive(20);
        let mut of: Vec<_> = results.iter().map(|it| check_result(&roster, it)).collect();
        of.sort_unstable();
        assert_eq!(of, window.collect::<Vec<_>>());
    }
    // A probe comes back as it went; so does a frame of a job that is not there.
    let mut probe = vec![0; 60];
    probe[..6].copy_from_slice(&tags::probe_mac(77).0);
    probe[6..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 9]);
    probe[12..14].copy_from_slice(&tags::PROBE_ETHERTYPE.to_be_bytes());
    let mut stranger = roster.clone();
    stranger.job = JobId(10);
    let stranger = contribution(&stranger, 0, 5);
    link.send(switch, &[probe.clone(), stranger.clone()]);
    assert_eq!(link.receive(2), [probe, stranger]);
    card.alive().unwrap();
    let counters = card.counters().unwrap();
    assert_eq!(counters.get("contributions"), Some(400));
    assert_eq!(counters.get("results"), Some(200));
    assert_eq!(counters.get("passed"), Some(2));
    assert_eq!(counters.drops().map(|(_, n)| n).sum::<u64>(), 0);
    // Gone from the card, its frames come back.
    card.unload(roster.job).unwrap();
    let late = contribution(&roster, 0, 300);
    link.send(switch, std::slice::from_ref(&late));
    assert_eq!(link.receive(1), [late]);
    // And from the start: nothing of before is left.
    card.load(&roster).unwrap();
    link.send(
        switch,
        &[contribution(&roster, 0, 7), contribution(&roster, 1, 7)],
    );
    assert_eq!(check_result(&roster, &link.receive(1)[0]), 7);
    drop((card, link));
    let summary = process.end(Signal::SIGTERM);
    assert!(summary.contains("\"results\":201"), "{summary}");
}

/// A pair of interfaces of the kernel's, gone with the value.
struct Veth(String, String);

impl Veth {
    fn new() -> Self {
        let id = std::process::id() % 100_000;
        let veth = Self(format!("ca{id}"), format!("cb{id}"));
        ip(&[
            "link", "add", &veth.0, "type", "veth", "peer", "name", &veth.1,
        ]);
        for side in [&veth.0, &veth.1] {
            // Keeps the kernel from saying anything of its own on them.
            let off = format!("/proc/sys/net/ipv6/conf/{side}/disable_ipv6");
            let _ = fs::write(off, "1");
            ip(&["link", "set", side, "up"]);
        }
        veth
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status();
    assert!(status.unwrap().success(), "ip {arguments:?}");
}

fn sums_over_veth(switch: &Switch) {
    if !nix::unistd::Uid::effective().is_root() {
        // Past the test harness, which hides what passing tests print.
        let _ = writeln!(std::io::stderr(), "SKIPPED: net_af_packet needs root");
        return;
    }
    let veth = Veth::new();
    let port = switch.open("net_af_packet0", &format!("iface={}", veth.0));
    let device = format!("net_af_packet0,iface={}", veth.1);
    let process = Process::start(tempfile::tempdir().unwrap(), &device, &[]);
    let mut card = process.card();
    card.set_own(&OWN).unwrap();
    let roster = roster(9);
    card.load(&roster).unwrap();
    let mut link = Link::up(port);
    let both = (0..20).flat_map(|n| [0, 1].map(|rank| contribution(&roster, rank, n)));
    // Its port may not be open yet, and what is sent before is lost.
    let probe = [
        &tags::probe_mac(7).0[..],
        &[2, 0, 0, 0, 0, 9, 0x88, 0xb5],
        &[0; 46],
    ]
    .concat();
    while link.receive_all().is_empty() {
        link.send(switch, std::slice::from_ref(&probe));
    }
    link.send(switch, &both.collect::<Vec<_>>());
    let results = link.receive(20);
    let mut of: Vec<_> = results.iter().map(|it| check_result(&roster, it)).collect();
    of.sort_unstable();
    assert!(of.into_iter().eq(0..20));
    drop((card, link));
    process.end(Signal::SIGTERM);
}

/// The switch is ended and started again.
fn a_port_comes_back(switch: &Switch) {
    let (process, mut card, link) = switch.attach(5, &[]);
    let roster = roster(9);
    card.load(&roster).unwrap();
    drop((card, link));
    sleep(Duration::from_millis(300));
    let server = memif(process.folder.path(), "server", 5);
    let mut link = Link::up(switch.open("net_memif5", &server));
    let mut card = process.card();
    assert_eq!(card.loaded().count(), 0);
    card.set_own(&OWN).unwrap();
    card.load(&roster).unwrap();
    let both = [0, 1].map(|rank| contribution(&roster, rank, 7));
    link.send(switch, &both);
    assert_eq!(check_result(&roster, &link.receive(1)[0]), 7);
    drop((card, link));
    process.end(Signal::SIGTERM);
}

fn damaged_frames_are_counted(switch: &Switch) {
    let (process, mut card, mut link) = switch.attach(1, &["--fault", "bad=1"]);
    let roster = roster(9);
    card.load(&roster).unwrap();
    link.send(
        switch,
        &[contribution(&roster, 0, 7), contribution(&roster, 1, 7)],
    );
    assert!(link.receive_all().is_empty());
    let counters = card.counters().unwrap();
    assert_eq!(counters.get("stream-error"), Some(2));
    drop((card, link));
    process.end(Signal::SIGTERM);
}

fn a_card_that_hangs_is_seen(switch: &Switch) {
    let (process, mut card, mut link) = switch.attach(2, &["--fault", "hang-after=2"]);
    let roster = roster(9);
    card.load(&roster).unwrap();
    card.alive().unwrap();
    link.send(
        switch,
        &[contribution(&roster, 0, 1), contribution(&roster, 1, 1)],
    );
    let since = Instant::now();
    let error = loop {
        match card.alive() {
            Ok(()) => assert!(since.elapsed() < PATIENCE),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, CardError::Silent { .. }), "{error}");
    // It can be ended all the same.
    drop((card, link));
    process.end(Signal::SIGTERM);
}

fn a_reset_is_seen(switch: &Switch) {
    let (process, mut card, mut link) = switch.attach(3, &["--fault", "reset-after=1"]);
    let roster = roster(9);
    card.load(&roster).unwrap();
    card.alive().unwrap();
    link.send(switch, &[contribution(&roster, 0, 1)]);
    let since = Instant::now();
    let error = loop {
        match card.alive() {
            Ok(()) => assert!(since.elapsed() < PATIENCE),
            Err(error) => break error,
        }
    };
    let is_seen = matches!(error, CardError::Forgot { .. } | CardError::Reset { .. });
    assert!(is_seen, "{error}");
    // It is a card as good as new.
    drop(card);
    link.receive_all();
    let mut card = process.card();
    card.set_own(&OWN).unwrap();
    card.load(&roster).unwrap();
    link.send(
        switch,
        &[contribution(&roster, 0, 8), contribution(&roster, 1, 8)],
    );
    assert_eq!(check_result(&roster, &link.receive(1)[0]), 8);
    drop((card, link));
    let summary = process.end(Signal::SIGTERM);
    assert!(summary.contains("\"resets\":1"), "{summary}");
}

fn lost_frames_are_those_asked_for(switch: &Switch) {
    let (process, mut card, mut link) =
        switch.attach(4, &["--fault", "drop=0.5,corrupt=0.5", "--seed", "3"]);
    card.alive().unwrap();
    let mut passed = vec![0; 60];
    passed[..6].copy_from_slice(&tags::probe_mac(1).0);
    passed[6..14].copy_from_slice(&[0x02, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    for _ in 0..10 {
        link.send(switch, &vec![passed.clone(); 20]);
        sleep(Duration::from_millis(20));
    }
    // A quarter is left, and half of that as it was.
    let frames = link.receive_all();
    assert!((25..=80).contains(&frames.len()), "{}", frames.len());
    let same = frames.iter().filter(|&it| *it == passed).count();
    assert!((5..frames.len() - 5).contains(&same), "{same}");
    drop((card, link));
    process.end(Signal::SIGTERM);
}
