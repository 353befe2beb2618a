//! The agent of a host: takes part in jobs for the processes that train on it.
//!
//! One thread lets processes in, at the socket, and tells the status. Each process has a session of
//! its own: what it asks for, what comes from the network and its timers are the events of one loop
//! (`rank.rs`). Over the kernel's UDP each session has a thread and a socket, so that none can keep
//! another waiting. A DPDK port belongs to one thread, on which all sessions take turns
//! (`port.rs`). If a session fails, so does its process alone.
//!
//! # The catches
//!
//! * A user who may connect may be any rank of any of the configured jobs. Agents of tenants who do
//!   not trust each other need sockets, configurations and groups of their own.

mod failure;
#[cfg(feature = "dpdk")]
mod port;
mod rank;
mod status;
mod warnings;

use crate::config::{AgentConfig, AgentJob, AgentTransport};
use crate::doctor::{self, Room};
use crate::error::AgentError;
use crate::link::LinkError;
use crate::link::loss::Loss;
use crate::log::Log;
use crossbeam_channel::Sender;
use nix::unistd::Group;
use rank::{PendingProcess, Task};
use status::Shared;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_local::{
    Access, Caller, Class, Failure, Hello, Limits, Listener, PendingPeer, StatusClient,
};
use tally_program::service::{self, Watchdog};
use tally_schema::agent::status::{JobStatus, Status};

/// How long to wait at most before looking at the stop flag again.
const IDLE_MAX: Duration = Duration::from_millis(100);
/// For all sessions to leave, once the agent is to stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// For a status client to read it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Who may be reading it at a time.
const ANSWERS_MAX: usize = 8;
/// Of one process.
const REGIONS_MAX: u32 = 256;

/// Serves the processes of this host until `stop` becomes true. Their jobs fail then, in words.
///
/// # Errors
/// If the socket cannot be used, or DPDK does not start.
pub fn run(
    config: &AgentConfig,
    loss: Option<Loss>,
    log: Log,
    stop: &Arc<AtomicBool>,
) -> Result<(), AgentError> {
    let mut listener = Listener::bind(&config.socket, access(config)?)?;
    log.info(format_args!("listening at {}", config.socket.display()));
    let warnings = warnings_of(config, log);
    let mut agent = Agent {
        config,
        loss,
        log,
        stop,
        began: Instant::now(),
        ranks: HashMap::new(),
        port: PortThread::start(config, log, stop)?,
        answering: Arc::default(),
        warnings,
    };
    service::ready(&format!("listening at {}", config.socket.display()));
    let mut watchdog = Watchdog::from_environment();
    let outcome = loop {
        if stop.load(Ordering::Relaxed) {
            break Ok(());
        }
        let caller = listener.next(IDLE_MAX);
        agent.reap();
        // The listener has answered, and nothing of a session has held up this thread.
        watchdog.alive(Instant::now());
        if agent.port.as_ref().is_some_and(PortThread::is_over) {
            break Ok(());
        }
        match caller {
            Ok(Some(Caller::Process(pending))) => agent.admit(pending),
            Ok(Some(Caller::Status(client))) => agent.answer(client),
            Ok(None) => {}
            Err(error) => break Err(error.into()),
        }
    };
    service::stopping();
    stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + STOP_WITHIN;
    let is_over = |agent: &mut Agent| {
        agent.reap();
        agent.ranks.is_empty() && agent.port.as_ref().is_none_or(PortThread::is_over)
    };
    while !is_over(&mut agent) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    outcome.and(agent.port.map_or(Ok(()), PortThread::end))
}

/// What makes all jobs slower than they could be, said now and kept for the status.
fn warnings_of(config: &AgentConfig, log: Log) -> Vec<String> {
    let AgentTransport::Udp { bind } = config.transport else {
        return Vec::new();
    };
    match doctor::room_in(bind, config.payload_bytes as usize) {
        Some(Room::Unused(warning)) => {
            log.warn(&warning);
            vec![warning]
        }
        // Whether the network has it, only who runs it knows.
        Some(Room::Possible(hint)) => {
            log.info(hint);
            Vec::new()
        }
        None => Vec::new(),
    }
}

