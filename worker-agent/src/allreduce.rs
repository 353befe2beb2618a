//! One worker's all-reduce, from JOIN to LEAVE: a session in which each tensor is a collective.
//!
//! A round stands for a step of training: a pause, in which a framework would compute, and the sum
//! of all tensors. With several rounds the input is copied to the buffers of each but the last in
//! its pause, as a framework would write its gradients there; all else is the session's, which sums
//! in place.
//!
//! Tensors are submitted in the byte order of their names. So is their place in the model, which
//! priorities follow. The catch: it is the order of the layers only where the names say so
//! (frameworks list parameters in the order of the forward pass, but `layer10` sorts before
//! `layer2`).
//!
//! A collective is called by its tensor's name, shape and place, such as `conv1.bias [12] (1 of
//! 6)`: ranks with other tensors, or other numbers of them, are found to differ at the first.

use crate::config::{Transport, WorkerConfig};
use crate::error::AgentError;
use crate::link::loss::Loss;
use crate::report as summary;
use crate::session::{
    Clock, Collective, CollectiveKind, Elements, IDLE_MAX, NAME_BYTES_MAX, Priority, Session,
    SessionState,
};
use crate::tensors::{Tensor, Tensors};
use sha2::{Digest, Sha256};
use std::any::Any;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tally_endpoint::{Members, Time};
use tally_kernels::Backend;
use tally_schema::agent::report::{self, Report, TransportKind};
use tally_session::Arithmetic;

/// Between two calls of [`Observer::progress`].
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What becomes of the tensors. All workers need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Op {
    /// Their sum over all workers.
    Sum,
    /// The sum divided by the number of workers.
    Mean,
}

impl From<Op> for report::Op {
    fn from(op: Op) -> Self {
        match op {
            Op::Sum => Self::Sum,
            Op::Mean => Self::Mean,
        }
    }
}

/// How to run an all-reduce.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What becomes of the tensors.
    pub op: Op,
    /// How floats are summed.
    pub arithmetic: Arithmetic,
    /// How often, for measurements; all workers need the same number.
    pub rounds: u32,
    /// The pause before each round, which stands for a framework's computing. Where workers' pauses
    /// differ, the stall timeout bounds by how much.
    pub compute: Duration,
    /// Losses on purpose.
    pub loss: Option<Loss>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            op: Op::Sum,
            arithmetic: Arithmetic::Fixed,
            rounds: 1,
            compute: Duration::ZERO,
            loss: None,
        }
    }
}

/// Receiver of an all-reduce's progress.
pub trait Observer {
    /// The job waits for members.
    fn waiting(&mut self, members: Members);
    /// The job runs.
    fn running(&mut self, epoch: u16);
    /// Fragments of all rounds that have their results, of all there will be. Called ten times a
    /// second, and at the end.
    fn progress(&mut self, done: u64, total: u64);
}

/// Ignores it.
impl Observer for () {
    fn waiting(&mut self, _: Members) {}
    fn running(&mut self, _: u16) {}
    fn progress(&mut self, _: u64, _: u64) {}
}

