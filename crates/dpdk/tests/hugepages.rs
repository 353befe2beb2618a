//! Hugepages, without files and with, and a second start after a crash. Needs 64 free pages of 2
//! MiB, root, and for the part with files a mounted hugetlbfs.

mod common;

use std::{env, fs};

use common::child::{Stage, User};
use common::{is_root, skipped};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Memory, Mempool, MempoolConfig, Port, PortConfig, free_bulk,
};

const PREFIX: &str = "tallytest";

#[test]
fn hugepages() {
    match env::var("TALLY_CASE").as_deref() {
        Ok("in-memory") => return run(Memory::InMemory { megabytes: 64 }, false),
        Ok("in-memory-crash") => return run(Memory::InMemory { megabytes: 64 }, true),
        Ok("files") => return run(Memory::Hugepages { megabytes: 64 }, false),
        Ok("files-crash") => return run(Memory::Hugepages { megabytes: 64 }, true),
        _ => {}
    }
    if !is_root() || free_pages() < 64 {
        skipped("hugepages: needs root and 64 free pages of 2 MiB (vm.nr_hugepages)");
        return;
    }
    let mounts = fs::read_to_string("/proc/mounts").expect("/proc");
    let mut kinds = vec!["in-memory"];
    let mount = mounts.lines().find(|line| line.contains(" hugetlbfs "));
    if mount.is_some() {
        kinds.push("files");
    } else {
        skipped("hugepages with files: no hugetlbfs is mounted");
    }
    let stage = Stage::new("huge");
    for kind in kinds {
        let start = |case: &str| {
            let mut child = stage.start("hugepages", User::Same, &[("TALLY_CASE", case)]);
            child.wait().expect("it ends")
        };
        assert!(start(kind).success());
        assert!(!start(&format!("{kind}-crash")).success());
        let second = start(kind);
        assert!(second.success(), "{kind} after a crash: {second}");
        if kind == "in-memory" {
            assert!(free_pages() >= 64, "it gives its pages back");
        }
    }
    // Files stay after the process, and keep their pages.
    if let Some(folder) = mount.and_then(|line| line.split(' ').nth(1)) {
        for file in fs::read_dir(folder).expect("it is mounted").flatten() {
            if file.file_name().to_string_lossy().starts_with(PREFIX) {
                fs::remove_file(file.path()).expect("we are root");
            }
        }
    }
    assert!(free_pages() >= 64);
}

fn free_pages() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").expect("/proc");
    let line = info.lines().find_map(|l| l.strip_prefix("HugePages_Free:"));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

fn run(memory: Memory, crash: bool) {
    let config = EalConfig {
        memory,
        file_prefix: PREFIX.into(),
        ..EalConfig::in_memory(0)
    };
    let eal = Eal::init(&config).expect("the EAL starts");
    let _thread = EalThread::register(&eal).expect("registered");
    let pool = Mempool::new(&eal, "p", &MempoolConfig::default()).expect("a pool");
    let mut null = Port::vdev(&eal, "net_null0", "size=1086")
        .expect("a port")
        .configure(&PortConfig::default(), std::slice::from_ref(&pool))
        .expect("it takes the configuration")
        .start()
        .expect("it starts");
    let mut frames = Vec::new();
    assert_eq!(null.rx[0].burst(&mut frames, 32), 32);
    for frame in &mut frames {
        frame.data_mut().expect("ours").fill(7);
        assert_eq!(frame.data().as_ptr().addr() % 64, 0);
    }
    if crash {
        std::process::abort();
    }
    free_bulk(&mut frames);
    drop(null);
    assert!(pool.is_whole());
}
