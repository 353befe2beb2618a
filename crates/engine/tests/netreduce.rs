//! Rings of RoCEv2 hosts at a switch: sums, copies, loss, and frames of others.

#![allow(clippy::unwrap_used)]

mod common;

use common::ring::{
    Data, EPOCH, Left, Member, PORTS, RING, STRANGER, World, i32s, ip, mac, released, sum_of,
};
use std::time::Duration;
use tally_engine::netreduce::Command as NetreduceCommand;
use tally_engine::{Command, DialectCommand, DropReason, PortId};
use tally_wire::UdpFrame;
use tally_wire::field::udp;
use tally_wire::frame::UDP_END;
use tally_wire::netreduce::{DEFAULT_DSCP, Element, RingEpoch, RingId, released_dscp};
use tally_wire::roce::{BTH_BYTES, Bth, Place, Psn, QueuePair, Verb, seal};

/// All members send a message; returns what they sent and what left.
fn exchange(
    world: &mut World,
    members: &mut [Member],
    element: Element,
    elements: impl Fn(usize) -> Vec<u8>,
) -> (Vec<Vec<Data>>, Left) {
    let sent: Vec<_> = (members.iter_mut())
        .map(|member| {
            let elements = elements(member.rank);
            member.message(element, &elements)
        })
        .collect();
    let mut left = Vec::new();
    for packets in sent.iter().rev() {
        for packet in packets {
            left.extend(world.send(packet));
        }
    }
    (sent, left)
}

/// The frame to the successor of a rank at a place of its message.
fn left_of<'a>(left: &'a Left, sent: &Data) -> &'a [u8] {
    let is_it = |frame: &[u8]| {
        let udp = UdpFrame::parse(frame).unwrap();
        let bth = Bth::parse(udp.datagram(frame)).unwrap();
        udp.addresses.src_ip == ip(sent.rank) && bth.psn == sent.psn
    };
    let mut found = left.iter().filter(|(_, frame)| is_it(frame));
    let (port, frame) = found.next().expect("a packet of each member leaves");
    assert_eq!(usize::from(port.0), sent.to);
    assert!(found.next().is_none(), "once");
    frame
}

fn element(rank: usize, at: i32) -> i32 {
    (i32::MAX - 5).wrapping_add(rank as i32 * at)
}

#[test]
fn every_packet_leaves_with_the_sum_of_all() {
    for (cores, verb) in [
        (1, Verb::Send),
        (1, Verb::Write),
        (2, Verb::Send),
        (4, Verb::Write),
    ] {
        for n in [2, 3, 7] {
            let mut world = World::new(cores, &[n]);
            let mut members: Vec<_> = (0..n).map(|rank| Member::new(rank, n)).collect();
            members.iter_mut().for_each(|member| member.verb = verb);
            for bytes in [4, 220, 224, 228, 600, 992] {
                let elements = |rank: usize| i32s((0..bytes / 4).map(|i| element(rank, i)));
                let (sent, left) = exchange(&mut world, &mut members, Element::I32, elements);
                let expected = i32s((0..bytes / 4).map(|i| {
                    let parts = (0..n).map(|rank| element(rank, i));
                    parts.fold(0, i32::wrapping_add)
                }));
                assert_eq!(left.len(), n * sent[0].len());
                for packets in &sent {
                    let parts = packets.iter().map(|it| sum_of(it, left_of(&left, it)));
                    assert_eq!(
                        parts.collect::<Vec<_>>().concat(),
                        expected,
                        "{bytes} bytes"
                    );
                }
            }
            assert_eq!(world.switch.drops(), [], "nothing is dropped");
        }
    }
}

