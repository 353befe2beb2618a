//! What a host without a kernel's network stack needs of Ethernet: headers in front of its
//! datagrams, the datagrams in what arrives, and the switch's MAC by ARP.

use std::net::Ipv4Addr;
use tally_endpoint::Ecn;
use tally_wire::frame::UDP_END;
use tally_wire::header::HEADER_BYTES;
use tally_wire::neighbour::{FRAME_BYTES_MIN, answer_arp, answer_echo, arp_request, arp_sender};
use tally_wire::{
    Addresses, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Kind, MAX_UNITS,
    Mac, Rank, UNIT_BYTES, UdpFrame, frame,
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
    /// UDP port.
    pub port: u16,
}

/// A host on an Ethernet with one switch to talk to.
pub struct Station {
    local: Local,
    switch: Ipv4Addr,
    switch_mac: Option<Mac>,
    group: Option<Ipv4Addr>,
    /// Ethernet, IPv4 and UDP headers for payloads of so many units, by units; made when needed.
    templates: Vec<Option<[u8; UDP_END]>>,
}

impl Station {
    /// A host that listens to the switch, at its own address and that of `group`.
    #[must_use]
    pub fn new(local: Local, switch: Ipv4Addr, group: Option<Ipv4Addr>) -> Self {
        Self {
            local,
            switch,
            switch_mac: None,
            group,
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

    /// Writes Ethernet, IPv4 and UDP headers in front of the datagram of `len` bytes to the
    /// switch's `port` that is in `frame` at [`UDP_END`]. Returns the frame's length; `None` while the
    /// switch's MAC is not known.
    ///
    /// # Panics
    /// If `frame` is shorter than the frame.
    pub fn finish(&mut self, frame: &mut [u8], len: usize, port: u16) -> Option<usize> {
        let switch_mac = self.switch_mac?;
        let units = (len - HEADER_BYTES) / UNIT_BYTES;
        let (local, switch) = (self.local, self.switch);
        let template = self.templates[units].get_or_insert_with(|| {
            let addresses = Addresses {
                src_mac: local.mac,
                dst_mac: switch_mac,
                src_ip: local.address,
                dst_ip: switch,
                src_port: local.port,
                dst_port: 0,
            };
            let mut bytes = [0; HEADERS_BYTES];
            frame::emit(&mut bytes, &addresses, &header_of(units as u8));
            let mut template = [0; UDP_END];
            template.copy_from_slice(&bytes[..UDP_END]);
            template
        });
        frame[..UDP_END].copy_from_slice(template);
        // There is no UDP checksum that it would change (F-2).
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        Some(UDP_END + len)
    }

    /// The datagram in `frame`, if it is from the switch and for us, and what the frame says of
    /// congestion.
    #[must_use]
    pub fn datagram<'a>(&self, frame: &'a [u8]) -> Option<(Ecn, &'a [u8])> {
        let parsed = UdpFrame::parse(frame).ok()?;
        let to = parsed.addresses;
        let unicast = to.dst_ip == self.local.address && to.dst_port == self.local.port;
        let ours = to.src_ip == self.switch && (unicast || Some(to.dst_ip) == self.group);
        ours.then(|| (parsed.ecn, parsed.datagram(frame)))
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
        bitmap: 1,
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
        port: 40_000,
    };

    fn station() -> Station {
        Station::new(LOCAL, SWITCH, Some(GROUP))
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
        assert_eq!(s.finish(&mut [0; 200], 150, 31249), None);
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
                src_port: LOCAL.port,
                dst_port: 31_251,
            };
            frame::emit(&mut want, &addresses, &header_of(units));
            let mut got = want.clone();
            got[..UDP_END].fill(0xa5);
            let len = s.finish(&mut got, datagram, 31_251);
            assert_eq!(len, Some(want.len()));
            assert_eq!(got, want);
        }
    }

    #[test]
    fn datagrams_are_taken_from_the_switch_to_us_and_our_group() {
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
            let (ecn, len) = s.datagram(&f).map(|(ecn, d)| (ecn, d.len()))?;
            assert_eq!(ecn, Ecn::Ect0);
            assert!(frame::mark(&mut f));
            assert_eq!(s.datagram(&f)?.0, Ecn::Ce);
            Some(len)
        };
        let ours = Some(HEADER_BYTES);
        assert_eq!(frame(SWITCH, LOCAL.address, LOCAL.port), ours);
        assert_eq!(frame(SWITCH, GROUP, 31_249), ours);
        assert_eq!(frame(SWITCH, LOCAL.address, 1), None);
        assert_eq!(frame(SWITCH, Ipv4Addr::new(239, 84, 0, 8), 31_249), None);
        assert_eq!(frame(LOCAL.address, GROUP, 31_249), None);
    }
}
