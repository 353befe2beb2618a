//! The world: hosts around one switch, and the loop that lets time pass.
//!
//! A [`World`] owns everything and draws every random number from one seed; an [`App`] decides what
//! is computed and what fails. The loop takes the next event, lets the session or the switch that it
//! is for act, and tells the app what came of it. Between events nothing happens, so nothing is
//! polled: each session has at most one pending wake-up that counts, scheduled for what its
//! `poll_timeout` said. When its deadline moves forward, as a retransmission timer's does with every
//! result, the old wake-up stays and schedules the next when it fires.
//!
//! How to use it:
//!
//! 1. [`World::new`], [`add_host`](World::add_host) for each machine;
//! 2. [`start_worker`](World::start_worker), [`start_ps`](World::start_ps) for each process;
//!    [`with_worker`](World::with_worker) to submit, finish, interrupt; [`alarm`](World::alarm) for the app's own events;
//! 3. [`run`](World::run) until a moment, or until the app calls [`stop`](World::stop).
//!
//! Apps must be deterministic, too: no time, no randomness but from a seed, no hash maps' order.

use crate::ethernet;
use crate::events::EventQueue;
use crate::frame::{Address, Destination, Frame, HEADERS_ROOM, HostId, Origin};
use crate::host::{Data, Host, Kind, Session, SessionId};
use crate::link::{
    Arrivals, ETHERNET_OVERHEAD_BYTES, Link, LinkConfig, OVERHEAD_BYTES, SHORTEST_BYTES,
};
use crate::rng::Rng;
use crate::switch::{Did, Outside, SWITCH_MAC, Switch, SwitchConfig, Transit};
use crate::switchml::{Client, Plan};
use crate::trace::{Step, Trace};
use std::collections::VecDeque;
use std::time::Duration;
use tally_endpoint::{Event as WorkerEvent, Ps, PsConfig, PsEvent, Worker, WorkerConfig};
use tally_endpoint::{Transmit, datagram_bytes};
use tally_engine::PortId;
use tally_kernels::Kernels;
use tally_wire::frame::{UDP_END, emit_udp};
use tally_wire::switchml::{HEADERS_BYTES as SWITCHML_BYTES, Size, is_port};
use tally_wire::{Addresses, JobId, Time, UNIT_BYTES};

/// What may happen.
pub enum Event {
    /// A frame arrives at the switch.
    ToSwitch(PortId, Frame),
    /// A frame arrives at a host.
    ToHost(HostId, Frame),
    /// A core of the switch polls.
    Poll(usize),
    /// A port of the switch can send its next frame.
    PortIdle(PortId),
    /// A host's cable can take more.
    HostIdle(HostId),
    /// A session's deadline.
    Wake(SessionId),
    /// The switch's control thread takes its next frame.
    Control,
    /// The registry's deadline.
    SwitchTimer,
    /// The app's.
    Alarm(u64),
}

/// Where a frame has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The switch, at this port.
    Switch(PortId),
    /// A host.
    Host(HostId),
}

/// What the sessions compute, and what happens to them.
pub trait App<D: Data> {
    /// A worker said something.
    fn worker_event(&mut self, world: &mut World<D>, session: SessionId, event: WorkerEvent);

    /// A parameter server said something.
    fn ps_event(&mut self, _world: &mut World<D>, _session: SessionId, _event: PsEvent) {}

    /// A worker's data has news.
    fn news(&mut self, _world: &mut World<D>, _session: SessionId) {}

    /// A frame has come to the switch or to a host, which has not parsed it yet. For checkers.
    #[inline]
    fn observe(&mut self, _now: Time, _place: Place, _frame: &Frame) {}

    /// What the engine did in this event, if [`Memory::record`](crate::switch::Memory::record) was
    /// called. For checkers.
    fn engine_did(&mut self, _now: Time, _did: &[Did]) {}

    /// What forwarding decided, under the same condition. For checkers.
    fn forwarded(&mut self, _now: Time, _transit: &Transit) {}

    /// What was asked for with [`World::alarm`].
    fn alarm(&mut self, world: &mut World<D>, token: u64);
}

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
    /// Payload bytes that element frames stand for on the wire; none: what they have.
    pub nominal_payload_bytes: Option<u32>,
}

