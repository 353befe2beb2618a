//! The EAL's life: once per process, no trace on the caller's thread, and an end that waits for
//! also of values that are still alive.

mod common;

use std::env;
use std::fs;

use common::child::{Stage, User, users};
use common::{frame, pattern, pool, skipped};
use tally_dpdk::{Eal, EalConfig, Error, Memory, Port, PortConfig};

#[test]
fn life() {
    match env::var("TALLY_CASE").as_deref() {
        Ok("life") => return one_life(),
        Ok("held") => return held_frame(),
        Ok("no-hugepages") => return no_hugepages(),
        Ok("abort") => {
            let eal = common::eal();
            std::mem::forget(eal);
            std::process::abort();
        }
        _ => {}
    }
    for user in users() {
        let stage = Stage::new("eal");
        let run = |case| {
            stage
                .start("life", user, &[("TALLY_CASE", case)])
                .wait()
                .expect("it ends")
                .success()
        };
        assert!(!run("abort"));
        assert!(run("life"), "after a crash, as {user:?}");
        assert!(run("held"));
        if user == User::Unprivileged {
            assert!(run("no-hugepages"));
        }
    }
}

fn affinity() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").expect("/proc");
    let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list"));
    line.expect("a line").to_owned()
}

fn one_life() {
    let before = affinity();
    let eal = common::eal();
    assert_eq!(affinity(), before);
    let again = Eal::init(&EalConfig::no_huge(16));
    assert!(matches!(again, Err(Error::AlreadyInitialised)));
    assert!(tally_dpdk::cycles_per_second(&eal) > 100_000_000);
    assert!(tally_dpdk::cycles() < tally_dpdk::cycles());

    // Dropped in the least likely order.
    let pool = pool(&eal, "p", 511, 32);
    let started = Port::vdev(&eal, "net_null0", "")
        .expect("a port")
        .configure(&PortConfig::default(), std::slice::from_ref(&pool))
        .expect("it takes the configuration")
        .start()
        .expect("it starts");
    drop(eal);
    drop(started.port);
    drop(pool);
    let mut rx = started.rx;
    let mut frames = Vec::new();
    assert_eq!(rx[0].burst(&mut frames, 32), 32);
    drop(started.tx);
    drop(frames);
    drop(rx);
    let again = Eal::init(&EalConfig::no_huge(16));
    assert!(matches!(again, Err(Error::AlreadyInitialised)));
}

/// The last values to go are frames: their memory is still there.
fn held_frame() {
    let eal = common::eal();
    let pool = pool(&eal, "p", 511, 32);
    let mut held = frame(&pool, 9);
    let shared = held.share();
    drop((pool, eal));
    assert_eq!(shared.data(), pattern(9));
    drop(shared);
    held.data_mut().expect("alone")[0] = 1;
    drop(held);
}

fn no_hugepages() {
    let config = EalConfig::in_memory(64);
    assert_eq!(config.memory, Memory::InMemory { megabytes: 64 });
    match Eal::init(&config) {
        Err(Error::EalInit { .. }) => {}
        Err(error) => panic!("another error: {error}"),
        Ok(_) => skipped("no hugepages for an unprivileged user: this host has some"),
    }
}
