//! Ports that live: a switch on interfaces of the kernel whose links go down, which are deleted and
//! made again, joined to a loop, flooded, or taken by a second switch.
//!
//! Each test has a network namespace of its own. Hosts are namespaces below it. Skipped, loudly,
//! without root.

#![allow(clippy::unwrap_used)]

mod common;

use common::{OWN, PATIENCE, port, wait_until, write_config};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tally_schema::switch::config::{Config, PortSection};
use tally_schema::switch::report::{PortReport, PortState, Report};
use tally_switch::control::change::Change;
use tally_switch::run::Signals;
use tempfile::TempDir;

/// Whether this process has a network namespace of its own, which ends with it. If not, one that
/// has runs the test.
fn in_a_namespace(test: &str) -> bool {
    if std::env::var_os("TALLY_IN_NAMESPACE").is_some() {
        return true;
    }
    let id = Command::new("id").arg("-u").output();
    if !id.is_ok_and(|id| id.stdout == b"0\n") {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: interfaces of the kernel need root"
        );
        return false;
    }
    let status = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("TALLY_IN_NAMESPACE", "1")
        .status();
    assert!(status.unwrap().success());
    false
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// A namespace with an interface `eth0`, whose other end is a port of the switch.
struct Host {
    namespace: String,
    number: u8,
}

impl Host {
    fn new(number: u8) -> Self {
        let namespace = format!("c1-{}-{number}", std::process::id());
        ip(&format!("netns add {namespace}"));
        let host = Self { namespace, number };
        host.plug();
        host
    }

    fn interface(&self) -> String {
        format!("p{}", self.number)
    }

    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 84, 0, self.number)
    }

    /// Makes the pair of interfaces, also anew.
    fn plug(&self) {
        let (namespace, number) = (&self.namespace, self.number);
        let (port, address) = (self.interface(), self.address());
        quiet_pair(&port, &format!("eth0 netns {namespace}"));
        ip(&format!(
            "-n {namespace} link set eth0 address 02:00:00:00:00:{number:02x} up"
        ));
        ip(&format!("-n {namespace} address add {address}/24 dev eth0"));
    }

    fn unplug(&self) {
        ip(&format!("link delete {}", self.interface()));
    }

    fn run(&self, command: &str) -> Output {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &self.namespace]);
        ip.args(command.split(' ')).output().unwrap()
    }

    /// How many of so many echo requests are answered.
    fn pings(&self, to: Ipv4Addr, count: u32) -> usize {
        let said = self.run(&format!("ping -n -c {count} -i 0.1 -W 1 {to}"));
        String::from_utf8_lossy(&said.stdout)
            .matches("bytes from")
            .count()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.namespace])
            .status();
    }
}

/// A veth pair on which the kernel says nothing of its own.
fn quiet_pair(one: &str, other: &str) {
    let name = other.split(' ').next().unwrap();
    ip(&format!("link add {one} type veth peer name {other}"));
    let quiet = |interface: &str| {
        let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        let _ = std::fs::write(path, "1");
    };
    quiet(one);
    quiet(name);
    ip(&format!("link set {one} up"));
    if name == other {
        ip(&format!("link set {name} up"));
    }
}

fn packet(number: usize, interface: &str) -> PortSection {
    port(interface, format!("packet{number},iface={interface}"))
}

/// A switch whose log is a file.
struct Switch {
    folder: TempDir,
    process: Child,
}

impl Switch {
    fn start(interfaces: &[&str], change: impl FnOnce(&mut Config)) -> Self {
        let switch = Self::spawn(interfaces, change);
        wait_until("the switch runs", || {
            switch.log().contains("running on CPU") || !switch.is_alive()
        });
        assert!(switch.log().contains("running on CPU"), "{}", switch.log());
        switch
    }

    fn spawn(interfaces: &[&str], change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = interfaces.iter().enumerate();
        let ports = ports.map(|(n, interface)| packet(n, interface)).collect();
        let mut config = common::config(folder.path(), ports);
        config.mac_ageing_s = 3600;
        change(&mut config);
        let path = write_config(folder.path(), &config);
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_tally-switch"))
            .arg("--config")
            .arg(path)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { folder, process }
    }

