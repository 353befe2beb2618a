use super::*;
use tally_wire::control::DATAGRAM_BYTES;
use tally_wire::{DEFAULT_PORT, Key};

const JOB: JobId = JobId(3);
const EPOCH: Epoch = Epoch(9);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

/// A parameter server of a job of two workers that runs, with payloads of one unit.
fn serving() -> Ps {
    let key = Key::new(&[5; 16]).unwrap();
    let mut ps = Ps::new(ms(0), PsConfig::new(JOB, key, 77), Kernels::best());
    assert_eq!(ps.switch_mac(ms(0)), None);
    accept(&mut ps, ms(0), MAC);
    assert_eq!(sent(&mut ps, ms(0)), [(Kind::Join, Rank::PS)]);
    ps
}

fn accept(ps: &mut Ps, now: Time, mac: Mac) {
    let key = Key::new(&[5; 16]).unwrap();
    let accept = Accept {
        instance: 77,
        challenge: 1,
        state: JobState::Running,
        workers: 2,
        units: 1,
        shards: 1,
        base_port: DEFAULT_PORT,
        window: 4,
        joined: 0b11,
        left: 0,
        missing_ps: None,
        group: [239, 84, 0, 3].into(),
        behind: None,
        mac,
        salt: 5,
        wrapped: None,
        place: None,
    };
    let mut datagram = [0; DATAGRAM_BYTES];
    header(Kind::Accept, 0, Flags::NONE).emit(&mut datagram);
    accept.emit(&mut datagram);
    key.seal(&mut datagram);
    ps.handle_datagram(now, Ecn::Ect0, &datagram);
}

#[test]
fn the_mac_of_the_last_accept_is_that_of_the_switch_while_it_answers() {
    let mut ps = serving();
    assert_eq!(ps.switch_mac(ms(1999)), Some(MAC));
    accept(&mut ps, ms(1999), MAC);
    assert_eq!(ps.switch_mac(ms(3998)), Some(MAC));
    assert_eq!(ps.switch_mac(ms(3999)), None);
    let other = Mac([2, 0, 0, 0, 0, 2]);
    accept(&mut ps, ms(4000), other);
    assert_eq!(ps.switch_mac(ms(4001)), Some(other));
}

fn header(kind: Kind, bitmap: u64, flags: Flags) -> Header {
    let to_ps = kind == Kind::Accept;
    Header {
        kind,
        flags,
        priority: 0,
        element: match kind {
            Kind::Partial => Element::I32,
            _ => Element::None,
        },
        job: JOB,
        epoch: EPOCH,
        fragment: FragmentId(0),
        rank: match kind {
            Kind::Probe => Rank(0),
            _ if to_ps => Rank::PS,
            _ => Rank::SWITCH,
        },
        units: match kind {
            Kind::Accept => tally_wire::header::CONTROL_UNITS,
            Kind::Partial => 1,
            _ => 0,
        },
        bitmap,
        tag: AuthTag::NONE,
    }
}

fn receive(ps: &mut Ps, now: Time, kind: Kind, bitmap: u64, flags: Flags) {
    let secret = Key::new(&[5; 16]).unwrap().epoch_secret(JOB, EPOCH, 5);
    let header = secret.seal(header(kind, bitmap, flags));
    let mut datagram = vec![0; header.datagram_bytes()];
    header.emit(&mut datagram);
    header.emit_trailer(&mut datagram[HEADER_BYTES + header.payload_bytes()..]);
    ps.handle_datagram(now, Ecn::Ect0, &datagram);
}

/// All that it has to send, by kind and rank.
fn sent(ps: &mut Ps, now: Time) -> Vec<(Kind, Rank)> {
    let mut out = [0; 1024];
    let mut sent = Vec::new();
    while let Some(transmit) = ps.poll_transmit(now, &mut out) {
        let header = Header::parse(&out[..transmit.len]).map(|h| (h.kind, h.rank));
        sent.push(header.unwrap());
    }
    sent
}

