//! What of a fleet is down, from what its switches report and from time. Without I/O.
//!
//! * A switch is down if it has not answered for the time limit. It is *dead* if besides no switch
//!   that answers has a live link to it. One that is down and not dead forwards and sums still.
//! * A link is down if one of its ends has reported it as not alive for the time limit. An end that
//!   does not answer says nothing.
//! * What is down is up again with its first answer. If it was up for less than [`STEADY`] before,
//!   it must first answer for a hold, which doubles each time up to [`HOLD_MAX`]: what flaps stays
//!   down.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tally_schema::switch::report::FabricLinkReport;

/// What stays up for this time has no hold when it comes back.
const STEADY: Duration = Duration::from_secs(10);
/// Longest hold.
const HOLD_MAX: Duration = Duration::from_secs(30);

/// Two switches of a link, in the order of their names.
pub type Pair = [String; 2];

/// The link of two switches.
#[must_use]
pub fn pair(a: &str, b: &str) -> Pair {
    let (a, b) = if a <= b { (a, b) } else { (b, a) };
    [a.to_owned(), b.to_owned()]
}

/// What came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A switch has not answered for the time limit.
    SwitchDown {
        /// Its name.
        switch: String,
        /// For how long.
        silent: Duration,
        /// Switches that report a live link to it.
        live: Vec<String>,
    },
    /// A switch that was silent and not dead is dead now.
    SwitchDead {
        /// Its name.
        switch: String,
    },
    /// A switch answers again.
    SwitchUp {
        /// Its name.
        switch: String,
    },
    /// A link is not alive.
    LinkDown {
        /// Its ends.
        between: Pair,
        /// What an end reports.
        why: String,
    },
    /// A link is alive again.
    LinkUp {
        /// Its ends.
        between: Pair,
    },
}

impl Change {
    /// Whether something is lost.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        !matches!(self, Self::SwitchUp { .. } | Self::LinkUp { .. })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchDown {
                switch,
                silent,
                live,
            } => {
                let silent = silent.as_secs_f64();
                write!(f, "switch {switch}: down, no answer for {silent:.1} s")?;
                match &live[..] {
                    [] => Ok(()),
                    live => write!(
                        f,
                        "; {} reports a live link to it: its running jobs stay",
                        live.join(", ")
                    ),
                }
            }
            Self::SwitchDead { switch } => {
                write!(f, "switch {switch}: dead, no switch has a live link to it")
            }
            Self::SwitchUp { switch } => write!(f, "switch {switch}: up"),
            Self::LinkDown { between, why } => {
                write!(f, "link {} - {}: down, {why}", between[0], between[1])
            }
            Self::LinkUp { between } => write!(f, "link {} - {}: up", between[0], between[1]),
        }
    }
}

/// Whether a switch or link is there, over time.
#[derive(Clone, Debug, Default)]
struct Presence {
    /// Whether it has ever been there, or has been missed for the time limit.
    is_known: bool,
    is_down: bool,
    /// Since when it is as it was last seen: there, or missing.
    is_there: Option<bool>,
    since: Duration,
    /// When it came up.
    up_since: Duration,
    /// How long it must be there before it is up again.
    hold: Duration,
}

impl Presence {
    /// Takes a look at `now`; the one before was at `last`. True if it goes down or comes up.
    fn see(&mut self, is_there: bool, (last, now): (Duration, Duration), limit: Duration) -> bool {
        if self.is_there != Some(is_there) {
            // What is missing now was there at the last look.
            self.since = if is_there { now } else { last };
            self.is_there = Some(is_there);
        }
        let lasted = now.saturating_sub(self.since);
        match (self.is_down, is_there) {
            (false, true) => {
                if !self.is_known {
                    (self.is_known, self.up_since) = (true, now);
                }
                false
            }
            (false, false) if lasted >= limit => {
                let was_steady = !self.is_known || now.saturating_sub(self.up_since) >= STEADY;
                self.hold = if was_steady {
                    Duration::ZERO
                } else {
                    (self.hold * 2).clamp(limit, HOLD_MAX)
                };
                (self.is_down, self.is_known) = (true, true);
                true
            }
            (true, true) if lasted >= self.hold => {
                (self.is_down, self.up_since) = (false, now);
                true
            }
            _ => false,
        }
    }
}

/// A switch of a fleet, and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its name.
    pub name: &'a str,
    /// The links that it reports; `None` if it does not answer.
    pub links: Option<&'a [FabricLinkReport]>,
    /// Whether this look says nothing about it, because the fault is the controller's own.
    pub is_unknown: bool,
}

/// What is up and down, by names.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    limit: Duration,
    interval: Duration,
    last: Option<Duration>,
    switches: BTreeMap<String, Presence>,
    links: BTreeMap<Pair, Presence>,
    /// Switches that are down, and whether they are dead.
    dead: BTreeMap<String, bool>,
}

impl Watch {
    /// Of nothing. What is missing for `limit` is down; `interval` is the time between looks.
    #[must_use]
    pub fn new(limit: Duration, interval: Duration) -> Self {
        Self {
            limit,
            interval,
            ..Self::default()
        }
    }

