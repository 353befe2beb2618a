//! Memory that a process and its agent share.
//!
//! The process makes a memfd, populates all of its pages, and seals it against shrinking. Pages are
//! charged to the memory cgroup that populates them, so the process pays. The agent maps the memfd,
//! adds `F_SEAL_FUTURE_WRITE`, which forbids punching holes, and then refuses a memfd that has one:
//! what it maps is populated and stays so, and the agent is charged for no page of it. Either side
//! copies in and out by pointers: there are no references to memory that another process may write.

use crate::error::{Class, Failure, LocalError};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

const NAME: &CStr = c"tally";
/// What the process seals: the length.
const SEALS_OF_PROCESS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
/// What the agent adds once it has a writable mapping: no hole can be punched, by no mapping and no
/// descriptor.
const SEALS_OF_AGENT: libc::c_int =
    libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// Shared memory, mapped here until the last owner drops it.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory that belongs to no thread. It is accessed by copies through pointers alone,
// as other processes access it at any time anyway.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maps the first `bytes` bytes of `fd`, which must be as long and stay so. `flags` are beside
    /// `MAP_SHARED`.
    fn new(fd: BorrowedFd<'_>, bytes: usize, flags: libc::c_int) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes it; nothing of ours is replaced.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED | flags,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: `at` and as many bytes as `into` has are inside the mapping, which lives as long
        // as `self`, and `into` is memory of ours, which the mapping is not. Another process may
        // write the bytes meanwhile: then we copy some of the old and some of the new, and every
        // pattern of bits is a byte.
        unsafe {
            let from = self.start.add(at).as_ptr();
            ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        // SAFETY: as in `read`, the other way round.
        unsafe {
            let into = self.start.add(at).as_ptr();
            ptr::copy_nonoverlapping(from.as_ptr(), into, from.len());
        }
    }

    fn check(&self, at: usize, bytes: usize) {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "outside of a region"
        );
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and no pointer into it outlives the last owner. It
        // does not fail for what mmap returned.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
}

/// Memory for tensors that the agent sees as well. It is unmapped with its last clone, or, at the
/// agent, with the last collective on it.
#[derive(Clone)]
pub struct Region {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) id: u32,
    /// The client that it belongs to.
    pub(crate) owner: u64,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.id, self.bytes())
    }
}

impl Region {
    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// Its first byte, at the start of a page. A caller that makes references of it ensures that
    /// the agent does not write there meanwhile: between the submission of a collective and its
    /// completion, its part is the agent's.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// Copies the bytes from `at` on.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.mapping.read(at, into);
    }

    /// Copies bytes to `at` and behind.
    ///
    /// # Panics
    /// If they do not all fit inside.
    pub fn write(&self, at: usize, from: &[u8]) {
        self.mapping.write(at, from);
    }
}

/// A region at the agent, for a device that reads and writes it: mapped until its last clone is
/// dropped. There are no references to its bytes.
#[derive(Clone)]
pub struct SharedMemory(Arc<Mapping>);

impl SharedMemory {
    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether the process still shares it, or a collective is on it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl PartialEq for SharedMemory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.bytes())
    }
}

/// A part of a region, at the agent: the elements of one collective.
pub struct Span {
    /// None has no bytes.
    mapping: Option<Arc<Mapping>>,
    at: usize,
    bytes: usize,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({}, {} bytes)", self.at, self.bytes)
    }
}

impl Span {
    /// The part of `mapping` from `at`, if it has one.
    pub(crate) fn new(mapping: &Arc<Mapping>, at: u64, bytes: u64) -> Option<Self> {
        let end = at.checked_add(bytes)?;
        (end <= mapping.bytes as u64).then(|| Self {
            mapping: Some(Arc::clone(mapping)),
            at: at as usize,
            bytes: bytes as usize,
        })
    }

