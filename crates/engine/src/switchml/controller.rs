//! Setting up and ending SwitchML's sessions, without I/O.
//!
//! A published client makes three calls: all ranks *Broadcast*, and so learn the session's number
//! from rank 0; each says where it is in *UdpSession*; in between and at the end all meet in a
//! *Barrier*. [`Controller`] takes these calls, and the beginnings and ends of the connections on
//! which they come, and says what to answer and when. What concerns the data path it does through a
//! [`Plane`].
//!
//! Two halves, as calls of the first kind carry no session:
//!
//! * a `Rendezvous` for each listen address brings the ranks of one job together (Broadcast and
//!   Barrier), and tells those who wait when a rank has gone or does not come;
//! * `Sessions`, one for the switch, knows which station is which rank of which session, since
//!   when, and until when.
//!
//! Each call that waits is answered: it has a time limit, and a connection's
//! end is the end of what was claimed on it. A session is bound on all data cores before the answer
//! to its last rank leaves, so that no client's first packet can come too early.
//!
//! How it is used: [`opened`](Controller::opened), [`handle`](Controller::handle),
//! [`abandoned`](Controller::abandoned) and [`closed`](Controller::closed) as things happen,
//! [`handle_timeout`](Controller::handle_timeout) when [`poll_timeout`](Controller::poll_timeout)
//! says; after each of them, [`poll_answer`](Controller::poll_answer) and
//! [`poll_event`](Controller::poll_event) until they are empty.
//!
//! Catches:
//!
//! * Clients bring no secret. A host that reaches a listen address may claim any rank and any
//!   station's address that is free: keep it on a network that only workers reach, or list the
//!   workers' addresses. What is taken stays with the host that took it, by the address of its
//!   connection.
//! * A closed connection alone ends no session: a channel of gRPC that nothing uses closes after
//!   half an hour.

mod refusal;
mod rendezvous;
mod sessions;

pub use refusal::{Code, Meeting, Peers, Ranks, Refusal, Strangers};
pub use sessions::switch_mac;

use super::{Conflict, HostAddress, Session, SessionId};
use rendezvous::Rendezvous;
use sessions::Sessions;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tally_wire::switchml::Size;
use tally_wire::{MAX_WORKERS, Mac, Time};

/// A session whose connections are all closed, and that was silent for so long, makes room for
/// another.
pub const GIVES_WAY: Duration = Duration::from_secs(10);

/// What to do about two jobs that get into each other's way.
const LISTEN_HINT: &str = "give each job a listen address of its own (switchml.listen)";

/// A connection, by a number that does not come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// A call that is to be answered, by a number that does not come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What the controller is told at the start.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// For each address that it listens at, a rendezvous of its own: the hosts that a job's ranks
    /// must call from, by rank. Without any, all may, and ranks are told apart by time.
    pub listens: Vec<Vec<IpAddr>>,
    /// What the addresses that workers are told are made of; random, and different in each start.
    pub secret: [u8; 32],
    /// How long a listen address without a list of hosts waits for a second job when all ranks have
    /// come.
    pub grace_period: Duration,
    /// Most sessions at one time.
    pub sessions: usize,
    /// The switch's own address, to which clients send.
    pub mac: Mac,
    /// The switch's own address, to which clients send.
    pub ip: Ipv4Addr,
    /// The largest packets that the switch's ports carry.
    pub size_max: Size,
    /// How long ranks wait for each other.
    pub setup_timeout: Duration,
    /// A session whose connections are all closed ends when no frame came for so long.
    pub idle_timeout: Duration,
}

/// The data path, as the controller sees it. Each method returns when it is done on all cores.
pub trait Plane {
    /// Takes frames of this session from now on. One with the same number is replaced.
    ///
    /// # Errors
    /// Why it cannot; then no core knows the session.
    fn bind(&mut self, session: &Arc<Session>) -> Result<(), String>;

    /// Takes no more frames of this session, and frees what it holds.
    fn unbind(&mut self, id: SessionId);

    /// When the last frame of a session came, on any core.
    fn last_frame(&mut self, id: SessionId) -> Option<Time>;
}

