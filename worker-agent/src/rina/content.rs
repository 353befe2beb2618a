//! The elements of one collective, as they pass round the ring: in one piece, in the host's byte
//! order.
//!
//! Most are one pass, as in a ring of hosts ([`Whole`]). Block fixed point has two: a maximum of
//! the blocks' exponents, a byte each, and a sum of integers. A block has the elements of one frame
//! of the switch (section 8 of PROTOCOL.md), so results have the bits that a switch gives.

use tally_kernels::{Kernels, Scale};
use tally_session::{Arithmetic, Collective, CollectiveKind, Converter, Elements, Overflow, Whole};
use tally_wire::netreduce::Element;

const FLOAT_BYTES: usize = size_of::<f32>();

/// How the elements of a pass are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// The sum.
    Sum(Element),
    /// The largest byte.
    Max,
}

impl Join {
    /// Bytes of an element.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Sum(Element::I32 | Element::F32) => 4,
            Self::Sum(Element::F16 | Element::Bf16) => 2,
            Self::Max => 1,
        }
    }
}

/// The elements of one collective.
pub(super) struct Content {
    whole: Whole,
    /// Elements of a block, in block fixed point.
    block: Option<usize>,
    /// Hosts whose sums are added.
    hosts: u32,
    /// Elements, or sums.
    bytes: Vec<u8>,
    /// Of each block.
    exponents: Vec<u8>,
    /// The elements are integers in the fixed point of the exponents.
    is_quantized: bool,
}

impl Content {
    /// What this host brings to a collective.
    pub(super) fn load(
        collective: &Collective,
        buffer: &dyn Elements,
        is_root: bool,
        (ranks, hosts): (u16, u16),
        payload_bytes: usize,
        converter: &mut Converter,
    ) -> Self {
        let is_sum = matches!(collective.kind, CollectiveKind::Sum | CollectiveKind::Mean);
        let is_fixed = is_sum
            && !collective.dtype.is_int()
            && collective.arithmetic == Arithmetic::Fixed
            && buffer.bytes() > 0;
        // Floats of any width become f32.
        let as_floats = Collective {
            arithmetic: Arithmetic::Native,
            ..collective.clone()
        };
        let collective = if is_fixed { &as_floats } else { collective };
        let whole = Whole::new(collective, buffer.bytes(), ranks);
        let mut bytes = vec![0; whole.bytes()];
        whole.load(converter, buffer, is_root, &mut bytes);
        let mut content = Self {
            whole,
            block: is_fixed.then_some(payload_bytes / FLOAT_BYTES),
            hosts: hosts.into(),
            bytes,
            exponents: Vec::new(),
            is_quantized: false,
        };
        if let Some(block) = content.block {
            let kernels = Kernels::best();
            let mut floats = vec![0.0; block];
            let blocks = content.bytes.chunks(block * FLOAT_BYTES);
            let exponent = |block: &[u8]| kernels.max_exponent(floats_of(block, &mut floats));
            content.exponents = blocks.map(exponent).collect();
        }
        content
    }

    /// How the elements of the pass are joined, and where they are.
    pub(super) fn pass(&mut self) -> (Join, &mut [u8]) {
        if self.block.is_some() && !self.is_quantized {
            (Join::Max, &mut self.exponents)
        } else if self.is_quantized {
            (Join::Sum(Element::I32), &mut self.bytes)
        } else {
            (Join::Sum(self.whole.element()), &mut self.bytes)
        }
    }

    /// A pass is over; whether another one follows.
    pub(super) fn end_pass(&mut self) -> bool {
        let Some(block) = self.block.filter(|_| !self.is_quantized) else {
            return false;
        };
        self.is_quantized = true;
        let kernels = Kernels::best();
        let mut floats = vec![0.0; block];
        let blocks = self.bytes.chunks_mut(block * FLOAT_BYTES);
        for (bytes, exponent) in blocks.zip(&self.exponents) {
            let floats = floats_of(bytes, &mut floats);
            kernels.quantize(floats, Scale::new(*exponent, self.hosts), bytes);
            turn_round(bytes);
        }
        true
    }

    /// Writes the results to the buffer.
    pub(super) fn store(
        mut self,
        buffer: &mut dyn Elements,
        converter: &mut Converter,
    ) -> Result<(), Overflow> {
        if let Some(block) = self.block {
            let kernels = Kernels::best();
            let mut floats = vec![0.0; block];
            let blocks = self.bytes.chunks_mut(block * FLOAT_BYTES);
            for (bytes, exponent) in blocks.zip(&self.exponents) {
                turn_round(bytes);
                let floats = &mut floats[..bytes.len() / FLOAT_BYTES];
                kernels.dequantize(bytes, Scale::new(*exponent, self.hosts), floats);
                let out = bytes.as_chunks_mut().0.iter_mut();
                out.zip(floats)
                    .for_each(|(out, it)| *out = it.to_ne_bytes());
            }
        }
        self.whole.store(converter, &mut self.bytes, buffer)
    }
}

fn floats_of<'a>(bytes: &[u8], floats: &'a mut [f32]) -> &'a [f32] {
    let floats = &mut floats[..bytes.len() / FLOAT_BYTES];
    let chunks = bytes.as_chunks().0.iter();
    floats
        .iter_mut()
        .zip(chunks)
        .for_each(|(float, bytes)| *float = f32::from_ne_bytes(*bytes));
    floats
}

/// From the kernels' byte order, big-endian, to the host's, or back.
fn turn_round(bytes: &mut [u8]) {
    if cfg!(target_endian = "little") {
        for bytes in bytes.as_chunks_mut::<FLOAT_BYTES>().0 {
            bytes.reverse();
        }
    }
}

