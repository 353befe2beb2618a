//! P-6: several parameter servers of a job.

use super::*;

/// Its second server.
const SECOND: usize = PS + 1;

/// A net whose job has `parts` servers; peers from 3 on are the first ones of them.
fn net_of(parts: u8) -> Net {
    let mut net = Net::new();
    let mut config = net.registry.jobs[&JOB].config.clone();
    config.servers = parts;
    net.registry.set(config).unwrap();
    net.peers.truncate(PS);
    for index in 0..parts {
        let mut peer = Peer::ps();
        peer.member = host(99 - u16::from(index));
        peer.join.instance += u64::from(index);
        peer.join.part = Part::new(index, parts).unwrap();
        net.peers.push(peer);
    }
    net
}

fn running() -> Net {
    let mut net = net_of(2);
    for peer in [0, 1, 2, PS, SECOND] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    net
}

#[test]
fn a_job_runs_once_the_server_of_each_part_has_joined_and_confirmed() {
    for order in [
        [PS, 0, 1, 2, SECOND],
        [SECOND, PS, 0, 1, 2],
        [0, SECOND, 1, 2, PS],
    ] {
        let mut net = net_of(2);
        for (n, &peer) in order.iter().enumerate() {
            assert_ne!(net.phase(), JobPhase::Running, "{order:?}, {n}");
            assert!(!net.status().ps || net.status().servers_joined == 0b11);
            net.join(peer);
        }
        assert_eq!(net.phase(), JobPhase::Running, "{order:?}");
        assert_eq!(net.bound.len(), 1);
        assert_eq!(net.bound[0].servers, [host(99), host(98)], "by part");
        for peer in &net.peers {
            let accept = acceptance(peer.last());
            assert!(accept.missing_ps.is_none() && accept.state == State::Running);
        }
    }
    let mut net = net_of(16);
    for peer in 0..net.peers.len() {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.bound[0].servers.len(), 16);
}

#[test]
fn a_member_hears_of_a_ps_when_all_are_there() {
    let mut net = net_of(2);
    net.join(SECOND);
    assert_eq!(acceptance(net.join(0)).missing_ps, Part::new(0, 2));
    assert_eq!(net.status().servers_joined, 0b10);
    // What one who only asks is told: as if there were none.
    net.peers[1].join.challenge = 1;
    let Heard::Refuse(refuse) = net.join_once(1) else {
        panic!("accepted")
    };
    assert_eq!((refuse.reason, refuse.found), (Reason::Challenge, 0));
}

#[test]
fn another_number_of_parts_is_refused_with_both() {
    for (has, says) in [(1, 2), (2, 1), (2, 4), (16, 8)] {
        let mut net = net_of(has);
        net.peers[PS].join.part = Part::new(0, says).unwrap();
        let Heard::Refuse(refuse) = net.join(PS) else {
            panic!("accepted")
        };
        let numbers = (refuse.found, refuse.allowed);
        assert_eq!(refuse.reason, Reason::Parts);
        assert_eq!(numbers, (says.into(), has.into()));
        assert_eq!(net.status().servers_joined, 0);
    }
}

#[test]
fn a_part_has_one_server_at_a_time_and_the_others_stay() {
    let mut net = running();
    let epoch = net.bound[0].epoch;
    // Another process says that it is the second.
    let mut rival = net.peers[SECOND].restarted();
    rival.member = host(97);
    net.peers.push(rival);
    assert_eq!(net.join(SECOND + 1).reason(), Some(Reason::RankTaken));
    // The second dies. The first is heard, and keeps its place.
    net.pass_alive(ms(1500), &[0, 1, 2, PS]);
    net.join(SECOND + 1);
    assert_eq!(net.phase(), JobPhase::Paused, "it has to confirm the epoch");
    net.join(0);
    net.join(SECOND + 1);
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!((net.bound.len(), net.unbound), (2, 0));
    assert_eq!(net.bound[1].epoch, epoch);
    assert_eq!(net.bound[1].servers, [host(99), host(97)]);
}

