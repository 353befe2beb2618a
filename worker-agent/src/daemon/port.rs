//! All processes of an agent whose network is one DPDK port: their sessions take turns on the
//! thread that owns it.
//!
//! A round is a turn of each, and a turn is bounded: what it takes from the port for others waits
//! in their inboxes, which are bounded as well. Then they send, in the order of [`NicOrder`], until
//! the port is full. When a round had nothing to do, the thread waits for the port, or for any of
//! the processes. Sockets are watched together, so that a process that
//! computes costs nothing but its turn.
//!
//! A `net_memif` device that has no peer, or lost it, is reopened while processes are there, so
//! that a restart of the switch needs none of the agent.
//!
//! # The catches
//!
//! * All of a host's traffic is one CPU's work; with kernel sockets each process has a thread.
//! * While the device is being opened, for seconds if its peer answers badly, no process has a
//!   turn.

use super::rank::PendingProcess;
use super::server::{PortServer, WHO};
use super::worker::{
    CommunicatorConfig, IDLE_MAX, LOOK_EVERY, Service, Turn as WorkerTurn, Worker, crashed, watch,
};
use crate::config::{AgentConfig, PsJob, Transport};
use crate::error::AgentError;
use crate::link::dpdk::{DpdkPort, Dropped};
use crate::link::ethernet::Local;
use crate::link::loss::losing;
use crate::link::udp::Group;
use crate::link::{Link, LinkError};
use crate::log::Log;
use crate::ps::{self, Server};
use crate::session::Sent;
use crossbeam_channel::Receiver;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use std::mem;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_endpoint::nic::{NicOrder, Turn};

/// Between two looks whether the device has lost its peer.
const LOOK_AT_PORT_EVERY: Duration = Duration::from_millis(100);
/// Between two looks at the device, while no process is there.
const EMPTY_EVERY: Duration = Duration::from_millis(10);
/// Between two lines of the log about frames that were dropped.
const TELL_DROPPED_EVERY: Duration = Duration::from_secs(10);
/// Sockets found readable at a time.
const EVENTS: usize = 64;

/// Serves processes until `stop` becomes true and the last one has left.
///
/// # Errors
/// If DPDK does not start, or the port is broken for good.
pub(super) fn serve(
    config: &AgentConfig,
    pending_processes: &Receiver<PendingProcess>,
    server: Option<PortServer>,
    log: Log,
    stop: &AtomicBool,
) -> Result<(), AgentError> {
    let Transport::Dpdk {
        eal,
        device,
        mac,
        address,
        port,
    } = &config.transport_of_one()
    else {
        unreachable!("the caller has made sure of the transport");
    };
    let (mac, address) = (*mac, *address);
    let local = Local { mac, address };
    // A parameter server serves jobs of any payload.
    let units = server.is_none().then(|| config.units());
    let switch = config.switch.address;
    let port = DpdkPort::new(eal, device, local, *port, switch, units)?;
    let sockets = watch()?;
    let server = match server {
        Some(it) => {
            let link = losing(Box::new(port.link(None)), it.loss);
            Some((Server::new(link, &it.config)?, it.lists))
        }
        None => None,
    };
    let mut crowd = Crowd {
        port,
        server,
        sockets,
        workers: Vec::new(),
        order: NicOrder::default(),
        is_lost: false,
        next_look: Instant::now(),
        dropped: Dropped::default(),
        next_tell: Instant::now(),
        log,
    };
    crowd.open()?;
    crowd.run(pending_processes, stop)
}

fn watching(error: Errno) -> LinkError {
    LinkError::system("watching the processes' sockets", error)
}

/// Everybody who shares the port.
struct Crowd {
    port: DpdkPort,
    /// The parameter server at this port, if it has one.
    server: Option<Served>,
    /// All processes' sockets, by the places of their workers.
    sockets: Epoll,
    workers: Vec<Option<Member>>,
    /// Which of them sends next.
    order: NicOrder,
    /// Whether the device has been lost, as the log says.
    is_lost: bool,
    next_look: Instant,
    /// What the log says has been dropped.
    dropped: Dropped,
    next_tell: Instant,
    log: Log,
}

