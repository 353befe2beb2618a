//! The C interface to Tally, as a library: `tally.h` says what each function does.
//!
//! # How it works
//!
//! A `tally_job` is a [`Job`] in a box and a `tally_region` a [`Region`] in one; C has the box's
//! address. What goes wrong is kept for the thread that it happened to: connecting has no job yet
//! to keep it in, and threads share jobs.
//!
//! # The catches
//!
//! * Enumerations come as integers, as C may pass what is none of them.
//! * No panic leaves a function (`guard`).

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::slice;
use std::time::Duration;
use tally_local::{
    Arithmetic, Block, Dtype, Hello, Job, JobError, LocalError, Operation, Priority, Ranks, Region,
    Submission, WORKERS_MAX,
};

/// `TALLY_OK`; all else is a [`Kind`](tally_local::Kind).
const OK: c_int = 0;
/// `TALLY_DEFAULT_SOCKET`.
const DEFAULT_SOCKET: &str = "/run/tally/agent/agent.sock";

/// `tally_job`.
pub struct TallyJob {
    job: Job,
    timeout: Duration,
}

/// `tally_region`.
pub struct TallyRegion(Region);

thread_local! {
    /// What went wrong last, and the ranks that it is about.
    static LAST: RefCell<Option<(CString, Ranks)>> = const { RefCell::new(None) };
}

/// Does `what`, and turns what goes wrong into a code, with its words kept.
fn guard(what: impl FnOnce() -> Result<(), JobError>) -> c_int {
    // What a panic leaves of a job is whole (`Job`), and of an array is as undefined as C would
    // have it.
    let Err(error) = catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|_| {
        let (what, source) = (
            "a bug of Tally's".into(),
            io::Error::other("see what it printed"),
        );
        Err(LocalError::System { what, source }.into())
    }) else {
        return OK;
    };
    let text = error.to_string().replace('\0', " ");
    // A thread that is ending asks for it no more.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Some((CString::new(text).unwrap_or_default(), error.ranks()));
    });
    error.kind() as c_int
}

fn bad(text: impl Into<String>) -> JobError {
    LocalError::Argument(text.into()).into()
}

/// # Safety
/// `it` is null, or points to what lives for `'a` and is not written meanwhile.
unsafe fn some<'a, T>(it: *const T, what: &str) -> Result<&'a T, JobError> {
    // SAFETY: the caller's.
    unsafe { it.as_ref() }.ok_or_else(|| bad(format!("{what} is null")))
}

/// Writes what a function gives.
///
/// # Safety
/// `into` is null, or may be written.
unsafe fn give<T>(into: *mut T, value: T) {
    if !into.is_null() {
        // SAFETY: the caller's.
        unsafe { into.write(value) };
    }
}

fn not_null<T>(into: *mut T, what: &str) -> Result<(), JobError> {
    if into.is_null() {
        return Err(bad(format!("the pointer for {what} is null")));
    }
    Ok(())
}

/// # Safety
/// `text` is null, or ends with zero and lives as long as what this returns.
unsafe fn text(text: *const c_char, or: &str) -> Result<&str, JobError> {
    if text.is_null() {
        return Ok(or);
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| bad(format!("{text:?} is not UTF-8")))
}

/// A number that must be one of a smaller type.
fn small<T: TryFrom<c_int>>(value: c_int, what: &str, range: &str) -> Result<T, JobError> {
    T::try_from(value).map_err(|_| bad(format!("{what}: found {value}, expected {range}")))
}

/// What C passes of a collective on elements.
struct Wanted {
    dtype: c_int,
    arithmetic: c_int,
    priority: c_int,
}

impl Wanted {
    fn submission(&self, operation: Operation, name: &str) -> Result<Submission, JobError> {
        let bad = |what: &str, found: c_int, known: &str| {
            bad(format!("`{name}`: {what}: found {found}, expected {known}"))
        };
        let priority = match self.priority {
            -1 => Priority::FIRST,
            it => {
                let fixed = u8::try_from(it);
                Priority::Fixed(fixed.map_err(|_| bad("priority", it, "-1, or 0 to 255"))?)
            }
        };
        let dtype = Dtype::ALL.into_iter().find(|it| *it as c_int == self.dtype);
        let arithmetic = Arithmetic::ALL
            .into_iter()
            .find(|it| *it as c_int == self.arithmetic);
        Ok(Submission {
            operation,
            dtype: dtype.ok_or_else(|| bad("dtype", self.dtype, "a tally_dtype"))?,
            arithmetic: arithmetic
                .ok_or_else(|| bad("arithmetic", self.arithmetic, "a tally_arithmetic"))?,
            priority,
            more_follow: false,
            name: name.to_owned(),
        })
    }
}

