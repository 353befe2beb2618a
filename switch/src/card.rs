//! The thread that has the card: it decides what the card does, and whether it still does it.
//!
//! It alone touches the card's registers, so nobody else waits when they hang. It hears from the control thread
//! which jobs run, loads the card with those that it is to have, and has the data cores give it their frames
//! ([`tally_engine::offload`]). Reports read what it last wrote down ([`CardReport`]).
//!
//! # Health
//!
//! A card is asked twice, every [`TICK`]: by its registers, which must say that it is itself and that its clock
//! moves; and by a frame through its data path, which must come back. Whichever fails, or says nonsense, the card
//! has failed: all its jobs are bound in software at once, what it may still send is dropped, and it is tried again
//! later, each time later than before, beginning with clearing it. One that is not there is looked for each second.
//!
//! While frames come from a card, a probe may take longer: a busy one has many before it. Time is counted in turns
//! of this thread, so that a machine that lets nobody run does not look like a card that is dead.
//!
//! # Why a job may go to and fro
//!
//! To its workers and PS a move is what a restart of the switch is, and less of it: docs/adr/0018-card-is-a-port.md.

mod choice;

pub use choice::{Choice, LOOK, Move};

use crate::bus::{Answers, Bus};
use crate::config::{CardJobs, CardSection, Registers};
use crate::log;
use crate::messages::CardNews;
use crate::platform::Memory;
use crate::report::{CardReport, CardState};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally_bridge::{Bar, Card, CardError, Own, Socket, Window, tags};
use tally_engine::offload::{self, Probe, Pulse};
use tally_engine::{Command, DialectCommand, DialectMetrics, Dialects, Reply, Roster};
use tally_wire::{Epoch, HEADERS_BYTES, JobId, Mac, Time, UNIT_BYTES};

/// How often the card is asked how it is.
pub const TICK: Duration = Duration::from_millis(50);
/// Ticks without anything from the data path after which it has failed.
const SILENT_TICKS: u32 = 6;
/// Ticks without an answer to a probe, whatever else comes.
const PROBE_TICKS: u32 = 40;
/// How often its counters are read.
const COUNT: Duration = Duration::from_secs(1);
/// How long the data cores may take for an order.
const CORE_PATIENCE: Duration = Duration::from_secs(2);
/// How long a failed card is left alone at first, and at most.
const BACK_OFF: Duration = Duration::from_millis(500);
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// How often a card is looked for that does not answer. That disturbs no job.
const LOOK_FOR: Duration = Duration::from_secs(1);
/// A card that worked for so long may be tried again soon.
const PROVEN: Duration = Duration::from_secs(10);
/// Who sends probes. Not the switch: the card drops what claims to be from its own address.
const PROBE_SOURCE: Mac = Mac([2, 0x54, 0x43, 2, 0xff, 0xfe]);

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

/// The thread, ready to run.
pub struct CardThread {
    setup: Setup,
    news: Receiver<CardNews>,
    answers: Receiver<u16>,
    bus: Bus,
    pulse: Arc<Pulse>,
    report: Arc<Mutex<CardReport>>,
    epoch: Instant,
    stop: Arc<AtomicBool>,
    running: BTreeMap<JobId, Arc<Roster>>,
    /// The jobs that the card has.
    inside: BTreeMap<JobId, Epoch>,
    choice: Choice,
    path: DataPath,
}

/// The channels that it is at the end of.
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

/// How long a card is left alone that fails the next time.
#[derive(Debug)]
struct Rest(Duration);

impl Rest {
    /// It has failed after having worked for so long.
    fn after(&mut self, worked: Duration) -> Duration {
        if worked > PROVEN {
            self.0 = BACK_OFF;
        }
        let rest = self.0;
        self.0 = (rest * 2).min(BACK_OFF_MAX);
        rest
    }
}

