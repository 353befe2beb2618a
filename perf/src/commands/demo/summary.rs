//! What the demonstration reports: targets and a table.

use super::Args;
use super::run::Row;
use std::fmt::Write as _;
use tally_report::Target;
use tally_schema::agent::report::PsReport;
use tally_schema::switch::report::Report as SwitchReport;
use tally_testkit::cluster::{Cpus, Network};

/// That all results are exact, no frame of the pool is lost, and the card did its part.
pub fn targets(rows: &[Row], switch: &SwitchReport) -> Vec<Target> {
    let mut targets = exactness(
        rows.iter().filter(|row| !row.exact).count(),
        std::slice::from_ref(switch),
    );
    targets.extend(card_targets(rows));
    targets
}

/// That no result is wrong, and no frame of a pool is lost.
pub fn exactness(wrong: usize, switches: &[SwitchReport]) -> Vec<Target> {
    let missing = switches.iter().filter(|it| it.frames_missing != Some(0));
    vec![
        Target::at_most(
            "inexact_runs",
            wrong as f64,
            "runs",
            0.0,
            "every worker's result against the reference, bit for bit",
        ),
        Target::at_most(
            "buffers_missing",
            missing.count() as f64,
            "pools",
            0.0,
            "each switch's pool of frames is whole at its end",
        ),
    ]
}

/// That the card did the work until it was killed, and that the job resumed soon.
fn card_targets(rows: &[Row]) -> Vec<Target> {
    // The first fragments of a job come before it is on the card. Floats that arrive out of rank
    // order go to the PS.
    let on_card = rows
        .iter()
        .filter(|row| row.killed.is_none() && row.arithmetic == "fixed");
    let sum = on_card.fold((0, 0), |(card, all), row| {
        (card + row.from_card.unwrap_or(0), all + row.fragments)
    });
    let mut targets = Vec::new();
    if rows.iter().any(|row| row.from_card.is_some()) {
        targets.push(Target::at_least(
            "card_share",
            sum.0 as f64 / sum.1 as f64,
            "of results",
            0.5,
            "the card finished at least half of all sums in fixed point until it was killed",
        ));
    }
    targets.extend(rows.iter().filter_map(|row| row.killed).map(|killed| {
        Target::at_most(
            "standstill",
            killed.standstill_ms,
            "ms",
            1000.0,
            "the job resumes in software within a second after the card was killed",
        )
    }));
    targets
}

pub fn table(
    args: &Args,
    (network, cpus): (Network, &Cpus),
    rows: &[Row],
    switch: &SwitchReport,
    ps: &[PsReport],
) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} workers, {}\npolicy {}, {} slots, payload {} B, window {}, loss {} %, seed {}\nswitch on CPU {}, workers and parameter server on CPU {}\n",
        args.workers,
        network.describe(),
        args.policy,
        switch.gauges.slots,
        args.payload,
        args.window(),
        args.loss * 100.0,
        args.seed,
        Cpus::list(&cpus.switch),
        Cpus::list(&cpus.hosts)
    );
    let _ = writeln!(
        out,
        "{:<32} {:<7} {:>7} {:>10} {:>10} {:>9} {:>8} {:>8} {:>9} {:>9} {:>9}{}",
        "gradients",
        "sum as",
        "exact",
        "Gbit/s",
        "fragments",
        "switch",
        "PS",
        "resent",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        if args.card { "   by card" } else { "" }
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<32} {:<7} {:>7} {:>10.3} {:>10} {:>9} {:>8} {:>8} {:>9.0} {:>9.0} {:>9.0}{}",
            row.name,
            row.arithmetic,
            if row.exact { "yes" } else { "NO" },
            row.goodput_gbps,
            row.fragments,
            row.from_switch,
            row.from_ps,
            row.retransmissions.nack,
            row.p50_us,
            row.p99_us,
            row.p999_us,
            row.from_card.map_or(String::new(), |n| format!("{n:>10}"))
        );
    }
    if ps.len() > 1 {
        let results = ps.iter().flat_map(|it| &it.jobs).map(|job| job.results);
        let results: Vec<_> = results.map(|n| n.to_string()).collect();
        let _ = writeln!(
            out,
            "\nfragments that each parameter server finished: {}",
            results.join(", ")
        );
    }
    for killed in rows.iter().filter_map(|row| row.killed) {
        let _ = writeln!(
            out,
            "\nThe card was killed after {} of {} fragments. The job stood still for {:.0} ms and resumed \
             in software.",
            killed.results, killed.fragments, killed.standstill_ms
        );
    }
    if args.restart.is_some() {
        let _ = writeln!(out, "\nkilled in the middle of a run and started again");
    }
    for row in rows {
        for restarted in &row.restarts {
            let _ = writeln!(
                out,
                "{:<32} {:<7} {} after {} of {} fragments, back in {:.0} ms",
                row.name,
                row.arithmetic,
                restarted.process,
                restarted.results,
                restarted.fragments,
                restarted.down_ms
            );
        }
    }
    let wrong: Vec<_> = rows.iter().filter(|row| !row.exact).collect();
    let _ = match wrong.as_slice() {
        [] => writeln!(out, "\nEXACT: every worker has every bit of every sum."),
        _ => writeln!(out, "\nWRONG: {} of {} runs.", wrong.len(), rows.len()),
    };
    for row in wrong {
        let _ = writeln!(out, "{} ({}):\n{}", row.name, row.arithmetic, row.verdict);
    }
    out
}
