//! The world: hosts around switches, and the loop that lets time pass.
//!
//! A [`World`] owns everything and draws every random number from one seed; an [`App`] decides what
//! is computed and what fails. The loop takes the next event, lets the session or the switch that
//! it is for act, and tells the app what came of it. Between events nothing happens, so nothing is
//! polled: each session has at most one pending wake-up that counts, scheduled for what its
//! `poll_timeout` said. When its deadline moves forward, as a retransmission timer's does with
//! every result, the old wake-up stays and schedules the next when it fires.
//!
//! How to use it:
//!
//! 1. [`World::new`], [`add_switch`](World::add_switch) and [`add_trunk`](World::add_trunk) for
//!    more than one switch, [`add_host`](World::add_host) for each machine;
//! 2. [`start_worker`](World::start_worker), [`start_ps`](World::start_ps) for each process;
//!    [`with_worker`](World::with_worker) to submit, finish, interrupt; [`alarm`](World::alarm) for
//!    the app's own events;
//! 3. [`run`](World::run) until a moment, or until the app calls [`stop`](World::stop).
//!
//! Apps must be deterministic, too: no time, no randomness but from a seed, no hash maps' order.

mod app;
mod guests;
mod serve;
mod topology;

pub use app::App;

use crate::address::{Address, Destination, HostId, Place, SessionId, SwitchId};
use crate::bridge::Bridge;
use crate::collectives::{Process, Script};
use crate::ethernet;
use crate::events::{Event, EventQueue};
use crate::frame::{Frame, HEADERS_ROOM, Origin};
use crate::host::{Data, Host, Kind, Session};
use crate::port::{Outside, arrival};
use crate::ring;
use crate::rng::Rng;
use crate::switch::{Switch, SwitchConfig};
use crate::trace::{Step, Trace};
use std::collections::VecDeque;
use std::rc::Rc;
use tally_endpoint::datagram_bytes;
use tally_endpoint::{Event as WorkerEvent, Ps, PsConfig, PsEvent, Worker, WorkerConfig};
use tally_engine::{JobConfig, Member};
use tally_kernels::Kernels;
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::PARTIAL_HEADER_BYTES;
use tally_wire::roce::ICRC_BYTES;
use tally_wire::switchml::{HEADERS_BYTES as SWITCHML_BYTES, Size};
use tally_wire::{Addresses, JobId, Time, UNIT_BYTES};

enum News {
    Worker(SessionId, WorkerEvent),
    Ps(SessionId, PsEvent),
    Data(SessionId),
    Alarm(u64),
}

/// What all of a world has in common.
#[derive(Clone, Copy, Debug)]
pub struct WorldConfig {
    /// Everything random comes from it.
    pub seed: u64,
    /// Units of the largest payload of any job.
    pub units_max: u8,
    /// Path MTU of RoCE; 0 in a world without it.
    pub mtu: usize,
    /// Payload bytes that element frames stand for on the wire; none: what they have.
    pub nominal_payload_bytes: Option<u32>,
}

/// Everything there is.
pub struct World<D> {
    /// The moment.
    pub now: Time,
    /// For faults of links; apps fork their own.
    pub rng: Rng,
    /// By number.
    pub hosts: Vec<Host>,
    /// By number.
    pub switches: Vec<Switch>,
    /// Ordinary switches, by number.
    pub bridges: Vec<Bridge>,
    /// What happened last, if anybody wants to know.
    pub trace: Option<Trace>,
    /// Copies of the last frames that came to a switch that they were to, if anybody wants them.
    pub tap: Option<VecDeque<Frame>>,
    /// Events that have happened.
    pub happened: u64,
    sessions: Vec<Session<D>>,
    events: EventQueue<Event>,
    room: usize,
    news: VecDeque<News>,
    nominal_payload_bytes: Option<u32>,
    is_stopped: bool,
}

/// Frames that the tap remembers.
const TAP_FRAMES: usize = 32;

impl<D: Data> World<D> {
    /// A switch without hosts, shortly after the beginning of time.
    #[must_use]
    pub fn new(config: WorldConfig, switch: SwitchConfig) -> Self {
        let room = datagram_bytes(config.units_max) + HEADERS_ROOM;
        let room = room.max(SWITCHML_BYTES + Size::B1024.payload_bytes());
        let room = room.max(config.mtu + ring::HEADERS_BYTES);
        let room = room.max(config.mtu + UDP_END + PARTIAL_HEADER_BYTES + ICRC_BYTES);
        Self {
            now: Time(1_000_000),
            rng: Rng::new(config.seed),
            hosts: Vec::new(),
            switches: vec![Switch::new(SwitchId(0), switch, room)],
            bridges: Vec::new(),
            trace: None,
            tap: None,
            happened: 0,
            sessions: Vec::new(),
            events: EventQueue::default(),
            room,
            news: VecDeque::new(),
            nominal_payload_bytes: config.nominal_payload_bytes,
            is_stopped: false,
        }
    }

