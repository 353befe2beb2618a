//! What a port can do, is configured to do, and has counted.

use std::ffi::CStr;
use std::fmt;

use dpdk_sys as sys;

use crate::error::Errno;

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
    /// `net_memif`'s peer has one of each, and a virtio device sends into all of the queues that it
    /// is given.
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
    /// Whether frames of several segments are sent, if it can.
    ///
    /// Where it is off, [`TxQueue::burst`](crate::TxQueue::burst) makes such frames contiguous, or
    /// drops and counts those that cannot be.
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
    /// Frames dropped by the device that were not taken from a queue in time.
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

/// The description of a port that exists.
pub(crate) fn port_info(id: u16) -> Result<PortInfo, Errno> {
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
        // and `net_null` discards what it sends.
        tx_multi_segment: info.tx_multi_segment || is(&["net_pcap", "net_null"]),
        rss: info.rss,
        driver,
    })
}
