//! Where the ranks of a job meet: Broadcast and Barrier of one listen address.
//!
//! Neither call says of which job it is. So the ranks that Broadcast at the same time are one job
//! that *forms*. Two jobs whose ranks arrive crosswise would form two that are mixed, and sum what
//! does not belong together. What excludes that:
//!
//! * with a list of hosts in the configuration, a rank comes from its host;
//! * without one, the address is one job's from its first Broadcast until its connections are
//!   closed. Calls of other hosts are refused meanwhile. Who calls from one of its hosts may be its
//!   worker that was started anew, if it is that station. When all ranks have come, they wait a
//!   moment for the ranks of another job;
//! * a rank that comes twice says that there are two jobs: all are refused, and for a moment every
//!   later call.
//!
//! When all have come they get the root's value, and
//! are a *group* from then on, under that value: a Barrier counts those of the caller's group.
//! Published clients take the value for the session's number, so a connection that comes without a
//! Broadcast gets into the group of the session that it asks for. Those that have done neither
//! share one barrier, as all did in the original.
//!
//! When a connection closes while others wait for its rank, they are told at once, and what
//! they waited for is over: clients end at the first error, so one that starts anew finds nothing
//! of the old attempt.
//!
//! Catch: whether a call is given up before its connection closes, or by it, cannot be told from
//! their order. So a call that was given up leaves its claim standing without a caller, and what
//! happens next decides: the same connection may call again, another may take the claim, or the
//! connection closes and the others hear of it.

mod barrier;

use super::{Answer, CallId, ConnectionId, Meeting, Outbox, Peers, Ranks, Refusal, Strangers};
use crate::switchml::SessionId;
use barrier::{Barrier, StrangersBarrier};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tally_wire::Time;

/// What a Broadcast says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) value: u64,
    pub(super) rank: u32,
    pub(super) workers: u32,
    pub(super) root: u32,
}

/// One listen address.
#[derive(Debug)]
pub(super) struct Rendezvous {
    patience: Duration,
    grace_period: Duration,
    /// The hosts of its ranks; empty: any.
    hosts: Vec<IpAddr>,
    /// Until when all are refused, because two jobs came at once.
    mixed: Option<Time>,
    peers: BTreeMap<ConnectionId, Peer>,
    forming: Option<Formation>,
    groups: BTreeMap<SessionId, Group>,
    strangers: Option<StrangersBarrier>,
}

#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    group: Option<SessionId>,
}

/// Who waits for whom: a connection, and its call unless that was given up.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    connection: ConnectionId,
    call: Option<CallId>,
}

/// A Broadcast that is not complete.
#[derive(Debug)]
struct Formation {
    since: Time,
    workers: u32,
    root: u32,
    /// The root's, once it is there.
    value: u64,
    /// When all had come.
    complete: Option<Time>,
    ranks: BTreeMap<u32, Waiting>,
}

/// The connections of one job.
#[derive(Debug)]
struct Group {
    workers: u32,
    members: BTreeMap<u32, Member>,
    barrier: Option<Barrier>,
    /// Its session has ended, or it came without a Broadcast: the address is not its own.
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    address: SocketAddr,
    /// None when it has closed.
    connection: Option<ConnectionId>,
}

impl Rendezvous {
    pub(super) fn new(patience: Duration, grace_period: Duration, hosts: Vec<IpAddr>) -> Self {
        Self {
            patience,
            grace_period,
            hosts,
            mixed: None,
            peers: BTreeMap::new(),
            forming: None,
            groups: BTreeMap::new(),
            strangers: None,
        }
    }

    pub(super) fn opened(&mut self, connection: ConnectionId, address: SocketAddr) {
        let peer = Peer {
            address,
            group: None,
        };
        self.peers.insert(connection, peer);
    }

