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
//! - `net_af_packet` takes the MTU to be at most 1500 whatever the interface's is. For jumbo frames
//!   set the interface's MTU with `ip link`, leave [`PortConfig::mtu`] at `None`, and give the
//!   device a `framesz` and the pool buffers that hold it: `blocksz=16384,framesz=16384` for 9000.
//!   `framesz` must divide `blocksz`, and that be a multiple of the page. It truncates what is longer
//!   than `framesz`, without a word; turn off GRO, GSO and checksum offload on the interface. Its
//!   transmit burst blocks in `poll` when the ring is full.
//! - `net_memif` is up only when the other end is there: poll [`Port::link`]. Frames sent before are
//!   refused, and remain the caller's. A client connects once, when it is started. It
//!   can't even start (`EPERM`) before its server's port is made, is turned away before that is
//!   started, and doesn't come back when its server does: make the port again until it is up. It, too, has an MTU of 1500 at most, which it doesn't apply:
//!   what counts is `bsize`, which must hold the longest frame. Longer ones take several
//!   descriptors, and many releases (22.11, 24.11.4) don't clear their "next" flag, which joins
//!   later frames.
//! - `net_memif` with `zero-copy=yes` shares buffers once in a process: ports that are made after
//!   one that was started copy, as all do where the EAL forbids it
//!   ([`EalConfig::single_file_segments`](crate::EalConfig::single_file_segments)).
//! - `net_memif` in the server's role can't be closed and made again in one process with the same
//!   socket: the driver leaks the listening socket. It also leaves the interrupt thread with a pointer to it,
//!   so once there has been such a port, the EAL isn't cleaned up at its end, only by the
//!   process's. When a peer goes, the driver unmaps the shared rings on the EAL's interrupt thread without
//!   waiting for a burst under way; so our `munmap` (`shim.c` of `dpdk-sys`) waits there until each thread has
//!   ended its burst.

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

use crate::eal::{Control, Eal, EalInner, ZERO_COPY, control};
use crate::error::{Errno, Error, c_string};
use crate::interrupt;
use crate::mempool::Mempool;
use crate::queue::{RxQueue, TxQueue};

const EEXIST: i32 = -17;
const ENOTSUP: i32 = -95;
const ENOSYS: i32 = -38;

/// Ethernet header and checksum, and one VLAN tag: what a frame has beyond the MTU.
const FRAME_OVERHEAD_BYTES: usize = 14 + 4 + 4;

/// Ethernet header and checksum.
const ETHERNET_OVERHEAD_BYTES: u32 = 14 + 4;

/// DPDK's number of a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a port can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// The driver's name, such as `net_memif`.
    pub driver: String,
    /// Receive queues at most.
    pub rx_queues_max: u16,
    /// Transmit queues at most.
    pub tx_queues_max: u16,
    /// Smallest MTU in bytes.
    pub mtu_min: u16,
    /// Largest MTU in bytes.
    pub mtu_max: u16,
    /// Longest frame it can receive, in bytes.
    pub rx_frame_bytes_max: u32,
    /// The kernel's interface index, if there is one.
    pub interface_index: Option<u32>,
    /// NUMA node, if it has one.
    pub socket: Option<u32>,
    /// Whether it checks IPv4 and UDP checksums.
    pub rx_checksum: bool,
    /// Whether it can spread a received frame over several buffers.
    pub rx_scatter: bool,
    /// Whether it can send frames of several segments. All virtual devices that we know can but
    /// `net_af_xdp`, and `net_memif` since DPDK 23.03.
    pub tx_multi_segment: bool,
    /// Whether it can spread flows over queues by hash.
    pub rss: bool,
    /// Whether it needs as many transmit queues as receive queues: `net_tap` refuses other numbers,
    /// `net_memif`'s peer has one of each, and a virtio device sends into as many as it is given.
    pub queue_pairs: bool,
    /// Whether every queue that it has must be received from, because frames arrive in all of them:
    /// virtual devices whose arguments say how many they have.
    pub fixed_queues: bool,
}

