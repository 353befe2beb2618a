//! The turns of the contenders: real processes in racks, one after the other.

use super::setting::{Contender, Setting};
use crate::peers::{Peer, PeerHost, Work};
use anyhow::{Context, Result, anyhow, ensure};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;
use tally_local::Hello;
use tally_report::Spread;
use tally_schema::agent::config::Timeouts;
use tally_testkit::racks::{Process, Racks, RacksSpec, Source, members_text};
use tally_testkit::reference::{Inputs, Reference};

/// Bytes of elements in a frame of 1500.
pub const PAYLOAD_BYTES: u16 = 1408;
const ARITHMETIC: &str = "native";
const SEED: u64 = 1;
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
}

/// What the turns have in common.
pub struct Bench {
    rounds: u32,
    repeat: u32,
    reference: Reference,
    /// Of the programs.
    programs: PathBuf,
    /// For the peers' programs.
    folder: tempfile::TempDir,
}

impl Bench {
    /// Nothing has run yet.
    pub fn new(rounds: u32, repeat: u32, reference: &Path) -> Result<Self> {
        let program = reference.to_owned();
        let own = std::env::current_exe()?;
        Ok(Self {
            rounds,
            repeat,
            reference: Reference { program },
            programs: own.parent().context("a folder of programs")?.to_owned(),
            folder: tempfile::Builder::new()
                .prefix(&format!("tally-{}-peers-", std::process::id()))
                .tempdir()
                .context("temporary folder")?,
        })
    }

    /// All rounds of the contenders.
    pub fn measure(&self, setting: Setting, contenders: &[Contender]) -> Result<Measured> {
        let missing = Peer::GlooRing.find().err();
        let is_here = |it: &Contender| matches!(it, Contender::Rina(_)) || missing.is_none();
        let (here, others): (Vec<_>, Vec<_>) = contenders.iter().partition(|it| is_here(it));
        let reason = missing.clone().unwrap_or_default();
        let mut measured = Measured {
            seconds: here.into_iter().map(|it| (it, Vec::new())).collect(),
            missing: others.into_iter().map(|it| (it, reason.clone())).collect(),
        };
        for round in 1..=self.rounds {
            for (contender, medians) in &mut measured.seconds {
                eprintln!(
                    "{} racks of {}, links of {} and {} Mbit/s, {} elements, round {round} of {}: {}",
                    setting.racks,
                    setting.hosts,
                    setting.host_mbit,
                    setting.uplink_mbit,
                    setting.elements,
                    self.rounds,
                    contender.describe()
                );
                let seconds = match contender {
                    Contender::Rina(sums) => self.rina(setting, *sums, round),
                    Contender::Ring => self.peer(setting, *contender, Peer::GlooRing),
                    Contender::Hierarchy => {
                        let peer = Peer::GlooHierarchy(setting.hosts as u8);
                        self.peer(setting, *contender, peer)
                    }
                };
                let mut seconds = seconds.with_context(|| contender.describe())?;
                seconds.remove(0);
                let spread = Spread::of(&seconds).context("at least one all-reduce")?;
                medians.push(spread.median);
            }
        }
        Ok(measured)
    }

    fn patience(&self, setting: Setting, contender: Contender) -> Duration {
        let bound = setting.bound_seconds(contender) * f64::from(self.repeat + 1);
        PATIENCE + Duration::from_secs_f64(bound * SLOWEST)
    }

    fn spec(&self, setting: Setting, sums: usize) -> RacksSpec {
        RacksSpec {
            payload_bytes: PAYLOAD_BYTES,
            host_mbit: Some(setting.host_mbit),
            uplink_mbit: Some(setting.uplink_mbit),
            timeouts: Timeouts {
                join_ms: 60_000,
                stall_ms: 60_000,
                ..Timeouts::default()
            },
            ..RacksSpec::new(setting.specs(sums), self.programs.clone())
        }
    }

    fn rina(&self, setting: Setting, sums: usize, round: u32) -> Result<Vec<f64>> {
        let racks = Racks::start(self.spec(setting, sums))?;
        let workers = setting.total() as u16;
        let begun = Barrier::new(workers.into());
        let output = |rank: u16| racks.folder().join(format!("sum{rank}.safetensors"));
        let one = |rank: u16| {
            let job = Racks::job_id(0);
            let process = Process {
                socket: racks.socket(rank.into()),
                hello: Hello { job, rank, workers },
                source: Source::Synthetic {
                    seed: SEED,
                    rank,
                    element: "f32",
                    elements: setting.elements,
                },
                arithmetic: ARITHMETIC,
                rounds: self.repeat as usize + 1,
                patience: self.patience(setting, Contender::Rina(sums)),
            };
            process.sum(&output(rank), &begun, || {})
        };
        let one = &one;
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads = (0..workers).map(|rank| scope.spawn(move || one(rank)));
            let threads: Vec<_> = threads.collect();
            let ended = threads.into_iter().map(|it| match it.join() {
                Ok(summed) => summed.map(|(_, seconds)| seconds),
                Err(_) => Err(anyhow!("a rank crashed")),
            });
            ended.collect::<Result<_>>()
        })?;
        if round == self.rounds {
            let inputs = Inputs::Synthetic {
                seed: SEED,
                element: "f32",
                elements: setting.elements,
                workers,
            };
            let verdict = self.reference.check_ring(
                &members_text(&racks.spec().racks),
                ARITHMETIC,
                PAYLOAD_BYTES,
                &inputs,
                (0..workers).map(output),
            )?;
            ensure!(verdict.exact, "a wrong sum: {}", verdict.text);
        }
        racks.end()?;
        let slowest = |round: usize| {
            let of = |rank: &Vec<f64>| rank.get(round).copied().unwrap_or_default();
            all.iter().map(of).fold(0.0, f64::max)
        };
        Ok((0..=self.repeat as usize).map(slowest).collect())
    }

    fn peer(&self, setting: Setting, contender: Contender, peer: Peer) -> Result<Vec<f64>> {
        let racks = Racks::new(self.spec(setting, 0))?;
        let host = |host| PeerHost {
            name: racks.host_name(host).to_owned(),
            ip: racks.spec().address(host),
        };
        let hosts: Vec<_> = (0..setting.total()).map(host).collect();
        let work = Work {
            workers: setting.total() as u8,
            elements: setting.elements,
            rounds: self.repeat + 1,
        };
        let patience = self.patience(setting, contender);
        peer.run(&hosts, self.folder.path(), work, patience)
    }
}
