//! The plan of a ring: members in order, a chunk for each, segments of each chunk.
//!
//! Chunk c is owned by member c. Its reduction begins at member c + 1 and ends at its owner. So at
//! step s member m sends chunk m - 1 - s, and receives chunk m - 2 - s. After G - 1 steps each
//! member has the sum of its own chunk, and G - 1 more steps bring all chunks to all members.

use std::collections::BTreeSet;
use std::ops::Range;
use thiserror::Error;

/// Most workers of a rack whose switch sums: those that a Tally job of one switch may have.
pub const RACK_WORKERS_MAX: usize = 64;

/// What the members do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// All workers get the sum of all elements.
    AllReduce,
    /// The workers of a member get the sum of its chunk.
    ReduceScatter,
    /// All workers get all chunks. Each worker brings its part of its member's.
    AllGather,
}

impl Operation {
    /// All three.
    pub const ALL: [Self; 3] = [Self::AllReduce, Self::ReduceScatter, Self::AllGather];

    /// Whether it has the reduce phase.
    #[must_use]
    pub const fn reduces(self) -> bool {
        !matches!(self, Self::AllGather)
    }

    /// Whether it has the gather phase.
    #[must_use]
    pub const fn gathers(self) -> bool {
        !matches!(self, Self::ReduceScatter)
    }
}

/// Phase of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Partial sums pass the members.
    Reduce,
    /// Sums pass the members.
    Gather,
}

/// Number of a segment; those of chunk 0 come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment(pub u32);

/// A segment in one of the phases: the unit that is sent, summed and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// Phase.
    pub phase: Phase,
    /// Segment.
    pub segment: Segment,
}

impl Piece {
    /// A segment in the reduce phase.
    #[must_use]
    pub const fn reduce(segment: Segment) -> Self {
        let phase = Phase::Reduce;
        Self { phase, segment }
    }

    /// A segment in the gather phase.
    #[must_use]
    pub const fn gather(segment: Segment) -> Self {
        let phase = Phase::Gather;
        Self { phase, segment }
    }
}

/// A rack of the job: ranks of its workers, and whether its switch sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rack {
    /// Ranks. Where the switch sums, the first is the agent.
    pub workers: Vec<u16>,
    /// Whether its switch sums.
    pub sums: bool,
}

/// Why there is no such plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A rack without workers.
    #[error("rack {rack} has no workers")]
    Empty {
        /// Which, counted from 0.
        rack: usize,
    },
    /// More workers than a switch sums.
    #[error("rack {rack} sums and has {workers} workers; a switch sums up to {RACK_WORKERS_MAX}")]
    TooMany {
        /// Which, counted from 0.
        rack: usize,
        /// How many it has.
        workers: usize,
    },
    /// Ranks that are not 0 to N - 1, each once.
    #[error("rank {rank} of {workers} workers is in no rack, or in two (ranks count from 0)")]
    Rank {
        /// The rank.
        rank: u16,
        /// Workers of all racks.
        workers: usize,
    },
    /// No racks.
    #[error("a ring needs a rack")]
    NoRacks,
    /// Segments of no elements.
    #[error("a segment needs an element")]
    EmptySegments,
    /// More segments than numbers for them.
    #[error("{segments} segments; up to {} are allowed, use longer ones", u32::MAX)]
    TooManySegments {
        /// How many.
        segments: u64,
    },
    /// A part of a member's chunk that is no neighbour of the last one.
    #[error(
        "rank {rank} follows rank {after} in its rack; ranks of a rack that sums must count up"
    )]
    Scattered {
        /// The rank.
        rank: u16,
        /// The one before it in its rack.
        after: u16,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MemberPlan {
    /// Ranks; the agent is first.
    workers: Vec<u16>,
    sums: bool,
    /// Elements of its chunk.
    chunk: Range<u64>,
    /// Segments of its chunk.
    segments: Range<u32>,
}

/// The plan of one collective, the same at all workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    members: Vec<MemberPlan>,
    workers: usize,
    elements: u64,
    /// Elements of each segment but the last of a chunk.
    segment: u64,
}

