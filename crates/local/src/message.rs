//! What the two sides say to each other: whole messages, little-endian, with every reserved byte zero.
//!
//! | byte 0 | from | then |
//! |---|---|---|
//! | 1 Hello | process | 0, version 2, magic 4, job 2, rank, workers |
//! | 2 Status | process | 0, version 2, magic 4 |
//! | 3 Region | process | 0 0 0, id 4, bytes 8; with the memfd |
//! | 4 Release | process | 0 0 0, id 4 |
//! | 5 Submit | process | operation, root, dtype, arithmetic, flags, priority, name's length, region 4, index 2, of 2, ticket 8, at 8, elements 8, name |
//! | 6 Finish | process | 0 0 0 |
//! | 7 Fallback | process | 0 0 0, count 8, kind of collective |
//! | 8 Ask | process | 0 0 0, question 8 |
//! | 64 Welcome | agent | 0, version 2, magic 4, collectives under way 4, regions 4, bytes of regions 8 |
//! | 65 Refused | agent | class, 0 0, ranks 8, text |
//! | 66 Mapped | agent | 0 0 0, id 4 |
//! | 67 Unmapped | agent | class, 0 0, id 4, text |
//! | 68 Done | agent | 0 0 0, ticket 8 |
//! | 69 Failed | agent | class, 0 0, ranks 8, text |
//! | 70 Finished | agent | 0 0 0 |
//! | 71 Text | agent | last, 0 0, text |
//! | 72 Awaited | agent | 0 0 0, question 8, ranks 8, text |
//!
//! Flags of Submit: 1, the priority is fixed, and index and of are 0; else the priority is 0. 2, more follow.
//!
//! The first eight bytes of Hello and Status, and Refused as a whole, stay as they are in every version, so that
//! versions can refuse each other in words.

use crate::error::{Class, Failure};
use crate::fallback::is_kind;

/// The version of this interface. Both sides need the same one.
pub const VERSION: u16 = 4;
/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// The longest name of a collective, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"tlly";
const SUBMIT_BYTES: usize = 40;
const _: () = assert!(SUBMIT_BYTES + NAME_BYTES_MAX <= MESSAGE_BYTES_MAX);
const FLAG_FIXED: u8 = 1;
const FLAG_MORE: u8 = 2;
/// The region of a collective that has no elements.
pub(crate) const NO_REGION: u32 = u32::MAX;

/// Who a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The job, by its number in the agent's configuration.
    pub job: u16,
    /// Its rank, from 0.
    pub rank: u8,
    /// How many workers the process takes the job to have, 1 to 64.
    pub workers: u8,
}

/// What becomes of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Their sum over all workers.
    Sum,
    /// The sum divided by the number of workers.
    Mean,
    /// The root's elements, at all workers.
    Broadcast {
        /// Whose.
        root: u8,
    },
    /// Nothing; it is done when all workers have submitted it.
    Barrier,
}

/// Types of elements, in the machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE single.
    F32 = 0,
    /// IEEE half.
    F16 = 1,
    /// The upper half of a single.
    Bf16 = 2,
    /// Two's complement.
    I32 = 3,
    /// Two's complement.
    I16 = 4,
    /// Two's complement.
    I8 = 5,
}

impl Dtype {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I32,
        Self::I16,
        Self::I8,
    ];

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 => 1,
        }
    }
}

/// How floats are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Arithmetic {
    /// As integers with one exponent per fragment: the sum does not depend on the order.
    Fixed = 0,
    /// As f32, in the order of ranks.
    Native = 1,
    /// In their own type, in the order of ranks.
    Own = 2,
}

impl Arithmetic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fixed, Self::Native, Self::Own];
}

/// How urgent a collective is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// From 0 to 255, the highest.
    Fixed(u8),
    /// What the agent works out, from what it measures of the job, for this place in the model.
    Place {
        /// Which of the parts of the model, below `of`. 0 is what the next forward pass needs first.
        index: u16,
        /// Parts of the model, at least 1.
        of: u16,
    },
}

impl Priority {
    /// Without a place: nothing of the job is needed sooner.
    pub const FIRST: Self = Self::Place { index: 0, of: 1 };
}

/// A collective: the same, in the same order, at all ranks, but for its priority and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// What becomes of the elements.
    pub operation: Operation,
    /// Their type.
    pub dtype: Dtype,
    /// How floats are summed.
    pub arithmetic: Arithmetic,
    /// How urgent it is.
    pub priority: Priority,
    /// More collectives of the same training step follow, and until then the process computes. Without it, whatever
    /// waits for this one waits for the network, and with the last result a step is over.
    pub more_follow: bool,
    /// For errors, such as `layer1.weight`: at most 255 bytes.
    pub name: String,
}

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

