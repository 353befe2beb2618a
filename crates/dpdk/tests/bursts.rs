//! Memory that a burst may be reading is not unmapped under it: on the EAL's interrupt thread
//! `munmap` waits for all bursts, however long they take.

mod common;

use common::{frame, pool, wait_until};
use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tally_dpdk::{Port, PortConfig};

unsafe extern "C" {
    fn munmap(address: *mut c_void, bytes: usize) -> c_int;
}

/// Nothing is unmapped by it, and what is tested comes before.
extern "C" fn unmap_nothing(_: *mut c_void) {
    // SAFETY: no memory.
    let ret = unsafe { munmap(std::ptr::null_mut(), 0) };
    assert_eq!(ret, -1, "no bytes are none to unmap");
}

/// Calls `unmap_nothing` on the interrupt thread and waits for it.
fn unmap_nothing_on_the_interrupt_thread() {
    // SAFETY: the EAL is initialised; the function takes any argument.
    let ret =
        unsafe { dpdk_sys::tally_on_interrupt_thread(Some(unmap_nothing), std::ptr::null_mut()) };
    assert_eq!(ret, 0, "an alarm can be set");
}

#[test]
fn the_interrupt_thread_unmaps_nothing_under_a_burst() {
    let eal = common::eal();
    let pool = pool(&eal, "p", 1023, 0);
    // A port whose bursts take as long as the reader of a pipe likes.
    let pipe = std::env::temp_dir().join(format!("tally-{}.pipe", std::process::id()));
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let mut reader = File::options()
        .read(true)
        .write(true)
        .open(&pipe)
        .expect("a pipe");
    let arguments = format!("tx_pcap={}", pipe.display());
    let mut port = Port::vdev(&eal, "net_pcap0", &arguments)
        .expect("a port")
        .configure(&PortConfig::default(), std::slice::from_ref(&pool))
        .expect("it takes the configuration")
        .start()
        .expect("it starts");
    fs::remove_file(&pipe).expect("it was there");

    let enough = Arc::new(AtomicBool::new(false));
    let (says, hears) = std::sync::mpsc::channel();
    let sender = thread::spawn({
        let (pool, enough) = (pool.clone(), enough.clone());
        move || {
            let own = fs::read_link("/proc/thread-self").expect("/proc is there");
            says.send(own).expect("a receiver listens");
            while !enough.load(Ordering::Relaxed) {
                let mut frames: Vec<_> = (0..32).map(|n| frame(&pool, n)).collect();
                port.tx[0].burst(&mut frames);
            }
        }
    });
    let stat = format!("/proc/{}/stat", hears.recv().expect("it says").display());
    let mut asleep = 0;
    wait_until("the pipe is full", || {
        let text = fs::read_to_string(&stat).expect("it runs");
        let is_asleep = text
            .rsplit(") ")
            .next()
            .is_some_and(|it| it.starts_with('S'));
        asleep = if is_asleep { asleep + 1 } else { 0 };
        thread::sleep(Duration::from_millis(1));
        asleep == 20
    });

    // Any other thread may.
    unmap_nothing(std::ptr::null_mut());
    let is_unmapped = Arc::new(AtomicBool::new(false));
    let waiter = thread::spawn({
        let is_unmapped = is_unmapped.clone();
        move || {
            unmap_nothing_on_the_interrupt_thread();
            is_unmapped.store(true, Ordering::Relaxed);
        }
    });
    thread::sleep(Duration::from_millis(200));
    assert!(!is_unmapped.load(Ordering::Relaxed), "under a burst");

    // It ends with the process.
    thread::spawn(move || while reader.read(&mut [0; 65536]).is_ok() {});
    wait_until("no thread is in a burst", || {
        is_unmapped.load(Ordering::Relaxed)
    });
    enough.store(true, Ordering::Relaxed);
    sender.join().expect("it sends");
    waiter.join().expect("it unmaps");
    // Nor for threads that have ended.
    unmap_nothing_on_the_interrupt_thread();
    assert!(pool.is_whole());
}
