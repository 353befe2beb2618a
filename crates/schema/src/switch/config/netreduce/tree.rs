//! Rings whose hosts are at several switches of a fabric: one switch above all others sums what
//! they send. All have the same section of the ring, and each finds its part by its name.

use super::{Config, ConfigError, RingSection};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tally_engine::netreduce::RingRole;
use tally_wire::SwitchName;
use tally_wire::netreduce::MEMBERS;

/// The switches of a ring in a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RingTreeSection {
    /// Name of the root, to which all leaves have links up.
    pub root: String,
    /// Switches with the ring's hosts, in the order of ranks, 2 to 64.
    pub leaves: Vec<RingLeafSection>,
}

/// A switch with hosts of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RingLeafSection {
    /// Its name.
    pub switch: String,
    /// How many members it has: their ranks follow those of the leaves before.
    pub members: u8,
}

impl RingTreeSection {
    /// The part of the switch of this name; `None` if it has none.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<RingRole> {
        if self.root == name {
            let leaves = self.leaves.iter();
            return Some(RingRole::Root {
                leaves: leaves.map(|leaf| SwitchName::new(&leaf.switch)).collect(),
            });
        }
        let number = self.leaves.iter().position(|leaf| leaf.switch == name)?;
        let before = self.leaves[..number].iter().map(|leaf| leaf.members);
        let first = before.fold(0, u8::saturating_add);
        let end = first.saturating_add(self.leaves[number].members);
        Some(RingRole::Leaf {
            number: number as u8,
            ranks: first..end,
            root: SwitchName::new(&self.root),
        })
    }
}

impl Config {
    pub(super) fn check_ring_tree(
        &self,
        path: &Path,
        i: usize,
        ring: &RingSection,
        tree: &RingTreeSection,
    ) -> Result<(), ConfigError> {
        let bad = |key: &str, found: &dyn std::fmt::Display, allowed: &str| {
            let key = format!("netreduce.rings[{i}].tree.{key}");
            Err(ConfigError::value(path, key, found, allowed))
        };
        let leaves = &tree.leaves;
        if !MEMBERS.contains(&leaves.len()) {
            return bad("leaves", &leaves.len(), "2 to 64 switches");
        }
        let mut names = BTreeSet::from([tree.root.as_str()]);
        for (at, leaf) in leaves.iter().enumerate() {
            let key = |name: &str| format!("leaves[{at}].{name}");
            if !names.insert(&leaf.switch) {
                let found = format!("{} a second time", leaf.switch);
                return bad(&key("switch"), &found, "each switch once, and not the root");
            }
            if leaf.members == 0 {
                return bad(&key("members"), &0, "at least 1");
            }
        }
        let members: usize = leaves.iter().map(|leaf| usize::from(leaf.members)).sum();
        if members != ring.members.len() {
            let found = format!("{members} members of leaves");
            let allowed = format!("{}, the members of the ring", ring.members.len());
            return bad("leaves", &found, &allowed);
        }
        let name = self.name.as_deref().unwrap_or_default();
        let links = |is_up: bool, name: &str| {
            let mut links = self.fabric_links();
            links.any(|(_, link)| link.up == is_up && link.switch == name)
        };
        match tree.role(name) {
            None | Some(RingRole::Alone) => {
                let allowed = format!("this switch, {name:?}, as the root or one of the leaves");
                bad("leaves", &"other switches", &allowed)
            }
            Some(RingRole::Leaf { .. }) if !links(true, &tree.root) => {
                let allowed = "a switch of fabric.links with up true";
                bad("root", &tree.root, allowed)
            }
            Some(RingRole::Root { .. }) => {
                let apart = leaves.iter().position(|leaf| !links(false, &leaf.switch));
                let Some(at) = apart else {
                    return Ok(());
                };
                let allowed = "a switch of fabric.links with up false";
                bad(&format!("leaves[{at}].switch"), &leaves[at].switch, allowed)
            }
            Some(RingRole::Leaf { .. }) => Ok(()),
        }
    }
}

/// A ring with a tree in the file of one switch.
struct Node<'a> {
    path: &'a Path,
    at: usize,
    name: &'a str,
    ring: &'a RingSection,
}

/// What contradicts itself in the rings with trees of several switches, whose files are good one by
/// one: sections that differ, switches that lack one, other DSCPs.
#[must_use]
pub fn check_ring_trees(files: &[(PathBuf, Config)]) -> Vec<ConfigError> {
    let mut found = Vec::new();
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for (path, config) in files {
        let name = config.name.as_deref().unwrap_or_default();
        let rings = config.rings().iter().enumerate();
        let rings = rings.filter(|(_, ring)| ring.tree.is_some());
        nodes.extend(rings.map(|(at, ring)| Node {
            path,
            at,
            name,
            ring,
        }));
    }
    for (number, node) in nodes.iter().enumerate() {
        let key = format!("netreduce.rings[{}]", node.at);
        let mut fault = |found_: String, allowed: String| {
            found.push(ConfigError::value(node.path, &key, found_, allowed));
        };
        let id = node.ring.id;
        let mut before = nodes[..number].iter();
        if let Some(first) = before.find(|it| it.ring.id == id) {
            if first.ring != node.ring {
                let allowed = format!("ring {id} as in the file of `{}`", first.name);
                fault(format!("another ring {id}"), allowed);
            }
            continue;
        }
        let tree = node.ring.tree.iter();
        let names = tree.flat_map(|tree| {
            let leaves = tree.leaves.iter().map(|leaf| &leaf.switch);
            std::iter::once(&tree.root).chain(leaves)
        });
        let lacks = |name: &&String| {
            let has_file = files.iter().any(|(_, it)| it.name.as_ref() == Some(*name));
            has_file && !nodes.iter().any(|it| it.name == **name && it.ring.id == id)
        };
        for name in names.filter(lacks) {
            fault(
                format!("`{name}`, whose file has no ring {id} with a tree"),
                "switches that all have the ring".into(),
            );
        }
    }
    let sections = files.iter().filter_map(|(path, config)| {
        let section = config.netreduce.as_ref()?;
        let has_tree = section.rings.iter().any(|ring| ring.tree.is_some());
        has_tree.then_some((path, config, section.dscp))
    });
    let sections: Vec<_> = sections.collect();
    if let Some((_, first, dscp)) = sections.first() {
        for (path, _, other) in sections.iter().filter(|it| it.2 != *dscp) {
            let name = first.name.as_deref().unwrap_or_default();
            let allowed = format!("{dscp}, as at `{name}`");
            found.push(ConfigError::value(path, "netreduce.dscp", other, allowed));
        }
    }
    found
}

#[cfg(test)]
mod tests;
