//! A switch in the middle of a tree: whole frames into two cores and their registry, between a
//! parent and a child that run the production registries and fabrics, with an oracle. The fuzz
//! target `node` and `tests/node.rs` feed it.
//!
//! Bytes are read as a script of operations: members of all three switches join and leave, members,
//! child, parent and parameter server of the node send what they may; the same comes from
//! elsewhere, with wrong tags, repeated, or mutated; time passes, with hellos between the switches;
//! switches start anew. The oracle:
//!
//! * nothing panics, and registries stop talking to each other;
//! * a frame is dropped with one counter at most, and nothing leaves for one that is;
//! * what leaves has the right tag; a result never leaves by the uplink's group, and only sums and
//!   results leave upwards;
//! * a sum that leaves upwards has each contribution once, a result is the parent's, unless a
//!   member's own frame was mutated in this epoch;
//! * the node runs with its own members, at their addresses;
//! * no buffer is lost.

use super::dispatch::Script;
use super::plain::{host, secret};
use super::platform::Memory;
use super::switch::{ADDRESS, Switch, forwarding, frame, native, pool, to_switch};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::context::ParentAddress;
use tally_engine::fabric::{Fabric as Links, FabricAction, FabricConfig};
use tally_engine::forwarding::fabric::{Link, Plan};
use tally_engine::{
    Action, Child, Command, Core, Dialects, Fabric, JobConfig, Member, Parent, PortId, Registry,
    RegistryConfig, Roster, Tree,
};
use tally_wire::control::{DATAGRAM_BYTES, LeaveCode, Role, State};
use tally_wire::fabric::FabricKeys;
use tally_wire::frame::{UDP_END, group_of};
use tally_wire::header::CONTROL_UNITS;
use tally_wire::{
    Accept, Addresses, AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, HEADERS_BYTES,
    Header, JobId, Join, Key, Kind, Leave, Mac, Part, Rank, Refuse, SwitchName, UdpFrame,
};

const JOB: JobId = JobId(7);
const CORES: u8 = 2;
const PORTS: u16 = 6;
/// Workers: rank 0 at the root, 1 and 2 at the node, 3 at the leaf.
const TOTAL: u16 = 4;
const FRAGMENTS: u8 = 24;
const MAX_OPERATIONS: usize = 300;
/// Datagrams that one operation may lead to.
const MAX_DATAGRAMS: usize = 4000;
const NAMES: [&str; 3] = ["root", "node", "leaf"];
const ROOT: usize = 0;
const NODE: usize = 1;
const LEAF: usize = 2;
const PARENT: Member = Member {
    port: PortId(5),
    mac: Mac([2, 0, 0, 0, 9, 9]),
    ip: Ipv4Addr::new(10, 9, 9, 9),
    udp_port: 20_000,
};
const CHILD: Member = Member {
    port: PortId(4),
    mac: Mac([2, 0, 0, 0, 8, 8]),
    ip: Ipv4Addr::new(10, 8, 8, 8),
    udp_port: 30_000,
};
/// Each byte of a contribution, of the sum of three, and of the job's result.
const ONE: u8 = 1;
const SUM: u8 = 3;
const RESULT: u8 = 7;
const FORGED: u8 = 66;

/// What a script did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Frames handed in.
    pub frames: u64,
    /// Epochs that ran.
    pub binds: u64,
    /// Sums and results that left upwards.
    pub up: u64,
    /// Results that left to members.
    pub results: u64,
    /// Links of the fabric that came to life.
    pub links: u64,
}

/// A member's process.
struct Peer {
    /// The index of its switch.
    at: usize,
    /// Its rank in the whole job.
    rank: Rank,
    home: Member,
    instance: u64,
    challenge: u64,
    epoch: Epoch,
    salt: u64,
    runs: bool,
}

