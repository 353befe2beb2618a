//! Every claim in every disguise, and where ordinary frames go.

use super::*;
use crate::Member;
use tally_wire::encapsulation::{ENCAPSULATIONS_MAX, ETHERTYPES_TAG};
use tally_wire::{Epoch, EpochSecret};

const OWN_MAC: Mac = Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
const OWN: [u8; 4] = [10, 84, 0, 254];
const GROUP: [u8; 4] = [239, 84, 0, 7];
const GROUP_MAC: Mac = Mac([1, 0, 0x5e, 84, 0, 7]);
const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];
const MS: u64 = 1_000_000;

fn host(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn config() -> ForwardingConfig {
    ForwardingConfig {
        mac: OWN_MAC,
        ip: OWN.into(),
        ports: 5,
        ageing_s: 300,
        addresses: 100,
        floods_per_s: FloodLimits::each(1000),
        answers_per_s: 1000,
        seed: 0x1234_5678_9abc_def0,
    }
}

/// Hosts 1 to 4 are known behind the ports 1 to 4.
fn forwarding() -> Forwarding {
    let forwarding = Forwarding::new(&config());
    for n in 1..5 {
        forwarding.macs().learn(host(n), PortId(n.into()), 0);
    }
    forwarding
}

/// A frame from host 1: addresses, tags, ethertype and payload.
fn frame(to: Mac, tags: &[u8], ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to.0, &host(1).0, tags, &ethertype, payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// An IPv4 packet, of 32 bytes behind its header.
fn packet(source: [u8; 4], destination: [u8; 4], protocol: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 52, 0, 7, 0, 0, 64, protocol, 0, 0];
    packet.extend([source, destination].concat());
    packet.extend([0x7a, 0x11, 0x0f, 0xa0, 0, 32, 0, 0]);
    packet.resize(52, 1);
    packet
}

fn arp(operation: u8, sender: (Mac, [u8; 4]), target: (Mac, [u8; 4])) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &sender.0.0, &sender.1, &target.0.0, &target.1].concat()
}

fn decide(forwarding: &Forwarding, mut frame: Vec<u8>) -> Result<Verdict, DropReason> {
    forwarding.classify(Time(0), PortId(1), &mut frame, &())
}

/// What hides an ethertype: tags of every kind, ordinary and priority ones, stacked, and SNAP.
fn disguises() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for tpid in ETHERTYPES_TAG {
        for tci in [0, 0xe000, 5] {
            let tag = [tpid.to_be_bytes(), u16::to_be_bytes(tci)].concat();
            all.extend([tag.clone(), tag.repeat(2), tag.repeat(ENCAPSULATIONS_MAX)]);
            all.push([&[0x88, 0xa8, 0, 0], &tag[..]].concat());
            all.push([&tag[..], &[0, 70, 0xaa, 0xaa, 3, 0, 0, 0]].concat());
        }
    }
    all.push(vec![0, 70, 0xaa, 0xaa, 3, 0, 0, 0]);
    all.push(vec![0, 70, 0xaa, 0xaa, 3, 0, 0, 0xf8]);
    all
}

/// Asserts that a claim is dropped, plain and in every disguise, and that the same frame without it
/// is forwarded.
#[track_caller]
fn is_dropped(
    to: Mac,
    ethertype: [u8; 2],
    payload: &[u8],
    plain: DropReason,
    disguised: DropReason,
) {
    let forwarding = forwarding();
    let found = decide(&forwarding, frame(to, &[], ethertype, payload));
    assert_eq!(found, Err(plain));
    for tags in disguises() {
        let found = decide(&forwarding, frame(to, &tags, ethertype, payload));
        assert_eq!(found, Err(disguised), "behind {tags:02x?}");
    }
    assert_eq!(
        forwarding
            .macs()
            .by_port()
            .map(|p| p.addresses)
            .sum::<u32>(),
        4
    );
}

#[track_caller]
fn spoofs(to: Mac, ethertype: [u8; 2], payload: &[u8]) {
    let disguised = DropReason::SpoofedBehindTag;
    is_dropped(to, ethertype, payload, DropReason::SpoofedSwitch, disguised);
}

