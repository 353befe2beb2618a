#![allow(clippy::unwrap_used)]

use super::*;
use tally_planner::check::check;
use tally_planner::{
    Algorithm, Element, Host, Link, Options, Random, Shape, Share, Switch, Tree, generate, plan,
    replan_holding, rules,
};

/// A fabric of switches by name and capacity, links, hosts and servers by name and switch.
fn problem(
    switches: &[(&str, f64)],
    links: &[(&str, &str)],
    hosts: &[(&str, &str)],
    servers: &[(&str, &str)],
) -> Problem {
    let at = |name: &str| switches.iter().position(|it| it.0 == name).unwrap();
    let devices = |devices: &[(&str, &str)]| {
        let device = |(name, switch): &(&str, &str)| Host {
            name: (*name).to_owned(),
            switch: at(switch),
            rate: 10.0,
        };
        devices.iter().map(device).collect()
    };
    Problem {
        topology: Topology {
            switches: switches
                .iter()
                .map(|(name, capacity)| Switch {
                    name: (*name).to_owned(),
                    capacity: *capacity,
                    narrow_cost: 1.0,
                    tier: None,
                })
                .collect(),
            links: links
                .iter()
                .map(|(a, b)| Link {
                    a: at(a),
                    b: at(b),
                    rate: 100.0,
                })
                .collect(),
            hosts: devices(hosts),
            servers: devices(servers),
        },
        jobs: vec![Job {
            name: "job".to_owned(),
            workers: (0..hosts.len()).collect(),
            bytes: 1000,
            element: Element::F32,
            weight: 1.0,
        }],
        background: Vec::new(),
        results: true,
    }
}

/// Two leaves with two workers each, a spine with the PS.
fn leaf_spine(leaf: f64, spine: f64) -> Problem {
    problem(
        &[("leaf1", leaf), ("leaf2", leaf), ("spine1", spine)],
        &[("leaf1", "spine1"), ("leaf2", "spine1")],
        &[
            ("h1", "leaf1"),
            ("h2", "leaf1"),
            ("h3", "leaf2"),
            ("h4", "leaf2"),
        ],
        &[("ps1", "spine1")],
    )
}

/// A plan of one share by the names of its streams: begin, switches between, end.
fn by_hand(problem: &Problem, server: &str, streams: &[&[&str]]) -> Plan {
    let topology = &problem.topology;
    let node = |name: &str| names::find(topology, name).unwrap();
    let Node::Server(server) = node(server) else {
        panic!("{server} is no server")
    };
    let stream = |names: &&[&str]| {
        let nodes: Vec<_> = names.iter().map(|name| node(name)).collect();
        let ways = nodes
            .windows(2)
            .map(|it| names::way(topology, it[0], it[1]).unwrap());
        Stream {
            from: nodes[0],
            to: nodes[nodes.len() - 1],
            route: ways.collect(),
        }
    };
    let tree = Tree {
        server,
        streams: streams.iter().map(stream).collect(),
    };
    let share = Share {
        fraction: 1.0,
        tree,
    };
    let plan = Plan {
        algorithm: "hand".to_owned(),
        jobs: vec![JobPlan {
            rate: 1.0,
            binding: None,
            marginal: 0.0,
            shares: vec![share],
        }],
        bound: None,
        cut_off: false,
    };
    check(problem, &plan).unwrap();
    plan
}

fn link(switch: &str, up: bool) -> FabricLinkReport {
    FabricLinkReport {
        switch: switch.to_owned(),
        up,
        ..FabricLinkReport::default()
    }
}

/// What switches report whose tiers are leaf, pod or spine, and core.
fn fabric(problem: &Problem) -> Vec<Vec<FabricLinkReport>> {
    let tier = |at: usize| match &problem.topology.switches[at].name[..4] {
        "leaf" => 0,
        "core" => 2,
        _ => 1,
    };
    let mut links: Vec<_> = problem
        .topology
        .switches
        .iter()
        .map(|_| Vec::new())
        .collect();
    for &Link { a, b, .. } in &problem.topology.links {
        for (at, other) in [(a, b), (b, a)] {
            let name = &problem.topology.switches[other].name;
            links[at].push(link(name, tier(other) > tier(at)));
        }
    }
    links
}

