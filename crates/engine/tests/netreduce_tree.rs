//! A ring over a tree of switches: two leaves with the members, and a root above them. Each of the
//! leaves has two links to the root.

#![allow(clippy::unwrap_used)]

mod common;

use common::fabric::{above, below};
use common::ring::{
    Data, EPOCH, MTU, Member, RING, World, i32s, mac, released, ring, secret, sum_of,
};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;
use tally_engine::context::ParentAddress;
use tally_engine::forwarding::fabric::{FloodSets, NeighbourState, Plan, Table};
use tally_engine::netreduce::{Command as RingCommand, RingConfig, RingRole};
use tally_engine::{Command, DialectCommand, DropReason, PortId, SwitchAddress};
use tally_wire::frame::{UDP_END, emit_udp};
use tally_wire::netreduce::{
    Element, PARTIAL_HEADER_BYTES, PARTIAL_PORT, PartialHeader, PartialKind, RingEpoch,
    ring_of_partial,
};
use tally_wire::roce::{ICRC_BYTES, seal};
use tally_wire::{Addresses, Mac, SwitchName, UdpFrame};

/// Members of the first leaf; the others are the second one's.
const MEMBERS: usize = 5;
const FIRST: usize = 2;
/// A leaf's links to the root, and the root's to each leaf.
const UP: [u16; 2] = [5, 6];
const DOWN: [[u16; 2]; 2] = [[0, 1], [2, 3]];
const ROOT: usize = 2;
const NAMES: [&str; 3] = ["leaf0", "leaf1", "root"];

fn leaf_of(rank: usize) -> usize {
    usize::from(rank >= FIRST)
}

fn address(switch: usize) -> SwitchAddress {
    SwitchAddress {
        mac: Mac([2, 0, 0, 0, 9, switch as u8]),
        ip: Ipv4Addr::new(10, 9, 0, switch as u8 + 1),
        base_port: 9184,
    }
}

/// The ring, as a switch serves it.
fn config(switch: usize) -> RingConfig {
    let ranks = [0..FIRST as u8, FIRST as u8..MEMBERS as u8];
    let role = match ranks.get(switch) {
        Some(ranks) => RingRole::Leaf {
            number: switch as u8,
            ranks: ranks.clone(),
            root: SwitchName::new(NAMES[ROOT]),
        },
        None => RingRole::Root {
            leaves: NAMES[..ROOT]
                .iter()
                .map(|name| SwitchName::new(name))
                .collect(),
        },
    };
    RingConfig {
        role,
        ..ring(MEMBERS)
    }
}

fn table(plan: &Plan, neighbours: &[(usize, &[u16])]) -> Table {
    let states = neighbours.iter().map(|&(switch, live)| NeighbourState {
        live: live.iter().copied().map(PortId).collect(),
        mac: Some(address(switch).mac),
        ip: Some(address(switch).ip),
        is_equal: true,
        ..NeighbourState::default()
    });
    let states: Vec<_> = states.collect();
    Table::new(plan, &states, &FloodSets::default(), 1)
}

fn plan(switch: usize) -> Plan {
    match switch {
        ROOT => Plan::new((0..4).map(|port| below(port, NAMES[usize::from(port / 2)]))),
        _ => Plan::new(UP.map(|port| above(port, NAMES[ROOT]))),
    }
}

/// A leaf hears by its links who is above, or hears nothing any more.
fn introduce_root(leaf: &mut World, is_heard: bool) {
    let root = is_heard.then(|| ParentAddress {
        name: SwitchName::new(NAMES[ROOT]),
        mac: address(ROOT).mac,
        ip: address(ROOT).ip,
    });
    for port in UP {
        leaf.switch.command(|| Command::Parent(PortId(port), root));
    }
}

