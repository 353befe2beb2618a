//! All-reduces over a plan: every worker gives its part of the gradients to each share at the same
//! time, and gets every sum.
//!
//! Each worker of each share is a thread, which talks to its agent as a training process does. A
//! round begins when all threads are ready. Its time, for a job, is from its begin to the last sum
//! at any worker of any share. Every element is then compared with the sum.

use super::Planned;
use super::layout::Part;
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tally_local::{Arithmetic, Client, Dtype, Hello, Operation, Priority, Region, Submission};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// Elements after which the data repeats.
const PERIOD: usize = 1021;

/// What one round took.
#[derive(Clone, Debug)]
pub struct Round {
    /// Seconds of each job until its last worker had its last sum.
    pub seconds: Vec<f64>,
}

/// A worker of a share.
struct Member {
    job: usize,
    socket: PathBuf,
    hello: Hello,
    elements: usize,
}

impl Planned {
    /// Runs so many rounds.
    ///
    /// # Errors
    /// If a worker fails, a sum is wrong, or nothing comes of it for three minutes.
    pub fn rounds(&self, rounds: u32) -> Result<Vec<Round>> {
        let members = self.members();
        let jobs = self.layout.fragments.len();
        std::thread::scope(|scope| {
            let (notify, told) = channel();
            let mut starts = Vec::new();
            for (number, member) in members.iter().enumerate() {
                let (start, begin) = channel();
                starts.push(start);
                let notify = notify.clone();
                scope.spawn(move || {
                    let done = take_part(member, rounds, &begin, &notify);
                    if let Err(error) = done {
                        let error = error.context(format!("worker {number}"));
                        let _ = notify.send(Err(error));
                    }
                });
            }
            drop(notify);
            // Of each member the news that it is ready.
            let wait = || -> Result<Vec<(usize, Instant)>> {
                let all = members.iter().map(|_| {
                    let news = told.recv_timeout(PATIENCE);
                    news.context("a worker does not answer")?
                });
                all.collect()
            };
            wait()?;
            let mut all = Vec::new();
            for _ in 0..rounds {
                let began = Instant::now();
                for start in &starts {
                    start.send(()).context("a worker has ended")?;
                }
                let mut seconds = vec![0.0_f64; jobs];
                for (job, at) in wait()? {
                    let own = (at - began).as_secs_f64();
                    seconds[job] = seconds[job].max(own);
                }
                all.push(Round { seconds });
            }
            Ok(all)
        })
    }

    fn members(&self) -> Vec<Member> {
        let mut members = Vec::new();
        for part in &self.layout.parts {
            let bytes = part.fragments * u64::from(self.scale.payload_bytes);
            for role in part.roles.values() {
                for (n, &(_, circuit)) in role.workers.iter().enumerate() {
                    members.push(Member {
                        job: part.job,
                        socket: self.agent_socket(circuit),
                        hello: Hello {
                            job: part.id,
                            rank: role.first + n as u16,
                            workers: part.workers(),
                        },
                        elements: bytes as usize / 4,
                    });
                }
            }
        }
        members
    }
}

impl Part {
    /// Its workers.
    pub(super) fn workers(&self) -> u16 {
        self.roles
            .values()
            .map(|role| role.workers.len() as u16)
            .sum()
    }
}

/// One worker of a share, in all rounds.
fn take_part(
    member: &Member,
    rounds: u32,
    begin: &Receiver<()>,
    notify: &Sender<Result<(usize, Instant)>>,
) -> Result<()> {
    let Member {
        job,
        socket,
        hello,
        elements,
    } = member;
    let sum = Submission {
        operation: Operation::Sum,
        dtype: Dtype::I32,
        arithmetic: Arithmetic::Own,
        priority: Priority::FIRST,
        more_follow: false,
        name: "gradients".into(),
    };
    let mut client = Client::connect(socket, hello, PATIENCE)?;
    let region = client.region(4 * elements)?;
    for round in 0..rounds {
        fill(&region, *elements, hello.rank, round);
        if round == 0 {
            let barrier = client.barrier("all are there")?;
            client.wait(barrier, Some(PATIENCE))?;
            notify.send(Ok((*job, Instant::now())))?;
        }
        if begin.recv_timeout(PATIENCE).is_err() {
            // Another worker has failed.
            return Ok(());
        }
        let ticket = client.submit(&region, 0, *elements, &sum)?;
        client.wait(ticket, Some(PATIENCE))?;
        let at = Instant::now();
        check(&region, *elements, hello.workers, round)
            .with_context(|| format!("job {} rank {}", hello.job, hello.rank))?;
        notify.send(Ok((*job, at)))?;
    }
    client.finish(Some(PATIENCE))?;
    Ok(())
}

/// What a rank gives for an element. Sums of 4096 ranks fit.
fn value(rank: u16, round: u32, at: usize) -> i32 {
    let mixed = (at % PERIOD) as i32 * 7 + i32::from(rank) * 13 + round as i32 * 101;
    mixed % 500_009 - 3000
}

fn period(of: impl Fn(usize) -> i32) -> Vec<u8> {
    (0..PERIOD).flat_map(|at| of(at).to_ne_bytes()).collect()
}

/// Each whole or partial period of the elements: where it begins and its bytes.
fn pieces(elements: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = 4 * elements;
    (0..all)
        .step_by(4 * PERIOD)
        .map(move |at| (at, (all - at).min(4 * PERIOD)))
}

fn fill(region: &Region, elements: usize, rank: u16, round: u32) {
    let own = period(|at| value(rank, round, at));
    for (at, bytes) in pieces(elements) {
        region.write(at, &own[..bytes]);
    }
}

fn check(region: &Region, elements: usize, workers: u16, round: u32) -> Result<()> {
    let sums = period(|at| (0..workers).map(|rank| value(rank, round, at)).sum());
    let mut found = vec![0; sums.len()];
    for (at, bytes) in pieces(elements) {
        region.read(at, &mut found[..bytes]);
        if found[..bytes] != sums[..bytes] {
            bail!("round {round}: a wrong sum behind byte {at}");
        }
    }
    ensure!(elements > 0, "no elements");
    Ok(())
}
