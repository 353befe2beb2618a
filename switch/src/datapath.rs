//! One data core: the poll loop that drives a [switch core](tally_engine::core) on DPDK.
//!
//! [`DataCore::run`] receives a burst from every port, lets the core aggregate, and transmits. It
//! waits for nothing. When idle it backs off.

mod capturing;

use crate::config::Idle;
use crate::control_queue::ControlSender;
use crate::drain::Drains;
use crate::handover::Inbox;
use crate::load::Meter;
use crate::messages::{CoreCommand, CoreReport, OldQueues, PortQueues};
use crate::platform::{Driver, Memory};
use crate::queues::{Rx, Tx};
use crossbeam_channel::Receiver;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_dpdk::Mbuf;
use tally_engine::{Command, Dialects, Handover, PortId};
use tally_packet::{PacketRx, Ready};
use tally_schema::switch::report::{LoadCounters, Stage};
use tally_wire::Time;

/// The switch core on DPDK.
pub type Core = tally_engine::Core<Memory, Dialects<Memory>>;

/// Frames received from a port in a poll iteration, at most.
pub const BURST: usize = 32;
/// Frames asked of a port in a poll iteration, at least: some drivers give nothing if asked for
/// fewer.
pub const BURST_MIN: usize = 8;
/// Approximate bytes that a poll iteration receives from all ports: what is summed at its end
/// should still be in the core's own cache.
pub const ITERATION_BYTES: u64 = 128 << 10;
/// Bursts received from each port at the end, at most.
const DRAIN_BURSTS: usize = 1 << 12;
/// Empty poll iterations after which the core sleeps instead of yielding. Never spin: on a shared
/// CPU the peers we wait for need it.
const YIELDS: u32 = 64;
/// The same limit where arriving frames wake the core.
const ITERATIONS_AWAKE: u32 = 16;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_micros(100);

/// Frames to receive from a port in the next poll iteration, after one that brought
/// `iteration_bytes` in bursts of `frames`.
#[must_use]
pub const fn burst_after(frames: usize, iteration_bytes: u64) -> usize {
    if iteration_bytes > ITERATION_BYTES && frames > BURST_MIN {
        frames / 2
    } else if iteration_bytes < ITERATION_BYTES / 2 && frames < BURST {
        frames * 2
    } else {
        frames
    }
}

/// A data core, ready to run on its thread.
pub struct DataCore {
    /// The switch core.
    pub core: Core,
    /// Its ports: number and receive queue.
    pub rx: Vec<(PortId, Rx)>,
    /// Which of them have frames, for interfaces of the kernel, if there are any.
    pub ready: Option<Ready>,
    /// Its ways out.
    pub driver: Driver,
    /// Frames from other cores.
    pub inbox: Inbox,
    /// Commands from the control threads.
    pub commands: Receiver<CoreCommand>,
    /// Drains under way.
    pub drains: Drains,
    /// By port, frames that queues refused which the core has no longer.
    pub refused_before: Vec<u64>,
    /// JOIN and LEAVE to the control thread.
    pub control: ControlSender,
    /// What to do when there is nothing to do.
    pub idle: Idle,
    /// When the switch started.
    pub epoch: Instant,
    /// Set when the switch is to stop.
    pub stop: Arc<AtomicBool>,
}

impl DataCore {
    /// Runs until told to stop, and gives its last report.
    pub fn run(mut self) -> CoreReport {
        let mut burst: Vec<Mbuf> = Vec::with_capacity(BURST);
        let mut handed: Vec<Handover<Mbuf>> = Vec::with_capacity(BURST);
        let mut meter = Meter::default();
        let mut idle_iterations = 0;
        let mut frames_of_port = BURST;
        let mut is_woken = self.is_woken();
        while !self.stop.load(Ordering::Relaxed) {
            meter.begin();
            self.core.begin(self.now());
            let commanded = self.poll_commands(&meter.load);
            if commanded {
                is_woken = self.is_woken();
            }
            let mut frames = 0;
            // What others hand over is received in any case, so no two cores wait for each other.
            let queues = if self.driver.outbox.is_short_of_room() {
                0
            } else {
                self.rx.len()
            };
            if let Some(ready) = &mut self.ready {
                let is_idle = is_woken && idle_iterations >= ITERATIONS_AWAKE;
                ready.look(if is_idle { SLEEP_MAX } else { Duration::ZERO });
            }
            let mut bytes = 0;
            for at in 0..queues {
                let (port, rx) = &mut self.rx[at];
                let port = *port;
                let received = rx.burst(&mut burst, frames_of_port);
                meter.polled(received);
                if received < frames_of_port && self.drains.is_waited_for() {
                    self.drains.was_short(at);
                }
                if received > 0 {
                    frames += received;
                    meter.end(Stage::Receive);
                    bytes += match &self.driver.capture {
                        None => self.core.receive(port, &mut burst),
                        Some(capture) => {
                            let (core, control) = (&mut self.core, &self.control);
                            capturing::receive(capture, core, control, port, &mut burst)
                        }
                    };
                    let ports = &mut self.core.context.ports;
                    ports.transmit_handovers(&mut self.driver, BURST);
                    meter.end(Stage::Classify);
                }
            }
            frames_of_port = burst_after(frames_of_port, bytes);
            self.inbox.take(&mut handed);
            frames += handed.len();
            match &self.driver.capture {
                None => self.core.receive_handed_over(&mut handed),
                Some(capture) => {
                    let (core, control) = (&mut self.core, &self.control);
                    capturing::receive_handed_over(capture, core, control, &mut handed);
                }
            }
            if frames > 0 {
                meter.end(Stage::Classify);
                self.core.aggregate();
                self.pass_control();
                meter.end(Stage::Aggregate);
            }
            let sent = self.core.transmit(&mut self.driver);
            if self.drains.is_waited_for() {
                self.drains.end_turn();
            }
            if frames > 0 || commanded || sent {
                meter.end(Stage::Send);
                meter.load.busy_turns += 1;
                idle_iterations = 0;
            } else {
                meter.end(Stage::Idle);
                meter.load.empty_turns += 1;
                idle_iterations += 1;
                if self.idle == Idle::Backoff && !is_woken {
                    back_off(idle_iterations);
                }
            }
        }
        self.drain(&mut burst);
        self.report(&meter.load)
    }

