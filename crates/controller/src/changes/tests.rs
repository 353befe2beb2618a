#![allow(clippy::unwrap_used)]

use super::*;
use crate::roles::{Child, Parent, Position};
use tally_planner::random::Random;

/// A tree of some switches: each but the root below one before it.
fn tree(random: &mut Random, names: &[String]) -> Vec<(usize, Role)> {
    let count = 1 + random.below(names.len());
    let switches = random.sample(names.len(), count);
    let parents: Vec<_> = (1..count).map(|nth| random.below(nth)).collect();
    let mut roles = Vec::new();
    for (nth, &switch) in switches.iter().enumerate().rev() {
        let children = (1..count).filter(|&it| parents[it - 1] == nth);
        let children = children.map(|it| Child {
            switch: names[switches[it]].clone(),
            ranks: 1,
        });
        let parent = (nth > 0).then(|| Parent {
            switch: names[switches[parents[nth - 1]]].clone(),
            rank: 0,
        });
        let tree = Position {
            total: 4,
            first: random.below(2) as u16,
            parent,
            children: children.collect(),
        };
        roles.push((
            switch,
            Role {
                workers: 1,
                parameter_servers: 1,
                tree: (count > 1).then_some(tree),
            },
        ));
    }
    roles
}

fn names() -> Vec<String> {
    ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec()
}

fn make(state: &mut [Roles], change: &Change) {
    let roles = &mut state[change.job];
    let before = match change.action {
        Action::Remove => roles.remove(&change.switch),
        Action::Add => roles.insert(change.switch, change.role.clone()),
    };
    let expected = (change.action == Action::Remove).then(|| change.role.clone());
    assert_eq!(before, expected, "a change of another role");
}

fn is_part(roles: &Roles, of: &Roles) -> bool {
    roles.iter().all(|(at, role)| of.get(at) == Some(role))
}

fn jobs(state: &[Roles], wanted: &[Vec<(usize, Role)>]) -> Vec<JobChange> {
    let jobs = state.iter().zip(wanted);
    jobs.map(|(now, wanted)| JobChange {
        now: now.clone(),
        wanted: wanted.clone(),
    })
    .collect()
}

/// From any state, towards any plan, and stopped anywhere: no job ever has roles of two trees, and
/// no root is there beside a part of its tree that has changed.
#[test]
fn no_job_has_two_trees_after_any_part_of_the_changes() {
    let names = names();
    let mut random = Random::new(1);
    let mut moves = 0;
    for _ in 0..2000 {
        let trees: [[_; 2]; 3] = [(); 3].map(|()| [(); 2].map(|()| tree(&mut random, &names)));
        let whole = |tree: &Vec<(usize, Role)>| tree.iter().cloned().collect::<Roles>();
        // The first plan is there, but for a part that a restart took.
        let mut state: Vec<_> = trees[0].iter().map(whole).collect();
        if random.below(3) == 0 {
            let at = random.below(names.len());
            state[0].remove(&at);
        }
        for wanted in &trees[1..] {
            let start = state.clone();
            let jobs = jobs(&state, wanted);
            let list = changes(&jobs, &names);
            let stop = random.below(list.len() + 1);
            for change in &list[..stop] {
                make(&mut state, change);
                for (job, roles) in state.iter().enumerate() {
                    let new = whole(&wanted[job]);
                    assert!(is_part(roles, &start[job]) || is_part(roles, &new));
                    // While the tree moves, its root is the first to go and the last to come.
                    let is_root = |role: &Role| role.parent().is_none();
                    if jobs[job].reason() == Reason::Moves && *roles != new {
                        moves += 1;
                        assert!(*roles == start[job] || !roles.values().any(is_root));
                    }
                }
            }
        }
        // The last plan, run again after the stop.
        let list = changes(&jobs(&state, &trees[2]), &names);
        list.iter().for_each(|change| make(&mut state, change));
        let expected: Vec<_> = trees[2].iter().map(whole).collect();
        assert_eq!(state, expected);
        let again = jobs(&state, &trees[2]);
        assert_eq!(changes(&again, &names), []);
        assert!(again.iter().all(|job| job.reason() == Reason::Same));
    }
    assert!(moves > 1000, "{moves}");
}

#[test]
fn a_lost_role_comes_back_and_a_stray_one_goes_while_the_others_stay() {
    let names = names();
    let mut random = Random::new(7);
    let tree = loop {
        let tree = tree(&mut random, &names);
        if tree.len() == 4 {
            break tree;
        }
    };
    let mut now: Roles = tree.iter().cloned().collect();
    let (lost, role) = tree[0].clone();
    now.remove(&lost);
    let stray = (0..names.len()).find(|at| tree.iter().all(|(it, _)| it != at));
    let stray = stray.unwrap();
    now.insert(stray, tree[3].1.clone());
    let job = JobChange { now, wanted: tree };
    assert_eq!(job.reason(), Reason::Repaired);
    let list = changes(&[job], &names);
    let short: Vec<_> = list.iter().map(|it| (it.action, it.switch)).collect();
    assert_eq!(short, [(Action::Remove, stray), (Action::Add, lost)]);
    assert_eq!(list[1].role, role);
}

#[test]
fn all_jobs_leave_before_one_comes() {
    let names = names();
    let alone = |workers| Role {
        workers,
        parameter_servers: 1,
        tree: None,
    };
    let job = |now: &[(usize, u8)], wanted: (usize, u8)| JobChange {
        now: now.iter().map(|&(at, n)| (at, alone(n))).collect(),
        wanted: vec![(wanted.0, alone(wanted.1))],
    };
    let jobs = [
        job(&[], (0, 2)),
        job(&[(0, 3)], (0, 4)),
        job(&[(1, 1)], (1, 1)),
    ];
    assert_eq!(
        jobs.each_ref().map(JobChange::reason),
        [Reason::Begins, Reason::Moves, Reason::Same]
    );
    let list = changes(&jobs, &names);
    let short: Vec<_> = list.iter().map(|it| (it.job, it.action)).collect();
    let expected = [(1, Action::Remove), (0, Action::Add), (1, Action::Add)];
    assert_eq!(short, expected);
}
