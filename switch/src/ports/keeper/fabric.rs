//! Links to other switches: hellos that come and go, and what follows from them.

use super::Keeper;
use crate::config::Config;
use crate::fabric::{self, FabricFacts};
use crate::log;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::fabric::{Fabric, FabricAction, FabricEvent};
use tally_engine::{Command, PortId};
use tally_wire::Time;

/// How often neighbours are listened to.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// Addresses told to switches above at most.
const TOLD_MAX: usize = 1 << 16;

/// What the thread has of the fabric.
pub(super) struct Links {
    fabric: Fabric,
    next_facts: Time,
}

impl Links {
    pub(super) fn new(config: &Config, session: u64) -> Option<Self> {
        let fabric = fabric::start(config, session)?;
        Some(Self {
            fabric,
            next_facts: Time(0),
        })
    }

    pub(super) fn has(&self, port: PortId) -> bool {
        self.fabric.has(port)
    }
}

impl Keeper {
    /// Listens to neighbours, and says to them what is due.
    pub(super) fn look_at_fabric(&mut self, now: Time) {
        let Some(links) = &mut self.fabric else {
            return;
        };
        for (at, port) in self.ports.iter().enumerate() {
            let is_active = port.is_active();
            (links.fabric).set_carrier(now, PortId(at as u16), is_active);
        }
        let forwarding = &self.with.forwarding;
        while let Some((port, frame)) = forwarding.ports().take_fabric() {
            links.fabric.receive(now, port, &frame);
        }
        let changes = forwarding.macs().changes();
        if links.fabric.announces(now, changes) {
            let now_s = (now.0 / 1_000_000_000) as u32;
            let entries = forwarding.macs().entries(now_s, TOLD_MAX);
            links.fabric.announce(now, changes, &entries);
        }
        let actions = links.fabric.poll(now);
        let is_news = actions
            .iter()
            .any(|action| matches!(action, FabricAction::Say(_) | FabricAction::Forward(_)));
        if is_news || now >= links.next_facts {
            links.next_facts = now.after(super::LOOK);
            self.with.fabric.set(FabricFacts {
                links: links.fabric.link_status(now),
                neighbours: links.fabric.neighbour_status(),
            });
        }
        for action in actions {
            self.carry_out_fabric(now, action);
        }
    }

    fn carry_out_fabric(&mut self, now: Time, action: FabricAction) {
        let forwarding = &mut self.with.forwarding;
        match action {
            FabricAction::Send(port, frame) => self.send(port, &frame),
            FabricAction::Forward(table) => {
                forwarding.set_fabric(Arc::clone(&table));
                self.with.bus.send(|| {
                    let command: Command<_, _> = Command::Fabric(Arc::clone(&table));
                    command
                });
            }
            FabricAction::Forget(place) => forwarding.forget(place),
            FabricAction::Learn(place, mac, age_s) => {
                forwarding.learn_told(now, place, mac, age_s);
            }
            FabricAction::Say(event) => {
                let name = |port: PortId| {
                    let port = self.ports.get(usize::from(port.0));
                    port.map_or("", |port| port.section.label())
                };
                log::line("fabric", text(&event, name));
            }
        }
    }

    /// Ports whose probes came back by a link to a switch: a loop joins them with a port of another
    /// switch.
    pub(super) fn probed_through_fabric(&self) -> Vec<PortId> {
        let Some(links) = &self.fabric else {
            return Vec::new();
        };
        let probes = &self.with.forwarding.ports().probes;
        let ports = (0..self.ports.len()).map(|at| PortId(at as u16));
        let ports = ports.filter(|&port| links.has(port));
        ports.filter_map(|port| probes.take(port).from).collect()
    }

    /// Whether a switch of the fabric is at the other end of a port.
    pub(super) fn leads_to_switch(&self, at: usize) -> bool {
        let port = PortId(at as u16);
        self.fabric.as_ref().is_some_and(|links| links.has(port))
    }
}

fn text<'a>(event: &FabricEvent, name: impl Fn(PortId) -> &'a str) -> String {
    match event {
        FabricEvent::Alive(port, switch) => {
            format!("port {}: link to switch {switch} is alive", name(*port))
        }
        FabricEvent::Dead(port, switch, lived, by_carrier) => {
            let why = match by_carrier {
                true => "its interface is down",
                false => "no hello came",
            };
            format!(
                "port {}: link to switch {switch} is dead after {:.1} s: {why}",
                name(*port),
                lived.as_secs_f64()
            )
        }
        FabricEvent::Wrong(port, switch, problem) => format!(
            "port {}: expected switch {switch}, found {problem}",
            name(*port)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_engine::fabric::Problem;

    #[test]
    fn events_name_port_and_both_switches() {
        let name = |_| "up1";
        let lived = Duration::from_millis(1250);
        let event = FabricEvent::Dead(PortId(0), "spine1".into(), lived, false);
        let dead = "port up1: link to switch spine1 is dead after 1.2 s: no hello came";
        assert_eq!(text(&event, name), dead);
        let problem = Problem::Name("spine2".into());
        let event = FabricEvent::Wrong(PortId(0), "spine1".into(), problem);
        assert_eq!(
            text(&event, name),
            "port up1: expected switch spine1, found switch `spine2`; look at the cable and `fabric.links`"
        );
    }
}