fn new_switch(switch: usize, cores: u8) -> World {
    let plan = plan(switch);
    let table = match switch {
        ROOT => table(&plan, &[(0, &DOWN[0]), (1, &DOWN[1])]),
        _ => table(&plan, &[(ROOT, &UP)]),
    };
    let rings = [config(switch)];
    let mut world = World::in_fabric_at(address(switch), cores, &rings, &plan, &table.into());
    if switch != ROOT {
        introduce_root(&mut world, true);
    }
    for rank in 0..MEMBERS {
        let port = match (switch, leaf_of(rank)) {
            (ROOT, leaf) => DOWN[leaf][0].into(),
            (here, leaf) if here == leaf => rank,
            _ => UP[0].into(),
        };
        world.greet(rank, port);
    }
    world
}

/// The other end of a link; `None`: a host.
fn peer(switch: usize, port: PortId) -> Option<(usize, usize)> {
    let at = |ports: [u16; 2]| ports.iter().position(|&it| it == port.0);
    match switch {
        ROOT => {
            let leaf = usize::from(port.0 / 2);
            Some((leaf, UP[usize::from(port.0 % 2)].into()))
        }
        leaf => at(UP).map(|link| (ROOT, DOWN[leaf][link].into())),
    }
}

struct Tree {
    switches: Vec<World>,
    cores: u8,
    /// Frames to hosts: leaf, port, frame.
    left: Vec<(usize, u16, Vec<u8>)>,
    seed: u64,
    /// How many of 100 frames between switches, that are for switches, are lost.
    lost: u64,
}

impl Tree {
    fn new(cores: u8) -> Self {
        Self {
            switches: (0..3).map(|switch| new_switch(switch, cores)).collect(),
            cores,
            left: Vec::new(),
            seed: 1,
            lost: 0,
        }
    }

    fn loses(&mut self, frame: &[u8]) -> bool {
        let is_partial = ring_of_partial(&frame[UDP_END..]).is_some();
        self.seed = self
            .seed
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        is_partial && (self.seed >> 33) % 100 < self.lost
    }

    /// Carries frames between switches until none moves.
    fn carry(&mut self) {
        let mut moving = VecDeque::new();
        loop {
            for (at, world) in self.switches.iter_mut().enumerate() {
                moving.extend(
                    world
                        .switch
                        .take()
                        .into_iter()
                        .map(|(port, it)| (at, port, it)),
                );
            }
            let Some((at, port, frame)) = moving.pop_front() else {
                return;
            };
            match peer(at, port) {
                None => self.left.push((at, port.0, frame)),
                Some(_) if self.loses(&frame) => {}
                Some((to, port)) => self.switches[to].send_from(port, &frame),
            }
        }
    }

    fn send(&mut self, data: &Data) {
        self.switches[leaf_of(data.rank)].send_from(data.rank, &data.frame());
        self.carry();
    }

    /// Time passes, and partial sums are sent again.
    fn wait(&mut self, millis: u64) {
        for world in &mut self.switches {
            world.switch.now = world.switch.now.after(Duration::from_millis(millis));
            world.switch.poll();
        }
        self.carry();
    }

    /// The elements with which a packet left to its receiver, if it has: once.
    fn sum(&mut self, data: &Data) -> Option<Vec<u8>> {
        let is_it = |(leaf, port, frame): &(usize, u16, Vec<u8>)| {
            let udp = UdpFrame::parse(frame).unwrap();
            let to = (leaf_of(data.to), data.to as u16);
            let psn = UDP_END + 8..UDP_END + 12;
            let is_alike = frame[psn.clone()] == data.frame()[psn];
            udp.addresses.src_mac == mac(data.rank) && (*leaf, *port) == to && is_alike
        };
        let at = self.left.iter().position(is_it)?;
        Some(sum_of(data, &self.left.remove(at).2))
    }

    #[track_caller]
    fn assert_no_drops(&self) {
        for (name, world) in NAMES.iter().zip(&self.switches) {
            assert_eq!(world.switch.drops(), [], "{name}");
        }
    }

