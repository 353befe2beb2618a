//! Nodes, workers and parameter servers of a job, and the frames between them.

use super::fold::{self, Place};
use crate::common::plain::{Ledger, Plain, Sent, Wire, host};
use crate::common::sums;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use tally_engine::{
    Aggregator, Batch, Contribution, Counters, Member, PolicyName, PoolConfig, PoolJob, Roster, To,
    Uplink,
};
use tally_kernels::Kernels;
use tally_wire::{
    AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, Header, JobId, Kind, Rank, Time,
};

pub const JOB: JobId = JobId(7);

/// Who sends or gets a frame, by number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Node {
    Switch(usize),
    Worker(usize),
    Ps(usize),
}

#[derive(Clone, Debug)]
pub struct Frame {
    pub from: Node,
    pub to: Node,
    pub header: Header,
    pub payload: Vec<u8>,
}

/// A switch, and what its parameter servers have.
pub struct Switch {
    pub pool: PoolConfig,
    pub shards: Vec<Aggregator<Plain>>,
    /// By shard, what waits for the end of a turn; none: frames are taken one by one.
    batches: Option<Vec<Batch<Plain>>>,
    pub epoch: u16,
    /// Fragments that it published and sent up for the first time, since its start.
    published: BTreeSet<u32>,
    up: BTreeSet<u32>,
    /// Of fragments, pieces that do not overlap, and whether they were asked for.
    pieces: BTreeMap<u32, (BTreeMap<u64, Vec<u8>>, bool)>,
    done: BTreeMap<u32, Vec<u8>>,
    /// Hosts of its parameter servers, by part.
    servers: Vec<u16>,
}

#[derive(Default)]
pub struct Worker {
    pub node: usize,
    pub rank: u8,
    pub sent: u32,
    pub results: BTreeMap<u32, Vec<u8>>,
}

/// Node, epoch, fragment, and local ranks as a bitmap.
type Ranks = (usize, u16, u32, u64);

pub struct World {
    pub tree: Vec<Place>,
    pub switches: Vec<Switch>,
    pub workers: Vec<Worker>,
    pub network: Vec<Frame>,
    pub wire: Wire,
    pub ledger: Ledger,
    pub counters: Vec<Counters>,
    pub window: u32,
    pub first: u32,
    pub epoch: u16,
    /// Element type of fragment `n`; none: all in turn.
    pub element: Option<Element>,
    pub now: Time,
    /// By epoch. To derive them would take most of the time.
    secrets: [EpochSecret; 3],
    /// What was computed before.
    sums: RefCell<BTreeMap<Ranks, Vec<u8>>>,
}

impl World {
    pub fn new(tree: Vec<Place>, window: u16, in_turns: bool, pools: Vec<PoolConfig>) -> Self {
        let ranks: usize = tree.iter().map(|place| place.hosts.len()).sum();
        let mut workers: Vec<Worker> = (0..ranks).map(|_| Worker::default()).collect();
        for (node, place) in tree.iter().enumerate() {
            for (rank, &global) in place.hosts.iter().enumerate() {
                let worker = &mut workers[usize::from(global)];
                (worker.node, worker.rank) = (node, rank as u8);
            }
        }
        let switch = |(at, pool): (usize, PoolConfig)| Switch {
            batches: in_turns.then(|| (0..pool.shards).map(|_| Batch::new()).collect()),
            pool,
            shards: Vec::new(),
            epoch: 1,
            published: BTreeSet::new(),
            up: BTreeSet::new(),
            pieces: BTreeMap::new(),
            done: BTreeMap::new(),
            servers: servers(at, 1),
        };
        let mut world = Self {
            switches: pools.into_iter().enumerate().map(switch).collect(),
            tree,
            workers,
            network: Vec::new(),
            wire: Wire::default(),
            ledger: Ledger::default(),
            counters: Vec::new(),
            window: window.into(),
            first: 0,
            epoch: 1,
            element: None,
            now: Time(0),
            secrets: [0, 1, 2].map(|epoch| EpochSecret::new([epoch; 16])),
            sums: RefCell::default(),
        };
        (0..world.switches.len()).for_each(|at| world.start(at));
        world
    }

    /// A switch begins with nothing.
    pub fn start(&mut self, at: usize) {
        let switch = &mut self.switches[at];
        let shard = |shard| PoolConfig {
            shard,
            ..switch.pool.clone()
        };
        switch.shards = (0..switch.pool.shards)
            .map(|at| Aggregator::new(shard(at), Kernels::best()))
            .collect();
        switch.published.clear();
        switch.up.clear();
        self.bind(at, self.switches[at].epoch);
    }

