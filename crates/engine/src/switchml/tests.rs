//! The table, row by row, and what is said of sessions. The rest is in `tests/switchml.rs`, against
//! a model.

use super::*;
use crate::plain::{Ledger, Plain, Reply, Wire};
use std::net::Ipv4Addr;
use tally_wire::Mac;
use tally_wire::switchml::Size;

const TOS: u8 = 0x20;

fn station(n: u8) -> HostAddress {
    HostAddress {
        mac: Mac([2, 0, 0, 0, 1, n]),
        ip: Ipv4Addr::new(10, 0, 1, n),
    }
}

/// The switch's address that the n-th station was told.
fn own_mac(n: u8) -> Mac {
    Mac([6, 1, 2, 3, 4, n])
}

fn route(n: u8) -> Route {
    Route {
        from: station(n),
        to: own_mac(n),
    }
}

fn session(id: u64, stations: std::ops::Range<u8>) -> Session {
    Session {
        id: SessionId(id),
        size: Size::B128,
        workers: stations.clone().map(station).collect(),
        switch_macs: stations.map(own_mac).collect(),
    }
}

/// A contribution of a rank to slot 5, with its exponents and the one number that is all its
/// elements.
fn header(set: bool, exponents: [i8; 2]) -> Header {
    Header {
        size: Size::B128,
        job: 1,
        packet: [1, 2, 3, 4],
        slot: 5,
        set,
        exponents,
    }
}

fn arrival(n: u8) -> Arrival {
    Arrival {
        port: PortId(u16::from(n)),
        udp_port: 4000 + u16::from(n),
        own_port: 0xbee0,
        tos: TOS,
    }
}

fn elements(value: i32) -> Vec<u8> {
    value.to_be_bytes().repeat(32)
}

/// A shard with its way out. Dropped: every buffer must be accounted for.
struct World {
    shard: Switchml<Plain>,
    wire: Wire,
    ledger: Ledger,
    now: Time,
}

impl World {
    fn with(config: SwitchmlConfig, sessions: &[Session]) -> Self {
        let mut world = Self {
            shard: Switchml::new(config, Kernels::best()),
            wire: Wire::default(),
            ledger: Ledger::default(),
            now: Time(0),
        };
        for session in sessions {
            assert!(world.bind(session));
        }
        world
    }

    /// One shard with one session of so many workers.
    fn of(workers: u8) -> Self {
        Self::with(config(), &[session(1, 0..workers)])
    }

    fn bind(&mut self, session: &Session) -> bool {
        self.shard.bind(Arc::new(session.clone()), &mut self.wire)
    }

    fn say(&mut self, n: u8, header: &Header, value: i32) -> Result<Vec<Reply>, DropReason> {
        self.say_from(n, &arrival(n), header, value)
    }

    /// What a frame leads to: replies, perhaps none, or why it was dropped.
    fn say_from(
        &mut self,
        n: u8,
        arrival: &Arrival,
        header: &Header,
        value: i32,
    ) -> Result<Vec<Reply>, DropReason> {
        let admission = self.shard.admit(&route(n), header)?;
        let before = self.shard.counters().drops;
        let buffer = self.ledger.frame(elements(value));
        self.shard
            .handle(self.now, admission, arrival, header, buffer, &mut self.wire);
        let drops = self.shard.counters().drops;
        let dropped = |reason: &&DropReason| drops[**reason] > before[**reason];
        let replies = std::mem::take(&mut self.wire.replies);
        match DropReason::ALL.iter().find(dropped) {
            Some(reason) => {
                assert_eq!(replies, [], "dropped and answered");
                Err(*reason)
            }
            None => Ok(replies),
        }
    }

    fn status(&self, id: u64, age: Duration) -> SessionStatus {
        let statuses = self.shard.sessions(self.now, Some(age));
        let status = statuses.into_iter().find(|s| s.id == SessionId(id));
        status.expect("a bound session")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let all = self.shard.sessions(self.now, Some(Duration::ZERO));
        for status in all {
            self.shard.unbind(status.id, &mut self.wire);
        }
        assert_eq!((self.ledger.live(), self.ledger.lost()), (0, 0), "buffers");
        assert_eq!(self.shard.held_in_use(), 0);
    }
}

