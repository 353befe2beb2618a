//! Arbitrary frames into two switch cores, with an oracle of forwarding. The fuzz target
//! `forwarding` and `tests/forwarding.rs` feed it.
//!
//! Bytes are read as a script of operations: frames are composed of tags, SNAP headers, addresses
//! and packets, mutated and cut off, or are the bytes as they are; jobs are bound and released;
//! time passes. The oracle is written from ADR 22 and shares no code with the parser under test:
//!
//! * nothing panics;
//! * what claims the switch's addresses, a job's group or to be an ICMP error about the switch is
//!   never forwarded, under any tags and options; and only such a frame is dropped as a claim;
//! * an IPv4 packet to the switch's address, behind tags or not, but not to its MAC is never
//!   forwarded; and only such a packet is dropped as `not-our-mac`;
//! * a frame with a bound member's source leaves from the member's port only, and one to a bound
//!   member goes there, never floods, and is dropped by no limit;
//! * a forwarded frame is unchanged and does not go back by its port;
//! * a frame leaves, or one counter says why not; claims are counted by their port as well;
//! * only an ARP or echo request for the switch becomes an answer, which is from the switch;
//! * no buffer is lost.

use super::platform::Memory;
use super::switch::{ADDRESS, Switch, native, pool};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tally_engine::SwitchAddress;
use tally_engine::forwarding::FloodLimits;
use tally_engine::{Command, Dialects, DropReason, ForwardingConfig, Member, PortId, Roster};
use tally_wire::{Epoch, EpochSecret, JobId, Mac, UdpFrame};

const OWN_MAC: [u8; 6] = [2, 0x54, 0x41, 0x4c, 0x4c, 0x59];
const OWN_IP: [u8; 4] = [10, 84, 0, 254];
const PORTS: u16 = 6;
const CORES: u8 = 2;
/// Operations in one script.
const MAX_OPERATIONS: usize = 200;
/// Headers that hide an ethertype in one frame.
const MAX_WRAPS: usize = 20;
/// Ethertypes of tags.
const TAGS: [[u8; 2]; 5] = [[0x81, 0], [0x88, 0xa8], [0x91, 0], [0x92, 0], [0x93, 0]];
/// Headers of ethertypes behind an 802.3 length.
const SNAPS: [[u8; 6]; 2] = [[0xaa, 0xaa, 3, 0, 0, 0], [0xaa, 0xaa, 3, 0, 0, 0xf8]];
/// Of two jobs, the members' host numbers; each is at the port of its number.
const MEMBERS: [&[u8]; 2] = [&[1, 2, 3], &[3, 4]];

const MACS: [[u8; 6]; 14] = [
    OWN_MAC,
    host(1),
    host(2),
    host(3),
    host(4),
    host(5),
    host(9),
    [0xff; 6],
    [1, 0, 0x5e, 84, 0, 7],
    [1, 0, 0x5e, 84, 1, 0],
    [1, 0, 0x5e, 85, 0, 7],
    [1, 0, 0x5e, 0, 0, 1],
    [0x33, 0x33, 0, 0, 0, 1],
    [0; 6],
];

const IPS: [[u8; 4]; 12] = [
    OWN_IP,
    [10, 84, 0, 1],
    [10, 84, 0, 2],
    [10, 84, 0, 5],
    [239, 84, 0, 7],
    [239, 84, 255, 255],
    [239, 212, 0, 7],
    [224, 84, 0, 7],
    [239, 85, 0, 7],
    [255; 4],
    [0; 4],
    [10, 84, 0, 253],
];

