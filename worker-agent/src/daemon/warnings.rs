//! Why a job is slower than it could be, as far as its agent can see it.
//!
//! About once a second [`Watch`] compares a session's counters with those of the second before.
//! Each cause is said when it is first seen, and again once a minute while it lasts; the status has
//! those that hold now.
//!
//! # The catches
//!
//! * A share is taken of at least [`FRAGMENTS_MIN`] fragments: a job that sends less is not slow
//!   because of them.
//! * Fragments are sent again when *any* rank's frames are lost, so the warning appears at all
//!   hosts. Where results came twice nothing was lost, and it is not counted.
//! * A rank is behind when the others have waited for about a second. One that is a little late in
//!   each step is found by the part of its time in which it awaits results (J-11), of which others
//!   have more.

use crate::session::SessionReport;
use std::fs;
use std::time::{Duration, Instant};
use tally_schema::agent::status::{Slowest, ranks_text};

/// Between two comparisons.
const EVERY: Duration = Duration::from_secs(1);
/// Before what lasts is said again.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// What has not been seen for so long holds no more.
const HOLDS_FOR: Duration = Duration::from_secs(5);
/// Of fewer, one that is lost is no share.
const FRAGMENTS_MIN: u64 = 200;
/// Counters are not compared with older ones: a job that computes for long is not blamed for what
/// was.
const COMPARED_FOR: Duration = Duration::from_secs(10);
/// Fragments sent again. With a window of 256 each window then has losses, every one of which costs
/// a round trip or more; a network that is well loses less than one in 10,000.
const LOST_SHARE: f64 = 0.01;
/// Results from the parameter server. As many collisions do not shrink the window either: they are
/// what a shared pool is for (C-3).
const PS_SHARE: f64 = 0.1;
/// A window that is smaller than this part of what it was: the default holds what 100 Gbit/s carry
/// in 20 µs, so this is the rate of a link of a quarter of that.
const WINDOW_PART: u32 = 4;
/// How long ranks are waited for, after the second that it takes to know: more than a checkpoint at
/// one rank may take.
const BEHIND_FOR: Duration = Duration::from_secs(2);
/// By how much more of its time this rank waits than the slowest. As much of the job's time is
/// lost.
const SLOW_SHARE: f64 = 0.15;
/// How long the same rank is the slowest. The shares are of about as long.
const SLOW_FOR: Duration = Duration::from_secs(10);
/// The part of the time in which the thread could run, and had no CPU. Every contribution waits as
/// long.
const NO_CPU_SHARE: f64 = 0.2;

/// Why it is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Lost,
    Ps,
    Links,
    Pool,
    Behind,
    Slow,
    NoCpu,
}

const CAUSES: [Cause; 7] = [
    Cause::Lost,
    Cause::Ps,
    Cause::Links,
    Cause::Pool,
    Cause::Behind,
    Cause::Slow,
    Cause::NoCpu,
];

/// A cause that has been seen.
#[derive(Clone, Debug)]
struct Held {
    words: String,
    seen: Instant,
    said: Instant,
}

/// Looks after one session.
#[derive(Debug, Default)]
pub(super) struct Watch {
    before: Option<Seen>,
    /// By cause.
    held: [Option<Held>; CAUSES.len()],
    /// Since when these ranks have been waited for.
    behind: Option<(Vec<u16>, Instant)>,
    /// Since when this rank has been the slowest by far.
    slow: Option<(u16, Instant)>,
    looked: Option<Instant>,
    /// The largest link window so far: it begins with what the switch serves, which may be less
    /// than is configured.
    window: u32,
}

/// A session's counters at a moment.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    fragments: u64,
    sent_again: u64,
    /// Results that had come before: as many were sent again in vain.
    duplicates: u64,
    from_switch: u64,
    from_ps: u64,
    rounds: u64,
    marked: u64,
    collided: u64,
    collectives: u64,
    host: Host,
}

/// What the kernel says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Host {
    /// How long this thread could run, and had no CPU.
    no_cpu: Option<Duration>,
    /// Datagrams dropped because a socket's buffer was full, of the whole host.
    buffers_full: Option<u64>,
}

