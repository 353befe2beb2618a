//! Members of rings behind other switches: a connection's packets move to another link when theirs
//! dies, also within a message, and packets leave by a link that lives.

#![allow(clippy::unwrap_used)]

mod common;

use common::fabric::{above, below, table};
use common::ring::{
    Data, Member, RING, STRANGER, World, i32s, mac, released, ring, secret, sum_of,
};
use std::sync::Arc;
use tally_engine::forwarding::fabric::{Plan, Table};
use tally_engine::netreduce::RingConfig;
use tally_engine::{DropReason, PortId};
use tally_wire::UdpFrame;
use tally_wire::netreduce::{Element, RingId};

/// Member 0 is behind other switches, by these ports; others are behind the ports of their numbers.
const LINKS: [u16; 2] = [5, 6];

/// The links of a fabric, whole and with the first one dead.
struct Links {
    plan: Plan,
    whole: Arc<Table>,
    halved: Arc<Table>,
}

impl Links {
    fn of(plan: Plan, whole: &[(&[u16], &[usize])], halved: &[(&[u16], &[usize])]) -> Self {
        Self {
            whole: table(&plan, whole),
            halved: table(&plan, halved),
            plan,
        }
    }

    /// Each way to be behind other switches by two links.
    fn all() -> [Self; 3] {
        let doubled = Plan::new(LINKS.map(|port| below(port, "leaf1")));
        let up = Plan::new([above(LINKS[0], "spine1"), above(LINKS[1], "spine2")]);
        let down = Plan::new([below(LINKS[0], "spine1"), below(LINKS[1], "spine2")]);
        [
            Self::of(doubled, &[(&[5, 6], &[])], &[(&[6], &[])]),
            Self::of(up, &[(&[5], &[]), (&[6], &[])], &[(&[], &[]), (&[6], &[])]),
            Self::of(
                down,
                &[(&[5], &[1]), (&[6], &[0])],
                &[(&[], &[1]), (&[6], &[0])],
            ),
        ]
    }

    fn world(&self, cores: u8, members: usize) -> World {
        let mut world = World::in_fabric(cores, &[ring(members)], &self.plan, &self.whole);
        world.greet(0, LINKS[0].into());
        for host in 1..members {
            world.greet(host, host);
        }
        world
    }
}

/// Sends a packet by a port; what leaves, by rank of the sender: port and elements.
fn send(world: &mut World, port: u16, sent: &[Data], which: usize) -> Vec<(usize, u16, Vec<u8>)> {
    world.send_from(port.into(), &sent[which].frame());
    let left = world.switch.take();
    let mut left: Vec<_> = (left.iter())
        .map(|(port, frame)| {
            let from = UdpFrame::parse(frame).unwrap().addresses.src_mac;
            let rank = sent.iter().position(|it| mac(it.rank) == from).unwrap();
            (rank, port.0, sum_of(&sent[rank], frame))
        })
        .collect();
    left.sort_unstable();
    left
}

/// Packet `at` of each member's message.
fn column(messages: &[Vec<Data>], at: usize) -> Vec<Data> {
    messages.iter().map(|packets| packets[at].clone()).collect()
}

#[test]
fn a_connection_s_packets_move_to_another_link_within_a_message() {
    for links in Links::all() {
        for cores in [1, 2, 4] {
            let mut world = links.world(cores, 3);
            let mut members: Vec<_> = (0..3).map(|rank| Member::new(rank, 3)).collect();
            for message in 0..4 {
                let elements = |rank: usize| i32s((0..150).map(|i| i * (rank as i32 + message)));
                let messages: Vec<_> = (members.iter_mut())
                    .map(|member| member.message(Element::I32, &elements(member.rank)))
                    .collect();
                // From the second message on, in the middle of the first.
                let port = |at| LINKS[usize::from(message > 0 || at > 0)];
                if message == 1 {
                    world.set_links(&links.halved);
                    world.greet(0, LINKS[1].into());
                }
                for at in 0..3 {
                    let sent = column(&messages, at);
                    assert_eq!(send(&mut world, port(at), &sent, 0), []);
                    assert_eq!(send(&mut world, 1, &sent, 1), []);
                    let left = send(&mut world, 2, &sent, 2);
                    let all: Vec<u8> = left.iter().flat_map(|(.., sum)| sum).copied().collect();
                    let sum = i32s((0..150).map(|i| i * 3 * (1 + message)));
                    let (_, _, first) = &left[0];
                    assert_eq!(all, first.repeat(3), "the same sum to all");
                    let begin = [0, 224, 480][at];
                    assert_eq!(first[..], sum[begin..begin + first.len()]);
                    let ports: Vec<_> = left.iter().map(|(_, port, _)| *port).collect();
                    assert_eq!(ports[..2], [1, 2]);
                    assert!(LINKS.contains(&ports[2]) && (message == 0 || ports[2] == LINKS[1]));
                }
            }
            assert_eq!(world.switch.drops(), [], "{cores} cores");
            assert_eq!(world.counters().epochs, 1);
        }
    }
}

