//! Rings of RoCEv2 hosts, for which the switch sums (NetReduce, `docs/NETREDUCE.md`).
//!
//! Without the section the switch takes RoCEv2 for ordinary traffic. `held` is packet memory: a
//! ring holds at most two windows of messages, a packet of each member. A leaf of a tree holds at
//! most three, of its own members, and the root two, of each leaf.

mod tree;

pub use tree::{RingLeafSection, RingTreeSection, check_ring_trees};

use super::{Config, ConfigError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use tally_engine::netreduce::{DEFAULT_MESSAGE_PACKETS, DEFAULT_WINDOW_MESSAGES, RingConfig};
use tally_wire::Key;
use tally_wire::netreduce::{DEFAULT_DSCP, MEMBERS, RingId};

/// Most packets that rings may hold.
const MAX_HELD: u32 = 1 << 22;
/// Most messages of a window, and most packets of a message.
const MAX_WINDOW: u8 = 16;
const MAX_PACKETS: u16 = 4096;
/// Highest DSCP.
const MAX_DSCP: u8 = 63;

/// Rings of RoCEv2 hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetreduceSection {
    /// DSCP of the rings' packets, 0 to 63. It is reserved: the switch drops all other RoCEv2 data
    /// packets with it.
    #[serde(default = "default_dscp")]
    pub dscp: u8,
    /// Packets that all rings may hold, also those that are added while the switch runs.
    #[serde(default = "default_held")]
    pub held: u32,
    /// The rings.
    #[serde(default)]
    pub rings: Vec<RingSection>,
}

/// One ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RingSection {
    /// Its number.
    pub id: u32,
    /// Its key: 32 to 128 hexadecimal digits.
    #[serde(with = "crate::key")]
    #[schemars(with = "crate::key::KeyText")]
    pub key: Key,
    /// IPv4 addresses of its hosts by rank, 2 to 64.
    pub members: Vec<Ipv4Addr>,
    /// Messages that a host sends beyond the last sum that it has, 1 to 16.
    #[serde(default = "default_window", skip_serializing_if = "is_default_window")]
    pub window_messages: u8,
    /// Packets of a message at most, 1 to 4096.
    #[serde(
        default = "default_packets",
        skip_serializing_if = "is_default_packets"
    )]
    pub message_packets: u16,
    /// Switches that sum together, if its hosts are at several. All of them have the same section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<RingTreeSection>,
}

impl RingSection {
    /// With the window as it is by default.
    #[must_use]
    pub const fn new(id: u32, key: Key, members: Vec<Ipv4Addr>) -> Self {
        Self {
            id,
            key,
            members,
            window_messages: DEFAULT_WINDOW_MESSAGES,
            message_packets: DEFAULT_MESSAGE_PACKETS,
            tree: None,
        }
    }

    /// The ring, as the engine of the switch of this name takes it.
    #[must_use]
    pub fn ring(&self, switch: Option<&str>) -> RingConfig {
        let id = RingId(self.id);
        let tree = self.tree.as_ref().zip(switch);
        let role = tree.and_then(|(tree, name)| tree.role(name));
        RingConfig {
            id,
            secret: self.key.ring_secret(id),
            members: self.members.clone(),
            window_messages: self.window_messages,
            message_packets: self.message_packets,
            role: role.unwrap_or_default(),
        }
    }
}

impl Default for NetreduceSection {
    fn default() -> Self {
        Self {
            dscp: default_dscp(),
            held: default_held(),
            rings: Vec::new(),
        }
    }
}

const fn default_dscp() -> u8 {
    DEFAULT_DSCP
}
const fn default_held() -> u32 {
    16384
}
const fn default_window() -> u8 {
    DEFAULT_WINDOW_MESSAGES
}
const fn default_packets() -> u16 {
    DEFAULT_MESSAGE_PACKETS
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_default_window(messages: &u8) -> bool {
    *messages == DEFAULT_WINDOW_MESSAGES
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_default_packets(packets: &u16) -> bool {
    *packets == DEFAULT_MESSAGE_PACKETS
}

impl Config {
    /// The rings; none without the section.
    #[must_use]
    pub fn rings(&self) -> &[RingSection] {
        self.netreduce
            .as_ref()
            .map_or(&[], |section| &section.rings)
    }

    /// Frames that rings need beyond those of a switch without them.
    #[must_use]
    pub fn netreduce_frames(&self) -> u32 {
        self.netreduce.as_ref().map_or(0, |section| section.held)
    }

    pub(super) fn check_netreduce(&self, path: &Path) -> Result<(), ConfigError> {
        let Some(section) = &self.netreduce else {
            return Ok(());
        };
        let bad = |key: &str, found: &dyn std::fmt::Display, allowed: &str| {
            let key = format!("netreduce.{key}");
            Err(ConfigError::value(path, key, found, allowed))
        };
        if section.dscp > MAX_DSCP {
            return bad("dscp", &section.dscp, "0 to 63");
        }
        if !(1..=MAX_HELD).contains(&section.held) {
            return bad("held", &section.held, &format!("1 to {MAX_HELD} frames"));
        }
        let mut ids = BTreeSet::new();
        let mut held = 0;
        for (i, ring) in section.rings.iter().enumerate() {
            let key = |name: &str| format!("rings[{i}].{name}");
            if !ids.insert(ring.id) {
                let found = format!("{} a second time", ring.id);
                return bad(&key("id"), &found, "each ring once");
            }
            if !MEMBERS.contains(&ring.members.len()) {
                let found = format!("{} members", ring.members.len());
                return bad(
                    &key("members"),
                    &found,
                    "2 to 64 addresses, one for each rank",
                );
            }
            let mut seen = BTreeSet::new();
            if let Some(twice) = ring.members.iter().find(|member| !seen.insert(**member)) {
                let found = format!("{twice} a second time");
                return bad(&key("members"), &found, "each host once");
            }
            if !(1..=MAX_WINDOW).contains(&ring.window_messages) {
                let allowed = format!("1 to {MAX_WINDOW} messages");
                return bad(&key("window_messages"), &ring.window_messages, &allowed);
            }
            if !(1..=MAX_PACKETS).contains(&ring.message_packets) {
                let allowed = format!("1 to {MAX_PACKETS} packets");
                return bad(&key("message_packets"), &ring.message_packets, &allowed);
            }
            if let Some(tree) = &ring.tree {
                self.check_ring_tree(path, i, ring, tree)?;
            }
            held += ring.ring(self.name.as_deref()).held_max();
            if held > u64::from(section.held) {
                let found = format!(
                    "{}: ring {} and those before it hold up to {held} frames",
                    section.held, ring.id
                );
                return bad("held", &found, "at least what all rings may hold");
            }
        }
        Ok(())
    }
}
