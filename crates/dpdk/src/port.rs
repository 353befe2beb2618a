//! Ports: a NIC, or a virtual device that looks like one.
//!
//! # How it works
//!
//! A port is made by [`Port::vdev`] or [`Port::pci`], configured with pools, and started; each
//! step consumes the value of the step before, so that DPDK's order can't be got wrong. Starting
//! gives the queues, which have one owner each.
//!
//! Offloads are an allow-list: checksum checks and scatter on receive, several segments on
//! transmit, each only if asked for and if the device has it. `MBUF_FAST_FREE` is never on.
//!
//! # The catches
//!
//! - A port is started once. It stops and closes when its handle and all its queues are gone. To
//!   change its configuration, make it again: some drivers (`net_af_packet`) can't restart.
//! - `net_af_packet` takes the MTU to be at most 1500, also where the interface's is larger. For
//!   jumbo frames set the interface's MTU with `ip link`, leave [`PortConfig::mtu`] at `None`, and
//!   give the device a `framesz` and the pool buffers that hold it: `blocksz=16384,framesz=16384`
//!   for 9000. `framesz` must divide `blocksz`, and that be a multiple of the page. It truncates
//!   what is longer than `framesz`, without a word; turn off GRO, GSO and checksum offload on the
//!   interface. Its transmit burst blocks in `poll` when the ring is full.
//! - `net_memif` is up only when the other end is there: poll [`Port::link`]. Frames sent before
//!   are refused, and remain the caller's. A client connects once, when it is started. It can't
//!   even start (`EPERM`) before its server's port is made, is turned away before that is started,
//!   and doesn't come back when its server does: make the port again until it is up. It, too, has
//!   an MTU of 1500 at most, which it doesn't apply: what counts is `bsize`, which must hold the
//!   longest frame. Longer ones take several descriptors, and many releases (22.11, 24.11.4) don't
//!   clear their "next" flag, which joins later frames.
//! - `net_memif` with `zero-copy=yes` shares buffers once in a process: ports that are made after
//!   one that was started copy, as all do where the EAL forbids it
//!   ([`EalConfig::single_file_segments`](crate::EalConfig::single_file_segments)).
//! - `net_memif` in the server's role can't be closed and made again in one process with the same
//!   socket: the driver leaks the listening socket. It also leaves the interrupt thread with a
//!   pointer to it, so once there has been such a port, the EAL isn't cleaned up at its end, only
//!   by the process's. When a peer goes, the driver unmaps the shared rings on the EAL's interrupt
//!   thread without waiting for a burst under way; so our `munmap` (`shim.c` of `dpdk-sys`) waits
//!   there until each thread has ended its burst.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use crate::device::{PortInner, driver_argument};
use crate::eal::{Control, Eal, ZERO_COPY, control};
use crate::error::{Errno, Error, c_string};
use crate::interrupt;
use crate::mempool::Mempool;
use crate::port_info::{Link, MacAddress, PortConfig, PortId, PortInfo, PortStats, port_info};
use crate::queue::{RxQueue, TxQueue};

const EEXIST: i32 = -17;

/// State of a [`Port`]: found, and not configured.
pub enum Probed {}
/// State of a [`Port`]: configured, and not started.
pub enum Configured {}
/// State of a [`Port`]: running.
pub enum Started {}

/// A handle on a port, in one of the states [`Probed`], [`Configured`] and [`Started`].
pub struct Port<S> {
    inner: Arc<PortInner>,
    state: PhantomData<fn() -> S>,
}

/// A running port and its queues, in order of their numbers.
pub struct StartedPort {
    /// For counters and the link.
    pub port: Port<Started>,
    /// The receive queues.
    pub rx: Vec<RxQueue>,
    /// The transmit queues.
    pub tx: Vec<TxQueue>,
}

impl<S> Port<S> {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> PortId {
        PortId(self.inner.id)
    }

    /// The device's name, such as `net_memif0` or `0000:01:00.0`.
    #[must_use]
    pub fn name(&self) -> String {
        self.inner.subject()
    }

    /// What it can do.
    #[must_use]
    pub fn info(&self) -> &PortInfo {
        &self.inner.info
    }

    /// Its Ethernet address.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the device is gone.
    pub fn mac_address(&self) -> Result<MacAddress, Error> {
        let mut address = [0; 6];
        let _control = control();
        // SAFETY: the port exists while `inner` does; the address is ours to write to.
        let ret = unsafe { sys::tally_mac_address_get(self.inner.id, address.as_mut_ptr()) };
        Error::check("rte_eth_macaddr_get", &self.inner.subject(), ret)?;
        Ok(MacAddress(address))
    }

    /// MTU in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the device is gone.
    pub fn mtu(&self) -> Result<u16, Error> {
        let mut mtu = 0;
        let _control = control();
        // SAFETY: the port exists while `inner` does; the number is ours to write to.
        let ret = unsafe { sys::rte_eth_dev_get_mtu(self.inner.id, &raw mut mtu) };
        Error::check("rte_eth_dev_get_mtu", &self.inner.subject(), ret)?;
        Ok(mtu)
    }

