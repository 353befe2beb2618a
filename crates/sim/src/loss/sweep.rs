//! The runs of a comparison over threads, and the figures of each pattern of loss over its seeds.

use super::run::{Frames, Outcome, Pattern, Scenario, run};
use crate::parallel::run_all;
use anyhow::{Context, Result};
use serde::Serialize;
use tally_report::Spread;

/// A pattern of loss over its seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub pattern: String,
    /// Goodput in Gbit/s.
    pub goodput_gbit: Spread,
    /// Goodput divided by that of the same seed without loss.
    pub share: Spread,
    /// Sums over the seeds.
    pub frames: Frames,
    /// Frames with a payload sent again, for each lost.
    pub again_per_lost: Option<f64>,
    /// Latency of fragments in µs, medians of the seeds; of `max`, the largest.
    pub p50_us: f64,
    /// The same.
    pub p99_us: f64,
    /// The same.
    pub max_us: f64,
    /// The same in multiples of p50 of the same seed without loss.
    pub p50_times: f64,
    /// The same.
    pub p99_times: f64,
    /// The same.
    pub max_times: f64,
    /// Each seed's run.
    pub runs: Vec<Outcome>,
}

/// Runs each pattern with seeds 1 to `seeds`. The first row is the one without loss.
///
/// # Errors
/// The first run that failed.
pub fn sweep(
    scenario: &Scenario,
    patterns: &[Pattern],
    seeds: u64,
    threads: usize,
) -> Result<Vec<Row>> {
    let mut all = vec![Pattern::Random(0)];
    all.extend(patterns.iter().filter(|&&p| p != Pattern::Random(0)));
    let tasks: Vec<_> = all
        .iter()
        .flat_map(|&pattern| (1..=seeds).map(move |seed| (pattern, seed)))
        .collect();
    let done = run_all(&tasks, threads, |&(pattern, seed)| {
        run(scenario, pattern, seed)
    });
    let outcomes: Vec<Outcome> = done.into_iter().collect::<Result<_>>()?;
    let of_each: Vec<_> = outcomes.chunks(seeds as usize).collect();
    let lossless = *of_each.first().context("at least one seed is needed")?;
    let rows = all.iter().zip(&of_each);
    rows.map(|(pattern, runs)| row(*pattern, runs, lossless))
        .collect()
}

fn row(pattern: Pattern, runs: &[Outcome], lossless: &[Outcome]) -> Result<Row> {
    let spread = |of: &dyn Fn(&Outcome, &Outcome) -> f64| {
        let pairs = runs.iter().zip(lossless);
        let values: Vec<_> = pairs.map(|(run, base)| of(run, base)).collect();
        Spread::of(&values).context("a pattern without runs")
    };
    let latency = |q| spread(&move |run, _| run.latency_us(q));
    let times = |q| spread(&move |run, base| run.latency_us(q) / base.latency_us(0.5));
    let mut frames = Frames::default();
    for run in runs {
        frames.add(&run.frames);
    }
    Ok(Row {
        pattern: pattern.to_string(),
        goodput_gbit: spread(&|run, _| run.goodput_gbit)?,
        share: spread(&|run, base| run.goodput_gbit / base.goodput_gbit)?,
        frames,
        again_per_lost: (frames.payload_lost > 0)
            .then(|| frames.payload_again as f64 / frames.payload_lost as f64),
        p50_us: latency(0.5)?.median,
        p99_us: latency(0.99)?.median,
        max_us: latency(1.0)?.max,
        p50_times: times(0.5)?.median,
        p99_times: times(0.99)?.median,
        max_times: times(1.0)?.max,
        runs: runs.to_vec(),
    })
}
