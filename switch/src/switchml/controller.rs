//! The controller's thread: gRPC in front of [`tally_engine::switchml::controller`].
//!
//! One thread with a runtime of its own (tokio's, for a single thread) listens, and runs the
//! handlers of the calls (`service.rs`). These decide nothing: each puts its call into a queue and
//! waits for the answer. At the queue's other end is one task, the desk, that owns the engine's
//! [`Controller`] and through it the
//! [`Plane`]. So there is one order of all that happens, and no lock.
//!
//! The beginning and end of a connection are in the same queue (`incoming.rs`): what reads and
//! writes a connection's bytes says so when it is dropped, for any reason. HTTP/2's own pings find
//! hosts that are gone without a word.
//!
//! What one host may have is limited ([`Limits`]): connections, and calls that wait. So are all
//! connections together, by the descriptors of the process, of which some are kept back for the
//! rest of the switch.
//!
//! Catch: the desk waits for the data cores when a session is bound. That is a turn of each core;
//! calls that come meanwhile wait in the queue.

mod incoming;
mod service;

use crate::config::Network;
use incoming::Incoming;
use service::Services;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_engine::switchml::controller::{
    Answer, CallId, ConnectionId, Controller, ControllerConfig, Event, Membership, Plane, Refusal,
    Request,
};
use tally_engine::switchml::{Conflict, SessionId};
use tally_wire::Time;
use thiserror::Error;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tonic::transport::Server;

/// Port that SwitchML's clients have in their configuration unless told otherwise.
pub const DEFAULT_PORT: u16 = 50099;
/// Silence after which a connection is pinged, and after which again it is closed without an
/// answer.
pub const KEEPALIVE: Duration = Duration::from_secs(10);
/// Most connections at one time, over all addresses: more than the workers of all sessions that
/// anybody runs.
pub const CONNECTIONS_MAX: usize = 4096;
/// Most of one host: the workers of some jobs.
pub const CONNECTIONS_OF_HOST_MAX: usize = 256;
/// Most calls of one host that wait.
pub const CALLS_OF_HOST_MAX: usize = 256;
/// A connection that has made no call by then is closed.
pub const FIRST_CALL: Duration = Duration::from_secs(10);
/// Descriptors for the rest of the switch: statistics, reports, devices.
const DESCRIPTORS_KEPT: usize = 64;
/// Most calls that wait on one connection: all ranks of a job, if they share it.
const CALLS_MAX: u32 = 64;

/// An address at which the controller cannot listen.
#[derive(Debug, Error)]
#[error("SwitchML's controller cannot listen at {address}: {source}")]
pub struct ListenError {
    /// Where.
    pub address: SocketAddr,
    /// Why not.
    pub source: std::io::Error,
}

/// What callers may have.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Networks whose hosts may call; none: all hosts.
    pub allow: Vec<Network>,
    /// Silence after which a connection is pinged.
    pub keepalive: Duration,
    /// A connection must have made a call by then.
    pub first_call: Duration,
    /// Connections of all hosts.
    pub connections: usize,
    /// Connections of one host.
    pub connections_of_host: usize,
    /// Calls of one host that wait.
    pub calls_of_host: usize,
}

impl Limits {
    /// The usual ones, for this process as it is now.
    #[must_use]
    pub fn new(allow: Vec<Network>) -> Self {
        let left = descriptors_left().unwrap_or(CONNECTIONS_MAX);
        Self {
            allow,
            keepalive: KEEPALIVE,
            first_call: FIRST_CALL,
            connections: left
                .saturating_sub(DESCRIPTORS_KEPT)
                .clamp(1, CONNECTIONS_MAX),
            connections_of_host: CONNECTIONS_OF_HOST_MAX,
            calls_of_host: CALLS_OF_HOST_MAX,
        }
    }
}

/// Descriptors that the process may still open.
fn descriptors_left() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let soft: usize = line.split_whitespace().next()?.parse().ok()?;
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    Some(soft.saturating_sub(open))
}

/// A running controller. It ends when this is dropped, and sessions with it.
pub struct Running {
    queue: UnboundedSender<Message>,
    thread: Option<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    memberships: Arc<Mutex<Vec<Membership>>>,
}

