//! How ranks make sure that they sum the same collective.
//!
//! Before its elements each collective has a table (D-2 of PROTOCOL.md) with a record of 16 bytes
//! for each rank, in fragments of element *scale*, of which the switch takes the maximum. A rank
//! writes its own record and zeros elsewhere, so that each rank gets everybody's. The records say
//! what the rank brings in plain numbers, so that an error can name it; only the name of the
//! collective is a hash.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | 3..0 kind: 1 sum, 2 mean, 3 broadcast, 4 barrier, 5 maximum; then bits 11..8 of the root |
//! | 1 | 1 | type of the elements, as on the wire; 0 for a barrier |
//! | 2 | 1 | sums of floats: 1 block fixed point, 2 as f32, 3 in their own type; else 0 |
//! | 3 | 1 | bits 7..0 of the rank to broadcast from, else 0 |
//! | 4 | 6 | number of elements, little-endian |
//! | 10 | 6 | first bytes of the SHA-256 of the name |
//!
//! In a job of more than 64 ranks all bring one record, and the complement of its bytes: the maxima
//! of both agree if, and only if, all records are equal.
//!
//! A payload is a multiple of 64 bytes, so that no record is cut: 64 ranks have one fragment of 1
//! KiB, or 16 of 64 bytes.

use crate::collective::{Collective, CollectiveKind};
use crate::dtype::{Arithmetic, Dtype};
use sha2::{Digest, Sha256};
use std::fmt;
use tally_endpoint::Ranks;
use thiserror::Error;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 16;
const _: () = assert!(tally_wire::UNIT_BYTES.is_multiple_of(RECORD_BYTES));

const NAME_AT: usize = 10;

/// What one rank brings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record([u8; RECORD_BYTES]);

impl Record {
    pub(crate) fn new(collective: &Collective, bytes: usize) -> Self {
        let (kind, root) = match collective.kind {
            CollectiveKind::Sum => (1, 0),
            CollectiveKind::Mean => (2, 0),
            CollectiveKind::Broadcast { root } => (3, root),
            CollectiveKind::Barrier => (4, 0),
            CollectiveKind::Max => (5, 0),
        };
        let dtype = collective.dtype;
        let sums = kind <= 2 && !dtype.is_int();
        let arithmetic = match collective.arithmetic {
            _ if !sums => 0,
            Arithmetic::Fixed => 1,
            Arithmetic::Own if dtype != Dtype::F32 => 3,
            Arithmetic::Native | Arithmetic::Own => 2,
        };
        let element = if kind == 4 { 0 } else { dtype.element() as u8 };
        let mut record = [0; RECORD_BYTES];
        let [root_high, root] = root.to_be_bytes();
        record[..4].copy_from_slice(&[kind | root_high << 4, element, arithmetic, root]);
        let elements = (bytes / dtype.bytes()) as u64;
        record[4..NAME_AT].copy_from_slice(&elements.to_le_bytes()[..NAME_AT - 4]);
        let hash = Sha256::digest(&collective.name);
        record[NAME_AT..].copy_from_slice(&hash[..RECORD_BYTES - NAME_AT]);
        Self(record)
    }

    fn elements(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..NAME_AT - 4].copy_from_slice(&self.0[4..NAME_AT]);
        u64::from_le_bytes(bytes)
    }

    fn has_name_of(&self, other: &Self) -> bool {
        self.0[NAME_AT..] == other.0[NAME_AT..]
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, element, arithmetic, root, ..] = self.0;
        let root = u16::from_be_bytes([kind >> 4, root]);
        let kind = kind & 0xf;
        let dtype = match element {
            1 => "I32",
            2 => "F32",
            4 => "F16",
            5 => "BF16",
            6 => "I16",
            7 => "I8",
            _ => "unknown",
        };
        let how = match arithmetic {
            1 => " in block fixed point",
            2 => " as f32",
            3 => " in their own type",
            _ => "",
        };
        let elements = self.elements();
        match kind {
            1 => write!(f, "a sum of {elements} {dtype}{how}"),
            2 => write!(f, "a mean of {elements} {dtype}{how}"),
            3 => write!(f, "a broadcast of {elements} {dtype} from rank {root}"),
            4 => write!(f, "a barrier"),
            5 => write!(f, "a maximum of {elements} bytes"),
            _ => write!(f, "something unknown"),
        }
    }
}

