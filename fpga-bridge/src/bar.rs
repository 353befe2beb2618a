//! The registers of a card in a slot: memory that the device owns.
//!
//! # How it works
//!
//! The kernel has a file for each memory region of a PCI device (`resource0` and so on, below `/sys/bus/pci/devices`).
//! Mapped, it is the device itself: a load is a read of a register, and a store a write.
//!
//! # The catches
//!
//! - A device that is gone, or whose memory is off, reads all ones, and what is written to it is lost without a word.
//!   The driver looks at what it reads.
//! - A store is not at the device when it is done, but is before the next load of the same device is answered.

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

// SAFETY: it is memory that belongs to no thread, and that nothing but the methods of this value, one at a time, accesses
// from this process.
unsafe impl Send for Bar {}

impl Bar {
    /// Maps region `resource` of the PCI device at `address`, such as 0000:01:00.0.
    ///
    /// # Errors
    /// [`CardError::PciAddress`] for something else, and what [`map`](Self::map) says.
    pub fn open(address: &str, resource: u8) -> Result<Self, CardError> {
        if !is_pci_address(address) {
            return Err(CardError::PciAddress(address.to_owned()));
        }
        let folder = PathBuf::from("/sys/bus/pci/devices").join(address);
        // A device that no driver of the kernel has may have its memory off, which this turns on. One that has
        // a driver refuses, and has it on.
        let _ = std::fs::write(folder.join("enable"), "1");
        Self::map(&folder.join(format!("resource{resource}")))
    }

    /// Maps the file that is a device's registers.
    ///
    /// # Errors
    /// [`CardError::Map`] if there is none or it cannot be mapped, [`CardError::TooSmall`] if it is another region.
    pub fn map(path: &Path) -> Result<Self, CardError> {
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
        if found < BYTES_MIN as u64 {
            return Err(CardError::TooSmall {
                path: path.to_owned(),
                found,
                expected: BYTES_MIN as u64,
            });
        }
        let bytes = usize::try_from(found).map_or(BYTES_MAX, |found| found.min(BYTES_MAX));
        Self::map_file(&file, bytes).map_err(failed)
    }

    fn map_file(file: &File, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, wherever the kernel likes it; nothing of ours is replaced.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
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
        // SAFETY: `at` gives a place in the mapping that is aligned, as mappings begin at pages and the offset is
        // a multiple of four. The mapping lives as long as `self`. There is no reference to that memory, which others
        // may write at any time; every pattern of bits is a number. A device's region keeps its length for as long as it
        // is mapped, and one whose device is gone reads all ones.
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
        // SAFETY: mapped by us with this length, and no pointer into it outlives this value. It does not fail for what
        // mmap returned.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
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
        let mut bar = Bar::map(file.path()).expect("it maps");
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
    fn nothing_outside_of_the_region_is_touched() {
        let file = region(BYTES_MIN as u64);
        let mut bar = Bar::map(file.path()).expect("it maps");
        let last = (BYTES_MIN - 4) as u16;
        assert!(bar.read(last).is_ok());
        for address in [last + 4, last + 1, 1, 2, 3, 0xfffc, 0xffff] {
            let error = bar.read(address).expect_err("out of reach");
            assert!(matches!(error, CardError::Address(a) if a == address));
            assert!(bar.write(address, 0).is_err());
        }
        // As much as an address reaches of a long one.
        let long = region(1 << 20);
        let mut bar = Bar::map(long.path()).expect("it maps");
        assert!(bar.read(0xfffc).is_ok());
        assert_eq!(bar.bytes, 1 << 16);
    }

    #[test]
    fn what_is_no_region_of_a_card_is_refused() {
        let short = region(BYTES_MIN as u64 - 1);
        let Err(error) = Bar::map(short.path()) else {
            panic!("too short");
        };
        assert!(matches!(error, CardError::TooSmall { .. }), "{error}");
        let Err(error) = Bar::map(Path::new("/nowhere/resource0")) else {
            panic!("not there");
        };
        assert!(error.to_string().contains("lspci"), "{error}");
        let Err(error) = Bar::open("0000:ff:1f.7", 0) else {
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
                matches!(Bar::open(wrong, 0), Err(CardError::PciAddress(_))),
                "{wrong}"
            );
        }
        let folder = tempfile::tempdir().expect("a folder");
        assert!(matches!(
            Bar::map(folder.path()),
            Err(CardError::Map { .. })
        ));
    }
}
