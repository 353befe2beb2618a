use super::*;
use std::vec::Vec;

fn keys(key: &str, previous: Option<&str>) -> FabricKeys {
    FabricKeys {
        key: key.parse().unwrap(),
        previous: previous.map(|key| key.parse().unwrap()),
    }
}

const OLD: &str = "000102030405060708090a0b0c0d0e0f";
const NEW: &str = "100102030405060708090a0b0c0d0e0f";

fn hello(name: &str) -> Hello<'_> {
    Hello {
        mac: Mac([2, 0, 0, 0, 0, 7]),
        ip: Ipv4Addr::new(10, 84, 0, 7),
        udp_port: 31249,
        name,
        port: 3,
        is_up: true,
        tier: 2,
        stamp: Stamp {
            session: 0x0102_0304_0506_0708,
            count: 9,
        },
        heard: Stamp {
            session: 0x1112_1314_1516_1718,
            count: 8,
        },
        reach: Reach::default(),
    }
}

fn emitted(hello: &Hello<'_>, reach: &[SwitchId], keys: &FabricKeys) -> Vec<u8> {
    let mut buffer = [0xa5; FRAME_BYTES_MAX];
    let bytes = emit_hello(&mut buffer, hello, reach.iter().copied(), keys);
    buffer[..bytes].to_vec()
}

#[test]
fn a_hello_is_read_as_it_was_written() {
    let keys = keys(NEW, None);
    for (name, switches) in [("a", 0), ("leaf1", 3), (&*"x".repeat(NAME_MAX), REACH_MAX)] {
        let reach: Vec<_> = (0..switches as u32)
            .map(|n| SwitchId(n << 20 | 5))
            .collect();
        let sent = hello(name);
        let frame = emitted(&sent, &reach, &keys);
        assert!(is_fabric(&frame));
        let Some(FabricFrame::Hello(found)) = parse(&frame, &keys) else {
            panic!("{name}: no hello");
        };
        assert_eq!(found.reach.iter().collect::<Vec<_>>(), reach);
        let found = Hello {
            reach: sent.reach,
            ..found
        };
        assert_eq!(found, sent);
    }
}

#[test]
fn more_than_fits_is_left_out() {
    let keys = keys(NEW, None);
    let many: Vec<_> = (0..1000).map(SwitchId).collect();
    let frame = emitted(&hello(&"y".repeat(100)), &many, &keys);
    assert_eq!(frame.len(), FRAME_BYTES_MAX);
    let Some(FabricFrame::Hello(found)) = parse(&frame, &keys) else {
        panic!("no hello");
    };
    assert_eq!(
        (found.name.len(), found.reach.iter().count()),
        (NAME_MAX, REACH_MAX)
    );
}

#[test]
fn addresses_are_read_as_they_were_written() {
    let keys = keys(NEW, Some(OLD));
    let stamp = hello("a").stamp;
    let all: Vec<_> = (0..200_u8)
        .map(|n| (Mac([2, 0, 0, 0, 1, n]), u16::from(n) * 3))
        .collect();
    for count in [0, 1, ADDRESSES_MAX, 200] {
        let mut buffer = [0xa5; FRAME_BYTES_MAX];
        let bytes = emit_addresses(&mut buffer, Mac([2; 6]), stamp, &all[..count], &keys);
        let Some(FabricFrame::Addresses(found, entries)) = parse(&buffer[..bytes], &keys) else {
            panic!("no addresses");
        };
        assert_eq!(found, stamp);
        let entries: Vec<_> = entries.iter().collect();
        assert_eq!(entries, all[..count.min(ADDRESSES_MAX)]);
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_refused() {
    let keys = keys(NEW, Some(OLD));
    let frame = emitted(&hello("leaf1"), &[SwitchId(1), SwitchId(2)], &keys);
    for at in 0..frame.len() {
        assert_eq!(parse(&frame[..at], &keys), None, "cut at {at}");
    }
    let tags = frame.len() - TAGS_BYTES;
    for at in 0..tags {
        for bit in 0..8 {
            let mut other = frame.clone();
            other[at] ^= 1 << bit;
            assert_eq!(parse(&other, &keys), None, "byte {at}");
        }
    }
    // One good tag is enough: with both broken it is refused.
    let mut other = frame.clone();
    other[tags] ^= 1;
    assert!(parse(&other, &keys).is_some());
    other[tags + MAC_BYTES] ^= 1;
    assert_eq!(parse(&other, &keys), None);
    let longer = [&frame[..], &[0]].concat();
    assert_eq!(parse(&longer, &keys), None);
}

#[test]
fn keys_are_changed_one_switch_at_a_time() {
    let (old, both, new) = (keys(OLD, None), keys(NEW, Some(OLD)), keys(NEW, None));
    for (from, to, good) in [
        (&old, &both, true),
        (&both, &old, true),
        (&both, &both, true),
        (&both, &new, true),
        (&new, &both, true),
        (&old, &new, false),
        (&new, &old, false),
    ] {
        let frame = emitted(&hello("a"), &[], from);
        assert_eq!(parse(&frame, to).is_some(), good);
    }
}

#[test]
fn what_is_sealed_but_no_frame_is_refused() {
    let keys = keys(NEW, None);
    let good = emitted(&hello("leaf1"), &[SwitchId(1)], &keys);
    let resealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        keys.seal(&mut frame);
        parse(&frame, &keys).is_some()
    };
    assert!(resealed(&|_| ()));
    assert!(!resealed(&|frame| frame[layout::KIND] = 3));
    assert!(!resealed(&|frame| frame[layout::NAME_BYTES] = 0));
    assert!(!resealed(&|frame| frame[layout::NAME_BYTES] = 255));
    assert!(!resealed(&|frame| frame[layout::NAME] = b'\n'));
    assert!(!resealed(&|frame| frame[layout::NAME] = 0xff));
    assert!(!resealed(&|frame| frame[layout::ITEMS].fill(0xff)));
    assert!(!resealed(&|frame| frame[layout::ITEMS].fill(0)));
    assert!(!resealed(
        &|frame| frame.truncate(layout::ENTRIES + TAGS_BYTES)
    ));
    assert!(!resealed(&|frame| {
        frame.truncate(layout::NAME_BYTES + TAGS_BYTES);
    }));
}

proptest::proptest! {
    #[test]
    fn no_frame_panics(mut frame in proptest::collection::vec(0_u8.., 0..300), sealed: bool) {
        let keys = keys(NEW, None);
        if sealed && frame.len() >= layout::SESSION.start + TAGS_BYTES {
            frame[ethernet::DST].copy_from_slice(&FABRIC_MAC.0);
            frame[ethernet::ETHERTYPE].copy_from_slice(&ETHERTYPE_FABRIC.to_be_bytes());
            frame[layout::MAGIC].copy_from_slice(&MAGIC);
            frame[layout::KIND] &= 3;
            keys.seal(&mut frame);
        }
        match parse(&frame, &keys) {
            Some(FabricFrame::Hello(hello)) => assert!(hello.reach.iter().count() <= REACH_MAX),
            Some(FabricFrame::Addresses(_, entries)) => {
                assert!(entries.iter().count() * ENTRY_BYTES < frame.len());
            }
            None => {}
        }
    }
}

/// The identities that the documentation names.
#[test]
fn a_switch_is_known_by_its_name() {
    assert_ne!(SwitchId::of("leaf1"), SwitchId::of("leaf2"));
    let digest = Sha256::digest(b"leaf1");
    assert_eq!(SwitchId::of("leaf1").0.to_be_bytes(), digest[..4]);
}
