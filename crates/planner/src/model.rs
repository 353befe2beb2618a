//! The input of a plan: a topology, the jobs on it, and the load that is there already.
//!
//! Rates and capacities have one unit, Mbit/s or Gbit/s, which the caller chooses. Cables are full
//! duplex, and each way is a constraint of its own. A switch's capacity is the rate of gradients
//! that it can take in and sum; forwarding costs none of it.

use serde::{Deserialize, Serialize};

/// A switch that forwards, and sums if its capacity is above 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Switch {
    /// For people.
    pub name: String,
    /// Rate of gradients of 32-bit elements that it can sum, counted where they come in.
    pub capacity: f64,
    /// Capacity that a bit of 16-bit elements takes, relative to one of 32-bit elements.
    pub narrow_cost: f64,
    /// Tier in the fabric: of the two ends of a link, that with the higher one is above. `None` is
    /// the distance from hosts ([`Topology::tiers`]).
    pub tier: Option<u32>,
}

/// A cable between two switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Index of a switch.
    pub a: usize,
    /// Index of the other switch.
    pub b: usize,
    /// Rate each way. 0 is a link that is down.
    pub rate: f64,
}

/// A training host, or a parameter server: a device with one cable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// For people.
    pub name: String,
    /// Index of the switch that its cable ends at.
    pub switch: usize,
    /// Rate of its cable, each way.
    pub rate: f64,
}

/// What is there, and how it is joined. Each list's index names its element.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// All switches.
    pub switches: Vec<Switch>,
    /// Cables between switches.
    pub links: Vec<Link>,
    /// Training hosts.
    pub hosts: Vec<Host>,
    /// Parameter servers.
    pub servers: Vec<Host>,
}

impl Topology {
    /// The tier of each switch.
    ///
    /// It is the one given, else one more than the lowest of its neighbours, and 0 for a switch
    /// with hosts. Links that are down count, so that no tier changes with them. This fits leaves
    /// and spines, and fat-trees. It does not fit a leaf without hosts and a spine with some: these
    /// need a tier in the input.
    #[must_use]
    pub fn tiers(&self) -> Vec<u32> {
        let mut tiers: Vec<_> = self.switches.iter().map(|switch| switch.tier).collect();
        for host in &self.hosts {
            tiers[host.switch].get_or_insert(0);
        }
        let is_fixed: Vec<_> = tiers.iter().map(Option::is_some).collect();
        // A pass at least for each switch on the longest of the shortest ways.
        loop {
            let mut is_changed = false;
            for link in &self.links {
                for (from, to) in [(link.a, link.b), (link.b, link.a)] {
                    let Some(tier) = tiers[from].map(|tier| tier.saturating_add(1)) else {
                        continue;
                    };
                    if !is_fixed[to] && tiers[to].is_none_or(|known| tier < known) {
                        tiers[to] = Some(tier);
                        is_changed = true;
                    }
                }
            }
            if !is_changed {
                return tiers.into_iter().map(Option::unwrap_or_default).collect();
            }
        }
    }
}

/// The type of a job's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 32-bit integer, as block fixed point has.
    I32,
    /// 16-bit float.
    F16,
    /// 16-bit brain float.
    Bf16,
}

impl Element {
    /// Whether an element has fewer than 32 bits.
    #[must_use]
    pub fn is_narrow(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }
}

/// A training job: equal gradients from each of its workers, to be summed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// For people.
    pub name: String,
    /// Indices of hosts, each once.
    pub workers: Vec<usize>,
    /// Size of the model's gradients on the wire.
    pub bytes: u64,
    /// Their type.
    pub element: Element,
    /// Share of a bottleneck relative to other jobs; above 0.
    pub weight: f64,
}

/// A thing with a limited rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// A link's way from `a` to `b`, by the link's index.
    Forward(usize),
    /// A link's way from `b` to `a`.
    Backward(usize),
    /// A host's way to its switch.
    HostOut(usize),
    /// The way back.
    HostIn(usize),
    /// The way from a parameter server to its switch.
    ServerOut(usize),
    /// The way to the parameter server.
    ServerIn(usize),
    /// Summation at a switch.
    Capacity(usize),
}

