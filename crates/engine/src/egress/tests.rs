use super::*;
use crate::platform::{Driver, Memory, Packet};

const CORES: usize = 2;

/// An IPv4 packet that is ECN-capable (ECT(0)), with this number.
fn packet(memory: &Memory, number: u8) -> Packet {
    let mut bytes = [0; 60];
    (bytes[12], bytes[14], bytes[15]) = (8, 0x45, 2);
    bytes[59] = number;
    memory.packet(&bytes)
}

fn config(frames: u32, mark_frames: u32) -> QueueConfig {
    QueueConfig {
        frames,
        mark_frames,
        guard: 31,
    }
}

/// Three ports of this core, and port 3 of core 1.
fn ports(queue: QueueConfig, stage_frames: usize) -> Ports<Packet> {
    let queues = vec![Ok(queue), Ok(queue), Ok(queue), Err(1)];
    Ports::new(queues, CORES, stage_frames)
}

fn driver() -> Driver {
    Driver::new(4, CORES)
}

fn number(frame: &[u8]) -> u8 {
    frame[59]
}

fn is_marked(frame: &[u8]) -> bool {
    frame[15] & 3 == 3
}

/// What left by a port, by number.
fn numbers(driver: &mut Driver, port: u16) -> Vec<u8> {
    let sent = driver.sent[usize::from(port)].drain(..);
    sent.map(|frame| number(frame.data())).collect()
}

#[test]
fn the_stage_keeps_the_order_and_what_the_driver_does_not_take() {
    for stage_frames in [0, 1, 32] {
        let memory = Memory::new(64);
        let (mut ports, mut driver) = (ports(QueueConfig::default(), stage_frames), driver());
        (0..40).for_each(|n| ports.send(PortId(0), 3, packet(&memory, n)));
        assert_eq!(ports.waiting(PortId(0)), 40);
        driver.room[0] = 5;
        assert!(ports.transmit(&mut driver));
        assert_eq!(numbers(&mut driver, 0), [0, 1, 2, 3, 4], "{stage_frames}");
        assert_eq!(ports.waiting(PortId(0)), 35);
        assert!(!ports.transmit(&mut driver), "no room: no progress");
        driver.room[0] = usize::MAX;
        assert!(ports.transmit(&mut driver));
        let rest: Vec<_> = (5..40).collect();
        assert_eq!(numbers(&mut driver, 0), rest, "{stage_frames}");
        let counters = ports.counters[0];
        assert_eq!((counters.tx_frames, counters.tx_bytes), (40, 40 * 60));
        assert_eq!(memory.alive(), 0);
    }
}

#[test]
fn a_higher_class_overtakes_frames_that_are_not_yet_on_the_stage() {
    let order = |stage_frames| {
        let memory = Memory::new(64);
        let (mut ports, mut driver) = (ports(QueueConfig::default(), stage_frames), driver());
        for (n, class) in [(0, 0), (1, 0), (2, 7)] {
            ports.send(PortId(0), class, packet(&memory, n));
        }
        ports.transmit(&mut driver);
        numbers(&mut driver, 0)
    };
    assert_eq!(order(0), [2, 0, 1]);
    assert_eq!(order(1), [0, 2, 1]);
    assert_eq!(order(32), [0, 1, 2]);
}

/// A frame does not go to the stage while others wait behind it.
#[test]
fn the_stage_does_not_open_before_the_queue_is_empty() {
    let memory = Memory::new(64);
    let (mut ports, mut driver) = (ports(QueueConfig::default(), 1), driver());
    (0..3).for_each(|n| ports.send(PortId(0), 0, packet(&memory, n)));
    driver.room[0] = 1;
    ports.transmit(&mut driver);
    ports.send(PortId(0), 0, packet(&memory, 3));
    driver.room[0] = usize::MAX;
    ports.transmit(&mut driver);
    assert_eq!(numbers(&mut driver, 0), [0, 1, 2, 3]);
}

