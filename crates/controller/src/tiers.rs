//! The tiers of switches, from the links that they report. Without I/O.

use crate::fleet::Fleet;
use std::collections::{BTreeMap, BTreeSet};
use tally_schema::switch::report::FabricLinkReport;

/// Gives a fleet the tiers that its switches report, in the place of those of its file. `links` has
/// the links of a switch, by its index; one that does not answer has none.
///
/// A switch is above all switches to which it reports a link down, and below those to which it
/// reports one up. One end of a link is enough. Switches without such links keep what they have.
pub fn learn<'a>(fleet: &mut Fleet, links: impl Fn(usize) -> &'a [FabricLinkReport]) {
    let names = fleet.switches.iter().enumerate();
    let names: BTreeMap<_, _> = names.map(|(at, it)| (it.name.as_str(), at)).collect();
    let mut ups = BTreeSet::new();
    for at in 0..fleet.switches.len() {
        for link in links(at) {
            let Some(&other) = names.get(link.switch.as_str()) else {
                continue;
            };
            ups.insert(if link.up { (at, other) } else { (other, at) });
        }
    }
    let mut tiers = BTreeMap::<usize, u32>::new();
    for &(below, above) in &ups {
        tiers.insert(below, 0);
        tiers.insert(above, 0);
    }
    // The longest way up has a link less than there are switches. Ends that disagree make a ring,
    // which no tree passes: `roles` refuses such links.
    for _ in 1..tiers.len() {
        for (below, above) in &ups {
            let least = tiers[below] + 1;
            let tier = tiers.entry(*above).or_default();
            *tier = least.max(*tier);
        }
    }
    for (at, tier) in tiers {
        fleet.switches[at].tier = Some(tier);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fleet::Unit;
    use tally_planner::{Link, generate};

    fn report(switch: &str, up: bool) -> FabricLinkReport {
        FabricLinkReport {
            switch: switch.to_owned(),
            up,
            ..FabricLinkReport::default()
        }
    }

    /// Leaves 0 and 1, spines 2 and 3, a leaf 4 for parameter servers alone.
    fn fleet() -> Fleet {
        let mut problem = generate::fabric(1, 2);
        let topology = &mut problem.topology;
        topology.switches.truncate(5);
        for (at, switch) in topology.switches.iter_mut().enumerate() {
            switch.name = format!("s{at}");
        }
        let pairs = [(0, 2), (0, 3), (1, 2), (1, 3), (4, 2), (4, 3)];
        let rate = 10.0;
        topology.links = pairs.map(|(a, b)| Link { a, b, rate }).to_vec();
        topology.hosts.truncate(2);
        topology.hosts[0].switch = 0;
        topology.hosts[1].switch = 1;
        topology.servers.truncate(1);
        topology.servers[0].switch = 4;
        problem.jobs.truncate(1);
        problem.jobs[0].workers = vec![0, 1];
        Fleet::of(&problem, Unit::Gigabit)
    }

    fn tiers(fleet: &Fleet) -> Vec<u32> {
        let problem = fleet.problem(std::path::Path::new("fleet.json")).unwrap();
        problem.topology.tiers()
    }

    #[test]
    fn reports_take_the_place_of_the_distance_and_of_the_file() {
        let up = [report("s2", true), report("s3", true)];
        let down = ["s0", "s1", "s4"].map(|it| report(it, false));
        let mut fleet = fleet();
        // By distance, the leaf of the parameter servers is above the spines.
        assert_eq!(tiers(&fleet), [0, 0, 1, 1, 2]);
        fleet.switches[4].tier = Some(7);
        let all = |at: usize| match at {
            2 | 3 => &down[..],
            _ => &up[..],
        };
        learn(&mut fleet, all);
        assert_eq!(tiers(&fleet), [0, 0, 1, 1, 0]);
        // One end of each link is enough: leaves do not answer.
        let spines = |at: usize| if at == 2 { &down[..] } else { &[] };
        fleet.switches.iter_mut().for_each(|it| it.tier = None);
        learn(&mut fleet, spines);
        assert_eq!(tiers(&fleet), [0, 0, 1, 1, 0]);
        assert_eq!(fleet.switches[3].tier, None);
        // Nothing is learnt from silence.
        let before = fleet.clone();
        learn(&mut fleet, |_| &[]);
        assert_eq!(fleet, before);
    }

    #[test]
    fn three_tiers_and_ends_that_disagree_have_tiers() {
        let links = [
            vec![report("s1", true)],
            vec![report("s2", true), report("s0", true)],
            vec![report("s1", false), report("elsewhere", false)],
            vec![],
            vec![],
        ];
        let mut ring = fleet();
        learn(&mut ring, |at| &links[at]);
        assert!(ring.switches[2].tier > ring.switches[1].tier);
        let mut tiers = fleet();
        let of = |at: usize| {
            if at == 1 {
                &links[1][..1]
            } else {
                &links[at][..]
            }
        };
        learn(&mut tiers, of);
        let found = tiers.switches.iter().map(|it| it.tier);
        let found: Vec<_> = found.collect();
        assert_eq!(found, [Some(0), Some(1), Some(2), None, None]);
    }
}
