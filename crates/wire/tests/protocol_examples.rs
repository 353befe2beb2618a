//! Section 10 of PROTOCOL.md against this crate: every example's bytes are emitted and parsed.
//!
//! An example is a heading `### name` and the next fenced block, whose lines are hexadecimal bytes
//! up to an optional `|`; the rest of the line is a comment. The test fails for an example that the
//! section lacks and for one that the code lacks. On a difference it prints the expected block.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use tally_wire::control::{
    Behind, Below, Cause, Concern, DATAGRAM_BYTES, JoinTree, LeaveCode, LeaveTree, Place, Reason,
    Role, State, SwitchName,
};
use tally_wire::frame::{UDP_END, emit, group_of};
use tally_wire::header::{CONTROL_UNITS, HEADER_BYTES};
use tally_wire::{
    Accept, Addresses, AuthTag, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId,
    Join, Key, Kind, Leave, Mac, Part, Rank, RankRange, Refuse, UdpFrame,
};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/PROTOCOL.md");

const JOB: JobId = JobId(7);
const EPOCH: Epoch = Epoch(0x2a01);
const INSTANCE: u64 = 0x1122_3344_5566_7788;
const CHALLENGE: u64 = 0xa1a2_a3a4_a5a6_a7a9;
const SALT: u64 = 0xd1d2_d3d4_d5d6_d7d8;
const SWITCH: (Mac, Ipv4Addr, u16) = (
    Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]),
    Ipv4Addr::new(10, 0, 0, 254),
    31249,
);
const WORKER: (Mac, Ipv4Addr, u16) = (Mac([2, 0, 0, 0, 0, 3]), Ipv4Addr::new(10, 0, 0, 3), 40003);
const PS: (Mac, Ipv4Addr, u16) = (Mac([2, 0, 0, 0, 0, 9]), Ipv4Addr::new(10, 0, 0, 9), 40009);

fn key() -> Key {
    "000102030405060708090a0b0c0d0e0f".parse().expect("a key")
}

fn shape() -> [u8; 32] {
    std::array::from_fn(|i| 0xc0 + i as u8)
}

/// Control frames: the header that all examples share.
fn control(kind: Kind, epoch: Epoch) -> Header {
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job: JOB,
        epoch,
        fragment: FragmentId(0),
        rank: Rank(2),
        units: CONTROL_UNITS,
        bitmap: 0,
        tag: AuthTag::NONE,
    }
}

/// Frames about fragment 5 of the job of three workers, with their tags.
fn about(kind: Kind, flags: Flags, rank: Rank, element: Element, bitmap: u64) -> Header {
    let header = Header {
        flags,
        priority: if kind.has_elements() { 96 } else { 0 },
        element,
        fragment: FragmentId(5),
        rank,
        units: u8::from(kind.has_elements()),
        bitmap,
        ..control(kind, EPOCH)
    };
    key().epoch_secret(JOB, EPOCH, SALT).seal(header)
}

fn way(from: (Mac, Ipv4Addr, u16), to: (Mac, Ipv4Addr, u16)) -> Addresses {
    Addresses {
        src_mac: from.0,
        dst_mac: to.0,
        src_ip: from.1,
        dst_ip: to.1,
        src_port: from.2,
        dst_port: to.2,
    }
}

/// One control datagram.
fn sealed(header: Header, hint: bool, payload: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0xa5; DATAGRAM_BYTES];
    header.emit(&mut bytes);
    payload(&mut bytes);
    if hint {
        assert_eq!(bytes[DATAGRAM_BYTES - 16..], [0; 16]);
    } else {
        key().seal(&mut bytes);
        assert!(key().verify(&bytes));
    }
    assert_eq!(Header::parse(&bytes), Ok(header));
    bytes
}

/// One whole frame, parsed again.
fn frame(addresses: Addresses, header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xa5; HEADERS_BYTES];
    emit(&mut bytes, &addresses, &header);
    bytes.extend_from_slice(payload);
    let end = bytes.len();
    bytes.resize(end + header.kind.trailer_bytes(), 0xa5);
    header.emit_trailer(&mut bytes[end..]);
    let parsed = UdpFrame::parse(&bytes).expect("a frame of section 1");
    assert_eq!(parsed.addresses, addresses);
    assert_eq!(Header::parse(parsed.datagram(&bytes)), Ok(header));
    bytes
}

fn join(challenge: u64) -> Join {
    Join {
        instance: INSTANCE,
        challenge,
        role: Role::Worker,
        workers: 3,
        units: 1,
        window: 256,
        running: false,
        shape: shape(),
        sent: None,
        awaiting: 0,
        salt: if challenge == 0 { 0 } else { SALT },
        tree: None,
        part: Part::ONLY,
    }
}

