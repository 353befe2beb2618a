//! The RoCE devices of rings, and the right to lock the memory that processes share.

use crate::config::{AgentConfig, AgentRing};
use std::path::Path;
use tally_schema::agent::doctor::Check;
use tally_verbs::{Device, VerbsError};

/// The limits of this process.
const LIMITS: &str = "/proc/self/limits";

pub(super) fn examine(config: &AgentConfig, file: &Path, checks: &mut Vec<Check>) {
    if config.rings.is_empty() {
        return;
    }
    checks.extend(config.rings.iter().map(|ring| device(ring, file)));
    let limits = std::fs::read_to_string(LIMITS).unwrap_or_default();
    checks.extend(locked(&limits, config.memory_mib));
}

fn device(ring: &AgentRing, file: &Path) -> Check {
    let AgentRing { id, address, .. } = ring;
    let error = match Device::open(*address) {
        Ok(device) => {
            let (name, mtu) = (device.name(), device.mtu());
            let found = format!("{id}: {name} has {address}, and payloads of up to {mtu} bytes");
            return Check::good("ring", found);
        }
        Err(error) => error,
    };
    let fix = match error {
        VerbsError::NoLibrary(_) => "apt-get install libibverbs1 ibverbs-providers".to_owned(),
        VerbsError::NoDevice { .. } => {
            let file = file.display();
            format!("rdma link; then correct rings[].address of ring {id} in {file}")
        }
        VerbsError::Device { .. } => "ls -l /dev/infiniband".to_owned(),
    };
    Check::bad("ring", format!("{id}: {error}"), fix)
}

/// Whether there may be too little memory for what a process may share.
fn locked(limits: &str, memory_mib: u32) -> Option<Check> {
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max locked memory"))?;
    // The soft limit, the hard one, and the unit.
    let bytes: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
    if bytes >= u64::from(memory_mib) << 20 {
        return None;
    }
    let found = format!(
        "{} KiB may be locked, and a process may share {memory_mib} MiB",
        bytes >> 10
    );
    let fix = "LimitMEMLOCK=infinity in the agent's unit (systemctl edit tally-agent), or ulimit -l unlimited";
    Some(Check::warning("locked memory", found, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_schema::agent::doctor::Verdict;

    #[test]
    fn a_limit_of_locked_memory_is_found() {
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max processes             95969                95969                processes \n\
                 Max locked memory         {soft}              8388608              bytes     \n"
            )
        };
        let check = locked(&limits("8388608"), 16).unwrap();
        assert_eq!(check.verdict, Verdict::Warning);
        let found = "8192 KiB may be locked, and a process may share 16 MiB";
        assert_eq!(check.found, found);
        assert!(locked(&limits("16777216"), 16).is_none());
        assert!(locked(&limits("unlimited"), 16).is_none());
        assert!(locked("", 16).is_none());
        let ours = std::fs::read_to_string(LIMITS).unwrap();
        assert!(ours.contains("Max locked memory"));
    }

    #[test]
    fn a_ring_without_its_device_is_bad() {
        let text = r#"{"switch": {"address": "10.84.0.254"},
            "transport": {"type": "udp", "bind": "127.0.0.1"}, "jobs": [],
            "rings": [{"id": 8, "key": "f0f102030405060708090a0b0c0d0e0f", "workers": 2,
                "address": "192.0.2.1", "coordinator": {"address": "127.0.0.1"}}]}"#;
        let config: AgentConfig = tally_config::parse("a.json", text.as_bytes()).unwrap();
        let check = device(&config.rings[0], Path::new("a.json"));
        assert_eq!(check.verdict, Verdict::Bad);
        assert!(check.found.starts_with("8: "), "{}", check.found);
        assert!(check.fix.is_some());
    }
}
