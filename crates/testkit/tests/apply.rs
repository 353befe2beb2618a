//! `tally-controller apply` on real switches: jobs begin, move and are repaired, with exact sums;
//! runs that are refused or killed are run again. One switch is reached over TCP with mutual TLS.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces, else over memif.

#![allow(clippy::unwrap_used)]

mod common;

use common::{alone, programs};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tally_schema::switch::config::ControlTcp;
use tally_schema::switch::report::{JobPhase, JobReport};
use tally_testkit::cluster::{Network, Timeouts, prefixed};
use tally_testkit::fabric::{Fabric, FabricSpec};
use tally_testkit::reference::{Inputs, Reference};

const LONG: Duration = Duration::from_secs(60);
const SPINES: [&str; 2] = ["spine1", "spine2"];
/// The switch at a TCP port of its own namespace.
const REMOTE: &str = "leaf2";
const ADDRESS: &str = "127.0.0.1:31300";

/// A fabric whose switches know no job, with parameter servers of both jobs at all of them.
struct Site(Fabric);

impl Site {
    fn start() -> Self {
        let shape = "2x2x2".parse().unwrap();
        let fabric = Fabric::new(FabricSpec {
            shape,
            programs: programs(),
            timeouts: Timeouts {
                join_ms: 30_000,
                stall_ms: 30_000,
                ..Timeouts::default()
            },
            ..FabricSpec::default()
        });
        let mut site = Self(fabric.unwrap());
        if site.has_namespaces() {
            site.make_certificates();
            let mut command = prefixed(&site.prefix(), Path::new("ip"));
            let command = command.args(["link", "set", "lo", "up"]);
            assert!(command.status().unwrap().success());
        }
        let switches: Vec<_> = site.0.plan().switches().collect();
        for &switch in &switches {
            site.start_switch(&site.0.plan().name(switch));
        }
        for &switch in &switches {
            site.0.start_ps_for(switch, &[0, 1]).unwrap();
        }
        site
    }

    fn start_switch(&mut self, name: &str) {
        let switch = self.0.plan().find(name).unwrap();
        let mut config = self.0.switch_config(switch);
        config.jobs.clear();
        if name == REMOTE && self.has_namespaces() {
            config.control.as_mut().unwrap().tcp = Some(ControlTcp {
                listen: ADDRESS.parse().unwrap(),
                certificate: self.file("switch.crt"),
                key: self.file("switch.key"),
                client_ca: self.file("ca.crt"),
            });
        }
        self.0.start_switch_with(switch, &config).unwrap();
    }

    fn kill_switch(&mut self, name: &str) {
        let switch = self.0.plan().find(name).unwrap();
        self.0.kill_switch(switch).unwrap();
    }