    /// What a switch has is gone.
    pub fn stop(&mut self, at: usize) {
        self.aggregate(at);
        for shard in &mut self.switches[at].shards {
            self.counters.push(*shard.counters());
            shard.unbind(JOB, &mut self.wire);
            assert_eq!((shard.slots_in_use(), shard.held_in_use()), (0, 0));
        }
        assert_eq!(self.wire.take(), [], "unbinding sends nothing");
    }

    /// All switches stop; no buffer may be missing.
    pub fn end(&mut self) {
        (0..self.switches.len()).for_each(|at| self.stop(at));
        assert_eq!((self.ledger.live(), self.ledger.lost()), (0, 0), "buffers");
    }

    /// A switch serves an epoch, or its members have other addresses.
    pub fn bind(&mut self, at: usize, epoch: u16) {
        self.aggregate(at);
        let place = &self.tree[at];
        let hosts = place.hosts.iter().map(|&w| Node::Worker(w.into()));
        let children = place.children.iter().map(|&child| Node::Switch(child));
        let members = hosts
            .chain(children)
            .map(|node| self.member(node, FragmentId(0)));
        let members = members.collect();
        let servers = self.switches[at].servers.iter();
        let servers: Vec<_> = servers.map(|&number| host(number)).collect();
        let number = Epoch(epoch);
        let secret = self.secrets[usize::from(epoch)];
        let roster = Roster::new(JOB, number, secret, 1, members, servers[0]);
        let mut roster = roster.with_servers(servers).with_switches(place.switches());
        if let Some(parent) = place.parent {
            roster = roster.with_uplink(self.uplink(at, parent));
        }
        let switch = &mut self.switches[at];
        if switch.epoch != epoch {
            switch.epoch = epoch;
            switch.pieces.clear();
            switch.done.clear();
            switch.published.clear();
            switch.up.clear();
        }
        for shard in &mut switch.shards {
            assert!(shard.bind(roster.clone(), &mut self.wire));
        }
        assert_eq!(self.wire.take(), []);
    }

    fn uplink(&self, at: usize, parent: usize) -> Uplink {
        let place = &self.tree[parent];
        let index = place.children.iter().position(|&child| child == at);
        let index = index.expect("its parent's child");
        Uplink {
            parent: self.member(Node::Switch(parent), FragmentId(0)),
            rank: Rank((place.hosts.len() + index) as u8),
            shards: self.switches[parent].pool.shards,
        }
    }

    /// Sets the number of a node's parameter servers.
    pub fn set_parts(&mut self, at: usize, parts: u16) {
        self.switches[at].servers = servers(at, parts);
        self.bind(at, self.switches[at].epoch);
    }

    /// From where a node says something of a fragment, or where it is said to it.
    fn member(&self, node: Node, fragment: FragmentId) -> Member {
        match node {
            Node::Worker(worker) => host(worker as u16),
            Node::Ps(at) => {
                let servers = &self.switches[at].servers;
                host(servers[fragment.0 as usize % servers.len()])
            }
            // Base ports differ.
            Node::Switch(at) => host(300 + at as u16),
        }
    }

    pub fn element(&self, n: u32) -> Element {
        self.element.unwrap_or(Element::ALL[(n / 3) as usize % 7])
    }

    pub fn header(&self, kind: Kind, n: u32, rank: Rank, bitmap: u64) -> Header {
        let elements = kind.has_elements();
        Header {
            kind,
            flags: Flags::NONE,
            priority: 0,
            element: if elements {
                self.element(n)
            } else {
                Element::None
            },
            job: JOB,
            epoch: Epoch(self.epoch),
            fragment: FragmentId(self.first.wrapping_add(n)),
            rank,
            units: u8::from(elements),
            bitmap,
            tag: AuthTag::NONE,
        }
    }

    /// The sum of these local ranks of a node in an epoch.
    fn sum(&self, at: usize, epoch: u16, n: u32, bitmap: u64) -> Vec<u8> {
        let fragment = FragmentId(self.first.wrapping_add(n));
        let key = (at, epoch, n, bitmap);
        if let Some(sum) = self.sums.borrow().get(&key) {
            return sum.clone();
        }
        let sum = fold::of(&self.tree, at, epoch, fragment, self.element(n), bitmap);
        self.sums.borrow_mut().insert(key, sum.clone());
        sum
    }

