//! The checks of the module `tally_parser`, in the order that docs/FPGA.md and the protocol have: a
//! part of the [table](super::table), which shares no code with the switch.

use super::card::Own;
use super::reference::mac_at;
use tally_engine::{DropReason, Member, PortId};
use tally_wire::frame::{self, FrameError};
use tally_wire::{Header, UdpFrame};

/// What becomes of a frame.
pub enum Fate {
    /// Not the card's business.
    Pass,
    Drop(DropReason),
    /// For the engine; with the shard that its UDP port names.
    Take(Header, Member, u16),
}

/// The checks up to where the job has to be known.
pub fn classify(frame: &[u8], port: PortId, own: &Own) -> Fate {
    if frame.len() < frame::ETHERNET_BYTES {
        return Fate::Drop(DropReason::Truncated);
    }
    if mac_at(frame, 6) == Some(own.mac) {
        return Fate::Drop(DropReason::SpoofedSwitch);
    }
    if mac_at(frame, 0) != Some(own.mac) {
        return Fate::Pass;
    }
    let udp = match UdpFrame::parse(frame) {
        Ok(udp) => udp,
        Err(FrameError::Vlan | FrameError::NotIpv4 | FrameError::NotUdp) => return Fate::Pass,
        Err(error) => return Fate::Drop(error.into()),
    };
    let addresses = &udp.addresses;
    if addresses.dst_ip != own.ip {
        return Fate::Pass;
    }
    if addresses.src_ip == own.ip {
        return Fate::Drop(DropReason::SpoofedSwitch);
    }
    let shard = addresses.dst_port.wrapping_sub(own.base_port);
    if shard >= own.shards {
        return Fate::Pass;
    }
    let header = match Header::parse(udp.datagram(frame)) {
        Ok(header) => header.received_with(udp.ecn),
        Err(error) => return Fate::Drop(error.into()),
    };
    if header.kind.is_control() {
        return Fate::Pass;
    }
    let from = Member {
        port,
        mac: addresses.src_mac,
        ip: addresses.src_ip,
        udp_port: addresses.src_port,
    };
    Fate::Take(header, from, shard)
}
