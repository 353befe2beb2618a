//! The file of a fleet: what there is, by names, and the jobs on it.

use crate::measured::Capacities;
pub use crate::unit::Unit;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_planner as planner;
use tally_planner::{Element, Node, Problem, Resource, Topology};
use tally_wire::Key;

use crate::names;

/// Highest tier of a switch.
const TIER_MAX: u32 = 255;

/// A fleet, and the jobs on it. Names of switches, hosts and servers are all different.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Unit of all rates and capacities in this file.
    pub unit: Unit,
    /// Switches that forward, and sum if their capacity is above 0.
    pub switches: Vec<Switch>,
    /// Cables between switches. Several between the same two are one, with the sum of their rates.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Training hosts.
    pub hosts: Vec<Device>,
    /// Parameter servers.
    pub servers: Vec<Device>,
    /// Jobs, which share it all.
    pub jobs: Vec<Job>,
    /// Load of other traffic.
    #[serde(default)]
    pub background: Background,
    /// Whether results load the way back, as they do in Tally.
    #[serde(default = "yes")]
    pub results: bool,
    /// What the controller and switches at TCP ports show each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// A file that `capacity` writes. What it has measured takes the place of `capacity` of a
    /// switch, unless that is 0. The path is relative to the folder of this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<PathBuf>,
}

/// Files of mutual TLS. Paths are relative to the folder of the fleet's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The controller's certificate, PEM.
    pub certificate: PathBuf,
    /// The key of the certificate, PEM.
    pub key: PathBuf,
    /// The authority of the switches' certificates, PEM.
    pub ca: PathBuf,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Rate of gradients of 32-bit elements that it takes in and sums. 0 if it is down, or does not
    /// sum.
    pub capacity: f64,
    /// Data cores which have that capacity together.
    #[serde(default = "one_core")]
    pub cores: u32,
    /// Capacity that a bit of 16-bit elements takes, relative to one of 32-bit elements.
    #[serde(default = "one")]
    pub narrow_cost: f64,
    /// Its tier: of two switches with a link, that with the higher one is above. By default, the
    /// distance from hosts. A switch without hosts below others needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<u32>,
    /// Where it takes requests: path of a Unix socket, or HOST:PORT. Without it, no plan is applied
    /// to the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// Name in its certificate, if it is not HOST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// IPv4 address at which it takes gradients, for hosts that join a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
}

/// A cable between two switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Names of the switches.
    pub between: [String; 2],
    /// Rate each way. 0 if it is down.
    pub rate: f64,
}

/// A training host, or a parameter server, with one cable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Name of the switch at the other end of its cable.
    pub switch: String,
    /// Rate of the cable, each way. 0 if it is down.
    pub rate: f64,
}

/// A training job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Names of its hosts, each once.
    pub workers: Vec<String>,
    /// Bytes of an all-reduce: the size of the model's gradients.
    pub bytes: u64,
    /// Their type.
    #[serde(default = "f32_element")]
    #[schemars(schema_with = "element_schema")]
    pub element: Element,
    /// Share of a bottleneck relative to other jobs.
    #[serde(default = "one")]
    pub weight: f64,
    /// Its number at the switches. `apply` needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    /// Its key: 32 to 128 hexadecimal digits; or `key_file`, a file with them. `apply` needs it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "tally_schema::key::option"
    )]
    #[schemars(with = "Option<tally_schema::key::KeyText>")]
    pub key: Option<Key>,
    /// Slots that it has for certain at each switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_slots: Option<u32>,
    /// Slots that it has at most at each switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slots: Option<u32>,
    /// Its parameter servers at each switch: 1, 2, 4, 8 or 16.
    #[serde(default = "one_server", skip_serializing_if = "is_one_server")]
    pub parameter_servers: u8,
}

/// Load of other traffic, which the jobs cannot have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// On ways of cables.
    #[serde(default)]
    pub cables: Vec<CableLoad>,
    /// On switches' capacities.
    #[serde(default)]
    pub switches: Vec<SwitchLoad>,
}