/// Sums `input` with the other workers of the job. Returns the result, in the same tensors, and
/// a report. When `stop` becomes true the job is left, which ends it for the others as well.
///
/// # Errors
/// What keeps the result from being complete and right.
///
/// # Panics
/// If `config` has no rank, or has not passed its check.
pub fn allreduce(
    config: &WorkerConfig,
    options: &Options,
    input: Tensors,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<(Tensors, Report), AgentError> {
    let clock = Clock::start();
    let mut session = Session::open(config, options.loss)?;
    session.expect_steps(options.rounds.into());
    let (elements, bytes) = (input.elements() as u64, input.bytes() as u64);
    let mut rounds = Rounds::new(options, input);
    let mut state = SessionState::Joining(None);
    let mut next_progress = clock.now().after(PROGRESS_EVERY);
    loop {
        if stop.load(Ordering::Relaxed) {
            session.interrupt();
        }
        let mut busy = session.turn()?;
        let now = clock.now();
        let before = std::mem::replace(&mut state, session.state());
        match state {
            SessionState::Joining(Some(members)) if before != state => observer.waiting(members),
            SessionState::Running { epoch } if before != state => {
                observer.running(epoch);
                rounds.begin(now);
            }
            _ => {}
        }
        while let Some(done) = session.done() {
            rounds.take(now, done.ticket.0, done.buffer);
        }
        if session.is_finished() {
            break;
        }
        busy |= rounds.poll(now, &mut session);
        if next_progress <= now && rounds.first_submitted.is_some() {
            next_progress = now.after(PROGRESS_EVERY);
            let (done, submitted) = session.fragments();
            observer.progress(done, rounds.all_of(submitted));
        }
        if !busy {
            let pause = rounds.pause_ends.map(|at| at.since(now));
            session.wait(pause.map_or(IDLE_MAX, |pause| pause.min(IDLE_MAX)))?;
        }
    }
    let (done, submitted) = session.fragments();
    observer.progress(done, submitted);
    let report = report(&session, config, options, &rounds, (elements, bytes));
    Ok((rounds.tensors, report))
}

fn report(
    session: &Session,
    config: &WorkerConfig,
    options: &Options,
    rounds: &Rounds,
    (elements, tensor_bytes): (u64, u64),
) -> Report {
    let of = session.report();
    let until_end = |from: Option<Time>| rounds.ended.since(from.unwrap_or(rounds.ended));
    let seconds = until_end(rounds.first_submitted).as_secs_f64();
    let bits = tensor_bytes as f64 * 8.0 * f64::from(options.rounds);
    Report {
        job: of.job,
        epoch: of.epoch.unwrap_or(0),
        rank: of.rank,
        workers: of.workers,
        op: options.op.into(),
        arithmetic: summary::arithmetic(options.arithmetic),
        transport: match config.transport {
            Transport::Udp { .. } => TransportKind::Udp,
            Transport::Dpdk { .. } => TransportKind::Dpdk,
        },
        kernels: Backend::best(),
        payload_bytes: of.payload_bytes,
        window: of.window,
        rounds: options.rounds,
        elements,
        tensor_bytes,
        seconds,
        job_seconds: until_end(rounds.began).as_secs_f64(),
        round_seconds: rounds.times.iter().map(Duration::as_secs_f64).collect(),
        compute_ms: options.compute.as_secs_f64() * 1e3,
        goodput_gbit_per_s: if seconds > 0.0 {
            bits / seconds / 1e9
        } else {
            0.0
        },
        fragments: of.fragments,
        from_switch: of.from_switch,
        from_ps: of.from_ps,
        retransmissions: of.retransmissions,
        results_resent: of.results_resent,
        duplicates: of.duplicates,
        late: of.late,
        foreign: of.foreign,
        priority_min: of.priority_min,
        priority_max: of.priority_max,
        congestion: of.congestion,
        latency_us: of.latency_us,
        typical_us: of.typical_us,
        rto_us: of.rto_us,
        loss: session.losses(),
    }
}

/// The rounds of an all-reduce, and the tensors' buffers.
struct Rounds {
    options: Options,
    /// The input; in the end the sums, in its place.
    tensors: Tensors,
    collectives: Vec<Collective>,
    /// Of each tensor, while it is not submitted: a buffer with what is to be summed next.
    buffers: Vec<Option<Vec<u8>>>,
    /// Rounds that have not begun.
    left: u32,
    /// Collectives of the round that are not done.
    open: usize,
    /// While there is a pause.
    pause_ends: Option<Time>,
    /// When the first round's pause began.
    began: Option<Time>,
    first_submitted: Option<Time>,
    /// Of the round that is under way.
    submitted: Time,
    /// When the last round was over.
    ended: Time,
    /// Of each round that is over, the time from its submission to its last result.
    times: Vec<Duration>,
}

impl Rounds {
    fn new(options: &Options, input: Tensors) -> Self {
        Self {
            options: *options,
            collectives: collectives(&input.tensors, options),
            buffers: vec![None; input.tensors.len()],
            tensors: input,
            left: options.rounds,
            open: 0,
            pause_ends: None,
            began: None,
            first_submitted: None,
            submitted: Time(0),
            ended: Time(0),
            times: Vec::with_capacity(options.rounds as usize),
        }
    }

    /// Fragments of all rounds, from those of the tensors submitted so far.
    fn all_of(&self, submitted: u64) -> u64 {
        let rounds = u64::from(self.options.rounds - self.left);
        let rounds = rounds - u64::from(self.pause_ends.is_some());
        submitted.checked_div(rounds).unwrap_or(0) * u64::from(self.options.rounds)
    }

    /// The next round's pause begins, if there is one more.
    fn begin(&mut self, now: Time) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        self.began.get_or_insert(now);
        self.pause_ends = Some(now.after(self.options.compute));
        for (tensor, buffer) in self.tensors.tensors.iter_mut().zip(&mut self.buffers) {
            if self.left == 0 {
                *buffer = Some(std::mem::take(&mut tensor.bytes));
            } else {
                buffer.get_or_insert_default().clone_from(&tensor.bytes);
            }
        }
    }

    /// Submits the round's collectives if its pause is over. Says whether it was.
    fn poll(&mut self, now: Time, session: &mut Session) -> bool {
        if self.pause_ends.is_none_or(|at| at > now) {
            return false;
        }
        self.pause_ends = None;
        self.submitted = now;
        self.first_submitted.get_or_insert(now);
        self.open = self.collectives.len();
        for (n, collective) in self.collectives.iter().enumerate() {
            let bytes = self.buffers.get_mut(n).and_then(Option::take);
            let buffer = Box::new(bytes.unwrap_or_default());
            // It makes sense, and nothing was finished.
            let submitted = session.submit(collective.clone(), buffer);
            submitted.unwrap_or_else(|why| unreachable!("{why}"));
        }
        if self.left == 0 {
            session.finish();
        }
        true
    }

    /// Takes the results of a collective.
    fn take(&mut self, now: Time, ticket: u64, buffer: Box<dyn Elements>) {
        let n = ticket as usize % self.collectives.len();
        let buffer: Box<dyn Any> = buffer;
        let bytes = buffer.downcast::<Vec<u8>>().map(|bytes| *bytes).ok();
        match self.tensors.tensors.get_mut(n) {
            Some(tensor) if self.left == 0 => tensor.bytes = bytes.unwrap_or_default(),
            Some(_) => self.buffers[n] = bytes,
            // There are no tensors.
            None => {}
        }
        self.open -= 1;
        if self.open == 0 {
            self.times.push(now.since(self.submitted));
            self.ended = now;
            self.begin(now);
        }
    }
}

