//! From a command to calls, and from answers to lines.

mod change;
mod completions;

use crate::args::{Arguments, Command, Part, Show, TargetArguments};
use crate::capture;
use crate::session::{Failure, Session};
use crate::top;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::time::Duration;
use tally_api::proto::ClearCountersRequest;
use tokio::runtime::Runtime;

/// Clears a terminal, and goes to its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Carries a command line out.
///
/// # Errors
/// What went wrong.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Command::Completions { shell } = &arguments.command {
        return completions::completions(*shell);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Io {
            what: "no runtime".into(),
            error,
        })?;
    let at = &arguments.target;
    match &arguments.command {
        Command::Show(show) => runtime.block_on(self::show(at, show)),
        Command::Top { interval } => top(&runtime, at, Duration::from_secs_f64(*interval)),
        Command::Capture(asked) => runtime.block_on(capture::capture(at, asked)),
        Command::Clear => runtime.block_on(clear(at)),
        command => runtime.block_on(change::change(at, command)),
    }
}

fn top(runtime: &Runtime, at: &TargetArguments, interval: Duration) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal; `tallyctl show --watch` fits a pipe";
        return Err(Failure::Usage(text.into()));
    }
    let session = runtime.block_on(Session::open(at))?;
    top::run(runtime, at, session, interval).map_err(|error| Failure::Io {
        what: "terminal".into(),
        error,
    })
}

async fn show(at: &TargetArguments, show: &Show) -> Result<(), Failure> {
    let mut session = Session::open(at).await?;
    let clears = show.watch.is_some() && !show.json && io::stdout().is_terminal();
    let mut first = true;
    loop {
        let macs = show.part == Part::Macs;
        let snapshot = session.look(show.total, macs).await?;
        let mut text = if show.json {
            snapshot.json(show.part)
        } else {
            snapshot.text(show.part)
        };
        if clears {
            text = format!("{CLEAR}{text}");
        } else if !first && !show.json {
            text.insert(0, '\n');
        }
        if !print(&text)? {
            return Ok(());
        }
        let Some(seconds) = show.watch else {
            return Ok(());
        };
        first = false;
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    }
}

async fn clear(at: &TargetArguments) -> Result<(), Failure> {
    let mut session = Session::open(at).await?;
    let answer = session
        .client
        .control
        .clear_counters(ClearCountersRequest {})
        .await;
    answer.map_err(session.failed())?;
    print("counters cleared: `show` counts from now\n").map(drop)
}

/// Says whether there is still a reader. One that went away (`| head`) is no error.
fn print(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Io {
            what: "standard output".into(),
            error,
        }),
    }
}