/// Load of one way of a cable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CableLoad {
    /// Name of the switch, host or server at its begin.
    pub from: String,
    /// Name of that at its end.
    pub to: String,
    /// The load.
    pub rate: f64,
}

/// Load of a switch's capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchLoad {
    /// Name of the switch.
    pub switch: String,
    /// The load.
    pub rate: f64,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

fn one_core() -> u32 {
    1
}

const fn one_server() -> u8 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_one_server(count: &u8) -> bool {
    *count == 1
}

fn f32_element() -> Element {
    Element::F32
}

fn element_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"enum": ["f32", "i32", "f16", "bf16"]})
}

impl Fleet {
    /// Reads a file for planning. Files of keys are not read.
    ///
    /// # Errors
    /// The first thing in it that does not fit.
    pub fn load(path: &Path) -> Result<(Self, Problem), ConfigError> {
        let fleet: Self = tally_config::load_without_key_files(path)?;
        fleet.with_measured_file(path)
    }

    /// Reads a file with the capacities that are written there, and what was measured, if there is
    /// such a file.
    ///
    /// # Errors
    /// The first thing in it that does not fit.
    pub fn load_to_measure(path: &Path) -> Result<(Self, Option<Capacities>), ConfigError> {
        let fleet: Self = tally_config::load_without_key_files(path)?;
        fleet.problem(path)?;
        let file = fleet.measured_file(path).filter(|it| it.exists());
        let known = file.map(|file| Capacities::load(&file)).transpose()?;
        Ok((fleet, known))
    }

    /// Reads a file with keys, and what was measured apart.
    ///
    /// # Errors
    /// The first thing in it that does not fit.
    pub fn load_to_import(path: &Path) -> Result<(Self, Option<Capacities>), ConfigError> {
        let fleet: Self = tally_config::load(path)?;
        fleet.problem(path)?;
        let measured = fleet.measured_capacities(path)?;
        Ok((fleet, measured))
    }

    /// Makes all paths absolute that are relative to the folder of its file.
    pub fn make_absolute(&mut self, path: &Path) {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = path.parent().unwrap_or(Path::new("/"));
        for switch in &mut self.switches {
            if let Some(control) = switch.control.as_mut().filter(|it| it.contains('/')) {
                *control = folder.join(&*control).display().to_string();
            }
        }
        if let Some(tls) = &mut self.tls {
            for file in [&mut tls.certificate, &mut tls.key, &mut tls.ca] {
                *file = folder.join(&*file);
            }
        }
    }

    /// The file of what was measured.
    #[must_use]
    pub fn measured_file(&self, path: &Path) -> Option<PathBuf> {
        let folder = path.parent().unwrap_or(Path::new("."));
        self.measured.as_ref().map(|file| folder.join(file))
    }

    fn with_measured_file(self, path: &Path) -> Result<(Self, Problem), ConfigError> {
        let measured = self.measured_capacities(path)?;
        self.with_problem(measured.as_ref(), path)
    }

    fn measured_capacities(&self, path: &Path) -> Result<Option<Capacities>, ConfigError> {
        let Some(file) = self.measured_file(path) else {
            return Ok(None);
        };
        if !file.exists() {
            let found = format!("{}, which does not exist", file.display());
            let fleet = path.display();
            let allowed = format!("a file; `tally-controller capacity {fleet} --write` makes it");
            return Err(ConfigError::value(path, "measured", found, allowed));
        }
        Capacities::load(&file).map(Some)
    }

