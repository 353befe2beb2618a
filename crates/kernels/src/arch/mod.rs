//! The instruction sets: the only `unsafe` code of the crate.
//!
//! Each module has a type that implements [`Simd`](crate::simd::Simd) with intrinsics, and one
//! shell per operation: a function compiled for the instruction set that only calls the generic
//! algorithm, which is inlined into it. The shells' addresses form a [`Table`]. A `Table` is
//! returned only after a check of the CPU.

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use crate::{Backend, Scale, scalar};

/// The operations of one backend, as addresses.
///
/// Invariant: a table leaves this module only by [`Table::detect`], after a check that the CPU has
/// the instructions for which its functions are compiled. A CPU does not lose them.
pub(crate) struct Table {
    backend: Backend,
    sum_i32: unsafe fn(&mut [u8], &[u8]) -> bool,
    sum_i32_many: unsafe fn(&mut [u8], &[&[u8]]) -> bool,
    add_be_i32: unsafe fn(&mut [u8], &[u8]),
    add_be_i32_many: unsafe fn(&mut [u8], &[&[u8]]),
    add_le_i32_many: unsafe fn(&mut [u8], &[&[u8]]),
    sum_f32: unsafe fn(&mut [u8], &[u8]),
    sum_f32_many: unsafe fn(&mut [u8], &[&[u8]]),
    fold_f16: unsafe fn(&mut [u8], &[&[u8]]),
    fold_bf16: unsafe fn(&mut [u8], &[&[u8]]),
    fold_i16: unsafe fn(&mut [u8], &[&[u8]]) -> bool,
    fold_i8: unsafe fn(&mut [u8], &[&[u8]]) -> bool,
    max_u8: unsafe fn(&mut [u8], &[u8]),
    max_exponent: unsafe fn(&[f32]) -> u8,
    quantize: unsafe fn(&[f32], Scale, &mut [u8]),
    dequantize: unsafe fn(&[u8], Scale, &mut [f32]),
}

static SCALAR: Table = Table {
    backend: Backend::Scalar,
    sum_i32: scalar::sum_i32,
    sum_i32_many: scalar::sum_i32_many,
    add_be_i32: scalar::add_be_i32,
    add_be_i32_many: scalar::add_be_i32_many,
    add_le_i32_many: scalar::add_le_i32_many,
    sum_f32: scalar::sum_f32,
    sum_f32_many: scalar::sum_f32_many,
    fold_f16: scalar::fold_f16,
    fold_bf16: scalar::fold_bf16,
    fold_i16: scalar::fold_i16,
    fold_i8: scalar::fold_i8,
    max_u8: scalar::max_u8,
    max_exponent: scalar::max_exponent,
    quantize: scalar::quantize,
    dequantize: scalar::dequantize,
};

impl Backend {
    /// The fastest backend that this CPU can run.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The backends that this CPU can run, slowest first.
    ///
    /// [`Backend::Scalar`] is always among them.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(|backend| backend.is_available())
    }

    /// Whether this CPU can run the backend.
    #[must_use]
    pub fn is_available(self) -> bool {
        Table::detect(self).is_some()
    }
}

impl Table {
    /// The table of `backend`, if this CPU has its instructions.
    pub(crate) fn detect(backend: Backend) -> Option<&'static Self> {
        match backend {
            Backend::Scalar => Some(&SCALAR),
            #[cfg(target_arch = "x86_64")]
            Backend::Avx2 => x86_64::avx2::detect(),
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512 => x86_64::avx512::detect(),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Backend::Neon => aarch64::neon::detect(),
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }

    pub(crate) fn scalar() -> &'static Self {
        &SCALAR
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    #[inline]
    pub(crate) fn sum_i32(&self, acc: &mut [u8], src: &[u8]) -> bool {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.sum_i32)(acc, src) }
    }

    #[inline]
    pub(crate) fn sum_i32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.sum_i32_many)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn add_be_i32(&self, acc: &mut [u8], src: &[u8]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.add_be_i32)(acc, src) }
    }

    #[inline]
    pub(crate) fn add_be_i32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.add_be_i32_many)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn add_le_i32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.add_le_i32_many)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn sum_f32(&self, acc: &mut [u8], src: &[u8]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.sum_f32)(acc, src) }
    }

    #[inline]
    pub(crate) fn sum_f32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.sum_f32_many)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn fold_f16(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.fold_f16)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn fold_bf16(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.fold_bf16)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn fold_i16(&self, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.fold_i16)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn fold_i8(&self, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.fold_i8)(acc, srcs) }
    }

    #[inline]
    pub(crate) fn max_u8(&self, acc: &mut [u8], src: &[u8]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.max_u8)(acc, src) }
    }

    #[inline]
    pub(crate) fn max_exponent(&self, src: &[f32]) -> u8 {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.max_exponent)(src) }
    }

    #[inline]
    pub(crate) fn quantize(&self, src: &[f32], scale: Scale, out: &mut [u8]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.quantize)(src, scale, out) }
    }

    #[inline]
    pub(crate) fn dequantize(&self, src: &[u8], scale: Scale, out: &mut [f32]) {
        // SAFETY: the CPU has the instructions, by the invariant of `Table`.
        unsafe { (self.dequantize)(src, scale, out) }
    }
}

