//! What the switch did: one value, as JSON for programs and as lines for people.

mod card;
mod sessions;

pub use card::{CardReport, CardState};
pub use sessions::{RankReport, SessionReport, SwitchmlReport};

use crate::config::Config;
use crate::load::{Load, Stage};
use crate::messages::CoreReport;
use crate::plane::Directory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use tally_engine::egress::{PortCounters, ReplyCounters};
use tally_engine::offload::CardTraffic;
use tally_engine::queue::{CLASSES, QueueCounters};
use tally_engine::{Counters, DropReason, Registry, registry};

/// What does not change while the switch runs.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Policy by name.
    pub policy: String,
    /// SIMD backend by name.
    pub kernel: String,
    /// Slots of all shards.
    pub slots: u32,
    /// Slots that a fragment may be in.
    pub ways: u32,
    /// Bytes of frames that the slots may hold.
    pub pool_bytes: u64,
    /// The ports.
    pub ports: Vec<PortShape>,
    /// CPUs of the data cores.
    pub cores: Vec<usize>,
    /// SwitchML's sessions at one time and frames kept, at most, if the switch has SwitchML.
    pub switchml: Option<(u16, u32)>,
}

/// How a port's frames are divided among the data cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortShape {
    /// Its name.
    pub name: String,
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Who steers frames into them.
    pub steering: String,
    /// Flow rules that the device has for it.
    pub rules: u16,
    /// Why it has none, if it was asked.
    pub rules_refused: Option<String>,
}

impl Shape {
    /// From the configuration; `kernel` is the backend that was chosen, and `ports` are as they came up.
    #[must_use]
    pub fn new(config: &Config, kernel: String, ports: Vec<PortShape>) -> Self {
        Self {
            policy: config.pool.policy.to_string(),
            kernel,
            slots: config.slots(),
            ways: config.ways(),
            pool_bytes: config.pool_bytes(),
            ports,
            cores: config.cores.clone(),
            switchml: config
                .switchml
                .as_ref()
                .map(|section| (section.sessions, section.held)),
        }
    }
}

/// One port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames flooded to it.
    pub flooded: u64,
    /// Frames received by one data core for the shard of another.
    #[serde(default)]
    pub handed_over: u64,
    /// Frames received in several buffers and copied into one.
    #[serde(default)]
    pub linearised: u64,
    /// SwitchML's replies for which the sum was copied, because the driver sends no frames of several segments.
    #[serde(default)]
    pub replies_copied: u64,
    /// Frames that were not flooded to it, because a member of a SwitchML session is behind it.
    #[serde(default)]
    pub floods_spared: u64,
    /// Frames that it could not take in, or that it took to be sent and could not send: superframes of TCP
    /// or with a VLAN tag, frames beyond its MTU, an interface that is down.
    #[serde(default)]
    pub refused: u64,
    /// Frames from it that claimed what is another's, and were dropped: `spoofed-…`, `claims-…`
    /// and `tag-depth`.
    #[serde(default)]
    pub claims: u64,
    /// MAC addresses learnt behind it.
    #[serde(default)]
    pub addresses: u32,
    /// Frames from it whose source was not learnt, because it has `limits.addresses`.
    #[serde(default)]
    pub addresses_refused: u64,
    /// Receive queues.
    #[serde(default)]
    pub rx_queues: u16,
    /// Transmit queues.
    #[serde(default)]
    pub tx_queues: u16,
    /// Who steers frames into the receive queues: `rules`, `rss`, `peer`, `device`, or `hand-over`;
    /// `single core` if there is nothing to steer.
    #[serde(default)]
    pub steering: String,
    /// Flow rules that the device has for it.
    #[serde(default)]
    pub rules: u16,
    /// Why it has none, in the driver's words, if it was asked for some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules_refused: Option<String>,
    /// Frames dropped at its queue.
    pub tx_dropped: u64,
    /// The same, by class.
    #[serde(default)]
    pub tx_dropped_by_class: [u64; CLASSES],
    /// Frames marked because its queue was long.
    #[serde(default)]
    pub ecn_marked: u64,
    /// Most frames that waited for it at one time.
    #[serde(default)]
    pub queue_frames_max: u32,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    /// No member has joined.
    Idle,
    /// Some members have joined.
    Waiting,
    /// All members have joined.
    Running,
    /// Its PS is gone.
    Paused,
}

