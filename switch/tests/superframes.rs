//! TCP and UDP of two ordinary hosts at default offloads, in network namespaces with a switch
//! between them: all bytes arrive as they were sent, and soon. Needs root.

#![allow(clippy::unwrap_used)]

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a stream each way. At the rate of one retransmitted segment at a time, which is what
/// refused superframes leave of TCP, they would take minutes.
const STREAM_BYTES: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
/// Datagrams of one superframe, and their bytes.
const DATAGRAMS: usize = 40;
const DATAGRAM_BYTES: u16 = 1200;
const SUPERFRAMES: usize = 4;
/// Which part of a test this process is, and whom it talks to.
const ROLE: &str = "TALLY_TEST_HOST";
/// Nets that tests of this process have made.
static NETS: AtomicU32 = AtomicU32::new(0);

/// Content that says where in its stream it is.
fn content(stream: u8, at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16 ^ at >> 24) as u8 ^ stream
}

fn send_all(mut to: &TcpStream, stream: u8) {
    let all: Vec<u8> = (0..STREAM_BYTES).map(|at| content(stream, at)).collect();
    to.write_all(&all).unwrap();
}

fn receive_all(mut from: &TcpStream, stream: u8) {
    let mut all = vec![0; STREAM_BYTES];
    from.read_exact(&mut all).unwrap();
    let wrong = (0..STREAM_BYTES).find(|&at| all[at] != content(stream, at));
    assert_eq!(wrong, None, "another byte than was sent");
}

/// One of the hosts: this test in a process of its own, in a namespace.
#[test]
fn host() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if role == "server" {
        let listener = TcpListener::bind("[::]:7000").unwrap();
        let datagrams = UdpSocket::bind("[::]:7000").unwrap();
        println!("listening");
        loop {
            let (stream, _) = listener.accept().unwrap();
            receive_all(&stream, 1);
            send_all(&stream, 2);
            receive_datagrams(&datagrams);
            stream.shutdown(Shutdown::Write).unwrap();
        }
    }
    let server: SocketAddr = role.parse().unwrap();
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let start = Instant::now();
    send_all(&stream, 1);
    receive_all(&stream, 2);
    let seconds = start.elapsed().as_secs_f64();
    assert!(start.elapsed() < PATIENCE, "{seconds:.0} s");
    println!("{:.0} Mbit/s", STREAM_BYTES as f64 * 16.0 / 1e6 / seconds);
    send_datagrams(server);
    // The server's assertions hold if it ends the stream by itself.
    assert_eq!(
        (&stream).read(&mut [0]).unwrap(),
        0,
        "datagrams are missing"
    );
}

