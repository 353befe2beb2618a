//! What a register socket speaks: a Unix stream, requests of 8 bytes each way.
//!
//! | byte | request | reply |
//! |---|---|---|
//! | 0 | 1 read, 2 write | the same and 0x80 |
//! | 1 | 0 | 0 done, 1 refused (SLVERR) |
//! | 2, 3 | address | the same |
//! | 4 to 7 | value; 0 in a read | the value read; of a write, the value written |
//!
//! Little-endian. Requests are answered in their order; several may be on their way at a time, up
//! to
//! [`IN_FLIGHT`]. Anything else ends the connection.

/// Bytes of a request, and of a reply.
pub const BYTES: usize = 8;
/// Requests on their way at a time, at most.
pub const IN_FLIGHT: usize = 512;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// A register is read.
    Read = 1,
    /// A register is written.
    Write = 2,
}

/// What a driver asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Read or write.
    pub operation: Operation,
    /// Of which register.
    pub address: u16,
    /// What is written.
    pub value: u32,
}

impl Request {
    /// The request in these bytes; `None` if it is none.
    #[must_use]
    pub fn parse(bytes: [u8; BYTES]) -> Option<Self> {
        let [operation, zero, a0, a1, v0, v1, v2, v3] = bytes;
        let operation = match operation {
            1 => Operation::Read,
            2 => Operation::Write,
            _ => return None,
        };
        let value = u32::from_le_bytes([v0, v1, v2, v3]);
        if zero != 0 || (operation == Operation::Read && value != 0) {
            return None;
        }
        Some(Self {
            operation,
            address: u16::from_le_bytes([a0, a1]),
            value,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; BYTES] {
        let [a0, a1] = self.address.to_le_bytes();
        let [v0, v1, v2, v3] = self.value.to_le_bytes();
        [self.operation as u8, 0, a0, a1, v0, v1, v2, v3]
    }

    /// The answer to it: the value read or written, or `None` if the card refused.
    #[must_use]
    pub fn reply(&self, value: Option<u32>) -> [u8; BYTES] {
        let [a0, a1] = self.address.to_le_bytes();
        let [v0, v1, v2, v3] = value.unwrap_or(0).to_le_bytes();
        let refused = u8::from(value.is_none());
        [self.operation as u8 | 0x80, refused, a0, a1, v0, v1, v2, v3]
    }
}

/// What comes back for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done(u32),
    Refused,
    /// Not an answer to it.
    Nonsense,
}

impl Reply {
    pub(crate) fn parse(bytes: [u8; BYTES], to: &Request) -> Self {
        let [operation, status, a0, a1, v0, v1, v2, v3] = bytes;
        let value = u32::from_le_bytes([v0, v1, v2, v3]);
        let is_for_it =
            operation == to.operation as u8 | 0x80 && [a0, a1] == to.address.to_le_bytes();
        match status {
            0 if is_for_it && (to.operation == Operation::Read || value == to.value) => {
                Self::Done(value)
            }
            1 if is_for_it => Self::Refused,
            _ => Self::Nonsense,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Request = Request {
        operation: Operation::Read,
        address: 0x0402,
        value: 0,
    };
    const WRITE: Request = Request {
        operation: Operation::Write,
        address: 0x0102,
        value: 0x0304_0506,
    };

    #[test]
    fn requests_are_what_the_table_says() {
        assert_eq!(READ.emit(), [1, 0, 2, 4, 0, 0, 0, 0]);
        assert_eq!(WRITE.emit(), [2, 0, 2, 1, 6, 5, 4, 3]);
        assert_eq!(Request::parse(READ.emit()), Some(READ));
        assert_eq!(Request::parse(WRITE.emit()), Some(WRITE));
        for wrong in [
            [0, 0, 0, 0, 0, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0],
            [0x81, 0, 0, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0, 0, 0],
            [1, 0, 0, 0, 1, 0, 0, 0],
        ] {
            assert_eq!(Request::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn replies_are_of_their_request() {
        assert_eq!(Reply::parse(READ.reply(Some(7)), &READ), Reply::Done(7));
        assert_eq!(Reply::parse(READ.reply(None), &READ), Reply::Refused);
        let written = WRITE.reply(Some(WRITE.value));
        assert_eq!(Reply::parse(written, &WRITE), Reply::Done(WRITE.value));
        assert_eq!(Reply::parse(WRITE.reply(Some(1)), &WRITE), Reply::Nonsense);
        assert_eq!(Reply::parse(written, &READ), Reply::Nonsense);
        for byte in 0..4 {
            let mut reply = READ.reply(Some(7));
            reply[byte] ^= 0x44;
            assert_eq!(Reply::parse(reply, &READ), Reply::Nonsense, "{byte}");
        }
    }
}
