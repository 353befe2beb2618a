//! The simulated card: a model of the RTL between a port and a register socket.
//!
//! # How it works
//!
//! One thread does everything in turns: it answers what is asked of the registers, offers the
//! frames that have come to the model, runs the model's clock for as long as something is inside,
//! and sends what has come out. When there is nothing to do the clock stands, and the thread
//! sleeps, a millisecond at most; a request to a register wakes it. Time is the wall clock's:
//! milliseconds that have gone by are given to the model before anything else is.
//!
//! The port may come and go with the switch at its other end. A thread waits for it, so that
//! registers are answered from the start.
//!
//! # The catches
//!
//! - It computes every register of the design in every cycle: some ten thousand frames a second,
//!   not a hundred million.
//! - A card has one driver. Another one waits until the first has gone.

mod faults;
mod options;
mod port;
mod registers;
mod summary;

pub use options::Options;
pub use summary::Summary;

use anyhow::{Context, Result, bail};
use faults::Faults;
use port::Line;
use registers::Registers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_card::Model;

/// Cycles in a turn, at most: registers and the port wait for no longer than these take.
const CYCLES: u64 = 4096;
/// Frames that wait to go into the model, at most, before more are taken from the port.
const WAITING: usize = 128;
/// Milliseconds that are given to the model in a turn, at most: each is a cycle.
const TICKS: u64 = 256;
/// Turns without anything to do in which it yields its CPU, before it begins to sleep.
const YIELDS: u32 = 64;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Runs a card until a signal ends it, or the design finds fault with itself.
///
/// # Errors
/// What the machine refuses: memory, the device, the socket.
pub fn run(options: &Options) -> Result<Summary> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one kills: a way out if the first finds the process stuck.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let seed = match options.seed {
        Some(seed) => seed,
        None => getrandom::u64().context("drawing a seed")?,
    };
    let model = new_model(options, seed)?;
    let line = Line::open(options, Arc::clone(&stop))?;
    // Last of all: each connection is answered.
    let registers = Registers::bind(&options.registers, options.registers_mode.0, options.places)?;
    let mut card = Card {
        model,
        registers,
        line,
        faults: Faults::new(&options.faults, seed),
        stop,
        started: Instant::now(),
        ticks: 0,
        summary: Summary::new(seed),
        log: options.log,
    };
    eprintln!(
        "tally-card: registers at {}, frames on {}, seed {seed}",
        options.registers.display(),
        options.port
    );
    card.run(options)?;
    card.finish()
}

fn new_model(options: &Options, seed: u64) -> Result<Model> {
    let mut model = Model::with(tally_card::Size::Full, seed);
    if let Some(path) = &options.trace {
        if !cfg!(feature = "trace") {
            bail!(
                "--trace: this program was built without waveforms; build it with `cargo build --release -p tally-card --features trace`"
            );
        }
        if !model.trace(path) {
            bail!("--trace: {} cannot be written", path.display());
        }
    }
    Ok(model)
}

struct Card {
    model: Model,
    registers: Registers,
    line: Line,
    faults: Faults,
    stop: Arc<AtomicBool>,
    /// When the model was last out of reset.
    started: Instant,
    /// Milliseconds that it knows of since.
    ticks: u64,
    summary: Summary,
    log: bool,
}

impl Card {
    fn run(&mut self, options: &Options) -> Result<()> {
        let mut idle_turns = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.faults.hangs(self.summary.frames_in) {
                // Neither frames nor registers; connections stay.
                std::thread::sleep(SLEEP_MAX);
                continue;
            }
            if self.faults.resets(self.summary.frames_in) {
                eprintln!("tally-card: reset, as was asked for");
                self.model = new_model(options, self.summary.seed)?;
                self.started = Instant::now();
                self.ticks = 0;
                self.summary.resets += 1;
            }
            let is_busy = self.turn()?;
            if let Some(fault) = self.model.fault() {
                eprintln!("tally-card: the design has failed: {fault}");
                self.summary.fault = Some(fault);
                return Ok(());
            }
            if is_busy {
                idle_turns = 0;
            } else {
                idle_turns += 1;
                self.wait(idle_turns);
            }
        }
        Ok(())
    }

    /// Does what there is to do, and says whether there was anything.
    fn turn(&mut self) -> Result<bool> {
        let mut is_busy = false;
        let up = self.started.elapsed().as_millis() as u64;
        let ticks = (up - self.ticks).min(TICKS);
        if ticks > 0 {
            self.model.ticks(ticks as u32);
            self.ticks += ticks;
        }
        let answered = self.registers.serve(&mut self.model, self.log);
        self.summary.accesses += answered;
        is_busy |= answered > 0;
        if self.model.pending() < WAITING {
            let (faults, model, summary) = (&mut self.faults, &mut self.model, &mut self.summary);
            let taken = self.line.receive(|frame| {
                summary.frames_in += 1;
                if faults.drops() {
                    summary.dropped += 1;
                } else {
                    model.offer(frame, faults.is_bad());
                }
            })?;
            is_busy |= taken > 0;
        }
        if self.model.pending() > 0 || self.model.is_busy() {
            self.model.run(CYCLES);
            is_busy = true;
        }
        while let Some(mut frame) = self.model.take() {
            is_busy = true;
            if self.faults.drops() {
                self.summary.dropped += 1;
                continue;
            }
            self.summary.corrupted += u64::from(self.faults.corrupt(&mut frame));
            self.summary.frames_out += 1;
            self.line.send(&frame);
        }
        is_busy |= self.line.flush();
        Ok(is_busy)
    }

    /// There is nothing to do.
    fn wait(&self, idle_turns: u32) {
        if let Some(doublings) = idle_turns.checked_sub(YIELDS) {
            let sleep = SLEEP_MIN * (1 << doublings.min(10));
            self.registers.wait(sleep.min(SLEEP_MAX));
        } else {
            std::thread::yield_now();
        }
    }

    fn finish(mut self) -> Result<Summary> {
        self.summary.cycles = self.model.cycles();
        self.summary.up = self.started.elapsed();
        self.summary.unsent = self.line.unsent();
        if self.summary.fault.is_none() {
            self.summary.counters = registers::counters(&mut self.model);
        }
        self.line.close()?;
        Ok(self.summary)
    }
}
