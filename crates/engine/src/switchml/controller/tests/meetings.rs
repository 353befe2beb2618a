//! Broadcast and Barrier.

use super::*;

#[test]
fn the_published_order() {
    for workers in [1, 2, 3, 64] {
        let mut world = World::new(1);
        let job = world.job(0, workers, 1);
        world.set_up(&job, 0xabcd);
        let session = &world.controller.plane.bound[&SessionId(0xabcd)];
        let stations: Vec<_> = job.iter().map(Client::station).collect();
        assert_eq!(session.workers, stations);
        assert_eq!(session.size, Size::B256);
        assert_eq!(world.events, [Event::Started(Arc::clone(session))]);
        assert_eq!(world.controller.poll_timeout(), None);
        let status: Vec<_> = world.controller.status().collect();
        assert!(status[0].running);
        assert_eq!((status[0].present, status[0].connected), (workers, workers));
    }
}

#[test]
fn broadcast_waits_for_all_and_gives_the_roots_value() {
    let mut world = World::new(1);
    let job = world.job(0, 3, 1);
    let call = |world: &mut World, rank: u32, value| {
        let request = Request::Broadcast {
            value,
            rank,
            workers: 3,
            root: 1,
        };
        world.call(job[rank as usize].connection, request)
    };
    let first = call(&mut world, 1, 7);
    let second = call(&mut world, 2, 8);
    assert_eq!(world.answers.len(), 0);
    let last = call(&mut world, 0, 9);
    for call in [first, second, last] {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Value(7))));
    }
    // The next one is another.
    let again = call(&mut world, 1, 10);
    assert_eq!(world.answer(again), None);
}

#[test]
fn two_jobs_at_once_on_two_addresses() {
    let mut world = World::new(2);
    let one = world.job(0, 2, 1);
    let two = world.job(1, 2, 11);
    // Turn by turn.
    let mut broadcasts = Vec::new();
    for rank in 0..2 {
        broadcasts.push((world.broadcast(&one[rank], 1), 1));
        broadcasts.push((world.broadcast(&two[rank], 2), 2));
    }
    for (call, value) in broadcasts {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Value(value))));
    }
    world.udp_session(&one[0], 1);
    world.udp_session(&two[0], 2);
    let a = world.barrier(&one[0]);
    let b = world.barrier(&two[1]);
    assert_eq!((world.answer(a), world.answer(b)), (None, None));
    world.barrier(&one[1]);
    assert_eq!(world.answer(a), Some(&Ok(Answer::Met)));
    assert_eq!(world.answer(b), None);
    world.barrier(&two[0]);
    assert_eq!(world.answer(b), Some(&Ok(Answer::Met)));
    world.udp_session(&one[1], 1);
    world.udp_session(&two[1], 2);
    assert!(world.is_bound(1) && world.is_bound(2));
}

#[test]
fn jobs_one_after_the_other_share_an_address() {
    let mut world = World::new(2);
    let one = world.job(0, 2, 1);
    world.set_up(&one, 1);
    for client in &one {
        world.close(client.connection);
    }
    let two = world.job(0, 3, 11);
    world.set_up(&two, 2);
    assert!(world.is_bound(1) && world.is_bound(2));
}

#[test]
fn jobs_on_two_addresses_have_barriers_of_their_own() {
    let mut world = World::new(2);
    let one = world.job(0, 2, 1);
    world.set_up(&one, 1);
    let two = world.job(1, 3, 11);
    world.set_up(&two, 2);
    let a = world.barrier(&one[0]);
    for client in &two {
        world.barrier(client);
    }
    assert_eq!(world.answer(a), None);
    world.barrier(&one[1]);
    assert_eq!(world.answer(a), Some(&Ok(Answer::Met)));
}

#[test]
fn a_rank_that_differs_is_told_so() {
    let mut world = World::new(2);
    let job = world.job(0, 3, 1);
    let waits = world.broadcast(&job[0], 1);
    let four = Client {
        workers: 4,
        ..job[1]
    };
    let call = world.broadcast(&four, 1);
    assert_eq!(world.refusal(call).code(), Code::InvalidArgument);
    assert_eq!(
        world.text(call),
        "num_workers is 4, but a job with num_workers 3 is being set up here: rank 0 (192.0.2.1:1001) came \
         first; give each job a listen address of its own (switchml.listen)"
    );
    let request = Request::Broadcast {
        value: 1,
        rank: 1,
        workers: 3,
        root: 1,
    };
    let call = world.call(job[1].connection, request);
    assert!(
        world
            .text(call)
            .starts_with("root is 1, but a job with root 0")
    );
    assert_eq!(world.answer(waits), None);
}

