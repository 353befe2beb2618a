//! Frames of a node of a tree on real cores: what goes up and comes down, byte by byte, and what
//! only a parent may send (TR-1, TR-2, TR-5, TR-8, A-4).

#![allow(clippy::unwrap_used)]

mod common;

use common::fabric::{below, table};
use common::plain::{host, secret};
use common::platform::Memory;
use common::switch::{ADDRESS, Switch, forwarding, frame, native, pool, to_switch};
use common::{Rng, seeds};
use std::sync::Arc;
use tally_engine::context::ParentAddress;
use tally_engine::forwarding::fabric::Plan;
use tally_engine::{Command, ControlFrame, Dialects, DropReason, Member, PortId, Roster, Uplink};
use tally_wire::frame::{UDP_END, group_of};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Kind, Mac, Rank,
    SwitchName, UdpFrame,
};

const JOB: JobId = JobId(7);
const EPOCH: Epoch = Epoch(1);
const PORTS: u16 = 6;
/// The parent is behind port 5, with four shards from a base port of its own on.
const PARENT: Member = Member {
    port: PortId(5),
    mac: Mac([2, 0, 0, 0, 9, 9]),
    ip: std::net::Ipv4Addr::new(10, 9, 9, 9),
    udp_port: 20_000,
};
const UPLINK: Uplink = Uplink {
    parent: PARENT,
    rank: Rank(3),
    shards: 4,
};

struct Leaf {
    switch: Switch<Dialects<Memory>>,
}

impl Leaf {
    /// Workers 1 and 2 on the ports of these numbers.
    fn new(cores: u8) -> Self {
        let config = forwarding(ADDRESS, PORTS);
        let memory = Memory::new(1514);
        let mut switch = Switch::new(ADDRESS, cores, &config, memory, |core| Dialects {
            native: native(pool(cores, core, [JOB]), PORTS),
            switchml: None,
            netreduce: None,
            offload: None,
        });
        let secret = secret(JOB, EPOCH);
        let roster = Roster::new(JOB, EPOCH, secret, 1, vec![host(1), host(2)], host(3));
        let roster = Arc::new(roster.with_uplink(UPLINK));
        switch.command(|| Command::Bind(Arc::clone(&roster)));
        Self { switch }
    }

    /// What leaves because of this frame.
    fn receive(&mut self, port: u16, bytes: &[u8]) -> Vec<(PortId, Vec<u8>)> {
        let packet = self.switch.memory.packet(bytes);
        self.switch.receive(PortId(port), packet);
        self.switch.take()
    }

    /// Why the frame is dropped.
    fn refused(&mut self, port: u16, bytes: &[u8]) -> DropReason {
        let before = self.switch.drops();
        assert_eq!(self.receive(port, bytes), [], "it is dropped");
        let mut after = self.switch.drops();
        after.retain(|now| !before.contains(now));
        let [(reason, _)] = after[..] else {
            panic!("one reason: {after:?}");
        };
        reason
    }

    /// Sums a fragment.
    fn sum(&mut self, fragment: u32) -> Vec<(PortId, Vec<u8>)> {
        assert_eq!(self.receive(1, &data(1, fragment, 1)), []);
        self.receive(2, &data(2, fragment, 2))
    }

    /// The JOIN, LEAVE, ACCEPT or REFUSE that came.
    fn control(&mut self) -> ControlFrame {
        let cores = self.switch.cores.iter_mut();
        let mut frames = cores.filter_map(|core| core.poll_control());
        frames.next().unwrap()
    }

    fn claims(&self) -> u64 {
        let cores = self.switch.cores.iter();
        let rare = cores.flat_map(|core| core.report().rare);
        rare.map(|port| port.claims.iter().sum::<u64>()).sum()
    }

    fn end(mut self) {
        self.switch.command(|| Command::Unbind(JOB));
        self.switch.take();
        assert_eq!(self.switch.memory.alive(), 0);
    }
}

fn header(kind: Kind, rank: Rank, fragment: u32) -> Header {
    let elements = kind.has_elements();
    let header = Header {
        kind,
        flags: Flags::NONE,
        priority: 9,
        element: if elements {
            Element::I32
        } else {
            Element::None
        },
        job: JOB,
        epoch: EPOCH,
        fragment: FragmentId(fragment),
        rank,
        units: u8::from(elements),
        bitmap: if kind == Kind::Data { rank.bit() } else { 0 },
        tag: AuthTag::NONE,
    };
    secret(JOB, EPOCH).seal(header)
}

