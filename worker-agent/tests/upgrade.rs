//! Agents that are changed, drained and replaced while their processes sum: the real program, at
//! the naive switch of the loopback interface.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rig::agent::{Agent, WAIT_MAX, eventually};
use rig::common::switch::Habits;
use rig::{Rig, write_config};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tally_local::{
    Arithmetic, Class, Client, Dtype, Hello, LocalError, Operation, Priority, Submission,
};

const HABITS: Habits = Habits {
    collide: 100,
    preempt: 100,
    mark: 50,
};
const KEY: &str = "9192939495969798999a9b9c9d9e9fa0";

/// Agents that took the place of a rig's, ended with it.
#[derive(Default)]
struct Successors(Mutex<Vec<i32>>);

impl Successors {
    fn add(&self, pid: i32) {
        self.0.lock().unwrap().push(pid);
    }
}

impl Drop for Successors {
    fn drop(&mut self) {
        for pid in self.0.lock().unwrap().drain(..) {
            // It may have ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

fn control_socket(agent: &Agent) -> PathBuf {
    agent.folder.path().join("agent.sock.control")
}

/// Calls the agent as an operator would, with this at standard input.
fn call(agent: &Agent, arguments: &[&str], input: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tally-agent"))
        .args(arguments)
        .arg("--control")
        .arg(control_socket(agent))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = program.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    program.wait_with_output().unwrap()
}

/// What it printed, if it ended well.
#[track_caller]
fn good(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What it complained about.
#[track_caller]
fn bad(output: &Output, code: i32) -> String {
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    errors
}

/// Has the agent replaced, and returns the new process.
#[track_caller]
fn upgrade(agent: &Agent, successors: &Successors) -> i32 {
    let text = good(&call(agent, &["upgrade"], ""));
    let pid = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    successors.add(pid);
    pid
}

fn is_alive(pid: i32) -> bool {
    // A zombie is gone for us.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[track_caller]
fn ends(pid: i32) {
    eventually("has ended", || {
        if is_alive(pid) { "lives" } else { "has ended" }.into()
    });
}

/// Where all ranks are, and where they stop.
struct Steps {
    at: AtomicU32,
    last: AtomicU32,
}

/// For ranks to come to one end, after what is done now.
const STEPS_AHEAD: u32 = 200;

/// Sums until `steps` has its end, and holds each sum to what it must be. Returns the longest time
/// from one result to the next.
fn train(client: &mut Client, workers: u8, rank: u8, steps: &Steps) -> Duration {
    let region = client.region(1 << 16).unwrap();
    let sum = Submission {
        operation: Operation::Sum,
        dtype: Dtype::I32,
        arithmetic: Arithmetic::Native,
        priority: Priority::FIRST,
        more_follow: false,
        name: "w".into(),
    };
    let (mut step, mut longest, mut before) = (0, Duration::ZERO, None::<Instant>);
    while step < steps.last.load(Ordering::SeqCst) {
        let n = 1 + step as usize * 131 % 1000;
        let value = |rank: u8, at: usize| (at as u32 * 7 + step + u32::from(rank) * 1000) as i32;
        let values: Vec<_> = (0..n)
            .flat_map(|at| value(rank, at).to_ne_bytes())
            .collect();
        region.write(0, &values);
        let ticket = client.submit(&region, 0, n, &sum).unwrap();
        client.wait(ticket, Some(WAIT_MAX)).unwrap();
        let now = Instant::now();
        longest = longest.max(before.map_or(Duration::ZERO, |it| now - it));
        before = Some(now);
        let mut bytes = vec![0; 4 * n];
        region.read(0, &mut bytes);
        for (at, word) in bytes.as_chunks().0.iter().enumerate() {
            let want: i32 = (0..workers).map(|rank| value(rank, at)).sum();
            assert_eq!(i32::from_ne_bytes(*word), want, "step {step}, element {at}");
        }
        step += 1;
        steps.at.fetch_max(step, Ordering::SeqCst);
    }
    longest
}

/// Sums at all ranks while `work` is done, and then a little longer. Returns the longest time
/// without a result.
fn while_training(agent: &Agent, work: impl FnOnce()) -> Duration {
    let steps = Steps {
        at: AtomicU32::new(0),
        last: AtomicU32::new(u32::MAX),
    };
    std::thread::scope(|scope| {
        let steps = &steps;
        let training = scope.spawn(move || {
            agent.all(|rank, mut client| {
                let longest = train(&mut client, agent.rig.workers, rank, steps);
                client.finish(Some(WAIT_MAX)).unwrap();
                longest
            })
        });
        eventually("trains", || {
            let trains = steps.at.load(Ordering::SeqCst) > 20 || training.is_finished();
            if trains { "trains" } else { "waits" }.into()
        });
        work();
        let now = steps.at.load(Ordering::SeqCst);
        steps.last.store(now + STEPS_AHEAD, Ordering::SeqCst);
        training.join().unwrap().into_iter().max().unwrap()
    })
}

fn hello(agent: &Agent, job: u16, rank: u8) -> Result<Client, LocalError> {
    let (rank, workers) = (rank.into(), agent.rig.workers.into());
    Client::connect(&agent.socket(), &Hello { job, rank, workers }, WAIT_MAX)
}

#[track_caller]
fn refused(outcome: Result<Client, LocalError>) -> (Class, String) {
    match outcome {
        Err(LocalError::Refused { failure, .. }) => (failure.class, failure.text),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn jobs_come_and_go_at_the_control_socket() {
    let agent = Agent::new(Rig::new(2, HABITS, true), &[]);
    while_training(&agent, || {
        let add = ["job", "add", "8", "--workers", "2", "--key-file", "-"];
        let text = good(&call(&agent, &add, KEY));
        assert_eq!(
            text,
            "changed: job 8: added, 2 workers\nconfiguration version 2\n"
        );
        let text = good(&call(&agent, &add, KEY));
        assert_eq!(text, "nothing is different\nconfiguration version 2\n");
        let admitted = hello(&agent, 8, 0).unwrap();
        let late = [&add[..], &["--expected", "1"]].concat();
        let text = bad(&call(&agent, &late, KEY), 2);
        assert!(text.contains("has version 2, expected 1"), "{text}");
        let differs = ["job", "add", "8", "--workers", "3", "--key-file", "-"];
        let text = bad(&call(&agent, &differs, KEY), 2);
        assert!(text.contains("workers 2 -> 3"), "{text}");
        let text = bad(&call(&agent, &add, "8"), 2);
        assert!(text.contains("job.key: "), "{text}");
        let set = [
            "job",
            "set",
            "8",
            "--workers",
            "3",
            "--priority",
            "9",
            "--key-file",
            "-",
        ];
        let text = good(&call(&agent, &set, KEY));
        assert!(
            text.contains("workers 2 -> 3, priority computed -> 9"),
            "{text}"
        );
        let text = good(&call(&agent, &["job", "list"], ""));
        assert!(
            text.contains("     8        3               1         9               1\n"),
            "{text}"
        );
        let text = good(&call(&agent, &["job", "list", "--json"], ""));
        assert!(text.contains(r#""id": 7, "workers": 2"#), "{text}");
        let text = good(&call(&agent, &["job", "remove", "8"], ""));
        assert!(text.contains("changed: job 8: removed"), "{text}");
        good(&call(&agent, &["job", "remove", "8"], ""));
        assert_eq!(refused(hello(&agent, 8, 0)).0, Class::Job);
        agent.logs("job 8 rank 0: stays until its process leaves");
        let text = good(&call(&agent, &["reload"], ""));
        assert!(text.starts_with("nothing is different"), "{text}");
        write_config(&agent.folder.path().join("agent.json"), "{");
        let text = bad(&call(&agent, &["reload"], ""), 2);
        assert!(text.contains("nothing was changed"), "{text}");
        drop(admitted);
    });
}

#[test]
fn only_root_the_agent_s_user_and_its_group_may_call() {
    let agent = Agent::new(Rig::new(2, HABITS, true), &[]);
    let path = control_socket(&agent);
    let mode = || {
        let found = std::fs::metadata(&path).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o7777
    };
    assert_eq!(mode(), 0o600);
    let none = agent.folder.path().join("none");
    let program = env!("CARGO_BIN_EXE_tally-agent");
    let output = Command::new(program)
        .args(["job", "list", "--control"])
        .arg(&none)
        .output()
        .unwrap();
    let text = bad(&output, 4);
    assert!(text.contains("is it running"), "{text}");
    if !nix::unistd::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: another user needs root");
        return;
    }
    // As another user, who finds the way and no right; and then one whom the file lets in.
    let open = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    };
    open(agent.folder.path(), 0o755);
    let copy = agent.folder.path().join("tally-agent");
    std::fs::copy(program, &copy).unwrap();
    open(&copy, 0o755);
    let as_another = || {
        Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&copy)
            .args(["job", "list", "--control"])
            .arg(&path)
            .output()
            .unwrap()
    };
    let text = bad(&as_another(), 4);
    assert!(
        text.contains("call it as root or the agent's user"),
        "{text}"
    );
    open(&path, 0o666);
    let text = bad(&as_another(), 2);
    assert!(
        text.contains("user 65534 may not change this agent"),
        "{text}"
    );
}

#[test]
fn an_agent_is_replaced_while_its_processes_sum() {
    let agent = Agent::changed(Rig::new(2, HABITS, false), &["--loss", "0.01"], |folder| {
        let file = folder.join("agent.json");
        let text = std::fs::read_to_string(&file).unwrap();
        write_config(&file, &text.replacen("\"jobs\"", "\"ps\": {}, \"jobs\"", 1));
    });
    let successors = Successors::default();
    let old = i32::try_from(agent.program.id()).unwrap();
    let add = ["job", "add", "8", "--workers", "2", "--key-file", "-"];
    let mut new = 0;
    let pause = while_training(&agent, || {
        let usual = Instant::now();
        new = upgrade(&agent, &successors);
        println!("upgrade: the command took {:?}", usual.elapsed());
        assert_ne!(new, old);
        agent.logs("retired: process");
        // The new one serves, and knows of the old one's ranks.
        let status = String::from_utf8(agent.ask(&[]).stdout).unwrap();
        assert!(status.contains(&format!("process {new}, ")), "{status}");
        assert!(status.contains("from before the upgrade: "), "{status}");
        assert!(
            status.contains("job 7: 2 workers, 2 of them here"),
            "{status}"
        );
        let (class, text) = refused(hello(&agent, 7, 1));
        assert_eq!(class, Class::Taken);
        assert!(
            text.contains(&format!("from before the upgrade (process {old})")),
            "{text}"
        );
        let text = good(&call(&agent, &add, KEY));
        assert!(text.contains("job 8: added"), "{text}");
        // Once more, although the first still serves.
        let third = upgrade(&agent, &successors);
        ends(new);
        new = third;
        assert!(is_alive(old));
        let status = String::from_utf8(agent.ask(&[]).stdout).unwrap();
        assert!(
            status.contains(&format!(
                "from before the upgrade: tally-agent 0.1.0, process {old}, "
            )),
            "{status}"
        );
    });
    println!("upgrade: the longest time without a result, of two upgrades, was {pause:?}");
    ends(old);
    assert!(!agent.log().contains("failed"), "{}", agent.log());
    // The rank is free at the new agent.
    drop(hello(&agent, 7, 0).unwrap());
    let status = String::from_utf8(agent.ask(&[]).stdout).unwrap();
    assert!(status.contains(&format!("process {new}, ")), "{status}");
    assert!(!status.contains("before the upgrade"), "{status}");
    let names: Vec<_> = std::fs::read_dir(agent.folder.path())
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .filter(|it| it.starts_with("agent.sock."))
        .collect();
    assert!(
        names
            .iter()
            .all(|it| it.ends_with(".lock") || it.ends_with(".control")),
        "{names:?}"
    );
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_successor_that_cannot_serve_changes_nothing() {
    let agent = Agent::new(Rig::new(2, HABITS, true), &[]);
    let file = agent.folder.path().join("agent.json");
    let before = std::fs::read_to_string(&file).unwrap();
    while_training(&agent, || {
        write_config(&file, "{");
        let text = bad(&call(&agent, &["upgrade"], ""), 2);
        assert!(text.contains("this agent continues"), "{text}");
        write_config(
            &file,
            &before.replacen(
                "\"jobs\"",
                "\"access\": {\"group\": \"no such group\"}, \"jobs\"",
                1,
            ),
        );
        let text = bad(&call(&agent, &["upgrade"], ""), 2);
        assert!(text.contains("no group `no such group`"), "{text}");
        write_config(&file, &before);
        good(&call(&agent, &["job", "list"], ""));
    });
    // The naive switch has no second run; the agent takes the process all the same.
    hello(&agent, 7, 0).unwrap();
}

#[test]
fn a_drained_agent_takes_no_process_and_loses_none() {
    let agent = Agent::new(Rig::new(2, HABITS, true), &[]);
    while_training(&agent, || {
        let text = bad(&call(&agent, &["drain", "--timeout", "0.2"], ""), 1);
        assert!(text.contains("2 processes have not left"), "{text}");
        let (class, text) = refused(hello(&agent, 8, 0));
        assert_eq!(class, Class::Stopped);
        assert!(
            text.contains("takes no new processes: it is drained"),
            "{text}"
        );
    });
    let text = good(&call(&agent, &["drain"], ""));
    assert_eq!(text, "drained: no process is left\n");
    let status = String::from_utf8(agent.ask(&[]).stdout).unwrap();
    assert!(
        status.contains("drained: new processes are refused"),
        "{status}"
    );
    good(&call(&agent, &["drain", "--cancel"], ""));
    // The naive switch has no second run; the agent takes the process all the same.
    hello(&agent, 7, 0).unwrap();
}
