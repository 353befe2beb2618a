use super::*;
use proptest::prelude::*;

fn demand(priority: u8, work: u64, job: u16) -> Demand {
    Demand {
        control: false,
        priority,
        work,
        job,
    }
}

/// Sessions with frames to send, at a NIC that has room for some frames a round.
struct Nic {
    order: NicOrder,
    /// By session: frames, and its demand while it has some.
    sessions: Vec<(usize, Demand)>,
    /// Sessions by the frames that left.
    left: Vec<usize>,
}

impl Nic {
    fn new(sessions: &[(usize, Demand)]) -> Self {
        Self {
            order: NicOrder::default(),
            sessions: sessions.to_vec(),
            left: Vec::new(),
        }
    }

    /// One round; whether the NIC was full.
    fn round(&mut self, mut room: usize) -> bool {
        for (at, (frames, demand)) in self.sessions.iter().enumerate() {
            if *frames > 0 {
                self.order.offer(at, *demand);
            }
        }
        while let Some(Turn { at, most }) = self.order.next() {
            let (frames, demand) = &mut self.sessions[at];
            let sent = (*frames).min(most).min(room);
            *frames -= sent;
            room -= sent;
            demand.control &= sent == 0;
            self.left.extend(std::iter::repeat_n(at, sent));
            self.order.sent(sent, *frames == 0);
            if room == 0 {
                break;
            }
        }
        self.order.end();
        room == 0
    }

    fn count(&self, at: usize, frames: core::ops::Range<usize>) -> usize {
        self.left[frames].iter().filter(|it| **it == at).count()
    }
}

#[test]
fn priority_comes_first_then_least_work_then_the_job_number() {
    let demands = [
        demand(9, 5, 1),
        demand(9, 4, 3),
        demand(9, 4, 2),
        demand(10, 100, 4),
    ];
    let mut nic = Nic::new(&demands.map(|it| (2, it)));
    nic.round(100);
    assert_eq!(nic.left, [3, 3, 2, 2, 1, 1, 0, 0]);
}

#[test]
fn a_control_frame_leaves_before_all_elements_and_only_one_a_round() {
    let mut last = demand(1, 9, 9);
    last.control = true;
    let mut nic = Nic::new(&[(100, demand(200, 0, 1)), (100, last)]);
    nic.round(8);
    assert_eq!(nic.left, [1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn one_frame_in_seventeen_is_for_those_passed_over() {
    let sessions = [
        (10_000, demand(200, 0, 1)),
        (10_000, demand(2, 0, 2)),
        (10_000, demand(1, 0, 3)),
    ];
    let mut nic = Nic::new(&sessions);
    for _ in 0..1000 {
        nic.round(5);
    }
    let all = nic.left.len();
    let [first, second, third] = [0, 1, 2].map(|at| nic.count(at, 0..all));
    assert!((first * 17).abs_diff(all * 16) <= 17 * 17, "{first}");
    assert!(second.abs_diff(third) <= 1, "{second} {third}");
}

#[test]
fn jobs_that_are_alike_do_not_take_turns() {
    assert_eq!(
        [0, 1 << 13, 1 << 14, (1 << 15) - 1].map(octave),
        [0, 0, 1 << 14, 1 << 14]
    );
}

proptest! {
    /// Rules 1 to 4, for any sessions and any room.
    #[test]
    fn any_round_keeps_the_rules(
        sessions in prop::collection::vec((0usize..300, 0u8..4, 0u64..4), 1..9),
        rooms in prop::collection::vec(1usize..40, 1..400),
    ) {
        let sessions: Vec<_> = sessions
            .iter()
            .zip(0..)
            .map(|(&(frames, priority, work), job)| (frames, demand(priority, work, job)))
            .collect();
        let mut nic = Nic::new(&sessions);
        let n = sessions.len();
        let (mut waits, mut owed) = (vec![0; n], 0);
        for room in rooms {
            let before = nic.left.len();
            let had: usize = nic.sessions.iter().map(|it| it.0).sum();
            let first = (0..n).filter(|at| nic.sessions[*at].0 > 0);
            let first = first.min_by_key(|at| key(&nic.sessions[*at].1));
            nic.round(room);
            let sent = nic.left.len() - before;
            prop_assert_eq!(sent, room.min(had), "no idling");
            let Some(first) = first else { break };
            // All but what the guard is owed is the first's, as long as it has some.
            let of_first = nic.count(first, before..nic.left.len());
            owed += sent;
            if nic.sessions[first].0 > 0 {
                prop_assert!(sent - of_first <= owed / GUARD, "order");
                owed -= GUARD * (sent - of_first);
            }
            for (at, wait) in waits.iter_mut().enumerate() {
                let served = nic.count(at, before..nic.left.len()) > 0;
                *wait = if served || nic.sessions[at].0 == 0 { 0 } else { *wait + sent };
                // A round is up to 39 frames more.
                prop_assert!(*wait <= n * (GUARD + 1 + 40), "starved for {} frames", wait);
            }
        }
    }
}