    /// The link as it is now; doesn't wait.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the device can't say.
    pub fn link(&self) -> Result<Link, Error> {
        let mut link = sys::tally_link {
            speed_mbps: 0,
            up: false,
            full_duplex: false,
        };
        let _control = control();
        // SAFETY: the port exists while `inner` does; the structure is ours to write to.
        let ret = unsafe { sys::tally_link_get(self.inner.id, &raw mut link) };
        Error::check("rte_eth_link_get_nowait", &self.inner.subject(), ret)?;
        Ok(Link {
            up: link.up,
            speed_mbps: (link.speed_mbps != u32::MAX).then_some(link.speed_mbps),
            full_duplex: link.full_duplex,
        })
    }
}

impl Port<Probed> {
    /// Makes a virtual device: `name` is its driver's with a number, such as `net_memif0`, and
    /// `arguments` are the driver's, such as `role=server,id=1`.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if there is no such driver (`ENOENT`, `EINVAL`), if the name is taken
    /// (`EEXIST`), or the driver refuses; it says why on stderr. [`Error::NoPort`] if it is no
    /// network device.
    pub fn vdev(eal: &Eal, name: &str, arguments: &str) -> Result<Self, Error> {
        if !name.starts_with("net_memif") {
            return Self::plug(eal, c"vdev", name, arguments);
        }
        remove_stale_socket(arguments);
        let copies = !eal.inner().allows_zero_copy() && arguments.contains(ZERO_COPY);
        let arguments = if copies {
            Cow::Owned(arguments.replace(ZERO_COPY, "zero-copy=no"))
        } else {
            Cow::Borrowed(arguments)
        };
        Self::plug(eal, c"vdev", name, &arguments)
    }

    /// Takes the PCI device with this address, such as `0000:01:00.0`, which must be on
    /// [`EalConfig::pci_allow`](crate::EalConfig::pci_allow) and bound to a driver that DPDK can
    /// use, such as `vfio-pci`.
    ///
    /// # Errors
    ///
    /// As [`Port::vdev`].
    pub fn pci(eal: &Eal, address: &str) -> Result<Self, Error> {
        // The form that DPDK names ports by.
        let mut address = address.to_ascii_lowercase();
        if address.matches(':').count() == 1 {
            address.insert_str(0, "0000:");
        }
        Self::plug(eal, c"pci", &address, "")
    }

    fn plug(eal: &Eal, bus: &'static CStr, name: &str, arguments: &str) -> Result<Self, Error> {
        let c_name = c_string(name)?;
        let c_arguments = c_string(arguments)?;
        let mut control = control();
        if control.devices.contains(&c_name) {
            return Err(already_used(name));
        }
        // SAFETY: the EAL is initialised, all three are strings that DPDK copies, and we hold the
        // control path's lock.
        let ret = unsafe {
            sys::rte_eal_hotplug_add(bus.as_ptr(), c_name.as_ptr(), c_arguments.as_ptr())
        };
        // A PCI device on the allow-list was probed when the EAL started.
        if ret != EEXIST {
            Error::check("rte_eal_hotplug_add", name, ret)?;
        }
        Self::adopt(eal, &mut control, bus, c_name, arguments, None)
    }

    /// Makes the handle of a device that has been created and has none yet.
    pub(crate) fn adopt(
        eal: &Eal,
        control: &mut Control,
        bus: &'static CStr,
        name: CString,
        arguments: &str,
        resources: Option<Arc<dyn Send + Sync>>,
    ) -> Result<Self, Error> {
        let subject = name.to_string_lossy().into_owned();
        let unplug = |error| {
            // SAFETY: the EAL is initialised, both are strings, and the device has no other user.
            unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
            error
        };
        let mut id = 0;
        // SAFETY: a string, and a number to write to.
        let ret = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) };
        if ret != 0 {
            return Err(unplug(Error::NoPort(subject)));
        }
        if control.ports.contains(&id) {
            // Not ours to unplug.
            return Err(already_used(&subject));
        }
        let info = match port_info(id) {
            Ok(info) => info,
            Err(errno) => {
                return Err(unplug(Error::Call {
                    call: "rte_eth_dev_info_get",
                    subject,
                    errno,
                }));
            }
        };
        control.ports.insert(id);
        control.devices.insert(name.clone());
        Ok(Self::new(PortInner {
            id,
            bus,
            name,
            arguments: arguments.to_owned(),
            info,
            config: PortConfig::default(),
            started: AtomicBool::new(false),
            _pools: Vec::new(),
            _resources: resources,
            eal: Arc::clone(eal.inner()),
        }))
    }

    fn new(inner: PortInner) -> Self {
        Self {
            inner: Arc::new(inner),
            state: PhantomData,
        }
    }

    /// Configures it: queues, offloads, and the pools that received frames come from, one for all
    /// queues or one for each.
    ///
    /// # Errors
    ///
    /// [`Error::TooMuch`] for more queues or a larger MTU than the device has, or an MTU whose
    /// frames don't fit the pools' buffers; [`Error::Zero`] without queues; [`Error::PoolCount`];
    /// [`Error::Call`] if the driver refuses. The port is closed then.
    pub fn configure(
        self,
        config: &PortConfig,
        pools: &[Mempool],
    ) -> Result<Port<Configured>, Error> {
        let mut inner = Arc::into_inner(self.inner).expect("a probed port has one handle");
        inner.check(config, pools)?;
        let configured = {
            let _control = control();
            interrupt::run(inner.is_memif(), || inner.configure(config, pools))
        };
        configured?;
        Ok(Port {
            inner: Arc::new(inner),
            state: PhantomData,
        })
    }
}

