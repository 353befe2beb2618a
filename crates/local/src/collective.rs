//! Terms of both sides: a rank, a collective that it submits, and what its collectives wait for.

use crate::ranks::Ranks;

/// Workers of a job at most. A switch has 64 members; a tree of switches has more.
pub const WORKERS_MAX: u16 = 4096;

/// The rank that a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The job, by its number in the agent's configuration.
    pub job: u16,
    /// Its rank, from 0.
    pub rank: u16,
    /// How many workers the process takes the job to have, 1 to [`WORKERS_MAX`].
    pub workers: u16,
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
        root: u16,
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
    /// More collectives of the same training step follow, and until then the process computes.
    /// Without it, a caller of this waits for the network, and with the last result a step is over.
    pub more_follow: bool,
    /// For errors, such as `layer1.weight`: at most 255 bytes.
    pub name: String,
}

/// What a rank's oldest collective waits for, as far as its agent knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// The missing ranks; none if none is missing, or they are not known.
    pub ranks: Ranks,
    /// The cause, in words.
    pub text: String,
}
