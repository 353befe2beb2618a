//! How long a collective takes by each algorithm, by the bytes that occupy the narrowest link, and
//! which algorithm is the fastest.
//!
//! S bytes, links of B bytes a second, N workers, racks of n workers, G members of Rina's ring. An
//! all-reduce takes its steps times the delay of a step, plus the bytes over the narrowest link:
//!
//! | algorithm | steps | bytes of the narrowest link |
//! |---|---|---|
//! | ring | 2 (N-1) | 2 (N-1)/N S |
//! | hierarchical ring | 2 (n-1) + 2 (R-1) | 2 (n-1)/n S + 2 (R-1)/(n R) S |
//! | Rina, the switch sends on | 2 (G-1) | 2 (G-1)/G S, and one chunk more if a rack sums |
//! | Rina, an agent sends on | 2 (G-1) | that, and 2 (G-1)/(a G) S: a agents of a rack share it |
//! | tree to a parameter server | 2 | one S for each stream into the server |
//!
//! Rina's chunk more is the owner's: a rack sums it, too, before the gather phase begins, and a
//! plain ring does not send it. The papers' formula leaves it out.

/// Links and delays of a deployment, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Rate of a host's link, in bytes a second.
    pub link_bytes_per_s: f64,
    /// Delay of one step, without the time that its bytes take: from a member to the next, through
    /// the rack's switch where there is one.
    pub step_s: f64,
}

/// A rack, as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackShape {
    /// Its workers.
    pub workers: usize,
    /// Whether its switch sums.
    pub sums: bool,
}

/// Who sends a rack's sums to the next member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// The switch, as in the paper.
    Switch,
    /// An agent over its own link; so many workers of each rack share that, each for a part of the
    /// elements.
    Agents(usize),
}

/// An algorithm of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Rina's ring.
    Rina(Forwarder),
    /// A ring of all workers.
    Ring,
    /// A ring in each rack, and rings of one worker of each rack.
    Hierarchical,
    /// Switches sum on the way to a parameter server in a rack of its own, whose switch sums or
    /// does not.
    Tree {
        /// Whether the switch of the server's rack sums.
        server_sums: bool,
    },
    /// A parameter server alone.
    Server,
}

/// Members of Rina's ring.
#[must_use]
pub fn members(racks: &[RackShape]) -> usize {
    let of = |rack: &RackShape| if rack.sums { 1 } else { rack.workers };
    racks.iter().map(of).sum()
}

/// Steps one behind the other, and bytes over the narrowest link for each byte of an all-reduce.
///
/// None if the racks are of different sizes and the algorithm needs equal ones.
#[must_use]
pub fn occupation(algorithm: Algorithm, racks: &[RackShape]) -> Option<(usize, f64)> {
    let workers: usize = racks.iter().map(|rack| rack.workers).sum();
    let round = |members: usize| (2 * (members - 1), 2.0 * share(members));
    Some(match algorithm {
        Algorithm::Ring => round(workers),
        Algorithm::Rina(forwarder) => {
            let count = members(racks);
            let (steps, bytes) = round(count);
            let own = if racks.iter().any(|rack| rack.sums) {
                1.0 / count as f64
            } else {
                return Some((steps, bytes));
            };
            let sent_on = |rack: &RackShape| match forwarder {
                Forwarder::Agents(agents) if rack.sums => {
                    2.0 * share(count) / agents.clamp(1, rack.workers) as f64
                }
                _ => 0.0,
            };
            let most = racks.iter().map(sent_on).fold(0.0, f64::max);
            (steps, bytes + own + most)
        }
        Algorithm::Hierarchical => {
            let each = racks.first()?.workers;
            if racks.iter().any(|rack| rack.workers != each) {
                return None;
            }
            let (inside, between) = (round(each), round(racks.len()));
            (inside.0 + between.0, inside.1 + between.1 / each as f64)
        }
        Algorithm::Tree { server_sums: true } => (2, 1.0),
        Algorithm::Tree { server_sums: false } => (2, members(racks) as f64),
        Algorithm::Server => (2, workers as f64),
    })
}

