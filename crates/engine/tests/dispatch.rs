//! The oracle of the fuzz target on random scripts, on its seeds, and on what it has found.
//!
//! `TALLY_SEED=17 cargo test -p tally-engine --test dispatch` repeats one random script.

mod common;

use common::dispatch::{Summary, run};
use common::{Rng, seeds};

#[test]
fn random_scripts() {
    let mut all = Summary::default();
    for seed in seeds(1500) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let len = rng.below(900);
        let script: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        let s = run(&script);
        all.frames += s.frames;
        all.drops += s.drops;
        all.results += s.results;
        all.partials += s.partials;
        all.binds += s.binds;
    }
    println!("{all:?}");
    if std::env::var("TALLY_SEED").is_err() {
        // That scripts get somewhere.
        assert!(all.drops > 10_000 && all.frames > 2 * all.drops, "{all:?}");
        assert!(
            all.results > 1000 && all.partials > 5000 && all.binds > 2000,
            "{all:?}"
        );
    }
}
