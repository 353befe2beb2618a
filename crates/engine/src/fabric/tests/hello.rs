//! Which hellos keep a link alive, and what is said of others.

use super::*;

/// Two switches with one link: the first is below.
fn pair() -> World {
    World::new(&leaf_spine(1, 1, 1, 1))
}

fn live(world: &World, at: usize) -> Vec<bool> {
    let all = world.switches[at].fabric.link_status(world.now());
    all.iter().map(|it| it.alive_for.is_some()).collect()
}

#[test]
fn a_link_lives_when_both_ends_hear_each_other_and_dies_in_350_ms_of_silence() {
    let mut world = pair();
    world.run(400);
    assert_eq!((live(&world, 0), live(&world, 1)), (vec![true], vec![true]));
    let neighbours = world.switches[0].fabric.neighbour_status();
    let [spine] = &neighbours[..] else {
        panic!("{neighbours:?}");
    };
    assert_eq!((spine.switch.as_str(), spine.is_up), ("switch1", true));
    assert_eq!(
        (spine.mac, spine.ip),
        (switch_mac(1), [10, 85, 0, 1].into())
    );
    assert_eq!(
        (spine.udp_port, &spine.links[..]),
        (31249, &[PortId(0)][..])
    );
    // Silent, with a carrier.
    world.switches[1].is_on = false;
    world.run(200);
    assert_eq!(live(&world, 0), [true]);
    world.run(170);
    assert_eq!(live(&world, 0), [false]);
    assert!(world.switches[0].fabric.neighbour_status().is_empty());
    let [
        FabricEvent::Alive(..),
        FabricEvent::Dead(PortId(0), name, lived, false),
    ] = &world.switches[0].events[..]
    else {
        panic!("{:?}", world.switches[0].events);
    };
    assert_eq!(name, "switch1");
    assert!(lived.as_millis() > 400, "{lived:?}");
    world.switches[1].is_on = true;
    world.run(500);
    assert_eq!(live(&world, 0), [true]);
    assert_eq!(
        world.switches[0].fabric.link_status(world.now())[0].deaths,
        1
    );
}

#[test]
fn a_carrier_that_is_lost_ends_a_link_at_once() {
    let mut world = pair();
    world.run(400);
    world.wires[0].is_cut = true;
    world.run(10);
    assert_eq!(
        (live(&world, 0), live(&world, 1)),
        (vec![false], vec![false])
    );
    let last = world.switches[0].events.last();
    assert!(
        matches!(last, Some(FabricEvent::Dead(.., true))),
        "{last:?}"
    );
}

#[test]
fn a_link_that_carries_one_way_only_is_dead() {
    let mut world = pair();
    world.run(400);
    // What the leaf sends is lost; what the spine sends arrives, and names old hellos.
    for _ in 0..60 {
        world.now += STEP;
        let now = world.now();
        let sent = world.switches[1].fabric.poll(now);
        for action in sent {
            world.carry_out(1, action);
        }
        for (port, frame) in world.switches[0].forwarding.ports().take_fabric() {
            world.switches[0].fabric.receive(now, port, &frame);
        }
        let _ = world.switches[0].fabric.poll(now);
    }
    assert_eq!(live(&world, 1), [false], "the spine hears nothing");
}

/// Has the pair talk, and one end be another than is configured.
fn wrong_end(change: impl Fn(&mut FabricConfig)) -> Vec<FabricEvent> {
    let topology = leaf_spine(1, 1, 1, 1);
    let mut world = pair();
    let mut config = fabric_config(1, plan_of(&topology, 1), 77);
    change(&mut config);
    world.switches[1].fabric = Fabric::new(config);
    world.run(2000);
    assert_eq!(live(&world, 0), [false]);
    world.switches[0].events.clone()
}

