//! The few statistics that a report needs.

use serde::{Deserialize, Serialize};

/// A median and how far the samples spread about it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle sample; of an even number, the mean of the middle two.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
}

impl Spread {
    /// The spread of some samples; `None` when there are none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            sorted[middle - 1].midpoint(sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_samples() {
        assert_eq!(Spread::of(&[]), None);
        let one = Spread {
            median: 3.0,
            min: 3.0,
            max: 3.0,
        };
        assert_eq!(Spread::of(&[3.0]), Some(one));
        let odd = Spread {
            median: 3.0,
            min: 1.0,
            max: 9.0,
        };
        assert_eq!(Spread::of(&[9.0, 1.0, 3.0]), Some(odd));
        let even = Spread {
            median: 2.5,
            min: 1.0,
            max: 9.0,
        };
        assert_eq!(Spread::of(&[9.0, 1.0, 3.0, 2.0]), Some(even));
    }
}
