//! What a session is asked to do, and with which memory.

use crate::dtype::{Arithmetic, Dtype};
use std::any::Any;
use std::fmt;
use thiserror::Error;

/// Bytes of the longest name of a collective.
pub const NAME_BYTES_MAX: usize = 255;
/// Elements of the largest collective: their number has 48 bits in the descriptor.
pub const ELEMENTS_MAX: u64 = (1 << 48) - 1;

/// Elements that a collective reads and writes, one behind the other, in the host's byte order.
///
/// They may be in memory that is shared with another process, so there are no references to them.
/// That process must leave them alone until the collective is done: what was sent may have to be
/// sent again. A buffer that comes back is what it was, by way of [`Any`].
pub trait Elements: Any + Send {
    /// How many bytes there are.
    fn bytes(&self) -> usize;

    /// Copies the bytes `at..at + into.len()`.
    ///
    /// # Panics
    /// May, if they are not all there.
    fn read(&self, at: usize, into: &mut [u8]);

    /// Puts `from` at `at`.
    ///
    /// # Panics
    /// May, if there is no room.
    fn write(&mut self, at: usize, from: &[u8]);

    /// Ranks whose elements these are. The contribution is their sum, and each gets the result.
    fn parts(&self) -> usize {
        1
    }

    /// As [`read`](Self::read), of one of the [`parts`](Self::parts); `read` is of the first.
    ///
    /// # Panics
    /// As `read`.
    fn read_part(&self, part: usize, at: usize, into: &mut [u8]) {
        debug_assert_eq!(part, 0);
        self.read(at, into);
    }
}

/// Elements of the ranks of one host, in the order in which they are summed: that of ranks. The
/// first is the root's in a broadcast from this host.
pub struct Parts<E>(Vec<E>);

impl<E: Elements> Parts<E> {
    /// Of each rank its elements.
    ///
    /// # Panics
    /// If there are none, or of different lengths.
    #[must_use]
    pub fn new(parts: Vec<E>) -> Self {
        let bytes = parts.first().map(Elements::bytes);
        assert!(
            bytes.is_some() && parts.iter().all(|it| Some(it.bytes()) == bytes),
            "parts of one collective"
        );
        Self(parts)
    }
}

impl<E: Elements> Elements for Parts<E> {
    fn bytes(&self) -> usize {
        self.0[0].bytes()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.0[0].read(at, into);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        for part in &mut self.0 {
            part.write(at, from);
        }
    }

    fn parts(&self) -> usize {
        self.0.len()
    }

    fn read_part(&self, part: usize, at: usize, into: &mut [u8]) {
        self.0[part].read(at, into);
    }
}

impl Elements for Vec<u8> {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[at..at + into.len()]);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        self[at..at + from.len()].copy_from_slice(from);
    }
}

/// What becomes of the elements, at every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// Their sum over all ranks.
    Sum,
    /// The sum divided by the number of ranks: floats in f32, integers truncated toward zero.
    Mean,
    /// Those of one rank, bit by bit. What the others had is overwritten.
    Broadcast {
        /// That rank.
        root: u16,
    },
    /// The largest of each, as bytes without a sign: of i8 only.
    Max,
    /// Nothing: there are none. It is done when every rank has come to it.
    Barrier,
}

/// Who gets a slot first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// 0 to 255, the highest.
    Fixed(u8),
    /// The configuration's, or that which follows from what the session measures, for a place in
    /// the model (C-5).
    Place {
        /// Which of the parts of the model, below `of`. 0 is what the next forward pass needs
        /// first.
        index: u16,
        /// Parts of the model, at least 1.
        of: u16,
    },
}

impl Priority {
    /// Without a place: nothing of the job is needed sooner.
    pub const FIRST: Self = Self::Place { index: 0, of: 1 };
}

/// One collective. All ranks must bring the same, in the same order, but for its priority and what
/// follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// What becomes of the elements.
    pub kind: CollectiveKind,
    /// Their type.
    pub dtype: Dtype,
    /// How floats are summed; without meaning for the rest.
    pub arithmetic: Arithmetic,
    /// For errors, as `layer1.weight`: up to 255 bytes.
    pub name: String,
    /// Who gets a slot first.
    pub priority: Priority,
    /// More of the same training step follow, and until then its user computes. See
    /// [`Session`](crate::Session) for what is measured.
    pub more_follow: bool,
}

