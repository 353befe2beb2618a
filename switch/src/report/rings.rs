//! NetReduce's part of a report.

use super::by_name;
use crate::messages::CoreReport;
use tally_engine::metrics::MetricSet as _;
use tally_engine::netreduce::{NetreduceCounters, NetreduceUse, RingRole, RingStatus};
use tally_schema::switch::report::{NetreduceLimits, NetreduceReport, RingReport};

/// The sum of what the cores say; `None` if the switch serves no rings. They may hold `held`
/// frames.
pub(super) fn report(held: Option<u32>, cores: &[CoreReport]) -> Option<NetreduceReport> {
    let held = held?;
    let mut counters = NetreduceCounters::default();
    let mut in_use = NetreduceUse::default();
    let mut rings = Vec::new();
    for part in cores.iter().filter_map(|core| core.netreduce.as_ref()) {
        counters.add(&part.counters);
        in_use.add(&part.in_use);
        rings.extend(part.rings.iter().map(ring));
    }
    rings.sort_by_key(|ring| ring.id);
    Some(NetreduceReport {
        counters: by_name(&counters),
        in_use,
        limits: NetreduceLimits { held },
        rings,
    })
}

fn ring(status: &RingStatus) -> RingReport {
    let (root, leaves) = match &status.role {
        RingRole::Alone => (None, Vec::new()),
        RingRole::Leaf { root, .. } => (Some(root.as_str().to_owned()), Vec::new()),
        RingRole::Root { leaves } => {
            let names = leaves.iter().map(|leaf| leaf.as_str().to_owned());
            (None, names.collect())
        }
    };
    RingReport {
        id: status.id.0,
        members: status.members.iter().map(ToString::to_string).collect(),
        epoch: status.epoch.map(|epoch| epoch.0),
        missing: status.missing.clone(),
        root,
        awaits_root: status.awaits_root,
        leaves,
        counters: status.counters,
    }
}
