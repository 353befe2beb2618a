//! The fabric of which a switch is a part, as `switch/src/fabric/thread.rs` drives it: hellos, the
//! table that says where frames go, and where the parents of jobs are.

use super::{Core, Switch};
use crate::events::Event;
use crate::port::Outside;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::fabric::{Fabric, FabricAction, FabricConfig, NeighbourStatus};
use tally_engine::forwarding::FloodLimits;
use tally_engine::forwarding::fabric::Plan;
use tally_engine::{
    Action, Command, Forwarding, ForwardingConfig, JobConfig, Member, ParentAddress, PortId,
};
use tally_wire::fabric::FabricKeys;

/// How often neighbours are listened to.
const TICK: Duration = Duration::from_millis(20);
/// Addresses told to switches above at most.
const TOLD_MAX: usize = 1 << 16;
/// Floods that a link to a switch takes in a second: those of many hosts.
const FLOODS: FloodLimits = FloodLimits::each(2_000);

/// A switch's links to others.
pub(super) struct Links {
    plan: Plan,
    /// Since it started.
    fabric: Option<Fabric>,
    /// As the cores know them.
    parents: BTreeMap<PortId, ParentAddress>,
}

impl Links {
    pub(super) const fn new(plan: Plan) -> Self {
        Self {
            plan,
            fabric: None,
            parents: BTreeMap::new(),
        }
    }

    /// Forgets all that it was told.
    pub(super) fn stop(&mut self) {
        self.fabric = None;
        self.parents.clear();
    }

    pub(super) fn forwarding(&self, config: &ForwardingConfig) -> Forwarding {
        Forwarding::in_fabric(config, &self.plan, FLOODS)
    }

    /// What the cores do not know of the switches above.
    fn news(&mut self, above: &[NeighbourStatus]) -> Vec<(PortId, ParentAddress)> {
        let all = above.iter().flat_map(|switch| {
            let address = ParentAddress::from(switch);
            switch.links.iter().map(move |&port| (port, address))
        });
        all.filter(|&(port, address)| self.parents.insert(port, address) != Some(address))
            .collect()
    }
}

/// Where a job finds its parent, which it has found at `current` so far.
fn find(above: &[NeighbourStatus], job: &JobConfig, current: Option<Member>) -> Option<Member> {
    let parent = job.tree.as_ref()?.parent.as_ref()?;
    let name = parent.switch.as_str();
    let switch = above.iter().find(|it| it.switch == name)?;
    let links = &switch.links;
    let stays = current.map(|it| it.port).filter(|it| links.contains(it));
    let next = || {
        links
            .get(usize::from(job.id.0) % links.len().max(1))
            .copied()
    };
    Some(Member {
        port: stays.or_else(next)?,
        mac: switch.mac,
        ip: switch.ip,
        udp_port: switch.udp_port,
    })
}

impl Switch {
    /// Makes it a part of a fabric, before the first frame or command.
    pub(crate) fn join_fabric(&mut self, plan: Plan) {
        assert!(self.cores.is_empty(), "a running core joins a fabric");
        self.links = Some(Links::new(plan));
    }

    /// Receives and sends hellos, and does what follows from them.
    pub(crate) fn handle_fabric(&mut self, out: &mut Outside<'_>) {
        out.events.push(out.now.after(TICK), Event::Fabric(self.id));
        if !self.is_up {
            return;
        }
        self.ready();
        let Some(mut links) = self.links.take() else {
            return;
        };
        let mut fabric = links.fabric.take().unwrap_or_else(|| {
            let own = self.config.registry.fabric.as_ref();
            let own = own.expect("a switch of a fabric has a name");
            Fabric::new(FabricConfig {
                name: own.name.as_str().to_owned(),
                mac: self.id.mac(),
                ip: self.id.ip(),
                udp_port: self.config.registry.base_port,
                keys: FabricKeys {
                    key: own.key.clone(),
                    previous: own.previous_key.clone(),
                },
                plan: links.plan.clone(),
                session: out.rng.next() | 1,
            })
        });
        self.listen(&links.plan, &mut fabric, out);
        let mut above = fabric.neighbour_status();
        above.retain(|it| it.is_up);
        let actions = self.look_up(&mut links, &above, out);
        links.fabric = Some(fabric);
        self.links = Some(links);
        self.carry_out(actions, out);
    }

    fn listen(&mut self, plan: &Plan, fabric: &mut Fabric, out: &Outside<'_>) {
        let now = out.now;
        for core in &mut self.cores {
            core.core.begin(now);
        }
        for port in plan.ports() {
            fabric.set_carrier(now, port, true);
        }
        let heard = self.forwarding().ports().take_fabric();
        for (port, frame) in heard {
            fabric.receive(now, port, &frame);
        }
        for action in fabric.poll(now) {
            self.follow(action, out);
        }
        let changes = self.forwarding().macs().changes();
        if fabric.announces(now, changes) {
            let now_s = (now.0 / 1_000_000_000) as u32;
            let entries = self.forwarding().macs().entries(now_s, TOLD_MAX);
            fabric.announce(now, changes, &entries);
        }
    }

    /// The tables are of all cores.
    fn forwarding(&self) -> &Forwarding {
        &self.cores[0].core.context.forwarding
    }

    fn follow(&mut self, action: FabricAction, out: &Outside<'_>) {
        match action {
            FabricAction::Send(port, frame) => {
                let core = self.core_of_port(port);
                self.cores[core]
                    .core
                    .command(Command::SendFrame(port, frame));
            }
            FabricAction::Forward(table) => {
                for Core { core, .. } in &mut self.cores {
                    core.command(Command::Fabric(Arc::clone(&table)));
                }
            }
            FabricAction::Forget(place) => self.forwarding().forget(place),
            FabricAction::Learn(place, mac, age_s) => {
                self.forwarding().learn_told(out.now, place, mac, age_s);
            }
            FabricAction::Say(_) => {}
        }
    }

    /// Tells cores and registry where parents are, as far as that has changed.
    fn look_up(
        &mut self,
        links: &mut Links,
        above: &[NeighbourStatus],
        out: &Outside<'_>,
    ) -> Vec<Action> {
        // The cores first: the parent's answer may come at once.
        for (port, address) in links.news(above) {
            for Core { core, .. } in &mut self.cores {
                core.command(Command::Parent(port, Some(address)));
            }
        }
        let mut actions = Vec::new();
        for job in &self.config.jobs {
            if let Some(status) = self.registry.parent(job.id, out.now) {
                let found = find(above, job, status.address);
                actions.extend(self.registry.set_parent_address(out.now, job.id, found));
            }
        }
        actions
    }
}
