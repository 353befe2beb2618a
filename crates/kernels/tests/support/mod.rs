//! What the tests of all operations share: the backends, places in memory, values, the oracle.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod oracle;

use tally_kernels::{Backend, Kernels};

/// Every backend that this CPU can run, and, loudly, those that it cannot.
pub fn backends() -> impl Iterator<Item = Kernels> {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        for backend in Backend::ALL.into_iter().filter(|b| !b.is_available()) {
            eprintln!("SKIPPED: backend {backend} cannot run on this CPU and is not tested");
        }
    });
    Backend::available().map(|backend| Kernels::new(backend).expect("available"))
}

/// What was being tested, for messages.
#[derive(Debug)]
pub struct Case {
    pub backend: Backend,
    pub op: &'static str,
    pub bytes: usize,
    pub at: (usize, usize),
}

const CANARY: u8 = 0xa5;
const CANARY_BYTES: usize = 128;

/// A payload at a chosen offset from a 64-byte boundary, with canaries on both sides.
pub struct Placed {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Placed {
    pub fn new(payload: &[u8], at: usize) -> Self {
        let mut memory = vec![CANARY; payload.len() + 2 * CANARY_BYTES + 128];
        let start = memory.as_ptr().addr().next_multiple_of(64) - memory.as_ptr().addr();
        let start = start + CANARY_BYTES + at % 64;
        memory[start..start + payload.len()].copy_from_slice(payload);
        Self {
            memory,
            start,
            bytes: payload.len(),
        }
    }

    pub fn get(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    /// The payload is `expected`, and nothing was written beside it.
    pub fn assert_is(&self, expected: &[u8], case: &Case) {
        let (before, rest) = self.memory.split_at(self.start);
        let (payload, after) = rest.split_at(self.bytes);
        if payload != expected {
            let at = payload.iter().zip(expected).position(|(a, b)| a != b);
            panic!("wrong from byte {at:?}: {case:?}\n  got {payload:02x?}\n want {expected:02x?}");
        }
        assert!(
            before.iter().all(|b| *b == CANARY),
            "wrote before the payload: {case:?}"
        );
        assert!(
            after.iter().all(|b| *b == CANARY),
            "wrote after the payload: {case:?}"
        );
    }
}

pub const HARD_I32: [i32; 14] = [
    0,
    1,
    -1,
    2,
    -2,
    i32::MAX,
    i32::MAX - 1,
    i32::MIN,
    i32::MIN + 1,
    1 << 30,
    -(1 << 30),
    (1 << 30) - 1,
    -(1 << 30) - 1,
    0x0102_0304,
];

/// Bits of `f32`: zeros, subnormals, limits, infinities, NaNs of both kinds with payloads.
pub const HARD_F32: [u32; 28] = [
    0x0000_0000,
    0x8000_0000,
    0x0000_0001,
    0x8000_0001,
    0x007f_ffff,
    0x807f_ffff,
    0x0040_0000,
    0x0080_0000,
    0x8080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x3380_0000,
    0x3400_0000,
    0x4b7f_ffff,
    0x4b80_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f00_0000,
    0xff00_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0000,
    0x7f80_0001,
    0xffbf_ffff,
    0x7fff_ffff,
    0xffc1_2345,
];

/// splitmix64: short, and the same on every host.
pub struct Rng(u64);

impl Rng {
    /// A generator for one test. `TALLY_TEST_SEED` replays another run.
    pub fn new(test: &str) -> Self {
        let seed = std::env::var("TALLY_TEST_SEED").map_or(0x7a11_7000, |seed| {
            seed.parse().expect("TALLY_TEST_SEED is a number")
        });
        eprintln!("{test}: TALLY_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.next() as u8).collect()
    }

    pub fn hard_i32(&mut self) -> i32 {
        HARD_I32[self.below(HARD_I32.len())]
    }

    pub fn hard_f32(&mut self) -> u32 {
        HARD_F32[self.below(HARD_F32.len())]
    }

    pub fn hard_i32_payload(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes / 4)
            .flat_map(|_| self.hard_i32().to_be_bytes())
            .collect()
    }

    pub fn hard_f32_payload(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes / 4)
            .flat_map(|_| self.hard_f32().to_le_bytes())
            .collect()
    }

    /// Either all small, so that nothing saturates, or anything with hard values among it.
    pub fn i32_payload(&mut self, bytes: usize) -> Vec<u8> {
        let small = self.below(2) == 0;
        (0..bytes / 4)
            .flat_map(|_| {
                let v = self.next() as i32;
                let v = if small {
                    v >> 6
                } else if self.below(8) == 0 {
                    self.hard_i32()
                } else {
                    v
                };
                v.to_be_bytes()
            })
            .collect()
    }

    pub fn f32_payload(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes / 4)
            .flat_map(|_| {
                let v = if self.below(8) == 0 {
                    self.hard_f32()
                } else {
                    self.next() as u32
                };
                v.to_le_bytes()
            })
            .collect()
    }
}
