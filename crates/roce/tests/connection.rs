//! Two connections over a link that loses, duplicates, delays and corrupts frames, in virtual time.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;
use tally_roce::{Config, Connection, Event, Failure, Message};
use tally_wire::roce::{PORT, Psn, QueuePair};
use tally_wire::{Addresses, Mac, Time};

const MTU: usize = 256;
const RKEY: u32 = 0x1234;
const MEMORY: usize = 4000;

fn addresses(from: u8, to: u8) -> Addresses {
    Addresses {
        src_mac: Mac([2, 0, 0, 0, 0, from]),
        dst_mac: Mac([2, 0, 0, 0, 0, to]),
        src_ip: Ipv4Addr::new(10, 0, 0, from),
        dst_ip: Ipv4Addr::new(10, 0, 0, to),
        src_port: 50000,
        dst_port: PORT,
    }
}

fn config(from: u8, to: u8) -> Config {
    let first = |side: u8| Psn::new(0xff_fff0 + u32::from(side));
    Config {
        addresses: addresses(from, to),
        local: QueuePair(u32::from(from)),
        remote: QueuePair(u32::from(to)),
        mtu: MTU,
        first: first(from),
        remote_first: first(to),
        in_flight: 20,
        timeout: Duration::from_micros(500),
        retries: 50,
        dscp: 10,
        memory: vec![0; MEMORY],
        rkey: RKEY,
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// What a link does to frames, of 100.
#[derive(Clone, Copy, Default)]
struct Faults {
    lost: u64,
    copied: u64,
    delayed: u64,
    changed: u64,
}

struct Pair {
    sides: [Connection; 2],
    /// On their way to each side: when they arrive.
    links: [VecDeque<(Time, Vec<u8>)>; 2],
    faults: Faults,
    rng: Rng,
    now: Time,
    events: [Vec<Event>; 2],
}

impl Pair {
    fn new(faults: Faults, seed: u64) -> Self {
        Self {
            sides: [config(1, 2), config(2, 1)].map(Connection::new),
            links: [VecDeque::new(), VecDeque::new()],
            faults,
            rng: Rng(seed * 2 + 1),
            now: Time(1),
            events: [Vec::new(), Vec::new()],
        }
    }

    fn send(&mut self, from: usize) {
        let mut out = vec![0; self.sides[from].frame_max()];
        while let Some(bytes) = self.sides[from].poll_transmit(self.now, &mut out) {
            let mut frame = out[..bytes].to_vec();
            let hit = |rng: &mut Rng, percent| rng.below(100) < percent;
            if hit(&mut self.rng, self.faults.lost) {
                continue;
            }
            let delayed = hit(&mut self.rng, self.faults.delayed);
            let delay = 5_000 + u64::from(delayed) * self.rng.below(100_000);
            let arrives = Time(self.now.0 + delay);
            if hit(&mut self.rng, self.faults.copied) {
                self.links[1 - from].push_back((arrives, frame.clone()));
            }
            if hit(&mut self.rng, self.faults.changed) {
                // Behind Ethernet, which the ICRC does not cover.
                let at = 14 + self.rng.below(bytes as u64 - 14) as usize;
                frame[at] ^= 1 << self.rng.below(8);
            }
            self.links[1 - from].push_back((arrives, frame));
        }
        while let Some(event) = self.sides[from].poll_event() {
            self.events[from].push(event);
        }
    }

    /// Runs until nothing is left to do, or for a second.
    fn run(&mut self) {
        let end = self.now.after(Duration::from_secs(1));
        while self.now < end {
            self.send(0);
            self.send(1);
            let arrivals = self.links.iter().flatten().map(|(at, _)| *at);
            let timeouts = self.sides.iter().filter_map(Connection::poll_timeout);
            let Some(next) = arrivals.chain(timeouts).min() else {
                return;
            };
            self.now = self.now.max(next);
            for to in 0..2 {
                let link = &mut self.links[to];
                while let Some(at) = link.iter().position(|(at, _)| *at <= self.now) {
                    let (_, frame) = link.remove(at).unwrap();
                    self.sides[to].receive(&frame, self.now);
                }
                self.sides[to].handle_timeout(self.now);
            }
        }
    }
}

fn send(bytes: Vec<u8>, immediate: Option<u32>) -> Message {
    Message {
        bytes,
        to: None,
        immediate,
    }
}

/// A message that no other is equal to.
fn text(side: usize, n: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 7 + n * 31 + side * 101) as u8)
        .collect()
}

/// The messages that a side has received, in their order.
fn received(events: &[Event]) -> Vec<Vec<u8>> {
    let message = |event: &Event| match event {
        Event::Received { buffer, bytes, .. } => Some(buffer[..*bytes].to_vec()),
        _ => None,
    };
    events.iter().filter_map(message).collect()
}

#[test]
fn messages_arrive_once_and_in_order_over_a_link_with_all_faults() {
    let lengths = [0, 1, 255, 256, 257, 511, 512, 2000, 3, 1024];
    let all = Faults {
        lost: 10,
        copied: 10,
        delayed: 20,
        changed: 5,
    };
    let alone = |faults: Faults| [faults, all];
    let mut seed = 0;
    for faults in [
        alone(Faults::default()),
        alone(Faults {
            lost: 20,
            ..Faults::default()
        }),
        alone(Faults {
            copied: 50,
            ..Faults::default()
        }),
        alone(Faults {
            delayed: 50,
            ..Faults::default()
        }),
    ]
    .into_iter()
    .flatten()
    .cycle()
    .take(200)
    {
        seed += 1;
        let mut pair = Pair::new(faults, seed);
        for side in 0..2 {
            for (n, bytes) in lengths.into_iter().enumerate() {
                pair.sides[side].post_send(send(text(side, n, bytes), None));
                pair.sides[side].post_receive(vec![0; 2000]);
            }
        }
        pair.run();
        for side in 0..2 {
            let expected: Vec<_> = lengths
                .into_iter()
                .enumerate()
                .map(|(n, bytes)| text(1 - side, n, bytes))
                .collect();
            assert!(received(&pair.events[side]) == expected, "seed {seed}");
            assert_eq!(pair.sides[side].unacknowledged(), 0, "seed {seed}");
            let counters = pair.sides[side].counters();
            if faults.lost + faults.copied + faults.delayed + faults.changed == 0 {
                assert_eq!((counters.retransmitted, counters.naks), (0, 0));
            }
        }
    }
}

