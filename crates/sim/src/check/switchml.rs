//! A session of SwitchML beside the jobs: every result is the sum, and every client gets all.
//!
//! Its links lose and damage frames, and keep their order: the protocol cannot tell a copy that is
//! delayed by two packets of its slot from a new contribution. A restart of the switch ends the
//! session, as its controller would, and another one begins with other secrets.

use super::data::Contributor;
use super::findings::{Checker, Findings};
use super::options::SwitchmlOptions;
use super::options::fabric::NEAR;
use crate::address::{Address, HostId, Node, SessionId};
use crate::host::Kind;
use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::switchml::{Client, Plan};
use crate::world::World;
use std::time::Duration;
use tally_engine::switchml::SessionId as BoundId;
use tally_wire::Time;

/// Some client has a result at least this often when nothing goes wrong: hundreds of timeouts.
const PATIENCE: Duration = Duration::from_secs(3);
/// UDP port of all clients.
const CLIENT_PORT: u16 = 48_000;

/// The session and its clients.
pub struct Session {
    options: SwitchmlOptions,
    workers: Vec<Address>,
    clients: Vec<SessionId>,
    /// The present one.
    plan: Option<Plan>,
    /// Sessions so far.
    begun: u64,
    /// Results of all clients when there was progress last, and when that was.
    progress: (u64, Time),
}

impl Session {
    /// Connects the clients' hosts to these switches, by rank.
    pub fn new(
        world: &mut World<Contributor>,
        options: SwitchmlOptions,
        link: LinkConfig,
        nodes: &[Node],
    ) -> Self {
        let mut link = link;
        link.faults.duplicate_ppm = 0;
        link.faults.reorder_ppm = 0;
        let host = |&node: &Node| Address {
            host: world.add_host(node, link, link, Duration::ZERO),
            udp_port: CLIENT_PORT,
        };
        Self {
            workers: nodes.iter().map(host).collect(),
            options,
            clients: Vec::new(),
            plan: None,
            begun: 0,
            progress: (0, Time(0)),
        }
    }

    /// Their hosts.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> {
        self.workers.iter().map(|worker| worker.host)
    }

    /// Begins a session, after the switch has started.
    pub fn begin(&mut self, world: &mut World<Contributor>, rng: &mut Rng, findings: &Findings) {
        for client in self.clients.drain(..) {
            world.kill(client);
        }
        if let Some(plan) = self.plan.take() {
            world.unbind_switchml(&plan);
        }
        self.begun += 1;
        self.progress = (0, world.now);
        let SwitchmlOptions {
            size,
            slots,
            packets,
            ..
        } = self.options;
        let plan = Plan::new(
            NEAR,
            BoundId(self.begun),
            size,
            &self.workers,
            slots,
            packets,
            rng,
        );
        let bound = world.bind_switchml(&plan);
        findings.require(bound, Checker::Outcome, || {
            "no room for a session of SwitchML".to_owned()
        });
        for (rank, &worker) in self.workers.iter().enumerate() {
            let client = world.start_switchml(worker, plan.clone(), rank);
            self.clients.push(client);
        }
        self.plan = Some(plan);
    }

    fn clients<'a>(&self, world: &'a World<Contributor>) -> impl Iterator<Item = &'a Client> {
        let clients = self.clients.iter();
        clients.filter_map(|&id| match &world.session(id).kind {
            Kind::Switchml(client) => Some(&**client),
            _ => None,
        })
    }

    /// Whether every client has all its results.
    pub fn is_done(&self, world: &World<Contributor>) -> bool {
        self.clients(world).all(Client::is_done)
    }

    /// Looks for results that are no sums, and for clients that get no results.
    ///
    /// The latter from `quiet` on, when faults have ended.
    pub fn look(&mut self, world: &World<Contributor>, findings: &Findings, quiet: Option<Time>) {
        let results = self.clients(world).map(|client| u64::from(client.results));
        let results = results.sum();
        if results != self.progress.0 || self.is_done(world) {
            self.progress = (results, world.now);
        }
        let since = quiet.map(|quiet| quiet.max(self.progress.1));
        let waits = since.is_some_and(|since| world.now.since(since) > PATIENCE);
        findings.require(!waits, Checker::Starvation, || {
            format!("SwitchML has had no result since {} ns", self.progress.1.0)
        });
        for client in self.clients(world) {
            if let Some(wrong) = &client.wrong {
                findings.report(Checker::ExactSum, || format!("SwitchML: {wrong}"));
            }
        }
    }

    /// Events that it may cause, at most.
    pub fn events_max(&self) -> u64 {
        self.begun * u64::from(self.options.packets) * u64::from(self.options.workers) * 100
    }
}
