//! One worker of a SwitchML session, without I/O: what it sends, what it makes of what it gets, and
//! when.
//!
//! # How it works
//!
//! A tensor is cut into blocks of a packet's size. Packets of a client have *places* that follow
//! each other round a circle of twice its window: the slots of its range in one set, then the same
//! ones in the other. The places continue from one tensor to the next, because the switch tells
//! a slot's two uses apart by their sets only.
//!
//! A packet may leave when the result of the one a window before it, which had the same slot, has
//! come: to send in one set says that the result of the other is no longer needed. Of floats there
//! are more packets than blocks: the first *batch* (a window of packets, or fewer if there are
//! fewer blocks) brings no elements, only exponents. Packet k brings the exponent of block k
//! and the elements of block k − batch, so it has to wait for the result of packet k − batch, too,
//! which has the exponent that all workers scale by.
//!
//! Results replace the inputs in place. A packet whose result is not there in time leaves once
//! more: the switch takes it if it was lost, and answers it if the result was.
//!
//! # Polling
//!
//! After each call of anything: [`poll_transmit`](Client::poll_transmit) until it has nothing more,
//! then [`poll_timeout`](Client::poll_timeout), and [`take`](Client::take) when there is a result.
//!
//! # The catches
//!
//! - All workers of a session must bring tensors of the same type and length in the same order,
//!   with the same slots, window and first number of a job: nothing in the protocol tells them
//!   apart.
//! - The way to the switch must keep the order: a copy of a packet that arrives when all have moved
//!   on by a whole set is a new contribution to the switch. What comes back may come in any order.
//! - The published client has the second of the two rules for floats by virtue of frames arriving
//!   in order only.

use super::quantiser::{self, LIMIT, Scale};
use std::collections::VecDeque;
use std::time::Duration;
use tally_wire::Time;
use tally_wire::switchml::{ELEMENT_BYTES, HEADER_BYTES, Header, MAX_SLOTS, Size};
use thiserror::Error;

/// Upper bound of doublings of the timeout. Each late result doubles it (backoff), until a result
/// arrives for a packet that was sent once: else a path longer than the timeout would never be
/// measured (RFC 6298).
const DOUBLINGS_MAX: u32 = 8;

/// What a client is told.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Elements of a packet.
    pub size: Size,
    /// Workers of the session.
    pub workers: u8,
    /// The first slot of its range.
    pub first_slot: u16,
    /// Packets in flight at most: the slots of its range.
    pub window: u16,
    /// The number of its first tensor, of which packets carry the low byte.
    pub first_job: u8,
    /// How long to wait for a result at least before a packet leaves once more.
    pub patience_min: Duration,
    /// How long at most.
    pub patience_max: Duration,
}

impl Config {
    /// From slot 0 on, and as patient as suits a network in one room.
    #[must_use]
    pub const fn new(size: Size, workers: u8) -> Self {
        Self {
            size,
            workers,
            first_slot: 0,
            window: 64,
            first_job: 0,
            patience_min: Duration::from_millis(5),
            patience_max: Duration::from_secs(1),
        }
    }
}

/// What is summed.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// Integers, whose sums wrap.
    I32(Vec<i32>),
    /// Floats, which are quantised.
    F32(Vec<f32>),
}

impl Tensor {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a tensor is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum Refusal {
    /// One at a time.
    #[error("the tensor before is not finished")]
    Busy,
    /// Packet numbers have 32 bits.
    #[error("{0} elements are too many for one tensor")]
    Length(usize),
    /// See [`quantiser`].
    #[error("element {at} is {value}: floats must be finite and below 2^127")]
    Magnitude {
        /// Which element.
        at: usize,
        /// What it is.
        value: f32,
    },
}

/// What has become of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A result that was missing.
    Result,
    /// A result that is there already.
    Duplicate,
    /// Nothing that this client waits for.
    Foreign,
}

/// What a client did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets, each counted as often as it left.
    pub sent: u64,
    /// Of these, those that had left before.
    pub sent_again: u64,
    /// Results that were missing.
    pub results: u64,
    /// Results that were there already.
    pub duplicates: u64,
    /// Datagrams that are no answer to anything.
    pub foreign: u64,
}

