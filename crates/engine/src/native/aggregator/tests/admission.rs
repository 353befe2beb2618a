//! Section 3: admission; binding.

use super::*;

// --- Section 3: admission. Each refusal has one reason and no other effect. ---

#[test]
fn frames_of_a_job_are_taken_only_from_its_members() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        let one = host(1);
        let strangers = [
            Member {
                port: PortId(0),
                ..one
            },
            Member {
                mac: host(2).mac,
                ..one
            },
            Member {
                ip: host(2).ip,
                ..one
            },
            Member { udp_port: 1, ..one },
        ];
        for from in strangers {
            w.dropped(DropReason::NotMember, |w| {
                w.handle(from, data(0, 1), &ints(1))
            });
        }
        for header in [data(0, 0), result_of(Rank(0), 0), result_of(Rank::PS, 0)] {
            w.dropped(DropReason::NotMember, |w| w.handle(one, header, &ints(1)));
        }
        for header in [ps(Kind::Remind, 0), nack(0, 1), probe(0, 0)] {
            w.dropped(DropReason::NotMember, |w| w.handle(one, header, &[]));
        }
        w.dropped(DropReason::NotMember, |w| {
            w.handle(host(9), data(0, 1), &ints(1))
        });
    }
}

#[test]
fn every_other_reason_not_to_admit() {
    let mut w = World::new(PolicyName::Esa, 8);
    w.data(0, 0, 1);
    let cases = [
        (
            DropReason::UnknownJob,
            Header {
                job: JobId(9),
                ..data(0, 1)
            },
        ),
        (
            DropReason::RankOutOfJob,
            Header {
                rank: Rank(3),
                bitmap: 8,
                ..data(0, 1)
            },
        ),
        (
            DropReason::Epoch,
            Header {
                epoch: Epoch(2),
                ..data(0, 1)
            },
        ),
        (
            DropReason::Epoch,
            Header {
                epoch: Epoch(0),
                ..ps(Kind::Remind, 0)
            },
        ),
        (
            DropReason::Units,
            Header {
                units: 2,
                ..data(0, 1)
            },
        ),
        (
            DropReason::Units,
            Header {
                units: 2,
                ..result_of(Rank::PS, 0)
            },
        ),
        (
            DropReason::Epoch,
            Header {
                epoch: Epoch(2),
                ..probe(0, 1)
            },
        ),
        (DropReason::RankOutOfJob, probe(0, 3)),
        (DropReason::RankOutOfJob, nack(0, 3)),
        (DropReason::RankOutOfJob, nack(0, 63)),
        (DropReason::NotForSwitch, result_of(Rank::SWITCH, 0)),
        (
            DropReason::NotForSwitch,
            Header {
                kind: Kind::Partial,
                bitmap: 0b111,
                ..result_of(Rank::SWITCH, 0)
            },
        ),
        (
            DropReason::NotForSwitch,
            Header {
                kind: Kind::NotHere,
                rank: Rank::SWITCH,
                ..ps(Kind::Remind, 0)
            },
        ),
    ];
    for (reason, header) in cases {
        w.dropped(reason, |w| {
            let payload = vec![0; header.payload_bytes()];
            w.handle(host(host_of(&header)), header, &payload)
        });
    }
    for kind in [Kind::Join, Kind::Accept, Kind::Refuse, Kind::Leave] {
        let header = Header {
            units: tally_wire::header::CONTROL_UNITS,
            ..ps(kind, 0)
        };
        w.dropped(DropReason::NotForSwitch, |w| {
            w.handle(host(9), header, &[0; 128])
        });
    }
}

