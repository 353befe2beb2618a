//! `tally-perf plan`: rates that plans for many switches predict, by algorithm, and the time to
//! plan.
//!
//! The set-ups are those of GRID and InArt as published (docs/PLANNING.md): their worked examples,
//! a fat-tree of 80 switches, leaves and spines with 500 hosts, a fat-tree of 54 hosts with four
//! parameter servers. A fleet of 20 jobs on 500 hosts, and 100 small random problems, are ours.
//!
//! Each plan passes the independent checker, or the command fails. Nothing is sent: a rate is what
//! the plan predicts, in the unit of the set-up.
//!
//! Catches: a rate is the lowest per weight of all jobs. `r-gria` and `r-inart` are the best of 16
//! draws. `grid-exact` is the optimum of GRID's model, which leaves links free; where they bind, it
//! may be below R-GRIA. `tally-8` is `tally` with at most 8 trees a job, `switches` with one tree a
//! job that Tally's switches can make.
//!
//! With `--switches` the worked examples are carried out by real switches and agents, and their
//! rates are measured (`switches.rs`).

mod switches;

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tally_planner::check::check;
use tally_planner::generate::{self, Grid};
use tally_planner::{Algorithm, Options, Plan, Problem, Shape, examples, rules};
use tally_report::{Machine, Report, Target};

/// Trees of a job in the row `tally-8`.
const FEW_TREES: usize = 8;
/// Row of `tally` with one tree a job, as Tally's switches can make it.
const SWITCHES: &str = "switches";
/// Rate of a link that GRID's model leaves free.
const FREE: f64 = 1e5;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// Fewer seeds of each set-up, and shorter limits
    #[arg(long)]
    quick: bool,

    /// Seeds of each published set-up
    #[arg(long, default_value_t = 5)]
    seeds: u64,

    /// Seconds that inart-exact may take for a problem
    #[arg(long, default_value_t = 2.0)]
    limit_s: f64,

    /// Carry out the worked examples with real switches and agents on shaped links (root), and
    /// measure their rates
    #[arg(long, conflicts_with_all = ["seeds", "limit_s"])]
    switches: bool,

    #[command(flatten)]
    real: switches::Args,
}

#[derive(Serialize)]
struct Parameters {
    seeds: u64,
    random: u64,
    limit_s: f64,
}

/// An algorithm on a set-up.
#[derive(Serialize)]
struct Row {
    setup: &'static str,
    unit: &'static str,
    algorithm: String,
    /// Mean over the seeds of the lowest rate per weight.
    rate: f64,
    /// Mean over the seeds of `tally`'s rate to this one's.
    tally_to_this: f64,
    /// Mean of the bound that the algorithm proves, of those seeds that have one.
    bound: Option<f64>,
    /// Highest gap of a rate to its bound over the seeds, of 1.
    gap: Option<f64>,
    /// Highest of the seeds.
    plan_ms: f64,
    /// Most trees of a job.
    trees: usize,
    /// Plans that a time limit ended before the proof.
    cut_off: usize,
}

/// A set-up: its problems by seed.
struct Setup {
    name: &'static str,
    unit: &'static str,
    problem: fn(u64) -> Problem,
    algorithms: &'static [Algorithm],
    is_seeded: bool,
}

use Algorithm::{
    GridExact, InartExact, None as Without, RGria, RInart, Switchml, Tally, Tor, TorWhole,
};

/// GRID's settings: a model of one parameter server without splits has no use for InArt.
const GRID: &[Algorithm] = &[Without, Tor, Switchml, RGria, GridExact, Tally];
const INART: &[Algorithm] = &[Without, Tor, TorWhole, RInart, InartExact, Tally];
const MANY: &[Algorithm] = &[Without, Tor, TorWhole, Switchml, RGria, GridExact, Tally];

