//! The way to the switch and back: how long frames may be, and what the switch says of the jobs.

use super::probe::{self, Said};
use super::tool::{self, Frames, Missing, Ping};
use super::{Check, Room};
use crate::config::{AgentConfig, AgentJob};
use crate::link::Link;
use std::net::Ipv4Addr;
use tally_endpoint::datagram_bytes;
use tally_wire::auth::TAG_BYTES;
use tally_wire::header::HEADER_BYTES;
use tally_wire::{MAX_PAYLOAD_BYTES, MAX_UNITS, UNIT_BYTES};

/// Headers of IPv4 and UDP, which an MTU covers.
const HEADERS_BYTES: usize = 20 + 8;
/// What the longest payloads need is below this, and networks are set up for this.
const JUMBO: usize = 9000;

/// What to do about a switch that is not there: first whether it is the right one that is asked.
/// Never a restart, which would end other hosts' jobs because of an address here.
pub(super) fn find_switch(config: &AgentConfig, file: &std::path::Path) -> String {
    format!(
        "compare switch.address {} in {} with address.ip of the switch; if it is that, on the switch: systemctl status \
         tally-switch; journalctl -u tally-switch",
        config.switch.address,
        file.display()
    )
}

/// Where the switch is looked for.
pub(super) struct Path<'a> {
    pub(super) config: &'a AgentConfig,
    pub(super) file: &'a std::path::Path,
    pub(super) interface: &'a str,
    pub(super) bind: Ipv4Addr,
    /// If they are known, and have room for the payload.
    pub(super) frames: Option<Frames>,
}

/// Bytes of the IPv4 packet with so many units of payload.
fn packet_bytes(units: u8) -> usize {
    HEADERS_BYTES + datagram_bytes(units)
}

/// The longest payload that an MTU has room for.
fn payload_in(mtu: usize) -> usize {
    let room = mtu.saturating_sub(HEADERS_BYTES + HEADER_BYTES + TAG_BYTES);
    room.min(MAX_PAYLOAD_BYTES) / UNIT_BYTES * UNIT_BYTES
}

/// What the interface says of its frames.
pub(super) fn frames(interface: &str) -> Result<Frames, Missing> {
    let found: Vec<Frames> = tool::ip(&["-d", "link", "show", "dev", interface])?;
    found.into_iter().next().ok_or_else(|| Missing {
        why: format!("`ip` does not show {interface}"),
        fix: format!("ip -d link show dev {interface}"),
    })
}

/// Whether an interface has, or could have, room for payloads twice as long.
pub(super) fn room(interface: &str, payload_bytes: usize) -> Option<Room> {
    let Frames { mtu, max_mtu } = frames(interface).ok()?;
    let best = payload_in(mtu);
    if best >= 2 * payload_bytes {
        return Some(Room::Unused(format!(
            "payload_bytes is {payload_bytes}, and the MTU of {interface}, {mtu}, has room for {best}: set it at all \
             agents of the jobs, if the switch has the MTU as well (tally-agent doctor)"
        )));
    }
    let could = payload_in(JUMBO.min(max_mtu));
    (could >= 2 * payload_bytes).then(|| {
        Room::Possible(format!(
            "{interface} has MTU {mtu} and could have {JUMBO}: payloads of {could} bytes instead of {payload_bytes} \
             would cost less CPU (tally-agent doctor)"
        ))
    })
}

/// What an interface lacks to carry payloads of so many bytes, if it does: its MTU may have become
/// smaller.
pub(super) fn too_long(interface: &str, payload_bytes: usize) -> Option<String> {
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?;
    let mtu: usize = mtu.trim().parse().ok()?;
    let needed = packet_bytes((payload_bytes / UNIT_BYTES) as u8);
    (mtu < needed).then(|| no_room(interface, mtu, payload_bytes))
}

fn no_room(interface: &str, mtu: usize, payload_bytes: usize) -> String {
    let needed = packet_bytes((payload_bytes / UNIT_BYTES) as u8);
    format!(
        "{interface} has MTU {mtu}, and payload_bytes {payload_bytes} needs {needed}: nothing will leave"
    )
}

