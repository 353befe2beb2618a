//! What sums ought to be, computed from the contributions themselves and in no other way.
//!
//! The contributions of a fragment are made up such that a payload tells which ranks are in it, and
//! how often. This shares no code with the engine or its kernels.

use tally_wire::{Element, FragmentId, JobId};

/// Payload bytes of all made-up contributions.
pub const BYTES: usize = 64;

fn noise(job: JobId, fragment: FragmentId, rank: u8, i: usize) -> u32 {
    let mut x = u32::from(job.0) << 20 ^ fragment.0.wrapping_mul(0x85eb_ca6b);
    for word in [u32::from(rank), i as u32, 0x1234_5678] {
        x = (x ^ word).wrapping_mul(0xc2b2_ae35);
        x ^= x >> 15;
    }
    x
}

/// The i-th 32-bit element (or byte) that a rank contributes, as bits.
fn term(job: JobId, fragment: FragmentId, element: Element, rank: u8, i: usize) -> u32 {
    let noise = noise(job, fragment, rank, i);
    match element {
        // Element 0 counts: two bits for each of up to 12 ranks, so that twice is not once of the next.
        Element::I32 if i == 0 => 1 << (2 * rank),
        // The top bits stay free: 12 of these do not saturate.
        Element::I32 => (noise.cast_signed() >> 5).cast_unsigned(),
        Element::F32 if i == 0 => ((1u32 << (2 * rank)) as f32).to_bits(),
        // Exponents far apart: any other order than that of the ranks gives other bits somewhere.
        Element::F32 => {
            let magnitude = 2f32.powi((noise % 60).cast_signed() - 30);
            let value = (1.0 + (noise >> 9) as f32 / 8_388_608.0) * magnitude;
            (if noise >> 8 & 1 == 1 { -value } else { value }).to_bits()
        }
        _ if i == usize::from(rank) => 255,
        _ if i < 16 => 0,
        _ => noise & 0xff,
    }
}

/// The payload that combines the contributions of the ranks in `bitmap`.
pub fn of(job: JobId, fragment: FragmentId, element: Element, bitmap: u64) -> Vec<u8> {
    let ranks: Vec<u8> = (0..64).filter(|r| bitmap >> r & 1 == 1).collect();
    let terms = |i| {
        ranks
            .iter()
            .map(move |&r| term(job, fragment, element, r, i))
    };
    match element {
        Element::I32 => (0..BYTES / 4)
            .flat_map(|i| {
                let sum: i64 = terms(i).map(|t| i64::from(t.cast_signed())).sum();
                i32::try_from(sum).expect("terms are small").to_be_bytes()
            })
            .collect(),
        Element::F32 => (0..BYTES / 4)
            .flat_map(|i| {
                let folded = terms(i).map(f32::from_bits).reduce(|a, b| a + b);
                folded.expect("at least one").to_le_bytes()
            })
            .collect(),
        _ => (0..BYTES)
            .map(|i| terms(i).max().expect("at least one") as u8)
            .collect(),
    }
}