/// (n-1)/n.
fn share(members: usize) -> f64 {
    (members - 1) as f64 / members as f64
}

/// Seconds of an all-reduce, if the algorithm can serve these racks.
#[must_use]
pub fn seconds(algorithm: Algorithm, racks: &[RackShape], rates: Rates, bytes: u64) -> Option<f64> {
    let (steps, times) = occupation(algorithm, racks)?;
    Some(steps as f64 * rates.step_s + times * bytes as f64 / rates.link_bytes_per_s)
}

/// The fastest of some algorithms, with its time; the first of equals.
#[must_use]
pub fn fastest(
    algorithms: &[(Algorithm, Rates)],
    racks: &[RackShape],
    bytes: u64,
) -> Option<(Algorithm, f64)> {
    let times = algorithms.iter().filter_map(|&(algorithm, rates)| {
        Some((algorithm, seconds(algorithm, racks, rates, bytes)?))
    });
    times.min_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 racks of 8, of which some sum.
    fn racks(summing: usize) -> Vec<RackShape> {
        let rack = |n| RackShape {
            workers: 8,
            sums: n < summing,
        };
        (0..8).map(rack).collect()
    }

    #[test]
    fn the_papers_figures() {
        for (summing, steps, share) in [(0, 126, 64.0), (4, 70, 36.0), (8, 14, 8.0)] {
            let racks = racks(summing);
            let rina = occupation(Algorithm::Rina(Forwarder::Switch), &racks).unwrap();
            assert_eq!(rina.0, steps);
            let tree = Algorithm::Tree { server_sums: false };
            assert_eq!(occupation(tree, &racks).unwrap().1, share);
        }
        let rates = Rates {
            link_bytes_per_s: 1e9,
            step_s: 1e-6,
        };
        let ring = seconds(Algorithm::Ring, &racks(0), rates, 64_000_000).unwrap();
        assert!((ring - 126.0 * (1e-6 + 1e-3)).abs() < 1e-9, "{ring}");
        let levels = occupation(Algorithm::Hierarchical, &racks(0)).unwrap();
        assert_eq!(levels, (28, 1.75 + 1.75 / 8.0));
    }

    #[test]
    fn agents_pay_for_what_a_switch_sends_on() {
        let bytes = |forwarder| {
            let rina = occupation(Algorithm::Rina(forwarder), &racks(8));
            rina.unwrap().1
        };
        assert_eq!(bytes(Forwarder::Switch), 1.75 + 0.125);
        assert_eq!(bytes(Forwarder::Agents(1)), 1.875 + 1.75);
        assert_eq!(bytes(Forwarder::Agents(8)), 1.875 + 1.75 / 8.0);
        assert_eq!(bytes(Forwarder::Agents(64)), bytes(Forwarder::Agents(8)));
    }

    #[test]
    fn the_fastest_depends_on_racks_and_bytes() {
        let rates = Rates {
            link_bytes_per_s: 12.5e9,
            step_s: 5e-6,
        };
        let all = [
            Algorithm::Tree { server_sums: false },
            Algorithm::Rina(Forwarder::Agents(1)),
            Algorithm::Ring,
            Algorithm::Server,
        ];
        let all = all.map(|algorithm| (algorithm, rates));
        let best = |summing, bytes| fastest(&all, &racks(summing), bytes).unwrap().0;
        // A few bytes: the fewest steps. Many: the fewest bytes.
        assert_eq!(best(8, 1000), Algorithm::Tree { server_sums: false });
        assert_eq!(best(8, 1 << 20), Algorithm::Rina(Forwarder::Agents(1)));
        assert_eq!(best(8, 1 << 30), Algorithm::Ring);
        assert_eq!(best(0, 1 << 30), Algorithm::Rina(Forwarder::Agents(1)));
        let uneven = [(8, true), (4, false)].map(|(workers, sums)| RackShape { workers, sums });
        assert_eq!(occupation(Algorithm::Hierarchical, &uneven), None);
    }
}
