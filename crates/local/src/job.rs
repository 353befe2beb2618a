//! A rank's place in a job, for the threads of a process: what bindings to other languages are made
//! of.
//!
//! # How it works
//!
//! Threads share one [`Client`] under a lock, and none waits while it holds it. The thread that
//! waits first watches the socket, without the client, so that others can submit meanwhile; the
//! rest sleep until that one has seen something. A thread that submits, or only looks, takes
//! messages too, which may be for others: it wakes them.
//!
//! # The catches
//!
//! * A forked child has all of this memory, and the locks as they were. Everything here refuses it.

use crate::client::{ANSWER_WITHIN, Client, check_kind};
use crate::collective::{Awaited, Hello, Submission};
use crate::connect::Retry;
use crate::error::{Class, JobError, LocalError};
use crate::fallback::Fallbacks;
use crate::memory::Region;
use crate::socket;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The smallest block. There may be more of these than an agent takes regions.
const BLOCK_BYTES_MIN: usize = 64 << 10;
/// A region that is cut into the smallest blocks.
const SLAB_BYTES: usize = 1 << 20;
const _: () = assert!(SLAB_BYTES.is_multiple_of(BLOCK_BYTES_MIN));
/// Larger blocks are multiples of this, smaller ones powers of two.
const BLOCK_BYTES_STEP: usize = 64 << 20;
/// A free block is taken for elements that fill at least this part (1/n) of it.
const WASTE_MAX: usize = 4;
/// Larger blocks than the smallest that wait to be used again. The agent takes 256 regions.
const FREE_MAX: usize = 64;
/// The longest wait: more than anyone has, and little enough to be added to a time.
const WAIT_MAX: Duration = Duration::from_secs(1 << 30);

/// Wakes the thread that watches the socket.
struct Wake {
    reader: UnixStream,
    writer: UnixStream,
}

impl Wake {
    fn new() -> io::Result<Self> {
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

/// Memory that the job lends for one collective, and uses again.
#[derive(Debug)]
pub struct Block {
    region: Region,
    at: usize,
    bytes: usize,
}

impl Block {
    /// Copies the bytes from the start.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn read(&self, into: &mut [u8]) {
        self.check(into.len());
        self.region.read(self.at, into);
    }

    /// Copies bytes to the start.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, from: &[u8]) {
        self.check(from.len());
        self.region.write(self.at, from);
    }

    /// The next one is another's.
    fn check(&self, bytes: usize) {
        assert!(bytes <= self.bytes, "outside of a block");
    }

    fn is_small(&self) -> bool {
        self.bytes == BLOCK_BYTES_MIN
    }
}

/// One rank's place in a job, which threads may share.
///
/// All ranks must submit the same collectives in the same order, so threads that submit need an
/// order among themselves. It ends as a [`Client`] does.
pub struct Job {
    state: Mutex<State>,
    /// Messages were taken, or no thread watches the socket.
    changed: Condvar,
    wake: Wake,
    /// Not sent yet. Never locked for long, and only after `state` where a thread holds both.
    fallbacks: Mutex<Fallbacks>,
    hello: Hello,
    process: u32,
}

struct State {
    /// None once closed.
    client: Option<Client>,
    /// The client's socket, for watching it without the client.
    socket: Option<Arc<OwnedFd>>,
    /// What is submitted, with its block, if it has one, and its name.
    running: HashMap<u64, (Option<Block>, String)>,
    done: HashMap<u64, Option<Block>>,
    /// No thread waits for these.
    abandoned: HashSet<u64>,
    free: Vec<Block>,
    /// A thread watches the socket.
    is_watched: bool,
}

impl State {
    fn client(&mut self) -> Result<&mut Client, JobError> {
        self.client.as_mut().ok_or(JobError::Closed)
    }

    /// Takes what the agent says is done, and says whether anything is.
    fn drain(&mut self) -> Result<bool, JobError> {
        let mut any = false;
        while let Some(ticket) = self.client()?.poll()? {
            any = true;
            let Some((block, _)) = self.running.remove(&ticket) else {
                continue;
            };
            if self.abandoned.remove(&ticket) {
                block.into_iter().for_each(|it| self.keep(it));
            } else {
                self.done.insert(ticket, block);
            }
        }
        Ok(any)
    }

    fn keep(&mut self, block: Block) {
        let is_kept =
            block.is_small() || self.free.iter().filter(|it| !it.is_small()).count() < FREE_MAX;
        if is_kept && self.client.is_some() {
            self.free.push(block);
        }
    }

    fn close(&mut self) -> Option<Client> {
        self.socket = None;
        self.free.clear();
        self.client.take()
    }
}

