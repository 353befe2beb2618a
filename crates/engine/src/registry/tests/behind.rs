//! J-10: who is behind.

use super::*;
use tally_wire::control::Behind;

impl Net {
    /// A worker says that it has contributed all before that fragment; whom the switch calls
    /// behind.
    fn says(&mut self, worker: usize, sent: u32) -> Option<(u32, u64)> {
        self.peers[worker].join.sent = Some(FragmentId(sent));
        of(self.join(worker))
    }
}

fn of(heard: Heard) -> Option<(u32, u64)> {
    let behind = acceptance(heard).behind;
    behind.map(|Behind { least, ranks, .. }| (least.0, ranks))
}

#[test]
fn who_has_contributed_least_is_told_once_all_have_said() {
    let mut net = Net::running();
    assert_eq!(net.says(0, 10), None);
    assert_eq!(net.says(1, 7), None, "rank 2 may be behind them both");
    assert_eq!(net.says(2, 10), Some((7, 0b010)));
    assert_eq!(net.says(0, 12), Some((7, 0b010)));
    assert_eq!(net.says(1, 10), Some((10, 0b110)));
    assert_eq!(net.says(2, 12), Some((10, 0b010)));
    assert_eq!(of(net.join(PS)), None, "only workers wait");
}

/// J-11.
#[test]
fn who_waits_least_is_the_slowest() {
    let mut net = Net::running();
    let waits = |net: &mut Net, worker: usize, sent: u32, awaiting: u16| {
        net.peers[worker].join.awaiting = awaiting;
        net.peers[worker].join.sent = Some(FragmentId(sent));
        let behind = acceptance(net.join(worker)).behind;
        behind.map(|it| (it.slowest.0, it.awaiting))
    };
    assert_eq!(waits(&mut net, 0, 10, 500), None);
    assert_eq!(waits(&mut net, 1, 10, 480), None);
    // It is not the one that has contributed least.
    assert_eq!(waits(&mut net, 2, 12, 90), Some((2, 90)));
    // What has changed counts, with the same number of fragments too.
    assert_eq!(waits(&mut net, 2, 12, 600), Some((1, 480)));
    assert_eq!(waits(&mut net, 1, 10, 500), Some((0, 500)));
    net.leave(0, LeaveCode::Finished);
    assert_eq!(waits(&mut net, 1, 10, 500), Some((1, 500)));
}

#[test]
fn numbers_wrap() {
    let mut net = Net::running();
    for (worker, sent) in [(0, 3), (1, u32::MAX), (2, 0)] {
        net.says(worker, sent);
    }
    assert_eq!(net.says(0, 3), Some((u32::MAX, 0b010)));
    assert_eq!(net.says(1, 1), Some((0, 0b100)));
    assert_eq!(net.says(2, 3), Some((1, 0b010)));
}

#[test]
fn a_join_that_comes_late_or_twice_takes_nothing_back() {
    let mut net = Net::running();
    for worker in 0..3 {
        net.says(worker, u32::MAX - 1);
    }
    let old = net.peers[1].say_join();
    for worker in 0..3 {
        net.says(worker, 2);
    }
    let from = net.peers[1].member;
    for _ in 0..2 {
        let actions = net.raw(from, &old);
        net.carry_out(actions);
        assert_eq!(of(net.peers[1].last()), Some((2, 0b111)));
    }
    // One without the field neither.
    net.peers[1].join.sent = None;
    assert_eq!(of(net.join(1)), Some((2, 0b111)));
}

#[test]
fn what_cannot_be_trusted_moves_nothing() {
    let mut net = Net::running();
    for worker in 0..3 {
        net.says(worker, 5);
    }
    let before = net.state();
    let mut liar = net.peers[1].clone();
    liar.join.sent = Some(FragmentId(9));
    // Another epoch, another challenge, another process, another key.
    let mut stale = liar.clone();
    stale.epoch = Epoch(liar.epoch.0 ^ 1);
    let mut recorded = liar.clone();
    recorded.join.challenge ^= 1;
    let mut stranger = liar.clone();
    stranger.join.instance += 1;
    let mut salted = liar.clone();
    salted.join.salt ^= 1;
    for peer in [stale, salted, recorded, stranger] {
        net.changes_nothing(peer.member, &peer.say_join());
    }
    let mut forged = liar.say_join();
    forged[DATAGRAM_BYTES - 1] ^= 1;
    net.changes_nothing(liar.member, &forged);
    assert_eq!(net.state(), before);
    // Without an epoch it lives, but what it has sent is in none.
    liar.epoch = Epoch(0);
    net.raw(liar.member, &liar.say_join());
    assert_eq!(net.says(0, 5), Some((5, 0b111)));
}

