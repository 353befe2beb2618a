//! Sessions of collectives in simulated time: processes that train, and what their results must be.
//!
//! A [`Script`] says what the ranks of a job submit. Elements are numbers drawn from the script's
//! salt, and results are computed from these numbers in f64: no code is shared with the session,
//! the kernels or the engine.

use crate::rng::{Rng, mix};
use half::{bf16, f16};
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Ecn, Event, Transmit, WorkerConfig, WorkerError};
use tally_session::{
    Arithmetic, Collective, CollectiveKind, Done, Dtype, Mismatch, Priority, Session,
};
use tally_wire::Time;

/// One collective of a script.
#[derive(Clone, Debug)]
pub struct Step {
    /// What is asked for.
    pub collective: Collective,
    /// On this many elements.
    pub elements: usize,
    /// Each rank has zeros but for its own part: the sum gathers the parts.
    pub is_gather: bool,
    /// Some floats are infinite or NaN.
    pub is_wild: bool,
}

/// What the ranks of a job submit, in order.
#[derive(Clone, Debug)]
pub struct Script {
    /// Ranks.
    pub workers: u8,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// What elements are drawn from.
    pub salt: u64,
    /// The collectives.
    pub steps: Vec<Step>,
    /// Collectives that a rank has in flight at most.
    pub depth: usize,
    /// Pause before each at most.
    pub pause: Duration,
    /// A rank that brings something else in one step: which step, which rank, and what.
    pub differs: Option<(usize, u8, Step)>,
}

impl Script {
    /// Steps of any kind, with about `fragments` fragments together.
    #[must_use]
    pub fn draw(rng: &mut Rng, workers: u8, units: u8, steps: u64, fragments: u64) -> Self {
        let payload_bytes = usize::from(units) * tally_wire::UNIT_BYTES;
        let most = fragments as usize / steps as usize * payload_bytes / 4;
        let steps = (0..steps).map(|n| Step::draw(rng, n, workers, most));
        Self {
            workers,
            payload_bytes,
            steps: steps.collect(),
            salt: rng.next(),
            depth: rng.pick(&[1, 2, 4, 100]),
            pause: Duration::from_micros(rng.pick(&[0, 0, 10, 1_000])),
            differs: None,
        }
    }

    /// Lets a rank bring something else in one of the steps.
    pub fn differ(&mut self, rng: &mut Rng) {
        let at = rng.below(self.steps.len() as u64) as usize;
        let rank = rng.below(u64::from(self.workers)) as u8;
        let step = self.steps[at].differing(rng);
        self.differs = Some((at, rank, step));
    }

    /// What `rank` brings in step `n`.
    fn step(&self, rank: u8, n: usize) -> &Step {
        match &self.differs {
            Some((at, who, step)) if (*at, *who) == (n, rank) => step,
            _ => &self.steps[n],
        }
    }

    /// Element `at` of `rank`'s buffer in step `n`, which its type has exactly.
    fn number(&self, rank: u8, n: usize, at: usize) -> f64 {
        let step = self.step(rank, n);
        let part = at * usize::from(self.workers) / step.elements.max(1);
        if step.is_gather && part != usize::from(rank) {
            return 0.0;
        }
        let word = mix(self.salt ^ (n as u64) << 48 ^ u64::from(rank) << 40 ^ at as u64);
        let small = (word >> 32) as i32;
        if step.is_wild && word.is_multiple_of(61) {
            return [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][(word >> 8) as usize % 3];
        }
        // Exponents far enough apart that any other order of adding gives other bits somewhere.
        let spread = 2f64.powi((word % 13) as i32 - 6);
        match step.collective.dtype {
            // No sum of eight saturates.
            Dtype::I32 => f64::from(small >> 4),
            Dtype::I16 => f64::from(small >> 20),
            Dtype::I8 => f64::from(small >> 28),
            Dtype::F32 => f64::from((f64::from(small) / 3e8 * spread) as f32),
            Dtype::F16 => f16::from_f64(f64::from(small) / 3e9 * spread).to_f64(),
            Dtype::Bf16 => bf16::from_f64(f64::from(small) / 3e9 * spread).to_f64(),
        }
    }

    /// The buffer that `rank` submits in step `n`.
    #[must_use]
    pub fn input(&self, rank: u8, n: usize) -> Vec<u8> {
        let step = self.step(rank, n);
        let mut bytes = Vec::new();
        for at in 0..step.elements {
            let v = self.number(rank, n, at);
            match step.collective.dtype {
                Dtype::F32 => bytes.extend((v as f32).to_ne_bytes()),
                Dtype::F16 => bytes.extend(f16::from_f64(v).to_ne_bytes()),
                Dtype::Bf16 => bytes.extend(bf16::from_f64(v).to_ne_bytes()),
                Dtype::I32 => bytes.extend((v as i32).to_ne_bytes()),
                Dtype::I16 => bytes.extend((v as i16).to_ne_bytes()),
                Dtype::I8 => bytes.extend((v as i8).to_ne_bytes()),
            }
        }
        bytes
    }

