//! What a worker contributes and receives: made-up numbers, of which every sum is known.
//!
//! Element e of fragment s of job j is h(j, s, e) · (rank + 1), where h has 16 bits, or 8 in a job
//! of more than 64 workers. So the sum is
//! h · n(n + 1)/2 if each rank counts once, and hardly ever otherwise. The feed also knows which
//! layer a fragment belongs to, and tells when a layer has all its results.

use crate::host::Data;
use crate::rng::mix;
use std::collections::VecDeque;
use std::time::Duration;
use tally_endpoint::{Contribution, Delivery, Gradients};
use tally_wire::{Element, JobId};

/// Buckets of [`Latency`], each twice as wide as the one before; the first ends at 1 µs.
const BUCKETS: usize = 24;

/// How long fragments took from contribution to result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Fragments.
    pub count: u64,
    /// All their times together.
    pub total: Duration,
    buckets: [u64; BUCKETS],
}

impl Latency {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        let bucket = (time.as_micros() as u64 + 1).ilog2() as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
    }

    /// Adds another's fragments.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.total += other.total;
        for (sum, n) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += n;
        }
    }

    /// The mean, in µs.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        self.total.as_secs_f64() * 1e6 / self.count.max(1) as f64
    }

    /// A quantile, in µs, as the upper end of its bucket.
    #[must_use]
    pub fn quantile_us(&self, q: f64) -> u64 {
        let mut left = (self.count as f64 * q) as u64;
        for (n, &count) in self.buckets.iter().enumerate() {
            if left < count {
                return (2 << n) - 1;
            }
            left -= count;
        }
        0
    }
}

/// A layer whose gradient has been submitted.
struct Message {
    layer: u32,
    end: u64,
    /// Fragments without a result.
    left: u64,
}

/// A worker's data.
pub struct Feed {
    job: u64,
    weight: u32,
    sum_weight: u32,
    /// Bits of h that are used: sums fit.
    mask: u32,
    /// What was submitted and is unfinished, in order; those finished ahead of others stay.
    messages: VecDeque<Message>,
    end: u64,
    /// Layers finished since they were last asked for.
    finished: Vec<u32>,
    /// Results that were not the sum.
    pub wrong: u64,
    /// Fragments finished by the switch.
    pub by_switch: Latency,
    /// Fragments finished by the parameter server.
    pub by_ps: Latency,
}

impl Feed {
    /// That of one rank.
    #[must_use]
    pub fn new(job: JobId, rank: u16, workers: u16) -> Self {
        let n = u32::from(workers);
        Self {
            job: mix(u64::from(job.0)),
            weight: u32::from(rank) + 1,
            sum_weight: n * (n + 1) / 2,
            mask: if n <= 64 { 0xffff } else { 0xff },
            messages: VecDeque::new(),
            end: 0,
            finished: Vec::new(),
            wrong: 0,
            by_switch: Latency::default(),
            by_ps: Latency::default(),
        }
    }

    /// Notes that the next `fragments` are a layer's.
    pub fn submit(&mut self, layer: u32, fragments: u64) {
        self.end += fragments;
        self.messages.push_back(Message {
            layer,
            end: self.end,
            left: fragments,
        });
    }

    /// Layers that have all their results since this was last called, into `out`.
    pub fn take_finished(&mut self, out: &mut Vec<u32>) {
        out.append(&mut self.finished);
    }

    /// The elements of a fragment, each times `weight`.
    #[inline]
    fn elements(&self, seq: u64, weight: u32) -> impl Iterator<Item = [u8; 4]> {
        let (h, mask) = (mix(seq ^ self.job), self.mask);
        (0..).map(move |e: u32| {
            let h = (h.rotate_left(16 * (e & 3)) as u32 ^ (e << 2)) & mask;
            (h * weight).to_be_bytes()
        })
    }

    #[inline]
    fn write(&self, seq: u64, weight: u32, payload: &mut [u8]) {
        let elements = self.elements(seq, weight);
        for (to, from) in payload.as_chunks_mut().0.iter_mut().zip(elements) {
            *to = from;
        }
    }
}

impl Gradients for Feed {
    #[inline]
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        self.write(seq, self.weight, payload);
        Contribution::Ready(Element::I32)
    }

    #[inline]
    fn result(&mut self, seq: u64, element: Element, payload: &[u8], delivery: Delivery) {
        let sums = self.elements(seq, self.sum_weight);
        let right = payload.as_chunks().0.iter().zip(sums).all(|(a, b)| *a == b);
        self.wrong += u64::from(!right || element != Element::I32);
        if delivery.from_ps {
            self.by_ps.add(delivery.latency);
        } else {
            self.by_switch.add(delivery.latency);
        }
        // Nearly always the first.
        let at = match self.messages.front() {
            Some(first) if seq < first.end => 0,
            _ => self.messages.partition_point(|m| m.end <= seq),
        };
        let message = &mut self.messages[at];
        message.left -= 1;
        if message.left == 0 {
            self.finished.push(message.layer);
            while self.messages.front().is_some_and(|m| m.left == 0) {
                self.messages.pop_front();
            }
        }
    }

    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element> {
        self.write(seq, self.sum_weight, payload);
        Some(Element::I32)
    }
}

impl Data for Feed {
    #[inline]
    fn has_news(&mut self) -> bool {
        !self.finished.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_kernels::Kernels;

    fn delivery() -> Delivery {
        Delivery {
            latency: Duration::from_micros(10),
            from_ps: false,
        }
    }

    fn feeds() -> Vec<Feed> {
        (0..3).map(|rank| Feed::new(JobId(7), rank, 3)).collect()
    }

    /// The sum over some ranks of a fragment.
    fn sum(feeds: &mut [Feed], seq: u64, ranks: &[usize]) -> [u8; 64] {
        let mut sum = [0; 64];
        for &rank in ranks {
            let mut payload = [0; 64];
            feeds[rank].contribute(seq, &mut payload);
            Kernels::best().sum_i32(&mut sum, &payload);
        }
        sum
    }

    #[test]
    fn only_the_sum_of_all_ranks_is_right() {
        let mut feeds = feeds();
        feeds[0].submit(4, 3);
        for (seq, ranks, wrong) in [
            (0, &[0, 1, 2][..], 0),
            (1, &[0, 1], 1),
            (2, &[0, 1, 2, 2], 2),
        ] {
            let payload = sum(&mut feeds, seq, ranks);
            feeds[0].result(seq, Element::I32, &payload, delivery());
            assert_eq!(feeds[0].wrong, wrong);
        }
    }

    #[test]
    fn layers_finish_with_their_last_result_in_any_order() {
        let mut feeds = feeds();
        feeds[1].submit(9, 2);
        feeds[1].submit(8, 1);
        let mut finished = Vec::new();
        for (seq, expected) in [(2, vec![8]), (1, vec![8]), (0, vec![8, 9])] {
            let payload = sum(&mut feeds, seq, &[0, 1, 2]);
            feeds[1].result(seq, Element::I32, &payload, delivery());
            feeds[1].take_finished(&mut finished);
            assert_eq!(finished, expected);
        }
        assert!(feeds[1].messages.is_empty());
        assert_eq!(feeds[1].wrong, 0);
    }

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let mut latency = Latency::default();
        for us in [0, 2, 2, 100] {
            latency.add(Duration::from_micros(us));
        }
        assert_eq!(latency.quantile_us(0.0), 1);
        assert_eq!(latency.quantile_us(0.5), 3);
        assert_eq!(latency.quantile_us(0.9), 127);
        assert_eq!(latency.mean_us(), 26.0);
    }
}