#[track_caller]
fn is_claimed(to: Mac, payload: &[u8], reason: DropReason) {
    is_dropped(to, IPV4, payload, reason, reason);
}

#[track_caller]
fn passes(to: Mac, ethertype: [u8; 2], payload: &[u8]) {
    let verdict = if to.is_group() {
        Verdict::Flood
    } else {
        Verdict::Forward(PortId(2))
    };
    for tags in [vec![]].into_iter().chain(disguises()) {
        let found = decide(&forwarding(), frame(to, &tags, ethertype, payload));
        assert_eq!(found, Ok(verdict), "behind {tags:02x?}");
    }
}

#[test]
fn the_switch_s_ip_address_is_its_own_in_every_disguise() {
    for to in [host(2), GROUP_MAC, Mac::BROADCAST, host(99)] {
        for destination in [[10, 84, 0, 2], GROUP, [255; 4]] {
            spoofs(to, IPV4, &packet(OWN, destination, 17));
        }
    }
    // Options, another version, a first fragment and a later one.
    for (at, value) in [(0, 0x46), (0, 0x65), (6, 0x20), (7, 2)] {
        let mut odd = packet(OWN, [10, 84, 0, 2], 17);
        odd[at] = value;
        spoofs(host(2), IPV4, &odd);
    }
    passes(host(2), IPV4, &packet([10, 84, 0, 1], [10, 84, 0, 2], 17));
    // Ordinary datagrams between the ports that jobs use.
    let mut same_ports = packet([10, 84, 0, 1], [10, 84, 0, 2], 17);
    same_ports[20..24].copy_from_slice(&[0x7a, 0x11, 0x7a, 0x11]);
    passes(host(2), IPV4, &same_ports);
}

#[test]
fn the_switch_s_mac_address_is_its_own() {
    let mut spoofed = frame(host(2), &[], IPV4, &packet([1; 4], [2; 4], 17));
    spoofed[6..12].copy_from_slice(&OWN_MAC.0);
    assert_eq!(
        decide(&forwarding(), spoofed),
        Err(DropReason::SpoofedSwitch)
    );
}

#[test]
fn arp_for_the_switch_comes_from_the_switch_only() {
    let (me, you) = ((host(1), [10, 84, 0, 1]), (host(2), [10, 84, 0, 2]));
    let liar = (host(1), OWN);
    for to in [host(2), Mac::BROADCAST] {
        for operation in [1, 2] {
            spoofs(to, ARP, &arp(operation, liar, you));
            // Gratuitous.
            spoofs(to, ARP, &arp(operation, liar, (Mac::default(), OWN)));
            // Another host's address, at the switch's MAC.
            spoofs(to, ARP, &arp(operation, (OWN_MAC, [10, 84, 0, 9]), you));
        }
        spoofs(to, ARP, &arp(2, me, (host(1), OWN)));
        // IEEE 802 as its hardware type, which Linux takes too.
        let mut odd = arp(2, liar, you);
        odd[1] = 6;
        spoofs(to, ARP, &odd);
    }
    passes(host(2), ARP, &arp(2, me, you));
    passes(Mac::BROADCAST, ARP, &arp(1, me, (Mac::default(), you.1)));
}

#[test]
fn groups_of_jobs_are_the_switch_s_only() {
    let (me, reason) = ([10, 84, 0, 1], DropReason::ClaimsGroup);
    for to in [
        GROUP_MAC,
        host(2),
        Mac::BROADCAST,
        Mac([1, 0, 0x5e, 0, 0, 1]),
    ] {
        for group in [GROUP, [239, 84, 0, 0], [239, 84, 255, 255]] {
            is_claimed(to, &packet(me, group, 17), reason);
        }
        let mut later = packet(me, GROUP, 17);
        later[7] = 2;
        is_claimed(to, &later, reason);
        is_claimed(to, &packet(me, GROUP, 2), reason);
    }
    // The MAC, and nothing else in it of the groups that share it.
    for destination in [[10, 84, 0, 2], [224, 84, 0, 8], [239, 85, 0, 7]] {
        is_claimed(GROUP_MAC, &packet(me, destination, 17), reason);
    }
    for ethertype in [[0x86, 0xdd], ARP, [0x88, 0xcc]] {
        let payload = arp(1, (host(1), me), (host(2), [10, 84, 0, 2]));
        is_dropped(GROUP_MAC, ethertype, &payload, reason, reason);
    }
    // Other groups, those with the same MAC too.
    for group in [[224, 84, 0, 7], [238, 212, 0, 7], [239, 212, 0, 7]] {
        passes(GROUP_MAC, IPV4, &packet(me, group, 17));
    }
    let other = Mac([1, 0, 0x5e, 85, 0, 7]);
    passes(other, IPV4, &packet(me, [239, 85, 0, 7], 17));
}

