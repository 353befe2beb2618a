//! J-4: epochs and salts.

use super::*;
use std::collections::BTreeSet;

/// One end and one new beginning of the job.
fn again(net: &mut Net) {
    net.pass_alive(ms(20), &[]);
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
        net.peers[worker] = net.peers[worker].restarted();
    }
    for peer in [0, 1, 2, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
}

fn incarnation(peer: &Peer) -> (Epoch, u64) {
    (peer.epoch, peer.join.salt)
}

/// What a new switch gives the job's first epochs.
fn first(n: usize) -> Vec<(Epoch, u64)> {
    let mut net = Net::running();
    let mut all = vec![incarnation(&net.peers[0])];
    while all.len() < n {
        again(&mut net);
        all.push(incarnation(&net.peers[0]));
    }
    all
}

#[test]
fn no_epoch_is_one_of_the_job_s_last_and_no_salt_comes_twice() {
    let all = first(300);
    for recent in all.windows(256) {
        let epochs: BTreeSet<_> = recent.iter().map(|(epoch, _)| epoch.0).collect();
        assert_eq!(epochs.len(), recent.len());
        assert!(!epochs.contains(&0));
    }
    let salts: BTreeSet<_> = all.iter().map(|(_, salt)| *salt).collect();
    assert_eq!(salts.len(), all.len());
    assert!(!salts.contains(&0));
}

/// The roster's secret is that of the members' epoch and salt, and of no other.
#[test]
fn what_the_cores_are_bound_with_is_what_the_members_are_told() {
    let mut net = Net::running();
    for _ in 0..3 {
        let roster = net.bound.last().unwrap();
        for peer in &net.peers {
            let (epoch, salt) = incarnation(peer);
            assert_eq!(epoch, roster.epoch);
            assert!(roster.secret == key().epoch_secret(JOB, epoch, salt));
            assert!(roster.secret != key().epoch_secret(JOB, epoch, salt ^ 1));
        }
        again(&mut net);
    }
}

/// All epochs and salts of one job say nothing of another's, nor of the same job's
/// under another secret: none is equal, the next, or a constant away.
#[test]
fn jobs_and_starts_have_epochs_that_say_nothing_of_each_other_s() {
    let config = |secret| RegistryConfig {
        secret: [secret; 32],
        ..config()
    };
    const DRAWS: u64 = 4096;
    let draw = |secret, job: u16| -> Vec<_> {
        let draw = |n| config(secret).derive(b"incarnation", JobId(job), n);
        (1..=DRAWS).map(draw).collect()
    };
    let all = [draw(1, 7), draw(1, 8), draw(2, 7), draw(1, 0x700)];
    let epochs = all.each_ref().map(|digests| -> Vec<_> {
        let epoch = |d: &[u8; 32]| u16::from_be_bytes([d[0], d[1]]);
        digests.iter().map(epoch).collect()
    });
    for (at, mine) in epochs.iter().enumerate() {
        // Also within one job: the next is not a constant away from the last.
        let shifted: Vec<_> = mine[1..].to_vec();
        let others = epochs.iter().enumerate().filter(|&(other, _)| other != at);
        let others = others.map(|(_, other)| other).chain([&shifted]);
        for theirs in others {
            let mut differences = BTreeMap::new();
            for (mine, theirs) in mine.iter().zip(theirs) {
                *differences.entry(mine.wrapping_sub(*theirs)).or_insert(0) += 1;
            }
            // Of 4096 differences among 65536, the commonest comes five times once in a thousand
            // tests or so.
            let most = differences.values().max().unwrap();
            assert!(*most <= 7, "{most} times the same difference");
        }
    }
    let distinct: BTreeSet<_> = all.iter().flatten().collect();
    assert_eq!(distinct.len() as u64, 4 * DRAWS);
}

/// A job's epochs do not depend on what its neighbours do: their number would be told otherwise.
#[test]
fn the_neighbours_openings_move_no_epoch() {
    let expected = first(3);
    let mut net = Net::new();
    let other = Key::new(&[8; 16]).unwrap();
    let say = |net: &mut Net, challenge, join: &Join| {
        let mut datagram = [0; DATAGRAM_BYTES];
        control_header(Kind::Join, JobId(8), Epoch(0), Rank(0)).emit(&mut datagram);
        Join { challenge, ..*join }.emit(&mut datagram);
        other.seal(&mut datagram);
        let [Action::Send(_, answer)] = &net.raw(host(40), &datagram)[..] else {
            panic!("one answer")
        };
        let header = Header::parse(&**answer).unwrap();
        match header.kind {
            Kind::Refuse => Err(Refuse::parse(&**answer).unwrap().challenge),
            _ => Ok(header.epoch),
        }
    };
    for _ in 0..10 {
        let join = Peer::worker(0).join;
        let challenge = say(&mut net, 0, &join).unwrap_err();
        assert_ne!(say(&mut net, challenge, &join).unwrap(), expected[0].0);
        net.pass(ms(5000));
    }
    for peer in [PS, 0, 1, 2, PS] {
        net.join(peer);
    }
    assert_eq!(incarnation(&net.peers[0]), expected[0]);
}

