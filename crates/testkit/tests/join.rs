//! `tally-agent join`: hosts ask a controller that runs for their places in a job, on real switches
//! and agents; then the job's sums are exact. And whom it refuses.
//!
//! Uses the release programs (`cargo build --release`). As root in namespaces.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/controller.rs"]
mod controller;
#[path = "common/program.rs"]
mod program;
#[path = "common/site.rs"]
mod site;

use common::{alone, programs};
use controller::{CHANGED, Controller};
use program::connect;
use site::{LONG, Site};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};
use tally_local::{Arithmetic, Client, Dtype, Operation, Priority, Submission};
use tally_schema::agent::config::AgentController;
use tally_testkit::cluster::{Network, Program, prefixed};

const RANKS: u16 = 4;
/// Where the controller answers hosts, in its namespace. `join` runs there, too: it reaches its
/// agent over a Unix socket, which namespaces share.
const LISTEN: &str = "127.0.0.1:31400";

/// Where the controller's metrics are.
const METRICS: &str = "127.0.0.1:31401";

/// The controller's metrics, from its namespace.
fn metrics(site: &Site) -> String {
    let (host, port) = METRICS.split_once(':').unwrap();
    let get = r"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
    let script = format!("exec 3<>/dev/tcp/{host}/{port}; printf '{get}' >&3; cat <&3");
    let mut command = prefixed(&site.prefix(), Path::new("bash"));
    let output = command.args(["-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn agents(site: &Site) -> Vec<Program> {
    let start = |rank| {
        site.0.start_agent(0, rank, |config| {
            config.controller = Some(AgentController {
                // The first has no listener.
                addresses: vec!["127.0.0.1:31399".to_owned(), LISTEN.to_owned()],
                certificate: format!("job0-worker{rank}.crt").into(),
                key: format!("job0-worker{rank}.key").into(),
                ca: "ca.crt".into(),
                server_name: Some("localhost".to_owned()),
                host: Some(format!("job0-worker{rank}")),
            });
        })
    };
    (0..RANKS).map(|rank| start(rank).unwrap()).collect()
}

fn join(site: &Site, rank: u16, arguments: &[&str]) -> Child {
    let mut command = prefixed(&site.prefix(), &programs().join("tally-agent"));
    command
        .arg("join")
        .arg("--config")
        .arg(site.0.agent_file(0, rank, "json"));
    command
        .arg("--socket")
        .arg(site.0.agent_file(0, rank, "sock"));
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn joined(site: &Site, rank: u16, arguments: &[&str]) -> Output {
    join(site, rank, arguments).wait_with_output().unwrap()
}

#[track_caller]
fn done(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A sum of whole numbers over all ranks.
fn sum(mut client: Client, rank: u16) {
    let region = client.region(1 << 20).unwrap();
    let element = |rank: u16, at: u16| f32::from(at % 1000) * f32::from(rank + 1);
    let values = (0..20_000).flat_map(|at| element(rank, at).to_ne_bytes());
    region.write(0, &values.collect::<Vec<_>>());
    let submission = Submission {
        operation: Operation::Sum,
        dtype: Dtype::F32,
        arithmetic: Arithmetic::Native,
        priority: Priority::FIRST,
        more_follow: false,
        name: "w".into(),
    };
    let ticket = client.submit(&region, 0, 20_000, &submission).unwrap();
    client.wait(ticket, Some(LONG)).unwrap();
    let mut bytes = vec![0; 80_000];
    region.read(0, &mut bytes);
    for (at, word) in (0..).zip(bytes.as_chunks().0) {
        let want: f32 = (0..RANKS).map(|rank| element(rank, at)).sum();
        assert_eq!(f32::from_ne_bytes(*word), want, "element {at}");
    }
    client.finish(Some(LONG)).unwrap();
}

/// All ranks of a job make one sum.
fn train(site: &Site, job: u16) {
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            scope.spawn(move || {
                let socket = site.0.agent_file(0, rank, "sock");
                let of = (job, RANKS as u8);
                sum(connect(&socket, of, rank as u8), rank);
            });
        }
    });
}

#[test]
fn hosts_join_a_job_by_its_name() {
    if Network::for_this_user() != Network::Namespaces {
        println!("SKIPPED: needs root (network namespaces)");
        return;
    }
    let _alone = alone();
    let site = Site::start();
    let agents = agents(&site);
    let fleet = site.fleet("join", &[0, 1], "none");

    // Without a controller a host gives up in time; with one that comes later it waits for it.
    let start = Instant::now();
    let none = joined(&site, 0, &["--job", "job0", "--timeout", "0.5"]);
    site.refused(&none, 4, &["no place in 0.5 s", LISTEN]);
    assert!(start.elapsed() < Duration::from_secs(5));
    let first = join(&site, 0, &["--job", "job0"]);
    let file = |name: &str| site.file(name).display().to_string();
    let (certificate, key, ca) = (file("switch.crt"), file("switch.key"), file("ca.crt"));
    let arguments = [
        &fleet[..],
        "--listen",
        LISTEN,
        "--certificate",
        &certificate,
    ];
    let tls = ["--key", &key, "--client-ca", &ca, "--metrics", METRICS];
    let arguments = [&arguments[..], &tls].concat();
    let controller = Controller::start(&site, "controller", &arguments);
    let first = done(&first.wait_with_output().unwrap());
    assert_eq!(
        first,
        "job job0: number 7, host 0 of 4 at switch leaf1, rank 0\n"
    );
    assert_eq!(
        controller.count(CHANGED),
        1,
        "a host knew its place too early"
    );

    let metrics = metrics(&site);
    for line in [
        "tally_controller_leader 1",
        r#"tally_controller_job_ready{job_name="job0"} 1"#,
        r#"tally_controller_switch_up{switch="leaf2"} 1"#,
        "tally_controller_plans_total 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }

    // The others: as variables, as JSON, and with another host's words in the way.
    let env = done(&joined(&site, 1, &["--job", "job0", "--env"]));
    let values = [4, 1, 1].map(|it| it.to_string());
    let names = ["NNODES", "NODE_RANK", "NPROC_PER_NODE"];
    let mut want = "export TALLY_JOB=7\n".to_owned();
    for (name, value) in names.iter().zip(values) {
        want += &format!("export {name}={value}\n");
    }
    assert_eq!(env, want + "export MASTER_ADDR=job0-worker0\n");
    let json = done(&joined(&site, 2, &["--job", "job0", "--json"]));
    for word in [
        r#""job":7,"hosts":4,"host_rank":2"#,
        r#""switch":"leaf2","first_host":"job0-worker0","plan":1"#,
    ] {
        assert!(json.contains(word), "{word}: {json}");
    }
    done(&joined(&site, 3, &["--job", "job0"]));
    // Twice is no error.
    done(&joined(&site, 3, &["--job", "job0"]));
    train(&site, 7);

    refusals(&site);

    // The job comes again with another number: the hosts join that one.
    let text = std::fs::read_to_string(&fleet)
        .unwrap()
        .replace("\"id\":7", "\"id\":9");
    site.write("join-fleet.json", &text);
    controller.wait(&site, CHANGED, 2);
    for rank in 0..RANKS {
        let until = Instant::now() + LONG;
        while !done(&joined(&site, rank, &["--job", "job0"])).contains("number 9") {
            assert!(Instant::now() < until, "{}", controller.log());
        }
    }
    drop(controller);
    drop(agents);
}

/// Whom the controller refuses, at once, and what it does not tell.
fn refusals(site: &Site) {
    for (job, words) in [
        (
            "job1",
            "job job1: the fleet has no such job with host job0-worker0 as a worker",
        ),
        (
            "none",
            "job none: the fleet has no such job with host job0-worker0 as a worker",
        ),
    ] {
        let start = Instant::now();
        let output = joined(site, 0, &["--job", job]);
        site.refused(&output, 2, &["refuses", words]);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    // Another host's name with the own certificate, and a certificate of another authority.
    let config = site.0.agent_file(0, 0, "json");
    let before = std::fs::read_to_string(&config).unwrap();
    let own = r#""host":"job0-worker0""#;
    assert!(before.contains(own), "{before}");
    std::fs::write(&config, before.replace(own, r#""host":"job0-worker1""#)).unwrap();
    let output = joined(site, 0, &["--job", "job0"]);
    let words = "has shown no certificate with the DNS name `job0-worker1`";
    site.refused(&output, 2, &[words]);
    std::fs::write(&config, &before).unwrap();
    let kept = ["job0-worker0.crt", "job0-worker0.key"].map(|it| std::fs::read(site.file(it)));
    let other = rcgen::generate_simple_self_signed(vec!["job0-worker0".to_owned()]).unwrap();
    std::fs::write(site.file("job0-worker0.crt"), other.cert.pem()).unwrap();
    std::fs::write(
        site.file("job0-worker0.key"),
        other.signing_key.serialize_pem(),
    )
    .unwrap();
    let output = joined(site, 0, &["--job", "job0", "--timeout", "1"]);
    site.refused(&output, 4, &["no place in 1 s", LISTEN]);
    for (name, bytes) in ["job0-worker0.crt", "job0-worker0.key"]
        .into_iter()
        .zip(kept)
    {
        std::fs::write(site.file(name), bytes.unwrap()).unwrap();
    }
    // A switch that is another one than the agent's.
    let path = site.file("join-fleet.json");
    let fleet = std::fs::read_to_string(&path).unwrap();
    let control = format!(
        r#""control":"{}""#,
        site.0.control_socket(leaf1(site)).display()
    );
    assert!(fleet.contains(&control));
    let with = format!(r#"{control},"address":"10.9.9.9""#);
    site.write("join-fleet.json", &fleet.replace(&control, &with));
    let until = Instant::now() + LONG;
    loop {
        let output = joined(site, 0, &["--job", "job0"]);
        if !output.status.success() {
            let words = [
                "switch.address: found",
                "expected 10.9.9.9",
                "host job0-worker0",
            ];
            site.refused(&output, 2, &words);
            break;
        }
        assert!(Instant::now() < until);
    }
    site.write("join-fleet.json", &fleet);
    assert!(Path::new(&path).exists());
}

fn leaf1(site: &Site) -> tally_testkit::fabric::SwitchId {
    site.0.plan().find("leaf1").unwrap()
}
