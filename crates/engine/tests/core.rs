//! One core of the switch: the order of its checks, and what becomes of each kind of frame.

#![allow(clippy::unwrap_used)]

mod common;

use common::pair::{session, station, told};
use common::plain::{host, secret};
use common::platform::{Memory, Packet};
use common::switch::{ADDRESS, Switch, ask, forwarding, frame, native, pool, switchml, to_switch};
use std::sync::Arc;
use tally_engine::switchml::{Command as SwitchmlCommand, SwitchmlConfig, Whereabouts};
use tally_engine::{Command, DialectCommand, Dialects, DropReason, Frame, Member, PortId, Roster};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::switchml::{self as wire, FIRST_PORT, Size};
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Kind, Mac,
    Rank, Time, UdpFrame, neighbour,
};

const JOB: JobId = JobId(7);
const EPOCH: Epoch = Epoch(1);
const PORTS: u16 = 6;
/// Bytes that a frame has room for.
const FRAME_BYTES: usize = 1514;

struct World {
    switch: Switch<Dialects<Memory>>,
}

impl World {
    /// Workers 1 and 2 and the PS 3 of a job; stations 4 and 5 of a SwitchML session.
    fn new(cores: u8) -> Self {
        let config = forwarding(ADDRESS, PORTS);
        let memory = Memory::new(FRAME_BYTES);
        let mut switch = Switch::new(ADDRESS, cores, &config, memory, |core| Dialects {
            native: native(pool(cores, core, [JOB]), PORTS),
            switchml: switchml(
                SwitchmlConfig {
                    sessions: 1,
                    slots: 4,
                    held: 8,
                    shards: cores,
                    shard: core,
                },
                PORTS,
            ),
            netreduce: None,
            offload: None,
        });
        let roster = Roster::new(
            JOB,
            EPOCH,
            secret(JOB, EPOCH),
            1,
            vec![host(1), host(2)],
            host(3),
        );
        let roster = Arc::new(roster);
        switch.command(|| Command::Bind(Arc::clone(&roster)));
        let session = Arc::new(session(1, Size::B256, 4..6));
        let whereabouts = Arc::new(Whereabouts::new(2));
        for core in &mut switch.cores {
            let (session, whereabouts) = (Arc::clone(&session), Arc::clone(&whereabouts));
            let bind = |reply| SwitchmlCommand::Bind(session, whereabouts, reply);
            assert!(ask(|reply| core.command(Command::Dialect(
                DialectCommand::Switchml(bind(reply))
            ))));
        }
        Self { switch }
    }

    fn packet(&self, bytes: &[u8]) -> Packet {
        self.switch.memory.packet(bytes)
    }

    /// What leaves because of this frame.
    fn receive(&mut self, port: u16, packet: Packet) -> Vec<(PortId, Vec<u8>)> {
        self.switch.receive(PortId(port), packet);
        self.switch.take()
    }

    /// Why the frame is dropped.
    fn refused(&mut self, port: u16, packet: Packet) -> DropReason {
        let (before, alive) = (self.switch.drops(), self.switch.memory.alive());
        assert_eq!(self.receive(port, packet), [], "it is dropped");
        let mut after = self.switch.drops();
        after.retain(|now| !before.contains(now));
        let [(reason, _)] = after[..] else {
            panic!("one reason: {after:?}");
        };
        assert!(self.switch.memory.alive() < alive, "its memory is back");
        reason
    }

    fn refused_bytes(&mut self, port: u16, bytes: &[u8]) -> DropReason {
        let packet = self.packet(bytes);
        self.refused(port, packet)
    }

    fn claims(&self) -> Vec<u64> {
        let rare = self.switch.cores[0].report().rare;
        rare.iter().map(|port| port.claims.iter().sum()).collect()
    }

    /// All frames are back once nothing runs.
    fn end(mut self) {
        self.switch.command(|| Command::Unbind(JOB));
        self.switch.take();
        for core in &mut self.switch.cores {
            ask(|reply| {
                let unbind = SwitchmlCommand::Unbind(tally_engine::switchml::SessionId(1), reply);
                core.command(Command::Dialect(DialectCommand::Switchml(unbind)));
            });
        }
        // Replies are taken from the pool many at a time.
        drop(self.switch.cores);
        assert_eq!(self.switch.memory.alive(), 0);
    }
}

