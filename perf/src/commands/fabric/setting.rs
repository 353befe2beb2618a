//! Who sums over which links, and how fast these links let it be.

use serde::Serialize;
use tally_testkit::fabric::Shape;

/// Who sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Tally over a tree of switches
    Tree,
    /// Tally on one switch
    Single,
    /// Gloo's ring leaf by leaf, over bridges
    Ring,
    /// Gloo's ring around the leaves, over bridges
    RingSpread,
    /// Gloo's ring leaf by leaf, through Tally's switches
    RingSwitched,
    /// Gloo's ring around the leaves, through Tally's switches
    RingSwitchedSpread,
}

/// The order of a ring's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Leaf by leaf.
    Packed,
    /// Around the leaves.
    Spread,
}

/// What forwards the frames of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Middle {
    /// The kernel's bridges, over one spine.
    Bridges,
    /// Tally's switches, over all spines.
    Switches,
}

impl Contender {
    /// All, in the order of their turns.
    pub const ALL: [Self; 6] = [
        Self::Tree,
        Self::Single,
        Self::Ring,
        Self::RingSpread,
        Self::RingSwitched,
        Self::RingSwitchedSpread,
    ];

    /// What forwards a ring's frames, and the order of its ranks.
    pub const fn ring(self) -> Option<(Middle, Order)> {
        match self {
            Self::Tree | Self::Single => None,
            Self::Ring => Some((Middle::Bridges, Order::Packed)),
            Self::RingSpread => Some((Middle::Bridges, Order::Spread)),
            Self::RingSwitched => Some((Middle::Switches, Order::Packed)),
            Self::RingSwitchedSpread => Some((Middle::Switches, Order::Spread)),
        }
    }

    /// What tables call it.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Tree => "Tally, tree of switches",
            Self::Single => "Tally, one switch",
            Self::Ring => "Gloo's ring, bridges",
            Self::RingSpread => "Gloo's ring spread, bridges",
            Self::RingSwitched => "Gloo's ring, Tally's switches",
            Self::RingSwitchedSpread => "Gloo's ring spread, switches",
        }
    }
}

/// The conditions under which all contenders sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub shape: Shape,
    /// Rate of a host's link.
    pub host_mbit: u32,
    /// Rate of each link between a leaf and a spine.
    pub uplink_mbit: u32,
    pub mtu: u16,
    /// Of Tally's frames.
    pub payload_bytes: u16,
    /// Fragments that a worker of Tally may have unfinished.
    pub window: u16,
    /// Of the vector, f32.
    pub elements: u64,
}

impl Setting {
    /// What the workers behind a leaf can send, by what these uplinks carry.
    pub fn oversubscription(self, uplinks: usize) -> f64 {
        let below = self.shape.workers as f64 * f64::from(self.host_mbit);
        below / (uplinks as f64 * f64::from(self.uplink_mbit))
    }

    /// Bits of the vector.
    pub fn bits(self) -> f64 {
        self.elements as f64 * 32.0
    }

    /// The time that the busiest link needs for the payload of an all-reduce.
    pub fn bound_seconds(self, contender: Contender) -> f64 {
        let Shape {
            spines,
            leaves,
            workers,
        } = self.shape;
        let [host, uplink] = [self.host_mbit, self.uplink_mbit].map(|mbit| f64::from(mbit) * 1e6);
        let n = self.shape.total() as f64;
        let (share, rate) = match contender.ring() {
            None if contender == Contender::Single => (1.0, host),
            None => (1.0, host.min(uplink)),
            Some((middle, order)) => {
                let uplinks = match middle {
                    Middle::Bridges => 1.0,
                    Middle::Switches => spines as f64,
                };
                // A flow has the host's link to itself, and is not split over uplinks.
                let flow = match order {
                    _ if leaves == 1 => f64::INFINITY,
                    Order::Packed => uplink,
                    Order::Spread => uplink.min(uplinks * uplink / workers as f64),
                };
                (2.0 * (n - 1.0) / n, host.min(flow))
            }
        };
        share * self.bits() / rate
    }

    /// For each rank of a ring, the rank of Tally's job that is on the same host: these are
    /// numbered leaf by leaf.
    pub fn hosts_of_ring(self, order: Order) -> Vec<u16> {
        let Shape {
            leaves, workers, ..
        } = self.shape;
        let host = |rank: usize| match order {
            Order::Packed => rank,
            Order::Spread => rank % leaves * workers + rank / leaves,
        };
        (0..self.shape.total())
            .map(|rank| host(rank) as u16)
            .collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn setting(shape: &str, host_mbit: u32, uplink_mbit: u32) -> Setting {
        Setting {
            shape: shape.parse().unwrap(),
            host_mbit,
            uplink_mbit,
            mtu: 9000,
            payload_bytes: 8192,
            window: 128,
            elements: 1_000_000_000 / 32,
        }
    }

    #[test]
    fn bounds_are_those_of_the_busiest_link() {
        let seconds = |setting: Setting| Contender::ALL.map(|it| setting.bound_seconds(it));
        // One gigabit over links of one gigabit a second.
        let ring = 2.0 * 15.0 / 16.0;
        let even = seconds(setting("2x4x4", 1000, 1000));
        assert_eq!(even, [1.0, 1.0, ring, 4.0 * ring, ring, 2.0 * ring]);
        let ring = 2.0 * 7.0 / 8.0;
        let half = seconds(setting("2x4x2", 1000, 500));
        let all = [2.0, 1.0, 2.0 * ring, 4.0 * ring, 2.0 * ring, 2.0 * ring];
        assert_eq!(half, all);
        // Behind one leaf no flow of a ring goes up; more uplinks than flows help none.
        let one = seconds(setting("2x1x4", 1000, 500));
        assert_eq!(one, [2.0, 1.0, 1.5, 1.5, 1.5, 1.5]);
        let wide = seconds(setting("4x2x2", 1000, 500));
        assert_eq!(wide[5], 3.0);
    }

    #[test]
    fn oversubscription_is_by_the_uplinks_in_use() {
        let setting = setting("2x4x2", 100, 50);
        assert_eq!(setting.oversubscription(1), 4.0);
        assert_eq!(setting.oversubscription(2), 2.0);
    }

    #[test]
    fn a_spread_ring_changes_the_leaf_with_each_rank() {
        let setting = setting("2x3x2", 100, 100);
        assert_eq!(setting.hosts_of_ring(Order::Packed), [0, 1, 2, 3, 4, 5]);
        assert_eq!(setting.hosts_of_ring(Order::Spread), [0, 2, 4, 1, 3, 5]);
    }
}
