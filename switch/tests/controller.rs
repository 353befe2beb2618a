//! The controller over TCP, with the client half of the same calls: what depends on connections and
//! clocks. What is decided, and in which words, is tested in virtual time
//! (`tally_engine::switchml::controller`).

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tally_engine::switchml::controller::{ControllerConfig, Event, Plane};
use tally_engine::switchml::{Session, SessionId};
use tally_switch::config::Network;
use tally_switch::switchml::controller::{self, Limits, Running};
use tally_switch::switchml::proto::session_client::SessionClient;
use tally_switch::switchml::proto::sync_client::SyncClient;
use tally_switch::switchml::proto::{
    BarrierRequest, BroadcastRequest, PacketSize, RdmaSessionRequest, UdpSessionRequest,
    UdpSessionResponse,
};
use tally_wire::switchml::Size;
use tally_wire::{Mac, Time};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const MAC: Mac = Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]);
const IP: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
/// Longer than anything here takes that does not fail.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the data path was asked to do.
#[derive(Clone, Default)]
struct Bound {
    sessions: Arc<Mutex<Vec<Arc<Session>>>>,
    log: Arc<Mutex<Vec<String>>>,
    /// It takes its time, and says when it is done.
    slow: Arc<AtomicBool>,
    done: Arc<AtomicBool>,
}

impl Bound {
    fn ids(&self) -> Vec<u64> {
        self.sessions
            .lock()
            .unwrap()
            .iter()
            .map(|s| s.id.0)
            .collect()
    }

    /// A log line with all of these words, in the end.
    fn logged(&self, words: &[&str]) {
        let found = |line: &String| words.iter().all(|word| line.contains(word));
        let start = Instant::now();
        while !self.log.lock().unwrap().iter().any(found) {
            let log = self.log.lock().unwrap().clone();
            assert!(start.elapsed() < PATIENCE, "{words:?} not in {log:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Plane for Bound {
    fn bind(&mut self, session: &Arc<Session>) -> Result<(), String> {
        if self.slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.done.store(true, Ordering::Relaxed);
        self.sessions.lock().unwrap().push(Arc::clone(session));
        Ok(())
    }

    fn unbind(&mut self, id: SessionId) {
        self.sessions.lock().unwrap().retain(|s| s.id != id);
    }

    fn last_frame(&mut self, _: SessionId) -> Option<Time> {
        None
    }
}

fn config() -> ControllerConfig {
    ControllerConfig {
        listens: Vec::new(),
        secret: [7; 32],
        grace_period: Duration::ZERO,
        sessions: 2,
        mac: MAC,
        ip: IP,
        size_max: Size::B8192,
        setup_timeout: Duration::from_secs(300),
        idle_timeout: Duration::from_secs(300),
    }
}

fn start(listens: usize, config: ControllerConfig) -> (Running, Bound) {
    start_with(Limits::new(Vec::new()), listens, config)
}

fn start_with(limits: Limits, listens: usize, config: ControllerConfig) -> (Running, Bound) {
    let bound = Bound::default();
    let log = Arc::clone(&bound.log);
    let listen = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); listens];
    let note = move |event: &Event| log.lock().unwrap().push(event.to_string());
    let epoch = Instant::now();
    let running = controller::start(limits, &listen, config, bound.clone(), epoch, note).unwrap();
    (running, bound)
}

/// One worker's process, as far as it talks to the controller: one connection.
#[derive(Clone)]
struct Worker {
    session: SessionClient<Channel>,
    sync: SyncClient<Channel>,
    rank: u32,
    workers: u32,
    host: u8,
}

impl Worker {
    async fn connect(at: SocketAddr, rank: u32, workers: u32, host: u8) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{at}")).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self {
            session: SessionClient::new(channel.clone()),
            sync: SyncClient::new(channel),
            rank,
            workers,
            host,
        }
    }

    async fn broadcast(&self, value: u64) -> Result<u64, Status> {
        let request = BroadcastRequest {
            value,
            rank: self.rank,
            num_workers: self.workers,
            root: 0,
        };
        let answer = self.sync.clone().broadcast(request).await?;
        Ok(answer.into_inner().value)
    }

    async fn barrier(&self) -> Result<(), Status> {
        let num_workers = self.workers;
        let answer = self
            .sync
            .clone()
            .barrier(BarrierRequest { num_workers })
            .await;
        answer.map(|_| ())
    }

    async fn udp_session(&self, session_id: u64) -> Result<UdpSessionResponse, Status> {
        let request = UdpSessionRequest {
            session_id,
            rank: self.rank,
            num_workers: self.workers,
            mac: Mac([2, 0, 0, 0, 0, self.host]).to_u64(),
            ipv4: Ipv4Addr::new(10, 84, 0, self.host).to_bits(),
            packet_size: PacketSize::Mtu256.into(),
        };
        Ok(self
            .session
            .clone()
            .udp_session(request)
            .await?
            .into_inner())
    }

    /// What the published client does until it sends its first packet.
    async fn set_up(self, value: u64) -> Result<(Self, UdpSessionResponse), Status> {
        let id = self
            .broadcast(if self.rank == 0 { value } else { 0 })
            .await?;
        let session = if self.rank == 0 {
            let session = self.udp_session(id).await?;
            self.barrier().await?;
            session
        } else {
            self.barrier().await?;
            self.udp_session(id).await?
        };
        self.barrier().await?;
        Ok((self, session))
    }
}

