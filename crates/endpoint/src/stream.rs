//! The order of scale and data fragments of a message in block fixed point (B-1).
//!
//! One scale fragment carries the scales of P data fragments, P being the payload in bytes. Scales
//! go one group ahead of their data, `S0, S1, D0, S2, D1, …, S(K−1), D(K−2), D(K−1)`, so that
//! agreeing on them costs a round trip only once.
//!
//! The position of everything is arithmetic: behind S0 come blocks of P + 1 fragments,
//! `S(k+1), Dk`, and at the end the last group without a scale fragment in front.

/// What one fragment of the message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The scales of data fragments `group · P` and on.
    Scales {
        /// Number of the group.
        group: u64,
    },
    /// Elements.
    Data {
        /// Number of the data fragment in the message.
        fragment: u64,
    },
}

/// The order of a message's fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedPoint {
    data_fragments: u64,
    payload_bytes: u64,
}

impl FixedPoint {
    /// The order for `elements` f32 in payloads of `payload_bytes`.
    ///
    /// # Panics
    /// If `payload_bytes` is not a multiple of 4 above 0.
    #[must_use]
    pub const fn new(elements: u64, payload_bytes: u64) -> Self {
        assert!(payload_bytes > 0 && payload_bytes.is_multiple_of(4));
        Self {
            data_fragments: elements.div_ceil(payload_bytes / 4),
            payload_bytes,
        }
    }

    /// Data fragments of the message, N.
    #[must_use]
    pub const fn data_fragments(&self) -> u64 {
        self.data_fragments
    }

    /// Scale fragments of the message, K.
    #[must_use]
    pub const fn groups(&self) -> u64 {
        self.data_fragments.div_ceil(self.payload_bytes)
    }

    /// All fragments of the message.
    #[must_use]
    pub const fn fragments(&self) -> u64 {
        self.data_fragments + self.groups()
    }

    /// What is at `index`, counted from the start of the message.
    ///
    /// # Panics
    /// If `index` is not below [`fragments`](Self::fragments).
    #[must_use]
    pub const fn at(&self, index: u64) -> Part {
        assert!(index < self.fragments());
        let Some(behind_first) = index.checked_sub(1) else {
            return Part::Scales { group: 0 };
        };
        let block = self.payload_bytes + 1;
        let last = self.groups() - 1;
        let k = behind_first / block;
        if k >= last {
            // No scale fragment in front of the last group.
            return Part::Data {
                fragment: behind_first - last,
            };
        }
        match behind_first % block {
            0 => Part::Scales { group: k + 1 },
            at => Part::Data {
                fragment: k * self.payload_bytes + at - 1,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B-1, written down step by step.
    fn naive(n: u64, p: u64) -> Vec<Part> {
        let k = n.div_ceil(p);
        let scales = |group| Part::Scales { group };
        let data = |group| (group * p..n.min((group + 1) * p)).map(|f| Part::Data { fragment: f });
        let mut parts = Vec::new();
        if k > 0 {
            parts.push(scales(0));
        }
        for group in 1..k {
            parts.push(scales(group));
            parts.extend(data(group - 1));
        }
        if k > 0 {
            parts.extend(data(k - 1));
        }
        parts
    }

    #[test]
    fn equals_the_order_written_down() {
        for p in [4, 8, 64] {
            for n in 0..5 * p + 3 {
                let order = FixedPoint::new(n * (p / 4), p);
                assert_eq!(order.data_fragments(), n);
                let parts: Vec<_> = (0..order.fragments()).map(|i| order.at(i)).collect();
                assert_eq!(parts, naive(n, p), "N = {n}, P = {p}");
            }
        }
    }

    #[test]
    fn part_of_a_fragment_is_a_fragment() {
        assert_eq!(FixedPoint::new(0, 64).fragments(), 0);
        assert_eq!(FixedPoint::new(1, 64).fragments(), 2);
        assert_eq!(FixedPoint::new(16, 64).fragments(), 2);
        assert_eq!(FixedPoint::new(17, 64).fragments(), 3);
    }

    #[test]
    fn every_data_fragment_comes_after_its_scales() {
        let order = FixedPoint::new(100_000, 64);
        let mut scales = 0;
        for i in 0..order.fragments() {
            match order.at(i) {
                Part::Scales { group } => {
                    assert_eq!(group, scales);
                    scales += 1;
                }
                Part::Data { fragment } => assert!(fragment / 64 < scales),
            }
        }
    }
}