    // --- sessions --------------------------------------------------------------------------

    /// Starts a worker's process, for which `switch` aggregates.
    pub fn start_worker(
        &mut self,
        switch: SwitchId,
        address: Address,
        config: WorkerConfig,
        data: D,
    ) -> SessionId {
        let job = config.job;
        let worker = Box::new(Worker::new(self.now, config));
        self.start(switch, address, job, Kind::Worker(worker, data))
    }

    /// Starts the process of a parameter server of a job of `switch`.
    pub fn start_ps(
        &mut self,
        switch: SwitchId,
        address: Address,
        config: PsConfig,
        kernels: Kernels,
    ) -> SessionId {
        let job = config.job;
        let ps = Box::new(Ps::new(self.now, config, kernels));
        self.start(switch, address, job, Kind::Ps(ps))
    }

    /// Starts a process with a session of collectives, for which `switch` aggregates.
    pub fn start_collectives(
        &mut self,
        switch: SwitchId,
        address: Address,
        config: WorkerConfig,
        script: Rc<Script>,
    ) -> SessionId {
        let job = config.job;
        let process = Process::new(self.now, config, script, self.rng.fork());
        self.start(switch, address, job, Kind::Collectives(Box::new(process)))
    }

    fn start(
        &mut self,
        switch: SwitchId,
        address: Address,
        job: JobId,
        kind: Kind<D>,
    ) -> SessionId {
        let id = SessionId(self.sessions.len() as u32);
        self.sessions.push(Session {
            kind,
            job,
            address,
            switch,
            wake_at: None,
        });
        self.hosts[usize::from(address.host.0)].sessions.push(id);
        self.serve(id);
        id
    }

    /// Ends a process at once, without a word to anybody.
    pub fn kill(&mut self, id: SessionId) {
        let session = &mut self.sessions[id.0 as usize];
        session.kind = Kind::Dead;
        let host = usize::from(session.address.host.0);
        self.hosts[host].sessions.retain(|s| *s != id);
    }

    /// All sessions, also dead ones, by number.
    #[must_use]
    pub fn sessions(&self) -> &[Session<D>] {
        &self.sessions
    }