/// The `n`-th of `of` parts of `elements`, which differ by one element at most.
fn part(elements: u64, n: usize, of: usize) -> Range<u64> {
    let at = |n: usize| (u128::from(elements) * n as u128 / of as u128) as u64;
    at(n)..at(n + 1)
}

impl Plan {
    /// A plan whose chunks differ by one element at most: that of an all-reduce.
    ///
    /// `racks` are in the order of the ring; `segment` is the number of elements in a segment.
    ///
    /// # Errors
    /// A rack or a segment that cannot be.
    pub fn balanced(racks: &[Rack], elements: u64, segment: u64) -> Result<Self, PlanError> {
        let mut plan = Self::without_chunks(racks, elements, segment)?;
        let count = plan.members.len();
        for (n, member) in plan.members.iter_mut().enumerate() {
            member.chunk = part(elements, n, count);
        }
        plan.cut()
    }

    /// A plan in which the elements of rank r are the r-th of N parts, so that a reduce-scatter
    /// leaves at each worker its own part, and an all-gather takes it from there.
    ///
    /// # Errors
    /// As [`balanced`](Self::balanced), and a rack that sums whose ranks do not count up.
    pub fn by_rank(racks: &[Rack], elements: u64, segment: u64) -> Result<Self, PlanError> {
        let mut plan = Self::without_chunks(racks, elements, segment)?;
        let ranks = plan.workers;
        for member in &mut plan.members {
            for pair in member.workers.windows(2) {
                let (after, rank) = (pair[0], pair[1]);
                if u32::from(rank) != u32::from(after) + 1 {
                    return Err(PlanError::Scattered { rank, after });
                }
            }
            let first = usize::from(member.workers[0]);
            let last = first + member.workers.len() - 1;
            member.chunk = part(elements, first, ranks).start..part(elements, last, ranks).end;
        }
        plan.cut()
    }

    fn without_chunks(racks: &[Rack], elements: u64, segment: u64) -> Result<Self, PlanError> {
        if racks.is_empty() {
            return Err(PlanError::NoRacks);
        }
        if segment == 0 {
            return Err(PlanError::EmptySegments);
        }
        let workers = racks.iter().map(|rack| rack.workers.len()).sum();
        let mut ranks = BTreeSet::new();
        let mut members = Vec::new();
        for (n, rack) in racks.iter().enumerate() {
            let count = rack.workers.len();
            if count == 0 {
                return Err(PlanError::Empty { rack: n });
            }
            if rack.sums && count > RACK_WORKERS_MAX {
                let (rack, workers) = (n, count);
                return Err(PlanError::TooMany { rack, workers });
            }
            for &rank in &rack.workers {
                if usize::from(rank) >= workers || !ranks.insert(rank) {
                    return Err(PlanError::Rank { rank, workers });
                }
            }
            let each = if rack.sums { count } else { 1 };
            members.extend(rack.workers.chunks(each).map(|workers| MemberPlan {
                workers: workers.into(),
                sums: rack.sums,
                chunk: 0..0,
                segments: 0..0,
            }));
        }
        Ok(Self {
            members,
            workers,
            elements,
            segment,
        })
    }

    /// Cuts the chunks into segments.
    fn cut(mut self) -> Result<Self, PlanError> {
        let mut next = 0u64;
        for member in &mut self.members {
            let count = (member.chunk.end - member.chunk.start).div_ceil(self.segment);
            let first = next;
            next += count;
            // Checked below; until then a number that is too high is of no use.
            member.segments = first as u32..next as u32;
        }
        if next > u64::from(u32::MAX) {
            return Err(PlanError::TooManySegments { segments: next });
        }
        Ok(self)
    }