fn mapped(problem: &Problem, plan: &Plan) -> Result<JobTree, Refusal> {
    let links = fabric(problem);
    let (topology, job) = (&problem.topology, &problem.jobs[0]);
    tree(topology, job, &plan.jobs[0], 1, |at| &links[at])
}

/// Roles as text, by the name of the switch.
fn roles(problem: &Problem, plan: &Plan) -> Vec<String> {
    let tree = mapped(problem, plan).unwrap();
    let name = |at: usize| &problem.topology.switches[at].name;
    tree.roles
        .iter()
        .map(|(at, role)| format!("{}: {role}", name(*at)))
        .collect()
}

/// Workers by rank, with their switches.
fn workers(problem: &Problem, plan: &Plan) -> String {
    let topology = &problem.topology;
    let tree = mapped(problem, plan).unwrap();
    let workers = tree.workers.iter().map(|it| {
        let (host, switch) = (&topology.hosts[it.host], &topology.switches[it.switch]);
        format!("{} {} {}", it.rank, host.name, switch.name)
    });
    workers.collect::<Vec<_>>().join(", ")
}

fn options() -> Options {
    Options {
        shape: Shape::Fabric,
        ..Options::default()
    }
}

fn for_switches(problem: &Problem) -> Plan {
    let plan = plan(problem, Algorithm::Tally, &options()).unwrap();
    check(problem, &plan).unwrap();
    plan
}

fn planned(problem: &Problem, algorithm: Algorithm) -> Plan {
    let options = Options {
        trees: 1,
        ..Options::default()
    };
    let plan = plan(problem, algorithm, &options).unwrap();
    check(problem, &plan).unwrap();
    plan
}

#[test]
fn leaves_sum_their_workers_and_the_spine_the_leaves() {
    let problem = leaf_spine(100.0, 100.0);
    let plan = planned(&problem, Algorithm::Tally);
    let expected = [
        "leaf1: 2 workers, ranks 0 to 1 of 4, local rank 0 at spine1",
        "leaf2: 2 workers, ranks 2 to 3 of 4, local rank 1 at spine1",
        "spine1: ranks 0 to 3 of 4, root, below: leaf1, leaf2",
    ];
    assert_eq!(roles(&problem, &plan), expected);
    assert_eq!(
        workers(&problem, &plan),
        "0 h1 leaf1, 1 h2 leaf1, 2 h3 leaf2, 3 h4 leaf2"
    );
}

/// Streams that meet at the PS meet at its switch, which sums what its pool takes.
#[test]
fn the_switch_of_a_ps_at_which_streams_meet_is_the_root() {
    let problem = leaf_spine(100.0, 0.0);
    let streams: [&[&str]; 6] = [
        &["h1", "leaf1"],
        &["h2", "leaf1"],
        &["h3", "leaf2"],
        &["h4", "leaf2"],
        &["leaf1", "spine1", "ps1"],
        &["leaf2", "spine1", "ps1"],
    ];
    let plan = by_hand(&problem, "ps1", &streams);
    assert_eq!(checked(&problem, &plan), Ok(()));
    let expected = "spine1: ranks 0 to 3 of 4, root, below: leaf1, leaf2";
    assert_eq!(roles(&problem, &plan)[2], expected);
}

#[test]
fn ranks_follow_the_tree_where_the_jobs_list_does_not() {
    let mut problem = leaf_spine(100.0, 100.0);
    problem.jobs[0].workers = vec![3, 0, 2, 1];
    let plan = planned(&problem, Algorithm::Tally);
    assert_eq!(
        workers(&problem, &plan),
        "0 h4 leaf2, 1 h3 leaf2, 2 h1 leaf1, 3 h2 leaf1"
    );
    let tree = mapped(&problem, &plan).unwrap();
    assert_eq!(
        tree.roles.last().unwrap().1.children().next(),
        Some("leaf2")
    );
}

