//! Frames of the rendezvous: length (u16), type (u8), body; all big-endian.

use super::{Call, Hello, NAME_BYTES_MAX, Neighbour, RingConfig, Welcome};
use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::Ipv4Addr;
use tally_wire::netreduce::{Element, RingEpoch};
use tally_wire::roce::{Psn, QueuePair};

/// Longest body.
const BODY_MAX: usize = 1024;
pub(super) const NONCE_BYTES: usize = 16;
const MAC_BYTES: usize = 16;

pub(super) type Nonce = [u8; NONCE_BYTES];

/// Type of a frame.
pub(super) mod kind {
    /// Coordinator: a nonce.
    pub(in super::super) const CHALLENGE: u8 = 1;
    /// Member: hello, nonce, HMAC.
    pub(in super::super) const HELLO: u8 = 2;
    /// Coordinator: welcome, HMAC.
    pub(in super::super) const WELCOME: u8 = 3;
    /// Member: a call.
    pub(in super::super) const ENTER: u8 = 4;
    /// Coordinator: all members have entered.
    pub(in super::super) const GO: u8 = 5;
    /// Both: why the ring has failed, as text.
    pub(in super::super) const FAILED: u8 = 6;
}

pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
}

pub(super) fn write(mut stream: impl Write, kind: u8, body: &[u8]) -> Result<()> {
    let body = &body[..body.len().min(BODY_MAX)];
    let mut frame = (body.len() as u16).to_be_bytes().to_vec();
    frame.push(kind);
    frame.extend_from_slice(body);
    stream.write_all(&frame)
}

pub(super) fn read(mut stream: impl Read) -> Result<Frame> {
    let mut head = [0; 3];
    stream.read_exact(&mut head)?;
    let bytes = usize::from(u16::from_be_bytes([head[0], head[1]]));
    if bytes > BODY_MAX {
        return Err(invalid("frame is too long"));
    }
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body)?;
    Ok(Frame {
        kind: head[2],
        body,
    })
}

pub(super) fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

pub(super) fn nonce() -> Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| Error::other(error.to_string()))?;
    Ok(nonce)
}

/// The HMAC of a hello or a welcome, over the nonces of both sides.
fn mac(ring: &RingConfig, kind: u8, nonces: [&Nonce; 2], body: &[u8]) -> Hmac<Sha256> {
    let key = ring.key.as_bytes();
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(b"tally ring rendezvous");
    mac.update(&[kind, ring.members]);
    mac.update(&ring.ring.0.to_be_bytes());
    nonces.into_iter().for_each(|nonce| mac.update(nonce));
    mac.update(body);
    mac
}

fn sealed(ring: &RingConfig, kind: u8, nonces: [&Nonce; 2], mut body: Vec<u8>) -> Vec<u8> {
    let mac = mac(ring, kind, nonces, &body).finalize().into_bytes();
    body.extend_from_slice(&mac[..MAC_BYTES]);
    body
}

/// What is in front of the HMAC, if that is right.
fn opened<'a>(
    ring: &RingConfig,
    kind: u8,
    nonces: [&Nonce; 2],
    sealed: &'a [u8],
) -> Option<&'a [u8]> {
    let (body, found) = sealed.split_last_chunk::<MAC_BYTES>()?;
    let mac = mac(ring, kind, nonces, body);
    mac.verify_truncated_left(found).ok()?;
    Some(body)
}

/// A member's hello with its nonce, as the answer to a challenge.
pub(super) fn seal_hello(
    ring: &RingConfig,
    challenge: &Nonce,
    nonce: &Nonce,
    hello: &Hello,
) -> Vec<u8> {
    let mut body = nonce.to_vec();
    body.push(hello.rank);
    body.extend_from_slice(&hello.address.octets());
    for word in [hello.to.0, hello.from.0, hello.psn.get()] {
        body.extend_from_slice(&word.to_be_bytes());
    }
    for half in [hello.mtu, hello.packets, hello.window] {
        body.extend_from_slice(&half.to_be_bytes());
    }
    body.push(hello.last_epoch.is_some().into());
    body.extend_from_slice(&hello.last_epoch.unwrap_or_default().0.to_be_bytes());
    sealed(ring, kind::HELLO, [challenge, nonce], body)
}

/// The nonce and the hello, if the HMAC is right.
pub(super) fn open_hello(
    ring: &RingConfig,
    challenge: &Nonce,
    body: &[u8],
) -> Option<(Nonce, Hello)> {
    let nonce = *body.first_chunk::<NONCE_BYTES>()?;
    let mut rest = Fields(opened(ring, kind::HELLO, [challenge, &nonce], body)?);
    rest.take::<NONCE_BYTES>()?;
    let hello = Hello {
        rank: rest.take::<1>()?[0],
        address: Ipv4Addr::from(rest.take::<4>()?),
        to: QueuePair(rest.word()?),
        from: QueuePair(rest.word()?),
        psn: Psn::new(rest.word()?),
        mtu: rest.half()?,
        packets: rest.half()?,
        window: rest.half()?,
        last_epoch: {
            let is_there = rest.take::<1>()? == [1];
            let epoch = RingEpoch(rest.word()?);
            is_there.then_some(epoch)
        },
    };
    Some((nonce, hello))
}

pub(super) fn seal_welcome(ring: &RingConfig, nonces: [&Nonce; 2], welcome: &Welcome) -> Vec<u8> {
    let mut body = welcome.epoch.0.to_be_bytes().to_vec();
    body.extend_from_slice(&welcome.mtu.to_be_bytes());
    for neighbour in [&welcome.successor, &welcome.predecessor] {
        body.extend_from_slice(&neighbour.address.octets());
        body.extend_from_slice(&neighbour.qp.0.to_be_bytes());
        body.extend_from_slice(&neighbour.psn.get().to_be_bytes());
    }
    sealed(ring, kind::WELCOME, nonces, body)
}

pub(super) fn open_welcome(ring: &RingConfig, nonces: [&Nonce; 2], body: &[u8]) -> Option<Welcome> {
    let mut rest = Fields(opened(ring, kind::WELCOME, nonces, body)?);
    let epoch = RingEpoch(rest.word()?);
    let mtu = rest.half()?;
    let mut neighbour = || {
        Some(Neighbour {
            address: Ipv4Addr::from(rest.take::<4>()?),
            qp: QueuePair(rest.word()?),
            psn: Psn::new(rest.word()?),
        })
    };
    Some(Welcome {
        epoch,
        mtu,
        successor: neighbour()?,
        predecessor: neighbour()?,
    })
}

/// In the place of an element's number: the end of the epoch.
const LEAVE: u8 = 0xff;

pub(super) fn emit_call(call: Call, name: &str) -> Vec<u8> {
    let (element, bytes) = match call {
        Call::AllReduce { element, bytes } => (element as u8, bytes),
        Call::Leave => (LEAVE, 0),
    };
    let mut body = vec![element];
    body.extend_from_slice(&bytes.to_be_bytes());
    body.extend_from_slice(&name.as_bytes()[..name.len().min(NAME_BYTES_MAX)]);
    body
}

/// A call and its name.
pub(super) fn parse_call(body: &[u8]) -> Option<(Call, String)> {
    let mut rest = Fields(body);
    let element = rest.take::<1>()?[0];
    let bytes = u64::from_be_bytes(rest.take()?);
    let name = String::from_utf8_lossy(rest.0).into_owned();
    if element == LEAVE {
        return Some((Call::Leave, name));
    }
    let element = *Element::ALL.get(usize::from(element))?;
    Some((Call::AllReduce { element, bytes }, name))
}

/// Fields one behind the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn half(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }
}