    pub(super) fn broadcast(
        &mut self,
        now: Time,
        connection: ConnectionId,
        call: CallId,
        claim: &Claim,
        runs: impl Fn(SessionId) -> bool,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let Some(&Peer { address, .. }) = self.peers.get(&connection) else {
            return Ok(());
        };
        self.check_expected(claim.rank, claim.workers, address.ip())?;
        self.mixed.take_if(|until| *until <= now);
        if self.mixed.is_some() {
            return Err(Refusal::MixedBefore {
                rank: claim.rank,
                quiet: self.grace_period,
            });
        }
        self.check_held(connection, address.ip(), runs)?;
        // If all have given up, what they said binds no other.
        let deserted = |f: &mut Formation| count(f.ranks.values()) == 0;
        drop(self.forming.take_if(deserted));
        let forming = self.forming.get_or_insert_with(|| Formation {
            since: now,
            workers: claim.workers,
            root: claim.root,
            value: 0,
            complete: None,
            ranks: BTreeMap::new(),
        });
        let present = || addresses(&self.peers, &forming.ranks);
        if let Some(other) = forming.ranks.get(&claim.rank)
            && other.connection != connection
            && other.call.is_some()
        {
            let first = self.peers.get(&other.connection).map(|peer| peer.address);
            let why = Refusal::Mixed {
                rank: claim.rank,
                workers: forming.workers,
                first: first.unwrap_or(address),
                second: address,
            };
            fail(&forming.ranks, &why, out);
            self.forming = None;
            self.mixed = (!self.grace_period.is_zero()).then(|| now.after(self.grace_period));
            return Err(why);
        }
        for (what, found, allowed) in [
            ("num_workers", claim.workers, forming.workers),
            ("root", claim.root, forming.root),
        ] {
            if found != allowed {
                return Err(Refusal::Differs {
                    what,
                    found,
                    allowed,
                    present: present(),
                });
            }
        }
        let waiting = Waiting {
            connection,
            call: Some(call),
        };
        if let Some(earlier) = forming.ranks.insert(claim.rank, waiting) {
            again(earlier, Meeting::Broadcast, claim.rank, out);
        }
        if claim.rank == claim.root {
            forming.value = claim.value;
        }
        if count(forming.ranks.values()) == forming.workers {
            // A job of one, and one whose hosts are known, is mixed with no other.
            if forming.workers > 1 && self.hosts.is_empty() && !self.grace_period.is_zero() {
                forming.complete = Some(now);
            } else if let Some(formed) = self.forming.take() {
                self.form(formed, out);
            }
        }
        Ok(())
    }

    /// Whether a rank calls from its host, if the configuration lists them.
    pub(super) fn check_expected(
        &self,
        rank: u32,
        workers: u32,
        found: IpAddr,
    ) -> Result<(), Refusal> {
        let is_all = self.hosts.len() == workers as usize;
        let is_its = is_all && self.hosts.get(rank as usize) == Some(&found);
        if self.hosts.is_empty() || is_its {
            return Ok(());
        }
        Err(Refusal::NotExpected {
            rank,
            workers,
            found,
            allowed: Peers(self.hosts.clone()),
        })
    }

    /// Groups that have the address, but for those in which this connection is.
    fn holders(&self, connection: ConnectionId) -> impl Iterator<Item = (SessionId, &Group)> {
        let all = self.groups.iter();
        let groups = all.filter(|(_, group)| self.hosts.is_empty() && !group.is_over);
        groups
            .map(|(&id, group)| (id, group))
            .filter(move |(_, group)| {
                let mut open = group
                    .members
                    .values()
                    .filter_map(|m| m.connection)
                    .peekable();
                open.peek().is_some() && open.all(|c| c != connection)
            })
    }

    /// Whether a host may Broadcast here: no job has the address, or a running one does in which it
    /// is.
    fn check_held(
        &self,
        connection: ConnectionId,
        host: IpAddr,
        runs: impl Fn(SessionId) -> bool,
    ) -> Result<(), Refusal> {
        let is_in = |group: &Group| group.members.values().any(|m| m.address.ip() == host);
        let mut holders = self.holders(connection);
        let other = holders.find(|&(id, group)| !(runs(id) && is_in(group)));
        other.map_or(Ok(()), |(id, group)| Err(held(id, group)))
    }

