#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// What a superframe is made of.
#[derive(Clone, Debug)]
struct Spec {
    tags: usize,
    ipv6: bool,
    udp: bool,
    /// Words of IPv4 and TCP options.
    options: (usize, usize),
    flags: u8,
    payload: Vec<u8>,
}

impl Spec {
    fn plain(ipv6: bool, udp: bool, bytes: usize) -> Self {
        Self {
            tags: 0,
            ipv6,
            udp,
            options: (0, 3),
            flags: FIN | PSH | CWR | 0x10,
            payload: (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect(),
        }
    }

    fn build(&self) -> Vec<u8> {
        let protocol = if self.udp { UDP } else { TCP };
        let mut transport = vec![0x7a, 0x11, 0x00, 0x50];
        if self.udp {
            transport.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            transport.extend([0, 0]);
        } else {
            let words = 5 + self.options.1;
            // The number wraps round within the payload.
            transport.extend(0xffff_fd00_u32.to_be_bytes());
            transport.extend([0, 0, 0, 9, (words << 4) as u8, self.flags, 1, 2, 0, 0, 0, 0]);
            transport.extend(vec![1; self.options.1 * 4]);
        }
        transport.extend(&self.payload);
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in 0..self.tags {
            frame.extend([0x81, 0, 0, 5 + tag as u8]);
        }
        if self.ipv6 {
            frame.extend([0x86, 0xdd, 0x61, 0x23, 0x45, 0x67]);
            frame.extend((transport.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([0xfd; 16]);
            frame.extend([0xfe; 16]);
        } else {
            let header = 20 + 4 * self.options.0;
            frame.extend([8, 0, 0x40 | (header / 4) as u8, 2]);
            frame.extend(((header + transport.len()) as u16).to_be_bytes());
            frame.extend([
                0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0, 10, 84, 0, 1, 10, 84, 0, 2,
            ]);
            frame.extend(vec![1; 4 * self.options.0]);
            let ip = frame.len() - header;
            let checksum = !naive_sum(&[&frame[ip..]]);
            put(&mut frame, ip + 10, checksum);
        }
        frame.extend(transport);
        frame
    }
}

fn cut(frame: &[u8], segment_bytes: u16) -> Vec<Vec<u8>> {
    let it = Superframe::parse(frame, frame.len(), segment_bytes).unwrap();
    let (head, payload) = frame.split_at(it.headers_bytes());
    let one = |index| {
        let part = &payload[it.payload_of(index)];
        let mut out = vec![0xa5; head.len()];
        out.extend(part);
        it.write_headers(head, index, &mut out);
        out
    };
    (0..it.segments()).map(one).collect()
}

/// The sum that a receiver computes, by the RFC's own words: all 16-bit words, carries added.
fn naive_sum(parts: &[&[u8]]) -> u16 {
    let all: Vec<u8> = parts.concat();
    let mut sum = 0_u32;
    for pair in all.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Reads a frame as a host does, by code of its own: checksums, lengths, and what is inside.
fn receive(spec: &Spec, frame: &[u8]) -> (u16, u32, u8, Vec<u8>) {
    let ip = &frame[14 + 4 * spec.tags..];
    let (id, header, pseudo) = if spec.ipv6 {
        assert_eq!(usize::from(word(ip, 4).unwrap()), ip.len() - 40);
        (0, 40, ip[8..40].to_vec())
    } else {
        let header = 20 + 4 * spec.options.0;
        assert_eq!(usize::from(word(ip, 2).unwrap()), ip.len());
        assert_eq!(naive_sum(&[&ip[..header]]), 0xffff, "IPv4's checksum");
        (word(ip, 4).unwrap(), header, ip[12..20].to_vec())
    };
    let transport = &ip[header..];
    let protocol = [0, if spec.udp { UDP } else { TCP }];
    let length = (transport.len() as u16).to_be_bytes();
    let sum = naive_sum(&[&pseudo, &protocol, &length, transport]);
    assert_eq!(sum, 0xffff, "the transport's checksum");
    if spec.udp {
        assert_eq!(usize::from(word(transport, 4).unwrap()), transport.len());
        assert_ne!(word(transport, 6), Some(0), "without a checksum");
        (id, 0, 0, transport[8..].to_vec())
    } else {
        let number = u32::from_be_bytes(*transport[4..].first_chunk().unwrap());
        let payload = transport[20 + 4 * spec.options.1..].to_vec();
        (id, number, transport[13], payload)
    }
}

fn is_cut_exactly(spec: &Spec, segment_bytes: u16) {
    let frames = cut(&spec.build(), segment_bytes);
    let n = frames.len();
    let mut whole = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let (id, number, flags, payload) = receive(spec, frame);
        assert_eq!(frame[..12], spec.build()[..12]);
        if !spec.ipv6 {
            assert_eq!(id, 0xfffe_u16.wrapping_add(index as u16));
        }
        if !spec.udp {
            assert_eq!(number, 0xffff_fd00_u32.wrapping_add(whole.len() as u32));
            let last = if index + 1 == n { 0 } else { FIN | PSH };
            let first = if index == 0 { 0 } else { CWR };
            assert_eq!(flags, spec.flags & !last & !first, "frame {index} of {n}");
        }
        let is_last = index + 1 == n;
        assert!(payload.len() == usize::from(segment_bytes) || is_last && !payload.is_empty());
        whole.extend(payload);
    }
    assert!(whole == spec.payload);
}

#[test]
fn every_kind_is_cut_exactly() {
    for ipv6 in [false, true] {
        for udp in [false, true] {
            for (bytes, segment) in [(1, 1), (2, 1), (1448, 1448), (1449, 1448), (65_000, 1448)] {
                is_cut_exactly(&Spec::plain(ipv6, udp, bytes), segment);
            }
        }
    }
}

#[test]
fn headers_cover_what_the_memory_held() {
    let spec = Spec::plain(false, false, 3000);
    let frame = spec.build();
    let it = Superframe::parse(&frame, frame.len(), 1000).unwrap();
    let made = |fill: u8| {
        let mut out = vec![fill; it.headers_bytes()];
        out.extend(&spec.payload[it.payload_of(1)]);
        it.write_headers(&frame, 1, &mut out);
        out
    };
    assert_eq!(made(0xa5), made(0));
}

#[test]
fn the_open_checksum_is_the_pseudo_headers() {
    for (ipv6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut spec = Spec::plain(ipv6, udp, 40_001);
        spec.tags = 1;
        let mut frame = spec.build();
        let it = Superframe::parse(&frame, frame.len(), 1400).unwrap();
        it.open_checksum(&mut frame);
        // Finished as a device does: the complement of the sum from the transport's header on.
        let at = it.transport_at();
        let checksum = !naive_sum(&[&frame[at..]]);
        put(&mut frame, at + it.checksum_offset(), checksum);
        receive(&spec, &frame);
    }
}

#[test]
fn what_a_superframe_becomes_is_counted() {
    let frame = Spec::plain(false, false, 3001).build();
    let it = Superframe::parse(&frame, frame.len(), 1000).unwrap();
    assert_eq!((it.segments(), it.kind()), (4, Segments::Tcp4));
    assert_eq!(it.payload_of(3), 3000..3001);
    assert_eq!(it.payload_of(4), 3001..3001);
    assert!(it.has_cwr(&frame));
    let udp = Spec::plain(true, true, 10).build();
    let udp = Superframe::parse(&udp, udp.len(), 10).unwrap();
    assert_eq!((udp.segments(), udp.kind()), (1, Segments::Udp));
    // Not by a frame's lengths alone: there is a bound.
    let long = Spec::plain(false, false, 60_000).build();
    assert!(Superframe::parse(&long, long.len(), 1).is_none());
    assert!(Superframe::parse(&long, long.len(), 117).is_none());
    assert!(Superframe::parse(&long, long.len(), 118).is_some());
    assert!(Superframe::parse(&long, long.len(), 0).is_none());
}

#[test]
fn contradictions_are_refused() {
    let spec = Spec::plain(false, false, 3000);
    let frame = spec.build();
    let parse = |frame: &[u8], bytes| Superframe::parse(frame, bytes, 1000);
    assert!(parse(&frame, frame.len()).is_some());
    // Version, header length, length, fragment, protocol; TCP's header length.
    for (at, value) in [
        (14, 0x65),
        (14, 0x44),
        (17, 1),
        (20, 0x20),
        (21, 1),
        (23, 50),
        (46, 0x40),
    ] {
        let mut wrong = frame.clone();
        wrong[at] = value;
        assert!(parse(&wrong, wrong.len()).is_none(), "byte {at}");
    }
    assert!(parse(&frame, frame.len() - 1).is_none());
    assert!(parse(&frame, frame.len() + 1).is_none());
    // All headers have to be in the first piece, and no more.
    let headers = frame.len() - 3000;
    assert!(parse(&frame[..headers], frame.len()).is_some());
    assert!(parse(&frame[..headers - 1], frame.len()).is_none());
    // No payload at all.
    let none = Spec::plain(false, false, 0).build();
    assert!(parse(&none, none.len()).is_none());
    let mut udp = Spec::plain(false, true, 3000).build();
    assert!(parse(&udp, udp.len()).is_some());
    udp[39] ^= 1;
    assert!(parse(&udp, udp.len()).is_none(), "UDP's length");
    let mut six = Spec::plain(true, false, 3000);
    six.tags = 2;
    assert!(parse(&six.build(), six.build().len()).is_some());
    six.tags = 3;
    assert!(parse(&six.build(), six.build().len()).is_none());
    let mut extended = Spec::plain(true, false, 3000).build();
    extended[20] = 0;
    assert!(
        parse(&extended, extended.len()).is_none(),
        "an extension header"
    );
}

proptest! {
    #[test]
    fn any_superframe_is_cut_exactly(
        (tags, ipv6, udp) in (0..=2_usize, any::<bool>(), any::<bool>()),
        options in (0..=10_usize, 0..=10_usize),
        flags: u8,
        payload in proptest::collection::vec(any::<u8>(), 1..4000),
        segment in 8..3000_u16,
    ) {
        let spec = Spec { tags, ipv6, udp, options, flags, payload };
        is_cut_exactly(&spec, segment);
    }

    #[test]
    fn nothing_panics(
        (ipv6, udp, tags) in (any::<bool>(), any::<bool>(), 0..=3_usize),
        changes in proptest::collection::vec((0..80_usize, any::<u8>()), 0..6),
        (kept, more) in (0..400_usize, 0..70_000_usize),
        segment: u16,
    ) {
        let mut spec = Spec::plain(ipv6, udp, 300);
        spec.tags = tags;
        let mut frame = spec.build();
        for (at, value) in changes {
            frame[at] = value;
        }
        frame.truncate(kept);
        let bytes = if more % 3 == 0 { frame.len() } else { more };
        if let Some(it) = Superframe::parse(&frame, bytes, segment) {
            prop_assert!(it.headers_bytes() <= frame.len().min(SUPERFRAME_HEADERS_BYTES_MAX));
            prop_assert!((1..=SUPERFRAME_SEGMENTS_MAX).contains(&it.segments()));
            it.open_checksum(&mut frame);
            for index in 0..it.segments() {
                let mut out = vec![0; it.headers_bytes() + it.payload_of(index).len()];
                it.write_headers(&frame, index, &mut out);
            }
        }
    }
}
