//! What follows from `registers.json` is what is committed.

#![allow(clippy::unwrap_used)]

#[path = "../examples/registers/generate/mod.rs"]
mod generate;

use std::path::Path;
use tally_bridge::registers::{COUNTERS, Group};
use tally_engine::metrics::MetricSet as _;
use tally_engine::{Counters, DropReason};

#[test]
fn the_files_are_what_the_generator_writes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (path, text) in generate::files(folder).unwrap() {
        let there = std::fs::read_to_string(folder.join(path)).unwrap_or_default();
        assert!(
            there == text,
            "{path} does not follow from registers.json; run `cargo run -p tally-bridge --example registers`"
        );
    }
}

fn names(of: Group) -> Vec<&'static str> {
    let those = COUNTERS.iter().filter(|(group, _)| *group == of);
    those.map(|&(_, name)| name).collect()
}

/// Counters that a card has no use for: grouping is how the software is fast, and a card takes one
/// frame at a time; a job with a tree is not offloaded.
const OF_SOFTWARE: [&str; 7] = [
    "grouped",
    "sums_up",
    "sums_up_again",
    "results_up",
    "probes_up",
    "results_down",
    "nacks_down",
];

/// So that reports can add the two up.
#[test]
fn counters_have_the_names_of_the_software() {
    let engine = Counters::default().named();
    let engine: Vec<_> = engine.iter().map(|&(name, _)| name).collect();
    let shared: Vec<_> = engine
        .into_iter()
        .filter(|name| !OF_SOFTWARE.contains(name))
        .collect();
    assert_eq!(names(Group::Count), shared);
    let reasons: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    let of_frames = names(Group::Drop);
    let of_frames = of_frames.iter().filter(|name| !name.starts_with("stream-"));
    let places: Vec<_> = of_frames
        .map(|name| reasons.iter().position(|reason| reason == name).unwrap())
        .collect();
    assert!(places.is_sorted());
}
