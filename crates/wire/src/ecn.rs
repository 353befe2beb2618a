//! Explicit congestion notification, as IPv4 carries it (C-1).

/// What a frame's IPv4 header says of congestion (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not take part.
    NotEct = 0,
    /// It does; nothing was full.
    Ect1 = 1,
    /// The same. What all Tally frames leave with.
    #[default]
    Ect0 = 2,
    /// Congestion experienced: a queue on the way was too long.
    Ce = 3,
}

impl Ecn {
    /// The two low bits of the byte that was the type of service.
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
