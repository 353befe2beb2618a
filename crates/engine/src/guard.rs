//! The loop guard: which ports are blocked because they are joined outside of the switch (control).
//!
//! Each watched port sends a [probe](crate::forwarding::probe) in each round. A probe that comes
//! back shows a loop, and one port of it is blocked: nothing is forwarded from it or to it until no
//! probe has come back by it for [`HOLD`].
//!
//! Only the port by which the probe came back may be blocked: a host can hand a probe to another
//! host, or send its own port's back, and blocks at most a port that it sends from. Of two ports of
//! a loop the one with the higher number is blocked, so that the other carries on. The lower one is
//! blocked only if its loop persists for [`PATIENCE`] rounds, as one that leads one way does.
//!
//! A blocked port sends no probe, unless it was blocked for its own.

use crate::PortId;
use crate::forwarding::probe::Sighting;
use std::time::Duration;
use tally_wire::Time;

/// Time from one probe of a port to the next.
pub const ROUND: Duration = Duration::from_secs(1);
/// How long no probe may come back before a port is released.
pub const HOLD: Duration = Duration::from_secs(10);
/// Rounds in which the probe of a higher port comes back before the lower one is blocked.
pub const PATIENCE: u32 = 3;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardAction {
    /// Send a probe.
    Probe(PortId),
    /// Block the port: the probe of the second port came back by it.
    Block(PortId, PortId),
    /// Release the port, which was blocked for so long.
    Release(PortId, Duration),
}

#[derive(Clone, Copy, Debug)]
struct Blocked {
    since: Time,
    last_seen: Time,
    /// Whether its own probe came back.
    by_own: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    is_up: bool,
    blocked: Option<Blocked>,
    /// Rounds in a row in which a higher port's probe came.
    from_higher: u32,
    next: Time,
    round_seen: bool,
}

/// The guard of all ports.
#[derive(Debug)]
pub struct LoopGuard(Vec<Watched>);

impl LoopGuard {
    /// So many ports, none of them watched.
    #[must_use]
    pub fn new(ports: u16) -> Self {
        Self(vec![Watched::default(); usize::from(ports)])
    }

    /// Watches a port from now on, or no longer. A port that goes down is released.
    pub fn watch(&mut self, now: Time, port: PortId, is_up: bool) -> Option<GuardAction> {
        let state = self.0.get_mut(usize::from(port.0))?;
        if is_up == state.is_up {
            return None;
        }
        let blocked = state.blocked.take();
        *state = Watched {
            is_up,
            next: now,
            ..Watched::default()
        };
        blocked.map(|blocked| GuardAction::Release(port, now.since(blocked.since)))
    }

    /// Whether a port is blocked.
    #[must_use]
    pub fn is_blocked(&self, port: PortId) -> bool {
        let state = self.0.get(usize::from(port.0));
        state.is_some_and(|state| state.blocked.is_some())
    }

    /// Decides, with what came back by each port since the last call.
    pub fn poll(&mut self, now: Time, seen: impl Fn(PortId) -> Sighting) -> Vec<GuardAction> {
        let mut actions = Vec::new();
        for at in 0..self.0.len() {
            let port = PortId(at as u16);
            let sighting = seen(port);
            if self.0[at].is_up {
                actions.extend(self.note(now, port, sighting));
                actions.extend(self.advance(now, port));
            }
        }
        actions
    }

    fn note(&mut self, now: Time, port: PortId, seen: Sighting) -> Option<GuardAction> {
        // A blocked port joins nothing. Its probes of before may still be under way.
        let from = seen.from.filter(|&from| !self.is_blocked(from));
        let state = &mut self.0[usize::from(port.0)];
        let origin = if seen.own { Some(port) } else { from };
        let origin = origin?;
        if let Some(blocked) = &mut state.blocked {
            blocked.last_seen = now;
            blocked.by_own |= seen.own;
            return None;
        }
        if origin > port {
            if !state.round_seen {
                state.round_seen = true;
                state.from_higher += 1;
            }
            if state.from_higher < PATIENCE {
                return None;
            }
        }
        state.blocked = Some(Blocked {
            since: now,
            last_seen: now,
            by_own: seen.own,
        });
        state.from_higher = 0;
        Some(GuardAction::Block(port, origin))
    }

    fn advance(&mut self, now: Time, port: PortId) -> Option<GuardAction> {
        let state = &mut self.0[usize::from(port.0)];
        if let Some(blocked) = state.blocked
            && now.since(blocked.last_seen) >= HOLD
        {
            state.blocked = None;
            state.next = now.after(ROUND);
            return Some(GuardAction::Release(port, now.since(blocked.since)));
        }
        if now < state.next {
            return None;
        }
        state.next = now.after(ROUND);
        if !std::mem::take(&mut state.round_seen) {
            state.from_higher = 0;
        }
        let sends = state.blocked.is_none_or(|blocked| blocked.by_own);
        sends.then_some(GuardAction::Probe(port))
    }
}

#[cfg(test)]
mod tests {
    use super::GuardAction::{Block, Probe, Release};
    use super::*;
    use std::collections::BTreeMap;

    const ROUND_MS: u64 = 1000;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn guard(ports: u16) -> LoopGuard {
        let mut guard = LoopGuard::new(ports);
        for port in 0..ports {
            assert_eq!(guard.watch(at(0), PortId(port), true), None);
        }
        guard
    }