/// What the desk hears of.
enum Message {
    Opened {
        connection: ConnectionId,
        listen: usize,
        peer: SocketAddr,
    },
    Closed(ConnectionId),
    TurnedAway {
        peer: SocketAddr,
        why: Refusal,
    },
    Conflict(SessionId, Conflict, [String; 2]),
    Call {
        connection: ConnectionId,
        call: CallId,
        request: Request,
        answer: oneshot::Sender<Result<Answer, Refusal>>,
    },
    Abandoned(CallId),
    Stop,
}

/// What all listeners and handlers share.
#[derive(Clone)]
struct Line {
    queue: UnboundedSender<Message>,
    /// Numbers for connections and calls.
    next: Arc<AtomicU64>,
    /// Connections that are open, by host.
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    limits: Arc<Limits>,
}

/// Starts the controller. `config.listens` has the hosts for each of `listen`, if any are listed;
/// times are counted from `epoch`, as those of the data cores are; `log` is told what the operator
/// may want to know.
///
/// # Errors
/// If it cannot listen at an address, or have a thread.
pub fn start(
    limits: Limits,
    listen: &[SocketAddr],
    mut config: ControllerConfig,
    plane: impl Plane + Send + 'static,
    epoch: Instant,
    log: impl FnMut(&Event) + Send + 'static,
) -> Result<Running, ListenError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for &address in listen {
        let failed = |source| ListenError { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        addresses.push(listener.local_addr().map_err(failed)?);
        listeners.push(listener);
    }
    let failed = |source| ListenError {
        address: addresses
            .first()
            .copied()
            .unwrap_or(([0, 0, 0, 0], 0).into()),
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let (queue, messages) = unbounded_channel();
    let line = Line {
        queue: queue.clone(),
        next: Arc::new(AtomicU64::new(0)),
        open: Arc::default(),
        limits: Arc::new(limits),
    };
    let keepalive = line.limits.keepalive;
    config.listens.resize(listen.len(), Vec::new());
    let entered = runtime.enter();
    let mut servers = Vec::new();
    for (number, listener) in listeners.into_iter().enumerate() {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        let incoming = Incoming::new(listener, number, line.clone());
        let server = Server::builder()
            .http2_keepalive_interval(Some(keepalive))
            .http2_keepalive_timeout(Some(keepalive))
            .max_concurrent_streams(Some(CALLS_MAX));
        servers.push(server.serve_with_incoming(Services::new(line.clone()), incoming));
    }
    drop(entered);
    let memberships = Arc::new(Mutex::new(Vec::new()));
    let desk = Desk {
        controller: Controller::new(config, plane),
        waiting: HashMap::new(),
        calls: HashMap::new(),
        calls_of_host: line.limits.calls_of_host,
        peers: HashMap::new(),
        epoch,
        log,
        memberships: Arc::clone(&memberships),
    };
    let thread = std::thread::Builder::new()
        .name("switchml".into())
        .spawn(move || {
            for server in servers {
                runtime.spawn(server);
            }
            // With the runtime, all connections end.
            runtime.block_on(desk.run(messages));
        })
        .map_err(failed)?;
    Ok(Running {
        queue,
        thread: Some(thread),
        addresses,
        memberships,
    })
}

impl Running {
    /// Where it listens, in the order of its configuration; with the port that the kernel chose, if
    /// it was to.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A way to say that two ports claim a worker.
    #[must_use]
    pub fn conflicts(&self) -> Conflicts {
        Conflicts(self.queue.clone())
    }

    /// The sessions that fill or run now, as their clients know them.
    #[must_use]
    pub fn memberships(&self) -> Vec<Membership> {
        let memberships = self.memberships.lock();
        memberships.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where the data path's conflicts go.
#[derive(Clone)]
pub struct Conflicts(UnboundedSender<Message>);

impl Conflicts {
    /// Ends a session of which two ports, of these names, claim a worker.
    pub fn report(&self, id: SessionId, conflict: Conflict, ports: [String; 2]) {
        let _ = self.0.send(Message::Conflict(id, conflict, ports));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If it has panicked, no thread hears this, or is to be waited for.
        let _ = self.queue.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A call that has no answer yet.
struct Waiting {
    peer: SocketAddr,
    answer: oneshot::Sender<Result<Answer, Refusal>>,
}

/// The one that answers.
struct Desk<P, L> {
    controller: Controller<P>,
    waiting: HashMap<CallId, Waiting>,
    /// Calls that wait, by host.
    calls: HashMap<IpAddr, usize>,
    calls_of_host: usize,
    peers: HashMap<ConnectionId, SocketAddr>,
    epoch: Instant,
    log: L,
    memberships: Arc<Mutex<Vec<Membership>>>,
}

impl<P: Plane, L: FnMut(&Event)> Desk<P, L> {
    async fn run(mut self, mut messages: UnboundedReceiver<Message>) {
        loop {
            let message = match self.controller.poll_timeout() {
                None => messages.recv().await,
                Some(at) => {
                    let at = self.epoch + Duration::from_nanos(at.0);
                    match tokio::time::timeout_at(at.into(), messages.recv()).await {
                        Ok(message) => message,
                        Err(_) => {
                            self.look_at_the_clock();
                            continue;
                        }
                    }
                }
            };
            match message {
                None | Some(Message::Stop) => return,
                Some(message) => self.take(message),
            }
            // Messages may come so densely that the time limit is never what ends the wait.
            self.look_at_the_clock();
        }
    }

    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }

    fn take(&mut self, message: Message) {
        let now = self.now();
        match message {
            Message::Opened {
                connection,
                listen,
                peer,
            } => {
                self.peers.insert(connection, peer);
                self.controller.opened(connection, listen, peer);
            }
            Message::Closed(connection) => {
                self.peers.remove(&connection);
                self.controller.closed(now, connection);
            }
            Message::Call {
                connection,
                call,
                request,
                answer,
            } => {
                // One whose connection has closed hears nothing.
                let Some(&peer) = self.peers.get(&connection) else {
                    return;
                };
                let waiting = Waiting { peer, answer };
                let host = peer.ip().to_canonical();
                let calls = self.calls.entry(host).or_default();
                let allowed = self.calls_of_host;
                if *calls >= allowed {
                    let peer = host;
                    self.answer(waiting, Err(Refusal::Calls { peer, allowed }));
                    return;
                }
                *calls += 1;
                self.waiting.insert(call, waiting);
                self.controller.handle(now, connection, call, request);
            }
            Message::Abandoned(call) => {
                self.remove(call);
                self.controller.abandoned(call);
            }
            Message::TurnedAway { peer, why } => (self.log)(&Event::Refused { peer, why }),
            Message::Conflict(id, conflict, ports) => {
                self.controller.conflict(id, &conflict, ports);
            }
            Message::Stop => {}
        }
        self.deliver();
    }

    fn look_at_the_clock(&mut self) {
        let now = self.now();
        if self.controller.poll_timeout().is_some_and(|at| at <= now) {
            self.controller.handle_timeout(now);
            self.deliver();
        }
    }

    /// A call waits no longer.
    fn remove(&mut self, call: CallId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&call)?;
        let host = waiting.peer.ip().to_canonical();
        if let Some(calls) = self.calls.get_mut(&host) {
            *calls -= 1;
            if *calls == 0 {
                self.calls.remove(&host);
            }
        }
        Some(waiting)
    }

    fn answer(&mut self, waiting: Waiting, answer: Result<Answer, Refusal>) {
        if let Err(why) = &answer {
            let (peer, why) = (waiting.peer, why.clone());
            (self.log)(&Event::Refused { peer, why });
        }
        // A client that has gone does not hear it.
        let _ = waiting.answer.send(answer);
    }

    fn deliver(&mut self) {
        while let Some((call, answer)) = self.controller.poll_answer() {
            if let Some(waiting) = self.remove(call) {
                self.answer(waiting, answer);
            }
        }
        while let Some(event) = self.controller.poll_event() {
            (self.log)(&event);
        }
        let mut memberships = self
            .memberships
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        memberships.clear();
        memberships.extend(self.controller.status());
    }
}
