//! The registers of a card in a slot: memory that the device owns.
//!
//! # How it works
//!
//! The kernel has a file for each memory region of a PCI device (`resource0` and so on, below
//! `/sys/bus/pci/devices`). Mapped, it is the device itself: a load is a read of a register, and a
//! store a write.
//!
//! A region may have more in it than the card's registers: they begin at an offset, at a page of
//! memory.
//!
//! # The catches
//!
//! - A device that is gone, or whose memory is off, reads all ones, and what is written to it is
//!   lost without a word. The driver looks at what it reads.
//! - A store is not at the device when it is done, but is before the next load of the same device
//!   is answered.

use crate::error::CardError;
use crate::registers;
use crate::window::Window;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

/// What a card has of registers, in pages.
const BYTES_MIN: usize =
    (registers::COUNTERS_AT as usize + 8 * registers::COUNTERS.len()).next_multiple_of(4096);
/// What an address of 16 bits can reach.
const BYTES_MAX: usize = 1 << 16;

/// A card's registers, mapped.
pub struct Bar {
    start: NonNull<u32>,
    bytes: usize,
}

// SAFETY: it is memory that belongs to no thread, and that nothing but the methods of this value,
// one at a time, accesses from this process.
unsafe impl Send for Bar {}

impl Bar {
    /// Maps the registers that begin at byte `offset` of region `resource` of the PCI device at
    /// `address`, such as 0000:01:00.0.
    ///
    /// # Errors
    /// [`CardError::PciAddress`] for something else, and what [`map`](Self::map) says.
    pub fn open(address: &str, resource: u8, offset: u64) -> Result<Self, CardError> {
        if !is_pci_address(address) {
            return Err(CardError::PciAddress(address.to_owned()));
        }
        let folder = PathBuf::from("/sys/bus/pci/devices").join(address);
        // A device that no driver of the kernel has may have its memory off, which this turns on.
        // One that has a driver refuses, and has it on.
        let _ = std::fs::write(folder.join("enable"), "1");
        Self::map(&folder.join(format!("resource{resource}")), offset)
    }

    /// Maps a device's registers, which begin at byte `offset` of this file.
    ///
    /// # Errors
    /// [`CardError::Map`] if there is none or it cannot be mapped, [`CardError::TooSmall`] if they
    /// would not fit into it,
    /// [`CardError::Offset`] if no page begins there.
    pub fn map(path: &Path, offset: u64) -> Result<Self, CardError> {
        let failed = |source| CardError::Map {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_SYNC | libc::O_CLOEXEC)
            .open(path)
            .map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        let rest = found.saturating_sub(offset);
        if rest < BYTES_MIN as u64 {
            return Err(CardError::TooSmall {
                path: path.to_owned(),
                found,
                offset,
                expected: BYTES_MIN as u64,
            });
        }
        let page = page_bytes();
        if !offset.is_multiple_of(page) {
            return Err(CardError::Offset { offset, page });
        }
        let bytes = usize::try_from(rest).map_or(BYTES_MAX, |rest| rest.min(BYTES_MAX));
        Self::map_file(&file, offset, bytes).map_err(failed)
    }

    fn map_file(file: &File, offset: u64, bytes: usize) -> io::Result<Self> {
        // No file is so long that an offset inside of it is out of range.
        let offset = offset.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping, wherever the kernel likes it; nothing of ours is replaced.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Where a register is.
    fn at(&self, address: u16) -> Result<NonNull<u32>, CardError> {
        let offset = usize::from(address);
        if !offset.is_multiple_of(size_of::<u32>()) || offset + size_of::<u32>() > self.bytes {
            return Err(CardError::Address(address));
        }
        // SAFETY: the offset is inside of the mapping, as just checked.
        Ok(unsafe { self.start.byte_add(offset) })
    }
}

impl Window for Bar {
    fn read(&mut self, address: u16) -> Result<u32, CardError> {
        let register = self.at(address)?;
        // SAFETY: `at` gives a place in the mapping that is aligned, as mappings begin at pages and
        // the offset is a multiple of four. The mapping lives as long as `self`. There is no
        // reference to that memory, which others may write at any time; every pattern of bits is a
        // number. A device's region keeps its length for as long as it is mapped, and one whose
        // device is gone reads all ones.
        let value = unsafe { register.read_volatile() };
        Ok(u32::from_le(value))
    }

