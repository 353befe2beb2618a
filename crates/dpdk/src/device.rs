//! The device behind a port's handle and its queues: configuration, and its end.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use crate::eal::{EalInner, control};
use crate::error::Error;
use crate::interrupt;
use crate::mempool::Mempool;
use crate::port_info::{PortConfig, PortInfo};

const ENOTSUP: i32 = -95;
const ENOSYS: i32 = -38;

/// Ethernet header and checksum, and one VLAN tag: what a frame has beyond the MTU.
const FRAME_OVERHEAD_BYTES: usize = 14 + 4 + 4;

/// A port, held by its handle and its queues. The last holder's drop stops and closes it.
pub(crate) struct PortInner {
    pub(crate) id: u16,
    pub(crate) bus: &'static CStr,
    pub(crate) name: CString,
    pub(crate) arguments: String,
    /// What the port can do, as of when it was found.
    pub(crate) info: PortInfo,
    pub(crate) config: PortConfig,
    pub(crate) started: AtomicBool,
    /// Closed last; fields are dropped in this order, after `drop` has closed the port.
    pub(crate) _pools: Vec<Mempool>,
    /// What the device itself uses, such as the rings of `net_ring`.
    pub(crate) _resources: Option<Arc<dyn Send + Sync>>,
    pub(crate) eal: Arc<EalInner>,
}

impl PortInner {
    pub(crate) fn subject(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Whether its control path must run on the interrupt thread.
    pub(crate) fn is_memif(&self) -> bool {
        self.info.driver == "net_memif"
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// The caller holds the control path's lock: the interrupt thread, on which this may be, waits
    /// for none.
    pub(crate) fn configure(
        &mut self,
        config: &PortConfig,
        pools: &[Mempool],
    ) -> Result<(), Error> {
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
            // `rte_eth_dev_configure` notes the MTU; a driver that has a device to tell is told
            // here.
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
    pub(crate) fn check(&self, config: &PortConfig, pools: &[Mempool]) -> Result<(), Error> {
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
        // `net_null` fills in the length from its `size` and never looks at the buffer's.
        // `net_memif` spreads a `bsize` over several buffers if it must, and leaks the first ones
        // when the pool runs dry on the way. (net_af_packet checks `framesz` itself.)
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

/// The value of a key in a driver's arguments; the last one counts.
pub(crate) fn driver_argument<'a>(arguments: &'a str, key: &str) -> Option<&'a str> {
    arguments
        .split(',')
        .rev()
        .find_map(|argument| argument.trim().strip_prefix(key)?.strip_prefix('='))
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