/// Whether the interface takes the payload.
pub(super) fn payload(
    config: &AgentConfig,
    file: &std::path::Path,
    interface: &str,
    frames: &Result<Frames, Missing>,
) -> Check {
    let Frames { mtu, max_mtu } = match frames {
        Ok(frames) => *frames,
        Err(Missing { why, fix }) => {
            return Check::warning("mtu", format!("not known: {why}"), fix.clone());
        }
    };
    let bytes = config.payload_bytes as usize;
    let needed = packet_bytes((bytes / UNIT_BYTES) as u8);
    if mtu < needed {
        let found = no_room(interface, mtu, bytes);
        let shorter = payload_in(mtu);
        let lower = format!("\"payload_bytes\": {shorter} in {}", file.display());
        let fix = if max_mtu == 0 || max_mtu >= needed {
            let wanted = if needed > 1500 { JUMBO } else { 1500 };
            let mtu = if max_mtu == 0 {
                wanted
            } else {
                wanted.min(max_mtu)
            };
            format!("ip link set dev {interface} mtu {mtu}; or, at all agents of the jobs: {lower}")
        } else {
            format!("{lower}, and at all other agents of the jobs")
        };
        return Check::bad("mtu", found, fix);
    }
    if mtu < JUMBO && max_mtu >= JUMBO && payload_in(mtu) < MAX_PAYLOAD_BYTES {
        let found = format!(
            "{interface} has MTU {mtu}, and could have {JUMBO}: payloads of {MAX_PAYLOAD_BYTES} bytes instead of {bytes} \
             cost a fraction of the CPU. All hosts, the switch's `ports[].mtu` and what is between must have it; this \
             command tests the way once this interface has"
        );
        let fix = format!("ip link set dev {interface} mtu {JUMBO}");
        return Check::warning("mtu", found, fix);
    }
    Check::good(
        "mtu",
        format!("{interface} has {mtu}, and payload_bytes {bytes} needs {needed}"),
    )
}

pub(super) fn examine(way: &Path<'_>, link: &mut dyn Link, checks: &mut Vec<Check>) {
    let config = way.config;
    let (switch, port) = (config.switch.address, config.switch.port);
    let Some(said) = ask(config, link, checks) else {
        return;
    };
    if said.iter().all(Option::is_none) {
        checks.push(silent(way, link.trouble()));
        return;
    }
    let found = format!("{switch} answers at UDP port {port}");
    checks.push(Check::good("switch", found));
    if let Some(frames) = way.frames {
        checks.push(carries(way));
        checks.extend(longer(way, frames.mtu));
    }
    let known = said
        .iter()
        .position(|it| matches!(it, Some(Said::Known(_))));
    if let Some(known) = known {
        let Some(instance) = instance(checks) else {
            return;
        };
        match probe::trains_arrive(link, port, &asked(config)[known], instance) {
            Ok(true) => checks.push(Check::good(
                "trains",
                "datagrams that the kernel takes as one arrive",
            )),
            Ok(false) => {
                let found = format!(
                    "datagrams that the kernel takes as one do not arrive: {} leaves them whole, and no device on the way \
                     cuts them up",
                    way.interface
                );
                let fix = format!("ethtool -K {} tx-udp-segmentation off", way.interface);
                checks.push(Check::bad("trains", found, fix));
            }
            Err(why) => checks.push(Check::bad("trains", why.to_string(), "dmesg | tail")),
        }
    }
    checks.extend(verdicts(config, way.file, &said));
}

/// What the switch says of each job; `None` if it could not be asked.
pub(super) fn ask(
    config: &AgentConfig,
    link: &mut dyn Link,
    checks: &mut Vec<Check>,
) -> Option<Vec<Option<Said>>> {
    let instance = instance(checks)?;
    match probe::ask(link, config.switch.port, &asked(config), instance) {
        Ok(said) => Some(said),
        Err(why) => {
            checks.push(Check::bad("switch", why.to_string(), "dmesg | tail"));
            None
        }
    }
}

/// Jobs that the switch has as the agent has them; of a ring's racks it has other numbers.
fn by_switch(config: &AgentConfig) -> impl Iterator<Item = &AgentJob> {
    config.jobs.iter().filter(|job| job.ring().is_none())
}

/// What to ask of.
fn asked(config: &AgentConfig) -> Vec<probe::Asked> {
    let of = |job: &AgentJob| {
        let worker = config.worker(job, 0);
        probe::Asked {
            job: worker.job.job_id(),
            key: job.key.clone(),
            workers: job.hosts(),
            units: worker.units(),
            window: worker.window,
        }
    };
    by_switch(config).map(of).collect()
}

/// A random number for the probe, as every process that joins has one.
fn instance(checks: &mut Vec<Check>) -> Option<u64> {
    match getrandom::u64() {
        Ok(n) => Some(n | 1),
        Err(why) => {
            let found = format!("the system gives no random number: {why}");
            checks.push(Check::bad("switch", found, "ls -l /dev/urandom"));
            None
        }
    }
}

/// What `ip neighbour` says.
#[derive(serde::Deserialize)]
struct Neighbour {
    lladdr: Option<String>,
    #[serde(default)]
    state: Vec<String>,
}

