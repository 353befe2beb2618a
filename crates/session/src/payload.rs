//! How the elements of a collective travel: from the buffer to payloads, and back.
//!
//! * *Bytes* (broadcast): the root's bytes as they are, in fragments of element *scale*, and zeros
//!   from all others. The maximum is what the root sent, for any bits, and nothing can
//!   overflow. A maximum is the same with bytes from all.
//! * *Plain*: elements of their own type.
//! * *Widened*: f16 and bf16 as f32.
//! * *Quantized*: floats in block fixed point (section 8 of PROTOCOL.md), with their scales ahead
//!   of them.
//!
//! Bytes and plain elements are copied once between buffer and payload, and turned round there
//! where the wire has the other byte order. All others are converted on the way, one payload at a
//! time.
//!
//! A buffer of several ranks is summed on the way, one payload at a time and in the order of its
//! parts: plain elements as the switch sums them, all others as f32.

mod convert;
mod fixed;
mod parts;
mod whole;

use crate::collective::{Collective, CollectiveKind, Elements};
use crate::dtype::{Arithmetic, Dtype};
pub(crate) use convert::Tools;
use convert::{divide, emit, is_turned, turn_round};
use fixed::Fixed;
pub use parts::PARTS_MAX;
use tally_endpoint::Contribution;
use tally_endpoint::stream::Part;
use tally_kernels::ELEMENT_BYTES;
use tally_wire::Element;
pub use whole::{Converter, Overflow, Whole};

enum Travel {
    /// From this worker, or from all.
    Bytes {
        root: Option<u16>,
    },
    Plain,
    Widened,
    Quantized(Fixed),
}

/// Which elements are in which data fragment.
#[derive(Clone, Copy)]
struct Layout {
    dtype: Dtype,
    elements: usize,
    per_fragment: usize,
}

impl Layout {
    /// First element, and number of elements, of a data fragment.
    fn range(self, data: u64) -> (usize, usize) {
        let at = data as usize * self.per_fragment;
        (at, self.per_fragment.min(self.elements - at))
    }

    /// Writes elements as they are in the buffer, and zeros behind them. Returns how many bytes
    /// they have.
    fn copy(self, data: u64, buffer: &dyn Elements, payload: &mut [u8]) -> usize {
        let (at, count) = self.range(data);
        let size = self.dtype.bytes();
        let (used, rest) = payload.split_at_mut(count * size);
        buffer.read(at * size, used);
        rest.fill(0);
        count * size
    }
}

/// The elements of one collective, as fragments that count from 0.
pub(crate) struct Message {
    travel: Travel,
    layout: Layout,
    /// By what sums are divided.
    divisor: Option<u16>,
}

impl Message {
    /// Of one of `workers`, whose buffer has `parts` ranks as those of all.
    pub(crate) fn new(
        collective: &Collective,
        (bytes, parts): (usize, u16),
        workers: u16,
        payload_bytes: usize,
    ) -> Self {
        let dtype = collective.dtype;
        let elements = bytes / dtype.bytes();
        let narrow = matches!(dtype, Dtype::F16 | Dtype::Bf16);
        let travel = match (collective.kind, collective.arithmetic) {
            (CollectiveKind::Broadcast { root }, _) => Travel::Bytes {
                root: Some(root / parts),
            },
            (CollectiveKind::Max, _) => Travel::Bytes { root: None },
            (CollectiveKind::Barrier, _) => Travel::Plain,
            _ if dtype.is_int() => Travel::Plain,
            (_, Arithmetic::Fixed) => Travel::Quantized(Fixed::new(elements, payload_bytes)),
            (_, Arithmetic::Native) if narrow => Travel::Widened,
            (_, Arithmetic::Native | Arithmetic::Own) => Travel::Plain,
        };
        let size = match travel {
            Travel::Bytes { .. } | Travel::Plain => dtype.bytes(),
            Travel::Widened | Travel::Quantized(_) => ELEMENT_BYTES,
        };
        let is_mean = collective.kind == CollectiveKind::Mean;
        // At most what a configuration may have, and the same at every worker (D-1).
        let ranks = workers * parts;
        Self {
            travel,
            layout: Layout {
                dtype,
                elements,
                per_fragment: payload_bytes / size,
            },
            // With one rank nothing is divided, so that a NaN keeps its bits.
            divisor: (is_mean && ranks > 1).then_some(ranks),
        }
    }

    pub(crate) fn fragments(&self) -> u64 {
        let Layout {
            elements,
            per_fragment,
            ..
        } = self.layout;
        match &self.travel {
            Travel::Quantized(fixed) => fixed.fragments(),
            _ => elements.div_ceil(per_fragment) as u64,
        }
    }

    /// The type of data fragments.
    pub(crate) fn element(&self) -> Element {
        match self.travel {
            Travel::Bytes { .. } => Element::Scale,
            Travel::Plain => self.layout.dtype.element(),
            Travel::Widened => Element::F32,
            Travel::Quantized(_) => Element::I32,
        }
    }

