//! Worlds of two switches, joined by a trunk.
//!
//! The second switch is one of two kinds.
//!
//! * *Tally's*: it sums jobs of its own, and forwards between the first switch and the hosts behind
//!   it. Parameter servers and SwitchML's clients are on either side of the trunk. Workers are at
//!   their own switch: results to a job's group do not pass another Tally switch (ADR 22).
//! * *Ordinary* ([`Bridge`](crate::bridge::Bridge)): workers, too, are behind it, many behind one
//!   port of the switch that sums.
//!
//! The hostile host is at the first switch. Through the trunk its frames reach the second one, from
//! the port that members of the second switch share with it.

use super::claims::Sight;
use super::data::Contributor;
use super::findings::{Checker, Findings};
use super::options::fabric::{FAR, FabricOptions, Kind, NEAR};
use crate::address::{Address, HostId, Node, Place, SwitchId};
use crate::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ip_at, word};
use crate::frame::{Frame, Origin};
use crate::link::{Link, LinkConfig};
use crate::switch::{SwitchConfig, Transit};
use crate::world::World;
use std::collections::BTreeMap;
use tally_engine::forwarding::Verdict;
use tally_engine::{DropReason, PortId};
use tally_wire::Time;

/// Frames lost while a trunk is bad.
const BAD_TRUNK_PPM: u32 = 100_000;

/// The second switch of a world.
pub struct Fabric {
    options: FabricOptions,
    /// The second switch.
    pub far: Node,
    /// The trunk's port at the first switch, and at the second.
    ports: [PortId; 2],
    /// By switch of Tally's and MAC, the port behind which a host or a switch is.
    truth: BTreeMap<(SwitchId, [u8; 6]), PortId>,
    /// By host, whether it is at [`FAR`].
    at_far: Vec<bool>,
    /// By host, whether it is behind the trunk, as the first switch sees it.
    behind_trunk: Vec<bool>,
    /// Whether no frame claims another's address.
    is_honest: bool,
}

impl Fabric {
    /// Adds the second switch; `config` is its, if it is Tally's.
    pub fn new(
        world: &mut World<Contributor>,
        options: &FabricOptions,
        link: LinkConfig,
        config: impl FnOnce() -> SwitchConfig,
    ) -> Self {
        let far = match options.kind {
            Kind::Tally => world.add_switch(config()).into(),
            Kind::Ordinary => world.add_bridge().into(),
        };
        let trunk = |faults| LinkConfig {
            delay: options.delay,
            faults,
            ..link
        };
        let [to_far, to_near] = options.faults;
        let (near_port, far_port) = world.add_trunk(NEAR, far, trunk(to_far), trunk(to_near));
        Self {
            options: options.clone(),
            far,
            ports: [near_port, far_port],
            truth: BTreeMap::new(),
            at_far: Vec::new(),
            behind_trunk: Vec::new(),
            is_honest: false,
        }
    }

    /// The switch that a host is connected to.
    pub const fn node(&self, is_far: bool) -> Node {
        if is_far { self.far } else { Node::Switch(NEAR) }
    }

    /// Notes where all hosts are, once they are connected.
    pub fn survey(&mut self, world: &World<Contributor>, is_honest: bool) {
        self.is_honest = is_honest;
        self.at_far = world.hosts.iter().map(|h| h.at.0 == FAR.into()).collect();
        self.behind_trunk = world.hosts.iter().map(|h| h.at.0 == self.far).collect();
        for (switch, &trunk) in [NEAR, FAR].into_iter().zip(&self.ports) {
            for host in &world.hosts {
                let (node, port) = host.at;
                let port = if node == switch.into() { port } else { trunk };
                let mac = Address {
                    host: host.id,
                    udp_port: 0,
                }
                .mac();
                self.truth.insert((switch, mac.0), port);
            }
            let other = SwitchId(1 - switch.0);
            self.truth.insert((switch, other.mac().0), trunk);
        }
    }

    /// A host is where it was not: frames to it may go either way.
    pub fn moved(&mut self, host: HostId) {
        let mac = Address { host, udp_port: 0 }.mac();
        self.truth.retain(|(_, known), _| *known != mac.0);
    }

    /// Has nothing arrive over the trunk until then.
    pub fn cut(&self, world: &mut World<Contributor>, until: Time) {
        self.change(world, |link| link.cut_until = until);
    }

    /// Changes both directions of the trunk.
    pub fn change(&self, world: &mut World<Contributor>, change: impl Fn(&mut Link)) {
        world.change_trunk(NEAR.into(), self.ports[0], change);
    }

