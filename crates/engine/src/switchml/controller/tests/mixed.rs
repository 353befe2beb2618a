//! Two jobs at one listen address: none of their ranks ever gets into a job with the other's.

use super::*;

/// Two jobs of two, each on two hosts of its own, without anything that names them.
fn two_jobs(grace_period: Duration) -> (World, Vec<Client>, Vec<Client>) {
    let mut world = World::with(4, grace_period, vec![vec![]]);
    let one = world.job_at(0, &[1, 2], 1);
    let two = world.job_at(0, &[3, 4], 11);
    (world, one, two)
}

#[test]
fn ranks_that_arrive_crosswise_are_all_refused() {
    let (mut world, one, two) = two_jobs(GRACE_PERIOD);
    let a0 = world.broadcast(&one[0], 1);
    let b1 = world.broadcast(&two[1], 0);
    // All of a job are there; nothing is said before another job could have come too.
    assert_eq!((world.answer(a0), world.answer(b1)), (None, None));
    world.pass(GRACE_PERIOD / 2);
    let b0 = world.broadcast(&two[0], 2);
    for call in [a0, b1, b0] {
        assert_eq!(world.refusal(call).code(), Code::Aborted);
        assert_eq!(
            world.text(call),
            "rank 0 of 2 came twice, from 198.51.100.1:1001 and from 198.51.100.3:1003: two jobs at one listen \
             address, whose ranks cannot be told apart, so both are refused; give each job a listen address of its \
             own (switchml.listen)"
        );
    }
    let a1 = world.broadcast(&one[1], 0);
    assert_eq!(world.refusal(a1).code(), Code::Aborted);
    assert!(
        world
            .text(a1)
            .starts_with("two jobs met at this listen address less than 1 s ago")
    );
    assert_eq!(world.controller.poll_timeout(), None);
    // One of them alone, a moment later.
    world.pass(GRACE_PERIOD);
    let calls = [world.broadcast(&one[0], 1), world.broadcast(&one[1], 0)];
    world.pass(GRACE_PERIOD);
    for call in calls {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Value(1))));
    }
    world.set_up_sessions(&one, 1);
}

#[test]
fn a_rank_that_comes_twice_before_all_are_there_refuses_both_jobs() {
    let (mut world, one, two) = two_jobs(GRACE_PERIOD);
    let a0 = world.broadcast(&one[0], 1);
    let b0 = world.broadcast(&two[0], 2);
    let b1 = world.broadcast(&two[1], 0);
    let a1 = world.broadcast(&one[1], 0);
    for call in [a0, b0, b1, a1] {
        assert_eq!(world.refusal(call).code(), Code::Aborted);
    }
}

/// Later than the moment: the ranks that are left over hear of it, and so does the one that started
/// them.
#[test]
fn what_is_left_over_of_two_mixed_jobs_is_refused_as_long_as_one_runs() {
    let (mut world, one, two) = two_jobs(GRACE_PERIOD);
    let mixed = [one[0], Client { ..two[1] }];
    let calls = [world.broadcast(&mixed[0], 1), world.broadcast(&mixed[1], 0)];
    world.pass(GRACE_PERIOD);
    for call in calls {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Value(1))));
    }
    // While it is set up, and when it runs.
    for runs in [false, true] {
        if runs {
            world.set_up_sessions(&mixed, 1);
        }
        for left in [&two[0], &one[1]] {
            let call = world.broadcast(left, 2);
            assert_eq!(world.refusal(call).code(), Code::Aborted);
            let text = world.text(call);
            assert!(text.contains("job 0x1 has this listen address"), "{text}");
            assert!(text.contains("198.51.100.1:1001"), "{text}");
            assert!(text.contains("(switchml.listen)"), "{text}");
        }
    }
    for client in &mixed {
        world.close(client.connection);
    }
    world.broadcast(&two[0], 2);
    let fresh = Client {
        connection: world.connect_from(0, host(4)),
        ..two[1]
    };
    world.broadcast(&fresh, 0);
    world.pass(GRACE_PERIOD);
    world.set_up_sessions(&[two[0], fresh], 2);
}

