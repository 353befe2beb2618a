//! The configuration of a switch that sums what is replayed.

use super::capture::{JOB, SWITCH_IP, SWITCH_MAC, Shape, WORKER_PORT, worker};
use super::mtu;
use anyhow::{Context, Result};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Frames that may wait in a class of a port's queue if nothing is said.
const QUEUE_FRAMES: u32 = 512;

/// What is not in the captures.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// CPUs of the data cores: as many as the captures' shards.
    pub cores: Vec<usize>,
    /// CPU of the control thread.
    pub control_core: Option<usize>,
    /// Descriptors of each port.
    pub descriptors: u16,
    /// Where to ask for statistics.
    pub stats_socket: PathBuf,
    /// Where packet memory comes from: `no-huge`, `in-memory`.
    pub memory: &'static str,
}

/// The file.
#[derive(Debug, Serialize)]
pub(crate) struct Config {
    address: Address,
    eal: Eal,
    cores: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    control_core: Option<usize>,
    ports: Vec<Port>,
    pool: Pool,
    queue: Queue,
    jobs: Vec<Job>,
    window: u32,
    idle: &'static str,
    stats_socket: PathBuf,
}

#[derive(Debug, Serialize)]
struct Address {
    mac: String,
    ip: Ipv4Addr,
}

#[derive(Debug, Serialize)]
struct Eal {
    memory: &'static str,
}

#[derive(Debug, Serialize)]
struct Port {
    name: String,
    device: String,
    mtu: u16,
    descriptors: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Pool {
    slots: u32,
}

#[derive(Debug, Serialize)]
struct Queue {
    frames: u32,
}

#[derive(Debug, Serialize)]
struct Job {
    id: u16,
    key: &'static str,
    workers: u8,
    fixed: Fixed,
}

#[derive(Debug, Serialize)]
struct Fixed {
    payload_bytes: u16,
    workers: Vec<Member>,
    ps: Member,
}

#[derive(Debug, Serialize)]
struct Member {
    port: String,
    mac: String,
    ip: Ipv4Addr,
    udp_port: u16,
}

impl Config {
    /// For these captures, with a device for each port.
    pub(crate) fn new(shape: &Shape, devices: Vec<String>, setting: Setting) -> Self {
        let name = |port: usize| format!("port{port}");
        let member = |rank: u8, port: u8| {
            let (mac, ip) = worker(rank);
            Member {
                port: name(port.into()),
                mac: mac.to_string(),
                ip,
                udp_port: WORKER_PORT,
            }
        };
        let each = shape.workers_of_job();
        let cores = setting.cores.len();
        let port = |(at, device)| Port {
            name: name(at),
            device,
            mtu: mtu(shape.frame_bytes()),
            descriptors: setting.descriptors,
            // One core for all ports of a job: where there is no steering, nothing else keeps its workers
            // in step.
            core: (shape.jobs > 1).then_some(at / usize::from(each) % cores),
        };
        let job = |number: u8| {
            let workers = number * each..(number + 1) * each;
            Job {
                id: JOB.0 + u16::from(number),
                // Nobody joins.
                key: "00112233445566778899aabbccddeeff",
                workers: each,
                fixed: Fixed {
                    payload_bytes: shape.payload_bytes,
                    workers: workers
                        .map(|worker| member(worker, worker % shape.ports))
                        .collect(),
                    // Nothing ever goes to it.
                    ps: member(shape.workers, 0),
                },
            }
        };
        Self {
            address: Address {
                mac: SWITCH_MAC.to_string(),
                ip: SWITCH_IP,
            },
            eal: Eal {
                memory: setting.memory,
            },
            cores: setting.cores,
            control_core: setting.control_core,
            ports: devices.into_iter().enumerate().map(port).collect(),
            pool: Pool {
                slots: slots(shape),
            },
            queue: Queue {
                frames: queue_frames(shape),
            },
            jobs: (0..shape.jobs).map(job).collect(),
            window: window(shape),
            idle: "spin",
            stats_socket: setting.stats_socket,
        }
    }

    /// Writes it.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, simd_json::to_string_pretty(self)? + "\n")
            .with_context(|| path.display().to_string())
    }
}

/// As many as there are fragments under way at a time: no two of them share one.
fn slots(shape: &Shape) -> u32 {
    if shape.turn_fragments > 1 {
        shape.turn_fragments
    } else {
        shape.run_fragments * u32::from(shape.jobs)
    }
}

/// The ring of results holds two windows. It must hold no more than a run; where a whole turn is under
/// way, it should be small beside that.
fn window(shape: &Shape) -> u32 {
    if shape.turn_fragments > 1 {
        (shape.turn_fragments / 2).min(16)
    } else {
        shape.run_fragments / 2
    }
}

/// The pool of frames has room for what all queues could hold. Nothing waits here, so that is room for
/// the captures, which `net_pcap` keeps in the same pool.
fn queue_frames(shape: &Shape) -> u32 {
    let frames = shape.frames() / u32::from(shape.ports) / 8;
    frames.clamp(QUEUE_FRAMES, 65_536)
}
