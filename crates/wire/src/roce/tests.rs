use super::{
    AETH_BYTES, Aeth, BTH_BYTES, Bth, ICRC_BYTES, Opcode, PORT, Packet, Place, Psn, QueuePair,
    Reth, RoceError, Syndrome, Verb, is_sealed, seal,
};
use crate::UdpFrame;
use crate::frame::UDP_END;
use proptest::prelude::*;
use std::vec::Vec;

/// A CNP that a ConnectX-4 Lx sent.
const CNP: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c400040119161\
    0a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";
/// A SEND of an unreliable connection, of 18 bytes, with its ICRC.
const SEND: &str = "248a07a8fa22248a07a8fa22080045010040047840004011b4d5c0a80007c0a80007\
    c00012b7002caca22460ffff000000d300cf17104630818be28935d90e9a95505401be885e50000078f353f3";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|it| !it.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn a_congestion_notification_of_a_nic() {
    let mut frame = bytes(CNP);
    assert!(is_sealed(&frame));
    let udp = UdpFrame::parse(&frame).unwrap();
    assert_eq!(udp.addresses.dst_port, PORT);
    let datagram = udp.datagram(&frame);
    let packet = Packet::parse(datagram).unwrap();
    assert_eq!(packet.bth.opcode, Opcode::Cnp);
    assert_eq!(packet.bth.qp, QueuePair(0x118));
    assert!(packet.bth.becn && !packet.bth.fecn && packet.payload.is_empty());
    assert_eq!(packet.bth.emit(), datagram[..BTH_BYTES]);
    // What routers change is not covered; all else is.
    for byte in 0..frame.len() - ICRC_BYTES {
        let changes = [15, 22, 24, 25, 40, 41, UDP_END + 4].contains(&byte) || byte < 14;
        frame[byte] ^= 0x10;
        assert_eq!(is_sealed(&frame), changes, "byte {byte}");
        frame[byte] ^= 0x10;
    }
    let sealed = frame.clone();
    frame[UDP_END + BTH_BYTES..].fill(0);
    seal(&mut frame);
    assert_eq!(frame, sealed);
}

#[test]
fn an_icrc_covers_the_payload_and_the_pad() {
    let frame = bytes(SEND);
    assert_eq!(frame.len(), 14 + 64);
    assert!(is_sealed(&frame));
    // Its opcode is of no reliable connection.
    let udp = UdpFrame::parse(&frame).unwrap();
    let parsed = Packet::parse(udp.datagram(&frame));
    assert_eq!(parsed, Err(RoceError::Opcode));
    assert!(!is_sealed(&frame[..UDP_END + BTH_BYTES + ICRC_BYTES - 1]));
    assert!(!is_sealed(&[]));
}

fn message(verb: Verb, place: Place, has_immediate: bool) -> Opcode {
    Opcode::Message {
        verb,
        place,
        has_immediate,
    }
}

#[test]
fn opcodes_have_the_numbers_of_reliable_connections() {
    let all = [
        (0x00, message(Verb::Send, Place::First, false), 0),
        (0x01, message(Verb::Send, Place::Middle, false), 0),
        (0x02, message(Verb::Send, Place::Last, false), 0),
        (0x03, message(Verb::Send, Place::Last, true), 4),
        (0x04, message(Verb::Send, Place::Only, false), 0),
        (0x05, message(Verb::Send, Place::Only, true), 4),
        (0x06, message(Verb::Write, Place::First, false), 16),
        (0x07, message(Verb::Write, Place::Middle, false), 0),
        (0x08, message(Verb::Write, Place::Last, false), 0),
        (0x09, message(Verb::Write, Place::Last, true), 4),
        (0x0a, message(Verb::Write, Place::Only, false), 16),
        (0x0b, message(Verb::Write, Place::Only, true), 20),
        (0x11, Opcode::Ack, AETH_BYTES),
        (0x81, Opcode::Cnp, 16),
    ];
    for (bits, opcode, extended) in all {
        assert_eq!(opcode.bits(), bits);
        assert_eq!(opcode.extended_bytes(), extended, "{opcode:?}");
    }
    for bits in 0..=u8::MAX {
        let known = all.iter().find(|(it, ..)| *it == bits);
        assert_eq!(Opcode::from_bits(bits), known.map(|it| it.1), "{bits:#x}");
    }
}

