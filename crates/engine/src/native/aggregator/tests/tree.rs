//! A node of a tree, between its members and its parent, rule by rule (TR-1 to TR-8).
//!
//! Job 7 has hosts at ranks 0 and 1, a child switch at rank 2, and a parent at which it is rank 5.

use super::*;
use crate::native::batch::{Batch, Contribution};
use crate::roster::Uplink;

/// The parent's base port is unlike ours, and it has two shards.
const UPLINK: Uplink = Uplink {
    parent: Member {
        port: PortId(40),
        mac: tally_wire::Mac([2, 0, 0, 0, 1, 40]),
        ip: std::net::Ipv4Addr::new(10, 9, 0, 40),
        udp_port: 31_249,
    },
    rank: Rank(5),
    shards: 2,
};

const OF_SUMS: Flags = Flags(Flags::OVERFLOW.0 | Flags::MARKED.0 | Flags::COLLISION.0);

fn node() -> Roster {
    roster(JOB, 3, 0).with_switches(0b100).with_uplink(UPLINK)
}

fn world(policy: PolicyName) -> World {
    let mut w = World::with(PoolConfig { policy, ..pool() });
    w.bind(node());
    w
}

/// The parent's shard of a fragment.
fn parent(fragment: u32) -> Member {
    let udp_port = UPLINK.parent.udp_port + (fragment % 2) as u16;
    Member {
        udp_port,
        ..UPLINK.parent
    }
}

fn sum_header(fragment: u32, flags: Flags) -> Header {
    Header {
        flags,
        ..data(fragment, 5)
    }
}

/// The node's sum as it leaves.
fn up(fragment: u32, value: i32, flags: Flags, born: Option<Time>) -> Sent {
    let header = sum_header(fragment, flags);
    Sent::Up(parent(fragment), header, ints(value), born)
}

fn sum_up(fragment: u32, value: i32) -> Sent {
    up(fragment, value, Flags::NONE, Some(Time(1000)))
}

/// A frame to the parent that no reference is kept of.
fn to_parent(header: Header, payload: Vec<u8>) -> Sent {
    Sent::To(To::Parent, parent(header.fragment.0), header, payload)
}

fn probe_up(fragment: u32) -> Sent {
    let header = Header {
        priority: 10,
        ..probe(fragment, 5)
    };
    to_parent(header, Vec::new())
}

fn result_down(fragment: u32, flags: Flags) -> Header {
    let header = result_of(Rank::SWITCH, fragment);
    Header { flags, ..header }
}

impl World {
    fn of_parent(&mut self, header: Header, value: i32) -> Vec<Sent> {
        self.handle(UPLINK.parent, header, &ints(value))
    }

    /// NACK of the parent.
    fn asked(&mut self, fragment: u32) -> Vec<Sent> {
        self.of_parent(nack(fragment, 5), 0)
    }

    /// Takes a fragment to where it is sent up, in the way of the policy.
    fn send_up(&mut self, fragment: u32, value: i32) {
        for rank in 0..3 {
            self.data(fragment, rank, if rank == 0 { value } else { 0 });
        }
        if self.shard.policy.completion() == Completion::ToPsAndHold
            || self.shard.config.policy == PolicyName::None
        {
            self.say(result_of(Rank::PS, fragment), value);
        }
    }
}

const ALL_POLICIES: [PolicyName; 4] = [
    PolicyName::Esa,
    PolicyName::Fcfs,
    PolicyName::Static,
    PolicyName::None,
];

#[test]
fn tr_1_a_complete_sum_goes_up_and_not_to_the_members() {
    for policy in [PolicyName::Esa, PolicyName::Static] {
        let mut w = world(policy);
        for fragment in 0..6 {
            assert_eq!(w.data(fragment, 2, 1), []);
            assert_eq!(w.data(fragment, 0, 2), []);
            assert_eq!(w.data(fragment, 1, 4), [sum_up(fragment, 7)]);
            assert_eq!(w.taken(), 0, "the slot is free");
        }
        let c = w.shard.counters();
        assert_eq!((c.sums_up, c.results, c.results_down), (6, 0, 0));
    }
}

