//! What is counted and measured of a load, and how it is reported.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest latency that is told apart from longer ones: 100 s.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// An empty histogram of nanoseconds, to three digits.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds that hdrhistogram takes")
}

/// What happened in one job. Fragments count once, frames by worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Contributions made for the first time.
    pub frames_sent: u64,
    /// Contributions retransmitted, by timeout or because the parameter server asked.
    pub frames_again: u64,
    /// Frames of results that reached a rank that lacked them.
    pub results: u64,
    /// The same fragment's result once more.
    pub duplicates: u64,
    /// Fragments whose result all ranks have.
    pub fragments: u64,
    /// Results that the parameter server finished.
    pub from_ps: u64,
    /// Results of which a part found no slot, or lost one.
    pub collided: u64,
    /// Results of which a part met a long queue.
    pub marked: u64,
    /// What the parameter server asked of workers.
    pub nacks: u64,
    /// Fragments given up without a result.
    pub lost: u64,
    /// Results of fragments that are not in flight.
    pub unasked: u64,
}

impl Counts {
    fn map2(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            frames_sent: of(self.frames_sent, other.frames_sent),
            frames_again: of(self.frames_again, other.frames_again),
            results: of(self.results, other.results),
            duplicates: of(self.duplicates, other.duplicates),
            fragments: of(self.fragments, other.fragments),
            from_ps: of(self.from_ps, other.from_ps),
            collided: of(self.collided, other.collided),
            marked: of(self.marked, other.marked),
            nacks: of(self.nacks, other.nacks),
            lost: of(self.lost, other.lost),
            unasked: of(self.unasked, other.unasked),
        }
    }

    /// Both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.map2(other, |a, b| a + b)
    }

    /// What has come since.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        self.map2(before, |a, b| a - b)
    }
}

/// The latencies of one job, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// From when the last contribution was due to a result's arrival, by priority.
    pub corrected: Vec<Histogram<u64>>,
    /// From when the first contribution was due.
    pub from_first: Histogram<u64>,
    /// From when the last contribution was sent.
    pub uncorrected: Histogram<u64>,
    /// From when the last contribution was due to when it was sent.
    pub late: Histogram<u64>,
}

impl Latencies {
    /// Of a job with so many priorities.
    #[must_use]
    pub fn new(priorities: usize) -> Self {
        Self {
            corrected: vec![histogram(); priorities],
            from_first: histogram(),
            uncorrected: histogram(),
            late: histogram(),
        }
    }

    /// All priorities together.
    #[must_use]
    pub fn all(&self) -> Histogram<u64> {
        let mut sum = histogram();
        for part in &self.corrected {
            sum += part;
        }
        sum
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// The shortest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// 99.99th percentile.
    #[serde(rename = "p99.99")]
    pub p9999: f64,
    /// The longest.
    pub max: f64,
}

impl Percentiles {
    /// Of a histogram of nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let us = |nanos: u64| nanos as f64 / 1e3;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        Self {
            count: histogram.len(),
            min: us(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: us(histogram.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds_and_of_nothing_are_zero() {
        assert_eq!(Percentiles::of(&histogram()).count, 0);
        let mut latencies = Latencies::new(2);
        for us in 1..=10_000 {
            latencies.corrected[us as usize % 2]
                .record(us * 1000)
                .unwrap();
        }
        let all = Percentiles::of(&latencies.all());
        assert_eq!(all.count, 10_000);
        for (found, want) in [
            (all.min, 1.0),
            (all.p50, 5000.0),
            (all.p99, 9900.0),
            (all.p9999, 9999.0),
            (all.max, 10_000.0),
        ] {
            assert!((found / want - 1.0).abs() < 2e-3, "{found} {want}");
        }
    }
}
