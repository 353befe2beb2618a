//! The ordinary switch, without I/O: who may send what, and where it goes.
//!
//! [`Forwarding::classify`] takes one frame and says what to do with it. The drivers (data cores on
//! mbufs, the simulator, the fuzz target) carry that out. In this order:
//!
//! 1. *Claims* ([`claims`]): what looks like the switch's own traffic is dropped, behind tags of
//!    any kind too.
//! 2. *Answers*: ARP requests for the switch's address are answered, at a limited rate for each
//!    port.
//! 3. *Pins* ([`Pins`]): the MAC of a job's member belongs to the port that the member joined from.
//!    Frames with it from other ports are dropped, and frames to it never flood.
//! 4. *Route*: to the port behind which the destination was learnt ([`MacTable`]), else a flood.
//!    Floods are limited for each ingress port and [`FloodKind`], and a frame that comes back by
//!    another port is dropped ([`RecentFloods`]). So are frames to link-local groups (802.1D), and
//!    the loop guard's own [`probe`]s.
//!
//! A closed port ([`PortStates`]) takes no part: no frame from it or to it is forwarded.
//!
//! In a [fabric], addresses are learnt at places, not ports; where frames of a place go, and to
//! which switches floods, a table says. Frames from a dead link, or back to where they came from,
//! are dropped.
//!
//! A dropped frame teaches no address.
//!
//! A [`Forwarding`] belongs to one data core. Its clones share the tables, which are relaxed
//! atomics; pins are each core's own copy, changed by the same commands as its rosters.

pub mod claims;
pub mod fabric;
mod limit;
mod macs;
mod pins;
pub mod probe;
mod recent;
mod state;
#[cfg(test)]
mod tests;

pub use limit::RateLimit;
pub use macs::{ADDRESSES_MAX, MacTable, PortAddresses};
pub use pins::Pins;
pub use recent::RecentFloods;
pub use state::{FLOOD_KIND, FloodKind, FloodLimits, PortStates};

use crate::{DropReason, PortId, Roster};
use fabric::{Plan, Side, Table};
use std::net::Ipv4Addr;
use std::sync::Arc;
use tally_wire::fabric::ETHERTYPE_FABRIC;
use tally_wire::field::{self, ethernet};
use tally_wire::frame::{ETHERNET_BYTES, ETHERTYPE_ARP, FrameError};
use tally_wire::lldp::ETHERTYPE_LLDP;
use tally_wire::{JobId, Mac, Time, neighbour};

/// Limits of one port, and what the tables are made from.
#[derive(Clone, Debug)]
pub struct ForwardingConfig {
    /// The switch's MAC.
    pub mac: Mac,
    /// The switch's IPv4 address.
    pub ip: Ipv4Addr,
    /// Number of ports.
    pub ports: u16,
    /// Seconds of silence after which a MAC is forgotten.
    pub ageing_s: u32,
    /// MACs learnt at one port at most.
    pub addresses: u32,
    /// Frames from one port that are flooded in a second at most.
    pub floods_per_s: FloodLimits,
    /// Answers to ARP and ping to one port in a second at most; 0: no limit.
    pub answers_per_s: u32,
    /// Unpredictable, so that senders cannot choose addresses and frames that meet in the tables.
    pub seed: u64,
}

/// What to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is to the switch's own MAC.
    Local,
    /// It has become the answer to itself: send it back by its ingress port.
    Answer,
    /// Send it by this port.
    Forward(PortId),
    /// Send it by all ports but its ingress port.
    Flood,
}

/// Hosts that the switch speaks for, besides itself.
pub trait Proxy {
    /// Turns an ARP request for one of them into its answer, and says so with `true`. Not if it is
    /// known at a port that `hears` the request itself.
    fn answer_arp(&self, frame: &mut [u8], hears: &dyn Fn(PortId) -> bool) -> bool;

    /// The port of one of them that the table has forgotten.
    fn port_of(&self, mac: Mac) -> Option<PortId>;
}

/// None.
impl Proxy for () {
    fn answer_arp(&self, _: &mut [u8], _: &dyn Fn(PortId) -> bool) -> bool {
        false
    }

    fn port_of(&self, _: Mac) -> Option<PortId> {
        None
    }
}

/// What all cores share.
#[derive(Debug)]
struct Tables {
    macs: MacTable,
    recent: RecentFloods,
    ports: PortStates,
    /// By ingress port.
    answers: Box<[RateLimit]>,
}

/// The ordinary switch, as one data core has it.
#[derive(Clone, Debug)]
pub struct Forwarding {
    mac: Mac,
    ip: Ipv4Addr,
    tables: Arc<Tables>,
    pins: Pins,
    /// Where frames go in a fabric; without one, all ports are hosts'.
    fabric: Option<Arc<Table>>,
}

