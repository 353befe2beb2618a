//! Daemons that read their file again at SIGHUP, and the parameter server in an agent: the real
//! programs, at the naive switch of the loopback interface.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

mod rig;

use nix::sys::signal::Signal;
use rig::agent::{Agent, WAIT_MAX, config, eventually};
use rig::common::switch::Habits;
use rig::{KEY, Rig, write_config};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use tally_local::{
    Arithmetic, Class, Client, Dtype, Hello, LocalError, Operation, Priority, Submission,
};

const HABITS: Habits = Habits {
    collide: 100,
    preempt: 100,
    mark: 50,
};
/// A job of the agent's that the switch does not have.
const OTHER: &str = r#"{"id": 8, "key": "9192939495969798999a9b9c9d9e9fa0", "workers": 2}"#;

fn sums(client: &mut Client, workers: u8, rank: u8, steps: impl Iterator<Item = usize>) {
    let region = client.region(1 << 16).unwrap();
    let sum = Submission {
        operation: Operation::Sum,
        dtype: Dtype::I32,
        arithmetic: Arithmetic::Native,
        priority: Priority::FIRST,
        more_follow: false,
        name: "w".into(),
    };
    for step in steps {
        let n = 1 + step * 131 % 4000;
        let value = |rank: u8, at: usize| (at * 7 + step + usize::from(rank) * 1000) as i32;
        let values: Vec<_> = (0..n)
            .flat_map(|at| value(rank, at).to_ne_bytes())
            .collect();
        region.write(0, &values);
        let ticket = client.submit(&region, 0, n, &sum).unwrap();
        client.wait(ticket, Some(WAIT_MAX)).unwrap();
        let mut bytes = vec![0; 4 * n];
        region.read(0, &mut bytes);
        for (at, word) in bytes.as_chunks().0.iter().enumerate() {
            let want: i32 = (0..workers).map(|rank| value(rank, at)).sum();
            assert_eq!(i32::from_ne_bytes(*word), want, "step {step}, element {at}");
        }
    }
}

/// What an agent says to a process that wants to be rank 0 of job 8.
fn other(agent: &Agent) -> Result<Client, LocalError> {
    let hello = Hello {
        job: 8,
        rank: 0,
        workers: 2,
    };
    Client::connect(&agent.socket(), &hello, WAIT_MAX)
}

#[test]
fn an_agent_takes_a_changed_file_over_while_a_job_runs() {
    let agent = Agent::new(Rig::new(2, HABITS, true), &[]);
    let file = agent.folder.path().join("agent.json");
    let before = config(&agent.rig, &agent.folder);
    let reload = |text: &str, says: &str| {
        let times = agent.log().matches(says).count();
        write_config(&file, text);
        agent.signal(Signal::SIGHUP);
        eventually(says, || {
            let log = agent.log();
            let now = log.matches(says).count();
            if now > times { log } else { String::new() }
        });
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (agent, is_over) = (&agent, &is_over);
        let running = scope.spawn(move || {
            agent.all(|rank, mut client| {
                // All ranks do the same number of steps.
                sums(&mut client, 2, rank, 0..400);
                is_over.store(true, Ordering::Relaxed);
                client.finish(Some(WAIT_MAX)).unwrap();
            })
        });
        agent.logs("job 7 rank 0: running");
        reload(&before, "nothing is different");
        let with = |job: &str| before.replace("\"jobs\": [", &format!("\"jobs\": [{job}, "));
        assert!(matches!(other(agent), Err(LocalError::Refused { .. })));
        reload(&with(OTHER), "changed: job 8: added, 2 workers");
        let admitted = other(agent).unwrap();
        for bad in [before.replace("\"id\": 7", "\"id\": 70000"), "{".into()] {
            reload(&bad, "nothing was changed");
        }
        assert!(agent.log().contains("reload refused: "));
        reload(
            &with(OTHER).replace("\"window\": 32", "\"window\": 16"),
            "changed: window: 32 -> 16",
        );
        reload(
            &with(OTHER)
                .replace("\"memory_mib\"", "\"payload_bytes\": 512, \"memory_mib\"")
                .replacen("\"payload_bytes\": 256, ", "", 1),
            "not changed: payload_bytes: differs, and takes effect at the next start",
        );
        // Gone for new processes; the one that is there stays.
        reload(&before, "changed: job 8: removed");
        agent.logs("job 8 rank 0: stays until its process leaves");
        let Err(LocalError::Refused { failure, .. }) = other(agent) else {
            panic!("job 8 is there");
        };
        assert_eq!(failure.class, Class::Job);
        drop(admitted);
        running.join().unwrap();
    });
    assert!(is_over.load(Ordering::Relaxed));
    assert!(!agent.log().contains("failed"), "{}", agent.log());
}

