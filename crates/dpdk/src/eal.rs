//! The environment abstraction layer: DPDK's memory and drivers, once per process.
//!
//! # How it works
//!
//! DPDK turns the thread that calls `rte_eal_init` into its main lcore: it pins it and gives it a
//! pool cache. We run and pin our own threads, so initialisation happens on a thread that
//! ends right after. The caller's affinity is never touched, no thread is an lcore by accident,
//! and every thread that wants a cache asks for it ([`crate::EalThread`]).
//!
//! # The catches
//!
//! - The EAL's own helper threads (interrupts, memif's control channel) inherit the CPUs that
//!   the caller of [`Eal::init`] may use, less `main_cpu` if others remain. So call it before
//!   pinning the caller to a data path CPU.
//! - DPDK exits for nothing, but it panics the process on some failures to make threads.
//! - The EAL logs to stderr and to syslog; there's no turning off the latter.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::fs;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use dpdk_sys as sys;

use crate::error::{Errno, Error, c_string};

/// The argument of `net_memif` that shares a client's buffers with its peer.
pub(crate) const ZERO_COPY: &str = "zero-copy=yes";

/// `EALREADY`, which DPDK answers to a second initialisation.
const EALREADY: i32 = 114;

/// Where packet memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Ordinary pages (`--no-huge --no-shconf`): for tests and for hosts without hugepages. Works
    /// as an ordinary user, leaves no files behind, and is never enough for a NIC that does
    /// DMA by physical address. All of it is reserved at start; none can be added.
    NoHuge {
        /// Size in MiB.
        megabytes: u32,
    },
    /// Hugepages without files (`--in-memory`): nothing is left behind, also after a crash, and
    /// processes can't disturb each other. The production setting.
    InMemory {
        /// MiB reserved at start; more is taken when pools need it.
        megabytes: u32,
    },
    /// Hugepages as files in hugetlbfs: lets secondary processes (`dpdk-pdump`) attach. The files
    /// stay when the process ends, well or not, and hold their pages until the next one with the
    /// same prefix takes them over.
    Hugepages {
        /// MiB reserved at start; more is taken when pools need it.
        megabytes: u32,
    },
}

/// How devices address memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iova {
    /// By virtual address: no privileges, but physical devices need an IOMMU.
    #[default]
    Va,
    /// By physical address: needs root and hugepages.
    Pa,
    /// As DPDK sees fit.
    Auto,
}

/// The least severe message that DPDK prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// What went wrong.
    #[default]
    Error,
    /// What may go wrong.
    Warning,
    /// DPDK's own default.
    Notice,
    /// What it does.
    Info,
    /// Everything.
    Debug,
}

/// How to start the EAL. [`EalConfig::no_huge`] and [`EalConfig::in_memory`] are starting points.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// Where packet memory comes from.
    pub memory: Memory,
    /// Names the files of [`Memory::Hugepages`]; two processes at the same time need two names, and
    /// one that's started again needs the same. `tally` by default.
    pub file_prefix: String,
    /// PCI devices to use, such as `0000:01:00.0`; if empty, PCI is off.
    pub pci_allow: Vec<String>,
    /// How devices address memory. [`Memory::NoHuge`] is always by virtual address.
    pub iova: Iova,
    /// The CPU of the EAL's one lcore, on which nothing runs once the EAL is up, and whose NUMA
    /// node is the default for memory. By default the first CPU that the caller may run on.
    pub main_cpu: Option<usize>,
    /// DPDK's log level.
    pub log_level: LogLevel,
    /// Packet memory in one file for each page size, which `net_memif` needs to share buffers with
    /// its peer (`zero-copy=yes`). Always so with [`Memory::NoHuge`]; but DPDK 25.11 and later do
    /// not tell `net_memif`, and [`Port::vdev`](crate::Port::vdev) then makes it copy.
    pub single_file_segments: bool,
    /// DPDK's telemetry socket, `dpdk_telemetry.v2` in the folder that `file_prefix` names, for
    /// `dpdk-telemetry.py`; see [`Telemetry`](crate::Telemetry).
    pub telemetry: bool,
}

impl EalConfig {
    /// Ordinary pages, no PCI: what works everywhere, as any user.
    #[must_use]
    pub fn no_huge(megabytes: u32) -> Self {
        Self::new(Memory::NoHuge { megabytes })
    }

    /// Hugepages, no files, no PCI unless `pci_allow` is filled.
    #[must_use]
    pub fn in_memory(megabytes: u32) -> Self {
        Self::new(Memory::InMemory { megabytes })
    }

    fn new(memory: Memory) -> Self {
        Self {
            memory,
            file_prefix: "tally".into(),
            pci_allow: Vec::new(),
            iova: Iova::default(),
            main_cpu: None,
            log_level: LogLevel::default(),
            single_file_segments: false,
            telemetry: false,
        }
    }

