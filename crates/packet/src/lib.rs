//! Ports on interfaces of the kernel, by packet sockets.
//!
//! # How it works
//!
//! For a NIC without a DPDK driver, and for virtual links between network namespaces, the kernel
//! carries the frames, and what each of them costs there is far more than its sum. So they travel
//! as superframes where they can: datagrams of one length to one destination are one frame to the
//! kernel, up to 64 KiB long, with the headers once. A worker's socket makes one with
//! `UDP_SEGMENT`; it is received into one DPDK buffer for each datagram in one system call, with
//! one copy. Results that leave together are gathered from their buffers in the same way, and
//! a receiver with `UDP_GRO` gets them in one piece. To the switch all of them are ordinary frames.
//!
//! DPDK's own `net_af_packet` shares a ring with the kernel, which costs a second copy, and knows
//! no superframes.
//!
//! # The catches
//!
//! - Kernels before 5.11 cannot wait for them (`epoll_pwait2`), and [`Ready::new`] says so.
//! - Kernels before 6.2 have no superframes of UDP on packet sockets: frames then travel one by
//!   one, and hosts on a veth pair must not send any (`ethtool -K eth0 tx-udp-segmentation off`):
//!   the kernel drops them, and they are counted ([`PacketRx::unsupported`]). See [`superframes`].
//! - Superframes of TCP, with a VLAN tag, and of datagrams to others come as they are, if asked for
//!   ([`PacketRx::forward_superframes`]); a way out that carries none needs [`segment`]. Until then
//!   they are dropped and counted.
//! - Superframes of tunnels are dropped and counted ([`PacketRx::unsupported`]), and of IPv6 with
//!   extension headers. The switches of `ethtool -K` for them are in docs/OPERATIONS.md.
//! - The kernel takes an outer VLAN tag out of each frame; it is put back from what it says beside
//!   it. It sends none that is longer than the MTU allows without a tag, unless the tag is
//!   802.1Q's.
//! - One queue each way.

mod flag;
mod link;
mod ready;
mod rx;
mod segment;
mod socket;
mod superframe;
mod tx;
mod vlan;

pub use link::{LinkState, Links};
pub use ready::Ready;
pub use rx::{Monitor, PacketRx};
pub use segment::{Segmenter, segment};
pub use tx::PacketTx;

use flag::Flag;
use socket::Socket;
use std::io;
use std::sync::Arc;
use tally_dpdk::Mempool;

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such interface in this network namespace.
    #[error("no interface `{0}` in this network namespace")]
    NoInterface(String),
    /// This process has as many open files as it may have.
    #[error(
        "{what}: all {limit} file descriptors of this process are in use; raise its limit (ulimit -n, LimitNOFILE= of the service)"
    )]
    NoDescriptors {
        /// What it was to do.
        what: &'static str,
        /// How many it may have.
        limit: u64,
    },
    /// The kernel refuses.
    #[error("{what}: {source}")]
    System {
        /// What it was to do.
        what: &'static str,
        /// Its reason. `EPERM`: packet sockets need root or `CAP_NET_RAW`.
        source: io::Error,
    },
}

/// Whether this kernel has superframes of UDP on packet sockets.
#[must_use]
pub fn superframes() -> bool {
    const SINCE: (u32, u32) = (6, 2);
    socket::kernel_release().is_some_and(|release| release >= SINCE)
}

/// Opens the port of an interface: everything that arrives there is received into buffers of
/// `pool`, once `ready` has found it there.
///
/// # Errors
/// Without the interface, or the right to.
pub fn open(
    interface: &str,
    pool: &Mempool,
    ready: &mut Ready,
) -> Result<(PacketRx, PacketTx), Error> {
    let (rx, tx) = open_apart(interface, pool)?;
    ready.watch(&rx)?;
    Ok((rx, tx))
}

/// As [`open`], for a thread that receives later: [`Ready::watch`] is its next step.
///
/// # Errors
/// As [`open`].
pub fn open_apart(interface: &str, pool: &Mempool) -> Result<(PacketRx, PacketTx), Error> {
    let socket = Arc::new(Socket::open(interface)?);
    let rx = PacketRx::new(Arc::clone(&socket), Flag::default(), pool.clone());
    Ok((rx, PacketTx::new(socket, pool.clone(), superframes())))
}
