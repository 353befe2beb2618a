//! Jobs that are added, set, drained and removed while the switch runs, and their keys.

use super::*;
use tally_wire::EpochSecret;

fn new_key() -> Key {
    Key::new(&[0x77; 16]).unwrap()
}

fn job(key: Key, previous_key: Option<Key>, workers: u8) -> JobConfig {
    JobConfig {
        id: JOB,
        key,
        previous_key,
        workers,
        servers: 1,
        tree: None,
    }
}

/// What a member makes of an ACCEPT (A-6, K-3).
fn secret_of(peer: &Peer) -> EpochSecret {
    let accepted = peer.heard.iter().rev().find_map(|heard| match heard {
        Heard::Accept(epoch, accept) => Some((*epoch, *accept)),
        Heard::Refuse(_) => None,
    });
    let (epoch, accept) = accepted.expect("it was accepted");
    let Accept {
        salt, challenge, ..
    } = accept;
    match accept.wrapped {
        None => peer.key.epoch_secret(JOB, epoch, salt),
        Some(wrapped) => peer.key.unwrap(wrapped, JOB, epoch, salt, challenge),
    }
}

impl Net {
    fn set(&mut self, key: Key, previous_key: Option<Key>) {
        self.registry.set(job(key, previous_key, WORKERS)).unwrap();
    }

    /// All workers start anew and join, and the PS with them.
    fn begin(&mut self) {
        for peer in &mut self.peers[..PS] {
            *peer = peer.restarted();
        }
        for peer in [PS, 0, 1, 2, PS] {
            self.join(peer);
        }
    }

    fn remove(&mut self) {
        let actions = self.registry.remove(self.now, JOB);
        self.carry_out(actions);
    }
}

#[test]
fn members_with_either_of_two_keys_have_one_secret() {
    // All mixes of keys, and each worker as the first.
    for with_new in 0_u8..16 {
        for first in 0..usize::from(WORKERS) {
            let mut net = Net::new();
            net.set(new_key(), Some(key()));
            for (peer, at) in net.peers.iter_mut().zip(0..) {
                if with_new >> at & 1 == 1 {
                    peer.key = new_key();
                }
            }
            net.join(first);
            for peer in [PS, 0, 1, 2, PS] {
                net.join(peer);
            }
            assert_eq!(net.phase(), JobPhase::Running, "{with_new:04b}");
            let bound = net.bound.last().unwrap().secret;
            for peer in &net.peers {
                assert_eq!(secret_of(peer), bound, "{with_new:04b}: {:?}", peer.rank);
            }
            let status = net.status();
            assert_eq!(status.previous_key, u64::from(!with_new & 7));
            assert_eq!(status.ps_previous_key, with_new & 8 == 0);
        }
    }
}