fn config() -> SwitchmlConfig {
    SwitchmlConfig {
        sessions: 2,
        slots: 16,
        held: 100,
        shards: 1,
        shard: 0,
    }
}

fn reply(n: u8, header: Header, sum: i32) -> Reply {
    let Arrival { port, udp_port, .. } = arrival(n);
    let HostAddress { mac, ip } = station(n);
    Reply {
        to: Destination {
            port,
            mac,
            ip,
            udp_port,
            own_port: 0xbee0,
            own_mac: own_mac(n),
        },
        header,
        tos: TOS,
        sum: elements(sum),
    }
}

#[test]
fn the_last_contribution_answers_all_with_its_own_header() {
    let mut world = World::of(3);
    assert_eq!(world.say(1, &header(false, [5, -9]), 10), Ok(vec![]));
    assert_eq!(world.say(0, &header(false, [-1, -7]), 100), Ok(vec![]));
    let last = Header {
        job: 99,
        packet: [9, 9, 9, 9],
        ..header(false, [-128, 3])
    };
    let result = Header {
        exponents: [5, 3],
        ..last
    };
    let replies = world.say(2, &last, 1000);
    let to_all = (0..3).map(|n| reply(n, result, 1110)).collect();
    assert_eq!(replies, Ok(to_all));
}

#[test]
fn sums_wrap() {
    let mut world = World::of(2);
    world
        .say(0, &header(true, [0; 2]), i32::MAX)
        .expect("taken");
    let replies = world.say(1, &header(true, [0; 2]), 2).expect("taken");
    assert_eq!(replies[0].sum, elements(i32::MIN + 1));
}

#[test]
fn a_duplicate_is_dropped_before_the_result_and_answered_after_it() {
    let mut world = World::of(2);
    world.say(0, &header(false, [1, 2]), 10).expect("taken");
    let again = world.say(0, &header(false, [100, 100]), 77);
    assert_eq!(again, Err(DropReason::Duplicate));
    world.say(1, &header(false, [2, 1]), 20).expect("taken");
    let late = Header {
        job: 42,
        packet: [4, 2, 4, 2],
        ..header(false, [100, 100])
    };
    let answer = Header {
        exponents: [2, 2],
        ..late
    };
    for n in [0, 1, 0] {
        assert_eq!(world.say(n, &late, 77), Ok(vec![reply(n, answer, 30)]));
    }
    let status = world.status(1, Duration::ZERO);
    assert_eq!(
        (status.counters.duplicates, status.counters.answered),
        (1, 3)
    );
    assert_eq!(
        (status.counters.contributions, status.counters.results),
        (2, 1)
    );
}

#[test]
fn a_rank_in_the_next_set_can_no_longer_ask_and_others_can() {
    let mut world = World::of(2);
    for n in 0..2 {
        world.say(n, &header(false, [0; 2]), 10).expect("taken");
    }
    assert_eq!(world.say(0, &header(true, [0; 2]), 1), Ok(vec![]));
    let answered = world.say(1, &header(false, [0; 2]), 10).map(|r| r.len());
    assert_eq!(answered, Ok(1), "its result was lost");
    let ghost = world.say(0, &header(false, [0; 2]), 10);
    assert_eq!(ghost, Err(DropReason::SwitchmlSet));
    let ghost = world.say(1, &header(true, [0; 2]), 2).expect("taken");
    assert_eq!(ghost.len(), 2, "nothing was changed by it");
    assert_eq!(ghost[0].sum, elements(3));
}

#[test]
fn both_sets_again_and_again() {
    let mut world = World::of(2);
    for round in 0..6 {
        let header = header(round % 2 == 1, [round as i8; 2]);
        assert_eq!(world.say(1, &header, round), Ok(vec![]));
        let to_all = (0..2).map(|n| reply(n, header, round + 7)).collect();
        assert_eq!(world.say(0, &header, 7), Ok(to_all));
        assert_eq!(world.ledger.live(), 1, "the other set is free");
    }
}

