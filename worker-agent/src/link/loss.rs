//! Losing datagrams on purpose, the same ones for the same seed, to see that repair works.

use super::{Link, LinkError};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tally_endpoint::{Ecn, Transmit};

/// How much is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The probability with which each datagram is lost, sent or received.
    pub probability: f64,
    /// What decides which.
    pub seed: u64,
}

/// A link that loses.
pub struct Lossy<L> {
    inner: L,
    /// A datagram is lost when its random number is below.
    threshold: u64,
    /// xorshift64*, one for each direction, so that one does not change the other.
    states: [u64; 2],
    dropped: [u64; 2],
}

impl<L: Link> Lossy<L> {
    /// Makes `inner` lose.
    pub fn new(inner: L, loss: Loss) -> Self {
        // Not 0, and different for neighbouring seeds.
        let state =
            |n: u64| (loss.seed.wrapping_mul(2) + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self {
            inner,
            threshold: (loss.probability.clamp(0.0, 1.0) * u64::MAX as f64) as u64,
            states: [state(1), state(2)],
            dropped: [0; 2],
        }
    }
}

/// The link, and losing if it is to.
#[must_use]
pub fn losing(link: Box<dyn Link>, loss: Option<Loss>) -> Box<dyn Link> {
    match loss {
        Some(loss) => Box::new(Lossy::new(link, loss)),
        None => link,
    }
}

fn loses(threshold: u64, state: &mut u64) -> bool {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) < threshold
}

impl<L: Link> Link for Lossy<L> {
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        let (state, dropped) = (&mut self.states[0], &mut self.dropped[0]);
        let before = *dropped;
        let sent = self.inner.send(&mut |buffer| {
            loop {
                let transmit = fill(buffer)?;
                if !loses(self.threshold, state) {
                    return Some(transmit);
                }
                *dropped += 1;
            }
        })?;
        Ok(sent + (self.dropped[0] - before) as usize)
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        let (state, dropped) = (&mut self.states[1], &mut self.dropped[1]);
        self.inner.receive(&mut |ecn, datagram| {
            if loses(self.threshold, state) {
                *dropped += 1;
            } else {
                take(ecn, datagram);
            }
        })
    }

    fn wait(
        &mut self,
        timeout: Duration,
        gather: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        self.inner.wait(timeout, gather, wake)
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn dropped(&self) -> (u64, u64) {
        (self.dropped[0], self.dropped[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless;

    impl Link for Endless {
        fn send(
            &mut self,
            fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
        ) -> Result<usize, LinkError> {
            let mut buffer = [0; 8];
            let mut n = 0;
            while fill(&mut buffer).is_some() {
                n += 1;
            }
            Ok(n)
        }

        fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
            (0..1000u16).for_each(|n| take(Ecn::Ect0, &n.to_be_bytes()));
            Ok(1000)
        }

        fn wait(
            &mut self,
            _: Duration,
            _: Duration,
            _: Option<BorrowedFd<'_>>,
        ) -> Result<(), LinkError> {
            Ok(())
        }
    }

    fn arrivals(seed: u64, sends: usize) -> Vec<Vec<u8>> {
        let probability = 0.1;
        let mut link = Lossy::new(Endless, Loss { probability, seed });
        let mut left = sends;
        let sent = link.send(&mut |_| {
            left = left.checked_sub(1)?;
            Some(Transmit { len: 1, port: 1 })
        });
        assert_eq!(sent.unwrap(), sends, "losing is work done, too");
        let mut got = Vec::new();
        link.receive(&mut |_, d| got.push(d.to_vec())).unwrap();
        let (out, inward) = link.dropped();
        assert_eq!(got.len() as u64, 1000 - inward);
        assert!((50..200).contains(&inward), "{inward}");
        assert!(sends == 0 || (50..200).contains(&out), "{out}");
        got
    }

    #[test]
    fn a_seed_decides_which_are_lost_in_each_direction() {
        assert_eq!(arrivals(5, 1000), arrivals(5, 0));
        assert_ne!(arrivals(5, 0), arrivals(6, 0));
    }
}
