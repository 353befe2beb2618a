//! What carries the datagrams of one worker: the kernel's sockets, or a DPDK device of its own.

mod dpdk;
mod kernel;

pub use dpdk::DpdkLink;
pub use kernel::{KernelLink, mac_of};

use crate::losses::Losses;
use anyhow::Result;
use std::net::Ipv4Addr;
use std::time::Duration;
use tally_wire::Mac;
use tally_wire::switchml::Size;

/// A host, or the switch as the answer to a `UdpSession` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn turn_to(&mut self, switch: Peer, size: Size) -> Result<()> {
        (**self).turn_to(switch, size)
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Result<usize> {
        (**self).send(fill)
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        (**self).receive(take)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        (**self).wait(timeout)
    }
}

/// The way to the switch and back.
pub trait Link {
    /// Turns to the switch of a session with packets of that size, before anything else. The UDP
    /// port is another one from then on, at which nothing arrives of an earlier session.
    ///
    /// # Errors
    /// If there is no way there.
    fn turn_to(&mut self, switch: Peer, size: Size) -> Result<()>;

    /// Sends the datagrams that `fill` writes, until it has no more or there is no room. Returns
    /// their number.
    ///
    /// # Errors
    /// If the device or the kernel no longer serves us.
    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Result<usize>;

    /// Lends what has arrived to `take`. Says how many datagrams that were.
    ///
    /// # Errors
    /// If the device or the kernel no longer serves us.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<usize>;

    /// Waits for something to arrive, up to `timeout`; it may be less.
    ///
    /// # Errors
    /// If it cannot be waited for.
    fn wait(&mut self, timeout: Duration) -> Result<()>;
}

/// A link that loses datagrams on purpose, each way, the same ones for the same seed.
pub struct Lossy<L> {
    link: L,
    losses: Losses,
}

impl<L: Link> Lossy<L> {
    /// Loses with this probability.
    #[must_use]
    pub fn new(link: L, probability: f64, seed: u64) -> Self {
        Self {
            link,
            losses: Losses::new(probability, seed),
        }
    }

    /// How many were lost.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.losses.lost
    }
}

impl<L: Link> Link for Lossy<L> {
    fn turn_to(&mut self, switch: Peer, size: Size) -> Result<()> {
        self.link.turn_to(switch, size)
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Result<usize> {
        let Self { link, losses } = self;
        link.send(&mut |out| {
            loop {
                let bytes = fill(out)?;
                if !losses.loses() {
                    return Some(bytes);
                }
            }
        })
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let Self { link, losses } = self;
        link.receive(&mut |datagram| {
            if !losses.loses() {
                take(datagram);
            }
        })
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.link.wait(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Loop(Vec<u8>);

    impl Link for Loop {
        fn turn_to(&mut self, _: Peer, _: Size) -> Result<()> {
            Ok(())
        }

        fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Result<usize> {
            let mut out = [0];
            while fill(&mut out).is_some() {
                self.0.push(out[0]);
            }
            Ok(self.0.len())
        }

        fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
            self.0.drain(..).for_each(|byte| take(&[byte]));
            Ok(0)
        }

        fn wait(&mut self, _: Duration) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_requested_share_is_lost_in_both_directions() {
        for (probability, expected) in [(0.0, 0..=0), (1.0, 100..=100), (0.2, 20..=55)] {
            let mut link = Lossy::new(Loop::default(), probability, 7);
            let mut left = 100;
            let fill = &mut |out: &mut [u8]| {
                left -= 1;
                out[0] = left;
                (left > 0).then_some(1)
            };
            link.send(fill).unwrap();
            let mut got = 0;
            link.receive(&mut |_| got += 1).unwrap();
            let lost = 99 - got;
            assert_eq!(link.lost(), lost);
            let expected = *expected.start().min(&99)..=*expected.end().min(&99);
            assert!(expected.contains(&lost), "{lost} at {probability}");
        }
    }
}
