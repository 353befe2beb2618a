//! The programs of a plan: switches, parameter servers, and an agent for each worker and share.

use super::Planned;
use super::layout::{Part, Role};
use super::network::{Network, agent_role, circuit_interface, device_role, mtu, ps_role};
use crate::cluster::files::write_secret;
use crate::cluster::{Program, prefixed};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tally_engine::PolicyName;
use tally_planner::Node;
use tally_schema::agent::config::{
    AgentConfig, AgentJob, AgentTransport, PsConfig, PsJob, SwitchAddress, Timeouts, Transport,
};
use tally_schema::switch::config::{
    AddressConfig, ChildSection, Config, FabricSection, JobSection, LinkSection, PortSection,
    TreeSection,
};
use tally_schema::switch::report::Report;
use tally_wire::{Key, Mac};

/// How long a program may take until it runs: many start on few CPUs.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time without a heartbeat after which a member is lost.
const MEMBER_TIMEOUT_MS: u64 = 30_000;
/// Slots of a switch by fragments in flight.
const SLOTS_BY_FRAGMENT: u32 = 4;

/// The window with which a worker has `in_flight` fragments in flight: five eighths of it, rounded
/// up (PROTOCOL.md, C-3).
pub(super) const fn window(in_flight: u16) -> u16 {
    let window = (in_flight as u32 * 8 / 5) as u16;
    if window == 0 { 1 } else { window }
}

/// The key of a job. Not secret: the network is private to the plan.
fn key(id: u16) -> Key {
    let number = 0x0011_2233_4455_6677_8899_aabb_ccdd_0000_u128 + u128::from(id);
    Key::new(&number.to_be_bytes()).expect("16 bytes")
}

/// The key of the switches.
fn switch_key() -> Key {
    let number = 0x9f1c_7be0_2d5a_4638_a1b4_7c90_e6d3_f258_u128;
    Key::new(&number.to_be_bytes()).expect("16 bytes")
}

/// The address of a switch or PS, its `place`th.
fn switch_ip(place: usize) -> Ipv4Addr {
    let number = place + 1;
    Ipv4Addr::new(10, 84, (number >> 8) as u8, number as u8)
}

/// The address of the `tally-agent ps` of a switch.
fn ps_ip(place: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 64 + (place >> 8) as u8, place as u8)
}

/// The address of the agent at a circuit.
fn agent_ip(circuit: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 128 + (circuit >> 8) as u8, circuit as u8)
}

fn running(program: &mut Program) -> Result<()> {
    program.wait_until("it listens", START_PATIENCE, |log| {
        log.contains("running on CPU")
    })
}

impl Planned {
    pub(super) fn start_programs(&mut self) -> Result<()> {
        let devices: Vec<_> = self.layout.summing().into_iter().collect();
        for place in 0..devices.len() {
            let switch = self.start_switch(&devices, place)?;
            self.switches.push(switch);
        }
        self.switches.iter_mut().try_for_each(running)?;
        // A job takes a link by how many live when it begins.
        for &device in &devices {
            self.wait_for_links(device)?;
        }
        for place in 0..devices.len() {
            let server = self.start_ps(&devices, place)?;
            self.servers.push(server);
        }
        for part in &self.layout.parts {
            for (device, role) in &part.roles {
                let place = devices.iter().position(|it| it == device);
                let place = place.context("a switch of the plan")?;
                for &(_, circuit) in &role.workers {
                    let agent = self.start_agent(part, place, circuit)?;
                    self.agents.push(agent);
                }
            }
        }
        for agent in &mut self.agents {
            agent.wait_until("it listens", START_PATIENCE, |log| {
                log.contains("listening at")
            })?;
        }
        Ok(())
    }

    fn launch(
        &self,
        role: &str,
        program: &str,
        arguments: &[&str],
        config: &Path,
    ) -> Result<Program> {
        let path = self.scale.programs.join(program);
        let mut command = prefixed(&Network::prefix(role), &path);
        command.args(arguments).arg("--config").arg(config);
        let log = self.file(&format!("{role}-{program}.log"));
        Program::start(&format!("{program} in {role}"), command, &log)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, config: &impl Serialize) -> Result<PathBuf> {
        let path = self.file(name);
        write_secret(&path, &simd_json::to_string(config)?)?;
        Ok(path)
    }

    fn start_switch(&self, devices: &[Node], place: usize) -> Result<Program> {
        let role = device_role(devices[place]);
        let config = self.switch_config(devices, place);
        let path = self.write(&format!("{role}.json"), &config)?;
        self.launch(&role, "tally-switch", &[], &path)
    }

    fn stats_socket(&self, device: Node) -> PathBuf {
        self.file(&format!("{}.sock", device_role(device)))
    }

