//! The network of a plan: namespaces, cables shaped to their rates, and tunnels on the plan's
//! routes.
//!
//! A node forwards by IP. Each circuit has two addresses of its own, one for each end: those of
//! ends that sum are in [`SUMMING`], those of ends that send are in [`SENDING`]. Each node on the
//! circuit's route has a route to both. So frames of gradients and frames of results differ by
//! their network, and a class of HTB limits the first, or both. All other frames are not limited.
//!
//! Cables resolve no neighbours: both ends of a pair have one MAC address, and ARP is off.

use super::Scale;
use super::layout::{Circuit, Layout};
use crate::cluster::leftovers::PREFIX;
use crate::cluster::namespaces::{enter, remove_leftovers};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use tally_planner::check::{limit, opposite};
use tally_planner::{Node, Problem, Resource};

/// Second byte of the addresses of ends that sum, 10.100.0.0/16.
const SUMMING: u8 = 100;
/// Of ends that send. With [`SUMMING`] it is 10.100.0.0/15.
const SENDING: u8 = 101;
/// Headers of a tunnel, and some room.
const TUNNEL_ROOM: u16 = 100;
/// Time of a burst, in seconds.
const BURST_SECONDS: f64 = 2e-3;
/// Frames that may wait for a cable.
const WAITING_FRAMES: u32 = 20_000;
/// What the end of a cable is called at a device.
const CABLE: &str = "cable";

/// Where an interface is: a namespace's role and the interface's name.
type At = (String, String);

/// Namespaces that go away with the value.
pub(super) struct Network {
    roles: BTreeSet<String>,
    shaped: BTreeMap<Resource, At>,
}

/// Lines for `ip -batch` and `tc -batch`, by namespace.
#[derive(Default)]
struct Lines(BTreeMap<String, String>);

impl Lines {
    fn add(&mut self, role: &str, line: &str) {
        let lines = self.0.entry(role.to_owned()).or_default();
        let _ = writeln!(lines, "{line}");
    }

    fn run(&self, program: &str) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|(role, lines)| batch(program, &["-n", &name(role)], lines))
    }
}

/// The name of a namespace.
fn name(role: &str) -> String {
    format!("{PREFIX}{}-{role}", std::process::id())
}

/// Runs a program's lines to their end.
fn batch(program: &str, arguments: &[&str], lines: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).args(["-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn();
    let child = child.as_mut().ok().context(program.to_owned())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(lines.as_bytes())?;
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        std::io::Read::read_to_string(&mut stderr, &mut said)?;
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{command:?}: {}\n{lines}", said.trim());
    }
    Ok(())
}

/// The namespace of a device.
pub(super) fn device_role(device: Node) -> String {
    match device {
        Node::Host(host) => format!("host{host}"),
        Node::Switch(switch) => format!("sum{switch}"),
        Node::Server(server) => format!("server{server}"),
    }
}

fn node_role(switch: usize) -> String {
    format!("node{switch}")
}

/// The namespace of the agent at a circuit of a worker.
pub(super) fn agent_role(circuit: usize) -> String {
    format!("agent{circuit}")
}

/// The namespace of the `tally-agent ps` of a switch or PS.
pub(super) fn ps_role(device: Node) -> String {
    format!("ps-{}", device_role(device))
}

/// The interface of a circuit, at both ends.
pub(super) fn circuit_interface(circuit: usize) -> String {
    format!("c{circuit}")
}

/// The address of an end of a circuit.
fn end(network: u8, circuit: usize) -> String {
    format!("10.{network}.{}.{}", circuit >> 8, circuit & 255)
}

/// Largest IP packet of Tally's ports.
pub(super) fn mtu(scale: &Scale) -> u16 {
    // Headers of IPv4, UDP and Tally, and the tag of PARTIAL.
    (scale.payload_bytes + 58).max(1500)
}

impl Network {
    pub(super) fn new(problem: &Problem, layout: &Layout, scale: &Scale) -> Result<Self> {
        remove_leftovers()?;
        let mut network = Self {
            roles: BTreeSet::new(),
            shaped: BTreeMap::new(),
        };
        network.add_namespaces(problem, layout)?;
        network.add_cables(problem, layout, scale)?;
        let mut lines = Lines::default();
        for (number, circuit) in layout.circuits.iter().enumerate() {
            add_circuit(&mut lines, number, circuit, mtu(scale));
            add_routes(&mut lines, problem, number, circuit);
        }
        lines.run("ip")?;
        network.shape(problem, layout, scale)?;
        Ok(network)
    }

