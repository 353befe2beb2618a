//! A fabric of real switches for `tally-controller`: its fleets, plans, jobs and their sums.

#![allow(dead_code, reason = "each test takes what it needs")]

use super::common::programs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tally_schema::switch::config::ControlTcp;
use tally_schema::switch::report::JobReport;
use tally_testkit::cluster::{Timeouts, prefixed};
use tally_testkit::fabric::{Fabric, FabricSpec};
use tally_testkit::reference::{Inputs, Reference};

pub const LONG: Duration = Duration::from_secs(60);
pub const SPINES: [&str; 2] = ["spine1", "spine2"];
/// The switch at a TCP port of its own namespace.
const REMOTE: &str = "leaf2";
const ADDRESS: &str = "127.0.0.1:31300";

/// A fabric whose switches know no job, with parameter servers of both jobs at all of them.
pub struct Site(pub Fabric);

impl Site {
    pub fn start() -> Self {
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

    pub fn start_switch(&mut self, name: &str) {
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

    pub fn kill_switch(&mut self, name: &str) {
        let switch = self.0.plan().find(name).unwrap();
        self.0.kill_switch(switch).unwrap();
    }

    /// Writes a fleet of these jobs, in which one spine is down, and its plan.
    pub fn plan(&self, name: &str, jobs: &[usize], down: &str) -> [String; 2] {
        let fleet = self.fleet(name, jobs, down);
        let plan = self.done(&["plan", &fleet, "--trees", "1", "--json"]);
        [fleet, self.write(&format!("{name}-plan.json"), &plan)]
    }

    /// Writes a fleet of these jobs, in which one spine is down.
    pub fn fleet(&self, name: &str, jobs: &[usize], down: &str) -> String {
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
        self.write(&format!("{name}-fleet.json"), &text)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.folder().join(name)
    }

    pub fn mode(&self, name: &str) {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.file(name), mode).unwrap();
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.file(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn has_namespaces(&self) -> bool {
        self.0.namespaces().is_some()
    }

    /// Words in front of a command that is to reach the switch at a TCP port.
    pub fn prefix(&self) -> Vec<String> {
        let remote = self.0.plan().find(REMOTE).unwrap();
        let namespaces = self.0.namespaces();
        namespaces.map_or_else(Vec::new, |it| it.switch_prefix(remote))
    }

    /// An authority, and certificates of the switch, of the controller, and of the hosts of job 0.
    pub fn make_certificates(&self) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        self.write("ca.crt", &certificate.pem());
        let issuer = rcgen::Issuer::new(params, key);
        let hosts = (0..4).map(|rank| format!("job0-worker{rank}"));
        let hosts = hosts.map(|name| (name.clone(), name));
        let programs = ["switch", "client"].map(|it| (it.to_owned(), "localhost".to_owned()));
        for (name, of) in programs.into_iter().chain(hosts) {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec![of]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            self.write(&format!("{name}.crt"), &certificate.pem());
            self.write(&format!("{name}.key"), &key.serialize_pem());
            self.mode(&format!("{name}.key"));
        }
    }

    pub fn spawn(&self, arguments: &[&str]) -> Child {
        let program = programs().join("tally-controller");
        let mut command = prefixed(&self.prefix(), &program);
        let command = command.args(arguments).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn call(&self, arguments: &[&str]) -> Output {
        self.spawn(arguments).wait_with_output().unwrap()
    }

    #[track_caller]
    pub fn done(&self, arguments: &[&str]) -> String {
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
    pub fn apply(&self, [fleet, plan]: &[String; 2], words: &[&str]) {
        let text = self.done(&["apply", fleet, plan]);
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    /// An apply that must fail.
    #[track_caller]
    pub fn refused(&self, output: &Output, code: i32, words: &[&str]) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    pub fn job(&self, switch: &str, id: u16) -> Option<JobReport> {
        let switch = self.0.plan().find(switch).unwrap();
        let report = self.0.switch_report(switch).unwrap();
        report.jobs.into_iter().find(|it| it.id == id)
    }

    /// The version of a switch's configuration, which counts its changes.
    pub fn version(&self, switch: &str) -> u64 {
        let switch = self.0.plan().find(switch).unwrap();
        self.0.switch_report(switch).unwrap().config_version
    }

    /// The switches that have a job.
    pub fn with(&self, id: u16) -> Vec<String> {
        self.with_but(id, "")
    }

    /// The same, without one that does not run.
    pub fn with_but(&self, id: u16, down: &str) -> Vec<String> {
        let switches = self.0.plan().switches();
        let names = switches.map(|it| self.0.plan().name(it));
        let names = names.filter(|it| it != down);
        names.filter(|it| self.job(it, id).is_some()).collect()
    }

    /// An all-reduce of each job over its tree, whose sums must be exact.
    #[track_caller]
    pub fn sums(&self, jobs: &[usize]) {
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

    pub fn train(&self, job: usize, elements: u64) -> Vec<tally_testkit::cluster::Program> {
        let elements = elements.to_string();
        let sum = ["--synthetic", "--elements", &elements, "--seed", "1"];
        let sum = [&sum[..], &["--arithmetic", "fixed"]].concat();
        let sum: Vec<_> = sum.into_iter().map(str::to_owned).collect();
        self.0.start_workers(job, |_| sum.clone()).unwrap()
    }

    #[track_caller]
    pub fn is_exact(&self, job: usize, elements: u64) {
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

    pub fn ctl(&self, switch: &str, line: &str, input: &str) -> Result<String, String> {
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
    pub fn wait(&self, switch: &str, id: u16, is_so: impl Fn(Option<&JobReport>) -> bool) {
        let until = Instant::now() + LONG;
        while !is_so(self.job(switch, id).as_ref()) {
            assert!(Instant::now() < until, "{}", self.logs());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the configuration of a switch has changed since this version.
    #[track_caller]
    pub fn wait_changed(&self, switch: &str, since: u64) {
        let until = Instant::now() + LONG;
        while self.version(switch) == since {
            assert!(Instant::now() < until, "{}", self.logs());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn logs(&self) -> String {
        let log = |switch| {
            let name = self.0.plan().name(switch);
            format!("--- {name}\n{}", self.0.switch_log(switch))
        };
        self.0.plan().switches().map(log).collect()
    }
}

/// The keys of the jobs of a fabric.
pub const KEY: &str = "00112233445566778899aabbccddeeff";
pub const OTHER_KEY: &str = "00112233445566778899aabbccddef00";
