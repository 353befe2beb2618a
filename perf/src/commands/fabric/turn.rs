//! The turns of the contenders: real processes over one fabric, one after the other.

use super::setting::{Contender, Middle, Order, Setting};
use crate::peers::{Peer, PeerHost, Work};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tally_report::Spread;
use tally_schema::agent::report::Report as WorkerReport;
use tally_testkit::cluster::{Cluster, Network, Program, Spec, Timeouts};
use tally_testkit::fabric::{Fabric, FabricSpec, HostRole, SwitchId, Uplink};
use tally_testkit::reference::{Inputs, Reference};

const ARITHMETIC: &str = "native";
const SEED: u64 = 1;
/// The spine whose links bridges use: the root of the job's tree.
const SPINE: SwitchId = SwitchId(0);
/// Time that a turn may take, besides that of its all-reduces.
const PATIENCE: Duration = Duration::from_secs(90);
/// Times the bound that an all-reduce may take.
const SLOWEST: f64 = 50.0;

/// Medians of the all-reduces of each round.
pub struct Measured {
    /// Seconds, by contender.
    pub seconds: Vec<(Contender, Vec<f64>)>,
    /// Contenders that did not run, and why.
    pub missing: Vec<(Contender, String)>,
    /// The leaves of each round, after the tree's turn.
    pub uplinks: Vec<Vec<Uplink>>,
}

/// What the turns have in common.
pub struct Bench {
    rounds: u32,
    repeat: u32,
    reference: Reference,
    /// For the peers' programs.
    folder: tempfile::TempDir,
}

impl Bench {
    /// Nothing has run yet.
    pub fn new(rounds: u32, repeat: u32, reference: &Path) -> Result<Self> {
        let program = PathBuf::from(reference);
        Ok(Self {
            rounds,
            repeat,
            reference: Reference { program },
            folder: tempfile::Builder::new()
                .prefix(&format!("tally-{}-peers-", std::process::id()))
                .tempdir()
                .context("temporary folder")?,
        })
    }

    /// All rounds of the contenders.
    pub fn measure(&self, setting: Setting, contenders: &[Contender]) -> Result<Measured> {
        let missing = Peer::GlooRing.find().err();
        let is_here = |it: &Contender| it.ring().is_none() || missing.is_none();
        let (here, others): (Vec<_>, Vec<_>) = contenders.iter().partition(|it| is_here(it));
        let reason = missing.clone().unwrap_or_default();
        let mut measured = Measured {
            seconds: here.into_iter().map(|it| (it, Vec::new())).collect(),
            missing: others.into_iter().map(|it| (it, reason.clone())).collect(),
            uplinks: Vec::new(),
        };
        for round in 1..=self.rounds {
            self.round(setting, round, &mut measured)?;
        }
        Ok(measured)
    }

    fn round(&self, setting: Setting, round: u32, measured: &mut Measured) -> Result<()> {
        // A fabric for each: what idle switches poll would slow the others.
        let mut switches: Option<Fabric> = None;
        let mut bridges: Option<Fabric> = None;
        for at in 0..measured.seconds.len() {
            let contender = measured.seconds[at].0;
            eprintln!(
                "{}, links of {} and {} Mbit/s, round {round} of {}: {}",
                setting.shape,
                setting.host_mbit,
                setting.uplink_mbit,
                self.rounds,
                contender.describe()
            );
            let seconds = match contender.ring() {
                None if contender == Contender::Single => self.single(setting, round),
                None => self.tree(setting, round).map(|(seconds, uplinks)| {
                    measured.uplinks.push(uplinks);
                    seconds
                }),
                Some((Middle::Bridges, order)) => {
                    if bridges.is_none() {
                        let fabric = Fabric::new(spec(setting))?;
                        fabric.bridge(SPINE)?;
                        bridges = Some(fabric);
                    }
                    let fabric = bridges.as_ref().context("a fabric of bridges")?;
                    self.ring(setting, fabric, order)
                }
                Some((Middle::Switches, order)) => {
                    bridges = None;
                    if switches.is_none() {
                        switches = Some(Fabric::start(spec(setting))?);
                    }
                    let fabric = switches.as_ref().context("a fabric of switches")?;
                    self.ring(setting, fabric, order)
                }
            };
            let mut seconds = seconds.with_context(|| contender.describe())?;
            seconds.remove(0);
            let spread = Spread::of(&seconds).context("at least one all-reduce")?;
            measured.seconds[at].1.push(spread.median);
        }
        Ok(())
    }

    fn patience(&self, setting: Setting, contender: Contender) -> Duration {
        let bound = setting.bound_seconds(contender) * f64::from(self.repeat + 1);
        PATIENCE + Duration::from_secs_f64(bound * SLOWEST)
    }

