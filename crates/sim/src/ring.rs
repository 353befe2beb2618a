//! Members of a NetReduce ring in simulated time: RoCEv2 in software, all-reduces one behind the
//! other, each compared with the fold of what all ranks contribute.

use crate::address::{Address, SwitchId};
use crate::oracle::Contributions;
use crate::rng::{Rng, mix};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tally_engine::netreduce::RingConfig;
use tally_roce::ring::{AllReduce, Config, Event, Failure, Host, HostConfig, message_bytes};
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{Channel, DEFAULT_DSCP, Element, RingEpoch};
use tally_wire::roce::{
    AETH_BYTES, Aeth, BTH_BYTES, Bth, ICRC_BYTES, IMMEDIATE_BYTES, Opcode, PORT, Psn, QueuePair,
    RETH_BYTES, Syndrome, Verb, seal,
};
use tally_wire::{Addresses, Time};

/// Bytes of a frame of RoCE around its payload at most.
pub const HEADERS_BYTES: usize = UDP_END + BTH_BYTES + RETH_BYTES + IMMEDIATE_BYTES + ICRC_BYTES;
/// Bytes of a tensor that the oracle makes at a time.
const CHUNK_BYTES: usize = 512;
/// Frames of a storm that may wait.
const STORM_FRAMES: usize = 64;

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
struct End {
    qp: QueuePair,
    /// PSN of the first packet that it sends.
    first: Psn,
}

impl End {
    /// An end with a PSN that wraps within the first messages in most cases.
    fn draw(rng: &mut Rng, qp: u32) -> Self {
        let before: u32 = rng.pick(&[1, 3, 20, 100, 1 << 20]);
        Self {
            qp: QueuePair(qp),
            first: Psn::new(before.wrapping_neg()),
        }
    }
}

/// How members work, in all epochs of a ring.
#[derive(Clone, Debug)]
pub struct Work {
    /// Element type and bytes of each all-reduce.
    pub all_reduces: Vec<(Element, usize)>,
    /// All-reduces that are submitted and not done at most.
    pub ahead: usize,
    /// From the end of an all-reduce to the next one that is submitted.
    pub think: Duration,
    /// Path MTU.
    pub mtu: usize,
    /// SEND or RDMA WRITE.
    pub verb: Verb,
    /// Unacknowledged packets of a connection at most.
    pub in_flight: u32,
    /// Retransmission timeout.
    pub timeout: Duration,
    /// Consecutive timeouts before a connection fails.
    pub retries: u32,
    /// Infinite f32, f16 and bf16, in a million.
    pub infinite_ppm: u32,
}

/// What the members of a ring have in common in one epoch.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The switch that sums.
    pub switch: SwitchId,
    /// The ring, as the switch knows it.
    pub ring: RingConfig,
    /// This set of connections.
    pub epoch: RingEpoch,
    /// By rank.
    members: Vec<Address>,
    /// By rank, the connection to the successor: this end, and that of the successor.
    connections: Vec<[End; 2]>,
    /// Ranks at each leaf of a tree of switches; none without a tree.
    leaves: Vec<Range<u8>>,
    work: Rc<Work>,
    /// The first all-reduce of the epoch.
    first: usize,
    contributions: Contributions,
}

impl Plan {
    /// An epoch of a ring, from this all-reduce on.
    #[must_use]
    pub fn new(
        switch: SwitchId,
        ring: &RingConfig,
        members: &[Address],
        epoch: RingEpoch,
        work: &Rc<Work>,
        first: usize,
        rng: &mut Rng,
    ) -> Self {
        // No number is used again soon, and rings that share hosts have numbers of their own.
        let qp = |n: usize| (ring.id.0 << 20 | (epoch.0 & 0xff) << 8 | n as u32) & 0xff_ffff;
        let connections = (0..members.len()).map(|rank| {
            let end = |rng: &mut Rng, side: usize| End::draw(rng, qp(2 * rank + side));
            [end(rng, 0), end(rng, 1)]
        });
        Self {
            switch,
            connections: connections.collect(),
            leaves: Vec::new(),
            ring: ring.clone(),
            epoch,
            members: members.to_vec(),
            work: Rc::clone(work),
            first,
            contributions: Contributions {
                salt: rng.next(),
                workers: members.len() as u8,
                infinite_ppm: work.infinite_ppm,
            },
        }
    }

    /// With the members of these ranks at each leaf of a tree.
    #[must_use]
    pub fn over(self, leaves: Vec<Range<u8>>) -> Self {
        Self { leaves, ..self }
    }

    /// Where a member is.
    #[must_use]
    pub fn address(&self, rank: usize) -> Address {
        self.members[rank]
    }

    fn predecessor(&self, rank: usize) -> usize {
        (rank + self.members.len() - 1) % self.members.len()
    }

