//! A switch with two data cores, as a process, and this process at the other end of its ports: with
//! queues that are steered, with such that are not, and with frames in the wrong one. What arrives where it
//! does not belong is handed over, and every sum comes out.
//!
//! Payloads are 8 KiB, over `net_memif` and, as root, `net_af_packet`.

#![allow(clippy::unwrap_used)]

mod common;

use common::{OWN, PATIENCE, connect, header, wait_until};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tally_dpdk::{Eal, EalConfig, Mbuf, Mempool, MempoolConfig, StartedPort};
use tally_switch::report::{PortReport, Report};
use tally_wire::frame::{UDP_END, emit};
use tally_wire::{Addresses, Flags, HEADERS_BYTES, Header, Kind, Mac, UdpFrame};

const SWITCH_MAC: Mac = OWN.mac;
const SWITCH_IP: Ipv4Addr = OWN.ip;
const BASE_PORT: u16 = OWN.base_port;
const PAYLOAD: usize = 8192;
/// What `net_tap` carries, whose MTU is 1500 whatever its interface's is.
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
    /// `ports` in JSON; the job's workers are on those that are named, by rank.
    fn start(folder: &'a Path, ports: &str, workers: &[&str], payload_bytes: usize) -> Self {
        let member = |rank: u8, port: &str| {
            format!(
                r#"{{"port":"{port}","mac":"{}","ip":"{}","udp_port":{}}}"#,
                mac(rank),
                ip(rank),
                udp_port(rank)
            )
        };
        let members: Vec<_> = (0..)
            .zip(workers)
            .map(|(rank, port)| member(rank, port))
            .collect();
        let config = format!(
            r#"{{"address":{{"mac":"{SWITCH_MAC}","ip":"{SWITCH_IP}"}},
                "cores":[0,1], "ports":[{ports}], "pool":{{"slots":128}}, "window":128,
                "jobs":[{{"id":7,"key":"00112233445566778899aabbccddeeff","workers":{},
                    "fixed":{{"payload_bytes":{payload_bytes},"workers":[{}],"ps":{}}}}}],
                "stats_socket":"{}"}}"#,
            workers.len(),
            members.join(","),
            member(99, workers[0]),
            folder.join("stats").display(),
        );
        std::fs::write(folder.join("switch.json"), config).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_tally-switch"))
            .arg("--config")
            .arg(folder.join("switch.json"))
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
    let port = |id: u16, steering: &str| {
        format!(
            r#"{{"name":"p{id}","device":"net_memif{id},{}","mtu":9000,"steering":"{steering}","core":0}}"#,
            arguments("server", id)
        )
    };
    let ports = [port(0, "peer"), port(1, "peer"), port(2, "auto")].join(",");
    let switch = Switch::start(folder.path(), &ports, &["p0", "p1", "p2"], PAYLOAD);

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
            port.steering.clone(),
            port.rx_queues,
            port.tx_queues,
            port.handed_over,
        )
    };
    let ports: Vec<_> = report.ports.iter().map(of).collect();
    let fragments = u64::from(FRAGMENTS);
    let expected = [
        ("peer".to_owned(), 2, 2, fragments / 4),
        ("peer".to_owned(), 2, 2, 0),
        ("hand-over".to_owned(), 1, 1, fragments / 2),
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

/// The kernel at the other end: it follows the flow rules that a port asks for, if it has been built with
/// them.
#[test]
fn a_tap_port_steers_by_rules_or_says_why_not() {
    if !in_a_namespace("a_tap_port_steers_by_rules_or_says_why_not") {
        return;
    }
    let report = sums_from_sockets(
        r#"{"name":"tap","device":"net_tap0,iface=tally0"}"#,
        || (),
        TAP_PAYLOAD,
    );
    let port = &report.ports[0];
    assert_eq!((port.rx_queues, port.tx_queues), (2, 2));
    if let Some(why) = &port.rules_refused {
        assert_eq!(port.rules, 0);
        assert_ne!(port.steering, "rules");
        skipped(&format!("this kernel does not steer: {why}"));
    } else {
        assert_eq!((port.steering.as_str(), port.rules), ("rules", 2));
        assert_eq!(port.handed_over, 0, "the kernel steered all frames");
        eprintln!("the kernel steered {} frames", port.rx_frames);
    }
}

/// A socket for each queue, among which the kernel spreads flows as it likes.
#[test]
fn all_queues_of_an_af_packet_port_are_read() {
    if !in_a_namespace("all_queues_of_an_af_packet_port_are_read") {
        return;
    }
    let port = r#"{"name":"veth","mtu":9000,"device":"net_af_packet0,iface=tally1,qpairs=3,blocksz=16384,framesz=16384,framecnt=128"}"#;
    let veth = || {
        ip_command("link add tally0 type veth peer name tally1");
        ip_command("link set tally1 mtu 9000 up");
    };
    let report = sums_from_sockets(port, veth, PAYLOAD);
    let port = &report.ports[0];
    assert_eq!(
        (port.steering.as_str(), port.rx_queues, port.tx_queues),
        ("device", 3, 2)
    );
}

/// Whether this is a process with interfaces and addresses of its own, which go away with it. If not,
/// one that is runs the test.
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

/// One worker behind the interface `tally0`, which is there once the switch runs or `before` has made it.
fn sums_from_sockets(port: &str, before: fn(), payload_bytes: usize) -> Report {
    before();
    let folder = tempfile::tempdir().unwrap();
    let name = port.split('"').nth(3).unwrap();
    let switch = Switch::start(folder.path(), port, &[name], payload_bytes);
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
