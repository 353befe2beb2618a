//! Which CPUs the switch gets, and which the hosts share.

use anyhow::{Result, ensure};
use serde::Serialize;

/// Which CPUs who may use.
#[derive(Clone, Debug, Serialize)]
pub struct Cpus {
    /// The switch's data cores.
    pub switch: Vec<usize>,
    /// Workers and PS.
    pub hosts: Vec<usize>,
}

impl Cpus {
    /// The first `cores` CPUs for the switch and the others for the hosts; if that leaves them
    /// none, they share all.
    ///
    /// # Errors
    /// If there are fewer CPUs.
    pub fn of_this_machine(cores: usize) -> Result<Self> {
        let cpus = allowed_cpus();
        ensure!(
            (1..=cpus.len()).contains(&cores),
            "{cores} data cores on {} CPUs",
            cpus.len()
        );
        let (switch, hosts) = cpus.split_at(cores);
        let hosts = if hosts.is_empty() { &cpus } else { hosts };
        Ok(Self {
            switch: switch.to_vec(),
            hosts: hosts.to_vec(),
        })
    }

    /// Lets the hosts use the switch's as well.
    pub fn share(&mut self) {
        self.hosts = [&self.switch[..], &self.hosts[..]].concat();
        self.hosts.sort_unstable();
        self.hosts.dedup();
    }

    /// As `taskset` takes them.
    #[must_use]
    pub fn list(cpus: &[usize]) -> String {
        cpus.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }
}

fn allowed_cpus() -> Vec<usize> {
    core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect()
}