#[test]
fn a_running_epoch_keeps_its_secret_when_the_key_is_rotated_and_retired() {
    let mut net = Net::running();
    let bound = net.bound[0].secret;
    net.set(new_key(), Some(key()));
    net.pass_alive(ms(2000), &[0, 1, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Running);
    // Processes that take the new key without a new instance.
    for peer in &mut net.peers {
        peer.key = new_key();
    }
    net.pass_alive(ms(1000), &[0, 1, 2, PS]);
    net.set(new_key(), None);
    net.pass_alive(ms(10_000), &[0, 1, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.bound.len(), 1, "it was not bound again");
    for peer in &net.peers {
        assert_eq!(secret_of(peer), bound);
    }
    // The next one has the new key's.
    for peer in 0..3 {
        net.leave(peer, LeaveCode::Finished);
    }
    net.begin();
    assert_eq!(net.phase(), JobPhase::Running);
    assert!(
        net.peers
            .iter()
            .all(|peer| acceptance(peer.last()).wrapped.is_none())
    );
}

#[test]
fn a_retired_key_is_no_key() {
    let mut net = Net::new();
    net.set(new_key(), Some(key()));
    net.join(0);
    net.set(new_key(), None);
    assert_eq!(net.join_once(0).reason(), Some(Reason::BadMac));
    let datagram = net.peers[0].say_join();
    assert!(net.changes_nothing(host(0), &datagram).is_some());
}

#[test]
fn an_epoch_that_is_adopted_has_one_secret_for_all_mixes() {
    for with_new in 0_u8..16 {
        for first in 0..usize::from(WORKERS) {
            let mut net = Net::new();
            net.set(new_key(), Some(key()));
            for (peer, at) in net.peers.iter_mut().zip(0..) {
                if with_new >> at & 1 == 1 {
                    peer.key = new_key();
                }
            }
            for peer in [PS, 0, 1, 2, PS] {
                net.join(peer);
            }
            let epoch = net.peers[0].epoch;
            net.restart_switch(9);
            net.set(new_key(), Some(key()));
            for peer in [first, PS, 0, 1, 2, PS] {
                net.join(peer);
            }
            assert_eq!(net.phase(), JobPhase::Running, "{with_new:04b}");
            let bound = net.bound.last().unwrap();
            assert_eq!(bound.epoch, epoch, "it resumes");
            for peer in &net.peers {
                assert_eq!(secret_of(peer), bound.secret, "{with_new:04b}");
            }
        }
    }
}

#[test]
fn a_removed_job_ends_and_its_members_are_told() {
    let mut net = Net::running();
    net.remove();
    assert_eq!(net.unbound, 1);
    for peer in &net.peers {
        assert_eq!(
            peer.last().reason(),
            Some(Reason::Removed),
            "{:?}",
            peer.rank
        );
    }
    assert!(net.registry.status().all(|job| job.id != JOB));
    // Those that the news did not reach.
    assert_eq!(net.join(1).reason(), Some(Reason::Removed));
    assert_eq!(
        net.leave_once(2, LeaveCode::Finished, 0).reason(),
        Some(Reason::Removed)
    );
    assert_eq!(net.join(PS).reason(), Some(Reason::Removed));
    // Twice in a row.
    net.remove();
    assert_eq!(net.unbound, 1);
    // A minute later it never was.
    net.pass(ms(61_000));
    assert_eq!(net.join_once(0).reason(), Some(Reason::UnknownJob));
}

#[test]
fn a_job_that_is_added_again_takes_nothing_of_before_for_its_own() {
    for wait in [0, 70_000] {
        let mut net = Net::running();
        let before = net.peers.clone();
        let recorded = net.peers[0].say_join();
        net.remove();
        net.pass(ms(wait));
        net.set(key(), None);
        // A JOIN of before has a challenge of before.
        if wait == 0 {
            let heard = net.changes_nothing(host(0), &recorded).unwrap();
            assert_eq!(heard.reason(), Some(Reason::Challenge));
            // A worker that missed the news.
            let heard = net.join(0);
            assert_eq!(heard.reason(), Some(Reason::Removed), "its epoch ended so");
        }
        net.begin();
        assert_eq!(net.phase(), JobPhase::Running, "after {wait} ms");
        let now = net.bound.last().unwrap();
        assert_ne!(
            (now.epoch, acceptance(net.peers[0].last()).salt),
            (before[0].epoch, before[0].join.salt)
        );
        let challenges: Vec<_> = before.iter().map(|peer| peer.join.challenge).collect();
        assert!(!challenges.contains(&net.peers[0].join.challenge));
    }
}

#[test]
fn the_number_of_workers_changes_only_while_the_job_does_not_run() {
    let mut net = Net::running();
    let two = || job(key(), None, 2);
    let runs = Runs {
        id: JOB,
        part: "number of workers",
    };
    assert_eq!(net.registry.set(two()), Err(runs));
    assert_eq!(net.phase(), JobPhase::Running);
    for peer in 0..3 {
        net.leave(peer, LeaveCode::Finished);
    }
    // While workers wait: they lose their places, and hear why.
    for peer in &mut net.peers[..PS] {
        *peer = peer.restarted();
    }
    net.join(0);
    net.registry.set(two()).unwrap();
    assert_eq!(net.phase(), JobPhase::Idle);
    let heard = refusal(net.join(0));
    assert_eq!(numbers(heard), (Reason::Workers, None, 3, 2));
    for peer in 0..2 {
        net.peers[peer].join.workers = 2;
    }
    for peer in [PS, 0, 1, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
}

#[test]
fn a_drained_job_goes_to_its_end_and_begins_no_more() {
    let mut net = Net::running();
    assert!(net.registry.drain(JOB, true));
    assert!(net.registry.drain(JOB, true), "twice is once");
    assert!(!net.registry.drain(JobId(99), true));
    net.pass_alive(ms(3000), &[0, 1, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Running);
    assert!(!net.status().is_drained());
    for peer in 0..3 {
        net.leave(peer, LeaveCode::Finished);
    }
    assert!(net.status().is_drained());
    net.begin();
    assert_eq!(net.peers[0].last().reason(), Some(Reason::Draining));
    assert!(!Reason::Draining.is_final(), "it may ask again");
    assert!(net.registry.drain(JOB, false));
    net.begin();
    assert_eq!(net.phase(), JobPhase::Running);
}

#[test]
fn workers_that_wait_when_a_job_is_drained_lose_their_places() {
    let mut net = Net::new();
    net.join(0);
    net.join(1);
    net.registry.drain(JOB, true);
    assert!(net.status().is_drained());
    assert_eq!(net.join(0).reason(), Some(Reason::Draining));
    // One that runs is adopted even so, as the switch had restarted.
    let mut net = Net::running();
    net.restart_switch(9);
    net.registry.drain(JOB, true);
    for peer in [PS, 0, 1, 2, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
}

#[test]
fn a_shorter_timeout_counts_at_once() {
    let mut net = Net::running();
    net.registry.set_member_timeout(ms(1000));
    net.pass_alive(ms(1500), &[0, 1, PS]);
    assert_eq!(net.peers[0].last().reason(), Some(Reason::MemberLost));
}
