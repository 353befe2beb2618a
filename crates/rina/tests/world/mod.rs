//! A ring of state machines around plain models of switches and networks, which deliver in any
//! order.

use std::collections::BTreeMap;
use std::sync::Arc;
use tally_rina::{Action, Member, Operation, Phase, Piece, Plan, RackWorker, Segment};

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for n in (1..all.len()).rev() {
            all.swap(n, self.below(n + 1));
        }
    }
}

/// A mistake that the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The switch takes a contribution twice.
    CountedTwice,
    /// The switch sums without the last worker.
    LeftOut,
    /// The switch sums in the order of arrival.
    ArrivalOrder,
    /// The agent does not add the predecessor's partial sum.
    NotAdded,
    /// A sum does not reach the last worker of a rack.
    NotMulticast,
    /// A member sends one segment with the elements of the next one.
    WrongSegment,
    /// Each member makes the sum of its last segment by itself.
    OwnSum,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// A worker's own elements are in its buffer.
    Provided { at: Place, segment: Segment },
    /// From a member to its successor.
    Came {
        member: usize,
        piece: Piece,
        elements: Vec<u32>,
    },
    /// From a switch to a worker of its rack.
    Summed {
        at: Place,
        piece: Piece,
        elements: Vec<u32>,
    },
}

/// A worker: its member, and which of its workers it is. The agent is 0.
type Place = (usize, usize);
/// Workers with their elements.
type Contributions = Vec<(usize, Vec<u32>)>;
/// How elements are added.
pub type Add = fn(u32, u32) -> u32;

/// All workers of a ring. Elements are bits of a type that `add` knows.
#[derive(Clone, Debug)]
pub struct World {
    plan: Arc<Plan>,
    operation: Operation,
    add: Add,
    fault: Option<Fault>,
    members: Vec<Member>,
    others: BTreeMap<Place, RackWorker>,
    /// By rank.
    buffers: Vec<Vec<u32>>,
    /// By rank and segment: how often it had its result.
    pub delivered: Vec<Vec<u32>>,
    /// What came from the predecessor and was not added.
    held: BTreeMap<(usize, Segment), Vec<u32>>,
    /// Contributions at switches, in the order of arrival.
    switches: BTreeMap<(usize, Piece), Contributions>,
    in_flight: Vec<Event>,
    /// Elements sent by each member.
    pub sent: Vec<u64>,
    /// Elements contributed by each worker.
    pub contributed: BTreeMap<Place, u64>,
    /// Pieces contributed by each worker, in order.
    submitted: BTreeMap<Place, Vec<Piece>>,
    /// Pieces sent by each member, in order.
    pieces: Vec<Vec<Piece>>,
}

impl World {
    pub fn new(
        plan: &Arc<Plan>,
        operation: Operation,
        add: Add,
        inputs: &[Vec<u32>],
        fault: Option<Fault>,
    ) -> Self {
        let mut in_flight = Vec::new();
        let mut others = BTreeMap::new();
        let mut members = Vec::new();
        for member in 0..plan.members() {
            members.push(Member::new(Arc::clone(plan), member, operation));
            for worker in 0..plan.workers_of(member).len() {
                let at = (member, worker);
                if worker > 0 {
                    let other = RackWorker::new(Arc::clone(plan), member, operation);
                    others.insert(at, other);
                }
                let segments = (0..plan.segments()).map(Segment);
                in_flight.extend(segments.map(|segment| Event::Provided { at, segment }));
            }
        }
        let mut world = Self {
            plan: Arc::clone(plan),
            operation,
            add,
            fault,
            members,
            buffers: inputs.to_vec(),
            delivered: vec![vec![0; plan.segments() as usize]; plan.workers()],
            held: BTreeMap::new(),
            switches: BTreeMap::new(),
            in_flight,
            sent: vec![0; plan.members()],
            contributed: BTreeMap::new(),
            submitted: BTreeMap::new(),
            pieces: vec![Vec::new(); plan.members()],
            others,
        };
        let places: Vec<_> = world.places().collect();
        places.into_iter().for_each(|at| world.act(at));
        world
    }

