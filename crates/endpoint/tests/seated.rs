//! A parameter server whose seat is the configuration's: it serves without ever joining.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::time::Duration;
use tally_endpoint::{Ecn, Ps, PsConfig, PsEvent, Time, datagram_bytes};
use tally_kernels::Kernels;
use tally_wire::control::State;
use tally_wire::{
    Accept, AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Key, Kind, Mac, Rank,
    all_ranks,
};

const JOB: JobId = JobId(7);
const EPOCH: Epoch = Epoch(1);
const WORKERS: u8 = 2;

fn key() -> Key {
    Key::new(&[7; 16]).unwrap()
}

fn seated() -> Ps {
    let key = key();
    let accept = Accept {
        instance: 1,
        challenge: 0,
        state: State::Running,
        workers: WORKERS,
        units: 1,
        shards: 2,
        base_port: 5000,
        window: 4,
        joined: all_ranks(WORKERS),
        left: 0,
        missing_ps: None,
        group: Ipv4Addr::new(239, 84, 0, 7),
        behind: None,
        mac: Mac([2, 0, 0, 0, 0, 1]),
        salt: 0,
        wrapped: None,
        place: None,
    };
    let config = PsConfig::new(JOB, key, 1);
    Ps::seated(Time(0), config, Kernels::best(), EPOCH, accept)
}

fn partial(rank: u8, value: i32) -> Vec<u8> {
    let mut datagram = vec![0; datagram_bytes(1)];
    let header = Header {
        kind: Kind::Partial,
        flags: Flags::NONE,
        priority: 0,
        element: Element::I32,
        job: JOB,
        epoch: EPOCH,
        fragment: FragmentId(5),
        rank: Rank::SWITCH,
        units: 1,
        bitmap: Rank(rank).bit(),
        tag: AuthTag::NONE,
    };
    let header = key().epoch_secret(JOB, EPOCH, 0).seal(header);
    header.emit(&mut datagram);
    for element in datagram[22..22 + 64].chunks_exact_mut(4) {
        element.copy_from_slice(&value.to_be_bytes());
    }
    header.emit_trailer(&mut datagram[22 + 64..]);
    datagram.truncate(22 + 64 + 8);
    datagram
}

#[test]
fn it_finishes_fragments_and_says_nothing_else() {
    let mut ps = seated();
    let mut out = vec![0; datagram_bytes(1)];
    // No JOIN, neither now nor ever.
    let much_later = Time(0).after(Duration::from_secs(3600));
    assert_eq!(ps.poll_transmit(much_later, &mut out), None);
    ps.handle_datagram(Time(10), Ecn::Ect0, &partial(0, 40));
    ps.handle_datagram(Time(20), Ecn::Ect0, &partial(1, 2));
    let sent = ps.poll_transmit(Time(30), &mut out).unwrap();
    let header = Header::parse(&out[..sent.len]).unwrap();
    assert_eq!((header.kind, header.epoch), (Kind::Result, EPOCH));
    assert_eq!(sent.port, 5001, "fragment 5 is the second shard's");
    assert_eq!(out[22..26], 42_i32.to_be_bytes());
    assert_eq!(ps.poll_transmit(Time(30), &mut out), None);
}

#[test]
fn it_leaves_without_a_word() {
    let mut ps = seated();
    ps.leave(Time(1));
    assert!(ps.is_closed());
    assert_eq!(ps.poll_transmit(Time(2), &mut [0; 200]), None);
    let mut last = None;
    while let Some(event) = ps.poll_event() {
        last = Some(event);
    }
    assert_eq!(last, Some(PsEvent::Left));
}
