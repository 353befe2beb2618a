//! The switch's log: lines on standard error, by a thread of its own.
//!
//! A thread puts its line into a bounded queue and returns; another thread writes the lines. So a
//! log that is not read (a full pipe) stops that thread alone, and one that is closed stops none.
//! What does not fit the queue is lost, and counted: the next line that is written says how many.
//!
//! Lines have a kind, and each kind may say `BURST` lines at once and then one each `EVERY`. Others
//! are left out, and their number is told as soon as the kind may speak again. What hosts cause by
//! sending or calling can so fill no disk.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lines of one kind at once.
const BURST: u32 = 16;
/// As long between two lines of a kind that says more.
const EVERY: Duration = Duration::from_secs(1);
/// Lines that wait to be written.
const QUEUE: usize = 1024;

struct Log {
    queue: Sender<(&'static str, String)>,
    taken: AtomicU64,
    done: AtomicU64,
    lost: AtomicU64,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Has a line written, and does not wait for it. `kind` names what lines are counted together.
pub fn line(kind: &'static str, text: impl Into<String>) {
    let log = LOG.get_or_init(start);
    log.taken.fetch_add(1, Ordering::Relaxed);
    if log.queue.try_send((kind, text.into())).is_err() {
        log.lost.fetch_add(1, Ordering::Relaxed);
        log.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until all lines are written, but no longer than `patience`: for the end of the process.
pub fn flush(patience: Duration) {
    let Some(log) = LOG.get() else { return };
    let start = Instant::now();
    while log.done.load(Ordering::Relaxed) < log.taken.load(Ordering::Relaxed)
        && start.elapsed() < patience
    {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says panics in the log, whose other way would be to wait for a full pipe.
pub fn take_panics() {
    std::panic::set_hook(Box::new(|what| line("panic", what.to_string())));
}

fn start() -> Log {
    let (queue, lines) = bounded(QUEUE);
    // A descriptor of its own: the standard library's has a lock, on which others would wait.
    if let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() {
        // Without a thread there is no log, and the switch keeps running.
        let _ = std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write(&lines, &mut File::from(stderr)));
    }
    Log {
        queue,
        taken: AtomicU64::new(0),
        done: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    }
}

fn write(lines: &Receiver<(&'static str, String)>, to: &mut impl Write) {
    let mut limiter = Limiter::default();
    loop {
        let mut out = String::new();
        let taken = match lines.recv_timeout(EVERY) {
            Ok((kind, text)) => {
                limiter.say(Instant::now(), kind, &text, &mut out);
                1
            }
            Err(RecvTimeoutError::Timeout) => 0,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        limiter.report(Instant::now(), &mut out);
        let log = LOG.get();
        let lost = log.map_or(0, |log| log.lost.swap(0, Ordering::Relaxed));
        if lost > 0 {
            out.push_str(&format!(
                "tally-switch: {lost} lines were lost, because the log was not read\n"
            ));
        }
        // A reader that has gone misses them.
        let _ = to.write_all(out.as_bytes());
        if let Some(log) = log {
            log.done.fetch_add(taken, Ordering::Relaxed);
        }
    }
}

/// How many lines a kind may say.
#[derive(Default)]
struct Limiter(BTreeMap<&'static str, Bucket>);

struct Bucket {
    left: u32,
    /// Since when `left` is what it is.
    since: Instant,
    untold: u64,
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let more = now.duration_since(self.since).as_secs() / EVERY.as_secs();
        if more > 0 {
            self.left = BURST.min(self.left.saturating_add(more as u32));
            self.since = now;
        }
    }
}

impl Limiter {
    /// Adds a line to `out` if its kind may say it.
    fn say(&mut self, now: Instant, kind: &'static str, text: &str, out: &mut String) {
        let bucket = self.0.entry(kind).or_insert(Bucket {
            left: BURST,
            since: now,
            untold: 0,
        });
        bucket.fill(now);
        if bucket.left == 0 {
            bucket.untold += 1;
            return;
        }
        bucket.left -= 1;
        if bucket.left == 0 {
            bucket.since = now;
        }
        out.push_str(&format!("tally-switch: {text}\n"));
    }

    /// Adds how many lines were left out, of kinds that may speak again.
    fn report(&mut self, now: Instant, out: &mut String) {
        for (kind, bucket) in &mut self.0 {
            bucket.fill(now);
            if bucket.untold > 0 && bucket.left > 0 {
                bucket.left -= 1;
                let untold = std::mem::take(&mut bucket.untold);
                out.push_str(&format!(
                    "tally-switch: {untold} more lines of the kind `{kind}` were left out\n"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_says_too_much_is_cut_short_and_its_lines_are_counted() {
        let mut limiter = Limiter::default();
        let start = Instant::now();
        let mut out = String::new();
        for n in 0..500 {
            let at = start + Duration::from_millis(n);
            limiter.say(at, "refused", &format!("call {n}"), &mut out);
            limiter.report(at, &mut out);
        }
        assert_eq!(out.lines().count(), 16, "{out}");
        assert!(out.ends_with("tally-switch: call 15\n"), "{out}");
        // Others are not its kind.
        out.clear();
        limiter.say(
            start + Duration::from_millis(500),
            "session",
            "one",
            &mut out,
        );
        assert_eq!(out, "tally-switch: one\n");
        // Its number is told though it has nothing more to say.
        out.clear();
        let later = start + Duration::from_millis(1600);
        limiter.report(later, &mut out);
        assert_eq!(
            out,
            "tally-switch: 484 more lines of the kind `refused` were left out\n"
        );
        out.clear();
        limiter.say(later, "refused", "too early", &mut out);
        assert_eq!(out, "");
        limiter.say(later + EVERY * 60, "refused", "later", &mut out);
        assert_eq!(out, "tally-switch: later\n");
    }

    #[test]
    fn unread_lines_stop_no_thread() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (queue, lines) = bounded(4);
        let thread = std::thread::spawn(move || {
            let mut writer = writer;
            write(&lines, &mut writer);
        });
        // More than a pipe holds, so the writer stands still; who speaks does not.
        let long = "x".repeat(40_000);
        let start = Instant::now();
        let mut lost = 0;
        for _ in 0..100 {
            lost += u32::from(queue.try_send(("long", long.clone())).is_err());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(lost > 50, "{lost}");
        // It will never be read: the writer lives on, and ends with the switch.
        drop(reader);
        drop(queue);
        thread.join().unwrap();
    }
}
