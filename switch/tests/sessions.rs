//! SwitchML's sessions from end to end: gRPC to a switch of two data cores, which runs as a
//! process, frames over `net_memif`, reports and log. The frames' details are those of
//! `switchml.rs`.

#![allow(clippy::unwrap_used)]

mod common;

use common::{OWN, connect, wait_until, write_config};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tally_dpdk::{Eal, EalConfig, Mbuf, Mempool, MempoolConfig, StartedPort};
use tally_schema::switch::config::SwitchmlSection;
use tally_schema::switch::report::Report;
use tally_switch::switchml::proto::session_client::SessionClient;
use tally_switch::switchml::proto::sync_client::SyncClient;
use tally_switch::switchml::proto::{BarrierRequest, BroadcastRequest, UdpSessionRequest};
use tally_wire::switchml::{FIRST_PORT, HEADERS_BYTES, Header, Size, emit_request};
use tally_wire::{Addresses, Mac};
use tonic::transport::{Channel, Endpoint};

const SESSION: u64 = 0x00c0_ffee;
const WORKERS: u8 = 2;

fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

fn ip(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, 0, host + 1)
}

fn request(host: u8, size: Size, slot: u16, set: bool) -> Vec<u8> {
    let addresses = Addresses {
        src_mac: mac(host),
        dst_mac: OWN.mac,
        src_ip: ip(host),
        dst_ip: OWN.ip,
        src_port: 4000,
        dst_port: FIRST_PORT,
    };
    let header = Header {
        size,
        job: 1,
        packet: [0, 0, slot as u8, 0],
        slot,
        set,
        exponents: [0, 0],
    };
    let mut frame = vec![0; HEADERS_BYTES];
    emit_request(&mut frame, &addresses, &header);
    let elements = (0..size.elements() as i32).map(|n| n * (i32::from(host) + 1));
    frame.extend(elements.flat_map(i32::to_be_bytes));
    frame
}

/// A switch, killed with the value.
struct Switch(Child);

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn report(folder: &Path) -> Report {
    let program = env!("CARGO_BIN_EXE_tally-switch");
    let stats = Command::new(program)
        .arg("--stats")
        .arg(folder.join("stats"))
        .arg("--json")
        .output()
        .unwrap();
    simd_json::from_slice(&mut stats.stdout.clone()).unwrap()
}

/// As a published client does it: Broadcast; rank 0 its UdpSession and then a Barrier, the others
/// the other way round; and a Barrier of all.
async fn set_up(channel: Channel, rank: u8) -> (u64, u64) {
    let mut sync = SyncClient::new(channel.clone());
    let mut session = SessionClient::new(channel);
    let workers = u32::from(WORKERS);
    let broadcast = BroadcastRequest {
        value: if rank == 0 { SESSION } else { 0 },
        rank: u32::from(rank),
        num_workers: workers,
        root: 0,
    };
    let id = sync.broadcast(broadcast).await.unwrap().into_inner().value;
    let barrier = BarrierRequest {
        num_workers: workers,
    };
    if rank != 0 {
        sync.barrier(barrier).await.unwrap();
    }
    let request = UdpSessionRequest {
        session_id: id,
        rank: u32::from(rank),
        num_workers: workers,
        mac: mac(rank).to_u64(),
        ipv4: u32::from(ip(rank)),
        packet_size: i32::from(Size::B1024.code()),
    };
    let answer = session.udp_session(request).await.unwrap().into_inner();
    if rank == 0 {
        sync.barrier(barrier).await.unwrap();
    }
    sync.barrier(barrier).await.unwrap();
    (answer.session_id, answer.mac)
}