/// What is asked of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors of each receive queue, clipped to what the device takes.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit queue, clipped to what the device takes.
    pub tx_descriptors: u16,
    /// MTU in bytes; `None` leaves what the device has.
    pub mtu: Option<u16>,
    /// Whether to receive frames for other addresses: a switch does. Ignored where there's no such
    /// mode, as on virtual devices, which receive everything.
    pub promiscuous: bool,
    /// Whether the NIC checks IPv4 and UDP checksums, if it can.
    pub rx_checksum: bool,
    /// Whether frames longer than a buffer may be received, in several segments, if it can.
    pub rx_scatter: bool,
    /// Whether frames of several segments are sent, if it can. Where it is off, [`TxQueue::burst`]
    /// makes such frames contiguous, or drops and counts those that can't be.
    pub tx_multi_segment: bool,
    /// Whether flows are spread over the receive queues by a hash of addresses and UDP ports, if it
    /// can. Without, all frames arrive in queue 0.
    pub rss: bool,
}

impl Default for PortConfig {
    /// One queue each way, 1024 descriptors, promiscuous, with checksums checked.
    fn default() -> Self {
        Self {
            rx_queues: 1,
            tx_queues: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            mtu: None,
            promiscuous: true,
            rx_checksum: true,
            rx_scatter: false,
            tx_multi_segment: false,
            rss: false,
        }
    }
}

/// A port's counters since it was started, as its driver keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames dropped by the device because nobody took them from a queue in time.
    pub rx_missed: u64,
    /// Frames dropped by the device because they were damaged.
    pub rx_errors: u64,
    /// Frames dropped because a pool was dry.
    pub rx_no_buffer: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that the driver took and could not send.
    pub tx_errors: u64,
}

/// A port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// Whether the other end is there.
    pub up: bool,
    /// Speed in Mbit/s, if it is known. Virtual devices make one up.
    pub speed_mbps: Option<u32>,
    /// Whether it is full duplex.
    pub full_duplex: bool,
}

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

