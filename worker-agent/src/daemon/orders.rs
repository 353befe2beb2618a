//! What an operator orders of an agent that runs, and what comes of it.

use super::live::{Change, Refusal};
use crate::config::Changes;
use thiserror::Error;

/// What is ordered.
#[derive(Debug)]
pub(super) enum Order {
    /// To tell its jobs.
    List,
    /// To change one job.
    Change(Change),
    /// To read its file again.
    Reload,
    /// To take no new processes, or to take them again.
    Drain(bool),
    /// To have the program at its path take its place.
    Upgrade,
}

/// What came of an order.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// The configuration's version after it.
    pub(super) version: u64,
    /// What it changed.
    pub(super) changes: Changes,
    /// The jobs then.
    pub(super) jobs: Vec<JobLine>,
    /// Processes that the agent serves.
    pub(super) processes: usize,
    /// Whether it takes no new ones.
    pub(super) is_draining: bool,
    /// Processes that agents from before upgrades serve.
    pub(super) processes_before: usize,
    /// The process that has taken the agent's place.
    pub(super) successor: Option<u32>,
}

/// A job, as a list shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLine {
    pub(super) id: u16,
    pub(super) workers: u16,
    pub(super) ranks_per_host: u16,
    pub(super) priority: Option<u8>,
    /// Processes of it that the agent serves.
    pub(super) processes: usize,
}

/// Why an order was not carried out. Nothing has changed then.
#[derive(Debug, Error)]
pub(super) enum OrderError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("an upgrade is under way already (process {0})")]
    Upgrading(u32),
    #[error(
        "this agent's DPDK port has one owner, which is this process: `tally-agent drain`, and restart it when no \
         process is left"
    )]
    OnePort,
    #[error("the upgrade failed and this agent continues: {0}")]
    Upgrade(String),
}

/// Who wants to know what came of an order.
pub(super) type Reply = Box<dyn FnOnce(Result<Answer, OrderError>) + Send>;

/// An order, and who wants to know what came of it.
pub(super) struct Asked {
    pub(super) order: Order,
    /// The configuration's version that it is for.
    pub(super) expected: Option<u64>,
    pub(super) reply: Reply,
}
