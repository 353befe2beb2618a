//! Captures replayed in a loop are summed in every round: a real switch drops nothing, finishes
//! every fragment, and has all its buffers at its end.
//!
//! Uses the release program (`cargo build --release`).

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use tally_load::capture::Shape;
use tally_testkit::replay::{Captures, Cpus, Switch};

/// Fails unless all that came in was summed, and answered on every port.
fn loops(shape: Shape) {
    let _alone = alone();
    let switch = Switch::at(&programs().join("tally-switch")).unwrap();
    let captures = Captures::of(shape.clone()).unwrap();
    let rate = switch
        .measure(&captures, Cpus::of_this_machine(), 1)
        .unwrap_or_else(|error| panic!("{shape:?}: {error:#}"));
    let rounds = rate.frames_per_s * rate.cpu_share / f64::from(shape.frames());
    assert!(rounds > 3.0, "{shape:?}: only {rounds} rounds");
}

#[test]
fn captures_loop_without_loss() {
    let shape = Shape {
        jobs: 1,
        workers: 4,
        ports: 4,
        payload_bytes: 1024,
        element: "i32",
        run_fragments: 64,
        turn_fragments: 1,
        shards: 1,
    };
    // A worker at each port, several at each, all at one.
    for ports in [4, 2, 1] {
        loops(Shape {
            ports,
            ..shape.clone()
        });
    }
    // Turn by turn: as many turns as fit the run, and one.
    for turn_fragments in [16, 64] {
        loops(Shape {
            ports: 1,
            turn_fragments,
            element: "f32",
            ..shape.clone()
        });
    }
}
