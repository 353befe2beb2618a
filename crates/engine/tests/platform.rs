//! The test platform: that it behaves as DPDK's mbufs and pools do.

mod common;

use common::platform::{Driver, Memory, Packet};
use tally_engine::{Frame, Handover, Platform, PortId, Transmit};

#[test]
fn only_the_single_owner_of_one_segment_writes() {
    let memory = Memory::new(64);
    let mut frame = memory.packet(&[1, 2, 3]);
    frame.data_mut().unwrap()[0] = 9;
    let share = frame.share();
    assert!(!frame.is_unique() && !share.is_unique());
    assert!(frame.data_mut().is_none() && frame.append(1).is_none());
    assert!(!frame.set_len(2) && !frame.adj(1));
    drop(share);
    assert!(frame.is_unique() && frame.set_len(2) && frame.adj(1));
    assert_eq!(frame.data(), [2]);
    let mut chain = Packet::chain(memory.packet(&[7]), frame).unwrap();
    assert!(chain.is_unique() && !chain.is_contiguous() && chain.data_mut().is_none());
    assert_eq!(
        (chain.bytes(), chain.data(), chain.frame_bytes()),
        (vec![7, 2], &[7][..], 2)
    );
    assert!(Packet::chain(memory.packet(&[]), chain).is_none());
    assert_eq!(memory.alive(), 0);
}

#[test]
fn shares_exist_at_once_and_the_last_reference_gives_the_frame_back() {
    let memory = Memory::new(64);
    let frame = memory.packet(&[1]);
    let mut shares = frame.share_many(2);
    let first = shares.next().unwrap();
    drop(frame);
    assert!(!first.is_unique(), "the second share is not taken yet");
    drop(shares);
    assert!(first.is_unique());
    assert_eq!(memory.alive(), 1);
    drop(first);
    assert_eq!(memory.alive(), 0);
}

#[test]
fn a_pool_may_be_exhausted_and_a_frame_full() {
    let memory = Memory::new(4);
    memory.set_limit(2);
    let mut frame = memory.packet(&[1, 2, 3]);
    assert!(frame.append(2).is_none() && frame.append(1).is_some());
    let mut bulk = Vec::new();
    assert!(!memory.alloc_bulk(&mut bulk, 2) && bulk.is_empty());
    assert!(memory.alloc_bulk(&mut bulk, 1));
    assert!(memory.alloc().is_none() && memory.copy(&frame).is_none());
    bulk.clear();
    let copy = memory.copy(&frame.with_bad_checksum()).unwrap();
    assert!(copy.is_unique() && copy.has_bad_checksum());
    drop(copy);
    memory.set_limit(9);
    let long = memory.segmented(&[0; 6], 3);
    assert!(memory.copy(&long).is_none(), "too long for one segment");
}

#[test]
fn a_driver_takes_what_it_has_room_for() {
    let memory = Memory::new(64);
    let mut driver = Driver::new(2, 2);
    (driver.room[1], driver.handover_room) = (2, 1);
    let mut frames: Vec<_> = (0..3).map(|n| memory.packet(&[n])).collect();
    assert_eq!(driver.transmit(PortId(1), &mut frames), 2);
    assert_eq!((driver.room(PortId(1)), frames.len()), (0, 1));
    assert_eq!(driver.transmit(PortId(1), &mut frames), 0);
    assert_eq!(driver.take(), [(PortId(1), vec![0]), (PortId(1), vec![1])]);
    let ingress = |_| Handover::Ingress(PortId(0), memory.packet(&[4]));
    let mut handed: Vec<_> = (0..3).map(ingress).collect();
    assert_eq!((driver.hand_over(1, &mut handed), handed.len()), (2, 0));
    assert_eq!(memory.alive(), 2, "one that waits, one handed over");
}
