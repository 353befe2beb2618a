//! Hosts, and the sessions that run on them: real workers and parameter servers.
//!
//! A host has one cable, to a port of a switch, which its sessions share. Sessions are asked for
//! datagrams as long as the cable has less than `ahead` waiting, as with a small socket buffer; 0
//! is no limit. A worker's data and results are the business of its [`Data`].

use crate::address::{Address, HostId, Node, Peer, SessionId, SwitchId};
use crate::collectives::Process;
use crate::link::{Link, LinkConfig};
use crate::ring::Member;
use crate::switchml::Client;
use std::time::Duration;
use tally_endpoint::nic::NicOrder;
use tally_endpoint::{Gradients, Ps, Worker};
use tally_engine::PortId;
use tally_wire::{JobId, Time};

/// What a worker contributes, and what it does with results.
pub trait Data: Gradients {
    /// Whether something happened since the last call that the [`App`](crate::world::App) wants to
    /// hear of ([`App::news`](crate::world::App::news)). Asked after each datagram.
    #[inline]
    fn has_news(&mut self) -> bool {
        false
    }
}

/// The protocol's state machine in a session.
pub enum Kind<D> {
    /// A worker and its data.
    Worker(Box<Worker>, D),
    /// A parameter server.
    Ps(Box<Ps>),
    /// A process with a session of collectives.
    Collectives(Box<Process>),
    /// A client of SwitchML.
    Switchml(Box<Client>),
    /// A member of a ring.
    Ring(Box<Member>),
    /// A process that has died.
    Dead,
}

/// A process on a host.
pub struct Session<D> {
    /// Its state machine.
    pub kind: Kind<D>,
    /// The job that it takes part in.
    pub job: JobId,
    /// Where it is.
    pub address: Address,
    /// The switch that aggregates for it.
    pub switch: SwitchId,
    /// When it will be woken.
    pub(crate) wake_at: Option<Time>,
}

/// A machine with one cable.
pub struct Host {
    /// Which.
    pub id: HostId,
    /// The switch and the port that its cable goes to.
    pub at: (Node, PortId),
    /// To the switch.
    pub uplink: Link,
    /// Its sessions; dead ones are taken out.
    pub sessions: Vec<SessionId>,
    /// How much may wait at the cable before sessions are not asked any more; zero: no limit.
    pub ahead: Duration,
    /// An event is on its way that asks them again.
    pub(crate) is_armed: bool,
    /// Which of its sessions sends next when the NIC has room; none: each in its turn.
    pub order: Option<NicOrder>,
    /// Until then its processes do not run, and what arrives waits: a straggler.
    pub asleep_until: Time,
    /// Frames that came for no session.
    pub unclaimed: u64,
}

impl Host {
    pub(crate) fn new(id: HostId, at: (Node, PortId), uplink: LinkConfig, ahead: Duration) -> Self {
        Self {
            id,
            at,
            uplink: Link::new(uplink),
            sessions: Vec::new(),
            ahead,
            is_armed: false,
            order: Some(NicOrder::default()),
            asleep_until: Time(0),
            unclaimed: 0,
        }
    }

    /// The other end of its cable.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.at.0.port(self.at.1)
    }
}