/// A switch with one worker of the job has a role in the tree, though a plan has it only forward.
#[test]
fn a_switch_that_forwards_one_stream_has_one_member() {
    let mut problem = leaf_spine(100.0, 100.0);
    problem.jobs[0].workers = vec![0, 2, 3];
    let plan = planned(&problem, Algorithm::Tally);
    let expected = [
        "leaf1: 1 worker, rank 0 of 3, local rank 0 at spine1",
        "leaf2: 2 workers, ranks 1 to 2 of 3, local rank 1 at spine1",
        "spine1: ranks 0 to 2 of 3, root, below: leaf1, leaf2",
    ];
    assert_eq!(roles(&problem, &plan), expected);
    // The same between switches: pod1 passes on what leaf1 has summed.
    let tiers = problem_of_three_tiers();
    let streams: [&[&str]; 7] = [
        &["h1", "leaf1"],
        &["h2", "leaf1"],
        &["h3", "leaf2"],
        &["h4", "leaf2"],
        &["leaf1", "pod1", "core1"],
        &["leaf2", "pod2", "core1"],
        &["core1", "ps1"],
    ];
    let plan = by_hand(&tiers, "ps1", &streams);
    let expected = [
        "leaf1: 2 workers, ranks 0 to 1 of 4, local rank 0 at pod1",
        "pod1: ranks 0 to 1 of 4, local rank 0 at core1, below: leaf1",
        "leaf2: 2 workers, ranks 2 to 3 of 4, local rank 0 at pod2",
        "pod2: ranks 2 to 3 of 4, local rank 1 at core1, below: leaf2",
        "core1: ranks 0 to 3 of 4, root, below: pod1, pod2",
    ];
    assert_eq!(roles(&tiers, &plan), expected);
}

fn problem_of_three_tiers() -> Problem {
    let switches = ["leaf1", "leaf2", "pod1", "pod2", "core1"].map(|name| (name, 100.0));
    problem(
        &switches,
        &[
            ("leaf1", "pod1"),
            ("leaf2", "pod2"),
            ("leaf1", "pod2"),
            ("leaf2", "pod1"),
            ("pod1", "core1"),
            ("pod2", "core1"),
        ],
        &[
            ("h1", "leaf1"),
            ("h2", "leaf1"),
            ("h3", "leaf2"),
            ("h4", "leaf2"),
        ],
        &[("ps1", "core1")],
    )
}

#[test]
fn a_job_of_one_switch_has_no_tree_wherever_its_ps_is() {
    let mut problem = leaf_spine(100.0, 100.0);
    problem.jobs[0].workers = vec![1, 0];
    let plan = planned(&problem, Algorithm::Tally);
    assert_eq!(plan.jobs[0].shares[0].tree.streams.len(), 3);
    let expected = ["leaf1: 2 workers, the job's only switch"];
    assert_eq!(roles(&problem, &plan), expected);
    assert_eq!(workers(&problem, &plan), "0 h2 leaf1, 1 h1 leaf1");
    // One worker, which sends to the PS directly.
    problem.jobs[0].workers = vec![2];
    let plan = planned(&problem, Algorithm::Tally);
    let expected = ["leaf2: 1 worker, the job's only switch"];
    assert_eq!(roles(&problem, &plan), expected);
}

