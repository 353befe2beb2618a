//! What the two sides say to each other: whole messages, little-endian, with every reserved byte
//! zero.
//!
//! | byte 0 | from | then |
//! |---|---|---|
//! | 1 Hello | process | 0, version 2, magic 4, job 2, rank 2, workers 2 |
//! | 2 Status | process | 0, version 2, magic 4 |
//! | 3 Region | process | 0 0 0, id 4, bytes 8; with the memfd |
//! | 4 Release | process | 0 0 0, id 4 |
//! | 5 Submit | process | operation, dtype, arithmetic, root 2, flags, priority, name's length, 0 0 0, region 4, index 2, of 2, ticket 8, at 8, elements 8, name |
//! | 6 Finish | process | 0 0 0 |
//! | 7 Fallback | process | 0 0 0, count 8, kind of collective |
//! | 8 Ask | process | 0 0 0, question 8 |
//! | 64 Welcome | agent | 0, version 2, magic 4, collectives under way 4, regions 4, bytes of regions 8 |
//! | 65 Refused | agent | class, 0 0, ranks 8, text |
//! | 66 Mapped | agent | 0 0 0, id 4 |
//! | 67 Unmapped | agent | class, 0 0, id 4, text |
//! | 68 Done | agent | 0 0 0, ticket 8 |
//! | 69 Failed | agent | class, 0 0, ranks 8, first 2, end 2, text |
//! | 70 Finished | agent | 0 0 0 |
//! | 71 Text | agent | last, 0 0, text |
//! | 72 Awaited | agent | 0 0 0, question 8, ranks 8, first 2, end 2, text |
//!
//! Flags of Submit: 1, the priority is fixed, and index and of are 0; else the priority is 0. 2,
//! more follow.
//!
//! Bit n of ranks is rank n. In a job of more than 64 workers ranks are 0, and first and end are a
//! range of ranks; else both are 0. Refused has only ranks below 64.
//!
//! The first eight bytes of Hello and Status, and Refused as a whole, stay as they are in every
//! version, so that versions can refuse each other in words.

use crate::collective::{Arithmetic, Awaited, Dtype, Hello, Operation, Priority, Submission};
use crate::error::{Class, Failure};
use crate::fallback::is_kind;
use crate::ranks::Ranks;

/// The version of this interface. Both sides need the same one.
pub const VERSION: u16 = 5;
/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// The longest name of a collective, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"tlly";
const SUBMIT_BYTES: usize = 44;
const _: () = assert!(SUBMIT_BYTES + NAME_BYTES_MAX <= MESSAGE_BYTES_MAX);
const FLAG_FIXED: u8 = 1;
const FLAG_MORE: u8 = 2;
/// The region of a collective that has no elements.
pub(crate) const NO_REGION: u32 = u32::MAX;

/// What a process says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FromProcess {
    /// With its version; of another version nothing more is known.
    Hello(u16, Option<Hello>),
    Status(u16),
    Region {
        id: u32,
        bytes: u64,
    },
    Release {
        id: u32,
    },
    Submit {
        region: u32,
        ticket: u64,
        at: u64,
        elements: u64,
        submission: Submission,
    },
    Finish,
    /// Collectives of a kind that another library did, since the last of these messages.
    Fallback {
        kind: String,
        count: u64,
    },
    /// What does the oldest collective wait for?
    Ask {
        question: u64,
    },
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FromAgent {
    Welcome {
        version: u16,
        submitted: u32,
        regions: u32,
        memory_bytes: u64,
    },
    Refused(Failure),
    Mapped {
        id: u32,
    },
    Unmapped {
        id: u32,
        class: Class,
        text: String,
    },
    Done {
        ticket: u64,
    },
    Failed(Failure),
    Finished,
    Text {
        last: bool,
        text: String,
    },
    Awaited {
        question: u64,
        awaited: Awaited,
    },
}

