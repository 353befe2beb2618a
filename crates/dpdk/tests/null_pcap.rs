//! `net_null` and `net_pcap`: ports that need nothing.

mod common;

use std::fs;

use common::{frame, pattern, pool};
use tally_dpdk::{Eal, Error, Mbuf, Mempool, Port, PortConfig, StartedPort, free_bulk};

#[test]
fn null_and_pcap() {
    let eal = common::eal();
    let pool = pool(&eal, "p", 1023, 32);
    let config = PortConfig::default();
    let start = |name: &str, arguments: &str| -> StartedPort {
        Port::vdev(&eal, name, arguments)
            .expect("a port")
            .configure(&config, std::slice::from_ref(&pool))
            .expect("it takes the configuration")
            .start()
            .expect("it starts")
    };

    // An endless source and a sink.
    let mut null = start("net_null0", "size=128");
    assert_eq!(null.port.info().driver, "net_null");
    let mut frames: Vec<Mbuf> = Vec::with_capacity(32);
    for _ in 0..1000 {
        assert_eq!(null.rx[0].burst(&mut frames, 32), 32);
        assert!(frames.iter().all(|frame| frame.data().len() == 128));
        assert!(frames.iter().all(|frame| frame.port() == null.port.id()));
        assert_eq!(null.tx[0].burst(&mut frames), 32);
    }
    drop(null);
    assert!(pool.is_whole());

    // It would write lengths beyond the buffer.
    let null = Port::vdev(&eal, "net_null1", "size=0x1000").expect("a port");
    let refused = null.configure(&config, std::slice::from_ref(&pool));
    assert!(matches!(refused, Err(Error::TooMuch { what: "size", .. })));

    // Written to a file, read back.
    let file = std::env::temp_dir().join(format!("tally-{}.pcap", std::process::id()));
    let path = file.to_str().expect("a plain path");
    let mut writer = start("net_pcap0", &format!("tx_pcap={path}"));
    let mut frames: Vec<Mbuf> = (0..200).map(|n| frame(&pool, n)).collect();
    while !frames.is_empty() {
        assert_ne!(writer.tx[0].burst(&mut frames), 0);
    }
    assert_eq!(writer.port.stats().expect("counters").tx_frames, 200);
    drop(writer);
    assert!(pool.is_whole());
    let mut reader = start("net_pcap1", &format!("rx_pcap={path}"));
    while reader.rx[0].burst(&mut frames, 32) != 0 {}
    assert_eq!(frames.len(), 200);
    for (n, frame) in frames.iter().enumerate() {
        assert_eq!(frame.data(), pattern(n));
    }
    free_bulk(&mut frames);
    drop(reader);
    assert!(pool.is_whole());
    fs::remove_file(file).expect("it was there");

    chains(&eal, &pool);

    // What is refused.
    let refused = Port::vdev(&eal, "net_nonsense0", "");
    assert!(matches!(refused, Err(Error::Call { .. })));
    let try_with = |config: PortConfig, pools: &[_]| {
        Port::vdev(&eal, "net_null2", "")
            .expect("the name is free again")
            .configure(&config, pools)
            .map(drop)
    };
    let two = [pool.clone(), pool.clone()];
    assert!(matches!(
        try_with(config, &two),
        Err(Error::PoolCount { .. })
    ));
    assert!(matches!(
        try_with(config, &[]),
        Err(Error::PoolCount { .. })
    ));
    let one = std::slice::from_ref(&pool);
    let rx_queues = |rx_queues| PortConfig {
        rx_queues,
        ..config
    };
    assert!(matches!(
        try_with(rx_queues(0), one),
        Err(Error::Zero { .. })
    ));
    assert!(matches!(
        try_with(rx_queues(2000), one),
        Err(Error::TooMuch { .. })
    ));
    let mtu = PortConfig {
        mtu: Some(4000),
        ..config
    };
    assert!(matches!(try_with(mtu, one), Err(Error::TooMuch { .. })));
    let first = Port::vdev(&eal, "net_null3", "").expect("a port");
    assert!(
        Port::vdev(&eal, "net_null3", "").is_err(),
        "the name is taken"
    );
    drop(first);
    assert!(pool.is_whole());
}

/// Frames of two segments: both drivers take them, though neither says so.
fn chains(eal: &Eal, pool: &Mempool) {
    let file = std::env::temp_dir().join(format!("tally-chains-{}.pcap", std::process::id()));
    let path = file.to_str().expect("a plain path");
    let config = PortConfig {
        tx_multi_segment: true,
        ..PortConfig::default()
    };
    let start = |name: &str, arguments: &str| -> StartedPort {
        Port::vdev(eal, name, arguments)
            .expect("a port")
            .configure(&config, std::slice::from_ref(pool))
            .expect("it takes the configuration")
            .start()
            .expect("it starts")
    };
    let tail = frame(pool, 9);
    let chains = || -> Vec<Mbuf> {
        (0..100_u8)
            .map(|n| {
                let head = pool.alloc_copy(&[n; 52]).expect("a frame");
                Mbuf::chain(head, tail.share()).expect("a chain")
            })
            .collect()
    };
    let arguments = format!("tx_pcap={path}");
    for (name, arguments) in [("net_null4", ""), ("net_pcap4", arguments.as_str())] {
        let mut port = start(name, arguments);
        let mut frames = chains();
        while !frames.is_empty() {
            assert_ne!(port.tx[0].burst(&mut frames), 0);
        }
        assert_eq!(port.tx[0].chained_dropped(), 0);
        assert!(tail.is_unique());
    }
    let mut reader = start("net_pcap5", &format!("rx_pcap={path}"));
    let mut frames = Vec::new();
    while reader.rx[0].burst(&mut frames, 32) != 0 {}
    assert_eq!(frames.len(), 100);
    for (n, frame) in frames.iter().enumerate() {
        assert!(frame.data() == [&[n as u8; 52], &pattern(9)[..]].concat());
    }
    drop((reader, frames, tail));
    assert!(pool.is_whole());
    fs::remove_file(file).expect("it was there");
}