    /// Of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            mapping: None,
            at: 0,
            bytes: 0,
        }
    }

    /// The region, and where in it the span begins; none without bytes.
    #[must_use]
    pub fn memory(&self) -> Option<(SharedMemory, usize)> {
        let mapping = self.mapping.clone().filter(|_| self.bytes > 0)?;
        Some((SharedMemory(mapping), self.at))
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the bytes from `at` on, counted from the span's start.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        if let Some(mapping) = &self.mapping {
            mapping.read(self.at + at, into);
        }
    }

    /// Copies bytes to `at` and behind, counted from the span's start.
    ///
    /// # Panics
    /// If they do not all fit inside.
    pub fn write(&mut self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        if let Some(mapping) = &self.mapping {
            mapping.write(self.at + at, from);
        }
    }

    fn check(&self, at: usize, bytes: usize) {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "outside of a span"
        );
    }
}

/// Makes memory to share: `bytes` of it, all zero. What the machine does not have, it may kill for:
/// the agent's limit is to be known before.
pub(crate) fn allocate(bytes: usize) -> Result<(OwnedFd, Mapping), LocalError> {
    let system = |what: &str| {
        let what = format!("{what} ({bytes} bytes of memory to share with the agent)");
        LocalError::system(what, io::Error::last_os_error())
    };
    let length = libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX);
    let fd = create().map_err(|_| system("memfd_create"))?;
    let raw = fd.as_raw_fd();
    // SAFETY: a file of ours.
    if unsafe { libc::ftruncate(raw, length) } != 0 {
        return Err(system("ftruncate"));
    }
    // Memory that is exhausted is an error here; populating alone would not report it.
    // SAFETY: a file of ours.
    if bytes > 0 && unsafe { libc::fallocate(raw, 0, 0, length) } != 0 {
        return Err(system("fallocate"));
    }
    // Pages that are allocated and never touched are holes to SEEK_HOLE, by which the agent checks.
    let populate = libc::MAP_POPULATE;
    let mapping = Mapping::new(borrow(&fd), bytes, populate).map_err(|_| system("mmap"))?;
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, SEALS_OF_PROCESS) } != 0 {
        return Err(system("sealing"));
    }
    Ok((fd, mapping))
}

fn create() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know the one that some later ones insist on.
    for flags in [flags | libc::MFD_NOEXEC_SEAL, flags] {
        // SAFETY: a string that ends with zero.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: a new file descriptor, which only we own.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Err(io::Error::last_os_error())
}

fn borrow(fd: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(fd)
}

