//! Options of a world with trees of switches.

use super::ring::RingsOptions;
use super::{JobOptions, MS, Options, in_time};
use crate::link::Faults;
use crate::rng::Rng;
use crate::tree::Tree;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use tally_engine::PolicyName;
use tally_wire::Element;

/// Seeds that are a world with trees, in a million.
const TREES_PPM: u32 = 250_000;
/// What makes the draws of a seed's world of trees unlike those of its ordinary world.
const APART: u64 = 0x7ee5_0f5e_ed00;
/// The same of trouble that is added to a world with trees, whose other draws stay as they are.
const ADDED: u64 = 0xadde_d7ee_0b1e;
/// The same of loops.
const LOOPED: u64 = 0x100b_ed7e_e000;
/// The same of where rings are.
const RINGED: u64 = 0x4e7_7ee5;
/// Worlds with trees whose switches are joined in loops, in a million.
const LOOPS_PPM: u32 = 400_000;
/// Longest time for which a switch or a trunk is down without a job noticing more than a delay.
const DOWN_MS: u64 = 500;

/// A job, and which switches are its nodes.
#[derive(Clone, Debug)]
pub struct TreeJob {
    /// What it does.
    pub options: JobOptions,
    /// Its nodes.
    pub tree: Rc<Tree>,
    /// By node, its switch.
    pub switches: Vec<usize>,
    /// By node, the switch that its parameter server is at.
    pub ps_at: Vec<usize>,
}

impl TreeJob {
    /// The node that a switch is, if it is one.
    #[must_use]
    pub fn node_of(&self, switch: usize) -> Option<usize> {
        self.switches.iter().position(|&of| of == switch)
    }
}

/// Something that goes wrong at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeIncident {
    /// A switch is gone for so long, and starts anew.
    SwitchRestart {
        /// Which.
        switch: usize,
        /// So long.
        down: Duration,
    },
    /// A switch, all switches below it and all processes at them die. The switches start again
    /// when every job has noticed.
    SubtreeDies {
        /// The highest of them.
        switch: usize,
    },
    /// Nothing arrives over the trunk above a switch.
    TrunkDown {
        /// The lower one.
        switch: usize,
        /// For so long.
        lasting: Duration,
    },
    /// The trunk above a switch loses a tenth of all frames.
    TrunkLoss {
        /// The lower one.
        switch: usize,
        /// For so long.
        lasting: Duration,
    },
    /// Nothing arrives downward over the trunk above a switch: sums go up, and results are lost.
    TrunkDeaf {
        /// The lower one.
        switch: usize,
        /// For so long.
        lasting: Duration,
    },
    /// What is sent on the trunk above a switch arrives late, and what is sent after it overtakes.
    TrunkLate {
        /// The lower one.
        switch: usize,
        /// For so long.
        lasting: Duration,
        /// So late.
        by: Duration,
    },
    /// Nothing arrives over one of the trunks above a switch.
    CableDown {
        /// The lower one.
        switch: usize,
        /// Which of its trunks.
        cable: usize,
        /// For so long.
        lasting: Duration,
    },
    /// A node's parameter server dies, and after so long there is another.
    PsRestart {
        /// Whose.
        job: usize,
        /// Of which node.
        node: usize,
        /// So long.
        down: Duration,
    },
    /// A worker dies.
    WorkerDeath {
        /// Of which job.
        job: usize,
        /// Its global rank.
        rank: u16,
    },
    /// A user stops one worker.
    Interrupt {
        /// Of which job.
        job: usize,
        /// Its global rank.
        rank: u16,
    },
    /// All workers of a job die, and a new incarnation starts while their frames are under way.
    JobRestart {
        /// Which.
        job: usize,
    },
    /// A worker's host hears nothing and is not heard.
    Partition {
        /// Of which job.
        job: usize,
        /// Its global rank.
        rank: u16,
        /// For so long.
        lasting: Duration,
    },
    /// The processes of a worker's host do not run.
    Straggler {
        /// Of which job.
        job: usize,
        /// Its global rank.
        rank: u16,
        /// For so long.
        lasting: Duration,
    },
}

