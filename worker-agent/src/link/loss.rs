//! Losing datagrams on purpose, the same ones for the same seed, and counting those that pass.

use super::{Link, LinkError};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tally_endpoint::{Ecn, Transmit};
use tally_schema::agent::report::{Losses, Traffic};
use tally_wire::{Header, Kind, Mac};

/// How much is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The probability with which each datagram is lost, or a burst of losses begins.
    pub probability: f64,
    /// Datagrams lost in a row, at least 1.
    pub burst: u32,
    /// Which datagrams may be lost.
    pub direction: Direction,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Loss {
    /// Independent loss of each datagram, in both directions.
    #[must_use]
    pub fn of_each(probability: f64, seed: u64) -> Self {
        Self {
            probability,
            burst: 1,
            direction: Direction::Both,
            seed,
        }
    }
}

/// Datagrams by their direction, as the host sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// All datagrams
    #[default]
    Both,
    /// Datagrams to the switch
    Out,
    /// Datagrams from the switch
    In,
}

/// One direction of a link.
struct Way {
    /// A datagram is lost when its random number is below.
    threshold: u64,
    /// xorshift64*, its own, so that one direction does not change the other.
    state: u64,
    burst: u32,
    /// Datagrams of the present burst that are still to be lost.
    left: u32,
    /// Datagrams and the lost ones of them, by kind; the last entry is of those without a header.
    kinds: [Passed; KINDS],
}

#[derive(Clone, Copy, Default)]
struct Passed {
    all: u64,
    lost: u64,
}

const KINDS: usize = Kind::ALL.len() + 1;

