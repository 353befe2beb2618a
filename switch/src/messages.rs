//! What threads tell each other.
//!
//! Data cores hand JOIN and LEAVE to the control thread ([`ControlFrame`]); it gives them orders
//! ([`CoreCommand`]), to which one answer is how they are ([`CoreReport`]). The way from a data core is
//! bounded, and it never waits on it. What data cores hand to each other is in
//! [`handover`](crate::handover).

use crate::egress::ReplyCounters;
use crate::load::Load;
use crate::members::Whereabouts;
use crate::steering::CardTraffic;
use crossbeam_channel::Sender;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::forwarding::PortAddresses;
use tally_engine::queue::QueueCounters;
use tally_engine::registry::Datagram;
use tally_engine::switchml::{Session, SessionId, SessionStatus, SwitchmlCounters};
use tally_engine::{Counters, Member, Roster};
use tally_wire::{Epoch, Header, JobId};

/// A JOIN or LEAVE from a data core.
pub struct ControlFrame {
    /// Where it came from.
    pub from: Member,
    /// Its parsed header.
    pub header: Header,
    /// Header and payload.
    pub datagram: Box<Datagram>,
}

/// What the control thread asks of a data core.
pub enum CoreCommand {
    /// Send this.
    Send(Member, Box<Datagram>),
    /// Start an epoch of the job that is the `index`-th in the configuration.
    Bind(Arc<Roster>, usize),
    /// End a job.
    Unbind(JobId),
    /// Say when all is taken that has arrived before.
    Drain(Sender<()>),
    /// Begin a SwitchML session, with what all cores know of where its workers are, and say whether there is room
    /// for it when it is known.
    BindSession(Arc<Session>, Arc<Whereabouts>, Sender<bool>),
    /// End a SwitchML session, and say when its frames are given back.
    UnbindSession(SessionId, Sender<()>),
    /// Say how SwitchML's sessions are; with a time, also which ranks others have waited for, longer than that.
    Sessions(Option<Duration>, Sender<Vec<SessionStatus>>),
    /// What the card's thread wants.
    Card(CardOrder),
    /// Say how things are.
    Report(Sender<CoreReport>),
}

/// What the card's thread asks of a data core.
pub enum CardOrder {
    /// Give this epoch of a job to the card, and say whether it still runs.
    Give(JobId, Epoch, Sender<bool>),
    /// Take a job back, and say when.
    TakeBack(JobId, Sender<()>),
    /// Take all jobs back, give up what waits for the card, and say when.
    TakeAllBack(Sender<()>),
    /// Send this to the card.
    Probe(Box<Probe>),
    /// Say how many contributions of each job have come.
    Arrivals(Sender<Vec<(JobId, u64)>>),
}

/// A frame that the card gives back as it is.
pub type Probe = [u8; 60];

/// What the control thread tells the card's.
pub enum CardNews {
    /// A job runs, or has other members.
    Bind(Arc<Roster>),
    /// A job has ended.
    Unbind(JobId),
}

/// How things are on one data core.
#[derive(Clone, Debug)]
pub struct CoreReport {
    /// What its shard did.
    pub counters: Counters,
    /// By port.
    pub ports: Vec<PortCounters>,
    /// What waited for each port, if it is one of this core's.
    pub queues: Vec<QueueCounters>,
    /// Nanoseconds from a fragment's first contribution to its result.
    pub residence_ns: hdrhistogram::Histogram<u64>,
    /// Slots taken now.
    pub slots_in_use: usize,
    /// Contributions held out of order now.
    pub held_in_use: u32,
    /// What it did for SwitchML, if the switch has that.
    pub switchml: Option<SwitchmlReport>,
    /// What went between it and the card, if there is one.
    pub card: Option<CardTraffic>,
    /// By ingress port, frames dropped because they claimed what is another's.
    pub claims: Vec<u64>,
    /// MAC addresses by port, of all cores together.
    pub addresses: Vec<PortAddresses>,
    /// What SwitchML adds to the ports' counters.
    pub replies: Vec<ReplyCounters>,
    /// Where its time went.
    pub load: Load,
}

/// How things are with SwitchML on one data core.
#[derive(Clone, Debug)]
pub struct SwitchmlReport {
    /// What its shard did; its drops are among those of the [`CoreReport`].
    pub counters: SwitchmlCounters,
    /// Frames that slots keep now.
    pub held_in_use: u32,
    /// Its part of each session.
    pub sessions: Vec<SessionStatus>,
}

/// Frames and bytes of one port, in both directions, as this core saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
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
    /// Frames received for another core's shard.
    pub handed_over: u64,
    /// Frames received in several buffers and copied into one.
    pub linearised: u64,
    /// Frames that it could not take in, or that it took to be sent and could not send.
    pub refused: u64,
}

impl PortCounters {
    /// Adds another core's counts.
    pub fn add(&mut self, other: &Self) {
        self.rx_frames += other.rx_frames;
        self.rx_bytes += other.rx_bytes;
        self.tx_frames += other.tx_frames;
        self.tx_bytes += other.tx_bytes;
        self.flooded += other.flooded;
        self.handed_over += other.handed_over;
        self.linearised += other.linearised;
        self.refused += other.refused;
    }
}
