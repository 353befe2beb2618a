//! The deployment sweep: racks whose switches are replaced one by one, and what each scheme makes
//! of them, beside the model.

use super::fabric::Shape;
use super::rings::{Outcome, Transfer, hierarchical, rina};
use super::server;
use crate::parallel::run_all;
use anyhow::Result;
use serde::Serialize;
use tally_report::Target;
use tally_rina::model::{Algorithm, Forwarder, RackShape, Rates, occupation, seconds};

/// Most that a time may differ from the model's.
pub const DEVIATION: f64 = 0.1;
/// Agents of a rack. More send less on each, in more and shorter segments.
pub const AGENTS: usize = 8;
/// Racks that sum, steps of the ring, and the streams of a parameter server, of 8 racks of 8.
pub const PAPER: [(usize, usize, usize); 3] = [(0, 126, 64), (4, 70, 36), (8, 14, 8)];

/// A way to sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Rina's ring; the switch sends a rack's sums on, as in the paper.
    Rina,
    /// Rina's ring; one agent of a rack sends its sums on.
    RinaAgent,
    /// Rina's rings, each with another agent in a rack: up to [`AGENTS`].
    RinaAgents,
    /// A ring of all workers.
    Ring,
    /// A ring in each rack, and rings of one worker of each rack.
    Hierarchical,
    /// A parameter server, with switches that sum on the way: ATP's deployment.
    TreePs,
    /// A parameter server alone.
    Ps,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Rina,
        Self::RinaAgent,
        Self::RinaAgents,
        Self::Ring,
        Self::Hierarchical,
        Self::TreePs,
        Self::Ps,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rina => "rina",
            Self::RinaAgent => "rina-agent",
            Self::RinaAgents => "rina-agents",
            Self::Ring => "ring",
            Self::Hierarchical => "hierarchical",
            Self::TreePs => "tree-ps",
            Self::Ps => "ps",
        }
    }

    /// Whether it uses switches that sum.
    #[must_use]
    pub const fn sums(self) -> bool {
        !matches!(self, Self::Ring | Self::Hierarchical | Self::Ps)
    }

    /// Whether a deployment is one of its own for it. Without summing racks there are no agents.
    const fn differs(self, summing: usize) -> bool {
        match self {
            Self::Rina | Self::TreePs => true,
            Self::RinaAgent | Self::RinaAgents => summing > 0,
            Self::Ring | Self::Hierarchical | Self::Ps => summing == 0,
        }
    }

    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Rina => Algorithm::Rina(Forwarder::Switch),
            Self::RinaAgent => Algorithm::Rina(Forwarder::Agents(1)),
            Self::RinaAgents => Algorithm::Rina(Forwarder::Agents(AGENTS)),
            Self::Ring => Algorithm::Ring,
            Self::Hierarchical => Algorithm::Hierarchical,
            Self::TreePs => Algorithm::Tree { server_sums: false },
            Self::Ps => Algorithm::Server,
        }
    }

    /// Links that a step crosses, the mean over the steps of a round.
    fn links(self, shape: &Shape) -> f64 {
        let Shape { racks, workers, .. } = *shape;
        let mean = |crossings: usize, of: usize| {
            let crossing = if racks == 1 { 0 } else { crossings };
            2.0 + 2.0 * crossing as f64 / of as f64
        };
        match self {
            Self::TreePs | Self::Ps => 4.0,
            Self::Hierarchical => {
                let (inside, between) = (workers - 1, racks - 1);
                let all = (inside + between).max(1) as f64;
                (2.0 * inside as f64 + 4.0 * between as f64) / all
            }
            Self::Rina => mean(racks, shape.members()),
            Self::RinaAgent | Self::RinaAgents => {
                // To the rack's switch and back.
                let inside = 2.0 * shape.summing as f64 / shape.members() as f64;
                mean(racks, shape.members()) + inside
            }
            Self::Ring => mean(racks, shape.all()),
        }
    }

    /// Simulates an all-reduce.
    ///
    /// # Errors
    /// A wrong sum.
    pub fn run(self, shape: Shape, transfer: Transfer) -> Result<Outcome> {
        match self {
            Self::Rina | Self::Ring => rina(shape, transfer, Forwarder::Switch),
            Self::RinaAgent => rina(shape, transfer, Forwarder::Agents(1)),
            Self::RinaAgents => rina(shape, transfer, Forwarder::Agents(AGENTS)),
            Self::Hierarchical => hierarchical(shape, transfer),
            Self::TreePs | Self::Ps => server::run(shape, transfer),
        }
    }
}