fn accept() -> Accept {
    Accept {
        instance: INSTANCE,
        challenge: CHALLENGE,
        state: State::Running,
        workers: 3,
        units: 1,
        shards: 2,
        base_port: SWITCH.2,
        window: 256,
        joined: 0b111,
        left: 0,
        missing_ps: None,
        group: group_of(JOB),
        behind: None,
        mac: SWITCH.0,
        salt: SALT,
        wrapped: None,
        place: None,
    }
}

fn refuse(reason: Reason, about: Option<Rank>, found: u32, allowed: u32) -> Refuse {
    Refuse {
        instance: INSTANCE,
        challenge: if reason.is_hint() { 0 } else { CHALLENGE },
        reason,
        about,
        found,
        allowed,
        behind: 0,
        concern: None,
    }
}

fn leave() -> Leave {
    Leave {
        instance: INSTANCE,
        challenge: CHALLENGE,
        code: LeaveCode::Overflow,
        fragment: FragmentId(5),
        behind: 0,
        salt: SALT,
        tree: None,
    }
}

/// 1, 2, 3, … of one payload unit.
fn i32_payload(times: i32) -> Vec<u8> {
    (1..=16).flat_map(|i| (i * times).to_be_bytes()).collect()
}

fn f32_payload() -> Vec<u8> {
    (0..16)
        .flat_map(|i| (1.5 * i as f32 - 4.0).to_le_bytes())
        .collect()
}

/// Control frames of a job with a tree of 16 workers.
fn examples_of_trees() -> [Vec<u8>; 4] {
    let ranks = RankRange::new(8, 12);
    let join = Join {
        role: Role::Switch,
        workers: 0,
        tree: Some(JoinTree::Switch(Below {
            ready: false,
            first: 8,
            ranks: 4,
            total: 16,
            awaited: RankRange::one(9),
            ps_missing: true,
            slowest: 0,
        })),
        ..join(CHALLENGE)
    };
    let child_joins = sealed(control(Kind::Join, EPOCH), false, |b| join.emit(b));
    assert_eq!(Join::parse(&child_joins), Ok(join));
    let accept = Accept {
        behind: Some(Behind {
            least: FragmentId(5),
            ranks: 0,
            slowest: Rank(0),
            awaiting: 20,
        }),
        place: Some(Place {
            local: Rank(1),
            hosts: 2,
            first: 1,
            total: 16,
            elsewhere: RankRange::one(9),
            ps_elsewhere: false,
            has_run: true,
            slowest: 9,
        }),
        ..accept()
    };
    let placed = sealed(control(Kind::Accept, EPOCH), false, |b| accept.emit(b));
    assert_eq!(Accept::parse(&placed), Ok(accept));
    let concern = Concern {
        ranks,
        switch: SwitchName::new("leaf3"),
        whole: true,
        behind: None,
    };
    let refuse = Refuse {
        concern: Some(concern),
        ..refuse(Reason::MemberLost, None, 5003, 5000)
    };
    let lost = sealed(control(Kind::Refuse, EPOCH), false, |b| refuse.emit(b));
    assert_eq!(Refuse::parse(&lost), Ok(refuse));
    let leave = Leave {
        code: LeaveCode::Failed,
        fragment: FragmentId(0),
        tree: Some(LeaveTree::Switch(Some(Cause {
            reason: Reason::MemberLost,
            found: 5003,
            allowed: 5000,
            concern: Concern {
                ranks: RankRange::one(9),
                whole: false,
                ..concern
            },
        }))),
        ..leave()
    };
    let lost_below = sealed(control(Kind::Leave, EPOCH), false, |b| leave.emit(b));
    assert_eq!(Leave::parse(&lost_below), Ok(leave));
    [child_joins, placed, lost, lost_below]
}

