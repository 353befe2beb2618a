//! The elements of one collective in one piece, for a transport that sums whole tensors: a ring of
//! hosts (NetReduce).
//!
//! * A sum of f32 or i32, and of f16 or bf16 in their own type, is the buffer as it is.
//! * f16 and bf16 otherwise are summed as f32, i16 and i8 as i32, and narrowed at the end.
//! * A broadcast is the root's bytes and zeros from all others, summed as i32: a number plus zeros
//!   is that number, for any bits.
//! * A barrier, or a collective without elements, is one element of 0.

use super::convert::{Tools, divide};
use crate::collective::{Collective, CollectiveKind, Elements};
use crate::dtype::{Arithmetic, Dtype};
use tally_wire::netreduce::{Element, GRANULE_BYTES};
use thiserror::Error;
use zerocopy::IntoBytes;

/// Elements that are converted at a time.
const CHUNK: usize = 16 << 10;
const CHUNK_BYTES: usize = CHUNK * size_of::<f32>();

/// A sum does not fit in the type of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the sum of element {element}, {sum}, is not an {dtype}")]
pub struct Overflow {
    /// The element.
    pub element: usize,
    /// Its sum.
    pub sum: i32,
    /// The type.
    pub dtype: Dtype,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Travel {
    /// As bytes, from the root.
    Bytes,
    /// As they are.
    Plain,
    /// As f32.
    Floats,
    /// As i32.
    Integers,
}

/// How the elements of one collective travel in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    travel: Travel,
    dtype: Dtype,
    elements: usize,
    /// By what sums are divided.
    divisor: Option<u16>,
}

/// Room for conversions.
pub struct Converter(Tools);

impl Default for Converter {
    fn default() -> Self {
        // Its fixed point is not used.
        Self(Tools::new(0, 1, CHUNK_BYTES))
    }
}

impl Whole {
    /// Of a collective on a buffer of this many bytes, among the ranks of a job.
    #[must_use]
    pub fn new(collective: &Collective, bytes: usize, ranks: u16) -> Self {
        let dtype = collective.dtype;
        let travel = match (collective.kind, dtype) {
            (CollectiveKind::Broadcast { .. } | CollectiveKind::Barrier, _) => Travel::Bytes,
            (CollectiveKind::Max, _) => unreachable!("no process asks for a maximum"),
            _ if bytes == 0 => Travel::Bytes,
            (_, Dtype::F32 | Dtype::I32) => Travel::Plain,
            (_, Dtype::I16 | Dtype::I8) => Travel::Integers,
            (_, Dtype::F16 | Dtype::Bf16) => match collective.arithmetic {
                Arithmetic::Own => Travel::Plain,
                Arithmetic::Fixed | Arithmetic::Native => Travel::Floats,
            },
        };
        let is_mean = collective.kind == CollectiveKind::Mean;
        Self {
            travel,
            dtype,
            elements: bytes / dtype.bytes(),
            divisor: (is_mean && ranks > 1).then_some(ranks),
        }
    }

    /// The type in which they are summed.
    #[must_use]
    pub const fn element(&self) -> Element {
        match (self.travel, self.dtype) {
            (Travel::Bytes | Travel::Integers, _) => Element::I32,
            (Travel::Floats, _) => Element::F32,
            (Travel::Plain, Dtype::F16) => Element::F16,
            (Travel::Plain, Dtype::Bf16) => Element::Bf16,
            (Travel::Plain, Dtype::F32) => Element::F32,
            (Travel::Plain, _) => Element::I32,
        }
    }