fn header(kind: Kind, rank: Rank, fragment: u32) -> Header {
    let elements = kind.has_elements();
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0,
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
    }
}

/// A worker's contribution.
fn data(worker: u16, fragment: u32, shard: u16) -> Vec<u8> {
    let header = header(Kind::Data, Rank(worker as u8 - 1), fragment);
    frame(
        &to_switch(&host(worker), ADDRESS.base_port + shard),
        &header,
        1,
    )
}

/// With these bytes at this place.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

const DST_MAC: usize = 0;
const SRC_MAC: usize = 6;
const SRC_IP: usize = 26;
const DST_IP: usize = 30;
const DST_PORT: usize = 36;

/// A contribution of a SwitchML station to slot 0.
fn contribution(n: u8) -> Vec<u8> {
    contribution_to(n, 0)
}

fn contribution_to(n: u8, slot: u16) -> Vec<u8> {
    let station = station(n);
    let addresses = Addresses {
        src_mac: station.mac,
        dst_mac: told(station),
        src_ip: station.ip,
        dst_ip: ADDRESS.ip,
        src_port: 4000,
        dst_port: FIRST_PORT,
    };
    let header = wire::Header {
        size: Size::B256,
        job: 0,
        packet: [0; 4],
        slot,
        set: false,
        exponents: [0; 2],
    };
    let mut frame = vec![1; wire::HEADERS_BYTES + 256];
    wire::emit_request(&mut frame, &addresses, &header);
    frame
}

/// An ordinary datagram between hosts.
fn ordinary(from: &Member, to: &Member) -> Vec<u8> {
    let to = Addresses {
        dst_mac: to.mac,
        dst_ip: to.ip,
        dst_port: 53,
        ..to_switch(from, 0)
    };
    frame(&to, &header(Kind::Data, Rank(0), 0), 0)
}

#[test]
fn checks_of_frames_to_the_switch_have_an_order() {
    let mut w = World::new(1);
    let own_ip = ADDRESS.ip.octets();
    let good = || data(1, 0, 0);
    let spoofed_mac = with(good(), SRC_MAC, &ADDRESS.mac.0);
    let spoofed_ip = with(good(), SRC_IP, &own_ip);
    let not_ours = with(good(), DST_IP, &host(2).ip.octets());
    let no_port = with(good(), DST_PORT, &[0, 53]);
    let no_header = with(good(), 42, &[0xff]);
    let both = |frame: Vec<u8>| with(frame, DST_IP, &host(2).ip.octets());
    // Each is right but for the check that it fails and those behind that one.
    for (frame, expected) in [
        (spoofed_mac, DropReason::SpoofedSwitch),
        (with(good(), 12, &[0x81, 0]), DropReason::Vlan),
        (with(good(), 14, &[0x46]), DropReason::IpOptions),
        (with(good(), 23, &[6]), DropReason::NotUdp),
        (
            both(with(spoofed_ip.clone(), DST_PORT, &[0, 53])),
            DropReason::NotOurs,
        ),
        (not_ours, DropReason::NotOurs),
        (
            with(spoofed_ip, DST_PORT, &[0, 53]),
            DropReason::SpoofedSwitch,
        ),
        (no_port, DropReason::UdpPort),
        (no_header, DropReason::Version),
        (good()[..13].to_vec(), DropReason::Truncated),
    ] {
        assert_eq!(w.refused_bytes(1, &frame), expected, "{frame:02x?}");
    }
    assert_eq!(w.claims(), [0, 2, 0, 0, 0, 0]);
    w.end();
}