/// What is known of the data path.
#[derive(Debug, Default)]
struct DataPath {
    /// The last probe.
    number: u16,
    /// Ticks for which it has been under way.
    outstanding: Option<u32>,
    silent: u32,
    pulse: u64,
}

impl DataPath {
    /// A tick has passed in which `answers` came, and so many frames have come so far. Says what probe to send.
    fn tick(
        &mut self,
        answers: impl Iterator<Item = u16>,
        pulse: u64,
    ) -> Result<Option<u16>, String> {
        for number in answers {
            if number == self.number {
                self.outstanding = None;
            }
        }
        let moved = pulse != self.pulse;
        self.pulse = pulse;
        let Some(ticks) = &mut self.outstanding else {
            self.number = self.number.wrapping_add(1);
            self.outstanding = Some(0);
            self.silent = 0;
            return Ok(Some(self.number));
        };
        *ticks += 1;
        self.silent = if moved { 0 } else { self.silent + 1 };
        if self.silent < SILENT_TICKS && *ticks < PROBE_TICKS {
            return Ok(None);
        }
        let ms = u128::from(*ticks) * TICK.as_millis();
        Err(format!("its data path has not answered for {ms} ms"))
    }

    fn has_answered(&self) -> bool {
        self.outstanding.is_none()
    }
}

/// The frame that a card gives back.
fn probe(number: u16) -> Probe {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&tags::probe_mac(number).0);
    frame[6..12].copy_from_slice(&PROBE_SOURCE.0);
    frame[12..14].copy_from_slice(&tags::PROBE_ETHERTYPE.to_be_bytes());
    frame
}

fn open(registers: &Registers) -> Result<Box<dyn Window>, CardError> {
    Ok(match registers {
        Registers::Socket(path) => Box::new(Socket::connect(path)?),
        Registers::Bar(bar) => Box::new(Bar::open(&bar.device, bar.resource, bar.offset)?),
    })
}

type OpenCard = Card<Box<dyn Window>>;

impl CardThread {
    /// `epoch` is when the switch started; it ends when `stop` is set.
    #[must_use]
    pub fn new(setup: Setup, ends: Ends, epoch: Instant, stop: Arc<AtomicBool>) -> Self {
        Self {
            setup,
            news: ends.news,
            answers: ends.answers,
            bus: ends.bus,
            pulse: ends.pulse,
            report: ends.report,
            epoch,
            stop,
            running: BTreeMap::new(),
            inside: BTreeMap::new(),
            choice: Choice::default(),
            path: DataPath::default(),
        }
    }

