//! The job's fragments: tensors on one side, payloads on the other.
//!
//! The stream of fragments is the float message in block fixed point (section 8 of PROTOCOL.md), if
//! that is how floats are summed, and behind it one message for each type of element: f32, f16, bf16,
//! i32, i16, i8. Integers always travel in their own type, floats in their own or all as f32.
//! Contributions are made from the input when they are
//! asked for, also when they are sent again; results are turned into the output at once.
//!
//! For two windows a worker that loses a result can have it from us, as it came. Most are made again from
//! the output: where that gives the same bits (f32 and integers), and a round is long enough for the next
//! one's results not to be in their place. All others are kept in a copy.
//!
//! With several rounds the stream repeats. A round begins when all results of the one before are
//! there, so that the state of one round is enough.

use crate::kept::{self, Kept};
use crate::report;
use crate::tensors::{Dtype, Layout, Tensor, Tensors};
use half::{bf16, f16};
use hdrhistogram::Histogram;
use std::ops::Range;
use tally_endpoint::stream::{FixedPoint, Part};
use tally_endpoint::{Contribution, Delivery, Gradients};
use tally_kernels::{ELEMENT_BYTES, Kernels, Scale};
use tally_wire::Element;

/// How floats are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arithmetic {
    /// As integers with one exponent per fragment: the sum does not depend on the order.
    Fixed,
    /// As f32, in the order of ranks.
    Native,
    /// Each tensor in its own type, in the order of ranks: f16 and bf16 are added in f32, and rounded
    /// once.
    Own,
}

impl Arithmetic {
    /// The name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Native => "native",
            Self::Own => "own",
        }
    }
}

/// What a fragment of the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    /// The scales of a group of data fragments.
    Scales(usize),
    /// Block fixed point of the float message.
    Quantized(usize),
    /// Elements of a message as they are.
    Plain { message: usize, fragment: usize },
}

/// Tensors that travel one after the other, as elements of one type.
struct Message {
    element: Element,
    elements: usize,
    pieces: Vec<Piece>,
}

/// Elements of a message that are neighbours also where they are kept.
struct Piece {
    /// Where it begins in the message.
    at: usize,
    /// Where it is in the floats or ints.
    kept: Range<usize>,
}

impl Message {
    fn of(layout: &Layout, element: Element, travels_as: impl Fn(Dtype) -> Element) -> Self {
        let mut message = Self {
            element,
            elements: 0,
            pieces: Vec::new(),
        };
        let is_in = |t: &&Tensor| travels_as(t.dtype) == element && t.elements > 0;
        for t in layout.tensors.iter().filter(is_in) {
            let kept = t.start..t.start + t.elements;
            match message.pieces.last_mut() {
                Some(last) if last.kept.end == kept.start => last.kept.end = kept.end,
                _ => message.pieces.push(Piece {
                    at: message.elements,
                    kept,
                }),
            }
            message.elements += t.elements;
        }
        message
    }

    fn fragments(&self, payload_bytes: usize) -> u64 {
        (self.elements * self.element.bytes()).div_ceil(payload_bytes) as u64
    }

    /// Where the elements of a fragment are kept, in order.
    fn pieces(
        &self,
        fragment: usize,
        payload_bytes: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'_> {
        let per_fragment = payload_bytes / self.element.bytes();
        let (begin, end) = (fragment * per_fragment, (fragment + 1) * per_fragment);
        let first = self
            .pieces
            .partition_point(|piece| piece.at + piece.kept.len() <= begin);
        let in_it = self.pieces[first..]
            .iter()
            .take_while(move |piece| piece.at < end);
        in_it.map(move |piece| {
            let skipped = begin.saturating_sub(piece.at);
            let length = piece.kept.len().min(end - piece.at);
            piece.kept.start + skipped..piece.kept.start + length
        })
    }
}

/// Tensors that an error names.
const NAMES_MAX: usize = 8;

