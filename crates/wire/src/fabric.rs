//! Frames between neighbouring switches of a fabric: hellos, and addresses of hosts.
//!
//! Both are sent to the group of the nearest bridge, which no bridge forwards, and end with two
//! tags: truncated HMACs over all before them, under the fabric's key and under the key before it.
//! A receiver takes a frame if one of its keys made one of the two, so that keys are changed one
//! switch at a time.
//!
//! A *hello* says who sends, which switches it reaches, and the last hello that it heard: a
//! neighbour that hears its own session and a recent count knows that both directions work and that
//! the hello is no recording. *Addresses* name hosts at or below the sender, with the seconds since
//! each was heard.

use crate::field::{be16, be32, be64, ethernet, ip, mac};
use crate::frame::{ETHERNET_BYTES, Mac};
use crate::key::{Key, MAC_BYTES};
use core::net::Ipv4Addr;
use sha2::{Digest, Sha256};

/// The first ethertype for local experiments (IEEE 802).
pub const ETHERTYPE_FABRIC: u16 = 0x88b5;
/// The group of the nearest bridge, which no bridge forwards.
pub const FABRIC_MAC: Mac = Mac([1, 0x80, 0xc2, 0, 0, 0x0e]);
/// Bytes of a switch's name at most.
pub const NAME_MAX: usize = 64;
/// Switches that one hello names at most.
pub const REACH_MAX: usize = 256;
/// Addresses that one frame names at most.
pub const ADDRESSES_MAX: usize = 128;
/// Bytes of the longest frame.
pub const FRAME_BYTES_MAX: usize = layout::NAME + NAME_MAX + REACH_MAX * ID_BYTES + TAGS_BYTES;

const MAGIC: [u8; 4] = *b"TFB1";
const LABEL: &[u8] = b"tally fabric frame";
const ID_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const TAGS_BYTES: usize = 2 * MAC_BYTES;
const HELLO: u8 = 1;
const ADDRESSES: u8 = 2;
const UP: u8 = 1;

/// Where fields are, from the start of a frame.
mod layout {
    use super::ETHERNET_BYTES;
    use crate::field::Field;

    pub(super) const MAGIC: Field = ETHERNET_BYTES..18;
    pub(super) const KIND: usize = 18;
    pub(super) const FLAGS: usize = 19;
    pub(super) const SESSION: Field = 20..28;
    pub(super) const COUNT: Field = 28..36;
    /// Number of switches or addresses.
    pub(super) const ITEMS: Field = 36..38;
    /// First address.
    pub(super) const ENTRIES: usize = 38;
    pub(super) const HEARD_SESSION: Field = 38..46;
    pub(super) const HEARD_COUNT: Field = 46..54;
    pub(super) const IP: Field = 54..58;
    pub(super) const UDP_PORT: Field = 58..60;
    pub(super) const PORT: Field = 60..62;
    pub(super) const TIER: usize = 62;
    pub(super) const NAME_BYTES: usize = 63;
    pub(super) const NAME: usize = 64;
}

const _: () = assert!(
    layout::ENTRIES + ADDRESSES_MAX * ENTRY_BYTES + TAGS_BYTES <= FRAME_BYTES_MAX,
    "hellos are the longest frames"
);

/// A switch in hellos: the first four bytes of the SHA-256 of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub u32);

impl SwitchId {
    /// The switch of that name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        Self(u32::from_be_bytes([
            digest[0], digest[1], digest[2], digest[3],
        ]))
    }
}

/// One of a switch's hellos or frames of addresses: no two have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Random number of the switch's run; 0: none.
    pub session: u64,
    /// Counts the frames of that run at one link, from 1.
    pub count: u64,
}

/// The keys of a fabric. Never printed.
#[derive(Clone, Debug)]
pub struct FabricKeys {
    /// The key.
    pub key: Key,
    /// The key before it.
    pub previous: Option<Key>,
}

impl FabricKeys {
    fn seal(&self, frame: &mut [u8]) {
        let (body, tags) = frame.split_at_mut(frame.len() - TAGS_BYTES);
        tags[..MAC_BYTES].copy_from_slice(&self.key.tag(LABEL, body));
        // Without a key before it, the same again: so nothing of zeros is to be told apart.
        let previous = self.previous.as_ref().unwrap_or(&self.key);
        tags[MAC_BYTES..].copy_from_slice(&previous.tag(LABEL, body));
    }

