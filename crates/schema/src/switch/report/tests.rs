mod table;

use super::*;
use crate::golden::{names, parse, round_trip};

const GOLDEN: &str = include_str!("../../../golden/switch-report.json");

#[test]
fn a_report_has_the_keys_that_tools_rely_on() {
    let report: Report = round_trip(GOLDEN);
    assert_eq!(report.policy, PolicyName::Esa);
    assert_eq!(report.kernel, Backend::Avx2);
    assert_eq!(report.load[0].counters.cycles[Stage::Idle], 5);
    assert_eq!(report.ports[0].steering, Spread::HandOver);
    assert_eq!(report.jobs[0].phase, JobPhase::Running);
    assert_eq!(report.card.as_ref().unwrap().state, CardState::Failed);
    assert_eq!(report.json().matches('\n').count(), 1, "one line");
}

#[test]
fn parts_that_a_switch_lacks_are_left_out() {
    let mut report: Report = parse(GOLDEN);
    report.switchml = None;
    report.netreduce = None;
    report.card = None;
    report.frames_missing = None;
    report.ports[0].rules_refused = None;
    let text = report.json();
    for key in [
        "\"switchml",
        "\"netreduce",
        "\"card\"",
        "\"frames_missing",
        "\"rules_refused",
    ] {
        assert!(!text.contains(key), "{key}: {text}");
    }
    assert_eq!(parse::<Report>(&text), report);
}

#[test]
fn states_have_one_name() {
    use JobPhase::{Idle, Paused, Running, Waiting};
    let phases = names([Idle, Waiting, Running, Paused]);
    assert_eq!(phases, ["idle", "waiting", "running", "paused"]);
    use CardState::{Absent, Failed, Working};
    let cards = names([Absent, Working, Failed]);
    assert_eq!(cards, ["absent", "working", "failed"]);
    use Spread::{Device, HandOver, Peer, Rss, Rules, SingleCore};
    let spread = names([SingleCore, Rules, Rss, Peer, Device, HandOver]);
    let want = ["single core", "rules", "rss", "peer", "device", "hand-over"];
    assert_eq!(spread, want);
    let stages = names(Stage::ALL);
    let want = ["receive", "classify", "aggregate", "send", "idle"];
    assert_eq!(stages, want);
}