/// The types of messages, in the order in which they travel.
const MESSAGES: [Element; 6] = [
    Element::F32,
    Element::F16,
    Element::Bf16,
    Element::I32,
    Element::I16,
    Element::I8,
];

/// A worker's part of the job's vector, and the sums as they come in.
pub(crate) struct Vector<'a> {
    input: &'a Tensors,
    pub(crate) output: Tensors,
    kernels: Kernels,
    arithmetic: Arithmetic,
    order: FixedPoint,
    /// In the order in which they travel, each with the round's first fragment behind it.
    messages: Vec<(Message, u64)>,
    payload_bytes: usize,
    per_fragment: usize,
    /// Our exponents, one for each data fragment; by group, when first asked for.
    own: Vec<u8>,
    own_known: Vec<bool>,
    /// The agreed ones.
    agreed: Vec<u8>,
    agreed_known: Vec<bool>,
    /// The fixed point of every exponent.
    scales: Box<[Scale]>,
    kept: Kept,
    /// Whether rounds are long enough for results to be made again from the output.
    lasts: bool,
    /// The last fragment that has a result.
    newest: u64,
    /// From contribution to result.
    pub(crate) latency_ns: Histogram<u64>,
}

impl<'a> Vector<'a> {
    pub(crate) fn new(
        input: &'a Tensors,
        arithmetic: Arithmetic,
        workers: u8,
        window: u16,
        payload_bytes: usize,
    ) -> Self {
        let order = FixedPoint::new(input.floats.len() as u64, payload_bytes as u64);
        let (data, groups) = match arithmetic {
            Arithmetic::Fixed => (order.data_fragments() as usize, order.groups() as usize),
            Arithmetic::Native | Arithmetic::Own => (0, 0),
        };
        let travels_as = |dtype: Dtype| match arithmetic {
            _ if dtype.is_int() || arithmetic == Arithmetic::Own => dtype.element(),
            Arithmetic::Native => Element::F32,
            // Not as it is.
            _ => Element::None,
        };
        let mut end = match arithmetic {
            Arithmetic::Fixed => order.fragments(),
            Arithmetic::Native | Arithmetic::Own => 0,
        };
        let messages = MESSAGES.map(|element| {
            let message = Message::of(&input.layout, element, travels_as);
            end += message.fragments(payload_bytes);
            (message, end)
        });
        let kept = kept::fragments(window);
        let scale = |e| Scale::new(e, u32::from(workers));
        Self {
            output: Tensors {
                layout: input.layout.clone(),
                floats: vec![0.0; input.floats.len()],
                ints: vec![0; input.ints.len()],
            },
            input,
            kernels: Kernels::best(),
            arithmetic,
            order,
            messages: messages.into(),
            payload_bytes,
            per_fragment: payload_bytes / ELEMENT_BYTES,
            own: vec![0; data],
            own_known: vec![false; groups],
            agreed: vec![0; data],
            agreed_known: vec![false; groups],
            scales: (0..=u8::MAX).map(scale).collect(),
            kept: Kept::new(window, payload_bytes),
            lasts: end >= kept as u64,
            newest: 0,
            latency_ns: report::latencies(),
        }
    }

    /// Fragments of one round.
    pub(crate) fn fragments(&self) -> u64 {
        self.messages.last().map_or(0, |(_, end)| *end)
    }

    /// Forgets what was agreed on, as everything is sent anew.
    pub(crate) fn next_round(&mut self) {
        self.agreed_known.fill(false);
    }

    fn at(&self, seq: u64) -> Fragment {
        let index = seq % self.fragments().max(1);
        let mut begin = match self.arithmetic {
            Arithmetic::Fixed => self.order.fragments(),
            Arithmetic::Native | Arithmetic::Own => 0,
        };
        if index < begin {
            return match self.order.at(index) {
                Part::Scales { group } => Fragment::Scales(group as usize),
                Part::Data { fragment } => Fragment::Quantized(fragment as usize),
            };
        }
        let mut message = 0;
        while let Some(&(_, end)) = self.messages.get(message)
            && end <= index
        {
            begin = end;
            message += 1;
        }
        Fragment::Plain {
            message,
            fragment: (index - begin) as usize,
        }
    }

