//! A writer of pcapng (draft-ietf-opsawg-pcapng): the three kinds of blocks that a capture needs.
//!
//! Numbers are little-endian; the section's magic says so.

use std::io::{self, Write};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

/// Options of any block.
const END: u16 = 0;
const COMMENT: u16 = 1;
/// Of a section: the program.
const SHB_USERAPPL: u16 = 4;
/// Of an interface: its name, and decimal places of a second.
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
/// Of a packet: flags, of which the lowest two bits are 1 for inbound and 2 for outbound.
const EPB_FLAGS: u16 = 2;

/// A frame.
pub(super) struct Packet<'a> {
    /// Number of its interface, in the order in which they were written.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether it left by the interface; else it came in.
    pub sent: bool,
    /// What is said about it.
    pub comment: Option<String>,
    /// Its length.
    pub bytes: u32,
    /// Its first bytes.
    pub data: &'a [u8],
}

/// Writes one section.
pub(super) struct Writer<W>(W);

impl<W: Write> Writer<W> {
    /// Begins a section that `program` writes.
    pub(super) fn new(out: W, program: &str) -> io::Result<Self> {
        let mut writer = Self(out);
        let mut body = BYTE_ORDER.to_le_bytes().to_vec();
        // Version 1.0, of unknown length.
        body.extend([1, 0, 0, 0]);
        body.extend(u64::MAX.to_le_bytes());
        option(&mut body, SHB_USERAPPL, program.as_bytes());
        option(&mut body, END, &[]);
        writer.block(SECTION, &body)?;
        Ok(writer)
    }

    /// Describes an interface.
    pub(super) fn interface(&mut self, name: &str, snaplen: u32) -> io::Result<()> {
        let mut body = ETHERNET.to_le_bytes().to_vec();
        body.extend([0, 0]);
        body.extend(snaplen.to_le_bytes());
        option(&mut body, IF_NAME, name.as_bytes());
        option(&mut body, IF_TSRESOL, &[9]);
        option(&mut body, END, &[]);
        self.block(INTERFACE, &body)
    }

    /// Writes a frame.
    pub(super) fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let mut body = packet.interface.to_le_bytes().to_vec();
        body.extend(((packet.time_ns >> 32) as u32).to_le_bytes());
        body.extend((packet.time_ns as u32).to_le_bytes());
        body.extend((packet.data.len() as u32).to_le_bytes());
        body.extend(packet.bytes.to_le_bytes());
        body.extend(packet.data);
        pad(&mut body);
        if let Some(comment) = &packet.comment {
            option(&mut body, COMMENT, comment.as_bytes());
        }
        let direction = if packet.sent { 2_u32 } else { 1 };
        option(&mut body, EPB_FLAGS, &direction.to_le_bytes());
        option(&mut body, END, &[]);
        self.block(PACKET, &body)
    }

    /// Hands everything on to the reader.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let bytes = (body.len() as u32 + 12).to_le_bytes();
        self.0.write_all(&kind.to_le_bytes())?;
        self.0.write_all(&bytes)?;
        self.0.write_all(body)?;
        self.0.write_all(&bytes)
    }
}

/// Adds an option, cut to what one may have.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

/// Fills up to a multiple of four bytes.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_as_the_draft_says() {
        let mut writer = Writer::new(Vec::new(), "t").unwrap();
        writer.interface("p0", 256).unwrap();
        let section = writer.0.len();
        let packet = Packet {
            interface: 0,
            time_ns: 0x0102_0304_0506_0708,
            sent: true,
            comment: Some("abcde".into()),
            bytes: 60,
            data: &[9, 8, 7],
        };
        writer.packet(&packet).unwrap();
        let bytes = &writer.0[section..];
        let want = [
            &[6, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0][..],
            &[4, 3, 2, 1, 8, 7, 6, 5, 3, 0, 0, 0, 60, 0, 0, 0],
            &[9, 8, 7, 0],
            &[1, 0, 5, 0, b'a', b'b', b'c', b'd', b'e', 0, 0, 0],
            &[2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[60, 0, 0, 0],
        ];
        assert_eq!(bytes, want.concat());
        assert!(writer.0.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    }
}