    /// What the elements of step `n` must become, at every rank.
    fn expected(&self, n: usize) -> Vec<f64> {
        let Step {
            collective,
            elements,
            ..
        } = &self.steps[n];
        let of =
            |rank: u8| -> Vec<f64> { (0..*elements).map(|at| self.number(rank, n, at)).collect() };
        let all: Vec<_> = (0..self.workers).map(of).collect();
        let workers = f64::from(self.workers);
        let is_mean = collective.kind == CollectiveKind::Mean && self.workers > 1;
        let dtype = collective.dtype;
        let mean = |sum: f32| {
            let mean = if is_mean { sum / workers as f32 } else { sum };
            narrow(dtype, mean)
        };
        let ranks = |at: usize| all.iter().map(move |values| values[at]);
        let each = 0..*elements;
        match (collective.kind, collective.arithmetic) {
            (CollectiveKind::Broadcast { root }, _) => all[usize::from(root)].clone(),
            (CollectiveKind::Barrier, _) => Vec::new(),
            (CollectiveKind::Max, _) => unreachable!("no step is one"),
            _ if dtype.is_int() => {
                let exact = each.map(|at| ranks(at).sum::<f64>());
                let divided = exact.map(|sum| if is_mean { sum / workers } else { sum });
                // An integer has no negative zero.
                divided.map(|sum| sum.trunc() + 0.0).collect()
            }
            (_, Arithmetic::Fixed) => self.in_fixed_point(&all).into_iter().map(mean).collect(),
            (_, arithmetic) => {
                let fold = |at| ranks(at).map(|v| v as f32).reduce(|a, b| a + b);
                let sums = each.map(|at| fold(at).unwrap_or(0.0));
                let own = |sum| match arithmetic {
                    Arithmetic::Own => narrow(dtype, sum) as f32,
                    _ => sum,
                };
                sums.map(|sum| mean(own(sum))).collect()
            }
        }
    }

    /// B-1 to B-5 of the protocol, in numbers: f64 has all integers of 32 bits.
    fn in_fixed_point(&self, all: &[Vec<f64>]) -> Vec<f32> {
        let per_fragment = self.payload_bytes / 4;
        let c = all.len().next_power_of_two().trailing_zeros() as i32;
        let mut sums = Vec::new();
        for start in (0..all[0].len()).step_by(per_fragment) {
            let range = start..all[0].len().min(start + per_fragment);
            let here = all.iter().flat_map(|values| &values[range.clone()]);
            let exponents = here.map(|v| ((*v as f32).to_bits() >> 23 & 0xff) as i32);
            let e = exponents.max().unwrap_or(0);
            let s = 31 - c - (e.max(1) - 126);
            for at in range {
                let q = |values: &Vec<f64>| (values[at] * 2f64.powi(s)).round_ties_even();
                let total = all.iter().map(q).sum::<f64>() + 0.0;
                let sum = (f64::from(total as f32) * 2f64.powi(-s)) as f32;
                sums.push(if e == 255 { f32::NAN } else { sum });
            }
        }
        sums
    }

    /// What is wrong about a result of `rank`.
    fn wrong(&self, rank: u8, done: &Done) -> Option<String> {
        let n = done.ticket.0 as usize;
        if let Some((at, ..)) = &self.differs
            && n >= *at
        {
            return Some(format!(
                "rank {rank}: collective {n} is done, and the ranks bring other ones from {at} on"
            ));
        }
        let mut bytes = vec![0; done.buffer.bytes()];
        done.buffer.read(0, &mut bytes);
        let collective = &self.steps[n].collective;
        let (got, want) = (numbers(collective.dtype, &bytes), self.expected(n));
        let same = |(g, w): (&f64, &f64)| g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
        if got.len() != want.len() {
            return Some(format!("rank {rank}: {} elements of {n}", got.len()));
        }
        let at = got.iter().zip(&want).position(|pair| !same(pair))?;
        let (got, want) = (got[at], want[at]);
        Some(format!(
            "rank {rank}: element {at} of collective {n} is {got} and not {want}: {collective:?}"
        ))
    }
}

impl Step {
    fn draw(rng: &mut Rng, n: u64, workers: u8, most: usize) -> Self {
        let dtype = rng.pick(&DTYPES);
        let (kind, is_gather) = match rng.below(9) {
            0..=3 => (CollectiveKind::Sum, false),
            4 | 5 => (CollectiveKind::Mean, false),
            6 => {
                let root = rng.below(u64::from(workers)) as u8;
                (CollectiveKind::Broadcast { root: root.into() }, false)
            }
            7 => (CollectiveKind::Barrier, false),
            _ => (CollectiveKind::Sum, true),
        };
        let elements = match (kind, rng.below(4)) {
            (CollectiveKind::Barrier, _) | (_, 0) => 0,
            (_, 1) => 1,
            (_, 2) => rng.below(40) as usize,
            _ => rng.below(most.max(2) as u64) as usize,
        };
        let arithmetic = rng.pick(&[Arithmetic::Fixed, Arithmetic::Native, Arithmetic::Own]);
        let priority = match rng.below(2) {
            0 => Priority::Fixed(rng.below(256) as u8),
            _ => Priority::Place {
                index: rng.below(8) as u16,
                of: 8,
            },
        };
        Self {
            collective: Collective {
                kind,
                dtype,
                arithmetic: if is_gather {
                    Arithmetic::Own
                } else {
                    arithmetic
                },
                name: format!("step {n}"),
                priority,
                more_follow: rng.below(2) == 0,
            },
            elements,
            is_gather,
            is_wild: !dtype.is_int() && !is_gather && rng.chance(200_000),
        }
    }

