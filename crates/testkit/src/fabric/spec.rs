//! The specification of a fabric: its shape, its links, its jobs, faults.

use crate::cluster::{Network, Timeouts};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tally_engine::PolicyName;

/// Spines, leaves and workers behind a leaf, as in `2x4x2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Switches of the upper tier, each with a link to every leaf.
    pub spines: usize,
    /// Switches of the lower tier.
    pub leaves: usize,
    /// Workers of each job behind each leaf.
    pub workers: usize,
}

impl Shape {
    /// Workers of a job.
    #[must_use]
    pub const fn total(self) -> usize {
        self.leaves * self.workers
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.spines, self.leaves, self.workers)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split('x').map(str::parse).collect();
        let allowed = "spines x leaves x workers a leaf, as in 2x4x2: 1 to 8 spines, 1 to 16 leaves, \
                       1 to 24 workers";
        let wrong = || format!("found `{text}`, expected {allowed}");
        let [Ok(spines), Ok(leaves), Ok(workers)] = parts[..] else {
            return Err(wrong());
        };
        let shape = Self {
            spines,
            leaves,
            workers,
        };
        let is_good =
            (1..=8).contains(&spines) && (1..=16).contains(&leaves) && (1..=24).contains(&workers);
        is_good.then_some(shape).ok_or_else(wrong)
    }
}

/// The specification of a fabric.
#[derive(Clone, Debug)]
pub struct FabricSpec {
    /// How the processes reach each other.
    pub network: Network,
    /// Switches and workers.
    pub shape: Shape,
    /// Links between a leaf and a spine.
    pub links: usize,
    /// Jobs. The root of job j is spine j, counted around.
    pub jobs: usize,
    /// Parameter servers of each node of a job, each with a part of the fragments.
    pub parameter_servers: u8,
    /// Hosts behind each leaf on which none of our programs runs.
    pub guests: usize,
    /// A NetReduce ring of all guests, over all leaves and the first spine.
    pub ring: bool,
    /// MTU of all links.
    pub mtu: u16,
    /// Rate of a host's link each way, in Mbit/s, in namespaces; by default not limited.
    pub host_mbit: Option<u32>,
    /// Rate of a link between switches each way, in Mbit/s, in namespaces; by default not limited.
    pub uplink_mbit: Option<u32>,
    /// Payload of a fragment.
    pub payload_bytes: u16,
    /// Window of a worker, in fragments.
    pub window: u16,
    /// Policy of the switches.
    pub policy: PolicyName,
    /// Slots of each switch; by default what it makes of its caches.
    pub slots: Option<u32>,
    /// Share of frames dropped at each worker and each PS, each way.
    pub loss: f64,
    /// Random seed of that loss.
    pub loss_seed: u64,
    /// Timeouts of the workers.
    pub timeouts: Timeouts,
    /// Time without a heartbeat after which a switch fails the member's job; by default the
    /// switch's own.
    pub member_timeout_ms: Option<u64>,
    /// Folder of the programs.
    pub programs: PathBuf,
}

impl Default for FabricSpec {
    /// Two spines, four leaves with two workers each, a job for each spine, on this user's network,
    /// with the programs beside this one.
    fn default() -> Self {
        let own = std::env::current_exe().unwrap_or_default();
        Self {
            network: Network::for_this_user(),
            shape: Shape {
                spines: 2,
                leaves: 4,
                workers: 2,
            },
            links: 1,
            jobs: 2,
            parameter_servers: 1,
            guests: 0,
            ring: false,
            mtu: 1500,
            host_mbit: None,
            uplink_mbit: None,
            payload_bytes: 1024,
            window: 128,
            policy: PolicyName::Esa,
            slots: None,
            loss: 0.0,
            loss_seed: 1,
            timeouts: Timeouts::default(),
            member_timeout_ms: None,
            programs: own.parent().map(Path::to_owned).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn shapes_are_read_as_they_are_written() {
        let shape: Shape = "2x4x3".parse().unwrap();
        assert_eq!((shape.spines, shape.leaves, shape.workers), (2, 4, 3));
        assert_eq!((shape.to_string(), shape.total()), ("2x4x3".to_owned(), 12));
        for bad in [
            "", "2", "2x4", "2x4x2x1", "0x4x2", "2x0x2", "2x4x0", "2x4x25", "axbxc", "2x17x5",
            "-1x2x2",
        ] {
            let error = bad.parse::<Shape>().unwrap_err();
            assert!(
                error.contains("found `") && error.contains("2x4x2"),
                "{error}"
            );
        }
    }
}
