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
    /// The key that takes its place once the switch has shown that it has it.
    pub(crate) next_key: Option<NextKey>,
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

/// A key that the switch has, or will have.
///
/// A member may be told the new key before or after the switch is, and cannot know. So its JOINs
/// are under both by turns, until an authentic answer under the new one has come: one under the
/// other keeps its place meanwhile, as heartbeats may be lost (J-6).
pub(crate) struct NextKey {
    key: Key,
    /// The next JOIN is under it.
    is_due: bool,
}

impl Control {
    /// Has another key from now on, as soon as the switch has it.
    pub(crate) fn set_key(&mut self, key: Key) {
        self.next_key = (key != self.key).then_some(NextKey { key, is_due: true });
    }

    /// Whether a datagram is under the member's key. An answer under the next one makes it that.
    fn verify(&mut self, datagram: &[u8]) -> bool {
        if self.key.verify(datagram) {
            return true;
        }
        match self.next_key.take_if(|it| it.key.verify(datagram)) {
            Some(next) => {
                self.key = next.key;
                true
            }
            None => false,
        }
    }

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

    pub(crate) fn emit_join(&mut self, join: &Join, out: &mut [u8]) -> usize {
        self.header(Kind::Join).emit(out);
        join.emit(out);
        let mut key = &self.key;
        if let Some(next) = &mut self.next_key {
            if next.is_due {
                key = &next.key;
            }
            next.is_due = !next.is_due;
        }
        key.seal(out);
        DATAGRAM_BYTES
    }

    pub(crate) fn emit_leave(&self, leave: &Leave, out: &mut [u8]) -> usize {
        self.header(Kind::Leave).emit(out);
        leave.emit(out);
        self.key.seal(out);
        DATAGRAM_BYTES
    }

    /// ACCEPT with a good HMAC and our instance (J-8).
    pub(crate) fn accept(&mut self, header: &Header, datagram: &[u8]) -> Option<Accept> {
        if header.rank != self.rank || !self.verify(datagram) {
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
    pub(crate) fn refuse(&mut self, header: &Header, datagram: &[u8]) -> Option<Refuse> {
        if header.rank != self.rank {
            return None;
        }
        let refuse = Refuse::parse(datagram).ok()?;
        let authentic = refuse.reason.is_hint() || self.verify(datagram);
        (authentic && refuse.instance == self.instance).then_some(refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use tally_wire::control::{Role, State};
    use tally_wire::{Mac, Part};

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 16]).unwrap()
    }

    fn control() -> Control {
        Control {
            key: key(1),
            next_key: None,
            job: JobId(7),
            rank: Rank(2),
            instance: 5,
            challenge: 0,
            epoch: Epoch(0),
            salt: 0,
            secret: None,
        }
    }

    /// The key of the next JOIN: the number of its bytes.
    fn join(control: &mut Control) -> u8 {
        let join = Join {
            instance: 5,
            challenge: 0,
            role: Role::Worker,
            workers: 4,
            units: 1,
            running: false,
            window: 8,
            shape: [0; 32],
            sent: None,
            awaiting: 0,
            salt: 0,
            tree: None,
            part: Part::ONLY,
        };
        let mut out = [0; DATAGRAM_BYTES];
        control.emit_join(&join, &mut out);
        (1..9).find(|&byte| key(byte).verify(&out)).unwrap()
    }

    /// Whether an ACCEPT under the key is taken.
    fn accept(control: &mut Control, byte: u8) -> bool {
        let accept = Accept {
            instance: 5,
            challenge: 1,
            state: State::Running,
            workers: 4,
            units: 1,
            shards: 1,
            base_port: 31_249,
            window: 8,
            joined: 0,
            left: 0,
            missing_ps: None,
            group: Ipv4Addr::new(239, 84, 0, 7),
            behind: None,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            salt: 3,
            wrapped: None,
            place: None,
        };
        let mut datagram = [0; DATAGRAM_BYTES];
        control.header(Kind::Accept).emit(&mut datagram);
        accept.emit(&mut datagram);
        key(byte).seal(&mut datagram);
        let header = Header::parse(&datagram).unwrap();
        control.accept(&header, &datagram).is_some()
    }

    #[test]
    fn a_new_key_is_tried_by_turns_until_the_switch_answers_under_it() {
        let mut it = control();
        assert_eq!([join(&mut it), join(&mut it)], [1, 1]);
        it.set_key(key(2));
        assert_eq!(
            [join(&mut it), join(&mut it), join(&mut it)],
            [2, 1, 2],
            "the switch may not have it yet"
        );
        assert!(accept(&mut it, 1) && it.next_key.is_some());
        assert!(!accept(&mut it, 3), "a third key is none");
        assert_eq!([join(&mut it), join(&mut it)], [1, 2]);
        assert!(accept(&mut it, 2) && it.next_key.is_none());
        assert_eq!([join(&mut it), join(&mut it)], [2, 2]);
        assert!(!accept(&mut it, 1), "the one before is none any more");
    }

    #[test]
    fn the_key_that_was_set_last_counts() {
        let mut it = control();
        it.set_key(key(2));
        it.set_key(key(3));
        assert!(!accept(&mut it, 2));
        it.set_key(key(1));
        assert_eq!([join(&mut it), join(&mut it)], [1, 1], "it is what we have");
        it.set_key(key(3));
        assert!(accept(&mut it, 3));
        assert_eq!(join(&mut it), 3);
    }
}
