//! The process's side.

mod messages;

use self::messages::is_end;
use crate::collective::{Arithmetic, Awaited, Dtype, Hello, Operation, Priority, Submission};
use crate::connect::{PLACE_MAX, REPORT_EVERY, RETRY_EVERY, Retry, may_pass, patience, reach};
use crate::error::{Class, Failure, LocalError};
use crate::fallback::{Fallbacks, KIND_BYTES_MAX, is_kind};
use crate::memory::{self, Mapping, Region};
use crate::message::{FromProcess, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, NO_REGION, VERSION};
use crate::ranks::Ranks;
use crate::socket::Seqpacket;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Between two calls of `wanted` while the agent does not answer.
const WANTED_EVERY: Duration = Duration::from_millis(100);
/// For the agent's answer to what a collective waits for.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// One rank's connection to the agent on its host.
///
/// Its end without [`finish`](Self::finish) is the end of the whole job: the other ranks are told
/// that this one has failed. A failure is final: restart the job, at all ranks.
pub struct Client {
    socket: Seqpacket,
    path: PathBuf,
    hello: Hello,
    timeout: Duration,
    /// What makes its regions known.
    number: u64,
    submitted_max: usize,
    memory_bytes_max: u64,
    next_ticket: u64,
    under_way: HashMap<u64, String>,
    /// Done, and not yet asked for.
    ready: VecDeque<u64>,
    regions: HashMap<u32, Weak<Mapping>>,
    next_region: u32,
    /// What the agent said of the region that it was asked to map.
    answer: Option<(u32, Result<(), Failure>)>,
    next_question: u64,
    /// Questions that a caller waits for, with the agent's answers.
    questions: HashMap<u64, Option<Awaited>>,
    fallbacks: Fallbacks,
    failure: Option<Failure>,
    is_finished: bool,
    is_gone: bool,
    out: Vec<u8>,
    room: Box<[u8]>,
    /// Whose it is: a fork has a copy of it.
    process: u32,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hello { job, rank, .. } = self.hello;
        write!(f, "Client(job {job} rank {rank})")
    }
}

impl AsFd for Client {
    /// For waiting together with others: there is something to [`poll`](Client::poll) for once it
    /// is readable.
    ///
    /// A duplicate of this one does not keep the connection: it ends with the client.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A process with a copy of the socket, a child too that another thread has forked and that
        // has not begun its program yet. A fork's copy of the client is not the client, and leaves
        // the connection alone.
        if std::process::id() == self.process {
            self.socket.shut_down();
        }
    }
}

impl Client {
    /// Connects to the agent that listens at `socket`, as `hello` says. The agent answers before
    /// the job runs: what is submitted waits for the other ranks.
    ///
    /// For up to `timeout`, this retries where the reason may pass:
    /// [`SEARCH_MAX`](crate::SEARCH_MAX) for an agent that is not there yet,
    /// [`PLACE_MAX`](crate::PLACE_MAX) for the place of a process that has just ended and for an
    /// agent that does not answer.
    ///
    /// `timeout` is also how long the agent may take to answer later, for all but collectives.
    ///
    /// # Errors
    /// If there is no agent, or it refuses.
    pub fn connect(socket: &Path, hello: &Hello, timeout: Duration) -> Result<Self, LocalError> {
        Self::connect_while(socket, hello, timeout, |_| true)
    }

