//! One job of a load: its members, its fragments in flight and its counters.

use crate::flow::{Flow, Times};
use crate::measure::{Counts, Latencies};
use crate::members::Members;
use crate::pattern::{Sums, Template};
use crate::plan::{JobPlan, SwitchPlan};
use crate::rig::addresses;
use anyhow::Result;
use tally_endpoint::Time;
use tally_wire::{AuthTag, Epoch, EpochSecret, Flags, FragmentId, Header, Kind, Rank};

pub(super) struct JobRun<'a> {
    pub(super) plan: &'a JobPlan,
    pub(super) members: Members,
    pub(super) epoch: Epoch,
    /// Its secret, once it runs.
    pub(super) secret: Option<EpochSecret>,
    pub(super) templates: Vec<Template>,
    pub(super) sums: Sums,
    /// Which ranks a result on a port reaches, by port.
    pub(super) ranks_at: Vec<u64>,
    pub(super) flow: Option<Flow>,
    /// Whether nothing is sent again: a fragment is to be finished at once, or not at all.
    pub(super) is_seeking: bool,
    pub(super) counts: Counts,
    pub(super) latencies: Latencies,
}

impl<'a> JobRun<'a> {
    pub(super) fn new(
        now: Time,
        plan: &'a JobPlan,
        switch: &SwitchPlan,
        ports: usize,
    ) -> Result<Self> {
        let mut ranks_at = vec![0; ports];
        for (rank, host) in plan.workers.iter().enumerate() {
            ranks_at[host.port] |= 1 << rank;
        }
        let workers = plan.workers.len() as u8;
        Ok(Self {
            members: Members::new(now, plan, switch)?,
            epoch: Epoch(0),
            secret: None,
            templates: Vec::new(),
            sums: Sums::new(plan.id, plan.element, workers, plan.units),
            ranks_at,
            flow: None,
            is_seeking: false,
            counts: Counts::default(),
            latencies: Latencies::new(plan.priorities.values().len()),
            plan,
        })
    }

    pub(super) fn header(&self, kind: Kind, rank: Rank, bitmap: u64) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            priority: 0,
            element: self.plan.element,
            job: self.plan.id,
            epoch: self.epoch,
            fragment: FragmentId(0),
            rank,
            units: self.plan.units,
            bitmap,
            tag: AuthTag::NONE,
        }
    }

    /// The job runs: from here on its workers have frames to send.
    pub(super) fn run_in(&mut self, epoch: Epoch, switch: &SwitchPlan) {
        self.epoch = epoch;
        self.secret = self.members.secret();
        let hosts = self.plan.workers.iter().zip(0..);
        self.templates = hosts
            .map(|(host, rank)| {
                let rank = Rank(rank);
                let header = self.header(Kind::Data, rank, rank.bit());
                let addresses = addresses(switch, host, switch.base_port);
                Template::new(&addresses, &header, switch.shards)
            })
            .collect();
    }

    pub(super) fn sealed(&self, header: Header) -> Header {
        self.secret.map_or(header, |secret| secret.seal(header))
    }

    pub(super) fn is_drained(&self) -> bool {
        self.flow.as_ref().is_none_or(Flow::is_drained)
    }

    #[inline]
    pub(super) fn count(&mut self, header: &Header, times: &Times) {
        let counts = &mut self.counts;
        counts.results += 1;
        counts.fragments += u64::from(times.complete);
        counts.from_ps += u64::from(header.flags.has(Flags::FROM_PS));
        counts.collided += u64::from(header.flags.has(Flags::COLLISION));
        counts.marked += u64::from(header.flags.has(Flags::MARKED));
    }

    #[inline]
    pub(super) fn record(&mut self, now: u64, times: &Times) {
        let (class, _) = self.plan.priorities.of(times.seq);
        let latencies = &mut self.latencies;
        let since = |then: u64| now.saturating_sub(then).max(1);
        latencies.corrected[class].saturating_record(since(times.due_last));
        latencies
            .from_first
            .saturating_record(since(times.due_first));
        latencies.uncorrected.saturating_record(since(times.sent));
        let late = times.sent.saturating_sub(times.due_last).max(1);
        latencies.late.saturating_record(late);
    }
}
