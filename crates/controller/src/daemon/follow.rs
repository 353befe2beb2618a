//! Switches follow the plan: which jobs change now, the plan that is kept, and the changes.

use super::{Daemon, Planned, look};
use crate::apply::{self, ApplyError, Wanted, Work};
use crate::events::{ChangedJob, Event, ms};
use crate::moves::{self, State, Verdict};
use crate::roles::{self, JobTree};
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Time limit of all changes of a loop.
const PASS: Duration = Duration::from_secs(10);

impl Daemon {
    /// Makes switches follow the plan.
    pub(super) async fn follow(
        &mut self,
        store: &mut Store,
        states: &[State],
    ) -> Result<(), String> {
        let Some(planned) = self.planned.take() else {
            return Ok(());
        };
        let followed = self.follow_plan(store, &planned, states).await;
        self.planned = Some(planned);
        followed
    }

    async fn follow_plan(
        &mut self,
        store: &mut Store,
        planned: &Planned,
        states: &[State],
    ) -> Result<(), String> {
        let (mut wanted, waits) = self.wanted(planned, states);
        let jobs = planned.fleet.jobs.iter();
        for (at, job) in jobs.enumerate() {
            match waits.get(&at) {
                Some(why) => self.wait(&job.name, why),
                None if self.postponed.contains(&job.name) => {}
                None => _ = self.said.remove(&format!("job {}", job.name)),
            }
        }
        wanted.extend(self.going());
        self.keep_plan(store, planned, &wanted).await?;
        self.notify(planned, &wanted, &waits);
        // The plan has them, and another controller would try at once.
        wanted.retain(|it| !self.refused.waits(&it.name));
        self.change(planned, wanted).await
    }

    /// Makes the changes that these jobs lack.
    async fn change(&mut self, planned: &Planned, wanted: Vec<Wanted>) -> Result<(), String> {
        let remotes = std::mem::take(&mut self.remotes);
        let names: Vec<_> = wanted.iter().map(|it| it.name.clone()).collect();
        let work = Work::new(&planned.fleet, wanted, remotes, Vec::new());
        let mut work = work.map_err(|error| error.to_string())?;
        let made = if work.is_empty() {
            Ok(Ok(()))
        } else {
            self.since.get_or_insert(Instant::now());
            let options = apply::Options {
                drain: Duration::ZERO,
                end_running: false,
            };
            let made = timeout(PASS, work.carry_out(options)).await;
            if made.is_err() {
                // Jobs that are drained and do not change in the next loop would stay so.
                let _ = timeout(PASS, work.undo_drains()).await;
            }
            made
        };
        let changes = work.made();
        let mut changed = ChangedJob::of(work.outcome(false).jobs);
        let refusals = work.refusals();
        self.remotes = work.into_switches();
        for (job, error) in &refusals {
            changed.retain(|it| it.name != *job);
            let delay = self.refused.fail(job, error, self.interval);
            self.events.say(&Event::Error {
                error: error.clone(),
                retry_ms: delay.as_millis() as u64,
            });
        }
        match made {
            Err(_) => Err(format!("changes: not done within {} s", PASS.as_secs())),
            Ok(Err(ApplyError::Runs { job, .. })) => {
                // It began after the look.
                self.wait(&job, "it runs; it moves when it is idle");
                Ok(())
            }
            Ok(Ok(()) | Err(ApplyError::Incomplete { .. })) => {
                let since = self.since.take();
                self.retry = Default::default();
                if !self.reasons.is_empty() {
                    // An event of this loop is still to be planned for.
                    self.since = since;
                }
                let is_refused = |job: &String| refusals.iter().any(|(it, _)| it == job);
                let done = names.iter().filter(|it| !is_refused(it));
                done.for_each(|it| self.refused.done(it));
                if !changed.is_empty() {
                    self.events.say(&Event::Changed {
                        changes,
                        jobs: changed,
                        ms: since.map_or(0.0, |it| ms(it.elapsed())),
                    });
                }
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string()),
        }
    }

