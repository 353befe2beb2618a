//! Links with a rate and a delay, and transfers over them in simulated time.
//!
//! A link serves transfers one behind the other, in the order in which their first byte comes.
//! Switches cut through: a transfer enters the next link when its first byte has crossed the last
//! one, and leaves no earlier than its last byte comes. Time is in picoseconds: 100 Gbit/s are 80
//! of them a byte.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Picoseconds.
pub type Time = u64;
/// Picoseconds of a second.
pub const SECOND: f64 = 1e12;
/// Most links of a route: from host to host through two racks.
const ROUTE_MAX: usize = 4;

/// Number of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(pub u32);

/// Links that a transfer crosses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    links: [u32; ROUTE_MAX],
    length: u8,
}

impl Route {
    /// These links, one behind the other.
    ///
    /// # Panics
    /// If there are more than `ROUTE_MAX`.
    #[must_use]
    pub fn new(links: &[LinkId]) -> Self {
        let mut route = Self::default();
        for (to, link) in route.links[..links.len()].iter_mut().zip(links) {
            *to = link.0;
        }
        route.length = links.len() as u8;
        route
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    ps_per_byte: f64,
    delay: Time,
    free: Time,
    bytes: u64,
}

/// When the first and the last byte of a transfer are at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub head: Time,
    /// Last byte.
    pub tail: Time,
}

impl Span {
    /// What is there as a whole at a moment.
    #[must_use]
    pub const fn at(time: Time) -> Self {
        let (head, tail) = (time, time);
        Self { head, tail }
    }

    /// The span of what needs both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            head: self.head.max(other.head),
            tail: self.tail.max(other.tail),
        }
    }
}

/// Where a transfer is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A switch, with its first byte.
    Switch,
    /// A host, with its last byte.
    Host,
}

#[derive(Clone, Copy, Debug)]
struct Transfer<M> {
    route: Route,
    crossed: u8,
    bytes: u32,
    span: Span,
    to: To,
    message: M,
}

/// Links, and what is under way on them.
#[derive(Debug)]
pub struct Network<M> {
    links: Vec<Link>,
    transfers: Vec<Option<Transfer<M>>>,
    unused: Vec<u32>,
    events: BinaryHeap<Reverse<(Time, u64, u32)>>,
    count: u64,
}

impl<M: Copy> Default for Network<M> {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            transfers: Vec::new(),
            unused: Vec::new(),
            events: BinaryHeap::new(),
            count: 0,
        }
    }
}

impl<M: Copy> Network<M> {
    /// Another link.
    pub fn link(&mut self, gbit_per_s: f64, delay: Time) -> LinkId {
        self.links.push(Link {
            ps_per_byte: 8000.0 / gbit_per_s,
            delay,
            free: 0,
            bytes: 0,
        });
        LinkId(self.links.len() as u32 - 1)
    }

    /// Bytes that a link has carried.
    #[must_use]
    pub fn bytes(&self, link: LinkId) -> u64 {
        self.links[link.0 as usize].bytes
    }

    /// Sends bytes that are at the route's begin in a span of time.
    pub fn send(&mut self, route: Route, bytes: u32, span: Span, to: To, message: M) {
        let transfer = Transfer {
            route,
            crossed: 0,
            bytes,
            span,
            to,
            message,
        };
        let slot = self.unused.pop().unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() as u32 - 1
        });
        self.schedule(slot, transfer);
    }

    fn schedule(&mut self, slot: u32, transfer: Transfer<M>) {
        let has_come = transfer.crossed == transfer.route.length;
        let at = if has_come && transfer.to == To::Host {
            transfer.span.tail
        } else {
            transfer.span.head
        };
        self.transfers[slot as usize] = Some(transfer);
        self.count += 1;
        self.events.push(Reverse((at, self.count, slot)));
    }

    /// The next message that has come, with its span.
    pub fn poll(&mut self) -> Option<(M, Span)> {
        loop {
            let Reverse((_, _, slot)) = self.events.pop()?;
            let mut transfer = self.transfers[slot as usize].take()?;
            if transfer.crossed == transfer.route.length {
                self.unused.push(slot);
                return Some((transfer.message, transfer.span));
            }
            let number = transfer.route.links[usize::from(transfer.crossed)];
            let link = &mut self.links[number as usize];
            let start = transfer.span.head.max(link.free);
            let sent = start + (f64::from(transfer.bytes) * link.ps_per_byte).round() as Time;
            // A transfer that comes slowly leaves room for others between its packets.
            link.free = sent;
            link.bytes += u64::from(transfer.bytes);
            transfer.span = Span {
                head: start + link.delay,
                tail: sent.max(transfer.span.tail) + link.delay,
            };
            transfer.crossed += 1;
            self.schedule(slot, transfer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_queue_at_the_slowest_link_and_cut_through() {
        let mut network = Network::default();
        // 80 and 160 ps a byte.
        let links = [network.link(100.0, 1000), network.link(50.0, 1000)];
        let route = Route::new(&links);
        for message in 0..2 {
            network.send(route, 100, Span::at(0), To::Host, message);
        }
        let (first, span) = network.poll().unwrap();
        assert_eq!(
            (first, span),
            (
                0,
                Span {
                    head: 2000,
                    tail: 18_000
                }
            )
        );
        let (second, span) = network.poll().unwrap();
        assert_eq!((second, span.tail), (1, 34_000));
        assert!(network.poll().is_none());
        assert_eq!(network.bytes(links[1]), 200);
    }

    #[test]
    fn a_switch_has_the_first_byte_and_a_fast_link_waits_for_the_last() {
        let mut network = Network::default();
        let slow = network.link(50.0, 0);
        let fast = network.link(100.0, 0);
        network.send(Route::new(&[slow]), 100, Span::at(5), To::Switch, 7);
        let (message, span) = network.poll().unwrap();
        assert_eq!(
            (message, span),
            (
                7,
                Span {
                    head: 5,
                    tail: 16_005
                }
            )
        );
        network.send(Route::new(&[fast]), 100, span, To::Host, 7);
        assert_eq!(network.poll().unwrap().1.tail, 16_005);
    }
}