    fn held(&mut self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.switches[at].status().counters.held)
    }
}

fn members() -> Vec<Member> {
    (0..MEMBERS)
        .map(|rank| Member::new(rank, MEMBERS))
        .collect()
}

/// Floats whose sum depends on the order.
fn contribution(rank: usize, message: usize, elements: usize) -> Vec<f32> {
    let at = |i: usize| (rank * 7919 + message * 104_729 + i * 31) % 1000;
    (0..elements)
        .map(|i| (at(i) as f32 - 500.0) * 10f32.powi((rank + i) as i32 % 7))
        .collect()
}

/// Each leaf in rank order, then the leaves.
fn total(message: usize, elements: usize) -> Vec<u8> {
    let at = |i: usize| {
        let leaf = |ranks: std::ops::Range<usize>| {
            let all = ranks.map(|rank| contribution(rank, message, elements)[i]);
            all.reduce(|a, b| a + b).unwrap()
        };
        leaf(0..FIRST) + leaf(FIRST..MEMBERS)
    };
    (0..elements).flat_map(|i| at(i).to_le_bytes()).collect()
}

#[test]
fn members_of_two_leaves_get_the_sum_of_all_with_any_loss_between_switches() {
    for (cores, lost) in [(1, 0), (2, 0), (4, 20), (1, 50)] {
        let mut tree = Tree::new(cores);
        tree.lost = lost;
        let mut members = members();
        for message in 0..12 {
            let elements = [8, 150, 248][message % 3];
            let messages: Vec<_> = (members.iter_mut().enumerate())
                .map(|(rank, member)| {
                    let floats = contribution(rank, message, elements);
                    let bytes: Vec<_> = floats.iter().flat_map(|it| it.to_le_bytes()).collect();
                    member.message(Element::F32, &bytes)
                })
                .collect();
            for packets in &messages {
                packets.iter().for_each(|packet| tree.send(packet));
            }
            let flat = |i: usize| {
                let all = (0..MEMBERS).map(|rank| contribution(rank, message, elements)[i]);
                all.reduce(|a, b| a + b).unwrap()
            };
            let want = total(message, elements);
            let other: Vec<_> = (0..elements).flat_map(|i| flat(i).to_le_bytes()).collect();
            assert!(
                elements < 9 || want != other,
                "else the order does not show"
            );
            for packet in 0..messages[0].len() {
                let at = packet * MTU - usize::from(packet > 0) * 32;
                let mut tries = 0;
                for sent in messages.iter().map(|packets| &packets[packet]) {
                    let sum = loop {
                        if let Some(sum) = tree.sum(sent) {
                            break sum;
                        }
                        tries += 1;
                        assert!(tries < 100 && lost > 0, "rank {} has no sum", sent.rank);
                        tree.wait(300);
                    };
                    assert_eq!(sum, want[at..at + sum.len()], "rank {}", sent.rank);
                }
            }
            assert_eq!(tree.left, [], "each packet leaves once");
        }
        if lost == 0 {
            tree.assert_no_drops();
            let again = |at: usize| tree.switches[at].counters().partials_again;
            assert_eq!((again(0), again(1)), (0, 0));
        }
        // Two windows at most, of four packets; the leaves keep one total of each.
        let status: Vec<_> = (0..3).map(|at| tree.switches[at].status()).collect();
        for status in &status {
            assert!(status.missing.is_empty() && !status.awaits_root);
            assert!(status.counters.held <= 2 * 2 * 4, "{status:?}");
            assert_eq!(status.epoch, Some(EPOCH));
        }
        // All is free when the ring ends.
        for world in &mut tree.switches {
            (world.switch)
                .command(|| Command::Dialect(DialectCommand::Netreduce(RingCommand::Unbind(RING))));
            for core in &mut world.switch.cores {
                core.context.ports.give_back();
            }
            assert_eq!(world.switch.memory.alive(), 0);
        }
    }
}

