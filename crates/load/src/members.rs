//! The sessions of one job's members: workers and the parameter server of `tally-endpoint`.
//!
//! They join with the job's key, send heartbeats and leave; the parameter server finishes the
//! fragments that the switch does not. The workers' data bypasses the sessions: without a submitted
//! tensor a session does only control.

use super::plan::{Host, JobPlan, SwitchPlan};
use anyhow::{Result, bail};
use std::time::Duration;
use tally_endpoint::{
    Contribution, Delivery, Ecn, Event, Gradients, Hint, Ps, PsConfig, PsEvent, PsStats, Time,
    Transmit, Worker, WorkerConfig,
};
use tally_kernels::Kernels;
use tally_wire::control::State;
use tally_wire::frame::group_of;
use tally_wire::{Accept, Element, Epoch, EpochSecret, Header, Rank, all_ranks};

/// How long to wait for an answer to JOIN, and for the other members.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// How long to say goodbye.
const LINGER: Duration = Duration::from_secs(1);
/// What all workers of a load must agree on: that it is one.
const SHAPE: [u8; 32] = *b"tally-load run, simulated worker";
/// The epoch of a job whose members are fixed.
const EPOCH_FIXED: Epoch = Epoch(1);

/// No data: it bypasses the sessions.
struct NoGradients;

impl Gradients for NoGradients {
    fn contribute(&mut self, _: u64, _: &mut [u8]) -> Contribution {
        Contribution::NotReady
    }

    fn result(&mut self, _: u64, _: Element, _: &[u8], _: Delivery) {}

    fn stored_result(&mut self, _: u64, _: &mut [u8]) -> Option<Element> {
        None
    }
}

/// The members of one job.
pub struct Members {
    /// By rank; none if they are fixed.
    workers: Vec<Worker>,
    hosts: Vec<Host>,
    ps: Option<(Ps, Host)>,
    epochs: Vec<Option<Epoch>>,
    is_fixed: bool,
    fixed_secret: EpochSecret,
    /// When a session has something to do.
    next: Time,
    /// Why the switch refuses our parameter server.
    hint: Option<Hint>,
}

fn instance() -> Result<u64> {
    Ok(getrandom::u64()?.max(1))
}

