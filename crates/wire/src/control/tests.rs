use super::*;
use proptest::prelude::*;
use sha2::Sha256;
use std::string::String;
use std::vec::Vec;

fn key() -> Key {
    "000102030405060708090a0b0c0d0e0f".parse().unwrap()
}

fn join() -> Join {
    Join {
        instance: 0x1122_3344_5566_7788,
        challenge: 0x0102_0304_0506_0708,
        role: Role::Worker,
        workers: 8,
        units: 16,
        running: true,
        window: 256,
        shape: [0x5a; 32],
        sent: Some(FragmentId(0xfffe_fdfc)),
        awaiting: 1000,
        salt: 0xa1a2_a3a4_a5a6_a7a8,
        tree: None,
        part: Part::ONLY,
    }
}

fn accept() -> Accept {
    Accept {
        instance: 1,
        challenge: 2,
        state: State::Running,
        workers: 64,
        units: 16,
        shards: 2,
        base_port: 31249,
        window: 256,
        joined: u64::MAX,
        left: 3,
        missing_ps: None,
        group: Ipv4Addr::new(239, 84, 0, 7),
        behind: Some(Behind {
            least: FragmentId(0x1122_3344),
            ranks: 1 << 63 | 5,
            slowest: Rank(63),
            awaiting: 777,
        }),
        mac: Mac([2, 0x54, 1, 2, 3, 4]),
        salt: 0xb1b2_b3b4_b5b6_b7b8,
        wrapped: None,
        place: None,
    }
}

fn refuse() -> Refuse {
    Refuse {
        instance: 1,
        challenge: 2,
        reason: Reason::MemberFailed,
        about: Some(Rank(3)),
        found: LeaveCode::Stalled as u32,
        allowed: 5,
        behind: 1 << 63 | 5,
        concern: None,
    }
}

fn leave() -> Leave {
    Leave {
        instance: 1,
        challenge: 2,
        code: LeaveCode::Stalled,
        fragment: FragmentId(99),
        behind: 1 << 63 | 5,
        salt: 0xc1c2_c3c4_c5c6_c7c8,
        tree: None,
    }
}

/// One datagram of each kind, sealed; the buffer was full of 0xa5.
fn sealed() -> [[u8; DATAGRAM_BYTES]; 4] {
    type Emit<'a> = &'a dyn Fn(&mut [u8]);
    let emits: [Emit<'_>; 4] = [
        &|b| join().emit(b),
        &|b| accept().emit(b),
        &|b| refuse().emit(b),
        &|b| leave().emit(b),
    ];
    emits.map(|emit| {
        let mut b = [0xa5; DATAGRAM_BYTES];
        emit(&mut b);
        key().seal(&mut b);
        b
    })
}

#[test]
fn round_trips() {
    let [j, a, r, l] = sealed();
    assert_eq!(Join::parse(&j), Ok(join()));
    assert_eq!(Accept::parse(&a), Ok(accept()));
    let parts = (0..5).flat_map(|k| (0..1 << k).map(move |index| (index, 1 << k)));
    for (index, count) in parts {
        let accept = Accept {
            missing_ps: Part::new(index, count),
            ..accept()
        };
        let mut b = [0xa5; DATAGRAM_BYTES];
        accept.emit(&mut b);
        assert_eq!(Accept::parse(&b), Ok(accept));
    }
    assert_eq!(Refuse::parse(&r), Ok(refuse()));
    assert_eq!(Leave::parse(&l), Ok(leave()));
}

#[test]
fn unlisted_bytes_are_zero_and_must_be() {
    for (i, d) in sealed().iter().enumerate() {
        for at in 100..112 {
            assert_eq!(d[HEADER_BYTES + at], 0);
        }
        let mut bad = *d;
        bad[HEADER_BYTES + 111] = 1;
        let refused = match i {
            0 => Join::parse(&bad).is_err(),
            1 => Accept::parse(&bad).is_err(),
            2 => Refuse::parse(&bad).is_err(),
            _ => Leave::parse(&bad).is_err(),
        };
        assert!(refused, "payload {i}");
    }
}