#[test]
fn those_who_wait_for_the_dead_learn_at_once() {
    let mut world = World::new(1);
    let job = world.job(0, 3, 1);
    let waits = world.broadcast(&job[0], 1);
    world.broadcast(&job[1], 1);
    world.close(job[1].connection);
    assert_eq!(world.refusal(waits).code(), Code::Unavailable);
    assert_eq!(
        world.text(waits),
        "rank 1 (192.0.2.1:1002) closed its connection, and this Broadcast of 3 workers needs it"
    );
    // One that has not called concerns no other.
    let waits = world.broadcast(&job[0], 1);
    world.close(job[2].connection);
    assert_eq!(world.answer(waits), None);
    // Nothing is left of the first attempt.
    world.close(job[0].connection);
    let job = world.job(0, 3, 1);
    world.set_up(&job, 2);
}

#[test]
fn a_barrier_ends_with_any_of_its_members() {
    for waits_too in [true, false] {
        let mut world = World::new(1);
        let job = world.job(0, 3, 1);
        for client in &job {
            world.broadcast(client, 1);
        }
        let waits = world.barrier(&job[0]);
        if waits_too {
            world.barrier(&job[2]);
        }
        world.close(job[2].connection);
        assert_eq!(
            world.text(waits),
            "rank 2 (192.0.2.1:1003) closed its connection, and this Barrier of 3 workers needs it"
        );
        // A rank that comes now need not wait either.
        let late = world.barrier(&job[1]);
        assert_eq!(world.refusal(late).code(), Code::Unavailable);
        assert_eq!(world.controller.poll_timeout(), None);
    }
}

#[test]
fn a_rank_that_comes_back_by_its_session_counts_again() {
    let mut world = World::new(1);
    let mut job = world.job(0, 2, 1);
    for client in &job {
        world.broadcast(client, 1);
    }
    world.udp_session(&job[0], 1);
    world.close(job[1].connection);
    job[1].connection = world.connect(0);
    world.udp_session(&job[1], 1);
    let calls = [world.barrier(&job[0]), world.barrier(&job[1])];
    for call in calls {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Met)));
    }
}

#[test]
fn sessions_without_a_broadcast_have_barriers_of_their_own() {
    let mut world = World::new(2);
    let one = world.job(0, 2, 1);
    let two = world.job(0, 2, 11);
    world.udp_session(&one[0], 1);
    world.udp_session(&two[0], 2);
    world.udp_session(&one[1], 1);
    world.udp_session(&two[1], 2);
    assert!(world.is_bound(1) && world.is_bound(2));
    let calls = [&one[0], &two[0], &two[1]].map(|client| world.barrier(client));
    assert_eq!(world.answer(calls[0]), None);
    assert_eq!(world.answer(calls[1]), Some(&Ok(Answer::Met)));
    assert_eq!(world.answer(calls[2]), Some(&Ok(Answer::Met)));
}

#[test]
fn strangers_share_a_barrier() {
    let mut world = World::new(1);
    let job = world.job(0, 2, 1);
    let a = world.barrier(&job[0]);
    let three = Client {
        workers: 3,
        ..job[1]
    };
    let b = world.barrier(&three);
    assert_eq!(
        world.text(b),
        "num_workers of this Barrier is 3; its job's is 2"
    );
    let b = world.barrier(&job[1]);
    for call in [a, b] {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Met)));
    }
    let a = world.barrier(&job[0]);
    let gone = world.connect(0);
    let three = world.barrier(&job[0]);
    assert_eq!(
        world.answer(three),
        Some(&Ok(Answer::Met)),
        "two calls of two"
    );
    assert_eq!(world.answer(a), Some(&Ok(Answer::Met)));
    let a = world.call(job[0].connection, Request::Barrier { workers: 3 });
    world.call(gone, Request::Barrier { workers: 3 });
    world.close(gone);
    assert_eq!(
        world.text(a),
        "the connection from 192.0.2.1:1007 closed, and this Barrier of 3 workers needs it"
    );
}