/// A place at which streams begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Node {
    /// Index of a host.
    Host(usize),
    /// Index of a switch.
    Switch(usize),
    /// Index of a parameter server.
    Server(usize),
}

/// A question to the planner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// The network.
    pub topology: Topology,
    /// The jobs that share it.
    pub jobs: Vec<Job>,
    /// Load of other traffic, in the unit of the resource.
    pub background: Vec<(Resource, f64)>,
    /// Whether results load the way back of each stream's route. GRID and InArt leave them out.
    pub results: bool,
}

/// Why a question has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An index without its element.
    #[error("{what} {index}: not in the topology, which has {count}")]
    Unknown {
        /// Kind and place of the reference.
        what: &'static str,
        /// The index found.
        index: usize,
        /// Elements of that kind.
        count: usize,
    },
    /// A rate, capacity, weight or cost out of range.
    #[error("{what} {index}: value is not a finite number in range")]
    Value {
        /// Kind of the element.
        what: &'static str,
        /// Its index.
        index: usize,
    },
    /// A job without workers, or with the same one twice.
    #[error("job {0}: workers are missing or named twice")]
    Workers(usize),
    /// An algorithm's name that is not known.
    #[error("algorithm {0}: unknown; see the list of names")]
    Algorithm(String),
    /// The solver of linear programs failed.
    #[error("algorithm {algorithm}: solver failed: {reason}")]
    Solver {
        /// The algorithm that used it.
        algorithm: &'static str,
        /// What the solver said.
        reason: String,
    },
}

fn known(what: &'static str, index: usize, count: usize) -> Result<(), Error> {
    if index < count {
        Ok(())
    } else {
        Err(Error::Unknown { what, index, count })
    }
}

fn in_range(what: &'static str, index: usize, value: f64, lowest: f64) -> Result<(), Error> {
    if value.is_finite() && value >= lowest {
        Ok(())
    } else {
        Err(Error::Value { what, index })
    }
}

impl Problem {
    /// Refuses indices without an element, and values out of range.
    ///
    /// # Errors
    ///
    /// The first of them.
    pub fn validate(&self) -> Result<(), Error> {
        let topology = &self.topology;
        let switches = topology.switches.len();
        for (index, switch) in topology.switches.iter().enumerate() {
            in_range("switch", index, switch.capacity, 0.0)?;
            in_range("switch", index, switch.narrow_cost, f64::MIN_POSITIVE)?;
        }
        for (index, link) in topology.links.iter().enumerate() {
            known("switch of a link", link.a, switches)?;
            known("switch of a link", link.b, switches)?;
            in_range("link", index, link.rate, 0.0)?;
        }
        for (what, devices) in [("host", &topology.hosts), ("server", &topology.servers)] {
            for (index, device) in devices.iter().enumerate() {
                known("switch of a device", device.switch, switches)?;
                in_range(what, index, device.rate, 0.0)?;
            }
        }
        for (index, job) in self.jobs.iter().enumerate() {
            let mut workers = job.workers.clone();
            workers.sort_unstable();
            workers.dedup();
            if workers.is_empty() || workers.len() < job.workers.len() {
                return Err(Error::Workers(index));
            }
            for &worker in &workers {
                known("worker", worker, topology.hosts.len())?;
            }
            in_range("weight of job", index, job.weight, 1e-6)?;
        }
        for (index, &(resource, load)) in self.background.iter().enumerate() {
            let (what, at, count) = match resource {
                Resource::Forward(at) | Resource::Backward(at) => {
                    ("link with background load", at, topology.links.len())
                }
                Resource::HostOut(at) | Resource::HostIn(at) => {
                    ("host with background load", at, topology.hosts.len())
                }
                Resource::ServerOut(at) | Resource::ServerIn(at) => {
                    ("server with background load", at, topology.servers.len())
                }
                Resource::Capacity(at) => ("switch with background load", at, switches),
            };
            known(what, at, count)?;
            in_range("background", index, load, 0.0)?;
        }
        Ok(())
    }
}
