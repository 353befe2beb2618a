//! Hostile and broken hosts at a real switch: a host that knows everything but the keys sends what
//! it likes from a port of its own, while workers at other ports sum. No sum changes, no job ends,
//! and ordinary hosts reach each other.
//!
//! Uses the release programs (`cargo build --release`), real workers and the kernel's own stack on
//! veth pairs. Skipped, loudly, without root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike, bind, recv, send,
    socket,
};
use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tally_schema::switch::report::Report;
use tally_testkit::cluster::{Cluster, HostId, Network, SWITCH_IP, Spec, Timeouts};
use tally_testkit::reference::{Inputs, Reference};
use tally_wire::frame::{emit, group_of};
use tally_wire::{
    Addresses, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Kind, Mac, Rank,
};

const JOB: JobId = JobId(7);
const PORT: u16 = 31249;
const PAYLOAD: usize = 1024;
const SWITCH_MAC: &str = "02:54:41:4c:4c:59";
const HOSTILE_MAC: Mac = Mac([2, 0, 0, 0, 0, 0x66]);
/// Tags that Linux strips, and some that others do.
const DISGUISES: [&[u8]; 7] = [
    &[0x81, 0, 0, 0],
    &[0x88, 0xa8, 0, 0],
    &[0x81, 0, 0xe0, 0, 0x81, 0, 0, 0],
    &[0x88, 0xa8, 0, 0, 0x81, 0, 0, 0, 0x88, 0xa8, 0, 0],
    &[0x91, 0, 0, 0],
    &[0x81, 0, 0, 5],
    &[4, 0x40, 0xaa, 0xaa, 3, 0, 0, 0],
];

/// Payload of the datagrams that a test looks for at other ports.
const MARK: [u8; 32] = *b"to the switch, by another MAC...";

/// Says so past the harness, which keeps what a passing test prints.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Two workers, their PS, and guests; or nothing, if this user may not have it.
fn cluster(guests: usize) -> Option<Cluster> {
    if Network::for_this_user() != Network::Namespaces {
        skipped("needs root (network namespaces and packet sockets)");
        return None;
    }
    let cluster = Cluster::start(Spec {
        jobs: vec![2],
        guests,
        programs: programs(),
        member_timeout_ms: Some(2000),
        timeouts: Timeouts {
            join_ms: 60_000,
            stall_ms: 60_000,
            ..Timeouts::default()
        },
        ..Spec::default()
    });
    Some(cluster.unwrap())
}

/// A packet socket on a host's interface that only sends.
fn packet_socket(cluster: &Cluster, host: HostId) -> OwnedFd {
    packet_socket_of(cluster, host, None)
}

/// A packet socket on a host's interface that receives every frame.
fn listener(cluster: &Cluster, host: HostId) -> OwnedFd {
    packet_socket_of(cluster, host, Some(SockProtocol::EthAll))
}

fn packet_socket_of(cluster: &Cluster, host: HostId, protocol: Option<SockProtocol>) -> OwnedFd {
    let namespace = File::open(cluster.namespace(host).unwrap()).unwrap();
    // Only this thread enters; a socket stays in the namespace that it was made in.
    let entered = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )
        .unwrap();
        let interfaces = nix::ifaddrs::getifaddrs().unwrap();
        let link = interfaces
            .filter(|interface| interface.interface_name == "eth0")
            .filter_map(|interface| interface.address)
            .find(|address| address.family() == Some(AddressFamily::Packet));
        bind(fd.as_raw_fd(), &link.unwrap()).unwrap();
        fd
    });
    entered.join().unwrap()
}

/// Sends frames for as long as the body runs, and says how many.
fn under_fire(
    from: &OwnedFd,
    mut next: impl FnMut(u64) -> Vec<u8> + Send,
    body: impl FnOnce(&AtomicU64),
) -> u64 {
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                let frame = next(n);
                n += 1;
                // A queue that is full is as good as sent.
                if send(from.as_raw_fd(), &frame, MsgFlags::MSG_DONTWAIT).is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // Also when the body panics: the scope waits for the thread.
        let _stop = StopOnDrop(&over);
        body(&sent);
    });
    sent.into_inner()
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn synthetic(elements: &str) -> Vec<String> {
    ["--synthetic", "--elements", elements, "--seed", "1"]
        .map(str::to_owned)
        .to_vec()
}

