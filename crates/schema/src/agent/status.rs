//! How an agent is: the answer to `tally-agent status`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since it was started.
    pub seconds: f64,
    /// The switch's address.
    pub switch: String,
    /// What makes all jobs slower than they could be, in words.
    pub warnings: Vec<String>,
    /// Version of its configuration: 1 at the start, one more with each change.
    #[serde(default)]
    pub configuration: u64,
    /// It takes no new processes.
    #[serde(default)]
    pub is_draining: bool,
    /// Another agent has taken its place; it serves the processes that it has until they leave.
    #[serde(default)]
    pub has_retired: bool,
    /// Jobs of the parameter server in it, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_server: Option<Vec<u16>>,
    /// The jobs of its configuration, and those that were removed and still have processes here.
    pub jobs: Vec<JobStatus>,
    /// Agents that this one took the place of, and that still serve processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Self>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number.
    pub job: u16,
    /// Its workers, on all hosts.
    pub workers: u16,
    /// Those of them that are on this one.
    pub ranks: Vec<RankStatus>,
}

/// A process, as of a moment ago.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its rank.
    pub rank: u16,
    /// Its number in the agent's PID namespace; 0 if it has none there.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Since it came.
    pub seconds: f64,
    /// What it does or waits for, in words.
    pub state: String,
    /// The job's incarnation, once it runs.
    pub epoch: Option<u16>,
    /// Collectives that are done.
    pub collectives: u64,
    /// The same, by kind: `all_reduce`, `broadcast` and `barrier`.
    #[serde(default)]
    pub done: Done,
    /// Collectives that another library did in place of Tally, by kind, as the process reported
    /// them: 32 kinds at most.
    #[serde(default)]
    pub fallback: BTreeMap<String, u64>,
    /// Collectives that are submitted and not done.
    pub under_way: u64,
    /// Ranks that the first of them waits for, once it has done so for about a second.
    pub behind: Vec<u16>,
    /// The slowest rank, as far as all have said how much they wait.
    pub slowest: Option<Slowest>,
    /// Bytes of those that are done.
    pub bytes: u64,
    /// Bits of collectives that were done in the last quarter of a second, per second, in 10^9.
    pub gbit_per_s: f64,
    /// Fragments contributed.
    pub fragments: u64,
    /// Results finished by the switch.
    pub from_switch: u64,
    /// Results finished by the parameter server.
    pub from_ps: u64,
    /// Contributions sent again.
    pub sent_again: u64,
    /// The most fragments that may be unfinished.
    pub window: u16,
    /// As many the links allow.
    pub link_window: u32,
    /// As many the switch's pool allows.
    pub aggregation_window: u32,
    /// The lowest priority so far.
    pub priority_min: Option<u8>,
    /// The highest.
    pub priority_max: Option<u8>,
    /// Half of all results came within this time.
    pub latency_us_p50: f64,
    /// 99 of 100 did.
    pub latency_us_p99: f64,
    /// Timeout now.
    pub rto_us: f64,
    /// What makes it slower than it could be, in words.
    pub warnings: Vec<String>,
}

/// Collectives that are done, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Sums and means.
    pub all_reduce: u64,
    /// Broadcasts.
    pub broadcast: u64,
    /// Barriers.
    pub barrier: u64,
}

/// The rank that awaits results for the least part of its time, in the last seconds: the one that
/// the others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slowest {
    /// Which.
    pub rank: u16,
    /// The part of its time in which it awaits results, from 0 to 1.
    pub awaiting: f64,
    /// The part of ours.
    pub ours: f64,
}

/// Ranks in ascending order, as `rank 3`, or `ranks 1, 70 to 90`.
#[must_use]
pub fn ranks_text(ranks: &[u16]) -> String {
    let mut text = if ranks.len() == 1 { "rank " } else { "ranks " }.to_owned();
    let runs = ranks.chunk_by(|a, b| *b == a.wrapping_add(1));
    // Two that follow one another are no shorter as a run.
    let parts = runs.flat_map(|run| match run {
        [first, _, .., last] => vec![format!("{first} to {last}")],
        few => few.iter().map(u16::to_string).collect(),
    });
    text.push_str(&parts.collect::<Vec<_>>().join(", "));
    text
}

/// Numbers by kind, as `all_gather 3, send 1`.
struct Kinds<'a>(&'a [(&'a str, u64)]);

impl fmt::Display for Kinds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (kind, count)) in self.0.iter().filter(|(_, count)| *count > 0).enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{kind} {count}")?;
        }
        Ok(())
    }
}

impl Status {
    /// As JSON, for people to read as well.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Numbers, words and lists of them, which JSON has.
        simd_json::serde::to_string_pretty(self).unwrap_or_default()
    }
}

