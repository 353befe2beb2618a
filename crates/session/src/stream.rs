//! The fragments of a session: collectives one behind the other, each with its descriptor in front.
//!
//! A collective is *live* from its submission until its results are all in its buffer, its
//! descriptor and those of all before it agree (D-4), and the buffer has gone back. Descriptors are
//! judged in order: where ranks bring collectives of different lengths, what follows the first that
//! differs is of no meaning.
//!
//! Sums are made in place: a contribution is read from the buffer until the result of its fragment
//! overwrites it, and the session asks for no contribution that has a result. A result that another
//! worker lost comes from the buffer while the collective is live, and after that from a copy, made
//! when it ends. What the buffer does not give back bit by bit is copied when it comes.

use crate::collective::{Collective, Done, Elements, Ticket};
use crate::descriptor::{self, Mismatch, Record, Table};
use crate::kept::ResultCache;
use crate::payload::{Message, Tools};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use tally_endpoint::{Contribution, Delivery, Gradients, Time};
use tally_wire::Element;

/// A collective whose results are not all there, or that waits for one that is.
struct Live {
    ticket: Ticket,
    collective: Collective,
    /// Until it goes back.
    buffer: Option<Box<dyn Elements>>,
    record: Record,
    table: Table,
    message: Message,
    /// Its first fragment, its first behind the descriptor, and the one behind its last.
    first: u64,
    data: u64,
    end: u64,
    /// Fragments without a result.
    left: u64,
    submitted: Time,
}

/// All that was submitted to a session, as fragments.
pub(crate) struct Stream {
    rank: u16,
    workers: u16,
    payload_bytes: usize,
    tools: Tools,
    /// In the order of their fragments.
    live: VecDeque<Live>,
    /// Collectives that were submitted.
    submitted: u64,
    /// The first whose descriptor is not known to agree.
    judged: u64,
    /// One past the last fragment.
    end: u64,
    /// One past the last fragment that was contributed to.
    contributed: u64,
    kept: ResultCache,
    done: VecDeque<Done>,
    mismatch: Option<Box<Mismatch>>,
    /// The moment of what is being handled.
    now: Time,
    /// From contribution to result.
    latency_ns: Histogram<u64>,
}

/// Latencies above this count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// For latencies in nanoseconds, with three digits.
fn latencies() -> Histogram<u64> {
    // The bounds are always valid.
    Histogram::new_with_bounds(100, LATENCY_NS_MAX, 3)
        .unwrap_or_else(|_| unreachable!("constant bounds"))
}

impl Stream {
    pub(crate) fn new(rank: u16, workers: u16, window: u16, payload_bytes: usize) -> Self {
        Self {
            rank,
            workers,
            payload_bytes,
            tools: Tools::new(rank, workers, payload_bytes),
            live: VecDeque::new(),
            submitted: 0,
            judged: 0,
            end: 0,
            contributed: 0,
            kept: ResultCache::new(window, payload_bytes),
            done: VecDeque::new(),
            mismatch: None,
            now: Time(0),
            latency_ns: latencies(),
        }
    }

    /// Appends a collective that makes sense. Returns its ticket and the number of its fragments.
    pub(crate) fn push(
        &mut self,
        now: Time,
        collective: Collective,
        buffer: Box<dyn Elements>,
    ) -> (Ticket, u64) {
        let bytes = buffer.bytes();
        let of = (bytes, buffer.parts() as u16);
        let message = Message::new(&collective, of, self.workers, self.payload_bytes);
        let data = self.end + descriptor::fragments(self.workers, self.payload_bytes);
        let end = data + message.fragments();
        let ticket = Ticket(self.submitted);
        self.live.push_back(Live {
            ticket,
            record: Record::new(&collective, bytes),
            table: Table::new(self.workers, self.payload_bytes),
            collective,
            buffer: Some(buffer),
            message,
            first: self.end,
            data,
            end,
            left: end - self.end,
            submitted: now,
        });
        self.submitted += 1;
        let fragments = end - self.end;
        self.end = end;
        (ticket, fragments)
    }

    /// What comes next comes `now`.
    pub(crate) fn at(&mut self, now: Time) {
        self.now = now;
    }

    pub(crate) fn pop_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    pub(crate) fn latencies(&self) -> &Histogram<u64> {
        &self.latency_ns
    }

    /// Fragments of all that was submitted.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether all that was submitted is done.
    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Collectives that were submitted and are not done.
    pub(crate) fn waiting(&self) -> usize {
        self.live.iter().filter(|l| l.buffer.is_some()).count()
    }

