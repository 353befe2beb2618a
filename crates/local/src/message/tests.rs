#![allow(clippy::unwrap_used)]

use super::*;

fn submission() -> Submission {
    Submission {
        operation: Operation::Broadcast { root: 4095 },
        dtype: Dtype::Bf16,
        arithmetic: Arithmetic::Own,
        priority: Priority::Fixed(0),
        more_follow: true,
        name: "schicht1.gewicht-ß".into(),
    }
}

fn from_process() -> Vec<FromProcess> {
    let hello = Hello {
        job: 7,
        rank: 4095,
        workers: 4096,
    };
    let submit = |submission| FromProcess::Submit {
        region: 1,
        ticket: 2,
        at: 3 << 40,
        elements: 4 << 40,
        submission,
    };
    let mut all = vec![
        FromProcess::Hello(VERSION, Some(hello)),
        FromProcess::Hello(VERSION + 1, None),
        FromProcess::Status(VERSION),
        FromProcess::Region {
            id: 5,
            bytes: 6 << 40,
        },
        FromProcess::Release { id: 7 },
        FromProcess::Finish,
        FromProcess::Fallback {
            kind: "all_gather".into(),
            count: 8 << 40,
        },
        FromProcess::Ask { question: 9 << 40 },
        submit(submission()),
    ];
    let operations = [Operation::Sum, Operation::Mean, Operation::Barrier];
    for (at, operation) in operations.into_iter().enumerate() {
        all.push(submit(Submission {
            operation,
            dtype: Dtype::ALL[at],
            arithmetic: Arithmetic::ALL[at],
            priority: Priority::Place {
                index: at as u16,
                of: 3,
            },
            more_follow: at == 1,
            name: "x".repeat(NAME_BYTES_MAX),
        }));
    }
    all
}

fn from_agent() -> Vec<FromAgent> {
    let failure = Failure {
        class: Class::Mismatch,
        ranks: Ranks::of_bits(1 << 63 | 2),
        text: "warum?".into(),
    };
    let many = Failure {
        ranks: Ranks::of_range(4000, 4096),
        ..failure.clone()
    };
    vec![
        FromAgent::Welcome {
            version: VERSION,
            submitted: 1,
            regions: 2,
            memory_bytes: 3,
        },
        FromAgent::Refused(failure.clone()),
        FromAgent::Mapped { id: 4 },
        FromAgent::Unmapped {
            id: 5,
            class: Class::Memory,
            text: String::new(),
        },
        FromAgent::Done { ticket: u64::MAX },
        FromAgent::Failed(failure),
        FromAgent::Failed(many),
        FromAgent::Finished,
        FromAgent::Text {
            last: true,
            text: "{}".into(),
        },
        FromAgent::Awaited {
            question: 6 << 40,
            awaited: Awaited {
                ranks: Ranks::of_range(60, 70),
                text: "warum?".into(),
            },
        },
    ]
}

#[test]
fn what_is_written_is_read() {
    let mut out = vec![0xa5; 64];
    for message in from_process() {
        message.emit(&mut out);
        assert_eq!(FromProcess::parse(&out), Some(message));
        assert!(out.len() <= MESSAGE_BYTES_MAX);
    }
    for message in from_agent() {
        message.emit(&mut out);
        assert_eq!(FromAgent::parse(&out), Some(message));
    }
}

#[test]
fn a_priority_that_cannot_be_is_no_message() {
    let mut good = Vec::new();
    from_process().last().unwrap().emit(&mut good);
    assert_eq!(good[6..8], [0, 0], "place 2 of 3");
    for (at, byte, why) in [
        (6, 4, "no such flag"),
        (6, 1, "fixed, with a place"),
        (7, 1, "a place, with a fixed one"),
        (9, 1, "not zero"),
        (16, 3, "behind the last"),
        (18, 0, "of none"),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(FromProcess::parse(&bad), None, "{why}");
    }
}

