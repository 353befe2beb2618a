//! Fabrics of switches that run the production code, in one thread and virtual time.

mod hello;
mod topologies;

use super::*;
use crate::forwarding::fabric::Link as Planned;
use crate::forwarding::{FloodLimits, Verdict};
use crate::{DropReason, Forwarding, ForwardingConfig};
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
/// Time of one step of the world.
const STEP: u64 = 10 * MS;
const KEY: &str = "8d1f0a6c2b7e4935a0c1d2e3f4051627";

fn keys() -> FabricKeys {
    FabricKeys {
        key: KEY.parse().unwrap(),
        previous: None,
    }
}

/// A port of a switch.
type End = (usize, u16);

struct Switch {
    fabric: Fabric,
    forwarding: Forwarding,
    events: Vec<FabricEvent>,
    is_on: bool,
}

/// One wire; a cut one carries nothing, and its ends have no carrier.
#[derive(Clone, Debug)]
struct Wire {
    ends: [End; 2],
    is_cut: bool,
}

struct World {
    switches: Vec<Switch>,
    wires: Vec<Wire>,
    /// Each host with its port; its number is its MAC's.
    hosts: Vec<End>,
    now: u64,
    /// Frames of a flood or flow that are on their way at most: more is a loop.
    bound: usize,
}

/// How switches are wired: names, hosts of each, and links from lower to upper ones.
#[derive(Clone, Debug, Default)]
struct Topology {
    hosts: Vec<usize>,
    links: Vec<(usize, usize)>,
}

fn name(at: usize) -> String {
    format!("switch{at}")
}

fn host_mac(n: usize) -> Mac {
    Mac([2, 0, 0, 1, 0, n as u8])
}

fn switch_mac(at: usize) -> Mac {
    Mac([2, 0, 0, 2, 0, at as u8])
}

fn fabric_config(at: usize, plan: Plan, session: u64) -> FabricConfig {
    FabricConfig {
        name: name(at),
        mac: switch_mac(at),
        ip: [10, 85, 0, at as u8].into(),
        udp_port: 31249,
        keys: keys(),
        plan,
        session,
    }
}

fn plan_of(topology: &Topology, at: usize) -> Plan {
    let links = topology
        .links
        .iter()
        .scan(vec![0_u16; topology.hosts.len()], |used, ends| {
            let ports = [ends.0, ends.1].map(|end| {
                used[end] += 1;
                used[end] - 1
            });
            Some((*ends, ports))
        });
    let links = links.filter_map(|((lower, upper), ports)| {
        let link = |port: u16, other, is_up| Planned {
            port: PortId(port),
            switch: name(other),
            is_up,
        };
        match at {
            _ if at == lower => Some(link(ports[0], upper, true)),
            _ if at == upper => Some(link(ports[1], lower, false)),
            _ => None,
        }
    });
    Plan::new(links)
}

impl World {
    fn new(topology: &Topology) -> Self {
        let mut used = vec![0_u16; topology.hosts.len()];
        let mut next = |at: usize| {
            used[at] += 1;
            (at, used[at] - 1)
        };
        let wires = topology.links.iter().map(|&(lower, upper)| Wire {
            ends: [next(lower), next(upper)],
            is_cut: false,
        });
        let wires: Vec<_> = wires.collect();
        let mut hosts = Vec::new();
        for (at, count) in topology.hosts.iter().enumerate() {
            hosts.extend((0..*count).map(|_| next(at)));
        }
        let switches = (0..topology.hosts.len()).map(|at| Switch {
            fabric: Fabric::new(fabric_config(at, plan_of(topology, at), 1 + at as u64)),
            forwarding: forwarding(at, &plan_of(topology, at), used[at]),
            events: Vec::new(),
            is_on: true,
        });
        Self {
            switches: switches.collect(),
            wires,
            hosts,
            now: 0,
            bound: 4096,
        }
    }

    fn now(&self) -> Time {
        Time(self.now)
    }

