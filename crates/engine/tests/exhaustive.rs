//! A small world, completely: three workers, two slots, and every order in which a bounded set of
//! frames can arrive.
//!
//! Each set is chosen so that its frames meet: two fragments that share a slot, with priorities
//! that preempt and such that do not, a RESEND of what also comes anew, a duplicate, a REMIND,
//! PROBE, and in some the result of the PS or of a worker. Each PROBE has one answer, which depends
//! on nothing but on what was sent to the PS and what has come.

mod common;

use common::plain::{Ledger, Plain, Sent, Wire, host};
use common::sums;
use tally_engine::{Aggregator, DropReason, PolicyName, PoolConfig, PoolJob, Roster, To};
use tally_kernels::Kernels;
use tally_wire::{
    AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, Header, JobId, Kind, Rank, Time,
};

const JOB: JobId = JobId(7);
const ALL: u64 = 0b111;
/// Fragments of the world; 0 and 2 share a slot, or with two ways all of them a set.
const FRAGMENTS: usize = 3;

/// One arrival.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    /// DATA of rank and fragment, with this priority.
    Data(u8, u32, u8),
    Resend(u8, u32),
    Remind(u32),
    Probe(u8, u32),
    /// The PS's result.
    Result(u32),
    /// A worker's.
    Answer(u8, u32),
}
use Arrival::{Answer, Data, Probe, Remind, Resend, Result};

struct World {
    shard: Aggregator<Plain>,
    wire: Wire,
    ledger: Ledger,
    element: Element,
    epoch: u16,
    secret: EpochSecret,
    /// How often each rank's contribution came, by fragment, and how often it is accounted for.
    came: [[u32; 3]; FRAGMENTS],
    gone: [[u32; 3]; FRAGMENTS],
    /// Ranks whose contribution was sent to the PS, by fragment.
    at_ps: [u64; FRAGMENTS],
    results: [u32; FRAGMENTS],
}

impl World {
    fn new(policy: PolicyName, ways: u32, element: Element, held: u32) -> Self {
        let config = PoolConfig {
            slots: 2,
            ways,
            held,
            window: 4,
            shards: 1,
            shard: 0,
            jobs: vec![PoolJob::unlimited(JOB)],
            policy,
            places: 0,
        };
        Self {
            shard: Aggregator::new(config, Kernels::best()),
            wire: Wire::default(),
            ledger: Ledger::default(),
            element,
            epoch: 0,
            secret: EpochSecret::new([0; 16]),
            came: Default::default(),
            gone: Default::default(),
            at_ps: Default::default(),
            results: Default::default(),
        }
    }

    /// A new epoch: the world is empty again.
    fn reset(&mut self) {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        let workers = (0..3).map(host).collect();
        let epoch = Epoch(self.epoch);
        // Not derived, which would take most of the time.
        self.secret = EpochSecret::new([self.epoch as u8; 16]);
        let roster = Roster::new(JOB, epoch, self.secret, 1, workers, host(9));
        assert!(self.shard.bind(roster, &mut self.wire));
        assert_eq!(
            (self.shard.slots_in_use(), self.shard.held_in_use()),
            (0, 0)
        );
        assert_eq!((self.ledger.live(), self.ledger.lost()), (0, 0));
        self.came = Default::default();
        self.gone = Default::default();
        self.at_ps = Default::default();
        self.results = Default::default();
    }

