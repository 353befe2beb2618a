//! The oracle of the fuzz target `node` on random scripts and on its seeds.
//!
//! `TALLY_SEED=17 cargo test -p tally-engine --test node` repeats one random script.

mod common;

use common::node::{Summary, run};
use common::{Rng, seeds};

#[test]
fn random_scripts() {
    let mut all = Summary::default();
    for seed in seeds(150) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let len = rng.below(600);
        let script: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        let s = run(&script);
        all.frames += s.frames;
        all.binds += s.binds;
        all.up += s.up;
        all.results += s.results;
        all.links += s.links;
    }
    println!("{all:?}");
    if std::env::var("TALLY_SEED").is_err() {
        // That scripts get somewhere.
        assert!(all.binds > 120 && all.links > 300, "{all:?}");
        assert!(all.up > 200 && all.results > 300, "{all:?}");
    }
}

/// The seeds of the fuzz target: first byte below 200: the job runs at first.
fn stories() -> Vec<(&'static str, Vec<u8>)> {
    let sums = |n: u8| (0..n).flat_map(|fragment| [3, fragment, 4, 0, fragment, 0]);
    let mut stories = vec![("sums", std::iter::once(0).chain(sums(8)).collect())];
    // Copies of sums and results that the parent asks for, and a RESULT of a worker.
    stories.push((
        "asked",
        vec![
            0, 3, 1, 4, 2, 1, 0, 12, 20, 1, 4, 2, 1, 0, 4, 6, 1, 1, 4, 2, 1, 0,
        ],
    ));
    // The node starts anew while the job runs, the members come again, and it sums.
    let mut restart = vec![0, 3, 0, 248, 1];
    (0..12).for_each(|_| restart.extend([9, 12, 40, 1]));
    restart.extend(sums(2));
    stories.push(("node-restarts", restart));
    // A worker of the leaf leaves with an error: the epoch ends everywhere, and the next one runs.
    let mut leave = vec![0, 3, 0, 11, 5, 1];
    (0..12).for_each(|_| leave.extend([9, 12, 40, 1]));
    leave.extend(sums(2));
    stories.push(("leave-and-form", leave));
    // A contribution of rank 0 made for a wrong tag, which DATA does not have, and the other two.
    stories.push((
        "data-without-tag",
        vec![0, 7, 5, 7, 0, 0, 0, 1, 0, 4, 0, 2, 0, 4],
    ));
    // All links are silent until they die, and come back.
    stories.push(("links-die", vec![0, 12, 200, 0, 12, 200, 1, 3, 0]));
    stories
}

/// `TALLY_BLESS=1` writes the files.
#[test]
fn the_seeds_of_the_fuzz_target_are_these() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/node");
    for (name, story) in stories() {
        run(&story);
        let path = format!("{dir}/{name}");
        if std::env::var("TALLY_BLESS").is_ok() {
            std::fs::create_dir_all(dir).expect("a writable checkout");
            std::fs::write(&path, &story).expect("a writable checkout");
        }
        assert_eq!(std::fs::read(&path).ok(), Some(story), "{path}");
    }
}

#[test]
fn seeds_reach_what_they_are_for() {
    let story = |wanted| {
        let is = |(name, _): &(&str, Vec<u8>)| *name == wanted;
        let (_, story) = stories().into_iter().find(is).expect("a story");
        run(&story)
    };
    let sums = story("sums");
    assert_eq!((sums.binds, sums.up), (1, 8), "{sums:?}");
    // To two ports of hosts, and to the child's.
    assert_eq!(sums.results, 24, "{sums:?}");
    let untagged = story("data-without-tag");
    assert_eq!(untagged.up, 1, "{untagged:?}");
    let restarts = story("node-restarts");
    assert_eq!(restarts.binds, 2, "{restarts:?}");
    assert!(restarts.up >= 3, "{restarts:?}");
    let leave = story("leave-and-form");
    assert_eq!(leave.binds, 2, "{leave:?}");
    let links = story("links-die");
    assert!(links.links > story("sums").links, "{links:?}");
}
