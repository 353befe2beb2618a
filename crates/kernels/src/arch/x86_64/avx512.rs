//! AVX-512 F, BW and VL: 64 bytes at a time, and masks for the remainder.

use core::arch::x86_64::*;

use crate::CANONICAL_NAN;
use crate::arch::{Table, proven, shells};
use crate::simd::Simd;

/// Proof that the CPU has AVX-512 F, BW and VL.
#[derive(Clone, Copy)]
struct Avx512(());

pub(in crate::arch) fn detect() -> Option<&'static Table> {
    (is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl"))
    .then_some(&TABLE)
}

shells!(Avx512, crate::Backend::Avx512, "avx512f,avx512bw,avx512vl");

/// `(a ^ c) & (b ^ c)` as a truth table: bit `4a + 2b + c` of the index.
const BOTH_DIFFER: i32 = 0b0100_0010;

impl Avx512 {
    /// The mask of the first `bytes` bytes, at most 63.
    #[inline(always)]
    fn first(self, bytes: usize) -> __mmask64 {
        debug_assert!(bytes < 64);
        (1 << bytes) - 1
    }
}

impl Simd for Avx512 {
    type V = __m512i;
    type Bytes = [u8; 64];
    type Floats = [f32; 16];

    #[inline(always)]
    fn zero(self) -> __m512i {
        proven!(self, _mm512_setzero_si512())
    }

    #[inline(always)]
    fn splat_u32(self, value: u32) -> __m512i {
        proven!(self, _mm512_set1_epi32(value.cast_signed()))
    }

    #[inline(always)]
    fn load(self, from: &[u8; 64]) -> __m512i {
        // SAFETY: `self` proves AVX-512 F; the reference is good for 64 bytes, and none need
        // aligning.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, v: __m512i, to: &mut [u8; 64]) {
        // SAFETY: `self` proves AVX-512 F; the reference is good for 64 bytes, and none need
        // aligning.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn load_floats(self, from: &[f32; 16]) -> __m512i {
        // SAFETY: `self` proves AVX-512 F; the reference is good for 64 bytes, and none need
        // aligning.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_floats(self, v: __m512i, to: &mut [f32; 16]) {
        // SAFETY: `self` proves AVX-512 F; the reference is good for 64 bytes, none need
        // aligning, and every bit pattern is an `f32`.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn load_part(self, from: &[u8]) -> __m512i {
        assert!(from.len() < 64);
        // SAFETY: `self` proves AVX-512 BW; only the masked bytes are read, which are those of
        // the slice, and none need aligning.
        unsafe { _mm512_maskz_loadu_epi8(self.first(from.len()), from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_part(self, v: __m512i, to: &mut [u8]) {
        assert!(to.len() < 64);
        // SAFETY: `self` proves AVX-512 BW; only the masked bytes are written, which are those of
        // the slice, and none need aligning.
        unsafe { _mm512_mask_storeu_epi8(to.as_mut_ptr().cast(), self.first(to.len()), v) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn and_not(self, a: __m512i, b: __m512i) -> __m512i {
        // The instruction negates its first operand.
        proven!(self, _mm512_andnot_si512(b, a))
    }

    #[inline(always)]
    fn max_u8(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_max_epu8(a, b))
    }

    #[inline(always)]
    fn max_u32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_max_epu32(a, b))
    }

    #[inline(always)]
    fn any_nonzero(self, v: __m512i) -> bool {
        proven!(self, _mm512_test_epi32_mask(v, v) != 0)
    }

    #[inline(always)]
    fn low_byte_up(self, v: __m512i) -> __m512i {
        proven!(self, _mm512_slli_epi16::<8>(v))
    }

    #[inline(always)]
    fn high_byte_down_u16(self, v: __m512i) -> __m512i {
        proven!(self, _mm512_srli_epi16::<8>(v))
    }

    #[inline(always)]
    fn high_byte_down_i16(self, v: __m512i) -> __m512i {
        proven!(self, _mm512_srai_epi16::<8>(v))
    }

    #[inline(always)]
    fn sign_i16(self, v: __m512i) -> __m512i {
        proven!(self, _mm512_srai_epi16::<15>(v))
    }

    #[inline(always)]
    fn add_i16(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_add_epi16(a, b))
    }

    #[inline(always)]
    fn sub_i16(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_sub_epi16(a, b))
    }

