//! The thread that has the card: it does what the card's control asks.
//!
//! [`tally_engine::offload::controller`] decides, without I/O. This thread carries it out: it alone
//! has the card's registers, so that no other thread waits when they hang. It receives news of jobs
//! from the control thread, commands the data cores and waits for them, and fills in the card's
//! part of reports ([`CardReport`]).

use crate::bus::Bus;
use crate::config::{CardJobs, CardSection, Registers as Place};
use crate::log;
use crate::messages::CardNews;
use crate::platform::Memory;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally_bridge::{Bar, Card, CardCounters, CardError, Own, Socket, Window};
use tally_engine::offload::controller::{
    Controller, ControllerConfig, Event, Jobs, Registers, Request,
};
use tally_engine::offload::health::{TICK, probe};
use tally_engine::offload::{self, Pulse};
use tally_engine::{Command, DialectCommand, DialectMetrics, Dialects, Reply, Roster};
use tally_schema::switch::report::{CardReport, CardState};
use tally_wire::{JobId, Time};

/// How long the data cores may take for a command.
const CORE_TIMEOUT: Duration = Duration::from_secs(2);

/// What does not change while the switch runs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What the operator says.
    pub section: CardSection,
    /// The switch's own address, which the card answers for.
    pub own: Own,
    /// Largest window of a worker.
    pub window: u16,
    /// Longest frame that the card's port carries.
    pub frame_bytes: usize,
    /// Jobs for which a card does all that is configured.
    pub jobs: BTreeSet<JobId>,
}

/// The channels that the thread is at the end of.
pub struct Ends {
    /// From the control thread.
    pub news: Receiver<CardNews>,
    /// Numbers of probes that came back.
    pub answers: Receiver<u16>,
    /// To the data cores.
    pub bus: Bus,
    /// Frames from the card.
    pub pulse: Arc<Pulse>,
    /// What reports say.
    pub report: Arc<Mutex<CardReport>>,
}

/// The thread, ready to run.
pub struct CardThread {
    section: CardSection,
    own: Own,
    ends: Ends,
    epoch: Instant,
    stop: Arc<AtomicBool>,
    controller: Controller<OpenCard>,
    /// How long the data cores took for their last command.
    took: Duration,
}

/// A card that is open.
struct OpenCard {
    card: Card<Box<dyn Window>>,
    report: Arc<Mutex<CardReport>>,
}

impl OpenCard {
    /// Opens the card behind these registers, clears it, and tells it the switch's address.
    fn open(place: &Place, own: &Own, report: Arc<Mutex<CardReport>>) -> Result<Self, CardError> {
        let window: Box<dyn Window> = match place {
            Place::Socket(path) => Box::new(Socket::connect(path)?),
            Place::Bar(bar) => Box::new(Bar::open(&bar.device, bar.resource, bar.offset)?),
        };
        let mut card = Card::open(window)?;
        card.set_own(own)?;
        Ok(Self { card, report })
    }
}

impl Registers for OpenCard {
    fn places(&self) -> usize {
        self.card.capabilities().jobs as usize
    }

    fn ring(&self) -> u32 {
        self.card.capabilities().ring
    }

    fn fits(&self, roster: &Roster) -> Result<(), String> {
        self.card.fits(roster).map_err(text)
    }

    fn load(&mut self, roster: &Roster) -> Result<bool, String> {
        match self.card.load(roster) {
            Ok(_) => Ok(true),
            Err(why) if why.is_failure() => Err(text(why)),
            Err(_) => Ok(false),
        }
    }

    fn unload(&mut self, job: JobId) -> Result<(), String> {
        self.card.unload(job).map_err(text)
    }

    fn alive(&mut self) -> Result<(), String> {
        self.card.alive().map_err(text)
    }

    fn count(&mut self) -> Result<(), String> {
        let counters = self.card.counters().map_err(text)?;
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        set_counters(&mut report, &counters);
        Ok(())
    }
}

/// Mirrors the card's counters.
fn set_counters(report: &mut CardReport, counters: &CardCounters) {
    let map = |all: &mut dyn Iterator<Item = (&'static str, u64)>| {
        all.map(|(name, n)| (name.to_owned(), n)).collect()
    };
    report.counts.counters = map(&mut counters.named());
    report.counts.drops = map(&mut counters.drops().filter(|&(_, n)| n > 0));
    report.counts.stream = map(&mut counters.stream());
}

impl CardThread {
    /// `epoch` is when the switch started; it ends when `stop` is set.
    #[must_use]
    pub fn new(setup: Setup, ends: Ends, epoch: Instant, stop: Arc<AtomicBool>) -> Self {
        let config = ControllerConfig {
            jobs: jobs_of(&setup.section.jobs),
            window: setup.window,
            frame_bytes: setup.frame_bytes,
            eligible: setup.jobs,
        };
        Self {
            controller: Controller::new(time(epoch), config),
            section: setup.section,
            own: setup.own,
            ends,
            epoch,
            stop,
            took: Duration::ZERO,
        }
    }

