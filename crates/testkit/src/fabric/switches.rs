//! The switches of a fabric: their configurations, their starts and ends, their counters.

use super::plan::SwitchId;
use super::{Fabric, Wires};
use crate::cluster::files::read_json;
use crate::cluster::{Program, prefixed};
use anyhow::{Context, Result, ensure};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tally_schema::switch::config::{AddressConfig, Config, ControlSection, PortSection};
use tally_schema::switch::report::Report;

/// How long a switch may take until it runs: several start on few CPUs.
const START_PATIENCE: Duration = Duration::from_secs(60);

impl Fabric {
    /// The configuration that a switch is started with.
    #[must_use]
    pub fn switch_config(&self, switch: SwitchId) -> Config {
        let plan = &self.plan;
        let address = AddressConfig::new(plan.mac(switch), plan.ip(switch));
        let mut config = Config::new(address, self.ports(switch));
        let name = plan.name(switch);
        config.name = Some(name.clone());
        config.cores = vec![self.cpus[switch.0 % self.cpus.len()]];
        config.fabric = Some(plan.fabric_section(switch));
        config.pool.policy = self.spec.policy;
        config.pool.slots = self.spec.slots;
        let jobs = (0..plan.jobs()).filter_map(|job| plan.job_section(job, switch));
        config.jobs = jobs.collect();
        config.window = self.spec.window;
        config.netreduce = self.netreduce_section(switch);
        if let Some(ms) = self.spec.member_timeout_ms {
            config.member_timeout_ms = ms;
        }
        config.stats_socket = Some(self.stats_socket(switch));
        config.control = Some(ControlSection {
            socket: self.control_socket(switch),
            ..ControlSection::default()
        });
        config
    }

    /// A switch's ports: those of its hosts, then those of its links.
    fn ports(&self, switch: SwitchId) -> Vec<PortSection> {
        let plan = &self.plan;
        let mut ports = Vec::new();
        let mut add = |name, device: String| {
            ports.push(PortSection {
                name: Some(name),
                mtu: self.spec.mtu,
                ..PortSection::new(device)
            });
        };
        let own = plan.name(switch);
        let mut number = 0;
        for (host, _) in plan.hosts_of(switch) {
            let device = match &self.wires {
                Wires::Namespaces(wires) => wires.host_device(host, number),
                Wires::Memif(wires) => wires.port_device(&own, number),
            };
            add(plan.host_name(host), device);
            number += 1;
        }
        for (link, other) in plan.links_of(switch) {
            let is_spine = plan.is_spine(switch);
            let spine = if is_spine { &own } else { &plan.name(other) };
            let device = match &self.wires {
                Wires::Namespaces(wires) => wires.link_device(link, number),
                Wires::Memif(wires) => wires.link_device(spine, link, number, is_spine),
            };
            add(plan.link_name(link, switch), device);
            number += 1;
        }
        ports
    }

    fn stats_socket(&self, switch: SwitchId) -> PathBuf {
        self.file(&format!("{}.sock", self.plan.name(switch)))
    }

    /// Where a switch takes requests.
    #[must_use]
    pub fn control_socket(&self, switch: SwitchId) -> PathBuf {
        self.file(&format!("{}-control.sock", self.plan.name(switch)))
    }

    /// The file that a switch is started with.
    #[must_use]
    pub fn switch_file(&self, switch: SwitchId) -> PathBuf {
        self.file(&format!("{}.json", self.plan.name(switch)))
    }

    /// Starts all switches, the spines first: over memif they are the servers.
    pub(super) fn start_switches(&mut self) -> Result<()> {
        let mut starting = Vec::new();
        for switch in self.plan.switches() {
            starting.push(self.launch(switch, &self.switch_config(switch))?);
            let is_last_spine = switch.0 + 1 == self.spec.shape.spines;
            if is_last_spine || switch.0 + 1 == self.switches.len() {
                for mut program in starting.drain(..) {
                    running(&mut program)?;
                    let at = self.switches.iter().position(Option::is_none);
                    self.switches[at.context("a place")?] = Some(program);
                }
            }
        }
        Ok(())
    }

    fn launch(&self, switch: SwitchId, config: &Config) -> Result<Program> {
        let name = self.plan.name(switch);
        let path = self.write(&format!("{name}.json"), config)?;
        let prefix = match &self.wires {
            Wires::Namespaces(wires) => wires.switch_prefix(switch),
            Wires::Memif(_) => Vec::new(),
        };
        let mut command = prefixed(&prefix, &self.spec.programs.join("tally-switch"));
        command.arg("--config").arg(path);
        command.arg("--report").arg(self.report_file(&name));
        Program::start(&name, command, &self.file(&format!("{name}.log")))
    }