/// The secret of a SwitchML worker is its destination MAC, learnt at no port.
#[test]
fn packets_to_the_switch_s_ip_address_but_another_mac_are_dropped() {
    let (me, reason) = ([10, 84, 0, 1], DropReason::NotOurMac);
    for to in [host(2), Mac([2, 0x5e, 1, 2, 3, 4]), Mac::BROADCAST] {
        for protocol in [1, 6, 17] {
            is_claimed(to, &packet(me, OWN, protocol), reason);
        }
    }
}

#[test]
fn errors_about_datagrams_to_the_switch_come_from_no_host() {
    let quoting = |kind: u8, quoted: &[u8]| {
        let mut message = packet([10, 84, 0, 1], [10, 84, 0, 2], 1);
        message.truncate(20);
        message.extend([kind, 4, 0, 0, 0, 0, 2, 40]);
        message.extend(&quoted[..28]);
        message
    };
    let (you, reason) = ([10, 84, 0, 2], DropReason::ClaimsError);
    let about_switch = packet(you, OWN, 17);
    for kind in [3, 4, 5, 11, 12] {
        is_claimed(host(2), &quoting(kind, &about_switch), reason);
        // Its own header with options.
        let mut options = quoting(kind, &about_switch);
        options.splice(20..20, [1; 4]);
        options[0] = 0x46;
        is_claimed(host(2), &options, reason);
        // Its quote in a later fragment.
        let mut fragment = quoting(kind, &about_switch);
        fragment.truncate(28);
        fragment[6] = 0x20;
        is_claimed(host(2), &fragment, reason);
        let about_others = packet(you, [10, 84, 0, 3], 17);
        passes(host(2), IPV4, &quoting(kind, &about_others));
    }
    // Echoes quote nothing.
    passes(host(2), IPV4, &quoting(8, &about_switch));
    passes(host(2), IPV4, &quoting(0, &about_switch));
}

#[test]
fn stacks_too_deep_and_frames_that_end_in_a_tag_are_dropped() {
    let deep = [0x81, 0, 0, 0].repeat(ENCAPSULATIONS_MAX + 1);
    let payload = packet([10, 84, 0, 1], [10, 84, 0, 2], 17);
    let found = decide(&forwarding(), frame(host(2), &deep, IPV4, &payload));
    assert_eq!(found, Err(DropReason::TagDepth));
    let cut = frame(host(2), &deep, IPV4, &payload)[..40].to_vec();
    assert_eq!(decide(&forwarding(), cut), Err(DropReason::Truncated));
    let runt = vec![2; 13];
    assert_eq!(decide(&forwarding(), runt), Err(DropReason::Truncated));
}

#[test]
fn frames_go_to_where_their_destination_was_learnt() {
    let forwarding = forwarding();
    let to = |n| decide(&forwarding, frame(host(n), &[], [0x86, 0xdd], &[]));
    assert_eq!(to(3), Ok(Verdict::Forward(PortId(3))));
    assert_eq!(to(9), Ok(Verdict::Flood));
    assert_eq!(to(1), Err(DropReason::Reflection));
    let own = frame(OWN_MAC, &[], IPV4, &[]);
    assert_eq!(decide(&forwarding, own), Ok(Verdict::Local));
    // A source address is learnt.
    let mut answer = frame(host(1), &[], [0x86, 0xdd], &[]);
    answer[6..12].copy_from_slice(&host(9).0);
    let verdict = forwarding.classify(Time(0), PortId(4), &mut answer, &());
    assert_eq!(verdict, Ok(Verdict::Forward(PortId(1))));
    assert_eq!(to(9), Ok(Verdict::Forward(PortId(4))));
}

