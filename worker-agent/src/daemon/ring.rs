//! The collectives of a worker, summed in a ring of RoCEv2 hosts (NetReduce).
//!
//! The worker's thread takes requests, and a second thread is the member of the ring: a member
//! waits inside of its calls. Between them are two channels and a socket that wakes the first one.
//!
//! A NIC reads and writes a process's shared memory itself, registered once, where a rank is alone
//! on its host and the ring sums its type. What else there is goes through memory of the agent's
//! (`tally_session::Whole`).
//!
//! # The catches
//!
//! * The members of a ring that has failed form no other one. The processes start again, as with a
//!   job.
//! * One collective is under way at a time, in the order of submission. Priorities have no meaning.

use super::communicator::{Communicator, End};
use super::rank::{InRegion, Task};
use crate::config::AgentRing;
use crate::error::AgentError;
use crate::link::LinkError;
use crate::session::{
    Collective, CollectiveKind, Done, Parts, Refused, SessionReport, SessionState, Ticket,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};
use tally_endpoint::Hint;
use tally_local::{Awaited, Class, Failure, Ranks};
use tally_session::{Converter, Overflow, Whole};
use tally_verbs::rendezvous::RingConfig;
use tally_verbs::{Config, Member, MemberError, Memory, Region, RingEpoch, RingId, Stop};
use tally_wire::Key;

/// Least memory for collectives that are not summed where they are.
const SCRATCH_BYTES: usize = 64 << 10;
/// For a member to end that was stopped. One that is about to connect takes longest.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// A collective for the ring's thread.
struct Request {
    ticket: Ticket,
    collective: Collective,
    parts: Vec<InRegion>,
    began: Instant,
}

/// Event of the ring's thread.
enum Event {
    Joined(RingEpoch),
    Done(Done),
    Left,
    Failed(Cause),
}

/// Why the member has failed.
enum Cause {
    Ring(MemberError),
    Overflow(String, Overflow),
}

impl From<MemberError> for Cause {
    fn from(error: MemberError) -> Self {
        Self::Ring(error)
    }
}

/// A worker's ring. When it is dropped, its member ends.
pub(super) struct RingSession {
    /// None once it was told to finish.
    requests: Option<Sender<Request>>,
    events: Receiver<Event>,
    wake: UnixStream,
    stop: Stop,
    state: SessionState,
    submitted: u64,
    /// Names of what is under way, the oldest first.
    names: VecDeque<String>,
    done: VecDeque<Done>,
    report: SessionReport,
}

impl RingSession {
    /// Begins to join the ring.
    pub(super) fn start(task: &Task, ring: &AgentRing) -> Result<Self, AgentError> {
        if cfg!(target_endian = "big") {
            let text = "rings need a little-endian host";
            return Err(AgentError::Options(text.into()));
        }
        let system = |why| LinkError::system("the ring's thread", why);
        let (requests, incoming) = channel();
        let (sender, events) = channel();
        let (wake, waker) = UnixStream::pair().map_err(system)?;
        wake.set_nonblocking(true).map_err(system)?;
        waker.set_nonblocking(true).map_err(system)?;
        let stop = Stop::default();
        let config = config(task, ring, stop.clone());
        let notifier = Notifier {
            events: sender,
            waker,
        };
        let (ranks, host) = (task.ranks(), task.first..task.first + task.parts);
        let member = move || {
            let end = serve(config, ranks, &host, &incoming, &notifier);
            notifier.notify(end.map_or_else(Event::Failed, |()| Event::Left));
        };
        let name = format!("ring {}", ring.id);
        let thread = std::thread::Builder::new().name(name).spawn(member);
        thread.map_err(system)?;
        Ok(Self {
            requests: Some(requests),
            events,
            wake,
            stop,
            state: SessionState::Joining(None),
            submitted: 0,
            names: VecDeque::new(),
            done: VecDeque::new(),
            report: empty_report(task),
        })
    }

    fn take(&mut self, event: Event) -> Result<(), End> {
        match event {
            Event::Joined(epoch) => {
                // The state's number is short.
                let epoch = epoch.0 as u16;
                self.state = SessionState::Running { epoch };
            }
            Event::Done(done) => {
                self.names.pop_front();
                self.report.collectives += 1;
                self.report.bytes += done.buffer.bytes() as u64;
                self.done.push_back(done);
            }
            Event::Left => self.state = SessionState::Finished,
            Event::Failed(cause) => {
                self.state = SessionState::Failed;
                return Err(match cause {
                    Cause::Ring(error) => End::Failed(error.into()),
                    Cause::Overflow(name, overflow) => {
                        let hint = "scale the elements down, or use a wider type";
                        let text = format!("{name}: {overflow}; {hint}");
                        End::Apart(Failure::new(Class::Overflow, text))
                    }
                });
            }
        }
        Ok(())
    }

