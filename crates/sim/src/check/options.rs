//! What a seed stands for: everything about a run that may vary, drawn first and printed.

pub mod card;
pub mod fabric;
pub mod ring;
pub mod session;
pub mod tree;

use crate::address::SwitchId;
use crate::link::Faults;
use crate::rng::Rng;
use crate::switch::{PollConfig, Steering};
use card::CardOptions;
use fabric::{FabricOptions, NEAR};
use ring::RingsOptions;
use session::SessionOptions;
use std::fmt;
use std::time::Duration;
use tally_engine::PolicyName;
use tally_wire::Element;
use tally_wire::switchml::Size;

/// What the fragments of a job may take, one by one.
const WORK: Duration = Duration::from_secs(3);
/// Restarts of switch and parameter servers in a run at most.
const LONG_INCIDENTS: usize = 2;
/// Worlds with two switches, in a million.
const TWO_SWITCHES_PPM: u32 = 250_000;
/// Worlds in which control changes something, in a million.
const CHANGES_PPM: u32 = 300_000;
/// Worlds in which an operator changes jobs, in a million.
const CONTROL_PPM: u32 = 300_000;
/// Packets of each worker in a session of SwitchML that another one follows: for each slot, and at
/// most.
const PACKETS_PER_SLOT: u32 = 500;
/// See there.
const PACKETS_MAX: u32 = 10_000;
const MS: Duration = Duration::from_millis(1);

/// One job, over all its incarnations.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// Workers.
    pub workers: u8,
    /// Units of its payloads.
    pub units: u8,
    /// Window of each of its workers.
    pub window: u16,
    /// Fragments of each message.
    pub messages: Vec<u64>,
    /// Which element types its fragments have, in turn.
    pub elements: Vec<Element>,
    /// The first fragment's number, for the wrap at 2^32.
    pub first: u64,
    /// How far back the fragment is whose result a fragment waits for.
    pub depends: Option<u64>,
    /// Priority of each message.
    pub priorities: Vec<u8>,
    /// Infinite f32, in a million.
    pub infinite_ppm: u32,
    /// A fragment of the first incarnation in which integers overflow.
    pub overflow: Option<u64>,
}

impl JobOptions {
    /// All fragments of an incarnation.
    #[must_use]
    pub fn fragments(&self) -> u64 {
        self.messages.iter().sum()
    }

    fn draw(rng: &mut Rng, many: bool, way: Duration) -> Self {
        let workers = if many {
            rng.between(7, 64)
        } else {
            rng.between(1, 6)
        } as u8;
        let messages_n = rng.between(1, 4);
        // About the same work for any number of workers. One by one, each over the PS, fragments
        // must not take longer than that.
        let most = in_time(way) / messages_n;
        let budget = (rng.pick(&[50, 300, 1_000]) * 6 / u64::from(workers)).min(most);
        let messages = (0..messages_n)
            .map(|_| 1 + rng.below(budget.max(1)))
            .collect::<Vec<_>>();
        let fragments = messages.iter().sum::<u64>();
        let types = Element::ALL;
        let elements = match rng.below(7) {
            0 => vec![Element::I32],
            1 => vec![Element::F32],
            2 => types.to_vec(),
            3 => vec![Element::Scale, Element::I32, Element::I32],
            4 => vec![rng.pick(&types[3..])],
            5 => (0..7).map(|_| rng.pick(&types[3..])).collect(),
            _ => (0..7).map(|_| rng.pick(&types)).collect(),
        };
        let first = if rng.chance(250_000) {
            (1 << 32) - rng.below(fragments + 1)
        } else {
            0
        };
        let is_int = |e: &Element| matches!(e, Element::I32 | Element::I16 | Element::I8);
        let overflows = workers > 1 && rng.chance(60_000) && elements.iter().any(is_int);
        let overflow = overflows.then(|| {
            let n = elements.len() as u64;
            let seq = first + rng.below(fragments);
            // The next integer, or the one before.
            (seq..seq + n)
                .find(|s| is_int(&elements[(s % n) as usize]))
                .unwrap_or(seq)
        });
        Self {
            workers,
            units: rng.pick(&[1, 1, 1, 2]),
            window: rng.pick(&[1, 2, 7, 16, 40, 64, 128]),
            depends: rng.chance(300_000).then(|| rng.between(1, 30)),
            priorities: (0..messages_n).map(|_| rng.below(256) as u8).collect(),
            infinite_ppm: rng.pick(&[0, 0, 10_000]),
            overflow: overflow.filter(|&seq| seq < first + fragments),
            messages,
            elements,
            first,
        }
    }

