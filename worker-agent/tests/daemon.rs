//! The agent of a host: the real program, at the naive switch of the loopback interface, and
//! processes that use it. Sums are compared with ones made here.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use rig::agent::{Agent, config, eventually, start, start_at};
use rig::common::Rng;
use rig::common::switch::{Habits, Switch};
use rig::{Rig, write_config};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tally_local::{
    Arithmetic, Class, Client, Dtype, Hello, LocalError, Operation, Priority, Region, Submission,
};

const LONG: Duration = rig::agent::WAIT_MAX;
const HABITS: Habits = Habits {
    collide: 100,
    preempt: 100,
    mark: 50,
};

fn submission(operation: Operation, arithmetic: Arithmetic, name: &str) -> Submission {
    Submission {
        operation,
        dtype: Dtype::F32,
        arithmetic,
        priority: Priority::FIRST,
        more_follow: false,
        name: name.into(),
    }
}

fn sum(name: &str) -> Submission {
    submission(Operation::Sum, Arithmetic::Fixed, name)
}

/// A rank's elements: whole numbers, whose sums are exact however they are made.
fn whole(rank: u8, elements: usize) -> Vec<f32> {
    let mut rng = Rng(u64::from(rank) << 32 | elements as u64);
    let mut element = || (rng.below(2000) as f32) - 1000.0;
    (0..elements).map(|_| element()).collect()
}

fn sum_of_whole(workers: u8, elements: usize) -> Vec<f32> {
    let all: Vec<_> = (0..workers).map(|rank| whole(rank, elements)).collect();
    let of = |i: usize| all.iter().map(|it| it[i]).sum();
    (0..elements).map(of).collect()
}

fn put(region: &Region, at: usize, values: &[f32]) {
    let bytes: Vec<_> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    region.write(at, &bytes);
}

fn get(region: &Region, at: usize, elements: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * elements];
    region.read(at, &mut bytes);
    let words = bytes.as_chunks().0.iter();
    words.map(|word| f32::from_ne_bytes(*word)).collect()
}

#[test]
fn processes_sum_through_their_agent_with_any_losses() {
    let agent = Agent::new(Rig::new(3, HABITS, true), &["--loss", "0.02"]);
    agent.all(|rank, mut client| {
        let sizes = [0, 1, 63, 64, 65, 5001];
        let region = client.region(1 << 20).unwrap();
        // Several at once, one behind the other in one region, before the job has begun.
        let mut at = 0;
        let tickets: Vec<_> = sizes
            .iter()
            .map(|&n| {
                put(&region, at, &whole(rank, n));
                let ticket = client.submit(&region, at, n, &sum("w")).unwrap();
                at += 4 * n;
                (ticket, at - 4 * n, n)
            })
            .collect();
        for (ticket, at, n) in tickets {
            client.wait(ticket, Some(LONG)).unwrap();
            assert_eq!(get(&region, at, n), sum_of_whole(3, n), "{n} elements");
        }
        // And then step by step, with one more region for each and the last one's dropped.
        for step in 0..10 {
            let n = 100 * step + 1;
            let region = client.region(4 * n).unwrap();
            put(&region, 0, &whole(rank, n));
            let mean = submission(Operation::Mean, Arithmetic::Native, "step");
            let ticket = client.submit(&region, 0, n, &mean).unwrap();
            client.wait(ticket, Some(LONG)).unwrap();
            let want: Vec<_> = sum_of_whole(3, n).iter().map(|v| v / 3.0).collect();
            assert_eq!(get(&region, 0, n), want);
        }
        put(&region, 4, &[f32::from(rank)]);
        let root = Operation::Broadcast { root: 2 };
        let broadcast = submission(root, Arithmetic::Own, "parameters");
        let parameters = client.submit(&region, 4, 1, &broadcast).unwrap();
        let end = client.barrier("end").unwrap();
        for ticket in [end, parameters] {
            client.wait(ticket, Some(LONG)).unwrap();
        }
        assert_eq!(get(&region, 4, 1), [2.0]);
        client.finish(Some(LONG)).unwrap();
    });
    for rank in 0..3 {
        agent.logs(&format!("job 7 rank {rank}: left"));
    }
}

