//! How it goes, for `tally-agent status`.

use super::warnings::{Host, Watch};
use crate::session::{Session, SessionState, Slowest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tally_endpoint::{Members, Ranks};
use tally_local::{Fallbacks, Operation, Presence};

/// Between two looks at a session.
const EVERY: Duration = Duration::from_millis(250);

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
    /// The jobs of its configuration.
    pub jobs: Vec<JobStatus>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number.
    pub job: u16,
    /// Its workers, on all hosts.
    pub workers: u8,
    /// Those of them that are on this one.
    pub ranks: Vec<RankStatus>,
}

/// A process, as of a moment ago.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its rank.
    pub rank: u8,
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
    /// Collectives that another library did in place of Tally, by kind, as the process reported them: 32 kinds at most.
    #[serde(default)]
    pub fallback: BTreeMap<String, u64>,
    /// Collectives that are submitted and not done.
    pub under_way: u64,
    /// Ranks that the first of them waits for, once it has done so for about a second.
    pub behind: Vec<u8>,
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

impl Done {
    pub(super) fn count(&mut self, operation: Operation) {
        let kind = match operation {
            Operation::Sum | Operation::Mean => &mut self.all_reduce,
            Operation::Broadcast { .. } => &mut self.broadcast,
            Operation::Barrier => &mut self.barrier,
        };
        *kind += 1;
    }
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
    pub(super) fn to_json(&self) -> String {
        // It is numbers and words, which JSON has.
        simd_json::serde::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
                    let all = r.behind.iter().fold(0, |all, rank| all | 1 << rank);
                    let ranks = ranks_words(all).unwrap_or_default();
                    writeln!(f, "    waiting for {ranks}")?;
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
        Ok(())
    }
}

/// What a process's thread tells the one that answers.
pub(super) struct Shared {
    state: Mutex<State>,
    presence: Presence,
}

struct State {
    came: Instant,
    looked: Instant,
    is_leaving: bool,
    status: RankStatus,
    fallbacks: Fallbacks,
    watch: Watch,
}

impl Shared {
    pub(super) fn new(rank: u8, pid: i32, uid: u32, window: u16, presence: Presence) -> Self {
        let now = Instant::now();
        let state = State {
            came: now,
            looked: now,
            is_leaving: false,
            status: RankStatus {
                rank,
                pid,
                uid,
                window,
                state: "opening its link".into(),
                ..RankStatus::default()
            },
            fallbacks: Fallbacks::default(),
            watch: Watch::default(),
        };
        Self {
            state: Mutex::new(state),
            presence,
        }
    }

    /// Whatever a thread did that crashed in it, the numbers are numbers.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pid(&self) -> i32 {
        self.state().status.pid
    }

    /// Whether its place will be free in a moment: also if the thread that serves it has not seen its end yet.
    pub(super) fn is_leaving(&self) -> bool {
        self.state().is_leaving || self.presence.is_over()
    }

    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.is_leaving = true;
        state.status.state = "leaving".into();
    }

    pub(super) fn status(&self) -> RankStatus {
        let state = self.state();
        RankStatus {
            seconds: state.came.elapsed().as_secs_f64(),
            warnings: state.watch.warnings(Instant::now()),
            fallback: state.fallbacks.counts().clone(),
            ..state.status.clone()
        }
    }

    /// Counts collectives that another library did.
    pub(super) fn add_fallback(&self, kind: &str, count: u64) {
        self.state().fallbacks.add(kind, count);
    }

    /// Takes the session's numbers, if it is time. Returns warnings that are to be said.
    pub(super) fn look(
        &self,
        now: Instant,
        session: &Session,
        words: &str,
        done: Done,
    ) -> Vec<String> {
        let mut state = self.state();
        let since = now.saturating_duration_since(state.looked);
        if since < EVERY {
            return Vec::new();
        }
        state.looked = now;
        let r = session.report();
        let warnings = state.watch.look(now, &r, Host::now);
        let s = &mut state.status;
        s.gbit_per_s = (r.bytes - s.bytes) as f64 * 8.0 / since.as_secs_f64() / 1e9;
        s.state.clear();
        s.state.push_str(words);
        s.epoch = r.epoch;
        s.collectives = r.collectives;
        s.done = done;
        s.under_way = r.waiting;
        s.behind = r.behind;
        s.slowest = r.slowest;
        s.bytes = r.bytes;
        s.fragments = r.fragments;
        s.from_switch = r.from_switch;
        s.from_ps = r.from_ps;
        let again = r.retransmissions;
        s.sent_again = again.timeout + again.early + again.nack;
        s.link_window = r.congestion.link_window;
        s.aggregation_window = r.congestion.aggregation_window;
        s.priority_min = r.priority_min;
        s.priority_max = r.priority_max;
        s.latency_us_p50 = r.latency_us.p50;
        s.latency_us_p99 = r.latency_us.p99;
        s.rto_us = r.rto_us;
        warnings
    }
}

/// What a session does or waits for.
pub(super) fn words(state: SessionState) -> String {
    match state {
        SessionState::Joining(None) => "waiting for the switch".into(),
        SessionState::Joining(Some(members)) => waiting_for(members),
        SessionState::Running { epoch } => format!("running, epoch {epoch}"),
        SessionState::Finished => "left".into(),
        SessionState::Failed => "failed".into(),
    }
}

fn ranks_words(ranks: u64) -> Option<String> {
    match ranks.count_ones() {
        0 => None,
        1 => Some(format!("rank {}", Ranks(ranks))),
        _ => Some(format!("ranks {}", Ranks(ranks))),
    }
}

fn waiting_for(Members { missing, ps, .. }: Members) -> String {
    let ranks = ranks_words(missing);
    let ps = (!ps).then(|| "the parameter server".to_owned());
    let who: Vec<_> = ranks.into_iter().chain(ps).collect();
    if who.is_empty() {
        return "waiting for the job to begin".into();
    }
    format!("waiting for {}", who.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            jobs: vec![JobStatus {
                job: 7,
                workers: 4,
                ranks: vec![rank],
            }],
        };
        let json = status.to_json();
        let back: Status = tally_config::parse("status", json.as_bytes()).unwrap();
        assert_eq!(back, status);
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
