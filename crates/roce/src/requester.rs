//! Requester: segments messages, keeps the unacknowledged ones, retransmits by go-back-N.

use crate::Config;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use tally_wire::Time;
use tally_wire::roce::{IMMEDIATE_BYTES, Opcode, Place, Psn, RETH_BYTES, Reth, Syndrome, Verb};

/// Packets between two requests of an acknowledgement, besides the last of a message.
const ASK_EVERY: u32 = 32;

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Address and key of the peer's memory: a WRITE. None: a SEND.
    pub to: Option<(u64, u32)>,
    /// Immediate data for the receiver.
    pub immediate: Option<u32>,
}

/// Number of a message: how many were posted on the connection before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Posted(pub u64);

/// A message whose packets are not all acknowledged.
#[derive(Debug)]
struct Pending {
    message: Message,
    number: Posted,
    /// PSN of its first packet.
    first: Psn,
    packets: u32,
}

/// One packet to send.
#[derive(Debug)]
pub(crate) struct Part {
    /// Which of the pending messages.
    at: usize,
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) ack_requested: bool,
    pub(crate) payload: Range<usize>,
    reth: Option<Reth>,
    immediate: Option<u32>,
}

impl Part {
    /// The headers between the BTH and the payload, and their length.
    pub(crate) fn extended(&self) -> ([u8; RETH_BYTES + IMMEDIATE_BYTES], usize) {
        let mut all = [0; RETH_BYTES + IMMEDIATE_BYTES];
        let mut bytes = 0;
        if let Some(reth) = self.reth {
            all[..RETH_BYTES].copy_from_slice(&reth.emit());
            bytes += RETH_BYTES;
        }
        if let Some(immediate) = self.immediate {
            all[bytes..bytes + IMMEDIATE_BYTES].copy_from_slice(&immediate.to_be_bytes());
            bytes += IMMEDIATE_BYTES;
        }
        (all, bytes)
    }
}

/// Error: the last of the retries has timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unanswered;

#[derive(Debug)]
pub(crate) struct Requester {
    mtu: usize,
    in_flight: u32,
    timeout: Duration,
    retries: u32,
    /// In the order of their PSNs.
    pending: VecDeque<Pending>,
    posted: u64,
    /// The first PSN that is unacknowledged, the next to send, the first that was never sent, and
    /// the first of the next message.
    oldest: Psn,
    next: Psn,
    fresh: Psn,
    end: Psn,
    /// When all from `oldest` on is retransmitted.
    deadline: Option<Time>,
    /// End of the wait that an RNR NAK asked for.
    waits_until: Option<Time>,
    timeouts: u32,
}

