//! What the tests share. One file of tests is one process, and one process has one EAL; so each
//! file has one `#[test]`, which runs its cases in turn.
#![allow(dead_code)]

pub mod child;

use std::time::{Duration, Instant};

use tally_dpdk::{Eal, EalConfig, Mbuf, Mempool, MempoolConfig};

/// An EAL without hugepages or privileges.
pub fn eal() -> Eal {
    Eal::init(&EalConfig::no_huge(64)).expect("the EAL starts without hugepages")
}

pub fn pool(eal: &Eal, name: &str, frames: u32, cache_frames: u32) -> Mempool {
    let config = MempoolConfig {
        frames,
        cache_frames,
        ..MempoolConfig::default()
    };
    Mempool::new(eal, name, &config).expect("there is memory for the pool")
}

/// The n-th frame: its length and content follow from its number.
pub fn pattern(n: usize) -> Vec<u8> {
    let len = 60 + (n * 37) % 1400;
    let mut bytes: Vec<u8> = (0..len).map(|i| (n * 7 + i) as u8).collect();
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    bytes
}

pub fn frame(pool: &Mempool, n: usize) -> Mbuf {
    pool.alloc_copy(&pattern(n)).expect("the pool has a frame")
}

/// The same bytes in two segments, headers and payload. The second reference to the payload is for
/// a test that wants to see what becomes of it.
pub fn in_two(pool: &Mempool, mut frame: Mbuf) -> (Mbuf, Mbuf) {
    let head = pool.alloc_copy(&frame.data()[..52]).expect("a frame");
    assert!(frame.adj(52));
    let kept = frame.share();
    (Mbuf::chain(head, frame).expect("a chain"), kept)
}

/// Whose process calls.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self")
        .expect("/proc is there")
        .uid()
        == 0
}

/// Says that a part of a test can't run here: past the test harness, which hides what passing
/// tests print.
pub fn skipped(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// Waits for something that another thread or process does.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