    /// Runs until told to stop.
    pub fn run(mut self) {
        let mut rest = Rest(BACK_OFF);
        while !self.is_stopped() {
            match self.attach() {
                Ok(mut card) => {
                    let since = Instant::now();
                    let result = self.work(&mut card);
                    if let Err(why) = result {
                        self.fail(&why);
                    } else {
                        let _ = self.count(&mut card).and_then(|()| card.unload_all());
                        return;
                    }
                    self.pause(rest.after(since.elapsed()));
                }
                Err(why) => {
                    self.note(|report| {
                        report.state = CardState::Absent;
                        report.why = Some(why);
                    });
                    self.pause(LOOK_FOR);
                }
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Changes the report; says so where it is another state, or for another reason.
    fn note(&self, change: impl FnOnce(&mut CardReport)) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = (report.state, report.why.clone());
        change(&mut report);
        report.jobs = self.inside.keys().map(|id| id.0).collect();
        if before != (report.state, report.why.clone()) {
            let why = report
                .why
                .as_ref()
                .map_or(String::new(), |why| format!(": {why}"));
            log::line("card", format!("card: {}{why}", report.state));
        }
    }

    /// Opens the card, clears it, and makes sure that its data path works.
    fn attach(&mut self) -> Result<OpenCard, String> {
        let window = open(&self.setup.section.registers).map_err(text)?;
        let mut card = Card::open(window).map_err(text)?;
        card.set_own(&self.setup.own).map_err(text)?;
        self.path = DataPath::default();
        while self.answers.try_recv().is_ok() {}
        loop {
            self.tick()?;
            self.pause(TICK);
            if self.is_stopped() {
                return Err("the switch ends".into());
            }
            let number = self.path.number;
            if self.answers.try_iter().any(|answer| answer == number) {
                self.path.outstanding = None;
            }
            if self.path.has_answered() {
                break;
            }
        }
        let can = *card.capabilities();
        self.note(|report| {
            report.state = CardState::Working;
            report.why = None;
            report.slots = can.slots;
            report.payload_bytes = can.payload_bytes;
            report.places = can.jobs;
            report.members = can.members;
            report.ring = can.ring;
            report.f32 = can.f32;
        });
        Ok(card)
    }

    /// Asks the data path.
    fn tick(&mut self) -> Result<(), String> {
        let next = self
            .path
            .tick(self.answers.try_iter(), self.pulse.count())?;
        if let Some(number) = next {
            // A core that has ended takes the switch with it.
            let probe = Box::new(probe(number));
            self.bus.tell_first(offload::Command::Probe(probe));
        }
        Ok(())
    }

    /// Works until told to stop.
    ///
    /// # Errors
    /// Why the card has failed.
    fn work(&mut self, card: &mut OpenCard) -> Result<(), String> {
        let (mut looked, mut counted) = (Instant::now(), Instant::now());
        let mut next_tick = Instant::now();
        self.choose(card)?;
        while !self.is_stopped() {
            match self.news.recv_deadline(next_tick) {
                Ok(news) => {
                    self.hear(news, card)?;
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The control thread has ended, and soon the rest.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            card.alive().map_err(text)?;
            self.tick()?;
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.choose(card)?;
            }
            if counted.elapsed() >= COUNT {
                counted = Instant::now();
                self.count(card).map_err(text)?;
            }
            next_tick = Instant::now() + TICK;
        }
        Ok(())
    }

    /// Takes note of what the control thread says.
    fn hear(&mut self, news: CardNews, card: &mut OpenCard) -> Result<(), String> {
        match self.remember(news) {
            // The data cores keep such a job on the card.
            Heard::Moved(roster) => {
                card.load(&roster).map_err(text)?;
            }
            // The data cores have taken it back, or ended it, when they were told.
            Heard::Gone(id) => {
                self.inside.remove(&id);
                card.unload(id).map_err(text)?;
                self.note(|_| ());
            }
            Heard::Else => {}
        }
        if matches!(self.setup.section.jobs, CardJobs::List(_)) {
            self.choose(card)?;
        }
        Ok(())
    }

    fn remember(&mut self, news: CardNews) -> Heard {
        let (id, roster) = match news {
            CardNews::Bind(roster) => (roster.job, Some(roster)),
            CardNews::Unbind(id) => (id, None),
        };
        let inside = self.inside.get(&id).copied();
        let heard = match (&roster, inside) {
            (Some(roster), Some(epoch)) if roster.epoch == epoch => {
                Heard::Moved(Arc::clone(roster))
            }
            (_, Some(_)) => Heard::Gone(id),
            (_, None) => Heard::Else,
        };
        match roster {
            Some(roster) => self.running.insert(id, roster),
            None => self.running.remove(&id),
        };
        heard
    }

    /// Waits, without a card, and takes note meanwhile.
    fn pause(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.is_stopped() {
            let turn = deadline.min(Instant::now() + TICK);
            match self.news.recv_deadline(turn) {
                Ok(news) => {
                    self.remember(news);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
        }
    }

    /// Gives the card the jobs that it is to have.
    fn choose(&mut self, card: &mut OpenCard) -> Result<(), String> {
        let fit = self.fitting(card);
        let places = card.capabilities().jobs as usize;
        match self.setup.section.jobs.clone() {
            CardJobs::List(jobs) => {
                for id in jobs.into_iter().map(JobId) {
                    let is_free = self.inside.len() < places;
                    if fit.contains(&id) && is_free && !self.inside.contains_key(&id) {
                        self.give(id, card)?;
                    }
                }
            }
            CardJobs::Auto => {
                let counts = self.arrivals();
                let inside = self.inside.keys().copied().collect();
                let now = Time(self.epoch.elapsed().as_nanos() as u64);
                match self.choice.look(now, &counts, &fit, &inside, places) {
                    Some(Move::There(id)) => self.give(id, card)?,
                    Some(Move::Back(id)) => self.take_back(id, card)?,
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Running jobs that the card can do, and in the report why others are not.
    fn fitting(&self, card: &OpenCard) -> BTreeSet<JobId> {
        let listed = |id: JobId| match &self.setup.section.jobs {
            CardJobs::Auto => true,
            CardJobs::List(jobs) => jobs.contains(&id.0),
        };
        let mut fit = BTreeSet::new();
        let mut unfit = BTreeMap::new();
        for (&id, roster) in self.running.iter().filter(|&(&id, _)| listed(id)) {
            match self.fits(roster, card) {
                Ok(()) => {
                    fit.insert(id);
                }
                Err(why) => {
                    unfit.insert(id.0, why);
                }
            }
        }
        self.note(|report| {
            for (id, why) in &unfit {
                if report.unfit.get(id) != Some(why) {
                    log::line("card", format!("job {id} does not fit the card: {why}"));
                }
            }
            report.unfit = unfit;
        });
        fit
    }

    fn fits(&self, roster: &Roster, card: &OpenCard) -> Result<(), String> {
        if !self.setup.jobs.contains(&roster.job) {
            return Err("one worker, or limits of slots".into());
        }
        let ring = card.capabilities().ring;
        if u32::from(self.setup.window) > ring / 2 {
            return Err(format!(
                "`window` is {}, the card has results of {ring} fragments: {} at most",
                self.setup.window,
                ring / 2
            ));
        }
        let bytes = HEADERS_BYTES + usize::from(roster.units) * UNIT_BYTES;
        if bytes > self.setup.frame_bytes {
            return Err(format!(
                "its frames of {bytes} bytes are too long for the card's port"
            ));
        }
        card.fits(roster).map_err(text)
    }

    fn give(&mut self, id: JobId, card: &mut OpenCard) -> Result<(), String> {
        let Some(roster) = self.running.get(&id).cloned() else {
            return Ok(());
        };
        match card.load(&roster) {
            Ok(_) => {}
            Err(why) if why.is_failure() => return Err(text(why)),
            // There is no place: it stays where it is.
            Err(_) => return Ok(()),
        }
        let epoch = roster.epoch;
        let card_dialect = Dialects::<Memory>::OFFLOAD;
        let answers = self.ask(|done| Command::Move(id, epoch, card_dialect, done));
        let all = answers
            .wait(CORE_PATIENCE)
            .fold(true, |all, answer| all & (answer == Some(true)));
        self.inside.insert(id, epoch);
        if all {
            self.note(|report| report.moves += 1);
            log::line("card", format!("job {}: offloaded to card", id.0));
            Ok(())
        } else {
            // It has ended meanwhile; we have not heard yet.
            self.take_back(id, card)
        }
    }

    fn take_back(&mut self, id: JobId, card: &mut OpenCard) -> Result<(), String> {
        let answers = self.ask(|done| Command::MoveBack(id, done));
        answers.wait(CORE_PATIENCE).for_each(drop);
        self.inside.remove(&id);
        self.note(|report| report.moves += 1);
        log::line("card", format!("job {}: resumed in software", id.0));
        card.unload(id).map_err(text)
    }

    /// Takes all jobs back from a card that has failed.
    fn fail(&mut self, why: &str) {
        let since = Instant::now();
        let card_dialect = Dialects::<Memory>::OFFLOAD;
        let answers = self.ask(|done| Command::MoveAllBack(card_dialect, done));
        answers.wait(CORE_PATIENCE).for_each(drop);
        let jobs: Vec<_> = self.inside.keys().map(|id| id.0.to_string()).collect();
        self.inside.clear();
        self.note(|report| {
            report.state = CardState::Failed;
            report.why = Some(why.to_owned());
            report.failures += 1;
        });
        if !jobs.is_empty() {
            let line = format!(
                "card failed: job {} resumed in software after {:.1} ms",
                jobs.join(", "),
                since.elapsed().as_secs_f64() * 1e3
            );
            log::line("card", line);
        }
    }

    /// Mirrors the card's counters.
    fn count(&self, card: &mut OpenCard) -> Result<(), CardError> {
        let counters = card.counters()?;
        let map = |all: &mut dyn Iterator<Item = (&'static str, u64)>| {
            all.map(|(name, n)| (name.to_owned(), n)).collect()
        };
        self.note(|report| {
            report.counters = map(&mut counters.named());
            report.drops = map(&mut counters.drops().filter(|&(_, n)| n > 0));
            report.stream = map(&mut counters.stream());
        });
        Ok(())
    }

    /// Contributions of each job so far.
    fn arrivals(&self) -> BTreeMap<JobId, u64> {
        let mut sums = BTreeMap::new();
        let answers = self.ask(Command::Arrivals).wait(CORE_PATIENCE);
        for (id, count) in answers.flatten().flatten() {
            *sums.entry(id).or_default() += count;
        }
        sums
    }

    /// Gives a command to each core, with a way to answer.
    fn ask<T: Send + 'static>(
        &self,
        command: impl Fn(Reply<T>) -> Command<DialectCommand, DialectMetrics>,
    ) -> Answers<T> {
        self.bus.ask(command)
    }
}

/// What news is to the card.
enum Heard {
    /// A job that it has is to have other members.
    Moved(Arc<Roster>),
    /// It has this job no longer.
    Gone(JobId),
    /// Nothing.
    Else,
}

fn text(why: impl Display) -> String {
    why.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_path_that_answers_is_asked_again_each_tick() {
        let mut path = DataPath::default();
        assert_eq!(path.tick([].into_iter(), 0), Ok(Some(1)));
        for number in 1..100 {
            let answers = [number].into_iter();
            assert_eq!(path.tick(answers, number.into()), Ok(Some(number + 1)));
        }
    }

    #[test]
    fn a_silent_one_has_failed_soon_and_a_busy_one_later() {
        let mut path = DataPath::default();
        path.tick([].into_iter(), 0).unwrap();
        for _ in 1..SILENT_TICKS {
            assert_eq!(path.tick([].into_iter(), 0), Ok(None));
        }
        let why = path.tick([7].into_iter(), 0).unwrap_err();
        assert!(why.contains("300 ms"), "{why}");

        let mut path = DataPath::default();
        path.tick([].into_iter(), 0).unwrap();
        for frames in 1..PROBE_TICKS {
            assert_eq!(path.tick([].into_iter(), frames.into()), Ok(None));
        }
        let why = path.tick([].into_iter(), 1000).unwrap_err();
        assert!(why.contains("2000 ms"), "{why}");
    }

    #[test]
    fn a_card_that_fails_again_and_again_is_left_alone_for_longer() {
        let mut rest = Rest(BACK_OFF);
        let waits: Vec<_> = (0..8).map(|_| rest.after(TICK).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(rest.after(PROVEN + TICK), BACK_OFF, "it had worked");
        assert_eq!(rest.after(PROVEN), 2 * BACK_OFF);
    }

    #[test]
    fn a_probe_is_as_long_as_the_shortest_frame_and_says_its_number() {
        let frame = probe(0x1234);
        assert_eq!(
            tags::probe_of(Mac([
                frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]
            ])),
            Some(0x1234)
        );
        assert_eq!(frame[12..14], [0x88, 0xb5]);
    }
}
