//! Everything that a job runs on is restarted, upgraded or given a new key while the job sums: the
//! real switch, agents and parameter servers in namespaces, with losses. The parameter server in an
//! agent makes all sums of its run. Every sum is exact, and each pause is printed.
//!
//! Uses the release programs (`cargo build --release`). Needs root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tally_engine::PolicyName;
use tally_local::{Arithmetic, Client, Dtype, Hello, Operation, Priority, Submission};
use tally_schema::agent::config::AgentPs;
use tally_schema::agent::status::Status;
use tally_testkit::cluster::{Cluster, Network, Process, Program, Spec, Timeouts};

const WORKERS: u8 = 2;
const LONG: Duration = Duration::from_secs(60);
/// For ranks to come to one end.
const STEPS_AHEAD: u32 = 100;
/// A member that is silent for longer is lost.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(3);
const NEW_KEY: &str = "5a17c0de5a17c0de5a17c0de0badf00d";

/// What the ranks do together.
struct Training {
    at: AtomicU32,
    last: AtomicU32,
    /// When rank 0 had its results.
    results: Mutex<Vec<Instant>>,
}

fn value(rank: u8, step: u32, at: usize) -> i32 {
    (at as u32 * 7 + step + u32::from(rank) * 1000) as i32
}

fn train(training: &Training, mut client: Client, rank: u8) {
    let region = client.region(1 << 20).unwrap();
    let sum = Submission {
        operation: Operation::Sum,
        dtype: Dtype::I32,
        arithmetic: Arithmetic::Native,
        priority: Priority::FIRST,
        more_follow: false,
        name: "w".into(),
    };
    let mut step = 0;
    while step < training.last.load(Ordering::SeqCst) {
        let n = 1 + step as usize * 4099 % 30_000;
        let values = (0..n).flat_map(|at| value(rank, step, at).to_ne_bytes());
        region.write(0, &values.collect::<Vec<_>>());
        let ticket = client.submit(&region, 0, n, &sum).unwrap();
        client.wait(ticket, Some(LONG)).unwrap();
        if rank == 0 {
            training.results.lock().unwrap().push(Instant::now());
        }
        let mut bytes = vec![0; 4 * n];
        region.read(0, &mut bytes);
        for (at, word) in bytes.as_chunks().0.iter().enumerate() {
            let want: i32 = (0..WORKERS).map(|rank| value(rank, step, at)).sum();
            assert_eq!(i32::from_ne_bytes(*word), want, "step {step}, element {at}");
        }
        step += 1;
        training.at.fetch_max(step, Ordering::SeqCst);
    }
    client.finish(Some(LONG)).unwrap();
}

impl Training {
    /// Does `what`, waits for results after it, and prints the longest time without one.
    fn during(&self, name: &str, what: impl FnOnce()) {
        let began = Instant::now();
        what();
        let took = began.elapsed();
        let now = self.at.load(Ordering::SeqCst);
        self.reaches(now + 5);
        let results = self.results.lock().unwrap();
        let gaps = results.windows(2).filter(|it| it[1] >= began);
        let longest = gaps.map(|it| it[1] - it[0]).max().unwrap();
        let _ = writeln!(
            std::io::stderr(),
            "{name:<44} took {:>8.1} ms, longest time without a result {:>8.1} ms",
            1e3 * took.as_secs_f64(),
            1e3 * longest.as_secs_f64()
        );
    }