/// How a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packet {
    /// Must wait for another's result.
    Waiting,
    /// About to leave, and whether it has left before.
    Leaving { again: bool },
    /// On its way since, and whether it left more than once.
    Out { since: Time, again: bool },
    /// Its result is there.
    Done,
}

/// A tensor that is being summed.
struct Job {
    tensor: Tensor,
    /// Blocks of the tensor, the last one filled up.
    blocks: u32,
    /// Packets without elements at the start; 0 for integers.
    extra: u32,
    /// Packets that leave at once.
    batch: u32,
    packets: Vec<Packet>,
    done: u32,
    /// By block, once the result that brings it is there.
    exponents: Vec<i8>,
    leaving: VecDeque<u32>,
    /// What has left, by time. Those whose state has another time have left again since.
    out: VecDeque<(Time, u32)>,
}

/// One worker of a session.
pub struct Client {
    config: Config,
    /// The place of the next tensor's first packet.
    first_place: u32,
    number: u8,
    job: Option<Job>,
    stats: Stats,
    /// How long results take: smoothed, and how much that varies (RFC 6298).
    smoothed: Option<(Duration, Duration)>,
    doublings: u32,
    doubled: Time,
}

impl Client {
    /// A client without a tensor.
    ///
    /// # Panics
    /// If the window is empty, or beyond the slots that the header can name.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let slots = u32::from(config.first_slot) + u32::from(config.window);
        assert!(config.window > 0 && slots <= MAX_SLOTS.into(), "{config:?}");
        Self {
            config,
            first_place: 0,
            number: config.first_job,
            job: None,
            stats: Stats::default(),
            smoothed: None,
            doublings: 0,
            doubled: Time(0),
        }
    }

    /// What it did.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Takes a tensor to be summed with those of the other workers.
    ///
    /// # Errors
    /// Why it does not.
    pub fn submit(&mut self, tensor: Tensor) -> Result<(), Refusal> {
        if self.job.is_some() {
            return Err(Refusal::Busy);
        }
        let elements = self.config.size.elements();
        let blocks = tensor.len().div_ceil(elements);
        let blocks = u32::try_from(blocks).ok().filter(|n| *n < u32::MAX / 2);
        let blocks = blocks.ok_or(Refusal::Length(tensor.len()))?;
        let batch = blocks.min(self.config.window.into());
        let extra = match &tensor {
            Tensor::I32(_) => 0,
            Tensor::F32(values) => {
                let at = values.iter().position(|x| x.is_nan() || x.abs() >= LIMIT);
                if let Some(at) = at {
                    let value = values[at];
                    return Err(Refusal::Magnitude { at, value });
                }
                batch
            }
        };
        let mut job = Job {
            tensor,
            blocks,
            extra,
            batch,
            packets: vec![Packet::Waiting; (blocks + extra) as usize],
            done: 0,
            exponents: vec![0; if extra > 0 { blocks as usize } else { 0 }],
            leaving: VecDeque::new(),
            out: VecDeque::new(),
        };
        for packet in 0..batch {
            job.leave(packet, false);
        }
        self.job = Some(job);
        Ok(())
    }

    /// The tensor, if all of its sums are there.
    pub fn take(&mut self) -> Option<Tensor> {
        let job = self.job.take_if(|job| job.is_done())?;
        let circle = 2 * u32::from(self.config.window);
        self.first_place = (self.first_place + job.packets.len() as u32 % circle) % circle;
        self.number = self.number.wrapping_add(1);
        Some(job.tensor)
    }

    /// How many results there are, of how many.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        let job = self.job.as_ref();
        job.map_or((0, 0), |job| (job.done, job.packets.len() as u32))
    }

    /// Bytes of its datagrams.
    #[must_use]
    pub fn datagram_bytes(&self) -> usize {
        HEADER_BYTES + self.config.size.payload_bytes()
    }

    /// Slot and set of a packet.
    fn place(&self, packet: u32) -> (u16, bool) {
        let window = u32::from(self.config.window);
        let place = (self.first_place + packet % (2 * window)) % (2 * window);
        let slot = self.config.first_slot + (place % window) as u16;
        (slot, place >= window)
    }

    /// Writes the next datagram that is to leave to the start of `out`, and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`datagram_bytes`](Self::datagram_bytes).
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        let job = self.job.as_mut()?;
        let (packet, again) = loop {
            let packet = job.leaving.pop_front()?;
            // Its result may have come meanwhile.
            if let Packet::Leaving { again } = job.packets[packet as usize] {
                break (packet, again);
            }
        };
        job.packets[packet as usize] = Packet::Out { since: now, again };
        job.out.push_back((now, packet));
        self.stats.sent += 1;
        self.stats.sent_again += u64::from(again);
        let (slot, set) = self.place(packet);
        let bytes = self.datagram_bytes();
        let out = &mut out[..bytes];
        let job = self.job.as_ref()?;
        let size = self.config.size;
        let exponent = job.fill(packet, size, self.config.workers, &mut out[HEADER_BYTES..]);
        let header = Header {
            size,
            job: self.number,
            packet: packet.to_ne_bytes(),
            slot,
            set,
            exponents: [exponent, 0],
        };
        header.emit(out);
        Some(bytes)
    }

    /// Takes a datagram from the switch.
    pub fn handle(&mut self, now: Time, datagram: &[u8]) -> Taken {
        let taken = self.take_in(now, datagram);
        match taken {
            Taken::Result => self.stats.results += 1,
            Taken::Duplicate => self.stats.duplicates += 1,
            Taken::Foreign => self.stats.foreign += 1,
        }
        taken
    }

    fn take_in(&mut self, now: Time, datagram: &[u8]) -> Taken {
        let Ok(header) = Header::parse(datagram) else {
            return Taken::Foreign;
        };
        let packet = u32::from_ne_bytes(header.packet);
        let place = self.place(packet);
        let Some(job) = self.job.as_mut() else {
            return Taken::Foreign;
        };
        let Some(&state) = job.packets.get(packet as usize) else {
            return Taken::Foreign;
        };
        let is_ours = header.size == self.config.size
            && header.job == self.number
            && (header.slot, header.set) == place;
        if !is_ours {
            return Taken::Foreign;
        }
        match state {
            Packet::Waiting | Packet::Leaving { again: false } => return Taken::Foreign,
            Packet::Done => return Taken::Duplicate,
            Packet::Leaving { again: true } | Packet::Out { again: true, .. } => {}
            // What has left twice does not say to which of the two this is the answer (Karn).
            Packet::Out {
                since,
                again: false,
            } => {
                let took = now.since(since);
                let (mean, varies) = self.smoothed.unwrap_or((took, took / 2));
                let off = mean.abs_diff(took);
                self.smoothed = Some(((mean * 7 + took) / 8, (varies * 3 + off) / 4));
                self.doublings = 0;
            }
        }
        let elements = &datagram[HEADER_BYTES..];
        job.finish(packet, &header, self.config.workers, elements);
        job.release(packet, self.config.window.into());
        Taken::Result
    }

    /// How long to wait for a result.
    fn patience(&self) -> Duration {
        let Config {
            patience_min,
            patience_max,
            ..
        } = self.config;
        // Without a measurement it may be anything.
        let usual = self
            .smoothed
            .map_or(patience_min * 4, |(mean, varies)| mean + varies * 4);
        let patience = usual.clamp(patience_min, patience_max);
        (patience * (1 << self.doublings)).min(patience_max)
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn poll_timeout(&mut self) -> Option<Time> {
        let patience = self.patience();
        let (since, _) = self.job.as_mut()?.oldest()?;
        Some(since.after(patience))
    }

    /// Has packets leave again whose results are late.
    pub fn handle_timeout(&mut self, now: Time) {
        let patience = self.patience();
        let Some(job) = self.job.as_mut() else {
            return;
        };
        let mut is_late = false;
        while let Some((since, packet)) = job.oldest() {
            if since.after(patience) > now {
                break;
            }
            job.out.pop_front();
            job.leave(packet, true);
            is_late = true;
        }
        // Those of one window, which are late one after the other, count as one.
        if is_late && now.since(self.doubled) >= patience {
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
            self.doubled = now;
        }
    }
}

