//! Links to switches below, and tables that say which of them live.

use std::sync::Arc;
use tally_engine::PortId;
use tally_engine::forwarding::fabric::{FloodSets, Link, NeighbourState, Plan, Table};
use tally_wire::Mac;

/// A link to a switch below.
pub fn below(port: u16, switch: &str) -> Link {
    Link {
        port: PortId(port),
        switch: switch.into(),
        is_up: false,
    }
}

/// A link to a switch above.
pub fn above(port: u16, switch: &str) -> Link {
    Link {
        is_up: true,
        ..below(port, switch)
    }
}

/// A table in which each neighbour of the plan has these live links, and reaches or has reached all
/// that these others have.
pub fn table(plan: &Plan, neighbours: &[(&[u16], &[usize])]) -> Arc<Table> {
    let states = neighbours.iter().enumerate();
    let states = states.map(|(at, (live, covered))| NeighbourState {
        live: live.iter().copied().map(PortId).collect(),
        mac: Some(Mac([2, 0, 0, 0, 7, at as u8])),
        covers: match live.is_empty() {
            true => Vec::new(),
            false => covered.to_vec(),
        },
        covered: covered.to_vec(),
        is_equal: true,
        ..NeighbourState::default()
    });
    let states: Vec<_> = states.collect();
    Arc::new(Table::new(plan, &states, &FloodSets::default(), 1))
}
