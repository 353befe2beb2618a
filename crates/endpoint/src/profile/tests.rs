use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A job that has had `steps` equal steps, first computing and then communicating.
fn after(steps: u64, total: Option<u64>, compute_ms: u64, communicate_ms: u64) -> Profile {
    let mut now = Time(77 * MS);
    let mut p = Profile::new(now, total);
    for _ in 0..steps {
        p.compute_begins(now);
        now = Time(now.0 + compute_ms * MS);
        p.compute_ends(now);
        p.communication_begins(now);
        now = Time(now.0 + communicate_ms * MS);
        p.communication_ends(now);
        p.step_ended(now);
    }
    p
}

#[test]
fn logarithms_are_right_to_their_places() {
    for n in (1..100_000).chain([u64::MAX, u64::MAX / 3, 1 << 63, (1 << 63) - 1]) {
        let want = (n as f64).log2() * OCTAVE as f64;
        let got = log2(n) as f64;
        assert!(
            (want - 1.01..=want + 0.01).contains(&got),
            "{n}: {got}, {want}"
        );
    }
    assert_eq!(log2(0), 0);
}

#[test]
fn before_the_first_step_only_the_layer_counts() {
    for total in [None, Some(0), Some(7)] {
        let p = Profile::new(Time(0), total);
        assert_eq!(p.priority(0, 16), 128);
        assert_eq!(p.priority(15, 16), 128 - 24);
        assert_eq!(p.priority(0, 0), 128);
    }
}

/// The documented figures.
#[test]
fn priorities_are_those_of_the_formula() {
    // 10 of 20 steps of 100 ms: 1 s to go.
    assert_eq!(after(10, Some(20), 50, 50).priority(0, 16), 171);
    assert_eq!(after(10, Some(20), 50, 50).priority(15, 16), 171 - 24);
    assert_eq!(
        after(1, Some(36_001), 50, 50).priority(0, 1),
        100,
        "an hour"
    );
    assert_eq!(after(1, Some(11), 20, 80).priority(0, 1), 171 + 12, "4 : 1");
    assert_eq!(after(1, Some(11), 80, 20).priority(0, 1), 171 - 12);
    // Of unknown length, after a second.
    assert_eq!(after(10, None, 50, 50).priority(0, 1), 171);
    assert_eq!(after(100, None, 50, 50).priority(0, 1), 171 - 20);
}

#[test]
fn the_end_of_a_known_job_comes_nearer_and_an_unknown_one_sinks() {
    let known: Vec<_> = (1..100)
        .map(|n| after(n, Some(100), 9, 9).priority(0, 1))
        .collect();
    assert!(known.is_sorted() && known[98] > known[0] + 30, "{known:?}");
    let unknown: Vec<_> = (1..100)
        .map(|n| after(n, None, 9, 9).priority(0, 1))
        .collect();
    assert!(
        unknown.iter().rev().is_sorted() && unknown[98] + 30 < unknown[0],
        "{unknown:?}"
    );
    // More steps than it was said to have: the last one never ends.
    assert_eq!(after(150, Some(100), 9, 9).priority(0, 1), known[98]);
}

#[test]
fn times_of_zero_and_of_centuries_are_survived() {
    let p = after(5, Some(10), 0, 0);
    assert_eq!(p.priority(0, 1), 255, "nothing takes any time");
    let p = after(10, Some(20), 0, 100);
    assert_eq!(p.priority(0, 1), 171 + 30, "32 : 1 at most");
    let p = after(10, Some(20), 100, 0);
    assert_eq!(p.priority(0, 1), 171 - 30);
    let p = after(1, Some(u64::MAX), 1 << 40, 1);
    assert_eq!(p.priority(9, 10), 1);
}

#[test]
fn a_network_cut_finer_has_the_same_priorities() {
    let p = after(10, Some(20), 50, 50);
    for layers in [2, 16, 161, u32::MAX] {
        assert_eq!(p.priority(0, layers), 171);
        assert_eq!(p.priority(layers - 1, layers), 171 - 24);
        assert_eq!(p.priority(u32::MAX, layers), 171 - 24);
    }
    // Half way: 1 + 7.5.
    assert_eq!(p.priority(50, 101), 171 - 19);
}

