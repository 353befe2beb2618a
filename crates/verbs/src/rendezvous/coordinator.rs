//! The coordinator's side of the rendezvous: a thread at rank 0, and one for each connection.

use super::client::prepare;
use super::frame::{self, Nonce, kind};
use super::{Call, Hello, Neighbour, RingConfig, Welcome};
use std::fmt;
use std::io::{ErrorKind, Result};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tally_wire::netreduce::RingEpoch;

/// How often to look for new connections while members are missing.
const POLL: Duration = Duration::from_millis(20);

/// Unit of the clock by which epochs are numbered. It turns over in eight years.
const TICK: Duration = Duration::from_millis(62);

/// Time limits and bounds of a coordinator.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until all members have come.
    pub join: Duration,
    /// Until a connection has said who it is.
    pub hello: Duration,
    /// Connections that have not said it, at once.
    pub strangers: usize,
    /// Until all members have entered an all-reduce, from the first one on; no limit by default.
    pub stall: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            join: Duration::from_secs(60),
            hello: Duration::from_secs(10),
            strangers: 128,
            stall: None,
        }
    }
}

/// A running coordinator of one epoch. When it is dropped, the epoch ends, and its listener is
/// closed.
pub struct Coordinator {
    thread: Option<JoinHandle<()>>,
    events: Sender<Event>,
}

impl Coordinator {
    /// Starts it. It ends when all members have left, or the ring has failed.
    ///
    /// # Errors
    /// If the listener can't be used.
    pub fn start(listener: TcpListener, ring: RingConfig, limits: Limits) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let (events, incoming) = channel();
        let connections = events.clone();
        let thread = std::thread::Builder::new().name("coordinator".into());
        let thread = thread.spawn(move || run(&listener, ring, limits, (&connections, &incoming)));
        Ok(Self {
            thread: Some(thread?),
            events,
        })
    }

    /// Waits for its end.
    pub fn join(mut self) {
        self.wait();
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Dropped);
        self.wait();
    }
}

/// What the thread of a connection says.
enum Event {
    /// It is a member.
    Hello(Box<Joined>),
    /// It is none.
    Stranger,
    Entered(Connection, Entry),
    Failed(Connection, String),
    Ended(Connection),
    /// Of no connection: the coordinator's process needs it no more.
    Dropped,
}

/// What a member has entered with.
#[derive(PartialEq)]
struct Entry {
    call: Call,
    name: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => self.call.fmt(f),
            name => write!(f, "{} ({name})", self.call),
        }
    }
}

const GONE: &str = "it has ended the epoch";

/// Number of a connection: a rank that is taken may be asked for again.
type Connection = u64;

struct Joined {
    connection: Connection,
    hello: Hello,
    nonces: [Nonce; 2],
    stream: TcpStream,
}

fn run(
    listener: &TcpListener,
    ring: RingConfig,
    limits: Limits,
    (events, incoming): (&Sender<Event>, &Receiver<Event>),
) {
    let mut members: Vec<Option<Joined>> = (0..ring.members).map(|_| None).collect();
    // The coordinator before this one may have chosen the epoch of this tick.
    std::thread::sleep(TICK);
    let result = gather(listener, &ring, limits, &mut members, (events, incoming))
        .and_then(|()| welcome(&ring, &members))
        .and_then(|()| serve(&members, limits.stall, incoming));
    for (rank, member) in members.iter().enumerate() {
        let Some(member) = member else { continue };
        if let Err(failure) = &result
            && failure.of != Some(rank as u8)
        {
            let _ = frame::write(&member.stream, kind::FAILED, failure.why.as_bytes());
        }
        let _ = member.stream.shutdown(Shutdown::Both);
    }
}

/// Why the ring has failed, and the rank that said so itself.
struct Failure {
    of: Option<u8>,
    why: String,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { of: None, why }
    }
}

type Outcome = std::result::Result<(), Failure>;

