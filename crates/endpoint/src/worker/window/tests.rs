use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Time {
    Time(ms * MS)
}

fn send(w: &mut Window, now: Time) {
    w.sent_new(now, Element::I32, 0);
}

fn take(w: &mut Window, now: Time, n: u32) -> Taken {
    w.take(now, FragmentId(n), Element::I32, false)
}

fn drain(w: &mut Window, now: Time) -> Vec<(u64, Cause)> {
    let mut out = Vec::new();
    while let Some(again) = w.pop_retransmit() {
        w.retransmitted(now, &again);
        out.push((again.seq, again.cause));
    }
    out
}

#[test]
fn the_window_opens_only_from_its_lower_end() {
    let mut w = Window::new(0, 3);
    for _ in 0..3 {
        assert!(w.may_send());
        send(&mut w, at(0));
    }
    assert!(!w.may_send());
    take(&mut w, at(1), 1);
    take(&mut w, at(1), 2);
    assert!(!w.may_send(), "W-2: 0 has no result");
    take(&mut w, at(1), 0);
    assert_eq!(w.base(), 3);
    assert!(w.may_send());
}

#[test]
fn a_window_can_be_made_smaller_and_not_larger() {
    let mut w = Window::new(0, 3);
    w.narrow(2);
    w.narrow(9);
    send(&mut w, at(0));
    send(&mut w, at(0));
    assert!(!w.may_send());
}

#[test]
fn results_are_taken_once_and_only_for_what_was_sent() {
    let mut w = Window::new(0, 4);
    assert_eq!(take(&mut w, at(0), 0), Taken::Foreign);
    send(&mut w, at(0));
    let other = w.take(at(0), FragmentId(0), Element::F32, false);
    assert_eq!(other, Taken::Foreign);
    let latency = Duration::from_millis(3);
    assert_eq!(take(&mut w, at(3), 0), Taken::New { seq: 0, latency });
    assert_eq!(take(&mut w, at(3), 0), Taken::Duplicate);
    assert_eq!(take(&mut w, at(3), 1), Taken::Foreign);
    assert_eq!(take(&mut w, at(3), u32::MAX), Taken::Foreign);
}

#[test]
fn numbers_wrap() {
    let first = (1 << 32) - 2;
    let mut w = Window::new(first, 4);
    for i in 0..4u32 {
        send(&mut w, at(0));
        let _ = i;
    }
    assert_eq!(w.next(), first + 4);
    for n in [1, u32::MAX, 0, u32::MAX - 1] {
        assert!(matches!(take(&mut w, at(1), n), Taken::New { .. }), "{n}");
    }
    assert_eq!(w.base(), first + 4);
    assert_eq!(take(&mut w, at(1), u32::MAX), Taken::Duplicate);
}

#[test]
fn a_timeout_sends_a_probe_and_doubles() {
    let mut w = Window::new(0, 4);
    for _ in 0..3 {
        send(&mut w, at(0));
    }
    assert_eq!(w.deadline(), Some(at(50)));
    w.expire(at(49));
    assert_eq!(drain(&mut w, at(49)), []);
    w.expire(at(50));
    assert_eq!(w.deadline(), None, "waits in the queue");
    assert_eq!(
        drain(&mut w, at(50)),
        [(0, Cause::Timeout)],
        "the oldest only"
    );
    for n in 2..=7 {
        assert_eq!(w.deadline(), Some(at(50 * n)), "as long as the first");
        w.expire(at(50 * n));
        assert_eq!(drain(&mut w, at(50 * n)), [(0, Cause::Timeout)]);
    }
    assert_eq!(w.deadline(), Some(at(450)), "twice as long");
    for _ in 0..20 {
        let next = w.deadline().unwrap();
        w.expire(next);
        assert_eq!(drain(&mut w, next).len(), 1);
        assert!(w.deadline().unwrap().since(next) <= RTO.max);
    }
    assert_eq!(w.rtt().path(), None);
    assert!(matches!(take(&mut w, at(99_999), 0), Taken::New { .. }));
    assert_eq!(w.rtt().path(), None, "Karn");
    assert_eq!(w.rto(), RTO.initial, "progress ends the doubling");
}

#[test]
fn the_result_of_a_probe_shows_what_else_was_lost() {
    let mut w = Window::new(0, 4);
    for _ in 0..4 {
        send(&mut w, at(0));
    }
    w.expire(at(50));
    assert_eq!(drain(&mut w, at(50)), [(0, Cause::Timeout)]);
    take(&mut w, at(54), 0);
    let lost = [1, 2, 3].map(|n| (n, Cause::Early));
    assert_eq!(drain(&mut w, at(54)), lost);
}

