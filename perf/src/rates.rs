//! Rates of programs that take turns: spreads over the rounds, and ratios of neighbours in time.

use tally_report::Spread;
use tally_testkit::replay::Rate;

/// Frames per second over the rounds; `None` without a round.
#[must_use]
pub fn frames_per_s(rates: &[Rate]) -> Option<Spread> {
    spread(rates.iter().map(|rate| rate.frames_per_s))
}

/// Median share of the CPU over the rounds; `None` without a round.
#[must_use]
pub fn cpu_share(rates: &[Rate]) -> Option<f64> {
    Some(spread(rates.iter().map(|rate| rate.cpu_share))?.median)
}

/// Frames per second divided by those of another program in the same round; `None` without a
/// round that both have.
#[must_use]
pub fn ratio(rates: &[Rate], base: &[Rate]) -> Option<Spread> {
    let rounds = rates.iter().zip(base);
    spread(rounds.map(|(rate, base)| rate.frames_per_s / base.frames_per_s))
}

/// A ratio in a table: median, least and most.
#[must_use]
pub fn shown(ratio: Option<Spread>) -> String {
    ratio.map_or("-".into(), |it| {
        format!("{:.3} ({:.3}-{:.3})", it.median, it.min, it.max)
    })
}

fn spread(values: impl Iterator<Item = f64>) -> Option<Spread> {
    Spread::of(&values.collect::<Vec<_>>())
}
