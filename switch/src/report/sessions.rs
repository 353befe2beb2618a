//! SwitchML's part of a report: its sessions, and who in them is behind.

use super::{PortShape, by_name};
use crate::messages::CoreReport;
use crate::plane::{Directory, add_statuses};
use std::collections::BTreeMap;
use std::time::Duration;
use tally_engine::metrics::MetricSet as _;
use tally_engine::switchml::{
    HostAddress, RankStatus, SessionId, SessionStatus, SwitchmlCounters, SwitchmlUse,
};
use tally_schema::switch::report::{
    RankGauges, RankReport, SessionGauges, SessionReport, SwitchmlLimits, SwitchmlReport,
};
use tally_wire::Time;

/// The sum of what the cores say; `None` if the switch has no SwitchML.
pub(super) fn report(
    limits: Option<(u16, u32)>,
    up: Duration,
    ports: &[PortShape],
    cores: &[CoreReport],
    directory: &Directory,
) -> Option<SwitchmlReport> {
    let (sessions_max, held) = limits?;
    let mut counters = SwitchmlCounters::default();
    let mut statuses = BTreeMap::new();
    let mut in_use = SwitchmlUse::default();
    for part in cores.iter().filter_map(|core| core.switchml.as_ref()) {
        counters.add(&part.counters);
        in_use.add(&part.in_use);
        add_statuses(&mut statuses, part.sessions.iter().cloned());
    }
    let now = Time(up.as_nanos() as u64);
    let bound = directory.all();
    let of = |(id, status): (SessionId, SessionStatus)| {
        // One that was bound or unbound since the cores were asked is not there.
        let bound = bound.get(&id)?;
        let ranks = bound.session.workers.iter().zip(&status.ranks);
        Some(SessionReport {
            id: id.to_string(),
            gauges: SessionGauges {
                seconds: now.since(bound.since).as_secs_f64(),
            },
            packet_bytes: bound.session.size.payload_bytes(),
            counters: status.counters,
            ranks: ranks
                .map(|(station, rank)| rank_report(station, rank, now, ports))
                .collect(),
        })
    };
    Some(SwitchmlReport {
        counters: by_name(&counters),
        in_use,
        limits: SwitchmlLimits { held, sessions_max },
        sessions: statuses.into_iter().filter_map(of).collect(),
    })
}

fn rank_report(
    station: &HostAddress,
    rank: &RankStatus,
    now: Time,
    ports: &[PortShape],
) -> RankReport {
    let port = rank.port.and_then(|port| ports.get(usize::from(port.0)));
    RankReport {
        mac: station.mac.to_string(),
        ip: station.ip.to_string(),
        port: port.map(|port| port.name.clone()),
        counters: rank.counters,
        gauges: RankGauges {
            silent_s: rank.last.map(|last| now.since(last).as_secs_f64()),
        },
    }
}
