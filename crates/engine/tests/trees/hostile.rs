//! Forged and recorded datagrams.

use super::world::{JOB, World, fabric_key, job_key, mac_of, ms};
use super::{THREE, TWO, running};
use tally_engine::Action;
use tally_wire::control::{
    Below, DATAGRAM_BYTES, JoinTree, Leave, LeaveCode, LeaveTree, Reason, Role,
};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    AuthTag, Element, Epoch, Flags, FragmentId, Header, Join, Key, Kind, Mac, Part, Rank, Refuse,
};

fn header(kind: Kind, rank: u8) -> Header {
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
        element: Element::None,
        job: JOB,
        epoch: Epoch(0),
        fragment: FragmentId(0),
        rank: Rank(rank),
        units: CONTROL_UNITS,
        bitmap: 0,
        tag: AuthTag::NONE,
    }
}

fn join(role: Role, key: &Key, rank: u8) -> Vec<u8> {
    let below = Below {
        ready: true,
        first: 0,
        ranks: 2,
        total: 4,
        awaited: None,
        ps_missing: false,
        slowest: 0,
    };
    let is_switch = role == Role::Switch;
    let join = Join {
        instance: 77,
        challenge: 5,
        role,
        workers: if is_switch { 0 } else { 4 },
        units: 1,
        running: false,
        window: 8,
        shape: [9; 32],
        sent: None,
        awaiting: 0,
        salt: 0,
        tree: is_switch.then_some(JoinTree::Switch(below)),
        part: Part::ONLY,
    };
    let mut datagram = vec![0; DATAGRAM_BYTES];
    header(Kind::Join, rank).emit(&mut datagram);
    join.emit(&mut datagram);
    key.seal(&mut datagram);
    datagram
}

fn reason(actions: &[Action]) -> Option<Reason> {
    match actions {
        [] => None,
        [Action::Send(_, datagram)] => Some(Refuse::parse(&**datagram).unwrap().reason),
        more => panic!("{more:?}"),
    }
}

const STRANGER: Mac = Mac([2, 9, 0, 0, 0, 9]);

/// TR-21: JOIN of a switch under the job's key, of a worker under the switch key, and of a switch
/// where no switch is below: nothing but a hint, or nothing.
#[test]
fn each_role_has_its_key() {
    let mut world = running(1, &TWO);
    let cases = [
        (0, Role::Switch, job_key(), 0, Some(Reason::BadMac)),
        (
            0,
            Role::Switch,
            Key::new(&[1; 16]).unwrap(),
            0,
            Some(Reason::BadMac),
        ),
        (0, Role::Switch, fabric_key(), 0, Some(Reason::Challenge)),
        (0, Role::Worker, fabric_key(), 0, Some(Reason::BadMac)),
        (1, Role::Worker, fabric_key(), 0, Some(Reason::BadMac)),
        (1, Role::Switch, fabric_key(), 0, Some(Reason::BadMac)),
        (1, Role::Switch, job_key(), 0, None),
        (1, Role::Worker, job_key(), 0, Some(Reason::Challenge)),
    ];
    for (at, role, key, rank, want) in cases {
        let actions = world.inject(at, 50, STRANGER, &join(role, &key, rank));
        assert_eq!(reason(&actions), want, "switch {at}, {role:?}");
        world.run(ms(5));
    }
    world.run(ms(1000));
    world.assert_one_epoch();
}

/// TR-23: recorded frames of a child, sent from elsewhere, move nothing and end nothing.
#[test]
fn a_recorded_join_from_elsewhere_moves_nothing() {
    let mut world = running(2, &TWO);
    let mut recorded = Vec::new();
    for _ in 0..4 {
        world.run(ms(300));
        recorded.append(&mut world.take_record(0));
    }
    assert!(recorded.len() > 2);
    let before = world.switches[0].bound.clone();
    for datagram in &recorded {
        for _ in 0..2 {
            let actions = world.inject(0, 50, STRANGER, datagram);
            assert!(
                actions.iter().all(|it| matches!(it, Action::Send(..))),
                "{actions:?}"
            );
        }
        world.run(ms(20));
    }
    world.run(ms(2000));
    assert_eq!(world.switches[0].bound, before);
    world.assert_one_epoch();
}

/// ACCEPT and REFUSE count only from the parent's port and addresses, and under the switch key.
#[test]
fn answers_count_only_from_the_parent() {
    let mut world = running(3, &THREE);
    let refuse = Refuse {
        instance: 1,
        challenge: 1,
        reason: Reason::Removed,
        about: None,
        found: 0,
        allowed: 0,
        behind: 0,
        concern: None,
    };
    for (port, mac) in [
        (50, STRANGER),
        (50, mac_of(0)),
        (200, STRANGER),
        (200, mac_of(0)),
    ] {
        for key in [job_key(), fabric_key()] {
            let mut datagram = vec![0; DATAGRAM_BYTES];
            header(Kind::Refuse, 1).emit(&mut datagram);
            refuse.emit(&mut datagram);
            key.seal(&mut datagram);
            assert_eq!(world.inject(1, port, mac, &datagram), []);
        }
    }
    world.run(ms(1000));
    world.assert_one_epoch();
}

/// LEAVE of a switch under the job's key, or for a worker's rank, ends nothing.
#[test]
fn leave_of_a_switch_needs_the_switch_key() {
    let mut world = running(4, &THREE);
    let leave = Leave {
        instance: 77,
        challenge: 5,
        code: LeaveCode::Failed,
        fragment: FragmentId(0),
        behind: 0,
        salt: 0,
        tree: Some(LeaveTree::Switch(None)),
    };
    for at in 0..6 {
        for rank in [0, 1, 2, 63, 255] {
            for key in [job_key(), fabric_key()] {
                let mut datagram = vec![0; DATAGRAM_BYTES];
                header(Kind::Leave, rank).emit(&mut datagram);
                leave.emit(&mut datagram);
                key.seal(&mut datagram);
                let actions = world.inject(at, 50, STRANGER, &datagram);
                assert!(
                    reason(&actions).is_none_or(|it| !it.is_final()),
                    "{actions:?}"
                );
            }
        }
        world.run(ms(20));
    }
    world.run(ms(1000));
    world.assert_one_epoch();
}

/// Any payload of a switch under the right key: no panic, and what runs elsewhere is untouched.
#[test]
fn authentic_nonsense_of_a_switch_never_panics() {
    let mut world = World::new(5, &THREE);
    world.start_all();
    for round in 0..4000 {
        if round % 50 == 0 {
            world.run(ms(40));
        }
        let mut datagram = join(Role::Switch, &fabric_key(), 0);
        let mut head = header(
            [Kind::Join, Kind::Leave, Kind::Accept, Kind::Refuse][world.rng.below(4) as usize],
            [0, 1, 2, 3, 255][world.rng.below(5) as usize],
        );
        let at = world.rng.below(6) as usize;
        head.epoch = world.switches[at].registry.status().next().unwrap().epoch;
        head.emit(&mut datagram);
        for _ in 0..world.rng.below(12) {
            let byte = 22 + world.rng.below(112) as usize;
            datagram[byte] = world.rng.below(6) as u8;
        }
        fabric_key().seal(&mut datagram);
        let (port, mac) = match world.switches[at].parent {
            Some(parent) if world.rng.below(2) == 0 => (200, mac_of(parent)),
            _ => (50, STRANGER),
        };
        let actions = world.inject(at, port, mac, &datagram);
        world.carry_out_known(at, actions);
    }
}
