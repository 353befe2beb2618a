//! The aggregator against a model of its surroundings that shares no code with it.
//!
//! Workers and parameter servers of two jobs, as little of them as the protocol needs, around real
//! shards and a network that delays, duplicates, reorders and loses. All that leaves the switch is
//! compared, bit for bit, with the sum of the contributions that its bitmap names; in the end, when
//! the network has become kind, every worker must have every result and no buffer may be missing.
//! Workers retransmit only when a NACK asks for it, and PROBE for what they miss. Frames with wrong
//! tags come from the place of each member, and have no effect.
//!
//! Half of the switches have a card, which is one shard more, in another machine: jobs go over to
//! it and come back while they run, one shard after the other, and it may die with all that it has.
//!
//! `TALLY_SEED=17 cargo test -p tally-engine --test model` repeats one seed.

#[path = "model/card.rs"]
mod card;
mod common;
#[path = "model/members.rs"]
mod members;

use card::Card;
use common::plain::{Ledger, Plain, Sent, Wire, host, secret};
use common::{Rng, seeds, sums};
use std::collections::{BTreeMap, BTreeSet};
use tally_engine::{
    Aggregator, Batch, Contribution, Limits, Member, PolicyName, PoolConfig, PoolJob, Roster, To,
};
use tally_kernels::Kernels;
use tally_wire::{
    AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, Header, JobId, Kind, Rank, Time,
};

const EPOCH: Epoch = Epoch(5);
const FRAGMENTS: u32 = 40;

/// What happened, of all shards of the switch.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    preemptions: u64,
    collisions: u64,
    from_ps: u64,
    from_workers: u64,
    abandoned: u64,
    grouped: u64,
    /// PROBEs, and how they were answered.
    probes: u64,
    probe_nacks: u64,
    probes_to_ps: u64,
    results_again: u64,
    forgeries: u64,
    /// Jobs that went to a card or came back, and deaths of cards.
    moves: u64,
    deaths: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.preemptions += other.preemptions;
        self.collisions += other.collisions;
        self.from_ps += other.from_ps;
        self.from_workers += other.from_workers;
        self.abandoned += other.abandoned;
        self.grouped += other.grouped;
        self.probes += other.probes;
        self.probe_nacks += other.probe_nacks;
        self.probes_to_ps += other.probes_to_ps;
        self.results_again += other.results_again;
        self.forgeries += other.forgeries;
        self.moves += other.moves;
        self.deaths += other.deaths;
    }
}

/// Who sends or gets a frame; `usize` is the job's place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    Switch,
    Worker(usize, u8),
    Ps(usize),
}

#[derive(Clone, Debug)]
struct Frame {
    from: Node,
    to: Node,
    header: Header,
    payload: Vec<u8>,
}

/// What a parameter server has of a fragment: pieces that do not overlap.
#[derive(Default)]
struct Pieces {
    held: BTreeMap<u64, Vec<u8>>,
    reminded: bool,
}

impl Pieces {
    fn bitmap(&self) -> u64 {
        self.held.keys().fold(0, |all, bits| all | bits)
    }
}

struct Job {
    id: JobId,
    secret: EpochSecret,
    workers: u8,
    window: u32,
    first: u32,
    /// Results, by rank and fragment.
    results: Vec<BTreeMap<u32, Vec<u8>>>,
    /// How many fragments each rank has sent.
    sent: Vec<u32>,
    /// Ranks that have sent a fragment with MARKED, and without.
    marked: BTreeMap<u32, [u64; 2]>,
    ps: BTreeMap<u32, Pieces>,
    done: BTreeMap<u32, Vec<u8>>,
    ps_host: u16,
}

impl Job {
    fn all(&self) -> u64 {
        (1 << self.workers) - 1
    }

    fn fragment(&self, n: u32) -> FragmentId {
        FragmentId(self.first.wrapping_add(n))
    }

    fn element(&self, n: u32) -> Element {
        Element::ALL[(n / 3) as usize % 7]
    }