impl Status {
    /// Lines about the agent itself.
    fn fmt_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            pid,
            seconds,
            switch,
            ..
        } = self;
        writeln!(
            f,
            "tally-agent {version}, process {pid}, for {seconds:.0} s; switch {switch}"
        )?;
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        if self.is_draining {
            writeln!(f, "drained: new processes are refused")?;
        }
        if self.has_retired {
            writeln!(f, "retired: another agent serves new processes")?;
        }
        if let Some(jobs) = &self.parameter_server {
            let jobs: Vec<_> = jobs.iter().map(u16::to_string).collect();
            writeln!(f, "parameter server of jobs: {}", jobs.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_head(f)?;
        for job in &self.jobs {
            let JobStatus {
                job,
                workers,
                ranks,
            } = job;
            let here = ranks.len();
            writeln!(f, "job {job}: {workers} workers, {here} of them here")?;
            for r in ranks {
                writeln!(
                    f,
                    "  rank {}: process {} of user {}, for {:.0} s: {}",
                    r.rank, r.pid, r.uid, r.seconds, r.state
                )?;
                writeln!(
                    f,
                    "    {} collectives done and {} under way, {:.3} GB, {:.3} Gbit/s",
                    r.collectives,
                    r.under_way,
                    r.bytes as f64 / 1e9,
                    r.gbit_per_s
                )?;
                let Done {
                    all_reduce,
                    broadcast,
                    barrier,
                } = r.done;
                if r.done != Done::default() {
                    let kinds = [
                        ("all_reduce", all_reduce),
                        ("broadcast", broadcast),
                        ("barrier", barrier),
                    ];
                    writeln!(f, "    done by kind: {}", Kinds(&kinds))?;
                }
                if !r.fallback.is_empty() {
                    let kinds: Vec<_> = r.fallback.iter().map(|(k, n)| (k.as_str(), *n)).collect();
                    let all = r
                        .fallback
                        .values()
                        .fold(0, |all: u64, n| all.saturating_add(*n));
                    let kinds = Kinds(&kinds);
                    writeln!(f, "    {all} collectives done by another library: {kinds}")?;
                }
                if !r.behind.is_empty() {
                    writeln!(f, "    waiting for {}", ranks_text(&r.behind))?;
                }
                if let Some(slowest) = r.slowest {
                    writeln!(
                        f,
                        "    waiting for {:.0} % of its time, rank {}, the slowest, for {:.0} %",
                        100.0 * slowest.ours,
                        slowest.rank,
                        100.0 * slowest.awaiting
                    )?;
                }
                let priorities = r.priority_min.zip(r.priority_max);
                let priorities = priorities.map_or("none yet".into(), |(least, most)| {
                    format!("{least} to {most}")
                });
                writeln!(
                    f,
                    "    {} fragments: {} from the switch, {} from the parameter server, {} sent again; \
                     windows {} and {} of {}; priorities {priorities}; \
                     latency p50 {:.0} us, p99 {:.0} us, timeout {:.0} us",
                    r.fragments,
                    r.from_switch,
                    r.from_ps,
                    r.sent_again,
                    r.link_window,
                    r.aggregation_window,
                    r.window,
                    r.latency_us_p50,
                    r.latency_us_p99,
                    r.rto_us
                )?;
                for warning in &r.warnings {
                    writeln!(f, "    warning: {warning}")?;
                }
            }
        }
        for before in &self.before {
            write!(f, "from before the upgrade: {before}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::round_trip;

    #[test]
    fn a_status_has_the_keys_that_tools_rely_on() {
        let status: Status = round_trip(include_str!("../../golden/agent-status.json"));
        assert_eq!(status.jobs[0].ranks[0].done.all_reduce, 5);
    }

    #[test]
    fn status_survives_its_journey_and_can_be_read() {
        let rank = RankStatus {
            rank: 3,
            state: "running, epoch 2".into(),
            behind: vec![0, 5],
            done: Done {
                all_reduce: 8,
                broadcast: 0,
                barrier: 1,
            },
            fallback: [("all_gather".to_owned(), 3), ("send".to_owned(), 2)].into(),
            slowest: Some(Slowest {
                rank: 5,
                awaiting: 0.25,
                ours: 0.75,
            }),
            priority_min: Some(1),
            priority_max: Some(9),
            warnings: vec!["all wait for rank 0".into()],
            ..RankStatus::default()
        };
        let status = Status {
            version: "1".into(),
            pid: 5,
            seconds: 1.5,
            switch: "10.84.0.254".into(),
            warnings: vec!["payload_bytes is small".into()],
            configuration: 3,
            is_draining: false,
            has_retired: false,
            parameter_server: None,
            before: Vec::new(),
            jobs: vec![JobStatus {
                job: 7,
                workers: 4,
                ranks: vec![rank],
            }],
        };
        assert_eq!(crate::golden::parse::<Status>(&status.to_json()), status);
        let text = status.to_string();
        assert!(text.contains("job 7: 4 workers, 1 of them here"), "{text}");
        assert!(text.contains("rank 3: process 0"), "{text}");
        assert!(text.contains("waiting for ranks 0, 5\n"), "{text}");
        assert!(text.contains("priorities 1 to 9"), "{text}");
        assert!(
            text.contains("\n    done by kind: all_reduce 8, barrier 1\n"),
            "{text}"
        );
        assert!(
            text.contains("\n    5 collectives done by another library: all_gather 3, send 2\n"),
            "{text}"
        );
        assert!(
            text.contains("\nwarning: payload_bytes is small\njob 7"),
            "{text}"
        );
        assert!(
            text.ends_with("\n    warning: all wait for rank 0\n"),
            "{text}"
        );
    }
}
