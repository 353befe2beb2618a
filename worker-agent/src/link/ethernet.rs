//! What a host without a kernel's network stack needs of Ethernet: headers in front of its
//! datagrams, the datagrams in what arrives, and the switch's MAC by ARP.
//!
//! ARP is not authenticated. Its answer serves a link until ACCEPT has given the switch's MAC
//!

use std::net::Ipv4Addr;
use tally_endpoint::Ecn;
use tally_wire::field::{ethernet, udp};
use tally_wire::frame::UDP_END;
use tally_wire::header::HEADER_BYTES;
use tally_wire::neighbour::{FRAME_BYTES_MIN, answer_arp, answer_echo, arp_request, arp_sender};
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Kind,
    MAX_UNITS, Mac, Rank, UNIT_BYTES, UdpFrame, frame,
};

/// So that frames with a Tally header need no padding.
const _: () = assert!(HEADERS_BYTES >= FRAME_BYTES_MIN);

/// Who we are on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub address: Ipv4Addr,
}

/// Whom a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The owner of this UDP port of ours.
    Port(u16),
    /// The listeners of this group.
    Group(Ipv4Addr),
}

/// What a frame's headers say of the datagram in it, which is at [`UDP_END`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Destination.
    pub to: To,
    /// Source MAC of the frame.
    pub from: Mac,
    /// Congestion on the way.
    pub ecn: Ecn,
    /// Length.
    pub bytes: usize,
}

/// A host on an Ethernet with one switch to talk to.
pub struct Host {
    local: Local,
    switch: Ipv4Addr,
    /// From the last ARP frame of the switch's address.
    arp_mac: Option<Mac>,
    /// Ethernet, IPv4 and UDP headers for payloads of so many units, by units; made when needed.
    templates: Vec<Option<[u8; UDP_END]>>,
}

impl Host {
    /// A host that listens to the switch.
    #[must_use]
    pub fn new(local: Local, switch: Ipv4Addr) -> Self {
        Self {
            local,
            switch,
            arp_mac: None,
            templates: vec![None; usize::from(MAX_UNITS) + 1],
        }
    }

    /// The switch's MAC by ARP.
    #[must_use]
    pub fn arp_mac(&self) -> Option<Mac> {
        self.arp_mac
    }

    /// Replaces the switch's MAC by ARP.
    pub fn set_arp_mac(&mut self, mac: Mac) {
        self.arp_mac = Some(mac);
    }

    /// The ARP request for the switch's MAC.
    #[must_use]
    pub fn request(&self) -> [u8; FRAME_BYTES_MIN] {
        arp_request(self.local.mac, self.local.address, self.switch)
    }

    /// Writes Ethernet, IPv4 and UDP headers in front of the datagram of `len` bytes that is in
    /// `frame` at
    /// [`UDP_END`], from the first of `ports`, ours, to the second, the switch's, at `switch_mac`.
    /// Returns the frame's length.
    ///
    /// # Panics
    /// If `frame` is shorter than the frame.
    pub fn finish(
        &mut self,
        frame: &mut [u8],
        len: usize,
        ports: (u16, u16),
        switch_mac: Mac,
    ) -> usize {
        let units = (len - HEADER_BYTES) / UNIT_BYTES;
        let (local, switch) = (self.local, self.switch);
        let template = self.templates[units].get_or_insert_with(|| {
            let addresses = Addresses {
                src_mac: local.mac,
                dst_mac: Mac::default(),
                src_ip: local.address,
                dst_ip: switch,
                src_port: 0,
                dst_port: 0,
            };
            let mut bytes = [0; HEADERS_BYTES];
            frame::emit(&mut bytes, &addresses, &header_of(units as u8));
            let mut template = [0; UDP_END];
            template.copy_from_slice(&bytes[..UDP_END]);
            template
        });
        frame[..UDP_END].copy_from_slice(template);
        frame[ethernet::DST].copy_from_slice(&switch_mac.0);
        // There is no UDP checksum that they would change (F-2).
        frame[udp::SRC_PORT].copy_from_slice(&ports.0.to_be_bytes());
        frame[udp::DST_PORT].copy_from_slice(&ports.1.to_be_bytes());
        UDP_END + len
    }

    /// The datagram in `frame`, if it is from the switch's IPv4 address to our address or a group.
    #[must_use]
    pub fn datagram(&self, frame: &[u8]) -> Option<Datagram> {
        let parsed = UdpFrame::parse(frame).ok()?;
        let it = parsed.addresses;
        if it.src_ip != self.switch {
            return None;
        }
        let to = if it.dst_ip == self.local.address {
            To::Port(it.dst_port)
        } else if it.dst_ip.is_multicast() {
            To::Group(it.dst_ip)
        } else {
            return None;
        };
        Some(Datagram {
            to,
            from: it.src_mac,
            ecn: parsed.ecn,
            bytes: parsed.datagram_bytes,
        })
    }

