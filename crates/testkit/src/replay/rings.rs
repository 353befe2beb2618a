//! What the members of a NetReduce ring send, as captures that can be replayed without end, and a
//! switch that sums them.
//!
//! # How it works
//!
//! Message numbers only grow in an epoch, so a capture has three epochs, a third of the numbers
//! apart: in serial arithmetic each is newer than the one before it, also when the capture begins
//! again. The packets of an epoch are a multiple of a burst. The ports are polled in turn, a burst
//! each, so all members are in the same epoch.

use super::captures::folder;
use super::switch::{STOP_PATIENCE, Switch, statistics};
use super::{CpuTime, Cpus, DESCRIPTORS, Rate, Replayed, WARM_UP, WORKERS, device};
use anyhow::{Context, Result, ensure};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_load::capture::{SWITCH_IP, SWITCH_MAC, Writer, mtu, worker};
use tally_schema::switch::config::{
    AddressConfig, Config, Idle, MemoryKind, NetreduceSection, PortSection, RingSection,
};
use tally_schema::switch::report::Report;
use tally_switch::datapath::BURST;
use tally_wire::field::ipv4;
use tally_wire::frame::{UDP_END, emit_udp, internet_checksum};
use tally_wire::netreduce::{
    Channel, DEFAULT_DSCP, Element, RING_HEADER_BYTES, RingEpoch, RingHeader, RingId,
};
use tally_wire::roce::{
    BTH_BYTES, Bth, ICRC_BYTES, Opcode, PORT, Place, Psn, QueuePair, Verb, seal,
};
use tally_wire::{Addresses, Key};

const RING: RingId = RingId(7);
/// Packets of a message, and messages of an epoch. Two windows of them are an epoch.
const PACKETS: usize = 32;
const MESSAGES: u32 = 4;
const EPOCHS: u32 = 3;

const _: () = assert!((PACKETS * MESSAGES as usize).is_multiple_of(BURST));

/// Captures of a ring of [`WORKERS`] members, each at a port of its own, in a folder that goes away
/// with the value.
#[derive(Debug)]
pub struct RingCaptures {
    /// Payload of a packet.
    pub path_mtu: usize,
    files: Vec<Vec<PathBuf>>,
    folder: tempfile::TempDir,
}

impl Replayed for RingCaptures {
    fn files(&self) -> &[Vec<PathBuf>] {
        &self.files
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn mtu(&self) -> u16 {
        mtu(self.frame_bytes())
    }
}

fn key() -> Key {
    Key::new(b"a ring of captures").expect("18 bytes")
}

impl RingCaptures {
    /// Writes them.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write(path_mtu: usize, element: Element) -> Result<Self> {
        let folder = folder()?;
        let write = |rank| {
            let path = folder.path().join(format!("port{rank}.pcap"));
            let written = write_one(&path, path_mtu, element, rank);
            written.with_context(|| path.display().to_string())?;
            Ok(vec![path])
        };
        let files = (0..WORKERS).map(write).collect::<Result<_>>()?;
        Ok(Self {
            path_mtu,
            files,
            folder,
        })
    }

    /// Frames of each member.
    pub const FRAMES: usize = EPOCHS as usize * MESSAGES as usize * PACKETS;

    /// Bytes of each frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        UDP_END + BTH_BYTES + self.path_mtu + ICRC_BYTES
    }

    /// The configuration of a switch with one data core, to which they are replayed.
    fn config(&self, cpus: Cpus, memory: MemoryKind, socket: &Path) -> Config {
        let devices = self.files.iter().enumerate();
        let port = |(at, files): (usize, &Vec<PathBuf>)| PortSection {
            name: Some(format!("port{at}")),
            mtu: self.mtu(),
            descriptors: DESCRIPTORS,
            ..PortSection::new(device(at, files))
        };
        let address = AddressConfig::new(SWITCH_MAC, SWITCH_IP);
        let mut config = Config::new(address, devices.map(port).collect());
        config.eal.memory = memory;
        config.cores = vec![cpus.data];
        config.control_core = Some(cpus.control);
        let members = (0..WORKERS).map(|rank| worker(rank).1).collect();
        config.netreduce = Some(NetreduceSection {
            rings: vec![RingSection {
                message_packets: PACKETS as u16,
                ..RingSection::new(RING.0, key(), members)
            }],
            ..NetreduceSection::default()
        });
        config.idle = Idle::Spin;
        config.stats_socket = Some(socket.to_owned());
        config
    }
}