    /// Element type of fragment `seq`.
    #[must_use]
    pub fn element(&self, seq: u64) -> Element {
        self.elements[(seq % self.elements.len() as u64) as usize]
    }
}

/// Something that goes wrong at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A switch is gone for so long, and starts anew.
    SwitchRestart {
        /// Which: 0, or 1 for the second one.
        switch: u16,
        /// So long.
        down: Duration,
    },
    /// A job's parameter server dies, and after so long there is another.
    PsRestart {
        /// Whose.
        job: usize,
        /// So long.
        down: Duration,
    },
    /// A worker dies.
    WorkerDeath {
        /// Of which job.
        job: usize,
        /// Which.
        rank: u8,
    },
    /// A user stops one worker.
    Interrupt {
        /// Of which job.
        job: usize,
        /// Which.
        rank: u8,
    },
    /// All workers of a job die, and a new incarnation starts while their frames are under way.
    JobRestart {
        /// Which.
        job: usize,
    },
    /// A host hears nothing and is not heard.
    Partition {
        /// Which.
        host: usize,
        /// For so long.
        lasting: Duration,
    },
    /// A host's processes do not run.
    Straggler {
        /// Which.
        host: usize,
        /// For so long.
        lasting: Duration,
    },
    /// The host of a job's parameter server is plugged into another port of its switch.
    PsMoves {
        /// Whose.
        job: usize,
    },
    /// The operator removes a job, and adds it again.
    JobRemoved {
        /// Which.
        job: usize,
        /// After so long.
        down: Duration,
    },
    /// The operator gives a job a new key, beside the one so far. Some processes that start from
    /// then on have it.
    KeyRotates {
        /// Whose.
        job: usize,
    },
    /// SwitchML's controller closes its session and opens another one.
    SessionRestart,
    /// Nothing arrives over the trunk between the switches.
    TrunkDown {
        /// For so long.
        lasting: Duration,
    },
    /// The trunk loses a tenth of all frames.
    TrunkLoss {
        /// For so long.
        lasting: Duration,
    },
    /// All frames of a host take longer.
    Spike {
        /// Which.
        host: usize,
        /// For so long.
        lasting: Duration,
        /// By so much.
        delay: Duration,
    },
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it was drawn from.
    pub seed: u64,
    /// Allocation policy.
    pub policy: PolicyName,
    /// Shards of the switch.
    pub shards: u8,
    /// Slots of each.
    pub slots: u32,
    /// Slots that a fragment may take.
    pub ways: u32,
    /// Least and most slots of each job in each shard; most 0: no limits.
    pub limits: Vec<(u32, u32)>,
    /// Contributions that each may hold out of order.
    pub held: u32,
    /// Largest window that the switch serves.
    pub switch_window: u16,
    /// Frames in each class of a port, frames from which on they are marked, and the guard.
    pub queue: (u32, u32, u32),
    /// How long the control thread takes.
    pub control_delay: Duration,
    /// Turns of the data cores; none: one frame at a time.
    pub poll: Option<PollConfig>,
    /// Which core receives a frame.
    pub steering: Steering,
    /// J-6.
    pub member_timeout: Duration,
    /// J-9.
    pub join_timeout: Duration,
    /// J-9.
    pub stall_timeout: Duration,
    /// Gbit/s of each cable.
    pub gbit_per_s: u64,
    /// One way.
    pub delay: Duration,
    /// What a host's cable keeps waiting at most, in bytes.
    pub backlog_bytes: u64,
    /// What hosts write ahead of their cables.
    pub ahead: Duration,
    /// What cables do to frames during the safety phase.
    pub faults: Faults,
    /// Forged frames a second during the safety phase.
    pub forged_per_s: u64,
    /// Frames in the switch's name are handed to hosts directly too, past the switch.
    pub hand_over: bool,
    /// A second switch.
    pub fabric: Option<FabricOptions>,
    /// A session of SwitchML beside the jobs.
    pub switchml: Option<SwitchmlOptions>,
    /// A job of sessions beside the others.
    pub sessions: Option<SessionOptions>,
    /// Rings of RoCE hosts beside the jobs.
    pub rings: Option<RingsOptions>,
    /// A card, which some of the jobs are offloaded to.
    pub card: Option<CardOptions>,
    /// How long faults happen.
    pub safety: Duration,
    /// The jobs.
    pub jobs: Vec<JobOptions>,
    /// All parameter servers share one host.
    pub shared_ps_host: bool,
    /// New incarnations reuse the UDP ports of the old.
    pub reuse_ports: bool,
    /// What happens, and when after the start.
    pub incidents: Vec<(Duration, Incident)>,
}