/// Takes fields from the front of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn zeros<const N: usize>(&mut self) -> Option<()> {
        (self.take::<N>()? == [0; N]).then_some(())
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Option<bool> {
        self.u8().filter(|&byte| byte < 2).map(|byte| byte == 1)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// What is left, as text.
    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(std::mem::take(&mut self.0)).ok()
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

impl FromProcess {
    /// None if `message` is not one of these, whole and nothing more.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let mut f = Fields(message);
        let it = match f.u8()? {
            1 => {
                f.zeros::<1>()?;
                let version = f.u16()?;
                if f.take()? != MAGIC {
                    return None;
                }
                if version != VERSION {
                    return Some(Self::Hello(version, None));
                }
                let (job, rank, workers) = (f.u16()?, f.u16()?, f.u16()?);
                let hello = Hello { job, rank, workers };
                Self::Hello(version, Some(hello))
            }
            2 => {
                f.zeros::<1>()?;
                let version = f.u16()?;
                if f.take()? != MAGIC {
                    return None;
                }
                if version != VERSION {
                    return Some(Self::Status(version));
                }
                Self::Status(version)
            }
            3 => {
                f.zeros::<3>()?;
                let (id, bytes) = (f.u32()?, f.u64()?);
                Self::Region { id, bytes }
            }
            4 => {
                f.zeros::<3>()?;
                Self::Release { id: f.u32()? }
            }
            5 => {
                let operation = f.u8()?;
                let dtype = *Dtype::ALL.get(usize::from(f.u8()?))?;
                let arithmetic = *Arithmetic::ALL.get(usize::from(f.u8()?))?;
                let operation = match (operation, f.u16()?) {
                    (0, 0) => Operation::Sum,
                    (1, 0) => Operation::Mean,
                    (2, root) => Operation::Broadcast { root },
                    (3, 0) => Operation::Barrier,
                    _ => return None,
                };
                let flags = f.u8()?;
                if flags & !(FLAG_FIXED | FLAG_MORE) != 0 {
                    return None;
                }
                let (fixed, name_bytes) = (f.u8()?, f.u8()?);
                f.zeros::<3>()?;
                let region = f.u32()?;
                let priority = match (flags & FLAG_FIXED != 0, fixed, f.u16()?, f.u16()?) {
                    (true, _, 0, 0) => Priority::Fixed(fixed),
                    (false, 0, index, of) if index < of => Priority::Place { index, of },
                    _ => return None,
                };
                let (ticket, at, elements) = (f.u64()?, f.u64()?, f.u64()?);
                let name = f.text().filter(|it| it.len() == usize::from(name_bytes))?;
                let submission = Submission {
                    operation,
                    dtype,
                    arithmetic,
                    priority,
                    more_follow: flags & FLAG_MORE != 0,
                    name: name.to_owned(),
                };
                Self::Submit {
                    region,
                    ticket,
                    at,
                    elements,
                    submission,
                }
            }
            6 => {
                f.zeros::<3>()?;
                Self::Finish
            }
            7 => {
                f.zeros::<3>()?;
                let (count, kind) = (f.u64()?, f.text()?);
                let kind = Some(kind).filter(|it| is_kind(it))?.to_owned();
                Self::Fallback { kind, count }
            }
            8 => {
                f.zeros::<3>()?;
                Self::Ask { question: f.u64()? }
            }
            _ => return None,
        };
        f.end()?;
        Some(it)
    }

    /// Writes it to `out`, in place of what is there.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Hello(version, hello) => {
                start(out, 1, *version);
                if let Some(hello) = hello {
                    out.extend(hello.job.to_le_bytes());
                    out.extend(hello.rank.to_le_bytes());
                    out.extend(hello.workers.to_le_bytes());
                }
            }
            Self::Status(version) => start(out, 2, *version),
            Self::Region { id, bytes } => {
                out.extend([3, 0, 0, 0]);
                out.extend(id.to_le_bytes());
                out.extend(bytes.to_le_bytes());
            }
            Self::Release { id } => {
                out.extend([4, 0, 0, 0]);
                out.extend(id.to_le_bytes());
            }
            Self::Submit {
                region,
                ticket,
                at,
                elements,
                submission: s,
            } => {
                let (operation, root) = match s.operation {
                    Operation::Sum => (0, 0),
                    Operation::Mean => (1, 0),
                    Operation::Broadcast { root } => (2, root),
                    Operation::Barrier => (3, 0),
                };
                let (is_fixed, fixed, index, of) = match s.priority {
                    Priority::Fixed(fixed) => (FLAG_FIXED, fixed, 0, 0),
                    Priority::Place { index, of } => (0, 0, index, of),
                };
                let more = if s.more_follow { FLAG_MORE } else { 0 };
                let name = cut(&s.name, NAME_BYTES_MAX);
                out.extend([5, operation, s.dtype as u8, s.arithmetic as u8]);
                out.extend(root.to_le_bytes());
                out.extend([is_fixed | more, fixed, name.len() as u8, 0, 0, 0]);
                out.extend(region.to_le_bytes());
                out.extend(index.to_le_bytes());
                out.extend(of.to_le_bytes());
                for number in [ticket, at, elements] {
                    out.extend(number.to_le_bytes());
                }
                out.extend(name.bytes());
            }
            Self::Finish => out.extend([6, 0, 0, 0]),
            Self::Fallback { kind, count } => {
                out.extend([7, 0, 0, 0]);
                out.extend(count.to_le_bytes());
                out.extend(kind.bytes());
            }
            Self::Ask { question } => {
                out.extend([8, 0, 0, 0]);
                out.extend(question.to_le_bytes());
            }
        }
    }
}