fn roster() -> Roster {
    let member = |n: u8| Member {
        port: PortId(n.into()),
        mac: host(n),
        ip: [10, 84, 0, n].into(),
        udp_port: 4000,
    };
    let workers = vec![member(1), member(2)];
    Roster::new(
        JobId(7),
        Epoch(1),
        EpochSecret::new([1; 16]),
        16,
        workers,
        member(3),
    )
}

#[test]
fn a_member_s_address_belongs_to_its_port() {
    let mut forwarding = Forwarding::new(&config());
    let from = |forwarding: &Forwarding, port: u16, to: Mac| {
        let mut frame = frame(to, &[], [0x86, 0xdd], &[]);
        forwarding.classify(Time(0), PortId(port), &mut frame, &())
    };
    forwarding.bind(&roster());
    for to in [host(2), host(9), Mac::BROADCAST] {
        let found = from(&forwarding, 4, to);
        assert_eq!(found, Err(DropReason::ClaimsMember));
    }
    assert_eq!(forwarding.macs().len(0), 0);
    // It was never heard of, and nothing for it floods.
    let found = from(&forwarding, 1, host(2));
    assert_eq!(found, Ok(Verdict::Forward(PortId(2))));
    // What was learnt for another port before does not count.
    forwarding.macs().learn(host(3), PortId(4), 0);
    let found = from(&forwarding, 1, host(3));
    assert_eq!(found, Ok(Verdict::Forward(PortId(3))));
    // The switch answers it at any port, so that a member that has moved can join; and learns
    // nothing.
    let asks = arp(1, (host(1), [10, 84, 0, 1]), (Mac::default(), OWN));
    let mut by_broadcast = frame(Mac::BROADCAST, &[], ARP, &asks);
    let found = forwarding.classify(Time(0), PortId(4), &mut by_broadcast, &());
    assert_eq!(found, Ok(Verdict::Answer));
    let mut to_own = frame(OWN_MAC, &[], ARP, &asks);
    let found = forwarding.answer(Time(0), PortId(4), &mut to_own, FrameError::NotIpv4);
    assert_eq!(found, Ok(()));
    assert_eq!(forwarding.macs().last_port_of(host(1)), Some(PortId(1)));
    forwarding.unbind(JobId(7));
    assert!(from(&forwarding, 4, host(9)).is_ok());
}

#[test]
fn cores_share_tables_and_limits() {
    let one = Forwarding::new(&ForwardingConfig {
        floods_per_s: FloodLimits::each(10),
        ..config()
    });
    let other = one.clone();
    one.macs().learn(host(2), PortId(2), 0);
    let to = decide(&other, frame(host(2), &[], IPV4, &[]));
    assert_eq!(to, Ok(Verdict::Forward(PortId(2))));
    let broadcast = || frame(Mac::BROADCAST, &[], IPV4, &[]);
    let passed = (0..10).filter(|n| {
        let core = if n % 2 == 0 { &one } else { &other };
        decide(core, broadcast()).is_ok()
    });
    assert_eq!(passed.count(), 2);
}

#[test]
fn floods_of_a_port_are_limited_and_nothing_else_is() {
    let forwarding = forwarding();
    let mut counts = [0; 3];
    let mut dropped = [0; 3];
    for n in 0..20_000_u32 {
        let now = Time(u64::from(n) * MS / 10);
        let send = |port, to: Mac| {
            let mut frame = frame(to, &[], [0x86, 0xdd], &n.to_be_bytes());
            forwarding.classify(now, PortId(port), &mut frame, &())
        };
        for to in [Mac::BROADCAST, Mac([0x33, 0x33, 0, 0, 0, 1]), host(99)] {
            let kind = FloodKind::of(to);
            match send(1, to) {
                Ok(Verdict::Flood) => counts[kind as usize] += 1,
                found => {
                    assert_eq!(found, Err(kind.reason()));
                    dropped[kind as usize] += 1;
                }
            }
        }
        // Unicast of the same port, and floods of another.
        assert_eq!(send(1, host(2)), Ok(Verdict::Forward(PortId(2))));
        if n % 10 == 0 {
            let mut frame = frame(Mac::BROADCAST, &[], [0x86, 0xdd], &[9; 60]);
            frame[20..24].copy_from_slice(&n.to_be_bytes());
            let found = forwarding.classify(now, PortId(3), &mut frame, &());
            assert_eq!(found, Ok(Verdict::Flood));
        }
    }
    // Two seconds, and the burst at first, of each kind.
    for count in counts {
        assert!((2000..=2101).contains(&count), "{counts:?}");
    }
    assert_eq!(forwarding.ports().storms(PortId(1)), dropped);
    assert_eq!(forwarding.ports().storms(PortId(3)), [0; 3]);
}

