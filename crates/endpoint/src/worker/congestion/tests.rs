use super::*;
use proptest::prelude::*;

/// One round, with these numbers of 1000 results marked and collided, evenly spread.
fn round(c: &mut Congestion, stats: &mut CongestionStats, marked: u64, collided: u64) {
    let n = c.limit();
    let hit = |i: u64, of_1000: u64| (i + 1) * of_1000 / 1000 > i * of_1000 / 1000;
    // A share that is too small for this window comes about by chance; here it is left out.
    for i in 0..n {
        c.result(hit(i, marked), hit(i, collided), stats);
    }
}

fn quiet(c: &mut Congestion, rounds: u32) {
    for _ in 0..rounds {
        round(c, &mut CongestionStats::default(), 0, 0);
    }
}

/// Senders with a common bottleneck that `capacity` fragments fit into: in each round the share of
/// what exceeds it is marked (`link`) or collides. Their mean windows over the last rounds.
fn share(windows: [u16; 2], begin: [u32; 2], capacity: u64, link: bool) -> [f64; 2] {
    const ROUNDS: u32 = 4000;
    const LAST: u32 = 1000;
    let mut senders = windows.map(Congestion::new);
    for (sender, begin) in senders.iter_mut().zip(begin) {
        sender.link = if link {
            u64::from(begin) * ONE
        } else {
            sender.link
        };
        sender.aggregation = u64::from(begin) * ONE;
    }
    let mut sums = [0u64; 2];
    for n in 0..ROUNDS {
        let all: u64 = senders.iter().map(Congestion::limit).sum();
        let over = 1000 * all.saturating_sub(capacity) / all;
        let (marked, collided) = if link { (over, 0) } else { (0, over) };
        for (sender, sum) in senders.iter_mut().zip(&mut sums) {
            round(sender, &mut CongestionStats::default(), marked, collided);
            *sum += if n >= ROUNDS - LAST {
                sender.limit()
            } else {
                0
            };
        }
    }
    sums.map(|sum| sum as f64 / f64::from(LAST))
}

#[test]
fn five_in_eight_of_a_window_may_be_unfinished_and_at_least_one() {
    let windows = [1, 2, 3, 8, 16, 256, u16::MAX];
    assert_eq!(windows.map(in_flight), [1, 2, 2, 5, 10, 160, 40_960]);
}

#[test]
fn both_windows_begin_wide_open_and_stay_so_without_congestion() {
    let mut c = Congestion::new(256);
    assert_eq!((c.windows(), c.limit()), ((256, 256), 256));
    quiet(&mut c, 100);
    assert_eq!(c.windows(), (256, 256));
}

#[test]
fn the_first_rounds_are_those_of_the_specification() {
    let mut c = Congestion::new(1000);
    let mut stats = CongestionStats::default();
    // a = 1/8, L = 1000 * 15/16; A is cut down to it.
    round(&mut c, &mut stats, 1000, 0);
    assert_eq!(c.windows(), (937, 937));
    assert_eq!(stats.rounds_marked, 1);
    // a = 15/64: 937.5 * (1 - 15/128)
    round(&mut c, &mut stats, 1000, 0);
    assert_eq!(c.windows(), (827, 827));
    round(&mut c, &mut stats, 0, 0);
    assert_eq!(c.windows(), (828, 828));

    let mut c = Congestion::new(1000);
    // b = 1/8: 1000 * (1 - 0.025/1.9)
    round(&mut c, &mut stats, 0, 1000);
    assert_eq!(c.windows(), (1000, 986));
    // b = 15/64, rounded down here and there: 986.8 * (1 - 0.134375/1.9)
    round(&mut c, &mut stats, 0, 1000);
    assert_eq!(c.windows(), (1000, 917));
    round(&mut c, &mut stats, 0, 0);
    assert_eq!(c.windows(), (1000, 918));
    let want = CongestionStats {
        rounds: 6,
        rounds_marked: 2,
        rounds_collided: 2,
        link_window_min: 827,
        aggregation_window_min: 827,
    };
    assert_eq!(stats, want);
}

