//! The switch's report, filled in from what its threads know.
//!
//! Its shape, as JSON and as lines, is [`tally_schema::switch::report`].

mod rings;
mod sessions;

pub use crate::board::PortShape;
use crate::board::{Board, PortFacts};
use crate::config::{CardSection, Config};
use crate::fabric::FabricBoard;
use crate::messages::CoreReport;
use crate::plane::Directory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tally_engine::egress::{PortCounters, RareCounters};
use tally_engine::metrics::MetricSet;
use tally_engine::native::PoolUse;
use tally_engine::offload::CardTraffic;
use tally_engine::queue::QueueCounters;
use tally_engine::{Counters, JobCounters, PolicyName, PortId, Registry, registry};
use tally_kernels::Backend;
use tally_schema::metrics::Histogram;
use tally_schema::switch::report::{
    CardReport, ChildReport, CoreLoad, JobMembers, JobPhase, JobReport, Latency, MemberGauges,
    MemberReport, ParentReport, PortReport, RESIDENCE_BOUNDS_US, Report, SwitchGauges, TreeReport,
};
use tally_wire::{JobId, Rank, Time, UNIT_BYTES};

/// What does not change while the switch runs.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Name of the switch, if it has one.
    pub name: Option<String>,
    /// Version of the configuration that runs, which the control thread counts on.
    pub config_version: Arc<AtomicU64>,
    /// Policy of the pool.
    pub policy: PolicyName,
    /// SIMD backend of the sums.
    pub kernel: Backend,
    /// Slots of all shards.
    pub slots: u32,
    /// Slots that a fragment may be in.
    pub ways: u32,
    /// Bytes of frames that the slots may hold.
    pub pool_bytes: u64,
    /// The ports.
    pub board: Board,
    /// Links to other switches.
    pub fabric: FabricBoard,
    /// CPUs of the data cores.
    pub cores: Vec<usize>,
    /// SwitchML's sessions at one time and frames kept, at most, if the switch has SwitchML.
    pub switchml: Option<(u16, u32)>,
    /// Frames that rings may hold, if the switch serves rings.
    pub netreduce: Option<u32>,
}

impl Shape {
    /// From the configuration; `kernel` is the backend in use, and `ports` are as they came up.
    #[must_use]
    pub fn new(config: &Config, kernel: Backend, ports: Vec<PortShape>) -> Self {
        Self {
            name: config.name.clone(),
            config_version: Arc::new(AtomicU64::new(1)),
            policy: config.pool.policy,
            kernel,
            slots: config.slots(),
            ways: config.ways(),
            pool_bytes: config.pool_bytes(),
            board: Board::new(ports),
            fabric: FabricBoard::default(),
            cores: config.cores.clone(),
            switchml: config
                .switchml
                .as_ref()
                .map(|section| (section.sessions, section.held)),
            netreduce: config.netreduce.as_ref().map(|section| section.held),
        }
    }
}