/// The first packet of each member's next message.
fn firsts(members: &mut [Member], value: i32) -> Vec<Data> {
    let message = |member: &mut Member| member.message(Element::I32, &i32s([value; 10])).remove(0);
    members.iter_mut().map(message).collect()
}

#[test]
fn copies_get_the_total_that_the_leaf_keeps_until_all_have_begun_a_window_later() {
    let mut tree = Tree::new(2);
    let mut members = members();
    let first = firsts(&mut members, 1);
    first.iter().for_each(|data| tree.send(data));
    tree.left.clear();
    tree.send(&first[1]);
    assert_eq!(tree.sum(&first[1]), Some(i32s([5; 10])));
    assert_eq!(tree.switches[0].counters().sums_again, 1);
    let second = firsts(&mut members, 2);
    second.iter().for_each(|data| tree.send(data));
    // All members of the first leaf begin the third message, and not all of the second.
    let third = firsts(&mut members, 3);
    third[..4].iter().for_each(|data| tree.send(data));
    tree.left.clear();
    tree.send(&first[0]);
    assert_eq!(
        tree.sum(&first[0]),
        Some(i32s([5; 10])),
        "rank 4 may lack it"
    );
    assert_eq!(tree.held(), [2 + 2, 2 + 2, 2 + 1]);
    tree.send(&third[4]);
    tree.left.clear();
    tree.send(&first[0]);
    assert_eq!(tree.left, [(0, 1, released(&first[0]).frame())], "freed");
    assert_eq!(tree.held(), [2, 2, 2]);
}

#[test]
fn status_says_whom_a_leaf_and_the_root_wait_for() {
    let mut tree = Tree::new(1);
    let first = firsts(&mut members(), 1);
    tree.send(&first[3]);
    let status = tree.switches[1].status();
    assert_eq!((status.missing, status.awaits_root), (vec![2, 4], false));
    tree.send(&first[0]);
    tree.send(&first[1]);
    let status = tree.switches[0].status();
    assert_eq!((status.missing, status.awaits_root), (vec![], true));
    let status = tree.switches[ROOT].status();
    assert_eq!((status.missing, status.counters.awaited), (vec![1], 1));
    assert_eq!(status.role, config(ROOT).role);
}

#[test]
fn a_partial_sum_takes_another_link_when_one_dies() {
    let mut tree = Tree::new(2);
    for (leaf, links) in [(0, [5]), (1, [6])] {
        let table = table(&plan(leaf), &[(ROOT, &links)]);
        tree.switches[leaf].set_links(&table.into());
    }
    let of_root = table(&plan(ROOT), &[(0, &[0]), (1, &[3])]);
    tree.switches[ROOT].set_links(&of_root.into());
    let mut members = members();
    for value in 1..4 {
        let sent = firsts(&mut members, value);
        sent.iter().for_each(|data| tree.send(data));
        for data in &sent {
            assert_eq!(tree.sum(data), Some(i32s([5 * value; 10])));
        }
    }
    tree.assert_no_drops();
    // While the root is not known nothing is sent, and all is sent again later.
    introduce_root(&mut tree.switches[0], false);
    let sent = firsts(&mut members, 9);
    sent.iter().for_each(|data| tree.send(data));
    assert_eq!(tree.sum(&sent[2]), None);
    assert_eq!(tree.switches[0].dropped(DropReason::NetreduceNoRoute), 1);
    introduce_root(&mut tree.switches[0], true);
    tree.wait(4);
    for data in &sent {
        assert_eq!(tree.sum(data), Some(i32s([45; 10])));
    }
}

/// A frame with a partial sum or a total.
struct Forged {
    header: PartialHeader,
    addresses: Addresses,
}