impl Host {
    /// As of now, of the calling thread.
    pub(super) fn now() -> Self {
        // sched-stats.rst: time on a CPU, time waiting for one, in ns.
        let waited = |text: String| text.split(' ').nth(1)?.parse().ok();
        let no_cpu = fs::read_to_string("/proc/thread-self/schedstat").ok();
        let snmp = fs::read_to_string("/proc/net/snmp").ok();
        Self {
            no_cpu: no_cpu.and_then(waited).map(Duration::from_nanos),
            buffers_full: snmp.and_then(|text| buffers_full(&text)),
        }
    }
}

/// `RcvbufErrors` of UDP: a line of names, and one of numbers.
fn buffers_full(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|it| it.strip_prefix("Udp: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|it| it == "RcvbufErrors")?;
    numbers.split(' ').nth(at)?.parse().ok()
}

impl Seen {
    fn new(at: Instant, r: &SessionReport, host: Host) -> Self {
        let again = r.retransmissions;
        Self {
            at,
            fragments: r.fragments,
            sent_again: again.timeout + again.early + again.nack,
            duplicates: r.duplicates,
            from_switch: r.from_switch,
            from_ps: r.from_ps,
            rounds: r.congestion.rounds,
            marked: r.congestion.rounds_marked,
            collided: r.congestion.rounds_collided,
            collectives: r.collectives,
            host,
        }
    }
}

impl Watch {
    /// Takes a look if it is time; returns what is to be said.
    pub(super) fn look(
        &mut self,
        now: Instant,
        report: &SessionReport,
        host: impl FnOnce() -> Host,
    ) -> Vec<String> {
        let is_early = |at: Instant| now.saturating_duration_since(at) < EVERY;
        if report.epoch.is_none() || self.looked.is_some_and(is_early) {
            return Vec::new();
        }
        self.looked = Some(now);
        self.window = self.window.max(report.congestion.link_window);
        let seen = Seen::new(now, report, host());
        let mut found: Vec<(Cause, String)> = self.who_is_behind(now, report).into_iter().collect();
        found.extend(self.who_is_slow(now, report));
        match &self.before {
            Some(before) if now.saturating_duration_since(before.at) > COMPARED_FOR => {
                self.before = Some(seen);
            }
            Some(before) if seen.fragments - before.fragments < FRAGMENTS_MIN => {}
            Some(before) => {
                found.extend(compare(before, &seen, report, self.window));
                self.before = Some(seen);
            }
            None => self.before = Some(seen),
        }
        let said = found.into_iter().filter_map(|(cause, words)| {
            let held = &mut self.held[cause as usize];
            let is_new = held
                .as_ref()
                .is_none_or(|it| now.saturating_duration_since(it.said) >= AGAIN_AFTER);
            let said = match held {
                Some(held) if !is_new => held.said,
                _ => now,
            };
            *held = Some(Held {
                words: words.clone(),
                seen: now,
                said,
            });
            is_new.then_some(words)
        });
        said.collect()
    }

    /// What holds now.
    pub(super) fn warnings(&self, now: Instant) -> Vec<String> {
        let held = self.held.iter().flatten();
        let held = held.filter(|it| now.saturating_duration_since(it.seen) < HOLDS_FOR);
        held.map(|it| it.words.clone()).collect()
    }

    fn who_is_behind(&mut self, now: Instant, report: &SessionReport) -> Option<(Cause, String)> {
        // Those who were waited for all the time.
        let held = self.behind.take().and_then(|(mut ranks, since)| {
            ranks.retain(|rank| report.behind.contains(rank));
            (!ranks.is_empty()).then_some((ranks, since))
        });
        let (ranks, since) = held.unwrap_or_else(|| (report.behind.clone(), now));
        if ranks.is_empty() {
            return None;
        }
        let waited = now.saturating_duration_since(since);
        let words = format!(
            "all wait for {}, for {:.0} s: see that rank's log and its program",
            ranks_text(&ranks),
            (waited + EVERY).as_secs_f64()
        );
        self.behind = Some((ranks, since));
        if waited < BEHIND_FOR {
            return None;
        }
        Some((Cause::Behind, words))
    }
}

impl Watch {
    fn who_is_slow(&mut self, now: Instant, report: &SessionReport) -> Option<(Cause, String)> {
        let by_far = |it: &Slowest| it.rank != report.rank && it.ours - it.awaiting > SLOW_SHARE;
        let slowest = report.slowest.filter(by_far);
        let since = self
            .slow
            .filter(|(rank, _)| slowest.is_some_and(|it| it.rank == *rank))
            .map_or(now, |(_, since)| since);
        self.slow = slowest.map(|it| (it.rank, since));
        if now.saturating_duration_since(since) < SLOW_FOR {
            return None;
        }
        let Slowest {
            rank,
            awaiting,
            ours,
        } = slowest?;
        let words = format!(
            "rank {rank} is the slowest: this one waits for {:.0} % of its time, and that one for {:.0} %: it computes \
             longer than the others (a busy or slower machine, more data)",
            100.0 * ours,
            100.0 * awaiting
        );
        Some((Cause::Slow, words))
    }
}

fn compare(before: &Seen, now: &Seen, report: &SessionReport, window: u32) -> Vec<(Cause, String)> {
    let mut found = Vec::new();
    let fragments = now.fragments - before.fragments;
    let time = now.at.saturating_duration_since(before.at).as_secs_f64();
    let of = |n: u64, all: u64| n as f64 / all.max(1) as f64;

    let in_vain = now.duplicates - before.duplicates;
    let lost = (now.sent_again - before.sent_again).saturating_sub(in_vain);
    let is_lossy = of(lost, fragments) > LOST_SHARE;
    if is_lossy {
        let full = now.host.buffers_full.zip(before.host.buffers_full);
        let full = full.map_or(0, |(now, before)| now.saturating_sub(before));
        let whose = if full > 0 {
            format!(
                "sockets of this host dropped {full} datagrams because their buffers were full (net.core.rmem_max, CPU)"
            )
        } else {
            "frames are lost here, at another rank's host, or in the switch (its report's `dropped`)".into()
        };
        let percent = 100.0 * of(lost, fragments);
        let words = format!(
            "{percent:.1} % of the fragments ({lost} of {fragments} in {time:.0} s) had to be sent again: {whose}"
        );
        found.push((Cause::Lost, words));
    }

    let from_ps = now.from_ps - before.from_ps;
    let results = from_ps + now.from_switch - before.from_switch;
    let rounds = now.rounds - before.rounds;
    let collided = now.collided - before.collided;
    let pool = report.congestion.aggregation_window;
    let has_many = of(from_ps, results) > PS_SHARE;
    let percent = 100.0 * of(from_ps, results);
    if collided > 0 && (has_many || pool < window / WINDOW_PART) {
        let words = format!(
            "the switch's pool is too small: the parameter server finished {percent:.0} % of the results, and {pool} of \
             {window} fragments may be under way (more `pool.slots`, or `jobs[].min_slots` for this job, or a smaller \
             `window` here)"
        );
        found.push((Cause::Pool, words));
    } else if has_many && !is_lossy {
        let words = format!(
            "the parameter server finished {percent:.0} % of the results, and no slot was missing: the switch's \
             `pool.policy` aggregates little or nothing"
        );
        found.push((Cause::Ps, words));
    }

    let marked = now.marked - before.marked;
    let links = report.congestion.link_window;
    if marked > 0 && links < window / WINDOW_PART {
        let percent = 100.0 * of(marked, rounds);
        let words = format!(
            "a port of the switch is full: {percent:.0} % of the windows had marks, and {links} of {window} fragments \
             may be under way (the switch's report names the port: `ecn_marked`)"
        );
        found.push((Cause::Links, words));
    }

    let waited = now.host.no_cpu.zip(before.host.no_cpu);
    let waited = waited.map_or(Duration::ZERO, |(now, before)| now.saturating_sub(before));
    let share = waited.as_secs_f64() / time.max(1e-3);
    if share > NO_CPU_SHARE && now.collectives > before.collectives {
        let words = format!(
            "this host's CPUs are busy: the agent waited for one in {:.0} % of the time; leave it one (fewer threads \
             that compute, or CPUAffinity= of the service and of the training)",
            100.0 * share.min(1.0)
        );
        found.push((Cause::NoCpu, words));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_schema::agent::report::Congestion;

    fn report() -> SessionReport {
        SessionReport {
            job: 7,
            epoch: Some(1),
            workers: 4,
            payload_bytes: 1024,
            window: 256,
            waiting: 1,
            congestion: Congestion {
                link_window: 256,
                link_window_min: 256,
                aggregation_window: 256,
                aggregation_window_min: 256,
                ..Congestion::default()
            },
            ..SessionReport::default()
        }
    }

    /// A second after the other, with what changes in each; what was said, and what holds at the
    /// end.
    fn seconds(
        n: u64,
        change: impl Fn(u64, &mut SessionReport),
    ) -> (Vec<(u64, String)>, Vec<String>) {
        let began = Instant::now();
        let (mut watch, mut r, mut said) = (Watch::default(), report(), Vec::new());
        let mut now = began;
        for second in 0..n {
            now = began + Duration::from_secs(second);
            change(second, &mut r);
            let host = Host::default;
            said.extend(watch.look(now, &r, host).into_iter().map(|it| (second, it)));
            // It is not yet time.
            assert!(watch.look(now, &r, host).is_empty());
        }
        (said, watch.warnings(now))
    }

    fn works(r: &mut SessionReport) {
        r.fragments += 10_000;
        r.from_switch += 10_000;
        r.congestion.rounds += 40;
        r.collectives += 1;
    }

    #[test]
    fn a_job_that_is_well_is_left_alone() {
        let (said, now) = seconds(300, |_, r| {
            works(r);
            r.window = 512;
            // What an ordinary network does, and a switch that serves less than is asked for.
            r.retransmissions.early += 90;
            r.congestion.rounds_marked += 20;
            r.congestion.link_window = if r.collectives > 1 { 40 } else { 128 };
            r.from_ps += 900;
            r.congestion.rounds_collided += 20;
        });
        assert!(said.is_empty() && now.is_empty(), "{said:?}");
        // Nor is one that sends nothing, or little.
        let (said, _) = seconds(100, |_, r| {
            r.fragments += 5;
            r.retransmissions.timeout += 1;
        });
        assert!(said.is_empty(), "{said:?}");
    }

    #[test]
    fn a_cause_is_said_once_and_again_after_a_minute() {
        let (said, now) = seconds(150, |_, r| {
            works(r);
            r.retransmissions.timeout += 250;
        });
        let at: Vec<_> = said.iter().map(|(second, _)| *second).collect();
        assert_eq!(at, [1, 61, 121]);
        let want = "2.5 % of the fragments (250 of 10000 in 1 s) had to be sent again: frames are lost here, at another \
                    rank's host, or in the switch (its report's `dropped`)";
        assert_eq!(said[0].1, want);
        assert_eq!(now, [want]);
        // One that comes and goes is not said more often for that, and holds no more when it is
        // gone.
        let (said, now) = seconds(50, |second, r| {
            works(r);
            r.retransmissions.timeout += if second % 7 == 0 && second < 40 {
                900
            } else {
                0
            };
        });
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(now.is_empty());
    }

    #[test]
    fn what_was_sent_again_in_vain_is_no_loss() {
        let (said, _) = seconds(10, |_, r| {
            works(r);
            r.retransmissions.early += 2000;
            r.duplicates += 1990;
        });
        assert!(said.is_empty(), "{said:?}");
    }

    #[test]
    fn full_pools_and_full_links_and_policies_are_told_apart() {
        let first = |change: fn(&mut SessionReport)| {
            let (said, _) = seconds(3, |_, r| {
                works(r);
                change(r);
            });
            assert_eq!(said.len(), 1, "{said:?}");
            said[0].1.clone()
        };
        let words = first(|r| {
            r.from_ps += 5000;
            r.congestion.rounds_collided += 40;
        });
        assert!(
            words.starts_with("the switch's pool is too small: the parameter server finished 33 %"),
            "{words}"
        );
        let words = first(|r| {
            r.congestion.rounds_collided += 1;
            r.congestion.aggregation_window = 12;
        });
        assert!(
            words.contains("12 of 256 fragments may be under way"),
            "{words}"
        );
        let words = first(|r| r.from_ps += 5000);
        assert!(words.contains("`pool.policy`"), "{words}");
        let words = first(|r| {
            r.congestion.rounds_marked += 30;
            // It begins with all of it.
            r.congestion.link_window = if r.collectives > 1 { 40 } else { 256 };
        });
        assert!(
            words.starts_with("a port of the switch is full: 75 %"),
            "{words}"
        );
    }

    #[test]
    fn ranks_that_are_waited_for_are_named_and_those_that_came_are_not() {
        let (said, now) = seconds(20, |second, r| {
            r.behind = match second {
                2..6 => vec![1, 3],
                6..12 => vec![3],
                _ => Vec::new(),
            };
        });
        assert_eq!(said.len(), 1, "{said:?}");
        let words = "all wait for ranks 1, 3, for 3 s: see that rank's log and its program";
        assert_eq!(said[0], (4, words.to_owned()));
        assert!(now.is_empty());
        let (_, now) = seconds(12, |_, r| r.behind = vec![3]);
        assert!(
            now[0].starts_with("all wait for rank 3, for 12 s"),
            "{now:?}"
        );
        // A second of waiting in each step, for another one: no straggler.
        let (said, _) = seconds(40, |second, r| r.behind = vec![(second / 2 % 4) as u16]);
        assert!(said.is_empty(), "{said:?}");
    }

    #[test]
    fn a_rank_that_is_slower_in_each_step_is_named_and_a_little_is_nothing() {
        let slowest = |rank, awaiting, ours| {
            Some(Slowest {
                rank,
                awaiting,
                ours,
            })
        };
        let (said, now) = seconds(30, |second, r| {
            r.slowest = match second {
                // By turns: no one of them is slow.
                0..10 => slowest((second % 3) as u16 + 1, 0.2, 0.6),
                // This one is us.
                10..15 => slowest(0, 0.2, 0.2),
                _ => slowest(2, 0.2, 0.5),
            };
        });
        let want = "rank 2 is the slowest: this one waits for 50 % of its time, and that one for 20 %: it computes \
                    longer than the others (a busy or slower machine, more data)";
        assert_eq!(said, [(25, want.to_owned())]);
        assert_eq!(now, [want]);
        let (said, _) = seconds(60, |_, r| r.slowest = slowest(2, 0.5, 0.6));
        assert!(said.is_empty(), "{said:?}");
    }

    #[test]
    fn the_kernel_s_words_are_read() {
        let snmp = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\n\
                    Udp: 100 0 7 90 7 0\nUdpLite: InDatagrams\nUdpLite: 0\n";
        assert_eq!(buffers_full(snmp), Some(7));
        assert_eq!(buffers_full("Udp: InDatagrams\nUdp: 0\n"), None);
        assert_eq!(buffers_full(""), None);
        let host = Host::now();
        assert!(host.buffers_full.is_some(), "{host:?}");
        let (before, after) = (
            Host {
                no_cpu: Some(Duration::ZERO),
                buffers_full: Some(1),
            },
            Host {
                no_cpu: Some(Duration::from_millis(400)),
                buffers_full: Some(51),
            },
        );
        let mut r = report();
        let began = Instant::now();
        let mut watch = Watch::default();
        watch.look(began, &r, || before);
        works(&mut r);
        r.retransmissions.timeout += 1000;
        let said = watch.look(began + EVERY, &r, || after).join("\n");
        assert!(
            said.contains("dropped 50 datagrams because their buffers were full"),
            "{said}"
        );
        assert!(
            said.contains("waited for one in 40 % of the time"),
            "{said}"
        );
    }
}
