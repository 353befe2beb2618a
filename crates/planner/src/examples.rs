//! The worked examples of the papers, as problems.

use crate::model::{Element, Host, Job, Link, Problem, Switch, Topology};

fn switch(name: &str, capacity: f64) -> Switch {
    Switch {
        name: name.to_owned(),
        capacity,
        narrow_cost: 1.0,
        tier: None,
    }
}

fn devices(name: &str, switches: &[usize], rate: f64) -> Vec<Host> {
    let devices = switches.iter().enumerate();
    devices
        .map(|(at, &switch)| Host {
            name: format!("{name}{}", at + 1),
            switch,
            rate,
        })
        .collect()
}

fn job(workers: usize) -> Vec<Job> {
    let workers = (0..workers).collect();
    let (name, element) = ("job".to_owned(), Element::I32);
    vec![Job {
        name,
        workers,
        bytes: 500_000_000,
        element,
        weight: 1.0,
    }]
}

/// GRID, figure 1, in Gbit/s: three switches in a triangle, eight workers, one parameter server.
#[must_use]
pub fn grid_fig1() -> Problem {
    let link = |a, b| Link { a, b, rate: 3.0 };
    Problem {
        topology: Topology {
            switches: ["S1", "S2", "S3"].map(|name| switch(name, 9.0)).to_vec(),
            links: vec![link(0, 2), link(0, 1), link(1, 2)],
            hosts: devices("W", &[0, 0, 0, 0, 1, 1, 2, 2], 9.0),
            servers: devices("PS", &[2], 9.0),
        },
        jobs: job(8),
        background: Vec::new(),
        results: false,
    }
}

/// InArt, figure 1, in Gbit/s: two switches, six workers, two parameter servers.
#[must_use]
pub fn inart_fig1() -> Problem {
    Problem {
        topology: Topology {
            switches: ["V1", "V2"].map(|name| switch(name, 6.0)).to_vec(),
            links: vec![Link {
                a: 0,
                b: 1,
                rate: 6.0,
            }],
            hosts: devices("W", &[0, 0, 0, 0, 1, 1], 6.0),
            servers: devices("PS", &[0, 1], 4.0),
        },
        jobs: job(6),
        background: Vec::new(),
        results: false,
    }
}