    fn sum(&self, n: u32, bitmap: u64) -> Vec<u8> {
        sums::of(self.id, self.fragment(n), self.element(n), bitmap)
    }

    fn header(&self, kind: Kind, n: u32, rank: Rank, bitmap: u64) -> Header {
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
            job: self.id,
            epoch: EPOCH,
            fragment: self.fragment(n),
            rank,
            units: u8::from(elements),
            bitmap,
            tag: AuthTag::NONE,
        }
    }
}

struct World {
    rng: Rng,
    policy: PolicyName,
    /// Of all shards.
    pool: PoolConfig,
    shards: Vec<Aggregator<Plain>>,
    counts: Counts,
    ledger: Ledger,
    wire: Wire,
    jobs: Vec<Job>,
    network: Vec<Frame>,
    /// By shard, what waits for the end of a turn; none: frames are taken one by one.
    batches: Option<Vec<Batch<Plain>>>,
    loss: u64,
    /// Since the switch started.
    /// A millisecond passes with each frame.
    now: Time,
    published: BTreeSet<(usize, u32)>,
    card: Option<Card>,
}

impl World {
    fn new(seed: u64, policy: PolicyName) -> Self {
        let mut rng = Rng(seed ^ (policy as u64) << 60);
        let shards = 1u8 << rng.below(2);
        let slots = 1u32 << rng.below(4);
        let ways = slots.min(1 << rng.below(4));
        let window = 1 + rng.below(8) as u16;
        let held = rng.below(6) as u32;
        let jobs: Vec<_> = (0..2)
            .map(|place| {
                let workers = 1 + rng.below(5) as u8;
                Job {
                    id: JobId(7 + place),
                    secret: secret(JobId(7 + place), EPOCH),
                    workers,
                    window: u32::from(window),
                    // Half of them wrap.
                    first: if rng.percent(50) { 0 } else { u32::MAX - 20 },
                    results: vec![BTreeMap::new(); usize::from(workers)],
                    sent: vec![0; usize::from(workers)],
                    marked: BTreeMap::new(),
                    ps: BTreeMap::new(),
                    done: BTreeMap::new(),
                    ps_host: 50 + place,
                }
            })
            .collect();
        // Half of them are free to take what they get.
        let pool_jobs = jobs
            .iter()
            .map(|job| {
                let certain = policy == PolicyName::Esa && slots > 1 && rng.percent(50);
                let min_slots = if certain {
                    1 + rng.below(slots as usize / 2) as u32
                } else {
                    0
                };
                let max_slots = min_slots.max(1) + rng.below(slots as usize) as u32;
                let limited = rng.percent(50);
                let limits = Limits {
                    min_slots,
                    max_slots: if limited { max_slots } else { u32::MAX },
                    min_held: rng.below(held as usize / 2 + 1) as u32,
                };
                PoolJob { id: job.id, limits }
            })
            .collect();
        let pool = PoolConfig {
            slots,
            ways,
            held,
            window,
            shards,
            shard: 0,
            jobs: pool_jobs,
            policy,
            places: 0,
        };
        // Half of the switches take frames turn by turn.
        let in_turns = rng.percent(50);
        let mut world = Self {
            shards: Vec::new(),
            counts: Counts::default(),
            rng,
            policy,
            pool,
            ledger: Ledger::default(),
            wire: Wire::default(),
            jobs,
            network: Vec::new(),
            batches: in_turns.then(|| (0..shards).map(|_| Batch::new()).collect()),
            loss: 0,
            now: Time(0),
            published: BTreeSet::new(),
            card: None,
        };
        world.start();
        if world.rng.percent(50) {
            world.card = Some(world.new_card());
        }
        world
    }

    fn start(&mut self) {
        let shard = |shard| PoolConfig {
            shard,
            ..self.pool.clone()
        };
        self.shards = (0..self.pool.shards)
            .map(|at| Aggregator::new(shard(at), Kernels::best()))
            .collect();
        self.published.clear();
        (0..2).for_each(|place| self.bind(place));
    }