    /// Number of members.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.members.len()
    }

    /// Number of workers.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.workers
    }

    /// Number of elements.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.elements
    }

    /// Steps of an all-reduce, each of which passes one chunk to the next member.
    #[must_use]
    pub const fn steps(&self) -> usize {
        2 * (self.members.len() - 1)
    }

    /// Number of segments of all chunks.
    #[must_use]
    pub fn segments(&self) -> u32 {
        self.members.last().map_or(0, |last| last.segments.end)
    }

    /// Ranks of a member's workers; its agent is first.
    #[must_use]
    pub fn workers_of(&self, member: usize) -> &[u16] {
        &self.members[member].workers
    }

    /// Whether a member is a rack whose switch sums.
    #[must_use]
    pub fn is_rack(&self, member: usize) -> bool {
        self.members[member].sums
    }

    /// The member to which a member sends.
    #[must_use]
    pub const fn successor(&self, member: usize) -> usize {
        (member + 1) % self.members.len()
    }

    /// Elements of a member's chunk.
    #[must_use]
    pub fn chunk(&self, owner: usize) -> Range<u64> {
        self.members[owner].chunk.clone()
    }

    /// The elements that a worker of a member brings to an all-gather by itself, and that are its
    /// own after a reduce-scatter. Of a plan [`by_rank`](Self::by_rank) they are the rank's part.
    #[must_use]
    pub fn part(&self, member: usize, worker: usize) -> Range<u64> {
        let MemberPlan { chunk, workers, .. } = &self.members[member];
        let (first, ranks) = (u64::from(workers[0]), self.workers);
        let of_rank = |rank: u64| part(self.elements, rank as usize, ranks);
        let last = first + workers.len() as u64 - 1;
        if of_rank(first).start == chunk.start && of_rank(last).end == chunk.end {
            return of_rank(first + worker as u64);
        }
        let own = part(chunk.end - chunk.start, worker, workers.len());
        chunk.start + own.start..chunk.start + own.end
    }

    /// Segments of a member's chunk.
    pub fn segments_of(&self, owner: usize) -> impl DoubleEndedIterator<Item = Segment> + use<> {
        self.members[owner].segments.clone().map(Segment)
    }

    /// The member that owns a segment.
    ///
    /// # Panics
    /// If there is no such segment.
    #[must_use]
    pub fn owner(&self, segment: Segment) -> usize {
        assert!(segment.0 < self.segments());
        self.members
            .partition_point(|member| member.segments.end <= segment.0)
    }

    /// The elements of a segment.
    ///
    /// # Panics
    /// If there is no such segment.
    #[must_use]
    pub fn range(&self, segment: Segment) -> Range<u64> {
        let MemberPlan {
            chunk, segments, ..
        } = &self.members[self.owner(segment)];
        let start = chunk.start + u64::from(segment.0 - segments.start) * self.segment;
        start..(start + self.segment).min(chunk.end)
    }

    /// How many members have added theirs before a member's turn in the reduction of a chunk.
    #[must_use]
    pub const fn position(&self, member: usize, owner: usize) -> usize {
        let count = self.members.len();
        (member + count - owner + count - 1) % count
    }

    /// How many members had a sum before a member gets it; 0 for its owner.
    #[must_use]
    pub const fn distance(&self, member: usize, owner: usize) -> usize {
        let count = self.members.len();
        (member + count - owner) % count
    }

    /// The order in which the workers of a member submit pieces to its switch, all the same.
    ///
    /// The reduce phase has all chunks: first the one whose reduction begins here, then those that
    /// come from the predecessor, last the member's own. The gather phase has all chunks but its
    /// own; in an all-gather by itself, the own one comes first.
    pub fn rack_order(&self, member: usize, operation: Operation) -> impl Iterator<Item = Piece> {
        let count = self.members.len();
        let gather = match operation {
            Operation::AllReduce => 1..count,
            Operation::ReduceScatter => 0..0,
            Operation::AllGather => 0..count,
        };
        let reduce = if operation.reduces() {
            1..count + 1
        } else {
            0..0
        };
        self.order(member, reduce, gather)
    }

    /// The order in which a member sends pieces to its successor.
    ///
    /// Each phase has one chunk a step. A member that sent pieces as they become ready would have
    /// those of several chunks arrive side by side, each of them late.
    pub fn send_order(&self, member: usize, operation: Operation) -> impl Iterator<Item = Piece> {
        let last = self.members.len() - 1;
        let reduce = if operation.reduces() {
            1..last + 1
        } else {
            0..0
        };
        let gather = if operation.gathers() { 0..last } else { 0..0 };
        self.order(member, reduce, gather)
    }

    /// The pieces of chunks by their distance before a member.
    fn order(
        &self,
        member: usize,
        reduce: Range<usize>,
        gather: Range<usize>,
    ) -> impl Iterator<Item = Piece> {
        let count = self.members.len();
        let chunks = move |range: Range<usize>, phase| {
            let owners = range.map(move |s| (member + count - s) % count);
            owners.flat_map(move |owner| {
                self.segments_of(owner)
                    .map(move |segment| Piece { phase, segment })
            })
        };
        chunks(reduce, Phase::Reduce).chain(chunks(gather, Phase::Gather))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rack(workers: Range<u16>, sums: bool) -> Rack {
        let workers = workers.collect();
        Rack { workers, sums }
    }

    #[test]
    fn the_papers_example_has_its_steps() {
        for (summing, steps) in [(0, 126), (4, 70), (8, 14)] {
            let racks: Vec<_> = (0..8u16)
                .map(|n| rack(n * 8..n * 8 + 8, n < summing))
                .collect();
            assert_eq!(Plan::balanced(&racks, 1, 1).unwrap().steps(), steps);
        }
    }

    #[test]
    fn chunks_and_segments_cover_all_elements_once() {
        let racks = [rack(3..8, true), rack(0..3, false)];
        for elements in 0..60 {
            for by_rank in [false, true] {
                let make = if by_rank {
                    Plan::by_rank
                } else {
                    Plan::balanced
                };
                let plan = make(&racks, elements, 4).unwrap();
                let mut seen = vec![0; elements as usize];
                let mut parts = seen.clone();
                for segment in (0..plan.segments()).map(Segment) {
                    let range = plan.range(segment);
                    assert!((1..=4).contains(&(range.end - range.start)));
                    range.for_each(|at| seen[at as usize] += 1);
                }
                for member in 0..plan.members() {
                    for worker in 0..plan.workers_of(member).len() {
                        let part = plan.part(member, worker);
                        let chunk = plan.chunk(member);
                        assert!(chunk.start <= part.start && part.end <= chunk.end);
                        part.for_each(|at| parts[at as usize] += 1);
                    }
                }
                assert!(seen.iter().chain(&parts).all(|&times| times == 1));
            }
        }
    }

    #[test]
    fn the_part_of_a_rank_follows_from_its_rank_alone() {
        let racks = [rack(3..8, true), rack(0..3, false)];
        let plan = Plan::by_rank(&racks, 80, 7).unwrap();
        for member in 0..plan.members() {
            for (worker, &rank) in plan.workers_of(member).iter().enumerate() {
                let start = u64::from(rank) * 10;
                assert_eq!(plan.part(member, worker), start..start + 10);
            }
        }
    }

    #[test]
    fn what_makes_no_plan_is_named() {
        let error = |racks: &[Rack]| Plan::by_rank(racks, 1, 1).unwrap_err().to_string();
        assert_eq!(error(&[]), "a ring needs a rack");
        assert_eq!(error(&[rack(0..0, false)]), "rack 0 has no workers");
        assert_eq!(
            error(&[rack(0..65, true)]),
            "rack 0 sums and has 65 workers; a switch sums up to 64"
        );
        assert!(Plan::balanced(&[rack(0..65, false)], 1, 1).is_ok());
        assert_eq!(
            error(&[rack(0..2, false), rack(1..3, false)]),
            "rank 1 of 4 workers is in no rack, or in two (ranks count from 0)"
        );
        let mut scattered = rack(0..2, true);
        scattered.workers.reverse();
        assert_eq!(
            error(&[scattered]),
            "rank 0 follows rank 1 in its rack; ranks of a rack that sums must count up"
        );
        let long = Plan::balanced(&[rack(0..1, false)], 1 << 40, 1);
        let segments = 1 << 40;
        assert_eq!(long, Err(PlanError::TooManySegments { segments }));
    }
}