fn operation(op: c_int, name: &str) -> Result<Operation, JobError> {
    match op {
        0 => Ok(Operation::Sum),
        1 => Ok(Operation::Mean),
        _ => Err(bad(format!(
            "`{name}`: op: found {op}, expected a tally_op"
        ))),
    }
}

/// Waits for a collective. If time is over, and there was any, the error has what the agent knows
/// of the cause.
fn wait(job: &Job, ticket: u64, most: Duration) -> Result<Option<Block>, JobError> {
    match job.wait(ticket, most) {
        Err(error) if error.is_late() && !most.is_zero() => {
            let error = job.explain(error);
            // It may have been done while the agent answered.
            job.wait(ticket, Duration::ZERO)
                .map_err(|now| if now.is_late() { error } else { now })
        }
        done => done,
    }
}

fn millis(timeout_ms: u32) -> Duration {
    Duration::from_millis(timeout_ms.into())
}

/// See `tally.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tally_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// See `tally.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tally_last_error() -> *const c_char {
    let of = |last: &RefCell<Option<(CString, Ranks)>>| {
        let last = last.borrow();
        last.as_ref()
            .map_or(c"".as_ptr(), |(text, _)| text.as_ptr())
    };
    LAST.try_with(of).unwrap_or(c"".as_ptr())
}

/// See `tally.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tally_last_error_ranks() -> u64 {
    last_ranks().bits()
}

/// See `tally.h`.
///
/// # Safety
/// `first` is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_last_error_rank_range(first: *mut c_int) -> c_int {
    let Some((start, end)) = last_ranks().run() else {
        return 0;
    };
    if !first.is_null() {
        // SAFETY: the caller's.
        unsafe { give(first, start.into()) };
    }
    (end - start).into()
}

fn last_ranks() -> Ranks {
    let of = |last: &RefCell<Option<(CString, Ranks)>>| {
        let last = last.borrow();
        last.as_ref().map_or(Ranks::NONE, |it| it.1)
    };
    LAST.try_with(of).unwrap_or(Ranks::NONE)
}

/// See `tally.h`.
///
/// # Safety
/// `socket` is null, or text that ends with zero; `out` is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_connect(
    socket: *const c_char,
    job: c_int,
    rank: c_int,
    workers: c_int,
    timeout_ms: u32,
    out: *mut *mut TallyJob,
) -> c_int {
    guard(|| {
        not_null(out, "the job")?;
        // SAFETY: the caller's.
        let socket = unsafe { text(socket, DEFAULT_SOCKET) }?;
        let hello = Hello {
            job: small(job, "job", "0 to 65535")?,
            rank: small(rank, "rank", "0 to 4095")?,
            workers: small(workers, "workers", "1 to 4096")?,
        };
        if !(1..=c_int::from(WORKERS_MAX)).contains(&workers) || rank >= workers {
            return Err(bad(format!(
                "rank {rank} of {workers} workers: expected 1 to {WORKERS_MAX} workers, and a rank \
                 below that"
            )));
        }
        let timeout = millis(timeout_ms);
        let job = Job::connect(Path::new(socket), &hello, timeout, |_| true)?;
        let job = Box::into_raw(Box::new(TallyJob { job, timeout }));
        // SAFETY: the caller's.
        unsafe { give(out, job) };
        Ok(())
    })
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null or a live job; `out` is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_region_create(
    job: *mut TallyJob,
    bytes: usize,
    out: *mut *mut TallyRegion,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        let job = unsafe { some(job, "the job") }?;
        not_null(out, "the region")?;
        let region = job.job.region(bytes)?;
        let region = Box::into_raw(Box::new(TallyRegion(region)));
        // SAFETY: the caller's.
        unsafe { give(out, region) };
        Ok(())
    })
}

/// See `tally.h`.
///
/// # Safety
/// `region` is null or a live region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_region_data(region: *const TallyRegion) -> *mut c_void {
    // SAFETY: the caller's.
    let region = unsafe { region.as_ref() };
    region.map_or(ptr::null_mut(), |it| it.0.as_ptr().cast())
}