    fn roster(&self, place: usize) -> Roster {
        let job = &self.jobs[place];
        let workers = (0..job.workers)
            .map(|r| self.member(Node::Worker(place, r)))
            .collect();
        let ps = self.member(Node::Ps(place));
        Roster::new(job.id, EPOCH, job.secret, 1, workers, ps)
    }

    fn stop(&mut self) {
        self.kill_card();
        self.aggregate();
        for shard in &mut self.shards {
            let c = shard.counters();
            self.counts.add(&Counts {
                preemptions: c.preemptions,
                collisions: c.collisions,
                from_ps: c.results_from_ps,
                from_workers: c.results_from_workers,
                abandoned: c.abandoned,
                grouped: c.grouped,
                probes: c.probes,
                probe_nacks: c.probe_nacks,
                results_again: c.results_again,
                ..Counts::default()
            });
            for job in &self.jobs {
                shard.unbind(job.id, &mut self.wire);
            }
            assert_eq!((shard.slots_in_use(), shard.held_in_use()), (0, 0));
        }
        assert_eq!((self.ledger.live(), self.ledger.lost()), (0, 0), "buffers");
    }

    fn member(&self, node: Node) -> Member {
        match node {
            Node::Switch => unreachable!("it is no member"),
            Node::Worker(job, rank) => host(job as u16 * 20 + u16::from(rank)),
            Node::Ps(job) => host(self.jobs[job].ps_host),
        }
    }

    fn bind(&mut self, place: usize) {
        // Rosters change between turns.
        self.aggregate();
        let roster = self.roster(place);
        let on_card = |at: usize| self.card.as_ref().is_some_and(|c| c.steered[place][at]);
        let steered: Vec<_> = (0..self.shards.len()).map(on_card).collect();
        for (shard, _) in self.shards.iter_mut().zip(&steered).filter(|(_, on)| !**on) {
            assert!(shard.bind(roster.clone(), &mut self.wire));
        }
        if let Some(card) = self.card.as_mut().filter(|_| steered.contains(&true)) {
            assert!(card.shard.bind(roster, &mut self.wire));
        }
    }

    /// Something that may go wrong, happens.
    fn step(&mut self) {
        let place = self.rng.below(2);
        match self.rng.below(100) {
            0..30 => self.send_next(place),
            30..40 => self.probe(place),
            40..46 => self.remind(place),
            46 if self.rng.percent(10) => {
                // The parameter server comes back somewhere else and knows nothing.
                let job = &mut self.jobs[place];
                job.ps.clear();
                job.done.clear();
                job.ps_host = 100 - job.ps_host + 2 * place as u16;
                self.bind(place);
            }
            47 if self.rng.percent(5) => self.restart(),
            48 if self.rng.percent(70) => self.steer(place),
            49 if self.rng.percent(5) => self.kill_card(),
            50..52 => self.forge(place),
            _ => self.deliver(),
        }
    }

