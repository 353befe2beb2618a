//! Packet memory: a pool for each NUMA node that has a port or a data core.
//!
//! A NIC writes into memory of its own node, regardless of the core that reads it. A frame may end
//! up anywhere, so each pool has all frames that the whole switch can hold. Memory of ordinary
//! pages has no node, and then there is one pool.

use crate::config::{Config, MemoryKind, PortSection};
use crate::handover::frames_max;
use crate::platform::STAGE_FRAMES;
use anyhow::Result;
use std::collections::BTreeSet;
use tally_dpdk::{Eal, Mempool, MempoolConfig};
use tally_engine::queue::CLASSES;

/// Frames that a thread may keep for itself: the most that DPDK allows. A poll iteration of eight
/// ports receives 256, and takes 256 more for the headers of SwitchML's results: what exceeds the
/// cache comes from the pool's ring, in turn, and then from memory.
const CACHE_FRAMES: u32 = 512;

/// The pools, by node.
#[derive(Clone)]
pub struct Pools(Vec<(Option<u32>, Mempool)>);

impl Pools {
    /// Makes them. `ports` has the node of each port, if it has one.
    ///
    /// # Errors
    /// If a node has not enough memory.
    pub fn new(
        eal: &Eal,
        config: &Config,
        ports: impl Iterator<Item = Option<u32>>,
    ) -> Result<Self> {
        let cores = config.cores.iter().map(|&cpu| node_of_cpu(cpu));
        let nodes = nodes(config.eal.memory, ports.chain(cores));
        let pool = |node: Option<u32>| {
            let name = node.map_or_else(|| "frames".to_owned(), |node| format!("frames{node}"));
            let size = MempoolConfig {
                frames: frames(config),
                cache_frames: CACHE_FRAMES,
                frame_bytes_max: config.frame_bytes_max(),
                socket: node,
            };
            Ok((node, Mempool::new(eal, &name, &size)?))
        };
        nodes.into_iter().map(pool).collect::<Result<_>>().map(Self)
    }

    /// The pool of that node, or another one if it has none.
    #[must_use]
    pub fn on(&self, node: Option<u32>) -> &Mempool {
        let found = self.0.iter().find(|(on, _)| *on == node);
        &found.unwrap_or(&self.0[0]).1
    }

    /// Frames that are not back in their pools.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.0.iter().map(|(_, pool)| pool.in_use()).sum()
    }
}

/// Frames in a pool: the number that the switch can hold at one time, rounded up to what fills
/// DPDK's ring.
#[must_use]
pub fn frames(config: &Config) -> u32 {
    let cores = config.cores.len() as u16;
    let waiting = CLASSES as u32 * config.queue_share(cores).frames;
    // A port has no more queues than there are cores, of those that hold frames.
    let each = |port: &PortSection| 2 * u32::from(port.descriptors) + waiting + STAGE_FRAMES as u32;
    let spare = (config.ports_max() - config.ports.len()) as u32 * each(&PortSection::new(""));
    let ports = u32::from(cores) * (config.ports.iter().map(each).sum::<u32>() + spare);
    let rings = config.jobs.len() as u32 * u32::from(config.served_window()) * 2;
    let later = u32::from(config.places()) - config.jobs.len() as u32;
    let rings = rings.next_power_of_two() * 2 + later * u32::from(config.served_window()) * 2;
    let bursts = config.cores.len() as u32 * 1024;
    let handover = frames_max(config.cores.len()) as u32;
    let others = config.switchml_frames() + config.netreduce_frames();
    let all = ports + rings + config.slots() + config.held() + bursts + handover + others;
    all.next_power_of_two() - 1
}

/// Packet memory, in MiB.
#[must_use]
pub fn megabytes(config: &Config) -> u32 {
    config.eal.megabytes.unwrap_or_else(|| {
        // Descriptor, headroom, DPDK's own header and padding.
        let each = u64::from(config.frame_bytes_max()) + 512;
        // No buffer crosses a page, so on ordinary pages each takes whole ones.
        let page = if config.eal.memory == MemoryKind::NoHuge {
            4096
        } else {
            64
        };
        let frames = u64::from(frames(config)) * each.next_multiple_of(page);
        // DPDK's own tables and the drivers' rings.
        (frames * 9 / 8 / (1 << 20)) as u32 + 64
    })
}

/// Where pools are needed: never nowhere.
fn nodes(memory: MemoryKind, needed: impl Iterator<Item = Option<u32>>) -> BTreeSet<Option<u32>> {
    let mut nodes = BTreeSet::new();
    if memory != MemoryKind::NoHuge {
        nodes.extend(needed.filter(Option::is_some));
    }
    if nodes.is_empty() {
        nodes.insert(None);
    }
    nodes
}

/// The NUMA node of a CPU; `None` if the machine does not say.
#[must_use]
pub fn node_of_cpu(cpu: usize) -> Option<u32> {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("node")?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_a_port_or_a_core_has_a_pool() {
        use MemoryKind::{Hugepages, InMemory, NoHuge};
        let on = |memory, needed: &[Option<u32>]| {
            nodes(memory, needed.iter().copied())
                .into_iter()
                .collect::<Vec<_>>()
        };
        // One node, and virtual ports, which have none.
        assert_eq!(on(InMemory, &[None, None, Some(0), Some(0)]), [Some(0)]);
        assert_eq!(
            on(Hugepages, &[Some(1), Some(0), Some(1)]),
            [Some(0), Some(1)]
        );
        // The machine does not say.
        assert_eq!(on(InMemory, &[None]), [None]);
        assert_eq!(on(NoHuge, &[Some(1), Some(0)]), [None]);
    }

    #[test]
    fn this_machine_says_where_its_cpus_are_or_nothing() {
        let nodes = std::fs::read_to_string("/sys/devices/system/node/online");
        let only = nodes.ok().filter(|nodes| nodes.trim() == "0");
        assert_eq!(node_of_cpu(0), only.map(|_| 0).or(node_of_cpu(0)));
        assert_eq!(node_of_cpu(1 << 20), None);
    }
}