#[test]
fn a_full_class_drops_and_counts() {
    let memory = Memory::new(64);
    let (mut ports, mut driver) = (ports(config(2, 9), 0), driver());
    (0..5).for_each(|n| ports.send(PortId(0), 4, packet(&memory, n)));
    ports.send(PortId(0), 5, packet(&memory, 9));
    let counters = ports.queue_counters();
    assert_eq!(
        (
            counters[0].tx_dropped_by_class[4],
            counters[0].dropped_total()
        ),
        (3, 3)
    );
    assert_eq!(
        (counters[0].queue_frames_max, counters[1].queue_frames_max),
        (3, 0)
    );
    ports.transmit(&mut driver);
    assert_eq!(numbers(&mut driver, 0), [9, 0, 1]);
    assert_eq!(memory.alive(), 0);
}

#[test]
fn frames_that_join_a_long_queue_are_marked() {
    let memory = Memory::new(64);
    let (mut ports, mut driver) = (ports(config(9, 2), 1), driver());
    // One on the stage, which is no queue, then two that find it short, then two that find it long.
    (0..5).for_each(|n| ports.send(PortId(0), 0, packet(&memory, n)));
    // It cannot be marked: shared.
    let shared = packet(&memory, 5);
    ports.send(PortId(0), 0, shared.share());
    ports.transmit(&mut driver);
    let marked: Vec<_> = driver.sent[0].iter().map(|f| is_marked(f.data())).collect();
    assert_eq!(marked, [false, false, false, true, true, false]);
    assert_eq!(ports.queue_counters()[0].ecn_marked, 2);
}

#[test]
fn a_frame_for_several_ports_is_marked_for_all_if_one_has_a_long_queue() {
    let memory = Memory::new(64);
    let (mut ports, mut driver) = (ports(config(9, 2), 0), driver());
    let to = [PortId(0), PortId(1)];
    (0..2).for_each(|n| ports.send(PortId(1), 0, packet(&memory, n)));
    let rest = ports.multicast(&to, 0, packet(&memory, 2));
    assert!(!rest.is_unique() && number(rest.data()) == 2);
    ports.recycle(rest);
    // The driver takes nothing: it waits still.
    driver.room[1] = 0;
    ports.transmit(&mut driver);
    let rest = ports.multicast(&to, 0, packet(&memory, 3));
    ports.recycle(rest);
    // Once nothing waits, nothing is marked.
    driver.room[1] = usize::MAX;
    ports.transmit(&mut driver);
    let rest = ports.multicast(&to, 0, packet(&memory, 4));
    ports.recycle(rest);
    ports.transmit(&mut driver);
    let of = |port: usize| {
        let sent = driver.sent[port].iter();
        sent.map(|f| (number(f.data()), is_marked(f.data())))
            .collect()
    };
    let (first, second): (Vec<_>, Vec<_>) = (of(0), of(1));
    assert_eq!(first, [(2, true), (3, true), (4, false)]);
    assert_eq!(second[..2], [(0, false), (1, false)]);
    assert_eq!(second[2..], first);
    let counters = ports.queue_counters();
    assert_eq!((counters[0].ecn_marked, counters[1].ecn_marked), (0, 2));
    driver.take();
    assert_eq!(memory.alive(), 0);
}

#[test]
fn floods_leave_out_the_ingress_port_hostless_ports_and_those_spared() {
    let memory = Memory::new(64);
    let (mut ports, mut driver) = (ports(QueueConfig::default(), 32), driver());
    ports.set_hostless(PortId(2));
    ports.flood(PortId(0), packet(&memory, 1), &[], |_| false);
    ports.flood(
        PortId(0),
        packet(&memory, 2),
        &[true, true, false, false],
        |_| false,
    );
    ports.flood(PortId(2), packet(&memory, 3), &[false; 4], |_| false);
    ports.transmit(&mut driver);
    let sent: Vec<_> = (0..3).map(|port| numbers(&mut driver, port)).collect();
    assert_eq!(sent, [vec![3], vec![1, 3], vec![]]);
    // Port 3 is another core's.
    let handed = driver.handed[1].drain(..).map(|handover| match handover {
        Handover::Egress(PortId(3), 0, frame) => number(frame.data()),
        _ => panic!("not to be sent on port 3 in class 0"),
    });
    assert_eq!(handed.collect::<Vec<_>>(), [1, 2, 3]);
    let flooded: Vec<_> = ports.counters.iter().map(|c| c.flooded).collect();
    let spared: Vec<_> = ports.rare.iter().map(|r| r.floods_spared).collect();
    // The ingress port is spared nothing: nothing would have gone there.
    assert_eq!((flooded, spared), (vec![1, 2, 0, 3], vec![0, 1, 0, 0]));
    assert_eq!(memory.alive(), 0);
}