/// The port itself. When the last holder drops it, it is stopped and closed.
pub(crate) struct PortInner {
    id: u16,
    bus: &'static CStr,
    name: CString,
    arguments: String,
    /// What the port can do, as of when it was found.
    info: PortInfo,
    config: PortConfig,
    started: AtomicBool,
    /// Closed last; fields are dropped in this order, after `drop` has closed the port.
    _pools: Vec<Mempool>,
    /// What the device itself uses, such as the rings of `net_ring`.
    _resources: Option<Arc<dyn Send + Sync>>,
    eal: Arc<EalInner>,
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

impl PortInner {
    fn subject(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Whether its control path must run on the interrupt thread.
    fn is_memif(&self) -> bool {
        self.info.driver == "net_memif"
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// The caller holds the control path's lock: the interrupt thread, on which this may be, waits for none.
    fn configure(&mut self, config: &PortConfig, pools: &[Mempool]) -> Result<(), Error> {
        let subject = self.subject();
        let mut config = *config;
        config.tx_multi_segment &= self.info.tx_multi_segment;
        let ask = sys::tally_port_conf {
            rx_queues: config.rx_queues,
            tx_queues: config.tx_queues,
            mtu: config.mtu.unwrap_or(0),
            rx_checksum: config.rx_checksum,
            rx_scatter: config.rx_scatter,
            tx_multi_segment: config.tx_multi_segment,
            rss: config.rss,
        };
        // SAFETY: the port exists and is not started; the structure is read during the call.
        let ret = unsafe { sys::tally_port_configure(self.id, &raw const ask) };
        Error::check("rte_eth_dev_configure", &subject, ret)?;
        // From here on the driver may use the pools: they must outlive it.
        self._pools = pools.to_vec();
        self.config = config;

        if let Some(mtu) = config.mtu {
            // `rte_eth_dev_configure` notes the MTU; a driver that has a device to tell is told here.
            // SAFETY: the port exists, is configured, and is not started.
            let ret = unsafe { sys::rte_eth_dev_set_mtu(self.id, mtu) };
            if ret != ENOTSUP {
                Error::check("rte_eth_dev_set_mtu", &subject, ret)?;
            }
        }

        let (mut rx_descriptors, mut tx_descriptors) =
            (config.rx_descriptors, config.tx_descriptors);
        // SAFETY: the port exists; both numbers are ours to write to.
        let ret = unsafe {
            sys::rte_eth_dev_adjust_nb_rx_tx_desc(
                self.id,
                &raw mut rx_descriptors,
                &raw mut tx_descriptors,
            )
        };
        Error::check("rte_eth_dev_adjust_nb_rx_tx_desc", &subject, ret)?;

        // SOCKET_ID_ANY is -1.
        let socket = self.info.socket.map_or(-1, |socket| socket as i32);
        for queue in 0..config.rx_queues {
            let pool = &pools[usize::from(queue) % pools.len()];
            // SAFETY: the port is configured with more than `queue` receive queues; the pool lives
            // as long as the port, which keeps a handle on it.
            let ret = unsafe {
                sys::tally_rx_queue_setup(self.id, queue, rx_descriptors, socket, pool.as_ptr())
            };
            Error::check("rte_eth_rx_queue_setup", &subject, ret)?;
        }
        for queue in 0..config.tx_queues {
            // SAFETY: the port is configured with more than `queue` transmit queues.
            let ret = unsafe { sys::tally_tx_queue_setup(self.id, queue, tx_descriptors, socket) };
            Error::check("rte_eth_tx_queue_setup", &subject, ret)?;
        }
        if config.promiscuous {
            // SAFETY: the port exists.
            let ret = unsafe { sys::rte_eth_promiscuous_enable(self.id) };
            if ret != ENOTSUP && ret != ENOSYS {
                Error::check("rte_eth_promiscuous_enable", &subject, ret)?;
            }
        }
        Ok(())
    }

    /// What DPDK doesn't check, or says too little about.
    fn check(&self, config: &PortConfig, pools: &[Mempool]) -> Result<(), Error> {
        let subject = || self.subject();
        let too_much = |what, value: usize, max: usize| {
            if value > max {
                return Err(Error::TooMuch {
                    subject: subject(),
                    what,
                    value,
                    max,
                });
            }
            Ok(())
        };
        for (what, queues, max) in [
            ("rx_queues", config.rx_queues, self.info.rx_queues_max),
            ("tx_queues", config.tx_queues, self.info.tx_queues_max),
        ] {
            if queues == 0 {
                return Err(Error::Zero {
                    subject: subject(),
                    what,
                });
            }
            too_much(what, queues.into(), max.into())?;
        }
        if pools.len() != 1 && pools.len() != usize::from(config.rx_queues) {
            return Err(Error::PoolCount {
                subject: subject(),
                pools: pools.len(),
                rx_queues: config.rx_queues,
            });
        }
        let frame_bytes_max = pools
            .iter()
            .map(Mempool::frame_bytes_max)
            .min()
            .unwrap_or(0);
        if let Some(mtu) = config.mtu {
            too_much("mtu", mtu.into(), self.info.mtu_max.into())?;
            if !(config.rx_scatter && self.info.rx_scatter) {
                too_much(
                    "the frame of this MTU",
                    usize::from(mtu) + FRAME_OVERHEAD_BYTES,
                    frame_bytes_max,
                )?;
            }
        }
        // `net_null` fills in the length from its `size` and never looks at the buffer's. `net_memif`
        // spreads a `bsize` over several buffers if it must, and leaks the first ones when the
        // pool runs dry on the way. (net_af_packet checks `framesz` itself.)
        for (driver, what, default) in [("net_null", "size", "64"), ("net_memif", "bsize", "2048")]
        {
            if self.info.driver == driver {
                let value = driver_argument(&self.arguments, what).unwrap_or(default);
                let bytes = parse_c_number(value).unwrap_or(usize::MAX);
                too_much(what, bytes, frame_bytes_max)?;
            }
        }
        Ok(())
    }
}

/// The value of a key in a driver's arguments; the last one counts.
fn driver_argument<'a>(arguments: &'a str, key: &str) -> Option<&'a str> {
    arguments
        .split(',')
        .rev()
        .find_map(|argument| argument.trim().strip_prefix(key)?.strip_prefix('='))
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
        // Whoever can't remove it hears from the driver that the address is in use.
        let _ = fs::remove_file(path);
    }
}

