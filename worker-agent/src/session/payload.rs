//! How the elements of a collective travel: from the buffer to payloads, and back.
//!
//! * *Bytes* (broadcast): the root's bytes as they are, in fragments of element *scale*, and zeros from all others.
//!   The maximum is what the root sent, whatever the bits mean, and nothing can overflow.
//! * *Plain*: elements of their own type.
//! * *Widened*: f16 and bf16 as f32.
//! * *Quantized*: floats in block fixed point (section 8 of PROTOCOL.md), with their scales ahead of them.
//!
//! Bytes and plain elements are copied once between buffer and payload, and turned round there where the wire
//! has the other byte order. All others are converted on the way, one payload at a time.

use super::collective::{Collective, CollectiveKind, Elements};
use crate::tensors::Dtype;
use crate::vector::Arithmetic;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tally_endpoint::Contribution;
use tally_endpoint::stream::{FixedPoint, Part};
use tally_kernels::{CANONICAL_NAN, ELEMENT_BYTES, Kernels, Scale};
use tally_wire::Element;

/// What conversions need, the same for all collectives of a session.
pub(super) struct Tools {
    rank: u8,
    kernels: Kernels,
    /// The fixed point of every exponent.
    scales: Box<[Scale]>,
    /// Room for a payload's elements.
    bytes: Vec<u8>,
    floats: Vec<f32>,
    f16s: Vec<f16>,
    bf16s: Vec<bf16>,
}

impl Tools {
    pub(super) fn new(rank: u8, workers: u8, payload_bytes: usize) -> Self {
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
        }
    }

    /// Reads `count` floats that are in host order at element `at` of the buffer.
    fn load(&mut self, dtype: Dtype, buffer: &dyn Elements, at: usize, count: usize) {
        let bytes = &mut self.bytes[..count * dtype.bytes()];
        buffer.read(at * dtype.bytes(), bytes);
        let floats = &mut self.floats[..count];
        match dtype {
            Dtype::F16 => {
                let halves = &mut self.f16s[..count];
                parse(bytes, halves, f16::from_ne_bytes);
                halves.convert_to_f32_slice(floats);
            }
            Dtype::Bf16 => {
                let halves = &mut self.bf16s[..count];
                parse(bytes, halves, bf16::from_ne_bytes);
                halves.convert_to_f32_slice(floats);
            }
            _ => parse(bytes, floats, f32::from_ne_bytes),
        }
    }

    /// Writes the first `count` floats to element `at` of the buffer, each divided by `by`.
    fn store(
        &mut self,
        dtype: Dtype,
        buffer: &mut dyn Elements,
        at: usize,
        count: usize,
        by: Option<u8>,
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
        let bytes = &mut self.bytes[..count * dtype.bytes()];
        match dtype {
            Dtype::F16 => {
                let halves = &mut self.f16s[..count];
                halves.convert_from_f32_slice(floats);
                emit(halves, bytes, f16::to_ne_bytes);
            }
            Dtype::Bf16 => {
                let halves = &mut self.bf16s[..count];
                halves.convert_from_f32_slice(floats);
                emit(halves, bytes, bf16::to_ne_bytes);
            }
            _ => emit(floats, bytes, f32::to_ne_bytes),
        }
        buffer.write(at * dtype.bytes(), bytes);
    }
}

fn parse<const N: usize, T>(bytes: &[u8], values: &mut [T], value: impl Fn([u8; N]) -> T) {
    for (v, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *v = value(*bytes);
    }
}

fn emit<const N: usize, T: Copy>(values: &[T], bytes: &mut [u8], of: impl Fn(T) -> [u8; N]) {
    for (v, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = of(*v);
    }
}

/// Whether the wire has the other byte order than this host: floats are little-endian, integers
/// big-endian.
const fn is_turned(dtype: Dtype) -> bool {
    dtype.bytes() > 1 && (dtype.is_int() == cfg!(target_endian = "little"))
}

