//! What SwitchML's controller asks of the data cores.
//!
//! A session is bound when every core knows it, so a worker that has been let in finds its slots
//! wherever its first frame arrives. The controller's thread waits for that: data cores look for
//! orders in each turn. Before, they take what has arrived so far. No worker sends before its
//! session is bound, so that is from an earlier session of the same hosts, and would be summed in
//! this one.
//!
//! [`Directory`] keeps what the cores do not know of a session and reports want to say.

use crate::bus::Bus;
use crate::messages::CoreCommand;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tally_engine::switchml::controller::Plane;
use tally_engine::switchml::{Command, Session, SessionId, SessionStatus, Whereabouts};
use tally_wire::Time;

/// How long a core may take for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long cores may take for what has arrived. One that always has more waiting than it takes is
/// not waited for any longer.
const DRAIN_PATIENCE: Duration = Duration::from_millis(100);

/// A bound session.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Who is in it.
    pub session: Arc<Session>,
    /// When it was bound.
    pub since: Time,
}

/// The bound sessions.
#[derive(Debug, Default)]
pub struct Directory(Mutex<BTreeMap<SessionId, Bound>>);

impl Directory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Bound>> {
        // A thread that panicked left a map as of before or after its change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn insert(&self, bound: Bound) {
        self.lock().insert(bound.session.id, bound);
    }

    #[cfg(test)]
    pub(crate) fn remove(&self, id: SessionId) {
        self.lock().remove(&id);
    }

    /// All of them, by number.
    #[must_use]
    pub fn all(&self) -> BTreeMap<SessionId, Bound> {
        self.lock().clone()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

/// The data cores, as the binder of sessions sees them.
pub struct Cores {
    bus: Bus,
    directory: Arc<Directory>,
    epoch: Instant,
}

impl Cores {
    /// `epoch` is when the switch started.
    #[must_use]
    pub fn new(bus: Bus, directory: Arc<Directory>, epoch: Instant) -> Self {
        Self {
            bus,
            directory,
            epoch,
        }
    }
}

impl Cores {
    /// Waits until the cores have taken what has arrived so far.
    fn drain(&self) {
        let deadline = Instant::now() + DRAIN_PATIENCE;
        // What one core took and handed to another is taken there in the second round.
        for _ in 0..2 {
            let answers = self.bus.ask(CoreCommand::Drain);
            answers.wait_until(deadline).for_each(drop);
        }
    }
}

impl Plane for Cores {
    fn bind(&mut self, session: &Arc<Session>) -> Result<(), String> {
        self.drain();
        let whereabouts = Arc::new(Whereabouts::new(session.workers.len()));
        let command = |done| Command::Bind(Arc::clone(session), Arc::clone(&whereabouts), done);
        let answers = self.bus.ask(command).wait(PATIENCE);
        let failures = answers.zip(0..).filter_map(|(answer, core)| match answer {
            Some(true) => None,
            Some(false) => Some(format!("data core {core} has no room for a session more")),
            None => Some(format!("data core {core} does not answer")),
        });
        let failure = failures.reduce(|first, _| first);
        if let Some(why) = failure {
            self.unbind(session.id);
            return Err(why);
        }
        let bound = Bound {
            session: Arc::clone(session),
            since: Time(self.epoch.elapsed().as_nanos() as u64),
        };
        self.directory.lock().insert(session.id, bound);
        Ok(())
    }

    fn unbind(&mut self, id: SessionId) {
        self.directory.lock().remove(&id);
        let answers = self.bus.ask(|done| Command::Unbind(id, done));
        answers.wait(PATIENCE).for_each(drop);
    }

    fn last_frame(&mut self, id: SessionId) -> Option<Time> {
        let statuses = statuses(&self.bus, None, PATIENCE);
        statuses.get(&id).and_then(SessionStatus::last)
    }
}

/// How the sessions are, all cores together; with `age`, also which ranks others have waited for,
/// longer than that, for which the cores look through all slots in use. Waits so long for each core
/// at most.
#[must_use]
pub fn statuses(
    bus: &Bus,
    age: Option<Duration>,
    patience: Duration,
) -> BTreeMap<SessionId, SessionStatus> {
    let answers = bus.ask(|answer| Command::Sessions(age, answer));
    let mut all = BTreeMap::new();
    for part in answers.wait(patience).flatten() {
        add_statuses(&mut all, part);
    }
    all
}

/// Adds what one core says of its part of the sessions.
pub fn add_statuses(
    all: &mut BTreeMap<SessionId, SessionStatus>,
    part: impl IntoIterator<Item = SessionStatus>,
) {
    for status in part {
        match all.get_mut(&status.id) {
            Some(sum) => sum.add(&status),
            None => {
                all.insert(status.id, status);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, unbounded};
    use std::net::Ipv4Addr;
    use tally_engine::switchml::HostAddress;
    use tally_engine::{Command as Order, DialectCommand};
    use tally_wire::Mac;
    use tally_wire::switchml::Size;

    /// Cores that do as they are told, but for the drains of those that are too busy. What each was
    /// told comes back.
    fn told(busy: [bool; 2]) -> [Vec<&'static str>; 2] {
        let cores = [unbounded(), unbounded()];
        let threads: Vec<_> = cores
            .iter()
            .zip(busy)
            .map(|((_, orders), busy)| {
                let orders: Receiver<CoreCommand> = orders.clone();
                std::thread::spawn(move || {
                    let mut told = Vec::new();
                    let mut never = Vec::new();
                    for order in orders {
                        match order {
                            CoreCommand::Drain(done) if busy => {
                                told.push("drain");
                                never.push(done);
                            }
                            CoreCommand::Drain(done) => {
                                told.push("drain");
                                done(());
                            }
                            CoreCommand::Core(Order::Dialect(DialectCommand::Switchml(
                                Command::Bind(_, _, done),
                            ))) => {
                                told.push("bind");
                                done(true);
                            }
                            _ => told.push("else"),
                        }
                    }
                    told
                })
            })
            .collect();
        let commands = cores.map(|(commands, _)| commands);
        let mut plane = Cores::new(Bus::new(commands.to_vec()), Arc::default(), Instant::now());
        drop(commands);
        let session = Session {
            id: SessionId(1),
            size: Size::B256,
            workers: vec![HostAddress {
                mac: Mac([2, 0, 0, 0, 0, 1]),
                ip: Ipv4Addr::new(10, 0, 0, 1),
            }],
            switch_macs: vec![Mac([6, 0, 0, 0, 0, 1])],
        };
        plane.bind(&Arc::new(session)).unwrap();
        drop(plane);
        let mut told = threads.into_iter().map(|thread| thread.join().unwrap());
        [told.next().unwrap(), told.next().unwrap()]
    }

    #[test]
    fn what_has_arrived_is_taken_before_a_session_is_bound() {
        let all = ["drain", "drain", "bind"];
        assert_eq!(told([false, false]), [all, all]);
        // No wait is unbounded.
        assert_eq!(told([false, true]), [all, all]);
    }
}
