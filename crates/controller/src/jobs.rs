//! Brings fleets and jobs into etcd, and takes jobs out.

use crate::fleet::{Fleet, Job};
use crate::location::EtcdLocation;
use crate::measured::Capacities;
use crate::store::etcd::Etcd;
use crate::store::{self, StoreError};
use std::path::Path;
use tally_config::ConfigError;
use tally_wire::Key;

/// Bytes of a key that is made.
const KEY_BYTES: usize = 16;
/// Tries against others who add jobs at the same time.
const TRIES: usize = 20;

/// Why a job is not taken.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Etcd, or what is there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is one of that name.
    #[error("job {0}: there is a job of that name already; --replace replaces it")]
    Exists(String),
    /// There is none of that name.
    #[error("job {found}: no such job, expected one of: {names}")]
    Unknown {
        /// The name.
        found: String,
        /// Names of all jobs.
        names: String,
    },
    /// All numbers are taken.
    #[error("job {0}: all 65535 numbers are taken")]
    Full(String),
    /// Others change the fleet all the time.
    #[error("job {0}: the fleet changed {TRIES} times while it was added; try again")]
    Busy(String),
    /// No random bytes for a key.
    #[error("no random bytes for a key: {0}")]
    Random(getrandom::Error),
}

impl From<ConfigError> for JobError {
    fn from(error: ConfigError) -> Self {
        Self::Store(error.into())
    }
}

/// What importing a file did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Jobs that are new, or other ones than before.
    pub brought: usize,
    /// Jobs that were taken out.
    pub removed: Vec<String>,
}

/// Brings the fleet of a file into etcd. Jobs that are there and not in the file stay, unless
/// `replaces`.
///
/// # Errors
/// What does not fit, before anything is written; or what etcd refuses.
pub async fn import(file: &Path, to: &EtcdLocation, replaces: bool) -> Result<Imported, JobError> {
    let (mut fleet, known) = Fleet::load_to_import(file)?;
    fleet.make_absolute(file);
    let mut etcd = Etcd::open(to).await?;
    let before = match etcd.snapshot().await {
        Ok(snapshot) => snapshot.fleet.jobs,
        Err(StoreError::NoFleet { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let is_in_file = |name: &str| fleet.jobs.iter().any(|it| it.name == name);
    let mut all = fleet.clone();
    if !replaces {
        let others = before.iter().filter(|it| !is_in_file(&it.name));
        all.jobs.extend(others.cloned());
    }
    whole(&all, known.as_ref(), to.path())?;
    let mut imported = Imported::default();
    for job in before.iter().filter(|_| replaces) {
        if !is_in_file(&job.name) {
            etcd.delete_job(job).await?;
            imported.removed.push(job.name.clone());
        }
    }
    etcd.write(&fleet, known.as_ref()).await?;
    for job in &fleet.jobs {
        if before.contains(job) {
            continue;
        }
        let seen = etcd.snapshot().await?;
        if !etcd.put_job(job, &seen).await? {
            return Err(JobError::Busy(job.name.clone()));
        }
        imported.brought += 1;
    }
    Ok(imported)
}

/// Checks a fleet as a file is checked.
fn whole(fleet: &Fleet, measured: Option<&Capacities>, path: &Path) -> Result<(), ConfigError> {
    let fleet = store::read_whole(fleet, path)?;
    let (fleet, _) = fleet.with_problem(measured, path)?;
    store::checked(fleet, path).map(|_| ())
}

/// Adds a job. Without a number it gets the smallest one that is free, without a key a random one.
///
/// # Errors
/// Why it is not taken.
pub async fn submit(mut job: Job, to: &EtcdLocation, replaces: bool) -> Result<Job, JobError> {
    let mut etcd = Etcd::open(to).await?;
    let wants = job.id;
    if job.key.is_none() {
        job.key = Some(random_key().map_err(JobError::Random)?);
    }
    for _ in 0..TRIES {
        let seen = etcd.snapshot().await?;
        let jobs = &seen.fleet.jobs;
        let before = jobs.iter().find(|it| it.name == job.name);
        if before.is_some() && !replaces {
            return Err(JobError::Exists(job.name));
        }
        let is_free = |id: &u16| jobs.iter().all(|it| it.id != Some(*id));
        job.id = wants
            .or_else(|| before?.id)
            .or_else(|| (1..=u16::MAX).find(is_free));
        if job.id.is_none() {
            return Err(JobError::Full(job.name));
        }
        let mut fleet = seen.fleet.clone();
        fleet.jobs.retain(|it| it.name != job.name);
        fleet.jobs.push(job.clone());
        whole(&fleet, seen.measured.as_ref(), to.path())?;
        if etcd.put_job(&job, &seen).await? {
            return Ok(job);
        }
    }
    Err(JobError::Busy(job.name))
}

/// Takes a job out. A controller removes it from switches when it is idle.
///
/// # Errors
/// Why it cannot.
pub async fn cancel(name: &str, from: &EtcdLocation) -> Result<Job, JobError> {
    let mut etcd = Etcd::open(from).await?;
    let mut jobs = etcd.snapshot().await?.fleet.jobs;
    let Some(at) = jobs.iter().position(|it| it.name == name) else {
        let names: Vec<_> = jobs.iter().map(|it| it.name.as_str()).collect();
        let names = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        let found = name.to_owned();
        return Err(JobError::Unknown { found, names });
    };
    let job = jobs.swap_remove(at);
    etcd.delete_job(&job).await?;
    Ok(job)
}

fn random_key() -> Result<Key, getrandom::Error> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes)?;
    let digits: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
    // So many digits are a key.
    Ok(digits.parse().expect("hexadecimal digits"))
}
