//! Superframes that are forwarded: whole from kernel to kernel, and cut where they must be. Needs
//! root.

#![allow(clippy::unwrap_used)]

mod common;

use common::veth::Veth;
use common::{Receiver, frame, is_root, new_pool, receive, skipped, tagged};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tally_dpdk::{Cut, Mbuf, Mempool, free_bulk};
use tally_packet::{PacketTx, Ready, Segmenter, open, segment, superframes};
use tally_wire::frame::internet_checksum;
use tally_wire::superframe::Superframe;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);

/// The headers and lengths of a superframe, with content that says which it is.
#[derive(Clone, Copy, Debug)]
struct Kind {
    ipv6: bool,
    udp: bool,
    tags: usize,
}

const fn kind(ipv6: bool, udp: bool, tags: usize) -> Kind {
    Kind { ipv6, udp, tags }
}

const KINDS: [Kind; 8] = [
    kind(false, false, 0),
    kind(true, false, 0),
    kind(false, true, 0),
    kind(true, true, 0),
    kind(false, false, 1),
    kind(true, false, 1),
    kind(false, true, 1),
    kind(true, true, 2),
];

fn superframe(kind: Kind, payload: usize) -> Vec<u8> {
    let content = frame(1, payload, payload);
    let mut transport = vec![0x7a, 0x21, 0x7a, 0x22];
    if kind.udp {
        transport.extend(((8 + payload) as u16).to_be_bytes());
        transport.extend([0, 0]);
    } else {
        // A number, an acknowledgement, two words of options, PSH and ACK.
        transport.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x70, 0x18, 1, 1, 0, 0, 0, 0]);
        transport.extend([1; 8]);
    }
    transport.extend(&content[42..]);
    let mut all = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9];
    let protocol = if kind.udp { 17 } else { 6 };
    if kind.ipv6 {
        all.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        all.extend((transport.len() as u16).to_be_bytes());
        all.extend([protocol, 64]);
        all.extend([0xfd; 16]);
        all.extend([0xfe; 16]);
    } else {
        let mut ip = vec![0x45, 0];
        ip.extend(((20 + transport.len()) as u16).to_be_bytes());
        ip.extend([
            7, 7, 0x40, 0, 64, protocol, 0, 0, 10, 84, 0, 1, 10, 84, 0, 2,
        ]);
        let checksum = internet_checksum(&ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        all.extend([8, 0]);
        all.extend(ip);
    }
    all.extend(transport);
    for tag in 0..kind.tags {
        let tpid = if tag == 0 { 0x8100 } else { 0x88a8 };
        all = tagged(&all, tpid, 5 + tag as u16);
    }
    all
}

/// With the open checksum that the kernel wants.
fn opened(mut frame: Vec<u8>, segment_bytes: usize) -> (Vec<u8>, Superframe) {
    let it = Superframe::parse(&frame, frame.len(), segment_bytes as u16).unwrap();
    it.open_checksum(&mut frame);
    (frame, it)
}

/// As a chain of buffers that are no longer than `piece`.
fn chain(pool: &Mempool, frame: &[u8], it: &Superframe, piece: usize) -> Mbuf {
    let mut pieces = frame
        .chunks(piece)
        .map(|bytes| pool.alloc_copy(bytes).unwrap());
    let mut chain = Mbuf::chain_all(pieces.next().unwrap(), pieces).unwrap();
    assert!(chain.set_cut(Cut {
        headers_bytes: it.headers_bytes() as u16,
        segment_bytes: it.segment_bytes() as u16,
    }));
    chain
}

/// What a superframe is to become, from one buffer.
fn cut(frame: &[u8], it: &Superframe) -> Vec<Vec<u8>> {
    let (head, payload) = frame.split_at(it.headers_bytes());
    let one = |index| {
        let mut out = [head, &payload[it.payload_of(index)]].concat();
        it.write_headers(head, index, &mut out);
        out
    };
    (0..it.segments()).map(one).collect()
}