#[test]
fn a_wrong_checksum_is_refused_before_anything_that_it_covers_counts() {
    let mut w = World::new(1);
    let mut ping = vec![0; 60];
    ping[..42].copy_from_slice(&data(1, 0, 0)[..42]);
    (ping[23], ping[34]) = (1, 8);
    for frame in [
        data(1, 0, 0),
        with(data(1, 0, 0), SRC_IP, &ADDRESS.ip.octets()),
        with(data(1, 0, 0), DST_IP, &host(2).ip.octets()),
        with(data(1, 0, 0), DST_PORT, &[0, 53]),
        with(data(1, 0, 0), 14, &[0x46]),
        ping,
    ] {
        let packet = w.packet(&frame).with_bad_checksum();
        assert_eq!(w.refused(1, packet), DropReason::Checksum, "{frame:02x?}");
    }
    assert_eq!(w.claims(), [0; 6], "a frame that a link broke is no claim");
    w.end();
}

#[test]
fn switchml_frames_are_taken_with_wrong_checksums_at_any_mac() {
    let mut w = World::new(1);
    let first = w.packet(&contribution(4)).with_bad_checksum();
    assert_eq!(w.receive(4, first), []);
    let second = w.packet(&contribution(5)).with_bad_checksum();
    let sent = w.receive(5, second);
    let to: Vec<_> = sent.iter().map(|(port, _)| port.0).collect();
    assert_eq!((to, w.switch.drops()), (vec![4, 5], vec![]));
    // At the switch's own MAC too they are the dialect's to refuse.
    let frame = with(contribution(4), DST_MAC, &ADDRESS.mac.0);
    let packet = w.packet(&frame).with_bad_checksum();
    assert_eq!(w.refused(4, packet), DropReason::SwitchmlForged);
    assert_eq!(w.claims(), [0; 6]);
    // The switch's own IPv4 address is not theirs at either.
    for dst_mac in [ADDRESS.mac, told(station(4))] {
        let frame = with(contribution(4), SRC_IP, &ADDRESS.ip.octets());
        let frame = with(frame, DST_MAC, &dst_mac.0);
        assert_eq!(w.refused_bytes(4, &frame), DropReason::SpoofedSwitch);
    }
    assert_eq!(w.claims(), [0, 0, 0, 0, 2, 0]);
    // At such a MAC, no dialect claims other ports of the switch's address. Native claims none.
    for port in [53, ADDRESS.base_port] {
        let frame = with(contribution(4), DST_PORT, &port.to_be_bytes());
        assert_eq!(w.refused_bytes(4, &frame), DropReason::NotOurMac);
    }
    // Behind options they are no datagrams of SwitchML's, and are not forwarded.
    let frame = with(contribution(4), 14, &[0x46]);
    assert_eq!(w.refused_bytes(4, &frame), DropReason::NotOurMac);
    w.end();
}

#[test]
fn padding_is_no_part_of_a_switchml_sum() {
    let mut w = World::new(1);
    let mut lens = Vec::new();
    for station in [4, 5] {
        let mut padded = contribution(station);
        padded.resize(400, 0xee);
        let packet = w.packet(&padded);
        let sent = w.receive(u16::from(station), packet);
        lens.extend(sent.iter().map(|(_, reply)| reply.len()));
    }
    assert_eq!(lens, [wire::HEADERS_BYTES + 256; 2]);
    assert_eq!(w.switch.drops(), []);
    w.end();
}

/// What one core has seen of a worker's port, all cores know.
#[test]
fn a_switchml_secret_from_two_ports_is_refused_on_another_core_too() {
    let mut w = World::new(2);
    let first = w.packet(&contribution_to(4, 0));
    assert_eq!(w.receive(4, first), []);
    let copied = contribution_to(4, 1);
    assert_eq!(w.refused_bytes(3, &copied), DropReason::SwitchmlPort);
    // Nothing tells which of the two is the worker: the shard's pool refuses both.
    let packet = w.packet(&copied);
    assert_eq!(w.receive(4, packet), []);
    let metrics = w.switch.cores[1].report().dialects.switchml.unwrap();
    assert_eq!(metrics.counters.dropped(DropReason::SwitchmlPort), 1);
    assert_eq!(metrics.in_use.held_in_use, 0);
    w.end();
}