fn access(config: &AgentConfig) -> Result<Access, AgentError> {
    let group = config.access.group.as_ref().map(|name| {
        let found = Group::from_name(name).map_err(|why| {
            let what = format!("access.group: looking up group `{name}`");
            AgentError::from(LinkError::system(what, why))
        })?;
        found.map(|group| group.gid.as_raw()).ok_or_else(|| {
            AgentError::Options(format!(
                "access.group: there is no group `{name}` on this host (groupadd)"
            ))
        })
    });
    let (mode, group) = (config.access.mode.0, group.transpose()?);
    Ok(Access { mode, group })
}

struct Agent<'a> {
    config: &'a AgentConfig,
    loss: Option<Loss>,
    log: Log,
    stop: &'a Arc<AtomicBool>,
    began: Instant,
    /// By job and rank. The thread that serves one has the other clone, until all is over.
    ranks: HashMap<(u16, u8), Arc<Shared>>,
    /// If all processes share a port.
    port: Option<PortThread>,
    answering: Arc<AtomicUsize>,
    /// What makes all jobs slower than they could be.
    warnings: Vec<String>,
}

/// The thread that owns the DPDK port.
struct PortThread {
    pending_processes: Sender<PendingProcess>,
    thread: JoinHandle<Result<(), AgentError>>,
}

impl PortThread {
    /// Starts it, if it is configured.
    #[cfg(feature = "dpdk")]
    fn start(
        config: &AgentConfig,
        log: Log,
        stop: &Arc<AtomicBool>,
    ) -> Result<Option<Self>, AgentError> {
        if !matches!(config.transport, AgentTransport::Dpdk { .. }) {
            return Ok(None);
        }
        let (pending_processes, queue) = crossbeam_channel::bounded(config.processes.into());
        let (config, stop) = (config.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("port".into())
            .spawn(move || port::serve(&config, &queue, log, &stop))
            .map_err(|why| LinkError::system("no thread for the port", why))?;
        Ok(Some(Self {
            pending_processes,
            thread,
        }))
    }

    #[cfg(not(feature = "dpdk"))]
    fn start(
        config: &AgentConfig,
        _: Log,
        _: &Arc<AtomicBool>,
    ) -> Result<Option<Self>, AgentError> {
        match config.transport {
            AgentTransport::Dpdk { .. } => Err(LinkError::NoDpdk.into()),
            AgentTransport::Udp { .. } => Ok(None),
        }
    }

    fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Why it ended, if it has.
    fn end(self) -> Result<(), AgentError> {
        if !self.is_over() {
            return Ok(());
        }
        self.thread.join().unwrap_or_else(|_| {
            let crash = std::io::Error::other("the port's thread crashed, a bug of the agent's");
            Err(LinkError::system("the port", crash).into())
        })
    }
}

impl Agent<'_> {
    /// Forgets those whose session is over.
    fn reap(&mut self) {
        self.ranks.retain(|_, shared| Arc::strong_count(shared) > 1);
    }