#[test]
fn a_worker_that_was_asleep_sends_one_frame_in_vain_and_not_a_window() {
    let mut w = Window::new(0, 100);
    send(&mut w, at(0));
    take(&mut w, at(1), 0);
    for _ in 0..100 {
        send(&mut w, at(1));
    }
    // All results are there, but the timer is looked at first.
    w.expire(at(40));
    assert_eq!(drain(&mut w, at(40)).len(), 1);
    for n in 1..=100 {
        take(&mut w, at(40), n);
    }
    assert_eq!(drain(&mut w, at(40)), []);
}

#[test]
fn later_fragments_with_results_show_a_loss() {
    let mut w = Window::new(0, 99);
    send(&mut w, at(0));
    send(&mut w, at(0));
    send(&mut w, at(2));
    take(&mut w, at(1), 1);
    assert_eq!(drain(&mut w, at(1)), [], "sent at the same time");
    take(&mut w, at(4), 2);
    assert_eq!(drain(&mut w, at(4)), [(0, Cause::Early)]);
    // 1 ms at first; after a probe a path time more.
    send(&mut w, at(5));
    take(&mut w, at(7), 3);
    assert_eq!(drain(&mut w, at(7)), []);
    send(&mut w, at(7));
    take(&mut w, at(8), 4);
    assert_eq!(drain(&mut w, at(8)), [(0, Cause::Early)]);
}

/// The result of a probe needs the one rank that was asked; a fragment sent once needs the slowest.
#[test]
fn the_result_of_a_probe_says_little_of_fragments_sent_before_it() {
    let mut w = Window::new(0, 99);
    send(&mut w, at(0));
    take(&mut w, at(4), 0);
    for _ in 0..4 {
        send(&mut w, at(4));
    }
    // Both were asked for an RTO after they were sent.
    for n in [1, 2] {
        assert_eq!(w.asked(at(12), FragmentId(n)), Asked::Data);
    }
    drain(&mut w, at(8));
    take(&mut w, at(12), 1);
    assert_eq!(
        drain(&mut w, at(12)),
        [],
        "4 ms older, 1 ms and a path time are allowed"
    );
    assert_eq!(w.asked(at(20), FragmentId(2)), Asked::Data);
    drain(&mut w, at(10));
    take(&mut w, at(14), 2);
    let lost = [3, 4].map(|n| (n, Cause::Early));
    assert_eq!(drain(&mut w, at(14)), lost, "6 ms older");
}

#[test]
fn on_a_fast_path_a_loss_shows_within_an_eighth_of_the_path_time() {
    let us = |n: u64| Time(n * 1000);
    let mut w = Window::new(0, 99);
    send(&mut w, us(0));
    take(&mut w, us(12), 0);
    // 1 is lost.
    for n in [12, 13, 15] {
        send(&mut w, us(n));
    }
    assert_eq!(w.rto(), Duration::from_micros(48), "four medians");
    take(&mut w, us(25), 2);
    assert_eq!(drain(&mut w, us(25)), [], "1 us later may be reordering");
    take(&mut w, us(27), 3);
    assert_eq!(drain(&mut w, us(27)), [(1, Cause::Early)], "3 us may not");
    // The answer is lost, too.
    send(&mut w, us(40));
    send(&mut w, us(41));
    take(&mut w, us(52), 4);
    assert_eq!(drain(&mut w, us(52)), [], "13 us after the probe");
    take(&mut w, us(53), 5);
    assert_eq!(drain(&mut w, us(53)), [(1, Cause::Early)]);
}

/// Batches make fragments overtake others by as much as they make most of them late.
#[test]
fn on_a_fast_path_batches_are_not_taken_for_losses() {
    let us = |n: u64| Time(n * 1000);
    let mut w = Window::new(0, 99);
    send(&mut w, us(0));
    take(&mut w, us(10), 0);
    for n in 1..40_u32 {
        send(&mut w, us(100 * u64::from(n)));
        take(&mut w, us(100 * u64::from(n) + 20), n);
    }
    for n in 0..3 {
        send(&mut w, us(5000 + 6 * n));
    }
    take(&mut w, us(5026), 41);
    assert_eq!(drain(&mut w, us(5026)), [], "6 us later may be a batch");
    take(&mut w, us(5032), 42);
    assert_eq!(drain(&mut w, us(5032)), [(40, Cause::Early)]);
}