    /// Where a frame that leaves by a port arrives.
    fn across(&self, from: End) -> Option<End> {
        let wire = self.wires.iter().find(|it| it.ends.contains(&from))?;
        let [a, b] = wire.ends;
        let to = if a == from { b } else { a };
        let is_on = |end: End| self.switches[end.0].is_on;
        (!wire.is_cut && is_on(a) && is_on(b)).then_some(to)
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms * MS / STEP {
            self.now += STEP;
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.now();
        for at in 0..self.switches.len() {
            let cut: Vec<_> = self
                .wires
                .iter()
                .flat_map(|it| it.ends.map(|end| (end, it.is_cut)))
                .filter(|((switch, _), _)| *switch == at)
                .collect();
            let switch = &mut self.switches[at];
            if !switch.is_on {
                continue;
            }
            for ((_, port), is_cut) in cut {
                switch.fabric.set_carrier(now, PortId(port), !is_cut);
            }
            for (port, frame) in switch.forwarding.ports().take_fabric() {
                switch.fabric.receive(now, port, &frame);
            }
            for action in switch.fabric.poll(now) {
                self.carry_out(at, action);
            }
            let switch = &mut self.switches[at];
            let changes = switch.forwarding.macs().changes();
            if switch.fabric.announces(now, changes) {
                let entries = switch
                    .forwarding
                    .macs()
                    .entries((now.0 / 1_000_000_000) as u32, 9999);
                switch.fabric.announce(now, changes, &entries);
            }
        }
    }

    fn carry_out(&mut self, at: usize, action: FabricAction) {
        let switch = &mut self.switches[at];
        match action {
            FabricAction::Forward(table) => switch.forwarding.set_fabric(table),
            FabricAction::Forget(place) => switch.forwarding.forget(place),
            FabricAction::Learn(place, mac, age_s) => {
                switch
                    .forwarding
                    .learn_told(Time(self.now), place, mac, age_s);
            }
            FabricAction::Say(event) => switch.events.push(event),
            FabricAction::Send(port, frame) => {
                if let Some((to, port)) = self.across((at, port.0)) {
                    let decided = self.decide(to, port, &mut frame.to_vec());
                    assert_eq!(decided, Err(DropReason::LinkLocal));
                }
            }
        }
    }

    fn decide(&self, at: usize, port: u16, frame: &mut [u8]) -> Result<Verdict, DropReason> {
        (self.switches[at].forwarding).classify(self.now(), PortId(port), frame, &())
    }

    /// Sends a frame of a host; how often each host got it.
    fn send(&self, from: usize, frame: &[u8]) -> BTreeMap<usize, usize> {
        let mut got = BTreeMap::new();
        let mut flying = vec![self.hosts[from]];
        let mut hops = 0;
        while let Some((at, port)) = flying.pop() {
            hops += 1;
            assert!(hops < self.bound, "a loop: {hops} hops of one frame");
            let ports = match self.decide(at, port, &mut frame.to_vec()) {
                Ok(Verdict::Forward(to)) => vec![to.0],
                Ok(Verdict::Flood) => {
                    let forwarding = &self.switches[at].forwarding;
                    let all = 0..self.ports_of(at);
                    let floods =
                        |to: &u16| *to != port && forwarding.may_flood(PortId(port), PortId(*to));
                    all.filter(floods).collect()
                }
                _ => Vec::new(),
            };
            for to in ports {
                if let Some(host) = self.hosts.iter().position(|end| *end == (at, to)) {
                    *got.entry(host).or_default() += 1;
                } else {
                    flying.extend(self.across((at, to)));
                }
            }
        }
        got
    }

    fn ports_of(&self, at: usize) -> u16 {
        let ends = self.wires.iter().flat_map(|it| it.ends);
        let ends = ends.chain(self.hosts.iter().copied());
        ends.filter(|(switch, _)| *switch == at).count() as u16
    }

    fn broadcast(&self, from: usize, tag: u16) -> BTreeMap<usize, usize> {
        self.send(from, &packet(from, None, tag))
    }

    /// Gives a frame of the fabric's own to a switch, as one of its first link.
    fn receive(&mut self, at: usize, frame: &[u8]) {
        let now = self.now();
        self.switches[at].fabric.receive(now, PortId(0), frame);
    }

    /// A new process of a switch, which remembers nothing.
    fn restart(&mut self, topology: &Topology, at: usize, session: u64) {
        let plan = plan_of(topology, at);
        let ports = self.ports_of(at);
        self.switches[at].fabric = Fabric::new(fabric_config(at, plan.clone(), session));
        self.switches[at].forwarding = forwarding(at, &plan, ports);
        self.switches[at].is_on = true;
    }
}

fn forwarding(at: usize, plan: &Plan, ports: u16) -> Forwarding {
    let config = ForwardingConfig {
        mac: switch_mac(at),
        ip: [10, 85, 0, at as u8].into(),
        ports,
        ageing_s: 300,
        addresses: 64,
        floods_per_s: FloodLimits::each(0),
        answers_per_s: 0,
        seed: 0x9e37_79b9_7f4a_7c15 ^ (at as u64) << 9,
    };
    Forwarding::in_fabric(&config, plan, FloodLimits::each(0))
}

/// A UDP datagram from one host to another, or to all.
fn packet(from: usize, to: Option<usize>, port: u16) -> Vec<u8> {
    let destination = to.map_or(Mac::BROADCAST, host_mac);
    let to = to.map_or(255, |to| to as u8);
    let mut frame = [&destination.0[..], &host_mac(from).0, &[8, 0]].concat();
    frame.extend([
        0x45, 0, 0, 40, 0, 7, 0, 0, 64, 17, 0, 0, 10, 84, 0, from as u8, 10, 84, 0, to,
    ]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 9, 0, 20, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// That many leaves with that many hosts each below that many spines, with so many links each.
fn leaf_spine(spines: usize, leaves: usize, hosts: usize, links: usize) -> Topology {
    let mut topology = Topology {
        hosts: vec![hosts; leaves],
        links: Vec::new(),
    };
    topology.hosts.extend(vec![0; spines]);
    for leaf in 0..leaves {
        for spine in 0..spines {
            topology.links.extend(vec![(leaf, leaves + spine); links]);
        }
    }
    topology
}

/// Two pods of two leaves and two middle switches each, and two cores above all.
fn three_tiers(hosts: usize) -> Topology {
    let mut topology = Topology {
        hosts: vec![hosts, hosts, hosts, hosts, 0, 0, 0, 0, 0, 0],
        links: Vec::new(),
    };
    for pod in [0, 2] {
        for (leaf, middle) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            topology.links.push((pod + leaf, 4 + pod + middle));
        }
    }
    for middle in 4..8 {
        topology.links.extend([(middle, 8), (middle, 9)]);
    }
    topology
}