    /// Something that no other rank brings.
    fn differing(&self, rng: &mut Rng) -> Self {
        let mut other = self.clone();
        let collective = &mut other.collective;
        match (rng.below(3), collective.kind) {
            (0, _) | (1, CollectiveKind::Barrier) => collective.name.push('\''),
            (1, _) => other.elements += 1,
            _ => {
                let is_sum = collective.kind == CollectiveKind::Sum;
                collective.kind = if is_sum {
                    CollectiveKind::Mean
                } else {
                    CollectiveKind::Sum
                };
            }
        }
        other
    }
}

const DTYPES: [Dtype; 6] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
];

fn narrow(dtype: Dtype, v: f32) -> f64 {
    match dtype {
        Dtype::F16 => f16::from_f32(v).to_f64(),
        Dtype::Bf16 => bf16::from_f32(v).to_f64(),
        _ => f64::from(v),
    }
}

fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let number = |b: &[u8]| match *b {
        [a] => f64::from(a.cast_signed()),
        [a, b] => match dtype {
            Dtype::F16 => f16::from_ne_bytes([a, b]).to_f64(),
            Dtype::Bf16 => bf16::from_ne_bytes([a, b]).to_f64(),
            _ => f64::from(i16::from_ne_bytes([a, b])),
        },
        [a, b, c, d] if dtype.is_int() => f64::from(i32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d] => f64::from(f32::from_ne_bytes([a, b, c, d])),
        _ => f64::NAN,
    };
    bytes.chunks(dtype.bytes()).map(number).collect()
}

/// How a process's session has ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// With all its results.
    Finished,
    /// With an error, and what the ranks did not agree on if that was it.
    Failed(WorkerError, Option<Box<Mismatch>>),
}

/// One rank's process, which submits the script and compares the results.
pub struct Process {
    session: Session,
    script: Rc<Script>,
    rank: u8,
    rng: Rng,
    submitted: usize,
    /// When the next collective may be submitted.
    next_at: Time,
    /// Collectives that are done.
    pub done: usize,
    /// How it ended, and when.
    pub ended: Option<(Time, Ended)>,
    /// A result that is not what it must be.
    pub wrong: Option<String>,
}

impl Process {
    /// A process that begins to join `now`.
    #[must_use]
    pub fn new(now: Time, config: WorkerConfig, script: Rc<Script>, rng: Rng) -> Self {
        Self {
            rank: config.rank as u8,
            session: Session::new(now, config, 1, None),
            script,
            rng,
            submitted: 0,
            next_at: now,
            done: 0,
            ended: None,
            wrong: None,
        }
    }

    /// Its session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Its session, to cancel it.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    fn may_submit(&self) -> bool {
        self.ended.is_none()
            && self.submitted < self.script.steps.len()
            && self.submitted - self.done < self.script.depth
    }

    fn submit(&mut self, now: Time) {
        while self.may_submit() && self.next_at <= now {
            let n = self.submitted;
            let collective = self.script.step(self.rank, n).collective.clone();
            let buffer = Box::new(self.script.input(self.rank, n));
            if let Err(why) = self.session.submit(now, collective, buffer) {
                self.wrong.get_or_insert(format!("collective {n}: {why}"));
            }
            self.submitted += 1;
            let pause = self.rng.below(self.script.pause.as_nanos() as u64 + 1);
            self.next_at = now.after(Duration::from_nanos(pause));
            if self.submitted == self.script.steps.len() {
                self.session.finish(now);
            }
        }
    }

    /// Handles a datagram from the switch.
    pub fn handle_datagram(&mut self, now: Time, ecn: Ecn, datagram: &[u8]) {
        self.session.handle_datagram(now, ecn, datagram);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.session.poll_timeout().is_some_and(|at| at <= now) {
            self.session.handle_timeout(now);
        }
    }

    /// Writes the next datagram to send.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        self.submit(now);
        self.session.poll_transmit(now, out)
    }

    /// Takes note of what has happened. Returns when something is due next.
    pub fn poll(&mut self, now: Time) -> Option<Time> {
        while let Some(event) = self.session.poll_event(now) {
            let ended = match event {
                Event::Finished => Ended::Finished,
                Event::Failed(error) => Ended::Failed(error, self.session.take_mismatch()),
                _ => continue,
            };
            self.ended = Some((now, ended));
        }
        while let Some(done) = self.session.done() {
            self.done += 1;
            if self.wrong.is_none() {
                self.wrong = self.script.wrong(self.rank, &done);
            }
        }
        let submission = self.may_submit().then_some(self.next_at);
        [self.session.poll_timeout(), submission]
            .into_iter()
            .flatten()
            .min()
    }
}
