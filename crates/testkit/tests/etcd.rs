//! `tally-controller` with its state in etcd, on real switches: two controllers, a leader that dies
//! or stands still in the middle of its changes, etcd that is lost and comes back, jobs that come
//! and go by command.
//!
//! Uses the release programs (`cargo build --release`) and etcd. As root in namespaces.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/controller.rs"]
mod controller;
#[path = "common/site.rs"]
mod site;

use common::alone;
use controller::{CHANGED, Controller, roots};
use nix::sys::signal::Signal;
use site::{KEY, LONG, Site};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tally_schema::switch::report::JobPhase;
use tally_testkit::cluster::{Network, prefixed};

const FLEET: &str = "etcd://127.0.0.1:2379/lab";
const LEADER: &str = r#""event":"leader""#;
const STANDBY: &str = r#""event":"standby""#;

/// From the death of a switch to its jobs on other trees, though the leader dies, too. Twice what
/// it takes: the machine may be busy.
const REACTION: Duration = Duration::from_secs(4);

/// An etcd of one member, in the namespace of the controllers.
struct Etcd {
    child: Child,
}

impl Etcd {
    /// Starts it on what is in its folder.
    fn start(site: &Site) -> Self {
        let data = site.file("etcd");
        let mut command = prefixed(&site.prefix(), Path::new("etcd"));
        command.arg("--data-dir").arg(&data);
        command.args(["--listen-client-urls", "http://127.0.0.1:2379"]);
        command.args(["--advertise-client-urls", "http://127.0.0.1:2379"]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        command.args([
            "--unsafe-no-fsync",
            "--logger",
            "zap",
            "--log-level",
            "error",
        ]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let it = Self { child };
        let until = Instant::now() + LONG;
        while call(site, &["endpoint", "health"]).is_none() {
            assert!(Instant::now() < until, "etcd does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        it
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What etcd's own client prints; `None` if it fails.
fn call(site: &Site, arguments: &[&str]) -> Option<String> {
    let mut command: Command = prefixed(&site.prefix(), Path::new("etcdctl"));
    command.env("ETCDCTL_API", "3").args(arguments);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}

/// Version of the plan that is kept.
fn version(site: &Site) -> u64 {
    let plan = site.done(&["show", "plan", FLEET, "--json"]);
    let (_, rest) = plan.split_once("\"version\": ").unwrap();
    let (version, _) = rest.split_once(',').unwrap();
    version.parse().unwrap()
}

/// The configuration's version of each switch: it counts the changes made.
fn versions(site: &Site, switches: &[&str]) -> Vec<u64> {
    let all = switches.iter().map(|name| site.version(name));
    all.collect()
}

#[test]
fn controllers_with_their_state_in_etcd_finish_what_one_began() {
    if Network::for_this_user() != Network::Namespaces {
        println!("SKIPPED: needs root (network namespaces)");
        return;
    }
    let _alone = alone();
    let mut site = Site::start();
    let etcd = Etcd::start(&site);
    let file = site.fleet("etcd", &[0, 1], "none");
    let none = site.call(&["show", "jobs", FLEET]);
    site.refused(&none, 1, &["no fleet is there", "tally-controller import"]);
    let text = site.done(&["import", &file, FLEET]);
    assert!(text.contains("2 jobs new or changed"), "{text}");
    let text = site.done(&["import", &file, FLEET]);
    assert!(text.contains("0 jobs new or changed"), "{text}");

    let first = Controller::start(&site, "first", &[FLEET, "--lease", "10"]);
    first.wait(&site, CHANGED, 1);
    // It sees the end of the process, long before that of the lease.
    let second = Controller::start(&site, "second", &[FLEET]);
    second.wait(&site, STANDBY, 1);
    let [root, other] = roots(&site, "");
    site.sums(&[0]);
    assert_eq!(version(&site), 1);

    // The leader dies halfway. The other one finishes its plan, and makes each change once.
    let before = versions(&site, &[other, "leaf1", "leaf2"]);
    let start = Instant::now();
    site.kill_switch(root);
    site.wait_changed("leaf1", before[1]);
    let log = first.log();
    first.kill();
    assert_eq!(log.matches(CHANGED).count(), 1, "{log}");
    let killed = start.elapsed();
    second.wait(&site, LEADER, 1);
    let leads = start.elapsed();
    second.wait(&site, CHANGED, 1);
    let changes = start.elapsed();
    println!(
        "from the death of {root}: leader killed halfway {} ms, the next one leads {} ms, changes \
         made {} ms",
        killed.as_millis(),
        leads.as_millis(),
        changes.as_millis()
    );
    assert!(changes < REACTION, "{changes:?}");
    assert_eq!(site.with_but(7, root), [other, "leaf1", "leaf2"]);
    assert_eq!(version(&site), 2);
    // The root came for two jobs, and each leaf lost two roles and got two.
    let made: Vec<_> = versions(&site, &[other, "leaf1", "leaf2"])
        .iter()
        .zip(&before)
        .map(|(now, then)| now - then)
        .collect();
    assert_eq!(made, [2, 4, 4]);
    site.sums(&[0]);
    site.start_switch(root);
    second.wait(&site, r#""change":"link-up""#, 2);

    // Etcd is lost while workers sum: they end well, and switches are not changed.
    let workers = site.train(0, 3_000_000);
    site.wait(other, 7, |job| {
        job.is_some_and(|it| it.phase == JobPhase::Running)
    });
    etcd.kill();
    second.wait(&site, r#""event":"store-lost""#, 1);
    for worker in workers {
        worker.wait_ok(LONG).unwrap();
    }
    site.is_exact(0, 3_000_000);
    let before = versions(&site, &[root, "leaf1", "leaf2"]);
    site.kill_switch(other);
    second.wait(&site, r#""change":"switch-down""#, 2);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(versions(&site, &[root, "leaf1", "leaf2"]), before);
    let start = Instant::now();
    let etcd = Etcd::start(&site);
    second.wait(&site, CHANGED, 2);
    println!(
        "from etcd's return to the changes: {} ms",
        start.elapsed().as_millis()
    );
    assert_eq!(site.with_but(7, other), [root, "leaf1", "leaf2"]);
    assert_eq!(version(&site), 3);
    site.sums(&[0]);
    site.start_switch(other);
    second.wait(&site, r#""change":"link-up""#, 4);

    // The leader stands still halfway, and is continued when another one has finished.
    let third = Controller::start(&site, "third", &[FLEET]);
    third.wait(&site, STANDBY, 1);
    let before = site.version("leaf1");
    site.kill_switch(root);
    site.wait_changed("leaf1", before);
    second.signal(Signal::SIGSTOP);
    third.wait(&site, CHANGED, 1);
    let roles = site.with_but(7, root);
    assert_eq!(roles, [other, "leaf1", "leaf2"]);
    let now = version(&site);
    second.signal(Signal::SIGCONT);
    second.wait(&site, STANDBY, 2);
    assert_eq!(site.with_but(7, root), roles);
    assert_eq!(version(&site), now);
    site.sums(&[0]);
    site.start_switch(root);
    third.wait(&site, r#""change":"switch-up""#, 1);

    // Jobs go and come by command.
    let changed = third.count(CHANGED);
    site.done(&["cancel", FLEET, "job1"]);
    third.wait(&site, CHANGED, changed + 1);
    // A switch that is slow to answer is changed in a later loop.
    for switch in [root, other, "leaf1", "leaf2"] {
        site.wait(switch, 8, |job| job.is_none());
    }
    let gone = site.call(&["cancel", FLEET, "job1"]);
    site.refused(&gone, 1, &["job job1: no such job", "job0"]);
    let key = site.file("8.key").display().to_string();
    let workers: Vec<_> = (0..4).map(|rank| format!("job1-worker{rank}")).collect();
    let workers = workers.join(",");
    let submit = [
        "submit",
        FLEET,
        "job1",
        "--workers",
        &workers,
        "--bytes",
        "80000",
    ];
    let number = ["--id", "7", "--key-file", &key];
    let taken = site.call(&[&submit[..], &number].concat());
    site.refused(&taken, 2, &["7"]);
    let number = ["--id", "8", "--key-file", &key];
    let text = site.done(&[&submit[..], &number].concat());
    assert_eq!(text, "job job1: number 8, 4 workers\n");
    third.wait(&site, CHANGED, changed + 2);
    site.sums(&[0, 1]);
    let jobs = site.done(&["show", "jobs", FLEET]);
    assert!(jobs.contains("job1"), "{jobs}");
    let exported = site.done(&["export", FLEET]);
    assert!(!exported.contains(KEY), "{exported}");
    let exported = site.done(&["export", FLEET, "--with-keys"]);
    assert!(exported.contains(KEY), "{exported}");

    // The leader ends: the other one has the lead at once.
    let leads = second.count(LEADER);
    assert!(third.end().success());
    let start = Instant::now();
    second.wait(&site, LEADER, leads + 1);
    assert!(start.elapsed() < Duration::from_secs(2));
    site.sums(&[0]);
    assert!(second.end().success());
    drop(etcd);
    let lost = site.call(&["show", "plan", FLEET]);
    site.refused(&lost, 4, &["etcd does not answer"]);
}

/// Where an etcd with TLS listens, and its peers.
const WITH_TLS: [&str; 2] = ["https://127.0.0.1:23790", "https://127.0.0.1:23800"];

#[test]
fn etcd_is_reached_over_tls_with_a_certificate() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(file("ca.crt"), certificate.pem()).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned()];
        let params = rcgen::CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(file(&format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    let [clients, peers] = WITH_TLS;
    let mut command = Command::new("etcd");
    command.args(["--data-dir", &file("data"), "--log-level", "error"]);
    command.args([
        "--listen-client-urls",
        clients,
        "--advertise-client-urls",
        clients,
    ]);
    command.args(["--listen-peer-urls", peers, "--peer-auto-tls"]);
    command.args(["--initial-advertise-peer-urls", peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    command.args([
        "--cert-file",
        &file("server.crt"),
        "--key-file",
        &file("server.key"),
    ]);
    command.args(["--client-cert-auth", "--trusted-ca-file", &file("ca.crt")]);
    command
        .args(["--logger", "zap"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(child) = command.spawn() else {
        println!("SKIPPED: no etcd is installed");
        return;
    };
    let _etcd = Etcd { child };
    let fleet = "etcd://127.0.0.1:23790/tls";
    let call = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = Command::new(common::programs().join("tally-controller"));
        command.args(arguments);
        for (name, value) in variables {
            command.env(name, file(value));
        }
        let output = command.output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    };
    let ca = ("ETCDCTL_CACERT", "ca.crt");
    let whole = [
        ca,
        ("ETCDCTL_CERT", "client.crt"),
        ("ETCDCTL_KEY", "client.key"),
    ];
    let (code, example) = call(&[], &["example", "grid-fig1"]);
    assert_eq!(code, Some(0), "{example}");
    let path = file("fleet.json");
    std::fs::write(&path, with_keys(&example)).unwrap();
    let until = Instant::now() + LONG;
    loop {
        let (code, text) = call(&whole, &["import", &path, fleet]);
        if code == Some(0) {
            break;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (code, text) = call(&whole, &["show", "topology", fleet]);
    assert_eq!(code, Some(0), "{text}");
    // Without TLS, without a certificate, and with half of one.
    for (variables, want, words) in [
        (&[][..], 4, "etcd does not answer"),
        (&whole[..1], 4, "etcd does not answer"),
        (
            &whole[..2],
            2,
            "ETCDCTL_CERT and ETCDCTL_KEY: one of them is set",
        ),
    ] {
        let (code, text) = call(variables, &["show", "topology", fleet]);
        assert_eq!(code, Some(want), "{variables:?}: {text}");
        assert!(text.contains(words), "{variables:?}: {text}");
    }
}

/// An example's fleet, whose jobs have numbers and keys.
fn with_keys(example: &str) -> String {
    let job = r#""jobs": [
    {"#;
    assert!(example.contains(job), "{example}");
    example.replace(job, &format!(r#"{job} "id": 7, "key": "{KEY}","#))
}
