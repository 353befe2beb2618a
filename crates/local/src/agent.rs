//! The agent's side: new connections, and the requests of each accepted process.

mod handover;

use crate::client::too_much;
use crate::collective::{Awaited, Hello, Operation, Submission};
use crate::error::{Class, Failure, LocalError};
use crate::lock;
use crate::memory::{self, Mapping, Span};
use crate::message::{FromAgent, FromProcess, MESSAGE_BYTES_MAX, NO_REGION, VERSION, cut};
use crate::socket::{self, Credentials, Presence, Seqpacket};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Connections that have not said who they are; with more, the oldest has to go.
const SILENT_MAX: usize = 64;
/// For saying it.
const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks whether a process, whose socket is still open, has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Messages taken at a time that want no answer from the caller.
const MESSAGES_MAX: usize = 16;
/// For a pause, where the system has no descriptors left.
const EXHAUSTED: Duration = Duration::from_millis(20);

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The socket file's mode: users with write permission may connect.
    pub mode: u32,
    /// Its group, if it is not the agent's own.
    pub group: Option<u32>,
}

/// What one process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Collectives under way.
    pub submitted: u32,
    /// Regions at a time.
    pub regions: u32,
    /// Bytes of all its regions.
    pub memory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            submitted: 1024,
            regions: 64,
            memory_bytes: 16 << 30,
        }
    }
}

/// The socket that processes come to.
pub struct Listener {
    socket: Seqpacket,
    path: PathBuf,
    /// Held as long as we listen, so that no other agent does.
    lock_file: File,
    /// Of the socket file, which another agent might have put in place of ours.
    file: (u64, u64),
    silent: VecDeque<(Seqpacket, Instant)>,
    /// Another agent listens now.
    has_resigned: bool,
    /// The socket file goes with this.
    owns_file: bool,
}

/// A new connection, by its first message.
#[derive(Debug)]
pub enum Caller {
    /// A process that wants to be a rank of a job.
    Process(PendingPeer),
    /// A client that asks for the agent's status.
    Status(StatusClient),
}

/// A process that asks to be a rank, not yet accepted or refused.
#[derive(Debug)]
pub struct PendingPeer {
    socket: Seqpacket,
    hello: Hello,
    credentials: Credentials,
}

/// A client that asks for the agent's status.
#[derive(Debug)]
pub struct StatusClient {
    socket: Seqpacket,
}