    /// Has the trunk lose frames.
    pub fn harm(&self, world: &mut World<Contributor>) {
        self.change(world, |link| {
            let faults = &mut link.config.faults;
            faults.loss_ppm = faults.loss_ppm.max(BAD_TRUNK_PPM);
        });
    }

    /// Has the trunk lose no more frames than at the start.
    pub fn heal(&self, world: &mut World<Contributor>) {
        let nodes = [Node::Switch(NEAR), self.far];
        for ((node, port), faults) in nodes.into_iter().zip(self.ports).zip(self.options.faults) {
            world.link(node, port).config.faults = faults;
        }
    }

    /// Frames that left by the trunk in either direction.
    #[must_use]
    pub fn frames(&self, world: &World<Contributor>) -> u64 {
        let nodes = [Node::Switch(NEAR), self.far].into_iter().zip(self.ports);
        let frames =
            |(node, port): (_, PortId)| world.ports(node)[usize::from(port.0)].link.stats.frames;
        nodes.map(frames).sum()
    }

    /// How a switch sees the hostile host, and which of its ports many hosts share.
    #[must_use]
    pub fn sight(&self, switch: SwitchId, forger: PortId) -> Sight {
        let trunk = self.ports[usize::from(switch.0)];
        Sight {
            hostile: if switch == NEAR { forger } else { trunk },
            shared: Some(trunk),
        }
    }

    /// The switch whose addresses a host must be spared, besides the first one.
    #[must_use]
    pub fn switch_of(&self, host: HostId) -> SwitchId {
        let at_far = self.at_far.get(usize::from(host.0));
        if at_far == Some(&true) { FAR } else { NEAR }
    }

    /// Looks at a frame that has come over the trunk: it was made on the other side.
    pub fn look_at_trunk(&self, findings: &Findings, place: Place, frame: &Frame) {
        let Place::Switch(switch, port) = place else {
            return;
        };
        if self.ports.get(usize::from(switch.0)) != Some(&port) {
            return;
        }
        let is_far = match frame.origin() {
            Origin::Host(host) => self.behind_trunk[usize::from(host.0)],
            Origin::Switch(maker) => maker == FAR,
            // The hostile host sends at members' cables, too.
            Origin::Forger | Origin::Planted => return,
        };
        findings.require(is_far == (switch == NEAR), Checker::Forwarding, || {
            let origin = frame.origin();
            format!("a frame of {origin:?} came back over the trunk to {place}")
        });
    }

    /// Looks at what a switch decided on a frame between others: unless a frame lies, it goes to
    /// where its destination is, and is dropped only beyond the limit of floods.
    pub fn look_at_transit(&self, findings: &Findings, switch: SwitchId, transit: &Transit) {
        if !self.is_honest {
            return;
        }
        let known = self.truth.get(&(switch, transit.destination.0));
        let right = match transit.verdict {
            Ok(Verdict::Forward(to)) => known.is_none_or(|&port| port == to),
            Ok(Verdict::Flood | Verdict::Answer)
            | Err(
                DropReason::StormBroadcast | DropReason::StormMulticast | DropReason::StormUnknown,
            ) => true,
            // A host that moves and says the same again within half a second.
            Err(DropReason::Loop) if !self.truth.contains_key(&(switch, transit.source.0)) => true,
            Ok(Verdict::Local) | Err(_) => known.is_none(),
        };
        findings.require(right, Checker::Forwarding, || {
            let s = switch.0;
            format!("switch {s} did not forward a frame to port {known:?}: {transit:?}")
        });
    }
}

/// Looks at a frame that a switch made: it has that switch's addresses alone.
pub fn look_at_maker(findings: &Findings, place: Place, frame: &Frame) {
    let Origin::Switch(maker) = frame.origin() else {
        return;
    };
    let other = SwitchId(1 - maker.0);
    let bytes = frame.bytes();
    let source_at = match word(bytes, 12) {
        Some(ETHERTYPE_IPV4) => 14 + 12,
        Some(ETHERTYPE_ARP) => 14 + 14,
        _ => return,
    };
    let is_other =
        bytes.get(6..12) == Some(&other.mac().0) || ip_at(bytes, source_at) == Some(other.ip());
    findings.require(!is_other, Checker::Forwarding, || {
        let (maker, other) = (maker.0, other.0);
        format!("switch {maker} answered for switch {other}: its frame came to {place}")
    });
}
