//! A RoCE device, by an IPv4 address of its network interface, and memory that it reads and writes.

use crate::library::{Library, library};
use crate::sys::{self, ibv_context, ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr};
use crate::{VerbsError, last_error};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use tally_local::SharedMemory;

/// Addresses of a device that are looked at.
const GIDS_MAX: usize = 256;
const PAGE_BYTES: usize = 4096;

/// Address of IPv4 as an address of RoCEv2: mapped into IPv6.
pub(crate) fn gid(address: Ipv4Addr) -> ibv_gid {
    ibv_gid {
        raw: address.to_ipv6_mapped().octets(),
    }
}

/// An opened device.
pub struct Device {
    pub(crate) library: &'static Library,
    pub(crate) context: NonNull<ibv_context>,
    pub(crate) pd: NonNull<ibv_pd>,
    name: String,
    address: Ipv4Addr,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    mtu: usize,
}

// SAFETY: libibverbs may be called from any thread, at the same time.
unsafe impl Send for Device {}
// SAFETY: as above; its fields are not changed.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device whose interface has this address.
    ///
    /// # Errors
    /// If there is no libibverbs or no such device, or the device refuses.
    pub fn open(address: Ipv4Addr) -> Result<Arc<Self>, VerbsError> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: `count` is written.
        let list = unsafe { (library.get_device_list)(&raw mut count) };
        let mut names = Vec::new();
        if list.is_null() {
            let error = last_error("ibv_get_device_list");
            // The kernel's modules for RDMA are not loaded.
            return Err(match error {
                VerbsError::Device { source, .. }
                    if source.raw_os_error() == Some(libc::ENOSYS) =>
                {
                    no_device(address, &names)
                }
                error => error,
            });
        }
        let mut found = Ok(None);
        for index in 0..count as usize {
            // SAFETY: the list has `count` devices until it is freed below.
            let device = unsafe { *list.add(index) };
            // SAFETY: the name is a C string that lives as long as the device.
            let name = unsafe { CStr::from_ptr((library.get_device_name)(device)) };
            let name = name.to_string_lossy().into_owned();
            // SAFETY: the device is of the list. It stays open after the list is freed.
            let context = unsafe { (library.open_device)(device) };
            names.push(name.clone());
            let Some(context) = NonNull::new(context) else {
                continue;
            };
            found = Self::at(library, context, name, address);
            if !matches!(found, Ok(None)) {
                break;
            }
        }
        // SAFETY: made above, and not used any more.
        unsafe { (library.free_device_list)(list) };
        found?.ok_or_else(|| no_device(address, &names))
    }

    /// The device of this context, which is closed unless it has the address.
    fn at(
        library: &'static Library,
        context: NonNull<ibv_context>,
        name: String,
        address: Ipv4Addr,
    ) -> Result<Option<Arc<Self>>, VerbsError> {
        let close = || {
            // SAFETY: opened by the caller, and nothing was made with it.
            unsafe { (library.close_device)(context.as_ptr()) };
        };
        let Some(entry) = gid_of(library, context, address) else {
            close();
            return Ok(None);
        };
        // SAFETY: the context is open.
        let pd = unsafe { (library.alloc_pd)(context.as_ptr()) };
        let Some(pd) = NonNull::new(pd) else {
            let error = last_error("ibv_alloc_pd");
            close();
            return Err(error);
        };
        let mut device = Self {
            library,
            context,
            pd,
            name,
            address,
            port: entry.port_num as u8,
            gid_index: entry.gid_index as u8,
            mtu: 0,
        };
        // SAFETY: zeros are a value of it.
        let mut port: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `port` is at least as long as what is written.
        let failed =
            unsafe { (library.query_port)(context.as_ptr(), device.port, &raw mut port) } != 0;
        if failed {
            return Err(last_error("ibv_query_port"));
        }
        device.mtu = 128 << port.active_mtu;
        Ok(Some(Arc::new(device)))
    }

    /// Name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Address of its network interface.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Longest payload of a packet on its link: 256 to 4096.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.mtu
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: what was made with them holds the device, and so is gone.
        unsafe {
            (self.library.dealloc_pd)(self.pd.as_ptr());
            (self.library.close_device)(self.context.as_ptr());
        }
    }
}

fn no_device(address: Ipv4Addr, names: &[String]) -> VerbsError {
    let devices = names.join(", ");
    VerbsError::NoDevice { address, devices }
}

