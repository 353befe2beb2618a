//! Options of the rings of RoCE hosts beside a world's jobs.

use super::MS;
use crate::ring::Work;
use crate::rng::Rng;
use std::rc::Rc;
use std::time::Duration;
use tally_roce::ring::message_bytes;
use tally_wire::netreduce::Element;
use tally_wire::roce::Verb;

/// Worlds with rings, in a million.
const RINGS_PPM: u32 = 300_000;
/// What makes these draws unlike those of the rest of a seed's world, which stays as it is.
const APART: u64 = 0x4e7_2edc_e000;
/// Bytes of a tensor at most.
const BYTES_MAX: usize = 40_000;

/// A ring.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Hosts by rank.
    pub members: Vec<usize>,
    /// Messages of a window.
    pub window: u8,
    /// Packets of a message at most.
    pub packets: u16,
    /// Its first epoch.
    pub epoch: u32,
    /// What its members do.
    pub work: Rc<Work>,
}

impl RingOptions {
    fn draw(rng: &mut Rng, hosts: usize, way: Duration) -> Self {
        let mut members: Vec<_> = (0..hosts).collect();
        rng.shuffle(&mut members);
        members.truncate(rng.between(2, hosts as u64) as usize);
        let mtu = rng.pick(&[256, 512, 1024, 2048, 4096]);
        let packets = rng.pick(&[1, 2, 3, 8, 20]);
        let message = message_bytes(usize::from(packets), mtu);
        let all_reduces = (0..rng.between(1, 40)).map(|_| {
            let element = rng.pick(&Element::ALL);
            let bytes = match rng.below(6) {
                0 => rng.below(2) as usize * element.bytes(),
                1 => message + element.bytes(),
                2 => message * rng.below(6) as usize,
                _ => rng.below(BYTES_MAX as u64) as usize,
            };
            let bytes = bytes.min(BYTES_MAX);
            (element, bytes - bytes % element.bytes())
        });
        let work = Work {
            all_reduces: all_reduces.collect(),
            ahead: rng.pick(&[1, 1, 2, 5]),
            think: Duration::from_micros(rng.pick(&[0, 100, 5_000, 50_000])),
            mtu,
            verb: rng.pick(&[Verb::Send, Verb::Write]),
            in_flight: rng.pick(&[4, 16, 64]),
            timeout: 20 * way + rng.pick(&[2, 10, 50]) * MS,
            retries: 7,
            infinite_ppm: rng.pick(&[0, 0, 10_000]),
        };
        Self {
            members,
            window: rng.pick(&[1, 2, 2, 3]),
            packets,
            epoch: rng.pick(&[0, 7, u32::MAX - 1]),
            work: Rc::new(work),
        }
    }
}

/// Something that goes wrong with a ring at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingIncident {
    /// A member dies. The ring begins its next epoch when all others have noticed.
    Death {
        /// Of which ring.
        ring: usize,
        /// Which rank.
        rank: usize,
    },
    /// The processes of a host do not run.
    Straggler {
        /// Which.
        host: usize,
        /// For so long.
        lasting: Duration,
    },
    /// Nothing arrives over a host's cable.
    Partition {
        /// Which.
        host: usize,
        /// For so long.
        lasting: Duration,
    },
    /// The NIC of a member answers each packet with a NAK.
    NakStorm {
        /// Of which ring.
        ring: usize,
        /// Which rank.
        rank: usize,
        /// For so long.
        lasting: Duration,
    },
    /// The operator removes a ring, and adds it again.
    Removed {
        /// Which.
        ring: usize,
        /// After so long.
        down: Duration,
    },
}

/// The rings of a world.
#[derive(Clone, Debug)]
pub struct RingsOptions {
    /// Their hosts.
    pub hosts: usize,
    /// The rings; they may share hosts.
    pub rings: Vec<RingOptions>,
    /// What happens, and when after the start.
    pub incidents: Vec<(Duration, RingIncident)>,
}

impl RingsOptions {
    /// The rings that a seed stands for.
    #[must_use]
    pub fn draw(seed: u64, way: Duration, safety: Duration, quiet: bool) -> Option<Self> {
        let rng = &mut Rng::new(seed ^ APART);
        if !rng.chance(RINGS_PPM) {
            return None;
        }
        let hosts = rng.between(2, 8) as usize;
        let rings = (0..rng.between(1, 3)).map(|_| RingOptions::draw(rng, hosts, way));
        let mut options = Self {
            hosts,
            rings: rings.collect(),
            incidents: Vec::new(),
        };
        let incidents = if quiet { 0 } else { rng.below(5) };
        for _ in 0..incidents {
            let range = rng.pick(&[10, 100, safety.as_millis() as u64]);
            let at = Duration::from_micros(rng.below(range * 1000)).min(safety);
            options.incidents.push((at, options.draw_incident(rng)));
        }
        options.incidents.sort_by_key(|(at, _)| *at);
        Some(options)
    }

    fn draw_incident(&self, rng: &mut Rng) -> RingIncident {
        let ring = rng.below(self.rings.len() as u64) as usize;
        let rank = rng.below(self.rings[ring].members.len() as u64) as usize;
        let host = self.rings[ring].members[rank];
        let us = |rng: &mut Rng, most| Duration::from_micros(rng.below(most));
        match rng.below(6) {
            0 | 1 => RingIncident::Death { ring, rank },
            2 => RingIncident::Straggler {
                host,
                lasting: us(rng, 700_000),
            },
            3 => RingIncident::Partition {
                host,
                lasting: us(rng, 700_000),
            },
            4 => RingIncident::NakStorm {
                ring,
                rank,
                lasting: us(rng, 1_000),
            },
            _ => RingIncident::Removed {
                ring,
                down: us(rng, 300_000),
            },
        }
    }

    /// The largest path MTU of any ring.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.rings
            .iter()
            .map(|ring| ring.work.mtu)
            .max()
            .unwrap_or(0)
    }
}
