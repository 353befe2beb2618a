//! How it goes, for `tally-agent status`.

use super::warnings::{Host, Watch};
use crate::config::WorkerConfig;
use crate::session::{CollectiveKind, SessionReport, SessionState, missing};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tally_local::{Fallbacks, PendingPeer, Presence};
use tally_schema::agent::status::{Done, RankStatus};
use tally_wire::Key;

/// Between two looks at a session.
const EVERY: Duration = Duration::from_millis(250);

/// Counts a collective that is done.
pub(super) const fn count(done: &mut Done, kind: CollectiveKind) {
    let kind = match kind {
        CollectiveKind::Sum | CollectiveKind::Mean => &mut done.all_reduce,
        CollectiveKind::Broadcast { .. } => &mut done.broadcast,
        // No process asks for a maximum.
        CollectiveKind::Barrier | CollectiveKind::Max => &mut done.barrier,
    };
    *kind += 1;
}

/// What a process's thread tells the one that answers.
pub(super) struct Shared {
    state: Mutex<State>,
    presence: Presence,
    workers: u16,
    /// The job's key as the configuration has it, for the thread to take if it is another one.
    key: Mutex<Key>,
    has_new_key: AtomicBool,
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
    /// Of rank `rank` among `workers`.
    pub(super) fn new(
        worker: &WorkerConfig,
        (rank, workers): (u16, u16),
        pending: &PendingPeer,
    ) -> Self {
        let now = Instant::now();
        let state = State {
            came: now,
            looked: now,
            is_leaving: false,
            status: RankStatus {
                rank,
                pid: pending.pid(),
                uid: pending.uid(),
                window: worker.window,
                state: "opening its link".into(),
                ..RankStatus::default()
            },
            fallbacks: Fallbacks::default(),
            watch: Watch::default(),
        };
        Self {
            state: Mutex::new(state),
            presence: pending.presence(),
            workers,
            key: Mutex::new(worker.job.key.clone()),
            has_new_key: AtomicBool::new(false),
        }
    }

    /// The job has this key in the configuration.
    pub(super) fn set_key(&self, key: &Key) {
        let mut ours = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        if *ours != *key {
            *ours = key.clone();
            self.has_new_key.store(true, Ordering::Release);
        }
    }

    /// The job's new key, once.
    pub(super) fn take_key(&self) -> Option<Key> {
        let is_new = self.has_new_key.load(Ordering::Relaxed)
            && self.has_new_key.swap(false, Ordering::Acquire);
        let key = || self.key.lock().unwrap_or_else(PoisonError::into_inner);
        is_new.then(|| key().clone())
    }

    /// Ranks of its job.
    pub(super) fn workers(&self) -> u16 {
        self.workers
    }

    /// Also after a thread crashed in it the numbers are valid.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pid(&self) -> i32 {
        self.state().status.pid
    }

    /// Whether its place will be free in a moment: also if the thread that serves it has not seen
    /// its end yet.
    pub(super) fn is_leaving(&self) -> bool {
        self.state().is_leaving || self.presence.is_over()
    }

    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.is_leaving = true;
        state.status.state = "leaving".into();
    }

    /// What it waits for before there is a session.
    pub(super) fn say_state(&self, words: &str) {
        let mut state = self.state();
        if state.status.state != words {
            state.status.state = words.into();
        }
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
        report: impl FnOnce() -> SessionReport,
        words: &str,
        done: Done,
    ) -> Vec<String> {
        let mut state = self.state();
        let since = now.saturating_duration_since(state.looked);
        if since < EVERY {
            return Vec::new();
        }
        state.looked = now;
        let r = report();
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

/// What a session does or waits for, whose workers are `parts` ranks each.
pub(super) fn words(state: SessionState, parts: u16) -> String {
    match state {
        SessionState::Joining(None) => "waiting for the switch".into(),
        SessionState::Joining(Some(members)) => {
            let missing = missing(members, parts).unwrap_or_else(|| "the job to begin".into());
            format!("waiting for {missing}")
        }
        SessionState::Running { epoch } => format!("running, epoch {epoch}"),
        SessionState::Finished => "left".into(),
        SessionState::Failed => "failed".into(),
    }
}