    fn verifies(&self, frame: &[u8]) -> bool {
        let Some((body, tags)) = frame.split_at_checked(frame.len().wrapping_sub(TAGS_BYTES))
        else {
            return false;
        };
        let mut keys = core::iter::once(&self.key).chain(&self.previous);
        keys.any(|key| {
            tags.chunks_exact(MAC_BYTES)
                .any(|tag| key.has_tag(LABEL, body, tag))
        })
    }
}

/// What a switch says of itself by one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Its MAC.
    pub mac: Mac,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its first UDP port.
    pub udp_port: u16,
    /// Its name.
    pub name: &'a str,
    /// Number of the port that it sends by.
    pub port: u16,
    /// Whether its file says that the receiver is above it.
    pub is_up: bool,
    /// Tiers of switches below it.
    pub tier: u8,
    /// Which of its frames this is.
    pub stamp: Stamp,
    /// The last hello that it heard by this link.
    pub heard: Stamp,
    /// Switches that it reaches for the receiver.
    pub reach: Reach<'a>,
}

/// Switches in a hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach<'a>(&'a [u8]);

impl Reach<'_> {
    /// The switches.
    pub fn iter(&self) -> impl Iterator<Item = SwitchId> + '_ {
        let ids = self.0.chunks_exact(ID_BYTES);
        ids.map(|id| SwitchId(be32(id, 0..ID_BYTES)))
    }
}

/// A frame from a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricFrame<'a> {
    /// A hello.
    Hello(Hello<'a>),
    /// Addresses of hosts at or below the sender.
    Addresses(Stamp, Entries<'a>),
}

/// Addresses, each with the seconds since it was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries<'a>(&'a [u8]);

impl Entries<'_> {
    /// The addresses.
    pub fn iter(&self) -> impl Iterator<Item = (Mac, u16)> + '_ {
        let entries = self.0.chunks_exact(ENTRY_BYTES);
        entries.map(|entry| (mac(entry, 0..6), be16(entry, 6..8)))
    }
}

/// Writes a hello that reaches `reach`, and says how long it is. `hello.reach` is not looked at,
/// nor are switches beyond [`REACH_MAX`] or bytes of the name beyond [`NAME_MAX`].
pub fn emit_hello(
    buffer: &mut [u8; FRAME_BYTES_MAX],
    hello: &Hello<'_>,
    reach: impl IntoIterator<Item = SwitchId>,
    keys: &FabricKeys,
) -> usize {
    start(buffer, hello.mac, HELLO, hello.stamp);
    buffer[layout::FLAGS] = if hello.is_up { UP } else { 0 };
    buffer[layout::HEARD_SESSION].copy_from_slice(&hello.heard.session.to_be_bytes());
    buffer[layout::HEARD_COUNT].copy_from_slice(&hello.heard.count.to_be_bytes());
    buffer[layout::IP].copy_from_slice(&hello.ip.octets());
    buffer[layout::UDP_PORT].copy_from_slice(&hello.udp_port.to_be_bytes());
    buffer[layout::PORT].copy_from_slice(&hello.port.to_be_bytes());
    buffer[layout::TIER] = hello.tier;
    let name = &hello.name.as_bytes()[..hello.name.len().min(NAME_MAX)];
    buffer[layout::NAME_BYTES] = name.len() as u8;
    let mut at = layout::NAME + name.len();
    buffer[layout::NAME..at].copy_from_slice(name);
    let mut items = 0_u16;
    for id in reach.into_iter().take(REACH_MAX) {
        buffer[at..at + ID_BYTES].copy_from_slice(&id.0.to_be_bytes());
        at += ID_BYTES;
        items += 1;
    }
    finish(buffer, at, items, keys)
}

