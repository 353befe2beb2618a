//! Injected loss and reordering: the same frames for the same seed and the same order of events.
//!
//! Frames are lost in both directions. Only sent frames are reordered, because that matters to the
//! switch: a frame waits until up to 32 later ones of its port have left, or until there is no
//! other frame to send.

/// Upper bound of the frames of a port that overtake one frame.
const LATER_MAX: u64 = 32;

/// The faults of a load, and their counts.
#[derive(Debug)]
pub struct Faults {
    /// A frame is lost, or held back, when its random number is below.
    lose: u64,
    hold: u64,
    /// xorshift64*, one for each direction.
    sending: u64,
    receiving: u64,
    /// Frames lost when they were sent.
    pub lost_sent: u64,
    /// Frames lost when they were received.
    pub lost_received: u64,
    /// Frames held back.
    pub reordered: u64,
}

/// Frames of one port that wait for others to overtake them.
#[derive(Debug)]
pub struct Held<T> {
    /// Each with the number of frames that must still overtake it.
    frames: Vec<(u64, T)>,
    scratch: Vec<T>,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self {
            frames: Vec::new(),
            scratch: Vec::new(),
        }
    }
}

impl<T> Held<T> {
    /// Releases all held frames, when there is no other frame to send.
    pub fn release(&mut self, leaving: &mut Vec<T>) {
        leaving.extend(self.frames.drain(..).map(|(_, frame)| frame));
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

impl Faults {
    /// Loses and reorders with these probabilities, of each frame.
    #[must_use]
    pub fn new(lose: f64, reorder: f64, seed: u64) -> Self {
        let threshold = |p: f64| (p.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        // Not 0, and different for neighbouring seeds.
        let state = |n: u64| (seed.wrapping_mul(2) + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self {
            lose: threshold(lose),
            hold: threshold(reorder),
            sending: state(1),
            receiving: state(2),
            lost_sent: 0,
            lost_received: 0,
            reordered: 0,
        }
    }

    /// Whether there is anything to do for what is sent.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.lose != 0 || self.hold != 0
    }

    /// From now on nothing goes wrong.
    pub fn stop(&mut self) {
        (self.lose, self.hold) = (0, 0);
    }

    /// Whether a received frame is lost.
    #[inline]
    pub fn loses_received(&mut self) -> bool {
        let lost = self.lose != 0 && next(&mut self.receiving) < self.lose;
        self.lost_received += u64::from(lost);
        lost
    }

    /// Loses and holds back some of `leaving`, from `from` on, and releases held frames whose delay
    /// is over.
    pub fn pass<T>(&mut self, leaving: &mut Vec<T>, from: usize, held: &mut Held<T>) {
        let mut fresh = std::mem::take(&mut held.scratch);
        fresh.extend(leaving.drain(from..));
        for frame in fresh.drain(..) {
            if self.lose != 0 && next(&mut self.sending) < self.lose {
                self.lost_sent += 1;
                continue;
            }
            if self.hold != 0 && next(&mut self.sending) < self.hold {
                self.reordered += 1;
                let later = 1 + next(&mut self.sending) % LATER_MAX;
                held.frames.push((later, frame));
                continue;
            }
            leaving.push(frame);
            let mut at = 0;
            while at < held.frames.len() {
                held.frames[at].0 -= 1;
                if held.frames[at].0 == 0 {
                    leaving.push(held.frames.swap_remove(at).1);
                } else {
                    at += 1;
                }
            }
        }
        held.scratch = fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(lose: f64, reorder: f64, seed: u64) -> (Vec<u32>, Faults) {
        let mut faults = Faults::new(lose, reorder, seed);
        let mut held = Held::default();
        let mut out = Vec::new();
        for burst in 0..100 {
            let from = out.len();
            out.extend(burst * 10..burst * 10 + 10);
            faults.pass(&mut out, from, &mut held);
        }
        held.release(&mut out);
        (out, faults)
    }

    #[test]
    fn nothing_goes_wrong_unasked() {
        let (out, mut faults) = through(0.0, 0.0, 1);
        assert!(!faults.is_on() && !faults.loses_received());
        assert_eq!(out, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_held_back_arrives_late_and_once() {
        let (out, faults) = through(0.0, 0.2, 1);
        let mut sorted = out.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        let overtaken = out.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(overtaken > 50, "{overtaken}");
        assert!((100..300).contains(&faults.reordered));
        for (at, frame) in out.iter().enumerate() {
            assert!(
                (at as i64 - i64::from(*frame)).abs() < 100,
                "{frame} at {at}"
            );
        }
    }

    #[test]
    fn a_seed_decides_what_is_lost() {
        let (out, faults) = through(0.1, 0.1, 7);
        assert_eq!(out.len() as u64 + faults.lost_sent, 1000);
        assert!((50..200).contains(&faults.lost_sent));
        assert_eq!(out, through(0.1, 0.1, 7).0);
        assert_ne!(out, through(0.1, 0.1, 8).0);
        let (out, _) = through(1.0, 0.0, 1);
        assert!(out.is_empty());
    }
}