/// What a worker says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpSession {
    /// The session's number, by its rank 0.
    pub session: SessionId,
    /// Which worker it is.
    pub rank: u32,
    /// Of how many.
    pub workers: u32,
    /// Its Ethernet address, in the lower 48 bits.
    pub mac: u64,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Code of the packets' size.
    pub packet_size: i32,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The root's value.
    Broadcast {
        /// The caller's own; it counts if it is the root.
        value: u64,
        /// Which worker it is.
        rank: u32,
        /// Of how many.
        workers: u32,
        /// Whose value all get.
        root: u32,
    },
    /// To be answered when all have asked.
    Barrier {
        /// How many they are.
        workers: u32,
    },
    /// To be a worker of a session.
    UdpSession(UdpSession),
}

/// What it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The root's value.
    Value(u64),
    /// All are there.
    Met,
    /// The session takes its packets, as soon as all its workers are in it.
    Session {
        /// Its number.
        id: SessionId,
        /// To which its packets go.
        mac: Mac,
        /// To which its packets go.
        ip: Ipv4Addr,
    },
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A client that was in it was started anew.
    Replaced {
        /// Which.
        station: HostAddress,
        /// Its rank here.
        rank: u32,
        /// Where it is now.
        by: SessionId,
    },
    /// Two ports of the switch claim a worker of it.
    TwoPorts {
        /// Which.
        station: HostAddress,
        /// Its rank.
        rank: u32,
        /// The names of the ports.
        ports: [String; 2],
    },
    /// All its connections are closed, and no frame came.
    Idle {
        /// For how long.
        silent: Duration,
    },
    /// As [`Idle`](Self::Idle), but for less time: another session needed its place.
    GaveWay {
        /// For how long.
        silent: Duration,
        /// Which one.
        to: SessionId,
    },
    /// Not all its workers came.
    Late {
        /// Who did not.
        missing: Ranks,
        /// Within which time.
        patience: Duration,
    },
    /// All its connections closed before all its workers had come.
    Deserted,
    /// The data path did not take it.
    Refused(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replaced { station, rank, by } => {
                write!(
                    f,
                    "its rank {rank}, {station}, was started anew in session {by}"
                )
            }
            Self::TwoPorts {
                station,
                rank,
                ports: [first, second],
            } => write!(
                f,
                "frames of its rank {rank}, {station}, came from port {first} and from port {second}: a host has \
                 copied what only the worker knows, or the worker has moved; start the job again"
            ),
            Self::Idle { silent } => write!(
                f,
                "all its connections are closed, and no frame came for {:.0} s",
                silent.as_secs_f64()
            ),
            Self::GaveWay { silent, to } => write!(
                f,
                "all its connections are closed, no frame came for {:.0} s, and session {to} needed its place",
                silent.as_secs_f64()
            ),
            Self::Late { missing, patience } => {
                write!(
                    f,
                    "within {} s there came no {missing}",
                    patience.as_secs_f64()
                )
            }
            Self::Deserted => {
                f.write_str("all its connections closed before all its workers had come")
            }
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// What the operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session takes packets.
    Started(Arc<Session>),
    /// A session takes no packets any more; or never did, if it has no [`Started`](Self::Started).
    Ended {
        /// Which.
        id: SessionId,
        /// Why.
        why: End,
    },
    /// A new process of a rank of a running session waits for the others of its job.
    Anew {
        /// The session.
        id: SessionId,
        /// The rank.
        rank: u32,
        /// Its station in the session.
        station: HostAddress,
        /// Where the call came from.
        peer: SocketAddr,
        /// How many it waits for, itself included.
        workers: u32,
    },
    /// A call was refused, which its client may not show to anybody.
    Refused {
        /// Where it came from.
        peer: SocketAddr,
        /// Why.
        why: Refusal,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(session) => {
                write!(
                    f,
                    "SwitchML session {} of {} workers begins, {} bytes a packet:",
                    session.id,
                    session.workers.len(),
                    session.size.payload_bytes()
                )?;
                session
                    .workers
                    .iter()
                    .try_for_each(|worker| write!(f, " {}", worker.ip))
            }
            Self::Ended { id, why } => write!(f, "SwitchML session {id} ends: {why}"),
            Self::Anew {
                id,
                rank,
                station,
                peer,
                workers,
            } => write!(
                f,
                "SwitchML session {id}: a new process of rank {rank}, {station}, asks from {peer} and waits for a job \
                 of {workers} workers; the session runs until all of them have come"
            ),
            Self::Refused { peer, why } => write!(f, "SwitchML call from {peer} refused: {why}"),
        }
    }
}