    #[inline(always)]
    fn min_i16(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_min_epi16(a, b))
    }

    #[inline(always)]
    fn max_i16(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_max_epi16(a, b))
    }

    #[inline(always)]
    fn low_half_up(self, v: __m512i) -> __m512i {
        proven!(self, _mm512_slli_epi32::<16>(v))
    }

    #[inline(always)]
    fn high_half_down(self, v: __m512i) -> __m512i {
        proven!(self, _mm512_srli_epi32::<16>(v))
    }

    #[inline(always)]
    fn swap_bytes_u32(self, v: __m512i) -> __m512i {
        proven!(self, {
            let reversed = _mm512_broadcast_i32x4(_mm_setr_epi8(
                3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,
            ));
            _mm512_shuffle_epi8(v, reversed)
        })
    }

    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, _mm512_sub_epi32(a, b))
    }

    #[inline(always)]
    fn saturating_add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        let sum = self.add_i32(a, b);
        let overflow = self.overflow_i32(a, b, sum);
        proven!(self, {
            let overflown = _mm512_cmplt_epi32_mask(overflow, _mm512_setzero_si512());
            // MAX where `a` is positive, MIN where it is negative.
            let limit = _mm512_xor_si512(_mm512_srai_epi32::<31>(a), _mm512_set1_epi32(i32::MAX));
            _mm512_mask_mov_epi32(sum, overflown, limit)
        })
    }

    #[inline(always)]
    fn overflow_i32(self, a: __m512i, b: __m512i, sum: __m512i) -> __m512i {
        // Overflow: the sum's sign differs from both terms' sign.
        proven!(self, _mm512_ternarylogic_epi32::<BOTH_DIFFER>(a, b, sum))
    }

    #[inline(always)]
    fn any_negative_i32(self, v: __m512i) -> bool {
        proven!(
            self,
            _mm512_cmplt_epi32_mask(v, _mm512_setzero_si512()) != 0
        )
    }

    #[inline(always)]
    fn add_f32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, {
            let sum = _mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            _mm512_castps_si512(sum)
        })
    }

    #[inline(always)]
    fn mul_f32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(self, {
            let product = _mm512_mul_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            _mm512_castps_si512(product)
        })
    }

    #[inline(always)]
    fn any_nan_f32(self, v: __m512i) -> bool {
        proven!(self, {
            let v = _mm512_castsi512_ps(v);
            _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v) != 0
        })
    }

    #[inline(always)]
    fn canonicalize_nan_f32(self, v: __m512i) -> __m512i {
        let canonical = self.splat_u32(CANONICAL_NAN);
        proven!(self, {
            let floats = _mm512_castsi512_ps(v);
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(floats, floats);
            _mm512_mask_mov_epi32(v, is_nan, canonical)
        })
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 64]) -> [__m512i; 2] {
        let (halves, _) = from.as_chunks::<32>();
        let widened = |half: &[u8; 32]| {
            // SAFETY: `self` proves AVX-512 F; the reference is good for 32 bytes, and none need
            // aligning.
            unsafe {
                let half = _mm256_loadu_si256(half.as_ptr().cast());
                _mm512_castps_si512(_mm512_cvtph_ps(half))
            }
        };
        [widened(&halves[0]), widened(&halves[1])]
    }

    #[inline(always)]
    fn narrow_f16(self, [first, second]: [__m512i; 2]) -> __m512i {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        proven!(self, {
            let first = _mm512_cvtps_ph::<NEAREST>(_mm512_castsi512_ps(first));
            let second = _mm512_cvtps_ph::<NEAREST>(_mm512_castsi512_ps(second));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
        })
    }

    #[inline(always)]
    fn round_f32_to_i32(self, v: __m512i) -> __m512i {
        proven!(self, {
            let v = _mm512_castsi512_ps(v);
            // Out-of-range values become MIN, which is right for values too small.
            let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v);
            let rounded = _mm512_maskz_cvtps_epi32(is_number, v);
            let too_large = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(v, _mm512_set1_ps(i32::MAX as f32));
            _mm512_mask_mov_epi32(rounded, too_large, _mm512_set1_epi32(i32::MAX))
        })
    }

    #[inline(always)]
    fn i32_to_f32(self, v: __m512i) -> __m512i {
        proven!(self, _mm512_castps_si512(_mm512_cvtepi32_ps(v)))
    }
}

// `round_f32_to_i32` compares with the smallest `f32` that is too large for an `i32`.
const _: () = assert!(i32::MAX as f32 == 2_147_483_648.0);
// The truth table, spelt out.
const _: () = {
    let mut index = 0;
    while index < 8 {
        let (a, b, c) = (index >> 2 & 1, index >> 1 & 1, index & 1);
        assert!(BOTH_DIFFER >> index & 1 == (a ^ c) & (b ^ c));
        index += 1;
    }
};
