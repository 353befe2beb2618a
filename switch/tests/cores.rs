//! A switch with two data cores, as a process, and this process at the other end of its ports: with
//! steered queues, with unsteered ones, and with frames in the wrong one. A frame in the queue of
//! another core is handed over, and every sum comes out.
//!
//! Payloads are 8 KiB, over `net_memif` and, as root, `net_af_packet`.

#![allow(clippy::unwrap_used)]

mod common;

use common::{OWN, PATIENCE, connect, fixed_job, header, port, wait_until, write_config};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tally_dpdk::{Eal, EalConfig, Mbuf, Mempool, MempoolConfig, StartedPort};
use tally_schema::switch::config::{FixedMember, PortSection, Steering};
use tally_schema::switch::report::{PortReport, Report, Spread};
use tally_wire::frame::{UDP_END, emit};
use tally_wire::{Addresses, Flags, HEADERS_BYTES, Header, Kind, Mac, UdpFrame};

const SWITCH_MAC: Mac = OWN.mac;
const SWITCH_IP: Ipv4Addr = OWN.ip;
const BASE_PORT: u16 = OWN.base_port;
const PAYLOAD: usize = 8192;
/// What `net_tap` carries, whose MTU is 1500 regardless of its interface's.
const TAP_PAYLOAD: usize = 1408;
const FRAGMENTS: u32 = 64;

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
    (1000 * (i32::from(rank) + 1)) * (fragment.cast_signed() + 1)
}

fn payload(value: i32, bytes: usize) -> Vec<u8> {
    value.to_be_bytes().repeat(bytes / 4)
}

/// A contribution, to the UDP port of its shard.
fn contribution(rank: u8, fragment: u32, payload_bytes: usize) -> Vec<u8> {
    let addresses = Addresses {
        src_mac: mac(rank),
        dst_mac: SWITCH_MAC,
        src_ip: ip(rank),
        dst_ip: SWITCH_IP,
        src_port: udp_port(rank),
        dst_port: BASE_PORT + (fragment & 1) as u16,
    };
    let mut frame = vec![0; HEADERS_BYTES];
    emit(
        &mut frame,
        &addresses,
        &header(rank, fragment, payload_bytes),
    );
    frame.extend(payload(value(rank, fragment), payload_bytes));
    frame
}

/// A frame that is not Tally's.
fn ordinary(from: Mac, to: Mac) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// `SKIPPED` in the test's output: there is something that was not tested.
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// A switch with two data cores.
struct Switch<'a> {
    folder: &'a Path,
    process: Child,
}

impl<'a> Switch<'a> {
    /// The first ports, in their order, have the job's workers behind them.
    fn start(folder: &'a Path, ports: Vec<PortSection>, workers: u8, payload_bytes: usize) -> Self {
        let member = |rank: u8, port: &PortSection| FixedMember {
            port: port.label().to_owned(),
            mac: mac(rank),
            ip: ip(rank),
            udp_port: udp_port(rank),
        };
        let members = (0..workers).zip(&ports);
        let members = members.map(|(rank, port)| member(rank, port)).collect();
        let ps = member(99, &ports[0]);
        let mut config = common::config(folder, ports);
        config.cores = vec![0, 1];
        config.pool.slots = Some(128);
        config.window = 128;
        config.jobs = vec![fixed_job(payload_bytes, members, ps)];
        let process = Command::new(env!("CARGO_BIN_EXE_tally-switch"))
            .arg("--config")
            .arg(write_config(folder, &config))
            .arg("--report")
            .arg(folder.join("report.json"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut switch = Self { folder, process };
        wait_until("the switch runs", || {
            assert!(switch.process.try_wait().unwrap().is_none(), "it ended");
            // It listens from the beginning and answers once it runs.
            let mut report = Vec::new();
            UnixStream::connect(folder.join("stats"))
                .and_then(|mut stream| stream.read_to_end(&mut report))
                .is_ok_and(|bytes| bytes > 0)
        });
        switch
    }

    /// Ends it, in order and with all buffers in their pool, and gives its report.
    fn end(mut self) -> Report {
        signal("TERM", self.process.id());
        assert!(self.process.wait().unwrap().success());
        let mut report = std::fs::read(self.folder.join("report.json")).unwrap();
        let report: Report = simd_json::from_slice(&mut report).unwrap();
        assert_eq!(report.frames_missing, Some(0));
        report
    }
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal(name: &str, process: u32) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &process.to_string()])
        .status();
    assert!(status.unwrap().success());
}

fn has_two_cpus() -> bool {
    let two = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !two {
        skipped("two data cores need two CPUs");
    }
    two
}

