//! A member of a ring that the switch sums (NetReduce), without I/O and without buffers.
//!
//! [`Ring`] splits tensors into messages, names the next message to post, checks the header of
//! each message that arrives, and says where in the tensor its sum goes. It deals in message
//! numbers, byte ranges and headers: any RC transport can carry it, in place and without copies.
//! [`Host`] is a `Ring` on two software [`Connection`](crate::Connection)s.
//!
//! The order of calls: after [`submit`](Ring::submit) or [`received`](Ring::received),
//! [`poll_post`](Ring::poll_post) until `None`, then [`poll_done`](Ring::poll_done) until `None`.
//! For each post, the transport first posts a receive from the predecessor and then the send to the
//! successor. Both have three parts: the header, the range of the tensor, and the pad.
//!
//! Catches:
//!
//! * A sum may overwrite the contribution in place: the switch answers a retransmission with the
//!   sum that it keeps. A switch that has restarted keeps none. So the first message of an epoch
//!   has no tensor's elements, and others follow when it is acknowledged ([`Ring::sent`]): the
//!   switch learns a connection by that message alone.
//! * After an error the tensor is neither contribution nor sum.
//! * An all-reduce is done when its sums have arrived. A NIC may still read the tensor, until its
//!   sends have completed.
//! * Only the first packet of a message shows that the switch has summed it.
//! * A member whose messages are all acknowledged waits without limit for a predecessor that has
//!   died. The rendezvous of the hosts tells it.
//! * An error ends the epoch. The members connect new queue pairs, and each makes a new `Ring`.

mod host;

pub use host::{Event, Failure, Host, HostConfig};

use std::collections::VecDeque;
use std::ops::Range;
use tally_wire::netreduce::{
    Channel, Element, GRANULE_BYTES, MEMBERS, RING_HEADER_BYTES, RingEpoch, RingHeader,
    RingHeaderError, RingId, RingSecret,
};
use thiserror::Error;

const GRANULE: usize = GRANULE_BYTES as usize;

/// Parameters of a member in one epoch of its ring.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of the ring.
    pub ring: RingId,
    /// Secret of the ring, derived from its key.
    pub secret: RingSecret,
    /// Number of this set of connections.
    pub epoch: RingEpoch,
    /// Rank of this member.
    pub rank: u8,
    /// Number of members: 2 to 64.
    pub members: u8,
    /// Connection to the successor.
    pub to: Channel,
    /// Connection from the predecessor.
    pub from: Channel,
    /// Maximum bytes of the elements of a message, see [`message_bytes`].
    pub message_bytes: usize,
    /// Messages that may be posted without their sum (N-10).
    pub window: u32,
}

/// The elements of an epoch's first message (N-15): one zero.
const OPENING: Element = Element::I32;
const OPENING_BYTES: usize = GRANULE;

/// Bytes of the elements of a message of this many packets.
#[must_use]
pub const fn message_bytes(packets: usize, mtu: usize) -> usize {
    packets * mtu - RING_HEADER_BYTES
}

/// Number of an all-reduce: how many were submitted in the epoch before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllReduce(pub u64);

/// Where the elements of a message are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The all-reduce.
    pub all_reduce: AllReduce,
    /// Bytes of its tensor.
    pub range: Range<usize>,
    /// Zero bytes behind them, which make a multiple of four.
    pub pad: usize,
}

/// A message to post: its receive from the predecessor, then its send to the successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// Number of the message in the epoch.
    pub message: u32,
    /// The header that is sent. The receive needs space for one, too.
    pub header: [u8; RING_HEADER_BYTES],
    /// What is sent behind the header, and where the sum goes.
    pub span: Span,
}

/// Error: a message from the predecessor is not the sum that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// No header of this ring, connection and key.
    #[error(transparent)]
    Header(#[from] RingHeaderError),
    /// Of another ring.
    #[error("message is of ring {0}")]
    Ring(RingId),
    /// Of another epoch.
    #[error("message is of epoch {}", .0.0)]
    Epoch(RingEpoch),
    /// Not of the predecessor.
    #[error("message is of rank {found}, not of the predecessor, rank {expected}")]
    Rank {
        /// Rank in the header.
        found: u8,
        /// Rank of the predecessor.
        expected: u8,
    },
    /// The switch has not summed it.
    #[error("message was not summed by the switch")]
    NotSummed,
    /// Not the message that comes next.
    #[error("message {found} arrived in place of message {expected}")]
    Message {
        /// Number in the header.
        found: u32,
        /// Number that comes next.
        expected: u32,
    },
    /// A message that this member has not contributed to.
    #[error("message {0} arrived before it was posted")]
    Unposted(u32),
    /// Other elements than this member's.
    #[error("message has {found:?} elements, not {expected:?}")]
    Element {
        /// Type in the header.
        found: Element,
        /// This member's type.
        expected: Element,
    },
    /// Another length than this member's.
    #[error("message has {found} bytes of elements, not {expected}")]
    Bytes {
        /// Length found.
        found: usize,
        /// This member's length.
        expected: usize,
    },
}

/// An all-reduce that is not done.
#[derive(Debug)]
struct Pending {
    number: AllReduce,
    element: Element,
    bytes: usize,
    /// Bytes posted, and bytes whose sum has arrived.
    posted: usize,
    summed: usize,
}

impl Pending {
    /// The message that begins at this byte.
    fn span(&self, start: usize, message_bytes: usize) -> Span {
        let end = self.bytes.min(start + message_bytes);
        let rest = (end - start) % GRANULE;
        Span {
            all_reduce: self.number,
            range: start..end,
            pad: (GRANULE - rest) % GRANULE,
        }
    }
}

