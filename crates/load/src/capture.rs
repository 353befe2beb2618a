//! Captures: what the workers of a job send, as files that a program replays in a loop, and the
//! [configuration](config) of the switch that sums them.
//!
//! # How it works
//!
//! A switch takes a fragment once; a repeated one is late (W-4). But fragment numbers are serial,
//! and 2^32 of them make a circle. A capture has three runs of fragments that begin at a third of
//! the circle from one another, so each run is ahead of the one before, the first one of the next
//! round included. A run is at least as long as the switch's ring of results, so that none of its
//! fragments is in the ring any more when it comes again. Each run begins at a multiple of its
//! length: in a pool with one slot for each fragment of a run, consecutive fragments have slots of
//! their own, also where a run ends and another begins.
//!
//! A port has one capture, or one for each shard of the switch, which its driver replays into a
//! queue of its own.

pub mod config;

use anyhow::{Context, Result};
use half::{bf16, f16};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tally_wire::frame::ETHERNET_BYTES;
use tally_wire::{
    Addresses, AuthTag, DEFAULT_PORT, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header,
    JobId, Kind, Mac, Rank, UNIT_BYTES,
};

/// The job.
pub const JOB: JobId = JobId(7);
/// The epoch of a job whose members are fixed.
const EPOCH: Epoch = Epoch(1);
/// The switch's MAC.
pub const SWITCH_MAC: Mac = Mac([0x02, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
/// Its IPv4 address.
pub const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
/// The key of the jobs: that of examples, because the members of captures do not join.
pub const KEY: &str = "00112233445566778899aabbccddeeff";
/// A worker's UDP port.
pub const WORKER_PORT: u16 = 40_000;

/// Runs of fragments in a capture.
const RUNS: u32 = 3;

/// The shape of the replayed traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Workers of all jobs.
    pub workers: u8,
    /// Jobs, among which the workers are divided in order of their ranks. More than one only where
    /// each worker has a port.
    pub jobs: u8,
    /// Ports of the workers: rank r at port r mod `ports`. A capture for each.
    pub ports: u8,
    /// Payload of every frame.
    pub payload_bytes: u16,
    /// Its element type, as the protocol names it.
    pub element: &'static str,
    /// Fragments in each run; a power of two.
    pub run_fragments: u32,
    /// Fragments in a row that a worker sends before the next one at its port sends the same ones.
    /// Divides `run_fragments`.
    pub turn_fragments: u32,
    /// Shards of the switch, which are in the UDP ports.
    pub shards: u16,
}

impl Shape {
    /// Bytes of each frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        HEADERS_BYTES + usize::from(self.payload_bytes)
    }

    /// Frames of all workers.
    #[must_use]
    pub fn frames(&self) -> u32 {
        RUNS * self.run_fragments * u32::from(self.workers)
    }

    /// Ranks at a port.
    pub fn ranks(&self, port: u8) -> impl Iterator<Item = u8> + Clone + use<> {
        (port..self.workers).step_by(self.ports.into())
    }

    /// Writes the captures into a folder, and returns their paths by port. Frames hold integers or
    /// floats whose sums are nothing special: no overflow, no NaN.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let write = |port| {
            let path = folder.join(format!("port{port}.pcap"));
            self.write_one(&path, port, None)
                .with_context(|| path.display().to_string())?;
            Ok(path)
        };
        (0..self.ports).map(write).collect()
    }

    /// The job of a worker, and its rank there.
    pub fn at(&self, worker: u8) -> (JobId, Rank) {
        let each = self.workers_of_job();
        (JobId(JOB.0 + u16::from(worker / each)), Rank(worker % each))
    }

    /// Workers of each job.
    #[must_use]
    pub fn workers_of_job(&self) -> u8 {
        self.workers / self.jobs
    }

    fn shard(&self, fragment: FragmentId) -> u16 {
        (fragment.0 % u32::from(self.shards)) as u16
    }

    /// Writes what arrives at a port, or of it what concerns one shard.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_one(&self, path: &Path, port: u8, shard: Option<u16>) -> Result<()> {
        let mut file = Writer::create(path)?;
        let mut frame = vec![0; self.frame_bytes()];
        let mut number: u32 = 0x9e37_79b9 ^ u32::from(port);
        let kind = self.wire_element();
        for (rank, fragment) in self.contributions(port) {
            if shard.is_some_and(|shard| shard != self.shard(fragment)) {
                continue;
            }
            let addresses = self.addresses(rank, fragment);
            tally_wire::frame::emit(&mut frame, &addresses, &self.header(rank, fragment));
            for element in frame[HEADERS_BYTES..].chunks_exact_mut(kind.bytes()) {
                // Marsaglia's xorshift: eight of these integers or floats add up to no overflow,
                // nor do 64 of 32 bits.
                number ^= number << 13;
                number ^= number >> 17;
                number ^= number << 5;
                let int = number.cast_signed();
                match kind {
                    Element::F32 => element.copy_from_slice(&((int >> 16) as f32).to_le_bytes()),
                    Element::F16 => {
                        let value = f16::from_f32((int >> 21) as f32);
                        element.copy_from_slice(&value.to_le_bytes());
                    }
                    Element::Bf16 => {
                        let value = bf16::from_f32((int >> 24) as f32);
                        element.copy_from_slice(&value.to_le_bytes());
                    }
                    Element::I16 => element.copy_from_slice(&((int >> 20) as i16).to_be_bytes()),
                    Element::I8 => element[0] = (int >> 28) as u8,
                    _ => element.copy_from_slice(&(int >> 6).to_be_bytes()),
                }
            }
            file.add(&frame)?;
        }
        file.finish()
    }

    /// Rank and fragment of each frame of a port, in order.
    fn contributions(&self, port: u8) -> impl Iterator<Item = (u8, FragmentId)> + use<> {
        let turn_fragments = self.turn_fragments;
        let turns = self.run_fragments / turn_fragments;
        // As far apart as they can be, at multiples of their length.
        let distance = (u32::MAX / RUNS) & !(self.run_fragments - 1);
        let ranks = self.ranks(port);
        let starts = (0..RUNS).flat_map(move |run| {
            (0..turns).map(move |turn| run * distance + turn * turn_fragments)
        });
        starts.flat_map(move |start| {
            ranks.clone().flat_map(move |rank| {
                (0..turn_fragments).map(move |n| (rank, FragmentId(start).plus(n)))
            })
        })
    }

    fn wire_element(&self) -> Element {
        let named = |e: &Element| e.name() == self.element;
        Element::ALL.into_iter().find(named).unwrap_or(Element::I32)
    }

    fn header(&self, worker: u8, fragment: FragmentId) -> Header {
        let (job, rank) = self.at(worker);
        Header {
            kind: Kind::Data,
            flags: Flags::NONE,
            priority: 0,
            element: self.wire_element(),
            job,
            epoch: EPOCH,
            fragment,
            rank,
            units: (usize::from(self.payload_bytes) / UNIT_BYTES) as u8,
            bitmap: rank.bit(),
            tag: AuthTag::NONE,
        }
    }

    fn addresses(&self, rank: u8, fragment: FragmentId) -> Addresses {
        let (src_mac, src_ip) = worker(rank);
        Addresses {
            src_mac,
            dst_mac: SWITCH_MAC,
            src_ip,
            dst_ip: SWITCH_IP,
            src_port: WORKER_PORT,
            dst_port: DEFAULT_PORT + self.shard(fragment),
        }
    }
}