    /// Whether a result can be made again from the output, bit for bit.
    fn comes_back(&self, fragment: Fragment) -> bool {
        let Fragment::Plain { message, .. } = fragment else {
            return false;
        };
        let (message, _) = &self.messages[message];
        // Narrow floats are kept as f32, and some NaNs do not come back from there.
        self.lasts && !matches!(message.element, Element::F16 | Element::Bf16)
    }

    /// Writes the elements of a fragment of a message as they travel.
    fn write(
        &self,
        message: usize,
        fragment: usize,
        from: &Tensors,
        payload: &mut [u8],
    ) -> Element {
        let (message, _) = &self.messages[message];
        let pieces = message.pieces(fragment, self.payload_bytes);
        let (floats, ints) = (&from.floats, &from.ints);
        let f16 = |v| f16::from_f32(v).to_le_bytes();
        let bf16 = |v| bf16::from_f32(v).to_le_bytes();
        match message.element {
            Element::F32 => fill(payload, floats, pieces, f32::to_le_bytes),
            Element::F16 => fill(payload, floats, pieces, f16),
            Element::Bf16 => fill(payload, floats, pieces, bf16),
            Element::I16 => fill(payload, ints, pieces, |v| (v as i16).to_be_bytes()),
            Element::I8 => fill(payload, ints, pieces, |v| [v as u8]),
            _ => fill(payload, ints, pieces, i32::to_be_bytes),
        }
        message.element
    }

    /// Elements of data fragment `i` of a message of `elements`, in block fixed point.
    fn range(&self, i: usize, elements: usize) -> Range<usize> {
        let start = i * self.per_fragment;
        start..elements.min(start + self.per_fragment)
    }

    /// Data fragments that group `group` has the scales of.
    fn group(&self, group: usize) -> Range<usize> {
        let start = group * self.payload_bytes;
        start..self.own.len().min(start + self.payload_bytes)
    }

    /// Names the tensors that fragment `seq` has elements, or scales, of; if there are many, the first.
    pub(crate) fn names_in(&self, seq: u64) -> String {
        let layout: &Layout = &self.input.layout;
        let floats = |first: usize, fragments: usize| {
            let begin = first * self.per_fragment;
            let all = begin..begin + fragments * self.per_fragment;
            layout.in_floats(all).collect()
        };
        let tensors: Vec<&Tensor> = match self.at(seq) {
            // One byte for each fragment.
            Fragment::Scales(group) => floats(group * self.payload_bytes, self.payload_bytes),
            Fragment::Quantized(fragment) => floats(fragment, 1),
            Fragment::Plain { message, fragment } => {
                let (message, _) = &self.messages[message];
                let is_int = matches!(message.element, Element::I32 | Element::I16 | Element::I8);
                let pieces = message.pieces(fragment, self.payload_bytes);
                if is_int {
                    pieces.flat_map(|piece| layout.in_ints(piece)).collect()
                } else {
                    pieces.flat_map(|piece| layout.in_floats(piece)).collect()
                }
            }
        };
        let shown = tensors.iter().take(NAMES_MAX).map(|t| t.name.as_str());
        let names = shown.collect::<Vec<_>>().join(", ");
        match tensors.len().saturating_sub(NAMES_MAX) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

/// Writes the values at `pieces` one after the other, and zeros behind them.
fn fill<const N: usize, T: Copy>(
    payload: &mut [u8],
    values: &[T],
    pieces: impl Iterator<Item = Range<usize>>,
    bytes: impl Fn(T) -> [u8; N],
) {
    let mut rest = payload;
    for piece in pieces {
        let (used, after) = rest.split_at_mut(N * piece.len());
        for (out, v) in used.as_chunks_mut().0.iter_mut().zip(&values[piece]) {
            *out = bytes(*v);
        }
        rest = after;
    }
    rest.fill(0);
}

/// Reads the values at `pieces`.
fn spread<const N: usize, T>(
    payload: &[u8],
    values: &mut [T],
    pieces: impl Iterator<Item = Range<usize>>,
    value: impl Fn([u8; N]) -> T,
) {
    let mut rest = payload;
    for piece in pieces {
        let (used, after) = rest.split_at(N * piece.len());
        for (v, bytes) in values[piece].iter_mut().zip(used.as_chunks().0) {
            *v = value(*bytes);
        }
        rest = after;
    }
}

impl Gradients for Vector<'_> {
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        match self.at(seq) {
            Fragment::Scales(group) => {
                let fragments = self.group(group);
                if !self.own_known[group] {
                    for i in fragments.clone() {
                        let range = self.range(i, self.input.floats.len());
                        self.own[i] = self.kernels.max_exponent(&self.input.floats[range]);
                    }
                    self.own_known[group] = true;
                }
                let (scales, rest) = payload.split_at_mut(fragments.len());
                scales.copy_from_slice(&self.own[fragments]);
                rest.fill(0);
                Contribution::Ready(Element::Scale)
            }
            Fragment::Quantized(i) => {
                if !self.agreed_known[i / self.payload_bytes] {
                    return Contribution::NotReady;
                }
                let values = &self.input.floats[self.range(i, self.input.floats.len())];
                let scale = self.scales[usize::from(self.agreed[i])];
                let (used, rest) = payload.split_at_mut(size_of_val(values));
                self.kernels.quantize(values, scale, used);
                rest.fill(0);
                Contribution::Ready(Element::I32)
            }
            Fragment::Plain { message, fragment } => {
                Contribution::Ready(self.write(message, fragment, self.input, payload))
            }
        }
    }

