//! Stragglers and forgers in SwitchML's sessions, as lines of the log.
//!
//! A rank that has been silent for `SILENT_AFTER` while sums wait for it is named once, and once
//! more when it resumes. A published client logs nothing of this itself: it waits. Frames that
//! others send in a rank's name are named with their port. Where a second port claims a rank, the
//! controller ends its session.
//!
//! The data cores are asked twice a second for each rank's last frame, which costs them little.
//! Only if a rank is silent are they asked which sums wait, for which they search the slots in use.

use crate::bus::Bus;
use crate::plane::{Directory, statuses};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tally_engine::PortId;
use tally_engine::switchml::{Conflict, RankStatus, SessionId, SessionStatus};
use tally_wire::Time;

/// Longer than any client waits before it sends again.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How often to look.
const EVERY: Duration = Duration::from_millis(500);
/// How long a core may take for an answer. Meanwhile no member is admitted to a job.
const PATIENCE: Duration = Duration::from_millis(200);

/// Looks at the sessions from time to time.
pub struct Watch {
    directory: Arc<Directory>,
    next: Time,
    /// Who was named, and since when it had been silent.
    named: BTreeMap<(SessionId, usize), Time>,
    /// Forged frames that were told of.
    forged: BTreeMap<(SessionId, usize), u64>,
    /// Names of the ports.
    ports: Vec<String>,
}

/// What is to be said and done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Lines of the log, with their kinds.
    pub lines: Vec<(&'static str, String)>,
    /// Sessions of which two ports claim a rank, and the ports' names.
    pub conflicts: Vec<(SessionId, Conflict, [String; 2])>,
}

impl Watch {
    /// Over the sessions of `directory`, on ports of these names.
    #[must_use]
    pub fn new(directory: Arc<Directory>, ports: Vec<String>) -> Self {
        Self {
            directory,
            next: Time(0),
            named: BTreeMap::new(),
            forged: BTreeMap::new(),
            ports,
        }
    }

    /// The sessions.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    fn port(&self, port: PortId) -> String {
        let name = self.ports.get(usize::from(port.0));
        name.cloned().unwrap_or_else(|| port.0.to_string())
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, now: Time, bus: &Bus) -> Found {
        if now < self.next {
            return Found::default();
        }
        self.next = now.after(EVERY);
        if self.directory.is_empty() {
            self.named.clear();
            self.forged.clear();
            return Found::default();
        }
        let mut found = statuses(bus, None, PATIENCE);
        let is_quiet = |status: &SessionStatus| {
            let mut ranks = status.ranks.iter();
            ranks.any(|rank| silent_since(rank, now).is_some())
        };
        if found.values().any(is_quiet) {
            found = statuses(bus, Some(SILENT_AFTER), PATIENCE);
        }
        self.compare(now, &found)
    }

    fn compare(&mut self, now: Time, found: &BTreeMap<SessionId, SessionStatus>) -> Found {
        let mut lines = Vec::new();
        let mut conflicts = Vec::new();
        let bound = self.directory.all();
        self.named.retain(|(id, _), _| bound.contains_key(id));
        self.forged.retain(|(id, _), _| bound.contains_key(id));
        for (id, bound) in &bound {
            let Some(status) = found.get(id) else {
                continue;
            };
            if let Some(conflict) = status.conflict {
                let ports = conflict.ports.map(|port| self.port(port));
                conflicts.push((*id, conflict, ports));
            }
            for ((rank, station), at) in bound.session.workers.iter().enumerate().zip(&status.ranks)
            {
                let name = || format!("SwitchML session {id}: rank {rank}, {station},");
                let told = self.forged.entry((*id, rank)).or_default();
                let forged = at.counters.forged;
                let new = forged.saturating_sub(std::mem::replace(told, forged));
                if new > 0 {
                    let port = at.forged_from;
                    let port = port.map_or_else(String::new, |port| self.port(port));
                    lines.push((
                        "forged",
                        format!(
                            "{} did not send {new} frames in its name, the last of them from port {port}: they were \
                             not sent to the address that it was told, and are dropped (switchml-forged). They are \
                             another host's, or of an earlier process",
                            name()
                        ),
                    ));
                }
                let silent = silent_since(at, now).filter(|_| at.counters.behind > 0);
                let known = self.named.get(&(*id, rank)).copied();
                match (silent, known) {
                    (Some(last), None) => {
                        let since = last.unwrap_or(bound.since);
                        self.named.insert((*id, rank), since);
                        let said = match last {
                            Some(last) => {
                                format!("has been silent for {:.1} s", seconds(last, now))
                            }
                            None => "has sent nothing".to_owned(),
                        };
                        let line = format!(
                            "{} {said}, and {} sums wait for it",
                            name(),
                            at.counters.behind
                        );
                        lines.push(("silent", line));
                    }
                    (None, Some(since)) => {
                        self.named.remove(&(*id, rank));
                        let till = at.last.unwrap_or(now);
                        let line =
                            format!("{} resumed after {:.1} s", name(), seconds(since, till));
                        lines.push(("silent", line));
                    }
                    _ => {}
                }
            }
        }
        Found { lines, conflicts }
    }
}

fn seconds(from: Time, to: Time) -> f64 {
    to.since(from).as_secs_f64()
}