/// The span of an epoch's first message, before this all-reduce.
const fn opening(all_reduce: AllReduce) -> Span {
    Span {
        all_reduce,
        range: 0..0,
        pad: OPENING_BYTES,
    }
}

/// A member of a ring in one epoch.
#[derive(Debug)]
pub struct Ring {
    config: Config,
    pending: VecDeque<Pending>,
    submitted: u64,
    /// Messages posted, and messages whose sum has arrived; the opening one is among them.
    posted: u64,
    summed: u64,
    /// The successor has acknowledged the opening message.
    is_open: bool,
}

impl Ring {
    /// A member before its first all-reduce of the epoch.
    ///
    /// # Panics
    /// If the number of members, the rank, the window or the length of a message is out of range.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(MEMBERS.contains(&usize::from(config.members)), "members");
        assert!(config.rank < config.members, "rank");
        assert!(config.window > 0, "window");
        let bytes = config.message_bytes;
        assert!(bytes > 0 && bytes.is_multiple_of(GRANULE), "message");
        Self {
            config,
            pending: VecDeque::new(),
            submitted: 0,
            posted: 0,
            summed: 0,
            is_open: false,
        }
    }

    /// Its parameters.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Submits an all-reduce of a tensor of this many bytes, behind those before it.
    ///
    /// # Panics
    /// If `bytes` is no multiple of the element's bytes.
    pub fn submit(&mut self, element: Element, bytes: usize) -> AllReduce {
        assert!(bytes.is_multiple_of(element.bytes()), "half an element");
        let number = AllReduce(self.submitted);
        self.submitted += 1;
        self.pending.push_back(Pending {
            number,
            element,
            bytes,
            posted: 0,
            summed: 0,
        });
        number
    }

    /// The next message to post: a receive for it, then the send.
    pub fn poll_post(&mut self) -> Option<Post> {
        let Config {
            window,
            message_bytes,
            ..
        } = self.config;
        if self.posted - self.summed >= u64::from(window) {
            return None;
        }
        let pending = self.pending.iter_mut().find(|it| it.posted < it.bytes)?;
        let (element, span) = if self.posted == 0 {
            (OPENING, opening(pending.number))
        } else if self.is_open {
            let span = pending.span(pending.posted, message_bytes);
            pending.posted = span.range.end;
            (pending.element, span)
        } else {
            return None;
        };
        let message = self.posted as u32;
        self.posted += 1;
        let header = RingHeader {
            element,
            rank: self.config.rank,
            is_summed: false,
            ring: self.config.ring,
            epoch: self.config.epoch,
            message,
            bytes: (span.range.len() + span.pad) as u32,
        };
        Some(Post {
            message,
            header: header.emit(&self.config.secret, &self.config.to),
            span,
        })
    }

    /// The successor has acknowledged this message.
    pub const fn sent(&mut self, message: u32) {
        self.is_open |= message == 0;
    }

    /// Takes the message that the predecessor's connection has delivered, from its first bytes and
    /// the length of the whole. Returns where its elements go.
    ///
    /// # Errors
    /// If it is not the sum that comes next. The epoch has ended.
    pub fn received(&mut self, front: &[u8], bytes: usize) -> Result<Span, RingError> {
        let Config { secret, from, .. } = &self.config;
        let header = RingHeader::parse(front, secret, from)?;
        self.check(&header)?;
        let message_bytes = self.config.message_bytes;
        if self.posted == self.summed {
            return Err(RingError::Unposted(header.message));
        }
        let is_due = |it: &&mut Pending| it.summed < it.bytes;
        let pending = self.pending.iter_mut().find(is_due);
        let pending = pending.ok_or(RingError::Unposted(header.message))?;
        let (element, span) = match self.summed {
            0 => (OPENING, opening(pending.number)),
            _ => (pending.element, pending.span(pending.summed, message_bytes)),
        };
        if header.element != element {
            return Err(RingError::Element {
                found: header.element,
                expected: element,
            });
        }
        let expected = span.range.len() + span.pad;
        for found in [
            header.bytes as usize,
            bytes.saturating_sub(RING_HEADER_BYTES),
        ] {
            if found != expected {
                return Err(RingError::Bytes { found, expected });
            }
        }
        pending.summed += span.range.len();
        self.summed += 1;
        Ok(span)
    }

    /// Checks what no all-reduce changes.
    fn check(&self, header: &RingHeader) -> Result<(), RingError> {
        let Config {
            ring,
            epoch,
            rank,
            members,
            ..
        } = self.config;
        let predecessor = (rank + members - 1) % members;
        if header.ring != ring {
            return Err(RingError::Ring(header.ring));
        }
        if header.epoch != epoch {
            return Err(RingError::Epoch(header.epoch));
        }
        if header.rank != predecessor {
            return Err(RingError::Rank {
                found: header.rank,
                expected: predecessor,
            });
        }
        if !header.is_summed {
            return Err(RingError::NotSummed);
        }
        let expected = self.summed as u32;
        if header.message != expected {
            return Err(RingError::Message {
                found: header.message,
                expected,
            });
        }
        Ok(())
    }

    /// Number of messages whose sum has arrived.
    pub(crate) const fn summed(&self) -> u64 {
        self.summed
    }

    /// The next all-reduce whose sums have all arrived, in the order of submission.
    pub fn poll_done(&mut self) -> Option<AllReduce> {
        let is_done = |it: &mut Pending| it.summed == it.bytes;
        Some(self.pending.pop_front_if(is_done)?.number)
    }

    /// Number of all-reduces submitted and not done.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}
