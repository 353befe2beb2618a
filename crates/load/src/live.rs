//! The live view: a line a second on standard error, from a thread of its own. On a terminal the
//! line is rewritten in place.
//!
//! The generator only hands over a snapshot. The catch: the thread needs a CPU for some
//! microseconds each second. On a machine without a free one it takes the generator's or the
//! switch's.

use super::measure::{Counts, Percentiles, histogram};
use hdrhistogram::Histogram;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Snapshots that may wait; more are dropped.
const WAITING_MAX: usize = 4;

/// What happened since the last snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Since the load began.
    pub seconds: f64,
    /// How long it covers.
    pub span_s: f64,
    /// All jobs.
    pub counts: Counts,
    /// Frame bits that were sent.
    pub sent_bits: f64,
    /// Payload bits that a worker of each job got summed.
    pub goodput_bits: f64,
    /// Corrected latencies, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Share of the time in which the generator was idle.
    pub idle_share: f64,
}

impl Snapshot {
    fn line(&self) -> String {
        let p = Percentiles::of(&self.latency_ns);
        let c = &self.counts;
        let share = |n: u64| 100.0 * n as f64 / c.results.max(1) as f64;
        format!(
            "{:>6.1} s  {:>7.3} Mpps {:>7.2} Gbit/s in, goodput {:>6.2} Gbit/s, p50 {:.1} p99 {:.1} us, \
             again {} lost {}, collided {:.1} % by PS {:.1} %, idle {:.0} %",
            self.seconds,
            c.frames_sent as f64 / self.span_s / 1e6,
            self.sent_bits / self.span_s / 1e9,
            self.goodput_bits / self.span_s / 1e9,
            p.p50,
            p.p99,
            c.frames_again,
            c.lost,
            share(c.collided),
            share(c.from_ps),
            100.0 * self.idle_share,
        )
    }
}

/// The view, until it is dropped.
pub struct Live {
    // Dropped before the thread is waited for.
    snapshots: Option<SyncSender<Snapshot>>,
    thread: Option<JoinHandle<()>>,
    /// Latencies since the last snapshot.
    pub latency_ns: Histogram<u64>,
}

impl Live {
    /// Begins to show.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn start() -> std::io::Result<Self> {
        let (snapshots, receiver) = sync_channel::<Snapshot>(WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("live".into())
            .spawn(move || {
                let mut out = std::io::stderr();
                let is_terminal = out.is_terminal();
                let mut shown = false;
                for snapshot in receiver {
                    let line = snapshot.line();
                    // A reader that went away is no reason to stop a load.
                    let _ = if is_terminal {
                        write!(out, "\r{line}\x1b[K")
                    } else {
                        writeln!(out, "{line}")
                    };
                    shown = true;
                }
                if is_terminal && shown {
                    let _ = writeln!(out);
                }
            })?;
        Ok(Self {
            snapshots: Some(snapshots),
            thread: Some(thread),
            latency_ns: histogram(),
        })
    }

    /// Shows it, unless the view is behind.
    pub fn show(&mut self, snapshot: Snapshot) {
        self.latency_ns.reset();
        if let Some(snapshots) = &self.snapshots {
            let _ = snapshots.try_send(snapshot);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(self.snapshots.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_happened_in_its_second() {
        let mut latency_ns = histogram();
        latency_ns.record(10_000).unwrap();
        let snapshot = Snapshot {
            seconds: 3.0,
            span_s: 0.5,
            counts: Counts {
                frames_sent: 1_000_000,
                results: 200,
                collided: 10,
                lost: 1,
                ..Counts::default()
            },
            sent_bits: 4e9,
            goodput_bits: 1e9,
            latency_ns,
            idle_share: 0.25,
        };
        let line = snapshot.line();
        for part in [
            "2.000 Mpps",
            "8.00 Gbit/s in",
            "2.00 Gbit/s,",
            "p50 10.0",
            "lost 1,",
            "collided 5.0 %",
            "idle 25 %",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
    }

    #[test]
    fn it_ends_with_its_owner_also_when_nothing_was_shown() {
        drop(Live::start().unwrap());
    }
}