impl Members {
    /// Sessions that begin to join at once.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn new(now: Time, plan: &JobPlan, switch: &SwitchPlan) -> Result<Self> {
        let kernels = Kernels::best();
        let workers = plan.workers.len() as u8;
        let mut ps_config = PsConfig::new(plan.id, plan.key.clone(), instance()?);
        ps_config.port = switch.base_port;
        let ps = if plan.is_fixed {
            let accept = Accept {
                instance: ps_config.instance,
                challenge: 0,
                state: State::Running,
                workers,
                units: plan.units,
                shards: switch.shards as u8,
                base_port: switch.base_port,
                window: switch.window,
                joined: all_ranks(workers),
                left: 0,
                missing_ps: None,
                group: group_of(plan.id),
                behind: None,
                mac: switch.mac,
                salt: 0,
                wrapped: None,
                place: None,
            };
            Ps::seated(now, ps_config, kernels, EPOCH_FIXED, accept)
        } else {
            Ps::new(now, ps_config, kernels)
        };
        let session = |rank| {
            let key = plan.key.clone();
            let mut config = WorkerConfig::new(plan.id, key, rank, workers, SHAPE, instance()?);
            config.units = plan.units;
            config.window = plan.window;
            config.port = switch.base_port;
            config.join_timeout = JOIN_PATIENCE;
            config.linger = LINGER;
            Ok(Worker::new(now, config))
        };
        let sessions = if plan.is_fixed { 0..0 } else { 0..workers };
        let sessions: Vec<_> = sessions.map(session).collect::<Result<_>>()?;
        Ok(Self {
            epochs: vec![None; sessions.len()],
            workers: sessions,
            hosts: plan.workers.clone(),
            ps: plan.ps.map(|host| (ps, host)),
            is_fixed: plan.is_fixed,
            fixed_secret: plan.key.epoch_secret(plan.id, EPOCH_FIXED, 0),
            next: now,
            hint: None,
        })
    }

    /// The secret of the epoch that [`epoch`](Self::epoch) says.
    #[must_use]
    pub fn secret(&self) -> Option<EpochSecret> {
        if self.is_fixed {
            return Some(self.fixed_secret);
        }
        self.workers.first()?.secret()
    }

    /// The epoch, once the job runs for all of our workers.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        if self.is_fixed {
            return Some(EPOCH_FIXED);
        }
        let first = (*self.epochs.first()?)?;
        let all = self.epochs.iter().all(|epoch| *epoch == Some(first));
        all.then_some(first)
    }

    /// Takes a control datagram, or one for the parameter server.
    pub fn take(&mut self, now: Time, ecn: Ecn, header: &Header, datagram: &[u8]) {
        if header.kind.is_control() && header.rank.is_worker() {
            if let Some(worker) = self.workers.get_mut(usize::from(header.rank.0)) {
                worker.handle_datagram(now, ecn, datagram, &mut NoGradients);
            }
        } else if let Some((ps, _)) = &mut self.ps {
            ps.handle_datagram(now, ecn, datagram);
        }
        self.next = now;
    }

    /// Whether [`serve`](Self::serve) has something to do.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        self.next <= now
    }

    /// Handles timeouts of the sessions and sends their datagrams. `send` queues a datagram of a
    /// host, if `fill` writes one.
    ///
    /// # Errors
    /// If the job does not begin, or ends badly.
    pub fn serve(
        &mut self,
        now: Time,
        mut send: impl FnMut(&Host, &mut dyn FnMut(&mut [u8]) -> Option<Transmit>) -> bool,
    ) -> Result<()> {
        let mut next = Time(u64::MAX);
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            if worker.poll_timeout().is_some_and(|at| at <= now) {
                worker.handle_timeout(now);
            }
            let fill = &mut |out: &mut [u8]| worker.poll_transmit(now, out, &mut NoGradients);
            while send(&self.hosts[rank], fill) {}
            while let Some(event) = worker.poll_event() {
                match event {
                    Event::Running { epoch } => self.epochs[rank] = Some(epoch),
                    Event::Failed(error) => match self.hint {
                        Some(hint) => bail!("{}: {error}; its PS: {hint}", Rank(rank as u8)),
                        None => bail!("{}: {error}", Rank(rank as u8)),
                    },
                    Event::Waiting(_) | Event::Delivered | Event::Finished => {}
                }
            }
            next = next.min(worker.poll_timeout().unwrap_or(next));
        }
        if let Some((ps, host)) = &mut self.ps {
            if ps.poll_timeout().is_some_and(|at| at <= now) {
                ps.handle_timeout(now);
            }
            while send(host, &mut |out| ps.poll_transmit(now, out)) {}
            while let Some(event) = ps.poll_event() {
                if let PsEvent::Refused(hint) = event {
                    self.hint = Some(hint);
                }
            }
            next = next.min(ps.poll_timeout().unwrap_or(next));
        }
        self.next = next;
        Ok(())
    }

    /// Ends the sessions: the workers leave, then the parameter server.
    pub fn leave(&mut self, now: Time) {
        for worker in &mut self.workers {
            worker.finish(now);
        }
        self.next = now;
    }

    /// Interrupts the workers after an error or on request: they leave, so that the switch need not
    /// wait for a timeout.
    pub fn give_up(&mut self, now: Time) {
        for worker in &mut self.workers {
            worker.interrupt(now);
        }
        self.next = now;
    }

    /// Whether all have left. Tells the parameter server to leave once the workers have.
    #[must_use]
    pub fn have_left(&mut self, now: Time) -> bool {
        if !self.workers.iter().all(Worker::is_closed) {
            return false;
        }
        let Some((ps, _)) = &mut self.ps else {
            return true;
        };
        if !ps.is_closed() {
            ps.leave(now);
            self.next = now;
        }
        ps.is_closed()
    }

    /// What the parameter server did, if we play it.
    #[must_use]
    pub fn ps_stats(&self) -> Option<&PsStats> {
        self.ps.as_ref().map(|(ps, _)| ps.stats())
    }
}
