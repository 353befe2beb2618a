//! Barriers: of the ranks of a group, and of connections that are in none.

use super::{Rendezvous, Waiting, again, answer_all, count};
use crate::switchml::controller::{Answer, CallId, ConnectionId, Meeting, Outbox, Ranks, Refusal};
use std::collections::BTreeMap;
use tally_wire::Time;

#[derive(Debug)]
pub(super) struct Barrier {
    pub(super) since: Time,
    pub(super) ranks: BTreeMap<u32, Waiting>,
}

/// A barrier of connections that are in no group.
#[derive(Debug)]
pub(super) struct StrangersBarrier {
    pub(super) since: Time,
    pub(super) workers: u32,
    pub(super) callers: Vec<Waiting>,
}

impl Rendezvous {
    pub(in crate::switchml::controller) fn barrier(
        &mut self,
        now: Time,
        connection: ConnectionId,
        call: CallId,
        workers: u32,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let group = self.peers.get(&connection).and_then(|peer| peer.group);
        let Some(group) = group.and_then(|id| self.groups.get_mut(&id)) else {
            return self.strangers_barrier(now, connection, call, workers, out);
        };
        if workers != group.workers {
            return Err(Refusal::BarrierWorkers {
                found: workers,
                allowed: group.workers,
            });
        }
        // Waiting would be in vain.
        if let Some((&rank, member)) = group.members.iter().find(|(_, m)| m.connection.is_none()) {
            return Err(Refusal::Lost {
                meeting: Meeting::Barrier,
                lost: Ranks(vec![(rank, Some(member.address))]),
                workers,
            });
        }
        // Ranks that share a connection are taken in their order.
        let own: Vec<u32> = group
            .members
            .iter()
            .filter(|(_, m)| m.connection == Some(connection))
            .map(|(&rank, _)| rank)
            .collect();
        let Some(&first) = own.first() else {
            return self.strangers_barrier(now, connection, call, workers, out);
        };
        let barrier = group.barrier.get_or_insert_with(|| Barrier {
            since: now,
            ranks: BTreeMap::new(),
        });
        let is_free = |rank: &u32| barrier.ranks.get(rank).is_none_or(|w| w.call.is_none());
        let rank = own.into_iter().find(is_free).unwrap_or(first);
        let waiting = Waiting {
            connection,
            call: Some(call),
        };
        if let Some(earlier) = barrier.ranks.insert(rank, waiting) {
            again(earlier, Meeting::Barrier, rank, out);
        }
        if count(barrier.ranks.values()) == workers {
            meet(barrier.ranks.values(), out);
            group.barrier = None;
        }
        Ok(())
    }

    fn strangers_barrier(
        &mut self,
        now: Time,
        connection: ConnectionId,
        call: CallId,
        workers: u32,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let deserted = |b: &mut StrangersBarrier| count(&b.callers) == 0;
        drop(self.strangers.take_if(deserted));
        let barrier = self.strangers.get_or_insert_with(|| StrangersBarrier {
            since: now,
            workers,
            callers: Vec::new(),
        });
        if workers != barrier.workers {
            return Err(Refusal::BarrierWorkers {
                found: workers,
                allowed: barrier.workers,
            });
        }
        // A call that was given up leaves its place to the next one.
        let is_free = |w: &&mut Waiting| w.connection == connection && w.call.is_none();
        match barrier.callers.iter_mut().find(is_free) {
            Some(waiting) => waiting.call = Some(call),
            None => barrier.callers.push(Waiting {
                connection,
                call: Some(call),
            }),
        }
        if count(&barrier.callers) == workers {
            meet(&barrier.callers, out);
            self.strangers = None;
        }
        Ok(())
    }
}

fn meet<'a>(all: impl IntoIterator<Item = &'a Waiting>, out: &mut Outbox) {
    answer_all(all, &Ok(Answer::Met), out);
}
