//! Problems by size and seed: the published set-ups, and random ones.

use crate::model::{Element, Host, Job, Link, Problem, Switch, Topology};
use crate::random::Random;

/// Rates of a generated topology.
pub struct Rates<'a> {
    /// Of a link.
    pub link: &'a mut dyn FnMut() -> f64,
    /// Of a switch's capacity.
    pub capacity: &'a mut dyn FnMut() -> f64,
    /// Of a host's cable.
    pub host: f64,
}

fn switch(name: String, capacity: f64) -> Switch {
    Switch {
        name,
        capacity,
        narrow_cost: 1.0,
        tier: None,
    }
}

/// A fat-tree of `k` pods: `k^2 / 4` core switches, then for each pod `k / 2` aggregation switches
/// and `k / 2` leaves with so many hosts each.
pub fn fat_tree(k: usize, hosts: usize, rates: &mut Rates) -> Topology {
    let half = k / 2;
    let mut topology = Topology::default();
    for core in 0..half * half {
        topology
            .switches
            .push(switch(format!("core-{core}"), (rates.capacity)()));
    }
    for pod in 0..k {
        let first = topology.switches.len();
        for at in 0..half {
            topology.switches.push(switch(
                format!("aggregation-{pod}-{at}"),
                (rates.capacity)(),
            ));
        }
        for at in 0..half {
            topology
                .switches
                .push(switch(format!("leaf-{pod}-{at}"), (rates.capacity)()));
        }
        for at in 0..half {
            for other in 0..half {
                let (core, leaf) = (at * half + other, first + half + other);
                topology.links.push(Link {
                    a: first + at,
                    b: core,
                    rate: (rates.link)(),
                });
                topology.links.push(Link {
                    a: leaf,
                    b: first + at,
                    rate: (rates.link)(),
                });
            }
            for host in 0..hosts {
                let name = format!("host-{pod}-{at}-{host}");
                topology.hosts.push(Host {
                    name,
                    switch: first + half + at,
                    rate: rates.host,
                });
            }
        }
    }
    topology
}

/// Leaves with hosts in turn, each joined to each spine.
pub fn leaf_spine(spines: usize, leaves: usize, hosts: usize, rates: &mut Rates) -> Topology {
    let mut topology = Topology::default();
    for at in 0..spines {
        topology
            .switches
            .push(switch(format!("spine-{at}"), (rates.capacity)()));
    }
    for at in 0..leaves {
        topology
            .switches
            .push(switch(format!("leaf-{at}"), (rates.capacity)()));
        for spine in 0..spines {
            topology.links.push(Link {
                a: spines + at,
                b: spine,
                rate: (rates.link)(),
            });
        }
    }
    for host in 0..hosts {
        let switch = spines + host % leaves;
        topology.hosts.push(Host {
            name: format!("host-{host}"),
            switch,
            rate: rates.host,
        });
    }
    topology
}

/// Turns hosts, drawn at random, into parameter servers.
fn draw_servers(topology: &mut Topology, random: &mut Random, count: usize, rate: f64) {
    for _ in 0..count {
        let at = random.below(topology.hosts.len());
        let host = topology.hosts.swap_remove(at);
        topology.servers.push(Host { rate, ..host });
    }
}

fn draw_jobs(hosts: usize, random: &mut Random, sizes: &[usize]) -> Vec<Job> {
    let all = random.sample(hosts, sizes.iter().sum());
    let mut left = &all[..];
    let mut jobs = Vec::new();
    for (at, &size) in sizes.iter().enumerate() {
        let (workers, rest) = left.split_at(size);
        left = rest;
        let (name, workers) = (format!("job-{at}"), workers.to_vec());
        jobs.push(Job {
            name,
            workers,
            bytes: 500_000_000,
            element: Element::I32,
            weight: 1.0,
        });
    }
    jobs
}

/// Which of GRID's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// 80 switches, 192 hosts.
    FatTree,
    /// 30 leaves, 30 spines, 500 hosts.
    LeafSpine,
}

