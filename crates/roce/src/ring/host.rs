//! A member of a ring on two software connections, which copy what they carry.

use super::{AllReduce, Config, Ring, RingError};
use crate::{Connection, Counters, Message, Posted};
use std::collections::VecDeque;
use tally_wire::Time;
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{Element, RING_HEADER_BYTES};
use tally_wire::roce::{Bth, QueuePair, Verb};
use thiserror::Error;

/// Parameters of a host. Its queue pairs and path MTU are those of its connections.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The member.
    pub ring: Config,
    /// SEND, or RDMA WRITE with immediate data.
    pub verb: Verb,
    /// Connection to the successor. Its rkey is that of the successor's memory.
    pub to: crate::Config,
    /// Connection from the predecessor. Its memory is replaced by one of the window's messages.
    pub from: crate::Config,
}

/// Event of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An all-reduce is done.
    Done {
        /// Which.
        all_reduce: AllReduce,
        /// The sum.
        tensor: Vec<u8>,
    },
    /// The epoch has ended.
    Failed(Failure),
}

/// Reason for which an epoch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The connection to the successor has ended.
    #[error("connection to the successor: {0}")]
    Successor(crate::Failure),
    /// The connection from the predecessor has ended.
    #[error("connection from the predecessor: {0}")]
    Predecessor(crate::Failure),
    /// A message of the predecessor is not the sum that comes next.
    #[error("message of the predecessor: {0}")]
    Message(RingError),
}

/// A member of a ring on software connections: fed with frames, asked for frames.
///
/// The order of calls is that of [`Connection`].
#[derive(Debug)]
pub struct Host {
    ring: Ring,
    verb: Verb,
    to: Connection,
    from: Connection,
    /// Queue pair of this side of `to`.
    own: QueuePair,
    rkey: u32,
    /// Of the all-reduces that are not done: contributions, and sums in their place.
    tensors: VecDeque<(AllReduce, Vec<u8>)>,
    events: VecDeque<Event>,
    is_failed: bool,
}

impl Host {
    /// A host with its connections, ready to send and to receive.
    ///
    /// # Panics
    /// If the parameters of the ring or of a connection are out of range.
    #[must_use]
    pub fn new(config: HostConfig) -> Self {
        let HostConfig {
            ring,
            verb,
            to,
            mut from,
        } = config;
        let slots = if verb == Verb::Write { ring.window } else { 0 };
        from.memory = vec![0; slots as usize * (RING_HEADER_BYTES + ring.message_bytes)];
        Self {
            ring: Ring::new(ring),
            verb,
            own: to.local,
            rkey: to.rkey,
            to: Connection::new(to),
            from: Connection::new(from),
            tensors: VecDeque::new(),
            events: VecDeque::new(),
            is_failed: false,
        }
    }

    /// Submits an all-reduce, behind those before it.
    ///
    /// # Panics
    /// If the tensor ends in a part of an element.
    pub fn submit(&mut self, element: Element, tensor: Vec<u8>) -> AllReduce {
        let number = self.ring.submit(element, tensor.len());
        self.tensors.push_back((number, tensor));
        self.advance();
        number
    }

