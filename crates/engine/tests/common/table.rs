//! SwitchML's table as plainly as it can be said: a model of a shard that remembers every
//! contribution and sums them anew for each request. Shares no code with the engine but its
//! types.

use std::collections::{BTreeMap, BTreeSet};
use tally_engine::switchml::{Arrival, Destination, Route, Session, SwitchmlConfig};
use tally_engine::{DropReason, PortId};
use tally_wire::switchml::Header;

/// What a frame leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Counted, and no more.
    Dropped(DropReason),
    /// Part of a sum that others are missing from.
    Added,
    /// This header and this sum, to these.
    Sent(Vec<Destination>, Header, Vec<u8>),
}

#[derive(Clone, Debug, Default)]
struct Set {
    /// Who sent here last.
    here: BTreeSet<usize>,
    /// What all ranks said, since none had sent here last.
    said: BTreeMap<usize, (Vec<u8>, [i8; 2])>,
}

impl Set {
    fn sum(&self) -> Vec<u8> {
        let elements = self.said.values().next().map_or(0, |(p, _)| p.len() / 4);
        let element = |payload: &[u8], at: usize| {
            let bytes = payload[4 * at..4 * at + 4].iter();
            let unsigned = bytes.fold(0i64, |v, byte| v * 256 + i64::from(*byte));
            if unsigned >= 1 << 31 {
                unsigned - (1 << 32)
            } else {
                unsigned
            }
        };
        let sums = (0..elements).map(|at| {
            let exact: i64 = self.said.values().map(|(p, _)| element(p, at)).sum();
            exact.rem_euclid(1 << 32) as u32
        });
        sums.flat_map(u32::to_be_bytes).collect()
    }

    fn exponents(&self) -> [i8; 2] {
        let most = |at: usize| self.said.values().map(|(_, e)| e[at]).max().unwrap_or(0);
        [most(0), most(1)]
    }
}

#[derive(Clone, Debug)]
struct Bound {
    session: Session,
    ports: BTreeMap<usize, u16>,
    /// Two ports had one worker's secret.
    is_copied: bool,
    sets: BTreeMap<(u16, bool), Set>,
    /// By slot and rank.
    senders: BTreeMap<(u16, usize), (PortId, u16, u16)>,
}

/// The second port by which frames of a host come that is known at the first, behind other
/// switches.
pub const WAYS: u16 = 1000;

impl Bound {
    fn kept(&self) -> u32 {
        let kept = self.sets.values().filter(|set| !set.here.is_empty());
        kept.count() as u32
    }

    fn destination(&self, slot: u16, rank: usize) -> Destination {
        let (port, udp_port, own_port) = self.senders[&(slot, rank)];
        Destination {
            port,
            mac: self.session.workers[rank].mac,
            ip: self.session.workers[rank].ip,
            udp_port,
            own_port,
            own_mac: self.session.switch_macs[rank],
        }
    }
}

/// By slot and set: ranks that were there last, and ranks that are in the sum.
pub type Shape = Vec<((u16, bool), Vec<usize>, Vec<usize>)>;

/// A shard.
#[derive(Clone, Debug)]
pub struct Table {
    config: SwitchmlConfig,
    /// Oldest first.
    bound: Vec<Bound>,
}

impl Table {
    pub fn new(config: SwitchmlConfig) -> Self {
        let bound = Vec::new();
        Self { config, bound }
    }

    pub fn bind(&mut self, session: Session) -> bool {
        self.unbind(session.id.0);
        if self.bound.len() == self.config.sessions {
            return false;
        }
        self.bound.push(Bound {
            session,
            ports: BTreeMap::new(),
            is_copied: false,
            sets: BTreeMap::new(),
            senders: BTreeMap::new(),
        });
        true
    }

    pub fn unbind(&mut self, id: u64) {
        self.bound.retain(|bound| bound.session.id.0 != id);
    }

    /// Sessions' ranks, and the port that each spoke from first.
    pub fn spoken(&self) -> Vec<(u64, usize, u16)> {
        let of = |bound: &Bound| {
            let id = bound.session.id.0;
            let ports = bound.ports.iter();
            ports
                .map(|(&rank, &port)| (id, rank, port))
                .collect::<Vec<_>>()
        };
        self.bound.iter().flat_map(of).collect()
    }

    /// What another shard knows of it.
    pub fn note_spoken(&mut self, spoken: &[(u64, usize, u16)]) {
        for &(id, rank, port) in spoken {
            let bound = self.bound.iter_mut().find(|b| b.session.id.0 == id);
            let bound = bound.expect("a bound session");
            bound.ports.entry(rank).or_insert(port);
        }
    }