    /// Bytes of what is summed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.travel {
            Travel::Bytes => self
                .buffer_bytes()
                .next_multiple_of(GRANULE_BYTES as usize)
                .max(4),
            Travel::Plain => self.buffer_bytes(),
            Travel::Floats | Travel::Integers => self.elements * 4,
        }
    }

    fn buffer_bytes(&self) -> usize {
        self.elements * self.dtype.bytes()
    }

    /// Whether a buffer of one rank may be summed where it is.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.travel == Travel::Plain
    }

    /// Writes the contribution of a buffer, which is the root's or another's, to `out` of
    /// [`bytes`](Self::bytes) bytes.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn load(
        &self,
        converter: &mut Converter,
        buffer: &dyn Elements,
        is_root: bool,
        out: &mut [u8],
    ) {
        assert_eq!(out.len(), self.bytes());
        match self.travel {
            Travel::Bytes => {
                let (used, rest) = out.split_at_mut(self.buffer_bytes());
                if is_root {
                    buffer.read(0, used);
                } else {
                    used.fill(0);
                }
                rest.fill(0);
            }
            Travel::Floats => self.load_floats(converter, buffer, out),
            Travel::Plain if self.dtype == Dtype::F32 => self.load_floats(converter, buffer, out),
            Travel::Plain if !self.dtype.is_int() => self.load_halves(converter, buffer, out),
            Travel::Plain | Travel::Integers => self.load_integers(buffer, out),
        }
    }

    fn load_floats(&self, converter: &mut Converter, buffer: &dyn Elements, out: &mut [u8]) {
        for (i, out) in out.chunks_mut(CHUNK_BYTES).enumerate() {
            let part = (i * CHUNK, out.len() / size_of::<f32>());
            out.copy_from_slice(converter.0.load(self.dtype, buffer, part).as_bytes());
        }
    }

    fn load_halves(&self, converter: &mut Converter, buffer: &dyn Elements, out: &mut [u8]) {
        for (i, out) in out.chunks_mut(CHUNK_BYTES).enumerate() {
            let at = i * CHUNK_BYTES;
            buffer.read(at, out);
            converter
                .0
                .add_parts(self.dtype, buffer, at / self.dtype.bytes(), out);
        }
    }

    /// Sums of i32 wrap; those of others fit.
    fn load_integers(&self, buffer: &dyn Elements, out: &mut [u8]) {
        let size = self.dtype.bytes();
        let mut bytes = vec![0; CHUNK * size];
        for (i, out) in out.chunks_mut(CHUNK * size_of::<i32>()).enumerate() {
            let bytes = &mut bytes[..out.len() / size_of::<i32>() * size];
            out.fill(0);
            for part in 0..buffer.parts() {
                buffer.read_part(part, i * CHUNK * size, bytes);
                let sums = out.as_chunks_mut().0.iter_mut();
                for (sum, value) in sums.zip(bytes.chunks_exact(size)) {
                    let value = integer(value);
                    *sum = i32::from_ne_bytes(*sum).wrapping_add(value).to_ne_bytes();
                }
            }
        }
    }

    /// Writes the sum to a buffer.
    ///
    /// # Errors
    /// An integer that its type does not have. The buffer is undefined.
    ///
    /// # Panics
    /// If `sum` has another length than [`bytes`](Self::bytes).
    pub fn store(
        &self,
        converter: &mut Converter,
        sum: &mut [u8],
        buffer: &mut dyn Elements,
    ) -> Result<(), Overflow> {
        assert_eq!(sum.len(), self.bytes());
        match self.travel {
            Travel::Bytes => buffer.write(0, &sum[..self.buffer_bytes()]),
            Travel::Floats => {
                for (i, sum) in sum.chunks(CHUNK_BYTES).enumerate() {
                    let floats = &mut converter.0.floats[..sum.len() / size_of::<f32>()];
                    floats.as_mut_bytes().copy_from_slice(sum);
                    let (at, count) = (i * CHUNK, floats.len());
                    converter
                        .0
                        .store(self.dtype, buffer, at, count, self.divisor);
                }
            }
            Travel::Plain => {
                buffer.write(0, sum);
                self.finish(converter, buffer);
            }
            Travel::Integers => return self.store_integers(sum, buffer),
        }
        Ok(())
    }

    fn store_integers(&self, sum: &mut [u8], buffer: &mut dyn Elements) -> Result<(), Overflow> {
        let size = self.dtype.bytes();
        let mut bytes = vec![0; CHUNK * size];
        for (i, sums) in sum.chunks_mut(CHUNK * size_of::<i32>()).enumerate() {
            if let Some(by) = self.divisor {
                divide(Dtype::I32, sums, by);
            }
            let sums = sums.as_chunks().0;
            let bytes = &mut bytes[..sums.len() * size];
            for (j, (sum, out)) in sums.iter().zip(bytes.chunks_exact_mut(size)).enumerate() {
                let sum = i32::from_ne_bytes(*sum);
                let narrow = match size {
                    1 => i8::try_from(sum).map(|it| out.copy_from_slice(&it.to_ne_bytes())),
                    _ => i16::try_from(sum).map(|it| out.copy_from_slice(&it.to_ne_bytes())),
                };
                narrow.map_err(|_| Overflow {
                    element: i * CHUNK + j,
                    sum,
                    dtype: self.dtype,
                })?;
            }
            buffer.write(i * CHUNK * size, bytes);
        }
        Ok(())
    }

    /// Divides a sum that is in the buffer already, if it is to be a mean.
    pub fn finish(&self, converter: &mut Converter, buffer: &mut dyn Elements) {
        let Some(by) = self.divisor else {
            return;
        };
        let size = self.dtype.bytes();
        for at in (0..self.elements).step_by(CHUNK) {
            let count = CHUNK.min(self.elements - at);
            if self.dtype.is_int() {
                let bytes = &mut converter.0.bytes[..count * size];
                buffer.read(at * size, bytes);
                divide(self.dtype, bytes, by);
                buffer.write(at * size, bytes);
            } else {
                converter.0.load_part(self.dtype, buffer, 0, (at, count));
                converter
                    .0
                    .store(self.dtype, buffer, at, count, self.divisor);
            }
        }
    }
}

