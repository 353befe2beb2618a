//! A few worlds with rings of RoCE hosts, with the assertions that only debug builds have.

use tally_sim::check::options::Options;
use tally_sim::check::options::tree::TreeOptions;
use tally_sim::check::run;

/// Seeds that are worlds with rings.
fn with_rings() -> impl Iterator<Item = u64> {
    let is_tree = |seed| TreeOptions::draw(seed).is_some();
    (0..).filter(move |&seed| !is_tree(seed) && Options::draw(seed).rings.is_some())
}

#[test]
fn a_few_worlds_of_rings_hold() {
    let (mut epochs, mut rings, mut sums, mut again, mut done) = (0, 0, 0, 0, 0);
    for seed in with_rings().take(8) {
        let outcome = run(seed, 0);
        let finding = outcome.finding.map(|f| f.to_string());
        assert_eq!(finding, None, "seed {seed}");
        let options = Options::draw(seed).rings;
        rings += options.map_or(0, |of| of.rings.len() as u64);
        epochs += outcome.totals.ring_epochs;
        sums += outcome.totals.ring_sums;
        again += outcome.totals.ring_sums_again;
        done += outcome.totals.ring_all_reduces;
    }
    // Rings begin anew, and packets come again after their sum.
    assert!(epochs > 2 * rings, "{epochs} epochs of {rings} rings");
    assert!(
        sums > 1000 && again > 100 && done > 500,
        "{sums} {again} {done}"
    );
}
