//! RoCEv2 hosts: a reliable connection (RC) in software, for tests, load and simulation where there
//! is no NIC that speaks it, and members of [`ring`]s that a switch sums.
//!
//! Sans-IO: whole frames and moments are arguments. The order of calls is that of
//! `tally_endpoint`: after [`receive`](Connection::receive),
//! [`handle_timeout`](Connection::handle_timeout) or a post, [`poll_transmit`] until `None`,
//! [`poll_event`] until `None`, then [`poll_timeout`].
//!
//! The requester segments messages into packets of the path MTU, and retransmits by go-back-N after
//! a NAK or a timeout. The responder acknowledges, answers RNR NAK without a posted buffer, and
//! ends the connection with a NAK on an invalid packet. Verbs: SEND and RDMA WRITE, with and
//! without immediate data.
//!
//! Catches:
//!
//! * No connection management: queue pairs and first PSNs are arguments.
//! * No congestion control: CNPs are counted, and one answers a frame with CE.
//! * RNR NAKs are retried without limit. An address of RDMA WRITE is an offset in the memory.
//!
//! [`poll_transmit`]: Connection::poll_transmit
//! [`poll_event`]: Connection::poll_event
//! [`poll_timeout`]: Connection::poll_timeout

mod requester;
mod responder;
pub mod ring;

use requester::Requester;
pub use requester::{Message, Posted};
use responder::{Answer, Responder};
use std::collections::VecDeque;
use std::time::Duration;
use tally_wire::field::ipv4;
use tally_wire::frame::{UDP_END, emit_udp, internet_checksum};
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

/// Parameters of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses from this side to the peer. The destination port is [`PORT`].
    pub addresses: Addresses,
    /// Queue pair of this side.
    pub local: QueuePair,
    /// Queue pair of the peer.
    pub remote: QueuePair,
    /// Bytes of payload in a packet but the last of a message: 256 to 4096, a power of two.
    pub mtu: usize,
    /// PSN of the first packet of this side.
    pub first: Psn,
    /// PSN of the first packet of the peer.
    pub remote_first: Psn,
    /// Maximum number of unacknowledged packets.
    pub in_flight: u32,
    /// Retransmission timeout.
    pub timeout: Duration,
    /// Consecutive timeouts before the connection fails.
    pub retries: u32,
    /// DSCP of the frames that it sends.
    pub dscp: u8,
    /// Memory that the peer may write.
    pub memory: Vec<u8>,
    /// Key of the memory.
    pub rkey: u32,
}

/// Event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has acknowledged a whole message.
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

/// Reason for which a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// No acknowledgement within the configured number of timeouts.
    #[error("the peer sent no acknowledgement within all retries")]
    Timeout,
    /// The peer refused a packet, by NAK code.
    #[error("the peer refused a packet with NAK code {0}")]
    Refused(u8),
    /// A packet of the peer was invalid, and was answered with a NAK.
    #[error("the peer sent an invalid packet")]
    Invalid,
}

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of messages sent, retransmissions included.
    pub sent: u64,
    /// Packets of messages retransmitted.
    pub retransmitted: u64,
    /// Packets of messages received in order.
    pub received: u64,
    /// Packets of messages received before.
    pub duplicates: u64,
    /// Packets received with a gap before them.
    pub out_of_order: u64,
    /// Negative acknowledgements received.
    pub naks: u64,
    /// Congestion notifications received.
    pub cnps: u64,
    /// Frames with a wrong ICRC, or of another connection.
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
    /// When the last CNP was sent, and whether one is due.
    cnp: (Option<Time>, bool),
}

impl Connection {
    /// A connection, ready to send and to receive.
    ///
    /// # Panics
    /// If the MTU is not 256, 512, 1024, 2048 or 4096, or `in_flight` is 0 or above 2^22.
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

    /// Posts a message to send.
    pub fn post_send(&mut self, message: Message) -> Posted {
        self.requester.post(message)
    }

    /// Writes a part of a message that was posted. Where it is sent again, it is sent so: a NIC
    /// reads the memory whenever it sends.
    pub fn overwrite(&mut self, number: Posted, at: usize, bytes: &[u8]) {
        self.requester.overwrite(number, at, bytes);
    }

    /// Posts a receive buffer.
    pub fn post_receive(&mut self, buffer: Vec<u8>) {
        self.responder.post(buffer);
    }

    /// The memory that the peer may write.
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.responder.memory
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of messages posted and not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.requester.unacknowledged()
    }

    /// Receives a frame. A frame of another connection is counted and has no other effect.
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
        self.counters.retransmitted += u64::from(is_again);
        let mut bth = self.bth(part.opcode, part.psn);
        bth.ack_requested = part.ack_requested;
        bth.pad = (part.payload.len().wrapping_neg() & 3) as u8;
        let (extended, bytes) = part.extended();
        let payload = self.requester.payload(&part);
        Some(self.write(out, bth, &extended[..bytes], payload))
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
            ack_requested: false,
            psn,
        }
    }

    /// Writes a whole frame and returns its length.
    fn write(&self, out: &mut [u8], bth: Bth, extended: &[u8], payload: &[u8]) -> usize {
        let pad = usize::from(bth.pad);
        let bytes = BTH_BYTES + extended.len() + payload.len() + pad + ICRC_BYTES;
        emit_udp(out, &self.config.addresses, bytes);
        let frame = &mut out[..UDP_END + bytes];
        set_dscp(frame, self.config.dscp);
        let mut at = UDP_END;
        for part in [&bth.emit()[..], extended, payload, &[0; 3][..pad]] {
            frame[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        seal(frame);
        frame.len()
    }

    /// The next event.
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

    /// Handles the timeouts that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.failure.is_none() && self.requester.handle_timeout(now).is_err() {
            self.fail(Failure::Timeout);
        }
    }
}

/// Sets the DSCP of a frame from Ethernet on, and the checksum of its IPv4 header.
fn set_dscp(frame: &mut [u8], dscp: u8) {
    frame[ipv4::TOS] = dscp << 2 | frame[ipv4::TOS] & 3;
    frame[ipv4::CHECKSUM].fill(0);
    let checksum = internet_checksum(&frame[ipv4::HEADER]);
    frame[ipv4::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}
