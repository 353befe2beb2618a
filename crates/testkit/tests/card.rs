//! The simulated card behind a real switch, with agents whose processes hold every sum to what it
//! must be: jobs go to the card and come back by what they have to do, and the card is killed and
//! started again, over memif as an ordinary user could run it, and over a veth pair with
//! `net_af_packet` at both ends.
//!
//! Uses the release programs (`cargo build --release`).

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/program.rs"]
mod program;

use common::{alone, programs};
use program::{LONG, Program, connect};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};
use tally_local::{Arithmetic, Client, Dtype, Operation, Priority, Region, Submission};
use tally_schema::switch::report::{CardReport, CardState, Report};
use tally_testkit::cluster::{Links, Namespaces, allowed};

/// Of an example, and the job's number behind it.
const KEY: &str = "00112233445566778899aabbccdd";
/// The jobs, each with a worker at each agent.
const JOBS: [u16; 2] = [7, 8];
const WORKERS: u8 = 2;
/// The switch's ports: that of each agent, that of the parameter server, and the card's.
const AGENTS: usize = 2;
const PS: usize = AGENTS;
const CARD: usize = PS + 1;
/// Elements of a fragment.
const FRAGMENT: usize = 256;
/// The longest sum.
const ELEMENTS_MAX: usize = 160 * FRAGMENT;

/// How often jobs may change places until they do so undisturbed.
const TRIES: usize = 4;

/// Between switch and card.
enum Link {
    Memif,
    /// A veth pair, each end in a namespace.
    Pair(Namespaces),
}

impl Link {
    fn pair() -> Self {
        let links = Links {
            mtu: 1500,
            rate_mbit: None,
        };
        Self::Pair(Namespaces::new(1, links).unwrap())
    }
}

