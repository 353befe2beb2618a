//! A look at all switches, and what follows from what is down.

use super::Daemon;
use crate::events::Event;
use crate::fleet::Fleet;
use crate::moves::Ground;
use crate::remote::{Remote, RemoteError, target};
use crate::watch::{Pair, Seen, Watch, pair};
use std::time::Duration;
use tally_api::client::{ConnectError, Target};
use tally_schema::switch::report::FabricLinkReport;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Shortest time limit of a look at a switch.
const LOOK_MIN: Duration = Duration::from_millis(100);

impl Daemon {
    /// Looks at all switches at once, and says what is lost or back. Whether it is known of all
    /// switches and links if they are there.
    pub(super) async fn look(&mut self) -> bool {
        let errors = self.reach().await;
        let mut unknown = Vec::new();
        for (at, switch) in self.fleet.switches.iter().enumerate() {
            let key = format!("switch {}", switch.name);
            let error = errors.iter().find(|(it, _)| *it == at);
            let error = error.filter(|(_, error)| !is_silence(error));
            let Some((_, error)) = error else {
                self.said.remove(&key);
                continue;
            };
            if is_own(error) {
                unknown.push(at);
            }
            let error = error.to_string();
            if self.said.insert(key, error.clone()).as_ref() != Some(&error) {
                let retry_ms = self.interval.as_millis() as u64;
                self.events.say(&Event::Error { error, retry_ms });
            }
        }
        let names = self.names();
        let seen = names.iter().zip(&self.remotes).enumerate();
        let seen = seen.map(|(at, (name, remote))| Seen {
            name,
            links: remote.as_ref().map(|it| &it.report.fabric[..]),
            is_unknown: unknown.contains(&at),
        });
        let seen: Vec<_> = seen.collect();
        let links = self.fleet.links.iter();
        let links = links.map(|it| pair(&it.between[0], &it.between[1]));
        let links: Vec<Pair> = links.collect();
        let changes = self.watch.see(self.start.elapsed(), &seen, &links);
        let is_settled = self.watch.is_settled(&seen, &links);
        for change in changes {
            self.events.say(&Event::from(&change));
            // What comes back often does so link by link.
            let wait = if change.is_loss() {
                Duration::ZERO
            } else {
                self.interval * 2
            };
            self.plan_again(change.to_string(), wait);
        }
        is_settled
    }

    /// Reads all switches. `remotes` are those that answer then.
    async fn reach(&mut self) -> Vec<(usize, RemoteError)> {
        let limit = (self.dead_after / 3).max(LOOK_MIN);
        let fleet = &self.fleet;
        self.remotes.resize_with(fleet.switches.len(), || None);
        let mut reaching = JoinSet::new();
        for (at, switch) in fleet.switches.iter().enumerate() {
            let Some(target) = target(fleet, at, &self.path) else {
                continue;
            };
            let name = switch.name.clone();
            let remote = self.remotes[at].take();
            reaching.spawn(async move {
                let looked = timeout(limit, look(remote, name.clone(), target)).await;
                let looked = looked.unwrap_or_else(|_| {
                    Err(RemoteError::Call {
                        switch: name,
                        what: "report".to_owned(),
                        why: format!("no answer within {} ms", limit.as_millis()),
                    })
                });
                (at, looked)
            });
        }
        let mut errors = Vec::new();
        while let Some(reached) = reaching.join_next().await {
            // A task ends otherwise only if it panics, which has been told then.
            match reached {
                Ok((at, Ok(remote))) => self.remotes[at] = Some(remote),
                Ok((at, Err(error))) => errors.push((at, error)),
                Err(_) => {}
            }
        }
        errors
    }
}

/// Reads a switch over the connection that there is, or over a new one.
async fn look(remote: Option<Remote>, name: String, target: Target) -> Result<Remote, RemoteError> {
    if let Some(mut remote) = remote
        && remote.look().await.is_ok()
    {
        return Ok(remote);
    }
    Remote::open(name, &target).await
}

/// Whether the switch just does not answer: what is said when it is down.
fn is_silence(error: &RemoteError) -> bool {
    match error {
        RemoteError::Connect { .. } => !is_own(error),
        RemoteError::Call { .. } => true,
        RemoteError::Name { .. } | RemoteError::Version { .. } | RemoteError::Refused { .. } => {
            false
        }
    }
}

/// Whether the controller cannot ask, so that nothing is known of the switch.
fn is_own(error: &RemoteError) -> bool {
    matches!(
        error,
        RemoteError::Connect {
            error: ConnectError::File { .. } | ConnectError::Permission { .. },
            ..
        }
    )
}

/// The fleet as it is: what is down has rate or capacity 0.
pub(super) fn effective(fleet: &Fleet, watch: &Watch) -> Fleet {
    let mut fleet = fleet.clone();
    let down = fleet.switches.iter_mut();
    down.filter(|it| watch.is_down(&it.name))
        .for_each(|it| it.capacity = 0.0);
    for link in &mut fleet.links {
        let [a, b] = &link.between;
        if watch.is_down(a) || watch.is_down(b) || watch.is_link_down(&pair(a, b)) {
            link.rate = 0.0;
        }
    }
    let devices = fleet.hosts.iter_mut().chain(&mut fleet.servers);
    devices
        .filter(|it| watch.is_down(&it.switch))
        .for_each(|it| it.rate = 0.0);
    fleet
}

/// What trees stand on, as it was seen.
pub(super) struct Seeing<'a> {
    watch: &'a Watch,
    answers: Vec<(&'a str, usize)>,
}

impl<'a> Seeing<'a> {
    pub(super) fn new(watch: &'a Watch, names: &'a [String], remotes: &[Option<Remote>]) -> Self {
        let answers = names.iter().enumerate().zip(remotes);
        let answers = answers.filter(|(_, remote)| remote.is_some());
        let answers = answers.map(|((at, name), _)| (name.as_str(), at));
        Self {
            watch,
            answers: answers.collect(),
        }
    }
}

impl Ground for Seeing<'_> {
    fn is_dead(&self, switch: &str) -> bool {
        self.watch.is_dead(switch)
    }

    fn is_link_down(&self, a: &str, b: &str) -> bool {
        self.watch.is_link_down(&pair(a, b))
    }

    fn answers(&self, switch: &str) -> Option<usize> {
        let found = self.answers.iter().find(|(name, _)| *name == switch);
        found.map(|(_, at)| *at)
    }
}

/// The links that a switch reports; none if it does not answer.
pub(super) fn fabric(remotes: &[Option<Remote>], at: usize) -> &[FabricLinkReport] {
    let remote = remotes[at].as_ref();
    remote.map_or(&[], |it| &it.report.fabric)
}