#[test]
fn another_end_than_configured_is_said_once_and_the_link_stays_dead() {
    let said = |change: fn(&mut FabricConfig)| {
        let events = wrong_end(change);
        let [FabricEvent::Wrong(PortId(0), name, problem)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(name, "switch1");
        problem.clone()
    };
    let other = || "0d1f0a6c2b7e4935a0c1d2e3f4051627".parse().unwrap();
    assert_eq!(
        said(|it| it.keys.key = "0d1f0a6c2b7e4935a0c1d2e3f4051627".parse().unwrap()),
        Problem::Key
    );
    assert_eq!(
        said(|it| it.name = "spine9".into()),
        Problem::Name("spine9".into())
    );
    let upwards = |it: &mut FabricConfig| {
        it.plan = Plan::new([Planned {
            port: PortId(0),
            switch: name(0),
            is_up: true,
        }]);
    };
    assert_eq!(said(upwards), Problem::Direction(true));
    assert_eq!(
        said(|it| it.mac = Mac::BROADCAST),
        Problem::Mac(Mac::BROADCAST)
    );
    // With the key before as well, it lives.
    let topology = leaf_spine(1, 1, 1, 1);
    let mut world = pair();
    let mut config = fabric_config(1, plan_of(&topology, 1), 77);
    config.keys.previous = Some(std::mem::replace(&mut config.keys.key, other()));
    world.switches[1].fabric = Fabric::new(config);
    world.run(500);
    assert_eq!((live(&world, 0), live(&world, 1)), (vec![true], vec![true]));
}

#[test]
fn recorded_hellos_keep_nothing_alive_and_disturb_nothing() {
    let mut world = pair();
    let mut recorded: Vec<Box<[u8]>> = Vec::new();
    for _ in 0..100 {
        world.now += STEP;
        let now = world.now();
        for action in world.switches[1].fabric.poll(now) {
            if let FabricAction::Send(_, frame) = &action {
                recorded.push(frame.clone());
            }
            world.carry_out(1, action);
        }
        world.now -= STEP;
        world.run(10);
    }
    assert_eq!(live(&world, 0), [true]);
    // While the neighbour lives.
    for frame in &recorded {
        world.receive(0, frame);
    }
    world.run(200);
    assert_eq!(live(&world, 0), [true]);
    // Its other runs are not heard while it is.
    world.switches[1].is_on = false;
    for _ in 0..10 {
        world.run(50);
        for frame in &recorded {
            world.receive(0, frame);
        }
    }
    assert_eq!(live(&world, 0), [false], "recordings keep no link alive");
    // Nor does a new process of this switch take what was said to the old one.
    let topology = leaf_spine(1, 1, 1, 1);
    world.restart(&topology, 0, 99);
    for frame in &recorded {
        world.receive(0, frame);
        world.run(10);
    }
    assert_eq!(live(&world, 0), [false]);
    // A new process of the neighbour is heard.
    world.restart(&topology, 1, 1001);
    world.run(1000);
    assert_eq!((live(&world, 0), live(&world, 1)), (vec![true], vec![true]));
}

#[test]
fn switches_above_each_other_in_a_ring_never_close_it() {
    for ring in 3..6 {
        let mut topology = Topology {
            hosts: vec![1; ring],
            links: (0..ring).map(|at| (at, (at + 1) % ring)).collect(),
        };
        // With a leaf at one of them.
        topology.hosts.push(1);
        topology.links.push((ring, 0));
        let mut world = World::new(&topology);
        world.bound = 100;
        for _ in 0..150 {
            world.run(20);
            for host in 0..world.hosts.len() {
                // It panics if the frame goes round.
                let got = world.broadcast(host, world.now as u16);
                assert!(!got.contains_key(&host), "ring of {ring}: {got:?}");
            }
        }
    }
}

#[test]
fn frames_from_dead_links_and_switches_that_hosts_claim_to_be_are_dropped() {
    let mut world = World::new(&leaf_spine(2, 2, 1, 1));
    let (host, up) = (world.hosts[0].1, 0);
    let frame = packet(1, None, 1);
    assert_eq!(
        world.decide(0, up, &mut frame.clone()),
        Err(DropReason::FabricLink)
    );
    world.run(500);
    assert_eq!(world.decide(0, up, &mut frame.clone()), Ok(Verdict::Flood));
    // Up and up again.
    let mut remote = packet(0, Some(1), 1);
    remote[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    assert_eq!(
        world.decide(0, 1, &mut remote.clone()),
        Err(DropReason::Reflection)
    );
    let mut claim = packet(0, None, 1);
    claim[6..12].copy_from_slice(&switch_mac(2).0);
    assert_eq!(
        world.decide(0, host, &mut claim.clone()),
        Err(DropReason::SpoofedSwitch)
    );
    // A neighbour's own MAC is known from its hellos, and goes by its link.
    let mut to_spine = packet(0, None, 1);
    to_spine[..6].copy_from_slice(&switch_mac(3).0);
    assert_eq!(
        world.decide(0, host, &mut to_spine),
        Ok(Verdict::Forward(PortId(1)))
    );
    // Hellos from hosts are not heard.
    let mut buffer = [0; FRAME_BYTES_MAX];
    let bytes = fabric::emit_addresses(
        &mut buffer,
        switch_mac(2),
        fabric::Stamp::default(),
        &[],
        &keys(),
    );
    buffer[6..12].copy_from_slice(&host_mac(0).0);
    assert_eq!(
        world.decide(0, host, &mut buffer[..bytes]),
        Err(DropReason::LinkLocal)
    );
    assert!(
        world.switches[0]
            .forwarding
            .ports()
            .take_fabric()
            .is_empty()
    );
}

#[test]
fn no_frame_of_a_neighbour_panics() {
    let mut world = pair();
    world.run(400);
    let now = world.now();
    let mut random = 1_u64;
    for len in 0..200 {
        let mut frame = vec![0; len];
        for byte in &mut frame {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = (random >> 33) as u8;
        }
        world.switches[0].fabric.receive(now, PortId(0), &frame);
        world.switches[0].fabric.receive(now, PortId(900), &frame);
    }
    assert_eq!(world.switches[0].fabric.link_status(now)[0].wrong, 200);
    assert_eq!(live(&world, 0), [true]);
}

/// A host that sends from ever new addresses has its leaf tell thousands of them.
#[test]
fn thousands_of_addresses_delay_no_hello_and_are_all_told() {
    let mut world = pair();
    world.run(400);
    let deaths = |world: &World| world.switches[1].fabric.link_status(world.now())[0].deaths;
    for round in 0..20_u32 {
        let entries: Vec<_> = (0..8000_u32)
            .map(|n| (Mac([2, 7, 0, 0, (n >> 8) as u8, n as u8]), PortId(1), 0))
            .collect();
        let now = world.now();
        let leaf = &mut world.switches[0].fabric;
        leaf.announce(now, round, &entries);
        world.run(100);
    }
    assert_eq!((live(&world, 1), deaths(&world)), (vec![true], 0));
    let now_s = (world.now().0 / 1_000_000_000) as u32;
    let known = world.switches[1].forwarding.macs().len(now_s);
    assert!(known >= 7800, "{known} of 8000");
}

#[test]
fn a_neighbour_that_sends_without_end_keeps_no_other_from_being_heard() {
    let mut world = World::new(&leaf_spine(1, 2, 1, 1));
    world.run(400);
    // What the first leaf sends, and much more that is no frame of the fabric.
    let mut noise = [0; 100];
    noise[..6].copy_from_slice(&fabric::FABRIC_MAC.0);
    noise[12..14].copy_from_slice(&fabric::ETHERTYPE_FABRIC.to_be_bytes());
    for _ in 0..100 {
        for _ in 0..1000 {
            let _ = world.decide(2, 0, &mut noise.clone());
        }
        world.run(10);
    }
    assert!(live(&world, 2)[1], "the second leaf is heard");
    let waiting = world.switches[2].forwarding.ports().take_fabric();
    assert!(waiting.len() <= 128, "{}", waiting.len());
}
