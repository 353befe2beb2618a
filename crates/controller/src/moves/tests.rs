use super::*;
use crate::roles::{Child, Parent, Position};
use std::collections::BTreeSet;

fn names() -> Vec<String> {
    ["spine1", "spine2", "leaf1", "leaf2"]
        .map(str::to_owned)
        .to_vec()
}

fn role(parent: Option<(&str, u8)>, children: &[&str]) -> Role {
    let parent = parent.map(|(switch, rank)| Parent {
        switch: switch.to_owned(),
        rank,
    });
    let children = children.iter().map(|it| Child {
        switch: (*it).to_owned(),
        ranks: 2,
    });
    Role {
        workers: if children.len() == 0 { 2 } else { 0 },
        parameter_servers: 1,
        tree: Some(Position {
            total: 4,
            first: 0,
            parent,
            children: children.collect(),
        }),
    }
}

/// Two leaves below a spine: its root last.
fn tree(spine: usize) -> Vec<(usize, Role)> {
    let name = &names()[spine];
    vec![
        (2, role(Some((name, 0)), &[])),
        (3, role(Some((name, 1)), &[])),
        (spine, role(None, &["leaf1", "leaf2"])),
    ]
}

#[derive(Default)]
struct Site {
    dead: BTreeSet<&'static str>,
    links: BTreeSet<[&'static str; 2]>,
}

impl Ground for Site {
    fn is_dead(&self, switch: &str) -> bool {
        self.dead.contains(switch)
    }

    fn is_link_down(&self, a: &str, b: &str) -> bool {
        self.links.contains(&[a, b]) || self.links.contains(&[b, a])
    }

    fn answers(&self, switch: &str) -> Option<usize> {
        let at = names().iter().position(|it| it == switch)?;
        (!self.dead.contains(switch)).then_some(at)
    }
}

fn state(now: &[(usize, Role)], is_busy: bool, site: &Site) -> State {
    let answer = now
        .iter()
        .filter(|(at, _)| !site.dead.contains(&names()[*at][..]));
    let now: Roles = answer.cloned().collect();
    State::new(now, is_busy, &names(), site)
}

fn verdict_of(state: &State, wanted: &[(usize, Role)], site: &Site) -> Verdict {
    let answers = |at: usize| !site.dead.contains(&names()[at][..]);
    verdict(state, wanted, answers, &names())
}

#[test]
fn a_job_that_runs_waits_and_an_idle_one_moves() {
    let site = Site::default();
    let runs = state(&tree(0), true, &site);
    assert!(runs.is_held());
    let waits = Verdict::Waits("it runs; it moves when it is idle".into());
    assert_eq!(verdict_of(&runs, &tree(1), &site), waits);
    assert_eq!(
        verdict_of(&runs, &tree(0), &site),
        Verdict::Go { ends: false }
    );
    let idle = state(&tree(0), false, &site);
    assert_eq!(
        verdict_of(&idle, &tree(1), &site),
        Verdict::Go { ends: false }
    );
}

#[test]
fn a_job_with_a_dead_root_or_link_moves_at_once() {
    let mut site = Site::default();
    site.dead.insert("spine1");
    let stuck = state(&tree(0), true, &site);
    assert_eq!(stuck.broken(), Some("switch spine1 is dead"));
    assert_eq!(
        verdict_of(&stuck, &tree(1), &site),
        Verdict::Go { ends: true }
    );

    let mut site = Site::default();
    site.links.insert(["spine1", "leaf2"]);
    let stuck = state(&tree(0), true, &site);
    assert_eq!(stuck.broken(), Some("link spine1 - leaf2 is down"));
    assert_eq!(
        verdict_of(&stuck, &tree(1), &site),
        Verdict::Go { ends: true }
    );
    // The link of another tree is nothing to it.
    let runs = state(&tree(1), true, &site);
    assert!(runs.is_held());
}

#[test]
fn a_switch_that_came_back_without_the_job_gets_it_while_others_run() {
    let site = Site::default();
    let lacking = state(&tree(0)[1..], true, &site);
    assert_eq!(lacking.broken(), Some("switch leaf1 does not have the job"));
    assert_eq!(
        verdict_of(&lacking, &tree(0), &site),
        Verdict::Go { ends: false }
    );
}

#[test]
fn half_of_a_move_is_finished_though_members_have_joined() {
    let site = Site::default();
    // The root is removed; the leaves are as they were.
    let half = state(&tree(0)[..2], true, &site);
    assert_eq!(half.broken(), Some("switch spine1 does not have the job"));
    assert_eq!(
        verdict_of(&half, &tree(1), &site),
        Verdict::Go { ends: true }
    );
    // One leaf has its new role, and the root is still missing.
    let half = state(&tree(1)[..1], true, &site);
    assert_eq!(
        verdict_of(&half, &tree(1), &site),
        Verdict::Go { ends: false }
    );
}

#[test]
fn nothing_is_changed_for_a_tree_with_a_switch_that_does_not_answer() {
    let mut site = Site::default();
    site.dead.insert("leaf2");
    let stuck = state(&tree(0), true, &site);
    let waits = Verdict::Waits("switch leaf2 of its tree does not answer".into());
    assert_eq!(verdict_of(&stuck, &tree(1), &site), waits);
}