/// All-reduces on both workers beside other traffic, and compares every bit with the reference.
#[track_caller]
fn sums_are_exact(cluster: &Cluster, elements: &str, patience: Duration) {
    let workers = cluster.start_workers(0, |_| synthetic(elements)).unwrap();
    for worker in workers {
        worker.wait_ok(patience).unwrap();
    }
    let inputs = Inputs::Synthetic {
        element: "f32",
        seed: 1,
        elements: elements.parse().unwrap(),
        workers: 2,
    };
    let outputs = (0..2).map(|rank| cluster.output(0, rank));
    let reference = Reference {
        program: Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../worker-agent/reference/check.py"),
    };
    let verdict = reference
        .check("fixed", PAYLOAD as u16, &inputs, outputs)
        .unwrap();
    assert!(verdict.exact, "{}", verdict.text);
}

#[track_caller]
fn dropped(report: &Report, reason: &str) -> u64 {
    let n = report.drops.get(reason).copied().unwrap_or(0);
    assert!(n > 0, "no `{reason}` in {:?}", report.drops);
    n
}

fn run_on(cluster: &Cluster, host: HostId, command: &str) -> String {
    let mut words = command.split(' ');
    let mut run = cluster.command_on(host, words.next().unwrap());
    let output = run.args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How many of 10 echo requests from one guest to another are answered.
fn pings(cluster: &Cluster, from: usize, to: usize) -> usize {
    let to = cluster.ip(cluster.guest_host(to));
    let ping = format!("ping -n -c 10 -i 0.2 -W 2 {to}");
    let said = run_on(cluster, cluster.guest_host(from), &ping);
    said.matches("bytes from").count()
}

/// The MAC that a host has for the switch.
fn neighbour(cluster: &Cluster, host: HostId) -> String {
    run_on(cluster, host, &format!("ip neigh show {SWITCH_IP}"))
}

/// The MAC of a host.
fn mac_of(cluster: &Cluster, host: HostId) -> Mac {
    let shown = run_on(cluster, host, "ip -o link show eth0");
    let at = shown.find("link/ether ").unwrap() + 11;
    shown[at..at + 17].parse().unwrap()
}

fn behind(frame: &[u8], tags: &[u8]) -> Vec<u8> {
    let mut tagged = frame.to_vec();
    tagged.splice(12..12, tags.iter().copied());
    tagged
}

/// A result of all ones for a fragment, as the switch would send it to the group.
fn forged_result(epoch: Epoch, fragment: u32, element: Element) -> Vec<u8> {
    let group = group_of(JOB);
    let addresses = Addresses {
        src_mac: HOSTILE_MAC,
        dst_mac: Mac::of_group(group),
        src_ip: SWITCH_IP,
        dst_ip: group,
        src_port: PORT,
        dst_port: PORT,
    };
    let header = Header {
        kind: Kind::Result,
        flags: Flags::NONE,
        priority: 0,
        element,
        job: JOB,
        epoch,
        fragment: FragmentId(fragment),
        rank: Rank::SWITCH,
        units: (PAYLOAD / 64) as u8,
        bitmap: 0,
        tag: tally_wire::AuthTag::NONE,
    };
    let mut frame = vec![1; HEADERS_BYTES + PAYLOAD];
    emit(&mut frame, &addresses, &header);
    frame
}

/// An ARP answer that gives the hostile host's MAC for the switch.
fn forged_arp(to: Mac) -> Vec<u8> {
    let mut frame = [&to.0[..], &HOSTILE_MAC.0, &[8, 6]].concat();
    frame.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(HOSTILE_MAC.0);
    frame.extend(SWITCH_IP.octets());
    frame.extend(Mac::BROADCAST.0);
    frame.extend([10, 84, 0, 1]);
    frame.resize(60, 0);
    frame
}

#[test]
fn forged_results_and_arp_in_tags_change_no_sum_and_no_neighbour() {
    let _alone = alone();
    let Some(cluster) = cluster(1) else { return };
    let hostile = packet_socket(&cluster, cluster.guest_host(0));
    // The epoch is no secret: the host knows it as soon as the job has one, and until then guesses.
    let epoch = AtomicU64::new(0);
    let next = |n: u64| {
        let tags = DISGUISES[n as usize % DISGUISES.len()];
        if n.is_multiple_of(16) {
            return behind(&forged_arp(Mac::BROADCAST), tags);
        }
        let element = if n.is_multiple_of(8) {
            Element::Scale
        } else {
            Element::I32
        };
        let epoch = match epoch.load(Ordering::Relaxed) {
            0 => Epoch((n % 65_535) as u16 + 1),
            known => Epoch(known as u16),
        };
        // The fragments of this job over and over, so that some are always in its window.
        let result = forged_result(epoch, (n / 7 % 800) as u32, element);
        behind(&result, tags)
    };
    under_fire(&hostile, next, |_| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let known = cluster.switch_report().unwrap().jobs[0].epoch;
                    epoch.store(known.into(), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            for _ in 0..5 {
                sums_are_exact(&cluster, "200000", Duration::from_secs(60));
            }
        });
        for rank in 0..2 {
            let known = neighbour(&cluster, cluster.worker_host(0, rank));
            assert!(known.contains(SWITCH_MAC), "{known}");
        }
    });
    let report = cluster.switch_report().unwrap();
    let spoofed = dropped(&report, "spoofed-behind-tag");
    let guest = report.ports.last().unwrap();
    assert!(
        report
            .ports
            .iter()
            .all(|port| port.rare.claims.iter().all(|n| *n == 0) || port.name == guest.name)
    );
    assert!(guest.rare.claims.iter().sum::<u64>() >= spoofed);
    assert!(
        spoofed * 10 > guest.counters.rx_frames * 9,
        "{spoofed} of {}",
        guest.counters.rx_frames
    );
    // Nor is it silent about them: it looks at claims every few seconds.
    let words = format!("from port {} as `spoofed-behind-tag`", guest.name);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let report = cluster.switch_report().unwrap();
        let mut told = report.events.iter();
        if told.any(|it| it.kind == "hostile" && it.text.contains(&words)) {
            break;
        }
        assert!(Instant::now() < deadline, "no `{words}` in {report}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A datagram of the hostile host whose payload is [`MARK`].
fn marked(to: Mac, ip: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&to.0[..], &HOSTILE_MAC.0, &[8, 0]].concat();
    frame.extend([0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 84, 0, 99]);
    frame.extend(ip.octets());
    frame.extend([0x9c, 0x40, 0x7a, 0x11, 0, 40, 0, 0]);
    frame.extend(MARK);
    frame
}