    /// Whether the member has ended.
    const fn is_over(&self) -> bool {
        matches!(self.state, SessionState::Finished | SessionState::Failed)
    }
}

impl Drop for RingSession {
    fn drop(&mut self) {
        if !self.is_over() {
            self.stop.set();
        }
    }
}

impl Communicator for RingSession {
    fn submit(&mut self, collective: Collective, parts: Vec<InRegion>) -> Result<Ticket, Refused> {
        let requests = self.requests.as_ref().ok_or(Refused::Over)?;
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        self.names.push_back(collective.name.clone());
        let request = Request {
            ticket,
            collective,
            parts,
            began: Instant::now(),
        };
        // A thread that has ended has sent its reason.
        let _ = requests.send(request);
        Ok(ticket)
    }

    fn turn(&mut self) -> Result<bool, End> {
        let mut is_busy = false;
        while !self.is_over() {
            match self.events.try_recv() {
                Ok(event) => self.take(event)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.state = SessionState::Failed;
                    let text = "the ring's thread crashed, a bug of the agent's";
                    return Err(End::Apart(Failure::new(Class::Other, text)));
                }
            }
            is_busy = true;
        }
        Ok(is_busy)
    }

    fn wait_or(&mut self, most: Duration, wake: BorrowedFd<'_>) -> Result<(), End> {
        let mut ready = [self.wake.as_fd(), wake].map(|it| PollFd::new(it, PollFlags::POLLIN));
        let most = PollTimeout::try_from(most).unwrap_or(PollTimeout::ZERO);
        // A signal ends it early.
        let _ = poll(&mut ready, most);
        while matches!(self.wake.read(&mut [0; 64]), Ok(1..)) {}
        Ok(())
    }

    #[cfg(feature = "dpdk")]
    fn idle_for(&self, most: Duration) -> Duration {
        most
    }

    fn done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn finish(&mut self) {
        self.requests = None;
    }

    /// Waits until the NIC has left the processes' memory alone.
    fn interrupt(&mut self) {
        self.stop.set();
        self.requests = None;
        let deadline = Instant::now() + STOP_WITHIN;
        while !self.is_over() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Event::Failed(_) | Event::Left) | Err(_) => self.state = SessionState::Finished,
                Ok(Event::Joined(_) | Event::Done(_)) => {}
            }
        }
    }

    fn give_up(&mut self) {
        self.interrupt();
    }

    /// The members have their key until they leave.
    fn set_key(&mut self, _: Key) {}

    fn state(&self) -> SessionState {
        self.state
    }

    fn words(&self, _: u16) -> String {
        match self.state {
            SessionState::Joining(_) => "waiting for the other hosts of the ring".into(),
            SessionState::Running { .. } => "running in a ring".into(),
            SessionState::Finished => "left".into(),
            SessionState::Failed => "failed".into(),
        }
    }

    fn hint(&self) -> Option<Hint> {
        None
    }

    fn awaited(&self, _: u16) -> Option<Awaited> {
        let name = self.names.front()?;
        let what = match self.state {
            SessionState::Joining(_) => "the ring has not formed yet",
            _ => "not all hosts of the ring have come to it, or its sums are on their way",
        };
        Some(Awaited {
            ranks: Ranks::NONE,
            text: format!("waiting for {name}: {what}"),
        })
    }

    fn report(&self) -> SessionReport {
        SessionReport {
            waiting: self.names.len() as u64,
            ..self.report.clone()
        }
    }
}

fn config(task: &Task, ring: &AgentRing, stop: Stop) -> Config {
    let of = RingConfig {
        ring: RingId(ring.id.into()),
        key: ring.key.clone(),
        // 2 to 64, as the configuration was checked.
        members: ring.hosts() as u8,
    };
    let rank = (task.first / task.parts) as u8;
    let timeouts = &task.config.timeouts;
    Config {
        dscp: ring.dscp,
        packets: ring.message_packets,
        window: ring.window_messages,
        join_timeout: timeouts.join(),
        stall_timeout: Some(timeouts.stall()),
        stop,
        ..Config::new(of, rank, ring.address, ring.coordinator.into())
    }
}

fn empty_report(task: &Task) -> SessionReport {
    SessionReport {
        job: task.config.job.id,
        rank: task.first,
        workers: task.ranks(),
        ..SessionReport::default()
    }
}

