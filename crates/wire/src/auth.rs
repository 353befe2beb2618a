//! The tag of a frame and the secret of an epoch (PROTOCOL.md, A-6 to A-8).
//!
//! A tag authenticates a frame: 64 bits of SipHash-2-4 over the header's fields, under a secret
//! that only the job's members and the switch can derive. [`EpochSecret::seal`] is the last step of
//! building a [`Header`], [`EpochSecret::verifies`] the first of accepting one.
//!
//! Catches: the tag does not cover the payload, so a host on the path can change it. Nor does it
//! cover MARKED. A host on the path can set MARKED, as it can set a frame's ECN field.

use crate::header::{Flags, Header, Kind};
pub use crate::ids::{AuthTag, TAG_BYTES};
use crate::ids::{Epoch, JobId};
use core::fmt;
use siphasher::sip::SipHasher24;

/// Label at the start of the input from which an epoch's secret is derived.
pub(crate) const SECRET_LABEL: &[u8; 18] = b"tally epoch secret";

/// Label at the start of the input from which a mask is derived.
pub(crate) const MASK_LABEL: &[u8; 16] = b"tally epoch mask";

/// The secret of an epoch, known only to its members and the switch.
///
/// Never printed, never sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EpochSecret {
    k0: u64,
    k1: u64,
}

impl fmt::Debug for EpochSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochSecret")
    }
}

impl EpochSecret {
    /// Creates a secret of 16 bytes, derived by
    /// [`Key::epoch_secret`](crate::Key::epoch_secret).
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            k0: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            k1: u64::from_le_bytes([i, j, k, l, m, n, o, p]),
        }
    }

    /// Its bytes, to be wrapped.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.k0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.k1.to_le_bytes());
        bytes
    }

    /// The tag of a frame with this header.
    ///
    /// [`AuthTag::NONE`] for types without one.
    #[inline]
    #[must_use]
    pub fn tag(&self, header: &Header) -> AuthTag {
        if !header.kind.has_tag() {
            return AuthTag::NONE;
        }
        let mut message = [0; tagged::BITMAP.end];
        message[tagged::VERSION_KIND] = header.first_byte();
        message[tagged::FLAGS] = header.flags.0 & !Flags::MARKED.0;
        message[tagged::ELEMENT] = header.element as u8;
        message[tagged::RANK] = header.rank.0;
        message[tagged::FRAGMENT].copy_from_slice(&header.fragment.0.to_be_bytes());
        message[tagged::BITMAP].copy_from_slice(&header.bitmap.to_be_bytes());
        let used = if header.kind == Kind::Partial {
            tagged::BITMAP.end
        } else {
            tagged::FRAGMENT.end
        };
        let hasher = SipHasher24::new_with_keys(self.k0, self.k1);
        AuthTag(hasher.hash(&message[..used]))
    }

    /// The header with its tag.
    #[inline]
    #[must_use]
    pub fn seal(&self, header: Header) -> Header {
        Header {
            tag: self.tag(&header),
            ..header
        }
    }

    /// Whether the header's tag is right; true for types without one.
    #[inline]
    #[must_use]
    pub fn verifies(&self, header: &Header) -> bool {
        self.tag(header) == header.tag
    }
}

/// Bytes of the message under a tag; without the bitmap unless it is a PARTIAL's.
mod tagged {
    use crate::field::Field;

    pub(super) const VERSION_KIND: usize = 0;
    pub(super) const FLAGS: usize = 1;
    pub(super) const ELEMENT: usize = 2;
    pub(super) const RANK: usize = 3;
    pub(super) const FRAGMENT: Field = 4..8;
    pub(super) const BITMAP: Field = 8..16;
}

/// Bytes of the message from which an epoch's secret is derived.
mod derived {
    use crate::field::Field;

    pub(super) const JOB: Field = 0..2;
    pub(super) const EPOCH: Field = 2..4;
    pub(super) const SALT: Field = 4..12;
}

