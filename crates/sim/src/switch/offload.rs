//! A switch's card, and the control of it: a driver of [`tally_engine::offload::controller`].
//!
//! A command reaches each core at a moment of its own, so jobs are for a while on the card for one
//! core and in software for another one. The controller waits for all, as the switch's thread does.

use super::card::{Card, CardConfig, Window};
use crate::address::Peer;
use crate::events::Event;
use crate::frame::{Frame, Origin};
use crate::link::{Link, LinkConfig};
use crate::port::{Outside, has_elements, wire_bytes};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tally_engine::metrics::MetricSet as _;
use tally_engine::offload::controller::{
    Controller, ControllerConfig, Event as CardEvent, Jobs, Request,
};
use tally_engine::offload::health::probe;
use tally_engine::offload::{self, CardTraffic, Offload, Pulse};
use tally_engine::{Command, DialectCommand, Dialects, DropReason, PoolJob, PortId, Reply, Roster};
use tally_wire::{Epoch, Header, JobId, Time};

/// A card, and how the switch uses it.
#[derive(Clone, Debug)]
pub struct CardSetup {
    /// The card.
    pub card: CardConfig,
    /// The jobs that may be offloaded.
    pub jobs: Jobs,
    /// Jobs that need nothing that a card does not do.
    pub eligible: BTreeSet<JobId>,
    /// From a command of the control to its execution on a core at most; each is drawn.
    pub command_delay: Duration,
}

/// What the control of a card did.
#[derive(Clone, Copy, Debug, Default)]
pub struct CardTotals {
    /// Jobs offloaded.
    pub offloaded: u64,
    /// Jobs resumed in software, but for those of a failed card.
    pub resumed: u64,
    /// Failures of a card that worked.
    pub failures: u64,
    /// Failures of a card that had jobs.
    pub failovers: u64,
}

/// A card behind a port of a switch.
pub struct CardPort {
    setup: CardSetup,
    window: u16,
    /// The port.
    pub port: PortId,
    /// The card.
    pub card: Rc<RefCell<Card>>,
    /// From the card.
    pub link: Link,
    /// What the control did.
    pub totals: CardTotals,
    controller: Controller<Window>,
    pulse: Arc<Pulse>,
    /// Probes that came back.
    probes: Arc<Mutex<Vec<u16>>>,
    /// The epochs that run.
    epochs: BTreeMap<JobId, Epoch>,
    timer_at: Option<Time>,
    /// By core, commands that are to come.
    commands: Vec<VecDeque<Request>>,
    /// Cores that have not carried out the last one.
    unanswered: usize,
    /// Whether all others have done so.
    all: bool,
    counts: BTreeMap<JobId, u64>,
}

impl CardPort {
    fn controller(setup: &CardSetup, window: u16) -> Controller<Window> {
        let config = ControllerConfig {
            jobs: setup.jobs.clone(),
            window,
            frame_bytes: usize::MAX,
            eligible: setup.eligible.clone(),
        };
        Controller::new(Time(0), config)
    }

    /// The dialect of a core.
    pub(super) fn dialect(&self) -> Box<Offload> {
        let probes = Arc::clone(&self.probes);
        let on_probe = move |number| {
            let mut probes = probes.lock().unwrap_or_else(PoisonError::into_inner);
            probes.push(number);
        };
        let pulse = Arc::clone(&self.pulse);
        Box::new(Offload::new(self.port, pulse, Box::new(on_probe)))
    }

    /// The switch has stopped.
    pub(super) fn stop(&mut self) {
        self.controller = Self::controller(&self.setup, self.window);
        self.epochs.clear();
        self.timer_at = None;
        self.commands.clear();
        self.unanswered = 0;
    }

    /// Marks what comes from the card of a job that the core does not have there.
    ///
    /// It may reach no host.
    pub(super) fn mark_stale(&self, jobs: &tally_engine::context::Jobs, frames: &[Frame]) {
        for frame in frames {
            let Some((_, datagram)) = frame.udp() else {
                continue;
            };
            let Ok(header) = Header::parse_untagged(&frame.bytes()[datagram]) else {
                continue;
            };
            let is_here = jobs.server(header.job) == Some(Dialects::<super::Memory>::OFFLOAD)
                && self.epochs.get(&header.job) == Some(&header.epoch);
            if !is_here {
                frame.set_origin(Origin::Forger);
            }
        }
    }
}