/// A session of SwitchML.
#[derive(Clone, Copy, Debug)]
pub struct SwitchmlOptions {
    /// Its workers.
    pub workers: u8,
    /// Its packets' size.
    pub size: Size,
    /// Slots that clients use.
    pub slots: u16,
    /// Packets of each worker.
    pub packets: u32,
}

impl SwitchmlOptions {
    fn draw(rng: &mut Rng) -> Self {
        Self {
            workers: rng.between(1, 8) as u8,
            size: rng.pick(&[Size::B128, Size::B256, Size::B1024]),
            slots: rng.pick(&[1, 3, 16, 64]),
            packets: rng.pick(&[1, 50, 400]),
        }
    }
}

impl Options {
    /// What the seed stands for.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let policy = rng.pick(&PolicyName::ALL).1;
        let jobs_n = rng.between(1, 3) as usize;
        let many = rng.chance(40_000);
        let slots = 1 << rng.pick(&[0, 1, 2, 3, 4, 6, 8, 10]);
        let quiet = rng.chance(100_000);
        let faults = draw_faults(rng, quiet);
        let delay = Duration::from_nanos(rng.pick(&[200, 2_000, 20_000, 200_000]));
        let poll = rng.chance(700_000).then(|| PollConfig {
            lasting: Duration::from_nanos(rng.pick(&[200, 2_000, 20_000, 200_000])),
            burst: rng.pick(&[1, 8, 32, 32]),
        });
        // One way, with half of a poll iteration.
        let way = delay + poll.map_or(Duration::ZERO, |poll| poll.lasting / 2);
        let member_timeout = (4000 + rng.below(2000) as u32) * MS;
        let jobs = (0..jobs_n)
            .map(|_| JobOptions::draw(rng, many, way))
            .collect::<Vec<_>>();
        let safety = rng.between(20, 3000) as u32 * MS;
        let incidents = draw_incidents(rng, quiet, &jobs, safety);
        let mut options = Self {
            seed,
            policy,
            shards: 1 << rng.below(3),
            slots,
            ways: (1 << rng.below(4)).min(slots),
            limits: draw_limits(rng, policy, slots, jobs_n),
            held: rng.pick(&[0, 1, 4, 64, 1024]),
            switch_window: rng.pick(&[1, 4, 16, 64, 64, 256]),
            queue: (
                rng.pick(&[8, 64, 512]).max(if many { 256 } else { 8 }),
                rng.pick(&[1, 8, 64, 100_000]),
                rng.pick(&[1, 3, 31]),
            ),
            control_delay: Duration::from_nanos(rng.pick(&[0, 1_000, 50_000, 2_000_000])),
            poll,
            member_timeout,
            join_timeout: 15_000 * MS,
            stall_timeout: member_timeout + 6_000 * MS,
            gbit_per_s: rng.pick(&[1, 10, 100]),
            delay,
            backlog_bytes: rng.pick(&[10_000, 100_000, 1_000_000_000]),
            ahead: Duration::from_micros(rng.pick(&[0, 0, 2, 20])),
            faults,
            forged_per_s: if quiet {
                0
            } else {
                rng.pick(&[0, 1_000, 10_000])
            },
            safety,
            jobs,
            shared_ps_host: rng.chance(300_000),
            reuse_ports: rng.chance(500_000),
            incidents,
            hand_over: rng.chance(700_000),
            steering: if rng.chance(400_000) {
                Steering::Owner
            } else {
                Steering::Rules
            },
            switchml: rng.chance(300_000).then(|| SwitchmlOptions::draw(rng)),
            sessions: if rng.chance(200_000) {
                let fragments = rng.pick(&[50, 300, 1_000]).min(in_time(way));
                Some(SessionOptions::draw(rng, quiet, fragments, safety))
            } else {
                None
            },
            fabric: None,
            rings: RingsOptions::draw(seed, way, safety, quiet),
            card: None,
        };
        if rng.chance(TWO_SWITCHES_PPM) {
            options.draw_fabric(rng, quiet);
        }
        if !quiet && rng.chance(CHANGES_PPM) {
            options.draw_changes(rng);
        }
        options.card =
            CardOptions::draw(seed, jobs_n, options.switch_window, options.safety, quiet);
        if !quiet {
            options.draw_control(seed);
        }
        if options.card.is_some() {
            // What a card does.
            options.policy = PolicyName::Esa;
            options.limits.clear();
        }
        options
    }

    /// Adds a second switch, and what goes wrong with it.
    fn draw_fabric(&mut self, rng: &mut Rng, quiet: bool) {
        self.fabric = Some(FabricOptions::draw(
            rng,
            &self.jobs,
            self.shared_ps_host,
            self.switchml,
            (self.delay, self.faults),
        ));
        let incidents_n = if quiet { 0 } else { rng.below(4) };
        for _ in 0..incidents_n {
            let incident = FabricOptions::draw_incident(rng);
            self.add_incident(rng, incident);
        }
        put_in_order(&mut self.incidents);
    }

    /// Adds changes that control makes, or takes, while jobs run.
    fn draw_changes(&mut self, rng: &mut Rng) {
        let job = rng.below(self.jobs.len() as u64) as usize;
        for _ in 0..rng.between(1, 2) {
            let incident = match &mut self.switchml {
                Some(session) if rng.chance(500_000) => {
                    // Enough for packets to be in flight at that moment.
                    session.packets = PACKETS_MAX.min(u32::from(session.slots) * PACKETS_PER_SLOT);
                    Incident::SessionRestart
                }
                _ => Incident::PsMoves { job },
            };
            self.add_incident(rng, incident);
        }
        put_in_order(&mut self.incidents);
    }

    /// Adds what an operator changes while the switch runs. Drawn apart, so that the rest of a
    /// seed's world is as without it.
    fn draw_control(&mut self, seed: u64) {
        let rng = &mut Rng::new(seed ^ 0x0b5e_55ed);
        if !rng.chance(CONTROL_PPM) {
            return;
        }
        for _ in 0..rng.between(1, 3) {
            let job = rng.below(self.jobs.len() as u64) as usize;
            let incident = if rng.chance(500_000) {
                let down = Duration::from_micros(rng.pick(&[0, 100, 10_000, 300_000]));
                Incident::JobRemoved { job, down }
            } else {
                Incident::KeyRotates { job }
            };
            self.add_incident(rng, incident);
        }
        self.incidents.sort_by_key(|(at, _)| *at);
    }

    fn add_incident(&mut self, rng: &mut Rng, incident: Incident) {
        let range = rng.pick(&[10, 100, self.safety.as_millis() as u64]);
        let at = Duration::from_micros(rng.below(range * 1000));
        self.incidents.push((at.min(self.safety), incident));
    }

    /// The job whose parameter server's host moves.
    #[must_use]
    pub fn moving_ps(&self) -> Option<usize> {
        let mut incidents = self.incidents.iter();
        incidents.find_map(|(_, incident)| match *incident {
            Incident::PsMoves { job } => Some(job),
            _ => None,
        })
    }

    /// The switch that sums a job.
    #[must_use]
    pub fn switch_of(&self, job: usize) -> SwitchId {
        let fabric = self.fabric.as_ref();
        fabric.map_or(NEAR, |fabric| fabric.switch_of(job))
    }

    /// Units of the largest payload of any job.
    #[must_use]
    pub fn units_max(&self) -> u8 {
        let sessions = self.sessions.iter().map(|it| it.units);
        let units = self.jobs.iter().map(|j| j.units).chain(sessions);
        units.max().unwrap_or(1)
    }
}

