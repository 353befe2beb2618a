//! What the workers of a job send, as capture files that can be replayed for ever.
//!
//! # How it works
//!
//! A switch takes a fragment once: what comes again is late (W-4). But fragment numbers are serial,
//! and 2^32 of them make a circle. A capture has three runs of fragments that begin at a third of
//! the circle from one another, so each run is ahead of the one before, the first one of the next
//! round included. A run is as long as the switch's ring of results, so that none of its fragments
//! is in the ring any more when it comes again.

use anyhow::{Context, Result};
use half::{bf16, f16};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tally_wire::{
    Addresses, DEFAULT_PORT, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Kind,
    Mac, Rank, UNIT_BYTES,
};

/// Workers of the job, each on a port of its own.
pub const WORKERS: u8 = 8;
/// The job.
pub(super) const JOB: JobId = JobId(7);
/// The epoch of a job whose members are fixed.
const EPOCH: Epoch = Epoch(1);
/// The switch.
pub(super) const SWITCH_MAC: Mac = Mac([0x02, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
pub(super) const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
/// A worker's UDP port.
pub(super) const WORKER_PORT: u16 = 40_000;

/// Runs of fragments in a capture, and how far apart they begin.
const RUNS: u32 = 3;
const RUN_DISTANCE: u32 = u32::MAX / RUNS;

/// One capture for each worker, in a folder that goes away with the value.
#[derive(Debug)]
pub struct Captures {
    /// Payload of every frame.
    pub payload_bytes: u16,
    /// Its element type, as the protocol names it.
    pub element: &'static str,
    /// Fragments in each run.
    pub run_fragments: u16,
    files: Vec<PathBuf>,
    folder: tempfile::TempDir,
}

/// How much memory the captures take when they are replayed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Frames of all workers.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
}

impl Captures {
    /// Writes the captures. Frames with elements of the type of this name, whose sums are nothing
    /// special: no overflow, no NaN.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write(payload_bytes: u16, element: &'static str, run_fragments: u16) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tally-replay-")
            .tempdir()
            .context("temporary folder")?;
        let mut captures = Self {
            payload_bytes,
            element,
            run_fragments,
            files: Vec::new(),
            folder,
        };
        for rank in 0..WORKERS {
            let path = captures.folder().join(format!("worker{rank}.pcap"));
            captures
                .write_one(&path, rank)
                .with_context(|| path.display().to_string())?;
            captures.files.push(path);
        }
        Ok(captures)
    }

    /// The captures, by rank.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Where they are, with room for more.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes of each frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        HEADERS_BYTES + usize::from(self.payload_bytes)
    }

    /// What is replayed.
    #[must_use]
    pub fn size(&self) -> Size {
        let frames = RUNS * u32::from(self.run_fragments) * u32::from(WORKERS);
        let bytes = u64::from(frames) * self.frame_bytes() as u64;
        Size { frames, bytes }
    }

    fn write_one(&self, path: &Path, rank: u8) -> Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        // The format's magic number for microseconds, version 2.4, no time zone, the longest frame,
        // Ethernet. All in the writer's byte order.
        file.write_all(&0xa1b2_c3d4_u32.to_ne_bytes())?;
        file.write_all(&2_u16.to_ne_bytes())?;
        file.write_all(&4_u16.to_ne_bytes())?;
        for word in [0, 0, 65_535, 1_u32] {
            file.write_all(&word.to_ne_bytes())?;
        }
        let mut frame = vec![0; self.frame_bytes()];
        let mut number: u32 = 0x9e37_79b9 ^ u32::from(rank);
        for fragment in self.fragments() {
            tally_wire::frame::emit(&mut frame, &addresses(rank), &self.header(rank, fragment));
            let kind = self.element();
            for element in frame[HEADERS_BYTES..].chunks_exact_mut(kind.bytes()) {
                // Marsaglia's xorshift: eight of these integers or floats add up to no overflow.
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
                    _ => element.copy_from_slice(&(int >> 4).to_be_bytes()),
                }
            }
            // Time, length in the file, length on the wire.
            for word in [0, 0, frame.len() as u32, frame.len() as u32] {
                file.write_all(&word.to_ne_bytes())?;
            }
            file.write_all(&frame)?;
        }
        Ok(file.flush()?)
    }

    fn fragments(&self) -> impl Iterator<Item = FragmentId> + use<> {
        let run_fragments = u32::from(self.run_fragments);
        (0..RUNS).flat_map(move |run| {
            (0..run_fragments).map(move |n| FragmentId(run * RUN_DISTANCE).plus(n))
        })
    }

    fn element(&self) -> Element {
        let named = |e: &Element| e.name() == self.element;
        Element::ALL.into_iter().find(named).unwrap_or(Element::I32)
    }

    fn header(&self, rank: u8, fragment: FragmentId) -> Header {
        Header {
            kind: Kind::Data,
            flags: Flags::NONE,
            priority: 0,
            element: self.element(),
            job: JOB,
            epoch: EPOCH,
            fragment,
            rank: Rank(rank),
            units: (usize::from(self.payload_bytes) / UNIT_BYTES) as u8,
            bitmap: Rank(rank).bit(),
        }
    }
}

/// A worker's Ethernet and IPv4 address.
pub(super) fn worker(rank: u8) -> (Mac, Ipv4Addr) {
    (
        Mac([0x02, 0x84, 0, 0, 0, rank]),
        Ipv4Addr::new(10, 84, 0, rank + 1),
    )
}

fn addresses(rank: u8) -> Addresses {
    let (src_mac, src_ip) = worker(rank);
    Addresses {
        src_mac,
        dst_mac: SWITCH_MAC,
        src_ip,
        dst_ip: SWITCH_IP,
        src_port: WORKER_PORT,
        dst_port: DEFAULT_PORT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::UdpFrame;

    #[test]
    fn a_capture_has_whole_frames_that_parse_back() {
        let captures = Captures::write(256, "f32", 4).unwrap();
        assert_eq!(captures.size().frames, 96);
        let file = std::fs::read(&captures.files()[3]).unwrap();
        let records = file[24..].chunks_exact(16 + 320);
        assert_eq!((records.len(), records.remainder().len()), (12, 0));
        for (record, fragment) in records.zip(captures.fragments()) {
            assert_eq!(record[8..12], 320_u32.to_ne_bytes());
            let frame = &record[16..];
            let udp = UdpFrame::parse(frame).unwrap();
            assert_eq!(udp.addresses, addresses(3));
            let header = Header::parse(udp.datagram(frame)).unwrap();
            assert_eq!((header.fragment, header.rank), (fragment, Rank(3)));
        }
    }

    #[test]
    fn each_run_is_ahead_of_the_one_before_also_round_the_circle() {
        let captures = Captures::write(64, "i32", 64).unwrap();
        let fragments: Vec<_> = captures.fragments().collect();
        for (fragment, next) in fragments.iter().zip(fragments.iter().cycle().skip(1)) {
            assert!(next.ahead_of(*fragment) > 0, "{fragment:?} then {next:?}");
        }
    }
}