/// See `tally.h`.
///
/// # Safety
/// `region` is null or a live region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_region_bytes(region: *const TallyRegion) -> usize {
    // SAFETY: the caller's.
    unsafe { region.as_ref() }.map_or(0, |it| it.0.bytes())
}

/// See `tally.h`.
///
/// # Safety
/// `region` is null, or a live region that no other call is using. It lives no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_region_free(region: *mut TallyRegion) {
    guard(|| {
        if !region.is_null() {
            // SAFETY: the caller's; it came from a box.
            drop(unsafe { Box::from_raw(region) });
        }
        Ok(())
    });
}

/// Submits a collective on a part of a region.
///
/// # Safety
/// As for [`tally_all_reduce`].
unsafe fn submit(
    (job, region): (*mut TallyJob, *mut TallyRegion),
    (offset, elements): (usize, usize),
    submission: impl FnOnce() -> Result<Submission, JobError>,
    ticket: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        let (job, region) = unsafe { (some(job, "the job")?, some(region, "the region")?) };
        not_null(ticket, "the ticket")?;
        let (submission, timeout) = (submission()?, job.timeout);
        let given = job
            .job
            .submit(&region.0, offset, elements, &submission, timeout)
            .map_err(|error| job.job.explain(error))?;
        // SAFETY: the caller's.
        unsafe { give(ticket, given) };
        Ok(())
    })
}

/// See `tally.h`.
///
/// # Safety
/// `job` and `region` are null or live; `name` is null, or text that ends with zero; `ticket` is
/// null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_all_reduce(
    job: *mut TallyJob,
    region: *mut TallyRegion,
    offset: usize,
    elements: usize,
    dtype: c_int,
    op: c_int,
    arithmetic: c_int,
    priority: c_int,
    name: *const c_char,
    ticket: *mut u64,
) -> c_int {
    let submission = || {
        // SAFETY: the caller's.
        let name = unsafe { text(name, "all_reduce") }?;
        let wanted = Wanted {
            dtype,
            arithmetic,
            priority,
        };
        wanted.submission(operation(op, name)?, name)
    };
    // SAFETY: the caller's.
    unsafe { submit((job, region), (offset, elements), submission, ticket) }
}

