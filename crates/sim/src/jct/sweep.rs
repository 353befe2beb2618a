//! The points that are compared, and the runs at each: policies times seeds, over the cores there
//! are.

use super::models::Model;
use super::run::{Outcome, Scenario, run};
use super::scenario::{NicService, Stalls};
use crate::parallel::run_all;
use anyhow::Result;
use serde::Serialize;
use tally_engine::PolicyName;

/// What is compared, in the order of reports; the first is what the others are divided by.
pub const CONTENDERS: [Contender; 6] = [
    Contender::new("esa", PolicyName::Esa, None),
    Contender::new("esa-1", PolicyName::Esa, Some(1)),
    Contender::new("fcfs", PolicyName::Fcfs, None),
    Contender::new("fcfs-8", PolicyName::Fcfs, Some(8)),
    Contender::new("static", PolicyName::Static, None),
    Contender::new("none", PolicyName::None, None),
];

/// A policy, as it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Its name in reports.
    pub name: &'static str,
    /// The switch's policy.
    pub policy: PolicyName,
    /// Slots that a fragment may be in; none: the scenario's, or else the policy's default.
    pub ways: Option<u32>,
}

impl Contender {
    const fn new(name: &'static str, policy: PolicyName, ways: Option<u32>) -> Self {
        Self { name, policy, ways }
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(&self, scenario: &Scenario, seed: u64) -> Result<Outcome> {
        let scenario = Scenario {
            ways: self.ways.or(scenario.ways),
            ..scenario.clone()
        };
        let outcome = run(&scenario, self.policy, seed)?;
        Ok(Outcome {
            policy: self.name.to_owned(),
            ..outcome
        })
    }
}

/// What is changed from point to point, each from the default point. docs/JCT.md says why these.
const SLOTS: [u32; 6] = [64, 128, 256, 512, 1024, 2048];
const JOBS: [usize; 4] = [2, 4, 8, 16];
const WORKERS: [u8; 4] = [2, 4, 8, 16];
/// Jobs that share the NICs of eight hosts.
const NIC_JOBS: [usize; 3] = [2, 4, 8];
/// Mean stall, and the mean times between stalls with their share in percent.
const STALL_US: u32 = 50;
const STALLS: [(u32, u32); 2] = [(1, 4950), (9, 505)];
const MIXES: [(&str, &[Model]); 3] = [
    ("half", &[Model::Vgg19, Model::Resnet50]),
    ("vgg19", &[Model::Vgg19]),
    ("resnet50", &[Model::Resnet50]),
];

/// A place in the sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// What is changed: `slots`, `jobs`, `workers` or `mix`; all of them at the default point.
    pub axes: Vec<&'static str>,
    /// Its name: what differs from the default point.
    pub name: String,
    /// What is simulated.
    pub scenario: Scenario,
}

impl Scenario {
    /// Where it is on an axis of the sweep, to be written there.
    #[must_use]
    pub fn label(&self, axis: &str) -> String {
        match axis {
            "slots" => self.slots.to_string(),
            "jobs" => self.jobs.to_string(),
            "workers" => self.workers[0].to_string(),
            _ => match self.mix[..] {
                [model] => format!("all {}", model.name()),
                _ => "half and half".to_owned(),
            },
        }
    }
}

/// The default point.
#[must_use]
pub fn middle(scale: u64, ways: Option<u32>) -> Scenario {
    Scenario {
        mix: MIXES[0].1.to_vec(),
        jobs: 8,
        workers: vec![8],
        slots: 512,
        ways,
        window: 256,
        scale,
        iterations: 5,
        unknown_lengths: false,
        shared_nic: None,
        colocated_ps: false,
        stalls: None,
        fabric: None,
    }
}