#[test]
fn lines_for_people_say_what_is_unusual() {
    let text = parse::<Report>(GOLDEN).to_string();
    for line in [
        "CPU 2        busy 50.0 %, 4.0 frames a burst, 62.5 % of polls empty; cycles a frame: receive 2 classify 2 \
         aggregate 4 send 4\n",
        "CPU 2        busy_turns 10 empty_turns 20 polls 40 empty_polls 25 frames 60 cycles receive 1 cycles classify 2 \
         cycles aggregate 3 cycles send 4 cycles idle 5\n",
        "a            linearised 7: Frames received in several buffers and copied into one.\n",
        "a            steering hand-over, 2 queues in, 1 out, 6 frames handed over; no flow rules\n",
        "a            dropped by class, 0 to 7: 1 2 3 4 5 6 7 8\n",
        "job 7        running, epoch 3, 4 of 4 workers, 1 left, with PS, on the card\n",
        "    draining: begins no epoch\n    tree: rank 1 at spine1, ranks 4 to 8 of 16, by port up1, says running\n    switch leafA    \
         joined, rank 3 here, ranks 7 to 8\n    of tenant lab\n    with its previous key: 5 ps\n    counters contributions 96 results 31 payload_bytes \
         31744 sums_up 32 uplink_bytes 35904 results_down 30\n",
        "    rank 4    10.84.0.1       02:00:00:00:00:01 on a, heard 0.2 s ago, awaits 75.0 % of its time, 3 fragments \
         behind\n",
        "card         failed, registers at /run/card.sock: a register read as all ones; ",
        "card         not for job 9: f64\n",
        "    rank 0    10.84.0.1       02:00:00:00:00:01 on a, 3 frames, the last 0.5 s ago; FORGED: 4 frames; BEHIND: 2 sums wait for \
         it, for 0.25 s\n",
        "drops        unknown-job 3\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
}

#[test]
fn a_job_waits_for_ranks_that_are_missing_or_slow() {
    let mut job = parse::<Report>(GOLDEN).jobs.remove(0);
    job.tree = None;
    let member = job.ranks[0].clone();
    let with = |rank: Option<u16>, awaiting: f64| {
        let mut it = member.clone();
        (it.rank, it.local_rank) = (rank, None);
        it.gauges.awaiting = awaiting;
        it
    };
    job.members.workers = 3;
    job.ranks = vec![with(Some(0), 0.9), with(Some(2), 0.1), with(None, 0.0)];
    assert_eq!(job.waits_for(), ["2"]);
    job.ranks[1].left = true;
    assert_eq!(job.waits_for(), [""; 0], "it has left");
    job.phase = JobPhase::Waiting;
    assert_eq!(job.waits_for(), ["1"]);
    job.ps = false;
    assert_eq!(job.waits_for(), ["1", "ps"]);
    job.phase = JobPhase::Paused;
    assert_eq!(job.waits_for(), ["ps"]);
    job.phase = JobPhase::Idle;
    assert_eq!(job.waits_for(), [""; 0]);
}

#[test]
fn a_job_of_several_parameter_servers_names_those_that_are_missing() {
    let mut job = parse::<Report>(GOLDEN).jobs.remove(0);
    let line = |job: &JobReport| job.to_string().lines().next().unwrap().to_owned();
    assert!(line(&job).contains(", with PS, on"), "{}", line(&job));
    let mut server = job.ranks[0].clone();
    (server.rank, server.local_rank, server.part) = (None, None, Some(2));
    assert_eq!(server.label(), "ps2");
    job.ranks = vec![server];
    (job.parameter_servers, job.ps, job.phase) = (4, false, JobPhase::Paused);
    assert_eq!(job.waits_for(), ["ps0", "ps1", "ps3"]);
    assert!(line(&job).contains("1 of 4 PSs"), "{}", line(&job));
    job.ps = true;
    assert_eq!(job.waits_for(), ["ps"], "to confirm the epoch");
    let text = simd_json::to_string(&job).unwrap();
    assert!(text.contains(r#""parameter_servers":4"#) && text.contains(r#""part":2"#));
}

#[test]
fn counters_are_shown_since_an_earlier_report() {
    let earlier: Report = parse(GOLDEN);
    let mut now = earlier.clone();
    now.gauges.seconds = 20.0;
    now.counters.insert("contributions".into(), 138);
    now.counters.insert("collisions".into(), 10);
    now.drops.insert("late".into(), 2);
    now.residence.count = 99;
    now.load[0].counters.cycles[Stage::Receive] = 31;
    now.load[0].counters.cycles[Stage::Idle] = 15;
    now.ports[0].counters.rx_frames = 11;
    now.ports[0].queue.tx_dropped_by_class[3] = 104;
    now.ports[0].queue.queue_frames_max = 90;
    now.switchml.as_mut().unwrap().sessions[0].ranks[0]
        .counters
        .frames = 10;
    now.card
        .as_mut()
        .unwrap()
        .counts
        .counters
        .insert("contributions".into(), 107);
    let since = now.since(&earlier);
    assert_eq!(since.counters["contributions"], 10);
    assert_eq!(since.counters["collisions"], 10, "not counted before");
    assert!((since.hit_rate - 0.5).abs() < 1e-9, "{}", since.hit_rate);
    assert_eq!(since.drops, BTreeMap::from([("late".to_owned(), 2)]));
    assert_eq!(since.residence.count, 99, "as of all fragments");
    assert!((since.load[0].busy_share - 0.75).abs() < 1e-9);
    let port = &since.ports[0];
    assert_eq!((port.counters.rx_frames, port.tx_dropped), (10, 100));
    assert_eq!(port.queue.queue_frames_max, 90, "a gauge");
    let rank = &since.switchml.as_ref().unwrap().sessions[0].ranks[0];
    assert_eq!((rank.counters.frames, rank.counters.behind), (7, 2));
    assert_eq!(
        since.card.as_ref().unwrap().counts.counters["contributions"],
        7
    );
    assert!((since.gauges.seconds - 20.0).abs() < 1e-9);
    // A port that came since counts from its start; so does one that began anew.
    let mut later = earlier.clone();
    later.ports[0].name = "b".into();
    later.switchml.as_mut().unwrap().sessions[0].ranks[0]
        .counters
        .frames = 1;
    let since = later.since(&earlier);
    assert_eq!(since.ports[0].counters.rx_frames, 1);
    let rank = &since.switchml.as_ref().unwrap().sessions[0].ranks[0];
    assert_eq!(rank.counters.frames, 1);
    assert_eq!(earlier.since(&earlier).counters["results"], 0);
}
