//! The switch: real cores and the real registry, with simulated links around them.
//!
//! This is a driver of [`tally_engine::core`], as `switch/src/datapath.rs` is one on DPDK. A frame
//! that arrives waits for its core's next poll iteration. How long the core has been at its last
//! one is drawn, because here nothing takes time. JOIN and LEAVE go to the registry after
//! [`SwitchConfig::control_delay`]; commands come between iterations.
//!
//! A port's link goes to a host or to a port of another switch.
//!
//! Each core's queues of a port feed the port's link whenever it is idle. With
//! [`Steering::Owner`], each port belongs to one core, and frames are handed over between cores.

mod card;
mod config;
mod links;
mod memory;
mod offload;
mod ring;

pub use card::{Card, CardConfig};
pub use config::{PollConfig, Steering, SwitchConfig, forwarding_config};
pub use memory::{Diary, Did, Memory, Transit};
pub use offload::{CardPort, CardSetup, CardTotals};

use crate::address::{Peer, SwitchId};
use crate::events::Event;
use crate::frame::{Frame, Ledger};
use crate::link::LinkConfig;
use crate::port::{Outside, Port};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tally_engine::metrics::MetricSet as _;
use tally_engine::native::{Datagram, Native};
use tally_engine::netreduce::{NetreduceDialect, ServedRing};
use tally_engine::switchml::{
    self, Session, Switchml, SwitchmlConfig, SwitchmlCounters, SwitchmlDialect, Whereabouts,
};
use tally_engine::{
    Action, Aggregator, Command, Context, ControlFrame, Counters, DialectCommand, Dialects,
    DropReason, Forwarding, ForwardingConfig, Handover, JobConfig, Member, ParentAddress,
    PoolConfig, PoolJob, PortId, Ports, Registry, SwitchAddress, Transmit, native,
};
use tally_wire::{JobId, SwitchName, Time, UdpFrame};

/// JOIN and LEAVE on their way to the registry at most.
const CONTROL_FRAMES: usize = 256;

type SwitchCore = tally_engine::Core<Memory, Dialects<Memory>>;

/// A core with what waits for it.
struct Core {
    core: SwitchCore,
    /// By port, frames that have arrived.
    rx: Vec<VecDeque<Frame>>,
    /// Ports that have some.
    pending: BTreeSet<u16>,
    /// The beginning of its next poll iteration has been scheduled.
    is_due: bool,
    /// When its dialects' deadline is looked at.
    timer_at: Option<Time>,
}

/// One core's ways out.
struct Driver<'a, 'b> {
    ports: &'a mut [Port],
    inboxes: &'a mut [Vec<Handover<Frame>>],
    out: &'a mut Outside<'b>,
}

impl Transmit<Frame> for Driver<'_, '_> {
    fn room(&self, port: PortId) -> usize {
        usize::from(self.ports[usize::from(port.0)].link.idle_at() <= self.out.now)
    }

    fn transmit(&mut self, number: PortId, frames: &mut Vec<Frame>) -> usize {
        let port = &mut self.ports[usize::from(number.0)];
        let sent = frames.len();
        for frame in frames.drain(..) {
            port.send(frame, self.out);
        }
        sent
    }

    fn hand_over(&mut self, core: usize, frames: &mut Vec<Handover<Frame>>) -> u64 {
        self.inboxes[core].append(frames);
        0
    }
}

/// A running switch.
pub struct Switch {
    id: SwitchId,
    config: SwitchConfig,
    /// Who is a member of what.
    pub registry: Registry,
    /// By number.
    pub ports: Vec<Port>,
    /// The card, if there is one.
    pub card: Option<CardPort>,
    /// What checkers see of the cores.
    pub memory: Memory,
    /// From the first frame or command on: then all ports are there.
    cores: Vec<Core>,
    /// By core, frames that others handed over.
    inboxes: Vec<Vec<Handover<Frame>>>,
    /// Empty but during an iteration: frames of one port.
    received: Vec<Frame>,
    /// Empty but while frames leave: ports that take no more.
    waiting: Vec<PortId>,
    /// Dropped between cores and the registry.
    control_full: u64,
    /// Frames for the registry, each with the time at which it is taken.
    control: VecDeque<(Time, ControlFrame)>,
    /// When the registry's next timeout has been scheduled for.
    timer_at: Option<Time>,
    is_up: bool,
    /// What the pool had for jobs that were removed.
    removed: Vec<PoolJob>,
    /// The rings that it serves, also after a restart.
    rings: Vec<ServedRing>,
    /// The fabric that it is a part of, if it is.
    links: Option<links::Links>,
}

