//! `net_ring`: ownership over a burst, in both directions, and what is left when the ring is full.

mod common;

use common::{frame, pattern, pool};
use tally_dpdk::{
    Mbuf, Mempool, Port, PortConfig, Probed, RingPairConfig, StartedPort, free_bulk, ring_pair,
};

#[test]
fn back_to_back() {
    let eal = common::eal();
    let left_pool = pool(&eal, "left", 511, 32);
    let right_pool = pool(&eal, "right", 511, 32);
    let rings = RingPairConfig {
        queues: 2,
        frames: 64,
    };
    let (a, b) = ring_pair(&eal, "t", &rings).expect("a pair");
    assert_eq!(a.info().driver, "net_ring");
    let config = PortConfig {
        rx_queues: 2,
        tx_queues: 2,
        ..PortConfig::default()
    };
    let start = |port: Port<_>, pool: &Mempool| -> StartedPort {
        port.configure(&config, std::slice::from_ref(pool))
            .expect("it takes the configuration")
            .start()
            .expect("it starts")
    };
    let mut a = start(a, &left_pool);
    let mut b = start(b, &right_pool);
    assert!(a.port.link().expect("a link").up);

    // Both queues, both directions, content and order.
    for queue in 0..2 {
        exchange(&mut a, &mut b, queue, &left_pool);
        exchange(&mut b, &mut a, queue, &right_pool);
    }

    // Ring full: it takes a prefix; the rest is ours, in order, and usable.
    let mut frames: Vec<Mbuf> = (0..100).map(|n| frame(&left_pool, n)).collect();
    assert_eq!(a.tx[0].burst(&mut frames), 63);
    assert_eq!(frames.len(), 37);
    for (n, frame) in frames.iter_mut().enumerate() {
        assert_eq!(frame.data(), pattern(63 + n));
        frame.data_mut().expect("it is ours")[8] = 0xee;
    }
    assert_eq!(a.tx[0].burst(&mut frames), 0, "still full");
    assert_eq!(frames.len(), 37);
    let mut received = Vec::new();
    assert_eq!(b.rx[0].burst(&mut received, 40), 40);
    assert_eq!(a.tx[0].burst(&mut frames), 37);
    while b.rx[0].burst(&mut received, 32) != 0 {}
    assert_eq!(received.len(), 100);
    for (n, frame) in received.iter().enumerate() {
        let mut expected = pattern(n);
        if n >= 63 {
            expected[8] = 0xee;
        }
        assert_eq!(frame.data(), expected);
    }

    // Two pools in one burst: each frame goes home to its own.
    received.clear();
    assert!(left_pool.is_whole());
    let mut frames: Vec<Mbuf> = (0..20)
        .map(|n| frame(if n % 2 == 0 { &left_pool } else { &right_pool }, n))
        .collect();
    assert_eq!(a.tx[1].burst(&mut frames), 20);
    assert_eq!((left_pool.in_use(), right_pool.in_use()), (10, 10));
    b.rx[1].burst(&mut received, 32);
    received.truncate(10);
    assert_eq!((left_pool.in_use(), right_pool.in_use()), (5, 5));
    free_bulk(&mut received);
    assert!(left_pool.is_whole() && right_pool.is_whole());

    // Shared frames sent twice: each arrival is one reference.
    let original = frame(&left_pool, 7);
    let mut copies: Vec<Mbuf> = (0..5).map(|_| original.share()).collect();
    drop(original);
    assert_eq!(a.tx[0].burst(&mut copies), 5);
    b.rx[0].burst(&mut received, 32);
    assert_eq!(received.len(), 5);
    let mut last = received.pop().expect("five");
    assert!(last.data_mut().is_none());
    free_bulk(&mut received);
    assert_eq!(left_pool.in_use(), 1);
    assert!(last.data_mut().is_some(), "the last one is the only one");
    drop(last);
    assert!(left_pool.is_whole());

    // Without leave to send several segments, a chain is dropped and counted: its payload is
    // shared.
    let tail = frame(&right_pool, 3);
    let chain = |n: u8| {
        let head = left_pool.alloc_copy(&[n; 52]).expect("a frame");
        Mbuf::chain(head, tail.share()).expect("a chain")
    };
    assert!(a.port.info().tx_multi_segment);
    let mut three: Vec<Mbuf> = (0..3).map(chain).collect();
    assert_eq!(a.tx[0].burst(&mut three), 0);
    assert!(three.is_empty() && a.tx[0].chained_dropped() == 3);
    assert!(tail.is_unique() && left_pool.is_whole());
    drop(tail);

    let stats = b.port.stats().expect("counters");
    assert_eq!(stats.rx_frames, 20 * 2 + 100 + 20 + 5);

    // Frames still under way when the ports go are freed; a queue keeps its port alive.
    let mut frames: Vec<Mbuf> = (0..20).map(|n| frame(&left_pool, n)).collect();
    a.tx[0].burst(&mut frames);
    let StartedPort { port, mut rx, tx } = b;
    drop((a, port, tx));
    assert_eq!(rx[0].burst(&mut received, 5), 5);
    drop(rx);
    assert_eq!(left_pool.in_use(), 5);
    drop(received);
    assert!(left_pool.is_whole() && right_pool.is_whole());

    // The names are free again.
    let (a, b) = ring_pair(&eal, "t", &rings).expect("a pair again");
    chains(
        [start_chained(a, &left_pool), start_chained(b, &right_pool)],
        &left_pool,
        &right_pool,
    );
    assert!(left_pool.is_whole() && right_pool.is_whole());
}

