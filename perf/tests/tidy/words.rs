//! Words that we do not use, and the ones in their place.
//!
//! In comments, docs, string literals and names. Words that are right in another meaning (turn,
//! place, room) are not here: a reader has to find those.

use super::finding::{Finding, check};
use super::rust::Parts;
use super::text::{self, Language, Text};

/// Phrases, by word. A `*` ends a phrase of which any other word may follow but a noun: `as many *`
/// is what "as many as cores" has and "as many queues as cores" does not.
const PHRASES: [(&str, &str); 27] = [
    ("nobody", "no + noun"),
    ("somebody", "a + noun"),
    ("whoever", "the noun"),
    ("whatever", "the noun"),
    ("what is not", "the noun"),
    ("for ever", "without limit"),
    ("forever", "without limit"),
    ("goes on", "resumes, continues"),
    ("go on", "resume, continue"),
    ("went on", "resumed, continued"),
    ("by now", "the time"),
    ("as many *", "the number"),
    ("so many *", "the number"),
    ("roll call", "confirmation round"),
    ("roll calls", "confirmation rounds"),
    ("sign of life", "heartbeat"),
    ("signs of life", "heartbeats"),
    ("narrow element", "sub-32-bit type"),
    ("narrow elements", "sub-32-bit types"),
    ("drive out", "evict"),
    ("drives out", "evicts"),
    ("drove out", "evicted"),
    ("driven out", "evicted"),
    ("drives it out", "evicts it"),
    ("drive it out", "evict it"),
    ("drive_out", "evict"),
    ("sees life", "receives a heartbeat"),
];

/// Words after which "as many" and "so many" are no longer in front of their noun.
const NO_NOUNS: [&str; 16] = [
    "", "as", "of", "at", "in", "are", "is", "and", "or", "to", "for", "with", "again", "more",
    "that", "can",
];

/// Names in Rust code.
const NAMES: [(&str, &str); 21] = [
    ("Again", "Retransmit"),
    ("Asker", "StatusClient"),
    ("Elsewhere", "SentToPs"),
    ("Kept", "result cache"),
    ("Knock", "PendingPeer"),
    ("Newcomer", "PendingProcess"),
    ("Patience", "timeout"),
    ("Reins", "CoreHandle"),
    ("Seat", "membership"),
    ("Standing", "ResultState"),
    ("Station", "host address"),
    ("pop_again", "pop_retransmit"),
    ("comes_back", "recoverable"),
    ("depart", "transmit"),
    ("dress", "write_headers"),
    ("hear", "receive"),
    ("judge", "validate"),
    ("obey", "poll_commands"),
    ("settle", "aggregate"),
    ("take_own", "receive_local"),
    ("tell", "notify"),
];

/// A word, or the empty string between two sentences, with its line.
type Word<'a> = (usize, &'a str);

/// The words of a text; marks of comments are none, and a line without text ends a sentence.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let in_word = |char: char| char.is_alphanumeric() || char == '_' || char == '\'';
    for (n, line) in text.lines().enumerate() {
        let line = line
            .trim()
            .trim_start_matches(['/', '!', '#', '*', '-', '>', ' ']);
        if line.is_empty() {
            words.push((n + 1, ""));
        }
        let mut rest = line;
        while let Some(start) = rest.find(in_word) {
            if rest[..start].contains(|char: char| !char.is_whitespace()) {
                words.push((n + 1, ""));
            }
            let tail = &rest[start..];
            let end = tail.find(|char| !in_word(char)).unwrap_or(tail.len());
            words.push((n + 1, &tail[..end]));
            rest = &tail[end..];
        }
        if rest.contains(|char: char| !char.is_whitespace() && char != '\\') {
            words.push((n + 1, ""));
        }
    }
    words
}

fn starts_with(words: &[Word<'_>], phrase: &str) -> bool {
    phrase.split(' ').enumerate().all(|(at, part)| {
        let word = words.get(at).map_or("", |(_, word)| word);
        if part == "*" {
            NO_NOUNS.contains(&word.to_lowercase().as_str())
        } else {
            word.eq_ignore_ascii_case(part)
        }
    })
}

fn phrases(text: &Text, part: &str, found: &mut Vec<Finding>) {
    let words = words(part);
    for at in 0..words.len() {
        for (phrase, instead) in PHRASES {
            if starts_with(&words[at..], phrase) {
                let what = format!("\"{phrase}\"; write {instead}");
                found.push(Finding::new(&text.path, words[at].0, what));
            }
        }
    }
}

fn names(text: &Text, code: &str, found: &mut Vec<Finding>) {
    for (line, word) in words(code) {
        for (name, instead) in NAMES {
            if word == name {
                let what = format!("`{name}`; write {instead}");
                found.push(Finding::new(&text.path, line, what));
            }
        }
    }
}

#[test]
fn words_are_those_that_the_field_knows() {
    let mut found = Vec::new();
    for text in text::all() {
        if text.path.ends_with(file!()) {
            continue;
        }
        if text.language == Language::Rust {
            let parts = Parts::new(&text.source);
            phrases(&text, &parts.comments, &mut found);
            phrases(&text, &parts.strings, &mut found);
            // A test's name is a sentence.
            phrases(&text, &parts.code.replace('_', " "), &mut found);
            names(&text, &parts.code, &mut found);
        } else {
            phrases(&text, &text.source, &mut found);
        }
    }
    check("words", &found);
}

#[test]
fn a_phrase_is_found_across_lines() {
    let has = |text: &str, phrase: &str| {
        let words = words(text);
        (0..words.len()).any(|at| starts_with(&words[at..], phrase))
    };
    assert!(has("/// It goes\n/// on.", "goes on"));
    assert!(!has("/// It goes.\n\n/// On", "goes on"));
    assert!(!has("/// It goes.\n/// On", "goes on"));
    assert!(has("as many as cores", "as many *"));
    assert!(has("there are as many.", "as many *"));
    assert!(!has("as many queues as cores", "as many *"));
}
