//! The order of sessions at a DPDK port: the real agent, four jobs, and a peer that takes frames
//! more slowly than the agent makes them.

#![cfg(feature = "dpdk")]
#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use rig::agent::{WAIT_MAX, eventually, start};
use rig::common::Rng;
use rig::common::switch::{Habits, MAC, Switch};
use rig::write_config;
use std::net::Ipv4Addr;
use std::process::Child;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, PortConfig, StartedPort, connect,
};
use tally_local::{Arithmetic, Client, Dtype, Hello, Operation, Priority, Submission};
use tally_wire::frame::UDP_END;
use tally_wire::neighbour::answer_arp;
use tally_wire::{Addresses, HEADERS_BYTES, Header, JobId, Key, Kind, UdpFrame, frame};

const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
const JOBS: u16 = 4;
/// Neither the first nor the last to be served in turn.
const URGENT: u16 = 3;
const FRAGMENTS: usize = 600;
const PAYLOAD_BYTES: usize = 256;
/// Frames taken at a time, and the time between.
const TAKEN: usize = 4;
const PAUSE: Duration = Duration::from_micros(200);

/// The switch's end of the cable.
struct Peer {
    port: StartedPort,
    pool: Mempool,
    switches: Vec<Switch>,
    leaving: Vec<Mbuf>,
    /// Jobs of the contributions, in the order in which they came.
    came: Vec<u16>,
}

impl Peer {
    fn take(&mut self, rng: &mut Rng) {
        let mut arrived = Vec::with_capacity(TAKEN);
        self.port.rx[0].burst(&mut arrived, TAKEN);
        for mut mbuf in arrived {
            if answer_arp(mbuf.data_mut().unwrap(), MAC, SWITCH) {
                self.leaving.push(mbuf);
                continue;
            }
            let Ok(udp) = UdpFrame::parse(mbuf.data()) else {
                continue;
            };
            let to = udp.addresses;
            let datagram = &mbuf.data()[UDP_END..];
            let header = Header::parse(datagram).unwrap();
            if header.kind == Kind::Data {
                self.came.push(header.job.0);
            }
            let switch = &mut self.switches[usize::from(header.job.0) - 1];
            switch.seat_ps();
            for (member, datagram) in switch.handle(rng, datagram) {
                if member == 0 {
                    let frame = frame_to(&to, &datagram);
                    self.leaving.extend(self.pool.alloc_copy(&frame));
                }
            }
        }
        self.port.tx[0].burst(&mut self.leaving);
    }
}

