//! An ordinary Ethernet switch: it learns addresses, and floods what it does not know.
//!
//! It stands for the switches of other makers between Tally's and their hosts: without claims,
//! limits, pins or queues by class. Written for the simulator alone, so that members behind one
//! port of a Tally switch do not depend on Tally's own forwarding.

use crate::address::Peer;
use crate::frame::Frame;
use crate::link::LinkConfig;
use crate::port::{Outside, Port};
use std::collections::BTreeMap;
use tally_engine::Frame as _;
use tally_engine::PortId;
use tally_wire::Mac;

/// An ordinary switch.
#[derive(Default)]
pub struct Bridge {
    /// By number.
    pub ports: Vec<Port>,
    macs: BTreeMap<[u8; 6], PortId>,
    /// Ports to members of groups; frames to other groups are flooded.
    groups: BTreeMap<[u8; 6], Vec<PortId>>,
    is_down: bool,
}

impl Bridge {
    /// Stops: addresses are forgotten, and frames are not received.
    pub fn stop(&mut self) {
        self.is_down = true;
        self.macs.clear();
    }

    /// Starts again.
    pub fn start(&mut self) {
        self.is_down = false;
    }

    pub(crate) fn add_port(&mut self, link: LinkConfig, peer: Peer) -> PortId {
        self.ports.push(Port::new(link, peer));
        PortId(self.ports.len() as u16 - 1)
    }

    /// Has frames to a group leave by this port, and by others that were named for it alone, as
    /// IGMP snooping does.
    pub fn join(&mut self, group: Mac, port: PortId) {
        self.groups.entry(group.0).or_default().push(port);
    }

    /// The ports by which a frame leaves.
    fn route(&mut self, ingress: PortId, frame: &[u8]) -> Vec<PortId> {
        let Some((to, rest)) = frame.split_first_chunk::<6>() else {
            return Vec::new();
        };
        let Some(from) = rest.first_chunk::<6>() else {
            return Vec::new();
        };
        if !Mac(*from).is_group() {
            self.macs.insert(*from, ingress);
        }
        if let Some(ports) = self.groups.get(to) {
            return ports
                .iter()
                .copied()
                .filter(|&port| port != ingress)
                .collect();
        }
        match self.macs.get(to).filter(|_| !Mac(*to).is_group()) {
            Some(&port) if port == ingress => Vec::new(),
            Some(&port) => vec![port],
            None => {
                let ports = (0..self.ports.len() as u16).map(PortId);
                ports.filter(|&port| port != ingress).collect()
            }
        }
    }

    /// Receives a frame that arrived on `port`, and sends it on at once.
    pub(crate) fn handle(&mut self, port: PortId, frame: &Frame, out: &mut Outside<'_>) {
        if self.is_down {
            return;
        }
        for to in self.route(port, frame.bytes()) {
            self.ports[usize::from(to.0)].send(frame.share(), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::HostId;
    use std::time::Duration;

    fn frame(to: u8, from: u8) -> Vec<u8> {
        [[to; 6], [from; 6]].concat()
    }

    #[test]
    fn it_learns_floods_and_forgets() {
        let mut bridge = Bridge::default();
        for host in 0..3 {
            let link = LinkConfig::new(100.0, Duration::ZERO);
            bridge.add_port(link, Peer::Host(HostId(host)));
        }
        let [a, b, c] = [0, 1, 2].map(PortId);
        assert_eq!(bridge.route(a, &frame(4, 2)), [b, c]);
        assert_eq!(bridge.route(b, &frame(2, 4)), [a]);
        assert_eq!(bridge.route(a, &frame(4, 2)), [b]);
        assert_eq!(bridge.route(b, &frame(4, 6)), [], "it is there already");
        assert_eq!(bridge.route(c, &frame(1, 2)), [a, b], "to a group");
        assert_eq!(bridge.route(b, &frame(2, 4)), [c], "it has moved");
        bridge.stop();
        bridge.start();
        assert_eq!(bridge.route(b, &frame(2, 4)), [a, c]);
        assert_eq!(bridge.route(b, &[0; 11]), []);
        bridge.join(Mac([1; 6]), a);
        bridge.join(Mac([1; 6]), c);
        assert_eq!(bridge.route(b, &frame(1, 4)), [a, c]);
        assert_eq!(bridge.route(a, &frame(1, 2)), [c], "not back");
        assert_eq!(bridge.route(a, &frame(3, 2)), [b, c], "to another group");
    }
}