/// The place of all switches in [`RecentFloods`]: between two of them a frame may come by one link
/// and then by another.
const SWITCHES: PortId = PortId(u16::MAX);

impl Forwarding {
    /// Empty tables, and no pins.
    #[must_use]
    pub fn new(config: &ForwardingConfig) -> Self {
        Self::make(config, None)
    }

    /// Empty tables, and links that are all dead. A link may flood so much in a second.
    #[must_use]
    pub fn in_fabric(config: &ForwardingConfig, plan: &Plan, floods_per_s: FloodLimits) -> Self {
        Self::make(config, Some((plan, floods_per_s)))
    }

    fn make(config: &ForwardingConfig, fabric: Option<(&Plan, FloodLimits)>) -> Self {
        let mut ports = PortStates::new(config.ports, config.floods_per_s);
        if let Some((plan, floods_per_s)) = fabric {
            ports.lead_to_switches(plan.ports(), floods_per_s);
        }
        let places: Vec<_> = fabric.iter().flat_map(|(plan, _)| plan.places()).collect();
        let limits = |per_s| (0..config.ports).map(|_| RateLimit::new(per_s)).collect();
        Self {
            mac: config.mac,
            ip: config.ip,
            tables: Arc::new(Tables {
                macs: MacTable::in_fabric(config, &places),
                recent: RecentFloods::new(config.seed),
                ports,
                answers: limits(config.answers_per_s),
            }),
            pins: Pins::default(),
            fabric: fabric.map(|(plan, _)| Arc::new(Table::dead(plan))),
        }
    }

    /// Which MAC is behind which port.
    #[must_use]
    pub fn macs(&self) -> &MacTable {
        &self.tables.macs
    }

    /// What all cores share of each port.
    #[inline]
    #[must_use]
    pub fn ports(&self) -> &PortStates {
        &self.tables.ports
    }

    /// Forgets the addresses learnt at a port.
    pub fn forget(&self, port: PortId) {
        self.tables.macs.forget(port);
    }

    /// Pins the members of a job; those that it had before are released.
    pub fn bind(&mut self, roster: &Roster) {
        let fabric = self.fabric.as_deref();
        (self.pins).bind(roster, |port| fabric.map_or(port, |it| it.place(port)));
    }

    /// Takes another table of the fabric.
    pub fn set_fabric(&mut self, table: Arc<Table>) {
        self.fabric = Some(table);
    }

    /// Whether a flood from one port leaves by another.
    #[must_use]
    pub fn may_flood(&self, ingress: PortId, egress: PortId) -> bool {
        let fabric = self.fabric.as_deref();
        fabric.is_none_or(|it| it.may_flood(ingress, egress))
    }

    /// Learns what a switch below says: that a host was heard there `age_s` seconds ago. A newer
    /// place is left alone.
    pub fn learn_told(&self, now: Time, place: PortId, mac: Mac, age_s: u16) {
        let is_switch = |it: &Arc<Table>| it.is_switch(mac);
        if mac == self.mac || self.fabric.as_ref().is_some_and(is_switch) {
            return;
        }
        let now_s = seconds(now);
        let seen_s = now_s.saturating_sub(u32::from(age_s));
        self.tables.macs.learn_told(mac, place, now_s, seen_s);
    }

