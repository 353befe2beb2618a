//! Elements of one payload, from the buffer's type and byte order to those of the wire, and back.

use crate::collective::Elements;
use crate::dtype::Dtype;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tally_kernels::{CANONICAL_NAN, Kernels, Scale};
use zerocopy::IntoBytes;

/// Room for the elements of the ranks behind the first; none until a buffer has several parts.
#[derive(Default)]
pub(super) struct PartsRoom {
    pub(super) bytes: Vec<u8>,
    pub(super) sums: Vec<f32>,
}

/// What conversions need, the same for all collectives of a session.
pub(crate) struct Tools {
    pub(super) rank: u16,
    pub(super) kernels: Kernels,
    /// The fixed point of every exponent.
    pub(super) scales: Box<[Scale]>,
    /// Room for a payload's elements.
    pub(super) bytes: Vec<u8>,
    pub(super) floats: Vec<f32>,
    pub(super) f16s: Vec<f16>,
    pub(super) bf16s: Vec<bf16>,
    pub(super) parts: PartsRoom,
}

impl Tools {
    pub(crate) fn new(rank: u16, workers: u16, payload_bytes: usize) -> Self {
        let scale = |e| Scale::new(e, u32::from(workers));
        let most = payload_bytes / size_of::<f16>();
        Self {
            rank,
            kernels: Kernels::best(),
            scales: (0..=u8::MAX).map(scale).collect(),
            bytes: vec![0; payload_bytes],
            floats: vec![0.0; most],
            f16s: vec![f16::ZERO; most],
            bf16s: vec![bf16::ZERO; most],
            parts: PartsRoom::default(),
        }
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Reads floats of the buffer, summed over its parts: `count`, from element `at` on.
    pub(super) fn load(
        &mut self,
        dtype: Dtype,
        buffer: &dyn Elements,
        (at, count): (usize, usize),
    ) -> &[f32] {
        self.load_part(dtype, buffer, 0, (at, count));
        if buffer.parts() > 1 {
            self.load_others(dtype, buffer, (at, count));
        }
        &self.floats[..count]
    }

    /// Reads floats of one part of the buffer.
    pub(super) fn load_part(
        &mut self,
        dtype: Dtype,
        buffer: &dyn Elements,
        part: usize,
        (at, count): (usize, usize),
    ) {
        let at = at * dtype.bytes();
        let floats = &mut self.floats[..count];
        match dtype {
            Dtype::F16 => {
                let halves = &mut self.f16s[..count];
                buffer.read_part(part, at, halves.as_mut_bytes());
                halves.convert_to_f32_slice(floats);
            }
            Dtype::Bf16 => {
                let halves = &mut self.bf16s[..count];
                buffer.read_part(part, at, halves.as_mut_bytes());
                halves.convert_to_f32_slice(floats);
            }
            _ => buffer.read_part(part, at, floats.as_mut_bytes()),
        }
    }

    /// Makes `floats` of `count` elements as they travel.
    pub(super) fn widen(&mut self, dtype: Dtype, count: usize, payload: &[u8]) {
        let floats = &mut self.floats[..count];
        match dtype {
            Dtype::F16 => {
                let halves = &mut self.f16s[..count];
                parse(payload, halves, f16::from_le_bytes);
                halves.convert_to_f32_slice(floats);
            }
            Dtype::Bf16 => {
                let halves = &mut self.bf16s[..count];
                parse(payload, halves, bf16::from_le_bytes);
                halves.convert_to_f32_slice(floats);
            }
            _ => parse(payload, floats, f32::from_le_bytes),
        }
    }

    /// Writes the first `count` floats to element `at` of the buffer, each divided by `by`.
    pub(super) fn store(
        &mut self,
        dtype: Dtype,
        buffer: &mut dyn Elements,
        at: usize,
        count: usize,
        by: Option<u16>,
    ) {
        let floats = &mut self.floats[..count];
        if let Some(by) = by.map(f32::from) {
            for v in &mut *floats {
                *v = if v.is_nan() {
                    f32::from_bits(CANONICAL_NAN)
                } else {
                    *v / by
                };
            }
        }
        let at = at * dtype.bytes();
        match dtype {
            Dtype::F16 => {
                let halves = &mut self.f16s[..count];
                halves.convert_from_f32_slice(floats);
                buffer.write(at, halves.as_bytes());
            }
            Dtype::Bf16 => {
                let halves = &mut self.bf16s[..count];
                halves.convert_from_f32_slice(floats);
                buffer.write(at, halves.as_bytes());
            }
            _ => buffer.write(at, floats.as_bytes()),
        }
    }
}

fn parse<const N: usize, T>(bytes: &[u8], values: &mut [T], value: impl Fn([u8; N]) -> T) {
    for (v, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *v = value(*bytes);
    }
}

pub(super) fn emit<const N: usize, T: Copy>(
    values: &[T],
    bytes: &mut [u8],
    of: impl Fn(T) -> [u8; N],
) {
    for (v, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = of(*v);
    }
}

/// Whether the wire has the other byte order than this host: floats are little-endian, integers
/// big-endian.
pub(super) const fn is_turned(dtype: Dtype) -> bool {
    dtype.bytes() > 1 && (dtype.is_int() == cfg!(target_endian = "little"))
}

/// From the host's byte order to that of the wire, or back.
pub(super) fn turn_round(dtype: Dtype, bytes: &mut [u8]) {
    if is_turned(dtype) {
        match dtype.bytes() {
            2 => bytes
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|b| b.reverse()),
            _ => bytes
                .as_chunks_mut::<4>()
                .0
                .iter_mut()
                .for_each(|b| b.reverse()),
        }
    }
}

/// Divides integers in host order by up to 4096, truncating toward zero.
pub(super) fn divide(dtype: Dtype, bytes: &mut [u8], by: u16) {
    match dtype {
        Dtype::I32 => replace(bytes, |b| {
            (i32::from_ne_bytes(b) / i32::from(by)).to_ne_bytes()
        }),
        Dtype::I16 => replace(bytes, |b| {
            (i16::from_ne_bytes(b) / by.cast_signed()).to_ne_bytes()
        }),
        _ => replace(bytes, |b| {
            // The quotient fits.
            ((i16::from(i8::from_ne_bytes(b)) / by.cast_signed()) as i8).to_ne_bytes()
        }),
    }
}

fn replace<const N: usize>(bytes: &mut [u8], of: impl Fn([u8; N]) -> [u8; N]) {
    for b in bytes.as_chunks_mut().0 {
        *b = of(*b);
    }
}
