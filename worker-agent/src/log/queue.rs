//! Lines of the log on their way to standard error.
//!
//! A thread of its own writes them, so that a reader that does not read (a pipe that is full, a
//! terminal that is stopped) holds up nothing else. What there is no room for is dropped, counted,
//! and told once lines can be written again.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that may wait.
const LINES_MAX: usize = 1024;

/// Lines that wait to be written.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is a line.
    filled: Condvar,
    /// There is none, and all are written.
    written: Condvar,
}

#[derive(Debug)]
struct State {
    lines: VecDeque<String>,
    /// Lines that there was no room for since the last one that was written.
    dropped: u64,
    /// Whether the writer has taken something that is not written yet.
    is_writing: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0 && !self.is_writing
    }
}

impl Queue {
    /// Without lines.
    pub(super) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                lines: VecDeque::new(),
                dropped: 0,
                is_writing: false,
            }),
            filled: Condvar::new(),
            written: Condvar::new(),
        }
    }

    /// Adds a line, or drops it. Doesn't wait.
    pub(super) fn push(&self, line: String) {
        let mut state = self.state();
        if state.lines.len() < LINES_MAX && state.dropped == 0 {
            state.lines.push_back(line);
        } else {
            state.dropped += 1;
        }
        self.filled.notify_one();
    }

    /// Writes lines for as long as the program runs; `dropped` makes one that says how many are
    /// missing.
    pub(super) fn write_to(&self, mut out: impl Write, dropped: impl Fn(u64) -> String) -> ! {
        loop {
            let line = self.next(&dropped);
            // No reader is left, and none to report that to.
            let _ = out.write_all(line.as_bytes());
            let mut state = self.state();
            state.is_writing = false;
            if state.is_idle() {
                self.written.notify_all();
            }
        }
    }

    fn next(&self, dropped: impl Fn(u64) -> String) -> String {
        let mut state = self.state();
        loop {
            // In order: what was dropped comes behind what there was room for.
            let line = match state.lines.pop_front() {
                None if state.dropped > 0 => Some(dropped(std::mem::take(&mut state.dropped))),
                line => line,
            };
            if let Some(line) = line {
                state.is_writing = true;
                return line;
            }
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all lines are written, but not longer than `most`.
    pub(super) fn flush(&self, most: Duration) {
        let deadline = Instant::now() + most;
        let mut state = self.state();
        while !state.is_idle() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.written.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::sync::Arc;

    #[test]
    fn unread_lines_are_dropped_and_counted() {
        let queue = Arc::new(Queue::new());
        let (reader, writer) = std::io::pipe().unwrap();
        let in_thread = queue.clone();
        std::thread::spawn(move || in_thread.write_to(writer, |n| format!("{n} dropped\n")));
        let began = Instant::now();
        // Far more than a pipe and the queue have room for.
        const LINES: u64 = 20_000;
        for n in 0..LINES {
            queue.push(format!("{n} {}\n", "x".repeat(100)));
        }
        queue.flush(Duration::from_millis(50));
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "it waited for the reader"
        );
        let (mut told, mut dropped) = (0, 0);
        let mut lines = BufReader::new(reader).lines();
        while told + dropped < LINES {
            let line = lines.next().unwrap().unwrap();
            let (number, what) = line.split_once(' ').unwrap();
            let number: u64 = number.parse().unwrap();
            if what == "dropped" {
                dropped += number;
            } else {
                assert_eq!(number, told, "in order");
                told += 1;
            }
        }
        assert!(told >= LINES_MAX as u64 && dropped > 0);
        queue.flush(Duration::from_secs(10));
        queue.push("0 again\n".into());
        assert_eq!(lines.next().unwrap().unwrap(), "0 again");
    }
}