#[test]
fn any_flipped_bit_breaks_the_seal() {
    for d in sealed() {
        assert!(key().verify(&d));
        for bit in 0..DATAGRAM_BYTES * 8 {
            let mut bad = d;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!key().verify(&bad), "bit {bit}");
        }
        assert!(!key().verify(&d[..DATAGRAM_BYTES - 1]));
        assert!(!Key::new(&[7; 16]).unwrap().verify(&d), "another key");
    }
}

#[test]
fn truncated_at_every_length_is_refused() {
    for d in sealed() {
        for len in 0..DATAGRAM_BYTES {
            assert!(!key().verify(&d[..len]));
            assert!(Join::parse(&d[..len]).is_err() && Accept::parse(&d[..len]).is_err());
            assert!(Refuse::parse(&d[..len]).is_err() && Leave::parse(&d[..len]).is_err());
        }
    }
}

#[test]
fn out_of_range_fields_are_refused() {
    let bad_joins = [
        Join {
            instance: 0,
            ..join()
        },
        Join {
            workers: 0,
            ..join()
        },
        Join {
            workers: 65,
            ..join()
        },
        Join { units: 0, ..join() },
        Join {
            units: 129,
            ..join()
        },
        Join {
            window: 0,
            ..join()
        },
        Join {
            role: Role::Ps,
            ..join()
        },
        Join {
            running: false,
            ..join()
        },
    ];
    for bad in bad_joins {
        let mut b = [0; DATAGRAM_BYTES];
        bad.emit(&mut b);
        assert_eq!(Join::parse(&b), Err(ControlError), "{bad:?}");
    }
    let bad_accepts = [
        Accept {
            workers: 0,
            ..accept()
        },
        Accept {
            units: 129,
            ..accept()
        },
        Accept {
            shards: 0,
            ..accept()
        },
        Accept {
            base_port: u16::MAX,
            ..accept()
        },
        Accept {
            window: 0,
            ..accept()
        },
        Accept {
            group: Ipv4Addr::new(10, 0, 0, 1),
            ..accept()
        },
        Accept {
            workers: 63,
            ..accept()
        },
    ];
    for bad in bad_accepts {
        let mut b = [0; DATAGRAM_BYTES];
        bad.emit(&mut b);
        assert_eq!(Accept::parse(&b), Err(ControlError), "{bad:?}");
    }
    for (at, value) in [(16, 0), (16, 13), (17, 64), (17, 254)] {
        let mut b = sealed()[2];
        b[HEADER_BYTES + at] = value;
        assert_eq!(Refuse::parse(&b), Err(ControlError), "byte {at} = {value}");
    }
}

