//! Sessions over real sockets on the loopback interface, against the endpoint tests' naive switch,
//! with losses.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use rig::Rig;
use rig::common::Rng;
use rig::common::switch::{Habits, MAC, Switch};
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tally_agent::link::loss::Loss;
use tally_agent::link::udp::Group;
use tally_agent::link::{Link, LinkError, open_link};
use tally_agent::session::{
    Collective, CollectiveKind, Done, Priority, Refused, Session, SessionState,
};
use tally_agent::{AgentError, Arithmetic, Dtype};
use tally_endpoint::{Ecn, Transmit};
use tally_wire::Mac;

const HABITS: Habits = Habits {
    collide: 100,
    preempt: 100,
    mark: 50,
};

fn collective(
    kind: CollectiveKind,
    dtype: Dtype,
    arithmetic: Arithmetic,
    name: &str,
) -> Collective {
    Collective {
        kind,
        dtype,
        arithmetic,
        name: name.into(),
        priority: Priority::FIRST,
        more_follow: false,
    }
}

fn sum(arithmetic: Arithmetic, name: &str) -> Collective {
    collective(CollectiveKind::Sum, Dtype::F32, arithmetic, name)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn content(done: &Done) -> Vec<u8> {
    let mut bytes = vec![0; done.buffer.bytes()];
    done.buffer.read(0, &mut bytes);
    bytes
}

fn floats(done: &Done) -> Vec<f32> {
    let bytes = content(done);
    let words = bytes.as_chunks().0.iter();
    words.map(|b| f32::from_ne_bytes(*b)).collect()
}

/// A rank's elements: whole numbers, whose sums are exact however they are made.
fn whole(rank: u8, elements: usize) -> Vec<f32> {
    let mut rng = Rng(u64::from(rank) << 32 | elements as u64);
    (0..elements)
        .map(|_| (rng.below(2000) as f32) - 1000.0)
        .collect()
}

fn sum_of_whole(workers: u8, elements: usize) -> Vec<f32> {
    let all: Vec<_> = (0..workers).map(|r| whole(r, elements)).collect();
    (0..elements)
        .map(|i| all.iter().map(|v| v[i]).sum())
        .collect()
}

/// Turns until `ready` says so, for 30 s at most.
fn until(
    session: &mut Session,
    mut ready: impl FnMut(&mut Session) -> bool,
) -> Result<(), AgentError> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ready(session) {
        assert!(Instant::now() < deadline, "{:?}", session.report());
        if !session.turn()? {
            session.wait(Duration::from_millis(20))?;
        }
    }
    Ok(())
}

/// The next that is done.
fn next(session: &mut Session) -> Result<Done, AgentError> {
    let mut done = None;
    until(session, |s| {
        done = done.take().or_else(|| s.done());
        done.is_some()
    })?;
    Ok(done.unwrap())
}

fn leave(session: &mut Session) {
    session.finish();
    until(session, |s| s.is_finished()).unwrap();
}

fn open(rig: &Rig, rank: u8) -> Session {
    let loss = Loss::of_each(0.03, 100 + u64::from(rank));
    Session::open(&rig.worker(rank), Some(loss)).unwrap()
}

