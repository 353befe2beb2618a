//! Connecting to an agent that is not there, not yet, or not allowed.

use super::{ACCESS, Agent, HELLO, LONG};
use crate::connect::{PLACE_MAX, SEARCH_MAX};
use crate::socket::Seqpacket;
use crate::{Caller, Class, Client, Failure, Limits, Listener, LocalError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Connects, and returns the lines that a user would have been told.
fn lines(path: &Path, timeout: Duration) -> (Result<Client, LocalError>, Vec<String>) {
    let mut lines = Vec::new();
    let client = Client::connect_while(path, &HELLO, timeout, |retry| {
        if retry.is_due {
            lines.push(retry.to_string());
        }
        true
    });
    (client, lines)
}

#[test]
fn an_agent_that_is_not_there_is_looked_for_ten_seconds_aloud() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let began = Instant::now();
    // As a training's collectives may take.
    let (client, lines) = lines(&path, Duration::from_secs(1800));
    let took = began.elapsed();
    assert!((SEARCH_MAX..SEARCH_MAX * 3 / 2).contains(&took), "{took:?}");
    assert!((3..=5).contains(&lines.len()), "{lines:?}");
    let at = path.display();
    let first = format!("no agent at {at} (No such file or directory); retrying, 8 s left");
    assert_eq!(lines[0], first);
    let error = client.unwrap_err().to_string();
    let want = format!(
        "cannot reach the agent at {at}: No such file or directory (os error 2) after 10 s; start it with \
         `systemctl start tally-agent`, or `tally-agent serve` with this socket; `tally-agent doctor` says what keeps it \
         from running"
    );
    assert_eq!(error, want);
}

#[test]
fn an_agent_that_comes_in_time_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| lines(&path, LONG));
        std::thread::sleep(Duration::from_millis(2500));
        let mut listener = Listener::bind(&path, ACCESS).unwrap();
        let Some(Caller::Process(pending)) = listener.next(LONG).unwrap() else {
            panic!("no process connected");
        };
        let _peer = pending.accept(Limits::default());
        let (client, lines) = client.join().unwrap();
        client.unwrap();
        assert_eq!(lines.len(), 1, "{lines:?}");
    });
}

/// The search for an agent is shorter than the wait for a place: a restart of all ranks needs the
/// latter.
#[test]
fn a_place_that_is_given_up_is_waited_for_longer_than_an_agent_is_looked_for() {
    const { assert!(PLACE_MAX.as_secs() > SEARCH_MAX.as_secs()) };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let mut listener = Listener::bind(&path, ACCESS).unwrap();
    let until = Instant::now() + SEARCH_MAX + Duration::from_secs(1);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| lines(&path, LONG));
        loop {
            let Some(Caller::Process(pending)) = listener.next(LONG).unwrap() else {
                panic!("no process connected");
            };
            if Instant::now() > until {
                let _peer = pending.accept(Limits::default());
                let (client, lines) = client.join().unwrap();
                client.unwrap();
                assert!((4..=5).contains(&lines.len()), "{lines:?}");
                let text = &lines[0];
                let why = "process 5 has just ended and is leaving; try again; retrying, ";
                assert!(text.contains(why), "{text}");
                return;
            }
            let text = "process 5 has just ended and is leaving; try again";
            pending.refuse(Failure::new(Class::Leaving, text));
        }
    });
}

#[test]
fn an_agent_that_does_not_answer_is_told_of_and_the_caller_may_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = Seqpacket::new().unwrap();
    listener.listen(&path).unwrap();
    let began = Instant::now();
    let mut told = None;
    let error = Client::connect_while(&path, &HELLO, LONG, |retry| {
        if retry.is_due {
            told = Some(retry.to_string());
        }
        told.is_none()
    });
    assert!(
        matches!(error, Err(LocalError::Timeout { .. })),
        "{error:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(5));
    let want = "the agent accepted the connection and does not answer; retrying, 18 s left";
    let told = told.unwrap();
    assert!(told.contains(want), "{told}");
}

/// Connects as a user who has no right to.
fn as_unprivileged(path: &Path) -> Option<Result<Client, LocalError>> {
    std::thread::scope(|scope| {
        let connect = || {
            // Of this thread alone, which then ends: the library's call is for all threads.
            // SAFETY: numbers alone.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) };
            (changed == 0).then(|| Client::connect(path, &HELLO, LONG))
        };
        scope.spawn(connect).join().unwrap()
    })
}

#[test]
fn a_user_without_the_right_is_told_at_once_what_is_missing() {
    let agent = Agent::new();
    let folder = agent.path().parent().unwrap().to_owned();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&folder, mode).unwrap();
    for (gid, what) in [
        (0, "; set `access.group` in the agent's configuration"),
        // A group that no host names.
        (
            54_321,
            "; `usermod -aG 54321 USER` as root, and log in again",
        ),
    ] {
        std::os::unix::fs::chown(agent.path(), None, Some(gid)).unwrap();
        let began = Instant::now();
        let Some(client) = as_unprivileged(&agent.path()) else {
            return;
        };
        assert!(began.elapsed() < Duration::from_secs(1));
        let error = client.unwrap_err();
        let LocalError::Connect { source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
        let text = error.to_string();
        assert!(
            text.contains("may not write to it: its group is "),
            "{text}"
        );
        assert!(
            text.contains("its mode 0600") && text.contains(what),
            "{text}"
        );
    }
}
