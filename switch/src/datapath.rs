//! One data core: receive, decide, send, without waiting for anything.
//!
//! [`Core::run`] is the loop. A frame to the switch's own MAC is Tally's (or ARP, or ping); all
//! others are forwarded. The checks stand in `Core::classify` in the order in which they are cheap.
//!
//! SwitchML's frames go another way, which begins in `take_own`: `datapath/switchml.rs`.
//!
//! A turn takes a burst from every port, and only then sums: contributions of one fragment, which
//! come in on as many ports as there are workers, are summed together ([`Batch`]).
//!
//! Most frames need none of the checks: a port's frames come in trains of one worker's contributions, which
//! differ in fragment and priority only. What was found out about one is remembered and holds for
//! the next ([`Coupling`]), until a member changes.

mod card;
mod switchml;

pub use switchml::Dialect;

use crate::config::Idle;
use crate::control_queue::ControlSender;
use crate::drain::Drains;
use crate::egress::{Frame, Own, Ports};
use crate::handover::{Handover, Inbox};
use crate::load::{Load, Meter, Stage};
use crate::messages::{
    CardOrder, ControlFrame, CoreCommand, CoreReport, PortCounters, SwitchmlReport,
};
use crate::ports::Rx;
use crate::steering::Steering;
use crossbeam_channel::{Receiver, Sender};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_dpdk::ChecksumState;
use tally_dpdk::{Mbuf, Mempool};
use tally_engine::queue::QueueCounters;
use tally_engine::switchml::SessionStatus;
use tally_engine::{Aggregator, Batch, Contribution, DropReason, Forwarding, Member, PortId};
use tally_packet::Ready;
use tally_wire::frame::UDP_END;
use tally_wire::switchml::is_port as is_switchml;
use tally_wire::{HEADERS_BYTES, Header, Time, Train, UdpFrame};

/// Frames taken from a port in a turn, at most.
pub const BURST: usize = 32;
/// Frames asked of a port in a turn, at least: some drivers give nothing if asked for fewer.
pub const BURST_MIN: usize = 8;
/// Bytes that a turn takes from all ports together, about: what is summed at its end should still be in
/// the core's own cache.
pub const TURN_BYTES: u64 = 128 << 10;
/// Bursts taken from each port at the end, at most.
const DRAIN_BURSTS: usize = 1 << 12;
/// A rank of a SwitchML session that others wait for, for so long, is behind: many round trips.
const BEHIND_AFTER: Duration = Duration::from_millis(10);
/// Turns without a frame in which the core yields its CPU before it begins to sleep. It does not spin first:
/// on a CPU that others share it is they whom it waits for.
const YIELDS: u32 = 64;
/// As many, where what arrives wakes it.
const TURNS_AWAKE: u32 = 16;
/// How long it sleeps at a time, at most.
const SLEEP_MAX: Duration = Duration::from_micros(100);

/// Frames to take from a port in the turn after one of so many, which brought so many bytes.
#[must_use]
pub const fn burst_after(frames: usize, turn_bytes: u64) -> usize {
    if turn_bytes > TURN_BYTES && frames > BURST_MIN {
        frames / 2
    } else if turn_bytes < TURN_BYTES / 2 && frames < BURST {
        frames * 2
    } else {
        frames
    }
}

/// A data core, ready to run on its thread.
pub struct Core {
    /// Its number, which is that of its shard.
    pub number: usize,
    /// The switch's own address.
    pub own: Own,
    /// Number of data cores.
    pub shards: u16,
    /// Its ports: number and receive queue.
    pub rx: Vec<(PortId, Rx)>,
    /// Which of them have something, for interfaces of the kernel, if there are any.
    pub ready: Option<Ready>,
    /// By port, its own and those of other cores; at first none.
    pub couplings: Vec<Option<Coupling>>,
    /// Its way out.
    pub ports: Ports,
    /// Its shard of the engine.
    pub aggregator: Aggregator<Frame>,
    /// Contributions of the turn; empty between turns.
    pub batch: Batch<Frame>,
    /// Its shard of SwitchML, if the switch has that.
    pub switchml: Option<Box<Dialect>>,
    /// Which jobs the card has, if there is one.
    pub steering: Option<Box<Steering>>,
    /// To the card's thread: numbers of probes that came back.
    pub probes: Option<Sender<u16>>,
    /// The ordinary switch; its tables are shared by all cores.
    pub forwarding: Forwarding,
    /// Frames from other cores.
    pub inbox: Inbox,
    /// Orders from the control thread.
    pub commands: Receiver<CoreCommand>,
    /// Who waits for what had arrived to be taken.
    pub drains: Drains,
    /// JOIN and LEAVE to the control thread.
    pub control: ControlSender,
    /// Frames for what the control thread says.
    pub pool: Mempool,
    /// What to do when there is nothing to do.
    pub idle: Idle,
    /// When the switch started.
    pub epoch: Instant,
    /// Set when the switch is to stop.
    pub stop: Arc<AtomicBool>,
}

