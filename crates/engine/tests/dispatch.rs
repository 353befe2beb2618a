//! The oracle of the fuzz target on random scripts, on its seeds, and on what it has found.
//!
//! `TALLY_SEED=17 cargo test -p tally-engine --test dispatch` repeats one random script.

mod common;

use common::dispatch::{Summary, run};
use common::{Rng, seeds};

#[test]
fn random_scripts() {
    let mut all = Summary::default();
    for seed in seeds(450) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let len = rng.below(900);
        let script: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        let s = run(&script);
        all.frames += s.frames;
        all.drops += s.drops;
        all.results += s.results;
        all.partials += s.partials;
        all.nacks += s.nacks;
        all.probes_to_ps += s.probes_to_ps;
        all.forged += s.forged;
        all.binds += s.binds;
        all.replies += s.replies;
        all.forwarded += s.forwarded;
    }
    println!("{all:?}");
    if std::env::var("TALLY_SEED").is_err() {
        // That scripts get somewhere.
        assert!(all.drops > 2500 && all.frames > 2 * all.drops, "{all:?}");
        assert!(all.replies > 125 && all.forwarded > 250, "{all:?}");
        assert!(
            all.results > 250 && all.partials > 1250 && all.binds > 500,
            "{all:?}"
        );
        assert!(
            all.nacks > 250 && all.probes_to_ps > 12 && all.forged > 125,
            "{all:?}"
        );
    }
}

/// The seeds of the fuzz target: each a story that chance would be long in finding. First byte: the
/// policy, the ways and the limits; second: slots, places to hold floats, and whether the jobs run
/// (0xff: no member has joined).
fn stories() -> Vec<(&'static str, Vec<u8>)> {
    let mut stories = Vec::new();
    for (policy, name) in [
        (0, "esa"),
        (1, "fcfs"),
        (2, "static"),
        (3, "none"),
        (4, "esa-2-ways"),
    ] {
        // Fragments of each element type complete in turn, then the first are asked for again.
        let mut complete = vec![policy, 0x0f];
        for fragment in 0..8 {
            complete.extend([16, 0, fragment]);
            // The PS's result, for what the switch has not published itself.
            complete.extend([12, 0, 0, fragment, 4]);
        }
        complete.extend([0, 0, 1, 7, 0]);
        stories.push((name, complete));
    }
    stories.push((
        "preempt",
        // One slot a shard: job 7 holds it, job 8 comes with more and with less priority.
        vec![
            0, 0x0c, 0, 0, 2, 2, 0x11, 0, 0, 0, 2, 0x11, 0, 1, 0, 2, 0xf1, 0, 0, 1, 4, 0x21,
        ],
    ));
    stories.push((
        "remind",
        vec![
            0, 0x0f, 0, 0, 0, 1, 0x11, 12, 0, 0, 1, 0, 12, 0, 0, 1, 0, 12, 0, 0, 1, 2,
        ],
    ));
    stories.push((
        "probe",
        // Nothing is known of fragment 2: the asker; then rank 1; after REMIND the PS; at last the
        // ring.
        vec![
            0, 0x0f, 12, 0, 0, 2, 5, 0, 0, 0, 2, 0x11, 12, 0, 0, 2, 5, 12, 0, 0, 2, 0, 12, 0, 0, 2,
            5, 12, 0, 0, 2, 4, 12, 0, 0, 2, 5,
        ],
    ));
    stories.push((
        "forged",
        // Each way to a wrong tag, of a RESULT of the PS; and one recorded in an epoch before,
        // after the switch and the members of job 7 have started anew.
        vec![
            0, 0x0f, 0, 0, 0, 2, 0x11, 21, 0, 0, 2, 4, 0, 0, 9, 21, 0, 0, 2, 4, 1, 0, 0, 1, 2, 3,
            4, 5, 6, 7, 8, 21, 0, 0, 2, 5, 4, 0, 0, 21, 0, 0, 2, 4, 5, 0, 1, 21, 0, 0, 2, 4, 6, 0,
            0, 31, 0, 30, 0, 30, 1, 30, 2, 30, 3, 25, 0, 21, 0, 0, 2, 5, 3, 1, 0,
        ],
    ));
    stories.push((
        "form-leave-and-form",
        vec![
            0, 0xff, 25, 0, 25, 0, 27, 0, 0, 27, 1, 0, 27, 2, 0, 25, 0, 30, 0, 30, 1, 30, 2, 25, 0,
            25, 0,
        ],
    ));
    stories.push((
        "switch-restarts",
        vec![
            0, 0x0f, 0, 0, 0, 3, 0x11, 31, 0, 25, 0, 25, 1, 0, 0, 0, 3, 0x10,
        ],
    ));
    stories.push((
        "switchml",
        // Three workers in one slot, in one set after the other; two ask again; then the session
        // ends.
        vec![
            0, 0x0f, 224, 4, 0, 224, 0, 0, 0, 0, 0, 224, 0, 0, 1, 0, 0, 224, 0, 0, 2, 0, 0, 224, 0,
            0, 0, 0, 0, 224, 0, 0, 0, 1, 0, 224, 0, 0, 1, 1, 0, 224, 0, 0, 2, 0, 0, 224, 0, 0, 2,
            1, 0, 224, 5, 0,
        ],
    ));
    stories.push((
        "silence-and-takeover",
        vec![
            0, 0x0f, 29, 60, 30, 3, 26, 3, 26, 3, 26, 3, 29, 255, 25, 0, 28, 40, 0,
        ],
    ));
    stories
}

/// `TALLY_BLESS=1` writes the files.
#[test]
fn the_seeds_of_the_fuzz_target_are_these() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/dispatch");
    for (name, story) in stories() {
        run(&story);
        let path = format!("{dir}/{name}");
        if std::env::var("TALLY_BLESS").is_ok() {
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
    for policy in ["esa", "fcfs", "static"] {
        assert_eq!(story(policy).results, 8, "{policy}");
    }
    assert_eq!(story("preempt").partials, 3);
    assert_eq!(story("remind").partials, 1);
    let probe = story("probe");
    assert_eq!((probe.nacks, probe.probes_to_ps, probe.results), (2, 1, 1));
    let forged = story("forged");
    assert_eq!((forged.forged, forged.results, forged.binds), (6, 0, 3));
    assert!(story("form-leave-and-form").binds >= 2);
    assert_eq!(story("switch-restarts").binds, 4);
    assert_eq!(story("switchml").replies, 3 + 1 + 1 + 3);
}

/// What the fuzzer has found; the folder may be empty.
#[test]
fn regressions() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/regressions");
    for entry in std::fs::read_dir(dir).expect("the folder of regressions") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        run(&std::fs::read(&path).expect("a script"));
    }
}