/// A switch with a card, a parameter server, and two agents.
struct Stage {
    card: Mutex<Option<Program>>,
    switch: Option<Program>,
    ps: Option<Program>,
    agents: Vec<Program>,
    link: Link,
    /// Places of the card.
    places: u32,
    // Behind those who write to it.
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(link: Link, places: u32, jobs: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("tally-card-").tempdir();
        let mut stage = Self {
            card: Mutex::new(None),
            switch: None,
            ps: None,
            agents: Vec::new(),
            link,
            places,
            folder: folder.unwrap(),
        };
        stage.write(jobs);
        let prefix = match &stage.link {
            Link::Memif => Vec::new(),
            Link::Pair(wires) => wires.switch_prefix(),
        };
        let switch = stage.start(&prefix, "tally-switch", &["--config"], "switch");
        switch.logs("running on CPU", 1);
        stage.switch = Some(switch);
        stage.start_card();
        stage.ps = Some(stage.start(&[], "tally-agent", &["ps", "--config"], "ps"));
        for agent in 0..AGENTS {
            let name = format!("agent{agent}");
            let agent = stage.start(&[], "tally-agent", &["serve", "--config"], &name);
            stage.agents.push(agent);
        }
        stage.agents.iter().for_each(|it| it.logs("listening", 1));
        stage
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program with its configuration, which is called like its log.
    fn start(&self, prefix: &[String], program: &str, arguments: &[&str], name: &str) -> Program {
        let mut command = prefixed(prefix, program);
        command.args(arguments);
        command.arg(self.file(&format!("{name}.json")));
        Program::start(command, self.file(&format!("{name}.log")))
    }

    /// The switch's device for the card, and the card's for the switch.
    fn card_devices(&self) -> [String; 2] {
        match &self.link {
            Link::Memif => [(CARD, "server"), (0, "client")]
                .map(|(number, role)| self.memif(number, role, CARD)),
            Link::Pair(_) => [
                format!("net_af_packet{CARD},iface=port0"),
                "net_af_packet0,iface=eth0".to_owned(),
            ],
        }
    }

    fn memif(&self, number: usize, role: &str, id: usize) -> String {
        format!(
            "net_memif{number},role={role},id={id},socket={},socket-abstract=no,bsize=2048,rsize=8",
            self.file("memif.sock").display()
        )
    }

    /// The configurations.
    fn write(&self, card_jobs: &str) {
        let write = |name: &str, text: String| std::fs::write(self.file(name), text).unwrap();
        let [card, _] = self.card_devices();
        let hosts = (0..=PS).map(|id| self.memif(id, "server", id));
        let ports: Vec<_> = (0..)
            .zip(hosts.chain([card]))
            .map(|(id, device)| format!(r#"{{ "name": "p{id}", "device": "{device}" }}"#))
            .collect();
        let jobs = JOBS
            .map(|id| format!(r#"{{ "id": {id}, "key": "{KEY}{id:04x}", "workers": {WORKERS} }}"#));
        let jobs = jobs.join(",");
        write(
            "switch.json",
            format!(
                r#"{{ "address": {{ "mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254" }},
                     "ports": [{}], "jobs": [{jobs}], "stats_socket": "{}",
                     "card": {{ "port": "p{CARD}", "registers": {{ "socket": "{}" }}, "jobs": {card_jobs} }} }}"#,
                ports.join(","),
                self.file("switch.stat").display(),
                self.file("registers.sock").display()
            ),
        );
        let host = |host: usize| {
            format!(
                r#""switch": {{ "address": "10.84.0.254" }},
                   "transport": {{ "type": "dpdk", "device": "{}", "mac": "02:84:00:00:00:0{host}",
                                   "address": "10.84.0.{}" }}"#,
                self.memif(0, "client", host),
                host + 1
            )
        };
        for agent in 0..AGENTS {
            let name = format!("agent{agent}");
            // More would only wait for a simulated card.
            let text = format!(
                r#"{{ "socket": "{}", {}, "jobs": [{jobs}], "window": 64 }}"#,
                self.file(&format!("{name}.sock")).display(),
                host(agent)
            );
            write(&format!("{name}.json"), text);
        }
        let jobs = JOBS.map(|id| format!(r#"{{ "id": {id}, "key": "{KEY}{id:04x}" }}"#));
        let text = format!(r#"{{ {}, "jobs": [{}] }}"#, host(PS), jobs.join(","));
        write("ps.json", text);
    }

    fn start_card(&self) {
        let prefix = match &self.link {
            Link::Memif => Vec::new(),
            Link::Pair(wires) => wires.host_prefix(0),
        };
        let [_, device] = self.card_devices();
        let mut command = prefixed(&prefix, "tally-card");
        command.args(["run", "--places", &self.places.to_string()]);
        command.args(["--port", &device, "--registers"]);
        command.arg(self.file("registers.sock"));
        let card = Program::start(command, self.file("card.log"));
        *self.card.lock().unwrap() = Some(card);
    }

    /// Kills it on the spot.
    fn kill_card(&self) {
        drop(self.card.lock().unwrap().take());
    }

    fn report(&self) -> Report {
        let mut text = Vec::new();
        let stream = UnixStream::connect(self.file("switch.stat"));
        stream.unwrap().read_to_end(&mut text).unwrap();
        simd_json::from_slice(&mut text).unwrap()
    }

    fn card(&self) -> CardReport {
        self.report().card.unwrap()
    }

    /// Waits until the switch's report is so.
    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&Report, &CardReport) -> bool) {
        until(what, || {
            let report = self.report();
            let card = report.card.clone().unwrap();
            if is_so(&report, &card) {
                Ok(())
            } else {
                Err(report.to_string())
            }
        });
    }

    /// Waits until the card has these jobs.
    #[track_caller]
    fn until_card_has(&self, jobs: &[u16]) {
        self.until(&format!("the card has {jobs:?}"), |report, card| {
            let on_card = report.jobs.iter().filter(|job| job.on_card);
            card.jobs == jobs && on_card.map(|job| job.id).eq(jobs.iter().copied())
        });
    }

    /// Waits until the card has made so many results more.
    #[track_caller]
    fn until_card_sums(&self, results: u64) {
        let before = self.card().traffic.results;
        self.until("the card sums", |_, card| {
            card.traffic.results >= before + results
        });
    }

    /// Both ranks of a job sum as the load says, until it says that it is enough.
    fn work(&self, job: u16, load: &Load) {
        let (steps, orders) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut member = Member::new(self, job, 1);
                for (step, elements) in orders {
                    member.sum(step, elements);
                }
                member.leave();
            });
            let mut member = Member::new(self, job, 0);
            while !load.is_enough.load(Ordering::SeqCst) {
                let step = load.steps.load(Ordering::SeqCst);
                let elements = load.elements.load(Ordering::SeqCst);
                // It has failed, which it says itself.
                if steps.send((step, elements)).is_err() {
                    return;
                }
                member.sum(step, elements);
                load.steps.store(step + 1, Ordering::SeqCst);
                let pause = load.pause_ms.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(pause));
            }
            drop(steps);
            member.leave();
        });
    }

    /// All programs end in order; the switch says so only if no buffer is missing.
    fn end(mut self) {
        for agent in self.agents.drain(..) {
            assert!(agent.end().success());
        }
        assert!(self.ps.take().unwrap().end().success());
        assert!(self.switch.take().unwrap().end().success());
        assert!(self.card.lock().unwrap().take().unwrap().end().success());
    }
}

