//! Agents with one memif port each, which several processes of several jobs share, at a real switch
//! with a parameter server, as an ordinary user could run them: every sum is right, a killed
//! process harms its own job alone, and a later one is served without a restart of agents or
//! switch, also by agents that lost their switch.
//!
//! Uses the release programs (`cargo build --release`).

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/program.rs"]
mod program;

use common::{alone, programs};
use program::{LONG, Program, connect};
use simd_json::prelude::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use tally_local::{
    Arithmetic, Class, Client, Dtype, LocalError, Operation, Priority, Region, Submission,
};

/// Of an example, and the job's number behind it.
const KEY: &str = "00112233445566778899aabbccdd";
/// The switch's ports: that of each agent, and that of the parameter server.
const AGENTS: usize = 2;
/// The number of a job, its workers, and the first of them that is at the second agent.
type Job = (u16, u8, u8);
const A: Job = (7, 4, 2);
const B: Job = (8, 2, 1);
/// What a process of its own is told: the agent's socket.
const PROCESS: &str = "TALLY_TEST_AGENT";

/// A switch, a parameter server, and two agents.
struct Stage {
    /// Ranks of job A at each agent, if they are one worker there; else 1.
    ranks_per_host: u8,
    switch: Option<Program>,
    ps: Option<Program>,
    agents: Vec<Program>,
    // Behind those who write to it.
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(arguments: &[&str]) -> Self {
        Self::with(1, arguments)
    }

    fn with(ranks_per_host: u8, arguments: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("tally-agents-").tempdir();
        let mut stage = Self {
            ranks_per_host,
            folder: folder.unwrap(),
            switch: None,
            ps: None,
            agents: Vec::new(),
        };
        stage.write();
        stage.start_switch();
        for agent in 0..AGENTS {
            let mut command = Command::new(programs().join("tally-agent"));
            let config = stage.file(&format!("agent{agent}.json"));
            command.args(["serve", "--config"]).arg(config);
            command.args(arguments);
            let log = stage.file(&format!("agent{agent}.log"));
            stage.agents.push(Program::start(command, log));
        }
        stage.agents.iter().for_each(|it| it.logs("listening", 1));
        stage
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self, agent: usize) -> PathBuf {
        self.file(&format!("agent{agent}.sock"))
    }