    fn report_file(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}-report.json"))
    }

    /// Starts a switch, which must not run.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_switch(&mut self, switch: SwitchId) -> Result<()> {
        self.start_switch_with(switch, &self.switch_config(switch))
    }

    /// As [`start_switch`](Self::start_switch), with this configuration.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_switch_with(&mut self, switch: SwitchId, config: &Config) -> Result<()> {
        let name = self.plan.name(switch);
        ensure!(self.switches[switch.0].is_none(), "{name} runs already");
        let mut program = self.launch(switch, config)?;
        running(&mut program)?;
        self.switches[switch.0] = Some(program);
        Ok(())
    }

    /// Gives a running switch another configuration and waits until its log has `line` once more.
    ///
    /// # Errors
    /// If the switch does not run, ends, or does not say so.
    pub fn reload_switch(&mut self, switch: SwitchId, config: &Config, line: &str) -> Result<()> {
        let name = self.plan.name(switch);
        self.write(&format!("{name}.json"), config)?;
        let program = self.switches[switch.0].as_mut();
        program
            .with_context(|| format!("{name} does not run"))?
            .reload(line)
    }

    /// Kills a switch on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_switch(&mut self, switch: SwitchId) -> Result<()> {
        self.running_switch(switch)?.kill()
    }

    fn running_switch(&mut self, switch: SwitchId) -> Result<Program> {
        let program = self.switches[switch.0].take();
        program.with_context(|| format!("{} does not run", self.plan.name(switch)))
    }

    /// Kills a switch on the spot, as a crash would, and starts it again. Returns how long that
    /// took.
    ///
    /// # Errors
    /// If it did not run, cannot be started, or the network does not carry it.
    pub fn restart(&mut self, switch: SwitchId) -> Result<Duration> {
        ensure!(
            self.spec.network.carries_restarts(),
            "{} cannot come back: over memif a process connects once in its life; restarts need \
             network namespaces (root)",
            self.plan.name(switch)
        );
        let start = Instant::now();
        self.kill_switch(switch)?;
        self.start_switch(switch)?;
        Ok(start.elapsed())
    }

    /// Stops a switch and gives its report.
    ///
    /// # Errors
    /// If it does not run, does not stop, or says that it failed.
    pub fn stop_switch(&mut self, switch: SwitchId) -> Result<Report> {
        self.running_switch(switch)?.stop(Duration::from_secs(20))?;
        read_json(&self.report_file(&self.plan.name(switch)))
    }

    /// What a switch has printed since it was started last.
    #[must_use]
    pub fn switch_log(&self, switch: SwitchId) -> String {
        let path = self.file(&format!("{}.log", self.plan.name(switch)));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// A running switch's counters.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn switch_report(&self, switch: SwitchId) -> Result<Report> {
        let name = self.plan.name(switch);
        let mut text = Vec::new();
        UnixStream::connect(self.stats_socket(switch))
            .and_then(|mut stream| stream.read_to_end(&mut text))
            .with_context(|| format!("{name}'s statistics"))?;
        simd_json::from_slice(&mut text).with_context(|| format!("{name}'s statistics"))
    }

    /// Results that have left a switch since it started.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn results(&self, switch: SwitchId) -> Result<u64> {
        let report = self.switch_report(switch)?;
        let count = |name: &str| report.counters.get(name).copied().unwrap_or(0);
        Ok(count("results") + count("results_from_ps"))
    }

    /// Waits until that many results have left a switch; returns how many have.
    ///
    /// # Errors
    /// If they do not in time, or the switch does not answer.
    pub fn wait_for_results(
        &self,
        switch: SwitchId,
        results: u64,
        patience: Duration,
    ) -> Result<u64> {
        let start = Instant::now();
        loop {
            let now = self.results(switch)?;
            if now >= results {
                return Ok(now);
            }
            let name = self.plan.name(switch);
            ensure!(
                start.elapsed() <= patience,
                "{name}: {now} results left in {patience:?}, expected {results}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn running(program: &mut Program) -> Result<()> {
    program.wait_until("it listens", START_PATIENCE, |log| {
        log.contains("running on CPU")
    })
}
