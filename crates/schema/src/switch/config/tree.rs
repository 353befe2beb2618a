//! Trees of switches: the place of a switch in the tree of a job.
//!
//! A file says what is above its switch and what is below it. [`Config::check`](super::Config)
//! finds what contradicts itself in one file, [`check_trees`] what contradicts itself in the files
//! of all switches.

use super::check::Faults;
use super::{Config, JobSection, TreeSection};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use tally_config::ConfigError;
use tally_wire::MAX_WORKERS;

/// Workers of a tree at most.
pub const TOTAL_MAX: u16 = 4096;

impl Config {
    pub(super) fn check_tree(
        &self,
        i: usize,
        job: &JobSection,
        tree: &TreeSection,
        faults: &mut Faults<'_>,
    ) {
        let key = |field: &str| format!("jobs[{i}].tree.{field}");
        let allowed = "`name`, by which parent and children know the switch";
        faults.test(self.name.is_none(), "name", &"none", allowed);
        let is_bad = job.fixed.is_some();
        let allowed = "no `tree` beside it: fixed members join nothing";
        faults.test(
            is_bad,
            format!("jobs[{i}].fixed"),
            &"fixed members",
            allowed,
        );
        let members = usize::from(job.workers) + tree.children.len();
        let found = format!(
            "{} and {} children, {members} members",
            job.workers,
            tree.children.len()
        );
        let is_good = (1..=MAX_WORKERS).contains(&members);
        let workers = format!("jobs[{i}].workers");
        faults.test(!is_good, workers, &found, "1 to 64 members");
        let is_good = (1..=TOTAL_MAX).contains(&tree.total);
        let allowed = format!("1 to {TOTAL_MAX} workers");
        faults.test(!is_good, key("total"), &tree.total, &allowed);
        let mut names: BTreeSet<&str> = tree.parent.iter().map(String::as_str).collect();
        if let Some(parent) = tree
            .parent
            .as_ref()
            .filter(|it| Some(*it) == self.name.as_ref())
        {
            let found = format!("`{parent}`, this switch");
            faults.test(true, key("parent"), &found, "another switch");
        }
        for (at, child) in tree.children.iter().enumerate() {
            let key = |field: &str| key(&format!("children[{at}].{field}"));
            let is_bad = Some(&child.switch) == self.name.as_ref();
            let found = format!("`{}`, this switch", child.switch);
            faults.test(is_bad, key("switch"), &found, "another switch");
            let found = format!("`{}` a second time", child.switch);
            let is_bad = !names.insert(&child.switch);
            faults.test(is_bad, key("switch"), &found, "each switch once in a job");
            let is_good = (1..=TOTAL_MAX).contains(&child.ranks);
            let allowed = format!("1 to {TOTAL_MAX} workers");
            faults.test(!is_good, key("ranks"), &child.ranks, &allowed);
        }
        self.check_neighbours(i, tree, faults);
        let covered = job.covered();
        if tree.parent.is_none() {
            let allowed = "0 at the root, which has no `parent`";
            faults.test(tree.first != 0, key("first"), &tree.first, allowed);
            let is_bad = covered != u32::from(tree.total);
            let allowed = format!("{covered}: `workers` and the ranks of all children");
            faults.test(is_bad, key("total"), &tree.total, &allowed);
            if let Some(rank) = tree.rank {
                let allowed = "none at the root, which has no `parent`";
                faults.test(true, key("rank"), &rank, allowed);
            }
        } else {
            let end = u32::from(tree.first) + covered;
            let allowed = format!("at most {}", u32::from(tree.total).saturating_sub(covered));
            let found = format!("{}, of {covered} ranks", tree.first);
            faults.test(end > u32::from(tree.total), key("first"), &found, &allowed);
            let is_bad = tree
                .rank
                .is_none_or(|rank| usize::from(rank) >= MAX_WORKERS);
            let found = tree.rank.map_or("none".to_owned(), |rank| rank.to_string());
            let allowed = "0 to 63: the local rank of this switch at its parent";
            faults.test(is_bad, key("rank"), &found, allowed);
        }
    }

    /// That a link leads to each switch of a tree.
    fn check_neighbours(&self, i: usize, tree: &TreeSection, faults: &mut Faults<'_>) {
        let links = self.fabric.iter().flat_map(|fabric| &fabric.links);
        let names = |up: bool| {
            let names = links.clone().filter(move |link| link.up == up);
            names
                .map(|link| link.switch.as_str())
                .collect::<BTreeSet<_>>()
        };
        let (above, below) = (names(true), names(false));
        let mut test = |key: &str, name: &str, known: &BTreeSet<&str>, direction: &str| {
            let mut shown: Vec<_> = known.iter().copied().collect();
            if shown.is_empty() {
                shown.push("none");
            }
            let allowed = format!(
                "a switch of fabric.links with up {direction}: {}",
                shown.join(", ")
            );
            let key = format!("jobs[{i}].tree.{key}");
            let found = format!("`{}`, without a link", name.escape_default());
            faults.test(!known.contains(name), key, &found, &allowed);
        };
        if let Some(parent) = &tree.parent {
            test("parent", parent, &above, "true");
        }
        for (at, child) in tree.children.iter().enumerate() {
            test(
                &format!("children[{at}].switch"),
                &child.switch,
                &below,
                "false",
            );
        }
    }
}

/// The section of one switch for one job.
struct Node<'a> {
    path: &'a Path,
    /// The job's place in its file.
    at: usize,
    name: &'a str,
    job: &'a JobSection,
    tree: &'a TreeSection,
}