/// All examples by name, each parsed back on the way.
fn examples() -> BTreeMap<&'static str, Vec<u8>> {
    // F-3: fragment 5 of 2 shards.
    let shard = (SWITCH.0, SWITCH.1, SWITCH.2 + 1);
    let group = (Mac::of_group(group_of(JOB)), group_of(JOB), SWITCH.2);

    let first_join = sealed(control(Kind::Join, Epoch(0)), false, |b| join(0).emit(b));
    assert_eq!(Join::parse(&first_join), Ok(join(0)));
    let full_join = sealed(control(Kind::Join, EPOCH), false, |b| {
        join(CHALLENGE).emit(b);
    });
    assert_eq!(Join::parse(&full_join), Ok(join(CHALLENGE)));
    let accepted = sealed(control(Kind::Accept, EPOCH), false, |b| accept().emit(b));
    assert_eq!(Accept::parse(&accepted), Ok(accept()));
    let challenge = refuse(Reason::Challenge, None, 0, 0);
    let challenged = sealed(control(Kind::Refuse, EPOCH), false, |b| challenge.emit(b));
    assert_eq!(Refuse::parse(&challenged), Ok(challenge));
    let differs = refuse(Reason::Payload, Some(Rank(0)), 4, 1);
    let refused = sealed(control(Kind::Refuse, EPOCH), false, |b| differs.emit(b));
    assert_eq!(Refuse::parse(&refused), Ok(differs));
    let hint = refuse(Reason::BadMac, None, 0, 0);
    let hinted = sealed(control(Kind::Refuse, Epoch(0)), true, |b| hint.emit(b));
    assert_eq!(Refuse::parse(&hinted), Ok(hint));
    let alive = Join {
        running: true,
        sent: Some(FragmentId(6)),
        awaiting: 300,
        ..join(CHALLENGE)
    };
    let living = sealed(control(Kind::Join, EPOCH), false, |b| alive.emit(b));
    assert_eq!(Join::parse(&living), Ok(alive));
    let paused = Accept {
        state: State::Waiting,
        missing_ps: Part::new(1, 2),
        ..accept()
    };
    let incomplete = sealed(control(Kind::Accept, EPOCH), false, |b| paused.emit(b));
    assert_eq!(Accept::parse(&incomplete), Ok(paused));
    let waiting = Accept {
        behind: Some(Behind {
            least: FragmentId(5),
            ranks: 0b010,
            slowest: Rank(1),
            awaiting: 20,
        }),
        ..accept()
    };
    let awaited = sealed(control(Kind::Accept, EPOCH), false, |b| waiting.emit(b));
    assert_eq!(Accept::parse(&awaited), Ok(waiting));
    let stalled = Leave {
        code: LeaveCode::Stalled,
        behind: 0b010,
        ..leave()
    };
    let gone = sealed(control(Kind::Leave, EPOCH), false, |b| stalled.emit(b));
    assert_eq!(Leave::parse(&gone), Ok(stalled));
    let gave_up = Refuse {
        behind: 0b010,
        ..refuse(Reason::MemberFailed, Some(Rank(0)), 4, 5)
    };
    let told = sealed(control(Kind::Refuse, EPOCH), false, |b| gave_up.emit(b));
    assert_eq!(Refuse::parse(&told), Ok(gave_up));
    let left = sealed(control(Kind::Leave, EPOCH), false, |b| leave().emit(b));
    assert_eq!(Leave::parse(&left), Ok(leave()));

    let [child_joins, placed, lost, lost_below] = examples_of_trees();

    let (none, switch) = (Flags::NONE, Rank::SWITCH);
    let data = about(Kind::Data, none, Rank(2), Element::I32, 0b100);
    let result = about(Kind::Result, none, switch, Element::F32, 0);
    let partial = about(Kind::Partial, Flags::RESEND, switch, Element::I32, 0b011);
    let remind = about(Kind::Remind, none, Rank::PS, Element::None, 0);
    let not_here = about(Kind::NotHere, Flags::FINISHED, switch, Element::None, 0);
    let nack = about(Kind::Nack, none, Rank(2), Element::None, 0);
    let probe = about(Kind::Probe, none, Rank(2), Element::None, 0);
    BTreeMap::from([
        ("JOIN, the first, without challenge", first_join),
        ("JOIN, with challenge and epoch", full_join),
        ("ACCEPT", accepted),
        ("REFUSE, CHALLENGE", challenged),
        ("REFUSE, PAYLOAD", refused),
        ("REFUSE, BAD_MAC, a hint", hinted),
        ("JOIN, heartbeat", living),
        ("ACCEPT, waiting for the PS of part 1 of 2", incomplete),
        ("ACCEPT, rank 1 is behind", awaited),
        ("REFUSE, MEMBER_FAILED, rank 0 stalled", told),
        ("LEAVE, overflow", left),
        ("LEAVE, stalled", gone),
        (
            "JOIN of a switch with ranks 8 to 11, rank 9 is missing",
            child_joins,
        ),
        ("ACCEPT in a tree, rank 9 of another node is behind", placed),
        ("REFUSE, MEMBER_LOST, a switch with ranks 8 to 11", lost),
        ("LEAVE of a switch, rank 9 was lost below it", lost_below),
        (
            "DATA, i32, the whole frame",
            frame(way(WORKER, shard), data, &i32_payload(1)),
        ),
        (
            "RESULT, f32, to the group, the whole frame",
            frame(way(SWITCH, group), result, &f32_payload()),
        ),
        (
            "PARTIAL, i32, RESEND, the whole frame",
            frame(way(SWITCH, PS), partial, &i32_payload(2)),
        ),
        (
            "REMIND, the whole frame",
            frame(way(PS, shard), remind, &[]),
        ),
        (
            "NOT_HERE, FINISHED, the whole frame",
            frame(way(SWITCH, PS), not_here, &[]),
        ),
        (
            "NACK, to the worker, the whole frame",
            frame(way(SWITCH, WORKER), nack, &[]),
        ),
        (
            "PROBE, the whole frame",
            frame(way(WORKER, shard), probe, &[]),
        ),
    ])
}

