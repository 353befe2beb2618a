//! One data core: the poll loop that drives a [switch core](tally_engine::core) on DPDK.
//!
//! [`DataCore::run`] receives a burst from every port, lets the core aggregate, and transmits. It
//! waits for nothing. When idle it backs off.

use crate::config::Idle;
use crate::control_queue::ControlSender;
use crate::drain::Drains;
use crate::handover::Inbox;
use crate::load::Meter;
use crate::messages::{CoreCommand, CoreReport};
use crate::platform::{Driver, Memory};
use crate::queues::Rx;
use crossbeam_channel::Receiver;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_dpdk::Mbuf;
use tally_engine::{Dialects, Handover, PortId};
use tally_packet::Ready;
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
        // A core that has nothing but interfaces of the kernel is woken by them.
        let is_woken =
            self.idle == Idle::Backoff && self.rx.iter().all(|(_, rx)| matches!(rx, Rx::Kernel(_)));
        while !self.stop.load(Ordering::Relaxed) {
            meter.begin();
            self.core.begin(self.now());
            let commanded = self.poll_commands(&meter.load);
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
                    bytes += self.core.receive(port, &mut burst);
                    let ports = &mut self.core.context.ports;
                    ports.transmit_handovers(&mut self.driver, BURST);
                    meter.end(Stage::Classify);
                }
            }
            frames_of_port = burst_after(frames_of_port, bytes);
            self.inbox.take(&mut handed);
            frames += handed.len();
            self.core.receive_handed_over(&mut handed);
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
            CoreCommand::Drain(reply) => self.drains.add(reply, self.rx.len()),
            CoreCommand::Ping(reply) => reply(()),
            CoreCommand::Report(reply) => reply(self.report(load)),
        }
    }

    fn report(&self, load: &LoadCounters) -> CoreReport {
        let mut report = self.core.report();
        for (port, refused) in report.ports.iter_mut().zip(self.driver.refused()) {
            port.refused = refused;
        }
        for (port, rx) in &self.rx {
            report.ports[usize::from(port.0)].refused += rx.refused();
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
