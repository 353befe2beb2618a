//! Switches of a fabric, workers and parameter servers on a control network that loses, delays and
//! repeats datagrams, in virtual time. There is no data path: fragments have no results.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;
use tally_endpoint::{
    Contribution, Delivery, Ecn, Event, Gradients, Ps, PsConfig, Worker, WorkerConfig, WorkerError,
    datagram_bytes,
};
use tally_engine::registry::Runs;
use tally_engine::{
    Action, Child, Fabric, JobConfig, Member, Parent, PortId, Registry, RegistryConfig, Roster,
    Tree,
};
use tally_kernels::Kernels;
use tally_wire::{Element, Header, JobId, Key, Mac, Part, Rank, SwitchName, Time};

pub const JOB: JobId = JobId(7);
const BASE: u16 = 31_249;
const UNITS: u8 = 1;
pub const WINDOW: u16 = 8;
pub const TIMEOUT: Duration = Duration::from_secs(5);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn job_key() -> Key {
    Key::new(&[7; 16]).unwrap()
}

pub fn fabric_key() -> Key {
    Key::new(&[9; 16]).unwrap()
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

/// What a worker sums: contributions up to a fragment, and no results.
pub struct Data {
    /// It contributes to fragments before this one.
    pub until: u64,
}

impl Gradients for Data {
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        payload.fill(0);
        if seq < self.until {
            Contribution::Ready(Element::I32)
        } else {
            Contribution::NotReady
        }
    }

    fn result(&mut self, _: u64, _: Element, _: &[u8], _: Delivery) {}

    fn stored_result(&mut self, _: u64, _: &mut [u8]) -> Option<Element> {
        None
    }
}

/// One switch.
pub struct Switch {
    pub name: &'static str,
    pub config: JobConfig,
    pub registry: Registry,
    pub alive: bool,
    pub starts: u8,
    pub fabric: Fabric,
    /// The largest window that it serves.
    pub window: u16,
    /// The epoch that its cores have.
    pub bound: Option<Roster>,
    pub binds: usize,
    /// Index of its parent.
    pub parent: Option<usize>,
    /// The way to its parent.
    pub uplink: u16,
}

pub struct Host {
    pub switch: usize,
    pub worker: Option<(Worker, Data)>,
    pub config: WorkerConfig,
    pub events: Vec<Event>,
}

pub struct Server {
    pub switch: usize,
    pub part: Part,
    pub ps: Option<Ps>,
}

/// Who gets a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    Switch(usize),
    Host(usize),
    Ps(usize),
}

