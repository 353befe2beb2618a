//! Ethernet addresses, and the groups of a job's results.

use core::fmt;
use core::net::Ipv4Addr;
use thiserror::Error;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the group bit is set (multicast or broadcast).
    #[inline]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The address in the low 48 bits, first byte most significant.
    #[inline]
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// The MAC that an IPv4 group maps to (RFC 1112, 6.4).
    #[must_use]
    pub const fn of_group(group: Ipv4Addr) -> Self {
        let [_, b, c, d] = group.octets();
        Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::str::FromStr for Mac {
    type Err = MacSyntax;

    fn from_str(s: &str) -> Result<Self, MacSyntax> {
        let mut mac = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut mac {
            let part = parts.next().ok_or(MacSyntax)?;
            if part.len() != 2 || part.starts_with('+') {
                return Err(MacSyntax);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacSyntax)?;
        }
        if parts.next().is_some() {
            Err(MacSyntax)
        } else {
            Ok(Self(mac))
        }
    }
}

/// Error: the text is not an Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not an Ethernet address (six bytes in hexadecimal, as in 02:00:00:00:00:01)")]
pub struct MacSyntax;
