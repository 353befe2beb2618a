//! Rates of made-up looks, and the screen that shows them.

use super::*;
use crate::show::Snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tally_schema::switch::report::{JobPhase, Report, Stage};

const GOLDEN: &str = include_str!("../../../schema/golden/switch-report.json");

fn snapshot(change: impl FnOnce(&mut Report)) -> Snapshot {
    let mut report: Report = simd_json::from_slice(&mut GOLDEN.as_bytes().to_vec()).unwrap();
    let mut second = report.jobs[0].ranks[0].clone();
    (second.rank, second.local_rank) = (Some(5), Some(1));
    report.jobs[0].ranks.push(second);
    change(&mut report);
    Snapshot {
        version: 3,
        report,
        cleared_s: None,
        macs: Vec::new(),
        macs_left_out: 0,
    }
}

/// Two looks, two seconds apart.
fn rates() -> Rates {
    let mut history = History::default();
    let start = Instant::now();
    let first = history.add(start, snapshot(|_| {}));
    assert!(first.jobs[0].bits_per_s.is_none(), "one look is no rate");
    history.add(
        start + Duration::from_secs(2),
        snapshot(|report| {
            report.gauges.seconds += 2.0;
            report.ports[0].counters.rx_bytes += 250_000_000;
            report.ports[0].counters.rx_frames += 200_000;
            report.ports[0].queue.tx_dropped_by_class[0] += 10;
            report.load[0].counters.cycles[Stage::Receive] += 300;
            report.load[0].counters.cycles[Stage::Idle] += 100;
            report.drops.insert("late".into(), 8);
            let ranks = &mut report.jobs[0].ranks;
            ranks[0].sent = Some(41 + 5000);
            ranks[1].sent = Some(41 + 2000);
            ranks[0].gauges.awaiting = 0.9;
            ranks[1].gauges.awaiting = 0.1;
        }),
    )
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= b.abs() * 1e-9
}

#[test]
fn rates_are_those_of_the_interval() {
    let rates = rates();
    // The slower of the two has contributed 2000 fragments of 1024 bytes.
    let goodput = rates.jobs[0].bits_per_s.unwrap();
    assert!(close(goodput, 2000.0 * 1024.0 * 8.0 / 2.0), "{goodput}");
    let port = &rates.ports[0];
    assert!(
        close(port.rx_bits_per_s, 1e9) && close(port.rx_frames_per_s, 1e5),
        "{port:?}"
    );
    assert!(close(port.dropped_per_s, 5.0), "{port:?}");
    assert!(close(rates.cores[0].1, 0.75), "{:?}", rates.cores);
    assert_eq!(rates.drops.len(), 1, "{:?}", rates.drops);
    assert!(close(rates.drops[0].1, 4.0));
}

#[test]
fn a_restart_of_the_switch_or_job_makes_no_rate() {
    let mut history = History::default();
    let start = Instant::now();
    history.add(
        start,
        snapshot(|report| report.ports[0].counters.rx_bytes = 1 << 40),
    );
    let rates = history.add(
        start + Duration::from_secs(1),
        snapshot(|report| {
            report.gauges.seconds = 0.5;
            report.ports[0].counters.rx_bytes = 1000;
            report.jobs[0].epoch += 1;
            report.jobs[0]
                .ranks
                .iter_mut()
                .for_each(|it| it.sent = Some(9_000_000));
        }),
    );
    assert!(close(rates.ports[0].rx_bits_per_s, 16_000.0));
    assert!(rates.jobs[0].bits_per_s.is_none());
}

/// The screen as text.
fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, screen)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn the_screen_shows_goodput_stragglers_and_load() {
    let screen = Screen {
        rates: Some(rates()),
        failure: None,
    };
    let text = drawn(&screen, 100, 24);
    for part in [
        "tally-switch 0.1.0  up 14 s  configuration version 3  5 of 256 slots in use",
        "    7 running  4/4      8.2 Mbit/s rank 5",
        "1.00 Gbit/s    100.0 k",
        "CPU 2    ███████████████░░░░░  75.0 % busy",
        "         4 late",
    ] {
        assert!(text.contains(part), "{part}\nin\n{text}");
    }
}

#[test]
fn a_switch_that_is_gone_is_said_and_small_terminals_are_no_panic() {
    let screen = Screen {
        rates: None,
        failure: Some("/run/x: no switch answers\u{1b}".into()),
    };
    let text = drawn(&screen, 60, 5);
    assert!(text.contains("/run/x: no switch answers?"), "{text}");
    let screen = Screen {
        rates: Some(rates()),
        failure: None,
    };
    for (width, height) in [(1, 1), (10, 3), (40, 8), (400, 100)] {
        drawn(&screen, width, height);
    }
}

#[test]
fn a_job_without_members_comes_last() {
    let mut history = History::default();
    let rates = history.add(
        Instant::now(),
        snapshot(|report| {
            let mut idle = report.jobs[0].clone();
            (idle.id, idle.phase) = (1, JobPhase::Idle);
            idle.ranks.clear();
            report.jobs.insert(0, idle);
        }),
    );
    let ids: Vec<_> = rates.jobs.iter().map(|it| it.job.id).collect();
    assert_eq!(ids, [7, 1]);
}

#[test]
fn q_escape_and_control_c_end_it() {
    let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
    let none = KeyModifiers::NONE;
    assert!(ends(&key(KeyCode::Char('q'), none)));
    assert!(ends(&key(KeyCode::Esc, none)));
    assert!(ends(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert!(!ends(&key(KeyCode::Char('c'), none)));
    assert!(!ends(&Event::Resize(1, 1)));
}