impl FromAgent {
    /// None if `message` is not one of these, whole and nothing more.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let mut f = Fields(message);
        let it = match f.u8()? {
            64 => {
                f.zeros::<1>()?;
                let version = f.u16()?;
                if f.take()? != MAGIC {
                    return None;
                }
                Self::Welcome {
                    version,
                    submitted: f.u32()?,
                    regions: f.u32()?,
                    memory_bytes: f.u64()?,
                }
            }
            65 => {
                let (class, bits) = (class(&mut f)?, f.u64()?);
                let (ranks, text) = (Ranks::of_bits(bits), f.text()?.to_owned());
                Self::Refused(Failure { class, ranks, text })
            }
            66 => {
                f.zeros::<3>()?;
                Self::Mapped { id: f.u32()? }
            }
            67 => {
                let class = Class::of(f.u8()?);
                f.zeros::<2>()?;
                let (id, text) = (f.u32()?, f.text()?.to_owned());
                Self::Unmapped { id, class, text }
            }
            68 => {
                f.zeros::<3>()?;
                Self::Done { ticket: f.u64()? }
            }
            69 => {
                let (class, ranks) = (class(&mut f)?, ranks(&mut f)?);
                let text = f.text()?.to_owned();
                Self::Failed(Failure { class, ranks, text })
            }
            70 => {
                f.zeros::<3>()?;
                Self::Finished
            }
            71 => {
                let last = f.bool()?;
                f.zeros::<2>()?;
                let text = f.text()?.to_owned();
                Self::Text { last, text }
            }
            72 => {
                f.zeros::<3>()?;
                let (question, ranks) = (f.u64()?, ranks(&mut f)?);
                let text = f.text()?.to_owned();
                let awaited = Awaited { ranks, text };
                Self::Awaited { question, awaited }
            }
            _ => return None,
        };
        f.end()?;
        Some(it)
    }

    /// Writes it to `out`, in place of what is there. Text that is too long loses its end.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Welcome {
                version,
                submitted,
                regions,
                memory_bytes,
            } => {
                start(out, 64, *version);
                out.extend(submitted.to_le_bytes());
                out.extend(regions.to_le_bytes());
                out.extend(memory_bytes.to_le_bytes());
            }
            Self::Refused(failure) => {
                out.extend([65, failure.class as u8, 0, 0]);
                out.extend(failure.ranks.bits().to_le_bytes());
                emit_text(out, &failure.text);
            }
            Self::Mapped { id } => {
                out.extend([66, 0, 0, 0]);
                out.extend(id.to_le_bytes());
            }
            Self::Unmapped { id, class, text } => {
                out.extend([67, *class as u8, 0, 0]);
                out.extend(id.to_le_bytes());
                emit_text(out, text);
            }
            Self::Done { ticket } => {
                out.extend([68, 0, 0, 0]);
                out.extend(ticket.to_le_bytes());
            }
            Self::Failed(failure) => {
                out.extend([69, failure.class as u8, 0, 0]);
                emit_ranks(out, failure.ranks);
                emit_text(out, &failure.text);
            }
            Self::Finished => out.extend([70, 0, 0, 0]),
            Self::Text { last, text } => {
                out.extend([71, u8::from(*last), 0, 0]);
                emit_text(out, text);
            }
            Self::Awaited { question, awaited } => {
                out.extend([72, 0, 0, 0]);
                out.extend(question.to_le_bytes());
                emit_ranks(out, awaited.ranks);
                emit_text(out, &awaited.text);
            }
        }
    }
}

fn start(out: &mut Vec<u8>, kind: u8, version: u16) {
    out.extend([kind, 0]);
    out.extend(version.to_le_bytes());
    out.extend(MAGIC);
}

fn class(f: &mut Fields<'_>) -> Option<Class> {
    let class = Class::of(f.u8()?);
    f.zeros::<2>()?;
    Some(class)
}

fn ranks(f: &mut Fields<'_>) -> Option<Ranks> {
    Ranks::from_fields(f.u64()?, f.u16()?, f.u16()?)
}

fn emit_ranks(out: &mut Vec<u8>, ranks: Ranks) {
    let (bits, first, end) = ranks.fields();
    out.extend(bits.to_le_bytes());
    out.extend(first.to_le_bytes());
    out.extend(end.to_le_bytes());
}

fn emit_text(out: &mut Vec<u8>, text: &str) {
    out.extend(cut(text, MESSAGE_BYTES_MAX - out.len()).bytes());
}

/// As much of `text` as `bytes` hold, in whole characters.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests;
