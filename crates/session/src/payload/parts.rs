//! The contribution of a host with several ranks: the sum of their elements, in the order of ranks.
//!
//! Plain elements are summed as the switch sums workers, by the same kernels: f32 one after the
//! other, f16 and bf16 in f32 and rounded once, integers with a look at their range. Elements that
//! travel as f32 or in block fixed point are summed as f32, one after the other.

use super::convert::{Tools, turn_round};
use crate::collective::Elements;
use crate::dtype::Dtype;
use tally_kernels::CANONICAL_NAN;

/// Ranks of a host at most: what the kernels fold at once.
pub const PARTS_MAX: usize = tally_kernels::MAX_WORKERS as usize;

impl Tools {
    /// Adds all parts of the buffer but the first to `payload`, which has that one's elements from
    /// element `at` on, as the wire has them. Returns whether an integer has left its range.
    pub(super) fn add_parts(
        &mut self,
        dtype: Dtype,
        buffer: &dyn Elements,
        at: usize,
        payload: &mut [u8],
    ) -> bool {
        let others = buffer.parts() - 1;
        if others == 0 || payload.is_empty() {
            return false;
        }
        let room = &mut self.parts.bytes;
        room.resize(room.len().max(others * payload.len()), 0);
        let mut srcs: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let parts = room.chunks_exact_mut(payload.len());
        for (i, part) in parts.take(others).enumerate() {
            buffer.read_part(1 + i, at * dtype.bytes(), part);
            turn_round(dtype, part);
            srcs[i] = part;
        }
        let srcs = &srcs[..others];
        let kernels = self.kernels;
        match dtype {
            Dtype::F32 => kernels.sum_f32_many(payload, srcs),
            Dtype::F16 => kernels.fold_f16(payload, srcs),
            Dtype::Bf16 => kernels.fold_bf16(payload, srcs),
            Dtype::I32 => return kernels.sum_i32_many(payload, srcs),
            Dtype::I16 => return kernels.fold_i16(payload, srcs),
            Dtype::I8 => return kernels.fold_i8(payload, srcs),
        }
        false
    }

    /// Adds floats of all parts of the buffer but the first to those that are loaded.
    pub(super) fn load_others(
        &mut self,
        dtype: Dtype,
        buffer: &dyn Elements,
        (at, count): (usize, usize),
    ) {
        self.parts.sums.clear();
        self.parts.sums.extend_from_slice(&self.floats[..count]);
        for part in 1..buffer.parts() {
            self.load_part(dtype, buffer, part, (at, count));
            for (sum, float) in self.parts.sums.iter_mut().zip(&self.floats) {
                *sum += float;
                if sum.is_nan() {
                    *sum = f32::from_bits(CANONICAL_NAN);
                }
            }
        }
        self.floats[..count].copy_from_slice(&self.parts.sums);
    }
}