/// Accepts connections until all members are there.
fn gather(
    listener: &TcpListener,
    ring: &RingConfig,
    limits: Limits,
    members: &mut [Option<Joined>],
    (events, incoming): (&Sender<Event>, &Receiver<Event>),
) -> Outcome {
    let deadline = Instant::now() + limits.join;
    let mut strangers = 0;
    let mut connection = 0;
    while members.iter().any(Option::is_none) {
        if strangers < limits.strangers
            && let Some(stream) = accepted(listener)
        {
            connection += 1;
            let (ring, events, limit) = (ring.clone(), events.clone(), limits.hello);
            let thread = std::thread::Builder::new().name("member".into());
            let spawned = thread.spawn(move || listen(connection, stream, &ring, limit, &events));
            strangers += usize::from(spawned.is_ok());
        }
        match incoming.recv_timeout(POLL) {
            Ok(Event::Hello(joined)) => {
                strangers -= 1;
                admit(members, *joined)?;
            }
            Ok(Event::Stranger) => strangers -= 1,
            Ok(Event::Entered(..)) | Err(_) => {}
            Ok(Event::Dropped) => return Err(failed(0, GONE)),
            Ok(Event::Failed(of, why)) => {
                if let Some(rank) = rank_of(members, of) {
                    return Err(failed(rank, &why));
                }
            }
            Ok(Event::Ended(of)) => {
                if let Some(rank) = rank_of(members, of) {
                    // It may come again.
                    members[usize::from(rank)] = None;
                }
            }
        }
        if Instant::now() > deadline {
            let missing = members.iter().enumerate().filter(|(_, it)| it.is_none());
            let missing: Vec<_> = missing.map(|(rank, _)| rank.to_string()).collect();
            let (ranks, limit) = (missing.join(", "), limits.join.as_secs());
            let why = format!("ranks missing after {limit} s: {ranks}");
            return Err(why.into());
        }
    }
    Ok(())
}

fn accepted(listener: &TcpListener) -> Option<TcpStream> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return stream.set_nonblocking(false).is_ok().then_some(stream),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Takes a member, if its rank is free and it has what the others have.
fn admit(members: &mut [Option<Joined>], joined: Joined) -> Outcome {
    let hello = joined.hello;
    let refuse = |why: String| {
        let _ = frame::write(&joined.stream, kind::FAILED, why.as_bytes());
        let _ = joined.stream.shutdown(Shutdown::Both);
        Ok(())
    };
    let rank = hello.rank;
    let size = members.len();
    let Some(place) = members.get(usize::from(rank)) else {
        return refuse(format!("rank {rank}: the ring has {size} members"));
    };
    if place.is_some() {
        return refuse(format!("rank {rank} is taken"));
    }
    if let Some(other) = members.iter().flatten().next() {
        let other = &other.hello;
        let of = |it: &Hello| (it.packets, it.window);
        if of(&hello) != of(other) {
            let why = format!(
                "rank {rank} has a window of {} messages of {} packets, rank {} of {} of {}",
                hello.window, hello.packets, other.rank, other.window, other.packets
            );
            let _ = refuse(why.clone());
            return Err(why.into());
        }
    }
    members[usize::from(rank)] = Some(joined);
    Ok(())
}

/// Tells each member its neighbours and the epoch.
fn welcome(ring: &RingConfig, members: &[Option<Joined>]) -> Outcome {
    let members: Vec<_> = members.iter().flatten().collect();
    let mut epoch = RingEpoch(ticks());
    for last in members.iter().filter_map(|it| it.hello.last_epoch) {
        let next = RingEpoch(last.0.wrapping_add(1));
        if next.is_after(epoch) {
            epoch = next;
        }
    }
    let mtu = members.iter().map(|it| it.hello.mtu).min().unwrap_or(0);
    for (rank, member) in members.iter().enumerate() {
        let successor = members[(rank + 1) % members.len()].hello;
        let predecessor = members[(rank + members.len() - 1) % members.len()].hello;
        let welcome = Welcome {
            epoch,
            mtu,
            successor: Neighbour {
                address: successor.address,
                qp: successor.from,
                psn: member.hello.psn,
            },
            predecessor: Neighbour {
                address: predecessor.address,
                qp: predecessor.to,
                psn: predecessor.psn,
            },
        };
        let [challenge, nonce] = &member.nonces;
        let body = frame::seal_welcome(ring, [challenge, nonce], &welcome);
        frame::write(&member.stream, kind::WELCOME, &body)
            .map_err(|error| failed(rank as u8, &error.to_string()))?;
    }
    Ok(())
}

/// Ticks since 1970, the low 32 bits.
fn ticks() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    (now.unwrap_or_default().as_millis() / TICK.as_millis()) as u32
}

