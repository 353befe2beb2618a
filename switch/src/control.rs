//! The thread beside the data path: membership, and the statistics socket.
//!
//! JOIN and LEAVE come from the data cores over a bounded queue
//! ([`control_queue`](crate::control_queue): what does not fit is dropped and counted there, so a
//! flood of them costs the data path nothing but the try). The registry answers with actions; they
//! go back to the data cores as commands, in their order. A roster goes to all cores before the
//! datagram that tells the members.
//!
//! A member is silent only if the switch listened. Before a member is lost, the cores take all that
//! waits at the ports, and the thread takes all that they handed to it; a core that does not answer
//! excuses the members.
//!
//! [`live`] is how a running switch becomes another; [`request`] is the way in.

pub mod change;
pub mod error;
pub mod live;
pub mod request;
pub mod trees;

use crate::bus::Bus;
use crate::control_queue::ControlReceiver;
use crate::events::GrowthWatch;
use crate::log;
use crate::messages::{CardNews, CoreCommand};
use crate::ports::keeper::PortsHandle;
use crate::report::{self, Shape};
use crate::switchml::controller::Conflicts;
use crate::watch::Watch;
use crate::watchdog::Turns;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use live::Live;
use request::Request;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally_engine::{Action, Command, ControlFrame, Registry, switchml};
use tally_schema::agent::config::Access;
use tally_schema::switch::report::{CardReport, Report};
use tally_wire::Time;
use trees::Parents;

/// How often the thread looks at its socket and its clock, at least.
const TICK: Duration = Duration::from_millis(20);
/// Clients of the statistics socket at one time.
const CLIENTS_MAX: usize = 16;
/// How long one of them may take to read its report.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits for the cores' reports.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);
/// How long a core may take to answer before a member is lost.
const LISTEN_TIMEOUT: Duration = Duration::from_millis(500);
/// A pause of the process that is told.
const PAUSE_TOLD: Duration = Duration::from_secs(1);

/// The control thread, ready to run.
pub struct Control {
    /// Who is a member of what.
    pub registry: Registry,
    /// From the data cores.
    pub frames: ControlReceiver,
    /// To the data cores.
    pub bus: Bus,
    /// The card's thread and what it last said, if there is a card.
    pub card: Option<CardLink>,
    /// Where to answer requests for statistics.
    pub socket: Option<StatsSocket>,
    /// Over SwitchML's sessions.
    pub watch: Watch,
    /// Where their conflicts go, if there is a controller.
    pub conflicts: Option<Conflicts>,
    /// What the reports say of the configuration.
    pub shape: Shape,
    /// What the switch runs with.
    pub live: Live,
    /// Whether there may be switches above.
    pub is_in_fabric: bool,
    /// Where parents in the trees of jobs are.
    pub parents: Parents,
    /// The thread that changes ports.
    pub ports: Option<PortsHandle>,
    /// What others ask.
    pub requests: Receiver<Request>,
    /// Set by SIGHUP: the file is to be read again.
    pub hangup: Arc<AtomicBool>,
    /// When the switch started.
    pub epoch: Instant,
    /// For the watchdog.
    pub turns: Turns,
    /// Set when the switch is to stop.
    pub stop: Arc<AtomicBool>,
    /// Over the counters of hostile frames, and the names of ports.
    pub growth: GrowthWatch,
}

/// Between this thread and the card's. Neither waits for the other.
#[derive(Clone)]
pub struct CardLink {
    /// To it.
    pub news: Sender<CardNews>,
    /// What it last said of the card.
    pub report: Arc<Mutex<CardReport>>,
}

impl CardLink {
    /// What it last said.
    #[must_use]
    pub fn report(&self) -> CardReport {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.clone()
    }
}

