//! Public interface: a backend, chosen once, and one method per operation.

use core::fmt;

use crate::arch::Table;
use crate::{Backend, ELEMENT_BYTES, MAX_WORKERS, Scale, Unavailable};

/// The operations of one backend.
///
/// Small and `Copy`: choose once at start and give each core a copy. Every method makes one
/// indirect call, for payloads of any length.
///
/// # Panics
///
/// A method with several payloads panics when their lengths differ. A method on elements of two or
/// four bytes panics when a length is not a whole number of elements. The caller must validate
/// received frames; a panic means that it has not.
#[derive(Clone, Copy)]
pub struct Kernels {
    table: &'static Table,
}

impl Kernels {
    /// The operations of `backend`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when this CPU, or the operating system's saved register state, lacks the
    /// instructions.
    pub fn new(backend: Backend) -> Result<Self, Unavailable> {
        let table = Table::detect(backend).ok_or(Unavailable { backend })?;
        Ok(Self { table })
    }

    /// The operations of the fastest backend that this CPU can run.
    #[must_use]
    pub fn best() -> Self {
        let table = Table::detect(Backend::best()).unwrap_or(Table::scalar());
        Self { table }
    }

    /// The backend that was chosen.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.table.backend()
    }

    /// Adds `src` to `acc`, as big-endian `i32` elements, saturating.
    ///
    /// Returns whether any element saturated, that is, whether the exact sum of any element left
    /// the range of `i32`. The accumulator is written either way.
    #[inline]
    pub fn sum_i32(&self, acc: &mut [u8], src: &[u8]) -> bool {
        check_payloads(acc.len(), src.len());
        self.table.sum_i32(acc, src)
    }

    /// Adds every payload of `srcs` to `acc`: repeated [`sum_i32`](Self::sum_i32).
    ///
    /// It saturates at every step as well, but reads and writes `acc` only once per
    /// [`MAX_FUSED`](crate::MAX_FUSED) sources. Returns whether any element saturated at any step.
    /// Without sources `acc` is unchanged.
    #[inline]
    pub fn sum_i32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        check_all(acc.len(), srcs, ELEMENT_BYTES);
        self.table.sum_i32_many(acc, srcs)
    }

    /// Adds `src` to `acc`, as big-endian `i32` elements, modulo 2^32.
    ///
    /// SwitchML sums so.
    #[inline]
    pub fn add_be_i32(&self, acc: &mut [u8], src: &[u8]) {
        check_payloads(acc.len(), src.len());
        self.table.add_be_i32(acc, src);
    }

    /// Adds every payload of `srcs` to `acc`, as [`add_be_i32`](Self::add_be_i32) of one after
    /// another would, but reading and writing `acc` only once per
    /// [`MAX_FUSED`](crate::MAX_FUSED) sources. With no sources nothing changes.
    #[inline]
    pub fn add_be_i32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        check_all(acc.len(), srcs, ELEMENT_BYTES);
        self.table.add_be_i32_many(acc, srcs);
    }

    /// Adds every payload of `srcs` to `acc`, as little-endian `i32` elements, modulo 2^32. With no
    /// sources nothing changes.
    ///
    /// NetReduce sums so.
    #[inline]
    pub fn add_le_i32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        check_all(acc.len(), srcs, ELEMENT_BYTES);
        self.table.add_le_i32_many(acc, srcs);
    }

    /// Adds `src` to `acc`, as little-endian `f32` elements.
    ///
    /// IEEE 754 addition, rounded to nearest, ties to even; subnormals are kept. Every NaN result
    /// is [`CANONICAL_NAN`](crate::CANONICAL_NAN) for any NaN payload of the inputs: IEEE 754
    /// leaves that choice to the hardware, and results must not depend on it.
    #[inline]
    pub fn sum_f32(&self, acc: &mut [u8], src: &[u8]) {
        check_payloads(acc.len(), src.len());
        self.table.sum_f32(acc, src);
    }

    /// Adds every payload of `srcs` to `acc`, strictly in order.
    ///
    /// That is `((acc + s0) + s1) + ...` per element, with the same bits as repeated
    /// [`sum_f32`](Self::sum_f32). It reads and writes `acc` only once per
    /// [`MAX_FUSED`](crate::MAX_FUSED) sources. Without sources `acc` is unchanged, also a NaN that
    /// is not canonical.
    #[inline]
    pub fn sum_f32_many(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        check_all(acc.len(), srcs, ELEMENT_BYTES);
        self.table.sum_f32_many(acc, srcs);
    }

    /// Adds every payload of `srcs` to `acc`, as little-endian `f16` elements.
    ///
    /// `f16` is IEEE 754 binary16. The sum is folded in order in `f32`, `((acc + s0) + s1) + ...`,
    /// and rounded to `f16` once, at the end: to nearest, ties to even, infinite when too large.
    /// Subnormals are kept. Every NaN result is [`CANONICAL_NAN_F16`](crate::CANONICAL_NAN_F16).
    /// Without sources `acc` is unchanged.
    ///
    /// # Panics
    ///
    /// Also when the accumulator and `srcs` are more than [`MAX_WORKERS`] payloads, as all folds.
    #[inline]
    pub fn fold_f16(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        check_fold(acc.len(), srcs, 2);
        self.table.fold_f16(acc, srcs);
    }

    /// Adds every payload of `srcs` to `acc`, as little-endian `bf16` elements.
    ///
    /// `bf16` is the upper half of an `f32`. As [`fold_f16`](Self::fold_f16), with
    /// [`CANONICAL_NAN_BF16`](crate::CANONICAL_NAN_BF16).
    #[inline]
    pub fn fold_bf16(&self, acc: &mut [u8], srcs: &[&[u8]]) {
        check_fold(acc.len(), srcs, 2);
        self.table.fold_bf16(acc, srcs);
    }

    /// Adds every payload of `srcs` to `acc`, as big-endian `i16` elements.
    ///
    /// The exact sum of each element saturates to the range of `i16` once, at the end. Returns
    /// whether any did. Without sources `acc` is unchanged.
    #[inline]
    pub fn fold_i16(&self, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        check_fold(acc.len(), srcs, 2);
        self.table.fold_i16(acc, srcs)
    }

    /// Adds every payload of `srcs` to `acc`, as `i8` elements.
    ///
    /// As [`fold_i16`](Self::fold_i16).
    #[inline]
    pub fn fold_i8(&self, acc: &mut [u8], srcs: &[&[u8]]) -> bool {
        check_fold(acc.len(), srcs, 1);
        self.table.fold_i8(acc, srcs)
    }

    /// Sets every byte of `acc` to the unsigned maximum of `acc` and `src`.
    ///
    /// Workers agree on block exponents by it: see [`Scale`].
    #[inline]
    pub fn max_u8(&self, acc: &mut [u8], src: &[u8]) {
        check_same(acc.len(), src.len());
        self.table.max_u8(acc, src);
    }

    /// The largest biased exponent (bits 23 to 30) of a block.
    ///
    /// It is 0 for an empty block. [`NON_FINITE`](crate::NON_FINITE) (255) means that an element is
    /// infinite or a NaN.
    #[inline]
    #[must_use]
    pub fn max_exponent(&self, src: &[f32]) -> u8 {
        self.table.max_exponent(src)
    }

    /// Converts `f32` to big-endian `i32` in the fixed point of `scale`.
    ///
    /// Each element becomes `v * 2^s`, rounded to nearest, ties to even. When every worker's
    /// elements are within the bound of `scale`, the sum over the workers cannot overflow:
    /// see [`Scale`]. An element beyond the bound saturates and a NaN becomes 0; neither can
    /// occur when the exponent was agreed on with [`max_exponent`](Self::max_exponent). When the
    /// exponent is [`NON_FINITE`](crate::NON_FINITE), all of `out` is zero.
    ///
    /// # Panics
    ///
    /// When `out` is not exactly four bytes for every element of `src`.
    #[inline]
    pub fn quantize(&self, src: &[f32], scale: Scale, out: &mut [u8]) {
        check_same(out.len(), size_of_val(src));
        self.table.quantize(src, scale, out);
    }

    /// Converts big-endian `i32` in the fixed point of `scale` to `f32`.
    ///
    /// Each element becomes `(q as f32) * 2^-s`; when the exponent is
    /// [`NON_FINITE`](crate::NON_FINITE), all of `out` is the canonical NaN. For the
    /// round-trip error see [`Scale`].
    ///
    /// # Panics
    ///
    /// When `src` is not exactly four bytes for every element of `out`.
    #[inline]
    pub fn dequantize(&self, src: &[u8], scale: Scale, out: &mut [f32]) {
        check_same(src.len(), size_of_val(out));
        self.table.dequantize(src, scale, out);
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernels").field(&self.backend()).finish()
    }
}

