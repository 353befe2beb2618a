//! The vector operations that the algorithms require of an instruction set.

/// An instruction set, and the proof that this CPU has it.
///
/// An implementing type has no public constructor. A value exists only after a check of the CPU, or
/// where the compiler assumes the instructions and the caller has checked the CPU. So its methods
/// may be safe. They are `inline(always)` and must be inlined into a function that is compiled for
/// the instruction set (the shells in `arch`); otherwise each would be a call.
///
/// A vector is `V` and has the size of `Bytes`. Its lanes have no type: each operation's name gives
/// the lane type. Lanes are in host byte order.
pub(crate) trait Simd: Copy {
    /// A register.
    type V: Copy;
    /// The bytes of a register in memory, with no alignment.
    type Bytes: Chunk<u8>;
    /// The `f32` lanes of a register in memory.
    type Floats: Chunk<f32>;

    fn zero(self) -> Self::V;
    fn splat_u32(self, value: u32) -> Self::V;

    fn load(self, from: &Self::Bytes) -> Self::V;
    fn store(self, v: Self::V, to: &mut Self::Bytes);
    fn load_floats(self, from: &Self::Floats) -> Self::V;
    fn store_floats(self, v: Self::V, to: &mut Self::Floats);

    /// Loads fewer bytes than a register has; the other bytes are zero.
    #[inline(always)]
    fn load_part(self, from: &[u8]) -> Self::V {
        let mut bytes = Self::Bytes::ZERO;
        bytes.as_mut()[..from.len()].copy_from_slice(from);
        self.load(&bytes)
    }
    /// Stores the first bytes; `to` gives their number.
    #[inline(always)]
    fn store_part(self, v: Self::V, to: &mut [u8]) {
        let mut bytes = Self::Bytes::ZERO;
        self.store(v, &mut bytes);
        to.copy_from_slice(&bytes.as_ref()[..to.len()]);
    }

    fn and(self, a: Self::V, b: Self::V) -> Self::V;
    fn or(self, a: Self::V, b: Self::V) -> Self::V;
    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a & !b`.
    fn and_not(self, a: Self::V, b: Self::V) -> Self::V;
    fn max_u8(self, a: Self::V, b: Self::V) -> Self::V;
    fn max_u32(self, a: Self::V, b: Self::V) -> Self::V;

    /// Whether any bit is set.
    fn any_nonzero(self, v: Self::V) -> bool;

    /// Every 16-bit lane shifted left by 8 bits.
    fn low_byte_up(self, v: Self::V) -> Self::V;
    /// Every 16-bit lane shifted right by 8 bits, unsigned.
    fn high_byte_down_u16(self, v: Self::V) -> Self::V;
    /// Every 16-bit lane shifted right by 8 bits, signed.
    fn high_byte_down_i16(self, v: Self::V) -> Self::V;
    /// All ones in every 16-bit lane that is negative, zeros in the others.
    fn sign_i16(self, v: Self::V) -> Self::V;
    /// Wrapping sum.
    fn add_i16(self, a: Self::V, b: Self::V) -> Self::V;
    /// Wrapping difference.
    fn sub_i16(self, a: Self::V, b: Self::V) -> Self::V;
    fn min_i16(self, a: Self::V, b: Self::V) -> Self::V;
    fn max_i16(self, a: Self::V, b: Self::V) -> Self::V;

    /// Every 32-bit lane shifted left by 16 bits.
    fn low_half_up(self, v: Self::V) -> Self::V;
    /// Every 32-bit lane shifted right by 16 bits, unsigned.
    fn high_half_down(self, v: Self::V) -> Self::V;
    /// Reverses the bytes of every 32-bit lane.
    fn swap_bytes_u32(self, v: Self::V) -> Self::V;
    /// Wrapping sum.
    fn add_i32(self, a: Self::V, b: Self::V) -> Self::V;
    /// Wrapping difference.
    fn sub_i32(self, a: Self::V, b: Self::V) -> Self::V;
    /// Saturating sum.
    fn saturating_add_i32(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lanes with the top bit set where the wrapping sum overflowed.
    ///
    /// `sum` is the wrapping sum of `a` and `b`. The other bits are undefined.
    fn overflow_i32(self, a: Self::V, b: Self::V, sum: Self::V) -> Self::V;
    /// Whether any 32-bit lane has its top bit set.
    fn any_negative_i32(self, v: Self::V) -> bool;

    /// IEEE sum. A NaN may have any payload.
    fn add_f32(self, a: Self::V, b: Self::V) -> Self::V;
    /// IEEE product. A NaN may have any payload.
    fn mul_f32(self, a: Self::V, b: Self::V) -> Self::V;
    /// Whether any lane is a NaN.
    fn any_nan_f32(self, v: Self::V) -> bool;
    /// Replaces every NaN by the canonical one.
    fn canonicalize_nan_f32(self, v: Self::V) -> Self::V;
    /// Little-endian `f16` as `f32`, exactly: the first and the second half.
    ///
    /// A NaN may have any payload.
    fn load_f16(self, from: &Self::Bytes) -> [Self::V; 2];
    /// `f32` to the nearest little-endian `f16`, ties to even.
    ///
    /// Values too large become infinite. The canonical NaN becomes that of `f16`; the input must
    /// have no other NaN.
    fn narrow_f16(self, halves: [Self::V; 2]) -> Self::V;
    /// Rounds to the nearest `i32`, ties to even. Saturates; a NaN becomes 0.
    fn round_f32_to_i32(self, v: Self::V) -> Self::V;
    /// Rounds to the nearest `f32`, ties to even.
    fn i32_to_f32(self, v: Self::V) -> Self::V;
}

/// The memory of a register: an array of elements.
pub(crate) trait Chunk<T>: Copy + AsRef<[T]> + AsMut<[T]> {
    const ZERO: Self;

    /// Whole registers, and the remaining elements.
    fn split(slice: &[T]) -> (&[Self], &[T]);
    fn split_mut(slice: &mut [T]) -> (&mut [Self], &mut [T]);
}

impl<const N: usize> Chunk<u8> for [u8; N] {
    const ZERO: Self = [0; N];

    #[inline(always)]
    fn split(slice: &[u8]) -> (&[Self], &[u8]) {
        slice.as_chunks()
    }

    #[inline(always)]
    fn split_mut(slice: &mut [u8]) -> (&mut [Self], &mut [u8]) {
        slice.as_chunks_mut()
    }
}

impl<const N: usize> Chunk<f32> for [f32; N] {
    const ZERO: Self = [0.0; N];

    #[inline(always)]
    fn split(slice: &[f32]) -> (&[Self], &[f32]) {
        slice.as_chunks()
    }

    #[inline(always)]
    fn split_mut(slice: &mut [f32]) -> (&mut [Self], &mut [f32]) {
        slice.as_chunks_mut()
    }
}
