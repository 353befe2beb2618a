//! The fabric of which the switch is a part: its links as configured, and what is known of them.

mod thread;

pub use thread::FabricThread;

use crate::config::Config;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tally_engine::fabric::{Fabric, FabricConfig, LinkStatus, NeighbourStatus};
use tally_engine::forwarding::fabric::{Link, Plan};
use tally_schema::switch::report::FabricLinkReport;
use tally_wire::fabric::FabricKeys;

/// The links of the configuration; none: the switch is no part of a fabric.
#[must_use]
pub fn plan(config: &Config) -> Option<Plan> {
    config.fabric.as_ref()?;
    let links = config.fabric_links().map(|(port, link)| Link {
        port,
        switch: link.switch.clone(),
        is_up: link.up,
    });
    Some(Plan::new(links))
}

/// The fabric of a switch that starts, whose links are all dead; `session` is a random number.
#[must_use]
pub fn start(config: &Config, session: u64) -> Option<Fabric> {
    let section = config.fabric.as_ref()?;
    Some(Fabric::new(FabricConfig {
        name: config.name.clone()?,
        mac: config.address.mac,
        ip: config.address.ip,
        udp_port: config.address.udp_port,
        keys: FabricKeys {
            key: section.key.clone(),
            previous: section.previous_key.clone(),
        },
        plan: plan(config)?,
        session: session.max(1),
    }))
}

/// What is known of the fabric.
#[derive(Clone, Debug, Default)]
pub struct FabricFacts {
    /// Each link.
    pub links: Vec<LinkStatus>,
    /// The neighbours that are heard.
    pub neighbours: Vec<NeighbourStatus>,
}

/// What is known of the fabric: the thread that hears neighbours writes it, others read it.
#[derive(Clone, Debug, Default)]
pub struct FabricBoard(Arc<Mutex<FabricFacts>>);

impl FabricBoard {
    /// Puts new facts there.
    pub fn set(&self, facts: FabricFacts) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    /// All of it.
    #[must_use]
    pub fn facts(&self) -> FabricFacts {
        let facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.clone()
    }

    /// The links for a report; `name` is that of a port by its number.
    #[must_use]
    pub fn report(&self, name: impl Fn(u16) -> String) -> Vec<FabricLinkReport> {
        let of = |link: LinkStatus| FabricLinkReport {
            port: name(link.port.0),
            switch: link.switch,
            up: link.is_up,
            alive: link.alive_for.is_some(),
            alive_s: link.alive_for.as_ref().map_or(0.0, Duration::as_secs_f64),
            deaths: link.deaths,
            frames_lost: link.frames_lost,
            wrong: link.wrong,
            reach: link.reach,
            problem: link.problem.map(|problem| problem.to_string()),
        };
        self.facts().links.into_iter().map(of).collect()
    }
}