    /// Whether a connection may ask for this session here: no other job has the address, or one in
    /// which its station is, as `is_its` says.
    pub(super) fn check_free(
        &self,
        connection: ConnectionId,
        session: SessionId,
        is_its: impl Fn(SessionId) -> bool,
    ) -> Result<(), Refusal> {
        // A connection that did not Broadcast here knows its session from elsewhere.
        let peer = self.peers.get(&connection);
        if peer.is_none_or(|peer| peer.group != Some(session)) {
            return Ok(());
        }
        let mut holders = self.holders(connection);
        let other = holders.find(|&(id, _)| id != session && !is_its(id));
        other.map_or(Ok(()), |(id, group)| Err(held(id, group)))
    }

    /// The host of a rank that Broadcast, or joined, before.
    pub(super) fn host_of(&self, id: SessionId, rank: u32) -> Option<IpAddr> {
        let member = self.groups.get(&id)?.members.get(&rank)?;
        Some(member.address.ip())
    }

    /// Whether a Broadcast has no answer yet.
    pub(super) fn waits(&self, call: CallId) -> bool {
        let forming = self.forming.iter().flat_map(|f| f.ranks.values());
        forming.into_iter().any(|w| w.call == Some(call))
    }

    /// All ranks have come: they learn the value, and are a group.
    fn form(&mut self, formed: Formation, out: &mut Outbox) {
        let id = SessionId(formed.value);
        let mut members = BTreeMap::new();
        for (&rank, waiting) in &formed.ranks {
            self.leave(waiting.connection, out);
            if let Some(peer) = self.peers.get_mut(&waiting.connection) {
                peer.group = Some(id);
                let member = Member {
                    address: peer.address,
                    connection: Some(waiting.connection),
                };
                members.insert(rank, member);
            }
            if let Some(call) = waiting.call {
                out.answer(call, Ok(Answer::Value(formed.value)));
            }
        }
        let group = Group {
            workers: formed.workers,
            members,
            barrier: None,
            is_over: false,
        };
        if let Some(old) = self.groups.insert(id, group) {
            if let Some(barrier) = old.barrier {
                fail(&barrier.ranks, &Refusal::Superseded { session: id }, out);
            }
            // A connection that was in the old one only is in none now.
            let new = &self.groups[&id];
            for (&connection, peer) in &mut self.peers {
                let within = |m: &Member| m.connection == Some(connection);
                if peer.group == Some(id) && !new.members.values().any(within) {
                    peer.group = None;
                }
            }
        }
    }

    /// A connection goes over to another group: those who wait for it in its old one learn it.
    fn leave(&mut self, connection: ConnectionId, out: &mut Outbox) {
        let Some(peer) = self.peers.get_mut(&connection) else {
            return;
        };
        let Some(id) = peer.group.take() else { return };
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let of = |_: &u32, m: &mut Member| m.connection == Some(connection);
        let gone = group.members.extract_if(.., of).map(|(rank, _)| rank).min();
        if let Some(rank) = gone
            && let Some(barrier) = group.barrier.take()
        {
            let why = Refusal::Left {
                left: Ranks(vec![(rank, Some(peer.address))]),
                session: id,
            };
            fail(&barrier.ranks, &why, out);
        }
        if group.members.values().all(|m| m.connection.is_none()) {
            self.groups.remove(&id);
        }
    }

    /// How many workers a group has that Broadcast, or joined, before.
    pub(super) fn workers_of(&self, id: SessionId) -> Option<u32> {
        self.groups.get(&id).map(|group| group.workers)
    }