/// What went up and came down is counted by job, copies only as bytes.
#[test]
fn what_goes_up_and_down_is_counted_by_job() {
    let mut w = world(PolicyName::Esa);
    for fragment in 0..2 {
        (0..3).for_each(|rank| drop(w.data(fragment, rank, 1)));
    }
    w.of_parent(result_down(0, Flags::NONE), 9);
    w.dropped(DropReason::Late, |w| {
        w.of_parent(result_down(0, Flags::NONE), 9)
    });
    w.say(result_of(Rank(1), 1), 9);
    let (_, job) = w.shard.job_counters().find(|&(id, _)| id == JOB).unwrap();
    let payload = u64::from(UNITS) * 64;
    let want = JobCounters {
        contributions: 6,
        results: 2,
        payload_bytes: 2 * payload,
        sums_up: 2,
        uplink_bytes: 3 * (64 + payload),
        results_down: 1,
    };
    assert_eq!(job, want);
}

#[test]
fn tr_1_where_a_ps_completes_its_result_goes_up() {
    for policy in ALL_POLICIES {
        let mut w = world(policy);
        w.data(0, 0, 1);
        let flags = OF_SUMS.with(Flags::FROM_PS);
        let result = Header {
            flags,
            ..result_of(Rank::PS, 0)
        };
        // FROM_PS is of results; the others stay.
        assert_eq!(w.say(result, 9), [up(0, 9, OF_SUMS, None)]);
        assert_eq!((w.taken(), w.shard.counters().sums_up), (0, 1));
        w.dropped(DropReason::Late, |w| w.say(result, 9));
    }
}

#[test]
fn tr_1_a_sum_has_the_flags_and_the_highest_priority_of_its_parts() {
    let child = Header {
        flags: Flags::OVERFLOW.with(Flags::COLLISION),
        priority: 77,
        ..data(0, 2)
    };
    let host = Header {
        flags: Flags::MARKED,
        ..data(0, 0)
    };
    let whole = |w: &World, sent: Vec<Sent>| {
        let header = Header {
            priority: 77,
            ..sum_header(0, OF_SUMS)
        };
        let sum = Sent::Up(parent(0), header, ints(7), Some(Time(1000)));
        assert_eq!(sent, [sum]);
        assert_eq!(w.taken(), 0);
    };
    let mut w = world(PolicyName::Esa);
    w.say(child, 4);
    w.say(host, 1);
    let sent = w.data(0, 1, 2);
    whole(&w, sent);
    // In one poll iteration, without a slot.
    let mut w = world(PolicyName::Esa);
    let mut batch = Batch::new();
    for (header, value) in [(child, 4), (host, 1), (data(0, 1), 2)] {
        let from = super::host(host_of(&header));
        let admission = w.shard.admit(&from, &header).expect("a member's");
        let contribution = Contribution::new(admission, &header).expect("DATA");
        batch.push(contribution, w.ledger.frame(ints(value)));
    }
    w.shard.handle_batch(w.now, &mut batch, &mut w.wire);
    assert_eq!(w.shard.counters().grouped, 3);
    let sent = w.wire.take();
    whole(&w, sent);
}

#[test]
fn tr_1_what_a_child_flagged_stays_flagged_on_its_way_to_the_ps() {
    // Held unsummed, and evicted: each frame says it.
    let child = Header {
        element: Element::I16,
        flags: OF_SUMS,
        ..data(0, 2)
    };
    let mut w = world(PolicyName::Esa);
    w.say(child, 4);
    let sent = w.say(ps(Kind::Remind, 0), 0);
    let partial = partial_of(child, 0b100, ints(4));
    assert_eq!(sent, [partial]);
}