/// GRID's simulation in Gbit/s: capacities from 100 to 3200, cables of 100, one parameter server,
/// and jobs of 100 workers in all. `link` is the rate of a link; GRID's model leaves links free.
#[must_use]
pub fn grid(network: Grid, jobs: usize, link: f64, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut capacities = random.clone();
    random.bits();
    let mut rates = Rates {
        link: &mut || link,
        capacity: &mut || capacities.between(100.0, 3200.0),
        host: 100.0,
    };
    let mut topology = match network {
        Grid::FatTree => fat_tree(8, 6, &mut rates),
        Grid::LeafSpine => leaf_spine(30, 30, 500, &mut rates),
    };
    let mut random = Random::new(seed ^ 0x5eed);
    draw_servers(&mut topology, &mut random, 1, 100.0);
    let jobs = draw_jobs(topology.hosts.len(), &mut random, &vec![100 / jobs; jobs]);
    Problem {
        topology,
        jobs,
        background: Vec::new(),
        results: false,
    }
}

/// InArt's emulation in Mbit/s: a fat-tree of 6 pods, 54 hosts of which 4 are parameter servers,
/// links of 20 or from 10 to 30, capacities of 9, one job.
#[must_use]
pub fn inart(workers: usize, is_uniform: bool, seed: u64) -> Problem {
    let mut links = Random::new(seed);
    let mut link = || {
        if is_uniform {
            20.0
        } else {
            links.between(10.0, 30.0)
        }
    };
    let mut rates = Rates {
        link: &mut link,
        capacity: &mut || 9.0,
        host: 20.0,
    };
    let mut topology = fat_tree(6, 3, &mut rates);
    let mut random = Random::new(seed ^ 0x5eed);
    draw_servers(&mut topology, &mut random, 4, 20.0);
    let jobs = draw_jobs(topology.hosts.len(), &mut random, &[workers]);
    Problem {
        topology,
        jobs,
        background: Vec::new(),
        results: false,
    }
}

/// 20 jobs of 25 workers on 500 hosts of a leaf-spine network with 8 parameter servers, in Gbit/s.
#[must_use]
pub fn fleet(seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut rates = Rates {
        link: &mut || 100.0,
        capacity: &mut || random.between(100.0, 3200.0),
        host: 100.0,
    };
    let mut topology = leaf_spine(30, 30, 508, &mut rates);
    let mut random = Random::new(seed ^ 0x5eed);
    draw_servers(&mut topology, &mut random, 8, 100.0);
    let jobs = draw_jobs(topology.hosts.len(), &mut random, &[25; 20]);
    Problem {
        topology,
        jobs,
        background: Vec::new(),
        results: true,
    }
}

/// A small random problem: up to six switches, three jobs and three parameter servers. Weights,
/// types, background load and results differ.
#[must_use]
pub fn random(seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut topology = Topology::default();
    let count = 2 + random.below(5);
    for at in 0..count {
        let capacity = if random.below(5) == 0 {
            0.0
        } else {
            random.between(1.0, 30.0)
        };
        let narrow_cost = random.between(0.5, 1.0);
        topology.switches.push(Switch {
            name: format!("s{at}"),
            capacity,
            narrow_cost,
            tier: None,
        });
        if at > 0 {
            let link = Link {
                a: at,
                b: random.below(at),
                rate: random.between(2.0, 12.0),
            };
            topology.links.push(link);
        }
    }
    for _ in 0..random.below(4) {
        let (a, b) = (random.below(count), random.below(count));
        if a != b {
            topology.links.push(Link {
                a,
                b,
                rate: random.between(2.0, 12.0),
            });
        }
    }
    let sizes: Vec<_> = (0..1 + random.below(3))
        .map(|_| 2 + random.below(5))
        .collect();
    for at in 0..sizes.iter().sum() {
        let (switch, rate) = (random.below(count), random.between(4.0, 12.0));
        topology.hosts.push(Host {
            name: format!("h{at}"),
            switch,
            rate,
        });
    }
    for at in 0..1 + random.below(3) {
        let (switch, rate) = (random.below(count), random.between(4.0, 12.0));
        topology.servers.push(Host {
            name: format!("p{at}"),
            switch,
            rate,
        });
    }
    let mut jobs = draw_jobs(topology.hosts.len(), &mut random, &sizes);
    for job in &mut jobs {
        let elements = [Element::F32, Element::I32, Element::F16, Element::Bf16];
        job.element = elements[random.below(4)];
        job.weight = [1.0, 1.0, 2.0][random.below(3)];
    }
    let mut background = Vec::new();
    if !topology.links.is_empty() && random.below(2) == 0 {
        let link = random.below(topology.links.len());
        let resource = crate::Resource::Forward(link);
        background.push((
            resource,
            topology.links[link].rate * random.between(0.0, 0.6),
        ));
    }
    Problem {
        topology,
        jobs,
        background,
        results: random.below(2) == 0,
    }
}

