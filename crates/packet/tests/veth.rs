//! Frames between two ports on a pair of veth interfaces arrive as they were sent, whatever the kernel makes of
//! them on the way. Needs root.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use tally_dpdk::{Eal, EalConfig, Mbuf, Mempool, MempoolConfig};
use tally_packet::{Error, PacketRx, PacketTx, Ready, open, superframes};
use tally_wire::frame::{ETHERTYPE_IPV4, UDP_END, internet_checksum};

const MTU: usize = 9000;

/// A pair of interfaces, gone with the value.
struct Veth(String, String);

impl Veth {
    fn new() -> Self {
        let id = std::process::id() % 100_000;
        let veth = Self(format!("tp{id}"), format!("tq{id}"));
        ip(&[
            "link", "add", &veth.0, "type", "veth", "peer", "name", &veth.1,
        ]);
        for side in [&veth.0, &veth.1] {
            // Keeps the kernel from saying anything of its own on them.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{side}/disable_ipv6"), "1");
            ip(&["link", "set", side, "mtu", &MTU.to_string(), "up"]);
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
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success(), "ip {}", arguments.join(" "));
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

#[test]
fn frames_arrive_as_they_were_sent() {
    if !is_root() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: packet sockets need root");
        return;
    }
    let eal = Eal::init(&EalConfig::no_huge(512)).unwrap();
    let config = MempoolConfig {
        frames: 4095,
        frame_bytes_max: 9216,
        ..MempoolConfig::default()
    };
    let pool = Mempool::new(&eal, "frames", &config).unwrap();
    let veth = Veth::new();
    let missing = open("no-such-if", &pool, &mut Ready::new().unwrap())
        .map(drop)
        .unwrap_err();
    assert!(matches!(missing, Error::NoInterface(_)), "{missing}");
    {
        let mut ready = Ready::new().unwrap();
        let mut a = open(&veth.0, &pool, &mut ready).unwrap();
        let b = open(&veth.1, &pool, &mut ready).unwrap();
        let mut b = (Receiver { rx: b.0, ready }, b.1);
        trains_of_every_length(&pool, &mut a.1, &mut b.0);
        mixtures(&pool, &mut a.1, &mut b.0);
        what_is_too_long_is_counted(&pool, &mut a.1, &mut b.0);
        a_socket_s_superframes_are_cut(&veth, &mut b.0);
        assert_eq!(b.0.rx.unsupported(), 0);
        assert_eq!(b.0.rx.no_buffer(), 0);
    }
    assert!(pool.is_whole());
}

/// A UDP frame with content that says which it is.
fn frame(flow: u8, bytes: usize, number: usize) -> Vec<u8> {
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

fn send(pool: &Mempool, tx: &mut PacketTx, frames: &[Vec<u8>]) {
    let mut out: Vec<Mbuf> = frames.iter().map(|f| pool.alloc_copy(f).unwrap()).collect();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !out.is_empty() {
        tx.burst(&mut out);
        assert!(Instant::now() < deadline, "{} frames left", out.len());
    }
}

struct Receiver {
    rx: PacketRx,
    ready: Ready,
}

fn receive(Receiver { rx, ready }: &mut Receiver, n: usize) -> Vec<Vec<u8>> {
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

#[track_caller]
fn carries(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver, frames: &[Vec<u8>]) {
    let errors = tx.errors();
    send(pool, tx, frames);
    assert_eq!(tx.errors(), errors);
    let got = receive(rx, frames.len());
    assert_eq!(got.len(), frames.len());
    for (at, (got, sent)) in got.iter().zip(frames).enumerate() {
        assert!(
            got == sent,
            "frame {at} of {} bytes, as {}",
            sent.len(),
            got.len()
        );
    }
}

fn trains_of_every_length(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    for bytes in [1, 22, 86, 278, 1046, 1472, 8214, MTU - 28] {
        for n in [1, 2, 3, 7, 8, 31, 32, 33, 64, 65, 100] {
            let frames: Vec<_> = (0..n).map(|number| frame(1, bytes, number)).collect();
            carries(pool, tx, rx, &frames);
        }
    }
}

/// Lengths and destinations change at random; what is no UDP is in between.
fn mixtures(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let mut frames = Vec::new();
        for _ in 0..=random(6) {
            let (flow, n) = (1 + random(2) as u8, 1 + random(20) as usize);
            let bytes = [1, 90, 1046, 8214][random(4) as usize];
            match random(8) {
                // TCP, and something that is not IP at all.
                0 => frames.extend((0..n).map(|number| {
                    let mut f = frame(flow, bytes, number);
                    f[23] = 6;
                    f
                })),
                1 => frames.push(vec![0x5a; 60]),
                _ => frames.extend((0..n).map(|number| frame(flow, bytes, number))),
            }
        }
        carries(pool, tx, rx, &frames);
    }
}

fn what_is_too_long_is_counted(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    let errors = tx.errors();
    let frames = [frame(1, 90, 0), frame(1, MTU + 30, 1), frame(1, 90, 2)];
    send(pool, tx, &frames);
    assert_eq!(tx.errors(), errors + 1);
    assert_eq!(receive(rx, 2), [frames[0].clone(), frames[2].clone()]);
}

/// As a worker sends them: one system call, one frame to the kernel, many to us.
fn a_socket_s_superframes_are_cut(veth: &Veth, rx: &mut Receiver) {
    if !superframes() {
        let what = "SKIPPED: this kernel has no superframes on packet sockets";
        let _ = writeln!(std::io::stderr(), "{what}");
        return;
    }
    ip(&["address", "add", "10.84.77.1/24", "dev", &veth.0]);
    ip(&[
        "neighbour",
        "add",
        "10.84.77.2",
        "lladdr",
        "02:00:00:00:00:01",
        "dev",
        &veth.0,
    ]);
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 84, 77, 1), 0);
    let socket = UdpSocket::bind(from).unwrap();
    for (bytes, n) in [(1046, 20), (8214, 7), (300, 3), (1046, 62), (90, 64)] {
        let content: Vec<u8> = (0..bytes * n)
            .map(|at| (at / 7 + at / bytes) as u8)
            .collect();
        set_segment(&socket, bytes as i32);
        socket.send_to(&content, "10.84.77.2:31249").unwrap();
        let got = receive(rx, n);
        assert_eq!(got.len(), n, "{n} datagrams of {bytes}");
        for (frame, datagram) in got.iter().zip(content.chunks(bytes)) {
            assert!(frame[UDP_END..] == *datagram);
            assert_eq!(internet_checksum(&frame[14..34]), 0);
            assert_eq!(frame[16..18], ((28 + bytes) as u16).to_be_bytes());
            assert_eq!(
                frame[38..42],
                [&((8 + bytes) as u16).to_be_bytes()[..], &[0, 0]].concat()
            );
        }
    }
}

fn set_segment(socket: &UdpSocket, bytes: libc::c_int) {
    use std::os::fd::AsRawFd;
    const UDP_SEGMENT: libc::c_int = 103;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: a number of that size.
    let ret = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            UDP_SEGMENT,
            (&raw const bytes).cast(),
            size,
        )
    };
    assert_eq!(ret, 0);
}
