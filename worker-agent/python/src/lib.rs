//! The native half of the Python package `tally`: a [`Job`] for Python's threads.
//!
//! # How it works
//!
//! A collective's elements are copied into shared memory (a block), submitted, and copied back when
//! they are done. Python hands over arrays of bytes and the names of types and operations: what a
//! person may pass and gets told is the business of the Python half.
//!
//! # The catches
//!
//! * The interpreter's lock is given up while elements are copied: other threads run meanwhile, and
//!   leave the array alone, as the documentation of `Handle` asks them to.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::Path;
use std::time::{Duration, Instant};
use tally_local::{
    Arithmetic, Dtype, Hello, Job, JobError, Kind, LocalError, Operation, Priority, Retry,
    Submission,
};

/// How often Python may look for signals, such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// The exception of `tally._errors` for an error.
fn exception(py: Python<'_>, error: &JobError) -> PyErr {
    let class = match error.kind() {
        Kind::Other => "TallyError",
        Kind::Argument => "ArgumentError",
        Kind::Closed => "ClosedError",
        Kind::Connect => "ConnectError",
        Kind::Refused => "RefusedError",
        Kind::Version => "VersionError",
        Kind::Limit => "LimitError",
        Kind::Link => "LinkError",
        Kind::Join => "JoinError",
        Kind::Mismatch => "MismatchError",
        Kind::Member => "MemberError",
        Kind::Overflow => "OverflowError",
        Kind::Timeout => "TimeoutError",
        Kind::AgentGone => "AgentGoneError",
    };
    let ranks: Vec<u16> = error.ranks().iter().collect();
    let make = || {
        let ranks = PyTuple::new(py, ranks)?;
        let class = py.import("tally._errors")?.getattr(class)?;
        class.call1((error.to_string(), ranks))
    };
    match make() {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// Of so many seconds; what is too long for a machine is long enough for people.
fn duration(seconds: f64) -> Duration {
    let longest = Duration::from_secs(1 << 30);
    let it = Duration::try_from_secs_f64(seconds.max(0.0));
    it.map_or(longest, |it| it.min(longest))
}

/// Waits up to `most`, and looks for signals meanwhile. If time is over, and there was any, the
/// error has what the agent knows of the cause.
fn patiently<T: Send>(
    py: Python<'_>,
    job: &Job,
    most: Duration,
    wait: impl Fn(Duration) -> Result<T, JobError> + Sync,
) -> PyResult<T> {
    let deadline = Instant::now() + most;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let slice = left.min(SIGNALS_EVERY);
        match py.detach(|| wait(slice)) {
            Err(error) if error.is_late() && left > slice => py.check_signals()?,
            Err(error) if error.is_late() && !most.is_zero() => {
                let error = py.detach(|| job.explain(error)).after(most);
                // It may have been done while the agent answered.
                return py
                    .detach(|| wait(Duration::ZERO))
                    .map_err(|now| exception(py, if now.is_late() { &error } else { &now }));
            }
            done => return done.map_err(|error| exception(py, &error.after(most))),
        }
    }
}

/// Logs to the logger `tally`. A program that configures no logging sees it on standard error.
fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let logger = py
        .import("logging")?
        .call_method1("getLogger", ("tally",))?;
    // The text is no format: without arguments it is left as it is.
    logger.call_method1("warning", (text,)).map(drop)
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
        rank: u16,
        workers: u16,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let hello = Hello { job, rank, workers };
        let timeout = duration(timeout_s);
        let mut interrupted = None;
        let wanted = |retry: &Retry<'_>| {
            let looked = Python::attach(|py| {
                if retry.is_due {
                    warn(py, &format!("tally: {retry}"))?;
                }
                py.check_signals()
            });
            interrupted = looked.err();
            interrupted.is_none()
        };
        let job = py.detach(|| Job::connect(Path::new(socket), &hello, timeout, wanted));
        match (job, interrupted) {
            (_, Some(interrupted)) => Err(interrupted),
            (job, None) => {
                let job = job.map_err(|error| exception(py, &error))?;
                Ok(Self { job, timeout })
            }
        }
    }

    /// Copies `elements` and submits them. Returns the ticket.
    #[expect(clippy::too_many_arguments, reason = "as Python passes them")]
    fn submit(
        &self,
        py: Python<'_>,
        elements: &Bound<'_, PyArray1<u8>>,
        operation: &str,
        root: u16,
        dtype: &str,
        arithmetic: &str,
        place: (u16, u16),
        more_follow: bool,
        name: &str,
    ) -> PyResult<u64> {
        let bad = |text: String| exception(py, &LocalError::Argument(text).into());
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
        let bytes = elements.try_readonly();
        let bytes = bytes.map_err(|why| bad(format!("`{name}`: the array is in use: {why}")))?;
        let bytes = bytes.as_slice()?;
        let count = bytes.len() / dtype.bytes();
        patiently(py, &self.job, self.timeout, |slice| {
            self.job.room(name, slice)
        })?;
        let submit = || {
            let block = self.job.block(name, bytes.len())?;
            block.write(bytes);
            let job = &self.job;
            job.submit_block(block, count, &submission, self.timeout)
        };
        py.detach(submit).map_err(|error| exception(py, &error))
    }

    /// Waits for a collective, and copies its results to `into` if there is any. After a wait that
    /// was too short, or that a signal ended, it can be waited for again.
    #[pyo3(signature = (ticket, into, timeout_s=None))]
    fn wait(
        &self,
        py: Python<'_>,
        ticket: u64,
        into: Option<&Bound<'_, PyArray1<u8>>>,
        timeout_s: Option<f64>,
    ) -> PyResult<()> {
        let most = timeout_s.map_or(self.timeout, duration);
        let block = patiently(py, &self.job, most, |slice| self.job.wait(ticket, slice))?;
        let Some(block) = block else { return Ok(()) };
        if let Some(into) = into {
            let mut into = into.try_readwrite()?;
            let into = into.as_slice_mut()?;
            py.detach(|| block.read(into));
        }
        self.job.give_back(block);
        Ok(())
    }

    /// Raises the error of a wait of `seconds` for the collective `name` that was made in Python,
    /// with what the agent knows of the cause.
    fn late(&self, py: Python<'_>, name: &str, seconds: f64) -> PyErr {
        let error = py.detach(|| self.job.late(name, duration(seconds)));
        exception(py, &error)
    }

    /// Submits a barrier. Returns the ticket.
    fn barrier(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        patiently(py, &self.job, self.timeout, |slice| {
            self.job.room(name, slice)
        })?;
        py.detach(|| self.job.barrier(name, self.timeout))
            .map_err(|error| exception(py, &error))
    }

    /// Has the agent count collectives that another library did. Never waits, and fails for nothing
    /// but its arguments.
    fn report_fallback(&self, py: Python<'_>, kind: &str, count: u64) -> PyResult<()> {
        let reported = self.job.report_fallback(kind, count);
        reported.map_err(|error| exception(py, &error))
    }

    /// Abandons a collective: its memory is reused once it is done.
    fn abandon(&self, ticket: u64) {
        self.job.abandon(ticket);
    }

    /// Leaves the job in order.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.job.finish(self.timeout))
            .map_err(|error| exception(py, &error))
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
    let timeout = duration(timeout_s);
    py.detach(|| tally_local::status(Path::new(socket), timeout))
        .map_err(|error| exception(py, &error.into()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyJob>()?;
    module.add_function(wrap_pyfunction!(status, module)?)
}