impl Requester {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            mtu: config.mtu,
            in_flight: config.in_flight,
            timeout: config.timeout,
            retries: config.retries,
            pending: VecDeque::new(),
            posted: 0,
            oldest: config.first,
            next: config.first,
            fresh: config.first,
            end: config.first,
            deadline: None,
            waits_until: None,
            timeouts: 0,
        }
    }

    pub(crate) fn post(&mut self, message: Message) -> Posted {
        let number = Posted(self.posted);
        self.posted += 1;
        // A message without a byte is one packet.
        let packets = message.bytes.len().div_ceil(self.mtu).max(1) as u32;
        let first = self.end;
        self.end = first.after(packets);
        self.pending.push_back(Pending {
            message,
            number,
            first,
            packets,
        });
        number
    }

    /// Writes a part of a message that may be sent again.
    pub(crate) fn overwrite(&mut self, number: Posted, at: usize, bytes: &[u8]) {
        let of = |it: &&mut Pending| it.number == number;
        if let Some(pending) = self.pending.iter_mut().find(of) {
            pending.message.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    pub(crate) fn unacknowledged(&self) -> usize {
        self.pending.len()
    }

    /// The next packet to send, and whether it is a retransmission.
    pub(crate) fn poll_part(&mut self, now: Time) -> Option<(Part, bool)> {
        if self.waits_until.is_some_and(|until| now < until) {
            return None;
        }
        self.waits_until = None;
        if self.next == self.end || self.next.since(self.oldest) >= self.in_flight {
            return None;
        }
        let is_in = |it: &Pending| self.next.since(it.first) < it.packets;
        let at = self.pending.iter().position(is_in)?;
        let part = self.part(at);
        let is_again = self.next.is_before(self.fresh);
        self.next = self.next.after(1);
        if !is_again {
            self.fresh = self.next;
        }
        if self.deadline.is_none() {
            self.deadline = Some(now.after(self.timeout));
        }
        Some((part, is_again))
    }

    fn part(&self, at: usize) -> Part {
        let pending = &self.pending[at];
        let message = &pending.message;
        let index = self.next.since(pending.first);
        let (is_first, is_last) = (index == 0, index + 1 == pending.packets);
        let place = match (is_first, is_last) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, true) => Place::Last,
            (false, false) => Place::Middle,
        };
        let verb = message.to.map_or(Verb::Send, |_| Verb::Write);
        let immediate = message.immediate.filter(|_| is_last);
        let start = index as usize * self.mtu;
        let is_window_full = self.next.since(self.oldest) + 1 == self.in_flight;
        Part {
            at,
            opcode: Opcode::Message {
                verb,
                place,
                has_immediate: immediate.is_some(),
            },
            psn: self.next,
            ack_requested: is_last || is_window_full || self.next.get().is_multiple_of(ASK_EVERY),
            payload: start..(start + self.mtu).min(message.bytes.len()),
            reth: message.to.filter(|_| is_first).map(|(address, rkey)| Reth {
                address,
                rkey,
                bytes: message.bytes.len() as u32,
            }),
            immediate,
        }
    }

    pub(crate) fn payload(&self, part: &Part) -> &[u8] {
        &self.pending[part.at].message.bytes[part.payload.clone()]
    }

    /// Takes an acknowledgement of `psn`; returns the messages that it completes.
    pub(crate) fn acknowledged(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        now: Time,
    ) -> impl Iterator<Item = Posted> {
        // What has arrived: up to `psn`, or before it if that one is refused.
        let arrived = match syndrome {
            Syndrome::Ack(_) => psn.after(1),
            _ => psn,
        };
        // A stale acknowledgement is of nothing that is in flight.
        let is_news = arrived.since(self.oldest) <= self.fresh.since(self.oldest);
        let mut complete = Vec::new();
        if is_news {
            if arrived != self.oldest {
                self.oldest = arrived;
                self.timeouts = 0;
            }
            while let Some(front) = self.pending.front()
                && self.oldest.since(front.first) >= front.packets
            {
                complete.push(front.number);
                self.pending.pop_front();
            }
            if self.next.is_before(self.oldest) {
                self.next = self.oldest;
            }
            match syndrome {
                Syndrome::SequenceError => self.next = self.oldest,
                Syndrome::NotReady(code) => {
                    self.next = self.oldest;
                    self.waits_until = Some(now.after(not_ready_time(code)));
                }
                Syndrome::Ack(_) | Syndrome::Fatal(_) => {}
            }
            let is_waiting = self.oldest != self.fresh;
            self.deadline = is_waiting.then(|| now.after(self.timeout));
        }
        complete.into_iter()
    }

    pub(crate) fn timeout(&self) -> Option<Time> {
        match (self.deadline, self.waits_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) -> Result<(), Unanswered> {
        if self.waits_until.is_some_and(|until| until <= now) {
            self.waits_until = None;
        }
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        if self.timeouts == self.retries {
            return Err(Unanswered);
        }
        self.timeouts += 1;
        self.next = self.oldest;
        self.deadline = Some(now.after(self.timeout));
        Ok(())
    }
}

/// The time before a retry that an RNR NAK asks for, by its code (InfiniBand, RNR NAK timer).
fn not_ready_time(code: u8) -> Duration {
    /// In units of 10 us.
    const TIMES: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10 * TIMES[usize::from(code & 0x1f)])
}

#[cfg(test)]
mod tests {
    use super::not_ready_time;
    use std::time::Duration;

    #[test]
    fn codes_of_not_ready_are_those_of_infiniband() {
        let micros = [
            (0, 655_360),
            (1, 10),
            (5, 60),
            (12, 640),
            (18, 5120),
            (31, 491_520),
        ];
        for (code, time) in micros {
            assert_eq!(not_ready_time(code), Duration::from_micros(time), "{code}");
        }
    }
}
