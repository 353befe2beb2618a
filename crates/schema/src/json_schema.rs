//! JSON Schemas of the files that Tally's programs read, for editors and for those who generate
//! files.
//!
//! They are made from the types that read the files. What only a check of the values finds, such as
//! a CPU given twice, is not in them.

use crate::agent::config::{AgentConfig, PsConfig, WorkerConfig};
use crate::key::PATTERN;
use crate::switch::config::Config;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, generate::SchemaSettings, json_schema};
use std::fmt;
use std::str::FromStr;

/// A file that a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Of `tally-switch`.
    Switch,
    /// Of `tally-agent serve`.
    Agent,
    /// Of `tally-agent ps`.
    Ps,
    /// Of `tally-agent allreduce`.
    Worker,
}

impl File {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Switch, Self::Agent, Self::Ps, Self::Worker];

    /// Its schema as JSON.
    #[must_use]
    pub fn schema(self) -> String {
        match self {
            Self::Switch => text::<Config>("tally-switch"),
            Self::Agent => text::<AgentConfig>("tally-agent serve"),
            Self::Ps => text::<PsConfig>("tally-agent ps"),
            Self::Worker => text::<WorkerConfig>("tally-agent allreduce"),
        }
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Switch => "switch",
            Self::Agent => "agent",
            Self::Ps => "ps",
            Self::Worker => "worker",
        })
    }
}

impl FromStr for File {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|it| it.to_string() == name);
        found.ok_or_else(|| format!("found `{name}`, expected switch, agent, ps or worker"))
    }
}

fn text<T: JsonSchema>(program: &str) -> String {
    of::<T>(&format!("Configuration of {program}"))
}

/// The schema of a file that is read into a `T`, as JSON.
#[must_use]
pub fn of<T: JsonSchema>(title: &str) -> String {
    let settings = SchemaSettings::draft2020_12().with_transform(KeyFiles);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".into(), title.into());
    format!("{:#}\n", schema.as_value())
}

/// Adds `key_file` beside each key: one of the two is there.
#[derive(Clone)]
struct KeyFiles;

impl Transform for KeyFiles {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(properties) = schema
            .get_mut("properties")
            .and_then(|it| it.as_object_mut())
        else {
            return;
        };
        let is_key = |it: &serde_json::Value| {
            let pattern =
                |it: &serde_json::Value| it.get("pattern").is_some_and(|it| it == PATTERN);
            let any = it.get("anyOf").and_then(|it| it.as_array());
            pattern(it) || any.is_some_and(|all| all.iter().any(pattern))
        };
        let keys = properties.iter().filter(|(_, it)| is_key(it));
        let keys: Vec<_> = keys.map(|(name, _)| name.clone()).collect();
        for key in &keys {
            let file = json_schema!({
                "type": "string", "minLength": 1,
                "description": "File with the digits of the key, readable by its owner alone: the name of a \
                                credential of systemd, or a path relative to this file's folder."
            });
            properties.insert(format!("{key}_file"), file.to_value());
        }
        let required = schema.get_mut("required").and_then(|it| it.as_array_mut());
        let mut choices = Vec::new();
        if let Some(required) = required {
            for key in keys {
                if let Some(at) = required.iter().position(|it| *it == *key) {
                    required.remove(at);
                    choices.push(json_schema!({"oneOf": [
                        {"required": [key]}, {"required": [format!("{key}_file")]}
                    ]}));
                }
            }
        }
        if !choices.is_empty() {
            let choices: Vec<_> = choices.into_iter().map(Schema::to_value).collect();
            schema.insert("allOf".into(), choices.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::parse;
    use simd_json::OwnedValue;
    use simd_json::prelude::*;

    #[test]
    fn each_file_has_a_schema_with_its_keys_and_their_meanings() {
        for file in File::ALL {
            assert_eq!(file.to_string().parse(), Ok(file));
            let schema: OwnedValue = parse(&file.schema());
            assert_eq!(schema["additionalProperties"], false, "{file}");
            let properties = schema["properties"].as_object().unwrap();
            assert!(properties.len() >= 3, "{file}");
        }
        let schema = File::Switch.schema();
        for word in [
            "key_file",
            "Largest window of a worker",
            "no-huge",
            "stats_socket",
        ] {
            assert!(schema.contains(word), "{word}");
        }
        assert!("job".parse::<File>().is_err());
    }
}