#[inline]
#[track_caller]
fn check_same(acc_bytes: usize, src_bytes: usize) {
    assert!(
        acc_bytes == src_bytes,
        "payloads of {acc_bytes} and {src_bytes} bytes differ in length"
    );
}

/// [`check_payloads`] for every source, in one branch.
///
/// Each branch costs time with short payloads.
#[inline]
#[track_caller]
fn check_all(acc_bytes: usize, srcs: &[&[u8]], element_bytes: usize) {
    let different = srcs
        .iter()
        .fold(0, |bits, src| bits | (src.len() ^ acc_bytes));
    if different != 0 || !acc_bytes.is_multiple_of(element_bytes) {
        for src in srcs {
            check_same(acc_bytes, src.len());
            check_whole(acc_bytes, element_bytes);
        }
    }
}

#[inline]
#[track_caller]
fn check_fold(acc_bytes: usize, srcs: &[&[u8]], element_bytes: usize) {
    assert!(
        srcs.len() < MAX_WORKERS as usize,
        "a fold of {} payloads: the most are {MAX_WORKERS}",
        1 + srcs.len()
    );
    check_all(acc_bytes, srcs, element_bytes);
}

#[inline]
#[track_caller]
fn check_payloads(acc_bytes: usize, src_bytes: usize) {
    check_same(acc_bytes, src_bytes);
    check_whole(acc_bytes, ELEMENT_BYTES);
}

#[inline]
#[track_caller]
fn check_whole(acc_bytes: usize, element_bytes: usize) {
    assert!(
        acc_bytes.is_multiple_of(element_bytes),
        "a payload of {acc_bytes} bytes is not a whole number of elements"
    );
}
