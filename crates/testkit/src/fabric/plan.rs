//! Who is who in a fabric: switches, links, hosts and jobs, their names, addresses and ports.
//!
//! A switch's ports are first those of its hosts, then those of its links.

use super::spec::{FabricSpec, Shape};
use anyhow::{Result, ensure};
use std::net::Ipv4Addr;
use tally_schema::switch::config::{
    ChildSection, FabricSection, JobSection, LinkSection, TreeSection,
};
use tally_wire::{Key, Mac};

/// The number of the first job; the others follow.
const FIRST_JOB: u16 = 7;
/// Hosts at most: one number of the second half of the addresses.
const HOSTS_MAX: usize = 16_000;

/// A switch: the spines, then the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwitchId(pub usize);

/// What is on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRole {
    /// The worker of a job with this rank.
    Worker(usize, u16),
    /// The parameter server of a switch for this part of the fragments.
    Ps(SwitchId, u8),
    /// None of our programs.
    Guest(usize),
}

/// A host behind a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// The number of its leaf.
    pub leaf: usize,
    /// What is on it.
    pub role: HostRole,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its Ethernet address, where no kernel gives it one.
    pub mac: Mac,
}

/// A link between a leaf and a spine.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The leaf.
    pub leaf: SwitchId,
    /// The spine.
    pub spine: SwitchId,
    /// Its number among those of the two.
    pub number: usize,
}

/// Who is who.
#[derive(Clone, Debug)]
pub struct Plan {
    shape: Shape,
    jobs: usize,
    parameter_servers: u8,
    hosts: Vec<Host>,
    links: Vec<Link>,
}

impl Plan {
    /// Of a specification.
    ///
    /// # Errors
    /// If there are more hosts than addresses.
    pub fn new(spec: &FabricSpec) -> Result<Self> {
        let shape = spec.shape;
        let mut roles: Vec<(usize, HostRole)> = Vec::new();
        for leaf in 0..shape.leaves {
            for job in 0..spec.jobs {
                for worker in 0..shape.workers {
                    let rank = leaf * shape.workers + worker;
                    roles.push((leaf, HostRole::Worker(job, rank as u16)));
                }
            }
            let own = (spec.jobs > 0).then_some(shape.spines + leaf);
            let spines = (0..shape.spines.min(spec.jobs)).filter(|it| it % shape.leaves == leaf);
            for switch in own.into_iter().chain(spines) {
                let parts = 0..spec.parameter_servers;
                roles.extend(parts.map(|part| (leaf, HostRole::Ps(SwitchId(switch), part))));
            }
            roles.extend((0..spec.guests).map(|guest| (leaf, HostRole::Guest(guest))));
        }
        ensure!(
            roles.len() <= HOSTS_MAX,
            "{} hosts: up to {HOSTS_MAX}",
            roles.len()
        );
        let hosts = roles.into_iter().enumerate().map(|(n, (leaf, role))| Host {
            leaf,
            role,
            ip: Ipv4Addr::new(10, 84, 1 + (n / 250) as u8, 1 + (n % 250) as u8),
            mac: Mac([0x02, 0x84, 0, 0, (n >> 8) as u8, n as u8]),
        });
        let mut links = Vec::new();
        for leaf in 0..shape.leaves {
            for spine in 0..shape.spines {
                links.extend((0..spec.links).map(|number| Link {
                    leaf: SwitchId(shape.spines + leaf),
                    spine: SwitchId(spine),
                    number,
                }));
            }
        }
        Ok(Self {
            shape,
            jobs: spec.jobs,
            parameter_servers: spec.parameter_servers,
            hosts: hosts.collect(),
            links,
        })
    }

    /// All switches: the spines, then the leaves.
    pub fn switches(&self) -> impl Iterator<Item = SwitchId> + use<> {
        (0..self.shape.spines + self.shape.leaves).map(SwitchId)
    }

    /// The leaf of that number, from 0.
    #[must_use]
    pub const fn leaf(&self, leaf: usize) -> SwitchId {
        SwitchId(self.shape.spines + leaf)
    }

    /// Whether it is a spine.
    #[must_use]
    pub const fn is_spine(&self, SwitchId(n): SwitchId) -> bool {
        n < self.shape.spines
    }

    /// The name of a switch: spine1, spine2, …, leaf1, leaf2, …
    #[must_use]
    pub fn name(&self, switch: SwitchId) -> String {
        if self.is_spine(switch) {
            format!("spine{}", switch.0 + 1)
        } else {
            format!("leaf{}", switch.0 - self.shape.spines + 1)
        }
    }

