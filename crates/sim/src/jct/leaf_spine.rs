//! Jobs over leaves and a spine with oversubscribed uplinks: ways to sum them, side by side.
//!
//! docs/JCT.md has the scenario. One spine stands for several: its uplinks have the rate of all
//! spines' together, and jobs whose roots are spread evenly share that.

use super::models::Model;
use super::run::Outcome;
use super::scenario::{GBIT_PER_S, LeafSpine, Scenario, Scheme};
use super::sweep::{Measured, Point};
use serde::Serialize;
use std::fmt::Write;
use tally_report::{Spread, Target};

/// The axis of these points.
pub const AXIS: &str = "leaf-spine";
const LEAVES: u8 = 4;
const JOBS: usize = 4;
/// Workers of each job, spread evenly.
const WORKERS: u8 = 16;
/// What the hosts of a leaf can send, over what its uplinks can.
const OVERSUBSCRIPTION: u32 = 4;
/// Divides sizes once more: these runs have eight times the workers of a point of the sweep.
const SMALLER: u64 = 2;

impl Scenario {
    /// What the narrowest link takes for what all jobs send over it, if they send all the time, as
    /// a multiple of what an idle cable takes for one job's gradients.
    fn bound(&self) -> Option<f64> {
        let fabric = self.fabric?;
        let of = fabric.crossings(self.workers(0));
        let narrower = GBIT_PER_S / f64::from(fabric.uplink_gbit_per_s);
        let shared = self.jobs as f64 * narrower * of.uplink.0.max(of.uplink.1);
        Some(of.worker.max(of.ps).max(shared))
    }
}

/// The points, one for each scheme.
#[must_use]
pub fn points(scale: u64) -> Vec<Point> {
    let hosts = JOBS as u32 * u32::from(WORKERS / LEAVES);
    let uplink = hosts * GBIT_PER_S as u32 / OVERSUBSCRIPTION;
    let point = |scheme: Scheme| Point {
        axes: vec![AXIS],
        name: format!("{AXIS}-{}", scheme.name()),
        scenario: Scenario {
            mix: vec![Model::Vgg19],
            jobs: JOBS,
            workers: vec![WORKERS],
            slots: 512,
            ways: None,
            window: 256,
            scale: scale * SMALLER,
            iterations: 5,
            unknown_lengths: false,
            shared_nic: None,
            colocated_ps: false,
            stalls: None,
            fabric: Some(LeafSpine {
                leaves: LEAVES,
                uplink_gbit_per_s: uplink,
                scheme,
            }),
        },
    };
    Scheme::ALL.map(point).into()
}

/// What a scheme came to.
#[derive(Clone, Debug, Serialize)]
pub struct OfScheme {
    /// Which.
    pub scheme: Scheme,
    /// What was simulated.
    pub scenario: Scenario,
    /// Mean completion time over jobs, over the seeds.
    pub jct_ms: Spread,
    /// The same over that of the tree, seed by seed.
    pub to_tree: Option<Spread>,
    /// What the narrowest link takes for the gradients of all jobs.
    pub bound_ms: f64,
    /// Bytes up and down a leaf's uplinks, in gradients of a worker of each job; means over seeds.
    pub uplinks: (f64, f64),
    /// Share of results that a PS finished.
    pub from_ps: f64,
    /// Mean over jobs of computation alone.
    pub computation_ms: f64,
    /// Every run.
    pub runs: Vec<Outcome>,
}

impl OfScheme {
    fn new(measured: Measured, tree: &[f64]) -> Option<Self> {
        let scenario = measured.point.scenario;
        let runs = measured.outcomes.into_iter().next()?;
        let mean = |of: &dyn Fn(&Outcome) -> Option<f64>| {
            let all: Vec<_> = runs.iter().filter_map(of).collect();
            all.iter().sum::<f64>() / all.len().max(1) as f64
        };
        let jct: Vec<_> = runs.iter().map(Outcome::jct_ms).collect();
        let ratios: Vec<_> = jct.iter().zip(tree).map(|(it, tree)| it / tree).collect();
        let sending_ms = mean(&|run| run.mean(None, |job| job.sending_ms));
        Some(Self {
            scheme: scenario.fabric?.scheme,
            jct_ms: Spread::of(&jct)?,
            to_tree: Spread::of(&ratios),
            bound_ms: sending_ms * scenario.bound()?,
            uplinks: (
                mean(&|run| Some(run.uplinks?.0)),
                mean(&|run| Some(run.uplinks?.1)),
            ),
            from_ps: mean(&|run| Some(run.from_ps)),
            computation_ms: mean(&|run| run.mean(None, |job| job.computation_ms)),
            scenario,
            runs,
        })
    }
}

