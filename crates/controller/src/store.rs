//! Where the state of a fleet is: files of one machine, or etcd.
//!
//! State is what is wanted: topology, jobs, measured capacities, the plan, and which controller
//! works. What switches do is read from switches alone.

pub mod etcd;
mod files;

use crate::document::Document;
use crate::fleet::Fleet;
use crate::location::{EtcdLocation, Location};
use crate::measured::Capacities;
use etcd::{Etcd, Snapshot, Term};
use files::Files;
pub(crate) use files::checked;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_config::ConfigError;
use tally_planner::Problem;

/// Why state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// What is there makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// No member of etcd answers.
    #[error("{}: etcd does not answer: {why}", location.display())]
    Unreachable {
        /// The location.
        location: PathBuf,
        /// Why.
        why: String,
    },
    /// Etcd refuses.
    #[error("{}: etcd refuses: {why}", location.display())]
    Refused {
        /// The location.
        location: PathBuf,
        /// Why.
        why: String,
    },
    /// Etcd has no fleet there.
    #[error("{}: no fleet is there; `tally-controller import FILE {}` brings one", location.display(), location.display())]
    NoFleet {
        /// The location.
        location: PathBuf,
    },
    /// Another controller has taken the lead.
    #[error("another controller has taken the lead")]
    Led,
}

impl StoreError {
    fn of(location: &Path, error: &etcd_client::Error) -> Self {
        use tonic::Code;
        let location = location.to_owned();
        match error {
            etcd_client::Error::GRpcStatus(status) => match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                    let why = tally_api::client::reason(status);
                    Self::Unreachable { location, why }
                }
                _ => Self::Refused {
                    location,
                    why: status.message().to_owned(),
                },
            },
            other => Self::Unreachable {
                location,
                why: other.to_string(),
            },
        }
    }
}

/// A fleet as it is stored.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The fleet, with keys of jobs, and with measured capacities in place.
    pub fleet: Fleet,
    /// For the planner.
    pub problem: Problem,
}

impl Stored {
    fn of_snapshot(snapshot: &Snapshot, path: &Path) -> Result<Self, ConfigError> {
        let fleet = read_whole(&snapshot.fleet, path)?;
        let (fleet, problem) = fleet.with_problem(snapshot.measured.as_ref(), path)?;
        Ok(Self { fleet, problem })
    }
}

/// A fleet that was put together of parts, checked as a file of it would be.
pub(crate) fn read_whole(fleet: &Fleet, path: &Path) -> Result<Fleet, ConfigError> {
    // Types of ours, which have no map with other keys than text.
    let text = serde_json::to_vec(fleet).expect("a fleet is JSON");
    tally_config::parse(path, &text)
}

/// Reads the fleet of a location once.
///
/// # Errors
/// Why it cannot be read, or the first thing in it that does not fit.
pub async fn load(location: &Location, with_keys: bool) -> Result<Stored, StoreError> {
    match location {
        Location::File(path) => {
            let (fleet, problem) = if with_keys {
                Fleet::load_with_keys(path)?
            } else {
                Fleet::load(path)?
            };
            Ok(Stored { fleet, problem })
        }
        Location::Etcd(it) => {
            let snapshot = Etcd::open(it).await?.snapshot().await?;
            Ok(Stored::of_snapshot(&snapshot, it.path())?)
        }
    }
}

/// A fleet with the capacities that are written there, and what was measured.
///
/// # Errors
/// Why it cannot be read.
pub async fn load_to_measure(
    location: &Location,
) -> Result<(Fleet, Option<Capacities>), StoreError> {
    match location {
        Location::File(path) => Ok(Fleet::load_to_measure(path)?),
        Location::Etcd(it) => {
            let snapshot = Etcd::open(it).await?.snapshot().await?;
            Ok((read_whole(&snapshot.fleet, it.path())?, snapshot.measured))
        }
    }
}

/// The plan that a controller of this location keeps; `None` before the first.
///
/// # Errors
/// Why it cannot be read.
pub async fn kept_plan(location: &Location) -> Result<Option<Document>, StoreError> {
    match location {
        Location::File(_) => Ok(files::plan(&location.beside(PLAN))?),
        Location::Etcd(it) => Etcd::open(it).await?.plan().await,
    }
}

/// Keeps measured capacities.
///
/// # Errors
/// Why they cannot be written.
pub async fn write_measured(at: &EtcdLocation, measured: &Capacities) -> Result<(), StoreError> {
    Etcd::open(at).await?.write_measured(measured).await
}

