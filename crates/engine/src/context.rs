//! What dialects use of their core: its address, the way out, running jobs, and the way to control.

mod jobs;
mod parents;

pub use jobs::Jobs;
pub(crate) use parents::job_of;
pub use parents::{ParentAddress, Parents};

use crate::egress::Ports;
use crate::frame::{Frame, Platform};
use crate::queue::class_of_header;
use crate::registry::Datagram;
use crate::{DropReason, Drops, Forwarding, Member, PortId};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use tally_wire::frame::UDP_END;
use tally_wire::{Addresses, Header, Mac, Time};

/// The switch's own address.
#[derive(Clone, Copy, Debug)]
pub struct SwitchAddress {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// First UDP port.
    pub base_port: u16,
}

/// A JOIN or LEAVE, for the registry.
#[derive(Clone, Debug)]
pub struct ControlFrame {
    /// Where it came from.
    pub from: Member,
    /// Its parsed header.
    pub header: Header,
    /// Header and payload.
    pub datagram: Box<Datagram>,
}

/// What dialects use of a core.
pub struct Context<P: Platform> {
    /// The switch's own address.
    pub address: SwitchAddress,
    /// The core's number, which is that of its shards.
    pub core: usize,
    /// Number of cores.
    pub cores: u16,
    /// The time of this poll iteration.
    pub now: Time,
    /// The way out.
    pub ports: Ports<P::Frame>,
    /// The platform.
    pub platform: P,
    /// MAC learning and its limits; the tables are shared by all cores.
    pub forwarding: Forwarding,
    /// Running jobs and the dialects that serve them.
    pub jobs: Jobs,
    /// Parent switches, by port.
    pub parents: Parents,
    drops: Drops,
    to_control: VecDeque<ControlFrame>,
}

impl<P: Platform> Context<P> {
    /// A core's context at time 0.
    #[must_use]
    pub fn new(
        address: SwitchAddress,
        core: usize,
        cores: u16,
        ports: Ports<P::Frame>,
        platform: P,
        forwarding: Forwarding,
    ) -> Self {
        Self {
            address,
            core,
            cores,
            now: Time(0),
            ports,
            platform,
            forwarding,
            jobs: Jobs::default(),
            parents: Parents::default(),
            drops: Drops::default(),
            to_control: VecDeque::new(),
        }
    }

    /// Counts one dropped frame.
    #[inline]
    pub fn count_drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Frames dropped outside of dialects, by `DropReason as usize`.
    #[must_use]
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Hands a JOIN or LEAVE to the registry.
    pub fn to_control(&mut self, frame: ControlFrame) {
        self.to_control.push_back(frame);
    }

    /// The next JOIN or LEAVE for the registry.
    pub(crate) fn poll_control(&mut self) -> Option<ControlFrame> {
        self.to_control.pop_front()
    }

    /// The addresses of a datagram from the switch to a member.
    #[inline]
    #[must_use]
    pub fn addresses_to(&self, to: &Member) -> Addresses {
        Addresses {
            src_mac: self.address.mac,
            dst_mac: to.mac,
            src_ip: self.address.ip,
            dst_ip: to.ip,
            src_port: self.address.base_port,
            dst_port: to.udp_port,
        }
    }

    /// Sends a control datagram in a fresh frame.
    ///
    /// # Errors
    /// If the pool is exhausted, or the datagram is not the switch's.
    pub fn send_datagram(&mut self, to: &Member, datagram: &[u8]) -> Result<(), DropReason> {
        let header = Header::parse(datagram)?;
        let mut frame = self.platform.alloc().ok_or(DropReason::NoBuffer)?;
        let bytes = frame
            .append(UDP_END + datagram.len())
            .ok_or(DropReason::NoBuffer)?;
        tally_wire::frame::emit(bytes, &self.addresses_to(to), &header);
        bytes[UDP_END..].copy_from_slice(datagram);
        self.ports.send(to.port, class_of_header(&header), frame);
        Ok(())
    }

    /// Sends a frame of the switch's own.
    ///
    /// # Errors
    /// If the pool is exhausted, or its buffers are too short.
    pub fn send_frame(&mut self, port: PortId, bytes: &[u8]) -> Result<(), DropReason> {
        let mut frame = self.platform.alloc().ok_or(DropReason::NoBuffer)?;
        let room = frame.append(bytes.len()).ok_or(DropReason::NoBuffer)?;
        room.copy_from_slice(bytes);
        self.ports.send(port, 0, frame);
        Ok(())
    }

    /// A copy with a single reference in one segment, of a frame that has not; others stay.
    ///
    /// # Errors
    /// If the pool is exhausted.
    #[inline]
    pub fn exclusive(&self, frame: P::Frame) -> Result<P::Frame, DropReason> {
        // Of a superframe only headers are looked at, which are in its first segment.
        if frame.is_unique() && (frame.is_contiguous() || frame.wire_frames() > 1) {
            return Ok(frame);
        }
        self.platform.copy(&frame).ok_or(DropReason::NoBuffer)
    }
}
