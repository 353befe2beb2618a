//! The card: one shard more, in another machine, which takes jobs and may die.

use super::common::plain::Plain;
use super::{Frame, World};
use tally_engine::{Aggregator, PolicyName, PoolConfig, PoolJob};
use tally_kernels::Kernels;
use tally_wire::Time;

/// A card that jobs may be given to.
pub(super) struct Card {
    pub(super) shard: Aggregator<Plain>,
    /// By job and shard of the switch: whether that shard sends it what comes of the job.
    pub(super) steered: [Vec<bool>; 2],
    /// By job: what the shards are to do next, one by one.
    wanted: [bool; 2],
    /// Hand-overs to it, and deaths.
    pub(super) moves: u64,
    pub(super) deaths: u64,
}

impl World {
    pub(super) fn new_card(&mut self) -> Card {
        let config = PoolConfig {
            slots: 1 << self.rng.below(4),
            ways: 1,
            held: 0,
            shards: 1,
            shard: 0,
            jobs: self
                .jobs
                .iter()
                .map(|job| PoolJob::unlimited(job.id))
                .collect(),
            policy: PolicyName::Esa,
            ..self.pool.clone()
        };
        let shards = self.shards.len();
        Card {
            shard: Aggregator::new(config, Kernels::best()),
            steered: [vec![false; shards], vec![false; shards]],
            wanted: [false; 2],
            moves: 0,
            deaths: 0,
        }
    }

    /// A job goes to the card or comes back, or is on its way: a shard more follows.
    pub(super) fn steer(&mut self, place: usize) {
        self.aggregate();
        let roster = self.roster(place);
        let Some(card) = &mut self.card else { return };
        let to = card.wanted[place];
        if let Some(at) = card.steered[place].iter().position(|&is| is != to) {
            if to {
                // Loaded before the first shard sends to it.
                assert!(card.shard.bind(roster.clone(), &mut self.wire));
                self.shards[at].hand_over(roster.job, &mut self.wire);
            } else {
                assert!(self.shards[at].bind(roster.clone(), &mut self.wire));
            }
            card.steered[place][at] = to;
            if !to && !card.steered[place].contains(&true) {
                card.shard.unbind(roster.job, &mut self.wire);
            }
        } else {
            card.wanted[place] = !to;
            card.moves += 1;
        }
        // Both may have finished it.
        self.published.clear();
        let sent = self.wire.take();
        self.transmit(sent, None);
    }

    /// The card is dead, with all that it has, and another one in its place.
    pub(super) fn kill_card(&mut self) {
        self.aggregate();
        let Some(mut card) = self.card.take() else {
            return;
        };
        for place in 0..2 {
            let roster = self.roster(place);
            card.shard.unbind(roster.job, &mut self.wire);
            for (at, is_steered) in card.steered[place].iter().enumerate() {
                if *is_steered {
                    assert!(self.shards[at].bind(roster.clone(), &mut self.wire));
                }
            }
        }
        self.published.clear();
        assert_eq!(self.wire.take(), []);
        self.card = Some(Card {
            moves: card.moves,
            deaths: card.deaths + 1,
            ..self.new_card()
        });
    }

    /// Whether a frame was the card's, and has been taken by it.
    pub(super) fn card_takes(&mut self, frame: &Frame) -> bool {
        let shard = frame.header.fragment.0 as usize % self.shards.len();
        let place = usize::from(frame.header.job.0 - 7);
        let from = self.member(frame.from);
        let Some(card) = &mut self.card else {
            return false;
        };
        if !card.steered[place][shard] {
            return false;
        }
        let buffer = self.ledger.frame(frame.payload.clone());
        self.now = Time(self.now.0 + 1_000_000);
        card.shard
            .handle(self.now, &from, &frame.header, buffer, &mut self.wire);
        let sent = self.wire.take();
        self.transmit(sent, Some(&frame.header));
        true
    }
}
