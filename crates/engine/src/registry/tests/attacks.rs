//! Hosts that have no key, or have recorded what others said, or claim addresses that are no
//! host's.

use super::*;
use std::net::Ipv4Addr;

/// JOIN and LEAVE from there, authentic, are as good as not said: nothing changes, and no answer
/// leaves.
fn says_in_vain(mut net: Net, from: Member) {
    let challenge = net.registry.jobs[&JOB].challenge(&config());
    net.peers[1].join.challenge = challenge;
    let peer = net.peers[1].clone();
    for datagram in [peer.say_join(), peer.say_leave(LeaveCode::Failed, 0)] {
        let heard = net.changes_nothing(from, &datagram);
        assert_eq!(heard, None, "{from:?}");
    }
}

#[test]
fn no_group_and_no_switch_becomes_a_member() {
    let good = host(1);
    let mac = |mac| Member { mac, ..good };
    let ip = |ip: [u8; 4]| Member {
        ip: Ipv4Addr::from(ip),
        ..good
    };
    let bad = [
        mac(Mac([0xff; 6])),
        mac(Mac([1, 0, 0x5e, 1, 2, 3])),
        mac(Mac([0x33, 0x33, 0, 0, 0, 1])),
        mac(Mac([0; 6])),
        mac(SWITCH),
        ip([0, 0, 0, 0]),
        ip([255, 255, 255, 255]),
        ip([239, 1, 2, 3]),
        ip([127, 0, 0, 1]),
        Member {
            udp_port: 0,
            ..good
        },
    ];
    assert!(good.is_one_host());
    for from in bad {
        says_in_vain(Net::new(), from);
        says_in_vain(Net::running(), from);
        // Nor is it told that its key is wrong.
        let mut net = Net::new();
        assert_eq!(net.changes_nothing(from, &[0x21; DATAGRAM_BYTES]), None);
        let mut forged = net.peers[1].say_join();
        forged[DATAGRAM_BYTES - 1] ^= 1;
        assert_eq!(net.changes_nothing(from, &forged), None);
    }
}

/// A JOIN without the key from each of many addresses of one port.
fn flood(net: &mut Net, port: u16, frames: u16, datagram: &[u8]) -> usize {
    let at = |n: u16| Member {
        port: PortId(port),
        ..host(1000 + n)
    };
    let answers = (0..frames).map(|n| net.raw(at(n), datagram).len());
    answers.sum()
}

#[test]
fn a_flood_has_few_answers_leaves_no_state_and_keeps_no_other_port_from_its_own() {
    let mut net = Net::new();
    let recorded = net.peers[0].say_join();
    let mut forged = recorded;
    forged[DATAGRAM_BYTES - 1] ^= 1;
    let mut unknown = recorded;
    unknown[4..6].copy_from_slice(&99_u16.to_be_bytes());
    for datagram in [recorded, forged, unknown] {
        let mut net = Net::new();
        let before = net.state();
        assert_eq!(flood(&mut net, 50, 10_000, &datagram), 130);
        net.now = net.now.after(ms(100));
        assert_eq!(flood(&mut net, 50, 10_000, &datagram), 50, "one each 2 ms");
        assert_eq!(net.state(), before);
        assert_eq!(net.registry.refusals.len(), 1);
        // Members at other ports.
        for peer in [PS, 0, 1, 2, PS] {
            net.join(peer);
            flood(&mut net, 50, 100, &datagram);
        }
        assert_eq!(net.phase(), JobPhase::Running);
    }
    // Who is a member hears ACCEPT also at the port of the flood.
    for peer in [PS, 0, 1, 2, PS] {
        net.join(peer);
    }
    let port = net.peers[0].member.port.0;
    flood(&mut net, port, 10_000, &forged);
    net.peers[0].heard.clear();
    assert_eq!(net.join(0).state(), Some(State::Running));
}

/// All ranks of the largest job and its PS may be behind one port, and each be told the challenge
/// twice.
#[test]
fn the_members_of_a_job_behind_one_port_are_all_told_the_challenge() {
    let mut net = Net::new();
    let datagram = net.peers[0].say_join();
    assert_eq!(flood(&mut net, 50, 65, &datagram), 65);
    assert_eq!(flood(&mut net, 50, 65, &datagram), 65);
}

/// All that was ever said in an epoch, said again in the next, from its own address and from
/// another.
#[test]
fn what_was_recorded_in_an_epoch_moves_nothing_in_the_next() {
    let mut net = Net::running();
    let mut recorded = Vec::new();
    for peer in &net.peers {
        recorded.push((peer.member, peer.say_join()));
        for code in [LeaveCode::Finished, LeaveCode::Failed, LeaveCode::Stalled] {
            recorded.push((peer.member, peer.say_leave(code, 0)));
        }
    }
    for worker in 0..3 {
        net.leave(worker, LeaveCode::Finished);
        net.peers[worker] = net.peers[worker].restarted();
    }
    for forming in [1, 3] {
        for peer in [0, 1, 2, PS, PS].into_iter().take(forming) {
            net.join(peer);
        }
        for (from, datagram) in &recorded {
            for from in [*from, host(77)] {
                net.changes_nothing(from, datagram);
            }
        }
    }
    for peer in [1, 2, PS, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    for (from, datagram) in &recorded {
        for from in [*from, host(77)] {
            net.changes_nothing(from, datagram);
        }
    }
    assert_eq!(net.phase(), JobPhase::Running);
}
