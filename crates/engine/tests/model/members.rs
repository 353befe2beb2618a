//! Workers and parameter servers, as little of them as the protocol needs.

use super::common::plain::secret;
use super::{EPOCH, FRAGMENTS, Frame, Node, Pieces, World};
use tally_engine::DropReason;
use tally_wire::{AuthTag, Element, Epoch, Flags, Header, Kind, Rank};

impl World {
    pub(super) fn send_next(&mut self, place: usize) {
        let rank = self.rng.below(usize::from(self.jobs[place].workers)) as u8;
        let job = &mut self.jobs[place];
        let n = job.sent[usize::from(rank)];
        let results = &job.results[usize::from(rank)];
        // W-2.
        let open = (0..).find(|f| !results.contains_key(f)).unwrap_or(0);
        if n < FRAGMENTS && n < open + job.window {
            job.sent[usize::from(rank)] += 1;
            self.contribute(place, rank, n, Flags::NONE);
        }
    }

    /// Asks for a result that is missing.
    pub(super) fn probe(&mut self, place: usize) {
        let rank = self.rng.below(usize::from(self.jobs[place].workers));
        let job = &self.jobs[place];
        let waiting: Vec<_> = (0..job.sent[rank])
            .filter(|n| !job.results[rank].contains_key(n))
            .collect();
        if !waiting.is_empty() {
            let n = waiting[self.rng.below(waiting.len())];
            let header = job.header(Kind::Probe, n, Rank(rank as u8), 0);
            let from = Node::Worker(place, rank as u8);
            self.send(from, Node::Switch, header, Vec::new());
        }
    }

    /// A frame with a wrong tag, from the place of the member that it names.
    pub(super) fn forge(&mut self, place: usize) {
        self.aggregate();
        let (n, rank) = (self.rng.below(FRAGMENTS as usize) as u32, self.rng.below(5));
        let job = &self.jobs[place];
        let rank = Rank(rank as u8 % job.workers);
        let worker = Node::Worker(place, rank.0);
        let (from, header) = match self.rng.below(5) {
            0 => (worker, job.header(Kind::Result, n, rank, 0)),
            1 => (worker, job.header(Kind::Probe, n, rank, 0)),
            2 => (Node::Ps(place), job.header(Kind::Nack, n, rank, 0)),
            3 => (Node::Ps(place), job.header(Kind::Remind, n, Rank::PS, 0)),
            _ => (Node::Ps(place), job.header(Kind::Result, n, Rank::PS, 0)),
        };
        let right = job.secret.tag(&header);
        let tag = match self.rng.below(4) {
            0 => AuthTag(right.0 ^ 1 << self.rng.below(64)),
            1 => AuthTag(self.rng.next()),
            // Of another fragment, and of an earlier epoch.
            2 => job
                .secret
                .tag(&job.header(header.kind, n + 1, header.rank, 0)),
            _ => secret(job.id, Epoch(EPOCH.0 - 1)).tag(&header),
        };
        let mut payload = vec![0x5a; header.payload_bytes()];
        if self.rng.percent(50) && header.kind.has_elements() {
            payload = job.sum(n, job.all());
        }
        let header = Header { tag, ..header };
        let at = header.fragment.0 as usize % self.shards.len();
        let from = self.member(from);
        let card = self.card.as_mut().filter(|card| card.steered[place][at]);
        let shard = card.map_or(&mut self.shards[at], |card| &mut card.shard);
        let mut expected = *shard.counters();
        let (slots, held) = (shard.slots_in_use(), shard.held_in_use());
        let live = self.ledger.live();
        let buffer = self.ledger.frame(payload);
        shard.handle(self.now, &from, &header, buffer, &mut self.wire);
        expected.drop(DropReason::AuthTag);
        assert_eq!(*shard.counters(), expected, "{header:?}");
        assert_eq!((shard.slots_in_use(), shard.held_in_use()), (slots, held));
        assert_eq!((self.wire.take(), self.ledger.live()), (Vec::new(), live));
        self.counts.forgeries += 1;
    }

    pub(super) fn contribute(&mut self, place: usize, rank: u8, n: u32, flags: Flags) {
        let marked = self.rng.percent(10);
        let flags = flags.with(Flags::MARKED.when(marked));
        let job = &mut self.jobs[place];
        job.marked.entry(n).or_default()[usize::from(!marked)] |= 1 << rank;
        let header = Header {
            flags,
            priority: self.rng.next() as u8,
            ..job.header(Kind::Data, n, Rank(rank), 1 << rank)
        };
        let payload = job.sum(n, 1 << rank);
        self.send(Node::Worker(place, rank), Node::Switch, header, payload);
    }