#[test]
fn while_collisions_happen_a_fast_path_has_the_timeout_of_others() {
    let us = |n: u64| Time(n * 1000);
    let mut w = Window::new(0, 4);
    send(&mut w, us(0));
    take(&mut w, us(10), 0);
    assert_eq!(w.rto(), Duration::from_micros(40));
    send(&mut w, us(20));
    w.take(us(30), FragmentId(1), Element::I32, true);
    assert_eq!(w.rto(), Duration::from_micros(200));
    // Eight windows without a collision.
    for n in 2..40_u32 {
        send(&mut w, us(20 * u64::from(n)));
        take(&mut w, us(20 * u64::from(n) + 10), n);
    }
    assert!(w.rto() < Duration::from_micros(50));
}

#[test]
fn in_a_burst_on_a_slow_host_the_number_of_later_fragments_shows_a_loss() {
    for (slow, lost) in [(true, vec![(0, Cause::Early)]), (false, vec![])] {
        let mut w = Window::new(0, 99);
        for _ in 0..60 {
            send(&mut w, at(0));
        }
        let then = if slow { at(1) } else { Time(MS / 10) };
        for n in 1..=16 {
            take(&mut w, then, n);
        }
        assert_eq!(drain(&mut w, then), [], "16 later ones may be reordering");
        take(&mut w, then, 17);
        assert_eq!(drain(&mut w, then), lost, "slow: {slow}");
        if slow {
            for n in 18..60 {
                take(&mut w, at(2), n);
            }
            assert_eq!(drain(&mut w, at(2)), [], "sent again after all of them");
        }
    }
}

#[test]
fn a_result_that_comes_too_soon_after_a_resend_says_nothing_of_it() {
    let mut w = Window::new(0, 9);
    send(&mut w, at(0));
    take(&mut w, at(4), 0);
    send(&mut w, at(5));
    send(&mut w, at(5));
    assert_eq!(w.asked(at(1000), FragmentId(1)), Asked::Data);
    drain(&mut w, at(20));
    // 1 ms after the resend, where 4 ms is the least: it answers the first sending.
    take(&mut w, at(21), 1);
    assert_eq!(drain(&mut w, at(21)), []);
}

#[test]
fn nacks_are_answered_as_r_3_wants() {
    let mut w = Window::new(0, 4);
    assert_eq!(
        w.asked(at(1000), FragmentId(0)),
        Asked::Nothing,
        "not sent yet"
    );
    for _ in 0..4 {
        send(&mut w, at(0));
    }
    take(&mut w, at(1), 0);
    take(&mut w, at(1), 2);
    assert_eq!(w.asked(at(1000), FragmentId(0)), Asked::Result { seq: 0 });
    assert_eq!(w.asked(at(1000), FragmentId(2)), Asked::Result { seq: 2 });
    assert_eq!(w.asked(at(1000), FragmentId(1)), Asked::Data);
    assert_eq!(w.asked(at(1000), FragmentId(1)), Asked::Data, "queued once");
    assert_eq!(w.asked(at(1000), FragmentId(4)), Asked::Nothing);
    assert_eq!(drain(&mut w, at(1)), [(1, Cause::Nack)]);
    for n in [1, 3] {
        take(&mut w, at(2), n);
    }
    assert_eq!(drain(&mut w, at(2)), []);
    for n in 4..20 {
        send(&mut w, at(3));
        take(&mut w, at(3), n);
    }
    assert_eq!(w.asked(at(1000), FragmentId(11)), Asked::Nothing, "too old");
    assert_eq!(w.asked(at(1000), FragmentId(12)), Asked::Result { seq: 12 });
}

