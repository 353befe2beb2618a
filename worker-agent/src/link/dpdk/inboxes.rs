//! Whose each frame is that arrived on a port that several share.
//!
//! A frame to our address is for the owner of its UDP port; one to a job's group is for all members
//! of that job here, and they share it. Each has an inbox, whose frames wait for its owner's next
//! turn. It is bounded, so that what is sent to one who is slow takes no buffers from the others;
//! what does not fit is dropped and counted, and the sender's repair brings it again.
//!
//! An inbox may be pinned to the MAC that ACCEPT gave. Frames from any other MAC are dropped
//! and counted before they take room in it. The pin is the inbox's and not the port's: an ACCEPT of
//! one job has no effect on other jobs.

use crate::link::ethernet::To;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use tally_endpoint::Ecn;
use tally_wire::Mac;

/// Limit of frames that wait for one: those that may arrive for it during another's longest turn.
pub(super) const INBOX_FRAMES_MAX: usize = 1024;
/// Frames that wait for all, counted for each of them. With more, none gets more than a little.
pub(super) const HELD_FRAMES_MAX: usize = 1536;
/// That little.
const INBOX_FRAMES_MIN: usize = 64;

/// A frame, and what its headers say.
pub(super) struct Arrived<F> {
    pub(super) frame: F,
    /// Source MAC.
    pub(super) from: Mac,
    pub(super) ecn: Ecn,
    /// Of the datagram in it.
    pub(super) bytes: usize,
}

/// Frames without an owner here, that did not fit, or came from a wrong MAC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// For a UDP port or a group without an owner here.
    pub strays: u64,
    /// For one who has too many waiting.
    pub overflow: u64,
    /// From the switch's IPv4 address and another MAC than the one that ACCEPT gave.
    pub wrong_mac: u64,
}

/// The inboxes of all who share a port.
pub(super) struct Inboxes<F> {
    /// The UDP port of the first one; the others' follow.
    first: u16,
    inboxes: Vec<Option<Inbox<F>>>,
    /// Frames in all of them.
    held: usize,
    pub(super) dropped: Dropped,
}

struct Inbox<F> {
    group: Option<Ipv4Addr>,
    /// The only source MAC that is accepted, if there is one.
    pin: Option<Mac>,
    frames: VecDeque<Arrived<F>>,
}

impl<F> Inboxes<F> {
    pub(super) fn new(first: u16) -> Self {
        Self {
            first,
            inboxes: Vec::new(),
            held: 0,
            dropped: Dropped::default(),
        }
    }

    /// One more inbox, for what is sent to `group` and to the UDP port that is returned, the lowest
    /// that is free.
    ///
    /// # Panics
    /// If all ports from the first one on are taken.
    pub(super) fn open(&mut self, group: Option<Ipv4Addr>) -> u16 {
        let free = self.inboxes.iter().position(Option::is_none);
        let at = free.unwrap_or(self.inboxes.len());
        let port = u16::try_from(usize::from(self.first) + at).expect("a port for each");
        let inbox = Some(Inbox {
            group,
            pin: None,
            frames: VecDeque::new(),
        });
        match free {
            Some(free) => self.inboxes[free] = inbox,
            None => self.inboxes.push(inbox),
        }
        port
    }

    fn of(&mut self, port: u16) -> Option<&mut Option<Inbox<F>>> {
        let at = port.checked_sub(self.first)?;
        self.inboxes.get_mut(usize::from(at))
    }

    /// Accepts only frames from that MAC in an inbox from now on; `None`: from any.
    pub(super) fn pin(&mut self, port: u16, mac: Option<Mac>) {
        if let Some(inbox) = self.of(port).and_then(Option::as_mut) {
            inbox.pin = mac;
        }
    }

    /// Drops an inbox, and what is in it.
    pub(super) fn close(&mut self, port: u16) {
        if let Some(inbox) = self.of(port).and_then(Option::take) {
            self.held -= inbox.frames.len();
        }
    }