impl Forged {
    fn new(kind: PartialKind, from: usize, to: usize) -> Self {
        let (from, to) = (address(from), address(to));
        Self {
            header: PartialHeader {
                kind,
                leaf: 0,
                element: Element::I32,
                ring: RING,
                epoch: EPOCH,
                message: 0,
                bytes: 40,
                mtu: 72,
                packet: 0,
            },
            addresses: Addresses {
                src_mac: from.mac,
                dst_mac: to.mac,
                src_ip: from.ip,
                dst_ip: to.ip,
                src_port: PARTIAL_PORT,
                dst_port: PARTIAL_PORT,
            },
        }
    }

    fn frame(&self) -> Vec<u8> {
        let datagram = PARTIAL_HEADER_BYTES + 40 + ICRC_BYTES;
        let mut frame = vec![0; UDP_END + datagram];
        emit_udp(&mut frame, &self.addresses, datagram);
        let way = (self.addresses.src_ip, self.addresses.dst_ip);
        let header = self.header.emit(&secret(RING), way);
        frame[UDP_END..UDP_END + PARTIAL_HEADER_BYTES].copy_from_slice(&header);
        seal(&mut frame);
        frame
    }
}

#[test]
fn partial_sums_are_taken_from_switches_alone() {
    let mut tree = Tree::new(1);
    let good = || Forged::new(PartialKind::Partial, 0, ROOT);
    let root = &mut tree.switches[ROOT];
    // A member has the key, and knows the switches' addresses.
    let mut of_a_host = good();
    of_a_host.addresses.src_mac = mac(0);
    root.assert_dropped(0, &of_a_host.frame(), DropReason::NetreducePort);
    // Leaf 0's, by a link of leaf 1.
    root.assert_dropped(2, &good().frame(), DropReason::NetreducePort);
    let mut frame = good().frame();
    frame[UDP_END + 30] ^= 1;
    root.assert_dropped(0, &frame, DropReason::NetreduceHeader);
    let mut frame = good().frame();
    frame[UDP_END + 40] ^= 1;
    root.assert_dropped(0, &frame, DropReason::NetreduceIcrc);
    let mut other_ring = good();
    other_ring.header.ring.0 += 1;
    root.assert_dropped(0, &other_ring.frame(), DropReason::NetreduceUnknown);
    let mut third_leaf = good();
    third_leaf.header.leaf = 2;
    root.assert_dropped(0, &third_leaf.frame(), DropReason::NetreduceHeader);
    let mut long = good();
    (long.header.bytes, long.header.mtu) = (1600, 256);
    long.header.packet = 6;
    root.assert_dropped(0, &long.frame(), DropReason::NetreduceShape);
    let total = Forged::new(PartialKind::Total, 0, ROOT);
    root.assert_dropped(0, &total.frame(), DropReason::NetreduceHeader);
    assert_eq!(root.counters().contributions, 0);
    root.send_from(0, &good().frame());
    root.assert_dropped(1, &good().frame(), DropReason::Duplicate);
    let mut old = good();
    old.header.epoch = RingEpoch(EPOCH.0 - 1);
    root.assert_dropped(0, &old.frame(), DropReason::NetreduceEpoch);
    let mut ahead = good();
    ahead.header.message = 4;
    root.assert_dropped(0, &ahead.frame(), DropReason::NetreduceWindow);
    let mut shape = good();
    shape.header.leaf = 1;
    shape.header.element = Element::F32;
    root.assert_dropped(0, &shape.frame(), DropReason::NetreduceShape);

    let leaf = &mut tree.switches[0];
    let total = || Forged::new(PartialKind::Total, ROOT, 0);
    leaf.assert_dropped(5, &total().frame(), DropReason::NetreduceEpoch);
    for data in &firsts(&mut members(), 1)[..2] {
        leaf.send_from(data.rank, &data.frame());
    }
    leaf.switch.take();
    let mut of_a_host = total();
    of_a_host.addresses.src_mac = mac(4);
    leaf.assert_dropped(5, &of_a_host.frame(), DropReason::NetreducePort);
    leaf.assert_dropped(0, &total().frame(), DropReason::NetreducePort);
    let mut other = total();
    other.header.message = 1;
    leaf.assert_dropped(5, &other.frame(), DropReason::NetreduceShape);
    let partial = Forged::new(PartialKind::Partial, ROOT, 0);
    leaf.assert_dropped(5, &partial.frame(), DropReason::NetreduceHeader);
    assert_eq!(leaf.counters().released, 0);
    leaf.send_from(5, &total().frame());
    assert_eq!(leaf.counters().released, 2);
    leaf.switch.take();
    leaf.assert_dropped(5, &total().frame(), DropReason::Duplicate);
}