/// What was measured at these points.
#[must_use]
pub fn schemes(measured: Vec<Measured>) -> Vec<OfScheme> {
    let is_tree = |it: &&Measured| {
        let fabric = it.point.scenario.fabric;
        fabric.is_some_and(|fabric| fabric.scheme == Scheme::Tree)
    };
    let tree = measured.iter().find(is_tree);
    let runs = tree.and_then(|tree| tree.outcomes.first());
    let tree: Vec<_> = runs.into_iter().flatten().map(Outcome::jct_ms).collect();
    let measured = measured.into_iter();
    measured.filter_map(|it| OfScheme::new(it, &tree)).collect()
}

/// The table for people; empty without schemes.
#[must_use]
pub fn table(schemes: &[OfScheme]) -> String {
    let Some((first, fabric)) = schemes
        .first()
        .and_then(|it| Some((it, it.scenario.fabric?)))
    else {
        return String::new();
    };
    // Writing to a string cannot fail.
    let mut text = format!(
        "\nleaf-spine, scale 1/{}: {} jobs of {} workers at {} leaves with uplinks of {} Gbit/s \
         ({OVERSUBSCRIPTION}:1); computation alone {:.2} ms\n\
         scheme          JCT ms (least-most)       to tree (least-most)   bound ms  of bound  \
         uplink up  down  by PS\n",
        first.scenario.scale,
        first.scenario.jobs,
        first.scenario.workers(0),
        fabric.leaves,
        fabric.uplink_gbit_per_s,
        first.computation_ms,
    );
    for it in schemes {
        let spread = |s: Spread| format!("{:.2} ({:.2}-{:.2})", s.median, s.min, s.max);
        let _ = writeln!(
            text,
            "{:<15} {:<25} {:<22} {:>8.2}    {:>6.2}     {:>6.2} {:>5.2}  {:>3.0} %",
            it.scheme.name(),
            spread(it.jct_ms),
            it.to_tree.map_or("-".to_owned(), spread),
            it.bound_ms,
            it.jct_ms.median / it.bound_ms,
            it.uplinks.0,
            it.uplinks.1,
            100.0 * it.from_ps,
        );
    }
    text
}

/// The tree is slower than no other scheme, beyond noise, and near its bound.
#[must_use]
pub fn targets(schemes: &[OfScheme], judged: bool) -> Vec<Target> {
    let mut targets = Vec::new();
    for it in schemes.iter().filter(|_| judged) {
        let name = format!("leaf-spine: {}/tree", it.scheme.name());
        if let (Some(ratio), true) = (it.to_tree, it.scheme != Scheme::Tree) {
            let how = format!("best of seeds, where the median is {:.2}", ratio.median);
            targets.push(Target::at_least(&name, ratio.max, "ratio", 1.0, &how));
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_are_oversubscribed_and_bounds_follow_from_the_narrowest_link() {
        let points = points(1);
        let bounds: Vec<_> = points.iter().filter_map(|p| p.scenario.bound()).collect();
        assert_eq!(bounds, [1.0, 4.0, 16.0, 1.875, 7.5]);
        let fabric = points[0].scenario.fabric.unwrap();
        assert_eq!(fabric.uplink_gbit_per_s, 400);
        let tree = fabric.tree(WORKERS);
        assert_eq!((tree.workers(), tree.nodes.len()), (16, 5));
        assert_eq!(tree.place(4), (2, 0));
    }

    #[test]
    fn points_have_names_of_their_own() {
        let names: Vec<_> = points(1).into_iter().map(|p| p.name).collect();
        let first = ["leaf-spine-tree", "leaf-spine-leaf-only", "leaf-spine-ps"];
        assert_eq!(names[..3], first);
        assert_eq!(names[3..], ["leaf-spine-ring", "leaf-spine-ring-scattered"]);
    }
}