#[test]
fn what_is_late_is_named() {
    let mut world = World::new(1);
    let job = world.job(0, 4, 1);
    let waits = world.broadcast(&job[1], 1);
    world.pass(SETUP - Duration::from_secs(1));
    let late = world.broadcast(&job[3], 1);
    assert_eq!(world.answer(waits), None);
    world.pass(Duration::from_secs(1));
    for call in [waits, late] {
        assert_eq!(world.refusal(call).code(), Code::DeadlineExceeded);
        assert_eq!(
            world.text(call),
            "Broadcast of 4 workers: within 300 s there came no ranks 0, 2"
        );
    }
    for client in &job {
        world.broadcast(client, 1);
    }
    let waits = world.barrier(&job[0]);
    world.barrier(&job[1]);
    world.barrier(&job[2]);
    world.pass(SETUP);
    assert_eq!(
        world.text(waits),
        "Barrier of 4 workers: within 300 s there came no rank 3 (192.0.2.1:1004)"
    );
    let stranger = world.connect(1);
    let waits = world.call(stranger, Request::Barrier { workers: 4 });
    world.pass(SETUP);
    let text = world.text(waits);
    assert!(
        text.ends_with("within 300 s there came only 1, from 192.0.2.1:1014"),
        "{text}"
    );
}

#[test]
fn a_call_that_was_given_up_does_not_count() {
    let mut world = World::new(1);
    let job = world.job(0, 2, 1);
    let given_up = world.broadcast(&job[0], 1);
    world.abandon(given_up);
    let waits = world.broadcast(&job[1], 1);
    assert_eq!(world.answer(waits), None);
    // Its connection may call again.
    let again = world.broadcast(&job[0], 1);
    assert_eq!(world.answer(waits), Some(&Ok(Answer::Value(1))));
    assert_eq!(world.answer(again), Some(&Ok(Answer::Value(1))));
    assert_eq!(world.answer(given_up), None);

    let given_up = world.barrier(&job[0]);
    world.abandon(given_up);
    let waits = world.barrier(&job[1]);
    assert_eq!(world.answer(waits), None);
    // It was given up because the connection closes: whichever is seen first.
    world.close(job[0].connection);
    assert_eq!(world.refusal(waits).code(), Code::Unavailable);
}

#[test]
fn whether_the_call_or_the_connection_ends_first_is_the_same() {
    for abandon_first in [true, false] {
        let mut world = World::new(1);
        let job = world.job(0, 2, 1);
        let dead = world.broadcast(&job[0], 1);
        let waits = world.broadcast(
            &Client {
                workers: 2,
                rank: 1,
                ..job[1]
            },
            1,
        );
        // Both are there; the next formation is the one to break.
        assert!(world.answer(dead).is_some() && world.answer(waits).is_some());
        let mut three = world.job(1, 3, 1);
        let dead = world.broadcast(&three[0], 1);
        let waits = world.broadcast(&three[1], 1);
        if abandon_first {
            world.abandon(dead);
        }
        world.close(three[0].connection);
        world.abandon(dead);
        assert_eq!(world.refusal(waits).code(), Code::Unavailable);
        assert_eq!(world.answer(dead), None);
        three[0].connection = world.connect(1);
        world.set_up(&three, 3);
    }
}

#[test]
fn a_rank_that_calls_twice_counts_once() {
    let mut world = World::new(1);
    let job = world.job(0, 2, 1);
    let first = world.broadcast(&job[0], 1);
    let second = world.broadcast(&job[0], 2);
    assert_eq!(world.refusal(first).code(), Code::Aborted);
    world.broadcast(&job[1], 0);
    assert_eq!(world.answer(second), Some(&Ok(Answer::Value(2))));
    let first = world.barrier(&job[0]);
    let second = world.barrier(&job[0]);
    assert_eq!(
        world.text(first),
        "rank 0 called Barrier again, on the same connection"
    );
    world.barrier(&job[1]);
    assert_eq!(world.answer(second), Some(&Ok(Answer::Met)));
}

#[test]
fn ranks_may_share_a_connection() {
    let mut world = World::new(1);
    let connection = world.connect(0);
    let clients: Vec<_> = (0..3)
        .map(|rank| Client {
            connection,
            rank,
            workers: 3,
            host: 1 + rank as u8,
        })
        .collect();
    world.set_up(&clients, 5);
}

#[test]
fn a_job_begun_anew_under_the_same_value_frees_the_old_one() {
    let mut world = World::new(1);
    let old = world.job(0, 2, 1);
    world.set_up(&old, 1);
    let waits = world.barrier(&old[0]);
    let new = world.job(0, 2, 1);
    world.set_up(&new, 1);
    assert_eq!(
        world.text(waits),
        "job 0x1 was begun anew by other connections"
    );
    // The old connections are in no job now, and their end is not that of the new one.
    world.close(old[0].connection);
    let calls = [world.barrier(&new[0]), world.barrier(&new[1])];
    for call in calls {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Met)));
    }
}
