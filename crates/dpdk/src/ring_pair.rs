//! Two ports joined back to back, in memory: what one sends, the other receives.
//!
//! # How it works
//!
//! `net_ring` makes a port of any rings; a pair shares one ring per direction and queue. Buffers
//! pass through as they are, without a copy, so this is for tests and for benchmarks of what is
//! above the driver.
//!
//! # The catches
//!
//! - A frame keeps its own pool; the receiver's pool isn't used. A shared frame arrives shared, and
//!   its `port()` is not set.
//! - Frames that were not received are freed when both ports are gone.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::eal::{Eal, EalInner, control};
use crate::error::{Errno, Error, c_string};
use crate::port::{Port, Probed};

/// `RTE_PMD_RING_MAX_RX_RINGS`.
const QUEUES_MAX: u16 = 16;

/// How large a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPairConfig {
    /// Queues of each port, each way: at most 16.
    pub queues: u16,
    /// Frames that wait in each queue at most, plus one: a power of two.
    pub frames: u32,
}

impl Default for RingPairConfig {
    /// One queue, 1023 frames.
    fn default() -> Self {
        Self {
            queues: 1,
            frames: 1024,
        }
    }
}

/// Makes two ports, joined back to back. `name` is at most 10 characters, and new.
///
/// # Errors
///
/// [`Error::TooMuch`] and [`Error::Zero`] for the number of queues; [`Error::Call`] if the name is
/// taken or too long (`EEXIST`, `ENAMETOOLONG`), the number of frames is no power of two
/// (`EINVAL`), or memory is short (`ENOMEM`).
pub fn ring_pair(
    eal: &Eal,
    name: &str,
    config: &RingPairConfig,
) -> Result<(Port<Probed>, Port<Probed>), Error> {
    let subject = || format!("ring pair {name}");
    if config.queues == 0 {
        return Err(Error::Zero {
            subject: subject(),
            what: "queues",
        });
    }
    if config.queues > QUEUES_MAX {
        return Err(Error::TooMuch {
            subject: subject(),
            what: "queues",
            value: config.queues.into(),
            max: QUEUES_MAX.into(),
        });
    }
    let forth = Rings::new(eal, &format!("{name}f"), config)?;
    let back = Rings::new(eal, &format!("{name}b"), config)?;
    let resources = Arc::new((forth, back));
    let (forth, back) = &*resources;
    let port = |suffix: &str, rx: &Rings, tx: &Rings| {
        let short = format!("{name}{suffix}");
        let mut control = control();
        let device = from_rings(&short, rx, tx)?;
        let resources: Arc<dyn Send + Sync> = Arc::clone(&resources) as _;
        Port::adopt(eal, &mut control, c"vdev", device, "", Some(resources))
    };
    let a = port("a", back, forth)?;
    let b = port("b", forth, back)?;
    Ok((a, b))
}

/// Makes a `net_ring` device and returns its name; the caller holds the control path's lock.
fn from_rings(name: &str, rx: &Rings, tx: &Rings) -> Result<CString, Error> {
    let c_name = c_string(name)?;
    let device = c_string(&format!("net_ring_{name}"))?;
    let mut rx: Vec<_> = rx.rings.iter().map(|ring| ring.as_ptr()).collect();
    let mut tx: Vec<_> = tx.rings.iter().map(|ring| ring.as_ptr()).collect();
    // SAFETY: the EAL is initialised; the name is a string, and both arrays have the lengths
    // stated. The driver copies all three. The rings outlive the device: its port holds them.
    let port = unsafe {
        sys::rte_eth_from_rings(
            c_name.as_ptr(),
            rx.as_mut_ptr(),
            rx.len() as u32,
            tx.as_mut_ptr(),
            tx.len() as u32,
            0,
        )
    };
    if port < 0 {
        return Err(Error::last("rte_eth_from_rings", name));
    }
    Ok(device)
}

/// The rings of one direction, one per queue.
struct Rings {
    rings: Vec<NonNull<sys::rte_ring>>,
    _eal: Arc<EalInner>,
}

// SAFETY: rings may be used and freed on any thread; that only one at a time sends and one receives
// is the queues' doing.
unsafe impl Send for Rings {}
// SAFETY: nothing is done with a shared `Rings` but to copy the pointers.
unsafe impl Sync for Rings {}

impl Rings {
    fn new(eal: &Eal, name: &str, config: &RingPairConfig) -> Result<Self, Error> {
        let mut rings = Self {
            rings: Vec::new(),
            _eal: Arc::clone(eal.inner()),
        };
        for queue in 0..config.queues {
            let name = format!("{name}{queue}");
            let c_name = c_string(&name)?;
            // SAFETY: the EAL is initialised and the name is a string that DPDK copies.
            let ring = unsafe {
                sys::rte_ring_create(
                    c_name.as_ptr(),
                    config.frames,
                    -1,
                    sys::TALLY_RING_SINGLE_PRODUCER | sys::TALLY_RING_SINGLE_CONSUMER,
                )
            };
            let Some(ring) = NonNull::new(ring) else {
                return Err(Error::Call {
                    call: "rte_ring_create",
                    subject: name,
                    errno: Errno::last(),
                });
            };
            rings.rings.push(ring);
        }
        Ok(rings)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        for ring in &self.rings {
            // SAFETY: the ring exists and no port uses it: both ports are closed, or there were
            // none. What is in it are frames, one reference each, that a port's queue sent.
            unsafe { sys::tally_ring_free_frames(ring.as_ptr()) };
            // SAFETY: as above, and it is freed once.
            unsafe { sys::rte_ring_free(ring.as_ptr()) };
        }
    }
}