/// The size of the block for a tensor.
fn block_bytes(bytes: usize) -> usize {
    if bytes > BLOCK_BYTES_STEP {
        // What overflows is refused like all else that is too large.
        let whole = bytes.checked_next_multiple_of(BLOCK_BYTES_STEP);
        whole.unwrap_or(usize::MAX)
    } else {
        bytes.next_power_of_two().max(BLOCK_BYTES_MIN)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hello { job, rank, .. } = self.hello;
        write!(f, "Job(job {job} rank {rank})")
    }
}

impl Job {
    /// Joins, as [`Client::connect_while`] does.
    ///
    /// # Errors
    /// If there is no agent, or it refuses.
    pub fn connect(
        socket: &Path,
        hello: &Hello,
        timeout: Duration,
        wanted: impl FnMut(&Retry<'_>) -> bool,
    ) -> Result<Self, JobError> {
        let client = Client::connect_while(socket, hello, timeout.min(WAIT_MAX), wanted)?;
        let system = |why| LocalError::system("watching the agent", why);
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
            fallbacks: Mutex::default(),
            hello: *hello,
            process: std::process::id(),
        })
    }

    /// Who this is.
    #[must_use]
    pub fn hello(&self) -> Hello {
        self.hello
    }

    /// The state, in the process that it belongs to.
    fn own(&self) -> Result<MutexGuard<'_, State>, JobError> {
        if std::process::id() == self.process {
            Ok(self.lock())
        } else {
            Err(JobError::Forked)
        }
    }

    /// State that a panicked thread left is whole: no step in here is half done when it could
    /// panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes waiting threads: another one took messages.
    fn announce(&self, state: &State) {
        if state.is_watched {
            self.wake.wake();
        }
        self.changed.notify_all();
    }

    /// Makes memory for tensors that the agent sees too: `bytes` of it, all zero. It is there until
    /// its last clone is dropped, also when the job is not.
    ///
    /// # Errors
    /// If there is not as much, or the agent allows less.
    pub fn region(&self, bytes: usize) -> Result<Region, JobError> {
        let mut state = self.own()?;
        self.region_of(&mut state, bytes)
    }

    fn region_of(&self, state: &mut State, bytes: usize) -> Result<Region, JobError> {
        let region = match state.client()?.region(bytes) {
            Err(LocalError::Refused { failure, .. })
                if failure.class == Class::Limit && !state.free.is_empty() =>
            {
                // What lies around may be what is missing.
                state.free.clear();
                state.client()?.region(bytes)
            }
            region => region,
        };
        self.announce(state);
        Ok(region?)
    }

    /// Memory for the `bytes` bytes of the collective `name`, with its former contents.
    ///
    /// # Errors
    /// If there is not as much, or the agent allows less.
    pub fn block(&self, name: &str, bytes: usize) -> Result<Block, JobError> {
        let mut state = self.own()?;
        state.client()?;
        let fits =
            |it: &Block| it.bytes >= bytes && (it.is_small() || it.bytes / WASTE_MAX <= bytes);
        let free = state.free.iter().enumerate();
        let best = free
            .filter(|(_, it)| fits(it))
            .min_by_key(|(_, it)| it.bytes);
        if let Some((at, _)) = best {
            return Ok(state.free.swap_remove(at));
        }
        let size = block_bytes(bytes);
        if size == BLOCK_BYTES_MIN
            && let Ok(region) = state.client()?.region(SLAB_BYTES)
        {
            self.announce(&state);
            let starts = (BLOCK_BYTES_MIN..SLAB_BYTES).step_by(BLOCK_BYTES_MIN);
            let block = |at| Block {
                region: region.clone(),
                at,
                bytes: size,
            };
            state.free.extend(starts.map(block));
            return Ok(block(0));
        }
        let region = self.region_of(&mut state, size);
        let region = region.map_err(|error| error.at(name))?;
        Ok(Block {
            region,
            at: 0,
            bytes: size,
        })
    }

    /// Has a block used again.
    pub fn give_back(&self, block: Block) {
        if let Ok(mut state) = self.own() {
            state.keep(block);
        }
    }

    /// Submits a collective on a part of a region, as [`Client::submit`] does. If too many are in
    /// flight as the agent takes, this waits up to `most` for one of them. A region that is dropped
    /// meanwhile takes the results with it. Returns the ticket.
    ///
    /// # Errors
    /// If the elements are not in the region, the job has failed, or time is over.
    pub fn submit(
        &self,
        region: &Region,
        at: usize,
        elements: usize,
        submission: &Submission,
        most: Duration,
    ) -> Result<u64, JobError> {
        let mut state = self.with_room(&submission.name, most)?;
        let ticket = state.client()?.submit(region, at, elements, submission);
        self.submitted(&mut state, ticket, None, &submission.name)
    }

    /// The same, on the first `elements` elements of a block. [`wait`](Self::wait) gives it back.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub fn submit_block(
        &self,
        block: Block,
        elements: usize,
        submission: &Submission,
        most: Duration,
    ) -> Result<u64, JobError> {
        let mut state = self.with_room(&submission.name, most)?;
        let bytes = elements.checked_mul(submission.dtype.bytes());
        if bytes.is_none_or(|bytes| bytes > block.bytes) {
            let text = format!(
                "`{}`: more elements than the block has room for",
                submission.name
            );
            return Err(LocalError::Argument(text).into());
        }
        let Block { region, at, .. } = &block;
        let ticket = state.client()?.submit(region, *at, elements, submission);
        self.submitted(&mut state, ticket, Some(block), &submission.name)
    }

    /// Submits a barrier, as [`Client::barrier`] does. Returns the ticket.
    ///
    /// # Errors
    /// If the job has failed, or time is over.
    pub fn barrier(&self, name: &str, most: Duration) -> Result<u64, JobError> {
        let mut state = self.with_room(name, most)?;
        let ticket = state.client()?.barrier(name);
        self.submitted(&mut state, ticket, None, name)
    }

    /// Waits up to `most` until one more may be under way: then the collective `name` need not wait
    /// for that, unless another thread was quicker.
    ///
    /// # Errors
    /// If the job has failed, or time is over.
    pub fn room(&self, name: &str, most: Duration) -> Result<(), JobError> {
        self.with_room(name, most).map(drop)
    }

    /// The state, once one more may be under way.
    fn with_room(&self, name: &str, most: Duration) -> Result<MutexGuard<'_, State>, JobError> {
        let has_room = |state: &mut State| {
            let client = state.client.as_ref();
            let has = client.is_none_or(|it| it.under_way() < it.under_way_max());
            has.then_some(())
        };
        self.until(name, most, has_room).map(|(state, ())| state)
    }

    fn submitted(
        &self,
        state: &mut State,
        ticket: Result<u64, LocalError>,
        block: Option<Block>,
        name: &str,
    ) -> Result<u64, JobError> {
        // It may have had to wait for the agent, and taken messages for others.
        self.announce(state);
        self.send_fallbacks(state.client.as_mut());
        match ticket {
            Ok(ticket) => {
                state.running.insert(ticket, (block, name.to_owned()));
                Ok(ticket)
            }
            Err(error) => Err(JobError::from(error).at(name)),
        }
    }

    /// Waits up to `most` for a collective, and returns its block with the results, if it has one.
    /// With no time it only looks.
    ///
    /// # Errors
    /// If the job has failed, the agent has ended, the ticket is none, or time is over
    /// ([`LocalError::Timeout`]); then it can be waited for again.
    pub fn wait(&self, ticket: u64, most: Duration) -> Result<Option<Block>, JobError> {
        let state = self.own()?;
        let name = match state.running.get(&ticket) {
            Some((_, name)) => name.clone(),
            None if state.done.contains_key(&ticket) => String::new(),
            None => return Err(unknown(ticket)),
        };
        drop(state);
        let is_done = |state: &mut State| match state.done.remove(&ticket) {
            Some(block) => Some(Ok(block)),
            // Another thread waits for the same.
            None if !state.running.contains_key(&ticket) => Some(Err(unknown(ticket))),
            None => None,
        };
        self.until(&name, most, is_done)?.1
    }

    /// Until `ready` finds what it looks for, or time is over for the collective `name`.
    fn until<T>(
        &self,
        name: &str,
        most: Duration,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<(MutexGuard<'_, State>, T), JobError> {
        let deadline = Instant::now() + most.min(WAIT_MAX);
        let mut state = self.own()?;
        loop {
            if let Some(found) = ready(&mut state) {
                return Ok((state, found));
            }
            let drained = state.drain();
            if !matches!(drained, Ok(false)) {
                self.announce(&state);
            }
            // Some may be done, and then the job have failed.
            if let Some(found) = ready(&mut state) {
                return Ok((state, found));
            }
            drained.map_err(|error| error.at(name))?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.overdue(name, most));
            }
            if state.is_watched {
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let socket = state.socket.clone().ok_or(JobError::Closed)?;
            state.is_watched = true;
            drop(state);
            let fds = [(socket.as_fd(), false), (self.wake.reader.as_fd(), false)];
            // Check for any cause of the wake-up.
            let _ = socket::wait(&fds, Some(left));
            self.wake.clear();
            drop(socket);
            state = self.lock();
            state.is_watched = false;
            self.changed.notify_all();
        }
    }

    fn overdue(&self, name: &str, after: Duration) -> JobError {
        let Hello { job, rank, .. } = self.hello;
        let awaited = Awaited::default();
        let what = format!("`{name}`");
        LocalError::Timeout {
            job,
            rank,
            what,
            after,
            awaited,
        }
        .into()
    }

    /// The error of a wait for the collective `name` that took `after` elsewhere, with what the
    /// agent knows of the cause. Asks the agent as [`explain`](Self::explain) does.
    #[must_use]
    pub fn late(&self, name: &str, after: Duration) -> JobError {
        self.explain(self.overdue(name, after))
    }

    /// An error of [`wait`](Self::wait), [`room`](Self::room), [`submit`](Self::submit) or
    /// [`barrier`](Self::barrier): where time was over, with what the agent knows of the cause,
    /// such as the missing ranks. For the end of the caller's last wait: this asks the agent, and
    /// waits for up to a second. If the job has failed meanwhile, returns that error. The
    /// collective may be done meanwhile: look once more.
    #[must_use]
    pub fn explain(&self, error: JobError) -> JobError {
        if !error.is_late() {
            return error;
        }
        let asked = self.own().and_then(|mut state| {
            let question = state.client()?.ask();
            self.announce(&state);
            Ok(question?)
        });
        let question = match asked {
            Ok(question) => question,
            Err(failed) => return failed,
        };
        let is_answered = |state: &mut State| {
            let client = state.client.as_ref()?;
            question
                .is_none_or(|it| client.is_answered(it))
                .then_some(())
        };
        let failed = self.until("", ANSWER_WITHIN, is_answered).err();
        let answer = self.own().and_then(|mut state| {
            let client = state.client()?;
            Ok(client.answer(question))
        });
        match (failed, answer) {
            (Some(failed), _) if !failed.is_late() => failed,
            (_, Err(failed)) => failed,
            (_, Ok(answer)) => error.because(answer),
        }
    }

    /// Has the agent count collectives that another library did, for `tally-agent status`. Never
    /// waits, and fails for nothing but its argument: what cannot be sent now is sent with the next
    /// report or submission, or when the job is left.
    ///
    /// # Errors
    /// If `kind` is not 1 to 32 ASCII letters, digits, `_`, `-` and `.`.
    pub fn report_fallback(&self, kind: &str, count: u64) -> Result<(), JobError> {
        check_kind(kind)?;
        // A fork may have a copy of a lock that another thread held.
        if std::process::id() != self.process {
            return Ok(());
        }
        self.unsent().add(kind, count);
        if let Ok(mut state) = self.state.try_lock() {
            self.send_fallbacks(state.client.as_mut());
        }
        Ok(())
    }

    fn unsent(&self) -> MutexGuard<'_, Fallbacks> {
        self.fallbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn send_fallbacks(&self, client: Option<&mut Client>) {
        if let Some(client) = client {
            client.send_fallbacks(&mut self.unsent());
        }
    }

    /// Abandons a collective: its block is reused once it is done.
    pub fn abandon(&self, ticket: u64) {
        let Ok(mut state) = self.own() else { return };
        if let Some(block) = state.done.remove(&ticket) {
            block.into_iter().for_each(|it| state.keep(it));
        } else if state.running.contains_key(&ticket) {
            state.abandoned.insert(ticket);
        }
    }

    /// Leaves the job when all that was submitted is done, as every rank does at its end. After
    /// this it is closed, also if that fails.
    ///
    /// # Errors
    /// If the job has failed, the agent has ended, or time is over.
    pub fn finish(&self, most: Duration) -> Result<(), JobError> {
        let mut state = self.own()?;
        let client = state.close();
        self.announce(&state);
        drop(state);
        let mut client = client.ok_or(JobError::Closed)?;
        client.take_fallbacks(std::mem::take(&mut *self.unsent()));
        Ok(client.finish(Some(most.min(WAIT_MAX)))?)
    }

    /// Drops the connection: the job fails at all ranks, which are told that this one did.
    pub fn abort(&self) {
        if let Ok(mut state) = self.own() {
            state.close();
            self.announce(&state);
        }
    }

    /// Whether it was finished or aborted; never in another process.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.own().is_ok_and(|state| state.client.is_none())
    }
}

fn unknown(ticket: u64) -> JobError {
    let text = format!("ticket {ticket} is not under way, or was waited for before");
    LocalError::Argument(text).into()
}
