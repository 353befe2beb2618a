//! Tally's own protocol as a dialect: headers, admission, and the pool shard's way out.
//!
//! A contribution's frame is its own buffer: the first one of a fragment becomes the accumulator,
//! is given new headers, and leaves. Nothing is copied.
//!
//! Contributions wait in a [`Batch`] for the end of the poll iteration. All other frames are
//! handled at once, after what came before them.
//!
//! Fast path: a port's frames mostly come from one worker and differ in fragment and priority only.
//! The flow cache remembers what was found out about the last one. It holds until a roster changes.

pub mod admission;
pub mod aggregator;
pub mod batch;
mod held;
pub mod policy;
pub mod pool;
mod ring;
mod sent_to_ps;
mod slot;
mod sum_times;

use crate::buffer::{Buffer, Egress, To};
use crate::context::{Context, ControlFrame, job_of};
use crate::demux::{Arrival, Claim};
use crate::dialect::{Dialect, Next};
use crate::frame::{Frame, Observed, Platform};
use crate::metrics;
use crate::queue::{class_of, class_of_header};
use crate::{
    Admission, Aggregator, Batch, Contribution, Counters, DropReason, JobCounters, Member, PoolJob,
    PortId, Roster,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tally_wire::frame::{UDP_END, emit, group_of};
use tally_wire::header::field::PRIORITY;
use tally_wire::{Addresses, HEADERS_BYTES, Header, JobId, Kind, Mac, Rank, Time, Train};

/// A received frame with exactly its headers and payload.
pub struct Datagram<F>(pub F);

impl<F: Frame> Buffer for Datagram<F> {
    #[inline]
    fn payload(&self) -> &[u8] {
        self.0.elements(HEADERS_BYTES)
    }

    #[inline]
    fn payload_mut(&mut self) -> &mut [u8] {
        self.0
            .elements_mut(HEADERS_BYTES)
            .expect("the engine writes only to frames it never shared")
    }
}

/// The last contribution of a port: frames like it are admitted.
#[derive(Clone, Copy, Debug)]
struct Flow {
    template: Train,
    contribution: Contribution,
}

metrics! {
    /// What is in use of a pool shard.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct PoolUse, labels [] {
        /// Slots in use now.
        pub slots_in_use: usize = gauge "slots_in_use";
        /// Contributions held unsummed now.
        pub held_in_use: u32 = gauge "held_contributions";
    }
}

/// What the native protocol did on one core.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What its pool shard did.
    pub counters: Counters,
    /// What it uses of its pool shard.
    pub in_use: PoolUse,
    /// Nanoseconds from a fragment's first contribution to its result.
    pub residence_ns: hdrhistogram::Histogram<u64>,
    /// What it did for each configured job.
    pub jobs: Vec<(JobId, JobCounters)>,
}

/// What control asks of the native protocol.
pub enum Command {
    /// Have these jobs configured, with these limits, and no others. A job that runs is one of
    /// them.
    Configure(Arc<[PoolJob]>),
}

/// Tally's protocol on one core.
pub struct Native<P: Platform> {
    /// UDP ports that are its own.
    base_port: u16,
    shards: u16,
    aggregator: Aggregator<Datagram<P::Frame>>,
    /// Contributions of the poll iteration; empty between iterations.
    batch: Batch<Datagram<P::Frame>>,
    /// By port, its own and those of other cores.
    flows: Vec<Option<Flow>>,
    residence: Residence,
}

impl<P: Platform> Native<P> {
    /// A pool shard that serves as many UDP ports from `base_port` on as there are shards, for a
    /// switch with so many ports.
    #[must_use]
    pub fn new(
        aggregator: Aggregator<Datagram<P::Frame>>,
        base_port: u16,
        shards: u16,
        ports: usize,
    ) -> Self {
        Self {
            base_port,
            shards,
            aggregator,
            batch: Batch::new(),
            flows: vec![None; ports],
            residence: Residence::new(),
        }
    }

    /// Its pool shard.
    #[must_use]
    pub fn aggregator(&self) -> &Aggregator<Datagram<P::Frame>> {
        &self.aggregator
    }

    /// A contribution, for the end of the poll iteration.
    #[inline(always)]
    fn collect(&mut self, context: &mut Context<P>, contribution: Contribution, frame: P::Frame) {
        if self.batch.is_full() {
            self.aggregate_batch(context);
        }
        self.batch.push(contribution, Datagram(frame));
    }