impl Collective {
    /// A barrier.
    #[must_use]
    pub fn barrier(name: impl Into<String>) -> Self {
        Self {
            kind: CollectiveKind::Barrier,
            dtype: Dtype::I8,
            arithmetic: Arithmetic::Native,
            name: name.into(),
            priority: Priority::FIRST,
            more_follow: false,
        }
    }

    /// Whether it makes sense on `bytes` bytes among `workers` ranks of a job.
    ///
    /// # Errors
    /// The first reason why it does not.
    pub fn check(&self, bytes: usize, workers: u16) -> Result<(), Refused> {
        let size = self.dtype.bytes();
        match self.kind {
            _ if self.name.len() > NAME_BYTES_MAX => {
                return Err(Refused::Name {
                    bytes: self.name.len(),
                });
            }
            CollectiveKind::Broadcast { root } if root >= workers => {
                return Err(Refused::Root { root, workers });
            }
            CollectiveKind::Barrier if bytes > 0 => return Err(Refused::Barrier { bytes }),
            CollectiveKind::Max if size > 1 => return Err(Refused::Max { dtype: self.dtype }),
            _ => {}
        }
        if !bytes.is_multiple_of(size) {
            let dtype = self.dtype;
            return Err(Refused::Bytes { bytes, dtype });
        }
        if (bytes / size) as u64 > ELEMENTS_MAX {
            return Err(Refused::TooMany);
        }
        Ok(())
    }
}

/// Why a session does not take a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The name is too long.
    #[error("the collective's name has {bytes} bytes; up to {NAME_BYTES_MAX} are allowed")]
    Name {
        /// Its length.
        bytes: usize,
    },
    /// There is no such rank to broadcast from.
    #[error("cannot broadcast from rank {root} of {workers} workers (ranks count from 0)")]
    Root {
        /// The rank.
        root: u16,
        /// Workers of the job.
        workers: u16,
    },
    /// A barrier has no elements.
    #[error("a barrier takes no elements, but came with {bytes} bytes")]
    Barrier {
        /// How many came.
        bytes: usize,
    },
    /// A maximum is of bytes.
    #[error("a maximum of {dtype} elements; it is of I8")]
    Max {
        /// The type.
        dtype: Dtype,
    },
    /// A part of an element is left over.
    #[error("{bytes} bytes are no whole number of {dtype} elements")]
    Bytes {
        /// How many came.
        bytes: usize,
        /// The type.
        dtype: Dtype,
    },
    /// More than [`ELEMENTS_MAX`].
    #[error("more than {ELEMENTS_MAX} elements")]
    TooMany,
    /// The session takes nothing more.
    #[error("the session is over, or was told to finish")]
    Over,
}

/// The number of a collective in its session, counted from 0; the same at every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A collective whose results are all there.
pub struct Done {
    /// Which one.
    pub ticket: Ticket,
    /// The results.
    pub buffer: Box<dyn Elements>,
    /// What was asked for.
    pub collective: Collective,
    /// From its submission to its last result.
    pub seconds: f64,
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done")
            .field("ticket", &self.ticket)
            .field("bytes", &self.buffer.bytes())
            .field("collective", &self.collective)
            .field("seconds", &self.seconds)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let sum = Collective {
            kind: CollectiveKind::Sum,
            dtype: Dtype::F32,
            arithmetic: Arithmetic::Fixed,
            name: "w".into(),
            priority: Priority::FIRST,
            more_follow: false,
        };
        assert_eq!(sum.check(0, 1), Ok(()));
        assert_eq!(sum.check(400, 64), Ok(()));
        let said = |c: &Collective, bytes| c.check(bytes, 4).unwrap_err().to_string();
        assert_eq!(said(&sum, 6), "6 bytes are no whole number of F32 elements");
        let mut broadcast = sum.clone();
        broadcast.kind = CollectiveKind::Broadcast { root: 4 };
        assert_eq!(
            said(&broadcast, 8),
            "cannot broadcast from rank 4 of 4 workers (ranks count from 0)"
        );
        assert_eq!(
            said(&Collective::barrier("b"), 1),
            "a barrier takes no elements, but came with 1 bytes"
        );
        let mut max = sum.clone();
        max.kind = CollectiveKind::Max;
        assert_eq!(said(&max, 4), "a maximum of F32 elements; it is of I8");
        let long = Collective {
            name: "n".repeat(256),
            ..sum
        };
        assert_eq!(
            said(&long, 4),
            "the collective's name has 256 bytes; up to 255 are allowed"
        );
    }
}