impl Listener {
    /// Listens at `path`, in place of an agent that ended without removing its socket. Beside it
    /// there is a file with `.lock` behind its name, which stays.
    ///
    /// # Errors
    /// If another agent listens there, something else is there, or the system refuses.
    pub fn bind(path: &Path, access: Access) -> Result<Self, LocalError> {
        let problem = |problem: String| LocalError::Listen {
            path: path.to_owned(),
            problem,
        };
        let lock = lock::lock(path).map_err(problem)?;
        lock::make_way(path).map_err(problem)?;
        let open = || {
            let socket = Seqpacket::new()?;
            // Who has not been let in yet has nothing to share, and could stop us with it.
            socket.pass_descriptors(false);
            socket.listen(path)?;
            if access.group.is_some() {
                std::os::unix::fs::chown(path, None, access.group)?;
            }
            fs::set_permissions(path, Permissions::from_mode(access.mode))?;
            let found = fs::symlink_metadata(path)?;
            Ok((socket, (found.dev(), found.ino())))
        };
        let (socket, file) = open().map_err(|why: io::Error| problem(why.to_string()))?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            lock_file: lock,
            file,
            silent: VecDeque::new(),
            has_resigned: false,
            owns_file: true,
        })
    }

    /// Waits for the next one who says what it wants, but not longer than `most`. Those who say
    /// something else are refused, those who say nothing are dropped.
    ///
    /// # Errors
    /// If the socket is broken for good.
    pub fn next(&mut self, most: Duration) -> Result<Option<Caller>, LocalError> {
        let deadline = Instant::now() + most;
        loop {
            if !self.has_resigned {
                self.admit();
            }
            if let Some(caller) = self.receive() {
                return Ok(Some(caller));
            }
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                return Ok(None);
            }
            let oldest = self.silent.front().map(|(_, since)| *since + HELLO_WITHIN);
            let until = oldest.map_or(left, |at| left.min(at.saturating_duration_since(now)));
            let sockets = self.silent.iter().map(|(socket, _)| socket);
            let listening = (!self.has_resigned).then_some(&self.socket);
            let fds: Vec<_> = listening
                .into_iter()
                .chain(sockets)
                .map(|socket| (socket.as_fd(), false))
                .collect();
            socket::wait(&fds, Some(until)).map_err(|why| LocalError::Listen {
                path: self.path.clone(),
                problem: why.to_string(),
            })?;
        }
    }

    /// Accepts new connections.
    fn admit(&mut self) {
        for _ in 0..SILENT_MAX {
            match self.socket.accept() {
                Ok(socket) => {
                    if self.silent.len() == SILENT_MAX {
                        self.silent.pop_front();
                    }
                    self.silent.push_back((socket, Instant::now()));
                }
                Err(why) => {
                    let code = why.raw_os_error();
                    if [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS]
                        .map(Some)
                        .contains(&code)
                    {
                        // The connection stays where it is, and would wake us at once.
                        std::thread::sleep(EXHAUSTED);
                    }
                    return;
                }
            }
        }
    }

    /// The first connection whose first message is valid.
    fn receive(&mut self) -> Option<Caller> {
        let mut at = 0;
        while at < self.silent.len() {
            let mut room = [0; MESSAGE_BYTES_MAX];
            let (socket, since) = &self.silent[at];
            let message = match socket.receive_bytes(&mut room) {
                Ok(got) if got.bytes > 0 => {
                    let message = FromProcess::parse(&room[..got.bytes]);
                    message.filter(|_| !got.cut_off)
                }
                Err(why)
                    if why.kind() == io::ErrorKind::WouldBlock
                        && since.elapsed() < HELLO_WITHIN =>
                {
                    at += 1;
                    continue;
                }
                Ok(_) | Err(_) => {
                    self.silent.remove(at);
                    continue;
                }
            };
            let (socket, _) = self.silent.remove(at)?;
            match message {
                Some(FromProcess::Hello(VERSION, Some(hello))) => {
                    // Credentials only complete the texts of errors.
                    let credentials = socket.credentials();
                    let credentials = credentials.unwrap_or(Credentials { pid: 0, uid: 0 });
                    return Some(Caller::Process(PendingPeer {
                        socket,
                        hello,
                        credentials,
                    }));
                }
                Some(FromProcess::Status(VERSION)) => {
                    return Some(Caller::Status(StatusClient { socket }));
                }
                Some(FromProcess::Hello(version, _) | FromProcess::Status(version)) => {
                    let text = format!(
                        "the process speaks version {version} of the local interface, and this agent version \
                         {VERSION}: install both from one release of Tally"
                    );
                    refuse(&socket, Failure::new(Class::Version, text));
                }
                _ => {
                    let text = "the first message must say who it is from (Hello)";
                    refuse(&socket, Failure::new(Class::Malformed, text));
                }
            }
        }
        None
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.path.display())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if ours && self.owns_file {
            // It may have ended since.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn refuse(socket: &Seqpacket, failure: Failure) {
    let mut out = Vec::new();
    FromAgent::Refused(failure).emit(&mut out);
    // A process that is gone needs no answer.
    let _ = socket.send(&out, None);
    socket.shut_down();
}

impl PendingPeer {
    /// Who it wants to be.
    #[must_use]
    pub fn hello(&self) -> Hello {
        self.hello
    }

    /// Its process, as the agent's PID namespace numbers it; 0 if it does not.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.credentials.pid
    }

    /// Its user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.credentials.uid
    }

    /// Watches for its end, even before its session does.
    #[must_use]
    pub fn presence(&self) -> Presence {
        self.socket.presence()
    }

    /// Sends it away.
    pub fn refuse(self, failure: Failure) {
        refuse(&self.socket, failure);
    }

    /// Lets it in.
    #[must_use]
    pub fn accept(self, limits: Limits) -> Peer {
        self.socket.pass_descriptors(true);
        let process = self.socket.process();
        let fds: Vec<_> = std::iter::once(self.socket.as_fd())
            .chain(process.iter().map(AsFd::as_fd))
            .collect();
        let either = socket::either(&fds).ok();
        let mut peer = Peer {
            socket: self.socket,
            process,
            either,
            looked: Instant::now(),
            limits,
            regions: HashMap::new(),
            released: Vec::new(),
            next_ticket: 0,
            under_way: 0,
            queue: VecDeque::new(),
            out: Vec::with_capacity(MESSAGE_BYTES_MAX),
            room: vec![0; MESSAGE_BYTES_MAX].into(),
        };
        peer.say(&FromAgent::Welcome {
            version: VERSION,
            submitted: limits.submitted,
            regions: limits.regions,
            memory_bytes: limits.memory_bytes,
        });
        peer
    }
}