/// The switch does not answer: how far do we get?
fn silent(way: &Path<'_>, trouble: Option<String>) -> Check {
    let Path {
        config,
        interface,
        bind,
        ..
    } = *way;
    let (switch, port) = (config.switch.address, config.switch.port);
    let to = switch.to_string();
    let look = format!("ip neighbour show {switch} dev {interface}");
    let neighbours: Result<Vec<Neighbour>, _> =
        tool::ip(&["neighbour", "show", &to, "dev", interface]);
    let neighbour = neighbours.ok().and_then(|it| it.into_iter().next());
    let failed = |it: &Neighbour| it.state.iter().any(|s| s == "FAILED" || s == "INCOMPLETE");
    match neighbour {
        Some(it) if it.lladdr.is_none() || failed(&it) => {
            let found = format!(
                "{switch} does not answer ARP on {interface}: the address is another, no switch runs there, or \
                 {interface} is not on it"
            );
            Check::bad("switch", found, find_switch(config, way.file))
        }
        Some(it) => {
            let mac = it.lladdr.unwrap_or_default();
            let pinged = tool::ping(bind, switch, 64);
            if matches!(pinged, Ping::Silent) {
                let found = format!(
                    "{switch} has been {mac}, and answers neither ping nor at UDP port {port} any more: the switch is \
                     down, or frames get lost"
                );
                return Check::bad("switch", found, find_switch(config, way.file));
            }
            let found = format!(
                "{switch} is {mac}, is alive, and says nothing at UDP port {port}: its `address.udp_port` is another, \
                 a firewall is between, or it is not the switch"
            );
            let fix = format!(
                "nft list ruleset; or \"port\" under `switch` in {}",
                way.file.display()
            );
            Check::bad("switch", found, fix)
        }
        None => {
            let trouble = trouble.map_or(String::new(), |it| format!(" ({it})"));
            let found = format!("{switch} does not answer at UDP port {port}{trouble}");
            Check::bad("switch", found, look)
        }
    }
}

/// Whether the way has room for what will be sent.
fn carries(way: &Path<'_>) -> Check {
    let Path { config, bind, .. } = *way;
    let switch = config.switch.address;
    let bytes = config.payload_bytes as usize;
    let needed = packet_bytes((bytes / UNIT_BYTES) as u8);
    match tool::ping(bind, switch, needed) {
        Ping::Answered => {
            let found = format!("carries packets of {needed} bytes to the switch and back");
            Check::good("path", found)
        }
        Ping::Silent => {
            let found = format!(
                "packets of {needed} bytes, as payload_bytes {bytes} makes them, do not get to the switch and back \
                 uncut"
            );
            let fix = format!(
                "\"mtu\": {} for all ports in the switch's configuration; or, at all agents of the jobs: \
                 \"payload_bytes\": {} in {}",
                if needed > 1500 { JUMBO } else { 1500 },
                if needed > 1500 {
                    payload_in(1500)
                } else {
                    payload_in(needed / 2)
                },
                way.file.display()
            );
            Check::bad("path", found, fix)
        }
        Ping::Impossible(Missing { why, fix }) => {
            let found = format!("whether it carries packets of {needed} bytes is not known: {why}");
            Check::warning("path", found, fix)
        }
    }
}

/// Whether longer payloads would do, where the interface has room for them.
fn longer(way: &Path<'_>, mtu: usize) -> Option<Check> {
    let Path { config, bind, .. } = *way;
    let bytes = config.payload_bytes as usize;
    let best = payload_in(mtu);
    // Less is not worth a change at all hosts.
    if best < 2 * bytes {
        return None;
    }
    let needed = packet_bytes((best / UNIT_BYTES).min(usize::from(MAX_UNITS)) as u8);
    let (interface, file) = (way.interface, way.file.display());
    Some(match tool::ping(bind, config.switch.address, needed) {
        Ping::Answered => {
            let found = format!(
                "{interface} and the way to the switch carry packets of {needed} bytes, and payload_bytes is {bytes}"
            );
            let fix = format!(
                "\"payload_bytes\": {best} in {file}, at all agents of the jobs; then: systemctl restart tally-agent"
            );
            Check::warning("payload", found, fix)
        }
        Ping::Silent => {
            let found = format!(
                "{interface} has MTU {mtu}, but packets of {needed} bytes do not get to the switch and back: payloads \
                 could be of {best} bytes instead of {bytes}"
            );
            let fix = format!(
                "\"mtu\": {JUMBO} for all ports in the switch's configuration, and for what is between"
            );
            Check::warning("payload", found, fix)
        }
        Ping::Impossible(_) => return None,
    })
}

