//! Options of a card, and what goes wrong with it.

use crate::link::Faults;
use crate::rng::Rng;
use crate::switch::CardConfig;
use std::time::Duration;

/// Longer than any run.
const FOR_GOOD: Duration = Duration::from_secs(1000);

/// Something that goes wrong with the card.
#[derive(Clone, Copy, Debug)]
pub enum CardIncident {
    /// It is gone for so long, and has lost all that it had.
    Dies(Duration),
    /// It loses all that it had, and works again.
    Resets,
    /// Its data path is silent for so long.
    Hangs(Duration),
    /// Its registers fail for so long; it still answers frames.
    Blind(Duration),
    /// The cable to it and from it is cut for so long.
    Cut(Duration),
    /// Its frames take longer, for so long and by so much.
    Late(Duration, Duration),
}

/// A card.
#[derive(Clone, Debug)]
pub struct CardOptions {
    /// How big it is.
    pub config: CardConfig,
    /// By job of the world, whether it may be offloaded; none: the busiest ones are.
    pub listed: Option<Vec<bool>>,
    /// From a command to its execution on a core at most.
    pub command_delay: Duration,
    /// What its cable does to frames during the safety phase.
    pub faults: Faults,
    /// What happens, and when after the start.
    pub incidents: Vec<(Duration, CardIncident)>,
}

impl CardOptions {
    /// The card of a seed, if its world has one: a quarter of them do.
    pub fn draw(
        seed: u64,
        jobs: usize,
        window: u16,
        safety: Duration,
        quiet: bool,
    ) -> Option<Self> {
        let mut rng = Rng::new(seed ^ 0xca4d);
        if !rng.chance(250_000) {
            return None;
        }
        let rng = &mut rng;
        let ms = |rng: &mut Rng, most: u64| Duration::from_micros(rng.below(most * 1000));
        let ppm = |rng: &mut Rng, most: u64| {
            if quiet || rng.chance(500_000) {
                0
            } else {
                rng.below(most) as u32
            }
        };
        let faults = Faults {
            loss_ppm: ppm(rng, 20_000),
            loss_burst: 1,
            damage_ppm: 0,
            duplicate_ppm: ppm(rng, 50_000),
            reorder_ppm: ppm(rng, 50_000),
            reorder_ns: rng.pick(&[1_000, 50_000, 1_000_000, 20_000_000]),
        };
        let incidents_n = if quiet { 0 } else { rng.below(7) };
        let mut incidents: Vec<_> = (0..incidents_n)
            .map(|_| {
                let most = rng.pick(&[150, 400, 1000, safety.as_millis() as u64]);
                let at = ms(rng, most.max(1)).min(safety);
                let longest = rng.pick(&[20, 400, 1500]);
                let lasting = ms(rng, longest);
                let is_final = rng.chance(300_000);
                let incident = match rng.below(6) {
                    0 if is_final => CardIncident::Dies(FOR_GOOD),
                    3 if is_final => CardIncident::Blind(FOR_GOOD),
                    0 => CardIncident::Dies(lasting),
                    1 => CardIncident::Resets,
                    2 => CardIncident::Hangs(lasting),
                    3 => CardIncident::Blind(lasting),
                    4 => CardIncident::Cut(lasting),
                    _ => CardIncident::Late(lasting, ms(rng, 40)),
                };
                (at, incident)
            })
            .collect();
        incidents.sort_by_key(|(at, _)| *at);
        let listed = rng.chance(800_000);
        Some(Self {
            config: CardConfig {
                slots: 1 << rng.pick(&[0, 2, 4, 8]),
                // Sometimes too few: no job fits.
                ring: (u32::from(window).next_power_of_two() * rng.pick(&[1, 2, 2, 2, 4, 8]))
                    .max(2),
                places: rng.between(1, 3) as usize,
                hostile_ppm: ppm(rng, 100_000),
            },
            listed: listed.then(|| (0..jobs).map(|_| rng.chance(800_000)).collect()),
            command_delay: Duration::from_nanos(rng.pick(&[0, 10_000, 200_000, 5_000_000])),
            faults,
            incidents,
        })
    }
}