/// Barriers, until all members have left.
fn serve(
    members: &[Option<Joined>],
    stall: Option<Duration>,
    incoming: &Receiver<Event>,
) -> Outcome {
    let mut entered: Vec<Option<Entry>> = members.iter().map(|_| None).collect();
    // Of the first one that has entered an all-reduce.
    let mut deadline: Option<Instant> = None;
    loop {
        let event = match deadline {
            None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => incoming.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        let event = match event {
            Ok(event) => event,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return Err(missing(&entered, stall).into()),
        };
        if matches!(event, Event::Dropped) {
            return Err(failed(0, GONE));
        }
        let (Event::Entered(of, _) | Event::Failed(of, _) | Event::Ended(of)) = event else {
            continue;
        };
        let Some(rank) = rank_of(members, of) else {
            continue;
        };
        match event {
            Event::Entered(_, entry) => {
                if entry.call != Call::Leave && deadline.is_none() {
                    deadline = stall.map(|it| Instant::now() + it);
                }
                entered[usize::from(rank)] = Some(entry);
            }
            Event::Failed(_, why) => return Err(failed(rank, &why)),
            _ => return Err(format!("rank {rank} has died").into()),
        }
        if !entered.iter().all(Option::is_some) {
            continue;
        }
        deadline = None;
        let calls: Vec<_> = entered.iter_mut().filter_map(Option::take).collect();
        if let Some(rank) = calls.iter().position(|it| *it != calls[0]) {
            let (first, other) = (&calls[0], &calls[rank]);
            return Err(format!("rank 0 sums {first}, rank {rank} {other}").into());
        }
        for (rank, member) in members.iter().flatten().enumerate() {
            frame::write(&member.stream, kind::GO, &[])
                .map_err(|error| failed(rank as u8, &error.to_string()))?;
        }
        if calls[0].call == Call::Leave {
            return Ok(());
        }
    }
    Err("no connection is left".to_owned().into())
}

/// The error of a stall: what the first member has entered, and ranks that have not.
fn missing(entered: &[Option<Entry>], stall: Option<Duration>) -> String {
    let ranks = entered.iter().enumerate().filter(|(_, it)| it.is_none());
    let ranks: Vec<_> = ranks.map(|(rank, _)| rank.to_string()).collect();
    let what = entered.iter().flatten().next();
    let what = what.map_or_else(String::new, ToString::to_string);
    let limit = stall.unwrap_or_default();
    format!(
        "ranks that did not come to {what} within {limit:?}: {}",
        ranks.join(", ")
    )
}

fn rank_of(members: &[Option<Joined>], connection: Connection) -> Option<u8> {
    let is_it = |it: &Option<Joined>| it.as_ref().is_some_and(|it| it.connection == connection);
    members.iter().position(is_it).map(|rank| rank as u8)
}

fn failed(rank: u8, why: &str) -> Failure {
    Failure {
        of: Some(rank),
        why: format!("rank {rank}: {why}"),
    }
}

/// A connection: its hello, then what it says until it ends.
fn listen(
    connection: Connection,
    stream: TcpStream,
    ring: &RingConfig,
    limit: Duration,
    events: &Sender<Event>,
) {
    let joined = identify(connection, stream, ring, limit);
    let Some((joined, stream)) = joined else {
        let _ = events.send(Event::Stranger);
        return;
    };
    if events.send(Event::Hello(Box::new(joined))).is_err() {
        return;
    }
    loop {
        let event = match frame::read(&stream) {
            Ok(frame) if frame.kind == kind::ENTER => match frame::parse_call(&frame.body) {
                Some((call, name)) => Event::Entered(connection, Entry { call, name }),
                None => Event::Failed(connection, "an unknown call".into()),
            },
            Ok(frame) if frame.kind == kind::FAILED => {
                let why = String::from_utf8_lossy(&frame.body).into_owned();
                Event::Failed(connection, why)
            }
            Ok(frame) => Event::Failed(connection, format!("a frame of type {}", frame.kind)),
            Err(_) => Event::Ended(connection),
        };
        let is_last = !matches!(event, Event::Entered(..));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// A connection that proves to be a member's.
fn identify(
    connection: Connection,
    stream: TcpStream,
    ring: &RingConfig,
    limit: Duration,
) -> Option<(Joined, TcpStream)> {
    prepare(&stream).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    let challenge = frame::nonce().ok()?;
    frame::write(&stream, kind::CHALLENGE, &challenge).ok()?;
    let answer = frame::read(&stream).ok()?;
    let opened = (answer.kind == kind::HELLO)
        .then(|| frame::open_hello(ring, &challenge, &answer.body))
        .flatten();
    let Some((nonce, hello)) = opened else {
        let why = "wrong key, ring, or number of members";
        let _ = frame::write(&stream, kind::FAILED, why.as_bytes());
        return None;
    };
    stream.set_read_timeout(None).ok()?;
    let joined = Joined {
        connection,
        hello,
        nonces: [challenge, nonce],
        stream: stream.try_clone().ok()?,
    };
    Some((joined, stream))
}
