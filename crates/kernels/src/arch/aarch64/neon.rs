//! NEON: 16 bytes at a time. Little-endian hosts only.

use core::arch::aarch64::*;
use core::arch::asm;

use crate::CANONICAL_NAN;
use crate::arch::{Table, proven, shells};
use crate::simd::Simd;

/// Proof that the CPU has NEON.
#[derive(Clone, Copy)]
struct Neon(());

pub(in crate::arch) fn detect() -> Option<&'static Table> {
    std::arch::is_aarch64_feature_detected!("neon").then_some(&TABLE)
}

shells!(Neon, crate::Backend::Neon, "neon");

impl Simd for Neon {
    type V = uint32x4_t;
    type Bytes = [u8; 16];
    type Floats = [f32; 4];

    #[inline(always)]
    fn zero(self) -> uint32x4_t {
        proven!(self, vdupq_n_u32(0))
    }

    #[inline(always)]
    fn splat_u32(self, value: u32) -> uint32x4_t {
        proven!(self, vdupq_n_u32(value))
    }

    #[inline(always)]
    fn load(self, from: &[u8; 16]) -> uint32x4_t {
        // SAFETY: `self` proves NEON; the reference is good for 16 bytes, and none need aligning.
        unsafe { vreinterpretq_u32_u8(vld1q_u8(from.as_ptr())) }
    }

    #[inline(always)]
    fn store(self, v: uint32x4_t, to: &mut [u8; 16]) {
        // SAFETY: `self` proves NEON; the reference is good for 16 bytes, and none need aligning.
        unsafe { vst1q_u8(to.as_mut_ptr(), vreinterpretq_u8_u32(v)) }
    }

    #[inline(always)]
    fn load_floats(self, from: &[f32; 4]) -> uint32x4_t {
        // SAFETY: `self` proves NEON; the reference is good for four `f32`, aligned as such.
        unsafe { vreinterpretq_u32_f32(vld1q_f32(from.as_ptr())) }
    }

    #[inline(always)]
    fn store_floats(self, v: uint32x4_t, to: &mut [f32; 4]) {
        // SAFETY: `self` proves NEON; the reference is good for four `f32`, aligned as such, and
        // every bit pattern is an `f32`.
        unsafe { vst1q_f32(to.as_mut_ptr(), vreinterpretq_f32_u32(v)) }
    }

