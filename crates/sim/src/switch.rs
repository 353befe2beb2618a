//! The switch: the real registry and aggregators, with simulated ports around them.
//!
//! What `switch/src/datapath.rs` does with mbufs, `Switch::take` does with [`Frame`]s: it gives
//! them to the engine's forwarding ([`transit`] carries out what that decides), takes JOIN and LEAVE to the registry (after `control_delay`, as the control thread
//! takes its time), and everything else to the aggregator of the shard that the UDP port names:
//! contributions at the end of a [turn](crate::turn), or at once where there are none. Each
//! port sends through the eight queues of the engine's [`PortQueue`] onto a [`Link`].
//!
//! Every frame that the engine gets is counted in a [`Ledger`] until the engine sends, keeps or gives
//! it back. One that merely disappears is *lost*: its memory would be gone for ever in the switch.

pub mod transit;

use crate::events::EventQueue;
use crate::frame::{Address, Destination, Frame, HostId, Pool};
use crate::link::{Link, LinkConfig, OVERHEAD_BYTES};
use crate::rng::Rng;
use crate::turn::{Core, TurnConfig};
use crate::world::{Event, has_elements};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;
use tally_engine::queue::{PortQueue, QueueConfig, class_of_header};
use tally_engine::{
    Action, Admission, Aggregator, Batch, Buffer, Contribution, Counters, DropReason, Egress,
    Forwarding, ForwardingConfig, JobConfig, Member, PoolConfig, PortId, Registry, RegistryConfig,
    Roster, To,
};
use tally_kernels::Kernels;
use tally_wire::control::DATAGRAM_BYTES;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{Ecn, Header, JobId, Kind, Mac, Rank, Time};
use transit::Transit;

/// The host number that stands for the switch's own addresses.
pub const SWITCH_HOST: HostId = HostId(u16::MAX);
/// The switch's MAC.
pub const SWITCH_MAC: Mac = Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
/// The switch's IPv4 address: that of [`SWITCH_HOST`].
pub const SWITCH_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 255);
/// JOIN and LEAVE on their way to the registry at most.
const CONTROL_FRAMES: usize = 256;

/// What a switch is started with.
#[derive(Clone)]
pub struct SwitchConfig {
    /// Each shard's pool; `shard` is filled in.
    pub pool: PoolConfig,
    /// What the registry is told.
    pub registry: RegistryConfig,
    /// The jobs.
    pub jobs: Vec<JobConfig>,
    /// The queues of each port.
    pub queue: QueueConfig,
    /// How long the registry takes.
    pub control_delay: Duration,
    /// How data cores take turns; none: each frame is dealt with as it comes.
    pub turn: Option<TurnConfig>,
    /// The kernels that sum.
    pub kernels: Kernels,
    /// The ordinary switch; `ports` is filled in.
    pub forwarding: ForwardingConfig,
}

/// Forwarding with this random seed, and limits of addresses and floods that a hostile host exceeds.
#[must_use]
pub const fn forwarding_config(seed: u64) -> ForwardingConfig {
    ForwardingConfig {
        mac: SWITCH_MAC,
        ip: SWITCH_IP,
        ports: 0,
        ageing_s: 300,
        addresses: 16,
        floods_per_s: 200,
        answers_per_s: 500,
        seed,
    }
}

/// What became of the frames that the engine was given.
#[derive(Clone, Default)]
pub struct Ledger(Rc<Counts>);

#[derive(Default)]
struct Counts {
    live: Cell<u64>,
    lost: Cell<u64>,
}

impl Ledger {
    /// Frames that the engine has.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.0.live.get()
    }

    /// Frames that disappeared.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.lost.get()
    }

    fn enter(&self, frame: Frame, number: u64) -> Held {
        self.0.live.set(self.0.live.get() + 1);
        Held {
            frame: Some(frame),
            counts: Rc::clone(&self.0),
            number,
            is_read: Cell::new(false),
        }
    }
}

