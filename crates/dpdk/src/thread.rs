//! Making a thread known to the EAL, so that it gets a pool cache of its own.
//!
//! # The idea
//!
//! Tally runs and pins its own threads. To DPDK they are strangers: it gives a cache of buffers
//! only to threads with an lcore number. Registering gets one.
//!
//! # The catches
//!
//! - Without it everything works, but each allocation and each free goes to the pool's shared
//!   ring with an atomic compare-and-swap, whose cache line all cores contend for.
//!   Alone on a machine that is 50 against 20 cycles for each frame that is allocated and freed by
//!   itself, and 17 against 15 in bulk (`cargo run --release -p tally-dpdk --example burst_cost`,
//!   on a virtual machine of an AMD EPYC at 2.6 GHz); with other cores at the same ring it is
//!   worse.
//! - Registering turns off multi-process support for good: no secondary process (`dpdk-pdump`,
//!   `dpdk-proc-info`) can attach from then on, and it fails if one has.
//! - There are 128 numbers (`RTE_MAX_LCORE`), one of which the EAL keeps.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::eal::{Eal, EalInner};
use crate::error::Error;

thread_local! {
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's registration; it ends when this value is dropped, on the same thread.
pub struct EalThread {
    eal: Arc<EalInner>,
    /// Registration belongs to the thread: neither `Send` nor `Sync`.
    _thread: PhantomData<*mut ()>,
}

impl EalThread {
    /// Registers the calling thread. Pin it first: DPDK notes the affinity it finds.
    ///
    /// # Errors
    ///
    /// [`Error::ThreadRegistered`] if it is registered already; [`Error::Call`] if there is no
    /// number left (`ENOMEM`) or a secondary process is attached (`EINVAL`).
    pub fn register(eal: &Eal) -> Result<Self, Error> {
        if REGISTERED.get() {
            return Err(Error::ThreadRegistered);
        }
        // SAFETY: the EAL is initialised, and this thread is no EAL thread: the one that
        // initialised the EAL was the EAL's own and is gone, and the flag says that we have not
        // registered it.
        if unsafe { sys::rte_thread_register() } != 0 {
            return Err(Error::last("rte_thread_register", "this thread"));
        }
        REGISTERED.set(true);
        Ok(Self {
            eal: Arc::clone(eal.inner()),
            _thread: PhantomData,
        })
    }
}

impl Drop for EalThread {
    fn drop(&mut self) {
        // Buffers left in the caches would be lost to all others until some thread gets the same
        // number again, and pools freed on the count of their rings rely on it (see `Mempool`).
        self.eal.flush_caches();
        // SAFETY: this thread registered, and unregisters once: the value is not `Send`.
        unsafe { sys::rte_thread_unregister() };
        REGISTERED.set(false);
    }
}
