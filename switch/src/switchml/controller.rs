//! The controller's thread: gRPC in front of [`tally_engine::switchml::controller`].
//!
//! One thread with a runtime of its own (tokio's, for a single thread) listens, and runs the handlers of the calls
//! (`service.rs`). These decide nothing: each puts its call into a queue and waits for the answer. At the
//! queue's other end is one task, the desk, that owns the engine's [`Controller`] and through it the
//! [`Plane`]. So there is one order of all that happens, and no lock.
//!
//! The beginning and end of a connection are in the same queue (`incoming.rs`): what reads and writes a
//! connection's bytes says so when it is dropped, for whatever reason. HTTP/2's own pings find hosts that are
//! gone without a word.
//!
//! Catch: the desk waits for the data cores when a session is bound. That is a turn of each core; calls that
//! come meanwhile wait in the queue.

mod incoming;
mod service;

use incoming::Incoming;
use service::Services;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_engine::switchml::controller::{
    Answer, CallId, ConnectionId, Controller, ControllerConfig, Event, Membership, Plane, Refusal,
    Request,
};
use tally_wire::Time;
use thiserror::Error;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tonic::transport::Server;

/// Port that SwitchML's clients have in their configuration unless told otherwise.
pub const DEFAULT_PORT: u16 = 50099;
/// A connection is asked for a sign of life when it was silent for so long, and closed when none comes
/// for as long again.
pub const KEEPALIVE: Duration = Duration::from_secs(10);
/// Most connections at one time, over all addresses: more than the workers of all sessions that anybody runs.
pub const CONNECTIONS_MAX: usize = 4096;
/// At least as long between two lines of the log about refused calls, beyond the first few.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);
/// As many refusals in a row are told of: those of a job whose ranks are all wrong.
const REFUSALS_IN_A_ROW: u32 = 8;
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
    /// Connections that are open.
    open: Arc<AtomicUsize>,
}

/// Starts the controller. `config.listens` is what `listen` says; times are counted from `epoch`, as those of the
/// data cores are; `log` is told what the operator may want to know.
///
/// # Errors
/// If it cannot listen at an address, or have a thread.
pub fn start(
    listen: &[SocketAddr],
    config: ControllerConfig,
    plane: impl Plane + Send + 'static,
    epoch: Instant,
    log: impl FnMut(&Event) + Send + 'static,
) -> Result<Running, ListenError> {
    start_with_keepalive(KEEPALIVE, listen, config, plane, epoch, log)
}

/// As [`start`], with another time after which a silent connection is asked for a sign of life.
///
/// # Errors
/// As [`start`].
pub fn start_with_keepalive(
    keepalive: Duration,
    listen: &[SocketAddr],
    config: ControllerConfig,
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
        open: Arc::new(AtomicUsize::new(0)),
    };
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
        controller: Controller::new(
            ControllerConfig {
                listens: listen.len(),
                ..config
            },
            plane,
        ),
        waiting: HashMap::new(),
        peers: HashMap::new(),
        refusals: Refusals::default(),
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
    /// Where it listens, in the order of its configuration; with the port that the kernel chose, if it was to.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The sessions that fill or run now, as their clients know them.
    #[must_use]
    pub fn memberships(&self) -> Vec<Membership> {
        let memberships = self.memberships.lock();
        memberships.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If it has panicked, there is nobody to hear this, or to wait for.
        let _ = self.queue.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A call that has no answer yet.
struct Waiting {
    peer: Option<SocketAddr>,
    answer: oneshot::Sender<Result<Answer, Refusal>>,
}

/// Which refusals the log is told of: all, but not what somebody who calls again and again makes of it.
#[derive(Default)]
struct Refusals {
    /// When the log is next told of one for certain.
    next: Option<Instant>,
    in_a_row: u32,
    untold: u64,
}

impl Refusals {
    /// One more: how many others went untold, if it is to be told of.
    fn count(&mut self, now: Instant) -> Option<u64> {
        if self.next.is_none_or(|next| now >= next) {
            self.in_a_row = 0;
        }
        if self.in_a_row >= REFUSALS_IN_A_ROW {
            self.untold += 1;
            return None;
        }
        self.in_a_row += 1;
        self.next = Some(now + REFUSALS_EVERY);
        Some(std::mem::take(&mut self.untold))
    }
}

/// The one that answers.
struct Desk<P, L> {
    controller: Controller<P>,
    waiting: HashMap<CallId, Waiting>,
    peers: HashMap<ConnectionId, SocketAddr>,
    refusals: Refusals,
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
                let peer = self.peers.get(&connection).copied();
                self.waiting.insert(call, Waiting { peer, answer });
                self.controller.handle(now, connection, call, request);
            }
            Message::Abandoned(call) => {
                self.waiting.remove(&call);
                self.controller.abandoned(call);
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

    fn deliver(&mut self) {
        while let Some((call, answer)) = self.controller.poll_answer() {
            // Whoever has gone does not hear it.
            let Some(waiting) = self.waiting.remove(&call) else {
                continue;
            };
            if let (Some(peer), Err(why)) = (waiting.peer, &answer)
                && let Some(others) = self.refusals.count(Instant::now())
            {
                let why = why.clone();
                (self.log)(&Event::Refused { peer, why, others });
            }
            let _ = waiting.answer.send(answer);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_do_not_flood_the_log() {
        let mut refusals = Refusals::default();
        let start = Instant::now();
        let mut at = |ms: u64| refusals.count(start + Duration::from_millis(ms));
        for n in 0..8 {
            assert_eq!(at(n), Some(0));
        }
        for n in 8..108 {
            assert_eq!(at(n), None);
        }
        assert_eq!(
            at(1007),
            Some(100),
            "a second after the last that was told of"
        );
        assert_eq!(at(1008), Some(0));
    }
}
