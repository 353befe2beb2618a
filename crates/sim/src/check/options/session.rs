//! Options of a job of sessions, and what goes wrong for it alone.

use crate::rng::Rng;
use std::time::Duration;

/// What goes wrong for the sessions alone.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// A rank's process dies.
    Death(u8),
    /// A rank's user interrupts it.
    Interrupt(u8),
    /// A rank's calls are cancelled: its user cannot continue.
    GiveUp(u8),
    /// All ranks' processes die.
    Restart,
    /// The parameter server dies, and after so long there is another.
    PsRestart(Duration),
    /// A rank's host hears nothing and is not heard for so long.
    Partition(u8, Duration),
    /// A rank's process does not run for so long.
    Straggler(u8, Duration),
}

/// A job of sessions.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Its ranks.
    pub workers: u8,
    /// Units of its payloads.
    pub units: u8,
    /// Window of each rank.
    pub window: u16,
    /// Collectives of a run.
    pub steps: u64,
    /// Fragments of a run, about.
    pub fragments: u64,
    /// How many of a million runs have a rank that brings something else.
    pub differs_ppm: u32,
    /// What happens, and when after the start.
    pub troubles: Vec<(Duration, Trouble)>,
}

impl SessionOptions {
    /// A job whose run has about `fragments` fragments.
    #[must_use]
    pub fn draw(rng: &mut Rng, quiet: bool, fragments: u64, safety: Duration) -> Self {
        let workers = rng.between(1, 8) as u8;
        let ms = |rng: &mut Rng, most: u64| Duration::from_micros(rng.below(most * 1000));
        let mut trouble = |_| {
            let range = rng.pick(&[10, 100, safety.as_millis() as u64]);
            let at = ms(rng, range).min(safety);
            let rank = rng.below(u64::from(workers)) as u8;
            let trouble = match rng.below(7) {
                0 => Trouble::Death(rank),
                1 => Trouble::Interrupt(rank),
                2 => Trouble::GiveUp(rank),
                3 => Trouble::Restart,
                4 => Trouble::PsRestart(ms(rng, 500)),
                5 => Trouble::Partition(rank, ms(rng, 700)),
                _ => Trouble::Straggler(rank, ms(rng, 700)),
            };
            (at, trouble)
        };
        // Nothing that is survived alone is survived many times over.
        let mut ps_restarts = 0;
        let mut troubles: Vec<_> = (0..4).map(&mut trouble).collect();
        troubles.retain(|(_, trouble)| {
            ps_restarts += usize::from(matches!(trouble, Trouble::PsRestart(_)));
            !matches!(trouble, Trouble::PsRestart(_)) || ps_restarts == 1
        });
        troubles.truncate(if quiet { 0 } else { rng.below(4) as usize });
        Self {
            workers,
            units: rng.pick(&[1, 1, 2]),
            window: rng.pick(&[1, 2, 7, 16, 64]),
            steps: rng.pick(&[1, 3, 8, 20]),
            fragments,
            differs_ppm: rng.pick(&[0, 0, 400_000]),
            troubles,
        }
    }
}