impl StatusClient {
    /// Tells, in up to `most`.
    pub fn answer(self, text: &str, most: Duration) {
        let deadline = Instant::now() + most;
        let mut out = Vec::new();
        let mut rest = text;
        loop {
            let part = cut(rest, MESSAGE_BYTES_MAX - 4);
            rest = &rest[part.len()..];
            let (last, text) = (rest.is_empty(), part.to_owned());
            FromAgent::Text { last, text }.emit(&mut out);
            while let Err(why) = self.socket.send(&out, None) {
                let left = deadline.saturating_duration_since(Instant::now());
                if why.kind() != io::ErrorKind::WouldBlock || left.is_zero() {
                    return;
                }
                // If it fails, so will sending.
                let _ = socket::wait(&[(self.socket.as_fd(), true)], Some(left));
            }
            if last {
                return;
            }
        }
    }
}

/// A process that was let in. Dropping it ends the connection.
pub struct Peer {
    socket: Seqpacket,
    /// Readable when the process has ended.
    process: Option<OwnedFd>,
    /// Readable when either of the two is.
    either: Option<OwnedFd>,
    looked: Instant,
    limits: Limits,
    regions: HashMap<u32, Arc<Mapping>>,
    /// Those that collectives may still be using.
    released: Vec<Weak<Mapping>>,
    /// No ticket is below.
    next_ticket: u64,
    under_way: u32,
    /// What the process has had no room for.
    queue: VecDeque<Vec<u8>>,
    out: Vec<u8>,
    room: Box<[u8]>,
}

/// What a process wants.
#[derive(Debug)]
pub enum Request {
    /// A collective.
    Submit {
        /// What it calls it.
        ticket: u64,
        /// What is to be done.
        submission: Submission,
        /// The elements, whole ones.
        span: Span,
    },
    /// To leave when all is done.
    Finish,
    /// To have collectives counted that another library did.
    Fallback {
        /// Their kind: 1 to 32 ASCII letters, digits, `_`, `-` and `.`.
        kind: String,
        /// How many.
        count: u64,
    },
    /// To know what its oldest collective waits for: [`Peer::notify`].
    Ask {
        /// What it calls the question.
        question: u64,
    },
    /// Nothing more: it has ended.
    Closed,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (regions, under_way) = (self.regions.len(), self.under_way);
        write!(f, "Peer({regions} regions, {under_way} under way)")
    }
}

impl AsFd for Peer {
    /// What becomes readable when there is something to [`receive`](Peer::receive).
    fn as_fd(&self) -> BorrowedFd<'_> {
        let either = self.either.as_ref().map(AsFd::as_fd);
        either.unwrap_or(self.socket.as_fd())
    }
}

impl Peer {
    /// Whether the end of the process is noticed even if another process has its socket.
    #[must_use]
    pub fn watches_process(&self) -> bool {
        self.process.is_some()
    }

    /// What the process wants next, if it wants anything. Doesn't wait.
    ///
    /// # Errors
    /// If it does not keep to the interface. Tell it ([`fail`](Self::fail)), and drop it.
    pub fn receive(&mut self) -> Result<Option<Request>, Failure> {
        self.flush();
        // A process that only maps and releases does not keep its session from its other work.
        for _ in 0..MESSAGES_MAX {
            let got = match self.socket.receive(&mut self.room) {
                Ok(got) if got.bytes > 0 => got,
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(self.has_ended().then_some(Request::Closed));
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Ok(_) | Err(_) => return Ok(Some(Request::Closed)),
            };
            let message = FromProcess::parse(&self.room[..got.bytes]).filter(|_| !got.cut_off);
            let message = message.ok_or_else(|| malformed("a message that is none"))?;
            // Each answer fits, unless they are not read.
            let answers_max = 2 * self.limits.submitted as usize + 64;
            if self.queue.len() > answers_max {
                return Err(malformed("it does not read what it is told"));
            }
            match (message, got.fd) {
                (FromProcess::Region { id, bytes }, Some(fd)) => self.map(id, bytes, &fd)?,
                (FromProcess::Release { id }, None) => {
                    let mapping = self.regions.remove(&id);
                    let mapping = mapping.ok_or_else(|| malformed("there is no such region"))?;
                    self.released.push(Arc::downgrade(&mapping));
                }
                (
                    FromProcess::Submit {
                        region,
                        ticket,
                        at,
                        elements,
                        submission,
                    },
                    None,
                ) => {
                    let span = self.span(region, at, elements, &submission)?;
                    if ticket < self.next_ticket || ticket == u64::MAX {
                        return Err(malformed("tickets must go up"));
                    }
                    if self.under_way >= self.limits.submitted {
                        return Err(malformed("too many collectives are under way"));
                    }
                    self.next_ticket = ticket + 1;
                    self.under_way += 1;
                    return Ok(Some(Request::Submit {
                        ticket,
                        submission,
                        span,
                    }));
                }
                (FromProcess::Finish, None) => return Ok(Some(Request::Finish)),
                (FromProcess::Fallback { kind, count }, None) => {
                    return Ok(Some(Request::Fallback { kind, count }));
                }
                (FromProcess::Ask { question }, None) => {
                    return Ok(Some(Request::Ask { question }));
                }
                (FromProcess::Region { .. }, None) => {
                    return Err(malformed("a region without its memory"));
                }
                (FromProcess::Hello(..) | FromProcess::Status(_), _) => {
                    return Err(malformed("it has said who it is"));
                }
                (_, Some(_)) => {
                    return Err(malformed(
                        "a file descriptor without a message that takes one",
                    ));
                }
            }
        }
        Ok(None)
    }

