//! A switch core with a card: what goes to the card, and what the card may send.

#![allow(clippy::unwrap_used)]

mod common;

use common::plain::{host, secret};
use common::platform::Memory;
use common::switch::{ADDRESS, Switch, ask, forwarding, frame, native, pool, to_switch};
use std::sync::{Arc, Mutex};
use tally_engine::offload::{CardTraffic, Command as CardCommand, Offload, Pulse, tags};
use tally_engine::{
    Command, DialectCommand, Dialects, DropReason, ForwardingConfig, Member, PortId, Roster,
};
use tally_wire::frame::{UDP_END, group_of};
use tally_wire::{
    Addresses, AuthTag, Element, Epoch, Flags, FragmentId, HEADERS_BYTES, Header, JobId, Kind, Mac,
    Rank, UdpFrame,
};

const JOB: JobId = JobId(7);
const EPOCH: Epoch = Epoch(1);
const CARD: PortId = PortId(0);
const PORTS: u16 = 18;
/// Behind a port that a card does not know.
const FAR: u16 = 16;

struct World {
    switch: Switch<Dialects<Memory>>,
    pulse: Arc<Pulse>,
    probes: Arc<Mutex<Vec<u16>>>,
}

/// Workers 1 and 2, and this PS.
fn roster(epoch: Epoch, workers: [u16; 2], ps: u16) -> Arc<Roster> {
    let workers = workers.map(host).to_vec();
    let secret = secret(JOB, epoch);
    Arc::new(Roster::new(JOB, epoch, secret, 1, workers, host(ps)))
}

impl World {
    /// A switch with a card that has no job.
    fn new() -> Self {
        let (pulse, probes) = (Arc::new(Pulse::default()), Arc::default());
        let on_probe = |probes: &Arc<Mutex<Vec<u16>>>| {
            let probes = Arc::clone(probes);
            Box::new(move |number| probes.lock().unwrap().push(number))
        };
        let config: ForwardingConfig = forwarding(ADDRESS, PORTS);
        let mut switch = Switch::new(ADDRESS, 1, &config, Memory::new(2048), |_| Dialects {
            native: native(pool(1, 0, [JOB]), PORTS),
            switchml: None,
            netreduce: None,
            offload: Some(Box::new(Offload::new(
                CARD,
                Arc::clone(&pulse),
                on_probe(&probes),
            ))),
        });
        switch.cores[0].context.ports.set_hostless(CARD);
        Self {
            switch,
            pulse,
            probes,
        }
    }

    /// A switch whose card has the job.
    fn with_job() -> Self {
        let mut w = Self::new();
        w.bind(&roster(EPOCH, [1, 2], 3));
        assert!(w.give(EPOCH));
        w
    }

    fn bind(&mut self, roster: &Arc<Roster>) {
        self.switch.command(|| Command::Bind(Arc::clone(roster)));
    }

    fn give(&mut self, epoch: Epoch) -> bool {
        let core = &mut self.switch.cores[0];
        ask(|reply| {
            core.command(Command::Move(
                JOB,
                epoch,
                Dialects::<Memory>::OFFLOAD,
                reply,
            ));
        })
    }

    fn take_back(&mut self) {
        let core = &mut self.switch.cores[0];
        ask(|reply| core.command(Command::MoveBack(JOB, reply)));
    }

    fn arrivals(&mut self) -> Vec<(JobId, u64)> {
        let core = &mut self.switch.cores[0];
        ask(|reply| core.command(Command::Arrivals(reply)))
    }

    fn traffic(&self) -> CardTraffic {
        self.switch.cores[0].report().dialects.offload.unwrap()
    }

    /// What leaves because of this frame.
    fn receive(&mut self, port: PortId, bytes: &[u8]) -> Vec<(PortId, Vec<u8>)> {
        let packet = self.switch.memory.packet(bytes);
        self.switch.receive(port, packet);
        self.switch.take()
    }

    /// Why the frame is dropped.
    fn refused(&mut self, port: PortId, bytes: &[u8]) -> DropReason {
        let before = self.switch.drops();
        assert_eq!(self.receive(port, bytes), [], "it is dropped");
        let mut after = self.switch.drops();
        after.retain(|now| !before.contains(now));
        let [(reason, _)] = after[..] else {
            panic!("one reason: {after:?}");
        };
        reason
    }

    /// All frames are back.
    fn end(mut self) {
        self.switch.command(|| Command::Unbind(JOB));
        self.switch.take();
        assert_eq!(self.switch.memory.alive(), 0);
    }
}