const SETUPS: [Setup; 12] = [
    setup(
        "GRID, figure 1",
        "Gbit/s",
        |_| examples::grid_fig1(),
        &Algorithm::ALL,
        false,
    ),
    setup(
        "InArt, figure 1",
        "Gbit/s",
        |_| examples::inart_fig1(),
        &Algorithm::ALL,
        false,
    ),
    setup(
        "GRID, fat-tree",
        "Gbit/s",
        |seed| generate::grid(Grid::FatTree, 1, FREE, seed),
        GRID,
        true,
    ),
    setup(
        "GRID, leaf-spine",
        "Gbit/s",
        |seed| generate::grid(Grid::LeafSpine, 1, FREE, seed),
        GRID,
        true,
    ),
    setup(
        "GRID, fat-tree, links of 100",
        "Gbit/s",
        |seed| generate::grid(Grid::FatTree, 1, 100.0, seed),
        GRID,
        true,
    ),
    setup(
        "GRID, leaf-spine, links of 100",
        "Gbit/s",
        |seed| generate::grid(Grid::LeafSpine, 1, 100.0, seed),
        GRID,
        true,
    ),
    setup(
        "InArt, uniform, 10 workers",
        "Mbit/s",
        |seed| generate::inart(10, true, seed),
        INART,
        true,
    ),
    setup(
        "InArt, uniform, 50 workers",
        "Mbit/s",
        |seed| generate::inart(50, true, seed),
        INART,
        true,
    ),
    setup(
        "InArt, mixed, 10 workers",
        "Mbit/s",
        |seed| generate::inart(10, false, seed),
        INART,
        true,
    ),
    setup(
        "InArt, mixed, 30 workers",
        "Mbit/s",
        |seed| generate::inart(30, false, seed),
        INART,
        true,
    ),
    setup(
        "InArt, mixed, 50 workers",
        "Mbit/s",
        |seed| generate::inart(50, false, seed),
        INART,
        true,
    ),
    setup(
        "fleet, 20 jobs on 500 hosts",
        "Gbit/s",
        generate::fleet,
        MANY,
        true,
    ),
];

const fn setup(
    name: &'static str,
    unit: &'static str,
    problem: fn(u64) -> Problem,
    algorithms: &'static [Algorithm],
    is_seeded: bool,
) -> Setup {
    Setup {
        name,
        unit,
        problem,
        algorithms,
        is_seeded,
    }
}