    /// With measured capacities in place of those that it has, but where these are 0.
    ///
    /// # Errors
    /// The first thing in it that does not fit.
    pub fn with_problem(
        mut self,
        measured: Option<&Capacities>,
        path: &Path,
    ) -> Result<(Self, Problem), ConfigError> {
        if let Some(measured) = measured {
            let ratio = measured.unit.bits_per_second() / self.unit.bits_per_second();
            for switch in self.switches.iter_mut().filter(|it| it.capacity > 0.0) {
                if let Some(it) = measured.switches.get(&switch.name) {
                    switch.capacity = it.capacity * ratio;
                }
            }
        }
        let problem = self.problem(path)?;
        Ok((self, problem))
    }

    /// Reads a file with the keys of its jobs.
    ///
    /// # Errors
    /// The first thing in it that does not fit, or the file of a key.
    pub fn load_with_keys(path: &Path) -> Result<(Self, Problem), ConfigError> {
        let fleet: Self = tally_config::load(path)?;
        fleet.with_measured_file(path)
    }

    /// The file that describes a problem whose names are all different.
    #[must_use]
    pub fn of(problem: &Problem, unit: Unit) -> Self {
        let topology = &problem.topology;
        let switch = |at: usize| topology.switches[at].name.clone();
        let devices = |devices: &[planner::Host]| {
            let device = |it: &planner::Host| Device {
                name: it.name.clone(),
                switch: switch(it.switch),
                rate: it.rate,
            };
            devices.iter().map(device).collect()
        };
        let switches = topology.switches.iter().map(|it| Switch {
            name: it.name.clone(),
            capacity: it.capacity,
            cores: one_core(),
            narrow_cost: it.narrow_cost,
            tier: it.tier,
            control: None,
            server_name: None,
            address: None,
        });
        let links = topology.links.iter().map(|it| Link {
            between: [switch(it.a), switch(it.b)],
            rate: it.rate,
        });
        let host = |&at: &usize| topology.hosts[at].name.clone();
        let jobs = problem.jobs.iter().map(|it| Job {
            name: it.name.clone(),
            workers: it.workers.iter().map(host).collect(),
            bytes: it.bytes,
            element: it.element,
            weight: it.weight,
            id: None,
            key: None,
            min_slots: None,
            max_slots: None,
            parameter_servers: one_server(),
        });
        Self {
            unit,
            switches: switches.collect(),
            links: links.collect(),
            hosts: devices(&topology.hosts),
            servers: devices(&topology.servers),
            jobs: jobs.collect(),
            background: Background::default(),
            results: problem.results,
            tls: None,
            measured: None,
        }
    }

    /// The question to the planner. `path` is for errors alone.
    ///
    /// # Errors
    /// The first name or value that does not fit.
    pub fn problem(&self, path: &Path) -> Result<Problem, ConfigError> {
        let checked = Checked::new(self, path)?;
        let topology = checked.topology()?;
        let jobs = checked.jobs()?;
        let background = checked.background(&topology)?;
        let problem = Problem {
            topology,
            jobs,
            background,
            results: self.results,
        };
        // What is above is stricter, and has said where.
        problem
            .validate()
            .map_err(|error| ConfigError::value(path, "top level", error, "a valid problem"))?;
        Ok(problem)
    }
}

/// A fleet whose names are all different.
struct Checked<'a> {
    fleet: &'a Fleet,
    path: &'a Path,
    names: BTreeMap<&'a str, Node>,
}