/// The parameter server, and lists of its jobs.
type Served = (Server<Box<dyn Link>>, Receiver<Vec<PsJob>>);

struct Member {
    worker: Worker,
    name: String,
    /// Whether its sockets are to be looked at.
    look: bool,
}

impl Crowd {
    fn run(
        &mut self,
        pending_processes: &Receiver<PendingProcess>,
        stop: &AtomicBool,
    ) -> Result<(), AgentError> {
        let mut is_busy = false;
        let (mut looked, mut looked_at_all) = (Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            for process in pending_processes.try_iter() {
                self.begin(process);
            }
            if !is_busy || now.saturating_duration_since(looked) >= LOOK_EVERY {
                looked = now;
                // Room for what a process has not been told yet does not make its socket readable.
                let all = now.saturating_duration_since(looked_at_all) >= IDLE_MAX;
                if all {
                    looked_at_all = now;
                }
                self.look(all)?;
            }
            let are_several = self.workers.iter().flatten().nth(1).is_some();
            let service = if are_several {
                Service::Ordered
            } else {
                Service::Alone
            };
            is_busy = false;
            for at in 0..self.workers.len() {
                is_busy |= self.turn(at, now, service);
            }
            if service == Service::Ordered {
                is_busy |= self.send_in_order(now);
            }
            is_busy |= self.serve_jobs()?;
            if is_busy {
                continue;
            }
            let is_empty = self.workers.iter().all(Option::is_none);
            if is_empty && stop.load(Ordering::Relaxed) {
                match &mut self.server {
                    Some((server, _)) if !server.is_over() => server.stop(),
                    _ => return Ok(()),
                }
            }
            let timeouts = self.workers.iter().flatten().map(|it| it.worker.idle_for());
            let server = self.server.iter().map(|(it, _)| it.idle_for(IDLE_MAX));
            if let Some(timeout) = timeouts.chain(server).min() {
                self.port.wait(timeout, Some(self.sockets.0.as_fd()))?;
                self.keep_open(now)?;
            } else {
                self.port.keep();
                if let Ok(process) = pending_processes.recv_timeout(EMPTY_EVERY) {
                    self.begin(process);
                }
            }
        }
    }

    /// A turn of the parameter server, if there is one. Returns whether it had something to do.
    fn serve_jobs(&mut self) -> Result<bool, AgentError> {
        let Some((server, lists)) = &mut self.server else {
            return Ok(false);
        };
        if let Some(jobs) = lists.try_iter().last() {
            server.set_jobs(jobs)?;
        }
        let log = self.log;
        server.turn(&mut |job, event| ps::log_event(log, WHO, job, event))
    }

    /// Opens the device again, if it is lost.
    fn keep_open(&mut self, now: Instant) -> Result<(), AgentError> {
        if now < self.next_look {
            return Ok(());
        }
        if self.port.is_lost() {
            if !self.is_lost {
                self.log.warn("the port has lost its peer; waiting for it");
                self.is_lost = true;
            }
            self.open()?;
        }
        self.next_look = Instant::now() + LOOK_AT_PORT_EVERY;
        if self.next_tell <= now {
            self.next_tell = now + TELL_DROPPED_EVERY;
            self.tell_dropped();
        }
        Ok(())
    }

    fn tell_dropped(&mut self) {
        let (all, said) = (self.port.dropped(), self.dropped);
        self.dropped = all;
        if all.overflow > said.overflow {
            let new = all.overflow - said.overflow;
            self.log.warn(format_args!(
                "{new} frames dropped, {} so far, as their processes' sessions were behind",
                all.overflow
            ));
        }
        if all.wrong_mac > said.wrong_mac {
            let new = all.wrong_mac - said.wrong_mac;
            self.log.warn(format_args!(
                "{new} frames dropped, {} so far, that had the switch's IP address and not its MAC: a host claims to be \
                 the switch, or the switch has a new MAC",
                all.wrong_mac
            ));
        }
        if all.strays > said.strays {
            let new = all.strays - said.strays;
            self.log.debug(format_args!(
                "{new} frames for no process of this host dropped, {} in all",
                all.strays
            ));
        }
    }

