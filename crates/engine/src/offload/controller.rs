//! The control of a card, without I/O: health, failover, and the jobs that are offloaded to it.
//!
//! A driver owns a [`Controller`] and does what it asks:
//!
//! 1. It reports membership ([`bind`](Controller::bind), [`unbind`](Controller::unbind)), probes
//!    that came back ([`handle_probe`](Controller::handle_probe)) and time
//!    ([`handle_timeout`](Controller::handle_timeout), due at
//!    [`poll_timeout`](Controller::poll_timeout)).
//! 2. It carries out each [`poll_request`](Controller::poll_request), and answers with
//!    [`opened`](Controller::opened), [`arrivals`](Controller::arrivals) or
//!    [`moved`](Controller::moved). Until then the controller waits: it decides nothing else, as a
//!    thread that waits for the data cores would not.
//! 3. It reports each [`poll_event`](Controller::poll_event).
//!
//! The card's registers are behind [`Registers`]. Their calls are complete when they return.
//!
//! # Health
//!
//! Every [`TICK`] a card is asked twice: its registers must say that it works, and a probe must
//! come back through its data path. If either fails, the card has failed: all its jobs are resumed
//! in software at once, and it is opened again after a backoff. An absent card is looked for each
//! second.
//!
//! # Why a job may be moved at any time
//!
//! To its workers and PS a move is a switch restart limited to that job: ADR 18.

use super::choice::{Choice, LOOK, Move};
use super::health::{Backoff, DataPath, TICK};
use crate::Roster;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tally_wire::{Epoch, HEADERS_BYTES, JobId, Time, UNIT_BYTES};

/// Time between two looks for an absent card. They disturb no job.
const LOOK_FOR: Duration = Duration::from_secs(1);
/// Time between two readings of the card's counters.
const COUNT: Duration = Duration::from_secs(1);

/// The registers of a card that is open: it has been cleared, and knows the switch's address.
///
/// Each error means that the card has failed; it says why.
pub trait Registers {
    /// Jobs that the card has places for.
    fn places(&self) -> usize;

    /// Results that the card keeps of each job.
    fn ring(&self) -> u32;

    /// Whether the card can have this job, if a place is free.
    ///
    /// # Errors
    /// Why not.
    fn fits(&self, roster: &Roster) -> Result<(), String>;

    /// Loads a job, or replaces its members' addresses; says whether there was a place.
    ///
    /// # Errors
    /// The card has failed.
    fn load(&mut self, roster: &Roster) -> Result<bool, String>;

    /// Unloads a job, with all that the card has of it.
    ///
    /// # Errors
    /// The card has failed.
    fn unload(&mut self, job: JobId) -> Result<(), String>;

    /// Checks that the card works.
    ///
    /// # Errors
    /// The card has failed.
    fn alive(&mut self) -> Result<(), String>;

    /// Reads the counters, once a second.
    ///
    /// # Errors
    /// The card has failed.
    fn count(&mut self) -> Result<(), String>;
}

/// The jobs that may be offloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jobs {
    /// The busiest ones.
    Auto,
    /// These, the first ones first.
    List(Vec<JobId>),
}

/// What does not change while the switch runs.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The jobs that may be offloaded.
    pub jobs: Jobs,
    /// Largest window of a worker.
    pub window: u16,
    /// Longest frame of the card's port.
    pub frame_bytes: usize,
    /// Jobs that need nothing that a card does not do.
    pub eligible: BTreeSet<JobId>,
}

/// What the driver does next. All but `Probe` have an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Open the card; answered by [`Controller::opened`].
    Open,
    /// Send the probe with this number to the card.
    Probe(u16),
    /// Sum the contributions of each job on all cores; answered by [`Controller::arrivals`].
    Arrivals,
    /// Have the card serve this epoch of a job on all cores; answered by [`Controller::moved`].
    Move(JobId, Epoch),
    /// Have software serve a job on all cores; answered by [`Controller::moved`].
    MoveBack(JobId),
    /// Have software serve all jobs on all cores; answered by [`Controller::moved`].
    MoveAllBack,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The card cannot be opened, or has not passed its first probe.
    Absent(String),
    /// The card works.
    Working,
    /// The card has failed, with these jobs.
    Failed(String, Vec<JobId>),
    /// A job was offloaded.
    Offloaded(JobId),
    /// A job was resumed in software.
    Resumed(JobId),
    /// A running job cannot be offloaded.
    Unfit(JobId, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No card is open.
    Closed,
    /// A card is open, and its first probe is to be sent or in flight.
    Probing { is_sent: bool },
    /// It works.
    Working {
        since: Time,
        looked: Time,
        counted: Time,
    },
}