const fn host(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// What a script did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Frames sent to one port.
    pub forwarded: u64,
    /// Frames flooded.
    pub flooded: u64,
    /// Requests answered.
    pub answered: u64,
    /// Frames dropped because they claim what is the switch's.
    pub claims: u64,
    /// Those of them that are behind tags or SNAP headers.
    pub hidden: u64,
    /// Frames dropped because they claim to be a member.
    pub members: u64,
    /// Frames dropped because they are to the switch's IPv4 address, but not to its MAC.
    pub other_macs: u64,
    /// Frames dropped for other reasons.
    pub others: u64,
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn frame(&mut self) -> Vec<u8> {
        let mut frame = [self.pick(&MACS), self.pick(&MACS)].concat();
        for _ in 0..usize::from(self.byte()) % MAX_WRAPS {
            match usize::from(self.byte()) % (TAGS.len() + SNAPS.len()) {
                n if n < TAGS.len() => {
                    frame.extend(TAGS[n]);
                    frame.extend([self.byte(), self.byte()]);
                }
                n => {
                    frame.extend([0, 60]);
                    frame.extend(SNAPS[n - TAGS.len()]);
                }
            }
        }
        match self.byte() % 5 {
            0 | 1 => {
                frame.extend([8, 0]);
                let protocol = self.pick(&[17, 1, 2, 6]);
                let packet = self.packet(protocol, 24);
                frame.extend(packet);
            }
            // An ICMP error, or an echo.
            2 => {
                frame.extend([8, 0]);
                let packet = self.packet(1, 48);
                frame.extend(packet);
                frame.extend([self.pick(&[3, 4, 5, 11, 12, 8, 0]), 0, 0, 0, 0, 0, 0, 0]);
                let quoted = self.packet(17, 28);
                frame.extend(quoted);
            }
            3 => {
                frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0]);
                frame.push(self.pick(&[1, 2]));
                for _ in 0..2 {
                    frame.extend(self.pick(&MACS));
                    frame.extend(self.pick(&IPS));
                }
            }
            _ => {
                frame.extend(self.pick(&[[0x86, 0xdd], [0x88, 0xcc], [0, 38], [8, 0]]));
                let n = usize::from(self.byte()) % 40;
                frame.extend(self.bytes(n));
            }
        }
        frame.resize(frame.len().max(60), 0);
        for _ in 0..self.byte() % 4 {
            let at = usize::from(self.byte()) % frame.len();
            frame[at] ^= self.byte();
        }
        // Most frames are whole.
        let cut = usize::from(self.byte());
        if cut >= 192 {
            frame.truncate(cut - 192);
        }
        frame
    }

    /// An IPv4 header: plain, with options, of another version, or of a first or later fragment.
    fn packet(&mut self, protocol: u8, payload_bytes: u8) -> Vec<u8> {
        let (first, [high, low]) = self.pick(&[
            (0x45, [0, 0]),
            (0x45, [0x40, 0]),
            (0x46, [0, 0]),
            (0x65, [0, 0]),
            (0x45, [0x20, 0]),
            (0x45, [0, 2]),
        ]);
        let options = usize::from(first & 0xf) * 4 - 20;
        let bytes = 20 + options as u8 + payload_bytes;
        let mut packet = vec![first, 0, 0, bytes, 0, 7, high, low, 64, protocol, 0, 0];
        packet.extend([self.pick(&IPS), self.pick(&IPS)].concat());
        packet.resize(20 + options, 1);
        packet
    }
}

// --- the oracle ------------------------------------------------------------------------------

/// Ethertype and payload behind all tags and SNAP headers, with their number; `None` if the frame
/// ends before.
fn peel(frame: &[u8]) -> Option<([u8; 2], &[u8], usize)> {
    let mut rest = frame.get(12..)?;
    let mut depth = 0;
    loop {
        let (&[high, low], behind) = rest.split_first_chunk()?;
        if TAGS.contains(&[high, low]) {
            rest = behind.get(2..)?;
        } else if high < 6 && SNAPS.iter().any(|snap| behind.starts_with(snap)) {
            rest = &behind[6..];
        } else {
            return Some(([high, low], behind, depth));
        }
        depth += 1;
    }
}

/// Whether a frame claims what is the switch's alone.
fn claims(frame: &[u8]) -> bool {
    if frame.len() >= 14 && frame[6..12] == OWN_MAC {
        return true;
    }
    let Some((ethertype, payload, _)) = peel(frame) else {
        return false;
    };
    let is_ipv4 = ethertype == [8, 0] && payload.len() >= 20;
    // 32 groups share a MAC; in a frame to another one of them the MAC claims nothing.
    let is_other_group = is_ipv4
        && payload[16] & 0xf0 == 0xe0
        && payload[17] & 0x7f == 84
        && payload[18..20] == frame[4..6];
    if frame[..4] == [1, 0, 0x5e, 84] && !is_other_group {
        return true;
    }
    if is_ipv4 {
        return payload[12..16] == OWN_IP
            || payload[16..18] == [239, 84]
            || payload[9] == 1 && is_error(payload);
    }
    // A request asks for its target; any other ARP frame tells of it.
    ethertype == [8, 6]
        && payload.len() >= 28
        && (payload[8..14] == OWN_MAC
            || payload[14..18] == OWN_IP
            || payload[6..8] != [0, 1] && payload[24..28] == OWN_IP)
}

/// Whether a frame is an IPv4 packet to the switch's address, but not to its MAC.
fn is_to_own_ip_at_other_mac(frame: &[u8]) -> bool {
    let Some(([8, 0], packet, _)) = peel(frame) else {
        return false;
    };
    frame[..6] != OWN_MAC && packet.len() >= 20 && packet[16..20] == OWN_IP
}