    /// All workers.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let plan = Arc::clone(&self.plan);
        (0..plan.members()).flat_map(move |member| {
            let count = plan.workers_of(member).len();
            (0..count).map(move |worker| (member, worker))
        })
    }

    /// Number of events that may be next.
    pub fn choices(&self) -> usize {
        self.in_flight.len()
    }

    /// The elements of a rank.
    pub fn buffer(&self, rank: usize) -> &[u32] {
        &self.buffers[rank]
    }

    fn elements(&mut self, at: Place, segment: Segment) -> &mut [u32] {
        let rank = usize::from(self.plan.workers_of(at.0)[at.1]);
        let range = self.plan.range(segment);
        &mut self.buffers[rank][range.start as usize..range.end as usize]
    }

    /// Has the `n`-th event happen.
    pub fn step(&mut self, n: usize) {
        match self.in_flight.swap_remove(n) {
            Event::Provided { at, segment } => {
                // Twice is as once.
                match self.others.get_mut(&at) {
                    Some(other) => other.provide(segment),
                    None => self.members[at.0].provide(segment),
                }
                match self.others.get_mut(&at) {
                    Some(other) => other.provide(segment),
                    None => self.members[at.0].provide(segment),
                }
                self.act(at);
            }
            Event::Came {
                member,
                piece,
                elements,
            } => {
                let at = (member, 0);
                self.members[member].receive(piece).unwrap();
                match piece.phase {
                    Phase::Reduce => {
                        self.held.insert((member, piece.segment), elements);
                    }
                    Phase::Gather => self.elements(at, piece.segment).copy_from_slice(&elements),
                }
                self.act(at);
            }
            Event::Summed {
                at,
                piece,
                elements,
            } => {
                self.elements(at, piece.segment).copy_from_slice(&elements);
                match self.others.get_mut(&at) {
                    Some(other) => other.summed(piece),
                    None => self.members[at.0].summed(piece),
                }
                self.act(at);
            }
        }
    }

    fn act(&mut self, at: Place) {
        loop {
            let action = match self.others.get_mut(&at) {
                Some(other) => other.poll_action(),
                None => self.members[at.0].poll_action(),
            };
            let Some(action) = action else { return };
            match action {
                Action::Add(segment) => self.add(at, segment),
                Action::Contribute(piece) => self.contribute(at, piece),
                Action::Send(piece) => self.send(at, piece),
                Action::Deliver(segment) => {
                    let rank = usize::from(self.plan.workers_of(at.0)[at.1]);
                    self.delivered[rank][segment.0 as usize] += 1;
                    let is_last = segment.0 + 1 == self.plan.segments();
                    if self.fault == Some(Fault::OwnSum) && is_last && at.0 == 0 {
                        self.elements(at, segment)[0] ^= 1;
                    }
                }
            }
        }
    }

    fn add(&mut self, at: Place, segment: Segment) {
        let partial = self.held.remove(&(at.0, segment)).unwrap();
        if self.fault == Some(Fault::NotAdded) && segment.0 == 0 {
            return;
        }
        let add = self.add;
        for (own, partial) in self.elements(at, segment).iter_mut().zip(partial) {
            *own = add(partial, *own);
        }
    }

    fn send(&mut self, at: Place, piece: Piece) {
        let mut segment = piece.segment;
        let wrong = Segment(segment.0 + 1);
        if self.fault == Some(Fault::WrongSegment)
            && wrong.0 < self.plan.segments()
            && self.plan.range(wrong).count() == self.plan.range(segment).count()
        {
            segment = wrong;
        }
        let elements = self.elements(at, segment).to_vec();
        self.sent[at.0] += elements.len() as u64;
        self.pieces[at.0].push(piece);
        self.in_flight.push(Event::Came {
            member: self.plan.successor(at.0),
            piece,
            elements,
        });
    }

    fn contribute(&mut self, (member, worker): Place, piece: Piece) {
        let at = (member, worker);
        let is_own = self.plan.owner(piece.segment) == member;
        let range = self.plan.range(piece.segment);
        let mut elements = self.elements(at, piece.segment).to_vec();
        if piece.phase == Phase::Gather && is_own {
            // An all-gather by itself: each worker its part.
            let part = self.plan.part(member, worker);
            for (n, element) in range.zip(&mut elements) {
                if !part.contains(&n) {
                    *element = 0;
                }
            }
        } else if piece.phase == Phase::Gather && worker > 0 {
            elements.fill(0);
        }
        *self.contributed.entry(at).or_default() += elements.len() as u64;
        self.submitted.entry(at).or_default().push(piece);
        let came = self.switches.entry((member, piece)).or_default();
        assert!(came.iter().all(|(other, _)| *other != worker));
        came.push((worker, elements));
        if came.len() == self.plan.workers_of(member).len() {
            self.sum(member, piece);
        }
    }

    fn sum(&mut self, member: usize, piece: Piece) {
        let mut came = self.switches.remove(&(member, piece)).unwrap();
        if self.fault != Some(Fault::ArrivalOrder) {
            came.sort();
        }
        if self.fault == Some(Fault::CountedTwice) {
            came.push(came[0].clone());
        }
        if self.fault == Some(Fault::LeftOut) && came.len() > 1 {
            came.pop();
        }
        let add: Add = match piece.phase {
            Phase::Reduce => self.add,
            Phase::Gather => |a, b| a | b,
        };
        let sums = came.into_iter().map(|(_, elements)| elements);
        let sum = sums.reduce(|sum, elements| {
            let pairs = sum.into_iter().zip(elements);
            pairs.map(|(sum, element)| add(sum, element)).collect()
        });
        let workers = self.plan.workers_of(member).len();
        for worker in 0..workers {
            let is_last = worker > 0 && worker + 1 == workers;
            if self.fault == Some(Fault::NotMulticast) && is_last {
                continue;
            }
            self.in_flight.push(Event::Summed {
                at: (member, worker),
                piece,
                elements: sum.clone().unwrap(),
            });
        }
    }

    /// All that decides what happens next, as text.
    pub fn state(&self) -> String {
        let mut in_flight: Vec<_> = self.in_flight.iter().map(|e| format!("{e:?}")).collect();
        in_flight.sort();
        let mut switches = self.switches.clone();
        switches.values_mut().for_each(|came| came.sort());
        let machines = (&self.members, &self.others);
        format!(
            "{machines:?} {:?} {:?} {:?} {switches:?} {in_flight:?}",
            self.buffers, self.delivered, self.held
        )
    }

    /// Whether all state machines are done, and nothing is held anywhere.
    pub fn is_done(&self) -> bool {
        self.in_flight.is_empty()
            && self.held.is_empty()
            && self.switches.is_empty()
            && self.members.iter().all(Member::is_done)
            && self.others.values().all(RackWorker::is_done)
    }
}