/// A request whose answer has not come.
#[derive(Debug)]
enum Waiting {
    Open,
    Arrivals,
    Move(JobId),
    MoveBack(JobId),
    MoveAllBack { why: String, uptime: Duration },
}

enum News {
    Bind(Arc<Roster>),
    Unbind(JobId),
    Jobs(Option<Jobs>, BTreeSet<JobId>),
}

/// The control of a card with registers `C`.
pub struct Controller<C> {
    config: ControllerConfig,
    card: Option<C>,
    state: State,
    due: Time,
    waiting: Option<Waiting>,
    /// News that the controller has not heard yet: it waits.
    backlog: VecDeque<News>,
    running: BTreeMap<JobId, Arc<Roster>>,
    /// Jobs on the card.
    offloaded: BTreeMap<JobId, Epoch>,
    unfit: BTreeMap<JobId, String>,
    choice: Choice,
    path: DataPath,
    backoff: Backoff,
    requests: VecDeque<Request>,
    events: VecDeque<Event>,
}

impl<C: Registers> Controller<C> {
    /// The control of a card that is opened at `now`.
    #[must_use]
    pub fn new(now: Time, config: ControllerConfig) -> Self {
        Self {
            config,
            card: None,
            state: State::Closed,
            due: now,
            waiting: None,
            backlog: VecDeque::new(),
            running: BTreeMap::new(),
            offloaded: BTreeMap::new(),
            unfit: BTreeMap::new(),
            choice: Choice::default(),
            path: DataPath::default(),
            backoff: Backoff::default(),
            requests: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The jobs on the card.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.offloaded.keys().copied()
    }

    /// Running jobs that cannot be offloaded, and why.
    #[must_use]
    pub const fn unfit(&self) -> &BTreeMap<JobId, String> {
        &self.unfit
    }

    /// The card, if it is open.
    pub const fn card_mut(&mut self) -> Option<&mut C> {
        self.card.as_mut()
    }

    /// Whether the card works.
    #[must_use]
    pub const fn is_working(&self) -> bool {
        matches!(self.state, State::Working { .. })
    }

    /// What the driver does next.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; never while the controller waits.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Time> {
        match self.waiting {
            None => Some(self.due),
            Some(_) => None,
        }
    }

    /// A tick, if it is due; `pulse` frames have come from the card so far.
    pub fn handle_timeout(&mut self, now: Time, pulse: u64) {
        if self.waiting.is_some() || now < self.due {
            return;
        }
        self.due = now.after(TICK);
        match self.state {
            State::Closed => self.wait_for(Request::Open, Waiting::Open),
            State::Probing { is_sent: true } if self.path.has_answered() => self.begin(now),
            State::Probing { .. } => {
                self.state = State::Probing { is_sent: true };
                if let Err(why) = self.tick(pulse) {
                    self.give_up(now, why);
                }
            }
            State::Working { .. } => {
                if let Err(why) = self.work(now, pulse) {
                    self.fail(now, why);
                }
            }
        }
    }

    /// A probe with this number has come back.
    pub fn handle_probe(&mut self, number: u16) {
        self.path.answer(number);
    }

    /// An epoch of a job runs, or its members have other addresses.
    pub fn bind(&mut self, now: Time, roster: Arc<Roster>) {
        self.backlog.push_back(News::Bind(roster));
        self.receive_backlog(now);
    }

    /// A job has ended.
    pub fn unbind(&mut self, now: Time, job: JobId) {
        self.backlog.push_back(News::Unbind(job));
        self.receive_backlog(now);
    }

    /// These jobs may be offloaded from now on (`None`: those so far), of those that are eligible.
    /// Others come back.
    pub fn set_jobs(&mut self, now: Time, jobs: Option<Jobs>, eligible: BTreeSet<JobId>) {
        self.backlog.push_back(News::Jobs(jobs, eligible));
        self.receive_backlog(now);
    }

    /// The answer to [`Request::Open`].
    pub fn opened(&mut self, now: Time, card: Result<C, String>) {
        self.waiting = None;
        match card {
            Ok(card) => {
                self.card = Some(card);
                self.state = State::Probing { is_sent: false };
                self.path.restart();
                self.due = now;
            }
            Err(why) => self.give_up(now, why),
        }
        self.receive_backlog(now);
    }

    /// The answer to [`Request::Arrivals`].
    pub fn arrivals(&mut self, now: Time, counts: &BTreeMap<JobId, u64>) {
        self.waiting = None;
        let result = self.choose_by(now, counts);
        self.resume_backlog(now, result);
    }