    fn tree(&self, setting: Setting, round: u32) -> Result<(Vec<f64>, Vec<Uplink>)> {
        let mut fabric = Fabric::start(spec(setting))?;
        let workers = fabric.start_workers(0, |_| self.arguments(setting))?;
        let ranks = 0..setting.shape.total() as u16;
        wait(workers, self.patience(setting, Contender::Tree))?;
        let reports = ranks.clone().map(|rank| fabric.worker_report(0, rank));
        let seconds = self.slowest(&reports.collect::<Result<Vec<_>>>()?)?;
        fabric.stop_all_ps()?;
        let mut switches = Vec::new();
        for switch in fabric.plan().switches() {
            switches.push(fabric.stop_switch(switch)?);
        }
        if round == self.rounds {
            let verdict = self.reference.check_tree(
                &fabric.plan().ranks(),
                ARITHMETIC,
                setting.payload_bytes,
                &inputs(setting),
                ranks.map(|rank| fabric.output(0, rank)),
            )?;
            ensure!(verdict.exact, "a wrong sum: {}", verdict.text);
        }
        Ok((seconds, fabric.plan().uplinks(&switches)))
    }

    fn single(&self, setting: Setting, round: u32) -> Result<Vec<f64>> {
        let total = setting.shape.total() as u8;
        let mut cluster = Cluster::start(Spec {
            network: Network::Namespaces,
            jobs: vec![total],
            share_cpus: true,
            mtu: Some(setting.mtu),
            rate_mbit: Some(setting.host_mbit),
            payload_bytes: setting.payload_bytes,
            window: setting.window,
            slots: Some(slots(setting)),
            timeouts: timeouts(),
            ..Spec::default()
        })?;
        let is_last = round == self.rounds;
        cluster.set_outputs(is_last);
        let workers = cluster.start_workers(0, |_| self.arguments(setting))?;
        wait(workers, self.patience(setting, Contender::Single))?;
        let reports = (0..total).map(|rank| cluster.worker_report(0, rank));
        let seconds = self.slowest(&reports.collect::<Result<Vec<_>>>()?)?;
        cluster.stop_ps(0)?;
        cluster.stop_switch()?;
        if is_last {
            let verdict = self.reference.check(
                ARITHMETIC,
                setting.payload_bytes,
                &inputs(setting),
                (0..total).map(|rank| cluster.output(0, rank)),
            )?;
            ensure!(verdict.exact, "a wrong sum: {}", verdict.text);
        }
        Ok(seconds)
    }

    fn ring(&self, setting: Setting, fabric: &Fabric, order: Order) -> Result<Vec<f64>> {
        let plan = fabric.plan();
        let wires = fabric.namespaces().context("a network of namespaces")?;
        let hosts = setting.hosts_of_ring(order).into_iter().map(|rank| {
            let host = plan.host(HostRole::Worker(0, rank));
            let host = host.with_context(|| format!("no host of rank {rank}"))?;
            Ok(PeerHost {
                name: wires.host_name(host).to_owned(),
                ip: plan.hosts()[host].ip,
            })
        });
        let hosts = hosts.collect::<Result<Vec<_>>>()?;
        let work = Work {
            workers: setting.shape.total() as u8,
            elements: setting.elements,
            rounds: self.repeat + 1,
        };
        let patience = self.patience(setting, Contender::RingSpread);
        Peer::GlooRing.run(&hosts, self.folder.path(), work, patience)
    }

    fn arguments(&self, setting: Setting) -> Vec<String> {
        let (seed, elements) = (SEED.to_string(), setting.elements.to_string());
        let repeat = (self.repeat + 1).to_string();
        [
            ["--arithmetic", ARITHMETIC],
            ["--seed", &seed],
            ["--elements", &elements],
            ["--repeat", &repeat],
        ]
        .concat()
        .into_iter()
        .chain(["--synthetic"])
        .map(str::to_owned)
        .collect()
    }

    /// Seconds of each all-reduce at its slowest worker.
    fn slowest(&self, reports: &[WorkerReport]) -> Result<Vec<f64>> {
        let mut seconds = vec![0.0_f64; self.repeat as usize + 1];
        for (rank, report) in reports.iter().enumerate() {
            ensure!(
                report.round_seconds.len() == seconds.len(),
                "worker {rank} reports {} all-reduces, expected {}",
                report.round_seconds.len(),
                seconds.len()
            );
            for (all, one) in seconds.iter_mut().zip(&report.round_seconds) {
                *all = all.max(*one);
            }
        }
        Ok(seconds)
    }
}

fn wait(workers: Vec<Program>, patience: Duration) -> Result<()> {
    for worker in workers {
        worker.wait_ok(patience)?;
    }
    Ok(())
}

fn inputs(setting: Setting) -> Inputs {
    Inputs::Synthetic {
        seed: SEED,
        element: "f32",
        elements: setting.elements,
        workers: setting.shape.total() as u16,
    }
}

/// A job alone: room for its whole window.
fn slots(setting: Setting) -> u32 {
    u32::from(setting.window).next_power_of_two() * 2
}

fn timeouts() -> Timeouts {
    Timeouts {
        join_ms: 60_000,
        stall_ms: 60_000,
        ..Timeouts::default()
    }
}

fn spec(setting: Setting) -> FabricSpec {
    FabricSpec {
        network: Network::Namespaces,
        shape: setting.shape,
        jobs: 1,
        mtu: setting.mtu,
        host_mbit: Some(setting.host_mbit),
        uplink_mbit: Some(setting.uplink_mbit),
        payload_bytes: setting.payload_bytes,
        window: setting.window,
        slots: Some(slots(setting)),
        timeouts: timeouts(),
        ..FabricSpec::default()
    }
}
