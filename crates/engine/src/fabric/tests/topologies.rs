//! Floods and frames to known hosts in many small fabrics, with links that are dead.

use super::*;

/// A generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

fn all_but(world: &World, from: usize) -> BTreeMap<usize, usize> {
    (0..world.hosts.len())
        .filter(|&host| host != from)
        .map(|host| (host, 1))
        .collect()
}

/// Each host floods to all others once, and sends to each of them, by every switch on the way
/// knowing where it is.
#[track_caller]
fn all_reach_all(world: &mut World, what: &str) {
    let hosts = world.hosts.len();
    for from in 0..hosts {
        let tag = world.now as u16;
        assert_eq!(
            world.broadcast(from, tag),
            all_but(world, from),
            "{what}: flood of {from}"
        );
    }
    world.run(1500);
    for from in 0..hosts {
        for to in (0..hosts).filter(|&to| to != from) {
            for flow in 0..4 {
                let got = world.send(from, &packet(from, Some(to), flow));
                assert_eq!(
                    got,
                    BTreeMap::from([(to, 1)]),
                    "{what}: {from} to {to}, flow {flow}"
                );
            }
        }
    }
}

#[test]
fn in_whole_fabrics_all_reach_all_and_each_flood_comes_once() {
    for (spines, leaves, links) in [(1, 1, 1), (1, 3, 1), (2, 3, 1), (3, 2, 2), (4, 4, 1)] {
        let mut world = World::new(&leaf_spine(spines, leaves, 2, links));
        world.run(1000);
        all_reach_all(&mut world, &format!("{spines}x{leaves}, {links} links"));
    }
    let mut world = World::new(&three_tiers(2));
    world.run(1500);
    all_reach_all(&mut world, "three tiers");
}

/// A host in a pod may come by both switches of the pod to a core above, also when one of them has
/// lost a leaf or is dead; never by those of the other pod.
#[test]
fn hosts_come_by_all_switches_that_ever_reached_them() {
    let mut world = World::new(&three_tiers(1));
    let ports = || (0..4).map(PortId);
    let check = |world: &World, what: &str| {
        let core = &world.switches[8].forwarding;
        for (known, port) in ports().flat_map(|known| ports().map(move |port| (known, port))) {
            let is_same_pod = known.0 / 2 == port.0 / 2;
            let may_come = core.may_come(known, port);
            assert_eq!(may_come, is_same_pod, "{what}: {known:?}, {port:?}");
        }
    };
    world.run(1500);
    check(&world, "whole");
    // Middle 4 and its leaf 0, then the middle as a whole.
    world.wires[0].is_cut = true;
    world.run(1000);
    check(&world, "without a leaf");
    world.switches[4].is_on = false;
    world.run(1000);
    check(&world, "without a switch");
}

#[test]
fn any_link_and_any_upper_switch_may_die_in_a_redundant_fabric() {
    let topologies = [
        leaf_spine(2, 3, 1, 1),
        leaf_spine(2, 2, 1, 2),
        three_tiers(1),
    ];
    for topology in &topologies {
        let mut world = World::new(topology);
        world.run(1500);
        all_reach_all(&mut world, "whole");
        for at in 0..world.wires.len() {
            world.wires[at].is_cut = true;
            world.run(500);
            let what = format!("without wire {:?}", world.wires[at].ends);
            // In a leaf-spine, a leaf that one spine has lost makes that spine reach less.
            all_reach_all(&mut world, &what);
            world.wires[at].is_cut = false;
            world.run(1000);
        }
        let leaves = topology.hosts.iter().filter(|hosts| **hosts > 0).count();
        for at in leaves..world.switches.len() {
            world.switches[at].is_on = false;
            world.run(600);
            all_reach_all(&mut world, &format!("without {}", name(at)));
            world.restart(topology, at, 1000 + world.now);
            world.run(1500);
            all_reach_all(&mut world, &format!("{} is back", name(at)));
        }
    }
}

/// The switches that a flood of a leaf reaches at best: those below the best spine.
fn best_of_leaf_spine(world: &World, topology: &Topology, leaf: usize) -> usize {
    let spines = topology.hosts.iter().filter(|hosts| **hosts == 0).count();
    let leaves = topology.hosts.len() - spines;
    let is_linked = |leaf: usize, spine: usize| {
        let mut wires = world.wires.iter();
        wires.any(|it| !it.is_cut && it.ends.map(|end| end.0) == [leaf, spine])
    };
    let above = (leaves..leaves + spines).filter(|&spine| is_linked(leaf, spine));
    let reached = above.map(|spine| (0..leaves).filter(|&it| is_linked(it, spine)).count());
    reached.max().unwrap_or(1).max(1)
}

