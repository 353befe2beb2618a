//! Messages between members of a ring, and the proof of the job's key.
//!
//! A message is a header of 16 bytes and a body. Numbers are big-endian.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | kind |
//! | 1 | 1 | phase of a piece: 0 reduce, 1 gather |
//! | 2 | 2 | 0 |
//! | 4 | 4 | bytes of the body |
//! | 8 | 4 | number of the pass, modulo 2^32 |
//! | 12 | 4 | segment of a piece, round of a token |
//!
//! The listener sends a challenge. The predecessor answers with a hello, and the listener with a
//! welcome, or a refusal in words. Hello, welcome and refusal end with an HMAC by the job's key,
//! over the nonces of both sides.

use sha2::{Digest, Sha256};
use tally_rina::Phase;
use tally_wire::Key;

/// Version of this protocol.
const VERSION: u8 = 1;
pub(super) const HEADER_BYTES: usize = 16;
/// Longest body: a segment.
pub(super) const BODY_MAX: usize = SEGMENT_BYTES;
/// Longest body before the other side has proven the key.
pub(super) const GREETING_MAX: usize = 1024;
/// Bytes of elements in a segment.
pub(super) const SEGMENT_BYTES: usize = 64 << 10;
pub(super) const NONCE_BYTES: usize = 16;
const MAC_BYTES: usize = 16;
const LABEL: &[u8] = b"tally rina";

pub(super) type Nonce = [u8; NONCE_BYTES];
/// SHA-256 of all that members must have alike.
pub(super) type PlanHash = [u8; 32];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A nonce.
    Challenge,
    /// Nonce, job, members, hash of the plan, HMAC.
    Hello,
    /// HMAC.
    Welcome,
    /// Why the listener does not want this predecessor, HMAC.
    Refusal,
    /// Round the ring once all are connected.
    Token,
    /// Begin of a pass: what is summed, in words.
    Open,
    /// Elements of a segment.
    Piece,
    /// Heartbeat: passes begun, of each member, as far as the sender knows.
    Alive,
    /// Why the ring has failed, in words.
    Failed,
    /// The sender has all its results, and leaves.
    Left,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Challenge,
        Self::Hello,
        Self::Welcome,
        Self::Refusal,
        Self::Token,
        Self::Open,
        Self::Piece,
        Self::Alive,
        Self::Failed,
        Self::Left,
    ];

    const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Whether it may come before the key is proven.
    const fn is_greeting(self) -> bool {
        matches!(
            self,
            Self::Challenge | Self::Hello | Self::Welcome | Self::Refusal
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) phase: Phase,
    pub(super) bytes: usize,
    pub(super) pass: u32,
    pub(super) segment: u32,
}

impl Header {
    pub(super) const fn new(kind: Kind, bytes: usize) -> Self {
        Self {
            kind,
            phase: Phase::Reduce,
            bytes,
            pass: 0,
            segment: 0,
        }
    }

    pub(super) fn emit(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = self.kind.code();
        out[1] = (self.phase == Phase::Gather).into();
        out[4..8].copy_from_slice(&(self.bytes as u32).to_be_bytes());
        out[8..12].copy_from_slice(&self.pass.to_be_bytes());
        out[12..].copy_from_slice(&self.segment.to_be_bytes());
        out
    }

    /// The header, if it is one that may come `greeting` or after that.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES], greeting: bool) -> Option<Self> {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_be_bytes(word)
        };
        let kind = *Kind::ALL.get(usize::from(bytes[0]).checked_sub(1)?)?;
        let phase = match bytes[1] {
            0 => Phase::Reduce,
            1 if kind == Kind::Piece => Phase::Gather,
            _ => return None,
        };
        let most = if greeting { GREETING_MAX } else { BODY_MAX };
        let header = Self {
            kind,
            phase,
            bytes: word(4) as usize,
            pass: word(8),
            segment: word(12),
        };
        let fits = header.bytes <= most && kind.is_greeting() == greeting && bytes[2..4] == [0, 0];
        fits.then_some(header)
    }
}

/// What a predecessor says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) job: u16,
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) plan: PlanHash,
}

/// The bytes that an HMAC covers.
fn covered(kind: Kind, nonces: [&Nonce; 2], body: &[u8]) -> Vec<u8> {
    let mut all = vec![VERSION, kind.code()];
    nonces.into_iter().for_each(|it| all.extend_from_slice(it));
    all.extend_from_slice(body);
    all
}

