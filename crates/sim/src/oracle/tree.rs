//! What the sums of a tree of switches ought to be: each node's fold, from the contributions.
//!
//! A node folds its members in the order of their local ranks. Sub-32-bit types are rounded or
//! saturated once at each node. Everything is done on payloads, so that a child's sum is a term
//! like a worker's contribution.

use super::{Contributions, Pairing};
use crate::tree::{Member, Tree};
use half::{bf16, f16};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tally_wire::Element;

/// Sums of nodes that are kept.
const CACHED: usize = 4096;

/// Sums by fragment, node and element type.
type Cache = BTreeMap<(u64, usize, u8), Rc<[u8]>>;

/// The contributions of a job with a tree, and its nodes' sums.
pub struct TreeSums {
    contributions: Contributions,
    tree: Rc<Tree>,
    payload_bytes: usize,
    sums: RefCell<Cache>,
}

impl TreeSums {
    /// Sums of these contributions by this tree.
    #[must_use]
    pub const fn new(contributions: Contributions, tree: Rc<Tree>, payload_bytes: usize) -> Self {
        Self {
            contributions,
            tree,
            payload_bytes,
            sums: RefCell::new(Cache::new()),
        }
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Writes what the worker of this global rank contributes to fragment `seq`.
    pub fn write(&self, rank: u16, seq: u64, element: Element, payload: &mut [u8]) {
        let (node, local) = self.tree.place(rank);
        let node = &self.tree.nodes[node];
        // Sums of each node fit, so hosts of one node make up for each other.
        let pairing = Pairing::of(u16::from(local), node.hosts, node.first);
        self.contributions
            .write_paired(rank, pairing, seq, element, payload);
    }

    /// The sum of all below a node.
    pub fn sum(&self, node: usize, seq: u64, element: Element) -> Rc<[u8]> {
        let key = (seq, node, element as u8);
        if let Some(sum) = self.sums.borrow().get(&key) {
            return Rc::clone(sum);
        }
        let sum: Rc<[u8]> = self.partial(node, seq, element, u64::MAX).into();
        let mut sums = self.sums.borrow_mut();
        if sums.len() >= CACHED {
            sums.pop_first();
        }
        sums.insert(key, Rc::clone(&sum));
        sum
    }

    /// What the members in `bitmap` of a node, at least one, add up to.
    #[must_use]
    pub fn partial(&self, node: usize, seq: u64, element: Element, bitmap: u64) -> Vec<u8> {
        let mut terms = Vec::new();
        for local in 0..self.tree.nodes[node].members() {
            if bitmap >> local & 1 == 0 {
                continue;
            }
            match self.tree.member(node, local) {
                Some(Member::Host(rank)) => {
                    let mut payload = vec![0; self.payload_bytes];
                    self.write(rank, seq, element, &mut payload);
                    terms.push(Rc::from(payload));
                }
                Some(Member::Child(child)) => terms.push(self.sum(child, seq, element)),
                None => {}
            }
        }
        fold(element, &terms)
    }

    /// Whether a frame of a node may carry what the members in `bitmap` add up to (H-3).
    #[must_use]
    pub fn may_be_partial(&self, node: usize, element: Element, bitmap: u64) -> bool {
        super::may_be_partial(element, bitmap, self.tree.nodes[node].members())
    }
}

/// The fold of the terms in their order, rounded or saturated at the end.
fn fold(element: Element, terms: &[Rc<[u8]>]) -> Vec<u8> {
    match terms {
        [] => Vec::new(),
        [one] => one.to_vec(),
        _ => {
            let bytes = terms[0].len();
            let step = element.bytes().max(1);
            let at = (0..bytes / step).map(|at| step * at..step * (at + 1));
            at.flat_map(|at| {
                let each = terms.iter().map(|term| &term[at.clone()]);
                fold_one(element, each)
            })
            .collect()
        }
    }
}

fn two(bytes: &[u8]) -> [u8; 2] {
    [bytes[0], bytes[1]]
}

fn four(bytes: &[u8]) -> [u8; 4] {
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

fn fold_one<'a>(element: Element, terms: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let add = |sum: f32, term: f32| sum + term;
    match element {
        Element::I32 => {
            let sum: i64 = terms.map(|t| i64::from(i32::from_be_bytes(four(t)))).sum();
            let sum = sum.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            sum.to_be_bytes().to_vec()
        }
        Element::I16 => {
            let sum: i32 = terms.map(|t| i32::from(i16::from_be_bytes(two(t)))).sum();
            (sum.clamp(-32_768, 32_767) as i16).to_be_bytes().to_vec()
        }
        Element::I8 => {
            let sum: i32 = terms.map(|t| i32::from(t[0].cast_signed())).sum();
            vec![sum.clamp(-128, 127) as u8]
        }
        Element::F32 => {
            let sum = terms.map(|t| f32::from_le_bytes(four(t))).reduce(add);
            let sum = sum.unwrap_or(0.0);
            let bits = if sum.is_nan() {
                0x7fc0_0000
            } else {
                sum.to_bits()
            };
            bits.to_le_bytes().to_vec()
        }
        Element::F16 => {
            let sum = terms
                .map(|t| f16::from_le_bytes(two(t)).to_f32())
                .reduce(add);
            let sum = sum.unwrap_or(0.0);
            let bits = if sum.is_nan() {
                0x7e00
            } else {
                f16::from_f32(sum).to_bits()
            };
            bits.to_le_bytes().to_vec()
        }
        Element::Bf16 => {
            let sum = terms
                .map(|t| bf16::from_le_bytes(two(t)).to_f32())
                .reduce(add);
            let sum = sum.unwrap_or(0.0);
            let bits = if sum.is_nan() {
                0x7fc0
            } else {
                bf16::from_f32(sum).to_bits()
            };
            bits.to_le_bytes().to_vec()
        }
        _ => vec![terms.map(|t| t[0]).max().unwrap_or(0)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(tree: Tree) -> TreeSums {
        let contributions = Contributions {
            salt: 9,
            workers: tree.workers() as u8,
            infinite_ppm: 0,
        };
        TreeSums::new(contributions, Rc::new(tree), 64)
    }

    fn uneven() -> Tree {
        Tree::new(&[(None, 1), (Some(0), 3), (Some(0), 2)])
    }

    #[test]
    fn a_switch_alone_folds_as_without_a_tree() {
        for (element, hosts) in Element::ALL
            .into_iter()
            .flat_map(|e| [(e, 1), (e, 2), (e, 5)])
        {
            let tree = sums(Tree::single(hosts));
            let mut expected = [0; 64];
            tree.contributions.write_sum(3, element, &mut expected);
            assert_eq!(*tree.sum(0, 3, element), expected, "{element:?} {hosts}");
        }
    }

    #[test]
    fn the_fold_of_floats_depends_on_the_tree_and_integers_fit_at_each_node() {
        let (tree, flat) = (sums(uneven()), sums(Tree::single(6)));
        let differ = |element| {
            (0..50)
                .filter(|&seq| tree.sum(0, seq, element) != flat.sum(0, seq, element))
                .count()
        };
        for element in [Element::F32, Element::F16, Element::Bf16] {
            assert!(differ(element) > 25, "{element:?} {}", differ(element));
        }
        assert_eq!(differ(Element::I32), 0);
        assert_eq!(differ(Element::Scale), 0);
        for (seq, node) in (0..50).flat_map(|seq| [(seq, 0), (seq, 1), (seq, 2)]) {
            let sum = tree.sum(node, seq, Element::I8);
            assert!(sum.iter().all(|&v| v.cast_signed().abs() < 100), "{sum:?}");
        }
    }

    #[test]
    fn a_partial_is_of_members_of_its_node() {
        let tree = sums(uneven());
        // A child's sum is a term as it is.
        let child = tree.partial(0, 7, Element::F16, 0b010);
        assert_eq!(*child, *tree.sum(1, 7, Element::F16));
        assert!(tree.may_be_partial(0, Element::F32, 0b011));
        assert!(!tree.may_be_partial(0, Element::F32, 0b110));
        assert!(tree.may_be_partial(0, Element::F16, 0b111));
    }
}
