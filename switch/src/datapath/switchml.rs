//! SwitchML's frames on a data core.
//!
//! What is to the switch's IPv4 address and one of their UDP ports comes here, whatever its Ethernet address, which
//! is each worker's secret; and before anybody has looked at what the
//! port's hardware says of its checksums: the published clients leave them to a NIC of their own, so a frame that
//! went through none has wrong ones. The slot says whose shard it is. What its engine keeps is the received frame
//! without its headers, which it needs no more: each reply has its own
//! ([`Elements`](crate::egress::Elements)).

use super::Core;
use crate::egress::{Elements, Ports};
use crate::forwarding::MacTable;
use crate::members::{Members, Whereabouts};
use std::sync::Arc;
use std::time::Duration;
use tally_dpdk::Mbuf;
use tally_engine::switchml::{
    Arrival, Route, Seat, Session, SessionId, SessionStatus, Station, Switchml, SwitchmlConfig,
    SwitchmlCounters,
};
use tally_engine::{DropReason, PortId};
use tally_kernels::Kernels;
use tally_wire::frame::{ETHERTYPE_IPV4, UDP_END};
use tally_wire::switchml::{HEADERS_BYTES, Header, is_port};
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
    pub fn bind(
        &mut self,
        session: &Arc<Session>,
        whereabouts: Arc<Whereabouts>,
        out: &mut Ports,
    ) -> bool {
        let bound = self.engine.bind(Arc::clone(session), out);
        if bound {
            self.members.bind(session, whereabouts);
            // Of the new session nobody has been seen.
            self.seen.fill((Mac::default(), 0));
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

    /// Notes where a member is, if it is not somewhere else. Its frames come in trains, so mostly this is known.
    #[inline]
    fn notice(
        &mut self,
        seat: Seat,
        mac: Mac,
        port: PortId,
        now_s: u32,
        macs: &MacTable,
    ) -> Result<(), DropReason> {
        let at = usize::from(port.0);
        if self.seen[at] == (mac, now_s) {
            return Ok(());
        }
        let id = self.engine.session_of(seat);
        let known = id.and_then(|id| self.members.spoke(id, seat.rank(), port));
        if let Some(first) = known.filter(|&first| first != port) {
            self.engine.note_conflict(seat, [first, port]);
            return Err(DropReason::SwitchmlPort);
        }
        self.seen[at] = (mac, now_s);
        macs.learn(mac, port, now_s);
        Ok(())
    }
}

impl Core {
    /// Members of SwitchML's sessions, if the switch has that.
    pub(crate) fn switchml_members(&self) -> Option<&Members> {
        self.switchml.as_ref().map(|dialect| &dialect.members)
    }

    /// Sends a frame on all ports but its ingress port and those that SwitchML's members are spared at.
    pub(crate) fn flood(&mut self, port: PortId, mbuf: Mbuf) {
        let dialect = self.switchml.as_mut();
        let spared = dialect.map_or(&[][..], |dialect| dialect.members.spared());
        self.ports.flood(port, &mbuf, spared);
        self.ports.recycle(mbuf);
    }

    /// Whether a frame goes to the switch's IPv4 address and one of SwitchML's ports: it is never forwarded, not
    /// even after its session, because its Ethernet address is a secret.
    #[inline]
    pub(super) fn is_of_switchml(&self, frame: &[u8]) -> bool {
        if self.switchml.is_none() {
            return false;
        }
        frame.first_chunk::<UDP_END>().is_some_and(|b| {
            b[12..14] == ETHERTYPE_IPV4.to_be_bytes()
                && b[30..34] == self.own.ip.octets()
                && is_port(u16::from_be_bytes([b[36], b[37]]))
        })
    }

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
        let from = Station {
            mac: addresses.src_mac,
            ip: addresses.src_ip,
        };
        let to = addresses.dst_mac;
        let seat = dialect
            .engine
            .admit(&Route { from, to }, &header)
            .inspect_err(|&reason| {
                if reason == DropReason::SwitchmlForged {
                    dialect.engine.note_forged(from, port);
                }
            })?;
        dialect.notice(seat, from.mac, port, now_s, self.forwarding.macs())?;
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
        let (now, elements) = (self.ports.now, Elements(mbuf));
        dialect
            .engine
            .handle(now, seat, &arrival, &header, elements, &mut self.ports);
        Ok(())
    }
}