#[test]
fn tr_2_a_result_of_the_parent_is_published_as_it_came_and_kept() {
    for policy in ALL_POLICIES {
        for fragment in 0..4 {
            let mut w = world(policy);
            let flags = OF_SUMS.with(Flags::FROM_PS);
            // Nothing here, a part here, or the sum sent up.
            match fragment {
                0 => {}
                1 => drop(w.data(1, 0, 3)),
                2 => drop(w.data(2, 1, 3)),
                _ => w.send_up(3, 3),
            }
            let header = result_down(fragment, flags);
            let result = published(header, ints(9), None);
            assert_eq!(w.of_parent(header, 9), [result], "{policy} {fragment}");
            assert_eq!(w.taken(), 0, "its slot is free");
            let c = w.shard.counters();
            assert_eq!((c.results_down, c.overflows), (1, 1));
            w.dropped(DropReason::Late, |w| w.of_parent(header, 9));
            let again = Sent::Retransmit(Rank(1), PortId(1), ints(9));
            assert_eq!(w.probe(fragment, 1), [again]);
        }
    }
}

#[test]
fn tr_2_only_the_parent_sends_results_of_the_switch() {
    let mut w = world(PolicyName::Esa);
    w.send_up(0, 3);
    let header = result_down(0, Flags::NONE);
    let parent = UPLINK.parent;
    let others = [
        Member {
            port: PortId(41),
            ..parent
        },
        Member {
            mac: host(1).mac,
            ..parent
        },
        Member {
            ip: host(1).ip,
            ..parent
        },
        Member {
            udp_port: 31_250,
            ..parent
        },
        host(0),
        host(2),
        host(9),
    ];
    for from in others {
        w.dropped(DropReason::NotMember, |w| w.handle(from, header, &ints(9)));
        let nack = nack(0, 5);
        w.dropped(DropReason::NotMember, |w| {
            if from == host(9) {
                // A NACK of the PS to a rank that the node does not have is below.
                return w.handle(host(1), nack, &[]);
            }
            w.handle(from, nack, &[])
        });
    }
    w.dropped(DropReason::AuthTag, |w| {
        let forged = Header {
            tag: AuthTag(7),
            ..header
        };
        w.handle_as_is(parent, forged, &ints(9))
    });
    w.dropped(DropReason::AuthTag, |w| {
        let forged = Header {
            tag: AuthTag(7),
            ..nack(0, 5)
        };
        w.handle_as_is(parent, forged, &[])
    });
    let stale = Epoch(EPOCH.0 - 1);
    w.dropped(DropReason::Epoch, |w| {
        let epoch = stale;
        w.of_parent(Header { epoch, ..header }, 9)
    });
    w.dropped(DropReason::Units, |w| {
        let long = Header { units: 2, ..header };
        w.handle(parent, long, &[0; 128])
    });
    // The parent is no worker of the node, and the node has one rank there.
    w.dropped(DropReason::NotMember, |w| {
        w.handle(parent, data(1, 0), &ints(9))
    });
    w.dropped(DropReason::RankOutOfJob, |w| w.of_parent(nack(0, 1), 0));
    w.dropped(DropReason::RankOutOfJob, |w| {
        w.handle(host(9), nack(0, 5), &[])
    });
    w.shard.unbind(JOB, &mut w.wire);
    w.dropped(DropReason::UnknownJob, |w| w.of_parent(header, 9));
    w.bind(roster(JOB, 3, 0));
    w.dropped(DropReason::NotForSwitch, |w| w.of_parent(header, 9));
}

#[test]
fn tr_3_data_of_what_was_sent_up_is_late_and_resend_asks_the_parent() {
    for policy in ALL_POLICIES {
        let mut w = world(policy);
        w.send_up(1, 3);
        w.dropped(DropReason::Late, |w| w.data(1, 0, 3));
        let probe = probe_up(1);
        assert_eq!(w.resend(1, 0, 3), [probe], "{policy}");
        assert_eq!(w.shard.counters().probes_up, 1);
    }
}