    /// Writes our contribution to fragment `index`. Nothing in block fixed point leaves before
    /// `is_agreed` says that all ranks bring the same collective: sums of others might overflow.
    pub(crate) fn contribute(
        &mut self,
        index: u64,
        is_agreed: bool,
        buffer: &dyn Elements,
        tools: &mut Tools,
        payload: &mut [u8],
    ) -> Contribution {
        let layout = self.layout;
        match &mut self.travel {
            Travel::Bytes { root } if root.is_some_and(|it| it != tools.rank) => payload.fill(0),
            Travel::Bytes { .. } => {
                layout.copy(index, buffer, payload);
            }
            Travel::Plain => {
                let used = layout.copy(index, buffer, payload);
                let payload = &mut payload[..used];
                turn_round(layout.dtype, payload);
                let (at, _) = layout.range(index);
                if tools.add_parts(layout.dtype, buffer, at, payload) {
                    return Contribution::Overflow;
                }
            }
            Travel::Widened => {
                let floats = tools.load(layout.dtype, buffer, layout.range(index));
                let (used, rest) = payload.split_at_mut(size_of_val(floats));
                emit(floats, used, f32::to_le_bytes);
                rest.fill(0);
            }
            Travel::Quantized(fixed) => match fixed.part(index) {
                Part::Scales { group } => {
                    let kernels = tools.kernels;
                    fixed.write(group as usize, payload, |data| {
                        let floats = tools.load(layout.dtype, buffer, layout.range(data));
                        kernels.max_exponent(floats)
                    });
                    return Contribution::Ready(Element::Scale);
                }
                Part::Data { fragment } => {
                    let Some(scale) = fixed.scale(fragment, tools).filter(|_| is_agreed) else {
                        return Contribution::NotReady;
                    };
                    let kernels = tools.kernels;
                    let floats = tools.load(layout.dtype, buffer, layout.range(fragment));
                    let (used, rest) = payload.split_at_mut(size_of_val(floats));
                    kernels.quantize(floats, scale, used);
                    rest.fill(0);
                }
            },
        }
        Contribution::Ready(self.element())
    }

    /// Takes the result of fragment `index`.
    pub(crate) fn result(
        &mut self,
        index: u64,
        buffer: &mut dyn Elements,
        tools: &mut Tools,
        payload: &[u8],
    ) {
        let (layout, by) = (self.layout, self.divisor);
        let dtype = layout.dtype;
        match &mut self.travel {
            // It is what we sent, and the one rank that is here has it.
            Travel::Bytes { root } if *root == Some(tools.rank) && buffer.parts() == 1 => {}
            Travel::Bytes { .. } => {
                let (at, count) = layout.range(index);
                let size = dtype.bytes();
                buffer.write(at * size, &payload[..count * size]);
            }
            Travel::Plain => self.read_plain(index, buffer, tools, payload),
            Travel::Widened => {
                let (at, count) = layout.range(index);
                tools.widen(Dtype::F32, count, payload);
                tools.store(dtype, buffer, at, count, by);
            }
            Travel::Quantized(fixed) => match fixed.part(index) {
                Part::Scales { group } => fixed.agree(group as usize, payload),
                Part::Data { fragment } => {
                    let (at, count) = layout.range(fragment);
                    // There is one: a contribution was made with it.
                    if let Some(scale) = fixed.scale(fragment, tools) {
                        let sums = &payload[..count * ELEMENT_BYTES];
                        let floats = &mut tools.floats[..count];
                        tools.kernels.dequantize(sums, scale, floats);
                        tools.store(dtype, buffer, at, count, by);
                    }
                }
            },
        }
    }

    fn read_plain(&self, index: u64, buffer: &mut dyn Elements, tools: &mut Tools, payload: &[u8]) {
        let dtype = self.layout.dtype;
        let (at, count) = self.layout.range(index);
        let size = dtype.bytes();
        let payload = &payload[..count * size];
        if self.divisor.is_some() && !dtype.is_int() {
            tools.widen(dtype, count, payload);
            return tools.store(dtype, buffer, at, count, self.divisor);
        }
        if self.divisor.is_none() && !is_turned(dtype) {
            return buffer.write(at * size, payload);
        }
        let bytes = &mut tools.bytes[..payload.len()];
        bytes.copy_from_slice(payload);
        turn_round(dtype, bytes);
        if let Some(by) = self.divisor {
            divide(dtype, bytes, by);
        }
        buffer.write(at * size, bytes);
    }

    /// Whether results can be made again from the buffer, bit for bit.
    pub(crate) fn is_recoverable(&self) -> bool {
        match self.travel {
            Travel::Bytes { .. } => true,
            Travel::Plain => self.divisor.is_none(),
            Travel::Widened | Travel::Quantized(_) => false,
        }
    }

    /// Writes the result of fragment `index` as it came, if results
    /// [are recoverable](Self::is_recoverable).
    pub(crate) fn again(&self, index: u64, buffer: &dyn Elements, payload: &mut [u8]) -> Element {
        let used = self.layout.copy(index, buffer, payload);
        if matches!(self.travel, Travel::Plain) {
            turn_round(self.layout.dtype, &mut payload[..used]);
        }
        self.element()
    }
}