impl TreeIncident {
    /// Restarts, which keep a job from its work for a good part of what its timeouts allow.
    const fn is_long(self) -> bool {
        matches!(self, Self::SwitchRestart { .. } | Self::PsRestart { .. })
    }
}

/// Everything about a world with trees.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// What such a world has in common with others: a switch, a cable, timeouts. Its jobs, and all
    /// that it draws beside them, are not there.
    pub base: Options,
    /// By switch, the one above it; the first has none.
    pub above: Vec<Option<usize>>,
    /// The jobs.
    pub jobs: Vec<TreeJob>,
    /// One way over a trunk.
    pub trunk_delay: Duration,
    /// What trunks do to frames during the safety phase, upward and downward.
    pub trunk_faults: [Faults; 2],
    /// Whether all trunks are double. Hellos find the ways then.
    pub has_loops: bool,
    /// Rings, by host of a ring the switch below the first that it is at: with loops alone, where
    /// switches say who they are.
    pub rings: Option<(RingsOptions, Vec<usize>)>,
    /// The parameter servers at a switch share a host.
    pub shared_ps_host: bool,
    /// What happens, and when after the start.
    pub incidents: Vec<(Duration, TreeIncident)>,
    /// The same, and when after the first job has begun to run: in mid-fragment.
    pub in_job: Vec<(Duration, TreeIncident)>,
}

impl TreeOptions {
    /// The world with trees that a seed stands for; most stand for another world.
    #[must_use]
    pub fn draw(seed: u64) -> Option<Self> {
        let mut rng = Rng::new(seed ^ APART);
        rng.chance(TREES_PPM)
            .then(|| Self::draw_with(seed, &mut rng))
    }

