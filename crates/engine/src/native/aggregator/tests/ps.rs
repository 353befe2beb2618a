//! S-2 to S-4: REMIND and NACK of the PS, RESULT of the PS and of workers.

use super::*;

// --- S-2: the PS's result. ---

#[test]
fn a_result_of_the_ps_frees_the_slot_and_leaves_to_the_group() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        let from_ps = Header {
            flags: Flags::OVERFLOW,
            ..result_of(Rank::PS, 0)
        };
        let expected = published(result_of(Rank::SWITCH, 0), ints(111), None);
        let flags = Flags::OVERFLOW.with(Flags::FROM_PS);
        assert_eq!(w.say(from_ps, 111), [flagged(expected, flags)], "{policy}");
        assert_eq!(w.taken(), 0);
        assert_eq!(w.shard.counters().results_from_ps, 1);
        assert_eq!(w.shard.counters().overflows, 1);
        assert_eq!(
            w.resend(0, 2, 100),
            [Sent::Retransmit(Rank(2), PortId(2), ints(111))]
        );
        w.dropped(DropReason::Late, |w| w.say(result_of(Rank::PS, 0), 111));
        w.dropped(DropReason::Late, |w| w.data(0, 1, 10));
    }
}

#[test]
fn a_result_of_the_ps_leaves_other_fragments_alone() {
    let mut w = World::new(PolicyName::Esa, 1);
    w.data(0, 0, 1);
    assert_eq!(w.say(result_of(Rank::PS, 1), 5).len(), 1);
    assert_eq!(w.taken(), 1);
    w.data(0, 1, 10);
    assert_eq!(w.data(0, 2, 100), [result(0, 111)]);
}

#[test]
fn a_result_older_than_the_ring_is_dropped() {
    let mut w = World::new(PolicyName::Esa, 8);
    for fragment in 1..9 {
        finish(&mut w, fragment, 1);
    }
    w.dropped(DropReason::Late, |w| w.say(result_of(Rank::PS, 0), 5));
}

// --- S-3: REMIND. ---

#[test]
fn remind_takes_the_partial_once() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        w.data(0, 2, 100);
        assert_eq!(
            w.say(ps(Kind::Remind, 0), 0),
            [partial(0, 0b101, 101)],
            "{policy}"
        );
        assert_eq!(w.taken(), 0);
        assert_eq!(w.say(ps(Kind::Remind, 0), 0), [not_here(0, Flags::NONE)]);
        // Another fragment in the slot of the one that is asked for is not what was asked for.
        w.data(8, 0, 1);
        assert_eq!(w.say(ps(Kind::Remind, 0), 0), [not_here(0, Flags::NONE)]);
        assert_eq!(w.taken(), 1);
        assert_eq!(w.shard.counters().reminds, 3);
    }
}

fn not_here(fragment: u32, flags: Flags) -> Sent {
    let header = Header {
        kind: Kind::NotHere,
        rank: Rank::SWITCH,
        flags,
        ..ps(Kind::Remind, fragment)
    };
    Sent::To(To::Ps, host(9), header, Vec::new())
}

#[test]
fn remind_of_a_finished_fragment_says_so() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        for fragment in 0..9 {
            finish(&mut w, fragment, 1);
        }
        for fragment in [0, 1, 8] {
            let expected = not_here(fragment, Flags::FINISHED);
            assert_eq!(w.say(ps(Kind::Remind, fragment), 0), [expected], "{policy}");
        }
    }
}

#[test]
fn remind_of_a_sum_that_fcfs_has_sent_finds_nothing_and_leaves_the_slot() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    for rank in 0..3 {
        w.data(0, rank, 1);
    }
    assert_eq!(w.say(ps(Kind::Remind, 0), 0), [not_here(0, Flags::NONE)]);
    assert_eq!(w.taken(), 1);
}

// --- S-4: NACK, and a worker's result. ---

#[test]
fn nack_goes_to_its_worker() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(5, 1, 1);
        let expected = Sent::To(To::Worker(Rank(1)), host(1), nack(5, 1), Vec::new());
        assert_eq!(w.say(nack(5, 1), 0), [expected]);
        assert_eq!(w.shard.counters().nacks, 1);
        assert_eq!(w.taken(), 1);
    }
}