impl Job {
    fn is_done(&self) -> bool {
        self.done as usize == self.packets.len()
    }

    fn leave(&mut self, packet: u32, again: bool) {
        self.packets[packet as usize] = Packet::Leaving { again };
        self.leaving.push_back(packet);
    }

    /// The packet that has been in flight longest.
    fn oldest(&mut self) -> Option<(Time, u32)> {
        while let Some(&(since, packet)) = self.out.front() {
            if let Packet::Out { since: last, .. } = self.packets[packet as usize]
                && last == since
            {
                return Some((since, packet));
            }
            self.out.pop_front();
        }
        None
    }

    fn is_packet_done(&self, packet: u32) -> bool {
        self.packets[packet as usize] == Packet::Done
    }

    /// The elements of the tensor that are in a block.
    fn range(&self, block: u32, size: Size) -> std::ops::Range<usize> {
        let start = block as usize * size.elements();
        start..(start + size.elements()).min(self.tensor.len())
    }

    /// Writes a packet's elements, and returns its exponent.
    fn fill(&self, packet: u32, size: Size, workers: u8, out: &mut [u8]) -> i8 {
        let block = packet.checked_sub(self.extra);
        let range = block.map_or(0..0, |block| self.range(block, size));
        let (filled, rest) = out.split_at_mut(range.len() * ELEMENT_BYTES);
        rest.fill(0);
        let words = filled.chunks_exact_mut(ELEMENT_BYTES);
        match &self.tensor {
            Tensor::I32(values) => {
                for (word, value) in words.zip(&values[range]) {
                    word.copy_from_slice(&value.to_be_bytes());
                }
                0
            }
            Tensor::F32(values) => {
                if let Some(block) = block {
                    let scale = Scale::new(self.exponents[block as usize], workers);
                    for (word, value) in words.zip(&values[range]) {
                        word.copy_from_slice(&scale.quantise(*value).to_be_bytes());
                    }
                }
                if packet < self.blocks {
                    quantiser::exponent(&values[self.range(packet, size)])
                } else {
                    0
                }
            }
        }
    }

