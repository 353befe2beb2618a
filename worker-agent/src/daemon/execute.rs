//! What an agent does on orders, in the order in which they came.
//!
//! Its thread does so between two connections, so that nothing changes while a process is admitted.
//! An upgrade is the exception: the successor gets ready meanwhile.

use super::control::ControlSocket;
use super::orders::{Answer, Asked, JobLine, Order, OrderError, Reply};
use super::server::ServerHandle;
use super::succession::{self, Retired, Successor};
use super::{Agent, access};
use crate::config::{AgentJob, AgentTransport, Changes, control_socket_of};
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::time::{Duration, Instant};
use tally_local::Listener;
use tally_program::service;

/// For the parameter server to leave its jobs, before a successor's joins them.
const SERVER_LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// An upgrade whose successor gets ready.
pub(super) struct Upgrade {
    pid: u32,
    ready: Receiver<Result<Successor, String>>,
    reply: Option<Reply>,
}

impl Agent {
    /// Carries out what has been ordered.
    pub(super) fn take_orders(&mut self) {
        while let Ok(asked) = self.orders.try_recv() {
            let Asked {
                order,
                expected,
                reply,
            } = asked;
            if let Order::Upgrade = order {
                self.begin_upgrade(reply);
            } else {
                reply(self.execute(order, expected));
            }
        }
        self.look_at_successor();
    }

    fn execute(&mut self, order: Order, expected: Option<u64>) -> Result<Answer, OrderError> {
        let changes = match order {
            Order::List | Order::Upgrade => Changes::default(),
            Order::Change(change) => self.live.change(change, expected)?,
            Order::Reload => self.live.reload(expected)?,
            Order::Drain(on) => {
                let mut changes = Changes::default();
                if std::mem::replace(&mut self.is_draining, on) != on {
                    let what = if on {
                        "drained: new processes are refused"
                    } else {
                        "drained no more: new processes are taken"
                    };
                    changes.applied.push(what.into());
                }
                changes
            }
        };
        self.take_effect(&changes);
        Ok(self.answer_with(changes))
    }

    /// Reads the file again, because of a signal.
    pub(super) fn reload_file(&mut self) {
        if self.retired.is_some() {
            return;
        }
        match self.live.reload(None) {
            Ok(changes) => {
                if changes.is_empty() {
                    self.log
                        .info("configuration read again: nothing is different");
                }
                self.take_effect(&changes);
            }
            Err(refusal) => self.log.error(format_args!("reload refused: {refusal}")),
        }
    }

    /// Says what has changed, and lets the parameter server know.
    fn take_effect(&self, changes: &Changes) {
        for line in &changes.applied {
            self.log.info(format_args!("changed: {line}"));
        }
        for line in &changes.needs_restart {
            self.log.warn(format_args!("not changed: {line}"));
        }
        let config = self.live.config();
        for (job, rank) in self.ranks.keys() {
            if !changes.applied.is_empty() && !config.jobs.iter().any(|it| it.id == *job) {
                self.log.info(format_args!(
                    "job {job} rank {rank}: stays until its process leaves, although the job was removed"
                ));
            }
        }
        for job in &config.jobs {
            let ranks = self.ranks.iter().filter(|((id, _), _)| *id == job.id);
            ranks.for_each(|(_, shared)| shared.set_key(&job.key));
        }
        if !changes.applied.is_empty() {
            self.before.clone().take_jobs(config.jobs.clone());
        }
        if let (Some(server), Some(config)) = (&self.server, config.parameter_server())
            && !changes.applied.is_empty()
        {
            server.set_jobs(config.jobs);
        }
    }

    fn answer_with(&self, changes: Changes) -> Answer {
        let line = |of: &AgentJob| JobLine {
            id: of.id,
            workers: of.workers,
            ranks_per_host: of.ranks_per_host,
            priority: of.priority,
            processes: self.ranks.keys().filter(|(job, _)| *job == of.id).count(),
        };
        let before = self.before.clone().statuses();
        let ranks = before
            .iter()
            .flat_map(|it| &it.jobs)
            .map(|it| it.ranks.len());
        Answer {
            version: self.live.version(),
            changes,
            jobs: self.live.config().jobs.iter().map(line).collect(),
            processes: self.ranks.len(),
            is_draining: self.is_draining,
            processes_before: ranks.sum(),
            successor: None,
        }
    }