#[test]
fn overlapping_activities_are_counted_both_and_shared_out_between_steps() {
    let mut p = Profile::new(Time(0), Some(3));
    p.compute_begins(Time(0));
    p.communication_begins(Time(20 * MS));
    p.communication_begins(Time(25 * MS));
    p.compute_ends(Time(30 * MS));
    p.step_ended(Time(50 * MS));
    assert_eq!(p.computation.mean_ns, 30 * MS);
    assert_eq!(p.communication.mean_ns, 30 * MS);
    p.communication_ends(Time(60 * MS));
    p.communication_ends(Time(65 * MS));
    p.step_ended(Time(90 * MS));
    assert_eq!(p.computation.mean_ns, 30 * MS * 3 / 4);
    assert_eq!(p.communication.mean_ns, 30 * MS * 3 / 4 + 10 * MS / 4);
    assert_eq!(p.step_ns, 50 * MS * 3 / 4 + 10 * MS);
}

#[test]
fn measurements_follow_a_change_within_some_steps() {
    let mut p = after(10, Some(1000), 50, 50);
    let before = p.priority(0, 1);
    for n in 0..10 {
        let begin = Time((2000 + n * 400) * MS);
        p.communication_begins(begin);
        p.communication_ends(Time(begin.0 + 350 * MS));
        p.compute_begins(Time(begin.0 + 350 * MS));
        p.compute_ends(Time(begin.0 + 400 * MS));
        p.step_ended(Time(begin.0 + 400 * MS));
    }
    // The ratio is 7; the rest has become four times as long.
    let now = i32::from(p.priority(0, 1)) - i32::from(before);
    assert!((now - (17 - 12)).abs() <= 2, "{now}");
}

#[test]
fn the_job_has_as_many_fragments_as_its_steps_so_far_extrapolate_to() {
    let mut p = Profile::new(Time(0), Some(10));
    assert_eq!(p.fragments_total(), Some(0));
    p.submits(30);
    assert_eq!(p.fragments_total(), Some(300), "at least");
    p.submits(70);
    p.step_ended(Time(1));
    assert_eq!(p.fragments_total(), Some(1000));
    // A step that is not over does not count.
    p.submits(140);
    assert_eq!(p.fragments_total(), Some(1000));
    p.step_ended(Time(2));
    assert_eq!(p.fragments_total(), Some(1200));
    assert_eq!(Profile::new(Time(0), None).fragments_total(), None);
}

proptest! {
    #[test]
    fn rises_and_falls_with_each_argument(
        compute in 0u64..1 << 45, communicate in 0u64..1 << 45, step in 0u64..1 << 45,
        layer in 0u32..40, layers in 1u32..40, more in 0u64..1 << 40,
        steps in 0u64..1000, total in prop::option::of(0u64..2000),
    ) {
        let p = Profile {
            steps_total: total,
            steps,
            began: Time(0),
            step_began: Time(step.saturating_mul(steps)),
            step_ns: step,
            computation: Activity { mean_ns: compute, ..Activity::default() },
            communication: Activity { mean_ns: communicate, ..Activity::default() },
            fragments: 0,
            fragments_of_steps: 0,
        };
        let base = p.priority(layer, layers);
        let change = |f: fn(&mut Profile, u64)| {
            let mut other = p.clone();
            f(&mut other, more);
            other.priority(layer, layers)
        };
        prop_assert!(base >= 1);
        prop_assert!(p.priority(layer + 1, layers) <= base);
        prop_assert!(change(|p, more| p.communication.mean_ns += more) >= base);
        prop_assert!(change(|p, more| p.computation.mean_ns += more) <= base);
        prop_assert!(change(|p, more| p.step_ns += more) <= base);
        prop_assert!(change(|p, more| p.step_began.0 += more) <= base);
    }
}
