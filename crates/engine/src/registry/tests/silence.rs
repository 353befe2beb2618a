//! Taking over a place; J-6: silence and failure.

use super::*;

// --- Taking over a place. ---

#[test]
fn another_instance_takes_a_workers_place_only_after_silence_and_before_the_job_runs() {
    let mut net = Net::new();
    net.join(0);
    net.join(1);
    net.peers[1] = net.peers[1].restarted();
    net.pass(ms(1499));
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    assert_eq!(net.join(1).reason(), Some(Reason::RankTaken));
    net.pass(ms(1));
    assert_eq!(net.join(1).state(), Some(State::Waiting));
    for peer in [2, PS, 0, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);

    net.peers[1] = net.peers[1].restarted();
    net.pass_alive(ms(4900), &[0, 2, PS]);
    assert_eq!(net.join(1).reason(), Some(Reason::RankTaken));
    assert_eq!(net.phase(), JobPhase::Running);
    net.pass_alive(ms(500), &[0, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Idle, "lost");
    assert_eq!(net.join(1).state(), Some(State::Waiting), "the next epoch");
}

#[test]
fn another_ps_takes_the_place_after_silence_also_in_a_running_job() {
    let mut net = Net::running();
    let epoch = net.bound[0].epoch;
    net.peers[PS] = net.peers[PS].restarted();
    net.peers[PS].member = host(98);
    net.pass_alive(ms(1499), &[]);
    assert_eq!(net.join(PS).reason(), Some(Reason::RankTaken));
    net.pass(ms(1));
    net.join(PS);
    assert_eq!(
        net.phase(),
        JobPhase::Paused,
        "it does not know the epoch yet"
    );
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    net.join(PS);
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.unbound, 0, "what the shards hold stays");
    assert_eq!(net.bound.len(), 2);
    assert_eq!(
        (net.bound[1].epoch, net.bound[1].servers[0]),
        (epoch, host(98))
    );
    assert_eq!(net.bound[1].workers, net.bound[0].workers);
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Running));
    }
}

#[test]
fn no_process_takes_the_place_of_one_that_left_an_epoch_that_ran() {
    let mut net = Net::running();
    let epoch = net.peers[0].epoch;
    net.restart_switch(2);
    net.join(0);
    net.leave(1, LeaveCode::Finished);
    assert_eq!(net.status().left, 0b010);
    net.peers[1] = net.peers[1].restarted();
    net.pass_alive(ms(1600), &[0]);
    assert_eq!(net.join(1).reason(), Some(Reason::RankTaken));
    assert_eq!((net.status().epoch, net.status().joined), (epoch, 0b011));
    assert_eq!(net.status().left, 0b010);
}

// --- J-4: a switch that has restarted. ---

/// All workers of the epoch are known to one another. A new process would begin again at its first
/// fragment, and no other could sum with it.
#[test]
fn a_new_process_does_not_get_into_an_epoch_that_has_run() {
    let mut net = Net::running();
    let epoch = net.peers[0].epoch;
    net.restart_switch(2);
    net.join(0);
    net.peers[1] = net.peers[1].restarted();
    for peer in [1, 2, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.peers[1].last().reason(), Some(Reason::RankTaken));
    assert_eq!(
        (net.phase(), net.status().joined),
        (JobPhase::Waiting, 0b101)
    );
    net.pass_alive(ms(4900), &[0, 2, PS]);
    assert_eq!(
        net.phase(),
        JobPhase::Waiting,
        "the old process may still come"
    );
    net.pass_alive(ms(200), &[0, 2, PS]);
    let refuse = refusal(net.peers[0].last());
    assert_eq!(
        (refuse.reason, refuse.about),
        (Reason::MemberLost, Some(Rank(1)))
    );
    assert_eq!(net.phase(), JobPhase::Idle);
    assert_eq!(net.join(1).state(), Some(State::Waiting), "the next epoch");
    assert_ne!(net.status().epoch, epoch);
}

#[test]
fn a_new_process_has_to_go_when_it_turns_out_that_the_epoch_has_run() {
    let mut net = Net::running();
    let epoch = net.peers[0].epoch;
    net.restart_switch(2);
    // This one was not told in time that the job runs.
    net.peers[0].join.running = false;
    let old = net.peers[1].clone();
    net.peers[1] = net.peers[1].restarted();
    assert_eq!(net.join(0).state(), Some(State::Waiting));
    assert_eq!(net.join(1).state(), Some(State::Waiting));
    assert_eq!(
        net.join(1).state(),
        Some(State::Waiting),
        "not fresh for that"
    );
    assert_eq!((net.status().epoch, net.status().joined), (epoch, 0b011));
    net.join(2);
    assert_eq!(net.status().joined, 0b101, "rank 1 was another one");
    net.peers[1] = old;
    for peer in [1, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.bound.last().unwrap().epoch, epoch);
}

