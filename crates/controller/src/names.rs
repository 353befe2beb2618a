//! What elements of a topology are called.

use tally_planner::{Node, Resource, Topology};

/// The name of a node.
#[must_use]
pub fn node(topology: &Topology, node: Node) -> &str {
    match node {
        Node::Host(at) => &topology.hosts[at].name,
        Node::Switch(at) => &topology.switches[at].name,
        Node::Server(at) => &topology.servers[at].name,
    }
}

/// The ends of a cable's way; `None` for a switch's capacity.
#[must_use]
pub fn ends(topology: &Topology, way: Resource) -> Option<(Node, Node)> {
    let (hosts, servers) = (&topology.hosts, &topology.servers);
    Some(match way {
        Resource::Forward(at) => {
            let link = &topology.links[at];
            (Node::Switch(link.a), Node::Switch(link.b))
        }
        Resource::Backward(at) => {
            let link = &topology.links[at];
            (Node::Switch(link.b), Node::Switch(link.a))
        }
        Resource::HostOut(at) => (Node::Host(at), Node::Switch(hosts[at].switch)),
        Resource::HostIn(at) => (Node::Switch(hosts[at].switch), Node::Host(at)),
        Resource::ServerOut(at) => (Node::Server(at), Node::Switch(servers[at].switch)),
        Resource::ServerIn(at) => (Node::Switch(servers[at].switch), Node::Server(at)),
        Resource::Capacity(_) => return None,
    })
}

/// The way between two nodes that a cable joins.
#[must_use]
pub fn way(topology: &Topology, from: Node, to: Node) -> Option<Resource> {
    let (hosts, servers) = (&topology.hosts, &topology.servers);
    match (from, to) {
        (Node::Host(at), Node::Switch(switch)) => {
            (hosts[at].switch == switch).then_some(Resource::HostOut(at))
        }
        (Node::Switch(switch), Node::Host(at)) => {
            (hosts[at].switch == switch).then_some(Resource::HostIn(at))
        }
        (Node::Server(at), Node::Switch(switch)) => {
            (servers[at].switch == switch).then_some(Resource::ServerOut(at))
        }
        (Node::Switch(switch), Node::Server(at)) => {
            (servers[at].switch == switch).then_some(Resource::ServerIn(at))
        }
        (Node::Switch(a), Node::Switch(b)) => {
            let joins = |a, b| topology.links.iter().position(|it| it.a == a && it.b == b);
            let forward = joins(a, b).map(Resource::Forward);
            forward.or_else(|| joins(b, a).map(Resource::Backward))
        }
        _ => None,
    }
}

/// A node by its name.
#[must_use]
pub fn find(topology: &Topology, name: &str) -> Option<Node> {
    let switch = topology.switches.iter().position(|it| it.name == name);
    let host = || topology.hosts.iter().position(|it| it.name == name);
    let server = || topology.servers.iter().position(|it| it.name == name);
    let node = switch.map(Node::Switch);
    let node = node.or_else(|| host().map(Node::Host));
    node.or_else(|| server().map(Node::Server))
}

/// A resource in words: `leaf1 -> spine1`, or `summation at leaf1`.
#[must_use]
pub fn resource(topology: &Topology, resource: Resource) -> String {
    match (resource, ends(topology, resource)) {
        (_, Some((from, to))) => {
            format!("{} -> {}", node(topology, from), node(topology, to))
        }
        (Resource::Capacity(at), _) => {
            format!("summation at {}", topology.switches[at].name)
        }
        _ => unreachable!("all but a capacity have ends"),
    }
}
