//! What a host without a kernel's network stack needs of Ethernet: headers in front of its
//! datagrams, the datagrams in what arrives, and the switch's MAC by ARP.

use std::net::Ipv4Addr;
use tally_endpoint::Ecn;
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
    /// Whoever has this UDP port of ours.
    Port(u16),
    /// Whoever listens to this group.
    Group(Ipv4Addr),
}

/// A host on an Ethernet with one switch to talk to.
pub struct Station {
    local: Local,
    switch: Ipv4Addr,
    switch_mac: Option<Mac>,
    /// Ethernet, IPv4 and UDP headers for payloads of so many units, by units; made when needed.
    templates: Vec<Option<[u8; UDP_END]>>,
}

impl Station {
    /// A host that listens to the switch.
    #[must_use]
    pub fn new(local: Local, switch: Ipv4Addr) -> Self {
        Self {
            local,
            switch,
            switch_mac: None,
            templates: vec![None; usize::from(MAX_UNITS) + 1],
        }
    }

    /// Whether the switch's MAC is known, without which there are no headers.
    #[must_use]
    pub fn knows_switch(&self) -> bool {
        self.switch_mac.is_some()
    }

    /// The ARP request for the switch's MAC.
    #[must_use]
    pub fn request(&self) -> [u8; FRAME_BYTES_MIN] {
        arp_request(self.local.mac, self.local.address, self.switch)
    }

    /// Writes Ethernet, IPv4 and UDP headers in front of the datagram of `len` bytes that is in `frame` at
    /// [`UDP_END`], from the first of `ports`, ours, to the second, the switch's. Returns the frame's length;
    /// `None` while the switch's MAC is not known.
    ///
    /// # Panics
    /// If `frame` is shorter than the frame.
    pub fn finish(&mut self, frame: &mut [u8], len: usize, ports: (u16, u16)) -> Option<usize> {
        let switch_mac = self.switch_mac?;
        let units = (len - HEADER_BYTES) / UNIT_BYTES;
        let (local, switch) = (self.local, self.switch);
        let template = self.templates[units].get_or_insert_with(|| {
            let addresses = Addresses {
                src_mac: local.mac,
                dst_mac: switch_mac,
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
        // There is no UDP checksum that they would change (F-2).
        frame[34..36].copy_from_slice(&ports.0.to_be_bytes());
        frame[36..38].copy_from_slice(&ports.1.to_be_bytes());
        Some(UDP_END + len)
    }

    /// Whom the datagram in `frame`, at [`UDP_END`], is for, what the frame says of congestion, and the datagram's
    /// bytes; if it is from the switch to our address or a group.
    #[must_use]
    pub fn datagram(&self, frame: &[u8]) -> Option<(To, Ecn, usize)> {
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
        Some((to, parsed.ecn, parsed.datagram_bytes))
    }

    /// Takes the switch's MAC from its ARP frames.
    pub fn learn(&mut self, frame: &[u8]) {
        if let Some(mac) = arp_sender(frame, self.switch)
            && self.switch_mac != Some(mac)
        {
            self.switch_mac = Some(mac);
            self.templates.fill(None);
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

    fn station() -> Station {
        Station::new(LOCAL, SWITCH)
    }

    fn resolved() -> Station {
        let mut s = station();
        let mut answer = s.request();
        assert!(answer_arp(&mut answer, SWITCH_MAC, SWITCH));
        s.learn(&answer);
        assert!(s.knows_switch());
        s
    }

    #[test]
    fn the_switch_is_resolved_by_its_own_answer_only() {
        let mut s = station();
        let mut answer = s.request();
        s.learn(&answer);
        assert!(!s.knows_switch(), "our own request");
        assert!(answer_arp(&mut answer, SWITCH_MAC, SWITCH));
        for len in 0..42 {
            s.learn(&answer[..len]);
        }
        let mut other = answer;
        other[31] = 9;
        s.learn(&other);
        assert!(!s.knows_switch());
        assert_eq!(s.finish(&mut [0; 200], 150, (PORT, 31249)), None);
        s.learn(&answer);
        assert!(s.knows_switch());
    }

    #[test]
    fn headers_are_those_of_the_wire_crate() {
        let mut s = resolved();
        for units in [0, 2, 16, 2] {
            let datagram = HEADER_BYTES + UNIT_BYTES * usize::from(units);
            let mut want = vec![0; UDP_END + datagram];
            let addresses = Addresses {
                src_mac: LOCAL.mac,
                dst_mac: SWITCH_MAC,
                src_ip: LOCAL.address,
                dst_ip: SWITCH,
                src_port: PORT,
                dst_port: 31_251,
            };
            frame::emit(&mut want, &addresses, &header_of(units));
            let mut got = want.clone();
            got[..UDP_END].fill(0xa5);
            let len = s.finish(&mut got, datagram, (PORT, 31_251));
            assert_eq!(len, Some(want.len()));
            assert_eq!(got, want);
        }
    }

    #[test]
    fn datagrams_are_taken_from_the_switch_to_us_and_to_groups() {
        let s = station();
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
            let (to, ecn, bytes) = s.datagram(&f)?;
            assert_eq!((ecn, bytes), (Ecn::Ect0, HEADER_BYTES));
            assert!(frame::mark(&mut f));
            assert_eq!(s.datagram(&f)?.1, Ecn::Ce);
            Some(to)
        };
        assert_eq!(frame(SWITCH, LOCAL.address, PORT), Some(To::Port(PORT)));
        assert_eq!(frame(SWITCH, GROUP, 31_249), Some(To::Group(GROUP)));
        assert_eq!(frame(SWITCH, Ipv4Addr::new(10, 84, 0, 2), PORT), None);
        assert_eq!(frame(LOCAL.address, LOCAL.address, PORT), None);
        assert_eq!(frame(LOCAL.address, GROUP, 31_249), None);
    }
}