#[test]
fn a_process_that_ends_is_named_to_the_others_and_its_place_is_free_again() {
    let agent = Agent::new(Rig::new(3, Habits::default(), true), &[]);
    let all_have_begun = Barrier::new(3);
    let errors = agent.all(|rank, mut client| {
        let begun = client.barrier("begun").unwrap();
        client.wait(begun, Some(LONG)).unwrap();
        all_have_begun.wait();
        if rank == 1 {
            return None;
        }
        // The job may have failed before the submission.
        let done = client
            .barrier("never")
            .and_then(|ticket| client.wait(ticket, Some(LONG)));
        Some(done.unwrap_err())
    });
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let Some(LocalError::Failed { failure, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!((failure.class, failure.ranks.bits()), (Class::Member, 0b10));
        let text = error.as_ref().unwrap().to_string();
        let want = format!(
            "job 7 rank {rank}: rank 1 left the job because of an error of its own; \
             see what that one's log says, and start the job again at all ranks"
        );
        assert_eq!(text, want);
    }
    agent.logs("job 7 rank 1: the process ended without leaving the job");
    // The job once more, on the same agent, at once.
    agent.all(|_, mut client| {
        let ticket = client.barrier("again").unwrap();
        client.wait(ticket, Some(LONG)).unwrap();
        client.finish(Some(LONG)).unwrap();
    });
}

#[test]
fn who_goes_may_come_back_at_once() {
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    for _ in 0..100 {
        agent
            .connect(0)
            .expect("this process's connection before it is closed");
    }
}

#[test]
fn who_may_not_take_part_is_told_why() {
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    let _first = agent.connect(0).unwrap();
    let pid = std::process::id();
    for (job, rank, workers, class, why) in [
        (
            9,
            0,
            2,
            Class::Job,
            "configuration has no job 9 (`jobs`: 7)".to_owned(),
        ),
        (
            7,
            2,
            2,
            Class::Rank,
            "job 7 has no rank 2: expected 0 to 1".to_owned(),
        ),
        (
            7,
            1,
            3,
            Class::Workers,
            "expects 3 workers, and the agent's configuration has 2".to_owned(),
        ),
        (
            7,
            0,
            2,
            Class::Taken,
            format!("process {pid} is that rank already"),
        ),
    ] {
        let hello = Hello { job, rank, workers };
        let error = Client::connect(&agent.socket(), &hello, LONG).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&why), "{text}");
        assert!(text.contains(&format!("job {job} rank {rank}: ")), "{text}");
        let LocalError::Refused { failure, .. } = error else {
            panic!("{text}");
        };
        assert_eq!(failure.class, class);
    }
    let mut second = agent.connect(1).unwrap();
    let error = second.region(65 << 20).unwrap_err().to_string();
    assert!(error.contains("`memory_mib`"), "{error}");
}

#[test]
fn a_process_that_does_not_behave_harms_its_own_job_alone() {
    use nix::sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket,
    };
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    let flags = SockFlag::empty();
    let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&stranger);
    connect(fd, &UnixAddr::new(&agent.socket()).unwrap()).unwrap();
    let hello = [
        1,
        0,
        tally_local::VERSION as u8,
        0,
        b't',
        b'l',
        b'l',
        b'y',
        7,
        0,
        1,
        0,
        2,
        0,
    ];
    send(fd, &hello, MsgFlags::empty()).unwrap();
    let mut other = agent.connect(0).unwrap();
    agent.logs("job 7 rank 1: running");
    send(fd, &[5; 64], MsgFlags::empty()).unwrap();
    let error = other
        .barrier("never")
        .and_then(|ticket| other.wait(ticket, Some(LONG)));
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("rank 1 left the job because of an error"),
        "{text}"
    );
    agent.logs("job 7 rank 1: the process does not keep to the agent's local interface");
    agent.all(|_, mut client| {
        let ticket = client.barrier("still there").unwrap();
        client.wait(ticket, Some(LONG)).unwrap();
        client.finish(Some(LONG)).unwrap();
    });
}