    /// Writes a fleet of these jobs, in which one spine is down, and its plan.
    fn plan(&self, name: &str, jobs: &[usize], down: &str) -> [String; 2] {
        let fabric = &self.0;
        let up = |spine: &str| if spine == down { 0 } else { 10 };
        let list = |items: Vec<String>| items.join(",");
        let switches = fabric.plan().switches().map(|it| {
            let name = fabric.plan().name(it);
            let capacity = up(&name);
            let control = if name == REMOTE && self.has_namespaces() {
                format!(r#""{ADDRESS}","server_name":"localhost""#)
            } else {
                format!(r#""{}""#, fabric.control_socket(it).display())
            };
            format!(r#"{{"name":"{name}","capacity":{capacity},"control":{control}}}"#)
        });
        let tls = r#"{"certificate":"client.crt","key":"client.key","ca":"ca.crt"}"#;
        let leaves = ["leaf1", "leaf2"];
        let links = leaves.iter().flat_map(|leaf| {
            let link = move |spine: &&str| {
                let rate = up(spine);
                format!(r#"{{"between":["{leaf}","{spine}"],"rate":{rate}}}"#)
            };
            SPINES.iter().map(link).collect::<Vec<_>>()
        });
        let worker = |job, rank| format!("job{job}-worker{rank}");
        let hosts = jobs.iter().flat_map(|job| {
            (0..4).map(move |rank| {
                let (name, leaf) = (worker(job, rank), 1 + rank / 2);
                format!(r#"{{"name":"{name}","switch":"leaf{leaf}","rate":1}}"#)
            })
        });
        let servers = SPINES.map(|it| format!(r#"{{"name":"ps-{it}","switch":"{it}","rate":10}}"#));
        let specs = jobs.iter().map(|job| {
            let workers = (0..4).map(|rank| format!(r#""{}""#, worker(job, rank)));
            let (id, workers) = (7 + job, list(workers.collect()));
            let key = [KEY, OTHER_KEY][*job];
            std::fs::write(self.file(&format!("{id}.key")), key).unwrap();
            self.mode(&format!("{id}.key"));
            format!(
                r#"{{"name":"job{job}","id":{id},"key_file":"{id}.key","bytes":80000,"workers":[{workers}]}}"#
            )
        });
        let text = format!(
            r#"{{"unit":"Gbit/s","switches":[{}],"links":[{}],"hosts":[{}],"servers":[{}],"jobs":[{}],"tls":{tls}}}"#,
            list(switches.collect()),
            list(links.collect()),
            list(hosts.collect()),
            list(servers.to_vec()),
            list(specs.collect())
        );
        let fleet = self.write(&format!("{name}-fleet.json"), &text);
        let plan = self.done(&["plan", &fleet, "--trees", "1", "--json"]);
        [fleet, self.write(&format!("{name}-plan.json"), &plan)]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.folder().join(name)
    }

    fn mode(&self, name: &str) {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.file(name), mode).unwrap();
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.file(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn has_namespaces(&self) -> bool {
        self.0.namespaces().is_some()
    }

    /// Words in front of a command that is to reach the switch at a TCP port.
    fn prefix(&self) -> Vec<String> {
        let remote = self.0.plan().find(REMOTE).unwrap();
        let namespaces = self.0.namespaces();
        namespaces.map_or_else(Vec::new, |it| it.switch_prefix(remote))
    }

    /// An authority, and certificates of the switch and of the controller.
    fn make_certificates(&self) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        self.write("ca.crt", &certificate.pem());
        let issuer = rcgen::Issuer::new(params, key);
        for name in ["switch", "client"] {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            self.write(&format!("{name}.crt"), &certificate.pem());
            self.write(&format!("{name}.key"), &key.serialize_pem());
            self.mode(&format!("{name}.key"));
        }
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        let program = programs().join("tally-controller");
        let mut command = prefixed(&self.prefix(), &program);
        let command = command.args(arguments).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    fn call(&self, arguments: &[&str]) -> Output {
        self.spawn(arguments).wait_with_output().unwrap()
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.call(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {error}\n{}",
            self.logs()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn apply(&self, [fleet, plan]: &[String; 2], words: &[&str]) {
        let text = self.done(&["apply", fleet, plan]);
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    /// An apply that must fail.
    #[track_caller]
    fn refused(&self, output: &Output, code: i32, words: &[&str]) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    fn job(&self, switch: &str, id: u16) -> Option<JobReport> {
        let switch = self.0.plan().find(switch).unwrap();
        let report = self.0.switch_report(switch).unwrap();
        report.jobs.into_iter().find(|it| it.id == id)
    }

    /// The switches that have a job.
    fn with(&self, id: u16) -> Vec<String> {
        self.with_but(id, "")
    }

    /// The same, without one that does not run.
    fn with_but(&self, id: u16, down: &str) -> Vec<String> {
        let switches = self.0.plan().switches();
        let names = switches.map(|it| self.0.plan().name(it));
        let names = names.filter(|it| it != down);
        names.filter(|it| self.job(it, id).is_some()).collect()
    }

    /// An all-reduce of each job over its tree, whose sums must be exact.
    #[track_caller]
    fn sums(&self, jobs: &[usize]) {
        for &job in jobs {
            let workers = self.train(job, 20_000);
            for worker in workers {
                worker
                    .wait_ok(LONG)
                    .unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()));
            }
            self.is_exact(job, 20_000);
        }
    }

    fn train(&self, job: usize, elements: u64) -> Vec<tally_testkit::cluster::Program> {
        let elements = elements.to_string();
        let sum = ["--synthetic", "--elements", &elements, "--seed", "1"];
        let sum = [&sum[..], &["--arithmetic", "fixed"]].concat();
        let sum: Vec<_> = sum.into_iter().map(str::to_owned).collect();
        self.0.start_workers(job, |_| sum.clone()).unwrap()
    }

    #[track_caller]
    fn is_exact(&self, job: usize, elements: u64) {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let reference = Reference {
            program: project.join("worker-agent/reference/check.py"),
        };
        let inputs = Inputs::Synthetic {
            seed: 1,
            element: "f32",
            elements,
            workers: 4,
        };
        let tree = self.0.plan().ranks();
        let outputs = (0..4).map(|rank| self.0.output(job, rank));
        let verdict = reference
            .check_tree(&tree, "fixed", 1024, &inputs, outputs)
            .unwrap();
        assert!(verdict.exact, "{}\n{}", verdict.text, self.logs());
    }

    fn ctl(&self, switch: &str, line: &str, input: &str) -> Result<String, String> {
        let switch = self.0.plan().find(switch).unwrap();
        let mut command = Command::new(programs().join("tallyctl"));
        command.arg("--socket").arg(self.0.control_socket(switch));
        command.args(line.split(' ')).stdin(Stdio::piped());
        let streams = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = streams.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }

    /// Waits until a job at a switch is so.
    #[track_caller]
    fn wait(&self, switch: &str, id: u16, is_so: impl Fn(Option<&JobReport>) -> bool) {
        let until = Instant::now() + LONG;
        while !is_so(self.job(switch, id).as_ref()) {
            assert!(Instant::now() < until, "{}", self.logs());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn logs(&self) -> String {
        let log = |switch| {
            let name = self.0.plan().name(switch);
            format!("--- {name}\n{}", self.0.switch_log(switch))
        };
        self.0.plan().switches().map(log).collect()
    }
}

/// The keys of the jobs of a fabric.
const KEY: &str = "00112233445566778899aabbccddeeff";
const OTHER_KEY: &str = "00112233445566778899aabbccddef00";

#[test]
fn running_switches_follow_a_plan_and_the_next_one() {
    let _alone = alone();
    let mut site = Site::start();
    let first = site.plan("first", &[0], "spine2");
    let [fleet, plan] = &first;
    let text = site.done(&["apply", fleet, plan, "--dry-run"]);
    assert!(text.contains("3 changes to make; none is made"), "{text}");
    assert_eq!(site.with(7), [""; 0]);
    let output = site.call(&["status", fleet, plan]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("no such job").count(), 3, "{text}");

    // A file that mixes up two switches.
    let text = std::fs::read_to_string(fleet).unwrap();
    let text = text
        .replace("spine1-c", "@")
        .replace("spine2-c", "spine1-c");
    let mixed = site.write("mixed-fleet.json", &text.replace('@', "spine2-c"));
    let output = site.call(&["apply", &mixed, plan]);
    site.refused(
        &output,
        1,
        &["switch spine", "-control.sock is switch spine"],
    );

    site.apply(&first, &["job job0 begins", "3 changes made: all switches"]);
    assert_eq!(site.with(7), ["spine1", "leaf1", "leaf2"]);
    site.sums(&[0]);
    site.apply(&first, &["job job0 stays", "nothing to change"]);
    let text = site.done(&["status", fleet, plan]);
    assert_eq!(text.matches("as planned").count(), 3, "{text}");
    assert_eq!(text.matches("0 of 2").count(), 3, "{text}");
    let json = site.done(&["apply", fleet, plan, "--json"]);
    assert!(json.contains(r#""reason": "same""#) && json.contains(r#""rank": 3"#));

    // A job that runs does not move, and ends well.
    let second = site.plan("second", &[0, 1], "spine1");
    let [fleet, plan] = &second;
    let workers = site.train(0, 3_000_000);
    site.wait("spine1", 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    let output = site.call(&["apply", fleet, plan, "--drain", "0.1"]);
    let words = [
        "job job0",
        "still running",
        "--end-running",
        "nothing is changed",
    ];
    site.refused(&output, 1, &words);
    assert_eq!(site.with(7), ["spine1", "leaf1", "leaf2"]);
    assert!(!site.job("spine1", 7).unwrap().draining);
    // A change of another hand, while it waits for the job.
    let waiting = site.spawn(&["apply", fleet, plan, "--drain", "60"]);
    site.wait("spine1", 7, |job| job.is_some_and(|it| it.draining));
    let add = "job add 99 --workers 2 --key-file -";
    site.ctl("spine1", add, "9f8e7d6c5b4a39281706f5e4d3c2b1a0")
        .unwrap();
    let output = waiting.wait_with_output().unwrap();
    site.refused(&output, 1, &["spine1", "another controller or operator"]);
    let error = String::from_utf8_lossy(&output.stderr);
    let is_draining = site.job("spine1", 7).unwrap().draining;
    assert!(!is_draining, "{error}\n{}", site.logs());
    for worker in workers {
        worker.wait_ok(LONG).unwrap();
    }
    site.is_exact(0, 3_000_000);

    // leaf2 refuses a key that another job has: half of the changes are made.
    site.ctl("leaf2", &add.replace("99", "98"), OTHER_KEY)
        .unwrap();
    let output = site.call(&["apply", fleet, plan]);
    let words = ["switch leaf2", "job job1 (8)", "of 9 changes", "again"];
    site.refused(&output, 1, &words);
    assert_eq!(site.with(7), ["spine2", "leaf1", "leaf2"]);
    assert_eq!(site.with(8), ["leaf1"]);
    site.ctl("leaf2", "job remove 98", "").unwrap();
    let words = ["job job0 stays", "job job1 is repaired", "2 changes made"];
    site.apply(&second, &words);
    site.sums(&[0, 1]);
    assert_eq!(site.with(99), ["spine1"]);

    if Network::for_this_user() != Network::Namespaces {
        return;
    }
    // A job that runs on is ended only if that is asked for.
    let first = site.plan("first", &[0, 1], "spine2");
    let workers = site.train(0, 50_000_000);
    site.wait("spine2", 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    let [fleet, plan] = &first;
    site.done(&["apply", fleet, plan, "--drain", "0", "--end-running"]);
    for worker in workers {
        let ended = worker.wait(LONG).unwrap();
        assert!(ended.log.contains("removed"), "{}", ended.log);
    }
    site.sums(&[0]);
    site.apply(&second, &["job job0 moves", "12 changes made"]);
    let [fleet, plan] = &second;

    // A switch that is down stops an apply before it changes anything. It comes back without jobs.
    site.kill_switch("leaf1");
    let output = site.call(&["apply", fleet, plan]);
    site.refused(&output, 4, &["switch leaf1", "nothing is changed"]);
    site.start_switch("leaf1");
    let words = ["job job0 is repaired: leaf1 lacks it", "2 changes made"];
    site.apply(&second, &words);
    site.sums(&[0, 1]);

    // spine2 dies, as the next fleet says. The plan has the jobs at spine1.
    site.kill_switch("spine2");
    let third = site.plan("third", &[0, 1], "spine2");
    let [fleet, plan] = &third;
    let mut killed = site.spawn(&["apply", fleet, plan]);
    site.wait("leaf1", 7, |job| job.is_none());
    killed.kill().unwrap();
    killed.wait().unwrap();
    site.apply(
        &third,
        &["switch spine2 does not answer", "all switches report"],
    );
    assert_eq!(site.with_but(7, "spine2"), ["spine1", "leaf1", "leaf2"]);
    site.sums(&[0, 1]);
    // Back again, it is read again.
    site.start_switch("spine2");
    site.apply(&third, &["nothing to change"]);
}