impl<'a> Checked<'a> {
    fn new(fleet: &'a Fleet, path: &'a Path) -> Result<Self, ConfigError> {
        let mut names = BTreeMap::new();
        let mut add = |list: &str, at: usize, name: &'a str, is: Node| {
            let key = format!("{list}[{at}].name");
            let is_text = !name.is_empty() && !name.chars().any(|c| c.is_control() || c == ' ');
            if !is_text {
                let allowed = "a name without spaces and control characters";
                return Err(ConfigError::value(path, key, format!("{name:?}"), allowed));
            }
            match names.insert(name, is) {
                None => Ok(()),
                Some(_) => Err(ConfigError::value(
                    path,
                    key,
                    format!("`{name}` once more"),
                    "a name that no other switch, host or server has",
                )),
            }
        };
        for (at, switch) in fleet.switches.iter().enumerate() {
            add("switches", at, &switch.name, Node::Switch(at))?;
        }
        for (at, host) in fleet.hosts.iter().enumerate() {
            add("hosts", at, &host.name, Node::Host(at))?;
        }
        for (at, server) in fleet.servers.iter().enumerate() {
            add("servers", at, &server.name, Node::Server(at))?;
        }
        Ok(Self { fleet, path, names })
    }

    fn wrong<T>(
        &self,
        key: impl Into<String>,
        found: impl fmt::Display,
        allowed: &str,
    ) -> Result<T, ConfigError> {
        Err(ConfigError::value(self.path, key, found, allowed))
    }

    fn rate(&self, key: &str, rate: f64) -> Result<f64, ConfigError> {
        if rate.is_finite() && rate >= 0.0 {
            return Ok(rate);
        }
        self.wrong(key, rate, "a number from 0")
    }

    fn above_zero(&self, key: &str, value: f64) -> Result<f64, ConfigError> {
        if value.is_finite() && (1e-6..=1e6).contains(&value) {
            return Ok(value);
        }
        self.wrong(key, value, "a number from 0.000001 to 1000000")
    }

    fn tier(&self, key: &str, tier: Option<u32>) -> Result<Option<u32>, ConfigError> {
        match tier {
            Some(tier) if tier > TIER_MAX => self.wrong(key, tier, "0 to 255"),
            tier => Ok(tier),
        }
    }

    fn switch(&self, key: &str, name: &str) -> Result<usize, ConfigError> {
        match self.names.get(name) {
            Some(&Node::Switch(at)) => Ok(at),
            _ => self.wrong(
                key,
                format!("`{name}`"),
                "the name of a switch of this file",
            ),
        }
    }

    /// An address of a control interface: another one than that of each other switch.
    fn control(&self, key: &str, control: &str) -> Result<(), ConfigError> {
        let is_path = control.contains('/');
        let port = control.rsplit_once(':');
        let port = port.filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if !is_path && port.is_none() {
            let allowed = "a path of a Unix socket with a `/`, or HOST:PORT";
            return self.wrong(key, format!("`{control}`"), allowed);
        }
        if !is_path && self.fleet.tls.is_none() {
            let allowed = "`tls` in this file, because a TCP port takes callers with a certificate";
            return self.wrong(key, format!("`{control}`"), allowed);
        }
        let switches = self.fleet.switches.iter();
        let same = switches.filter(|it| it.control.as_deref() == Some(control));
        if same.count() > 1 {
            let found = format!("`{control}` once more");
            return self.wrong(key, found, "an address of its own for each switch");
        }
        Ok(())
    }

    fn topology(&self) -> Result<Topology, ConfigError> {
        let mut topology = Topology::default();
        for (at, switch) in self.fleet.switches.iter().enumerate() {
            let key = |field: &str| format!("switches[{at}].{field}");
            if switch.cores == 0 {
                return self.wrong(key("cores"), 0, "1 or more");
            }
            if let Some(control) = &switch.control {
                self.control(&key("control"), control)?;
            }
            topology.switches.push(planner::Switch {
                name: switch.name.clone(),
                capacity: self.rate(&key("capacity"), switch.capacity)?,
                narrow_cost: self.above_zero(&key("narrow_cost"), switch.narrow_cost)?,
                tier: self.tier(&key("tier"), switch.tier)?,
            });
        }
        let mut pairs = BTreeSet::new();
        for (at, link) in self.fleet.links.iter().enumerate() {
            let key = |field: &str| format!("links[{at}].{field}");
            let [a, b] = &link.between;
            let a = self.switch(&key("between[0]"), a)?;
            let b = self.switch(&key("between[1]"), b)?;
            if a == b {
                let found = format!("`{}` twice", link.between[0]);
                return self.wrong(key("between"), found, "two switches");
            }
            if !pairs.insert((a.min(b), a.max(b))) {
                let found = format!(
                    "a second link of `{}` and `{}`",
                    link.between[0], link.between[1]
                );
                return self.wrong(
                    key("between"),
                    found,
                    "one link with the sum of their rates",
                );
            }
            let rate = self.rate(&key("rate"), link.rate)?;
            topology.links.push(planner::Link { a, b, rate });
        }
        topology.hosts = self.devices("hosts", &self.fleet.hosts)?;
        topology.servers = self.devices("servers", &self.fleet.servers)?;
        Ok(topology)
    }

    fn devices(&self, list: &str, devices: &[Device]) -> Result<Vec<planner::Host>, ConfigError> {
        let device = |(at, device): (usize, &Device)| {
            Ok(planner::Host {
                name: device.name.clone(),
                switch: self.switch(&format!("{list}[{at}].switch"), &device.switch)?,
                rate: self.rate(&format!("{list}[{at}].rate"), device.rate)?,
            })
        };
        devices.iter().enumerate().map(device).collect()
    }

    fn jobs(&self) -> Result<Vec<planner::Job>, ConfigError> {
        let mut names = BTreeSet::new();
        let mut ids = BTreeSet::new();
        let mut jobs = Vec::new();
        for (at, job) in self.fleet.jobs.iter().enumerate() {
            let key = |field: &str| format!("jobs[{at}].{field}");
            if let Some(id) = job.id
                && !ids.insert(id)
            {
                return self.wrong(
                    key("id"),
                    format!("{id} once more"),
                    "a number of its own for each job",
                );
            }
            let servers = job.parameter_servers;
            if !servers.is_power_of_two() || servers > 16 {
                return self.wrong(key("parameter_servers"), servers, "1, 2, 4, 8 or 16");
            }
            if !names.insert(&job.name) {
                let found = format!("`{}` once more", job.name);
                return self.wrong(key("name"), found, "a name that no other job has");
            }
            if job.workers.is_empty() {
                return self.wrong(key("workers"), "none", "one host or more");
            }
            let mut workers = Vec::new();
            for (nth, name) in job.workers.iter().enumerate() {
                let key = format!("jobs[{at}].workers[{nth}]");
                let Some(&Node::Host(host)) = self.names.get(name.as_str()) else {
                    return self.wrong(key, format!("`{name}`"), "the name of a host of this file");
                };
                if workers.contains(&host) {
                    return self.wrong(key, format!("`{name}` once more"), "each host once");
                }
                workers.push(host);
            }
            jobs.push(planner::Job {
                name: job.name.clone(),
                workers,
                bytes: job.bytes,
                element: job.element,
                weight: self.above_zero(&key("weight"), job.weight)?,
            });
        }
        Ok(jobs)
    }

    fn background(&self, topology: &Topology) -> Result<Vec<(Resource, f64)>, ConfigError> {
        let way = |load: &CableLoad| {
            let [from, to] = [&load.from, &load.to].map(|name| self.names.get(name.as_str()));
            names::way(topology, *from?, *to?)
        };
        let mut loads = Vec::new();
        for (at, load) in self.fleet.background.cables.iter().enumerate() {
            let key = format!("background.cables[{at}]");
            let rate = self.rate(&format!("{key}.rate"), load.rate)?;
            let Some(way) = way(load) else {
                let found = format!("`{}` and `{}`", load.from, load.to);
                return self.wrong(
                    key,
                    found,
                    "the names of the two ends of a cable of this file",
                );
            };
            loads.push((way, rate));
        }
        for (at, load) in self.fleet.background.switches.iter().enumerate() {
            let key = format!("background.switches[{at}]");
            let switch = self.switch(&format!("{key}.switch"), &load.switch)?;
            loads.push((
                Resource::Capacity(switch),
                self.rate(&format!("{key}.rate"), load.rate)?,
            ));
        }
        Ok(loads)
    }
}