/// A switch that the world is made of: name, index of the parent, hosts.
pub type Plan = (&'static str, Option<usize>, u8);

type Flight = (Time, u64, To, (u16, [u8; 6]), Vec<u8>);

pub struct World {
    pub now: Time,
    pub rng: Rng,
    /// Of 1000 datagrams, these are lost.
    pub loss: u64,
    pub switches: Vec<Switch>,
    pub hosts: Vec<Host>,
    pub servers: Vec<Server>,
    flying: BinaryHeap<Reverse<Flight>>,
    sent: u64,
    instances: u64,
    /// What came from switches to switches.
    record: Vec<(usize, Vec<u8>)>,
}

pub fn mac_of(switch: usize) -> Mac {
    Mac([2, 1, 0, 0, 0, switch as u8])
}

fn host_mac(host: usize) -> Mac {
    let [high, low] = (host as u16).to_be_bytes();
    Mac([2, 2, 0, 0, high, low])
}

fn ps_mac(ps: usize) -> Mac {
    Mac([2, 3, 0, 0, 0, ps as u8])
}

fn member(port: u16, mac: Mac) -> Member {
    let Mac([_, kind, .., high, low]) = mac;
    Member {
        port: PortId(port),
        mac,
        ip: std::net::Ipv4Addr::new(10, kind, high, low),
        udp_port: if kind == 1 { BASE } else { 40_000 },
    }
}

/// The job at each of these switches, with so many parameter servers.
fn trees(plan: &[Plan], servers: &[u8]) -> Vec<JobConfig> {
    let mut ranks = vec![0_u16; plan.len()];
    for (at, &(_, parent, hosts)) in plan.iter().enumerate().rev() {
        ranks[at] += u16::from(hosts);
        if let Some(parent) = parent {
            ranks[parent] += ranks[at];
        }
    }
    let mut firsts = vec![0_u16; plan.len()];
    let mut configs = Vec::new();
    for (at, &(_, parent, hosts)) in plan.iter().enumerate() {
        let children_of = |of| (0..plan.len()).filter(move |&it| plan[it].1 == Some(of));
        let mut next = firsts[at] + u16::from(hosts);
        for child in children_of(at) {
            firsts[child] = next;
            next += ranks[child];
        }
        let parent = parent.map(|parent| {
            let index = children_of(parent).position(|it| it == at).unwrap() as u8;
            Parent {
                switch: SwitchName::new(plan[parent].0),
                rank: Rank(plan[parent].2 + index),
            }
        });
        let children = children_of(at).map(|child| Child {
            switch: SwitchName::new(plan[child].0),
            ranks: ranks[child],
        });
        configs.push(JobConfig {
            id: JOB,
            key: job_key(),
            previous_key: None,
            workers: hosts,
            servers: servers[at],
            tree: Some(Tree {
                total: ranks[0],
                first: firsts[at],
                parent,
                children: children.collect(),
            }),
        });
    }
    configs
}

fn registry(
    config: &JobConfig,
    fabric: &Fabric,
    (switch, starts, window): (usize, u8, u16),
) -> Registry {
    let registry = RegistryConfig {
        mac: mac_of(switch),
        base_port: BASE,
        shards: 2,
        window,
        units: 16,
        member_timeout: TIMEOUT,
        secret: [starts.wrapping_mul(31).wrapping_add(switch as u8 + 1); 32],
        fabric: Some(fabric.clone()),
    };
    Registry::new(registry, vec![config.clone()])
}

impl World {
    /// The switches, parents first; each has a PS. Global ranks as the trees give them.
    pub fn new(seed: u64, plan: &[Plan]) -> Self {
        Self::with_servers(seed, plan, &vec![1; plan.len()])
    }

    /// As `new`, with the number of parameter servers of each switch.
    pub fn with_servers(seed: u64, plan: &[Plan], servers: &[u8]) -> Self {
        let configs = trees(plan, servers);
        let mut world = Self {
            now: Time(1_000_000_000),
            rng: Rng(seed),
            loss: 0,
            switches: Vec::new(),
            hosts: Vec::new(),
            servers: Vec::new(),
            flying: BinaryHeap::new(),
            sent: 0,
            instances: 1000,
            record: Vec::new(),
        };
        for (at, &(name, parent, _)) in plan.iter().enumerate() {
            let config = configs[at].clone();
            let fabric = Fabric {
                name: SwitchName::new(name),
                key: fabric_key(),
                previous_key: None,
            };
            world.switches.push(Switch {
                name,
                registry: registry(&config, &fabric, (at, 0, 64)),
                config,
                alive: true,
                starts: 0,
                fabric,
                window: 64,
                bound: None,
                binds: 0,
                parent,
                uplink: 200,
            });
            world.say_parent(at);
            world.servers.extend((0..servers[at]).map(|part| Server {
                switch: at,
                part: Part::new(part, servers[at]).unwrap(),
                ps: None,
            }));
        }
        let mut places = Vec::new();
        for (at, &(_, _, hosts)) in plan.iter().enumerate() {
            let first = configs[at].tree.as_ref().unwrap().first;
            places.extend((0..hosts).map(|host| (first + u16::from(host), at)));
        }
        places.sort_unstable();
        let total = places.len() as u16;
        for (rank, switch) in places {
            let mut config = WorkerConfig::new(JOB, job_key(), rank, total, [9; 32], 1);
            config.units = UNITS;
            config.window = WINDOW;
            world.hosts.push(Host {
                switch,
                worker: None,
                config,
                events: Vec::new(),
            });
        }
        world
    }

    fn say_parent(&mut self, at: usize) {
        let (uplink, now) = (self.switches[at].uplink, self.now);
        if let Some(parent) = self.switches[at].parent {
            let address = Some(member(uplink, mac_of(parent)));
            let registry = &mut self.switches[at].registry;
            let actions = registry.set_parent_address(now, JOB, address);
            self.carry_out(at, actions);
        }
    }

    /// Gives a switch its place in the tree of another plan of the same switches, unless its job
    /// runs.
    pub fn set_plan(&mut self, at: usize, plan: &[Plan]) -> Result<(), Runs> {
        let config = trees(plan, &vec![1; plan.len()])[at].clone();
        self.switches[at].registry.set(config.clone())?;
        self.switches[at].config = config;
        self.switches[at].parent = plan[at].1;
        self.say_parent(at);
        Ok(())
    }

    /// The way to the parent is another one of doubled links from now on.
    pub fn move_uplink(&mut self, at: usize, port: u16) {
        self.switches[at].uplink = port;
        self.say_parent(at);
    }

    /// The process of a worker starts, in place of the one before.
    pub fn start(&mut self, rank: usize) {
        self.instances += 1;
        let host = &mut self.hosts[rank];
        host.config.instance = self.instances;
        host.events.clear();
        let worker = Worker::new(self.now, host.config.clone());
        host.worker = Some((worker, Data { until: u64::MAX }));
    }

    pub fn start_ps(&mut self, at: usize) {
        self.instances += 1;
        let config = PsConfig {
            part: self.servers[at].part,
            ..PsConfig::new(JOB, job_key(), self.instances)
        };
        self.servers[at].ps = Some(Ps::new(self.now, config, Kernels::best()));
    }

    pub fn start_all(&mut self) {
        (0..self.hosts.len()).for_each(|rank| self.start(rank));
        (0..self.servers.len()).for_each(|at| self.start_ps(at));
    }

    pub fn kill_switch(&mut self, at: usize) {
        self.switches[at].alive = false;
        self.switches[at].bound = None;
    }

    pub fn start_switch(&mut self, at: usize) {
        let now = self.now;
        let it = &mut self.switches[at];
        it.starts += 1;
        it.alive = true;
        it.bound = None;
        it.registry = registry(&it.config, &it.fabric, (at, it.starts, it.window));
        it.registry.handle_timeout(now);
        self.say_parent(at);
    }

    pub fn finish(&mut self) {
        let now = self.now;
        let workers = self.hosts.iter_mut().filter_map(|it| it.worker.as_mut());
        workers.for_each(|(worker, _)| worker.finish(now));
    }

    pub fn submit(&mut self, fragments: u64) {
        let now = self.now;
        let workers = self.hosts.iter_mut().filter_map(|it| it.worker.as_mut());
        workers.for_each(|(worker, _)| worker.submit(now, fragments, 5));
    }

    /// A datagram from a place behind a port of a switch.
    pub fn inject(&mut self, at: usize, port: u16, mac: Mac, datagram: &[u8]) -> Vec<Action> {
        let header = Header::parse(datagram).unwrap();
        let now = self.now;
        let registry = &mut self.switches[at].registry;
        registry.handle(now, member(port, mac), &header, datagram)
    }

    fn fly(&mut self, to: To, from: (u16, Mac), datagram: &[u8]) {
        if self.rng.below(1000) < self.loss {
            return;
        }
        let copies = 1 + u64::from(self.loss > 0 && self.rng.below(20) == 0);
        for _ in 0..copies {
            let delay = 20_000 + self.rng.below(300_000);
            let at = self.now.after(Duration::from_nanos(delay));
            self.sent += 1;
            let from = (from.0, from.1.0);
            self.flying
                .push(Reverse((at, self.sent, to, from, datagram.to_vec())));
        }
    }

    /// Datagrams that came to a switch from other switches since the last call.
    pub fn take_record(&mut self, at: usize) -> Vec<Vec<u8>> {
        let mut record = std::mem::take(&mut self.record);
        record.retain(|(to, _)| *to == at);
        record.into_iter().map(|(_, datagram)| datagram).collect()
    }

    /// The same as [`carry_out`](Self::carry_out), without what goes to strangers.
    pub fn carry_out_known(&mut self, at: usize, mut actions: Vec<Action>) {
        actions.retain(|it| !matches!(it, Action::Send(to, _) if to.mac.0[1] > 3));
        self.carry_out(at, actions);
    }

    /// Does what a switch asks for.
    pub fn carry_out(&mut self, at: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Bind(roster) => {
                    self.switches[at].bound = Some(*roster);
                    self.switches[at].binds += 1;
                }
                Action::Unbind(_) => self.switches[at].bound = None,
                Action::Send(member, datagram) => {
                    let Mac([_, kind, .., high, low]) = member.mac;
                    let number = usize::from(u16::from_be_bytes([high, low]));
                    let (to, port) = match kind {
                        1 if Some(number) == self.switches[at].parent => {
                            let child = 100 + at as u16 + 100 * (self.switches[at].uplink - 200);
                            (To::Switch(number), child)
                        }
                        1 => (To::Switch(number), self.switches[number].uplink),
                        2 => (To::Host(number), 0),
                        _ => (To::Ps(number), 0),
                    };
                    self.fly(to, (port, mac_of(at)), &*datagram);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn poll(&mut self) {
        let mut out = vec![0; datagram_bytes(UNITS)];
        for rank in 0..self.hosts.len() {
            let mut said = Vec::new();
            let host = &mut self.hosts[rank];
            let Some((worker, data)) = &mut host.worker else {
                continue;
            };
            while let Some(it) = worker.poll_transmit(self.now, &mut out, data) {
                let is_control = Header::parse(&out[..it.len]).unwrap().kind.is_control();
                if is_control {
                    said.push(out[..it.len].to_vec());
                }
            }
            while let Some(event) = worker.poll_event() {
                host.events.push(event);
            }
            let to = To::Switch(host.switch);
            for datagram in said {
                self.fly(to, (rank as u16, host_mac(rank)), &datagram);
            }
        }
        for at in 0..self.servers.len() {
            let mut said = Vec::new();
            let Some(ps) = &mut self.servers[at].ps else {
                continue;
            };
            while let Some(it) = ps.poll_transmit(self.now, &mut out) {
                said.push(out[..it.len].to_vec());
            }
            while ps.poll_event().is_some() {}
            let to = To::Switch(self.servers[at].switch);
            for datagram in said {
                self.fly(to, (90, ps_mac(at)), &datagram);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let workers = self.hosts.iter().filter_map(|it| it.worker.as_ref());
        let workers = workers.filter_map(|(worker, _)| worker.poll_timeout());
        let servers = self.servers.iter().filter_map(|it| it.ps.as_ref());
        let servers = servers.filter_map(Ps::poll_timeout);
        let switches = self.switches.iter().filter(|it| it.alive);
        let switches = switches.filter_map(|it| it.registry.poll_timeout());
        workers.chain(servers).chain(switches).min()
    }

    fn step(&mut self, until: Time) -> bool {
        self.poll();
        let datagram = self.flying.peek().map(|Reverse(it)| it.0);
        let next = self.deadline().into_iter().chain(datagram).min();
        let Some(next) = next.filter(|&it| it <= until) else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(next);
        if datagram == Some(next) {
            let Reverse((_, _, to, (port, mac), datagram)) = self.flying.pop().unwrap();
            self.deliver(to, port, Mac(mac), &datagram);
            return true;
        }
        for at in 0..self.switches.len() {
            if self.switches[at].alive {
                let actions = self.switches[at].registry.handle_timeout(self.now);
                self.carry_out(at, actions);
            }
        }
        for (worker, _) in self.hosts.iter_mut().filter_map(|it| it.worker.as_mut()) {
            worker.handle_timeout(self.now);
        }
        for ps in self.servers.iter_mut().filter_map(|it| it.ps.as_mut()) {
            ps.handle_timeout(self.now);
        }
        true
    }

    fn deliver(&mut self, to: To, port: u16, mac: Mac, datagram: &[u8]) {
        let now = self.now;
        match to {
            To::Switch(at) if self.switches[at].alive => {
                if mac.0[1] == 1 {
                    self.record.push((at, datagram.to_vec()));
                }
                let actions = self.inject(at, port, mac, datagram);
                self.carry_out(at, actions);
            }
            To::Switch(_) => {}
            To::Host(rank) => {
                if let Some((worker, data)) = &mut self.hosts[rank].worker {
                    worker.handle_datagram(now, Ecn::Ect0, datagram, data);
                }
            }
            To::Ps(at) => {
                if let Some(ps) = &mut self.servers[at].ps {
                    ps.handle_datagram(now, Ecn::Ect0, datagram);
                }
            }
        }
    }

    pub fn run(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.step(until) {}
        self.poll();
    }

    /// Runs until the condition holds, for at most this time. Says how long it took.
    #[track_caller]
    pub fn run_until(&mut self, time: Duration, mut is: impl FnMut(&Self) -> bool) -> Duration {
        let (start, until) = (self.now, self.now.after(time));
        while !is(self) {
            assert!(
                self.step(until),
                "not within {time:?}:\n{}",
                self.describe()
            );
        }
        self.now.since(start)
    }

    /// All workers are told that the job runs.
    pub fn all_run(&self) -> bool {
        self.hosts.iter().all(|it| {
            let mut events = it.events.iter();
            events.any(|event| matches!(event, Event::Running { .. }))
        }) && self.switches.iter().all(|it| it.bound.is_some())
    }

    pub fn all_closed(&self) -> bool {
        let mut workers = self.hosts.iter().filter_map(|it| it.worker.as_ref());
        workers.all(|(worker, _)| worker.is_closed())
    }

    pub fn error(&self, rank: usize) -> Option<&WorkerError> {
        match self.hosts[rank].events.last() {
            Some(Event::Failed(error)) => Some(error),
            _ => None,
        }
    }

    #[track_caller]
    pub fn error_text(&self, rank: usize) -> String {
        let error = self.error(rank);
        error.map_or_else(|| panic!("{}", self.describe()), ToString::to_string)
    }

    /// All nodes have one incarnation with one secret, as have their workers, and nodes know where
    /// their parents and children are.
    #[track_caller]
    pub fn assert_one_epoch(&self) {
        let root = self.switches[0].bound.as_ref().expect("the root runs");
        for (at, it) in self.switches.iter().enumerate() {
            let roster = it.bound.as_ref().expect("the node runs");
            assert_eq!(
                (roster.epoch, roster.secret),
                (root.epoch, root.secret),
                "{}",
                it.name
            );
            let members = usize::from(it.config.members());
            assert_eq!(roster.workers.len(), members, "{}", it.name);
            let tree = it.config.tree.as_ref().unwrap();
            assert_eq!(roster.switches.count_ones() as usize, tree.children.len());
            assert_eq!(roster.uplink.is_some(), it.parent.is_some());
            if let (Some(uplink), Some(parent)) = (roster.uplink, it.parent) {
                assert_eq!(uplink.parent, member(it.uplink, mac_of(parent)));
                assert_eq!(
                    (Some(uplink.rank), uplink.shards),
                    (tree.parent.map(|p| p.rank), 2)
                );
                let above = self.switches[parent].bound.as_ref().unwrap();
                let seen = above.workers[usize::from(uplink.rank.0)];
                assert_eq!((seen.mac, seen.udp_port), (mac_of(at), BASE));
                assert_ne!(above.switches & uplink.rank.bit(), 0);
            }
        }
        for host in &self.hosts {
            let secret = host.worker.as_ref().and_then(|(worker, _)| worker.secret());
            assert_eq!(secret, Some(root.secret), "rank {}", host.config.rank);
        }
    }

    pub fn describe(&self) -> String {
        let mut text = format!("at {:?}\n", self.now);
        for it in &self.switches {
            let status: BTreeMap<_, _> = it.registry.status().map(|s| (s.id.0, s)).collect();
            text += &format!(
                "{} alive {} bound {}: {status:?} {:?}\n",
                it.name,
                it.alive,
                it.bound.is_some(),
                it.registry.parent(JOB, self.now),
            );
        }
        for host in &self.hosts {
            text += &format!("rank {}: {:?}\n", host.config.rank, host.events);
        }
        text
    }
}