#[test]
fn one_collision_in_ten_is_what_a_shared_pool_is_for() {
    let mut c = Congestion::new(200);
    let mut stats = CongestionStats::default();
    for _ in 0..1000 {
        round(&mut c, &mut stats, 0, 100);
    }
    assert_eq!(c.windows(), (200, 200));
    assert_eq!(stats.rounds_collided, 1000);
    for _ in 0..1000 {
        round(&mut c, &mut stats, 0, 200);
    }
    assert!(c.windows().1 < 20, "{:?}", c.windows());
}

#[test]
fn a_full_pool_leaves_the_link_window_alone() {
    let mut c = Congestion::new(256);
    for _ in 0..100 {
        round(&mut c, &mut CongestionStats::default(), 0, 1000);
    }
    assert_eq!(c.windows(), (256, 1));
}

#[test]
fn a_full_link_leaves_the_aggregation_window_at_the_link_window() {
    let mut c = Congestion::new(256);
    for _ in 0..1000 {
        round(&mut c, &mut CongestionStats::default(), 500, 0);
        let (link, aggregation) = c.windows();
        assert_eq!(link, aggregation);
    }
    assert!(c.windows().0 < 10);
}

#[test]
fn two_senders_share_a_link_fairly() {
    for begin in [[256, 256], [256, 1], [10, 200]] {
        let [a, b] = share([256, 256], begin, 100, true);
        println!("link, from {begin:?}: {a} and {b}");
        assert!((a - b).abs() < 0.1 * a.max(b), "{a} and {b}");
        assert!((70.0..120.0).contains(&(a + b)), "{a} and {b}");
    }
}

#[test]
fn two_senders_share_a_pool_fairly() {
    for begin in [[256, 256], [256, 1], [10, 200]] {
        let [a, b] = share([256, 256], begin, 100, false);
        println!("pool, from {begin:?}: {a} and {b}");
        assert!((a - b).abs() < 0.1 * a.max(b), "{a} and {b}");
        // A tenth of collisions is allowed: 111 fragments.
        assert!((90.0..130.0).contains(&(a + b)), "{a} and {b}");
    }
}

#[test]
fn a_sender_that_wants_less_than_its_share_gets_it_and_leaves_the_rest() {
    for link in [true, false] {
        let [a, b] = share([256, 20], [256, 20], 100, link);
        println!("link {link}: {a} and {b}");
        assert!(a > 3.0 * b && b > 9.0, "{a} and {b}");
    }
}

#[test]
fn a_job_that_is_alone_again_gets_everything_back() {
    for (marked, collided) in [(1000, 0), (0, 1000), (1000, 1000)] {
        let mut c = Congestion::new(128);
        for _ in 0..200 {
            round(&mut c, &mut CongestionStats::default(), marked, collided);
        }
        assert_eq!(c.limit(), 1);
        quiet(&mut c, 127);
        assert_eq!(c.windows(), (128, 128));
    }
}

#[test]
fn a_single_mark_among_hundreds_costs_next_to_nothing() {
    let mut c = Congestion::new(500);
    c.result(true, false, &mut CongestionStats::default());
    quiet(&mut c, 1);
    assert_eq!(c.windows(), (499, 499));
}

proptest! {
    #[test]
    fn windows_stay_between_one_and_the_configured_one(
        window in 1u16..,
        results in prop::collection::vec((any::<bool>(), any::<bool>()), 0..2000),
        start in 1u64..70_000,
    ) {
        let mut c = Congestion::new(window);
        c.aggregation = (start * ONE).min(c.max);
        for (marked, collided) in results {
            c.result(marked, collided, &mut CongestionStats::default());
            let (link, aggregation) = c.windows();
            prop_assert!(1 <= aggregation && aggregation <= link);
            prop_assert!(link <= u32::from(window));
            prop_assert_eq!(c.limit(), u64::from(aggregation));
        }
    }
}