/// A sender without J-10 writes zeros there; other values are refused.
#[test]
fn how_far_a_worker_is_may_be_left_out_but_not_half() {
    let changed = |which: usize, changes: &[(usize, u8)]| {
        let mut b = sealed()[which];
        for &(at, value) in changes {
            b[HEADER_BYTES + at] = value;
        }
        b
    };
    let none: Vec<_> = (56..64).map(|at| (at, 0)).collect();
    let silent = Join {
        sent: None,
        awaiting: 0,
        ..join()
    };
    assert_eq!(Join::parse(&changed(0, &none)), Ok(silent));
    for (at, value) in [(60, 0), (60, 2), (60, 255), (61, 1), (62, 4)] {
        assert!(
            Join::parse(&changed(0, &[(at, value)])).is_err(),
            "byte {at}"
        );
    }
    let first = [(56, 0), (57, 0), (58, 0), (59, 0)];
    let first = Join::parse(&changed(0, &first)).map(|join| join.sent);
    assert_eq!(first, Ok(Some(FragmentId(0))));

    assert!(
        Join::parse(&changed(0, &none[..6])).is_err(),
        "only how it waits"
    );

    let none: Vec<_> = (41..44).chain(48..64).map(|at| (at, 0)).collect();
    let behind = Accept::parse(&changed(1, &none)).map(|accept| accept.behind);
    assert_eq!(behind, Ok(None));
    assert!(
        Accept::parse(&changed(1, &none[11..])).is_err(),
        "of no rank"
    );
    assert!(
        Accept::parse(&changed(1, &none[3..])).is_err(),
        "only the slowest"
    );
    // A part that is missing although all have joined, the only one, and none of 4.
    for bad in [
        &[(54, 1)][..],
        &[(55, 2)],
        &[(40, 0), (54, 1)],
        &[(40, 0), (55, 1)],
        &[(40, 0), (55, 3)],
        &[(40, 0), (54, 4), (55, 4)],
        &[(40, 0), (55, 32)],
        &[(40, 2)],
    ] {
        assert!(Accept::parse(&changed(1, bad)).is_err(), "{bad:?}");
    }
    let missing = |changes: &[_]| Accept::parse(&changed(1, changes)).map(|it| it.missing_ps);
    assert_eq!(missing(&[(40, 0)]), Ok(Some(Part::ONLY)));
    let third = missing(&[(40, 0), (54, 3), (55, 4)]);
    assert_eq!(third, Ok(Part::new(3, 4)));
    for (at, value) in [(52, 1), (41, 64), (41, 254), (42, 4)] {
        assert!(
            Accept::parse(&changed(1, &[(at, value)])).is_err(),
            "byte {at}"
        );
    }
    // Rank 7 of 7 workers.
    assert!(Accept::parse(&changed(1, &[(17, 7), (56, 0), (41, 7)])).is_err());
    assert!(Accept::parse(&changed(1, &[(17, 7), (56, 0), (41, 6)])).is_ok());

    // `behind` comes only with this reason and code.
    assert!(Refuse::parse(&changed(2, &[(16, Reason::MemberLost as u8)])).is_err());
    assert!(Refuse::parse(&changed(2, &[(23, 3)])).is_err());
    for code in [0, 1, 2, 3, 5] {
        assert!(Leave::parse(&changed(3, &[(16, code)])).is_err(), "{code}");
    }
    let none: Vec<_> = (24..32).map(|at| (at, 0)).collect();
    assert!(Leave::parse(&changed(3, &none)).is_ok());
}

#[test]
fn keys_are_16_to_64_bytes_of_hex_and_never_printed() {
    let hex = |n: usize| "ab".repeat(n).parse::<Key>();
    assert!(hex(15).is_err() && hex(16).is_ok() && hex(64).is_ok() && hex(65).is_err());
    assert_eq!(hex(16), Key::new(&[0xab; 16]));
    for bad in [
        "",
        "abc",
        "zz0102030405060708090a0b0c0d0e0f",
        "+f0102030405060708090a0b0c0d0e0f",
    ] {
        assert_eq!(bad.parse::<Key>(), Err(KeySyntax), "{bad}");
    }
    let shown: String = std::format!("{:?}", hex(16).unwrap());
    assert_eq!(shown, "Key(16 bytes)");
}

#[test]
fn seal_is_hmac_sha_256() {
    // RFC 4231 has no vector of this length. Check against the definition:
    // H(K^opad || H(K^ipad || m)).
    use sha2::Digest;
    let d = sealed()[0];
    let pad = |x: u8| -> Vec<u8> { (0..64).map(|i| x ^ if i < 16 { i } else { 0 }).collect() };
    let inner = Sha256::new()
        .chain_update(pad(0x36))
        .chain_update(&d[..DATAGRAM_BYTES - 16])
        .finalize();
    let outer = Sha256::new()
        .chain_update(pad(0x5c))
        .chain_update(inner)
        .finalize();
    assert_eq!(d[DATAGRAM_BYTES - 16..], outer[..16]);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(b in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (Join::parse(&b), Accept::parse(&b), Refuse::parse(&b), Leave::parse(&b), key().verify(&b));
    }
}

// --- Trees. ---

fn below() -> Below {
    Below {
        ready: true,
        first: 4032,
        ranks: 64,
        total: 4096,
        awaited: RankRange::new(4094, 4096),
        ps_missing: true,
        slowest: 4095,
    }
}

fn place() -> Place {
    Place {
        local: Rank(63),
        hosts: 63,
        first: 4000,
        total: 4096,
        elsewhere: RankRange::new(0, 4000),
        ps_elsewhere: true,
        has_run: true,
        slowest: 17,
    }
}

fn concern() -> Concern {
    Concern {
        ranks: RankRange::new(8, 12),
        switch: SwitchName::new("leaf3"),
        whole: true,
        behind: RankRange::one(3),
    }
}