    /// A session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> &Session<D> {
        &self.sessions[id.0 as usize]
    }

    /// A worker and its data; `None` for a dead one, and for a parameter server.
    #[must_use]
    pub fn worker(&self, id: SessionId) -> Option<(&Worker, &D)> {
        match &self.session(id).kind {
            Kind::Worker(worker, data) => Some((worker, data)),
            _ => None,
        }
    }

    /// A parameter server.
    #[must_use]
    pub fn ps(&self, id: SessionId) -> Option<&Ps> {
        match &self.session(id).kind {
            Kind::Ps(ps) => Some(ps),
            _ => None,
        }
    }

    /// Lets the app do something with a worker, and then lets the worker act on it.
    pub fn with_worker<R>(
        &mut self,
        id: SessionId,
        act: impl FnOnce(Time, &mut Worker, &mut D) -> R,
    ) -> Option<R> {
        let now = self.now;
        let Kind::Worker(worker, data) = &mut self.sessions[id.0 as usize].kind else {
            return None;
        };
        let done = act(now, worker, data);
        self.serve(id);
        Some(done)
    }

    /// A process with a session of collectives; `None` for a dead one.
    #[must_use]
    pub fn process(&self, id: SessionId) -> Option<&Process> {
        match &self.session(id).kind {
            Kind::Collectives(process) => Some(process),
            _ => None,
        }
    }

    /// Lets the app do something with a process, and then lets the process act on it.
    pub fn with_process(&mut self, id: SessionId, act: impl FnOnce(Time, &mut Process)) {
        if let Kind::Collectives(process) = &mut self.sessions[id.0 as usize].kind {
            act(self.now, process);
            self.serve(id);
        }
    }

    // --- events ----------------------------------------------------------------------------

    /// Lets the app hear `token` at `at`.
    pub fn alarm(&mut self, at: Time, token: u64) {
        self.events.push(at, Event::Alarm(token));
    }

    /// Makes [`run`](Self::run) return.
    pub const fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Notes something in the trace.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.note(self.now, text());
        }
    }

    /// Lets a host's processes not run for a while; what arrives for them waits.
    pub fn put_to_sleep(&mut self, host: HostId, until: Time) {
        let host = &mut self.hosts[usize::from(host.0)];
        host.asleep_until = host.asleep_until.max(until);
        self.events.push(until, Event::HostIdle(host.id));
    }

    /// Lets a datagram of the hostile host arrive where this host's cable ends, with these headers.
    pub fn inject(&mut self, host: HostId, addresses: &Addresses, datagram: &[u8]) {
        let frame = Frame::datagram(self.room, Origin::Forger, addresses, datagram);
        let peer = self.hosts[usize::from(host.0)].peer();
        self.events.push(self.now, arrival(peer, frame));
    }

    /// Lets an Ethernet frame arrive where this host's cable ends. It is cut off where a
    /// [`HEADERS_ROOM`] with the longest datagram behind it ends.
    pub fn inject_whole(&mut self, host: HostId, origin: Origin, bytes: &[u8]) {
        let mut frame = Frame::empty(self.room, origin);
        let len = bytes.len().min(self.room);
        frame.fill(len).copy_from_slice(&bytes[..len]);
        let peer = self.hosts[usize::from(host.0)].peer();
        self.events.push(self.now, arrival(peer, frame));
    }

    /// Lets a forged datagram from the switch's addresses arrive at a host.
    pub fn plant(&mut self, host: HostId, addresses: &Addresses, datagram: &[u8]) {
        let len = datagram.len().min(self.room - UDP_END);
        let frame = Frame::datagram(self.room, Origin::Planted, addresses, &datagram[..len]);
        self.events.push(self.now, Event::ToHost(host, frame));
    }

    /// Stops a switch, or starts it again.
    pub fn stop_switch(&mut self, switch: SwitchId) {
        self.switches[usize::from(switch.0)].stop();
    }

    /// See [`stop_switch`](Self::stop_switch).
    pub fn start_switch(&mut self, switch: SwitchId, secret: [u8; 32]) {
        self.switches[usize::from(switch.0)].start(secret);
        let (switch, mut outside) = self.split(switch);
        switch.start_card(&mut outside);
    }

    /// Tells a switch where the parent of its nodes of these jobs is, as a hello would.
    pub fn introduce(&mut self, switch: SwitchId, jobs: &[JobId], parent: Member) {
        let (switch, mut outside) = self.split(switch);
        switch.introduce(jobs, parent, &mut outside);
    }

    /// Sets a job of a switch, or adds it.
    pub fn set_job(&mut self, switch: SwitchId, job: JobConfig) {
        self.switches[usize::from(switch.0)].set_job(job);
    }

    /// Removes a job of a switch.
    pub fn remove_job(&mut self, switch: SwitchId, job: JobId) {
        let (switch, mut outside) = self.split(switch);
        switch.remove_job(job, &mut outside);
    }

    /// Events that are to come: frames in flight and timers.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.events.len()
    }

    /// Lets time pass until `until`. Says whether the app stopped it earlier.
    pub fn run(&mut self, app: &mut impl App<D>, until: Time) -> bool {
        self.is_stopped = false;
        loop {
            while let Some(news) = self.news.pop_front() {
                match news {
                    News::Worker(id, event) => app.worker_event(self, id, event),
                    News::Ps(id, event) => app.ps_event(self, id, event),
                    News::Data(id) => app.news(self, id),
                    News::Alarm(token) => app.alarm(self, token),
                }
            }
            if self.is_stopped {
                return true;
            }
            let Some((at, event)) = self.events.pop(until) else {
                self.now = self.now.max(until);
                return false;
            };
            self.now = self.now.max(at);
            self.happened += 1;
            self.happen(app, event);
        }
    }

    #[inline]
    fn happen(&mut self, app: &mut impl App<D>, event: Event) {
        match event {
            Event::ToHost(host, frame) => self.at_host(app, host, frame),
            Event::Wake(id) => self.wake(id),
            Event::HostIdle(host) => self.host_idle(host),
            Event::Alarm(token) => self.news.push_back(News::Alarm(token)),
            Event::ToSwitch(id, port, frame) => {
                let place = Place::Switch(id, port);
                app.observe(self.now, place, &frame);
                if let Some(trace) = &mut self.trace {
                    trace.frame(self.now, Step::Came, place, &frame);
                }
                if let Some(tap) = &mut self.tap
                    && frame.bytes().starts_with(&id.mac().0)
                    && frame.udp().is_some()
                {
                    if tap.len() == TAP_FRAMES {
                        tap.pop_front();
                    }
                    tap.push_back(frame.copied());
                }
                let (switch, mut outside) = self.split(id);
                switch.handle(port, frame, &mut outside);
                self.notify(app, id);
            }
            Event::ToBridge(id, port, frame) => {
                let place = Place::Bridge(id, port);
                if let Some(trace) = &mut self.trace {
                    trace.frame(self.now, Step::Came, place, &frame);
                }
                let bridge = &mut self.bridges[usize::from(id.0)];
                let mut outside = Outside {
                    now: self.now,
                    events: &mut self.events,
                    rng: &mut self.rng,
                    nominal_payload_bytes: self.nominal_payload_bytes,
                };
                bridge.handle(port, &frame, &mut outside);
            }
            Event::ToCard(id, frame) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_at_card(frame, &mut outside);
            }
            Event::CardTimer(id) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_card_timer(&mut outside);
                self.notify(app, id);
            }
            Event::CardCommand(id, core) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_card_command(core, &mut outside);
                self.notify(app, id);
            }
            Event::Poll(id, core) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_poll(core, &mut outside);
                self.notify(app, id);
            }
            Event::PortIdle(id, port) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_port_idle(port, &mut outside);
            }
            Event::CoreTimer(id, core) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_core_timer(core, &mut outside);
            }
            Event::Control(id) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_control(&mut outside);
            }
            Event::SwitchTimer(id) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_timer(&mut outside);
            }
            Event::Fabric(id) => {
                let (switch, mut outside) = self.split(id);
                switch.handle_fabric(&mut outside);
            }
        }
    }

    /// Tells the app what a switch's engine did.
    #[inline]
    fn notify(&mut self, app: &mut impl App<D>, id: SwitchId) {
        let memory = &self.switches[usize::from(id.0)].memory;
        if !memory.did().is_empty() {
            app.engine_did(self.now, id, &memory.did());
            memory.clear();
        }
        for transit in memory.transits() {
            app.forwarded(self.now, id, &transit);
        }
    }

    fn split(&mut self, id: SwitchId) -> (&mut Switch, Outside<'_>) {
        let outside = Outside {
            now: self.now,
            events: &mut self.events,
            rng: &mut self.rng,
            nominal_payload_bytes: self.nominal_payload_bytes,
        };
        (&mut self.switches[usize::from(id.0)], outside)
    }

    fn at_host(&mut self, app: &mut impl App<D>, id: HostId, frame: Frame) {
        let host = &mut self.hosts[usize::from(id.0)];
        if host.asleep_until > self.now {
            let at = host.asleep_until;
            return self.events.push(at, Event::ToHost(id, frame));
        }
        if let Some(trace) = &mut self.trace {
            trace.frame(self.now, Step::Came, Place::Host(id), &frame);
        }
        app.observe(self.now, Place::Host(id), &frame);
        let mut claimed = false;
        if self.is_for_switchml(id, &frame) || self.is_for_ring(id, &frame) {
            return;
        }
        let Some(ethernet::Received { from, to, at }) = ethernet::receive(frame.bytes(), id) else {
            return;
        };
        // Sessions may come and go while they are served, but only the app makes them do so.
        for n in 0..self.hosts[usize::from(id.0)].sessions.len() {
            let session_id = self.hosts[usize::from(id.0)].sessions[n];
            let session = &mut self.sessions[session_id.0 as usize];
            let is_for = match to {
                Destination::Member(to) => to == session.address,
                Destination::Group(job) => {
                    job == session.job
                        && matches!(session.kind, Kind::Worker(..) | Kind::Collectives(_))
                }
            };
            if !is_for || session.switch != from {
                continue;
            }
            claimed = true;
            let (ecn, datagram) = (frame.ecn(), &frame.bytes()[at.clone()]);
            match &mut session.kind {
                Kind::Worker(worker, data) => {
                    worker.handle_datagram(self.now, ecn, datagram, data);
                }
                Kind::Ps(ps) => ps.handle_datagram(self.now, ecn, datagram),
                Kind::Collectives(process) => process.handle_datagram(self.now, ecn, datagram),
                Kind::Switchml(_) | Kind::Ring(_) | Kind::Dead => {}
            }
            self.serve(session_id);
        }
        self.hosts[usize::from(id.0)].unclaimed += u64::from(!claimed);
    }

    fn wake(&mut self, id: SessionId) {
        let session = &mut self.sessions[id.0 as usize];
        if session.wake_at != Some(self.now) {
            return;
        }
        session.wake_at = None;
        let host = &self.hosts[usize::from(session.address.host.0)];
        if host.asleep_until > self.now {
            // It is served when the host wakes up.
            return;
        }
        match &mut session.kind {
            Kind::Worker(worker, _) if worker.poll_timeout().is_some_and(|t| t <= self.now) => {
                worker.handle_timeout(self.now);
            }
            Kind::Ps(ps) if ps.poll_timeout().is_some_and(|t| t <= self.now) => {
                ps.handle_timeout(self.now);
            }
            Kind::Collectives(process) => process.handle_timeout(self.now),
            Kind::Ring(member) => member.handle_timeout(self.now),
            _ => {}
        }
        self.serve(id);
    }
}

const _: () = assert!(UNIT_BYTES == 64);
