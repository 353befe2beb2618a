//! One core's way out: bounded queues for each port, and the outbox to other cores.
//!
//! A port has a transmit queue on each core, or one that belongs to one core. Frames for a port of
//! another core go there as [`Handover`]s. What does not fit a queue is dropped and counted:
//! waiting would let one slow port stop all others.
//!
//! A port has a [`PortQueue`] of eight classes (C-4). Frames move from it, in the order of their
//! turns, to a short stage from which the driver takes them. While nothing waits behind the stage,
//! a frame goes there directly. What the driver does not take stays on the stage. A frame of the
//! highest class can therefore stand behind the stage's frames and the driver's descriptors.
//!
//! A frame that joins a long queue is marked (C-1) if it is unshared and ECN-capable. A result is
//! marked before it is shared, for all of its ports, if one of them has a long queue. Frames from
//! the result cache are retransmitted as they are.
//!
//! Catch: a core does not see the queues of other cores for a port. A result that is handed over is
//! shared by then, so it is not marked for that port.

use crate::PortId;
use crate::counters::{CLAIM, CLAIMS};
use crate::frame::Frame;
use crate::metrics;
use crate::queue::{PortQueue, QueueConfig, QueueCounters, class_of};
use serde::{Deserialize, Serialize};
use tally_wire::field::{ethernet, ipv4};
use tally_wire::frame::{ETHERTYPE_IPV4, mark};

/// Frames done with that are given back at once.
const RECYCLED: usize = 256;

/// A frame for another core.
pub enum Handover<F> {
    /// Received on this port, for a shard of that core.
    Ingress(PortId, F),
    /// To be sent on that core's port, in this class.
    Egress(PortId, u8, F),
}

impl<F> Handover<F> {
    /// The frame.
    #[inline]
    #[must_use]
    pub fn frame(&self) -> &F {
        match self {
            Self::Ingress(_, frame) | Self::Egress(_, _, frame) => frame,
        }
    }
}

/// The driver's side of the way out.
pub trait Transmit<F> {
    /// Frames that a port takes at a time, at most.
    fn room(&self, port: PortId) -> usize;

    /// Takes frames from the front, up to the free entries of the port's queue; says how many.
    fn transmit(&mut self, port: PortId, frames: &mut Vec<F>) -> usize;

    /// Takes all frames for another core; says how many it dropped.
    fn hand_over(&mut self, core: usize, frames: &mut Vec<Handover<F>>) -> u64;
}

metrics! {
    /// Frames and bytes of one port, in both directions, as one core saw them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct PortCounters, labels ["port"] {
        /// Frames received.
        pub rx_frames: u64 = counter "port_rx_frames" in Frames;
        /// Bytes received.
        pub rx_bytes: u64 = counter "port_rx_bytes" in Bytes;
        /// Frames sent.
        pub tx_frames: u64 = counter "port_tx_frames" in Frames;
        /// Bytes sent.
        pub tx_bytes: u64 = counter "port_tx_bytes" in Bytes;
        /// Frames flooded to the port.
        pub flooded: u64 = counter "port_flooded_frames" in Frames;
        /// Frames received by one data core for the shard of another.
        pub handed_over: u64 = counter "port_handed_over_frames" in Frames;
        /// Frames received in several buffers and copied into one.
        pub linearised: u64 = counter "port_linearised_frames" in Frames;
        /// Frames that the device did not take in, or took and could not send: superframes of
        /// tunnels, frames beyond its MTU, an interface that is down.
        pub refused: u64 = counter "port_refused_frames" in Frames;
    }
}

const _: () = assert!(
    size_of::<PortCounters>() <= 64,
    "one port's counters fit a cache line"
);

metrics! {
    /// What is rarely counted of a port: beside [`PortCounters`], which fill a cache line.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct RareCounters, labels ["port"] {
        /// SwitchML results that were copied into their replies because the driver sends no frames
        /// of several segments.
        pub replies_copied: u64 = counter "port_copied_replies";
        /// Frames not flooded to the port because a member of a SwitchML session is behind it.
        pub floods_spared: u64 = counter "port_spared_frames" in Frames;
        /// Frames from the port that claimed what is another's, and were dropped, by reason.
        pub claims: [u64; CLAIMS.len()] = counter "port_claims_frames" in Frames by CLAIM;
    }
}

enum Way<F> {
    /// This core's own port.
    Own(Box<Line<F>>),
    /// The port of the core with this number.
    Core(usize),
}

/// What waits for one port.
struct Line<F> {
    /// Next to leave, in this order.
    stage: Vec<F>,
    /// Frames that the stage may have while the queue is empty.
    stage_frames: usize,
    queue: PortQueue<F>,
}