#[test]
fn sums_of_floats_are_in_the_order_of_ranks() {
    let n = 4;
    let values: [f32; 4] = [1e8, 3.25, -1e8, 7.5e-3];
    let expected = values.iter().copied().reduce(|a, b| a + b).unwrap();
    for start in 0..n {
        let mut world = World::new(1, &[n]);
        let mut left = Vec::new();
        let mut sent = Vec::new();
        for rank in (0..n).map(|i| (start + 3 * i) % n) {
            let elements = values[rank].to_le_bytes().repeat(40);
            let packets = Member::new(rank, n).message(Element::F32, &elements);
            left.extend(world.send(&packets[0]));
            sent.push(packets[0].clone());
        }
        for packet in &sent {
            let sum = sum_of(packet, left_of(&left, packet));
            assert_eq!(sum, expected.to_le_bytes().repeat(40));
        }
    }
    for (element, one, expected) in [
        (Element::F16, 0x3c00u16, 0x4400u16),
        (Element::Bf16, 0x3f80, 0x4080),
    ] {
        let mut world = World::new(1, &[n]);
        let mut members: Vec<_> = (0..n).map(|rank| Member::new(rank, n)).collect();
        let ones = one.to_le_bytes().repeat(300);
        let (sent, left) = exchange(&mut world, &mut members, element, |_| ones.clone());
        let parts = sent[2].iter().map(|it| sum_of(it, left_of(&left, it)));
        assert_eq!(
            parts.collect::<Vec<_>>().concat(),
            expected.to_le_bytes().repeat(300)
        );
    }
}

#[test]
fn copies_are_dropped_before_the_sum_and_get_it_afterwards() {
    let mut world = World::new(1, &[2]);
    let [mut a, mut b] = [0, 1].map(|rank| Member::new(rank, 2));
    let from_a = a.message(Element::I32, &i32s([1; 100]));
    let from_b = b.message(Element::I32, &i32s([2; 100]));
    for packet in &from_a {
        assert!(world.send(packet).is_empty());
        world.assert_dropped(0, &packet.frame(), DropReason::Duplicate);
    }
    // A copy with other elements: what counts is what came first.
    let mut other = from_a[1].clone();
    other.payload = i32s([99; 44]);
    world.assert_dropped(0, &other.frame(), DropReason::Duplicate);
    for packet in &from_b {
        assert_eq!(world.send(packet).len(), 2);
    }
    for packet in from_a.iter().chain(&from_b).chain([&other]) {
        let left = world.send(packet);
        assert_eq!(left.len(), 1);
        let sum = sum_of(packet, left_of(&left, packet));
        assert_eq!(sum, i32s(vec![3; sum.len() / 4]));
    }
    assert_eq!(world.counters().sums_again, 5);
    assert_eq!(world.counters().sums, 2);
}

#[test]
fn state_is_freed_when_all_have_sent_a_window_later() {
    let n = 3;
    let mut world = World::new(1, &[n]);
    let before = world.switch.memory.alive();
    let mut members: Vec<_> = (0..n).map(|rank| Member::new(rank, n)).collect();
    let elements = |rank: usize| i32s([rank as i32; 100]);
    let (first, _) = exchange(&mut world, &mut members, Element::I32, elements);
    exchange(&mut world, &mut members, Element::I32, elements);
    let status = world.status();
    assert_eq!(
        (status.counters.held, status.counters.messages),
        (4, 0),
        "one sum a slot"
    );
    // Two of three have sent in message 2: message 0 is kept.
    for member in &mut members[..2] {
        world.send(&member.message(Element::I32, &elements(member.rank))[0]);
    }
    let left = world.send(&first[1][0]);
    assert_eq!(sum_of(&first[1][0], &left[0].1), i32s([3; 56]));
    let last = members[2].message(Element::I32, &elements(2));
    assert_eq!(world.send(&last[0]).len(), n);
    assert_eq!(world.status().counters.messages, 1);
    // It is freed: its receiver has had it, and ignores the payload.
    let left = world.send(&first[1][0]);
    assert_eq!(left[0].1, released(&first[1][0]).frame());
    assert_eq!(world.counters().copies_passed, 1);

    let status = world.status();
    assert_eq!(
        world.switch.memory.alive() as u64,
        before as u64 + status.counters.held
    );
    let unbind = || Command::Dialect(DialectCommand::Netreduce(NetreduceCommand::Unbind(RING)));
    world.switch.command(unbind);
    assert_eq!(
        world.switch.memory.alive(),
        before,
        "a ring that ends frees all"
    );
}

#[test]
fn no_member_is_two_windows_ahead() {
    let n = 2;
    let mut world = World::new(1, &[n]);
    let mut fast = Member::new(0, n);
    for _ in 0..4 {
        assert!(
            world
                .send(&fast.message(Element::I32, &i32s([1]))[0])
                .is_empty()
        );
    }
    let next = fast.message(Element::I32, &i32s([1]));
    world.assert_dropped(0, &next[0].frame(), DropReason::NetreduceWindow);
    assert_eq!(world.status().counters.held, 4);
    assert_eq!(world.status().missing, [1]);
}