#[test]
fn a_set_that_all_have_left_counts_anew() {
    let mut world = World::of(3);
    world.say(0, &header(false, [50; 2]), 1).expect("taken");
    world.say(1, &header(false, [50; 2]), 2).expect("taken");
    // Both give up what never was complete.
    world.say(0, &header(true, [0; 2]), 0).expect("taken");
    world.say(1, &header(true, [0; 2]), 0).expect("taken");
    assert_eq!(world.ledger.live(), 1, "what they left is gone");
    assert_eq!(world.say(2, &header(false, [0; 2]), 10), Ok(vec![]));
    assert_eq!(world.say(0, &header(false, [1; 2]), 20), Ok(vec![]));
    let to_all = (0..3)
        .map(|n| reply(n, header(false, [2; 2]), 70))
        .collect();
    assert_eq!(world.say(1, &header(false, [2; 2]), 40), Ok(to_all));
}

#[test]
fn no_rank_is_in_a_sum_twice() {
    let mut world = World::of(3);
    world.say(0, &header(false, [0; 2]), 1).expect("taken");
    world.say(1, &header(false, [0; 2]), 2).expect("taken");
    world.say(0, &header(true, [0; 2]), 0).expect("taken");
    let again = world.say(0, &header(false, [0; 2]), 1);
    assert_eq!(again, Err(DropReason::SwitchmlSet));
    let replies = world.say(2, &header(false, [0; 2]), 4).expect("taken");
    assert_eq!((replies.len(), &replies[0].sum), (3, &elements(7)));
}

#[test]
fn a_single_worker_is_answered_at_once() {
    let mut world = World::of(1);
    for (set, value) in [(false, 1), (false, 1), (true, 2), (false, 3), (true, 4)] {
        let header = header(set, [value as i8; 2]);
        assert_eq!(
            world.say(0, &header, value),
            Ok(vec![reply(0, header, value)])
        );
    }
}

#[test]
fn sixty_four_workers() {
    let mut world = World::of(64);
    for set in [false, true, false] {
        for n in 0..63 {
            assert_eq!(world.say(n, &header(set, [n as i8; 2]), 1), Ok(vec![]));
        }
        let result = header(set, [63; 2]);
        let to_all: Vec<_> = (0..64).map(|n| reply(n, result, 64)).collect();
        assert_eq!(world.say(63, &result, 1), Ok(to_all));
    }
}

#[test]
fn replies_go_to_where_a_worker_last_sent_from_for_the_slot() {
    let mut world = World::of(2);
    let thread = |udp_port, own_port| Arrival {
        udp_port,
        own_port,
        ..arrival(0)
    };
    let other_slot = Header {
        slot: 6,
        ..header(false, [0; 2])
    };
    let this = header(false, [0; 2]);
    world
        .say_from(0, &thread(4007, 0xbee1), &other_slot, 1)
        .expect("taken");
    world
        .say_from(0, &thread(4008, 0xbee2), &this, 1)
        .expect("taken");
    // A duplicate, from another port of its own: this is where it is now.
    let again = world.say_from(0, &thread(4009, 0xbeef), &this, 1);
    assert_eq!(again, Err(DropReason::Duplicate));
    let to = |replies: Vec<Reply>| (replies[0].to.udp_port, replies[0].to.own_port);
    assert_eq!(world.say(1, &this, 1).map(to), Ok((4009, 0xbeef)));
    assert_eq!(world.say(1, &other_slot, 1).map(to), Ok((4007, 0xbee1)));
}

#[test]
fn a_host_with_a_workers_addresses_but_not_its_secret_changes_nothing() {
    let mut world = World::of(2);
    let public = Mac([2, 0x54, 0, 0, 0, 1]);
    // Before the worker's first frame, and after it; with the public address, and with another
    // worker's.
    for begun in [false, true] {
        for to in [public, own_mac(1)] {
            let from = station(0);
            let forged = Route { from, to };
            let refused = world.shard.admit(&forged, &header(false, [0; 2]));
            assert_eq!(refused, Err(DropReason::SwitchmlForged));
            world.shard.note_forged(from, PortId(9));
        }
        let status = world.status(1, Duration::ZERO);
        assert_eq!(status.ranks[0].port, begun.then_some(PortId(0)));
        assert_eq!(status.ranks[0].counters.frames, u64::from(begun));
        assert_eq!(status.ranks[0].counters.forged, if begun { 4 } else { 2 });
        assert_eq!(status.ranks[0].forged_from, Some(PortId(9)));
        assert_eq!(status.conflict, None);
        if !begun {
            assert_eq!(world.say(0, &header(false, [0; 2]), 1), Ok(vec![]));
        }
    }
    let replies = world.say(1, &header(false, [0; 2]), 10).expect("taken");
    let to_all: Vec<_> = (0..2)
        .map(|n| reply(n, header(false, [0; 2]), 11))
        .collect();
    assert_eq!(replies, to_all);
}

