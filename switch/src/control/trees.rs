//! Parents in the trees of jobs: where each is.
//!
//! The configuration names the parent of a job, and hellos of the fabric say which ports lead to
//! it now and which addresses it has. Of several links the job takes one by its number, and stays
//! there while that is alive.

use super::Control;
use std::collections::BTreeMap;
use tally_engine::fabric::NeighbourStatus;
use tally_engine::{Command, Member, ParentAddress, PortId};
use tally_schema::switch::config::{JobSection, TreeSection};
use tally_wire::{JobId, Rank, SwitchName};

/// Where a job finds a switch that has found it at `current` so far.
fn at(switch: &NeighbourStatus, job: JobId, current: Option<Member>) -> Option<Member> {
    let links = &switch.links;
    let stays = current.map(|it| it.port).filter(|it| links.contains(it));
    let next = || links.get(usize::from(job.0) % links.len().max(1)).copied();
    Some(Member {
        port: stays.or_else(next)?,
        mac: switch.mac,
        ip: switch.ip,
        udp_port: switch.udp_port,
    })
}

/// Where the parent of that name is for a job, by the switches above. The job has found it at
/// `current` so far.
fn find(
    above: &[NeighbourStatus],
    job: JobId,
    parent: &str,
    current: Option<Member>,
) -> Option<Member> {
    let switch = above.iter().find(|it| it.switch == parent)?;
    at(switch, job, current)
}

/// The switches above, by the ports that lead to them, as the cores know them.
#[derive(Debug, Default)]
pub struct Parents(BTreeMap<PortId, ParentAddress>);

impl Parents {
    /// What the cores do not know. A port keeps its entry when its link dies: results of the parent
    /// may still wait.
    fn update(&mut self, above: &[NeighbourStatus]) -> Vec<(PortId, ParentAddress)> {
        let mut news = Vec::new();
        for switch in above {
            let address = ParentAddress::from(switch);
            for &port in &switch.links {
                if self.0.insert(port, address) != Some(address) {
                    news.push((port, address));
                }
            }
        }
        news
    }
}

impl Control {
    /// Takes new addresses of parents, and sends them JOIN and LEAVE in time.
    pub(super) fn look_up(&mut self) {
        if !self.is_in_fabric {
            return;
        }
        let mut above = self.shape.fabric.facts().neighbours;
        above.retain(|it| it.is_up);
        self.look_for_parents(&above);
        let actions = self.registry.poll_links(self.now());
        self.carry_out(actions);
        self.say_events();
    }

    /// Tells cores and registry where parents are, as far as that has changed.
    pub(super) fn look_for_parents(&mut self, above: &[NeighbourStatus]) {
        // The cores first: the parent's answer may come at once.
        for (port, address) in self.parents.update(above) {
            self.bus.send(|| Command::Parent(port, Some(address)));
        }
        let now = self.now();
        let mut actions = Vec::new();
        for job in self.live.jobs() {
            let id = JobId(job.id);
            let parent = job.tree.as_ref().and_then(|tree| tree.parent.as_deref());
            if let (Some(parent), Some(status)) = (parent, self.registry.parent(id, now)) {
                let found = find(above, id, parent, status.address);
                actions.append(&mut self.registry.set_parent_address(now, id, found));
            }
        }
        self.carry_out(actions);
    }
}

/// The place of the switch in the tree of a job, as the registry takes it.
pub(super) fn tree_config(job: &JobSection) -> Option<tally_engine::Tree> {
    let TreeSection {
        total,
        first,
        parent,
        children,
        rank,
    } = job.tree.as_ref()?;
    let parent = parent.as_ref().zip(*rank);
    let parent = parent.map(|(name, rank)| tally_engine::Parent {
        switch: SwitchName::new(name),
        rank: Rank(rank),
    });
    let children = children.iter().map(|child| tally_engine::Child {
        switch: SwitchName::new(&child.switch),
        ranks: child.ranks,
    });
    Some(tally_engine::Tree {
        total: *total,
        first: *first,
        parent,
        children: children.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tally_schema::switch::config::ChildSection;
    use tally_wire::Mac;

    fn above(name: &str, number: u8, ports: &[u16]) -> NeighbourStatus {
        NeighbourStatus {
            switch: name.into(),
            is_up: true,
            mac: Mac([2, 0, 0, 0, 1, number]),
            ip: Ipv4Addr::new(10, 84, 0, number),
            udp_port: 31249,
            links: ports.iter().copied().map(PortId).collect(),
        }
    }

    #[test]
    fn jobs_are_spread_over_links_and_move_only_when_theirs_dies() {
        let mut at: BTreeMap<u16, Option<Member>> = BTreeMap::new();
        let mut ports = |above: &[NeighbourStatus]| {
            [(6, "a"), (7, "a"), (8, "b"), (9, "c")].map(|(job, parent)| {
                let current = at.get(&job).copied().flatten();
                let found = find(above, JobId(job), parent, current);
                at.insert(job, found);
                found.map(|it| it.port.0)
            })
        };
        let b = above("b", 2, &[6]);
        let all = [above("a", 1, &[4, 5]), b.clone()];
        assert_eq!(ports(&all), [Some(4), Some(5), Some(6), None]);
        // Its link dies: 7 moves, 6 stays. It comes back: both stay.
        let one = [above("a", 1, &[4]), b.clone()];
        assert_eq!(ports(&one), [Some(4), Some(4), Some(6), None]);
        assert_eq!(ports(&all), [Some(4), Some(4), Some(6), None]);
        // All links die, and come back.
        assert_eq!(ports(&[b]), [None, None, Some(6), None]);
        assert_eq!(ports(&all), [Some(4), Some(5), Some(6), None]);
        // The switch comes back with another address.
        let found = find(&[above("a", 3, &[4, 5])], JobId(6), "a", at[&6]).unwrap();
        assert_eq!(
            (found.port, found.ip),
            (PortId(4), Ipv4Addr::new(10, 84, 0, 3))
        );
    }

    #[test]
    fn cores_are_told_of_each_port_once_and_when_its_switch_has_another_address() {
        let mut parents = Parents::default();
        let mut news = |above: &[NeighbourStatus]| {
            let news = parents.update(above);
            news.iter()
                .map(|(port, it)| (port.0, it.ip.octets()[3]))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            news(&[above("a", 1, &[4, 5]), above("b", 2, &[6])]),
            [(4, 1), (5, 1), (6, 2)]
        );
        assert_eq!(news(&[above("a", 1, &[5])]), []);
        assert_eq!(
            news(&[above("a", 3, &[4, 5]), above("b", 2, &[6])]),
            [(4, 3), (5, 3)]
        );
    }

    #[test]
    fn the_registry_has_the_tree_of_the_configuration() {
        let key = "00112233445566778899aabbccddeeff".parse().unwrap();
        let mut job = JobSection::new(7, key, 3);
        assert_eq!(tree_config(&job), None);
        let children = [("x", 2), ("y", 3)].map(|(switch, ranks)| ChildSection {
            switch: switch.into(),
            ranks,
        });
        let mut tree = TreeSection::root(16, children.into());
        (tree.first, tree.parent, tree.rank) = (4, Some("up".into()), Some(1));
        job.tree = Some(tree);
        let tree = tree_config(&job).unwrap();
        let parent = tree.parent.unwrap();
        assert_eq!((parent.switch.as_str(), parent.rank), ("up", Rank(1)));
        assert_eq!((tree.total, tree.first, tree.ranks(3)), (16, 4, 8));
        assert_eq!(tree.children[1].switch.as_str(), "y");
    }
}