    fn admit(&mut self, pending: PendingPeer) {
        let Hello { job, rank, .. } = pending.hello();
        let (pid, uid) = (pending.pid(), pending.uid());
        let name = format!("job {job} rank {rank}");
        let worker = match self.check(&pending.hello()) {
            Ok(of) => self.config.worker(of, rank),
            Err(failure) => {
                let why = &failure.text;
                self.log
                    .warn(format_args!("{name}: process {pid} refused: {why}"));
                pending.refuse(failure);
                return;
            }
        };
        let limits = Limits {
            regions: REGIONS_MAX,
            memory_bytes: u64::from(self.config.memory_mib) << 20,
            ..Limits::default()
        };
        let shared = Arc::new(Shared::new(
            rank,
            pid,
            uid,
            worker.window,
            pending.presence(),
        ));
        let task = Task {
            name: name.clone(),
            config: worker,
            loss: self.loss.map(|loss| Loss {
                seed: loss.seed + u64::from(rank),
                ..loss
            }),
            shared: shared.clone(),
            stop: self.stop.clone(),
            log: self.log,
        };
        // The peer is made in its thread: nothing of a process's own making is dropped in this one.
        let process = PendingProcess {
            task,
            pending,
            limits,
        };
        let begun = match &self.port {
            // There is room for all that may be here.
            Some(port) => port
                .pending_processes
                .try_send(process)
                .map_err(|why| why.to_string()),
            None => std::thread::Builder::new()
                .name(format!("{job}.{rank}"))
                .spawn(move || process.run())
                .map(drop)
                .map_err(|why| why.to_string()),
        };
        match begun {
            Ok(()) => {
                self.log
                    .info(format_args!("{name}: process {pid} of user {uid}"));
                self.ranks.insert((job, rank), shared);
            }
            // The process has gone with it, and sees the connection end.
            Err(why) => self
                .log
                .error(format_args!("{name}: no thread for process {pid}: {why}")),
        }
    }

    /// The job that a process may take part in.
    fn check(&self, hello: &Hello) -> Result<&AgentJob, Failure> {
        let Hello { job, rank, workers } = *hello;
        let jobs = &self.config.jobs;
        let Some(of) = jobs.iter().find(|it| it.id == job) else {
            let known: Vec<_> = jobs.iter().map(|it| it.id.to_string()).collect();
            let text = format!(
                "this agent's configuration has no job {job} (`jobs`: {})",
                known.join(", ")
            );
            return Err(Failure::new(Class::Job, text));
        };
        if workers != of.workers {
            let text = format!(
                "the process expects {workers} workers, and the agent's configuration has {} for job {job}",
                of.workers
            );
            return Err(Failure::new(Class::Workers, text));
        }
        if rank >= workers {
            let text = format!(
                "job {job} has no rank {rank}: expected 0 to {}, as there are {workers} workers",
                workers - 1
            );
            return Err(Failure::new(Class::Rank, text));
        }
        if let Some(shared) = self.ranks.get(&(job, rank)) {
            let pid = shared.pid();
            return Err(if shared.is_leaving() {
                let text = format!("process {pid} has just ended and is leaving; try again");
                Failure::new(Class::Leaving, text)
            } else {
                let text = format!("process {pid} is that rank already");
                Failure::new(Class::Taken, text)
            });
        }
        if self.ranks.len() >= usize::from(self.config.processes) {
            let text = format!(
                "the agent serves {} processes already (`processes` in its configuration)",
                self.ranks.len()
            );
            return Err(Failure::new(Class::Limit, text));
        }
        Ok(of)
    }

    fn answer(&self, client: StatusClient) {
        if self.answering.fetch_add(1, Ordering::Relaxed) >= ANSWERS_MAX {
            self.answering.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let text = self.status().to_json();
        let answering = self.answering.clone();
        std::thread::spawn(move || {
            client.answer(&text, ANSWER_WITHIN);
            answering.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn status(&self) -> Status {
        let job = |of: &AgentJob| {
            let ranks = self.ranks.iter().filter(|((job, _), _)| *job == of.id);
            let mut ranks: Vec<_> = ranks.map(|(_, it)| it.status()).collect();
            ranks.sort_by_key(|it| it.rank);
            JobStatus {
                job: of.id,
                workers: of.workers,
                ranks,
            }
        };
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            seconds: self.began.elapsed().as_secs_f64(),
            switch: self.config.switch.address.to_string(),
            warnings: self.warnings.clone(),
            jobs: self.config.jobs.iter().map(job).collect(),
        }
    }
}