    fn add_namespaces(&mut self, problem: &Problem, layout: &Layout) -> Result<()> {
        let nodes = (0..problem.topology.switches.len()).map(node_role);
        let ends = layout.circuits.iter().flat_map(|it| [it.from, it.to]);
        let agents = layout.circuits.iter().enumerate();
        let agents = agents.filter(|(_, it)| it.worker.is_some());
        let servers = layout.summing().into_iter().map(ps_role);
        let roles = nodes.chain(ends.map(device_role)).chain(servers);
        let roles = roles.chain(agents.map(|(number, _)| agent_role(number)));
        for role in roles.collect::<BTreeSet<_>>() {
            batch("ip", &[], &format!("netns add {}\n", name(&role)))?;
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &name(&role), "sysctl", "-eqw"]);
            // No neighbour discovery into the measurements.
            for scope in ["all", "default"] {
                command.arg(format!("net.ipv6.conf.{scope}.disable_ipv6=1"));
                command.arg(format!("net.ipv4.conf.{scope}.rp_filter=0"));
            }
            command.arg("net.ipv4.ip_forward=1");
            self.roles.insert(role);
            crate::cluster::commands::check_run(&mut command)?;
        }
        Ok(())
    }

    /// Pairs between nodes and devices, and where each way and each capacity is shaped.
    fn add_cables(&mut self, problem: &Problem, layout: &Layout, scale: &Scale) -> Result<()> {
        let topology = &problem.topology;
        let mut pairs = Vec::new();
        for (at, link) in topology.links.iter().enumerate() {
            let interface = format!("l{at}");
            let ends = [link.a, link.b].map(|it| (node_role(it), interface.clone()));
            self.shaped.insert(Resource::Forward(at), ends[0].clone());
            self.shaped.insert(Resource::Backward(at), ends[1].clone());
            pairs.push(ends);
        }
        let devices = layout.circuits.iter().flat_map(|it| [it.from, it.to]);
        for device in devices.collect::<BTreeSet<_>>() {
            let own = (device_role(device), CABLE.to_owned());
            let other = (node_role(node_of(problem, device)), port_of(device));
            let (to, from) = match device {
                Node::Host(at) => (Resource::HostIn(at), Some(Resource::HostOut(at))),
                Node::Server(at) => (Resource::ServerIn(at), Some(Resource::ServerOut(at))),
                Node::Switch(at) => (Resource::Capacity(at), None),
            };
            self.shaped.insert(to, other.clone());
            if let Some(from) = from {
                self.shaped.insert(from, own.clone());
            }
            pairs.push([own, other]);
        }
        let mtu = mtu(scale) + TUNNEL_ROOM;
        let mut lines = String::new();
        let mut up = Lines::default();
        for (n, [(a, a_name), (b, b_name)]) in pairs.iter().enumerate() {
            let mac = format!("02:70:00:00:{:02x}:{:02x}", n >> 8, n & 255);
            let _ = writeln!(
                lines,
                "link add {a_name} netns {} mtu {mtu} address {mac} type veth peer name {b_name} \
                 netns {} mtu {mtu} address {mac}",
                name(a),
                name(b)
            );
            for (role, interface) in [(a, a_name), (b, b_name)] {
                up.add(role, &format!("link set {interface} arp off up"));
            }
        }
        for device in layout.summing() {
            let (own, ps) = (device_role(device), ps_role(device));
            let mtu = self::mtu(scale);
            let _ = writeln!(
                lines,
                "link add ps netns {} mtu {mtu} type veth peer name eth0 netns {} mtu {mtu}",
                name(&own),
                name(&ps)
            );
            up.add(&own, "link set ps up");
            up.add(&ps, "link set eth0 up");
        }
        for role in &self.roles {
            up.add(role, "link set lo up");
            if up.0[role].contains(CABLE) {
                up.add(role, &format!("route add default dev {CABLE}"));
            }
        }
        batch("ip", &[], &lines)?;
        up.run("ip")
    }

    /// Limits each cable's way to its rate, which its circuits share by their frames in a round.
    fn shape(&mut self, problem: &Problem, layout: &Layout, scale: &Scale) -> Result<()> {
        let mut lines = Lines::default();
        // No stream passes what is down.
        self.shaped.retain(|&of, _| limit(problem, of) > 0.0);
        let circuits = circuits_by_resource(layout, problem.results);
        for (resource, (role, interface)) in &self.shaped {
            let bits = scale.bits(limit(problem, *resource));
            let least = 2.0 * scale.frame_bytes() as f64;
            let burst = (bits / 8.0 * BURST_SECONDS).max(least);
            let mut add = |line: &str| {
                let (object, rest) = line.split_once(' ').unwrap_or((line, ""));
                lines.add(role, &format!("{object} add dev {interface} {rest}"));
            };
            add("qdisc root handle 1: htb default 2");
            add(&format!(
                "class parent 1: classid 1:1 htb rate {bits:.0}bit burst {burst:.0} cburst {burst:.0}"
            ));
            add("class parent 1: classid 1:2 htb rate 30gbit quantum 60000");
            let ends = circuits.get(resource).map_or(&[][..], |it| it);
            let all = ends.iter().map(|&(_, circuit)| layout.frames_of(circuit));
            let all = all.sum::<u64>() as f64;
            for (n, &(network, circuit)) in ends.iter().enumerate() {
                let (class, to) = (n + 0x10, end(network, circuit));
                // Its part is assured. What others leave, it may use, too.
                let part = bits * layout.frames_of(circuit) as f64 / all;
                let frame = scale.frame_bytes();
                add(&format!(
                    "class parent 1:1 classid 1:{class:x} htb rate {part:.0}bit ceil 30gbit burst \
                     {least:.0} quantum {frame}"
                ));
                add(&format!(
                    "qdisc parent 1:{class:x} handle {class:x}: pfifo limit {WAITING_FRAMES}"
                ));
                add(&format!(
                    "filter parent 1: protocol ip prio 1 u32 match ip dst {to}/32 flowid 1:{class:x}"
                ));
            }
        }
        lines.run("tc")
    }

    /// Bytes that the limited class of a way or a capacity has sent.
    pub(super) fn gradient_bytes(&self, resource: Resource) -> Result<u64> {
        let (role, interface) = self.shaped.get(&resource).context("no such cable")?;
        let mut command = Command::new("tc");
        command.args([
            "-n",
            &name(role),
            "-s",
            "class",
            "show",
            "dev",
            interface,
            "classid",
            "1:1",
        ]);
        let output = command.output().with_context(|| format!("{command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let sent = text.split_once("Sent ").and_then(|(_, rest)| {
            let bytes = rest.split_whitespace().next()?;
            bytes.parse().ok()
        });
        sent.with_context(|| format!("{command:?}: found `{text}`, expected bytes sent"))
    }

    /// Words in front of a command that is to run in a namespace.
    pub(super) fn prefix(role: &str) -> Vec<String> {
        enter(&name(role))
    }

    /// Gives the only interface of a namespace an address, and takes it up.
    pub(super) fn set_address(role: &str, interface: &str, address: &str) -> Result<()> {
        let lines = format!("address add {address}/16 dev {interface}\nlink set {interface} up\n");
        batch("ip", &["-n", &name(role)], &lines)
    }
}