#[test]
fn packets_behind_a_lost_first_one_pass_and_cannot_be_taken_for_it() {
    let n = 2;
    let mut world = World::new(1, &[n]);
    let mut a = Member::new(0, n);
    let zeroth = a.message(Element::I32, &i32s([1; 100]));
    zeroth.iter().for_each(|it| drop(world.send(it)));
    let next = a.message(Element::I32, &i32s([1; 200]));
    // The first is lost before the switch. Its receiver answers NAK to what is behind.
    let left = world.send(&next[1]);
    // Its PSN is one that the receiver never comes to: a delayed one that comes behind the first
    // packet's retransmission would be taken for a sum.
    let mut far = released(&next[1]);
    far.psn = far.psn.after(1 << 22);
    let mut far = far.frame();
    far[udp::CHECKSUM].fill(0);
    seal(&mut far);
    assert_eq!(left[0].1, far);
    assert_eq!(world.counters().ahead_passed, 1);
    // What stands in its place and is no first packet would be taken: it is dropped.
    let mut forged = next[1].clone();
    forged.psn = next[0].psn;
    world.assert_dropped(0, &forged.frame(), DropReason::NetreduceHeader);
    let mut forged = next[0].clone();
    forged.payload[30] ^= 1;
    world.assert_dropped(0, &forged.frame(), DropReason::NetreduceHeader);
    // Nor may a message be left out.
    let after = a.message(Element::I32, &i32s([1; 100]));
    let mut early = after[0].clone();
    early.psn = next[0].psn;
    world.assert_dropped(0, &early.frame(), DropReason::NetreduceHeader);
    assert!(world.send(&next[0]).is_empty(), "held");
}

#[test]
fn data_of_no_connection_is_not_forwarded() {
    let n = 3;
    let mut world = World::new(2, &[n]);
    let mut a = Member::new(0, n);
    let zeroth = a.message(Element::I32, &i32s([1; 100]));
    let first = a.message(Element::I32, &i32s([1; 200]));
    // As after a restart of the switch: a message under way, and one that begins.
    world.assert_dropped(0, &zeroth[1].frame(), DropReason::NetreduceUnknown);
    world.assert_dropped(0, &first[0].frame(), DropReason::NetreduceUnknown);
    world.assert_dropped(0, &first[1].frame(), DropReason::NetreduceUnknown);
    let mut plain = zeroth[0].clone();
    plain.payload = vec![0; 64];
    plain.place = Place::Only;
    world.assert_dropped(0, &plain.frame(), DropReason::NetreduceHeader);
    // READ requests of RC, too.
    let mut read = plain.frame();
    read[UDP_END] = 0x0c;
    seal(&mut read);
    world.assert_dropped(0, &read, DropReason::NetreduceUnknown);
    // Nor is that of hosts that are no neighbours: a ring of theirs may have been removed.
    for (rank, to) in [(0, STRANGER), (1, 0)] {
        let data = Data {
            rank,
            to,
            ..plain.clone()
        };
        world.assert_dropped(rank, &data.frame(), DropReason::NetreduceUnknown);
    }
}

#[test]
fn a_removed_ring_s_messages_under_way_are_dropped() {
    let n = 2;
    let mut world = World::new(2, &[n]);
    let mut members = [0, 1].map(|rank| Member::new(rank, n));
    let messages = members
        .each_mut()
        .map(|it| it.message(Element::I32, &i32s([1; 200])));
    // Their first packets have left with the sum; what follows would complete the messages.
    let left: Vec<_> = messages.iter().flat_map(|it| world.send(&it[0])).collect();
    assert_eq!(left.len(), n);
    for core in &mut world.switch.cores {
        let command = DialectCommand::Netreduce(NetreduceCommand::Unbind(RING));
        core.command(Command::Dialect(command));
    }
    for (rank, message) in messages.iter().enumerate() {
        world.assert_dropped(rank, &message[1].frame(), DropReason::NetreduceUnknown);
    }
}

