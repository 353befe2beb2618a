//! Pools of packet buffers.
//!
//! # How it works
//!
//! A pool is a ring of free buffers, all of one size, made once. Threads that are registered
//! ([`crate::EalThread`]) have a cache of them in front of the ring. Frames start
//! [`HEADROOM_BYTES`] into their buffer and on a [`FRAME_ALIGN_BYTES`] boundary, so that a
//! payload 64 bytes into the frame is aligned for SIMD.
//!
//! # The catches
//!
//! - A [`Mempool`] is a handle; the memory goes back when the last handle is gone *and* all
//!   frames are home. Until then the pool's name stays taken.
//! - The counts look at all caches without stopping anyone. They are exact when no thread allocates
//!   or frees, and a snapshot otherwise.

use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::eal::{Eal, EalInner};
use crate::error::{Error, c_string};
use crate::mbuf::Mbuf;

/// Room before a frame, for headers that are added: 128 bytes.
pub const HEADROOM_BYTES: usize = sys::RTE_PKTMBUF_HEADROOM as usize;

/// Frames start at a multiple of this.
pub const FRAME_ALIGN_BYTES: usize = 64;

/// `RTE_MEMPOOL_CACHE_MAX_SIZE`.
const CACHE_FRAMES_MAX: u32 = 512;

// A buffer is a multiple of the alignment (DPDK lays pools out so), then comes the descriptor,
// then the headroom, then the frame.
const _: () = assert!(HEADROOM_BYTES.is_multiple_of(FRAME_ALIGN_BYTES));
const _: () = assert!(size_of::<sys::rte_mbuf>().is_multiple_of(FRAME_ALIGN_BYTES));
const _: () = assert!(align_of::<sys::rte_mbuf>() >= FRAME_ALIGN_BYTES);

/// How large a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolConfig {
    /// How many frames it holds. A power of two less one wastes no memory in the ring.
    pub frames: u32,
    /// How many frames a registered thread may keep for itself: at most 512 and two thirds of
    /// `frames`; 0 for none. Plan for one and a half times that number per thread.
    pub cache_frames: u32,
    /// The longest frame that fits a buffer, without headroom. Rounded up to 64.
    pub frame_bytes_max: u16,
    /// NUMA node of the memory; `None` for any.
    pub socket: Option<u32>,
}

impl Default for MempoolConfig {
    /// 8191 frames of up to 2048 bytes, 256 of them per thread, on any node.
    fn default() -> Self {
        Self {
            frames: 8191,
            cache_frames: 256,
            frame_bytes_max: 2048,
            socket: None,
        }
    }
}

/// A handle on a pool of buffers. Cloning it is cheap and gives another handle on the same pool.
#[derive(Clone)]
pub struct Mempool(Arc<MempoolInner>);

struct MempoolInner {
    pool: NonNull<sys::rte_mempool>,
    name: String,
    frame_bytes_max: usize,
    eal: Arc<EalInner>,
}

// SAFETY: pools are made with the default ring of many producers and consumers, so that any thread
// may allocate and free; caches belong to the calling thread's lcore number, and DPDK gives one
// number to one thread.
unsafe impl Send for MempoolInner {}
// SAFETY: as above.
unsafe impl Sync for MempoolInner {}

