//! Captures that are replayed for ever are summed for ever: a real switch gets them round after round,
//! drops nothing, finishes every fragment, and has all its buffers at its end.
//!
//! Uses the release program (`cargo build --release`).

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use tally_perf::replay::{Captures, Cpus, Shape, Switch};

/// Fails unless all that came in was summed, and answered on every port.
fn loops(shape: Shape) {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    );
    let switch = Switch::at(&target.join("release/tally-switch")).unwrap();
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
