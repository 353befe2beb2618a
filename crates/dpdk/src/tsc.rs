//! The time-stamp counter: the cheapest clock there is: one instruction.
//!
//! The catch: it is a counter, not a time. It is synchronous between cores on every server of
//! the last decade (`constant_tsc`, `nonstop_tsc`), but not ordered against other instructions.

use dpdk_sys as sys;

/// Cycles since some point in the past.
#[inline]
#[must_use]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and Linux lets user space run it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: reads a counter; there is nothing to uphold.
    return unsafe { sys::tally_rdtsc() };
}

/// How many [`cycles`] there are in a second; DPDK measures it when the EAL starts, hence the
/// argument.
#[must_use]
pub fn cycles_per_second(_eal: &crate::Eal) -> u64 {
    // SAFETY: reads a variable that is constant once the EAL is initialised, and it is.
    unsafe { sys::rte_get_tsc_hz() }
}
