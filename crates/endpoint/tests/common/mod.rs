//! A world of virtual time: workers, a PS, a naive switch and links that lose, copy and delay,
//! all drawn from one seed. Time jumps to the next datagram or deadline.
#![allow(dead_code, reason = "every test program uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

pub mod switch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;
use switch::{Habits, JOB, Switch, key, naive_sum};
use tally_endpoint::{
    Contribution, Delivery, Event, Gradients, Ps, PsConfig, PsEvent, Time, Worker, WorkerConfig,
    WorkerError, datagram_bytes,
};
use tally_kernels::Kernels;
use tally_wire::{Ecn, Element};

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True `per_mille` times in 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// What links do to datagrams, in 1000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lose: u64,
    pub copy: u64,
    /// Delayed by up to 5 ms instead of up to 50 µs.
    pub delay: u64,
    /// Meets a full link on its way from the switch.
    pub mark: u64,
}

pub const UNITS: u8 = 1;
const PAYLOAD: usize = 64;

/// Element type of fragment `seq`: some of each.
pub fn element_of(seq: u64) -> Element {
    Element::ALL[(seq % 7) as usize]
}

/// What `rank` contributes to `seq`.
pub fn contribution(rank: u8, seq: u64) -> Vec<u8> {
    let mut rng = Rng(seq << 8 | u64::from(rank));
    let element = element_of(seq);
    let words = (0..PAYLOAD / 4).map(|_| rng.next());
    words
        .flat_map(|x| match element {
            // 64 of them cannot saturate.
            Element::I32 => ((x as i32) >> 7).to_be_bytes(),
            Element::F32 => {
                ((f32::from(x as u16) - 3e4) * 2f32.powi((x >> 58) as i32)).to_le_bytes()
            }
            Element::I16 => {
                let two = |x: u64| ((x as i16) >> 6).to_be_bytes();
                [two(x)[0], two(x)[1], two(x >> 16)[0], two(x >> 16)[1]]
            }
            Element::I8 => (x as u32).to_be_bytes().map(|b| (b % 3).wrapping_sub(1)),
            _ => (x as u32).to_be_bytes(),
        })
        .collect()
}

pub fn expected(workers: u8, seq: u64) -> Vec<u8> {
    let all: Vec<_> = (0..workers).map(|r| contribution(r, seq)).collect();
    naive_sum(
        element_of(seq),
        &all.iter().map(Vec::as_slice).collect::<Vec<_>>(),
    )
    .0
}

/// A worker's data, and a checker of the rules that the session owes it.
pub struct Data {
    pub rank: u8,
    pub first: u64,
    pub window: u64,
    /// Every fragment needs the result of the one so many before it.
    pub depends: Option<u64>,
    /// This fragment's i32 are as large as can be.
    pub overflowing: Option<u64>,
    /// This fragment has no contribution: it overflows before.
    pub overflows: Option<u64>,
    asked: u64,
    base: u64,
    pub results: BTreeMap<u64, (Element, Vec<u8>)>,
    pub latencies: u64,
    pub from_ps: u64,
}

impl Data {
    /// Contributions without a result.
    fn unfinished(&self) -> u64 {
        self.asked - self.first - self.results.len() as u64
    }
}

impl Gradients for Data {
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        assert!(seq <= self.asked, "in order");
        assert!(
            seq < self.base + self.window,
            "W-2: {seq} with {} missing",
            self.base
        );
        assert!(
            !self.results.contains_key(&seq),
            "sent again after its result"
        );
        if let Some(needed) = self.depends.and_then(|d| seq.checked_sub(d))
            && needed >= self.first
            && !self.results.contains_key(&needed)
        {
            assert_eq!(seq, self.asked, "what was ready stays so");
            return Contribution::NotReady;
        }
        if self.overflows == Some(seq) {
            return Contribution::Overflow;
        }
        self.asked = self.asked.max(seq + 1);
        if self.overflowing == Some(seq) {
            payload.copy_from_slice(&i32::MAX.to_be_bytes().repeat(PAYLOAD / 4));
        } else {
            payload.copy_from_slice(&contribution(self.rank, seq));
        }
        Contribution::Ready(element_of(seq))
    }

    fn result(&mut self, seq: u64, element: Element, payload: &[u8], d: Delivery) {
        let before = self.results.insert(seq, (element, payload.to_vec()));
        assert!(before.is_none(), "a result is delivered once");
        while self.results.contains_key(&self.base) {
            self.base += 1;
        }
        self.latencies += 1;
        self.from_ps += u64::from(d.from_ps);
    }

    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element> {
        let (element, bytes) = self.results.get(&seq)?;
        payload.copy_from_slice(bytes);
        Some(*element)
    }
}