/// From the host's byte order to that of the wire, or back.
fn turn_round(dtype: Dtype, bytes: &mut [u8]) {
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

enum Travel {
    Bytes { root: u8 },
    Plain,
    Widened,
    Quantized(Fixed),
}

/// The state of a message in block fixed point.
struct Fixed {
    order: FixedPoint,
    /// Our exponents, one for each data fragment; by group, when first asked for.
    own: Vec<u8>,
    own_known: Vec<bool>,
    /// The agreed ones.
    agreed: Vec<u8>,
    agreed_known: Vec<bool>,
}

/// The elements of one collective, as fragments that count from 0.
pub(super) struct Message {
    travel: Travel,
    dtype: Dtype,
    elements: usize,
    /// By what sums are divided.
    divisor: Option<u8>,
    payload_bytes: usize,
}

impl Message {
    pub(super) fn new(
        collective: &Collective,
        bytes: usize,
        workers: u8,
        payload_bytes: usize,
    ) -> Self {
        let dtype = collective.dtype;
        let elements = bytes / dtype.bytes();
        let narrow = matches!(dtype, Dtype::F16 | Dtype::Bf16);
        let travel = match (collective.kind, collective.arithmetic) {
            (CollectiveKind::Broadcast { root }, _) => Travel::Bytes { root },
            (CollectiveKind::Barrier, _) => Travel::Plain,
            _ if dtype.is_int() => Travel::Plain,
            (_, Arithmetic::Fixed) => Travel::Quantized(Fixed::new(elements, payload_bytes)),
            (_, Arithmetic::Native) if narrow => Travel::Widened,
            (_, Arithmetic::Native | Arithmetic::Own) => Travel::Plain,
        };
        let is_mean = collective.kind == CollectiveKind::Mean;
        Self {
            travel,
            dtype,
            elements,
            // With one worker nothing is divided, so that a NaN keeps its bits.
            divisor: (is_mean && workers > 1).then_some(workers),
            payload_bytes,
        }
    }

    /// Elements in a data fragment.
    fn per_fragment(&self) -> usize {
        let bytes = match self.travel {
            Travel::Bytes { .. } | Travel::Plain => self.dtype.bytes(),
            Travel::Widened | Travel::Quantized(_) => ELEMENT_BYTES,
        };
        self.payload_bytes / bytes
    }

    pub(super) fn fragments(&self) -> u64 {
        match &self.travel {
            Travel::Quantized(fixed) => fixed.order.fragments(),
            _ => self.elements.div_ceil(self.per_fragment()) as u64,
        }
    }

    fn part(&self, index: u64) -> Part {
        match &self.travel {
            Travel::Quantized(fixed) => fixed.order.at(index),
            _ => Part::Data { fragment: index },
        }
    }

    /// First element, and number of elements, of a data fragment.
    fn range(&self, data: u64) -> (usize, usize) {
        let per_fragment = self.per_fragment();
        let at = data as usize * per_fragment;
        (at, per_fragment.min(self.elements - at))
    }

    /// Writes our contribution to fragment `index`. Nothing in block fixed point leaves before
    /// `is_agreed` says that all ranks bring the same collective: sums of others might overflow.
    pub(super) fn contribute(
        &mut self,
        index: u64,
        is_agreed: bool,
        buffer: &dyn Elements,
        tools: &mut Tools,
        payload: &mut [u8],
    ) -> Contribution {
        let data = match self.part(index) {
            Part::Scales { group } => {
                self.write_scales(group as usize, buffer, tools, payload);
                return Contribution::Ready(Element::Scale);
            }
            Part::Data { fragment } => fragment,
        };
        let (at, count) = self.range(data);
        let element = match &self.travel {
            Travel::Bytes { root } if *root != tools.rank => {
                payload.fill(0);
                self.element()
            }
            Travel::Bytes { .. } | Travel::Plain => self.write(data, buffer, payload),
            Travel::Widened => {
                tools.load(self.dtype, buffer, at, count);
                let (used, rest) = payload.split_at_mut(count * ELEMENT_BYTES);
                emit(&tools.floats[..count], used, f32::to_le_bytes);
                rest.fill(0);
                self.element()
            }
            Travel::Quantized(fixed) => {
                let Some(scale) = fixed.scale(data, tools).filter(|_| is_agreed) else {
                    return Contribution::NotReady;
                };
                tools.load(self.dtype, buffer, at, count);
                let (used, rest) = payload.split_at_mut(count * ELEMENT_BYTES);
                tools.kernels.quantize(&tools.floats[..count], scale, used);
                rest.fill(0);
                self.element()
            }
        };
        Contribution::Ready(element)
    }

    /// The type of data fragments.
    pub(super) fn element(&self) -> Element {
        match self.travel {
            Travel::Bytes { .. } => Element::Scale,
            Travel::Plain => self.dtype.element(),
            Travel::Widened => Element::F32,
            Travel::Quantized(_) => Element::I32,
        }
    }

    /// Writes elements as they are in the buffer.
    fn write(&self, data: u64, buffer: &dyn Elements, payload: &mut [u8]) -> Element {
        let (at, count) = self.range(data);
        let size = self.dtype.bytes();
        let (used, rest) = payload.split_at_mut(count * size);
        buffer.read(at * size, used);
        rest.fill(0);
        if !matches!(self.travel, Travel::Bytes { .. }) {
            turn_round(self.dtype, used);
        }
        self.element()
    }

    fn write_scales(
        &mut self,
        group: usize,
        buffer: &dyn Elements,
        tools: &mut Tools,
        payload: &mut [u8],
    ) {
        let (dtype, elements) = (self.dtype, self.elements);
        let per_fragment = self.per_fragment();
        let Travel::Quantized(fixed) = &mut self.travel else {
            return;
        };
        let start = group * payload.len();
        let end = fixed.own.len().min(start + payload.len());
        if !fixed.own_known[group] {
            for (own, i) in fixed.own[start..end].iter_mut().zip(start..) {
                let at = i * per_fragment;
                let count = per_fragment.min(elements - at);
                tools.load(dtype, buffer, at, count);
                *own = tools.kernels.max_exponent(&tools.floats[..count]);
            }
            fixed.own_known[group] = true;
        }
        let (scales, rest) = payload.split_at_mut(end - start);
        scales.copy_from_slice(&fixed.own[start..end]);
        rest.fill(0);
    }

    /// Takes the result of fragment `index`.
    pub(super) fn result(
        &mut self,
        index: u64,
        buffer: &mut dyn Elements,
        tools: &mut Tools,
        payload: &[u8],
    ) {
        let (dtype, by) = (self.dtype, self.divisor);
        let data = match self.part(index) {
            Part::Scales { group } => return self.agree(group as usize, payload),
            Part::Data { fragment } => fragment,
        };
        let (at, count) = self.range(data);
        match &self.travel {
            // It is what we sent.
            Travel::Bytes { root } if *root == tools.rank => {}
            Travel::Bytes { .. } => {
                let size = dtype.bytes();
                buffer.write(at * size, &payload[..count * size]);
            }
            Travel::Plain => self.read_plain(at, count, buffer, tools, payload),
            Travel::Widened => {
                parse(payload, &mut tools.floats[..count], f32::from_le_bytes);
                tools.store(dtype, buffer, at, count, by);
            }
            Travel::Quantized(fixed) => {
                // A contribution has been made, with the scale.
                if let Some(scale) = fixed.scale(data, tools) {
                    let floats = &mut tools.floats[..count];
                    let sums = &payload[..count * ELEMENT_BYTES];
                    tools.kernels.dequantize(sums, scale, floats);
                    tools.store(dtype, buffer, at, count, by);
                }
            }
        }
    }

    /// Takes the agreed exponents of a group.
    fn agree(&mut self, group: usize, payload: &[u8]) {
        if let Travel::Quantized(fixed) = &mut self.travel {
            let start = group * payload.len();
            let end = fixed.agreed.len().min(start + payload.len());
            fixed.agreed[start..end].copy_from_slice(&payload[..end - start]);
            fixed.agreed_known[group] = true;
        }
    }

    fn read_plain(
        &self,
        at: usize,
        count: usize,
        buffer: &mut dyn Elements,
        tools: &mut Tools,
        payload: &[u8],
    ) {
        let dtype = self.dtype;
        let payload = &payload[..count * dtype.bytes()];
        let first = at * dtype.bytes();
        if self.divisor.is_none() && !is_turned(dtype) {
            return buffer.write(first, payload);
        }
        let bytes = &mut tools.bytes[..payload.len()];
        bytes.copy_from_slice(payload);
        turn_round(dtype, bytes);
        let Some(by) = self.divisor else {
            return buffer.write(first, bytes);
        };
        match dtype {
            Dtype::F32 => parse(bytes, &mut tools.floats[..count], f32::from_ne_bytes),
            Dtype::F16 => {
                parse(bytes, &mut tools.f16s[..count], f16::from_ne_bytes);
                tools.f16s[..count].convert_to_f32_slice(&mut tools.floats[..count]);
            }
            Dtype::Bf16 => {
                parse(bytes, &mut tools.bf16s[..count], bf16::from_ne_bytes);
                tools.bf16s[..count].convert_to_f32_slice(&mut tools.floats[..count]);
            }
            Dtype::I32 => divide(bytes, |b| {
                (i32::from_ne_bytes(b) / i32::from(by)).to_ne_bytes()
            }),
            Dtype::I16 => divide(bytes, |b| {
                (i16::from_ne_bytes(b) / i16::from(by)).to_ne_bytes()
            }),
            // There are at most 64.
            Dtype::I8 => divide(bytes, |[b]| [(b as i8 / by as i8) as u8]),
        }
        if dtype.is_int() {
            buffer.write(first, bytes);
        } else {
            tools.store(dtype, buffer, at, count, Some(by));
        }
    }

    /// Whether results can be made again from the buffer, bit for bit.
    pub(super) fn comes_back(&self) -> bool {
        match self.travel {
            Travel::Bytes { .. } => true,
            Travel::Plain => self.divisor.is_none(),
            Travel::Widened | Travel::Quantized(_) => false,
        }
    }

    /// Writes the result of fragment `index` as it came, if it [comes back](Self::comes_back).
    pub(super) fn again(&self, index: u64, buffer: &dyn Elements, payload: &mut [u8]) -> Element {
        self.write(index, buffer, payload)
    }
}

fn divide<const N: usize>(bytes: &mut [u8], of: impl Fn([u8; N]) -> [u8; N]) {
    for b in bytes.as_chunks_mut().0 {
        *b = of(*b);
    }
}

impl Fixed {
    fn new(elements: usize, payload_bytes: usize) -> Self {
        let order = FixedPoint::new(elements as u64, payload_bytes as u64);
        let (data, groups) = (order.data_fragments() as usize, order.groups() as usize);
        Self {
            order,
            own: vec![0; data],
            own_known: vec![false; groups],
            agreed: vec![0; data],
            agreed_known: vec![false; groups],
        }
    }

    /// The fixed point of a data fragment, once its group is agreed on.
    fn scale(&self, data: u64, tools: &Tools) -> Option<Scale> {
        // A scale fragment has a byte for each data fragment of its group.
        let group = data as usize / tools.bytes.len();
        self.agreed_known[group].then(|| tools.scales[usize::from(self.agreed[data as usize])])
    }
}