#[test]
fn peers_that_steer_one_that_does_not_and_frames_in_the_wrong_queue() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    let arguments = |role: &str, id: u16| {
        format!(
            "role={role},id={id},socket={},socket-abstract=no,bsize=9216,rsize=8",
            socket.display()
        )
    };
    let port = |id: u16, steering| PortSection {
        mtu: 9000,
        steering,
        core: Some(0),
        ..port(
            format!("p{id}"),
            format!("net_memif{id},{}", arguments("server", id)),
        )
    };
    let ports = vec![
        port(0, Steering::Peer),
        port(1, Steering::Peer),
        port(2, Steering::Auto),
    ];
    let switch = Switch::start(folder.path(), ports, 3, PAYLOAD);

    let eal = Eal::init(&EalConfig::no_huge(128)).unwrap();
    let pool = MempoolConfig {
        frames: 8191,
        cache_frames: 0,
        frame_bytes_max: 9216,
        socket: None,
    };
    let pool = Mempool::new(&eal, "hosts", &pool).unwrap();
    let mut hosts: Vec<_> = [2, 2, 1]
        .into_iter()
        .zip(0..)
        .map(|(queues, id)| connect(&eal, &pool, id, &arguments("client", id), queues))
        .collect();
    let send = |host: &mut StartedPort, queue: usize, frame: &[u8]| {
        let mut frames = vec![pool.alloc_copy(frame).unwrap()];
        wait_until("the switch takes a frame", || {
            host.tx[queue].burst(&mut frames);
            frames.is_empty()
        });
    };

    // Who is where, learned from any queue and known to all cores.
    let known = mac(50);
    send(&mut hosts[1], 1, &ordinary(known, mac(51)));
    for host in [0, 2] {
        assert_eq!(receive(&mut hosts[host], 1), [ordinary(known, mac(51))]);
    }
    for (host, queue) in [(0, 0), (0, 1), (2, 0)] {
        let frame = ordinary(mac(52), known);
        send(&mut hosts[host], queue, &frame);
        assert_eq!(receive(&mut hosts[1], 1), [frame]);
    }
    // The switch's own address, at every queue.
    for (host, queue) in [(0, 0), (0, 1), (1, 1), (2, 0)] {
        send(&mut hosts[host], queue, &arp_request(host as u8));
        let answers = receive(&mut hosts[host], 1);
        assert_eq!(
            answers[0][6..12],
            SWITCH_MAC.0,
            "host {host}, queue {queue}"
        );
        assert_eq!(answers[0][20..22], [0, 2]);
    }

    // Worker 0 gets each fourth of its frames wrong.
    let wrong = |fragment: u32| fragment.is_multiple_of(4);
    let mut results: Vec<BTreeMap<u32, Vec<u8>>> = vec![BTreeMap::new(); 3];
    for fragment in 0..FRAGMENTS {
        for rank in 0..3_u8 {
            let queue = match rank {
                0 => (fragment + u32::from(wrong(fragment))) & 1,
                1 => fragment & 1,
                _ => 0,
            };
            send(
                &mut hosts[usize::from(rank)],
                queue as usize,
                &contribution(rank, fragment, PAYLOAD),
            );
        }
        for (host, results) in hosts.iter_mut().zip(&mut results) {
            note_results(&burst(host), results);
        }
    }
    for (host, results) in hosts.iter_mut().zip(&mut results) {
        wait_until("all results are there", || {
            note_results(&burst(host), results);
            results.len() == FRAGMENTS as usize
        });
        for (&fragment, sum) in &*results {
            let expected = (0..3).map(|rank| value(rank, fragment)).sum();
            assert!(*sum == payload(expected, PAYLOAD), "fragment {fragment}");
        }
    }
    drop((hosts, results));
    assert!(pool.is_whole());

    let report = switch.end();
    let of = |port: &PortReport| {
        (
            port.steering,
            port.rx_queues,
            port.tx_queues,
            port.counters.handed_over,
        )
    };
    let ports: Vec<_> = report.ports.iter().map(of).collect();
    let fragments = u64::from(FRAGMENTS);
    let expected = [
        (Spread::Peer, 2, 2, fragments / 4),
        (Spread::Peer, 2, 2, 0),
        (Spread::HandOver, 1, 1, fragments / 2),
    ];
    assert_eq!(ports, expected);
    assert_eq!(report.counters["contributions"], 3 * fragments);
    assert_eq!(report.counters["results"], fragments);
    assert!(report.drops.is_empty(), "{:?}", report.drops);
    let text = report.to_string();
    let line = "p2           steering hand-over, 1 queues in, 1 out, 32 frames handed over\n";
    assert!(text.contains(line), "{text}");
}

/// What has arrived at a host, in any of its queues.
fn burst(host: &mut StartedPort) -> Vec<Mbuf> {
    let mut frames = Vec::new();
    for rx in &mut host.rx {
        while rx.burst(&mut frames, 32) > 0 {}
    }
    frames
}

/// Exactly as many frames.
fn receive(host: &mut StartedPort, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    wait_until("frames arrive", || {
        frames.extend(burst(host));
        frames.len() >= count
    });
    assert_eq!(frames.len(), count);
    frames.iter().map(|frame| frame.data().to_vec()).collect()
}