fn send_datagrams(server: SocketAddr) {
    let any = if server.is_ipv6() {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(any).unwrap();
    let to = SockaddrStorage::from(server);
    for number in 0..SUPERFRAMES {
        let bytes = DATAGRAMS * usize::from(DATAGRAM_BYTES);
        let all: Vec<u8> = (0..bytes).map(|at| content(number as u8, at)).collect();
        let gso = [ControlMessage::UdpGsoSegments(&DATAGRAM_BYTES)];
        let parts = [IoSlice::new(&all)];
        sendmsg(
            socket.as_raw_fd(),
            &parts,
            &gso,
            MsgFlags::empty(),
            Some(&to),
        )
        .unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn receive_datagrams(socket: &UdpSocket) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut datagram = [0; 2000];
    for number in 0..SUPERFRAMES * DATAGRAMS {
        let n = socket.recv(&mut datagram).unwrap();
        assert_eq!(n, usize::from(DATAGRAM_BYTES));
        let (stream, first) = (number / DATAGRAMS, number % DATAGRAMS * n);
        let is_sent = |(at, &byte): (usize, &u8)| byte == content(stream as u8, first + at);
        assert!(
            datagram[..n].iter().enumerate().all(is_sent),
            "datagram {number}"
        );
    }
}

/// Namespaces and programs, gone with the value.
struct Net {
    /// What the names of the namespaces begin with.
    id: String,
    programs: Vec<Child>,
    folder: tempfile::TempDir,
}

fn run(words: &str) {
    let mut words = words.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{why}");
}

impl Net {
    fn new(mtu: usize) -> Self {
        let number = NETS.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", std::process::id());
        let net = Self {
            id: id.clone(),
            programs: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
        };
        run(&format!("ip netns add tsf{id}s"));
        for (host, at) in [("a", 1), ("b", 2)] {
            let name = format!("tsf{id}{host}");
            run(&format!("ip netns add {name}"));
            run(&format!(
                "ip link add port{host} mtu {mtu} netns tsf{id}s type veth peer name eth0 mtu {mtu} netns {name}"
            ));
            run(&format!("ip -n tsf{id}s link set port{host} up"));
            for address in [format!("10.86.0.{at}/24"), format!("fd86::{at}/64 nodad")] {
                run(&format!("ip -n {name} address add {address} dev eth0"));
            }
            run(&format!("ip -n {name} link set eth0 up"));
        }
        net
    }

    fn offloads(&self, host: &str, words: &str) {
        run(&format!(
            "ip netns exec tsf{}{host} ethtool -K eth0 {words}",
            self.id
        ));
    }

    fn start(
        &mut self,
        namespace: &str,
        program: &Path,
        arguments: &[&str],
        role: &str,
        says: &str,
    ) {
        let log = self
            .folder
            .path()
            .join(format!("{}.log", self.programs.len()));
        let file = std::fs::File::create(&log).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("tsf{}{namespace}", self.id)]);
        command
            .arg(program)
            .args(arguments)
            .env(ROLE, role)
            .env("TALLY_LOG", "info");
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        self.programs.push(command.spawn().unwrap());
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(&log).unwrap();
            if text.contains(says) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{program:?}: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A switch with these devices.
    fn switch(&mut self, number: usize, mtu: usize, devices: &[&str]) {
        let ports: Vec<_> = devices
            .iter()
            .map(|device| format!(r#"{{"device": "{device}", "mtu": {mtu}}}"#))
            .collect();
        let text = format!(
            r#"{{"address": {{"mac": "02:54:41:4c:4c:{number:02}", "ip": "10.86.0.{}"}},
                "eal": {{"memory": "no-huge"}}, "cores": [0], "idle": "backoff",
                "ports": [{}], "jobs": []}}"#,
            250 + number,
            ports.join(", ")
        );
        let file = self.folder.path().join(format!("{number}.json"));
        std::fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        let program = Path::new(env!("CARGO_BIN_EXE_tally-switch"));
        self.start("s", program, &["--config", &file], "", "running on");
    }

    fn server(&mut self) {
        let own = std::env::current_exe().unwrap();
        let arguments = ["host", "--exact", "--nocapture"];
        self.start("b", &own, &arguments, "server", "listening");
    }

    /// Streams and datagrams to the other host and back.
    fn exchange(&self, what: &str) {
        for server in ["10.86.0.2:7000", "[fd86::2]:7000"] {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &format!("tsf{}a", self.id)]);
            command.arg(std::env::current_exe().unwrap());
            command
                .args(["host", "--exact", "--nocapture"])
                .env(ROLE, server);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut client = command.spawn().unwrap();
            let start = Instant::now();
            while client.try_wait().unwrap().is_none() {
                if start.elapsed() > PATIENCE {
                    let _ = client.kill();
                    panic!("{what}, {server}: {STREAM_BYTES} bytes each way take too long");
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let output = client.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{what}, {server}: {text}{why}");
            let rate = text.lines().find(|line| line.contains("Mbit/s"));
            println!("{what}, {server}: {}", rate.unwrap());
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        for namespace in ["s", "a", "b"] {
            let name = format!("tsf{}{namespace}", self.id);
            let _ = Command::new("ip").args(["netns", "delete", &name]).status();
        }
    }
}

#[test]
fn hosts_at_default_offloads_exchange_all_bytes() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
        let _ = writeln!(std::io::stderr(), "SKIPPED: network namespaces need root");
        return;
    }
    for mtu in [1500, 9000] {
        let mut net = Net::new(mtu);
        net.switch(0, mtu, &["packet0,iface=porta", "packet1,iface=portb"]);
        net.server();
        net.exchange(&format!("interfaces of the kernel, MTU {mtu}"));
        if mtu > 1500 {
            break;
        }
        for (a, b) in [
            ("tso off", "gro off"),
            ("tx off", "tso off"),
            ("tso on tx on", "tx off"),
        ] {
            net.offloads("a", a);
            net.offloads("b", b);
            net.exchange(&format!("{a} on one host, {b} on the other"));
        }
    }
}

/// Superframes are cut where they leave for a DPDK device.
#[test]
fn hosts_behind_devices_of_dpdk_exchange_all_bytes() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
        let _ = writeln!(std::io::stderr(), "SKIPPED: network namespaces need root");
        return;
    }
    let mut net = Net::new(1500);
    let socket = net.folder.path().join("memif").display().to_string();
    let memif = |role: &str| {
        format!(
            "net_memif0,role={role},id=0,socket={socket},socket-abstract=no,bsize=2048,rsize=10"
        )
    };
    net.switch(0, 1500, &["packet0,iface=porta", &memif("server")]);
    net.switch(1, 1500, &["packet0,iface=portb", &memif("client")]);
    net.server();
    net.exchange("a memif between two switches");
    drop(net);
    let mut net = Net::new(1500);
    // What this device receives it takes to be finished.
    net.offloads("b", "tso off gso off tx off");
    net.switch(
        0,
        1500,
        &["packet0,iface=porta", "net_af_packet0,iface=portb"],
    );
    net.server();
    net.exchange("net_af_packet at one of the hosts");
}
