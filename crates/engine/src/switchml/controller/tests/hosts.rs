//! What a call may do depends on the host that it comes from.

use super::*;

#[test]
fn one_call_of_another_host_ends_no_session() {
    let mut world = World::with(4, Duration::ZERO, vec![vec![]; 2]);
    let job = world.job_at(0, &[1, 2], 1);
    world.set_up(&job, 1);
    // Its station in a session of one; in its own; half of its station.
    let connection = world.connect_from(1, host(9));
    let alone = Client {
        connection,
        workers: 1,
        ..job[0]
    };
    let own = Client {
        connection,
        ..job[0]
    };
    let mut half = alone.session(3);
    half.ip = Ipv4Addr::new(10, 84, 0, 77);
    for request in [alone.session(2), own.session(1), half] {
        let call = world.call(connection, Request::UdpSession(request));
        assert!(
            matches!(
                world.refusal(call).code(),
                Code::PermissionDenied | Code::AlreadyExists
            ),
            "{}",
            world.text(call)
        );
        assert!(
            world.text(call).contains("198.51.100.9"),
            "{}",
            world.text(call)
        );
    }
    assert_eq!(world.controller.plane.log, ["bind 0x1"]);
    let call = world.udp_session(&alone, 2);
    assert_eq!(
        world.text(call),
        "02:00:00:00:00:01 10.84.0.1 is rank 0 of session 0x1, which 198.51.100.1 was let in as: only calls from \
         there, or from the station's own address, may begin it anew, and this one is from 198.51.100.9"
    );
    // The session's number for a job of its own, at another address.
    let call = world.broadcast(&alone, 1);
    assert_eq!(world.refusal(call).code(), Code::AlreadyExists);
    let barriers = [world.barrier(&job[0]), world.barrier(&job[1])];
    for call in barriers {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Met)));
    }
}

#[test]
fn the_stations_own_address_may_begin_it_anew() {
    let mut world = World::with(4, Duration::ZERO, vec![vec![]]);
    let job = world.job_at(0, &[1, 2], 1);
    world.set_up(&job, 1);
    let connection = world.connect_from(0, IpAddr::V4(job[0].station().ip));
    let anew = Client {
        connection,
        workers: 1,
        ..job[0]
    };
    let call = world.udp_session(&anew, 2);
    assert!(world.is_in(call, 2));
    assert!(!world.is_bound(1) && world.is_bound(2));
}

/// Its host may have another address since.
#[test]
fn a_station_of_a_silent_session_without_connections_is_free() {
    let mut world = World::with(4, Duration::ZERO, vec![vec![]]);
    let job = world.job_at(0, &[1, 2], 1);
    world.set_up(&job, 1);
    for client in &job {
        world.close(client.connection);
    }
    let connection = world.connect_from(0, host(7));
    let anew = Client {
        connection,
        workers: 1,
        ..job[0]
    };
    let call = world.udp_session(&anew, 2);
    assert_eq!(world.refusal(call).code(), Code::PermissionDenied);
    world.pass(GIVES_WAY);
    let call = world.udp_session(&anew, 2);
    assert!(world.is_in(call, 2));
}

#[test]
fn a_place_in_a_job_is_the_hosts_that_came_for_it() {
    let mut world = World::with(4, Duration::ZERO, vec![vec![]; 2]);
    let job = world.job_at(0, &[1, 2], 1);
    for client in &job {
        world.broadcast(client, 1);
    }
    world.udp_session(&job[0], 1);
    let thief = Client {
        connection: world.connect_from(1, host(9)),
        host: 9,
        ..job[1]
    };
    let call = world.udp_session(&thief, 1);
    assert_eq!(world.refusal(call).code(), Code::AlreadyExists);
    assert_eq!(
        world.text(call),
        "rank 1 of job 0x1 is at 198.51.100.2; this call is from 198.51.100.9"
    );
    let call = world.udp_session(&job[1], 1);
    assert!(world.is_in(call, 1) && world.is_bound(1));
}