#[test]
fn a_mismatch_names_the_rank_to_every_process() {
    let mut switch = Switch::new(3, Habits::default());
    switch.strict = false;
    let agent = Agent::new(Rig::with(3, switch, true), &[]);
    let errors = agent.all(|rank, mut client| {
        let region = client.region(4096).unwrap();
        let elements = if rank == 2 { 999 } else { 1000 };
        let ticket = client
            .submit(&region, 0, elements, &sum("layer1.weight"))
            .unwrap();
        client.wait(ticket, Some(LONG)).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        let LocalError::Failed { failure, .. } = error else {
            panic!("{text}");
        };
        assert_eq!(
            (failure.class, failure.ranks.bits()),
            (Class::Mismatch, 0b100),
            "{text}"
        );
        assert!(text.contains("rank 2 brings a sum of 999 F32"), "{text}");
        assert!(text.contains("the same order"), "{text}");
    }
}

/// What a wait's error says of the cause, and the ranks that it names.
fn late(error: LocalError) -> (String, u64) {
    let LocalError::Timeout { awaited, .. } = &error else {
        panic!("{error}");
    };
    (error.to_string(), awaited.ranks.bits())
}

#[test]
fn a_wait_that_ends_before_the_agent_gives_up_names_the_missing_ranks() {
    let agent = Agent::new(Rig::new(3, Habits::default(), true), &[]);
    // Before the job has begun.
    let mut first = agent.connect(0).unwrap();
    let begun = first.barrier("begun").unwrap();
    let wait = Some(Duration::from_millis(700));
    let (text, ranks) = late(first.wait(begun, wait).unwrap_err());
    assert!(
        text.starts_with(
            "job 7 rank 0: `begun` takes more than 700ms: the job did not start within "
        ),
        "{text}"
    );
    assert!(text.contains("ranks 1, 2 are missing"), "{text}");
    assert_eq!(ranks, 0b110);
    let mut others = [1, 2].map(|rank| agent.connect(rank).unwrap());
    let tickets = others
        .each_mut()
        .map(|client| client.barrier("begun").unwrap());
    for (client, ticket) in others.iter_mut().zip(tickets) {
        client.wait(ticket, Some(LONG)).unwrap();
    }
    first.wait(begun, Some(LONG)).unwrap();
    // While it runs.
    let [mut second, mut third] = others;
    let ours = first.barrier("layer1").unwrap();
    let theirs = second.barrier("layer1").unwrap();
    let (text, ranks) = late(first.wait(ours, wait).unwrap_err());
    assert!(text.contains("does not know which ranks"), "{text}");
    assert_eq!(ranks, 0);
    let waits = [(&mut first, ours, 2500), (&mut second, theirs, 200)];
    for (client, ticket, ms) in waits {
        let wait = Duration::from_millis(ms);
        let (text, ranks) = late(client.wait(ticket, Some(wait)).unwrap_err());
        let want = format!("`layer1` takes more than {wait:?}: waiting for layer1: no result for ");
        assert!(text.contains(&want), "{text}");
        assert!(text.ends_with("rank 2 has not contributed"), "{text}");
        assert_eq!(ranks, 0b100, "{text}");
    }
    let last = third.barrier("layer1").unwrap();
    for (mut client, ticket) in [(first, ours), (second, theirs), (third, last)] {
        client.wait(ticket, Some(LONG)).unwrap();
        client.finish(Some(LONG)).unwrap();
    }
}

#[test]
fn a_wait_for_an_agent_that_stands_still_says_so() {
    use nix::sys::signal::Signal;
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    let mut client = agent.connect(0).unwrap();
    let ticket = client.barrier("never").unwrap();
    agent.signal(Signal::SIGSTOP);
    let began = Instant::now();
    let error = client.wait(ticket, Some(Duration::from_millis(100)));
    let took = began.elapsed();
    agent.signal(Signal::SIGCONT);
    let (text, ranks) = late(error.unwrap_err());
    let want = format!("agent at {} does not answer", agent.socket().display());
    assert!(text.contains(&want), "{text}");
    assert_eq!(ranks, 0);
    assert!(
        (Duration::from_secs(1)..Duration::from_secs(5)).contains(&took),
        "{took:?}"
    );
}

#[test]
fn an_agent_that_is_stopped_says_so_and_one_that_is_killed_is_noticed() {
    use nix::sys::signal::Signal;
    let mut agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    let begin = |agent: &Agent| {
        agent.all(|_, mut client| {
            let ticket = client.barrier("begun").unwrap();
            client.wait(ticket, Some(LONG)).unwrap();
            client
        })
    };
    let mut clients = begin(&agent);
    agent.signal(Signal::SIGTERM);
    let error = clients[0]
        .barrier("b")
        .and_then(|ticket| clients[0].wait(ticket, None));
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("job 7 rank 0: the agent was stopped"),
        "{text}"
    );
    assert!(agent.program.wait().unwrap().success());
    assert!(!agent.socket().exists());

    // The next one on the same path; its log is behind the first one's.
    agent.program = start(&agent.folder, &[]);
    let mut clients = begin(&agent);
    let second = start(&agent.folder, &[]).wait().unwrap();
    assert_eq!(second.code(), Some(4));
    agent.logs("another agent serves it");
    agent.signal(Signal::SIGKILL);
    let error = clients[1]
        .barrier("b")
        .and_then(|ticket| clients[1].wait(ticket, None));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("has ended or dropped us"), "{text}");
    assert!(agent.socket().exists());

    agent.program.wait().unwrap();
    agent.program = start(&agent.folder, &[]);
    drop(agent.connect(0).unwrap());
}