fn header(kind: Kind, rank: Rank) -> Header {
    let elements = kind.has_elements();
    Header {
        kind,
        flags: Flags::NONE,
        priority: 0x40,
        element: if elements {
            Element::I32
        } else {
            Element::None
        },
        job: JOB,
        epoch: EPOCH,
        fragment: FragmentId(5),
        rank,
        units: u8::from(elements),
        bitmap: match kind {
            Kind::Data => rank.bit(),
            Kind::Partial => 0b01,
            _ => 0,
        },
        tag: AuthTag::NONE,
    }
}

/// A worker's contribution to a fragment.
fn data(worker: u16, fragment: u32) -> Vec<u8> {
    let header = Header {
        fragment: FragmentId(fragment),
        ..header(Kind::Data, Rank(worker as u8 - 1))
    };
    frame(&to_switch(&host(worker), ADDRESS.base_port), &header, 1)
}

/// A frame of the card's own, to leave on these ports.
fn from_card(mask: u16, to: &Member, header: &Header) -> Vec<u8> {
    let addresses = Addresses {
        src_mac: tags::mask_mac(mask),
        dst_mac: to.mac,
        src_ip: ADDRESS.ip,
        dst_ip: to.ip,
        src_port: ADDRESS.base_port,
        dst_port: to.udp_port,
    };
    let mut frame = frame(&addresses, header, 9);
    // A card leaves tags to the switch.
    let bytes = UDP_END + header.datagram_bytes() - header.kind.trailer_bytes();
    let udp_bytes = (bytes - UDP_END + 8) as u16;
    frame[16..18].copy_from_slice(&(udp_bytes + 20).to_be_bytes());
    frame[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
    frame.truncate(bytes);
    frame
}

/// The group, as if it were a member.
fn group() -> Member {
    let ip = group_of(JOB);
    Member {
        port: PortId(0),
        mac: Mac::of_group(ip),
        ip,
        udp_port: ADDRESS.base_port,
    }
}

/// A result of the card's, to leave on these ports.
fn result(mask: u16) -> Vec<u8> {
    from_card(mask, &group(), &header(Kind::Result, Rank::SWITCH))
}

#[test]
fn frames_of_its_jobs_go_to_the_card_with_their_port() {
    let mut w = World::with_job();
    let sent = data(2, 5);
    let mut padded = sent.clone();
    padded.extend([0xee; 30]);
    let mut expected = sent;
    expected[..6].copy_from_slice(&tags::port_mac(PortId(2)).0);
    assert_eq!(w.receive(PortId(2), &padded), [(CARD, expected)]);
    assert_eq!(w.switch.drops(), []);
    let traffic = w.traffic();
    assert_eq!((traffic.given, w.arrivals()), (1, vec![(JOB, 1)]));
    // Only DATA is a contribution.
    let sealed = secret(JOB, EPOCH).seal(header(Kind::Remind, Rank::PS));
    let remind = frame(&to_switch(&host(3), ADDRESS.base_port), &sealed, 0);
    assert_eq!(w.receive(PortId(3), &remind).len(), 1);
    assert_eq!((w.traffic().given, w.arrivals()), (2, vec![(JOB, 1)]));
    w.end();
}

#[test]
fn only_frames_with_right_tags_and_known_ports_go_to_the_card() {
    let mut w = World::with_job();
    let ps = to_switch(&host(3), ADDRESS.base_port);
    let remind = header(Kind::Remind, Rank::PS);
    let forged = Header {
        tag: AuthTag(1),
        ..remind
    };
    let reason = w.refused(PortId(3), &frame(&ps, &forged, 0));
    assert_eq!(reason, DropReason::AuthTag);
    // Another epoch is the card's to drop.
    let stale = Header {
        epoch: Epoch(9),
        ..forged
    };
    assert_eq!(w.receive(PortId(3), &frame(&ps, &stale, 0)).len(), 1);
    assert_eq!(w.refused(PortId(FAR), &data(2, 5)), DropReason::NotMember);
    assert_eq!(
        w.receive(PortId(15), &data(2, 5)).len(),
        1,
        "the card's to drop"
    );
    w.end();
}

#[test]
fn the_card_gets_nothing_else() {
    let mut w = World::with_job();
    let mut flood = [0xff; 60];
    flood[6..12].copy_from_slice(&host(9).mac.0);
    let to: Vec<_> = w
        .receive(PortId(9), &flood)
        .into_iter()
        .map(|(port, _)| port)
        .collect();
    let all: Vec<_> = (1..PORTS).filter(|&port| port != 9).map(PortId).collect();
    assert_eq!(to, all);
    let other = frame(
        &to_switch(&host(2), ADDRESS.base_port),
        &Header {
            job: JobId(8),
            ..header(Kind::Data, Rank(0))
        },
        0,
    );
    assert_eq!(w.refused(PortId(2), &other), DropReason::UnknownJob);
    w.end();
}

/// The header of a frame that leaves in the switch's name, with its tag checked.
fn checked(frame: &[u8], to: &Member) -> Header {
    let udp = UdpFrame::parse(frame).unwrap();
    let expected = Addresses {
        src_mac: ADDRESS.mac,
        dst_mac: to.mac,
        src_ip: ADDRESS.ip,
        dst_ip: to.ip,
        src_port: ADDRESS.base_port,
        dst_port: to.udp_port,
    };
    assert_eq!(udp.addresses, expected);
    assert_eq!(frame.len(), UDP_END + udp.datagram_bytes);
    let header = Header::parse(udp.datagram(frame)).unwrap();
    assert!(secret(JOB, EPOCH).verifies(&header), "{header:?}");
    let elements = &frame[HEADERS_BYTES..HEADERS_BYTES + header.payload_bytes()];
    assert!(elements.iter().all(|&byte| byte == 9));
    header
}

#[test]
fn results_leave_on_the_ports_of_their_mask() {
    let mut w = World::with_job();
    for (mask, ports) in [(0b110, &[1, 2][..]), (0b010, &[1]), (0b100, &[2])] {
        let sent = w.receive(CARD, &result(mask));
        let to: Vec<_> = sent.iter().map(|(port, _)| port.0).collect();
        assert_eq!(to, ports);
        for (_, frame) in sent {
            let header = checked(&frame, &group());
            assert_eq!((header.kind, header.rank), (Kind::Result, Rank::SWITCH));
        }
    }
    let of_ps = Header {
        flags: Flags::FROM_PS,
        ..header(Kind::Result, Rank::SWITCH)
    };
    assert_eq!(
        w.receive(CARD, &from_card(0b110, &group(), &of_ps)).len(),
        2
    );
    let traffic = w.traffic();
    assert_eq!((traffic.results, traffic.results_from_ps), (3, 1));
    assert_eq!((traffic.others, w.pulse.count()), (0, 4));
    w.end();
}

#[test]
fn other_frames_go_to_the_one_member_that_they_are_for() {
    let mut w = World::with_job();
    let mut expect = |to: u16, kind, rank| {
        let header = header(kind, rank);
        let sent = w.receive(CARD, &from_card(1 << to, &host(to), &header));
        let [(port, frame)] = &sent[..] else {
            panic!("{kind:?}: {sent:?}");
        };
        let tag = AuthTag::NONE;
        assert_eq!(*port, PortId(to));
        assert_eq!(
            Header {
                tag,
                ..checked(frame, &host(to))
            },
            header
        );
    };
    expect(3, Kind::Partial, Rank::SWITCH);
    expect(3, Kind::NotHere, Rank::SWITCH);
    expect(3, Kind::Probe, Rank(0));
    expect(1, Kind::Nack, Rank(0));
    expect(2, Kind::Nack, Rank(1));
    assert_eq!(w.traffic().others, 5);
    w.end();
}

#[test]
fn what_a_card_may_not_send_reaches_no_host() {
    let mut w = World::with_job();
    let own = header(Kind::Result, Rank::SWITCH);
    let to_group = |change: &dyn Fn(&mut Member)| {
        let mut to = group();
        change(&mut to);
        from_card(0b110, &to, &own)
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = result(0b110);
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let said = |kind, rank| from_card(0b110, &group(), &header(kind, rank));
    let to = |mask, to: &Member, kind, rank| from_card(mask, to, &header(kind, rank));
    let mut frames = vec![
        // To ports without a worker: the PS's, the card's own, none.
        result(0b1000),
        result(0b111),
        result(0),
        result(0x8000),
        // Not to the group, or not to all that makes it one.
        to_group(&|to| to.ip = host(1).ip),
        to_group(&|to| to.mac = host(1).mac),
        to_group(&|to| to.udp_port += 1),
        // In another name or from nowhere.
        with(26, &host(1).ip.octets()),
        with(34, &[0x10, 0]),
        with(6, &ADDRESS.mac.0),
        with(6, &host(2).mac.0),
        // What only others say.
        said(Kind::Result, Rank::PS),
        said(Kind::Result, Rank(0)),
        said(Kind::Data, Rank(0)),
        said(Kind::Remind, Rank::PS),
        to(0b1000, &host(3), Kind::Remind, Rank::PS),
        to(0b1000, &host(3), Kind::Result, Rank::SWITCH),
        // To another rank, and to none.
        to(0b10, &host(1), Kind::Nack, Rank(1)),
        to(0b10, &host(1), Kind::Nack, Rank(2)),
        result(0b110)[..100].to_vec(),
        vec![0xff; 60],
        vec![0; 14],
        vec![0; 13],
    ];
    // To a member with one thing that is not its own.
    for (kind, rank, member) in [
        (Kind::Partial, Rank::SWITCH, 3),
        (Kind::NotHere, Rank::SWITCH, 3),
        (Kind::Probe, Rank(0), 3),
        (Kind::Nack, Rank(0), 1),
    ] {
        let (member, other) = (host(member), host(2));
        let right = 1 << member.port.0;
        frames.extend([
            to(right | 1 << 2, &member, kind, rank),
            to(1 << 2, &member, kind, rank),
            to(0, &member, kind, rank),
            to(right, &other, kind, rank),
            to(
                right,
                &Member {
                    mac: other.mac,
                    ..member
                },
                kind,
                rank,
            ),
            to(
                right,
                &Member {
                    ip: other.ip,
                    ..member
                },
                kind,
                rank,
            ),
            to(
                right,
                &Member {
                    udp_port: 9,
                    ..member
                },
                kind,
                rank,
            ),
        ]);
    }
    for (n, frame) in frames.iter().enumerate() {
        let reason = w.refused(CARD, frame);
        assert_eq!(reason, DropReason::CardFrame, "{n}: {frame:02x?}");
    }
    for stray in [
        Header {
            job: JobId(8),
            ..own
        },
        Header {
            epoch: Epoch(2),
            ..own
        },
    ] {
        let frame = from_card(0b110, &group(), &stray);
        assert_eq!(w.refused(CARD, &frame), DropReason::CardStray);
    }
    // What it gives back as it got it.
    let mut returned = data(1, 5);
    returned[..6].copy_from_slice(&tags::port_mac(PortId(1)).0);
    assert_eq!(w.refused(CARD, &returned), DropReason::CardReturned);
    let bad = w.switch.memory.packet(&result(0b110)).with_bad_checksum();
    w.switch.receive(CARD, bad);
    assert!(w.switch.take().is_empty());
    assert!(w.switch.drops().contains(&(DropReason::Checksum, 1)));
    // It learns nothing either: a frame to the MAC that the card claimed is flooded.
    let traffic = w.traffic();
    assert_eq!(traffic, CardTraffic::default());
    assert_eq!(w.pulse.count(), frames.len() as u64 + 4);
    w.end();
}

#[test]
fn ports_beyond_those_of_a_card_have_no_bit() {
    let mut w = World::new();
    w.bind(&roster(EPOCH, [1, FAR], FAR + 1));
    assert!(w.give(EPOCH));
    assert_eq!(w.receive(CARD, &result(0b10)).len(), 1);
    // Port 16 has not the bit of port 0.
    assert_eq!(w.refused(CARD, &result(0b11)), DropReason::CardFrame);
    for mask in [0, 1, 2] {
        let to = host(FAR);
        // A member behind such a port is reached by no mask.
        let frame = from_card(mask, &to, &header(Kind::Nack, Rank(1)));
        assert_eq!(w.refused(CARD, &frame), DropReason::CardFrame, "{mask}");
    }
    w.end();
}

#[test]
fn a_job_that_is_moved_back_is_not_the_cards() {
    let mut w = World::with_job();
    assert!(!w.give(EPOCH), "it is there");
    w.take_back();
    assert_eq!(w.refused(CARD, &result(0b110)), DropReason::CardStray);
    assert_eq!(w.receive(PortId(1), &data(1, 5)), [], "waits for the other");
    let sent = w.receive(PortId(2), &data(2, 5));
    let to: Vec<_> = sent.iter().map(|(port, _)| port.0).collect();
    assert_eq!(to, [1, 2], "summed here");
    assert!(!w.give(Epoch(9)), "not this epoch");
    assert!(w.give(EPOCH));
    w.end();
}

#[test]
fn another_epoch_is_not_the_cards_and_another_address_is() {
    let mut w = World::with_job();
    w.bind(&roster(EPOCH, [1, 2], 4));
    let partial = header(Kind::Partial, Rank::SWITCH);
    assert_eq!(
        w.refused(CARD, &from_card(8, &host(3), &partial)),
        DropReason::CardFrame
    );
    assert_eq!(w.receive(CARD, &from_card(16, &host(4), &partial)).len(), 1);
    w.bind(&roster(Epoch(2), [1, 2], 3));
    assert_eq!(w.refused(CARD, &result(0b110)), DropReason::CardStray);
    let next = Header {
        epoch: Epoch(2),
        ..header(Kind::Result, Rank::SWITCH)
    };
    let next = from_card(0b110, &group(), &next);
    assert_eq!(w.refused(CARD, &next), DropReason::CardStray);
    assert_eq!(w.refused(PortId(1), &data(1, 5)), DropReason::Epoch);
    assert!(w.give(Epoch(2)));
    assert_eq!(w.receive(CARD, &next).len(), 2);
    w.switch.command(|| Command::Unbind(JOB));
    assert_eq!(w.refused(CARD, &next), DropReason::CardStray);
    w.end();
}

#[test]
fn contributions_are_counted_wherever_they_are_summed() {
    let mut w = World::new();
    w.bind(&roster(EPOCH, [1, 2], 3));
    assert_eq!(w.arrivals(), [(JOB, 0)]);
    for fragment in 0..3 {
        w.receive(PortId(1), &data(1, fragment));
    }
    assert_eq!(w.arrivals(), [(JOB, 3)]);
    assert!(w.give(EPOCH));
    assert_eq!(w.arrivals(), [(JOB, 3)]);
    w.receive(PortId(1), &data(1, 9));
    w.receive(PortId(2), &data(2, 9));
    assert_eq!(w.arrivals(), [(JOB, 5)]);
    w.take_back();
    w.receive(PortId(1), &data(1, 10));
    assert_eq!(w.arrivals(), [(JOB, 6)]);
    w.bind(&roster(Epoch(2), [1, 2], 3));
    assert_eq!(w.arrivals(), [(JOB, 0)], "of the epoch that runs");
    w.end();
}

/// What waits for a card that has failed is given up, and its jobs are served in software.
#[test]
fn a_card_that_has_failed_loses_its_jobs_and_what_waits_for_it() {
    let mut w = World::with_job();
    w.switch.drivers[0].room[0] = 0;
    for fragment in 0..40 {
        w.receive(PortId(1), &data(1, fragment));
    }
    assert_eq!(w.switch.memory.alive(), 40);
    let core = &mut w.switch.cores[0];
    ask(|reply| {
        core.command(Command::MoveAllBack(Dialects::<Memory>::OFFLOAD, reply));
    });
    assert_eq!(w.switch.memory.alive(), 0);
    w.switch.drivers[0].room[0] = usize::MAX;
    assert_eq!(w.receive(PortId(1), &data(1, 41)), []);
    assert_eq!(w.receive(PortId(2), &data(2, 41)).len(), 2);
    w.end();
}

#[test]
fn probes_go_to_the_card_first_and_tell_their_number() {
    let mut w = World::with_job();
    let mut probe = [0; 60];
    probe[..6].copy_from_slice(&tags::probe_mac(0x1234).0);
    probe[12..14].copy_from_slice(&tags::PROBE_ETHERTYPE.to_be_bytes());
    w.switch
        .command(|| Command::Dialect(DialectCommand::Offload(CardCommand::Probe(Box::new(probe)))));
    assert_eq!(w.switch.take(), [(CARD, probe.to_vec())]);
    assert_eq!(w.receive(CARD, &probe), []);
    assert_eq!(*w.probes.lock().unwrap(), [0x1234]);
    assert_eq!((w.traffic().probes, w.pulse.count()), (1, 1));
    // Of another ethertype it is no probe.
    probe[13] ^= 1;
    assert_eq!(w.refused(CARD, &probe), DropReason::CardFrame);
    // It overtakes all that waits behind the stage.
    w.switch.drivers[0].room[0] = 0;
    for fragment in 0..40 {
        w.receive(PortId(1), &data(1, fragment));
    }
    w.switch
        .command(|| Command::Dialect(DialectCommand::Offload(CardCommand::Probe(Box::new(probe)))));
    w.switch.drivers[0].room[0] = usize::MAX;
    w.switch.poll();
    let sent = w.switch.take();
    let at = sent.iter().position(|(_, frame)| *frame == probe);
    assert_eq!((sent.len(), at), (41, Some(32)));
    // No memory, no probe.
    w.switch.memory.set_limit(0);
    w.switch
        .command(|| Command::Dialect(DialectCommand::Offload(CardCommand::Probe(Box::new(probe)))));
    assert!(w.switch.drops().contains(&(DropReason::NoBuffer, 1)));
    w.end();
}