/// A worker's contribution, to a switch of two shards.
fn data(worker: u16, fragment: u32, fill: u8) -> Vec<u8> {
    let header = header(Kind::Data, Rank(worker as u8 - 1), fragment);
    let to = to_switch(&host(worker), ADDRESS.base_port + fragment as u16 % 2);
    frame(&to, &header, fill)
}

/// The parent's RESULT as it publishes it.
fn result(fragment: u32) -> Vec<u8> {
    to_group(&header(Kind::Result, Rank::SWITCH, fragment))
}

fn to_group(header: &Header) -> Vec<u8> {
    let group = group_of(header.job);
    let addresses = Addresses {
        src_mac: PARENT.mac,
        dst_mac: Mac::of_group(group),
        src_ip: PARENT.ip,
        dst_ip: group,
        src_port: PARENT.udp_port,
        dst_port: PARENT.udp_port,
    };
    frame(&addresses, header, 7)
}

/// A datagram of the parent to this switch.
fn of_parent(header: &Header, udp_port: u16) -> Vec<u8> {
    frame(&to_switch(&PARENT, udp_port), header, 7)
}

/// Addresses, header and payload of what left.
fn parse(frame: &[u8]) -> (Addresses, Header, Vec<u8>) {
    let udp = UdpFrame::parse(frame).unwrap();
    let datagram = udp.datagram(frame);
    let header = Header::parse(datagram).unwrap();
    (udp.addresses, header, datagram[22..].to_vec())
}

const SUM: u8 = 3;

#[test]
fn tr_1_a_sum_leaves_by_the_uplink_to_the_parents_shard() {
    let mut leaf = Leaf::new(2);
    for fragment in 0..6 {
        let sent = leaf.sum(fragment);
        let [(port, bytes)] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(*port, PARENT.port);
        let (addresses, found, payload) = parse(bytes);
        let to = Addresses {
            src_mac: ADDRESS.mac,
            dst_mac: PARENT.mac,
            src_ip: ADDRESS.ip,
            dst_ip: PARENT.ip,
            src_port: ADDRESS.base_port,
            dst_port: PARENT.udp_port + fragment as u16 % 4,
        };
        assert_eq!(addresses, to);
        assert_eq!(found, header(Kind::Data, UPLINK.rank, fragment));
        assert_eq!(payload, vec![SUM; 64]);
    }
    leaf.end();
}

#[test]
fn tr_2_a_result_comes_down_with_its_tag_and_our_addresses() {
    let mut leaf = Leaf::new(2);
    for fragment in 0..6 {
        leaf.sum(fragment);
        let sent = leaf.receive(5, &result(fragment));
        let ports: Vec<_> = sent.iter().map(|(port, _)| port.0).collect();
        assert_eq!(ports.len(), 2);
        assert!(ports.contains(&1) && ports.contains(&2), "never the uplink");
        for (_, bytes) in &sent {
            let (addresses, found, payload) = parse(bytes);
            assert_eq!(found, header(Kind::Result, Rank::SWITCH, fragment));
            assert_eq!(payload, [7; 64]);
            assert_eq!(addresses.src_mac, ADDRESS.mac);
            assert_eq!(addresses.src_ip, ADDRESS.ip);
            assert_eq!(addresses.dst_ip, group_of(JOB));
            let base = ADDRESS.base_port;
            assert_eq!((addresses.src_port, addresses.dst_port), (base, base));
        }
    }
    assert_eq!(leaf.claims(), 0);
    leaf.end();
}

#[test]
fn tr_5_what_the_parent_asks_for_leaves_as_a_copy() {
    let mut leaf = Leaf::new(2);
    leaf.sum(4);
    let nack = header(Kind::Nack, UPLINK.rank, 4);
    // The kept frame is not shared any more: at once.
    let sent = leaf.receive(5, &of_parent(&nack, ADDRESS.base_port));
    let (_, found, payload) = parse(&sent[0].1);
    let sum = header(Kind::Data, UPLINK.rank, 4);
    let flags = Flags::RESEND;
    assert_eq!(found, Header { flags, ..sum });
    assert_eq!((sent.len(), payload), (1, vec![SUM; 64]));
    leaf.receive(5, &result(4));
    let sent = leaf.receive(5, &of_parent(&nack, ADDRESS.base_port));
    let (addresses, found, payload) = parse(&sent[0].1);
    assert_eq!(found, header(Kind::Result, UPLINK.rank, 4));
    assert_eq!((addresses.dst_ip, payload), (PARENT.ip, vec![7; 64]));
    // What members get from the ring is as it was.
    let probe = frame(
        &to_switch(&host(2), ADDRESS.base_port),
        &header(Kind::Probe, Rank(1), 4),
        0,
    );
    let sent = leaf.receive(2, &probe);
    let (addresses, found, _) = parse(&sent[0].1);
    assert_eq!(found, header(Kind::Result, Rank::SWITCH, 4));
    assert_eq!(addresses.dst_ip, group_of(JOB));
    leaf.end();
}