#[test]
fn the_log_is_told_who_asks_anew_and_waits() {
    let mut world = World::with(4, Duration::ZERO, vec![vec![]]);
    let job = world.job_at(0, &[1, 2], 1);
    world.set_up(&job, 1);
    world.events.clear();
    let anew = Client {
        connection: world.connect_from(0, host(2)),
        ..job[1]
    };
    let call = world.broadcast(&anew, 0);
    assert_eq!(world.answer(call), None);
    let [event] = &world.events[..] else {
        panic!("{:?}", world.events);
    };
    let port = 1000 + anew.connection.0;
    assert_eq!(
        event.to_string(),
        format!(
            "SwitchML session 0x1: a new process of rank 1, 02:00:00:00:00:02 10.84.0.2, asks from \
             198.51.100.2:{port} and waits for a job of 2 workers; the session runs until all of them have come"
        )
    );
    assert!(world.is_bound(1));
}

#[test]
fn one_host_may_not_take_all_places() {
    let mut world = World::with(8, Duration::ZERO, vec![vec![]; 9]);
    for n in 0..4 {
        let job = world.job_at(n, &[9, 9], 10 * n as u8);
        assert_eq!(world.answers.len(), n);
        world.udp_session(&job[0], 100 + n as u64);
    }
    let fifth = world.job_at(5, &[9, 9], 100);
    let call = world.udp_session(&fifth[0], 200);
    assert_eq!(world.refusal(call).code(), Code::ResourceExhausted);
    assert_eq!(
        world.text(call),
        "4 sessions that 198.51.100.9 began wait for their workers, and no more may"
    );
    let others = world.job_at(6, &[1, 2], 200);
    world.set_up(&others, 300);
}

#[test]
fn each_place_has_a_secret_of_its_own_and_a_new_process_another() {
    let mut world = World::with(4, Duration::ZERO, vec![vec![]]);
    let job = world.job_at(0, &[1, 2], 1);
    let told = [world.udp_session(&job[0], 1), world.udp_session(&job[1], 1)];
    let told = told.map(|call| world.secret(call));
    assert_eq!(
        world.controller.plane.bound[&SessionId(1)].switch_macs,
        told
    );
    let again = world.udp_session(&job[0], 1);
    assert_eq!(world.secret(again), told[0], "it may be sending already");
    let anew = Client {
        connection: world.connect_from(0, host(1)),
        ..job[0]
    };
    let anew = world.udp_session(&anew, 1);
    let all = [told[0], told[1], world.secret(anew), SWITCH.0];
    let all = BTreeSet::from(all.map(Mac::to_u64));
    assert_eq!(all.len(), 4);
    // Another start of the switch makes others.
    let mut other = World::with(4, Duration::ZERO, vec![vec![]]);
    other.controller.sessions.set_secret([8; 32]);
    let job = other.job_at(0, &[1, 2], 1);
    let call = other.udp_session(&job[0], 1);
    assert!(!all.contains(&other.secret(call).to_u64()));
}

#[test]
fn two_ports_of_one_station_end_the_session_and_those_who_wait_hear_of_it() {
    let mut world = World::with(4, Duration::ZERO, vec![vec![]]);
    let job = world.job_at(0, &[1, 2], 1);
    world.set_up(&job, 1);
    let waits = world.barrier(&job[0]);
    let conflict = Conflict {
        rank: 1,
        ports: [crate::PortId(3), crate::PortId(4)],
    };
    let ports = || ["host4".to_owned(), "evil".to_owned()];
    world.controller.conflict(SessionId(7), &conflict, ports());
    world.controller.conflict(SessionId(1), &conflict, ports());
    world.collect();
    assert!(!world.is_bound(1));
    let why = "frames of its rank 1, 02:00:00:00:00:02 10.84.0.2, came from port host4 and from port evil: a host \
               has copied what only the worker knows, or the worker has moved; start the job again";
    assert_eq!(world.end_of(1).unwrap().to_string(), why);
    assert_eq!(world.text(waits), format!("session 0x1 has ended: {why}"));
}
