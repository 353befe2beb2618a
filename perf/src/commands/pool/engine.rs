//! The aggregator by itself, in plain memory: no device, no driver.
//!
//! Contributions come in the order of the captures, all of a turn from one worker after the other.
//! A contribution's buffer is the one that was given back last, so it is in L1, where a NIC would
//! never put it (DDIO puts it in L3): what is out of the cache is the pool and nothing else. This
//! is the most that the size of the pool can matter.

use std::hint::black_box;
use std::time::{Duration, Instant};
use tally_engine::{Aggregator, Buffer, Egress, Member, PolicyName, PoolConfig, PoolJob, PortId};
use tally_engine::{Roster, To};
use tally_kernels::Kernels;
use tally_wire::{
    AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, Header, JobId, Kind, Mac, Rank, Time,
    UNIT_BYTES,
};

const JOB: JobId = JobId(7);
const EPOCH: Epoch = Epoch(1);
/// Fragments that the ring of results spans is twice this.
const WINDOW: u16 = 16;

/// A payload at an address that is a multiple of 64.
struct Payload {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Payload {
    fn new(len: usize) -> Self {
        // Zeros stay zeros however often they are summed.
        let bytes = vec![0; len + 64];
        let start = bytes.as_ptr().align_offset(64);
        Self { bytes, start, len }
    }
}

impl Buffer for Payload {
    fn payload(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Keeps what the engine is done with, last in, first out.
#[derive(Default)]
struct Free {
    buffers: Vec<Payload>,
    /// Frames that went anywhere but to the workers.
    others: u64,
}

impl Egress<Payload> for Free {
    fn send(&mut self, _: &Roster, _: To, _: &Header, buffer: Payload) {
        self.others += 1;
        self.buffers.push(buffer);
    }

    fn publish(&mut self, _: &Roster, _: &Header, buffer: Payload, _: Option<Time>) -> Payload {
        black_box(buffer)
    }

    fn send_up(&mut self, _: &Roster, _: &Header, buffer: Payload, _: Option<Time>) -> Payload {
        self.others += 1;
        buffer
    }

    fn copy_up(&mut self, _: &Roster, _: &Header, _: &Payload) {
        self.others += 1;
    }

    fn is_queued(&self, _: &Payload) -> bool {
        false
    }

    fn republish(&mut self, _: &Roster, _: Rank, _: &Payload) {
        self.others += 1;
    }

    fn discard(&mut self, buffer: Payload) {
        self.buffers.push(buffer);
    }
}

/// Payload bytes summed per second, with that many fragments in flight; `None` if anything else
/// happened than sums.
pub(super) fn measure(
    fragments: u32,
    workers: u8,
    payload_bytes: u16,
    seconds: f64,
) -> Option<f64> {
    let member = |rank: u8| Member {
        port: PortId(0),
        mac: Mac([2, 0, 0, 0, 0, rank]),
        ip: [10, 0, 0, rank].into(),
        udp_port: 40_000,
    };
    let units = (usize::from(payload_bytes) / UNIT_BYTES) as u8;
    let mut engine = Aggregator::new(
        PoolConfig {
            slots: fragments,
            ways: 1,
            held: 0,
            window: WINDOW.min(fragments as u16 / 2).max(1),
            shards: 1,
            shard: 0,
            jobs: vec![PoolJob::unlimited(JOB)],
            policy: PolicyName::Esa,
            places: 0,
        },
        Kernels::best(),
    );
    let mut free = Free::default();
    let roster = Roster::new(
        JOB,
        EPOCH,
        EpochSecret::new([7; 16]),
        units,
        (0..workers).map(member).collect(),
        member(workers),
    );
    engine.bind(roster, &mut free);
    let in_ring = 4 * u32::from(WINDOW);
    free.buffers = (0..fragments + in_ring)
        .map(|_| Payload::new(payload_bytes.into()))
        .collect();
    let mut first = FragmentId(0);
    let mut turn = |engine: &mut Aggregator<Payload>, free: &mut Free| {
        for rank in 0..workers {
            let from = member(rank);
            for n in 0..fragments {
                let header = Header {
                    kind: Kind::Data,
                    flags: Flags::NONE,
                    priority: 0,
                    element: Element::I32,
                    job: JOB,
                    epoch: EPOCH,
                    fragment: first.plus(n),
                    rank: Rank(rank),
                    units,
                    bitmap: Rank(rank).bit(),
                    tag: AuthTag::NONE,
                };
                // The number that slots and ring can hold, and one.
                let Some(buffer) = free.buffers.pop() else {
                    return;
                };
                engine.handle(Time(0), &from, &header, buffer, free);
            }
        }
        first = first.plus(fragments);
    };
    turn(&mut engine, &mut free);
    let before = engine.counters().contributions;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        turn(&mut engine, &mut free);
    }
    let elapsed = start.elapsed().as_secs_f64();
    let counters = engine.counters();
    let summed = counters.contributions - before;
    let is_whole = counters.results * u64::from(workers) == counters.contributions;
    (summed > 0 && is_whole && free.others == 0)
        .then(|| summed as f64 * f64::from(payload_bytes) / elapsed)
}
