//! The configuration of a switch that sums what is replayed.

use super::{JOB, KEY, SWITCH_IP, SWITCH_MAC, Shape, WORKER_PORT, mtu, worker};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use tally_schema::switch::config::{
    AddressConfig, Config, FixedMember, FixedMembers, Idle, JobSection, MemoryKind, PortSection,
};
use tally_wire::Key;

/// Frames that may wait in a class of a port's queue if nothing is said.
const QUEUE_FRAMES: u32 = 512;

/// The switch's settings that captures do not determine.
#[derive(Clone, Debug)]
pub struct Setting {
    /// CPUs of the data cores: one for each of the captures' shards.
    pub cores: Vec<usize>,
    /// CPU of the control thread.
    pub control_core: Option<usize>,
    /// Descriptors of each port.
    pub descriptors: u16,
    /// Path of the statistics socket.
    pub stats_socket: PathBuf,
    /// Where packet memory comes from.
    pub memory: MemoryKind,
}

/// The configuration for these captures, with a device for each port.
#[must_use]
pub fn config(shape: &Shape, devices: Vec<String>, setting: Setting) -> Config {
    let name = |port: usize| format!("port{port}");
    let member = |rank: u8, port: u8| {
        let (mac, ip) = worker(rank);
        FixedMember {
            port: name(port.into()),
            mac,
            ip,
            udp_port: WORKER_PORT,
        }
    };
    let each = shape.workers_of_job();
    let cores = setting.cores.len();
    let port = |(at, device)| PortSection {
        name: Some(name(at)),
        mtu: mtu(shape.frame_bytes()),
        descriptors: setting.descriptors,
        // One core for all ports of a job: where there is no steering, nothing else keeps its
        // workers in step.
        core: (shape.jobs > 1).then_some(at / usize::from(each) % cores),
        ..PortSection::new(device)
    };
    let key: Key = KEY.parse().expect("32 hexadecimal digits");
    let job = |number: u8| {
        let workers = number * each..(number + 1) * each;
        let workers = workers.map(|worker| member(worker, worker % shape.ports));
        let fixed = FixedMembers {
            payload_bytes: shape.payload_bytes,
            workers: workers.collect(),
            // Nothing is sent to it.
            ps: member(shape.workers, 0),
        };
        JobSection {
            fixed: Some(fixed),
            ..JobSection::new(JOB.0 + u16::from(number), key.clone(), each)
        }
    };
    let ports = devices.into_iter().enumerate().map(port).collect();
    let mut config = Config::new(AddressConfig::new(SWITCH_MAC, SWITCH_IP), ports);
    config.eal.memory = setting.memory;
    config.cores = setting.cores;
    config.control_core = setting.control_core;
    config.pool.slots = Some(slots(shape));
    config.queue.frames = queue_frames(shape);
    config.jobs = (0..shape.jobs).map(job).collect();
    config.window = window(shape);
    config.idle = Idle::Spin;
    config.stats_socket = Some(setting.stats_socket);
    config
}

/// Writes a configuration for a person to read.
///
/// # Errors
/// If the file cannot be written.
pub fn write(config: &Config, path: &Path) -> Result<()> {
    std::fs::write(path, simd_json::to_string_pretty(config)? + "\n")
        .with_context(|| path.display().to_string())
}

/// A slot for each fragment in flight: no two of them share one.
fn slots(shape: &Shape) -> u32 {
    if shape.turn_fragments > 1 {
        shape.turn_fragments
    } else {
        shape.run_fragments * u32::from(shape.jobs)
    }
}

/// The ring of results holds two windows. It must hold no more than a run; where a whole turn is
/// under way, it should be small beside that.
fn window(shape: &Shape) -> u16 {
    let window = if shape.turn_fragments > 1 {
        (shape.turn_fragments / 2).min(16)
    } else {
        shape.run_fragments / 2
    };
    u16::try_from(window).unwrap_or(u16::MAX)
}

/// The pool of frames has room for what all queues could hold. Nothing waits here, so that is room
/// for the captures, which `net_pcap` keeps in the same pool.
fn queue_frames(shape: &Shape) -> u32 {
    let frames = shape.frames() / u32::from(shape.ports) / 8;
    frames.clamp(QUEUE_FRAMES, 65_536)
}