impl Node<'_> {
    fn fault(
        &self,
        field: &str,
        found: impl fmt::Display,
        allowed: impl fmt::Display,
    ) -> ConfigError {
        let key = format!("jobs[{}].{field}", self.at);
        ConfigError::value(self.path, key, found, allowed)
    }
}

/// What contradicts itself in the trees of several switches, whose files are good one by one: two
/// roots, a loop, parents and children that do not name each other, ranks, keys.
#[must_use]
pub fn check_trees(files: &[(PathBuf, Config)]) -> Vec<ConfigError> {
    let mut jobs: BTreeMap<u16, Vec<Node<'_>>> = BTreeMap::new();
    let mut found = Vec::new();
    for (path, config) in files {
        for (at, job) in config.jobs.iter().enumerate() {
            if let (Some(tree), Some(name)) = (&job.tree, &config.name) {
                jobs.entry(job.id).or_default().push(Node {
                    path,
                    at,
                    name,
                    job,
                    tree,
                });
            }
        }
    }
    for nodes in jobs.values() {
        check_roots(nodes, &mut found);
        for node in nodes {
            check_parent(node, nodes, &mut found);
            check_children(node, nodes, &mut found);
        }
    }
    found
}

fn check_roots(nodes: &[Node<'_>], found: &mut Vec<ConfigError>) {
    let mut roots = nodes.iter().filter(|node| node.tree.parent.is_none());
    let Some(root) = roots.next() else {
        // Each has a parent, so going up ends nowhere or in a loop.
        if let Some(node) = nodes.first() {
            let names: Vec<_> = nodes.iter().map(|node| node.name).collect();
            let what = format!("a parent at each of {}", names.join(", "));
            found.push(node.fault("tree.parent", what, "one switch without, the root"));
        }
        return;
    };
    for other in roots {
        let what = format!("none at `{}` and none at `{}`", root.name, other.name);
        found.push(other.fault("tree.parent", what, "one root of a job"));
    }
    for node in nodes {
        let (total, expected) = (node.tree.total, root.tree.total);
        if total != expected {
            let allowed = format!("{expected}, as at `{}`", root.name);
            found.push(node.fault("tree.total", total, allowed));
        }
        if node.job.key != root.job.key {
            let allowed = format!("that of `{}`", root.name);
            found.push(node.fault("key", "another key", allowed));
        }
        // More steps than there are switches lead round in a loop.
        let mut at = node;
        let mut steps = 0;
        while let Some(parent) = &at.tree.parent {
            let Some(above) = nodes.iter().find(|it| it.name == parent) else {
                break;
            };
            at = above;
            steps += 1;
            if steps > nodes.len() {
                let what = format!("`{}`, a loop above `{}`", node.parent(), node.name);
                found.push(node.fault("tree.parent", what, "a way up to the root"));
                break;
            }
        }
    }
}

impl Node<'_> {
    fn parent(&self) -> &str {
        self.tree.parent.as_deref().unwrap_or_default()
    }
}

fn check_parent(node: &Node<'_>, nodes: &[Node<'_>], found: &mut Vec<ConfigError>) {
    let Some(name) = &node.tree.parent else {
        return;
    };
    let Some(parent) = nodes.iter().find(|it| it.name == name) else {
        let what = format!("`{name}`, which has no tree of job {}", node.job.id);
        let names: Vec<_> = nodes.iter().map(|it| format!("`{}`", it.name)).collect();
        let allowed = format!("one of {}", names.join(", "));
        found.push(node.fault("tree.parent", what, allowed));
        return;
    };
    let placed = parent.tree.placed(parent.job.workers);
    let Some((child, rank, first)) = placed.into_iter().find(|it| it.0.switch == node.name) else {
        let what = format!("`{name}`, whose children lack `{}`", node.name);
        found.push(node.fault("tree.parent", what, "a switch that has this one as child"));
        return;
    };
    if node.tree.rank.map(usize::from) != Some(rank) {
        let what = node
            .tree
            .rank
            .map_or("none".to_owned(), |it| it.to_string());
        let allowed = format!("{rank}, its place at `{name}`");
        found.push(node.fault("tree.rank", what, allowed));
    }
    if u32::from(node.tree.first) != first {
        let allowed = format!("{first}, its place at `{name}`");
        found.push(node.fault("tree.first", node.tree.first, allowed));
    }
    let covered = node.job.covered();
    if covered != u32::from(child.ranks) {
        let what = format!("{covered} workers here and below");
        let allowed = format!("{}, its ranks at `{name}`", child.ranks);
        found.push(node.fault("workers", what, allowed));
    }
}

fn check_children(node: &Node<'_>, nodes: &[Node<'_>], found: &mut Vec<ConfigError>) {
    for (at, child) in node.tree.children.iter().enumerate() {
        let key = format!("tree.children[{at}].switch");
        let below = nodes.iter().find(|it| it.name == child.switch);
        let Some(below) = below else {
            let what = format!(
                "`{}`, which has no tree of job {}",
                child.switch, node.job.id
            );
            let allowed = "a switch whose file is given and has the job's tree";
            found.push(node.fault(&key, what, allowed));
            continue;
        };
        if below.tree.parent.as_deref() != Some(node.name) {
            let parent = below.tree.parent.as_deref();
            let parent = parent.map_or("no parent".to_owned(), |it| format!("parent `{it}`"));
            let what = format!("`{}`, which has {parent}", child.switch);
            let allowed = format!("a switch with parent `{}`", node.name);
            found.push(node.fault(&key, what, allowed));
        }
    }
}

#[cfg(test)]
mod tests;