    fn handle(&mut self, arrival: Arrival) {
        let (kind, rank, fragment, flags, priority, bitmap) = match arrival {
            Data(rank, f, priority) => {
                (Kind::Data, Rank(rank), f, Flags::NONE, priority, 1 << rank)
            }
            Resend(rank, f) => (Kind::Data, Rank(rank), f, Flags::RESEND, 10, 1 << rank),
            Remind(f) => (Kind::Remind, Rank::PS, f, Flags::NONE, 0, 0),
            Probe(rank, f) => (Kind::Probe, Rank(rank), f, Flags::NONE, 0, 0),
            Result(f) => (Kind::Result, Rank::PS, f, Flags::NONE, 0, 0),
            Answer(rank, f) => (Kind::Result, Rank(rank), f, Flags::NONE, 0, 0),
        };
        let elements = kind.has_elements();
        let header = Header {
            kind,
            flags,
            priority,
            element: if elements {
                self.element
            } else {
                Element::None
            },
            job: JOB,
            epoch: Epoch(self.epoch),
            fragment: FragmentId(fragment),
            rank,
            units: u8::from(elements),
            bitmap,
            tag: AuthTag::NONE,
        };
        let header = self.secret.seal(header);
        let payload = if elements {
            let ranks = if kind == Kind::Data { bitmap } else { ALL };
            sums::of(JOB, header.fragment, self.element, ranks)
        } else {
            Vec::new()
        };
        let of = fragment as usize;
        if kind == Kind::Probe {
            return self.probe(header);
        }
        if kind == Kind::Data {
            self.came[of][usize::from(rank.0)] += 1;
        }
        let from = host(if rank == Rank::PS {
            9
        } else {
            u16::from(rank.0)
        });
        let drops = |w: &Self| w.shard.counters().drops;
        let before = drops(self);
        let buffer = self.ledger.frame(payload);
        self.shard
            .handle(Time(0), &from, &header, buffer, &mut self.wire);
        let sent = self.wire.take();

        let mut expected = before;
        let after = drops(self);
        if after != before {
            assert_eq!(sent, [], "dropped and answered");
            let reason = [DropReason::Duplicate, DropReason::Late]
                .into_iter()
                .find(|r| after[*r] != before[*r])
                .expect("no other reason in this world");
            expected[reason] += 1;
            if kind == Kind::Data {
                self.gone[of][usize::from(rank.0)] += 1;
            }
        }
        assert_eq!(after, expected, "one counter");
        for sent in sent {
            self.check(&header, sent);
        }
    }

    /// S-7: the answer follows from what came and what went.
    fn probe(&mut self, header: Header) {
        let of = header.fragment.0 as usize;
        let counts = self.came[of].iter().zip(self.gone[of]);
        let mut here = 0;
        for (rank, (came, gone)) in counts.enumerate() {
            here |= u64::from(*came > gone) << rank;
        }
        let known = here | self.at_ps[of];
        let asker = header.rank.0;
        let cyclic = (asker..3).chain(0..asker);
        let mut lacking = cyclic.filter(|rank| known >> rank & 1 == 0);
        let asked = lacking.next().filter(|_| here != 0);
        let expected = if self.results[of] > 0 {
            let sum = sums::of(JOB, header.fragment, self.element, ALL);
            Sent::Retransmit(header.rank, host(asker.into()).port, sum)
        } else if asked.is_none() && self.at_ps[of] != 0 {
            let untagged = Header {
                tag: AuthTag::NONE,
                ..header
            };
            Sent::To(To::Ps, host(9), untagged, Vec::new())
        } else {
            let rank = Rank(asked.unwrap_or(asker));
            let nack = Header {
                kind: Kind::Nack,
                rank,
                tag: AuthTag::NONE,
                ..header
            };
            Sent::To(To::Worker(rank), host(rank.0.into()), nack, Vec::new())
        };
        let (drops, slots) = (self.shard.counters().drops, self.shard.slots_in_use());
        let buffer = self.ledger.frame([]);
        let from = host(asker.into());
        self.shard
            .handle(Time(0), &from, &header, buffer, &mut self.wire);
        assert_eq!(self.wire.take(), [expected]);
        assert_eq!(self.shard.counters().drops, drops);
        assert_eq!(self.shard.slots_in_use(), slots);
    }

    fn check(&mut self, cause: &Header, sent: Sent) {
        let (header, payload) = match sent {
            Sent::To(_, to, header, payload) => {
                assert_eq!(to, host(9), "all of these go to the PS");
                (header, payload)
            }
            Sent::Group(_, header, payload, _) => (header, payload),
            Sent::Up(..) => panic!("a job without a tree has no parent"),
            Sent::Retransmit(to, ..) => {
                assert_eq!(to, cause.rank);
                // Which fragment is known to the asker only; its question is accounted for.
                let came = self.came.iter().zip(&mut self.gone).zip(self.results);
                let open = came
                    .filter(|((c, g), results)| *results > 0 && c[rank_of(to)] > g[rank_of(to)])
                    .map(|((_, g), _)| g)
                    .next();
                open.expect("a rank asked")[rank_of(to)] += 1;
                return;
            }
        };
        let of = header.fragment.0 as usize;
        let ranks = match header.kind {
            Kind::Partial => header.bitmap,
            _ => ALL,
        };
        if header.kind.has_elements() {
            let expected = sums::of(JOB, header.fragment, self.element, ranks);
            assert_eq!(payload, expected, "{header:?}");
            let fits = sums::may_be_one_frame(self.element, ranks, ALL);
            assert!(fits, "H-3: {header:?}");
        }
        match header.kind {
            Kind::Result => {
                self.results[of] += 1;
                assert_eq!(self.results[of], 1, "one result");
            }
            Kind::Partial => {
                assert_eq!(self.results[of], 0, "a part of what has its result");
                self.at_ps[of] |= ranks;
            }
            _ => return,
        }
        if cause.kind != Kind::Result {
            for rank in (0..3).filter(|r| ranks >> r & 1 == 1) {
                self.gone[of][rank] += 1;
            }
        }
    }