/// A capture file that is being written.
pub struct Writer(BufWriter<File>);

impl Writer {
    /// Creates the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        // The format's magic number for microseconds, version 2.4, no time zone, the longest frame,
        // Ethernet. All in the writer's byte order.
        file.write_all(&0xa1b2_c3d4_u32.to_ne_bytes())?;
        file.write_all(&2_u16.to_ne_bytes())?;
        file.write_all(&4_u16.to_ne_bytes())?;
        for word in [0, 0, 65_535, 1_u32] {
            file.write_all(&word.to_ne_bytes())?;
        }
        Ok(Self(file))
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, frame: &[u8]) -> Result<()> {
        // Time, length in the file, length on the wire.
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            self.0.write_all(&word.to_ne_bytes())?;
        }
        Ok(self.0.write_all(frame)?)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }
}

/// MTU of the ports: the ordinary one where the frames fit it.
#[must_use]
pub fn mtu(frame_bytes: usize) -> u16 {
    if frame_bytes <= 1500 + ETHERNET_BYTES {
        1500
    } else {
        9000
    }
}

/// A worker's Ethernet and IPv4 address.
pub fn worker(rank: u8) -> (Mac, Ipv4Addr) {
    (
        Mac([0x02, 0x84, 0, 0, 0, rank]),
        Ipv4Addr::new(10, 84, 0, rank + 1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tally_wire::UdpFrame;

    fn shape(workers: u8, ports: u8, run_fragments: u32, turn_fragments: u32) -> Shape {
        Shape {
            workers,
            jobs: 1,
            ports,
            payload_bytes: 256,
            element: "f32",
            run_fragments,
            turn_fragments,
            shards: 2,
        }
    }

    #[test]
    fn a_capture_has_whole_frames_that_parse_back() {
        let shape = shape(8, 8, 4, 1);
        let folder = tempfile::tempdir().unwrap();
        let files = shape.write(folder.path()).unwrap();
        assert_eq!(shape.frames(), 96);
        let file = std::fs::read(&files[3]).unwrap();
        let records = file[24..].chunks_exact(16 + 320);
        assert_eq!((records.len(), records.remainder().len()), (12, 0));
        for (record, (rank, fragment)) in records.zip(shape.contributions(3)) {
            assert_eq!(record[8..12], 320_u32.to_ne_bytes());
            let frame = &record[16..];
            let udp = UdpFrame::parse(frame).unwrap();
            assert_eq!(udp.addresses, shape.addresses(rank, fragment));
            assert_eq!(
                udp.addresses.dst_port,
                DEFAULT_PORT + (fragment.0 & 1) as u16
            );
            let header = Header::parse(udp.datagram(frame)).unwrap();
            assert_eq!((header.fragment, header.rank), (fragment, Rank(3)));
        }
    }

    #[test]
    fn each_run_is_ahead_of_the_one_before_also_round_the_circle() {
        for run_fragments in [1, 64, 1 << 17] {
            let shape = shape(1, 1, run_fragments, 1);
            let fragments: Vec<_> = shape.contributions(0).map(|(_, f)| f).collect();
            for (fragment, next) in fragments.iter().zip(fragments.iter().cycle().skip(1)) {
                assert!(next.ahead_of(*fragment) > 0, "{fragment:?} then {next:?}");
                // In a pool of as many slots as a run has fragments.
                assert_eq!(
                    next.0.wrapping_sub(fragment.0) % run_fragments,
                    1 % run_fragments
                );
            }
        }
    }

    #[test]
    fn workers_take_turns_and_each_fragment_has_all_of_them_once() {
        let shape = shape(5, 2, 8, 4);
        let first: Vec<_> = shape
            .contributions(1)
            .map(|(rank, f)| (rank, f.0))
            .collect();
        let turns = [
            (1, 0),
            (1, 1),
            (1, 2),
            (1, 3),
            (3, 0),
            (3, 1),
            (3, 2),
            (3, 3),
            (1, 4),
        ];
        assert_eq!(first[..9], turns);
        let mut ranks: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for port in 0..2 {
            for (rank, fragment) in shape.contributions(port) {
                ranks.entry(fragment.0).or_default().push(rank);
            }
        }
        assert_eq!(ranks.len(), 24);
        for (fragment, mut ranks) in ranks {
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4], "{fragment}");
        }
    }
}
