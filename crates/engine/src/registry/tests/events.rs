//! What the registry says of members and jobs, for the log.

use super::super::event::EVENTS_MAX;
use super::*;

/// The kinds of events since the last call, with their rank.
fn kinds(net: &mut Net) -> Vec<String> {
    let name = |rank: Rank| match rank {
        Rank::PS => "ps".to_owned(),
        Rank(rank) => rank.to_string(),
    };
    let events = net.registry.take_events().into_iter();
    let kind = |event| match event {
        Event::Joined { rank, member, .. } => {
            assert!(member == host(99) || member == host(u16::from(rank.0)));
            format!("joined {}", name(rank))
        }
        Event::Left { rank, .. } => format!("left {}", name(rank)),
        Event::Lost { rank, silent, .. } => {
            assert!(silent >= ms(5000));
            format!("lost {}", name(rank))
        }
        Event::Running { workers, .. } => format!("running {workers}"),
        Event::Paused { .. } => "paused".into(),
        Event::Ended { failure, .. } => format!("ended {:?}", failure.map(|(reason, _)| reason)),
        Event::Refused { rank, reason, .. } => format!("refused {} {reason:?}", name(rank)),
    };
    events.map(kind).collect()
}

#[test]
fn a_job_says_who_came_that_it_runs_and_how_it_ended() {
    let mut net = Net::running();
    let said = kinds(&mut net);
    let want = ["joined 0", "joined 1", "joined 2", "joined ps", "running 3"];
    for event in want {
        assert_eq!(
            said.iter().filter(|it| *it == event).count(),
            1,
            "{event} in {said:?}"
        );
    }
    assert_eq!(said.len(), want.len(), "no challenge is an event: {said:?}");
    // A heartbeat is no news.
    net.join(0);
    assert_eq!(kinds(&mut net), [""; 0]);
    // Rank 1 is silent.
    net.pass_alive(ms(6000), &[0, 2, PS]);
    assert_eq!(kinds(&mut net), ["lost 1", "ended Some(MemberLost)"]);
}

#[test]
fn a_lost_ps_pauses_its_job() {
    let mut net = Net::running();
    kinds(&mut net);
    net.pass_alive(ms(6000), &[0, 1, 2]);
    assert_eq!(kinds(&mut net), ["lost ps", "paused"]);
}

#[test]
fn refusals_name_rank_and_reason_and_their_number_has_a_bound() {
    let mut net = Net::new();
    net.peers[1].join.workers = 4;
    net.join(1);
    net.join(1);
    assert!(kinds(&mut net).contains(&"refused 1 Workers".to_owned()));
    // Another key, and a job that is none: by datagram.
    let mut datagram = [0; DATAGRAM_BYTES];
    for (job, reason) in [(JOB, "BadMac"), (JobId(99), "UnknownJob")] {
        let header = control_header(Kind::Join, job, Epoch(0), Rank(2));
        header.emit(&mut datagram);
        net.peers[2].join.emit(&mut datagram);
        Key::new(&[9; 16]).unwrap().seal(&mut datagram);
        net.raw(host(2), &datagram);
        assert_eq!(kinds(&mut net), [format!("refused 2 {reason}")]);
    }
    for _ in 0..10 * EVENTS_MAX {
        net.raw(host(2), &datagram);
        net.pass(ms(10));
    }
    assert!(kinds(&mut net).len() <= EVENTS_MAX);
}