impl Way {
    fn new(loss: Loss, number: u64, is_lossy: bool) -> Self {
        let share = if is_lossy { loss.probability } else { 0.0 };
        Self {
            threshold: (share.clamp(0.0, 1.0) * u64::MAX as f64) as u64,
            // Not 0, and different for neighbouring seeds.
            state: (loss.seed.wrapping_mul(2) + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            burst: loss.burst.max(1),
            left: 0,
            kinds: [Passed::default(); KINDS],
        }
    }

    /// Whether the datagram is lost; it is counted.
    fn loses(&mut self, datagram: &[u8]) -> bool {
        let lost = if self.left > 0 {
            self.left -= 1;
            true
        } else if self.draw() < self.threshold {
            self.left = self.burst - 1;
            true
        } else {
            false
        };
        let passed = &mut self.kinds[kind_index(datagram)];
        passed.all += 1;
        passed.lost += u64::from(lost);
        lost
    }

    fn draw(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn lost(&self) -> u64 {
        self.kinds.iter().map(|passed| passed.lost).sum()
    }
}

fn kind_index(datagram: &[u8]) -> usize {
    let kind = Header::parse(datagram).ok().map(|header| header.kind);
    let known = kind.and_then(|kind| Kind::ALL.iter().position(|&one| one == kind));
    known.unwrap_or(KINDS - 1)
}

/// A link that loses.
pub struct Lossy<L> {
    inner: L,
    loss: Loss,
    out: Way,
    inward: Way,
}

impl<L: Link> Lossy<L> {
    /// Makes `inner` lose.
    pub fn new(inner: L, loss: Loss) -> Self {
        Self {
            inner,
            loss,
            out: Way::new(loss, 1, loss.direction != Direction::In),
            inward: Way::new(loss, 2, loss.direction != Direction::Out),
        }
    }

    fn traffic(&self, kinds: impl Iterator<Item = usize>) -> Traffic {
        kinds.fold(Traffic::default(), |all, kind| Traffic {
            sent: all.sent + self.out.kinds[kind].all,
            sent_lost: all.sent_lost + self.out.kinds[kind].lost,
            received: all.received + self.inward.kinds[kind].all,
            received_lost: all.received_lost + self.inward.kinds[kind].lost,
        })
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

impl<L: Link> Link for Lossy<L> {
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        let way = &mut self.out;
        let before = way.lost();
        let sent = self.inner.send(&mut |buffer| {
            loop {
                let transmit = fill(buffer)?;
                if !way.loses(&buffer[..transmit.len]) {
                    return Some(transmit);
                }
            }
        })?;
        Ok(sent + (self.out.lost() - before) as usize)
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        let way = &mut self.inward;
        self.inner.receive(&mut |ecn, datagram| {
            if !way.loses(datagram) {
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

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    fn pin(&mut self, switch_mac: Option<Mac>) {
        self.inner.pin(switch_mac);
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn losses(&self) -> Option<Losses> {
        let by_kind = Kind::ALL.iter().enumerate().map(|(at, kind)| {
            let name = format!("{kind:?}").to_lowercase();
            (name, self.traffic(at..=at))
        });
        let elements = (0..Kind::ALL.len()).filter(|&at| Kind::ALL[at].has_elements());
        Some(Losses {
            probability: self.loss.probability,
            burst: self.loss.burst,
            direction: self.loss.direction.into(),
            seed: self.loss.seed,
            sent: self.out.lost(),
            received: self.inward.lost(),
            elements: self.traffic(elements),
            by_kind: by_kind.filter(|(_, t)| t.sent + t.received > 0).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use tally_wire::{Element, Epoch, Flags, FragmentId, JobId, Rank};

    const NUMBER_AT: usize = 8;

    /// A NACK or a contribution of one unit, by turns, with this number as its fragment.
    fn datagram(number: u32) -> Vec<u8> {
        let kind = [Kind::Nack, Kind::Data][number as usize % 2];
        let has_elements = kind.has_elements();
        let header = Header {
            kind,
            flags: Flags::NONE,
            priority: 0,
            element: if has_elements {
                Element::I32
            } else {
                Element::None
            },
            job: JobId(1),
            epoch: Epoch(1),
            fragment: FragmentId(number),
            rank: Rank(0),
            units: u8::from(has_elements),
            bitmap: u64::from(has_elements),
            tag: tally_wire::AuthTag::NONE,
        };
        let mut out = vec![0; tally_wire::header::HEADER_BYTES + header.payload_bytes()];
        header.emit(&mut out);
        out
    }

    fn number(datagram: &[u8]) -> u32 {
        u32::from_be_bytes(datagram[NUMBER_AT..NUMBER_AT + 4].try_into().unwrap())
    }

    /// Takes all that is sent, and has 1000 datagrams to receive.
    #[derive(Default)]
    struct Endless {
        sent: Vec<u32>,
        pin: Rc<Cell<Option<Mac>>>,
    }

    impl Link for Endless {
        fn send(
            &mut self,
            fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
        ) -> Result<usize, LinkError> {
            let mut buffer = [0; 128];
            let before = self.sent.len();
            while fill(&mut buffer).is_some() {
                self.sent.push(number(&buffer));
            }
            Ok(self.sent.len() - before)
        }

        fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
            (0..1000).for_each(|n| take(Ecn::Ect0, &datagram(n)));
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

        fn pin(&mut self, switch_mac: Option<Mac>) {
            self.pin.set(switch_mac);
        }
    }

    #[test]
    fn a_pin_reaches_the_link_that_loses() {
        let pin = Rc::new(Cell::new(None));
        let endless = Endless {
            pin: pin.clone(),
            ..Endless::default()
        };
        let mut link = losing(Box::new(endless), Some(loss(1)));
        let mac = Some(Mac([2, 0, 0, 0, 0, 0xfe]));
        link.pin(mac);
        assert_eq!(pin.get(), mac);
        link.pin(None);
        assert_eq!(pin.get(), None);
    }

    /// Numbers delivered of `sends` sent and of 1000 received, and the losses.
    fn pass(loss: Loss, sends: u32) -> (Vec<u32>, Vec<u32>, Losses) {
        let mut link = Lossy::new(Endless::default(), loss);
        let mut numbers = 0..sends;
        let sent = link.send(&mut |buffer| {
            let datagram = datagram(numbers.next()?);
            buffer[..datagram.len()].copy_from_slice(&datagram);
            Some(Transmit {
                len: datagram.len(),
                port: 1,
            })
        });
        assert_eq!(sent.unwrap(), sends as usize, "losing is work done, too");
        let mut got = Vec::new();
        link.receive(&mut |_, d| got.push(number(d))).unwrap();
        let losses = link.losses().unwrap();
        assert_eq!(link.inner.sent.len() as u64, u64::from(sends) - losses.sent);
        assert_eq!(got.len() as u64, 1000 - losses.received);
        (link.inner.sent, got, losses)
    }

    fn loss(seed: u64) -> Loss {
        Loss::of_each(0.1, seed)
    }

    #[test]
    fn a_seed_decides_which_are_lost_in_each_direction() {
        let (out, inward, losses) = pass(loss(5), 1000);
        assert!((50..200).contains(&losses.sent), "{}", losses.sent);
        assert!((50..200).contains(&losses.received), "{}", losses.received);
        assert_eq!(
            (&out, &inward),
            (&pass(loss(5), 1000).0, &pass(loss(5), 0).1)
        );
        assert_ne!(inward, pass(loss(6), 0).1);
    }

    #[test]
    fn one_direction_loses_the_same_without_the_other() {
        let (out, inward, _) = pass(loss(5), 1000);
        let all: Vec<u32> = (0..1000).collect();
        for (direction, expected) in [
            (Direction::Out, (&out, &all)),
            (Direction::In, (&all, &inward)),
        ] {
            let loss = Loss {
                direction,
                ..loss(5)
            };
            let (out, inward, _) = pass(loss, 1000);
            assert_eq!((&out, &inward), expected, "{direction:?}");
        }
    }

    #[test]
    fn bursts_are_lost_whole_and_begin_with_the_probability() {
        let loss = Loss {
            probability: 0.01,
            burst: 16,
            ..loss(3)
        };
        let (out, _, losses) = pass(loss, 10_000);
        // 9,999 ends the last run.
        let ends = out.iter().copied().chain([10_000]);
        let mut runs = Vec::new();
        let mut next = 0;
        for number in ends {
            if number > next && number < 10_000 {
                runs.push(number - next);
            }
            next = number + 1;
        }
        // Bursts that follow each other at once make one run.
        assert!(runs.iter().all(|run| run % 16 == 0), "{runs:?}");
        let bursts = losses.sent / 16;
        assert!((50..150).contains(&bursts), "{bursts}");
    }

    #[test]
    fn what_passes_is_counted_by_kind() {
        let (_, _, losses) = pass(loss(5), 2000);
        let (data, nack) = (losses.by_kind["data"], losses.by_kind["nack"]);
        assert_eq!((data.sent, nack.sent), (1000, 1000));
        assert_eq!((data.received, nack.received), (500, 500));
        assert_eq!(data.sent_lost + nack.sent_lost, losses.sent);
        assert_eq!(data.received_lost + nack.received_lost, losses.received);
        assert_eq!(
            losses.elements, data,
            "of the two only contributions have elements"
        );
        assert_eq!(losses.by_kind.len(), 2);
    }
}
