//! SwitchML's part of a report: its sessions, and who in them is behind.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use tally_engine::metrics;
use tally_engine::switchml::{RankCounters, SessionCounters, SwitchmlUse};

metrics! {
    /// Limits of SwitchML.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct SwitchmlLimits, labels [] {
        /// Frames that SwitchML's slots may keep.
        pub held: u32 = gauge "switchml_held_limit_frames" in Frames;
        /// Sessions that there may be at one time.
        pub sessions_max: u16 = gauge "switchml_sessions_limit";
    }
}

metrics! {
    /// Age of a session.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct SessionGauges, labels ["session"] {
        /// Time since all workers of the session had come.
        pub seconds: f64 = gauge "switchml_session_age_seconds" in Seconds;
    }
}

metrics! {
    /// Silence of a rank.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct RankGauges, labels ["session", "rank"] {
        /// Time since the rank's last frame; absent before the first.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub silent_s: Option<f64> = gauge "switchml_rank_silent_seconds" in Seconds;
    }
}

/// What the switch did for SwitchML's clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchmlReport {
    /// What the engine did, by name.
    pub counters: BTreeMap<String, u64>,
    /// What is kept.
    #[serde(flatten)]
    pub in_use: SwitchmlUse,
    /// Its limits.
    #[serde(flatten)]
    pub limits: SwitchmlLimits,
    /// Those that are bound.
    pub sessions: Vec<SessionReport>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its number, as its clients chose it, in hexadecimal digits.
    pub id: String,
    /// Its age.
    #[serde(flatten)]
    pub gauges: SessionGauges,
    /// Elements of a packet, in bytes.
    pub packet_bytes: usize,
    /// What it did.
    #[serde(flatten)]
    pub counters: SessionCounters,
    /// Its workers, by rank.
    pub ranks: Vec<RankReport>,
}

/// One worker of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// Its Ethernet address.
    pub mac: String,
    /// Its IPv4 address.
    pub ip: String,
    /// The port that it is behind; absent before its first frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// What it did.
    #[serde(flatten)]
    pub counters: RankCounters,
    /// Its silence.
    #[serde(flatten)]
    pub gauges: RankGauges,
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
            self.in_use.held_in_use,
            self.limits.held,
            self.sessions.len(),
            self.limits.sessions_max
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
            "session {}  {:.1} s, {} workers, {} bytes a packet, {} contributions, {} results, duplicates {} answered {} dropped, \
             {} slots in use, {} frames kept",
            self.id,
            self.gauges.seconds,
            self.ranks.len(),
            self.packet_bytes,
            self.counters.contributions,
            self.counters.results,
            self.counters.answered,
            self.counters.duplicates,
            self.counters.slots_in_use,
            self.counters.held
        )?;
        for (rank, r) in self.ranks.iter().enumerate() {
            write!(f, "    rank {rank:<4} {:<15} {}", r.ip, r.mac)?;
            match (&r.port, r.gauges.silent_s) {
                (Some(port), Some(silent_s)) => write!(
                    f,
                    " on {port}, {} frames, the last {silent_s:.1} s ago",
                    r.counters.frames
                )?,
                _ => write!(f, ", no frame yet")?,
            }
            if r.counters.forged > 0 {
                write!(f, "; FORGED: {} frames", r.counters.forged)?;
            }
            if r.counters.behind > 0 {
                write!(
                    f,
                    "; BEHIND: {} sums wait for it, for {:.2} s",
                    r.counters.behind, r.counters.behind_s
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