/// They are never copied, count as what they become, and are no dialect's.
#[test]
fn superframes_are_forwarded_whole_or_dropped() {
    let mut w = World::new(1);
    let longest = vec![1000; usize::from(PORTS)];
    w.switch.cores[0].context.ports.set_longest_frames(longest);
    w.receive(4, w.packet(&ordinary(&host(4), &host(1))));
    w.receive(1, w.packet(&ordinary(&host(1), &host(4))));
    let before = w.switch.cores[0].report().ports;
    let superframe = |w: &World, mut bytes: Vec<u8>, part| {
        bytes.resize(1414, 7);
        let segments = w.switch.memory.segmented(&bytes, 100);
        segments.cut_into(54, part)
    };
    let transit = ordinary(&host(4), &host(1));
    let whole = superframe(&w, transit.clone(), 200);
    let bytes = whole.bytes();
    assert_eq!(w.receive(4, whole), [(PortId(1), bytes)]);
    let after = w.switch.cores[0].report().ports;
    assert_eq!(after[4].rx_frames - before[4].rx_frames, 7);
    assert_eq!(after[1].tx_frames - before[1].tx_frames, 7);
    assert_eq!(after[4].linearised, 0);
    // Each of what it becomes is to fit.
    let long = superframe(&w, transit, 1000 - 53);
    assert_eq!(w.refused(4, long), DropReason::FrameTooLong);
    // A contribution, and SwitchML's, which any MAC brings to its dialect.
    let contribution = superframe(&w, data(1, 0, 0), 200);
    assert_eq!(w.refused(1, contribution), DropReason::Superframe);
    w.end();
}

#[test]
fn frames_in_several_segments_are_copied_into_one() {
    let mut w = World::new(1);
    let in_two = |w: &World, bytes: &[u8], at| w.switch.memory.segmented(bytes, at);
    let first = in_two(&w, &data(1, 0, 0), 20);
    assert_eq!(w.receive(1, first), []);
    let second = in_two(&w, &data(2, 0, 0), 70);
    assert_eq!(w.receive(2, second).len(), 2, "summed");
    // The second of a port would be the flow cache's if it were contiguous.
    let third = in_two(&w, &data(2, 1, 0), 70);
    assert_eq!(w.receive(2, third), []);
    let ports = w.switch.cores[0].report().ports;
    assert_eq!((ports[1].linearised, ports[2].linearised), (1, 2));
    // In transit.
    let transit = in_two(&w, &ordinary(&host(4), &host(1)), 10);
    let bytes = transit.bytes();
    assert_eq!(w.receive(4, transit), [(PortId(1), bytes)]);

    let mut long = data(1, 2, 0);
    long.resize(FRAME_BYTES + 1, 0);
    let long = in_two(&w, &long, 1000);
    assert_eq!(w.refused(1, long), DropReason::Segmented);
    let last = in_two(&w, &data(1, 2, 0), 20);
    w.switch.memory.set_limit(w.switch.memory.alive());
    assert_eq!(w.refused(1, last), DropReason::NoBuffer);
    w.end();
}

#[test]
fn the_flow_cache_takes_no_frame_that_the_checks_refuse() {
    let mut w = World::new(1);
    // Then the port's last frame was a contribution of worker 1.
    for fragment in 0..2 {
        let first = w.packet(&data(1, fragment, 0));
        w.receive(1, first);
    }
    let bad = w.packet(&data(1, 2, 0)).with_bad_checksum();
    assert_eq!(w.refused(1, bad), DropReason::Checksum);
    let own = ADDRESS.ip.octets();
    let spoofed = with(data(1, 2, 0), SRC_IP, &own);
    assert_eq!(w.refused_bytes(1, &spoofed), DropReason::SpoofedSwitch);
    let elsewhere = with(data(1, 2, 0), SRC_MAC, &host(2).mac.0);
    assert_eq!(w.refused_bytes(1, &elsewhere), DropReason::NotMember);
    assert_eq!(w.refused_bytes(2, &data(1, 2, 0)), DropReason::NotMember);
    let shared = w.packet(&data(1, 2, 0));
    let other = shared.share();
    w.receive(1, shared);
    assert!(w.switch.drops().contains(&(DropReason::Length, 1)));
    drop(other);
    let contributions = |w: &World| {
        let report = w.switch.cores[0].report();
        report.dialects.native.counters.contributions
    };
    assert_eq!(contributions(&w), 2);
    // Padding is cut off, by the checks and by the cache.
    for fragment in 2..4 {
        for worker in [1, 2] {
            let mut padded = data(worker, fragment, 0);
            padded.resize(200, 0xee);
            let packet = w.packet(&padded);
            for (_, result) in w.receive(worker, packet) {
                assert_eq!(result.len(), HEADERS_BYTES + 64);
            }
        }
    }
    assert_eq!(contributions(&w), 6);
    // It ends with the epoch.
    w.switch.command(|| Command::Unbind(JOB));
    assert_eq!(w.refused_bytes(1, &data(1, 9, 0)), DropReason::UnknownJob);
    w.end();
}