#[test]
fn a_secret_that_two_ports_have_ends_all_sums() {
    let mut world = World::of(2);
    world.say(0, &header(false, [0; 2]), 1).expect("taken");
    let admission = world.shard.admit(&route(0), &header(false, [0; 2]));
    let ports = [PortId(0), PortId(9)];
    world
        .shard
        .note_conflict(admission.expect("a worker"), ports);
    // Whichever of the two is the worker: the sum that it is in is never told to anybody.
    for n in [1, 0] {
        let late = world.say(n, &header(false, [0; 2]), 2);
        assert_eq!(late, Err(DropReason::SwitchmlPort));
    }
    let status = world.status(1, Duration::ZERO);
    assert_eq!(status.conflict, Some(Conflict { rank: 0, ports }));
    assert_eq!(
        (status.counters.results, status.ranks[0].counters.frames),
        (0, 1)
    );
    // Bound anew, it is as any.
    assert!(world.bind(&session(1, 0..2)));
    assert_eq!(world.say(1, &header(false, [0; 2]), 1), Ok(vec![]));
}

/// Behind other switches a worker has several ways: a reply takes that of the worker's last frame
/// for the slot.
#[test]
fn a_reply_leaves_by_the_port_that_its_slot_was_last_sent_for() {
    let mut world = World::of(2);
    let by = |port| Arrival {
        port: PortId(port),
        ..arrival(0)
    };
    let this = header(false, [0; 2]);
    let other_slot = Header { slot: 6, ..this };
    world.say_from(0, &by(7), &this, 1).expect("taken");
    world.say_from(0, &by(8), &other_slot, 1).expect("taken");
    // Its link has died.
    let again = world.say_from(0, &by(9), &this, 1);
    assert_eq!(again, Err(DropReason::Duplicate));
    let port = |replies: Vec<Reply>| replies[0].to.port;
    assert_eq!(world.say(1, &other_slot, 1).map(port), Ok(PortId(8)));
    assert_eq!(world.say(1, &this, 1).map(port), Ok(PortId(9)));
    let again = world.say_from(0, &by(7), &this, 1);
    assert_eq!(again.map(port), Ok(PortId(7)));
    assert_eq!(
        world.status(1, Duration::ZERO).ranks[0].port,
        Some(PortId(7))
    );
}

#[test]
fn the_shard_that_heard_a_worker_last_says_where_it_is() {
    let at = |port, now: u64, forged: u64| {
        let mut world = World::of(1);
        world.now = Time(now);
        let arrival = Arrival {
            port: PortId(port),
            ..arrival(0)
        };
        world
            .say_from(0, &arrival, &header(false, [0; 2]), 1)
            .expect("taken");
        for _ in 0..forged {
            world.shard.note_forged(station(0), PortId(7));
        }
        world.status(1, Duration::ZERO)
    };
    for (first, second) in [(1, 2), (2, 1)] {
        let mut both = at(first as u16, first, 0);
        both.add(&at(second as u16, second, 2));
        assert_eq!(both.ranks[0].port, Some(PortId(2)));
        assert_eq!(both.ranks[0].last, Some(Time(2)));
        assert_eq!(both.ranks[0].counters.forged, 2);
        assert_eq!(both.conflict, None);
    }
}

