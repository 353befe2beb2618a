//! Explicit congestion notification, as IPv4 carries it (C-1).

/// ECN field of a frame's IPv4 header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    NotEct = 0,
    /// ECN-capable, ECT(1); no congestion met.
    Ect1 = 1,
    /// ECN-capable, ECT(0); no congestion met. All Tally frames leave with it.
    #[default]
    Ect0 = 2,
    /// Congestion experienced: a queue on the path exceeded its threshold.
    Ce = 3,
}

impl Ecn {
    /// The two low bits of the former type-of-service byte.
    #[inline]
    #[must_use]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}
