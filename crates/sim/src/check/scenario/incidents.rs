//! What goes wrong in a scenario: processes and switches that die, links that fail, members that
//! move.

use super::{Plan, Scenario};
use crate::address::{BridgeId, Node, SwitchId};
use crate::check::data::Contributor;
use crate::check::ending::Ending;
use crate::check::options::Incident;
use crate::check::options::fabric::{FAR, NEAR};
use crate::check::setup::secret;
use crate::world::World;

impl Scenario {
    pub(super) fn incident(&mut self, world: &mut World<Contributor>, incident: Incident) {
        world.note(|| format!("{incident:?}"));
        let now = world.now;
        let host = |host: usize| *self.hosts.get(host).unwrap_or(&self.ps[0].1.host);
        match incident {
            Incident::SwitchRestart { switch, down } => {
                self.stop_switch(world, switch);
                self.plan(world, now.after(down), Plan::SwitchStarts { switch });
            }
            Incident::PsMoves { job } => {
                let host = self.ps[job].1.host;
                if let Some(spare) = self.spare {
                    world.swap_hosts(host, spare);
                }
                if let Some(fabric) = &mut self.fabric {
                    fabric.moved(host);
                }
            }
            Incident::SessionRestart => self.begin_switchml(world),
            Incident::JobRemoved { job, down } => self.remove_job(world, job, down),
            Incident::KeyRotates { job } => self.rotate_key(world, job),
            Incident::TrunkDown { lasting } => {
                if let Some(fabric) = &self.fabric {
                    fabric.cut(world, now.after(lasting));
                }
            }
            Incident::TrunkLoss { lasting } => {
                if let Some(fabric) = &self.fabric {
                    fabric.harm(world);
                    self.plan(world, now.after(lasting), Plan::TrunkHeals);
                }
            }
            Incident::PsRestart { job, down } => {
                if let Some(session) = self.ps[job].0.take() {
                    world.kill(session);
                    self.plan(world, now.after(down), Plan::PsStarts { job });
                }
            }
            Incident::WorkerDeath { job, rank } => self.kill(world, self.current[job], rank),
            Incident::Interrupt { job, rank } => {
                let incarnation = &mut self.incarnations[self.current[job]];
                let member = &incarnation.members[usize::from(rank)];
                if let Some(session) = member.session.filter(|_| member.ending.is_none()) {
                    incarnation.interrupted |= 1 << rank;
                    incarnation.hurt_at = now;
                    world.with_worker(session, |now, worker, _| worker.interrupt(now));
                }
            }
            Incident::JobRestart { job } => {
                let current = self.current[job];
                for rank in 0..self.options.jobs[job].workers {
                    self.kill(world, current, rank);
                }
                self.relaunch(world, job);
            }
            Incident::Partition { host: n, lasting } => {
                world.change_cables(host(n), |link| link.cut_until = now.after(lasting));
            }
            Incident::Straggler { host: n, lasting } => {
                world.put_to_sleep(host(n), now.after(lasting));
            }
            Incident::Spike {
                host: n,
                lasting,
                delay,
            } => {
                world.change_cables(host(n), |link| {
                    link.slow_until = now.after(lasting);
                    link.spike = delay;
                });
            }
        }
    }

    pub(super) fn stop_switch(&mut self, world: &mut World<Contributor>, switch: u16) {
        if let Some(bridge) = self.bridge(switch) {
            return world.bridges[usize::from(bridge.0)].stop();
        }
        self.check_ledger(world);
        world.stop_switch(SwitchId(switch));
        self.custody[usize::from(switch)].forget();
    }

    pub(super) fn start_switch(&mut self, world: &mut World<Contributor>, switch: u16) {
        world.note(|| format!("switch {switch} starts"));
        if let Some(bridge) = self.bridge(switch) {
            return world.bridges[usize::from(bridge.0)].start();
        }
        let switch = SwitchId(switch);
        let secret = secret(&mut self.rng);
        world.start_switch(switch, secret);
        if switch == NEAR {
            self.begin_switchml(world);
            self.look_at_sessions(world);
            if let Some(sessions) = &mut self.sessions {
                sessions.switch_started(world.now);
            }
        }
        for incarnation in &mut self.incarnations {
            let is_of = self.options.switch_of(incarnation.facts.job) == switch;
            if is_of && !incarnation.is_over() {
                let results = |it| world.worker(it).map(|(_, data)| data.results);
                incarnation.switch_started(world.now, results);
            }
        }
    }

    /// The second switch, if it is this one and ordinary.
    fn bridge(&self, switch: u16) -> Option<BridgeId> {
        match self.fabric.as_ref()?.far {
            Node::Bridge(bridge) if switch == FAR.0 => Some(bridge),
            _ => None,
        }
    }

    pub(super) fn kill(&mut self, world: &mut World<Contributor>, incarnation: usize, rank: u8) {
        let incarnation = &mut self.incarnations[incarnation];
        let member = &mut incarnation.members[usize::from(rank)];
        if member.ending.is_some() {
            return;
        }
        if let Some(session) = member.session {
            world.kill(session);
        }
        member.ending = Some((world.now, Ending::Killed));
        incarnation.killed |= 1 << rank;
        incarnation.hurt_at = world.now;
    }
}
