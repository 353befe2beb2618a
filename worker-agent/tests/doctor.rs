//! The doctor at a real switch, in network namespaces: each of its checks, good and bad, and what
//! it says to do, done. Needs root, and the release build of `tally-switch`.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test, also outside of its test functions"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tally_local::{Arithmetic, Client, Dtype, Hello, LocalError, Operation, Priority, Submission};
use tally_schema::agent::doctor::{Check, Diagnosis, Verdict};

const KEY: &str = "00112233445566778899aabbccddeeff";
const KEY_8: &str = "00112233445566778899aabbccdd0008";
const LONG: Duration = Duration::from_secs(30);
const AGENT: &str = env!("CARGO_BIN_EXE_tally-agent");

/// What the doctor prints with --json, by check.
trait Said {
    fn of(&self, name: &str) -> &Check;
    /// That `name` is `verdict`, and its words have `found` in them; returns what to do.
    fn is(&self, name: &str, verdict: Verdict, found: &str) -> String;
    fn has(&self, name: &str) -> bool;
}

impl Said for Diagnosis {
    #[track_caller]
    fn of(&self, name: &str) -> &Check {
        let found = self.checks.iter().find(|it| it.check == name);
        found.unwrap_or_else(|| panic!("no {name}: {self:#?}"))
    }

    #[track_caller]
    fn is(&self, name: &str, verdict: Verdict, found: &str) -> String {
        let it = self.of(name);
        assert_eq!(it.verdict, verdict, "{self:#?}");
        assert!(it.found.contains(found), "{found}: {self:#?}");
        assert_eq!(it.fix.is_none(), verdict == Good);
        it.fix.clone().unwrap_or_default()
    }

    fn has(&self, name: &str) -> bool {
        self.checks.iter().any(|it| it.check == name)
    }
}

/// A host and a switch, a wire between them, and what runs there. All of it ends with this.
struct Net {
    prefix: String,
    folder: tempfile::TempDir,
    running: Vec<Child>,
}

/// `None`, visibly, without root.
fn net(name: &str) -> Option<Net> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: {name} needs root (network namespaces)");
        return None;
    }
    // Named so that other tools of this repository remove what a killed run leaves behind.
    let net = Net {
        prefix: format!("tally-{}-{name}", std::process::id()),
        folder: tempfile::tempdir().unwrap(),
        running: Vec::new(),
    };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(net.folder.path(), mode).unwrap();
    let (host, switch) = (net.name("host"), net.name("switch"));
    sh(&format!(
        "ip netns add {host} && ip netns add {switch} && \
         ip link add port0 netns {switch} type veth peer name eth0 netns {host} && \
         ip -n {host} address add 10.84.0.1/24 dev eth0 && \
         ip -n {host} link set lo up && ip -n {host} link set eth0 up && ip -n {switch} link set port0 up"
    ));
    Some(net)
}

fn sh(command: &str) {
    let done = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(done.status.success(), "{command}: {done:?}");
}

