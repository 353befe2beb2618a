//! The switch of a cluster: its configuration, its start and end, its counters.

use super::commands::prefixed;
use super::files::read_json;
use super::identity::{SWITCH_IP, SWITCH_MAC, job_id, key};
use super::process::Program;
use super::{Cluster, guests, switchml};
use anyhow::{Context, Result, ensure};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tally_engine::PolicyName;
use tally_schema::switch::config::{
    AddressConfig, Config, ControlSection, JobSection, PortSection,
};
use tally_schema::switch::report::Report as SwitchReport;

impl Cluster {
    /// Has the switch use another policy from its next start on.
    pub fn set_policy(&mut self, policy: PolicyName) {
        self.spec.policy = policy;
    }

    /// The switch's ports, one for each host.
    fn ports(&self) -> Vec<PortSection> {
        let links = self.spec.links();
        let mtu = links.mtu;
        let mut ports = Vec::new();
        let mut add = |name, host| {
            ports.push(PortSection {
                name: Some(name),
                mtu,
                ..PortSection::new(self.wires.device(host))
            });
        };
        for (job, &workers) in self.spec.jobs.iter().enumerate() {
            for rank in 0..workers {
                add(self.worker_name(job, rank), self.worker_host(job, rank));
            }
            for part in self.parts() {
                add(self.ps_name(job, part), self.ps_host(job, part));
            }
        }
        for (job, &workers) in self.spec.switchml.iter().enumerate() {
            for rank in 0..workers {
                add(switchml::name(job, rank), self.switchml_host(job, rank));
            }
        }
        for guest in 0..self.spec.guests {
            add(guests::name(guest), self.guest_host(guest));
        }
        ports.extend(self.card.as_ref().map(|link| link.port(mtu)));
        ports
    }

    /// The configuration that the switch is started with.
    #[must_use]
    pub fn switch_config(&self) -> Config {
        let address = AddressConfig::new(SWITCH_MAC, SWITCH_IP);
        let mut config = Config::new(address, self.ports());
        config.cores.clone_from(&self.cpus.switch);
        config.pool.policy = self.spec.policy;
        config.pool.slots = self.spec.slots;
        let jobs = self.spec.jobs.iter().enumerate();
        config.jobs = jobs
            .map(|(job, &workers)| JobSection {
                parameter_servers: self.spec.parameter_servers,
                ..JobSection::new(job_id(job), key(job), workers)
            })
            .collect();
        config.switchml = self.switchml_section();
        config.netreduce = self.spec.ring.then(|| self.netreduce_section());
        let card = self.card.as_ref();
        config.card = card.map(|link| link.section(self.spec.jobs.len()));
        config.window = self.spec.window;
        if let Some(ms) = self.spec.member_timeout_ms {
            config.member_timeout_ms = ms;
        }
        config.stats_socket = Some(self.file("switch.sock"));
        config.control = Some(ControlSection {
            socket: self.file("control.sock"),
            read_socket: Some(self.file("view.sock")),
            ..ControlSection::default()
        });
        config
    }

    /// Starts the switch, which must not run.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_switch(&mut self) -> Result<()> {
        let config = self.switch_config();
        self.start_switch_with(&config)
    }

    /// As [`start_switch`](Self::start_switch), with this configuration.
    ///
    /// # Errors
    /// If it ends at once.
    pub fn start_switch_with(&mut self, config: &Config) -> Result<()> {
        ensure!(self.switch.is_none(), "the switch runs already");
        let path = self.write("switch.json", config)?;
        let mut command = prefixed(
            &self.wires.switch_prefix(),
            &self.spec.programs.join("tally-switch"),
        );
        command
            .arg("--config")
            .arg(path)
            .arg("--report")
            .arg(self.file("switch-report.json"));
        let mut program = Program::start("switch", command, &self.file("switch.log"))?;
        program.wait_until("it listens", Duration::from_secs(20), |log| {
            log.contains("running on CPU")
        })?;
        self.switch = Some(program);
        Ok(())
    }

    /// Has the running switch read this as its configuration (SIGHUP), and waits until its log has
    /// one line more with `line`.
    ///
    /// # Errors
    /// If it does not run, ends, or does not say so.
    pub fn reload_switch(&mut self, config: &Config, line: &str) -> Result<()> {
        self.write("switch.json", config)?;
        let program = self.switch.as_mut().context("the switch does not run")?;
        program.reload(line)
    }

    /// Stops the switch and gives its report.
    ///
    /// # Errors
    /// If it does not run, does not stop, or says that it failed.
    pub fn stop_switch(&mut self) -> Result<SwitchReport> {
        let program = self.switch.take().context("the switch does not run")?;
        program.stop(Duration::from_secs(10))?;
        read_json(&self.file("switch-report.json"))
    }

    /// The running switch's counters.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn switch_report(&self) -> Result<SwitchReport> {
        let mut text = Vec::new();
        UnixStream::connect(self.file("switch.sock"))
            .and_then(|mut stream| stream.read_to_end(&mut text))
            .context("the switch's statistics")?;
        simd_json::from_slice(&mut text).context("the switch's statistics")
    }

    /// Sends the switch a signal by name.
    ///
    /// # Errors
    /// If no switch runs, or `kill` cannot be run.
    pub fn signal_switch(&self, signal: &str) -> Result<()> {
        let switch = self.switch.as_ref().context("no switch runs")?;
        switch.signal(signal)
    }

    /// Kills the switch on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_switch(&mut self) -> Result<()> {
        self.switch
            .take()
            .context("the switch does not run")?
            .kill()
    }
}
