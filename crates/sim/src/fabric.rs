//! A fabric: switches that are joined by trunks as a tree, and what they know of each other.

use crate::address::{Address, SwitchId};
use crate::host::Data;
use crate::link::LinkConfig;
use crate::tree::Tree;
use crate::world::World;
use tally_engine::forwarding::fabric::{Link, Plan};
use tally_engine::{Child, Fabric as Own, JobConfig, Parent, PortId, Tree as Place};
use tally_wire::{DEFAULT_PORT, JobId, Key, Rank, SwitchName};

/// The trunk above a switch: its port at the upper one, and at the lower one.
#[derive(Clone, Copy, Debug)]
pub struct Trunk {
    /// The upper switch.
    pub above: SwitchId,
    /// The port there.
    pub upper: PortId,
    /// The port at the lower one.
    pub lower: PortId,
}

/// The name of a switch.
#[must_use]
pub fn name(switch: SwitchId) -> SwitchName {
    SwitchName::new(&format!("s{}", switch.0))
}

/// What a switch is told of the fabric.
///
/// # Panics
/// Never: the key has the right length.
#[must_use]
pub fn own(switch: SwitchId) -> Own {
    Own {
        name: name(switch),
        key: Key::new(&[0x5f; 32]).expect("32 bytes make a key"),
        previous_key: None,
    }
}

/// A job as the switch of one of its nodes knows it; `switches` are those of its nodes.
#[must_use]
pub fn job_config(
    (id, key): (JobId, Key),
    tree: &Tree,
    switches: &[SwitchId],
    node: usize,
) -> JobConfig {
    let of = &tree.nodes[node];
    let place = Place {
        total: tree.workers(),
        first: of.first,
        parent: of.parent.map(|parent| Parent {
            switch: name(switches[parent]),
            rank: Rank(of.rank),
        }),
        children: of
            .children
            .iter()
            .map(|&child| Child {
                switch: name(switches[child]),
                ranks: tree.nodes[child].count,
            })
            .collect(),
    };
    JobConfig {
        id,
        key,
        previous_key: None,
        workers: of.hosts as u8,
        servers: 1,
        tree: (tree.nodes.len() > 1).then_some(place),
    }
}

/// Joins the switches of a world: each but the first has one above it. `up` and `down` are the
/// directions of each trunk.
pub fn connect<D: Data>(
    world: &mut World<D>,
    above: &[Option<usize>],
    (up, down): (LinkConfig, LinkConfig),
) -> Vec<Option<Trunk>> {
    let switches = above.iter().enumerate();
    let trunks = switches.map(|(lower, above)| {
        let (lower, above) = (SwitchId(lower as u16), SwitchId((*above)? as u16));
        let (lower, upper) = world.add_trunk(lower, above, up, down);
        Some(Trunk {
            above,
            upper,
            lower,
        })
    });
    trunks.collect()
}

/// Has the switches of a world find each other by hellos: `trunks` are those above each switch.
pub fn join<D: Data>(world: &mut World<D>, trunks: &[Vec<Trunk>]) {
    let mut links: Vec<Vec<Link>> = trunks.iter().map(|_| Vec::new()).collect();
    let link = |port, switch, is_up| Link {
        port,
        switch: name(switch).as_str().to_owned(),
        is_up,
    };
    for (at, trunks) in trunks.iter().enumerate() {
        let lower = SwitchId(at as u16);
        for trunk in trunks {
            let above = usize::from(trunk.above.0);
            links[at].push(link(trunk.lower, trunk.above, true));
            links[above].push(link(trunk.upper, lower, false));
        }
    }
    for (switch, links) in links.into_iter().enumerate() {
        world.join_fabric(SwitchId(switch as u16), Plan::new(links));
    }
}

/// Tells a switch where the parent of its nodes of these jobs is, as a hello would.
pub fn introduce<D: Data>(
    world: &mut World<D>,
    switch: SwitchId,
    trunk: Option<Trunk>,
    jobs: &[JobId],
) {
    if let Some(trunk) = trunk {
        let above = Address {
            host: trunk.above.host(),
            udp_port: DEFAULT_PORT,
        };
        world.introduce(switch, jobs, above.member(trunk.lower));
    }
}
