//! A member of a ring: an all-reduce in place, between the NIC and the tensor.
//!
//! A message is a header in memory of the member's own and a range of the tensor, two parts of one
//! work request. Its receive has a header of its own and the same range: the sum replaces the
//! contribution.

use crate::device::{Device, Memory, Region, Registration};
use crate::queue::{Completion, CompletionQueue, Failed, Part, Peer, QueuePair};
use crate::rendezvous::{
    Call, Client, Coordinator, Hello, Limits, RendezvousError, RingConfig, Welcome,
};
use crate::{Stop, VerbsError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tally_local::SharedMemory;
use tally_roce::ring::{self, AllReduce, Post, Ring, RingError, message_bytes};
use tally_wire::netreduce::{
    Channel, DEFAULT_DSCP, Element, GRANULE_BYTES, RING_HEADER_BYTES, RingEpoch, RingId,
};
use tally_wire::roce::Psn;
use thiserror::Error;

/// Bytes of a header, and of the pad behind it, in a member's own memory.
const SLOT_BYTES: usize = 64;
/// Sends that have no completion yet, for each message of the window: the acknowledgement of a
/// message may come after its sum.
const SENDS: usize = 2;
/// Set in the number of a receive.
const RECEIVE: u64 = 1 << 63;

const _: () = assert!(RING_HEADER_BYTES + GRANULE_BYTES as usize <= SLOT_BYTES);

/// Parameters of a member.
#[derive(Clone, Debug)]
pub struct Config {
    /// The ring.
    pub ring: RingConfig,
    /// Rank of this member.
    pub rank: u8,
    /// IPv4 address of its device.
    pub address: Ipv4Addr,
    /// Where rank 0 listens.
    pub coordinator: SocketAddr,
    /// DSCP of the ring's packets.
    pub dscp: u8,
    /// Packets of a message.
    pub packets: u16,
    /// Messages in flight.
    pub window: u16,
    /// Maximum time until all members have come.
    pub join_timeout: Duration,
    /// Maximum time until all members have come to an all-reduce, from the first one on. Without it
    /// they wait without limit. Rank 0's counts.
    pub stall_timeout: Option<Duration>,
    /// Last epoch of this member.
    pub last_epoch: Option<RingEpoch>,
    /// Ends the epoch when it is set.
    pub stop: Stop,
}

impl Config {
    /// A member as it is by default.
    #[must_use]
    pub fn new(ring: RingConfig, rank: u8, address: Ipv4Addr, coordinator: SocketAddr) -> Self {
        Self {
            ring,
            rank,
            address,
            coordinator,
            dscp: DEFAULT_DSCP,
            packets: 170,
            window: 2,
            join_timeout: Limits::default().join,
            stall_timeout: None,
            last_epoch: None,
            stop: Stop::default(),
        }
    }
}

/// Error of a member: the ring, the rank, and the cause.
#[derive(Debug, Error)]
#[error("ring {ring}: rank {rank}: {cause}")]
pub struct MemberError {
    /// The ring.
    pub ring: RingId,
    /// Rank of this member.
    pub rank: u8,
    /// The cause.
    #[source]
    pub cause: Cause,
}

/// Cause of a member's error.
#[derive(Debug, Error)]
pub enum Cause {
    /// Device or library.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// The coordinator can't listen.
    #[error("coordinator on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// The ring did not form.
    #[error(transparent)]
    Join(RendezvousError),
    /// Another member has failed, died, or sums something else.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// A send to the successor failed.
    #[error("send to rank {rank} ({address}): {text}")]
    Send {
        /// Rank of the successor.
        rank: u8,
        /// Its address.
        address: Ipv4Addr,
        /// Status of the completion.
        text: String,
    },
    /// A receive from the predecessor failed.
    #[error("receive from rank {rank} ({address}): {text}")]
    Receive {
        /// Rank of the predecessor.
        rank: u8,
        /// Its address.
        address: Ipv4Addr,
        /// Status of the completion.
        text: String,
    },
    /// A message is not the sum that comes next.
    #[error("from rank {rank} ({address}): {error}")]
    Message {
        /// Rank of the predecessor.
        rank: u8,
        /// Its address.
        address: Ipv4Addr,
        /// What is wrong with it.
        #[source]
        error: RingError,
    },
    /// Waiting failed.
    #[error("poll: {0}")]
    Poll(#[from] Errno),
    /// A member after an error.
    #[error("the epoch has ended by an earlier error")]
    Ended,
}

/// A member of a ring in one epoch.
pub struct Member {
    config: Config,
    device: Arc<Device>,
    welcome: Welcome,
    client: Client,
    coordinator: Option<Coordinator>,
    /// None after an error.
    links: Option<Links>,
}

/// The connections of a member. Dropped before any memory that was posted on them.
struct Links {
    ring: Ring,
    to: QueuePair,
    from: QueuePair,
    completions: Arc<CompletionQueue>,
    /// Slots of headers to send, then of headers received.
    headers: Memory,
    /// Sends without a completion.
    unsent: usize,
    send_slots: usize,
    receive_slots: usize,
}

impl Member {
    /// Opens the device, finds the other members, and connects. At rank 0, also starts the
    /// coordinator.
    ///
    /// # Errors
    /// [`MemberError`], with its cause.
    pub fn join(config: Config) -> Result<Self, MemberError> {
        let (ring, rank) = (config.ring.ring, config.rank);
        Self::connect(config).map_err(|cause| MemberError { ring, rank, cause })
    }

    fn connect(config: Config) -> Result<Self, Cause> {
        let device = Device::open(config.address)?;
        let window = usize::from(config.window.max(1));
        let (send_slots, receive_slots) = (SENDS * window, window);
        let completions = CompletionQueue::new(&device, send_slots + receive_slots)?;
        let to = QueuePair::new(&device, &completions, (send_slots, 1))?;
        let from = QueuePair::new(&device, &completions, (1, receive_slots))?;
        let headers = Memory::new(&device, (send_slots + receive_slots) * SLOT_BYTES)?;
        let coordinator = if config.rank == 0 {
            let address = config.coordinator;
            let listen = |error| Cause::Listen(address, error);
            let listener = TcpListener::bind(address).map_err(listen)?;
            let limits = Limits {
                join: config.join_timeout,
                stall: config.stall_timeout,
                ..Limits::default()
            };
            Some(Coordinator::start(listener, config.ring.clone(), limits).map_err(listen)?)
        } else {
            None
        };
        let hello = Hello {
            rank: config.rank,
            address: config.address,
            to: to.number(),
            from: from.number(),
            psn: first_psn()?,
            mtu: device.mtu() as u16,
            packets: config.packets,
            window: config.window,
            last_epoch: config.last_epoch,
        };
        let (client, welcome) = Client::join(
            config.coordinator,
            &config.ring,
            &hello,
            config.join_timeout,
            &config.stop,
        )
        .map_err(Cause::Join)?;
        let mtu = usize::from(welcome.mtu);
        let Welcome {
            successor,
            predecessor,
            ..
        } = welcome;
        let peer = |it: crate::rendezvous::Neighbour| Peer {
            address: it.address,
            qp: it.qp,
            psn: it.psn,
            mtu,
            dscp: config.dscp,
        };
        to.connect(&peer(successor))?;
        from.connect(&peer(predecessor))?;
        let ring = Ring::new(ring::Config {
            ring: config.ring.ring,
            secret: config.ring.key.ring_secret(config.ring.ring),
            epoch: welcome.epoch,
            rank: config.rank,
            members: config.ring.members,
            to: Channel {
                source: config.address,
                destination: successor.address,
                qp: successor.qp,
            },
            from: Channel {
                source: predecessor.address,
                destination: config.address,
                qp: from.number(),
            },
            message_bytes: message_bytes(usize::from(config.packets), mtu),
            window: config.window.into(),
        });
        Ok(Self {
            config,
            device,
            welcome,
            client,
            coordinator,
            links: Some(Links {
                ring,
                to,
                from,
                completions,
                headers,
                unsent: 0,
                send_slots,
                receive_slots,
            }),
        })
    }

    /// The epoch.
    #[must_use]
    pub const fn epoch(&self) -> RingEpoch {
        self.welcome.epoch
    }

    /// Its device.
    #[must_use]
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A tensor of this many zero bytes.
    ///
    /// # Errors
    /// If the device refuses to register it.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn tensor(&self, bytes: usize) -> Result<Memory, MemberError> {
        Memory::new(&self.device, bytes).map_err(|error| self.error(error.into()))
    }

    /// Memory that another process shares, for the device.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn region(&self, memory: SharedMemory) -> Result<Region, MemberError> {
        Region::new(&self.device, memory).map_err(|error| self.error(error.into()))
    }

    /// Replaces the elements of the tensor by their sums over all members. Waits until all members
    /// have called it with the same type and length.
    ///
    /// # Errors
    /// [`MemberError`]. The epoch has ended, and the tensor is neither contribution nor sum.
    ///
    /// # Panics
    /// If the tensor is of another device, or ends in a part of an element.
    pub fn all_reduce(&mut self, tensor: &mut Memory, element: Element) -> Result<(), MemberError> {
        let range = 0..tensor.len();
        self.all_reduce_part(tensor, range, element, "")
    }

    /// As [`all_reduce`](Self::all_reduce), of a part of a tensor. The members' names for it must
    /// be alike.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Panics
    /// As [`all_reduce`](Self::all_reduce), and if the range is not in the tensor.
    pub fn all_reduce_part(
        &mut self,
        tensor: &mut Memory,
        range: Range<usize>,
        element: Element,
        name: &str,
    ) -> Result<(), MemberError> {
        self.sum((tensor.registration(), range), element, name)
    }

    /// As [`all_reduce_part`](Self::all_reduce_part), in memory of another process, which leaves
    /// the range alone meanwhile. What it does to it spoils that sum alone.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Panics
    /// As [`all_reduce_part`](Self::all_reduce_part).
    pub fn all_reduce_region(
        &mut self,
        region: &mut Region,
        range: Range<usize>,
        element: Element,
        name: &str,
    ) -> Result<(), MemberError> {
        self.sum((region.registration(), range), element, name)
    }

    fn sum(
        &mut self,
        tensor: (&Registration, Range<usize>),
        element: Element,
        name: &str,
    ) -> Result<(), MemberError> {
        // Dropped on an error and in a panic, before `tensor` can be used again.
        let Some(mut links) = self.links.take() else {
            return Err(self.error(Cause::Ended));
        };
        match self.run(&mut links, &tensor, element, name) {
            Ok(()) => {
                self.links = Some(links);
                Ok(())
            }
            Err(cause) => {
                drop(links);
                self.client.fail(&cause.to_string());
                // The next epoch's coordinator listens at the same port.
                if let Some(coordinator) = self.coordinator.take() {
                    coordinator.join();
                }
                Err(self.error(cause))
            }
        }
    }

    /// Ends the epoch with all other members.
    ///
    /// # Errors
    /// If one of them has failed, died, or sums.
    pub fn leave(mut self) -> Result<(), MemberError> {
        let left = self.client.enter(Call::Leave);
        if let Some(coordinator) = self.coordinator.take() {
            coordinator.join();
        }
        left.map_err(|error| self.error(error.into()))
    }

    fn run(
        &self,
        links: &mut Links,
        (tensor, range): &(&Registration, Range<usize>),
        element: Element,
        name: &str,
    ) -> Result<(), Cause> {
        let bytes = range.len();
        let call = Call::AllReduce {
            element,
            bytes: bytes as u64,
        };
        self.client.enter_as(call, name)?;
        let number = links.ring.submit(element, bytes);
        let mut done: Option<AllReduce> = None;
        loop {
            while links.unsent < links.send_slots
                && let Some(post) = links.ring.poll_post()
            {
                // SAFETY: the tensor is borrowed by the caller of `sum`, mutably, until all
                // completions have come or the queue pairs are dropped.
                unsafe { links.post(&post, tensor, range.start) }?;
            }
            done = done.or_else(|| links.ring.poll_done());
            // The NIC may read the tensor until its sends are acknowledged.
            if done == Some(number) && links.unsent == 0 {
                return Ok(());
            }
            for completion in self.completions(links)? {
                self.complete(links, completion)?;
            }
        }
    }

    /// Completions, once there are some.
    fn completions(&self, links: &Links) -> Result<Vec<Completion>, Cause> {
        let queue = &links.completions;
        let found = queue.poll()?;
        if !found.is_empty() {
            return Ok(found);
        }
        queue.arm()?;
        let found = queue.poll()?;
        if !found.is_empty() {
            return Ok(found);
        }
        let mut ready = [queue.descriptor(), self.client.descriptor()]
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
        match poll(&mut ready, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok(Vec::new()),
            result => result?,
        };
        if ready[1].any() == Some(true) {
            return Err(self.client.failure().into());
        }
        Ok(Vec::new())
    }

    fn complete(&self, links: &mut Links, completion: Completion) -> Result<(), Cause> {
        let Completion { id, result } = completion;
        let members = self.config.ring.members;
        if id & RECEIVE == 0 {
            links.unsent -= 1;
            return result.map(|_| links.ring.sent(id as u32)).map_err(
                |Failed { text, .. }| Cause::Send {
                    rank: (self.config.rank + 1) % members,
                    address: self.welcome.successor.address,
                    text,
                },
            );
        }
        let rank = (self.config.rank + members - 1) % members;
        let address = self.welcome.predecessor.address;
        let bytes = result.map_err(|Failed { text, .. }| Cause::Receive {
            rank,
            address,
            text,
        })?;
        let slot = links.send_slots + (id & !RECEIVE) as usize % links.receive_slots;
        let at = slot * SLOT_BYTES;
        let mut header = [0; RING_HEADER_BYTES];
        links.headers.read(at, &mut header);
        let received = links
            .ring
            .received(&header[..bytes.min(RING_HEADER_BYTES)], bytes);
        received.map(|_| ()).map_err(|error| Cause::Message {
            rank,
            address,
            error,
        })
    }

    fn error(&self, cause: Cause) -> MemberError {
        MemberError {
            ring: self.config.ring.ring,
            rank: self.config.rank,
            cause,
        }
    }
}