/// Payloads by fragment, each of which comes once.
fn note_results(frames: &[Mbuf], results: &mut BTreeMap<u32, Vec<u8>>) {
    for frame in frames {
        assert!(frame.is_contiguous());
        let udp = UdpFrame::parse(frame.data()).unwrap();
        note_result(udp.datagram(frame.data()), results);
    }
}

fn note_result(datagram: &[u8], results: &mut BTreeMap<u32, Vec<u8>>) {
    let header = Header::parse(datagram).unwrap();
    assert_eq!((header.kind, header.flags), (Kind::Result, Flags::NONE));
    let sum = datagram[HEADERS_BYTES - UDP_END..].to_vec();
    let before = results.insert(header.fragment.0, sum);
    assert!(before.is_none(), "fragment {} twice", header.fragment.0);
}

fn arp_request(host: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac(host).0);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac(host).0);
    frame.extend(ip(host).octets());
    frame.extend([0; 6]);
    frame.extend(SWITCH_IP.octets());
    frame.resize(60, 0);
    frame
}

/// The kernel at the other end: it follows the flow rules that a port asks for, if it has been
/// built with them.
#[test]
fn a_tap_port_steers_by_rules_or_says_why_not() {
    if !in_a_namespace("a_tap_port_steers_by_rules_or_says_why_not") {
        return;
    }
    let report = sums_from_sockets(port("tap", "net_tap0,iface=tally0"), || (), TAP_PAYLOAD);
    let port = &report.ports[0];
    assert_eq!((port.rx_queues, port.tx_queues), (2, 2));
    if let Some(why) = &port.rules_refused {
        assert_eq!(port.rules, 0);
        assert_ne!(port.steering, Spread::Rules);
        skipped(&format!("this kernel does not steer: {why}"));
    } else {
        assert_eq!((port.steering, port.rules), (Spread::Rules, 2));
        assert_eq!(
            port.counters.handed_over, 0,
            "the kernel steered all frames"
        );
        eprintln!("the kernel steered {} frames", port.counters.rx_frames);
    }
}

/// A socket for each queue, among which the kernel spreads flows as it likes.
#[test]
fn all_queues_of_an_af_packet_port_are_read() {
    if !in_a_namespace("all_queues_of_an_af_packet_port_are_read") {
        return;
    }
    let device = "net_af_packet0,iface=tally1,qpairs=3,blocksz=16384,framesz=16384,framecnt=128";
    let port = PortSection {
        mtu: 9000,
        ..port("veth", device)
    };
    let veth = || {
        ip_command("link add tally0 type veth peer name tally1");
        ip_command("link set tally1 mtu 9000 up");
    };
    let report = sums_from_sockets(port, veth, PAYLOAD);
    let port = &report.ports[0];
    assert_eq!(
        (port.steering, port.rx_queues, port.tx_queues),
        (Spread::Device, 3, 2)
    );
}

/// Whether this process has a network namespace of its own, which ends with it. If not, one that
/// has runs the test.
fn in_a_namespace(test: &str) -> bool {
    if std::env::var_os("TALLY_IN_NAMESPACE").is_some() {
        return true;
    }
    let id = Command::new("id").arg("-u").output();
    if !id.is_ok_and(|id| id.stdout == b"0\n") {
        skipped("interfaces of the kernel need root");
    } else if has_two_cpus() {
        let status = Command::new("unshare")
            .args(["--net", "--"])
            .arg(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env("TALLY_IN_NAMESPACE", "1")
            .status();
        assert!(status.unwrap().success());
    }
    false
}

fn ip_command(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// One worker behind the interface `tally0`, which the switch makes when it starts, or `before`.
fn sums_from_sockets(port: PortSection, before: fn(), payload_bytes: usize) -> Report {
    before();
    let folder = tempfile::tempdir().unwrap();
    let switch = Switch::start(folder.path(), vec![port], 1, payload_bytes);
    let mtu = payload_bytes + 92;
    ip_command(&format!("link set tally0 address {} mtu {mtu} up", mac(0)));
    ip_command(&format!("address add {}/24 dev tally0", ip(0)));
    let group = Ipv4Addr::new(239, 84, 0, 7);
    let listener = UdpSocket::bind(("0.0.0.0", BASE_PORT)).unwrap();
    listener.join_multicast_v4(&group, &ip(0)).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let worker = UdpSocket::bind((ip(0), udp_port(0))).unwrap();

    let mut results = BTreeMap::new();
    let mut datagram = vec![0; 65_536];
    for fragment in 0..FRAGMENTS {
        let shard = (fragment & 1) as u16;
        let frame = contribution(0, fragment, payload_bytes);
        worker
            .send_to(&frame[UDP_END..], (SWITCH_IP, BASE_PORT + shard))
            .unwrap();
        let bytes = listener.recv(&mut datagram).unwrap();
        note_result(&datagram[..bytes], &mut results);
    }
    for (fragment, sum) in results {
        assert!(
            sum == payload(value(0, fragment), payload_bytes),
            "fragment {fragment}"
        );
    }
    let report = switch.end();
    assert_eq!(report.counters["results"], u64::from(FRAGMENTS));
    report
}