struct World {
    registries: [Registry; 3],
    starts: [u8; 3],
    links: [Links; 3],
    switch: Switch<Dialects<Memory>>,
    peers: Vec<Peer>,
    bound: Option<Roster>,
    /// Datagrams between registries and members: to whom, from whom.
    flying: VecDeque<(usize, Member, Vec<u8>)>,
    recorded: VecDeque<(PortId, Vec<u8>)>,
    is_tainted: bool,
    summary: Summary,
}

fn job_key() -> Key {
    Key::new(&[7; 16]).expect("16 bytes")
}

fn fabric_key() -> Key {
    Key::new(&[9; 16]).expect("16 bytes")
}

/// The node, as its neighbours see it.
fn node() -> Member {
    Member {
        port: PortId(1),
        mac: ADDRESS.mac,
        ip: ADDRESS.ip,
        udp_port: ADDRESS.base_port,
    }
}

fn registry(at: usize, start: u8) -> Registry {
    let (mac, base_port) = [
        (PARENT.mac, PARENT.udp_port),
        (ADDRESS.mac, ADDRESS.base_port),
        (CHILD.mac, CHILD.udp_port),
    ][at];
    let config = RegistryConfig {
        mac,
        base_port,
        shards: CORES,
        window: 8,
        units: 2,
        member_timeout: Duration::from_secs(5),
        secret: [start * 3 + at as u8; 32],
        fabric: Some(Fabric {
            name: SwitchName::new(NAMES[at]),
            key: fabric_key(),
            previous_key: None,
        }),
    };
    let child = |at: usize, ranks| Child {
        switch: SwitchName::new(NAMES[at]),
        ranks,
    };
    let parent = |at: usize, rank| Parent {
        switch: SwitchName::new(NAMES[at]),
        rank: Rank(rank),
    };
    let (workers, first, parent, children) = match at {
        ROOT => (1, 0, None, vec![child(NODE, 3)]),
        NODE => (2, 1, Some(parent(ROOT, 1)), vec![child(LEAF, 1)]),
        _ => (1, 3, Some(parent(NODE, 2)), Vec::new()),
    };
    let job = JobConfig {
        id: JOB,
        key: job_key(),
        previous_key: None,
        workers,
        servers: 1,
        tree: Some(Tree {
            total: TOTAL,
            first,
            parent,
            children,
        }),
    };
    Registry::new(config, vec![job])
}

fn plan(at: usize) -> Plan {
    let link = |port, to: usize, is_up| Link {
        port: PortId(port),
        switch: NAMES[to].into(),
        is_up,
    };
    Plan::new(match at {
        ROOT => vec![link(1, NODE, false)],
        NODE => vec![link(5, ROOT, true), link(4, LEAF, false)],
        _ => vec![link(1, NODE, true)],
    })
}

fn links(at: usize, start: u8) -> Links {
    let of = [PARENT, node(), CHILD][at];
    Links::new(FabricConfig {
        name: NAMES[at].into(),
        mac: of.mac,
        ip: of.ip,
        udp_port: of.udp_port,
        keys: FabricKeys {
            key: fabric_key(),
            previous: None,
        },
        plan: plan(at),
        session: 1 + at as u64 + 3 * u64::from(start),
    })
}