impl Port<Configured> {
    /// Starts it and gives out its queues.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the driver refuses. The port is closed then.
    pub fn start(self) -> Result<StartedPort, Error> {
        let inner = self.inner;
        {
            let _control = control();
            // SAFETY: the port exists, is configured and has all its queues set up: the state says
            // so. We hold the control path's lock.
            let ret = interrupt::run(inner.is_memif(), || unsafe {
                sys::rte_eth_dev_start(inner.id)
            });
            Error::check("rte_eth_dev_start", &inner.subject(), ret)?;
            inner.started.store(true, Ordering::Relaxed);
            if inner.is_memif() && inner.arguments.contains(ZERO_COPY) {
                inner.eal.use_up_zero_copy();
            }
        }
        let config = inner.config;
        Ok(StartedPort {
            rx: (0..config.rx_queues)
                .map(|queue| RxQueue::new(Arc::clone(&inner), queue))
                .collect(),
            tx: (0..config.tx_queues)
                .map(|queue| TxQueue::new(Arc::clone(&inner), queue, config.tx_multi_segment))
                .collect(),
            port: Port {
                inner,
                state: PhantomData,
            },
        })
    }
}

impl Port<Started> {
    pub(crate) fn rx_queues(&self) -> u16 {
        self.inner.config.rx_queues
    }

    /// Its counters.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the driver has none.
    pub fn stats(&self) -> Result<PortStats, Error> {
        let mut stats = MaybeUninit::uninit();
        let _control = control();
        // SAFETY: the port exists while `inner` does; the structure is ours to write to.
        let ret = unsafe { sys::tally_port_stats_get(self.inner.id, stats.as_mut_ptr()) };
        Error::check("rte_eth_stats_get", &self.inner.subject(), ret)?;
        // SAFETY: a call that succeeds fills in all of it.
        let stats: sys::tally_port_stats = unsafe { stats.assume_init() };
        Ok(PortStats {
            rx_frames: stats.rx_frames,
            rx_bytes: stats.rx_bytes,
            rx_missed: stats.rx_missed,
            rx_errors: stats.rx_errors,
            rx_no_buffer: stats.rx_no_buffer,
            tx_frames: stats.tx_frames,
            tx_bytes: stats.tx_bytes,
            tx_errors: stats.tx_errors,
        })
    }
}

/// Counters of its driver's own that [`Port::extended_stats`] reads at most.
const XSTATS_MAX: usize = 1024;

impl Port<Started> {
    /// The counters of its driver's own, by the driver's names.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the driver has none.
    pub fn extended_stats(&self) -> Result<Vec<(String, u64)>, Error> {
        // SAFETY: a structure of characters and a number, for all of which zero is a value.
        let zero: sys::tally_xstat = unsafe { std::mem::zeroed() };
        let mut stats = vec![zero; XSTATS_MAX];
        let _control = control();
        // SAFETY: the port exists while `inner` does; there is room for `XSTATS_MAX`.
        let ret = unsafe {
            sys::tally_port_xstats_get(self.inner.id, stats.as_mut_ptr(), XSTATS_MAX as u32)
        };
        let found = usize::try_from(ret).unwrap_or(0);
        if ret < 0 {
            Error::check("rte_eth_xstats_get", &self.inner.subject(), ret)?;
        }
        let of = |stat: &sys::tally_xstat| {
            // SAFETY: the shim leaves the last byte of the array zero.
            let name = unsafe { CStr::from_ptr(stat.name.as_ptr()) };
            (name.to_string_lossy().into_owned(), stat.value)
        };
        Ok(stats.iter().take(found).map(of).collect())
    }
}

/// Removes the socket that a crashed `net_memif` server left behind, at which the next one would
/// fail. A socket that someone listens on stays.
fn remove_stale_socket(arguments: &str) {
    let is = |key, value| driver_argument(arguments, key) == Some(value);
    if !(is("role", "server") && is("socket-abstract", "no")) {
        return;
    }
    let Some(path) = driver_argument(arguments, "socket") else {
        return;
    };
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    // A listener's socket is of another type, and says so without noticing us.
    let is_dead =
        || UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_socket && is_dead() {
        // If it can't be removed, the driver reports that the address is in use.
        let _ = fs::remove_file(path);
    }
}

fn already_used(device: &str) -> Error {
    Error::Call {
        call: "rte_eal_hotplug_add",
        subject: device.to_owned(),
        errno: Errno(-EEXIST),
    }
}

impl<S> fmt::Debug for Port<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("id", &self.inner.id)
            .field("name", &self.inner.name)
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}
