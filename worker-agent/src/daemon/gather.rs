//! The collectives of the ranks of one host, each rank's in its order, until all have brought the
//! next one.

use std::collections::VecDeque;
use std::time::Instant;
use tally_local::Span;
use tally_session::{Collective, differing};

/// A collective as one rank submits it.
pub(super) struct Brought {
    /// The rank's.
    pub(super) ticket: u64,
    pub(super) collective: Collective,
    pub(super) span: Span,
    pub(super) at: Instant,
}

/// A collective that some ranks have brought and others have not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Incomplete {
    pub(super) name: String,
    /// When the first rank brought it.
    pub(super) since: Instant,
    /// Ranks that have not, of all the job's.
    pub(super) missing: Vec<u16>,
}

/// Why the ranks of a host cannot continue together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// Ranks that differ from most.
    pub(super) ranks: Vec<u16>,
    /// What each brings.
    pub(super) text: String,
}

/// What the ranks of a host have brought and is not under way.
pub(super) struct Gather {
    first: u16,
    queues: Vec<VecDeque<Brought>>,
    /// Collectives that all have brought.
    taken: u64,
}

impl Gather {
    /// Of `parts` ranks from `first` on.
    pub(super) fn new(first: u16, parts: u16) -> Self {
        Self {
            first,
            queues: (0..parts).map(|_| VecDeque::new()).collect(),
            taken: 0,
        }
    }

    /// Takes what the rank at `index` brings.
    pub(super) fn push(&mut self, index: usize, brought: Brought) {
        self.queues[index].push_back(brought);
    }

    /// The next collective that all have brought, in the order of ranks.
    pub(super) fn pop(&mut self) -> Option<Result<Vec<Brought>, Mismatch>> {
        if self.queues.iter().any(VecDeque::is_empty) {
            return None;
        }
        let all: Vec<_> = self
            .queues
            .iter_mut()
            .filter_map(VecDeque::pop_front)
            .collect();
        let said: Vec<_> = (self.first..)
            .zip(&all)
            .map(|(rank, it)| (rank, &it.collective, it.span.bytes()))
            .collect();
        if let Some((ranks, text)) = differing(&said) {
            let text = format!(
                "the ranks of this host do not agree on collective {}: {text}",
                self.taken
            );
            return Some(Err(Mismatch { ranks, text }));
        }
        self.taken += 1;
        Some(Ok(all))
    }

    /// What is missing of the oldest collective that some have brought.
    pub(super) fn incomplete(&self) -> Option<Incomplete> {
        let fronts = self.queues.iter().filter_map(VecDeque::front);
        let oldest = fronts.min_by_key(|it| it.at)?;
        let ranks = (self.first..).zip(&self.queues);
        let missing = ranks.filter(|(_, queue)| queue.is_empty());
        Some(Incomplete {
            name: oldest.collective.name.clone(),
            since: oldest.at,
            missing: missing.map(|(rank, _)| rank).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tally_session::CollectiveKind;

    fn brought(ticket: u64, kind: CollectiveKind, at: Instant) -> Brought {
        let name = format!("c{ticket}");
        let collective = Collective {
            kind,
            ..Collective::barrier(name)
        };
        Brought {
            ticket,
            collective,
            span: Span::empty(),
            at,
        }
    }

    #[test]
    fn a_collective_is_due_when_all_have_brought_it() {
        let now = Instant::now();
        let barrier = |ticket, ms| {
            let at = now + Duration::from_millis(ms);
            brought(ticket, CollectiveKind::Barrier, at)
        };
        let mut gather = Gather::new(4, 3);
        assert_eq!(gather.incomplete(), None);
        gather.push(1, barrier(0, 0));
        gather.push(1, barrier(1, 1));
        gather.push(0, barrier(0, 2));
        assert!(gather.pop().is_none());
        let waits = Incomplete {
            name: "c0".into(),
            since: now,
            missing: vec![6],
        };
        assert_eq!(gather.incomplete(), Some(waits));
        gather.push(2, barrier(0, 3));
        let tickets = |all: Vec<Brought>| all.iter().map(|it| it.ticket).collect::<Vec<_>>();
        assert_eq!(gather.pop().map(|it| it.map(tickets)), Some(Ok(vec![0; 3])));
        assert!(gather.pop().is_none());
        let waits = Incomplete {
            name: "c1".into(),
            since: now + Duration::from_millis(1),
            missing: vec![4, 6],
        };
        assert_eq!(gather.incomplete(), Some(waits));
    }

    #[test]
    fn ranks_that_differ_are_named_with_what_they_bring() {
        let now = Instant::now();
        let mut gather = Gather::new(4, 3);
        gather.push(0, brought(0, CollectiveKind::Barrier, now));
        gather.push(1, brought(0, CollectiveKind::Sum, now));
        gather.push(2, brought(0, CollectiveKind::Barrier, now));
        let mismatch = gather.pop().and_then(Result::err).expect("they differ");
        assert_eq!(mismatch.ranks, [5]);
        assert_eq!(
            mismatch.text,
            "the ranks of this host do not agree on collective 0: ranks 4, 6 bring a barrier called \"c0\", rank 5 \
             brings a sum of 0 I8 called \"c0\""
        );
    }

    #[test]
    fn one_rank_waits_for_none() {
        let mut gather = Gather::new(3, 1);
        gather.push(0, brought(0, CollectiveKind::Barrier, Instant::now()));
        assert!(matches!(gather.pop(), Some(Ok(all)) if all.len() == 1));
        assert_eq!(gather.incomplete(), None);
    }
}