/// A checked plan, its rate, and the time that it took.
fn planned(problem: &Problem, algorithm: Algorithm, options: &Options) -> Result<(Plan, f64, f64)> {
    let start = Instant::now();
    let plan = tally_planner::plan(problem, algorithm, options)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    check(problem, &plan).with_context(|| format!("plan of {}", algorithm.name()))?;
    if options.shape == Shape::Fabric {
        rules::check(problem, &plan).context("plan for switches")?;
    }
    let rate = plan.rate(problem.jobs.iter().map(|job| job.weight));
    Ok((plan, rate, ms))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// The gap of a plan's rate to its bound; infinite without one.
fn gap((plan, rate, _): &(Plan, f64, f64)) -> f64 {
    plan.bound.map_or(f64::INFINITY, |bound| bound / rate - 1.0)
}

fn measure(setup: &Setup, seeds: u64, options: &Options) -> Result<Vec<Row>> {
    let seeds = if setup.is_seeded { seeds } else { 1 };
    let problems: Vec<_> = (1..=seeds).map(setup.problem).collect();
    let few = Options {
        trees: FEW_TREES,
        ..*options
    };
    let contenders = setup
        .algorithms
        .iter()
        .map(|&of| (of, of.name().to_owned(), *options));
    let fabric = Options {
        shape: Shape::Fabric,
        ..*options
    };
    let contenders = contenders.chain([
        (Tally, format!("tally-{FEW_TREES}"), few),
        (Tally, SWITCHES.to_owned(), fabric),
    ]);
    let mut all = Vec::new();
    for (algorithm, name, options) in contenders {
        let plans = problems.iter().enumerate().map(|(seed, problem)| {
            let options = Options {
                seed: seed as u64 + 1,
                ..options
            };
            planned(problem, algorithm, &options).with_context(|| setup.name)
        });
        all.push((name, plans.collect::<Result<Vec<_>>>()?));
    }
    let tally = all
        .iter()
        .find(|of| of.0 == Tally.name())
        .context("no plan of tally")?;
    let tally: Vec<_> = tally.1.iter().map(|of| of.1).collect();
    let rows = all.iter().map(|(name, plans)| {
        let bounds: Vec<_> = plans.iter().filter_map(|of| of.0.bound).collect();
        let jobs = plans.iter().flat_map(|of| &of.0.jobs);
        Row {
            setup: setup.name,
            unit: setup.unit,
            algorithm: name.clone(),
            rate: mean(plans.iter().map(|of| of.1)),
            tally_to_this: mean(plans.iter().zip(&tally).map(|(of, tally)| tally / of.1)),
            bound: (!bounds.is_empty()).then(|| mean(bounds.iter().copied())),
            gap: plans
                .iter()
                .map(gap)
                .reduce(f64::max)
                .filter(|gap| gap.is_finite()),
            plan_ms: plans.iter().map(|of| of.2).fold(0.0, f64::max),
            trees: jobs.map(|job| job.shares.len()).max().unwrap_or(0),
            cut_off: plans.iter().filter(|of| of.0.cut_off).count(),
        }
    });
    Ok(rows.collect())
}

/// What `tally` lacks on random problems: the worst ratio to another algorithm, and the highest gap
/// to its bound.
#[derive(Serialize)]
struct OnRandom {
    problems: u64,
    /// `tally`'s rate to the best other one's.
    lowest_ratio: f64,
    highest_gap: f64,
}

fn on_random(problems: u64, options: &Options) -> Result<OnRandom> {
    let options = Options {
        time_limit: Duration::from_millis(300),
        ..*options
    };
    let mut found = OnRandom {
        problems,
        lowest_ratio: f64::INFINITY,
        highest_gap: 0.0,
    };
    for seed in 0..problems {
        let problem = generate::random(seed);
        let mut best: f64 = 0.0;
        for algorithm in Algorithm::ALL.into_iter().filter(|of| *of != Tally) {
            best = best.max(planned(&problem, algorithm, &options)?.1);
        }
        let (plan, rate, _) = planned(&problem, Tally, &options)?;
        if rate > 0.0 || best > 0.0 {
            found.lowest_ratio = found.lowest_ratio.min(rate / best);
            let gap = plan.bound.map_or(f64::INFINITY, |bound| bound / rate - 1.0);
            found.highest_gap = found.highest_gap.max(gap);
        }
    }
    Ok(found)
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    random: OnRandom,
}

impl Results {
    fn rows<'a>(&'a self, setup: &'a str, algorithm: &'a str) -> impl Iterator<Item = &'a Row> {
        let rows = self.rows.iter();
        rows.filter(move |row| row.setup.starts_with(setup) && row.algorithm == algorithm)
    }

    fn mean(&self, setup: &str, algorithm: &str, value: impl Fn(&Row) -> f64) -> f64 {
        let values: Vec<_> = self.rows(setup, algorithm).map(value).collect();
        mean(values.into_iter())
    }

    fn targets(&self) -> Vec<Target> {
        let mut targets = Vec::new();
        for (setup, algorithm, rate) in [
            ("GRID, figure 1", "none", 1.0),
            ("GRID, figure 1", "tor", 2.4375),
            ("GRID, figure 1", "grid-exact", 3.0),
            ("InArt, figure 1", "none", 4.0 / 3.0),
            ("InArt, figure 1", "tor-whole", 2.0),
            ("InArt, figure 1", "inart-exact", 8.0 / 3.0),
        ] {
            let found = self.mean(setup, algorithm, |row| row.rate);
            let name = format!("{setup}: {algorithm} differs by");
            let how = format!("from {rate:.4} Gbit/s");
            targets.push(Target::at_most(
                &name,
                (found - rate).abs(),
                "Gbit/s",
                1e-6,
                &how,
            ));
        }
        let random = &self.random;
        targets.push(Target::at_least(
            "tally to the best other algorithm",
            random.lowest_ratio,
            "ratio",
            1.0 - 1e-6,
            "lowest of the random problems",
        ));
        let large = self.rows.iter().filter(|row| row.algorithm == Tally.name());
        let gaps = large.map(|row| row.gap.unwrap_or(f64::INFINITY));
        let gap = gaps.fold(random.highest_gap, f64::max);
        let how = "highest of all problems";
        targets.push(Target::at_most(
            "tally's gap to its bound",
            gap,
            "ratio",
            0.05,
            how,
        ));
        let ratio = |setup, algorithm| self.mean(setup, algorithm, |row| row.tally_to_this);
        let how = "mean of GRID's networks, links free and of 100 Gbit/s";
        let value = ratio("GRID, fat", "r-gria").midpoint(ratio("GRID, leaf", "r-gria"));
        targets.push(Target::at_least(
            "tally to r-gria",
            value,
            "ratio",
            2.0,
            how,
        ));
        let how = "mean of InArt's settings";
        // Two set-ups of uniform links, three of mixed ones.
        let of = "InArt, uniform";
        let value = ratio(of, "r-inart") * 0.4 + ratio("InArt, mixed", "r-inart") * 0.6;
        targets.push(Target::at_least(
            "tally to r-inart",
            value,
            "ratio",
            1.3,
            how,
        ));
        let ms = self.mean("fleet", "tally", |row| row.plan_ms);
        let how = "tally, 20 jobs on 500 hosts, slowest seed";
        targets.push(Target::at_most("time to plan", ms, "ms", 1000.0, how));
        let ms = self.mean("fleet", SWITCHES, |row| row.plan_ms);
        let how = "one tree a job for switches, 20 jobs on 500 hosts, slowest seed";
        let name = "time to plan for switches";
        targets.push(Target::at_most(name, ms, "ms", 1000.0, how));
        targets
    }

    fn table(&self) -> String {
        let mut table = String::new();
        let mut last = "";
        for row in &self.rows {
            if row.setup != last {
                let _ = writeln!(
                    table,
                    "\n{}\n  {:<12} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8}",
                    row.setup,
                    "algorithm",
                    row.unit,
                    "bound",
                    "tally to",
                    "plan, ms",
                    "trees",
                    "cut off"
                );
                last = row.setup;
            }
            let bound = row
                .bound
                .map_or("-".to_owned(), |bound| format!("{bound:.3}"));
            let Row {
                algorithm,
                rate,
                tally_to_this,
                plan_ms,
                trees,
                cut_off,
                ..
            } = row;
            let _ = writeln!(
                table,
                "  {algorithm:<12} {rate:>9.3} {bound:>9} {tally_to_this:>9.2} {plan_ms:>9.1} {trees:>6} {cut_off:>8}"
            );
        }
        let OnRandom {
            problems,
            lowest_ratio,
            highest_gap,
        } = &self.random;
        let _ = writeln!(
            table,
            "\n{problems} random problems: tally to the best other {lowest_ratio:.6} or more, gap \
             {:.4} % or less",
            highest_gap * 100.0
        );
        table
    }
}

/// Plans every set-up with every algorithm, or carries out the worked examples.
///
/// # Errors
///
/// When a plan fails, is not feasible, or a program or a sum of one is wrong.
pub fn run(args: &Args) -> Result<Report> {
    if args.switches {
        return switches::run(&args.real, args.quick);
    }
    let parameters = if args.quick {
        Parameters {
            seeds: 1,
            random: 20,
            limit_s: 0.3,
        }
    } else {
        Parameters {
            seeds: args.seeds,
            random: 100,
            limit_s: args.limit_s,
        }
    };
    let limit = Duration::from_secs_f64(parameters.limit_s);
    let options = Options {
        time_limit: limit,
        ..Options::default()
    };
    let mut rows = Vec::new();
    for setup in &SETUPS {
        rows.extend(measure(setup, parameters.seeds, &options)?);
    }
    let random = on_random(parameters.random, &options)?;
    let results = Results { rows, random };
    let (targets, table) = (results.targets(), results.table());
    Report::new(Machine::detect(), &parameters, &results, targets, table)
}
