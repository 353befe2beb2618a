//! When rings begin, what goes wrong with them, and what an operator does.

use super::{Plan, Scenario};
use crate::check::data::Contributor;
use crate::world::World;

impl Scenario {
    /// Starts the rings, if there are any.
    pub(super) fn begin_rings(&mut self, world: &mut World<Contributor>) {
        let Some(rings) = &mut self.rings else {
            return;
        };
        rings.begin(world);
        for (n, at) in rings.troubles(world.now).into_iter().enumerate() {
            self.plan(world, at, Plan::RingTrouble(n));
        }
    }

    pub(super) fn ring_trouble(&mut self, world: &mut World<Contributor>, n: usize) {
        let Some(rings) = &mut self.rings else {
            return;
        };
        if let Some((ring, at)) = rings.trouble(world, &self.findings, n) {
            self.plan(world, at, Plan::RingReturns { ring });
        }
    }

    pub(super) fn ring_returns(&mut self, world: &mut World<Contributor>, ring: usize) {
        if let Some(rings) = &mut self.rings {
            rings.add(world, ring);
        }
    }
}
