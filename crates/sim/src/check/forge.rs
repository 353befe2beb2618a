//! Frames from a host that is no member of anything: recorded ones, claims of being a member or the
//! switch, and headers with a few bits changed. None of them may have any effect.
//!
//! No frame has another switch's MAC than the first one's as its Ethernet source. The first switch
//! protects its own alone: the other one's would be learnt here, and stay for as long as it is
//! silent, as in any switch that learns.
//!
//! Those that claim to be the switch take two ways. In most worlds some are handed to hosts
//! directly, as if the switch forwarded everything: what a member believes must not depend on what
//! the switch keeps from it. Others are whole Ethernet frames, behind tags and to any address,
//! which the switch must not forward ([`claims`](super::claims)). Beside them come storms of frames
//! without a claim, and ordinary frames of other hosts, which the switch must forward.

use super::data::Contributor;
use super::options::fabric::NEAR;
use crate::address::{Address, HostId, SwitchId};
use crate::ethernet::{self, ETHERTYPE_ARP, ETHERTYPE_IPV4, Tag};
use crate::frame::Origin;
use crate::host::Session;
use crate::rng::Rng;
use crate::world::World;
use tally_wire::frame::group_of;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{
    Addresses, AuthTag, DEFAULT_PORT, Element, Flags, Header, JobId, Kind, Mac, Rank,
};

/// Frames of a storm: more than a tenth of a second's at the switch's limit.
const STORM_FRAMES: u64 = 30;
/// For experiments (IEEE 802): of no protocol.
const ETHERTYPE_LOCAL: u16 = 0x88b5;

