//! What elements are, and how they are summed.

use std::fmt;
use tally_wire::Element;

/// Types of elements that can be summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Dtype {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Two's complement.
    I32,
    /// Two's complement.
    I16,
    /// Two's complement.
    I8,
}

impl Dtype {
    /// The name that safetensors files have for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::I32 => "I32",
            Self::I16 => "I16",
            Self::I8 => "I8",
        }
    }

    /// Whether its elements are integers.
    #[must_use]
    pub const fn is_int(self) -> bool {
        matches!(self, Self::I32 | Self::I16 | Self::I8)
    }

    /// The type of the wire that has the same values.
    #[must_use]
    pub const fn element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::F16 => Element::F16,
            Self::Bf16 => Element::Bf16,
            Self::I32 => Element::I32,
            Self::I16 => Element::I16,
            Self::I8 => Element::I8,
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 => 1,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How floats are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Arithmetic {
    /// As integers with one exponent per fragment: the sum does not depend on the order.
    Fixed,
    /// As f32, in the order of ranks.
    Native,
    /// Each tensor in its own type, in the order of ranks: f16 and bf16 are added in f32, and
    /// rounded once.
    Own,
}

impl Arithmetic {
    /// The name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Native => "native",
            Self::Own => "own",
        }
    }
}