/// A scheme at a point of the sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Racks.
    pub racks: usize,
    /// Workers of each.
    pub workers_per_rack: usize,
    /// Racks whose switch sums.
    pub summing: usize,
    /// Which.
    pub scheme: Scheme,
    /// Steps, one behind the other.
    pub steps: usize,
    /// Time of an all-reduce.
    pub ms: f64,
    /// The same by the model of `tally_rina::model`.
    pub model_ms: f64,
    /// The time over the model's.
    pub to_model: f64,
    /// Bytes of an all-reduce over its time, as a share of a link's rate.
    pub share: f64,
    /// Bytes that the busiest link of a host carried, in bytes of an all-reduce.
    pub link: f64,
}

impl Row {
    fn new(scheme: Scheme, shape: Shape, transfer: Transfer) -> Result<Self> {
        // What it does not use is not there, but the row is that of the deployment.
        let used = Shape {
            summing: if scheme.sums() { shape.summing } else { 0 },
            ..shape
        };
        let outcome = scheme.run(used, transfer)?;
        let racks: Vec<_> = (0..shape.racks)
            .map(|rack| RackShape {
                workers: shape.workers,
                sums: used.sums(rack),
            })
            .collect();
        let rates = Rates {
            link_bytes_per_s: shape.rate_gbit / 8.0 * 1e9,
            step_s: scheme.links(&used) * shape.delay_ns as f64 * 1e-9,
        };
        let algorithm = scheme.algorithm();
        let model = seconds(algorithm, &racks, rates, transfer.bytes).unwrap_or(f64::NAN);
        let steps = occupation(algorithm, &racks).map_or(0, |(steps, _)| steps);
        let is_ring = matches!(
            scheme,
            Scheme::Rina | Scheme::RinaAgent | Scheme::RinaAgents | Scheme::Ring
        );
        Ok(Self {
            racks: shape.racks,
            workers_per_rack: shape.workers,
            summing: shape.summing,
            scheme,
            steps: if is_ring { outcome.steps } else { steps },
            ms: outcome.seconds * 1e3,
            model_ms: model * 1e3,
            to_model: outcome.seconds / model,
            share: transfer.bytes as f64 / outcome.seconds / rates.link_bytes_per_s,
            link: outcome.link_bytes as f64 / transfer.bytes as f64,
        })
    }
}

/// Runs all schemes at all shapes. Schemes that use no summing switch run once for each size.
///
/// # Errors
/// The first run that failed.
pub fn sweep(
    shapes: &[Shape],
    schemes: &[Scheme],
    transfer: Transfer,
    threads: usize,
) -> Result<Vec<Row>> {
    let tasks: Vec<_> = shapes
        .iter()
        .flat_map(|&shape| schemes.iter().map(move |&scheme| (shape, scheme)))
        .filter(|(shape, scheme)| scheme.differs(shape.summing))
        .collect();
    let done = run_all(&tasks, threads, |&(shape, scheme)| {
        Row::new(scheme, shape, transfer)
    });
    done.into_iter().collect()
}

/// The targets, for the rows that have one.
#[must_use]
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    let at = |scheme, summing| {
        rows.iter().find(|row| {
            (row.racks, row.workers_per_rack, row.summing) == (8, 8, summing)
                && row.scheme == scheme
        })
    };
    for (summing, steps, streams) in PAPER {
        if let Some(row) = at(Scheme::Rina, summing) {
            let name = format!("steps of rina, {summing} of 8 racks");
            let how = "2 (G - 1), counted in the run";
            targets.push(Target::at_most(
                &name,
                row.steps as f64,
                "steps",
                steps as f64,
                how,
            ));
        }
        if let Some(row) = at(Scheme::TreePs, summing) {
            let name = format!("share of tree-ps, {summing} of 8 racks");
            let deviation = (row.share * streams as f64 - 1.0).abs();
            let how = format!("deviation from B/{streams}");
            targets.push(Target::at_most(&name, deviation, "ratio", DEVIATION, &how));
        }
    }
    for scheme in Scheme::ALL {
        let of = rows.iter().filter(|row| row.scheme == scheme);
        let worst = of.max_by(|a, b| deviation(a).total_cmp(&deviation(b)));
        if let Some(row) = worst {
            let name = format!("{} and the model", scheme.name());
            let how = format!(
                "largest deviation, at {}x{} with {} summing",
                row.racks, row.workers_per_rack, row.summing
            );
            targets.push(Target::at_most(
                &name,
                deviation(row),
                "ratio",
                DEVIATION,
                &how,
            ));
        }
    }
    targets
}

fn deviation(row: &Row) -> f64 {
    (row.to_model - 1.0).abs()
}