fn prefixed(prefix: &[String], program: &str) -> Command {
    let program = programs().join(program);
    match prefix {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> Result<(), String>) {
    let deadline = Instant::now() + LONG;
    while let Err(state) = is_so() {
        assert!(Instant::now() < deadline, "not so that {what}: {state}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a job has to do.
struct Load {
    elements: AtomicUsize,
    /// After each sum.
    pause_ms: AtomicU64,
    /// Sums so far.
    steps: AtomicU64,
    is_enough: AtomicBool,
}

impl Load {
    /// Less than a card is worth.
    fn idle() -> Self {
        let load = Self {
            elements: AtomicUsize::new(0),
            pause_ms: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            is_enough: AtomicBool::new(false),
        };
        load.rest();
        load
    }

    fn set(&self, fragments: usize, pause_ms: u64) {
        self.elements.store(fragments * FRAGMENT, Ordering::SeqCst);
        self.pause_ms.store(pause_ms, Ordering::SeqCst);
    }

    /// At most 20 contributions a second.
    fn rest(&self) {
        self.set(1, 100);
    }

    /// At most 800 contributions a second, and hundreds on a machine that is slow.
    fn warm_up(&self) {
        self.set(20, 50);
    }

    /// The highest rate.
    fn heat_up(&self) {
        self.set(ELEMENTS_MAX / FRAGMENT, 1);
    }

    /// Waits for so many sums more.
    #[track_caller]
    fn until_summed(&self, sums: u64) {
        let before = self.steps.load(Ordering::SeqCst);
        until("the job continues", || {
            let now = self.steps.load(Ordering::SeqCst);
            if now >= before + sums {
                Ok(())
            } else {
                Err(format!("{now} sums, {before} before"))
            }
        });
    }
}

/// While the jobs work, does what `direct` says.
fn while_working(stage: &Stage, loads: &[Load; 2], direct: impl FnOnce()) {
    /// Ends the loads, also after a panic.
    struct Enough<'a>(&'a [Load; 2]);
    impl Drop for Enough<'_> {
        fn drop(&mut self) {
            for load in self.0 {
                load.is_enough.store(true, Ordering::SeqCst);
            }
        }
    }
    std::thread::scope(|scope| {
        let _enough = Enough(loads);
        for (job, load) in JOBS.into_iter().zip(loads) {
            scope.spawn(move || stage.work(job, load));
        }
        direct();
    });
}

/// A rank of a job.
struct Member {
    client: Client,
    region: Region,
    rank: u8,
}

impl Member {
    fn new(stage: &Stage, job: u16, rank: u8) -> Self {
        let socket = stage.file(&format!("agent{rank}.sock"));
        let mut client = connect(&socket, (job, WORKERS), rank);
        let region = client.region(4 * ELEMENTS_MAX).unwrap();
        Self {
            client,
            region,
            rank,
        }
    }

    /// Sums once, and holds every element to what it must be.
    fn sum(&mut self, step: u64, elements: usize) {
        let values: Vec<_> = (0..elements)
            .flat_map(|at| element(self.rank, step, at).to_ne_bytes())
            .collect();
        self.region.write(0, &values);
        let submission = Submission {
            operation: Operation::Sum,
            dtype: Dtype::I32,
            arithmetic: Arithmetic::Own,
            priority: Priority::FIRST,
            more_follow: false,
            name: "w".into(),
        };
        let ticket = self.client.submit(&self.region, 0, elements, &submission);
        self.client.wait(ticket.unwrap(), Some(LONG)).unwrap();
        let mut bytes = vec![0; 4 * elements];
        self.region.read(0, &mut bytes);
        for (at, word) in bytes.as_chunks().0.iter().enumerate() {
            let want: i32 = (0..WORKERS).map(|rank| element(rank, step, at)).sum();
            assert_eq!(i32::from_ne_bytes(*word), want, "element {at} of {step}");
        }
    }

    fn leave(mut self) {
        self.client.finish(Some(LONG)).unwrap();
    }
}

/// What a rank adds, which no other rank does, nor the same at another step.
fn element(rank: u8, step: u64, at: usize) -> i32 {
    let mixed = (step * 64 + u64::from(rank)) * 1_000_003 + at as u64 * 31;
    (mixed % 1_999_993) as i32 - 1_000_000
}

/// The first job has the card, the second gets hotter and takes its place, and gives it back when
/// it rests.
fn change_places(stage: &Stage, [first, second]: &[Load; 2]) {
    first.warm_up();
    stage.until_card_has(&JOBS[..1]);
    stage.until_card_sums(100);

    second.heat_up();
    stage.until_card_has(&JOBS[1..]);
    stage.until_card_sums(100);
    // The other job resumes in software.
    let in_software = |report: &Report| report.counters["results"];
    let before = in_software(&stage.report());
    stage.until("the first is summed in software", |report, _| {
        in_software(report) >= before + 40
    });
    first.until_summed(5);

    second.rest();
    stage.until_card_has(&JOBS[..1]);
    stage.until_card_sums(100);
    second.until_summed(2);
}

#[test]
fn a_job_that_gets_hotter_takes_the_place_of_another_and_gives_it_back() {
    let _alone = alone();
    let stage = Stage::new(Link::Memif, 1, r#""auto""#);
    let loads = [Load::idle(), Load::idle()];
    while_working(&stage, &loads, || {
        for _ in 0..TRIES {
            let before = stage.card();
            change_places(&stage, &loads);
            let after = stage.card();
            // A card whose simulation gets no CPU for too long fails, and then the failover moves
            // jobs, not the choice.
            if after.events.failures == before.events.failures {
                let has_job = before.jobs.len() as u64;
                assert_eq!(
                    after.events.moves - before.events.moves,
                    5 - has_job,
                    "{after}"
                );
                return;
            }
        }
        panic!("the card always fails: {}", stage.report());
    });
    stage.end();
}

/// The card is killed in the middle of sums, so many times, and gets its job again when it is back.
fn is_killed_and_comes_back(link: Link, times: u64) {
    let stage = Stage::new(link, 8, "[7]");
    let loads = [Load::idle(), Load::idle()];
    let [first, second] = &loads;
    while_working(&stage, &loads, || {
        first.heat_up();
        for _ in 0..times {
            stage.until_card_has(&JOBS[..1]);
            stage.until_card_sums(500);
            stage.kill_card();
            stage.until("the card has failed", |report, card| {
                card.state != CardState::Working && !report.jobs[0].on_card
            });
            first.until_summed(5);
            stage.start_card();
        }
        stage.until_card_has(&JOBS[..1]);
        stage.until_card_sums(500);
        second.until_summed(2);
        assert!(stage.card().events.failures >= times);
    });
    stage.end();
}

#[test]
fn a_killed_card_comes_back_over_memif() {
    let _alone = alone();
    is_killed_and_comes_back(Link::Memif, 2);
}

#[test]
fn a_killed_card_comes_back_over_a_veth_pair() {
    let _alone = alone();
    if !allowed() {
        // Past the harness, which keeps what a passing test prints.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: needs root (network namespaces)"
        );
        return;
    }
    is_killed_and_comes_back(Link::pair(), 1);
}