impl Control {
    /// Runs until told to stop. Returns the registry for the last report.
    pub fn run(mut self) -> Registry {
        let mut is_told = false;
        while !self.stop.load(Ordering::Relaxed) {
            self.turns.count();
            match self.frames.receive(TICK) {
                Ok(frame) => {
                    self.observe();
                    self.take(frame);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.observe();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if (self.registry.silence_due()).is_some_and(|due| due <= self.now()) {
                self.listen(&mut is_told);
                let actions = self.registry.handle_timeout(self.now());
                self.carry_out(actions);
                self.say_events();
            }
            let now = self.now();
            let mut actions = self.registry.expire(now);
            actions.append(&mut self.registry.poll_links(now));
            self.carry_out(actions);
            self.look_up();
            self.answer_requests();
            let now = self.now();
            let found = self.watch.look(now, &self.bus);
            for (kind, line) in found.lines {
                log::line(kind, line);
            }
            if let Some(conflicts) = &self.conflicts {
                for (id, conflict, ports) in found.conflicts {
                    conflicts.report(id, conflict, ports);
                }
            }
            self.growth.look(&self.bus);
            self.answer_socket();
        }
        self.registry
    }

    /// Does what others ask.
    fn answer_requests(&mut self) {
        if self.hangup.swap(false, Ordering::Relaxed) {
            self.load(None, Box::new(|_| {}));
        }
        // Only those that wait now: a flood may not keep this from its end.
        for _ in 0..self.requests.len() {
            if let Ok(request) = self.requests.try_recv() {
                self.handle_request(request);
            }
        }
    }

    /// Tells the registry the time, and the log of a pause.
    fn observe(&mut self) {
        let missed = self.registry.observe(self.now());
        if missed >= PAUSE_TOLD {
            let text = format!(
                "the control thread did not run for {:.1} s (process stopped, or no CPU for it): no member is lost \
                 for its silence in that time",
                missed.as_secs_f64()
            );
            log::line("pause", text);
        }
    }

    fn take(&mut self, frame: ControlFrame) {
        let ControlFrame {
            from,
            header,
            datagram,
        } = frame;
        let now = self.now();
        let actions = self.registry.handle(now, from, &header, &*datagram);
        self.carry_out(actions);
        self.say_events();
    }

    /// Says what happened to jobs and members, once it has been carried out.
    fn say_events(&mut self) {
        for event in self.registry.take_events() {
            let place = self.registry.tree(event.job());
            self.growth.say(&event, place);
        }
    }

    /// Takes what has arrived. The members are excused if a core does not answer, which is logged
    /// once until all cores answer again.
    fn listen(&mut self, is_told: &mut bool) {
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        // A core that always has more to take does not end its drain, but polls commands.
        let polled = (self.bus).ask(|done| switchml::Command::Sessions(None, done));
        let drained = self.bus.ask(CoreCommand::Drain);
        let answers = drained.wait_until(deadline).zip(polled.ready());
        let answers = answers.map(|(drained, polled)| drained.is_some() || polled.is_some());
        // All of them are waited for.
        let stalled: Vec<_> = (0..).zip(answers).filter(|(_, answers)| !answers).collect();
        if let Some((core, _)) = stalled.first() {
            if !*is_told {
                let text = format!(
                    "data core {core} did not answer for {} ms (no CPU for it?): no member is lost for silence \
                     before it answers",
                    LISTEN_TIMEOUT.as_millis()
                );
                log::line("pause", text);
            }
            self.registry.excuse(self.now());
        }
        *is_told = !stalled.is_empty();
        // Only the clients that wait now: a flood may not keep this from its end.
        for _ in 0..self.frames.waiting() {
            if let Ok(frame) = self.frames.receive(Duration::ZERO) {
                self.take(frame);
            }
        }
    }

    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }

    /// Hands the actions to the cores. A core that has ended is no longer there to hear.
    pub fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, datagram) => {
                    self.bus.send_first(Command::Send(to, datagram));
                }
                Action::Bind(roster) => {
                    let roster = Arc::new(*roster);
                    // The first core, which sends, comes last.
                    let command = || Command::Bind(Arc::clone(&roster));
                    self.bus.send(command);
                    self.notify_card(|| CardNews::Bind(roster));
                }
                Action::Unbind(job) => {
                    self.bus.send(|| Command::Unbind(job));
                    self.notify_card(|| CardNews::Unbind(job));
                }
                Action::Create(job, workers) => self.create(job, workers),
                Action::Forget(job) => self.forget(job),
            }
        }
    }

    /// After the cores: what the card's thread makes of it, they are to hear behind it.
    fn notify_card(&self, news: impl FnOnce() -> CardNews) {
        if let Some(card) = &self.card {
            let _ = card.news.send(news());
        }
    }

    fn answer_socket(&mut self) {
        let is_asked = self.socket.as_mut().is_some_and(StatsSocket::accept);
        if is_asked {
            let report = self.report();
            if let Some(socket) = &mut self.socket {
                socket.answer(report.json().as_bytes());
            }
        }
        if let Some(socket) = &mut self.socket {
            socket.write();
        }
    }

    fn report(&self) -> Report {
        let reports = self.bus.ask(CoreCommand::Report).wait(REPORT_PATIENCE);
        let reports: Vec<_> = reports.flatten().collect();
        let up = self.epoch.elapsed();
        let directory = self.watch.directory();
        let card = self.card.as_ref().map(CardLink::report);
        report::report(&self.shape, up, &reports, &self.registry, directory, card)
    }
}