/// The report of a switch `up` seconds after its start: the sum of what the cores say.
#[must_use]
pub fn report(
    shape: &Shape,
    up: Duration,
    cores: &[CoreReport],
    registry: &Registry,
    directory: &Directory,
    card: Option<CardReport>,
) -> Report {
    let mut counters = Counters::default();
    let mut in_use = PoolUse::default();
    let mut residence: Option<hdrhistogram::Histogram<u64>> = None;
    for core in cores {
        counters.add(&core.counters);
        in_use.add(&core.in_use);
        match &mut residence {
            // The cores' histograms have the same bounds, so they add without error.
            Some(sum) => sum.add(&core.residence_ns).unwrap_or_default(),
            None => residence = Some(core.residence_ns.clone()),
        }
    }
    let ports = shape.board.facts();
    let names: Vec<_> = ports.iter().map(|port| port.shape.clone()).collect();
    let drops = counters.drops.iter().filter(|&(_, frames)| frames > 0);
    let now = Time(up.as_nanos() as u64);
    Report {
        name: shape.name.clone(),
        config_version: shape.config_version.load(Relaxed),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        gauges: SwitchGauges {
            seconds: up.as_secs_f64(),
            slots: shape.slots,
            pool_bytes: shape.pool_bytes,
        },
        policy: shape.policy,
        kernel: shape.kernel,
        cores: shape.cores.clone(),
        ways: shape.ways,
        in_use,
        counters: by_name(&counters),
        drops: drops
            .map(|(reason, frames)| (reason.name().to_owned(), frames))
            .collect(),
        residence: residence.as_ref().map(latency).unwrap_or_default(),
        residence_histogram: buckets(residence.as_ref()),
        hit_rate: hit_rate(&counters),
        load: (shape.cores.iter().zip(cores))
            .map(|(&cpu, core)| CoreLoad::new(cpu, core.load))
            .collect(),
        ports: (ports.iter().enumerate())
            .map(|(number, port)| port_report(number, port, cores))
            .collect(),
        jobs: registry
            .status()
            .map(|job| JobReport {
                id: job.id.0,
                phase: phase(job.phase),
                epoch: job.epoch.0,
                members: JobMembers {
                    workers: job.workers,
                    joined: job.joined.count_ones(),
                    left: job.left.count_ones(),
                },
                ps: job.ps,
                parameter_servers: job.servers,
                on_card: (card.as_ref()).is_some_and(|card| card.jobs.contains(&job.id.0)),
                draining: job.draining,
                tree: tree(&names, registry, &job, now),
                tenant: job.tenant.as_deref().map(str::to_owned),
                previous_key: previous_key(&job, registry),
                payload_bytes: u32::from(registry.payload_units(job.id)) * UNIT_BYTES as u32,
                counters: job_counters(cores, job.id),
                ranks: members(&names, registry, job.id, now),
            })
            .collect(),
        switchml: sessions::report(shape.switchml, up, &names, cores, directory),
        netreduce: rings::report(shape.netreduce, cores),
        card: card.map(|card| card_report(card, cores)),
        fabric: shape.fabric.report(|port| {
            let name = names.get(usize::from(port));
            name.map_or_else(|| port.to_string(), |port| port.name.clone())
        }),
        events: tally_telemetry::recent(),
        frames_missing: None,
    }
}

/// The place of the switch in the tree of a job.
fn tree(
    ports: &[PortShape],
    registry: &Registry,
    job: &registry::JobStatus,
    now: Time,
) -> Option<TreeReport> {
    let (tree, hosts) = registry.tree(job.id)?;
    let parent = tree.parent.as_ref().map(|parent| {
        let status = registry.parent(job.id, now);
        let address = status.as_ref().and_then(|it| it.address);
        let port = address.and_then(|it| ports.get(usize::from(it.port.0)));
        let state = status.as_ref().and_then(|it| it.state);
        ParentReport {
            switch: parent.switch.as_str().to_owned(),
            rank: parent.rank.0,
            port: port.map(|port| port.name.clone()),
            state: state.map(|state| format!("{state:?}").to_lowercase()),
            silent_s: state.and(status).map(|it| it.silent.as_secs_f64()),
        }
    });
    let children = tree.children.iter().zip(hosts..).map(|(child, rank)| {
        let ranks = tree.ranks_of(hosts, Rank(rank));
        ChildReport {
            switch: child.switch.as_str().to_owned(),
            rank,
            first: ranks.map_or(0, |it| it.first()),
            ranks: child.ranks,
            joined: job.joined >> rank & 1 == 1,
        }
    });
    Some(TreeReport {
        total: tree.total,
        first: tree.first,
        ranks: tree.ranks(hosts),
        hosts,
        parent,
        children: children.collect(),
    })
}

/// The ranks that use the previous key of a job.
fn previous_key(job: &registry::JobStatus, registry: &Registry) -> Vec<String> {
    let first = registry.tree(job.id).map_or(0, |(tree, _)| tree.first);
    let ranks = (0..job.workers).filter(|rank| job.previous_key >> rank & 1 == 1);
    let ps = job.ps_previous_key.then(|| "ps".to_owned());
    let ranks = ranks.map(|rank| (first + u16::from(rank)).to_string());
    ranks.chain(ps).collect()
}

/// What the pool shards of all cores did for a job.
fn job_counters(cores: &[CoreReport], id: JobId) -> JobCounters {
    let of_cores = cores.iter().flat_map(|core| &core.jobs);
    let mut all = JobCounters::default();
    for (_, counters) in of_cores.filter(|(job, _)| *job == id) {
        all.add(counters);
    }
    all
}