impl Net {
    fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.prefix)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command on the host, as the doctor says it.
    fn host(&self, command: &str) {
        sh(&format!("ip netns exec {} {command}", self.name("host")));
    }

    fn switch(&self, command: &str) {
        sh(&format!("ip netns exec {} {command}", self.name("switch")));
    }

    fn start(&mut self, role: &str, program: &Path, arguments: &[&str], log: &str, ready: &str) {
        let log = self.path(log);
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", &self.name(role)])
            .arg(program)
            .args(arguments)
            .env("TALLY_LOG", "info")
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        self.running.push(child);
        let deadline = Instant::now() + LONG;
        loop {
            let text = std::fs::read_to_string(&log).unwrap();
            if text.contains(ready) {
                return;
            }
            assert!(Instant::now() < deadline, "{ready}: {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn start_switch(&mut self, device: &str, mtu: u16) {
        let config = format!(
            r#"{{"address": {{"mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254"}}, "cores": [0],
                "ports": [{{"name": "host", "device": "{device}", "mtu": {mtu}}}],
                "jobs": [{{"id": 7, "key": "{KEY}", "workers": 1}}, {{"id": 8, "key": "{KEY_8}", "workers": 2}}],
                "stats_socket": "{}"}}"#,
            self.path("switch.sock").display()
        );
        let path = self.path("switch.json");
        std::fs::write(&path, config).unwrap();
        let path = path.display().to_string();
        let program = switch_program();
        self.start(
            "switch",
            &program,
            &["--config", &path],
            "switch.log",
            "running on CPU",
        );
    }

    /// What the switch says of its jobs.
    fn jobs(&self) -> String {
        let output = Command::new(switch_program())
            .arg("--stats")
            .arg(self.path("switch.sock"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let jobs = text.lines().filter(|it| it.starts_with("job "));
        jobs.collect::<Vec<_>>().join("\n")
    }

    fn start_ps(&mut self) {
        let ps = self.path("ps.json");
        let text = format!(
            r#"{{"switch": {{"address": "10.84.0.254"}}, "jobs": [{{"id": 7, "key": "{KEY}"}}],
                "transport": {{"type": "udp", "bind": "10.84.0.1:0"}}}}"#
        );
        std::fs::write(&ps, text).unwrap();
        let ps = ps.display().to_string();
        let arguments = ["ps", "--config", &ps];
        self.start("host", Path::new(AGENT), &arguments, "ps.log", "joined");
    }

    fn stop(&mut self) {
        while let Some(mut child) = self.running.pop() {
            // It may have ended.
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    /// Writes a configuration that only its owner reads.
    fn configure(&self, payload_bytes: u32, change: (&str, &str)) {
        let text = format!(
            r#"{{"socket": "{}", "switch": {{"address": "10.84.0.254"}},
                "transport": {{"type": "udp", "bind": "10.84.0.1"}},
                "jobs": [{{"id": 7, "key": "{KEY}", "workers": 1}}], "payload_bytes": {payload_bytes}}}"#,
            self.path("agent.sock").display()
        );
        let text = text.replace(change.0, change.1);
        let path = self.path("agent.json");
        std::fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
    }

    /// Asks the doctor, and holds it to its time.
    fn doctor_as(&self, prefix: &[&str]) -> Diagnosis {
        let began = Instant::now();
        let output = Command::new("ip")
            .args(["netns", "exec", &self.name("host")])
            .args(prefix)
            .args([AGENT, "doctor", "--json", "--config"])
            .arg(self.path("agent.json"))
            .output()
            .unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
        let said: Diagnosis = simd_json::serde::from_slice(&mut output.stdout.clone()).unwrap();
        let bad = said.checks.iter().filter(|it| it.verdict == Bad).count();
        assert_eq!(said.bad, bad);
        assert_eq!(output.status.code(), Some(i32::from(bad > 0)));
        said
    }

    /// The kernel takes its time with carriers.
    #[track_caller]
    fn eventually(&self, name: &str, found: &str) {
        let deadline = Instant::now() + LONG;
        while !self.doctor().of(name).found.contains(found) {
            assert!(Instant::now() < deadline, "{:#?}", self.doctor());
        }
    }

    fn doctor(&self) -> Diagnosis {
        self.doctor_as(&[])
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.stop();
        for role in ["host", "switch"] {
            let name = self.name(role);
            // It may not have got so far.
            let _ = Command::new("ip").args(["netns", "delete", &name]).status();
        }
    }
}

fn switch_program() -> PathBuf {
    // Beside the folder of this build's own programs.
    let target = Path::new(AGENT).parent().unwrap().parent().unwrap();
    let program = target.join("release/tally-switch");
    let how = "cargo build --release -p tally-switch";
    assert!(program.exists(), "{} is missing: {how}", program.display());
    program
}

use Verdict::{Bad, Good, Warning};
const NOTHING: (&str, &str) = ("", "");

