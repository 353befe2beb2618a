//! What the workers of a job bring, and what must come of it: made-up numbers that every rank can
//! make for all others, so that each can check its own result without hearing of anybody else's
//! input.
//!
//! Sums are computed here in another way than anywhere else: integers by 64-bit addition, floats
//! exactly, to within what the dialect's fixed point may lose, as its
//! [definition](super::quantiser) says.

use super::client::Tensor;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tally_wire::switchml::Size;

/// What the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// 32-bit integers, some of whose sums wrap
    I32,
    /// 32-bit floats of very different sizes
    F32,
}

/// The inputs of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// What they are drawn from.
    pub seed: u64,
    /// What they are.
    pub element: Element,
    /// How many in each tensor.
    pub elements: usize,
    /// How many ranks there are.
    pub workers: u8,
}

/// Elements next to each other whose floats are of the same size, about.
const ALIKE: u64 = 96;
/// Powers of two by which the floats differ.
const POWERS: u64 = 60;

/// SplitMix64's finaliser.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Inputs {
    fn draw(&self, tensor: u32, stream: u64, at: u64) -> u64 {
        let of = mix(self.seed ^ u64::from(tensor) << 40 ^ stream << 32);
        mix(of.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn int(&self, rank: u8, tensor: u32, at: usize) -> i32 {
        self.draw(tensor, rank.into(), at as u64) as i32
    }

    fn float(&self, rank: u8, tensor: u32, at: usize) -> f32 {
        let size = self.draw(tensor, 255, at as u64 / ALIKE);
        // Some are zero for all ranks, and some for one.
        if size.is_multiple_of(5) {
            return 0.0;
        }
        let power = (size % POWERS) as i32 - (POWERS / 2) as i32;
        let draw = self.draw(tensor, rank.into(), at as u64);
        if draw.is_multiple_of(17) {
            return 0.0;
        }
        (f64::from(draw as i32) * 2_f64.powi(power - 31)) as f32
    }

    /// What a rank brings.
    #[must_use]
    pub fn tensor(&self, rank: u8, tensor: u32) -> Tensor {
        match self.element {
            Element::I32 => Tensor::I32(
                (0..self.elements)
                    .map(|at| self.int(rank, tensor, at))
                    .collect(),
            ),
            Element::F32 => Tensor::F32(
                (0..self.elements)
                    .map(|at| self.float(rank, tensor, at))
                    .collect(),
            ),
        }
    }

    /// Whether a result is what it must be.
    ///
    /// # Errors
    /// The first element that is not.
    pub fn check(&self, tensor: u32, size: Size, result: &Tensor) -> Result<()> {
        ensure!(
            result.len() == self.elements,
            "tensor {tensor}: {} elements instead of {}",
            result.len(),
            self.elements
        );
        match result {
            Tensor::I32(sums) => {
                for (at, found) in sums.iter().enumerate() {
                    let ranks = (0..self.workers).map(|rank| i64::from(self.int(rank, tensor, at)));
                    let exact = ranks.sum::<i64>();
                    ensure!(
                        *found == exact as i32,
                        "tensor {tensor}, element {at}: {found}, and the sum is {exact} modulo 2^32"
                    );
                }
            }
            Tensor::F32(sums) => {
                for (block, found) in sums.chunks(size.elements()).enumerate() {
                    self.check_block(tensor, block * size.elements(), found)?;
                }
            }
        }
        Ok(())
    }

    fn check_block(&self, tensor: u32, start: usize, found: &[f32]) -> Result<()> {
        let mut exact = vec![0.0_f64; found.len()];
        let mut largest = 0.0_f64;
        for rank in 0..self.workers {
            for (at, sum) in exact.iter_mut().enumerate() {
                let value = f64::from(self.float(rank, tensor, start + at));
                *sum += value;
                largest = largest.max(value.abs());
            }
        }
        let workers = f64::from(self.workers);
        // The power of two above the largest is up to twice as much; each worker may be off by half
        // of what the last place stands for, that is the n-th part of 2^31 of it.
        let quantised = workers * 0.5 * (2.0 * largest * workers / f64::from(i32::MAX));
        for (at, (found, exact)) in found.iter().zip(exact).enumerate() {
            let rounded = exact.abs() * 2_f64.powi(-22);
            let off = (f64::from(*found) - exact).abs();
            ensure!(
                off <= quantised * 1.000_001 + rounded,
                "tensor {tensor}, element {}: {found:e}, and the sum is {exact:e}: {off:e} off, where {quantised:e} \
                 may be lost",
                start + at
            );
        }
        Ok(())
    }
}

/// A number that differs for results that differ in any bit.
#[must_use]
pub fn digest(result: &Tensor) -> u64 {
    let step = |sum: u64, word: u32| mix(sum ^ u64::from(word)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    match result {
        Tensor::I32(sums) => sums.iter().fold(1, |d, x| step(d, x.cast_unsigned())),
        Tensor::F32(sums) => sums.iter().fold(2, |d, x| step(d, x.to_bits())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(element: Element) -> Inputs {
        Inputs {
            seed: 1,
            element,
            elements: 2000,
            workers: 3,
        }
    }

    #[test]
    fn integers_wrap_and_one_that_is_off_is_found() {
        let inputs = inputs(Element::I32);
        let tensors = [0, 1, 2].map(|rank| inputs.tensor(rank, 5));
        let [Tensor::I32(a), Tensor::I32(b), Tensor::I32(c)] = tensors else {
            panic!("not integers");
        };
        let mut sums: Vec<_> = a
            .iter()
            .zip(&b)
            .zip(&c)
            .map(|((a, b), c)| a.wrapping_add(*b).wrapping_add(*c))
            .collect();
        let wraps = a.iter().zip(&b).any(|(a, b)| a.checked_add(*b).is_none());
        assert!(wraps);
        let check = |sums: &[i32]| inputs.check(5, Size::B256, &Tensor::I32(sums.to_vec()));
        check(&sums).unwrap();
        sums[1999] ^= 1;
        assert!(
            check(&sums)
                .unwrap_err()
                .to_string()
                .contains("element 1999")
        );
        assert!(check(&sums[1..]).is_err());
    }

    #[test]
    fn floats_differ_in_size_and_one_that_is_off_is_found() {
        let inputs = inputs(Element::F32);
        let tensors = [0, 1, 2].map(|rank| inputs.tensor(rank, 0));
        let [Tensor::F32(a), Tensor::F32(b), Tensor::F32(c)] = tensors else {
            panic!("not floats");
        };
        let add = |((a, b), c): ((&f32, &f32), &f32)| f64::from(*a) + f64::from(*b) + f64::from(*c);
        let exact = a.iter().zip(&b).zip(&c).map(add);
        let mut sums: Vec<_> = exact.map(|sum| sum as f32).collect();
        let check = |sums: &[f32]| inputs.check(0, Size::B1024, &Tensor::F32(sums.to_vec()));
        check(&sums).unwrap();
        let zeros = sums.iter().filter(|x| **x == 0.0).count();
        assert!((90..1900).contains(&zeros), "{zeros} zeros");
        // The largest of its block: what the fixed point loses is far less than its last places.
        let block = &sums[256..512];
        let at = block
            .iter()
            .position(|x| block.iter().all(|other| other.abs() <= x.abs()));
        let at = 256 + at.unwrap();
        let right = sums[at];
        sums[at] *= 1.000_01;
        assert!(
            check(&sums)
                .unwrap_err()
                .to_string()
                .contains(&format!("element {at}:"))
        );
        sums[at] = f32::NAN;
        assert!(check(&sums).is_err());
        sums[at] = right;
        check(&sums).unwrap();
    }

    #[test]
    fn each_bit_counts_in_a_digest() {
        let a = Tensor::F32(vec![0.0, 1.0]);
        assert_eq!(digest(&a), digest(&a.clone()));
        assert_ne!(digest(&a), digest(&Tensor::F32(vec![-0.0, 1.0])));
        assert_ne!(digest(&a), digest(&Tensor::F32(vec![1.0, 0.0])));
        assert_ne!(digest(&Tensor::I32(vec![])), digest(&Tensor::I32(vec![0])));
    }
}