/// Appends the HMAC.
pub(super) fn seal(key: &Key, kind: Kind, nonces: [&Nonce; 2], mut body: Vec<u8>) -> Vec<u8> {
    let tag = key.tag(LABEL, &covered(kind, nonces, &body));
    body.extend_from_slice(&tag);
    body
}

/// What is in front of the HMAC, if that is right.
pub(super) fn open<'a>(
    key: &Key,
    kind: Kind,
    nonces: [&Nonce; 2],
    sealed: &'a [u8],
) -> Option<&'a [u8]> {
    let (body, tag) = sealed.split_last_chunk::<MAC_BYTES>()?;
    key.has_tag(LABEL, &covered(kind, nonces, body), tag)
        .then_some(body)
}

pub(super) fn seal_hello(key: &Key, challenge: &Nonce, nonce: &Nonce, hello: &Hello) -> Vec<u8> {
    let mut body = nonce.to_vec();
    for number in [hello.job, hello.from, hello.to] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    body.extend_from_slice(&hello.plan);
    seal(key, Kind::Hello, [challenge, nonce], body)
}

/// The nonce and the hello, if the HMAC is right.
pub(super) fn open_hello(key: &Key, challenge: &Nonce, sealed: &[u8]) -> Option<(Nonce, Hello)> {
    let nonce = *sealed.first_chunk::<NONCE_BYTES>()?;
    let body = open(key, Kind::Hello, [challenge, &nonce], sealed)?;
    let fields: &[u8; 38] = body[NONCE_BYTES..].try_into().ok()?;
    let number = |at: usize| u16::from_be_bytes([fields[at], fields[at + 1]]);
    let mut plan = [0; 32];
    plan.copy_from_slice(&fields[6..]);
    let hello = Hello {
        job: number(0),
        from: number(2),
        to: number(4),
        plan,
    };
    Some((nonce, hello))
}

/// The hash of what all members must have alike, in words that differ where it does.
pub(super) fn hash_of(words: &str) -> PlanHash {
    Sha256::digest(words).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(last: u8) -> Key {
        let mut bytes = [7; 16];
        bytes[15] = last;
        Key::new(&bytes).unwrap()
    }

    const HELLO: Hello = Hello {
        job: 7,
        from: 2,
        to: 0,
        plan: [9; 32],
    };

    #[test]
    fn a_hello_is_bound_to_key_and_challenge() {
        let (challenge, nonce) = ([1; 16], [2; 16]);
        let sealed = seal_hello(&key(1), &challenge, &nonce, &HELLO);
        let opened = open_hello(&key(1), &challenge, &sealed);
        assert_eq!(opened, Some((nonce, HELLO)));
        assert_eq!(open_hello(&key(2), &challenge, &sealed), None);
        assert_eq!(open_hello(&key(1), &[3; 16], &sealed), None, "a replay");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open_hello(&key(1), &challenge, &changed), None);
            assert_eq!(open_hello(&key(1), &challenge, &sealed[..at]), None);
        }
        // A hello is no welcome.
        let nonces = [&challenge, &nonce];
        assert_eq!(open(&key(1), Kind::Welcome, nonces, &sealed), None);
    }

    #[test]
    fn headers_are_parsed_as_they_were_made() {
        for kind in Kind::ALL {
            let header = Header {
                pass: 0x0102_0304,
                segment: 5,
                ..Header::new(kind, 40)
            };
            let parsed = |greeting| Header::parse(&header.emit(), greeting);
            assert_eq!(parsed(kind.is_greeting()), Some(header));
            assert_eq!(parsed(!kind.is_greeting()), None);
        }
        let long = Header::new(Kind::Hello, GREETING_MAX + 1).emit();
        assert_eq!(Header::parse(&long, true), None);
        let long = Header::new(Kind::Piece, BODY_MAX + 1).emit();
        assert_eq!(Header::parse(&long, false), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_none(bytes: [u8; HEADER_BYTES], greeting: bool) {
            if let Some(header) = Header::parse(&bytes, greeting) {
                prop_assert_eq!(header.emit(), bytes);
            }
        }

        #[test]
        fn any_bytes_are_no_hello(bytes: Vec<u8>) {
            prop_assert_eq!(open_hello(&key(1), &[0; 16], &bytes), None);
        }
    }
}
