//! How it goes, on standard error: a bar on a terminal, lines in a log.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tally_agent::Observer;
use tally_agent::log::{Level, Log};
use tally_agent::session::missing;
use tally_endpoint::Members;

/// Between two lines in a log.
const LINE_EVERY: Duration = Duration::from_secs(2);
const BAR_CHARS: usize = 30;

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Progress {
    /// A bar on a terminal, lines elsewhere.
    Auto,
    /// A bar.
    Bar,
    /// Lines.
    Plain,
    /// Not at all.
    None,
}

pub(crate) struct Console {
    mode: Progress,
    log: Log,
    job: u16,
    rank: u16,
    began: Instant,
    last_line: Instant,
    /// The cursor is behind a bar.
    in_bar: bool,
    complete: bool,
}

impl Console {
    pub(crate) fn new(mode: Progress, log: Log, job: u16, rank: u16) -> Self {
        let mode = match mode {
            Progress::Auto if std::io::stderr().is_terminal() => Progress::Bar,
            Progress::Auto => Progress::Plain,
            mode => mode,
        };
        let now = Instant::now();
        Self {
            mode,
            log,
            job,
            rank,
            began: now,
            last_line: now,
            in_bar: false,
            complete: false,
        }
    }

    fn line(&mut self, text: &str) {
        if self.mode != Progress::None && self.log.says(Level::Info) {
            self.end();
            let Self { job, rank, .. } = self;
            self.log.info(format_args!("job {job} rank {rank}: {text}"));
        }
    }

    /// Moves behind the bar.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.in_bar) {
            eprintln!();
        }
    }
}

impl Observer for Console {
    fn waiting(&mut self, members: Members) {
        let missing = missing(members, 1).unwrap_or_default();
        self.line(&format!("waiting for {missing}"));
    }

    fn running(&mut self, epoch: u16) {
        self.began = Instant::now();
        self.last_line = self.began;
        self.line(&format!("running, epoch {epoch}"));
    }

    fn progress(&mut self, done: u64, total: u64) {
        let percent = (done * 100).checked_div(total).unwrap_or(100);
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = done as f64 / seconds.max(1e-9);
        match self.mode {
            Progress::Bar => {
                let filled = BAR_CHARS * percent as usize / 100;
                let left = (total - done) as f64 / rate.max(1e-9);
                eprint!(
                    "\r[{:<BAR_CHARS$}] {percent:>3}%  {done}/{total} fragments  {rate:.0}/s  {left:.0} s left \x1b[K",
                    "#".repeat(filled),
                );
                // A bar that is late is no error.
                let _ = std::io::stderr().flush();
                self.in_bar = true;
            }
            Progress::Plain => {
                let complete =
                    done == total && !std::mem::replace(&mut self.complete, done == total);
                if complete || self.last_line.elapsed() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    self.line(&format!(
                        "{percent}%, {done} of {total} fragments, {rate:.0} per second"
                    ));
                }
            }
            Progress::Auto | Progress::None => {}
        }
    }
}