    /// What is left in slots goes, and then every contribution has gone exactly as often as it
    /// came.
    fn check_ends(&mut self, context: &[Arrival]) {
        for fragment in 0..FRAGMENTS {
            self.handle(Remind(fragment as u32));
        }
        let counts = self.came.iter().zip(&self.gone).zip(self.results);
        for (of, ((came, gone), results)) in counts.enumerate() {
            let from_member = context
                .iter()
                .any(|a| matches!(a, Result(f) | Answer(_, f) if *f as usize == of));
            if from_member {
                assert_eq!(results, 1, "{context:?}");
                assert!(came.iter().zip(gone).all(|(c, g)| g <= c), "{context:?}");
            } else {
                assert_eq!(came, gone, "fragment {of} of {context:?}");
            }
        }
    }
}

fn rank_of(rank: Rank) -> usize {
    usize::from(rank.0)
}

/// Calls `visit` with every order of `items` (Heap, 1963).
fn orders(items: &mut [Arrival], n: usize, visit: &mut impl FnMut(&[Arrival])) {
    if n <= 1 {
        return visit(items);
    }
    for i in 0..n {
        orders(items, n - 1, visit);
        items.swap(if n.is_multiple_of(2) { i } else { 0 }, n - 1);
    }
}

fn every_order_of(set: &[Arrival]) {
    for (_, policy) in PolicyName::ALL {
        // All three in one set, to tell apart what the payload does not.
        for (ways, element, held) in [
            (1, Element::I32, 0),
            (2, Element::I32, 0),
            (1, Element::F32, 4),
            (1, Element::F32, 1),
            (1, Element::F16, 4),
            (1, Element::I8, 1),
        ] {
            if policy == PolicyName::None && (ways, held) != (1, 0) {
                continue;
            }
            let mut world = World::new(policy, ways, element, held);
            let mut visited = 0u32;
            orders(&mut set.to_vec(), set.len(), &mut |order| {
                world.reset();
                for arrival in order {
                    world.handle(*arrival);
                }
                world.check_ends(order);
                visited += 1;
            });
            assert_eq!(visited, (1..=set.len() as u32).product());
            world.shard.unbind(JOB, &mut world.wire);
            assert_eq!((world.ledger.live(), world.ledger.lost()), (0, 0));
        }
    }
}

#[test]
fn preemption_duplicates_and_a_remind() {
    every_order_of(&[
        Data(0, 0, 10),
        Data(1, 0, 10),
        Data(2, 0, 10),
        Resend(1, 0),
        Data(0, 2, 20),
        Data(1, 2, 5),
        Remind(0),
    ]);
}

#[test]
fn two_complete_fragments_in_one_slot() {
    every_order_of(&[
        Data(0, 0, 10),
        Data(1, 0, 10),
        Data(2, 0, 10),
        Data(0, 2, 11),
        Data(1, 2, 11),
        Data(2, 2, 4),
        Data(2, 1, 0),
    ]);
}

#[test]
fn the_result_of_the_ps_overtakes() {
    every_order_of(&[
        Data(0, 0, 10),
        Data(1, 0, 10),
        Data(2, 0, 10),
        Resend(2, 0),
        Result(0),
        Remind(0),
        Data(1, 2, 20),
    ]);
}

#[test]
fn everybody_resends() {
    every_order_of(&[
        Data(0, 0, 10),
        Data(1, 0, 10),
        Resend(0, 0),
        Resend(1, 0),
        Resend(2, 0),
        Data(2, 2, 99),
        Resend(2, 2),
    ]);
}

#[test]
fn probes_of_what_comes_apart() {
    every_order_of(&[
        Data(0, 0, 10),
        Data(1, 0, 10),
        Data(1, 2, 20),
        Resend(2, 0),
        Remind(0),
        Probe(1, 0),
    ]);
}

#[test]
fn probes_beside_a_fragment_that_completes() {
    every_order_of(&[
        Data(0, 0, 10),
        Data(1, 0, 10),
        Data(2, 0, 10),
        Data(0, 2, 11),
        Probe(2, 0),
        Probe(1, 2),
    ]);
}

#[test]
fn a_worker_answers_with_the_result() {
    every_order_of(&[
        Data(0, 0, 10),
        Resend(1, 0),
        Resend(2, 0),
        Data(2, 2, 20),
        Answer(0, 0),
        Probe(1, 0),
    ]);
}