/// A frame that the engine has.
pub struct Held {
    frame: Option<Frame>,
    counts: Rc<Counts>,
    /// In the diary.
    number: u64,
    /// The engine has looked at the payload: it has added it to something, or something to it.
    is_read: Cell<bool>,
}

impl Held {
    fn leave(mut self) -> Frame {
        self.frame.take().expect("a frame leaves once")
    }

    fn frame(&self) -> &Frame {
        self.frame.as_ref().expect("it has not left")
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        self.counts.live.set(self.counts.live.get() - 1);
        if self.frame.is_some() {
            self.counts.lost.set(self.counts.lost.get() + 1);
        }
    }
}

impl Buffer for Held {
    #[inline]
    fn payload(&self) -> &[u8] {
        self.is_read.set(true);
        self.frame().payload()
    }

    #[inline]
    fn payload_mut(&mut self) -> &mut [u8] {
        self.is_read.set(true);
        let frame = self.frame.as_mut().expect("it has not left");
        &mut frame.body_mut().datagram_mut()[HEADER_BYTES..]
    }
}

/// What the engine did with a frame, for checkers.
#[derive(Clone, Copy, Debug)]
pub enum Did {
    /// It took this contribution into a slot.
    Took(Header),
    /// It gave this contribution back, or sent it on, as it came.
    Refused(Header),
    /// It sent this, which is more or other than a contribution of the turn.
    Sent(Header),
    /// It published a result that a member had (S-2, S-4).
    Relayed(Header),
}

/// What the engine did, in order. Contributions of a turn come before what left because of them.
///
/// Nobody is asked what became of a contribution: it is seen by what becomes of its buffer.
#[derive(Default)]
pub struct Diary {
    did: Vec<Did>,
    /// The number of the first entry.
    first: u64,
}

/// The number of a frame that is no contribution, or of which no diary is kept.
const UNNUMBERED: u64 = u64::MAX;

impl Diary {
    /// What there is since it was last cleared.
    #[must_use]
    pub fn entries(&self) -> &[Did] {
        &self.did
    }

    /// Forgets what there is.
    pub fn clear(&mut self) {
        self.first += self.did.len() as u64;
        self.did.clear();
    }

    /// A contribution is given to the engine, which will take it unless something else is seen.
    fn came(&mut self, header: &Header) -> u64 {
        self.did.push(Did::Took(*header));
        self.first + self.did.len() as u64 - 1
    }

    /// A buffer leaves the engine, perhaps with this header: says whether it does so as it came, in the same
    /// turn.
    fn left(&mut self, number: u64, header: Option<&Header>) -> bool {
        if let Some(at) = number.checked_sub(self.first)
            && let Some(entry) = self.did.get_mut(at as usize)
            && let Did::Took(came) = *entry
            && header.is_none_or(|left| left.bitmap == came.bitmap)
        {
            *entry = Did::Refused(came);
            return true;
        }
        false
    }
}

/// A port: its queues, its cable, and the host at the other end.
pub struct Port {
    /// Frames that wait.
    pub queue: PortQueue<Frame>,
    /// To the host.
    pub link: Link,
    /// An event is on its way that goes on with the queue.
    is_armed: bool,
}

/// What the switch's parts need of the world: the way out of the engine.
pub struct Outside<'a> {
    /// The moment.
    pub now: Time,
    /// Where frames arrive.
    pub events: &'a mut EventQueue<Event>,
    /// Where frames come from and go to.
    pub pool: &'a mut Pool,
    /// For faults.
    pub rng: &'a mut Rng,
}

struct Way<'a, 'b> {
    ports: &'a mut [Port],
    diary: &'a mut Option<Diary>,
    out: &'a mut Outside<'b>,
}

impl Way<'_, '_> {
    /// Puts a frame onto the cable; says when it has left.
    fn depart(port: &mut Port, number: PortId, frame: Frame, out: &mut Outside<'_>) {
        let Some(left) = port.link.take(out.now, frame.wire_bytes) else {
            return out.pool.give(frame);
        };
        let arrivals = port.link.fly(left, has_elements(frame.datagram()), out.rng);
        if let Some(at) = arrivals.copy {
            let copy = out.pool.copy(&frame);
            out.events.push(at, Event::ToHost(HostId(number.0), copy));
        }
        match arrivals.first {
            Some(at) => out.events.push(at, Event::ToHost(HostId(number.0), frame)),
            None => out.pool.give(frame),
        }
    }

