//! Agents on the hosts of workers, which serve training processes there.

use super::Cluster;
use super::identity::{SWITCH_IP, job_id, key};
use super::network::Wires;
use super::process::Program;
use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::time::Duration;
use tally_schema::agent::config::{AgentConfig, AgentJob, AgentTransport, SwitchAddress};

impl Cluster {
    /// Starts the agent of a worker's host, which serves training processes there, in namespaces.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent(&self, job: usize, rank: u8) -> Result<Program> {
        self.start_agent_where(job, rank, |_| {})
    }

    /// The same, with a configuration that `change` has changed.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent_where(
        &self,
        job: usize,
        rank: u8,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Result<Program> {
        let at = self.worker_host(job, rank);
        ensure!(
            matches!(self.wires, Wires::Namespaces(_)),
            "agents of hosts need the kernel's sockets"
        );
        let socket = self.agent_socket(job, rank);
        let workers = self.spec.jobs[job].into();
        let served = AgentJob::new(job_id(job), key(job), workers);
        let transport = AgentTransport::Udp { bind: self.ip(at) };
        let mut config = AgentConfig {
            socket: socket.clone(),
            payload_bytes: self.spec.payload_bytes.into(),
            window: self.spec.window,
            timeouts: self.spec.timeouts,
            ..AgentConfig::new(SwitchAddress::new(SWITCH_IP), transport, vec![served])
        };
        config.memory_mib = self.spec.memory_mib.unwrap_or(config.memory_mib);
        change(&mut config);
        let name = format!("agent-{}", self.worker_name(job, rank));
        let path = self.write(&format!("{name}.json"), &config)?;
        let mut command = self.on_host(&self.wires.host(at), "tally-agent");
        command.arg("serve").arg("--config").arg(path);
        self.add_loss(&mut command, job, rank);
        let mut program = Program::start(&name, command, &self.file(&format!("{name}.log")))?;
        // Its socket may be there already: a killed agent leaves it.
        program.wait_until("it listens", Duration::from_secs(20), |log| {
            log.contains("listening at")
        })?;
        Ok(program)
    }

    /// The socket of a worker's [agent](Self::start_agent).
    #[must_use]
    pub fn agent_socket(&self, job: usize, rank: u8) -> PathBuf {
        self.file(&format!("{}.sock", self.worker_name(job, rank)))
    }

    /// What the environment tells a training process of its job and its [agent](Self::start_agent).
    #[must_use]
    pub fn training_environment(&self, job: usize, rank: u8) -> [(&'static str, String); 2] {
        let socket = self.agent_socket(job, rank).display().to_string();
        [
            ("TALLY_JOB", job_id(job).to_string()),
            ("TALLY_SOCKET", socket),
        ]
    }
}
