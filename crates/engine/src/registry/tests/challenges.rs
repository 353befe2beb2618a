//! J-2, and every reason to refuse.

use super::*;

// --- J-2: challenges. ---

#[test]
fn without_the_challenge_nothing_happens() {
    let mut net = Net::running();
    for peer in 0..4 {
        for challenge in [0, 1, u64::MAX, net.peers[peer].join.challenge ^ 1] {
            let mut liar = net.peers[peer].clone();
            liar.join.challenge = challenge;
            for datagram in [
                liar.say_join(),
                liar.say_leave(LeaveCode::Finished, 0),
                liar.say_leave(LeaveCode::Failed, 0),
            ] {
                let heard = net.changes_nothing(liar.member, &datagram);
                assert_eq!(heard.and_then(Heard::reason), Some(Reason::Challenge));
            }
        }
    }
}

/// All JOINs and LEAVEs that were ever said, said again, from their own and from other ports.
fn replay(net: &mut Net, recorded: &[(Member, Datagram)], but: &[Reason]) {
    for (from, datagram) in recorded {
        for from in [*from, host(200)] {
            let heard = net.changes_nothing(from, datagram);
            let reason = heard.and_then(Heard::reason);
            assert!(
                reason.is_some_and(|r| r == Reason::Challenge || but.contains(&r)),
                "{heard:?}"
            );
        }
    }
}

#[test]
fn a_recorded_join_is_worth_nothing_after_the_end_of_the_epoch() {
    let ends: [fn(&mut Net); 3] = [
        |net| (0..3).for_each(|w| _ = net.leave(w, LeaveCode::Finished)),
        |net| _ = net.leave(1, LeaveCode::Failed),
        |net| net.pass_alive(ms(5500), &[0, 1, PS]),
    ];
    for end in ends {
        let mut net = Net::running();
        let recorded: Vec<_> = net.peers.iter().map(|p| (p.member, p.say_join())).collect();
        end(&mut net);
        assert_eq!(net.phase(), JobPhase::Idle);
        replay(&mut net, &recorded, &[]);
    }
}

#[test]
fn a_recorded_join_is_worth_nothing_after_a_restart_of_the_switch() {
    let mut net = Net::running();
    let recorded: Vec<_> = net.peers.iter().map(|p| (p.member, p.say_join())).collect();
    net.restart_switch(2);
    replay(&mut net, &recorded, &[]);
    net.join(0);
    replay(&mut net, &recorded, &[]);
}

#[test]
fn a_recorded_join_is_worth_nothing_after_the_ps_has_changed() {
    let mut net = Net::running();
    let recorded: Vec<_> = net.peers.iter().map(|p| (p.member, p.say_join())).collect();
    net.leave(PS, LeaveCode::Interrupted);
    replay(&mut net, &recorded, &[]);
    net.peers[PS] = net.peers[PS].restarted();
    net.join(PS);
    net.join(PS);
    assert_eq!(net.phase(), JobPhase::Running);
    replay(&mut net, &recorded, &[]);
}

#[test]
fn a_recorded_join_from_another_port_does_not_move_a_member() {
    let mut net = Net::running();
    for peer in 0..4 {
        let thieves = [
            host(200),
            Member {
                port: host(200).port,
                ..net.peers[peer].member
            },
            Member {
                udp_port: 1,
                ..net.peers[peer].member
            },
        ];
        for thief in thieves {
            let recorded = net.peers[peer].say_join();
            let heard = net.changes_nothing(thief, &recorded);
            assert_eq!(heard.and_then(Heard::reason), Some(Reason::RankTaken));
            let recorded = net.peers[peer].say_leave(LeaveCode::Failed, 0);
            let before = (net.status(), net.unbound);
            net.raw(thief, &recorded);
            assert_eq!((net.status(), net.unbound), before);
        }
    }
}

/// The thief waits until the member is gone, and comes before anybody else, from a port of its own.
#[test]
fn a_recorded_join_does_not_take_the_place_of_a_ps_that_has_gone() {
    for silent_ms in [1500, 2000, 4999, 5000, 6000] {
        let mut net = Net::running();
        net.join(PS);
        let recorded = net.peers[PS].say_join();
        net.pass_alive(ms(silent_ms), &[0, 1, 2]);
        let actions = net.raw(host(200), &recorded);
        net.carry_out(actions);
        let thief = net.raw(host(200), &recorded);
        net.carry_out(thief);
        assert!(
            net.bound.iter().all(|roster| roster.servers == [host(99)]),
            "after {silent_ms} ms"
        );
        net.join(PS);
        net.join(PS);
        assert_eq!(net.phase(), JobPhase::Running, "the true one is back");
    }
}

#[test]
fn a_recorded_join_does_not_take_the_place_of_a_worker_that_has_gone() {
    let goes: [fn(&mut Net); 3] = [
        |net| net.pass_alive(ms(1600), &[0]),
        |net| net.pass_alive(ms(5500), &[0]),
        |net| _ = net.leave(1, LeaveCode::Interrupted),
    ];
    for go in goes {
        let mut net = Net::new();
        net.join(0);
        net.join(1);
        let recorded = net.peers[1].say_join();
        go(&mut net);
        for _ in 0..2 {
            let actions = net.raw(host(200), &recorded);
            net.carry_out(actions);
        }
        net.join(2);
        net.join(PS);
        net.join(PS);
        assert_eq!(net.bound, [], "rank 1 is not there");
    }
}