    /// The other ports at which a host may be known whose frames come by this one: from behind
    /// other switches each flow takes one of several ways.
    pub fn beside(&self, port: PortId) -> impl Iterator<Item = PortId> + '_ {
        let fabric = self.fabric.as_deref().into_iter();
        fabric.flat_map(move |fabric| fabric.beside(port))
    }

    /// Whether frames of a host that is known at the port `known` may come by `port`.
    #[inline]
    #[must_use]
    pub fn may_come(&self, known: PortId, port: PortId) -> bool {
        match &self.fabric {
            None => known == port,
            Some(fabric) => fabric.may_come(known, port),
        }
    }

    /// Whether a port leads to hosts, or to a switch that is heard.
    #[inline]
    #[must_use]
    pub fn is_live(&self, port: PortId) -> bool {
        (self.fabric.as_deref()).is_none_or(|fabric| fabric.is_live(port))
    }

    /// Whether a port leads to a switch.
    #[must_use]
    pub fn is_link(&self, port: PortId) -> bool {
        (self.fabric.as_deref()).is_some_and(|fabric| fabric.side(port) != Side::Hosts)
    }

    /// Whether the switch at the other end of a link has this MAC.
    #[must_use]
    pub fn is_neighbour(&self, port: PortId, mac: Mac) -> bool {
        (self.fabric.as_deref()).is_some_and(|fabric| fabric.is_neighbour(port, mac))
    }

    /// Refuses the frame of a host that claims to be a switch of the fabric.
    #[inline]
    fn check_switch(&self, port: PortId, source: Mac) -> Result<(), DropReason> {
        match &self.fabric {
            Some(fabric) if fabric.side(port) == Side::Hosts && fabric.is_switch(source) => {
                Err(DropReason::SpoofedSwitch)
            }
            _ => Ok(()),
        }
    }

    /// Whether a member, if `source` is one, may be behind this port.
    #[inline]
    fn may_be_behind(&self, port: PortId, source: Mac) -> bool {
        (self.pins).allow(source, |pin| self.may_come(pin, port))
    }

    /// Notes that a frame from `source` came by a port.
    #[inline]
    pub(crate) fn learn(&self, now_s: u32, port: PortId, source: Mac) {
        let macs = &self.tables.macs;
        match &self.fabric {
            None => macs.learn(source, port, now_s),
            Some(fabric) => {
                if fabric.learns(port, source, || macs.port_of(source, now_s)) {
                    macs.learn(source, fabric.place(port), now_s);
                }
            }
        }
    }

    /// Releases the members of a job.
    pub fn unbind(&mut self, job: JobId) {
        self.pins.unbind(job);
    }

    /// Whether a frame is to the switch's own MAC.
    ///
    /// # Errors
    /// If it has no Ethernet header, or the switch's own MAC as its source.
    #[inline]
    pub fn is_local(&self, frame: &[u8]) -> Result<bool, DropReason> {
        let header: &[u8; ETHERNET_BYTES] = frame.first_chunk().ok_or(DropReason::Truncated)?;
        if field::mac(header, ethernet::SRC) == self.mac {
            return Err(DropReason::SpoofedSwitch);
        }
        Ok(field::mac(header, ethernet::DST) == self.mac)
    }

    /// Decides on a frame from `port`.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn classify(
        &self,
        now: Time,
        port: PortId,
        frame: &mut [u8],
        proxy: &impl Proxy,
    ) -> Result<Verdict, DropReason> {
        if self.is_local(frame)? {
            return Ok(Verdict::Local);
        }
        self.classify_transit(now, port, frame, proxy)
    }

    /// Decides on a frame from `port` that is not [local](Self::is_local).
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub fn classify_transit(
        &self,
        now: Time,
        port: PortId,
        frame: &mut [u8],
        proxy: &impl Proxy,
    ) -> Result<Verdict, DropReason> {
        let header: &[u8; ETHERNET_BYTES] = frame.first_chunk().ok_or(DropReason::Truncated)?;
        let (destination, source) = (
            field::mac(header, ethernet::DST),
            field::mac(header, ethernet::SRC),
        );
        let inside = claims::check(frame, self.mac, self.ip)?;
        self.check_switch(port, source)?;
        let answers = |frame: &mut [u8]| {
            let fabric = self.fabric.as_ref();
            neighbour::answer_arp(frame, self.mac, self.ip)
                || proxy.answer_arp(frame, &|known| self.may_come(known, port))
                || fabric.is_some_and(|it| it.side(port) == Side::Hosts && it.answer_arp(frame))
        };
        if inside.ethertype == ETHERTYPE_ARP && answers(frame) {
            self.admit_answer(now, port)?;
            self.learn_if_allowed(now, port, source);
            return Ok(Verdict::Answer);
        }
        if !self.may_be_behind(port, source) {
            return Err(DropReason::ClaimsMember);
        }
        let now_s = seconds(now);
        let to = self.way_to(now_s, port, destination, frame, proxy)?;
        if to.is_none() {
            self.admit_flood(now, port, destination, frame)?;
        }
        self.learn(now_s, port, source);
        match to {
            Some(to) if to == port => Err(DropReason::Reflection),
            Some(to) if self.tables.ports.is_closed(to) => Err(DropReason::PortClosed),
            Some(to) => Ok(Verdict::Forward(to)),
            None => Ok(Verdict::Flood),
        }
    }

    /// The port by which a frame from `port` leaves, closed or not; `None`: it is flooded.
    #[inline]
    fn way_to(
        &self,
        now_s: u32,
        port: PortId,
        destination: Mac,
        frame: &[u8],
        proxy: &impl Proxy,
    ) -> Result<Option<PortId>, DropReason> {
        let place = if destination.is_group() {
            None
        } else {
            let known = self.pins.port_of(destination);
            let known = known.or_else(|| self.tables.macs.port_of(destination, now_s));
            known.or_else(|| proxy.port_of(destination))
        };
        let Some(fabric) = &self.fabric else {
            return Ok(place);
        };
        if !fabric.is_live(port) && !is_link_local(destination) {
            return Err(DropReason::FabricLink);
        }
        fabric.route(port, place, frame)
    }

    /// As [`classify_transit`](Self::classify_transit), of an IPv4 frame with the headers of one
    /// that it forwarded from this port, if it still forwards them to one port. Else nothing is
    /// done.
    #[inline]
    #[must_use]
    pub fn forwards_again(&self, now: Time, port: PortId, frame: &[u8]) -> Option<PortId> {
        let header: &[u8; ETHERNET_BYTES] = frame.first_chunk()?;
        let (destination, source) = (
            field::mac(header, ethernet::DST),
            field::mac(header, ethernet::SRC),
        );
        self.check_switch(port, source).ok()?;
        if !self.may_be_behind(port, source) {
            return None;
        }
        let now_s = seconds(now);
        let to = self.way_to(now_s, port, destination, frame, &()).ok()??;
        if to == port || self.tables.ports.is_closed(to) {
            return None;
        }
        self.learn(now_s, port, source);
        Some(to)
    }

    /// Turns a frame to the switch's MAC, in which `found` is not as Tally's datagrams are, into
    /// its answer: an ARP or ICMP echo request. It is to be sent back by `port`.
    ///
    /// # Errors
    /// Why it is dropped: `found`, if it is neither.
    pub fn answer(
        &self,
        now: Time,
        port: PortId,
        frame: &mut [u8],
        found: FrameError,
    ) -> Result<(), DropReason> {
        let header: &[u8; ETHERNET_BYTES] = frame.first_chunk().ok_or(DropReason::Truncated)?;
        let source = field::mac(header, ethernet::SRC);
        self.check_switch(port, source)?;
        let is_answered = match found {
            FrameError::NotIpv4 => neighbour::answer_arp(frame, self.mac, self.ip),
            FrameError::NotUdp => neighbour::answer_echo(frame, self.mac, self.ip),
            _ => false,
        };
        if !is_answered {
            return Err(found.into());
        }
        self.admit_answer(now, port)?;
        self.learn_if_allowed(now, port, source);
        Ok(())
    }

    /// Learns who asked the switch. A member that has moved to another port is answered there too:
    /// its JOIN moves the pin.
    fn learn_if_allowed(&self, now: Time, port: PortId, source: Mac) {
        if self.may_be_behind(port, source) {
            self.learn(seconds(now), port, source);
        }
    }

    fn admit_answer(&self, now: Time, port: PortId) -> Result<(), DropReason> {
        if self.tables.answers[usize::from(port.0)].take(now) {
            Ok(())
        } else {
            Err(DropReason::AnswerLimit)
        }
    }

    /// Counts against the limit the frames that a flooded superframe to `destination` has beyond
    /// one.
    ///
    /// # Errors
    /// If they exceed the limit of their port.
    pub fn admit_more_floods(
        &self,
        now: Time,
        port: PortId,
        destination: Mac,
        more: u32,
    ) -> Result<(), DropReason> {
        if more == 0 {
            return Ok(());
        }
        (self.tables.ports).admit(now, port, FloodKind::of(destination), more)
    }

    fn admit_flood(
        &self,
        now: Time,
        port: PortId,
        destination: Mac,
        frame: &[u8],
    ) -> Result<(), DropReason> {
        let Tables { recent, ports, .. } = &*self.tables;
        if destination == probe::PROBE_MAC && ports.probes.note(port, frame) {
            return Err(DropReason::LoopProbe);
        }
        if is_link_local(destination) {
            match field::be16(frame, ethernet::ETHERTYPE) {
                ETHERTYPE_LLDP => ports.receive_lldp(port, frame),
                ETHERTYPE_FABRIC => ports.receive_fabric(port, frame),
                _ => {}
            }
            return Err(DropReason::LinkLocal);
        }
        let fabric = self.fabric.as_ref();
        let from = match fabric.is_some_and(|it| it.side(port) != Side::Hosts) {
            true => SWITCHES,
            false => port,
        };
        if recent.is_back(now, from, frame) {
            return Err(DropReason::Loop);
        }
        ports.admit(now, port, FloodKind::of(destination), 1)?;
        recent.note(now, from, frame);
        Ok(())
    }

    /// Decides on a frame of a closed port: it is dropped. The loop guard wants to see its probes.
    #[cold]
    pub fn classify_closed(&self, port: PortId, frame: &[u8]) -> DropReason {
        let is_probe = frame.starts_with(&probe::PROBE_MAC.0);
        if is_probe && self.tables.ports.probes.note(port, frame) {
            DropReason::LoopProbe
        } else {
            DropReason::PortClosed
        }
    }
}

/// Whether bridges keep frames to this group to the link (IEEE 802.1D, table 7-10). The first of
/// the sixteen is spanning tree's: a switch without it passes such frames, so that others see
/// through it.
fn is_link_local(destination: Mac) -> bool {
    let [prefix @ .., last] = destination.0;
    prefix == [1, 0x80, 0xc2, 0, 0] && (1..16).contains(&last)
}

fn seconds(now: Time) -> u32 {
    (now.0 / 1_000_000_000) as u32
}
