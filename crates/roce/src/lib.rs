//! A reliable connection (RC) of RoCEv2 in software, for tests, load and simulation where there is
//! no NIC that speaks it.
//!
//! Sans-IO: whole frames and moments are arguments. The order of calls is that of
//! `tally_endpoint`: after [`receive`](Connection::receive),
//! [`handle_timeout`](Connection::handle_timeout) or a post, [`poll_transmit`] until `None`,
//! [`poll_event`] until `None`, then [`poll_timeout`].
//!
//! It does what a NIC does: messages are cut into packets of the path MTU; lost ones are sent
//! again by go-back-N, after a negative acknowledgement or a timeout; a receiver without a buffer
//! says when to try again; an error ends the connection. It has SEND and RDMA WRITE, with and
//! without immediate data.
//!
//! It has no connection management: both sides get numbers of queue pairs and first PSNs as
//! arguments. It has no congestion control: it counts the CNPs that come and sends one for a frame
//! with CE.
//!
//! [`poll_transmit`]: Connection::poll_transmit
//! [`poll_event`]: Connection::poll_event
//! [`poll_timeout`]: Connection::poll_timeout

mod requester;
mod responder;

use requester::Requester;
pub use requester::{Message, Posted};
use responder::{Answer, Responder};
use std::collections::VecDeque;
use std::time::Duration;
use tally_wire::frame::{UDP_END, emit_udp};
use tally_wire::roce::{
    Aeth, BTH_BYTES, Bth, CNP_BYTES, ICRC_BYTES, Opcode, PORT, Packet, Psn, QueuePair, Syndrome,
    is_sealed, seal,
};
use tally_wire::{Addresses, Ecn, Time, UdpFrame};
use thiserror::Error;

/// The partition that every port is in.
const DEFAULT_PKEY: u16 = 0xffff;
/// Least time between two CNPs, as NICs keep it.
const CNP_EVERY: Duration = Duration::from_micros(50);

/// How a connection is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// From this side to the other. The destination port is [`PORT`].
    pub addresses: Addresses,
    /// Queue pair of this side.
    pub local: QueuePair,
    /// Queue pair of the other side.
    pub remote: QueuePair,
    /// Bytes of payload in a packet but the last of a message: 256 to 4096, a power of two.
    pub mtu: usize,
    /// PSN of the first packet of this side.
    pub first: Psn,
    /// PSN of the first packet of the other side.
    pub remote_first: Psn,
    /// Packets that may be unacknowledged.
    pub in_flight: u32,
    /// Time without an acknowledgement after which all is sent again.
    pub timeout: Duration,
    /// Timeouts one after the other that end the connection.
    pub retries: u32,
    /// Memory that the other side may write, and its key.
    pub memory: Vec<u8>,
    /// Key of the memory.
    pub rkey: u32,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The other side has acknowledged a whole message.
    Sent(Posted),
    /// A SEND has filled a posted buffer.
    Received {
        /// The buffer; its first `bytes` are the message.
        buffer: Vec<u8>,
        /// Length of the message.
        bytes: usize,
        /// Immediate data, if the message has any.
        immediate: Option<u32>,
    },
    /// A WRITE with immediate data has written the memory.
    Written {
        /// Where in the memory it began.
        at: usize,
        /// How many bytes it wrote.
        bytes: usize,
        /// Its immediate data.
        immediate: u32,
    },
    /// The connection has ended.
    Failed(Failure),
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// No acknowledgement for as many timeouts as are configured.
    #[error("the other side does not acknowledge")]
    Timeout,
    /// The other side says that a packet of this one is wrong, by code.
    #[error("the other side refuses a packet: code {0}")]
    Refused(u8),
    /// A packet of the other side is wrong; it is told so.
    #[error("a packet of the other side is wrong")]
    Invalid,
}

/// What came and left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of messages sent, those that were sent again included.
    pub sent: u64,
    /// Packets of messages that were sent again.
    pub sent_again: u64,
    /// Packets of messages that came in their order.
    pub received: u64,
    /// Packets of messages that had come before.
    pub duplicates: u64,
    /// Packets that came before an earlier one.
    pub out_of_order: u64,
    /// Negative acknowledgements received.
    pub naks: u64,
    /// Congestion notifications received.
    pub cnps: u64,
    /// Frames with a wrong ICRC, or that are no packet of this connection's other side.
    pub dropped: u64,
}

/// A reliable connection.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    requester: Requester,
    responder: Responder,
    events: VecDeque<Event>,
    counters: Counters,
    failure: Option<Failure>,
    /// When the last CNP left, and whether one is due.
    cnp: (Option<Time>, bool),
}

