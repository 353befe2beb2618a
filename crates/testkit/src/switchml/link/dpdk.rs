//! Over a DPDK device, as the published client: with frames of its own making, whose checksums a
//! NIC would have finished, without ARP in either direction, and without a look at anything but its
//! own datagrams.

use super::{Link, Peer};
use crate::device::Device;
use anyhow::{Result, bail};
use std::time::Duration;
use tally_wire::frame::UDP_END;
use tally_wire::switchml::{FIRST_PORT, HEADERS_BYTES, Header, Size, emit_request};
use tally_wire::{Addresses, UdpFrame};

/// The published client's first source port, which is the least of ours.
const OWN_PORT_MIN: u16 = 4000;

/// A device.
pub struct DpdkLink {
    device: Device,
    own: Peer,
    /// For a port that no earlier session had, nor a process before this one, if that can be
    /// helped.
    turns: u16,
    /// To the switch.
    addresses: Option<Addresses>,
    frame_bytes: usize,
}

impl DpdkLink {
    /// Starts DPDK and opens a device for packets of up to that size: once in a process.
    ///
    /// # Errors
    /// If DPDK does not let us, or the device's peer does not appear.
    pub fn open(device: &str, own: Peer, largest: Size) -> Result<Self> {
        let frame_bytes = HEADERS_BYTES + largest.payload_bytes();
        Ok(Self {
            device: Device::open(device, frame_bytes)?,
            own,
            turns: getrandom::u32()? as u16,
            addresses: None,
            frame_bytes,
        })
    }
}

fn addresses(own: Peer, own_port: u16, switch: Peer) -> Addresses {
    Addresses {
        src_mac: own.mac,
        dst_mac: switch.mac,
        src_ip: own.ip,
        dst_ip: switch.ip,
        src_port: own_port,
        dst_port: FIRST_PORT,
    }
}

/// Who a frame must be from and to.
fn reversed(sent: &Addresses) -> Addresses {
    Addresses {
        src_mac: sent.dst_mac,
        dst_mac: sent.src_mac,
        src_ip: sent.dst_ip,
        dst_ip: sent.src_ip,
        src_port: sent.dst_port,
        dst_port: sent.src_port,
    }
}

impl Link for DpdkLink {
    fn turn_to(&mut self, switch: Peer, size: Size) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        self.addresses = Some(addresses(
            self.own,
            OWN_PORT_MIN + (self.turns & 0x3fff),
            switch,
        ));
        self.frame_bytes = HEADERS_BYTES + size.payload_bytes();
        Ok(())
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Result<usize> {
        let Some(addresses) = self.addresses else {
            bail!("nowhere to send to");
        };
        self.device.send(self.frame_bytes, &mut |frame| {
            if fill(&mut frame[UDP_END..]).is_none() {
                return Ok(None);
            }
            let header = Header::parse(&frame[UDP_END..])?;
            emit_request(frame, &addresses, &header);
            Ok(Some(frame.len()))
        })
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let expected = self.addresses.as_ref().map(reversed);
        Ok(self.device.receive(&mut |frame| {
            if let Ok(udp) = UdpFrame::parse(frame)
                && Some(udp.addresses) == expected
            {
                take(udp.datagram(frame));
            }
        }))
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.device.wait(timeout);
        Ok(())
    }
}