/// What the last contribution of a port was, and that others like it are admitted.
#[derive(Clone, Copy, Debug)]
pub struct Coupling {
    train: Train,
    contribution: Contribution,
}

impl Core {
    /// Runs until told to stop, and gives its last report.
    pub fn run(mut self) -> CoreReport {
        let mut burst: Vec<Mbuf> = Vec::with_capacity(BURST);
        let mut handed: Vec<Handover> = Vec::with_capacity(BURST);
        let mut meter = Meter::default();
        let mut idle_turns = 0;
        let mut frames_of_port = BURST;
        // A core that has nothing but interfaces of the kernel is woken by them.
        let is_woken =
            self.idle == Idle::Backoff && self.rx.iter().all(|(_, rx)| matches!(rx, Rx::Kernel(_)));
        while !self.stop.load(Ordering::Relaxed) {
            meter.begin();
            let elapsed = self.epoch.elapsed();
            self.ports.now = Time(elapsed.as_nanos() as u64);
            let now_s = elapsed.as_secs() as u32;
            let commanded = self.obey(&meter.load);
            let mut frames = 0;
            // What others hand over is taken in any case, so none waits for ever.
            let queues = if self.ports.is_short_of_room() {
                0
            } else {
                self.rx.len()
            };
            if let Some(ready) = &mut self.ready {
                let is_idle = is_woken && idle_turns >= TURNS_AWAKE;
                ready.look(if is_idle { SLEEP_MAX } else { Duration::ZERO });
            }
            let mut bytes = 0;
            for at in 0..queues {
                let (port, rx) = &mut self.rx[at];
                let port = *port;
                let taken = rx.burst(&mut burst, frames_of_port);
                meter.polled(taken);
                if taken < frames_of_port && self.drains.is_waited_for() {
                    self.drains.was_short(at);
                }
                if taken > 0 {
                    frames += taken;
                    meter.end(Stage::Receive);
                    bytes += self.take_burst(port, &mut burst, now_s);
                    meter.end(Stage::Classify);
                }
            }
            frames_of_port = burst_after(frames_of_port, bytes);
            frames += self.take_handover(&mut handed, now_s);
            if frames > 0 {
                meter.end(Stage::Classify);
                self.settle();
                meter.end(Stage::Aggregate);
            }
            let sent = self.ports.flush();
            if self.drains.is_waited_for() {
                self.drains.end_turn();
            }
            if frames > 0 || commanded || sent {
                meter.end(Stage::Send);
                meter.load.busy_turns += 1;
                idle_turns = 0;
            } else {
                meter.end(Stage::Idle);
                meter.load.empty_turns += 1;
                idle_turns += 1;
                if self.idle == Idle::Backoff && !is_woken {
                    back_off(idle_turns);
                }
            }
        }
        self.drain(&mut burst);
        self.report(&meter.load)
    }

    /// Takes what has arrived and nobody will look at any more: some drivers (`net_ring`) would keep
    /// it beyond their end. Bounded, because others (`net_null`) always have more.
    fn drain(&mut self, burst: &mut Vec<Mbuf>) {
        for (_, rx) in &mut self.rx {
            for _ in 0..DRAIN_BURSTS {
                if rx.burst(burst, BURST) == 0 {
                    break;
                }
                burst.clear();
            }
        }
    }

    /// Decides on the frames of one port, and says how many bytes they have.
    fn take_burst(&mut self, port: PortId, burst: &mut Vec<Mbuf>, now_s: u32) -> u64 {
        for mbuf in burst.iter() {
            mbuf.prefetch(0);
        }
        let frames = burst.len() as u64;
        let bytes = match &self.steering {
            Some(steering) if steering.card() == port => self.take_from_card(burst.drain(..)),
            _ => self.take(port, burst.drain(..), now_s),
        };
        let counters = &mut self.ports.counters[usize::from(port.0)];
        counters.rx_frames += frames;
        counters.rx_bytes += bytes;
        bytes
    }