    /// The port at which a station is known, if its frames do not come by this one.
    pub fn other_port(&self, route: &Route, port: PortId) -> Option<PortId> {
        let seats = self.bound.iter().rev();
        let mut seats = seats.filter_map(|bound| {
            let mut workers = bound.session.workers.iter();
            Some((bound, workers.rposition(|it| *it == route.from)?))
        });
        let (bound, rank) = seats.next()?;
        let known = *bound.ports.get(&rank)?;
        (known % WAYS != port.0 % WAYS).then_some(PortId(known))
    }

    /// Buffers that are kept.
    pub fn kept(&self) -> u32 {
        self.bound.iter().map(Bound::kept).sum()
    }

    /// Sums of a session that lack others, by rank how many lack it.
    pub fn lacking(&self, id: u64) -> Vec<u32> {
        let bound = self.bound.iter().find(|b| b.session.id.0 == id);
        let bound = bound.expect("a bound session");
        let ranks = bound.session.workers.len();
        let begun = |set: &&Set| !set.here.is_empty() && set.said.len() < ranks;
        let lacks = |rank: usize| {
            let sets = bound.sets.values().filter(begun);
            sets.filter(|set| !set.said.contains_key(&rank)).count() as u32
        };
        (0..ranks).map(lacks).collect()
    }

    /// Who is where, and in which sum, without what they said.
    pub fn shape(&self) -> Shape {
        let sets = self.bound.iter().flat_map(|bound| &bound.sets);
        let sets = sets.filter(|(_, set)| !set.here.is_empty());
        sets.map(|(key, set)| {
            let said = set.said.keys().copied().collect();
            (*key, set.here.iter().copied().collect(), said)
        })
        .collect()
    }

    /// The verdict on a frame from a station that came so.
    pub fn arrive(
        &mut self,
        route: &Route,
        arrival: &Arrival,
        header: &Header,
        payload: &[u8],
    ) -> Verdict {
        use DropReason as Why;
        let seats = self.bound.iter().enumerate().rev();
        let mut seats = seats.filter_map(|(at, bound)| {
            let is_it = |s: &tally_engine::switchml::HostAddress| *s == route.from;
            Some((at, bound.session.workers.iter().rposition(is_it)?))
        });
        let Some((at, rank)) = seats.next() else {
            return Verdict::Dropped(Why::SwitchmlStation);
        };
        drop(seats);
        let (kept, share) = (
            self.kept(),
            self.config.held / 2 / self.config.sessions as u32,
        );
        let others = self.bound.iter().enumerate().filter(|(n, _)| *n != at);
        let unused: u32 = others.map(|(_, b)| share.saturating_sub(b.kept())).sum();
        let absent = (self.config.sessions - self.bound.len()) as u32;
        let reserved = unused + absent * share;
        let bound = &mut self.bound[at];
        if bound.session.switch_macs[rank] != route.to {
            return Verdict::Dropped(Why::SwitchmlForged);
        }
        if header.size != bound.session.size {
            return Verdict::Dropped(Why::SwitchmlSize);
        }
        if header.slot >= self.config.slots {
            return Verdict::Dropped(Why::SwitchmlSlot);
        }
        if header.slot % u16::from(self.config.shards) != u16::from(self.config.shard) {
            return Verdict::Dropped(Why::Shard);
        }
        let port = *bound.ports.entry(rank).or_insert(arrival.port.0);
        bound.is_copied |= port % WAYS != arrival.port.0 % WAYS;
        if bound.is_copied {
            return Verdict::Dropped(Why::SwitchmlPort);
        }
        let slot = header.slot;
        let sender = (arrival.port, arrival.udp_port, arrival.own_port);
        bound.senders.insert((slot, rank), sender);

        let own = bound.kept();
        let all = bound.session.workers.len();
        let set = bound.sets.entry((slot, header.set)).or_default();
        if set.here.contains(&rank) {
            if set.said.len() < all {
                return Verdict::Dropped(Why::Duplicate);
            }
            let answer = Header {
                exponents: set.exponents(),
                ..*header
            };
            let sum = set.sum();
            return Verdict::Sent(vec![bound.destination(slot, rank)], answer, sum);
        }
        if set.here.is_empty() {
            if own >= share && kept + reserved >= self.config.held {
                return Verdict::Dropped(Why::SwitchmlHeld);
            }
            set.said.clear();
        } else if set.said.contains_key(&rank) {
            return Verdict::Dropped(Why::SwitchmlSet);
        }
        set.here.insert(rank);
        set.said.insert(rank, (payload.to_vec(), header.exponents));
        let set = set.clone();
        if let Some(other) = bound.sets.get_mut(&(slot, !header.set)) {
            other.here.remove(&rank);
        }
        if set.said.len() < all {
            return Verdict::Added;
        }
        let result = Header {
            exponents: set.exponents(),
            ..*header
        };
        let to = (0..all).map(|rank| bound.destination(slot, rank)).collect();
        Verdict::Sent(to, result, set.sum())
    }
}
