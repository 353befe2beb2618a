//! Which jobs a card gets: those of a list, or those that have most to do.
//!
//! Every so often the contributions of each job are counted. A job that is hot for some looks gets
//! a free place; where none is free, the hottest job outside takes the place of the coldest one
//! inside if it has been much hotter for longer. So a job that rests between two steps keeps its
//! place, and two that are alike do not evict each other in turn: each move costs a job a few
//! round trips.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tally_wire::{JobId, Time};

/// How often jobs are compared.
pub const LOOK: Duration = Duration::from_millis(250);
/// Contributions a second of a job that is worth a place.
const HOT_PER_S: f64 = 100.0;
/// How much hotter a job must be than one whose place it takes.
const HOTTER: f64 = 2.0;
/// Looks in a row at which it is, for a free place.
const LOOKS_FREE: u8 = 2;
/// Looks in a row, for another's place.
const LOOKS_TAKEN: u8 = 8;

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// A job goes to the card.
    There(JobId),
    /// A job comes back, to make room.
    Back(JobId),
}

#[derive(Clone, Copy, Debug, Default)]
struct Heat {
    count: u64,
    per_s: f64,
    /// Looks in a row at which it was worth a place, or another's.
    looks: [u8; 2],
}

/// Who has been how hot.
#[derive(Debug, Default)]
pub struct Choice {
    jobs: BTreeMap<JobId, Heat>,
    last: Option<Time>,
}

impl Choice {
    /// The next move. `counts` are contributions of running jobs so far. Jobs that `fit` are
    /// candidates, those `inside` are on the card now, which has `places` for jobs.
    pub fn look(
        &mut self,
        now: Time,
        counts: &BTreeMap<JobId, u64>,
        fit: &BTreeSet<JobId>,
        inside: &BTreeSet<JobId>,
        places: usize,
    ) -> Option<Move> {
        let elapsed = self.last.map(|last| now.since(last).as_secs_f64());
        self.last = Some(now);
        self.jobs.retain(|id, _| counts.contains_key(id));
        for (&id, &count) in counts {
            let known = self.jobs.get(&id).is_some_and(|heat| heat.count <= count);
            let heat = self.jobs.entry(id).or_default();
            if let Some(elapsed) = elapsed.filter(|&elapsed| known && elapsed > 0.0) {
                // Half of it is the last look, so that a pause of one look does not count for much.
                heat.per_s = (heat.per_s + (count - heat.count) as f64 / elapsed) / 2.0;
            }
            heat.count = count;
        }
        let heat = |id: &JobId| self.jobs.get(id).map_or(0.0, |heat| heat.per_s);
        let coldest = inside.iter().min_by(|a, b| heat(a).total_cmp(&heat(b)));
        let coldest = coldest.map(|&id| (id, heat(&id)));
        for (id, heat) in &mut self.jobs {
            let is_outside = fit.contains(id) && !inside.contains(id);
            let is_hot = is_outside && heat.per_s >= HOT_PER_S;
            let is_hotter = is_hot
                && coldest.is_none_or(|(_, inside)| heat.per_s >= HOTTER * inside + HOT_PER_S);
            for (looks, is) in heat.looks.iter_mut().zip([is_hot, is_hotter]) {
                *looks = if is { looks.saturating_add(1) } else { 0 };
            }
        }
        let is_free = inside.len() < places;
        let enough = |heat: &Heat| match is_free {
            true => heat.looks[0] >= LOOKS_FREE,
            false => heat.looks[1] >= LOOKS_TAKEN,
        };
        let outside = self.jobs.iter().filter(|(_, heat)| enough(heat));
        let (&hottest, _) = outside.max_by(|(_, a), (_, b)| a.per_s.total_cmp(&b.per_s))?;
        if is_free {
            return Some(Move::There(hottest));
        }
        coldest.map(|(id, _)| Move::Back(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Jobs {
        choice: Choice,
        now: Time,
        counts: BTreeMap<JobId, u64>,
        inside: BTreeSet<JobId>,
        places: usize,
    }

    impl Jobs {
        fn new(places: usize) -> Self {
            Self {
                choice: Choice::default(),
                now: Time(0),
                counts: BTreeMap::new(),
                inside: BTreeSet::new(),
                places,
            }
        }

        /// A look's time in which jobs have so many contributions a second. Jobs from 100 on do not
        /// fit.
        fn look(&mut self, per_s: &[(u16, u64)]) -> Option<Move> {
            self.now = self.now.after(LOOK);
            for &(id, per_s) in per_s {
                *self.counts.entry(JobId(id)).or_default() += per_s / 4;
            }
            let fit = self
                .counts
                .keys()
                .copied()
                .filter(|id| id.0 < 100)
                .collect();
            let choice = &mut self.choice;
            let next = choice.look(self.now, &self.counts, &fit, &self.inside, self.places);
            match next {
                Some(Move::There(id)) => assert!(self.inside.insert(id)),
                Some(Move::Back(id)) => assert!(self.inside.remove(&id)),
                None => {}
            }
            next
        }

        fn steady(&mut self, per_s: &[(u16, u64)]) -> Vec<u16> {
            for _ in 0..40 {
                self.look(per_s);
            }
            assert!((0..40).all(|_| self.look(per_s).is_none()), "never settles");
            self.inside.iter().map(|id| id.0).collect()
        }
    }

    #[test]
    fn the_hottest_jobs_that_fit_get_the_places() {
        let mut jobs = Jobs::new(2);
        let heats = [(1, 1000), (2, 50), (3, 5000), (4, 20_000), (100, 90_000)];
        assert_eq!(jobs.steady(&heats), [3, 4]);
        let mut jobs = Jobs::new(8);
        assert_eq!(jobs.steady(&heats), [1, 3, 4], "job 2 is not worth it");
    }

    #[test]
    fn one_hot_look_is_not_enough() {
        let mut jobs = Jobs::new(1);
        for _ in 0..50 {
            assert_eq!(jobs.look(&[(1, 150)]), None);
            assert_eq!(jobs.look(&[(1, 0)]), None);
        }
    }

    #[test]
    fn jobs_that_are_alike_do_not_drive_each_other_out() {
        let mut jobs = Jobs::new(1);
        assert_eq!(jobs.steady(&[(1, 1000), (2, 900)]), [1]);
        for _ in 0..100 {
            assert_eq!(jobs.look(&[(1, 700), (2, 1300)]), None);
            assert_eq!(jobs.look(&[(1, 1300), (2, 700)]), None);
        }
        assert_eq!(jobs.steady(&[(1, 1000), (2, 4000)]), [2]);
    }

    #[test]
    fn a_job_that_rests_keeps_its_place_until_another_wants_it() {
        let mut jobs = Jobs::new(1);
        assert_eq!(jobs.steady(&[(1, 1000)]), [1]);
        assert_eq!(jobs.steady(&[(1, 0)]), [1]);
        assert_eq!(jobs.steady(&[(1, 0), (2, 500)]), [2]);
        jobs.counts.remove(&JobId(2));
        jobs.inside.clear();
        assert_eq!(jobs.steady(&[(1, 1000)]), [1], "the other has ended");
    }

    #[test]
    fn a_counter_that_begins_anew_is_no_heat() {
        let mut jobs = Jobs::new(1);
        jobs.look(&[(1, 4_000_000)]);
        jobs.look(&[]);
        jobs.counts.insert(JobId(1), 0);
        for _ in 0..20 {
            assert_eq!(jobs.look(&[(1, 40)]), None);
        }
    }
}
