//! Packets of one connection, found by comparison with an earlier one.

use super::{BTH_BYTES, Opcode, Packet, field};
use crate::field::{be16, ipv4, udp};
use crate::frame::{ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES, UDP_END};
use crate::template::{self, Template, Words, blank, words};

/// Bits of the headers that must be equal: all that decides where a packet goes, and from whom it
/// is.
const MASK: Words = {
    let mut mask = [0xff_u8; template::BYTES];
    // Ignored: ECN, identification, don't-fragment, time to live, checksum.
    mask[ipv4::TOS] = 0xfc;
    blank(&mut mask, ipv4::ID);
    mask[ipv4::FRAGMENT.start] = 0x3f;
    mask[ipv4::TTL] = 0;
    blank(&mut mask, ipv4::CHECKSUM);
    blank(&mut mask, udp::CHECKSUM);
    // Parsed: both lengths, and the BTH but for its queue pair.
    blank(&mut mask, ipv4::LENGTH);
    blank(&mut mask, udp::LENGTH);
    blank(&mut mask, UDP_END..UDP_END + field::QP.start);
    mask[UDP_END + field::QP.start] = 0;
    blank(&mut mask, UDP_END + field::QP.end..template::BYTES);
    words(&mask)
};

const _: () = assert!(UDP_END + BTH_BYTES <= template::BYTES);
// The first byte of the queue pair's field has the congestion bits.
const _: () = assert!(field::QP.start == field::CONGESTION);

/// A connection's header template: the headers of one of its packets.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTemplate(Template);

impl ConnectionTemplate {
    /// That of a frame whose datagram was parsed; `None` if it is shorter than 64 bytes.
    #[inline]
    #[must_use]
    pub fn new(frame: &[u8]) -> Option<Self> {
        Some(Self(Template::new(frame.first_chunk()?, MASK)))
    }

    /// The packet in `frame`, and the bytes of its datagram, if it is a part of a message of the
    /// same connection.
    ///
    /// Addresses, UDP ports, DSCP and queue pair are then equal, and
    /// [`UdpFrame::parse`](crate::UdpFrame::parse) and [`Packet::parse`] give the same. `None`:
    /// the frame must be parsed.
    #[inline(always)]
    #[must_use]
    pub fn packet_of(&self, frame: &[u8]) -> Option<(Packet, usize)> {
        let headers = frame.first_chunk::<{ template::BYTES }>()?;
        if !self.0.matches(headers) {
            return None;
        }
        let ip_bytes = usize::from(be16(headers, ipv4::LENGTH));
        let udp_bytes = usize::from(be16(headers, udp::LENGTH));
        if udp_bytes + IPV4_BYTES != ip_bytes || ip_bytes > frame.len() - ETHERNET_BYTES {
            return None;
        }
        let datagram_bytes = udp_bytes.checked_sub(UDP_BYTES)?;
        let datagram = &frame[UDP_END..UDP_END + datagram_bytes];
        let packet = Packet::parse(datagram).ok()?;
        let is_message = matches!(packet.bth.opcode, Opcode::Message { .. });
        is_message.then_some((packet, datagram_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bth, ICRC_BYTES, PORT, Place, Psn, QueuePair, Verb};
    use super::*;
    use crate::frame::{Addresses, emit_udp};
    use crate::{Mac, UdpFrame};
    use core::net::Ipv4Addr;
    use std::vec;
    use std::vec::Vec;

    fn bth() -> Bth {
        Bth {
            opcode: Opcode::Message {
                verb: Verb::Send,
                place: Place::Middle,
                has_immediate: false,
            },
            is_solicited: false,
            is_migrated: true,
            pad: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            qp: QueuePair(0x12_3456),
            ack_requested: false,
            psn: Psn::new(7),
        }
    }

    fn frame(bth: &Bth, payload: usize) -> Vec<u8> {
        let bytes = BTH_BYTES + bth.opcode.extended_bytes() + payload + ICRC_BYTES;
        let mut frame = vec![0x5a; UDP_END + bytes];
        let addresses = Addresses {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src_ip: Ipv4Addr::new(10, 0, 0, 1),
            dst_ip: Ipv4Addr::new(10, 0, 0, 2),
            src_port: 50_000,
            dst_port: PORT,
        };
        emit_udp(&mut frame, &addresses, bytes);
        frame[UDP_END..UDP_END + BTH_BYTES].copy_from_slice(&bth.emit());
        frame
    }

    /// What parsing says of a frame, if it is a part of a message.
    fn parsed(frame: &[u8]) -> Option<(UdpFrame, Packet)> {
        let udp = UdpFrame::parse(frame).ok()?;
        let packet = Packet::parse(udp.datagram(frame)).ok()?;
        matches!(packet.bth.opcode, Opcode::Message { .. }).then_some((udp, packet))
    }

    #[test]
    fn packets_of_one_connection_follow_each_other() {
        let template = ConnectionTemplate::new(&frame(&bth(), 256)).unwrap();
        let places = [Place::First, Place::Middle, Place::Last, Place::Only];
        for (place, verb) in places
            .map(|it| [(it, Verb::Send), (it, Verb::Write)])
            .concat()
        {
            let opcode = Opcode::Message {
                verb,
                place,
                has_immediate: place.ends(),
            };
            for psn in [0, 8, 0xff_ffff] {
                let next = Bth {
                    opcode,
                    psn: Psn::new(psn),
                    ack_requested: true,
                    fecn: true,
                    ..bth()
                };
                let mut frame = frame(&next, 1024);
                frame[ipv4::ID].fill(9);
                frame.extend_from_slice(&[0; 3]);
                let (packet, bytes) = template.packet_of(&frame).unwrap();
                let (udp, expected) = parsed(&frame).unwrap();
                assert_eq!((packet, bytes), (expected, udp.datagram_bytes));
            }
        }
    }

    #[test]
    fn a_frame_that_follows_differs_in_nothing_that_decides_where_it_goes() {
        let first = frame(&bth(), 64);
        let template = ConnectionTemplate::new(&first).unwrap();
        let (before, _) = parsed(&first).unwrap();
        for bit in 0..8 * template::BYTES {
            let mut other = first.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let Some((packet, bytes)) = template.packet_of(&other) else {
                continue;
            };
            let (udp, expected) = parsed(&other).unwrap();
            assert_eq!((packet, bytes), (expected, udp.datagram_bytes), "bit {bit}");
            assert_eq!(udp.addresses, before.addresses, "bit {bit}");
            assert_eq!(
                other[ipv4::TOS] & 0xfc,
                first[ipv4::TOS] & 0xfc,
                "bit {bit}"
            );
        }
        let other = Bth {
            qp: QueuePair(0x12_3457),
            ..bth()
        };
        assert_eq!(template.packet_of(&frame(&other, 64)), None);
        let cut = &first[..first.len() - 1];
        assert_eq!(template.packet_of(cut), None, "shorter than it says");
        let ack = Bth {
            opcode: Opcode::Ack,
            ..bth()
        };
        assert_eq!(template.packet_of(&frame(&ack, 60)), None);
    }
}
