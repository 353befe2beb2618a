//! What a person reads of a file, by its language.

use std::path::{Path, PathBuf};

use super::files;
use super::rust::Parts;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Language {
    Rust,
    Markdown,
    /// Comments begin with `#`.
    Hash,
    /// Comments begin with `//` or are in `/* */`.
    Slash,
    /// Comments begin with `--`.
    Lua,
}

pub struct Text {
    pub path: PathBuf,
    pub language: Language,
    pub source: String,
}

fn language(path: &Path) -> Option<Language> {
    let Some(extension) = path.extension() else {
        let first = std::fs::read(path).ok()?;
        return first.starts_with(b"#!").then_some(Language::Hash);
    };
    match extension.to_str()? {
        "rs" => Some(Language::Rust),
        "md" => Some(Language::Markdown),
        "py" | "pyi" | "sh" | "toml" | "service" => Some(Language::Hash),
        "sv" | "c" | "h" | "cpp" | "proto" | "vlt" => Some(Language::Slash),
        "lua" => Some(Language::Lua),
        _ => None,
    }
}

/// All texts of the repository.
pub fn all() -> Vec<Text> {
    let text = |path: PathBuf| {
        Some(Text {
            language: language(&path)?,
            source: files::read(&path),
            path,
        })
    };
    let files = files::below(&files::root()).into_iter();
    files.filter_map(text).collect()
}

impl Text {
    /// Whether each line has a part of a comment, of a docstring or of prose in it.
    pub fn has_prose(&self) -> Vec<bool> {
        let lines = self.source.lines();
        match self.language {
            Language::Rust | Language::Slash => {
                let comments = Parts::new(&self.source).comments;
                comments
                    .lines()
                    .map(|line| !line.trim().is_empty())
                    .collect()
            }
            Language::Markdown => vec![true; lines.count()],
            Language::Lua => lines.map(|line| line.contains("--")).collect(),
            Language::Hash => {
                // Of a string that begins a statement, else of one that is a value.
                let (mut docstring, mut value) = (false, false);
                let has = |line: &str| {
                    let odd = line.matches("\"\"\"").count() % 2 == 1;
                    let line = line.trim_start();
                    let inside = docstring || !value && line.starts_with("\"\"\"");
                    if odd && (docstring || value) {
                        (docstring, value) = (false, false);
                    } else if odd {
                        (docstring, value) = (inside, !inside);
                    }
                    let comment = line.starts_with('#') || line.contains("  # ");
                    inside || comment && !line.ends_with("# fmt: skip")
                };
                lines.map(has).collect()
            }
        }
    }
}