#[test]
fn tr_4_a_probe_of_what_was_sent_up_goes_up_with_the_nodes_rank() {
    for policy in ALL_POLICIES {
        let mut w = world(policy);
        w.send_up(1, 3);
        for rank in 0..3 {
            assert_eq!(w.probe(1, rank), [probe_up(1)], "{policy} {rank}");
        }
        assert_eq!(w.shard.counters().probes_up, 3);
        w.of_parent(result_down(1, Flags::NONE), 9);
        let again = Sent::Retransmit(Rank(2), PortId(2), ints(9));
        assert_eq!(w.probe(1, 2), [again]);
        // Where parts are missing, as without a tree.
        assert_eq!(w.probe(2, 1), [nacked(2, 1)]);
    }
}

#[test]
fn tr_4_tr_5_what_is_repeated_about_a_sum_waits_for_its_age_to_double_or_50_ms() {
    const MS: u64 = 1_000_000;
    let mut w = world(PolicyName::Esa);
    w.now = Time(1000 * MS);
    w.send_up(1, 3);
    let mut repeated = [Vec::new(), Vec::new()];
    for ms in 1..=300 {
        w.now = Time((1000 + ms) * MS);
        // All workers of the node, and all of other children, miss the result all the time.
        for rank in 0..3 {
            let probes = w.probe(1, rank).len() + w.resend(1, rank, 3).len();
            repeated[0].extend((0..probes).map(|_| ms));
            repeated[1].extend(w.asked(1).iter().map(|_| ms));
        }
    }
    let expected = [1, 2, 4, 8, 16, 32, 64, 114, 164, 214, 264];
    assert_eq!(repeated, [expected; 2]);
    let c = w.shard.counters();
    assert_eq!((c.probes_up, c.sums_up_again), (11, 11));
}

#[test]
fn tr_5_a_sum_that_the_parent_misses_leaves_again_with_resend() {
    for policy in ALL_POLICIES {
        let mut w = world(policy);
        w.send_up(1, 3);
        for times in 1..4 {
            let again = sum_header(1, Flags::RESEND);
            assert_eq!(w.asked(1), [to_parent(again, ints(3))], "{policy}");
            assert_eq!(w.shard.counters().sums_up_again, times);
        }
        assert_eq!(w.shard.counters().nacks_down, 3);
    }
}

#[test]
fn tr_5_a_sum_that_was_sent_less_than_the_shortest_time_ago_is_in_flight() {
    let mut w = world(PolicyName::Esa);
    w.send_up(0, 3);
    w.now = Time(5_000);
    w.of_parent(result_down(0, Flags::NONE), 9);
    w.send_up(1, 3);
    // The workers of other children have the parent ask, one after the other.
    for now in [5_000, 6_000, 8_999] {
        w.now = Time(now);
        assert_eq!(w.asked(1), [], "{now}");
    }
    w.now = Time(9_000);
    let again = [to_parent(sum_header(1, Flags::RESEND), ints(3))];
    assert_eq!(w.asked(1), again);
    w.now = Time(12_999);
    assert_eq!(w.asked(1), [], "it has just been sent again");
    w.now = Time(13_000);
    assert_eq!(w.asked(1), again);
    let c = w.shard.counters();
    assert_eq!((c.nacks_down, c.sums_up_again), (6, 2));
    // What was sent twice says nothing of the path.
    w.of_parent(result_down(1, Flags::NONE), 9);
    w.send_up(2, 3);
    w.now = Time(16_999);
    assert_eq!(w.asked(2), []);
    w.now = Time(17_000);
    assert_eq!(w.asked(2).len(), 1);
}

#[test]
fn tr_5_a_sum_in_a_queue_is_in_flight_the_first_time() {
    let mut w = world(PolicyName::Esa);
    w.wire.queued = true;
    w.send_up(0, 3);
    w.send_up(1, 3);
    assert_eq!(w.asked(1), []);
    // A driver that keeps references to frames that have left does not stall the job.
    assert_eq!(w.asked(1).len(), 1);
    assert_eq!(w.asked(0), [], "each fragment by itself");
    w.wire.queued = false;
    assert_eq!(w.asked(0).len(), 1);
}

