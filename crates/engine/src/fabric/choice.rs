//! Where floods go, and which ways up are equal, from what neighbours reach.
//!
//! *Down*: a family of neighbours whose switches are disjoint, the largest first, of equals the one
//! of the lowest number. A flood from above goes to all of the family. One from a neighbour below
//! goes to those of the family that reach nothing that this neighbour reaches.
//!
//! *Up*: the neighbour that reaches most, of equals the one of the lowest number, is *elected* for
//! floods. It and all that reach the same are equal for frames to known hosts.
//!
//! So each switch gets at most one copy: what is reached by a path up and, at its switches, down is
//! disjoint, because a switch says upwards all that is below it, also what its own floods omit.

use crate::forwarding::fabric::NeighbourState;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use tally_wire::fabric::SwitchId;

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its identity.
    pub id: SwitchId,
    /// Whether it is above.
    pub is_up: bool,
    /// Whether one of its links lives.
    pub is_live: bool,
    /// Switches of the lowest tier that it reaches for this switch.
    pub reach: BTreeSet<SwitchId>,
    /// All that it ever reached.
    pub reached: BTreeSet<SwitchId>,
}

/// What is chosen: numbers of neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Those below to which floods from above go.
    pub family: Vec<usize>,
    /// The one above to which floods go.
    pub elected: Option<usize>,
    /// Those above that reach what the elected one does.
    pub equals: Vec<usize>,
}

/// Chooses among neighbours.
#[must_use]
pub fn choose(neighbours: &[Neighbour]) -> Choice {
    let live = neighbours.iter().enumerate().filter(|(_, it)| it.is_live);
    let (mut above, mut below): (Vec<_>, Vec<_>) = live.partition(|(_, it)| it.is_up);
    let order = |(_, it): &(usize, &Neighbour)| (Reverse(it.reach.len()), it.id);
    above.sort_by_key(order);
    below.sort_by_key(order);
    let mut taken = BTreeSet::new();
    let mut family = Vec::new();
    for (at, neighbour) in below {
        if taken.is_disjoint(&neighbour.reach) {
            taken.extend(&neighbour.reach);
            family.push(at);
        }
    }
    let elected = above.first().copied();
    let is_equal = |it: &Neighbour| elected.is_some_and(|(_, best)| it.reach == best.reach);
    let equals = above.iter().filter(|(_, it)| is_equal(it));
    Choice {
        family,
        elected: elected.map(|(at, _)| at),
        equals: equals.map(|(at, _)| *at).collect(),
    }
}

impl Choice {
    /// To which neighbours a flood from hosts goes.
    #[must_use]
    pub fn from_hosts(&self) -> Vec<usize> {
        self.family.iter().copied().chain(self.elected).collect()
    }

    /// To which neighbours a flood from a neighbour below goes.
    #[must_use]
    pub fn from_below(&self, neighbours: &[Neighbour], from: usize) -> Vec<usize> {
        let sender = &neighbours[from];
        let is_other = |at: &usize| *at != from && neighbours[*at].reach.is_disjoint(&sender.reach);
        let down = self.family.iter().copied().filter(is_other);
        down.chain(self.elected).collect()
    }

    /// All switches below.
    #[must_use]
    pub fn below(&self, neighbours: &[Neighbour]) -> BTreeSet<SwitchId> {
        let below = neighbours.iter().filter(|it| it.is_live && !it.is_up);
        below.flat_map(|it| &it.reach).copied().collect()
    }

    /// Switches that a flood from a neighbour below reaches.
    #[must_use]
    pub fn reached_from(&self, neighbours: &[Neighbour], from: usize) -> BTreeSet<SwitchId> {
        let to = self.from_below(neighbours, from);
        to.iter()
            .flat_map(|&at| &neighbours[at].reach)
            .copied()
            .collect()
    }

    /// What tables of cores are made from, without links and MACs.
    #[must_use]
    pub fn states(&self, neighbours: &[Neighbour]) -> Vec<NeighbourState> {
        let of = |(at, it): (usize, &Neighbour)| {
            let others = neighbours.iter().enumerate();
            let others = others.filter(|(other, its)| *other != at && !its.is_up && !it.is_up);
            let covers =
                |its: &Neighbour| it.is_live && its.is_live && its.reach.is_subset(&it.reach);
            let covered =
                |its: &Neighbour| !its.reached.is_empty() && its.reached.is_subset(&it.reached);
            let numbers = |is_one: &dyn Fn(&Neighbour) -> bool| {
                let those = others.clone().filter(|(_, its)| is_one(its));
                those.map(|(other, _)| other).collect()
            };
            NeighbourState {
                is_equal: self.equals.contains(&at),
                covers: numbers(&covers),
                covered: numbers(&|its| covers(its) || covered(its)),
                ..NeighbourState::default()
            }
        };
        neighbours.iter().enumerate().map(of).collect()
    }
}
