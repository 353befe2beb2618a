//! Plays a script to a card and to the reference, and says where they part.

use super::card::{Card, Shape};
use super::reference::Reference;
use super::script::{OWN, Step};
use std::collections::VecDeque;
use std::fmt::Write as _;
use tally_bridge::registers::{COUNTERS, Group};

/// Counters are compared after so many settlements, and at the end: reading them takes longer than
/// most batches do.
const COUNT_EVERY: u32 = 16;

/// Where they part.
#[derive(Debug)]
pub struct Difference {
    /// The step, of which only for frames is known that it is the one.
    pub at: usize,
    pub what: String,
}

/// What came of a script that was played to its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    pub frames: u64,
    pub out: u64,
    pub cycles: u64,
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        let gap = match at {
            14 | 34 | 42 | 64 => " ",
            _ => "",
        };
        let _ = write!(text, "{gap}{byte:02x}");
    }
    text
}

pub fn hex_all(frames: &[Vec<u8>]) -> String {
    let lines: Vec<_> = frames.iter().map(|f| format!("\n    {}", hex(f))).collect();
    if lines.is_empty() {
        " nothing".to_owned()
    } else {
        lines.concat()
    }
}

/// A step for people.
pub fn describe(step: &Step) -> String {
    match step {
        Step::Frame(frame, flaw) => format!("Frame {flaw:?} {}", hex(frame)),
        other => format!("{other:?}"),
    }
}

struct Game<'a> {
    card: &'a mut dyn Card,
    reference: Reference,
    /// What should have come out since it was last compared, by step.
    expected: VecDeque<(usize, Vec<Vec<u8>>)>,
    settled: u32,
    played: Played,
}

/// # Errors
/// Where the card parts from the reference.
pub fn play(script: &[Step], card: &mut dyn Card, shape: Shape) -> Result<Played, Difference> {
    let jobs = script.iter().filter_map(|step| match step {
        Step::Load(_, roster) => Some(roster.job),
        _ => None,
    });
    let mut game = Game {
        card,
        reference: Reference::new(shape, OWN, &jobs.collect()),
        expected: VecDeque::new(),
        settled: 0,
        played: Played::default(),
    };
    let at_start = |what| Difference { at: 0, what };
    game.card.set_own(&OWN).map_err(at_start)?;
    for (at, step) in script.iter().enumerate() {
        let failed = |what| Difference { at, what };
        match step {
            Step::Frame(frame, flaw) => {
                game.played.frames += 1;
                let sent = game.reference.frame(frame, *flaw);
                game.card.offer(frame, *flaw);
                game.expected.push_back((at, sent));
            }
            Step::Settle => game.drain(at)?,
            Step::Load(place, roster) => {
                game.drain(at)?;
                game.reference.load(*place, roster);
                game.card.load(*place, roster).map_err(failed)?;
            }
            Step::Unload(place) => {
                game.drain(at)?;
                game.reference.unload(*place);
                game.card.unload(*place).map_err(failed)?;
            }
            Step::Gaps(gaps, seed) => game.card.set_gaps(*gaps, *seed),
            Step::Reload(place, roster) => game.card.load(*place, roster).map_err(failed)?,
            Step::Read => {
                game.card.counters().map_err(failed)?;
            }
        }
    }
    game.drain(script.len())?;
    game.compare_counters(script.len())?;
    game.played.cycles = game.card.cycles();
    Ok(game.played)
}

impl Game<'_> {
    fn drain(&mut self, at: usize) -> Result<(), Difference> {
        let out = match self.card.drain() {
            Ok(out) => out,
            Err(what) => return Err(Difference { at, what }),
        };
        self.played.out += out.len() as u64;
        let mut out = out.into_iter();
        for (at, mut expected) in self.expected.drain(..) {
            let mut got: Vec<_> = out.by_ref().take(expected.len()).collect();
            if got == expected {
                continue;
            }
            let in_order = hex_all(&got);
            // Outputs of one frame come in any order.
            got.sort_unstable();
            expected.sort_unstable();
            if got != expected {
                let what = format!("\n  expected{}\n  got{in_order}", hex_all(&expected));
                return Err(Difference { at, what });
            }
        }
        let more: Vec<_> = out.take(4).collect();
        if !more.is_empty() {
            let what = format!("\n  expected no more\n  got{}", hex_all(&more));
            return Err(Difference { at, what });
        }
        self.settled += 1;
        if self.settled.is_multiple_of(COUNT_EVERY) {
            self.compare_counters(at)?;
        }
        Ok(())
    }

    fn compare_counters(&mut self, at: usize) -> Result<(), Difference> {
        let counts = match self.card.counters() {
            Ok(counts) => counts,
            Err(what) => return Err(Difference { at, what }),
        };
        assert_eq!(self.reference.uncounted(), 0, "a drop without a counter");
        let mut what = String::new();
        let expected = self.reference.counters();
        for ((group, name), (got, expected)) in COUNTERS.iter().zip(counts.iter().zip(expected)) {
            let is_free = *group == Group::Stream && name.starts_with("stalls");
            if *got != expected && !is_free {
                let _ = write!(what, "\n  counter {name}: expected {expected}, got {got}");
            }
        }
        if what.is_empty() {
            Ok(())
        } else {
            Err(Difference { at, what })
        }
    }
}

/// A shorter script that fails, too: what can be left out is, in ever smaller pieces.
pub fn shrink(script: &[Step], fails: &mut dyn FnMut(&[Step]) -> Option<Difference>) -> Vec<Step> {
    let mut script = script.to_vec();
    if let Some(difference) = fails(&script) {
        script.truncate(difference.at + 1);
        script.push(Step::Settle);
    }
    let mut piece = script.len().div_ceil(2);
    let mut tries = 0;
    while piece > 0 && tries < 2000 {
        let mut at = 0;
        while at < script.len() && tries < 2000 {
            let end = (at + piece).min(script.len());
            let shorter: Vec<_> = script[..at].iter().chain(&script[end..]).cloned().collect();
            tries += 1;
            if is_sound(&shorter) && fails(&shorter).is_some() {
                script = shorter;
            } else {
                at = end;
            }
        }
        piece /= 2;
    }
    script
}

/// Whether places are loaded only when they are free, or with the job that they have.
fn is_sound(script: &[Step]) -> bool {
    let mut places = [None; 32];
    script.iter().all(|step| match step {
        Step::Load(place, roster) => {
            let id = (roster.job, roster.epoch);
            let held = places[usize::from(*place)].replace(id);
            held.is_none_or(|held| held == id)
        }
        Step::Reload(place, roster) => {
            places[usize::from(*place)] == Some((roster.job, roster.epoch))
        }
        Step::Unload(place) => {
            places[usize::from(*place)] = None;
            true
        }
        _ => true,
    })
}
