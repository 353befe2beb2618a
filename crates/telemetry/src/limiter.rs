//! How many events of a kind may be said.
//!
//! A key is a kind, and the reason and the port where the event has them. So a flood of one refusal
//! at one port hides no other refusal, and no other port's. Each key may say [`BURST`] events at
//! once and then one each [`EVERY`]. Others are left out; their number is told as soon as the key
//! may speak again. What hosts cause by sending or calling fills no disk.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Events of one key at once.
pub(crate) const BURST: u32 = 16;
/// Time between two events of a key that says more.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// Keys that are told apart. Further ones are limited together, by kind.
pub(crate) const KEYS: usize = 1024;

/// What is limited together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The kind.
    pub(crate) kind: String,
    /// The reason, or empty.
    pub(crate) reason: String,
    /// The port, or empty.
    pub(crate) port: String,
}

impl Key {
    fn of_kind(&self) -> Self {
        Self {
            kind: self.kind.clone(),
            reason: String::new(),
            port: String::new(),
        }
    }

    /// That `n` events were left out.
    pub(crate) fn left_out(&self, n: u64) -> String {
        let mut text = format!("{n} more lines of the kind `{}`", self.kind);
        for (name, value) in [("reason", &self.reason), ("port", &self.port)] {
            if !value.is_empty() {
                text.push_str(&format!(", {name} `{value}`"));
            }
        }
        text + " were left out"
    }
}

#[derive(Debug, Default)]
pub(crate) struct Limiter(BTreeMap<Key, Bucket>);

#[derive(Debug)]
struct Bucket {
    left: u32,
    /// Since when `left` is what it is.
    since: Instant,
    untold: u64,
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let more = now.saturating_duration_since(self.since).as_secs() / EVERY.as_secs();
        if more > 0 {
            self.left = BURST.min(self.left.saturating_add(more.min(u64::from(BURST)) as u32));
            self.since = now;
        }
    }

    fn is_full(&self) -> bool {
        self.left == BURST && self.untold == 0
    }
}

impl Limiter {
    /// Whether an event of this key may be said; counts it if not.
    pub(crate) fn may_say(&mut self, now: Instant, mut key: Key) -> bool {
        if !self.0.contains_key(&key) && self.0.len() >= KEYS {
            self.forget(now);
            if self.0.len() >= KEYS {
                key = key.of_kind();
            }
        }
        let bucket = self.0.entry(key).or_insert(Bucket {
            left: BURST,
            since: now,
            untold: 0,
        });
        bucket.fill(now);
        if bucket.left == 0 {
            bucket.untold += 1;
            return false;
        }
        bucket.left -= 1;
        if bucket.left == 0 {
            bucket.since = now;
        }
        true
    }

    /// How many events were left out, of keys that may speak again.
    pub(crate) fn left_out(&mut self, now: Instant) -> Vec<(Key, u64)> {
        let mut told = Vec::new();
        for (key, bucket) in &mut self.0 {
            bucket.fill(now);
            if bucket.untold > 0 && bucket.left > 0 {
                bucket.left -= 1;
                told.push((key.clone(), std::mem::take(&mut bucket.untold)));
            }
        }
        told
    }

    /// Keys that have said nothing for long begin anew when they speak.
    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, bucket| {
            bucket.fill(now);
            !bucket.is_full()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str, reason: &str, port: &str) -> Key {
        Key {
            kind: kind.into(),
            reason: reason.into(),
            port: port.into(),
        }
    }

    #[test]
    fn a_flood_is_cut_short_counted_and_hides_no_other() {
        let mut limiter = Limiter::default();
        let start = Instant::now();
        let flood = || key("refused", "bad-key", "p0");
        let mut said = 0;
        for n in 0..500 {
            let at = start + Duration::from_millis(n);
            said += u32::from(limiter.may_say(at, flood()));
            assert_eq!(limiter.left_out(at), []);
        }
        assert_eq!(said, BURST);
        let at = start + Duration::from_millis(500);
        for other in [
            key("refused", "bad-key", "p1"),
            key("refused", "unknown-job", "p0"),
            key("joined", "", "p0"),
        ] {
            assert!(limiter.may_say(at, other));
        }
        // Its number is told though it has nothing more to say.
        let later = start + Duration::from_millis(1600);
        assert_eq!(limiter.left_out(later), [(flood(), 484)]);
        assert!(!limiter.may_say(later, flood()), "too early");
        assert!(limiter.may_say(later + EVERY * 60, flood()));
    }

    #[test]
    fn the_number_of_keys_has_a_bound() {
        let mut limiter = Limiter::default();
        let start = Instant::now();
        for n in 0..KEYS * 4 {
            limiter.may_say(start, key("k", &n.to_string(), ""));
        }
        assert!(limiter.0.len() <= KEYS + 1, "{}", limiter.0.len());
        // Once they are quiet, others are told apart again.
        assert!(limiter.may_say(start + EVERY * 60, key("k", "new", "")));
        assert!(limiter.0.contains_key(&key("k", "new", "")));
    }

    #[test]
    fn the_line_names_what_the_key_has() {
        let text = |key: Key| key.left_out(3);
        assert_eq!(
            text(key("end", "", "")),
            "3 more lines of the kind `end` were left out"
        );
        assert_eq!(
            text(key("refused", "bad-key", "p0")),
            "3 more lines of the kind `refused`, reason `bad-key`, port `p0` were left out"
        );
    }
}