/// Everything on one thread, as in a client.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, test)
            .await
            .expect("it hangs")
    })
}

type Begun = JoinHandle<Result<(Worker, UdpSessionResponse), Status>>;

async fn begin(at: SocketAddr, workers: u32, first_host: u8, id: u64) -> Vec<Begun> {
    let mut job = Vec::new();
    for rank in 0..workers {
        let worker = Worker::connect(at, rank, workers, first_host + rank as u8).await;
        job.push(tokio::spawn(worker.set_up(id)));
    }
    job
}

async fn all(job: Vec<Begun>) -> Vec<Worker> {
    let mut workers = Vec::new();
    let mut told = BTreeSet::new();
    for begun in job {
        let (worker, session) = begun.await.unwrap().unwrap();
        assert_ne!(session.mac, MAC.to_u64(), "each has an address of its own");
        assert!(told.insert(session.mac));
        assert_eq!(session.ipv4, IP.to_bits());
        workers.push(worker);
    }
    workers
}

#[test]
fn a_job_sets_up_as_the_published_clients_do() {
    let (running, bound) = start(1, config());
    run(async {
        let job = begin(running.addresses()[0], 8, 1, 0x1234_5678_9abc_def0).await;
        let workers = all(job).await;
        assert_eq!(bound.ids(), [0x1234_5678_9abc_def0]);
        let status = running.memberships();
        assert!(status[0].running);
        assert_eq!((status[0].workers, status[0].connected), (8, 8));
        drop(workers);
    });
    bound.logged(&["0x123456789abcdef0 of 8 workers", "256 bytes", "10.84.0.8"]);
    let session = Arc::clone(&bound.sessions.lock().unwrap()[0]);
    assert_eq!(session.size, Size::B256);
    assert_eq!(session.workers[7].mac, Mac([2, 0, 0, 0, 0, 8]));
    // Its process has ended: the connections close, the session lives on.
    let start = Instant::now();
    while running.memberships()[0].connected > 0 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(bound.ids().len(), 1);
}

#[test]
fn two_jobs_at_once_on_two_addresses() {
    let (running, bound) = start(2, config());
    run(async {
        let one = begin(running.addresses()[0], 4, 1, 1).await;
        let two = begin(running.addresses()[1], 3, 11, 2).await;
        let _open = (all(one).await, all(two).await);
        let mut ids = bound.ids();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
    });
}

#[test]
fn the_last_answer_comes_after_the_data_path_is_ready() {
    let (running, bound) = start(1, config());
    bound.slow.store(true, Ordering::Relaxed);
    run(async {
        let worker = Worker::connect(running.addresses()[0], 0, 1, 1).await;
        worker.udp_session(1).await.unwrap();
        assert!(bound.done.load(Ordering::Relaxed));
    });
}

