//! Changes of a running switch, each an edit of its configuration.
//!
//! What a change asks for may be so already: then it edits nothing. Draining is no part of the
//! configuration: it ends with the switch.

use super::error::ChangeError;
use crate::ports::keeper::PortChange;
use tally_schema::switch::config::{
    CardJobs, Config, JobSection, PortSection, RingSection, TenantSection,
};
use tally_wire::Key;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Add a job. One that is there alike is no change.
    AddJob(Box<JobSection>),
    /// Remove a job, and end it if it runs. One that is not there is no change.
    RemoveJob(u16),
    /// Change a job.
    SetJob(u16, JobPatch),
    /// Have a job begin no epoch, or begin epochs again.
    DrainJob(u16, bool),
    /// Give a job a new key. The one so far stays valid, as its previous key.
    RotateKey(u16, Key),
    /// A job's previous key is no longer valid.
    RetireKey(u16),
    /// Add a tenant. One that is there alike is no change.
    AddTenant(TenantSection),
    /// Change a tenant, which is there.
    SetTenant(TenantSection),
    /// Remove a tenant with its jobs. One that is not there is no change.
    RemoveTenant(String),
    /// Give a tenant a new key. The one so far stays valid, as its previous key.
    RotateTenantKey(String, Key),
    /// A tenant's previous key is no longer valid.
    RetireTenantKey(String),
    /// Add a ring. One that is there alike is no change.
    AddRing(Box<RingSection>),
    /// Remove a ring. One that is not there is no change.
    RemoveRing(u32),
    /// Say which jobs a card may have.
    SetCardJobs(CardJobs),
    /// Add a port. One that is there alike is no change.
    AddPort(Box<PortSection>),
    /// Take a port down, or up again, by its name.
    SetPort(String, bool),
}

/// What of a job is set; the rest stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPatch {
    /// Its workers.
    pub workers: Option<u8>,
    /// Slots that it has for certain; `Some(None)`: as by default.
    pub min_slots: Option<Option<u32>>,
    /// Slots that it has at most; `Some(None)`: no maximum.
    pub max_slots: Option<Option<u32>>,
}

impl Change {
    /// What the ports' thread is asked, if it is.
    #[must_use]
    pub fn of_port(&self) -> Option<PortChange> {
        Some(match self {
            Self::AddPort(section) => PortChange::Add(vec![(**section).clone()]),
            Self::SetPort(name, true) => PortChange::Up(name.clone()),
            Self::SetPort(name, false) => PortChange::Down(name.clone()),
            _ => return None,
        })
    }

    /// The configuration with this change.
    ///
    /// # Errors
    /// The object is not there, or is there otherwise.
    pub fn edit(&self, config: &Config) -> Result<Config, ChangeError> {
        let mut config = config.clone();
        match self {
            Self::AddJob(job) => match config.jobs.iter().find(|other| other.id == job.id) {
                None => config.jobs.push((**job).clone()),
                Some(other) if *other == **job => {}
                Some(_) => {
                    let why = format!("job {}: there already, with other values; set it", job.id);
                    return Err(ChangeError::Conflict(why));
                }
            },
            Self::RemoveJob(id) => config.jobs.retain(|job| job.id != *id),
            Self::SetJob(id, patch) => patch.apply(job(&mut config, *id)?),
            // No part of the configuration, or asked of the ports' thread.
            Self::DrainJob(..) | Self::AddPort(_) | Self::SetPort(..) => {}
            Self::RotateKey(id, key) => {
                let job = job(&mut config, *id)?;
                rotate(&mut job.key, &mut job.previous_key, key);
            }
            Self::RetireKey(id) => job(&mut config, *id)?.previous_key = None,
            Self::AddTenant(new) => {
                match config.tenants.iter().find(|other| other.name == new.name) {
                    None => config.tenants.push(new.clone()),
                    Some(other) if other == new => {}
                    Some(_) => {
                        let why = format!(
                            "tenant {}: there already, with other values; set it",
                            new.name
                        );
                        return Err(ChangeError::Conflict(why));
                    }
                }
            }
            Self::SetTenant(new) => *tenant(&mut config, &new.name)? = new.clone(),
            Self::RemoveTenant(name) => config.tenants.retain(|tenant| tenant.name != *name),
            Self::RotateTenantKey(name, key) => {
                let tenant = tenant(&mut config, name)?;
                rotate(&mut tenant.key, &mut tenant.previous_key, key);
            }
            Self::RetireTenantKey(name) => tenant(&mut config, name)?.previous_key = None,
            Self::AddRing(ring) => {
                let rings = rings(&mut config)?;
                match rings.iter().find(|other| other.id == ring.id) {
                    None => rings.push((**ring).clone()),
                    Some(other) if *other == **ring => {}
                    Some(_) => {
                        let why = format!("ring {}: there already, with other values", ring.id);
                        return Err(ChangeError::Conflict(why));
                    }
                }
            }
            Self::RemoveRing(id) => rings(&mut config)?.retain(|ring| ring.id != *id),
            Self::SetCardJobs(jobs) => match &mut config.card {
                Some(card) => card.jobs = jobs.clone(),
                None => return Err(ChangeError::NotFound("card".into())),
            },
        }
        Ok(config)
    }
}

impl JobPatch {
    fn apply(&self, job: &mut JobSection) {
        job.workers = self.workers.unwrap_or(job.workers);
        job.min_slots = self.min_slots.unwrap_or(job.min_slots);
        job.max_slots = self.max_slots.unwrap_or(job.max_slots);
    }
}

/// The same rotation twice is one.
fn rotate(key: &mut Key, previous: &mut Option<Key>, new: &Key) {
    if key != new {
        *previous = Some(std::mem::replace(key, new.clone()));
    }
}

fn job(config: &mut Config, id: u16) -> Result<&mut JobSection, ChangeError> {
    let job = config.jobs.iter_mut().find(|job| job.id == id);
    job.ok_or_else(|| ChangeError::NotFound(format!("job {id}")))
}

fn rings(config: &mut Config) -> Result<&mut Vec<RingSection>, ChangeError> {
    let section = config.netreduce.as_mut();
    let missing = || ChangeError::NotFound("netreduce, a section of the configuration".into());
    section.map(|it| &mut it.rings).ok_or_else(missing)
}

fn tenant<'a>(config: &'a mut Config, name: &str) -> Result<&'a mut TenantSection, ChangeError> {
    let tenant = config.tenants.iter_mut().find(|tenant| tenant.name == name);
    tenant.ok_or_else(|| ChangeError::NotFound(format!("tenant {name}")))
}
