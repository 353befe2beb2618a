//! A simulated card beside the switch of a cluster: the program `tally-card`, on a link of its own
//! that is like those of the hosts. In namespaces that is a veth pair, with `net_af_packet` at both
//! ends.

use super::Cluster;
use super::commands::prefixed;
use super::cpus::Cpus;
use super::identity::job_id;
use super::memif::Memif;
use super::network::Wires;
use super::process::Program;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tally_schema::switch::config::{CardJobs, CardSection, PortSection, Registers};
use tally_schema::switch::report::CardState;

/// The port's name in the switch's configuration.
const PORT: &str = "card";
/// How long it may take until the switch has found the card.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a job is watched after its card was killed.
const WATCHED: Duration = Duration::from_secs(1);
/// How often to ask the switch.
const ASK_EVERY: Duration = Duration::from_millis(2);

/// The link and the registers of the card, and the card if it runs.
pub(super) struct CardLink {
    /// Words in front of the command.
    prefix: Vec<String>,
    /// The device at the switch, and that of the card.
    devices: [String; 2],
    registers: PathBuf,
    pub(super) card: Option<Program>,
}

/// How long results stopped when the card was killed.
#[derive(Clone, Copy, Debug)]
pub struct Standstill {
    /// The longest time from the moment of the kill on in which no result was seen to leave.
    pub time: Duration,
    /// Results that had left the switch before.
    pub results: u64,
}

impl CardLink {
    /// Behind the switch's port of that number, which no host of `wires` has.
    pub(super) fn new(folder: &Path, wires: &Wires, number: usize, mtu: u16) -> Self {
        let (prefix, devices) = match wires {
            Wires::Namespaces(wires) => {
                let packets = |number, interface: &str| {
                    format!("net_af_packet{number},iface={interface},qdisc_bypass=1")
                };
                let at_switch = packets(number, &format!("port{number}"));
                (wires.host_prefix(number), [at_switch, packets(0, "eth0")])
            }
            Wires::Memif(_) => {
                let wires = Memif::new(folder.join("card-memif.sock"), mtu);
                let devices = [wires.device(number), wires.card_device(number)];
                (Vec::new(), devices)
            }
        };
        Self {
            prefix,
            devices,
            registers: folder.join("card-registers.sock"),
            card: None,
        }
    }

    pub(super) fn port(&self, mtu: u16) -> PortSection {
        PortSection {
            name: Some(PORT.into()),
            mtu,
            ..PortSection::new(self.devices[0].clone())
        }
    }

    pub(super) fn section(&self, jobs: usize) -> CardSection {
        CardSection {
            port: PORT.into(),
            registers: Registers::Socket(self.registers.clone()),
            jobs: CardJobs::List((0..jobs).map(job_id).collect()),
        }
    }
}

impl Cluster {
    fn card_link(&mut self) -> Result<&mut CardLink> {
        self.card.as_mut().context("a cluster without a card")
    }

    /// Starts the card, which must not run, and waits until the switch has found it.
    ///
    /// # Errors
    /// If it cannot be started, or the switch does not find it.
    pub fn start_card(&mut self) -> Result<()> {
        let cpus = Cpus::list(&self.cpus.hosts);
        let (program, log) = (self.spec.programs.join("tally-card"), self.file("card.log"));
        let link = self.card_link()?;
        ensure!(link.card.is_none(), "the card runs already");
        let mut command = prefixed(&link.prefix, Path::new("taskset"));
        command.args(["-c", &cpus]).arg(program).arg("run");
        command
            .arg("--port")
            .arg(&link.devices[1])
            .arg("--registers")
            .arg(&link.registers);
        link.card = Some(Program::start("card", command, &log)?);
        let start = Instant::now();
        loop {
            let report = self.switch_report()?.card.unwrap_or_default();
            if report.state == CardState::Working {
                return Ok(());
            }
            if let Some(card) = &mut self.card_link()?.card {
                ensure!(card.is_running()?, "the card ended:\n{}", card.log());
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "the switch does not find the card: {}",
                report.why.unwrap_or_default()
            );
            std::thread::sleep(ASK_EVERY);
        }
    }

    /// Kills the card when this number of results has left the switch and a job is on the card.
    /// Measures the time until the next results leave, while `is_running`.
    ///
    /// # Errors
    /// If it does not run, or the switch does not answer.
    pub fn kill_card(
        &mut self,
        results: u64,
        patience: Duration,
        mut is_running: impl FnMut() -> Result<bool>,
    ) -> Result<Standstill> {
        self.wait_for_results(results, patience)?;
        while is_running()? && !self.switch_report()?.jobs.iter().any(|job| job.on_card) {
            std::thread::sleep(ASK_EVERY);
        }
        let before = self.results()?;
        let card = self.card_link()?.card.take();
        let killed = Instant::now();
        card.context("the card does not run")?.kill()?;
        let (mut last, mut results) = (killed, before);
        let mut time = Duration::ZERO;
        // Until results leave and the time for which they may stop is over, or the job has ended.
        loop {
            let is_over = !is_running()?;
            let now = self.results()?;
            if now > results {
                time = time.max(last.elapsed());
                (last, results) = (Instant::now(), now);
            }
            if is_over || killed.elapsed() > WATCHED && time > Duration::ZERO {
                break;
            }
            ensure!(
                killed.elapsed() < patience,
                "the job has stood still since the card was killed"
            );
            std::thread::sleep(ASK_EVERY);
        }
        Ok(Standstill {
            time,
            results: before,
        })
    }
}
