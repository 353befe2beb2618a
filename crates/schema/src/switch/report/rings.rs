//! Rings of RoCEv2 hosts in a report, and for which host each waits.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use tally_engine::metrics;
use tally_engine::netreduce::{NetreduceUse, RingCounters};

metrics! {
    /// Limits of rings.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct NetreduceLimits, labels [] {
        /// Packets that all rings may hold.
        pub held: u32 = gauge "netreduce_held_limit_frames" in Frames;
    }
}

/// What the switch did for rings of RoCEv2 hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetreduceReport {
    /// What the engine did, by name.
    pub counters: BTreeMap<String, u64>,
    /// What is held.
    #[serde(flatten)]
    pub in_use: NetreduceUse,
    /// Its limits.
    #[serde(flatten)]
    pub limits: NetreduceLimits,
    /// Registered rings, by number.
    pub rings: Vec<RingReport>,
}

/// One ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RingReport {
    /// Its number.
    pub id: u32,
    /// IPv4 addresses of its hosts, by rank.
    pub members: Vec<String>,
    /// Its epoch; absent while none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// Ranks whose packets the oldest unfinished sum lacks; at the root of a tree, indices of
    /// `leaves`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<u8>,
    /// Name of the root of its tree, if this switch is a leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The oldest unfinished sum has all packets of this leaf, and waits for the root.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_root: bool,
    /// Names of the leaves of its tree, if this switch is the root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaves: Vec<String>,
    /// What it did.
    #[serde(flatten)]
    pub counters: RingCounters,
}

impl Display for NetreduceReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let list: Vec<_> = (self.counters.iter())
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        writeln!(
            f,
            "netreduce    {}; {} of {} frames held, {} rings",
            list.join(" "),
            self.in_use.held_in_use,
            self.limits.held,
            self.rings.len()
        )?;
        self.rings.iter().try_for_each(|ring| writeln!(f, "{ring}"))
    }
}

impl Display for RingReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ring {}  {} members, ", self.id, self.members.len())?;
        match self.epoch {
            Some(epoch) => write!(f, "epoch {epoch}")?,
            None => write!(f, "no epoch")?,
        }
        write!(
            f,
            ", {} messages, {} sums of {} bytes, {} frames held",
            self.counters.messages, self.counters.sums, self.counters.sum_bytes, self.counters.held
        )?;
        if let Some(waiting) = self.waits_for() {
            let kind = match self.leaves.is_empty() {
                true => "members",
                false => "leaves",
            };
            match self.counters.awaited {
                0 => write!(f, "; WAITS for {waiting}")?,
                count => write!(f, "; WAITS for {count} {kind}: {waiting}")?,
            }
        }
        Ok(())
    }
}

impl RingReport {
    /// The ranks that it waits for, with their addresses, or switches of its tree.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        if self.awaits_root {
            let root = self.root.as_deref().unwrap_or_default();
            return Some(format!("the root, {root}"));
        }
        let leaf = |&at: &u8| self.leaves.get(usize::from(at)).cloned();
        let leaves: Vec<_> = self.missing.iter().filter_map(leaf).collect();
        if !leaves.is_empty() {
            return Some(leaves.join(", "));
        }
        let name = |&rank: &u8| match self.members.get(usize::from(rank)) {
            Some(address) => format!("rank {rank} ({address})"),
            None => format!("rank {rank}"),
        };
        let names: Vec<_> = self.missing.iter().map(name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}