#[test]
fn other_traffic_of_rings_hosts_passes_untouched() {
    let n = 3;
    let mut world = World::new(2, &[n]);
    let plain = Data {
        rank: 0,
        to: 1,
        qp: QueuePair(0x55),
        psn: Psn::new(1),
        verb: Verb::Write,
        place: Place::Only,
        dscp: 0,
        payload: vec![7; 64],
    };
    let other_class = plain.clone();
    let to_a_stranger = Data {
        to: STRANGER,
        ..plain.clone()
    };
    let backwards = Data {
        rank: 1,
        to: 0,
        dscp: DEFAULT_DSCP + 2,
        ..plain.clone()
    };
    for data in [&other_class, &to_a_stranger, &backwards] {
        let left = world.send(data);
        assert_eq!(left, [(PortId(data.to as u16), data.frame())]);
    }
    // An acknowledgement, a CNP, and connection management (datagrams), in the ring's class.
    for opcode in [0x11, 0x81, 0x64] {
        let mut frame = Data {
            dscp: DEFAULT_DSCP,
            ..plain.clone()
        }
        .frame();
        frame[UDP_END] = opcode;
        seal(&mut frame);
        world.send_from(0, &frame);
        assert_eq!(world.switch.take(), [(PortId(1), frame)], "{opcode:#x}");
    }
    assert_eq!(world.switch.drops(), []);
}

/// N-2: else a host could send elements in the middle of a message whose beginning is a sum.
#[test]
fn a_host_cannot_send_what_looks_summed() {
    let mut world = World::new(2, &[3]);
    for place in [Place::First, Place::Middle, Place::Only] {
        let released = Data {
            rank: 0,
            to: STRANGER,
            qp: QueuePair(0x55),
            psn: Psn::new(1),
            verb: Verb::Write,
            place,
            dscp: released_dscp(DEFAULT_DSCP),
            payload: vec![7; 64],
        };
        world.assert_dropped(0, &released.frame(), DropReason::NetreduceReleased);
    }
}

#[test]
fn a_connection_is_bound_to_its_port_and_mac() {
    let n = 2;
    let mut world = World::new(1, &[n]);
    let mut a = Member::new(0, n);
    let packets = a.message(Element::I32, &i32s([1; 100]));
    world.send(&packets[0]);
    world.assert_dropped(STRANGER, &packets[1].frame(), DropReason::NetreducePort);
    let mut frame = packets[1].frame();
    frame[6..12].copy_from_slice(&mac(STRANGER).0);
    world.assert_dropped(0, &frame, DropReason::NetreducePort);
    let mut frame = packets[1].frame();
    frame[UDP_END + BTH_BYTES + 5] ^= 1;
    world.assert_dropped(0, &frame, DropReason::NetreduceIcrc);
    assert!(world.send(&packets[1]).is_empty());
    assert_eq!(world.counters().contributions, 2);
}

#[test]
fn messages_of_a_number_are_alike() {
    let n = 2;
    let mut world = World::new(1, &[n]);
    let [mut a, mut b] = [0, 1].map(|rank| Member::new(rank, n));
    let packets = a.message(Element::I32, &i32s([1; 100]));
    packets.iter().for_each(|it| drop(world.send(it)));
    for (element, count) in [(Element::F32, 100), (Element::I32, 101), (Element::I32, 20)] {
        let mut other = Member::new(1, n);
        let packets = other.message(element, &i32s(vec![1; count]));
        world.assert_dropped(1, &packets[0].frame(), DropReason::NetreduceShape);
    }
    let packets = b.message(Element::I32, &i32s([1; 100]));
    assert_eq!(world.send(&packets[0]).len(), 2);
    // A packet of another length, or of another place than its number says.
    let mut short = packets[1].clone();
    short.payload.truncate(100);
    world.assert_dropped(1, &short.frame(), DropReason::NetreduceShape);
    let mut middle = packets[1].clone();
    middle.place = Place::Middle;
    world.assert_dropped(1, &middle.frame(), DropReason::NetreduceShape);
    // Longer than rings' messages.
    let mut c = Member::new(0, n);
    c.epoch = RingEpoch(EPOCH.0 + 1);
    c.psn = Psn::new(5);
    let long = c.message(Element::I32, &i32s([1; 300]));
    world.assert_dropped(0, &long[0].frame(), DropReason::NetreduceShape);
}