/// How many frames with [`MARK`] wait in a socket.
fn count_marked(listener: &OwnedFd) -> usize {
    let mut buffer = [0; 2048];
    let mut count = 0;
    while let Ok(len) = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        let mut windows = buffer[..len].windows(MARK.len());
        count += usize::from(windows.any(|window| window == MARK));
    }
    count
}

#[test]
fn packets_to_the_switch_s_ip_address_but_another_mac_reach_no_port() {
    let _alone = alone();
    let Some(cluster) = cluster(2) else { return };
    let (worker, guest) = (cluster.worker_host(0, 0), cluster.guest_host(1));
    let hosts = [worker, cluster.worker_host(0, 1), guest];
    let listeners = hosts.map(|host| listener(&cluster, host));
    let hostile = packet_socket(&cluster, cluster.guest_host(0));
    let send = |frame: &[u8]| send(hostile.as_raw_fd(), frame, MsgFlags::empty()).unwrap();
    // The switch learns where the guests are.
    assert!(pings(&cluster, 0, 1) >= 8);
    let unknown = Mac([2, 0x5e, 1, 2, 3, 4]);
    let known = [worker, guest].map(|host| mac_of(&cluster, host));
    let mut sent = 0;
    for to in [unknown, known[0], known[1], Mac::BROADCAST] {
        for tags in [&[][..]].into_iter().chain(DISGUISES) {
            send(&behind(&marked(to, SWITCH_IP), tags));
            sent += 1;
        }
    }
    // The same tags in front of a datagram to another address are forwarded, after all the others.
    for tags in [&[][..]].into_iter().chain(DISGUISES) {
        send(&behind(&marked(Mac::BROADCAST, cluster.ip(guest)), tags));
    }
    let ordinary = 1 + DISGUISES.len();
    for listener in &listeners {
        let start = Instant::now();
        let mut received = 0;
        while received < ordinary && start.elapsed() < Duration::from_secs(10) {
            received += count_marked(listener);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(received + count_marked(listener), ordinary);
    }
    let report = cluster.switch_report().unwrap();
    assert_eq!(dropped(&report, "not-our-mac"), sent);
}

#[test]
fn a_flood_of_addresses_evicts_no_host_and_turns_no_frame_to_its_sender() {
    let _alone = alone();
    let Some(cluster) = cluster(3) else { return };
    let hostile = packet_socket(&cluster, cluster.guest_host(0));
    assert!(pings(&cluster, 1, 2) >= 8, "before the flood");
    let source = |n: u64| {
        let [.., a, b, c] = (n % 30_000).to_be_bytes();
        [2, 0x66, 0, a, b, c]
    };
    let victims = [cluster.worker_host(0, 0), cluster.guest_host(1)];
    let victims = victims.map(|host| mac_of(&cluster, host));
    let next = |n: u64| {
        // To one that is known, so that limits of floods have no part in it; sometimes in the name
        // of a member.
        let from = if n.is_multiple_of(100) {
            victims[0].0
        } else {
            source(n)
        };
        let mut frame = [&victims[1].0[..], &from, &[0x88, 0xb5]].concat();
        frame.resize(60, 0);
        frame
    };
    under_fire(&hostile, next, |sent| {
        sums_are_exact(&cluster, "200000", Duration::from_secs(60));
        let start = Instant::now();
        while sent.load(Ordering::Relaxed) < 60_000 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
        // The victim is silent, as a host may be for minutes, when another writes to it.
        let before = cluster.switch_report().unwrap();
        let writer = packet_socket(&cluster, cluster.guest_host(2));
        let mut written = [&victims[1].0[..], &[2, 0, 0, 0, 0, 0x77], &[0x88, 0xb5]].concat();
        written.resize(60, 0);
        for n in 0..100 {
            written[20] = n;
            send(writer.as_raw_fd(), &written, MsgFlags::empty()).unwrap();
        }
        assert!(pings(&cluster, 2, 1) >= 8);
        let after = cluster.switch_report().unwrap();
        let flooded = |report: &Report| report.ports[3].counters.flooded;
        assert_eq!(after.ports[3].name, "guest0");
        assert!(
            flooded(&after) - flooded(&before) <= 2,
            "frames between others reached the flooder"
        );
    });
    let report = cluster.switch_report().unwrap();
    let guest = &report.ports[3];
    assert_eq!(guest.addresses.addresses, 1024);
    assert!(guest.addresses.addresses_refused > 20_000, "{guest:?}");
    assert!(report.ports[4].addresses.addresses >= 1 && report.ports[5].addresses.addresses >= 1);
    dropped(&report, "claims-member");
}

#[test]
fn a_broadcast_storm_takes_no_job_and_no_ordinary_traffic() {
    let _alone = alone();
    let Some(cluster) = cluster(3) else { return };
    let hostile = packet_socket(&cluster, cluster.guest_host(0));
    let next = |n: u64| {
        let to = match n % 3 {
            0 => Mac::BROADCAST,
            1 => Mac([0x33, 0x33, 0, 0, 0, 1]),
            _ => Mac([2, 0, 0, 0, 9, 9]),
        };
        let mut frame = [&to.0[..], &HOSTILE_MAC.0, &[0x88, 0xb5], &n.to_be_bytes()].concat();
        frame.resize(60, 0);
        frame
    };
    let since = Instant::now();
    under_fire(&hostile, next, |_| {
        sums_are_exact(&cluster, "1000000", Duration::from_secs(60));
        assert!(pings(&cluster, 1, 2) >= 8);
    });
    let report = cluster.switch_report().unwrap();
    // Of each kind.
    let limit = 30_000.0 * (since.elapsed().as_secs_f64() + 0.2);
    let came = report.ports[3].counters.rx_frames;
    if came as f64 > limit {
        dropped(&report, "storm-broadcast");
    } else {
        skipped(&format!(
            "this machine is too slow for a storm: {came} frames, {limit} are allowed"
        ));
    }
    // Others' ARP is flooded, too.
    let flooded = report.ports[4].counters.flooded;
    assert!((flooded as f64) < limit + 100.0, "{flooded} of {limit}");
}

#[test]
fn two_ports_wired_together_harm_no_other_host() {
    let _alone = alone();
    let Some(cluster) = cluster(4) else { return };
    // A bridge on what were two hosts.
    let name = |guest| {
        let path = cluster.namespace(cluster.guest_host(guest)).unwrap();
        path.file_name().unwrap().to_str().unwrap().to_owned()
    };
    let (one, other) = (name(0), name(1));
    for arguments in [
        format!("-n {other} link set eth0 netns {one} name eth1"),
        format!("-n {one} address flush dev eth0"),
        format!("-n {one} link add loop type bridge"),
        format!("-n {one} link set eth0 master loop"),
        format!("-n {one} link set eth1 master loop"),
        format!("-n {one} link set eth1 up"),
        format!("-n {one} link set loop up"),
    ] {
        let ran = Command::new("ip").args(arguments.split(' ')).status();
        assert!(ran.unwrap().success(), "ip {arguments}");
    }
    for _ in 0..3 {
        for guest in [2, 3] {
            run_on(&cluster, cluster.guest_host(guest), "ip neigh flush all");
        }
        assert!(pings(&cluster, 2, 3) >= 8);
        assert!(pings(&cluster, 3, 2) >= 8);
    }
    sums_are_exact(&cluster, "1000000", Duration::from_secs(60));
    let report = cluster.switch_report().unwrap();
    dropped(&report, "loop");
    let looping: u64 = report.ports[3..5]
        .iter()
        .map(|port| port.counters.rx_frames)
        .sum();
    assert!(
        looping < 1000,
        "{looping} frames came out of the loop: {report}"
    );
}

#[test]
fn a_flood_of_joins_loses_no_member() {
    let _alone = alone();
    let Some(cluster) = cluster(1) else { return };
    let hostile = packet_socket(&cluster, cluster.guest_host(0));
    let next = |n: u64| {
        let addresses = Addresses {
            src_mac: HOSTILE_MAC,
            dst_mac: SWITCH_MAC.parse().unwrap(),
            src_ip: cluster.ip(cluster.guest_host(0)),
            dst_ip: SWITCH_IP,
            src_port: 4000 + (n % 1000) as u16,
            dst_port: PORT,
        };
        let header = Header {
            kind: if n.is_multiple_of(2) {
                Kind::Join
            } else {
                Kind::Leave
            },
            flags: Flags::NONE,
            priority: 0,
            element: Element::None,
            job: JOB,
            epoch: Epoch(0),
            fragment: FragmentId(0),
            rank: Rank((n % 2) as u8),
            units: 2,
            bitmap: 0,
            tag: tally_wire::AuthTag::NONE,
        };
        let mut frame = vec![3; HEADERS_BYTES + 128];
        emit(&mut frame, &addresses, &header);
        frame
    };
    under_fire(&hostile, next, |_| {
        // Longer than members may be silent.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(6) {
            sums_are_exact(&cluster, "1000000", Duration::from_secs(60));
        }
    });
    let report = cluster.switch_report().unwrap();
    dropped(&report, "control-queue-full");
}