    fn successor(&self, rank: usize) -> usize {
        (rank + 1) % self.members.len()
    }

    fn channel(&self, from: usize) -> Channel {
        Channel {
            source: self.members[from].ip(),
            destination: self.members[self.successor(from)].ip(),
            qp: self.connections[from][1].qp,
        }
    }

    fn connection(&self, rank: usize, to: usize, own: End, peer: End) -> tally_roce::Config {
        let [from, to] = [rank, to].map(|rank| self.members[rank]);
        tally_roce::Config {
            addresses: Addresses {
                src_mac: from.mac(),
                dst_mac: to.mac(),
                src_ip: from.ip(),
                dst_ip: to.ip(),
                src_port: from.udp_port,
                dst_port: PORT,
            },
            local: own.qp,
            remote: peer.qp,
            mtu: self.work.mtu,
            first: own.first,
            remote_first: peer.first,
            in_flight: self.work.in_flight,
            timeout: self.work.timeout,
            retries: self.work.retries,
            dscp: DEFAULT_DSCP,
            memory: Vec::new(),
            rkey: 0x5eed,
        }
    }

    fn host(&self, rank: usize) -> Host {
        let (predecessor, successor) = (self.predecessor(rank), self.successor(rank));
        let [to_own, to_peer] = self.connections[rank];
        let [from_peer, from_own] = self.connections[predecessor];
        let packets = usize::from(self.ring.message_packets);
        Host::new(HostConfig {
            ring: Config {
                ring: self.ring.id,
                secret: self.ring.secret,
                epoch: self.epoch,
                rank: rank as u8,
                members: self.members.len() as u8,
                to: self.channel(rank),
                from: self.channel(predecessor),
                message_bytes: message_bytes(packets, self.work.mtu),
                window: self.ring.window_messages.into(),
            },
            verb: self.work.verb,
            to: self.connection(rank, successor, to_own, to_peer),
            from: self.connection(rank, predecessor, from_own, from_peer),
        })
    }

    /// Writes a tensor chunk by chunk: each with its number, and what it is made of.
    fn fill(bytes: usize, number: usize, mut write: impl FnMut(u64, &mut [u8])) -> Vec<u8> {
        let mut tensor = vec![0; bytes];
        for (n, chunk) in tensor.chunks_mut(CHUNK_BYTES).enumerate() {
            write((number as u64) << 16 | n as u64, chunk);
        }
        tensor
    }

    /// An i32 of a rank's contribution.
    fn i32_at(&self, rank: usize, chunk: u64, at: usize) -> i32 {
        let n = chunk << 18 | (rank as u64) << 8 | at as u64;
        let mixed = mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.contributions.salt);
        (mixed as u32).cast_signed()
    }

    fn contribution(&self, rank: usize, number: usize) -> Vec<u8> {
        let (element, bytes) = self.work.all_reduces[number];
        Self::fill(bytes, number, |chunk, out| match float(element) {
            Some(float) => self.contributions.write(rank as u8, chunk, float, out),
            None => {
                for (at, word) in out.chunks_exact_mut(4).enumerate() {
                    word.copy_from_slice(&self.i32_at(rank, chunk, at).to_le_bytes());
                }
            }
        })
    }

    /// What the all-reduce must give: wrapping, or folded in the order of ranks, by a tree at each
    /// leaf and then at the root.
    fn sum(&self, number: usize) -> Vec<u8> {
        let (element, bytes) = self.work.all_reduces[number];
        Self::fill(bytes, number, |chunk, out| match float(element) {
            Some(float) if !self.leaves.is_empty() => {
                let leaves = &self.leaves;
                (self.contributions).write_sum_of_leaves(leaves, chunk, float, out);
            }
            Some(float) => self.contributions.write_sum(chunk, float, out),
            None => {
                for (at, word) in out.chunks_exact_mut(4).enumerate() {
                    let terms = (0..self.members.len()).map(|rank| self.i32_at(rank, chunk, at));
                    word.copy_from_slice(&terms.fold(0, i32::wrapping_add).to_le_bytes());
                }
            }
        })
    }
}

/// The native protocol's type of the same elements, if the order of adding matters.
const fn float(element: Element) -> Option<tally_wire::Element> {
    match element {
        Element::I32 => None,
        Element::F32 => Some(tally_wire::Element::F32),
        Element::F16 => Some(tally_wire::Element::F16),
        Element::Bf16 => Some(tally_wire::Element::Bf16),
    }
}

/// One member of a ring in one epoch.
pub struct Member {
    plan: Rc<Plan>,
    rank: usize,
    host: Host,
    /// The next all-reduce to submit, and when that may be.
    next: usize,
    next_at: Time,
    /// All-reduces done, those of earlier epochs included.
    pub done: usize,
    /// Why the epoch has ended.
    pub failure: Option<Failure>,
    /// A result that was not the sum.
    pub wrong: Option<String>,
    /// Until then, its NIC answers every packet with a NAK.
    pub storm_until: Time,
    /// Its last acknowledgement, and NAKs to send.
    answer: Option<Vec<u8>>,
    naks: VecDeque<Vec<u8>>,
}