/// What a command answers.
fn ask<T: Send + 'static>(command: impl FnOnce(Reply<T>)) -> Option<T> {
    let (send, receive) = mpsc::channel();
    command(Box::new(move |answer| {
        // The asker waits below.
        let _ = send.send(answer);
    }));
    receive.try_recv().ok()
}

impl super::Switch {
    /// Connects a card to the next port, before the first frame or command.
    pub(crate) fn add_card(&mut self, setup: CardSetup, link: LinkConfig, now: Time) {
        let port = self.add_port(link, Peer::Card(self.id));
        let jobs = self.config.jobs.iter();
        let jobs = jobs.map(|job| PoolJob::unlimited(job.id)).collect();
        let card = Card::new(setup.card, jobs, self.id, self.memory.room());
        let window = self.config.registry.window;
        self.card = Some(CardPort {
            controller: CardPort::controller(&setup, window),
            setup,
            window,
            port,
            card: Rc::new(RefCell::new(card)),
            link: Link::new(link),
            totals: CardTotals::default(),
            pulse: Arc::default(),
            probes: Arc::default(),
            epochs: BTreeMap::new(),
            timer_at: Some(now),
            commands: Vec::new(),
            unanswered: 0,
            all: true,
            counts: BTreeMap::new(),
        });
    }

    /// The switch has started: its control looks for the card.
    pub(crate) fn start_card(&mut self, out: &mut Outside<'_>) {
        self.drive_card(out);
    }

    /// A frame has come to the card.
    pub(crate) fn handle_at_card(&mut self, frame: Frame, out: &mut Outside<'_>) {
        let Some(port) = &mut self.card else { return };
        let sent = port.card.borrow_mut().receive(out.now, frame, out.rng);
        for frame in sent {
            let bytes = wire_bytes(frame.bytes(), out.nominal_payload_bytes);
            let Some(left) = port.link.take(out.now, bytes) else {
                continue;
            };
            let arrivals = port.link.fly(left, has_elements(frame.bytes()), out.rng);
            let (id, number) = (self.id, port.port);
            if let Some(at) = arrivals.copy {
                let copy = frame.copied();
                out.events.push(at, Event::ToSwitch(id, number, copy));
            }
            if let Some(at) = arrivals.first {
                out.events.push(at, Event::ToSwitch(id, number, frame));
            }
        }
    }

    /// A tick of the card's control.
    pub(crate) fn handle_card_timer(&mut self, out: &mut Outside<'_>) {
        let Some(port) = &mut self.card else { return };
        if port.timer_at != Some(out.now) {
            return;
        }
        port.timer_at = None;
        port.card.borrow_mut().now = out.now;
        let probes =
            std::mem::take(&mut *port.probes.lock().unwrap_or_else(PoisonError::into_inner));
        for number in probes {
            port.controller.handle_probe(number);
        }
        port.controller.handle_timeout(out.now, port.pulse.count());
        self.drive_card(out);
    }

    /// The control hears of a job.
    pub(super) fn tell_card(&mut self, job: JobId, roster: Option<Arc<Roster>>, now: Time) {
        let Some(port) = &mut self.card else { return };
        port.card.borrow_mut().now = now;
        match roster {
            Some(roster) => {
                port.epochs.insert(job, roster.epoch);
                port.controller.bind(now, roster);
            }
            None => {
                port.epochs.remove(&job);
                port.controller.unbind(now, job);
            }
        }
    }

    /// Does what the control asks.
    pub(super) fn drive_card(&mut self, out: &mut Outside<'_>) {
        self.ready();
        loop {
            let Some(port) = &mut self.card else { return };
            port.card.borrow_mut().now = out.now;
            while let Some(event) = port.controller.poll_event() {
                port.totals.count(&event);
            }
            let Some(request) = port.controller.poll_request() else {
                break;
            };
            match request {
                Request::Open => {
                    let address = self.cores[0].core.context.address;
                    let window = Window::open(&port.card, address);
                    port.controller.opened(out.now, window);
                }
                Request::Probe(number) => {
                    let command = offload::Command::Probe(Box::new(probe(number)));
                    let command = Command::Dialect(DialectCommand::Offload(command));
                    self.cores[0].core.command(command);
                    self.transmit(0, out);
                }
                request => {
                    port.unanswered = self.cores.len();
                    port.all = true;
                    port.counts.clear();
                    port.commands.resize_with(self.cores.len(), VecDeque::new);
                    for (core, commands) in port.commands.iter_mut().enumerate() {
                        commands.push_back(request);
                        let after = out
                            .rng
                            .between(0, port.setup.command_delay.as_nanos() as u64);
                        let at = out.now.after(Duration::from_nanos(after));
                        out.events.push(at, Event::CardCommand(self.id, core));
                    }
                }
            }
        }
        let Some(port) = &mut self.card else { return };
        if let Some(at) = port.controller.poll_timeout()
            && port.timer_at.is_none_or(|timer| at < timer)
        {
            let at = at.max(out.now);
            port.timer_at = Some(at);
            out.events.push(at, Event::CardTimer(self.id));
        }
    }

