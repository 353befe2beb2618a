//! J-7: leaving; J-4: restarts of the switch; fixed members.

use super::*;

// --- J-7: leaving. ---

#[test]
fn a_job_ends_when_all_workers_have_left() {
    let mut net = Net::running();
    assert_eq!(
        net.leave(0, LeaveCode::Finished).state(),
        Some(State::Running)
    );
    assert_eq!(acceptance(net.peers[0].last()).left, 0b001);
    assert_eq!(
        net.leave(0, LeaveCode::Finished).state(),
        Some(State::Running),
        "again"
    );
    assert_eq!(
        net.leave(2, LeaveCode::Finished).state(),
        Some(State::Running)
    );
    assert_eq!(net.unbound, 0);
    assert_eq!(
        net.leave(1, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Ended), "told at once");
    }
    assert_eq!((net.phase(), net.unbound), (JobPhase::Idle, 1));
    assert!(net.status().ps, "the PS stays");
}

#[test]
fn the_end_is_told_again_to_who_missed_it() {
    let mut net = Net::running();
    let old = net.peers.clone();
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
    }
    for (worker, old) in (0..3).zip(old) {
        // LEAVE with the old epoch's challenge, LEAVE with the new one, JOIN.
        let heard = net.changes_nothing(old.member, &old.say_leave(LeaveCode::Finished, 0));
        assert_eq!(heard.and_then(Heard::state), Some(State::Ended));
        assert_eq!(
            net.leave(worker, LeaveCode::Finished).state(),
            Some(State::Ended)
        );
        net.peers[worker] = old;
        assert_eq!(net.join(worker).state(), Some(State::Ended));
        assert_eq!(
            net.leave(worker, LeaveCode::Finished).state(),
            Some(State::Ended)
        );
    }
    assert_eq!((net.phase(), net.unbound), (JobPhase::Idle, 1));
}

/// A worker takes only what is of its own epoch.
#[test]
fn the_end_is_told_with_the_number_of_what_ended() {
    let mut net = Net::running();
    let old = net.peers[0].clone();
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
        net.peers[worker] = net.peers[worker].restarted();
    }
    net.join(1);
    assert_ne!(net.peers[1].epoch, old.epoch);
    let heard = net.changes_nothing(old.member, &old.say_leave(LeaveCode::Finished, 0));
    let Some(Heard::Accept(epoch, accept)) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!((epoch, accept.state), (old.epoch, State::Ended));
}