    /// The shard of a NACK or RESULT: by its UDP port, or by its fragment if it is of a parent.
    fn shard_of(
        &self,
        from: &Member,
        header: &Header,
        addresses: &Addresses,
    ) -> Result<usize, DropReason> {
        match self.aggregator.shard_of_parents(from, header) {
            Ok(_) if job_of(addresses.dst_ip).is_some_and(|job| job != header.job) => {
                Err(DropReason::UnknownJob)
            }
            Ok(shard) => Ok(shard),
            Err(reason) if job_of(addresses.dst_ip).is_some() => Err(reason),
            Err(_) => Ok(usize::from(addresses.dst_port - self.base_port)),
        }
    }

    /// As the aggregator admits: a member behind other switches, which joined over another link to
    /// the same place. Each of its flows takes one way. A result of the parent comes by the
    /// parent's own link alone.
    ///
    /// # Errors
    /// Why not.
    #[cold]
    fn admit_detour(
        &self,
        context: &Context<P>,
        from: &Member,
        header: &Header,
    ) -> Result<Admission, DropReason> {
        let is_parents = header.kind == Kind::Result && header.rank == Rank::SWITCH;
        let links = context.forwarding.beside(from.port);
        let admit = |port| {
            let from = Member { port, ..*from };
            self.aggregator.admit(&from, header)
        };
        let mut admitted = links.filter(|_| !is_parents).map(admit);
        admitted
            .find(|it| *it != Err(DropReason::NotMember))
            .unwrap_or(Err(DropReason::NotMember))
    }

    /// Sums what has come in.
    #[inline]
    fn aggregate_batch(&mut self, context: &mut Context<P>) {
        let now = context.now;
        let mut out = Out {
            context,
            residence: &mut self.residence,
        };
        self.aggregator.handle_batch(now, &mut self.batch, &mut out);
    }
}

impl<P: Platform> Dialect<P> for Native<P> {
    type Command = Command;
    type Metrics = Metrics;

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Local {
            ports: self.base_port..=self.base_port + (self.shards - 1),
            any_mac: false,
        }]
    }

    #[inline]
    fn receive(
        &mut self,
        context: &mut Context<P>,
        arrival: &Arrival,
        mut frame: P::Frame,
    ) -> Result<Next<P::Frame>, DropReason> {
        let Some(udp) = &arrival.udp else {
            return Err(DropReason::UdpPort);
        };
        let addresses = &udp.addresses;
        let header = Header::parse(udp.datagram(frame.data()))?.received_with(udp.ecn);
        let from = Member {
            port: arrival.port,
            mac: addresses.src_mac,
            ip: addresses.src_ip,
            udp_port: addresses.src_port,
        };
        let is_to_group = addresses.dst_ip != context.address.ip;
        let may_be = match header.kind {
            Kind::Result => true,
            // Only from a parent, which answers JOIN and LEAVE.
            Kind::Accept | Kind::Refuse => {
                !is_to_group && context.parents.is_parent(from.port, from.mac, from.ip)
            }
            _ => !is_to_group,
        };
        if !may_be {
            return Err(DropReason::NotForSwitch);
        }
        if header.kind.is_control() {
            let datagram = udp.datagram(frame.data()).try_into();
            context.to_control(ControlFrame {
                from,
                header,
                datagram: Box::new(datagram.map_err(|_| DropReason::Length)?),
            });
            return Ok(Next::Done);
        }
        if context.jobs.is_moved(header.job) {
            return Ok(Next::Job(header.job, frame));
        }
        let shard = match header.kind {
            Kind::Nack | Kind::Result => self.shard_of(&from, &header, addresses)?,
            _ => usize::from(addresses.dst_port - self.base_port),
        };
        if shard != context.core {
            context.ports.hand_over(shard, arrival.port, frame);
            return Ok(Next::Done);
        }
        let admission = match self.aggregator.admit(&from, &header) {
            Err(DropReason::NotMember) => self.admit_detour(context, &from, &header)?,
            admitted => admitted?,
        };
        let contribution = Contribution::new(admission, &header);
        if let Some(contribution) = contribution {
            self.flows[usize::from(arrival.port.0)] =
                frame.data().first_chunk().map(|headers| Flow {
                    template: Train::new(headers, header),
                    contribution,
                });
        }
        // Padding would be sent on with the result. Only of a frame that is not shared and has one
        // segment can the length be set.
        if !frame.set_len(HEADERS_BYTES + header.payload_bytes()) {
            return Err(DropReason::Length);
        }
        context
            .platform
            .observe(Observed::Admitted(&header, &frame));
        if let Some(contribution) = contribution {
            self.collect(context, contribution, frame);
        } else {
            // What came before it is done before it.
            self.aggregate_batch(context);
            let now = context.now;
            let mut out = Out {
                context,
                residence: &mut self.residence,
            };
            self.aggregator
                .handle_admitted(now, admission, &header, Datagram(frame), &mut out);
        }
        Ok(Next::Done)
    }

    #[inline(always)]
    fn receive_cached(
        &mut self,
        context: &mut Context<P>,
        port: PortId,
        frames: &mut impl Iterator<Item = P::Frame>,
    ) -> Option<P::Frame> {
        let Some(flow) = self.flows[usize::from(port.0)] else {
            return frames.next();
        };
        for mut frame in frames {
            if let Some((fragment, priority)) = flow.template.follows(frame.data())
                && self
                    .aggregator
                    .still_admits(flow.contribution.admission(), fragment)
                && !frame.has_bad_checksum()
                // Padding, as in `receive`.
                && frame.set_len(flow.template.frame_bytes())
            {
                let contribution = flow.contribution.of(fragment, priority);
                if P::OBSERVES {
                    let header = flow.template.header(fragment, priority);
                    context
                        .platform
                        .observe(Observed::Admitted(&header, &frame));
                }
                self.collect(context, contribution, frame);
            } else {
                return Some(frame);
            }
        }
        None
    }

    #[inline]
    fn aggregate(&mut self, context: &mut Context<P>) {
        self.aggregate_batch(context);
    }

    fn command(&mut self, _: &mut Context<P>, command: Command) {
        match command {
            Command::Configure(jobs) => self.aggregator.configure(&jobs),
        }
    }

    fn metrics(&self, _: &Context<P>) -> Metrics {
        Metrics {
            counters: *self.aggregator.counters(),
            in_use: PoolUse {
                slots_in_use: self.aggregator.slots_in_use(),
                held_in_use: self.aggregator.held_in_use(),
            },
            residence_ns: self.residence.histogram(),
            jobs: self.aggregator.job_counters().collect(),
        }
    }

    fn bind(&mut self, context: &mut Context<P>, roster: &Arc<Roster>) {
        let mut out = Out {
            context,
            residence: &mut self.residence,
        };
        self.aggregator.bind((**roster).clone(), &mut out);
    }

    fn release(&mut self, context: &mut Context<P>, job: JobId) {
        // Commands come between poll iterations.
        assert!(self.batch.is_empty());
        let mut out = Out {
            context,
            residence: &mut self.residence,
        };
        self.aggregator.hand_over(job, &mut out);
    }

    fn unbind(&mut self, context: &mut Context<P>, job: JobId) {
        let mut out = Out {
            context,
            residence: &mut self.residence,
        };
        self.aggregator.unbind(job, &mut out);
    }

    fn arrivals(&self, job: JobId) -> u64 {
        let mut all = self.aggregator.arrivals();
        all.find(|&(id, _)| id == job).map_or(0, |(_, count)| count)
    }
}

