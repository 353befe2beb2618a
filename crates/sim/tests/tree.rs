//! A few worlds with trees of switches, with the assertions that only debug builds have.

use tally_sim::check::options::tree::TreeOptions;
use tally_sim::check::run_tree;

fn assert_holds(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let outcome = run_tree(TreeOptions::draw_anyway(seed), 0);
        let finding = outcome.finding.map(|f| f.to_string());
        assert_eq!(finding, None, "seed {seed}");
    }
}

#[test]
fn a_few_worlds_of_trees_hold() {
    assert_holds([0, 1, 2, 9, 13, 15, 21]);
}

/// A leaf that restarts when all its workers have left says so to its parent, although it does not
/// run again.
#[test]
fn a_leaf_that_restarts_while_its_workers_leave_ends_the_job() {
    assert_holds([4]);
}

/// A frame of the parent that was delayed from the epoch before gives a node no epoch.
#[test]
fn a_delayed_frame_of_the_last_epoch_is_not_of_this_one() {
    assert_holds([124]);
}