pub struct Plan {
    pub seed: u64,
    pub workers: u8,
    pub window: u16,
    pub first: u64,
    pub depends: Option<u64>,
    pub faults: Faults,
    pub habits: Habits,
}

impl Plan {
    pub fn quiet(workers: u8) -> Self {
        Self {
            seed: 1,
            workers,
            window: 8,
            first: 0,
            depends: None,
            faults: Faults::default(),
            habits: Habits::default(),
        }
    }
}

/// When, a tie-breaker, to whom (`None`: the switch), and the datagram.
type Flight = (Time, u64, Option<u8>, Vec<u8>);

pub struct World {
    pub now: Time,
    pub rng: Rng,
    pub faults: Faults,
    pub switch: Switch,
    pub workers: Vec<(Worker, Data)>,
    /// Members that do not take part (any more), by rank; 255 is the PS.
    pub silent: Vec<u8>,
    pub ps: Ps,
    pub events: Vec<Vec<Event>>,
    pub ps_events: Vec<PsEvent>,
    flying: BinaryHeap<Reverse<Flight>>,
    sent: u64,
}

impl World {
    pub fn new(plan: &Plan) -> Self {
        Self::with(plan, |_| {})
    }

    pub fn with(plan: &Plan, change: impl Fn(&mut WorkerConfig)) -> Self {
        let now = Time(1_000_000);
        let worker = |rank| {
            let instance = 1000 + u64::from(rank);
            let mut config = WorkerConfig::new(JOB, key(), rank, plan.workers, [9; 32], instance);
            config.units = UNITS;
            config.window = plan.window;
            config.first_fragment = plan.first;
            change(&mut config);
            let data = Data {
                rank,
                first: plan.first,
                window: u64::from(plan.window),
                depends: plan.depends,
                overflowing: None,
                overflows: None,
                asked: plan.first,
                base: plan.first,
                results: BTreeMap::new(),
                latencies: 0,
                from_ps: 0,
            };
            (Worker::new(now, config), data)
        };
        Self {
            now,
            rng: Rng(plan.seed),
            faults: plan.faults,
            switch: Switch::new(plan.workers, plan.habits),
            workers: (0..plan.workers).map(worker).collect(),
            silent: Vec::new(),
            ps: Self::new_ps(now, 5),
            events: vec![Vec::new(); usize::from(plan.workers)],
            ps_events: Vec::new(),
            flying: BinaryHeap::new(),
            sent: 0,
        }
    }

    pub fn new_ps(now: Time, instance: u64) -> Ps {
        Ps::new(now, PsConfig::new(JOB, key(), instance), Kernels::best())
    }

    pub fn submit(&mut self, fragments: u64) {
        for (worker, _) in &mut self.workers {
            worker.submit(self.now, fragments, 5);
        }
    }

    pub fn finish(&mut self) {
        self.workers
            .iter_mut()
            .for_each(|(w, _)| w.finish(self.now));
    }

    fn fly(&mut self, to: Option<u8>, datagram: &[u8]) {
        let copies = 1 + u64::from(self.rng.chance(self.faults.copy));
        for _ in 0..copies {
            let slow = self.rng.chance(self.faults.delay);
            let delay = 5_000 + self.rng.below(if slow { 5_000_000 } else { 50_000 });
            if !self.rng.chance(self.faults.lose) {
                let at = self.now.after(Duration::from_nanos(delay));
                self.sent += 1;
                self.flying
                    .push(Reverse((at, self.sent, to, datagram.to_vec())));
            }
        }
    }