/// The root is where the last sum is made. What it sends to its PS is no part of the tree.
#[test]
fn a_ps_behind_a_leaf_serves_the_root_above() {
    let mut problem = leaf_spine(100.0, 100.0);
    problem.topology.servers[0].switch = 1;
    let streams: [&[&str]; 7] = [
        &["h1", "leaf1"],
        &["h2", "leaf1"],
        &["h3", "leaf2"],
        &["h4", "leaf2"],
        &["leaf1", "spine1"],
        &["leaf2", "spine1"],
        &["spine1", "leaf2", "ps1"],
    ];
    let plan = by_hand(&problem, "ps1", &streams);
    let expected = "spine1: ranks 0 to 3 of 4, root, below: leaf1, leaf2";
    assert_eq!(roles(&problem, &plan)[2], expected);
}

#[test]
fn a_switch_with_workers_and_switches_below_gives_its_workers_the_first_ranks() {
    let mut problem = leaf_spine(100.0, 100.0);
    problem.topology.hosts[0].switch = 2;
    let streams: [&[&str]; 6] = [
        &["h1", "spine1"],
        &["h2", "leaf1", "spine1"],
        &["h3", "leaf2"],
        &["h4", "leaf2"],
        &["leaf2", "spine1"],
        &["spine1", "ps1"],
    ];
    let plan = by_hand(&problem, "ps1", &streams);
    let expected = [
        "leaf1: 1 worker, rank 1 of 4, local rank 1 at spine1",
        "leaf2: 2 workers, ranks 2 to 3 of 4, local rank 2 at spine1",
        "spine1: 1 worker, ranks 0 to 3 of 4, root, below: leaf1, leaf2",
    ];
    assert_eq!(roles(&problem, &plan), expected);
}

#[track_caller]
fn refused(problem: &Problem, plan: &Plan, words: &[&str]) {
    let error = mapped(problem, plan).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "{word}: {error}");
    }
}

fn checked(problem: &Problem, plan: &Plan) -> Result<(), Refusal> {
    check_capacity(problem, plan, &[mapped(problem, plan)?])
}