/// A frame with this datagram, back to where one came from.
fn frame_to(from: &Addresses, datagram: &[u8]) -> Vec<u8> {
    let addresses = Addresses {
        src_mac: MAC,
        dst_mac: from.src_mac,
        src_ip: from.dst_ip,
        dst_ip: from.src_ip,
        src_port: from.dst_port,
        dst_port: from.src_port,
    };
    let mut bytes = vec![0; HEADERS_BYTES.max(UDP_END + datagram.len())];
    bytes[UDP_END..][..datagram.len()].copy_from_slice(datagram);
    frame::emit_udp(&mut bytes, &addresses, datagram.len());
    bytes
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn sum(client: &mut Client, elements: usize, job: u16) {
    let region = client.region(4 * elements).unwrap();
    let bytes: Vec<_> = (0..elements)
        .flat_map(|i| ((i * usize::from(job)) as f32).to_ne_bytes())
        .collect();
    region.write(0, &bytes);
    let submission = Submission {
        operation: Operation::Sum,
        dtype: Dtype::F32,
        arithmetic: Arithmetic::Own,
        priority: Priority::Fixed(if job == URGENT { 200 } else { 100 }),
        more_follow: false,
        name: "w".into(),
    };
    let ticket = client.submit(&region, 0, elements, &submission).unwrap();
    client.wait(ticket, Some(WAIT_MAX)).unwrap();
    let mut sums = vec![0; bytes.len()];
    region.read(0, &mut sums);
    assert!(sums == bytes, "job {job}: its sums differ");
}

#[test]
fn the_urgent_job_sends_first_and_the_others_do_not_starve() {
    let eal = Eal::init(&EalConfig::no_huge(64)).unwrap();
    let _thread = EalThread::register(&eal).unwrap();
    let pool = Mempool::new(
        &eal,
        "peer",
        &MempoolConfig {
            frames: 2047,
            cache_frames: 64,
            ..MempoolConfig::default()
        },
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let device = |role| {
        let socket = folder.path().join("memif");
        let socket = socket.display();
        format!("net_memif0,role={role},id=0,socket={socket},socket-abstract=no,bsize=2048,rsize=3")
    };
    let port = connect(
        &eal,
        &device("server"),
        &PortConfig::default(),
        &pool,
        Duration::ZERO,
    );
    let job = |id| {
        let key: String = key_of(id).iter().map(|it| format!("{it:02x}")).collect();
        format!(r#"{{"id": {id}, "key": "{key}", "workers": 1}}"#)
    };
    let jobs: Vec<_> = (1..=JOBS).map(job).collect();
    let config = format!(
        r#"{{"socket": "{}", "switch": {{"address": "{SWITCH}"}}, "jobs": [{}], "payload_bytes": {PAYLOAD_BYTES},
            "transport": {{"type": "dpdk", "device": "{}", "mac": "02:84:00:00:00:01", "address": "10.84.0.1"}},
            "window": 64, "memory_mib": 64}}"#,
        folder.path().join("agent.sock").display(),
        jobs.join(", "),
        device("client"),
    );
    write_config(&folder.path().join("agent.json"), &config);
    let _agent = Running(start(&folder, &[]));
    let mut peer = Peer {
        port: port.unwrap(),
        pool,
        switches: (1..=JOBS).map(switch).collect(),
        leaving: Vec::new(),
        came: Vec::new(),
    };
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    eventually("listening", log);
    let (done, together) = (AtomicUsize::new(0), Barrier::new(JOBS.into()));
    std::thread::scope(|scope| {
        for job in 1..=JOBS {
            let (done, together, socket) = (&done, &together, folder.path().join("agent.sock"));
            scope.spawn(move || {
                let hello = Hello {
                    job,
                    rank: 0,
                    workers: 1,
                };
                let mut client = Client::connect(&socket, &hello, WAIT_MAX).unwrap();
                // All jobs run before one of them has much to send.
                sum(&mut client, 1, job);
                together.wait();
                sum(&mut client, FRAGMENTS * PAYLOAD_BYTES / 4, job);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let (mut rng, deadline) = (Rng(1), Instant::now() + WAIT_MAX);
        while done.load(Ordering::Relaxed) < usize::from(JOBS) && Instant::now() < deadline {
            peer.take(&mut rng);
            std::thread::sleep(PAUSE);
        }
    });
    validate(&peer.came);
}

fn key_of(job: u16) -> Vec<u8> {
    format!("the key of job {job}").into()
}

fn switch(job: u16) -> Switch {
    let mut switch = Switch::new(1, Habits::default());
    (switch.job, switch.key) = (JobId(job), Key::new(&key_of(job)).unwrap());
    switch
}

/// In turn, the others would send three frames for each of the urgent job.
fn validate(came: &[u16]) {
    let urgent = || (0..came.len()).filter(|&at| came[at] == URGENT);
    assert!(urgent().count() >= FRAGMENTS);
    let (tenth, last) = (urgent().nth(FRAGMENTS / 10), urgent().next_back());
    let between = &came[tenth.unwrap()..last.unwrap()];
    let others = between.iter().filter(|job| **job != URGENT).count();
    let share = others as f64 / between.len() as f64;
    assert!(
        share < 0.2,
        "{others} of {} frames were of others",
        between.len()
    );
    for job in (1..=JOBS).filter(|job| *job != URGENT) {
        let own = between.iter().filter(|it| **it == job).count();
        assert!(own >= 3, "job {job}: {own} of {} frames", between.len());
    }
}
