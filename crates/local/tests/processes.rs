//! An agent and a process that are two processes, and what each notices of the other's end. The
//! other process is this test once more.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tally_local::{
    Access, Arithmetic, Caller, Client, Dtype, Hello, Limits, Listener, LocalError, Operation,
    Peer, Priority, Request, Submission,
};

const HELLO: Hello = Hello {
    job: 3,
    rank: 0,
    workers: 2,
};
const LONG: Duration = Duration::from_secs(20);
/// Shorter than what the kernel would be waited for otherwise, and long for a machine that is busy.
const AT_ONCE: Duration = Duration::from_secs(5);
const ELEMENTS: usize = 100_000;
/// What the other process is to do, and where.
const ROLE: &str = "TALLY_LOCAL_TEST_ROLE";
const SOCKET: &str = "TALLY_LOCAL_TEST_SOCKET";

fn spawn(role: &str, socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(ROLE, role)
        .env(SOCKET, socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn mean() -> Submission {
    Submission {
        operation: Operation::Mean,
        dtype: Dtype::I32,
        arithmetic: Arithmetic::Own,
        priority: Priority::Fixed(9),
        more_follow: true,
        name: "weights".into(),
    }
}

/// Not a test of its own: what the other process does.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let socket = PathBuf::from(std::env::var(SOCKET).unwrap());
    if role == "agent" {
        let mut listener = listen(&socket);
        let mut peer = let_in(&mut listener);
        loop {
            // Until it is killed.
            take(&mut peer);
        }
    }
    if role == "agent that adds" {
        add_to_all(&socket);
        return;
    }
    let mut client = Client::connect(&socket, &HELLO, LONG).unwrap();
    let region = client.region(4 * ELEMENTS).unwrap();
    for n in 0..ELEMENTS {
        region.write(4 * n, &(n as i32).to_ne_bytes());
    }
    let ticket = client.submit(&region, 0, ELEMENTS, &mean()).unwrap();
    match role.as_str() {
        "works" => {
            client.wait(ticket, Some(LONG)).unwrap();
            for n in 0..ELEMENTS {
                let mut got = [0; 4];
                region.read(4 * n, &mut got);
                assert_eq!(i32::from_ne_bytes(got), 3 * n as i32);
            }
            client.finish(Some(LONG)).unwrap();
        }
        "is killed" => std::thread::sleep(LONG),
        "leaves a child" => {
            let copy = client.as_fd().try_clone_to_owned().unwrap();
            // It outlives us with our socket, as the helpers of a data loader do.
            let mut child = Command::new("sleep");
            child.arg("30").stdin(copy).stderr(Stdio::null());
            child.spawn().unwrap();
            std::process::exit(0);
        }
        other => panic!("{other}?"),
    }
}

/// An agent that reads and writes all elements of each collective, until its process leaves.
fn add_to_all(socket: &Path) {
    let mut listener = listen(socket);
    let mut peer = let_in(&mut listener);
    while let Request::Submit {
        ticket, mut span, ..
    } = take(&mut peer)
    {
        let mut page = [0; 4096];
        for at in (0..span.bytes()).step_by(page.len()) {
            span.read(at, &mut page);
            page.iter_mut().for_each(|it| *it = it.wrapping_add(1));
            span.write(at, &page);
        }
        drop(span);
        peer.complete(ticket);
    }
    peer.finished();
}

fn listen(socket: &Path) -> Listener {
    let access = Access {
        mode: 0o600,
        group: None,
    };
    Listener::bind(socket, access).unwrap()
}

fn let_in(listener: &mut Listener) -> Peer {
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "no process connected");
        if let Some(Caller::Process(pending)) = listener.next(LONG).unwrap() {
            assert_eq!(pending.hello(), HELLO);
            return pending.accept(Limits::default());
        }
    }
}

fn take(peer: &mut Peer) -> Request {
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "nothing is asked for");
        match peer.receive().unwrap() {
            Some(request) => return request,
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

#[test]
fn elements_are_shared_and_completions_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let mut listener = listen(&socket);
    let mut other = spawn("works", &socket);
    let mut peer = let_in(&mut listener);
    let Request::Submit {
        ticket,
        submission,
        mut span,
    } = take(&mut peer)
    else {
        panic!("no collective");
    };
    assert_eq!((submission, span.bytes()), (mean(), 4 * ELEMENTS));
    let mut element = [0; 4];
    for at in (0..span.bytes()).step_by(4) {
        span.read(at, &mut element);
        span.write(at, &(3 * i32::from_ne_bytes(element)).to_ne_bytes());
    }
    peer.complete(ticket);
    assert!(matches!(take(&mut peer), Request::Finish));
    peer.finished();
    assert!(other.wait().unwrap().success());
    assert!(matches!(take(&mut peer), Request::Closed));
}

