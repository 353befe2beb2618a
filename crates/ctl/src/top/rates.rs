//! Rates from reports.
//!
//! Ports, cores and drops are counted by the switch: their rates are those of the last interval.
//! A job's goodput is the progress that its members told in their heartbeats, two a second, so it
//! is taken over several seconds.

use crate::show::Snapshot;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use tally_schema::switch::report::{JobReport, Report};

/// Time over which a job's goodput is taken.
const WINDOW: Duration = Duration::from_secs(5);

/// A job's place in its tensors at a time.
#[derive(Clone, Copy, Debug)]
struct Progress {
    at: Instant,
    epoch: u16,
    /// The first fragment that not all workers have contributed to.
    fragment: u32,
}

/// What was seen before.
#[derive(Debug, Default)]
pub struct History {
    last: Option<(Instant, Report)>,
    jobs: BTreeMap<u16, VecDeque<Progress>>,
}

/// How fast a job is.
#[derive(Clone, Debug)]
pub struct JobRate {
    /// The job.
    pub job: JobReport,
    /// Bits of gradients that all its workers had summed, in a second; absent if it is not known.
    pub bits_per_s: Option<f64>,
}

/// How fast a port is.
#[derive(Clone, Debug, PartialEq)]
pub struct PortRate {
    /// Its name.
    pub name: String,
    /// Bits received in a second.
    pub rx_bits_per_s: f64,
    /// Frames received in a second.
    pub rx_frames_per_s: f64,
    /// Bits sent in a second.
    pub tx_bits_per_s: f64,
    /// Frames sent in a second.
    pub tx_frames_per_s: f64,
    /// Frames dropped at its queue in a second.
    pub dropped_per_s: f64,
}

/// What the screen shows.
#[derive(Clone, Debug)]
pub struct Rates {
    /// Version of the configuration.
    pub version: u64,
    /// The last report.
    pub report: Report,
    /// Jobs, those that have members first.
    pub jobs: Vec<JobRate>,
    /// Ports.
    pub ports: Vec<PortRate>,
    /// CPU and busy share of each data core, in the last interval.
    pub cores: Vec<(usize, f64)>,
    /// Frames dropped in a second, by reason, most first; only reasons that occurred.
    pub drops: Vec<(String, f64)>,
}

impl History {
    /// Takes one more look at the switch.
    pub fn add(&mut self, now: Instant, snapshot: Snapshot) -> Rates {
        let Snapshot {
            version, report, ..
        } = snapshot;
        let before = self.last.take();
        // A switch that has restarted counts from its own start.
        let before = before.filter(|(_, it)| it.gauges.seconds <= report.gauges.seconds);
        let (seconds, since) = match &before {
            Some((at, before)) => {
                let seconds = now.duration_since(*at).as_secs_f64();
                (seconds.max(1e-3), report.since(before))
            }
            None => (report.gauges.seconds.max(1e-3), report.clone()),
        };
        let per_s = |n: u64| n as f64 / seconds;
        let ports = since.ports.iter().map(|port| PortRate {
            name: port.name.clone(),
            rx_bits_per_s: per_s(port.counters.rx_bytes) * 8.0,
            rx_frames_per_s: per_s(port.counters.rx_frames),
            tx_bits_per_s: per_s(port.counters.tx_bytes) * 8.0,
            tx_frames_per_s: per_s(port.counters.tx_frames),
            dropped_per_s: per_s(port.tx_dropped),
        });
        let mut drops: Vec<_> = (since.drops.iter())
            .map(|(reason, &n)| (reason.clone(), per_s(n)))
            .collect();
        drops.sort_by(|a, b| b.1.total_cmp(&a.1));
        let rates = Rates {
            version,
            jobs: self.jobs(now, &report),
            ports: ports.collect(),
            cores: since
                .load
                .iter()
                .map(|it| (it.cpu, it.busy_share))
                .collect(),
            drops,
            report: report.clone(),
        };
        self.last = Some((now, report));
        rates
    }

    fn jobs(&mut self, now: Instant, report: &Report) -> Vec<JobRate> {
        self.jobs
            .retain(|id, _| report.jobs.iter().any(|job| job.id == *id));
        let mut rates: Vec<_> = (report.jobs.iter())
            .map(|job| JobRate {
                bits_per_s: self.goodput(now, job),
                job: job.clone(),
            })
            .collect();
        rates.sort_by_key(|rate| (rate.job.ranks.is_empty(), rate.job.id));
        rates
    }

    fn goodput(&mut self, now: Instant, job: &JobReport) -> Option<f64> {
        let progress = self.jobs.entry(job.id).or_default();
        let workers = job.ranks.iter().filter(|it| it.rank.is_some() && !it.left);
        let mut least: Option<u32> = None;
        for worker in workers {
            let sent = worker.sent?;
            // Numbers wrap.
            let is_less = |least: u32| sent.wrapping_sub(least).cast_signed() < 0;
            if least.is_none_or(is_less) {
                least = Some(sent);
            }
        }
        let new = Progress {
            at: now,
            epoch: job.epoch,
            fragment: least?,
        };
        progress.retain(|it| it.epoch == new.epoch);
        progress.push_back(new);
        while progress.len() > 2 && now.duration_since(progress[1].at) >= WINDOW {
            progress.pop_front();
        }
        let first = progress.front()?;
        let seconds = now.duration_since(first.at).as_secs_f64();
        if seconds <= 0.0 || job.payload_bytes == 0 {
            return None;
        }
        let fragments = new
            .fragment
            .wrapping_sub(first.fragment)
            .cast_signed()
            .max(0);
        Some(f64::from(fragments) * f64::from(job.payload_bytes) * 8.0 / seconds)
    }
}