/// What cables do to frames; a quiet world has no faults.
fn draw_faults(rng: &mut Rng, quiet: bool) -> Faults {
    let ppm = |rng: &mut Rng, most: u64| {
        if quiet || rng.chance(300_000) {
            0
        } else {
            rng.below(most) as u32
        }
    };
    Faults {
        loss_ppm: ppm(rng, 100_000),
        loss_burst: 1,
        damage_ppm: ppm(rng, 20_000),
        duplicate_ppm: ppm(rng, 100_000),
        reorder_ppm: ppm(rng, 200_000),
        reorder_ns: rng.pick(&[1_000, 50_000, 1_000_000, 20_000_000]),
    }
}

/// Least and most slots of each job; none in most worlds.
fn draw_limits(rng: &mut Rng, policy: PolicyName, slots: u32, jobs: usize) -> Vec<(u32, u32)> {
    if !rng.chance(300_000) {
        return Vec::new();
    }
    let share = if policy.policy().preempts() {
        u64::from(slots) / jobs as u64
    } else {
        0
    };
    let limit = |rng: &mut Rng| {
        let least = rng.below(share + 1);
        let most = rng.between(least.max(1), u64::from(slots));
        (least as u32, most as u32)
    };
    (0..jobs).map(|_| limit(rng)).collect()
}