    /// A connection is a rank of a session.
    pub(super) fn joined(
        &mut self,
        connection: ConnectionId,
        id: SessionId,
        rank: u32,
        workers: u32,
        out: &mut Outbox,
    ) {
        if self
            .peers
            .get(&connection)
            .is_some_and(|peer| peer.group != Some(id))
        {
            self.leave(connection, out);
        }
        let Some(peer) = self.peers.get_mut(&connection) else {
            return;
        };
        peer.group = Some(id);
        let member = Member {
            address: peer.address,
            connection: Some(connection),
        };
        let group = self.groups.entry(id).or_insert_with(|| Group {
            workers,
            members: BTreeMap::new(),
            barrier: None,
            // Without a Broadcast nothing can be mixed.
            is_over: true,
        });
        let before = group.members.insert(rank, member);
        // The connection that had the rank before waits for nothing any more.
        if before.is_some_and(|before| before.connection != Some(connection))
            && let Some(barrier) = &mut group.barrier
            && let Some(Waiting {
                call: Some(call), ..
            }) = barrier.ranks.remove(&rank)
        {
            out.answer(call, Err(Refusal::Superseded { session: id }));
        }
    }

    pub(super) fn abandoned(&mut self, call: CallId) {
        let is_it = |w: &Waiting| w.call == Some(call);
        if let Some(forming) = &mut self.forming
            && forming.ranks.values().any(is_it)
        {
            forming.complete = None;
        }
        let forming = self.forming.iter_mut().flat_map(|f| f.ranks.values_mut());
        let barriers = self.groups.values_mut().filter_map(|g| g.barrier.as_mut());
        let barriers = barriers.flat_map(|b| b.ranks.values_mut());
        let strangers = self.strangers.iter_mut().flat_map(|b| &mut b.callers);
        for waiting in forming.chain(barriers).chain(strangers) {
            if waiting.call == Some(call) {
                waiting.call = None;
            }
        }
    }

    pub(super) fn closed(&mut self, connection: ConnectionId, out: &mut Outbox) {
        let Some(peer) = self.peers.remove(&connection) else {
            return;
        };
        let of = |waiting: &Waiting| waiting.connection == connection;
        let lost = |meeting, rank, workers| Refusal::Lost {
            meeting,
            lost: Ranks(vec![(rank, Some(peer.address))]),
            workers,
        };
        if let Some(mut formed) = self.forming.take_if(|f| f.ranks.values().any(of)) {
            let gone = formed
                .ranks
                .extract_if(.., |_, w| of(w))
                .map(|(rank, _)| rank);
            if let Some(rank) = gone.min() {
                fail(
                    &formed.ranks,
                    &lost(Meeting::Broadcast, rank, formed.workers),
                    out,
                );
            }
        }
        if let Some(mut barrier) = self.strangers.take_if(|b| b.callers.iter().any(of)) {
            barrier.callers.retain(|w| !of(w));
            let why = Refusal::StrangerLost {
                lost: peer.address,
                workers: barrier.workers,
            };
            answer_all(&barrier.callers, &Err(why), out);
        }
        let Some(id) = peer.group else { return };
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let mut gone = None;
        for (&rank, member) in &mut group.members {
            if member.connection == Some(connection) {
                member.connection = None;
                gone = gone.or(Some(rank));
            }
        }
        if let Some(rank) = gone
            && let Some(mut barrier) = group.barrier.take()
        {
            barrier.ranks.retain(|_, w| !of(w));
            fail(
                &barrier.ranks,
                &lost(Meeting::Barrier, rank, group.workers),
                out,
            );
        }
        if group.members.values().all(|m| m.connection.is_none()) {
            self.groups.remove(&id);
        }
    }