#[test]
fn a_switch_that_restarts_ends_the_epoch_and_makes_no_wrong_sum() {
    for switch in [0, 1, ROOT] {
        let mut tree = Tree::new(1);
        let mut old = members();
        for value in 1..3 {
            let sent = firsts(&mut old, value);
            sent.iter().for_each(|data| tree.send(data));
        }
        let third = firsts(&mut old, 3);
        third[1..].iter().for_each(|data| tree.send(data));
        tree.left.clear();
        tree.switches[switch] = new_switch(switch, tree.cores);
        // What was sent is sent again, and time passes.
        for _ in 0..3 {
            third.iter().for_each(|data| tree.send(data));
            tree.wait(500);
        }
        // Partial sums are the same whenever they are sent, and a leaf that restarted knows no
        // connection.
        for data in &third {
            let leaf = leaf_of(data.rank);
            let has_sum = switch == ROOT || (switch, leaf) == (1, 0);
            let want = has_sum.then(|| i32s([15; 10]));
            assert_eq!(tree.sum(data), want, "switch {switch} rank {}", data.rank);
        }
        let mut new = members();
        for member in &mut new {
            member.epoch.0 += 1;
            member.qp.0 += 0x1000;
        }
        tree.left.clear();
        for value in 1..6 {
            let sent = firsts(&mut new, value);
            sent.iter().for_each(|data| tree.send(data));
            for data in &sent {
                assert_eq!(tree.sum(data), Some(i32s([5 * value; 10])));
            }
        }
    }
}

#[test]
fn all_that_a_silent_ring_holds_is_freed() {
    let mut tree = Tree::new(1);
    let sent = firsts(&mut members(), 1);
    tree.send(&sent[0]);
    tree.send(&sent[1]);
    assert_eq!(tree.held(), [2, 0, 1]);
    for _ in 0..30 {
        tree.wait(5000);
    }
    assert_eq!(tree.held(), [0, 0, 0]);
    assert_eq!(tree.switches[ROOT].counters().expired, 1);
    let mut members = members();
    for member in &mut members {
        member.epoch.0 += 1;
    }
    let sent = firsts(&mut members, 2);
    sent.iter().for_each(|data| tree.send(data));
    assert_eq!(tree.sum(&sent[0]), Some(i32s([10; 10])));
}

/// N-18: a member may have received all of a message of which its own leaf has had no total.
#[test]
fn a_leaf_without_totals_takes_a_window_more() {
    let mut tree = Tree::new(1);
    let mut members = members();
    for value in 1..3 {
        let sent = firsts(&mut members, value);
        sent.iter().for_each(|data| tree.send(data));
    }
    // Totals for leaf 0 are lost from now on. Rank 0 has its sums from rank 4, at leaf 1.
    let leaf = &mut tree.switches[0];
    for value in 3..7 {
        let sent = firsts(&mut members, value);
        leaf.send_from(0, &sent[0].frame());
    }
    assert_eq!(leaf.switch.drops(), [], "messages 0 to 5 are live");
    let sent = firsts(&mut members, 7);
    leaf.assert_dropped(0, &sent[0].frame(), DropReason::NetreduceWindow);
}
