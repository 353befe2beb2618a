//! A connection that several threads use, and the shared memory of its collectives.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tally_local::{Class, Client, Hello, LocalError, Region, Submission};

/// The smallest block.
const BLOCK_BYTES_MIN: usize = 64 << 10;
/// Larger blocks are multiples of this, smaller ones powers of two.
const BLOCK_BYTES_STEP: usize = 64 << 20;
/// A free block is taken for a tensor that fills at least one part in so many of it.
const WASTE_MAX: usize = 4;
/// Blocks that wait to be used again. The agent takes 256 regions.
const FREE_MAX: usize = 64;

/// What goes wrong.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// The job was finished or aborted before.
    Closed,
    /// The connection is another process's.
    Forked,
    /// All else.
    Local(LocalError),
}

impl From<LocalError> for Wrong {
    fn from(error: LocalError) -> Self {
        Self::Local(error)
    }
}

impl Wrong {
    /// The same, after a wait that was cut into several.
    pub(crate) fn after(mut self, all: Duration) -> Self {
        if let Self::Local(LocalError::Timeout { after, .. }) = &mut self {
            *after = all;
        }
        self
    }
}

/// Wakes the thread that watches the socket.
struct Wake {
    reader: UnixStream,
    writer: UnixStream,
}

impl Wake {
    fn new() -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    fn wake(&self) {
        // Full is awake enough.
        let _ = (&self.writer).write(&[1]);
    }

    fn clear(&self) {
        let mut room = [0; 64];
        while matches!((&self.reader).read(&mut room), Ok(1..)) {}
    }
}

/// One rank's place in a job.
pub(crate) struct Job {
    state: Mutex<State>,
    /// Some thread's collective is done, or nobody watches the socket.
    changed: Condvar,
    wake: Wake,
    hello: Hello,
    process: u32,
}

struct State {
    /// None once closed.
    client: Option<Client>,
    /// The client's socket, for watching it without the client. It must go with the client, or the agent would not see
    /// the end of it.
    socket: Option<Arc<OwnedFd>>,
    /// What is submitted, with its memory, if it needs any, and its name.
    running: HashMap<u64, (Option<Region>, String)>,
    done: HashMap<u64, Option<Region>>,
    /// Nobody waits for these.
    abandoned: HashSet<u64>,
    free: Vec<Region>,
    /// A thread watches the socket.
    is_watched: bool,
}

impl State {
    fn client(&mut self) -> Result<&mut Client, Wrong> {
        self.client.as_mut().ok_or(Wrong::Closed)
    }

    /// Takes what the agent says is done.
    fn drain(&mut self) -> Result<(), Wrong> {
        while let Some(ticket) = self.client()?.poll()? {
            let Some((block, _)) = self.running.remove(&ticket) else {
                continue;
            };
            if self.abandoned.remove(&ticket) {
                block.into_iter().for_each(|it| self.keep(it));
            } else {
                self.done.insert(ticket, block);
            }
        }
        Ok(())
    }

    fn keep(&mut self, block: Region) {
        if self.free.len() < FREE_MAX && self.client.is_some() {
            self.free.push(block);
        }
    }
}

/// The size of the block for a tensor.
fn block_bytes(bytes: usize) -> usize {
    if bytes > BLOCK_BYTES_STEP {
        bytes.next_multiple_of(BLOCK_BYTES_STEP)
    } else {
        bytes.next_power_of_two().max(BLOCK_BYTES_MIN)
    }
}