impl Connection {
    /// A connection, ready to send and to receive.
    ///
    /// # Panics
    /// If the MTU is none that a path may have, or nothing may be in flight.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.mtu.is_power_of_two() && (256..=4096).contains(&config.mtu));
        assert!((1..1 << 22).contains(&config.in_flight));
        Self {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            config,
            events: VecDeque::new(),
            counters: Counters::default(),
            failure: None,
            cnp: (None, false),
        }
    }

    /// Bytes of the longest frame that it sends.
    #[must_use]
    pub const fn frame_max(&self) -> usize {
        UDP_END + BTH_BYTES + 20 + self.config.mtu + ICRC_BYTES
    }

    /// Sends a message behind those that were posted before.
    pub fn post_send(&mut self, message: Message) -> Posted {
        self.requester.post(message)
    }

    /// Gives a buffer for a message that the other side sends.
    pub fn post_receive(&mut self, buffer: Vec<u8>) {
        self.responder.post(buffer);
    }

    /// The memory that the other side may write.
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.responder.memory
    }

    /// What came and left so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Messages that are posted and not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.requester.unacknowledged()
    }

    /// Takes a frame. One that is not of this connection is counted and has no other effect.
    pub fn receive(&mut self, frame: &[u8], now: Time) {
        if self.take(frame, now).is_none() {
            self.counters.dropped += 1;
        }
    }

    fn take(&mut self, frame: &[u8], now: Time) -> Option<()> {
        let udp = UdpFrame::parse(frame).ok()?;
        let (from, own) = (&udp.addresses, &self.config.addresses);
        let is_of_peer =
            (from.src_ip, from.dst_ip, from.dst_port) == (own.dst_ip, own.src_ip, PORT);
        let frame = &frame[..UDP_END + udp.datagram_bytes];
        if !is_of_peer || !is_sealed(frame) {
            return None;
        }
        let datagram = &frame[UDP_END..];
        let packet = Packet::parse(datagram).ok()?;
        if packet.bth.qp != self.config.local || self.failure.is_some() {
            return None;
        }
        if udp.ecn == Ecn::Ce {
            self.cnp.1 = true;
        }
        let failed = match packet.bth.opcode {
            Opcode::Message { .. } => {
                let taken = self.responder.take(&packet, datagram, &mut self.counters);
                taken.map_or(Some(Failure::Invalid), |event| {
                    self.events.extend(event);
                    None
                })
            }
            Opcode::Ack => {
                let aeth = packet.aeth(datagram).ok()?;
                self.acknowledged(packet.bth.psn, aeth, now)
            }
            Opcode::Cnp => {
                self.counters.cnps += 1;
                None
            }
        };
        if let Some(failure) = failed {
            self.fail(failure);
        }
        Some(())
    }

    fn acknowledged(&mut self, psn: Psn, aeth: Aeth, now: Time) -> Option<Failure> {
        if !matches!(aeth.syndrome, Syndrome::Ack(_)) {
            self.counters.naks += 1;
        }
        let sent = self.requester.acknowledged(psn, aeth.syndrome, now);
        self.events.extend(sent.map(Event::Sent));
        match aeth.syndrome {
            Syndrome::Fatal(code) => Some(Failure::Refused(code)),
            _ => None,
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
        self.events.push_back(Event::Failed(failure));
    }

    /// Writes the next frame to send to `out`, which has [`frame_max`](Self::frame_max) bytes, and
    /// returns its length.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        if let Some(answer) = self.responder.poll_answer() {
            return Some(self.write_answer(answer, out));
        }
        if self.failure.is_some() {
            return None;
        }
        if self.cnp.1 && self.cnp.0.is_none_or(|last| last.after(CNP_EVERY) <= now) {
            self.cnp = (Some(now), false);
            let mut bth = self.bth(Opcode::Cnp, Psn::default());
            bth.becn = true;
            return Some(self.write(out, bth, &[0; CNP_BYTES], &[]));
        }
        let (part, is_again) = self.requester.poll_part(now)?;
        self.counters.sent += 1;
        self.counters.sent_again += u64::from(is_again);
        let mut bth = self.bth(part.opcode, part.psn);
        bth.asks_ack = part.asks_ack;
        bth.pad = (part.payload.len().wrapping_neg() & 3) as u8;
        let (extended, bytes) = part.extended();
        let payload = self.requester.payload(&part);
        Some(write(
            &self.config.addresses,
            out,
            bth,
            &extended[..bytes],
            payload,
        ))
    }

    fn write_answer(&self, answer: Answer, out: &mut [u8]) -> usize {
        let bth = self.bth(Opcode::Ack, answer.psn);
        self.write(out, bth, &answer.aeth.emit(), &[])
    }

    fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth {
            opcode,
            is_solicited: false,
            is_migrated: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            qp: self.config.remote,
            asks_ack: false,
            psn,
        }
    }

    fn write(&self, out: &mut [u8], bth: Bth, extended: &[u8], payload: &[u8]) -> usize {
        write(&self.config.addresses, out, bth, extended, payload)
    }

    /// What has happened since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.failure.is_some() {
            return None;
        }
        self.requester.timeout()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.failure.is_none() && self.requester.handle_timeout(now).is_err() {
            self.fail(Failure::Timeout);
        }
    }
}

/// Writes a whole frame and returns its length.
fn write(
    addresses: &Addresses,
    out: &mut [u8],
    bth: Bth,
    extended: &[u8],
    payload: &[u8],
) -> usize {
    let pad = usize::from(bth.pad);
    let bytes = BTH_BYTES + extended.len() + payload.len() + pad + ICRC_BYTES;
    emit_udp(out, addresses, bytes);
    let frame = &mut out[..UDP_END + bytes];
    let mut at = UDP_END;
    for part in [&bth.emit()[..], extended, payload, &[0; 3][..pad]] {
        frame[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    seal(frame);
    frame.len()
}