    pub fn result(&self, n: u32) -> Vec<u8> {
        self.sum(0, self.epoch, n, self.tree[0].all())
    }

    pub fn send(&mut self, from: Node, to: Node, header: Header, payload: Vec<u8>) {
        self.network.push(Frame {
            from,
            to,
            header: self.secrets[usize::from(header.epoch.0)].seal(header),
            payload,
        });
    }

    // --- Switches. ---

    pub fn receive(&mut self, frame: Frame) {
        match frame.to {
            Node::Switch(at) => self.switch(at, frame),
            Node::Worker(worker) => self.worker(worker, &frame),
            Node::Ps(at) => self.ps(at, &frame),
        }
    }

    fn switch(&mut self, at: usize, frame: Frame) {
        self.now = Time(self.now.0 + 1_000_000);
        let from = self.member(frame.from, frame.header.fragment);
        let Frame {
            header, payload, ..
        } = frame;
        let switch = &mut self.switches[at];
        let shard = header.fragment.0 as usize % switch.shards.len();
        // As the adapter has it, which asks only of frames that a parent may send.
        if header.kind == Kind::Nack || header.rank == Rank::SWITCH {
            let found = switch.shards[0].shard_of_parents(&from, &header);
            assert!(found.is_err() || found == Ok(shard));
        }
        let engine = &mut switch.shards[shard];
        let admitted = engine.admit(&from, &header);
        let contribution = admitted.ok().and_then(|a| Contribution::new(a, &header));
        let buffer = self.ledger.frame(payload);
        if let (Some(batches), Some(contribution)) = (&mut switch.batches, contribution) {
            return batches[shard].push(contribution, buffer);
        }
        self.aggregate(at);
        let engine = &mut self.switches[at].shards[shard];
        engine.handle(self.now, &from, &header, buffer, &mut self.wire);
        let n = header.fragment.0.wrapping_sub(self.first);
        self.transmit(at, Some(n));
    }

    /// A turn of a switch ends.
    pub fn aggregate(&mut self, at: usize) {
        let switch = &mut self.switches[at];
        let Some(batches) = &mut switch.batches else {
            return;
        };
        for (shard, batch) in switch.shards.iter_mut().zip(batches) {
            self.now = Time(self.now.0 + 1_000_000);
            shard.handle_batch(self.now, batch, &mut self.wire);
        }
        self.transmit(at, None);
    }

    /// Checks what a switch sent, and puts it on the network. `because` is the fragment of the
    /// frame that made it send, if it was one.
    fn transmit(&mut self, at: usize, because: Option<u32>) {
        for sent in self.wire.take() {
            let from = Node::Switch(at);
            match sent {
                Sent::To(to, member, header, payload) => {
                    self.check(at, &header, &payload);
                    let to = match to {
                        To::Ps => Node::Ps(at),
                        To::Worker(rank) => self.node_of(at, rank),
                        To::Parent => Node::Switch(self.tree[at].parent.expect("it has one")),
                    };
                    if let Node::Switch(parent) = to
                        && self.tree[at].parent == Some(parent)
                    {
                        let uplink = self.uplink(at, parent);
                        assert_eq!(member, uplink.shard_of(header.fragment));
                    } else {
                        assert_eq!(member, self.member(to, header.fragment));
                    }
                    self.send(from, to, header, payload);
                }
                Sent::Up(member, header, payload, _) => {
                    self.check(at, &header, &payload);
                    let parent = self.tree[at].parent.expect("it has one");
                    let uplink = self.uplink(at, parent);
                    assert_eq!(member, uplink.shard_of(header.fragment));
                    let is_first = self.switches[at].up.insert(header.fragment.0);
                    assert!(is_first, "summed twice: {header:?}");
                    self.send(from, Node::Switch(parent), header, payload);
                }
                Sent::Group(_, header, payload, _) => {
                    self.check(at, &header, &payload);
                    let is_first = self.switches[at].published.insert(header.fragment.0);
                    assert!(is_first, "published twice: {header:?}");
                    for rank in 0..self.tree[at].members() {
                        let to = self.node_of(at, Rank(rank));
                        self.send(from, to, header, payload.clone());
                    }
                }
                Sent::Retransmit(rank, _, payload) => {
                    let n = because.expect("a frame that asked for it");
                    let header = Header {
                        epoch: Epoch(self.switches[at].epoch),
                        ..self.header(Kind::Result, n, Rank::SWITCH, 0)
                    };
                    self.send(from, self.node_of(at, rank), header, payload);
                }
            }
        }
    }