#[test]
fn all_is_well_also_while_a_job_runs_which_is_not_disturbed() {
    let Some(mut net) = net("well") else { return };
    net.host("ip link set dev eth0 mtu 9000");
    net.switch("ip link set dev port0 mtu 9000");
    net.configure(8192, NOTHING);
    net.start_switch("packet0,iface=port0", 9000);
    let idle = net.jobs();
    let said = net.doctor();
    let start = said.is("agent", Warning, "nothing is at");
    let config = net.path("agent.json").display().to_string();
    assert_eq!(start, format!("tally-agent serve --config {config}"));
    said.is("job", Warning, "no parameter server has joined");
    assert_eq!((said.bad, said.warnings), (0, 2), "{said:#?}");
    // Asked while no member is there, it opens no incarnation.
    assert_eq!(net.jobs(), idle);
    let agent = Path::new(AGENT);
    net.start(
        "host",
        agent,
        &["serve", "--config", &config],
        "agent.log",
        "listening",
    );
    net.start_ps();
    let hello = Hello {
        job: 7,
        rank: 0,
        workers: 1,
    };
    let mut client = Client::connect(&net.path("agent.sock"), &hello, LONG).unwrap();
    let mut sum = |name: &str| -> Result<(), LocalError> {
        let ticket = client.barrier(name)?;
        client.wait(ticket, Some(LONG))
    };
    sum("before").unwrap();
    let running = net.jobs();
    assert!(running.contains("running"), "{running}");
    for n in 0..5 {
        let said = net.doctor();
        assert_eq!((said.bad, said.warnings), (0, 0), "{said:#?}");
        said.is("agent", Good, "answers at");
        said.is(
            "job",
            Good,
            "7: the switch has our key, our workers (1), and",
        );
        sum(&format!("after {n}")).unwrap();
    }
    // The same incarnation, with the same members.
    assert_eq!(net.jobs(), running);
    drop(client);
    net.stop();
    let fix = net
        .doctor()
        .is("agent", Warning, "left over from an agent that was killed");
    assert_eq!(fix, start);
}

