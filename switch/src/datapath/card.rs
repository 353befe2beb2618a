//! Frames to a card and from it.
//!
//! A card has no secrets: tags are checked before a frame goes to it, and written into what comes back.

use super::{Core, is_damaged};
use tally_bridge::tags;
use tally_dpdk::Mbuf;
use tally_engine::queue::class_of_header;
use tally_engine::{DropReason, PortId};
use tally_wire::frame::{Addresses, ETHERNET_BYTES, UdpFrame, emit};
use tally_wire::{Epoch, HEADERS_BYTES, Header, JobId, Mac};

/// The class of probes: the highest, so that they say how the card is and not how long its queue is.
const PROBE_CLASS: usize = 7;

impl Core {
    /// A frame of a job that the card has.
    #[cold]
    #[inline(never)]
    pub(super) fn give_to_card(
        &mut self,
        port: PortId,
        mut mbuf: Mbuf,
        header: &Header,
    ) -> Result<(), DropReason> {
        // No member is behind a port that a card does not know.
        if port.0 >= tags::PORTS {
            return Err(DropReason::NotMember);
        }
        let tag = tags::port_mac(port);
        if !mbuf.is_unique() {
            mbuf = self.pool.copy(&mbuf).ok_or(DropReason::NoBuffer)?;
        }
        let Some(steering) = &mut self.steering else {
            return Err(DropReason::UnknownJob);
        };
        let card = steering.card();
        if !steering.verifies(header) {
            return Err(DropReason::AuthTag);
        }
        // Padding is not sent twice.
        if !mbuf.set_len(HEADERS_BYTES + header.payload_bytes()) {
            return Err(DropReason::Length);
        }
        if let Some(frame) = mbuf.data_mut() {
            frame[..6].copy_from_slice(&tag.0);
        }
        steering.count(header);
        self.ports.forward(card, class_of_header(header), mbuf);
        Ok(())
    }

    /// What came from the card.
    pub(super) fn take_from_card(&mut self, frames: impl Iterator<Item = Mbuf>) -> u64 {
        let (mut bytes, mut count) = (0, 0);
        for mbuf in frames {
            bytes += mbuf.len() as u64;
            count += 1;
            if let Err(reason) = self.judge(mbuf) {
                self.aggregator.count_drop(reason);
            }
        }
        if let Some(steering) = &self.steering {
            steering.pulse.add(count);
        }
        bytes
    }

    fn judge(&mut self, mut mbuf: Mbuf) -> Result<(), DropReason> {
        let Some(steering) = &mut self.steering else {
            return Err(DropReason::CardFrame);
        };
        if !mbuf.is_contiguous() || !mbuf.is_unique() {
            mbuf = self.pool.copy(&mbuf).ok_or(DropReason::NoBuffer)?;
        }
        if is_damaged(&mbuf) {
            return Err(DropReason::Checksum);
        }
        let frame = mbuf.data();
        let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) =
            frame.first_chunk::<ETHERNET_BYTES>()
        else {
            return Err(DropReason::CardFrame);
        };
        let destination = Mac([d0, d1, d2, d3, d4, d5]);
        let Some(mask) = tags::mask_of(Mac([s0, s1, s2, s3, s4, s5])) else {
            if let Some(number) = tags::probe_of(destination)
                && u16::from_be_bytes([t0, t1]) == tags::PROBE_ETHERTYPE
            {
                steering.traffic.probes += 1;
                if let Some(probes) = &self.probes {
                    // Nobody waits for more than one.
                    let _ = probes.try_send(number);
                }
                return Ok(());
            }
            return Err(match tags::port_of(destination) {
                Some(_) => DropReason::CardReturned,
                None => DropReason::CardFrame,
            });
        };
        let udp = UdpFrame::parse(frame).map_err(|_| DropReason::CardFrame)?;
        let header =
            Header::parse_untagged(udp.datagram(frame)).map_err(|_| DropReason::CardFrame)?;
        if udp.addresses.src_ip != self.own.ip || udp.addresses.src_port != self.own.base_port {
            return Err(DropReason::CardFrame);
        }
        let header = steering.judge(mask, &udp.addresses, &header)?;
        let addresses = Addresses {
            src_mac: self.own.mac,
            ..udp.addresses
        };
        let payload_end = HEADERS_BYTES + header.payload_bytes();
        if !mbuf.set_len(payload_end + header.kind.trailer_bytes()) {
            return Err(DropReason::NoBuffer);
        }
        let frame = mbuf.data_mut().ok_or(DropReason::NoBuffer)?;
        emit(frame, &addresses, &header);
        header.emit_trailer(&mut frame[payload_end..]);
        self.ports.distribute(mask, class_of_header(&header), mbuf);
        Ok(())
    }

    /// Sends a frame that is not a member's to the card.
    pub(super) fn probe_card(&mut self, frame: &[u8]) {
        let Some(card) = self.steering.as_ref().map(|steering| steering.card()) else {
            return;
        };
        match self.pool.alloc_copy(frame) {
            Some(mbuf) => self.ports.enqueue(card, PROBE_CLASS, mbuf),
            None => self.aggregator.count_drop(DropReason::NoBuffer),
        }
    }

    /// A job goes over to the card: what slots have of it leaves to its PS, and from the next frame on the card has it.
    pub(super) fn give_job(&mut self, id: JobId, epoch: Epoch) -> bool {
        let Some(steering) = &mut self.steering else {
            return false;
        };
        let arrivals = self.aggregator.arrivals().find(|&(job, _)| job == id);
        let arrivals = arrivals.map_or(0, |(_, arrivals)| arrivals);
        let given = steering.give(id, epoch, arrivals);
        if given {
            // Orders are looked at between turns: nothing waits in the batch.
            debug_assert!(self.batch.is_empty());
            self.aggregator.hand_over(id, &mut self.ports);
        }
        given
    }

    /// A job comes back from the card.
    pub(super) fn take_job_back(&mut self, id: JobId) {
        if let Some(steering) = &mut self.steering
            && let Some((roster, index)) = steering.take_back(id)
        {
            self.aggregator
                .bind((*roster).clone(), index, &mut self.ports);
        }
    }

    /// All jobs come back from the card, and nothing goes to it any more.
    pub(super) fn take_all_back(&mut self) {
        let Some(steering) = &self.steering else {
            return;
        };
        let card = steering.card();
        for id in steering.given() {
            self.take_job_back(id);
        }
        self.ports.purge(card);
    }
}
