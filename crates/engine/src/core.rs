//! One core of the switch, without I/O.
//!
//! A driver calls a [`Core`] in poll iterations:
//!
//! 1. [`begin`](Core::begin) with the time, then [`command`](Core::command) for what control asks;
//! 2. [`receive`](Core::receive) for a burst of each port, and
//!    [`receive_handed_over`](Core::receive_handed_over) for frames from other cores;
//! 3. [`aggregate`](Core::aggregate), once;
//! 4. [`poll_control`](Core::poll_control) until it is empty, and [`transmit`](Core::transmit).
//!
//! Contributions of one fragment, which come in on as many ports as there are workers, are summed
//! together in step 3. Commands come between iterations, when no contribution waits.
//!
//! A frame goes to the [dialect](crate::dialect) that claims it ([`Demux`]). All other frames are
//! [forwarded](crate::forwarding). The checks in `classify` stand in the order of
//! their cost. Most frames need none of them: they are like the last frame of their port, and the
//! dialect of that one takes them at once ([`Dialect::receive_cached`]).
//!
//! Invariant: every frame is sent, kept by a dialect, handed over, or given back and counted.
//!
//! [`Dialect::receive_cached`]: crate::dialect::Dialect::receive_cached

use crate::context::{Context, ControlFrame, ParentAddress};
use crate::demux::{Arrival, Demux, DialectId, Overlap};
use crate::dialect::{DialectSet, Next};
use crate::egress::{Handover, PortCounters, RareCounters, Transmit, class_of_frame};
use crate::forwarding::fabric::Table;
use crate::forwarding::{PortAddresses, Proxy, Verdict};
use crate::frame::{Frame, Observed, Platform};
use crate::queue::{QueueConfig, QueueCounters};
use crate::registry::Datagram;
use crate::{DropReason, Drops, Member, PortId, Roster};
use std::sync::Arc;
use tally_wire::frame::ETHERNET_BYTES;
use tally_wire::{Epoch, FrameError, JobId, Mac, Time, UdpFrame};

/// Frames of another core that are prefetched together.
const BURST: usize = 32;

/// Carries an answer to the asker. Called once.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// What control asks of a core.
pub enum Command<C, M> {
    /// Send this datagram.
    Send(Member, Box<Datagram>),
    /// Send this frame by a port.
    SendFrame(PortId, Box<[u8]>),
    /// Give up what waits for a port, which from now on has a queue like this here, or is served by
    /// that core.
    Reassign(PortId, Result<QueueConfig, usize>),
    /// Forward by this table of the fabric.
    Fabric(Arc<Table>),
    /// Start an epoch of a configured job, or change addresses.
    Bind(Arc<Roster>),
    /// End a job.
    Unbind(JobId),
    /// Take frames of a parent switch from this port, or of none any more.
    Parent(PortId, Option<ParentAddress>),
    /// Have another dialect serve this epoch of a job; says whether it still runs.
    Move(JobId, Epoch, DialectId, Reply<bool>),
    /// Have the first dialect serve a job that was moved.
    MoveBack(JobId, Reply<()>),
    /// Have the first dialect serve all jobs of this one, which has failed.
    MoveAllBack(DialectId, Reply<()>),
    /// Say how many contributions of each job have come.
    Arrivals(Reply<Vec<(JobId, u64)>>),
    /// Say what the core did.
    Report(Reply<CoreReport<M>>),
    /// A dialect's own.
    Dialect(C),
}

/// What a core did.
#[derive(Clone, Debug)]
pub struct CoreReport<M> {
    /// Frames dropped outside of dialects.
    pub drops: Drops,
    /// By port.
    pub ports: Vec<PortCounters>,
    /// What waited for each port, if it is one of this core's.
    pub queues: Vec<QueueCounters>,
    /// MAC addresses by port, of all cores together.
    pub addresses: Vec<PortAddresses>,
    /// By port, what is rarely counted.
    pub rare: Vec<RareCounters>,
    /// What the dialects did.
    pub dialects: M,
}

/// The Ethernet header, as it is now.
#[inline(always)]
fn header_of(frame: &[u8]) -> Option<[u8; ETHERNET_BYTES]> {
    frame.first_chunk().copied()
}

/// Hosts that dialects know.
struct Hosts<'a, P, D>(&'a D, std::marker::PhantomData<P>);

