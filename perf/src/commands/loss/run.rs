//! One run of one contender under one kind of loss.

use super::cases::{Case, Contender, Pattern};
use super::counted::{Counted, Resent, both, port_frames};
use super::{Args, cases};
use crate::peers::{Peer, PeerHost, Work};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::time::Duration;
use tally_report::Spread;
use tally_schema::agent::report::{Report as WorkerReport, Retransmissions};
use tally_testkit::cluster::{
    Cluster, Links, LossPattern, Namespaces, Network, Program, Spec, Timeouts,
};
use tally_testkit::reference::{Inputs, Reference};

/// MTU of shaped links.
pub const MTU: u16 = 9000;
/// What may wait for a link in the pattern `queue`: a quarter of the default window of one worker.
pub const QUEUE_BYTES: u32 = 64 << 10;
/// For how long a worker may be without any result before it gives up.
pub const STALL: Duration = Duration::from_secs(30);
/// Pause of the paused worker.
const PAUSE: Duration = Duration::from_secs(3);
/// Time that a run may take, besides that of its elements.
const PATIENCE: Duration = Duration::from_secs(120);
/// The least goodput that is waited for, in bits per second.
const SLOWEST_BITS_PER_S: f64 = 1e6;

/// What a run was like.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Its round.
    pub round: u32,
    /// Time of the slowest worker, without the pause of a paused one.
    pub seconds: f64,
    /// Bits of one worker's vector by that.
    pub goodput_gbit_per_s: f64,
    /// Frames with payload that were lost on purpose, or at the limited queues.
    pub lost: u64,
    /// Other frames that were.
    pub lost_control: u64,
    /// Frames that were lost elsewhere, as far as that is known; some after the end.
    pub lost_elsewhere: Option<i64>,
    /// Frames with payload that were sent again; none if not known.
    pub again: Resent,
    /// The workers' own counts of contributions sent again, by cause.
    pub causes: Option<Causes>,
    /// From contribution to result.
    pub latency: Option<Latency>,
}

/// What workers and PS say of what they sent again.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Causes {
    /// Contributions, by cause.
    pub contributions: Retransmissions,
    /// Results that workers sent to the PS.
    pub results_to_ps: u64,
    /// Results that the PS sent again.
    pub results_of_ps: u64,
    /// Contributions that the PS asked for.
    pub nacks: u64,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Median over the workers of their medians.
    pub p50_us: f64,
    /// Of the worker where it is largest.
    pub p99_us: f64,
    /// The same.
    pub max_us: f64,
}

/// What the runs have in common.
pub struct Bench<'a> {
    args: &'a Args,
    /// For the peers' programs.
    folder: tempfile::TempDir,
    /// Tally's results that the reference has found right, by contender and payload.
    right: Vec<((Contender, u16), Vec<u8>)>,
}

impl<'a> Bench<'a> {
    /// Nothing has run yet.
    ///
    /// # Errors
    /// If there is no temporary folder.
    pub fn new(args: &'a Args) -> Result<Self> {
        Ok(Self {
            args,
            folder: tempfile::Builder::new()
                .prefix(&format!("tally-{}-peers-", std::process::id()))
                .tempdir()
                .context("temporary folder")?,
            right: Vec::new(),
        })
    }

    /// One run.
    ///
    /// # Errors
    /// If a program fails or a sum is wrong.
    pub fn run(
        &mut self,
        network: Network,
        contender: Contender,
        case: Case,
        round: u32,
    ) -> Result<Run> {
        let mut run = match contender {
            Contender::Native | Contender::Fixed => self.tally(network, contender, case, round)?,
            Contender::Switchml => self.switchml(network, case, round)?,
            Contender::GlooCubic | Contender::GlooBbr => self.gloo(contender, case)?,
        };
        run.round = round;
        Ok(run)
    }

    fn patience(&self) -> Duration {
        let bits = self.args.elements as f64 * 32.0;
        PATIENCE + Duration::from_secs_f64(bits / SLOWEST_BITS_PER_S)
    }

    fn links(&self) -> Links {
        Links {
            mtu: MTU,
            rate_mbit: Some(self.args.rate_mbit),
        }
    }