#[test]
fn a_write_says_where_it_goes() {
    let reth = Reth {
        address: 0x0102_0304_0506_0708,
        rkey: 0x090a_0b0c,
        bytes: 170 * 1024,
    };
    let mut datagram = [0; BTH_BYTES + 16 + 8 + ICRC_BYTES];
    let mut bth = Bth {
        opcode: message(Verb::Write, Place::Only, false),
        is_solicited: true,
        is_migrated: true,
        pad: 3,
        pkey: 0xffff,
        fecn: true,
        becn: false,
        qp: QueuePair(0x00ab_cdef),
        ack_requested: true,
        psn: Psn::new(0xff_fffe),
    };
    datagram[..BTH_BYTES].copy_from_slice(&bth.emit());
    datagram[BTH_BYTES..BTH_BYTES + 16].copy_from_slice(&reth.emit());
    let packet = Packet::parse(&datagram).unwrap();
    assert_eq!((packet.bth, packet.payload.len()), (bth, 5));
    assert_eq!(packet.reth(&datagram), Some(reth));
    assert_eq!(packet.aeth(&datagram), Err(RoceError::Opcode));
    // A part that has none.
    bth.opcode = message(Verb::Write, Place::Middle, false);
    datagram[..BTH_BYTES].copy_from_slice(&bth.emit());
    assert_eq!(Packet::parse(&datagram).unwrap().reth(&datagram), None);
}

#[test]
fn acknowledgements() {
    let all = [
        (0x1f, Syndrome::Ack(31)),
        (0x2c, Syndrome::NotReady(12)),
        (0x60, Syndrome::SequenceError),
        (0x62, Syndrome::Fatal(2)),
    ];
    for (byte, syndrome) in all {
        let aeth = Aeth {
            syndrome,
            messages: 0x00ff_0001,
        };
        assert_eq!(aeth.emit(), [byte, 0xff, 0, 1]);
        assert_eq!(Aeth::parse(aeth.emit()), Ok(aeth));
    }
    for byte in [0x40, 0x65, 0x7f, 0x80, 0xff] {
        assert_eq!(Aeth::parse([byte, 0, 0, 0]), Err(RoceError::Syndrome));
    }
}

#[test]
fn lengths_that_do_not_fit() {
    let bth = Bth::parse(&bytes(CNP)[UDP_END..]).unwrap();
    let send = |pad| {
        let opcode = message(Verb::Send, Place::Only, false);
        Bth { opcode, pad, ..bth }.emit()
    };
    let parse = |pad, behind: usize| {
        let mut datagram = send(pad).to_vec();
        datagram.resize(BTH_BYTES + behind, 0);
        Packet::parse(&datagram).map(|it| it.payload)
    };
    assert_eq!(parse(0, 3), Err(RoceError::Truncated));
    assert_eq!(parse(0, 4), Ok(12..12));
    assert_eq!(parse(1, 4), Err(RoceError::Pad));
    assert_eq!(parse(0, 7), Err(RoceError::Pad));
    assert_eq!(parse(3, 8), Ok(12..13));
    let mut version = send(0);
    version[1] |= 1;
    assert_eq!(Bth::parse(&version), Err(RoceError::Version));
    assert_eq!(Bth::parse(&version[..11]), Err(RoceError::Truncated));
}

proptest! {
    #[test]
    fn parse_never_panics(datagram: Vec<u8>) {
        if let Ok(packet) = Packet::parse(&datagram) {
            prop_assert!(packet.payload.end <= datagram.len());
            let _ = packet.reth(&datagram);
            let _ = packet.aeth(&datagram);
        }
        let _ = is_sealed(&datagram);
    }
}
