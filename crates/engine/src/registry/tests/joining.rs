//! J-1 to J-5: how a job forms and runs.

use super::*;

// --- J-1 to J-5: joining. ---

#[test]
fn a_job_forms_and_runs() {
    let mut net = Net::new();
    assert_eq!(net.phase(), JobPhase::Idle);
    let first = refusal(net.join_once(0));
    assert_eq!(first.reason, Reason::Challenge);
    assert_ne!(first.challenge, 0);
    let accept = acceptance(net.join_once(0));
    assert_eq!(accept.instance, 0x1000);
    assert_eq!(accept.state, State::Waiting);
    assert_eq!(
        (
            accept.workers,
            accept.units,
            accept.shards,
            accept.base_port
        ),
        (3, 8, 2, 31249)
    );
    assert_eq!((accept.window, accept.joined, accept.left), (64, 1, 0));
    assert!(accept.missing_ps.is_some());
    assert_eq!(accept.group, group_of(JOB));
    assert_eq!(accept.mac, SWITCH);
    assert_ne!((net.peers[0].epoch, accept.salt), (Epoch(0), 0));
    assert_ne!(accept.challenge, first.challenge, "an epoch opened");

    assert_eq!(net.join(2).state(), Some(State::Waiting));
    assert_eq!(net.join(1).state(), Some(State::Waiting));
    assert_eq!(acceptance(net.peers[1].last()).joined, 0b111);
    assert_eq!(net.bound, [], "the PS is missing");
    // With it all are there. They hear the epoch, and are to say so once more, which is all it
    // takes.
    net.join_once(PS);
    let heard: Vec<_> = net.peers.iter().map(|p| p.heard.len()).collect();
    net.join_once(PS);
    for peer in &net.peers {
        let [.., epoch, call] = &peer.heard[..] else {
            panic!()
        };
        assert_eq!(epoch.state(), Some(State::Waiting));
        assert_eq!(call.reason(), Some(Reason::Challenge));
        assert_ne!(refusal(*call).challenge, acceptance(*epoch).challenge);
    }
    for peer in 0..4 {
        assert_eq!(net.phase(), JobPhase::Waiting);
        net.join_once(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.peers[PS].heard.len(), heard[PS] + 3);
    for peer in &net.peers {
        assert_eq!(peer.last().state(), Some(State::Running), "told at once");
        assert!(acceptance(peer.last()).missing_ps.is_none());
        assert_eq!(
            (peer.epoch, peer.join.salt),
            (net.peers[0].epoch, accept.salt)
        );
    }
    let members = (0..3).map(host).collect();
    let epoch = net.peers[0].epoch;
    let secret = key().epoch_secret(JOB, epoch, accept.salt);
    let roster = Roster::new(JOB, epoch, secret, 8, members, host(99));
    assert_eq!(net.bound, [roster]);
}

#[test]
fn a_ps_that_is_there_first_hears_of_the_epoch_when_all_workers_are() {
    let mut net = Net::new();
    assert_eq!(net.join(PS).state(), Some(State::Waiting));
    for worker in 0..3 {
        net.join(worker);
    }
    let [.., Heard::Accept(epoch, accept), _, last] = net.peers[PS].heard[..] else {
        panic!()
    };
    assert_eq!((epoch, accept.state), (net.peers[0].epoch, State::Waiting));
    assert!(accept.missing_ps.is_some(), "this epoch it has not joined");
    assert_eq!(last.state(), Some(State::Running), "said once more");
}

#[test]
fn join_is_idempotent() {
    let mut net = Net::running();
    let (status, roster) = (net.status(), net.bound.clone());
    for peer in [0, 1, 2, PS, PS, 2, 0] {
        assert_eq!(net.join(peer).state(), Some(State::Running));
    }
    assert_eq!(net.status(), status);
    assert_eq!(net.bound, roster);
    let heard = net.peers[1].heard.len();
    net.join_once(0);
    assert_eq!(
        net.peers[1].heard.len(),
        heard,
        "only the asker is answered"
    );
}

#[test]
fn a_join_of_the_ps_that_was_overtaken_does_not_take_its_confirmation_back() {
    let mut net = Net::new();
    for peer in [0, 1, 2, PS] {
        net.join(peer);
    }
    let mut early = net.peers[PS].clone();
    early.epoch = Epoch(0);
    let early = early.say_join();
    net.join(PS);
    assert_eq!(net.phase(), JobPhase::Running);
    let actions = net.raw(host(99), &early);
    net.carry_out(actions);
    assert!(
        acceptance(net.join(0)).missing_ps.is_none(),
        "it has joined this epoch"
    );
}

// --- J-5: the confirmation round. ---

/// Found by the simulator: a job began with the place of a process that had died, and failed.
#[test]
fn a_job_does_not_begin_with_the_place_of_a_process_that_has_died() {
    for silent_ms in [0, 1, 100, 1000] {
        let mut net = Net::new();
        net.join(PS);
        net.join(0);
        // Its next process starts at once.
        net.peers[0] = net.peers[0].restarted();
        net.pass(ms(silent_ms));
        for peer in [1, 2, PS, 1, 2, PS] {
            net.join(peer);
        }
        assert_eq!(
            (net.phase(), net.status().joined),
            (JobPhase::Waiting, 0b111)
        );
        assert_eq!(net.join(0).reason(), Some(Reason::RankTaken), "not final");
        assert_eq!((net.phase(), net.bound.len()), (JobPhase::Waiting, 0));
        net.pass(ms(1500));
        for peer in [0, 1, 2, PS] {
            net.join(peer);
        }
        assert_eq!(net.phase(), JobPhase::Running);
        net.pass_alive(ms(6000), &[0, 1, 2, PS]);
        assert_eq!(
            net.phase(),
            JobPhase::Running,
            "with the process that lives"
        );
    }
}

#[test]
fn who_dies_after_it_has_answered_is_asked_again_when_its_next_process_comes() {
    let mut net = Net::new();
    for peer in [PS, 0, 1] {
        net.join(peer);
    }
    net.join_once(2);
    net.join_once(2);
    net.join_once(0);
    // Others have not answered yet.
    net.peers[0] = net.peers[0].restarted();
    net.join_once(0);
    assert_eq!(net.join_once(0).reason(), Some(Reason::RankTaken));
    for peer in [1, 2, PS, 1, 2, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Waiting);
    net.pass(ms(1500));
    for peer in [0, 1, 2, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
}

/// Two processes are told the same rank, which is somebody's mistake: the first one works.
#[test]
fn who_lives_is_not_kept_from_its_job_by_another_that_asks_for_its_place() {
    let mut net = Net::new();
    let mut second = net.peers[0].restarted();
    second.member = host(50);
    net.peers.push(second);
    for peer in [PS, 0, 1] {
        net.join(peer);
    }
    net.join_once(2);
    net.join_once(2);
    // All answer slowly, and the other one asks in between.
    for peer in [0, 4, 4, 0, 1, 4, 4, 2, 0, 4, 4, 0, 1, 4, 4, 2, PS] {
        net.join_once(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.bound[0].workers[0], host(0));
    assert_eq!(net.peers[4].last().reason(), Some(Reason::RankTaken));
}

/// Or the switch, started anew, could meet it first, and would open another epoch than that which
/// runs.
#[test]
fn who_does_not_know_the_epoch_has_not_answered() {
    let mut net = Net::new();
    for peer in [PS, 0, 1] {
        net.join(peer);
    }
    net.join_once(2);
    // No ACCEPT reaches it.
    let challenge = net.registry.jobs[&JOB].challenge(&config());
    net.peers[2].join.challenge = challenge;
    let (from, deaf) = (net.peers[2].member, net.peers[2].say_join());
    net.raw(from, &deaf);
    let challenge = net.registry.jobs[&JOB].challenge(&config());
    net.peers[2].join.challenge = challenge;
    let deaf = net.peers[2].say_join();
    net.raw(from, &deaf);
    assert_eq!(net.peers[2].epoch, Epoch(0));
    net.peers[2].heard.clear();
    for peer in [0, 1, PS, PS] {
        net.join(peer);
    }
    assert_eq!(
        (net.phase(), net.status().joined),
        (JobPhase::Waiting, 0b111)
    );
    assert_eq!(net.join_once(2).state(), Some(State::Waiting));
    assert_eq!(net.join_once(2).state(), Some(State::Running));
}
