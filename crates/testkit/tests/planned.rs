//! A plan of several shares, carried out by real switches and agents: exact sums, and the bytes
//! that each cable carries.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces. How close the rate
//! comes to the planned one is measured by `tally-perf plan --switches`, on an idle machine.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::time::Duration;
use tally_planner::{Algorithm, Options, Resource, examples};
use tally_testkit::cluster::allowed;
use tally_testkit::planned::{Planned, Scale};

/// Rounds, with one that warms up.
const ROUNDS: u32 = 2;

#[test]
fn a_plan_of_several_shares_sums_exactly_over_its_own_cables() {
    if !allowed() {
        eprintln!("SKIPPED: needs root (network namespaces)");
        return;
    }
    let _alone = alone();
    let problem = examples::inart_fig1();
    let plan = tally_planner::plan(&problem, Algorithm::Tally, &Options::default()).unwrap();
    assert!(plan.jobs[0].shares.len() > 1, "{plan:?}");
    let scale = Scale {
        mbit_per_unit: 10.0,
        payload_bytes: 2048,
        window: Duration::from_micros(8500),
        fragments: 512,
        programs: programs(),
    };
    let bits = (scale.fragments * u64::from(scale.payload_bytes) * 8) as f64;
    let predicted = plan.jobs[0].rate * scale.mbit_per_unit * 1e6;
    let planned = Planned::start(&problem, &plan, scale).unwrap();
    // Every element is checked.
    let rounds = planned.rounds(ROUNDS).unwrap();
    let ratio = bits / rounds[1].seconds[0] / predicted;
    // Beside other programs it is slower, but no shaped cable lets more pass.
    assert!(
        (0.3..1.1).contains(&ratio),
        "rate by the planned one: {ratio}"
    );

    let carried = planned.carried(ROUNDS).unwrap();
    let ways: Vec<_> = carried.iter().map(|(resource, _)| *resource).collect();
    for stream in plan.jobs[0].shares.iter().flat_map(|it| &it.tree.streams) {
        assert!(stream.route.iter().all(|way| ways.contains(way)));
    }
    let switches = ways.iter().filter(|it| matches!(it, Resource::Capacity(_)));
    assert_eq!(switches.count(), 2, "both switches sum");
    for (resource, ratio) in carried {
        // Nothing less than the plan has; more if frames are sent again.
        assert!((1.0..2.0).contains(&ratio), "{resource:?}: {ratio}");
    }
}
