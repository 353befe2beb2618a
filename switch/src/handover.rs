//! Frames on their way from one data core to another.
//!
//! # How it works
//!
//! There is a ring from each data core to each other one, with one producer and one consumer: no
//! lock, and one shared word written by each side. A core puts frames into the ring in bursts, so
//! that the words change hands once a burst and not once a frame. In each poll iteration it takes
//! what waits for it, but no more than its ports' queues can hold.
//!
//! A frame that finds a ring full is dropped and counted. While a ring is half full
//! ([`Outbox::is_short_of_room`]) the core receives nothing from its ports, where frames may wait
//! in the devices' rings. It still takes frames from other cores, so no two cores wait for each
//! other.
//!
//! Frames that are in a ring when the switch ends go back to their pool with the ring.

use rtrb::chunks::ChunkError;
use rtrb::{Consumer, Producer, RingBuffer};
use tally_dpdk::Mbuf;

/// A frame for another data core.
pub type Handover = tally_engine::Handover<Mbuf>;

/// Frames on their way to one core at most, with few cores.
const FRAMES: usize = 4096;
/// Smallest ring between two cores: some poll iterations of a few ports.
const FRAMES_MIN: usize = 256;
/// Frames taken from one core in a poll iteration, at least.
const BURST: usize = 32;
/// Frames taken from all other cores in a poll iteration, with few cores: bursts of eight ports.
const ITERATION_FRAMES: usize = 256;

const _: () = assert!(size_of::<Handover>() == 16, "four to a cache line");

/// The ways between that many data cores: what each receives from, and what it sends to.
#[must_use]
pub fn handover(cores: usize) -> Vec<(Inbox, Outbox)> {
    let mut ends: Vec<_> = (0..cores).map(|_| <(Inbox, Outbox)>::default()).collect();
    for from in 0..cores {
        for to in 0..cores {
            let way = (from != to).then(|| RingBuffer::new(ring_frames(cores)));
            let way = way.map(|(producer, consumer)| {
                ends[to].0.0.push(consumer);
                producer
            });
            ends[from].1.0.push(way);
        }
    }
    ends
}

/// Frames on their way between that many cores at most, all together.
#[must_use]
pub fn frames_max(cores: usize) -> usize {
    cores * cores.saturating_sub(1) * ring_frames(cores)
}

fn ring_frames(cores: usize) -> usize {
    (FRAMES / (cores - 1).max(1)).max(FRAMES_MIN)
}

/// What other data cores hand to this one.
#[derive(Default)]
pub struct Inbox(Vec<Consumer<Handover>>);

impl Inbox {
    /// Appends what has arrived to `out`, up to the share of an iteration, in the order of each
    /// sender.
    pub fn take(&mut self, out: &mut Vec<Handover>) {
        let each = (ITERATION_FRAMES / self.0.len().max(1)).max(BURST);
        for ring in &mut self.0 {
            let waiting = ring.slots().min(each);
            // All that are there: no other core takes from the ring.
            if let Ok(frames) = ring.read_chunk(waiting) {
                out.extend(frames);
            }
        }
    }
}

/// What this data core hands to others.
#[derive(Default)]
pub struct Outbox(Vec<Option<Producer<Handover>>>);

impl Outbox {
    /// Hands all frames to another core; says how many were dropped because that core's ring is
    /// full.
    #[must_use]
    pub fn send(&mut self, core: usize, frames: &mut Vec<Handover>) -> u64 {
        let n = frames.len();
        let Some(ring) = &mut self.0[core] else {
            unreachable!("a core has what is for itself");
        };
        let chunk = match ring.write_chunk_uninit(n) {
            Err(ChunkError::TooFewSlots(room)) => ring.write_chunk_uninit(room),
            chunk => chunk,
        };
        let sent = chunk.map_or(0, |chunk| chunk.fill_from_iter(frames.drain(..)));
        // What the drain has not given away it has dropped.
        frames.clear();
        (n - sent) as u64
    }

    /// Whether a ring to another core is half full.
    #[inline]
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        let short = |ring: &Producer<_>| ring.slots() < ring.buffer().capacity() / 2;
        self.0.iter().flatten().any(short)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use tally_dpdk::{Eal, EalConfig, Mempool, MempoolConfig};
    use tally_engine::PortId;

    #[test]
    fn frames_arrive_in_order_and_what_does_not_fit_is_counted() {
        let eal = Eal::init(&EalConfig::no_huge(64)).unwrap();
        let pool = MempoolConfig {
            frames: 8191,
            cache_frames: 0,
            frame_bytes_max: 64,
            socket: None,
        };
        let pool = Mempool::new(&eal, "handover", &pool).unwrap();
        let frame = |port: u16| Handover::Ingress(PortId(port), pool.alloc().unwrap());
        let send = |outbox: &mut Outbox, to: usize, ports: std::ops::Range<u16>| {
            outbox.send(to, &mut ports.map(frame).collect())
        };
        let taken = |inbox: &mut Inbox| {
            let mut out = Vec::new();
            inbox.take(&mut out);
            let port = |handover: &Handover| match handover {
                Handover::Ingress(port, _) | Handover::Egress(port, ..) => port.0,
            };
            out.iter().map(port).collect::<Vec<_>>()
        };

        let mut cores = handover(3);
        assert_eq!(send(&mut cores[0].1, 2, 0..40), 0);
        assert_eq!(send(&mut cores[1].1, 2, 100..101), 0);
        assert_eq!(
            taken(&mut cores[2].0),
            (0..40).chain([100]).collect::<Vec<_>>()
        );
        assert!(taken(&mut cores[0].0).is_empty());
        assert!(taken(&mut cores[1].0).is_empty());

        // Full, in the middle of a burst.
        let room = ring_frames(3);
        let mut short_at = None;
        for n in 0..room as u16 {
            if short_at.is_none() && cores[0].1.is_short_of_room() {
                short_at = Some(usize::from(n));
            }
            assert_eq!(send(&mut cores[0].1, 2, n..n + 1), 0);
        }
        assert!(short_at.is_some_and(|n| (room / 2..room / 2 + 2 * BURST).contains(&n)));
        assert_eq!(send(&mut cores[0].1, 2, 0..3), 3);
        assert!(!cores[1].1.is_short_of_room());
        // A share at a time: two cores have the same.
        let iterations: Vec<_> = (0..room / 128)
            .map(|_| taken(&mut cores[2].0).len())
            .collect();
        assert!(
            iterations.iter().all(|&frames| frames == 128),
            "{iterations:?}"
        );
        assert!(taken(&mut cores[2].0).is_empty());
        assert!(!cores[0].1.is_short_of_room());

        // Frames left in the rings are freed with them.
        assert_eq!(send(&mut cores[2].1, 0, 0..50), 0);
        assert_eq!(pool.in_use(), 50);
        drop(cores);
        assert!(pool.is_whole());
    }

    #[test]
    fn one_core_has_no_other_to_hand_anything_to() {
        let mut alone = handover(1);
        let (inbox, outbox) = &mut alone[0];
        let mut out = Vec::new();
        inbox.take(&mut out);
        assert!(out.is_empty());
        assert!(!outbox.is_short_of_room());
        assert_eq!(frames_max(1), 0);
        assert_eq!(frames_max(2), 2 * 4096);
        assert_eq!(frames_max(64), 64 * 63 * 256);
    }
}
