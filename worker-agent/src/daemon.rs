//! The agent of a host: takes part in jobs for the processes that train on it.
//!
//! One thread lets processes in, at the socket, and tells the status. Each process has a session of
//! its own, or shares it with the other ranks of this host that are one worker: what they ask for,
//! what comes from the network and its timers are the events of one loop (`worker.rs`). Over the
//! kernel's UDP each session has a thread and a socket, so that none can keep another waiting. A
//! DPDK port belongs to one thread, on which all sessions take turns (`port.rs`). If a session
//! fails, so do its processes alone.
//!
//! # The catches
//!
//! * A user who may connect may be any rank of any of the configured jobs. Agents of tenants who do
//!   not trust each other need sockets, configurations and groups of their own.

mod communicator;
mod control;
mod execute;
mod failure;
mod gather;
mod live;
mod orders;
#[cfg(feature = "dpdk")]
mod port;
mod rank;
mod rina;
mod ring;
mod server;
mod status;
mod succession;
mod warnings;
mod worker;

use crate::config::{AgentConfig, AgentJob, AgentRing, AgentTransport};
use crate::doctor::{self, Room};
use crate::error::AgentError;
use crate::link::LinkError;
use crate::link::loss::Loss;
use crate::log::Log;
use control::ControlSocket;
use crossbeam_channel::{Receiver, Sender};
use execute::Upgrade;
use live::Live;
use nix::unistd::Group;
use orders::Asked;
use rank::{PendingProcess, Task};
use server::{PortServer, ServerHandle};
use status::Shared;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
pub use succession::{OPTION as TAKE_OVER, Origin};
use succession::{Predecessor, Retired};
use tally_local::{
    Access, Caller, Class, Failure, Hello, Limits, Listener, PendingPeer, StatusClient,
};
use tally_program::service::{self, Watchdog};
use tally_schema::agent::status::{JobStatus, RankStatus, Status};
use worker::Mailbox;

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

/// What an agent is started with.
pub struct Start {
    /// Its configuration file, to be read again.
    pub path: PathBuf,
    /// What is in it.
    pub config: AgentConfig,
    /// Losses on purpose.
    pub loss: Option<Loss>,
    /// Where it says what happens.
    pub log: Log,
    /// Ends the agent when it becomes true. The jobs of its processes fail then, in words.
    pub stop: Arc<AtomicBool>,
    /// Makes the agent read its file again when it becomes true, and becomes false.
    pub reload: Arc<AtomicBool>,
    /// How to start it again.
    pub origin: Origin,
    /// An agent at standard input hands its place over.
    pub takes_over: bool,
}

