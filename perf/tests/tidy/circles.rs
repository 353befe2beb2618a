//! No circle of modules inside a package.
//!
//! An edge leads from a module to the module that defines what it mentions, in a `use` or in a path
//! in its code. A re-export is followed to the definition.
//!
//! Edges between a module and one inside of it do not count: a child may use what its parents
//! define, and a parent uses its children. Any other edge counts between the two siblings that it
//! connects: if `native::batch` mentions `egress::queue`, the edge is from `native` to `egress`. So
//! neither a folder, with all its files, nor a file stands in a circle with its siblings.

use std::collections::{BTreeMap, BTreeSet};

use super::files;
use super::finding::{Finding, check};
use super::modules::{Modules, Names};
use super::packages::ORDER;

/// Edges between the children of one module, each with an example of where it is.
type Edges = BTreeMap<(String, String), String>;

fn edges(modules: &Modules) -> BTreeMap<Names, Edges> {
    let mut levels: BTreeMap<Names, Edges> = BTreeMap::new();
    for (from, module) in &modules.0 {
        for (line, path) in &module.mentions {
            let Some(to) = modules.home(path) else {
                continue;
            };
            let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if shared < from.len() && shared < to.len() {
                let edge = (from[shared].clone(), to[shared].clone());
                let place = format!("{}:{line}", files::name(&module.file));
                let level = levels.entry(from[..shared].to_vec()).or_default();
                level.entry(edge).or_insert(place);
            }
        }
    }
    levels
}

/// What can be reached from a node.
fn reach<'a>(edges: &'a Edges, start: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    while let Some(at) = open.pop() {
        for (from, to) in edges.keys() {
            if from == at && seen.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    seen
}

/// Edges that are part of a circle.
fn circle(edges: &Edges) -> Vec<String> {
    let in_circle = |from: &str, to: &str| reach(edges, to).contains(from);
    let edges = edges.iter().filter(|((from, to), _)| in_circle(from, to));
    let edges = edges.map(|((from, to), place)| format!("{from} -> {to} ({place})"));
    edges.collect()
}

#[test]
fn modules_do_not_import_in_a_circle() {
    let mut found = Vec::new();
    for package in ORDER {
        let modules = Modules::of(package);
        for (level, edges) in edges(&modules) {
            let circle = circle(&edges);
            if !circle.is_empty() {
                let file = &modules.0[&level].file;
                let what = format!("circle of its modules:\n  {}", circle.join("\n  "));
                found.push(Finding::new(file, 0, what));
            }
        }
    }
    check("circle", &found);
}

#[test]
fn a_circle_is_found() {
    let edge = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), "x".to_owned());
    let mut edges = Edges::from([edge("a", "b"), edge("b", "c"), edge("d", "a")]);
    assert_eq!(circle(&edges), [""; 0]);
    edges.extend([edge("c", "a")]);
    assert_eq!(circle(&edges), ["a -> b (x)", "b -> c (x)", "c -> a (x)"]);
}