    fn take_handover(&mut self, handed: &mut Vec<Handover>, now_s: u32) -> usize {
        self.inbox.take(handed);
        let n = handed.len();
        let mut rest = handed.drain(..);
        while !rest.as_slice().is_empty() {
            let burst = rest.as_slice().len().min(BURST);
            // All that another core has touched is in its cache, the descriptors too.
            for handover in &rest.as_slice()[..burst] {
                handover.frame().prefetch_descriptor();
            }
            for handover in &rest.as_slice()[..burst] {
                handover.frame().prefetch(0);
            }
            for handover in rest.by_ref().take(burst) {
                match handover {
                    Handover::Egress(port, class, mbuf) => {
                        self.ports.enqueue(port, usize::from(class), mbuf);
                    }
                    Handover::Ingress(port, mbuf) => {
                        self.take(port, std::iter::once(mbuf), now_s);
                    }
                }
            }
            self.ports.give_back();
        }
        n
    }

    /// Decides on frames of a port, and says how many bytes they have.
    #[inline(always)]
    fn take(&mut self, port: PortId, frames: impl Iterator<Item = Mbuf>, now_s: u32) -> u64 {
        let mut bytes = 0;
        let mut frames = frames.inspect(|mbuf| bytes += mbuf.len() as u64);
        while let Some(mbuf) = self.take_train(port, &mut frames) {
            if let Err(reason) = self.classify(port, mbuf, now_s) {
                self.ports.claims[usize::from(port.0)] += u64::from(reason.is_claim());
                self.aggregator.count_drop(reason);
            }
        }
        bytes
    }

    /// Takes frames for as long as they are like the last one of their port, and gives back the first that is
    /// not.
    #[inline(always)]
    fn take_train(
        &mut self,
        port: PortId,
        frames: &mut impl Iterator<Item = Mbuf>,
    ) -> Option<Mbuf> {
        let Some(coupling) = self.couplings[usize::from(port.0)] else {
            return frames.next();
        };
        for mut mbuf in frames {
            if let Some((fragment, priority)) = coupling.train.follows(mbuf.data())
                && self
                    .aggregator
                    .still_admits(coupling.contribution.admission(), fragment)
                && !is_damaged(&mbuf)
                // Padding would be sent on with the result. Only of a frame that nobody shares, and that
                // is in one piece, the length can be set.
                && mbuf.set_len(coupling.train.frame_bytes())
            {
                self.collect(coupling.contribution.of(fragment, priority), mbuf);
            } else {
                return Some(mbuf);
            }
        }
        None
    }

    /// A frame that is not like the last one: it may be anything.
    #[inline(never)]
    fn classify(&mut self, port: PortId, mut mbuf: Mbuf, now_s: u32) -> Result<(), DropReason> {
        if !mbuf.is_contiguous() {
            mbuf = self.linearise(port, &mbuf)?;
        }
        if self.forwarding.is_local(mbuf.data())? {
            return self.take_own(port, mbuf, now_s);
        }
        if self.is_of_switchml(mbuf.data())
            && let Ok(udp) = UdpFrame::parse(mbuf.data())
        {
            return self.take_switchml(port, mbuf, &udp, now_s);
        }
        self.forward(port, mbuf)
    }

    /// A copy, in one buffer, of a frame that came in several: all else wants to see the whole of it.
    #[cold]
    fn linearise(&mut self, port: PortId, mbuf: &Mbuf) -> Result<Mbuf, DropReason> {
        if mbuf.len() > self.pool.frame_bytes_max() {
            return Err(DropReason::Segmented);
        }
        self.ports.counters[usize::from(port.0)].linearised += 1;
        self.pool.copy(mbuf).ok_or(DropReason::NoBuffer)
    }

