//! Jobs that workers may join, and the place of the switch in the tree of each.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use tally_wire::{Key, Mac};

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSection {
    /// Its number.
    pub id: u16,
    /// Its key: 32 to 128 hexadecimal digits.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// Its key before that, while members may still have it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::key::option"
    )]
    #[schemars(with = "Option<crate::key::KeyText>")]
    pub previous_key: Option<Key>,
    /// Its workers at this switch, 1 to 64; with `tree`, 0 to 64.
    #[serde(deserialize_with = "workers")]
    pub workers: u8,
    /// Its place in a tree of switches; without it, the switch is all that the job has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeSection>,
    /// Its parameter servers at this switch, each of which completes a part of the fragments: 1, 2,
    /// 4, 8 or 16.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub parameter_servers: u8,
    /// Slots that the job has for certain, of all shards together; by default a little under `esa`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_slots: Option<u32>,
    /// Slots that it has at most, of all shards together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slots: Option<u32>,
    /// Members that need not join, for load generators that replay captures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedMembers>,
}

pub(crate) const fn one() -> u8 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) const fn is_one(count: &u8) -> bool {
    *count == 1
}

/// Workers of a job at one switch.
pub(super) const SWITCH_WORKERS: &str =
    "1 to 64, the members of a switch; a tree of switches has more (docs/FABRIC.md)";

fn workers<'de, D: Deserializer<'de>>(d: D) -> Result<u8, D::Error> {
    let found = u32::deserialize(d)?;
    u8::try_from(found)
        .map_err(|_| D::Error::custom(format!("found {found}, expected {SWITCH_WORKERS}")))
}

/// Members known beforehand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedMembers {
    /// Payload of every element frame.
    pub payload_bytes: u16,
    /// The workers, by rank.
    pub workers: Vec<FixedMember>,
    /// The parameter server.
    pub ps: FixedMember,
}

/// Where a fixed member is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedMember {
    /// Name of the port.
    pub port: String,
    /// Ethernet address.
    #[serde(with = "crate::text")]
    #[schemars(with = "String")]
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// UDP port.
    pub udp_port: u16,
}

impl JobSection {
    /// Without limits.
    #[must_use]
    pub const fn new(id: u16, key: Key, workers: u8) -> Self {
        Self {
            id,
            key,
            previous_key: None,
            workers,
            tree: None,
            parameter_servers: 1,
            min_slots: None,
            max_slots: None,
            fixed: None,
        }
    }

    /// Workers and child switches at this switch.
    #[must_use]
    pub fn members(&self) -> u8 {
        let children = self.tree.as_ref().map_or(0, |tree| tree.children.len());
        let children = u8::try_from(children).unwrap_or(u8::MAX);
        self.workers.saturating_add(children)
    }

    /// Name of the switch that its sums go to; none at the root, and without a tree.
    #[must_use]
    pub fn parent(&self) -> Option<&str> {
        self.tree.as_ref()?.parent.as_deref()
    }

    /// Workers at and below this switch.
    #[must_use]
    pub fn covered(&self) -> u32 {
        let below = self.tree.iter().flat_map(|tree| &tree.children);
        u32::from(self.workers) + below.map(|child| u32::from(child.ranks)).sum::<u32>()
    }
}

/// The place of a switch in the tree of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TreeSection {
    /// Workers of the whole job, 1 to 4096.
    pub total: u16,
    /// Global rank of the first worker at or below this switch.
    #[serde(default)]
    pub first: u16,
    /// Name of the switch above, one of `fabric.links[].switch`; without it, this is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Switches below; their ranks follow those of the workers here, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildSection>,
    /// Local rank of this switch at its parent, 0 to 63; absent at the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u8>,
}

/// A switch below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChildSection {
    /// Its name, one of `fabric.links[].switch`.
    pub switch: String,
    /// Workers at and below it.
    pub ranks: u16,
}

impl TreeSection {
    /// The root of a tree of that many workers.
    #[must_use]
    pub fn root(total: u16, children: Vec<ChildSection>) -> Self {
        Self {
            total,
            first: 0,
            parent: None,
            children,
            rank: None,
        }
    }

    /// A switch with `workers` of its own, for people.
    #[must_use]
    pub fn describe(&self, workers: u8) -> String {
        let below: u32 = self
            .children
            .iter()
            .map(|child| u32::from(child.ranks))
            .sum();
        let covered = u32::from(workers) + below;
        let last = (u32::from(self.first) + covered).saturating_sub(1);
        let place = match (&self.parent, self.rank) {
            (Some(parent), Some(rank)) => format!("rank {rank} at {parent}"),
            _ => "root".to_owned(),
        };
        format!(
            "{workers} workers and {} switches, ranks {} to {last} of {}, {place}",
            self.children.len(),
            self.first,
            self.total
        )
    }

    /// Each child with its local rank and the global rank of its first worker, at a switch that has
    /// `workers`.
    pub fn placed(&self, workers: u8) -> impl Iterator<Item = (&ChildSection, usize, u32)> {
        let mut first = u32::from(self.first) + u32::from(workers);
        self.children.iter().enumerate().map(move |(i, child)| {
            let own = first;
            first += u32::from(child.ranks);
            (child, usize::from(workers) + i, own)
        })
    }
}