impl Member {
    /// A member that begins now.
    #[must_use]
    pub fn new(now: Time, plan: Rc<Plan>, rank: usize) -> Self {
        let mut member = Self {
            host: plan.host(rank),
            rank,
            next: plan.first,
            next_at: now,
            done: plan.first,
            failure: None,
            wrong: None,
            storm_until: Time(0),
            answer: None,
            naks: VecDeque::new(),
            plan,
        };
        member.submit(now);
        member
    }

    /// Whether all all-reduces are done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done == self.plan.work.all_reduces.len()
    }

    /// Packets received in order, for whether it gets on.
    #[must_use]
    pub fn received(&self) -> u64 {
        let [_, from] = self.host.counters();
        from.received
    }

    /// Whether its NIC still retransmits, and so notices that the ring has failed.
    #[must_use]
    pub fn is_retransmitting(&self) -> bool {
        self.failure.is_none() && self.host.unacknowledged() > 0
    }

    fn is_due(&self) -> bool {
        let work = &self.plan.work;
        self.failure.is_none()
            && self.next < work.all_reduces.len()
            && self.host.pending() < work.ahead
    }

    fn submit(&mut self, now: Time) {
        while self.is_due() && self.next_at <= now {
            let (element, _) = self.plan.work.all_reduces[self.next];
            let tensor = self.plan.contribution(self.rank, self.next);
            self.host.submit(element, tensor);
            self.next += 1;
            self.take_events(now);
        }
    }

    fn take_events(&mut self, now: Time) {
        while let Some(event) = self.host.poll_event() {
            match event {
                Event::Failed(failure) => self.failure = Some(failure),
                Event::Done { all_reduce, tensor } => {
                    let (rank, number) = (self.rank, self.done);
                    let expected = AllReduce((number - self.plan.first) as u64);
                    if (all_reduce, &tensor) != (expected, &self.plan.sum(number)) {
                        self.wrong = Some(format!("rank {rank} all-reduce {number}: not the sum"));
                    }
                    self.done += 1;
                    self.next_at = now.after(self.plan.work.think);
                }
            }
        }
    }

    /// Writes a frame, from Ethernet on; says how long it is.
    pub fn poll_transmit(&mut self, now: Time, room: &mut [u8]) -> Option<usize> {
        if let Some(nak) = self.naks.pop_front() {
            room[..nak.len()].copy_from_slice(&nak);
            return Some(nak.len());
        }
        let bytes = self.host.poll_transmit(now, room)?;
        let bth = Bth::parse(&room[UDP_END..bytes]).ok()?;
        if bth.opcode == Opcode::Ack {
            self.answer = Some(room[..bytes].to_vec());
        }
        Some(bytes)
    }

    /// Takes a frame that came to its host, if it is to one of its queue pairs.
    pub fn handle(&mut self, now: Time, frame: &[u8]) -> bool {
        let Some(bth) = frame.get(UDP_END..).and_then(|it| Bth::parse(it).ok()) else {
            return false;
        };
        let to = self.plan.connections[self.rank][0].qp;
        let from = self.plan.connections[self.plan.predecessor(self.rank)][1].qp;
        if bth.qp != to && bth.qp != from {
            return false;
        }
        self.host.receive(frame, now);
        if now < self.storm_until && bth.qp == from && self.naks.len() < STORM_FRAMES {
            self.naks.extend(self.answer.as_deref().and_then(nak));
        }
        self.take_events(now);
        self.submit(now);
        true
    }

    /// When something is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let next = self.is_due().then_some(self.next_at);
        next.into_iter().chain(self.host.poll_timeout()).min()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Time) {
        self.host.handle_timeout(now);
        self.take_events(now);
        self.submit(now);
    }
}

/// The NAK of the packet behind those that a frame acknowledges.
fn nak(answer: &[u8]) -> Option<Vec<u8>> {
    let mut frame = answer.to_vec();
    let datagram = &mut frame[UDP_END..];
    let (headers, rest) = datagram.split_first_chunk_mut::<BTH_BYTES>()?;
    let aeth = rest.first_chunk_mut::<AETH_BYTES>()?;
    let mut bth = Bth::parse(headers).ok()?;
    let said = Aeth::parse(*aeth).ok()?;
    if !matches!(said.syndrome, Syndrome::Ack(_)) {
        return None;
    }
    bth.psn = bth.psn.after(1);
    *headers = bth.emit();
    *aeth = Aeth {
        syndrome: Syndrome::SequenceError,
        ..said
    }
    .emit();
    seal(&mut frame);
    Some(frame)
}