#[test]
fn a_write_goes_to_memory_and_its_immediate_data_to_an_event() {
    let mut pair = Pair::new(
        Faults {
            lost: 10,
            ..Faults::default()
        },
        3,
    );
    pair.sides[1].post_receive(Vec::new());
    let bytes = text(0, 1, 1500);
    pair.sides[0].post_send(Message {
        bytes: bytes.clone(),
        to: Some((100, RKEY)),
        immediate: None,
    });
    pair.sides[0].post_send(Message {
        bytes: vec![7; 10],
        to: Some((3990, RKEY)),
        immediate: Some(0xabcd),
    });
    pair.run();
    let written = Event::Written {
        at: 3990,
        bytes: 10,
        immediate: 0xabcd,
    };
    assert_eq!(pair.events[1], [written]);
    let memory = pair.sides[1].memory();
    assert!(
        memory[..100]
            .iter()
            .chain(&memory[1600..3990])
            .all(|it| *it == 0)
    );
    assert_eq!(
        (&memory[100..1600], &memory[3990..]),
        (&bytes[..], &[7; 10][..])
    );
}

#[test]
fn a_write_elsewhere_ends_both_sides() {
    for (to, bytes) in [
        ((0, RKEY + 1), 10),
        ((MEMORY as u64 - 9, RKEY), 10),
        ((u64::MAX, RKEY), 10),
        ((0, RKEY), MEMORY + 1),
    ] {
        let mut pair = Pair::new(Faults::default(), 1);
        pair.sides[0].post_send(Message {
            bytes: vec![1; bytes],
            to: Some(to),
            immediate: None,
        });
        pair.run();
        assert_eq!(
            pair.events[0],
            [Event::Failed(Failure::Refused(2))],
            "{to:?}"
        );
        assert_eq!(pair.events[1], [Event::Failed(Failure::Invalid)], "{to:?}");
        assert!(pair.sides[1].memory().iter().all(|it| *it == 0));
    }
}

#[test]
fn a_message_longer_than_its_buffer_ends_both_sides() {
    let mut pair = Pair::new(Faults::default(), 1);
    pair.sides[1].post_receive(vec![0; 300]);
    pair.sides[0].post_send(send(vec![1; 301], None));
    pair.run();
    assert_eq!(pair.events[0], [Event::Failed(Failure::Refused(1))]);
    assert_eq!(pair.events[1], [Event::Failed(Failure::Invalid)]);
}

#[test]
fn a_receiver_without_a_buffer_is_waited_for() {
    let mut pair = Pair::new(Faults::default(), 1);
    pair.sides[0].post_send(send(text(0, 0, 600), Some(5)));
    let end = pair.now.after(Duration::from_millis(5));
    while pair.now < end {
        pair.send(0);
        pair.send(1);
        pair.now = pair.now.after(Duration::from_micros(20));
        for to in 0..2 {
            while let Some((_, frame)) = pair.links[to].pop_front() {
                let now = pair.now;
                pair.sides[to].receive(&frame, now);
            }
            pair.sides[to].handle_timeout(pair.now);
        }
    }
    assert!(pair.sides[0].counters().naks > 5 && pair.events[1].is_empty());
    pair.sides[1].post_receive(vec![0; 600]);
    pair.run();
    let expected = Event::Received {
        buffer: text(0, 0, 600),
        bytes: 600,
        immediate: Some(5),
    };
    assert_eq!(pair.events[1], [expected]);
}

#[test]
fn silence_ends_a_connection_after_its_retries() {
    let mut pair = Pair::new(
        Faults {
            lost: 100,
            ..Faults::default()
        },
        1,
    );
    pair.sides[0].post_send(send(vec![1; 10], None));
    pair.run();
    assert_eq!(pair.events[0], [Event::Failed(Failure::Timeout)]);
    assert_eq!(pair.sides[0].counters().sent, 51);
    assert_eq!(pair.sides[0].poll_timeout(), None);
}

#[test]
fn frames_of_others_have_no_effect() {
    let mut pair = Pair::new(Faults::default(), 1);
    pair.sides[0].post_send(send(vec![1; 10], None));
    let mut out = vec![0; pair.sides[0].frame_max()];
    let bytes = pair.sides[0].poll_transmit(pair.now, &mut out).unwrap();
    // To another queue pair, and from another address: with a right ICRC.
    for (at, value) in [(14 + 20 + 8 + 7, 9), (29, 9)] {
        let mut frame = out[..bytes].to_vec();
        frame[at] = value;
        tally_wire::roce::seal(&mut frame);
        pair.sides[1].post_receive(vec![0; 10]);
        pair.sides[1].receive(&frame, pair.now);
    }
    for cut in 0..bytes {
        pair.sides[1].receive(&out[..cut], pair.now);
    }
    assert_eq!(pair.sides[1].counters().dropped, 2 + bytes as u64);
    assert_eq!(
        pair.sides[1].poll_transmit(pair.now, &mut out.clone()),
        None
    );
    assert_eq!(pair.sides[1].poll_event(), None);
}
