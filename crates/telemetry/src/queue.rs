//! Events on their way to the writer's thread.
//!
//! A thread of its own writes them, so that a reader that does not read (a full pipe, a stopped
//! terminal, a journal that hangs) stops no other thread. Events that find the queue full are
//! dropped and counted; their number is told once lines can be written again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Events that may wait.
pub(crate) const LENGTH: usize = 1024;

/// Events that wait to be written.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// There is an event.
    filled: Condvar,
    /// There is none, and all are written.
    written: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// Events dropped since the last one that was written.
    dropped: u64,
    /// Events dropped since the start.
    dropped_ever: u64,
    /// Whether the writer has taken something that is not written yet.
    is_writing: bool,
}

impl<T> State<T> {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.dropped == 0 && !self.is_writing
    }
}

/// What the writer is to write next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// This event.
    Event(T),
    /// That this number of events was dropped.
    Dropped(u64),
    /// Nothing within the time.
    Nothing,
}

impl<T> Queue<T> {
    /// Without events.
    pub(crate) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                dropped: 0,
                dropped_ever: 0,
                is_writing: false,
            }),
            filled: Condvar::new(),
            written: Condvar::new(),
        }
    }

    /// Adds an event, or drops it. Does not wait.
    pub(crate) fn push(&self, event: T) {
        let mut state = self.state();
        if state.waiting.len() < LENGTH && state.dropped == 0 {
            state.waiting.push_back(event);
        } else {
            state.dropped += 1;
            state.dropped_ever += 1;
        }
        self.filled.notify_one();
    }

    /// The next one, after waiting for it no longer than `most`. What was taken before is written.
    pub(crate) fn next(&self, most: Duration) -> Next<T> {
        let deadline = Instant::now() + most;
        let mut state = self.state();
        state.is_writing = false;
        loop {
            // In order: what was dropped comes behind the events that the queue took.
            let next = match state.waiting.pop_front() {
                Some(event) => Some(Next::Event(event)),
                None if state.dropped > 0 => {
                    Some(Next::Dropped(std::mem::take(&mut state.dropped)))
                }
                None => None,
            };
            if let Some(next) = next {
                state.is_writing = true;
                return next;
            }
            self.written.notify_all();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Nothing;
            }
            let waited = self.filled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until all events are written, but not longer than `most`.
    pub(crate) fn flush(&self, most: Duration) {
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

    /// Events dropped since the start.
    pub(crate) fn dropped_ever(&self) -> u64 {
        self.state().dropped_ever
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::sync::Arc;

    #[test]
    fn unread_events_stop_no_thread_and_are_counted() {
        let queue = Arc::new(Queue::new());
        let (reader, mut writer) = std::io::pipe().unwrap();
        let in_thread = Arc::clone(&queue);
        std::thread::spawn(move || {
            loop {
                let line: String = match in_thread.next(Duration::from_secs(60)) {
                    Next::Event(line) => line,
                    Next::Dropped(n) => format!("{n} dropped\n"),
                    Next::Nothing => continue,
                };
                let _ = writer.write_all(line.as_bytes());
            }
        });
        let began = Instant::now();
        // Far more than a pipe and the queue hold.
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
        assert!(told >= LENGTH as u64 && dropped > 0);
        assert_eq!(queue.dropped_ever(), dropped);
        queue.flush(Duration::from_secs(10));
        queue.push("0 later\n".into());
        assert_eq!(lines.next().unwrap().unwrap(), "0 later");
    }
}