/// Writes the first [`ADDRESSES_MAX`] addresses, and says how long the frame is.
pub fn emit_addresses(
    buffer: &mut [u8; FRAME_BYTES_MAX],
    sender: Mac,
    stamp: Stamp,
    entries: &[(Mac, u16)],
    keys: &FabricKeys,
) -> usize {
    start(buffer, sender, ADDRESSES, stamp);
    buffer[layout::FLAGS] = 0;
    let mut at = layout::ENTRIES;
    let entries = &entries[..entries.len().min(ADDRESSES_MAX)];
    for (mac, age_s) in entries {
        buffer[at..at + 6].copy_from_slice(&mac.0);
        buffer[at + 6..at + ENTRY_BYTES].copy_from_slice(&age_s.to_be_bytes());
        at += ENTRY_BYTES;
    }
    finish(buffer, at, entries.len() as u16, keys)
}

fn start(buffer: &mut [u8; FRAME_BYTES_MAX], sender: Mac, kind: u8, stamp: Stamp) {
    buffer[ethernet::DST].copy_from_slice(&FABRIC_MAC.0);
    buffer[ethernet::SRC].copy_from_slice(&sender.0);
    buffer[ethernet::ETHERTYPE].copy_from_slice(&ETHERTYPE_FABRIC.to_be_bytes());
    buffer[layout::MAGIC].copy_from_slice(&MAGIC);
    buffer[layout::KIND] = kind;
    buffer[layout::SESSION].copy_from_slice(&stamp.session.to_be_bytes());
    buffer[layout::COUNT].copy_from_slice(&stamp.count.to_be_bytes());
}

fn finish(buffer: &mut [u8; FRAME_BYTES_MAX], at: usize, items: u16, keys: &FabricKeys) -> usize {
    buffer[layout::ITEMS].copy_from_slice(&items.to_be_bytes());
    let bytes = at + TAGS_BYTES;
    keys.seal(&mut buffer[..bytes]);
    bytes
}

/// Whether a frame claims to be of this protocol.
#[must_use]
pub fn is_fabric(frame: &[u8]) -> bool {
    frame.starts_with(&FABRIC_MAC.0)
        && frame.get(ethernet::ETHERTYPE) == Some(&ETHERTYPE_FABRIC.to_be_bytes())
}

/// A frame, if it is one and its tag is good. `None` for all else; never panics.
#[must_use]
pub fn parse<'a>(frame: &'a [u8], keys: &FabricKeys) -> Option<FabricFrame<'a>> {
    let body_end = frame.len().checked_sub(TAGS_BYTES)?;
    if !is_fabric(frame) || body_end < layout::ENTRIES || frame.len() > FRAME_BYTES_MAX {
        return None;
    }
    if frame[layout::MAGIC] != MAGIC || !keys.verifies(frame) {
        return None;
    }
    let body = &frame[..body_end];
    let items = usize::from(be16(body, layout::ITEMS));
    let stamp = Stamp {
        session: be64(body, layout::SESSION),
        count: be64(body, layout::COUNT),
    };
    match body[layout::KIND] {
        HELLO => parse_hello(body, stamp, items).map(FabricFrame::Hello),
        ADDRESSES => {
            let entries = &body[layout::ENTRIES..];
            let is_whole = entries.len() == items * ENTRY_BYTES;
            is_whole.then_some(FabricFrame::Addresses(stamp, Entries(entries)))
        }
        _ => None,
    }
}

fn parse_hello(body: &[u8], stamp: Stamp, items: usize) -> Option<Hello<'_>> {
    let name_bytes = usize::from(*body.get(layout::NAME_BYTES)?);
    let rest = body.get(layout::NAME..)?;
    let (name, reach) = rest.split_at_checked(name_bytes)?;
    let is_whole = reach.len() == items * ID_BYTES && items <= REACH_MAX;
    let is_name = (1..=NAME_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic);
    if !is_whole || !is_name {
        return None;
    }
    Some(Hello {
        mac: mac(body, ethernet::SRC),
        ip: ip(body, layout::IP),
        udp_port: be16(body, layout::UDP_PORT),
        name: core::str::from_utf8(name).ok()?,
        port: be16(body, layout::PORT),
        is_up: body[layout::FLAGS] & UP != 0,
        tier: body[layout::TIER],
        stamp,
        heard: Stamp {
            session: be64(body, layout::HEARD_SESSION),
            count: be64(body, layout::HEARD_COUNT),
        },
        reach: Reach(reach),
    })
}

#[cfg(test)]
mod tests;