    fn map(&mut self, id: u32, bytes: u64, fd: &OwnedFd) -> Result<(), Failure> {
        if id == NO_REGION || self.regions.contains_key(&id) {
            return Err(malformed("the region's number is taken"));
        }
        self.released.retain(|it| it.strong_count() > 0);
        let (regions, memory) = self.held();
        let failure = if regions >= self.limits.regions as usize {
            let text = format!("it has {regions} regions, which is the agent's limit");
            Failure::new(Class::Limit, text)
        } else if bytes > self.limits.memory_bytes.saturating_sub(memory) {
            let text = too_much(bytes, memory, self.limits.memory_bytes);
            Failure::new(Class::Limit, text)
        } else {
            match memory::accept(fd, bytes) {
                Ok(mapping) => {
                    self.regions.insert(id, Arc::new(mapping));
                    self.say(&FromAgent::Mapped { id });
                    return Ok(());
                }
                Err(failure) => failure,
            }
        };
        let Failure { class, text, .. } = failure;
        self.say(&FromAgent::Unmapped { id, class, text });
        Ok(())
    }

    /// Regions that are mapped for it, and their bytes.
    fn held(&self) -> (usize, u64) {
        let released: Vec<_> = self.released.iter().filter_map(Weak::upgrade).collect();
        let all = self.regions.values().chain(&released);
        all.fold((0, 0), |(n, bytes), it| (n + 1, bytes + it.bytes() as u64))
    }

    fn span(
        &self,
        region: u32,
        at: u64,
        elements: u64,
        submission: &Submission,
    ) -> Result<Span, Failure> {
        if submission.operation == Operation::Barrier {
            let nothing = (region, at, elements) == (NO_REGION, 0, 0);
            return nothing
                .then(Span::empty)
                .ok_or_else(|| malformed("a barrier has no elements"));
        }
        let mapping = self.regions.get(&region);
        let mapping = mapping.ok_or_else(|| malformed("there is no such region"))?;
        elements
            .checked_mul(submission.dtype.bytes() as u64)
            .and_then(|bytes| Span::new(mapping, at, bytes))
            .ok_or_else(|| malformed("elements outside of their region"))
    }

    /// Tells the process that a collective is done. Its span must have been dropped, or not be
    /// written any more.
    pub fn complete(&mut self, ticket: u64) {
        debug_assert!(self.under_way > 0 && ticket < self.next_ticket);
        self.under_way = self.under_way.saturating_sub(1);
        self.say(&FromAgent::Done { ticket });
    }

    /// Answers what the process asked.
    pub fn notify(&mut self, question: u64, awaited: Awaited) {
        self.say(&FromAgent::Awaited { question, awaited });
    }

    /// Tells the process that the job has failed.
    pub fn fail(&mut self, failure: &Failure) {
        self.say(&FromAgent::Failed(failure.clone()));
    }

    /// Tells the process that the job is left, as it wanted.
    pub fn finished(&mut self) {
        self.say(&FromAgent::Finished);
    }

    fn say(&mut self, message: &FromAgent) {
        message.emit(&mut self.out);
        self.flush();
        if !self.queue.is_empty() || is_full(self.socket.send(&self.out, None)) {
            self.queue.push_back(self.out.clone());
        }
    }

    /// Sends what there was no room for before.
    fn flush(&mut self) {
        while let Some(message) = self.queue.front() {
            if is_full(self.socket.send(message, None)) {
                return;
            }
            self.queue.pop_front();
        }
    }

    fn has_ended(&mut self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        if self.looked.elapsed() < LOOK_EVERY {
            return false;
        }
        self.looked = Instant::now();
        socket::wait(&[(process.as_fd(), false)], Some(Duration::ZERO)).is_ok_and(|it| it[0])
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A child of the process may have the other end.
        self.socket.shut_down();
    }
}

/// Whether there was no room. Other errors mean the end of the process, which receiving finds out.
fn is_full(sent: io::Result<()>) -> bool {
    sent.is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock)
}

fn malformed(what: &str) -> Failure {
    let text = format!("the process does not keep to the agent's local interface: {what}");
    Failure::new(Class::Malformed, text)
}
