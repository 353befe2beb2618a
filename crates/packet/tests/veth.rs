//! Frames between two ports on a pair of veth interfaces arrive as they were sent, for each way of
//! the kernel makes of them on the way. Needs root.

#![allow(clippy::unwrap_used)]

mod common;

use common::veth::{MTU, Veth};
use common::{Receiver, frame, ip, is_root, new_pool, receive, silence, skipped, tagged};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use tally_dpdk::{Mbuf, Mempool};
use tally_packet::{Error, PacketTx, Ready, open, superframes};
use tally_wire::frame::{UDP_END, internet_checksum};

/// The interface is there; what is missing is a descriptor to ask for it.
fn no_descriptors_are_named(veth: &Veth, pool: &Mempool) {
    let mut ready = Ready::new().unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let error = open(&veth.0, pool, &mut ready).map(drop).unwrap_err();
    drop(taken);
    let text = error.to_string();
    assert!(
        text.starts_with("opening a packet socket: all ") && text.contains("LimitNOFILE"),
        "{text}"
    );
}

#[test]
fn frames_arrive_as_they_were_sent() {
    if !is_root() {
        skipped("packet sockets need root");
        return;
    }
    let (_eal, pool) = new_pool();
    let veth = Veth::new();
    let missing = open("no-such-if", &pool, &mut Ready::new().unwrap())
        .map(drop)
        .unwrap_err();
    assert!(matches!(missing, Error::NoInterface(_)), "{missing}");
    no_descriptors_are_named(&veth, &pool);
    {
        let mut ready = Ready::new().unwrap();
        let mut a = open(&veth.0, &pool, &mut ready).unwrap();
        let b = open(&veth.1, &pool, &mut ready).unwrap();
        let mut b = (Receiver { rx: b.0, ready }, b.1);
        trains_of_every_length(&pool, &mut a.1, &mut b.0);
        mixtures(&pool, &mut a.1, &mut b.0);
        segments_are_gathered(&pool, &mut a.1, &mut b.0);
        what_is_too_long_is_counted(&pool, &mut a.1, &mut b.0);
        a_socket_s_superframes_are_cut(&veth, &mut b.0);
        tags_stay(&pool, &mut a.1, &mut b.0);
        a_vlan_s_frames_have_its_tag(&veth, &mut b.0);
        assert_eq!(b.0.rx.unsupported(), 0);
        assert_eq!(b.0.rx.no_buffer(), 0);
    }
    assert!(pool.is_whole());
}