    /// The first collective that ranks do not agree on. From then on nothing new is contributed.
    pub(crate) fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_deref()
    }

    pub(crate) fn take_mismatch(&mut self) -> Option<Box<Mismatch>> {
        self.mismatch.take()
    }

    /// The name of the collective that fragment `seq` is of.
    pub(crate) fn name_of(&self, seq: u64) -> Option<String> {
        let live = self.live.get(self.find(seq)).filter(|l| l.first <= seq)?;
        Some(live.collective.name.clone())
    }

    /// Where in `live` fragment `seq` is, if it is there.
    fn find(&self, seq: u64) -> usize {
        self.live.partition_point(|l| l.end <= seq)
    }

    /// Compares what ranks bring, as far as descriptors have come without a gap.
    fn validate(&mut self) {
        while self.mismatch.is_none() {
            let index = (self.judged - self.front()) as usize;
            let Some(live) = self.live.get(index).filter(|l| l.table.is_complete()) else {
                return;
            };
            let (ticket, collective) = (live.ticket.0, &live.collective);
            match live
                .table
                .check((self.rank, self.workers), &live.record, ticket, collective)
            {
                Ok(()) => self.judged += 1,
                Err(mismatch) => self.mismatch = Some(mismatch),
            }
            self.end_if_done(index);
        }
    }

    /// The ticket of the first that is live, or of the next to come.
    fn front(&self) -> u64 {
        self.live.front().map_or(self.submitted, |l| l.ticket.0)
    }

    /// Hands a buffer back if nothing is missing.
    fn end_if_done(&mut self, index: usize) {
        let live = &mut self.live[index];
        if live.left > 0 || live.ticket.0 >= self.judged {
            return;
        }
        let Some(buffer) = live.buffer.take() else {
            return;
        };
        if live.message.is_recoverable() {
            let window = self.kept.fragments();
            for seq in live.data.max(live.end.saturating_sub(window))..live.end {
                let element = live.message.element();
                if let Some(payload) = self.kept.room(seq, element) {
                    live.message.again(seq - live.data, &*buffer, payload);
                }
            }
        }
        self.done.push_back(Done {
            ticket: live.ticket,
            buffer,
            collective: live.collective.clone(),
            seconds: self.now.since(live.submitted).as_secs_f64(),
        });
        while self.live.front().is_some_and(|l| l.buffer.is_none()) {
            self.live.pop_front();
        }
    }
}

impl Gradients for Stream {
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        let is_new = seq >= self.contributed;
        if is_new && self.mismatch.is_some() {
            return Contribution::NotReady;
        }
        let index = self.find(seq);
        let live = &mut self.live[index];
        let contribution = match seq.checked_sub(live.data) {
            None => {
                descriptor::contribute(
                    &live.record,
                    (self.rank, self.workers),
                    seq - live.first,
                    payload,
                );
                Contribution::Ready(Element::Scale)
            }
            Some(data) => {
                let is_agreed = live.ticket.0 < self.judged;
                let Some(buffer) = &live.buffer else {
                    unreachable!("a fragment without a result keeps its buffer");
                };
                let message = &mut live.message;
                message.contribute(data, is_agreed, &**buffer, &mut self.tools, payload)
            }
        };
        if is_new && contribution != Contribution::NotReady {
            self.contributed = seq + 1;
        }
        contribution
    }

    fn result(&mut self, seq: u64, element: Element, payload: &[u8], delivery: Delivery) {
        let ns = u64::try_from(delivery.latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(ns);
        let index = self.find(seq);
        let live = &mut self.live[index];
        live.left -= 1;
        if let Some(data) = seq.checked_sub(live.data) {
            if !live.message.is_recoverable() {
                self.kept.put(seq, element, payload);
            }
            if let Some(buffer) = &mut live.buffer {
                let message = &mut live.message;
                message.result(data, &mut **buffer, &mut self.tools, payload);
            }
            self.end_if_done(index);
        } else {
            self.kept.put(seq, element, payload);
            live.table.take(seq - live.first, payload);
            self.validate();
        }
    }

    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element> {
        if let Some((element, copy)) = self.kept.get(seq) {
            payload.copy_from_slice(copy);
            return Some(element);
        }
        let live = self.live.get(self.find(seq)).filter(|l| l.first <= seq)?;
        let (data, buffer) = (seq.checked_sub(live.data)?, live.buffer.as_deref()?);
        let is_recoverable = live.message.is_recoverable();
        is_recoverable.then(|| live.message.again(data, buffer, payload))
    }
}

#[cfg(test)]
mod tests;
