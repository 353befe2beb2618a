//! What `tallyctl show` prints: one part of a report, as a table or as JSON.

mod parts;

pub(crate) use parts::awaited;

use crate::args::Part;
use serde::Serialize;
use tally_schema::switch::report::Report;

/// One MAC address that the switch knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mac {
    /// The address.
    pub mac: String,
    /// The port that it is behind.
    pub port: String,
    /// Seconds since its last frame.
    pub age_s: u32,
}

/// What the switch answered.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Version of the configuration.
    pub version: u64,
    /// Everything that is counted.
    pub report: Report,
    /// Seconds since counters were cleared, if they were and the report counts since then.
    pub cleared_s: Option<f64>,
    /// MAC addresses, if they were asked for.
    pub macs: Vec<Mac>,
    /// MAC addresses that the answer had no room for.
    pub macs_left_out: u32,
}

impl Snapshot {
    /// A part as text.
    #[must_use]
    pub fn text(&self, part: Part) -> String {
        let report = &self.report;
        let mut text = match part {
            Part::All => parts::all(report),
            Part::Jobs => parts::jobs(report),
            Part::Members => parts::members(report),
            Part::Ports => parts::ports(report),
            Part::Fabric => parts::fabric(report),
            Part::Macs => parts::macs(&self.macs, self.macs_left_out),
            Part::Queues => parts::queues(report),
            Part::Pool => parts::pool(report),
            Part::Cores => parts::cores(report),
            Part::Drops => parts::drops(report),
            Part::Events => parts::events(report),
            Part::Sessions => parts::sessions(report),
            Part::Rings => parts::rings(report),
            Part::Card => parts::card(report),
        };
        if let Some(seconds) = self.cleared_s.filter(|_| part.counts()) {
            text += &format!(
                "counted since {seconds:.0} s ago, when counters were cleared (--total: since the start)\n"
            );
        }
        text
    }

    /// A part as one line of JSON.
    #[must_use]
    pub fn json(&self, part: Part) -> String {
        let r = &self.report;
        match part {
            Part::All => r.json(),
            Part::Jobs => line(&r.jobs),
            Part::Members => line(&parts::member_rows(r)),
            Part::Ports | Part::Queues => line(&r.ports),
            Part::Fabric => line(&r.fabric),
            Part::Macs => line(&self.macs),
            Part::Pool => line(&parts::PoolView::new(r)),
            Part::Cores => line(&r.load),
            Part::Drops => line(&r.drops),
            Part::Events => line(&r.events),
            Part::Sessions => line(&r.switchml),
            Part::Rings => line(&r.netreduce),
            Part::Card => line(&r.card),
        }
    }
}

impl Part {
    /// Whether it shows counters.
    const fn counts(self) -> bool {
        !matches!(
            self,
            Self::Jobs | Self::Members | Self::Fabric | Self::Macs | Self::Events
        )
    }
}

fn line(value: &impl Serialize) -> String {
    // Strings, numbers, lists and maps with string keys: nothing that JSON cannot say.
    simd_json::to_string(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests;
