//! Keys of jobs, which are shown in configurations only: `#[serde(with = "crate::key")]`.

use crate::{hex, text};
use serde::{Deserializer, Serializer};
use tally_wire::Key;

pub(crate) fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&hex::Hex(key.as_bytes()))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
    text::deserialize(deserializer)
}