#[test]
fn challenges_differ_between_jobs_turns_and_starts() {
    let mut seen = std::collections::BTreeSet::new();
    for secret in 0..4 {
        let config = RegistryConfig {
            secret: [secret; 32],
            ..config()
        };
        let mut registry = registry(config.clone());
        for job in registry.jobs.values_mut() {
            for round in 0..50 {
                job.round = round;
                assert_ne!(job.challenge(&config), 0);
                assert!(seen.insert(job.challenge(&config)));
            }
        }
    }
}

// --- Refusals. ---

/// What a peer hears that says this, with the right challenge, in the middle of forming.
fn refused(change: impl FnOnce(&mut Peer)) -> (Refuse, Net) {
    let mut net = Net::new();
    net.join(0);
    let mut odd = Peer::worker(1);
    odd.join.challenge = net.peers[0].join.challenge;
    odd.epoch = net.peers[0].epoch;
    change(&mut odd);
    let heard = net.changes_nothing(odd.member, &odd.say_join());
    (refusal(heard.expect("an answer")), net)
}

#[test]
fn each_reason_has_its_numbers() {
    type Change = fn(&mut Peer);
    type Case = (Change, Numbers);
    let cases: [Case; 10] = [
        (|p| p.rank = Rank(3), (Reason::BadRank, None, 3, 3)),
        (|p| p.rank = Rank(63), (Reason::BadRank, None, 63, 3)),
        (|p| p.rank = Rank::PS, (Reason::BadRank, None, 255, 3)),
        (|p| p.join.workers = 4, (Reason::Workers, None, 4, 3)),
        (|p| p.join.units = 17, (Reason::Payload, None, 17, 16)),
        (|p| p.join.units = 9, (Reason::Payload, Some(Rank(0)), 9, 8)),
        (
            |p| p.join.shape[31] = 1,
            (Reason::Shape, Some(Rank(0)), 0, 0),
        ),
        (
            |p| p.rank = Rank(0),
            (Reason::RankTaken, Some(Rank(0)), 0, 0),
        ),
        (
            |p| {
                p.epoch.0 += 1;
                p.join.running = true;
            },
            (Reason::StaleEpoch, None, 0, 0),
        ),
        (|p| p.join.window = 65, (Reason::Window, None, 65, 64)),
    ];
    for (change, expected) in cases {
        let (refuse, net) = refused(change);
        assert_eq!(numbers(refuse), expected);
        assert_eq!(refuse.instance, 0x1001, "echoed");
        assert_eq!(refuse.challenge, net.peers[0].join.challenge);
        assert_eq!(net.status().joined, 1);
    }
}

#[test]
fn a_ps_is_refused_for_its_own_reasons() {
    let (refuse, _) = refused(|p| {
        let challenge = p.join.challenge;
        *p = Peer::ps();
        p.join.challenge = challenge;
        p.rank = Rank(2);
    });
    assert_eq!(numbers(refuse), (Reason::BadRank, None, 2, 3));
    let (refuse, _) = refused(|p| {
        let challenge = p.join.challenge;
        *p = Peer::ps();
        p.join.challenge = challenge;
        p.join.workers = 2;
    });
    assert_eq!(numbers(refuse), (Reason::Workers, None, 2, 3));
    // 0 stands for any number of the switch, and the right number is right.
    let mut net = Net::new();
    net.peers[PS].join.workers = WORKERS;
    assert_eq!(net.join(PS).state(), Some(State::Waiting));
}

#[test]
fn hints_cannot_be_authenticated_and_change_nothing() {
    let mut net = Net::running();
    for peer in 0..4 {
        for datagram in [
            net.peers[peer].say_join(),
            net.peers[peer].say_leave(LeaveCode::Failed, 0),
        ] {
            let from = net.peers[peer].member;
            for flip in [16, 22, 30, 38, 100, 133, 134, 149] {
                let mut forged = datagram;
                forged[flip] ^= 1;
                let Some(heard) = net.changes_nothing(from, &forged) else {
                    continue; // A header that does not parse is dropped before.
                };
                assert_eq!(heard.reason(), Some(Reason::BadMac));
            }
            let mut elsewhere = datagram;
            elsewhere[4..6].copy_from_slice(&[1, 1]);
            let heard = net.changes_nothing(from, &elsewhere);
            assert_eq!(heard.and_then(Heard::reason), Some(Reason::UnknownJob));
            // Another job's key is no better than none.
            let mut other = datagram;
            other[4..6].copy_from_slice(&[0, 8]);
            key().seal(&mut other);
            let heard = net.changes_nothing(from, &other);
            assert_eq!(heard.and_then(Heard::reason), Some(Reason::BadMac));
        }
    }
}

#[test]
fn a_worker_may_agree_on_what_a_dead_one_of_its_rank_did_not() {
    let mut net = Net::new();
    net.join(0);
    net.peers[0] = net.peers[0].restarted();
    net.peers[0].join.units = 4;
    net.peers[0].join.shape = [5; 32];
    net.pass(ms(100));
    assert_eq!(net.join(0).reason(), Some(Reason::RankTaken), "not final");
    net.pass(ms(1500));
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    assert_eq!(acceptance(net.peers[0].last()).units, 4);
}