proptest! {
    /// Against a model that scans: nothing in flight is forgotten, nothing is sent again after
    /// its result, and the window rule holds.
    #[test]
    fn nothing_is_forgotten(
        width in 1u16..9,
        steps in prop::collection::vec((0u8..5, 0u32..16, 0u64..30), 0..300),
    ) {
        let first = (1u64 << 32) - 20;
        let mut w = Window::new(first, width);
        let mut done = std::collections::BTreeSet::new();
        let mut now = Time(0);
        for (what, n, ms) in steps {
            now = now.after(Duration::from_millis(ms));
            match what {
                // As the session does: what is lost goes first.
                0 | 1 if !drain(&mut w, now).is_empty() => {}
                0 | 1 => if w.may_send() {
                    let gap = (first..w.next()).find(|s| !done.contains(s)).unwrap_or(w.next());
                    prop_assert!(w.next() < gap + u64::from(width), "W-2");
                    send(&mut w, now);
                },
                2 => {
                    let seq = w.base() + u64::from(n);
                    let sent = seq < w.next();
                    match take(&mut w, now, seq as u32) {
                        Taken::New { seq: s, .. } => {
                            prop_assert!(s == seq && sent);
                            prop_assert!(done.insert(seq));
                        }
                        Taken::Duplicate => prop_assert!(done.contains(&seq)),
                        Taken::Foreign => prop_assert!(!sent),
                    }
                }
                3 => {
                    w.expire(now);
                    for (seq, _) in drain(&mut w, now) {
                        prop_assert!(!done.contains(&seq));
                    }
                }
                _ => {
                    let seq = w.base() + u64::from(n);
                    w.asked(at(1000), FragmentId(seq as u32));
                }
            }
            let in_flight = (w.base()..w.next()).filter(|s| !done.contains(s)).count();
            prop_assert_eq!(w.unfinished(), in_flight as u64);
            let timed = w.deadline().is_some();
            let queued = w.queue.iter().any(|&s| s >= w.base());
            prop_assert!(in_flight == 0 || timed || queued);
            prop_assert!(w.queue.len() <= w.entries.len());
        }
        // From here on nothing is lost any more.
        while w.base() < w.next() {
            now = now.max(w.deadline().unwrap_or(now));
            w.expire(now);
            for (seq, _) in drain(&mut w, now) {
                take(&mut w, now, seq as u32);
            }
        }
        prop_assert_eq!(w.deadline(), None);
    }
}

/// The fragments of others overtake one that the PS finishes; that does not make it lost.
#[test]
fn what_takes_the_way_over_the_ps_has_the_time_for_it() {
    let us = |n: u64| Time(n * 1000);
    let mut w = Window::new(0, 256);
    for n in 0..4 {
        send(&mut w, us(n));
    }
    for n in [1, 2, 3] {
        take(&mut w, us(10), n);
    }
    let probed = drain(&mut w, us(10));
    assert_eq!(probed, [(0, Cause::Early)], "no collision is known yet");
    w.take(us(70), FragmentId(0), Element::I32, true);
    for n in 4..104_u32 {
        send(&mut w, us(70 + u64::from(n)));
    }
    for n in 5..104 {
        take(&mut w, us(80 + u64::from(n)), n);
    }
    assert_eq!(w.pop_retransmit(), None, "99 have overtaken it");
    for n in 104..250_u32 {
        send(&mut w, us(70 + u64::from(n)));
    }
    for n in 104..250_u32 {
        take(&mut w, us(80 + u64::from(n)), n);
    }
    assert_eq!(
        w.pop_retransmit().map(|again| again.seq),
        Some(4),
        "too late"
    );
}

/// as many workers ask for a lost contribution as miss its result.
#[test]
fn a_nack_for_what_was_just_sent_is_not_answered() {
    let mut w = Window::new(0, 9);
    send(&mut w, at(0));
    take(&mut w, at(4), 0);
    send(&mut w, at(5));
    let rto = w.rto().as_millis() as u64;
    let mut sent = 5;
    for _ in 0..2 {
        let lost = sent + rto;
        for ms in sent..lost {
            assert_eq!(w.asked(at(ms), FragmentId(1)), Asked::Nothing, "{ms} ms");
        }
        assert_eq!(w.asked(at(lost), FragmentId(1)), Asked::Data);
        assert_eq!(drain(&mut w, at(lost)), [(1, Cause::Nack)]);
        sent = lost;
    }
}

/// a window waits in the queue of a slow link for longer than any timeout.
#[test]
fn a_contribution_is_in_flight_while_those_before_it_get_results() {
    let mut w = Window::new(0, 99);
    send(&mut w, at(0));
    take(&mut w, at(4), 0);
    for _ in 0..50 {
        send(&mut w, at(10));
    }
    // The link takes 2 ms a frame.
    for n in 1..49 {
        let now = at(12 + 2 * u64::from(n));
        assert_eq!(w.asked(now, FragmentId(49)), Asked::Nothing, "{now:?}");
        take(&mut w, now, n);
    }
    take(&mut w, at(112), 50);
    assert_eq!(w.asked(at(112), FragmentId(49)), Asked::Data, "overtaken");
}