    /// The cluster of a run, without its jobs.
    fn spec(&self, network: Network, case: Case, round: u32) -> Spec {
        let args = self.args;
        let is_wired = network == Network::Namespaces;
        let (rate, (injected, loss_pattern)) = match case {
            Case::Rate { percent } => {
                let counted = LossPattern {
                    counted: true,
                    ..LossPattern::default()
                };
                let injected = if is_wired { 0.0 } else { percent / 100.0 };
                (percent / 100.0, (injected, counted))
            }
            Case::Pattern { pattern } => (0.0, pattern.injected()),
        };
        let links = self.links();
        Spec {
            network,
            jobs: Vec::new(),
            share_cpus: is_wired,
            mtu: is_wired.then_some(links.mtu),
            rate_mbit: links.rate_mbit.filter(|_| is_wired),
            payload_bytes: args.payload_bytes(network),
            window: args.window(network),
            // A job alone: room for its whole window.
            slots: Some(u32::from(args.window(network)).next_power_of_two() * 2),
            loss: injected,
            loss_seed: args.seed.wrapping_add(u64::from(round)),
            loss_pattern,
            wire_loss: is_wired.then_some(rate),
            queue_bytes: case.is(Pattern::Queue).then_some(QUEUE_BYTES),
            timeouts: Timeouts {
                join_ms: 60_000,
                stall_ms: STALL.as_millis() as u64,
                ..Timeouts::default()
            },
            ..Spec::default()
        }
    }

    fn tally(
        &mut self,
        network: Network,
        contender: Contender,
        case: Case,
        round: u32,
    ) -> Result<Run> {
        let args = self.args;
        let mut cluster = Cluster::start(Spec {
            jobs: vec![args.workers],
            ..self.spec(network, case, round)
        })?;
        let arithmetic = cases::name(&contender);
        let workers = cluster.start_workers(0, |_| {
            let (seed, elements) = (args.seed.to_string(), args.elements.to_string());
            [
                ["--arithmetic", &arithmetic],
                ["--seed", &seed],
                ["--elements", &elements],
            ]
            .concat()
            .into_iter()
            .chain(["--synthetic"])
            .map(str::to_owned)
            .collect()
        })?;
        let mut paused = Duration::ZERO;
        if case.is(Pattern::Pause) {
            pause(&cluster, &workers[0], self.fragments(network) / 4)?;
            paused = PAUSE;
        }
        for worker in workers {
            worker.wait_ok(self.patience())?;
        }
        let wires = cluster.wire_losses()?;
        // The PS first: while it says goodbye, the switch must answer.
        cluster.stop_ps(0)?;
        let switch = cluster.stop_switch()?;
        ensure!(
            switch.frames_missing == Some(0),
            "frames of the switch's pool are missing at its end: {:?}",
            switch.frames_missing
        );
        let payload_bytes = args.payload_bytes(network);
        self.check(&cluster, contender, payload_bytes)?;
        let reports: Vec<WorkerReport> = (0..args.workers)
            .map(|rank| cluster.worker_report(0, rank))
            .collect::<Result<_>>()?;
        let ps = cluster.ps_report(0, 0)?;
        let mut counted = Counted::of(&reports, &ps, &wires, &switch)?;
        if case.is(Pattern::Queue) {
            // Superframes wait in those queues whole, so that the kernel's own count says little.
            counted.lost += counted.lost_elsewhere.max(0) as u64;
            counted.lost_elsewhere = counted.lost_elsewhere.min(0);
        }
        let seconds = reports.iter().map(|r| r.seconds).fold(0.0, f64::max);
        let seconds = (seconds - paused.as_secs_f64()).max(f64::MIN_POSITIVE);
        Ok(Run {
            round,
            seconds,
            goodput_gbit_per_s: self.goodput(args.elements, seconds),
            lost: counted.lost,
            lost_control: counted.lost_control,
            lost_elsewhere: Some(counted.lost_elsewhere),
            again: counted.again,
            causes: Some(Causes {
                contributions: Retransmissions::of_all(reports.iter().map(|r| r.retransmissions)),
                results_to_ps: reports.iter().map(|r| r.results_resent).sum(),
                results_of_ps: ps.jobs.iter().map(|job| job.results_resent).sum(),
                nacks: ps.jobs.iter().map(|job| job.nacks).sum(),
            }),
            latency: Some(latency(&reports)?),
        })
    }

    fn goodput(&self, elements: u64, seconds: f64) -> f64 {
        elements as f64 * 32.0 / seconds / 1e9
    }

    fn fragments(&self, network: Network) -> u64 {
        let payload_bytes = u64::from(self.args.payload_bytes(network));
        (self.args.elements * 4).div_ceil(payload_bytes)
    }

    /// Compares every worker's result: the first time with the reference, later with the result
    /// that the reference accepted.
    fn check(&mut self, cluster: &Cluster, contender: Contender, payload_bytes: u16) -> Result<()> {
        let outputs = (0..self.args.workers).map(|rank| cluster.output(0, rank));
        let key = (contender, payload_bytes);
        if let Some((_, right)) = self.right.iter().find(|(of, _)| *of == key) {
            for output in outputs {
                ensure!(
                    std::fs::read(&output)? == *right,
                    "a wrong sum: {} has other bits than in the first run",
                    output.display()
                );
            }
            return Ok(());
        }
        let inputs = Inputs::Synthetic {
            seed: self.args.seed,
            element: "f32",
            elements: self.args.elements,
            workers: self.args.workers.into(),
        };
        let reference = Reference {
            program: self.args.reference.clone(),
        };
        let verdict = reference.check(&cases::name(&contender), payload_bytes, &inputs, outputs)?;
        ensure!(verdict.exact, "a wrong sum: {}", verdict.text);
        self.right.push((key, std::fs::read(cluster.output(0, 0))?));
        Ok(())
    }

