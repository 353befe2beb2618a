//! The job's fragments: tensors on one side, payloads on the other.
//!
//! The stream of fragments is the f32 message, in block fixed point (section 8 of PROTOCOL.md) or
//! as it is, and behind it the i32 message. Contributions are made from the input when they are
//! asked for, also when they are sent again; results are turned into the output at once, and kept
//! as they came for two windows, for workers that lose them.
//!
//! With several rounds the stream repeats. A round begins when all results of the one before are
//! there, so that the state of one round is enough.

use crate::tensors::{Layout, Tensors};
use hdrhistogram::Histogram;
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
}

impl Arithmetic {
    /// The name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Native => "native",
        }
    }
}

/// What a fragment of the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    /// The scales of a group of data fragments.
    Scales(usize),
    /// Block fixed point of the f32 message.
    Quantized(usize),
    /// f32 as they are.
    Floats(usize),
    Ints(usize),
}

/// Results as they came, by fragment.
struct Kept {
    payloads: Box<[u8]>,
    tags: Box<[(u64, Element)]>,
    payload_bytes: usize,
}

impl Kept {
    fn new(fragments: usize, payload_bytes: usize) -> Self {
        let slots = fragments.next_power_of_two();
        Self {
            payloads: vec![0; slots * payload_bytes].into_boxed_slice(),
            tags: vec![(u64::MAX, Element::None); slots].into_boxed_slice(),
            payload_bytes,
        }
    }

    fn slot(&self, seq: u64) -> (usize, std::ops::Range<usize>) {
        let slot = seq as usize & (self.tags.len() - 1);
        let at = slot * self.payload_bytes;
        (slot, at..at + self.payload_bytes)
    }

    fn put(&mut self, seq: u64, element: Element, payload: &[u8]) {
        let (slot, range) = self.slot(seq);
        self.tags[slot] = (seq, element);
        self.payloads[range].copy_from_slice(payload);
    }

    fn get(&self, seq: u64) -> Option<(Element, &[u8])> {
        let (slot, range) = self.slot(seq);
        let (of, element) = self.tags[slot];
        (of == seq).then(|| (element, &self.payloads[range]))
    }
}

/// Latencies above this count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// A worker's part of the job's vector, and the sums as they come in.
pub(crate) struct Vector<'a> {
    input: &'a Tensors,
    pub(crate) output: Tensors,
    kernels: Kernels,
    arithmetic: Arithmetic,
    order: FixedPoint,
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
            Arithmetic::Native => (0, 0),
        };
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
            payload_bytes,
            per_fragment: payload_bytes / ELEMENT_BYTES,
            own: vec![0; data],
            own_known: vec![false; groups],
            agreed: vec![0; data],
            agreed_known: vec![false; groups],
            scales: (0..=u8::MAX).map(scale).collect(),
            kept: Kept::new(2 * usize::from(window), payload_bytes),
            // Three digits between 100 ns and the maximum: the bounds are always valid.
            latency_ns: Histogram::new_with_bounds(100, LATENCY_NS_MAX, 3)
                .unwrap_or_else(|_| unreachable!("constant bounds")),
        }
    }

    fn float_fragments(&self) -> u64 {
        match self.arithmetic {
            Arithmetic::Fixed => self.order.fragments(),
            Arithmetic::Native => self.order.data_fragments(),
        }
    }

    /// Fragments of one round.
    pub(crate) fn fragments(&self) -> u64 {
        self.float_fragments() + self.input.ints.len().div_ceil(self.per_fragment) as u64
    }

    /// Forgets what was agreed on, as everything is sent anew.
    pub(crate) fn next_round(&mut self) {
        self.agreed_known.fill(false);
    }

    fn at(&self, seq: u64) -> Fragment {
        let index = seq % self.fragments().max(1);
        let floats = self.float_fragments();
        if index >= floats {
            return Fragment::Ints((index - floats) as usize);
        }
        match (self.arithmetic, index) {
            (Arithmetic::Native, index) => Fragment::Floats(index as usize),
            (Arithmetic::Fixed, index) => match self.order.at(index) {
                Part::Scales { group } => Fragment::Scales(group as usize),
                Part::Data { fragment } => Fragment::Quantized(fragment as usize),
            },
        }
    }

    /// Elements of data fragment `i` of a message of `elements`.
    fn range(&self, i: usize, elements: usize) -> std::ops::Range<usize> {
        let start = i * self.per_fragment;
        start..elements.min(start + self.per_fragment)
    }

    /// Data fragments that group `group` has the scales of.
    fn group(&self, group: usize) -> std::ops::Range<usize> {
        let start = group * self.payload_bytes;
        start..self.own.len().min(start + self.payload_bytes)
    }

    /// Names the tensors that i32 fragment `seq` has elements of.
    pub(crate) fn names_in(&self, seq: u64) -> Option<String> {
        let Fragment::Ints(i) = self.at(seq) else {
            return None;
        };
        let layout: &Layout = &self.input.layout;
        let range = self.range(i, self.input.ints.len());
        let names: Vec<_> = layout.ints_in(range).map(|t| t.name.as_str()).collect();
        Some(names.join(", "))
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
            Fragment::Floats(i) => {
                let values = &self.input.floats[self.range(i, self.input.floats.len())];
                let (used, rest) = payload.split_at_mut(size_of_val(values));
                for (out, v) in used.as_chunks_mut().0.iter_mut().zip(values) {
                    *out = v.to_le_bytes();
                }
                rest.fill(0);
                Contribution::Ready(Element::F32)
            }
            Fragment::Ints(i) => {
                let values = &self.input.ints[self.range(i, self.input.ints.len())];
                let (used, rest) = payload.split_at_mut(size_of_val(values));
                for (out, v) in used.as_chunks_mut().0.iter_mut().zip(values) {
                    *out = v.to_be_bytes();
                }
                rest.fill(0);
                Contribution::Ready(Element::I32)
            }
        }
    }

    fn result(&mut self, seq: u64, element: Element, payload: &[u8], delivery: Delivery) {
        let ns = u64::try_from(delivery.latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(ns);
        self.kept.put(seq, element, payload);
        match self.at(seq) {
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
            Fragment::Floats(i) => {
                let range = self.range(i, self.output.floats.len());
                let words = payload.as_chunks().0;
                for (out, word) in self.output.floats[range].iter_mut().zip(words) {
                    *out = f32::from_le_bytes(*word);
                }
            }
            Fragment::Ints(i) => {
                let range = self.range(i, self.output.ints.len());
                let words = payload.as_chunks().0;
                for (out, word) in self.output.ints[range].iter_mut().zip(words) {
                    *out = i32::from_be_bytes(*word);
                }
            }
        }
    }

    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element> {
        let (element, bytes) = self.kept.get(seq)?;
        payload.copy_from_slice(bytes);
        Some(element)
    }
}
