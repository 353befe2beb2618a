//! The workers and parameter servers of a fabric's jobs, each on a host of its own.

use super::Fabric;
use super::plan::{Host, HostRole, SwitchId, job_id, key};
use crate::cluster::files::read_json;
use crate::cluster::{Program, prefixed};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tally_schema::agent::config::{
    AgentConfig, AgentTransport, PsConfig, PsJob, SwitchAddress, WorkerConfig, WorkerJob,
};
use tally_schema::agent::report::Report as WorkerReport;

impl Fabric {
    pub(super) fn command_on(&self, host: usize, program: &str) -> Command {
        prefixed(&self.host_prefix(host), &self.spec.programs.join(program))
    }

    /// The file of a worker, with this suffix.
    fn worker_file(&self, job: usize, rank: u16, suffix: &str) -> PathBuf {
        self.file(&format!("job{job}-worker{rank}{suffix}"))
    }

    /// Where a worker writes its result.
    #[must_use]
    pub fn output(&self, job: usize, rank: u16) -> PathBuf {
        self.worker_file(job, rank, ".safetensors")
    }

    /// A worker's report, once it has ended.
    ///
    /// # Errors
    /// If there is none.
    pub fn worker_report(&self, job: usize, rank: u16) -> Result<WorkerReport> {
        read_json(&self.worker_file(job, rank, "-report.json"))
    }

    /// Starts all workers of a job on one all-reduce, the worker of rank r with the arguments
    /// `arguments(r)` and its output at [`output`](Self::output).
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_workers(
        &self,
        job: usize,
        arguments: impl Fn(u16) -> Vec<String>,
    ) -> Result<Vec<Program>> {
        (0..self.spec.shape.total() as u16)
            .map(|rank| self.start_worker(job, rank, arguments(rank)))
            .collect()
    }

