//! The exponents of a message in block fixed point (section 8 of PROTOCOL.md): ours, and those
//! agreed on.

use super::convert::Tools;
use tally_endpoint::stream::{FixedPoint, Part};
use tally_kernels::Scale;

/// What is known of a message's exponents.
pub(super) struct Fixed {
    order: FixedPoint,
    /// Our exponents, one for each data fragment; by group, when first asked for.
    own: Vec<u8>,
    own_known: Vec<bool>,
    /// The agreed ones.
    agreed: Vec<u8>,
    agreed_known: Vec<bool>,
}

impl Fixed {
    pub(super) fn new(elements: usize, payload_bytes: usize) -> Self {
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

    pub(super) fn fragments(&self) -> u64 {
        self.order.fragments()
    }

    pub(super) fn part(&self, index: u64) -> Part {
        self.order.at(index)
    }

    /// Writes our exponents of a group's data fragments, of which `exponent` gives one.
    pub(super) fn write(
        &mut self,
        group: usize,
        payload: &mut [u8],
        mut exponent: impl FnMut(u64) -> u8,
    ) {
        let start = group * payload.len();
        let end = self.own.len().min(start + payload.len());
        let own = &mut self.own[start..end];
        if !self.own_known[group] {
            for (own, data) in own.iter_mut().zip(start as u64..) {
                *own = exponent(data);
            }
            self.own_known[group] = true;
        }
        let (scales, rest) = payload.split_at_mut(own.len());
        scales.copy_from_slice(own);
        rest.fill(0);
    }

    /// Takes the agreed exponents of a group.
    pub(super) fn agree(&mut self, group: usize, payload: &[u8]) {
        let start = group * payload.len();
        let end = self.agreed.len().min(start + payload.len());
        self.agreed[start..end].copy_from_slice(&payload[..end - start]);
        self.agreed_known[group] = true;
    }

    /// The fixed point of a data fragment, once its group is agreed on.
    pub(super) fn scale(&self, data: u64, tools: &Tools) -> Option<Scale> {
        // A scale fragment has a byte for each data fragment of its group.
        let group = data as usize / tools.payload_bytes();
        self.agreed_known[group].then(|| tools.scales[usize::from(self.agreed[data as usize])])
    }
}