fn new_line<F: Frame>(config: QueueConfig, stage_frames: usize) -> Line<F> {
    Line {
        stage: Vec::with_capacity(stage_frames.max(1)),
        stage_frames,
        queue: PortQueue::weighing(config, |frame: &F| frame.wire_frames() as u32),
    }
}

impl<F: Frame> Line<F> {
    /// Whether the next frame goes to the stage: nothing waits behind it, and it has room.
    #[inline]
    fn is_open(&self) -> bool {
        self.queue.is_empty() && self.stage.len() < self.stage_frames
    }

    /// Joins the queue: the port has more to do than it gets done.
    fn wait(&mut self, class: usize, mut frame: F) {
        let marked = self.queue.is_long(class) && frame.data_mut().is_some_and(mark);
        // If its class is full, the queue counts the frame as dropped.
        if self.queue.push(class, frame).is_ok() && marked {
            self.queue.count_mark();
        }
    }

    /// Offers what waits to the driver; says whether anything left.
    #[inline]
    fn transmit(
        &mut self,
        port: PortId,
        driver: &mut impl Transmit<F>,
        counters: &mut PortCounters,
        may_have_superframes: bool,
    ) -> bool {
        let bytes = |stage: &[F]| stage.iter().map(|f| f.frame_bytes() as u64).sum::<u64>();
        let frames = |stage: &[F]| {
            if may_have_superframes {
                stage.iter().map(|f| f.wire_frames() as u64).sum::<u64>()
            } else {
                stage.len() as u64
            }
        };
        let mut progress = false;
        loop {
            let room = driver.room(port).saturating_sub(self.stage.len());
            self.queue.pop_burst(&mut self.stage, room);
            if self.stage.is_empty() {
                return progress;
            }
            let before = (frames(&self.stage), bytes(&self.stage));
            let sent = driver.transmit(port, &mut self.stage);
            counters.tx_frames += before.0 - frames(&self.stage);
            counters.tx_bytes += before.1 - bytes(&self.stage);
            progress |= sent > 0;
            if !self.stage.is_empty() {
                return progress;
            }
        }
    }
}

/// The class of an ordinary frame: its precedence if it is IP (the upper three bits of what was the
/// type of service; C-4), else the lowest. ARP and most logins are there: what the guard leaves to
/// a class is plenty for them.
#[inline]
#[must_use]
pub fn class_of_frame(frame: &[u8]) -> usize {
    const ETHERTYPE_IPV6: u16 = 0x86dd;
    let Some(&[high, low, first, second]) = frame
        .get(ethernet::ETHERTYPE.start..ipv4::TOS + 1)
        .and_then(<[u8]>::first_chunk)
    else {
        return 0;
    };
    match u16::from_be_bytes([high, low]) {
        ETHERTYPE_IPV4 => class_of(second),
        // Version, then eight bits of traffic class.
        ETHERTYPE_IPV6 => class_of(first << 4),
        _ => 0,
    }
}

/// The way out of one core.
pub struct Ports<F> {
    ways: Vec<Way<F>>,
    /// By core, frames that are handed over.
    outbox: Vec<Vec<Handover<F>>>,
    /// Whether the queue of one of this core's ports may have a frame: nearly never, and then
    /// results need not look at each.
    any_waits: bool,
    /// Ports whose queues were empty and are not, since the last [`transmit`](Self::transmit).
    began: Vec<PortId>,
    /// Frames done with, given back in bulk.
    done: Vec<F>,
    /// Ports that nothing is flooded to, because they have no hosts.
    hostless: Vec<PortId>,
    /// By port, bytes of the longest ordinary frame that may leave by it.
    longest_frame: Vec<usize>,
    stage_frames: usize,
    /// Whether a superframe has come: before, each frame counts as one.
    may_have_superframes: bool,
    /// By port.
    pub counters: Vec<PortCounters>,
    /// By port.
    pub rare: Vec<RareCounters>,
    /// Frames dropped on their way to another core.
    pub handover_full: u64,
    /// Ordinary frames dropped because their port has a smaller MTU.
    pub frame_too_long: u64,
    /// Frames that were not made because the pool was exhausted.
    pub no_buffer: u64,
}

impl<F: Frame> Ports<F> {
    /// `queues` has for each port how much may wait for it, or the core that sends for this one.
    /// The stage of each port has room for `stage_frames`.
    #[must_use]
    pub fn new(queues: Vec<Result<QueueConfig, usize>>, cores: usize, stage_frames: usize) -> Self {
        let ways: Vec<_> = queues
            .into_iter()
            .map(|queue| match queue {
                Ok(config) => Way::Own(Box::new(new_line(config, stage_frames))),
                Err(core) => Way::Core(core),
            })
            .collect();
        Self {
            outbox: (0..cores).map(|_| Vec::new()).collect(),
            any_waits: false,
            began: Vec::with_capacity(ways.len()),
            done: Vec::with_capacity(RECYCLED),
            hostless: Vec::new(),
            longest_frame: vec![usize::MAX; ways.len()],
            stage_frames,
            may_have_superframes: false,
            counters: vec![PortCounters::default(); ways.len()],
            rare: vec![RareCounters::default(); ways.len()],
            handover_full: 0,
            frame_too_long: 0,
            no_buffer: 0,
            ways,
        }
    }