/// One datagram of each kind with all fields of trees, and a worker's JOIN and LEAVE of a job of
/// more than 64.
fn of_trees() -> [[u8; DATAGRAM_BYTES]; 6] {
    let switch = Join {
        role: Role::Switch,
        workers: 0,
        tree: Some(JoinTree::Switch(below())),
        ..join()
    };
    let worker = Join {
        workers: 0,
        tree: Some(JoinTree::Worker {
            rank: 4095,
            workers: 4096,
        }),
        ..join()
    };
    let accept = Accept {
        behind: Some(Behind {
            least: FragmentId(0),
            ranks: 0,
            slowest: Rank(0),
            awaiting: 0,
        }),
        place: Some(place()),
        ..accept()
    };
    let refuse = Refuse {
        about: None,
        behind: 0,
        concern: Some(concern()),
        ..refuse()
    };
    let below = Leave {
        fragment: FragmentId(0),
        behind: 0,
        code: LeaveCode::Failed,
        tree: Some(LeaveTree::Switch(Some(Cause {
            reason: Reason::MemberLost,
            found: 5001,
            allowed: 5000,
            concern: concern(),
        }))),
        ..leave()
    };
    let far = Leave {
        tree: Some(LeaveTree::Worker {
            rank: 4095,
            behind: RankRange::one(3000),
        }),
        ..leave()
    };
    let mut all = [[0xa5; DATAGRAM_BYTES]; 6];
    let [a, b, c, d, e, f] = &mut all;
    switch.emit(a);
    worker.emit(b);
    accept.emit(c);
    refuse.emit(d);
    below.emit(e);
    far.emit(f);
    assert_eq!(Join::parse(a), Ok(switch));
    assert_eq!(Join::parse(b), Ok(worker));
    assert_eq!(Accept::parse(c), Ok(accept));
    assert_eq!(Refuse::parse(d), Ok(refuse));
    assert_eq!(Leave::parse(e), Ok(below));
    assert_eq!(Leave::parse(f), Ok(far));
    all
}

#[test]
fn fields_of_trees_round_trip() {
    of_trees();
}

#[test]
fn fields_of_trees_out_of_range_are_refused() {
    let all = of_trees();
    // Datagram, byte, value; two bytes at once where one would be in range.
    let cases: &[(usize, &[(usize, u8)])] = &[
        (0, &[(16, 3)]),
        (0, &[(17, 1)]),
        (0, &[(61, 2)]),
        (0, &[(72, 16)]),
        (0, &[(76, 0), (77, 0)]),
        (0, &[(77, 65)]),
        (0, &[(79, 0)]),
        (0, &[(82, 2)]),
        (0, &[(83, 1)]),
        (0, &[(84, 0), (85, 1)]),
        (1, &[(17, 8)]),
        (1, &[(61, 1)]),
        (1, &[(72, 16), (73, 0)]),
        (1, &[(74, 0), (75, 64)]),
        (1, &[(77, 1)]),
        (1, &[(78, 1)]),
        (1, &[(84, 1)]),
        (2, &[(97, 0)]),
        (2, &[(97, 0x11)]),
        (2, &[(98, 64)]),
        (2, &[(99, 65)]),
        (2, &[(99, 64), (100, 15), (101, 255)]),
        (2, &[(102, 16), (103, 1)]),
        (2, &[(104, 15), (105, 160)]),
        (2, &[(52, 16)]),
        // A rank is behind, and the flag says that none is.
        (2, &[(56, 1), (97, 1)]),
        (2, &[(63, 1), (97, 1)]),
        (3, &[(18, 0)]),
        (3, &[(18, 2)]),
        (3, &[(18, 5)]),
        (3, &[(40, 0), (41, 12)]),
        (3, &[(42, 16), (43, 1)]),
        (3, &[(48, 0)]),
        (3, &[(48, 0xff)]),
        (3, &[(48, b'\n')]),
        (3, &[(54, b'x')]),
        (3, &[(44, 1)]),
        (4, &[(17, 1)]),
        (4, &[(18, 0)]),
        (4, &[(19, 0)]),
        (4, &[(19, Reason::Challenge as u8)]),
        (4, &[(19, 18)]),
        (4, &[(45, 1)]),
        (5, &[(18, 0)]),
        (5, &[(18, 3)]),
        (5, &[(19, 1)]),
        (5, &[(44, 16)]),
        (5, &[(16, 1)]),
        (5, &[(48, b'x')]),
    ];
    for &(which, changes) in cases {
        let mut bad = all[which];
        for &(at, value) in changes {
            bad[HEADER_BYTES + at] = value;
        }
        let refused = match which {
            0 | 1 => Join::parse(&bad).is_err(),
            2 => Accept::parse(&bad).is_err(),
            3 => Refuse::parse(&bad).is_err(),
            _ => Leave::parse(&bad).is_err(),
        };
        assert!(refused, "datagram {which}, {changes:?}");
    }
}