/// The records of all ranks, as far as they have come.
pub(crate) struct Table {
    bytes: Vec<u8>,
    fragments_left: u64,
}

/// Fragments of the table of `workers` ranks.
pub(crate) const fn fragments(workers: u16, payload_bytes: usize) -> u64 {
    if is_wide(workers) {
        return 1;
    }
    (workers as usize * RECORD_BYTES).div_ceil(payload_bytes) as u64
}

/// Whether the job has more ranks than a table has records.
const fn is_wide(workers: u16) -> bool {
    workers as usize > tally_wire::MAX_WORKERS
}

/// Writes fragment `index` of the table as rank `rank` of `workers` sends it.
pub(crate) fn contribute(
    record: &Record,
    (rank, workers): (u16, u16),
    index: u64,
    payload: &mut [u8],
) {
    payload.fill(0);
    if is_wide(workers) {
        let (own, rest) = payload.split_at_mut(RECORD_BYTES);
        own.copy_from_slice(&record.0);
        rest[..RECORD_BYTES].copy_from_slice(&record.0.map(|byte| !byte));
        return;
    }
    let at = usize::from(rank) * RECORD_BYTES;
    if let Some(at) = at.checked_sub(index as usize * payload.len())
        && at < payload.len()
    {
        payload[at..at + RECORD_BYTES].copy_from_slice(&record.0);
    }
}

impl Table {
    pub(crate) fn new(workers: u16, payload_bytes: usize) -> Self {
        let fragments = fragments(workers, payload_bytes);
        Self {
            bytes: vec![0; fragments as usize * payload_bytes],
            fragments_left: fragments,
        }
    }

    /// Takes the result of fragment `index`, once.
    pub(crate) fn take(&mut self, index: u64, payload: &[u8]) {
        let at = index as usize * payload.len();
        self.bytes[at..at + payload.len()].copy_from_slice(payload);
        self.fragments_left -= 1;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.fragments_left == 0
    }

    /// The records of `workers` ranks.
    fn records(&self, workers: u16) -> impl Iterator<Item = Record> + '_ {
        let (records, _) = self.bytes.as_chunks();
        records[..usize::from(workers)].iter().map(|r| Record(*r))
    }

    /// Looks for ranks that bring something else than `ours`, which is `collective`.
    pub(crate) fn check(
        &self,
        (rank, workers): (u16, u16),
        ours: &Record,
        ticket: u64,
        collective: &Collective,
    ) -> Result<(), Box<Mismatch>> {
        if is_wide(workers) {
            return self.check_wide(rank, ours, ticket, collective);
        }
        if self.records(workers).all(|r| r == *ours) {
            return Ok(());
        }
        let mut groups: Vec<(Record, u64)> = Vec::new();
        for (rank, record) in self.records(workers).enumerate() {
            match groups.iter_mut().find(|(r, _)| *r == record) {
                Some((_, ranks)) => *ranks |= 1 << rank,
                None => groups.push((record, 1 << rank)),
            }
        }
        let name = &collective.name;
        let called = |r: &Record| {
            if r.has_name_of(ours) {
                format!("{r} called {name:?}")
            } else {
                format!("{r} of another name")
            }
        };
        let is_majority = |ranks: u64| 2 * ranks.count_ones() > u32::from(workers);
        let (most, rest): (Vec<_>, Vec<_>) = groups.into_iter().partition(|g| is_majority(g.1));
        let brought = |(record, ranks): &(Record, u64)| (Ranks(*ranks), called(record));
        Err(Box::new(Mismatch {
            ticket,
            ours: called(ours),
            ranks: Ranks(rest.iter().fold(0, |all, g| all | g.1)),
            differing: rest.iter().map(brought).collect(),
            majority: most.first().map(|(record, _)| called(record)),
            unlike: None,
        }))
    }

    /// The same in a job of more than 64 ranks, in which it is not known which rank brings what.
    fn check_wide(
        &self,
        rank: u16,
        ours: &Record,
        ticket: u64,
        collective: &Collective,
    ) -> Result<(), Box<Mismatch>> {
        let mut records = self.records(2);
        let (Some(most), Some(least)) = (records.next(), records.next()) else {
            return Ok(());
        };
        let least = least.0.map(|byte| !byte);
        let fields = [
            (0..1, "the kind"),
            (1..3, "the type of the elements"),
            (3..4, "the root rank"),
            (4..NAME_AT, "the number of elements"),
            (NAME_AT..RECORD_BYTES, "the name"),
        ];
        let differ = |field: &std::ops::Range<usize>| {
            let own = &ours.0[field.clone()];
            most.0[field.clone()] != *own || least[field.clone()] != *own
        };
        let unlike: Vec<_> = fields
            .into_iter()
            .filter(|(field, _)| differ(field))
            .map(|(_, what)| what)
            .collect();
        if unlike.is_empty() {
            return Ok(());
        }
        Err(Box::new(Mismatch {
            ticket,
            ours: format!("{ours} called {:?}", collective.name),
            ranks: Ranks(0),
            differing: Vec::new(),
            majority: None,
            unlike: Some(format!(
                "others differ from rank {rank} in {}",
                unlike.join(" and ")
            )),
        }))
    }
}