/// Serves the processes of this host until it is told to stop, or the last one has left after
/// another agent took its place.
///
/// # Errors
/// If the socket cannot be used, or DPDK does not start.
pub fn run(start: Start) -> Result<(), AgentError> {
    let (log, stop) = (start.log, start.stop.clone());
    let mut live = Live::new(start.path, start.config);
    let config = live.config();
    let socket = config.socket.clone();
    let listener = if start.takes_over {
        let (predecessor, listener, version) = Predecessor::at_stdin(&socket)?;
        // What can fail is before this.
        access(config).inspect_err(|error| predecessor.fail(error))?;
        predecessor.replace()?;
        live.continue_from(version);
        listener
    } else {
        Listener::bind(&socket, access(config)?)?
    };
    Agent::open(
        live,
        listener,
        start.loss,
        log,
        &stop,
        start.reload,
        start.origin,
    )?
    .serve()
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

struct Agent {
    live: Live,
    loss: Option<Loss>,
    log: Log,
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    origin: Origin,
    listener: Listener,
    began: Instant,
    /// By job and rank. The thread that serves one has the other clone, until all is over.
    ranks: HashMap<(u16, u16), Arc<Shared>>,
    /// Workers that wait for more processes of this host, by job and first rank. The thread of one
    /// has the other clone, until all is over.
    workers: HashMap<(u16, u16), Arc<Mailbox>>,
    /// If all processes share a port.
    port: Option<PortThread>,
    /// If a parameter server is configured.
    server: Option<ServerHandle>,
    answering: Arc<AtomicUsize>,
    /// What makes all jobs slower than they could be.
    warnings: Vec<String>,
    /// New processes are refused.
    is_draining: bool,
    /// Agents before this one that still serve processes.
    before: Retired,
    orders: Receiver<Asked>,
    /// Once it has retired, at a path of its own, for its successor to call.
    control: Option<ControlSocket>,
    /// Its thread, which has answers to give.
    closing: Option<JoinHandle<()>>,
    /// A successor that is being started.
    upgrade: Option<Upgrade>,
    /// Another agent listens now: the socket at which this one tells its status.
    retired: Option<(PathBuf, Listener)>,
}

impl Agent {
    fn open(
        live: Live,
        mut listener: Listener,
        loss: Option<Loss>,
        log: Log,
        stop: &Arc<AtomicBool>,
        reload: Arc<AtomicBool>,
        origin: Origin,
    ) -> Result<Self, AgentError> {
        let config = live.config();
        listener.sign()?;
        log.info(format_args!("listening at {}", config.socket.display()));
        let warnings = warnings_of(config, log);
        let (mut server, mut of_port) = (None, None);
        if let Some(config) = config.parameter_server() {
            let (handle, rest) = ServerHandle::start(config, loss, log)?;
            (server, of_port) = (Some(handle), rest);
        }
        let port = PortThread::start(config, of_port, log, stop)?;
        let (control, orders) = ControlSocket::open(config.control_socket(), config, log)?;
        service::ready(&format!("listening at {}", config.socket.display()));
        Ok(Self {
            before: Retired::of(&config.socket),
            live,
            loss,
            log,
            stop: stop.clone(),
            reload,
            origin,
            listener,
            began: Instant::now(),
            ranks: HashMap::new(),
            workers: HashMap::new(),
            port,
            server,
            answering: Arc::default(),
            warnings,
            is_draining: false,
            orders,
            control: Some(control),
            closing: None,
            upgrade: None,
            retired: None,
        })
    }

    fn serve(mut self) -> Result<(), AgentError> {
        let mut watchdog = Watchdog::from_environment();
        let outcome = loop {
            if self.stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            if let Err(error) = self.turn() {
                break Err(error);
            }
            // The listener has answered, and nothing of a session has held up this thread.
            watchdog.alive(Instant::now());
            if self.port.as_ref().is_some_and(PortThread::is_over) {
                break Ok(());
            }
            if self.retired.is_some() && self.ranks.is_empty() {
                self.log.info("the last process has left the retired agent");
                break Ok(());
            }
        };
        service::stopping();
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + STOP_WITHIN;
        while !self.is_over() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some((path, listener)) = self.retired.take() {
            drop(listener);
            succession::remove_lock(&path);
        }
        outcome.and(self.port.map_or(Ok(()), PortThread::end))
    }

    /// Takes what has come within a moment.
    fn turn(&mut self) -> Result<(), AgentError> {
        let caller = match &mut self.retired {
            // Connections that were accepted before.
            Some((_, listener)) => match self.listener.next(Duration::ZERO)? {
                None => listener.next(IDLE_MAX)?,
                caller => caller,
            },
            None => self.listener.next(IDLE_MAX)?,
        };
        self.reap();
        match caller {
            Some(Caller::Process(pending)) => self.admit(pending),
            Some(Caller::Status(client)) => self.answer(client),
            None => {}
        }
        if self.reload.swap(false, Ordering::Relaxed) {
            self.reload_file();
        }
        self.take_orders();
        Ok(())
    }

    /// Whether all processes have left, and then the parameter server.
    fn is_over(&mut self) -> bool {
        self.reap();
        if !self.ranks.is_empty() || self.closing.as_ref().is_some_and(|it| !it.is_finished()) {
            return false;
        }
        if let Some(server) = &self.server {
            server.stop();
        }
        self.server.as_ref().is_none_or(ServerHandle::is_over)
            && self.port.as_ref().is_none_or(PortThread::is_over)
    }
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
        server: Option<PortServer>,
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
            .spawn(move || port::serve(&config, &queue, server, log, &stop))
            .map_err(|why| LinkError::system("no thread for the port", why))?;
        Ok(Some(Self {
            pending_processes,
            thread,
        }))
    }

    #[cfg(not(feature = "dpdk"))]
    fn start(
        config: &AgentConfig,
        _: Option<PortServer>,
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

impl Agent {
    /// Forgets those whose session is over.
    fn reap(&mut self) {
        self.ranks.retain(|_, shared| Arc::strong_count(shared) > 1);
        self.workers
            .retain(|_, mailbox| Arc::strong_count(mailbox) > 1);
    }

    fn admit(&mut self, pending: PendingPeer) {
        let Hello { job, rank, .. } = pending.hello();
        let (pid, uid) = (pending.pid(), pending.uid());
        let name = format!("job {job} rank {rank}");
        let (of, ring) = match self.check(&pending.hello()) {
            Ok(of) => of,
            Err(failure) => {
                let why = &failure.text;
                self.log
                    .warn(format_args!("{name}: process {pid} refused: {why}"));
                pending.refuse(failure);
                return;
            }
        };
        let config = self.live.config();
        let limits = Limits {
            regions: REGIONS_MAX,
            memory_bytes: u64::from(config.memory_mib) << 20,
            ..Limits::default()
        };
        let worker = config.worker(&of, rank);
        let parts = of.ranks_per_host;
        let first = rank - rank % parts;
        let shared = Arc::new(Shared::new(&worker, (rank, of.workers), &pending));
        let task = Task {
            name: match parts {
                1 => name.clone(),
                _ => format!("job {job} ranks {first} to {}", first + parts - 1),
            },
            config: worker,
            ring,
            rina: of.ring().cloned(),
            first,
            parts,
            loss: self.loss.map(|loss| Loss {
                seed: loss.seed + u64::from(first),
                ..loss
            }),
            stop: self.stop.clone(),
            log: self.log,
        };
        // The peer is made in its thread: nothing of a process's own making is dropped in this one.
        let process = PendingProcess {
            task,
            rank,
            shared: shared.clone(),
            pending,
            limits,
        };
        let begun = match &self.port {
            // There is room for all that may be here.
            Some(port) if process.task.is_by_switch() => port
                .pending_processes
                .try_send(process)
                .map_err(|why| why.to_string()),
            _ => self.begin(process),
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

    /// Gives a process to the thread of its worker, or to a new one.
    fn begin(&mut self, process: PendingProcess) -> Result<(), String> {
        let (job, first) = (process.task.config.job.id, process.task.first);
        let process = match self.workers.get(&(job, first)) {
            Some(mailbox) => match mailbox.put(process) {
                None => return Ok(()),
                Some(process) => process,
            },
            None => process,
        };
        let mailbox = Mailbox::new();
        self.workers.insert((job, first), mailbox.clone());
        std::thread::Builder::new()
            .name(format!("{job}.{first}"))
            .spawn(move || process.run(&mailbox))
            .map(drop)
            .map_err(|why| why.to_string())
    }

    /// The job that a process may take part in, and the ring that it is, if it is one.
    fn check(&mut self, hello: &Hello) -> Result<(AgentJob, Option<AgentRing>), Failure> {
        let Hello { job, rank, workers } = *hello;
        let config = self.live.config();
        if self.retired.is_some() {
            let text = "another agent has taken this one's place just now; try again";
            return Err(Failure::new(Class::Leaving, text));
        }
        if self.is_draining {
            let text = "the agent takes no new processes: it is drained (`tally-agent drain --cancel` ends that)";
            return Err(Failure::new(Class::Stopped, text));
        }
        let ring = config.rings.iter().find(|it| it.id == job).cloned();
        let rings = config.rings.iter().map(AgentJob::from);
        let jobs: Vec<_> = config.jobs.iter().cloned().chain(rings).collect();
        let Some(of) = jobs.iter().find(|it| it.id == job).cloned() else {
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
        let of_host = |(id, it): &(u16, u16)| {
            *id == job && it / of.ranks_per_host == rank / of.ranks_per_host
        };
        let mut others = self.ranks.iter().filter(|(at, _)| of_host(at));
        if let Some(((_, other), _)) = others.find(|(_, it)| it.is_leaving()) {
            let text =
                format!("rank {other} of this host has just ended and is leaving; try again");
            return Err(Failure::new(Class::Leaving, text));
        }
        if let Some((served, agent)) = self.served_before(job, rank) {
            let text = format!(
                "process {} is that rank already, at the agent from before the upgrade (process {agent})",
                served.pid
            );
            return Err(Failure::new(Class::Taken, text));
        }
        if self.ranks.len() >= usize::from(self.live.config().processes) {
            let text = format!(
                "the agent serves {} processes already (`processes` in its configuration)",
                self.ranks.len()
            );
            return Err(Failure::new(Class::Limit, text));
        }
        Ok((of, ring))
    }

    /// A rank that an agent before this one still serves, and that agent.
    fn served_before(&mut self, job: u16, rank: u16) -> Option<(RankStatus, u32)> {
        if self.before.is_empty() {
            return None;
        }
        let statuses = self.before.statuses();
        statuses.into_iter().find_map(|status| {
            let of = status.jobs.into_iter().find(|it| it.job == job)?;
            let served = of.ranks.into_iter().find(|it| it.rank == rank)?;
            Some((served, status.pid))
        })
    }

    fn answer(&self, client: StatusClient) {
        if self.answering.fetch_add(1, Ordering::Relaxed) >= ANSWERS_MAX {
            self.answering.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let (mut status, mut before) = (self.status(), self.before.clone());
        let answering = self.answering.clone();
        std::thread::spawn(move || {
            status.before = before.statuses();
            client.answer(&status.to_json(), ANSWER_WITHIN);
            answering.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn status(&self) -> Status {
        let config = self.live.config();
        let job = |id: u16, workers: u16| {
            let ranks = self.ranks.iter().filter(|((job, _), _)| *job == id);
            let mut ranks: Vec<_> = ranks.map(|(_, it)| it.status()).collect();
            ranks.sort_by_key(|it| it.rank);
            JobStatus {
                job: id,
                workers,
                ranks,
            }
        };
        let rings = config.rings.iter().map(|of| job(of.id, of.workers));
        let jobs = config.jobs.iter().map(|of| job(of.id, of.workers));
        let mut jobs: Vec<_> = jobs.chain(rings).collect();
        // Those that were removed while processes take part in them.
        for ((id, _), shared) in &self.ranks {
            if !jobs.iter().any(|it| it.job == *id) {
                jobs.push(job(*id, shared.workers()));
            }
        }
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            seconds: self.began.elapsed().as_secs_f64(),
            switch: config.switch.address.to_string(),
            warnings: self.warnings.clone(),
            configuration: self.live.version(),
            is_draining: self.is_draining,
            has_retired: self.retired.is_some(),
            parameter_server: match &self.server {
                Some(_) if self.retired.is_none() => config
                    .parameter_server()
                    .map(|it| it.jobs.iter().map(|job| job.id).collect()),
                _ => None,
            },
            jobs,
            before: Vec::new(),
        }
    }
}