    /// A session is no more: its ranks need not wait for each other.
    pub(super) fn session_ended(&mut self, id: SessionId, why: &Refusal, out: &mut Outbox) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.is_over = true;
        if let Some(barrier) = group.barrier.take() {
            fail(&barrier.ranks, why, out);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let forming = self.forming.iter().map(|f| match f.complete {
            Some(complete) => complete.after(self.grace_period),
            None => f.since.after(self.patience),
        });
        let barriers = self.groups.values().filter_map(|g| g.barrier.as_ref());
        let strangers = self.strangers.iter().map(|b| b.since);
        let others = barriers.map(|b| b.since).chain(strangers);
        let others = others.map(|since| since.after(self.patience));
        forming.chain(others).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        let patience = self.patience;
        let late = |since: Time| since.after(patience) <= now;
        let grace_period = self.grace_period;
        let settled =
            |f: &mut Formation| f.complete.is_some_and(|at| at.after(grace_period) <= now);
        if let Some(formed) = self.forming.take_if(settled) {
            self.form(formed, out);
        }
        let waits = |f: &mut Formation| f.complete.is_none() && late(f.since);
        if let Some(formed) = self.forming.take_if(waits) {
            let why = Refusal::Late {
                meeting: Meeting::Broadcast,
                workers: formed.workers,
                patience,
                missing: missing(formed.workers, &formed.ranks, &BTreeMap::new()),
            };
            fail(&formed.ranks, &why, out);
        }
        for group in self.groups.values_mut() {
            if let Some(barrier) = group.barrier.take_if(|b| late(b.since)) {
                let why = Refusal::Late {
                    meeting: Meeting::Barrier,
                    workers: group.workers,
                    patience,
                    missing: missing(group.workers, &barrier.ranks, &group.members),
                };
                fail(&barrier.ranks, &why, out);
            }
        }
        if let Some(barrier) = self.strangers.take_if(|b| late(b.since)) {
            let address = |w: &Waiting| self.peers.get(&w.connection).map(|peer| peer.address);
            let callers = barrier.callers.iter().filter(|w| w.call.is_some());
            let why = Refusal::StrangersLate {
                workers: barrier.workers,
                patience,
                present: Strangers(callers.filter_map(address).collect()),
            };
            answer_all(&barrier.callers, &Err(why), out);
        }
    }
}

#[cfg(test)]
impl Rendezvous {
    /// Whether nothing is left of all that was.
    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
            && self.forming.is_none()
            && self.groups.is_empty()
            && self.strangers.is_none()
    }
}

fn held(session: SessionId, group: &Group) -> Refusal {
    let open = group.members.iter().filter(|(_, m)| m.connection.is_some());
    let present = Ranks(open.map(|(&rank, m)| (rank, Some(m.address))).collect());
    Refusal::AddressHeld { session, present }
}

/// How many of them wait.
fn count<'a>(all: impl IntoIterator<Item = &'a Waiting>) -> u32 {
    all.into_iter().filter(|w| w.call.is_some()).count() as u32
}

fn answer_all<'a>(
    all: impl IntoIterator<Item = &'a Waiting>,
    answer: &Result<Answer, Refusal>,
    out: &mut Outbox,
) {
    for call in all.into_iter().filter_map(|w| w.call) {
        out.answer(call, answer.clone());
    }
}

fn fail(ranks: &BTreeMap<u32, Waiting>, why: &Refusal, out: &mut Outbox) {
    answer_all(ranks.values(), &Err(why.clone()), out);
}

/// An earlier call of the same rank hears that a later one counts.
fn again(earlier: Waiting, meeting: Meeting, rank: u32, out: &mut Outbox) {
    if let Some(call) = earlier.call {
        out.answer(call, Err(Refusal::CalledAgain { meeting, rank }));
    }
}

/// Those who wait, and from where.
fn addresses(peers: &BTreeMap<ConnectionId, Peer>, ranks: &BTreeMap<u32, Waiting>) -> Ranks {
    let waiting = ranks.iter().filter(|(_, w)| w.call.is_some());
    let address = |w: &Waiting| peers.get(&w.connection).map(|peer| peer.address);
    Ranks(waiting.map(|(&rank, w)| (rank, address(w))).collect())
}

/// Those who do not wait, and where they are if that is known.
fn missing(workers: u32, ranks: &BTreeMap<u32, Waiting>, members: &BTreeMap<u32, Member>) -> Ranks {
    let absent = (0..workers).filter(|rank| ranks.get(rank).is_none_or(|w| w.call.is_none()));
    let address = |rank| members.get(&rank).map(|m| m.address);
    Ranks(absent.map(|rank| (rank, address(rank))).collect())
}
