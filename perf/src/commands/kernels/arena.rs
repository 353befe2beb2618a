//! Frames in memory, and what they hold.

use super::cases::{CONTRIBUTIONS, Op, Row};
use half::{bf16, f16};

/// What lies before each payload in its frame.
pub const HEADER_BYTES: usize = 64;

/// Frames in memory: groups of an accumulator and its contributions.
pub struct Arena {
    memory: Vec<u8>,
    start: usize,
    pub payload_bytes: usize,
    pub contributions: usize,
    groups: usize,
    /// The group that is next.
    cursor: usize,
}

impl Arena {
    /// `None` when not even one group fits.
    pub fn new(op: Op, row: Row, payload_bytes: usize, working_set_bytes: usize) -> Option<Self> {
        const LINE: usize = 64;
        let contributions = row.contributions();
        let groups = working_set_bytes / (payload_bytes * (1 + contributions));
        if groups == 0 {
            return None;
        }
        let frame_bytes = HEADER_BYTES + payload_bytes;
        let mut memory = vec![0; groups * (1 + contributions) * frame_bytes + LINE];
        let start = memory.as_ptr().addr().next_multiple_of(LINE) - memory.as_ptr().addr();
        for (i, frame) in memory[start..].chunks_exact_mut(frame_bytes).enumerate() {
            let frame_in_group = i % (1 + contributions);
            for (j, element) in frame[HEADER_BYTES..]
                .as_chunks_mut()
                .0
                .iter_mut()
                .enumerate()
            {
                // A pair's sums would leave a narrow type's range after a few visits.
                if row != Row::Pair || !op.is_fold() {
                    *element = op.element(frame_in_group, j);
                }
            }
        }
        Some(Self {
            memory,
            start,
            payload_bytes,
            contributions,
            groups,
            cursor: 0,
        })
    }

    /// Visits `groups` groups in order, from where the last visit stopped.
    #[inline(always)]
    pub fn visit<const K: usize>(
        &mut self,
        groups: usize,
        mut f: impl FnMut(&mut [u8], [&[u8]; K]),
    ) {
        assert_eq!(K, self.contributions);
        let frame_bytes = HEADER_BYTES + self.payload_bytes;
        let memory = &mut self.memory[self.start..];
        let mut left = groups;
        while left > 0 {
            let run = left.min(self.groups - self.cursor);
            let from = self.cursor * (1 + K) * frame_bytes;
            for group in memory[from..]
                .chunks_exact_mut((1 + K) * frame_bytes)
                .take(run)
            {
                let (first, rest) = group.split_at_mut(frame_bytes);
                let mut contributions: [&[u8]; K] = [&[]; K];
                for (k, frame) in rest.chunks_exact(frame_bytes).enumerate() {
                    contributions[k] = &frame[HEADER_BYTES..];
                }
                f(&mut first[HEADER_BYTES..], contributions);
            }
            left -= run;
            self.cursor = (self.cursor + run) % self.groups;
        }
    }
}

impl Op {
    /// Values of which each slot's contributions cancel, and those of a pair stay small, so that
    /// sums neither saturate nor grow however often they are made. Four bytes of them.
    fn element(self, frame_in_group: usize, index: usize) -> [u8; 4] {
        let pair = 1 + frame_in_group.saturating_sub(1) / 2 * (index % 7);
        let value = match frame_in_group {
            0 | CONTRIBUTIONS => 0,
            frame if frame.is_multiple_of(2) => -(pair as i32),
            _ => pair as i32,
        };
        let twice = |[a, b]: [u8; 2]| [a, b, a, b];
        match self {
            Self::SumI32 => value.to_be_bytes(),
            Self::SumF32 => (value as f32).to_le_bytes(),
            Self::FoldF16 => twice(f16::from_f32(value as f32).to_le_bytes()),
            Self::FoldBf16 => twice(bf16::from_f32(value as f32).to_le_bytes()),
            Self::FoldI16 => twice((value as i16).to_be_bytes()),
            Self::FoldI8 => [value as u8; 4],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contributions_of_a_slot_cancel() {
        for index in 0..64 {
            let sum: i32 = (0..=CONTRIBUTIONS)
                .map(|frame| i32::from_be_bytes(Op::SumI32.element(frame, index)))
                .sum();
            assert_eq!(sum, 0, "element {index}");
        }
        assert_ne!(
            Op::SumI32.element(1, 0),
            [0; 4],
            "a pair's contribution is not zero"
        );
    }

    #[test]
    fn every_payload_of_an_arena_is_aligned_and_visited_in_turn() {
        let mut arena = Arena::new(Op::SumI32, Row::Slot, 256, 3 * 8 * 256).unwrap();
        assert_eq!(arena.groups, 3);
        let mut seen = Vec::new();
        arena.visit::<CONTRIBUTIONS>(4, |slot, contributions| {
            assert!(slot.as_ptr().addr().is_multiple_of(64));
            assert!(
                contributions
                    .iter()
                    .all(|c| c.as_ptr().addr().is_multiple_of(64))
            );
            assert!(contributions.iter().all(|c| c.len() == 256));
            seen.push(slot.as_ptr().addr());
        });
        assert_eq!(seen[0], seen[3]);
        assert_eq!(arena.cursor, 1);
    }

    #[test]
    fn a_working_set_too_small_for_a_slot_is_no_arena() {
        assert!(Arena::new(Op::SumF32, Row::Slot, 8192, 24 << 10).is_none());
        assert!(Arena::new(Op::SumF32, Row::Pair, 8192, 24 << 10).is_some());
    }
}