/// What goes wrong during the safety phase of a world of one switch.
fn draw_incidents(
    rng: &mut Rng,
    quiet: bool,
    jobs: &[JobOptions],
    safety: Duration,
) -> Vec<(Duration, Incident)> {
    let workers = jobs.iter().map(|j| usize::from(j.workers)).sum::<usize>();
    let incidents_n = if quiet { 0 } else { rng.below(5) };
    let mut incidents: Vec<_> = (0..incidents_n)
        .map(|_| {
            // Most of them early, while the first incarnations are at work.
            let range = rng.pick(&[10, 100, safety.as_millis() as u64]);
            let at = Duration::from_micros(rng.below(range * 1000));
            (at.min(safety), draw_incident(rng, jobs, workers))
        })
        .collect();
    put_in_order(&mut incidents);
    incidents
}

fn draw_incident(rng: &mut Rng, jobs: &[JobOptions], workers: usize) -> Incident {
    let job = rng.below(jobs.len() as u64) as usize;
    let rank = rng.below(u64::from(jobs[job].workers)) as u8;
    let host = rng.below(workers as u64 + 1) as usize;
    let ms = |rng: &mut Rng, most: u64| Duration::from_micros(rng.below(most * 1000));
    match rng.below(9) {
        0 | 1 => Incident::SwitchRestart {
            switch: 0,
            down: ms(rng, 500),
        },
        2 => Incident::PsRestart {
            job,
            down: ms(rng, 500),
        },
        3 => Incident::WorkerDeath { job, rank },
        4 => Incident::Interrupt { job, rank },
        5 => Incident::JobRestart { job },
        6 => Incident::Partition {
            host,
            lasting: ms(rng, 700),
        },
        7 => Incident::Straggler {
            host,
            lasting: ms(rng, 700),
        },
        _ => Incident::Spike {
            host,
            lasting: ms(rng, 700),
            delay: ms(rng, 20),
        },
    }
}

/// Puts incidents in order. Nothing that is survived alone is survived many times over.
fn put_in_order(incidents: &mut Vec<(Duration, Incident)>) {
    incidents.sort_by_key(|(at, _)| *at);
    let mut n = 0;
    incidents.retain(|(_, incident)| {
        n += usize::from(is_long(incident));
        !is_long(incident) || n <= LONG_INCIDENTS
    });
}

/// Fragments that can be summed in time one by one, each over the PS, when a way takes so long.
fn in_time(way: Duration) -> u64 {
    let one = 6 * way + Duration::from_micros(50);
    WORK.as_nanos() as u64 / one.as_nanos() as u64
}

/// Whether an incident keeps a job from its work for a good part of what its timeouts allow.
const fn is_long(incident: &Incident) -> bool {
    matches!(
        incident,
        Incident::SwitchRestart { .. } | Incident::PsRestart { .. } | Incident::PsMoves { .. }
    )
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One thing a line, but short lists on theirs.
        let text = format!("{self:?}").replace("JobOptions {", "\n  JobOptions {");
        write!(f, "{}", text.replace(", incidents:", ",\n  incidents:"))
    }
}