#[test]
fn refusals_are_errors_with_a_text() {
    let (running, bound) = start(1, config());
    let at = running.addresses()[0];
    run(async {
        let refused = |status: Status, code, text: &str| {
            assert_eq!((status.code(), status.message()), (code, text));
        };
        let stranger = Worker::connect(at, 0, 0, 1).await;
        let text = "num_workers is 0; allowed are 1 to 64";
        refused(
            stranger.broadcast(1).await.unwrap_err(),
            Code::InvalidArgument,
            text,
        );
        refused(
            stranger.barrier().await.unwrap_err(),
            Code::InvalidArgument,
            text,
        );
        refused(
            stranger.udp_session(1).await.unwrap_err(),
            Code::InvalidArgument,
            text,
        );

        let mut session = stranger.session.clone();
        let rdma = session
            .rdma_session(RdmaSessionRequest::default())
            .await
            .unwrap_err();
        assert_eq!(rdma.code(), Code::Unimplemented);
        assert!(rdma.message().contains("no RDMA"), "{rdma}");

        let one = Worker::connect(at, 0, 2, 1).await;
        let other = Worker::connect(at, 0, 2, 2).await;
        one.udp_session(1).await.unwrap();
        let text = "rank 0 of session 0x1 is 02:00:00:00:00:01 10.84.0.1, and cannot be 02:00:00:00:00:02 10.84.0.2 too";
        refused(
            other.udp_session(1).await.unwrap_err(),
            Code::AlreadyExists,
            text,
        );
        other.udp_session(2).await.unwrap();
        let third = Worker::connect(at, 0, 2, 3).await;
        let full = third.udp_session(3).await.unwrap_err();
        assert_eq!(full.code(), Code::ResourceExhausted);
        assert!(full.message().contains("all 2 sessions"), "{full}");
        bound.logged(&["call from 127.0.0.1", "refused: num_workers is 0"]);
        bound.logged(&["call from 127.0.0.1", "refused: all 2 sessions"]);

        // Two jobs at one address: whichever comes second is refused.
        let mut jobs =
            [one, other].map(|worker| Some(tokio::spawn(async move { worker.broadcast(1).await })));
        let busy = loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if let Some(second) = jobs
                .iter_mut()
                .find_map(|job| job.take_if(|job| job.is_finished()))
            {
                break second.await.unwrap().unwrap_err();
            }
        };
        assert_eq!(busy.code(), Code::Aborted);
        assert!(busy.message().contains("switchml.listen"), "{busy}");
    });
}

#[test]
fn those_who_wait_hear_of_a_death_at_once() {
    let (running, _) = start(1, config());
    let at = running.addresses()[0];
    run(async {
        let one = Worker::connect(at, 0, 3, 1).await;
        // A process of its own, in a manner of speaking: with its runtime all of it ends.
        let dies = std::thread::spawn(move || {
            run(async {
                let dies = Worker::connect(at, 1, 3, 2).await;
                let call = dies.broadcast(0);
                tokio::time::timeout(Duration::from_millis(200), call)
                    .await
                    .unwrap_err();
            });
        });
        let start = Instant::now();
        let refusal = one.broadcast(1).await.unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(refusal.code(), Code::Unavailable);
        assert!(
            refusal.message().starts_with("rank 1 (127.0.0.1:"),
            "{refusal}"
        );
        dies.join().unwrap();
        // The next attempt finds an empty place.
        let _open = all(begin(at, 3, 1, 5).await).await;
    });
}

/// Its host is off, or the cable is out: the connection does not close, and there are no answers.
#[test]
fn those_who_wait_hear_of_a_dead_host_too() {
    let limits = Limits {
        keepalive: Duration::from_secs(1),
        ..Limits::new(Vec::new())
    };
    let (running, _) = start_with(limits, 1, config());
    let at = running.addresses()[0];
    let (over, is_over) = std::sync::mpsc::channel();
    let hangs = std::thread::spawn(move || {
        run(async {
            let hangs = Worker::connect(at, 1, 3, 2).await;
            let call = tokio::spawn(async move { hangs.broadcast(0).await });
            tokio::time::sleep(Duration::from_millis(100)).await;
            // Its thread does nothing any more, and with it its connection.
            let _ = is_over.recv_timeout(PATIENCE);
            call.abort();
        });
    });
    run(async {
        let one = Worker::connect(at, 0, 3, 1).await;
        let refusal = one.broadcast(1).await.unwrap_err();
        assert_eq!(refusal.code(), Code::Unavailable);
        assert!(
            refusal.message().starts_with("rank 1 (127.0.0.1:"),
            "{refusal}"
        );
    });
    over.send(()).unwrap();
    hangs.join().unwrap();
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let config = ControllerConfig {
        setup_timeout: Duration::from_millis(100),
        ..config()
    };
    let (running, bound) = start(1, config);
    run(async {
        let one = Worker::connect(running.addresses()[0], 1, 3, 1).await;
        let text = "Broadcast of 3 workers: within 0.1 s there came no ranks 0, 2";
        let refusal = one.broadcast(0).await.unwrap_err();
        assert_eq!(
            (refusal.code(), refusal.message()),
            (Code::DeadlineExceeded, text)
        );
        one.udp_session(9).await.unwrap();
        let text = "Barrier of 3 workers: within 0.1 s there came no ranks 0, 2";
        // Whichever limit is first: the barrier's is a little later than its session's.
        let refusal = one.barrier().await.unwrap_err();
        assert!(
            refusal.message() == text || refusal.message().starts_with("session 0x9 has ended"),
            "{refusal}"
        );
    });
    bound.logged(&["session 0x9 ends", "no ranks 0, 2"]);
}