#[test]
fn each_kind_of_flood_has_a_limit_of_its_own() {
    let forwarding = Forwarding::new(&ForwardingConfig {
        floods_per_s: FloodLimits([0, 10, 10]),
        ..config()
    });
    let passed = |to: Mac| {
        let sent = (0..100_u32).filter(|n| {
            let mut frame = frame(to, &[], [0x86, 0xdd], &n.to_be_bytes());
            let found = forwarding.classify(Time(0), PortId(1), &mut frame, &());
            found == Ok(Verdict::Flood)
        });
        sent.count()
    };
    assert_eq!(passed(Mac([0x33, 0x33, 0, 0, 0, 1])), 2);
    assert_eq!(passed(host(99)), 2, "multicasts took nothing of it");
    assert_eq!(passed(Mac::BROADCAST), 100, "no limit");
}

#[test]
fn link_local_groups_stay_at_the_link_and_lldp_is_heard() {
    let forwarding = forwarding();
    let group = |last: u8| Mac([1, 0x80, 0xc2, 0, 0, last]);
    for last in 1..16 {
        let lldp = frame(group(last), &[], [0x88, 0xcc], &[last; 30]);
        assert_eq!(decide(&forwarding, lldp), Err(DropReason::LinkLocal));
        let heard = forwarding.ports().take_heard(PortId(1)).unwrap();
        assert_eq!(heard[14..44], [last; 30]);
        let pause = frame(group(last), &[], [0x88, 0x08], &[]);
        assert_eq!(decide(&forwarding, pause), Err(DropReason::LinkLocal));
        assert_eq!(forwarding.ports().take_heard(PortId(1)), None);
    }
    assert_eq!(forwarding.ports().take_heard(PortId(2)), None);
    // Spanning tree of others passes, as groups beyond do.
    for last in [0, 16, 0x21] {
        let bpdu = frame(group(last), &[], [0, 38], &[0x42, 0x42, 3]);
        assert_eq!(decide(&forwarding, bpdu), Ok(Verdict::Flood));
    }
    // The longest frame is kept in part.
    let long = frame(group(14), &[], [0x88, 0xcc], &[1; 1400]);
    assert_eq!(decide(&forwarding, long), Err(DropReason::LinkLocal));
    assert_eq!(forwarding.ports().take_heard(PortId(1)).unwrap().len(), 300);
}

#[test]
fn own_probes_are_consumed_and_those_of_other_switches_pass() {
    let forwarding = forwarding();
    let (own, other) = (&forwarding.ports().probes, Forwarding::new(&config()));
    own.set_instance(1);
    other.ports().probes.set_instance(2);
    let probe = own.make(PortId(3), 77);
    let found = decide(&forwarding, probe.to_vec());
    assert_eq!(found, Err(DropReason::LoopProbe));
    assert_eq!(own.take(PortId(1)).from, Some(PortId(3)));
    assert_eq!(forwarding.macs().len(0), 4, "no address is learnt of it");
    let foreign = other.ports().probes.make(PortId(3), 77);
    assert_eq!(decide(&forwarding, foreign.to_vec()), Ok(Verdict::Flood));
    assert_eq!(own.take(PortId(1)), probe::Sighting::default());
}

