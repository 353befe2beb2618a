//! Frames on their way from one data core to another.
//!
//! # How it works
//!
//! There is a ring from each data core to each other one, with one producer and one consumer: no lock, and
//! one shared word written by each side. A core collects what it has for another during its turn and
//! puts it into the ring in bursts, so that the words change hands once a burst and not once a frame. Once a
//! turn it takes what waits for it, but no more than a turn's worth, which its ports' queues can hold.
//!
//! What finds a ring full is dropped and counted. It should not come to that: while a ring is half full
//! ([`Outbox::is_short_of_room`]) the core takes nothing new from its ports, where frames may wait in
//! the devices' rings. It goes on with what others hand to it, so no two cores wait for each
//! other.
//!
//! Frames that are in a ring when the switch ends go back to their pool with the ring.

use rtrb::chunks::ChunkError;
use rtrb::{Consumer, Producer, RingBuffer};
use tally_dpdk::Mbuf;
use tally_engine::PortId;

/// Frames on their way to one core at most, if there are few cores.
const FRAMES: usize = 4096;
/// Frames on their way from one core to another at most, at least: some turns of a few ports.
const FRAMES_MIN: usize = 256;
/// Frames that are handed over at a time, unless the turn ends before.
const BURST: usize = 32;
/// Frames taken from others in one turn, unless there are many others: bursts of eight ports.
const TURN_FRAMES: usize = 256;

/// A frame for another data core.
pub enum Handover {
    /// Received on this port, for a fragment of that core's shard.
    Ingress(PortId, Mbuf),
    /// To be sent on that core's port, in this class.
    Egress(PortId, u8, Mbuf),
}

impl Handover {
    /// What is handed over.
    #[inline]
    #[must_use]
    pub fn frame(&self) -> &Mbuf {
        match self {
            Self::Ingress(_, mbuf) | Self::Egress(_, _, mbuf) => mbuf,
        }
    }
}

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
                Way {
                    ring: producer,
                    stage: Vec::with_capacity(BURST),
                }
            });
            ends[from].1.0.push(way);
        }
    }
    ends
}

/// Frames on their way between that many cores at most, all together.
#[must_use]
pub fn frames_max(cores: usize) -> usize {
    cores * cores.saturating_sub(1) * (ring_frames(cores) + BURST)
}

fn ring_frames(cores: usize) -> usize {
    (FRAMES / (cores - 1).max(1)).max(FRAMES_MIN)
}

/// What other data cores hand to this one.
#[derive(Default)]
pub struct Inbox(Vec<Consumer<Handover>>);

impl Inbox {
    /// Takes what there is now, a turn's worth at most: appends it to `out`, in the order of each sender.
    pub fn take(&mut self, out: &mut Vec<Handover>) {
        let each = (TURN_FRAMES / self.0.len().max(1)).max(BURST);
        for ring in &mut self.0 {
            let waiting = ring.slots().min(each);
            // As many as there are: nobody else takes from the ring.
            if let Ok(frames) = ring.read_chunk(waiting) {
                out.extend(frames);
            }
        }
    }
}

/// What this data core hands to others.
#[derive(Default)]
pub struct Outbox(Vec<Option<Way>>);

struct Way {
    ring: Producer<Handover>,
    stage: Vec<Handover>,
}

impl Outbox {
    /// Hands a frame to another core, at the next [`flush`](Self::flush) at the latest. Returns how many
    /// frames were dropped: that core's ring is full.
    #[inline]
    #[must_use]
    pub fn send(&mut self, core: usize, handover: Handover) -> u64 {
        let Some(way) = &mut self.0[core] else {
            unreachable!("a core has what is for itself");
        };
        way.stage.push(handover);
        if way.stage.len() < BURST {
            return 0;
        }
        way.flush()
    }

    /// Hands over what has been collected. Returns how many frames were dropped.
    #[must_use]
    pub fn flush(&mut self) -> u64 {
        self.0.iter_mut().flatten().map(Way::flush).sum()
    }

    /// Whether a ring to another core is half full.
    #[inline]
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        let short = |way: &Way| way.ring.slots() < way.ring.buffer().capacity() / 2;
        self.0.iter().flatten().any(short)
    }
}

impl Way {
    fn flush(&mut self) -> u64 {
        let n = self.stage.len();
        if n == 0 {
            return 0;
        }
        let chunk = match self.ring.write_chunk_uninit(n) {
            Err(ChunkError::TooFewSlots(room)) => self.ring.write_chunk_uninit(room),
            chunk => chunk,
        };
        let sent = chunk.map_or(0, |chunk| chunk.fill_from_iter(self.stage.drain(..)));
        // What the drain has not given away it has dropped.
        (n - sent) as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use tally_dpdk::{Eal, EalConfig, Mempool, MempoolConfig};

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
        let send = |outbox: &mut Outbox, to: usize, port: u16| {
            outbox.send(to, Handover::Ingress(PortId(port), pool.alloc().unwrap()))
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
        for n in 0..40 {
            assert_eq!(send(&mut cores[0].1, 2, n), 0);
        }
        assert_eq!(send(&mut cores[1].1, 2, 100), 0);
        assert_eq!(taken(&mut cores[2].0), (0..32).collect::<Vec<_>>());
        assert_eq!(cores[0].1.flush() + cores[1].1.flush(), 0);
        assert_eq!(
            taken(&mut cores[2].0),
            [32, 33, 34, 35, 36, 37, 38, 39, 100]
        );
        assert!(taken(&mut cores[0].0).is_empty());
        assert!(taken(&mut cores[1].0).is_empty());

        // Full, in the middle of a burst.
        let room = ring_frames(3);
        let mut short_at = None;
        for n in 0..room + 1 {
            if short_at.is_none() && cores[0].1.is_short_of_room() {
                short_at = Some(n);
            }
            assert_eq!(send(&mut cores[0].1, 2, n as u16), 0);
        }
        assert!(short_at.is_some_and(|n| (room / 2..room / 2 + 2 * BURST).contains(&n)));
        assert_eq!(cores[0].1.flush(), 1);
        assert!(!cores[1].1.is_short_of_room());
        // A turn's worth at a time: two cores share it.
        let turns: Vec<_> = (0..room / 128)
            .map(|_| taken(&mut cores[2].0).len())
            .collect();
        assert!(turns.iter().all(|&frames| frames == 128), "{turns:?}");
        assert!(taken(&mut cores[2].0).is_empty());
        assert!(!cores[0].1.is_short_of_room());

        // What nobody took goes back, from the rings and from the stages.
        for n in 0..50 {
            assert_eq!(send(&mut cores[2].1, 0, n), 0);
        }
        assert_eq!(pool.in_use(), 50);
        drop(cores);
        assert!(pool.is_whole());
    }

    #[test]
    fn one_core_has_nobody_to_hand_anything_to() {
        let mut alone = handover(1);
        let (inbox, outbox) = &mut alone[0];
        let mut out = Vec::new();
        inbox.take(&mut out);
        assert!(out.is_empty());
        assert_eq!(outbox.flush(), 0);
        assert!(!outbox.is_short_of_room());
        assert_eq!(frames_max(1), 0);
        assert_eq!(frames_max(2), 2 * (4096 + 32));
        assert_eq!(frames_max(64), 64 * 63 * (256 + 32));
    }
}
