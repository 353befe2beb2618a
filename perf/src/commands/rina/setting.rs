//! Who sums over which links, and how fast these links let it be.

use serde::{Serialize, Serializer};
use std::fmt;
use tally_testkit::racks::RackSpec;

/// Who sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Tally, in so many racks.
    Rina(usize),
    /// Gloo's ring.
    Ring,
    /// Rings in racks and across them, over Gloo's messages.
    Hierarchy,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rina(sums) => write!(f, "rina-{sums}"),
            Self::Ring => f.write_str("ring"),
            Self::Hierarchy => f.write_str("hierarchy"),
        }
    }
}

impl Serialize for Contender {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Contender {
    /// What tables call it.
    pub fn describe(self) -> String {
        match self {
            Self::Rina(sums) => format!("Tally, {sums} racks sum"),
            Self::Ring => "Gloo's ring".to_owned(),
            Self::Hierarchy => "Gloo, rings of racks".to_owned(),
        }
    }
}

/// Hosts and links.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    pub racks: usize,
    /// Of each rack.
    pub hosts: usize,
    pub host_mbit: u32,
    pub uplink_mbit: u32,
    /// Of the vector, f32.
    pub elements: u64,
}

impl Setting {
    /// All hosts.
    pub fn total(self) -> usize {
        self.racks * self.hosts
    }

    /// Its racks, of which the first ones sum.
    pub fn specs(self, sums: usize) -> Vec<RackSpec> {
        let spec = |rack| RackSpec {
            sums: rack < sums,
            hosts: self.hosts,
        };
        (0..self.racks).map(spec).collect()
    }

    /// Bits of the vector.
    pub fn bits(self) -> f64 {
        self.elements as f64 * 32.0
    }

    /// Members of a ring: racks that sum, and hosts elsewhere.
    fn members(self, sums: usize) -> f64 {
        (sums + (self.racks - sums) * self.hosts) as f64
    }

    /// The time that the busiest link needs for the payload of an all-reduce.
    pub fn bound_seconds(self, contender: Contender) -> f64 {
        let [host, uplink] = self.rates();
        let share = |n: f64| (n - 1.0) / n;
        let (n, hosts) = (self.total() as f64, self.hosts as f64);
        let ring = |n: f64| 2.0 * share(n);
        self.bits()
            * match contender {
                Contender::Rina(0) | Contender::Ring => ring(n) / host.min(uplink),
                // One agent of the rack sends on (ADR 49): more than a ring's member does.
                Contender::Rina(sums) => {
                    let members = self.members(sums);
                    let agent = (1.0 + 3.0 * share(members)) / host;
                    agent.max(ring(members) / uplink)
                }
                Contender::Hierarchy => {
                    let across = ring(self.racks as f64);
                    let busiest = ring(hosts) + across / hosts;
                    (busiest / host).max(across / uplink)
                }
            }
    }

    /// The least time of a parameter server in a rack without Tally, as long as there is one:
    /// a stream of each rack that sums and of each host elsewhere comes over its link.
    pub fn server_bound_seconds(self, sums: usize) -> f64 {
        let [host, _] = self.rates();
        self.bits() * self.members(sums) / host
    }

    fn rates(self) -> [f64; 2] {
        [self.host_mbit, self.uplink_mbit].map(|mbit| f64::from(mbit) * 1e6)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn setting(host_mbit: u32, uplink_mbit: u32) -> Setting {
        Setting {
            racks: 4,
            hosts: 4,
            host_mbit,
            uplink_mbit,
            elements: 1_000_000_000 / 32,
        }
    }

    #[test]
    fn bounds_are_those_of_the_busiest_link() {
        use Contender::{Hierarchy, Rina, Ring};
        let is = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        };
        // One gigabit over links of one gigabit a second.
        let even = setting(1000, 4000);
        is(even.bound_seconds(Ring), 1.875);
        is(even.bound_seconds(Rina(0)), 1.875);
        is(even.bound_seconds(Rina(1)), 1.0 + 3.0 * 12.0 / 13.0);
        is(even.bound_seconds(Rina(4)), 3.25);
        is(even.bound_seconds(Hierarchy), 1.875);
        let streams = [0, 1, 3].map(|sums| even.server_bound_seconds(sums));
        assert_eq!(streams, [16.0, 13.0, 7.0]);
        // Flows of all hosts of a rack share its uplink.
        let narrow = setting(1000, 500);
        is(narrow.bound_seconds(Hierarchy), 3.0);
        is(narrow.bound_seconds(Ring), 3.75);
    }

    #[test]
    fn racks_get_switches_from_the_first_one_on() {
        let sums: Vec<_> = setting(1, 1).specs(1).iter().map(|it| it.sums).collect();
        assert_eq!(sums, [true, false, false, false]);
    }
}
