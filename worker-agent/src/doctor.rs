//! `tally-agent doctor`: looks for what keeps a host from taking part in its jobs, or from doing so
//! at full speed.
//!
//! Each [`Check`] says what was found and, unless it is good, what to do about it. They are in the
//! order in which things depend on each other: the configuration and the local socket, the host's
//! interface, the switch, the jobs. What depends on something that is bad is left out, so that the
//! first bad line is the one to begin with.
//!
//! The switch is asked for each job with a JOIN that it must refuse (`probe.rs`): nobody's place is
//! taken, and no incarnation is opened, also while the job runs.
//!
//! # The catches
//!
//! * The kernel's side is asked with `ip`, `ethtool` and `ping`. Where one is missing, that is said
//!   in place of what it would have found.
//! * What the doctor may do (socket buffers, opening the device) is what its own user may: run it
//!   as the agent's.
//! * Firewalls are not looked at. The probe's answers get through those that track connections;
//!   results come to a group, from the switch, to the UDP port of its configuration (31249), and
//!   must be let in.

mod device;
mod interface;
mod local;
mod path;
mod probe;
mod ring;
mod tool;

use crate::config::{AgentConfig, AgentTransport, Transport};
use std::net::Ipv4Addr;
use std::path::Path;
use tally_schema::agent::doctor::{Check, Diagnosis, Verdict};

/// Longer payloads than the configured ones.
pub(crate) enum Room {
    /// The interface has room for them already.
    Unused(String),
    /// It could have.
    Possible(String),
}

/// What the interface with address `bind` has room for, or could have, beyond `payload_bytes`.
pub(crate) fn room_in(bind: Ipv4Addr, payload_bytes: usize) -> Option<Room> {
    path::room(&interface::name_of(bind)?, payload_bytes)
}

/// Why no payload leaves the interface that the transport sends by, if the kernel says so.
pub(crate) fn obstacle(transport: &Transport, payload_bytes: u32) -> Option<String> {
    let Transport::Udp { bind } = transport else {
        return None;
    };
    path::too_long(&interface::name_of(*bind.ip())?, payload_bytes as usize)
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<_> = names.collect();
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

/// Looks at all that an agent with the configuration at `path` needs. Takes less than ten seconds.
#[must_use]
pub fn examine(path: &Path) -> Diagnosis {
    let mut checks = Vec::new();
    let config = match AgentConfig::load(path) {
        Ok(config) => {
            let jobs = config.jobs.iter().map(|it| it.id.to_string());
            let mut found = format!("{}: jobs {}", path.display(), listed(jobs));
            if !config.rings.is_empty() {
                let rings = config.rings.iter().map(|it| it.id.to_string());
                found += &format!(", rings {}", listed(rings));
            }
            checks.push(Check::good("configuration", found));
            Some(config)
        }
        Err(error) => {
            checks.push(local::unusable(path, &error));
            None
        }
    };
    if let Some(config) = &config {
        checks.push(local::keys(path));
        let (check, agent) = local::agent(&config.socket, path);
        checks.push(check);
        match &config.transport {
            // There is nothing to ask the switch for.
            _ if config.jobs.is_empty() => {}
            AgentTransport::Udp { bind } => interface::examine(config, path, *bind, &mut checks),
            AgentTransport::Dpdk { .. } => device::examine(config, path, agent, &mut checks),
        }
        ring::examine(config, path, &mut checks);
    }
    let count = |verdict| checks.iter().filter(|it| it.verdict == verdict).count();
    Diagnosis {
        bad: count(Verdict::Bad),
        warnings: count(Verdict::Warning),
        checks,
    }
}
