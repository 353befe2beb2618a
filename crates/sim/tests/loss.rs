//! The targets of recovery at 100 Gbit/s, with the assertions that only debug builds have.
#![allow(clippy::unwrap_used)]

use tally_sim::loss::command::{AGAIN, P99_TIMES, SHARES};
use tally_sim::loss::run::{Pattern, Scenario, run};

const SCENARIO: Scenario = Scenario {
    workers: 8,
    rate_gbit: 100.0,
    delay_ns: 1000,
    payload_bytes: 1024,
    window: 256,
    fragments: 5000,
    float: true,
};
/// Of the targets, for a message whose end has more weight than that of a long one.
const SLACK: f64 = 0.92;

#[test]
fn a_seed_is_the_same_run_every_time() {
    let scenario = Scenario {
        fragments: 1000,
        ..SCENARIO
    };
    for pattern in [Pattern::Random(30_000), Pattern::Bursts] {
        let first = run(&scenario, pattern, 3).unwrap();
        assert_eq!(first, run(&scenario, pattern, 3).unwrap());
        assert_ne!(first, run(&scenario, pattern, 4).unwrap());
    }
}

#[test]
fn without_loss_nothing_is_sent_again() {
    for float in [true, false] {
        let scenario = Scenario {
            fragments: 1000,
            float,
            ..SCENARIO
        };
        let outcome = run(&scenario, Pattern::Random(0), 1).unwrap();
        assert_eq!(outcome.frames, Default::default());
        assert!(outcome.goodput_gbit > 80.0, "{}", outcome.goodput_gbit);
    }
}

#[test]
fn every_pattern_ends_with_exact_sums() {
    for pattern in Pattern::FIXED {
        let scenario = Scenario {
            fragments: 4000,
            float: false,
            ..SCENARIO
        };
        let outcome = run(&scenario, pattern, 1).unwrap();
        assert!(outcome.frames.lost > 0, "{pattern}");
    }
}

#[test]
fn targets_are_met_at_each_rate() {
    let lossless = run(&SCENARIO, Pattern::Random(0), 1).unwrap();
    for (ppm, share) in SHARES {
        let outcome = run(&SCENARIO, Pattern::Random(ppm), 1).unwrap();
        let reached = outcome.goodput_gbit / lossless.goodput_gbit;
        assert!(reached >= share * SLACK, "{ppm} ppm: {reached}");
        let frames = outcome.frames;
        let again = frames.payload_again as f64 / frames.payload_lost as f64;
        assert!(again <= AGAIN, "{ppm} ppm: {frames:?}");
        if ppm == SHARES[0].0 {
            let p99 = outcome.latency_us(0.99) / lossless.latency_us(0.5);
            assert!(p99 < P99_TIMES, "{p99}");
        }
    }
}
