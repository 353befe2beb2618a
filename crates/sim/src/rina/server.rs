//! A parameter server in a rack of its own, whose switch does not sum; switches of other racks sum
//! on the way or do not (ATP's deployment).
//!
//! A worker sends a segment when its window has room. A rack that sums sends one stream to the
//! server, any other one a stream a worker; the server answers each stream with the sum.

use super::fabric::{Fabric, Shape};
use super::network::{Network, SECOND, Span, Time, To};
use super::rings::{Outcome, Transfer};
use anyhow::{Result, ensure};

/// A source of the server's streams: a rack that sums, or a worker.
#[derive(Clone, Copy, Debug)]
enum Stream {
    Rack(u32),
    Worker(u32),
}

#[derive(Clone, Copy, Debug)]
enum Message {
    AtSwitch { rack: u32, segment: u32 },
    AtServer { stream: Stream, segment: u32 },
    Returned { rack: u32, segment: u32 },
    Result { rank: u32 },
}

#[derive(Debug)]
struct Worker {
    /// The next segment to send.
    next: u32,
    /// Segments sent without result.
    open: u32,
    results: u32,
}

struct World {
    network: Network<Message>,
    fabric: Fabric,
    transfer: Transfer,
    segments: u32,
    workers: Vec<Worker>,
    /// By rack and segment: contributions, and when they are there.
    racks: Vec<Vec<(u32, Span)>>,
    /// By segment: workers in the sum, streams of it.
    server: Vec<(usize, Vec<Stream>)>,
    end: Time,
}

/// Simulates an all-reduce by a parameter server. Racks that sum send one stream each.
///
/// # Errors
/// A sum that lacks a worker.
pub fn run(shape: Shape, transfer: Transfer) -> Result<Outcome> {
    let mut network = Network::default();
    let segments = transfer.bytes.div_ceil(transfer.segment_bytes) as u32;
    let worker = || Worker {
        next: 0,
        open: 0,
        results: 0,
    };
    let slots = vec![(0, Span::default()); segments as usize];
    let mut world = World {
        fabric: Fabric::new(shape, &mut network),
        network,
        transfer,
        segments,
        workers: (0..shape.all()).map(|_| worker()).collect(),
        racks: vec![slots; shape.racks],
        server: vec![(0, Vec::new()); segments as usize],
        end: 0,
    };
    for rank in 0..shape.all() {
        world.send(rank, 0);
    }
    while let Some((message, span)) = world.network.poll() {
        world.end = world.end.max(span.tail);
        world.receive(message, span);
    }
    let has_all = |worker: &Worker| worker.results == segments;
    ensure!(
        world.workers.iter().all(has_all),
        "a worker waits without end"
    );
    let summed = |(workers, _): &(usize, _)| *workers == shape.all();
    ensure!(world.server.iter().all(summed), "a sum lacks a worker");
    let [up, down] = world.fabric.links(world.fabric.server());
    Ok(Outcome {
        seconds: world.end as f64 / SECOND,
        steps: 2,
        link_bytes: world.network.bytes(up).max(world.network.bytes(down)),
    })
}

impl World {
    fn bytes(&self, segment: u32) -> u32 {
        let Transfer {
            bytes,
            segment_bytes,
            ..
        } = self.transfer;
        let start = u64::from(segment) * segment_bytes;
        segment_bytes.min(bytes - start) as u32
    }

    /// Sends what a worker's window has room for.
    fn send(&mut self, rank: usize, now: Time) {
        let shape = *self.fabric.shape();
        let room = (self.transfer.window_bytes / self.transfer.segment_bytes).max(1) as u32;
        while self.workers[rank].next < self.segments && self.workers[rank].open < room {
            let worker = &mut self.workers[rank];
            let segment = worker.next;
            worker.next += 1;
            worker.open += 1;
            let rack = shape.rack(rank) as u32;
            let bytes = self.bytes(segment);
            let span = Span::at(now);
            if shape.sums(rack as usize) {
                let route = self.fabric.to_switch(rank);
                let message = Message::AtSwitch { rack, segment };
                self.network.send(route, bytes, span, To::Switch, message);
            } else {
                let route = self.fabric.between(rank, self.fabric.server());
                let stream = Stream::Worker(rank as u32);
                let message = Message::AtServer { stream, segment };
                self.network.send(route, bytes, span, To::Host, message);
            }
        }
    }

    fn receive(&mut self, message: Message, span: Span) {
        let shape = *self.fabric.shape();
        match message {
            Message::AtSwitch { rack, segment } => {
                let (count, whole) = &mut self.racks[rack as usize][segment as usize];
                *count += 1;
                *whole = whole.join(span);
                if *count as usize == shape.workers {
                    let (whole, bytes) = (*whole, self.bytes(segment));
                    let route = self.fabric.from_switch(rack as usize, self.fabric.server());
                    let stream = Stream::Rack(rack);
                    let message = Message::AtServer { stream, segment };
                    self.network.send(route, bytes, whole, To::Host, message);
                }
            }
            Message::AtServer { stream, segment } => self.serve(stream, segment, span.tail),
            Message::Returned { rack, segment } => {
                let bytes = self.bytes(segment);
                for n in 0..shape.workers {
                    let rank = rack as usize * shape.workers + n;
                    let route = self.fabric.from_switch(rack as usize, rank);
                    let rank = rank as u32;
                    let message = Message::Result { rank };
                    self.network.send(route, bytes, span, To::Host, message);
                }
            }
            Message::Result { rank } => {
                let worker = &mut self.workers[rank as usize];
                worker.open -= 1;
                worker.results += 1;
                self.send(rank as usize, span.tail);
            }
        }
    }

    /// A stream's segment is at the server; the last one completes the sum.
    fn serve(&mut self, stream: Stream, segment: u32, now: Time) {
        let shape = *self.fabric.shape();
        let (workers, streams) = &mut self.server[segment as usize];
        *workers += match stream {
            Stream::Rack(_) => shape.workers,
            Stream::Worker(_) => 1,
        };
        streams.push(stream);
        if streams.len() < shape.members() {
            return;
        }
        let streams = std::mem::take(streams);
        let (server, bytes, span) = (self.fabric.server(), self.bytes(segment), Span::at(now));
        for stream in streams {
            match stream {
                Stream::Rack(rack) => {
                    let route = self.fabric.to_rack(server, rack as usize);
                    let message = Message::Returned { rack, segment };
                    self.network.send(route, bytes, span, To::Switch, message);
                }
                Stream::Worker(rank) => {
                    let route = self.fabric.between(server, rank as usize);
                    let message = Message::Result { rank };
                    self.network.send(route, bytes, span, To::Host, message);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_worker_is_the_links_over_the_servers_streams() {
        for (summing, streams) in [(0, 64.0), (4, 36.0), (8, 8.0)] {
            let shape = Shape {
                racks: 8,
                workers: 8,
                summing,
                rate_gbit: 100.0,
                delay_ns: 1000,
                oversubscription: 1.0,
            };
            let transfer = Transfer {
                bytes: 4 << 20,
                segment_bytes: 16 << 10,
                window_bytes: 256 << 10,
            };
            let outcome = run(shape, transfer).unwrap();
            let share = transfer.bytes as f64 / outcome.seconds / 12.5e9;
            assert!((share * streams - 1.0).abs() < 0.05, "{summing} {share}");
        }
    }
}
