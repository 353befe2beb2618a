//! `tally-testkit cluster`: a [cluster](crate::cluster) for programs in other languages.
//!
//! It starts a switch, a parameter server and agents for one job in network namespaces and prints
//! one line of JSON: `State`. Then it reads commands, one a line, and answers each
//! with the new state or `{"error": …}` on one line. When standard input ends, which it does when
//! the caller ends in any way, it ends all processes and removes namespaces and files.
//!
//! The catch: agents are on the first hosts of the workers; other hosts are idle.

use crate::cluster::{Cluster, Network, Process, Program, Spec, Timeouts};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use simd_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;

/// The only job.
const JOB: usize = 0;

/// What it reads, below `--help`.
pub const COMMANDS: &str = "\
Commands on standard input, one a line; NAME is switch, ps, agent0, agent1, …:
  kill NAME          SIGKILL
  start NAME         a new process in place of a killed one
  start agentN KEY   the same, with another key of the job (32 hex digits)";

/// What is started.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Number of workers of the job, 1 to 64
    #[arg(long)]
    workers: u8,

    /// Number of agents, each on a host of its own; rank r uses agent r modulo AGENTS [default:
    /// WORKERS]
    #[arg(long)]
    agents: Option<u8>,

    /// Ranks of each host, one worker of the switch and one agent; rank r uses agent r / N
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "agents")]
    ranks_per_host: u8,

    /// MTU of all links
    #[arg(long, default_value_t = 1500)]
    mtu: u16,

    /// Payload of a frame in bytes
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    payload: u16,

    /// Timeout of the agents while members are missing
    #[arg(long, default_value_t = 20_000, value_name = "MS")]
    join_ms: u64,

    /// Timeout of the agents without a result while the job runs
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    stall_ms: u64,

    /// Memory that each process may share with its agent, in units of 2^20 bytes
    #[arg(long, default_value_t = 1024)]
    memory_mib: u32,

    /// Folder of tally-switch and tally-agent [default: that of this program]
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

/// What runs.
#[derive(Debug, Serialize)]
struct State {
    /// For files of this run; the logs are in it.
    folder: PathBuf,
    /// The job's number.
    job: u16,
    /// The agent's socket of each rank.
    sockets: Vec<PathBuf>,
    /// The network namespaces: the switch's, each worker's, the parameter server's.
    namespaces: Vec<String>,
    /// Process ids by name.
    pids: BTreeMap<String, u32>,
}

/// Runs it until standard input ends.
///
/// # Errors
/// If the cluster cannot be started.
pub fn run(args: &Args) -> Result<()> {
    let mut served = Served::start(args)?;
    let mut out = std::io::stdout().lock();
    let mut answer = simd_json::to_string(&served.state()?)?;
    let mut lines = std::io::stdin().lock().lines();
    loop {
        writeln!(out, "{answer}")?;
        out.flush()?;
        let Some(line) = lines.next() else {
            return Ok(());
        };
        answer = match served.command(&line?).and_then(|()| served.state()) {
            Ok(state) => simd_json::to_string(&state)?,
            Err(error) => simd_json::to_string(&json!({ "error": format!("{error:#}") }))?,
        };
    }
}

struct Served {
    // Dropped before the cluster, which has their network.
    agents: Vec<Option<Program>>,
    cluster: Cluster,
    workers: u8,
    ranks_per_host: u8,
}

impl Served {
    fn start(args: &Args) -> Result<Self> {
        let &Args { workers, .. } = args;
        let each = args.ranks_per_host;
        ensure!(
            each > 0 && workers.is_multiple_of(each),
            "--ranks-per-host {each}: a divisor of {workers}, the number of workers"
        );
        let agents = args.agents.unwrap_or(workers / each);
        ensure!(
            (1..=workers).contains(&agents),
            "--agents {agents}: 1 to {workers}, the number of workers"
        );
        let mut spec = Spec {
            network: Network::Namespaces,
            jobs: vec![workers / each],
            share_cpus: true,
            mtu: Some(args.mtu),
            payload_bytes: args.payload,
            timeouts: Timeouts {
                join_ms: args.join_ms,
                stall_ms: args.stall_ms,
                ..Timeouts::default()
            },
            memory_mib: Some(args.memory_mib),
            ..Spec::default()
        };
        if let Some(programs) = &args.programs {
            spec.programs = programs.clone();
        }
        let cluster = Cluster::start(spec)?;
        let mut served = Self {
            agents: (0..agents).map(|_| None).collect(),
            cluster,
            workers,
            ranks_per_host: each,
        };
        for agent in 0..agents.into() {
            served.agents[agent] = Some(served.agent_at(agent, None)?);
        }
        Ok(served)
    }

    fn agent_at(&self, agent: usize, key: Option<&str>) -> Result<Program> {
        let key = key.map(str::parse).transpose()?;
        self.cluster.start_agent_where(JOB, agent as u8, |config| {
            let job = &mut config.jobs[0];
            job.workers = self.workers.into();
            job.ranks_per_host = self.ranks_per_host.into();
            if let Some(key) = key {
                job.key = key;
            }
        })
    }

    fn state(&self) -> Result<State> {
        let agents = self.agents.len() as u8;
        let named = |name: String, program: Option<&Program>| Some((name, program?.id()));
        let running = self.agents.iter().enumerate();
        let running = running.filter_map(|(n, agent)| named(format!("agent{n}"), agent.as_ref()));
        let switch = self.cluster.program(Process::Switch);
        let ps = self.cluster.program(Process::Ps);
        Ok(State {
            folder: self.cluster.folder().to_owned(),
            job: Cluster::job_id(JOB),
            sockets: (0..self.workers)
                .map(|rank| match self.ranks_per_host {
                    1 => rank % agents,
                    each => rank / each,
                })
                .map(|agent| self.cluster.agent_socket(JOB, agent))
                .collect(),
            namespaces: self.cluster.namespaces().to_vec(),
            pids: running
                .chain(named("switch".into(), switch))
                .chain(named("ps".into(), ps))
                .collect(),
        })
    }

    fn command(&mut self, line: &str) -> Result<()> {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["kill", "switch"] => self.cluster.kill_switch(),
            ["kill", "ps"] => self.cluster.kill_ps(JOB, 0),
            ["kill", name] => {
                let agent = self.agent(name)?;
                let program = self.agents[agent].take();
                program
                    .with_context(|| format!("{name} does not run"))?
                    .kill()
            }
            ["start", "switch"] => self.cluster.start_switch(),
            ["start", "ps"] => self.cluster.start_ps(JOB),
            ["start", name] => self.start_agent(name, None),
            ["start", name, key] => self.start_agent(name, Some(key)),
            _ => bail!("`{line}`: found no command, expected `kill NAME` or `start NAME`"),
        }
    }

    fn start_agent(&mut self, name: &str, key: Option<&str>) -> Result<()> {
        let at = self.agent(name)?;
        ensure!(self.agents[at].is_none(), "{name} runs already");
        self.agents[at] = Some(self.agent_at(at, key)?);
        Ok(())
    }

    /// The number of an agent.
    fn agent(&self, name: &str) -> Result<usize> {
        let number = name.strip_prefix("agent").and_then(|n| n.parse().ok());
        let number = number.filter(|&n: &usize| n < self.agents.len());
        number.with_context(|| {
            let last = self.agents.len() - 1;
            format!("`{name}`: found no process, expected switch, ps or agent0 to agent{last}")
        })
    }
}