/// A session as its clients know it, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Its number.
    pub id: SessionId,
    /// Elements of its packets.
    pub size: Size,
    /// Its workers.
    pub workers: u32,
    /// Of them, those that have come.
    pub present: u32,
    /// Of them, those whose connection is open.
    pub connected: u32,
    /// Whether all have come and it takes packets.
    pub running: bool,
    /// Since when it runs or waits.
    pub since: Time,
}

/// What leaves: answers and events, in their order.
#[derive(Debug, Default)]
struct Outbox {
    answers: VecDeque<(CallId, Result<Answer, Refusal>)>,
    events: VecDeque<Event>,
}

impl Outbox {
    fn answer(&mut self, call: CallId, answer: Result<Answer, Refusal>) {
        self.answers.push_back((call, answer));
    }
}

/// The controller of all sessions.
#[derive(Debug)]
pub struct Controller<P> {
    plane: P,
    /// By connection, which address it came to, and where from.
    listens: BTreeMap<ConnectionId, (usize, SocketAddr)>,
    rendezvous: Vec<Rendezvous>,
    sessions: Sessions,
    out: Outbox,
}

impl<P: Plane> Controller<P> {
    /// Without connections and sessions.
    #[must_use]
    pub fn new(config: ControllerConfig, plane: P) -> Self {
        Self {
            plane,
            listens: BTreeMap::new(),
            rendezvous: config
                .listens
                .iter()
                .map(|hosts| {
                    Rendezvous::new(config.setup_timeout, config.grace_period, hosts.clone())
                })
                .collect(),
            sessions: Sessions::new(config),
            out: Outbox::default(),
        }
    }

