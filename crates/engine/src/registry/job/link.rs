//! The link of a node to its parent: what each has told the other (TR-20 to TR-27).

use super::visit::{Refusal, Visit};
use super::{Incarnation, Job};
use crate::registry::{Fabric, JobConfig, ParentStatus};
use crate::roster::Member;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tally_wire::control::{Behind, Cause, LeaveCode, Place, Reason, Shape, State};
use tally_wire::{Accept, Epoch, EpochSecret, JobId, Key, Rank, Refuse, SwitchName, Time};

/// A node asks its parent for this long after a member asked the node.
pub(super) const ASKED: Duration = Duration::from_millis(1500);
/// How long LEAVE with an error is repeated without an answer.
pub(super) const LEAVE_FAILED: Duration = Duration::from_millis(300);
/// What the parent refused is told to members that ask within this time.
pub(super) const REFUSED: Duration = Duration::from_millis(1500);
/// The parent is called silent after this time: three heartbeats had no answer.
pub(super) const SILENT: Duration = Duration::from_millis(1500);
/// Between JOINs while the job does not run, and between LEAVEs (J-1, J-7).
const EAGER: Duration = Duration::from_millis(50);
/// Period of JOIN as a heartbeat.
const ALIVE: Duration = Duration::from_millis(400);

/// What a member brought that asked an idle node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) incarnation: Incarnation,
    /// It has been told that the incarnation runs.
    pub(super) running: bool,
    /// 0 while unknown.
    pub(super) units: u8,
    pub(super) shape: Shape,
    pub(super) at: Time,
}

impl Wanted {
    /// How much it tells of an epoch that has run.
    fn weight(&self) -> u8 {
        u8::from(self.incarnation != Incarnation::NONE) + u8::from(self.running)
    }
}

/// What the parent accepted last.
#[derive(Clone, Copy, Debug)]
pub(in crate::registry) struct Said {
    pub(super) incarnation: Incarnation,
    pub(super) secret: EpochSecret,
    pub(super) state: State,
    pub(super) base_port: u16,
    pub(super) shards: u8,
    pub(super) place: Place,
    pub(super) behind: Option<Behind>,
}

/// A job that has ended at this node, which the parent is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) incarnation: Incarnation,
    pub(super) code: LeaveCode,
    pub(super) cause: Option<Cause>,
    /// When it is no longer repeated; set when it is first sent.
    pub(super) until: Option<Time>,
}

/// A node's link to its parent.
#[derive(Clone, Debug)]
pub(in crate::registry) struct Link {
    /// The parent's, as the adapter has found it.
    pub(super) address: Option<Member>,
    pub(super) instance: u64,
    pub(super) challenge: u64,
    pub(super) wanted: Option<Wanted>,
    pub(super) said: Option<Said>,
    /// Why the parent does not let the node join yet.
    pub(super) refused: Option<Reason>,
    /// The switch that a parent itself waits for.
    pub(super) waits_for: Option<SwitchName>,
    /// What the parent refused for good.
    pub(super) verdict: Option<(Refusal, Time)>,
    /// The largest window that the parent serves.
    pub(super) window: u16,
    /// When the parent was heard last, or the node began to ask.
    pub(super) heard: Time,
    /// When the next datagram is due, while there is something to say.
    pub(super) next: Time,
    /// Ready and running, as the parent was told last.
    pub(super) told: (bool, bool),
    pub(super) departure: Option<Departure>,
    /// An epoch that has ended at the parent, while members here wait for one.
    pub(super) over: Option<Incarnation>,
    /// Since when the job forms without a member.
    pub(super) empty: Option<Time>,
    /// The parent has answered under the current switch key.
    pub(super) key_is_good: bool,
    /// The next datagram is under the previous switch key.
    turn: bool,
}

impl Link {
    /// The link of a job with a parent.
    pub(in crate::registry) fn of(config: &JobConfig) -> Option<Box<Self>> {
        let parent = config.tree.as_ref()?.parent?;
        Some(Box::new(Self {
            address: None,
            instance: instance_of(config.id, parent.switch, parent.rank.0),
            challenge: 0,
            wanted: None,
            said: None,
            refused: None,
            waits_for: None,
            verdict: None,
            window: u16::MAX,
            heard: Time(0),
            next: Time(0),
            told: (false, false),
            departure: None,
            over: None,
            empty: None,
            key_is_good: false,
            turn: false,
        }))
    }

