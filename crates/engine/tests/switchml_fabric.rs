//! Clients of SwitchML behind other switches: their frames come by several links, and their results
//! leave by those that live.

#![allow(clippy::unwrap_used)]

mod common;

use common::fabric::{above, below, table};
use common::pair::{session, station, told};
use common::plain::host;
use common::platform::Memory;
use common::switch::{ADDRESS, Switch, ask, forwarding, native, pool, switchml, to_switch};
use std::sync::Arc;
use tally_engine::forwarding::fabric::{Plan, Table};
use tally_engine::switchml::{
    Command as SwitchmlCommand, HostAddress, SessionId, SessionStatus, SwitchmlConfig, Whereabouts,
};
use tally_engine::{Command, DialectCommand, Dialects, DropReason, PortId};
use tally_wire::switchml::{self as wire, FIRST_PORT, Size};
use tally_wire::{Addresses, Mac, Time, UdpFrame, neighbour};

const PORTS: u16 = 6;
const SLOTS: u16 = 8;
/// The station behind port 1, and that behind other switches.
const NEAR: u8 = 4;
const FAR: u8 = 5;

struct World {
    switch: Switch<Dialects<Memory>>,
    plan: Plan,
}

impl World {
    /// Two cores, to which ports belong in turn.
    fn new(plan: Plan, neighbours: &[(&[u16], &[usize])]) -> Self {
        let config = forwarding(ADDRESS, PORTS);
        let memory = Memory::new(1514);
        let switch = Switch::in_fabric(ADDRESS, 2, &config, &plan, memory, |core| Dialects {
            native: native(pool(2, core, []), PORTS),
            switchml: switchml(
                SwitchmlConfig {
                    sessions: 1,
                    slots: SLOTS,
                    held: 16,
                    shards: 2,
                    shard: core,
                },
                PORTS,
            ),
            netreduce: None,
            offload: None,
        });
        let mut world = Self { switch, plan };
        world.set_links(neighbours);
        let session = Arc::new(session(1, Size::B256, [NEAR, FAR].into_iter()));
        let whereabouts = Arc::new(Whereabouts::new(2));
        for core in &mut world.switch.cores {
            let (session, whereabouts) = (Arc::clone(&session), Arc::clone(&whereabouts));
            assert!(ask(|reply| {
                let bind = SwitchmlCommand::Bind(session, whereabouts, reply);
                core.command(Command::Dialect(DialectCommand::Switchml(bind)));
            }));
        }
        world
    }

    fn set_links(&mut self, neighbours: &[(&[u16], &[usize])]) {
        let table: Arc<Table> = table(&self.plan, neighbours);
        self.switch.command(|| Command::Fabric(Arc::clone(&table)));
    }

    fn receive(&mut self, port: u16, frame: &[u8]) -> Vec<(PortId, Vec<u8>)> {
        let packet = self.switch.memory.packet(frame);
        self.switch.receive(PortId(port), packet);
        self.switch.take()
    }

    /// Ports by which results leave because of this frame, and to whom.
    fn results(&mut self, port: u16, frame: &[u8]) -> Vec<(u16, Mac)> {
        let left = self.receive(port, frame);
        let left = left.iter().map(|(port, frame)| {
            let to = UdpFrame::parse(frame).unwrap().addresses.dst_mac;
            assert!(
                frame[wire::HEADERS_BYTES..]
                    .chunks(4)
                    .all(|it| it == [2; 4])
            );
            (port.0, to)
        });
        let mut left: Vec<_> = left.collect();
        left.sort_unstable_by_key(|(port, _)| *port);
        left
    }

    fn status(&mut self) -> SessionStatus {
        let of = |core: &mut tally_engine::Core<Memory, Dialects<Memory>>| {
            let ask = ask(|reply| {
                let sessions = SwitchmlCommand::Sessions(None, reply);
                core.command(Command::Dialect(DialectCommand::Switchml(sessions)));
            });
            ask.into_iter().next().unwrap()
        };
        let mut all = self.switch.cores.iter_mut().map(of);
        let mut status = all.next().unwrap();
        all.for_each(|it| status.add(&it));
        status
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        let of = |core: &tally_engine::Core<Memory, Dialects<Memory>>| {
            let report = core.report();
            report.drops[reason] + report.dialects.switchml.unwrap().counters.dropped(reason)
        };
        self.switch.cores.iter().map(of).sum()
    }

    fn end(mut self) {
        for core in &mut self.switch.cores {
            ask(|reply| {
                let unbind = SwitchmlCommand::Unbind(SessionId(1), reply);
                core.command(Command::Dialect(DialectCommand::Switchml(unbind)));
            });
        }
        drop(self.switch.cores);
        assert_eq!(self.switch.memory.alive(), 0);
    }
}

fn mac(n: u8) -> Mac {
    station(n).mac
}