    fn node_of(&self, at: usize, rank: Rank) -> Node {
        let place = &self.tree[at];
        match place.hosts.get(usize::from(rank.0)) {
            Some(&worker) => Node::Worker(worker.into()),
            None => Node::Switch(place.children[usize::from(rank.0) - place.hosts.len()]),
        }
    }

    /// All that leaves a node holds exactly the contributions that it says.
    fn check(&self, at: usize, header: &Header, payload: &[u8]) {
        let place = &self.tree[at];
        assert_eq!(header.epoch, Epoch(self.switches[at].epoch));
        let n = header.fragment.0.wrapping_sub(self.first);
        let (node, ranks) = match header.kind {
            Kind::Data => (at, place.all()),
            Kind::Result => (0, self.tree[0].all()),
            Kind::Partial => (at, header.bitmap),
            Kind::Nack => return assert!(place.all() & header.rank.bit() != 0),
            _ => return,
        };
        let sum = self.sum(node, header.epoch.0, n, ranks);
        assert_eq!(payload, sum, "node {at}: {header:?}");
        assert!(!header.flags.has(Flags::OVERFLOW));
        if header.kind == Kind::Partial {
            let fits = sums::may_be_one_frame(header.element, ranks, place.all());
            assert!(fits, "H-3: {header:?}");
        }
    }

    // --- Workers. ---

    /// The next contribution, if the window allows (W-2).
    pub fn send_next(&mut self, worker: usize, fragments: u32, priority: u8) {
        let w = &mut self.workers[worker];
        let open = (0..).find(|f| !w.results.contains_key(f)).unwrap_or(0);
        if w.sent < fragments && w.sent < open + self.window {
            w.sent += 1;
            let n = w.sent - 1;
            self.contribute(worker, n, Flags::NONE, priority);
        }
    }

    pub fn contribute(&mut self, worker: usize, n: u32, flags: Flags, priority: u8) {
        let w = &self.workers[worker];
        let rank = Rank(w.rank);
        let header = Header {
            flags,
            priority,
            ..self.header(Kind::Data, n, rank, rank.bit())
        };
        let (node, payload) = (w.node, self.sum(w.node, self.epoch, n, rank.bit()));
        self.send(Node::Worker(worker), Node::Switch(node), header, payload);
    }

    /// Fragments that a worker has sent and has no result for.
    pub fn missing(&self, worker: usize) -> Vec<u32> {
        let w = &self.workers[worker];
        let sent = 0..w.sent;
        sent.filter(|n| !w.results.contains_key(n)).collect()
    }

    pub fn probe(&mut self, worker: usize, n: u32) {
        let w = &self.workers[worker];
        let (node, header) = (w.node, self.header(Kind::Probe, n, Rank(w.rank), 0));
        self.send(Node::Worker(worker), Node::Switch(node), header, Vec::new());
    }

    fn worker(&mut self, worker: usize, frame: &Frame) {
        if frame.header.epoch != Epoch(self.epoch) {
            return;
        }
        let n = frame.header.fragment.0.wrapping_sub(self.first);
        let (node, rank) = (self.workers[worker].node, self.workers[worker].rank);
        match frame.header.kind {
            Kind::Result => {
                assert_eq!(frame.payload, self.result(n), "worker {worker} {n}");
                let results = &mut self.workers[worker].results;
                results.insert(n, frame.payload.clone());
            }
            Kind::Nack => {
                assert_eq!(frame.header.rank, Rank(rank), "NACK of another rank");
                if let Some(result) = self.workers[worker].results.get(&n).cloned() {
                    let header = self.header(Kind::Result, n, Rank(rank), 0);
                    self.send(Node::Worker(worker), Node::Switch(node), header, result);
                } else if n < self.workers[worker].sent {
                    self.contribute(worker, n, Flags::RESEND, 10);
                }
            }
            kind => panic!("a worker gets {kind:?}"),
        }
    }

    // --- Parameter servers (section 7): what all of a node have is in one place, by fragment. ---

    pub fn open_at_ps(&self, at: usize) -> Vec<u32> {
        self.switches[at].pieces.keys().copied().collect()
    }