#[test]
fn who_has_left_is_waited_for_no_more() {
    let mut net = Net::running();
    for (worker, sent) in [(0, 5), (1, 9), (2, 7)] {
        net.says(worker, sent);
    }
    net.leave(0, LeaveCode::Finished);
    assert_eq!(net.says(1, 9), Some((7, 0b100)));
    net.leave(2, LeaveCode::Finished);
    assert_eq!(net.says(1, 9), Some((9, 0b010)));
}

#[test]
fn an_epoch_begins_with_nothing_said_and_a_restart_of_the_switch_forgets() {
    let mut net = Net::running();
    for worker in 0..3 {
        net.says(worker, 1000 + worker as u32);
    }
    net.restart_switch(2);
    assert_eq!(net.says(2, 1002), None);
    net.join(PS);
    assert_eq!(net.says(1, 1001), None);
    assert_eq!(net.says(0, 1000), Some((1000, 0b001)));
    net.join(PS);
    assert_eq!(net.phase(), JobPhase::Running);

    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
        net.peers[worker] = net.peers[worker].restarted();
    }
    for peer in [0, 1, 2, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.says(0, 3), None);
    assert_eq!(net.says(1, 2), None);
    assert_eq!(net.says(2, 4), Some((2, 0b010)));
}

#[test]
fn while_the_ps_is_gone_it_is_told_too() {
    let mut net = Net::running();
    for (worker, sent) in [(0, 5), (1, 9), (2, 7)] {
        net.says(worker, sent);
    }
    net.leave(PS, LeaveCode::Finished);
    assert_eq!(net.phase(), JobPhase::Paused);
    assert_eq!(net.says(1, 9), Some((5, 0b001)));
}

#[test]
fn one_that_gives_up_waiting_says_for_whom_and_all_hear_it() {
    let mut net = Net::running();
    let late = net.peers[1].clone();
    let stalled = Leave {
        instance: net.peers[0].join.instance,
        challenge: net.peers[0].join.challenge,
        code: LeaveCode::Stalled,
        fragment: FragmentId(77),
        // Itself, and one that the job does not have, it cannot mean.
        behind: 0b1101,
        salt: net.peers[0].join.salt,
        tree: None,
    };
    let datagram = net.peers[0].sealed(Kind::Leave, |b| stalled.emit(b));
    let actions = net.raw(net.peers[0].member, &datagram);
    net.carry_out(actions);
    for peer in [1, 2, PS] {
        let heard = refusal(net.peers[peer].last());
        let want = (Reason::MemberFailed, Some(Rank(0)), 4, 77);
        assert_eq!((numbers(heard), heard.behind), (want, 0b100));
    }
    // And who missed it.
    let heard = net.changes_nothing(late.member, &late.say_join());
    assert_eq!(heard.and_then(Heard::reason), Some(Reason::Challenge));
    net.peers[1].heard.clear();
    net.join(1);
    assert_eq!(refusal(net.peers[1].last()).behind, 0b100);
}

/// A process that waits for the job to begin is told that a place is free again.
#[test]
fn one_that_leaves_before_the_start_is_missing() {
    for code in [LeaveCode::Failed, LeaveCode::Interrupted] {
        // Before all are there, and in the confirmation round.
        for all_there in [false, true] {
            let mut net = Net::new();
            for peer in [0, 1] {
                net.join(peer);
            }
            if all_there {
                net.join(2);
                net.join_once(PS);
                net.join_once(PS);
            }
            assert_eq!(net.leave(1, code).state(), Some(State::Ended));
            net.answer_calls();
            let accept = acceptance(net.join(0));
            assert_eq!(
                (net.phase(), accept.state),
                (JobPhase::Waiting, State::Waiting)
            );
            assert_eq!(accept.joined & 0b010, 0, "{code:?}");
        }
    }
}