#[test]
fn silence_of_one_server_pauses_the_job_and_names_the_part() {
    let mut net = running();
    net.registry.take_events();
    net.pass_alive(ms(6000), &[0, 1, 2, PS]);
    assert_eq!(net.phase(), JobPhase::Paused);
    assert_eq!(net.status().servers_joined, 0b01);
    let second = Part::new(1, 2).unwrap();
    let events = net.registry.take_events();
    let lost = |it: &Event| matches!(it, Event::Lost { part, .. } if *part == second);
    let paused = |it: &Event| matches!(it, Event::Paused { part, .. } if *part == second);
    assert!(
        events.len() == 2 && lost(&events[0]) && paused(&events[1]),
        "{events:?}"
    );
    // It comes back, and the job with it.
    net.peers[SECOND] = net.peers[SECOND].restarted();
    for peer in [SECOND, 0, SECOND] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    let parts: Vec<_> = net
        .registry
        .members(JOB, net.now)
        .iter()
        .map(|it| it.part)
        .collect();
    assert_eq!(parts[PS..], [Part::new(0, 2).unwrap(), second]);
}

#[test]
fn both_servers_may_restart_and_so_may_the_switch() {
    let mut net = running();
    let epoch = net.bound[0].epoch;
    net.pass_alive(ms(6000), &[0, 1, 2]);
    assert_eq!(net.status().servers_joined, 0);
    for peer in [SECOND, PS] {
        net.peers[peer] = net.peers[peer].restarted();
        net.join(peer);
    }
    for peer in [0, SECOND] {
        net.join(peer);
        assert_eq!(net.phase(), JobPhase::Paused, "the first has not confirmed");
    }
    net.join(PS);
    assert_eq!(
        (net.phase(), net.bound[1].epoch),
        (JobPhase::Running, epoch)
    );
    // The switch forgets all, and knows from its configuration that there are two.
    let config = net.registry.jobs[&JOB].config.clone();
    net.restart_switch(9);
    net.registry.set(config).unwrap();
    for peer in [0, PS, 1, 2] {
        net.join(peer);
        assert_ne!(net.phase(), JobPhase::Running);
    }
    net.join(SECOND);
    net.join(0);
    net.join(SECOND);
    assert_eq!(
        (net.phase(), net.bound[0].epoch),
        (JobPhase::Running, epoch)
    );
}

#[test]
fn a_server_that_leaves_gives_up_its_part_only() {
    let mut net = running();
    net.leave(SECOND, LeaveCode::Finished);
    assert_eq!(
        (net.phase(), net.status().servers_joined),
        (JobPhase::Paused, 0b01)
    );
    // LEAVE of a process that has no part changes nothing.
    let mut other = net.peers[SECOND].restarted();
    other.member = host(97);
    net.peers.push(other);
    net.leave(SECOND + 1, LeaveCode::Finished);
    assert_eq!(net.status().servers_joined, 0b01);
}

#[test]
fn the_number_of_servers_changes_only_while_the_job_does_not_run() {
    let mut net = running();
    let mut config = net.registry.jobs[&JOB].config.clone();
    config.servers = 1;
    assert!(net.registry.set(config.clone()).is_err());
    for rank in 0..3 {
        net.leave(rank, LeaveCode::Finished);
    }
    assert_eq!(net.phase(), JobPhase::Idle);
    net.registry.set(config).unwrap();
    assert_eq!((net.status().servers, net.status().servers_joined), (1, 0));
    // Those of before are told.
    assert_eq!(net.join(PS).reason(), Some(Reason::Parts));
    net.peers[PS].join.part = Part::ONLY;
    assert_eq!(net.join(PS).state(), Some(State::Waiting));
}

/// The number of a removed job with several servers becomes a tenant's, whose jobs have one.
#[test]
fn a_tenant_job_has_one_server_also_under_the_number_of_one_with_two() {
    let mut net = net_of(2);
    net.registry.remove(net.now, JOB);
    let tenant = TenantConfig {
        name: "lab".into(),
        key: key(),
        previous_key: None,
        jobs: vec![JOB.0..=JOB.0],
        max_jobs: 1,
        max_workers: 8,
    };
    net.registry.set_tenant(net.now, tenant);
    net.join(0);
    assert_eq!(net.join(PS).reason(), Some(Reason::Parts));
    net.peers[PS].join.part = Part::ONLY;
    for peer in [PS, 1, 2, 0, PS] {
        net.join(peer);
    }
    assert_eq!(net.phase(), JobPhase::Running);
    assert_eq!(net.bound[0].servers, [host(99)]);
}
