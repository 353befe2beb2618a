//! Responder: checks the order of packets, writes buffers and memory, acknowledges.

use crate::{Config, Counters, Event};
use std::collections::VecDeque;
use tally_wire::roce::{Aeth, Opcode, Packet, Place, Psn, Syndrome, Verb};

/// RNR NAK timer code: 0.64 ms.
const NOT_READY: u8 = 12;
/// Codes of an invalid request, and of a WRITE outside of the memory.
const INVALID_REQUEST: u8 = 1;
const REMOTE_ACCESS: u8 = 2;

/// An acknowledgement to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) aeth: Aeth,
}

/// A message of which a part has come.
#[derive(Debug)]
enum Open {
    Send { buffer: Vec<u8>, bytes: usize },
    Write { at: usize, bytes: usize, end: usize },
}

#[derive(Debug)]
pub(crate) struct Responder {
    mtu: usize,
    pub(crate) memory: Vec<u8>,
    rkey: u32,
    buffers: VecDeque<Vec<u8>>,
    /// The PSN that comes next.
    expected: Psn,
    /// Messages completed, modulo 2^24.
    messages: u32,
    open: Option<Open>,
    answer: Option<Answer>,
    /// A gap, or the lack of a buffer, has been reported, and not been filled since.
    is_gap_told: bool,
}

/// Error: the packet ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

impl Responder {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            mtu: config.mtu,
            memory: config.memory.clone(),
            rkey: config.rkey,
            buffers: VecDeque::new(),
            expected: config.remote_first,
            messages: 0,
            open: None,
            answer: None,
            is_gap_told: false,
        }
    }

    pub(crate) fn post(&mut self, buffer: Vec<u8>) {
        self.buffers.push_back(buffer);
    }

    pub(crate) fn poll_answer(&mut self) -> Option<Answer> {
        self.answer.take()
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        let messages = self.messages;
        self.answer = Some(Answer {
            psn,
            aeth: Aeth { syndrome, messages },
        });
    }

    fn last(&self) -> Psn {
        self.expected.after(u32::MAX)
    }

    /// Takes a packet of a message; returns what it completes.
    pub(crate) fn take(
        &mut self,
        packet: &Packet,
        datagram: &[u8],
        counters: &mut Counters,
    ) -> Result<Option<Event>, Invalid> {
        let psn = packet.bth.psn;
        if psn.is_before(self.expected) {
            counters.duplicates += 1;
            self.answer(self.last(), Syndrome::Ack(0));
            return Ok(None);
        }
        if psn != self.expected {
            counters.out_of_order += 1;
            // One NAK a gap: each further one would make the requester retransmit everything.
            if !self.is_gap_told {
                self.is_gap_told = true;
                self.answer(self.expected, Syndrome::SequenceError);
            }
            return Ok(None);
        }
        let taken = self.take_next(packet, datagram);
        match taken {
            Ok(Some(event)) => {
                counters.received += 1;
                self.is_gap_told = false;
                self.expected = psn.after(1);
                if packet.bth.ack_requested {
                    self.answer(psn, Syndrome::Ack(0));
                }
                Ok(event)
            }
            // No buffer: RNR NAK, and the requester retries.
            Ok(None) => {
                // The packets behind it are no gap.
                self.is_gap_told = true;
                self.answer(psn, Syndrome::NotReady(NOT_READY));
                Ok(None)
            }
            Err(code) => {
                self.answer(psn, Syndrome::Fatal(code));
                Err(Invalid)
            }
        }
    }

    /// The packet that is next. `None`: there is no buffer for its message.
    fn take_next(&mut self, packet: &Packet, datagram: &[u8]) -> Result<Option<Option<Event>>, u8> {
        let Opcode::Message {
            verb,
            place,
            has_immediate,
        } = packet.bth.opcode
        else {
            return Err(INVALID_REQUEST);
        };
        if place.begins() != self.open.is_none() {
            return Err(INVALID_REQUEST);
        }
        let payload = &datagram[packet.payload.clone()];
        let fits = match place {
            Place::First | Place::Middle => payload.len() == self.mtu,
            Place::Last => (1..=self.mtu).contains(&payload.len()),
            Place::Only => payload.len() <= self.mtu,
        };
        if !fits {
            return Err(INVALID_REQUEST);
        }
        let needs_buffer = match verb {
            Verb::Send => place.begins(),
            Verb::Write => has_immediate,
        };
        if needs_buffer && self.buffers.is_empty() {
            return Ok(None);
        }
        if place.begins() {
            self.begin(verb, packet, datagram)?;
        }
        self.put(verb, payload)?;
        if !place.ends() {
            return Ok(Some(None));
        }
        let immediate = has_immediate.then(|| {
            let bytes = datagram[..packet.payload.start].last_chunk();
            u32::from_be_bytes(*bytes.expect("an extended header"))
        });
        self.end(immediate).map(Some)
    }

    fn begin(&mut self, verb: Verb, packet: &Packet, datagram: &[u8]) -> Result<(), u8> {
        self.open = Some(match verb {
            Verb::Send => Open::Send {
                buffer: self.buffers.pop_front().expect("there is a buffer"),
                bytes: 0,
            },
            Verb::Write => {
                let reth = packet.reth(datagram).ok_or(INVALID_REQUEST)?;
                let end = reth.address.checked_add(reth.bytes.into());
                let is_within = end.is_some_and(|end| end <= self.memory.len() as u64);
                if reth.rkey != self.rkey || !is_within {
                    return Err(REMOTE_ACCESS);
                }
                let at = reth.address as usize;
                let end = at + reth.bytes as usize;
                Open::Write { at, bytes: 0, end }
            }
        });
        Ok(())
    }

    fn put(&mut self, verb: Verb, payload: &[u8]) -> Result<(), u8> {
        let n = payload.len();
        match (&mut self.open, verb) {
            (Some(Open::Send { buffer, bytes }), Verb::Send) => {
                let room = buffer.get_mut(*bytes..*bytes + n);
                room.ok_or(INVALID_REQUEST)?.copy_from_slice(payload);
                *bytes += n;
            }
            (Some(Open::Write { at, bytes, end }), Verb::Write) => {
                let from = *at + *bytes;
                if from + n > *end {
                    return Err(INVALID_REQUEST);
                }
                self.memory[from..from + n].copy_from_slice(payload);
                *bytes += n;
            }
            _ => return Err(INVALID_REQUEST),
        }
        Ok(())
    }

    fn end(&mut self, immediate: Option<u32>) -> Result<Option<Event>, u8> {
        self.messages = self.messages.wrapping_add(1);
        match self.open.take() {
            Some(Open::Send { buffer, bytes }) => Ok(Some(Event::Received {
                buffer,
                bytes,
                immediate,
            })),
            Some(Open::Write { at, bytes, end }) if at + bytes == end => {
                Ok(immediate.map(|immediate| {
                    // A WRITE with immediate data takes a posted buffer and leaves it empty.
                    self.buffers.pop_front();
                    Event::Written {
                        at,
                        bytes,
                        immediate,
                    }
                }))
            }
            _ => Err(INVALID_REQUEST),
        }
    }
}