/// The input of [`Key::epoch_secret`](crate::Key::epoch_secret), after
/// the label.
pub(crate) fn derivation(job: JobId, epoch: Epoch, salt: u64) -> [u8; derived::SALT.end] {
    let mut bytes = [0; derived::SALT.end];
    bytes[derived::JOB].copy_from_slice(&job.0.to_be_bytes());
    bytes[derived::EPOCH].copy_from_slice(&epoch.0.to_be_bytes());
    bytes[derived::SALT].copy_from_slice(&salt.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Element, FragmentId, Key, Rank};
    use core::hash::Hasher as _;
    use std::vec::Vec;

    fn key() -> Key {
        "000102030405060708090a0b0c0d0e0f".parse().unwrap()
    }

    fn secret() -> EpochSecret {
        key().epoch_secret(JobId(7), Epoch(0x2a01), 0x5a17)
    }

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            priority: 9,
            element: Element::I32,
            job: JobId(7),
            epoch: Epoch(0x2a01),
            fragment: FragmentId(0x0102_0304),
            rank: Rank(2),
            units: 1,
            bitmap: 0b100,
            tag: AuthTag::NONE,
        }
    }

    /// The test vectors of the paper of SipHash (Aumasson and Bernstein, 2012, appendix A): bytes
    /// 0, 1, … under the key 0, 1, …, of 8 and 15 bytes.
    #[test]
    fn the_function_is_siphash_2_4() {
        let bytes: Vec<u8> = (0..16).collect();
        let key = EpochSecret::new(bytes.clone().try_into().unwrap());
        let hash = |len: usize| {
            let mut hasher = SipHasher24::new_with_keys(key.k0, key.k1);
            hasher.write(&bytes[..len]);
            hasher.finish()
        };
        assert_eq!(hash(15), 0xa129_ca61_49be_45e5);
        assert_eq!(hash(8), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn each_field_under_the_tag_changes_it() {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.has_tag()) {
            let sealed = secret().seal(header(kind));
            assert!(secret().verifies(&sealed), "{kind:?}");
            assert_ne!(sealed.tag, AuthTag::NONE);
            let kinds = Kind::ALL.into_iter().filter(|k| *k != kind && k.has_tag());
            let mut others: Vec<_> = kinds.map(|kind| Header { kind, ..sealed }).collect();
            others.extend([
                Header {
                    flags: Flags::OVERFLOW,
                    ..sealed
                },
                Header {
                    element: Element::F32,
                    ..sealed
                },
                Header {
                    rank: Rank(3),
                    ..sealed
                },
                Header {
                    fragment: FragmentId(0x0102_0305),
                    ..sealed
                },
                Header {
                    tag: AuthTag(sealed.tag.0 ^ 1),
                    ..sealed
                },
            ]);
            if kind == Kind::Partial {
                others.push(Header {
                    bitmap: 0b101,
                    ..sealed
                });
            }
            let marked = sealed.flags.with(Flags::MARKED);
            assert!(secret().verifies(&Header {
                flags: marked,
                ..sealed
            }));
            for other in others {
                assert!(!secret().verifies(&other), "{kind:?}: {other:?}");
            }
        }
    }

    #[test]
    fn the_secret_is_of_one_key_job_epoch_and_salt() {
        let other_key: Key = "100102030405060708090a0b0c0d0e0f".parse().unwrap();
        let others = [
            other_key.epoch_secret(JobId(7), Epoch(0x2a01), 0x5a17),
            key().epoch_secret(JobId(8), Epoch(0x2a01), 0x5a17),
            key().epoch_secret(JobId(7), Epoch(0x2a02), 0x5a17),
            key().epoch_secret(JobId(7), Epoch(0x2a01), 0x5a18),
        ];
        assert_eq!(
            secret(),
            key().epoch_secret(JobId(7), Epoch(0x2a01), 0x5a17)
        );
        let sealed = secret().seal(header(Kind::Result));
        for other in others {
            assert_ne!(other, secret());
            assert!(!other.verifies(&sealed));
        }
    }

    #[test]
    fn a_wrapped_secret_is_for_one_key_and_one_accept() {
        let member: Key = "100102030405060708090a0b0c0d0e0f".parse().unwrap();
        let (job, epoch) = (JobId(7), Epoch(0x2a01));
        let wrapped = member.wrap(secret(), job, epoch, 0x5a17, 3);
        assert_eq!(member.unwrap(wrapped, job, epoch, 0x5a17, 3), secret());
        assert_ne!(wrapped, secret().bytes());
        for other in [
            key().unwrap(wrapped, job, epoch, 0x5a17, 3),
            member.unwrap(wrapped, job, epoch, 0x5a17, 4),
            member.unwrap(wrapped, job, epoch, 0x5a18, 3),
            member.unwrap(wrapped, job, Epoch(0x2a02), 0x5a17, 3),
            member.unwrap(wrapped, JobId(8), epoch, 0x5a17, 3),
        ] {
            assert_ne!(other, secret());
        }
    }

    #[test]
    fn data_and_control_frames_have_none() {
        for kind in [
            Kind::Data,
            Kind::Join,
            Kind::Accept,
            Kind::Refuse,
            Kind::Leave,
        ] {
            assert_eq!(secret().tag(&header(kind)), AuthTag::NONE);
            assert!(secret().verifies(&header(kind)));
        }
    }

    #[test]
    fn nothing_of_a_secret_is_printed() {
        assert_eq!(std::format!("{:?}", secret()), "EpochSecret");
    }
}
