//! How long the PS waits for the rest of a fragment before it asks (P-3).
//!
//! Most of what it waits for sits in the switch: a contribution that found no slot, or was evicted
//! from one, came here, and those after it found one free, which now will never be full. So to wait
//! at all is only for workers that have not sent theirs yet, and how long that takes is the job's
//! own business: microseconds on a fast fabric, milliseconds on hosts that share a core, more with
//! a straggler. Asking too early evicts a sum that other contributions still belong to; asking late
//! holds up the window.
//!
//! How long it would have taken shows only for fragments that complete without being asked for,
//! which may be none. But how asking went says on which side of it we are:
//!
//! * What was asked for once and then was whole had been waited for long enough: a little less next
//!   time.
//! * So had what a worker asked for before we did (RESEND): a little less. Otherwise its timeout
//!   and our period, each learnt from how long fragments take, would keep each other up.
//! * A contribution, sent for the first time, that reached the switch after it had answered, came
//!   later than we asked: twice as much next time. (One that was lost comes with RESEND, and says
//!   nothing.)
//!
//! Fragments of one window share their fate, so each step is taken once for those that were already
//! waiting when it was taken: a single stall does not double the period once for every fragment.

use core::time::Duration;
use tally_wire::Time;

/// Bounds of the first period, and what it is before anything was learnt.
pub(super) const PERIOD_MIN: Duration = Duration::from_micros(50);
const PERIOD_INITIAL: Duration = Duration::from_millis(2);
pub(super) const PERIOD_MAX: Duration = Duration::from_millis(200);
/// A period is at least this multiple of the time of fragments that complete by themselves.
const TIMES: u32 = 2;
/// The first period learnt, in times that the first answer took.
const ANSWERS: u32 = 4;
/// What is left of the period when it was enough, in eighths.
const ENOUGH: u32 = 7;

/// The period after which to ask first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout {
    period: Duration,
    learnt: bool,
    /// Fragments born before these moments have been counted.
    lowered: Time,
    raised: Time,
}

impl Timeout {
    pub(super) const fn new() -> Self {
        Self {
            period: PERIOD_INITIAL,
            learnt: false,
            lowered: Time(0),
            raised: Time(0),
        }
    }

    /// The period before asking, after having asked `round` times.
    pub(super) fn period(&self, round: u32) -> Duration {
        self.period
            .saturating_mul(1 << round.min(31))
            .min(PERIOD_MAX)
    }

    /// A fragment was whole without being asked for.
    pub(super) fn whole(&mut self, now: Time, born: Time) {
        let took = now.since(born);
        if !self.learnt {
            self.learn(2 * TIMES * took);
        } else if TIMES * took <= self.period {
            self.lower(now, born);
        }
    }

    /// A fragment was whole after it had been asked for once, at `asked`.
    pub(super) fn enough(&mut self, now: Time, born: Time, asked: Time) {
        if self.learnt {
            self.lower(now, born);
        } else {
            self.learn(ANSWERS * now.since(asked));
        }
    }

    /// A fragment was whole because a worker retransmitted what was missing, or evicted it, before
    /// we asked.
    pub(super) fn asked_by_worker(&mut self, now: Time, born: Time) {
        if self.learnt {
            self.lower(now, born);
        }
    }

    /// A contribution to a fragment came after it had been asked for.
    pub(super) fn too_early(&mut self, now: Time, born: Time) {
        if born >= self.raised {
            self.learnt = true;
            self.raised = now;
            self.period = (self.period * 2).min(PERIOD_MAX);
        }
    }

    fn learn(&mut self, period: Duration) {
        self.learnt = true;
        self.period = period.clamp(PERIOD_MIN, PERIOD_INITIAL);
    }