impl<P: Platform, D: DialectSet<P>> Proxy for Hosts<'_, P, D> {
    fn answer_arp(&self, frame: &mut [u8], hears: &dyn Fn(PortId) -> bool) -> bool {
        self.0.answer_arp(frame, hears)
    }

    fn port_of(&self, mac: Mac) -> Option<PortId> {
        self.0.port_of(mac)
    }
}

/// One core: the whole switch, without I/O.
pub struct Core<P: Platform, D: DialectSet<P>> {
    /// What all dialects use.
    pub context: Context<P>,
    /// The dialects.
    pub dialects: D,
    demux: Demux,
    /// By port, the dialect of its last frame.
    last: Vec<DialectId>,
    /// By port, whether floods spare it.
    spared: Vec<bool>,
}

impl<P: Platform, D: DialectSet<P>> Core<P, D> {
    /// A core with these dialects.
    ///
    /// # Errors
    /// If two dialects claim the same frames.
    pub fn new(context: Context<P>, dialects: D) -> Result<Self, Overlap> {
        let ports = context.ports.len();
        Ok(Self {
            demux: Demux::new(context.address.ip, dialects.claims())?,
            last: vec![D::JOBS; ports],
            spared: vec![false; ports],
            context,
            dialects,
        })
    }

    /// Begins a poll iteration at this time.
    #[inline]
    pub fn begin(&mut self, now: Time) {
        self.context.now = now;
        if self.dialects.poll_timeout().is_some_and(|due| due <= now) {
            self.dialects.handle_timeout(&mut self.context);
        }
    }