    /// A core carries out what the card's control asked.
    pub(crate) fn handle_card_command(&mut self, number: usize, out: &mut Outside<'_>) {
        let Some(port) = &mut self.card else { return };
        // Of a switch that has been stopped meanwhile, there is none.
        let Some(request) = port.commands.get_mut(number).and_then(VecDeque::pop_front) else {
            return;
        };
        let card = Dialects::<super::Memory>::OFFLOAD;
        let core = &mut self.cores[number].core;
        core.begin(out.now);
        match request {
            Request::Move(job, epoch) => {
                let moved = ask(|done| core.command(Command::Move(job, epoch, card, done)));
                port.all &= moved == Some(true);
            }
            Request::MoveBack(job) => {
                let done = ask(|done| core.command(Command::MoveBack(job, done)));
                port.all &= done.is_some();
            }
            Request::MoveAllBack => {
                let done = ask(|done| core.command(Command::MoveAllBack(card, done)));
                port.all &= done.is_some();
            }
            Request::Arrivals => {
                for (job, count) in
                    ask(|done| core.command(Command::Arrivals(done))).unwrap_or_default()
                {
                    *port.counts.entry(job).or_default() += count;
                }
            }
            Request::Open | Request::Probe(_) => {}
        }
        port.unanswered -= 1;
        if port.unanswered == 0 {
            port.card.borrow_mut().now = out.now;
            if request == Request::Arrivals {
                let counts = std::mem::take(&mut port.counts);
                port.controller.arrivals(out.now, &counts);
            } else {
                port.controller.moved(out.now, port.all);
            }
        }
        self.transmit(number, out);
        self.wake_inboxes(out);
        self.drive_card(out);
    }

    /// Frames between the cores and the card.
    #[must_use]
    pub fn card_traffic(&self) -> CardTraffic {
        let mut sum = CardTraffic::default();
        for core in &self.cores {
            if let Some(traffic) = &core.core.report().dialects.offload {
                sum.add(traffic);
            }
        }
        sum
    }

    /// Frames that came from the card, and those of them that are counted as results, other frames,
    /// probes or drops.
    #[must_use]
    pub fn card_frames(&self) -> (u64, u64) {
        let Some(card) = &self.card else {
            return (0, 0);
        };
        let traffic = self.card_traffic();
        let mut came = 0;
        let mut counted =
            traffic.results + traffic.results_from_ps + traffic.others + traffic.probes;
        for core in &self.cores {
            let report = core.core.report();
            came += report.ports[usize::from(card.port.0)].rx_frames;
            let reasons = [
                DropReason::CardFrame,
                DropReason::CardReturned,
                DropReason::CardStray,
            ];
            counted += reasons
                .map(|reason| report.drops[reason])
                .iter()
                .sum::<u64>();
        }
        (came, counted)
    }

    /// Whether the card works, as far as the control knows.
    #[must_use]
    pub fn card_works(&self) -> bool {
        let card = self.card.as_ref();
        card.is_some_and(|card| card.controller.is_working())
    }
}

impl CardTotals {
    fn count(&mut self, event: &CardEvent) {
        match event {
            CardEvent::Offloaded(_) => self.offloaded += 1,
            CardEvent::Resumed(_) => self.resumed += 1,
            CardEvent::Failed(_, jobs) => {
                self.failures += 1;
                self.failovers += u64::from(!jobs.is_empty());
            }
            CardEvent::Absent(_) | CardEvent::Working | CardEvent::Unfit(..) => {}
        }
    }
}