#[test]
fn a_process_that_is_killed_is_noticed_and_its_memory_can_be_used_until_then() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let mut listener = listen(&socket);
    let mut other = spawn("is killed", &socket);
    let mut peer = let_in(&mut listener);
    let Request::Submit { mut span, .. } = take(&mut peer) else {
        panic!("no collective");
    };
    other.kill().unwrap();
    let killed = Instant::now();
    assert!(matches!(take(&mut peer), Request::Closed));
    assert!(killed.elapsed() < AT_ONCE);
    other.wait().unwrap();
    // The session may still be sending.
    let mut last = [0; 4];
    span.read(4 * ELEMENTS - 4, &mut last);
    assert_eq!(i32::from_ne_bytes(last), ELEMENTS as i32 - 1);
    drop(peer);
    span.write(0, &last);
}

#[test]
fn a_process_that_ends_is_noticed_though_its_child_has_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let mut listener = listen(&socket);
    let mut other = spawn("leaves a child", &socket);
    let mut peer = let_in(&mut listener);
    assert!(peer.watches_process(), "this kernel gives no pidfd");
    assert!(matches!(take(&mut peer), Request::Submit { .. }));
    other.wait().unwrap();
    let ended = Instant::now();
    assert!(matches!(take(&mut peer), Request::Closed));
    assert!(ended.elapsed() < AT_ONCE);
}

#[test]
fn an_agent_that_is_killed_is_noticed_at_once_and_the_next_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let mut agent = spawn("agent", &socket);
    // It waits for the agent to be there.
    let mut client = Client::connect(&socket, &HELLO, LONG).unwrap();
    let region = client.region(64).unwrap();
    let ticket = client.submit(&region, 0, 16, &mean()).unwrap();
    agent.kill().unwrap();
    let killed = Instant::now();
    let error = client.wait(ticket, None).unwrap_err();
    assert!(killed.elapsed() < AT_ONCE);
    assert!(matches!(error, LocalError::Gone { .. }), "{error}");
    assert!(
        error.to_string().starts_with("job 3 rank 0: the agent at "),
        "{error}"
    );
    agent.wait().unwrap();
    // Ours is still ours.
    region.write(0, &[1; 64]);
    assert!(socket.exists());
    let mut next = spawn("agent", &socket);
    let mut client = Client::connect(&socket, &HELLO, LONG).unwrap();
    client.region(64).unwrap();
    next.kill().unwrap();
    next.wait().unwrap();
}

/// A memory cgroup of this test's own, removed at its end.
struct Cgroup(PathBuf);

impl Cgroup {
    /// With a limit of so many bytes; none if this user or this machine cannot have one.
    fn new(bytes: usize) -> Option<Self> {
        let name = format!("tally-local-{}", std::process::id());
        let all = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        all.into_iter().find_map(|(root, limit)| {
            let cgroup = Self(Path::new(root).join(&name));
            std::fs::create_dir(&cgroup.0).ok()?;
            std::fs::write(cgroup.0.join(limit), bytes.to_string()).ok()?;
            Some(cgroup)
        })
    }

    /// Takes a process in.
    fn take(&self, pid: u32) -> std::io::Result<()> {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel counts processes that have been waited for a little longer.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The agent may use 32 MiB, and the process's region has 128 MiB, into which it punches as many
/// holes as it can.
#[test]
fn the_agent_pays_for_no_page_of_a_region() {
    const LIMIT: usize = 32 << 20;
    const BYTES: usize = 128 << 20;
    let Some(cgroup) = Cgroup::new(LIMIT) else {
        // Past the harness, which keeps to itself what passing tests say.
        let why = "no memory cgroup can be made here (it wants root and the memory controller)";
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the agent pays for no page: {why}"
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let mut agent = spawn("agent that adds", &socket);
    cgroup.take(agent.id()).unwrap();
    let mut client = Client::connect(&socket, &HELLO, LONG).unwrap();
    let region = client.region(BYTES).unwrap();
    let add = |client: &mut Client| {
        let ticket = client.submit(&region, 0, BYTES / 4, &mean())?;
        client.wait(ticket, Some(LONG))
    };
    add(&mut client).unwrap();
    // SAFETY: the whole mapping, into which nothing has a reference.
    let punched = unsafe { libc::madvise(region.as_ptr().cast(), BYTES, libc::MADV_REMOVE) };
    // Else the kernel ends the agent here.
    add(&mut client).unwrap();
    assert_eq!(punched, -1, "a hole was punched");
    let mut last = [0];
    region.read(BYTES - 1, &mut last);
    assert_eq!(last, [2]);
    client.finish(Some(LONG)).unwrap();
    assert!(agent.wait().unwrap().success());
}
