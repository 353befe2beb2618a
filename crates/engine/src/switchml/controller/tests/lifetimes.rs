//! How long a session lives.

use super::*;

#[test]
fn a_job_that_was_started_anew_replaces_its_old_session() {
    let mut world = World::new(1);
    let old = world.job(0, 3, 1);
    world.set_up(&old, 1);
    // Killed at once, and started anew; of its connections nothing is known yet.
    let new = world.job(0, 3, 1);
    world.set_up(&new, 2);
    assert_eq!(
        world.controller.plane.log,
        ["bind 0x1", "unbind 0x1", "bind 0x2"]
    );
    assert_eq!(
        world.end_of(1).unwrap().to_string(),
        "its rank 0, 02:00:00:00:00:01 10.84.0.1, was started anew in session 0x2"
    );
    for client in &old {
        world.close(client.connection);
    }
    world.pass(IDLE * 3);
    assert!(world.is_bound(2));
}

#[test]
fn a_job_that_was_started_anew_under_its_old_number_begins_anew_too() {
    let mut world = World::new(1);
    let old = world.job(0, 2, 1);
    world.set_up(&old, 1);
    let new = world.job(0, 2, 1);
    world.set_up(&new, 1);
    assert_eq!(
        world.controller.plane.log,
        ["bind 0x1", "unbind 0x1", "bind 0x1"]
    );
    for client in &old {
        world.close(client.connection);
    }
    assert_eq!(world.controller.status().next().unwrap().connected, 2);
}

#[test]
fn one_station_of_another_job_takes_only_that_ones_session() {
    let mut world = World::new(3);
    let one = world.job(0, 2, 1);
    let two = world.job(1, 2, 11);
    world.set_up(&one, 1);
    world.set_up(&two, 2);
    for client in &one {
        world.close(client.connection);
    }
    let three = world.job(0, 2, 12);
    let waits = world.barrier(&two[0]);
    world.set_up(&three, 3);
    assert!(world.is_bound(1) && !world.is_bound(2) && world.is_bound(3));
    // Those who met in the old one, on whichever address, learn that it is no more.
    assert_eq!(world.refusal(waits).code(), Code::Aborted);
    assert_eq!(
        world.text(waits),
        "session 0x2 has ended: its rank 1, 02:00:00:00:00:0c 10.84.0.12, was started anew in session 0x3"
    );
}

#[test]
fn closed_connections_alone_end_nothing() {
    let mut world = World::new(1);
    let job = world.job(0, 2, 1);
    world.set_up(&job, 1);
    world.close(job[0].connection);
    world.pass(IDLE * 10);
    assert!(world.is_bound(1), "one is open");
    world.close(job[1].connection);
    for _ in 0..10 {
        world.pass(IDLE / 2);
        world
            .controller
            .plane
            .frames
            .insert(SessionId(1), world.now);
    }
    assert!(world.is_bound(1), "frames come");
    world.pass(IDLE - Duration::from_secs(1));
    assert!(world.is_bound(1));
    world.pass(Duration::from_secs(1));
    assert!(!world.is_bound(1));
    assert_eq!(
        world.end_of(1).unwrap().to_string(),
        "all its connections are closed, and no frame came for 200 s"
    );
    assert_eq!(world.controller.poll_timeout(), None);
}

#[test]
fn a_session_that_no_connection_holds_gives_way_to_another() {
    let mut world = World::new(2);
    let one = world.job(0, 2, 1);
    let two = world.job(1, 2, 11);
    world.set_up(&one, 1);
    world.set_up(&two, 2);
    for client in one.iter().chain(&two) {
        world.close(client.connection);
    }
    world.pass(Duration::from_secs(4));
    // The one that was silent for longer goes.
    world
        .controller
        .plane
        .frames
        .insert(SessionId(1), world.now);
    let three = world.job(0, 2, 21);
    world.pass(GIVES_WAY - Duration::from_secs(5));
    let call = world.udp_session(&three[0], 3);
    assert_eq!(world.refusal(call).code(), Code::ResourceExhausted);
    world.pass(Duration::from_secs(1));
    world.set_up(&three, 3);
    assert!(world.is_bound(1) && !world.is_bound(2) && world.is_bound(3));
    assert_eq!(
        world.end_of(2).unwrap().to_string(),
        "all its connections are closed, no frame came for 10 s, and session 0x3 needed its place"
    );
}

#[test]
fn a_session_that_does_not_fill_ends() {
    let mut world = World::new(1);
    let job = world.job(0, 3, 1);
    world.udp_session(&job[1], 1);
    world.pass(SETUP);
    assert_eq!(
        world.end_of(1).unwrap().to_string(),
        "within 300 s there came no ranks 0, 2"
    );
    assert_eq!(world.controller.plane.log, [""; 0]);

    // With its last connection it ends at once.
    world.udp_session(&job[1], 2);
    world.udp_session(&job[2], 2);
    world.close(job[1].connection);
    assert_eq!(world.controller.status().next().unwrap().present, 1);
    world.close(job[2].connection);
    assert_eq!(world.end_of(2), Some(&End::Deserted));
}

#[test]
fn a_rank_that_died_while_others_came_is_not_bound() {
    let mut world = World::new(1);
    let job = world.job(0, 3, 1);
    for client in &job[..2] {
        world.udp_session(client, 1);
    }
    world.close(job[0].connection);
    world.udp_session(&job[2], 1);
    assert!(!world.is_bound(1));
    let again = Client {
        connection: world.connect(0),
        ..job[0]
    };
    world.udp_session(&again, 1);
    assert!(world.is_bound(1));
}
