//! How each worker of an incarnation must end: what the rules of membership (J-6, J-7, J-9) say of
//! what happened to it. Nothing is asked of the code that is judged.

use super::data::Facts;
use crate::address::SessionId;
use std::rc::Rc;
use std::time::Duration;
use tally_endpoint::{Awaited, WorkerError};
use tally_wire::control::LeaveCode;
use tally_wire::{Epoch, Time};

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With all its results.
    Finished,
    /// With an error.
    Failed(WorkerError),
    /// It was killed.
    Killed,
}

/// One worker of an incarnation.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Its process, once started.
    pub session: Option<SessionId>,
    /// How it ended, and when.
    pub ending: Option<(Time, Ending)>,
    /// Whether it was told that the job runs.
    pub has_run: bool,
    /// Messages submitted.
    pub submitted: usize,
    /// Whether it had all its results when the switch started last: it has left, and may linger.
    pub had_left: bool,
}

/// One incarnation of a job, and what happened to it.
pub struct Incarnation {
    /// What it does.
    pub facts: Rc<Facts>,
    /// By rank.
    pub members: Vec<Member>,
    /// The epoch that its workers were told.
    pub epoch: Option<Epoch>,
    /// Ranks that were killed, and those whose users stopped them.
    pub killed: u64,
    /// See there.
    pub interrupted: u64,
    /// Whether the operator removed the job during its life.
    pub removed: bool,
    /// When that happened last.
    pub hurt_at: Time,
    /// When the switch last started during its life.
    pub switch_started_at: Option<Time>,
    /// Results that its workers had together when there was progress last, and when that was.
    pub progress: (u64, Time),
}

impl Incarnation {
    /// Whether all workers have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.members.iter().all(|m| m.ending.is_some())
    }

    /// Whether a process was killed or stopped, or is meant to fail.
    #[must_use]
    pub fn is_hurt(&self) -> bool {
        self.removed || self.killed | self.interrupted != 0 || self.facts.overflow.is_some()
    }

    /// Ranks that have gone without all having their results: others wait for them in vain.
    fn gone(&self) -> u64 {
        let failed = |(rank, m): (usize, &Member)| {
            let failed = matches!(m.ending, Some((_, Ending::Failed(_))));
            u64::from(failed) << rank
        };
        let failed = self.members.iter().enumerate().map(failed);
        self.killed | self.interrupted | failed.fold(0, |all, bit| all | bit)
    }

    /// Ranks that may be missed: gone, or finished before the switch started last.
    #[must_use]
    pub fn excused(&self) -> u64 {
        self.gone() | self.finished_before_switch()
    }

    /// A switch of the job starts. `results` counts those of a worker that runs.
    pub fn switch_started(&mut self, now: Time, results: impl Fn(SessionId) -> Option<u64>) {
        self.switch_started_at = Some(now);
        let fragments = self.facts.options.fragments();
        for member in &mut self.members {
            let results = member.session.and_then(&results);
            member.had_left = results == Some(fragments);
        }
    }

    /// Ranks that had finished before the switch started last. It knows nothing of them, and they
    /// do not come back (J-7).
    fn finished_before_switch(&self) -> u64 {
        let Some(start) = self.switch_started_at else {
            return 0;
        };
        let finished = |(rank, m): (usize, &Member)| {
            let before = matches!(m.ending, Some((at, Ending::Finished)) if at <= start);
            u64::from(before || m.had_left) << rank
        };
        let finished = self.members.iter().enumerate().map(finished);
        finished.fold(0, |all, bit| all | bit)
    }

    /// Whether a worker of this incarnation may end with this error.
    ///
    /// # Errors
    /// Why not.
    pub fn validate(&self, rank: usize, error: &WorkerError) -> Result<(), String> {
        let lost = self.finished_before_switch();
        let excused = self.gone() | lost;
        let bit = |rank: &Option<tally_wire::Rank>| rank.map_or(0, tally_wire::Rank::bit);
        let ok = match error {
            WorkerError::Interrupted => self.interrupted >> rank & 1 == 1,
            WorkerError::Overflow { fragment } => self.facts.overflow == Some(*fragment),
            WorkerError::MemberFailed {
                code: Some(LeaveCode::Overflow),
                fragment,
                ..
            } => fragment.is_some() && self.facts.overflow == *fragment,
            WorkerError::MemberFailed {
                rank,
                code: Some(LeaveCode::Interrupted),
                ..
            } => bit(rank) & self.interrupted != 0,
            WorkerError::Removed => self.removed,
            WorkerError::MemberLost { rank } => bit(rank) & excused != 0,
            WorkerError::NotStarted {
                missing,
                missing_ps: None,
                ..
            } => missing.0 != 0 && missing.0 & !excused == 0,
            // A fragment was lost with the switch, and no worker that has its result is left.
            WorkerError::Stalled {
                awaited: Awaited::NoRank,
                missing_ps: None,
                ..
            } => lost != 0,
            _ => false,
        };
        if ok {
            return Ok(());
        }
        Err(format!(
            "ended with \"{error}\" ({error:?}); killed {:#x}, interrupted {:#x}, overflow {:?}, \
             finished before the switch started {lost:#x}",
            self.killed, self.interrupted, self.facts.overflow
        ))
    }

    /// Whether a worker of this incarnation may end with all its results.
    ///
    /// # Errors
    /// Why not.
    pub fn validate_finish(&self, results: u64) -> Result<(), String> {
        let fragments = self.facts.options.fragments();
        if results != fragments {
            return Err(format!("finished with {results} of {fragments} results"));
        }
        match self.facts.overflow {
            Some(fragment) => Err(format!("finished, although fragment {fragment} overflows")),
            None => Ok(()),
        }
    }

    /// When the incarnation must be over, once faults have ended at `quiet`.
    #[must_use]
    pub fn due(&self, quiet: Time, member_timeout: Duration, join_timeout: Duration) -> Time {
        let from = quiet
            .max(self.hurt_at)
            .max(self.switch_started_at.unwrap_or_default());
        // Those that have not heard that the job runs wait for it as long as they are told to; and
        // the last incarnation may have left members behind that have to be missed first.
        let forming = self.members.iter().any(|m| !m.has_run);
        let joining = if forming {
            join_timeout
        } else {
            Duration::ZERO
        };
        from.after(joining + member_timeout + SLACK)
    }
}

/// What work and repair may take when nothing goes wrong any more.
pub const SLACK: Duration = Duration::from_secs(8);