/// Whether an ICMP packet is an error about a datagram to the switch, or hides what it is about in
/// another fragment.
fn is_error(packet: &[u8]) -> bool {
    let is_later = packet[6] & 0x1f != 0 || packet[7] != 0;
    let has_more = packet[6] & 0x20 != 0;
    let message = packet.get(usize::from(packet[0] & 0xf) * 4..);
    let Some(message) = message.filter(|m| !m.is_empty() && !is_later) else {
        return false;
    };
    let quotes_own = message.len() >= 28 && message[24..28] == OWN_IP;
    matches!(message[0], 3 | 4 | 5 | 11 | 12) && (has_more || quotes_own)
}

/// Whether a frame asks the switch for an answer: ARP for its address, or an echo to it.
fn asks(frame: &[u8]) -> bool {
    let arp = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    let is_arp = frame.len() >= 42 && frame[12..22] == arp && frame[38..42] == OWN_IP;
    let is_echo = frame.len() >= 42
        && frame[..6] == OWN_MAC
        && frame[12..15] == [8, 0, 0x45]
        && frame[23] == 1
        && frame[30..34] == OWN_IP
        && frame[34] == 8;
    is_arp || is_echo
}

// --- the world -------------------------------------------------------------------------------

struct World {
    switch: Switch<Dialects<Memory>>,
    /// By job, the addresses of its members; each is at the port of its last byte.
    bound: BTreeMap<u16, Vec<[u8; 6]>>,
    summary: Summary,
}

/// Runs a script.
///
/// # Panics
/// When the oracle is not content.
pub fn run(bytes: &[u8]) -> Summary {
    let mut script = Script(bytes);
    let config = ForwardingConfig {
        mac: Mac(OWN_MAC),
        ip: OWN_IP.into(),
        ports: PORTS,
        ageing_s: 2,
        addresses: 4,
        floods_per_s: FloodLimits::each(50),
        answers_per_s: 50,
        seed: 7,
    };
    let address = SwitchAddress {
        mac: config.mac,
        ip: config.ip,
        ..ADDRESS
    };
    let memory = Memory::new(2048);
    let mut world = World {
        switch: Switch::new(address, CORES, &config, memory, |core| Dialects {
            native: native(pool(CORES, core, [JobId(0), JobId(1)]), PORTS),
            switchml: None,
            netreduce: None,
            offload: None,
        }),
        bound: BTreeMap::new(),
        summary: Summary::default(),
    };
    world.bind(0);
    for _ in 0..MAX_OPERATIONS {
        if script.0.is_empty() {
            break;
        }
        world.operation(&mut script);
    }
    world.summary
}