/// The switch at whose node a device is.
fn node_of(problem: &Problem, device: Node) -> usize {
    match device {
        Node::Host(host) => problem.topology.hosts[host].switch,
        Node::Switch(switch) => switch,
        Node::Server(server) => problem.topology.servers[server].switch,
    }
}

/// The circuits' ends to which limited frames go over each way and into each capacity: those that
/// sum, and those that send if results count.
fn circuits_by_resource(layout: &Layout, results: bool) -> BTreeMap<Resource, Vec<(u8, usize)>> {
    let mut ends = BTreeMap::<_, Vec<_>>::new();
    for (number, circuit) in layout.circuits.iter().enumerate() {
        for resource in circuit.resources() {
            ends.entry(resource).or_default().push((SUMMING, number));
        }
        for &way in circuit.route.iter().filter(|_| results) {
            let back = opposite(way);
            ends.entry(back).or_default().push((SENDING, number));
        }
    }
    ends
}

/// The interface of a device's cable at its node.
fn port_of(device: Node) -> String {
    match device {
        Node::Host(host) => format!("h{host}"),
        Node::Switch(_) => "sum".to_owned(),
        Node::Server(server) => format!("p{server}"),
    }
}

/// The tunnel of a circuit: its addresses and its interface at both ends. That of a worker moves
/// into the namespace of its agent.
fn add_circuit(lines: &mut Lines, number: usize, circuit: &Circuit, mtu: u16) {
    let interface = circuit_interface(number);
    let ends = [
        (circuit.from, SENDING, SUMMING),
        (circuit.to, SUMMING, SENDING),
    ];
    for (device, own, other) in ends {
        let role = device_role(device);
        let (local, remote) = (end(own, number), end(other, number));
        let id = number + 1;
        lines.add(&role, &format!("address add {local}/32 dev lo"));
        lines.add(
            &role,
            &format!(
                "link add {interface} mtu {mtu} type vxlan id {id} local {local} remote {remote} dstport 4789 \
                 nolearning noudpcsum ttl 64"
            ),
        );
        match device {
            Node::Host(_) => {
                let agent = agent_role(number);
                lines.add(
                    &role,
                    &format!("link set {interface} netns {}", name(&agent)),
                );
            }
            _ => lines.add(&role, &format!("link set {interface} up")),
        }
    }
}

/// The routes of a circuit: at each node one each way.
fn add_routes(lines: &mut Lines, problem: &Problem, number: usize, circuit: &Circuit) {
    let links = &problem.topology.links;
    let mut at = node_of(problem, circuit.from);
    let mut back = port_of(circuit.from);
    let mut add = |at: usize, back: &str, on: &str| {
        for (network, interface) in [(SUMMING, on), (SENDING, back)] {
            let to = end(network, number);
            lines.add(
                &node_role(at),
                &format!("route add {to}/32 dev {interface}"),
            );
        }
    };
    for way in &circuit.route {
        let (link, next) = match *way {
            Resource::Forward(link) => (link, links[link].b),
            Resource::Backward(link) => (link, links[link].a),
            // The first and the last cable: where the route begins and ends says which.
            _ => continue,
        };
        let interface = format!("l{link}");
        add(at, &back, &interface);
        (at, back) = (next, interface);
    }
    add(at, &back, &port_of(circuit.to));
}

impl Drop for Network {
    fn drop(&mut self) {
        let lines: String = self
            .roles
            .iter()
            .map(|role| format!("netns delete {}\n", name(role)))
            .collect();
        let _ = batch("ip", &["-force"], &lines);
    }
}