    /// A packet's result is there.
    fn finish(&mut self, packet: u32, header: &Header, workers: u8, elements: &[u8]) {
        self.packets[packet as usize] = Packet::Done;
        self.done += 1;
        let block = packet.checked_sub(self.extra);
        let range = block.map_or(0..0, |block| self.range(block, header.size));
        let sums = elements.as_chunks::<ELEMENT_BYTES>().0.iter();
        let sums = sums.map(|word| i32::from_be_bytes(*word));
        match &mut self.tensor {
            Tensor::I32(values) => {
                for (value, sum) in values[range].iter_mut().zip(sums) {
                    *value = sum;
                }
            }
            Tensor::F32(values) => {
                if let Some(block) = block {
                    let scale = Scale::new(self.exponents[block as usize], workers);
                    for (value, sum) in values[range].iter_mut().zip(sums) {
                        *value = scale.restore(sum);
                    }
                }
                if let Some(exponent) = self.exponents.get_mut(packet as usize) {
                    *exponent = header.exponents[0];
                }
            }
        }
    }

    /// Has those packets leave for which the result of `packet` was missing.
    fn release(&mut self, packet: u32, window: u32) {
        let [first, second] = [self.batch, window].map(|distance| packet.checked_add(distance));
        for next in first.into_iter().chain(second) {
            let is_there = |distance| next < distance || self.is_packet_done(next - distance);
            if (next as usize) < self.packets.len()
                && self.packets[next as usize] == Packet::Waiting
                && is_there(self.batch)
                && is_there(window)
            {
                self.leave(next, false);
            }
        }
    }
}

#[cfg(test)]
mod tests;