/// End of the name of the lock's file, after that of the fleet's file.
pub const LOCK: &str = ".lock";
/// End of the name of the plan's file.
pub const PLAN: &str = ".plan";

/// Names of the files of a controller that has its fleet in a file, and of itself in etcd.
#[derive(Clone, Debug)]
pub struct Names {
    /// The file of the lock.
    pub lock: PathBuf,
    /// The plan's file.
    pub plan: PathBuf,
    /// The controller.
    pub controller: String,
    /// Time after which another controller takes over from one that says nothing.
    pub lease: Duration,
}

/// State, for a controller that runs.
pub enum Store {
    /// Files of one machine.
    Files(Files),
    /// Keys of etcd.
    Etcd(Box<EtcdStore>),
}

/// Etcd, what was read last, and the lead.
pub struct EtcdStore {
    etcd: Etcd,
    term: Term,
    path: PathBuf,
    seen: Option<Snapshot>,
}

impl Store {
    /// Opens what is at a location. A fleet in a file must be usable.
    ///
    /// # Errors
    /// What cannot be used.
    pub async fn open(location: &Location, names: Names) -> Result<Self, StoreError> {
        match location {
            Location::File(path) => Ok(Self::Files(Files::open(path, names.lock, names.plan)?)),
            Location::Etcd(it) => {
                let etcd = Etcd::open(it).await?;
                Ok(Self::Etcd(Box::new(EtcdStore {
                    term: etcd.stand(&names.controller, names.lease),
                    etcd,
                    path: it.path().to_owned(),
                    seen: None,
                })))
            }
        }
    }

    /// Where paths of the fleet begin that are relative, and what errors name.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Files(files) => files.path(),
            Self::Etcd(it) => &it.path,
        }
    }

    /// What the controller that works holds, in words.
    #[must_use]
    pub fn lead_name(&self) -> String {
        match self {
            Self::Files(files) => format!("the lock {}", files.lock_path().display()),
            Self::Etcd(it) => format!("the lease at {}", it.path.display()),
        }
    }

    /// The term of this controller if it is the one that works, at this moment. It takes the lead
    /// if that is free. In another term, another controller may have worked before.
    ///
    /// # Errors
    /// If that cannot be known.
    pub async fn lead(&mut self) -> Result<Option<i64>, StoreError> {
        match self {
            Self::Files(files) => Ok(files.lead()?.then_some(0)),
            Self::Etcd(it) => it.etcd.lead(&mut it.term).await,
        }
    }

    /// Gives the lead back.
    pub async fn resign(&mut self) {
        match self {
            Self::Files(files) => files.resign(),
            Self::Etcd(it) => it.etcd.resign(&mut it.term).await,
        }
    }

    /// Has [`Self::fleet`] bring the fleet again.
    pub fn again(&mut self) {
        match self {
            Self::Files(files) => files.again(),
            Self::Etcd(it) => it.seen = None,
        }
    }

    /// The fleet, if it is another one than the last: `None` if not. What cannot be used is told
    /// once.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn fleet(&mut self) -> Result<Option<Result<Fleet, ConfigError>>, StoreError> {
        match self {
            Self::Files(files) => Ok(files.fleet()),
            Self::Etcd(it) => {
                let snapshot = it.etcd.snapshot().await?;
                if it.seen.as_ref() == Some(&snapshot) {
                    return Ok(None);
                }
                let stored = Stored::of_snapshot(&snapshot, &it.path);
                it.seen = Some(snapshot);
                Ok(Some(
                    stored.and_then(|stored| checked(stored.fleet, &it.path)),
                ))
            }
        }
    }

    /// The plan that switches follow, of this controller or the one before.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn plan(&mut self) -> Result<Option<Document>, StoreError> {
        match self {
            Self::Files(files) => Ok(files.plan()?),
            Self::Etcd(it) => it.etcd.plan().await,
        }
    }

    /// Keeps the plan that switches are about to follow.
    ///
    /// # Errors
    /// If it cannot be written, or another controller works.
    pub async fn write_plan(&mut self, plan: &Document) -> Result<(), StoreError> {
        match self {
            Self::Files(files) => files.write_plan(plan),
            Self::Etcd(it) => match it.etcd.write_plan(plan, &it.term).await? {
                true => Ok(()),
                false => Err(StoreError::Led),
            },
        }
    }

    /// Whether changes of switches wait for a plan that is kept. Another machine cannot finish what
    /// it cannot read; files of one machine may be full, and switches matter more.
    #[must_use]
    pub const fn must_keep(&self) -> bool {
        matches!(self, Self::Etcd(_))
    }
}