#[test]
fn a_closed_port_takes_no_part_and_its_addresses_are_forgotten() {
    let forwarding = forwarding();
    forwarding.ports().set_closed(PortId(3), true);
    let to_3 = || decide(&forwarding, frame(host(3), &[], IPV4, &[]));
    assert_eq!(to_3(), Err(DropReason::PortClosed));
    forwarding.forget(PortId(3));
    assert_eq!(forwarding.macs().last_port_of(host(3)), None);
    assert_eq!(forwarding.macs().last_port_of(host(2)), Some(PortId(2)));
    assert_eq!(to_3(), Ok(Verdict::Flood), "it may be elsewhere now");
    let ports = &forwarding.ports();
    assert!(ports.is_closed(PortId(3)) && !ports.is_closed(PortId(2)));
    ports.probes.set_instance(1);
    let probe = ports.probes.make(PortId(2), 5);
    let classify = |frame: &[u8]| forwarding.classify_closed(PortId(3), frame);
    assert_eq!(classify(&probe), DropReason::LoopProbe);
    assert_eq!(ports.probes.take(PortId(3)).from, Some(PortId(2)));
    assert_eq!(classify(&[0; 60]), DropReason::PortClosed);
    assert_eq!(classify(&[]), DropReason::PortClosed);
}

/// Floods of one frame, and copies dropped, when ports 3 and 4 are joined: what leaves by one comes
/// in by the other.
fn looped(forwarding: &Forwarding, now: Time, first: &[u16]) -> (usize, usize) {
    let frame = frame(Mac::BROADCAST, &[], ARP, &[7; 28]);
    let mut arriving: std::collections::VecDeque<u16> = first.iter().copied().collect();
    let (mut flooded, mut dropped) = (0, 0);
    while let Some(port) = arriving.pop_front() {
        match forwarding.classify(now, PortId(port), &mut frame.clone(), &()) {
            Ok(Verdict::Flood) => {
                flooded += 1;
                arriving.extend(
                    [3, 4]
                        .into_iter()
                        .filter(|&out| out != port)
                        .map(|out| 7 - out),
                );
            }
            found => {
                assert_eq!(found, Err(DropReason::Loop));
                dropped += 1;
            }
        }
        assert!(flooded + dropped < 1000, "the loop feeds itself");
    }
    (flooded, dropped)
}

#[test]
fn a_loop_carries_no_frame_twice_and_moves_no_host() {
    let forwarding = forwarding();
    // Host 1 sends an ARP request once a second.
    for n in 0..100 {
        assert_eq!(looped(&forwarding, Time(n * 1000 * MS), &[1]), (1, 2));
        assert_eq!(forwarding.macs().last_port_of(host(1)), Some(PortId(1)));
    }
}

#[test]
fn what_is_behind_two_joined_ports_floods_once_too() {
    let forwarding = Forwarding::new(&config());
    // A host at a switch that is wired to both ports: each of its broadcasts comes in by both.
    for n in 0..100 {
        assert_eq!(looped(&forwarding, Time(n * 1000 * MS), &[3, 4]), (1, 2));
        assert_eq!(forwarding.macs().last_port_of(host(1)), Some(PortId(3)));
    }
}

#[test]
fn arp_and_ping_are_answered_at_a_limited_rate() {
    let forwarding = forwarding();
    let request = arp(1, (host(1), [10, 84, 0, 1]), (Mac::default(), OWN));
    let ask = |n: u64, to: Mac| {
        let mut asked = frame(to, &[], ARP, &request);
        let now = Time(n * MS / 10);
        let found = if to == OWN_MAC {
            forwarding
                .answer(now, PortId(1), &mut asked, FrameError::NotIpv4)
                .map(|()| Verdict::Answer)
        } else {
            forwarding.classify(now, PortId(1), &mut asked, &())
        };
        if found.is_ok() {
            assert_eq!(neighbour::arp_sender(&asked, OWN.into()), Some(OWN_MAC));
        }
        found
    };
    let mut answered = 0;
    for n in 0..10_000 {
        match ask(n, if n % 2 == 0 { OWN_MAC } else { Mac::BROADCAST }) {
            Ok(verdict) => {
                assert_eq!(verdict, Verdict::Answer);
                answered += 1;
            }
            found => assert_eq!(found, Err(DropReason::AnswerLimit)),
        }
    }
    assert!((1000..=1101).contains(&answered), "{answered}");
    let mut odd = frame(OWN_MAC, &[], [0x86, 0xdd], &[]);
    let found = forwarding.answer(Time(0), PortId(1), &mut odd, FrameError::NotIpv4);
    assert_eq!(found, Err(DropReason::NotIpv4));
}

