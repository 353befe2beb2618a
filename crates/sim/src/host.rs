//! Hosts, and the sessions that run on them: real workers and parameter servers.
//!
//! A host has one cable to the switch, which its sessions share. Sessions are asked for datagrams as
//! long as the cable has less than `ahead` waiting, as a socket with a small buffer would; 0 lets them
//! write as much as they like. A worker's data and results are the business of its [`Data`].

use crate::frame::{Address, HostId};
use crate::link::Link;
use crate::switchml::Client;
use std::time::Duration;
use tally_endpoint::{Gradients, Ps, Worker};
use tally_wire::{JobId, Time};

/// A session of the world, by number. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u32);

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
    /// A client of SwitchML.
    Switchml(Box<Client>),
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
    /// When it will be woken.
    pub(crate) wake_at: Option<Time>,
}

/// A machine with one cable.
pub struct Host {
    /// Which.
    pub id: HostId,
    /// To the switch.
    pub uplink: Link,
    /// Its sessions, also those that will never come back.
    pub sessions: Vec<SessionId>,
    /// How much may wait at the cable before sessions are not asked any more; zero: whatever they
    /// have.
    pub ahead: Duration,
    /// An event is on its way that asks them again.
    pub(crate) is_armed: bool,
    /// Until then its processes do not run, and what arrives waits: a straggler.
    pub asleep_until: Time,
    /// Frames that came for nobody.
    pub unclaimed: u64,
}
