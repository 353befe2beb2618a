//! Why something on the control path failed. The data path has no errors, only counts.

use std::ffi::{CStr, CString, c_int};
use std::fmt;

use dpdk_sys as sys;

/// What can go wrong while setting things up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// DPDK allows one initialisation per process, even after clean-up.
    #[error("the EAL was already initialised in this process")]
    AlreadyInitialised,
    /// The EAL refused; it says more on stderr at [`LogLevel::Error`](crate::LogLevel::Error).
    #[error("the EAL did not start with `{arguments}`: {errno}")]
    EalInit {
        /// The arguments it was started with.
        arguments: String,
        /// DPDK's reason.
        errno: Errno,
    },
    /// The thread that initialises the EAL could not be made, or died.
    #[error("the EAL's initialisation thread failed: {0}")]
    InitThread(String),
    /// A name or an argument holds a NUL byte.
    #[error("{0:?} holds a NUL byte")]
    Nul(String),
    /// A DPDK call failed.
    #[error("{call} of {subject}: {errno}")]
    Call {
        /// What was called.
        call: &'static str,
        /// On which pool, port or device.
        subject: String,
        /// DPDK's reason.
        errno: Errno,
    },
    /// A value is outside of what DPDK, the driver or the device takes.
    #[error("{subject}: {what} is {value}, but at most {max} is possible")]
    TooMuch {
        /// Which pool or port.
        subject: String,
        /// Which value.
        what: &'static str,
        /// What was asked for.
        value: usize,
        /// What is possible.
        max: usize,
    },
    /// A value that must not be zero is.
    #[error("{subject}: {what} is zero")]
    Zero {
        /// Which pool or port.
        subject: String,
        /// Which value.
        what: &'static str,
    },
    /// One pool for all receive queues, or one for each.
    #[error("{subject}: {pools} pools given for {rx_queues} receive queues: give 1 or {rx_queues}")]
    PoolCount {
        /// Which port.
        subject: String,
        /// Pools given.
        pools: usize,
        /// Receive queues asked for.
        rx_queues: u16,
    },
    /// The driver takes no such flow rule.
    #[error("{subject} takes no flow rule for UDP port {udp_port}: {why}")]
    Rule {
        /// Which port.
        subject: String,
        /// Where the datagrams of the rule go to.
        udp_port: u16,
        /// The driver's words, or those for its errno.
        why: String,
    },
    /// The thread is registered already.
    #[error("this thread is already registered with the EAL")]
    ThreadRegistered,
    /// The device was created, but it is no Ethernet port.
    #[error("{0} has no Ethernet port")]
    NoPort(String),
}

impl Error {
    /// For calls that return zero or a negative errno.
    pub(crate) fn check(call: &'static str, subject: &str, ret: c_int) -> Result<(), Self> {
        if ret >= 0 {
            return Ok(());
        }
        Err(Self::Call {
            call,
            subject: subject.to_owned(),
            errno: Errno(-ret),
        })
    }

    /// For calls that leave their reason in `rte_errno`, on the thread that called.
    pub(crate) fn last(call: &'static str, subject: &str) -> Self {
        Self::Call {
            call,
            subject: subject.to_owned(),
            errno: Errno::last(),
        }
    }
}

/// An errno as DPDK uses them: the system's numbers and a few of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub c_int);

impl Errno {
    /// The calling thread's `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local variable; there is nothing to uphold.
        Self(unsafe { sys::tally_errno() })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: takes any number and returns a NUL-terminated string: a constant, or a buffer of
        // this thread's, which nothing overwrites before it is formatted below.
        let text = unsafe { CStr::from_ptr(sys::rte_strerror(self.0)) };
        write!(f, "{} (errno {})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Nul(text.to_owned()))
}