/// What the switch's words mean, job by job.
pub(super) fn verdicts(
    config: &AgentConfig,
    file: &std::path::Path,
    said: &[Option<Said>],
) -> Vec<Check> {
    let file = file.display();
    let one = |(job, said): (&AgentJob, &Option<Said>)| {
        let id = job.id;
        match said {
            Some(Said::Known(on)) => known(job, *on, &file.to_string()),
            Some(Said::Unknown) => {
                let found = format!("{id}: the switch has no such job");
                let fix = format!(
                    "correct jobs[].id in {file}; or {{\"id\": {id}, \"key\": …, \"workers\": {}}} under `jobs` in the \
                     switch's configuration, then there: systemctl reload tally-switch",
                    job.hosts()
                );
                Check::bad("job", found, fix)
            }
            Some(Said::OtherKey) => {
                let found = format!("{id}: the switch has another key for it");
                let fix =
                    format!("jobs[].key of job {id} in {file} as in the switch's configuration");
                Check::bad("job", found, fix)
            }
            Some(Said::Forged) => {
                let found = format!(
                    "{id}: the answer is not under the job's key, and does not say so: it is not from the switch"
                );
                let fix = format!("ip neighbour show {}", config.switch.address);
                Check::bad("job", found, fix)
            }
            None => {
                let found = format!("{id}: the switch did not answer for it, and did for others");
                Check::warning("job", found, format!("tally-agent doctor --config {file}"))
            }
        }
    };
    by_switch(config).zip(said).map(one).collect()
}

/// What the switch has of a job whose key is ours.
fn known(job: &AgentJob, on: probe::Job, file: &str) -> Check {
    let id = job.id;
    match on.workers {
        Some(workers) if workers != job.hosts() => {
            let each = job.ranks_per_host;
            let ours = match each {
                1 => job.workers.to_string(),
                _ => format!("{} ({} ranks, {each} a host)", job.hosts(), job.workers),
            };
            let found = format!(
                "{id}: the switch has {workers} workers, and {file} has {ours}: none can join"
            );
            let ranks = u32::from(workers) * u32::from(each);
            let fix = format!("\"workers\": {ranks} of job {id} in {file}, or at the switch");
            Check::bad("job", found, fix)
        }
        Some(workers) if !on.has_ps => {
            let found = format!(
                "{id}: the switch has our key and workers ({workers}), and no parameter server has joined: the job waits"
            );
            let fix = format!(
                "on its host: systemctl status tally-ps; tally-agent ps --config ps.json with job {id}"
            );
            Check::warning("job", found, fix)
        }
        Some(workers) => {
            let found = format!(
                "{id}: the switch has our key, our workers ({workers}), and the parameter server"
            );
            Check::good("job", found)
        }
        None => Check::good("job", format!("{id}: the switch knows it, and has our key")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn config(payload_bytes: u32) -> AgentConfig {
        let text = format!(
            r#"{{"switch": {{"address": "10.84.0.254"}}, "transport": {{"type": "udp", "bind": "10.84.0.1"}},
                "jobs": [{{"id": 7, "key": "000102030405060708090a0b0c0d0e0f", "workers": 4}}],
                "payload_bytes": {payload_bytes}}}"#
        );
        tally_config::parse("a.json", text.as_bytes()).unwrap()
    }

    #[test]
    fn payloads_fit_what_they_are_said_to_fit() {
        assert_eq!(payload_in(1500), 1408);
        assert_eq!(payload_in(9000), 8192);
        assert_eq!(payload_in(0), 0);
        // Below, members could not even join.
        for mtu in packet_bytes(0)..10_000 {
            let units = (payload_in(mtu) / UNIT_BYTES) as u8;
            assert!(packet_bytes(units) <= mtu);
            assert!(units == MAX_UNITS || packet_bytes(units + 1) > mtu);
        }
    }

    #[test]
    fn an_mtu_is_validated_against_the_payload_and_by_what_could_be() {
        let validate = |bytes, mtu, max_mtu| {
            let frames = Ok(Frames { mtu, max_mtu });
            let file = std::path::Path::new("a.json");
            let check = payload(&config(bytes), file, "eth1", &frames);
            (check.verdict, check.fix.unwrap_or_default())
        };
        let up = "ip link set dev eth1 mtu 9000";
        assert_eq!(validate(1024, 1500, 1500).0, Verdict::Good);
        assert_eq!(validate(1024, 1500, 9600), (Verdict::Warning, up.into()));
        assert_eq!(validate(8192, 9000, 9600).0, Verdict::Good);
        let (verdict, fix) = validate(8192, 1500, 9600);
        assert_eq!(verdict, Verdict::Bad);
        assert!(fix.starts_with(up) && fix.contains("1408"), "{fix}");
        let (verdict, fix) = validate(8192, 1500, 1500);
        assert_eq!(verdict, Verdict::Bad);
        assert!(!fix.contains("ip link"), "{fix}");
        assert_eq!(validate(1024, 65_536, 0).0, Verdict::Good);
    }
}