    fn begin_upgrade(&mut self, reply: Reply) {
        if let Some(upgrade) = &self.upgrade {
            return reply(Err(OrderError::Upgrading(upgrade.pid)));
        }
        if matches!(self.live.config().transport, AgentTransport::Dpdk { .. }) {
            return reply(Err(OrderError::OnePort));
        }
        let version = self.live.version();
        let successor = match Successor::start(&self.origin, &self.listener, version) {
            Ok(successor) => successor,
            Err(error) => return reply(Err(OrderError::Upgrade(error.to_string()))),
        };
        let pid = successor.pid();
        let (sender, ready) = bounded(1);
        let wait = move || {
            // The agent may have ended.
            let _ = sender.send(successor.prepare());
        };
        let spawned = std::thread::Builder::new()
            .name("upgrade".into())
            .spawn(wait);
        if let Err(error) = spawned {
            return reply(Err(OrderError::Upgrade(error.to_string())));
        }
        self.log
            .info(format_args!("upgrade: process {pid} gets ready"));
        self.upgrade = Some(Upgrade {
            pid,
            ready,
            reply: Some(reply),
        });
    }

    fn look_at_successor(&mut self) {
        let Some(upgrade) = &mut self.upgrade else {
            return;
        };
        let outcome = match upgrade.ready.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err("no thread waits for it".to_owned()),
            Ok(outcome) => outcome,
        };
        let (pid, reply) = (upgrade.pid, upgrade.reply.take());
        self.upgrade = None;
        let outcome = outcome.and_then(|successor| self.retire(&successor));
        if let Err(problem) = &outcome {
            self.log.error(format_args!(
                "the upgrade failed and this agent continues: {problem}"
            ));
        }
        if let Some(reply) = reply {
            let mut answer = self.answer_with(Changes::default());
            answer.successor = Some(pid);
            reply(outcome.map(|()| answer).map_err(OrderError::Upgrade));
        }
    }

    /// Lets the successor serve, and keeps the processes that are here.
    fn retire(&mut self, successor: &Successor) -> Result<(), String> {
        let config = self.live.config();
        let path = succession::retired_socket(&config.socket, std::process::id());
        let access = access(config).map_err(|why| why.to_string())?;
        let listener = Listener::bind(&path, access).map_err(|why| why.to_string())?;
        // The successor's takes its place: two would have the switch choose.
        if let Some(server) = &self.server {
            server.stop();
            let deadline = Instant::now() + SERVER_LEAVES_WITHIN;
            while !server.is_over() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Its file is the successor's from here on; the reply to this order still goes out.
        self.closing = self.control.take().and_then(ControlSocket::close);
        if let Err(error) = successor.go() {
            self.resume();
            return Err(error.to_string());
        }
        self.listener.resign();
        // By which the successor says new keys of jobs that are still served here.
        let own = control_socket_of(&path);
        match ControlSocket::open(own, self.live.config(), self.log) {
            Ok((control, orders)) => (self.control, self.orders) = (Some(control), orders),
            Err(error) => self.log.error(error),
        }
        let (pid, processes) = (successor.pid(), self.ranks.len());
        self.log.info(format_args!(
            "retired: process {pid} serves new processes, and this one its {processes} until they leave"
        ));
        service::main_process(pid);
        self.retired = Some((path, listener));
        self.before = Retired::default();
        Ok(())
    }

    /// Serves as before, after a successor has failed in the last moment.
    fn resume(&mut self) {
        let config = self.live.config();
        match ControlSocket::open(config.control_socket(), config, self.log) {
            Ok((control, orders)) => (self.control, self.orders) = (Some(control), orders),
            Err(error) => self.log.error(error),
        }
        let config = self.live.config().parameter_server();
        let (Some(config), Some(_)) = (config, &self.server) else {
            return;
        };
        match ServerHandle::start(config, self.loss, self.log) {
            Ok((server, _)) => self.server = Some(server),
            Err(error) => self.log.error(error),
        }
    }
}
