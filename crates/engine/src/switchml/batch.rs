//! Contributions of one poll iteration, by set.
//!
//! The workers of a session send for the same slots at about the same time, each on its own port.
//! Put side by side, the contributions of a set cost one look at its session and its slot, and one
//! pass over the elements.
//!
//! A row has up to eight contributions of one set, in the order in which they came. A set finds its
//! row in its own cache line. Rows are handled in the order in which they began, and a slot has one
//! row at a time that takes contributions. So a batch changes the order of arrivals only between
//! slots.

use super::Arrival;
use crate::PortId;
use tally_wire::switchml::{Header, Size};

/// Rows of a batch: it has room for as many contributions in any case.
pub(super) const ROWS: usize = 512;

/// Contributions in a row: those that the kernels add to a sum in one pass.
pub(super) const ROW: usize = tally_kernels::MAX_FUSED;

/// What a contribution's headers say beside its set.
///
/// Two words, because fields written one by one and read together make the processor wait until
/// they have left its store buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Contribution {
    /// From the lowest bit: both UDP ports, port of the switch, rank, type of service.
    who: u64,
    /// From the lowest bit: packet number, job, exponents.
    what: u64,
}

impl Contribution {
    /// A rank's, which arrived so; the header is all zeros.
    #[inline]
    pub(super) const fn new(rank: u8, arrival: &Arrival) -> Self {
        Self {
            who: arrival.udp_port as u64
                | (arrival.own_port as u64) << 16
                | (arrival.port.0 as u64) << 32
                | (rank as u64) << 48
                | (arrival.tos as u64) << 56,
            what: 0,
        }
    }

    /// The same worker's, with this header.
    #[inline(always)]
    pub(super) fn with(self, header: &Header) -> Self {
        let [first, second] = header.exponents.map(i8::cast_unsigned);
        Self {
            who: self.who,
            what: u64::from(u32::from_ne_bytes(header.packet))
                | u64::from(header.job) << 32
                | u64::from(first) << 40
                | u64::from(second) << 48,
        }
    }

    #[inline]
    pub(super) const fn rank(self) -> u8 {
        (self.who >> 48) as u8
    }

    #[inline]
    pub(super) const fn arrival(self) -> Arrival {
        Arrival {
            port: self.port(),
            udp_port: self.who as u16,
            own_port: (self.who >> 16) as u16,
            tos: (self.who >> 56) as u8,
        }
    }

    /// The port of the switch.
    #[inline]
    pub(super) const fn port(self) -> PortId {
        PortId((self.who >> 32) as u16)
    }

    #[inline]
    pub(super) const fn exponents(self) -> [i8; 2] {
        [(self.what >> 40) as u8 as i8, (self.what >> 48) as u8 as i8]
    }

    /// The header of a packet of this size for this slot and set.
    #[inline]
    pub(super) const fn header(self, size: Size, slot: u16, set: bool) -> Header {
        Header {
            size,
            job: (self.what >> 32) as u8,
            packet: (self.what as u32).to_ne_bytes(),
            slot,
            set,
            exponents: self.exponents(),
        }
    }
}

/// The set that a row is for: index of its session, index of its slot in the shard, and which one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) place: u16,
    pub(super) at: u16,
    pub(super) set: bool,
}

/// Contributions of one set.
#[repr(align(64))]
pub(super) struct Row<B> {
    pub(super) key: Key,
    len: u8,
    contributions: [Contribution; ROW],
    /// `None` once it has been taken out.
    buffers: [Option<B>; ROW],
}

impl<B> Row<B> {
    fn empty() -> Self {
        Self {
            key: Key::default(),
            len: 0,
            contributions: [Contribution::default(); ROW],
            buffers: [const { None }; ROW],
        }
    }

    #[inline]
    fn push(&mut self, contribution: Contribution, buffer: B) {
        let at = usize::from(self.len);
        self.contributions[at] = contribution;
        let old = self.buffers[at].replace(buffer);
        debug_assert!(old.is_none(), "a buffer that was not taken out");
        // There is nothing to drop, which the compiler does not know.
        std::mem::forget(old);
        self.len += 1;
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len).min(ROW)
    }

    /// Contributions and buffers of a part of the row.
    #[inline]
    pub(super) fn part_mut(
        &mut self,
        part: std::ops::Range<usize>,
    ) -> (&[Contribution], &mut [Option<B>]) {
        (&self.contributions[part.clone()], &mut self.buffers[part])
    }
}

/// Admitted contributions that wait for the end of a poll iteration.
pub(super) struct Batch<B> {
    rows: Box<[Row<B>]>,
    /// Rows in use; the others are left as they are.
    used: usize,
}

impl<B> Batch<B> {
    /// An empty batch; it never allocates again.
    pub(super) fn new() -> Self {
        Self {
            rows: (0..ROWS).map(|_| Row::empty()).collect(),
            used: 0,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether the rows must be handled before a row can begin.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used == self.rows.len()
    }

    /// Adds a contribution to a row; `Err` if there is no such row, or it is full.
    #[inline]
    pub(super) fn push(
        &mut self,
        row: u16,
        contribution: Contribution,
        buffer: B,
    ) -> Result<(), B> {
        match self.rows.get_mut(usize::from(row)) {
            Some(row) if usize::from(row.len) < ROW => {
                row.push(contribution, buffer);
                Ok(())
            }
            _ => Err(buffer),
        }
    }

    /// Begins a row with this contribution; says which.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub(super) fn begin(&mut self, key: Key, contribution: Contribution, buffer: B) -> u16 {
        let at = self.used;
        let row = self.rows.get_mut(at).expect("handled before it is full");
        row.key = key;
        row.len = 0;
        row.push(contribution, buffer);
        self.used += 1;
        at as u16
    }

    /// The rows in use, to be handled. Their buffers must be taken out.
    #[inline]
    pub(super) fn rows_mut(&mut self) -> &mut [Row<B>] {
        let used = self.used;
        self.rows.get_mut(..used).unwrap_or(&mut [])
    }

    /// Empties it.
    #[inline]
    pub(super) fn clear(&mut self) {
        debug_assert!(
            self.rows_mut()
                .iter()
                .all(|row| row.buffers.iter().all(Option::is_none))
        );
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contribution_gives_back_what_it_was_made_of() {
        for (rank, byte) in [(0, 0x80), (63, 0x7f), (17, 0xff), (42, 0)] {
            let arrival = Arrival {
                port: PortId(0x0102 ^ u16::from(byte)),
                udp_port: 0x1234 ^ u16::from(byte),
                own_port: 0xbee0 | u16::from(byte & 15),
                tos: byte,
            };
            let header = Header {
                size: Size::B512,
                job: byte ^ 0x55,
                packet: [byte, 1, 2, !byte],
                slot: 77,
                set: byte == 0,
                exponents: [byte.cast_signed(), (byte ^ 0xaa).cast_signed()],
            };
            let made = Contribution::new(rank, &arrival).with(&header);
            assert_eq!((made.rank(), made.arrival()), (rank, arrival));
            assert_eq!(made.port(), arrival.port);
            assert_eq!(made.exponents(), header.exponents);
            assert_eq!(made.header(Size::B512, 77, byte == 0), header);
        }
    }
}