    /// A frame to the switch itself.
    #[inline]
    fn take_own(&mut self, port: PortId, mut mbuf: Mbuf, now_s: u32) -> Result<(), DropReason> {
        let parsed = UdpFrame::parse(mbuf.data());
        if self.switchml.is_some()
            && let Ok(udp) = &parsed
            && is_switchml(udp.addresses.dst_port)
            && udp.addresses.dst_ip == self.own.ip
        {
            return self.take_switchml(port, mbuf, udp, now_s);
        }
        if is_damaged(&mbuf) {
            return Err(DropReason::Checksum);
        }
        let udp = match parsed {
            Ok(udp) => udp,
            Err(error) => return self.answer(port, mbuf, error),
        };
        let addresses = &udp.addresses;
        if addresses.dst_ip != self.own.ip {
            return Err(DropReason::NotOurs);
        }
        if addresses.src_ip == self.own.ip {
            return Err(DropReason::SpoofedSwitch);
        }
        let shard = addresses.dst_port.wrapping_sub(self.own.base_port);
        if shard >= self.shards {
            return Err(DropReason::UdpPort);
        }
        let header = Header::parse(udp.datagram(mbuf.data()))?.received_with(udp.ecn);
        let from = Member {
            port,
            mac: addresses.src_mac,
            ip: addresses.src_ip,
            udp_port: addresses.src_port,
        };
        if header.kind.is_control() {
            let datagram = udp
                .datagram(mbuf.data())
                .try_into()
                .map_err(|_| DropReason::Length)?;
            let frame = ControlFrame {
                from,
                header,
                datagram: Box::new(datagram),
            };
            return self.control.send(frame);
        }
        if let Some(steering) = &self.steering
            && steering.has(header.job)
        {
            return self.give_to_card(port, mbuf, &header);
        }
        if usize::from(shard) != self.number {
            self.ports.hand_over(usize::from(shard), port, mbuf);
            return Ok(());
        }
        let admission = self.aggregator.admit(&from, &header)?;
        let contribution = Contribution::new(admission, &header);
        if let Some(contribution) = contribution {
            self.couplings[usize::from(port.0)] =
                mbuf.data().first_chunk().map(|headers| Coupling {
                    train: Train::new(headers, header),
                    contribution,
                });
        }
        // Padding, as in `take_train`.
        if !mbuf.set_len(HEADERS_BYTES + header.payload_bytes()) {
            return Err(DropReason::Length);
        }
        if let Some(contribution) = contribution {
            self.collect(contribution, mbuf);
        } else {
            // What came before it is done before it.
            self.settle();
            let now = self.ports.now;
            let frame = Frame(mbuf);
            self.aggregator
                .handle_admitted(now, admission, &header, frame, &mut self.ports);
        }
        Ok(())
    }

    /// A contribution, for the end of the turn.
    #[inline(always)]
    fn collect(&mut self, contribution: Contribution, mbuf: Mbuf) {
        if self.batch.is_full() {
            self.settle();
        }
        self.batch.push(contribution, Frame(mbuf));
    }

    /// Adds up what has come in.
    #[inline]
    fn settle(&mut self) {
        let now = self.ports.now;
        self.aggregator
            .handle_batch(now, &mut self.batch, &mut self.ports);
    }

    /// Carries out what the control thread wants; says whether there was anything.
    fn obey(&mut self, load: &Load) -> bool {
        let mut any = false;
        while let Ok(command) = self.commands.try_recv() {
            self.carry_out(command, load);
            any = true;
        }
        any
    }

    /// Apart from the loop, which has other things to do.
    #[cold]
    #[inline(never)]
    fn carry_out(&mut self, command: CoreCommand, load: &Load) {
        match command {
            CoreCommand::Send(to, datagram) => {
                if let Err(reason) = self.ports.send_datagram(&self.pool, &to, &*datagram) {
                    self.aggregator.count_drop(reason);
                }
            }
            CoreCommand::Bind(roster, index) => {
                self.forwarding.bind(&roster);
                let steering = self.steering.as_mut();
                if steering.is_none_or(|steering| steering.bind(&roster, index)) {
                    self.aggregator
                        .bind((*roster).clone(), index, &mut self.ports);
                }
            }
            CoreCommand::Unbind(job) => {
                self.forwarding.unbind(job);
                if let Some(steering) = &mut self.steering {
                    steering.unbind(job);
                }
                self.aggregator.unbind(job, &mut self.ports);
            }
            CoreCommand::Card(order) => self.obey_card(order),
            // Whoever asked may have gone away.
            CoreCommand::BindSession(session, whereabouts, done) => {
                let dialect = self.switchml.as_mut();
                let bound = dialect.is_some_and(|d| d.bind(&session, whereabouts, &mut self.ports));
                let _ = done.send(bound);
            }
            CoreCommand::Drain(done) => self.drains.add(done, self.rx.len()),
            CoreCommand::UnbindSession(id, done) => {
                if let Some(dialect) = &mut self.switchml {
                    dialect.unbind(id, &mut self.ports);
                }
                let _ = done.send(());
            }
            CoreCommand::Sessions(age, answer) => {
                let _ = answer.send(self.sessions(age));
            }
            CoreCommand::Report(answer) => {
                let _ = answer.send(self.report(load));
            }
        }
    }

