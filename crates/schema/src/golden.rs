//! What JSON a type reads and writes, held against files in `golden/`.
//!
//! Keys and values there are what operators' tools and other programs rely on.

use serde::Serialize;
use serde::de::DeserializeOwned;
use simd_json::OwnedValue;
use std::fmt::{Debug, Display};

/// That `text` is exactly what the `T` read from it writes. Returns the value.
#[track_caller]
pub(crate) fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &str) -> T {
    let read: T = parse(text);
    let written = write(&read);
    assert_eq!(parse::<T>(&written), read, "what was written is read again");
    assert_eq!(parse::<OwnedValue>(&written), parse::<OwnedValue>(text));
    read
}

#[track_caller]
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> T {
    simd_json::from_slice(&mut text.as_bytes().to_vec()).unwrap()
}

pub(crate) fn write(value: &impl Serialize) -> String {
    simd_json::to_string(value).unwrap()
}

/// The names of an enum's values: the same in JSON and in lines for people.
#[track_caller]
pub(crate) fn names<T: Serialize + Display>(all: impl IntoIterator<Item = T>) -> Vec<String> {
    let name = |value: T| {
        let text = simd_json::to_string(&value).unwrap();
        assert_eq!(text, format!("\"{value}\""));
        value.to_string()
    };
    all.into_iter().map(name).collect()
}