#[test]
fn frames_that_are_not_admitted() {
    let world = World::of(2);
    let admit = |n, header: &Header| world.shard.admit(&route(n), header).map(Admission::rank);
    let good = header(false, [0; 2]);
    assert_eq!(admit(1, &good), Ok(1));
    assert_eq!(admit(2, &good), Err(DropReason::SwitchmlStation));
    let size = Size::B256;
    assert_eq!(
        admit(0, &Header { size, ..good }),
        Err(DropReason::SwitchmlSize)
    );
    assert_eq!(
        admit(0, &Header { slot: 16, ..good }),
        Err(DropReason::SwitchmlSlot)
    );
    let half = SwitchmlConfig {
        shards: 2,
        shard: 0,
        ..config()
    };
    let world = World::with(half, &[session(1, 0..2)]);
    assert_eq!(world.shard.shard_of(&good), 1);
    assert_eq!(world.shard.admit(&route(0), &good), Err(DropReason::Shard));
}

#[test]
fn a_wrong_number_of_elements_is_dropped_and_not_summed() {
    let mut world = World::of(2);
    world.say(0, &header(false, [0; 2]), 1).expect("taken");
    let header = header(false, [0; 2]);
    let admission = world.shard.admit(&route(1), &header).expect("admitted");
    let buffer = world.ledger.frame(vec![0; 124]);
    let now = world.now;
    world.shard.handle(
        now,
        admission,
        &arrival(1),
        &header,
        buffer,
        &mut world.wire,
    );
    assert_eq!(world.shard.counters().dropped(DropReason::Length), 1);
    assert_eq!(world.say(1, &header, 1).map(|r| r.len()), Ok(2));
}

#[test]
fn sessions_have_slots_of_their_own() {
    let mut world = World::with(config(), &[session(1, 0..2), session(2, 2..4)]);
    assert_eq!(world.say(0, &header(false, [0; 2]), 1), Ok(vec![]));
    assert_eq!(world.say(2, &header(false, [0; 2]), 100), Ok(vec![]));
    let sum = |replies: Vec<Reply>| replies.into_iter().map(|r| r.sum).collect::<Vec<_>>();
    let first = world.say(1, &header(false, [0; 2]), 2).map(sum);
    assert_eq!(first, Ok(vec![elements(3); 2]));
    let second = world.say(3, &header(false, [0; 2]), 200).map(sum);
    assert_eq!(second, Ok(vec![elements(300); 2]));
}

#[test]
fn as_many_sessions_as_configured_and_a_place_is_free_again() {
    let mut world = World::with(config(), &[session(1, 0..2), session(2, 2..4)]);
    let third = session(3, 4..6);
    assert!(!world.bind(&third));
    world.say(0, &header(false, [0; 2]), 1).expect("taken");
    world.shard.unbind(SessionId(1), &mut world.wire);
    assert_eq!(world.ledger.live(), 0);
    let gone = world.say(0, &header(false, [0; 2]), 1);
    assert_eq!(gone, Err(DropReason::SwitchmlStation));
    assert!(world.bind(&third));
    assert_eq!(world.say(4, &header(false, [0; 2]), 1), Ok(vec![]));
}

#[test]
fn none_and_more_workers_than_a_bitmap_has_bits_are_refused() {
    let mut world = World::of(1);
    assert!(!world.bind(&session(2, 0..0)));
    assert!(!world.bind(&session(2, 0..65)));
    let mut short = session(2, 2..4);
    short.switch_macs.pop();
    assert!(!world.bind(&short), "a worker without a secret");
    let status = world.shard.sessions(world.now, Some(Duration::ZERO));
    assert_eq!(status.len(), 1);
}

#[test]
fn the_same_number_again_begins_with_empty_slots() {
    let mut world = World::of(2);
    world.say(0, &header(false, [9; 2]), 1).expect("taken");
    assert!(world.bind(&session(1, 0..2)));
    assert_eq!(world.ledger.live(), 0);
    assert_eq!(world.say(0, &header(false, [0; 2]), 10), Ok(vec![]));
    let replies = world.say(1, &header(false, [0; 2]), 20).expect("taken");
    assert_eq!(replies[1], reply(1, header(false, [0; 2]), 30));
}

