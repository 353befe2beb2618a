//! What a ring is opened from: the configuration as the plan has it.

use super::identity::MemberName;
use super::wire::SEGMENT_BYTES;
use crate::config::{JobRina, WorkerConfig};
use crate::log::Log;
use tally_rina::Rack;

/// What a ring is opened from.
pub(crate) struct Setting<'a> {
    /// That of the host in the job.
    pub(crate) config: &'a WorkerConfig,
    pub(crate) rina: &'a JobRina,
    /// Ranks of each host.
    pub(crate) parts: u16,
    pub(crate) log: Log,
    /// Job and rank, for the log.
    pub(crate) name: &'a str,
}

impl Setting<'_> {
    /// The number of the host in the job.
    pub(super) fn host(&self) -> usize {
        self.config.job.rank.unwrap_or_default().into()
    }

    /// The rack of this host, and its first host's number.
    pub(super) fn rack(&self) -> (usize, usize) {
        let (mut first, host) = (0, self.host());
        for (rack, it) in self.rina.racks.iter().enumerate() {
            if host < first + it.hosts.len() {
                return (rack, first);
            }
            first += it.hosts.len();
        }
        unreachable!("the configuration's check counts hosts")
    }

    /// Whether the host's rack sums.
    pub(crate) fn sums(&self) -> bool {
        self.rina.racks[self.rack().0].sums
    }

    /// The first host of the rack.
    pub(crate) fn first_host(&self) -> u16 {
        self.rack().1 as u16
    }

    /// What the worker of the rack's job would be told.
    pub(super) fn of_rack(&self) -> WorkerConfig {
        let (rack, first) = self.rack();
        let mut config = self.config.clone();
        config.job.workers = self.rina.racks[rack].hosts.len() as u16;
        config.job.rank = Some((self.host() - first) as u16);
        // The ring names who is missing, and the agent passes it on.
        let is_agent = self.host() == first;
        let stall = &mut config.timeouts.stall_ms;
        *stall = *stall * if is_agent { 5 } else { 8 } / 4;
        config
    }

    /// Racks as the plan has them, and the members.
    pub(super) fn members(&self) -> (Vec<Rack>, Vec<MemberName>) {
        let (mut racks, mut members) = (Vec::new(), Vec::new());
        let mut host = 0u16;
        for rack in &self.rina.racks {
            let count = rack.hosts.len() as u16;
            racks.push(Rack {
                workers: (host..host + count).collect(),
                sums: rack.sums,
            });
            let each = if rack.sums { count } else { 1 };
            for (at, address) in rack.hosts.iter().enumerate().step_by(each.into()) {
                let first = (host + at as u16) * self.parts;
                members.push(MemberName {
                    address: *address,
                    ranks: (first, first + each * self.parts),
                });
            }
            host += count;
        }
        (racks, members)
    }

    /// What all hosts must have alike, in words.
    pub(super) fn plan_words(&self) -> String {
        let WorkerConfig {
            job, payload_bytes, ..
        } = self.config;
        let parts = self.parts;
        let mut words = format!(
            "tally rina 1: job {}, segment {SEGMENT_BYTES}, payload {payload_bytes}, ranks {parts}",
            job.id
        );
        for rack in &self.rina.racks {
            words.push_str(if rack.sums { "; sums" } else { "; plain" });
            rack.hosts
                .iter()
                .for_each(|host| words.push_str(&format!(" {host}")));
        }
        words
    }
}
