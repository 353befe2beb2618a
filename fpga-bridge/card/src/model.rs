//! The card as a value: its pins driven, its clock in the caller's hand.
//!
//! Frames that are offered wait outside, and go in a beat at a time as the card takes them; frames
//! that come out wait to be taken. Nothing happens but in [`clock`](Model::clock),
//! [`run`](Model::run), [`ticks`](Model::ticks), [`read`](Model::read) and [`write`](Model::write),
//! each of which takes cycles in which the streams move.
//!
//! A failed assertion of the RTL, and an output that breaks the rules of AXI-Stream, is a
//! [`fault`](Model::fault), which stays.

use crate::ffi::{self, Raw};
use std::path::Path;
use thiserror::Error;

pub use ffi::{Gaps, Parameters, Size, Statistics};

/// Why a register was not read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BusError {
    /// The card answered with an error: a command while another is carried out.
    #[error("the card refused")]
    Refused,
    /// No answer in a thousand cycles.
    #[error("the card did not answer")]
    Silent,
}

impl From<ffi::BusError> for BusError {
    fn from(error: ffi::BusError) -> Self {
        match error {
            ffi::BusError::Refused => Self::Refused,
            ffi::BusError::Silent => Self::Silent,
        }
    }
}

/// How the beats of a frame break the rules of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Flaw {
    /// Not at all.
    #[default]
    None = 0,
    /// Its frame check sequence was wrong: `tuser` at its end.
    Bad = 1,
    /// A beat before the last one lacks its last byte; of frames of one beat as `None`.
    ShortBeat = 2,
    /// The last beat lacks a byte within; if it has fewer than three bytes, as `None`.
    Hole = 3,
}

/// A card.
pub struct Model {
    raw: Raw,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// A card of the usual size, out of reset. It is busy at first: it clears its tables.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Size::Full, 0)
    }

    /// A card of this size. What its reset leaves alone begins with values drawn from `seed`.
    #[must_use]
    pub fn with(size: Size, seed: u64) -> Self {
        Self {
            raw: Raw::new(size, seed),
        }
    }

    /// What it was built with.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        self.raw.parameters()
    }

    /// One cycle.
    pub fn clock(&mut self) {
        self.raw.clock();
    }

    /// Cycles until no frame waits to go in and none is inside, at most `limit`; says how many.
    /// Ends at a fault, too.
    pub fn run(&mut self, limit: u64) -> u64 {
        self.raw.run(limit, 0, true)
    }

    /// Cycles until so many frames have gone in since the start, at most `limit`; says how many.
    pub fn run_until_in(&mut self, frames: u64, limit: u64) -> u64 {
        self.raw.run(limit, frames, false)
    }

    /// Appends a frame to those that wait to go in. An empty one is ignored: no stream can have it.
    pub fn offer(&mut self, frame: &[u8], bad: bool) {
        self.offer_flawed(frame, if bad { Flaw::Bad } else { Flaw::None });
    }

    /// As `offer`, with any flaw.
    pub fn offer_flawed(&mut self, frame: &[u8], flaw: Flaw) {
        if !frame.is_empty() {
            self.raw.offer(frame, flaw as u8);
        }
    }

    /// Frames that wait to go in, or are on their way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.raw.pending()
    }

    /// Whether anything is going on inside.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.raw.is_busy()
    }

    /// The next frame that has come out, whole.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.raw.take()
    }

    /// Reads a register.
    ///
    /// # Errors
    /// If the card gives an error or no answer.
    pub fn read(&mut self, address: u16) -> Result<u32, BusError> {
        Ok(self.raw.read(address)?)
    }

    /// Writes a register.
    ///
    /// # Errors
    /// If the card gives an error or no answer.
    pub fn write(&mut self, address: u16, value: u32) -> Result<(), BusError> {
        Ok(self.raw.write(address, value)?)
    }

    /// A millisecond passes, in one cycle.
    pub fn tick(&mut self) {
        self.ticks(1);
    }

    /// So many milliseconds pass, in as many cycles.
    pub fn ticks(&mut self, milliseconds: u32) {
        self.raw.tick(milliseconds);
    }

    /// Cycles since the start, and what went by in them.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.raw.statistics()
    }

    /// Cycles since the start.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.statistics().cycles
    }

    /// From now on the input has gaps and the output stalls, drawn from `seed`.
    pub fn set_gaps(&mut self, gaps: Gaps, seed: u64) {
        self.raw.set_gaps(gaps, seed);
    }

    /// What has gone wrong inside; afterwards it does nothing sensible any more.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.raw.fault()
    }

    /// Writes a waveform of all that follows (FST, for GTKWave). False: the package was built
    /// without its feature `trace`, or the file cannot be written.
    #[must_use]
    pub fn trace(&mut self, path: &Path) -> bool {
        self.raw.trace(path)
    }

    /// Writes what was used of the RTL so far, for `verilator_coverage`. False: the package was
    /// built without its feature `coverage`.
    #[must_use]
    pub fn write_coverage(&mut self, path: &Path) -> bool {
        self.raw.write_coverage(path)
    }
}
