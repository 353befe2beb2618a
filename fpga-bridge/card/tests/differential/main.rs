//! The same frames into the core of the switch and into the RTL: what leaves is equal byte for
//! byte, and so are the counters.
//!
//! * `TALLY_CARD_SECONDS`: how long the random scripts run; 5 unless given.
//! * `TALLY_CARD_SEED`: the first seed; 1 unless given. A failure names its seed and size, prints
//!   the shortest script that was found to fail, and with `TALLY_CARD_TRACE=file.fst` writes the
//!   waveform of that (feature `trace`).
//! * `TALLY_CARD_COVERAGE=file.dat`: what was used of the RTL (feature `coverage`).

#![allow(clippy::unwrap_used)]

mod card;
mod checks;
#[allow(dead_code, reason = "shared with the engine's tests")]
#[path = "../../../../crates/engine/tests/common"]
mod common {
    pub mod platform;
    pub mod switch;
}
mod headers;
mod play;
mod reference;
mod rng;
mod script;
mod table;
mod tree;

use card::{Rtl, Shape};
use headers::{every_byte, every_pair};
use play::{Difference, Played, describe, play, shrink};
use script::{Author, Step};
use std::time::{Duration, Instant};
use table::{Mistake, Table};
use tally_card::{Model, Size};

/// Steps of a random script.
const STEPS: usize = 4000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}: a number"))
    })
}

fn on_rtl(script: &[Step], size: Size, seed: u64) -> Result<Played, Difference> {
    let mut rtl = Rtl(Model::with(size, seed));
    let played = play(script, &mut rtl, Shape::of(size));
    if let Ok(path) = std::env::var("TALLY_CARD_COVERAGE") {
        let path = format!("{path}.{size:?}.{seed}");
        assert!(rtl.0.write_coverage(path.as_ref()), "no coverage: {path}");
    }
    played
}

/// Panics with all that it takes to see a failure again.
fn report(script: &[Step], size: Size, seed: u64, first: &Difference) -> ! {
    let step = script.get(first.at).map_or("the end".to_owned(), describe);
    println!(
        "seed {seed}, {size:?} card, step {}: {step}{}",
        first.at, first.what
    );
    let short = shrink(script, &mut |script| on_rtl(script, size, seed).err());
    println!("the shortest script found, of {} steps:", short.len());
    for (at, step) in short.iter().enumerate() {
        println!("{at:4} {}", describe(step));
    }
    let mut rtl = Rtl(Model::with(size, seed));
    if let Ok(path) = std::env::var("TALLY_CARD_TRACE") {
        assert!(rtl.0.trace(path.as_ref()), "no waveform: {path}");
    }
    match play(&short, &mut rtl, Shape::of(size)) {
        Ok(_) => println!("which does not always fail"),
        Err(difference) => println!("fails at step {}: {}", difference.at, difference.what),
    }
    panic!("seed {seed}, {size:?} card: it parts from the engine");
}

#[test]
fn the_rtl_does_what_the_engine_does() {
    let time = Duration::from_secs(number("TALLY_CARD_SECONDS", 5));
    let first = number("TALLY_CARD_SEED", 1);
    let start = Instant::now();
    let mut sum = Played::default();
    let mut seed = first;
    while start.elapsed() < time {
        // Most of the small one, where more happens in the same time.
        let size = if seed.is_multiple_of(4) {
            Size::Full
        } else {
            Size::Small
        };
        let script = Author::write(seed, Shape::of(size), STEPS);
        match on_rtl(&script, size, seed) {
            Ok(played) => {
                sum.frames += played.frames;
                sum.out += played.out;
                sum.cycles += played.cycles;
            }
            Err(difference) => report(&script, size, seed, &difference),
        }
        seed += 1;
    }
    println!(
        "{} frames in, {} out, {} cycles, seeds {first} to {}: no difference, {:.1} s",
        sum.frames,
        sum.out,
        sum.cycles,
        seed - 1,
        start.elapsed().as_secs_f64()
    );
}

#[test]
fn no_byte_of_a_header_confuses_it() {
    for size in [Size::Small, Size::Full] {
        let script = every_byte();
        if let Err(difference) = on_rtl(&script, size, 0) {
            report(&script, size, 0, &difference);
        }
    }
}

#[test]
fn of_two_flaws_of_a_frame_the_same_one_counts() {
    let script = every_pair();
    if let Err(difference) = on_rtl(&script, Size::Small, 0) {
        report(&script, Size::Small, 0, &difference);
    }
}

fn on_table(script: &[Step], shape: Shape, mistake: Option<Mistake>) -> Option<Difference> {
    play(script, &mut Table::new(shape, mistake), shape).err()
}

#[test]
fn the_table_of_decisions_is_what_the_engine_does() {
    for size in [Size::Small, Size::Full] {
        let shape = Shape::of(size);
        for seed in 1..16 {
            let script = Author::write(seed, shape, STEPS);
            if let Some(difference) = on_table(&script, shape, None) {
                let step = script.get(difference.at).map(describe);
                panic!("seed {seed}, {size:?}, {step:?}: {}", difference.what);
            }
        }
        for script in [every_byte(), every_pair()] {
            let difference = on_table(&script, shape, None);
            assert!(difference.is_none(), "{size:?}: {difference:?}");
        }
    }
}

/// Scripts that find nothing would not show that there is nothing.
#[test]
fn mistakes_are_found() {
    let shape = Shape::of(Size::Small);
    let scripts: Vec<_> = (1..40)
        .map(|seed| Author::write(seed, shape, STEPS))
        .collect();
    let mut missed = Vec::new();
    for &mistake in Mistake::ALL {
        let finds = |script: &Vec<Step>| on_table(script, shape, Some(mistake)).is_some();
        match scripts.iter().position(finds) {
            Some(seed) if seed > 10 => println!("{mistake:?}: only with seed {}", seed + 1),
            Some(_) => {}
            None => missed.push(mistake),
        }
    }
    assert_eq!(
        missed,
        [],
        "mistakes that {} scripts do not find",
        scripts.len()
    );
}
