//! What goes wrong in a world of trees.

use super::{Plan, TreeScenario};
use crate::address::SwitchId;
use crate::check::data::Contributor;
use crate::check::ending::Ending;
use crate::check::options::tree::TreeIncident;
use crate::check::setup::secret;
use crate::link::Link;
use crate::world::World;
use std::time::Duration;

/// Frames lost while a trunk is bad.
const BAD_TRUNK_PPM: u32 = 100_000;
/// From the loss of a member until all of its job have heard of it.
const NOTICED: Duration = Duration::from_secs(3);

impl TreeScenario {
    pub(super) fn incident(&mut self, world: &mut World<Contributor>, incident: TreeIncident) {
        world.note(|| format!("{incident:?}"));
        let now = world.now;
        let host = |job: usize, rank: u16| self.hosts[job][usize::from(rank)];
        match incident {
            TreeIncident::SwitchRestart { switch, down } => {
                if world.switches[switch].is_up() {
                    self.stop_switch(world, switch);
                    self.plan(world, now.after(down), Plan::SwitchStarts(switch));
                }
            }
            TreeIncident::SubtreeDies { switch } => self.kill_subtree(world, switch),
            TreeIncident::TrunkDown { switch, lasting } => {
                self.change_trunks(world, switch, |link| link.cut_until = now.after(lasting));
            }
            TreeIncident::CableDown {
                switch,
                cable,
                lasting,
            } => {
                let port = self.trunks[switch][cable].lower;
                world.change_trunk(SwitchId(switch as u16).into(), port, |link| {
                    link.cut_until = link.cut_until.max(now.after(lasting));
                });
            }
            TreeIncident::TrunkLoss { switch, lasting } => {
                self.change_trunks(world, switch, |link| {
                    let faults = &mut link.config.faults;
                    faults.loss_ppm = faults.loss_ppm.max(BAD_TRUNK_PPM);
                });
                self.plan(world, now.after(lasting), Plan::TrunkHeals(switch));
            }
            TreeIncident::TrunkDeaf { switch, lasting } => {
                for trunk in &self.trunks[switch] {
                    let down = world.link(trunk.above.into(), trunk.upper);
                    down.cut_until = down.cut_until.max(now.after(lasting));
                }
            }
            TreeIncident::TrunkLate {
                switch,
                lasting,
                by,
            } => self.change_trunks(world, switch, |link| {
                (link.slow_until, link.spike) = (now.after(lasting), by);
            }),
            TreeIncident::PsRestart { job, node, down } => {
                // One of several, or the only one.
                let any = self.instances as usize;
                let sessions = &mut self.ps[job][node].sessions;
                let at = any % sessions.len();
                if let Some(session) = sessions[at].take() {
                    world.kill(session);
                    self.plan(world, now.after(down), Plan::PsStarts { job, node });
                }
            }
            TreeIncident::WorkerDeath { job, rank } => {
                self.kill(world, self.current[job], rank as u8);
            }
            TreeIncident::Interrupt { job, rank } => {
                let incarnation = &mut self.incarnations[self.current[job]];
                let member = &incarnation.members[usize::from(rank)];
                if let Some(session) = member.session.filter(|_| member.ending.is_none()) {
                    incarnation.interrupted |= 1 << rank;
                    incarnation.hurt_at = now;
                    world.with_worker(session, |now, worker, _| worker.interrupt(now));
                }
            }
            TreeIncident::JobRestart { job } => {
                let current = self.current[job];
                for rank in 0..self.options.jobs[job].options.workers {
                    self.kill(world, current, rank);
                }
                self.relaunch(world, job);
            }
            TreeIncident::Partition { job, rank, lasting } => {
                world.change_cables(host(job, rank), |link| link.cut_until = now.after(lasting));
            }
            TreeIncident::Straggler { job, rank, lasting } => {
                world.put_to_sleep(host(job, rank), now.after(lasting));
            }
        }
    }

    /// Changes all trunks above a switch.
    pub(super) fn change_trunks(
        &self,
        world: &mut World<Contributor>,
        switch: usize,
        change: impl Fn(&mut Link),
    ) {
        for trunk in &self.trunks[switch] {
            world.change_trunk(SwitchId(switch as u16).into(), trunk.lower, &change);
        }
    }

    /// Has the trunks above a switch lose no more frames than at the start.
    pub(super) fn heal(&self, world: &mut World<Contributor>, switch: usize) {
        let [up, down] = self.options.trunk_faults;
        for trunk in &self.trunks[switch] {
            let (lower, upper) = (SwitchId(switch as u16), trunk.above);
            world.link(lower.into(), trunk.lower).config.faults = up;
            world.link(upper.into(), trunk.upper).config.faults = down;
        }
    }

    fn stop_switch(&mut self, world: &mut World<Contributor>, switch: usize) {
        self.check_ledger(world);
        world.stop_switch(SwitchId(switch as u16));
        self.custody[switch].forget();
        self.down += 1;
    }

    pub(super) fn start_switch(&mut self, world: &mut World<Contributor>, switch: usize) {
        world.note(|| format!("switch {switch} starts"));
        let secret = secret(&mut self.rng);
        world.start_switch(SwitchId(switch as u16), secret);
        super::setup::introduce(&self.options, world, &self.trunks, switch);
        self.down -= 1;
        for incarnation in &mut self.incarnations {
            let is_of = self.options.jobs[incarnation.facts.job].node_of(switch);
            if is_of.is_some() && !incarnation.is_over() {
                let results = |it| world.worker(it).map(|(_, data)| data.results);
                incarnation.switch_started(world.now, results);
            }
        }
    }

    /// Ends all processes and switches below a switch, and the switch itself.
    fn kill_subtree(&mut self, world: &mut World<Contributor>, switch: usize) {
        let below = self.options.below(switch);
        for job in 0..self.options.jobs.len() {
            let of = &self.options.jobs[job];
            let nodes = of.switches.iter().zip(&of.tree.nodes);
            let nodes = nodes.filter(|(switch, _)| below.contains(switch));
            let ranks = nodes.flat_map(|(_, node)| node.first..node.first + node.hosts);
            for rank in ranks.collect::<Vec<_>>() {
                self.kill(world, self.current[job], rank as u8);
            }
        }
        let back = world
            .now
            .after(self.options.base.member_timeout * 2 + NOTICED);
        for switch in below {
            if world.switches[switch].is_up() {
                self.stop_switch(world, switch);
                self.plan(world, back, Plan::SwitchStarts(switch));
            }
        }
    }

    fn kill(&mut self, world: &mut World<Contributor>, incarnation: usize, rank: u8) {
        let n = incarnation;
        let incarnation = &mut self.incarnations[n];
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