    fn enqueue(&mut self, number: PortId, class: usize, frame: Frame) {
        let port = &mut self.ports[usize::from(number.0)];
        let idle_at = port.link.idle_at();
        if idle_at <= self.out.now && port.queue.is_empty() {
            return Self::depart(port, number, frame, self.out);
        }
        if let Err(frame) = port.queue.push(class, frame) {
            return self.out.pool.give(frame);
        }
        if !port.is_armed {
            port.is_armed = true;
            self.out.events.push(idle_at, Event::PortIdle(number));
        }
    }

    /// C-1.
    fn mark_if_long(&mut self, numbers: &[PortId], class: usize, frame: &mut Frame) {
        let long = |number: &&PortId| self.ports[usize::from(number.0)].queue.is_long(class);
        if let Some(number) = numbers.iter().find(long) {
            frame.body_mut().ecn = Ecn::Ce;
            self.ports[usize::from(number.0)].queue.count_mark();
        }
    }

    /// Gives a frame that leaves its header and addresses.
    fn dress(&mut self, frame: &mut Frame, header: &Header, to: Destination) {
        assert_eq!(
            header.check(),
            Ok(()),
            "emits what nobody may parse: {header:?}"
        );
        let body = frame.body_mut();
        assert_eq!(body.payload().len(), header.payload_bytes());
        body.set_len(header.datagram_bytes());
        header.emit(body.datagram_mut());
        header.emit_trailer(&mut body.datagram_mut()[HEADER_BYTES + header.payload_bytes()..]);
        body.to = to;
        body.from = Address {
            host: SWITCH_HOST,
            udp_port: 0,
        };
        body.ecn = Ecn::Ect0;
    }

    fn send_to(&mut self, member: &Member, header: &Header, mut frame: Frame) {
        self.dress(&mut frame, header, Destination::Member(Address::of(member)));
        let class = class_of_header(header);
        self.mark_if_long(&[member.port], class, &mut frame);
        self.enqueue(member.port, class, frame);
    }
}

impl Egress<Held> for Way<'_, '_> {
    fn send(&mut self, roster: &Roster, to: To, header: &Header, buffer: Held) {
        let member = match to {
            To::Ps => &roster.ps,
            To::Worker(rank) => &roster.workers[usize::from(rank.0)],
        };
        if let Some(diary) = self.diary
            && !diary.left(buffer.number, Some(header))
        {
            diary.did.push(Did::Sent(*header));
        }
        self.send_to(member, header, buffer.leave());
    }

    fn publish(
        &mut self,
        roster: &Roster,
        header: &Header,
        mut buffer: Held,
        born: Option<Time>,
    ) -> Held {
        let frame = buffer.frame.as_mut().expect("it has not left");
        self.dress(frame, header, Destination::Group(roster.job));
        if let Some(diary) = self.diary {
            let did = if born.is_some() {
                Did::Sent
            } else {
                Did::Relayed
            };
            diary.did.push(did(*header));
        }
        let class = class_of_header(header);
        self.mark_if_long(&roster.ports, class, frame);
        for &port in &roster.ports {
            self.enqueue(port, class, frame.clone());
        }
        buffer
    }

    fn republish(&mut self, roster: &Roster, to: Rank, frame: &Held) {
        let frame = frame.frame();
        let port = roster.workers[usize::from(to.0)].port;
        if let Ok(header) = Header::parse(frame.datagram()) {
            self.enqueue(port, class_of_header(&header), frame.clone());
        }
    }

    fn discard(&mut self, buffer: Held) {
        if let Some(diary) = self.diary
            && !buffer.is_read.get()
        {
            diary.left(buffer.number, None);
        }
        self.out.pool.give(buffer.leave());
    }
}