impl Job {
    pub(crate) fn connect(socket: &Path, hello: &Hello, timeout: Duration) -> Result<Self, Wrong> {
        let client = Client::connect(socket, hello, timeout)?;
        let system = |source| LocalError::System {
            what: "watching the agent".into(),
            source,
        };
        let socket = client.as_fd().try_clone_to_owned().map_err(system)?;
        let state = State {
            client: Some(client),
            socket: Some(Arc::new(socket)),
            running: HashMap::new(),
            done: HashMap::new(),
            abandoned: HashSet::new(),
            free: Vec::new(),
            is_watched: false,
        };
        Ok(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake: Wake::new().map_err(system)?,
            hello: *hello,
            process: std::process::id(),
        })
    }

    /// Whatever a thread that panicked left is whole: no step in here is half done when it could panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, in the process that it belongs to.
    fn own(&self) -> Result<MutexGuard<'_, State>, Wrong> {
        if std::process::id() == self.process {
            Ok(self.state())
        } else {
            Err(Wrong::Forked)
        }
    }

    /// Has whoever waits look again: somebody else took messages.
    fn announce(&self, state: &State) {
        if state.is_watched {
            self.wake.wake();
        }
        self.changed.notify_all();
    }

    /// Memory for `bytes` bytes.
    pub(crate) fn block(&self, bytes: usize) -> Result<Region, Wrong> {
        let mut state = self.own()?;
        state.client()?;
        let fits = |it: &Region| {
            it.bytes() >= bytes
                && (it.bytes() == BLOCK_BYTES_MIN || it.bytes() / WASTE_MAX <= bytes)
        };
        let free = state.free.iter().enumerate();
        let best = free
            .filter(|(_, it)| fits(it))
            .min_by_key(|(_, it)| it.bytes());
        if let Some((at, _)) = best {
            return Ok(state.free.swap_remove(at));
        }
        let size = block_bytes(bytes);
        let block = match state.client()?.region(size) {
            Err(LocalError::Refused { failure, .. })
                if failure.class == Class::Limit && !state.free.is_empty() =>
            {
                // What lies around may be what is missing.
                state.free.clear();
                state.client()?.region(size)
            }
            block => block,
        };
        self.announce(&state);
        Ok(block?)
    }

    pub(crate) fn give_back(&self, block: Region) {
        self.state().keep(block);
    }

    pub(crate) fn submit(
        &self,
        block: Region,
        elements: usize,
        submission: &Submission,
    ) -> Result<u64, Wrong> {
        let mut state = self.own()?;
        let ticket = state.client()?.submit(&block, 0, elements, submission);
        self.submitted(&mut state, ticket, Some(block), &submission.name)
    }

    pub(crate) fn barrier(&self, name: &str) -> Result<u64, Wrong> {
        let mut state = self.own()?;
        let ticket = state.client()?.barrier(name);
        self.submitted(&mut state, ticket, None, name)
    }

    fn submitted(
        &self,
        state: &mut State,
        ticket: Result<u64, LocalError>,
        block: Option<Region>,
        name: &str,
    ) -> Result<u64, Wrong> {
        if let Ok(ticket) = ticket {
            state.running.insert(ticket, (block, name.to_owned()));
        }
        // It may have had to wait for room, and taken messages for others.
        self.announce(state);
        Ok(ticket?)
    }

    /// Waits for a collective, and returns its memory with the results, if it has any.
    pub(crate) fn wait(&self, ticket: u64, most: Duration) -> Result<Option<Region>, Wrong> {
        let deadline = Instant::now() + most;
        let mut state = self.own()?;
        loop {
            if !state.done.contains_key(&ticket) {
                let drained = state.drain();
                if let Some(block) = state.done.remove(&ticket) {
                    self.announce(&state);
                    return Ok(block);
                }
                drained?;
            }
            if let Some(block) = state.done.remove(&ticket) {
                return Ok(block);
            }
            let Some((_, name)) = state.running.get(&ticket) else {
                let text = format!("ticket {ticket} is not under way, or was waited for before");
                return Err(LocalError::Argument(text).into());
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let Hello { job, rank, .. } = self.hello;
                let what = format!("`{name}`");
                return Err(LocalError::Timeout {
                    job,
                    rank,
                    what,
                    after: most,
                }
                .into());
            }
            if state.is_watched {
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let socket = state.socket.clone().ok_or(Wrong::Closed)?;
            state.is_watched = true;
            drop(state);
            self.watch(&socket, left);
            drop(socket);
            state = self.state();
            state.is_watched = false;
            self.changed.notify_all();
        }
    }

    /// Until the agent says something, or another thread wakes us.
    fn watch(&self, socket: &OwnedFd, most: Duration) {
        let mut fds = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wake.reader.as_fd(), PollFlags::POLLIN),
        ];
        // Rounded up: a wait of less than a millisecond is one.
        let millis = u16::try_from(most.as_millis() + 1).unwrap_or(u16::MAX);
        // Whatever happened, the caller looks for itself.
        let _ = poll(&mut fds, PollTimeout::from(millis));
        self.wake.clear();
    }

    pub(crate) fn abandon(&self, ticket: u64) {
        let mut state = self.state();
        if let Some(block) = state.done.remove(&ticket) {
            block.into_iter().for_each(|it| state.keep(it));
        } else if state.running.contains_key(&ticket) {
            state.abandoned.insert(ticket);
        }
    }

    pub(crate) fn finish(&self, most: Duration) -> Result<(), Wrong> {
        let mut state = self.own()?;
        let client = state.client.take();
        state.socket = None;
        state.free.clear();
        self.announce(&state);
        drop(state);
        client.ok_or(Wrong::Closed)?.finish(Some(most))?;
        Ok(())
    }

    pub(crate) fn abort(&self) {
        let mut state = self.state();
        state.client = None;
        state.socket = None;
        state.free.clear();
        self.announce(&state);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().client.is_none()
    }
}
