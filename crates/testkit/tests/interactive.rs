//! `tally-testkit cluster`, which Python's tests use: its state, its commands, and that nothing is
//! left when its caller is gone.
//!
//! Uses the release programs (`cargo build --release`), and root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use simd_json::OwnedValue;
use simd_json::prelude::*;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tally_testkit::cluster::allowed;

struct Served {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(programs().join("tally-testkit"))
            .arg("cluster")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            commands: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn answer(&mut self) -> OwnedValue {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        simd_json::to_owned_value(&mut line.into_bytes()).unwrap()
    }

    fn ask(&mut self, command: &str) -> OwnedValue {
        writeln!(self.commands, "{command}").unwrap();
        self.answer()
    }
}

fn texts(value: &OwnedValue) -> Vec<String> {
    let texts = value.as_array().unwrap().iter();
    texts
        .map(|text| text.as_str().unwrap().to_owned())
        .collect()
}

fn pids(state: &OwnedValue) -> Vec<(String, u64)> {
    let pids = state["pids"].as_object().unwrap().iter();
    let mut pids: Vec<_> = pids
        .map(|(name, pid)| (name.clone(), pid.as_u64().unwrap()))
        .collect();
    pids.sort();
    pids
}

fn names(state: &OwnedValue) -> Vec<String> {
    pids(state).into_iter().map(|(name, _)| name).collect()
}

/// Whether an agent listens at this socket.
fn listens(path: &str) -> bool {
    let kind = SockType::SeqPacket;
    let socket = socket(AddressFamily::Unix, kind, SockFlag::empty(), None).unwrap();
    connect(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).is_ok()
}

#[test]
fn commands_change_what_runs_and_the_end_of_input_ends_all() {
    if !allowed() {
        eprintln!("SKIPPED: needs root (network namespaces)");
        return;
    }
    let _alone = alone();
    let mut served = Served::start(&["--workers", "3", "--agents", "2"]);
    let state = served.answer();
    assert_eq!(names(&state), ["agent0", "agent1", "ps", "switch"]);
    let sockets = texts(&state["sockets"]);
    assert_eq!(sockets.len(), 3);
    assert_eq!(sockets[0], sockets[2], "rank 2's agent is rank 0's");
    assert!(sockets.iter().all(|socket| listens(socket)));
    let namespaces = texts(&state["namespaces"]);
    assert_eq!(namespaces.len(), 5, "{namespaces:?}");

    let killed = served.ask("kill agent1");
    assert_eq!(names(&killed), ["agent0", "ps", "switch"]);
    assert!(!listens(&sockets[1]) && listens(&sockets[0]));
    let refused = served.ask("kill agent1");
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("agent1 does not run"), "{error}");
    for (wrong, words) in [
        ("start switch", "runs already"),
        ("start agent0", "runs already"),
        ("kill agent2", "agent0 to agent1"),
        ("halt", "kill NAME"),
    ] {
        let answer = served.ask(wrong);
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(words), "{wrong}: {error}");
    }
    let restarted = served.ask("start agent1 00112233445566778899aabbccdd0bad");
    assert_eq!(names(&restarted), names(&state));
    assert_ne!(pids(&restarted), pids(&state));
    assert!(listens(&sockets[1]));
    served.ask("kill switch");
    let last = served.ask("start switch");
    assert_eq!(names(&last), names(&state));

    drop(served.commands);
    assert!(served.child.wait().unwrap().success());
    for (name, pid) in pids(&last) {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{name}");
    }
    for namespace in namespaces {
        assert!(
            !Path::new("/run/netns").join(&namespace).exists(),
            "{namespace}"
        );
    }
    assert!(!Path::new(last["folder"].as_str().unwrap()).exists());
}
