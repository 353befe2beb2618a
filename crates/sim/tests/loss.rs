//! One job over lossy links of 100 Gbit/s, with the assertions that only debug builds have.
#![allow(clippy::unwrap_used)]

use tally_sim::loss::run::{Pattern, Scenario, run};

const SCENARIO: Scenario = Scenario {
    workers: 8,
    rate_gbit: 100.0,
    delay_ns: 2500,
    payload_bytes: 1024,
    window: 256,
    fragments: 6000,
    float: true,
};

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