    /// The same, as long as `wanted` returns true. It is called with the reason before each new
    /// attempt, every 20 ms, and every 100 ms while the agent does not answer.
    ///
    /// # Errors
    /// If there is no agent, or it refuses.
    pub fn connect_while(
        socket: &Path,
        hello: &Hello,
        timeout: Duration,
        mut wanted: impl FnMut(&Retry<'_>) -> bool,
    ) -> Result<Self, LocalError> {
        let began = Instant::now();
        let mut report_at = began + REPORT_EVERY;
        let mut wanted = |error: &LocalError| {
            let (now, most) = (Instant::now(), patience(error).min(timeout));
            let left = most.saturating_sub(now - began);
            let is_due = now >= report_at && left > Duration::ZERO;
            if is_due {
                report_at = now + REPORT_EVERY;
            }
            let retry = Retry {
                error,
                left,
                is_due,
            };
            left > Duration::ZERO && wanted(&retry)
        };
        loop {
            match Self::attempt(socket, hello, timeout, &mut wanted) {
                Err(error) if may_pass(&error) && wanted(&error) => {
                    std::thread::sleep(RETRY_EVERY);
                }
                Err(LocalError::Connect { path, source, .. }) => {
                    let after = began.elapsed();
                    return Err(LocalError::Connect {
                        path,
                        source,
                        after,
                    });
                }
                done => return done,
            }
        }
    }

    fn attempt(
        path: &Path,
        hello: &Hello,
        timeout: Duration,
        wanted: &mut impl FnMut(&LocalError) -> bool,
    ) -> Result<Self, LocalError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let slice = WANTED_EVERY.min(timeout).max(RETRY_EVERY);
        let socket = reach(path)?;
        let mut client = Self {
            socket,
            path: path.to_owned(),
            hello: *hello,
            timeout: slice,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            submitted_max: 0,
            memory_bytes_max: 0,
            next_ticket: 0,
            under_way: HashMap::new(),
            ready: VecDeque::new(),
            regions: HashMap::new(),
            next_region: 0,
            answer: None,
            next_question: 0,
            questions: HashMap::new(),
            fallbacks: Fallbacks::default(),
            failure: None,
            is_finished: false,
            is_gone: false,
            out: Vec::with_capacity(MESSAGE_BYTES_MAX),
            room: vec![0; MESSAGE_BYTES_MAX].into(),
            process: std::process::id(),
        };
        client.say(&FromProcess::Hello(VERSION, Some(*hello)), None)?;
        loop {
            let what = "the agent's welcome";
            match client.until(what, Some(slice), |it| it.submitted_max > 0) {
                // An agent that was just started may take its time.
                Err(error @ LocalError::Timeout { .. }) => {
                    if !wanted(&error) {
                        let error = client.late(what, timeout.min(PLACE_MAX));
                        return Err(error.because(client.no_answer()));
                    }
                }
                done => break done?,
            }
        }
        client.timeout = timeout;
        Ok(client)
    }

    /// Makes memory for tensors that the agent sees too: `bytes` of it, all zero.
    ///
    /// # Errors
    /// If there is not as much, or the agent allows less.
    pub fn region(&mut self, bytes: usize) -> Result<Region, LocalError> {
        self.check()?;
        if bytes == 0 {
            return Err(LocalError::Argument(
                "a region has one byte at least".into(),
            ));
        }
        self.release()?;
        // Before the memory is taken from others.
        let all = self.regions.values().filter_map(Weak::upgrade);
        let held: u64 = all.map(|it| it.bytes() as u64).sum();
        if bytes as u64 > self.memory_bytes_max.saturating_sub(held) {
            let text = too_much(bytes as u64, held, self.memory_bytes_max);
            return Err(self.refused(Failure::new(Class::Limit, text)));
        }
        let (fd, mapping) = memory::allocate(bytes)?;
        let id = self.next_region;
        self.next_region = (id + 1) % NO_REGION;
        let bytes = bytes as u64;
        self.say(&FromProcess::Region { id, bytes }, Some(fd))?;
        let most = Some(self.timeout);
        self.until("the mapping of a region", most, |it| it.answer.is_some())?;
        match self.answer.take() {
            Some((of, Ok(()))) if of == id => {}
            Some((of, Err(failure))) if of == id => return Err(self.refused(failure)),
            _ => return Err(self.protocol("an answer about another region")),
        }
        let mapping = Arc::new(mapping);
        self.regions.insert(id, Arc::downgrade(&mapping));
        let owner = self.number;
        Ok(Region { mapping, id, owner })
    }

