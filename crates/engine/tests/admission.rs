//! An admission holds for frames like the one it was given for, until rosters change.

#![allow(clippy::unwrap_used)]

mod common;

use common::plain::{Plain, Wire, host, secret};
use tally_engine::{Admission, Aggregator, DropReason, PolicyName, PoolConfig, PoolJob, Roster};
use tally_kernels::Kernels;
use tally_wire::{AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Kind, Rank};

const JOB: JobId = JobId(7);
const OTHER: JobId = JobId(8);

fn roster(epoch: u16) -> Roster {
    let workers = (0..2).map(host).collect();
    let epoch = Epoch(epoch);
    Roster::new(JOB, epoch, secret(JOB, epoch), 1, workers, host(9))
}

fn data(fragment: u32) -> Header {
    Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 1,
        element: Element::I32,
        job: JOB,
        epoch: Epoch(1),
        fragment: FragmentId(fragment),
        rank: Rank(0),
        units: 1,
        bitmap: 1,
        tag: AuthTag::NONE,
    }
}

fn shard() -> (Aggregator<Plain>, Wire, Admission) {
    let config = PoolConfig {
        slots: 4,
        ways: 1,
        held: 4,
        window: 4,
        shards: 2,
        shard: 1,
        jobs: [JOB, OTHER].map(PoolJob::unlimited).to_vec(),
        policy: PolicyName::Esa,
        places: 0,
    };
    let (mut shard, mut wire) = (Aggregator::new(config, Kernels::best()), Wire::default());
    assert!(shard.bind(roster(1), &mut wire));
    let admission = shard.admit(&host(0), &data(1)).unwrap();
    (shard, wire, admission)
}

#[test]
fn it_holds_for_other_fragments_of_the_shard() {
    let (shard, _, admission) = shard();
    for fragment in 0..9 {
        assert_eq!(
            shard.still_admits(admission, FragmentId(fragment)),
            shard.admit(&host(0), &data(fragment)) == Ok(admission),
            "{fragment}"
        );
    }
}

#[test]
fn it_ends_with_the_epoch() {
    let (mut shard, mut wire, admission) = shard();
    assert!(shard.bind(roster(2), &mut wire));
    assert!(!shard.still_admits(admission, FragmentId(1)));
    assert_eq!(shard.admit(&host(0), &data(1)), Err(DropReason::Epoch));
}

#[test]
fn it_ends_with_the_job_also_when_another_takes_its_place() {
    let (mut shard, mut wire, admission) = shard();
    shard.unbind(JOB, &mut wire);
    assert!(!shard.still_admits(admission, FragmentId(1)));
    let other = Roster {
        job: OTHER,
        ..roster(1)
    };
    assert!(shard.bind(other, &mut wire));
    assert!(!shard.still_admits(admission, FragmentId(1)));
}

#[test]
fn it_ends_when_members_move_within_the_epoch() {
    let (mut shard, mut wire, admission) = shard();
    let mut moved = roster(1);
    moved.workers[0] = host(5);
    assert!(shard.bind(moved, &mut wire));
    assert!(!shard.still_admits(admission, FragmentId(1)));
    assert_eq!(shard.admit(&host(0), &data(1)), Err(DropReason::NotMember));
}

/// A tag is of one fragment, so an admission is for more than one only of frames without.
#[test]
fn frames_with_a_tag_are_admitted_one_by_one() {
    let (shard, ..) = shard();
    let probe = |fragment| Header {
        kind: Kind::Probe,
        element: Element::None,
        units: 0,
        bitmap: 0,
        ..data(fragment)
    };
    let sealed = secret(JOB, Epoch(1)).seal(probe(1));
    assert!(shard.admit(&host(0), &sealed).is_ok());
    let next = Header {
        fragment: FragmentId(3),
        ..sealed
    };
    assert_eq!(shard.admit(&host(0), &next), Err(DropReason::AuthTag));
}
