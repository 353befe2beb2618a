//! The place of this switch in the tree of a job (PROTOCOL.md, "Trees").
//!
//! What the switch does for the job is a *node*. The node's members are hosts and child switches,
//! with local ranks: hosts first. A node without a parent is the root.

use crate::roster::Member;
use std::time::Duration;
use tally_wire::control::State;
use tally_wire::{Key, Rank, RankRange, SwitchName};

/// The switch as a part of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Its own name.
    pub name: SwitchName,
    /// The switch key: child switches join under it. The same in all switches of the fabric.
    pub key: Key,
    /// The switch key before that, while other switches may still have it.
    pub previous_key: Option<Key>,
}

/// The place of this switch in the tree of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Workers of the whole job, 1 to 4096.
    pub total: u16,
    /// Global rank of the first worker of this node.
    pub first: u16,
    /// The switch above; `None` at the root.
    pub parent: Option<Parent>,
    /// The switches below, in the order of their local ranks.
    pub children: Vec<Child>,
}

/// The switch above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its name.
    pub switch: SwitchName,
    /// This node's local rank there.
    pub rank: Rank,
}

/// A switch below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its name.
    pub switch: SwitchName,
    /// Workers below it.
    pub ranks: u16,
}

impl Tree {
    /// Global ranks of a node with so many hosts.
    #[must_use]
    pub fn ranks(&self, hosts: u8) -> u16 {
        let below: u16 = self.children.iter().map(|child| child.ranks).sum();
        u16::from(hosts) + below
    }

    /// Global ranks of a local rank, at a node with so many hosts.
    #[must_use]
    pub fn ranks_of(&self, hosts: u8, local: Rank) -> Option<RankRange> {
        let local = u16::from(local.0);
        if local < u16::from(hosts) {
            return RankRange::one(self.first + local);
        }
        let at = usize::from(local - u16::from(hosts));
        let before: u16 = self
            .children
            .get(..at)?
            .iter()
            .map(|child| child.ranks)
            .sum();
        let first = self.first + u16::from(hosts) + before;
        RankRange::new(first, first + self.children.get(at)?.ranks)
    }

    /// The child switch with that local rank, at a node with so many hosts.
    #[must_use]
    pub fn child(&self, hosts: u8, local: Rank) -> Option<&Child> {
        let at = local.0.checked_sub(hosts)?;
        self.children.get(usize::from(at))
    }
}

/// How a node and its parent stand, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentStatus {
    /// The parent's name.
    pub switch: SwitchName,
    /// Where it is, if the adapter has found it.
    pub address: Option<Member>,
    /// What it said last of the job, if the node has joined.
    pub state: Option<State>,
    /// Time since it was heard.
    pub silent: Duration,
}