/// A contribution of ones; each slot of these is of another shard than the one before.
fn contribution(n: u8, slot: u16) -> Vec<u8> {
    let HostAddress { mac, ip } = station(n);
    let addresses = Addresses {
        src_mac: mac,
        dst_mac: told(station(n)),
        src_ip: ip,
        dst_ip: ADDRESS.ip,
        src_port: 4000 + slot,
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

/// The far client's flows come by two ports; then one dies, and its flows move.
fn works_by_both(plan: Plan, whole: &[(&[u16], &[usize])], halved: &[(&[u16], &[usize])]) {
    let mut world = World::new(plan, whole);
    for slot in 0..4 {
        let port = [3, 4, 4, 3][usize::from(slot)];
        assert_eq!(world.results(port, &contribution(FAR, slot)), []);
        let left = world.results(1, &contribution(NEAR, slot));
        assert_eq!(left, [(1, mac(NEAR)), (port, mac(FAR))], "slot {slot}");
    }
    // The way that it was known by first: results that it lacks, and new ones.
    world.set_links(halved);
    world.switch.now = Time(3_000_000_000);
    let again = world.results(4, &contribution(FAR, 0));
    assert_eq!(again, [(4, mac(FAR))]);
    for slot in 4..6 {
        assert_eq!(world.results(1, &contribution(NEAR, slot)), []);
        let left = world.results(4, &contribution(FAR, slot));
        assert_eq!(left, [(1, mac(NEAR)), (4, mac(FAR))], "slot {slot}");
    }
    let to_far = Addresses {
        dst_mac: mac(FAR),
        dst_ip: station(FAR).ip,
        ..to_switch(&host(2), 53)
    };
    let mut ordinary = vec![0; 60];
    tally_wire::frame::emit_udp(&mut ordinary, &to_far, 18);
    let left = world.receive(2, &ordinary);
    assert!(matches!(left[..], [(PortId(4), _)]), "{left:?}");
    let status = world.status();
    assert_eq!(status.conflict, None);
    assert_eq!((status.counters.results, status.counters.answered), (6, 1));
    assert_eq!(status.ranks[1].port, Some(PortId(4)));
    assert_eq!(world.dropped(DropReason::SwitchmlPort), 0);
    // A host has copied its secret.
    assert_eq!(world.receive(2, &contribution(FAR, 6)), []);
    assert_eq!(world.dropped(DropReason::SwitchmlPort), 1);
    let conflict = world.status().conflict.unwrap();
    assert_eq!((conflict.rank, conflict.ports), (1, [PortId(3), PortId(2)]));
    world.end();
}

#[test]
fn a_client_behind_two_links_to_one_switch_comes_by_both() {
    let plan = Plan::new([below(3, "leaf1"), below(4, "leaf1")]);
    works_by_both(plan, &[(&[3, 4], &[])], &[(&[4], &[])]);
}

#[test]
fn a_client_behind_two_switches_above_comes_by_both() {
    let plan = Plan::new([above(3, "spine1"), above(4, "spine2")]);
    works_by_both(
        plan,
        &[(&[3], &[]), (&[4], &[])],
        &[(&[], &[]), (&[4], &[])],
    );
}

#[test]
fn a_client_behind_two_switches_below_comes_by_both() {
    let plan = Plan::new([below(3, "spine1"), below(4, "spine2")]);
    let whole: &[(&[u16], &[usize])] = &[(&[3], &[1]), (&[4], &[0])];
    works_by_both(plan, whole, &[(&[], &[1]), (&[4], &[0])]);
}

/// The third switch below reaches other hosts: what comes by it is not the client.
#[test]
fn a_secret_that_comes_from_behind_another_switch_is_a_copy() {
    let names = ["spine1", "spine2", "spine3"];
    let plan = Plan::new((3..).zip(names).map(|(port, name)| below(port, name)));
    let mut world = World::new(plan, &[(&[3], &[1]), (&[4], &[0]), (&[5], &[])]);
    assert_eq!(world.results(3, &contribution(FAR, 0)), []);
    assert_eq!(world.receive(5, &contribution(FAR, 1)), []);
    assert_eq!(world.dropped(DropReason::SwitchmlPort), 1);
    assert!(world.status().conflict.is_some());
    world.end();
}

/// A link leads to other hosts than the client, too: floods leave by it, and what asks for the
/// client from there is answered by the client.
#[test]
fn a_client_behind_a_link_keeps_no_flood_from_the_hosts_there() {
    let plan = Plan::new([above(3, "spine1"), above(4, "spine1")]);
    let mut world = World::new(plan, &[(&[3, 4], &[])]);
    world.switch.now = Time(2_000_000_000);
    assert_eq!(world.results(3, &contribution(FAR, 0)), []);
    assert_eq!(world.results(1, &contribution(NEAR, 1)), []);
    let mut floods = vec![false; usize::from(PORTS)];
    for core in &world.switch.cores {
        let is_link = |port| core.context.forwarding.is_link(port);
        tally_engine::dialect::DialectSet::<Memory>::spare_floods(
            &core.dialects,
            &mut floods,
            &is_link,
        );
    }
    assert_eq!(floods, [false, true, false, false, false, false]);
    let asker = host(2);
    let question = neighbour::arp_request(asker.mac, asker.ip, station(FAR).ip);
    let is_answer = |left: &[(PortId, Vec<u8>)], port: u16| {
        let [(to, frame)] = left else { return false };
        *to == PortId(port) && frame[..6] == asker.mac.0
    };
    assert!(is_answer(&world.receive(2, &question), 2));
    assert!(!is_answer(&world.receive(4, &question), 4));
    world.end();
}