/// What a round submits: a collective for each tensor, or a barrier if there are none.
fn collectives(tensors: &[Tensor], options: &Options) -> Vec<Collective> {
    let of = tensors.len();
    let kind = match options.op {
        Op::Sum => CollectiveKind::Sum,
        Op::Mean => CollectiveKind::Mean,
    };
    // Places beyond those that a number has are the last.
    let place = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let sum = |(n, tensor): (usize, &Tensor)| Collective {
        kind,
        dtype: tensor.dtype,
        arithmetic: options.arithmetic,
        name: name(tensor, n, of),
        priority: Priority::Place {
            index: place(n),
            of: place(of),
        },
        more_follow: n + 1 < of,
    };
    if tensors.is_empty() {
        vec![Collective::barrier("no tensors")]
    } else {
        tensors.iter().enumerate().map(sum).collect()
    }
}

/// The name of a tensor's collective. Of a long one the rest is a hash.
fn name(tensor: &Tensor, n: usize, of: usize) -> String {
    let Tensor { name, shape, .. } = tensor;
    let whole = format!("{name} {shape:?} ({} of {of})", n + 1);
    if whole.len() <= NAME_BYTES_MAX {
        return whole;
    }
    let hash = Sha256::digest(&whole);
    let mut short = whole[..whole.floor_char_boundary(NAME_BYTES_MAX - 19)].to_owned();
    short.push('…');
    for byte in &hash[..8] {
        // Writing to a string does not fail.
        let _ = write!(short, "{byte:02x}");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_session::Dtype;

    fn rounds(rounds: u32) -> Rounds {
        let options = Options {
            rounds,
            ..Options::default()
        };
        Rounds::new(&options, Tensors::synthetic(1, 0, 1000, Dtype::F32))
    }

    #[test]
    fn the_last_round_sums_in_the_inputs_own_memory() {
        for n in [1, 3] {
            let mut rounds = rounds(n);
            let input = rounds.tensors.tensors[0].bytes.as_ptr();
            let mut copies = 0;
            for left in (0..n).rev() {
                rounds.begin(Time(0));
                let buffer = rounds.buffers[0].as_ref().map(|bytes| bytes.as_ptr());
                copies += u32::from(buffer != Some(input));
                assert_eq!(rounds.left, left);
            }
            assert_eq!(copies, n - 1);
            rounds.pause_ends = None;
            rounds.begin(Time(0));
            assert_eq!(rounds.pause_ends, None, "no more");
        }
    }

    #[test]
    fn names_tell_apart_what_must_agree_and_fit() {
        let tensor = |name: &str, shape: &[usize]| Tensor {
            name: name.into(),
            dtype: Dtype::F32,
            shape: shape.into(),
            bytes: Vec::new(),
        };
        let said = name(&tensor("conv1.bias", &[12]), 0, 6);
        assert_eq!(said, "conv1.bias [12] (1 of 6)");
        assert_eq!(name(&tensor("loss", &[]), 5, 6), "loss [] (6 of 6)");
        let long = "é".repeat(200);
        let names = [
            name(&tensor(&long, &[2, 3]), 0, 2),
            name(&tensor(&long, &[3, 2]), 0, 2),
            name(&tensor(&long, &[2, 3]), 1, 2),
            name(&tensor(&(long.clone() + "x"), &[2, 3]), 0, 2),
        ];
        for (n, one) in names.iter().enumerate() {
            assert!(one.len() <= NAME_BYTES_MAX && one.starts_with("éé"));
            assert!(!names[..n].contains(one), "{one}");
        }
    }
}
