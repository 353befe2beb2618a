//! Which controller works, and the loop of each: the leader plans and changes switches, a standby
//! watches them, so that it knows what is down at the moment it takes over.

use super::Daemon;
use crate::args::RunArguments;
use crate::events::{Event, Events};
use crate::figures::{self, Figures};
use crate::hosts::{self, Answers};
use crate::store::{Store, StoreError};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_api::server::ListenError;
use tokio::time::sleep;

/// How often signals are looked at.
const NAP: Duration = Duration::from_millis(20);
/// How often a standby tries to take the lead, unless its loop is shorter.
const TRY: Duration = Duration::from_millis(100);

/// Why a controller does not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Where the fleet is.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Where hosts ask.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Where metrics are.
    #[error("{0}")]
    Metrics(io::Error),
    /// Time limits that do not fit.
    #[error(
        "--dead-after: found {} ms, expected at least two intervals ({} ms)",
        found.as_millis(), least.as_millis()
    )]
    DeadAfter {
        /// The value.
        found: Duration,
        /// The least one.
        least: Duration,
    },
}

/// Works until a signal comes; as standby while another controller does.
///
/// # Errors
/// What cannot be used at the start.
pub async fn run(arguments: &RunArguments, stop: &AtomicBool) -> Result<(), StartError> {
    let (found, least) = (arguments.dead_after, arguments.interval * 2);
    if found < least {
        return Err(StartError::DeadAfter { found, least });
    }
    let events = Events {
        is_json: arguments.json,
        figures: Figures::default(),
    };
    let figures = events.figures.clone();
    let metrics = arguments.metrics.map(|at| figures::serve(at, figures));
    let _metrics = metrics.transpose().map_err(StartError::Metrics)?;
    let mut store = Store::open(&arguments.fleet, arguments.names()).await?;
    let mut leading = Leading::default();
    let _hosts = hosts::serve(&arguments.hosts, leading.answers.clone())?;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        leading.turn(arguments, &events, &mut store).await;
        let mut tried = Instant::now();
        while !stop.load(Ordering::Relaxed) && start.elapsed() < arguments.interval {
            let left = arguments.interval.saturating_sub(start.elapsed());
            sleep(NAP.min(left)).await;
            if leading.is_standby() && tried.elapsed() >= TRY {
                if matches!(store.lead().await, Ok(Some(_))) {
                    break;
                }
                tried = Instant::now();
            }
        }
    }
    store.resign().await;
    events.say(&Event::Ends);
    Ok(())
}

/// Whether this controller works.
#[derive(Default)]
struct Leading {
    daemon: Option<Daemon>,
    /// What hosts are told.
    answers: Answers,
    /// The term, as it was told: `None` in it is standby.
    term: Option<Option<i64>>,
    /// Whether the plan is to be read as if it was another's.
    is_new: bool,
    /// Why state cannot be read, as it was told.
    lost: Option<String>,
}

impl Leading {
    const fn is_standby(&self) -> bool {
        matches!(self.term, Some(None))
    }

    async fn turn(&mut self, arguments: &RunArguments, events: &Events, store: &mut Store) {
        let lead = store.lead().await;
        if let Ok(term) = lead
            && self.term != Some(term)
        {
            let holds = store.lead_name();
            if term.is_some() {
                events.say(&Event::Leader { holds });
                self.is_new = true;
            } else {
                self.answers
                    .nothing(format!("another controller holds {holds}"));
                events.say(&Event::Standby { holds });
                self.daemon = None;
            }
            self.term = Some(term);
        }
        let done = match lead {
            Ok(Some(_)) => self.lead(arguments, events, store).await,
            Ok(None) => self.stand_by(arguments, events, store).await,
            Err(error) => {
                // Switches are watched, and not changed.
                if let Some(daemon) = &mut self.daemon {
                    daemon.look().await;
                }
                Err(error)
            }
        };
        match (done, self.lost.take()) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => events.say(&Event::StoreBack),
            (Err(error), lost) => {
                let error = error.to_string();
                // Another controller may have made other changes.
                self.answers.nothing(error.as_str());
                if lost.as_ref() != Some(&error) {
                    events.say(&Event::StoreLost {
                        error: error.clone(),
                    });
                }
                self.lost = Some(error);
            }
        }
    }

    /// One loop of the controller that works.
    async fn lead(
        &mut self,
        arguments: &RunArguments,
        events: &Events,
        store: &mut Store,
    ) -> Result<(), StoreError> {
        self.read(arguments, events, store).await?;
        if let Some(daemon) = &mut self.daemon {
            if self.is_new {
                daemon.begin(store.plan().await)?;
                self.is_new = false;
            }
            daemon.turn(store).await;
        }
        Ok(())
    }

    /// One loop of a controller that waits.
    async fn stand_by(
        &mut self,
        arguments: &RunArguments,
        events: &Events,
        store: &mut Store,
    ) -> Result<(), StoreError> {
        self.read(arguments, events, store).await?;
        if let Some(daemon) = &mut self.daemon {
            daemon.stand_by().await;
        }
        Ok(())
    }

    /// Reads the fleet, if it is another one than the last.
    async fn read(
        &mut self,
        arguments: &RunArguments,
        events: &Events,
        store: &mut Store,
    ) -> Result<(), StoreError> {
        if self.daemon.is_none() {
            store.again();
        }
        match (&mut self.daemon, store.fleet().await?) {
            (Some(daemon), Some(Ok(fleet))) => daemon.have(fleet),
            (Some(_), Some(Err(error))) => events.say(&Event::FleetRefused {
                error: error.to_string(),
            }),
            (None, Some(read)) => {
                let told = (events.clone(), self.answers.clone());
                let of = (read?, store.path().to_owned());
                self.daemon = Some(Daemon::new(arguments, told, of));
            }
            (_, None) => {}
        }
        Ok(())
    }
}