    fn result(&mut self, seq: u64, element: Element, payload: &[u8], delivery: Delivery) {
        let ns = u64::try_from(delivery.latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(ns);
        let at = self.at(seq);
        let copy = (!self.comes_back(at)).then_some(payload);
        self.kept.put(seq, element, copy);
        self.newest = self.newest.max(seq);
        match at {
            Fragment::Scales(group) => {
                let fragments = self.group(group);
                let scales = &payload[..fragments.len()];
                self.agreed[fragments].copy_from_slice(scales);
                self.agreed_known[group] = true;
            }
            Fragment::Quantized(i) => {
                let range = self.range(i, self.output.floats.len());
                let out = &mut self.output.floats[range];
                let scale = self.scales[usize::from(self.agreed[i])];
                self.kernels
                    .dequantize(&payload[..size_of_val(out)], scale, out);
            }
            Fragment::Plain { message, fragment } => {
                let (message, _) = &self.messages[message];
                let pieces = message.pieces(fragment, self.payload_bytes);
                let Tensors { floats, ints, .. } = &mut self.output;
                let f16 = |b| f16::from_le_bytes(b).to_f32();
                let bf16 = |b| bf16::from_le_bytes(b).to_f32();
                match message.element {
                    Element::F32 => spread(payload, floats, pieces, f32::from_le_bytes),
                    Element::F16 => spread(payload, floats, pieces, f16),
                    Element::Bf16 => spread(payload, floats, pieces, bf16),
                    Element::I16 => spread(payload, ints, pieces, |b| i16::from_be_bytes(b).into()),
                    Element::I8 => spread(payload, ints, pieces, |b| i8::from_be_bytes(b).into()),
                    _ => spread(payload, ints, pieces, i32::from_be_bytes),
                }
            }
        }
    }

    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element> {
        let (element, copy) = self.kept.get(seq)?;
        if let Some(copy) = copy {
            payload.copy_from_slice(copy);
        } else if let Fragment::Plain { message, fragment } = self.at(seq)
            && self.newest < seq + self.fragments()
        {
            self.write(message, fragment, &self.output, payload);
        } else {
            return None;
        }
        Some(element)
    }
}

#[cfg(test)]
mod tests;