    /// Opens the device. That its peer is not there is no error.
    fn open(&mut self) -> Result<(), AgentError> {
        match self.port.connect(Duration::ZERO) {
            Ok(()) => {
                self.log.info("the port is open");
                self.is_lost = false;
            }
            Err(error) if self.port.is_memif() => {
                if !self.is_lost {
                    self.log.warn(format_args!(
                        "{error}; trying again while there are processes"
                    ));
                    self.is_lost = true;
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn begin(&mut self, process: PendingProcess) {
        let mut workers = self.workers.iter_mut().flatten();
        if let Some(member) = workers.find(|it| it.worker.waits_for(&process.task)) {
            return member.worker.admit(process);
        }
        let link = self
            .port
            .link(Some(Group::of(&process.task.config).address));
        let link = losing(Box::new(link), process.task.loss);
        let name = process.task.name.clone();
        let worker = match watch() {
            Ok(sockets) => Worker::new(CommunicatorConfig::Link(link), sockets, process),
            Err(error) => return process.fail(&error.into()),
        };
        let free = self.workers.iter().position(Option::is_none);
        let at = free.unwrap_or(self.workers.len());
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, at as u64);
        if let Err(why) = self.sockets.add(worker.sockets(), readable) {
            // All are looked at every 50 ms.
            self.log.error(format_args!("{name}: {}", watching(why)));
        }
        let member = Some(Member {
            name,
            worker,
            look: true,
        });
        match free {
            Some(free) => self.workers[free] = member,
            None => self.workers.push(member),
        }
    }

    /// Finds the sockets that can be read.
    fn look(&mut self, all: bool) -> Result<(), AgentError> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let n = match self.sockets.wait(&mut events, EpollTimeout::ZERO) {
            Ok(n) => n,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(watching(error).into()),
        };
        for event in &events[..n] {
            if let Some(Some(member)) = self.workers.get_mut(event.data() as usize) {
                member.look = true;
            }
        }
        for member in self.workers.iter_mut().flatten() {
            member.look |= all;
        }
        Ok(())
    }

    /// Whether it had something to do. A session that crashes takes no other with it: what they
    /// share is as it was between two calls, or holds frames that count as lost.
    fn turn(&mut self, at: usize, now: Instant, service: Service) -> bool {
        let Some(member) = &mut self.workers[at] else {
            return false;
        };
        let look = mem::take(&mut member.look);
        match catch_unwind(AssertUnwindSafe(|| member.worker.turn(now, look, service))) {
            Ok(WorkerTurn::Busy) => return true,
            Ok(WorkerTurn::Idle) => return false,
            Ok(WorkerTurn::Over) => {}
            Err(_) => crashed(self.log, &member.name),
        }
        self.remove(at);
        true
    }

    /// Has workers send, until the port is full or none has anything to send. Whether one had.
    fn send_in_order(&mut self, now: Instant) -> bool {
        for (at, member) in self.workers.iter().enumerate() {
            if let Some(demand) = member.as_ref().and_then(|it| it.worker.demand()) {
                self.order.offer(at, demand);
            }
        }
        let mut has_sent = false;
        while let Some(Turn { at, most }) = self.order.next() {
            let Sent { frames, has_room } = self.send(at, now, most);
            has_sent |= frames > 0;
            self.order.sent(frames, has_room && frames < most);
            if !has_room {
                break;
            }
        }
        self.order.end();
        has_sent
    }

    fn send(&mut self, at: usize, now: Instant, most: usize) -> Sent {
        let nothing = Sent {
            frames: 0,
            has_room: true,
        };
        let Some(member) = &mut self.workers[at] else {
            return nothing;
        };
        match catch_unwind(AssertUnwindSafe(|| member.worker.send(now, most))) {
            Ok(Ok(sent)) => return sent,
            Ok(Err(WorkerTurn::Busy | WorkerTurn::Idle)) => return nothing,
            Ok(Err(WorkerTurn::Over)) => {}
            Err(_) => crashed(self.log, &member.name),
        }
        self.remove(at);
        nothing
    }

    fn remove(&mut self, at: usize) {
        let over = self.workers[at].take();
        if catch_unwind(AssertUnwindSafe(|| drop(over))).is_err() {
            self.log.error("a session crashed once more in its end");
        }
    }
}