#[test]
fn the_silence_of_one_that_left_is_no_loss() {
    let mut net = Net::running();
    net.leave(1, LeaveCode::Finished);
    net.pass_alive(ms(30_000), &[0, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Running);
    net.leave(0, LeaveCode::Finished);
    net.leave(2, LeaveCode::Finished);
    assert_eq!(net.phase(), JobPhase::Idle);
}

#[test]
fn the_ps_may_leave_and_another_come() {
    let mut net = Net::running();
    assert_eq!(
        net.leave(PS, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    assert_eq!(net.phase(), JobPhase::Paused);
    net.peers[PS] = net.peers[PS].restarted();
    net.join(PS);
    net.join(PS);
    assert_eq!(net.phase(), JobPhase::Running);
}

#[test]
fn the_ps_may_leave_an_ended_job() {
    let mut net = Net::running();
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
    }
    assert_eq!(
        net.leave(PS, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    assert!(!net.status().ps);
}

#[test]
fn a_leave_of_no_member_is_refused_and_does_nothing() {
    let mut net = Net::running();
    let challenge = net.peers[0].join.challenge;
    let mut stranger = Peer::worker(1).restarted();
    stranger.join.challenge = challenge;
    stranger.epoch = net.peers[0].epoch;
    for code in [LeaveCode::Finished, LeaveCode::Failed] {
        let heard = net.changes_nothing(stranger.member, &stranger.say_leave(code, 0));
        assert_eq!(heard.and_then(Heard::reason), Some(Reason::StaleEpoch));
    }
    stranger.rank = Rank(3);
    let heard = net.changes_nothing(stranger.member, &stranger.say_leave(LeaveCode::Failed, 0));
    assert_eq!(
        numbers(refusal(heard.unwrap())),
        (Reason::BadRank, None, 3, 3)
    );
    let mut stale = net.peers[1].clone();
    stale.join.challenge = challenge;
    stale.epoch = Epoch(stale.epoch.0 ^ 1);
    let heard = net.changes_nothing(stale.member, &stale.say_leave(LeaveCode::Failed, 0));
    assert_eq!(heard.and_then(Heard::reason), Some(Reason::StaleEpoch));
    let mut salted = net.peers[1].clone();
    salted.join.challenge = challenge;
    salted.join.salt ^= 1;
    for code in [LeaveCode::Failed, LeaveCode::Finished] {
        let heard = net.changes_nothing(salted.member, &salted.say_leave(code, 0));
        assert_eq!(heard.and_then(Heard::reason), Some(Reason::StaleEpoch));
    }
    // Nor does another PS's.
    let mut other_ps = Peer::ps().restarted();
    other_ps.join.challenge = challenge;
    net.changes_nothing(other_ps.member, &other_ps.say_leave(LeaveCode::Finished, 0));
}

// --- J-4: restart of the switch. ---

#[test]
fn after_a_restart_the_members_epoch_is_taken_over() {
    let mut net = Net::running();
    let roster = net.bound[0].clone();
    net.restart_switch(2);
    for peer in [2, PS, 1, 0] {
        assert!(net.join(peer).state().is_some());
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.bound, [roster], "the same epoch, the same addresses");
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Running));
    }
}

#[test]
fn after_a_restart_one_that_lingers_takes_its_place_too() {
    for order in [[0, 1, 2, PS], [PS, 2, 1, 0], [1, 0, PS, 2], [1, 2, 0, PS]] {
        let mut net = Net::running();
        net.leave(1, LeaveCode::Finished);
        let roster = net.bound[0].clone();
        net.restart_switch(2);
        for peer in order {
            let heard = if peer == 1 {
                net.leave(1, LeaveCode::Finished)
            } else {
                net.join(peer)
            };
            assert!(heard.state().is_some(), "{order:?}: {heard:?}");
        }
        assert_eq!((net.phase(), net.status().left), (JobPhase::Running, 0b010));
        assert_eq!(net.bound, [roster]);
        net.leave(0, LeaveCode::Finished);
        assert_eq!(
            net.leave(2, LeaveCode::Finished).state(),
            Some(State::Ended)
        );
    }
}

#[test]
fn after_a_restart_all_may_be_lingering() {
    let mut net = Net::running();
    net.restart_switch(2);
    for worker in [2, 0] {
        let heard = net.leave(worker, LeaveCode::Finished);
        assert_eq!(heard.state(), Some(State::Waiting));
    }
    assert_eq!(
        net.leave(1, LeaveCode::Finished).state(),
        Some(State::Ended)
    );
    assert_eq!(net.phase(), JobPhase::Idle);
}

#[test]
fn one_that_lingers_alone_does_not_keep_the_job_open() {
    let mut net = Net::running();
    net.restart_switch(2);
    net.leave(1, LeaveCode::Finished);
    assert_eq!(net.phase(), JobPhase::Waiting);
    net.pass(ms(5000));
    assert_eq!(
        (net.phase(), net.registry.poll_timeout()),
        (JobPhase::Idle, None)
    );
}

#[test]
fn a_failing_worker_after_a_restart_leaves_an_idle_job_alone() {
    let mut net = Net::running();
    net.restart_switch(2);
    let heard = net.leave(1, LeaveCode::Failed);
    assert_eq!(heard.reason(), Some(Reason::StaleEpoch));
    assert_eq!(net.phase(), JobPhase::Idle);
}

/// One that slept through the end of its epoch, and of the next: its contributions belong to
/// another run of the job. Only a switch that has given no epoch yet takes one from a member.
#[test]
fn an_epoch_from_before_the_last_is_stale_also_while_the_job_is_idle() {
    let mut net = Net::running();
    let sleeper = net.peers[1].clone();
    for _ in 0..2 {
        net.leave(0, LeaveCode::Failed);
        for peer in 0..3 {
            net.peers[peer] = net.peers[peer].restarted();
        }
        for peer in [0, 1, 2, PS, PS] {
            net.join(peer);
        }
    }
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
    }
    assert_eq!(net.phase(), JobPhase::Idle);
    for _ in 0..2 {
        net.peers[1] = sleeper.clone();
        assert_eq!(net.join(1).reason(), Some(Reason::StaleEpoch));
        assert_eq!(
            net.leave(1, LeaveCode::Finished).reason(),
            Some(Reason::StaleEpoch)
        );
        assert_eq!(net.status().joined, 0);
        // Nor after one that did not come to pass.
        net.peers[0] = net.peers[0].restarted();
        net.join(0);
        net.leave(0, LeaveCode::Interrupted);
        assert_eq!(net.phase(), JobPhase::Idle);
    }
}

#[test]
fn a_restart_while_the_job_forms_keeps_the_epoch_that_all_have() {
    let mut net = Net::new();
    for peer in [0, 1, 2] {
        net.join(peer);
    }
    let epoch = net.peers[0].epoch;
    net.restart_switch(2);
    for peer in [0, 1, 2, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.bound[0].epoch, epoch);
}

// --- Jobs with fixed members. ---

#[test]
fn a_job_with_fixed_members_runs_without_end() {
    let mut net = Net::new();
    let members: Vec<_> = (0..3).map(host).collect();
    let action = net.registry.fix_members(JOB, 8, members.clone(), host(99));
    let secret = key().epoch_secret(JOB, Epoch(1), 0);
    let roster = Roster::new(JOB, Epoch(1), secret, 8, members, host(99));
    assert_eq!(action, Action::Bind(Box::new(roster)));
    assert_eq!(
        (net.phase(), net.status().joined),
        (JobPhase::Running, 0b111)
    );
    for peer in 0..4 {
        assert_eq!(net.join(peer).reason(), Some(Reason::RankTaken));
        for epoch in [0, 1] {
            net.peers[peer].epoch = Epoch(epoch);
            for code in [LeaveCode::Finished, LeaveCode::Failed] {
                assert_eq!(net.leave(peer, code).reason(), Some(Reason::RankTaken));
            }
        }
    }
    net.pass(ms(60_000));
    assert_eq!((net.phase(), net.unbound), (JobPhase::Running, 0));
    assert_eq!(net.registry.poll_timeout(), None);
}
