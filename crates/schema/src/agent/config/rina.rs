//! A ring over racks (Rina), as the agents of its hosts are told about it.

use serde::{Deserialize, Serialize};
use std::net::SocketAddrV4;
use std::path::Path;
use tally_config::ConfigError;
use tally_wire::MAX_WORKERS;

/// Hosts of a rack that sums: what its switch sums in one job.
const SUMMING_HOSTS_MAX: usize = MAX_WORKERS;

/// What sums a job.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// One switch, or a tree of switches, that all hosts reach.
    #[default]
    Switch,
    /// A ring of racks and hosts (Rina), by `rina`.
    Ring,
}

impl Algorithm {
    pub(super) const fn is_switch(&self) -> bool {
        matches!(self, Self::Switch)
    }

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Ring => "ring",
        }
    }
}

/// Racks of a job, the same at all agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRina {
    /// Racks in the order of the ring. Hosts count from 0 through all racks; with N ranks of a
    /// host, ranks N * h to N * h + N - 1 are on host h.
    pub racks: Vec<RinaRack>,
}

/// One rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RinaRack {
    /// Whether its switch sums: it has the job, with a worker for each of `hosts`. The first host
    /// is the rack's agent. Otherwise each host is a member of the ring by itself.
    pub sums: bool,
    /// Address and TCP port at which the agent of each host listens for its predecessor; each job
    /// needs a port of its own.
    pub hosts: Vec<SocketAddrV4>,
}

impl JobRina {
    /// Hosts of all racks.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.racks.iter().map(|rack| rack.hosts.len()).sum()
    }

    /// Looks for values that make no sense, for a job of this many hosts. `key` is that of the job.
    pub(super) fn check(&self, path: &Path, key: &str, hosts: usize) -> Result<(), ConfigError> {
        let wrong = |name: String, found: &dyn std::fmt::Display, allowed: &str| {
            let key = format!("{key}.rina.racks{name}");
            Err(ConfigError::value(path, key, found, allowed))
        };
        let mut seen = Vec::new();
        for (r, rack) in self.racks.iter().enumerate() {
            let count = rack.hosts.len();
            if count == 0 {
                return wrong(format!("[{r}].hosts"), &"none", "one host or more");
            }
            if rack.sums && count > SUMMING_HOSTS_MAX {
                let allowed = format!("1 to {SUMMING_HOSTS_MAX} hosts in a rack that sums");
                return wrong(format!("[{r}].hosts"), &format!("{count} hosts"), &allowed);
            }
            for (h, host) in rack.hosts.iter().enumerate() {
                let (name, ip) = (format!("[{r}].hosts[{h}]"), host.ip());
                if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || host.port() == 0
                {
                    return wrong(name, host, "address and TCP port of one host");
                }
                if seen.contains(host) {
                    return wrong(name, host, "every host once");
                }
                seen.push(*host);
            }
        }
        if seen.len() != hosts {
            let allowed = format!("{hosts} hosts in all racks, as the job has");
            return wrong(String::new(), &format!("{} hosts", seen.len()), &allowed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::AgentConfig;
    use std::path::Path;

    fn agent(jobs: &str) -> Result<AgentConfig, String> {
        let text = format!(
            r#"{{"switch": {{"address": "10.84.0.254"}},
                "transport": {{"type": "udp", "bind": "10.84.0.1"}}, "jobs": [{jobs}]}}"#
        );
        let config: AgentConfig =
            tally_config::parse("a.json", text.as_bytes()).map_err(|it| it.to_string())?;
        config
            .check(Path::new("a.json"))
            .map_err(|it| it.to_string())?;
        Ok(config)
    }

    fn job(id: u16, rest: &str) -> String {
        format!(r#"{{"id": {id}, "key": "000102030405060708090a0b0c0d{id:04x}", {rest}}}"#)
    }

    fn ring(workers: u16, racks: &str) -> String {
        format!(r#""workers": {workers}, "algorithm": "ring", "rina": {{"racks": [{racks}]}}"#)
    }

    const SUMS: &str = r#"{"sums": true, "hosts": ["10.1.0.1:4791", "10.1.0.2:4791"]}"#;
    const PLAIN: &str = r#"{"sums": false, "hosts": ["10.2.0.1:4791"]}"#;

    #[test]
    fn racks_have_the_hosts_of_the_job() {
        let config = agent(&job(7, &ring(3, &format!("{SUMS}, {PLAIN}")))).unwrap();
        let rina = config.jobs[0].rina.as_ref().unwrap();
        assert_eq!((rina.hosts(), rina.racks.len()), (3, 2));
        let eight = ring(6, &format!("{SUMS}, {PLAIN}"));
        assert!(agent(&job(7, &format!(r#"{eight}, "ranks_per_host": 2"#))).is_ok());
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        let many: Vec<_> = (1..=65).map(|n| format!("\"10.1.0.{n}:1\"")).collect();
        let many = format!(r#"{{"sums": true, "hosts": [{}]}}"#, many.join(", "));
        for (jobs, want) in [
            (
                job(7, r#""workers": 3, "algorithm": "ring""#),
                "jobs[0].rina: found nothing, expected racks and hosts, as `algorithm` is ring",
            ),
            (
                job(7, &ring(4, &format!("{SUMS}, {PLAIN}"))),
                "jobs[0].rina.racks: found 3 hosts, expected 4 hosts in all racks, as the job has",
            ),
            (
                job(7, &ring(4, &format!("{SUMS}, {SUMS}"))),
                "jobs[0].rina.racks[1].hosts[0]: found 10.1.0.1:4791, expected every host once",
            ),
            (
                job(7, &ring(1, r#"{"sums": true, "hosts": []}"#)),
                "jobs[0].rina.racks[0].hosts: found none, expected one host or more",
            ),
            (
                job(7, &ring(65, &many)),
                "jobs[0].rina.racks[0].hosts: found 65 hosts, expected 1 to 64 hosts in a rack that sums",
            ),
            (
                job(7, &ring(1, r#"{"sums": true, "hosts": ["10.1.0.1:0"]}"#)),
                "jobs[0].rina.racks[0].hosts[0]: found 10.1.0.1:0, expected address and TCP port of one host",
            ),
            (
                format!("{}, {}", job(7, &ring(1, PLAIN)), job(8, &ring(1, PLAIN))),
                "jobs[1].rina: found 10.2.0.1:4791, expected a port of its own: jobs[0] has it",
            ),
        ] {
            assert_eq!(agent(&jobs).unwrap_err(), format!("a.json: {want}"));
        }
        let error = agent(&job(7, r#""workers": 1, "algorithm": "tree""#)).unwrap_err();
        assert!(error.contains("expected `switch` or `ring`"), "{error}");
    }

    #[test]
    fn a_rack_that_sums_needs_the_kernel_s_udp() {
        let config = |racks: &str| {
            let mut config = agent(&job(7, &ring(1, PLAIN))).unwrap();
            let dpdk = r#"{"type": "dpdk", "device": "net_null0", "mac": "02:00:00:00:00:01",
                "address": "10.84.0.1"}"#;
            config.transport = crate::golden::parse(dpdk);
            config.jobs = vec![crate::golden::parse(&job(7, &ring(1, racks)))];
            config
                .check(Path::new("a.json"))
                .map_err(|it| it.to_string())
        };
        assert_eq!(config(PLAIN), Ok(()));
        let error = config(r#"{"sums": true, "hosts": ["10.1.0.1:1"]}"#).unwrap_err();
        assert!(error.contains("expected udp"), "{error}");
    }
}
