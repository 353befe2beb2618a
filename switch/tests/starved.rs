//! A switch whose log is not read, and one that is short of descriptors: both keep running, answer
//! for their statistics, set up sessions, and end when they are told to.

#![allow(clippy::unwrap_used)]

mod common;

use common::{wait_until, write_config};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tally_schema::switch::config::{PortSection, SwitchmlSection};
use tally_switch::switchml::proto::session_client::SessionClient;
use tally_switch::switchml::proto::sync_client::SyncClient;
use tally_switch::switchml::proto::{BroadcastRequest, UdpSessionRequest};
use tonic::transport::Endpoint;
use tonic::{Code, Status};

/// A switch, killed with the value.
struct Switch {
    process: Child,
    stats: std::path::PathBuf,
    controller: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Switch {
    /// With so many descriptors; its log goes to `log`.
    fn start(descriptors: u32, log: impl Into<Stdio>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stats = folder.path().join("stats");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let controller = free.local_addr().unwrap();
        drop(free);
        let memif = folder.path().join("memif.sock");
        let device = format!(
            "net_memif0,role=server,id=0,socket={},socket-abstract=no",
            memif.display()
        );
        let mut config = common::config(folder.path(), vec![PortSection::new(device)]);
        config.switchml = Some(SwitchmlSection::new(vec![controller.into()]));
        let shell = format!("ulimit -n {descriptors}; exec \"$0\" --config \"$1\"");
        let process = Command::new("sh")
            .args(["-c", &shell, env!("CARGO_BIN_EXE_tally-switch")])
            .arg(write_config(folder.path(), &config))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let switch = Self {
            process,
            stats,
            controller,
            _folder: folder,
        };
        wait_until("the switch runs", || {
            report(&switch.stats).contains("sessions_max")
        });
        switch
    }

    /// A session of one worker; each of another.
    fn session(&self, host: u8) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let deadline = Instant::now() + Duration::from_secs(10);
            while let Err(status) = self.open_session(host).await {
                // The switch has not seen yet that the connections of the last session are closed.
                let is_early = status.code() == Code::Aborted && Instant::now() < deadline;
                assert!(is_early, "{status}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }

    /// What its worker calls, over a connection of its own.
    async fn open_session(&self, host: u8) -> Result<(), Status> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.controller)).unwrap();
        let endpoint = endpoint.timeout(Duration::from_secs(10));
        let channel = endpoint.connect().await.unwrap();
        let broadcast = BroadcastRequest {
            value: 1000 + u64::from(host),
            rank: 0,
            num_workers: 1,
            root: 0,
        };
        let value = SyncClient::new(channel.clone())
            .broadcast(broadcast)
            .await?;
        let request = UdpSessionRequest {
            session_id: value.into_inner().value,
            rank: 0,
            num_workers: 1,
            mac: 0x0200_0000_0000 + u64::from(host),
            ipv4: Ipv4Addr::new(10, 84, 0, 1).to_bits() + u32::from(host),
            packet_size: 1,
        };
        SessionClient::new(channel).udp_session(request).await?;
        Ok(())
    }

    /// Ends it as an operator does; it must end well.
    fn end(mut self) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn report(stats: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = UnixStream::connect(stats) {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = stream.read_to_string(&mut text);
    }
    text
}

/// More sessions come and go than a pipe holds lines.
fn churn(switch: &Switch) {
    for host in 0..200 {
        switch.session(host % 2);
    }
    assert!(
        report(&switch.stats).contains("sessions_max"),
        "no statistics"
    );
}

#[test]
fn an_unread_log_stops_nothing() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let switch = Switch::start(1024, writer.try_clone().unwrap());
    // Full: a writer waits from here on.
    let fill = std::thread::spawn(move || while writer.write_all(&[b'x'; 512]).is_ok() {});
    std::thread::sleep(Duration::from_millis(200));
    assert!(!fill.is_finished());
    churn(&switch);
    switch.end();
    drop(reader);
    fill.join().unwrap();
}

#[test]
fn a_log_that_is_closed_stops_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    let switch = Switch::start(1024, writer);
    drop(reader);
    churn(&switch);
    switch.end();
}

#[test]
fn churn_does_not_flood_the_log() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let switch = Switch::start(1024, writer);
    let read = std::thread::spawn(move || {
        let mut log = String::new();
        reader.read_to_string(&mut log).map(|_| log)
    });
    let start = Instant::now();
    churn(&switch);
    std::thread::sleep(Duration::from_millis(2500));
    let most = 16 + start.elapsed().as_secs() as usize + 1;
    switch.end();
    let log = read.join().unwrap().unwrap();
    let begins = log
        .lines()
        .filter(|line| line.contains("of 1 workers begins"))
        .count();
    assert!(
        (16..=most).contains(&begins),
        "{begins} lines, {most} allowed"
    );
    assert!(
        log.contains("more lines of the kind `session begins` were left out"),
        "{log}"
    );
}

#[test]
fn silent_connections_leave_descriptors_for_statistics_and_sessions() {
    let log = tempfile::tempfile().unwrap();
    let switch = Switch::start(256, log);
    // From one host, more than there are descriptors.
    let flood: Vec<_> = (0..400)
        .filter_map(|_| TcpStream::connect(switch.controller).ok())
        .collect();
    assert!(flood.len() > 256, "{}", flood.len());
    let descriptors = format!("/proc/{}/fd", switch.process.id());
    let open = || std::fs::read_dir(&descriptors).unwrap().count();
    wait_until("the switch has all that it wants", || {
        let before = open();
        std::thread::sleep(Duration::from_millis(500));
        before > 100 && open() == before
    });
    let start = Instant::now();
    assert!(
        report(&switch.stats).contains("sessions_max"),
        "no statistics"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
    // None of them makes a call; their time is over soon, while they stay open at their end.
    std::thread::sleep(tally_switch::switchml::controller::FIRST_CALL + Duration::from_secs(1));
    switch.session(1);
    drop(flood);
    switch.end();
}
