//! A hostile host below the first switch: it sends results as its switch's parent does, with tags
//! that were seen elsewhere. Only the port tells them from the parent's.

use super::TreeScenario;
use crate::address::{Address, SwitchId};
use crate::check::data::Contributor;
use crate::frame::{Frame, Origin};
use crate::world::World;
use tally_wire::frame::group_of;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Addresses, DEFAULT_PORT, Kind, Mac};

/// Results that are remembered.
const HEARD: usize = 4;

impl TreeScenario {
    /// Takes note of a result that a switch has sent somewhere.
    pub(super) fn overhear(&mut self, frame: &Frame) {
        if self.spy.is_none() || self.options.base.forged_per_s == 0 {
            return;
        }
        let is_result = frame.tally().is_some_and(|(it, _)| it.kind == Kind::Result);
        if is_result && matches!(frame.origin(), Origin::Switch(_)) {
            if self.heard.len() == HEARD {
                self.heard.pop_front();
            }
            self.heard.push_back(frame.copied());
        }
    }

    /// Sends such a result, with other elements, as the parent of the spy's switch.
    pub(super) fn forge_parent(&mut self, world: &mut World<Contributor>) {
        let Some((spy, switch)) = self.spy else {
            return;
        };
        let (Some(parent), Some(frame)) = (self.options.above[switch], self.heard.back()) else {
            return;
        };
        let Some((header, datagram)) = frame.tally() else {
            return;
        };
        let mut datagram = datagram.to_vec();
        datagram[HEADER_BYTES..].fill(0xee);
        let group = group_of(header.job);
        let from = Address {
            host: SwitchId(parent as u16).host(),
            udp_port: DEFAULT_PORT,
        };
        let addresses = Addresses {
            dst_mac: Mac::of_group(group),
            dst_ip: group,
            ..from.to_switch(SwitchId(switch as u16), DEFAULT_PORT)
        };
        world.inject(spy, &addresses, &datagram);
    }
}