    fn switchml(&self, network: Network, case: Case, round: u32) -> Result<Run> {
        let args = self.args;
        let spec = Spec {
            switchml: vec![args.workers],
            ..self.spec(network, case, round)
        };
        let (payload_bytes, loss) = (spec.payload_bytes, spec.loss);
        let mut cluster = Cluster::new(spec)?;
        cluster.start_switch()?;
        let workers = cluster.start_switchml(
            0,
            args.workers,
            &[
                ["--size", &payload_bytes.to_string()],
                ["--window", &args.window(network).to_string()],
                ["--element", "f32"],
                ["--elements", &args.elements.to_string()],
                ["--tensors", "1"],
                ["--seed", &args.seed.to_string()],
                ["--loss", &loss.to_string()],
                ["--loss-seed", &(args.seed + u64::from(round)).to_string()],
                ["--stall-ms", &STALL.as_millis().to_string()],
                ["--session", &format!("{}", args.seed + 1)],
            ]
            .concat(),
        )?;
        let outcomes = cluster.finish_switchml(0, workers, self.patience())?;
        let wired = both(&cluster.wire_losses()?);
        let switch = cluster.stop_switch()?;
        let outcomes = outcomes.first().context("SwitchML ran one session")?;
        let seconds = outcomes.iter().map(|o| o.seconds).fold(0.0, f64::max);
        let first: u64 = outcomes.iter().map(|o| o.sent - o.sent_again).sum();
        let [_, tx] = port_frames(&switch);
        Ok(Run {
            round,
            seconds,
            goodput_gbit_per_s: self.goodput(args.elements, seconds),
            // All of its datagrams have payload, both ways.
            lost: outcomes.iter().map(|o| o.lost).sum::<u64>()
                + wired.to_switch.long
                + wired.to_host.long,
            lost_control: wired.to_switch.short + wired.to_host.short,
            lost_elsewhere: None,
            again: Resent {
                contributions: outcomes.iter().map(|o| o.sent_again).sum(),
                results: tx.saturating_sub(first),
                ps: 0,
            },
            causes: None,
            latency: None,
        })
    }

    fn gloo(&self, contender: Contender, case: Case) -> Result<Run> {
        let args = self.args;
        let Case::Rate { percent } = case else {
            bail!("{}: for Tally only", case.describe());
        };
        let peer = Peer::GlooRing;
        let hosts = Namespaces::lossy(peer.hosts(args.workers), self.links(), percent / 100.0)?;
        hosts.bridge()?;
        if let Some(name) = contender.congestion_control() {
            hosts.set_congestion_control(name)?;
        }
        let work = Work {
            workers: args.workers,
            elements: args.elements,
            rounds: 1,
        };
        let all = PeerHost::all(&hosts);
        let seconds = peer.run(&all, self.folder.path(), work, self.patience())?;
        let seconds = seconds.into_iter().sum();
        let wired = both(&hosts.wire_losses()?);
        Ok(Run {
            round: 0,
            seconds,
            goodput_gbit_per_s: self.goodput(args.elements, seconds),
            lost: wired.to_switch.long + wired.to_host.long,
            lost_control: wired.to_switch.short + wired.to_host.short,
            lost_elsewhere: None,
            again: Resent {
                contributions: hosts.tcp_retransmissions()?,
                ..Resent::default()
            },
            causes: None,
            latency: None,
        })
    }
}

/// Pauses a worker for [`PAUSE`] once the switch has sent that many results.
fn pause(cluster: &Cluster, worker: &Program, results: u64) -> Result<()> {
    cluster.wait_for_results(results, PATIENCE)?;
    worker.signal("STOP")?;
    std::thread::sleep(PAUSE);
    worker.signal("CONT")
}

fn latency(reports: &[WorkerReport]) -> Result<Latency> {
    let medians: Vec<_> = reports.iter().map(|r| r.latency_us.p50).collect();
    let largest = |of: fn(&WorkerReport) -> f64| reports.iter().map(of).fold(0.0, f64::max);
    Ok(Latency {
        p50_us: Spread::of(&medians).context("at least one worker")?.median,
        p99_us: largest(|r| r.latency_us.p99),
        max_us: largest(|r| r.latency_us.max),
    })
}
