//! The last results of a job, kept so that the switch itself answers who lost one (W-4).

use tally_wire::FragmentId;

/// Where a fragment stands relative to the ring.
pub(crate) enum ResultState<'a, B> {
    /// Its result is here.
    Finished(&'a B),
    /// It is older than the ring reaches: every worker has its result (W-2).
    Old,
    /// It has no result yet.
    Open,
}

/// A ring of published frames, indexed by the fragment's number within the shard.
pub(crate) struct Ring<B> {
    /// Fragment and frame; tags apart from frames, so that the common look-up reads 8 bytes.
    tags: Box<[Tag]>,
    frames: Box<[Option<B>]>,
    /// The newest fragment with a result; none yet in this epoch.
    newest: Option<FragmentId>,
    /// log2 of the number of shards: one shard sees each 2^shift-th fragment.
    shift: u32,
}

#[derive(Clone, Copy)]
struct Tag {
    fragment: FragmentId,
    used: bool,
}

impl<B> Ring<B> {
    /// A ring over at least the last `fragments` fragments of the job, all shards together.
    pub(crate) fn new(fragments: u32, shift: u32) -> Self {
        // Rounded up: 6 fragments over 4 shards are 2 in the shard of fragments 0 and 4.
        let len = fragments.div_ceil(1 << shift).max(1).next_power_of_two() as usize;
        let unused = Tag {
            fragment: FragmentId(0),
            used: false,
        };
        Self {
            tags: vec![unused; len].into_boxed_slice(),
            frames: (0..len).map(|_| None).collect(),
            newest: None,
            shift,
        }
    }

    #[inline]
    fn index(&self, fragment: FragmentId) -> usize {
        (fragment.0 >> self.shift) as usize & (self.tags.len() - 1)
    }

    /// Fragments of the job that the ring spans.
    #[inline]
    fn span(&self) -> i64 {
        (self.tags.len() as i64) << self.shift
    }

    #[inline]
    pub(crate) fn state(&self, fragment: FragmentId) -> ResultState<'_, B> {
        let at = self.index(fragment);
        let tag = self.tags[at];
        if tag.used
            && tag.fragment == fragment
            && let Some(frame) = &self.frames[at]
        {
            return ResultState::Finished(frame);
        }
        match self.newest {
            Some(newest) if i64::from(newest.ahead_of(fragment)) >= self.span() => ResultState::Old,
            _ => ResultState::Open,
        }
    }

    /// Keeps the result of an open fragment, and gives back the frame that it displaces.
    #[inline]
    pub(crate) fn keep(&mut self, fragment: FragmentId, frame: B) -> Option<B> {
        let at = self.index(fragment);
        self.tags[at] = Tag {
            fragment,
            used: true,
        };
        if self
            .newest
            .is_none_or(|newest| fragment.ahead_of(newest) > 0)
        {
            self.newest = Some(fragment);
        }
        self.frames[at].replace(frame)
    }

    /// Empties the ring.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = B> {
        self.frames.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open<B>(r: &Ring<B>, f: u32) -> bool {
        matches!(r.state(FragmentId(f)), ResultState::Open)
    }

    #[test]
    fn keeps_the_last_results_and_knows_the_older_ones() {
        let mut r = Ring::new(8, 0);
        assert!(
            is_open(&r, 0) && is_open(&r, 3_000_000_000),
            "nothing is old in a new ring"
        );
        for f in 0..20u32 {
            assert!(is_open(&r, f));
            let displaced = r.keep(FragmentId(f), f);
            assert_eq!(displaced, f.checked_sub(8));
        }
        for f in 0..12 {
            assert!(matches!(r.state(FragmentId(f)), ResultState::Old), "{f}");
        }
        for f in 12..20 {
            assert!(
                matches!(r.state(FragmentId(f)), ResultState::Finished(&x) if x == f),
                "{f}"
            );
        }
        assert!(is_open(&r, 20));
        assert_eq!(r.drain().count(), 8);
    }

    #[test]
    fn wraps_with_the_serial_numbers() {
        let mut r = Ring::new(4, 0);
        for i in 0..8u32 {
            let f = FragmentId(u32::MAX - 3).plus(i);
            assert!(is_open(&r, f.0));
            r.keep(f, i);
        }
        assert!(matches!(r.state(FragmentId(u32::MAX)), ResultState::Old));
        assert!(matches!(r.state(FragmentId(3)), ResultState::Finished(7)));
        assert!(is_open(&r, 4));
    }

    #[test]
    fn a_gap_stays_open_until_it_is_older_than_the_ring() {
        let mut r = Ring::new(4, 0);
        for f in [0, 1, 3, 4] {
            r.keep(FragmentId(f), f);
        }
        assert!(is_open(&r, 2));
        r.keep(FragmentId(5), 5);
        assert!(is_open(&r, 2));
        r.keep(FragmentId(6), 6);
        assert!(matches!(r.state(FragmentId(2)), ResultState::Old));
    }

    #[test]
    fn spans_at_least_what_was_asked_for_when_the_shards_do_not_divide_it() {
        for shift in 0..5 {
            for fragments in 1..100 {
                let r = Ring::<()>::new(fragments, shift);
                assert!(r.span() >= i64::from(fragments), "{fragments} >> {shift}");
            }
        }
    }

    #[test]
    fn a_shard_sees_each_second_fragment_and_spans_the_same() {
        let mut r = Ring::new(8, 1);
        for f in (0..20u32).step_by(2) {
            r.keep(FragmentId(f), f);
        }
        assert!(matches!(r.state(FragmentId(10)), ResultState::Old));
        assert!(matches!(r.state(FragmentId(12)), ResultState::Finished(12)));
    }
}