/// What a frame is to a data core.
enum Class {
    /// The registry's.
    Control,
    /// For the end of the turn.
    Contribution(Header, Contribution),
    /// For the engine, at once.
    Other(Header, Admission),
}

/// A running switch.
pub struct Switch {
    config: SwitchConfig,
    /// Who is a member of what.
    pub registry: Registry,
    /// The data path, by shard.
    pub shards: Vec<Aggregator<Held>>,
    /// By number, as hosts.
    pub ports: Vec<Port>,
    /// What the engine has.
    pub ledger: Ledger,
    /// What the engine did since somebody last looked, if anybody does.
    pub diary: Option<Diary>,
    /// By shard.
    cores: Vec<Core>,
    /// Contributions of the turn; empty between turns.
    batch: Batch<Held>,
    /// Frames dropped before the engine saw them.
    adapter: Counters,
    /// Frames for the registry, each with when it will be taken and its sender.
    control: VecDeque<(Time, Member, Frame)>,
    /// The ordinary switch, from the first frame on: then all ports are there.
    forwarding: Option<Forwarding>,
    /// Members of the jobs that are bound.
    bound: BTreeMap<JobId, Vec<Member>>,
    /// What was decided on whole frames since it was last looked at, if anybody does.
    pub transits: Option<Vec<Transit>>,
    /// When the registry's next timeout has been scheduled for.
    timer_at: Option<Time>,
    is_up: bool,
}

impl Switch {
    /// A switch without ports, just started.
    #[must_use]
    pub fn new(config: SwitchConfig) -> Self {
        let (registry, shards) = Self::parts(&config);
        Self {
            registry,
            shards,
            ports: Vec::new(),
            ledger: Ledger::default(),
            diary: None,
            cores: Self::cores(&config),
            batch: Batch::new(),
            adapter: Counters::default(),
            control: VecDeque::new(),
            forwarding: None,
            bound: BTreeMap::new(),
            transits: None,
            timer_at: None,
            is_up: true,
            config,
        }
    }

    fn parts(config: &SwitchConfig) -> (Registry, Vec<Aggregator<Held>>) {
        let shard = |shard| {
            let pool = PoolConfig {
                shard,
                ..config.pool.clone()
            };
            Aggregator::new(pool, config.kernels)
        };
        (
            Registry::new(config.registry.clone(), config.jobs.clone()),
            (0..config.pool.shards).map(shard).collect(),
        )
    }

    fn cores(config: &SwitchConfig) -> Vec<Core> {
        let cores = 0..config.pool.shards;
        cores.map(|_| Core::default()).collect()
    }

