//! When the job of sessions acts, and when it is looked at.

use super::{Plan, Scenario};
use crate::check::data::Contributor;
use crate::check::session::Step;
use crate::world::World;
use tally_wire::Time;

impl Scenario {
    /// Starts the job of sessions, if there is one.
    pub(super) fn begin_sessions(&mut self, world: &mut World<Contributor>) {
        let Some(sessions) = &self.sessions else {
            return;
        };
        for (n, at) in sessions.troubles(world.now).into_iter().enumerate() {
            self.plan(world, at, Plan::Session(Step::Trouble(n)));
        }
        let at = self.soon(world, 30_000);
        self.plan(world, at, Plan::Session(Step::PsStarts));
        self.launch_sessions(world, false);
    }

    fn launch_sessions(&mut self, world: &mut World<Contributor>, is_quiet: bool) {
        let window = self.options.switch_window;
        let Some(sessions) = &mut self.sessions else {
            return;
        };
        let (run, spread) = sessions.launch(world.now, window, is_quiet);
        let workers = sessions.workers();
        world.note(|| format!("sessions: run {run} starts"));
        for rank in 0..workers {
            let at = self.soon(world, spread);
            self.plan(world, at, Plan::Session(Step::RankStarts { run, rank }));
        }
    }

    /// Something that the job of sessions asked for.
    pub(super) fn session_step(&mut self, world: &mut World<Contributor>, step: Step) {
        let instance = match step {
            Step::PsStarts | Step::RankStarts { .. } => self.instance(),
            Step::Trouble(_) => 0,
        };
        let Some(sessions) = &mut self.sessions else {
            return;
        };
        match step {
            Step::PsStarts => sessions.start_ps(world, instance),
            Step::RankStarts { run, rank } => {
                sessions.start_rank(world, &self.options, instance, (run, rank));
            }
            Step::Trouble(n) => {
                if let Some(at) = sessions.trouble(world, n) {
                    self.plan(world, at, Plan::Session(Step::PsStarts));
                }
            }
        }
    }

    /// Looks at the sessions, and starts their next run when one is over.
    pub(super) fn look_at_sessions(&mut self, world: &mut World<Contributor>) {
        let quiet = (self.quiet_since > Time(0)).then_some(self.quiet_since);
        let Some(sessions) = &mut self.sessions else {
            return;
        };
        if let Some(is_quiet) = sessions.look(world, &self.findings, &self.options, quiet) {
            self.launch_sessions(world, is_quiet);
        }
    }
}
