//! The members of a cluster's jobs: workers and parameter servers, each on a host of its own.

use super::files::read_json;
use super::identity::{HostId, SWITCH_IP, job_id, key};
use super::process::Program;
use super::{Cluster, loss};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::time::Duration;
use tally_schema::agent::config::{PsConfig, PsJob, SwitchAddress, WorkerConfig, WorkerJob};
use tally_schema::agent::report::{PsReport, Report as WorkerReport};
use tally_wire::Key;

impl Cluster {
    /// Has workers that are started from now on write their results to files, as they do at first,
    /// or not.
    pub fn set_outputs(&mut self, outputs: bool) {
        self.outputs = outputs;
    }

    /// Has workers that are started from now on use this key, or their job's.
    pub fn set_worker_key(&mut self, key: Option<Key>) {
        self.spec.worker_key = key;
    }

    /// The host of a worker.
    #[must_use]
    pub fn worker_host(&self, job: usize, rank: u8) -> HostId {
        HostId(self.spec.hosts_of(job) + usize::from(rank))
    }

    /// The host of a job's parameter server for a part of its fragments.
    #[must_use]
    pub fn ps_host(&self, job: usize, part: u8) -> HostId {
        self.worker_host(job, self.spec.jobs[job] + part)
    }

    /// The parts that each job's fragments have.
    pub(super) fn parts(&self) -> std::ops::Range<u8> {
        0..self.spec.parameter_servers
    }

    /// What a worker is called in logs; its job is left out where there is one.
    pub(super) fn worker_name(&self, job: usize, rank: u8) -> String {
        match self.spec.jobs.len() {
            1 => format!("worker{rank}"),
            _ => format!("job{job}-worker{rank}"),
        }
    }

    pub(super) fn ps_name(&self, job: usize, part: u8) -> String {
        let name = match self.spec.parameter_servers {
            1 => "ps".to_owned(),
            _ => format!("ps{part}"),
        };
        match self.spec.jobs.len() {
            1 => name,
            _ => format!("job{job}-{name}"),
        }
    }

    /// Starts all workers of a job on one all-reduce, the worker of rank r with the arguments
    /// `arguments(r)` and its output at [`output`](Self::output).
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_workers(
        &self,
        job: usize,
        arguments: impl Fn(u8) -> Vec<String>,
    ) -> Result<Vec<Program>> {
        (0..self.spec.jobs[job])
            .map(|rank| self.start_worker(job, rank, arguments(rank)))
            .collect()
    }

    /// Starts one worker.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_worker(&self, job: usize, rank: u8, arguments: Vec<String>) -> Result<Program> {
        let host = self.wires.host(self.worker_host(job, rank));
        let name = self.worker_name(job, rank);
        let key = self.spec.worker_key.clone();
        let config = WorkerConfig {
            switch: SwitchAddress::new(SWITCH_IP),
            job: WorkerJob {
                id: job_id(job),
                key: key.unwrap_or_else(|| self::key(job)),
                workers: self.spec.jobs[job].into(),
                rank: Some(rank.into()),
                priority: None,
            },
            transport: host.transport.clone(),
            payload_bytes: self.spec.payload_bytes.into(),
            window: self.spec.window,
            timeouts: self.spec.timeouts,
        };
        let path = self.write(&format!("{name}.json"), &config)?;
        let mut command = self.on_host(&host, "tally-agent");
        command.arg("allreduce").arg("--config").arg(path);
        if self.outputs {
            command.arg("--output").arg(self.output(job, rank));
        }
        command
            .arg("--report")
            .arg(self.worker_report_path(job, rank));
        command.args(arguments);
        self.add_loss(&mut command, job, rank);
        Program::start(&name, command, &self.file(&format!("{name}.log")))
    }

    /// Where a worker writes its result.
    #[must_use]
    pub fn output(&self, job: usize, rank: u8) -> PathBuf {
        self.file(&format!("{}.safetensors", self.worker_name(job, rank)))
    }

    /// A worker's report, once it has ended.
    ///
    /// # Errors
    /// If there is none.
    pub fn worker_report(&self, job: usize, rank: u8) -> Result<WorkerReport> {
        read_json(&self.worker_report_path(job, rank))
    }

    fn worker_report_path(&self, job: usize, rank: u8) -> PathBuf {
        self.file(&format!("{}-report.json", self.worker_name(job, rank)))
    }

    /// Starts the parameter servers of a job, which must not run.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_ps(&mut self, job: usize) -> Result<()> {
        self.parts()
            .try_for_each(|part| self.start_ps_of(job, part))
    }

    /// Starts the parameter server of a part of a job, which must not run.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_ps_of(&mut self, job: usize, part: u8) -> Result<()> {
        let name = self.ps_name(job, part);
        ensure!(
            self.ps[job][usize::from(part)].is_none(),
            "{name} runs already"
        );
        let host = self.wires.host(self.ps_host(job, part));
        let config = PsConfig {
            switch: SwitchAddress::new(SWITCH_IP),
            jobs: vec![PsJob {
                part,
                parts: self.spec.parameter_servers,
                ..PsJob::new(job_id(job), key(job))
            }],
            transport: host.transport.clone(),
            log: Default::default(),
            metrics: None,
        };
        let path = self.write(&format!("{name}.json"), &config)?;
        let mut command = self.on_host(&host, "tally-agent");
        command.arg("ps").arg("--config").arg(path);
        command.arg("--report").arg(self.ps_report_path(job, part));
        self.add_loss(&mut command, job, loss::PS);
        let log = self.file(&format!("{name}.log"));
        self.ps[job][usize::from(part)] = Some(Program::start(&name, command, &log)?);
        Ok(())
    }

    /// Stops the parameter servers of a job and gives their reports, by part.
    ///
    /// # Errors
    /// If one does not run, does not stop, or says that it failed.
    pub fn stop_ps(&mut self, job: usize) -> Result<Vec<PsReport>> {
        let mut reports = Vec::new();
        for part in self.parts() {
            self.running_ps(job, part)?.stop(Duration::from_secs(10))?;
            reports.push(self.ps_report(job, part)?);
        }
        Ok(reports)
    }

    /// Kills the parameter server of a part of a job on the spot.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill_ps(&mut self, job: usize, part: u8) -> Result<()> {
        self.running_ps(job, part)?.kill()
    }

    /// The report of a PS that has been stopped.
    ///
    /// # Errors
    /// If there is none.
    pub fn ps_report(&self, job: usize, part: u8) -> Result<PsReport> {
        read_json(&self.ps_report_path(job, part))
    }

    fn running_ps(&mut self, job: usize, part: u8) -> Result<Program> {
        let program = self.ps[job][usize::from(part)].take();
        program.with_context(|| format!("the {} does not run", self.ps_name(job, part)))
    }

    fn ps_report_path(&self, job: usize, part: u8) -> PathBuf {
        self.file(&format!("{}-report.json", self.ps_name(job, part)))
    }
}
