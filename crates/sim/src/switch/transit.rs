//! Whole Ethernet frames at the switch: the engine's forwarding decides, this carries it out, as
//! `switch/src/forwarding.rs` does with mbufs.

use super::{Destination, Frame, Outside, SWITCH_HOST, SWITCH_IP, SWITCH_MAC, Switch, Way};
use crate::frame::Address;
use tally_engine::forwarding::Verdict;
use tally_engine::queue::class_of;
use tally_engine::{DropReason, Forwarding, ForwardingConfig, Member, PortId};
use tally_wire::frame::{ETHERNET_BYTES, UDP_END};
use tally_wire::{Mac, UdpFrame};

/// A decision on a whole frame, for checkers.
#[derive(Clone, Copy, Debug)]
pub struct Transit {
    /// The port it came from.
    pub ingress: PortId,
    /// Its Ethernet destination.
    pub destination: Mac,
    /// Its Ethernet source.
    pub source: Mac,
    /// The port of the bound member with its source address.
    pub source_port: Option<PortId>,
    /// The port of the bound member with its destination address.
    pub destination_port: Option<PortId>,
    /// The decision.
    pub verdict: Result<Verdict, DropReason>,
}

/// The UDP port that a whole frame without tags goes to.
pub(super) fn udp_port(frame: &[u8]) -> Option<u16> {
    Some(UdpFrame::parse(frame).ok()?.addresses.dst_port)
}

fn mac_at(frame: &[u8], at: usize) -> Mac {
    let bytes = frame.get(at..).and_then(<[u8]>::first_chunk);
    Mac(bytes.copied().unwrap_or_default())
}

/// The queue of a frame in transit: that of its IPv4 type of service.
fn class_of_frame(frame: &[u8]) -> usize {
    match frame.get(12..16) {
        Some(&[8, 0, _, tos]) => class_of(tos),
        _ => 0,
    }
}

impl Switch {
    /// The ordinary switch. It is made for the first frame, when all ports are there.
    fn forwarding(&mut self) -> &Forwarding {
        let ports = self.ports.len() as u16;
        let config = &self.config.forwarding;
        self.forwarding.get_or_insert_with(|| {
            Forwarding::new(&ForwardingConfig {
                ports,
                ..config.clone()
            })
        })
    }

    /// Whether a frame of which only the datagram is simulated is to the switch's MAC.
    pub(super) fn is_local(&mut self, frame: &Frame) -> Result<bool, DropReason> {
        let mut header = [0; ETHERNET_BYTES];
        if matches!(frame.to, Destination::Switch(_)) {
            header[..6].copy_from_slice(&SWITCH_MAC.0);
        }
        header[6..12].copy_from_slice(&frame.from.mac().0);
        self.forwarding().is_local(&header)
    }

    /// Decides on a whole frame.
    pub(super) fn take_whole(
        &mut self,
        core: usize,
        port: PortId,
        mut frame: Frame,
        out: &mut Outside<'_>,
    ) {
        let now = out.now;
        let bytes = frame.body_mut().datagram_mut();
        let (destination, source) = (mac_at(bytes, 0), mac_at(bytes, 6));
        let forwarding = self.forwarding();
        let verdict = match forwarding.is_local(bytes) {
            Ok(true) => match UdpFrame::parse(bytes) {
                Ok(udp) => return self.take_whole_local(core, port, &udp, frame, out),
                Err(found) => {
                    let answer = forwarding.answer(now, port, bytes, found);
                    answer.map(|()| Verdict::Answer)
                }
            },
            Ok(false) => forwarding.classify_transit(now, port, bytes, &()),
            Err(reason) => Err(reason),
        };
        let transit = Transit {
            ingress: port,
            destination,
            source,
            source_port: self.bound_port_of(source),
            destination_port: self.bound_port_of(destination),
            verdict,
        };
        if let Some(transits) = &mut self.transits {
            transits.push(transit);
        }
        match verdict {
            Ok(verdict) => self.forward(port, verdict, frame, out),
            Err(reason) => self.refuse(reason, frame, out),
        }
    }

    /// Takes a datagram to the switch's MAC out of its whole frame, and decides on it.
    fn take_whole_local(
        &mut self,
        core: usize,
        port: PortId,
        udp: &UdpFrame,
        mut frame: Frame,
        out: &mut Outside<'_>,
    ) {
        let addresses = &udp.addresses;
        if addresses.dst_ip != SWITCH_IP {
            return self.refuse(DropReason::NotOurs, frame, out);
        }
        if addresses.src_ip == SWITCH_IP {
            return self.refuse(DropReason::SpoofedSwitch, frame, out);
        }
        let body = frame.body_mut();
        let end = UDP_END + udp.datagram_bytes;
        body.datagram_mut().copy_within(UDP_END..end, 0);
        body.set_len(udp.datagram_bytes);
        (body.to, body.ecn) = (Destination::Switch(addresses.dst_port), udp.ecn);
        let from = Member {
            port,
            mac: addresses.src_mac,
            ip: addresses.src_ip,
            udp_port: addresses.src_port,
        };
        self.take_local(core, from, frame, out);
    }

    fn forward(
        &mut self,
        ingress: PortId,
        verdict: Verdict,
        mut frame: Frame,
        out: &mut Outside<'_>,
    ) {
        let class = class_of_frame(frame.datagram());
        let to: Vec<PortId> = match verdict {
            // Never of a frame in transit.
            Verdict::Local => return self.refuse(DropReason::NotOurs, frame, out),
            Verdict::Answer => {
                frame.body_mut().from = Address {
                    host: SWITCH_HOST,
                    udp_port: 0,
                };
                vec![ingress]
            }
            Verdict::Forward(port) => vec![port],
            Verdict::Flood => {
                let ports = (0..self.ports.len() as u16).map(PortId);
                ports.filter(|&port| port != ingress).collect()
            }
        };
        let mut way = Way {
            ports: &mut self.ports,
            diary: &mut self.diary,
            out,
        };
        for port in to {
            way.enqueue(port, class, frame.clone());
        }
        way.out.pool.give(frame);
    }

    /// The port of the bound member with this address.
    fn bound_port_of(&self, mac: Mac) -> Option<PortId> {
        let mut members = self.bound.values().flatten();
        let member = members.find(|member| member.mac == mac)?;
        Some(member.port)
    }
}
