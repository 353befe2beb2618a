//! Options of a second switch and the trunk to it.

use super::{Incident, JobOptions, SwitchmlOptions};
use crate::address::SwitchId;
use crate::link::Faults;
use crate::rng::Rng;
use std::time::Duration;

/// The first switch, which is in every world.
pub const NEAR: SwitchId = SwitchId(0);
/// The second one, if it is Tally's.
pub const FAR: SwitchId = SwitchId(1);

/// What the second switch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A switch of Tally's.
    Tally,
    /// An ordinary one.
    Ordinary,
}

/// A second switch, and who is behind it.
#[derive(Clone, Debug)]
pub struct FabricOptions {
    /// Its kind.
    pub kind: Kind,
    /// By job, whether the second switch sums it.
    pub far_jobs: Vec<bool>,
    /// By job, whether its parameter server is behind the second switch.
    pub far_ps: Vec<bool>,
    /// By place in all jobs, whether a worker is behind the second switch.
    pub far_workers: Vec<bool>,
    /// By rank, whether a client of SwitchML is behind the second switch.
    pub far_clients: Vec<bool>,
    /// One way over the trunk.
    pub delay: Duration,
    /// What the trunk does to frames during the safety phase, from the first switch and to it.
    pub faults: [Faults; 2],
}

impl FabricOptions {
    /// A second switch for these jobs. `most` are the faults that each direction of the trunk has
    /// some of.
    pub(super) fn draw(
        rng: &mut Rng,
        jobs: &[JobOptions],
        shared_ps_host: bool,
        switchml: Option<SwitchmlOptions>,
        (delay, most): (Duration, Faults),
    ) -> Self {
        let kind = rng.pick(&[Kind::Tally, Kind::Ordinary]);
        let is_tally = kind == Kind::Tally;
        let far_jobs: Vec<_> = jobs
            .iter()
            .map(|_| is_tally && rng.chance(500_000))
            .collect();
        let mut far_ps: Vec<_> = jobs.iter().map(|_| rng.chance(500_000)).collect();
        if shared_ps_host {
            let first = far_ps[0];
            far_ps.fill(first);
        }
        let share = rng.pick(&[0, 300_000, 500_000, 1_000_000]);
        let worker = |(of_far_switch, job): (&bool, &JobOptions)| {
            let is_far = |_| *of_far_switch || !is_tally && rng.chance(share);
            (0..job.workers).map(is_far).collect::<Vec<_>>()
        };
        let far_workers = far_jobs.iter().zip(jobs).flat_map(worker).collect();
        // Where a client of SwitchML is, nothing is flooded, and the second switch is found by a
        // flood alone.
        let is_sought = far_jobs.iter().zip(&far_ps).any(|(job, ps)| *job && !ps);
        let clients = switchml.map_or(0, |of| of.workers);
        let far_clients: Vec<_> = (0..clients)
            .map(|_| !is_sought && rng.chance(500_000))
            .collect();
        let share = |rng: &mut Rng, most: u32| rng.below(u64::from(most) + 1) as u32;
        let keeps_order = far_clients.contains(&true);
        let faults = [(); 2].map(|()| Faults {
            loss_ppm: share(rng, most.loss_ppm),
            damage_ppm: share(rng, most.damage_ppm),
            // SwitchML cannot tell a late copy from a new packet.
            duplicate_ppm: if keeps_order {
                0
            } else {
                share(rng, most.duplicate_ppm)
            },
            reorder_ppm: if keeps_order {
                0
            } else {
                share(rng, most.reorder_ppm)
            },
            ..most
        });
        Self {
            kind,
            far_jobs,
            far_ps,
            far_workers,
            far_clients,
            delay: Duration::from_nanos(rng.pick(&[200, 20_000])).min(delay),
            faults,
        }
    }

    /// Something that goes wrong with the second switch or the trunk.
    pub(super) fn draw_incident(rng: &mut Rng) -> Incident {
        let ms = |rng: &mut Rng, most: u64| Duration::from_micros(rng.below(most * 1000));
        match rng.below(3) {
            0 => Incident::SwitchRestart {
                switch: 1,
                down: ms(rng, 500),
            },
            1 => Incident::TrunkDown {
                lasting: ms(rng, 700),
            },
            _ => Incident::TrunkLoss {
                lasting: ms(rng, 1000),
            },
        }
    }

    /// The switch that sums a job.
    #[must_use]
    pub fn switch_of(&self, job: usize) -> SwitchId {
        if self.far_jobs[job] { FAR } else { NEAR }
    }
}