/// Nanoseconds from a fragment's first contribution to its result.
struct Residence {
    histogram: hdrhistogram::Histogram<u64>,
    /// Results within one poll iteration, which are most: they are in the histogram only when it is
    /// asked for.
    at_once: u64,
}

impl Residence {
    fn new() -> Self {
        Self {
            // Two digits from 1 ns to 100 s: 32 KiB.
            histogram: hdrhistogram::Histogram::new_with_bounds(1, 100_000_000_000, 2)
                .expect("bounds that hdrhistogram takes"),
            at_once: 0,
        }
    }

    #[inline]
    fn record(&mut self, born: Time, now: Time) {
        if born == now {
            self.at_once += 1;
        } else {
            let nanos = now.since(born).as_nanos() as u64;
            self.histogram.saturating_record(nanos);
        }
    }

    /// All of them. Those of one poll iteration count as 1 ns, the least that it holds.
    fn histogram(&self) -> hdrhistogram::Histogram<u64> {
        let mut all = self.histogram.clone();
        if self.at_once > 0 {
            all.saturating_record_n(1, self.at_once);
        }
        all
    }
}

/// The pool shard's way out.
struct Out<'a, P: Platform> {
    context: &'a mut Context<P>,
    residence: &'a mut Residence,
}

impl<P: Platform> Out<'_, P> {
    fn write_headers(frame: &mut P::Frame, addresses: &Addresses, header: &Header) {
        let bytes = frame
            .data_mut()
            .expect("the engine sends only frames it never shared");
        emit(bytes, addresses, header);
    }

    /// Sends an unshared frame to the parent, as long as `header` says.
    #[cold]
    fn send_to_parent(&mut self, roster: &Roster, header: &Header, mut frame: P::Frame) {
        let context = &mut *self.context;
        let Some(uplink) = &roster.uplink else { return };
        if !frame.set_len(HEADERS_BYTES + header.payload_bytes()) {
            context.ports.no_buffer += 1;
            return context.ports.recycle(frame);
        }
        let to = uplink.shard_of(header.fragment);
        Self::write_headers(&mut frame, &context.addresses_to(&to), header);
        context.ports.send(to.port, class_of_header(header), frame);
    }
}

