//! tags of what comes in, and of what leaves.

use super::*;

/// All that has a tag and is for the switch, of fragment 0, sealed.
fn tagged() -> Vec<Header> {
    let headers = [
        result_of(Rank::PS, 0),
        result_of(Rank(1), 0),
        ps(Kind::Remind, 0),
        nack(0, 1),
        probe(0, 1),
    ];
    headers.map(|h| secret(JOB, EPOCH).seal(h)).to_vec()
}

/// A world in which each of them has an effect.
fn world() -> World {
    let mut w = World::new(PolicyName::Esa, 8);
    w.data(0, 0, 1);
    w
}

fn say_as_is(w: &mut World, header: Header) -> Vec<Sent> {
    w.handle_as_is(host(host_of(&header)), header, &ints(5))
}

#[test]
fn a_tag_with_any_wrong_bit_is_dropped() {
    for header in tagged() {
        let mut w = world();
        for bit in 0..64 {
            let forged = Header {
                tag: AuthTag(header.tag.0 ^ 1 << bit),
                ..header
            };
            w.dropped(DropReason::AuthTag, |w| say_as_is(w, forged));
        }
        let none = Header {
            tag: AuthTag::NONE,
            ..header
        };
        w.dropped(DropReason::AuthTag, |w| say_as_is(w, none));
        assert_eq!(
            say_as_is(&mut w, header).len(),
            1,
            "the right one: {header:?}"
        );
    }
}

#[test]
fn a_tag_of_another_epoch_or_job_is_wrong() {
    for header in tagged() {
        let mut w = world();
        for other in [secret(JOB, Epoch(2)), secret(OTHER, EPOCH)] {
            let forged = other.seal(header);
            w.dropped(DropReason::AuthTag, |w| say_as_is(w, forged));
        }
        // A recorded frame as it was.
        let epoch = Epoch(2);
        let old = secret(JOB, epoch).seal(Header { epoch, ..header });
        w.dropped(DropReason::Epoch, |w| say_as_is(w, old));
    }
}

#[test]
fn a_frame_of_one_epoch_is_nothing_in_the_next() {
    for header in tagged() {
        let mut w = world();
        w.bind(next_epoch(3));
        w.dropped(DropReason::Epoch, |w| say_as_is(w, header));
        let renumbered = Header {
            epoch: Epoch(4),
            ..header
        };
        w.dropped(DropReason::AuthTag, |w| say_as_is(w, renumbered));
    }
}

#[test]
fn a_tag_is_of_one_frame_only() {
    let mut w = world();
    let all = tagged();
    for from in &all {
        for to in all.iter().filter(|to| to.tag != from.tag) {
            let tag = from.tag;
            let forged = Header { tag, ..*to };
            w.dropped(DropReason::AuthTag, |w| say_as_is(w, forged));
        }
        let fragment = FragmentId(4);
        let forged = Header { fragment, ..*from };
        w.dropped(DropReason::AuthTag, |w| say_as_is(w, forged));
    }
    for from in &all[..2] {
        let flags = Flags::OVERFLOW;
        w.dropped(DropReason::AuthTag, |w| {
            say_as_is(w, Header { flags, ..*from })
        });
        let element = Element::F32;
        w.dropped(DropReason::AuthTag, |w| {
            say_as_is(w, Header { element, ..*from })
        });
    }
    let rank = Rank(2);
    for from in &all[3..] {
        w.dropped(DropReason::AuthTag, |w| {
            say_as_is(w, Header { rank, ..*from })
        });
    }
}

#[test]
fn a_result_of_the_switch_cannot_be_said_again_by_a_member() {
    let mut w = world();
    let published = secret(JOB, EPOCH).seal(result_of(Rank::SWITCH, 0));
    for rank in [Rank(0), Rank(1), Rank::PS] {
        let reflected = Header { rank, ..published };
        w.dropped(DropReason::AuthTag, |w| say_as_is(w, reflected));
    }
}

/// C-1: a switch on the way may mark a frame, which does not make its tag wrong.
#[test]
fn marked_is_not_under_the_tag() {
    for header in &tagged()[..2] {
        let mut w = world();
        let marked = Header {
            flags: header.flags.with(Flags::MARKED),
            ..*header
        };
        let from_ps = Flags::FROM_PS.when(header.rank == Rank::PS);
        let expected = published(result_of(Rank::SWITCH, 0), ints(5), None);
        let expected = flagged(expected, from_ps.with(Flags::MARKED));
        assert_eq!(say_as_is(&mut w, marked), [expected]);
    }
}