/// `work` at all ranks at once.
fn all<T: Send>(rig: &Rig, work: impl Fn(u8, Session) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |rank| scope.spawn(move || work(rank, open(rig, rank)));
        let threads: Vec<_> = (0..rig.workers).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn collectives_come_back_in_order_under_loss() {
    let rig = Rig::new(3, HABITS, true);
    all(&rig, |rank, mut session| {
        // Before the job has begun, several at once, empty and small and long ones.
        let sizes = [0, 1, 63, 64, 65, 5001];
        for (i, n) in sizes.iter().enumerate() {
            let arithmetic = [Arithmetic::Fixed, Arithmetic::Native][i % 2];
            let bytes = bytes_of(&whole(rank, *n));
            let ticket = session
                .submit(sum(arithmetic, "w"), Box::new(bytes))
                .unwrap();
            assert_eq!(ticket.0, i as u64);
        }
        for _ in sizes {
            let done = next(&mut session).unwrap();
            let n = sizes[done.ticket.0 as usize];
            assert_eq!(floats(&done), sum_of_whole(3, n), "{n} elements");
        }
        // And then one at a time, as a step needs them.
        for step in 0..20 {
            let n = 100 * step + 1;
            let bytes = bytes_of(&whole(rank, n));
            session
                .submit(sum(Arithmetic::Native, "step"), Box::new(bytes))
                .unwrap();
            let done = next(&mut session).unwrap();
            assert_eq!(floats(&done), sum_of_whole(3, n));
            assert!(done.seconds > 0.0);
        }
        leave(&mut session);
        let report = session.report();
        assert_eq!(report.collectives, 26);
        assert_eq!(report.waiting, 0);
        assert_eq!(report.fragments, report.from_switch + report.from_ps);
        assert!(report.from_ps > 0, "the switch gave some away");
        let again = report.retransmissions;
        assert!(
            again.timeout + again.early + again.nack > 0,
            "some were lost"
        );
        let refused = session.submit(sum(Arithmetic::Fixed, "late"), Box::new(Vec::new()));
        assert_eq!(refused.unwrap_err(), Refused::Over);
    });
}

#[test]
fn every_root_broadcasts_bit_by_bit() {
    let rig = Rig::new(3, HABITS, true);
    all(&rig, |rank, mut session| {
        let own = |root: u8, rank: u8| {
            let mut rng = Rng(u64::from(root) << 8 | u64::from(rank));
            // Signalling NaNs with payloads among them, and an odd number of bytes.
            let mut bytes: Vec<u8> = (0..999).map(|_| rng.next() as u8).collect();
            bytes[..4].copy_from_slice(&0x7f80_1234u32.to_ne_bytes());
            bytes
        };
        for root in 0..3 {
            let kind = CollectiveKind::Broadcast { root };
            let c = collective(kind, Dtype::I8, Arithmetic::Own, "parameters");
            session.submit(c, Box::new(own(root as u8, rank))).unwrap();
        }
        session
            .submit(Collective::barrier("ready"), Box::new(Vec::new()))
            .unwrap();
        for _ in 0..4 {
            let done = next(&mut session).unwrap();
            if done.ticket.0 < 3 {
                let root = done.ticket.0 as u8;
                assert_eq!(content(&done), own(root, root));
            }
        }
        leave(&mut session);
    });
}

#[test]
fn nan_and_infinity_arrive_everywhere() {
    let rig = Rig::new(2, Habits::default(), true);
    all(&rig, |rank, mut session| {
        for arithmetic in [Arithmetic::Native, Arithmetic::Own, Arithmetic::Fixed] {
            let mut values = vec![1.0; 200];
            if rank == 1 {
                values[70] = f32::NEG_INFINITY;
                values[71] = f32::NAN;
            }
            session
                .submit(sum(arithmetic, "w"), Box::new(bytes_of(&values)))
                .unwrap();
            let got = floats(&next(&mut session).unwrap());
            assert!(got[71].is_nan());
            // 64 elements are a fragment.
            let (before, it, behind) = (&got[..64], &got[64..128], &got[128..]);
            assert!(before.iter().chain(behind).all(|v| *v == 2.0));
            if arithmetic == Arithmetic::Fixed {
                assert!(it.iter().all(|v| v.is_nan()));
            } else {
                assert_eq!(got[70], f32::NEG_INFINITY);
                assert_eq!(got[72], 2.0);
            }
        }
        leave(&mut session);
    });
}

/// Rank 1 brings `other` where the others bring `usual`; what all say.
fn mismatch(other: &Collective, bytes: usize) -> Vec<String> {
    let mut switch = Switch::new(3, HABITS);
    switch.strict = false;
    let rig = Rig::with(3, switch, true);
    all(&rig, |rank, mut session| {
        let before = Collective::barrier("before");
        session.submit(before, Box::new(Vec::new())).unwrap();
        assert_eq!(next(&mut session).unwrap().ticket.0, 0);
        let usual = (sum(Arithmetic::Fixed, "layer1.weight"), 4000);
        let (c, bytes) = if rank == 1 {
            (other.clone(), bytes)
        } else {
            usual
        };
        session.submit(c, Box::new(vec![1; bytes])).unwrap();
        let error = next(&mut session).unwrap_err();
        assert_eq!(error.exit_code(), 6);
        assert!(matches!(&error, AgentError::Mismatch { source, .. } if source.ranks.0 == 0b10));
        assert_eq!(session.state(), SessionState::Failed);
        assert!(!session.turn().unwrap(), "it says so once");
        error.to_string()
    })
}

#[test]
fn a_mismatch_is_told_to_all_and_names_the_rank() {
    let longer = sum(Arithmetic::Fixed, "layer1.weight");
    let said = mismatch(&longer, 4004);
    let rest = "rank 1 brings a sum of 1001 F32 in block fixed point called \"layer1.weight\", \
                all others a sum of 1000 F32 in block fixed point called \"layer1.weight\"";
    let ours = [1000, 1001, 1000];
    for (n, text) in ours.iter().zip(said) {
        assert_eq!(
            text,
            format!(
                "job 7 failed: the workers do not agree on collective 1, here a sum of {n} F32 \
                 in block fixed point called \"layer1.weight\": {rest}"
            )
        );
    }
    for (c, bytes) in [
        (sum(Arithmetic::Native, "layer1.weight"), 4000),
        (sum(Arithmetic::Fixed, "layer2.weight"), 4000),
        (Collective::barrier("layer1.weight"), 0),
    ] {
        mismatch(&c, bytes);
    }
}

#[test]
fn a_rank_that_gives_up_is_named_to_those_that_wait_for_it() {
    let rig = Rig::new(3, Habits::default(), true);
    let said = all(&rig, |rank, mut session| {
        if rank == 2 {
            until(&mut session, |s| {
                matches!(s.state(), SessionState::Running { .. })
            })
            .unwrap();
            session.give_up();
        } else {
            session
                .submit(Collective::barrier("b"), Box::new(Vec::new()))
                .unwrap();
        }
        let error = until(&mut session, |_| false).unwrap_err();
        error.to_string()
    });
    let left = "job 7 failed: rank 2 left the job because of an error of its own";
    assert_eq!(said, [left, left, "job 7 failed: given up"]);
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let rig = Rig::new(2, Habits::default(), true);
    let mut config = rig.worker(0);
    config.timeouts.join_ms = 500;
    let mut session = Session::open(&config, None).unwrap();
    assert_eq!(session.state(), SessionState::Joining(None));
    session
        .submit(Collective::barrier("b"), Box::new(Vec::new()))
        .unwrap();
    let mut missing = 0;
    let error = until(&mut session, |s| {
        if let SessionState::Joining(Some(members)) = s.state() {
            missing = members.missing;
        }
        false
    })
    .unwrap_err();
    assert_eq!(missing, 0b10);
    let said = "cannot join job 7 as rank 0: the job did not start within 500ms: rank 1 is missing";
    assert_eq!(error.to_string(), said);
}

#[test]
fn an_overflow_names_the_collective() {
    let rig = Rig::new(2, Habits::default(), true);
    let said = all(&rig, |_, mut session| {
        let c = collective(CollectiveKind::Sum, Dtype::I8, Arithmetic::Own, "counts");
        session.submit(c, Box::new(vec![100; 300])).unwrap();
        let error = next(&mut session).unwrap_err();
        assert_eq!(error.exit_code(), 7);
        error.to_string()
    });
    assert!(
        said.iter()
            .all(|s| s.contains("which has elements of counts")),
        "{said:?}"
    );
}

#[test]
fn the_smallest_payload_has_the_descriptor_of_many_ranks() {
    let mut rig = Rig::new(24, Habits::default(), true);
    // Six fragments of a descriptor, of which four may be under way.
    (rig.payload_bytes, rig.window) = (64, 4);
    all(&rig, |rank, mut session| {
        let bytes = bytes_of(&whole(rank, 33));
        session
            .submit(sum(Arithmetic::Fixed, "w"), Box::new(bytes))
            .unwrap();
        assert_eq!(floats(&next(&mut session).unwrap()), sum_of_whole(24, 33));
        leave(&mut session);
    });
}

#[test]
fn an_idle_session_does_not_stall_and_priorities_are_those_that_were_given() {
    let rig = Rig::new(2, Habits::default(), true);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let mut config = rig.worker(rank);
            config.timeouts.stall_ms = 300;
            config.job.priority = Some(7);
            scope.spawn(move || {
                let mut session = Session::open(&config, None).unwrap();
                for priority in [Priority::Fixed(70), Priority::FIRST, Priority::Fixed(200)] {
                    let barrier = Collective {
                        priority,
                        ..Collective::barrier("b")
                    };
                    session.submit(barrier, Box::new(Vec::new())).unwrap();
                    next(&mut session).unwrap();
                    let pause = Instant::now() + Duration::from_millis(700);
                    until(&mut session, |_| Instant::now() >= pause).unwrap();
                }
                leave(&mut session);
                let report = session.report();
                assert_eq!(
                    (report.priority_min, report.priority_max),
                    (Some(7), Some(200))
                );
            });
        }
    });
}