    /// The answer to [`Request::Move`], [`Request::MoveBack`] and [`Request::MoveAllBack`]: whether
    /// all cores did so.
    pub fn moved(&mut self, now: Time, all: bool) {
        let result = match self.waiting.take() {
            Some(Waiting::Move(job)) if all => {
                self.events.push_back(Event::Offloaded(job));
                // The next of the list.
                match self.config.jobs {
                    Jobs::Auto => Ok(()),
                    Jobs::List(_) => self.choose(),
                }
            }
            // The job has ended, and we shall hear of it.
            Some(Waiting::Move(job)) => {
                self.take_back(job);
                Ok(())
            }
            Some(Waiting::MoveBack(job)) => {
                self.offloaded.remove(&job);
                self.events.push_back(Event::Resumed(job));
                self.unload(job)
            }
            Some(Waiting::MoveAllBack { why, uptime }) => {
                let jobs = self.jobs().collect();
                self.offloaded.clear();
                self.events.push_back(Event::Failed(why, jobs));
                self.due = now.after(self.backoff.after(uptime));
                Ok(())
            }
            other => {
                self.waiting = other;
                return;
            }
        };
        self.resume_backlog(now, result);
    }

    /// After an answer: fails, or takes the news that came meanwhile.
    fn resume_backlog(&mut self, now: Time, result: Result<(), String>) {
        if let Err(why) = result {
            self.fail(now, why);
        }
        self.receive_backlog(now);
    }

    fn wait_for(&mut self, request: Request, waiting: Waiting) {
        self.requests.push_back(request);
        self.waiting = Some(waiting);
    }

    /// Sends the next probe.
    fn tick(&mut self, pulse: u64) -> Result<(), String> {
        let probe = self.path.tick(pulse)?;
        self.requests.extend(probe.map(Request::Probe));
        Ok(())
    }

    /// The card has answered its first probe.
    fn begin(&mut self, now: Time) {
        self.state = State::Working {
            since: now,
            looked: now,
            counted: now,
        };
        self.events.push_back(Event::Working);
        if let Err(why) = self.choose() {
            self.fail(now, why);
        }
    }

    /// The card cannot be used.
    fn give_up(&mut self, now: Time, why: String) {
        self.card = None;
        self.state = State::Closed;
        self.due = now.after(LOOK_FOR);
        self.events.push_back(Event::Absent(why));
    }

    /// A tick of a card that works.
    fn work(&mut self, now: Time, pulse: u64) -> Result<(), String> {
        self.open_card()?.alive()?;
        self.tick(pulse)?;
        let State::Working {
            looked, counted, ..
        } = &mut self.state
        else {
            return Ok(());
        };
        let is_due = |last: &mut Time, every| {
            let is_due = now.since(*last) >= every;
            if is_due {
                *last = now;
            }
            is_due
        };
        let (look, count) = (is_due(looked, LOOK), is_due(counted, COUNT));
        if count {
            self.open_card()?.count()?;
        }
        if look { self.choose() } else { Ok(()) }
    }

    fn open_card(&mut self) -> Result<&mut C, String> {
        self.card.as_mut().ok_or_else(|| "it is closed".to_owned())
    }

    /// The card has failed: its jobs are resumed in software.
    fn fail(&mut self, now: Time, why: String) {
        let uptime = match self.state {
            State::Working { since, .. } => now.since(since),
            State::Closed | State::Probing { .. } => Duration::ZERO,
        };
        self.card = None;
        self.state = State::Closed;
        let waiting = Waiting::MoveAllBack { why, uptime };
        self.wait_for(Request::MoveAllBack, waiting);
    }

    /// Takes news from the backlog, until the controller waits for an answer.
    fn receive_backlog(&mut self, now: Time) {
        while self.waiting.is_none()
            && let Some(news) = self.backlog.pop_front()
        {
            if let Err(why) = self.note(news) {
                self.fail(now, why);
            }
        }
    }

    fn note(&mut self, news: News) -> Result<(), String> {
        let (job, roster) = match news {
            News::Bind(roster) => (roster.job, Some(roster)),
            News::Unbind(job) => (job, None),
            News::Jobs(jobs, eligible) => {
                self.config.eligible = eligible;
                if let Some(jobs) = jobs {
                    self.config.jobs = jobs;
                }
                return if self.is_working() {
                    self.choose()
                } else {
                    Ok(())
                };
            }
        };
        match &roster {
            Some(roster) => self.running.insert(job, Arc::clone(roster)),
            None => self.running.remove(&job),
        };
        let here = self.offloaded.get(&job).copied();
        match (roster, here) {
            // The cores leave this epoch on the card.
            (Some(roster), Some(epoch)) if roster.epoch == epoch => {
                self.open_card()?.load(&roster)?;
            }
            // The cores have ended it.
            (_, Some(_)) => {
                self.offloaded.remove(&job);
                self.unload(job)?;
            }
            (_, None) => {}
        }
        if self.is_working() && matches!(self.config.jobs, Jobs::List(_)) {
            self.choose()?;
        }
        Ok(())
    }