#[test]
fn data_has_no_tag() {
    let mut w = world();
    assert_eq!(say_as_is(&mut w, data(0, 1)), []);
    assert_eq!(say_as_is(&mut w, resend(0, 2)).len(), 1);
}

/// Headers as they leave.
#[derive(Default)]
struct Raw {
    headers: Vec<Header>,
    wire: Wire,
}

impl Egress<Plain> for Raw {
    fn send(&mut self, roster: &Roster, to: To, header: &Header, buffer: Plain) {
        self.headers.push(*header);
        self.wire.send(roster, to, header, buffer);
    }

    fn publish(&mut self, r: &Roster, header: &Header, buffer: Plain, born: Option<Time>) -> Plain {
        self.headers.push(*header);
        self.wire.publish(r, header, buffer, born)
    }

    fn send_up(&mut self, r: &Roster, header: &Header, buffer: Plain, born: Option<Time>) -> Plain {
        self.headers.push(*header);
        self.wire.send_up(r, header, buffer, born)
    }

    fn copy_up(&mut self, roster: &Roster, header: &Header, frame: &Plain) {
        self.headers.push(*header);
        self.wire.copy_up(roster, header, frame);
    }

    fn is_queued(&self, frame: &Plain) -> bool {
        self.wire.is_queued(frame)
    }

    fn republish(&mut self, roster: &Roster, to: Rank, frame: &Plain) {
        self.wire.republish(roster, to, frame);
    }

    fn discard(&mut self, buffer: Plain) {
        Egress::discard(&mut self.wire, buffer);
    }
}

impl Raw {
    /// The header that a frame makes leave.
    fn handle(&mut self, w: &mut World, header: Header) -> Header {
        let header = secret(JOB, EPOCH).seal(header);
        let payload = if header.units == 0 { vec![] } else { ints(5) };
        let buffer = w.ledger.frame(payload);
        let from = host(host_of(&header));
        w.shard.handle(w.now, &from, &header, buffer, self);
        assert_eq!(self.headers.len(), 1);
        self.headers.remove(0)
    }
}

#[test]
fn a_nack_leaves_with_the_tag_of_its_rank() {
    let mut w = world();
    let secret = secret(JOB, EPOCH);
    let mut raw = Raw::default();
    for (asker, asked) in [(0, 1), (1, 1), (2, 2)] {
        let left = raw.handle(&mut w, probe(0, asker));
        assert_eq!(left, secret.seal(nack(0, asked)));
        let others = (0..3).filter(|rank| *rank != asked);
        for rank in others {
            let other = nack(0, rank);
            assert_ne!(left.tag, secret.tag(&other), "only its own worker takes it");
        }
    }
    // That of the PS is as the PS sent it.
    let left = raw.handle(&mut w, nack(0, 2));
    assert_eq!(left, secret.seal(nack(0, 2)));
}

#[test]
fn a_probe_reaches_the_ps_with_its_own_tag() {
    let mut w = World::new(PolicyName::None, 8);
    w.data(0, 0, 1);
    let left = Raw::default().handle(&mut w, probe(0, 2));
    assert_eq!(left, secret(JOB, EPOCH).seal(probe(0, 2)));
}

#[test]
fn a_result_leaves_with_the_tag_of_the_switch() {
    for (from, flags) in [(Rank::PS, Flags::FROM_PS), (Rank(1), Flags::NONE)] {
        let mut w = world();
        let left = Raw::default().handle(&mut w, result_of(from, 0));
        let expected = Header {
            flags,
            ..result_of(Rank::SWITCH, 0)
        };
        assert_eq!(left, secret(JOB, EPOCH).seal(expected));
    }
}

#[test]
fn what_goes_to_the_ps_has_the_tag_of_its_bitmap() {
    let mut w = world();
    let secret = secret(JOB, EPOCH);
    w.data(0, 2, 1);
    let mut raw = Raw::default();
    let reminded = raw.handle(&mut w, ps(Kind::Remind, 0));
    let Sent::To(_, _, expected, _) = partial(0, 0b101, 2) else {
        unreachable!()
    };
    assert_eq!(reminded, secret.seal(expected));
    let mut other = reminded;
    other.bitmap = 0b111;
    assert!(!secret.verifies(&other));
    let not_here = raw.handle(&mut w, ps(Kind::Remind, 0));
    assert_eq!(not_here.kind, Kind::NotHere);
    assert!(secret.verifies(&not_here));
}