/// What a rank's oldest collective waits for, as far as its agent knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// The missing ranks, bit `n` for rank `n`; 0 if none is missing, or they are not known.
    pub ranks: u64,
    /// The cause, in words.
    pub text: String,
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
                let (job, rank, workers) = (f.u16()?, f.u8()?, f.u8()?);
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
                let operation = match (f.u8()?, f.u8()?) {
                    (0, 0) => Operation::Sum,
                    (1, 0) => Operation::Mean,
                    (2, root) => Operation::Broadcast { root },
                    (3, 0) => Operation::Barrier,
                    _ => return None,
                };
                let dtype = *Dtype::ALL.get(usize::from(f.u8()?))?;
                let arithmetic = *Arithmetic::ALL.get(usize::from(f.u8()?))?;
                let flags = f.u8()?;
                if flags & !(FLAG_FIXED | FLAG_MORE) != 0 {
                    return None;
                }
                let (fixed, name_bytes) = (f.u8()?, f.u8()?);
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
                    out.extend([hello.rank, hello.workers]);
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
                out.extend([5, operation, root, s.dtype as u8, s.arithmetic as u8]);
                out.extend([is_fixed | more, fixed, name.len() as u8]);
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
            65 => Self::Refused(failure(&mut f)?),
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
            69 => Self::Failed(failure(&mut f)?),
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
                let (question, ranks) = (f.u64()?, f.u64()?);
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
            Self::Refused(failure) => emit_failure(out, 65, failure),
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
            Self::Failed(failure) => emit_failure(out, 69, failure),
            Self::Finished => out.extend([70, 0, 0, 0]),
            Self::Text { last, text } => {
                out.extend([71, u8::from(*last), 0, 0]);
                emit_text(out, text);
            }
            Self::Awaited { question, awaited } => {
                out.extend([72, 0, 0, 0]);
                out.extend(question.to_le_bytes());
                out.extend(awaited.ranks.to_le_bytes());
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

fn failure(f: &mut Fields<'_>) -> Option<Failure> {
    let class = Class::of(f.u8()?);
    f.zeros::<2>()?;
    let (ranks, text) = (f.u64()?, f.text()?.to_owned());
    Some(Failure { class, ranks, text })
}

fn emit_failure(out: &mut Vec<u8>, kind: u8, failure: &Failure) {
    out.extend([kind, failure.class as u8, 0, 0]);
    out.extend(failure.ranks.to_le_bytes());
    emit_text(out, &failure.text);
}

fn emit_text(out: &mut Vec<u8>, text: &str) {
    out.extend(cut(text, MESSAGE_BYTES_MAX - out.len()).bytes());
}

/// As much of `text` as `bytes` hold, in whole characters.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn submission() -> Submission {
        Submission {
            operation: Operation::Broadcast { root: 63 },
            dtype: Dtype::Bf16,
            arithmetic: Arithmetic::Own,
            priority: Priority::Fixed(0),
            more_follow: true,
            name: "schicht1.gewicht-ß".into(),
        }
    }

    fn from_process() -> Vec<FromProcess> {
        let hello = Hello {
            job: 7,
            rank: 3,
            workers: 4,
        };
        let submit = |submission| FromProcess::Submit {
            region: 1,
            ticket: 2,
            at: 3 << 40,
            elements: 4 << 40,
            submission,
        };
        let mut all = vec![
            FromProcess::Hello(VERSION, Some(hello)),
            FromProcess::Hello(VERSION + 1, None),
            FromProcess::Status(VERSION),
            FromProcess::Region {
                id: 5,
                bytes: 6 << 40,
            },
            FromProcess::Release { id: 7 },
            FromProcess::Finish,
            FromProcess::Fallback {
                kind: "all_gather".into(),
                count: 8 << 40,
            },
            FromProcess::Ask { question: 9 << 40 },
            submit(submission()),
        ];
        let operations = [Operation::Sum, Operation::Mean, Operation::Barrier];
        for (at, operation) in operations.into_iter().enumerate() {
            all.push(submit(Submission {
                operation,
                dtype: Dtype::ALL[at],
                arithmetic: Arithmetic::ALL[at],
                priority: Priority::Place {
                    index: at as u16,
                    of: 3,
                },
                more_follow: at == 1,
                name: "x".repeat(NAME_BYTES_MAX),
            }));
        }
        all
    }

    fn from_agent() -> Vec<FromAgent> {
        let failure = Failure {
            class: Class::Mismatch,
            ranks: 1 << 63 | 2,
            text: "warum?".into(),
        };
        vec![
            FromAgent::Welcome {
                version: VERSION,
                submitted: 1,
                regions: 2,
                memory_bytes: 3,
            },
            FromAgent::Refused(failure.clone()),
            FromAgent::Mapped { id: 4 },
            FromAgent::Unmapped {
                id: 5,
                class: Class::Memory,
                text: String::new(),
            },
            FromAgent::Done { ticket: u64::MAX },
            FromAgent::Failed(failure),
            FromAgent::Finished,
            FromAgent::Text {
                last: true,
                text: "{}".into(),
            },
            FromAgent::Awaited {
                question: 6 << 40,
                awaited: Awaited {
                    ranks: 1 << 63 | 2,
                    text: "warum?".into(),
                },
            },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let mut out = vec![0xa5; 64];
        for message in from_process() {
            message.emit(&mut out);
            assert_eq!(FromProcess::parse(&out), Some(message));
            assert!(out.len() <= MESSAGE_BYTES_MAX);
        }
        for message in from_agent() {
            message.emit(&mut out);
            assert_eq!(FromAgent::parse(&out), Some(message));
        }
    }

    #[test]
    fn a_priority_that_cannot_be_is_no_message() {
        let mut good = Vec::new();
        from_process().last().unwrap().emit(&mut good);
        assert_eq!(good[5..7], [0, 0], "place 2 of 3");
        for (at, byte, why) in [
            (5, 4, "no such flag"),
            (5, 1, "fixed, with a place"),
            (6, 1, "a place, with a fixed one"),
            (12, 3, "behind the last"),
            (14, 0, "of none"),
        ] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(FromProcess::parse(&bad), None, "{why}");
        }
    }

    #[test]
    fn nothing_that_is_cut_off_or_too_long_is_a_message() {
        let mut out = Vec::new();
        for message in from_process() {
            message.emit(&mut out);
            let fixed = matches!(message, FromProcess::Hello(version, _) if version != VERSION);
            // Its kind ends where the message does.
            let has_text = matches!(message, FromProcess::Fallback { .. });
            for len in 0..if has_text { 13 } else { out.len() } {
                assert_eq!(FromProcess::parse(&out[..len]), None, "{message:?} {len}");
            }
            out.push(0);
            assert_eq!(FromProcess::parse(&out).is_some(), fixed, "{message:?}");
        }
        for message in from_agent() {
            message.emit(&mut out);
            let has_text = matches!(
                message,
                FromAgent::Refused(_)
                    | FromAgent::Unmapped { .. }
                    | FromAgent::Failed(_)
                    | FromAgent::Text { .. }
                    | FromAgent::Awaited { .. }
            );
            if !has_text {
                for len in 0..out.len() {
                    assert_eq!(FromAgent::parse(&out[..len]), None, "{message:?} {len}");
                }
                out.push(0);
            } else {
                out.push(0xff);
            }
            assert_eq!(FromAgent::parse(&out), None, "{message:?}");
        }
    }

    #[test]
    fn a_kind_that_is_no_short_ascii_name_is_no_message() {
        let kinds = ["", "all gather", "all\ngather", "größe", "x\0", "\x1b[2J"];
        let long = "x".repeat(33);
        for kind in kinds.into_iter().chain([long.as_str()]) {
            let (kind, count) = (kind.to_owned(), 1);
            let mut out = Vec::new();
            FromProcess::Fallback { kind, count }.emit(&mut out);
            assert_eq!(FromProcess::parse(&out), None, "{out:?}");
        }
    }

    #[test]
    fn arbitrary_bytes_are_read_without_harm_and_only_as_they_are_written() {
        let mut state = 1_u64;
        let mut out = Vec::new();
        let mut understood = 0;
        for _ in 0..200_000 {
            let mut bytes = [0; 48];
            for byte in &mut bytes {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Mostly small, so that some make sense.
                *byte = if state & 0x700 == 0 {
                    state as u8
                } else {
                    state as u8 & 1
                };
            }
            bytes[0] = ((state >> 20) as u8 % 9) | ((state >> 30) as u8 & 64);
            let bytes = &bytes[..(state >> 40) as usize % 49];
            if let Some(message) = FromProcess::parse(bytes) {
                message.emit(&mut out);
                assert_eq!(out, bytes);
                understood += 1;
            }
            if let Some(message) = FromAgent::parse(bytes) {
                message.emit(&mut out);
                understood += 1;
            }
        }
        assert!(understood > 100, "{understood}");
    }

    #[test]
    fn the_first_bytes_are_those_of_every_version() {
        let mut out = Vec::new();
        FromProcess::Hello(2, None).emit(&mut out);
        assert_eq!(out, *b"\x01\0\x02\0tlly");
        FromProcess::Status(2).emit(&mut out);
        assert_eq!(out, *b"\x02\0\x02\0tlly");
        FromAgent::Refused(Failure::new(Class::Version, "no")).emit(&mut out);
        assert_eq!(out, *b"\x41\x01\0\0\0\0\0\0\0\0\0\0no");
        out[1] = 200;
        let later = Failure::new(Class::Other, "no");
        assert_eq!(FromAgent::parse(&out), Some(FromAgent::Refused(later)));
    }

    #[test]
    fn long_texts_lose_their_end_and_stay_text() {
        let mut out = Vec::new();
        let text = "ü".repeat(MESSAGE_BYTES_MAX);
        FromAgent::Failed(Failure::new(Class::Other, text)).emit(&mut out);
        assert!((MESSAGE_BYTES_MAX - 1..=MESSAGE_BYTES_MAX).contains(&out.len()));
        assert!(FromAgent::parse(&out).is_some());
        let mut long = submission();
        long.name = "ü".repeat(200);
        FromProcess::Submit {
            region: 0,
            ticket: 1,
            at: 0,
            elements: 0,
            submission: long,
        }
        .emit(&mut out);
        let Some(FromProcess::Submit { submission, .. }) = FromProcess::parse(&out) else {
            panic!("not read");
        };
        assert_eq!(submission.name, "ü".repeat(127));
    }
}