    fn obey_card(&mut self, order: CardOrder) {
        // Whoever asked may have gone away.
        match order {
            CardOrder::Give(job, epoch, done) => {
                let _ = done.send(self.give_job(job, epoch));
            }
            CardOrder::TakeBack(job, done) => {
                self.take_job_back(job);
                let _ = done.send(());
            }
            CardOrder::TakeAllBack(done) => {
                self.take_all_back();
                let _ = done.send(());
            }
            CardOrder::Probe(frame) => self.probe_card(&*frame),
            CardOrder::Arrivals(answer) => {
                let here = self.aggregator.arrivals();
                let steering = self.steering.as_ref();
                let _ = answer.send(steering.map_or_else(Vec::new, |s| s.arrivals(here)));
            }
        }
    }

    /// SwitchML's sessions, and if asked, whom others have waited for, longer than `age`.
    fn sessions(&self, age: Option<Duration>) -> Vec<SessionStatus> {
        let now = Time(self.epoch.elapsed().as_nanos() as u64);
        let dialect = self.switchml.as_ref();
        dialect.map_or_else(Vec::new, |dialect| dialect.sessions(now, age))
    }

    fn report(&self, load: &Load) -> CoreReport {
        let mut counters = *self.aggregator.counters();
        counters.drops[DropReason::HandoverFull as usize] += self.ports.handover_full;
        counters.drops[DropReason::FrameTooLong as usize] += self.ports.frame_too_long;
        counters.drops[DropReason::NoBuffer as usize] += self.ports.no_buffer;
        let switchml = self.switchml.as_ref().map(|dialect| SwitchmlReport {
            counters: *dialect.counters(),
            held_in_use: dialect.held_in_use(),
            sessions: self.sessions(Some(BEHIND_AFTER)),
        });
        if let Some(switchml) = &switchml {
            let drops = counters.drops.iter_mut().zip(switchml.counters.drops);
            drops.for_each(|(all, theirs)| *all += theirs);
        }
        let queues = self.ports.queue_counters();
        counters.drops[DropReason::TxFull as usize] +=
            queues.iter().map(QueueCounters::dropped_total).sum::<u64>();
        let mut ports = self.ports.counters.clone();
        for (port, refused) in ports.iter_mut().zip(self.ports.refused()) {
            port.refused = refused;
        }
        for (port, rx) in &self.rx {
            ports[usize::from(port.0)].refused += rx.refused();
        }
        CoreReport {
            counters,
            ports,
            queues,
            residence_ns: self.ports.residence_ns.clone(),
            slots_in_use: self.aggregator.slots_in_use(),
            held_in_use: self.aggregator.held_in_use(),
            switchml,
            card: self.steering.as_ref().map(|steering| steering.traffic),
            claims: self.ports.claims.clone(),
            addresses: self.forwarding.macs().by_port().collect(),
            replies: self.ports.replies.clone(),
            load: *load,
        }
    }
}

/// Whether the port's hardware found a checksum wrong.
#[inline]
fn is_damaged(mbuf: &Mbuf) -> bool {
    mbuf.ip_checksum() == ChecksumState::Bad || mbuf.l4_checksum() == ChecksumState::Bad
}

/// Lets others have the CPU, the longer the less there was to do.
fn back_off(idle_turns: u32) {
    match idle_turns {
        0..YIELDS => std::thread::yield_now(),
        n => {
            let micros = 1 << (n - YIELDS).min(16);
            std::thread::sleep(Duration::from_micros(micros).min(SLEEP_MAX));
        }
    }
}

const _: () = assert!(UDP_END + tally_wire::header::HEADER_BYTES == HEADERS_BYTES);
const _: () = assert!(
    size_of::<PortCounters>() <= 64,
    "one port's counters fit a cache line"
);
