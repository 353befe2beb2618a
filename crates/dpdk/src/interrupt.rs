//! Running something on the EAL's interrupt thread.
//!
//! `net_memif` handles what its peer says there, without a lock against the control path: a
//! peer that connects while the port is being configured, or leaves while it is being closed,
//! crashes the process. On that thread our calls and its handlers take turns.

use std::ffi::c_void;

use dpdk_sys as sys;

/// Runs `job` on the interrupt thread if `there`, else here, and returns what it does.
pub(crate) fn run<R: Send, J: FnOnce() -> R + Send>(there: bool, job: J) -> R {
    if !there {
        return job();
    }
    let mut errand = Errand {
        job: Some(job),
        result: None,
    };
    let argument = (&raw mut errand).cast::<c_void>();
    // SAFETY: the EAL is initialised, as callers hold ports. `argument` is an `Errand<R, J>`, to
    // which nothing else refers until the call returns, which it does only when the job is done or
    // will never be run. Job and result may change threads. The interrupt thread waits for no lock
    // of ours.
    unsafe { sys::tally_on_interrupt_thread(Some(perform::<R, J>), argument) };
    match (errand.result, errand.job) {
        (Some(result), _) => result,
        // No alarm could be set.
        (None, Some(job)) => job(),
        (None, None) => unreachable!("a job that was taken leaves its result"),
    }
}

struct Errand<R, J> {
    job: Option<J>,
    result: Option<R>,
}

/// A panic in the job aborts: it can't unwind into C.
extern "C" fn perform<R, J: FnOnce() -> R>(argument: *mut c_void) {
    // SAFETY: `run` passes an `Errand<R, J>` that is ours until this returns.
    let errand = unsafe { &mut *argument.cast::<Errand<R, J>>() };
    errand.result = errand.job.take().map(|job| job());
}