/// The members of a job.
fn members(ports: &[PortShape], registry: &Registry, id: JobId, now: Time) -> Vec<MemberReport> {
    let port = |port: PortId| ports.get(usize::from(port.0));
    let tree = registry.tree(id);
    let rank = |local: Rank| match tree {
        Some((tree, hosts)) => tree.ranks_of(hosts, local).map(|ranks| ranks.first()),
        None => local.is_worker().then_some(u16::from(local.0)),
    };
    let switch = |local| tree.and_then(|(tree, hosts)| tree.child(hosts, local));
    let report = |it: registry::MemberStatus| MemberReport {
        rank: rank(it.rank),
        local_rank: tree.and(it.rank.is_worker().then_some(it.rank.0)),
        switch: switch(it.rank).map(|child| child.switch.as_str().to_owned()),
        part: (it.part.count() > 1).then_some(it.part.index()),
        port: port(it.member.port).map_or_else(String::new, |port| port.name.clone()),
        mac: it.member.mac,
        ip: it.member.ip,
        udp_port: it.member.udp_port,
        left: it.left,
        sent: it.sent.map(|sent| sent.0),
        gauges: MemberGauges {
            silent_s: it.silent.as_secs_f64(),
            awaiting: f64::from(it.awaiting) / 1000.0,
            behind: it.behind,
        },
    };
    registry.members(id, now).into_iter().map(report).collect()
}

/// What is counted by name.
fn by_name(set: &impl MetricSet) -> BTreeMap<String, u64> {
    let named = set.named().into_iter();
    named.map(|(name, n)| (name.to_owned(), n)).collect()
}

/// One port: `number` counts as the cores' lists do.
fn port_report(number: usize, facts: &PortFacts, cores: &[CoreReport]) -> PortReport {
    let shape = &facts.shape;
    let mut counters = PortCounters::default();
    let mut queue = QueueCounters::default();
    let mut rare = RareCounters::default();
    for core in cores {
        counters.add(&core.ports[number]);
        queue.add(&core.queues[number]);
        rare.add(&core.rare[number]);
    }
    // All cores have the same table.
    let addresses = cores.first().and_then(|core| core.addresses.get(number));
    let addresses = addresses.copied().unwrap_or_default();
    PortReport {
        name: shape.name.clone(),
        counters,
        rare,
        addresses,
        rx_queues: shape.rx_queues,
        tx_queues: shape.tx_queues,
        steering: shape.steering,
        rules: shape.rules,
        rules_refused: shape.rules_refused.clone(),
        tx_dropped: queue.dropped_total(),
        queue,
        link: facts.link,
        nic: facts.nic.clone(),
        state: facts.state,
        speed_mbps: facts.speed_mbps,
        neighbour: facts.neighbour.clone(),
    }
}

const fn phase(phase: registry::JobPhase) -> JobPhase {
    match phase {
        registry::JobPhase::Idle => JobPhase::Idle,
        registry::JobPhase::Waiting => JobPhase::Waiting,
        registry::JobPhase::Running => JobPhase::Running,
        registry::JobPhase::Paused => JobPhase::Paused,
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

/// Of a histogram of nanoseconds.
fn latency(histogram: &hdrhistogram::Histogram<u64>) -> Latency {
    let us = |nanos: u64| nanos as f64 / 1000.0;
    Latency {
        count: histogram.len(),
        p50_us: us(histogram.value_at_quantile(0.5)),
        p99_us: us(histogram.value_at_quantile(0.99)),
        p999_us: us(histogram.value_at_quantile(0.999)),
        max_us: us(histogram.max()),
    }
}

/// The same by buckets.
fn buckets(histogram: Option<&hdrhistogram::Histogram<u64>>) -> Histogram {
    let mut buckets = Histogram::new(&RESIDENCE_BOUNDS_US);
    let recorded = histogram.into_iter().flat_map(|of| of.iter_recorded());
    for value in recorded {
        let nanos = value.value_iterated_to() as f64;
        buckets.record(nanos / 1000.0, value.count_at_value());
    }
    buckets
}

/// The report of a card before its first answer.
#[must_use]
pub fn card(section: &CardSection) -> CardReport {
    CardReport {
        port: section.port.clone(),
        registers: section.registers.to_string(),
        ..CardReport::default()
    }
}

/// What the card's thread says, with what the cores counted.
fn card_report(card: CardReport, cores: &[CoreReport]) -> CardReport {
    let mut traffic = CardTraffic::default();
    for core in cores.iter().filter_map(|core| core.card.as_ref()) {
        traffic.add(core);
    }
    CardReport { traffic, ..card }
}