/// Found in the comparison of completion times: answers to NACK met a full queue, and the worker
/// whose answer was lost was asked again after four times as long, while the others repeated
/// theirs.
#[test]
fn a_worker_whose_answer_was_lost_is_asked_again_when_another_repeats_its_contribution() {
    let mut ps = serving();
    receive(&mut ps, ms(0), Kind::Partial, 0b01, Flags::NONE);
    // Before anybody was asked, a repetition says nothing.
    receive(&mut ps, ms(1), Kind::Partial, 0b01, Flags::RESEND);
    assert_eq!(sent(&mut ps, ms(1)), []);
    ps.handle_timeout(ms(2));
    assert_eq!(sent(&mut ps, ms(2)), [(Kind::Remind, Rank::PS)]);
    receive(&mut ps, ms(2), Kind::NotHere, 0, Flags::NONE);
    assert_eq!(sent(&mut ps, ms(2)), [(Kind::Nack, Rank(1))]);
    // Its answer may be on its way.
    receive(&mut ps, ms(3), Kind::Partial, 0b01, Flags::RESEND);
    assert_eq!(sent(&mut ps, ms(3)), []);
    let again = [(Kind::Remind, Rank::PS), (Kind::Nack, Rank(1))];
    receive(&mut ps, ms(4), Kind::Partial, 0b01, Flags::RESEND);
    receive(&mut ps, ms(4), Kind::Partial, 0b01, Flags::RESEND);
    assert_eq!(sent(&mut ps, ms(4)), again);
    receive(&mut ps, ms(5), Kind::Partial, 0b01, Flags::RESEND);
    assert_eq!(sent(&mut ps, ms(5)), [], "once for each period");
    receive(&mut ps, ms(5), Kind::Partial, 0b10, Flags::RESEND);
    assert_eq!(sent(&mut ps, ms(5)), [(Kind::Result, Rank::PS)]);
}

/// Seed 1703 of `tally-sim check`: the period had grown to 60 ms, and for that long no PROBE made
/// the PS ask.
#[test]
fn a_probe_asks_at_once_and_then_less_and_less_often() {
    let mut ps = serving();
    for fragment in 0..10 {
        ps.timeout.too_early(ms(fragment), ms(fragment));
    }
    assert!(ps.timeout.period(0) > Duration::from_millis(50));
    receive(&mut ps, ms(20), Kind::Partial, 0b01, Flags::NONE);
    receive(&mut ps, ms(20), Kind::Probe, 0, Flags::NONE);
    assert_eq!(sent(&mut ps, ms(20)), [], "it was born this moment");
    let us = |n: u64| Time(ms(20).0 + n * 1000);
    let mut asked = Vec::new();
    for n in 1..400 {
        receive(&mut ps, us(50 * n), Kind::Probe, 0, Flags::NONE);
        match sent(&mut ps, us(50 * n))[..] {
            [] => {}
            [(Kind::Remind, Rank::PS), (Kind::Nack, Rank(1))] => asked.push(50 * n),
            ref other => panic!("{other:?}"),
        }
    }
    assert_eq!(asked, [50, 150, 350, 750, 1550, 3150, 6350, 12_750]);
}

/// Seed 1410 of `tally-sim check`: the PS took what workers' timeouts did for fragments that
/// complete by themselves, waited twice as long, and never asked.
#[test]
fn what_a_worker_asked_for_was_not_whole_by_itself() {
    let period_after = |flags: Flags| {
        let mut ps = serving();
        ps.timeout.whole(ms(0), ms(0));
        for fragment in 0..4 {
            ps.timeout.too_early(ms(fragment), ms(fragment));
        }
        let before = ps.timeout.period(0);
        receive(&mut ps, ms(100), Kind::Partial, 0b01, Flags::NONE);
        // Too late for a fragment that was not asked for to count.
        let later = ms(100).after(before * 9 / 10);
        receive(&mut ps, later, Kind::Partial, 0b10, flags);
        assert_eq!(sent(&mut ps, later), [(Kind::Result, Rank::PS)]);
        (before, ps.timeout.period(0))
    };
    let (before, after) = period_after(Flags::NONE);
    assert_eq!(before, after);
    let (before, after) = period_after(Flags::RESEND);
    assert!(after < before, "{before:?} {after:?}");
}

#[test]
fn fragments_of_another_part_are_foreign() {
    let key = Key::new(&[5; 16]).unwrap();
    let part = Part::new(1, 2).unwrap();
    let config = PsConfig {
        part,
        ..PsConfig::new(JOB, key, 77)
    };
    let mut ps = Ps::new(ms(0), config, Kernels::best());
    accept(&mut ps, ms(0), MAC);
    let mut out = [0; 512];
    let sent = ps.poll_transmit(ms(0), &mut out).unwrap();
    assert_eq!(Join::parse(&out[..sent.len]).unwrap().part, part);
    for (fragment, foreign, probes) in [(0, 1, 0), (1, 1, 1), (2, 2, 1), (u32::MAX, 2, 2)] {
        let probe = Header {
            fragment: FragmentId(fragment),
            ..header(Kind::Probe, 0, Flags::NONE)
        };
        let mut datagram = [0; HEADER_BYTES];
        ps.control.seal(probe).emit(&mut datagram);
        ps.handle_datagram(ms(1), Ecn::Ect0, &datagram);
        assert_eq!((ps.stats().foreign, ps.stats().probes), (foreign, probes));
    }
    // It asks for its own only.
    while let Some(sent) = ps.poll_transmit(ms(1), &mut out) {
        let header = Header::parse(&out[..sent.len]).unwrap();
        assert!(header.kind == Kind::Join || part.has(header.fragment));
    }
}