#[test]
fn a_session_from_its_set_up_to_who_is_behind() {
    let two = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !two {
        eprintln!("SKIPPED: two data cores need two CPUs");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let socket = folder.join("memif.sock");
    let arguments = |role: &str, id: u8| {
        format!(
            "role={role},id={id},socket={},socket-abstract=no,bsize=2048,rsize=8",
            socket.display()
        )
    };
    let port = |id: u8| {
        let arguments = arguments("server", id);
        common::port(format!("p{id}"), format!("net_memif{id},{arguments}"))
    };
    let mut config = common::config(folder, (0..WORKERS).map(port).collect());
    config.cores = vec![0, 1];
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config.switchml = Some(SwitchmlSection {
        sessions: 2,
        slots: 64,
        held: 64,
        ..SwitchmlSection::new(vec![listen.into()])
    });
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let mut switch = Switch(
        Command::new(env!("CARGO_BIN_EXE_tally-switch"))
            .arg("--config")
            .arg(write_config(folder, &config))
            .arg("--report")
            .arg(folder.join("report.json"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap(),
    );
    let logged = || std::fs::read_to_string(folder.join("log")).unwrap();
    let mut listens = String::new();
    wait_until("the controller listens", || {
        assert!(switch.0.try_wait().unwrap().is_none(), "{}", logged());
        let log = logged();
        let line = log.lines().find(|line| line.contains("listens at"));
        listens = line.map_or_else(String::new, |line| {
            line.rsplit(' ').next().unwrap_or_default().to_owned()
        });
        !listens.is_empty()
    });

    let eal = Eal::init(&EalConfig::no_huge(64)).unwrap();
    let pool = MempoolConfig {
        frames: 2047,
        cache_frames: 0,
        frame_bytes_max: 2048,
        socket: None,
    };
    let pool = Mempool::new(&eal, "hosts", &pool).unwrap();
    let mut hosts: Vec<_> = (0..WORKERS)
        .map(|id| connect(&eal, &pool, id.into(), &arguments("client", id), 1))
        .collect();

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // The connections stay open with the runtime.
    let answers = runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{listens}")).unwrap();
        let (a, b) = (endpoint.connect().await, endpoint.connect().await);
        let (a, b) = (set_up(a.unwrap(), 0), set_up(b.unwrap(), 1));
        let b = tokio::spawn(b);
        [a.await, b.await.unwrap()]
    });
    assert_eq!(answers.map(|(session, _)| session), [SESSION; 2]);
    let told = answers.map(|(_, mac)| {
        let [0, 0, mac @ ..] = mac.to_be_bytes() else {
            panic!("{mac:#x} is no address");
        };
        Mac(mac)
    });
    assert!(told[0] != told[1] && told[0] != OWN.mac);
    let request = |host: u8, size, slot, set| {
        let mut frame = request(host, size, slot, set);
        frame[..6].copy_from_slice(&told[usize::from(host)].0);
        frame
    };

    // Slots of both shards, both sets, and both workers through each port's one queue.
    let send = |host: &mut StartedPort, frame: &[u8]| {
        let mut frames = vec![pool.alloc_copy(frame).unwrap()];
        wait_until("the switch takes a frame", || {
            host.tx[0].burst(&mut frames);
            frames.is_empty()
        });
    };
    let receive = |host: &mut StartedPort| -> Vec<u8> {
        let mut frames: Vec<Mbuf> = Vec::new();
        wait_until("a result is there", || host.rx[0].burst(&mut frames, 8) > 0);
        assert_eq!(frames.len(), 1);
        frames[0].data().to_vec()
    };
    for round in 0..4 {
        for slot in 0..8_u16 {
            let set = round % 2 == 1;
            for (rank, host) in (0..).zip(&mut hosts) {
                send(host, &request(rank, Size::B1024, slot, set));
            }
            for (rank, host) in (0..).zip(&mut hosts) {
                let result = receive(host);
                assert_eq!(result[..6], mac(rank).0);
                let sums = (0..256_i32).map(|n| 3 * n).flat_map(i32::to_be_bytes);
                assert!(result[HEADERS_BYTES..].iter().copied().eq(sums));
            }
        }
    }
    // One is behind, in both shards, and silent.
    for slot in 0..5 {
        send(&mut hosts[0], &request(0, Size::B1024, slot, false));
    }
    wait_until("a rank is behind", || {
        let report = report(folder);
        let session = &report.switchml.unwrap().sessions[0];
        session.ranks[1].counters.behind == 5 && session.ranks[1].counters.behind_s > 0.0
    });
    let silent = "rank 1";
    wait_until("the log says so", || {
        let log = logged();
        log.lines()
            .any(|line| line.contains(silent) && line.contains("silent") && line.contains("5 sums"))
    });
    let told = report(folder).to_string();
    assert!(told.contains("BEHIND: 5 sums wait for it"), "{told}");
    for slot in 0..5 {
        send(&mut hosts[1], &request(1, Size::B1024, slot, false));
        assert_eq!(receive(&mut hosts[0])[48..50], slot.to_be_bytes());
        receive(&mut hosts[1]);
    }
    wait_until("the log says that it resumed", || {
        logged()
            .lines()
            .any(|line| line.contains(silent) && line.contains("resumed after"))
    });
    let now = report(folder);
    let switchml = now.switchml.as_ref().unwrap();
    let session = &switchml.sessions[0];
    assert_eq!((session.packet_bytes, session.ranks.len()), (1024, 2));
    assert_eq!(
        (session.counters.contributions, session.counters.results),
        (74, 37)
    );
    assert_eq!(
        (
            session.counters.slots_in_use,
            session.ranks[1].counters.behind
        ),
        (0, 0)
    );
    assert_eq!(session.ranks[1].port.as_deref(), Some("p1"));
    assert_eq!(session.ranks[0].ip, ip(0).to_string());
    assert!(now.drops.is_empty(), "{:?}", now.drops);
    // Each port's queue belongs to one core, and half of the slots to the other.
    assert!(now.ports.iter().all(|port| port.counters.handed_over > 0));

    drop((hosts, runtime));
    assert!(pool.is_whole());
    let status = Command::new("kill")
        .args(["-TERM", &switch.0.id().to_string()])
        .status();
    assert!(status.unwrap().success());
    assert!(switch.0.wait().unwrap().success(), "{}", logged());
    let mut last = Vec::new();
    std::fs::File::open(folder.join("report.json"))
        .unwrap()
        .read_to_end(&mut last)
        .unwrap();
    let last: Report = simd_json::from_slice(&mut last).unwrap();
    assert_eq!(last.frames_missing, Some(0));
    assert_eq!(last.switchml.unwrap().counters["results"], 37);
}