/// As `strtoul` with base 0 does for plain numbers.
fn parse_c_number(text: &str) -> Option<usize> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return usize::from_str_radix(hex, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => usize::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

fn already_used(device: &str) -> Error {
    Error::Call {
        call: "rte_eal_hotplug_add",
        subject: device.to_owned(),
        errno: Errno(-EEXIST),
    }
}

fn port_info(id: u16) -> Result<PortInfo, Errno> {
    // SAFETY: a structure of numbers, flags and characters, for all of which zero is a value.
    let mut info: sys::tally_port_info = unsafe { std::mem::zeroed() };
    // SAFETY: the port exists, and the structure is ours to write to.
    let ret = unsafe { sys::tally_port_info_get(id, &raw mut info) };
    if ret != 0 {
        return Err(Errno(-ret));
    }
    // SAFETY: takes any number.
    let socket = unsafe { sys::rte_eth_dev_socket_id(id) };
    // SAFETY: the shim leaves the last byte of the array zero.
    let driver = unsafe { CStr::from_ptr(info.driver.as_ptr()) };
    // A driver that states no MTU is held to its longest frame by DPDK.
    let mtu_max = if info.max_mtu == u16::MAX {
        let bytes = info.max_rx_pktlen.saturating_sub(ETHERNET_OVERHEAD_BYTES);
        u16::try_from(bytes).unwrap_or(u16::MAX)
    } else {
        info.max_mtu
    };
    let driver = driver.to_string_lossy().into_owned();
    let is = |drivers: &[&str]| drivers.contains(&&*driver);
    Ok(PortInfo {
        queue_pairs: is(&["net_tap", "net_memif", "net_virtio", "net_virtio_user"]),
        fixed_queues: is(&["net_af_packet", "net_af_xdp", "net_pcap", "net_vhost"]),
        rx_queues_max: info.max_rx_queues,
        tx_queues_max: info.max_tx_queues,
        mtu_min: info.min_mtu,
        mtu_max,
        rx_frame_bytes_max: info.max_rx_pktlen,
        interface_index: (info.if_index != 0).then_some(info.if_index),
        socket: u32::try_from(socket).ok(),
        rx_checksum: info.rx_checksum,
        rx_scatter: info.rx_scatter,
        // These two do not say so, and do: `net_pcap` gathers the segments before it writes them,
        // and what is sent to `net_null` nobody looks at.
        tx_multi_segment: info.tx_multi_segment || is(&["net_pcap", "net_null"]),
        rss: info.rss,
        driver,
    })
}

impl Drop for PortInner {
    fn drop(&mut self) {
        let mut control = control();
        let started = self.started.load(Ordering::Relaxed);
        if self.is_memif() {
            // A server's listening socket stays with that thread, described in DPDK's memory.
            self.eal.keep_mapped();
        }
        interrupt::run(self.is_memif(), || {
            if started {
                // SAFETY: the port exists, and no queue of it does any more: each holds this value.
                unsafe { sys::rte_eth_dev_stop(self.id) };
            }
            // SAFETY: the port exists, is stopped, and is closed once. Its pools are still there.
            unsafe { sys::rte_eth_dev_close(self.id) };
        });
        // SAFETY: both are strings; the device was plugged in for this port alone.
        unsafe { sys::rte_eal_hotplug_remove(self.bus.as_ptr(), self.name.as_ptr()) };
        control.ports.remove(&self.id);
        control.devices.remove(&self.name);
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
