//! A few seeds of `tally-sim check`, with the assertions that only debug builds have.

use tally_sim::check::run;

#[test]
fn a_few_worlds_hold() {
    let (mut whole, mut forwarded, mut fabrics, mut trunk) = (0, 0, 0, 0);
    for seed in 0..20 {
        let outcome = run(seed, 0);
        whole += outcome.totals.whole;
        forwarded += outcome.totals.forwarded;
        fabrics += outcome.totals.fabrics;
        trunk += outcome.totals.trunk;
        let finding = outcome.finding.map(|f| f.to_string());
        assert_eq!(finding, None, "seed {seed}");
    }
    // Forwarding has both to do: let pass, and drop.
    assert!(
        forwarded > 100 && whole > 2 * forwarded,
        "{whole} {forwarded}"
    );
    // Some worlds have two switches.
    assert!(fabrics >= 3 && trunk > 10_000, "{fabrics} {trunk}");
}

#[test]
fn a_seed_is_the_same_world_every_time() {
    let totals = |_| format!("{:?}", run(3, 0).totals);
    assert_eq!(totals(0), totals(1));
}

/// Tracing only looks.
#[test]
fn a_trace_changes_nothing() {
    let (plain, traced) = (run(5, 0), run(5, 100));
    assert_eq!(plain.totals.events, traced.totals.events);
    assert!(traced.trace.is_some_and(|trace| trace.lines().count() > 50));
}
