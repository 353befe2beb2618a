use super::*;
use crate::header::{Element, Flags, Kind};
use crate::ids::{Epoch, FragmentId, Rank};
use crate::{HEADERS_BYTES, JobId};
use proptest::prelude::*;
use std::string::ToString;
use std::vec;

fn addresses() -> Addresses {
    Addresses {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 0xfe]),
        src_ip: Ipv4Addr::new(10, 84, 0, 1),
        dst_ip: Ipv4Addr::new(10, 84, 0, 254),
        src_port: 40001,
        dst_port: 31249,
    }
}

fn header(units: u8) -> Header {
    Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 0,
        element: Element::F32,
        job: JobId(7),
        epoch: Epoch(1),
        fragment: FragmentId(3),
        rank: Rank(0),
        units,
        bitmap: 1,
        tag: crate::AuthTag::NONE,
    }
}

fn frame() -> vec::Vec<u8> {
    let mut f = vec![0xa5; HEADERS_BYTES + 128];
    emit(&mut f, &addresses(), &header(2));
    f
}

#[test]
fn emit_writes_the_headers_and_leaves_the_payload() {
    let f = frame();
    assert_eq!(f[HEADERS_BYTES..], [0xa5; 128]);
    // 20 + 8 + 22 + 128
    assert_eq!(f[16..18], 178u16.to_be_bytes());
    assert_eq!(
        internet_checksum(&f[14..34]),
        0,
        "checksum of a valid IPv4 header"
    );
}

#[test]
fn parse_reads_what_emit_wrote() {
    let f = frame();
    let got = UdpFrame::parse(&f).unwrap();
    assert_eq!(got.addresses, addresses());
    assert_eq!(Header::parse(got.datagram(&f)), Ok(header(2)));
}

#[test]
fn padding_behind_the_packet_is_ignored() {
    let mut f = frame();
    f.extend_from_slice(&[0x5a; 9]);
    let got = UdpFrame::parse(&f).unwrap();
    assert_eq!(Header::parse(got.datagram(&f)), Ok(header(2)));
}

#[test]
fn truncated_at_every_length_is_refused() {
    let f = frame();
    for len in 0..f.len() {
        let want = match len {
            0..34 => FrameError::Truncated,
            _ => FrameError::IpLength,
        };
        assert_eq!(UdpFrame::parse(&f[..len]), Err(want), "length {len}");
    }
}

#[test]
fn each_requirement_has_its_own_error() {
    let with = |at: usize, bytes: &[u8]| {
        let mut f = frame();
        f[at..at + bytes.len()].copy_from_slice(bytes);
        UdpFrame::parse(&f)
    };
    assert_eq!(with(12, &[0x81, 0x00]), Err(FrameError::Vlan));
    assert_eq!(with(12, &[0x88, 0xa8]), Err(FrameError::Vlan));
    assert_eq!(with(12, &[0x86, 0xdd]), Err(FrameError::NotIpv4));
    assert_eq!(with(14, &[0x65]), Err(FrameError::IpVersion));
    assert_eq!(with(14, &[0x46]), Err(FrameError::IpOptions));
    assert_eq!(with(14, &[0x44]), Err(FrameError::IpOptions));
    assert_eq!(with(20, &[0x20, 0]), Err(FrameError::IpFragment));
    assert_eq!(with(20, &[0x00, 1]), Err(FrameError::IpFragment));
    assert_eq!(with(23, &[6]), Err(FrameError::NotUdp));
    assert_eq!(with(16, &[0, 27]), Err(FrameError::IpLength));
    assert_eq!(with(16, &[0xff, 0xff]), Err(FrameError::IpLength));
    assert_eq!(with(38, &[0, 7]), Err(FrameError::UdpLength));
    assert_eq!(with(38, &[0xff, 0xff]), Err(FrameError::UdpLength));
}

#[test]
fn the_internet_checksum_is_that_of_the_standard() {
    // The example of RFC 1071, section 3; then an odd byte; then one carry after the other.
    let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(internet_checksum(&example), !0xddf2);
    assert_eq!(internet_checksum(&[0x12, 0x34, 0x56]), !0x6834);
    assert_eq!(internet_checksum(&[]), 0xffff);
    for len in [2, 20, 65_534] {
        assert_eq!(internet_checksum(&vec![0xff; len]), 0, "{len} bytes");
    }
    assert_eq!(internet_checksum(&[0xff; 65_535]), !0xff00);
}

#[test]
fn marks_only_what_takes_part_and_keeps_the_checksum() {
    let mut f = frame();
    assert_eq!(UdpFrame::parse(&f).unwrap().ecn, Ecn::Ect0);
    for _ in 0..2 {
        assert!(mark(&mut f));
        assert_eq!(UdpFrame::parse(&f).unwrap().ecn, Ecn::Ce);
        assert_eq!(internet_checksum(&f[14..34]), 0);
    }
    let mut others = vec![frame(), frame(), frame(), frame()[..33].to_vec()];
    others[0][15] = 0;
    others[1][12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
    others[2][14] = 0x65;
    for mut other in others {
        let before = other.clone();
        assert!(!mark(&mut other));
        assert_eq!(other, before);
    }
}

#[test]
fn a_header_is_marked_by_congestion_if_it_carries_elements() {
    let data = header(1);
    for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1] {
        assert_eq!(data.received_with(ecn), data);
    }
    let marked = data.received_with(Ecn::Ce);
    assert!(marked.flags.has(Flags::MARKED) && marked.check().is_ok());
    let nack = Header {
        kind: Kind::Nack,
        element: Element::None,
        units: 0,
        ..data
    };
    assert_eq!(nack.received_with(Ecn::Ce), nack);
}

proptest! {
    #[test]
    fn the_checksum_of_a_marked_frame_is_right(ip in any::<u32>(), id in any::<u16>(), tos in any::<u8>()) {
        let mut f = frame();
        f[15] = tos;
        f[18..20].copy_from_slice(&id.to_be_bytes());
        f[26..30].copy_from_slice(&ip.to_be_bytes());
        f[24..26].fill(0);
        let checksum = internet_checksum(&f[14..34]);
        f[24..26].copy_from_slice(&checksum.to_be_bytes());
        prop_assert_eq!(mark(&mut f), tos & 3 != 0);
        prop_assert_eq!(internet_checksum(&f[14..34]), 0);
    }
}

#[test]
fn groups_and_macs() {
    assert_eq!(group_of(JobId(0x0102)), Ipv4Addr::new(239, 84, 1, 2));
    let mac = Mac::of_group(group_of(JobId(0x0102)));
    assert_eq!(mac.to_string(), "01:00:5e:54:01:02");
    assert!(mac.is_group());
    assert_eq!("01:00:5e:54:01:02".parse(), Ok(mac));
    for bad in [
        "",
        "01:00:5e:54:01",
        "01:00:5e:54:01:02:03",
        "1:00:5e:54:01:02",
        "+1:00:5e:54:01:02",
        "zz:00:5e:54:01:02",
    ] {
        assert_eq!(bad.parse::<Mac>(), Err(MacSyntax), "{bad}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), ipv4 in any::<bool>()) {
        if ipv4 && bytes.len() > 24 {
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            bytes[23] = 17;
        }
        if let Ok(f) = UdpFrame::parse(&bytes) {
            prop_assert_eq!(f.datagram(&bytes).len(), f.datagram_bytes);
        }
    }
}
