//! What workers contribute, and what the sums ought to be, computed from the contributions
//! themselves and in no other way: no code is shared with the engine, the endpoints or the kernels.

mod tree;

pub use tree::TreeSums;

use crate::rng::{MILLION, mix};
use half::{bf16, f16};
use std::ops::Range;
use tally_wire::Element;

/// Whose i16 and i8 make up for whose, so that the sum of all fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The rank whose words both of the pair use.
    of: u16,
    /// The first of the two.
    is_first: bool,
    /// There is no second one.
    is_alone: bool,
}

impl Pairing {
    /// The pairing of the `place`-th of `among` workers, of which the first has the rank `first`.
    #[must_use]
    pub const fn of(place: u16, among: u16, first: u16) -> Self {
        let is_first = place.is_multiple_of(2);
        Self {
            of: first + (place & !1),
            is_first,
            is_alone: is_first && place + 1 == among,
        }
    }
}

/// The contributions of one incarnation of a job.
#[derive(Clone, Copy, Debug)]
pub struct Contributions {
    /// Makes them unlike those of every other incarnation and job.
    pub salt: u64,
    /// Workers of the job.
    pub workers: u8,
    /// How many of the floats are infinite, in a million.
    pub infinite_ppm: u32,
}

impl Contributions {
    /// Two 32-bit words of `rank`'s contribution to fragment `seq`.
    #[inline]
    fn words(&self, rank: u16, seq: u64, pair: u64) -> u64 {
        let n = seq << 18 | u64::from(rank) << 6 | pair & 63;
        mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.salt)
    }

    #[inline]
    fn i32_at(&self, rank: u16, seq: u64, at: usize) -> i32 {
        let words = self.words(rank, seq, at as u64 / 2);
        // 64 of these do not saturate.
        ((words >> (32 * (at % 2))) as u32).cast_signed() >> 7
    }

    #[inline]
    fn f32_at(&self, rank: u16, seq: u64, at: usize) -> f32 {
        let word = (self.words(rank, seq, at as u64 / 2) >> (32 * (at % 2))) as u32;
        if self.infinite_ppm > 0
            && mix(u64::from(word)) % u64::from(MILLION) < u64::from(self.infinite_ppm)
        {
            return if word & 1 == 0 {
                f32::INFINITY
            } else {
                f32::NEG_INFINITY
            };
        }
        // Exponents far enough apart that any other order of adding gives other bits somewhere.
        let exponent = 127 + (word >> 23 & 0xff) % 6;
        f32::from_bits(word & 0x807f_ffff | exponent << 23)
    }

    /// An f16 or bf16, as an f32, which it is exactly.
    ///
    /// Half of them are large and of one magnitude, and the others so small beside them that a sum
    /// in f32 loses parts of them: where the large ones cancel, any other order, and any rounding
    /// on the way, gives other bits.
    fn half_at(&self, rank: u16, seq: u64, at: usize, element: Element) -> f32 {
        let word = self.words(rank, seq, at as u64 / 4) >> (16 * (at % 4));
        let sign = if word & 1 == 0 { 1.0 } else { -1.0 };
        if self.infinite_ppm > 0 && mix(word) % u64::from(MILLION) < u64::from(self.infinite_ppm) {
            return sign * f32::INFINITY;
        }
        let (large, small) = match element {
            Element::F16 => (14, -13),
            _ => (20, -7),
        };
        if word & 2 == 0 {
            return sign * 2f32.powi(large);
        }
        let fraction = 1.0 + (word >> 4 & 127) as f32 / 128.0;
        sign * fraction * 2f32.powi(small + (word >> 2 & 3) as i32)
    }

    /// An i16 or i8. Two neighbours in rank are of nearly the same size and of opposite signs,
    /// those of even ranks positive: sums of some leave the range of the type, and the sum of all
    /// does not.
    fn integer_at(
        &self,
        rank: u16,
        pairing: Pairing,
        seq: u64,
        at: usize,
        element: Element,
    ) -> i32 {
        let (large, small) = match element {
            Element::I16 => (32_000, 5),
            _ => (110, 1),
        };
        let few = |word: u64, n: i32| (word % (2 * n as u64 + 1)) as i32 - n;
        let own = few(
            self.words(rank, seq, at as u64 / 4) >> (16 * (at % 4)) & 0xffff,
            small,
        );
        if pairing.is_alone {
            return own;
        }
        let shared = self.words(pairing.of, !seq, at as u64 / 4) >> (16 * (at % 4)) & 0xffff;
        let shared = (shared % large) as i32;
        if pairing.is_first {
            shared + own
        } else {
            own - shared
        }
    }

    #[inline]
    fn byte_at(&self, rank: u16, seq: u64, at: usize) -> u8 {
        (self.words(rank, seq, at as u64 / 8) >> (8 * (at % 8))) as u8
    }

    const fn pairing(&self, rank: u16) -> Pairing {
        Pairing::of(rank, self.workers as u16, 0)
    }

    /// Writes what `rank` contributes to fragment `seq`.
    pub fn write(&self, rank: u8, seq: u64, element: Element, payload: &mut [u8]) {
        let rank = u16::from(rank);
        self.write_paired(rank, self.pairing(rank), seq, element, payload);
    }

    /// Writes what `rank` contributes to fragment `seq`, with this pairing.
    fn write_paired(
        &self,
        rank: u16,
        pairing: Pairing,
        seq: u64,
        element: Element,
        payload: &mut [u8],
    ) {
        match element {
            Element::F16 => {
                for (at, out) in payload.chunks_exact_mut(2).enumerate() {
                    let value = f16::from_f32(self.half_at(rank, seq, at, element));
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
            Element::Bf16 => {
                for (at, out) in payload.chunks_exact_mut(2).enumerate() {
                    let value = bf16::from_f32(self.half_at(rank, seq, at, element));
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
            Element::I16 => {
                for (at, out) in payload.chunks_exact_mut(2).enumerate() {
                    let value = self.integer_at(rank, pairing, seq, at, element) as i16;
                    out.copy_from_slice(&value.to_be_bytes());
                }
            }
            Element::I8 => {
                for (at, out) in payload.iter_mut().enumerate() {
                    *out = self.integer_at(rank, pairing, seq, at, element) as u8;
                }
            }
            Element::I32 => {
                for (at, out) in payload.chunks_exact_mut(4).enumerate() {
                    out.copy_from_slice(&self.i32_at(rank, seq, at).to_be_bytes());
                }
            }
            Element::F32 => {
                for (at, out) in payload.chunks_exact_mut(4).enumerate() {
                    out.copy_from_slice(&self.f32_at(rank, seq, at).to_le_bytes());
                }
            }
            _ => {
                for (at, out) in payload.iter_mut().enumerate() {
                    *out = self.byte_at(rank, seq, at);
                }
            }
        }
    }

    /// Writes what the result of fragment `seq` must be.
    pub fn write_sum(&self, seq: u64, element: Element, payload: &mut [u8]) {
        let all = u64::MAX >> (64 - self.workers.clamp(1, 64));
        self.write_partial(seq, element, all, payload);
    }

    /// Writes the sum of f32, f16 or bf16 over a tree of switches: each leaf adds its ranks and
    /// rounds, then the root adds what leaves have and rounds.
    pub fn write_sum_of_leaves(
        &self,
        leaves: &[Range<u8>],
        seq: u64,
        element: Element,
        payload: &mut [u8],
    ) {
        let of_leaf = |ranks: &Range<u8>| {
            let mut partial = vec![0; payload.len()];
            let bitmap = ranks.clone().fold(0, |bits, rank| bits | 1 << rank);
            self.write_partial(seq, element, bitmap, &mut partial);
            partial
        };
        let partials: Vec<_> = leaves.iter().map(of_leaf).collect();
        let width = if element == Element::F32 { 4 } else { 2 };
        let read = |word: &[u8]| match (element, word) {
            (Element::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Element::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => unreachable!("a word of its element"),
        };
        for (at, out) in payload.chunks_exact_mut(width).enumerate() {
            let words = partials.iter().map(|it| read(&it[at * width..][..width]));
            let sum = words.reduce(|sum, word| sum + word).unwrap_or(0.0);
            match element {
                Element::F16 if sum.is_nan() => out.copy_from_slice(&[0x00, 0x7e]),
                Element::F16 => out.copy_from_slice(&f16::from_f32(sum).to_le_bytes()),
                Element::Bf16 if sum.is_nan() => out.copy_from_slice(&[0xc0, 0x7f]),
                Element::Bf16 => out.copy_from_slice(&bf16::from_f32(sum).to_le_bytes()),
                _ if sum.is_nan() => out.copy_from_slice(&[0x00, 0x00, 0xc0, 0x7f]),
                _ => out.copy_from_slice(&sum.to_le_bytes()),
            }
        }
    }

    /// The fold of f16 or bf16 in f32, before it is rounded.
    fn wide_fold(&self, seq: u64, at: usize, element: Element, bitmap: u64) -> f32 {
        let terms = ranks(bitmap).map(|r| self.half_at(r, seq, at, element));
        terms.reduce(|sum, term| sum + term).unwrap_or(0.0)
    }

    /// The exact sum of i16 or i8.
    fn exact_sum(&self, seq: u64, at: usize, element: Element, bitmap: u64) -> i32 {
        let terms = ranks(bitmap).map(|r| self.integer_at(r, self.pairing(r), seq, at, element));
        terms.sum()
    }

    /// Whether a frame may carry what the contributions of the ranks in `bitmap` add up to (H-3).
    #[must_use]
    pub fn may_be_partial(&self, element: Element, bitmap: u64) -> bool {
        may_be_partial(element, bitmap, self.workers)
    }

    /// Writes what the contributions of the ranks in `bitmap`, at least one, add up to.
    pub fn write_partial(&self, seq: u64, element: Element, bitmap: u64, payload: &mut [u8]) {
        match element {
            Element::F16 => {
                for (at, out) in payload.chunks_exact_mut(2).enumerate() {
                    let sum = self.wide_fold(seq, at, element, bitmap);
                    let bits = f16::from_f32(sum).to_bits();
                    let bits = if sum.is_nan() { 0x7e00 } else { bits };
                    out.copy_from_slice(&bits.to_le_bytes());
                }
            }
            Element::Bf16 => {
                for (at, out) in payload.chunks_exact_mut(2).enumerate() {
                    let sum = self.wide_fold(seq, at, element, bitmap);
                    let bits = bf16::from_f32(sum).to_bits();
                    let bits = if sum.is_nan() { 0x7fc0 } else { bits };
                    out.copy_from_slice(&bits.to_le_bytes());
                }
            }
            Element::I16 => {
                for (at, out) in payload.chunks_exact_mut(2).enumerate() {
                    let sum = self.exact_sum(seq, at, element, bitmap);
                    out.copy_from_slice(&(sum.clamp(-32_768, 32_767) as i16).to_be_bytes());
                }
            }
            Element::I8 => {
                for (at, out) in payload.iter_mut().enumerate() {
                    let sum = self.exact_sum(seq, at, element, bitmap);
                    *out = sum.clamp(-128, 127) as u8;
                }
            }
            Element::I32 => {
                for (at, out) in payload.chunks_exact_mut(4).enumerate() {
                    let terms = ranks(bitmap).map(|r| i64::from(self.i32_at(r, seq, at)));
                    out.copy_from_slice(&(terms.sum::<i64>() as i32).to_be_bytes());
                }
            }
            Element::F32 => {
                for (at, out) in payload.chunks_exact_mut(4).enumerate() {
                    let terms = ranks(bitmap).map(|r| self.f32_at(r, seq, at));
                    let sum = terms.reduce(|sum, term| {
                        let sum = sum + term;
                        if sum.is_nan() {
                            f32::from_bits(0x7fc0_0000)
                        } else {
                            sum
                        }
                    });
                    out.copy_from_slice(&sum.unwrap_or(0.0).to_le_bytes());
                }
            }
            _ => {
                for (at, out) in payload.iter_mut().enumerate() {
                    let bytes = ranks(bitmap).map(|r| self.byte_at(r, seq, at));
                    *out = bytes.max().unwrap_or(0);
                }
            }
        }
    }
}

/// Whether a frame may carry what the ranks in `bitmap` add up to, of a number of members (H-3).
fn may_be_partial(element: Element, bitmap: u64, members: u8) -> bool {
    let all = u64::MAX >> (64 - members.clamp(1, 64));
    match element {
        Element::I32 | Element::Scale => true,
        Element::F32 => bitmap.count_ones() == 1 || bitmap & bitmap.wrapping_add(1) == 0,
        _ => bitmap.count_ones() == 1 || bitmap == all,
    }
}

/// The ranks whose bit is set, from 0.
fn ranks(mut bitmap: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let rank = bitmap.trailing_zeros();
        bitmap &= bitmap.wrapping_sub(1);
        (rank < 64).then_some(rank as u16)
    })
}

/// The sums of the last fragments, so that each is computed once and not once for each worker.
pub struct Sums {
    contributions: Contributions,
    payload_bytes: usize,
    /// By fragment modulo their number: the fragment plus one, and its sum.
    cached: Box<[(u64, Box<[u8]>)]>,
}

impl Sums {
    /// For jobs whose workers are less than `span` fragments apart; more only costs time.
    #[must_use]
    pub fn new(contributions: Contributions, payload_bytes: usize, span: usize) -> Self {
        let nothing = || (0, vec![0; payload_bytes].into_boxed_slice());
        Self {
            contributions,
            payload_bytes,
            cached: (0..span.next_power_of_two()).map(|_| nothing()).collect(),
        }
    }

    /// What the result of fragment `seq` must be.
    pub fn sum(&mut self, seq: u64, element: Element) -> &[u8] {
        let slot = seq as usize & (self.cached.len() - 1);
        let (cached, payload) = &mut self.cached[slot];
        if *cached != seq + 1 {
            *cached = seq + 1;
            debug_assert_eq!(payload.len(), self.payload_bytes);
            self.contributions.write_sum(seq, element, payload);
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contributions(workers: u8) -> Contributions {
        Contributions {
            salt: 5,
            workers,
            infinite_ppm: 0,
        }
    }

    #[test]
    fn a_sum_of_one_is_the_contribution_and_of_more_is_not() {
        for element in Element::ALL {
            let (mut own, mut one, mut two) = ([0; 64], [0; 64], [0; 64]);
            contributions(1).write(0, 77, element, &mut own);
            contributions(1).write_sum(77, element, &mut one);
            contributions(2).write_sum(77, element, &mut two);
            assert_eq!(own, one);
            assert_ne!(own, two);
        }
    }

    #[test]
    fn narrow_sums_neither_fit_on_the_way_nor_fail_to_in_the_end() {
        for workers in [2, 3, 64] {
            let c = contributions(workers);
            let all = u64::MAX >> (64 - workers);
            for (element, limit) in [(Element::I16, 32_767), (Element::I8, 127)] {
                let mut beyond = 0;
                for (seq, at) in (0..20).flat_map(|seq| (0..64).map(move |at| (seq, at))) {
                    for rank in 0..u16::from(workers) {
                        let own = c.integer_at(rank, c.pairing(rank), seq, at, element);
                        assert!(own.abs() <= limit);
                    }
                    assert!(c.exact_sum(seq, at, element, all).abs() <= limit);
                    let even = c.exact_sum(seq, at, element, all & 0x5555_5555_5555_5555);
                    beyond += u32::from(even > limit);
                }
                assert!(workers < 64 || beyond > 1000, "{beyond}");
            }
            // Another order, and a rounding on the way, where the sum has three terms.
            let mut others = [0; 2];
            for (n, element) in (0..).zip([Element::F16, Element::Bf16]) {
                let mut sum = [0; 64];
                c.write_sum(3, element, &mut sum);
                for at in 0..32 {
                    let terms = |r| c.half_at(r, 3, at, element);
                    let backward = terms(2) + terms(1) + terms(0);
                    let bits = match element {
                        Element::F16 => f16::from_f32(backward).to_le_bytes(),
                        _ => bf16::from_f32(backward).to_le_bytes(),
                    };
                    others[n] += u32::from(workers == 3 && bits != sum[2 * at..][..2]);
                }
            }
            assert!(workers != 3 || others.iter().all(|&n| n > 0), "{others:?}");
        }
    }

    #[test]
    fn the_order_of_f32_matters_in_nearly_every_fragment() {
        let c = contributions(3);
        let differs = |seq: &u64| {
            let other = |at| {
                let backward =
                    c.f32_at(2, *seq, at) + c.f32_at(1, *seq, at) + c.f32_at(0, *seq, at);
                backward.to_le_bytes()
            };
            let mut sum = [0; 64];
            c.write_sum(*seq, Element::F32, &mut sum);
            (0..16).any(|at| sum[4 * at..][..4] != other(at))
        };
        let n = (0..1000).filter(differs).count();
        assert!(n > 950, "{n}");
    }
}