#[test]
fn tr_4_a_resend_becomes_a_probe_without_payload() {
    let mut leaf = Leaf::new(2);
    leaf.sum(4);
    let flags = Flags::RESEND;
    let resend = Header {
        flags,
        ..header(Kind::Data, Rank(1), 4)
    };
    let to = to_switch(&host(2), ADDRESS.base_port);
    let sent = leaf.receive(2, &frame(&to, &resend, 2));
    let (_, found, payload) = parse(&sent[0].1);
    assert_eq!(found, header(Kind::Probe, UPLINK.rank, 4));
    assert_eq!((sent[0].0, payload), (PARENT.port, vec![]));
    assert_eq!(sent[0].1.len(), UDP_END + 22);
    leaf.end();
}

#[test]
fn tr_8_only_the_parents_port_and_addresses_send_to_the_group() {
    let mut leaf = Leaf::new(2);
    leaf.sum(0);
    let good = result(0);
    for port in 0..5 {
        let reason = leaf.refused(port, &good);
        assert_eq!(reason, DropReason::ClaimsGroup, "port {port}");
    }
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] ^= byte;
        frame
    };
    // The MAC and the IP address of its source (the frame's checksum is not looked at).
    assert_eq!(leaf.refused(5, &with(11, 1)), DropReason::ClaimsGroup);
    assert_eq!(leaf.refused(5, &with(29, 1)), DropReason::ClaimsGroup);
    // Another group's MAC.
    assert_eq!(leaf.refused(5, &with(5, 1)), DropReason::ClaimsGroup);
    // Own address: no other host has it.
    let mut own = good.clone();
    own[6..12].copy_from_slice(&ADDRESS.mac.0);
    assert_eq!(leaf.refused(5, &own), DropReason::SpoofedSwitch);
    // Behind a tag.
    let mut tagged = good.clone();
    tagged.splice(12..12, [0x81, 0, 0, 1]);
    assert_eq!(leaf.refused(5, &tagged), DropReason::ClaimsGroup);
    // Another UDP source port than its JOIN answers have.
    assert_eq!(leaf.refused(5, &with(35, 1)), DropReason::NotMember);
    assert_eq!(leaf.receive(5, &good).len(), 2, "and the good one passes");
    leaf.end();
}

#[test]
fn tr_8_a_group_gets_results_only() {
    let mut leaf = Leaf::new(2);
    for (kind, rank) in [
        (Kind::Data, Rank(0)),
        (Kind::Probe, Rank(0)),
        (Kind::Nack, UPLINK.rank),
        (Kind::Remind, Rank::PS),
        (Kind::Join, Rank(0)),
        (Kind::Accept, Rank(0)),
        (Kind::Leave, Rank(0)),
    ] {
        let mut header = header(kind, rank, 0);
        header.units = if kind.is_control() {
            CONTROL_UNITS
        } else {
            header.units
        };
        let reason = leaf.refused(5, &to_group(&header));
        assert_eq!(reason, DropReason::NotForSwitch, "{kind:?}");
        assert!(
            leaf.switch
                .cores
                .iter_mut()
                .all(|c| c.poll_control().is_none())
        );
    }
    // To the group of another job than its header says.
    let mut other = result(0);
    let group = group_of(JobId(8));
    other[..6].copy_from_slice(&Mac::of_group(group).0);
    other[30..34].copy_from_slice(&group.octets());
    assert_eq!(leaf.refused(5, &other), DropReason::UnknownJob);
    leaf.end();
}

#[test]
fn tr_8_late_results_of_a_job_that_ended_are_no_claims() {
    let mut leaf = Leaf::new(2);
    leaf.sum(0);
    leaf.switch.command(|| Command::Unbind(JOB));
    assert_eq!(leaf.refused(5, &result(0)), DropReason::UnknownJob);
    assert_eq!(leaf.claims(), 0);
    // Control may say that there is no parent any more.
    leaf.switch.command(|| Command::Parent(PortId(5), None));
    assert_eq!(leaf.refused(5, &result(0)), DropReason::ClaimsGroup);
    assert_eq!(leaf.claims(), 1);
    leaf.end();
}