    /// The same for a process whose one port is this device: with its PCI address allowed, and what
    /// `zero-copy=yes` needs.
    #[must_use]
    pub fn for_device(self, device: &str) -> Self {
        Self {
            pci_allow: is_pci(device)
                .then(|| device.to_owned())
                .into_iter()
                .collect(),
            single_file_segments: device.split(',').any(|argument| argument == ZERO_COPY),
            ..self
        }
    }

    /// Whether `net_memif` cannot be asked for `zero-copy=yes`.
    fn forbids_zero_copy(&self) -> bool {
        let is_no_huge = matches!(self.memory, Memory::NoHuge { .. });
        is_no_huge && sys::TALLY_NO_HUGE_FORBIDS_ZERO_COPY != 0
    }

    /// The arguments given to `rte_eal_init`, without the program's name.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let cpu = self.main_cpu.or_else(first_allowed_cpu).unwrap_or(0);
        let mut arguments = vec![format!("--lcores=0@{cpu}")];
        let mut iova = self.iova;
        let megabytes = match self.memory {
            Memory::NoHuge { megabytes } => {
                // No shared configuration: then no runtime folder is needed either, which may
                // belong to another user. `--in-memory` would be the word for it, but DPDK does
                // not take it together with `--no-huge`.
                arguments.extend(["--no-huge".into(), "--no-shconf".into()]);
                iova = Iova::Va;
                megabytes
            }
            Memory::InMemory { megabytes } => {
                arguments.push("--in-memory".into());
                megabytes
            }
            Memory::Hugepages { megabytes } => {
                arguments.push(format!("--file-prefix={}", self.file_prefix));
                megabytes
            }
        };
        arguments.extend(["-m".into(), megabytes.to_string()]);
        match iova {
            Iova::Va => arguments.push("--iova-mode=va".into()),
            Iova::Pa => arguments.push("--iova-mode=pa".into()),
            Iova::Auto => {}
        }
        if self.pci_allow.is_empty() {
            arguments.push("--no-pci".into());
        }
        for address in &self.pci_allow {
            arguments.extend(["-a".into(), address.clone()]);
        }
        if self.telemetry {
            let prefix = format!("--file-prefix={}", self.file_prefix);
            if !arguments.contains(&prefix) {
                arguments.push(prefix);
            }
        } else {
            arguments.push("--no-telemetry".into());
        }
        let level = match self.log_level {
            LogLevel::Error => "error",
            LogLevel::Warning => "warning",
            LogLevel::Notice => "notice",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        };
        arguments.push(format!("--log-level={level}"));
        if self.single_file_segments && !self.forbids_zero_copy() {
            arguments.push("--single-file-segments".into());
        }
        arguments
    }
}

/// From `/proc`, which saves a dependency for one call of `sched_getaffinity`.
fn first_allowed_cpu() -> Option<usize> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split([',', '-']).next()?.parse().ok()
}

/// The EAL, initialised. Ports, pools and registered threads hold it; it ends with the last of
/// them.
#[derive(Clone)]
pub struct Eal(Arc<EalInner>);

impl Eal {
    /// Initialises the EAL.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyInitialised`] on the second call in a process; [`Error::EalInit`] if DPDK
    /// refuses, for example for want of hugepages or because the prefix is in use.
    pub fn init(config: &EalConfig) -> Result<Self, Error> {
        let mut initialised = INITIALISED.lock().unwrap_or_else(PoisonError::into_inner);
        if *initialised {
            return Err(Error::AlreadyInitialised);
        }
        let arguments = config.arguments();
        let mut argv = vec![c_string("tally")?];
        for argument in &arguments {
            argv.push(c_string(argument)?);
        }
        let outcome = thread::Builder::new()
            .name("eal-init".into())
            .spawn(move || init_here(argv))
            .map_err(|error| Error::InitThread(error.to_string()))?
            .join()
            .map_err(|_| Error::InitThread("it panicked".into()))?;
        match outcome {
            Ok(()) => {
                *initialised = true;
                Ok(Self(Arc::new(EalInner {
                    orphans: Mutex::new(BTreeSet::new()),
                    keep_mapped: AtomicBool::new(false),
                    no_zero_copy: AtomicBool::new(config.forbids_zero_copy()),
                })))
            }
            Err(Errno(EALREADY)) => Err(Error::AlreadyInitialised),
            Err(errno) => Err(Error::EalInit {
                arguments: arguments.join(" "),
                errno,
            }),
        }
    }

    pub(crate) fn inner(&self) -> &Arc<EalInner> {
        &self.0
    }
}

static INITIALISED: Mutex<bool> = Mutex::new(false);

/// Runs on a thread of its own, which ends after it.
fn init_here(argv: Vec<CString>) -> Result<(), Errno> {
    // DPDK reorders the vector and may keep pointers into the strings. It is once per process.
    let mut pointers: Vec<*mut c_char> = argv.into_iter().map(CString::into_raw).collect();
    let argc = pointers.len();
    pointers.push(std::ptr::null_mut());
    let pointers = pointers.leak();
    // SAFETY: argv holds argc pointers to NUL-terminated, writable strings, and a null pointer
    // after them; all are leaked, so they live as long as DPDK may want them. No other thread
    // initialises at the same time: the caller holds the lock.
    let parsed = unsafe { sys::rte_eal_init(argc as i32, pointers.as_mut_ptr()) };
    if parsed < 0 {
        // On this thread, whose errno it is.
        return Err(Errno::last());
    }
    Ok(())
}