#[test]
fn a_shard_takes_only_its_own_fragments() {
    for shard in 0..4 {
        let mut w = World::with(PoolConfig {
            held: 4,
            shards: 4,
            shard,
            ..pool()
        });
        w.bind(roster(JOB, 3, 0));
        for fragment in [0, 1, 2, 3, 4, u32::MAX] {
            if fragment % 4 == u32::from(shard) {
                w.data(fragment, 0, 1);
                assert_eq!(w.shard.counters().dropped(DropReason::Shard), 0);
            }
        }
        for fragment in (0..8).filter(|f| f % 4 != u32::from(shard)) {
            w.dropped(DropReason::Shard, |w| w.data(fragment, 0, 1));
            w.dropped(DropReason::Shard, |w| w.say(ps(Kind::Remind, fragment), 0));
            w.dropped(DropReason::Shard, |w| w.say(nack(fragment, 0), 0));
            w.dropped(DropReason::Shard, |w| w.probe(fragment, 0));
            w.dropped(DropReason::Shard, |w| {
                w.say(result_of(Rank::PS, fragment), 0)
            });
        }
    }
}

/// W-4, also when the window is no multiple of the shards.
#[test]
fn the_ring_spans_two_windows_for_any_number_of_shards() {
    for shards in [1u8, 2, 4, 8, 16] {
        for window in 1..40u16 {
            let mut w = World::with(PoolConfig {
                slots: 64,
                held: 4,
                window,
                shards,
                ..pool()
            });
            w.bind(roster(JOB, 3, 0));
            let step = usize::from(shards);
            let last = u32::from(window) * 2 - 1;
            for fragment in (0..=last).step_by(step) {
                finish(&mut w, fragment, 1);
            }
            let newest = last - last % u32::from(shards);
            for fragment in (0..=newest).step_by(step) {
                assert_eq!(
                    w.resend(fragment, 0, 0),
                    [Sent::Retransmit(Rank(0), PortId(0), ints(1))],
                    "{shards} shards, window {window}, fragment {fragment} of {newest}"
                );
            }
        }
    }
}

// --- Binding. ---

#[test]
fn a_roster_of_the_same_epoch_replaces_addresses_and_nothing_else() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        w.data(1, 0, 1);
        let mut moved = roster(JOB, 3, 0);
        moved.servers = vec![host(99)];
        w.bind(moved);
        assert_eq!(w.taken(), 1, "the slot stays");
        assert_eq!(w.resend(0, 0, 0).len(), 1, "the ring stays");
        w.dropped(DropReason::NotMember, |w| w.say(ps(Kind::Remind, 1), 0));
        let sent = w.handle(host(99), ps(Kind::Remind, 1), &[]);
        let Sent::To(to, _, header, payload) = partial(1, 0b001, 1) else {
            unreachable!()
        };
        assert_eq!(sent, [Sent::To(to, host(99), header, payload)]);
    }
}

#[test]
fn a_new_epoch_starts_with_nothing() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        w.data(1, 0, 1);
        w.say(other(0, 0, 1), 5);
        w.bind(next_epoch(3));
        assert_eq!(w.wire.take(), []);
        assert_eq!(w.taken(), 1, "that of the other job");
        assert_eq!(w.ledger.live(), 1);
        w.dropped(DropReason::Epoch, |w| w.data(0, 0, 1));
        let fresh = Header {
            epoch: Epoch(4),
            ..data(0, 0)
        };
        assert_eq!(w.say(fresh, 1), [], "not late");
        assert_eq!(w.taken(), 2);
    }
}

/// J-4: an epoch of the same number with another salt, as after a restart, is another one.
#[test]
fn the_same_epoch_with_another_secret_starts_with_nothing() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        finish(&mut w, 0, 7);
        w.data(1, 0, 1);
        let salted = Roster {
            secret: secret(JOB, Epoch(4)),
            ..roster(JOB, 3, 0)
        };
        w.bind(salted);
        assert_eq!((w.taken(), w.ledger.live()), (0, 0));
        assert_eq!(w.data(0, 0, 1), [], "not late");
        w.dropped(DropReason::AuthTag, |w| w.probe(0, 1));
    }
}