/// Two buckets of a backward pass, the last layers first, with computation before, between and
/// after them.
#[test]
fn what_the_forward_pass_needs_first_is_more_urgent_and_steps_are_those_of_training() {
    const COMPUTE: Duration = Duration::from_millis(20);
    let rig = Rig::new(2, Habits::default(), true);
    all(&rig, |rank, mut session| {
        let priorities = |s: &Session| {
            let report = s.report();
            (report.priority_min.unwrap(), report.priority_max.unwrap())
        };
        for step in 0..4 {
            for bucket in 0..2 {
                let pause = Instant::now() + COMPUTE;
                until(&mut session, |_| Instant::now() >= pause).unwrap();
                let sum = Collective {
                    priority: Priority::Place {
                        index: 1 - bucket,
                        of: 2,
                    },
                    more_follow: bucket == 0,
                    ..sum(Arithmetic::Native, "bucket")
                };
                let bytes = bytes_of(&whole(rank, 1000));
                session.submit(sum, Box::new(bytes)).unwrap();
                // Nothing is under way in the middle of a step, either.
                next(&mut session).unwrap();
                match (step, bucket) {
                    (0, 0) => assert_eq!(priorities(&session), (104, 104)),
                    (0, 1) => assert_eq!(priorities(&session), (104, 128)),
                    _ => {}
                }
            }
        }
        // 80 ms behind and sums in far less than 40 of 40 ms: more than 128 by the little time that
        // the job has had, and the last layers 24 behind the first.
        let (least, most) = priorities(&session);
        assert!(most >= 128 && least <= most - 24, "{least} {most}");
        leave(&mut session);
    });
}

