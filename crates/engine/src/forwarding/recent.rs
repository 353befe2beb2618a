//! Frames that were flooded a moment ago: one that comes back by another port is in a loop.
//!
//! Two ports that are joined outside of the switch bring every flood back, and every copy again.
//! The first copy to come back is dropped here, so no loop forms, and the address of its sender is
//! not learnt where the copy came from.
//!
//! How it works: a table of one word for each of 4096 hashes of the whole frame, with its port and
//! the time. A frame whose hash was noted with another port within half a second is back. Hosts
//! repeat frames, by the same port. But once a frame was back, it is dropped from its first port
//! too: what a switch that is wired to two ports floods itself comes round to the same port.
//!
//! Catches: a host that moves and repeats the very same frame within half a second is heard after
//! that, and so is a host that repeats one while there is a loop. Who floods faster than 4096
//! frames in the loop's delay pushes others out of the table; then the rate limit is what remains.

use crate::PortId;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tally_wire::Time;
use tally_wire::neighbour::FRAME_BYTES_MIN;

const ENTRIES: usize = 4096;
/// About a millisecond.
const TICK_BITS: u32 = 20;
const TIME_BITS: u32 = 20;
const PORT_BITS: u32 = 16;
/// Ticks in which a frame is remembered: half a second. ARP repeats a request after a whole one.
const TICKS: u64 = 500_000_000 >> TICK_BITS;
/// Set in the word of a frame that was back.
const BACK: u64 = 1 << (TIME_BITS + PORT_BITS);

/// What was flooded, by hash.
#[derive(Debug)]
pub struct RecentFloods {
    seed: u64,
    /// Hash in the high 27 bits, whether the frame was back, port, and time in the low 20.
    entries: Box<[AtomicU64]>,
}

impl RecentFloods {
    /// Nothing was flooded.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            entries: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether this frame was flooded within the last half second, and has come back.
    #[must_use]
    pub fn is_back(&self, now: Time, port: PortId, frame: &[u8]) -> bool {
        let (entry, word) = self.find(now, port, frame);
        let noted = entry.load(Relaxed);
        let age = word.wrapping_sub(noted) & ((1 << TIME_BITS) - 1);
        let is_same_frame = (noted ^ word) >> (TIME_BITS + PORT_BITS + 1) == 0;
        let is_same_port = ((noted ^ word) & !BACK) >> TIME_BITS == 0;
        let is_back = is_same_frame && age <= TICKS && (!is_same_port || noted & BACK != 0);
        if is_back && noted & BACK == 0 {
            entry.store(noted | BACK, Relaxed);
        }
        is_back
    }

    /// Notes that this frame is flooded.
    pub fn note(&self, now: Time, port: PortId, frame: &[u8]) {
        let (entry, word) = self.find(now, port, frame);
        entry.store(word, Relaxed);
    }

    fn find(&self, now: Time, port: PortId, frame: &[u8]) -> (&AtomicU64, u64) {
        let hash = self.hash(frame);
        let entry = &self.entries[hash as usize % ENTRIES];
        let time = (now.0 >> TICK_BITS) & ((1 << TIME_BITS) - 1);
        let tag = hash >> (TIME_BITS + PORT_BITS + 1) << (TIME_BITS + PORT_BITS + 1);
        (entry, tag | u64::from(port.0) << TIME_BITS | time)
    }

    /// Of the frame as it is on a wire, which pads short ones with zeros.
    fn hash(&self, frame: &[u8]) -> u64 {
        let mix = |hash: u64, word: u64| {
            let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            product ^ product >> 29
        };
        let of = |hash, bytes: &[u8]| {
            let mut words = bytes.chunks_exact(8);
            let hash = words.by_ref().fold(hash, |hash, word| {
                mix(hash, word.iter().fold(0, |n, &b| n << 8 | u64::from(b)))
            });
            let rest = words.remainder().iter();
            mix(hash, rest.fold(1, |n, &b| n << 8 | u64::from(b)))
        };
        let start = mix(self.seed, frame.len().max(FRAME_BYTES_MIN) as u64);
        let hash = if frame.len() < FRAME_BYTES_MIN {
            let mut padded = [0; FRAME_BYTES_MIN];
            padded[..frame.len()].copy_from_slice(frame);
            of(start, &padded)
        } else {
            of(start, frame)
        };
        // The seed again, so that who knows what frames meet for one seed does not know it for
        // another.
        mix(hash, self.seed.rotate_left(32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_comes_back_by_another_port_is_told_from_what_is_said_twice() {
        let recent = RecentFloods::new(7);
        let frame = [3; 100];
        assert!(!recent.is_back(Time(0), PortId(1), &frame));
        recent.note(Time(0), PortId(1), &frame);
        assert!(!recent.is_back(Time(400 * MS), PortId(1), &frame), "a host");
        for at in 0..100 {
            let mut other = frame;
            other[at] ^= 1;
            assert!(!recent.is_back(Time(0), PortId(2), &other), "byte {at}");
        }
        assert!(!recent.is_back(Time(0), PortId(2), &frame[..99]));
        assert!(recent.is_back(Time(0), PortId(2), &frame));
        assert!(recent.is_back(Time(400 * MS), PortId(0), &frame));
        assert!(
            recent.is_back(Time(400 * MS), PortId(1), &frame),
            "round again"
        );
        for port in [1, 2] {
            assert!(!recent.is_back(Time(600 * MS), PortId(port), &frame), "old");
        }
        recent.note(Time(600 * MS), PortId(1), &frame);
        assert!(!recent.is_back(Time(700 * MS), PortId(1), &frame), "anew");
    }

    #[test]
    fn padding_of_the_wire_changes_nothing() {
        let recent = RecentFloods::new(7);
        let mut padded = [0; FRAME_BYTES_MIN];
        padded[..42].fill(9);
        recent.note(Time(5), PortId(1), &padded[..42]);
        assert!(recent.is_back(Time(5), PortId(2), &padded));
        assert!(!recent.is_back(Time(5), PortId(2), &[9; 42][..41]));
    }

    #[test]
    fn different_frames_seldom_meet() {
        let recent = RecentFloods::new(7);
        let frame = |n: u32| {
            let mut frame = [0; 64];
            frame[40..44].copy_from_slice(&n.to_be_bytes());
            frame
        };
        (0..20_000).for_each(|n| recent.note(Time(0), PortId(1), &frame(n)));
        let met = (20_000..120_000).filter(|&n| recent.is_back(Time(0), PortId(2), &frame(n)));
        assert!(met.count() <= 1);
        let kept = (19_000..20_000).filter(|&n| recent.is_back(Time(0), PortId(2), &frame(n)));
        assert!(kept.count() > 800, "a thousand later ones push out a fifth");
    }
}