#[test]
fn unbind_gives_up_everything_of_the_job_and_only_of_it() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        for fragment in 0..4 {
            finish(&mut w, fragment, 7);
        }
        w.data(4, 0, 1);
        w.say(other(4, 0, 1), 5);
        w.shard.unbind(JOB, &mut w.wire);
        assert_eq!(w.taken(), 1, "{policy}");
        assert_eq!(w.ledger.live(), 1);
        w.dropped(DropReason::UnknownJob, |w| w.data(5, 0, 1));
        w.shard.unbind(JOB, &mut w.wire);
        w.say(other(4, 1, 1), 5);
        assert_eq!(w.taken(), usize::from(policy == PolicyName::Fcfs));
    }
}

#[test]
fn more_jobs_than_the_shard_serves_are_refused_and_places_are_reused() {
    let ids = (0..MAX_JOBS as u16).map(|job| JobId(1000 + job));
    let mut w = World::with(PoolConfig {
        slots: 1,
        held: 0,
        window: 1,
        jobs: ids.clone().chain([JOB]).map(PoolJob::unlimited).collect(),
        policy: PolicyName::Static,
        ..pool()
    });
    for job in ids.clone() {
        w.bind(roster(job, 1, 0));
    }
    assert!(!w.shard.bind(roster(JOB, 3, 0), &mut w.wire));
    w.dropped(DropReason::UnknownJob, |w| w.data(0, 0, 1));
    w.shard.unbind(JobId(1100), &mut w.wire);
    w.bind(roster(JOB, 3, 0));
    finish(&mut w, 0, 1);
    for job in ids {
        w.shard.unbind(job, &mut w.wire);
    }
}

#[test]
fn a_job_of_one_worker_needs_no_other_member() {
    for element in [Element::I32, Element::F32, Element::Scale] {
        let mut w = World::new(PolicyName::Esa, 8);
        w.bind(next_epoch(1));
        let header = Header {
            element,
            epoch: Epoch(4),
            ..data(0, 0)
        };
        let done = Header {
            kind: Kind::Result,
            rank: Rank::SWITCH,
            bitmap: 0,
            ..header
        };
        let expected = published_to(1, done, ints(5), Some(Time(1000)));
        assert_eq!(w.say(header, 5), [expected]);
    }
}

#[test]
fn results_leave_once_on_each_port_that_has_a_worker() {
    let mut w = World::new(PolicyName::Esa, 8);
    let mut workers = next_epoch(3).workers;
    for worker in &mut workers {
        worker.port = PortId(worker.port.0 / 2);
    }
    w.bind(of_epoch(Epoch(4), JOB, workers.clone(), host(9)));
    let mut sent = Vec::new();
    for (rank, from) in (0..).zip(workers) {
        let header = Header {
            epoch: Epoch(4),
            ..data(0, rank)
        };
        sent = w.handle(from, header, &ints(1));
    }
    let Some(Sent::Group(ports, ..)) = sent.first() else {
        panic!("no result: {sent:?}");
    };
    assert_eq!(*ports, [PortId(0), PortId(1)]);
}

#[test]
fn a_job_of_sixty_four_workers_fills_the_bitmap() {
    let mut w = World::new(PolicyName::Esa, 8);
    let members: Vec<_> = (100..164).map(host).collect();
    w.bind(of_epoch(Epoch(4), JOB, members.clone(), host(9)));
    for element in [Element::I32, Element::F32] {
        let fragment = element as u32;
        let mut sent = Vec::new();
        for rank in (0..64u8).rev() {
            let header = Header {
                element,
                epoch: Epoch(4),
                ..data(fragment, rank)
            };
            let payload = match element {
                Element::I32 => ints(1),
                _ => floats(1.0),
            };
            // In reverse, f32 must hold 63: more than there is room for.
            sent.extend(w.handle(members[usize::from(rank)], header, &payload));
        }
        if element == Element::I32 {
            let [Sent::Group(_, header, payload, _)] = &sent[..] else {
                panic!("no result: {sent:?}");
            };
            assert_eq!((header.bitmap, payload), (0, &ints(64)));
        } else {
            // 63 less the 16 places; in the end those 16 and the first follow.
            assert_eq!(sent.len(), 47 + 17);
            assert_eq!(w.shard.counters().held_full, 47);
        }
    }
}