/// When it spoke last, if that was too long ago: `Some(None)` if it never did.
fn silent_since(rank: &RankStatus, now: Time) -> Option<Option<Time>> {
    let is_silent = rank.last.is_none_or(|last| now.since(last) >= SILENT_AFTER);
    is_silent.then_some(rank.last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::CoreCommand;
    use crate::plane::Bound;
    use std::net::Ipv4Addr;
    use tally_engine::switchml::{self, HostAddress, RankCounters, Session, SessionCounters};
    use tally_engine::{Command, DialectCommand};
    use tally_wire::Mac;
    use tally_wire::switchml::Size;

    const ID: SessionId = SessionId(7);

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn watch() -> Watch {
        let station = |n| HostAddress {
            mac: Mac([2, 0, 0, 0, 0, n]),
            ip: Ipv4Addr::new(10, 84, 0, n),
        };
        let session = Session {
            id: ID,
            size: Size::B256,
            workers: vec![station(1), station(2)],
            switch_macs: vec![Mac([6, 0, 0, 0, 0, 1]), Mac([6, 0, 0, 0, 0, 2])],
        };
        let directory = Directory::default();
        directory.insert(Bound {
            session: Arc::new(session),
            since: at(500),
        });
        let ports = ["a", "b", "evil"].map(str::to_owned);
        Watch::new(Arc::new(directory), ports.into())
    }

    /// Rank 0 speaks; rank 1 spoke last at that time, and so many sums wait for it.
    fn status(now: u64, last: Option<u64>, lacking: u32) -> BTreeMap<SessionId, SessionStatus> {
        let rank = |last: Option<Time>, behind| RankStatus {
            counters: RankCounters {
                frames: 1,
                behind,
                ..RankCounters::default()
            },
            last,
            port: None,
            forged_from: None,
        };
        let status = SessionStatus {
            id: ID,
            counters: SessionCounters::default(),
            conflict: None,
            ranks: vec![rank(Some(at(now)), 0), rank(last.map(at), lacking)],
        };
        [(ID, status)].into()
    }

    #[test]
    fn a_straggler_is_named_once_and_once_more_when_it_resumes() {
        let mut watch = watch();
        let mut look =
            |now, last, lacking| texts(watch.compare(at(now), &status(now, last, lacking)));
        assert!(look(1400, Some(1000), 3).is_empty(), "not for long");
        assert!(look(2100, Some(1000), 0).is_empty(), "no sum waits");
        let [line] = &look(2200, Some(1000), 3)[..] else {
            panic!("one line")
        };
        for part in [
            "session",
            "rank 1",
            "10.84.0.2",
            "silent for 1.2 s",
            "3 sums",
        ] {
            assert!(line.contains(part), "`{line}` has no `{part}`");
        }
        assert!(look(2700, Some(1000), 5).is_empty(), "it has been named");
        let [line] = &look(3200, Some(3100), 4)[..] else {
            panic!("one line")
        };
        assert!(
            line.contains("rank 1") && line.contains("resumed after 2.1 s"),
            "{line}"
        );
        assert!(look(3700, Some(3600), 0).is_empty());
    }

    #[test]
    fn who_never_came_is_named_and_a_session_s_end_ends_it() {
        let mut watch = watch();
        let lines = texts(watch.compare(at(2000), &status(2000, None, 1)));
        assert!(
            lines.len() == 1 && lines[0].contains("has sent nothing"),
            "{lines:?}"
        );
        watch.directory().remove(ID);
        assert_eq!(watch.compare(at(2500), &BTreeMap::new()), Found::default());
        assert!(watch.named.is_empty());
    }

    #[test]
    fn cores_are_asked_twice_a_second_and_only_if_there_are_sessions() {
        let mut watch = watch();
        let (core, orders) = crossbeam_channel::unbounded();
        let bus = Bus::new(vec![core]);
        let answering = std::thread::spawn(move || {
            let mut asked = 0;
            for order in orders {
                if let CoreCommand::Core(Command::Dialect(DialectCommand::Switchml(
                    switchml::Command::Sessions(_, answer),
                ))) = order
                {
                    asked += 1;
                    answer(Vec::new());
                }
            }
            asked
        });
        for now in [0, 100, 499, 500, 999, 1000] {
            assert_eq!(watch.look(at(now), &bus), Found::default());
        }
        watch.directory().remove(ID);
        assert_eq!(watch.look(at(5000), &bus), Found::default());
        drop(bus);
        assert_eq!(answering.join().unwrap(), 3);
    }

    /// What is logged.
    fn texts(found: Found) -> Vec<String> {
        found.lines.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn forged_frames_are_told_with_their_port_and_each_once() {
        let mut watch = watch();
        let mut status = status(1000, Some(900), 0);
        let forged = |status: &mut BTreeMap<SessionId, SessionStatus>, frames| {
            if let Some(status) = status.get_mut(&ID) {
                status.ranks[1].counters.forged = frames;
                status.ranks[1].forged_from = Some(PortId(2));
            }
        };
        forged(&mut status, 7);
        let [line] = &texts(watch.compare(at(1000), &status))[..] else {
            panic!("one line")
        };
        for part in ["rank 1", "7 frames", "port evil", "switchml-forged"] {
            assert!(line.contains(part), "`{line}` has no `{part}`");
        }
        assert!(texts(watch.compare(at(1500), &status)).is_empty());
        forged(&mut status, 9);
        let lines = texts(watch.compare(at(2000), &status));
        assert!(lines[0].contains("2 frames"), "{lines:?}");
    }

    #[test]
    fn a_rank_at_two_ports_is_reported() {
        let mut watch = watch();
        let mut status = status(1000, Some(900), 0);
        let ports = [PortId(0), PortId(2)];
        let conflict = Conflict { rank: 1, ports };
        if let Some(status) = status.get_mut(&ID) {
            status.conflict = Some(conflict);
        }
        let names = ["a", "evil"].map(str::to_owned);
        let found = watch.compare(at(1000), &status);
        assert_eq!(found.conflicts, [(ID, conflict, names)]);
    }
}
