//! Frames that a driver delivers in several buffers: the core copies each into one, and sums it.
//!
//! The driver is `net_pcap` with buffers far shorter than its frames; what the core sends it writes
//! into another capture.

#![allow(clippy::unwrap_used)]

mod common;

use common::{OWN, data_core, frames_of, header, pcap};
use crossbeam_channel::bounded;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tally_dpdk::{Eal, EalConfig, Mempool, MempoolConfig, Port, PortConfig};
use tally_engine::queue::QueueConfig;
use tally_engine::{DropReason, Member, PortId};
use tally_switch::handover::handover;
use tally_switch::messages::{CoreCommand, CoreReport};
use tally_wire::frame::emit;
use tally_wire::{Addresses, HEADERS_BYTES, Mac};

const PAYLOAD: usize = 8192;
const FRAGMENTS: u32 = 20;

fn member(host: u8) -> Member {
    Member {
        port: PortId(0),
        mac: Mac([2, 0, 0, 0, 0, host]),
        ip: Ipv4Addr::new(10, 84, 0, host + 1),
        udp_port: 40000 + u16::from(host),
    }
}

fn contribution(rank: u8, fragment: u32) -> Vec<u8> {
    let header = header(rank, fragment, PAYLOAD);
    let worker = member(rank);
    let addresses = Addresses {
        src_mac: worker.mac,
        dst_mac: OWN.mac,
        src_ip: worker.ip,
        dst_ip: OWN.ip,
        src_port: worker.udp_port,
        dst_port: OWN.base_port,
    };
    let mut frame = vec![0; HEADERS_BYTES];
    emit(&mut frame, &addresses, &header);
    // No two elements alike, so that a segment in the wrong place shows.
    let elements = (0..PAYLOAD as i32 / 4).map(|n| element(rank, fragment, n));
    frame.extend(elements.flat_map(i32::to_be_bytes));
    frame
}

fn element(rank: u8, fragment: u32, n: i32) -> i32 {
    n * (i32::from(rank) + 3) + fragment.cast_signed() * 100_000
}

/// An ordinary frame to an unknown host.
fn ordinary(len: usize) -> Vec<u8> {
    let mut frame: Vec<_> = (0..len).map(|n| n as u8).collect();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 77]);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 78, 0x88, 0xb5]);
    frame
}

/// Runs a core with two ports, the first of which receives the frames into buffers of `bytes`. Its
/// report, and what left on each port.
fn run(eal: &Eal, name: &str, bytes: u16, frames: &[Vec<u8>]) -> (CoreReport, [Vec<Vec<u8>>; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mempool = |suffix: &str, frame_bytes_max: u16| {
        let config = MempoolConfig {
            frames: 4095,
            cache_frames: 0,
            frame_bytes_max,
            socket: None,
        };
        Mempool::new(eal, &format!("{name}{suffix}"), &config).unwrap()
    };
    let (short, pool) = (mempool("s", bytes), mempool("p", 9216));
    std::fs::write(path("in0"), pcap(frames)).unwrap();
    std::fs::write(path("in1"), pcap(&[])).unwrap();
    let (mut ports, mut rx, mut tx) = (vec![], vec![], vec![]);
    for n in 0..2 {
        let arguments = format!(
            "rx_pcap={},tx_pcap={}",
            path(&format!("in{n}")),
            path(&format!("out{n}"))
        );
        let mut started = Port::vdev(eal, &format!("net_pcap_{name}{n}"), &arguments)
            .unwrap()
            .configure(&PortConfig::default(), std::slice::from_ref(&short))
            .unwrap()
            .start()
            .unwrap();
        rx.push((PortId(n), started.rx.pop().unwrap()));
        tx.push(Ok((started.tx.pop().unwrap(), QueueConfig::default())));
        ports.push(started.port);
    }
    let ways = handover(1).pop().unwrap();
    let (core, handle) = data_core(rx, tx, ways, &pool, PAYLOAD, member);
    let core = std::thread::spawn(move || core.run());
    let start = Instant::now();
    loop {
        let (answer, report) = bounded(1);
        let ask = CoreCommand::Report(Box::new(move |report| answer.send(report).unwrap()));
        handle.commands.send(ask).unwrap();
        let report: CoreReport = report.recv().unwrap();
        if report.ports[0].rx_frames >= frames.len() as u64 {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "frames are not taken"
        );
    }
    handle.stop.store(true, Ordering::Relaxed);
    let report = core.join().unwrap();
    drop(ports);
    assert!(short.is_whole() && pool.is_whole(), "buffers are missing");
    let sent = |name: &str| frames_of(&std::fs::read(path(name)).unwrap());
    (report, [sent("out0"), sent("out1")])
}

/// One process has one EAL, so the cases are in one test.
#[test]
fn segments() {
    let eal = Eal::init(&EalConfig::no_huge(256)).unwrap();
    jumbo_contributions_are_summed(&eal);
    what_fits_no_buffer_is_dropped_and_counted(&eal);
}

fn jumbo_contributions_are_summed(eal: &Eal) {
    let mut frames: Vec<_> = (0..FRAGMENTS)
        .flat_map(|fragment| [contribution(0, fragment), contribution(1, fragment)])
        .collect();
    frames.push(ordinary(3000));
    // Short enough for one buffer.
    frames.push(ordinary(60));
    // 34 segments each.
    let (report, [sent, flooded]) = run(eal, "sum", 256, &frames);
    assert_eq!(report.ports[0].linearised, u64::from(2 * FRAGMENTS) + 1);
    assert_eq!(report.counters.results, u64::from(FRAGMENTS));
    assert_eq!(report.counters.drops.total(), 0);
    assert_eq!(sent.len(), FRAGMENTS as usize);
    for (fragment, result) in (0..).zip(&sent) {
        let sum = |n| element(0, fragment, n) + element(1, fragment, n);
        let expected: Vec<_> = (0..PAYLOAD as i32 / 4)
            .flat_map(|n| sum(n).to_be_bytes())
            .collect();
        assert!(result[HEADERS_BYTES..] == expected, "fragment {fragment}");
    }
    assert!(
        flooded == [ordinary(3000), ordinary(60)],
        "forwarded as they came"
    );
}

fn what_fits_no_buffer_is_dropped_and_counted(eal: &Eal) {
    let frames = [ordinary(9217), ordinary(9216), contribution(0, 0)];
    let (report, [sent, flooded]) = run(eal, "long", 256, &frames);
    assert_eq!(report.counters.dropped(DropReason::Segmented), 1);
    assert_eq!(report.counters.drops.total(), 1);
    assert_eq!(report.ports[0].linearised, 2);
    assert_eq!(report.counters.contributions, 1);
    assert!(sent.is_empty());
    assert!(flooded == [ordinary(9216)]);
}