    /// Tells the agent of regions that are dropped.
    fn release(&mut self) -> Result<(), LocalError> {
        let dropped = |it: &Weak<Mapping>| it.strong_count() == 0;
        let all = self.regions.iter();
        let ids: Vec<_> = all
            .filter(|(_, it)| dropped(it))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.regions.remove(&id);
            self.say(&FromProcess::Release { id }, None)?;
        }
        Ok(())
    }

    /// Submits a collective on `elements` elements from byte `at` of `region` on, in place: results
    /// come where the elements are. Until it is done, that part of the region belongs to the agent.
    /// Returns its ticket.
    ///
    /// At the agent's limit of collectives in flight, this waits for one of them.
    ///
    /// # Errors
    /// If the elements are not in the region, it is a [`barrier`](Self::barrier), or the job has
    /// failed.
    pub fn submit(
        &mut self,
        region: &Region,
        at: usize,
        elements: usize,
        collective: &Submission,
    ) -> Result<u64, LocalError> {
        let Submission { name, dtype, .. } = collective;
        if collective.operation == Operation::Barrier {
            let text = format!("`{name}`: a barrier has no region and no elements");
            return Err(LocalError::Argument(text));
        }
        if region.owner != self.number {
            let text = format!("`{name}`: the region is of another client");
            return Err(LocalError::Argument(text));
        }
        let bytes = elements.checked_mul(dtype.bytes());
        let end = bytes.and_then(|bytes| bytes.checked_add(at));
        if end.is_none_or(|end| end > region.bytes()) {
            return Err(LocalError::Argument(format!(
                "`{name}`: {elements} elements of {} bytes from byte {at} on are not in a region of {} bytes",
                dtype.bytes(),
                region.bytes()
            )));
        }
        self.submit_at(region.id, at as u64, elements as u64, collective)
    }

    /// Submits a barrier: it is done when all ranks have submitted it. Collectives before it may
    /// still be under way then. Returns its ticket.
    ///
    /// # Errors
    /// If the job has failed.
    pub fn barrier(&mut self, name: &str) -> Result<u64, LocalError> {
        let barrier = Submission {
            operation: Operation::Barrier,
            dtype: Dtype::I8,
            arithmetic: Arithmetic::Own,
            priority: Priority::FIRST,
            more_follow: false,
            name: name.to_owned(),
        };
        self.submit_at(NO_REGION, 0, 0, &barrier)
    }

    fn submit_at(
        &mut self,
        region: u32,
        at: u64,
        elements: u64,
        collective: &Submission,
    ) -> Result<u64, LocalError> {
        self.check()?;
        let name = &collective.name;
        if name.len() > NAME_BYTES_MAX {
            let text = format!("`{name}`: a name has at most {NAME_BYTES_MAX} bytes");
            return Err(LocalError::Argument(text));
        }
        if let Priority::Place { index, of } = collective.priority
            && index >= of
        {
            let text = format!(
                "`{name}`: place {index} of {of}, expected 0 to {}",
                of.max(1) - 1
            );
            return Err(LocalError::Argument(text));
        }
        if let Operation::Broadcast { root } = collective.operation
            && root >= self.hello.workers
        {
            let last = self.hello.workers.saturating_sub(1);
            let text = format!("`{name}`: the root is rank {root}, expected 0 to {last}");
            return Err(LocalError::Argument(text));
        }
        let most = self.submitted_max;
        self.until("room for a collective", None, |it| {
            it.under_way.len() < most
        })?;
        self.release()?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let message = FromProcess::Submit {
            region,
            ticket,
            at,
            elements,
            submission: collective.clone(),
        };
        self.say(&message, None)?;
        self.flush_fallbacks();
        self.under_way.insert(ticket, collective.name.clone());
        Ok(ticket)
    }

    /// Waits for a collective to be done; without `timeout` for as long as it takes. The agent
    /// itself gives up when no results come, and says so. A `timeout` of more than zero that is
    /// over has the agent asked which ranks are missing, which takes up to a second more.
    ///
    /// # Errors
    /// If the job has failed, the agent has ended, or time is over; then it can be waited for
    /// again.
    pub fn wait(&mut self, ticket: u64, timeout: Option<Duration>) -> Result<(), LocalError> {
        let name = match self.under_way.get(&ticket) {
            Some(name) => name.clone(),
            None if self.ready.contains(&ticket) => String::new(),
            None => {
                let text = format!("ticket {ticket} is not under way, or was waited for before");
                return Err(LocalError::Argument(text));
            }
        };
        let waited = self.until(&format!("`{name}`"), timeout, |it| {
            it.ready.contains(&ticket)
        });
        if let Err(error) = waited {
            let error = if timeout == Some(Duration::ZERO) {
                error
            } else {
                self.explain(error)
            };
            // It may have been done while the agent answered.
            if !self.ready.contains(&ticket) {
                return Err(error);
            }
        }
        self.ready.retain(|done| *done != ticket);
        Ok(())
    }

    /// The next collective that is done and was not waited for, if there is one. Doesn't wait.
    ///
    /// # Errors
    /// If the job has failed, or the agent has ended.
    pub fn poll(&mut self) -> Result<Option<u64>, LocalError> {
        while self.ready.is_empty() && self.take()? {}
        Ok(self.ready.pop_front())
    }

    /// How many collectives are submitted and not done.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Limit of collectives in flight, at which [`submit`](Self::submit) waits.
    #[must_use]
    pub fn under_way_max(&self) -> usize {
        self.submitted_max
    }

    /// Has the agent count collectives that another library did, for `tally-agent status`. Never
    /// waits: what finds no room in the socket is sent with the next report or submission, or when
    /// the job is left. The agent keeps
    /// [`KINDS_MAX`](crate::KINDS_MAX) kinds.
    ///
    /// # Errors
    /// If `kind` is not 1 to 32 ASCII letters, digits, `_`, `-` and `.`; all else is ignored.
    pub fn report_fallback(&mut self, kind: &str, count: u64) -> Result<(), LocalError> {
        check_kind(kind)?;
        self.fallbacks.add(kind, count);
        self.flush_fallbacks();
        Ok(())
    }

    /// Takes what was not sent, to be sent before the job is left.
    pub(crate) fn take_fallbacks(&mut self, unsent: Fallbacks) {
        self.fallbacks = unsent;
    }

    fn flush_fallbacks(&mut self) {
        let mut fallbacks = std::mem::take(&mut self.fallbacks);
        self.send_fallbacks(&mut fallbacks);
        self.fallbacks = fallbacks;
    }

    /// Sends what the socket has room for, and leaves the rest.
    pub(crate) fn send_fallbacks(&mut self, fallbacks: &mut Fallbacks) {
        let Self { socket, out, .. } = self;
        fallbacks.send(|kind, count| {
            let kind = kind.to_owned();
            FromProcess::Fallback { kind, count }.emit(out);
            socket.send(out, None).is_ok()
        });
    }

    /// Asks the agent what the oldest collective waits for. Returns the question, unless the socket
    /// is full.
    pub(crate) fn ask(&mut self) -> Result<Option<u64>, LocalError> {
        self.check()?;
        let question = self.next_question;
        FromProcess::Ask { question }.emit(&mut self.out);
        match self.socket.send(&self.out, None) {
            Ok(()) => {
                self.next_question += 1;
                self.questions.insert(question, None);
                Ok(Some(question))
            }
            Err(why) if is_end(&why) => {
                // Its last words say why.
                while self.take()? {}
                Err(self.gone())
            }
            Err(_) => Ok(None),
        }
    }

    /// Whether the agent has answered a question.
    pub(crate) fn is_answered(&self, question: u64) -> bool {
        self.questions.get(&question).is_some_and(Option::is_some)
    }

    /// The answer to a question, or that there is none. Ends the question: a later answer is
    /// dropped.
    pub(crate) fn answer(&mut self, question: Option<u64>) -> Awaited {
        let answer = question.and_then(|it| self.questions.remove(&it));
        answer.flatten().unwrap_or_else(|| self.no_answer())
    }

    fn no_answer(&self) -> Awaited {
        let text = format!(
            "agent at {} does not answer; `systemctl status tally-agent` and its log say why",
            self.path.display()
        );
        Awaited {
            ranks: Ranks::NONE,
            text,
        }
    }

    /// A timeout's error, with what the agent knows of the cause; any other error as it is.
    fn explain(&mut self, error: LocalError) -> LocalError {
        if !matches!(error, LocalError::Timeout { .. }) {
            return error;
        }
        let question = match self.ask() {
            Ok(question) => question,
            Err(failed) => return failed,
        };
        if let Some(it) = question {
            let asked = self.until("the agent's answer", Some(ANSWER_WITHIN), |client| {
                client.is_answered(it)
            });
            match asked {
                Ok(()) | Err(LocalError::Timeout { .. }) => {}
                // The job has failed meanwhile.
                Err(failed) => return failed,
            }
        }
        let awaited = self.answer(question);
        error.because(awaited)
    }

    /// Leaves the job when all that was submitted is done, as every rank does at its end. What was
    /// not waited for until then is done as well, but this does not tell which it was.
    ///
    /// # Errors
    /// If the job has failed, the agent has ended, or time is over.
    pub fn finish(&mut self, timeout: Option<Duration>) -> Result<(), LocalError> {
        self.check()?;
        let fallbacks = std::mem::take(&mut self.fallbacks);
        for (kind, &count) in fallbacks.counts() {
            let kind = kind.clone();
            self.say(&FromProcess::Fallback { kind, count }, None)?;
        }
        self.say(&FromProcess::Finish, None)?;
        let left = self.until("leaving the job", timeout, |it| it.is_finished);
        left.map_err(|error| self.explain(error))
    }
}

/// The words for a region that the agent's limit does not allow.
pub(crate) fn too_much(bytes: u64, held: u64, most: u64) -> String {
    format!(
        "{bytes} bytes of shared memory beside {held} are more than the agent's limit of {most} (`memory_mib` in \
         its configuration)"
    )
}

/// Checks the name of a kind of collective.
pub(crate) fn check_kind(kind: &str) -> Result<(), LocalError> {
    if is_kind(kind) {
        return Ok(());
    }
    Err(LocalError::Argument(format!(
        "kind of collective: found {kind:?}, expected 1 to {KIND_BYTES_MAX} ASCII letters, digits, `_`, `-` and `.`"
    )))
}