    pub(super) fn worker(&mut self, place: usize, rank: u8, frame: &Frame) {
        let job = &mut self.jobs[place];
        let n = frame.header.fragment.0.wrapping_sub(job.first);
        match frame.header.kind {
            Kind::Result => {
                job.results[usize::from(rank)].insert(n, frame.payload.clone());
            }
            Kind::Nack => {
                assert_eq!(frame.header.rank, Rank(rank), "NACK of another rank");
                if let Some(result) = job.results[usize::from(rank)].get(&n).cloned() {
                    let header = job.header(Kind::Result, n, Rank(rank), 0);
                    self.send(Node::Worker(place, rank), Node::Switch, header, result);
                } else if n < job.sent[usize::from(rank)] {
                    self.contribute(place, rank, n, Flags::RESEND);
                }
            }
            kind => panic!("a worker gets {kind:?}"),
        }
    }

    // --- The parameter servers (section 7). ---

    pub(super) fn remind(&mut self, place: usize) {
        let job = &mut self.jobs[place];
        let open: Vec<_> = job.ps.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let n = open[self.rng.below(open.len())];
        let pieces = job.ps.entry(n).or_default();
        let is_second = std::mem::replace(&mut pieces.reminded, true);
        // P-3: REMIND goes along with NACK, as a slot may have taken the answers to the last one.
        let header = job.header(Kind::Remind, n, Rank::PS, 0);
        self.send(Node::Ps(place), Node::Switch, header, Vec::new());
        if is_second {
            self.nack_missing(place, n, self.jobs[place].all());
        }
    }

    fn nack_missing(&mut self, place: usize, n: u32, of: u64) {
        let job = &self.jobs[place];
        let have = job.ps.get(&n).map_or(0, Pieces::bitmap);
        let missing: Vec<_> = (0..job.workers)
            .filter(|r| of & !have & 1 << r != 0)
            .map(|r| job.header(Kind::Nack, n, Rank(r), 0))
            .collect();
        for header in missing {
            self.send(Node::Ps(place), Node::Switch, header, Vec::new());
        }
    }

    pub(super) fn ps(&mut self, place: usize, frame: &Frame) {
        let job = &mut self.jobs[place];
        let header = &frame.header;
        let n = header.fragment.0.wrapping_sub(job.first);
        match header.kind {
            Kind::Partial if job.done.contains_key(&n) => {
                if header.flags.has(Flags::RESEND) {
                    self.send_result(place, n);
                }
            }
            Kind::Partial => {
                let pieces = job.ps.entry(n).or_default();
                if header.element == Element::F32 && header.bitmap & 1 == 1 {
                    // A fold has the same bits wherever it was made: the longest one counts (P-1).
                    let longest = pieces.held.keys().all(|b| b & 1 == 0 || *b < header.bitmap);
                    if longest {
                        pieces.held.retain(|bits, _| bits & header.bitmap == 0);
                        pieces.held.insert(header.bitmap, frame.payload.clone());
                    }
                } else if pieces.bitmap() & header.bitmap == 0 {
                    pieces.held.insert(header.bitmap, frame.payload.clone());
                } else {
                    self.nack_missing(place, n, header.bitmap);
                }
                let job = &mut self.jobs[place];
                if job.ps.get(&n).is_some_and(|p| p.bitmap() == job.all()) {
                    // The pieces have been checked against the sum of their ranks on their way.
                    let sum = job.sum(n, job.all());
                    job.ps.remove(&n);
                    job.done.insert(n, sum);
                    self.send_result(place, n);
                }
            }
            // P-4.
            Kind::Probe if job.done.contains_key(&n) => self.send_result(place, n),
            Kind::Probe => self.nack_missing(place, n, self.jobs[place].all()),
            Kind::NotHere if header.flags.has(Flags::FINISHED) => {
                job.ps.remove(&n);
            }
            Kind::NotHere => self.nack_missing(place, n, self.jobs[place].all()),
            kind => panic!("a PS gets {kind:?}"),
        }
    }

    fn send_result(&mut self, place: usize, n: u32) {
        let job = &self.jobs[place];
        let header = job.header(Kind::Result, n, Rank::PS, 0);
        let payload = job.done[&n].clone();
        self.send(Node::Ps(place), Node::Switch, header, payload);
    }
}