    fn lower(&mut self, now: Time, born: Time) {
        if born >= self.lowered.max(self.raised) {
            self.lowered = now;
            self.period = (self.period * ENOUGH / 8).max(PERIOD_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Fragments one after the other, whose last contribution reaches the switch `late(n)` after
    /// the first one came here, and whose answers take `answer`. Returns the share asked for too
    /// early among the last half.
    fn run(p: &mut Timeout, n: u64, answer: Duration, late: impl Fn(u64) -> Duration) -> f64 {
        let mut now = p.lowered.max(p.raised);
        let mut early = 0;
        for i in 0..n {
            let (born, late, period) = (now, late(i), p.period(0));
            if late <= period {
                now = born.after(period + answer);
                p.enough(now, born, born.after(period));
            } else {
                now = born.after(late + period);
                p.too_early(now, born);
                early += u64::from(i >= n / 2);
            }
        }
        early as f64 / (n - n / 2) as f64
    }

    #[test]
    fn periods_double_up_to_their_bound() {
        let p = Timeout::new();
        assert_eq!(p.period(0), PERIOD_INITIAL);
        assert_eq!(p.period(3), 8 * PERIOD_INITIAL);
        assert_eq!(p.period(99), PERIOD_MAX);
    }

    #[test]
    fn the_first_answer_says_how_fast_the_network_is() {
        let mut p = Timeout::new();
        p.enough(Time(2_030_000), Time(0), Time(2_000_000));
        assert_eq!(p.period(0), 120 * US);
        let mut p = Timeout::new();
        p.enough(Time(2_008_000), Time(0), Time(2_000_000));
        assert_eq!(p.period(0), PERIOD_MIN, "10 us of a fast fabric");
        let mut p = Timeout::new();
        p.enough(Time(90_000_000), Time(0), Time(2_000_000));
        assert_eq!(p.period(0), PERIOD_INITIAL, "an answer that took long");
    }

    #[test]
    fn fragments_that_complete_by_themselves_are_left_to() {
        let mut p = Timeout::new();
        p.whole(Time(100_000), Time(0));
        assert_eq!(p.period(0), 400 * US);
        for n in 1..1000 {
            p.whole(Time(n * 1_000_000 + 100_000), Time(n * 1_000_000));
        }
        let period = p.period(0);
        assert!((170 * US..=230 * US).contains(&period), "{period:?}");
    }

    #[test]
    fn settles_where_few_are_asked_for_too_early() {
        for spread_us in [20u64, 300, 3000, 40_000] {
            let mut p = Timeout::new();
            // Evenly between nothing and the spread, in no order.
            let late = |i: u64| Duration::from_micros(i * 7919 % spread_us);
            let early = run(&mut p, 20_000, 10 * US, late);
            println!(
                "spread {spread_us} us: period {:?}, {early} too early",
                p.period(0)
            );
            assert!(early < 0.25, "{early}");
            let most = Duration::from_micros(2 * spread_us).max(PERIOD_MIN);
            assert!(p.period(0) <= most, "{:?}", p.period(0));
        }
    }

    /// Seed 1410 of `tally-sim check` in a world without turns: `fcfs` with one place to hold
    /// contributions in. A job of four workers needed one RESEND for each of its fragments, 22 ms
    /// after the last, until its end.
    #[test]
    fn who_leaves_the_asking_to_workers_learns_to_ask() {
        let mut p = Timeout::new();
        run(&mut p, 100, 10 * US, |_| 30_000 * US);
        assert!(p.period(0) > 20_000 * US, "{:?}", p.period(0));
        let mut now = Time(1 << 40);
        for _ in 0..100 {
            let born = now;
            now = born.after(20_000 * US);
            p.asked_by_worker(now, born);
        }
        assert_eq!(p.period(0), PERIOD_MIN);
    }

    #[test]
    fn a_straggler_is_waited_for_and_forgotten() {
        let mut p = Timeout::new();
        run(&mut p, 100, 10 * US, |_| Duration::ZERO);
        assert_eq!(p.period(0), PERIOD_MIN);
        run(&mut p, 100, 10 * US, |_| 30_000 * US);
        assert!(p.period(0) > 20_000 * US, "{:?}", p.period(0));
        run(&mut p, 100, 10 * US, |_| Duration::ZERO);
        assert_eq!(p.period(0), PERIOD_MIN);
    }

    #[test]
    fn a_stall_of_a_whole_window_is_one_step() {
        let mut p = Timeout::new();
        run(&mut p, 100, 10 * US, |_| Duration::ZERO);
        let (born, now) = (Time(1 << 40), Time((1 << 40) + 9_000_000));
        for _ in 0..256 {
            p.too_early(now, born);
        }
        assert_eq!(p.period(0), 2 * PERIOD_MIN);
        for _ in 0..256 {
            p.enough(now, born, born);
        }
        assert_eq!(p.period(0), 2 * PERIOD_MIN, "they waited before it, too");
    }
}