    /// What it was started with.
    #[must_use]
    pub const fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Stops: all state is gone, and frames come to nobody.
    pub fn stop(&mut self) {
        self.is_up = false;
        let (registry, shards) = Self::parts(&self.config);
        (self.registry, self.shards) = (registry, shards);
        self.cores = Self::cores(&self.config);
        self.ledger = Ledger::default();
        self.control.clear();
        self.forwarding = None;
        self.bound.clear();
        self.timer_at = None;
        for port in &mut self.ports {
            while port.queue.pop().is_some() {}
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

    /// What all shards did since the start, and what was dropped in front of them.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = self.adapter;
        self.shards.iter().for_each(|s| sum.add(s.counters()));
        sum
    }

    pub(crate) fn add_port(&mut self, link: LinkConfig) {
        self.ports.push(Port {
            queue: PortQueue::new(self.config.queue),
            link: Link::new(link),
            is_armed: false,
        });
    }

    /// Takes a frame that arrived on `port`: in its core's next turn, or at once.
    pub(crate) fn handle(&mut self, port: PortId, frame: Frame, out: &mut Outside<'_>) {
        if !self.is_up {
            return out.pool.give(frame);
        }
        let core = self.core_of(&frame);
        let Some(turn) = self.config.turn else {
            self.take(core, port, frame, out);
            return self.settle(core, out);
        };
        self.cores[core].wait(port, frame);
        if !std::mem::replace(&mut self.cores[core].is_due, true) {
            let after = out.rng.between(0, turn.lasting.as_nanos() as u64);
            let at = out.now.after(Duration::from_nanos(after));
            out.events.push(at, Event::Turn(core));
        }
    }

    /// A core's turn, and others after it as long as something waits.
    pub(crate) fn handle_turn(&mut self, core: usize, out: &mut Outside<'_>) {
        let burst = self.config.turn.map_or(usize::MAX, |turn| turn.burst);
        // Of a switch that has been stopped meanwhile, nothing waits.
        self.cores[core].is_due = false;
        let mut any = true;
        while std::mem::take(&mut any) {
            for port in (0..self.ports.len() as u16).map(PortId) {
                for _ in 0..burst {
                    let Some(frame) = self.cores[core].next(port) else {
                        break;
                    };
                    self.take(core, port, frame, out);
                    any = true;
                }
            }
            self.settle(core, out);
        }
    }

    /// The core whose shard the frame's UDP port names; the first one's if it names none.
    fn core_of(&self, frame: &Frame) -> usize {
        let udp_port = match frame.to {
            Destination::Switch(udp_port) => Some(udp_port),
            Destination::Ethernet => transit::udp_port(frame.datagram()),
            _ => None,
        };
        udp_port.and_then(|port| self.shard(port)).unwrap_or(0)
    }

    fn shard(&self, udp_port: u16) -> Option<usize> {
        let shard = usize::from(udp_port.wrapping_sub(self.config.registry.base_port));
        (shard < self.shards.len()).then_some(shard)
    }

    /// Decides on a frame.
    fn take(&mut self, core: usize, port: PortId, frame: Frame, out: &mut Outside<'_>) {
        if frame.to == Destination::Ethernet {
            return self.take_whole(core, port, frame, out);
        }
        match self.is_local(&frame) {
            Ok(true) => self.take_local(core, frame.from.member(port), frame, out),
            // No host of the simulation sends another one a frame that is not whole.
            Ok(false) => self.refuse(DropReason::NotOurs, frame, out),
            Err(reason) => self.refuse(reason, frame, out),
        }
    }

    fn refuse(&mut self, reason: DropReason, frame: Frame, out: &mut Outside<'_>) {
        self.adapter.drop(reason);
        out.pool.give(frame);
    }

    /// Decides on a frame to the switch. Contributions wait for [`settle`](Self::settle).
    fn take_local(&mut self, core: usize, from: Member, frame: Frame, out: &mut Outside<'_>) {
        match self.classify(core, from, &frame) {
            Err(reason) => self.refuse(reason, frame, out),
            Ok(Class::Control) => {
                if self.control.len() == CONTROL_FRAMES {
                    self.adapter.drop(DropReason::ControlFull);
                    return out.pool.give(frame);
                }
                let at = out.now.after(self.config.control_delay);
                self.control.push_back((at, from, frame));
                out.events.push(at, Event::Control);
            }
            Ok(Class::Contribution(header, contribution)) => {
                if self.batch.is_full() {
                    self.settle(core, out);
                }
                let buffer = self.enter(&header, frame);
                self.batch.push(contribution, buffer);
            }
            Ok(Class::Other(header, admission)) => {
                // What came before it is done before it.
                self.settle(core, out);
                let buffer = self.enter(&header, frame);
                let mut way = Way {
                    ports: &mut self.ports,
                    diary: &mut self.diary,
                    out,
                };
                let now = way.out.now;
                self.shards[core].handle_admitted(now, admission, &header, buffer, &mut way);
            }
        }
    }

    fn enter(&mut self, header: &Header, frame: Frame) -> Held {
        let number = match &mut self.diary {
            Some(diary) if header.kind == Kind::Data => diary.came(header),
            _ => UNNUMBERED,
        };
        self.ledger.enter(frame, number)
    }

    /// Adds up what has come in.
    fn settle(&mut self, core: usize, out: &mut Outside<'_>) {
        let mut way = Way {
            ports: &mut self.ports,
            diary: &mut self.diary,
            out,
        };
        let now = way.out.now;
        self.shards[core].handle_batch(now, &mut self.batch, &mut way);
    }

    /// What is checked before the engine gets a frame.
    fn classify(&mut self, core: usize, from: Member, frame: &Frame) -> Result<Class, DropReason> {
        let Destination::Switch(udp_port) = frame.to else {
            return Err(DropReason::NotOurs);
        };
        self.shard(udp_port).ok_or(DropReason::UdpPort)?;
        let header = Header::parse(frame.datagram())?.received_with(frame.ecn);
        if header.kind.is_control() {
            return Ok(Class::Control);
        }
        let (shard, core) = (&self.shards[core], &mut self.cores[core]);
        if let Some(last) = core.coupled(from, &header)
            && shard.still_admits(last.admission(), header.fragment)
        {
            let contribution = last.of(header.fragment, header.priority);
            return Ok(Class::Contribution(header, contribution));
        }
        let admission = shard.admit(&from, &header)?;
        let Some(contribution) = Contribution::new(admission, &header) else {
            return Ok(Class::Other(header, admission));
        };
        core.couple(from, header, contribution);
        Ok(Class::Contribution(header, contribution))
    }

    /// Takes the next control frame to the registry.
    pub(crate) fn handle_control(&mut self, out: &mut Outside<'_>) {
        // Of a switch that has been stopped meanwhile, there is none.
        let Some((_, from, frame)) = self.control.pop_front_if(|(at, ..)| *at <= out.now) else {
            return;
        };
        if let Ok(header) = Header::parse(frame.datagram()) {
            let actions = self
                .registry
                .handle(out.now, from, &header, frame.datagram());
            self.carry_out(actions, out);
        }
        out.pool.give(frame);
    }

    /// The registry's clock. `at` is when this was scheduled for.
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

    fn carry_out(&mut self, actions: Vec<Action>, out: &mut Outside<'_>) {
        let mut way = Way {
            ports: &mut self.ports,
            diary: &mut self.diary,
            out,
        };
        for action in actions {
            match action {
                Action::Send(to, datagram) => {
                    let mut frame = way.out.pool.take();
                    let body = frame.body_mut();
                    body.set_len(DATAGRAM_BYTES);
                    body.datagram_mut().copy_from_slice(&*datagram);
                    body.wire_bytes = DATAGRAM_BYTES as u32 + OVERHEAD_BYTES;
                    if let Ok(header) = Header::parse(&*datagram) {
                        way.send_to(&to, &header, frame);
                    }
                }
                Action::Bind(roster, index) => {
                    let members = roster.workers.iter().chain([&roster.ps]);
                    self.bound.insert(roster.job, members.copied().collect());
                    if let Some(forwarding) = &mut self.forwarding {
                        forwarding.bind(&roster);
                    }
                    for shard in &mut self.shards {
                        shard.bind((*roster).clone(), index, &mut way);
                    }
                }
                Action::Unbind(job) => {
                    self.bound.remove(&job);
                    if let Some(forwarding) = &mut self.forwarding {
                        forwarding.unbind(job);
                    }
                    for shard in &mut self.shards {
                        shard.unbind(job, &mut way);
                    }
                }
            }
        }
        if let Some(at) = self.registry.poll_timeout()
            && self.timer_at.is_none_or(|timer| at < timer)
        {
            self.timer_at = Some(at.max(way.out.now));
            way.out.events.push(at, Event::SwitchTimer);
        }
    }

    /// A port has sent what it had; the next frame of its queues leaves.
    pub(crate) fn handle_port_idle(&mut self, number: PortId, out: &mut Outside<'_>) {
        let port = &mut self.ports[usize::from(number.0)];
        port.is_armed = false;
        if let Some(frame) = port.queue.pop() {
            Way::depart(port, number, frame, out);
        }
        if !port.queue.is_empty() {
            port.is_armed = true;
            let at = port.link.idle_at().max(out.now);
            out.events.push(at, Event::PortIdle(number));
        }
    }
}