/// The whole sweep: the default point first.
#[must_use]
pub fn all(scale: u64, ways: Option<u32>) -> Vec<Point> {
    let default = middle(scale, ways);
    let mut points = vec![Point {
        axes: vec!["slots", "jobs", "workers", "mix"],
        name: "default".to_owned(),
        scenario: default.clone(),
    }];
    let mut add = |axis, name: String, change: &dyn Fn(&mut Scenario)| {
        let mut scenario = default.clone();
        change(&mut scenario);
        if scenario != default {
            points.push(Point {
                axes: vec![axis],
                name,
                scenario,
            });
        }
    };
    for slots in SLOTS {
        add("slots", format!("slots-{slots}"), &|s| s.slots = slots);
    }
    for jobs in JOBS {
        add("jobs", format!("jobs-{jobs}"), &|s| s.jobs = jobs);
    }
    for workers in WORKERS {
        add("workers", format!("workers-{workers}"), &|s| {
            s.workers = vec![workers];
        });
    }
    for jobs in NIC_JOBS {
        let points = [
            (format!("nic-{jobs}"), NicService::Ordered),
            (format!("nic-{jobs}-round-robin"), NicService::RoundRobin),
        ];
        for (name, service) in points {
            add("nic", name, &|s| {
                (s.jobs, s.shared_nic) = (jobs, Some(service));
            });
        }
    }
    for (name, service) in [
        ("nic-8-unknown", NicService::Ordered),
        ("nic-8-unknown-round-robin", NicService::RoundRobin),
    ] {
        add("nic-unknown", name.to_owned(), &|s| {
            (s.unknown_lengths, s.shared_nic) = (true, Some(service));
        });
    }
    for (percent, every_us) in STALLS {
        let mean_us = STALL_US;
        add("stalls", format!("stalls-{percent}"), &|s| {
            s.stalls = Some(Stalls { mean_us, every_us });
        });
    }
    add("ps", "colocated-ps".to_owned(), &|s| s.colocated_ps = true);
    let services = [
        ("composite", NicService::Ordered),
        ("composite-round-robin", NicService::RoundRobin),
    ];
    for (name, service) in services {
        add("composite", name.to_owned(), &|s| {
            (s.shared_nic, s.colocated_ps) = (Some(service), true);
            let (mean_us, every_us) = (STALL_US, STALLS[0].1);
            s.stalls = Some(Stalls { mean_us, every_us });
        });
    }
    for (name, mix) in MIXES {
        add("mix", format!("mix-{name}"), &|s| s.mix = mix.to_vec());
    }
    points
}

/// The points of `--quick`.
#[must_use]
pub fn quick(scale: u64, ways: Option<u32>) -> Vec<Point> {
    let mut points = all(scale, ways);
    points.retain(|p| ["default", "slots-128", "nic-8"].contains(&p.name.as_str()));
    points
}

/// All runs at a point, by policy and then by seed.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Where.
    pub point: Point,
    /// The outcomes of each contender, in the order in which they were given, by seed.
    pub outcomes: Vec<Vec<Outcome>>,
}

/// Runs every contender with all seeds at every point, on `threads` threads.
///
/// # Errors
/// The first run that failed.
pub fn sweep(
    points: Vec<Point>,
    contenders: &[Contender],
    seeds: &[u64],
    threads: usize,
    told: &(dyn Fn(&Point, &Outcome) + Sync),
) -> Result<Vec<Measured>> {
    let mut tasks = Vec::new();
    for point in 0..points.len() {
        for &contender in contenders {
            tasks.extend(seeds.iter().map(|&seed| (point, contender, seed)));
        }
    }
    let done = run_all(&tasks, threads, |&(point, contender, seed)| {
        let outcome = contender.run(&points[point].scenario, seed);
        if let Ok(outcome) = &outcome {
            told(&points[point], outcome);
        }
        outcome
    });
    let outcomes: Vec<Outcome> = done.into_iter().collect::<Result<_>>()?;
    let mut outcomes = outcomes.into_iter();
    let measured = points.into_iter().map(|point| Measured {
        point,
        outcomes: contenders
            .iter()
            .map(|_| outcomes.by_ref().take(seeds.len()).collect())
            .collect(),
    });
    Ok(measured.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sweep_has_each_point_once() {
        let points = all(16, None);
        assert_eq!(points.len(), 1 + 5 + 3 + 3 + 2 + 6 + 2 + 2 + 1 + 2);
        for axis in ["slots", "jobs", "workers", "mix"] {
            let mut labels: Vec<_> = points
                .iter()
                .filter(|p| p.axes.contains(&axis))
                .map(|p| p.scenario.label(axis))
                .collect();
            let count = labels.len();
            labels.sort();
            labels.dedup();
            assert_eq!(labels.len(), count, "{axis}");
        }
        assert_eq!(quick(64, None).len(), 3);
    }
}