#[test]
fn contributions_of_one_poll_iteration_are_summed_at_its_end() {
    let mut w = World::new(1);
    let core = &mut w.switch.cores[0];
    for worker in [1, 2] {
        let mut burst: Vec<_> = (0..3)
            .map(|fragment| w.switch.memory.packet(&data(worker, fragment, 0)))
            .collect();
        assert_eq!(core.receive(PortId(worker), &mut burst), 3 * 128);
        assert!(burst.is_empty());
    }
    assert_eq!(core.report().dialects.native.counters.results, 0);
    core.aggregate();
    let report = core.report();
    assert_eq!(report.dialects.native.counters.results, 3);
    let port = report.ports[1];
    assert_eq!((port.rx_frames, port.rx_bytes), (3, 3 * 128));
    // A frame of another kind comes after what came before it.
    let core = &mut w.switch.cores[0];
    for worker in [1, 2] {
        let mut burst = vec![w.switch.memory.packet(&data(worker, 9, 0))];
        core.receive(PortId(worker), &mut burst);
    }
    let probe = secret(JOB, EPOCH).seal(header(Kind::Probe, Rank(0), 9));
    let probe = frame(&to_switch(&host(1), ADDRESS.base_port), &probe, 0);
    core.receive(PortId(1), &mut vec![w.switch.memory.packet(&probe)]);
    let counters = core.report().dialects.native.counters;
    assert_eq!((counters.results, counters.results_again), (4, 1));
    w.end();
}

/// The flow cache of a port expires each second, so that one frame refreshes the MAC table.
#[test]
fn a_switchml_member_in_the_flow_cache_does_not_age_out_of_the_mac_table() {
    let mut w = World::new(1);
    for seconds in (1..1000).step_by(100) {
        w.switch.now = Time(seconds * 1_000_000_000);
        let packets = (0..3).map(|_| w.packet(&contribution(4))).collect();
        w.switch.receive_burst(PortId(4), packets);
    }
    let macs = w.switch.cores[0].context.forwarding.macs();
    assert_eq!(macs.port_of(station(4).mac, 1000), Some(PortId(4)));
    w.end();
}

#[test]
fn frames_between_hosts_are_forwarded_as_they_are() {
    let mut w = World::new(1);
    let bytes = ordinary(&host(4), &host(5));
    // Of a frame in transit the switch checks no checksum.
    let packet = w.packet(&bytes).with_bad_checksum();
    let flooded = w.receive(4, packet);
    let to: Vec<_> = flooded.iter().map(|(port, _)| port.0).collect();
    assert_eq!(to, [0, 1, 2, 3, 5]);
    assert!(flooded.iter().all(|(_, frame)| *frame == bytes));
    let answer = w.packet(&ordinary(&host(5), &host(4)));
    assert_eq!(w.receive(5, answer).len(), 1, "learnt");
    // A member is where its JOIN came from.
    let in_its_name = ordinary(&host(1), &host(4));
    assert_eq!(w.refused_bytes(5, &in_its_name), DropReason::ClaimsMember);
    let to_member = w.packet(&ordinary(&host(4), &host(1)));
    assert_eq!(w.receive(4, to_member).len(), 1, "never flooded");
    w.switch.command(|| Command::Unbind(JOB));
    assert_eq!(w.receive(5, w.switch.memory.packet(&in_its_name)).len(), 1);
    // The switch's address at another MAC, and in the switch's name.
    let to_own = with(bytes.clone(), DST_IP, &ADDRESS.ip.octets());
    assert_eq!(w.refused_bytes(4, &to_own), DropReason::NotOurMac);
    let of_own = with(bytes, SRC_IP, &ADDRESS.ip.octets());
    assert_eq!(w.refused_bytes(4, &of_own), DropReason::SpoofedSwitch);
    assert_eq!(w.claims(), [0, 0, 0, 0, 1, 1]);
    w.end();
}

