//! One direction of a cable: rate, delay, a bounded backlog, and everything that may go wrong.
//!
//! The sender's queue is not a list of frames but the moment at which the link will be idle: a
//! frame that joins leaves when those before it have left. Where order matters (ports of the
//! switch), the owner keeps the frames back and offers one at a time.

use crate::rng::Rng;
use std::time::Duration;
use tally_wire::Time;

/// Bytes around a datagram on the wire: preamble 8, Ethernet 14, IPv4 20, UDP 8, check 4, gap 12.
pub const OVERHEAD_BYTES: u32 = 66;
/// Bytes around a whole Ethernet frame on the wire: preamble 8, check 4, gap 12.
pub const ETHERNET_OVERHEAD_BYTES: u32 = 24;
/// Bytes of the shortest frame on the wire.
pub const SHORTEST_BYTES: u32 = 84;

/// What a link does to frames, each in parts of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost, or the first of `loss_burst` lost in a row.
    pub loss_ppm: u32,
    /// Frames lost in a row; 0 and 1 mean single ones.
    pub loss_burst: u32,
    /// Damaged, and so dropped by the receiver's check of the frame.
    pub damage_ppm: u32,
    /// Delivered twice.
    pub duplicate_ppm: u32,
    /// Delayed by up to `reorder_ns` more than the others, which overtake it.
    pub reorder_ppm: u32,
    /// See there.
    pub reorder_ns: u64,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        loss_burst: 0,
        damage_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        reorder_ns: 0,
    };
}

/// A link's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Picoseconds that a byte takes; 80 at 100 Gbit/s, 0 without limit.
    pub byte_ps: u64,
    /// From one end to the other.
    pub delay: Duration,
    /// What may wait at the sender at most.
    pub backlog_bytes: u64,
    /// What goes wrong.
    pub faults: Faults,
}

impl LinkConfig {
    /// A faultless link of this many Gbit/s.
    #[must_use]
    pub fn new(gbit_per_s: f64, delay: Duration) -> Self {
        Self {
            byte_ps: (8000.0 / gbit_per_s) as u64,
            delay,
            backlog_bytes: u64::MAX,
            faults: Faults::NONE,
        }
    }
}

/// When a frame arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// The frame; never if it is lost.
    pub first: Option<Time>,
    /// A duplicate of it.
    pub copy: Option<Time>,
}

/// What a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames that left.
    pub frames: u64,
    /// Bytes that left.
    pub wire_bytes: u64,
    /// Of the frames that left, those with elements.
    pub element_frames: u64,
    /// Frames that found the backlog full.
    pub overflowed: u64,
    /// Frames lost on the way.
    pub lost: u64,
    /// Of them, those with elements.
    pub element_frames_lost: u64,
    /// Frames damaged on the way.
    pub damaged: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames delayed.
    pub reordered: u64,
}

/// A link.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its properties. They may change at any moment.
    pub config: LinkConfig,
    /// What it did.
    pub stats: LinkStats,
    /// Until then, nothing arrives.
    pub cut_until: Time,
    /// Until then, everything takes `spike` longer.
    pub slow_until: Time,
    /// See there.
    pub spike: Duration,
    idle_ps: u64,
    /// Frames of the present burst that are still to be lost.
    burst_left: u32,
}