    fn poll(&mut self) {
        let mut out = vec![0xa5; datagram_bytes(UNITS)];
        let fragment_port = |datagram: &[u8]| {
            let n = u32::from_be_bytes(datagram[8..12].try_into().unwrap());
            31249 + (n % u32::from(switch::SHARDS)) as u16
        };
        for rank in 0..self.workers.len() {
            if self.silent.contains(&(rank as u8)) {
                continue;
            }
            loop {
                let (worker, data) = &mut self.workers[rank];
                let (asked, unfinished) = (data.asked, data.unfinished());
                let Some(t) = worker.poll_transmit(self.now, &mut out, data) else {
                    break;
                };
                let (link, aggregation) = worker.windows();
                assert!(aggregation <= link && u64::from(link) <= data.window, "C-3");
                assert!(
                    data.asked == asked || unfinished < u64::from(aggregation),
                    "C-3: {unfinished} unfinished with a window of {aggregation}"
                );
                assert_eq!(t.port, fragment_port(&out), "F-3");
                self.fly(None, &out[..t.len]);
            }
            while let Some(event) = self.workers[rank].0.poll_event() {
                self.events[rank].push(event);
            }
        }
        while !self.silent.contains(&255)
            && let Some(t) = self.ps.poll_transmit(self.now, &mut out)
        {
            assert_eq!(t.port, fragment_port(&out), "F-3");
            self.fly(None, &out[..t.len]);
        }
        while let Some(event) = self.ps.poll_event() {
            self.ps_events.push(event);
        }
    }

    /// Advances to the next event, unless that is later than `until`.
    pub fn step(&mut self, until: Time) -> bool {
        self.poll();
        let alive = |r: usize| !self.silent.contains(&(r as u8));
        let deadlines = self.workers.iter().enumerate().filter(|(r, _)| alive(*r));
        let deadlines = deadlines.filter_map(|(_, (w, _))| w.poll_timeout());
        let ps = self.ps.poll_timeout().filter(|_| alive(255));
        let next_deadline = deadlines.chain(ps).min();
        let next_datagram = self.flying.peek().map(|Reverse(f)| f.0);
        let Some(next) = next_deadline.into_iter().chain(next_datagram).min() else {
            return false;
        };
        if next > until {
            self.now = until;
            return false;
        }
        self.now = self.now.max(next);
        if next_datagram == Some(next) {
            let Reverse((_, _, to, datagram)) = self.flying.pop().unwrap();
            self.deliver(to, &datagram);
        } else {
            for rank in 0..self.workers.len() {
                if !self.silent.contains(&(rank as u8)) {
                    self.workers[rank].0.handle_timeout(self.now);
                }
            }
            if !self.silent.contains(&255) {
                self.ps.handle_timeout(self.now);
            }
        }
        true
    }

    fn deliver(&mut self, to: Option<u8>, datagram: &[u8]) {
        let ecn = if self.rng.chance(self.faults.mark) {
            Ecn::Ce
        } else {
            Ecn::Ect0
        };
        match to {
            Some(member) if self.silent.contains(&member) => {}
            Some(255) => self.ps.handle_datagram(self.now, ecn, datagram),
            Some(rank) => {
                let (worker, data) = &mut self.workers[usize::from(rank)];
                worker.handle_datagram(self.now, ecn, datagram, data);
            }
            None => {
                if !self.silent.contains(&254) {
                    for (to, datagram) in self.switch.handle(&mut self.rng, datagram) {
                        self.fly(Some(to), &datagram);
                    }
                }
            }
        }
    }

    /// Hands a datagram to a worker as if it came from the switch.
    pub fn inject(&mut self, rank: usize, datagram: &[u8]) {
        let (worker, data) = &mut self.workers[rank];
        worker.handle_datagram(self.now, Ecn::Ect0, datagram, data);
    }

    pub fn run_for(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.step(until) {}
        self.poll();
    }

    /// Runs until all workers have closed, for at most `time`.
    pub fn run_to_end(&mut self, time: Duration) {
        let until = self.now.after(time);
        while !self.workers.iter().all(|(w, _)| w.is_closed()) && self.step(until) {}
        self.poll();
    }

    pub fn error(&self, rank: usize) -> Option<&WorkerError> {
        match self.events[rank].last() {
            Some(Event::Failed(error)) => Some(error),
            _ => None,
        }
    }

    /// All workers have finished with all the right results.
    #[track_caller]
    pub fn assert_right(&self, fragments: u64) {
        for (rank, (worker, data)) in self.workers.iter().enumerate() {
            assert!(
                worker.is_closed(),
                "rank {rank} continues: {:?}",
                worker.stats()
            );
            assert_eq!(
                self.events[rank].last(),
                Some(&Event::Finished),
                "rank {rank}"
            );
            assert_eq!(worker.delivered(), fragments);
            assert_eq!(data.results.len() as u64, fragments, "rank {rank}");
            for (&seq, (element, payload)) in &data.results {
                assert_eq!(*element, element_of(seq));
                assert_eq!(
                    payload,
                    &expected(self.workers.len() as u8, seq),
                    "fragment {seq}"
                );
            }
        }
    }
}