/// The examples of the document.
fn documented() -> BTreeMap<String, Vec<u8>> {
    let text = std::fs::read_to_string(DOCUMENT).expect("docs/PROTOCOL.md");
    let (_, section) = text
        .split_once("\n## 10. Examples\n")
        .expect("the section `## 10. Examples`");
    let section = section.split("\n## ").next().unwrap_or(section);
    let mut found = BTreeMap::new();
    for example in section.split("\n### ").skip(1) {
        let name = example.lines().next().expect("a name").trim();
        let block = example.split("```").nth(1).expect("a fenced block");
        let lines = block.lines().skip(1);
        let digits = lines.flat_map(|l| l.split('|').next().unwrap_or(l).split_whitespace());
        let bytes = digits
            .map(|d| u8::from_str_radix(d, 16).unwrap_or_else(|_| panic!("{name}: `{d}`")))
            .collect();
        let before = found.insert(name.to_owned(), bytes);
        assert!(before.is_none(), "{name} is there twice");
    }
    found
}

/// The rows of a block: lengths in bytes and comments.
fn rows(bytes: &[u8]) -> Vec<(usize, &'static str)> {
    let control = [
        (
            12,
            "version and type, flags, priority, element, job, epoch, fragment",
        ),
        (2, "rank, units"),
        (8, "0"),
        (16, "payload: instance, challenge"),
    ];
    if bytes.len() == DATAGRAM_BYTES {
        return control
            .into_iter()
            .chain([(16, ""), (16, ""), (16, ""), (16, ""), (16, ""), (16, "")])
            .chain([(16, "HMAC")])
            .collect();
    }
    let mut rows = vec![
        (14, "Ethernet: to, from, type"),
        (12, "IPv4"),
        (8, "  from, to"),
        (8, "UDP: from, to, length, checksum"),
    ];
    rows.extend(&control[..2]);
    let kind = bytes[UDP_END] & 0xf;
    let has_bitmap = [Kind::Data as u8, Kind::Partial as u8].contains(&kind);
    rows.push((8, if has_bitmap { "bitmap" } else { "tag" }));
    rows.extend((0..(bytes.len() - HEADERS_BYTES) / 16).map(|_| (16, "")));
    if let Some(row) = rows.get_mut(7) {
        row.1 = "elements";
    }
    if kind == Kind::Partial as u8 {
        rows.push((8, "tag"));
    }
    rows
}

fn block(name: &str, bytes: &[u8]) -> String {
    let mut text = format!("### {name}\n\n```text\n");
    let mut at = 0;
    for (len, remark) in rows(bytes) {
        let row: Vec<_> = bytes[at..at + len]
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let row = row.join(" ");
        let line = if remark.is_empty() {
            row
        } else {
            format!("{row:48}| {remark}")
        };
        text += line.trim_end();
        text += "\n";
        at += len;
    }
    assert_eq!(at, bytes.len());
    text + "```\n"
}

#[test]
fn the_examples_are_what_the_code_says() {
    let expected = examples();
    let found = documented();
    let mut wrong = String::new();
    for (name, bytes) in &expected {
        if found.get(*name) != Some(bytes) {
            writeln!(wrong, "{}", block(name, bytes)).unwrap();
        }
    }
    assert!(
        wrong.is_empty(),
        "missing in section 10 of docs/PROTOCOL.md, or different there; expected:\n\n{wrong}"
    );
    for name in found.keys() {
        assert!(
            expected.contains_key(name.as_str()),
            "example `{name}` has no counterpart in this test"
        );
    }
}

/// Every byte of an example matters: a changed byte is refused, or parses to another value.
#[test]
fn every_byte_of_an_example_matters() {
    for (name, bytes) in examples() {
        let is_control = bytes.len() == DATAGRAM_BYTES;
        let header_at = if is_control { 0 } else { UDP_END };
        for at in header_at..header_at + HEADER_BYTES {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            let before = Header::parse(&bytes[header_at..]);
            assert_ne!(
                Header::parse(&changed[header_at..]),
                before,
                "{name}: byte {at}"
            );
        }
        if is_control && key().verify(&bytes) {
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert!(!key().verify(&changed), "{name}: byte {at}");
            }
        }
    }
}