/// A worker joins its own switch, which sums what the plan has it forward, if it can.
#[test]
fn a_switch_sums_what_it_should_forward_or_the_plan_is_refused_with_the_worker() {
    // No switch sums, so two workers pass each leaf.
    let mut problem = leaf_spine(100.0, 100.0);
    let plan = planned(&problem, Algorithm::None);
    let tree = mapped(&problem, &plan).unwrap();
    assert_eq!(
        roles(&problem, &plan)[2],
        "spine1: ranks 0 to 3 of 4, root, below: leaf1, leaf2"
    );
    // What came to the PS would be four streams, of which two are left.
    assert_eq!(tree.sums, [(0, 2), (1, 2), (2, 0)]);
    assert_eq!(checked(&problem, &plan), Ok(()));
    problem.topology.switches[1].capacity = 0.0;
    let error = checked(&problem, &plan).unwrap_err().to_string();
    for word in ["job job", "leaf2", "h3, h4", "sum 5.0000", "up to 0.0000"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    // A worker passes a leaf that sums two others.
    problem.topology.switches[1].capacity = 100.0;
    problem.topology.hosts[2].switch = 0;
    let streams: [&[&str]; 6] = [
        &["h1", "leaf1"],
        &["h2", "leaf1"],
        &["h3", "leaf1", "spine1"],
        &["h4", "leaf2", "spine1"],
        &["leaf1", "spine1"],
        &["spine1", "ps1"],
    ];
    let plan = by_hand(&problem, "ps1", &streams);
    assert_eq!(mapped(&problem, &plan).unwrap().sums, [(0, 3), (2, 2)]);
    problem.topology.switches[0].capacity = 2.5;
    let error = checked(&problem, &plan).unwrap_err().to_string();
    assert!(error.contains("h3") && error.contains("3.0000"), "{error}");
}

/// A plan may have a leaf sum what another leaf has summed: both are below the spine.
#[test]
fn a_sum_travels_a_link_the_other_way_where_the_fabric_leads_up() {
    let mut problem = leaf_spine(100.0, 100.0);
    for server in [1, 2] {
        problem.topology.servers[0].switch = server;
        let mut streams: Vec<&[&str]> = vec![
            &["h1", "leaf1"],
            &["h2", "leaf1"],
            &["h3", "leaf2"],
            &["h4", "leaf2"],
            &["leaf1", "spine1", "leaf2"],
        ];
        streams.push(match server {
            1 => &["leaf2", "ps1"],
            _ => &["leaf2", "spine1", "ps1"],
        });
        let plan = by_hand(&problem, "ps1", &streams);
        let expected = "spine1: ranks 0 to 3 of 4, root, below: leaf1, leaf2";
        assert_eq!(roles(&problem, &plan)[2], expected);
        assert_eq!(checked(&problem, &plan), Ok(()));
    }
    // The spine was to sum nothing, and cannot.
    problem.topology.switches[2].capacity = 1.0;
    let plan = by_hand(
        &problem,
        "ps1",
        &[
            &["h1", "leaf1"],
            &["h2", "leaf1"],
            &["h3", "leaf2"],
            &["h4", "leaf2"],
            &["leaf1", "spine1", "leaf2"],
            &["leaf2", "spine1", "ps1"],
        ],
    );
    let error = checked(&problem, &plan).unwrap_err().to_string();
    assert!(error.contains("spine1 would sum"), "{error}");
}

/// The capacity of a switch is that of all jobs.
#[test]
fn what_a_switch_sums_of_several_jobs_counts_together() {
    let mut problem = leaf_spine(20.0, 100.0);
    let one = planned(&problem, Algorithm::None);
    problem.jobs.push(problem.jobs[0].clone());
    problem.jobs[1].name = "other".to_owned();
    let mut plan = one.clone();
    plan.jobs.push(one.jobs[0].clone());
    let links = fabric(&problem);
    for (rate, is_good) in [(5.0, true), (6.0, false)] {
        plan.jobs.iter_mut().for_each(|job| job.rate = rate);
        let trees = [0, 1].map(|at| {
            let (topology, job) = (&problem.topology, &problem.jobs[at]);
            tree(topology, job, &plan.jobs[at], 1, |at| &links[at]).unwrap()
        });
        assert_eq!(check_capacity(&problem, &plan, &trees).is_ok(), is_good);
    }
}

/// With one worker behind each leaf, all meet at the PS's switch.
#[test]
fn a_plan_without_sums_is_a_tree_if_no_switch_but_the_pss_gets_two_streams() {
    let mut problem = leaf_spine(100.0, 100.0);
    problem.jobs[0].workers = vec![0, 2];
    let plan = planned(&problem, Algorithm::None);
    let expected = "spine1: ranks 0 to 1 of 2, root, below: leaf1, leaf2";
    assert_eq!(roles(&problem, &plan)[2], expected);
}

#[test]
fn sums_that_a_switch_should_forward_are_summed_there() {
    let tiers = problem_of_three_tiers();
    let streams: [&[&str]; 7] = [
        &["h1", "leaf1"],
        &["h2", "leaf1"],
        &["h3", "leaf2"],
        &["h4", "leaf2"],
        &["leaf1", "pod1", "core1"],
        &["leaf2", "pod1", "core1"],
        &["core1", "ps1"],
    ];
    let plan = by_hand(&tiers, "ps1", &streams);
    let expected = [
        "leaf1: 2 workers, ranks 0 to 1 of 4, local rank 0 at pod1",
        "leaf2: 2 workers, ranks 2 to 3 of 4, local rank 1 at pod1",
        "pod1: ranks 0 to 3 of 4, root, below: leaf1, leaf2",
    ];
    // Nothing is left for core1.
    assert_eq!(roles(&tiers, &plan), expected);
    let tree = mapped(&tiers, &plan).unwrap();
    assert_eq!(tree.sums, [(0, 2), (1, 2), (2, 2)]);
}

#[test]
fn several_ways_of_one_job_and_a_switch_below_two_others_are_refused() {
    let tiers = problem_of_three_tiers();
    let streams: [&[&str]; 6] = [
        &["h1", "leaf1", "pod1"],
        &["h2", "leaf1", "pod2", "core1"],
        &["h3", "leaf2", "pod1"],
        &["h4", "leaf2", "pod1"],
        &["pod1", "core1"],
        &["core1", "ps1"],
    ];
    let plan = by_hand(&tiers, "ps1", &streams);
    refused(
        &tiers,
        &plan,
        &["job job", "leaf1", "pod1", "pod2", "core1"],
    );
    // leaf2 joins its own pod's workers with those of another pod.
    let mut tiers = problem_of_three_tiers();
    tiers.topology.hosts[0].switch = 2;
    let streams: [&[&str]; 6] = [
        &["h1", "pod1", "leaf2"],
        &["h2", "leaf1", "pod2"],
        &["h3", "leaf2"],
        &["h4", "leaf2"],
        &["leaf2", "pod2"],
        &["pod2", "core1", "ps1"],
    ];
    let plan = by_hand(&tiers, "ps1", &streams);
    refused(
        &tiers,
        &plan,
        &["job job", "leaf2", "pod1", "pod2", "one parent"],
    );
}

#[test]
fn shares_and_missing_trees_are_refused_with_what_to_do() {
    let problem = leaf_spine(100.0, 100.0);
    let mut plan = planned(&problem, Algorithm::Tally);
    let share = plan.jobs[0].shares[0].clone();
    plan.jobs[0].shares.push(share);
    refused(&problem, &plan, &["job job", "2 shares", "--trees 1"]);
    plan.jobs[0].shares.clear();
    refused(&problem, &plan, &["job job", "no parameter server"]);
}

#[test]
fn more_members_than_a_switch_has_are_refused() {
    let names: Vec<_> = (0..65).map(|n| format!("h{n}")).collect();
    let hosts: Vec<_> = names.iter().map(|name| (name.as_str(), "leaf1")).collect();
    let problem = problem(&[("leaf1", 1e6)], &[], &hosts, &[("ps1", "leaf1")]);
    let plan = planned(&problem, Algorithm::Tally);
    refused(&problem, &plan, &["leaf1", "65", "64"]);
}

/// Links are those that both ends report, one of them upwards.
#[test]
fn a_link_that_the_fabric_does_not_have_is_refused_with_the_end_that_lacks_it() {
    let problem = leaf_spine(100.0, 100.0);
    let plan = planned(&problem, Algorithm::Tally);
    let leaf = [link("spine1", true)];
    let spine = [link("leaf1", false), link("leaf2", false)];
    let test = |links: [&[FabricLinkReport]; 3]| {
        let (topology, job) = (&problem.topology, &problem.jobs[0]);
        tree(topology, job, &plan.jobs[0], 1, |at| links[at])
            .map(|tree| tree.roles.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(test([&leaf, &leaf, &spine]), Ok(3));
    for (links, words) in [
        (
            [&leaf[..], &leaf, &spine[..1]],
            "spine1 reports none to leaf2 (its links: leaf1)",
        ),
        (
            [&leaf, &[], &spine],
            "leaf2 reports none to spine1 (its links: none)",
        ),
        (
            [&leaf, &[link("spine1", false)], &spine],
            "leaf2 reports none up to spine1 (its links up: none)",
        ),
        (
            [&leaf, &leaf, &[link("leaf1", true), link("leaf2", true)]],
            "spine1 reports none down to leaf1 (its links down: none)",
        ),
    ] {
        let error = test(links).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

/// What switches make of a plan's trees, as resources with loads: one stream on each link up and
/// its result, and what each switch sums.
fn made(problem: &Problem, plan: &Plan, trees: &[JobTree]) -> BTreeMap<Resource, f64> {
    let topology = &problem.topology;
    let at = |name: &str| match names::find(topology, name) {
        Some(Node::Switch(at)) => at,
        other => panic!("{name}: {other:?}"),
    };
    let mut loads = BTreeMap::new();
    for ((job, planned), tree) in problem.jobs.iter().zip(&plan.jobs).zip(trees) {
        for (switch, role) in &tree.roles {
            if let Some(parent) = role.parent() {
                for (from, to) in [(*switch, at(parent)), (at(parent), *switch)] {
                    let way = names::way(topology, Node::Switch(from), Node::Switch(to));
                    *loads.entry(way.unwrap()).or_default() += planned.rate;
                }
            }
            if role.members() > 1 {
                let cost = match job.element.is_narrow() {
                    true => topology.switches[*switch].narrow_cost,
                    false => 1.0,
                };
                let sums = planned.rate * cost * role.members() as f64;
                *loads.entry(Resource::Capacity(*switch)).or_default() += sums;
            }
        }
    }
    loads
}

/// The loads of a plan on links and switches, without those of the ways from roots to their PS.
fn meant(problem: &Problem, plan: &Plan) -> BTreeMap<Resource, f64> {
    let mut plan = plan.clone();
    for share in plan.jobs.iter_mut().flat_map(|it| &mut it.shares) {
        let server = Node::Server(share.tree.server);
        let streams = &mut share.tree.streams;
        streams.retain(|it| it.to != server);
    }
    let mut loads = loads(problem, &plan);
    loads.retain(|it, _| {
        let is_link = matches!(it, Resource::Forward(_) | Resource::Backward(_));
        is_link || matches!(it, Resource::Capacity(_))
    });
    loads
}

/// The trees of all jobs that have one; what the switches make of them is what was planned.
#[track_caller]
fn all_made(problem: &Problem, plan: &Plan) -> usize {
    rules::check(problem, plan).unwrap();
    let mut problem = problem.clone();
    let mut plan = plan.clone();
    let has_tree: Vec<_> = plan.jobs.iter().map(|it| it.rate > 0.0).collect();
    let mut keep = has_tree.iter();
    problem.jobs.retain(|_| *keep.next().unwrap());
    plan.jobs.retain(|it| it.rate > 0.0);
    let links = fabric(&problem);
    let trees = problem.jobs.iter().zip(&plan.jobs);
    let trees =
        trees.map(|(job, planned)| tree(&problem.topology, job, planned, 1, |at| &links[at]));
    let trees: Vec<_> = trees.collect::<Result<_, _>>().unwrap();
    check_capacity(&problem, &plan, &trees).unwrap();
    let (made, meant) = (made(&problem, &plan, &trees), meant(&problem, &plan));
    assert!(made.keys().eq(meant.keys()), "{made:?} {meant:?}");
    for (resource, load) in &made {
        let differs = (load - meant[resource]).abs();
        assert!(differs < 1e-9, "{resource:?}: {load} {}", meant[resource]);
    }
    trees.len()
}

/// Fleets with a PS at each switch of the highest tier, links of very different rates, and a link
/// or switch down in half of them.
#[test]
fn plans_for_switches_are_made_as_they_are() {
    for (tiers, least) in [(2, 150), (3, 150)] {
        let (mut jobs, mut trees, mut lost) = (0, 0, 0);
        for seed in 0..100 {
            let problem = generate::fabric(seed, tiers);
            let plan = for_switches(&problem);
            let made = all_made(&problem, &plan);
            trees += made;
            jobs += plan.jobs.len();
            // A plan of any shape has no job more.
            let any = planned(&problem, Algorithm::Tally);
            lost += any.jobs.iter().filter(|it| it.rate > 0.0).count() - made;
        }
        println!("{tiers} tiers: {trees} of {jobs} jobs have trees; {lost} more without the rules");
        assert!(trees >= least, "{trees} of {jobs} jobs");
        assert_eq!(lost, 0);
    }
}

/// A link of the tree dies, and one comes back: jobs that are held keep their trees if they can,
/// and all new ones are such that switches can make them.
#[test]
fn plans_that_follow_plans_are_made_as_they_are() {
    for seed in 0..50 {
        let mut problem = generate::fabric(seed, 2 + seed as usize % 2);
        let names: Vec<_> = problem.jobs.iter().map(|it| it.name.clone()).collect();
        let mut before = for_switches(&problem);
        let mut random = Random::new(seed);
        for _ in 0..4 {
            let at = random.below(problem.topology.links.len());
            let link = &mut problem.topology.links[at];
            link.rate = if link.rate > 0.0 { 0.0 } else { 20.0 };
            let held = [random.below(names.len())];
            let options = options();
            let next = replan_holding(&problem, &before, &names, &held, &options).unwrap();
            check(&problem, &next.plan).unwrap();
            all_made(&problem, &next.plan);
            before = next.plan;
        }
    }
}

/// A plan of any shape is no plan to keep, where it breaks a rule.
#[test]
fn a_tree_that_switches_cannot_make_is_not_kept() {
    let mut count = 0;
    for seed in 0..40 {
        let problem = generate::fabric(seed, 2);
        let names: Vec<_> = problem.jobs.iter().map(|it| it.name.clone()).collect();
        let before = planned(&problem, Algorithm::Tally);
        count += usize::from(rules::check(&problem, &before).is_err());
        let all: Vec<_> = (0..names.len()).collect();
        let next = replan_holding(&problem, &before, &names, &all, &options()).unwrap();
        all_made(&problem, &next.plan);
    }
    assert!(count > 10, "{count} of 40 break a rule");
}

/// The sum of a root is complete, so its way to the PS may pass switches of the tree.
#[test]
fn the_way_from_a_root_to_its_ps_is_no_part_of_the_tree() {
    let mut problem = leaf_spine(100.0, 100.0);
    let spine = problem.topology.switches[2].clone();
    problem.topology.switches.push(Switch {
        name: "spine2".to_owned(),
        ..spine
    });
    for a in [0, 1] {
        let rate = 100.0;
        problem.topology.links.push(Link { a, b: 3, rate });
    }
    problem.topology.servers[0].switch = 0;
    let streams: [&[&str]; 7] = [
        &["h1", "leaf1"],
        &["h2", "leaf1"],
        &["h3", "leaf2"],
        &["h4", "leaf2"],
        &["leaf1", "spine1"],
        &["leaf2", "spine1"],
        &["spine1", "leaf2", "spine2", "leaf1", "ps1"],
    ];
    let plan = by_hand(&problem, "ps1", &streams);
    rules::check(&problem, &plan).unwrap();
    let expected = "spine1: ranks 0 to 3 of 4, root, below: leaf1, leaf2";
    assert_eq!(roles(&problem, &plan)[2], expected);
}

/// A leaf without hosts is above the spines by its distance. With its tier, it is no root.
#[test]
fn a_leaf_for_a_ps_alone_needs_its_tier() {
    let switches = ["leaf1", "leaf2", "spine1", "spine2", "leaf3"].map(|name| (name, 100.0));
    let mut problem = problem(
        &switches,
        &[
            ("leaf1", "spine1"),
            ("leaf2", "spine2"),
            ("leaf3", "spine1"),
            ("leaf3", "spine2"),
        ],
        &[("h1", "leaf1"), ("h2", "leaf2")],
        &[("ps1", "leaf3")],
    );
    let plan = for_switches(&problem);
    refused(&problem, &plan, &["leaf3", "spine1", "spine2", "`tier`"]);
    problem.topology.switches[4].tier = Some(0);
    let plan = for_switches(&problem);
    refused(&problem, &plan, &["no parameter server"]);
    let link = Link {
        a: 0,
        b: 3,
        rate: 100.0,
    };
    problem.topology.links.push(link);
    let plan = for_switches(&problem);
    assert_eq!(all_made(&problem, &plan), 1);
    let expected = "spine2: ranks 0 to 1 of 2, root, below: leaf1, leaf2";
    assert_eq!(roles(&problem, &plan)[2], expected);
}
