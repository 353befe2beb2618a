//! The thread beside the data path: membership, and the statistics socket.
//!
//! JOIN and LEAVE come from the data cores over a bounded channel (what does not fit is dropped and
//! counted there, so a flood of them costs the data path nothing but the try). The registry answers
//! with actions; they go back to the data cores as commands, in their order. A roster goes to all
//! cores before the datagram that tells the members.

use crate::messages::{CardNews, ControlFrame, CoreCommand};
use crate::report::{CardReport, Report, Shape};
use crate::watch::Watch;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally_engine::{Action, Registry};
use tally_wire::Time;

/// How often the thread looks at its socket and its clock, at least.
const TICK: Duration = Duration::from_millis(20);
/// How long it waits for the cores' reports.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);

/// The control thread, ready to run.
pub struct Control {
    /// Who is a member of what.
    pub registry: Registry,
    /// From the data cores.
    pub frames: Receiver<ControlFrame>,
    /// To the data cores.
    pub cores: Vec<Sender<CoreCommand>>,
    /// The card's thread and what it last said, if there is a card.
    pub card: Option<CardLink>,
    /// Where to answer requests for statistics.
    pub socket: Option<StatsSocket>,
    /// Over SwitchML's sessions.
    pub watch: Watch,
    /// What the reports say of the configuration.
    pub shape: Shape,
    /// When the switch started.
    pub epoch: Instant,
    /// Set when the switch is to stop.
    pub stop: Arc<AtomicBool>,
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
        while !self.stop.load(Ordering::Relaxed) {
            match self.frames.recv_timeout(TICK) {
                Ok(frame) => {
                    let now = self.now();
                    let ControlFrame {
                        from,
                        header,
                        datagram,
                    } = frame;
                    let actions = self.registry.handle(now, from, &header, &*datagram);
                    self.carry_out(actions);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = self.now();
            if self.registry.poll_timeout().is_some_and(|at| at <= now) {
                let actions = self.registry.handle_timeout(now);
                self.carry_out(actions);
            }
            for line in self.watch.look(now, &self.cores) {
                eprintln!("tally-switch: {line}");
            }
            self.answer_socket();
        }
        self.registry
    }

    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }

    /// Hands the actions to the cores. A core that has ended is no longer there to hear.
    pub fn carry_out(&self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, datagram) => {
                    let _ = self.cores[0].send(CoreCommand::Send(to, datagram));
                }
                Action::Bind(roster, index) => {
                    let roster = Arc::new(*roster);
                    // The core that sends comes last, so that the others know the roster by then.
                    for core in self.cores.iter().rev() {
                        let _ = core.send(CoreCommand::Bind(Arc::clone(&roster), index));
                    }
                    self.tell_card(|| CardNews::Bind(roster));
                }
                Action::Unbind(job) => {
                    for core in self.cores.iter().rev() {
                        let _ = core.send(CoreCommand::Unbind(job));
                    }
                    self.tell_card(|| CardNews::Unbind(job));
                }
            }
        }
    }

    /// After the cores: what the card's thread makes of it, they are to hear behind it.
    fn tell_card(&self, news: impl FnOnce() -> CardNews) {
        if let Some(card) = &self.card {
            let _ = card.news.send(news());
        }
    }

    fn answer_socket(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Ok((mut stream, _)) = socket.listener.accept() {
            let mut reports = Vec::new();
            for core in &self.cores {
                let (answer, report) = crossbeam_channel::bounded(1);
                if core.send(CoreCommand::Report(answer)).is_ok() {
                    reports.extend(report.recv_timeout(REPORT_PATIENCE));
                }
            }
            let up = self.epoch.elapsed();
            let directory = self.watch.directory();
            let card = self.card.as_ref().map(CardLink::report);
            let report = Report::new(&self.shape, up, &reports, &self.registry, directory, card);
            // A client that went away, or does not read, is its own problem.
            let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
            let _ = stream.write_all(report.json().as_bytes());
        }
    }
}

/// A Unix socket that is removed with its owner.
pub struct StatsSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl StatsSocket {
    /// Listens at `path`. A socket that nobody answers is a leftover of a crash and is replaced.
    ///
    /// # Errors
    /// If the path is taken by something else, or cannot be made.
    pub fn bind(path: &Path) -> std::io::Result<Self> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::AddrInUse,
                "another switch answers there",
            ));
        }
        let is_socket = std::fs::symlink_metadata(path)
            .is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()));
        if is_socket {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }
}

impl Drop for StatsSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