impl Switch {
    /// A switch without ports, just started.
    #[must_use]
    pub fn new(id: SwitchId, mut config: SwitchConfig, room: usize) -> Self {
        config.registry.mac = id.mac();
        (config.forwarding.mac, config.forwarding.ip) = (id.mac(), id.ip());
        Self {
            id,
            registry: Registry::new(config.registry.clone(), config.jobs.clone()),
            ports: Vec::new(),
            card: None,
            memory: Memory::new(id, room),
            cores: Vec::new(),
            inboxes: Vec::new(),
            received: Vec::new(),
            waiting: Vec::new(),
            control_full: 0,
            control: VecDeque::new(),
            timer_at: None,
            is_up: true,
            removed: Vec::new(),
            rings: Vec::new(),
            links: None,
            config,
        }
    }

    /// What it was started with.
    #[must_use]
    pub const fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Makes the cores, if they are not there yet.
    fn ready(&mut self) {
        if !self.cores.is_empty() {
            return;
        }
        let config = ForwardingConfig {
            ports: self.ports.len() as u16,
            ..self.config.forwarding.clone()
        };
        let forwarding = match &self.links {
            Some(links) => links.forwarding(&config),
            None => Forwarding::new(&config),
        };
        // A restarted switch knows no connection.
        for ring in &mut self.rings {
            *ring = ring.config.clone().into();
        }
        let shards = self.config.pool.shards;
        let core = |shard| self.core(shard, forwarding.clone());
        self.cores = (0..shards).map(core).collect();
        self.inboxes = (0..shards).map(|_| Vec::new()).collect();
    }

    fn core(&self, shard: u8, forwarding: Forwarding) -> Core {
        let SwitchConfig {
            registry, kernels, ..
        } = &self.config;
        let (cores, ports) = (usize::from(self.config.pool.shards), self.ports.len());
        let pool = PoolConfig {
            shard,
            ..self.config.pool.clone()
        };
        let queue = |port| match self.config.steering {
            Steering::Owner if port % cores != usize::from(shard) => Err(port % cores),
            _ => Ok(self.config.queue),
        };
        // The link alone says what it takes: nothing waits between it and the queues.
        let mut out = Ports::new((0..ports).map(queue).collect(), cores, 0);
        if let Some(card) = &self.card {
            out.set_hostless(card.port);
        }
        let address = SwitchAddress {
            mac: self.id.mac(),
            ip: self.id.ip(),
            base_port: registry.base_port,
        };
        let aggregator = Aggregator::new(pool, *kernels);
        let dialects = Dialects {
            native: Native::new(
                aggregator,
                address.base_port,
                u16::from(registry.shards),
                ports,
            ),
            switchml: self.config.switchml.map(|config| {
                let config = SwitchmlConfig {
                    shards: cores as u8,
                    shard,
                    ..config
                };
                let pool = Switchml::new(config, *kernels);
                Box::new(SwitchmlDialect::new(pool, vec![true; ports]))
            }),
            netreduce: self.config.netreduce.map(|dscp| {
                let dialect = NetreduceDialect::new(
                    dscp,
                    *kernels,
                    (shard.into(), cores as u16),
                    self.rings.clone(),
                );
                Box::new(dialect)
            }),
            offload: self.card.as_ref().map(CardPort::dialect),
        };
        let memory = self.memory.clone();
        let (number, cores) = (usize::from(shard), cores as u16);
        let context = Context::new(address, number, cores, out, memory, forwarding);
        Core {
            core: SwitchCore::new(context, dialects).expect("claims that do not overlap"),
            rx: (0..ports).map(|_| VecDeque::new()).collect(),
            pending: BTreeSet::new(),
            is_due: false,
            timer_at: None,
        }
    }

    /// Stops: all state is gone, and frames are not received.
    pub fn stop(&mut self) {
        self.is_up = false;
        self.registry = Registry::new(self.config.registry.clone(), self.config.jobs.clone());
        self.cores.clear();
        self.inboxes.clear();
        self.memory.forget();
        self.control.clear();
        self.timer_at = None;
        if let Some(card) = &mut self.card {
            card.stop();
        }
        if let Some(links) = &mut self.links {
            links.stop();
        }
    }

    /// Starts again, with another secret.
    pub fn start(&mut self, secret: [u8; 32]) {
        self.config.registry.secret = secret;
        self.registry = Registry::new(self.config.registry.clone(), self.config.jobs.clone());
        self.is_up = true;
    }