    /// The switch of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<SwitchId> {
        self.switches().find(|&switch| self.name(switch) == name)
    }

    /// A switch's address.
    #[must_use]
    pub const fn ip(&self, SwitchId(n): SwitchId) -> Ipv4Addr {
        Ipv4Addr::new(10, 84, 0, n as u8 + 1)
    }

    /// A switch's Ethernet address.
    #[must_use]
    pub const fn mac(&self, SwitchId(n): SwitchId) -> Mac {
        Mac([0x02, 0x54, 0x41, 0x4c, 0, n as u8 + 1])
    }

    /// All hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts behind a switch, by their numbers.
    pub fn hosts_of(&self, switch: SwitchId) -> impl Iterator<Item = (usize, &Host)> {
        let hosts = self.hosts.iter().enumerate();
        hosts.filter(move |(_, host)| self.leaf(host.leaf) == switch)
    }

    /// The hosts of parameter servers with their switches and parts, by their numbers.
    pub fn ps_hosts(&self) -> impl Iterator<Item = (usize, SwitchId, u8)> {
        let hosts = self.hosts.iter().enumerate();
        hosts.filter_map(|(n, host)| match host.role {
            HostRole::Ps(switch, part) => Some((n, switch, part)),
            _ => None,
        })
    }

    /// The number of a host, by what is on it.
    #[must_use]
    pub fn host(&self, role: HostRole) -> Option<usize> {
        self.hosts.iter().position(|host| host.role == role)
    }

    /// What a host is called.
    #[must_use]
    pub fn host_name(&self, host: usize) -> String {
        let Host { leaf, role, .. } = self.hosts[host];
        match role {
            HostRole::Worker(job, rank) => format!("job{job}-worker{rank}"),
            HostRole::Ps(switch, _) if self.parameter_servers == 1 => {
                format!("ps-{}", self.name(switch))
            }
            HostRole::Ps(switch, part) => format!("ps{part}-{}", self.name(switch)),
            HostRole::Guest(guest) => format!("guest{guest}-leaf{}", leaf + 1),
        }
    }

    /// The number of a host's port at its leaf.
    #[must_use]
    pub fn port(&self, host: usize) -> usize {
        let leaf = self.hosts[host].leaf;
        self.hosts[..host]
            .iter()
            .filter(|it| it.leaf == leaf)
            .count()
    }

    /// All links between switches.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links of a switch, by their numbers, with the switch at the other end.
    pub fn links_of(&self, switch: SwitchId) -> impl Iterator<Item = (usize, SwitchId)> {
        let links = self.links.iter().enumerate();
        links.filter_map(move |(n, link)| match link {
            _ if link.leaf == switch => Some((n, link.spine)),
            _ if link.spine == switch => Some((n, link.leaf)),
            _ => None,
        })
    }

    /// What a link's port is called at one end: the name of the other, and a number.
    #[must_use]
    pub fn link_name(&self, link: usize, at: SwitchId) -> String {
        let Link {
            leaf,
            spine,
            number,
        } = self.links[link];
        let other = if at == leaf { spine } else { leaf };
        format!("{}-{number}", self.name(other))
    }

    /// The section `fabric` of a switch.
    #[must_use]
    pub fn fabric_section(&self, switch: SwitchId) -> FabricSection {
        let up = !self.is_spine(switch);
        let links = self.links_of(switch).map(|(link, other)| {
            LinkSection::new(&self.link_name(link, switch), &self.name(other), up)
        });
        FabricSection::new(switch_key(), links.collect())
    }

    /// Jobs.
    #[must_use]
    pub const fn jobs(&self) -> usize {
        self.jobs
    }

    /// The root of a job's tree.
    #[must_use]
    pub const fn root(&self, job: usize) -> SwitchId {
        SwitchId(job % self.shape.spines)
    }

    /// A job's section at a switch, if the switch is in its tree.
    #[must_use]
    pub fn job_section(&self, job: usize, switch: SwitchId) -> Option<JobSection> {
        let Shape {
            leaves, workers, ..
        } = self.shape;
        let total = self.shape.total() as u16;
        let root = self.root(job);
        let (hosts, tree) = if switch == root {
            let children = (0..leaves).map(|leaf| ChildSection {
                switch: self.name(self.leaf(leaf)),
                ranks: workers as u16,
            });
            (0, TreeSection::root(total, children.collect()))
        } else if self.is_spine(switch) {
            return None;
        } else {
            let leaf = switch.0 - self.shape.spines;
            let tree = TreeSection {
                first: (leaf * workers) as u16,
                parent: Some(self.name(root)),
                rank: Some(leaf as u8),
                ..TreeSection::root(total, Vec::new())
            };
            (workers, tree)
        };
        Some(JobSection {
            tree: Some(tree),
            parameter_servers: self.parameter_servers,
            ..JobSection::new(job_id(job), key(job), hosts as u8)
        })
    }

    /// The tree of every job as the reference takes it: the ranks at each switch.
    #[must_use]
    pub fn ranks(&self) -> String {
        let Shape {
            leaves, workers, ..
        } = self.shape;
        let leaf = |leaf: usize| {
            let ranks = leaf * workers..(leaf + 1) * workers;
            let ranks: Vec<_> = ranks.map(|rank| rank.to_string()).collect();
            format!("[{}]", ranks.join(","))
        };
        let leaves: Vec<_> = (0..leaves).map(leaf).collect();
        format!("[{}]", leaves.join(","))
    }

    /// A picture of the tree of a job.
    #[must_use]
    pub fn picture(&self, job: usize) -> String {
        let workers = self.shape.workers;
        let mut out = format!("job {}: {}\n", job_id(job), self.name(self.root(job)));
        for leaf in 0..self.shape.leaves {
            let is_last = leaf + 1 == self.shape.leaves;
            let branch = if is_last { "└──" } else { "├──" };
            let (first, last) = (leaf * workers, (leaf + 1) * workers - 1);
            let ranks = if first == last {
                format!("rank {first}")
            } else {
                format!("ranks {first} to {last}")
            };
            out += &format!(
                "       {branch} {} ── {ranks}\n",
                self.name(self.leaf(leaf))
            );
        }
        out
    }
}