#[test]
fn a_name_ends_at_64_bytes_and_at_a_control_character() {
    let long = "é".repeat(40);
    assert_eq!(SwitchName::new(&long).as_str(), "é".repeat(32));
    let odd = std::format!("x{long}");
    assert_eq!(SwitchName::new(&odd).as_str().len(), 63);
    assert_eq!(SwitchName::new("leaf\n1").as_str(), "leaf");
    assert_eq!(SwitchName::new("").as_str(), "");
}

proptest! {
    /// What parses is what its fields write: no byte has two meanings, and none is ignored.
    #[test]
    fn what_parses_is_written_so(
        which in 0..6_usize,
        changes in prop::collection::vec((0..112_usize, prop_oneof![0..5_u8, any::<u8>()]), 0..6),
    ) {
        let mut b = of_trees()[which];
        b[DATAGRAM_BYTES - MAC_BYTES..].fill(0);
        for (at, value) in changes {
            b[HEADER_BYTES + at] = value;
        }
        let mut out = b;
        out[HEADER_BYTES..].fill(0xa5);
        let is_parsed = match which {
            0 | 1 => Join::parse(&b).map(|it| it.emit(&mut out)).is_ok(),
            2 => Accept::parse(&b).map(|it| it.emit(&mut out)).is_ok(),
            3 => Refuse::parse(&b).map(|it| it.emit(&mut out)).is_ok(),
            _ => Leave::parse(&b).map(|it| it.emit(&mut out)).is_ok(),
        };
        if is_parsed {
            out[DATAGRAM_BYTES - MAC_BYTES..].fill(0);
            prop_assert_eq!(out, b);
        }
    }
}

#[test]
fn a_ps_names_its_part_and_no_other_member_has_one() {
    let ps = Join {
        role: Role::Ps,
        workers: 0,
        units: 0,
        running: false,
        window: 0,
        shape: [0; 32],
        sent: None,
        awaiting: 0,
        ..join()
    };
    let at = HEADER_BYTES + join::PART;
    for part in [
        Part::ONLY,
        Part::new(0, 2).unwrap(),
        Part::new(15, 16).unwrap(),
    ] {
        let mut b = [0; DATAGRAM_BYTES];
        let ps = Join { part, ..ps };
        ps.emit(&mut b);
        assert_eq!(Join::parse(&b), Ok(ps));
        let bytes = [b[at], b[at + 1]];
        if part == Part::ONLY {
            assert_eq!(bytes, [0, 0], "as a PS that knows of no parts");
            b[at + 1] = 1;
            assert_eq!(Join::parse(&b), Ok(ps), "0 of 1 is the only one, too");
        } else {
            assert_eq!(bytes, [part.index(), part.count()]);
        }
    }
    for bytes in [[1, 0], [0, 3], [1, 1], [2, 2], [16, 16], [0, 32], [0, 255]] {
        let mut b = [0; DATAGRAM_BYTES];
        ps.emit(&mut b);
        b[at..at + 2].copy_from_slice(&bytes);
        assert_eq!(Join::parse(&b), Err(ControlError), "{bytes:?}");
    }
    for [mut b, ..] in [of_trees(), [datagram_of(&join()); 6]] {
        b[at..at + 2].copy_from_slice(&[0, 1]);
        assert_eq!(Join::parse(&b), Err(ControlError), "not of a PS");
    }
}

fn datagram_of(join: &Join) -> [u8; DATAGRAM_BYTES] {
    let mut b = [0; DATAGRAM_BYTES];
    join.emit(&mut b);
    b
}