    /// Number of all-reduces submitted and not done.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.ring.pending()
    }

    /// Number of messages posted and not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.to.unacknowledged()
    }

    /// The counters of the connections to the successor and from the predecessor.
    #[must_use]
    pub const fn counters(&self) -> [&Counters; 2] {
        [self.to.counters(), self.from.counters()]
    }

    /// Bytes of the longest frame that it sends.
    #[must_use]
    pub const fn frame_max(&self) -> usize {
        self.to.frame_max()
    }

    /// Receives a frame.
    pub fn receive(&mut self, frame: &[u8], now: Time) {
        let bth = frame.get(UDP_END..).and_then(|it| Bth::parse(it).ok());
        let is_of_successor = bth.is_some_and(|bth| bth.qp == self.own);
        let connection = if is_of_successor {
            &mut self.to
        } else {
            &mut self.from
        };
        connection.receive(frame, now);
        self.advance();
    }

    /// Writes the next frame to send to `out`, which has [`frame_max`](Self::frame_max) bytes, and
    /// returns its length.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        let answer = self.from.poll_transmit(now, out);
        answer.or_else(|| self.to.poll_transmit(now, out))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let timeouts = [self.to.poll_timeout(), self.from.poll_timeout()];
        timeouts
            .into_iter()
            .flatten()
            .min()
            .filter(|_| !self.is_failed)
    }

    /// Handles the timeouts that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.to.handle_timeout(now);
        self.from.handle_timeout(now);
        self.advance();
    }

    /// Takes what the connections have to say, and posts what the window allows.
    fn advance(&mut self) {
        while !self.is_failed
            && let Some(event) = self.from.poll_event()
        {
            self.take_event(event);
        }
        while !self.is_failed
            && let Some(event) = self.to.poll_event()
        {
            match event {
                crate::Event::Sent(Posted(message)) => self.ring.sent(message as u32),
                crate::Event::Failed(failure) => self.fail(Failure::Successor(failure)),
                crate::Event::Received { .. } | crate::Event::Written { .. } => {}
            }
        }
        if self.is_failed {
            return;
        }
        while let Some(done) = self.ring.poll_done() {
            let (all_reduce, tensor) = self.tensors.pop_front().expect("one for each all-reduce");
            assert_eq!(all_reduce, done, "all-reduces are done in order");
            self.events.push_back(Event::Done { all_reduce, tensor });
        }
        self.post();
    }

    fn take_event(&mut self, event: crate::Event) {
        let written;
        let message = match &event {
            crate::Event::Received { buffer, bytes, .. } => &buffer[..*bytes],
            crate::Event::Written { at, bytes, .. } => {
                written = self.from.memory()[*at..*at + *bytes].to_vec();
                &written
            }
            crate::Event::Sent(_) => return,
            crate::Event::Failed(failure) => return self.fail(Failure::Predecessor(*failure)),
        };
        let number = self.ring.summed();
        match self.ring.received(message, message.len()) {
            Ok(span) => {
                let mut tensors = self.tensors.iter_mut();
                let (_, tensor) = tensors
                    .find(|(number, _)| *number == span.all_reduce)
                    .expect("the tensor of an all-reduce that is not done");
                let elements = &message[RING_HEADER_BYTES..];
                let sum = &elements[..span.range.len()];
                tensor[span.range].copy_from_slice(sum);
                // The successor may still lack it, and a NIC has no other copy.
                (self.to).overwrite(Posted(number), RING_HEADER_BYTES, sum);
            }
            Err(error) => self.fail(Failure::Message(error)),
        }
    }

    fn post(&mut self) {
        let Config {
            window,
            message_bytes,
            ..
        } = *self.ring.config();
        while let Some(post) = self.ring.poll_post() {
            let mut tensors = self.tensors.iter();
            let (_, tensor) = tensors
                .find(|(number, _)| *number == post.span.all_reduce)
                .expect("the tensor of an all-reduce that is not done");
            let mut bytes = post.header.to_vec();
            bytes.extend_from_slice(&tensor[post.span.range]);
            bytes.resize(bytes.len() + post.span.pad, 0);
            let (to, immediate, buffer) = match self.verb {
                Verb::Send => (None, None, bytes.len()),
                Verb::Write => {
                    let slot = (post.message % window) as usize;
                    let address = slot * (RING_HEADER_BYTES + message_bytes);
                    (Some((address as u64, self.rkey)), Some(post.message), 0)
                }
            };
            self.from.post_receive(vec![0; buffer]);
            self.to.post_send(Message {
                bytes,
                to,
                immediate,
            });
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.is_failed = true;
        self.events.push_back(Event::Failed(failure));
    }
}