/// Runs a script.
///
/// # Panics
/// When the oracle is not content.
pub fn run(bytes: &[u8]) -> Summary {
    let mut script = Script(bytes);
    let mut world = World::new(&mut script);
    for _ in 0..MAX_OPERATIONS {
        if script.0.is_empty() {
            break;
        }
        world.operation(&mut script);
    }
    world.end()
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let runs = script.byte() < 200;
        let memory = Memory::new(1514);
        let config = forwarding(ADDRESS, PORTS);
        let mut switch = Switch::in_fabric(ADDRESS, CORES, &config, &plan(NODE), memory, |core| {
            Dialects {
                native: native(pool(CORES, core, [JOB]), PORTS),
                switchml: None,
                netreduce: None,
                offload: None,
            }
        });
        let parent = ParentAddress {
            name: SwitchName::new(""),
            mac: PARENT.mac,
            ip: PARENT.ip,
        };
        switch.command(|| Command::Parent(PARENT.port, Some(parent)));
        let places = [
            (ROOT, Rank(0), 10),
            (ROOT, Rank::PS, 11),
            (NODE, Rank(1), 1),
            (NODE, Rank(2), 2),
            (NODE, Rank::PS, 3),
            (LEAF, Rank(3), 12),
            (LEAF, Rank::PS, 13),
        ];
        let peers = (1..).zip(places).map(|(instance, (at, rank, home))| Peer {
            at,
            rank,
            home: host(home),
            instance,
            challenge: 0,
            epoch: Epoch(0),
            salt: 0,
            runs: false,
        });
        let mut world = Self {
            registries: [0, 1, 2].map(|at| registry(at, 1)),
            starts: [1; 3],
            links: [0, 1, 2].map(|at| links(at, 1)),
            switch,
            peers: peers.collect(),
            bound: None,
            flying: VecDeque::new(),
            recorded: VecDeque::new(),
            is_tainted: false,
            summary: Summary::default(),
        };
        world.say_parent(NODE);
        world.say_parent(LEAF);
        if runs {
            for _ in 0..8 {
                world.all_join();
                world.pass(60, false);
            }
        }
        world
    }

    fn say_parent(&mut self, at: usize) {
        let (now, address) = (self.switch.now, [PARENT, PARENT, node()][at]);
        let actions = self.registries[at].set_parent_address(now, JOB, Some(address));
        self.carry_out(at, actions);
    }

    fn operation(&mut self, script: &mut Script<'_>) {
        let operation = script.byte();
        if operation >= 248 {
            return self.restart(script.below(3));
        }
        match operation % 16 {
            0..3 => {
                let (rank, fragment) = (script.below(3), script.byte());
                let flags = Flags::RESEND.when(script.byte() & 3 == 0);
                self.contribute(rank, fragment % FRAGMENTS, flags);
            }
            3 => {
                let fragment = script.byte() % FRAGMENTS;
                (0..3).for_each(|rank| self.contribute(rank, fragment, Flags::NONE));
            }
            4..7 => {
                let (from, bytes) = self.other(script, None);
                self.receive(from, &bytes);
            }
            7 => {
                // With a tag of none, or of another epoch.
                let wrong = secret(JOB, Epoch(u16::from(script.byte())));
                let (from, bytes) = self.other(script, Some(wrong));
                self.receive(from, &bytes);
            }
            8 => {
                // What a member, the child or the parent may say, from another port.
                let (_, bytes) = self.other(script, None);
                let port = PortId(script.below(usize::from(PORTS)) as u16);
                self.receive(port, &bytes);
            }
            9 => self.all_join(),
            10 => {
                let peer = script.below(self.peers.len());
                self.say(peer, None);
            }
            11 => {
                let peer = script.below(self.peers.len());
                let code = LeaveCode::from_number(u32::from(script.byte() % 5)).expect("a code");
                self.say(peer, Some(code));
            }
            12 => {
                let ms = 5 * u64::from(script.byte());
                let is_silent = script.byte() & 7 == 0;
                self.pass(ms, is_silent);
            }
            13 => {
                if let Some((port, bytes)) = self.any_recorded(script) {
                    let elsewhere = script.byte();
                    let port = match elsewhere & 1 {
                        0 => port,
                        _ => PortId(u16::from(elsewhere >> 1) % PORTS),
                    };
                    self.receive(port, &bytes);
                }
            }
            14 => {
                if let Some((port, mut bytes)) = self.any_recorded(script) {
                    for _ in 0..1 + script.below(3) {
                        let at = script.below(bytes.len());
                        bytes[at] ^= script.byte();
                    }
                    self.is_tainted = true;
                    self.receive(port, &bytes);
                }
            }
            _ => {
                let n = script.below(140);
                let bytes = script.bytes(n).to_vec();
                let port = PortId(script.below(usize::from(PORTS)) as u16);
                self.receive(port, &bytes);
            }
        }
    }

    fn any_recorded(&self, script: &mut Script<'_>) -> Option<(PortId, Vec<u8>)> {
        let n = self.recorded.len();
        (n > 0).then(|| self.recorded[script.below(n)].clone())
    }

    // --- Frames of the data path. ---

    fn secret(&self) -> EpochSecret {
        let bound = self.bound.as_ref();
        bound.map_or_else(|| secret(JOB, Epoch(1)), |roster| roster.secret)
    }

    fn header(&self, kind: Kind, rank: Rank, fragment: u8) -> Header {
        let elements = kind.has_elements();
        Header {
            kind,
            flags: Flags::NONE,
            priority: 9,
            element: if elements {
                Element::I32
            } else {
                Element::None
            },
            job: JOB,
            epoch: self.bound.as_ref().map_or(Epoch(1), |it| it.epoch),
            fragment: FragmentId(fragment.into()),
            rank,
            units: u8::from(elements),
            bitmap: if kind == Kind::Data { rank.bit() } else { 0 },
            tag: AuthTag::NONE,
        }
    }

    /// A host's contribution, or the sum of the child, which has local rank 2.
    fn contribute(&mut self, rank: usize, fragment: u8, flags: Flags) {
        let header = Header {
            flags,
            ..self.header(Kind::Data, Rank(rank as u8), fragment)
        };
        let header = self.secret().seal(header);
        let from = [host(1), host(2), CHILD][rank];
        let port = ADDRESS.base_port + u16::from(fragment) % u16::from(CORES);
        self.receive(from.port, &frame(&to_switch(&from, port), &header, ONE));
    }

    /// A frame of another kind, with its right tag or that of another secret, and where it is from.
    fn other(&self, script: &mut Script<'_>, wrong: Option<EpochSecret>) -> (PortId, Vec<u8>) {
        let (choice, fragment) = (script.below(9), script.byte() % FRAGMENTS);
        let who = script.below(3);
        let member = [host(1), host(2), CHILD][who];
        let rank = Rank(who as u8);
        let (from, kind, rank, fill) = match choice {
            0 | 1 => (PARENT, Kind::Result, Rank::SWITCH, RESULT),
            2 => (PARENT, Kind::Nack, Rank(1), 0),
            3 => (host(3), Kind::Result, Rank::PS, SUM),
            4 => (host(3), Kind::Remind, Rank::PS, 0),
            5 => (host(3), Kind::Nack, rank, 0),
            6 => (member, Kind::Result, rank, RESULT),
            7 => (member, Kind::Data, rank, ONE),
            _ => (member, Kind::Probe, rank, 0),
        };
        // DATA has no tag: what its member sends is its contribution.
        let is_forged = wrong.is_some() && kind.has_tag();
        let fill = if is_forged { FORGED } else { fill };
        let header = self.header(kind, rank, fragment);
        let header = wrong.unwrap_or_else(|| self.secret()).seal(header);
        let shard = u16::from(fragment) % u16::from(CORES);
        let mut to = to_switch(&from, ADDRESS.base_port + shard);
        if choice < 2 {
            let group = group_of(JOB);
            to = Addresses {
                dst_mac: Mac::of_group(group),
                dst_ip: group,
                dst_port: from.udp_port,
                ..to
            };
        }
        (from.port, frame(&to, &header, fill))
    }

    fn drops(&self) -> u64 {
        let cores = self.switch.cores.iter();
        let of = |core: &Core<Memory, Dialects<Memory>>| {
            let native = &core.dialects.native.aggregator().counters().drops;
            let ports = &core.context.ports;
            let rare = ports.handover_full + ports.frame_too_long + ports.no_buffer;
            core.context.drops().total() + native.total() + rare
        };
        cores.map(of).sum()
    }

    /// One frame into the node, and what follows from it.
    fn receive(&mut self, port: PortId, bytes: &[u8]) {
        self.summary.frames += 1;
        if self.recorded.len() == 64 {
            self.recorded.pop_front();
        }
        if !bytes.is_empty() {
            self.recorded.push_back((port, bytes.to_vec()));
        }
        let before = self.drops();
        let packet = self.switch.memory.packet(bytes);
        self.switch.receive(port, packet);
        let sent = self.switch.take();
        let dropped = self.drops() - before;
        assert!(dropped <= 1, "counted {dropped} times");
        assert!(dropped == 0 || sent.is_empty(), "dropped, and {sent:?}");
        sent.iter()
            .for_each(|(port, bytes)| self.check(*port, bytes));
        let cores = self.switch.cores.iter_mut();
        let control: Vec<_> = cores
            .flat_map(|core| std::iter::from_fn(|| core.poll_control()))
            .collect();
        for it in control {
            let now = self.switch.now;
            let actions = self.registries[NODE].handle(now, it.from, &it.header, &it.datagram[..]);
            self.carry_out(NODE, actions);
        }
        self.carry_all();
    }

    /// What left the node by a port.
    fn check(&mut self, port: PortId, bytes: &[u8]) {
        let Ok(udp) = UdpFrame::parse(bytes) else {
            return;
        };
        if udp.addresses.src_mac != ADDRESS.mac {
            return;
        }
        let header = Header::parse(udp.datagram(bytes)).expect("a valid header");
        let roster = self.bound.as_ref().expect("it runs");
        assert!(roster.secret.verifies(&header), "a wrong tag: {header:?}");
        assert_eq!(header.epoch, roster.epoch);
        let payload = &bytes[HEADERS_BYTES..][..header.payload_bytes()];
        let is = |fill| self.is_tainted || payload.iter().all(|&byte| byte == fill);
        if port == PARENT.port {
            let to = udp.addresses;
            assert_eq!((to.dst_mac, to.dst_ip), (PARENT.mac, PARENT.ip));
            match header.kind {
                Kind::Data => assert!(is(SUM), "{header:?} {payload:?}"),
                Kind::Result => assert!(is(RESULT), "{header:?} {payload:?}"),
                Kind::Probe => {}
                _ => panic!("{header:?} went up"),
            }
            self.summary.up += u64::from(header.kind != Kind::Probe);
        } else if header.kind == Kind::Result {
            assert!(is(RESULT), "{header:?} {payload:?}");
            self.summary.results += 1;
        }
    }

    // --- Control. ---

    fn all_join(&mut self) {
        for peer in 0..self.peers.len() {
            self.say(peer, None);
        }
    }

    /// A member says JOIN, or LEAVE with a code.
    fn say(&mut self, peer: usize, leave: Option<LeaveCode>) {
        let it = &self.peers[peer];
        let ps = it.rank == Rank::PS;
        let mut datagram = vec![0; DATAGRAM_BYTES];
        let header = Header {
            kind: if leave.is_some() {
                Kind::Leave
            } else {
                Kind::Join
            },
            element: Element::None,
            priority: 0,
            epoch: it.epoch,
            units: CONTROL_UNITS,
            bitmap: 0,
            ..self.header(Kind::Join, it.rank, 0)
        };
        header.emit(&mut datagram);
        match leave {
            Some(code) => Leave {
                instance: it.instance,
                challenge: it.challenge,
                code,
                fragment: FragmentId(0),
                behind: 0,
                salt: it.salt,
                tree: None,
            }
            .emit(&mut datagram),
            None => Join {
                instance: it.instance,
                challenge: it.challenge,
                role: if ps { Role::Ps } else { Role::Worker },
                workers: if ps { 0 } else { TOTAL as u8 },
                units: u8::from(!ps),
                running: it.runs && !ps,
                window: if ps { 0 } else { 8 },
                shape: [0; 32],
                sent: None,
                awaiting: 0,
                salt: it.salt,
                tree: None,
                part: Part::ONLY,
            }
            .emit(&mut datagram),
        }
        job_key().seal(&mut datagram);
        let (at, home) = (it.at, it.home);
        self.flying.push_back((at, home, datagram));
        self.carry_all();
    }

    /// Until no datagram is on its way.
    fn carry_all(&mut self) {
        for n in 0.. {
            let Some((at, from, datagram)) = self.flying.pop_front() else {
                return;
            };
            assert!(n < MAX_DATAGRAMS, "more than {MAX_DATAGRAMS} datagrams");
            if at == NODE {
                let header = Header::parse(&datagram).expect("a control header");
                let mut bytes = frame(&to_switch(&from, ADDRESS.base_port), &header, 0);
                bytes.truncate(UDP_END);
                bytes.extend(&datagram);
                self.receive(from.port, &bytes);
            } else {
                let header = Header::parse(&datagram).expect("a control header");
                let now = self.switch.now;
                let actions = self.registries[at].handle(now, from, &header, &datagram);
                self.carry_out(at, actions);
            }
        }
    }

    fn carry_out(&mut self, at: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, datagram) => self.send(at, to, datagram),
                Action::Create(..) | Action::Forget(_) => panic!("there are no tenants"),
                Action::Bind(roster) if at == NODE => self.bind(*roster),
                Action::Unbind(_) if at == NODE => self.unbind(),
                Action::Bind(_) | Action::Unbind(_) => {}
            }
        }
    }

    fn bind(&mut self, roster: Roster) {
        self.summary.binds += 1;
        assert_eq!(roster.workers, [host(1), host(2), CHILD], "a thief");
        assert_eq!(roster.servers, [host(3)], "a thief");
        assert_eq!(roster.switches, 0b100);
        assert_eq!(roster.uplink.map(|it| it.parent), Some(PARENT));
        let is_same = |it: &Roster| (it.epoch, it.secret) == (roster.epoch, roster.secret);
        self.is_tainted &= self.bound.as_ref().is_some_and(is_same);
        let shared = Arc::new(roster.clone());
        self.switch.command(|| Command::Bind(Arc::clone(&shared)));
        assert_eq!(self.switch.take(), [], "binding sends nothing");
        self.bound = Some(roster);
    }

    fn unbind(&mut self) {
        self.switch.command(|| Command::Unbind(JOB));
        assert_eq!(self.switch.take(), [], "unbinding sends nothing");
        self.bound = None;
    }

    /// A datagram of a registry's, by the node's cores if it is the node's.
    fn send(&mut self, at: usize, to: Member, datagram: Box<[u8; DATAGRAM_BYTES]>) {
        if at == NODE {
            let core = self.switch.core_of(to.port);
            self.switch.cores[core].command(Command::Send(to, datagram.clone()));
            self.switch.poll();
            let sent = self.switch.take();
            let [(port, bytes)] = &sent[..] else {
                panic!("one datagram: {sent:?}");
            };
            let udp = UdpFrame::parse(bytes).expect("a datagram");
            assert_eq!((*port, udp.addresses.dst_mac), (to.port, to.mac));
            assert_eq!(udp.datagram(bytes), &datagram[..]);
        }
        let bytes = datagram.to_vec();
        match to.mac {
            mac if mac == ADDRESS.mac => {
                let from = if at == ROOT { PARENT } else { CHILD };
                self.flying.push_back((NODE, from, bytes));
            }
            mac if mac == PARENT.mac => self.flying.push_back((ROOT, node(), bytes)),
            mac if mac == CHILD.mac => self.flying.push_back((LEAF, node(), bytes)),
            _ => self.notify(to, &bytes),
        }
    }

    /// J-8, as far as a member here needs it.
    fn notify(&mut self, to: Member, datagram: &[u8]) {
        let header = Header::parse(datagram).expect("the switch's own frame");
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.home == to) else {
            return;
        };
        if !job_key().verify(datagram) {
            return;
        }
        if header.kind == Kind::Accept {
            let accept = Accept::parse(datagram).expect("the switch's own ACCEPT");
            if accept.instance == peer.instance {
                peer.challenge = accept.challenge;
                (peer.epoch, peer.salt) = (header.epoch, accept.salt);
                peer.runs = accept.state == State::Running;
            }
            return;
        }
        let refuse = Refuse::parse(datagram).expect("the switch's own REFUSE");
        if refuse.instance == peer.instance {
            peer.challenge = refuse.challenge;
            if refuse.reason.is_final() {
                // A worker's process ends, and the next one comes; a PS stays.
                if peer.rank != Rank::PS {
                    peer.instance += 0x100;
                    peer.challenge = 0;
                }
                (peer.epoch, peer.salt, peer.runs) = (Epoch(0), 0, false);
            }
        }
    }

    // --- Time, and the fabric. ---

    /// Time passes; hellos are lost if the links are silent.
    fn pass(&mut self, ms: u64, is_silent: bool) {
        let end = self.switch.now.after(Duration::from_millis(ms));
        while self.switch.now < end {
            let now = self.switch.now.after(Duration::from_millis(20));
            self.switch.now = now;
            for at in 0..3 {
                let is_due =
                    |registry: &Registry| registry.poll_timeout().is_some_and(|it| it <= now);
                if is_due(&self.registries[at]) {
                    let actions = self.registries[at].handle_timeout(now);
                    self.carry_out(at, actions);
                    self.carry_all();
                }
                for port in plan(at).ports() {
                    self.links[at].set_carrier(now, port, true);
                }
                if at == NODE {
                    let forwarding = &self.switch.cores[0].context.forwarding;
                    for (port, bytes) in forwarding.ports().take_fabric() {
                        self.links[at].receive(now, port, &bytes);
                    }
                }
                for action in self.links[at].poll(now) {
                    self.follow(at, action, is_silent);
                }
            }
        }
    }

    fn follow(&mut self, at: usize, action: FabricAction, is_silent: bool) {
        let now = self.switch.now;
        match action {
            FabricAction::Send(..) if is_silent => {}
            FabricAction::Send(port, bytes) if at == NODE => {
                let core = self.switch.core_of(port);
                let command = Command::SendFrame(port, bytes.clone());
                self.switch.cores[core].command(command);
                self.switch.poll();
                let sent = self.switch.take();
                assert_eq!(sent, [(port, bytes.to_vec())]);
                let to = if port == PARENT.port { ROOT } else { LEAF };
                self.links[to].receive(now, PortId(1), &bytes);
            }
            FabricAction::Send(_, bytes) => {
                let from = if at == ROOT { PARENT } else { CHILD };
                self.receive(from.port, &bytes);
            }
            FabricAction::Forward(table) if at == NODE => {
                self.summary.links += 1;
                self.switch.command(|| Command::Fabric(Arc::clone(&table)));
            }
            FabricAction::Forget(place) if at == NODE => {
                self.switch.cores[0].context.forwarding.forget(place);
            }
            FabricAction::Learn(place, mac, age_s) if at == NODE => {
                let forwarding = &self.switch.cores[0].context.forwarding;
                forwarding.learn_told(now, place, mac, age_s);
            }
            _ => {}
        }
    }

    /// A switch starts anew; of the node the cores, too.
    fn restart(&mut self, at: usize) {
        // As often as secrets last without coming again.
        if self.starts[at] == 80 {
            return;
        }
        self.starts[at] += 1;
        if at == NODE {
            self.unbind();
        }
        self.registries[at] = registry(at, self.starts[at]);
        self.links[at] = links(at, self.starts[at]);
        let now = self.switch.now;
        let actions = self.registries[at].handle_timeout(now);
        self.carry_out(at, actions);
        if at != ROOT {
            self.say_parent(at);
        }
    }

    fn end(mut self) -> Summary {
        self.unbind();
        let Switch { memory, cores, .. } = self.switch;
        drop(cores);
        assert_eq!(memory.alive(), 0, "a buffer disappeared");
        self.summary
    }
}
