//! What sums ought to be, computed from the contributions themselves and in no other way.
//!
//! The contributions of a fragment are made up such that a payload tells which ranks are in it, and
//! how often. This shares no code with the engine or its kernels.

use half::{bf16, f16};
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
        // Element 0 counts: two bits for each of up to 12 ranks, so that twice is not once of the
        // next.
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
        // Half of them large and of one magnitude, the others lost in part beside them, as in f32:
        // any other order and any rounding on the way gives other bits somewhere.
        Element::F16 | Element::Bf16 => {
            let (large, small) = if element == Element::F16 {
                (14, -13)
            } else {
                (20, -7)
            };
            let fraction = 1.0 + (noise >> 8 & 127) as f32 / 128.0;
            let value = match noise & 2 {
                0 => 2f32.powi(large),
                _ => fraction * 2f32.powi(small + (noise >> 2 & 3).cast_signed()),
            };
            (if noise & 1 == 1 { -value } else { value }).to_bits()
        }
        // 12 of these do not saturate.
        Element::I16 => (noise.cast_signed() >> 20).cast_unsigned(),
        Element::I8 => (noise.cast_signed() >> 28).cast_unsigned(),
        _ if i == usize::from(rank) => 255,
        _ if i < 16 => 0,
        _ => noise & 0xff,
    }
}

/// Whether one frame may carry the sum of these ranks, of a job of `all` (H-3).
pub fn may_be_one_frame(element: Element, bitmap: u64, all: u64) -> bool {
    let single = bitmap.count_ones() == 1;
    match element {
        Element::I32 | Element::Scale => true,
        Element::F32 => single || bitmap & (bitmap + 1) == 0,
        _ => single || bitmap == all,
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
        Element::F16 | Element::Bf16 => (0..BYTES / 2)
            .flat_map(|i| {
                let folded = terms(i).map(f32::from_bits).reduce(|a, b| a + b);
                let folded = folded.expect("at least one");
                match element {
                    Element::F16 => f16::from_f32(folded).to_le_bytes(),
                    _ => bf16::from_f32(folded).to_le_bytes(),
                }
            })
            .collect(),
        Element::I16 => (0..BYTES / 2)
            .flat_map(|i| {
                let sum: i32 = terms(i).map(u32::cast_signed).sum();
                i16::try_from(sum).expect("terms are small").to_be_bytes()
            })
            .collect(),
        Element::I8 => (0..BYTES)
            .map(|i| {
                let sum: i32 = terms(i).map(u32::cast_signed).sum();
                i8::try_from(sum).expect("terms are small").cast_unsigned()
            })
            .collect(),
        _ => (0..BYTES)
            .map(|i| terms(i).max().expect("at least one") as u8)
            .collect(),
    }
}