/// An integer of 1, 2 or 4 bytes in the host's byte order.
fn integer(bytes: &[u8]) -> i32 {
    match *bytes {
        [a] => i32::from(i8::from_ne_bytes([a])),
        [a, b] => i32::from(i16::from_ne_bytes([a, b])),
        [a, b, c, d] => i32::from_ne_bytes([a, b, c, d]),
        _ => unreachable!("an integer of another length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Parts, Priority};
    use half::{bf16, f16};

    fn collective(kind: CollectiveKind, dtype: Dtype, arithmetic: Arithmetic) -> Collective {
        Collective {
            kind,
            dtype,
            arithmetic,
            name: "t".into(),
            priority: Priority::FIRST,
            more_follow: false,
        }
    }

    /// Sums the contributions of hosts as a switch does, and gives every rank's buffer back.
    fn run(collective: &Collective, hosts: Vec<Vec<Vec<u8>>>) -> Result<Vec<Vec<u8>>, Overflow> {
        let ranks = hosts.iter().map(Vec::len).sum::<usize>() as u16;
        let bytes = hosts[0][0].len();
        let whole = Whole::new(collective, bytes, ranks);
        let mut converter = Converter::default();
        let mut contributions = Vec::new();
        for (rank, parts) in hosts.iter().enumerate() {
            let mut out = vec![0xaa; whole.bytes()];
            let buffer = Parts::new(parts.clone());
            whole.load(&mut converter, &buffer, rank == 0, &mut out);
            contributions.push(out);
        }
        let mut sum = contributions.remove(0);
        let kernels = tally_kernels::Kernels::best();
        let others: Vec<&[u8]> = contributions.iter().map(Vec::as_slice).collect();
        match whole.element() {
            Element::I32 => kernels.add_le_i32_many(&mut sum, &others),
            Element::F32 => kernels.sum_f32_many(&mut sum, &others),
            Element::F16 => kernels.fold_f16(&mut sum, &others),
            Element::Bf16 => kernels.fold_bf16(&mut sum, &others),
        }
        let mut results = Vec::new();
        for mut buffer in hosts.into_iter().flatten() {
            whole.store(&mut converter, &mut sum.clone(), &mut buffer)?;
            results.push(buffer);
        }
        Ok(results)
    }

    fn bytes<T: IntoBytes + zerocopy::Immutable>(values: &[T]) -> Vec<u8> {
        values.as_bytes().to_vec()
    }

    /// More elements than are converted at a time, and no whole number of chunks.
    const N: usize = CHUNK + 3;

    fn same(collective: &Collective, hosts: Vec<Vec<Vec<u8>>>, expected: &[u8]) {
        for (rank, result) in run(collective, hosts).unwrap().into_iter().enumerate() {
            assert!(result == expected, "{collective:?}: rank {rank}");
        }
    }

    #[test]
    fn sums_and_means_of_every_type_are_those_of_their_ranks() {
        use CollectiveKind::{Mean, Sum};
        let value = |rank: usize, i: usize| ((i % 20) as i32 - 10) * (rank as i32 + 1);
        // Ranks 0 and 1 are one host, rank 2 another.
        let total = |i| (0..3).map(|rank| value(rank, i)).sum::<i32>();
        for kind in [Sum, Mean] {
            let mean = |it: i32| if kind == Mean { it / 3 } else { it };
            let float = |it: i32| {
                if kind == Mean {
                    it as f32 / 3.0
                } else {
                    it as f32
                }
            };
            let hosts = |of: &dyn Fn(i32) -> Vec<u8>| {
                let rank = |rank| (0..N).flat_map(|i| of(value(rank, i))).collect::<Vec<u8>>();
                vec![vec![rank(0), rank(1)], vec![rank(2)]]
            };
            let check = |dtype, arithmetic, of: &dyn Fn(i32) -> Vec<u8>, expected: &[u8]| {
                same(&collective(kind, dtype, arithmetic), hosts(of), expected);
            };
            let floats: Vec<f32> = (0..N).map(|i| float(total(i))).collect();
            let halves: Vec<f16> = floats.iter().map(|&it| f16::from_f32(it)).collect();
            let upper: Vec<bf16> = floats.iter().map(|&it| bf16::from_f32(it)).collect();
            for arithmetic in [Arithmetic::Fixed, Arithmetic::Native, Arithmetic::Own] {
                let f32s = |it: i32| bytes(&[it as f32]);
                check(Dtype::F32, arithmetic, &f32s, &bytes(&floats));
                let f16s = |it: i32| bytes(&[f16::from_f32(it as f32)]);
                check(Dtype::F16, arithmetic, &f16s, &bytes(&halves));
                let bf16s = |it: i32| bytes(&[bf16::from_f32(it as f32)]);
                check(Dtype::Bf16, arithmetic, &bf16s, &bytes(&upper));
            }
            let i32s: Vec<i32> = (0..N).map(|i| mean(total(i))).collect();
            let i16s: Vec<i16> = i32s.iter().map(|&it| it as i16).collect();
            let i8s: Vec<i8> = i32s.iter().map(|&it| it as i8).collect();
            let own = Arithmetic::Native;
            check(Dtype::I32, own, &|it| bytes(&[it]), &bytes(&i32s));
            check(Dtype::I16, own, &|it| bytes(&[it as i16]), &bytes(&i16s));
            check(Dtype::I8, own, &|it| bytes(&[it as i8]), &bytes(&i8s));
        }
    }

    #[test]
    fn halves_are_summed_as_f32_unless_asked_otherwise() {
        // In f16, 2048 + 1 is 2048: the sum of the first host would lose both ones.
        let hosts = || {
            let host = |it: [f32; 2]| {
                vec![
                    bytes(&[f16::from_f32(it[0])]),
                    bytes(&[f16::from_f32(it[1])]),
                ]
            };
            vec![host([2048.0, 1.0]), host([1.0, 0.0])]
        };
        let sum = |arithmetic| collective(CollectiveKind::Sum, Dtype::F16, arithmetic);
        same(
            &sum(Arithmetic::Native),
            hosts(),
            &bytes(&[f16::from_f32(2050.0)]),
        );
        same(
            &sum(Arithmetic::Own),
            hosts(),
            &bytes(&[f16::from_f32(2048.0)]),
        );
        // A mean does not overflow where the sum in f16 would.
        let most = || vec![vec![bytes(&[f16::MAX])], vec![bytes(&[f16::MAX])]];
        let mean = collective(CollectiveKind::Mean, Dtype::F16, Arithmetic::Native);
        same(&mean, most(), &bytes(&[f16::MAX]));
    }

    #[test]
    fn integers_that_do_not_fit_are_an_error_and_their_mean_is_none() {
        let hosts = || vec![vec![bytes(&[1i8, 100])], vec![bytes(&[2i8, 100])]];
        let sum = collective(CollectiveKind::Sum, Dtype::I8, Arithmetic::Native);
        let (element, sum_of, dtype) = (1, 200, Dtype::I8);
        let overflow = Overflow {
            element,
            sum: sum_of,
            dtype,
        };
        assert_eq!(run(&sum, hosts()), Err(overflow));
        let mean = collective(CollectiveKind::Mean, Dtype::I8, Arithmetic::Native);
        same(&mean, hosts(), &bytes(&[1i8, 100]));
    }

    #[test]
    fn a_broadcast_is_the_root_s_bits() {
        // Also those of a NaN with a payload, of an odd number of bytes.
        for length in [0, 1, 3, 4, 4 * N + 2] {
            let root: Vec<u8> = (0..length).map(|i| (i * 7 + 0xf1) as u8).collect();
            let other = vec![0x55; length];
            let hosts = vec![vec![root.clone(), other.clone()], vec![other]];
            let broadcast = CollectiveKind::Broadcast { root: 0 };
            same(
                &collective(broadcast, Dtype::I8, Arithmetic::Native),
                hosts,
                &root,
            );
        }
    }

    #[test]
    fn what_has_no_elements_still_travels() {
        for it in [
            Collective::barrier("b"),
            collective(CollectiveKind::Sum, Dtype::F32, Arithmetic::Native),
        ] {
            let whole = Whole::new(&it, 0, 4);
            assert_eq!((whole.bytes(), whole.is_in_place()), (4, false));
            assert_eq!(
                run(&it, vec![vec![Vec::new()], vec![Vec::new()]]),
                Ok(vec![Vec::new(); 2])
            );
        }
    }
}
