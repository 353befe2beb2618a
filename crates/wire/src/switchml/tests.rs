use super::*;
use crate::{Mac, UdpFrame};
use core::net::Ipv4Addr;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn header() -> Header {
    Header {
        size: Size::B256,
        job: 0x77,
        packet: [4, 3, 2, 1],
        slot: 0x0123,
        set: true,
        exponents: [-3, 127],
    }
}

const BYTES: [u8; HEADER_BYTES] = [0x11, 0x77, 4, 3, 2, 1, 0x81, 0x23, 0xfd, 0x7f];

fn addresses() -> Addresses {
    Addresses {
        src_mac: Mac([2, 0, 0, 0, 0, 0xfe]),
        dst_mac: Mac([2, 0, 0, 0, 0, 1]),
        src_ip: Ipv4Addr::new(10, 84, 0, 254),
        dst_ip: Ipv4Addr::new(10, 84, 0, 1),
        src_port: 0xbee0,
        dst_port: 4001,
    }
}

fn datagram(header: &[u8], elements: usize) -> Vec<u8> {
    let mut d = header.to_vec();
    d.resize(header.len() + elements, 0xa5);
    d
}

#[test]
fn emits_the_published_bytes_and_no_more() {
    let mut buf = [0xa5; 20];
    header().emit(&mut buf);
    assert_eq!(buf[..HEADER_BYTES], BYTES);
    assert_eq!(buf[HEADER_BYTES..], [0xa5; 10]);
}

#[test]
fn parses_the_published_bytes() {
    assert_eq!(Header::parse(&datagram(&BYTES, 256)), Ok(header()));
}

#[test]
fn every_other_length_is_refused() {
    let whole = datagram(&BYTES, 257);
    for len in (0..=whole.len()).filter(|len| *len != 266) {
        let want = if len < HEADER_BYTES {
            HeaderError::Truncated
        } else {
            HeaderError::Length
        };
        assert_eq!(Header::parse(&whole[..len]), Err(want), "length {len}");
    }
}

#[test]
#[should_panic(expected = "shorter than the SwitchML header")]
fn emit_into_a_short_buffer_panics() {
    header().emit(&mut [0; HEADER_BYTES - 1]);
}

#[test]
#[should_panic(expected = "shorter than the headers")]
fn emit_of_all_headers_into_a_short_buffer_panics() {
    emit_reply(&mut [0; HEADERS_BYTES - 1], &addresses(), &header());
}

#[test]
fn other_types_and_sizes_are_refused() {
    let with = |first: u8| {
        let mut b = BYTES;
        b[0] = first;
        Header::parse(&datagram(&b, 256))
    };
    for kind in (0..16).filter(|kind| *kind != 1) {
        assert_eq!(with(kind << 4 | 1), Err(HeaderError::Kind), "type {kind}");
    }
    assert_eq!(with(0x17), Err(HeaderError::Size));
    assert_eq!(with(0x13), Err(HeaderError::Length), "1024 bytes");
}

#[test]
fn bits_without_a_meaning_are_ignored_and_sent_as_0() {
    let mut b = BYTES;
    b[0] |= 1 << 3;
    b[6] |= 1 << 6;
    let parsed = Header::parse(&datagram(&b, 256));
    assert_eq!(parsed, Ok(header()));
    let mut out = [0xa5; HEADER_BYTES];
    header().emit(&mut out);
    assert_eq!(out, BYTES);
}

#[test]
fn sizes_and_their_codes() {
    for (code, size) in Size::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(size.code()), code);
        assert_eq!(Size::from_code(size.code()), Some(size));
        assert_eq!(size.payload_bytes(), 128 << code);
        assert_eq!(size.elements() * 4, size.payload_bytes());
        let mut b = BYTES;
        b[0] = 0x10 | code as u8;
        let parsed = Header::parse(&datagram(&b, size.payload_bytes()));
        assert_eq!(parsed, Ok(Header { size, ..header() }));
    }
    assert!((7..=255).all(|code| Size::from_code(code).is_none()));
}

#[test]
fn sixteen_ports() {
    let ports = (0..=u16::MAX).filter(|port| is_port(*port));
    assert!(ports.eq(0xbee0..=0xbeef));
}

#[test]
fn a_reply_byte_by_byte() {
    let mut out = [0xa5; 60];
    emit_reply(&mut out, &addresses(), &header());
    #[rustfmt::skip]
    let want = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xfe, 8, 0,
        0x45, 0, 1, 38, 0, 0, 0x40, 0, 64, 17, 0x24, 0xf0, 10, 84, 0, 254, 10, 84, 0, 1,
        0xbe, 0xe0, 0x0f, 0xa1, 1, 18, 0, 0,
    ];
    assert_eq!(out[..24], want[..24]);
    assert_eq!(out[26..42], want[26..]);
    assert_eq!(internet_checksum(&out[14..34]), 0, "valid");
    assert_eq!(out[42..52], BYTES);
    assert_eq!(out[52..], [0xa5; 8]);
}

#[test]
fn a_request_has_the_published_checksums() {
    let mut out = [0xa5; 60];
    emit_request(&mut out, &addresses(), &header());
    let mut reply = [0xa5; 60];
    emit_reply(&mut reply, &addresses(), &header());
    assert_eq!(out[24..26], [0, 0]);
    // 10.84.0.254 + 10.84.0.1 + 17 + 274, in ones' complement.
    let sum: u32 = 2 * 0x0a54 + 0x00fe + 0x0001 + 17 + 274;
    assert_eq!(u32::from(u16::from_be_bytes([out[40], out[41]])), sum);
    assert_eq!(out[22], 128);
    for at in [22, 24, 25, 40, 41] {
        out[at] = reply[at];
    }
    assert_eq!(out, reply, "all else");
}

#[test]
fn what_is_emitted_is_parsed() {
    for size in Size::ALL {
        let header = Header { size, ..header() };
        let mut frame = vec![0; HEADERS_BYTES + size.payload_bytes()];
        for emit in [emit_reply, emit_request] {
            emit(&mut frame, &addresses(), &header);
            let udp = UdpFrame::parse(&frame).expect("UDP");
            assert_eq!(udp.addresses, addresses());
            assert_eq!(Header::parse(udp.datagram(&frame)), Ok(header));
        }
    }
}

proptest! {
    #[test]
    fn the_checksum_of_a_reply_is_right(src in any::<u32>(), dst in any::<u32>(), code in 0u8..7) {
        let addresses = Addresses {
            src_ip: Ipv4Addr::from_bits(src),
            dst_ip: Ipv4Addr::from_bits(dst),
            ..addresses()
        };
        let size = Size::from_code(code).expect("a size");
        let mut out = [0xa5; HEADERS_BYTES];
        emit_reply(&mut out, &addresses, &Header { size, ..header() });
        prop_assert_eq!(internet_checksum(&out[14..34]), 0);
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Header::parse(&bytes);
        bytes.resize(HEADER_BYTES + 128, 0);
        bytes[0] = bytes[0] & 0x08 | 0x10;
        let header = Header::parse(&bytes).expect("the right length");
        let mut out = [0xa5; HEADER_BYTES];
        header.emit(&mut out);
        bytes[0] &= !0x08;
        bytes[6] &= !0x40;
        prop_assert_eq!(&out[..], &bytes[..HEADER_BYTES]);
    }
}