/// the result of a retransmission overtakes, too, as nothing else may come.
#[test]
fn a_retransmission_that_was_lost_is_overtaken_by_others() {
    let mut w = Window::new(0, 9);
    send(&mut w, at(0));
    take(&mut w, at(4), 0);
    for _ in 0..3 {
        send(&mut w, at(5));
    }
    for n in [1, 2] {
        assert_eq!(w.asked(at(30), FragmentId(n)), Asked::Data);
    }
    assert_eq!(drain(&mut w, at(30)).len(), 2);
    assert_eq!(w.asked(at(34), FragmentId(1)), Asked::Nothing);
    take(&mut w, at(34), 2);
    assert_eq!(w.asked(at(34), FragmentId(1)), Asked::Data);
}

/// the end of a message on a slow link, where results come and nothing is left to send.
#[test]
fn no_timeout_passes_while_results_come() {
    let mut w = Window::new(0, 99);
    send(&mut w, at(0));
    take(&mut w, at(4), 0);
    for _ in 0..20 {
        send(&mut w, at(10));
    }
    for n in 1..=10 {
        let now = at(12 + 2 * u64::from(n));
        assert!(w.deadline().unwrap() > now);
        take(&mut w, now, n);
    }
    w.expire(at(40));
    assert_eq!(drain(&mut w, at(40)), [(11, Cause::Timeout)], "since 32 ms");
    // It was probed: only a duplicate says that this was too early.
    take(&mut w, at(42), 12);
    assert_eq!(w.deadline(), Some(at(48)));
    assert_eq!(take(&mut w, at(43), 12), Taken::Duplicate);
    assert_eq!(w.deadline(), Some(at(51)));
}

/// A NACK for what waits to be probed makes it a retransmission.
#[test]
fn a_nack_overtakes_a_probe() {
    let mut w = Window::new(0, 9);
    send(&mut w, at(0));
    w.expire(at(50));
    assert_eq!(w.asked(at(50), FragmentId(0)), Asked::Data);
    assert_eq!(drain(&mut w, at(50)), [(0, Cause::Nack)]);
}

/// After a burst of losses the timeout probes all that it has probed before, and not one by one.
#[test]
fn a_timeout_probes_what_was_probed_before() {
    let mut w = Window::new(0, 9);
    for _ in 0..4 {
        send(&mut w, at(0));
    }
    w.expire(at(50));
    assert_eq!(drain(&mut w, at(50)), [(0, Cause::Timeout)]);
    take(&mut w, at(54), 0);
    assert_eq!(drain(&mut w, at(54)).len(), 3, "early");
    let at_timeout = w.deadline().unwrap();
    w.expire(at_timeout);
    let again = [1, 2, 3].map(|n| (n, Cause::Timeout));
    assert_eq!(drain(&mut w, at_timeout), again);
}

/// Results of others reset the timeout; what was probed often backs off all the same, or the probes
/// of all workers fill the queue to the PS (found by the simulator).
#[test]
fn what_was_probed_often_is_probed_less_often() {
    let mut w = Window::new(0, 9);
    send(&mut w, at(0));
    take(&mut w, at(1), 0);
    send(&mut w, at(1));
    send(&mut w, at(1));
    assert_eq!(w.asked(at(9), FragmentId(2)), Asked::Data);
    drain(&mut w, at(9));
    let mut probes = [0; 3];
    for _ in 0..100 {
        let due = w.deadline().unwrap();
        w.timeouts = 0;
        w.expire(due);
        for (seq, _) in drain(&mut w, due) {
            probes[seq as usize] += 1;
        }
    }
    assert_eq!(probes[1], 100, "the oldest, which the window waits for");
    assert!((8..20).contains(&probes[2]), "{probes:?}");
}

#[test]
fn probes_answered_twice_make_cautious_and_others_do_not() {
    let mut w = Window::new(0, 64);
    let sum = |w: &mut Window, duplicates: u32, windows: u32| {
        for n in 0..windows * 64 {
            let now = at(4 * w.next());
            send(w, now);
            let seq = w.next() as u32 - 1;
            take(w, now.after(Duration::from_millis(2)), seq);
            if n % 64 < duplicates {
                assert_eq!(
                    take(w, now.after(Duration::from_millis(3)), seq),
                    Taken::Duplicate
                );
            }
        }
        (w.rto(), w.answer())
    };
    let ms = Duration::from_millis;
    assert_eq!(sum(&mut w, 0, 4), (ms(4), ms(2)));
    assert_eq!(sum(&mut w, 4, 4), (ms(4), ms(2)), "1 in 17");
    let (rto, answer) = sum(&mut w, 32, 20);
    assert_eq!(w.caution, CAUTION_MAX);
    assert!(rto == RTO.usual && answer > ms(12), "{rto:?} {answer:?}");
    assert_eq!(sum(&mut w, 0, 20), (ms(4), ms(2)));
}