impl From<registry::JobPhase> for JobPhase {
    fn from(phase: registry::JobPhase) -> Self {
        match phase {
            registry::JobPhase::Idle => Self::Idle,
            registry::JobPhase::Waiting => Self::Waiting,
            registry::JobPhase::Running => Self::Running,
            registry::JobPhase::Paused => Self::Paused,
        }
    }
}

impl std::fmt::Display for JobPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Paused => "paused",
        })
    }
}

/// One job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobReport {
    /// Its number.
    pub id: u16,
    /// What it does.
    pub phase: JobPhase,
    /// Its incarnation.
    pub epoch: u16,
    /// Its workers.
    pub workers: u8,
    /// How many have joined.
    pub joined: u32,
    /// How many have left.
    pub left: u32,
    /// Whether its PS is there.
    pub ps: bool,
    /// Whether the card has it.
    #[serde(default)]
    pub on_card: bool,
}

/// Where a data core's time went since the switch started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CoreLoad {
    /// Its CPU.
    pub cpu: usize,
    /// Share of the time in which there was something to do.
    pub busy_share: f64,
    /// Turns that found something to do.
    pub busy_turns: u64,
    /// Turns that found nothing.
    pub empty_turns: u64,
    /// Times that a queue was asked for frames.
    pub polls: u64,
    /// Of them, those that brought none.
    pub empty_polls: u64,
    /// Frames received from ports.
    pub frames: u64,
    /// Frames that a poll brought which brought any.
    pub frames_per_burst: f64,
    /// Cycles of the time-stamp counter by stage: `receive`, `classify`, `aggregate`, `send`, `idle`.
    pub cycles: BTreeMap<String, u64>,
    /// The same for each frame, without `idle`.
    pub cycles_per_frame: BTreeMap<String, f64>,
}

impl CoreLoad {
    fn new(cpu: usize, load: &Load) -> Self {
        let by_stage = || Stage::ALL.map(|(name, stage)| (name.to_owned(), stage));
        let cycles = |stage| load.cycles[stage as usize];
        let frames = load.frames.max(1) as f64;
        Self {
            cpu,
            busy_share: load.busy_share(),
            busy_turns: load.busy_turns,
            empty_turns: load.empty_turns,
            polls: load.polls,
            empty_polls: load.empty_polls,
            frames: load.frames,
            frames_per_burst: load.frames as f64 / (load.polls - load.empty_polls).max(1) as f64,
            cycles: by_stage().map(|(name, s)| (name, cycles(s))).into(),
            cycles_per_frame: by_stage()
                .into_iter()
                .filter(|&(_, stage)| stage != Stage::Idle)
                .map(|(name, stage)| (name, cycles(stage) as f64 / frames))
                .collect(),
        }
    }
}

/// Share of arrivals that were added up here; 1 if there were none.
fn hit_rate(counters: &Counters) -> f64 {
    let missed = counters.collisions + counters.held_full;
    let all = counters.contributions + missed;
    if all == 0 {
        return 1.0;
    }
    counters.contributions as f64 / all as f64
}

/// Percentiles, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Of a histogram of nanoseconds.
    #[must_use]
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let us = |nanos: u64| nanos as f64 / 1000.0;
        Self {
            count: histogram.len(),
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
        }
    }
}