#[test]
fn tr_8_a_nack_of_the_parent_may_come_at_any_shards_port() {
    for fragment in 0..4 {
        for shard in 0..2 {
            let mut leaf = Leaf::new(2);
            leaf.sum(fragment);
            let nack = header(Kind::Nack, UPLINK.rank, fragment);
            let sent = leaf.receive(5, &of_parent(&nack, ADDRESS.base_port + shard));
            assert_eq!(sent.len(), 1, "fragment {fragment} at shard {shard}");
            // From a member it must come at the right one.
            let ps = to_switch(&host(3), ADDRESS.base_port + shard);
            let nack = frame(&ps, &header(Kind::Nack, Rank(0), fragment), 0);
            let is_right = fragment % 2 == u32::from(shard);
            assert_eq!(leaf.receive(3, &nack).len(), usize::from(is_right));
            leaf.end();
        }
    }
}

#[test]
fn answers_of_a_parent_go_to_control_and_those_of_others_are_dropped() {
    let mut leaf = Leaf::new(2);
    let other = ParentAddress {
        name: SwitchName::new(""),
        mac: Mac([2, 0, 0, 0, 8, 8]),
        ip: [10, 8, 8, 8].into(),
    };
    // A parent of jobs that have not begun.
    leaf.switch
        .command(|| Command::Parent(PortId(4), Some(other)));
    let control = |kind: Kind| Header {
        units: CONTROL_UNITS,
        ..header(kind, Rank(2), 0)
    };
    for kind in [Kind::Accept, Kind::Refuse] {
        let from_parent = of_parent(&control(kind), ADDRESS.base_port);
        for port in 0..5 {
            let reason = leaf.refused(port, &from_parent);
            assert_eq!(reason, DropReason::NotForSwitch);
        }
        assert_eq!(leaf.receive(5, &from_parent), []);
        let frame = leaf.control();
        assert_eq!((frame.from, frame.header.kind), (PARENT, kind));
        let from = Member {
            port: PortId(4),
            mac: other.mac,
            ip: other.ip,
            udp_port: 31_249,
        };
        let to = to_switch(&from, ADDRESS.base_port);
        assert_eq!(leaf.receive(4, &frame_of(&to, &control(kind))), []);
        let frame = leaf.control();
        assert_eq!(frame.from, from);
    }
    leaf.end();
}

fn frame_of(to: &Addresses, header: &Header) -> Vec<u8> {
    frame(to, header, 0)
}

#[test]
fn c_1_a_sum_that_joins_a_long_queue_is_marked() {
    let mut leaf = Leaf::new(2);
    // The uplink takes nothing: its stage fills, then its queue.
    let core = leaf.switch.core_of(PARENT.port);
    leaf.switch.drivers[core].room[5] = 0;
    for fragment in 0..400 {
        leaf.sum(fragment);
        leaf.receive(5, &result(fragment));
    }
    leaf.switch.drivers[core].room[5] = usize::MAX;
    leaf.switch.poll();
    let sent = leaf.switch.take();
    let sums = sent.iter().filter(|(port, _)| *port == PARENT.port);
    let marked = sums.filter(|(_, bytes)| bytes[15] & 3 == 3).count();
    assert!(marked > 0, "CE");
    leaf.end();
}

/// A root whose PS has joined by port 3, which leads to another switch.
fn root(plan: &Plan) -> Leaf {
    let config = forwarding(ADDRESS, PORTS);
    let memory = Memory::new(1514);
    let mut switch = Switch::in_fabric(ADDRESS, 2, &config, plan, memory, |core| Dialects {
        native: native(pool(2, core, [JOB]), PORTS),
        switchml: None,
        netreduce: None,
        offload: None,
    });
    let secret = secret(JOB, EPOCH);
    let roster = Roster::new(JOB, EPOCH, secret, 1, vec![host(1), host(2)], host(3));
    let roster = Arc::new(roster);
    switch.command(|| Command::Bind(Arc::clone(&roster)));
    Leaf { switch }
}

/// A result of the root's PS.
fn of_ps(fragment: u32) -> Vec<u8> {
    let header = header(Kind::Result, Rank::PS, fragment);
    let port = ADDRESS.base_port + fragment as u16 % 2;
    frame(&to_switch(&host(3), port), &header, 7)
}

