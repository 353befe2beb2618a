//! The last things that happened, for people to read when a seed has failed.

use crate::address::Place;
use crate::frame::Frame;
use std::collections::VecDeque;
use std::fmt;
use tally_wire::{Header, Time};

/// What happened to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A session gave it to its host's cable.
    Sent,
    /// It was lost, damaged or not taken on the way from there.
    Lost,
    /// It came there.
    Came,
}

enum Record {
    Frame {
        at: Time,
        step: Step,
        place: Place,
        header: Option<Header>,
    },
    Note {
        at: Time,
        text: String,
    },
}

/// The last records; older ones are dropped.
pub struct Trace {
    records: VecDeque<Record>,
    room: usize,
}

impl Trace {
    /// Room for `room` records.
    #[must_use]
    pub const fn new(room: usize) -> Self {
        let records = VecDeque::new();
        Self { records, room }
    }

    fn push(&mut self, record: Record) {
        if self.records.len() == self.room {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Notes what happened to a frame, and where.
    pub fn frame(&mut self, at: Time, step: Step, place: Place, frame: &Frame) {
        let header = frame.tally().map(|(header, _)| header);
        self.push(Record::Frame {
            at,
            step,
            place,
            header,
        });
    }

    /// Notes something else.
    pub fn note(&mut self, at: Time, text: String) {
        self.push(Record::Note { at, text });
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for record in &self.records {
            match record {
                Record::Note { at, text } => writeln!(f, "{:>14} ns  {text}", at.0)?,
                Record::Frame {
                    at,
                    step,
                    place,
                    header,
                } => {
                    let step = match step {
                        Step::Sent => "sent by",
                        Step::Lost => "lost from",
                        Step::Came => "at",
                    };
                    write!(f, "{:>14} ns  {step:>9} {:<16} ", at.0, place.to_string())?;
                    match header {
                        None => writeln!(f, "malformed")?,
                        Some(h) => writeln!(
                            f,
                            "{:?} job {} epoch {:#06x} fragment {} {} flags {:#04x} bitmap {:#x} tag {:#x} priority {}",
                            h.kind,
                            h.job.0,
                            h.epoch.0,
                            h.fragment.0,
                            h.rank,
                            h.flags.0,
                            h.bitmap,
                            h.tag.0,
                            h.priority
                        )?,
                    }
                }
            }
        }
        Ok(())
    }
}
