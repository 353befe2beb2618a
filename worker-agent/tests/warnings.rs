//! The agent says why a job is slow, and nothing of one that is well: the real program, at the
//! naive switch of the loopback interface.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use rig::Rig;
use rig::agent::Agent;
use rig::common::switch::Habits;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_local::{Arithmetic, Client, Dtype, Operation, Priority, Submission};
use tally_schema::agent::status::Status;

const LONG: Duration = rig::agent::WAIT_MAX;
/// Several looks of the agent.
const A_WHILE: Duration = Duration::from_secs(4);

fn status(agent: &Agent) -> Status {
    let output = agent.ask(&["--json"]);
    assert!(output.status.success(), "{output:?}");
    tally_config::parse("status", &output.stdout).unwrap()
}

/// Computes for so long and sums, over and over, until `over`, or for a while.
fn work(client: &mut Client, computes: Duration, over: Option<&AtomicBool>) {
    let region = client.region(1 << 20).unwrap();
    let sum = Submission {
        operation: Operation::Sum,
        dtype: Dtype::F32,
        arithmetic: Arithmetic::Native,
        priority: Priority::FIRST,
        more_follow: false,
        name: "w".into(),
    };
    let until = Instant::now() + if over.is_some() { 2 * LONG } else { A_WHILE };
    // All ranks end with the same one: the first rank decides it in a sum of its own.
    loop {
        std::thread::sleep(computes);
        let is_over = Instant::now() > until || over.is_some_and(|it| it.load(Ordering::Relaxed));
        region.write(0, &f32::from(u8::from(is_over)).to_ne_bytes());
        let ticket = client.submit(&region, 0, 20_000, &sum).unwrap();
        client.wait(ticket, Some(LONG)).unwrap();
        let mut over = [0; 4];
        region.read(0, &mut over);
        region.write(0, &[0; 80_000]);
        if f32::from_ne_bytes(over) > 0.0 {
            break;
        }
    }
    client.finish(Some(LONG)).unwrap();
}

/// All ranks work until the log and the status have `words`.
#[track_caller]
fn is_warned(agent: &Agent, words: &str) {
    is_warned_of(agent, words, |_| Duration::ZERO);
}

/// The same, when each computes for so long before it sums.
#[track_caller]
fn is_warned_of(agent: &Agent, words: &str, computes: impl Fn(u8) -> Duration) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for rank in 0..agent.rig.workers {
            let (over, computes) = (&over, computes(rank));
            scope.spawn(move || work(&mut agent.connect(rank).unwrap(), computes, Some(over)));
        }
        let deadline = Instant::now() + LONG;
        let is_said = |said: &str| said.contains(words);
        while Instant::now() < deadline {
            let ranks = &status(agent).jobs[0].ranks;
            if ranks
                .iter()
                .any(|it| it.warnings.iter().any(|it| is_said(it)))
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let text = String::from_utf8(agent.ask(&[]).stdout).unwrap();
        over.store(true, Ordering::Relaxed);
        assert!(
            text.lines()
                .any(|it| it.starts_with("    warning: ") && is_said(it)),
            "{text}"
        );
    });
    let log = agent.log();
    let mut lines = log
        .lines()
        .filter(|it| it.starts_with("tally-agent: warning: job 7 rank"));
    assert!(lines.any(|it| it.contains(words)), "{log}");
}

#[test]
fn a_job_that_is_well_gets_no_warning() {
    let agent = Agent::new(Rig::new(3, Habits::default(), true), &[]);
    agent.all(|_, mut client| work(&mut client, Duration::ZERO, None));
    let log = agent.log();
    // This machine's CPUs may be busy with other tests, of which it may complain, and of what comes
    // of it: ranks that answer late are asked again.
    let busy = "CPUs are busy";
    let is_of_it =
        |it: &str| it.contains(busy) || log.contains(busy) && it.contains("had to be sent again");
    let others = log
        .lines()
        .filter(|it| it.contains("warning") && !is_of_it(it));
    assert_eq!(others.count(), 0, "{log}");
}

#[test]
fn a_rank_that_is_slower_in_each_step_is_named() {
    let agent = Agent::new(Rig::new(3, Habits::default(), true), &[]);
    let computes = |rank| Duration::from_millis(if rank == 2 { 60 } else { 20 });
    is_warned_of(
        &agent,
        "rank 2 is the slowest: this one waits for ",
        computes,
    );
    assert!(
        !agent.log().contains("rank 2: rank 2 is"),
        "{}",
        agent.log()
    );
}

#[test]
fn losses_are_named() {
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &["--loss", "0.05"]);
    is_warned(&agent, "of the fragments");
}

#[test]
fn a_pool_that_is_too_small_is_named() {
    let habits = Habits {
        collide: 500,
        ..Habits::default()
    };
    let agent = Agent::new(Rig::new(2, habits, true), &[]);
    is_warned(&agent, "the switch's pool is too small");
}

#[test]
fn a_rank_that_does_not_come_is_named_to_those_that_wait() {
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    agent.all(|rank, mut client| {
        let first = client.barrier("first").unwrap();
        client.wait(first, Some(LONG)).unwrap();
        if rank == 1 {
            // The others wait for their sum for no longer than this.
            let deadline = Instant::now() + LONG / 2;
            let warned = || status(&agent).jobs[0].ranks[0].warnings.join("\n");
            while warned().is_empty() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
            }
            let words = warned();
            assert!(words.starts_with("all wait for rank 1, for "), "{words}");
        }
        let second = client.barrier("second").unwrap();
        client.wait(second, Some(LONG)).unwrap();
        client.finish(Some(LONG)).unwrap();
    });
    let log = agent.log();
    assert!(
        log.contains("warning: job 7 rank 0: all wait for rank 1"),
        "{log}"
    );
    assert!(!log.contains("job 7 rank 1: all wait"), "{log}");
}