    /// The configuration of the switch of a device. A PS sums nothing in its switch.
    fn switch_config(&self, devices: &[Node], place: usize) -> Config {
        let device = devices[place];
        let [high, low] = (place as u16).to_be_bytes();
        let mac = Mac([0x02, 0x54, 0x41, 0x4c, high, low]);
        let address = AddressConfig::new(mac, switch_ip(place));
        let mut ports = Vec::new();
        let mut add = |name: &str| {
            let device = format!("packet{},iface={name}", ports.len());
            ports.push(PortSection {
                name: Some(name.to_owned()),
                mtu: mtu(&self.scale),
                ..PortSection::new(device)
            });
        };
        add("ps");
        let mut links = Vec::new();
        for (number, circuit) in self.layout.circuits.iter().enumerate() {
            if ![circuit.from, circuit.to].contains(&device) {
                continue;
            }
            let name = circuit_interface(number);
            add(&name);
            if circuit.worker.is_none() {
                let is_up = circuit.from == device;
                let other = if is_up { circuit.to } else { circuit.from };
                links.push(LinkSection::new(&name, &device_role(other), is_up));
            }
        }
        let mut config = Config::new(address, ports);
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let cpu = (!cpus.is_empty()).then(|| cpus[place % cpus.len()].id);
        config.cores = vec![cpu.unwrap_or(0)];
        config.name = Some(device_role(device));
        (config.lldp, config.loop_guard) = (false, false);
        if !links.is_empty() {
            config.fabric = Some(FabricSection::new(switch_key(), links));
        }
        let parts = self.layout.parts.iter();
        let jobs = parts.filter_map(|part| Some(job(part, part.roles.get(&device)?)));
        config.jobs = jobs.collect();
        let in_flight = self
            .layout
            .parts
            .iter()
            .map(|part| u32::from(part.in_flight));
        let slots = in_flight.sum::<u32>() * SLOTS_BY_FRAGMENT;
        match device {
            Node::Server(_) => config.pool.policy = PolicyName::None,
            _ => config.pool.slots = Some(slots.next_power_of_two()),
        }
        let windows = self.layout.parts.iter().map(|part| window(part.in_flight));
        config.window = windows.max().unwrap_or(1);
        config.member_timeout_ms = MEMBER_TIMEOUT_MS;
        config.stats_socket = Some(self.stats_socket(device));
        config
    }

    /// A running switch's counters.
    fn switch_report(&self, device: Node) -> Result<Report> {
        let mut text = Vec::new();
        UnixStream::connect(self.stats_socket(device))
            .and_then(|mut stream| stream.read_to_end(&mut text))
            .with_context(|| device_role(device))?;
        simd_json::from_slice(&mut text).with_context(|| device_role(device))
    }

    fn wait_for_links(&self, device: Node) -> Result<()> {
        let start = Instant::now();
        while !self.switch_report(device)?.fabric.iter().all(|it| it.alive) {
            ensure!(
                start.elapsed() < START_PATIENCE,
                "{}: links are not alive after {START_PATIENCE:?}",
                device_role(device)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn start_ps(&self, devices: &[Node], place: usize) -> Result<Program> {
        let device = devices[place];
        let role = ps_role(device);
        Network::set_address(&role, "eth0", &ps_ip(place).to_string())?;
        let parts = self.layout.parts.iter();
        let jobs = parts.filter(|part| part.roles.contains_key(&device));
        let config = PsConfig {
            switch: SwitchAddress::new(switch_ip(place)),
            jobs: jobs.map(|part| PsJob::new(part.id, key(part.id))).collect(),
            transport: Transport::udp(ps_ip(place)),
            log: Default::default(),
            metrics: None,
        };
        let path = self.write(&format!("{role}.json"), &config)?;
        self.launch(&role, "tally-agent", &["ps"], &path)
    }

    /// The socket of the agent at a circuit.
    pub(super) fn agent_socket(&self, circuit: usize) -> PathBuf {
        self.file(&format!("{}.sock", agent_role(circuit)))
    }

    fn start_agent(&self, part: &Part, place: usize, circuit: usize) -> Result<Program> {
        let role = agent_role(circuit);
        let ip = agent_ip(circuit);
        let interface = circuit_interface(circuit);
        Network::set_address(&role, &interface, &ip.to_string())?;
        let job = AgentJob::new(part.id, key(part.id), part.workers());
        let transport = AgentTransport::Udp { bind: ip };
        let config = AgentConfig {
            socket: self.agent_socket(circuit),
            payload_bytes: self.scale.payload_bytes.into(),
            window: window(part.in_flight),
            timeouts: Timeouts {
                stall_ms: 60_000,
                ..Timeouts::default()
            },
            ..AgentConfig::new(SwitchAddress::new(switch_ip(place)), transport, vec![job])
        };
        let path = self.write(&format!("{role}.json"), &config)?;
        self.launch(&role, "tally-agent", &["serve"], &path)
    }
}

/// A share's job at one of its switches.
fn job(part: &Part, role: &Role) -> JobSection {
    let children = role.children.iter().map(|&(child, ranks)| ChildSection {
        switch: device_role(child),
        ranks,
    });
    let children: Vec<_> = children.collect();
    let is_alone = children.is_empty() && role.parent.is_none();
    let tree = TreeSection {
        first: role.first,
        parent: role.parent.map(|(parent, _)| device_role(parent)),
        rank: role.parent.map(|(_, rank)| rank),
        ..TreeSection::root(part.workers(), children)
    };
    JobSection {
        tree: (!is_alone).then_some(tree),
        ..JobSection::new(part.id, key(part.id), role.workers.len() as u8)
    }
}