#[test]
fn a_rank_that_dies_ends_the_others_in_bounded_time() {
    let rig = Rig::new(2, Habits::default(), true);
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                let mut config = rig.worker(rank);
                config.timeouts.stall_ms = 500;
                scope.spawn(move || {
                    let mut session = Session::open(&config, None).unwrap();
                    session
                        .submit(Collective::barrier("a"), Box::new(Vec::new()))
                        .unwrap();
                    next(&mut session).unwrap();
                    if rank == 1 {
                        // Without a word.
                        return None;
                    }
                    session
                        .submit(Collective::barrier("b"), Box::new(Vec::new()))
                        .unwrap();
                    Some(next(&mut session).unwrap_err())
                })
            })
            .collect();
        let ended = threads.into_iter().map(|t| t.join().unwrap());
        ended.collect::<Vec<_>>()
    });
    let error = outcomes[0].as_ref().unwrap();
    assert_eq!(error.exit_code(), 8);
    assert!(error.to_string().contains("no result for 500ms"), "{error}");
}

#[test]
fn a_rank_that_does_not_come_is_named_with_the_collective() {
    let rig = Rig::new(3, Habits::default(), true);
    let outcomes = std::thread::scope(|scope| {
        let start = |rank: u8| {
            let mut config = rig.worker(rank);
            config.timeouts.stall_ms = 2500;
            scope.spawn(move || {
                let mut session = Session::open(&config, None).unwrap();
                session
                    .submit(sum(Arithmetic::Native, "first"), Box::new(vec![0; 400]))
                    .unwrap();
                next(&mut session).unwrap();
                let began = Instant::now();
                if rank != 2 {
                    session
                        .submit(
                            sum(Arithmetic::Native, "layer1.weight"),
                            Box::new(vec![0; 400]),
                        )
                        .unwrap();
                }
                let mut seen = Vec::new();
                let error = until(&mut session, |s| {
                    let behind = s.report().behind;
                    if seen != behind && !behind.is_empty() {
                        seen = behind;
                    }
                    false
                });
                (error.unwrap_err(), seen, began.elapsed())
            })
        };
        let threads: Vec<_> = (0..3).map(start).collect();
        let ended = threads.into_iter().map(|t| t.join().unwrap());
        ended.collect::<Vec<_>>()
    });
    let mut own = 0;
    for (rank, (error, seen, time)) in outcomes.iter().enumerate() {
        let said = error.to_string();
        assert_eq!(error.exit_code(), 8, "{said}");
        assert!(*time < Duration::from_millis(4500), "{time:?}");
        assert!(said.ends_with(": rank 2 has not contributed"), "{said}");
        let waited = "job 7 failed: waiting for layer1.weight: ";
        assert_eq!(said.starts_with(waited), rank != 2, "{said}");
        assert_eq!(said.contains("gave up waiting for us"), rank == 2, "{said}");
        own += usize::from(said.contains("no result for 2.5s"));
        assert_eq!(seen.as_slice(), if rank == 2 { &[][..] } else { &[2] });
    }
    assert!(own >= 1);
}