    #[track_caller]
    fn reaches(&self, step: u32) {
        let deadline = Instant::now() + LONG;
        while self.at.load(Ordering::SeqCst) < step {
            assert!(Instant::now() < deadline, "no step {step} within {LONG:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Agents, and those that took their places.
struct Agents {
    programs: Vec<Program>,
    successors: Vec<u32>,
}

impl Drop for Agents {
    fn drop(&mut self) {
        for pid in &self.successors {
            // It may have ended.
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        if std::thread::panicking() {
            self.programs
                .iter()
                .for_each(|it| eprintln!("{}", it.log()));
        }
    }
}

impl Agents {
    fn upgrade(&mut self, cluster: &Cluster, rank: u8) {
        let mut control = cluster.agent_socket(0, rank).into_os_string();
        control.push(".control");
        let output = Command::new(programs().join("tally-agent"))
            .args(["upgrade", "--control"])
            .arg(control)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        let pid = text.split_whitespace().nth(1).unwrap();
        self.successors.push(pid.parse().unwrap());
    }
}

fn status(cluster: &Cluster, rank: u8) -> Status {
    let json = tally_local::status(&cluster.agent_socket(0, rank), LONG).unwrap();
    tally_config::parse("status", json.as_bytes()).unwrap()
}

/// Changes a file of the cluster, which has keys.
fn edit(cluster: &Cluster, name: &str, change: impl FnOnce(String) -> String) {
    let path: PathBuf = cluster.folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = change(text.clone());
    assert_ne!(changed, text, "{name}");
    std::fs::write(&path, changed).unwrap();
}

/// A text between quotes behind `key`, in a file that was written without spaces.
fn found(text: &str, key: &str) -> String {
    let (_, rest) = text.split_once(&format!("\"{key}\":\"")).unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn everything_restarts(server_in_agent: bool) {
    let timeouts = Timeouts {
        join_ms: 60_000,
        stall_ms: 60_000,
        linger_ms: 2000,
    };
    let spec = Spec {
        jobs: vec![WORKERS],
        programs: programs(),
        // All sums are the parameter server's, or the switch's.
        policy: if server_in_agent {
            PolicyName::None
        } else {
            PolicyName::Esa
        },
        slots: Some(64),
        window: 64,
        loss: 0.01,
        member_timeout_ms: Some(MEMBER_TIMEOUT.as_millis() as u64),
        timeouts,
        ..Spec::default()
    };
    let mut cluster = Cluster::new(spec).unwrap();
    cluster.start_switch().unwrap();
    let mut agents = Agents {
        programs: Vec::new(),
        successors: Vec::new(),
    };
    if !server_in_agent {
        cluster.start_ps(0).unwrap();
    }
    for rank in 0..WORKERS {
        let agent = cluster.start_agent_where(0, rank, |config| {
            config.ps = (server_in_agent && rank == 0).then(AgentPs::default);
        });
        agents.programs.push(agent.unwrap());
    }
    let training = Training {
        at: AtomicU32::new(0),
        last: AtomicU32::new(u32::MAX),
        results: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for rank in 0..WORKERS {
            let hello = Hello {
                job: Cluster::job_id(0),
                rank: rank.into(),
                workers: WORKERS.into(),
            };
            let client = Client::connect(&cluster.agent_socket(0, rank), &hello, LONG).unwrap();
            let training = &training;
            scope.spawn(move || train(training, client, rank));
        }
        training.reaches(10);
        training.during("nothing, for 0.5 s", || {
            std::thread::sleep(Duration::from_millis(500));
        });
        training.during("switch killed and started", || {
            cluster.restart(Process::Switch).unwrap();
        });
        if server_in_agent {
            training.during("agent with the parameter server upgraded", || {
                agents.upgrade(&cluster, 0);
            });
        } else {
            training.during("parameter server killed and started", || {
                cluster.restart(Process::Ps).unwrap();
            });
        }
        training.during("agent upgraded", || agents.upgrade(&cluster, 1));
        training.during("key rotated everywhere", || {
            rotate(&cluster, &agents, server_in_agent);
        });
        let now = training.at.load(Ordering::SeqCst);
        training.last.store(now + STEPS_AHEAD, Ordering::SeqCst);
    });
    // The agents that were replaced end with their last processes.
    let deadline = Instant::now() + LONG;
    while !(0..WORKERS).all(|rank| status(&cluster, rank).before.is_empty()) {
        assert!(Instant::now() < deadline, "{}", status(&cluster, 1));
        std::thread::sleep(Duration::from_millis(10));
    }
    let report = cluster.switch_report().unwrap();
    let count = |name: &str| report.counters.get(name).copied().unwrap_or(0);
    let by = if server_in_agent {
        "results_from_ps"
    } else {
        "results"
    };
    assert!(count(by) > 1000, "{:?}", report.counters);
}

/// A second key at the switch, then at all members, and then the first one is retired.
fn rotate(cluster: &Cluster, agents: &Agents, server_in_agent: bool) {
    let text = std::fs::read_to_string(cluster.folder().join("switch.json")).unwrap();
    let old = found(&text, "key");
    let new_and_old = format!("\"key\":\"{NEW_KEY}\",\"previous_key\":\"{old}\"");
    edit(cluster, "switch.json", |text| {
        text.replace(&format!("\"key\":\"{old}\""), &new_and_old)
    });
    cluster.signal_switch("HUP").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    // In namespaces names have the job's and the rank's numbers.
    for entry in std::fs::read_dir(cluster.folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_member = name.starts_with("agent-") || name.starts_with("ps");
        if is_member && name.ends_with(".json") && !name.contains("report") {
            edit(cluster, &name, |text| text.replace(&old, NEW_KEY));
        }
    }
    let hup = |pid: u32| {
        // Agents that have retired keep their sessions, and the key of these.
        let done = Command::new("kill")
            .arg("-HUP")
            .arg(pid.to_string())
            .status();
        assert!(done.unwrap().success());
    };
    agents.programs.iter().for_each(|it| hup(it.id()));
    agents.successors.iter().for_each(|it| hup(*it));
    if !server_in_agent {
        hup(cluster.program(Process::Ps).unwrap().id());
    }
    std::thread::sleep(Duration::from_millis(1500));
    edit(cluster, "switch.json", |text| {
        text.replace(&new_and_old, &format!("\"key\":\"{NEW_KEY}\""))
    });
    cluster.signal_switch("HUP").unwrap();
    // A member that had the first key only would be lost within this time.
    std::thread::sleep(MEMBER_TIMEOUT + Duration::from_secs(1));
}

#[test]
fn a_job_survives_restarts_upgrades_and_a_new_key() {
    let _alone = alone();
    if !matches!(Spec::default().network, Network::Namespaces) {
        let _ = writeln!(std::io::stderr(), "SKIPPED: namespaces need root");
        return;
    }
    everything_restarts(true);
    everything_restarts(false);
}