    /// Whether arriving frames wake the core: it has nothing but interfaces of the kernel.
    fn is_woken(&self) -> bool {
        let wakes = |rx: &Rx| matches!(rx, Rx::Kernel(_) | Rx::Closed);
        self.idle == Idle::Backoff
            && self.ready.is_some()
            && self.rx.iter().all(|(_, rx)| wakes(rx))
    }

    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }

    /// Discards what has arrived at the end: some drivers (`net_ring`) would keep it beyond their
    /// end. Bounded, because others (`net_null`) always have more.
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

    /// Passes JOINs and LEAVEs to the control thread.
    #[inline]
    fn pass_control(&mut self) {
        while let Some(frame) = self.core.poll_control() {
            if let Err(reason) = self.control.send(frame) {
                self.core.context.count_drop(reason);
            }
        }
    }

    /// Carries out what the control threads ask; says whether there was anything.
    fn poll_commands(&mut self, load: &LoadCounters) -> bool {
        let mut any = false;
        while let Ok(command) = self.commands.try_recv() {
            self.command(command, load);
            any = true;
        }
        any
    }

    /// Apart from the loop, which has other things to do.
    #[cold]
    #[inline(never)]
    fn command(&mut self, command: CoreCommand, load: &LoadCounters) {
        match command {
            CoreCommand::Core(command) => self.core.command(command),
            CoreCommand::Capture(capture) => self.driver.capture = capture,
            CoreCommand::Drain(reply) => self.drains.add(reply, self.rx.len()),
            CoreCommand::Ping(reply) => reply(()),
            CoreCommand::Report(reply) => reply(self.report(load)),
            CoreCommand::Swap(queues, reply) => reply(self.swap(*queues)),
        }
    }

    /// Takes other queues for a port. What waited for it is given up.
    fn swap(&mut self, queues: PortQueues) -> OldQueues {
        let PortQueues {
            port,
            rx,
            tx,
            longest_frame,
        } = queues;
        let at = usize::from(port.0);
        let mut old = OldQueues {
            rx: Vec::new(),
            tx: None,
            failed: None,
        };
        for (_, rx) in self.rx.extract_if(.., |(of, _)| *of == port) {
            if let (Rx::Kernel(rx), Some(ready)) = (&rx, &mut self.ready) {
                ready.forget(rx);
            }
            old.rx.push(rx);
        }
        for rx in rx {
            if let Rx::Kernel(rx) = &rx
                && let Err(why) = self.watch(rx)
            {
                old.failed = Some(why.to_string());
            }
            self.rx.push((port, rx));
        }
        let (tx, way) = match tx {
            Ok((tx, config)) => (Some(tx), Ok(config)),
            Err(core) => (None, Err(core)),
        };
        let refused = |rx: &[Rx], tx: &Option<Tx>| {
            let rx: u64 = rx.iter().map(Rx::refused).sum();
            rx + tx.as_ref().map_or(0, Tx::refused)
        };
        let new: u64 = self.refused_by(port) + tx.as_ref().map_or(0, Tx::refused);
        if let Some(place) = self.driver.tx.get_mut(at) {
            old.tx = std::mem::replace(place, tx);
        }
        // The counters of the queues that are gone stay, and those that come have some already.
        if self.refused_before.len() <= at {
            self.refused_before.resize(at + 1, 0);
        }
        let before = &mut self.refused_before[at];
        *before = before
            .wrapping_add(refused(&old.rx, &old.tx))
            .wrapping_sub(new);
        self.core.command(Command::Reassign(port, way));
        let ports = &mut self.core.context.ports;
        ports.set_longest_frame(port, longest_frame);
        self.drains.restart(self.rx.len());
        old
    }

    fn watch(&mut self, rx: &PacketRx) -> Result<(), tally_packet::Error> {
        let ready = match &mut self.ready {
            Some(ready) => ready,
            None => self.ready.insert(Ready::new()?),
        };
        ready.watch(rx)
    }

    /// Frames that a port's receive queues refused.
    fn refused_by(&self, port: PortId) -> u64 {
        let own = self.rx.iter().filter(|(of, _)| *of == port);
        own.map(|(_, rx)| rx.refused()).sum()
    }

    fn report(&self, load: &LoadCounters) -> CoreReport {
        let mut report = self.core.report();
        for (port, refused) in report.ports.iter_mut().zip(self.driver.refused()) {
            port.refused = refused;
        }
        for (port, rx) in &self.rx {
            report.ports[usize::from(port.0)].refused += rx.refused();
        }
        for (port, before) in report.ports.iter_mut().zip(&self.refused_before) {
            port.refused = port.refused.wrapping_add(*before);
        }
        CoreReport::new(report, *load)
    }
}

/// Lets others have the CPU, the longer the less there was to do.
fn back_off(idle_iterations: u32) {
    match idle_iterations {
        0..YIELDS => std::thread::yield_now(),
        n => {
            let micros = 1 << (n - YIELDS).min(16);
            std::thread::sleep(Duration::from_micros(micros).min(SLEEP_MAX));
        }
    }
}
