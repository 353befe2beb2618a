//! AVX2 and F16C, which every CPU with AVX2 has: 32 bytes at a time.

use core::arch::x86_64::*;

use crate::CANONICAL_NAN;
use crate::arch::{Table, proven, shells};
use crate::simd::Simd;

/// Proof that the CPU has AVX2 and F16C.
#[derive(Clone, Copy)]
struct Avx2(());

pub(in crate::arch) fn detect() -> Option<&'static Table> {
    (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(&TABLE)
}

shells!(Avx2, crate::Backend::Avx2, "avx2,f16c");

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
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_xor_si256(a, b))
    }

    #[inline(always)]
    fn and_not(self, a: __m256i, b: __m256i) -> __m256i {
        // The instruction negates its first operand.
        proven!(self, _mm256_andnot_si256(b, a))
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
    fn any_nonzero(self, v: __m256i) -> bool {
        proven!(self, _mm256_testz_si256(v, v) == 0)
    }

    #[inline(always)]
    fn low_byte_up(self, v: __m256i) -> __m256i {
        proven!(self, _mm256_slli_epi16::<8>(v))
    }

    #[inline(always)]
    fn high_byte_down_u16(self, v: __m256i) -> __m256i {
        proven!(self, _mm256_srli_epi16::<8>(v))
    }

    #[inline(always)]
    fn high_byte_down_i16(self, v: __m256i) -> __m256i {
        proven!(self, _mm256_srai_epi16::<8>(v))
    }

    #[inline(always)]
    fn sign_i16(self, v: __m256i) -> __m256i {
        proven!(self, _mm256_srai_epi16::<15>(v))
    }

    #[inline(always)]
    fn add_i16(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_add_epi16(a, b))
    }

    #[inline(always)]
    fn sub_i16(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_sub_epi16(a, b))
    }

    #[inline(always)]
    fn min_i16(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_min_epi16(a, b))
    }

    #[inline(always)]
    fn max_i16(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(self, _mm256_max_epi16(a, b))
    }

    #[inline(always)]
    fn low_half_up(self, v: __m256i) -> __m256i {
        proven!(self, _mm256_slli_epi32::<16>(v))
    }

    #[inline(always)]
    fn high_half_down(self, v: __m256i) -> __m256i {
        proven!(self, _mm256_srli_epi32::<16>(v))
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
        // Overflow: the sum's sign differs from both terms' sign.
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
    fn load_f16(self, from: &[u8; 32]) -> [__m256i; 2] {
        let (halves, _) = from.as_chunks::<16>();
        let widened = |half: &[u8; 16]| {
            // SAFETY: `self` proves F16C; the reference is good for 16 bytes, and none need
            // aligning.
            unsafe {
                let half = _mm_loadu_si128(half.as_ptr().cast());
                _mm256_castps_si256(_mm256_cvtph_ps(half))
            }
        };
        [widened(&halves[0]), widened(&halves[1])]
    }

    #[inline(always)]
    fn narrow_f16(self, [first, second]: [__m256i; 2]) -> __m256i {
        proven!(self, {
            let first = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_castsi256_ps(first));
            let second = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_castsi256_ps(second));
            _mm256_set_m128i(second, first)
        })
    }

    #[inline(always)]
    fn round_f32_to_i32(self, v: __m256i) -> __m256i {
        proven!(self, {
            let v = _mm256_castsi256_ps(v);
            // Out-of-range values become MIN. That is right for values too small; for values too
            // large, flipping every bit gives MAX; a NaN must become 0.
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

// `round_f32_to_i32` compares with the smallest `f32` that is too large for an `i32`.
const _: () = assert!(i32::MAX as f32 == 2_147_483_648.0);