    /// The configurations.
    fn write(&self) {
        let write = |name: &str, text: String| std::fs::write(self.file(name), text).unwrap();
        let device = |number: usize, role: &str, id: usize| {
            format!(
                "net_memif{number},role={role},id={id},socket={},socket-abstract=no,bsize=2048,rsize=8",
                self.file("memif.sock").display()
            )
        };
        let port = |id| {
            let device = device(id, "server", id);
            format!(r#"{{ "name": "p{id}", "device": "{device}" }}"#)
        };
        let ports: Vec<_> = (0..=AGENTS).map(port).collect();
        let each = |id| if id == A.0 { self.ranks_per_host } else { 1 };
        let of_switch = [A, B].map(|(id, workers, _)| {
            let workers = workers / each(id);
            format!(r#"{{ "id": {id}, "key": "{KEY}{id:04x}", "workers": {workers} }}"#)
        });
        let of_agents = [A, B].map(|(id, workers, _)| {
            format!(
                r#"{{ "id": {id}, "key": "{KEY}{id:04x}", "workers": {workers}, "ranks_per_host": {} }}"#,
                each(id)
            )
        });
        write(
            "switch.json",
            format!(
                r#"{{ "address": {{ "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" }},
                     "ports": [{}], "jobs": [{}], "stats_socket": "{}" }}"#,
                ports.join(","),
                of_switch.join(","),
                self.file("switch.stat").display()
            ),
        );
        let host = |host: usize| {
            format!(
                r#""switch": {{ "address": "10.84.0.254" }},
                   "transport": {{ "type": "dpdk", "device": "{}", "mac": "02:84:00:00:00:0{host}",
                                   "address": "10.84.0.{}" }}"#,
                device(0, "client", host),
                host + 1
            )
        };
        for agent in 0..AGENTS {
            let text = format!(
                r#"{{ "socket": "{}", {}, "jobs": [{}] }}"#,
                self.socket(agent).display(),
                host(agent),
                of_agents.join(",")
            );
            write(&format!("agent{agent}.json"), text);
        }
        let jobs = [A, B].map(|(id, ..)| format!(r#"{{ "id": {id}, "key": "{KEY}{id:04x}" }}"#));
        let text = format!(r#"{{ {}, "jobs": [{}] }}"#, host(AGENTS), jobs.join(","));
        write("ps.json", text);
    }

    fn start_switch(&mut self) {
        let mut command = Command::new(programs().join("tally-switch"));
        command.arg("--config").arg(self.file("switch.json"));
        let times = self.switch_log().matches("running on CPU").count();
        let switch = Program::start(command, self.file("switch.log"));
        switch.logs("running on CPU", times + 1);
        self.switch = Some(switch);
        let mut command = Command::new(programs().join("tally-agent"));
        command.args(["ps", "--config"]).arg(self.file("ps.json"));
        self.ps = Some(Program::start(command, self.file("ps.log")));
    }

    /// Gives the switch another MAC from its next start on.
    fn change_mac(&self) {
        let file = self.file("switch.json");
        let text = std::fs::read_to_string(&file).unwrap();
        let changed = text.replace("02:54:41:4c:4c:59", "02:54:41:4c:4c:5a");
        assert_ne!(changed, text);
        std::fs::write(&file, changed).unwrap();
    }

    fn switch_log(&self) -> String {
        std::fs::read_to_string(self.file("switch.log")).unwrap_or_default()
    }

    /// `work` at the first `ranks` ranks of a job at once.
    fn at<T: Send>(&self, job: Job, ranks: u8, work: impl Fn(u8, Client) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let start = |rank| {
                scope.spawn(move || {
                    work(
                        rank,
                        connect(&self.socket_of(job, rank), (job.0, job.1), rank),
                    )
                })
            };
            let threads: Vec<_> = (0..ranks).map(start).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    fn socket_of(&self, job: Job, rank: u8) -> PathBuf {
        self.socket(usize::from(rank >= job.2))
    }

    /// All programs end in order; the switch says so only if no buffer is missing.
    fn end(mut self) {
        for agent in self.agents.drain(..) {
            assert!(!agent.log().contains("crashed"), "{}", agent.log());
            assert!(agent.end().success());
        }
        assert!(self.ps.take().unwrap().end().success());
        assert!(self.switch.take().unwrap().end().success());
    }
}

/// A rank's elements: whole numbers, whose sums are exact however they are made.
fn element(rank: u8, at: usize) -> f32 {
    ((at * 31 + usize::from(rank) * 17) % 2001) as f32 - 1000.0
}

/// Sums so many elements, and holds every sum to what it must be.
fn sum(
    client: &mut Client,
    region: &Region,
    workers: u8,
    rank: u8,
    elements: usize,
) -> Result<(), LocalError> {
    let values: Vec<_> = (0..elements)
        .flat_map(|at| element(rank, at).to_ne_bytes())
        .collect();
    region.write(0, &values);
    let submission = Submission {
        operation: Operation::Sum,
        dtype: Dtype::F32,
        arithmetic: Arithmetic::Native,
        priority: Priority::FIRST,
        more_follow: false,
        name: "w".into(),
    };
    let ticket = client.submit(region, 0, elements, &submission)?;
    client.wait(ticket, Some(LONG))?;
    let mut bytes = vec![0; 4 * elements];
    region.read(0, &mut bytes);
    for (at, word) in bytes.as_chunks().0.iter().enumerate() {
        let want: f32 = (0..workers).map(|rank| element(rank, at)).sum();
        assert_eq!(f32::from_ne_bytes(*word), want, "element {at}");
    }
    Ok(())
}

/// Joins a job and makes one sum; the rank stays.
fn one_sum(workers: u8, rank: u8, mut client: Client) -> (Client, Region) {
    let region = client.region(1 << 20).unwrap();
    sum(&mut client, &region, workers, rank, 1000).unwrap();
    (client, region)
}

/// Sums of many sizes, from 0 and 1 to more than an inbox holds, and leaves.
fn sums(workers: u8, rank: u8, mut client: Client) {
    let region = client.region(4 << 20).unwrap();
    for elements in [0, 1, 255, 256, 257, 100_001, 1 << 20, 3] {
        sum(&mut client, &region, workers, rank, elements).unwrap();
    }
    client.finish(Some(LONG)).unwrap();
}

/// Not a test but the last rank of job A in a process of its own, which sums until it is killed.
#[test]
fn a_process_of_its_own() {
    let Some(socket) = std::env::var_os(PROCESS) else {
        return;
    };
    let (_, workers, _) = A;
    let mut client = connect(Path::new(&socket), (A.0, A.1), workers - 1);
    let region = client.region(1 << 20).unwrap();
    loop {
        sum(&mut client, &region, workers, workers - 1, 10_000).unwrap();
    }
}

/// Job A, whose last rank is a process of its own and is killed: the others are told who it was.
fn kill_one(stage: &Stage) {
    let (_, workers, _) = A;
    let last = workers - 1;
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_of_its_own"])
        .env(PROCESS, stage.socket_of(A, last))
        .stdout(Stdio::null())
        .spawn();
    let process = Mutex::new(process.unwrap());
    let errors = stage.at(A, last, |rank, mut client| {
        let region = client.region(1 << 20).unwrap();
        for step in 0.. {
            if rank == 0 && step == 5 {
                process.lock().unwrap().kill().unwrap();
            }
            if let Err(error) = sum(&mut client, &region, workers, rank, 10_000) {
                return error;
            }
        }
        unreachable!("a process was killed");
    });
    process.into_inner().unwrap().wait().unwrap();
    for (rank, error) in (0..).zip(errors) {
        let LocalError::Failed { failure, .. } = &error else {
            panic!("{error}");
        };
        // Ranks of other hosts know the host.
        let of_host = stage.ranks_per_host > 1 && rank < A.2;
        let ranks = if of_host { 0b1100 } else { 1 << last };
        let want = (Class::Member, ranks);
        assert_eq!((failure.class, failure.ranks.bits()), want, "{error}");
    }
}

/// While job B sums all the time, job A does, loses a process, and does again with a new one in its
/// place.
fn two_jobs(stage: &Stage) {
    let (enough, is_last) = (AtomicBool::new(false), AtomicBool::new(false));
    let together = Barrier::new(usize::from(B.1));
    std::thread::scope(|scope| {
        let b = scope.spawn(|| {
            stage.at(B, B.1, |rank, mut client| {
                let region = client.region(1 << 20).unwrap();
                let mut steps = 0;
                // Both ranks do the same number of steps.
                while !is_last.load(Ordering::Relaxed) {
                    sum(&mut client, &region, B.1, rank, 50_000).unwrap();
                    steps += 1;
                    if together.wait().is_leader() {
                        is_last.store(enough.load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                    together.wait();
                }
                client.finish(Some(LONG)).unwrap();
                steps
            })
        });
        stage.at(A, A.1, |rank, client| sums(A.1, rank, client));
        kill_one(stage);
        let who = match stage.ranks_per_host {
            1 => "job 7 rank 3: the process ended without leaving the job",
            _ => "job 7 ranks 2 to 3: rank 3 (process ",
        };
        stage.agents[1].logs(who, 1);
        stage.at(A, A.1, |rank, client| sums(A.1, rank, client));
        enough.store(true, Ordering::Relaxed);
        let steps = b.join().unwrap();
        assert!(steps[0] > 5 && steps[0] == steps[1], "{steps:?}");
    });
}

#[test]
fn processes_of_two_jobs_share_the_ports_of_two_agents() {
    let _alone = alone();
    let stage = Stage::new(&[]);
    two_jobs(&stage);
    // The same once more, with the UDP ports of those who have left.
    two_jobs(&stage);
    for agent in &stage.agents {
        assert_eq!(agent.log().matches("the port is open").count(), 1);
    }
    stage.end();
}

/// Job A has one worker at each agent, of two processes; job B has one of one process.
#[test]
fn a_job_of_hosts_of_several_ranks_and_a_flat_one_share_the_ports() {
    let _alone = alone();
    let stage = Stage::with(2, &["--loss", "0.01"]);
    two_jobs(&stage);
    two_jobs(&stage);
    stage.end();
}

#[test]
fn sums_are_right_with_injected_loss() {
    let _alone = alone();
    let stage = Stage::new(&["--loss", "0.01"]);
    two_jobs(&stage);
    stage.end();
}

#[test]
fn agents_find_a_switch_that_was_started_again() {
    let _alone = alone();
    let mut stage = Stage::new(&[]);
    stage.at(A, A.1, |rank, client| sums(A.1, rank, client));
    stage.switch.take();
    stage.ps.take();
    // No switch answers; a process that does not wait for it frees its rank.
    let patient = connect(&stage.socket_of(A, 0), (A.0, A.1), 0);
    drop(connect(&stage.socket_of(A, 1), (A.0, A.1), 1));
    stage.agents[0].logs("job 7 rank 1: the process ended", 1);
    stage.agents[0].logs("lost its peer", 1);
    drop(patient);
    stage.agents[0].logs("job 7 rank 0: the process ended", 1);
    stage.start_switch();
    stage.at(A, A.1, |rank, client| sums(A.1, rank, client));
    for agent in &stage.agents {
        agent.logs("the port is open", 2);
    }
    stage.end();
}

/// A-9: sessions that have pinned the switch's MAC follow an ACCEPT with another one, and so do new
/// sessions.
#[test]
fn a_running_job_follows_a_switch_that_comes_back_with_another_mac() {
    let _alone = alone();
    let mut stage = Stage::new(&[]);
    let ranks = stage.at(A, A.1, |rank, client| one_sum(A.1, rank, client));
    stage.switch.take();
    stage.ps.take();
    stage.change_mac();
    stage.start_switch();
    std::thread::scope(|scope| {
        for (rank, (mut client, region)) in (0..).zip(ranks) {
            scope.spawn(move || {
                sum(&mut client, &region, A.1, rank, 1000).unwrap();
                client.finish(Some(LONG)).unwrap();
            });
        }
    });
    stage.at(A, A.1, |rank, client| sums(A.1, rank, client));
    for agent in &stage.agents {
        assert!(!agent.log().contains("not its MAC"), "{}", agent.log());
    }
    stage.end();
}