/// Where the device has this address as one of RoCEv2.
fn gid_of(
    library: &Library,
    context: NonNull<ibv_context>,
    address: Ipv4Addr,
) -> Option<ibv_gid_entry> {
    let mut entries = [ibv_gid_entry {
        gid: ibv_gid { raw: [0; 16] },
        gid_index: 0,
        port_num: 0,
        gid_type: 0,
        ndev_ifindex: 0,
    }; GIDS_MAX];
    // SAFETY: the context is open, and `entries` has that many of that size.
    let count = unsafe {
        (library.query_gid_table)(
            context.as_ptr(),
            entries.as_mut_ptr(),
            GIDS_MAX,
            0,
            size_of::<ibv_gid_entry>(),
        )
    };
    let count = usize::try_from(count).unwrap_or(0);
    let wanted = gid(address).raw;
    entries[..count]
        .iter()
        .find(|it| it.gid_type == sys::IBV_GID_TYPE_ROCE_V2 && it.gid.raw == wanted)
        .copied()
}

/// Bytes that the device may read and write.
pub(crate) struct Registration {
    mr: NonNull<ibv_mr>,
    start: NonNull<u8>,
    bytes: usize,
    device: Arc<Device>,
}

// SAFETY: it is memory that belongs to no thread, and its registration.
unsafe impl Send for Registration {}

impl Registration {
    /// # Safety
    /// The bytes are mapped until it is dropped.
    unsafe fn new(
        device: &Arc<Device>,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the domain is the device's, and the bytes are mapped until after `dereg_mr`.
        let mr = unsafe {
            (device.library.reg_mr)(
                device.pd.as_ptr(),
                start.as_ptr().cast(),
                bytes,
                sys::IBV_ACCESS_LOCAL_WRITE,
            )
        };
        let mr = NonNull::new(mr).ok_or_else(|| last_error("ibv_reg_mr"))?;
        Ok(Self {
            mr,
            start,
            bytes,
            device: device.clone(),
        })
    }

    pub(crate) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Part of a work request.
    ///
    /// # Panics
    /// If the range is not in the memory.
    pub(crate) fn part(&self, start: usize, bytes: usize) -> sys::ibv_sge {
        assert!(start <= self.bytes && bytes <= self.bytes - start);
        sys::ibv_sge {
            addr: self.start.as_ptr() as u64 + start as u64,
            length: u32::try_from(bytes).expect("a part of a message"),
            // SAFETY: registered until `drop`.
            lkey: unsafe { self.mr.as_ref() }.lkey,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered in `new`. The caller of `post_send` and `post_receive` keeps memory
        // whose parts are posted.
        unsafe { (self.device.library.dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Allocated bytes.
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its bytes.
unsafe impl Send for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `Memory::new` with that layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Zeroed bytes that the device may read and write.
pub struct Memory {
    // Dropped in this order.
    registration: Registration,
    allocation: Allocation,
}

impl Memory {
    /// Allocates and registers memory, at the beginning of a page.
    ///
    /// # Errors
    /// If the device refuses, for which the limit of locked memory is a usual reason.
    ///
    /// # Panics
    /// If `bytes` is 0, or more than memory can have.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, VerbsError> {
        assert!(bytes > 0, "no memory of 0 bytes");
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("a possible length");
        // SAFETY: the length is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout);
        };
        let allocation = Allocation { start, layout };
        // SAFETY: `allocation` is dropped after the registration.
        let registration = unsafe { Registration::new(device, start, bytes) }?;
        Ok(Self {
            registration,
            allocation,
        })
    }

    /// Copies bytes into it, while other parts may be posted.
    ///
    /// # Panics
    /// If the range is not in the memory.
    pub(crate) fn write(&mut self, start: usize, bytes: &[u8]) {
        let part = self.registration.part(start, bytes.len());
        // SAFETY: the part is in the memory, and no other reference to it is held.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), part.addr as *mut u8, bytes.len()) };
    }

    /// Copies bytes out of it, while other parts may be posted.
    ///
    /// # Panics
    /// If the range is not in the memory.
    pub(crate) fn read(&self, start: usize, bytes: &mut [u8]) {
        let part = self.registration.part(start, bytes.len());
        // SAFETY: as in `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(part.addr as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
    }

    pub(crate) const fn registration(&self) -> &Registration {
        &self.registration
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Allocation { start, layout } = &self.allocation;
        // SAFETY: allocated and initialised. The caller of `QueuePair::post_receive` excludes
        // others from posted parts.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), layout.size()) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Allocation { start, layout } = &self.allocation;
        // SAFETY: as for `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), layout.size()) }
    }
}

/// Memory that another process shares, which the device may read and write.
pub struct Region {
    // Dropped in this order.
    registration: Registration,
    memory: SharedMemory,
}

impl Region {
    /// Registers it.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn new(device: &Arc<Device>, memory: SharedMemory) -> Result<Self, VerbsError> {
        // SAFETY: it is mapped until the last clone of `memory` is dropped, of which ours is one.
        let registration = unsafe { Registration::new(device, memory.start(), memory.bytes()) }?;
        Ok(Self {
            registration,
            memory,
        })
    }

    /// What is registered.
    #[must_use]
    pub const fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    pub(crate) const fn registration(&self) -> &Registration {
        &self.registration
    }
}
