//! Safe ownership over DPDK: the environment, pools, buffers, ports and queues.
//!
//! # The idea
//!
//! A buffer is a Rust value. An [`Mbuf`] is moved, never cloned, and freed exactly once; a
//! transmit burst takes exactly the frames it sent out of the caller's vector and leaves the rest,
//! in order. DPDK's rules about threads and lifetimes become types: a queue has one owner
//! (`&mut`), a port is configured before it is started, and all that a live value points into is
//! kept alive by that value.
//!
//! # How it works
//!
//! ```text
//! Eal ── once per process; memory, drivers
//!  ├─ Mempool ── buffers of one size; alloc() gives Mbufs
//!  └─ Port<Probed> ─configure(pools)→ Port<Configured> ─start()→ Port<Started>
//!                                                            + RxQueue… + TxQueue…
//! ```
//!
//! Ports and pools hold the EAL, queues hold their port, a port holds its pools. So values
//! may be dropped in any order: a port stops and closes with the last of its queues and
//! handles, and the EAL goes last. Only `Mbuf`s hold nothing, because a reference count per frame
//! would cost more than the frame: a pool whose frames are still out when its last handle is
//! dropped stays mapped until they are home, and the EAL, should it end before they are, says so
//! on stderr and leaves the memory mapped. No order of drops leads to memory that is gone.
//!
//! # The catches
//!
//! - One EAL per process, once: DPDK can't be initialised twice, not even after clean-up.
//! - A thread that isn't registered ([`EalThread`]) has no pool cache, and pays for it.
//! - What a peer or a driver does with shared memory is trusted: `net_memif`'s peer can write
//!   into the frames that it sends while we read them, and `net_ring` hands over the sender's own
//!   buffers, so both ends share one reference count.
//! - A driver may hand over a frame in several segments even if scatter was not asked for
//!   (`net_memif` and `net_pcap` do, if a frame is longer than a buffer of the pool): check
//!   [`Mbuf::is_contiguous`] where [`Mbuf::data`] must be the whole frame.

mod connect;
mod device;
mod eal;
mod error;
mod frame;
mod interrupt;
mod mbuf;
mod mempool;
mod port;
mod port_info;
mod queue;
mod ring_pair;
mod steer;
mod telemetry;
mod thread;
mod tsc;

pub use connect::connect;
pub use eal::{Eal, EalConfig, Iova, LogLevel, Memory, is_pci};
pub use error::{Errno, Error};
pub use mbuf::{ChecksumState, Cut, Mbuf, Parts, Shares, free_bulk};
pub use mempool::{FRAME_ALIGN_BYTES, HEADROOM_BYTES, Mempool, MempoolConfig};
pub use port::{Configured, Port, Probed, Started, StartedPort};
pub use port_info::{Link, MacAddress, PortConfig, PortId, PortInfo, PortStats};
pub use queue::{RxQueue, TxQueue};
pub use ring_pair::{RingPairConfig, ring_pair};
pub use telemetry::{Answer, Telemetry, Value};
pub use thread::EalThread;
pub use tsc::{cycles, cycles_per_second};
