//! The examples in `configs/`: that they fit together, and that the schemas take them.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tally_schema::agent::config::{AgentConfig, AgentTransport, PsConfig, Transport, WorkerConfig};
use tally_schema::json_schema::File;
use tally_schema::switch::config::Config;
use tally_wire::Key;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs")
}

fn switch(name: &str) -> Config {
    Config::load(&folder().join(name)).unwrap()
}

/// What a host says of a job: its number, its key, its workers if it knows them, and the switch.
struct Member {
    file: String,
    job: u16,
    key: Key,
    workers: Option<u16>,
    payload_bytes: u32,
    switch: (Ipv4Addr, u16),
    address: Ipv4Addr,
    device: Option<String>,
}

fn of_transport(transport: &Transport) -> (Ipv4Addr, Option<String>) {
    match transport {
        Transport::Udp { bind } => (*bind.ip(), None),
        Transport::Dpdk {
            device, address, ..
        } => (*address, Some(device.clone())),
    }
}

fn members(kind: &str) -> Vec<Member> {
    let at = |program: &str| folder().join(format!("{program}-{kind}.json"));
    let agent = AgentConfig::load(at("agent")).unwrap();
    let worker = WorkerConfig::load(at("worker")).unwrap();
    let ps = PsConfig::load(at("ps")).unwrap();
    let (agent_address, agent_device) = match &agent.transport {
        AgentTransport::Udp { bind } => (*bind, None),
        AgentTransport::Dpdk {
            device, address, ..
        } => (*address, Some(device.clone())),
    };
    let (worker_address, worker_device) = of_transport(&worker.transport);
    let (ps_address, ps_device) = of_transport(&ps.transport);
    vec![
        Member {
            file: format!("agent-{kind}"),
            job: agent.jobs[0].id,
            key: agent.jobs[0].key.clone(),
            workers: Some(agent.jobs[0].workers),
            payload_bytes: agent.payload_bytes,
            switch: (agent.switch.address, agent.switch.port),
            address: agent_address,
            device: agent_device,
        },
        Member {
            file: format!("worker-{kind}"),
            job: worker.job.id,
            key: worker.job.key.clone(),
            workers: Some(worker.job.workers),
            payload_bytes: worker.payload_bytes,
            switch: (worker.switch.address, worker.switch.port),
            address: worker_address,
            device: worker_device,
        },
        Member {
            file: format!("ps-{kind}"),
            job: ps.jobs[0].id,
            key: ps.jobs[0].key.clone(),
            workers: None,
            payload_bytes: 64,
            switch: (ps.switch.address, ps.switch.port),
            address: ps_address,
            device: ps_device,
        },
    ]
}

/// The arguments of a memif that both ends have alike.
fn ends(device: &str) -> Vec<&str> {
    let same = ["id=", "socket=", "socket-abstract=", "bsize=", "rsize="];
    let arguments = device.split(',');
    let mut ends: Vec<_> = arguments
        .filter(|it| same.iter().any(|key| it.starts_with(key)))
        .collect();
    ends.sort_unstable();
    ends
}

#[test]
fn the_examples_fit_together() {
    for (kind, switches) in [
        ("udp", &["switch-interfaces.json"][..]),
        ("memif", &["switch-memif.json", "switch-card.json"]),
    ] {
        for name in switches {
            let switch = switch(name);
            let mut addresses = vec![switch.address.ip];
            for member in members(kind) {
                let file = format!("{}.json with {name}", member.file);
                let job = switch.jobs.iter().find(|job| job.id == member.job);
                let job = job.unwrap_or_else(|| panic!("{file}: job"));
                assert_eq!(job.key, member.key, "{file}: key");
                assert_eq!(
                    member.workers.unwrap_or(job.workers.into()),
                    u16::from(job.workers),
                    "{file}: workers"
                );
                assert!(
                    member.payload_bytes <= u32::from(switch.units()) * 64,
                    "{file}: payload"
                );
                let address = (switch.address.ip, switch.address.udp_port);
                assert_eq!(member.switch, address, "{file}: switch");
                let network = |it: Ipv4Addr| it.octets()[..3].to_vec();
                assert_eq!(
                    network(member.address),
                    network(switch.address.ip),
                    "{file}: network"
                );
                // Agent and worker are two ways of one host.
                if !member.file.starts_with("worker") {
                    assert!(!addresses.contains(&member.address), "{file}: address");
                    addresses.push(member.address);
                }
                if let Some(device) = &member.device {
                    let mut ports = switch.ports.iter();
                    let other = ports.find(|port| ends(&port.device) == ends(device));
                    let other = other.unwrap_or_else(|| panic!("{file}: no port for {device}"));
                    assert!(other.device.contains("role=server"), "{file}");
                }
            }
        }
    }
}