    /// A world with trees for any seed.
    #[must_use]
    pub fn draw_anyway(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ APART);
        rng.chance(TREES_PPM);
        Self::draw_with(seed, &mut rng)
    }

    fn draw_with(seed: u64, rng: &mut Rng) -> Self {
        let mut base = Options::draw(seed);
        (base.switchml, base.sessions, base.fabric, base.card) = (None, None, None, None);
        base.rings = None;
        base.incidents.clear();
        base.limits.clear();
        base.policy = rng.pick(&PolicyName::ALL).1;
        // So few that everything collides at each node, in most worlds.
        base.slots = 1 << rng.pick(&[0, 0, 1, 2, 3, 3, 6, 10]);
        base.ways = base.ways.min(base.slots);
        base.forged_per_s = base.forged_per_s.min(1_000);
        base.delay = base.delay.min(Duration::from_micros(20));
        // A silent child is lost before its parent's other members stall.
        base.stall_timeout = base.member_timeout * 2 + 6_000 * MS;
        let quiet = base.faults == Faults::NONE;
        let above = draw_switches(rng);
        let trunk_delay = Duration::from_nanos(rng.pick(&[200, 20_000])).min(base.delay);
        let share = |rng: &mut Rng, most: u32| rng.below(u64::from(most) + 1) as u32;
        let trunk_faults = [(); 2].map(|()| Faults {
            loss_ppm: share(rng, base.faults.loss_ppm),
            duplicate_ppm: share(rng, base.faults.duplicate_ppm),
            reorder_ppm: share(rng, base.faults.reorder_ppm),
            ..base.faults
        });
        let poll = base.poll.map_or(Duration::ZERO, |poll| poll.lasting / 2);
        let way = (base.delay + trunk_delay + poll) * 3;
        let doomed = (!quiet && above.len() > 1 && rng.chance(150_000))
            .then(|| rng.between(1, above.len() as u64 - 1) as usize);
        let jobs_n = rng.pick(&[1, 1, 2, 3]);
        let jobs: Vec<_> = (0..jobs_n)
            .map(|n| draw_job(rng, n, &above, doomed, way))
            .collect();
        base.jobs = jobs.iter().map(|job| job.options.clone()).collect();
        let mut options = Self {
            base,
            above,
            jobs,
            trunk_delay,
            trunk_faults,
            has_loops: Rng::new(seed ^ LOOPED).chance(LOOPS_PPM),
            rings: None,
            shared_ps_host: rng.chance(500_000),
            incidents: Vec::new(),
            in_job: Vec::new(),
        };
        if options.has_loops {
            options.draw_rings(way, quiet);
        }
        if !quiet {
            options.draw_incidents(rng, doomed);
            options.add_trouble(&mut Rng::new(seed ^ ADDED), doomed);
            if options.has_loops {
                options.add_detours(&mut Rng::new(seed ^ LOOPED ^ ADDED));
            }
        }
        options
    }

    /// Draws rings over the switches below the first.
    fn draw_rings(&mut self, way: Duration, quiet: bool) {
        let seed = self.base.seed ^ LOOPED;
        self.rings = RingsOptions::draw(seed, way, self.base.safety, quiet).map(|rings| {
            let rng = &mut Rng::new(seed ^ RINGED);
            let leaves = (1..self.above.len()).filter(|&at| self.above[at] == Some(0));
            let leaves: Vec<_> = leaves.collect();
            let at = (0..rings.hosts).map(|_| rng.pick(&leaves)).collect();
            (rings, at)
        });
    }

    /// Adds what frames go round: a cable that is cut.
    fn add_detours(&mut self, rng: &mut Rng) {
        let safety = self.base.safety.as_micros() as u64;
        for _ in 0..rng.between(1, 4) {
            let at = Duration::from_micros(rng.below(safety + 1));
            let incident = TreeIncident::CableDown {
                switch: rng.between(1, self.above.len() as u64 - 1) as usize,
                cable: rng.below(2) as usize,
                lasting: Duration::from_millis(rng.between(10, 3_000)),
            };
            self.incidents.push((at, incident));
        }
        self.incidents.sort_by_key(|(at, _)| *at);
    }

    fn draw_incidents(&mut self, rng: &mut Rng, doomed: Option<usize>) {
        let safety = self.base.safety;
        let at = |rng: &mut Rng| {
            let range = rng.pick(&[10, 100, safety.as_millis() as u64]);
            Duration::from_micros(rng.below(range * 1000)).min(safety)
        };
        for _ in 0..rng.below(6) {
            let at = at(rng);
            let incident = self.draw_incident(rng);
            self.incidents.push((at, incident));
            // Two switches at once, perhaps.
            if let TreeIncident::SwitchRestart { down, .. } = incident
                && rng.chance(300_000)
            {
                let switch = rng.below(self.above.len() as u64) as usize;
                let incident = TreeIncident::SwitchRestart { switch, down };
                self.incidents.push((at, incident));
            }
        }
        self.incidents.sort_by_key(|(at, _)| *at);
        let mut long = 0;
        self.incidents.retain(|(_, incident)| {
            long += usize::from(incident.is_long());
            !incident.is_long() || long <= super::LONG_INCIDENTS && doomed.is_none()
        });
        if let Some(switch) = doomed {
            let at = at(rng);
            self.incidents
                .push((at, TreeIncident::SubtreeDies { switch }));
            self.incidents.sort_by_key(|(at, _)| *at);
        }
    }

    /// Adds what shows bugs that single incidents hardly ever do.
    fn add_trouble(&mut self, rng: &mut Rng, doomed: Option<usize>) {
        let lower = rng.between(1, self.above.len() as u64 - 1) as usize;
        let us =
            |rng: &mut Rng, least: u64, most: u64| Duration::from_micros(rng.between(least, most));
        let most = rng.pick(&[100, 1_000, 20_000]);
        let at = us(rng, 0, most);
        if rng.chance(300_000) {
            // Sums of an epoch come when the next one runs.
            for _ in 0..rng.between(1, 3) {
                let incident = TreeIncident::TrunkLate {
                    switch: lower,
                    lasting: us(rng, 100, 40_000),
                    by: us(rng, 50_000, 1_500_000),
                };
                let at = at + us(rng, 0, 50_000);
                self.in_job.push((at, incident));
            }
        }
        let of = &mut self.jobs[0].options;
        if rng.chance(100_000) && of.overflow.is_none() && of.workers > 1 {
            let is_int =
                |seq: &u64| matches!(of.element(*seq), Element::I32 | Element::I16 | Element::I8);
            let fragments = of.first..of.first + of.fragments();
            let ints: Vec<_> = fragments.filter(is_int).collect();
            of.overflow = (!ints.is_empty()).then(|| rng.pick(&ints));
        }
        let long = self.incidents.iter().filter(|(_, it)| it.is_long()).count();
        if rng.chance(250_000) && doomed.is_none() && long < super::LONG_INCIDENTS {
            // Results that one child has not, and that no other switch has any more.
            let lasting = us(rng, 5_000, 400_000);
            let deaf = TreeIncident::TrunkDeaf {
                switch: lower,
                lasting,
            };
            self.in_job.push((at, deaf));
            let down = us(rng, 100, 50_000);
            let parent = self.above[lower];
            let others = (0..self.above.len()).filter(|&switch| {
                let is_sibling = self.above[switch] == parent && switch != lower;
                is_sibling || Some(switch) == parent
            });
            let restart = |switch| TreeIncident::SwitchRestart { switch, down };
            let others = others.map(|switch| (at + lasting / 2, restart(switch)));
            self.in_job.extend(others.collect::<Vec<_>>());
        }
    }

    fn draw_incident(&self, rng: &mut Rng) -> TreeIncident {
        let job = rng.below(self.jobs.len() as u64) as usize;
        let of = &self.jobs[job];
        let rank = rng.below(u64::from(of.tree.workers())) as u16;
        let switch = rng.below(self.above.len() as u64) as usize;
        let lower = switch.max(1).min(self.above.len() - 1);
        let ms = |rng: &mut Rng, most: u64| Duration::from_micros(rng.below(most * 1000));
        match rng.below(12) {
            0..=3 => TreeIncident::SwitchRestart {
                switch,
                down: ms(rng, DOWN_MS),
            },
            4 => TreeIncident::TrunkDown {
                switch: lower,
                lasting: ms(rng, 700),
            },
            5 => TreeIncident::TrunkLoss {
                switch: lower,
                lasting: ms(rng, 1000),
            },
            6 | 7 => TreeIncident::PsRestart {
                job,
                node: rng.below(of.switches.len() as u64) as usize,
                down: ms(rng, DOWN_MS),
            },
            8 => TreeIncident::WorkerDeath { job, rank },
            9 => rng.pick(&[
                TreeIncident::Interrupt { job, rank },
                TreeIncident::JobRestart { job },
            ]),
            10 => TreeIncident::Partition {
                job,
                rank,
                lasting: ms(rng, 700),
            },
            _ => TreeIncident::Straggler {
                job,
                rank,
                lasting: ms(rng, 700),
            },
        }
    }

    /// A switch and all below it.
    #[must_use]
    pub fn below(&self, switch: usize) -> Vec<usize> {
        below(&self.above, switch)
    }
}