#[test]
fn tr_5_a_result_that_the_parent_misses_goes_up() {
    let mut w = world(PolicyName::Esa);
    w.send_up(1, 3);
    let flags = OF_SUMS.with(Flags::FROM_PS);
    w.of_parent(result_down(1, flags), 9);
    let header = Header {
        flags: OF_SUMS,
        ..result_of(Rank(5), 1)
    };
    assert_eq!(w.asked(1), [to_parent(header, ints(9))]);
    assert_eq!(w.shard.counters().results_up, 1);
    assert_eq!(w.probe(1, 0).len(), 1, "it is still here");
    // Older than the ring.
    for fragment in 2..10 {
        w.send_up(fragment, 3);
        w.of_parent(result_down(fragment, Flags::NONE), 9);
    }
    let mut expected = *w.shard.counters();
    assert_eq!(w.asked(1), []);
    expected.nacks_down += 1;
    expected.drop(DropReason::Late);
    assert_eq!(*w.shard.counters(), expected);
}

#[test]
fn tr_5_missing_ranks_are_asked_in_turn() {
    for policy in POLICIES {
        let mut w = world(policy);
        // Nothing is here: each may have it.
        for rank in [0, 1, 2, 0, 1] {
            assert_eq!(w.asked(0), [nacked(0, rank)], "{policy}");
        }
        // A part is here: those that lack it.
        w.data(1, 1, 3);
        for rank in [2, 0, 2, 0] {
            assert_eq!(w.asked(1), [nacked(1, rank)], "{policy}");
        }
        assert_eq!(w.shard.counters().probe_nacks, 0, "it was no PROBE");
    }
}

