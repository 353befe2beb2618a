//! Hostile frames through the real switch on real DPDK ports: each is dropped under its own
//! counter, no buffer is lost, and the sum that good members were making stays what it was.
//!
//! The frames come from a capture file over `net_pcap`, so that the switch runs as its users run
//! it, as a process, without privileges.

#![allow(clippy::unwrap_used)]

mod common;

use common::{OWN, fixed_job, frames_of, pcap, port, write_config};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tally_schema::switch::config::FixedMember;
use tally_wire::frame::emit;
use tally_wire::{Addresses, Element, Epoch, Flags, HEADERS_BYTES, Header, JobId, Kind, Mac, Rank};

const SWITCH_MAC: Mac = OWN.mac;
const SWITCH_IP: Ipv4Addr = OWN.ip;
const PAYLOAD: usize = 128;

fn addresses(host: u8) -> Addresses {
    Addresses {
        src_mac: Mac([2, 0, 0, 0, 0, host]),
        dst_mac: SWITCH_MAC,
        src_ip: Ipv4Addr::new(10, 84, 0, host),
        dst_ip: SWITCH_IP,
        src_port: 40000 + u16::from(host),
        dst_port: 31249,
    }
}

fn header(rank: u8, fragment: u32) -> Header {
    common::header(rank, fragment, PAYLOAD)
}

fn frame(addresses: &Addresses, header: &Header, value: i32) -> Vec<u8> {
    let mut f = vec![0; HEADERS_BYTES];
    emit(&mut f, addresses, header);
    for _ in 0..PAYLOAD / 4 {
        f.extend_from_slice(&value.to_be_bytes());
    }
    f.resize(f.len() + header.kind.trailer_bytes(), 0);
    f
}

/// A good contribution of worker `rank` (host rank + 1).
fn good(rank: u8, fragment: u32, value: i32) -> Vec<u8> {
    frame(&addresses(rank + 1), &header(rank, fragment), value)
}

/// A good frame with some bytes changed.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut f = good(0, 1, 1000);
    f[at..at + bytes.len()].copy_from_slice(bytes);
    f
}

/// Every way of being wrong, with the counter that must say so.
fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    let whole = good(0, 1, 1000);
    let mut frames = Vec::new();
    for len in 1..whole.len() {
        let reason = match len {
            0..34 => "truncated",
            _ => "ip-length",
        };
        frames.push((reason, whole[..len].to_vec()));
    }
    let mut vlan = whole.clone();
    vlan.splice(12..12, [0x81, 0, 0, 5]);
    frames.push(("vlan-tag", vlan));
    let spoof = |field: fn(&mut Addresses)| {
        let mut a = addresses(1);
        field(&mut a);
        frame(&a, &header(0, 1), 1000)
    };
    let say = |change: fn(&mut Header)| {
        let mut h = header(0, 1);
        change(&mut h);
        frame(&addresses(1), &h, 1000)
    };
    frames.extend([
        ("not-ipv4", with(12, &[0x86, 0xdd])),
        ("ip-version", with(14, &[0x65])),
        ("ip-options", with(14, &[0x46])),
        ("ip-fragment", with(20, &[0x20, 0])),
        ("ip-fragment", with(20, &[0, 7])),
        ("not-udp", with(23, &[6])),
        ("ip-length", with(16, &[0xff, 0xff])),
        ("udp-length", with(38, &[0, 9])),
        ("udp-port", with(36, &[0x7a, 0x12])),
        ("not-our-address", with(33, &[253])),
        ("version", with(42, &[0x15])),
        ("type", with(42, &[0x20])),
        ("type", with(42, &[0x2f])),
        ("reserved-bits", with(43, &[0x80])),
        ("reserved-bits", with(45, &[0x11])),
        ("element-type", with(45, &[0x08])),
        ("element-type", with(45, &[0x00])),
        ("rank-range", with(54, &[64])),
        ("payload-length", with(55, &[1])),
        ("payload-length", with(55, &[200])),
        ("bitmap", with(63, &[3])),
        ("unknown-job", say(|h| h.job = JobId(8))),
        ("stale-epoch", say(|h| h.epoch = Epoch(2))),
        (
            "rank-out-of-job",
            say(|h| (h.rank, h.bitmap) = (Rank(2), 4)),
        ),
        ("not-a-member", say(|h| (h.rank, h.bitmap) = (Rank(1), 2))),
        (
            "not-a-member",
            spoof(|a| a.src_mac = Mac([2, 0, 0, 0, 0, 9])),
        ),
        (
            "not-a-member",
            spoof(|a| a.src_ip = Ipv4Addr::new(10, 84, 0, 9)),
        ),
        ("not-a-member", spoof(|a| a.src_port = 1)),
        ("spoofed-switch", spoof(|a| a.src_mac = SWITCH_MAC)),
        ("spoofed-switch", spoof(|a| a.src_ip = SWITCH_IP)),
        // A forged result to the other worker, as an ordinary frame.
        (
            "spoofed-switch",
            spoof(|a| (a.src_ip, a.dst_mac) = (SWITCH_IP, Mac([2, 0, 0, 0, 0, 2]))),
        ),
        (
            "not-for-switch",
            say(|h| (h.kind, h.rank) = (Kind::Partial, Rank::SWITCH)),
        ),
        (
            "not-a-member",
            say(|h| (h.kind, h.rank, h.bitmap) = (Kind::Result, Rank::PS, 0)),
        ),
        // From a member, but without the tag.
        ("auth-tag", say(|h| (h.kind, h.bitmap) = (Kind::Result, 0))),
    ]);
    frames.extend(disguised());
    // Wrong units: the length fits the header, but not the job.
    let mut short = frame(
        &addresses(1),
        &Header {
            units: 1,
            ..header(0, 1)
        },
        1000,
    );
    short.truncate(HEADERS_BYTES + 64);
    frames.push(("units-mismatch", short));
    // The same contribution again, and one of another element type, once the slot is taken.
    frames.push(("duplicate", good(0, 0, 5000)));
    let f32_contribution = Header {
        element: Element::F32,
        ..header(1, 0)
    };
    frames.push((
        "element-mismatch",
        frame(&addresses(2), &f32_contribution, 5000),
    ));
    frames
}

