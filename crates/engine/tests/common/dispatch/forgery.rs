//! Frames with tags that are not theirs: guessed, of another frame, or of another epoch. They come
//! from the member that they name, and are right but for the tag.

use super::frames::framed;
use super::oracle::canonical;
use super::{Script, World};
use tally_engine::Member;
use tally_wire::{AuthTag, Epoch, Flags, FragmentId, Header, Kind, Rank};

impl World {
    /// A frame whose tag is wrong, or that was recorded; of an epoch that still runs it is then a
    /// duplicate.
    pub(super) fn forged(&mut self, script: &mut Script<'_>) -> (Member, Vec<u8>) {
        self.sensible_other(script);
        let choice = script.byte();
        let back = script.below(self.tagged.len());
        let at = self.tagged.len() - 1 - back;
        let (peer, header) = self.tagged[at];
        let current = self.peers[peer].epoch;
        let detail = script.byte();
        let header = match choice % 7 {
            // Guessed.
            0 => with_tag(header, header.tag.0 ^ 1 << (detail & 63)),
            1 => {
                let guess = script.bytes(8).iter();
                with_tag(
                    header,
                    guess.fold(0, |tag, byte| tag << 8 | u64::from(*byte)),
                )
            }
            // Recorded, and renumbered.
            2 => header,
            3 => of_epoch(header, current),
            // Another frame's.
            4 => {
                let (_, other) = self.tagged[usize::from(detail) % self.tagged.len()];
                with_tag(of_epoch(header, current), other.tag.0)
            }
            5 => altered(of_epoch(header, current), detail),
            // What the switch sent to all, as a member's own.
            _ => {
                let secret = self.peers[peer].secret();
                let rank = Rank::SWITCH;
                let heard = secret.seal(Header { rank, ..header });
                with_tag(of_epoch(header, current), heard.tag.0)
            }
        };
        let from = self.peers[peer].home;
        (from, framed(from, header, &canonical(&header)))
    }
}

fn with_tag(header: Header, tag: u64) -> Header {
    let tag = AuthTag(tag);
    Header { tag, ..header }
}

fn of_epoch(header: Header, epoch: Epoch) -> Header {
    Header { epoch, ..header }
}

/// With another field under the tag.
fn altered(header: Header, detail: u8) -> Header {
    let other = Header {
        fragment: FragmentId(header.fragment.0 ^ 2),
        ..header
    };
    match header.kind {
        Kind::Result if detail & 1 == 0 => Header {
            flags: header.flags.with(Flags::OVERFLOW),
            ..header
        },
        Kind::Nack if detail & 1 == 0 => Header {
            rank: Rank(header.rank.0 ^ 1),
            ..header
        },
        _ => other,
    }
}