// --- Another salt is another epoch. ---

#[test]
fn the_epoch_with_another_salt_is_stale() {
    let mut net = Net::running();
    for salt in [0, 1, net.peers[1].join.salt ^ 1 << 63] {
        let mut stale = net.peers[1].clone();
        stale.join.salt = salt;
        let heard = net
            .changes_nothing(stale.member, &stale.say_join())
            .unwrap();
        assert_eq!(heard.reason(), Some(Reason::StaleEpoch));
    }
    // Nor has that one ended when the job's has.
    let mut stale = net.peers[1].clone();
    stale.join.salt ^= 1;
    net.leave(0, LeaveCode::Failed);
    stale.join.challenge = net.registry.jobs[&JOB].challenge(&config());
    for datagram in [stale.say_join(), stale.say_leave(LeaveCode::Finished, 0)] {
        let heard = net.changes_nothing(stale.member, &datagram).unwrap();
        assert_eq!(heard.reason(), Some(Reason::StaleEpoch));
    }
    let mut told = net.peers[1].clone();
    told.join.challenge = stale.join.challenge;
    let heard = net.changes_nothing(told.member, &told.say_join()).unwrap();
    assert_eq!(heard.reason(), Some(Reason::MemberFailed));
}

#[test]
fn the_ps_confirms_an_epoch_with_its_salt() {
    let mut net = Net::new();
    for peer in [0, 1, 2, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    net.leave(PS, LeaveCode::Interrupted);
    net.peers[PS].join.salt ^= 1;
    net.join_once(PS);
    assert_eq!(net.phase(), JobPhase::Paused, "it has confirmed another");
    net.join_once(PS);
    assert_eq!(net.phase(), JobPhase::Running);
}

// --- A restart of the switch. ---

#[test]
fn after_a_restart_epoch_and_salt_are_what_the_first_member_brings() {
    for leaves in [false, true] {
        let mut net = Net::running();
        let before = net.bound[0].clone();
        let [first, second] = [0, 1].map(|peer| incarnation(&net.peers[peer]));
        assert_eq!(first, second);
        net.restart_switch(2);
        if leaves {
            net.leave(0, LeaveCode::Finished);
        } else {
            net.join(0);
        }
        let mut salted = net.peers[1].clone();
        salted.join.challenge = net.peers[0].join.challenge;
        salted.join.salt ^= 1;
        let heard = net
            .changes_nothing(salted.member, &salted.say_join())
            .unwrap();
        assert_eq!(heard.reason(), Some(Reason::StaleEpoch));
        for peer in [1, 2, PS] {
            net.join(peer);
            assert_eq!(incarnation(&net.peers[peer]), first);
        }
        assert_eq!(net.phase(), JobPhase::Running);
        assert_eq!(net.bound, [before], "the secret, too");
    }
}

#[test]
fn a_salt_without_an_epoch_says_nothing() {
    let mut net = Net::new();
    net.peers[0].join.salt = 99;
    net.join(0);
    assert_eq!(incarnation(&net.peers[0]), first(1)[0]);
}

/// An epoch number that members of an ended epoch still use must not come back: they, and the new
/// epoch's members as well, would be told that it has ended.
#[test]
fn an_epoch_that_was_brought_along_is_not_given_again() {
    let (next, salt) = first(1)[0];
    let mut net = Net::new();
    // The switch had restarted, and would give this epoch next.
    for worker in 0..3 {
        (net.peers[worker].epoch, net.peers[worker].join.salt) = (next, salt ^ 1);
    }
    for peer in [0, 1, 2, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.bound[0].epoch, next);
    again(&mut net);
    assert_ne!(net.bound[1].epoch, next);
}

/// A PS that kept an epoch over a restart of the switch has state of it (J-5).
#[test]
fn an_epoch_that_the_ps_remembers_is_not_given_again() {
    let (next, salt) = first(1)[0];
    let mut net = Net::new();
    (net.peers[PS].epoch, net.peers[PS].join.salt) = (next, salt);
    for peer in [PS, 0, 1] {
        net.join(peer);
    }
    net.join_once(2);
    for peer in [2, 0, 1, 2] {
        net.join_once(peer);
    }
    assert_eq!(
        net.phase(),
        JobPhase::Waiting,
        "it must confirm the new one first"
    );
    net.join(PS);
    assert_eq!(net.phase(), JobPhase::Running);
    assert_ne!(net.bound[0].epoch, next);
}
