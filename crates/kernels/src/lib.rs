//! SIMD summation of gradient payloads, bit-exact on every backend.
//!
//! # The idea
//!
//! The aggregating switch adds each payload to an accumulator. Each operation is written once,
//! generic over a small vector trait, and compiled into thin shells, one per instruction set. A
//! process selects a [`Backend`] at start and keeps a [`Kernels`]; each payload then costs one
//! indirect call.
//!
//! # How it works
//!
//! * `simd` is the trait. A value of an implementing type proves that the CPU has the instructions,
//!   so its methods are safe to call.
//! * `sum`, `fold` and `convert` are the algorithms, over that trait, in safe code.
//! * `scalar` implements the same contract as plain loops: the reference and the fallback.
//! * `arch` holds the implementations of the trait and the only `unsafe` code of the crate.
//!
//! # Payloads
//!
//! | operation | element on the wire | arithmetic |
//! |---|---|---|
//! | [`sum_i32`](Kernels::sum_i32) | big-endian `i32` | saturating add |
//! | [`add_be_i32`](Kernels::add_be_i32), [`add_be_i32_many`](Kernels::add_be_i32_many) | big-endian `i32` | wrapping add |
//! | [`add_le_i32_many`](Kernels::add_le_i32_many) | little-endian `i32` | wrapping add |
//! | [`sum_f32`](Kernels::sum_f32) | little-endian `f32` | IEEE 754 add, ties to even, one canonical NaN |
//! | [`fold_f16`](Kernels::fold_f16), [`fold_bf16`](Kernels::fold_bf16) | little-endian `f16`, `bf16` | as `f32`, rounded once, one canonical NaN |
//! | [`fold_i16`](Kernels::fold_i16), [`fold_i8`](Kernels::fold_i8) | big-endian `i16`, `i8` | exact, saturated once |
//! | [`max_u8`](Kernels::max_u8) | `u8` | unsigned maximum |
//! | [`quantize`](Kernels::quantize), [`dequantize`](Kernels::dequantize) | big-endian `i32` | block fixed point, see [`Scale`] |
//!
//! A payload has any whole number of elements, at any address. Multiples of 64 bytes at 64-byte
//! boundaries are fastest.
//!
//! # The catches
//!
//! * All backends, scalar included, give the same bits for the same input. That requires the
//!   floating-point environment that Rust assumes: round to nearest, no flushing of subnormals.
//!   Code that sets FTZ or DAZ (`-ffast-math` start-up objects do) breaks it.
//! * The scalar backend is a plain Rust loop compiled for the target's baseline. On x86-64 that
//!   baseline has SSE2, and LLVM vectorises both sums with it; "scalar" names the source, not the
//!   machine code.
//! * Sums of `i32` that saturate, and sums of `f32` that produce a NaN, take a second pass over the
//!   payload.
//!
//! ```
//! use tally_kernels::Kernels;
//!
//! let kernels = Kernels::best();
//! let mut slot = 7i32.to_be_bytes();
//! assert!(!kernels.sum_i32(&mut slot, &35i32.to_be_bytes()));
//! assert_eq!(i32::from_be_bytes(slot), 42);
//! assert!(kernels.sum_i32(&mut slot, &i32::MAX.to_be_bytes()), "saturated");
//! ```
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod arch;
mod backend;
mod convert;
mod fold;
mod half;
mod kernels;
mod scalar;
mod scale;
mod simd;
mod sum;

pub use backend::{Backend, ParseBackendError, Unavailable};
pub use kernels::Kernels;
pub use scale::{MAX_TREE_WORKERS, MAX_WORKERS, NON_FINITE, Scale};
pub use sum::MAX_FUSED;

/// The only NaN that operations return: quiet, positive, no payload.
pub const CANONICAL_NAN: u32 = 0x7fc0_0000;

/// [`CANONICAL_NAN`] as `f16`.
pub const CANONICAL_NAN_F16: u16 = 0x7e00;

/// [`CANONICAL_NAN`] as `bf16`.
pub const CANONICAL_NAN_BF16: u16 = 0x7fc0;

/// Size in bytes of `i32` and `f32`, the elements of every sum but the folds.
pub const ELEMENT_BYTES: usize = 4;

const _: () = assert!(ELEMENT_BYTES == size_of::<i32>() && ELEMENT_BYTES == size_of::<f32>());
const _: () = assert!(f32::from_bits(CANONICAL_NAN).is_nan());