/// Notifies the worker's thread.
struct Notifier {
    events: Sender<Event>,
    waker: UnixStream,
}

impl Notifier {
    fn notify(&self, event: Event) {
        // The worker may have ended.
        let _ = self.events.send(event);
        // Full is awake enough.
        let _ = (&self.waker).write(&[1]);
    }
}

/// Body of the ring's thread: joins, then sums request after request until there are no more.
fn serve(
    config: Config,
    ranks: u16,
    host: &std::ops::Range<u16>,
    requests: &Receiver<Request>,
    notifier: &Notifier,
) -> Result<(), Cause> {
    let member = Member::join(config)?;
    notifier.notify(Event::Joined(member.epoch()));
    let mut thread = RingThread {
        member,
        ranks,
        host: host.clone(),
        regions: Vec::new(),
        scratch: None,
        converter: Converter::default(),
    };
    for request in requests {
        notifier.notify(Event::Done(thread.run(request)?));
    }
    Ok(thread.member.leave()?)
}

/// Member of the ring, and memory that is registered with its NIC.
struct RingThread {
    member: Member,
    ranks: u16,
    host: std::ops::Range<u16>,
    regions: Vec<Region>,
    scratch: Option<Memory>,
    converter: Converter,
}

impl RingThread {
    fn run(&mut self, request: Request) -> Result<Done, Cause> {
        let Request {
            ticket,
            collective,
            parts,
            began,
        } = request;
        let bytes = parts[0].0.bytes();
        let whole = Whole::new(&collective, bytes, self.ranks);
        let name = described(&collective);
        // The process may have freed some.
        self.regions.retain(|it| it.memory().is_in_use());
        let place = match &parts[..] {
            [one] if whole.is_in_place() => one.0.memory(),
            _ => None,
        };
        let mut buffer = Parts::new(parts);
        if let Some((memory, at)) = place {
            let known = self.regions.iter().position(|it| *it.memory() == memory);
            let known = match known {
                Some(known) => known,
                None => {
                    self.regions.push(self.member.region(memory)?);
                    self.regions.len() - 1
                }
            };
            let (region, range) = (&mut self.regions[known], at..at + bytes);
            let element = whole.element();
            self.member
                .all_reduce_region(region, range, element, &name)?;
            whole.finish(&mut self.converter, &mut buffer);
        } else {
            let sum = 0..whole.bytes();
            if self.scratch.as_ref().is_none_or(|it| it.len() < sum.end) {
                self.scratch = None;
                let room = sum.end.next_power_of_two().max(SCRATCH_BYTES);
                self.scratch = Some(self.member.tensor(room)?);
            }
            let scratch = self.scratch.as_mut().expect("made above");
            let is_root = match collective.kind {
                CollectiveKind::Broadcast { root } => self.host.contains(&root),
                _ => true,
            };
            let out = &mut scratch[sum.clone()];
            whole.load(&mut self.converter, &buffer, is_root, out);
            let element = whole.element();
            self.member
                .all_reduce_part(scratch, sum.clone(), element, &name)?;
            let stored = whole.store(&mut self.converter, &mut scratch[sum], &mut buffer);
            stored.map_err(|it| Cause::Overflow(collective.name.clone(), it))?;
        }
        Ok(Done {
            ticket,
            buffer: Box::new(buffer),
            collective,
            seconds: began.elapsed().as_secs_f64(),
        })
    }
}

/// A collective by what all ranks must bring alike.
pub(super) fn described(collective: &Collective) -> String {
    let Collective {
        kind, dtype, name, ..
    } = collective;
    match kind {
        CollectiveKind::Sum => format!("sum of \"{name}\", {dtype}"),
        CollectiveKind::Mean => format!("mean of \"{name}\", {dtype}"),
        CollectiveKind::Broadcast { root } => {
            format!("broadcast of \"{name}\" from rank {root}, {dtype}")
        }
        CollectiveKind::Barrier => format!("barrier \"{name}\""),
        CollectiveKind::Max => format!("maximum of \"{name}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_between_ranks_is_in_the_name_of_a_call() {
        let sum = Collective {
            kind: CollectiveKind::Sum,
            dtype: tally_session::Dtype::F32,
            ..Collective::barrier("w")
        };
        assert_eq!(described(&sum), "sum of \"w\", F32");
        let kind = CollectiveKind::Broadcast { root: 3 };
        let broadcast = Collective { kind, ..sum };
        assert_eq!(described(&broadcast), "broadcast of \"w\" from rank 3, F32");
        assert_eq!(described(&Collective::barrier("b")), "barrier \"b\"");
    }
}