/// Everything that the switch did since it started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of the program.
    pub version: String,
    /// Seconds since the start.
    pub seconds: f64,
    /// Policy by name.
    pub policy: String,
    /// SIMD backend by name.
    pub kernel: String,
    /// CPUs of the data cores.
    pub cores: Vec<usize>,
    /// Slots of all shards.
    pub slots: u32,
    /// Slots that a fragment may be in.
    #[serde(default)]
    pub ways: u32,
    /// Bytes of frames that the slots may hold.
    #[serde(default)]
    pub pool_bytes: u64,
    /// Of them, taken now.
    pub slots_in_use: usize,
    /// Contributions held out of order now.
    pub held_in_use: u32,
    /// What the engine did, by name.
    pub counters: BTreeMap<String, u64>,
    /// Frames dropped, by reason; only reasons that occurred.
    pub drops: BTreeMap<String, u64>,
    /// From a fragment's first contribution to its result, in the switch.
    pub residence: Latency,
    /// Share of arrivals that found a slot, or needed none because their fragment came whole.
    #[serde(default)]
    pub hit_rate: f64,
    /// Where each core's time went.
    #[serde(default)]
    pub load: Vec<CoreLoad>,
    /// Ports.
    pub ports: Vec<PortReport>,
    /// Jobs.
    pub jobs: Vec<JobReport>,
    /// SwitchML's clients; absent if the switch has no SwitchML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchml: Option<SwitchmlReport>,
    /// The card; absent if the switch has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardReport>,
    /// Frames of the pool that were not back at the end; absent while the switch runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_missing: Option<usize>,
}