#[test]
fn a_session_whose_clients_are_gone_ends() {
    let config = ControllerConfig {
        idle_timeout: Duration::from_millis(100),
        ..config()
    };
    let (running, bound) = start(1, config);
    run(async {
        drop(all(begin(running.addresses()[0], 2, 1, 7).await).await);
    });
    bound.logged(&["session 0x7 ends", "all its connections are closed"]);
    assert!(bound.ids().is_empty());
    assert!(running.memberships().is_empty());
}

#[test]
fn a_job_started_anew_takes_its_place_again() {
    let (running, bound) = start(1, config());
    let at = running.addresses()[0];
    run(async {
        let old = all(begin(at, 2, 1, 1).await).await;
        let new = all(begin(at, 2, 1, 2).await).await;
        assert_eq!(bound.ids(), [2]);
        drop((old, new));
    });
    bound.logged(&["session 0x1 ends", "was started anew in session 0x2"]);
}

#[test]
fn stopping_does_not_wait_for_those_who_wait() {
    let (running, _) = start(1, config());
    let at = running.addresses()[0];
    run(async {
        let one = Worker::connect(at, 0, 2, 1).await;
        let waits = tokio::spawn(async move { one.barrier().await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        drop(running);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(waits.await.unwrap().is_err());
        assert!(
            std::net::TcpStream::connect(at).is_err(),
            "it listens still"
        );
    });
}

#[test]
fn noise_on_the_port_disturbs_no_session() {
    use std::io::{Read, Write};
    let (running, _) = start(1, config());
    let at = running.addresses()[0];
    let mut noisy = Vec::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x00\xff\x00\xff",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00",
    ] {
        let mut stream = std::net::TcpStream::connect(at).unwrap();
        stream.write_all(bytes).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let _ = stream.read(&mut [0; 64]);
        noisy.push(stream);
    }
    run(async {
        let _open = all(begin(at, 2, 1, 1).await).await;
        let channel = Endpoint::from_shared(format!("http://{at}"))
            .unwrap()
            .connect()
            .await
            .unwrap();
        // A request longer than any client sends.
        let request = RdmaSessionRequest {
            qpns: vec![u32::MAX; 100_000],
            ..Default::default()
        };
        let refusal = SessionClient::new(channel)
            .rdma_session(request)
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), Code::OutOfRange);
    });
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let plane = Bound::default();
    let limits = Limits::new(Vec::new());
    let error = controller::start(
        limits,
        &[address],
        config(),
        plane,
        Instant::now(),
        |_: &Event| {},
    );
    let text = error.err().unwrap().to_string();
    assert!(
        text.starts_with(&format!(
            "SwitchML's controller cannot listen at {address}: "
        )),
        "{text}"
    );
}

/// A connection from this address of the loopback network.
fn connect_from(from: [u8; 4], to: SocketAddr) -> std::io::Result<std::net::TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((from, 0)))?;
        socket.connect(to).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether the other end has closed it, within that time.