    /// The number of ports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ways.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// By port, bytes of the longest ordinary frame that may leave by it.
    pub fn set_longest_frames(&mut self, bytes: Vec<usize>) {
        self.longest_frame = bytes;
    }

    /// Bytes of the longest ordinary frame that may leave by one port.
    pub fn set_longest_frame(&mut self, port: PortId, bytes: usize) {
        if let Some(longest) = self.longest_frame.get_mut(usize::from(port.0)) {
            *longest = bytes;
        }
    }

    /// From now on, frames may count as several.
    pub(crate) fn expect_superframes(&mut self) {
        self.may_have_superframes = true;
    }

    /// Has nothing flooded to this port from now on.
    pub fn set_hostless(&mut self, port: PortId) {
        self.hostless.push(port);
    }

    /// Puts a frame into a port's queue of that class; drops and counts it if that is full.
    #[inline(always)]
    pub fn send(&mut self, port: PortId, class: usize, frame: F) {
        match &mut self.ways[usize::from(port.0)] {
            Way::Own(line) if line.is_open() => line.stage.push(frame),
            _ => self.send_behind(port, class, frame),
        }
    }

    /// Where a frame cannot go to the stage directly.
    #[inline(never)]
    fn send_behind(&mut self, port: PortId, class: usize, frame: F) {
        match &mut self.ways[usize::from(port.0)] {
            Way::Own(line) => {
                if line.queue.is_empty() {
                    self.began.push(port);
                }
                line.wait(class, frame);
                self.any_waits = true;
            }
            Way::Core(core) => {
                self.outbox[*core].push(Handover::Egress(port, class as u8, frame));
            }
        }
    }

    /// Sends one frame on several ports, once on each, marked if one of them has a long queue.
    /// Returns the reference that is left.
    #[inline]
    pub fn multicast(&mut self, ports: &[PortId], class: usize, mut frame: F) -> F {
        if self.any_waits
            && self.is_long(ports, class)
            && let Some(bytes) = frame.data_mut()
        {
            mark(bytes);
        }
        // Not one by one: after the first, each would be a locked instruction.
        let mut shares = frame.share_many(ports.len() as u16);
        for &port in ports {
            let Some(share) = shares.next() else { break };
            self.send(port, class, share);
        }
        drop(shares);
        frame
    }

    /// Sends an ordinary frame, if it is not too long for the port: some drivers keep such a frame
    /// and everything behind it.
    #[inline(always)]
    pub fn forward(&mut self, port: PortId, class: usize, frame: F) {
        if frame.wire_bytes() > self.longest_frame[usize::from(port.0)] {
            self.frame_too_long += frame.wire_frames() as u64;
            self.recycle(frame);
        } else {
            self.send(port, class, frame);
        }
    }

    /// As [`forward`](Self::forward), marked as by [`multicast`](Self::multicast); returns the
    /// reference that is left.
    #[inline]
    pub fn forward_shared(&mut self, port: PortId, class: usize, frame: F) -> F {
        if frame.wire_bytes() > self.longest_frame[usize::from(port.0)] {
            self.frame_too_long += frame.wire_frames() as u64;
            return frame;
        }
        self.multicast(&[port], class, frame)
    }

    /// Sends a frame on all ports but the one it came from, closed ones, and those that are
    /// `spared`, by port; an empty slice spares none.
    pub fn flood(
        &mut self,
        ingress: PortId,
        frame: F,
        spared: &[bool],
        is_closed: impl Fn(PortId) -> bool,
    ) {
        let class = class_of_frame(frame.data());
        for at in (0..self.ways.len()).filter(|&at| at != usize::from(ingress.0)) {
            let port = PortId(at as u16);
            if is_closed(port) {
                continue;
            }
            if spared.get(at) == Some(&true) {
                self.rare[at].floods_spared += 1;
                continue;
            }
            if self.hostless.contains(&port) {
                continue;
            }
            self.counters[at].flooded += frame.wire_frames() as u64;
            self.forward(port, class, frame.share());
        }
        self.recycle(frame);
    }

    /// Whether one of the ports has a long queue for this class, which is counted as a mark there.
    #[inline]
    fn is_long(&mut self, ports: &[PortId], class: usize) -> bool {
        let mut long = false;
        for port in ports {
            if let Way::Own(line) = &mut self.ways[usize::from(port.0)]
                && line.queue.is_long(class)
            {
                line.queue.count_mark();
                long = true;
            }
        }
        long
    }