/// Both jobs on the same two hosts, with interfaces of their own: the connections' addresses say
/// nothing.
#[test]
fn jobs_on_the_same_hosts_are_told_apart_by_their_stations() {
    let mut world = World::with(4, GRACE_PERIOD, vec![vec![]]);
    let one = world.job_at(0, &[1, 2], 1);
    let two = world.job_at(0, &[1, 2], 11);
    let mixed = [one[0], two[1]];
    world.broadcast(&mixed[0], 1);
    world.broadcast(&mixed[1], 0);
    world.pass(GRACE_PERIOD);
    world.set_up_sessions(&mixed, 1);
    // They may be workers that were started anew, so they may meet.
    let calls = [world.broadcast(&two[0], 2), world.broadcast(&one[1], 0)];
    world.pass(GRACE_PERIOD);
    for (call, client) in calls.into_iter().zip([&two[0], &one[1]]) {
        assert_eq!(world.answer(call), Some(&Ok(Answer::Value(2))));
        let call = world.udp_session(client, 2);
        assert_eq!(world.refusal(call).code(), Code::Aborted);
        assert!(
            world
                .text(call)
                .starts_with("job 0x1 has this listen address")
        );
    }
    assert!(world.is_bound(1) && !world.is_bound(2));
}

#[test]
fn a_list_of_hosts_keeps_jobs_apart_at_once() {
    let lists = vec![vec![host(1), host(2)], vec![host(3), host(4)]];
    let mut world = World::with(4, GRACE_PERIOD, lists);
    let one = world.job_at(0, &[1, 2], 1);
    // The second job was told the first one's address.
    let two = world.job_at(0, &[3, 4], 11);
    world.broadcast(&one[0], 1);
    let call = world.broadcast(&two[1], 0);
    assert_eq!(world.refusal(call).code(), Code::PermissionDenied);
    assert_eq!(
        world.text(call),
        "rank 1 of 2 calls from 198.51.100.4; this listen address is for rank 0 at 198.51.100.1, rank 1 at \
         198.51.100.2 (workers in switchml.listen)"
    );
    let call = world.udp_session(&two[1], 1);
    assert_eq!(world.refusal(call).code(), Code::PermissionDenied);
    let swapped = Client { rank: 1, ..one[0] };
    let call = world.broadcast(&swapped, 0);
    assert_eq!(world.refusal(call).code(), Code::PermissionDenied);
    let three = Client {
        workers: 3,
        ..one[1]
    };
    let call = world.broadcast(&three, 0);
    assert_eq!(world.refusal(call).code(), Code::PermissionDenied);
    // No other can be meant, so nothing is waited for.
    let call = world.broadcast(&one[1], 0);
    assert_eq!(world.answer(call), Some(&Ok(Answer::Value(1))));
    world.set_up_sessions(&one, 1);
    let two = world.job_at(1, &[3, 4], 11);
    world.set_up(&two, 2);
}

#[test]
fn a_rank_that_dies_while_all_wait_is_named() {
    let (mut world, one, _) = two_jobs(GRACE_PERIOD);
    let a0 = world.broadcast(&one[0], 1);
    world.broadcast(&one[1], 0);
    world.pass(GRACE_PERIOD / 2);
    world.close(one[1].connection);
    assert_eq!(world.refusal(a0).code(), Code::Unavailable);
    world.pass(GRACE_PERIOD * 2);
    // One whose call was given up is waited for as before.
    let again = Client {
        connection: world.connect_from(0, host(2)),
        ..one[1]
    };
    let a0 = world.broadcast(&one[0], 1);
    let given_up = world.broadcast(&again, 0);
    world.abandon(given_up);
    world.pass(GRACE_PERIOD * 2);
    assert_eq!(world.answer(a0), None);
    world.broadcast(&again, 0);
    world.pass(GRACE_PERIOD);
    assert_eq!(world.answer(a0), Some(&Ok(Answer::Value(1))));
}