#[test]
fn a_newer_epoch_ends_the_older_one() {
    let n = 2;
    let mut world = World::new(2, &[n]);
    let alive = world.switch.memory.alive();
    let [mut a, mut b] = [0, 1].map(|rank| Member::new(rank, n));
    let old_a = a.message(Element::I32, &i32s([1; 100]));
    let old_b = b.message(Element::I32, &i32s([2; 100]));
    world.send(&old_a[0]);
    world.send(&old_a[1]);
    let again = |rank| {
        let mut member = Member::new(rank, n);
        member.epoch = RingEpoch(EPOCH.0 + 1);
        // One queue pair was only reset: it has its number again.
        member.qp = QueuePair(0x100 + 0x200 * rank as u32);
        member
    };
    let [mut a, mut b] = [0, 1].map(again);
    let new_a = a.message(Element::I32, &i32s([10; 100]));
    let new_b = b.message(Element::I32, &i32s([20; 100]));
    assert!(world.send(&new_a[0]).is_empty());
    assert_eq!(
        world.switch.memory.alive(),
        alive + 1,
        "the old one's packets are gone"
    );
    world.assert_dropped(1, &old_b[0].frame(), DropReason::NetreduceEpoch);
    world.assert_dropped(1, &old_b[1].frame(), DropReason::NetreduceUnknown);
    let left = world.send(&new_b[0]);
    assert_eq!(sum_of(&new_b[0], left_of(&left, &new_b[0])), i32s([30; 56]));
    world.assert_dropped(0, &old_a[0].frame(), DropReason::NetreduceHeader);
    assert_eq!(world.counters().epochs, 2);
}

#[test]
fn a_ring_that_falls_silent_while_it_waits_is_freed() {
    let n = 2;
    let mut world = World::new(1, &[n]);
    let alive = world.switch.memory.alive();
    let [mut a, mut b] = [0, 1].map(|rank| Member::new(rank, n));
    let (sent, _) = {
        let mut members = [a, b];
        let out = exchange(&mut world, &mut members, Element::I32, |_| i32s([1; 100]));
        [a, b] = members;
        out
    };
    // Nothing waits: hosts compute for hours.
    world.switch.now = world.switch.now.after(Duration::from_secs(7200));
    world.switch.poll();
    world.greet_all();
    assert_eq!(world.send(&sent[0][1]).len(), 1);
    let waiting = a.message(Element::I32, &i32s([1; 100]));
    world.send(&waiting[0]);
    world.switch.now = world.switch.now.after(Duration::from_secs(59));
    world.switch.poll();
    assert_eq!(world.status().missing, [1]);
    world.switch.now = world.switch.now.after(Duration::from_secs(7));
    world.switch.poll();
    assert_eq!(world.counters().expired, 1);
    assert_eq!(world.switch.memory.alive(), alive);
    // The epoch does not begin again, a newer one does.
    let late = b.message(Element::I32, &i32s([1; 100]));
    world.assert_dropped(1, &late[0].frame(), DropReason::NetreduceEpoch);
    world.assert_dropped(0, &sent[0][0].frame(), DropReason::NetreduceEpoch);
    a = Member::new(0, n);
    a.epoch = RingEpoch(EPOCH.0 + 1);
    a.qp = QueuePair(0x300);
    world.send(&a.message(Element::I32, &i32s([1; 100]))[0]);
    assert_eq!(world.status().epoch, Some(a.epoch));
}

#[test]
fn a_sum_waits_for_receivers_that_were_not_heard_before() {
    let n = 3;
    let mut world = World::new(1, &[n]);
    for port in 0..PORTS {
        world.switch.cores[0]
            .context
            .forwarding
            .forget(PortId(port));
    }
    let mut members: Vec<_> = (0..n).map(|rank| Member::new(rank, n)).collect();
    let (sent, left) = exchange(&mut world, &mut members, Element::I32, |_| i32s([1; 20]));
    assert_eq!(left.len(), n);
    for packets in &sent {
        let sum = sum_of(&packets[0], left_of(&left, &packets[0]));
        assert_eq!(sum, i32s([3; 20]));
    }
}