    /// Takes a look at all switches and all links of a fleet, and forgets all others.
    pub fn see(&mut self, now: Duration, switches: &[Seen<'_>], links: &[Pair]) -> Vec<Change> {
        // A controller that was busy saw nothing: the time of that does not count.
        let last = self.last.replace(now).unwrap_or(now);
        let times = (last.max(now.saturating_sub(self.interval)), now);
        self.switches
            .retain(|name, _| switches.iter().any(|it| it.name == name));
        self.links.retain(|pair, _| links.contains(pair));
        let mut changes = Vec::new();
        for seen in switches.iter().filter(|it| !it.is_unknown) {
            let presence = self.switches.entry(seen.name.to_owned()).or_default();
            if !presence.see(seen.links.is_some(), times, self.limit) {
                continue;
            }
            let switch = seen.name.to_owned();
            changes.push(if presence.is_down {
                let silent = now.saturating_sub(presence.since);
                let live = live(seen.name, switches);
                Change::SwitchDown {
                    switch,
                    silent,
                    live,
                }
            } else {
                Change::SwitchUp { switch }
            });
        }
        self.see_dead(switches, &mut changes);
        for between in links {
            let Some(missing) = missing(between, switches) else {
                continue;
            };
            let presence = self.links.entry(between.clone()).or_default();
            if !presence.see(missing.is_none(), times, self.limit) {
                continue;
            }
            let is_of_down = between
                .iter()
                .any(|it| self.switches.get(it).is_some_and(|it| it.is_down));
            if is_of_down {
                // That the switch is down says it all.
                continue;
            }
            let between = between.clone();
            changes.push(match missing {
                Some(why) => Change::LinkDown { between, why },
                None => Change::LinkUp { between },
            });
        }
        changes
    }

    /// A switch that is down is dead when its neighbours lose it, too.
    fn see_dead(&mut self, switches: &[Seen<'_>], changes: &mut Vec<Change>) {
        let down = self.switches.iter().filter(|(_, it)| it.is_down);
        let dead = down.map(|(name, _)| (name.clone(), live(name, switches).is_empty()));
        let dead: BTreeMap<_, _> = dead.collect();
        for (switch, is_dead) in &dead {
            if *is_dead && self.dead.get(switch) == Some(&false) {
                let switch = switch.clone();
                changes.push(Change::SwitchDead { switch });
            }
        }
        self.dead = dead;
    }

    /// Whether each of these has been seen, or missed for the time limit.
    #[must_use]
    pub fn is_settled(&self, switches: &[Seen<'_>], links: &[Pair]) -> bool {
        let is_known = |it: Option<&Presence>| it.is_some_and(|it| it.is_known);
        let is_of = |pair: &Pair, name: &str| pair.iter().any(|it| it == name);
        switches
            .iter()
            .all(|it| is_known(self.switches.get(it.name)))
            && links.iter().all(|pair| {
                // Without an end that answers, nothing is known of a link.
                let mut ends = switches.iter().filter(|it| is_of(pair, it.name));
                is_known(self.links.get(pair)) || ends.all(|it| it.links.is_none())
            })
    }

    /// Whether nothing is planned at a switch.
    #[must_use]
    pub fn is_down(&self, switch: &str) -> bool {
        self.switches.get(switch).is_some_and(|it| it.is_down)
    }

    /// Whether a switch that is down does not forward either.
    #[must_use]
    pub fn is_dead(&self, switch: &str) -> bool {
        self.dead.get(switch).is_some_and(|it| *it)
    }

    /// Whether a link is down by itself, apart from its switches.
    #[must_use]
    pub fn is_link_down(&self, pair: &Pair) -> bool {
        self.links.get(pair).is_some_and(|it| it.is_down)
    }
}

/// Switches that report a live link to one.
fn live(switch: &str, switches: &[Seen<'_>]) -> Vec<String> {
    let has = |seen: &&Seen<'_>| {
        let mut links = seen.links.into_iter().flatten();
        links.any(|it| it.switch == switch && it.alive)
    };
    let live = switches.iter().filter(has);
    live.map(|it| it.name.to_owned()).collect()
}

/// What an end reports of a link that is not alive: `None` if no end answers, and `Some(None)` if
/// it is alive.
fn missing(pair: &Pair, switches: &[Seen<'_>]) -> Option<Option<String>> {
    let mut answers = false;
    for (end, other) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
        let seen = switches.iter().find(|it| it.name == end);
        let Some(links) = seen.and_then(|it| it.links) else {
            continue;
        };
        answers = true;
        let mut to_other = links.iter().filter(|it| it.switch == *other).peekable();
        if to_other.peek().is_none() {
            return Some(Some(format!("{end} reports no link to {other}")));
        }
        if !to_other.any(|it| it.alive) {
            return Some(Some(format!("{end} reports it as dead")));
        }
    }
    answers.then_some(None)
}

#[cfg(test)]
mod tests;