    /// The jobs whose roles are to be those of the plan now, and why others wait.
    fn wanted(
        &self,
        planned: &Planned,
        states: &[State],
    ) -> (Vec<Wanted>, BTreeMap<usize, String>) {
        let Planned {
            fleet,
            problem,
            plan,
            ..
        } = planned;
        let links = |at: usize| look::fabric(&self.remotes, at);
        let answers = |at: usize| self.remotes[at].is_some();
        let names = self.names();
        let mut waits = BTreeMap::new();
        let mut ends = BTreeSet::new();
        let mut trees = Vec::new();
        for (at, job) in fleet.jobs.iter().enumerate() {
            let servers = job.parameter_servers;
            let (of, planned) = (&problem.jobs[at], &plan.jobs[at]);
            let passed = roles::passed_of(&problem.topology, planned);
            let silent = passed.into_iter().find(|at| !answers(*at));
            let tree = match silent {
                Some(at) if fleet.switches[at].control.is_none() => {
                    Err(format!("switch {} of its tree has no `control`", names[at]))
                }
                Some(at) => Err(format!("switch {} of its tree does not answer", names[at])),
                None => roles::tree(&problem.topology, of, planned, servers, links)
                    .map_err(|refusal| refusal.to_string()),
            };
            let tree = tree.and_then(|tree| {
                let verdict = moves::verdict(&states[at], &tree.roles, answers, &names);
                match verdict {
                    _ if self.is_tenants(job.id.unwrap_or_default()) => {
                        Err("a tenant's job has its number".to_owned())
                    }
                    Verdict::Waits(why) => Err(why),
                    Verdict::Go { ends: true } => {
                        ends.insert(at);
                        Ok(tree)
                    }
                    Verdict::Go { ends: false } => Ok(tree),
                }
            });
            trees.push(tree.unwrap_or_else(|why| {
                waits.insert(at, why);
                JobTree::default()
            }));
        }
        while let Err(refusal) = roles::check_capacity(problem, plan, &trees) {
            let at = fleet.jobs.iter().position(|it| it.name == refusal.job());
            // It has no roles from now on, so the next refusal is that of another job.
            let Some(at) = at.filter(|it| !waits.contains_key(it)) else {
                break;
            };
            waits.insert(at, refusal.to_string());
            trees[at] = JobTree::default();
        }
        let trees = trees.into_iter().enumerate();
        let wanted = trees.filter(|(at, _)| !waits.contains_key(at));
        let wanted = wanted.map(|(at, tree)| {
            let mut wanted = Wanted::of(fleet, at, &plan.jobs[at], tree);
            wanted.is_ended = ends.contains(&at);
            wanted
        });
        (wanted.collect(), waits)
    }

    /// Keeps the plan of the jobs that follow it now, and of the others the plan before. The next
    /// controller finds in the file what this one began.
    async fn keep_plan(
        &mut self,
        store: &mut Store,
        planned: &Planned,
        wanted: &[Wanted],
    ) -> Result<(), String> {
        let mut document = planned.document.clone();
        let before = self.document.as_ref();
        let jobs = document.jobs.into_iter().filter_map(|job| {
            if wanted.iter().any(|it| it.name == job.name) {
                return Some(job);
            }
            let mut before = before?.jobs.iter();
            before.find(|it| it.name == job.name).cloned()
        });
        document.jobs = jobs.collect();
        if before.is_some_and(|it| it.jobs == document.jobs) && self.is_plan_written {
            return Ok(());
        }
        document.version = Some(before.and_then(|it| it.version).unwrap_or_default() + 1);
        let written = store.write_plan(&document).await;
        self.is_plan_written = written.is_ok();
        if store.must_keep() {
            // Another machine cannot finish what it cannot read.
            written.map_err(|error| error.to_string())?;
            self.document = Some(document);
            return Ok(());
        }
        self.document = Some(document);
        let key = "the plan's file";
        match written.map_err(|error| error.to_string()) {
            Ok(()) => _ = self.said.remove(key),
            Err(error) if self.said.get(key) == Some(&error) => {}
            Err(error) => {
                self.said.insert(key.to_owned(), error.clone());
                let retry_ms = self.interval.as_millis() as u64;
                self.events.say(&Event::Error { error, retry_ms });
            }
        }
        Ok(())
    }
}
