//! Losses on purpose, the same ones for the same seed.

/// Draws which frames are lost.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    /// A frame is lost when its random number is below.
    threshold: u64,
    state: u64,
    /// How many were lost.
    pub lost: u64,
}

impl Losses {
    /// Loses with this probability.
    #[must_use]
    pub fn new(probability: f64, seed: u64) -> Self {
        Self {
            threshold: (probability.clamp(0.0, 1.0) * u64::MAX as f64) as u64,
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            lost: 0,
        }
    }

    /// Whether the next frame is lost. The generator is xorshift64*.
    pub fn loses(&mut self) -> bool {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let is_lost = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) < self.threshold;
        self.lost += u64::from(is_lost);
        is_lost
    }
}
