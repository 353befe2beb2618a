//! The key of a job: HMAC of control datagrams, and the secrets of epochs.
//!
//! The last 16 bytes of a control payload are a truncated HMAC-SHA-256 over all before them.

use crate::UNIT_BYTES;
use crate::auth::{EpochSecret, MASK_LABEL, SECRET_LABEL, derivation};
use crate::header::{CONTROL_UNITS, HEADER_BYTES};
use crate::ids::{Epoch, JobId};
use crate::netreduce::{RING_LABEL, RingId, RingSecret};
use core::fmt;
use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;
use thiserror::Error;

/// Bytes of a control payload.
pub const CONTROL_BYTES: usize = CONTROL_UNITS as usize * UNIT_BYTES;
/// Bytes of a control datagram: header and payload.
pub const DATAGRAM_BYTES: usize = HEADER_BYTES + CONTROL_BYTES;
/// Bytes of the truncated HMAC at the end.
pub const MAC_BYTES: usize = 16;
/// Offset of the HMAC in the payload.
pub(crate) const MAC_AT: usize = CONTROL_BYTES - MAC_BYTES;
/// Minimum and maximum length of a key in bytes.
pub const KEY_BYTES: core::ops::RangeInclusive<usize> = 16..=64;

/// The secret of an epoch under a member's mask (K-3).
pub type WrappedSecret = [u8; 16];

/// A job's key. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; 64],
    len: usize,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.len)
    }
}

/// Error: the text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a key: 16 to 64 bytes written as 32 to 128 hexadecimal digits")]
pub struct KeySyntax;

impl core::str::FromStr for Key {
    type Err = KeySyntax;

    fn from_str(s: &str) -> Result<Self, KeySyntax> {
        let digits = s.as_bytes();
        let len = digits.len() / 2;
        if !digits.len().is_multiple_of(2) || !KEY_BYTES.contains(&len) {
            return Err(KeySyntax);
        }
        let mut bytes = [0; 64];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16).ok_or(KeySyntax);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Self { bytes, len })
    }
}

impl Key {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    /// If `bytes` has fewer than 16 or more than 64.
    pub fn new(key: &[u8]) -> Result<Self, KeySyntax> {
        if !KEY_BYTES.contains(&key.len()) {
            return Err(KeySyntax);
        }
        let mut bytes = [0; 64];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self {
            bytes,
            len: key.len(),
        })
    }

    /// Its bytes, for a configuration that is written. They are a secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn over(&self, datagram: &[u8]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(&datagram[..HEADER_BYTES + MAC_AT]);
        mac
    }

    /// The secret of an epoch of the job with this key.
    #[must_use]
    pub fn epoch_secret(&self, job: JobId, epoch: Epoch, salt: u64) -> EpochSecret {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(SECRET_LABEL);
        mac.update(&derivation(job, epoch, salt));
        let digest = mac.finalize().into_bytes();
        let mut secret = [0; 16];
        secret.copy_from_slice(&digest[..16]);
        EpochSecret::new(secret)
    }

    /// The secret of the ring with this key (N-5).
    #[must_use]
    pub fn ring_secret(&self, ring: RingId) -> RingSecret {
        let digest = self.labelled(RING_LABEL, &ring.0.to_be_bytes());
        let digest = digest.finalize().into_bytes();
        let mut secret = [0; 16];
        secret.copy_from_slice(&digest[..16]);
        RingSecret::new(secret)
    }

    /// The secret of an epoch that another key derives, for a member with this one (K-3).
    ///
    /// `challenge` is that of the ACCEPT that has it: no two ACCEPTs of different secrets have the
    /// same mask.
    #[must_use]
    pub fn wrap(
        &self,
        secret: EpochSecret,
        job: JobId,
        epoch: Epoch,
        salt: u64,
        challenge: u64,
    ) -> WrappedSecret {
        let mut bytes = self.mask(job, epoch, salt, challenge);
        (bytes.iter_mut().zip(secret.bytes())).for_each(|(byte, secret)| *byte ^= secret);
        bytes
    }

    /// The secret that [`wrap`](Self::wrap) was given.
    #[must_use]
    pub fn unwrap(
        &self,
        wrapped: WrappedSecret,
        job: JobId,
        epoch: Epoch,
        salt: u64,
        challenge: u64,
    ) -> EpochSecret {
        let mut bytes = self.mask(job, epoch, salt, challenge);
        (bytes.iter_mut().zip(wrapped)).for_each(|(byte, wrapped)| *byte ^= wrapped);
        EpochSecret::new(bytes)
    }

    fn mask(&self, job: JobId, epoch: Epoch, salt: u64, challenge: u64) -> [u8; 16] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(MASK_LABEL);
        mac.update(&derivation(job, epoch, salt));
        mac.update(&challenge.to_be_bytes());
        let digest = mac.finalize().into_bytes();
        let mut mask = [0; 16];
        mask.copy_from_slice(&digest[..16]);
        mask
    }

    /// The truncated HMAC over a label and bytes that are no control datagram.
    #[must_use]
    pub fn tag(&self, label: &[u8], bytes: &[u8]) -> [u8; MAC_BYTES] {
        let digest = self.labelled(label, bytes).finalize().into_bytes();
        let mut tag = [0; MAC_BYTES];
        tag.copy_from_slice(&digest[..MAC_BYTES]);
        tag
    }

    /// Whether [`tag`](Self::tag) gives this tag. Takes constant time.
    #[must_use]
    pub fn has_tag(&self, label: &[u8], bytes: &[u8], tag: &[u8]) -> bool {
        tag.len() == MAC_BYTES
            && (self.labelled(label, bytes))
                .verify_truncated_left(tag)
                .is_ok()
    }

    fn labelled(&self, label: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(label);
        mac.update(bytes);
        mac
    }

    /// Writes the HMAC to the end of a control datagram (header and payload).
    ///
    /// # Panics
    /// If `datagram` is shorter than [`DATAGRAM_BYTES`].
    pub fn seal(&self, datagram: &mut [u8]) {
        let tag = self.over(datagram).finalize().into_bytes();
        datagram[HEADER_BYTES + MAC_AT..DATAGRAM_BYTES].copy_from_slice(&tag[..MAC_BYTES]);
    }

    /// Whether the HMAC at the end of a control datagram is right.
    ///
    /// Takes constant time.
    #[must_use]
    pub fn verify(&self, datagram: &[u8]) -> bool {
        datagram.len() == DATAGRAM_BYTES
            && self
                .over(datagram)
                .verify_truncated_left(&datagram[HEADER_BYTES + MAC_AT..])
                .is_ok()
    }
}