/// Found by the simulator: each worker that had heard of the first epoch failed for good.
#[test]
fn workers_of_an_epoch_that_has_not_run_get_into_another() {
    let mut net = Net::new();
    for peer in [0, 1] {
        net.join(peer);
    }
    let epoch = net.peers[0].epoch;
    net.restart_switch(2);
    // The first to come has never heard of that epoch.
    for peer in [2, 0, 1, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_ne!(net.bound[0].epoch, epoch);
}

/// The epoch that peer 0 brings along may have run: workers that died since may have sent parts to
/// the PS.
#[test]
fn a_late_starter_and_those_that_wait_get_a_new_epoch_after_a_restart() {
    let mut net = Net::new();
    for peer in [0, 1] {
        net.join(peer);
    }
    let epoch = net.peers[0].epoch;
    net.restart_switch(2);
    for peer in [0, 2, 1, PS, PS, 0, 1, 2, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_ne!(net.bound[0].epoch, epoch);
    assert_ne!(net.bound[0].epoch, Epoch(0));
}

/// As in a job that runs: what left may be silent, what has not may not.
#[test]
fn silence_in_an_epoch_that_comes_back_ends_it() {
    let mut net = Net::running();
    net.restart_switch(2);
    net.join(0);
    net.leave(1, LeaveCode::Finished);
    net.join(2);
    net.pass_alive(ms(4000), &[2]);
    assert_eq!(net.phase(), JobPhase::Waiting);
    net.pass_alive(ms(1000), &[2]);
    let refuse = refusal(net.peers[2].last());
    assert_eq!(
        (refuse.reason, refuse.about),
        (Reason::MemberLost, Some(Rank(0)))
    );
}

// --- J-6: silence and failure. ---

#[test]
fn a_silent_worker_ends_the_job_for_all() {
    let mut net = Net::running();
    net.pass_alive(ms(4999), &[0, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Running);
    net.pass(ms(1));
    for peer in [0, 2, PS] {
        let refuse = refusal(net.peers[peer].last());
        assert_eq!(
            (refuse.reason, refuse.about, refuse.allowed),
            (Reason::MemberLost, Some(Rank(1)), 5000)
        );
        assert!(refuse.found >= 5000);
    }
    assert_eq!((net.phase(), net.unbound), (JobPhase::Idle, 1));
    assert!(net.status().ps, "and serves on");
    // The lost one comes back and hears the same.
    let refuse = refusal(net.join(1));
    assert_eq!(
        (refuse.reason, refuse.about),
        (Reason::MemberLost, Some(Rank(1)))
    );
    assert_eq!(
        net.join(0).reason(),
        Some(Reason::MemberLost),
        "asked again"
    );
}

#[test]
fn a_silent_worker_is_forgotten_while_the_job_forms() {
    let mut net = Net::new();
    net.join(0);
    net.pass(ms(1000));
    net.join(1);
    net.pass(ms(4000));
    assert_eq!(net.status().joined, 0b010);
    net.pass(ms(1000));
    assert_eq!((net.phase(), net.status().joined), (JobPhase::Idle, 0));
    assert_eq!((net.unbound, net.registry.poll_timeout()), (0, None));
}

#[test]
fn the_loss_of_the_ps_pauses_the_job_until_it_is_back() {
    let mut net = Net::running();
    net.pass_alive(ms(5500), &[0, 1, 2]);
    assert_eq!((net.phase(), net.unbound), (JobPhase::Paused, 0));
    assert_eq!(net.peers[0].last().state(), Some(State::Waiting));
    assert!(acceptance(net.peers[0].last()).missing_ps.is_some());
    net.pass_alive(ms(20_000), &[0, 1, 2]);
    assert_eq!(net.phase(), JobPhase::Paused);
    // The same process, which was only cut off.
    assert_eq!(net.join(PS).state(), Some(State::Running));
    assert_eq!(net.bound.len(), 2);
    assert_eq!(net.bound[0], net.bound[1]);
}

#[test]
fn a_worker_that_is_lost_while_the_ps_is_away_ends_the_job_too() {
    let mut net = Net::running();
    net.leave(PS, LeaveCode::Finished);
    assert_eq!(net.phase(), JobPhase::Paused);
    net.pass_alive(ms(5500), &[0, 1]);
    assert_eq!((net.phase(), net.unbound), (JobPhase::Idle, 1));
    assert_eq!(net.peers[0].last().reason(), Some(Reason::MemberLost));
}

#[test]
fn a_failing_worker_ends_the_job_and_everybody_hears_how() {
    let codes = [
        LeaveCode::Failed,
        LeaveCode::Overflow,
        LeaveCode::Interrupted,
    ];
    for code in codes {
        let mut net = Net::running();
        let fragment = if code == LeaveCode::Overflow { 77 } else { 0 };
        let heard = net.leave_once(1, code, fragment);
        assert_eq!(heard.state(), Some(State::Ended));
        for peer in [0, 2, PS] {
            let expected = (Reason::MemberFailed, Some(Rank(1)), code as u32, fragment);
            assert_eq!(numbers(refusal(net.peers[peer].last())), expected);
        }
        assert_eq!((net.phase(), net.unbound), (JobPhase::Idle, 1));
        // The news was lost: it is told again to JOIN, LEAVE, and to LEAVE under the old challenge.
        for (peer, refresh) in [(0, true), (2, true), (0, false), (1, false)] {
            let old = net.peers[peer].clone();
            if refresh {
                assert_eq!(net.join(peer).reason(), Some(Reason::MemberFailed));
            }
            let heard = net.leave(peer, LeaveCode::Finished);
            assert_eq!(
                heard.reason(),
                Some(Reason::MemberFailed),
                "{peer} {refresh}"
            );
            net.peers[peer] = old;
        }
        assert_eq!(net.unbound, 1);
    }
}

#[test]
fn leaving_while_the_job_forms_only_frees_the_place() {
    let mut net = Net::new();
    net.join(0);
    net.join(1);
    assert_eq!(
        net.leave(1, LeaveCode::Interrupted).state(),
        Some(State::Ended)
    );
    assert_eq!(
        (net.phase(), net.status().joined),
        (JobPhase::Waiting, 0b001)
    );
    assert_eq!(
        net.leave(1, LeaveCode::Interrupted).state(),
        Some(State::Ended),
        "again"
    );
    assert_eq!(
        (net.phase(), net.status().joined),
        (JobPhase::Waiting, 0b001)
    );
    assert_eq!(net.leave(0, LeaveCode::Failed).state(), Some(State::Ended));
    assert_eq!((net.phase(), net.unbound), (JobPhase::Idle, 0));
    assert_eq!(
        net.peers[1]
            .heard
            .iter()
            .filter(|h| h.reason() == Some(Reason::MemberFailed))
            .count(),
        0
    );
}

// --- A switch that stood still. ---

/// The switch is stopped for that long. It hears nothing, and then the time first.
fn stand_still(net: &mut Net, d: Duration) {
    net.now = net.now.after(d);
    let actions = net.registry.handle_timeout(net.now);
    net.carry_out(actions);
}

#[test]
fn time_in_which_the_switch_stood_still_is_no_silence() {
    let mut net = Net::running();
    net.pass_alive(ms(3000), &[0, 1, 2, PS]);
    for _ in 0..3 {
        stand_still(&mut net, ms(12_000));
        assert_eq!((net.phase(), net.unbound), (JobPhase::Running, 0));
    }
    net.pass_alive(ms(3000), &[0, 1, 2, PS]);
    // Silence counts again from then on, and what was before the pause counts.
    net.pass_alive(ms(1000), &[0, 2, PS]);
    stand_still(&mut net, ms(12_000));
    net.pass_alive(ms(3400), &[0, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Running);
    net.pass_alive(ms(200), &[0, 2, PS]);
    let refuse = refusal(net.peers[0].last());
    let lost = (Reason::MemberLost, Some(Rank(1)));
    assert_eq!((refuse.reason, refuse.about), lost);
    assert_eq!(refuse.found, 5000, "as far as the switch listened");
}

/// The first JOIN after a pause is of one member, and the others' are behind it.
#[test]
fn a_join_after_a_pause_costs_no_other_member_its_place() {
    let mut net = Net::running();
    net.now = net.now.after(ms(20_000));
    net.join(0);
    net.pass(ms(1000));
    assert_eq!(net.phase(), JobPhase::Running);
    let mut net = Net::new();
    for peer in [0, 1, PS] {
        net.join(peer);
    }
    net.now = net.now.after(ms(20_000));
    net.peers[1] = net.peers[1].restarted();
    assert_eq!(net.join(1).reason(), Some(Reason::RankTaken));
    assert_eq!(net.status().joined, 0b11);
    assert!(net.status().ps);
}

#[test]
fn a_pause_is_told_once_and_less_than_a_period_is_none() {
    let mut net = Net::running();
    let start = net.now;
    for (at, missed) in [
        (500, 0),
        (1000, 0),
        (1600, 100),
        (11_600, 9500),
        (11_600, 0),
    ] {
        assert_eq!(net.registry.observe(start.after(ms(at))), ms(missed));
    }
}

/// A switch that is called at least as often as it asks to be loses who is silent when it is due.
#[test]
fn the_registry_asks_for_the_time_often_enough_to_count_it() {
    let mut net = Net::running();
    let start = net.now;
    while net.phase() == JobPhase::Running {
        net.now = net.registry.poll_timeout().unwrap();
        let actions = net.registry.handle_timeout(net.now);
        net.carry_out(actions);
    }
    assert_eq!(net.now.since(start), ms(5000));
}

#[test]
fn members_whose_frames_did_not_reach_the_registry_are_excused() {
    let mut net = Net::running();
    net.pass(ms(4900));
    net.registry.excuse(net.now);
    net.pass(ms(999));
    assert_eq!(net.phase(), JobPhase::Running);
    net.registry.excuse(net.now);
    net.pass_alive(ms(900), &[]);
    net.pass_alive(ms(1000), &[0, 1, 2, PS]);
    let due = net.registry.silence_due().unwrap();
    net.registry.excuse(net.now);
    assert_eq!(
        net.registry.silence_due(),
        Some(due),
        "more than that is left"
    );
    net.pass(ms(5000));
    assert_eq!(net.phase(), JobPhase::Idle);
}