/// `tally-agent ps`, with its file in the folder of an agent.
struct Server<'a> {
    agent: &'a Agent,
    program: Child,
}

impl<'a> Server<'a> {
    fn start(agent: &'a Agent, text: &str) -> Self {
        let folder = agent.folder.path();
        write_config(&folder.join("ps.json"), text);
        let log = File::create(folder.join("ps.log")).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_tally-agent"))
            .args(["ps", "--config"])
            .arg(folder.join("ps.json"))
            .stderr(log)
            .spawn()
            .unwrap();
        Self { agent, program }
    }

    fn logs(&self, what: &str) {
        let path = self.agent.folder.path().join("ps.log");
        eventually(what, || std::fs::read_to_string(&path).unwrap());
    }

    fn reload(&self, text: &str) {
        write_config(&self.agent.folder.path().join("ps.json"), text);
        let pid = i32::try_from(self.program.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGHUP).unwrap();
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

#[test]
fn a_parameter_server_takes_jobs_over_while_it_runs() {
    let agent = Agent::new(Rig::new(2, HABITS, false), &["--loss", "0.02"]);
    let file = |jobs: &str| {
        format!(
            r#"{{"switch": {{"address": "{}"}}, "jobs": [{jobs}],
                "transport": {{"type": "udp", "bind": "{}:0"}}}}"#,
            agent.rig.address(254),
            agent.rig.address(200)
        )
    };
    let job = format!(r#"{{"id": 7, "key": "{KEY}"}}"#);
    let server = Server::start(&agent, &file(""));
    // The handler of SIGHUP is there before anything else is.
    eventually("the server's socket", || {
        let pid = server.program.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        let is_caught = caught >> (Signal::SIGHUP as u64 - 1) & 1 == 1;
        if is_caught { "the server's socket" } else { "" }.into()
    });
    server.reload("{");
    server.logs("reload refused: ");
    server.reload(&file(&job));
    server.logs("changed: job 7: added");
    agent.all(|rank, mut client| {
        sums(&mut client, 2, rank, 0..30);
        if rank == 0 {
            server.reload(&file(&job));
            server.logs("nothing is different");
        }
        sums(&mut client, 2, rank, 30..60);
        client.finish(Some(WAIT_MAX)).unwrap();
    });
    server.reload(&file(""));
    server.logs("changed: job 7: removed");
    server.logs("job 7: left");
}

/// Gives the agent's file a parameter server.
fn with_server(folder: &Path) {
    let file = folder.join("agent.json");
    let text = std::fs::read_to_string(&file).unwrap();
    write_config(&file, &text.replacen("\"jobs\"", "\"ps\": {}, \"jobs\"", 1));
}

#[test]
fn the_parameter_server_lives_in_an_agent() {
    let rig = Rig::new(3, HABITS, false);
    let agent = Agent::changed(rig, &["--loss", "0.02"], with_server);
    agent.all(|rank, mut client| {
        sums(&mut client, 3, rank, 0..60);
        client.finish(Some(WAIT_MAX)).unwrap();
    });
    agent.logs("parameter server: job 7: running with 3 workers");
    let status = agent.ask(&[]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(text.contains("parameter server of jobs: 7\n"), "{text}");
    // Jobs that come and go are its own, too.
    let file = agent.folder.path().join("agent.json");
    let text = std::fs::read_to_string(&file).unwrap();
    write_config(
        &file,
        &text.replace("\"jobs\": [", &format!("\"jobs\": [{OTHER}, ")),
    );
    agent.signal(Signal::SIGHUP);
    eventually("parameter server of jobs: 7, 8\n", || {
        String::from_utf8(agent.ask(&[]).stdout).unwrap()
    });
    agent.signal(Signal::SIGTERM);
    agent.logs("parameter server: job 7: left");
}