/// Adds what came from the predecessor; whether an integer has left its range.
pub(super) fn join(kernels: &Kernels, join: Join, own: &mut [u8], other: &[u8]) -> bool {
    match join {
        Join::Max => kernels.max_u8(own, other),
        Join::Sum(Element::F32) => kernels.sum_f32(own, other),
        Join::Sum(Element::F16) => kernels.fold_f16(own, &[other]),
        Join::Sum(Element::Bf16) => kernels.fold_bf16(own, &[other]),
        Join::Sum(Element::I32) => return add_i32(own, other),
    }
    false
}

fn add_i32(own: &mut [u8], other: &[u8]) -> bool {
    let mut has_overflowed = false;
    let others = other.as_chunks().0.iter();
    for (own, other) in own.as_chunks_mut().0.iter_mut().zip(others) {
        let (sum, is_over) = i32::from_ne_bytes(*own).overflowing_add(i32::from_ne_bytes(*other));
        *own = sum.to_ne_bytes();
        has_overflowed |= is_over;
    }
    has_overflowed
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_session::{Dtype, Priority};

    fn collective(kind: CollectiveKind, dtype: Dtype, arithmetic: Arithmetic) -> Collective {
        Collective {
            kind,
            dtype,
            arithmetic,
            name: "w".into(),
            priority: Priority::FIRST,
            more_follow: false,
        }
    }

    /// Passes as a ring does them, of hosts with one rank each.
    fn run(collective: &Collective, hosts: &[Vec<u8>], payload: usize) -> (Vec<u8>, usize) {
        let mut converter = Converter::default();
        let count = hosts.len() as u16;
        let load = |(host, bytes): (usize, &Vec<u8>)| {
            let of = (count, count);
            Content::load(collective, bytes, host == 0, of, payload, &mut converter)
        };
        let mut all: Vec<_> = hosts.iter().enumerate().map(load).collect();
        let mut passes = 0;
        loop {
            passes += 1;
            let (first, others) = all.split_first_mut().unwrap();
            let (how, sum) = first.pass();
            for other in &mut *others {
                assert!(!join(&Kernels::best(), how, sum, other.pass().1));
            }
            for other in &mut *others {
                other.pass().1.copy_from_slice(first.pass().1);
            }
            let follow: Vec<_> = all.iter_mut().map(Content::end_pass).collect();
            if follow.contains(&false) {
                break;
            }
        }
        let mut results = all.into_iter().map(|content| {
            let mut buffer = hosts[0].clone();
            content.store(&mut buffer, &mut converter).unwrap();
            buffer
        });
        let first = results.next().unwrap();
        assert!(results.all(|it| it == first));
        (first, passes)
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|it| it.to_ne_bytes()).collect()
    }

    #[test]
    fn block_fixed_point_is_a_maximum_and_a_sum_and_exact_where_it_can_be() {
        let (sum, mean) = (CollectiveKind::Sum, CollectiveKind::Mean);
        let fixed = |kind| collective(kind, Dtype::F32, Arithmetic::Fixed);
        // 16 elements to a block: a large number spoils none of another block.
        let hosts: Vec<_> = (1..=3u8)
            .map(|host| {
                let small = f32::from(host) * 1e-6;
                let mut values = vec![f32::from(host) * 0.5; 40];
                values[0] = 1e9;
                values[39] = small;
                floats(&values)
            })
            .collect();
        let (bytes, passes) = run(&fixed(sum), &hosts, 64);
        assert_eq!(passes, 2);
        let of = |at: usize| f32::from_ne_bytes(bytes.as_chunks().0[at]);
        assert_eq!((of(0), of(16), of(31)), (3e9, 3.0, 3.0));
        assert!((of(39) - 6e-6).abs() < 1e-8);
        let (bytes, _) = run(&fixed(mean), &hosts, 64);
        assert_eq!(bytes[64..68], 1f32.to_ne_bytes());
        // One that is infinite makes NaN of its block, and of no other.
        let mut wild = hosts.clone();
        wild[1][..4].copy_from_slice(&f32::INFINITY.to_ne_bytes());
        let (bytes, _) = run(&fixed(sum), &wild, 64);
        assert!(f32::from_ne_bytes(bytes.as_chunks().0[15]).is_nan());
        assert_eq!(bytes[64..68], 3f32.to_ne_bytes());
    }

    #[test]
    fn all_else_is_one_pass() {
        let hosts = vec![vec![1u8; 24], vec![2; 24]];
        for dtype in [Dtype::I8, Dtype::I16, Dtype::I32] {
            let of = collective(CollectiveKind::Sum, dtype, Arithmetic::Fixed);
            assert_eq!(run(&of, &hosts, 64), (vec![3; 24], 1));
        }
        let from = collective(
            CollectiveKind::Broadcast { root: 0 },
            Dtype::F32,
            Arithmetic::Fixed,
        );
        assert_eq!(run(&from, &hosts, 64), (vec![1; 24], 1));
        let native = collective(CollectiveKind::Sum, Dtype::F32, Arithmetic::Native);
        let hosts = [1.5, 2.25].map(|it| floats(&[it]));
        assert_eq!(run(&native, &hosts, 64), (floats(&[3.75]), 1));
        // Nothing is one element of zero.
        assert_eq!(run(&native, &[vec![], vec![]], 64), (vec![], 1));
    }

    #[test]
    fn integers_that_leave_their_range_are_noticed() {
        let kernels = Kernels::best();
        let mut own = [1i32, i32::MAX].map(i32::to_ne_bytes).concat();
        let other = [1i32, 0].map(i32::to_ne_bytes).concat();
        let of = Join::Sum(Element::I32);
        assert!(!join(&kernels, of, &mut own, &other));
        let other = [1i32, 1].map(i32::to_ne_bytes).concat();
        assert!(join(&kernels, of, &mut own, &other));
    }
}