/// A Unix socket that is removed with its owner, and those who ask at it.
///
/// Nothing here waits for anybody: each time that the control thread comes by, it writes what each
/// client takes. One that reads too slowly, or not at all, is given up in time, and its place is
/// another's.
pub struct StatsSocket {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<StatusClient>,
    /// When a client was answered last.
    last: Option<Instant>,
}

struct StatusClient {
    stream: UnixStream,
    since: Instant,
    /// What it is to read; empty before there is a report for it.
    report: Arc<[u8]>,
    written: usize,
}

impl StatusClient {
    /// Whether there is more to write, and time for it.
    fn write(&mut self, now: Instant) -> bool {
        while self.written < self.report.len() {
            match self.stream.write(&self.report[self.written..]) {
                Ok(0) => return false,
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return now.duration_since(self.since) < CLIENT_PATIENCE;
                }
                Err(_) => return false,
            }
        }
        false
    }
}

impl StatsSocket {
    /// Listens at `path`. A socket without a listener is a leftover of a crash and is replaced.
    ///
    /// # Errors
    /// If the path is taken by something else, or cannot be made, or there is no such group.
    pub fn bind(path: &Path, access: &Access) -> std::io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            return Err(std::io::Error::new(
                ErrorKind::AddrInUse,
                "another switch answers there",
            ));
        }
        let found = std::fs::symlink_metadata(path);
        if found.is_ok_and(|m| !std::os::unix::fs::FileTypeExt::is_socket(&m.file_type())) {
            return Err(std::io::Error::new(
                ErrorKind::AlreadyExists,
                "a file that is no socket is there; remove it, or choose another path",
            ));
        }
        let group = group(access)?;
        // It gets its name, in place of a leftover, once only those may connect who should.
        let temporary = path.with_file_name(format!(".{}", std::process::id()));
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary)?;
        let mode = std::fs::Permissions::from_mode(access.mode.0);
        let named = std::os::unix::fs::chown(&temporary, None, group)
            .and_then(|()| std::fs::set_permissions(&temporary, mode))
            .and_then(|()| std::fs::rename(&temporary, path));
        if let Err(error) = named {
            let _ = std::fs::remove_file(&temporary);
            return Err(error);
        }
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            clients: Vec::new(),
            last: None,
        })
    }

    /// Lets clients in, and says whether there is one that has no report yet.
    fn accept(&mut self) -> bool {
        // A report costs the data cores a little.
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now.duration_since(last) < TICK)
        {
            return false;
        }
        let mut any = false;
        while self.clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(StatusClient {
                    stream,
                    since: now,
                    report: Arc::default(),
                    written: 0,
                });
                any = true;
            }
        }
        if any {
            self.last = Some(now);
        }
        any
    }

    /// Gives a report to the clients that wait for one.
    fn answer(&mut self, report: &[u8]) {
        let report: Arc<[u8]> = report.into();
        for client in &mut self.clients {
            if client.report.is_empty() {
                client.report = Arc::clone(&report);
            }
        }
    }

    /// Writes what clients take now.
    fn write(&mut self) {
        let now = Instant::now();
        self.clients.retain_mut(|client| client.write(now));
    }
}

/// The number of the configured group.
fn group(access: &Access) -> std::io::Result<Option<u32>> {
    let Some(name) = &access.group else {
        return Ok(None);
    };
    let found = nix::unistd::Group::from_name(name)?;
    let missing = || {
        let why = format!("stats_access.group: there is no group `{name}` on this host (groupadd)");
        std::io::Error::new(ErrorKind::NotFound, why)
    };
    found
        .map(|group| Some(group.gid.as_raw()))
        .ok_or_else(missing)
}

impl Drop for StatsSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests;