impl<P: Platform> Egress<Datagram<P::Frame>> for Out<'_, P> {
    #[inline]
    fn send(
        &mut self,
        roster: &Roster,
        to: To,
        header: &Header,
        Datagram(mut frame): Datagram<P::Frame>,
    ) {
        let context = &mut *self.context;
        context.platform.observe(Observed::Sent(header, &frame));
        let member = match to {
            To::Ps => Some(roster.server_of(header.fragment)),
            To::Worker(rank) => roster.member(rank),
            To::Parent => return self.send_to_parent(roster, header, frame),
        };
        let Some(member) = member else { return };
        let trailer = header.kind.trailer_bytes();
        if trailer > 0 {
            let payload_end = HEADERS_BYTES + header.payload_bytes();
            // It fits: `units` leaves room for it in the MTU, and buffers hold the MTU.
            if !frame.set_len(payload_end + trailer) {
                context.ports.no_buffer += 1;
                return context.ports.recycle(frame);
            }
            let bytes = frame.data_mut().expect("it could be resized");
            header.emit_trailer(&mut bytes[payload_end..]);
        }
        Self::write_headers(&mut frame, &context.addresses_to(member), header);
        context
            .ports
            .send(member.port, class_of_header(header), frame);
    }

    #[inline]
    fn publish(
        &mut self,
        roster: &Roster,
        header: &Header,
        Datagram(mut frame): Datagram<P::Frame>,
        born: Option<Time>,
    ) -> Datagram<P::Frame> {
        let context = &mut *self.context;
        context
            .platform
            .observe(Observed::Published(header, &frame, born));
        let group = group_of(roster.job);
        let addresses = Addresses {
            src_mac: context.address.mac,
            dst_mac: Mac::of_group(group),
            src_ip: context.address.ip,
            dst_ip: group,
            src_port: context.address.base_port,
            dst_port: context.address.base_port,
        };
        Self::write_headers(&mut frame, &addresses, header);
        let class = class_of_header(header);
        let frame = context.ports.multicast(&roster.ports, class, frame);
        if let Some(born) = born {
            self.residence.record(born, context.now);
        }
        Datagram(frame)
    }

    #[inline]
    fn republish(&mut self, roster: &Roster, to: Rank, Datagram(frame): &Datagram<P::Frame>) {
        if let Some(member) = roster.member(to) {
            let frame = frame.share();
            // By the priority that is written in it.
            let class = class_of(frame.data()[UDP_END + PRIORITY]);
            self.context.ports.send(member.port, class, frame);
        }
    }

    fn send_up(
        &mut self,
        roster: &Roster,
        header: &Header,
        Datagram(mut frame): Datagram<P::Frame>,
        born: Option<Time>,
    ) -> Datagram<P::Frame> {
        let context = &mut *self.context;
        context.platform.observe(Observed::Sent(header, &frame));
        let Some(uplink) = &roster.uplink else {
            return Datagram(frame);
        };
        let to = uplink.shard_of(header.fragment);
        Self::write_headers(&mut frame, &context.addresses_to(&to), header);
        // As a result to one port: marked before it is shared.
        let class = class_of_header(header);
        let frame = context.ports.multicast(&[to.port], class, frame);
        if let Some(born) = born {
            self.residence.record(born, context.now);
        }
        Datagram(frame)
    }

    fn copy_up(&mut self, roster: &Roster, header: &Header, Datagram(frame): &Datagram<P::Frame>) {
        match self.context.platform.copy(frame) {
            Some(copy) => self.send(roster, To::Parent, header, Datagram(copy)),
            None => self.context.ports.no_buffer += 1,
        }
    }

    fn is_queued(&self, Datagram(frame): &Datagram<P::Frame>) -> bool {
        !frame.is_unique()
    }

    #[inline]
    fn discard(&mut self, Datagram(frame): Datagram<P::Frame>) {
        self.context.platform.observe(Observed::Discarded(&frame));
        self.context.ports.recycle(frame);
    }
}

const _: () = assert!(UDP_END + tally_wire::header::HEADER_BYTES == HEADERS_BYTES);