    pub fn remind(&mut self, at: usize, n: u32) {
        let epoch = Epoch(self.switches[at].epoch);
        let pieces = self.switches[at].pieces.entry(n).or_default();
        let is_second = std::mem::replace(&mut pieces.1, true);
        let header = Header {
            epoch,
            ..self.header(Kind::Remind, n, Rank::PS, 0)
        };
        self.send(Node::Ps(at), Node::Switch(at), header, Vec::new());
        if is_second {
            self.nack_missing(at, n, self.tree[at].all());
        }
    }

    fn nack_missing(&mut self, at: usize, n: u32, of: u64) {
        let switch = &self.switches[at];
        let epoch = Epoch(switch.epoch);
        let pieces = switch.pieces.get(&n);
        let have = pieces.map_or(0, |(held, _)| held.keys().fold(0, |all, bits| all | bits));
        for rank in (0..self.tree[at].members()).map(Rank) {
            if of & !have & rank.bit() != 0 {
                let header = Header {
                    epoch,
                    ..self.header(Kind::Nack, n, rank, 0)
                };
                self.send(Node::Ps(at), Node::Switch(at), header, Vec::new());
            }
        }
    }

    /// One of a node's parameter servers comes back somewhere else and knows nothing; the others
    /// keep what they have.
    pub fn restart_ps(&mut self, at: usize, any: usize) {
        self.aggregate(at);
        let first = self.first;
        let switch = &mut self.switches[at];
        let parts = switch.servers.len();
        let part = any % parts;
        let is_others = |n: u32| first.wrapping_add(n) as usize % parts != part;
        switch.pieces.retain(|&n, _| is_others(n));
        switch.done.retain(|&n, _| is_others(n));
        switch.servers[part] ^= 1;
        let epoch = switch.epoch;
        self.bind(at, epoch);
    }

    fn ps(&mut self, at: usize, frame: &Frame) {
        let (header, all) = (&frame.header, self.tree[at].all());
        let switch = &mut self.switches[at];
        if header.epoch != Epoch(switch.epoch) {
            return;
        }
        let n = header.fragment.0.wrapping_sub(self.first);
        match header.kind {
            Kind::Partial if switch.done.contains_key(&n) => {
                if header.flags.has(Flags::RESEND) {
                    self.send_result(at, n);
                }
            }
            Kind::Partial => {
                let held = &mut switch.pieces.entry(n).or_default().0;
                let have = held.keys().fold(0, |all, bits| all | bits);
                if header.element == Element::F32 && header.bitmap & 1 == 1 {
                    let longest = held.keys().all(|b| b & 1 == 0 || *b < header.bitmap);
                    if longest {
                        held.retain(|bits, _| bits & header.bitmap == 0);
                        held.insert(header.bitmap, frame.payload.clone());
                    }
                } else if have & header.bitmap == 0 {
                    held.insert(header.bitmap, frame.payload.clone());
                } else {
                    self.nack_missing(at, n, header.bitmap);
                }
                let held = &self.switches[at].pieces[&n].0;
                if held.keys().fold(0, |all, bits| all | bits) == all {
                    // The pieces have been checked against the sums of their ranks on their way.
                    let sum = self.sum(at, header.epoch.0, n, all);
                    let switch = &mut self.switches[at];
                    switch.pieces.remove(&n);
                    switch.done.insert(n, sum);
                    self.send_result(at, n);
                }
            }
            Kind::Probe if switch.done.contains_key(&n) => self.send_result(at, n),
            Kind::NotHere if header.flags.has(Flags::FINISHED) => {
                switch.pieces.remove(&n);
            }
            Kind::Probe | Kind::NotHere => self.nack_missing(at, n, all),
            kind => panic!("a PS gets {kind:?}"),
        }
    }

    fn send_result(&mut self, at: usize, n: u32) {
        let payload = self.switches[at].done[&n].clone();
        let header = Header {
            epoch: Epoch(self.switches[at].epoch),
            ..self.header(Kind::Result, n, Rank::PS, 0)
        };
        self.send(Node::Ps(at), Node::Switch(at), header, payload);
    }
}

/// The first hosts of a node's `count` parameter servers.
fn servers(at: usize, parts: u16) -> Vec<u16> {
    (0..parts)
        .map(|part| 400 + 32 * at as u16 + 2 * part)
        .collect()
}

/// One shard's pool for the job, on its own.
pub fn pool(policy: PolicyName, slots: u32, ways: u32, window: u16, shards: u8) -> PoolConfig {
    PoolConfig {
        slots,
        ways,
        held: 8,
        window,
        shards,
        shard: 0,
        jobs: vec![PoolJob::unlimited(JOB)],
        policy,
        places: 0,
    }
}