    /// All that the switch had is gone, but not what is on its way to it.
    fn restart(&mut self) {
        self.stop();
        self.start();
        // What was long on its way.
        for _ in 0..8 {
            let place = self.rng.below(2);
            let rank = self.rng.below(usize::from(self.jobs[place].workers));
            let results = &self.jobs[place].results[rank];
            if !results.is_empty() {
                let back = self.rng.below(results.len().min(16));
                if let Some(&n) = results.keys().rev().nth(back) {
                    self.contribute(place, rank as u8, n, Flags::NONE);
                }
            }
        }
    }

    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        // Mostly in order, sometimes much later.
        let at = if self.rng.percent(70) {
            0
        } else {
            self.rng.below(self.network.len())
        };
        let frame = if self.rng.percent(self.loss) {
            self.network[at].clone()
        } else {
            self.network.remove(at)
        };
        if !self.rng.percent(self.loss) {
            self.receive(frame);
        }
    }

    fn receive(&mut self, frame: Frame) {
        match frame.to {
            Node::Switch => self.switch(frame),
            Node::Worker(place, rank) => self.worker(place, rank, &frame),
            Node::Ps(place) => self.ps(place, &frame),
        }
    }

    // --- The switch, and the checks of all that leaves it. ---

    fn send(&mut self, from: Node, to: Node, header: Header, payload: Vec<u8>) {
        let secret = self.jobs[usize::from(header.job.0 - 7)].secret;
        self.network.push(Frame {
            from,
            to,
            header: secret.seal(header),
            payload,
        });
    }

    /// A switch that takes what came in one turn together.
    fn collect(&mut self, frame: &Frame) -> bool {
        let shard = frame.header.fragment.0 as usize % self.shards.len();
        let from = self.member(frame.from);
        let Some(batches) = &mut self.batches else {
            return false;
        };
        let admitted = self.shards[shard].admit(&from, &frame.header);
        let contribution = admitted
            .ok()
            .and_then(|a| Contribution::new(a, &frame.header));
        if let Some(contribution) = contribution {
            let buffer = self.ledger.frame(frame.payload.clone());
            batches[shard].push(contribution, buffer);
        }
        if contribution.is_none() || self.rng.percent(6) {
            self.aggregate();
        }
        contribution.is_some()
    }

    /// The turn ends.
    fn aggregate(&mut self) {
        let Some(batches) = &mut self.batches else {
            return;
        };
        for (shard, batch) in self.shards.iter_mut().zip(batches) {
            self.now = Time(self.now.0 + 1_000_000);
            shard.handle_batch(self.now, batch, &mut self.wire);
            assert!(batch.is_empty());
        }
        let sent = self.wire.take();
        self.transmit(sent, None);
        for shard in 0..self.shards.len() {
            self.slots(shard);
        }
    }

    fn switch(&mut self, frame: Frame) {
        if self.card_takes(&frame) || self.collect(&frame) {
            return;
        }
        let shard = frame.header.fragment.0 as usize % self.shards.len();
        let place = usize::from(frame.header.job.0 - 7);
        let from = self.member(frame.from);
        let drops = |world: &Self| world.shards[shard].counters().drops.total();
        let collisions = |world: &Self| {
            let c = world.shards[shard].counters();
            c.collisions + c.preemptions
        };
        let (before, discarded) = (drops(self), self.wire.discarded);
        let collisions_before = collisions(self);
        let slots_before = self.slots(shard);
        let abandoned_before = self.shards[shard].counters().abandoned;
        let live = self.ledger.live();
        let buffer = self.ledger.frame(frame.payload);
        self.now = Time(self.now.0 + 1_000_000);
        self.shards[shard].handle(self.now, &from, &frame.header, buffer, &mut self.wire);
        let sent = self.wire.take();
        let abandoned = self.shards[shard].counters().abandoned - abandoned_before;
        self.check_slots(shard, slots_before, place, abandoned);
        let dropped = drops(self) - before;
        if dropped > 0 {
            assert_eq!((dropped, sent.len(), self.ledger.live()), (1, 0, live));
            assert_eq!(self.wire.discarded, discarded + 1);
        }
        let collided = sent.iter().any(|sent| match sent {
            Sent::To(To::Ps, _, header, _) => header.flags.has(Flags::COLLISION),
            _ => false,
        });
        assert_eq!(collided, collisions(self) > collisions_before, "C-2");
        self.transmit(sent, Some(&frame.header));
    }

    /// Checks what the switch sent, and puts it on the network. `because` is the frame that made it
    /// send, if it was one.
    fn transmit(&mut self, sent: Vec<Sent>, because: Option<&Header>) {
        for sent in sent {
            self.check(&sent, because);
            match sent {
                Sent::To(to, member, header, payload) => {
                    let place = usize::from(header.job.0 - 7);
                    self.counts.probes_to_ps += u64::from(header.kind == Kind::Probe);
                    let to = match to {
                        To::Ps => Node::Ps(place),
                        To::Worker(rank) => Node::Worker(place, rank.0),
                        To::Parent => panic!("a job without a tree has no parent"),
                    };
                    assert_eq!(member, self.member(to), "to the job's own member");
                    self.send(Node::Switch, to, header, payload);
                }
                Sent::Group(_, header, payload, _) => {
                    let place = usize::from(header.job.0 - 7);
                    let n = header.fragment.0.wrapping_sub(self.jobs[place].first);
                    let first = self.published.insert((place, n));
                    assert!(first, "fragment {n} of job {place} published twice");
                    for rank in 0..self.jobs[place].workers {
                        let to = Node::Worker(place, rank);
                        self.send(Node::Switch, to, header, payload.clone());
                    }
                }
                Sent::Up(..) => panic!("a job without a tree has no parent"),
                Sent::Retransmit(rank, _, payload) => {
                    let Some(because) = because else {
                        panic!("a result of the ring, and no rank asked for it")
                    };
                    let place = usize::from(because.job.0 - 7);
                    let job = &self.jobs[place];
                    let n = because.fragment.0.wrapping_sub(job.first);
                    let header = job.header(Kind::Result, n, Rank::SWITCH, 0);
                    assert_eq!(payload, job.sum(n, job.all()), "from the ring");
                    self.send(Node::Switch, Node::Worker(place, rank.0), header, payload);
                }
            }
        }
    }

    /// Slots of each job on a shard.
    fn slots(&self, shard: usize) -> [u32; 2] {
        let shard = &self.shards[shard];
        let slots = [0, 1].map(|place| {
            let id = self.jobs[place].id;
            let held = shard.holders().filter(|holder| *holder == id).count();
            assert_eq!(shard.slots_of(id) as usize, held, "counted wrong");
            held as u32
        });
        assert_eq!(slots[0] + slots[1], shard.slots_in_use() as u32);
        slots
    }

    /// S-6: who may have lost and gained a slot by a frame of the job at `place`.
    fn check_slots(&self, shard: usize, before: [u32; 2], place: usize, abandoned: u64) {
        let limits = |place: usize| {
            let job = self.pool.jobs.iter();
            let mut job = job.filter(|job| job.id == self.jobs[place].id);
            job.next().expect("a configured job").limits
        };
        let after = self.slots(shard);
        let other = 1 - place;
        assert!(after[place] <= before[place].max(limits(place).max_slots));
        assert!(after[place] <= before[place] + 1 && after[other] <= before[other]);
        if after[other] < before[other] {
            assert_eq!(after[other] + 1, before[other]);
            assert!(before[place] < limits(place).max_slots, "had enough");
            if abandoned > 0 {
                return;
            }
            assert_eq!(self.policy, PolicyName::Esa, "only it preempts");
            assert!(before[other] > limits(other).min_slots, "had no more");
        }
    }

    /// All that leaves holds exactly the contributions that it says.
    fn check(&self, sent: &Sent, because: Option<&Header>) {
        let (Sent::To(_, _, header, payload) | Sent::Group(_, header, payload, _)) = sent else {
            return;
        };
        let job = &self.jobs[usize::from(header.job.0 - 7)];
        let n = header.fragment.0.wrapping_sub(job.first);
        if header.kind.has_elements() {
            let ranks = match header.kind {
                Kind::Result => job.all(),
                _ => header.bitmap,
            };
            assert_eq!(
                *payload,
                job.sum(n, ranks),
                "{header:?} has other contributions than it says"
            );
            let fits = sums::may_be_one_frame(header.element, ranks, job.all());
            assert!(fits, "H-3: {header:?}");
            assert!(!header.flags.has(Flags::OVERFLOW));
            let finished_by = because.filter(|because| because.kind == Kind::Result);
            let from_ps = finished_by.is_some_and(|because| because.rank == Rank::PS);
            assert_eq!(header.flags.has(Flags::FROM_PS), from_ps, "{header:?}");
            // C-1, of what the switch has summed itself.
            if finished_by.is_none() {
                let [marked, unmarked] = job.marked[&n];
                let is_marked = header.flags.has(Flags::MARKED);
                assert!(!is_marked || marked != 0, "{header:?}");
                assert!(is_marked || ranks & marked & !unmarked == 0, "{header:?}");
            }
        }
        // S-7: one rank that the job has, for the fragment that was asked for.
        if let Some(probe) = because.filter(|because| because.kind == Kind::Probe) {
            assert_eq!(header.fragment, probe.fragment);
            assert!(header.rank.0 < job.workers);
        }
    }

    fn finished(&self) -> bool {
        let done = |r: &BTreeMap<_, _>| r.len() == FRAGMENTS as usize;
        self.jobs.iter().all(|job| job.results.iter().all(done))
    }

    fn run(mut self) -> Counts {
        self.loss = self.rng.below(4) as u64 * 8;
        for _ in 0..3000 {
            self.step();
        }
        // From here on the network is kind.
        self.loss = 0;
        for round in 0.. {
            assert!(round < 3000, "does not converge: {}", self.report());
            if self.finished() {
                break;
            }
            for place in 0..2 {
                for _ in 0..8 {
                    self.send_next(place);
                    self.probe(place);
                    self.remind(place);
                }
            }
            while !self.network.is_empty() {
                let frame = self.network.remove(0);
                self.receive(frame);
                if self.network.is_empty() {
                    self.aggregate();
                }
            }
        }
        for (place, job) in self.jobs.iter().enumerate() {
            for (rank, results) in job.results.iter().enumerate() {
                for (&n, result) in results {
                    assert_eq!(
                        *result,
                        job.sum(n, job.all()),
                        "job {place} rank {rank} {n}"
                    );
                }
            }
        }
        self.stop();
        if let Some(card) = &self.card {
            (self.counts.moves, self.counts.deaths) = (card.moves, card.deaths);
        }
        self.counts
    }

    fn report(&self) -> String {
        let jobs: Vec<_> = self
            .jobs
            .iter()
            .map(|j| {
                let have: Vec<_> = j.results.iter().map(BTreeMap::len).collect();
                let at_ps: Vec<_> = j.ps.iter().map(|(n, p)| (*n, p.bitmap())).collect();
                format!("job {} sent {:?} has {have:?} PS {at_ps:?}", j.id.0, j.sent)
            })
            .collect();
        format!("{} {jobs:?}", self.policy)
    }
}

