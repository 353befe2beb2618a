//! What is compared: operations, rows, contenders and working sets.

use serde::Serialize;
use tally_kernels::Backend;
use tally_report::Machine;

/// Payload sizes, as on the wire.
pub const PAYLOAD_BYTES: [usize; 6] = [256, 512, 1024, 2048, 4096, 8192];

/// Contributions that are added to a slot: 8 workers, of which the first gives its frame.
pub const CONTRIBUTIONS: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    SumI32,
    SumF32,
    FoldF16,
    FoldBf16,
    FoldI16,
    FoldI8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Row {
    Slot,
    Fused,
    Pair,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    Memcpy,
    Backend(Backend),
}

impl Contender {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::Backend(backend) => backend.name(),
        }
    }
}

impl Serialize for Contender {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Op {
    pub const ALL: [Self; 6] = [
        Self::SumI32,
        Self::SumF32,
        Self::FoldF16,
        Self::FoldBf16,
        Self::FoldI16,
        Self::FoldI8,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::SumI32 => "sum_i32",
            Self::SumF32 => "sum_f32",
            Self::FoldF16 => "fold_f16",
            Self::FoldBf16 => "fold_bf16",
            Self::FoldI16 => "fold_i16",
            Self::FoldI8 => "fold_i8",
        }
    }

    /// Whether it is of a sub-32-bit type.
    pub const fn is_fold(self) -> bool {
        !matches!(self, Self::SumI32 | Self::SumF32)
    }

    /// The rows that it has: sub-32-bit types are not summed one by one.
    pub fn rows(self) -> impl Iterator<Item = Row> {
        let rows = Row::ALL.into_iter();
        rows.filter(move |row| !self.is_fold() || *row != Row::Slot)
    }
}

impl Row {
    pub const ALL: [Self; 3] = [Self::Slot, Self::Fused, Self::Pair];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::Fused => "fused",
            Self::Pair => "pair",
        }
    }

    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Slot => "7 contributions into one slot, one by one; memcpy: 7 copies into it",
            Self::Fused => "7 contributions into one slot, in one pass; memcpy: 7 copies into it",
            Self::Pair => "one contribution into one slot, both cold; memcpy: one copy",
        }
    }

    pub const fn contributions(self) -> usize {
        match self {
            Self::Slot | Self::Fused => CONTRIBUTIONS,
            Self::Pair => 1,
        }
    }
}

/// The size of what is gone through again and again.
#[derive(Clone, Debug, Serialize)]
pub struct WorkingSet {
    pub name: &'static str,
    pub bytes: usize,
}

impl WorkingSet {
    pub fn all(machine: &Machine) -> [Self; 3] {
        const MIB: usize = 1 << 20;
        [
            Self {
                name: "L1",
                bytes: machine.cache("L1d", 32 << 10) / 2,
            },
            Self {
                name: "L2",
                bytes: machine.cache("L2", MIB) / 2,
            },
            Self {
                name: "memory",
                bytes: (4 * machine.cache("L3", 16 * MIB)).max(64 * MIB),
            },
        ]
    }
}