    /// Takes the switch's MAC from its ARP frames.
    pub fn learn(&mut self, frame: &[u8]) {
        if let Some(mac) = arp_sender(frame, self.switch) {
            self.arp_mac = Some(mac);
        }
    }

    /// Turns an ARP request or ICMP echo to our address into its answer, and says so with `true`.
    #[must_use]
    pub fn answer(&self, frame: &mut [u8]) -> bool {
        let Local { mac, address, .. } = self.local;
        answer_arp(frame, mac, address) || answer_echo(frame, mac, address)
    }
}

/// A header with so many units; only its length matters here.
fn header_of(units: u8) -> Header {
    let kind = if units == 0 { Kind::Nack } else { Kind::Data };
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
        element: if units == 0 {
            Element::None
        } else {
            Element::I32
        },
        job: JobId(0),
        epoch: Epoch(0),
        fragment: FragmentId(0),
        rank: Rank(0),
        units,
        bitmap: u64::from(units > 0),
        tag: AuthTag::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
    const SWITCH_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 84, 0, 7);
    const LOCAL: Local = Local {
        mac: Mac([2, 0, 0, 0, 0, 1]),
        address: Ipv4Addr::new(10, 84, 0, 1),
    };
    const PORT: u16 = 40_003;

    fn host() -> Host {
        Host::new(LOCAL, SWITCH)
    }

    #[test]
    fn the_switch_is_resolved_by_its_own_answer_only() {
        let mut s = host();
        let mut answer = s.request();
        s.learn(&answer);
        assert_eq!(s.arp_mac(), None, "our own request");
        assert!(answer_arp(&mut answer, SWITCH_MAC, SWITCH));
        for len in 0..42 {
            s.learn(&answer[..len]);
        }
        let mut other = answer;
        other[31] = 9;
        s.learn(&other);
        assert_eq!(s.arp_mac(), None);
        s.learn(&answer);
        assert_eq!(s.arp_mac(), Some(SWITCH_MAC));
    }

    #[test]
    fn headers_are_those_of_the_wire_crate() {
        let mut s = host();
        let other = Mac([2, 0, 0, 0, 0, 9]);
        for (units, switch_mac) in [
            (0, SWITCH_MAC),
            (2, SWITCH_MAC),
            (16, SWITCH_MAC),
            (2, SWITCH_MAC),
            (2, other),
        ] {
            let datagram = HEADER_BYTES + UNIT_BYTES * usize::from(units);
            let mut want = vec![0; UDP_END + datagram];
            let addresses = Addresses {
                src_mac: LOCAL.mac,
                dst_mac: switch_mac,
                src_ip: LOCAL.address,
                dst_ip: SWITCH,
                src_port: PORT,
                dst_port: 31_251,
            };
            frame::emit(&mut want, &addresses, &header_of(units));
            let mut got = want.clone();
            got[..UDP_END].fill(0xa5);
            let len = s.finish(&mut got, datagram, (PORT, 31_251), switch_mac);
            assert_eq!(len, want.len());
            assert_eq!(got, want);
        }
    }

    #[test]
    fn datagrams_are_taken_from_the_switch_to_us_and_to_groups() {
        let s = host();
        let frame = |src_ip, dst_ip, dst_port| {
            let addresses = Addresses {
                src_mac: SWITCH_MAC,
                dst_mac: LOCAL.mac,
                src_ip,
                dst_ip,
                src_port: 31_249,
                dst_port,
            };
            let mut f = vec![0; HEADERS_BYTES];
            frame::emit(&mut f, &addresses, &header_of(0));
            let it = s.datagram(&f)?;
            assert_eq!((it.ecn, it.bytes), (Ecn::Ect0, HEADER_BYTES));
            assert_eq!(it.from, SWITCH_MAC);
            assert!(frame::mark(&mut f));
            assert_eq!(s.datagram(&f)?.ecn, Ecn::Ce);
            Some(it.to)
        };
        assert_eq!(frame(SWITCH, LOCAL.address, PORT), Some(To::Port(PORT)));
        assert_eq!(frame(SWITCH, GROUP, 31_249), Some(To::Group(GROUP)));
        assert_eq!(frame(SWITCH, Ipv4Addr::new(10, 84, 0, 2), PORT), None);
        assert_eq!(frame(LOCAL.address, LOCAL.address, PORT), None);
        assert_eq!(frame(LOCAL.address, GROUP, 31_249), None);
    }
}