/// Ports 3 and 4 lead to one switch: each flow of the PS behind it takes one of them.
#[test]
fn a_member_behind_two_links_is_known_by_both() {
    let mut root = root(&Plan::new([below(3, "leaf1"), below(4, "leaf1")]));
    for (fragment, port) in [(0, 3), (1, 4), (2, 4), (3, 3)] {
        let sent = root.receive(port, &of_ps(fragment));
        let ports: Vec<_> = sent.iter().map(|(port, _)| port.0).collect();
        assert!(ports.contains(&1) && ports.contains(&2), "{ports:?}");
    }
    for port in [1, 2, 5] {
        assert_eq!(root.refused(port, &of_ps(4)), DropReason::NotMember);
    }
    // Nor is another member known there.
    assert_eq!(root.refused(4, &data(1, 4, 1)), DropReason::NotMember);
    root.end();
}

/// Two switches below reach the same hosts, and a third one others: the PS comes by either of the
/// two, with results and with frames to other hosts.
#[test]
fn a_member_behind_two_switches_is_known_by_both() {
    let names = ["spine1", "spine2", "spine3"];
    let plan = Plan::new((3..).zip(names).map(|(port, name)| below(port, name)));
    let mut root = root(&plan);
    let table = table(&plan, &[(&[3], &[1]), (&[4], &[0]), (&[5], &[])]);
    root.switch.command(|| Command::Fabric(Arc::clone(&table)));
    let to_host = Addresses {
        dst_mac: host(1).mac,
        dst_ip: host(1).ip,
        ..to_switch(&host(3), 9)
    };
    let ordinary = frame(&to_host, &header(Kind::Remind, Rank::PS, 0), 0);
    for (fragment, port) in [(0, 3), (1, 4), (2, 4)] {
        assert!(!root.receive(port, &of_ps(fragment)).is_empty(), "{port}");
        let sent = root.receive(port, &ordinary);
        assert!(matches!(sent[..], [(PortId(1), _)]), "{port}: {sent:?}");
    }
    // The link that it joined over dies.
    let table = common::fabric::table(&plan, &[(&[], &[1]), (&[4], &[0]), (&[5], &[])]);
    root.switch.command(|| Command::Fabric(Arc::clone(&table)));
    assert!(!root.receive(4, &of_ps(4)).is_empty());
    assert!(!root.receive(4, &ordinary).is_empty());
    assert_eq!(root.refused(5, &of_ps(3)), DropReason::NotMember);
    assert_eq!(root.refused(5, &ordinary), DropReason::ClaimsMember);
    root.end();
}

/// Frames of all kinds, of all senders, with bytes changed, from any port. No buffer is lost, and
/// what the leaf sends to its group or its parent are results and sums of its own making.
#[test]
fn any_frame_from_any_port() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let mut leaf = Leaf::new(2);
        for _ in 0..400 {
            let fragment = rng.below(6) as u32;
            let (own_port, mut bytes) = match rng.below(8) {
                0 | 1 => (1, data(1, fragment, 1)),
                2 | 3 => (2, data(2, fragment, 2)),
                4 => (5, result(fragment)),
                5 => {
                    let nack = header(Kind::Nack, UPLINK.rank, fragment);
                    (5, of_parent(&nack, ADDRESS.base_port))
                }
                6 => {
                    let probe = header(Kind::Probe, Rank(1), fragment);
                    let to = to_switch(&host(2), ADDRESS.base_port + fragment as u16 % 2);
                    (2, frame(&to, &probe, 0))
                }
                _ => {
                    let answer = header(Kind::Result, Rank(0), fragment);
                    let to = to_switch(&host(1), ADDRESS.base_port + fragment as u16 % 2);
                    (1, frame(&to, &answer, 7))
                }
            };
            let is_good = rng.percent(40);
            let port = if is_good || rng.percent(50) {
                own_port
            } else {
                rng.below(PORTS.into()) as u16
            };
            for _ in 0..rng.below(4) * usize::from(!is_good) {
                // Of the headers: payloads are anything.
                let at = rng.below(64);
                bytes[at] = rng.next() as u8;
            }
            for (port, sent) in leaf.receive(port, &bytes) {
                let Ok(udp) = UdpFrame::parse(&sent) else {
                    continue;
                };
                if udp.addresses.src_mac != ADDRESS.mac || port != PARENT.port {
                    continue;
                }
                let found = Header::parse(udp.datagram(&sent)).unwrap();
                assert_eq!((found.job, found.epoch), (JOB, EPOCH));
                assert_eq!(found.rank, UPLINK.rank, "{found:?}");
                assert!(secret(JOB, EPOCH).verifies(&found), "{found:?}");
                if found.kind == Kind::Data {
                    assert_eq!(sent[64..], [SUM; 64], "{found:?}");
                }
            }
        }
        leaf.end();
    }
}