    /// Starts one worker.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_worker(&self, job: usize, rank: u16, arguments: Vec<String>) -> Result<Program> {
        let host = self.plan.host(HostRole::Worker(job, rank));
        let host = host.with_context(|| format!("job {job} has no rank {rank}"))?;
        let leaf = self.plan.leaf(self.plan.hosts()[host].leaf);
        let config = WorkerConfig {
            switch: SwitchAddress::new(self.plan.ip(leaf)),
            job: WorkerJob {
                id: job_id(job),
                key: key(job),
                workers: self.spec.shape.total() as u16,
                rank: Some(rank),
                priority: None,
            },
            transport: self.transport(host),
            payload_bytes: self.spec.payload_bytes.into(),
            window: self.spec.window,
            timeouts: self.spec.timeouts,
        };
        let name = self.plan.host_name(host);
        let path = self.write(&format!("{name}.json"), &config)?;
        let mut command = self.command_on(host, "tally-agent");
        command.arg("allreduce").arg("--config").arg(path);
        command.arg("--output").arg(self.output(job, rank));
        let report = self.worker_file(job, rank, "-report.json");
        command.arg("--report").arg(report).args(arguments);
        self.add_loss(&mut command, host);
        Program::start(&name, command, &self.file(&format!("{name}.log")))
    }

    /// Starts the agent of a worker's host, which knows no job, in namespaces. `change` changes its
    /// configuration, whose file is named as [`agent_file`](Self::agent_file) says.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent(
        &self,
        job: usize,
        rank: u16,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Result<Program> {
        let host = self.plan.host(HostRole::Worker(job, rank));
        let host = host.with_context(|| format!("job {job} has no rank {rank}"))?;
        ensure!(
            self.namespaces().is_some(),
            "agents of hosts need the kernel's sockets"
        );
        let Host { ip, leaf, .. } = self.plan.hosts()[host];
        let switch = SwitchAddress::new(self.plan.ip(self.plan.leaf(leaf)));
        let transport = AgentTransport::Udp { bind: ip };
        let mut config = AgentConfig {
            socket: self.agent_file(job, rank, "sock"),
            payload_bytes: self.spec.payload_bytes.into(),
            window: self.spec.window,
            timeouts: self.spec.timeouts,
            ..AgentConfig::new(switch, transport, Vec::new())
        };
        change(&mut config);
        let path = self.agent_file(job, rank, "json");
        let name = format!("agent-{}", self.plan.host_name(host));
        self.write(&format!("{name}.json"), &config)?;
        let mut command = self.command_on(host, "tally-agent");
        command.arg("serve").arg("--config").arg(path);
        let log = self.agent_file(job, rank, "log");
        let mut program = Program::start(&name, command, &log)?;
        program.wait_until("it listens", Duration::from_secs(20), |log| {
            log.contains("listening at")
        })?;
        Ok(program)
    }

    /// A file of the [agent](Self::start_agent) of a worker's host: `json`, `sock` or `log`.
    #[must_use]
    pub fn agent_file(&self, job: usize, rank: u16, end: &str) -> PathBuf {
        self.file(&format!("agent-job{job}-worker{rank}.{end}"))
    }

    /// Every process draws its own numbers.
    fn add_loss(&self, command: &mut Command, host: usize) {
        if self.spec.loss > 0.0 {
            let seed = self.spec.loss_seed.wrapping_mul(1_000_000);
            let seed = seed.wrapping_add(host as u64);
            command.arg("--loss").arg(self.spec.loss.to_string());
            command.arg("--loss-seed").arg(seed.to_string());
        }
    }

    pub(super) fn start_all_ps(&mut self) -> Result<()> {
        let switches: BTreeSet<_> = (self.plan.ps_hosts()).map(|(_, of, _)| of).collect();
        switches.into_iter().try_for_each(|it| self.start_ps(it))
    }

    /// Starts the parameter servers of a switch, which must not run, for the jobs of the switch.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_ps(&mut self, switch: SwitchId) -> Result<()> {
        let jobs = 0..self.plan.jobs();
        let jobs: Vec<_> = jobs
            .filter(|&job| self.plan.job_section(job, switch).is_some())
            .collect();
        self.start_ps_for(switch, &jobs)
    }

    /// The places of a switch's parameter servers, with their hosts and parts.
    fn ps_of(&self, switch: SwitchId) -> Result<Vec<(usize, usize, u8)>> {
        let all = self.plan.ps_hosts().enumerate();
        let own = all.filter(|(_, (_, of, _))| *of == switch);
        let own: Vec<_> = own.map(|(at, (host, _, part))| (at, host, part)).collect();
        let name = self.plan.name(switch);
        ensure!(!own.is_empty(), "{name} has no parameter server");
        Ok(own)
    }

    /// As [`start_ps`](Self::start_ps), for these jobs.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_ps_for(&mut self, switch: SwitchId, jobs: &[usize]) -> Result<()> {
        for (at, host, part) in self.ps_of(switch)? {
            let name = self.plan.host_name(host);
            ensure!(self.ps[at].is_none(), "{name} runs already");
            let jobs = jobs.iter().map(|&job| PsJob {
                part,
                parts: self.spec.parameter_servers,
                ..PsJob::new(job_id(job), key(job))
            });
            let config = PsConfig {
                switch: SwitchAddress::new(self.plan.ip(switch)),
                jobs: jobs.collect(),
                transport: self.transport(host),
                log: Default::default(),
                metrics: None,
            };
            let path = self.write(&format!("{name}.json"), &config)?;
            let mut command = self.command_on(host, "tally-agent");
            command.arg("ps").arg("--config").arg(path);
            self.add_loss(&mut command, host);
            let log = self.file(&format!("{name}.log"));
            self.ps[at] = Some(Program::start(&name, command, &log)?);
        }
        Ok(())
    }

    /// Kills the parameter servers of a switch on the spot.
    ///
    /// # Errors
    /// If one does not run.
    pub fn kill_ps(&mut self, switch: SwitchId) -> Result<()> {
        for (at, _, _) in self.ps_of(switch)? {
            let program = self.ps[at].take();
            program
                .context("the parameter server does not run")?
                .kill()?;
        }
        Ok(())
    }

    /// Stops all parameter servers.
    ///
    /// # Errors
    /// If one does not stop, or says that it failed.
    pub fn stop_all_ps(&mut self) -> Result<()> {
        for program in self.ps.iter_mut().filter_map(Option::take) {
            program.stop(Duration::from_secs(20))?;
        }
        Ok(())
    }
}