/// A frame with several references is copied before it is forwarded: its bytes may be changed.
#[test]
fn a_shared_frame_is_copied_before_it_is_forwarded() {
    let mut w = World::new(1);
    let shared = w.packet(&ordinary(&host(4), &host(1)));
    let other = shared.share();
    w.switch.receive(PortId(4), shared);
    assert!(other.is_unique(), "the copy has left");
    assert_eq!(w.switch.take().len(), 1);
    let shared = other.share();
    w.switch.memory.set_limit(w.switch.memory.alive());
    w.switch.receive(PortId(4), shared);
    assert_eq!(w.switch.drops(), [(DropReason::NoBuffer, 1)]);
    drop(other);
    w.end();
}

#[test]
fn floods_spare_ports_with_a_switchml_member() {
    let mut w = World::new(1);
    let spoken = w.packet(&contribution(5));
    w.receive(5, spoken);
    let bytes = ordinary(&host(4), &host(9));
    let flooded = w.receive(4, w.switch.memory.packet(&bytes));
    let to: Vec<_> = flooded.iter().map(|(port, _)| port.0).collect();
    assert_eq!(to, [0, 1, 2, 3]);
    assert_eq!(w.switch.cores[0].report().rare[5].floods_spared, 1);
    // The dialect knows where it is, and answers for it.
    let station = station(5);
    let to_station = with(bytes, DST_MAC, &station.mac.0);
    assert_eq!(w.receive(4, w.switch.memory.packet(&to_station)).len(), 1);
    let question = neighbour::arp_request(host(4).mac, host(4).ip, station.ip);
    let answers = w.receive(4, w.switch.memory.packet(&question));
    let [(PortId(4), answer)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(neighbour::arp_sender(answer, station.ip), Some(station.mac));
    w.end();
}

#[test]
fn the_switch_answers_for_its_own_address() {
    let mut w = World::new(1);
    let question = neighbour::arp_request(host(4).mac, host(4).ip, ADDRESS.ip);
    for dst_mac in [Mac::BROADCAST, ADDRESS.mac] {
        let question = with(question.to_vec(), DST_MAC, &dst_mac.0);
        let answers = w.receive(4, w.switch.memory.packet(&question));
        let [(PortId(4), answer)] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!(neighbour::arp_sender(answer, ADDRESS.ip), Some(ADDRESS.mac));
    }
    w.end();
}

#[test]
fn joins_go_to_control_in_their_order() {
    let mut w = World::new(1);
    let control = |kind, rank: u8| {
        let header = Header {
            units: CONTROL_UNITS,
            ..header(kind, Rank(rank), 0)
        };
        frame(&to_switch(&host(4), ADDRESS.base_port), &header, rank)
    };
    let join = |rank: u8| control(Kind::Join, rank);
    for rank in 0..2 {
        assert_eq!(w.receive(4, w.switch.memory.packet(&join(rank))), []);
    }
    let core = &mut w.switch.cores[0];
    for rank in 0..2 {
        let control = core.poll_control().unwrap();
        assert_eq!((control.from, control.header.rank), (host(4), Rank(rank)));
        assert_eq!(control.datagram[..], join(rank)[42..]);
    }
    assert!(core.poll_control().is_none());
    // Only the switch says these.
    for kind in [Kind::Accept, Kind::Refuse] {
        let reason = w.refused_bytes(4, &control(kind, 0));
        assert_eq!(reason, DropReason::NotForSwitch);
    }
    assert!(w.switch.cores[0].poll_control().is_none());
    // The answer is a datagram of the highest class, from the switch.
    let datagram: Box<[u8; _]> = Box::new(join(0)[42..].try_into().unwrap());
    w.switch
        .command(|| Command::Send(host(4), datagram.clone()));
    let sent = w.switch.take();
    let [(PortId(4), answer)] = &sent[..] else {
        panic!("{sent:?}");
    };
    let udp = UdpFrame::parse(answer).unwrap();
    assert_eq!(
        (udp.addresses.src_mac, udp.addresses.dst_mac),
        (ADDRESS.mac, host(4).mac)
    );
    assert_eq!(udp.datagram(answer), &datagram[..]);
    w.switch.memory.set_limit(0);
    w.switch
        .command(|| Command::Send(host(4), datagram.clone()));
    assert!(w.switch.drops().contains(&(DropReason::NoBuffer, 1)));
    w.end();
}

/// Port p belongs to core p modulo 2, and a fragment to the core of its shard.
#[test]
fn a_fragment_is_summed_by_the_core_of_its_shard() {
    let mut w = World::new(2);
    for fragment in 0..4 {
        let shard = fragment % 2;
        let first = w.packet(&data(1, fragment, shard as u16));
        assert_eq!(w.receive(1, first), []);
        let second = w.packet(&data(2, fragment, shard as u16));
        let sent = w.receive(2, second);
        let mut to: Vec<_> = sent.iter().map(|(port, _)| port.0).collect();
        to.sort_unstable();
        assert_eq!(to, [1, 2]);
    }
    let results = |at: usize| w.switch.cores[at].report().dialects.native.counters.results;
    assert_eq!((results(0), results(1)), (2, 2));
    let handed = |at: usize, port: usize| w.switch.cores[at].report().ports[port].handed_over;
    assert_eq!((handed(1, 1), handed(0, 2)), (2, 2));
    // The other shard's port: refused by the core that it names.
    assert_eq!(w.refused_bytes(1, &data(1, 4, 1)), DropReason::Shard);
    // What another core's queue does not take is counted.
    w.switch.drivers[1].handover_room = 0;
    assert_eq!(w.refused_bytes(1, &data(1, 4, 0)), DropReason::HandoverFull);
    w.end();
}

/// The drops of the report include those that ports count.
#[test]
fn the_report_has_all_drops() {
    let mut w = World::new(1);
    let ports = &mut w.switch.cores[0].context.ports;
    ports.set_longest_frames(vec![FRAME_BYTES, 100, FRAME_BYTES, FRAME_BYTES, 1000, 1000]);
    let long = w.packet(&ordinary(&host(4), &host(1)));
    assert_eq!(w.refused(4, long), DropReason::FrameTooLong);
    w.switch.drivers[0].room[2] = 0;
    // 32 are on the stage, 512 in the queue.
    for _ in 0..544 {
        let frame = w.packet(&ordinary(&host(4), &host(2)));
        w.switch.receive(PortId(4), frame);
    }
    assert_eq!(w.switch.drops().len(), 1);
    let full = w.packet(&ordinary(&host(4), &host(2)));
    assert_eq!(w.refused(4, full), DropReason::TxFull);
    w.switch.cores[0].context.ports.purge(PortId(2));
    w.end();
}

/// Drops a frame of each kind, with a pool that gives nothing, and nothing is lost.
#[test]
fn an_exhausted_pool_loses_nothing() {
    let mut w = World::new(2);
    let first = w.packet(&contribution(4));
    w.receive(4, first);
    let frames = [
        contribution(5),
        data(1, 0, 0),
        data(2, 0, 0),
        ordinary(&host(4), &host(1)),
    ];
    let packets: Vec<_> = frames.iter().map(|frame| w.packet(frame)).collect();
    w.switch.memory.set_limit(w.switch.memory.alive());
    for (packet, port) in packets.into_iter().zip([5, 1, 2, 4]) {
        w.switch.receive(PortId(port), packet);
    }
    let sent = w.switch.take();
    // Results, forwarded frames and replies leave in the frames that came.
    assert_eq!(sent.len(), 5, "{sent:?}");
    assert_eq!(w.switch.drops(), []);
    w.switch.memory.set_limit(usize::MAX);
    w.end();
}
