//! Values that JSON shows as their text: `#[serde(with = "text")]`.

use serde::{Deserialize, Deserializer, Serializer, de};
use std::fmt::Display;
use std::str::FromStr;

pub(crate) fn serialize<S: Serializer>(
    value: &impl Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}