impl fmt::Display for TreeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{self:?}").replace("JobOptions {", "\n  JobOptions {");
        let text = text.replace("TreeJob {", "\n TreeJob {");
        let text = text.replace(", incidents:", ",\n  incidents:");
        write!(f, "{}", text.replace(", in_job:", ",\n  in_job:"))
    }
}

/// Switches of two or three levels.
fn draw_switches(rng: &mut Rng) -> Vec<Option<usize>> {
    let mut above = vec![None];
    let children = rng.between(1, 4);
    above.extend((0..children).map(|_| Some(0)));
    if rng.chance(500_000) {
        for parent in 1..above.len() {
            if rng.chance(600_000) {
                let children = rng.pick(&[1, 1, 2, 2, 3, 4]);
                above.extend((0..children).map(|_| Some(parent)));
            }
        }
    }
    above
}

/// A switch and all below it.
fn below(above: &[Option<usize>], switch: usize) -> Vec<usize> {
    let mut below = vec![switch];
    for (n, of) in above.iter().enumerate().skip(switch + 1) {
        if of.is_some_and(|of| below.contains(&of)) {
            below.push(n);
        }
    }
    below
}

/// The `n`-th job: the first one has all switches, others a part of them, or one.
fn draw_job(
    rng: &mut Rng,
    n: usize,
    above: &[Option<usize>],
    doomed: Option<usize>,
    way: Duration,
) -> TreeJob {
    let top = if n == 0 {
        0
    } else {
        rng.below(above.len() as u64) as usize
    };
    let mut switches = below(above, top);
    if n > 0 && rng.chance(500_000) {
        switches.truncate(1);
    }
    let is_parent = |switch: usize| switches.iter().any(|&n| above[n] == Some(switch));
    let spec: Vec<_> = switches
        .iter()
        .map(|&switch| {
            let parent = above[switch].filter(|_| switch != top);
            let parent = parent.and_then(|of| switches.iter().position(|&n| n == of));
            // Hosts beside children, and without.
            let least = u64::from(!is_parent(switch));
            let none = is_parent(switch) && rng.chance(500_000);
            let hosts = if none { 0 } else { rng.between(least, 3) };
            (parent, hosts as u16)
        })
        .collect();
    let tree = Rc::new(Tree::new(&spec));
    let workers = tree.workers() as u8;
    let mut options = JobOptions::draw(rng, workers > 6, way);
    let work = rng.pick(&[20, 100, 300]).min(in_time(way));
    let most = (work * 6 / u64::from(workers)).max(2);
    for message in &mut options.messages {
        *message = (*message).min(most);
    }
    options.workers = workers;
    let fragments = options.fragments();
    let first = options.first;
    options.overflow = options
        .overflow
        .filter(|&seq| workers > 1 && seq < first + fragments);
    let dies = doomed.map_or_else(Vec::new, |switch| below(above, switch));
    let safe: Vec<_> = (0..above.len()).filter(|n| !dies.contains(n)).collect();
    let ps_at = switches.iter().map(|_| rng.pick(&safe)).collect();
    TreeJob {
        options,
        tree,
        switches,
        ps_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_have_trees_of_all_kinds_and_an_adequate_share_of_the_seeds() {
        let drawn: Vec<_> = (0..400).filter_map(TreeOptions::draw).collect();
        assert!((60..140).contains(&drawn.len()), "{}", drawn.len());
        let has = |of: &dyn Fn(&TreeOptions) -> bool| drawn.iter().filter(|o| of(o)).count();
        assert!(has(&|o| o.jobs[0].tree.levels() == 3) > 20);
        assert!(has(&|o| o.jobs[0].tree.levels() == 2) > 20);
        let beside = |o: &TreeOptions| {
            let nodes = &o.jobs[0].tree.nodes;
            nodes.iter().any(|n| n.hosts > 0 && !n.children.is_empty())
        };
        assert!(has(&beside) > 20);
        assert!(has(&|o| o.jobs.iter().any(|job| job.switches.len() == 1)) > 5);
        let suffers = |is: fn(&TreeIncident) -> bool| {
            let all = |o: &TreeOptions| [&o.incidents[..], &o.in_job[..]].concat();
            has(&|o| all(o).iter().any(|(_, incident)| is(incident)))
        };
        assert!(suffers(|i| matches!(i, TreeIncident::SubtreeDies { .. })) > 5);
        assert!(suffers(|i| matches!(i, TreeIncident::TrunkDeaf { .. })) > 5);
        assert!(suffers(|i| matches!(i, TreeIncident::TrunkLate { .. })) > 10);
        assert!(has(&|o| o.has_loops) > 20);
        assert!(suffers(|i| matches!(i, TreeIncident::CableDown { .. })) > 10);
        assert!(has(&|o| o.rings.is_some()) > 5);
        for options in &drawn {
            assert!(options.jobs.iter().all(|job| job.tree.workers() <= 63));
        }
    }
}