/// What keeps DPDK's memory mapped.
pub(crate) struct EalInner {
    /// Pools without a handle that were not whole when it was dropped: see `Mempool`.
    orphans: Mutex<BTreeSet<Orphan>>,
    /// A driver has left something with the interrupt thread, which clean-up doesn't stop.
    keep_mapped: AtomicBool,
    /// `net_memif` cannot share buffers: DPDK forbids it, or a port has done so before.
    no_zero_copy: AtomicBool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Orphan(NonNull<sys::rte_mempool>);

// SAFETY: a pool may be freed on any thread; the set owns it.
unsafe impl Send for Orphan {}

impl EalInner {
    /// Takes over a pool whose last handle is gone; frees it, and earlier ones, once whole.
    pub(crate) fn adopt(&self, pool: NonNull<sys::rte_mempool>) {
        self.orphans().insert(Orphan(pool));
        self.flush_caches();
    }

    /// Whether `net_memif` can take `zero-copy=yes`.
    pub(crate) fn allows_zero_copy(&self) -> bool {
        !self.no_zero_copy.load(Ordering::Relaxed)
    }

    /// Rules out `zero-copy=yes` for ports that are made later.
    ///
    /// When such a port connects, the driver closes the EAL's own descriptor of the memory, so that
    /// no later port can pass it to its peer.
    pub(crate) fn use_up_zero_copy(&self) {
        self.no_zero_copy.store(true, Ordering::Relaxed);
    }

    /// Rules out clean-up: the process's end does it.
    pub(crate) fn keep_mapped(&self) {
        self.keep_mapped.store(true, Ordering::Relaxed);
    }

    /// Gives back what the calling thread's caches hold, and frees pools that are whole by that.
    pub(crate) fn flush_caches(&self) {
        // SAFETY: the EAL is alive. The caches are those of the calling thread's lcore number,
        // which no other thread has; a thread without a number has none.
        unsafe { sys::tally_flush_caches() };
        bury(&mut self.orphans());
    }

    fn orphans(&self) -> MutexGuard<'_, BTreeSet<Orphan>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Frees every pool in the set whose buffers are all back in its ring.
fn bury(orphans: &mut BTreeSet<Orphan>) {
    orphans.retain(|Orphan(pool)| {
        let pool = pool.as_ptr();
        // The ring's own count, which leaves out what is in the caches of threads. It is what makes
        // this sound: no thread can take from this pool any more, so once its ring is full no frame
        // is out, no cache holds one, and no thread is inside a free. For a thread that is freeing
        // holds at least one buffer that is not in the ring until its last access to the pool,
        // which is the one that puts it there: straight into the ring, or into a cache, from where
        // flushing, which happens under the lock that freeing the pool takes, moves it.
        // SAFETY: the pool is in the set, so it has not been freed.
        let whole = unsafe { sys::tally_mempool_in_ring(pool) == sys::tally_mempool_size(pool) };
        if whole {
            // Pairs with the release store of the ring's tail by the last thread that freed.
            fence(Ordering::Acquire);
            // SAFETY: no handle and no frame refers to the pool, as argued above, and it leaves the
            // set, so it is freed once.
            unsafe { sys::rte_mempool_free(pool) };
        }
        !whole
    });
}

impl Drop for EalInner {
    fn drop(&mut self) {
        let orphans = self
            .orphans
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        bury(orphans);
        if !orphans.is_empty() {
            eprintln!(
                "tally-dpdk: {} pool(s) not whole at the end of the EAL: frames are still held; \
                 leaving DPDK's memory mapped",
                orphans.len()
            );
            return;
        }
        if *self.keep_mapped.get_mut() {
            return;
        }
        let _control = control();
        // SAFETY: the EAL was initialised, or there were no `EalInner`. This is its last user:
        // ports, pools and registered threads each hold an `Arc` of it, and no frame is out, since
        // all pools were whole and are freed.
        unsafe { sys::rte_eal_cleanup() };
    }
}

/// The lock around DPDK's control path, most of which is not safe to call from two threads, and
/// what is ours there.
pub(crate) struct Control {
    /// Devices that have a handle: making one twice must fail, and DPDK lets it pass.
    pub(crate) devices: BTreeSet<CString>,
    /// Ports that have a handle.
    pub(crate) ports: BTreeSet<u16>,
}

pub(crate) fn control() -> MutexGuard<'static, Control> {
    static CONTROL: Mutex<Control> = Mutex::new(Control {
        devices: BTreeSet::new(),
        ports: BTreeSet::new(),
    });
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a device is named by PCI address.
#[must_use]
pub fn is_pci(device: &str) -> bool {
    device.split(',').next().is_some_and(|d| d.contains(':'))
}
