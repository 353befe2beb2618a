//! Frames of a card's, on their way to members.

use super::Ports;
use crate::steering::ports_of;
use tally_dpdk::Mbuf;
use tally_engine::PortId;
use tally_wire::frame::mark;

impl Ports {
    /// Has nothing flooded to this port from now on.
    pub fn set_card(&mut self, port: PortId) {
        self.card = Some(port);
    }

    /// Sends a frame on the ports of a mask, marked as a result of this switch's own would be.
    pub fn distribute(&mut self, mask: u16, class: usize, mut mbuf: Mbuf) {
        let known = u32::try_from(self.ways.len()).unwrap_or(u32::MAX);
        let mask = mask
            & 1_u16
                .checked_shl(known)
                .map_or(u16::MAX, |end| end.wrapping_sub(1));
        if mask.is_power_of_two() {
            self.enqueue(PortId(mask.trailing_zeros() as u16), class, mbuf);
            return;
        }
        let mut long = false;
        if self.any_waits {
            // Each counts its own mark.
            for port in ports_of(mask) {
                long |= self.is_long(&[port], class);
            }
        }
        if long && let Some(frame) = mbuf.data_mut() {
            mark(frame);
        }
        let mut shares = mbuf.share_many(mask.count_ones() as u16);
        for port in ports_of(mask) {
            let Some(share) = shares.next() else { break };
            self.enqueue(port, class, share);
        }
        drop(shares);
        self.recycle(mbuf);
    }

    /// Gives up what waits for a port.
    pub fn purge(&mut self, port: PortId) {
        let super::Way::Own(line) = &mut self.ways[usize::from(port.0)] else {
            return;
        };
        let mut waiting = std::mem::take(&mut line.stage);
        while let Some(mbuf) = line.queue.pop() {
            waiting.push(mbuf);
        }
        tally_dpdk::free_bulk(&mut waiting);
        waiting.shrink_to(super::STAGE_FRAMES);
        line.stage = waiting;
    }
}