    /// Hands a received frame to the core whose shard it is for.
    pub fn hand_over(&mut self, core: usize, ingress: PortId, frame: F) {
        self.counters[usize::from(ingress.0)].handed_over += 1;
        self.outbox[core].push(Handover::Ingress(ingress, frame));
    }

    /// Done with a frame: it goes back to its pool with others.
    #[inline]
    pub fn recycle(&mut self, frame: F) {
        if self.done.len() == self.done.capacity() {
            self.give_back();
        }
        self.done.push(frame);
    }

    /// Gives frames that are done with back to their pools. After every burst: the next one is then
    /// received into buffers that are still in the cache.
    #[inline]
    pub fn give_back(&mut self) {
        F::free_bulk(&mut self.done);
    }

    /// Gives frames for other cores to the driver, of each core with `at_least` waiting.
    #[inline]
    pub fn transmit_handovers(&mut self, driver: &mut impl Transmit<F>, at_least: usize) {
        for (core, frames) in self.outbox.iter_mut().enumerate() {
            if frames.len() >= at_least.max(1) {
                self.handover_full += driver.hand_over(core, frames);
            }
        }
    }

    /// Offers what waits to the driver; says whether anything left by a port.
    pub fn transmit(&mut self, driver: &mut impl Transmit<F>) -> bool {
        let mut progress = false;
        self.any_waits = false;
        self.began.clear();
        self.transmit_handovers(driver, 1);
        for (at, (way, counters)) in self.ways.iter_mut().zip(&mut self.counters).enumerate() {
            if let Way::Own(line) = way {
                progress |= line.transmit(
                    PortId(at as u16),
                    driver,
                    counters,
                    self.may_have_superframes,
                );
                self.any_waits |= !line.queue.is_empty();
            }
        }
        self.give_back();
        progress
    }

    /// Offers to the driver what began to wait, and frames for other cores; calls `waits` for each
    /// port for which something still does. For drivers with many ports, which call
    /// [`transmit_port`](Self::transmit_port) when such a port has room again.
    pub fn transmit_new(&mut self, driver: &mut impl Transmit<F>, mut waits: impl FnMut(PortId)) {
        self.transmit_handovers(driver, 1);
        let mut began = std::mem::take(&mut self.began);
        for port in began.drain(..) {
            self.transmit_port(port, driver);
            if self.waiting(port) > 0 {
                waits(port);
            }
        }
        self.began = began;
        self.give_back();
    }

    /// Offers what waits for one port to the driver.
    pub fn transmit_port(&mut self, port: PortId, driver: &mut impl Transmit<F>) {
        let at = usize::from(port.0);
        if let Way::Own(line) = &mut self.ways[at] {
            line.transmit(
                port,
                driver,
                &mut self.counters[at],
                self.may_have_superframes,
            );
        }
    }

    /// Frames that wait for a port of this core.
    #[must_use]
    pub fn waiting(&self, port: PortId) -> usize {
        match &self.ways[usize::from(port.0)] {
            Way::Own(line) => line.stage.len() + line.queue.len(),
            Way::Core(_) => 0,
        }
    }

    /// What the queue of each port saw; of ports of other cores, nothing.
    #[must_use]
    pub fn queue_counters(&self) -> Vec<QueueCounters> {
        let of = |way: &Way<F>| match way {
            Way::Own(line) => *line.queue.counters(),
            Way::Core(_) => QueueCounters::default(),
        };
        self.ways.iter().map(of).collect()
    }

    /// Gives up what waits for a port, and begins with an empty queue, or with none where another
    /// core sends for this one.
    pub fn reassign(&mut self, port: PortId, queue: Result<QueueConfig, usize>) {
        self.purge(port);
        if let Some(way) = self.ways.get_mut(usize::from(port.0)) {
            let counters = match way {
                Way::Own(line) => *line.queue.counters(),
                Way::Core(_) => QueueCounters::default(),
            };
            *way = match queue {
                Ok(config) => {
                    let mut line = new_line(config, self.stage_frames);
                    line.queue.set_counters(counters);
                    Way::Own(Box::new(line))
                }
                Err(core) => Way::Core(core),
            };
        }
    }

    /// Gives up what waits for a port.
    pub fn purge(&mut self, port: PortId) {
        let Way::Own(line) = &mut self.ways[usize::from(port.0)] else {
            return;
        };
        while let Some(frame) = line.queue.pop() {
            line.stage.push(frame);
        }
        F::free_bulk(&mut line.stage);
        line.stage.shrink_to(line.stage_frames.max(1));
    }
}

#[cfg(test)]
mod tests;