/// See `tally.h`.
///
/// # Safety
/// As for [`tally_all_reduce`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_broadcast(
    job: *mut TallyJob,
    region: *mut TallyRegion,
    offset: usize,
    elements: usize,
    dtype: c_int,
    root: c_int,
    priority: c_int,
    name: *const c_char,
    ticket: *mut u64,
) -> c_int {
    let submission = || {
        // SAFETY: the caller's.
        let name = unsafe { text(name, "broadcast") }?;
        let root = small(root, &format!("`{name}`: root"), "a rank")?;
        let arithmetic = Arithmetic::Own as c_int;
        let wanted = Wanted {
            dtype,
            arithmetic,
            priority,
        };
        wanted.submission(Operation::Broadcast { root }, name)
    };
    // SAFETY: the caller's.
    unsafe { submit((job, region), (offset, elements), submission, ticket) }
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null or live; `name` is null, or text that ends with zero; `ticket` is null, or may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_barrier(
    job: *mut TallyJob,
    name: *const c_char,
    ticket: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        let (job, name) = unsafe { (some(job, "the job")?, text(name, "barrier")?) };
        not_null(ticket, "the ticket")?;
        let given = job.job.barrier(name, job.timeout);
        let given = given.map_err(|error| job.job.explain(error))?;
        // SAFETY: the caller's.
        unsafe { give(ticket, given) };
        Ok(())
    })
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_wait(job: *mut TallyJob, ticket: u64, timeout_ms: u32) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        let job = &unsafe { some(job, "the job") }?.job;
        let most = millis(timeout_ms);
        wait(job, ticket, most).map(drop)
    })
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null or live; `done` is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_test(job: *mut TallyJob, ticket: u64, done: *mut c_int) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        let job = &unsafe { some(job, "the job") }?.job;
        not_null(done, "whether it is done")?;
        let is_done = match job.wait(ticket, Duration::ZERO) {
            Ok(_) => true,
            Err(error) if error.is_late() => false,
            Err(error) => return Err(error),
        };
        // SAFETY: the caller's.
        unsafe { give(done, is_done.into()) };
        Ok(())
    })
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null or live; `data` is null, or `elements` elements that no other thread accesses;
/// `name` is null, or text that ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_all_reduce_array(
    job: *mut TallyJob,
    data: *mut c_void,
    elements: usize,
    dtype: c_int,
    op: c_int,
    arithmetic: c_int,
    priority: c_int,
    name: *const c_char,
    timeout_ms: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        let (job, name) = unsafe { (some(job, "the job")?, text(name, "all_reduce")?) };
        let wanted = Wanted {
            dtype,
            arithmetic,
            priority,
        };
        let submission = wanted.submission(operation(op, name)?, name)?;
        let bytes = elements.checked_mul(submission.dtype.bytes());
        let bytes = bytes
            .filter(|it| isize::try_from(*it).is_ok())
            .ok_or_else(|| {
                bad(format!(
                    "`{name}`: {elements} elements are more than there is memory for"
                ))
            })?;
        let data = match (data.is_null(), bytes) {
            (_, 0) => &mut [][..],
            (true, _) => return Err(bad(format!("`{name}`: the data is null"))),
            // SAFETY: the caller's: so many bytes, as whole elements, are there, and ours alone.
            (false, _) => unsafe { slice::from_raw_parts_mut(data.cast::<u8>(), bytes) },
        };
        let (job, most) = (&job.job, millis(timeout_ms));
        let block = job.block(name, bytes)?;
        block.write(data);
        let ticket = job.submit_block(block, elements, &submission, most);
        let ticket = ticket.map_err(|error| job.explain(error))?;
        let block = wait(job, ticket, most).inspect_err(|_| job.abandon(ticket))?;
        if let Some(block) = block {
            block.read(data);
            job.give_back(block);
        }
        Ok(())
    })
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_finish(job: *mut TallyJob, timeout_ms: u32) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        let job = &unsafe { some(job, "the job") }?.job;
        job.finish(millis(timeout_ms))
    })
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_abort(job: *mut TallyJob) {
    guard(|| {
        // SAFETY: the caller's.
        if let Some(job) = unsafe { job.as_ref() } {
            job.job.abort();
        }
        Ok(())
    });
}

/// See `tally.h`.
///
/// # Safety
/// `job` is null, or a live job that no other call is using. It lives no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tally_free(job: *mut TallyJob) {
    guard(|| {
        if !job.is_null() {
            // SAFETY: the caller's; it came from a box.
            drop(unsafe { Box::from_raw(job) });
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_local::Failure;

    #[test]
    fn ranks_of_a_wide_job_are_a_range() {
        let fail = |ranks| {
            guard(|| {
                let (job, rank, text) = (7, 100, "why".to_owned());
                let class = tally_local::Class::Member;
                let failure = Failure { class, ranks, text };
                Err(LocalError::Failed { job, rank, failure }.into())
            });
            let mut first = -1;
            // SAFETY: `first` may be written, and null may be given.
            let count = unsafe { tally_last_error_rank_range(&raw mut first) };
            // SAFETY: as above.
            let without = unsafe { tally_last_error_rank_range(ptr::null_mut()) };
            assert_eq!(without, count);
            (tally_last_error_ranks(), first, count)
        };
        assert_eq!(fail(Ranks::of_range(70, 90)), (0, 70, 20));
        assert_eq!(fail(Ranks::of_range(63, 65)), (1 << 63, 63, 2));
        assert_eq!(fail(Ranks::of_bits(0b1011)), (0b1011, 0, 2));
        assert_eq!(fail(Ranks::NONE), (0, -1, 0));
    }

    #[test]
    fn a_panic_is_an_error_of_this_thread() {
        let code = guard(|| panic!("on purpose"));
        assert_eq!(code, tally_local::Kind::Other as c_int);
        // SAFETY: text that ends with zero, and lives as long as this thread.
        let said = || unsafe { CStr::from_ptr(tally_last_error()) }.to_owned();
        assert!(said().to_str().is_ok_and(|it| it.contains("a bug")));
        let other = std::thread::spawn(|| tally_last_error_ranks());
        assert!(other.join().is_ok_and(|it| it == 0));
        assert_eq!(guard(|| Ok(())), OK);
        assert!(!said().is_empty(), "it stays until the next");
    }
}