/// A random fabric of two or three tiers in Gbit/s: one to three jobs, which may share hosts, links
/// from 5 to 40, and a parameter server at each switch of the highest tier. In about half of the
/// fabrics a link or a switch above the leaves is down. Names begin with `leaf`, `pod`, and
/// `spine` or `core`.
#[must_use]
pub fn fabric(seed: u64, tiers: usize) -> Problem {
    let mut random = Random::new(seed);
    let mut topology = Topology::default();
    let is_mesh = random.below(2) == 0;
    let (pods, above) = match tiers {
        2 => (1, 0),
        _ => (2 + random.below(2), 1 + random.below(2)),
    };
    let tops = (1 + random.below(3)) * above.max(1);
    for at in 0..tops {
        let name = if tiers == 2 { "spine" } else { "core" };
        let capacity = random.between(30.0, 80.0);
        topology
            .switches
            .push(switch(format!("{name}{at}"), capacity));
        topology.servers.push(Host {
            name: format!("ps{at}"),
            switch: at,
            rate: 10.0,
        });
    }
    let mut add = |topology: &mut Topology, name: String, to: &[usize]| {
        let a = topology.switches.len();
        let capacity = random.between(30.0, 80.0);
        topology.switches.push(switch(name, capacity));
        for &b in to {
            let rate = random.between(5.0, 40.0);
            topology.links.push(Link { a, b, rate });
        }
        a
    };
    let mut leaves = Vec::new();
    for pod in 0..pods {
        let mut up: Vec<_> = (0..tops).collect();
        if tiers > 2 {
            up = (0..above)
                .map(|at| {
                    // Each switch of a pod has cores of its own, or all of them.
                    let cores = (0..tops).filter(|core| is_mesh || core % above == at);
                    let cores: Vec<_> = cores.collect();
                    add(&mut topology, format!("pod{pod}-{at}"), &cores)
                })
                .collect();
        }
        for _ in 0..2 + pod % 2 + usize::from(tiers == 2) {
            let name = format!("leaf{}", leaves.len());
            leaves.push(add(&mut topology, name, &up));
        }
    }
    for at in 0..leaves.len() * 4 {
        topology.hosts.push(Host {
            name: format!("h{at}"),
            switch: leaves[at / 4],
            rate: 10.0,
        });
    }
    match random.below(4) {
        0 => {
            let down = random.below(topology.links.len());
            topology.links[down].rate = 0.0;
        }
        1 => {
            let down = loop {
                let at = random.below(topology.switches.len());
                if !leaves.contains(&at) {
                    break at;
                }
            };
            topology.switches[down].capacity = 0.0;
            let links = topology.links.iter_mut();
            let links = links.filter(|link| link.a == down || link.b == down);
            links.for_each(|link| link.rate = 0.0);
            let servers = topology.servers.iter_mut();
            let servers = servers.filter(|server| server.switch == down);
            servers.for_each(|server| server.rate = 0.0);
        }
        _ => {}
    }
    let hosts = topology.hosts.len();
    let jobs = (0..1 + random.below(3)).map(|at| {
        let workers = 2 + random.below(hosts - 1);
        Job {
            name: format!("job{at}"),
            workers: random.sample(hosts, workers),
            bytes: 500_000_000,
            element: [Element::F32, Element::Bf16][random.below(2)],
            weight: [1.0, 2.0][random.below(2)],
        }
    });
    Problem {
        jobs: jobs.collect(),
        topology,
        background: Vec::new(),
        results: true,
    }
}
