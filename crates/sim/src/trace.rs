//! The last things that happened, for people to read when a seed has failed.

use crate::frame::Frame;
use std::collections::VecDeque;
use std::fmt;
use tally_wire::{Header, Time};

/// What happened to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A session gave it to its host's cable.
    Sent,
    /// It was lost, damaged or not taken on the way to the switch.
    Lost,
    /// It came to the switch.
    AtSwitch,
    /// It came to a host.
    AtHost,
}

enum Record {
    Frame {
        at: Time,
        step: Step,
        host: u16,
        header: Option<Header>,
    },
    Note {
        at: Time,
        text: String,
    },
}

/// The last records, as many as there is room for.
pub struct Trace {
    records: VecDeque<Record>,
    room: usize,
}

impl Trace {
    /// Room for so many records.
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

    /// Notes what happened to a frame, and at which host or port.
    pub fn frame(&mut self, at: Time, step: Step, host: u16, frame: &Frame) {
        let header = frame.tally().map(|(header, _)| header);
        self.push(Record::Frame {
            at,
            step,
            host,
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
                    host,
                    header,
                } => {
                    let step = match step {
                        Step::Sent => "sent by",
                        Step::Lost => "lost from",
                        Step::AtSwitch => "at switch from",
                        Step::AtHost => "at",
                    };
                    write!(f, "{:>14} ns  {step:>14} host {host:<3} ", at.0)?;
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