/// Maps memory that a process offers, if it is such that we come to no harm.
pub(crate) fn accept(fd: &OwnedFd, bytes: u64) -> Result<Mapping, Failure> {
    let refuse = |text: String| Err(Failure::new(Class::Memory, text));
    // Before anything that a file system of the process's own could let hang.
    // SAFETY: no pointers.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return refuse("the file that is to be shared is no memfd".into());
    }
    if seals & libc::F_SEAL_SHRINK == 0 {
        return refuse("the memfd is not sealed against becoming shorter (F_SEAL_SHRINK)".into());
    }
    // SAFETY: all fields are numbers.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: room for what the kernel says.
    let known = unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut system) } == 0;
    if !known || system.f_type != libc::TMPFS_MAGIC {
        return refuse("the memfd is not of ordinary pages".into());
    }
    // SAFETY: all fields are numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for what the kernel says.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
        return refuse(format!("the memfd: {}", io::Error::last_os_error()));
    }
    let has = u64::try_from(stat.st_size).unwrap_or(0);
    if bytes == 0 || bytes > has {
        return refuse(format!(
            "the memfd has {has} bytes, of which {bytes} are to be shared"
        ));
    }
    let mapping = usize::try_from(bytes)
        .map_err(io::Error::other)
        .and_then(|bytes| Mapping::new(borrow(fd), bytes, 0));
    let mapping = match mapping {
        Ok(mapping) => mapping,
        Err(why) => return refuse(format!("mapping the memfd: {why}")),
    };
    // The order matters: a writable mapping is not to be had after the seal, and a hole that is
    // found before it can still be punched after.
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS_OF_AGENT) } != 0 {
        let why = io::Error::last_os_error();
        return refuse(format!(
            "sealing the memfd against holes (F_SEAL_FUTURE_WRITE): {why}; it must not have F_SEAL_SEAL"
        ));
    }
    // Blocks that `fstat` counts do not tell: they may be behind the end.
    // SAFETY: no pointers.
    let hole = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_HOLE) };
    match u64::try_from(hole) {
        Ok(hole) if hole >= bytes => Ok(mapping),
        Ok(hole) => refuse(format!(
            "the memfd has a hole at byte {hole} of {bytes}; populate all of its pages before it is shared \
             (fallocate, then MAP_POPULATE)"
        )),
        Err(_) => refuse(format!("the memfd: {}", io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs::File;

    const BYTES: usize = 3 * 4096 + 5;

    #[test]
    fn both_sides_see_the_same() {
        let (fd, ours) = allocate(BYTES).unwrap();
        let theirs = accept(&fd, BYTES as u64).unwrap();
        drop(fd);
        ours.write(BYTES - 3, &[1, 2, 3]);
        let mut got = [0; 4];
        theirs.read(BYTES - 4, &mut got);
        assert_eq!(got, [0, 1, 2, 3]);
        theirs.write(0, &[9]);
        ours.read(0, &mut got[..1]);
        assert_eq!(got[0], 9);
    }

    #[test]
    fn what_is_shared_keeps_its_length() {
        let (fd, _mapping) = allocate(BYTES).unwrap();
        let file = File::from(fd.try_clone().unwrap());
        for bytes in [0, BYTES as u64 - 1, BYTES as u64 + 1] {
            assert!(file.set_len(bytes).is_err(), "{bytes}");
        }
        // SAFETY: no pointers.
        let more = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        assert!(more != 0);
    }

    #[track_caller]
    fn refused(fd: &OwnedFd, bytes: u64, why: &str) {
        let failure = accept(fd, bytes).err().unwrap();
        assert_eq!(failure.class, Class::Memory);
        assert!(failure.text.contains(why), "{}", failure.text);
    }

    /// A memfd with pages for all bytes and with these seals.
    fn memfd(flags: libc::c_uint, bytes: u64, seals: libc::c_int) -> OwnedFd {
        // SAFETY: a string that ends with zero.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags | libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: a new file descriptor, which only we own.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        File::from(fd.try_clone().unwrap()).set_len(bytes).unwrap();
        Mapping::new(borrow(&fd), bytes as usize, libc::MAP_POPULATE).unwrap();
        // SAFETY: no pointers.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        fd
    }

    #[test]
    fn what_could_harm_us_is_refused() {
        let sealing = libc::MFD_ALLOW_SEALING;
        let shrink = libc::F_SEAL_SHRINK;
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        refused(&file.into(), 4096, "no memfd");
        let (pipe, _writer) = io::pipe().unwrap();
        refused(&pipe.into(), 4096, "no memfd");
        refused(&memfd(sealing, 4096, 0), 4096, "not sealed");
        refused(&memfd(0, 4096, shrink), 4096, "not sealed");
        refused(&memfd(sealing, 4096, libc::F_SEAL_GROW), 4096, "not sealed");
        let good = memfd(sealing, 4096, shrink);
        refused(&good, 4097, "has 4096 bytes, of which 4097");
        refused(&good, u64::MAX, "has 4096 bytes, of which");
        refused(&good, 0, "of which 0");
        assert!(accept(&good, 4096).is_ok());
        let final_seals = memfd(sealing, 4096, shrink | libc::F_SEAL_SEAL);
        refused(&final_seals, 4096, "must not have F_SEAL_SEAL");
        for seal in [libc::F_SEAL_WRITE, libc::F_SEAL_FUTURE_WRITE] {
            let unwritable = memfd(sealing, 4096, shrink | seal);
            refused(&unwritable, 4096, "mapping the memfd");
        }
    }

    fn punch(fd: &OwnedFd, at: usize, bytes: usize) -> io::Result<()> {
        fallocate(
            fd,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            at,
            bytes,
        )
    }

    fn fallocate(fd: &OwnedFd, mode: libc::c_int, at: usize, bytes: usize) -> io::Result<()> {
        let (at, bytes) = (at as libc::off_t, bytes as libc::off_t);
        // SAFETY: no pointers.
        if unsafe { libc::fallocate(fd.as_raw_fd(), mode, at, bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Each way in which a region could have a hole when the agent takes it.
    #[test]
    fn a_region_with_a_hole_is_refused() {
        const PAGES: usize = 4;
        const BYTES: usize = PAGES * 4096;
        for page in 0..PAGES {
            let (fd, _mapping) = allocate(BYTES).unwrap();
            punch(&fd, page * 4096, 4096).unwrap();
            let at = format!("a hole at byte {} of {BYTES}", page * 4096);
            refused(&fd, BYTES as u64, &at);
        }
        // Nothing but its length.
        let sealing = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        // SAFETY: a string that ends with zero.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), sealing) };
        assert!(fd >= 0);
        // SAFETY: a new file descriptor, which only we own.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let file = File::from(fd.try_clone().unwrap());
        file.set_len(BYTES as u64).unwrap();
        // As many blocks as its length needs, all of them behind its end.
        fallocate(&fd, libc::FALLOC_FL_KEEP_SIZE, BYTES, BYTES).unwrap();
        // SAFETY: no pointers.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        refused(&fd, BYTES as u64, "a hole at byte 0 of 16384");
    }

    #[test]
    fn no_hole_can_be_made_in_a_region_that_the_agent_has() {
        let (fd, ours) = allocate(BYTES).unwrap();
        ours.write(0, &[7; BYTES]);
        let theirs = accept(&fd, BYTES as u64).unwrap();
        assert_eq!(
            punch(&fd, 0, 4096).unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
        // SAFETY: a mapping of ours, whose bytes the kernel would drop.
        let removed =
            unsafe { libc::madvise(ours.start.as_ptr().cast(), BYTES, libc::MADV_REMOVE) };
        let why = io::Error::last_os_error().raw_os_error();
        assert_eq!((removed, why), (-1, Some(libc::EPERM)));
        let file = File::from(fd.try_clone().unwrap());
        for bytes in [0, 4096, 2 * BYTES as u64] {
            assert!(file.set_len(bytes).is_err(), "{bytes}");
        }
        // What was mapped before still shares every byte, both ways; no more can be mapped to
        // write.
        assert!(Mapping::new(borrow(&fd), BYTES, 0).is_err());
        theirs.write(0, &[9]);
        ours.write(BYTES - 1, &[8]);
        let mut got = [0; BYTES];
        theirs.read(0, &mut got);
        assert_eq!((got[0], got[1], got[BYTES - 1]), (9, 7, 8));
    }

    #[test]
    fn spans_are_inside_their_region() {
        let (_fd, mapping) = allocate(4096).unwrap();
        let mapping = Arc::new(mapping);
        for (at, bytes) in [
            (0, 4097),
            (4096, 1),
            (4097, 0),
            (u64::MAX, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            assert!(Span::new(&mapping, at, bytes).is_none(), "{at} {bytes}");
        }
        let mut span = Span::new(&mapping, 4000, 96).unwrap();
        drop(Span::new(&mapping, 4096, 0).unwrap());
        span.write(95, &[7]);
        let mut got = [0];
        mapping.read(4095, &mut got);
        assert_eq!(got, [7]);
        for (at, bytes) in [(0, 97), (96, 1), (usize::MAX, 1), (1, 96)] {
            let read = std::panic::AssertUnwindSafe(|| span.read(at, &mut vec![0; bytes]));
            assert!(std::panic::catch_unwind(read).is_err(), "{at} {bytes}");
        }
        let (memory, at) = span.memory().unwrap();
        assert_eq!((memory.bytes(), at), (4096, 4000));
        // SAFETY: inside the region, which no one else accesses here.
        assert_eq!(unsafe { memory.start().add(4095).read() }, 7);
        drop((span, mapping));
        assert!(!memory.is_in_use());
        let mut nothing = Span::empty();
        assert!(nothing.memory().is_none());
        nothing.read(0, &mut []);
        nothing.write(0, &[]);
    }
}