fn send(pool: &Mempool, tx: &mut PacketTx, frames: &[Vec<u8>]) {
    let mut out: Vec<Mbuf> = frames.iter().map(|f| pool.alloc_copy(f).unwrap()).collect();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !out.is_empty() {
        tx.burst(&mut out);
        assert!(Instant::now() < deadline, "{} frames left", out.len());
    }
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

/// A frame cut in two at some byte, the second part with another holder.
fn in_two(pool: &Mempool, frame: &[u8], at: usize) -> (Mbuf, Mbuf) {
    let tail = pool.alloc_copy(&frame[at..]).unwrap();
    let head = pool.alloc_copy(&frame[..at]).unwrap();
    (Mbuf::chain(head, tail.share()).unwrap(), tail)
}

/// Frames whose payload many have: alone and as superframes, beside whole ones, and cut in their
/// headers.
fn segments_are_gathered(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    let errors = tx.errors();
    for bytes in [12, 266, 1034, 8202] {
        for n in [1, 2, 31, 64, 100] {
            // All alike but for what is in front of the cut, as results to many workers are.
            let frames: Vec<_> = (0..n).map(|number| frame(1, bytes, number)).collect();
            let (mut out, mut kept) = (Vec::new(), Vec::new());
            for (number, frame) in frames.iter().enumerate() {
                // Behind the headers, in them, and not at all.
                let at = match number % 7 {
                    5 => UDP_END,
                    6 => UDP_END - 1,
                    _ => UDP_END + 10,
                };
                if number % 9 == 8 {
                    out.push(pool.alloc_copy(frame).unwrap());
                    continue;
                }
                let (chain, tail) = in_two(pool, frame, at);
                out.push(chain);
                kept.push(tail);
            }
            let deadline = Instant::now() + Duration::from_secs(5);
            while !out.is_empty() {
                tx.burst(&mut out);
                assert!(Instant::now() < deadline, "{} frames left", out.len());
            }
            let got = receive(rx, n);
            assert!(got == frames, "{n} of {bytes}");
            assert!(kept.iter().all(Mbuf::is_unique));
        }
    }
    assert_eq!(tx.errors(), errors);
    // One payload in all of them.
    let payload = frame(1, 1034, 5);
    let tail = pool.alloc_copy(&payload[52..]).unwrap();
    let chain = |_| Mbuf::chain(pool.alloc_copy(&payload[..52]).unwrap(), tail.share()).unwrap();
    let mut out: Vec<_> = (0..40).map(chain).collect();
    while !out.is_empty() {
        tx.burst(&mut out);
    }
    assert!(receive(rx, 40).iter().all(|frame| *frame == payload));
    assert!(tail.is_unique());
}

/// The kernel takes them out before it gives frames to a socket.
fn tags_stay(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    let train = |bytes| (0..3).map(move |number| frame(1, bytes, number));
    // A network, with and without priority; a priority alone; nothing at all.
    for tci in [5, 0xf005, 0x6000, 0] {
        for tpid in [0x8100, 0x88a8] {
            // Packet sockets send no longer ones with the other tag.
            let most = if tpid == 0x8100 { MTU - 28 } else { MTU - 32 };
            for bytes in [1, 22, 1046, most] {
                let one = tagged(&frame(1, bytes, 7), tpid, tci);
                // Where it is as long as what came before, shorter, and longer.
                for other in [bytes, 8214, 1] {
                    let frames: Vec<_> = train(other)
                        .chain([one.clone(), one.clone()])
                        .chain(train(other))
                        .collect();
                    carries(pool, tx, rx, &frames);
                }
            }
        }
    }
    let two = |tpid| tagged(&tagged(&frame(1, 1046, 0), 0x8100, 5), tpid, 7);
    carries(pool, tx, rx, &[two(0x88a8), two(0x8100)]);
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
        skipped("this kernel has no superframes on packet sockets");
        return;
    }
    let socket = socket_on(&veth.0, 77);
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

/// A socket on an interface, with a neighbour entry for 10.84.`net`.2.
fn socket_on(interface: &str, net: u8) -> UdpSocket {
    let [address, neighbour] = [format!("10.84.{net}.1/24"), format!("10.84.{net}.2")];
    ip(&["address", "add", &address, "dev", interface]);
    let lladdr = ["lladdr", "02:00:00:00:00:01", "dev", interface];
    ip(&[&["neighbour", "add", &neighbour], &lladdr[..]].concat());
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 84, net, 1), 0);
    UdpSocket::bind(from).unwrap()
}

/// As from a host with an interface in a VLAN: the tag was never in the frame, and the checksum is
/// open.
fn a_vlan_s_frames_have_its_tag(veth: &Veth, rx: &mut Receiver) {
    let name = format!("{}.5", veth.0);
    let arguments = ["link", "add", "link", &veth.0, "name", &name];
    let mut add = Command::new("ip");
    add.args(arguments).args(["type", "vlan", "id", "5"]);
    if !add.output().unwrap().status.success() {
        skipped("this kernel has no interfaces in VLANs");
        return;
    }
    silence(&name);
    ip(&["link", "set", &name, "up"]);
    let socket = socket_on(&name, 78);
    for bytes in [1, 1046, MTU - 28] {
        let content: Vec<u8> = (0..bytes).map(|at| (at / 3) as u8).collect();
        socket.send_to(&content, "10.84.78.2:31249").unwrap();
        let got = receive(rx, 1);
        assert_eq!(got.len(), 1, "{bytes} bytes");
        assert_eq!(got[0][12..18], [0x81, 0, 0, 5, 8, 0]);
        assert_eq!(internet_checksum(&got[0][18..38]), 0);
        assert_eq!(got[0][44..46], [0, 0]);
        assert!(got[0][46..] == content);
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