    pub(super) fn is_empty(&mut self, port: u16) -> bool {
        let inbox = self.of(port).and_then(|it| it.as_ref());
        inbox.is_none_or(|it| it.frames.is_empty())
    }

    /// Puts a frame where it belongs; `share` makes another reference to it.
    pub(super) fn deliver(&mut self, to: To, arrived: Arrived<F>, share: impl Fn(&F) -> F) {
        let Self {
            first,
            inboxes,
            held,
            dropped,
        } = self;
        let mut put = |inbox: &mut Inbox<F>, arrived: Arrived<F>| {
            if inbox.pin.is_some_and(|mac| mac != arrived.from) {
                dropped.wrong_mac += 1;
                return;
            }
            let waiting = inbox.frames.len();
            let is_full = waiting >= INBOX_FRAMES_MAX
                || waiting >= INBOX_FRAMES_MIN && *held >= HELD_FRAMES_MAX;
            if is_full {
                dropped.overflow += 1;
            } else {
                inbox.frames.push_back(arrived);
                *held += 1;
            }
        };
        let delivered = match to {
            To::Port(port) => {
                let at = port.checked_sub(*first).map(usize::from);
                let inbox = at.and_then(|at| inboxes.get_mut(at)?.as_mut());
                inbox.map(|inbox| put(inbox, arrived))
            }
            To::Group(group) => {
                let mut members = inboxes
                    .iter_mut()
                    .flatten()
                    .filter(|it| it.group == Some(group));
                members.next().map(|first| {
                    for other in members {
                        let frame = share(&arrived.frame);
                        put(other, Arrived { frame, ..arrived });
                    }
                    put(first, arrived);
                })
            }
        };
        if delivered.is_none() {
            dropped.strays += 1;
        }
    }