#[test]
fn a_sum_leaves_by_another_link_when_its_own_dies_before_the_last_has_come() {
    for links in Links::all() {
        let mut world = links.world(2, 2);
        let mut members: Vec<_> = (0..2).map(|rank| Member::new(rank, 2)).collect();
        let messages: Vec<_> = (members.iter_mut())
            .map(|member| member.message(Element::I32, &i32s([7; 10])))
            .collect();
        let sent = column(&messages, 0);
        // The packet to member 0 is held, and so is the link that it would leave by.
        assert_eq!(send(&mut world, 1, &sent, 1), []);
        world.set_links(&links.halved);
        world.greet(0, LINKS[1].into());
        let left = send(&mut world, LINKS[1], &sent, 0);
        let sum = i32s([14; 10]);
        assert_eq!(left, [(0, 1, sum.clone()), (1, LINKS[1], sum)]);
        assert_eq!(world.switch.drops(), []);
    }
}

#[test]
fn a_connection_is_still_refused_where_its_member_is_not() {
    let names = ["spine1", "spine2", "spine3"];
    let plan = Plan::new((4..).zip(names).map(|(port, name)| below(port, name)));
    let table = table(&plan, &[(&[4], &[]), (&[5], &[2]), (&[6], &[1])]);
    let mut world = World::in_fabric(1, &[ring(2)], &plan, &table);
    world.greet(0, 5);
    world.greet(1, 1);
    let packets = Member::new(0, 2).message(Element::I32, &i32s([1; 150]));
    world.send_from(5, &packets[0].frame());
    // A host, and another switch below that has other hosts.
    for port in [STRANGER, 4] {
        world.assert_dropped(port, &packets[1].frame(), DropReason::NetreducePort);
    }
    let mut frame = packets[1].frame();
    frame[6..12].copy_from_slice(&mac(STRANGER).0);
    world.assert_dropped(6, &frame, DropReason::NetreducePort);
    world.send_from(6, &packets[1].frame());
    assert_eq!(world.counters().contributions, 2);
}

/// A switch serves rings and is in the way of another one's sums.
#[test]
fn sums_of_another_switch_pass_from_links() {
    let [links, ..] = Links::all();
    let mut world = links.world(1, 2);
    let packets = Member::new(0, 2).message(Element::I32, &i32s([1; 150]));
    for packet in packets {
        let released = released(&packet);
        world.send_from(LINKS[0].into(), &released.frame());
        assert_eq!(world.switch.take(), [(PortId(1), released.frame())]);
    }
    assert_eq!(world.counters().contributions, 0);
}

/// The receiver gives a queue pair's number to a connection of another ring: what a core found out
/// about the old one is not used for the new one, which began on another core.
#[test]
fn a_core_does_not_take_a_new_connection_for_the_one_that_it_knew() {
    let other = RingId(RING.0 + 1);
    let rings = [
        ring(2),
        RingConfig {
            id: other,
            secret: secret(other),
            ..ring(2)
        },
    ];
    let [links, ..] = Links::all();
    let mut world = World::in_fabric(2, &rings, &links.plan, &links.whole);
    world.greet(0, 5);
    world.greet(1, 1);
    let mut old = Member::new(0, 2);
    let mut new = Member::new(0, 2);
    new.ring = other;
    let [old, new] = [&mut old, &mut new].map(|it| it.message(Element::I32, &i32s([1; 150])));
    world.send_from(5, &old[0].frame());
    world.send_from(6, &old[1].frame());
    world.send_from(5, &new[0].frame());
    world.send_from(6, &new[1].frame());
    world.send_from(6, &new[2].frame());
    assert_eq!(world.switch.take(), []);
    assert_eq!(world.switch.drops(), []);
    assert_eq!(world.status_of(RING).counters.held, 2);
    assert_eq!(world.status_of(other).counters.held, 3);
    world.assert_dropped(6, &old[2].frame(), DropReason::Duplicate);
}
