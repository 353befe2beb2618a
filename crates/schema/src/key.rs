//! Keys of jobs, which are shown in configurations only: `#[serde(with = "tally_schema::key")]`.

use crate::{hex, text};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tally_wire::Key;

/// Writes the digits.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&hex::Hex(key.as_bytes()))
}

/// Reads the digits.
///
/// # Errors
/// What is no key.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
    text::deserialize(deserializer)
}

/// A key that need not be there: `#[serde(with = "tally_schema::key::option")]`.
pub mod option {
    use super::{Deserialize, Deserializer, Key, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Text(#[serde(with = "super")] Key);

    /// Writes the digits, or nothing.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(key: &Option<Key>, serializer: S) -> Result<S::Ok, S::Error> {
        key.clone().map(Text).serialize(serializer)
    }

    /// Reads the digits, or nothing.
    ///
    /// # Errors
    /// What is no key.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Key>, D::Error> {
        let text = Option::<Text>::deserialize(deserializer)?;
        Ok(text.map(|Text(key)| key))
    }
}

/// How a key looks in a schema.
pub struct KeyText;

/// The digits of a key.
pub(crate) const PATTERN: &str = "^([0-9a-fA-F]{2}){16,64}$";

impl schemars::JsonSchema for KeyText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Key".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": PATTERN})
    }
}
