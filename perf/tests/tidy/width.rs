//! Comments and docs wrap at 100 columns.
//!
//! Not a line of a table or of a block of code, and not a line without a place to break it: a link,
//! a path.

use super::finding::{Finding, check};
use super::text;

const COLUMNS: usize = 100;

/// What stands in front of a line's text.
fn indentation(line: &str) -> usize {
    let marks = |char: char| char.is_whitespace() || "/!#*->".contains(char);
    line.chars().take_while(|&char| marks(char)).count()
}

fn could_break(line: &str) -> bool {
    let start = indentation(line);
    let head: Vec<char> = line.chars().take(COLUMNS + 1).collect();
    start < head.len() && head[start..].contains(&' ')
}

#[test]
fn comments_and_docs_wrap_at_100_columns() {
    let mut found = Vec::new();
    for text in text::all() {
        let mut in_code = false;
        for (n, (line, prose)) in text.source.lines().zip(text.has_prose()).enumerate() {
            let body = line.trim_start_matches(['/', '!', ' ']);
            in_code ^= prose && body.starts_with("```");
            let width = line.chars().count();
            let table = body.starts_with('|');
            if prose && width > COLUMNS && !in_code && !table && could_break(line) {
                found.push(Finding::new(&text.path, n + 1, format!("{width} columns")));
            }
        }
    }
    check("width", &found);
}
