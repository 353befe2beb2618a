//! Captures in a temporary folder, for the ports of programs that are measured.

use super::{Replayed, WORKERS};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use tally_load::capture::{Shape, mtu};

/// Captures in a folder that goes away with the value.
#[derive(Debug)]
pub struct Captures {
    /// What is in them.
    pub shape: Shape,
    /// By port, and then by queue.
    files: Vec<Vec<PathBuf>>,
    folder: tempfile::TempDir,
}

impl Captures {
    /// Writes the captures of [`WORKERS`] workers, each at a port of its own.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write(payload_bytes: u16, element: &'static str, run_fragments: u16) -> Result<Self> {
        Self::of(Shape {
            workers: WORKERS,
            jobs: 1,
            ports: WORKERS,
            payload_bytes,
            element,
            run_fragments: run_fragments.into(),
            turn_fragments: 1,
            shards: 1,
        })
    }

    /// Writes captures, one for each port.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn of(shape: Shape) -> Result<Self> {
        let folder = folder()?;
        let files = shape.write(folder.path())?;
        Ok(Self {
            shape,
            files: files.into_iter().map(|file| vec![file]).collect(),
            folder,
        })
    }

    /// Writes captures, one for each shard and port.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn steered(shape: Shape) -> Result<Self> {
        let folder = folder()?;
        let write = |port: u8, shard: u16| {
            let path = folder.path().join(format!("port{port}-{shard}.pcap"));
            shape
                .write_one(&path, port, Some(shard))
                .with_context(|| path.display().to_string())?;
            Ok(path)
        };
        let files = (0..shape.ports)
            .map(|port| (0..shape.shards).map(|shard| write(port, shard)).collect())
            .collect::<Result<_>>()?;
        Ok(Self {
            shape,
            files,
            folder,
        })
    }

    /// Whether each shard has a queue of its own.
    pub(super) fn is_steered(&self) -> bool {
        let shards = usize::from(self.shape.shards);
        self.files.iter().all(|queues| queues.len() == shards)
    }

    /// Bytes of all frames: the memory that they take when they are replayed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.shape.frames()) * self.shape.frame_bytes() as u64
    }
}

impl Replayed for Captures {
    fn files(&self) -> &[Vec<PathBuf>] {
        &self.files
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn mtu(&self) -> u16 {
        mtu(self.shape.frame_bytes())
    }
}

/// A temporary folder.
pub(super) fn folder() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("tally-replay-")
        .tempdir()
        .context("temporary folder")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_load::capture::JOB;
    use tally_wire::{DEFAULT_PORT, Header, JobId, Rank, UdpFrame};

    #[test]
    fn each_shard_has_its_fragments_in_its_queue_and_each_worker_its_job() {
        let shape = Shape {
            jobs: 4,
            workers: 8,
            ports: 8,
            payload_bytes: 256,
            element: "f32",
            run_fragments: 8,
            turn_fragments: 1,
            shards: 2,
        };
        let captures = Captures::steered(shape.clone()).unwrap();
        assert!(captures.is_steered());
        assert!(!Captures::of(shape.clone()).unwrap().is_steered());
        for (port, shard) in [(0, 0), (5, 1)] {
            let file = &captures.files()[usize::from(port)][usize::from(shard)];
            let file = std::fs::read(file).unwrap();
            let records = file[24..].chunks_exact(16 + 320);
            assert_eq!(records.len(), 12);
            for record in records {
                let udp = UdpFrame::parse(&record[16..]).unwrap();
                assert_eq!(udp.addresses.dst_port, DEFAULT_PORT + shard);
                let header = Header::parse(udp.datagram(&record[16..])).unwrap();
                assert_eq!(header.fragment.0 & 1, u32::from(shard));
                assert_eq!(header.job, JobId(JOB.0 + u16::from(port / 2)));
                assert_eq!(header.rank, Rank(port % 2));
            }
        }
    }
}