fn bytes_of(frame: &Mbuf) -> Vec<u8> {
    frame.parts().collect::<Vec<_>>().concat()
}

fn send(tx: &mut PacketTx, mut frames: Vec<Mbuf>) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !frames.is_empty() {
        tx.burst(&mut frames);
        assert!(Instant::now() < deadline, "{} frames left", frames.len());
    }
}

fn receive_whole(Receiver { rx, ready }: &mut Receiver, n: usize) -> Vec<Mbuf> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut got = Vec::new();
    while got.len() < n && Instant::now() < deadline {
        ready.look(Duration::from_millis(1));
        rx.burst(&mut got, 32);
    }
    assert_eq!(got.len(), n);
    got
}

#[test]
fn superframes_are_forwarded_whole_and_cut_exactly() {
    if !is_root() {
        skipped("packet sockets need root");
        return;
    }
    if !superframes() {
        skipped("this kernel has no superframes on packet sockets");
        return;
    }
    let (_eal, pool) = new_pool();
    let veth = Veth::new();
    {
        let mut ready = Ready::new().unwrap();
        let (_, mut tx) = open(&veth.0, &pool, &mut ready).unwrap();
        let (mut rx, _) = open(&veth.1, &pool, &mut ready).unwrap();
        rx.forward_superframes(OWN);
        let mut rx = Receiver { rx, ready };
        whole_from_kernel_to_kernel(&pool, &mut tx, &mut rx);
        after_short_datagrams_to_the_switch(&pool, &mut tx, &mut rx);
        cut_where_the_kernel_refuses(&pool, &mut tx, &mut rx);
        cut_for_a_driver_that_takes_few(&pool);
        assert_eq!(rx.rx.unsupported() + rx.rx.no_buffer() + tx.errors(), 0);
        a_dry_pool_loses_the_rest(&pool);
    }
    assert!(pool.is_whole());
}

fn whole_from_kernel_to_kernel(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    for kind in KINDS {
        for (payload, segment_bytes) in
            [(1500, 1400), (30_000, 1448), (63_000, 1428), (64_900, 8900)]
        {
            let (frame, it) = opened(superframe(kind, payload), segment_bytes);
            // Two of them, between frames like any other.
            let small = || pool.alloc_copy(&common::frame(3, 90, 1)).unwrap();
            let frames = vec![
                small(),
                chain(pool, &frame, &it, 4000),
                chain(pool, &frame, &it, 9216),
                small(),
            ];
            send(tx, frames);
            let got = receive_whole(rx, 4);
            for whole in &got[1..3] {
                assert!(bytes_of(whole) == frame, "{kind:?} {payload}");
                assert_eq!(whole.wire_frames(), it.segments());
                assert_eq!(whole.wire_bytes(), it.headers_bytes() + segment_bytes);
                let mut frames = Vec::new();
                assert_eq!(segment(whole, pool, &mut frames), 0);
                let frames: Vec<_> = frames.iter().map(bytes_of).collect();
                assert!(frames == cut(&frame, &it), "{kind:?} {payload}");
            }
            assert!(!got[0].is_superframe() && !got[3].is_superframe());
        }
    }
}

/// They set where the next one is expected to be cut, so it is not where it was expected.
fn after_short_datagrams_to_the_switch(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    let group = tally_wire::frame::group_of(tally_wire::JobId(7));
    let cases = [1, 20, 90, 1046].map(|bytes| (bytes, OWN));
    // A parent switch sends results to the group of a job (A-2, TR-8).
    for (bytes, to) in cases.into_iter().chain([(1046, group)]) {
        let to_the_switch = |number| {
            let mut f = frame(1, bytes, number);
            f[30..34].copy_from_slice(&to.octets());
            f[24..26].fill(0);
            let checksum = internet_checksum(&f[14..34]);
            f[24..26].copy_from_slice(&checksum.to_be_bytes());
            f
        };
        let datagrams: Vec<_> = (0..20).map(to_the_switch).collect();
        let copies = datagrams.iter().map(|f| pool.alloc_copy(f).unwrap());
        send(tx, copies.collect());
        assert!(receive(rx, 20) == datagrams, "cut, as before");
        for kind in KINDS {
            let (frame, it) = opened(superframe(kind, 40_000), 1400);
            send(tx, vec![chain(pool, &frame, &it, 9216)]);
            let got = receive_whole(rx, 1);
            assert!(bytes_of(&got[0]) == frame, "{kind:?} after {bytes}");
            let copies = datagrams.iter().map(|f| pool.alloc_copy(f).unwrap());
            send(tx, copies.collect());
            assert!(receive(rx, 20) == datagrams);
        }
    }
}

