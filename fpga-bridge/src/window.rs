//! Registers, behind a socket or on a bus.

use crate::error::CardError;
use crate::registers;

/// Registers of 32 bits at addresses of 16 bits, multiples of 4.
///
/// A window that has failed once may fail each time after.
pub trait Window: Send {
    /// Reads a register.
    ///
    /// # Errors
    /// Any cause that it can't be read; in bounded time.
    fn read(&mut self, address: u16) -> Result<u32, CardError>;

    /// Writes a register. That it is not an error does not say that the card took it.
    ///
    /// # Errors
    /// Any known cause that it can't be written; in bounded time.
    fn write(&mut self, address: u16, value: u32) -> Result<(), CardError>;

    /// Writes several registers in this order. Where a register is far away, this is much faster
    /// than one by one.
    ///
    /// # Errors
    /// As [`write`](Self::write); later ones may have been written or not.
    fn write_all(&mut self, writes: &[(u16, u32)]) -> Result<(), CardError> {
        writes
            .iter()
            .try_for_each(|&(address, value)| self.write(address, value))
    }

    /// Reads several registers in this order, and appends what they have to `values`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_all(&mut self, addresses: &[u16], values: &mut Vec<u32>) -> Result<(), CardError> {
        for &address in addresses {
            values.push(self.read(address)?);
        }
        Ok(())
    }
}

impl<W: Window + ?Sized> Window for Box<W> {
    fn read(&mut self, address: u16) -> Result<u32, CardError> {
        (**self).read(address)
    }

    fn write(&mut self, address: u16, value: u32) -> Result<(), CardError> {
        (**self).write(address, value)
    }

    fn write_all(&mut self, writes: &[(u16, u32)]) -> Result<(), CardError> {
        (**self).write_all(writes)
    }

    fn read_all(&mut self, addresses: &[u16], values: &mut Vec<u32>) -> Result<(), CardError> {
        (**self).read_all(addresses, values)
    }
}

/// What a register is called, for messages.
#[must_use]
pub fn name_of(address: u16) -> String {
    let known = registers::NAMES.iter().find(|&&(at, _)| at == address);
    if let Some((_, name)) = known {
        return (*name).to_owned();
    }
    let at = address.checked_sub(registers::COUNTERS_AT);
    let counter = at.and_then(|at| registers::COUNTERS.get(usize::from(at / 8)));
    match counter {
        Some((_, name)) => format!("counter `{name}`"),
        None => format!("0x{address:03x}"),
    }
}