/// A link that shows its pin.
struct Pinned {
    link: Box<dyn Link>,
    pin: Rc<Cell<Option<Mac>>>,
}

impl Pinned {
    fn open(rig: &Rig) -> (Self, Rc<Cell<Option<Mac>>>) {
        let config = rig.worker(0);
        let (group, units) = (Some(Group::of(&config)), Some(config.units()));
        let link = open_link(&config.transport, config.switch, group, units).unwrap();
        let pin = Rc::new(Cell::new(None));
        let it = Self {
            link,
            pin: pin.clone(),
        };
        (it, pin)
    }
}

impl Link for Pinned {
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        self.link.send(fill)
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        self.link.receive(take)
    }

    fn wait(
        &mut self,
        timeout: Duration,
        gather: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        self.link.wait(timeout, gather, wake)
    }

    fn pin(&mut self, switch_mac: Option<Mac>) {
        self.pin.set(switch_mac);
    }
}

#[test]
fn the_mac_that_accept_gives_is_pinned() {
    let rig = Rig::new(1, Habits::default(), true);
    let (link, pin) = Pinned::open(&rig);
    let mut session = Session::over(Box::new(link), &rig.worker(0), 1).unwrap();
    session.turn().unwrap();
    assert_eq!(pin.get(), None, "before ACCEPT");
    let runs = |s: &mut Session| matches!(s.state(), SessionState::Running { .. });
    until(&mut session, runs).unwrap();
    assert_eq!(pin.get(), Some(MAC));
    leave(&mut session);
}

#[test]
fn waiting_ends_when_there_is_something_to_submit() {
    let rig = Rig::new(2, Habits::default(), true);
    all(&rig, |_, mut session| {
        session
            .submit(Collective::barrier("a"), Box::new(Vec::new()))
            .unwrap();
        next(&mut session).unwrap();
        while session.turn().unwrap() {}
        let (submissions, submitter) = std::io::pipe().unwrap();
        let began = Instant::now();
        let mut waits = 0;
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop(submitter);
        });
        // Heartbeats may end it before.
        while !thread.is_finished() {
            session
                .wait_or(Duration::from_secs(10), Some(submissions.as_fd()))
                .unwrap();
            session.turn().unwrap();
            waits += 1;
        }
        thread.join().unwrap();
        let time = began.elapsed();
        assert!(
            waits >= 1 && time >= Duration::from_millis(30),
            "{waits} {time:?}"
        );
        let fastest = (0..10).map(|_| {
            let began = Instant::now();
            session
                .wait_or(Duration::from_secs(10), Some(submissions.as_fd()))
                .unwrap();
            began.elapsed()
        });
        assert!(fastest.min().unwrap() < Duration::from_millis(20));
        leave(&mut session);
    });
}