    fn write(&mut self, address: u16, value: u32) -> Result<(), CardError> {
        let register = self.at(address)?;
        // SAFETY: as in `read`; the mapping may be written.
        unsafe { register.write_volatile(value.to_le()) };
        Ok(())
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and no pointer into it outlives this value. It
        // does not fail for what mmap returned.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
}

/// What mappings begin at multiples of.
fn page_bytes() -> u64 {
    // SAFETY: it asks for a constant of the running kernel.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Every kernel has pages.
    u64::try_from(bytes).map_or(4096, |bytes| bytes.max(1))
}

/// Domain, bus, device and function.
fn is_pci_address(text: &str) -> bool {
    let pattern = "xxxx:xx:xx.x";
    text.len() == pattern.len()
        && text.chars().zip(pattern.chars()).all(|(c, p)| match p {
            'x' => c.is_ascii_hexdigit(),
            _ => c == p,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ordinary file, as the kernel shows a region of a device.
    fn region(bytes: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(bytes).expect("room");
        file
    }

    #[test]
    fn registers_are_words_in_the_file() {
        let file = region(1 << 16);
        let mut bar = Bar::map(file.path(), 0).expect("it maps");
        assert_eq!(bar.read(0).expect("in reach"), 0);
        bar.write(0x40, 0x0102_0304).expect("in reach");
        bar.write(0xfffc, 7).expect("in reach");
        let bytes = std::fs::read(file.path()).expect("it is there");
        assert_eq!(bytes[0x40..0x44], [4, 3, 2, 1]);
        assert_eq!(bytes[0xfffc..], [7, 0, 0, 0]);
        std::fs::write(file.path(), [9; 1 << 16]).expect("it is ours");
        assert_eq!(bar.read(0x44).expect("in reach"), 0x0909_0909);
    }

    #[test]
    fn registers_may_begin_in_the_middle_of_a_region() {
        // As OpenNIC's user box does, and one page before the end.
        let long = 0x40_0000;
        let page = page_bytes();
        for offset in [page, 0x10_0000, long - page] {
            let file = region(long);
            let mut bar = Bar::map(file.path(), offset).expect("it maps");
            bar.write(0x40, 0x0102_0304).expect("in reach");
            let mut expected = vec![0; long as usize];
            expected[offset as usize + 0x40..][..4].copy_from_slice(&[4, 3, 2, 1]);
            assert!(std::fs::read(file.path()).expect("it is there") == expected);
            assert_eq!(bar.read(0x40).expect("in reach"), 0x0102_0304);
            let reach = (long - offset).min(1 << 16);
            assert_eq!(bar.bytes as u64, reach, "and no further than the region");
        }
    }

    #[test]
    fn an_offset_that_is_not_in_the_region_or_at_no_page_is_refused() {
        let page = page_bytes();
        let file = region(4 * page);
        for outside in [4 * page, 4 * page - 4, 1 << 40, u64::MAX] {
            let Err(error) = Bar::map(file.path(), outside) else {
                panic!("{outside} is outside");
            };
            assert!(matches!(error, CardError::TooSmall { .. }), "{error}");
            let text = error.to_string();
            let words = [format!("{} bytes", 4 * page), format!("0x{outside:x}")];
            for word in words {
                assert!(text.contains(&word), "`{text}` does not say `{word}`");
            }
        }
        for crooked in [4, page / 2, page + 64] {
            let Err(error) = Bar::map(file.path(), crooked) else {
                panic!("no page begins at {crooked}");
            };
            assert!(matches!(error, CardError::Offset { .. }), "{error}");
            assert!(error.to_string().contains(&page.to_string()), "{error}");
        }
    }

    #[test]
    fn nothing_outside_of_the_region_is_touched() {
        let file = region(BYTES_MIN as u64);
        let mut bar = Bar::map(file.path(), 0).expect("it maps");
        let last = (BYTES_MIN - 4) as u16;
        assert!(bar.read(last).is_ok());
        for address in [last + 4, last + 1, 1, 2, 3, 0xfffc, 0xffff] {
            let error = bar.read(address).expect_err("out of reach");
            assert!(matches!(error, CardError::Address(a) if a == address));
            assert!(bar.write(address, 0).is_err());
        }
        // As much as an address reaches of a long one.
        let long = region(1 << 20);
        let mut bar = Bar::map(long.path(), 0).expect("it maps");
        assert!(bar.read(0xfffc).is_ok());
        assert_eq!(bar.bytes, 1 << 16);
    }

    #[test]
    fn what_is_no_region_of_a_card_is_refused() {
        let short = region(BYTES_MIN as u64 - 1);
        let Err(error) = Bar::map(short.path(), 0) else {
            panic!("too short");
        };
        assert!(matches!(error, CardError::TooSmall { .. }), "{error}");
        let Err(error) = Bar::map(Path::new("/nowhere/resource0"), 0) else {
            panic!("not there");
        };
        assert!(error.to_string().contains("lspci"), "{error}");
        let Err(error) = Bar::open("0000:ff:1f.7", 0, 0) else {
            panic!("not there");
        };
        assert!(matches!(error, CardError::Map { .. }), "{error}");
        for wrong in [
            "",
            "../../../../tmp",
            "0000:01:00",
            "0000:01:00.00",
            "0000-01:00.0",
            "0000:0g:00.0",
        ] {
            assert!(
                matches!(Bar::open(wrong, 0, 0), Err(CardError::PciAddress(_))),
                "{wrong}"
            );
        }
        let folder = tempfile::tempdir().expect("a folder");
        assert!(matches!(
            Bar::map(folder.path(), 0),
            Err(CardError::Map { .. })
        ));
    }
}
