//! Counters of collectives that another library did in place of Tally.
//!
//! A process reports them to its agent for `tally-agent status`. Both sides keep at most
//! [`KINDS_MAX`] kinds, so that neither can make the other's memory grow.

use std::collections::BTreeMap;

/// The longest name of a kind of collective, in bytes.
pub const KIND_BYTES_MAX: usize = 32;
/// Kinds that are counted apart, [`OTHER_KIND`] among them.
pub const KINDS_MAX: usize = 32;
/// The kind of all collectives beyond [`KINDS_MAX`].
pub const OTHER_KIND: &str = "other";

/// Whether `kind` is the name of a kind: 1 to 32 ASCII letters, digits, `_`, `-` and `.`.
pub(crate) fn is_kind(kind: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=KIND_BYTES_MAX).contains(&kind.len()) && kind.bytes().all(is_good)
}

/// Numbers of collectives by kind, of a bounded number of kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks(BTreeMap<String, u64>);

impl Fallbacks {
    /// Adds collectives of a kind. Kinds beyond [`KINDS_MAX`] count as [`OTHER_KIND`].
    pub fn add(&mut self, kind: &str, count: u64) {
        if count == 0 {
            return;
        }
        let named = self.0.len() - usize::from(self.0.contains_key(OTHER_KIND));
        let is_known = self.0.contains_key(kind) || named < KINDS_MAX - 1;
        let kind = if is_known { kind } else { OTHER_KIND };
        if let Some(all) = self.0.get_mut(kind) {
            *all = all.saturating_add(count);
        } else {
            self.0.insert(kind.to_owned(), count);
        }
    }

    /// The numbers, by kind.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<String, u64> {
        &self.0
    }

    /// Removes those that `send` takes.
    pub(crate) fn send(&mut self, mut send: impl FnMut(&str, u64) -> bool) {
        while let Some(first) = self.0.first_entry() {
            if !send(first.key(), *first.get()) {
                return;
            }
            first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_beyond_the_limit_count_as_other() {
        let mut all = Fallbacks::default();
        for n in 0..1000 {
            all.add(&format!("kind{n:04}"), 2);
        }
        all.add("kind0000", u64::MAX);
        all.add("kind0001", 0);
        assert_eq!(all.counts().len(), KINDS_MAX);
        assert_eq!(all.counts()["kind0000"], u64::MAX);
        assert_eq!(all.counts()["kind0001"], 2);
        assert_eq!(all.counts()[OTHER_KIND], 2 * (1000 - 31));
        // `other` first takes the place of no kind.
        let mut all = Fallbacks::default();
        all.add(OTHER_KIND, 1);
        for n in 0..40 {
            all.add(&format!("kind{n}"), 1);
        }
        assert_eq!(all.counts().len(), KINDS_MAX);
        assert_eq!(all.counts()[OTHER_KIND], 1 + 40 - 31);
    }

    #[test]
    fn unsent_messages_stay() {
        let mut all = Fallbacks::default();
        for kind in ["a", "b", "c"] {
            all.add(kind, 1);
        }
        all.send(|kind, _| kind == "a");
        assert_eq!(all.counts().keys().collect::<Vec<_>>(), ["b", "c"]);
        all.send(|_, count| count == 1);
        assert!(all.counts().is_empty());
    }
}