#[test]
fn a_station_is_in_its_newest_session_until_that_ends() {
    let mut world = World::with(config(), &[session(1, 0..2), session(2, 1..3)]);
    let seat_of = |world: &World, n| {
        let admission = world.shard.admit(&route(n), &header(false, [0; 2]));
        admission.map(Admission::rank)
    };
    assert_eq!(seat_of(&world, 1), Ok(0));
    world.shard.unbind(SessionId(2), &mut world.wire);
    assert_eq!(seat_of(&world, 1), Ok(1));
    // The place that was freed is not the newest for coming first.
    world.shard.unbind(SessionId(1), &mut world.wire);
    assert!(world.bind(&session(3, 0..1)) && world.bind(&session(4, 0..2)));
    world.shard.unbind(SessionId(3), &mut world.wire);
    assert!(world.bind(&session(5, 1..2)));
    assert_eq!(seat_of(&world, 1), Ok(0));
}

#[test]
fn an_admission_from_before_a_change_is_none() {
    let mut world = World::of(2);
    let header = header(false, [0; 2]);
    let admission = world.shard.admit(&route(0), &header).expect("admitted");
    assert!(world.shard.still_admits(admission));
    world.bind(&session(1, 5..7));
    assert!(!world.shard.still_admits(admission));
    let buffer = world.ledger.frame(elements(1));
    let now = world.now;
    world.shard.handle(
        now,
        admission,
        &arrival(0),
        &header,
        buffer,
        &mut world.wire,
    );
    let dropped = world.shard.counters().dropped(DropReason::SwitchmlStation);
    assert_eq!((dropped, world.ledger.live()), (1, 0));
}

#[test]
fn no_more_buffers_are_kept_than_allowed_and_nothing_is_noted_of_what_is_dropped() {
    let two = SwitchmlConfig {
        sessions: 1,
        held: 2,
        ..config()
    };
    let mut world = World::with(two, &[session(1, 0..2)]);
    let at = |slot| Header {
        slot,
        ..header(false, [0; 2])
    };
    assert_eq!(world.say(0, &at(0), 1), Ok(vec![]));
    assert_eq!(world.say(0, &at(1), 1), Ok(vec![]));
    for _ in 0..2 {
        assert_eq!(world.say(0, &at(2), 1), Err(DropReason::SwitchmlHeld));
    }
    assert_eq!(world.say(1, &at(0), 2).map(|r| r.len()), Ok(2));
    // The other set of slot 0 would be a third, and its first one is still asked for.
    let next = Header { set: true, ..at(0) };
    assert_eq!(world.say(0, &next, 1), Err(DropReason::SwitchmlHeld));
    let answered = world.say(0, &at(0), 1).map(|r| r.len());
    assert_eq!(answered, Ok(1), "the bit is where it was");
}

#[test]
fn who_is_behind() {
    let mut world = World::of(3);
    let at = |slot| Header {
        slot,
        ..header(false, [0; 2])
    };
    world.say(0, &at(0), 1).expect("taken");
    world.now = world.now.after(Duration::from_secs(2));
    for (n, slot) in [(0, 1), (1, 1), (1, 0), (0, 2), (1, 2), (2, 2)] {
        world.say(n, &at(slot), 1).expect("taken");
    }
    world.now = world.now.after(Duration::from_secs(3));
    let status = world.status(1, Duration::from_secs(1));
    let behind: Vec<_> = status
        .ranks
        .iter()
        .map(|r| (r.counters.frames, r.counters.behind))
        .collect();
    assert_eq!(behind, [(3, 0), (3, 0), (1, 2)]);
    let longest = status.ranks[2].counters.behind_s;
    assert!((4.99..5.01).contains(&longest), "{longest}");
    assert_eq!((status.counters.slots_in_use, status.counters.held), (2, 3));
    let status = world.status(1, Duration::from_secs(4));
    assert_eq!(status.ranks[2].counters.behind, 1, "the older one");
    let last = Time(0).after(Duration::from_secs(2));
    assert_eq!(
        (status.ranks[2].last, status.last()),
        (Some(last), Some(last))
    );

    let mut sum = status.clone();
    sum.add(&status);
    assert_eq!(
        (sum.ranks[2].counters.frames, sum.counters.contributions),
        (2, 14)
    );
}

/// What a worker sends: rank, slot, set, how it arrives, exponent and value.
type Said = (u8, u16, bool, u8, i8, i32);