    /// When [`begin`](Self::begin) is to be called next, at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.dialects.poll_timeout()
    }

    /// Takes a burst of frames from a port; says how many bytes they have.
    pub fn receive(&mut self, port: PortId, frames: &mut Vec<P::Frame>) -> u64 {
        for frame in frames.iter() {
            frame.prefetch();
        }
        let count = frames.len() as u64;
        let bytes = if self.context.forwarding.ports().is_closed(port) {
            self.discard(port, frames)
        } else {
            self.take(port, frames.drain(..))
        };
        let counters = &mut self.context.ports.counters[usize::from(port.0)];
        counters.rx_frames += count;
        counters.rx_bytes += bytes;
        bytes
    }

    /// Takes frames that other cores handed over.
    pub fn receive_handed_over(&mut self, handed: &mut Vec<Handover<P::Frame>>) {
        let mut rest = handed.drain(..);
        while !rest.as_slice().is_empty() {
            let burst = rest.as_slice().len().min(BURST);
            // All that another core has touched is in its cache, the descriptors too.
            for handover in &rest.as_slice()[..burst] {
                handover.frame().prefetch_descriptor();
            }
            for handover in &rest.as_slice()[..burst] {
                handover.frame().prefetch();
            }
            for handover in rest.by_ref().take(burst) {
                match handover {
                    Handover::Egress(port, class, frame) => {
                        if frame.wire_frames() > 1 {
                            self.context.ports.expect_superframes();
                        }
                        self.context.ports.send(port, usize::from(class), frame);
                    }
                    Handover::Ingress(port, frame) => {
                        self.take(port, std::iter::once(frame));
                    }
                }
            }
            self.context.ports.give_back();
        }
    }

    /// Decides on frames of a port; says how many bytes they have.
    #[inline(always)]
    fn take(&mut self, port: PortId, frames: impl Iterator<Item = P::Frame>) -> u64 {
        let at = usize::from(port.0);
        let mut bytes = 0;
        let mut frames = frames.inspect(|frame| bytes += frame.frame_bytes() as u64);
        while let Some(frame) =
            self.dialects
                .receive_cached(self.last[at], &mut self.context, port, &mut frames)
        {
            if let Err(reason) = self.classify(port, frame) {
                if let Some(claim) = reason.claim() {
                    self.context.ports.rare[at].claims[claim] += 1;
                }
                self.context.count_drop(reason);
            }
        }
        bytes
    }

    /// Drops the frames of a closed port.
    #[cold]
    fn discard(&mut self, port: PortId, frames: &mut Vec<P::Frame>) -> u64 {
        let mut bytes = 0;
        for frame in frames.iter() {
            bytes += frame.frame_bytes() as u64;
            let reason = (self.context.forwarding).classify_closed(port, frame.data());
            self.context.count_drop(reason);
        }
        P::Frame::free_bulk(frames);
        bytes
    }

    /// Decides on a frame that is not like the last one of its port: it may be anything.
    #[inline(never)]
    fn classify(&mut self, port: PortId, mut frame: P::Frame) -> Result<(), DropReason> {
        if frame.wire_frames() > 1 {
            return self.receive_superframe(port, frame);
        }
        if !frame.is_contiguous() {
            frame = self.linearise(port, &frame)?;
        }
        if let Some(id) = self.demux.port(port) {
            return self.give(id, &Arrival { port, udp: None }, frame);
        }
        if let Some(id) = self.demux.ethertype(frame.data()) {
            return self.give(id, &Arrival { port, udp: None }, frame);
        }
        match self.context.forwarding.is_local(frame.data()) {
            Ok(true) => return self.receive_local(port, frame),
            Ok(false) => {}
            Err(reason) => {
                self.observe_decision(port, header_of(frame.data()), Err(reason));
                return Err(reason);
            }
        }
        if self.context.parents.claims(port, frame.data()) {
            return self.receive_of_parent(port, frame);
        }
        if let Some(id) = self.demux.transit(frame.data())
            && let Ok(udp) = UdpFrame::parse(frame.data())
        {
            if udp.addresses.src_ip == self.context.address.ip {
                return Err(DropReason::SpoofedSwitch);
            }
            let arrival = Arrival {
                port,
                udp: Some(udp),
            };
            return self.give(id, &arrival, frame);
        }
        self.forward(port, frame)
    }

    /// Decides on a superframe: it is forwarded, or dropped. No dialect takes what a wire does not
    /// carry.
    fn receive_superframe(&mut self, port: PortId, frame: P::Frame) -> Result<(), DropReason> {
        let more = frame.wire_frames() as u64 - 1;
        self.context.ports.expect_superframes();
        self.context.ports.counters[usize::from(port.0)].rx_frames += more;
        let head = frame.data();
        let is_dialects = self.demux.port(port).is_some()
            || self.demux.ethertype(head).is_some()
            || self.demux.transit(head).is_some();
        if is_dialects || self.context.forwarding.is_local(head)? {
            return Err(DropReason::Superframe);
        }
        self.forward(port, frame)
    }

    /// A copy in one segment, of a frame that came in several: all else wants to see the whole of
    /// it.
    #[cold]
    fn linearise(&mut self, port: PortId, frame: &P::Frame) -> Result<P::Frame, DropReason> {
        if frame.frame_bytes() > self.context.platform.frame_bytes_max() {
            return Err(DropReason::Segmented);
        }
        self.context.ports.counters[usize::from(port.0)].linearised += 1;
        self.context
            .platform
            .copy(frame)
            .ok_or(DropReason::NoBuffer)
    }

    /// Decides on a frame to the switch's MAC.
    #[inline]
    fn receive_local(&mut self, port: PortId, frame: P::Frame) -> Result<(), DropReason> {
        let parsed = UdpFrame::parse(frame.data());
        let own_ip = self.context.address.ip;
        let claimed = match &parsed {
            Ok(udp) if udp.addresses.dst_ip == own_ip => self.demux.local(udp.addresses.dst_port),
            _ => None,
        };
        // Clients of such a dialect leave checksums to a NIC.
        let is_checked = claimed.is_none_or(|(_, any_mac)| !any_mac);
        if is_checked && frame.has_bad_checksum() {
            return Err(DropReason::Checksum);
        }
        let udp = match parsed {
            Ok(udp) => udp,
            Err(found) => return self.answer(port, frame, found),
        };
        if udp.addresses.dst_ip != own_ip {
            return Err(DropReason::NotOurs);
        }
        if udp.addresses.src_ip == own_ip {
            return Err(DropReason::SpoofedSwitch);
        }
        let (id, _) = claimed.ok_or(DropReason::UdpPort)?;
        let arrival = Arrival {
            port,
            udp: Some(udp),
        };
        self.give(id, &arrival, frame)
    }

    /// Decides on a frame of a parent switch to the group of a job (TR-8).
    #[cold]
    fn receive_of_parent(&mut self, port: PortId, frame: P::Frame) -> Result<(), DropReason> {
        if frame.has_bad_checksum() {
            return Err(DropReason::Checksum);
        }
        let udp = Some(UdpFrame::parse(frame.data())?);
        self.give(D::JOBS, &Arrival { port, udp }, frame)
    }

    /// Gives a frame to its dialect.
    #[inline]
    fn give(
        &mut self,
        id: DialectId,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<(), DropReason> {
        self.last[usize::from(arrival.port.0)] = id;
        match self
            .dialects
            .receive(id, &mut self.context, arrival, frame)?
        {
            Next::Done => Ok(()),
            Next::Job(job, frame) => self.pass_on(job, arrival, frame),
            Next::Forward(frame) => self.forward(arrival.port, frame),
        }
    }

    /// Gives a frame to the dialect that its job was moved to.
    #[cold]
    fn pass_on(
        &mut self,
        job: JobId,
        arrival: &Arrival,
        frame: P::Frame,
    ) -> Result<(), DropReason> {
        let id = self.context.jobs.server(job);
        let id = id.filter(|&id| Some(id) == self.demux.jobs());
        let id = id.ok_or(DropReason::UnknownJob)?;
        match self
            .dialects
            .receive(id, &mut self.context, arrival, frame)?
        {
            Next::Done => Ok(()),
            Next::Job(..) | Next::Forward(_) => Err(DropReason::UnknownJob),
        }
    }

    /// Decides on a frame between other hosts.
    fn forward(&mut self, port: PortId, frame: P::Frame) -> Result<(), DropReason> {
        let mut frame = self.context.exclusive(frame)?;
        let before = header_of(frame.data());
        let context = &mut self.context;
        let bytes = frame.data_mut().ok_or(DropReason::NoBuffer)?;
        let hosts = Hosts(&self.dialects, std::marker::PhantomData);
        let verdict = context
            .forwarding
            .classify_transit(context.now, port, bytes, &hosts);
        self.observe_decision(port, before, verdict);
        let context = &mut self.context;
        let class = class_of_frame(frame.data());
        match verdict? {
            // Never of a frame in transit.
            Verdict::Local => return Err(DropReason::NotOurs),
            Verdict::Answer => {
                context.platform.observe(Observed::Answered(&frame));
                context.ports.send(port, class, frame);
            }
            Verdict::Forward(to) => context.ports.forward(to, class, frame),
            Verdict::Flood => {
                let more = frame.wire_frames() as u32 - 1;
                let destination = header_of(frame.data()).map_or(Mac::BROADCAST, |header| {
                    let [a, b, c, d, e, f, ..] = header;
                    Mac([a, b, c, d, e, f])
                });
                (context.forwarding).admit_more_floods(context.now, port, destination, more)?;
                let forwarding = &context.forwarding;
                self.spared.fill(false);
                let is_link = |to| forwarding.is_link(to);
                self.dialects.spare_floods(&mut self.spared, &is_link);
                let is_closed =
                    |to| forwarding.ports().is_closed(to) || !forwarding.may_flood(port, to);
                context.ports.flood(port, frame, &self.spared, is_closed);
            }
        }
        Ok(())
    }

    /// Answers a frame to the switch's MAC that is no UDP: ARP, ping, or `found`.
    #[cold]
    fn answer(
        &mut self,
        port: PortId,
        mut frame: P::Frame,
        found: FrameError,
    ) -> Result<(), DropReason> {
        let before = header_of(frame.data());
        let context = &mut self.context;
        let Some(bytes) = frame.data_mut() else {
            return Err(found.into());
        };
        let answered = context.forwarding.answer(context.now, port, bytes, found);
        self.observe_decision(port, before, answered.map(|()| Verdict::Answer));
        answered?;
        let context = &mut self.context;
        context.platform.observe(Observed::Answered(&frame));
        let class = class_of_frame(frame.data());
        context.ports.send(port, class, frame);
        Ok(())
    }

    /// Tells a checker what was decided on a frame.
    #[inline(always)]
    fn observe_decision(
        &self,
        port: PortId,
        header: Option<[u8; ETHERNET_BYTES]>,
        verdict: Result<Verdict, DropReason>,
    ) {
        if P::OBSERVES
            && let Some(header) = header
        {
            let platform = &self.context.platform;
            platform.observe(Observed::Decided(port, &header, verdict));
        }
    }

    /// Ends the poll iteration: sums what has come in.
    #[inline]
    pub fn aggregate(&mut self) {
        self.dialects.aggregate(&mut self.context);
    }

    /// The next JOIN or LEAVE for the registry, in the order in which they came.
    #[inline]
    pub fn poll_control(&mut self) -> Option<ControlFrame> {
        self.context.poll_control()
    }

    /// Offers what waits to the driver; says whether anything left by a port.
    #[inline]
    pub fn transmit(&mut self, driver: &mut impl Transmit<P::Frame>) -> bool {
        self.context.ports.transmit(driver)
    }

    /// Carries out what control asks. Between poll iterations.
    #[cold]
    #[inline(never)]
    pub fn command(&mut self, command: Command<D::Command, D::Metrics>) {
        let context = &mut self.context;
        match command {
            Command::Send(to, datagram) => {
                if let Err(reason) = context.send_datagram(&to, &*datagram) {
                    context.count_drop(reason);
                }
            }
            Command::SendFrame(port, bytes) => {
                if let Err(reason) = context.send_frame(port, &bytes) {
                    context.count_drop(reason);
                }
            }
            Command::Reassign(port, queue) => context.ports.reassign(port, queue),
            Command::Fabric(table) => context.forwarding.set_fabric(table),
            Command::Bind(roster) => {
                context.forwarding.bind(&roster);
                context.parents.bind(&roster);
                let (server, before) = context.jobs.bind(&roster, D::JOBS);
                if let Some(before) = before {
                    self.dialects.release(before, context, roster.job);
                }
                self.dialects.bind(server, context, &roster);
            }
            Command::Unbind(job) => {
                context.forwarding.unbind(job);
                context.jobs.unbind(job);
                self.dialects.unbind(context, job);
            }
            Command::Parent(port, parent) => context.parents.set(port, parent),
            Command::Move(job, epoch, to, reply) => reply(self.move_job(job, epoch, to)),
            Command::MoveBack(job, reply) => {
                self.move_back(job);
                reply(());
            }
            Command::MoveAllBack(from, reply) => {
                for job in context.jobs.served_by(from) {
                    self.move_back(job);
                }
                self.dialects.give_up(from, &mut self.context);
                reply(());
            }
            Command::Arrivals(reply) => reply(self.arrivals()),
            Command::Report(reply) => reply(self.report()),
            Command::Dialect(command) => self.dialects.command(context, command),
        }
    }

    /// Has another dialect serve this epoch of a job; says whether it runs and was the first
    /// dialect's.
    fn move_job(&mut self, job: JobId, epoch: Epoch, to: DialectId) -> bool {
        let arrivals = self.dialects.arrivals(D::JOBS, job);
        let context = &mut self.context;
        let Some(roster) = context.jobs.serve(job, Some(epoch), to, arrivals) else {
            return false;
        };
        self.dialects.release(D::JOBS, context, job);
        self.dialects.bind(to, context, &roster);
        true
    }

    /// Has the first dialect serve a job that was moved.
    fn move_back(&mut self, job: JobId) {
        let Some(from) = self.context.jobs.server(job).filter(|&id| id != D::JOBS) else {
            return;
        };
        let arrivals = self.dialects.arrivals(from, job);
        let context = &mut self.context;
        if let Some(roster) = context.jobs.serve(job, None, D::JOBS, arrivals) {
            self.dialects.release(from, context, job);
            self.dialects.bind(D::JOBS, context, &roster);
        }
    }

    fn arrivals(&self) -> Vec<(JobId, u64)> {
        let of = |(job, server, before)| (job, before + self.dialects.arrivals(server, job));
        self.context.jobs.arrivals().map(of).collect()
    }

    /// What it did.
    #[must_use]
    pub fn report(&self) -> CoreReport<D::Metrics> {
        let Context {
            ports, forwarding, ..
        } = &self.context;
        let queues = ports.queue_counters();
        let mut drops = *self.context.drops();
        drops[DropReason::HandoverFull] += ports.handover_full;
        drops[DropReason::FrameTooLong] += ports.frame_too_long;
        drops[DropReason::NoBuffer] += ports.no_buffer;
        drops[DropReason::TxFull] += queues.iter().map(QueueCounters::dropped_total).sum::<u64>();
        CoreReport {
            drops,
            ports: ports.counters.clone(),
            queues,
            addresses: forwarding.macs().by_port().collect(),
            rare: ports.rare.clone(),
            dialects: self.dialects.metrics(&self.context),
        }
    }
}
