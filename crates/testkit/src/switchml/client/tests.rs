//! Clients in simulated time, at a switch that does what PROTOCOLS' table says and no more, over a
//! network that loses, doubles and delays; and one client alone, datagram by datagram.

use super::*;
use crate::switchml::inputs::{Element, Inputs, digest};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tally_engine::switchml::{
    Arrival, Destination, HostAddress, Replies, Route, Session, SessionId, Switchml, SwitchmlConfig,
};
use tally_engine::{Buffer, PortId};
use tally_kernels::Kernels;
use tally_wire::Mac;
use tally_wire::switchml::FIRST_PORT;

const MS: u64 = 1_000_000;

/// What a slot has in one set.
#[derive(Clone, Default)]
struct Use {
    bitmap: u64,
    count: u8,
    sum: Vec<i32>,
    exponents: [i8; 2],
}

/// The table, for one session.
struct Table {
    workers: u8,
    uses: BTreeMap<u16, [Use; 2]>,
}

impl Table {
    fn new(workers: u8) -> Self {
        Self {
            workers,
            uses: BTreeMap::new(),
        }
    }

    /// To whom what goes.
    fn arrive(&mut self, rank: u8, datagram: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut header = Header::parse(datagram).unwrap();
        let bit = 1 << rank;
        let uses = self.uses.entry(header.slot).or_default();
        uses[usize::from(!header.set)].bitmap &= !bit;
        let one = &mut uses[usize::from(header.set)];
        let before = one.bitmap;
        one.bitmap |= bit;
        let words = datagram[HEADER_BYTES..].chunks_exact(4);
        let values = words.map(|word| i32::from_be_bytes(word.try_into().unwrap()));
        if before & bit == 0 {
            if before == 0 {
                one.sum = values.collect();
                one.exponents = header.exponents;
                one.count = 1;
            } else {
                for (sum, value) in one.sum.iter_mut().zip(values) {
                    *sum = sum.wrapping_add(value);
                }
                for (most, e) in one.exponents.iter_mut().zip(header.exponents) {
                    *most = e.max(*most);
                }
                one.count += 1;
            }
        }
        let is_new = before & bit == 0;
        if one.count < self.workers {
            return Vec::new();
        }
        header.exponents = one.exponents;
        let mut reply = vec![0; HEADER_BYTES];
        header.emit(&mut reply);
        reply.extend(one.sum.iter().flat_map(|sum| sum.to_be_bytes()));
        let to = if is_new {
            0..self.workers
        } else {
            rank..rank + 1
        };
        to.map(|rank| (rank, reply.clone())).collect()
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// What goes wrong, of a thousand datagrams.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: u64,
    doubled: u64,
    /// Datagrams take up to so many nanoseconds longer than others.
    jitter: u64,
}

const NONE: Faults = Faults {
    lost: 0,
    doubled: 0,
    jitter: 0,
};
const ALL: Faults = Faults {
    lost: 50,
    doubled: 50,
    jitter: 2 * MS,
};

#[derive(Clone, Copy)]
enum To {
    Switch(u8),
    Worker(u8),
}

struct Network {
    faults: Faults,
    rng: Rng,
    number: u64,
    /// When what a rank sent last arrives: the dialect counts on paths to the switch that keep the
    /// order.
    last: Vec<Time>,
    /// By time, and in the order in which they left.
    under_way: BTreeMap<(Time, u64), (To, Vec<u8>)>,
}

impl Network {
    fn send(&mut self, now: Time, to: To, bytes: &[u8]) {
        let Faults {
            lost,
            doubled,
            jitter,
        } = self.faults;
        if self.rng.below(1000) < lost {
            return;
        }
        for _ in 0..1 + u64::from(self.rng.below(1000) < doubled) {
            let late = self.rng.below(jitter + 1);
            let mut at = Time(now.0 + MS / 10 + late);
            if let To::Switch(rank) = to {
                let last = &mut self.last[usize::from(rank)];
                at = at.max(*last);
                *last = at;
            }
            self.number += 1;
            self.under_way
                .insert((at, self.number), (to, bytes.to_vec()));
        }
    }
}

/// A switch, given as what it does with a rank's datagram.
type Switch<'a> = &'a mut dyn FnMut(Time, u8, &[u8]) -> Vec<(u8, Vec<u8>)>;

/// Runs tensors through a switch, and returns all clients' figures.
fn run(
    inputs: &Inputs,
    config: Config,
    tensors: u32,
    faults: Faults,
    seed: u64,
    switch: Switch<'_>,
) -> Vec<Stats> {
    let mut clients: Vec<_> = (0..inputs.workers).map(|_| Client::new(config)).collect();
    let mut submitted = vec![0; clients.len()];
    let mut digests = vec![Vec::new(); clients.len()];
    let mut network = Network {
        faults,
        rng: Rng(seed.wrapping_mul(2).wrapping_add(1)),
        number: 0,
        last: vec![Time(0); clients.len()],
        under_way: BTreeMap::new(),
    };
    let mut now = Time(0);
    let mut buffer = vec![0; clients[0].datagram_bytes()];
    for step in 0_u64.. {
        assert!(step < 4_000_000, "no end: {faults:?}, seed {seed}");
        for (rank, client) in (0..).zip(&mut clients) {
            let rank_at = usize::from(rank);
            loop {
                if let Some(result) = client.take() {
                    inputs
                        .check(submitted[rank_at] - 1, config.size, &result)
                        .unwrap();
                    digests[rank_at].push(digest(&result));
                }
                if client.job.is_some() || submitted[rank_at] == tensors {
                    break;
                }
                client
                    .submit(inputs.tensor(rank, submitted[rank_at]))
                    .unwrap();
                submitted[rank_at] += 1;
            }
            while let Some(bytes) = client.poll_transmit(now, &mut buffer) {
                network.send(now, To::Switch(rank), &buffer[..bytes]);
            }
        }
        let due = clients.iter_mut().filter_map(Client::poll_timeout).min();
        let next = network.under_way.keys().next().map(|(at, _)| *at);
        now = match (next, due) {
            (None, None) => break,
            (Some(at), due) if due.is_none_or(|due| at <= due) => {
                let ((at, _), (to, bytes)) = network.under_way.pop_first().unwrap();
                match to {
                    To::Switch(rank) => {
                        for (rank, reply) in switch(at, rank, &bytes) {
                            network.send(at, To::Worker(rank), &reply);
                        }
                    }
                    To::Worker(rank) => {
                        clients[usize::from(rank)].handle(at, &bytes);
                    }
                }
                at
            }
            (_, due) => {
                let due = due.unwrap();
                clients
                    .iter_mut()
                    .for_each(|client| client.handle_timeout(due));
                due
            }
        };
    }
    for (rank, found) in digests.iter().enumerate() {
        assert_eq!(
            found.len(),
            tensors as usize,
            "rank {rank}, {faults:?}, seed {seed}"
        );
        assert_eq!(found, &digests[0], "rank {rank} has other bits");
    }
    clients.iter().map(|client| client.stats).collect()
}

fn inputs(element: Element, elements: usize, workers: u8) -> Inputs {
    Inputs {
        seed: 3,
        element,
        elements,
        workers,
    }
}

fn config(size: Size, workers: u8, window: u16) -> Config {
    Config {
        window,
        first_slot: 5,
        first_job: 250,
        ..Config::new(size, workers)
    }
}

fn at_table(
    inputs: &Inputs,
    config: Config,
    tensors: u32,
    faults: Faults,
    seed: u64,
) -> Vec<Stats> {
    let mut table = Table::new(inputs.workers);
    run(
        inputs,
        config,
        tensors,
        faults,
        seed,
        &mut |_, rank, bytes| table.arrive(rank, bytes),
    )
}

/// A buffer of the engine.
struct Elements(Vec<u8>);

impl Buffer for Elements {
    fn payload(&self) -> &[u8] {
        &self.0
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The engine's way out: to each rank's MAC, whose last byte is the rank.
#[derive(Default)]
struct Out(Vec<(u8, Vec<u8>)>);

impl Replies<Elements> for Out {
    fn reply(&mut self, to: &Destination, header: &Header, _: u8, sum: &Elements) {
        let mut reply = vec![0; HEADER_BYTES];
        header.emit(&mut reply);
        reply.extend(&sum.0);
        self.0.push((to.mac.0[5], reply));
    }
}

fn at_engine(
    inputs: &Inputs,
    config: Config,
    tensors: u32,
    faults: Faults,
    seed: u64,
    held: u32,
) -> Vec<Stats> {
    let station = |rank| HostAddress {
        mac: Mac([2, 0, 0, 0, 0, rank]),
        ip: Ipv4Addr::new(10, 0, 0, rank + 1),
    };
    let session = Session {
        id: SessionId(1),
        size: config.size,
        workers: (0..inputs.workers).map(station).collect(),
        switch_macs: (0..inputs.workers)
            .map(|rank| Mac([6, 0, 0, 0, 0, rank]))
            .collect(),
    };
    let shard = SwitchmlConfig {
        sessions: 1,
        slots: config.first_slot + config.window,
        held,
        shards: 1,
        shard: 0,
    };
    let mut engine = Switchml::new(shard, Kernels::best());
    let mut out = Out::default();
    assert!(engine.bind(Arc::new(session), &mut out));
    let stats = run(
        inputs,
        config,
        tensors,
        faults,
        seed,
        &mut |now, rank, bytes| {
            let header = Header::parse(bytes).unwrap();
            let route = Route {
                from: station(rank),
                to: Mac([6, 0, 0, 0, 0, rank]),
            };
            let seat = engine.admit(&route, &header).unwrap();
            let arrival = Arrival {
                port: PortId(rank.into()),
                udp_port: 4000,
                own_port: FIRST_PORT,
                tos: 0,
            };
            let buffer = Elements(bytes[HEADER_BYTES..].to_vec());
            engine.handle(now, seat, &arrival, &header, buffer, &mut out);
            std::mem::take(&mut out.0)
        },
    );
    engine.unbind(SessionId(1), &mut out);
    assert_eq!(engine.held_in_use(), 0);
    stats
}

#[test]
fn the_switchs_own_engine_does_the_same() {
    for seed in 0..12 {
        for (element, workers) in [(Element::I32, 2), (Element::F32, 3), (Element::F32, 8)] {
            let window = [2, 5, 16, 24][seed as usize % 4];
            let inputs = inputs(element, 20 * 32, workers);
            let config = config(Size::B128, workers, window);
            at_engine(&inputs, config, 4, ALL, seed, 1000);
            // Without losses what either does is the same, packet by packet.
            let figures = at_engine(&inputs, config, 4, NONE, seed, 1000);
            assert_eq!(figures, at_table(&inputs, config, 4, NONE, seed));
        }
    }
}

/// Each set of each slot may keep a buffer. With fewer, contributions are dropped, and sent again.
#[test]
fn a_switch_that_is_short_of_memory_is_slow_and_right() {
    let inputs = inputs(Element::F32, 100 * 32, 3);
    let stats = at_engine(&inputs, config(Size::B128, 3, 16), 2, NONE, 1, 17);
    assert!(stats.iter().any(|stats| stats.sent_again > 0));
}

#[test]
fn without_losses_each_packet_leaves_once() {
    for (element, packets) in [(Element::I32, 40), (Element::F32, 48)] {
        let inputs = inputs(element, 40 * 64 - 3, 4);
        for stats in at_table(&inputs, config(Size::B256, 4, 8), 3, NONE, 1) {
            let expected = Stats {
                sent: 3 * packets,
                results: 3 * packets,
                ..Stats::default()
            };
            assert_eq!(stats, expected, "{element:?}");
        }
    }
}

#[test]
fn every_size_of_packet_window_and_tensor_is_summed() {
    for size in Size::ALL {
        for element in [Element::I32, Element::F32] {
            // None, one element, less than a window, a window, more.
            for elements in [
                0,
                1,
                size.elements(),
                5 * size.elements() - 1,
                31 * size.elements(),
            ] {
                for window in [1, 3, 8] {
                    at_table(
                        &inputs(element, elements, 2),
                        config(size, 2, window),
                        3,
                        NONE,
                        1,
                    );
                }
            }
        }
    }
    for workers in [1, 3, 64] {
        at_table(
            &inputs(Element::F32, 500, workers),
            config(Size::B128, workers, 4),
            2,
            NONE,
            1,
        );
    }
}

#[test]
fn losses_copies_and_reordering_are_repaired() {
    for seed in 0..24 {
        for (element, workers) in [(Element::I32, 2), (Element::F32, 3), (Element::F32, 8)] {
            // Windows that hold a tensor's blocks, but not those of a float with its exponents,
            // among them.
            let window = [2, 5, 16, 24][seed as usize % 4];
            let inputs = inputs(element, 20 * 32, workers);
            let stats = at_table(&inputs, config(Size::B128, workers, window), 4, ALL, seed);
            assert!(stats.iter().any(|stats| stats.sent_again > 0));
            assert!(stats.iter().any(|stats| stats.duplicates > 0));
        }
    }
}

/// One of two workers, which is answered by hand.
fn alone(window: u16) -> Client {
    Client::new(Config {
        window,
        ..Config::new(Size::B128, 2)
    })
}

fn sent(client: &mut Client, now: Time) -> Vec<Header> {
    let mut out = vec![0xa5; client.datagram_bytes()];
    let mut headers = Vec::new();
    while let Some(bytes) = client.poll_transmit(now, &mut out) {
        headers.push(Header::parse(&out[..bytes]).unwrap());
    }
    headers
}

fn answer(client: &mut Client, now: Time, header: &Header) -> Taken {
    let mut reply = vec![0; client.datagram_bytes()];
    header.emit(&mut reply);
    client.handle(now, &reply)
}

#[test]
fn places_go_round_through_both_sets_and_on_in_the_next_tensor() {
    let mut client = alone(3);
    let mut places = Vec::new();
    for tensor in 0..2_u8 {
        client.submit(Tensor::I32(vec![1; 32 * 5])).unwrap();
        assert_eq!(client.submit(Tensor::I32(vec![])), Err(Refusal::Busy));
        while client.progress() != (5, 5) {
            for header in sent(&mut client, Time(0)) {
                assert_eq!(header.job, tensor);
                places.push((header.slot, header.set));
                assert_eq!(answer(&mut client, Time(1), &header), Taken::Result);
            }
        }
        assert_eq!(client.take(), Some(Tensor::I32(vec![0; 32 * 5])));
        assert_eq!(client.take(), None);
    }
    let circle = [
        (0, false),
        (1, false),
        (2, false),
        (0, true),
        (1, true),
        (2, true),
    ];
    let expected: Vec<_> = circle.iter().cycle().take(10).copied().collect();
    assert_eq!(places, expected);
}

#[test]
fn only_answers_to_what_is_missing_are_taken() {
    let mut client = alone(2);
    let header = Header {
        size: Size::B128,
        job: 0,
        packet: [0; 4],
        slot: 0,
        set: false,
        exponents: [0; 2],
    };
    assert_eq!(answer(&mut client, Time(0), &header), Taken::Foreign);
    client.submit(Tensor::I32(vec![7; 32 * 3])).unwrap();
    assert_eq!(
        answer(&mut client, Time(0), &header),
        Taken::Foreign,
        "not sent yet"
    );
    let first = sent(&mut client, Time(0));
    assert_eq!(first[0], header);
    let packet = |n: u32| n.to_ne_bytes();
    for foreign in [
        Header { job: 1, ..header },
        Header { slot: 1, ..header },
        Header {
            set: true,
            ..header
        },
        Header {
            packet: packet(1),
            ..header
        },
        Header {
            packet: packet(2),
            set: true,
            ..header
        },
        Header {
            packet: packet(3),
            ..header
        },
        Header {
            packet: packet(u32::MAX),
            ..header
        },
    ] {
        assert_eq!(
            answer(&mut client, Time(0), &foreign),
            Taken::Foreign,
            "{foreign:?}"
        );
    }
    assert_eq!(client.handle(Time(0), &[0x10; 9]), Taken::Foreign);
    let mut larger = vec![0; HEADER_BYTES + 256];
    Header {
        size: Size::B256,
        ..header
    }
    .emit(&mut larger);
    assert_eq!(client.handle(Time(0), &larger), Taken::Foreign);
    assert_eq!(answer(&mut client, Time(0), &header), Taken::Result);
    assert_eq!(answer(&mut client, Time(0), &header), Taken::Duplicate);
    assert_eq!((client.stats.results, client.stats.duplicates), (1, 1));
}

#[test]
fn what_is_late_leaves_again_less_and_less_often_until_the_way_is_known() {
    let mut client = alone(2);
    client.submit(Tensor::I32(vec![7; 32 * 3])).unwrap();
    let first = sent(&mut client, Time(0));
    assert_eq!(first.len(), 2);
    let mut now = Time(0);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let due = client.poll_timeout().unwrap();
        client.handle_timeout(Time(due.0 - 1));
        assert_eq!(sent(&mut client, Time(due.0 - 1)), []);
        client.handle_timeout(due);
        assert_eq!(sent(&mut client, due), first);
        waits.push(due.since(now).as_millis());
        now = due;
    }
    assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    // An answer to what has left twice says nothing of the way.
    assert_eq!(answer(&mut client, now, &first[0]), Taken::Result);
    let patience = |client: &mut Client| client.poll_timeout().unwrap().since(now).as_millis();
    assert_eq!(patience(&mut client), 1000);
    let next = sent(&mut client, now);
    assert_eq!(next.len(), 1);
    assert_eq!(answer(&mut client, now, &next[0]), Taken::Result);
    assert_eq!(patience(&mut client), 5);
    assert_eq!(client.stats.sent_again, 16);
}

#[test]
fn patience_follows_the_time_that_results_take() {
    let mut client = alone(1);
    client.submit(Tensor::I32(vec![7; 32 * 100])).unwrap();
    let mut now = Time(0);
    for _ in 0..50 {
        let header = sent(&mut client, now)[0];
        now = now.after(Duration::from_millis(30));
        answer(&mut client, now, &header);
    }
    sent(&mut client, now);
    let patience = client.poll_timeout().unwrap().since(now).as_millis();
    assert!((30..40).contains(&patience), "{patience}");
}

/// The published client sends a small tensor's elements when it has the exponent, though the result
/// of the packet before in the same slot may be missing still.
#[test]
fn a_slot_is_not_used_anew_before_its_result_is_there() {
    let mut client = alone(3);
    client.submit(Tensor::F32(vec![1.0; 32 * 2])).unwrap();
    let exponents = sent(&mut client, Time(0));
    assert_eq!(exponents.len(), 2);
    // Packet 3 has the slot of packet 0, and needs the exponent in the result of packet 1.
    answer(&mut client, Time(1), &exponents[1]);
    assert_eq!(sent(&mut client, Time(1)), []);
    answer(&mut client, Time(1), &exponents[0]);
    let places: Vec<_> = sent(&mut client, Time(1))
        .iter()
        .map(|h| (h.packet[0], h.slot, h.set))
        .collect();
    assert_eq!(places, [(2, 2, false), (3, 0, true)]);
}

#[test]
fn floats_that_no_exponent_has_are_refused() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, LIMIT, -LIMIT] {
        let refusal = alone(1).submit(Tensor::F32(vec![0.0, value]));
        assert!(
            matches!(refusal, Err(Refusal::Magnitude { at: 1, .. })),
            "{value}"
        );
    }
    alone(1)
        .submit(Tensor::F32(vec![LIMIT.next_down()]))
        .unwrap();
}