#[test]
fn status_says_who_is_there_and_who_is_missing() {
    let agent = Agent::new(Rig::new(2, Habits::default(), true), &[]);
    let said = |arguments: &[&str]| {
        let output = agent.ask(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(said(&[]).contains("job 7: 2 workers, 0 of them here"));
    let mut first = agent.connect(0).unwrap();
    eventually("waiting for rank 1", || said(&[]));
    let mut second = agent.connect(1).unwrap();
    let region = first.region(4000).unwrap();
    let other = second.region(4000).unwrap();
    let ticket = first.submit(&region, 0, 1000, &sum("w")).unwrap();
    second.submit(&other, 0, 1000, &sum("w")).unwrap();
    first.wait(ticket, Some(LONG)).unwrap();
    eventually("running, epoch ", || said(&[]));
    eventually("both are done", || {
        let text = said(&[]);
        let done = text.matches("1 collectives done and 0 under way").count();
        if done == 2 {
            "both are done".into()
        } else {
            text
        }
    });
    let json = said(&["--json"]);
    let status: tally_schema::agent::status::Status =
        tally_config::parse("status", json.as_bytes()).unwrap();
    let rank = &status.jobs[0].ranks[1];
    assert_eq!((rank.rank, rank.bytes, rank.window), (1, 4000, 32));
    assert_eq!(rank.pid as u32, std::process::id());
    assert!(rank.fragments > 0 && rank.priority_min.is_some());
    assert_eq!((rank.done.all_reduce, rank.done.barrier), (1, 0));
    assert!(rank.fallback.is_empty());
    first.report_fallback("all_gather", 3).unwrap();
    // More kinds than an agent keeps.
    for n in 0..1000 {
        first.report_fallback(&format!("kind{n}"), 1).unwrap();
    }
    eventually("1003 collectives done by another library", || {
        // The socket may have been full.
        first.report_fallback("all_gather", 0).unwrap();
        said(&[])
    });
    let text = said(&[]);
    assert!(text.contains("done by kind: all_reduce 1\n"), "{text}");
    let status: tally_schema::agent::status::Status =
        tally_config::parse("status", said(&["--json"]).as_bytes()).unwrap();
    let [rank, other] = &status.jobs[0].ranks[..] else {
        panic!("{status:?}");
    };
    assert_eq!(rank.fallback.len(), tally_local::KINDS_MAX);
    assert_eq!(rank.fallback["all_gather"], 3);
    assert_eq!(rank.fallback["other"], 1000 - 30);
    assert!(other.fallback.is_empty());
    let unprivileged = Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args(["status", "--socket", "/nowhere/agent.sock"])
        .output()
        .unwrap();
    assert_eq!(unprivileged.status.code(), Some(4));
    let text = String::from_utf8(unprivileged.stderr).unwrap();
    assert!(text.contains("`systemctl start tally-agent`"), "{text}");
}

#[test]
fn the_log_says_what_is_wanted() {
    let leave_alone = |agent: &Agent| {
        let deadline = Instant::now() + LONG;
        while !agent.ask(&[]).status.success() {
            assert!(Instant::now() < deadline);
        }
        drop(agent.connect(0).unwrap());
        agent.logs("the process ended without leaving the job");
    };
    let agent = Agent::quiet(Rig::new(2, Habits::default(), true), &[], "error");
    leave_alone(&agent);
    let log = agent.log();
    assert!(log.lines().all(|it| it.starts_with("tally-agent: error: ")));
    let agent = Agent::quiet(Rig::new(2, Habits::default(), true), &[], "debug");
    leave_alone(&agent);
    agent.logs("job 7 rank 0: 0 collectives of 0 bytes");
    agent.logs("tally-agent: listening");
    let mut bad = start_at(&agent.folder, &[], "loud");
    assert_eq!(bad.wait().unwrap().code(), Some(2));
    agent.logs("TALLY_LOG: found `loud`, expected error, warn, info or debug");
}

/// Its standard error is a pipe that is full, and that is not read.
#[test]
fn an_unread_log_stops_nothing() {
    let rig = Rig::new(2, Habits::default(), false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.json");
    write_config(&path, &config(&rig, &folder));
    let (reader, writer) = std::io::pipe().unwrap();
    let mut fills = writer.try_clone().unwrap();
    // It waits for room from when the pipe is full until there is no reader.
    let filler = std::thread::spawn(move || while fills.write_all(&[b'x'; 512]).is_ok() {});
    std::thread::sleep(Duration::from_millis(100));
    let mut agent = Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args(["serve", "--config"])
        .arg(&path)
        .stderr(writer)
        .spawn()
        .unwrap();
    let socket = folder.path().join("agent.sock");
    let deadline = Instant::now() + LONG;
    while tally_local::status(&socket, LONG).is_err() {
        assert!(Instant::now() < deadline, "it does not listen");
    }
    let pid = nix::unistd::Pid::from_raw(agent.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let ended = loop {
        if let Some(ended) = agent.try_wait().unwrap() {
            break ended;
        }
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(ended.success());
    drop(reader);
    filler.join().unwrap();
}

#[test]
fn a_configuration_is_checked_before_anything_else() {
    let rig = Rig::new(2, Habits::default(), false);
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let path = folder.path().join("agent.json");
        write_config(&path, text);
        Command::new(env!("CARGO_BIN_EXE_tally-agent"))
            .args(["serve", "--check", "--config"])
            .arg(path)
            .output()
            .unwrap()
    };
    let good = config(&rig, &folder);
    assert!(check(&good).status.success());
    let bad = check(&good.replace("\"workers\": 2", "\"workers\": 0"));
    assert_eq!(bad.status.code(), Some(2));
    let text = String::from_utf8(bad.stderr).unwrap();
    assert!(text.contains("jobs[0].workers: found 0"), "{text}");
    let path = folder.path().join("agent.json");
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let open = Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args(["serve", "--config"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(open.status.code(), Some(2));
    let text = String::from_utf8(open.stderr).unwrap();
    assert!(
        text.contains("agent.json: mode 0640 lets other users"),
        "{text}"
    );
}

/// A process cannot tell a ring from a job until it hears what the ring lacks on this host. The
/// agent's jobs do not.
#[test]
fn a_ring_on_a_host_without_its_device_fails_in_words() {
    let agent = Agent::changed(Rig::new(1, Habits::default(), true), &[], |folder| {
        let file = folder.join("agent.json");
        let text = std::fs::read_to_string(&file).unwrap();
        let ring = r#""rings": [{"id": 8, "key": "f0f102030405060708090a0b0c0d0e0f", "workers": 2,
            "address": "192.0.2.1", "coordinator": {"address": "127.0.0.1"}}], "payload_bytes""#;
        write_config(&file, &text.replace("\"payload_bytes\"", ring));
    });
    let hello = |workers| Hello {
        job: 8,
        rank: 1,
        workers,
    };
    let refused = Client::connect(&agent.socket(), &hello(3), LONG).err();
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("has 2 for job 8"), "{refused}");
    let mut process = Client::connect(&agent.socket(), &hello(2), LONG).unwrap();
    let ticket = process.barrier("start").unwrap();
    let failed = process.wait(ticket, Some(LONG)).unwrap_err();
    let LocalError::Failed { failure, .. } = failed else {
        panic!("{failed}");
    };
    assert_eq!(failure.class, Class::Link, "{}", failure.text);
    // Without libibverbs it names that.
    let lacks = [
        "no RoCE device has the IPv4 address 192.0.2.1",
        "libibverbs",
    ];
    assert!(
        lacks.iter().any(|it| failure.text.contains(it)),
        "{}",
        failure.text
    );
    assert!(
        failure.text.contains("see `rings[].address`"),
        "{}",
        failure.text
    );
    agent.logs("job 8 rank 1: ring 8: rank 1: ");
    let sums = agent.all(|rank, mut client| {
        let region = client.region(4096).unwrap();
        put(&region, 0, &whole(rank, 10));
        let ticket = client.submit(&region, 0, 10, &sum("w")).unwrap();
        client.wait(ticket, Some(LONG)).unwrap();
        get(&region, 0, 10)
    });
    assert_eq!(sums, [sum_of_whole(1, 10)]);
}