#[test]
fn tr_5_what_is_only_at_the_ps_is_asked_there() {
    let mut w = world(PolicyName::None);
    for rank in 0..3 {
        w.data(0, rank, 1);
    }
    let sent = w.asked(0);
    let [Sent::To(To::Ps, member, header, _)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((*member, header.kind), (host(9), Kind::Probe));
    assert!(w.shard.jobs[0].as_ref().unwrap().all & header.rank.bit() != 0);
}

#[test]
fn tr_6_a_result_of_a_worker_is_published_and_goes_up() {
    for policy in ALL_POLICIES {
        for (is_up, rank) in [(false, 0), (true, 1), (false, 2), (true, 2)] {
            let mut w = world(policy);
            w.data(1, 0, 1);
            if is_up {
                w.send_up(2, 3);
            }
            let fragment = if is_up { 2 } else { 1 };
            let flags = OF_SUMS;
            let result = Header {
                flags,
                ..result_of(Rank(rank), fragment)
            };
            let sent = w.say(result, 9);
            let own = Header {
                rank: Rank(5),
                ..result
            };
            let to_group = published(result_down(fragment, flags), ints(9), None);
            assert_eq!(sent, [to_parent(own, ints(9)), to_group], "{policy}");
            let c = w.shard.counters();
            assert_eq!((c.results_from_workers, c.results_up), (1, 1));
            w.dropped(DropReason::Late, |w| w.say(result, 9));
            w.dropped(DropReason::Late, |w| {
                w.of_parent(result_down(fragment, flags), 9)
            });
        }
    }
}

#[test]
fn tr_6_remind_of_what_was_sent_up_is_answered_finished() {
    let mut w = world(PolicyName::Esa);
    w.send_up(1, 3);
    let header = Header {
        flags: Flags::FINISHED,
        rank: Rank::SWITCH,
        ..ps(Kind::NotHere, 1)
    };
    let answer = Sent::To(To::Ps, host(9), header, Vec::new());
    assert_eq!(w.say(ps(Kind::Remind, 1), 0), [answer]);
}

#[test]
fn tr_7_only_child_switches_flag_overflow_and_collision() {
    let mut w = world(PolicyName::Esa);
    for flag in [Flags::OVERFLOW, Flags::COLLISION, OF_SUMS] {
        for resend in [Flags::NONE, Flags::RESEND] {
            let flags = flag.with(resend);
            let of = |rank| Header {
                flags,
                ..data(0, rank)
            };
            w.dropped(DropReason::Reserved, |w| w.say(of(0), 1));
            w.dropped(DropReason::Reserved, |w| w.say(of(1), 1));
            assert!(w.shard.admit(&host(2), &of(2)).is_ok());
        }
    }
    // Nor any worker of a job without a tree.
    w.bind(roster(OTHER, 2, 10));
    let flags = Flags::OVERFLOW;
    w.dropped(DropReason::Reserved, |w| {
        let header = other(0, 0, 1);
        w.say(Header { flags, ..header }, 1)
    });
}

#[test]
fn tr_7_a_childs_frames_are_checked_as_a_workers() {
    let mut w = world(PolicyName::Esa);
    for from in [
        Member {
            port: PortId(3),
            ..host(2)
        },
        Member {
            mac: host(1).mac,
            ..host(2)
        },
        Member {
            ip: host(1).ip,
            ..host(2)
        },
        Member {
            udp_port: 9,
            ..host(2)
        },
        UPLINK.parent,
    ] {
        w.dropped(DropReason::NotMember, |w| {
            w.handle(from, data(0, 2), &ints(1))
        });
    }
    // Counted once, although it sends twice.
    w.data(0, 2, 4);
    w.dropped(DropReason::Duplicate, |w| w.data(0, 2, 4));
    w.dropped(DropReason::Duplicate, |w| w.resend(0, 2, 4));
    w.data(0, 0, 1);
    assert_eq!(w.data(0, 1, 2), [sum_up(0, 7)]);
}

#[test]
fn tr_8_frames_of_the_parent_belong_to_the_shard_of_their_fragment() {
    let mut w = World::with(PoolConfig {
        shards: 4,
        shard: 2,
        ..pool()
    });
    w.bind(node());
    for fragment in 0..8 {
        let expected = Ok(fragment as usize % 4);
        for header in [result_down(fragment, Flags::NONE), nack(fragment, 5)] {
            let shard = w.shard.shard_of_parents(&UPLINK.parent, &header);
            assert_eq!(shard, expected);
            let from_host = w.shard.shard_of_parents(&host(9), &header);
            assert_eq!(from_host, Err(DropReason::NotMember));
            let admitted = w
                .shard
                .admit(&UPLINK.parent, &secret(JOB, EPOCH).seal(header));
            assert_eq!(admitted.is_ok(), expected == Ok(2));
        }
    }
    let unknown = Header {
        job: OTHER,
        ..result_down(2, Flags::NONE)
    };
    let shard = w.shard.shard_of_parents(&UPLINK.parent, &unknown);
    assert_eq!(shard, Err(DropReason::UnknownJob));
}

#[test]
fn a_new_epoch_has_nothing_of_the_last_ones_sums() {
    let mut w = world(PolicyName::Esa);
    w.send_up(0, 3);
    let next = next_epoch(3).with_switches(0b100).with_uplink(UPLINK);
    w.bind(next);
    let of_next = |header: Header| Header {
        epoch: Epoch(4),
        ..header
    };
    // Nothing was sent up in it: a rank is asked.
    let sent = w.of_parent(of_next(nack(0, 5)), 0);
    assert!(
        matches!(sent[..], [Sent::To(To::Worker(_), ..)]),
        "{sent:?}"
    );
    // A stale sum, or result, of a subtree has no effect.
    w.dropped(DropReason::Epoch, |w| w.data(0, 2, 3));
    w.dropped(DropReason::Epoch, |w| {
        w.of_parent(result_down(0, Flags::NONE), 3)
    });
    w.dropped(DropReason::Epoch, |w| w.asked(0));
}

#[test]
fn the_addresses_of_a_parent_may_change_in_an_epoch() {
    let mut w = world(PolicyName::Esa);
    w.send_up(1, 3);
    let moved = Member {
        port: PortId(41),
        ..UPLINK.parent
    };
    let uplink = Uplink {
        parent: moved,
        ..UPLINK
    };
    w.bind(roster(JOB, 3, 0).with_switches(0b100).with_uplink(uplink));
    let header = result_down(1, Flags::NONE);
    w.dropped(DropReason::NotMember, |w| w.of_parent(header, 9));
    assert_eq!(w.handle(moved, header, &ints(9)).len(), 1, "sums are kept");
}