impl World {
    fn operation(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0 => {
                let port = PortId(u16::from(script.byte()) % PORTS);
                let n = usize::from(script.byte());
                self.take(port, script.bytes(n).to_vec());
            }
            1 => self.bind(usize::from(script.byte()) % 2),
            2 => {
                let job = u16::from(script.byte()) % 2;
                self.switch.command(|| Command::Unbind(JobId(job)));
                self.bound.remove(&job);
            }
            3 => self.switch.now.0 += u64::from(script.byte()) * 20_000_000,
            _ => {
                let port = PortId(u16::from(script.byte()) % PORTS);
                let frame = script.frame();
                self.take(port, frame);
            }
        }
    }

    fn bind(&mut self, job: usize) {
        let member = |&n: &u8| Member {
            port: PortId(n.into()),
            mac: Mac(host(n)),
            ip: Ipv4Addr::new(10, 84, 0, n),
            udp_port: 4000,
        };
        let mut members: Vec<_> = MEMBERS[job].iter().map(member).collect();
        let macs = members.iter().map(|member| member.mac.0).collect();
        self.bound.insert(job as u16, macs);
        let ps = members.pop().expect("each job has members");
        let (epoch, secret) = (Epoch(1), EpochSecret::new([1; 16]));
        let roster = Roster::new(JobId(job as u16), epoch, secret, 16, members, ps);
        let roster = Arc::new(roster);
        self.switch.command(|| Command::Bind(Arc::clone(&roster)));
    }

    /// The port of a bound member.
    fn port_of(&self, mac: &[u8]) -> Option<PortId> {
        let mut bound = self.bound.values().flatten();
        let mac = bound.find(|bound| bound[..] == *mac)?;
        Some(PortId(mac[5].into()))
    }

    /// Frames dropped, by reason, and claims, by port.
    fn counters(&self) -> (Vec<u64>, Vec<u64>) {
        let reports = self.switch.cores.iter().map(|core| core.report());
        let mut sums = (vec![0; DropReason::ALL.len()], vec![0; usize::from(PORTS)]);
        let add = |sums: &mut Vec<u64>, counts: &[u64]| {
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        };
        for report in reports {
            add(&mut sums.0, &report.drops.drops);
            add(&mut sums.0, &report.dialects.native.counters.drops.drops);
            let claims: Vec<_> = report
                .rare
                .iter()
                .map(|port| port.claims.iter().sum())
                .collect();
            add(&mut sums.1, &claims);
        }
        sums
    }

    fn take(&mut self, port: PortId, sent: Vec<u8>) {
        let (drops, mut claimed) = self.counters();
        let packet = self.switch.memory.packet(&sent);
        self.switch.receive(port, packet);
        let left = self.switch.take();
        let control = self.switch.cores.iter_mut().find_map(|c| c.poll_control());
        assert_eq!(self.switch.memory.alive(), 0, "a buffer is lost");
        let (drops_after, claimed_after) = self.counters();
        let counted = DropReason::ALL.iter().zip(drops.iter().zip(drops_after));
        let counted = counted.filter(|(_, (before, after))| *before < after);
        let counted: Vec<_> = counted
            .map(|(&reason, (before, after))| (reason, after - before))
            .collect();
        if let [(reason, 1)] = counted[..] {
            assert!(left.is_empty(), "{reason:?}, and left: {sent:02x?}");
            claimed[usize::from(port.0)] += u64::from(reason.is_claim());
            assert_eq!(claimed, claimed_after, "{reason:?}");
            let depth = peel(&sent).map_or(0, |(.., depth)| depth);
            return self.dropped(reason, port, &sent, depth);
        }
        assert_eq!((counted, claimed), (vec![], claimed_after), "{sent:02x?}");
        match &left[..] {
            [] => {
                // A JOIN or LEAVE.
                assert!(control.is_some(), "neither left nor counted: {sent:02x?}");
                assert!(sent[..6] == OWN_MAC && UdpFrame::parse(&sent).is_ok());
            }
            [(to, answer)] if *to == port => {
                self.summary.answered += 1;
                assert!(asks(&sent), "answered: {sent:02x?}");
                let is_from_own = answer[6..12] == OWN_MAC && answer[0] & 1 == 0;
                assert!(is_from_own, "{answer:02x?}");
            }
            [(to, frame)] => {
                self.summary.forwarded += 1;
                let pinned = self.port_of(&sent[..6]);
                assert!(pinned.is_none_or(|port| port == *to), "{sent:02x?}");
                self.passed(port, &sent, frame);
            }
            flooded => {
                self.summary.flooded += 1;
                assert_eq!(self.port_of(&sent[..6]), None, "flooded: {sent:02x?}");
                let mut to: Vec<_> = flooded.iter().map(|(to, _)| to.0).collect();
                to.sort_unstable();
                assert!(to.into_iter().eq((0..PORTS).filter(|&to| to != port.0)));
                for (_, frame) in flooded {
                    self.passed(port, &sent, frame);
                }
            }
        }
    }

    /// A frame has left as it came.
    fn passed(&self, port: PortId, sent: &[u8], frame: &[u8]) {
        assert_eq!(sent, frame, "changed on its way");
        assert_ne!(sent[..6], OWN_MAC, "to the switch: {sent:02x?}");
        assert!(!claims(sent), "forwarded: {sent:02x?}");
        assert!(!is_to_own_ip_at_other_mac(sent), "forwarded: {sent:02x?}");
        assert!(peel(sent).is_some(), "a part of a header: {sent:02x?}");
        let pinned = self.port_of(&sent[6..12]);
        assert!(
            pinned.is_none_or(|pinned| pinned == port),
            "in a member's name from {port:?}: {sent:02x?}"
        );
    }

    fn dropped(&mut self, reason: DropReason, port: PortId, sent: &[u8], depth: usize) {
        let is_to_member = sent.len() >= 12 && self.port_of(&sent[..6]).is_some();
        let why = || format!("{reason:?} from {port:?}: {sent:02x?}");
        match reason {
            DropReason::SpoofedSwitch
            | DropReason::SpoofedBehindTag
            | DropReason::ClaimsGroup
            | DropReason::ClaimsError => {
                self.summary.claims += 1;
                self.summary.hidden += u64::from(depth > 0);
                assert!(claims(sent), "{}", why());
                let is_hidden = reason == DropReason::SpoofedBehindTag;
                assert!(!is_hidden || depth > 0, "{}", why());
            }
            DropReason::ClaimsMember => {
                self.summary.members += 1;
                let pinned = self.port_of(&sent[6..12]);
                assert!(pinned.is_some_and(|pinned| pinned != port), "{}", why());
            }
            DropReason::NotOurMac => {
                self.summary.other_macs += 1;
                assert!(is_to_own_ip_at_other_mac(sent), "{}", why());
            }
            // Floods alone are limited.
            DropReason::StormBroadcast
            | DropReason::StormMulticast
            | DropReason::StormUnknown
            | DropReason::Loop => {
                self.summary.others += 1;
                assert!(!is_to_member, "{}", why());
            }
            DropReason::TagDepth => {
                self.summary.others += 1;
                assert!(peel(sent).is_none() || depth > 16, "{}", why());
            }
            _ => self.summary.others += 1,
        }
    }
}