/// The sums, by the definition of their order: from the member behind the owner on round the ring,
/// in a rack from its agent on.
pub fn fold(plan: &Plan, add: Add, inputs: &[Vec<u32>]) -> Vec<u32> {
    let mut sums = vec![0; plan.elements() as usize];
    let count = plan.members();
    for owner in 0..count {
        let order: Vec<usize> = (1..=count)
            .flat_map(|n| plan.workers_of((owner + n) % count))
            .map(|&rank| usize::from(rank))
            .collect();
        for at in plan.chunk(owner) {
            let values = order.iter().map(|&rank| inputs[rank][at as usize]);
            sums[at as usize] = values.reduce(add).unwrap();
        }
    }
    sums
}

/// What is wrong with a world in which no event is left, if anything is.
pub fn check(world: &World, inputs: &[Vec<u32>]) -> Result<(), String> {
    let plan = &world.plan;
    if !world.is_done() {
        return Err(String::from("a worker waits without end"));
    }
    let sums = match world.operation {
        Operation::AllGather => {
            let mut all = vec![0; plan.elements() as usize];
            for (member, worker) in world.places() {
                let rank = usize::from(plan.workers_of(member)[worker]);
                for at in plan.part(member, worker) {
                    all[at as usize] = inputs[rank][at as usize];
                }
            }
            all
        }
        _ => fold(plan, world.add, inputs),
    };
    for (member, worker) in world.places() {
        let rank = usize::from(plan.workers_of(member)[worker]);
        for segment in (0..plan.segments()).map(Segment) {
            let is_due = world.operation.gathers() || plan.owner(segment) == member;
            let times = world.delivered[rank][segment.0 as usize];
            if times != u32::from(is_due) {
                return Err(format!("rank {rank} has {segment:?} {times} times"));
            }
            let range = plan.range(segment);
            let range = range.start as usize..range.end as usize;
            if is_due && world.buffers[rank][range.clone()] != sums[range] {
                return Err(format!("rank {rank} has another sum of {segment:?}"));
            }
        }
    }
    orders(world)?;
    budget(world)
}

/// All workers of a rack submit in the same order, and members send a chunk a step.
fn orders(world: &World) -> Result<(), String> {
    let plan = &world.plan;
    for (&(member, worker), pieces) in &world.submitted {
        if *pieces != world.submitted[&(member, 0)] {
            return Err(format!("{:?} has another order", (member, worker)));
        }
    }
    for (member, pieces) in world.pieces.iter().enumerate() {
        let count = plan.members();
        let step = |piece: &Piece| {
            let back = (member + count - plan.owner(piece.segment)) % count;
            let of_phase = match piece.phase {
                Phase::Reduce => back - 1,
                Phase::Gather => count + back,
            };
            (of_phase, piece.segment)
        };
        if !pieces.is_sorted_by_key(step) {
            return Err(format!("member {member} sends out of order"));
        }
    }
    Ok(())
}

/// Each chunk is sent by all members but one, in each phase, and contributed once by each worker.
fn budget(world: &World) -> Result<(), String> {
    let plan = &world.plan;
    let length = |owner: usize| plan.chunk(owner).end - plan.chunk(owner).start;
    for member in 0..plan.members() {
        let all = plan.elements();
        let (reduces, gathers) = (world.operation.reduces(), world.operation.gathers());
        let sent = u64::from(reduces) * (all - length(member))
            + u64::from(gathers) * (all - length(plan.successor(member)));
        if world.sent[member] != sent {
            let found = world.sent[member];
            return Err(format!("member {member} sent {found} elements, not {sent}"));
        }
        for worker in 0..plan.workers_of(member).len() {
            let at = (member, worker);
            let found = world.contributed.get(&at).copied().unwrap_or_default();
            let expected = match (plan.is_rack(member), world.operation) {
                (false, _) => 0,
                (true, Operation::AllReduce) => 2 * all - length(member),
                (true, _) => all,
            };
            if found != expected {
                return Err(format!("{at:?} contributed {found}, not {expected}"));
            }
        }
    }
    Ok(())
}
