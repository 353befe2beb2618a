//! Support of the integration tests.
#![allow(dead_code, reason = "each test uses a part")]

pub mod dialect;
pub mod dispatch;
pub mod fabric;
pub mod forwarding;
pub mod node;
pub mod pair;
pub mod plain;
pub mod platform;
pub mod ring;
pub mod sums;
pub mod switch;
pub mod table;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): all
/// that a test needs of randomness, the same on every machine.
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// With this chance in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }
}

/// The seeds of a randomised test: that of `TALLY_SEED` alone, or `count` of them.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("TALLY_SEED") {
        Ok(seed) => vec![seed.parse().expect("TALLY_SEED: a decimal number")],
        Err(_) => (0..count).collect(),
    }
}