impl Mempool {
    /// Makes a pool. Its name must be new, and short: 25 characters at most.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with `EEXIST` for a name that is taken, `ENOMEM` if the EAL has not enough
    /// memory, `EINVAL` for a cache that is too large; [`Error::TooMuch`] and [`Error::Zero`] for
    /// sizes that make no sense.
    pub fn new(eal: &Eal, name: &str, config: &MempoolConfig) -> Result<Self, Error> {
        let subject = || format!("pool {name}");
        if config.frames == 0 {
            return Err(Error::Zero {
                subject: subject(),
                what: "frames",
            });
        }
        let frame_bytes_max =
            usize::from(config.frame_bytes_max).next_multiple_of(FRAME_ALIGN_BYTES);
        let data_room = HEADROOM_BYTES + frame_bytes_max;
        let Ok(data_room) = u16::try_from(data_room) else {
            return Err(Error::TooMuch {
                subject: subject(),
                what: "frame_bytes_max",
                value: config.frame_bytes_max.into(),
                max: (usize::from(u16::MAX) - HEADROOM_BYTES) / FRAME_ALIGN_BYTES
                    * FRAME_ALIGN_BYTES,
            });
        };
        if config.cache_frames > CACHE_FRAMES_MAX {
            return Err(Error::TooMuch {
                subject: subject(),
                what: "cache_frames",
                value: config.cache_frames as usize,
                max: CACHE_FRAMES_MAX as usize,
            });
        }
        // SOCKET_ID_ANY is -1.
        let socket = config.socket.map_or(-1, |socket| socket as i32);
        let c_name = c_string(name)?;
        // SAFETY: the EAL is initialised and the name is a string that DPDK copies.
        let pool = unsafe {
            sys::rte_pktmbuf_pool_create(
                c_name.as_ptr(),
                config.frames,
                config.cache_frames,
                0,
                data_room,
                socket,
            )
        };
        let Some(pool) = NonNull::new(pool) else {
            return Err(Error::last("rte_pktmbuf_pool_create", &subject()));
        };
        Ok(Self(Arc::new(MempoolInner {
            pool,
            name: name.to_owned(),
            frame_bytes_max,
            eal: Arc::clone(eal.inner()),
        })))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The longest frame that fits a buffer, in bytes.
    #[must_use]
    pub fn frame_bytes_max(&self) -> usize {
        self.0.frame_bytes_max
    }

    /// How many frames it has in all.
    #[must_use]
    pub fn size(&self) -> usize {
        // SAFETY: the pool lives as long as its handles.
        unsafe { sys::tally_mempool_size(self.as_ptr()) as usize }
    }

    /// How many frames are free, those in the caches of all threads included.
    #[must_use]
    pub fn available(&self) -> usize {
        // SAFETY: the pool lives as long as its handles.
        unsafe { sys::rte_mempool_avail_count(self.as_ptr()) as usize }
    }

    /// How many frames are out: held by values, by drivers' rings, or under way.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.size() - self.available()
    }

    /// Whether every frame is home: what each test ends by asserting.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.in_use() == 0
    }

    /// An empty frame, or `None` if the pool is dry.
    #[must_use]
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut frame = std::ptr::null_mut();
        // SAFETY: the pool is alive and there is room for the one pointer asked for.
        let ret = unsafe { sys::tally_alloc_bulk(self.as_ptr(), &raw mut frame, 1) };
        if ret != 0 {
            return None;
        }
        // SAFETY: a fresh buffer with a reference count of one, which is now ours.
        NonNull::new(frame).map(|frame| unsafe { Mbuf::from_raw(frame) })
    }

    /// A frame with these bytes; `None` if the pool is dry or they don't fit.
    #[must_use]
    pub fn alloc_copy(&self, bytes: &[u8]) -> Option<Mbuf> {
        let mut frame = self.alloc()?;
        frame.append(bytes.len())?.copy_from_slice(bytes);
        Some(frame)
    }

    /// A copy of a frame, in one segment; `None` if the pool is dry or the frame is longer than its
    /// buffers.
    #[must_use]
    pub fn copy(&self, frame: &Mbuf) -> Option<Mbuf> {
        if frame.len() > self.frame_bytes_max() {
            return None;
        }
        // SAFETY: the pool is alive, and the frame is only read, all of it.
        let copy = unsafe { sys::rte_pktmbuf_copy(frame.as_ptr(), self.as_ptr(), 0, u32::MAX) };
        // SAFETY: a fresh buffer, filled, with a reference count of one, which is now ours.
        NonNull::new(copy).map(|copy| unsafe { Mbuf::from_raw(copy) })
    }

    /// Appends `n` empty frames to `out`, all or none; `false` if the pool has fewer. Nothing is
    /// allocated on Rust's heap if `out` has the capacity.
    pub fn alloc_bulk(&self, out: &mut Vec<Mbuf>, n: usize) -> bool {
        let Ok(n_wide) = u32::try_from(n) else {
            return false;
        };
        if n == 0 {
            return true;
        }
        out.reserve(n);
        let spare = out.spare_capacity_mut().as_mut_ptr();
        // SAFETY: the pool is alive. There is room for n pointers, and an `Mbuf` is laid out as
        // one.
        let ret = unsafe { sys::tally_alloc_bulk(self.as_ptr(), spare.cast(), n_wide) };
        if ret != 0 {
            return false;
        }
        // SAFETY: n elements after the end, within capacity, have just been written; each is a
        // fresh buffer with a reference count of one, which is ours.
        unsafe { out.set_len(out.len() + n) };
        true
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.0.pool.as_ptr()
    }
}

impl Drop for MempoolInner {
    fn drop(&mut self) {
        self.eal.adopt(self.pool);
    }
}

impl std::fmt::Debug for Mempool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mempool")
            .field("name", &self.0.name)
            .field("size", &self.size())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