#[test]
fn keys_and_jobs_are_told_apart() {
    let Some(mut net) = net("jobs") else { return };
    net.start_switch("packet0,iface=port0", 1500);
    net.configure(1024, (KEY, "00112233445566778899aabbccdd0bad"));
    let fix = net
        .doctor()
        .is("job", Bad, "7: the switch has another key for it");
    assert!(fix.contains("jobs[].key of job 7"), "{fix}");
    net.configure(1024, ("\"id\": 7", "\"id\": 99"));
    let fix = net
        .doctor()
        .is("job", Bad, "99: the switch has no such job");
    assert!(fix.contains(r#"{"id": 99, "key""#), "{fix}");
    // Several at once, of which one is good: all are told.
    let jobs = r#""jobs": [{"id": 8, "key": "00112233445566778899aabbccddbad0", "workers": 2}, {"id": 300, "key": "00112233445566778899aabbccdd0300", "workers": 2},"#;
    net.configure(1024, ("\"jobs\": [", jobs));
    let said = net.doctor();
    let jobs = said.checks.iter().filter(|it| it.check == "job");
    let jobs: Vec<_> = jobs.map(|it| it.found.as_str()).collect();
    let want = [
        "8: the switch has another key for it",
        "300: the switch has no such job",
        "7: the switch has our key and workers (1), and no parameter server has joined: the job waits",
    ];
    assert_eq!(jobs, want);
    net.configure(1024, ("\"workers\": 1", "\"workers\": 3"));
    let fix = net
        .doctor()
        .is("job", Bad, "7: the switch has 1 workers, and");
    assert!(fix.contains("\"workers\": 1 of job 7 in"), "{fix}");
    // A wrong address here is no reason to restart a switch that others use.
    net.configure(1024, ("10.84.0.254\"", "10.84.0.77\""));
    let fix = net
        .doctor()
        .is("switch", Bad, "10.84.0.77 does not answer ARP");
    assert!(
        fix.starts_with("compare switch.address 10.84.0.77 in"),
        "{fix}"
    );
    assert!(!fix.contains("restart"), "{fix}");
    // Another port, without a listener.
    net.configure(1024, ("10.84.0.254\"", "10.84.0.254\", \"port\": 4000"));
    net.doctor()
        .is("switch", Bad, "is alive, and says nothing at UDP port 4000");
}

#[test]
fn the_configuration_and_the_socket_are_looked_at() {
    let Some(net) = net("file") else { return };
    let said = net.doctor();
    said.is("configuration", Bad, "No such file");
    assert_eq!(said.checks.len(), 1);
    net.configure(1000, NOTHING);
    let fix = net
        .doctor()
        .is("configuration", Bad, "payload_bytes: found 1000");
    assert!(fix.contains("serve --check --config"), "{fix}");
    net.configure(1024, NOTHING);
    net.host(&format!("chmod 0644 {}", net.path("agent.json").display()));
    let fix = net.doctor().is("keys", Warning, "mode 0644");
    net.host(&fix);
    let said = net.doctor();
    said.is("keys", Good, "only its owner");
    net.configure(1024, (KEY, "8d1f0a6c2b7e4935a0c1d2e3f4051627"));
    net.host(&format!("chmod 0640 {}", net.path("agent.json").display()));
    let fix = net
        .doctor()
        .is("configuration", Bad, "mode 0640 lets other users");
    net.host(&fix);
    net.doctor().is("keys", Good, "only its owner");
    net.configure(1024, ("agent.sock", "nowhere/agent.sock"));
    let fix = net.doctor().is("agent", Bad, "is no directory");
    assert!(fix.starts_with("mkdir -p "), "{fix}");
    net.configure(1024, NOTHING);
    std::fs::write(net.path("agent.sock"), "").unwrap();
    let fix = net.doctor().is("agent", Bad, "is no socket");
    net.host(&fix);
    net.doctor().is("agent", Warning, "none is running");
}

#[test]
fn an_mtu_that_shrinks_while_a_job_runs_is_named() {
    let Some(mut net) = net("shrunk") else { return };
    net.start_switch("packet0,iface=port0", 1500);
    net.configure(
        1024,
        ("\"jobs\"", "\"timeouts\": {\"stall_ms\": 2000}, \"jobs\""),
    );
    let config = net.path("agent.json").display().to_string();
    let serve = ["serve", "--config", &config];
    net.start("host", Path::new(AGENT), &serve, "agent.log", "listening");
    net.start_ps();
    let hello = Hello {
        job: 7,
        rank: 0,
        workers: 1,
    };
    let mut client = Client::connect(&net.path("agent.sock"), &hello, LONG).unwrap();
    let region = client.region(400_000).unwrap();
    let mut sum = || -> Result<(), LocalError> {
        let submission = Submission {
            operation: Operation::Sum,
            dtype: Dtype::F32,
            arithmetic: Arithmetic::Fixed,
            priority: Priority::FIRST,
            more_follow: false,
            name: "w".into(),
        };
        let ticket = client.submit(&region, 0, 100_000, &submission)?;
        client.wait(ticket, Some(LONG))
    };
    sum().unwrap();
    net.host("ip link set dev eth0 mtu 600");
    let error = sum().unwrap_err().to_string();
    let want = "(eth0 has MTU 600, and payload_bytes 1024 needs 1082: nothing will leave)";
    assert!(error.contains(want), "{error}");
}

#[test]
fn frames_that_do_not_fit_are_noticed_wherever_it_is() {
    let Some(mut net) = net("mtu") else { return };
    net.start_switch("packet0,iface=port0", 1500);
    net.configure(8192, NOTHING);
    let said = net.doctor();
    let fix = said.is(
        "mtu",
        Bad,
        "eth0 has MTU 1500, and payload_bytes 8192 needs 8250",
    );
    // What depends on it is left out, the rest is not.
    assert!(!said.has("path"));
    said.is("job", Warning, "7");
    net.host(fix.split(';').next().unwrap());
    let said = net.doctor();
    said.is("mtu", Good, "eth0 has 9000");
    let fix = said.is("path", Bad, "packets of 8250 bytes");
    assert!(fix.contains("\"mtu\": 9000 for all ports"), "{fix}");
    net.configure(1024, NOTHING);
    let said = net.doctor();
    said.is("path", Good, "1082 bytes");
    said.is("payload", Warning, "do not get to the switch and back");
    net.stop();
    net.switch("ip link set dev port0 mtu 9000");
    net.start_switch("packet0,iface=port0", 9000);
    let fix = net
        .doctor()
        .is("payload", Warning, "carry packets of 8250 bytes");
    assert!(fix.contains("\"payload_bytes\": 8192 in "), "{fix}");
    // The agent says so itself when it starts.
    let config = net.path("agent.json").display().to_string();
    let words = "warning: payload_bytes is 1024, and the MTU of eth0, 9000, has room for 8192";
    let agent = Path::new(AGENT);
    net.start(
        "host",
        agent,
        &["serve", "--config", &config],
        "agent.log",
        words,
    );
    net.configure(8192, NOTHING);
    let said = net.doctor();
    said.is("path", Good, "8250 bytes");
    assert!(!said.has("payload"));
    net.host("ip link set dev eth0 mtu 1500");
    net.configure(1024, NOTHING);
    let fix = net.doctor().is("mtu", Warning, "could have 9000");
    assert_eq!(fix, "ip link set dev eth0 mtu 9000");
}

#[test]
fn the_interface_is_the_right_one_and_takes_what_comes() {
    let Some(mut net) = net("host") else { return };
    net.start_switch("packet0,iface=port0", 1500);
    net.configure(1024, NOTHING);
    let said = net.doctor();
    said.is("address", Good, "10.84.0.1/24 is on eth0");
    said.is("rp_filter", Good, "eth0");
    said.is("offloads", Good, "eth0");

    net.host("ip address flush dev eth0");
    let fix = net
        .doctor()
        .is("address", Bad, "no interface of this host has 10.84.0.1");
    assert!(
        fix.starts_with("ip address add 10.84.0.1/24 dev eth0"),
        "{fix}"
    );
    net.host("ip address add 10.84.0.77/24 dev eth0");
    let fix = net.doctor().is("address", Bad, "10.84.0.77 (eth0)");
    assert!(fix.starts_with("\"bind\": \"10.84.0.77\" in "), "{fix}");
    net.host(fix.split("or: ").nth(1).unwrap());
    net.host("ip address del 10.84.0.77/24 dev eth0");
    net.host("ip address replace 10.84.0.1/24 dev eth0");

    net.host("ip link set dev eth0 down");
    let fix = net.doctor().is("link", Bad, "eth0 is down");
    net.host(&fix);
    net.switch("ip link set dev port0 down");
    net.eventually("link", "no carrier");
    net.switch("ip link set dev port0 up");
    net.eventually("link", "eth0 is up");

    net.host("ip link set dev eth0 multicast off");
    let fix = net.doctor().is("multicast", Bad, "eth0 takes no multicast");
    net.host(&fix);
    net.doctor().is("multicast", Good, "239.84.0.7");

    // Another interface has the better route to the switch.
    net.host("ip link add other0 type veth peer name other1");
    net.host("ip link set other0 up");
    net.host("ip link set other1 up");
    net.host("ip route add 10.84.0.254/32 dev other0");
    net.host("sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=1");
    let said = net.doctor();
    let route = said.is("route", Bad, "leaves by other0, and not by eth0");
    let filter = said.is("rp_filter", Bad, "all 0, eth0 1: strict");
    assert!(!said.has("switch"));
    net.host(&filter);
    net.doctor().is("rp_filter", Good, "eth0 2");
    net.host("sysctl -w net.ipv4.conf.eth0.rp_filter=1");
    net.host(&route);
    let said = net.doctor();
    said.is("rp_filter", Good, "the routes agree");
    said.is("job", Warning, "7");
    net.host("ip route replace 10.84.0.254/32 via 10.84.0.99 dev eth0");
    net.doctor()
        .is("route", Bad, "behind the router 10.84.0.99");
}

#[test]
fn an_ordinary_user_is_told_of_the_buffers_and_root_has_them() {
    let Some(mut net) = net("user") else { return };
    net.start_switch("packet0,iface=port0", 1500);
    net.configure(1024, NOTHING);
    net.doctor().is("buffers", Good, "8 MiB");
    let unprivileged = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let said = net.doctor_as(&unprivileged);
    let fix = said.is("configuration", Bad, "ermission denied");
    assert!(fix.starts_with("sudo tally-agent doctor"), "{fix}");
    net.host(&format!("chmod 0644 {}", net.path("agent.json").display()));
    let said = net.doctor_as(&unprivileged);
    let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    if limit < 8 << 20 {
        let fix = said.is("buffers", Warning, "this user's sockets get");
        assert_eq!(
            fix,
            "sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608"
        );
    } else {
        said.is("buffers", Good, "8 MiB");
    }
    said.is("agent", Bad, "this user cannot make");
    said.is("job", Warning, "7");
}

#[test]
fn without_its_tools_it_says_so_and_asks_the_switch_all_the_same() {
    let Some(mut net) = net("tools") else { return };
    net.start_switch("packet0,iface=port0", 1500);
    net.configure(1024, NOTHING);
    std::fs::create_dir(net.path("empty")).unwrap();
    let hide = format!(
        "mount --bind {} /usr/sbin && PATH=/nonexistent exec \"$@\"",
        net.path("empty").display()
    );
    let said = net.doctor_as(&["unshare", "-m", "sh", "-c", &hide, "doctor"]);
    for (check, package) in [
        ("route", "iproute2"),
        ("mtu", "iproute2"),
        ("offloads", "ethtool"),
    ] {
        let fix = said.is(check, Warning, "No such file");
        assert_eq!(fix, format!("apt-get install {package}"));
    }
    said.is("job", Warning, "7");
}

#[test]
fn a_switch_that_is_not_there_is_said_in_bounded_time() {
    let Some(mut net) = net("gone") else { return };
    net.configure(1024, NOTHING);
    net.doctor()
        .is("switch", Bad, "does not answer ARP on eth0");
    net.start_switch("packet0,iface=port0", 1500);
    net.doctor().is("switch", Good, "answers at UDP port 31249");
    net.stop();
    net.doctor().is("switch", Bad, "answers neither ping nor");
}

#[test]
fn a_port_that_does_not_take_trains_is_found() {
    let Some(mut net) = net("train") else { return };
    // DPDK's own driver for interfaces knows no superframes.
    net.start_switch("net_af_packet0,iface=port0", 1500);
    net.configure(1024, NOTHING);
    let fix = net
        .doctor()
        .is("trains", Bad, "no device on the way cuts them up");
    assert_eq!(fix, "ethtool -K eth0 tx-udp-segmentation off");
    net.host(&fix);
    net.doctor().is("trains", Good, "arrive");
}

#[test]
fn a_port_of_its_own_is_asked_through() {
    let Some(mut net) = net("memif") else { return };
    let socket = net.path("memif.sock").display().to_string();
    let device = |role: &str| {
        format!(
            "net_memif0,role={role},id=0,socket={socket},socket-abstract=no,bsize=2048,rsize=10"
        )
    };
    let transport = format!(
        r#"{{"type": "dpdk", "device": "{}", "mac": "02:00:00:00:00:01", "address": "10.84.0.1"}}"#,
        device("client")
    );
    let udp = r#"{"type": "udp", "bind": "10.84.0.1"}"#;
    net.configure(1024, (udp, &transport));
    net.doctor().is("device", Bad, "memif.sock is not there");
    net.start_switch(&device("server"), 1500);
    let said = net.doctor();
    said.is("device", Good, "memif.sock is there");
    said.is("switch", Good, "10.84.0.254 answers");
    said.is("job", Warning, "7: the switch has our key and workers (1)");
    assert!(!said.has("address") && !said.has("hugepages"));
    net.stop();
    // Killed, it leaves the socket behind.
    let said = net.doctor();
    assert_eq!(said.bad, 1, "{said:#?}");
}