#[test]
fn an_ordinary_frame_that_is_too_long_for_its_port_is_dropped() {
    let memory = Memory::new(64);
    let (mut ports, mut driver) = (ports(QueueConfig::default(), 32), driver());
    ports.set_longest_frames(vec![60, 59, 60, 60]);
    ports.forward(PortId(0), 0, packet(&memory, 1));
    ports.forward(PortId(1), 0, packet(&memory, 2));
    ports.flood(PortId(2), packet(&memory, 3), &[], |_| false);
    // The limit is not for frames that the switch makes.
    ports.send(PortId(1), 0, packet(&memory, 4));
    ports.transmit(&mut driver);
    assert_eq!(numbers(&mut driver, 0), [1, 3]);
    assert_eq!(numbers(&mut driver, 1), [4]);
    assert_eq!(ports.frame_too_long, 2);
    driver.handed[1].clear();
    assert_eq!(memory.alive(), 0);
}

#[test]
fn purge_gives_up_all_that_waits_for_one_port() {
    for stage_frames in [0, 1, 32] {
        let memory = Memory::new(64);
        let (mut ports, mut driver) = (ports(QueueConfig::default(), stage_frames), driver());
        driver.room[0] = 3;
        for n in 0..40 {
            ports.send(PortId(0), usize::from(n) % 8, packet(&memory, n));
            ports.send(PortId(1), 0, packet(&memory, n));
        }
        ports.transmit_port(PortId(0), &mut driver);
        assert_eq!(driver.sent[0].drain(..).count(), 3);
        ports.purge(PortId(0));
        ports.purge(PortId(3));
        assert_eq!((ports.waiting(PortId(0)), memory.alive()), (0, 40));
        ports.send(PortId(0), 0, packet(&memory, 99));
        driver.room[0] = usize::MAX;
        ports.transmit(&mut driver);
        assert_eq!(numbers(&mut driver, 0), [99], "{stage_frames}");
        assert_eq!(driver.sent[1].drain(..).count(), 40);
        assert_eq!(memory.alive(), 0);
    }
}

#[test]
fn frames_for_other_cores_leave_together_and_are_counted_if_dropped() {
    let memory = Memory::new(64);
    let (mut ports, mut driver) = (ports(QueueConfig::default(), 32), driver());
    ports.send(PortId(3), 5, packet(&memory, 1));
    ports.hand_over(1, PortId(2), packet(&memory, 2));
    ports.transmit_handovers(&mut driver, 3);
    assert!(driver.handed[1].is_empty(), "fewer than three");
    ports.hand_over(1, PortId(2), packet(&memory, 3));
    driver.handover_room = 2;
    ports.transmit_handovers(&mut driver, 3);
    let of = |handover: &Handover<Packet>| match handover {
        Handover::Egress(port, class, f) => (*port, Some(*class), number(f.data())),
        Handover::Ingress(port, f) => (*port, None, number(f.data())),
    };
    let handed: Vec<_> = driver.handed[1].iter().map(of).collect();
    assert_eq!(handed, [(PortId(3), Some(5), 1), (PortId(2), None, 2)]);
    assert_eq!((ports.handover_full, ports.counters[2].handed_over), (1, 2));
    assert_eq!(ports.waiting(PortId(3)), 0);
    driver.handed[1].clear();
    assert_eq!(memory.alive(), 0);
}

#[test]
fn frames_done_with_go_back_in_bulk() {
    let memory = Memory::new(64);
    let mut ports = ports(QueueConfig::default(), 32);
    ports.recycle(packet(&memory, 0));
    assert_eq!(memory.alive(), 1);
    (0..RECYCLED).for_each(|_| ports.recycle(packet(&memory, 0)));
    assert_eq!(memory.alive(), 1, "no more are kept than there is room for");
    ports.give_back();
    assert_eq!(memory.alive(), 0);
}

#[test]
fn the_class_of_an_ordinary_frame_is_its_precedence() {
    let mut frame = [0; 60];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0b1010_0011]);
    assert_eq!(class_of_frame(&frame), 5);
    frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x6c, 0x50]);
    assert_eq!(class_of_frame(&frame), 6);
    frame[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(class_of_frame(&frame), 0);
    assert_eq!(class_of_frame(&frame[..15]), 0);
}
