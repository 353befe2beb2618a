//! Racks of workers behind their switches, and one switch between the racks.

use super::network::{LinkId, Network, Route, Time};
use serde::Serialize;

/// Racks of the same size, and the links.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Shape {
    /// Racks.
    pub racks: usize,
    /// Workers of each rack.
    pub workers: usize,
    /// Racks whose switch sums: the first ones.
    pub summing: usize,
    /// Rate of a host's link, in Gbit/s.
    pub rate_gbit: f64,
    /// Delay of each link, in ns.
    pub delay_ns: u64,
    /// What the hosts of a rack can send, over what its uplink can.
    pub oversubscription: f64,
}

impl Shape {
    /// Workers of all racks.
    #[must_use]
    pub const fn all(&self) -> usize {
        self.racks * self.workers
    }

    /// The rack of a rank.
    #[must_use]
    pub const fn rack(&self, rank: usize) -> usize {
        rank / self.workers
    }

    /// Whether a rack's switch sums.
    #[must_use]
    pub const fn sums(&self, rack: usize) -> bool {
        rack < self.summing
    }

    /// Members of Rina's ring.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.summing + (self.racks - self.summing) * self.workers
    }
}

#[derive(Clone, Copy, Debug)]
struct Cable {
    up: LinkId,
    down: LinkId,
}

/// The links of a shape: a cable for each worker and each rack, and one more rack with one host.
#[derive(Debug)]
pub struct Fabric {
    shape: Shape,
    hosts: Vec<Cable>,
    racks: Vec<Cable>,
}

impl Fabric {
    /// The fabric, as links of a network.
    pub fn new<M: Copy>(shape: Shape, network: &mut Network<M>) -> Self {
        let delay: Time = shape.delay_ns * 1000;
        let mut cable = |rate| Cable {
            up: network.link(rate, delay),
            down: network.link(rate, delay),
        };
        let uplink = shape.rate_gbit * shape.workers as f64 / shape.oversubscription;
        Self {
            hosts: (0..=shape.all()).map(|_| cable(shape.rate_gbit)).collect(),
            racks: (0..=shape.racks).map(|_| cable(uplink)).collect(),
            shape,
        }
    }

    /// The shape.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Delay from a host to one of another rack.
    #[must_use]
    pub const fn delay(&self) -> Time {
        4 * self.shape.delay_ns * 1000
    }

    /// The host in the rack of its own, as a rank.
    #[must_use]
    pub const fn server(&self) -> usize {
        self.shape.all()
    }

    /// A worker's link to its switch, and the one from it.
    #[must_use]
    pub fn links(&self, rank: usize) -> [LinkId; 2] {
        let Cable { up, down } = self.hosts[rank];
        [up, down]
    }

    /// From a host to another one.
    #[must_use]
    pub fn between(&self, from: usize, to: usize) -> Route {
        let (a, b) = (self.hosts[from], self.hosts[to]);
        let (rack, other) = (self.shape.rack(from), self.shape.rack(to));
        if rack == other {
            return Route::new(&[a.up, b.down]);
        }
        Route::new(&[a.up, self.racks[rack].up, self.racks[other].down, b.down])
    }

    /// From a host to its switch.
    #[must_use]
    pub fn to_switch(&self, from: usize) -> Route {
        Route::new(&[self.hosts[from].up])
    }

    /// From a rack's switch to a host.
    #[must_use]
    pub fn from_switch(&self, rack: usize, to: usize) -> Route {
        let (down, other) = (self.hosts[to].down, self.shape.rack(to));
        if rack == other {
            return Route::new(&[down]);
        }
        Route::new(&[self.racks[rack].up, self.racks[other].down, down])
    }

    /// From a host to the switch of a rack, its own or another.
    #[must_use]
    pub fn to_rack(&self, from: usize, rack: usize) -> Route {
        let (up, own) = (self.hosts[from].up, self.shape.rack(from));
        if rack == own {
            return Route::new(&[up]);
        }
        Route::new(&[up, self.racks[own].up, self.racks[rack].down])
    }

    /// From a rack's switch to another one.
    #[must_use]
    pub fn between_racks(&self, from: usize, to: usize) -> Route {
        Route::new(&[self.racks[from].up, self.racks[to].down])
    }
}