fn is_closed(stream: &mut std::net::TcpStream, within: Duration) -> bool {
    use std::io::Read;
    let start = Instant::now();
    while start.elapsed() < within {
        let left = within.saturating_sub(start.elapsed());
        let _ = stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
    false
}

#[test]
fn connections_that_make_no_call_are_closed_in_time() {
    use std::io::Write;
    let limits = Limits {
        first_call: Duration::from_millis(300),
        ..Limits::new(Vec::new())
    };
    let (running, _) = start_with(limits, 1, config());
    let at = running.addresses()[0];
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // The first nine bytes of 100 of a stream's headers.
    let headers = [0, 0, 100, 1, 4, 0, 0, 0, 1];
    let whole = [&preface[..], &settings, &headers].concat();
    let starts = [&[][..], &preface[..10], preface, &whole[..24 + 9], &whole];
    let mut silent: Vec<_> = starts
        .iter()
        .map(|bytes| {
            let mut stream = std::net::TcpStream::connect(at).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    run(async {
        // A client that has called may be silent for longer.
        let workers = all(begin(at, 2, 1, 1).await).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
        let (a, b) = (workers[0].clone(), workers[1].clone());
        let (a, b) = (
            tokio::spawn(async move { a.barrier().await }),
            b.barrier().await,
        );
        assert!(a.await.unwrap().is_ok() && b.is_ok());
    });
    for (n, stream) in silent.iter_mut().enumerate() {
        assert!(is_closed(stream, PATIENCE), "{n}");
    }
}

#[test]
fn one_host_cannot_take_all_connections() {
    let limits = Limits {
        connections: 20,
        connections_of_host: 8,
        ..Limits::new(Vec::new())
    };
    let (running, bound) = start_with(limits, 1, config());
    let at = running.addresses()[0];
    let mut flood: Vec<_> = (0..30)
        .map(|_| connect_from([127, 0, 0, 66], at).unwrap())
        .collect();
    let is_open = |stream: &mut std::net::TcpStream| !is_closed(stream, Duration::from_millis(50));
    let open = flood.iter_mut().map(is_open).filter(|open| *open).count();
    assert_eq!(open, 8);
    bound.logged(&["127.0.0.66", "has 8 connections open, and no more may"]);
    run(async {
        let _open = all(begin(at, 2, 1, 1).await).await;
    });
}

#[test]
fn hosts_outside_of_the_networks_that_may_call_are_turned_away() {
    let allow =
        ["127.0.0.1", "127.0.7.0/24"].map(|text| Network::try_from(text.to_owned()).unwrap());
    let (running, bound) = start_with(Limits::new(allow.into()), 1, config());
    let at = running.addresses()[0];
    for (host, is_in) in [([127, 0, 0, 2], false), ([127, 0, 7, 9], true)] {
        let mut stream = connect_from(host, at).unwrap();
        let closed = is_closed(&mut stream, Duration::from_millis(500));
        assert_eq!(closed, !is_in, "{host:?}");
    }
    bound.logged(&["127.0.0.2", "in none of the networks of switchml.allow"]);
    run(async {
        let _open = all(begin(at, 2, 1, 1).await).await;
    });
}

#[test]
fn one_host_cannot_have_all_calls() {
    let limits = Limits {
        calls_of_host: 3,
        ..Limits::new(Vec::new())
    };
    let (running, _) = start_with(limits, 1, config());
    let at = running.addresses()[0];
    run(async {
        let one = Worker::connect(at, 0, 60, 1).await;
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let one = one.clone();
                tokio::spawn(async move { one.barrier().await })
            })
            .collect();
        let mut refused = 0;
        while refused == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            refused = calls.iter().filter(|call| call.is_finished()).count();
        }
        assert_eq!(refused, 1);
        for call in calls {
            if call.is_finished() {
                let status = call.await.unwrap().unwrap_err();
                assert_eq!(status.code(), Code::ResourceExhausted);
                let text = "3 calls from 127.0.0.1 wait for their answers, and no more may";
                assert_eq!(status.message(), text);
            }
        }
    });
}

/// Ranks of two jobs that arrive crosswise at one address: none gets an answer that is not an
/// error.
#[test]
fn two_jobs_at_one_address_are_both_refused() {
    let config = ControllerConfig {
        grace_period: Duration::from_millis(500),
        ..config()
    };
    let (running, bound) = start(1, config);
    let at = running.addresses()[0];
    run(async {
        // Rank 0 of one, rank 1 of the other, and then the rest.
        let order = [(0, 1), (1, 12), (0, 11), (1, 2)];
        let mut calls = Vec::new();
        for (rank, host) in order {
            let worker = Worker::connect(at, rank, 2, host).await;
            calls.push(tokio::spawn(
                async move { worker.broadcast(host.into()).await },
            ));
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        for call in calls {
            let status = call.await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::Aborted);
            assert!(status.message().contains("switchml.listen"), "{status}");
        }
    });
    assert!(bound.ids().is_empty());
}