    /// Takes up to `most` frames out of an inbox, in the order in which they came. Returns how
    /// many.
    pub(super) fn take(&mut self, port: u16, most: usize, each: impl FnMut(Arrived<F>)) -> usize {
        let Some(inbox) = self.of(port).and_then(Option::as_mut) else {
            return 0;
        };
        let n = inbox.frames.len().min(most);
        inbox.frames.drain(..n).for_each(each);
        self.held -= n;
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    const A: Ipv4Addr = Ipv4Addr::new(239, 84, 0, 7);
    const B: Ipv4Addr = Ipv4Addr::new(239, 84, 0, 8);
    const P: u16 = 40_000;
    const SWITCH: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn deliver(inboxes: &mut Inboxes<Rc<u32>>, to: To, n: u32) {
        deliver_from(inboxes, SWITCH, to, n);
    }

    fn deliver_from(inboxes: &mut Inboxes<Rc<u32>>, from: Mac, to: To, n: u32) {
        let arrived = Arrived {
            frame: Rc::new(n),
            from,
            ecn: Ecn::Ect0,
            bytes: 1,
        };
        inboxes.deliver(to, arrived, Rc::clone);
    }

    fn take(inboxes: &mut Inboxes<Rc<u32>>, number: u16, most: usize) -> Vec<u32> {
        let mut got = Vec::new();
        let n = inboxes.take(number, most, |it| got.push(*it.frame));
        assert_eq!(n, got.len());
        got
    }

    #[test]
    fn frames_go_to_their_port_or_to_everybody_in_the_group_in_order() {
        let mut i = Inboxes::new(P);
        assert_eq!(
            [i.open(Some(A)), i.open(Some(B)), i.open(Some(A))],
            [P, P + 1, P + 2]
        );
        deliver(&mut i, To::Group(A), 1);
        deliver(&mut i, To::Port(P + 2), 2);
        deliver(&mut i, To::Group(A), 3);
        deliver(&mut i, To::Group(B), 4);
        assert_eq!(take(&mut i, P, 9), [1, 3]);
        assert_eq!(take(&mut i, P + 2, 2), [1, 2]);
        assert!(!i.is_empty(P + 2) && i.is_empty(P));
        assert_eq!(take(&mut i, P + 2, 2), [3]);
        assert!(take(&mut i, P + 1, 0).is_empty());
        assert_eq!(take(&mut i, P + 1, 1), [4]);
        assert_eq!((i.held, i.dropped), (0, Dropped::default()));
    }

    #[test]
    fn nobodys_frames_are_counted_and_a_number_is_used_again_without_them() {
        let mut i = Inboxes::new(P);
        for port in [0, P - 1, P, u16::MAX] {
            deliver(&mut i, To::Port(port), 1);
        }
        deliver(&mut i, To::Group(A), 1);
        let (first, second) = (i.open(Some(A)), i.open(None));
        deliver(&mut i, To::Port(first), 2);
        i.close(first);
        i.close(first);
        deliver(&mut i, To::Port(first), 3);
        deliver(&mut i, To::Group(A), 3);
        assert_eq!((i.held, i.dropped.strays), (0, 7));
        assert!(i.is_empty(first) && take(&mut i, first, 9).is_empty());
        assert_eq!(i.open(Some(B)), first);
        assert!(i.is_empty(first) && i.is_empty(second));
    }

    #[test]
    fn a_pinned_inbox_takes_frames_from_one_mac_alone() {
        let mut i = Inboxes::new(P);
        let (pinned, free) = (i.open(Some(A)), i.open(Some(A)));
        i.pin(pinned, Some(SWITCH));
        for from in [SWITCH, OTHER] {
            deliver_from(&mut i, from, To::Port(pinned), 1);
            deliver_from(&mut i, from, To::Group(A), 2);
        }
        assert_eq!(i.dropped.wrong_mac, 2);
        assert_eq!(take(&mut i, pinned, 9), [1, 2]);
        assert_eq!(take(&mut i, free, 9), [2, 2], "it has no pin");
        i.pin(pinned, Some(OTHER));
        deliver(&mut i, To::Port(pinned), 3);
        deliver_from(&mut i, OTHER, To::Port(pinned), 4);
        assert_eq!(take(&mut i, pinned, 9), [4]);
        i.pin(pinned, None);
        deliver(&mut i, To::Port(pinned), 5);
        assert_eq!(take(&mut i, pinned, 9), [5]);
        assert_eq!((i.dropped.wrong_mac, i.dropped.strays, i.held), (3, 0, 0));
        i.pin(pinned, Some(OTHER));
        i.close(pinned);
        assert_eq!(i.open(Some(A)), pinned);
        deliver(&mut i, To::Port(pinned), 6);
        assert_eq!(take(&mut i, pinned, 9), [6], "a new link has no pin");
    }

    #[test]
    fn one_who_is_flooded_leaves_room_for_the_others() {
        let mut i = Inboxes::new(P);
        let all: Vec<_> = (0..4).map(|_| i.open(Some(A))).collect();
        for n in 0..10_000 {
            deliver(&mut i, To::Port(all[0]), n);
            deliver(&mut i, To::Port(all[1]), n);
        }
        let kept = HELD_FRAMES_MAX as u64;
        assert_eq!(i.dropped.overflow, 20_000 - kept);
        for n in 0..100 {
            deliver(&mut i, To::Group(A), n);
        }
        assert_eq!(take(&mut i, all[3], 999).len(), INBOX_FRAMES_MIN);
        assert_eq!(take(&mut i, all[0], 1), [0]);
        i.close(all[0]);
        i.close(all[1]);
        i.close(all[2]);
        assert_eq!(i.held, 0);
        for n in 0..2000 {
            deliver(&mut i, To::Port(all[3]), n);
        }
        assert_eq!(take(&mut i, all[3], 9999).len(), INBOX_FRAMES_MAX);
    }
}