impl Links {
    /// Posts the receive of a message, then its send.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`], of `tensor`.
    unsafe fn post(
        &mut self,
        post: &Post,
        tensor: &Registration,
        start: usize,
    ) -> Result<(), VerbsError> {
        let message = post.message;
        let of = |slots: usize| message as usize % slots * SLOT_BYTES;
        let send = of(self.send_slots);
        let receive = self.send_slots * SLOT_BYTES + of(self.receive_slots);
        // The pad, if any, is zero: nothing is written there.
        self.headers.write(send, &post.header);
        let range = &post.span.range;
        let headers = self.headers.registration();
        let parts = |slot: usize| -> [Part<'_>; 3] {
            [
                (headers, slot, RING_HEADER_BYTES),
                (tensor, start + range.start, range.len()),
                (headers, slot + RING_HEADER_BYTES, post.span.pad),
            ]
        };
        // SAFETY: the caller's promise for the tensor. No receive is pending in this slot, since
        // the ring has no more messages in flight than slots.
        unsafe {
            self.from
                .post_receive(RECEIVE | u64::from(message), &parts(receive))
        }?;
        // SAFETY: as above; `unsent` bounds the sends that use a slot.
        unsafe { self.to.post_send(message.into(), &parts(send)) }?;
        self.unsent += 1;
        Ok(())
    }
}

/// A random first PSN: packets of a connection before are not taken for this one's.
fn first_psn() -> Result<Psn, RendezvousError> {
    let bits = getrandom::u32()
        .map_err(|error| RendezvousError::Connection(std::io::Error::other(error.to_string())))?;
    Ok(Psn::new(bits))
}