/// Everything there is.
pub struct World<D> {
    /// The moment.
    pub now: Time,
    /// For faults of links; apps fork their own.
    pub rng: Rng,
    /// Hosts; the number is also that of the switch's port.
    pub hosts: Vec<Host>,
    /// The switch in the middle.
    pub switch: Switch,
    /// What happened last, if anybody wants to know.
    pub trace: Option<Trace>,
    /// Copies of the last frames that came to the switch, if anybody wants them.
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
        Self {
            now: Time(1_000_000),
            rng: Rng::new(config.seed),
            hosts: Vec::new(),
            switch: Switch::new(switch, room),
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

    /// Connects a host to the next port of the switch.
    pub fn add_host(
        &mut self,
        uplink: LinkConfig,
        downlink: LinkConfig,
        ahead: Duration,
    ) -> HostId {
        let id = HostId(self.hosts.len() as u16);
        self.switch.add_port(downlink);
        self.hosts.push(Host {
            id,
            uplink: Link::new(uplink),
            sessions: Vec::new(),
            ahead,
            is_armed: false,
            asleep_until: Time(0),
            unclaimed: 0,
        });
        id
    }

    // --- sessions --------------------------------------------------------------------------

    /// Starts a worker's process.
    pub fn start_worker(&mut self, address: Address, config: WorkerConfig, data: D) -> SessionId {
        let job = config.job;
        let worker = Box::new(Worker::new(self.now, config));
        self.start(address, job, Kind::Worker(worker, data))
    }

    /// Starts a parameter server's process.
    pub fn start_ps(&mut self, address: Address, config: PsConfig, kernels: Kernels) -> SessionId {
        let job = config.job;
        let ps = Box::new(Ps::new(self.now, config, kernels));
        self.start(address, job, Kind::Ps(ps))
    }

    /// Starts a client of SwitchML.
    pub fn start_switchml(&mut self, address: Address, plan: Plan, rank: usize) -> SessionId {
        let client = Box::new(Client::new(self.now, plan, rank, address));
        self.start(address, JobId(0), Kind::Switchml(client))
    }

    /// Binds a session of SwitchML on all cores; says whether there was room.
    pub fn bind_switchml(&mut self, plan: &Plan) -> bool {
        let (switch, mut outside) = self.split();
        switch.bind_switchml(&plan.session, &mut outside)
    }

    /// Ends a session of SwitchML on all cores.
    pub fn unbind_switchml(&mut self, plan: &Plan) {
        self.switch.unbind_switchml(plan.session.id);
    }

    fn start(&mut self, address: Address, job: JobId, kind: Kind<D>) -> SessionId {
        let id = SessionId(self.sessions.len() as u32);
        self.sessions.push(Session {
            kind,
            job,
            address,
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

    /// Lets a session send what it has to, say what it has to, and be woken in time.
    fn serve(&mut self, id: SessionId) {
        let Self { now, .. } = *self;
        let session = &mut self.sessions[id.0 as usize];
        let host = &mut self.hosts[usize::from(session.address.host.0)];
        if host.asleep_until > now {
            return;
        }
        loop {
            if !host.ahead.is_zero() && host.uplink.backlog(now) >= host.ahead {
                if !host.is_armed {
                    host.is_armed = true;
                    // Half of it may leave first, so that this is not once a frame.
                    let left = host.uplink.backlog(now) - host.ahead / 2;
                    self.events.push(now.after(left), Event::HostIdle(host.id));
                }
                break;
            }
            let mut frame = Frame::empty(self.room);
            let bytes = frame.fill(self.room);
            let room = &mut bytes[UDP_END..];
            let sent = match &mut session.kind {
                Kind::Worker(worker, data) => worker.poll_transmit(now, room, data),
                Kind::Ps(ps) => ps.poll_transmit(now, room),
                Kind::Switchml(_) | Kind::Dead => None,
            };
            let len = match (sent, &mut session.kind) {
                (Some(Transmit { len, port }), _) => {
                    emit_udp(bytes, &session.address.to_switch(port), len);
                    UDP_END + len
                }
                (None, Kind::Switchml(client)) => match client.poll_transmit(now, bytes) {
                    Some(len) => len,
                    None => break,
                },
                _ => break,
            };
            frame.fill(len);
            frame.set_origin(Origin::Host(host.id));
            if let Some(trace) = &mut self.trace {
                trace.frame(now, Step::Sent, host.id.0, &frame);
            }
            let bytes = wire_bytes(frame.bytes(), self.nominal_payload_bytes);
            let arrivals = match host.uplink.take(now, bytes) {
                Some(left) => {
                    let has_elements = has_elements(frame.bytes());
                    host.uplink.fly(left, has_elements, &mut self.rng)
                }
                None => Arrivals::default(),
            };
            let port = PortId(host.id.0);
            if let Some(at) = arrivals.copy {
                self.events.push(at, Event::ToSwitch(port, frame.copied()));
            }
            if let Some(at) = arrivals.first {
                self.events.push(at, Event::ToSwitch(port, frame));
            } else {
                if let Some(trace) = &mut self.trace {
                    trace.frame(now, Step::Lost, host.id.0, &frame);
                }
            }
        }
        let deadline = match &mut session.kind {
            Kind::Worker(worker, data) => {
                while let Some(event) = worker.poll_event() {
                    self.news.push_back(News::Worker(id, event));
                }
                if data.has_news() {
                    self.news.push_back(News::Data(id));
                }
                worker.poll_timeout()
            }
            Kind::Ps(ps) => {
                while let Some(event) = ps.poll_event() {
                    self.news.push_back(News::Ps(id, event));
                }
                ps.poll_timeout()
            }
            Kind::Switchml(client) => client.poll_timeout(),
            Kind::Dead => None,
        };
        if let Some(at) = deadline
            && session.wake_at.is_none_or(|wake| at < wake)
        {
            // A deadline that has passed and is still there is looked at again, but time goes on.
            let at = at.max(Time(now.0 + 1));
            session.wake_at = Some(at);
            self.events.push(at, Event::Wake(id));
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

    /// Lets a datagram of the hostile host arrive at a port of the switch, with these headers.
    pub fn inject(&mut self, port: PortId, addresses: &Addresses, datagram: &[u8]) {
        let frame = Frame::datagram(self.room, Origin::Forger, addresses, datagram);
        self.events.push(self.now, Event::ToSwitch(port, frame));
    }

    /// Lets an Ethernet frame arrive at a port. It is cut off where a [`HEADERS_ROOM`] with the
    /// longest datagram behind it ends.
    pub fn inject_whole(&mut self, port: PortId, origin: Origin, bytes: &[u8]) {
        let mut frame = Frame::empty(self.room);
        let len = bytes.len().min(self.room);
        frame.fill(len).copy_from_slice(&bytes[..len]);
        frame.set_origin(origin);
        self.events.push(self.now, Event::ToSwitch(port, frame));
    }

    /// Lets a forged datagram from the switch's addresses arrive at a host.
    pub fn plant(&mut self, host: HostId, addresses: &Addresses, datagram: &[u8]) {
        let len = datagram.len().min(self.room - UDP_END);
        let frame = Frame::datagram(self.room, Origin::Planted, addresses, &datagram[..len]);
        self.events.push(self.now, Event::ToHost(host, frame));
    }

    /// Stops the switch, or starts it again.
    pub fn stop_switch(&mut self) {
        self.switch.stop();
    }

    /// See [`stop_switch`](Self::stop_switch).
    pub fn start_switch(&mut self, secret: [u8; 32]) {
        self.switch.start(secret);
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
            Event::ToSwitch(port, frame) => {
                app.observe(self.now, Place::Switch(port), &frame);
                if let Some(trace) = &mut self.trace {
                    trace.frame(self.now, Step::AtSwitch, port.0, &frame);
                }
                if let Some(tap) = &mut self.tap
                    && frame.bytes().starts_with(&SWITCH_MAC.0)
                    && frame.udp().is_some()
                {
                    if tap.len() == TAP_FRAMES {
                        tap.pop_front();
                    }
                    tap.push_back(frame.copied());
                }
                let (switch, mut outside) = self.split();
                switch.handle(port, frame, &mut outside);
                self.tell(app);
            }
            Event::Poll(core) => {
                let (switch, mut outside) = self.split();
                switch.handle_poll(core, &mut outside);
                self.tell(app);
            }
            Event::PortIdle(port) => {
                let (switch, mut outside) = self.split();
                switch.handle_port_idle(port, &mut outside);
            }
            Event::Control => {
                let (switch, mut outside) = self.split();
                switch.handle_control(&mut outside);
            }
            Event::SwitchTimer => {
                let (switch, mut outside) = self.split();
                switch.handle_timer(&mut outside);
            }
        }
    }

    /// Tells the app what the engine did.
    #[inline]
    fn tell(&mut self, app: &mut impl App<D>) {
        let memory = &self.switch.memory;
        if !memory.did().is_empty() {
            app.engine_did(self.now, &memory.did());
            memory.clear();
        }
        for transit in memory.transits() {
            app.forwarded(self.now, &transit);
        }
    }

    fn split(&mut self) -> (&mut Switch, Outside<'_>) {
        let outside = Outside {
            now: self.now,
            events: &mut self.events,
            rng: &mut self.rng,
            nominal_payload_bytes: self.nominal_payload_bytes,
        };
        (&mut self.switch, outside)
    }

    fn at_host(&mut self, app: &mut impl App<D>, id: HostId, frame: Frame) {
        let host = &mut self.hosts[usize::from(id.0)];
        if host.asleep_until > self.now {
            let at = host.asleep_until;
            return self.events.push(at, Event::ToHost(id, frame));
        }
        if let Some(trace) = &mut self.trace {
            trace.frame(self.now, Step::AtHost, id.0, &frame);
        }
        app.observe(self.now, Place::Host(id), &frame);
        let mut claimed = false;
        if self.is_for_switchml(id, &frame) {
            return;
        }
        let Some((to, datagram)) = ethernet::receive(frame.bytes(), id) else {
            return;
        };
        // Sessions may come and go while they are served, but only the app makes them do so.
        for n in 0..self.hosts[usize::from(id.0)].sessions.len() {
            let session_id = self.hosts[usize::from(id.0)].sessions[n];
            let session = &mut self.sessions[session_id.0 as usize];
            let is_for = match to {
                Destination::Member(to) => to == session.address,
                Destination::Group(job) => {
                    job == session.job && matches!(session.kind, Kind::Worker(..))
                }
            };
            if !is_for {
                continue;
            }
            claimed = true;
            let (ecn, datagram) = (frame.ecn(), &frame.bytes()[datagram.clone()]);
            match &mut session.kind {
                Kind::Worker(worker, data) => {
                    worker.handle_datagram(self.now, ecn, datagram, data);
                }
                Kind::Ps(ps) => ps.handle_datagram(self.now, ecn, datagram),
                Kind::Switchml(_) | Kind::Dead => {}
            }
            self.serve(session_id);
        }
        self.hosts[usize::from(id.0)].unclaimed += u64::from(!claimed);
    }

    /// Gives a frame from one of SwitchML's ports to the client that it is to.
    fn is_for_switchml(&mut self, id: HostId, frame: &Frame) -> bool {
        let Some((udp, _)) = frame.udp() else {
            return false;
        };
        if !is_port(udp.addresses.src_port) {
            return false;
        }
        for n in 0..self.hosts[usize::from(id.0)].sessions.len() {
            let session_id = self.hosts[usize::from(id.0)].sessions[n];
            let session = &mut self.sessions[session_id.0 as usize];
            let own = session.address;
            if let Kind::Switchml(client) = &mut session.kind
                && (udp.addresses.dst_mac, udp.addresses.dst_ip) == (own.mac(), own.ip())
                && udp.addresses.dst_port == own.udp_port
            {
                client.handle(self.now, &udp, frame.bytes());
                self.serve(session_id);
                return true;
            }
        }
        false
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
            _ => {}
        }
        self.serve(id);
    }

    fn host_idle(&mut self, id: HostId) {
        let at = usize::from(id.0);
        self.hosts[at].is_armed = false;
        let sessions = self.hosts[at].sessions.len();
        if sessions > 1 {
            // Not always the same one first.
            self.hosts[at].sessions.rotate_left(1);
        }
        for n in 0..sessions {
            self.serve(self.hosts[at].sessions[n]);
        }
    }
}

/// Whether a frame is DATA, RESULT or PARTIAL, as the low half of its datagram's first byte says.
pub(crate) fn has_elements(frame: &[u8]) -> bool {
    frame
        .get(UDP_END)
        .is_some_and(|first| (5..=7).contains(&(first & 0xf)))
}

/// Bytes that a frame takes on the wire.
pub(crate) fn wire_bytes(frame: &[u8], nominal_payload_bytes: Option<u32>) -> u32 {
    let bytes = match nominal_payload_bytes {
        Some(payload) if has_elements(frame) => {
            payload + tally_wire::header::HEADER_BYTES as u32 + OVERHEAD_BYTES
        }
        _ => frame.len() as u32 + ETHERNET_OVERHEAD_BYTES,
    };
    bytes.max(SHORTEST_BYTES)
}

const _: () = assert!(UNIT_BYTES == 64);