    /// A network that carries what leaves by a port to other ports.
    struct World {
        guard: LoopGuard,
        wires: Vec<(u16, u16)>,
        seen: BTreeMap<u16, Sighting>,
        now: u64,
    }

    impl World {
        fn new(ports: u16, wires: &[(u16, u16)]) -> Self {
            Self {
                guard: guard(ports),
                wires: wires.to_vec(),
                seen: BTreeMap::new(),
                now: 0,
            }
        }

        /// Runs so long; what was blocked and released.
        fn run(&mut self, ms: u64) -> Vec<GuardAction> {
            let mut all = Vec::new();
            for _ in 0..ms / 100 {
                self.now += 100;
                let seen = std::mem::take(&mut self.seen);
                let of = |port: PortId| seen.get(&port.0).copied().unwrap_or_default();
                for action in self.guard.poll(at(self.now), of) {
                    let Probe(from) = action else {
                        all.push(action);
                        continue;
                    };
                    for &(_, to) in self.wires.iter().filter(|(a, _)| *a == from.0) {
                        let sighting = self.seen.entry(to).or_default();
                        if to == from.0 {
                            sighting.own = true;
                        } else {
                            let lowest = sighting.from.map_or(from, |other| other.min(from));
                            sighting.from = Some(lowest);
                        }
                    }
                }
            }
            all
        }
    }

    #[test]
    fn without_a_loop_each_port_sends_a_probe_a_round_and_none_is_blocked() {
        let mut guard = guard(3);
        let mut probes = 0;
        for n in 0..100 {
            for action in guard.poll(at(n * 100), |_| Sighting::default()) {
                assert!(matches!(action, Probe(_)));
                probes += 1;
            }
        }
        assert_eq!(probes, 3 * 10);
    }

    #[test]
    fn of_two_joined_ports_the_higher_one_is_blocked_while_they_are_joined() {
        let mut world = World::new(4, &[(1, 3), (3, 1)]);
        assert_eq!(world.run(60_000), [Block(PortId(3), PortId(1))]);
        assert!(world.guard.is_blocked(PortId(3)) && !world.guard.is_blocked(PortId(1)));
        world.wires.clear();
        let [Release(PortId(3), blocked)] = world.run(HOLD.as_millis() as u64 + ROUND_MS)[..]
        else {
            panic!("it is released");
        };
        assert!(blocked >= Duration::from_secs(60), "{blocked:?}");
        assert_eq!(world.run(60_000), []);
        world.wires = vec![(1, 3), (3, 1)];
        assert_eq!(world.run(2 * ROUND_MS), [Block(PortId(3), PortId(1))]);
    }

    #[test]
    fn all_ports_of_a_loop_but_the_lowest_are_blocked() {
        let all = [1, 2, 5];
        let wires = all.iter().flat_map(|&a| all.map(|b| (a, b)));
        let wires: Vec<_> = wires.filter(|(a, b)| a != b).collect();
        let mut world = World::new(6, &wires);
        let found = world.run(60_000);
        assert_eq!(
            found,
            [Block(PortId(2), PortId(1)), Block(PortId(5), PortId(1))]
        );
    }

    #[test]
    fn a_loop_that_leads_one_way_down_is_blocked_after_some_rounds() {
        let mut world = World::new(4, &[(3, 1)]);
        assert_eq!(world.run(2 * ROUND_MS), []);
        assert_eq!(world.run(2 * ROUND_MS), [Block(PortId(1), PortId(3))]);
        assert_eq!(world.run(60_000), [], "port 3 still sends its probes");
    }

    #[test]
    fn a_loop_behind_one_port_blocks_it_while_it_lasts() {
        let mut world = World::new(2, &[(1, 1)]);
        assert_eq!(world.run(60_000), [Block(PortId(1), PortId(1))]);
        world.wires.clear();
        assert_eq!(world.run(HOLD.as_millis() as u64 + 2 * ROUND_MS).len(), 1);
    }

    /// A host at port 2 has the probes of port 0 from an accomplice.
    #[test]
    fn a_hostile_host_blocks_no_port_but_its_own() {
        let mut world = World::new(4, &[(0, 2), (1, 2), (3, 2)]);
        assert_eq!(world.run(60_000), [Block(PortId(2), PortId(0))]);
        // Port 3's probes, of a higher number: the host blocks itself after some rounds.
        let mut world = World::new(4, &[(3, 0)]);
        assert_eq!(world.run(60_000), [Block(PortId(0), PortId(3))]);
        assert!(!world.guard.is_blocked(PortId(3)));
    }

    #[test]
    fn a_port_that_goes_down_is_released_and_probed_at_once_when_it_is_up() {
        let mut world = World::new(2, &[(0, 1), (1, 0)]);
        assert_eq!(world.run(ROUND_MS), [Block(PortId(1), PortId(0))]);
        let released = world.guard.watch(at(world.now), PortId(1), false);
        assert!(matches!(released, Some(Release(PortId(1), _))));
        assert_eq!(world.run(ROUND_MS), [], "a port that is down is left alone");
        world.now += 1;
        assert_eq!(world.guard.watch(at(world.now), PortId(1), true), None);
        let found = world.guard.poll(at(world.now), |_| Sighting::default());
        assert!(found.contains(&Probe(PortId(1))));
    }
}
