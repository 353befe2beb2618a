//! What others are told of a loop: places for hosts, figures for metrics.

use super::{Daemon, Planned};
use crate::apply::Wanted;
use crate::hosts::{self, JobAnswers, NotYet};
use crate::watch::pair;
use std::collections::BTreeMap;
use tally_schema::controller::{JobFigures, SwitchFigures};

impl Daemon {
    /// Tells the places of hosts in the jobs whose trees switches have reported, and figures.
    pub(super) fn notify(
        &self,
        planned: &Planned,
        wanted: &[Wanted],
        waits: &BTreeMap<usize, String>,
    ) {
        let document = self.document.as_ref();
        let version = document.and_then(|it| it.version).unwrap_or_default();
        let mut answers = BTreeMap::new();
        let mut figures = Vec::new();
        let bytes = |rate: f64| rate * planned.fleet.unit.bits_per_second() / 8.0;
        for (at, job) in planned.fleet.jobs.iter().enumerate() {
            let not_yet = |why: &str| {
                let (hosts, why) = (job.workers.clone(), why.to_owned());
                Err(NotYet { hosts, why })
            };
            let tree = wanted.iter().find(|it| it.job == Some(at));
            let answer: JobAnswers = match (waits.get(&at), tree) {
                (Some(why), _) => not_yet(why),
                (None, Some(it)) if it.is_made(&self.remotes) => {
                    Ok(hosts::places(&planned.fleet, job, &it.tree, version))
                }
                (None, _) => {
                    let refused = self.refused.why(&job.name);
                    not_yet(refused.unwrap_or("switches do not have its tree yet"))
                }
            };
            let of_job = JobFigures {
                ready: u64::from(answer.is_ok()),
                rate_bytes: bytes(planned.plan.jobs[at].rate),
            };
            figures.push((job.name.clone(), of_job));
            answers.insert(job.name.clone(), answer);
        }
        self.answers.jobs(answers);
        let switches = planned.fleet.switches.iter().zip(&self.remotes);
        let switches = switches.map(|(switch, remote)| {
            let of_switch = SwitchFigures {
                up: u64::from(remote.is_some()),
                capacity_bytes: bytes(switch.capacity),
            };
            (switch.name.clone(), of_switch)
        });
        let links = self.fleet.links.iter();
        let links = links.map(|it| pair(&it.between[0], &it.between[1]));
        let down = links.filter(|it| self.watch.is_link_down(it)).count();
        let figures_of = &self.events.figures;
        figures_of.set(version, down, figures, switches.collect());
    }
}
