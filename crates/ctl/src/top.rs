//! The live view of a terminal: goodput, who waits for whom, core load.
//!
//! Each look is a [`Snapshot`]; [`History`] turns the last ones into rates (`rates.rs`), and
//! `view.rs` draws them. Between two looks the keyboard is read. A switch that goes away is
//! said in the first line and tried again.

mod rates;
mod view;

pub use rates::{History, JobRate, PortRate, Rates};

use crate::args::TargetArguments;
use crate::session::Session;
use crate::show::Snapshot;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Longest wait for a key before the screen is looked after.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// What is on the screen.
#[derive(Debug, Default)]
pub struct Screen {
    /// Rates, once the switch has been seen.
    pub rates: Option<Rates>,
    /// Why the last look failed.
    pub failure: Option<String>,
}

/// Shows the switch until `q`, Escape or Ctrl-C.
///
/// # Errors
/// If the terminal fails.
pub(crate) fn run(
    runtime: &Runtime,
    at: &TargetArguments,
    session: Session,
    interval: Duration,
) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, runtime, at, session, interval);
    ratatui::restore();
    ended
}

fn watch(
    terminal: &mut DefaultTerminal,
    runtime: &Runtime,
    at: &TargetArguments,
    session: Session,
    interval: Duration,
) -> io::Result<()> {
    let mut session = Some(session);
    let mut history = History::default();
    let mut screen = Screen::default();
    loop {
        let next = Instant::now() + interval;
        match runtime.block_on(look(&mut session, at)) {
            Ok(snapshot) => {
                screen.rates = Some(history.add(Instant::now(), snapshot));
                screen.failure = None;
            }
            Err(why) => {
                session = None;
                history = History::default();
                screen.failure = Some(why);
            }
        }
        loop {
            terminal.draw(|frame| view::draw(frame, &screen))?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if event::poll(left.min(KEY_WAIT))? && ends(&event::read()?) {
                return Ok(());
            }
        }
    }
}

async fn look(session: &mut Option<Session>, at: &TargetArguments) -> Result<Snapshot, String> {
    let open = match session {
        Some(open) => open,
        None => session.insert(Session::open(at).await.map_err(|e| e.to_string())?),
    };
    // Since the start: `clear` of another user must not make rates negative.
    open.look(true, false)
        .await
        .map_err(|error| error.to_string())
}

fn ends(event: &Event) -> bool {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press,
        ..
    }) = event
    else {
        return false;
    };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