/// Of UDP the kernel takes no more than 128 datagrams.
fn cut_where_the_kernel_refuses(pool: &Mempool, tx: &mut PacketTx, rx: &mut Receiver) {
    let (frame, it) = opened(superframe(kind(false, true, 0), 300 * 200 - 7), 200);
    let small = common::frame(3, 90, 1);
    let ordinary = || pool.alloc_copy(&small).unwrap();
    for _ in 0..2 {
        send(
            tx,
            vec![ordinary(), chain(pool, &frame, &it, 9000), ordinary()],
        );
        let got = receive(rx, 302);
        assert!(got[0] == small && got[301] == small);
        assert!(got[1..301] == cut(&frame, &it));
    }
}

/// What is left is sent by the next calls, in order, and nothing twice.
fn cut_for_a_driver_that_takes_few(pool: &Mempool) {
    let kind = KINDS[0];
    let (frame, it) = opened(superframe(kind, 20_000), 1448);
    let small = common::frame(3, 90, 1);
    let ordinary = || pool.alloc_copy(&small).unwrap();
    let superframe = || chain(pool, &frame, &it, 9000);
    let expected = [
        &[small.clone(), small.clone()],
        &cut(&frame, &it)[..],
        &cut(&frame, &it),
        std::slice::from_ref(&small),
    ]
    .concat();
    for room in [1, 2, 3, 5, 14, 15, 100] {
        let mut segmenter = Segmenter::new(pool.clone());
        let mut frames = vec![
            ordinary(),
            ordinary(),
            superframe(),
            superframe(),
            ordinary(),
        ];
        let mut sent = Vec::new();
        let mut before = frames.len();
        for _ in 0..1000 {
            let mut left = room;
            let gone = segmenter.send(&mut frames, |offered| {
                let n = offered.len().min(left);
                left -= n;
                sent.extend(offered.iter().take(n).map(bytes_of));
                let mut taken: Vec<_> = offered.drain(..n).collect();
                free_bulk(&mut taken);
            });
            assert_eq!(before - frames.len(), gone);
            before = frames.len();
            if frames.is_empty() {
                break;
            }
        }
        assert!(sent == expected, "{room} at a time");
        assert_eq!(segmenter.no_buffer(), 0);
        // What waits is given up in the middle of a superframe.
        let mut frames = vec![superframe()];
        segmenter.send(&mut frames, |offered| drop(offered.pop()));
        assert_eq!(frames.len(), 1);
        frames = vec![ordinary()];
        segmenter.send(&mut frames, Vec::clear);
        assert!(frames.is_empty());
    }
}

fn a_dry_pool_loses_the_rest(pool: &Mempool) {
    let (frame, it) = opened(superframe(KINDS[0], 20_000), 1448);
    let whole = chain(pool, &frame, &it, 9000);
    let mut held = Vec::new();
    assert!(pool.alloc_bulk(&mut held, pool.available() - 3));
    let mut frames = Vec::new();
    assert_eq!(segment(&whole, pool, &mut frames), it.segments() - 3);
    assert!(
        frames
            .iter()
            .map(bytes_of)
            .eq(cut(&frame, &it)[..3].iter().cloned())
    );
}