/// What these contributions lead to, in iterations of `iteration` frames: replies by slot,
/// counters, status.
fn outcome(
    workers: u8,
    said: &[Said],
    iteration: usize,
) -> (Vec<Vec<Reply>>, SwitchmlCounters, Vec<SessionStatus>) {
    let mut world = World::of(workers);
    for said in said.chunks(iteration) {
        for &(rank, slot, set, variant, exponent, value) in said {
            let header = Header {
                slot,
                job: variant,
                packet: value.to_be_bytes(),
                ..header(set, [exponent, !exponent])
            };
            let n = rank % workers;
            let admission = world.shard.admit(&route(n), &header).expect("a worker");
            let arrival = Arrival {
                udp_port: 4000 + u16::from(variant % 3),
                tos: variant,
                ..arrival(n)
            };
            let origin = Origin::new(admission, &arrival);
            let buffer = world.ledger.frame(elements(value));
            world
                .shard
                .collect(world.now, &origin, &header, buffer, &mut world.wire);
        }
        world.shard.aggregate(world.now, &mut world.wire);
    }
    let mut replies = vec![Vec::new(); 16];
    for reply in world.wire.replies.drain(..) {
        replies[usize::from(reply.header.slot)].push(reply);
    }
    let status = world.shard.sessions(world.now, Some(Duration::ZERO));
    (replies, *world.shard.counters(), status)
}

mod batches {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Honest workers send once for a set, in any order; these also repeat and run ahead.
        #[test]
        fn an_iteration_of_many_does_what_one_after_another_would(
            workers in prop_oneof![1..4_u8, Just(8), Just(11)],
            said in prop::collection::vec(
                (any::<u8>(), 0..3_u16, prop::bool::weighted(0.3), 0..4_u8, any::<i8>(), any::<i32>()),
                0..150,
            ),
            iteration in 2..80_usize,
        ) {
            let want = outcome(workers, &said, 1);
            prop_assert_eq!(outcome(workers, &said, iteration), want);
        }

        #[test]
        fn whole_sums_of_many_slots_do_too(
            workers in 1..20_u8,
            first in any::<u8>(),
            iteration in 2..700_usize,
            late in prop::collection::vec((any::<u8>(), 0..16_u16, any::<bool>()), 0..4),
        ) {
            let round = |set| (0..workers).flat_map(move |rank| {
                (0..16).map(move |slot| {
                    let value = i32::from(rank) << 20 | i32::from(slot);
                    ((first % workers + rank) % workers, slot, set, rank, rank as i8, value)
                })
            });
            let late = late.into_iter().map(|(rank, slot, set)| (rank, slot, set, 0, 0, 1));
            let said: Vec<Said> = round(false).chain(round(true)).chain(late).collect();
            let want = outcome(workers, &said, 1);
            prop_assert!(want.1.results >= 32);
            prop_assert_eq!(outcome(workers, &said, iteration), want);
        }
    }

    #[test]
    fn more_sets_than_a_batch_has_rows_are_handled_in_between() {
        // Each changes the set of one slot, so each begins a row.
        let turns = 0..2 * batch::ROWS as i32 + 3;
        let said: Vec<Said> = turns.map(|n| (0, 7, n % 2 == 1, 1, 0, n)).collect();
        let (replies, counters, status) = outcome(1, &said, said.len());
        assert_eq!(replies[7].len(), said.len());
        assert_eq!(
            (counters.results, status[0].counters.held),
            (said.len() as u64, 1)
        );
        assert_eq!(
            replies[7].last().unwrap().sum,
            elements(said.len() as i32 - 1)
        );
    }

    #[test]
    #[should_panic(expected = "within a poll iteration")]
    fn a_session_does_not_end_while_its_contributions_wait() {
        let mut world = World::of(2);
        let header = header(false, [0; 2]);
        let admission = world.shard.admit(&route(0), &header).unwrap();
        let origin = Origin::new(admission, &arrival(0));
        let buffer = world.ledger.frame(elements(1));
        world
            .shard
            .collect(world.now, &origin, &header, buffer, &mut world.wire);
        world.shard.unbind(SessionId(1), &mut world.wire);
    }
}
