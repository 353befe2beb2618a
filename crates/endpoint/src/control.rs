//! What worker and parameter server share of joining and leaving: identity, challenge and epoch.

use core::time::Duration;
use tally_wire::control::DATAGRAM_BYTES;
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    Accept, AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, Header, JobId, Join, Key,
    Kind, Leave, Rank, Refuse, Time,
};

/// A member as the switch knows it.
pub(crate) struct Control {
    pub(crate) key: Key,
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    pub(crate) instance: u64,
    /// The last one given by the switch; 0 at first.
    pub(crate) challenge: u64,
    /// The one that ACCEPT gave; 0 at first.
    pub(crate) epoch: Epoch,
    /// Its salt; 0 at first.
    pub(crate) salt: u64,
    /// The epoch's secret; none before the first ACCEPT.
    pub(crate) secret: Option<EpochSecret>,
}

impl Control {
    /// What to wait between two JOINs, from `period` to half as long again: hosts that start
    /// together would otherwise ask at the same moments each time, and those whose frames come last
    /// would find the switch's queue full each time (J-1).
    pub(crate) fn apart(&self, period: Duration, now: Time) -> Duration {
        // Multiplicative hashing (Knuth, 6.4): the upper bits depend on all.
        let hash = (self.instance ^ now.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        period + period * (hash as u32) / (2 << 16)
    }

    fn header(&self, kind: Kind) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            priority: 0,
            element: Element::None,
            job: self.job,
            epoch: self.epoch,
            fragment: FragmentId(0),
            rank: self.rank,
            units: CONTROL_UNITS,
            bitmap: 0,
            tag: AuthTag::NONE,
        }
    }

    pub(crate) fn emit_join(&self, join: &Join, out: &mut [u8]) -> usize {
        self.header(Kind::Join).emit(out);
        join.emit(out);
        self.key.seal(out);
        DATAGRAM_BYTES
    }

    pub(crate) fn emit_leave(&self, leave: &Leave, out: &mut [u8]) -> usize {
        self.header(Kind::Leave).emit(out);
        leave.emit(out);
        self.key.seal(out);
        DATAGRAM_BYTES
    }

    /// ACCEPT with a good HMAC and our instance (J-8).
    pub(crate) fn accept(&self, header: &Header, datagram: &[u8]) -> Option<Accept> {
        if header.rank != self.rank || !self.key.verify(datagram) {
            return None;
        }
        let accept = Accept::parse(datagram).ok()?;
        (accept.instance == self.instance).then_some(accept)
    }

    /// Takes over the epoch that a good ACCEPT gave.
    pub(crate) fn enter(&mut self, epoch: Epoch, accept: &Accept) {
        self.challenge = accept.challenge;
        self.epoch = epoch;
        self.salt = accept.salt;
        // The same epoch may have another secret: the switch that adopted it had other keys.
        self.secret = Some(match accept.wrapped {
            None => self.key.epoch_secret(self.job, epoch, accept.salt),
            Some(wrapped) => {
                let Accept {
                    salt, challenge, ..
                } = *accept;
                (self.key).unwrap(wrapped, self.job, epoch, salt, challenge)
            }
        });
    }

    /// Forgets the epoch.
    pub(crate) fn exit(&mut self) {
        self.epoch = Epoch(0);
        self.salt = 0;
        self.secret = None;
    }

    /// The header with its tag.
    pub(crate) fn seal(&self, header: Header) -> Header {
        self.secret.map_or(header, |secret| secret.seal(header))
    }

    /// Whether the frame's tag is that of the epoch.
    pub(crate) fn verifies(&self, header: &Header) -> bool {
        self.secret.is_some_and(|secret| secret.verifies(header))
    }

    /// REFUSE with our instance, and with a good HMAC unless it is a hint (J-8).
    pub(crate) fn refuse(&self, header: &Header, datagram: &[u8]) -> Option<Refuse> {
        if header.rank != self.rank {
            return None;
        }
        let refuse = Refuse::parse(datagram).ok()?;
        let authentic = refuse.reason.is_hint() || self.key.verify(datagram);
        (authentic && refuse.instance == self.instance).then_some(refuse)
    }
}