    fn is_alive(&self) -> bool {
        PathBuf::from(format!("/proc/{}/fd", self.process.id()))
            .read_dir()
            .is_ok_and(|mut files| files.next().is_some())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    #[track_caller]
    fn says(&self, text: &str) {
        let start = Instant::now();
        while !self.log().contains(text) {
            assert!(start.elapsed() < PATIENCE, "no `{text}` in\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn report(&self) -> Report {
        let mut text = String::new();
        let mut stream = UnixStream::connect(self.folder.path().join("stats")).unwrap();
        stream.read_to_string(&mut text).unwrap();
        simd_json::from_slice(&mut text.into_bytes()).unwrap()
    }

    fn port(&self, at: usize) -> PortReport {
        self.report().ports.swap_remove(at)
    }

    #[track_caller]
    fn wait_for(&self, at: usize, what: &str, is: impl Fn(&PortReport) -> bool) {
        wait_until(what, || is(&self.port(at)));
    }

    /// Stops it; every buffer is back.
    fn stop(mut self) -> String {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(status.unwrap().success());
        let status = self.process.wait().unwrap();
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        log
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_second_switch_is_refused_by_name_and_the_first_one_is_not_disturbed() {
    if !in_a_namespace("a_second_switch_is_refused_by_name_and_the_first_one_is_not_disturbed") {
        return;
    }
    let (one, two) = (Host::new(1), Host::new(2));
    let first = Switch::start(&["p1", "p2"], |_| {});
    let refused = |change: fn(&mut Config)| {
        let mut second = Switch::spawn(&["p2"], change);
        let status = second.process.wait().unwrap();
        assert!(!status.success());
        second.log()
    };
    let pid = first.process.id();
    let holder = format!("in use by tally-switch, process {pid};");
    let log = refused(|_| {});
    assert!(log.contains(&format!("p2: {holder}")), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    // By another driver, too.
    let log = refused(|config| config.ports[0].device = "net_af_packet0,iface=p2".into());
    assert!(log.contains(&format!("p2: {holder}")), "{log}");
    assert_eq!(one.pings(two.address(), 5), 5);
    first.stop();
    let second = Switch::start(&["p2"], |config| config.name = Some("rack7".into()));
    let log = refused(|config| {
        config.name = Some("rack7".into());
        config.ports[0].device = "net_null0".into();
    });
    assert!(
        log.contains("switch `rack7`: in use by tally-switch"),
        "{log}"
    );
    // After a crash nothing is left of its locks.
    drop(second);
    Switch::start(&["p2"], |config| config.name = Some("rack7".into())).stop();
}

#[test]
fn a_link_that_flaps_is_told_and_carries_frames_again() {
    if !in_a_namespace("a_link_that_flaps_is_told_and_carries_frames_again") {
        return;
    }
    let (one, two) = (Host::new(1), Host::new(2));
    let switch = Switch::start(&["p1", "p2"], |_| {});
    assert_eq!(one.pings(two.address(), 3), 3);
    for flap in 1..3 {
        ip(&format!("-n {} link set eth0 down", two.namespace));
        switch.wait_for(1, "the link is down", |port| port.state == PortState::Down);
        let port = switch.port(1);
        assert_eq!(port.link.link_up, 0);
        assert_eq!(port.addresses.addresses, 0, "its addresses are forgotten");
        ip(&format!("-n {} link set eth0 up", two.namespace));
        switch.wait_for(1, "the link is up", |port| port.state == PortState::Up);
        assert_eq!(switch.port(1).link.link_changes, 2 * flap);
        assert_eq!(one.pings(two.address(), 3), 3);
    }
    let log = switch.stop();
    assert_eq!(log.matches("port p2: link is down").count(), 2, "{log}");
    assert_eq!(log.matches("port p2: link is up").count(), 2, "{log}");
    assert!(!log.contains("port p1: link"), "{log}");
}

#[test]
fn an_interface_that_is_deleted_and_made_again_is_opened_again() {
    if !in_a_namespace("an_interface_that_is_deleted_and_made_again_is_opened_again") {
        return;
    }
    let (one, two) = (Host::new(1), Host::new(2));
    let switch = Switch::start(&["p1", "p2"], |_| {});
    assert_eq!(one.pings(two.address(), 3), 3);
    for time in 1..3 {
        two.unplug();
        switch.wait_for(1, "it is missed", |port| port.state == PortState::Missing);
        assert_eq!(one.pings(two.address(), 1), 0);
        two.plug();
        switch.wait_for(1, "it is back", |port| port.state == PortState::Up);
        assert_eq!(switch.port(1).link.reopened, time);
        assert_eq!(one.pings(two.address(), 5), 5);
    }
    // At once: another interface of the same name.
    two.unplug();
    two.plug();
    switch.wait_for(1, "it is opened", |port| port.link.reopened == 3);
    assert_eq!(one.pings(two.address(), 5), 5);
    let frames = switch.port(1).counters.rx_frames;
    assert!(frames >= 16, "counters continue: {frames}");
    let log = switch.stop();
    for line in [
        "port p2: interface p2 was deleted; it is opened again when it is there",
        "port p2: interface p2 is open",
    ] {
        assert_eq!(log.matches(line).count(), 3, "{line} in\n{log}");
    }
}

#[test]
fn an_optional_interface_may_come_late() {
    if !in_a_namespace("an_optional_interface_may_come_late") {
        return;
    }
    let one = Host::new(1);
    let mut strict = Switch::spawn(&["p1", "p2"], |_| {});
    assert!(!strict.process.wait().unwrap().success());
    let log = strict.log();
    assert!(log.contains("no interface `p2`"), "{log}");
    let switch = Switch::start(&["p1", "p2"], |config| config.ports[1].optional = true);
    switch.says("port p2: no interface p2 yet");
    assert_eq!(switch.port(1).state, PortState::Missing);
    let two = Host::new(2);
    switch.wait_for(1, "it is up", |port| port.state == PortState::Up);
    assert_eq!(one.pings(two.address(), 5), 5);
    switch.stop();
}

#[test]
fn two_joined_ports_are_a_loop_of_which_one_is_blocked_until_it_is_gone() {
    if !in_a_namespace("two_joined_ports_are_a_loop_of_which_one_is_blocked_until_it_is_gone") {
        return;
    }
    let (one, two) = (Host::new(1), Host::new(2));
    quiet_pair("x", "y");
    let switch = Switch::start(&["p1", "p2", "x", "y"], |_| {});
    switch.wait_for(3, "the loop is seen", |port| {
        port.state == PortState::Blocked
    });
    switch.says("port y: blocked: a loop joins it with port x;");
    assert_eq!(switch.port(2).state, PortState::Up);
    // Frames that a loop would carry without end: from a host, and from the ports' own kernel.
    for interface in ["x", "y"] {
        let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        std::fs::write(path, "0").unwrap();
    }
    assert_eq!(one.pings(two.address(), 10), 10);
    let before = switch.report();
    std::thread::sleep(Duration::from_secs(1));
    let after = switch.report();
    let frames = |report: &Report, at: usize| report.ports[at].counters.rx_frames;
    for at in 0..4 {
        let more = frames(&after, at) - frames(&before, at);
        assert!(more < 100, "{more} frames a second by port {at}");
    }
    assert_eq!(after.ports[3].link.loop_blocks, 1);
    assert!(after.drops["loop-probe"] > 0, "{:?}", after.drops);
    ip("link delete x");
    switch.says("port y: no longer blocked after");
    switch.stop();
}

/// As it is without the guard: what the switch's own memory of floods does not stop goes round.
#[test]
fn storms_of_each_kind_are_limited_counted_and_told() {
    if !in_a_namespace("storms_of_each_kind_are_limited_counted_and_told") {
        return;
    }
    let (one, two, three) = (Host::new(1), Host::new(2), Host::new(3));
    let switch = Switch::start(&["p1", "p2", "p3"], |config| {
        config.limits.broadcasts_per_s = Some(20);
    });
    assert_eq!(two.pings(three.address(), 3), 3);
    // To the broadcast address, 200 a second.
    let storm = one.run("ping -n -q -b -f -i 0.005 -c 400 -W 1 -p 00 10.84.0.255");
    drop(storm);
    let port = switch.port(0);
    let [broadcast, multicast, unknown] = port.link.storm_dropped;
    assert!(broadcast > 100, "{broadcast}");
    assert_eq!([multicast, unknown], [0, 0]);
    assert_eq!(switch.report().drops["storm-broadcast"], broadcast);
    assert_eq!(switch.port(1).link.storm_dropped, [0; 3]);
    switch.says("port p1: broadcast storm begins: ");
    switch.says("`limits.broadcasts_per_s` is 20");
    assert_eq!(two.pings(three.address(), 3), 3);
    switch.says("port p1: broadcast storm is over after ");
    switch.stop();
}

#[test]
fn lldp_is_sent_by_each_port_heard_and_not_forwarded() {
    if !in_a_namespace("lldp_is_sent_by_each_port_heard_and_not_forwarded") {
        return;
    }
    let (one, two) = (Host::new(1), Host::new(2));
    let capture = |host: &Host, filter: &str, count: u32| {
        let arguments = format!(
            "netns exec {} tshark -i eth0 -n -l -c {count} -a duration:20 -T fields -e eth.src -e lldp.chassis.id.mac \
             -e lldp.port.id -e lldp.time_to_live -e lldp.tlv.system.name -f",
            host.namespace
        );
        let mut tshark = Command::new("ip");
        tshark.args(arguments.split(' ')).arg(filter);
        let tshark = tshark.stdout(Stdio::piped()).stderr(Stdio::piped());
        tshark.spawn().unwrap()
    };
    let mut at_one = capture(&one, "ether proto 0x88cc", 1);
    // It says so when it captures.
    let mut said = Vec::new();
    let stderr = at_one.stderr.as_mut().unwrap();
    while !String::from_utf8_lossy(&said).contains("Capturing on") {
        let mut byte = [0];
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "tshark ended");
        said.push(byte[0]);
    }
    std::thread::sleep(Duration::from_millis(300));
    let switch = Switch::start(&["p1", "p2"], |config| config.name = Some("rack7".into()));
    let found = at_one.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let mac = OWN.mac.to_string();
    assert_eq!(
        text.trim_end().split('\t').collect::<Vec<_>>(),
        [&mac, &mac, "p1", "121", "rack7"],
        "{text}"
    );
    let received = |host: &Host| -> u64 {
        let text = host
            .run("cat /sys/class/net/eth0/statistics/rx_packets")
            .stdout;
        String::from_utf8(text).unwrap().trim().parse().unwrap()
    };
    assert_eq!(one.pings(two.address(), 1), 1);
    // A neighbour, by a frame of its own.
    let before = received(&two);
    let frame = "0180c200000e 020000000001 88cc 0207 04 0200000000aa 0405 05 73777037 0602 0078 0a04 6c656166 0000";
    let script = format!(
        "import socket\ns = socket.socket(17, 3)\ns.bind(('eth0', 0))\nfor _ in range(50): s.send(bytes.fromhex('{frame}').ljust(60, b'\\0'))"
    );
    let sent = Command::new("ip")
        .args(["netns", "exec", &one.namespace, "python3", "-c", &script])
        .status();
    assert!(sent.unwrap().success());
    switch.wait_for(0, "the neighbour is known", |port| port.neighbour.is_some());
    let neighbour = switch.port(0).neighbour.unwrap();
    assert_eq!(neighbour.system, "leaf");
    assert_eq!(
        (&*neighbour.chassis, &*neighbour.port),
        ("02:00:00:00:00:aa", "swp7")
    );
    let report = switch.report();
    assert_eq!(report.drops["link-local"], 50);
    assert!(received(&two) - before < 20, "nothing of it came here");
    switch.stop();
}

/// The switch in this process, so that its control thread can be asked.
#[test]
fn ports_are_added_taken_down_and_up_while_others_carry_frames() {
    if !in_a_namespace("ports_are_added_taken_down_and_up_while_others_carry_frames") {
        return;
    }
    let (one, two, three) = (Host::new(1), Host::new(2), Host::new(3));
    // DPDK's port does not complete checksums that its kernel left to it.
    three.run("ethtool -K eth0 tx off");
    let folder = tempfile::tempdir().unwrap();
    let mut config = common::config(folder.path(), vec![packet(0, "p1")]);
    config.max_ports = Some(3);
    let stop = Arc::new(AtomicBool::new(false));
    let signals = Signals {
        stop: Arc::clone(&stop),
        hangup: Arc::default(),
    };
    let switch = tally_switch::run::Switch::start(&config, None, signals).unwrap();
    let control = switch.handle();
    let apply = |change: Change| control.apply(None, change);
    let state = |at: usize| control.report().unwrap().ports[at].state;

    let second = Box::new(packet(1, "p2"));
    let added = apply(Change::AddPort(second.clone())).unwrap();
    assert_eq!((added.version, added.changed.len()), (2, 1), "{added:?}");
    assert_eq!(one.pings(two.address(), 5), 5);
    let again = apply(Change::AddPort(second.clone())).unwrap();
    assert_eq!((again.version, again.changed.len()), (2, 0), "no change");
    let other = PortSection {
        mtu: 1400,
        ..*second
    };
    let refused = apply(Change::AddPort(Box::new(other))).unwrap_err();
    assert!(refused.to_string().contains("a second time"), "{refused}");
    let missing = packet(7, "p7");
    let refused = apply(Change::AddPort(Box::new(missing))).unwrap_err();
    assert!(
        refused.to_string().contains("no interface `p7`"),
        "{refused}"
    );

    let third = port("p3", "net_af_packet0,iface=p3");
    apply(Change::AddPort(Box::new(third))).unwrap();
    assert_eq!(one.pings(three.address(), 5), 5);
    let refused = apply(Change::AddPort(Box::new(packet(8, "p1")))).unwrap_err();
    assert!(
        refused.to_string().contains("`max_ports` is 3"),
        "{refused}"
    );

    for (name, at, host) in [("p2", 1, &two), ("p3", 2, &three)] {
        for _ in 0..2 {
            apply(Change::SetPort(name.into(), false)).unwrap();
            assert_eq!(state(at), PortState::Disabled);
            assert_eq!(one.pings(host.address(), 2), 0, "{name} is down");
            let twice = apply(Change::SetPort(name.into(), false)).unwrap();
            assert_eq!(twice.changed, Vec::<String>::new());
            apply(Change::SetPort(name.into(), true)).unwrap();
            assert_eq!(state(at), PortState::Up);
            assert_eq!(one.pings(host.address(), 5), 5, "{name} is up again");
        }
    }
    let refused = apply(Change::SetPort("p9".into(), true)).unwrap_err();
    assert!(refused.to_string().contains("p1, p2, p3"), "{refused}");
    let stale = control.apply(Some(1), Change::SetPort("p2".into(), false));
    assert!(
        stale
            .unwrap_err()
            .to_string()
            .contains("version 1 was expected")
    );
    stop.store(true, Ordering::Relaxed);
    let report = switch.wait().unwrap();
    assert_eq!(report.frames_missing, Some(0));
    assert_eq!(report.ports.len(), 3);
}

#[test]
fn a_reload_adds_ports_that_the_file_has_behind_the_others() {
    if !in_a_namespace("a_reload_adds_ports_that_the_file_has_behind_the_others") {
        return;
    }
    let (one, two) = (Host::new(1), Host::new(2));
    let switch = Switch::start(&["p1"], |config| config.max_ports = Some(2));
    let path = switch.folder.path().join("switch.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: Config = simd_json::from_slice(&mut text.clone().into_bytes()).unwrap();
    let mut reload = |ports: &[PortSection]| {
        config.ports = ports.to_vec();
        write_config(switch.folder.path(), &config);
        let pid = switch.process.id().to_string();
        let sent = Command::new("kill").args(["-HUP", &pid]).status();
        assert!(sent.unwrap().success());
    };
    // One of two cannot be: none is.
    reload(&[packet(0, "p1"), packet(7, "p7")]);
    switch.says("nothing applied: port p7 (packet7,iface=p7): no interface `p7`");
    reload(&[packet(0, "p1"), packet(1, "p2")]);
    switch.says("port p2: added on packet1,iface=p2");
    assert_eq!(one.pings(two.address(), 5), 5);
    // Twice is once, and a port that is gone needs a restart.
    reload(&[packet(0, "p1"), packet(1, "p2")]);
    switch.says("nothing to apply");
    reload(&[packet(0, "p1")]);
    switch.says("needs a restart: ports");
    assert_eq!(one.pings(two.address(), 5), 5);
    switch.stop();
}
