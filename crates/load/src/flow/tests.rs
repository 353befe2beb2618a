use super::*;

const FIRST: FragmentId = FragmentId(u32::MAX - 2);
const EVERY_10: Pace = Pace::Open { interval_ns: 10.0 };

fn flow(workers: u8, window: u16, pace: Pace) -> Flow {
    Flow::new(workers, window, pace, FIRST, 1000)
}

fn new(taken: Taken) -> Times {
    match taken {
        Taken::New(times) => times,
        other => panic!("{other:?}"),
    }
}

#[test]
fn closed_loop_follows_the_window_also_across_the_wrap() {
    let mut f = flow(2, 4, Pace::Closed);
    assert_eq!(f.take(1000), 0..8);
    assert_eq!(f.take(1001), 8..8, "the window is full");
    for seq in 0..100 {
        let now = 2000 + seq;
        let times = new(f.result(now, FIRST.plus(seq as u32), 0b11));
        assert!(times.complete);
        let due = if seq < 4 { 1000 } else { now - 4 };
        assert_eq!((times.due_first, times.due_last), (due, due), "{seq}");
        assert_eq!(f.take(now), (seq + 4) * 2..(seq + 5) * 2);
    }
    f.stop();
    assert!(f.is_sent() && !f.is_drained());
    for seq in 100..104 {
        new(f.result(3000, FIRST.plus(seq), 0b11));
    }
    assert!(f.is_drained());
    assert!(f.take(4000).is_empty());
}

#[test]
fn a_window_of_one_and_one_worker() {
    let mut f = flow(1, 1, Pace::Closed);
    for seq in 0..3 {
        assert_eq!(f.take(1000 + seq), seq..seq + 1);
        assert!(f.take(1000 + seq).is_empty());
        assert!(new(f.result(1000 + seq, FIRST.plus(seq as u32), 1)).complete);
    }
}

#[test]
fn a_window_that_is_no_power_of_two_dates_what_it_makes_room_for() {
    let mut f = flow(1, 3, Pace::Closed);
    f.take(1000);
    for seq in 0..20_u64 {
        let times = new(f.result(1100 + seq, FIRST.plus(seq as u32), 1));
        let due = if seq < 3 { 1000 } else { 1100 + seq - 3 };
        assert_eq!(times.due_last, due);
        f.take(1100 + seq);
    }
}

#[test]
fn open_loop_is_due_by_the_clock_with_or_without_results() {
    let mut f = flow(2, 2, EVERY_10);
    assert!(f.take(999).is_empty());
    assert_eq!(f.take(1000), 0..1);
    assert_eq!(f.take(1009), 1..1);
    assert_eq!(f.take(1025), 1..3);
    // The window of two fragments is full long before the clock says what is due.
    assert_eq!(f.take(2000), 3..4);
    assert!(f.take(2000).is_empty());
    assert_eq!(f.due_by(2000), 101);
    let times = new(f.result(2005, FIRST, 0b11));
    assert_eq!(
        (times.due_first, times.due_last, times.sent),
        (1000, 1010, 1025)
    );
    new(f.result(2006, FIRST.plus(1), 0b11));
    // What was held up counts from when it was due.
    assert_eq!(f.take(2010), 4..8);
    // What is sent late has all its time still.
    assert_eq!(f.give_up(2011, 2010), 0);
    let times = new(f.result(2020, FIRST.plus(3), 0b11));
    assert_eq!(
        (times.due_first, times.due_last, times.sent),
        (1060, 1070, 2010)
    );
}