/// Defines the shells of one instruction set and their table.
///
/// `$isa` is the type that implements `Simd`, and `$features` the CPU features that it proves. The
/// type is a unit with a private field, so that only its own module can create a value. The shells
/// are in that module and are `unsafe` to call from code without the features.
#[allow(unused_macros)]
macro_rules! shells {
    ($isa:ident, $backend:expr, $features:literal) => {
        static TABLE: $crate::arch::Table = $crate::arch::Table {
            backend: $backend,
            sum_i32,
            sum_i32_many,
            add_be_i32,
            add_be_i32_many,
            add_le_i32_many,
            sum_f32,
            sum_f32_many,
            fold_f16,
            fold_bf16,
            fold_i16,
            fold_i8,
            max_u8,
            max_exponent,
            quantize,
            dequantize,
        };

        #[target_feature(enable = $features)]
        fn sum_i32(acc: &mut [u8], src: &[u8]) -> bool {
            $crate::sum::sum_i32($isa(()), acc, src)
        }

        #[target_feature(enable = $features)]
        fn sum_i32_many(acc: &mut [u8], srcs: &[&[u8]]) -> bool {
            $crate::sum::sum_i32_many($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn add_be_i32(acc: &mut [u8], src: &[u8]) {
            $crate::sum::add_be_i32($isa(()), acc, src)
        }

        #[target_feature(enable = $features)]
        fn add_be_i32_many(acc: &mut [u8], srcs: &[&[u8]]) {
            $crate::sum::add_be_i32_many($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn add_le_i32_many(acc: &mut [u8], srcs: &[&[u8]]) {
            $crate::sum::add_le_i32_many($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn sum_f32(acc: &mut [u8], src: &[u8]) {
            $crate::sum::sum_f32($isa(()), acc, src)
        }

        #[target_feature(enable = $features)]
        fn sum_f32_many(acc: &mut [u8], srcs: &[&[u8]]) {
            $crate::sum::sum_f32_many($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn fold_f16(acc: &mut [u8], srcs: &[&[u8]]) {
            $crate::fold::fold_f16($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn fold_bf16(acc: &mut [u8], srcs: &[&[u8]]) {
            $crate::fold::fold_bf16($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn fold_i16(acc: &mut [u8], srcs: &[&[u8]]) -> bool {
            $crate::fold::fold_i16($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn fold_i8(acc: &mut [u8], srcs: &[&[u8]]) -> bool {
            $crate::fold::fold_i8($isa(()), acc, srcs)
        }

        #[target_feature(enable = $features)]
        fn max_u8(acc: &mut [u8], src: &[u8]) {
            $crate::sum::max_u8($isa(()), acc, src)
        }

        #[target_feature(enable = $features)]
        fn max_exponent(src: &[f32]) -> u8 {
            $crate::convert::max_exponent($isa(()), src)
        }

        #[target_feature(enable = $features)]
        fn quantize(src: &[f32], scale: $crate::Scale, out: &mut [u8]) {
            $crate::convert::quantize($isa(()), src, scale, out)
        }

        #[target_feature(enable = $features)]
        fn dequantize(src: &[u8], scale: $crate::Scale, out: &mut [f32]) {
            $crate::convert::dequantize($isa(()), src, scale, out)
        }
    };
}
#[allow(unused_imports)]
use shells;

/// Calls intrinsics that are unsafe only because a CPU may lack them.
///
/// Takes the value that proves that this CPU has them, so it is a safe expression. Intrinsics that
/// also take a pointer are not called by it.
#[allow(unused_macros)]
macro_rules! proven {
    ($isa:expr, $intrinsics:expr) => {{
        let _: Self = $isa;
        // SAFETY: a value of the instruction set's type exists only where the CPU has it, and
        // the intrinsics touch registers alone.
        #[allow(clippy::macro_metavars_in_unsafe)]
        unsafe {
            $intrinsics
        }
    }};
}
#[allow(unused_imports)]
use proven;