#[test]
fn nothing_that_is_cut_off_or_too_long_is_a_message() {
    let mut out = Vec::new();
    for message in from_process() {
        message.emit(&mut out);
        let fixed = matches!(message, FromProcess::Hello(version, _) if version != VERSION);
        // Its kind ends where the message does.
        let has_text = matches!(message, FromProcess::Fallback { .. });
        for len in 0..if has_text { 13 } else { out.len() } {
            assert_eq!(FromProcess::parse(&out[..len]), None, "{message:?} {len}");
        }
        out.push(0);
        assert_eq!(FromProcess::parse(&out).is_some(), fixed, "{message:?}");
    }
    for message in from_agent() {
        message.emit(&mut out);
        let has_text = matches!(
            message,
            FromAgent::Refused(_)
                | FromAgent::Unmapped { .. }
                | FromAgent::Failed(_)
                | FromAgent::Text { .. }
                | FromAgent::Awaited { .. }
        );
        if !has_text {
            for len in 0..out.len() {
                assert_eq!(FromAgent::parse(&out[..len]), None, "{message:?} {len}");
            }
            out.push(0);
        } else {
            out.push(0xff);
        }
        assert_eq!(FromAgent::parse(&out), None, "{message:?}");
    }
}

#[test]
fn a_kind_that_is_no_short_ascii_name_is_no_message() {
    let kinds = ["", "all gather", "all\ngather", "größe", "x\0", "\x1b[2J"];
    let long = "x".repeat(33);
    for kind in kinds.into_iter().chain([long.as_str()]) {
        let (kind, count) = (kind.to_owned(), 1);
        let mut out = Vec::new();
        FromProcess::Fallback { kind, count }.emit(&mut out);
        assert_eq!(FromProcess::parse(&out), None, "{out:?}");
    }
}

#[test]
fn arbitrary_bytes_are_read_without_harm_and_only_as_they_are_written() {
    let mut state = 1_u64;
    let mut out = Vec::new();
    let mut understood = 0;
    for _ in 0..200_000 {
        let mut bytes = [0; 48];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Mostly small, so that some make sense.
            *byte = if state & 0x700 == 0 {
                state as u8
            } else {
                state as u8 & 1
            };
        }
        bytes[0] = ((state >> 20) as u8 % 9) | ((state >> 30) as u8 & 64);
        let bytes = &bytes[..(state >> 40) as usize % 49];
        if let Some(message) = FromProcess::parse(bytes) {
            message.emit(&mut out);
            assert_eq!(out, bytes);
            understood += 1;
        }
        if let Some(message) = FromAgent::parse(bytes) {
            message.emit(&mut out);
            understood += 1;
        }
    }
    assert!(understood > 100, "{understood}");
}

#[test]
fn the_first_bytes_are_those_of_every_version() {
    let mut out = Vec::new();
    FromProcess::Hello(2, None).emit(&mut out);
    assert_eq!(out, *b"\x01\0\x02\0tlly");
    FromProcess::Status(2).emit(&mut out);
    assert_eq!(out, *b"\x02\0\x02\0tlly");
    FromAgent::Refused(Failure::new(Class::Version, "no")).emit(&mut out);
    assert_eq!(out, *b"\x41\x01\0\0\0\0\0\0\0\0\0\0no");
    out[1] = 200;
    let later = Failure::new(Class::Other, "no");
    assert_eq!(FromAgent::parse(&out), Some(FromAgent::Refused(later)));
}

#[test]
fn long_texts_lose_their_end_and_stay_text() {
    let mut out = Vec::new();
    let text = "ü".repeat(MESSAGE_BYTES_MAX);
    FromAgent::Failed(Failure::new(Class::Other, text)).emit(&mut out);
    assert!((MESSAGE_BYTES_MAX - 1..=MESSAGE_BYTES_MAX).contains(&out.len()));
    assert!(FromAgent::parse(&out).is_some());
    let mut long = submission();
    long.name = "ü".repeat(200);
    FromProcess::Submit {
        region: 0,
        ticket: 1,
        at: 0,
        elements: 0,
        submission: long,
    }
    .emit(&mut out);
    let Some(FromProcess::Submit { submission, .. }) = FromProcess::parse(&out) else {
        panic!("not read");
    };
    assert_eq!(submission.name, "ü".repeat(127));
}
