//! The ordinary switch on mbufs: [`tally_engine::forwarding`] decides, this carries it out.

use crate::datapath::Core;
use crate::egress::class_of_frame;
use crate::members::Members;
use tally_dpdk::Mbuf;
use tally_engine::forwarding::{Proxy, Verdict};
use tally_engine::{DropReason, PortId};
use tally_wire::{FrameError, Mac};

pub use tally_engine::forwarding::MacTable;

/// SwitchML's members, if the switch serves them.
struct Stations<'a>(Option<&'a Members>);

impl Proxy for Stations<'_> {
    fn answer_arp(&self, frame: &mut [u8], ingress: PortId) -> bool {
        let members = self.0;
        members.is_some_and(|members| members.answer_arp(frame, ingress))
    }

    fn port_of(&self, mac: Mac) -> Option<PortId> {
        self.0.and_then(|members| members.port_of(mac))
    }
}

impl Core {
    /// A frame that is not to the switch's MAC.
    pub(crate) fn forward(&mut self, port: PortId, mut mbuf: Mbuf) -> Result<(), DropReason> {
        if !mbuf.is_unique() {
            mbuf = self.pool.copy(&mbuf).ok_or(DropReason::NoBuffer)?;
        }
        let frame = mbuf.data_mut().ok_or(DropReason::NoBuffer)?;
        let stations = Stations(self.switchml_members());
        let now = self.ports.now;
        let verdict = self
            .forwarding
            .classify_transit(now, port, frame, &stations)?;
        let class = class_of_frame(mbuf.data());
        match verdict {
            // Never of a frame in transit.
            Verdict::Local => return Err(DropReason::NotOurs),
            Verdict::Answer => self.ports.enqueue(port, class, mbuf),
            Verdict::Forward(to) => self.ports.forward(to, class, mbuf),
            Verdict::Flood => self.flood(port, mbuf),
        }
        Ok(())
    }

    /// A frame to the switch's MAC that is no UDP: ARP, ping, or `found`.
    #[cold]
    pub(crate) fn answer(
        &mut self,
        port: PortId,
        mut mbuf: Mbuf,
        found: FrameError,
    ) -> Result<(), DropReason> {
        let Some(frame) = mbuf.data_mut() else {
            return Err(found.into());
        };
        self.forwarding.answer(self.ports.now, port, frame, found)?;
        let class = class_of_frame(mbuf.data());
        self.ports.enqueue(port, class, mbuf);
        Ok(())
    }
}
