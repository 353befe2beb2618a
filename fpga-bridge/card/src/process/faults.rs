//! What goes wrong on purpose.

use std::str::FromStr;

/// One way in which a card can fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Neither frames nor registers are answered after so many frames.
    HangAfter(u64),
    /// It is reset after so many frames.
    ResetAfter(u64),
    /// A frame is lost, either way.
    Drop(f64),
    /// A frame comes in damaged, and the card is told.
    Bad(f64),
    /// A byte of a frame that goes out is another.
    Corrupt(f64),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = "known: hang-after=N, reset-after=N, drop=P, bad=P, corrupt=P";
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("`{text}` is no fault; {known}"))?;
        let frames = || {
            value
                .parse()
                .map_err(|_| format!("{name}: `{value}` is not a number of frames"))
        };
        let probability = || match value.parse() {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
            _ => Err(format!("{name}: `{value}` is not a probability, 0 to 1")),
        };
        Ok(match name {
            "hang-after" => Self::HangAfter(frames()?),
            "reset-after" => Self::ResetAfter(frames()?),
            "drop" => Self::Drop(probability()?),
            "bad" => Self::Bad(probability()?),
            "corrupt" => Self::Corrupt(probability()?),
            _ => return Err(format!("`{name}` is no fault; {known}")),
        })
    }
}

/// All that is to go wrong.
pub struct Faults {
    hang_after: Option<u64>,
    reset_after: Option<u64>,
    drop: f64,
    bad: f64,
    corrupt: f64,
    random: Random,
}

impl Faults {
    pub fn new(faults: &[Fault], seed: u64) -> Self {
        let mut all = Self {
            hang_after: None,
            reset_after: None,
            drop: 0.0,
            bad: 0.0,
            corrupt: 0.0,
            random: Random(seed),
        };
        for fault in faults {
            match *fault {
                Fault::HangAfter(frames) => all.hang_after = Some(frames),
                Fault::ResetAfter(frames) => all.reset_after = Some(frames),
                Fault::Drop(p) => all.drop = p,
                Fault::Bad(p) => all.bad = p,
                Fault::Corrupt(p) => all.corrupt = p,
            }
        }
        all
    }

    /// Whether the card hangs now that so many frames have come.
    pub fn hangs(&self, frames: u64) -> bool {
        self.hang_after.is_some_and(|after| frames >= after)
    }

    /// Whether it is reset now, which happens once.
    pub fn resets(&mut self, frames: u64) -> bool {
        let is_time = self.reset_after.is_some_and(|after| frames >= after);
        if is_time {
            self.reset_after = None;
        }
        is_time
    }

    /// Whether this frame is lost.
    pub fn drops(&mut self) -> bool {
        self.random.happens(self.drop)
    }

    /// Whether this frame has come in damaged.
    pub fn is_bad(&mut self) -> bool {
        self.random.happens(self.bad)
    }

    /// Damages the frame, if it is its turn, and says whether it did.
    pub fn corrupt(&mut self, frame: &mut [u8]) -> bool {
        if frame.is_empty() || !self.random.happens(self.corrupt) {
            return false;
        }
        let n = self.random.next();
        let at = (n >> 8) as usize % frame.len();
        frame[at] ^= (n as u8).max(1);
        true
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// What never happens draws nothing, so that one fault's moments do not depend on whether there
    /// are others.
    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        assert_eq!("hang-after=7".parse(), Ok(Fault::HangAfter(7)));
        assert_eq!("reset-after=0".parse(), Ok(Fault::ResetAfter(0)));
        assert_eq!("drop=0.25".parse(), Ok(Fault::Drop(0.25)));
        assert_eq!("bad=1".parse(), Ok(Fault::Bad(1.0)));
        for wrong in [
            "",
            "drop",
            "drop=",
            "drop=2",
            "drop=-1",
            "drop=NaN",
            "hang-after=x",
            "burn=1",
        ] {
            assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn they_happen_as_often_as_asked_for_and_the_same_each_time() {
        let draw = |seed| {
            let mut faults = Faults::new(&[Fault::Drop(0.1)], seed);
            (0..10_000).filter(|_| faults.drops()).count()
        };
        assert!((900..1100).contains(&draw(1)), "{}", draw(1));
        assert_eq!(draw(7), draw(7));
        let mut none = Faults::new(&[], 1);
        assert!((0..1000).all(|_| !none.drops() && !none.is_bad() && !none.corrupt(&mut [0; 64])));
    }

    #[test]
    fn a_corrupted_frame_differs_in_a_byte() {
        let mut faults = Faults::new(&[Fault::Corrupt(1.0)], 3);
        for _ in 0..1000 {
            let mut frame = [0; 100];
            assert!(faults.corrupt(&mut frame));
            assert_eq!(frame.iter().filter(|&&byte| byte != 0).count(), 1);
        }
        assert!(!faults.corrupt(&mut []));
    }

    #[test]
    fn a_reset_happens_once() {
        let mut faults = Faults::new(&[Fault::ResetAfter(5), Fault::HangAfter(9)], 1);
        assert!(!faults.resets(4) && faults.resets(6) && !faults.resets(7));
        assert!(!faults.hangs(8) && faults.hangs(9) && faults.hangs(10));
    }
}