#[test]
fn a_batch_falls_apart_by_rank_and_nothing_is_left_out() {
    for workers in [1, 2, 3, 8] {
        let f = flow(workers, 64, EVERY_10);
        for from in 0..20 {
            for to in from..40 {
                let mut numbers: Vec<_> = (0..workers)
                    .flat_map(|rank| {
                        let of_rank = f.of_rank(&(from..to), rank);
                        of_rank.map(move |seq| seq * u64::from(workers) + u64::from(rank))
                    })
                    .collect();
                numbers.sort_unstable();
                assert_eq!(numbers, (from..to).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn results_count_once_for_each_port_and_are_never_early() {
    let mut f = flow(3, 4, EVERY_10);
    assert_eq!(f.take(1010), 0..2);
    assert_eq!(f.result(1011, FIRST, 0b001), Taken::TooEarly);
    assert_eq!(f.result(1011, FIRST.plus(1), 0b001), Taken::Unasked);
    f.take(1020);
    assert!(!new(f.result(1030, FIRST, 0b011)).complete);
    assert_eq!(f.result(1031, FIRST, 0b011), Taken::Duplicate);
    assert!(new(f.result(1032, FIRST, 0b100)).complete);
    assert_eq!(f.result(1033, FIRST, 0b100), Taken::Duplicate);
    assert_eq!(f.result(1033, FragmentId(FIRST.0 - 100), 1), Taken::Unasked);
    assert_eq!(
        f.result(1033, FragmentId(FIRST.0 ^ 1 << 31), 1),
        Taken::Unasked
    );
}

#[test]
fn what_has_no_result_is_sent_again_ever_more_rarely_and_given_up_in_the_end() {
    let mut f = flow(2, 4, Pace::Closed);
    f.stop_before(2);
    f.take(1000);
    f.stop_before(u64::MAX);
    f.take(1500);
    for seq in [0, 2, 3] {
        new(f.result(2000, FIRST.plus(seq), 0b11));
    }
    new(f.result(2000, FIRST.plus(1), 0b10));
    let mut again = Vec::new();
    let mut at = Vec::new();
    for now in (0..100).map(|ms| ms * RETRY_NS_MIN) {
        f.overdue(now, |seq, ranks| {
            again.push((seq, ranks));
            at.push(now);
        });
    }
    assert!(again.iter().all(|&again| again == (1, 0b01)), "{again:?}");
    let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.is_sorted() && gaps.len() > 3, "{gaps:?}");
    assert_eq!(f.take(5000), 8..10, "only the first one's room");
    assert_eq!(f.give_up(6000, 1000), 0);
    assert_eq!(f.give_up(6000, 1001), 1);
    assert_eq!(f.take(6000), 10..16, "the window moves on");
    assert_eq!(f.result(6001, FIRST.plus(1), 0b11), Taken::Duplicate);
}

#[test]
fn a_peer_that_stands_still_is_not_sent_everything_again() {
    let mut f = flow(2, 4, Pace::Closed);
    f.take(1000);
    let mut first = None;
    for now in (0..100).map(|ms| ms * RETRY_NS_MIN) {
        f.overdue(now, |_, _| first = first.or(Some(now)));
    }
    assert!(first.is_some_and(|at| (STILL_NS..STILL_NS + 3 * RETRY_NS_MIN).contains(&at)));
}

#[test]
fn a_nack_gets_what_the_worker_has() {
    let mut f = flow(2, 4, EVERY_10);
    f.take(1020);
    let fragment = FIRST.plus(0);
    assert_eq!(f.asked(fragment, 1), Some((0, Asked::Data)));
    new(f.result(1030, fragment, 0b10));
    assert_eq!(f.asked(fragment, 1), Some((0, Asked::Result)));
    assert_eq!(f.asked(fragment, 0), Some((0, Asked::Data)));
    assert_eq!(f.asked(FIRST.plus(1), 0), Some((1, Asked::Data)));
    assert_eq!(f.asked(FIRST.plus(1), 1), Some((1, Asked::Nothing)));
    assert_eq!(f.asked(fragment, 63), Some((0, Asked::Nothing)));
}

#[test]
fn echoes_count_by_contribution() {
    let mut f = flow(2, 2, EVERY_10);
    f.take(1010);
    assert_eq!(f.echo(1015, FIRST, 1), Some(1010));
    assert_eq!(f.echo(1016, FIRST, 1), None, "again");
    assert_eq!(f.echo(1016, FIRST, 2), None, "no such rank");
    assert_eq!(f.echo(1016, FIRST.plus(1), 0), None, "not sent");
    assert_eq!(f.echo(1017, FIRST, 0), Some(1000));
    assert_eq!(f.take(1040), 2..5);
    assert!(!f.is_drained());
}

#[test]
fn a_count_bounds_it() {
    let mut f = flow(2, 8, Pace::Closed);
    f.stop_before(3);
    assert_eq!(f.take(1000), 0..6);
    assert!(f.is_sent());
    // Open: the fragment that has been begun is finished.
    let mut f = flow(4, 8, EVERY_10);
    f.take(1010);
    f.stop();
    assert!(!f.is_sent());
    assert_eq!(f.take(9000), 2..4);
    assert!(f.is_sent());
}
