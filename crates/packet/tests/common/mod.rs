//! What the tests of ports share.

#[allow(dead_code)]
pub mod veth;

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use tally_dpdk::{Eal, EalConfig, Mempool, MempoolConfig};
use tally_packet::{PacketRx, Ready};
use tally_wire::frame::{ETHERTYPE_IPV4, UDP_END, internet_checksum};

pub fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success(), "ip {}", arguments.join(" "));
}

pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

/// Says that a test could not run, past the harness.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Keeps the kernel from saying anything of its own on an interface.
pub fn silence(interface: &str) {
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    let _ = std::fs::write(path, "1");
}

/// What the frames of a test are kept in.
pub fn new_pool() -> (Eal, Mempool) {
    let eal = Eal::init(&EalConfig::no_huge(512)).unwrap();
    let config = MempoolConfig {
        frames: 4095,
        frame_bytes_max: 9216,
        ..MempoolConfig::default()
    };
    let pool = Mempool::new(&eal, "frames", &config).unwrap();
    (eal, pool)
}

/// A UDP frame with content that says which it is.
pub fn frame(flow: u8, bytes: usize, number: usize) -> Vec<u8> {
    let mut f = vec![0; UDP_END + bytes];
    f[..12].copy_from_slice(&[2, 0, 0, 0, 0, flow, 2, 0, 0, 0, 0, 9]);
    f[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    let (ip, udp) = ((28 + bytes) as u16, (8 + bytes) as u16);
    f[14..26].copy_from_slice(&[0x45, 2, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    f[16..18].copy_from_slice(&ip.to_be_bytes());
    f[26..34].copy_from_slice(&[10, 84, 0, 1, 10, 84, 0, flow]);
    let sum = internet_checksum(&f[14..34]);
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    f[34..38].copy_from_slice(&[0x7a, 0x11, 0x7a, 0x12]);
    f[38..40].copy_from_slice(&udp.to_be_bytes());
    let mut state = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in &mut f[UDP_END..] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    f
}

/// The same frame with a VLAN tag.
pub fn tagged(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    let tag = [tpid.to_be_bytes(), tci.to_be_bytes()].concat();
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// A port, and what says that it has something.
pub struct Receiver {
    pub rx: PacketRx,
    pub ready: Ready,
}

/// Waits for so many frames, and sees that no more come.
pub fn receive(Receiver { rx, ready }: &mut Receiver, n: usize) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut got, mut burst) = (Vec::new(), Vec::new());
    while got.len() < n && Instant::now() < deadline {
        ready.look(Duration::from_millis(1));
        let taken = rx.burst(&mut burst, 32);
        assert!(taken <= 32 && taken == burst.len());
        got.extend(burst.drain(..).map(|mbuf| mbuf.data().to_vec()));
    }
    ready.look(Duration::ZERO);
    assert_eq!(rx.burst(&mut burst, 32), 0, "more than were sent");
    got
}