fn run(policy: PolicyName) {
    let mut all = Counts::default();
    for seed in seeds(200) {
        println!("{policy}, seed {seed}");
        all.add(&World::new(seed, policy).run());
    }
    println!("{all:?}");
    if std::env::var("TALLY_SEED").is_err() {
        // That the seeds reach what they are meant to reach.
        assert_eq!(
            all.preemptions > 100,
            policy == PolicyName::Esa,
            "{policy} {all:?}"
        );
        let has_slots = policy != PolicyName::None;
        for count in [all.collisions, all.grouped] {
            assert_eq!(count > 100, has_slots, "{policy} {all:?}");
        }
        assert_eq!(all.abandoned > 10, has_slots, "{policy} {all:?}");
        for count in [
            all.from_ps,
            all.from_workers,
            all.probe_nacks,
            all.probes_to_ps,
            all.results_again,
            all.forgeries,
        ] {
            assert!(count > 100, "{policy} {all:?}");
        }
        assert!(all.moves > 500 && all.deaths > 100, "{policy} {all:?}");
    }
}

#[test]
fn random_esa() {
    run(PolicyName::Esa);
}

#[test]
fn random_fcfs() {
    run(PolicyName::Fcfs);
}

#[test]
fn random_static() {
    run(PolicyName::Static);
}

#[test]
fn random_none() {
    run(PolicyName::None);
}