    /// A client has connected to the `listen`-th address.
    ///
    /// # Panics
    /// If there is no such listen address.
    pub fn opened(&mut self, connection: ConnectionId, listen: usize, peer: SocketAddr) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        self.rendezvous[listen].opened(connection, peer);
        self.listens.insert(connection, (listen, peer));
    }

    /// A connection is no more. Its calls hear nothing.
    pub fn closed(&mut self, now: Time, connection: ConnectionId) {
        if let Some((listen, _)) = self.listens.remove(&connection) {
            self.rendezvous[listen].closed(connection, &mut self.out);
        }
        let ended = self.sessions.closed(now, connection);
        self.end(ended);
    }

    /// Takes a call. Its answer comes at once, or when others have called too. One on a
    /// connection that is closed already hears nothing.
    pub fn handle(&mut self, now: Time, connection: ConnectionId, call: CallId, request: Request) {
        let Some(&(listen, peer)) = self.listens.get(&connection) else {
            return;
        };
        let host = match request {
            Request::Broadcast { value, rank, .. } => self.host_of(SessionId(value), rank),
            _ => None,
        };
        let rendezvous = &mut self.rendezvous[listen];
        let answer = match request {
            Request::Broadcast {
                value,
                rank,
                workers,
                root,
            } => check_rank(rank, workers).and_then(|()| {
                if root >= workers {
                    return Err(Refusal::Root {
                        found: root,
                        workers,
                    });
                }
                let claim = rendezvous::Claim {
                    value,
                    rank,
                    workers,
                    root,
                };
                let session = SessionId(value);
                let found = peer.ip();
                let is_others = rank == root
                    && (host.is_some_and(|host| host != found)
                        || !self.sessions.is_named_by(session, rank, found));
                if is_others {
                    return Err(Refusal::Number {
                        session,
                        rank,
                        found,
                    });
                }
                let runs = |id| self.sessions.runs(id);
                rendezvous.broadcast(now, connection, call, &claim, runs, &mut self.out)?;
                let anew = self.sessions.running_with(rank, peer.ip(), connection);
                if let Some((id, station)) = anew
                    && rendezvous.waits(call)
                {
                    self.out.events.push_back(Event::Anew {
                        id,
                        rank,
                        station,
                        peer,
                        workers,
                    });
                }
                Ok(())
            }),
            Request::Barrier { workers } => check_workers(workers)
                .and_then(|()| rendezvous.barrier(now, connection, call, workers, &mut self.out)),
            Request::UdpSession(request) => {
                let answer = self.udp_session(now, listen, (connection, peer), &request);
                self.out.answer(call, answer);
                return;
            }
        };
        // A call that waits is answered later.
        if let Err(refusal) = answer {
            self.out.answer(call, Err(refusal));
        }
    }

    fn udp_session(
        &mut self,
        now: Time,
        listen: usize,
        (connection, peer): (ConnectionId, SocketAddr),
        request: &UdpSession,
    ) -> Result<Answer, Refusal> {
        check_rank(request.rank, request.workers)?;
        let id = request.session;
        let (rank, found) = (request.rank, peer.ip());
        self.rendezvous[listen].check_expected(rank, request.workers, found)?;
        if let Some(allowed) = self.host_of(id, rank)
            && allowed != found
        {
            return Err(Refusal::RankOfJob {
                session: id,
                rank,
                found,
                allowed,
            });
        }
        let is_its = |other| self.sessions.has(other, request.mac, request.ip);
        self.rendezvous[listen].check_free(connection, id, is_its)?;
        if let Some(workers) = self.rendezvous[listen].workers_of(id)
            && workers != request.workers
        {
            return Err(Refusal::SessionDiffers {
                session: id,
                what: "num_workers",
                found: request.workers,
                allowed: workers,
            });
        }
        let mut ended = Vec::new();
        let joined = self.sessions.join(
            now,
            (connection, found),
            request,
            &mut self.plane,
            &mut ended,
        );
        // The old one's end is said before the new one's beginning.
        self.end(ended);
        if let Some(session) = joined? {
            self.out.events.push_back(Event::Started(session));
        }
        self.rendezvous[listen].joined(
            connection,
            id,
            request.rank,
            request.workers,
            &mut self.out,
        );
        Ok(self.sessions.answer(id, rank))
    }

    /// The data path found that two ports claim a worker: its session ends. `ports` are their
    /// names.
    pub fn conflict(&mut self, id: SessionId, conflict: &Conflict, ports: [String; 2]) {
        let ended = self.sessions.conflict(id, conflict, ports, &mut self.plane);
        self.end(ended);
    }

    /// The host that came as this rank of a job, at whichever address.
    fn host_of(&self, id: SessionId, rank: u32) -> Option<IpAddr> {
        let mut at = self.rendezvous.iter();
        at.find_map(|rendezvous| rendezvous.host_of(id, rank))
    }

    /// The client does not wait for this call any more, though its connection may live.
    pub fn abandoned(&mut self, call: CallId) {
        for rendezvous in &mut self.rendezvous {
            rendezvous.abandoned(call);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, if ever.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let meetings = self.rendezvous.iter().filter_map(Rendezvous::poll_timeout);
        meetings.chain(self.sessions.poll_timeout()).min()
    }

    /// Ends what has waited for too long.
    pub fn handle_timeout(&mut self, now: Time) {
        for rendezvous in &mut self.rendezvous {
            rendezvous.handle_timeout(now, &mut self.out);
        }
        let ended = self.sessions.handle_timeout(now, &mut self.plane);
        self.end(ended);
    }

    /// The next call that is answered, and how.
    pub fn poll_answer(&mut self) -> Option<(CallId, Result<Answer, Refusal>)> {
        self.out.answers.pop_front()
    }

    /// The next thing that the operator may want to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The sessions as they stand.
    pub fn status(&self) -> impl Iterator<Item = Membership> {
        self.sessions.status()
    }

    /// Who waits in a barrier of a session that has ended hears so.
    fn end(&mut self, ended: Vec<(SessionId, End)>) {
        for (session, why) in ended {
            // If a session begins anew under its number, those who wait are the new one's.
            let anew = matches!(why, End::Replaced { by, .. } if by == session);
            for rendezvous in self.rendezvous.iter_mut().filter(|_| !anew) {
                let why = Refusal::Ended {
                    session,
                    why: why.clone(),
                };
                rendezvous.session_ended(session, &why, &mut self.out);
            }
            self.out.events.push_back(Event::Ended { id: session, why });
        }
    }
}

fn check_workers(workers: u32) -> Result<(), Refusal> {
    if workers == 0 || workers > MAX_WORKERS as u32 {
        return Err(Refusal::Workers { found: workers });
    }
    Ok(())
}

fn check_rank(rank: u32, workers: u32) -> Result<(), Refusal> {
    check_workers(workers)?;
    if rank >= workers {
        return Err(Refusal::Rank {
            found: rank,
            workers,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
