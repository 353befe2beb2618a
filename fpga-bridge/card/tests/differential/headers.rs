//! Frames that are wrong in one byte, or in two ways at once.

use super::script::{OWN, SECRET, Step, data, frame_of, member, result, word};
use tally_card::Flaw;
use tally_engine::Roster;

use tally_wire::{Element, Epoch, HEADERS_BYTES, JobId, Kind, Rank};

/// A job of a worker and a child switch.
fn roster() -> Roster {
    let workers = (0..2).map(|n| member(n, n as u16)).collect();
    Roster::new(JobId(7), Epoch(0x2a01), SECRET, 1, workers, member(9, 9)).with_switches(0b10)
}

/// A frame of each kind that a member may send, each byte of its payload `fill`.
fn frame(roster: &Roster, kind: usize, fragment: u32, fill: u8) -> Vec<u8> {
    let header = match kind {
        0 => data(roster, Element::I32, fragment, 0),
        1 => data(roster, Element::I32, fragment, 1),
        2 => result(roster, Element::I32, fragment, Rank::PS, 0),
        3 => word(roster, Kind::Remind, fragment, Rank::PS, 0),
        4 => word(roster, Kind::Nack, fragment, Rank(1), 0),
        5 => result(roster, Element::I32, fragment, Rank(0), 0),
        _ => word(roster, Kind::Probe, fragment, Rank(0), 0),
    };
    let from = match kind {
        0 | 5 | 6 => roster.workers[0],
        1 => roster.workers[1],
        _ => roster.servers[0],
    };
    let payload = vec![fill; header.payload_bytes()];
    frame_of(&from, &header, &payload, &OWN)
}

/// Kinds of [`frame`].
const KINDS: usize = 7;

/// Each byte of the headers of each kind of frame, with each value, and each length of a
/// contribution.
pub fn every_byte() -> Vec<Step> {
    let roster = roster();
    let mut script = vec![Step::Load(0, Box::new(roster.clone()))];
    let mut fragment = 0;
    for kind in 0..KINDS {
        for at in 0..HEADERS_BYTES {
            for value in 0..=255 {
                let mut frame = frame(&roster, kind, fragment, value);
                frame[at] = value;
                script.push(Step::Frame(frame, Flaw::None));
            }
            fragment += 1;
            script.push(Step::Settle);
        }
        for bytes in 1..=300 {
            let mut frame = frame(&roster, 0, fragment, 1);
            frame.resize(bytes, 0);
            script.push(Step::Frame(frame, Flaw::None));
        }
        script.push(Step::Settle);
    }
    script
}

/// One way in which a frame is wrong: the first byte that changes, and its new bytes. None of them
/// is that of a good frame, but for flags that a child switch may send.
type Wrong = (usize, &'static [u8]);

/// At least one for each check of the switch.
fn wrongs() -> Vec<Wrong> {
    let own: &'static [u8] = Box::leak(OWN.ip.octets().into());
    let own_mac: &'static [u8] = Box::leak(OWN.mac.0.into());
    let port = |n: u16| -> &'static [u8] { Box::leak((OWN.base_port + n).to_be_bytes().into()) };
    vec![
        // Ethernet: to another host, of no port, of another port, from the switch, from another
        // member.
        (0, &[2, 0, 0, 1, 0, 9]),
        (0, own_mac),
        (4, &[0, 15]),
        (6, own_mac),
        (11, &[0x77]),
        // A tag, ARP.
        (12, &[0x81, 0x00]),
        (12, &[0x08, 0x06]),
        // IPv4: version, options, lengths, fragment, ICMP, addresses.
        (14, &[0x65]),
        (14, &[0x46]),
        (16, &[0, 20]),
        (16, &[0x40, 0]),
        (20, &[0x20, 0]),
        (23, &[1]),
        (26, own),
        (29, &[0x77]),
        (30, &[10, 9, 8, 7]),
        // UDP: ports, shards, length.
        (34, &[1, 1]),
        (36, port(1)),
        (36, port(OWN.shards)),
        (38, &[0, 7]),
        // The header: version, kinds, flags, element, job, epoch, fragment, ranks, units, bitmap.
        (42, &[0x0f]),
        (42, &[0x2f]),
        (42, &[0x21]),
        (42, &[0x23]),
        (42, &[0x27]),
        (42, &[0x28]),
        (43, &[0xff]),
        (43, &[0x02]),
        (43, &[0x20]),
        (45, &[0x0f]),
        (45, &[0xf0]),
        (46, &[9, 9]),
        (48, &[9, 9]),
        (50, &[0, 0, 0, 2]),
        (54, &[5]),
        (54, &[0xfd]),
        (54, &[0xfe]),
        (55, &[2]),
        (56, &[0, 0, 0, 0, 0, 0, 0, 3]),
    ]
}

/// Each pair of ways in which a frame may be wrong: the check that comes first says what becomes of
/// it.
pub fn every_pair() -> Vec<Step> {
    let roster = roster();
    let mut script = vec![Step::Load(0, Box::new(roster.clone()))];
    let wrongs = wrongs();
    for kind in 0..KINDS {
        for (at, first) in wrongs.iter().enumerate() {
            for second in &wrongs[at..] {
                let mut frame = frame(&roster, kind, 0, 1);
                for (at, bytes) in [first, second] {
                    frame[*at..*at + bytes.len()].copy_from_slice(bytes);
                }
                script.push(Step::Frame(frame, Flaw::None));
            }
            script.push(Step::Settle);
        }
    }
    script
}
