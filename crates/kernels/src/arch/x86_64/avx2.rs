//! AVX2: 32 bytes at a time.

use core::arch::x86_64::*;

use crate::CANONICAL_NAN;
use crate::arch::{Table, proven, shells};
use crate::simd::Simd;

/// Proof that the CPU has AVX2.
#[derive(Clone, Copy)]
struct Avx2(());

pub(in crate::arch) fn detect() -> Option<&'static Table> {
    is_x86_feature_detected!("avx2").then_some(&TABLE)
}

shells!(Avx2, crate::Backend::Avx2, "avx2");

impl Simd for Avx2 {
    type V = __m256i;
    type Bytes = [u8; 32];
    type Floats = [f32; 8];

    #[inline(always)]
    fn zero(self) -> __m256i {
        proven!(self, _mm256_setzero_si256())
    }

    #[inline(always)]
    fn splat_u32(self, value: u32) -> __m256i {
        proven!(self, _mm256_set1_epi32(value.cast_signed()))
    }

    #[inline(always)]
    fn load(self, from: &[u8; 32]) -> __m256i {
        // SAFETY: `self` proves AVX2; the reference is good for 32 bytes, and none need aligning.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, v: __m256i, to: &mut [u8; 32]) {
        // SAFETY: `self` proves AVX2; the reference is good for 32 bytes, and none need aligning.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn load_floats(self, from: &[f32; 8]) -> __m256i {
        // SAFETY: `self` proves AVX2; the reference is good for 32 bytes, and none need aligning.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_floats(self, v: __m256i, to: &mut [f32; 8]) {
        // SAFETY: `self` proves AVX2; the reference is good for 32 bytes, none need aligning, and
        // every bit pattern is an `f32`.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn max_u8(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_max_epu8(a, b))
    }

    #[inline(always)]
    fn max_u32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_max_epu32(a, b))
    }

    #[inline(always)]
    fn swap_bytes_u32(self, v: __m256i) -> __m256i {
        proven!(self, {
            let reversed = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,
            ));
            _mm256_shuffle_epi8(v, reversed)
        })
    }

    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_sub_epi32(a, b))
    }

    #[inline(always)]
    fn saturating_add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        let sum = self.add_i32(a, b);
        let overflow = self.overflow_i32(a, b, sum);
        proven!(self, {
            // MAX where `a` is positive, MIN where it is negative.
            let limit = _mm256_xor_si256(_mm256_srai_epi32::<31>(a), _mm256_set1_epi32(i32::MAX));
            // Blends by the top bits of the 32-bit lanes.
            _mm256_castps_si256(_mm256_blendv_ps(
                _mm256_castsi256_ps(sum),
                _mm256_castsi256_ps(limit),
                _mm256_castsi256_ps(overflow),
            ))
        })
    }

    #[inline(always)]
    fn overflow_i32(self, a: __m256i, b: __m256i, sum: __m256i) -> __m256i {
        // The sum has another sign than both of its terms.
        proven!(
            self,
            _mm256_and_si256(_mm256_xor_si256(a, sum), _mm256_xor_si256(b, sum))
        )
    }

    #[inline(always)]
    fn any_negative_i32(self, v: __m256i) -> bool {
        proven!(self, _mm256_movemask_ps(_mm256_castsi256_ps(v)) != 0)
    }

    #[inline(always)]
    fn add_f32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, {
            let sum = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            _mm256_castps_si256(sum)
        })
    }

    #[inline(always)]
    fn mul_f32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, {
            let product = _mm256_mul_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            _mm256_castps_si256(product)
        })
    }

    #[inline(always)]
    fn any_nan_f32(self, v: __m256i) -> bool {
        proven!(self, {
            let v = _mm256_castsi256_ps(v);
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v)) != 0
        })
    }

    #[inline(always)]
    fn canonicalize_nan_f32(self, v: __m256i) -> __m256i {
        let canonical = self.splat_u32(CANONICAL_NAN);
        proven!(self, {
            let v = _mm256_castsi256_ps(v);
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v);
            _mm256_castps_si256(_mm256_blendv_ps(v, _mm256_castsi256_ps(canonical), is_nan))
        })
    }

    #[inline(always)]
    fn round_f32_to_i32(self, v: __m256i) -> __m256i {
        proven!(self, {
            let v = _mm256_castsi256_ps(v);
            // What does not fit becomes MIN. That is right for all that is too small; of what is
            // too large flipping every bit makes MAX; and of a NaN nothing may be left.
            let rounded = _mm256_cvtps_epi32(v);
            let too_large = _mm256_cmp_ps::<_CMP_GE_OQ>(v, _mm256_set1_ps(i32::MAX as f32));
            let is_number = _mm256_cmp_ps::<_CMP_ORD_Q>(v, v);
            let saturated = _mm256_xor_si256(rounded, _mm256_castps_si256(too_large));
            _mm256_and_si256(saturated, _mm256_castps_si256(is_number))
        })
    }

    #[inline(always)]
    fn i32_to_f32(self, v: __m256i) -> __m256i {
        proven!(self, _mm256_castps_si256(_mm256_cvtepi32_ps(v)))
    }
}

// `round_f32_to_i32` compares with the first `f32` that is too large for an `i32`.
const _: () = assert!(i32::MAX as f32 == 2_147_483_648.0);