    /// A member asks an idle node. What tells most of an epoch that has run is passed on.
    pub(super) fn want(&mut self, wanted: Wanted) {
        if self.wanted.is_none() {
            self.heard = wanted.at;
            self.next = wanted.at;
            self.refused = None;
        }
        match &mut self.wanted {
            Some(before) if before.weight() >= wanted.weight() => before.at = wanted.at,
            before => {
                *before = Some(wanted);
                self.next = wanted.at;
            }
        }
    }

    /// The key of the next datagram: the current one, and by turns the previous one until the
    /// parent has shown that it has the current one.
    pub(super) fn key<'a>(&mut self, fabric: &'a Fabric) -> &'a Key {
        self.turn = !self.turn;
        match &fabric.previous_key {
            Some(previous) if !self.key_is_good && !self.turn => previous,
            _ => &fabric.key,
        }
    }

    /// The time between two JOINs, or between two LEAVEs.
    pub(super) fn period(&self, now: Time, is_eager: bool) -> Duration {
        if !is_eager {
            return ALIVE;
        }
        // As in J-1: from 50 to 75 ms.
        let hash = (self.instance ^ now.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        EAGER + EAGER * (hash as u32) / (2 << 16)
    }

    /// The parent has answered under this key.
    fn answered(&mut self, visit: &Visit<'_>, key: &Key) {
        let fabric = visit.config.fabric.as_ref();
        self.key_is_good |= fabric.is_some_and(|fabric| fabric.key == *key);
    }

    /// Whether the parent has been silent for long.
    pub(super) fn is_silent(&self, now: Time) -> bool {
        now.since(self.heard) >= SILENT
    }
}

/// The same after a restart of this switch (TR-21).
fn instance_of(job: JobId, parent: SwitchName, rank: u8) -> u64 {
    let digest: [u8; 32] = Sha256::new()
        .chain_update(b"tally child switch")
        .chain_update(job.0.to_be_bytes())
        .chain_update([rank])
        .chain_update(parent.as_str())
        .finalize()
        .into();
    super::leading_u64(&digest) | 1
}

impl Job {
    /// Another switch key: the parent has to show that it has it.
    pub(in crate::registry) fn forget_key(&mut self) {
        if let Some(link) = &mut self.link {
            link.key_is_good = false;
        }
    }

    /// This node's local rank at its parent.
    pub(in crate::registry) fn rank_at_parent(&self) -> Option<Rank> {
        Some(self.config.tree.as_ref()?.parent?.rank)
    }

    /// How node and parent stand.
    pub(in crate::registry) fn parent_status(&self, now: Time) -> Option<ParentStatus> {
        let link = self.link.as_ref()?;
        Some(ParentStatus {
            switch: self.config.tree.as_ref()?.parent?.switch,
            address: link.address,
            state: link.said.map(|said| said.state),
            silent: now.since(link.heard),
        })
    }

    /// ACCEPT of the parent, under this key.
    pub(in crate::registry) fn accepted(
        &mut self,
        visit: &mut Visit<'_>,
        key: &Key,
        epoch: Epoch,
        accept: &Accept,
    ) {
        let id = self.config.id;
        let Some(link) = &mut self.link else { return };
        let Some(place) = accept.place.filter(|_| accept.instance == link.instance) else {
            return;
        };
        link.answered(visit, key);
        if accept.challenge != link.challenge && accept.state != State::Ended {
            // No answer to what this node asked last: perhaps of an epoch that is over, whose
            // instance was the same. The current challenge tells.
            link.next = visit.now;
            return;
        }
        link.challenge = accept.challenge;
        link.over = None;
        link.window = accept.window;
        let incarnation = Incarnation::said(epoch, accept.salt);
        let secret = match accept.wrapped {
            Some(wrapped) => key.unwrap(wrapped, id, epoch, accept.salt, accept.challenge),
            None => key.epoch_secret(id, epoch, accept.salt),
        };
        let said = Said {
            incarnation,
            secret,
            state: accept.state,
            base_port: accept.base_port,
            shards: accept.shards,
            place,
            behind: accept.behind,
        };
        self.parent_accepts(visit, said);
    }

    /// REFUSE of the parent, under this key if it is authentic.
    pub(in crate::registry) fn refused_by_parent(
        &mut self,
        visit: &mut Visit<'_>,
        key: Option<&Key>,
        epoch: Epoch,
        refuse: &Refuse,
    ) {
        let Some(link) = &mut self.link else { return };
        if refuse.instance != link.instance || key.is_none() && !refuse.reason.is_hint() {
            return;
        }
        if let Some(key) = key {
            link.answered(visit, key);
        }
        self.parent_refuses(visit, epoch, refuse);
    }
}