    /// Whether it runs.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.is_up
    }

    /// The pool shards, by core.
    pub fn shards(&self) -> impl Iterator<Item = &Aggregator<Datagram<Frame>>> {
        let cores = self.cores.iter();
        cores.map(|core| core.core.dialects.native.aggregator())
    }

    /// What the engine has.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.memory.ledger()
    }

    /// What all cores did since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for core in &self.cores {
            let report = core.core.report();
            sum.add(&report.dialects.native.counters);
            sum.drops.add(&report.drops);
        }
        sum.drops[DropReason::ControlFull] += self.control_full;
        sum
    }

    /// What waited for a port, on all cores.
    #[must_use]
    pub fn queue_counters(&self, port: usize) -> tally_engine::queue::QueueCounters {
        let mut sum = tally_engine::queue::QueueCounters::default();
        for core in &self.cores {
            sum.add(&core.core.context.ports.queue_counters()[port]);
        }
        sum
    }

    /// Connects a cable to the next port, before the first frame or command.
    pub(crate) fn add_port(&mut self, link: LinkConfig, peer: Peer) -> PortId {
        assert!(self.cores.is_empty(), "a port is added to a running core");
        self.ports.push(Port::new(link, peer));
        PortId(self.ports.len() as u16 - 1)
    }

    /// Receives a frame that arrived on `port`: in its core's next poll iteration, or at once.
    pub(crate) fn handle(&mut self, port: PortId, frame: Frame, out: &mut Outside<'_>) {
        if !self.is_up {
            return;
        }
        self.ready();
        let core = self.core_of(port, &frame);
        self.cores[core].rx[usize::from(port.0)].push_back(frame);
        self.cores[core].pending.insert(port.0);
        self.wake(core, out);
    }

    /// Has a core poll soon, or at once.
    fn wake(&mut self, core: usize, out: &mut Outside<'_>) {
        let Some(poll) = self.config.poll else {
            return self.poll(core, out);
        };
        if !std::mem::replace(&mut self.cores[core].is_due, true) {
            let after = out.rng.between(0, poll.lasting.as_nanos() as u64);
            let at = out.now.after(Duration::from_nanos(after));
            out.events.push(at, Event::Poll(self.id, core));
        }
    }

    /// A core's poll iteration, and others after it as long as something waits.
    pub(crate) fn handle_poll(&mut self, core: usize, out: &mut Outside<'_>) {
        // Of a switch that has been stopped meanwhile, nothing waits.
        if let Some(due) = self.cores.get_mut(core) {
            due.is_due = false;
            self.poll(core, out);
        }
    }

    fn poll(&mut self, core: usize, out: &mut Outside<'_>) {
        while self.iterate(core, out) {}
        // What it handed over is for others.
        for other in 0..self.cores.len() {
            if other != core && !self.inboxes[other].is_empty() {
                self.wake(other, out);
            }
        }
    }

    /// One poll iteration, if there is anything to receive.
    fn iterate(&mut self, number: usize, out: &mut Outside<'_>) -> bool {
        let burst = self.config.poll.map_or(usize::MAX, |poll| poll.burst);
        let Core {
            core, rx, pending, ..
        } = &mut self.cores[number];
        if pending.is_empty() && self.inboxes[number].is_empty() {
            return false;
        }
        core.begin(out.now);
        let card = self.card.as_ref();
        pending.retain(|&port| {
            let waiting = &mut rx[usize::from(port)];
            let received = waiting.len().min(burst);
            self.received.extend(waiting.drain(..received));
            if let Some(card) = card.filter(|card| card.port.0 == port) {
                card.mark_stale(&core.context.jobs, &self.received);
            }
            core.receive(PortId(port), &mut self.received);
            !waiting.is_empty()
        });
        core.receive_handed_over(&mut self.inboxes[number]);
        core.aggregate();
        while let Some(frame) = core.poll_control() {
            if self.control.len() == CONTROL_FRAMES {
                self.control_full += 1;
                continue;
            }
            let at = out.now.after(self.config.control_delay);
            self.control.push_back((at, frame));
            out.events.push(at, Event::Control(self.id));
        }
        self.transmit(number, out);
        true
    }

    /// Offers what waits on a core to the links.
    fn transmit(&mut self, number: usize, out: &mut Outside<'_>) {
        let core = &mut self.cores[number].core;
        let mut driver = Driver {
            ports: &mut self.ports,
            inboxes: &mut self.inboxes,
            out,
        };
        let waiting = &mut self.waiting;
        core.context
            .ports
            .transmit_new(&mut driver, |port| waiting.push(port));
        for port in std::mem::take(&mut self.waiting) {
            self.arm(number, port, out);
        }
        let Core { core, timer_at, .. } = &mut self.cores[number];
        if let Some(at) = core.poll_timeout()
            && timer_at.is_none_or(|timer| at < timer)
        {
            let at = at.max(out.now);
            *timer_at = Some(at);
            out.events.push(at, Event::CoreTimer(self.id, number));
        }
    }

    /// The deadline of a core's dialects.
    pub(crate) fn handle_core_timer(&mut self, number: usize, out: &mut Outside<'_>) {
        // Of a switch that has been stopped meanwhile, there is none.
        let Some(core) = self.cores.get_mut(number) else {
            return;
        };
        if core.timer_at != Some(out.now) {
            return;
        }
        core.timer_at = None;
        core.core.begin(out.now);
        self.transmit(number, out);
        self.wake_inboxes(out);
    }

    /// Has a port's queues looked at when its link is idle, if something waits on this core.
    fn arm(&mut self, core: usize, number: PortId, out: &mut Outside<'_>) {
        let port = &mut self.ports[usize::from(number.0)];
        if !port.is_armed && self.cores[core].core.context.ports.waiting(number) > 0 {
            port.is_armed = true;
            let at = port.link.idle_at().max(out.now);
            out.events.push(at, Event::PortIdle(self.id, number));
        }
    }

    /// A port's link is idle: the next frame of its queues leaves. Cores take turns.
    pub(crate) fn handle_port_idle(&mut self, number: PortId, out: &mut Outside<'_>) {
        self.ports[usize::from(number.0)].is_armed = false;
        let cores = self.cores.len();
        let first = self.ports[usize::from(number.0)].link.stats.frames as usize;
        for n in 0..cores {
            let core = &mut self.cores[(first + n) % cores].core;
            let mut driver = Driver {
                ports: &mut self.ports,
                inboxes: &mut self.inboxes,
                out,
            };
            core.context.ports.transmit_port(number, &mut driver);
        }
        for core in 0..cores {
            self.arm(core, number, out);
        }
    }

    /// Has the cores poll that others handed frames over to.
    fn wake_inboxes(&mut self, out: &mut Outside<'_>) {
        for core in 0..self.cores.len() {
            if !self.inboxes[core].is_empty() {
                self.wake(core, out);
            }
        }
    }

    /// The core that receives a frame.
    fn core_of(&self, port: PortId, frame: &Frame) -> usize {
        let cores = self.cores.len();
        let shard = |udp: UdpFrame| {
            let base_port = self.config.registry.base_port;
            let shard = usize::from(udp.addresses.dst_port.wrapping_sub(base_port));
            (shard < cores).then_some(shard)
        };
        match self.config.steering {
            _ if cores == 1 => 0,
            Steering::Owner => self.core_of_port(port),
            Steering::Rules => frame.udp().and_then(|(udp, _)| shard(udp)).unwrap_or(0),
        }
    }

    /// A core that sends by a port.
    fn core_of_port(&self, port: PortId) -> usize {
        match self.config.steering {
            Steering::Owner => usize::from(port.0) % self.cores.len(),
            Steering::Rules => 0,
        }
    }

    /// Takes the next control frame to the registry.
    pub(crate) fn handle_control(&mut self, out: &mut Outside<'_>) {
        // Of a switch that has been stopped meanwhile, there is none.
        let Some((_, frame)) = self.control.pop_front_if(|(at, _)| *at <= out.now) else {
            return;
        };
        let ControlFrame {
            from,
            header,
            datagram,
        } = frame;
        let actions = self.registry.handle(out.now, from, &header, &*datagram);
        self.carry_out(actions, out);
    }

    /// The registry's clock.
    pub(crate) fn handle_timer(&mut self, out: &mut Outside<'_>) {
        if self.timer_at != Some(out.now) {
            return;
        }
        self.timer_at = None;
        let due = self.registry.poll_timeout();
        let actions = if due.is_some_and(|at| at <= out.now) {
            self.registry.handle_timeout(out.now)
        } else {
            Vec::new()
        };
        self.carry_out(actions, out);
    }

    /// Binds a session of SwitchML on all cores; says whether there was room.
    pub(crate) fn bind_switchml(&mut self, session: &Arc<Session>, out: &mut Outside<'_>) -> bool {
        self.ready();
        let bound = Arc::new(AtomicBool::new(true));
        let whereabouts = Arc::new(Whereabouts::new(session.workers.len()));
        for core in &mut self.cores {
            core.core.begin(out.now);
            let all = Arc::clone(&bound);
            let reply = Box::new(move |bound: bool| {
                all.fetch_and(bound, Relaxed);
            });
            let (session, whereabouts) = (Arc::clone(session), Arc::clone(&whereabouts));
            let command = switchml::Command::Bind(session, whereabouts, reply);
            let command = DialectCommand::Switchml(command);
            core.core.command(Command::Dialect(command));
        }
        bound.load(Relaxed)
    }

    /// Ends a session of SwitchML on all cores.
    pub(crate) fn unbind_switchml(&mut self, id: switchml::SessionId) {
        for core in &mut self.cores {
            let command = switchml::Command::Unbind(id, Box::new(|()| ()));
            let command = DialectCommand::Switchml(command);
            core.core.command(Command::Dialect(command));
        }
    }

    /// What SwitchML did, on all cores.
    #[must_use]
    pub fn switchml_counters(&self) -> SwitchmlCounters {
        let mut sum = SwitchmlCounters::default();
        for core in &self.cores {
            if let Some(metrics) = &core.core.report().dialects.switchml {
                sum.add(&metrics.counters);
            }
        }
        sum
    }

    /// Takes note of where the parent of its nodes of these jobs is, until it stops.
    pub(crate) fn introduce(&mut self, jobs: &[JobId], parent: Member, out: &mut Outside<'_>) {
        self.ready();
        let address = ParentAddress {
            name: SwitchName::new(""),
            mac: parent.mac,
            ip: parent.ip,
        };
        for core in &mut self.cores {
            core.core
                .command(Command::Parent(parent.port, Some(address)));
        }
        for &job in jobs {
            let actions = self.registry.set_parent_address(out.now, job, Some(parent));
            self.carry_out(actions, out);
        }
    }

    /// Sets a job, or adds it.
    pub(crate) fn set_job(&mut self, job: JobConfig) {
        let jobs = &mut self.config.jobs;
        match jobs.iter_mut().find(|other| other.id == job.id) {
            Some(other) => *other = job.clone(),
            None => jobs.push(job.clone()),
        }
        if let Some(at) = self.removed.iter().position(|other| other.id == job.id) {
            self.config.pool.jobs.push(self.removed.remove(at));
            self.configure_pools();
        }
        if self.is_up {
            let set = self.registry.set(job);
            set.expect("a job's number of workers does not change");
        }
    }

    /// Removes a job, and ends it.
    pub(crate) fn remove_job(&mut self, id: JobId, out: &mut Outside<'_>) {
        self.config.jobs.retain(|job| job.id != id);
        if self.is_up {
            let actions = self.registry.remove(out.now, id);
            self.carry_out(actions, out);
        }
        let of_job = |job: &PoolJob| job.id == id;
        self.removed
            .extend(self.config.pool.jobs.extract_if(.., |job| of_job(job)));
        self.configure_pools();
    }

    /// Tells all shards which jobs there are.
    fn configure_pools(&mut self) {
        let jobs: Arc<[PoolJob]> = self.config.pool.jobs.as_slice().into();
        for core in &mut self.cores {
            let command = native::Command::Configure(Arc::clone(&jobs));
            let command = Command::Dialect(DialectCommand::Native(command));
            core.core.command(command);
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>, out: &mut Outside<'_>) {
        self.ready();
        for core in &mut self.cores {
            core.core.begin(out.now);
        }
        for action in actions {
            match action {
                Action::Send(to, datagram) => {
                    self.cores[0].core.command(Command::Send(to, datagram));
                }
                Action::Bind(roster) => {
                    self.memory.bound(&roster);
                    let roster = Arc::new(*roster);
                    for core in &mut self.cores {
                        core.core.command(Command::Bind(Arc::clone(&roster)));
                    }
                    self.tell_card(roster.job, Some(roster), out.now);
                }
                Action::Unbind(job) => {
                    self.memory.unbound(job);
                    for core in &mut self.cores {
                        core.core.command(Command::Unbind(job));
                    }
                    self.tell_card(job, None, out.now);
                }
                Action::Create(job, _) => {
                    if self.config.pool.jobs.iter().all(|other| other.id != job) {
                        self.config.pool.jobs.push(PoolJob::unlimited(job));
                    }
                    self.configure_pools();
                }
                Action::Forget(job) => {
                    self.config.pool.jobs.retain(|other| other.id != job);
                    self.configure_pools();
                }
            }
        }
        for core in 0..self.cores.len() {
            self.transmit(core, out);
        }
        self.wake_inboxes(out);
        self.drive_card(out);
        if let Some(at) = self.registry.poll_timeout()
            && self.timer_at.is_none_or(|timer| at < timer)
        {
            self.timer_at = Some(at.max(out.now));
            out.events.push(at, Event::SwitchTimer(self.id));
        }
    }
}