/// Forged results and ARP answers to the other worker, which a host would take for the switch's:
/// behind tags, in fragments, to the group. Also datagrams to the switch's IPv4 address. None of
/// them is to the switch's MAC.
fn disguised() -> Vec<(&'static str, Vec<u8>)> {
    let result = |source: Ipv4Addr, dst_mac: Mac, dst_ip: Ipv4Addr| {
        let a = Addresses {
            src_mac: Mac([2, 0, 0, 0, 0, 66]),
            src_ip: source,
            dst_mac,
            dst_ip,
            src_port: 31249,
            dst_port: 31249,
        };
        let mut h = header(0, 1);
        (h.kind, h.rank, h.bitmap) = (Kind::Result, Rank::SWITCH, 0);
        frame(&a, &h, 1000)
    };
    let behind = |frame: &[u8], tags: &[u8]| {
        let mut tagged = frame.to_vec();
        tagged.splice(12..12, tags.iter().copied());
        tagged
    };
    let other = Ipv4Addr::new(10, 84, 0, 66);
    let worker = (Mac([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(10, 84, 0, 2));
    let group = (Mac([1, 0, 0x5e, 84, 0, 7]), Ipv4Addr::new(239, 84, 0, 7));
    let mut arp = [&worker.0.0[..], &[2, 0, 0, 0, 0, 66, 8, 6]].concat();
    arp.extend([0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 66]);
    arp.extend(SWITCH_IP.octets());
    arp.extend(worker.0.0);
    arp.extend(worker.1.octets());
    let tags: [&[u8]; 5] = [
        &[0x81, 0, 0, 0],
        &[0x88, 0xa8, 0, 0],
        &[0x91, 0, 0, 0],
        &[0x81, 0, 0xe0, 0, 0x81, 0, 0, 0],
        &[0, 200, 0xaa, 0xaa, 3, 0, 0, 0],
    ];
    let mut frames = vec![("spoofed-switch", arp.clone())];
    for (mac, ip) in [worker, group] {
        frames.push(("spoofed-switch", result(SWITCH_IP, mac, ip)));
        for tags in tags {
            frames.push((
                "spoofed-behind-tag",
                behind(&result(SWITCH_IP, mac, ip), tags),
            ));
            let mut fragment = result(SWITCH_IP, mac, ip);
            fragment[21] = 3;
            frames.push(("spoofed-behind-tag", behind(&fragment, tags)));
        }
    }
    for tags in tags {
        frames.push(("spoofed-behind-tag", behind(&arp, tags)));
        for mac in [group.0, worker.0, Mac::BROADCAST] {
            frames.push(("claims-group", behind(&result(other, mac, group.1), tags)));
        }
    }
    frames.push(("claims-group", result(other, group.0, group.1)));
    for mac in [Mac([2, 0x5e, 1, 2, 3, 4]), worker.0, Mac::BROADCAST] {
        let to_switch = result(other, mac, SWITCH_IP);
        for tags in tags {
            frames.push(("not-our-mac", behind(&to_switch, tags)));
        }
        frames.push(("not-our-mac", to_switch));
    }
    let deep = [0x81, 0, 0, 0].repeat(17);
    let ordinary = result(other, worker.0, worker.1);
    frames.push(("tag-depth", behind(&ordinary, &deep)));
    frames
}

/// Runs the switch over a capture until it has received all of it; its report and what it sent.
fn run(
    folder: &Path,
    frames: Vec<Vec<u8>>,
) -> (tally_schema::switch::report::Report, Vec<Vec<u8>>) {
    let count = frames.len() as u64;
    std::fs::write(folder.join("in.pcap"), pcap(&frames)).unwrap();
    let show = |name: &str| folder.join(name).display().to_string();
    let member = |host: u8| {
        let a = addresses(host);
        FixedMember {
            port: "p".into(),
            mac: a.src_mac,
            ip: a.src_ip,
            udp_port: a.src_port,
        }
    };
    let device = format!(
        "net_pcap0,rx_pcap={},tx_pcap={}",
        show("in.pcap"),
        show("out.pcap")
    );
    let mut config = common::config(folder, vec![port("p", device)]);
    config.pool.slots = Some(64);
    config.window = 16;
    config.jobs = vec![fixed_job(PAYLOAD, vec![member(1), member(2)], member(3))];
    write_config(folder, &config);
    let program = env!("CARGO_BIN_EXE_tally-switch");
    let mut switch = Command::new(program)
        .args([
            "--config",
            &show("switch.json"),
            "--report",
            &show("report.json"),
        ])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    loop {
        let stats = Command::new(program)
            .args(["--stats", &show("stats"), "--json"])
            .output()
            .unwrap();
        let received = simd_json::from_slice::<tally_schema::switch::report::Report>(
            &mut stats.stdout.clone(),
        )
        .map(|report| report.ports[0].counters.rx_frames);
        if received.is_ok_and(|n| n >= count) {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the switch did not take all frames"
        );
        assert!(switch.try_wait().unwrap().is_none(), "the switch ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = switch.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    assert!(
        switch.wait().unwrap().success(),
        "all buffers are back in their pool"
    );
    let report =
        simd_json::from_slice(&mut std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    (
        report,
        frames_of(&std::fs::read(folder.join("out.pcap")).unwrap()),
    )
}

#[test]
fn each_hostile_frame_has_its_counter_and_no_sum_changes() {
    let hostile = hostile();
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for (reason, _) in &hostile {
        *expected.entry((*reason).into()).or_default() += 1;
    }
    let folder = tempfile::tempdir().unwrap();
    let frames = [good(0, 0, 40)]
        .into_iter()
        .chain(hostile.into_iter().map(|(_, frame)| frame))
        .chain([good(1, 0, 2)])
        .collect();
    let (report, sent) = run(folder.path(), frames);
    assert_eq!(report.drops, expected);
    let is_claim = |reason: &str| {
        reason.starts_with("spoofed-") || reason.starts_with("claims-") || reason == "tag-depth"
    };
    let claims = expected.iter().filter(|(reason, _)| is_claim(reason));
    assert_eq!(
        report.ports[0].rare.claims.iter().sum::<u64>(),
        claims.map(|(_, n)| n).sum::<u64>()
    );
    assert_eq!(report.counters["results"], 1);
    assert_eq!(report.in_use.slots_in_use, 0);
    assert_eq!(report.frames_missing, Some(0));
    // One result left, on the one port; no hostile frame was forwarded.
    let [result] = sent.as_slice() else {
        panic!("{} frames left", sent.len())
    };
    assert_eq!(result[..6], [1, 0, 0x5e, 84, 0, 7]);
    assert!(
        result[HEADERS_BYTES..]
            .chunks(4)
            .all(|e| e == 42i32.to_be_bytes())
    );
    assert_eq!(result.len(), HEADERS_BYTES + PAYLOAD);
}

#[test]
fn a_sum_that_saturates_says_so_and_ethernet_padding_is_not_sent_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut padded = good(0, 0, i32::MAX);
    padded.extend_from_slice(&[0xa5; 13]);
    let (report, sent) = run(folder.path(), vec![padded, good(1, 0, 1)]);
    assert_eq!(report.drops, BTreeMap::new());
    assert_eq!(report.counters["overflows"], 1);
    assert_eq!(sent[0].len(), HEADERS_BYTES + PAYLOAD);
    assert_eq!(sent[0][43], Flags::OVERFLOW.0);
    assert!(
        sent[0][HEADERS_BYTES..]
            .chunks(4)
            .all(|e| e == i32::MAX.to_be_bytes())
    );
}
