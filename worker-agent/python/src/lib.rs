//! The native half of the Python package `tally`: a job's connection to the agent, for several Python threads.
//!
//! # How it works
//!
//! A collective's elements are copied into shared memory (a *block*), submitted, and copied back when they are done;
//! blocks are used again. Python hands over arrays of bytes and the names of types and operations: what a
//! person may pass and gets told is the business of the Python half.
//!
//! # The catches
//!
//! * The interpreter's lock is given up while elements are copied: other threads go on meanwhile, and leave the array
//!   alone, as the documentation of `Handle` asks them to.
//! * Whoever waits watches the socket without holding the connection, so that others can submit meanwhile. Those
//!   take messages too, and wake the one who watches ([`Wake`]).

mod job;

use job::{Job, Wrong};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::Path;
use std::time::{Duration, Instant};
use tally_local::{Arithmetic, Class, Dtype, Hello, LocalError, Operation, Priority, Submission};

/// How often Python may look for signals, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// The exception of `tally._errors` for an error.
fn exception(py: Python<'_>, wrong: &Wrong) -> PyErr {
    let (class, text, ranks) = match wrong {
        Wrong::Closed => ("ClosedError", "the job is closed".to_owned(), 0),
        Wrong::Forked => (
            "ArgumentError",
            "this process is a fork of the one that made the job; make one here".to_owned(),
            0,
        ),
        Wrong::Local(error) => {
            let (class, ranks) = class_of(error);
            (class, error.to_string(), ranks)
        }
    };
    let ranks: Vec<u8> = (0..64).filter(|rank| ranks >> rank & 1 == 1).collect();
    let make = || {
        let ranks = PyTuple::new(py, ranks)?;
        let class = py.import("tally._errors")?.getattr(class)?;
        class.call1((text, ranks))
    };
    match make() {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// The name of the exception's class, and the ranks that it is about, bit by bit.
fn class_of(error: &LocalError) -> (&'static str, u64) {
    let failure = match error {
        LocalError::Refused { failure, .. } | LocalError::Failed { failure, .. } => failure,
        LocalError::Connect { .. } => return ("ConnectError", 0),
        LocalError::Gone { .. } | LocalError::Protocol { .. } => return ("AgentGoneError", 0),
        LocalError::Timeout { .. } => return ("TimeoutError", 0),
        LocalError::Argument(_) => return ("ArgumentError", 0),
        _ => return ("TallyError", 0),
    };
    let class = match failure.class {
        Class::Version => "VersionError",
        Class::Job | Class::Rank | Class::Workers | Class::Taken | Class::Leaving => "RefusedError",
        Class::Limit | Class::Memory => "LimitError",
        Class::Link => "LinkError",
        Class::Join => "JoinError",
        Class::Mismatch => "MismatchError",
        Class::Member => "MemberError",
        Class::Overflow => "OverflowError",
        Class::Silence => "TimeoutError",
        Class::Stopped => "AgentGoneError",
        Class::Malformed | Class::Other => "TallyError",
    };
    (class, failure.ranks)
}

/// One rank's place in a job.
#[pyclass(name = "Job", frozen)]
struct PyJob {
    job: Job,
    timeout: Duration,
}

#[pymethods]
impl PyJob {
    #[new]
    fn new(
        py: Python<'_>,
        socket: &str,
        job: u16,
        rank: u8,
        workers: u8,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let hello = Hello { job, rank, workers };
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        let timeout = timeout.min(Duration::from_secs(1 << 30));
        let job = py
            .detach(|| Job::connect(Path::new(socket), &hello, timeout))
            .map_err(|wrong| exception(py, &wrong))?;
        Ok(Self { job, timeout })
    }

    /// Copies `elements` and submits them. Returns the ticket.
    #[expect(clippy::too_many_arguments, reason = "as Python passes them")]
    fn submit(
        &self,
        py: Python<'_>,
        elements: &Bound<'_, PyArray1<u8>>,
        operation: &str,
        root: u8,
        dtype: &str,
        arithmetic: &str,
        place: (u16, u16),
        more_follow: bool,
        name: &str,
    ) -> PyResult<u64> {
        let bad = |text: String| exception(py, &Wrong::Local(LocalError::Argument(text)));
        let dtype = match dtype {
            "f32" => Dtype::F32,
            "f16" => Dtype::F16,
            "bf16" => Dtype::Bf16,
            "i32" => Dtype::I32,
            "i16" => Dtype::I16,
            "i8" => Dtype::I8,
            _ => return Err(bad(format!("`{name}`: no type `{dtype}`"))),
        };
        let operation = match operation {
            "sum" => Operation::Sum,
            "mean" => Operation::Mean,
            "broadcast" => Operation::Broadcast { root },
            _ => return Err(bad(format!("`{name}`: no operation `{operation}`"))),
        };
        let arithmetic = match arithmetic {
            "fixed" => Arithmetic::Fixed,
            "native" => Arithmetic::Native,
            "own" => Arithmetic::Own,
            _ => return Err(bad(format!("`{name}`: no arithmetic `{arithmetic}`"))),
        };
        let submission = Submission {
            operation,
            dtype,
            arithmetic,
            priority: Priority::Place {
                index: place.0,
                of: place.1,
            },
            more_follow,
            name: name.to_owned(),
        };
        let bytes = elements.try_readonly()?;
        let bytes = bytes.as_slice()?;
        let count = bytes.len() / dtype.bytes();
        let submit = || {
            let block = self.job.block(bytes.len())?;
            block.write(0, bytes);
            self.job.submit(block, count, &submission)
        };
        py.detach(submit).map_err(|wrong| exception(py, &wrong))
    }

    /// Waits for a collective, and copies its results to `into` if there is any. A collective is waited for once.
    #[pyo3(signature = (ticket, into, timeout_s=None))]
    fn wait(
        &self,
        py: Python<'_>,
        ticket: u64,
        into: Option<&Bound<'_, PyArray1<u8>>>,
        timeout_s: Option<f64>,
    ) -> PyResult<()> {
        let most = timeout_s.map_or(self.timeout, |it| {
            Duration::try_from_secs_f64(it).unwrap_or(self.timeout)
        });
        let deadline = Instant::now() + most;
        let block = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let slice = left.min(SIGNALS_EVERY);
            match py.detach(|| self.job.wait(ticket, slice)) {
                Ok(block) => break block,
                Err(Wrong::Local(LocalError::Timeout { .. })) if left > slice => {}
                Err(wrong) => {
                    self.job.abandon(ticket);
                    return Err(exception(py, &wrong.after(most)));
                }
            }
            if let Err(interrupted) = py.check_signals() {
                self.job.abandon(ticket);
                return Err(interrupted);
            }
        };
        let Some(block) = block else { return Ok(()) };
        if let Some(into) = into {
            let mut into = into.try_readwrite()?;
            let into = into.as_slice_mut()?;
            py.detach(|| block.read(0, into));
        }
        self.job.give_back(block);
        Ok(())
    }

    /// Submits a barrier. Returns the ticket.
    fn barrier(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        py.detach(|| self.job.barrier(name))
            .map_err(|wrong| exception(py, &wrong))
    }

    /// Nobody will wait for a collective: its memory is used again once it is done.
    fn abandon(&self, ticket: u64) {
        self.job.abandon(ticket);
    }

    /// Leaves the job in order.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.job.finish(self.timeout))
            .map_err(|wrong| exception(py, &wrong))
    }

    /// Drops the connection: the other ranks are told that this one failed.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.job.abort());
    }

    /// Whether it was finished or aborted.
    fn is_closed(&self) -> bool {
        self.job.is_closed()
    }
}

/// What the agent at `socket` says of its jobs: JSON.
#[pyfunction]
fn status(py: Python<'_>, socket: &str, timeout_s: f64) -> PyResult<String> {
    let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
    py.detach(|| tally_local::status(Path::new(socket), timeout))
        .map_err(|error| exception(py, &Wrong::Local(error)))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyJob>()?;
    module.add_function(wrap_pyfunction!(status, module)?)
}