    #[inline(always)]
    fn and(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, vandq_u32(a, b))
    }

    #[inline(always)]
    fn or(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, vorrq_u32(a, b))
    }

    #[inline(always)]
    fn xor(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, veorq_u32(a, b))
    }

    #[inline(always)]
    fn and_not(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, vbicq_u32(a, b))
    }

    #[inline(always)]
    fn max_u8(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let max = vmaxq_u8(vreinterpretq_u8_u32(a), vreinterpretq_u8_u32(b));
            vreinterpretq_u32_u8(max)
        })
    }

    #[inline(always)]
    fn max_u32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, vmaxq_u32(a, b))
    }

    #[inline(always)]
    fn any_nonzero(self, v: uint32x4_t) -> bool {
        proven!(self, vmaxvq_u32(v) != 0)
    }

    #[inline(always)]
    fn low_byte_up(self, v: uint32x4_t) -> uint32x4_t {
        proven!(
            self,
            vreinterpretq_u32_u16(vshlq_n_u16::<8>(vreinterpretq_u16_u32(v)))
        )
    }

    #[inline(always)]
    fn high_byte_down_u16(self, v: uint32x4_t) -> uint32x4_t {
        proven!(
            self,
            vreinterpretq_u32_u16(vshrq_n_u16::<8>(vreinterpretq_u16_u32(v)))
        )
    }

    #[inline(always)]
    fn high_byte_down_i16(self, v: uint32x4_t) -> uint32x4_t {
        proven!(
            self,
            vreinterpretq_u32_s16(vshrq_n_s16::<8>(vreinterpretq_s16_u32(v)))
        )
    }

    #[inline(always)]
    fn sign_i16(self, v: uint32x4_t) -> uint32x4_t {
        proven!(
            self,
            vreinterpretq_u32_s16(vshrq_n_s16::<15>(vreinterpretq_s16_u32(v)))
        )
    }

    #[inline(always)]
    fn add_i16(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let result = vaddq_s16(vreinterpretq_s16_u32(a), vreinterpretq_s16_u32(b));
            vreinterpretq_u32_s16(result)
        })
    }

    #[inline(always)]
    fn sub_i16(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let result = vsubq_s16(vreinterpretq_s16_u32(a), vreinterpretq_s16_u32(b));
            vreinterpretq_u32_s16(result)
        })
    }

    #[inline(always)]
    fn min_i16(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let result = vminq_s16(vreinterpretq_s16_u32(a), vreinterpretq_s16_u32(b));
            vreinterpretq_u32_s16(result)
        })
    }

    #[inline(always)]
    fn max_i16(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let result = vmaxq_s16(vreinterpretq_s16_u32(a), vreinterpretq_s16_u32(b));
            vreinterpretq_u32_s16(result)
        })
    }

    #[inline(always)]
    fn low_half_up(self, v: uint32x4_t) -> uint32x4_t {
        proven!(self, vshlq_n_u32::<16>(v))
    }

    #[inline(always)]
    fn high_half_down(self, v: uint32x4_t) -> uint32x4_t {
        proven!(self, vshrq_n_u32::<16>(v))
    }

    #[inline(always)]
    fn swap_bytes_u32(self, v: uint32x4_t) -> uint32x4_t {
        proven!(
            self,
            vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(v)))
        )
    }

    #[inline(always)]
    fn add_i32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, vaddq_u32(a, b))
    }

    #[inline(always)]
    fn sub_i32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, vsubq_u32(a, b))
    }

    #[inline(always)]
    fn saturating_add_i32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let sum = vqaddq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b));
            vreinterpretq_u32_s32(sum)
        })
    }

    #[inline(always)]
    fn overflow_i32(self, a: uint32x4_t, b: uint32x4_t, sum: uint32x4_t) -> uint32x4_t {
        // Overflow: the sum's sign differs from both terms' sign.
        proven!(self, vandq_u32(veorq_u32(a, sum), veorq_u32(b, sum)))
    }

    #[inline(always)]
    fn any_negative_i32(self, v: uint32x4_t) -> bool {
        proven!(self, vmaxvq_u32(v) > i32::MAX as u32)
    }

    #[inline(always)]
    fn add_f32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let sum = vaddq_f32(vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b));
            vreinterpretq_u32_f32(sum)
        })
    }

    #[inline(always)]
    fn mul_f32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        proven!(self, {
            let product = vmulq_f32(vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b));
            vreinterpretq_u32_f32(product)
        })
    }

    #[inline(always)]
    fn any_nan_f32(self, v: uint32x4_t) -> bool {
        proven!(self, {
            let floats = vreinterpretq_f32_u32(v);
            // All ones where a lane equals itself.
            vminvq_u32(vceqq_f32(floats, floats)) == 0
        })
    }

    #[inline(always)]
    fn canonicalize_nan_f32(self, v: uint32x4_t) -> uint32x4_t {
        let canonical = self.splat_u32(CANONICAL_NAN);
        proven!(self, {
            let floats = vreinterpretq_f32_u32(v);
            // Equal to itself: not a NaN.
            vbslq_u32(vceqq_f32(floats, floats), v, canonical)
        })
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 16]) -> [uint32x4_t; 2] {
        let v = self.load(from);
        let (first, second);
        // The intrinsics for this require the type `f16`, which is not stable.
        // SAFETY: `self` proves NEON, whose first version has both instructions; they read one
        // register and write another.
        unsafe {
            asm!(
                "fcvtl {first:v}.4s, {v:v}.4h",
                "fcvtl2 {second:v}.4s, {v:v}.8h",
                v = in(vreg) v,
                first = out(vreg) first,
                second = lateout(vreg) second,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        [first, second]
    }

    #[inline(always)]
    fn narrow_f16(self, [first, second]: [uint32x4_t; 2]) -> uint32x4_t {
        let v;
        // SAFETY: `self` proves NEON, whose first version has both instructions; they read two
        // registers and write a third. FPCR says to round to nearest, as Rust assumes.
        unsafe {
            asm!(
                "fcvtn {v:v}.4h, {first:v}.4s",
                "fcvtn2 {v:v}.8h, {second:v}.4s",
                first = in(vreg) first,
                second = in(vreg) second,
                v = out(vreg) v,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        v
    }

    #[inline(always)]
    fn round_f32_to_i32(self, v: uint32x4_t) -> uint32x4_t {
        // FCVTNS rounds ties to even, saturates, and converts NaN to 0.
        proven!(
            self,
            vreinterpretq_u32_s32(vcvtnq_s32_f32(vreinterpretq_f32_u32(v)))
        )
    }

    #[inline(always)]
    fn i32_to_f32(self, v: uint32x4_t) -> uint32x4_t {
        proven!(
            self,
            vreinterpretq_u32_f32(vcvtq_f32_s32(vreinterpretq_s32_u32(v)))
        )
    }
}