impl Report {
    /// Adds up what the cores say.
    #[must_use]
    pub fn new(
        shape: &Shape,
        up: Duration,
        cores: &[CoreReport],
        registry: &Registry,
        directory: &Directory,
        card: Option<CardReport>,
    ) -> Self {
        let on_card = |id: u16| card.as_ref().is_some_and(|card| card.jobs.contains(&id));
        let mut counters = Counters::default();
        let mut ports = vec![PortCounters::default(); shape.ports.len()];
        let mut queues = vec![QueueCounters::default(); shape.ports.len()];
        let mut replies = vec![ReplyCounters::default(); shape.ports.len()];
        let mut residence: Option<hdrhistogram::Histogram<u64>> = None;
        for core in cores {
            counters.add(&core.counters);
            for (sum, port) in ports.iter_mut().zip(&core.ports) {
                sum.add(port);
            }
            for (sum, queue) in queues.iter_mut().zip(&core.queues) {
                sum.add(queue);
            }
            for (sum, port) in replies.iter_mut().zip(&core.replies) {
                sum.add(port);
            }
            match &mut residence {
                // The cores' histograms have the same bounds, so they add without error.
                Some(sum) => sum.add(&core.residence_ns).unwrap_or_default(),
                None => residence = Some(core.residence_ns.clone()),
            }
        }
        // All cores have the same table.
        let addresses = |port: usize| {
            let of = |core: &CoreReport| core.addresses.get(port).copied();
            cores.first().and_then(of).unwrap_or_default()
        };
        let named = counters.named().map(|(name, n)| (name.to_owned(), n));
        let drops = DropReason::ALL
            .iter()
            .map(|&r| (r.name().to_owned(), counters.dropped(r)));
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seconds: up.as_secs_f64(),
            policy: shape.policy.clone(),
            kernel: shape.kernel.clone(),
            cores: shape.cores.clone(),
            slots: shape.slots,
            ways: shape.ways,
            pool_bytes: shape.pool_bytes,
            slots_in_use: cores.iter().map(|core| core.slots_in_use).sum(),
            held_in_use: cores.iter().map(|core| core.held_in_use).sum(),
            counters: named.into_iter().collect(),
            drops: drops.filter(|&(_, n)| n > 0).collect(),
            residence: residence.as_ref().map(Latency::of).unwrap_or_default(),
            hit_rate: hit_rate(&counters),
            load: shape
                .cores
                .iter()
                .zip(cores)
                .map(|(&cpu, core)| CoreLoad::new(cpu, &core.load))
                .collect(),
            ports: shape
                .ports
                .iter()
                .zip(ports.iter().zip(&queues).zip(&replies))
                .enumerate()
                .map(|(port, (shape, ((p, queue), replies)))| PortReport {
                    claims: cores.iter().map(|core| core.claims[port]).sum(),
                    addresses: addresses(port).learnt,
                    addresses_refused: addresses(port).refused,
                    name: shape.name.clone(),
                    handed_over: p.handed_over,
                    linearised: p.linearised,
                    replies_copied: replies.copied,
                    floods_spared: replies.spared,
                    refused: p.refused,
                    rx_queues: shape.rx_queues,
                    tx_queues: shape.tx_queues,
                    steering: shape.steering.clone(),
                    rules: shape.rules,
                    rules_refused: shape.rules_refused.clone(),
                    rx_frames: p.rx_frames,
                    rx_bytes: p.rx_bytes,
                    tx_frames: p.tx_frames,
                    tx_bytes: p.tx_bytes,
                    flooded: p.flooded,
                    tx_dropped: queue.dropped_total(),
                    tx_dropped_by_class: queue.dropped,
                    ecn_marked: queue.marked,
                    queue_frames_max: queue.frames_max,
                })
                .collect(),
            jobs: registry
                .status()
                .map(|job| JobReport {
                    id: job.id.0,
                    phase: job.phase.into(),
                    epoch: job.epoch.0,
                    workers: job.workers,
                    joined: job.joined.count_ones(),
                    left: job.left.count_ones(),
                    ps: job.ps,
                    on_card: on_card(job.id.0),
                })
                .collect(),
            switchml: SwitchmlReport::new(shape.switchml, up, &shape.ports, cores, directory),
            card: card.map(|card| {
                let mut traffic = CardTraffic::default();
                for core in cores.iter().filter_map(|core| core.card.as_ref()) {
                    traffic.add(core);
                }
                card.with(&traffic)
            }),
            frames_missing: None,
        }
    }

    /// One JSON object on one line.
    #[must_use]
    pub fn json(&self) -> String {
        // Strings, numbers, lists and maps with string keys: nothing that JSON cannot say.
        simd_json::to_string(self).unwrap_or_default() + "\n"
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cores: Vec<_> = self.cores.iter().map(ToString::to_string).collect();
        writeln!(
            f,
            "up {:.1} s, policy {}, kernel {}, CPU {}, {} of {} slots in use ({} ways, {} KiB), {} held",
            self.seconds,
            self.policy,
            self.kernel,
            cores.join(" "),
            self.slots_in_use,
            self.slots,
            self.ways,
            self.pool_bytes >> 10,
            self.held_in_use
        )?;
        for core in &self.load {
            writeln!(
                f,
                "CPU {:<8} busy {:.1} %, {:.1} frames a burst, {:.1} % of polls empty; cycles a frame:{}",
                core.cpu,
                core.busy_share * 100.0,
                core.frames_per_burst,
                core.empty_polls as f64 * 100.0 / core.polls.max(1) as f64,
                Stage::ALL
                    .iter()
                    .fold(String::new(), |mut line, (name, _)| {
                        if let Some(cycles) = core.cycles_per_frame.get(*name) {
                            let _ = write!(line, " {name} {cycles:.0}");
                        }
                        line
                    })
            )?;
        }
        writeln!(
            f,
            "pool         {:.2} % of arrivals hit",
            self.hit_rate * 100.0
        )?;
        writeln!(
            f,
            "{:<12} {:>12} {:>15} {:>12} {:>15} {:>9} {:>9} {:>9} {:>7}",
            "port",
            "rx frames",
            "rx bytes",
            "tx frames",
            "tx bytes",
            "flooded",
            "dropped",
            "marked",
            "waited"
        )?;
        for p in &self.ports {
            writeln!(
                f,
                "{:<12} {:>12} {:>15} {:>12} {:>15} {:>9} {:>9} {:>9} {:>7}",
                p.name,
                p.rx_frames,
                p.rx_bytes,
                p.tx_frames,
                p.tx_bytes,
                p.flooded,
                p.tx_dropped,
                p.ecn_marked,
                p.queue_frames_max
            )?;
        }
        // On one core there is nothing to steer.
        for p in self.ports.iter().filter(|_| self.cores.len() > 1) {
            write!(
                f,
                "{:<12} steering {}, {} queues in, {} out, {} frames handed over",
                p.name, p.steering, p.rx_queues, p.tx_queues, p.handed_over
            )?;
            match &p.rules_refused {
                Some(why) => writeln!(f, "; {why}")?,
                None => writeln!(f)?,
            }
        }
        for p in self.ports.iter().filter(|p| p.linearised > 0) {
            writeln!(
                f,
                "{:<12} {} frames came in several buffers and were copied into one",
                p.name, p.linearised
            )?;
        }
        for p in self.ports.iter().filter(|p| p.replies_copied > 0) {
            writeln!(
                f,
                "{:<12} {} SwitchML results were copied: the driver sends no frames of several segments",
                p.name, p.replies_copied
            )?;
        }
        for p in self.ports.iter().filter(|p| p.floods_spared > 0) {
            writeln!(
                f,
                "{:<12} {} floods were kept from it, for the SwitchML clients behind it",
                p.name, p.floods_spared
            )?;
        }
        for p in self.ports.iter().filter(|p| p.refused > 0) {
            writeln!(
                f,
                "{:<12} {} frames were refused: the interface did not take them in or out",
                p.name, p.refused
            )?;
        }
        for p in self.ports.iter().filter(|p| p.claims > 0) {
            writeln!(
                f,
                "{:<12} dropped {} frames that claimed the addresses of the switch, a job or a member",
                p.name, p.claims
            )?;
        }
        for p in self.ports.iter().filter(|p| p.addresses_refused > 0) {
            writeln!(
                f,
                "{:<12} {} frames had sources beyond the {} addresses that it may have (limits.addresses)",
                p.name, p.addresses_refused, p.addresses
            )?;
        }
        for p in self.ports.iter().filter(|p| p.tx_dropped > 0) {
            let classes: Vec<_> = p.tx_dropped_by_class.iter().map(u64::to_string).collect();
            writeln!(
                f,
                "{:<12} dropped by class, 0 to 7: {}",
                p.name,
                classes.join(" ")
            )?;
        }
        for j in &self.jobs {
            let ps = if j.ps { "with PS" } else { "no PS" };
            writeln!(
                f,
                "job {:<8} {}, epoch {}, {} of {} workers, {} left, {ps}{}",
                j.id,
                j.phase,
                j.epoch,
                j.joined,
                j.workers,
                j.left,
                if j.on_card { ", on the card" } else { "" }
            )?;
        }
        if let Some(switchml) = &self.switchml {
            write!(f, "{switchml}")?;
        }
        if let Some(card) = &self.card {
            write!(f, "{card}")?;
        }
        let list = |map: &BTreeMap<String, u64>| {
            map.iter()
                .filter(|&(_, &n)| n > 0)
                .fold(String::new(), |mut line, (name, n)| {
                    let _ = write!(line, " {name} {n}");
                    line
                })
        };
        writeln!(f, "counters    {}", list(&self.counters))?;
        writeln!(
            f,
            "drops       {}",
            if self.drops.is_empty() {
                " none".into()
            } else {
                list(&self.drops)
            }
        )?;
        let r = &self.residence;
        writeln!(
            f,
            "residence    p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs, max {:.1} µs over {} fragments",
            r.p50_us, r.p99_us, r.p999_us, r.max_us, r.count
        )?;
        if let Some(missing) = self.frames_missing {
            match missing {
                0 => writeln!(f, "buffers      all back in their pool")?,
                n => writeln!(f, "buffers      {n} MISSING from their pool")?,
            }
        }
        Ok(())
    }
}
