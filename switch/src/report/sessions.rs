//! SwitchML's part of a report: its sessions, and who in them is behind.

use super::PortShape;
use crate::messages::CoreReport;
use crate::plane::{Directory, add_statuses};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;
use tally_engine::switchml::{RankStatus, SessionId, SessionStatus, Station, SwitchmlCounters};
use tally_wire::Time;

/// What the switch did for SwitchML's clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SwitchmlReport {
    /// What the engine did, by name.
    pub counters: BTreeMap<String, u64>,
    /// Frames that slots keep now.
    pub held_in_use: u32,
    /// Frames that they may keep.
    pub held: u32,
    /// Sessions that there may be at one time.
    pub sessions_max: u16,
    /// Those that are bound.
    pub sessions: Vec<SessionReport>,
}

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its number, as its clients chose it, in hexadecimal digits.
    pub id: String,
    /// Seconds since all of its workers had come.
    pub seconds: f64,
    /// Elements of a packet, in bytes.
    pub packet_bytes: usize,
    /// Contributions taken into slots.
    pub contributions: u64,
    /// Results sent to all workers.
    pub results: u64,
    /// Duplicates answered with the result.
    pub answered: u64,
    /// Duplicates dropped, because others were still missing.
    pub duplicates: u64,
    /// Slots in which a sum waits for contributions.
    pub slots_in_use: u32,
    /// Frames kept: these sums, and results that somebody may ask for again.
    pub held: u32,
    /// Its workers, by rank.
    pub ranks: Vec<RankReport>,
}

/// One worker of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankReport {
    /// Its Ethernet address.
    pub mac: String,
    /// Its IPv4 address.
    pub ip: String,
    /// The port that it is behind; absent before its first frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Its frames.
    pub frames: u64,
    /// Seconds since the last of them; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<f64>,
    /// Sums that wait for it.
    pub behind: u32,
    /// For how many seconds the oldest of them has waited.
    pub behind_s: f64,
}

impl SwitchmlReport {
    /// Adds up what the cores say; `None` if the switch has no SwitchML.
    pub(super) fn new(
        limits: Option<(u16, u32)>,
        up: Duration,
        ports: &[PortShape],
        cores: &[CoreReport],
        directory: &Directory,
    ) -> Option<Self> {
        let (sessions_max, held) = limits?;
        let mut counters = SwitchmlCounters::default();
        let mut statuses = BTreeMap::new();
        let mut held_in_use = 0;
        for part in cores.iter().filter_map(|core| core.switchml.as_ref()) {
            counters.add(&part.counters);
            held_in_use += part.held_in_use;
            add_statuses(&mut statuses, part.sessions.iter().cloned());
        }
        let now = Time(up.as_nanos() as u64);
        let bound = directory.all();
        let named = counters.named().map(|(name, n)| (name.to_owned(), n));
        let of = |(id, status): (SessionId, SessionStatus)| {
            // One that was bound or unbound since the cores were asked is not there.
            let bound = bound.get(&id)?;
            let ranks = bound.session.workers.iter().zip(&status.ranks);
            Some(SessionReport {
                id: id.to_string(),
                seconds: now.since(bound.since).as_secs_f64(),
                packet_bytes: bound.session.size.payload_bytes(),
                contributions: status.contributions,
                results: status.results,
                answered: status.answered,
                duplicates: status.duplicates,
                slots_in_use: status.slots_in_use,
                held: status.held,
                ranks: ranks
                    .map(|(station, rank)| RankReport::new(station, rank, now, ports))
                    .collect(),
            })
        };
        Some(Self {
            counters: named.into_iter().collect(),
            held_in_use,
            held,
            sessions_max,
            sessions: statuses.into_iter().filter_map(of).collect(),
        })
    }
}

impl RankReport {
    fn new(station: &Station, rank: &RankStatus, now: Time, ports: &[PortShape]) -> Self {
        let port = rank.port.and_then(|port| ports.get(usize::from(port.0)));
        Self {
            mac: station.mac.to_string(),
            ip: station.ip.to_string(),
            port: port.map(|port| port.name.clone()),
            frames: rank.frames,
            silent_s: rank.last.map(|last| now.since(last).as_secs_f64()),
            behind: rank.lacking,
            behind_s: rank.longest.as_secs_f64(),
        }
    }
}

impl Display for SwitchmlReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let list: Vec<_> = self
            .counters
            .iter()
            .map(|(k, n)| format!("{k} {n}"))
            .collect();
        writeln!(
            f,
            "switchml     {}; {} of {} frames kept, {} of {} sessions",
            list.join(" "),
            self.held_in_use,
            self.held,
            self.sessions.len(),
            self.sessions_max
        )?;
        self.sessions
            .iter()
            .try_for_each(|session| write!(f, "{session}"))
    }
}

impl Display for SessionReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "session {}  {:.1} s, {} workers, {} bytes a packet, {} results, duplicates {} answered {} dropped, \
             {} slots in use, {} frames kept",
            self.id,
            self.seconds,
            self.ranks.len(),
            self.packet_bytes,
            self.results,
            self.answered,
            self.duplicates,
            self.slots_in_use,
            self.held
        )?;
        for (rank, r) in self.ranks.iter().enumerate() {
            write!(f, "    rank {rank:<4} {:<15} {}", r.ip, r.mac)?;
            match (&r.port, r.silent_s) {
                (Some(port), Some(silent_s)) => write!(
                    f,
                    " on {port}, {} frames, the last {silent_s:.1} s ago",
                    r.frames
                )?,
                _ => write!(f, ", no frame yet")?,
            }
            if r.behind > 0 {
                write!(
                    f,
                    "; BEHIND: {} sums wait for it, for {:.2} s",
                    r.behind, r.behind_s
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