/// Sends one such frame, made from one that came to the switch not long ago.
pub fn forge(world: &mut World<Contributor>, rng: &mut Rng, forger: HostId, hand_over: bool) {
    if rng.chance(10_000) {
        send_ordinary(world, rng, forger);
    }
    if rng.chance(5_000) {
        storm(world, rng, forger);
    }
    let Some(tap) = world.tap.as_ref().filter(|tap| !tap.is_empty()) else {
        return;
    };
    let of = &tap[rng.below(tap.len() as u64) as usize];
    let Some((udp, range)) = of.udp() else { return };
    let mut datagram = of.bytes()[range].to_vec();
    let mut from = Address::at(udp.addresses.src_ip, udp.addresses.src_port);
    let mut to = udp.addresses.dst_port;
    let mut at = forger;
    let target = SwitchId::of_ip(udp.addresses.dst_ip).unwrap_or(NEAR);
    match rng.below(16) {
        // As recorded, from an address of its own.
        0 => {
            from = Address {
                host: forger,
                udp_port: from.udp_port,
            };
        }
        // As recorded, with the sender's address: only the port of the switch tells.
        1 => {}
        2 | 3 => {
            for _ in 0..rng.between(1, 3) {
                let bit = rng.below(8 * HEADER_BYTES as u64) as usize;
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
        }
        4 => from.host = target.host(),
        5 => to = rng.next() as u16,
        // A result of its own making.
        6 => {
            if let Ok(header) = Header::parse(&datagram)
                && header.kind == Kind::Data
            {
                let result = Header {
                    kind: Kind::Result,
                    flags: Flags::FROM_PS,
                    rank: Rank::PS,
                    bitmap: 0,
                    tag: AuthTag(rng.next()),
                    ..header
                };
                result.emit(&mut datagram);
                datagram[HEADER_BYTES..].fill(0xee);
            }
        }
        // A worker's result, from its own port and address: only the tag tells.
        7 => {
            if let Ok(header) = Header::parse(&datagram)
                && header.kind == Kind::Data
                && usize::from(from.host.0) < world.hosts.len()
            {
                let result = Header {
                    kind: Kind::Result,
                    flags: Flags::NONE,
                    bitmap: 0,
                    tag: AuthTag(rng.next()),
                    ..header
                };
                result.emit(&mut datagram);
                datagram[HEADER_BYTES..].fill(0xee);
                at = from.host;
            }
        }
        choice => {
            if choice >= 12 || !hand_over {
                let switch = claimed(world, rng);
                let frame = whole(&datagram, from, world.hosts.len(), rng, (forger, switch));
                world.inject_whole(at, Origin::Forger, &frame);
            } else if let Ok(header) = Header::parse(&datagram)
                && !header.kind.is_control()
            {
                let host = HostId(rng.below(world.hosts.len() as u64) as u16);
                let forged = as_switch(&header, rng);
                plant(world, host, header.job, &forged);
            }
            return;
        }
    }
    if SwitchId::of_host(from.host).is_some_and(|claimed| claimed != NEAR) {
        from.host = forger;
    }
    world.inject(at, &from.to_switch(target, to), &datagram);
}

/// Hands a forged datagram of the switch's to every session of a host: as a result to its job's
/// group, else to each session's address.
fn plant(world: &mut World<Contributor>, host: HostId, job: JobId, forged: &[u8]) {
    let sessions = world.hosts[usize::from(host.0)].sessions.clone();
    let is_result = Header::parse(forged).is_ok_and(|header| header.kind == Kind::Result);
    if is_result {
        let first = sessions.first().map(|&id| world.session(id).switch);
        let switch = first.unwrap_or(NEAR);
        let group = group_of(job);
        let addresses = Addresses {
            dst_mac: Mac::of_group(group),
            dst_ip: group,
            ..Address {
                host,
                udp_port: DEFAULT_PORT,
            }
            .from_switch(switch, DEFAULT_PORT)
        };
        return world.plant(host, &addresses, forged);
    }
    for session in sessions {
        let Session {
            address, switch, ..
        } = world.session(session);
        let addresses = address.from_switch(*switch, DEFAULT_PORT);
        world.plant(host, &addresses, forged);
    }
}

/// The switch that a frame claims to be of.
fn claimed(world: &World<Contributor>, rng: &mut Rng) -> SwitchId {
    match world.switches.len() {
        1 => NEAR,
        n => SwitchId(rng.below(n as u64) as u16),
    }
}

/// A frame about the same fragment or one nearby that only the switch sends, with a tag that was
/// seen or guessed. REMIND is the PS's, and the switch sends it on.
fn as_switch(header: &Header, rng: &mut Rng) -> Vec<u8> {
    let kinds = [
        Kind::Result,
        Kind::Partial,
        Kind::NotHere,
        Kind::Nack,
        Kind::Probe,
        Kind::Remind,
    ];
    let kind = kinds[rng.below(kinds.len() as u64) as usize];
    let is_long = kind.has_elements();
    let element = if header.element == Element::None {
        Element::I32
    } else {
        header.element
    };
    let worker = Rank(rng.below(64) as u8);
    let rank = match kind {
        Kind::Nack | Kind::Probe => worker,
        Kind::Remind => Rank::PS,
        _ => Rank::SWITCH,
    };
    let forged = Header {
        kind,
        flags: Flags::NONE,
        element: if is_long { element } else { Element::None },
        fragment: header.fragment.plus(rng.below(3) as u32),
        rank,
        units: if is_long { header.units.max(1) } else { 0 },
        bitmap: if kind == Kind::Partial { 1 } else { 0 },
        tag: if rng.chance(300_000) {
            header.tag
        } else {
            AuthTag(rng.next())
        },
        ..*header
    };
    let mut datagram = vec![0xee; forged.datagram_bytes()];
    forged.emit(&mut datagram);
    forged.emit_trailer(&mut datagram[HEADER_BYTES + forged.payload_bytes()..]);
    datagram
}

/// A whole frame of the hostile host about `datagram`, which `member` sent: tagged or not, with
/// addresses of its own, of a switch or of another host, to anywhere.
fn whole(
    datagram: &[u8],
    member: Address,
    hosts: usize,
    rng: &mut Rng,
    (forger, switch): (HostId, SwitchId),
) -> Vec<u8> {
    let address = |host| Address { host, udp_port: 0 };
    let (own, switch) = (address(forger), address(switch.host()));
    let any = address(HostId(rng.below(hosts as u64) as u16));
    let tag = |rng: &mut Rng| {
        let tpid = rng.pick(&[0x8100, 0x8100, 0x88a8, 0x9100]);
        (tpid, rng.pick(&[0, 0, 0xe000, 5]))
    };
    let tags: Vec<Tag> = (0..rng.below(4)).map(|_| tag(rng)).collect();
    // An address that no host has, too: a new one each time.
    let unknown = Mac([6, 0, 0, 0, 0, rng.next() as u8]);
    let spoofed = if switch.host == NEAR.host() {
        switch.mac()
    } else {
        own.mac()
    };
    let source = rng.pick(&[own.mac(), own.mac(), spoofed, any.mac(), unknown]);
    let victim = rng.pick(&[member, member, any]);
    let header = Header::parse(datagram).ok();
    let job = header.as_ref().map_or(JobId(0), |header| header.job);
    let group = group_of(job);
    let destination = rng.pick(&[
        victim.mac(),
        victim.mac(),
        Mac::of_group(group),
        Mac::BROADCAST,
        switch.mac(),
        unknown,
    ]);
    if rng.chance(200_000) {
        let senders = [
            (own.mac(), switch.ip()),
            (switch.mac(), switch.ip()),
            (switch.mac(), own.ip()),
            (own.mac(), any.ip()),
            (own.mac(), own.ip()),
        ];
        let targets = [(victim.mac(), victim.ip()), (switch.mac(), switch.ip())];
        let operation = rng.pick(&[1, 2, 2]);
        let arp = ethernet::arp(operation, rng.pick(&senders), rng.pick(&targets));
        return ethernet::frame(destination, source, &tags, ETHERTYPE_ARP, &arp);
    }
    let forged = match header {
        Some(header) if !header.kind.is_control() && rng.chance(800_000) => as_switch(&header, rng),
        _ => datagram.to_vec(),
    };
    let from = rng.pick(&[switch.ip(), switch.ip(), own.ip(), any.ip()]);
    let to = rng.pick(&[victim.ip(), victim.ip(), group, switch.ip()]);
    let ports = (DEFAULT_PORT, rng.pick(&[victim.udp_port, DEFAULT_PORT]));
    // Most of them in the lowest class of the ports' queues.
    let tos = rng.pick(&[0, 0, 0, 0xe0]);
    let packet = ethernet::udp((from, ports.0), (to, ports.1), tos, &forged);
    ethernet::frame(destination, source, &tags, ETHERTYPE_IPV4, &packet)
}

/// More frames at once than the switch floods, from addresses that change, with no claim in them.
fn storm(world: &mut World<Contributor>, rng: &mut Rng, forger: HostId) {
    for _ in 0..STORM_FRAMES {
        let mut unknown = || Mac([6, 0, 0, 0, 0, rng.next() as u8]);
        let (from, to) = (unknown(), unknown());
        let to = rng.pick(&[to, Mac::BROADCAST]);
        let frame = ethernet::frame(to, from, &[], ETHERTYPE_LOCAL, &rng.next().to_be_bytes());
        world.inject_whole(forger, Origin::Forger, &frame);
    }
}

/// Lets a host that is not hostile send an ordinary frame: to another host, or an ARP request for
/// the switch.
fn send_ordinary(world: &mut World<Contributor>, rng: &mut Rng, forger: HostId) {
    let hosts = u64::from(forger.0);
    let address = |host| Address { host, udp_port: 9 };
    let from = address(HostId(rng.below(hosts) as u16));
    let to = address(HostId(rng.below(hosts) as u16));
    if from == to {
        return;
    }
    let source = (from.mac(), from.ip());
    if rng.chance(200_000) {
        let wanted = claimed(world, rng).ip();
        let arp = ethernet::arp(1, source, (Mac([0; 6]), wanted));
        let frame = ethernet::frame(Mac::BROADCAST, from.mac(), &[], ETHERTYPE_ARP, &arp);
        return world.inject_whole(from.host, Origin::Host(from.host), &frame);
    }
    let packet = ethernet::udp(
        (from.ip(), 9),
        (to.ip(), 9),
        0,
        &rng.next().to_be_bytes().repeat(4),
    );
    let tags: &[Tag] = rng.pick(&[&[], &[(0x8100, 5)], &[(0x88a8, 0)]]);
    let frame = ethernet::frame(to.mac(), from.mac(), tags, ETHERTYPE_IPV4, &packet);
    world.inject_whole(from.host, Origin::Host(from.host), &frame);
}