/// Frames from the port of rank 0: messages with all that may be between their packets.
fn mixed_burst(members: usize) -> Vec<Vec<u8>> {
    let mut member = Member::new(0, members);
    let mut frames = Vec::new();
    for bytes in [600, 4, 992, 600] {
        let packets = member.message(Element::I32, &i32s((0..bytes / 4).map(|i| element(0, i))));
        for packet in &packets {
            let frame = packet.frame();
            let mut wrong = frame.clone();
            wrong[UDP_END + BTH_BYTES + 3] ^= 1;
            let ordinary = Data {
                dscp: 0,
                ..packet.clone()
            };
            let of_another = Data {
                qp: QueuePair(0x999),
                ..packet.clone()
            };
            let mut padded = frame.clone();
            padded.extend_from_slice(&[0; 9]);
            frames.extend([wrong, padded, frame, ordinary.frame(), of_another.frame()]);
        }
        frames.extend(packets.last().map(Data::frame));
    }
    // Behind a message that was lost.
    member.message(Element::I32, &i32s([1; 9]));
    frames.extend(
        member.message(Element::I32, &i32s([1; 200]))[1..]
            .iter()
            .map(Data::frame),
    );
    frames
}

#[test]
fn a_burst_is_what_its_frames_are_one_by_one() {
    let n = 2;
    for cores in [1, 2, 4] {
        let outcome = |is_burst: bool| {
            let mut world = World::new(cores, &[n]);
            let frames = mixed_burst(n);
            let unbind = || {
                let other = NetreduceCommand::Unbind(RingId(RING.0 + 1));
                Command::Dialect(DialectCommand::Netreduce(other))
            };
            if is_burst {
                let packets = frames.iter().map(|frame| world.switch.memory.packet(frame));
                let packets = packets.collect();
                world.switch.receive_burst(PortId(0), packets);
            } else {
                for frame in &frames {
                    // No core remembers the connection.
                    world.switch.command(unbind);
                    world.send_from(0, frame);
                }
            }
            let mut left = world.switch.take();
            let mut other = Member::new(1, n);
            for bytes in [600, 4, 992, 600] {
                let elements = i32s((0..bytes / 4).map(|i| element(1, i)));
                for packet in other.message(Element::I32, &elements) {
                    left.extend(world.send(&packet));
                }
            }
            (left, world.switch.drops(), world.counters())
        };
        let expected = outcome(false);
        assert!(
            expected.2.sums > 5 && expected.2.ahead_passed == 3,
            "{expected:?}"
        );
        let found = outcome(true);
        assert_eq!(found, expected, "{cores} cores");
    }
}

#[test]
fn a_receiver_that_moved_is_followed() {
    let n = 2;
    let mut world = World::new(1, &[n]);
    let [mut a, mut b] = [0, 1].map(|rank| Member::new(rank, n));
    let mut messages = || {
        let [a, b] = [&mut a, &mut b].map(|it| it.message(Element::I32, &i32s([1; 120])));
        (a, b)
    };
    let (from_a, from_b) = messages();
    from_b.iter().for_each(|it| drop(world.send(it)));
    let burst = |world: &mut World, packets: &[Data]| {
        let frames = packets
            .iter()
            .map(|it| world.switch.memory.packet(&it.frame()));
        let frames = frames.collect();
        world.switch.receive_burst(PortId(0), frames);
        let left = world.switch.take();
        let from_a = |frame: &[u8]| UdpFrame::parse(frame).unwrap().addresses.src_ip == ip(0);
        let left = left.into_iter().filter(|(_, frame)| from_a(frame));
        left.map(|(port, _)| port).collect::<Vec<_>>()
    };
    assert_eq!(burst(&mut world, &from_a), [PortId(1); 2]);
    // As a virtual machine does; its connection stays at its port.
    let mut hello = vec![0xff; 60];
    hello[6..12].copy_from_slice(&mac(1).0);
    hello[12..15].copy_from_slice(&[0x88, 0xb5, 1]);
    let (from_a, from_b) = messages();
    from_b.iter().for_each(|it| drop(world.send(it)));
    world.send_from(STRANGER, &hello);
    world.switch.take();
    assert_eq!(burst(&mut world, &from_a), [PortId(STRANGER as u16); 2]);
}