/// Parameter servers of the fabric's example serve jobs that their switch has, by its key.
#[test]
fn the_parameter_servers_of_the_fabric_fit_its_switches() {
    let mut switches = Vec::new();
    let mut servers = Vec::new();
    for entry in folder().join("fabric").read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("switch-") {
            switches.push(Config::load(&path).unwrap());
        } else {
            servers.push((name, PsConfig::load(&path).unwrap()));
        }
    }
    assert_eq!((switches.len(), servers.len()), (6, 2));
    for (name, ps) in &servers {
        let (address, port) = (ps.switch.address, ps.switch.port);
        let mut all = switches.iter();
        let switch = all.find(|it| (it.address.ip, it.address.udp_port) == (address, port));
        let switch = switch.unwrap_or_else(|| panic!("{name}: no switch {address}:{port}"));
        assert!(name.contains(switch.name.as_deref().unwrap()), "{name}");
        let here = switch.jobs.iter().map(|it| (it.id, &it.key));
        assert!(ps.jobs.iter().map(|it| (it.id, &it.key)).eq(here), "{name}");
    }
}

/// Checks a JSON text with a schema: its faults, or `None` without Python's jsonschema.
fn faults(schema: &str, text: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let (of, file) = (folder.path().join("schema"), folder.path().join("file"));
    std::fs::write(&of, schema).unwrap();
    std::fs::write(&file, text).unwrap();
    let script = "import json, jsonschema, sys\n\
                  schema, file = (json.load(open(path)) for path in sys.argv[1:])\n\
                  jsonschema.Draft202012Validator.check_schema(schema)\n\
                  for it in jsonschema.Draft202012Validator(schema).iter_errors(file): print(it.message)";
    let python = Path::new("/usr/bin/python3");
    let run = Command::new(python)
        .args(["-c", script])
        .args([&of, &file])
        .stderr(Stdio::piped())
        .output();
    let Ok(output) = run else { return None };
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("No module named 'jsonschema'") {
        return None;
    }
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_schemas_take_every_example_and_refuse_what_the_programs_refuse() {
    let mut files = 0;
    let folders = [folder(), folder().join("fabric")];
    let entries = folders.iter().flat_map(|it| it.read_dir().unwrap());
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(kind) = name
            .strip_suffix(".json")
            .and_then(|it| it.split('-').next())
        else {
            continue;
        };
        let Ok(file) = kind.parse::<File>() else {
            // Of `tally-controller`, which tests its own.
            assert_eq!(name, "fleet.json");
            continue;
        };
        let schema = file.schema();
        let text = std::fs::read_to_string(&path).unwrap();
        let Some(found) = faults(&schema, &text) else {
            // Past the harness, which keeps to itself what passing tests say.
            let why = "SKIPPED: schemas: no jsonschema (Debian: python3-jsonschema)";
            let _ = writeln!(std::io::stderr(), "{why}");
            return;
        };
        assert_eq!(found, "", "{name}");
        files += 1;
        let unknown = text.replacen('{', "{\"colour\": 1, ", 1);
        assert!(
            faults(&schema, &unknown).unwrap().contains("colour"),
            "{name}"
        );
        if text.contains("\"key\"") {
            let in_file = text.replace("\"key\"", "\"key_file\"");
            assert_eq!(faults(&schema, &in_file).unwrap(), "", "{name}");
            let none = text.replace("\"key\"", "\"yek\"");
            assert_ne!(faults(&schema, &none).unwrap(), "", "{name}");
        }
    }
    assert!(files >= 18, "{files}");
}