#[test]
fn with_any_links_dead_no_flood_comes_twice_and_the_best_way_up_is_taken() {
    for seed in 1..13 {
        let mut random = Random::new(seed);
        let (spines, leaves) = (1 + random.below(3), 1 + random.below(4));
        let topology = leaf_spine(spines, leaves, 1, 1 + random.below(2));
        let mut world = World::new(&topology);
        for round in 0..3 {
            for wire in &mut world.wires {
                wire.is_cut = random.below(3) == 0;
            }
            world.run(1200);
            for from in 0..leaves {
                let got = world.broadcast(from, round);
                assert!(got.values().all(|n| *n == 1), "seed {seed}: {got:?}");
                assert!(!got.contains_key(&from), "seed {seed}: back to {from}");
                let best = best_of_leaf_spine(&world, &topology, from);
                assert_eq!(got.len() + 1, best, "seed {seed}: flood of {from}: {got:?}");
            }
        }
    }
}

#[test]
fn in_random_tiers_with_dead_links_no_flood_comes_twice_and_no_frame_goes_round() {
    for seed in 1..17 {
        let mut random = Random::new(seed);
        let sizes = [
            2 + random.below(3),
            1 + random.below(3),
            1 + random.below(2),
        ];
        let firsts = [0, sizes[0], sizes[0] + sizes[1]];
        let mut topology = Topology::default();
        topology.hosts.extend(vec![1; sizes[0]]);
        topology
            .hosts
            .extend((0..sizes[1] + sizes[2]).map(|_| random.below(2)));
        for tier in 0..2 {
            for lower in 0..sizes[tier] {
                for upper in 0..sizes[tier + 1] {
                    let links = random.below(3);
                    let ends = (firsts[tier] + lower, firsts[tier + 1] + upper);
                    topology.links.extend(vec![ends; links]);
                }
            }
        }
        // A leaf may have a link past the middle.
        if random.below(2) == 0 {
            topology.links.push((0, firsts[2]));
        }
        let mut world = World::new(&topology);
        for round in 0..3 {
            for wire in &mut world.wires {
                wire.is_cut = random.below(4) == 0;
            }
            world.run(2000);
            for from in 0..world.hosts.len() {
                let got = world.broadcast(from, round);
                let is_once = got.values().all(|n| *n == 1) && !got.contains_key(&from);
                assert!(
                    is_once,
                    "seed {seed}, flood of {from}: {got:?} in {topology:?}"
                );
            }
            // Until a switch below has told those above it of a host, what some of them flood and
            // others do not may come twice.
            world.run(1200);
            let is_below = |host: &usize| *host < sizes[0];
            for from in (0..world.hosts.len()).filter(is_below) {
                for to in world
                    .broadcast(from, round + 10)
                    .into_keys()
                    .filter(is_below)
                {
                    let got = world.send(from, &packet(from, Some(to), round));
                    let is_once = got.values().all(|n| *n == 1);
                    assert!(
                        is_once,
                        "seed {seed}: {from} to {to}: {got:?} in {topology:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_host_that_moves_is_found_when_it_speaks() {
    let mut world = World::new(&leaf_spine(2, 3, 1, 1));
    world.run(1000);
    all_reach_all(&mut world, "before");
    // Host 0 is at the port of host 2, at another leaf, and says so.
    world.now += 5_000 * MS;
    world.run(100);
    world.hosts.swap(0, 2);
    let frame = packet(0, None, 77);
    assert_eq!(world.send(0, &frame).len(), 2);
    world.run(3000);
    for flow in 0..8 {
        let got = world.send(1, &packet(1, Some(0), flow));
        assert_eq!(got, BTreeMap::from([(0, 1)]), "flow {flow}");
    }
}

#[test]
fn flows_spread_over_all_ways_up_and_stay_when_another_way_dies() {
    let topology = leaf_spine(4, 2, 1, 2);
    let mut world = World::new(&topology);
    world.run(1000);
    all_reach_all(&mut world, "whole");
    let way = |world: &World, flow| {
        let mut frame = packet(0, Some(1), flow);
        match world.decide(0, world.hosts[0].1, &mut frame) {
            Ok(Verdict::Forward(port)) => port.0,
            other => panic!("{other:?}"),
        }
    };
    let before: Vec<_> = (0..800).map(|flow| way(&world, flow)).collect();
    for port in 0..8 {
        let flows = before.iter().filter(|it| **it == port).count();
        assert!(
            (60..140).contains(&flows),
            "port {port}: {flows} of 800 flows"
        );
    }
    // Port 3 is the second link to the second spine.
    let wire = world.wires.iter_mut().find(|it| it.ends[0] == (0, 3));
    wire.unwrap().is_cut = true;
    world.run(100);
    for (flow, before) in (0..800).zip(before) {
        let now = way(&world, flow);
        assert!(
            now == before || before == 3 && now != 3,
            "flow {flow}: {before}, {now}"
        );
    }
}