impl Link {
    /// An idle link.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        Self {
            config,
            stats: LinkStats::default(),
            cut_until: Time(0),
            slow_until: Time(0),
            spike: Duration::ZERO,
            idle_ps: 0,
            burst_left: 0,
        }
    }

    /// When everything that was taken has left.
    #[inline]
    #[must_use]
    pub const fn idle_at(&self) -> Time {
        Time(self.idle_ps.div_ceil(1000))
    }

    /// How long what waits will take.
    #[inline]
    #[must_use]
    pub const fn backlog(&self, now: Time) -> Duration {
        self.idle_at().since(now)
    }

    /// Takes a frame; says when it has left, or `None` when the backlog is full.
    #[inline]
    pub fn take(&mut self, now: Time, wire_bytes: u32) -> Option<Time> {
        let now_ps = now.0 * 1000;
        let waiting_ps = self.idle_ps.saturating_sub(now_ps);
        if waiting_ps
            > self
                .config
                .backlog_bytes
                .saturating_mul(self.config.byte_ps)
        {
            self.stats.overflowed += 1;
            return None;
        }
        self.stats.frames += 1;
        self.stats.wire_bytes += u64::from(wire_bytes);
        self.idle_ps = now_ps + waiting_ps + u64::from(wire_bytes) * self.config.byte_ps;
        Some(self.idle_at())
    }

    /// Forgets what waits: the sender has gone.
    pub const fn clear(&mut self) {
        self.idle_ps = 0;
    }

    /// When a frame, with elements or without, that has left at `left` arrives.
    #[inline]
    pub fn fly(&mut self, left: Time, has_elements: bool, rng: &mut Rng) -> Arrivals {
        let faults = self.config.faults;
        self.stats.element_frames += u64::from(has_elements);
        let at = left.after(self.config.delay);
        if faults == Faults::NONE && self.cut_until <= left && self.slow_until <= left {
            return Arrivals {
                first: Some(at),
                copy: None,
            };
        }
        if left < self.cut_until || self.loses(rng) {
            self.stats.lost += 1;
            self.stats.element_frames_lost += u64::from(has_elements);
            return Arrivals::default();
        }
        if rng.chance(faults.damage_ppm) {
            self.stats.damaged += 1;
            return Arrivals::default();
        }
        let at = if left < self.slow_until {
            at.after(self.spike)
        } else {
            at
        };
        let later = |rng: &mut Rng| Time(at.0 + rng.below(faults.reorder_ns.max(1)));
        let first = if rng.chance(faults.reorder_ppm) {
            self.stats.reordered += 1;
            later(rng)
        } else {
            at
        };
        let copy = rng.chance(faults.duplicate_ppm).then(|| later(rng));
        self.stats.duplicated += u64::from(copy.is_some());
        Arrivals {
            first: Some(first),
            copy,
        }
    }

    fn loses(&mut self, rng: &mut Rng) -> bool {
        if self.burst_left > 0 {
            self.burst_left -= 1;
            return true;
        }
        let faults = self.config.faults;
        let lost = rng.chance(faults.loss_ppm);
        if lost {
            self.burst_left = faults.loss_burst.saturating_sub(1);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(change: impl Fn(&mut LinkConfig)) -> Link {
        let mut config = LinkConfig::new(100.0, Duration::from_nanos(500));
        change(&mut config);
        Link::new(config)
    }

    #[test]
    fn frames_leave_one_after_another_at_the_rate_of_the_link() {
        let mut link = link(|_| {});
        assert_eq!(link.take(Time(1000), 1000), Some(Time(1080)));
        assert_eq!(link.take(Time(1000), 1000), Some(Time(1160)));
        assert_eq!(link.backlog(Time(1100)), Duration::from_nanos(60));
        assert_eq!(link.take(Time(5000), 125), Some(Time(5010)));
        let arrivals = link.fly(Time(5010), true, &mut Rng::new(0));
        assert_eq!(arrivals.first, Some(Time(5510)));
    }

    #[test]
    fn a_backlog_is_bounded() {
        let mut link = link(|c| c.backlog_bytes = 2000);
        let taken = (0..10).filter(|_| link.take(Time(0), 1000).is_some());
        assert_eq!(taken.count(), 3);
        assert_eq!(link.stats.overflowed, 7);
    }

    #[test]
    fn faults_come_as_often_as_they_should() {
        let mut link = link(|c| {
            c.faults = Faults {
                loss_ppm: 100_000,
                loss_burst: 1,
                damage_ppm: 50_000,
                duplicate_ppm: 200_000,
                reorder_ppm: 300_000,
                reorder_ns: 10_000,
            }
        });
        let mut rng = Rng::new(3);
        for _ in 0..10_000 {
            let arrivals = link.fly(Time(7), true, &mut rng);
            assert!(arrivals.first.is_none_or(|t| (507..10_507).contains(&t.0)));
        }
        let s = link.stats;
        assert!((900..1100).contains(&s.lost), "{s:?}");
        assert_eq!(s.element_frames_lost, s.lost);
        assert_eq!(s.element_frames, 10_000);
        assert!((400..500).contains(&s.damaged), "{s:?}");
        assert!((1600..1800).contains(&s.duplicated), "{s:?}");
        assert!((2400..2700).contains(&s.reordered), "{s:?}");
    }

    #[test]
    fn losses_come_in_bursts_where_asked_for() {
        let mut link = link(|c| {
            c.faults.loss_ppm = 10_000;
            c.faults.loss_burst = 5;
        });
        let mut rng = Rng::new(3);
        let arrives = |_| link.fly(Time(7), true, &mut rng).first.is_some();
        let arrived: Vec<_> = (0..10_000).map(arrives).collect();
        let lost = arrived.iter().position(|&a| !a).unwrap();
        assert_eq!(arrived[lost..lost + 5], [false; 5]);
        assert!((300..700).contains(&link.stats.lost));
    }

    #[test]
    fn a_cut_and_a_spike_end() {
        let mut link = link(|_| {});
        let rng = &mut Rng::new(0);
        link.cut_until = Time(100);
        assert_eq!(link.fly(Time(99), true, rng), Arrivals::default());
        assert_eq!(link.fly(Time(100), true, rng).first, Some(Time(600)));
        (link.slow_until, link.spike) = (Time(300), Duration::from_nanos(1000));
        assert_eq!(link.fly(Time(299), true, rng).first, Some(Time(1799)));
        assert_eq!(link.fly(Time(300), true, rng).first, Some(Time(800)));
    }
}