fn write_one(path: &Path, path_mtu: usize, element: Element, rank: u8) -> Result<()> {
    let mut file = Writer::create(path)?;
    let (src_mac, src_ip) = worker(rank);
    let (dst_mac, dst_ip) = worker((rank + 1) % WORKERS);
    let addresses = Addresses {
        src_mac,
        dst_mac,
        src_ip,
        dst_ip,
        src_port: 50_000,
        dst_port: PORT,
    };
    let channel = Channel {
        source: src_ip,
        destination: dst_ip,
        qp: QueuePair(0x100 + u32::from(rank)),
    };
    let secret = key().ring_secret(RING);
    let bytes = BTH_BYTES + path_mtu + ICRC_BYTES;
    let mut frame = vec![0; UDP_END + bytes];
    let mut psn = Psn::new(u32::from(rank));
    let mut number: u32 = 0x9e37_79b9 ^ u32::from(rank);
    for epoch in 0..EPOCHS {
        for packet in 0..PACKETS as u32 * MESSAGES {
            emit_udp(&mut frame, &addresses, bytes);
            frame[ipv4::TOS] |= DEFAULT_DSCP << 2;
            frame[ipv4::CHECKSUM].fill(0);
            let sum = internet_checksum(&frame[ipv4::HEADER]);
            frame[ipv4::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
            let at = packet as usize % PACKETS;
            let place = match at {
                0 => Place::First,
                at if at == PACKETS - 1 => Place::Last,
                _ => Place::Middle,
            };
            let bth = Bth {
                opcode: Opcode::Message {
                    verb: Verb::Send,
                    place,
                    has_immediate: false,
                },
                is_solicited: false,
                is_migrated: true,
                pad: 0,
                pkey: 0xffff,
                fecn: false,
                becn: false,
                qp: channel.qp,
                ack_requested: place.ends(),
                psn,
            };
            frame[UDP_END..UDP_END + BTH_BYTES].copy_from_slice(&bth.emit());
            let payload = &mut frame[UDP_END + BTH_BYTES..];
            for word in payload.chunks_exact_mut(4) {
                // Marsaglia's xorshift.
                number ^= number << 13;
                number ^= number >> 17;
                number ^= number << 5;
                // Small floats in every type, and integers.
                word.copy_from_slice(&(number & 0x3c7f_3c7f).to_le_bytes());
            }
            if place.begins() {
                let header = RingHeader {
                    element,
                    rank,
                    is_summed: false,
                    ring: RING,
                    epoch: RingEpoch(epoch * (u32::MAX / EPOCHS)),
                    message: packet / PACKETS as u32,
                    bytes: (PACKETS * path_mtu - RING_HEADER_BYTES) as u32,
                };
                payload[..RING_HEADER_BYTES].copy_from_slice(&header.emit(&secret, &channel));
            }
            seal(&mut frame);
            file.add(&frame)?;
            psn = psn.after(1);
        }
    }
    file.finish()
}

impl Switch {
    /// The rate at which it sums packets of a ring, over that many seconds.
    ///
    /// # Errors
    /// If it does not run, or if any packet had another fate than to be summed and released: then
    /// the number would mean something else.
    pub fn measure_ring(&self, captures: &RingCaptures, cpus: Cpus, seconds: u32) -> Result<Rate> {
        let file = |name: &str| captures.folder().join(name);
        let (path, socket) = (file("switch.json"), file("switch.sock"));
        let config = captures.config(cpus, self.memory().of_switch(), &socket);
        tally_load::capture::config::write(&config, &path)?;
        // It has a key.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let program = self.start(&path, &file("switch.log"))?;
        std::thread::sleep(WARM_UP);
        let cpu_before = CpuTime::of(program.id())?;
        let before = statistics(&socket)?;
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let cpu_after = CpuTime::of(program.id())?;
        let after = statistics(&socket)?;
        // A good end is one with all buffers back in their pool.
        program.stop(STOP_PATIENCE)?;
        let frames = check(&before, &after)?;
        let per_wall_s = frames as f64 / (after.gauges.seconds - before.gauges.seconds);
        Ok(Rate::new(per_wall_s, cpu_before.share_until(&cpu_after)))
    }
}

/// The packets that came in between two reports, every one of which was summed and released.
fn check(before: &Report, after: &Report) -> Result<u64> {
    ensure!(
        after.drops == before.drops,
        "the switch dropped frames: {:?}, then {:?}",
        before.drops,
        after.drops
    );
    let count = |report: &Report, name: &str| {
        let counters = report.netreduce.as_ref().map(|it| &it.counters);
        counters.and_then(|it| it.get(name)).copied().unwrap_or(0)
    };
    let grown = |name: &str| count(after, name) - count(before, name);
    let [held, sums, released, again] =
        ["contributions", "sums", "released", "sums_again"].map(grown);
    let received = |report: &Report| {
        let ports = report.ports.iter();
        ports.map(|port| port.counters.rx_frames).sum::<u64>()
    };
    let received = received(after) - received(before);
    let members = u64::from(WORKERS);
    // What a turn has begun and not finished when a report is made.
    let turn = (BURST * usize::from(WORKERS)) as u64;
    ensure!(
        received > 0
            && again == 0
            && held.abs_diff(received) <= turn
            && held.abs_diff(sums * members) <= turn
            && released.abs_diff(sums * members) <= turn,
        "of {received} packets the switch held {held}, to {sums} sums for {members} members and {again} \
         copies; {released} packets left"
    );
    Ok(received)
}
