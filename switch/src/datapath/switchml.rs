//! SwitchML's frames on a data core.
//!
//! What is to the switch's address and one of their UDP ports comes here before anybody has looked at what the
//! port's hardware says of its checksums: the published clients leave them to a NIC of their own, so a frame that
//! went through none has wrong ones. The slot says whose shard it is. What its engine keeps is the received frame
//! without its headers, which it needs no more: each reply has its own
//! ([`Elements`](crate::egress::Elements)).

use super::Core;
use crate::egress::{Elements, Ports};
use crate::forwarding::MacTable;
use crate::members::Members;
use std::sync::Arc;
use std::time::Duration;
use tally_dpdk::Mbuf;
use tally_engine::switchml::{
    Arrival, Session, SessionId, SessionStatus, Switchml, SwitchmlConfig, SwitchmlCounters,
};
use tally_engine::{DropReason, PortId};
use tally_kernels::Kernels;
use tally_wire::switchml::{HEADERS_BYTES, Header};
use tally_wire::{Mac, Time, UdpFrame};

/// Where an IPv4 header has its type of service.
const TOS_AT: usize = 15;

/// What a data core has for SwitchML.
pub struct Dialect {
    engine: Switchml<Elements>,
    /// All members, those of other shards too.
    pub(super) members: Members,
    /// By port, who sent its last frame, and the second.
    seen: Vec<(Mac, u32)>,
}

impl Dialect {
    /// Without sessions, for a switch of so many ports.
    #[must_use]
    pub fn new(config: SwitchmlConfig, kernels: Kernels, ports: usize) -> Self {
        Self {
            engine: Switchml::new(config, kernels),
            members: Members::new(ports),
            seen: vec![(Mac::default(), 0); ports],
        }
    }

    /// From now on nothing is flooded to this port.
    pub fn set_quiet(&mut self, port: PortId) {
        self.members.set_quiet(port);
    }

    /// Begins a session; says whether there is room for it.
    pub fn bind(&mut self, session: &Arc<Session>, out: &mut Ports) -> bool {
        let bound = self.engine.bind(Arc::clone(session), out);
        if bound {
            self.members.bind(session);
        }
        bound
    }

    /// Ends a session.
    pub fn unbind(&mut self, id: SessionId, out: &mut Ports) {
        self.engine.unbind(id, out);
        self.members.unbind(id);
    }

    /// How its sessions are; with `age`, also which of their ranks others have waited for, longer than that.
    #[must_use]
    pub fn sessions(&self, now: Time, age: Option<Duration>) -> Vec<SessionStatus> {
        self.engine.sessions(now, age)
    }

    /// What it did.
    #[must_use]
    pub fn counters(&self) -> &SwitchmlCounters {
        self.engine.counters()
    }

    /// Frames that its slots keep now.
    #[must_use]
    pub fn held_in_use(&self) -> u32 {
        self.engine.held_in_use()
    }

    /// Notes where a member is. Its frames come in trains, so mostly this is known.
    #[inline]
    fn notice(&mut self, mac: Mac, port: PortId, now_s: u32, macs: &MacTable) {
        let seen = &mut self.seen[usize::from(port.0)];
        if *seen != (mac, now_s) {
            *seen = (mac, now_s);
            macs.learn(mac, port, now_s);
        }
    }
}

impl Core {
    /// A frame to the switch's address and a UDP port of SwitchML's.
    #[inline(never)]
    pub(super) fn take_switchml(
        &mut self,
        port: PortId,
        mut mbuf: Mbuf,
        udp: &UdpFrame,
        now_s: u32,
    ) -> Result<(), DropReason> {
        let Some(dialect) = &mut self.switchml else {
            return Err(DropReason::UdpPort);
        };
        let addresses = &udp.addresses;
        if addresses.src_ip == self.own.ip {
            return Err(DropReason::SpoofedSwitch);
        }
        let header = Header::parse(udp.datagram(mbuf.data()))?;
        let shard = dialect.engine.shard_of(&header);
        if shard != self.number {
            self.ports.hand_over(shard, port, mbuf);
            return Ok(());
        }
        let from = (addresses.src_mac, addresses.src_ip);
        let seat = dialect.engine.admit(from, &header)?;
        let arrival = Arrival {
            port,
            udp_port: addresses.src_port,
            own_port: addresses.dst_port,
            tos: mbuf.data()[TOS_AT],
        };
        // Padding would be sent on with the result. Only of a frame that nobody shares the length can be set.
        let frame_bytes = HEADERS_BYTES + header.size.payload_bytes();
        if !mbuf.set_len(frame_bytes) || !mbuf.adj(HEADERS_BYTES) {
            return Err(DropReason::Length);
        }
        dialect.notice(addresses.src_mac, port, now_s, &self.macs);
        let (now, elements) = (self.ports.now, Elements(mbuf));
        dialect
            .engine
            .handle(now, seat, &arrival, &header, elements, &mut self.ports);
        Ok(())
    }
}