/// Ranks of one host that bring different collectives: those outside the majority, or all without
/// one, and what each brings, in words. None if all bring the same. `brought` has the rank, the
/// collective and its bytes.
#[must_use]
pub fn differing(brought: &[(u16, &Collective, usize)]) -> Option<(Vec<u16>, String)> {
    let mut groups: Vec<(Record, &str, Vec<u16>)> = Vec::new();
    for (rank, collective, bytes) in brought {
        let record = Record::new(collective, *bytes);
        match groups.iter_mut().find(|(of, ..)| *of == record) {
            Some((.., ranks)) => ranks.push(*rank),
            None => groups.push((record, &collective.name, vec![*rank])),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    let said: Vec<_> = groups
        .iter()
        .map(|(record, name, ranks)| match ranks[..] {
            [rank] => format!("rank {rank} brings {record} called {name:?}"),
            _ => {
                let ranks: Vec<_> = ranks.iter().map(u16::to_string).collect();
                format!("ranks {} bring {record} called {name:?}", ranks.join(", "))
            }
        })
        .collect();
    let is_majority = |ranks: &[u16]| 2 * ranks.len() > brought.len();
    let minority = groups
        .into_iter()
        .filter(|(.., ranks)| !is_majority(ranks))
        .flat_map(|(.., ranks)| ranks);
    Some((minority.collect(), said.join(", ")))
}

/// Ranks do not bring the same collective. None of its elements was given to anybody.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the workers do not agree on collective {ticket}, here {ours}: {}",
    Brought(.differing, .majority, .unlike)
)]
pub struct Mismatch {
    /// Its number, counted from 0.
    pub ticket: u64,
    /// What this rank brings: kind, elements, type and name.
    pub ours: String,
    /// Those that differ from more than half of all; all ranks, if there is no such majority.
    pub ranks: Ranks,
    /// What these bring.
    pub differing: Vec<(Ranks, String)>,
    /// What more than half of all bring.
    pub majority: Option<String>,
    /// In a job of more than 64 ranks, what differs.
    pub unlike: Option<String>,
}

struct Brought<'a>(
    &'a [(Ranks, String)],
    &'a Option<String>,
    &'a Option<String>,
);

impl fmt::Display for Brought<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(unlike) = self.2 {
            return f.write_str(unlike);
        }
        let mut separator = "";
        for (ranks, what) in self.0 {
            let (s, verb) = match ranks.0.count_ones() {
                1 => ("", "brings"),
                _ => ("s", "bring"),
            };
            write!(f, "{separator}rank{s} {ranks} {verb} {what}")?;
            separator = ", ";
        }
        match self.1 {
            Some(majority) => write!(f, ", all others {majority}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