    /// Runs until told to stop.
    pub fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.carry_out();
            let due = self.controller.poll_timeout().unwrap_or_default();
            // The stop flag is looked at each tick.
            let wait = due.since(self.now()).min(TICK);
            match self.ends.news.recv_timeout(wait) {
                Ok(CardNews::Bind(roster)) => self.controller.bind(self.now(), roster),
                Ok(CardNews::Unbind(job)) => self.controller.unbind(self.now(), job),
                Ok(CardNews::Jobs { jobs, eligible }) => {
                    let jobs = jobs.map(|jobs| jobs_of(&jobs));
                    self.controller.set_jobs(self.now(), jobs, eligible);
                }
                Err(RecvTimeoutError::Timeout) => {
                    while let Ok(number) = self.ends.answers.try_recv() {
                        self.controller.handle_probe(number);
                    }
                    let pulse = self.ends.pulse.count();
                    self.controller.handle_timeout(self.now(), pulse);
                }
                // The control thread has ended, and soon the rest.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(card) = self.controller.card_mut() {
            let _ = card.count();
            let _ = card.card.unload_all();
        }
    }

    fn now(&self) -> Time {
        time(self.epoch)
    }

    /// Does what the controller asks, and reports what has happened.
    fn carry_out(&mut self) {
        while let Some(request) = self.controller.poll_request() {
            match request {
                Request::Open => {
                    let report = Arc::clone(&self.ends.report);
                    let card = OpenCard::open(&self.section.registers, &self.own, report);
                    self.controller.opened(self.now(), card.map_err(text));
                }
                Request::Probe(number) => {
                    let probe = offload::Command::Probe(Box::new(probe(number)));
                    self.ends.bus.send_first(probe);
                }
                Request::Arrivals => {
                    let answers = self.ends.bus.ask(Command::Arrivals).wait(CORE_TIMEOUT);
                    let mut sums = BTreeMap::new();
                    for (job, count) in answers.flatten().flatten() {
                        *sums.entry(job).or_default() += count;
                    }
                    self.controller.arrivals(self.now(), &sums);
                }
                Request::Move(job, epoch) => {
                    let card = Dialects::<Memory>::OFFLOAD;
                    self.ask(|done| Command::Move(job, epoch, card, done), |&moved| moved);
                }
                Request::MoveBack(job) => {
                    self.ask(|done| Command::MoveBack(job, done), |()| true);
                }
                Request::MoveAllBack => {
                    let card = Dialects::<Memory>::OFFLOAD;
                    self.ask(|done| Command::MoveAllBack(card, done), |()| true);
                }
            }
            self.report();
        }
        self.report();
    }

    /// Gives a command to each core, and tells the controller whether all have carried it out.
    fn ask<T: Send + 'static>(
        &mut self,
        command: impl Fn(Reply<T>) -> Command<DialectCommand, DialectMetrics>,
        is_done: impl Fn(&T) -> bool,
    ) {
        let since = Instant::now();
        let answers = self.ends.bus.ask(command).wait(CORE_TIMEOUT);
        let all = answers.fold(true, |all, answer| {
            all & answer.as_ref().is_some_and(&is_done)
        });
        self.took = since.elapsed();
        self.controller.moved(self.now(), all);
    }

    /// Writes down what has happened; logs it where it is news.
    fn report(&mut self) {
        while let Some(event) = self.controller.poll_event() {
            self.note(&event);
        }
        let jobs = self.controller.jobs().map(|job| job.0).collect();
        let unfit = self.controller.unfit().iter();
        let unfit = unfit.map(|(job, why)| (job.0, why.clone())).collect();
        let mut report = self.lock();
        report.jobs = jobs;
        report.unfit = unfit;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CardReport> {
        let report = &self.ends.report;
        report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Absent(why) => self.set_state(CardState::Absent, Some(why)),
            Event::Working => {
                let can = self
                    .controller
                    .card_mut()
                    .map(|card| *card.card.capabilities());
                if let Some(can) = can {
                    let mut report = self.lock();
                    report.slots = can.slots;
                    report.payload_bytes = can.payload_bytes;
                    report.places = can.jobs;
                    report.members = can.members;
                    report.ring = can.ring;
                    report.f32 = can.f32;
                }
                self.set_state(CardState::Working, None);
            }
            Event::Failed(why, jobs) => {
                self.lock().events.failures += 1;
                self.set_state(CardState::Failed, Some(why));
                if !jobs.is_empty() {
                    let jobs: Vec<_> = jobs.iter().map(|job| job.0.to_string()).collect();
                    let line = format!(
                        "card failed: job {} resumed in software after {:.1} ms",
                        jobs.join(", "),
                        self.took.as_secs_f64() * 1e3
                    );
                    log::line("card", line);
                }
            }
            Event::Offloaded(job) => {
                self.lock().events.moves += 1;
                log::line("card", format!("job {}: offloaded to card", job.0));
            }
            Event::Resumed(job) => {
                self.lock().events.moves += 1;
                log::line("card", format!("job {}: resumed in software", job.0));
            }
            Event::Unfit(job, why) => {
                log::line(
                    "card",
                    format!("job {}: does not fit the card: {why}", job.0),
                );
            }
        }
    }

    /// Logs the state if it is another, or for another reason.
    fn set_state(&self, state: CardState, why: Option<&String>) {
        let mut report = self.lock();
        if (report.state, report.why.as_ref()) == (state, why) {
            return;
        }
        report.state = state;
        report.why = why.cloned();
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        log::line("card", format!("card: {state}{why}"));
    }
}

fn jobs_of(jobs: &CardJobs) -> Jobs {
    match jobs {
        CardJobs::Auto => Jobs::Auto,
        CardJobs::List(jobs) => Jobs::List(jobs.iter().copied().map(JobId).collect()),
    }
}

fn time(epoch: Instant) -> Time {
    Time(epoch.elapsed().as_nanos() as u64)
}

fn text(why: impl Display) -> String {
    why.to_string()
}
