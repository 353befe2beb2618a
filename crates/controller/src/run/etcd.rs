//! Commands on what is stored: fleets, jobs and plans.

use super::{Failure, json, print, runtime};
use crate::args::{Shown, SubmitArguments};
use crate::document::Document;
use crate::fleet::{Fleet, Job};
use crate::location::{EtcdLocation, Location};
use crate::store::{self, Stored};
use crate::{jobs, show};
use std::path::Path;
use tally_wire::Key;

/// The fleet of a location, without or with keys.
pub(super) fn stored(location: &Location, with_keys: bool) -> Result<Stored, Failure> {
    Ok(runtime()?.block_on(store::load(location, with_keys))?)
}

/// The plan that a controller keeps.
pub(super) fn kept_plan(location: &Location) -> Result<Option<Document>, Failure> {
    Ok(runtime()?.block_on(store::kept_plan(location))?)
}

fn etcd(location: &Location) -> Result<&EtcdLocation, Failure> {
    match location {
        Location::Etcd(it) => Ok(it),
        Location::File(path) => Err(Failure::NotEtcd { path: path.clone() }),
    }
}

pub(super) fn import(file: &Path, to: &Location, replaces: bool) -> Result<(), Failure> {
    let imported = runtime()?.block_on(jobs::import(file, etcd(to)?, replaces))?;
    let mut text = format!(
        "{to}: fleet written, {} jobs new or changed\n",
        imported.brought
    );
    for job in imported.removed {
        text += &format!("job {job}: taken out\n");
    }
    print(&text)
}

pub(super) fn export(from: &Location, with_keys: bool) -> Result<(), Failure> {
    etcd(from)?;
    let Stored { mut fleet, .. } = stored(from, true)?;
    if !with_keys {
        hide_keys(&mut fleet);
    }
    print(&json(&fleet))
}

fn hide_keys(fleet: &mut Fleet) {
    for job in &mut fleet.jobs {
        job.key = None;
    }
}

pub(super) fn submit(arguments: &SubmitArguments) -> Result<(), Failure> {
    let to = etcd(&arguments.fleet)?;
    let key = arguments.key_file.as_ref().map(|file| {
        let digits = tally_config::read_key(file).map_err(Failure::Key)?;
        let key = digits.parse::<Key>();
        key.map_err(|error| Failure::Key(format!("{}: {error}", file.display())))
    });
    let key = key.transpose()?;
    let job = Job {
        name: arguments.job.clone(),
        workers: arguments.workers.clone(),
        bytes: arguments.bytes,
        element: arguments.element,
        weight: arguments.weight,
        id: arguments.id,
        key,
        min_slots: arguments.min_slots,
        max_slots: arguments.max_slots,
        parameter_servers: arguments.parameter_servers,
    };
    let job = runtime()?.block_on(jobs::submit(job, to, arguments.replace))?;
    if arguments.json {
        return print(&json(&job));
    }
    let number = job.id.unwrap_or_default();
    print(&format!(
        "job {}: number {number}, {} workers\n",
        job.name,
        job.workers.len()
    ))
}

pub(super) fn cancel(from: &Location, name: &str) -> Result<(), Failure> {
    let job = runtime()?.block_on(jobs::cancel(name, etcd(from)?))?;
    let number = job.id.unwrap_or_default();
    print(&format!("job {name}: number {number} is taken out\n"))
}

pub(super) fn show(what: Shown, location: &Location, is_json: bool) -> Result<(), Failure> {
    let Stored { mut fleet, .. } = stored(location, false)?;
    hide_keys(&mut fleet);
    let plan = match what {
        Shown::Topology => None,
        Shown::Jobs | Shown::Plan => kept_plan(location)?,
    };
    match what {
        Shown::Topology => {
            fleet.jobs.clear();
            print(&if is_json {
                json(&fleet)
            } else {
                show::topology(&fleet)
            })
        }
        Shown::Jobs if is_json => print(&json(&fleet.jobs)),
        Shown::Jobs => print(&show::jobs(&fleet, plan.as_ref())),
        Shown::Plan => match plan {
            None => Err(Failure::NoPlan {
                location: location.to_string(),
            }),
            Some(plan) if is_json => print(&json(&plan)),
            Some(plan) => print(&show::plan(&plan)),
        },
    }
}