#[test]
fn a_proxy_answers_for_its_hosts_and_knows_where_they_are() {
    struct Host;
    impl Proxy for Host {
        fn answer_arp(&self, frame: &mut [u8], hears: &dyn Fn(PortId) -> bool) -> bool {
            let ip = Ipv4Addr::new(10, 84, 0, 8);
            !hears(PortId(4)) && neighbour::answer_arp(frame, host(8), ip)
        }

        fn port_of(&self, mac: Mac) -> Option<PortId> {
            (mac == host(8)).then_some(PortId(4))
        }
    }
    let forwarding = forwarding();
    let request = arp(
        1,
        (host(1), [10, 84, 0, 1]),
        (Mac::default(), [10, 84, 0, 8]),
    );
    let mut asked = frame(Mac::BROADCAST, &[], ARP, &request);
    let found = forwarding.classify(Time(0), PortId(1), &mut asked, &Host);
    assert_eq!(found, Ok(Verdict::Answer));
    let mut sent = frame(host(8), &[], IPV4, &[]);
    let found = forwarding.classify(Time(0), PortId(1), &mut sent, &Host);
    assert_eq!(found, Ok(Verdict::Forward(PortId(4))));
}

proptest::proptest! {
    /// No bytes make it panic; and what leaves for a host never claims the switch's
    /// address.
    #[test]
    fn arbitrary_frames_never_panic(
        mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120),
        tags in 0usize..20,
        base in 0..3,
    ) {
        let forwarding = forwarding();
        let tags = [0x81, 0, 0, 0].repeat(tags);
        let mut whole = match base {
            0 => frame(host(2), &tags, IPV4, &bytes),
            1 => frame(Mac::BROADCAST, &tags, ARP, &bytes),
            _ => std::mem::take(&mut bytes),
        };
        let _ = forwarding.classify(Time(0), PortId(1), &mut whole, &());
        let _ = forwarding.answer(Time(0), PortId(1), &mut whole, FrameError::NotUdp);
    }
}

#[test]
fn hosts_learn_the_addresses_of_neighbouring_switches_from_the_switch_before_them() {
    use fabric::{FloodSets, Link, NeighbourState};
    let (spine, ip) = (Mac([2, 0, 0, 0, 1, 1]), [10, 84, 0, 1]);
    let link = |port, switch: &str| Link {
        port: PortId(port),
        switch: switch.into(),
        is_up: true,
    };
    let plan = Plan::new([link(2, "spine1"), link(3, "spine2")]);
    let state = |live: &[u16]| NeighbourState {
        live: live.iter().copied().map(PortId).collect(),
        mac: Some(spine),
        ip: Some(ip.into()),
        ..NeighbourState::default()
    };
    let mut forwarding = Forwarding::in_fabric(&config(), &plan, FloodLimits::each(0));
    let mut ask = |live: &[u16], port, target| {
        let states = [state(live), NeighbourState::default()];
        let sets = FloodSets {
            from_below: vec![Vec::new(); 2],
            ..FloodSets::default()
        };
        forwarding.set_fabric(Arc::new(Table::new(&plan, &states, &sets, 0)));
        let request = arp(1, (host(1), [10, 84, 1, 1]), (Mac::default(), target));
        let mut frame = frame(Mac::BROADCAST, &[], ARP, &request);
        let verdict = forwarding.classify(Time(0), PortId(port), &mut frame, &());
        let answer = arp(2, (spine, ip), (host(1), [10, 84, 1, 1]));
        let is_answer = frame[14..].starts_with(&answer) && frame[..6] == host(1).0;
        assert_eq!(verdict == Ok(Verdict::Answer), is_answer, "{verdict:?}");
        is_answer
    };
    assert!(ask(&[2], 1, ip));
    assert!(!ask(&[2], 1, [10, 84, 0, 2]), "no neighbour's");
    assert!(!ask(&[], 1, ip), "not heard");
    assert!(
        !ask(&[2], 2, ip),
        "from a switch, which has asked its own neighbours"
    );
}