    fn unload(&mut self, job: JobId) -> Result<(), String> {
        self.open_card()?.unload(job)
    }

    /// Offloads the next job of a list, or asks which jobs are busy.
    fn choose(&mut self) -> Result<(), String> {
        let fit = self.fitting()?;
        if let Some(&job) = self.offloaded.keys().find(|job| !fit.contains(job)) {
            self.take_back(job);
            return Ok(());
        }
        let Jobs::List(jobs) = &self.config.jobs else {
            self.wait_for(Request::Arrivals, Waiting::Arrivals);
            return Ok(());
        };
        for job in jobs.clone() {
            let is_next = fit.contains(&job) && !self.offloaded.contains_key(&job);
            if is_next && self.has_place()? && self.offload(job)? {
                break;
            }
        }
        Ok(())
    }

    fn choose_by(&mut self, now: Time, counts: &BTreeMap<JobId, u64>) -> Result<(), String> {
        let fit = self.fitting()?;
        let here = self.jobs().collect();
        let places = self.open_card()?.places();
        match self.choice.look(now, counts, &fit, &here, places) {
            Some(Move::There(job)) => {
                self.offload(job)?;
            }
            Some(Move::Back(job)) => self.take_back(job),
            None => {}
        }
        Ok(())
    }

    fn has_place(&mut self) -> Result<bool, String> {
        let used = self.offloaded.len();
        Ok(used < self.open_card()?.places())
    }

    /// Loads a job onto the card, and has it moved; says whether there was a place.
    fn offload(&mut self, job: JobId) -> Result<bool, String> {
        let Some(roster) = self.running.get(&job).cloned() else {
            return Ok(false);
        };
        if !self.open_card()?.load(&roster)? {
            return Ok(false);
        }
        self.offloaded.insert(job, roster.epoch);
        self.wait_for(Request::Move(job, roster.epoch), Waiting::Move(job));
        Ok(true)
    }

    fn take_back(&mut self, job: JobId) {
        self.wait_for(Request::MoveBack(job), Waiting::MoveBack(job));
    }

    /// Running jobs that the card can have.
    fn fitting(&mut self) -> Result<BTreeSet<JobId>, String> {
        let card = self.card.as_ref().ok_or("it is closed")?;
        let is_listed = |job: &JobId| match &self.config.jobs {
            Jobs::Auto => true,
            Jobs::List(jobs) => jobs.contains(job),
        };
        let mut fit = BTreeSet::new();
        let mut unfit = BTreeMap::new();
        for (&job, roster) in self.running.iter().filter(|(job, _)| is_listed(job)) {
            match self.config.fits(roster, card) {
                Ok(()) => {
                    fit.insert(job);
                }
                Err(why) => {
                    unfit.insert(job, why);
                }
            }
        }
        for (&job, why) in &unfit {
            if self.unfit.get(&job) != Some(why) {
                self.events.push_back(Event::Unfit(job, why.clone()));
            }
        }
        self.unfit = unfit;
        Ok(fit)
    }
}

impl ControllerConfig {
    fn fits(&self, roster: &Roster, card: &impl Registers) -> Result<(), String> {
        if let Some(uplink) = &roster.uplink {
            return Err(format!(
                "its sums go to a parent switch at {}, and a card keeps none until the parent's \
                 result: only the root of a tree may have a card",
                uplink.parent.ip
            ));
        }
        let servers = roster.servers.len();
        if servers > 1 {
            return Err(format!(
                "it has {servers} parameter servers, the card serves jobs of 1"
            ));
        }
        if !self.eligible.contains(&roster.job) {
            return Err("one worker, or limits of slots".into());
        }
        let ring = card.ring();
        if u32::from(self.window) > ring / 2 {
            return Err(format!(
                "`window` is {}, the card has results of {ring} fragments: {} at most",
                self.window,
                ring / 2
            ));
        }
        let bytes = HEADERS_BYTES + usize::from(roster.units) * UNIT_BYTES;
        if bytes > self.frame_bytes {
            return Err(format!(
                "its frames of {bytes} bytes are too long for the card's port"
            ));
        }
        card.fits(roster)
    }
}

#[cfg(test)]
mod tests;
