//! A running job that another aggregator continues.

use super::*;

#[test]
fn what_slots_have_leaves_to_the_ps_and_other_jobs_stay() {
    for policy in POLICIES {
        let mut w = World::new(policy, 8);
        w.data(0, 0, 1);
        w.data(0, 2, 100);
        w.data(1, 1, 10);
        finish(&mut w, 2, 5);
        w.say(other(3, 0, 10), 7);
        w.wire.take();
        w.shard.hand_over(JOB, &mut w.wire);
        let mut sent = w.wire.take();
        sent.sort_by_key(|sent| match sent {
            Sent::To(_, _, header, _) => header.fragment.0,
            _ => u32::MAX,
        });
        assert_eq!(
            sent,
            [partial(0, 0b101, 101), partial(1, 0b010, 10)],
            "{policy}"
        );
        assert_eq!(w.shard.slots_of(JOB), 0);
        assert_eq!(w.taken(), 1);
        w.dropped(DropReason::UnknownJob, |w| w.data(0, 1, 10));
        let done = w.say(other(3, 1, 10), 70);
        assert_eq!(done.len(), 1, "the other job continues");
        // Nothing is known of it when it comes back.
        w.bind(roster(JOB, 3, 0));
        assert_eq!(w.data(2, 1, 5), []);
    }
}

#[test]
fn what_is_held_out_of_order_leaves_one_by_one() {
    let mut w = World::new(PolicyName::Esa, 8);
    let float = |rank| Header {
        element: Element::F32,
        ..data(4, rank)
    };
    let send = |w: &mut World, rank: u8| {
        let from = host(rank.into());
        w.handle(from, float(rank), &floats(f32::from(rank)))
    };
    send(&mut w, 2);
    send(&mut w, 0);
    w.shard.hand_over(JOB, &mut w.wire);
    let expected = [
        partial_of(float(0), 0b001, floats(0.0)),
        partial_of(float(0), 0b100, floats(2.0)),
    ];
    assert_eq!(w.wire.take(), expected);
}

#[test]
fn a_slot_that_waits_for_its_result_has_nothing_left_to_say() {
    let mut w = World::new(PolicyName::Fcfs, 8);
    for rank in 0..3 {
        w.data(0, rank, 1);
    }
    w.wire.take();
    w.shard.hand_over(JOB, &mut w.wire);
    assert_eq!(w.wire.take(), []);
    assert_eq!(w.taken(), 0);
}

#[test]
fn arrivals_are_counted_by_job() {
    let mut w = World::new(PolicyName::Esa, 8);
    for rank in [0, 1, 1, 2, 2] {
        w.data(0, rank, 1);
    }
    w.say(other(0, 0, 1), 1);
    let arrivals: Vec<_> = w.shard.arrivals().collect();
    assert_eq!(arrivals, [(JOB, 5), (OTHER, 1)]);
    w.shard.hand_over(JOB, &mut w.wire);
    w.bind(roster(JOB, 3, 0));
    assert_eq!(w.shard.arrivals().next(), Some((JOB, 0)));
}

/// Counts of a job stay when its epoch ends, and begin anew with another configuration of it.
#[test]
fn what_a_job_did_is_counted_over_its_epochs() {
    let mut w = World::new(PolicyName::Esa, 8);
    let counted = |w: &World, job: JobId| {
        let mut all = w.shard.job_counters();
        all.find(|&(id, _)| id == job).unwrap().1
    };
    for epoch in 1..3 {
        for fragment in 0..3 {
            for rank in 0..3 {
                w.data(fragment, rank, 1);
            }
        }
        w.data(9, 0, 1);
        let payload = u64::from(UNITS) * 64;
        let want = JobCounters {
            contributions: 10 * epoch,
            results: 3 * epoch,
            payload_bytes: 3 * epoch * payload,
            ..JobCounters::default()
        };
        assert_eq!(counted(&w, JOB), want);
        assert_eq!(counted(&w, OTHER), JobCounters::default());
        w.shard.unbind(JOB, &mut w.wire);
        assert_eq!(counted(&w, JOB), want);
        w.bind(roster(JOB, 3, 0));
    }
}