fn start_chained(port: Port<Probed>, pool: &Mempool) -> StartedPort {
    let config = PortConfig {
        rx_queues: 2,
        tx_queues: 2,
        tx_multi_segment: true,
        ..PortConfig::default()
    };
    port.configure(&config, std::slice::from_ref(pool))
        .expect("it takes the configuration")
        .start()
        .expect("it starts")
}

/// Frames of two segments with one payload: the ring takes a prefix, and what is under way when the
/// ports go is freed.
fn chains([mut a, mut b]: [StartedPort; 2], heads: &Mempool, tails: &Mempool) {
    let mut tail = frame(tails, 3);
    let chain = |n: u8| {
        let head = heads.alloc_copy(&[n; 52]).expect("a frame");
        Mbuf::chain(head, tail.share()).expect("a chain")
    };
    let mut frames: Vec<Mbuf> = (0..100).map(chain).collect();
    assert_eq!(a.tx[0].burst(&mut frames), 63);
    assert_eq!((frames.len(), heads.in_use()), (37, 100));
    assert_eq!(a.tx[0].burst(&mut frames), 0, "full");
    let mut received = Vec::new();
    assert_eq!(b.rx[0].burst(&mut received, 40), 40);
    for (n, frame) in received.iter().enumerate() {
        let parts: Vec<_> = frame.parts().collect();
        assert_eq!(parts, [&[n as u8; 52][..], &pattern(3)]);
    }
    free_bulk(&mut received);
    assert_eq!(heads.in_use(), 60);
    assert!(tail.data_mut().is_none(), "it is in many frames");
    assert_eq!(a.tx[0].burst(&mut frames), 37);
    drop((a, b));
    assert!(heads.is_whole() && tail.data_mut().is_some());
}

fn exchange(from: &mut StartedPort, to: &mut StartedPort, queue: usize, pool: &Mempool) {
    let mut frames: Vec<Mbuf> = (0..20).map(|n| frame(pool, n)).collect();
    assert_eq!(from.tx[queue].burst(&mut frames), 20);
    assert!(frames.is_empty());
    assert_eq!(pool.in_use(), 20);
    let mut received = Vec::with_capacity(32);
    assert_eq!(to.rx[queue].burst(&mut received, 32), 20);
    assert_eq!(received.capacity(), 32, "no allocation on the data path");
    for (n, frame) in received.iter().enumerate() {
        assert_eq!(frame.data(), pattern(n));
    }
    free_bulk(&mut received);
    assert!(pool.is_whole());
}