/// The number of a job on the wire.
#[must_use]
pub fn job_id(job: usize) -> u16 {
    FIRST_JOB + job as u16
}

/// Its key. Not secret: the network is private to the fabric.
pub(super) fn key(job: usize) -> Key {
    let number = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128 + job as u128;
    Key::new(&number.to_be_bytes()).expect("16 bytes")
}

/// The key of the switches.
fn switch_key() -> Key {
    let number = 0x9f1c_7be0_2d5a_4638_a1b4_7c90_e6d3_f258_u128;
    Key::new(&number.to_be_bytes()).expect("16 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use tally_schema::switch::config::fabric::check_links;
    use tally_schema::switch::config::{AddressConfig, Config, PortSection, check_trees};

    #[test]
    fn the_files_of_each_shape_fit_together() {
        for shape in ["1x1x1", "1x2x1", "2x4x2", "3x2x4", "2x3x3"] {
            let spec = FabricSpec {
                shape: shape.parse().unwrap(),
                links: 2,
                jobs: 3,
                parameter_servers: 2,
                guests: 1,
                ..FabricSpec::default()
            };
            let plan = Plan::new(&spec).unwrap();
            let files = plan.switches().map(|switch| {
                let hosts = plan.hosts_of(switch).map(|(host, _)| plan.host_name(host));
                let links = plan
                    .links_of(switch)
                    .map(|(n, _)| plan.link_name(n, switch));
                let ports = hosts.chain(links).enumerate().map(|(n, name)| PortSection {
                    name: Some(name),
                    ..PortSection::new(format!("net_null{n}"))
                });
                let address = AddressConfig::new(plan.mac(switch), plan.ip(switch));
                let mut config = Config::new(address, ports.collect());
                config.name = Some(plan.name(switch));
                config.fabric = Some(plan.fabric_section(switch));
                let jobs = (0..3).filter_map(|job| plan.job_section(job, switch));
                config.jobs = jobs.collect();
                let path = PathBuf::from(plan.name(switch));
                config.check(&path).unwrap();
                (path, config)
            });
            let files: Vec<_> = files.collect();
            let faults = check_trees(&files);
            assert!(faults.is_empty(), "{shape}: {faults:?}");
            let links = check_links(&files);
            assert!(links.faults.is_empty(), "{shape}: {:?}", links.faults);
            assert_eq!(links.warnings, Vec::<String>::new(), "{shape}");
            let ips: BTreeSet<_> = plan.hosts().iter().map(|host| host.ip).collect();
            assert_eq!(ips.len(), plan.hosts().len());
            let ports: BTreeSet<_> = (0..ips.len())
                .map(|it| (plan.hosts()[it].leaf, plan.port(it)))
                .collect();
            assert_eq!(ports.len(), ips.len());
        }
    }

    #[test]
    fn the_tree_is_told_as_ranks_and_as_a_picture() {
        let spec = FabricSpec {
            shape: "2x2x2".parse().unwrap(),
            ..FabricSpec::default()
        };
        let plan = Plan::new(&spec).unwrap();
        assert_eq!(plan.ranks(), "[[0,1],[2,3]]");
        let picture =
            "job 8: spine2\n       ├── leaf1 ── ranks 0 to 1\n       └── leaf2 ── ranks 2 to 3\n";
        assert_eq!(plan.picture(1), picture);
        assert_eq!(plan.find("leaf2"), Some(SwitchId(3)));
        assert_eq!(plan.find("leaf3"), None);
    }
}