#[test]
fn a_result_of_a_worker_frees_the_slot_and_leaves_to_the_group() {
    for policy in PolicyName::ALL.map(|(_, policy)| policy) {
        for flags in [
            Flags::NONE,
            Flags::OVERFLOW,
            Flags::FROM_PS,
            Flags::MARKED.with(Flags::COLLISION).with(Flags::FROM_PS),
        ] {
            let mut w = World::new(policy, 8);
            w.data(0, 0, 1);
            w.data(1, 0, 7);
            let taken = w.taken();
            let answer = Header {
                flags,
                ..result_of(Rank(2), 0)
            };
            let expected = published(result_of(Rank::SWITCH, 0), ints(111), None);
            let kept = Flags(flags.0 & !Flags::FROM_PS.0);
            assert_eq!(w.say(answer, 111), [flagged(expected, kept)], "{policy}");
            assert_eq!(w.taken(), taken.saturating_sub(1), "that of 1 stays");
            let c = *w.shard.counters();
            assert_eq!((c.results_from_workers, c.results_from_ps), (1, 0));
            assert_eq!(c.overflows, u64::from(flags == Flags::OVERFLOW));
            assert_eq!(
                w.probe(0, 1),
                [Sent::Retransmit(Rank(1), PortId(1), ints(111))]
            );
            // Others answer as well, and the PS may have it already.
            w.dropped(DropReason::Late, |w| w.say(result_of(Rank(1), 0), 111));
            w.dropped(DropReason::Late, |w| w.say(result_of(Rank::PS, 0), 111));
            w.dropped(DropReason::Late, |w| w.data(0, 1, 10));
        }
    }
}

#[test]
fn a_result_of_a_worker_gives_up_what_fcfs_holds_for_the_ps() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    for rank in 0..3 {
        w.data(0, rank, 1);
    }
    assert_eq!(w.taken(), 1);
    let expected = published(result_of(Rank::SWITCH, 0), ints(3), None);
    assert_eq!(w.say(result_of(Rank(0), 0), 3), [expected]);
    assert_eq!(w.taken(), 0);
}

#[test]
fn a_result_of_a_worker_older_than_the_ring_is_dropped() {
    let mut w = World::new(PolicyName::Esa, 8);
    for fragment in 1..9 {
        finish(&mut w, fragment, 1);
    }
    w.dropped(DropReason::Late, |w| w.say(result_of(Rank(1), 0), 5));
}

// --- P-6: several servers. ---

/// Job 7 with these servers, on `shards` shards of which this is the first.
fn served_by(servers: &[Member], shards: u8) -> World {
    let mut w = World::with(PoolConfig { shards, ..pool() });
    w.bind(roster(JOB, 3, 0).with_servers(servers.to_vec()));
    w
}

#[test]
fn what_goes_to_the_ps_goes_to_the_server_of_the_fragment() {
    let servers = [host(20), host(21), host(22), host(23)];
    let mut w = served_by(&servers, 1);
    // To whom the only frame goes, and what it is.
    let only = |sent: Vec<Sent>| match &sent[..] {
        [Sent::To(To::Ps, member, header, _)] => (*member, header.kind),
        sent => panic!("{sent:?}"),
    };
    for fragment in [u32::MAX - 1, u32::MAX, 0, 1, 2, 3, 4, 5] {
        let server = servers[fragment as usize % 4];
        w.data(fragment, 0, 1);
        let remind = ps(Kind::Remind, fragment);
        let sent = w.handle(server, remind, &[]);
        assert_eq!(only(sent), (server, Kind::Partial), "{fragment}");
        // Nothing is left.
        let sent = w.handle(server, remind, &[]);
        assert_eq!(only(sent), (server, Kind::NotHere), "{fragment}");
        let sent = w.probe(fragment, 1);
        assert_eq!(only(sent), (server, Kind::Probe), "{fragment}");
    }
}

#[test]
fn a_server_says_nothing_of_fragments_of_another_part() {
    let servers = [host(20), host(21)];
    let mut w = served_by(&servers, 1);
    w.data(0, 0, 1);
    w.data(1, 0, 1);
    for fragment in [0, 1] {
        let other = servers[1 - fragment as usize];
        let nack = Header {
            kind: Kind::Nack,
            rank: Rank(2),
            ..ps(Kind::Remind, fragment)
        };
        let said = [
            ps(Kind::Remind, fragment),
            nack,
            result_of(Rank::PS, fragment),
        ];
        for header in said {
            w.dropped(DropReason::NotMember, |w| w.handle(other, header, &ints(5)));
        }
    }
    assert_eq!(w.taken(), 2, "no slot was touched");
    // Another server has the part from now on: the old one says nothing more, the other still does.
    w.bind(roster(JOB, 3, 0).with_servers(vec![host(20), host(25)]));
    for (from, fragment) in [(host(20), 0), (host(25), 1)] {
        assert_eq!(
            w.handle(from, result_of(Rank::PS, fragment), &ints(7))
                .len(),
            1
        );
    }
    let remind = ps(Kind::Remind, 3);
    w.dropped(DropReason::NotMember, |w| w.handle(host(21), remind, &[]));
}
