//! `net_memif` between two processes without hugepages, as root and as an ordinary user; and a
//! second start after a crash.

mod common;

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use common::child::{Stage, User, users};
use common::{frame, in_two, pattern, pool, wait_until};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, Port, PortConfig, StartedPort,
};

/// More than a ring of 2^10 holds, so that both ends meet a full one.
const FRAMES: usize = 5000;

#[test]
fn two_processes() {
    match env::var("TALLY_ROLE").as_deref() {
        Ok("server") => return server(),
        Ok("client") => return client(),
        Ok("crash") => return crash(),
        _ => {}
    }
    for user in users() {
        let stage = Stage::new("memif");
        // The default is an abstract socket, which leaves nothing behind.
        let abstract_name = format!("tally-test-{}-{user:?}", std::process::id());
        run(&stage, user, &format!("socket={abstract_name}"));
        // Jumbo frames, each in one descriptor and one buffer.
        run(&stage, user, &format!("socket={abstract_name},bsize=9216"));
        // A client whose buffers the server writes to, where the EAL allows it.
        let shared = format!("socket={abstract_name},zero-copy=yes");
        run(&stage, user, &shared);
        // A socket in the file system, which a crash leaves behind.
        let socket = format!("socket-abstract=no,socket={}", stage.path("memif.sock"));
        let mut crashed = start(&stage, user, "crash", &socket);
        let crashed = crashed.wait().expect("it ends");
        assert_eq!(crashed.signal(), Some(6), "by SIGABRT, not {crashed}");
        assert!(stage.folder.join("memif.sock").exists());
        run(&stage, user, &socket);
    }
}

fn start(stage: &Stage, user: User, role: &str, socket: &str) -> std::process::Child {
    let environment = [("TALLY_ROLE", role), ("TALLY_SOCKET", socket)];
    stage.start("two_processes", user, &environment)
}

fn run(stage: &Stage, user: User, socket: &str) {
    let mut server = start(stage, user, "server", socket);
    let mut client = start(stage, user, "client", socket);
    let client = client.wait().expect("it ends");
    let server = server.wait().expect("it ends");
    assert!(
        client.success() && server.success(),
        "client: {client}, server: {server}, {user:?}, {socket}"
    );
}

fn port(eal: &Eal, role: &str, pool: &Mempool) -> StartedPort {
    let mut socket = env::var("TALLY_SOCKET").expect("the parent sets it");
    if role == "server" {
        // The client's choice.
        socket = socket.replace(",zero-copy=yes", "");
    }
    let config = PortConfig {
        tx_multi_segment: true,
        ..PortConfig::default()
    };
    let start = || {
        Port::vdev(eal, "net_memif0", &format!("role={role},id=3,{socket}"))
            .expect("a port")
            .configure(&config, std::slice::from_ref(pool))
            .expect("it takes the configuration")
            .start()
    };
    if role == "server" {
        return start().expect("it starts");
    }
    // A client connects once: it fails before its server listens, and is turned away before it is
    // started.
    let mut started = None;
    wait_until("the link is up", || {
        drop(started.take());
        started = start().ok();
        let deadline = Instant::now() + Duration::from_millis(200);
        while let Some(port) = &started
            && Instant::now() < deadline
        {
            if port.port.link().expect("link").up {
                return true;
            }
        }
        false
    });
    started.expect("started")
}

fn is_jumbo() -> bool {
    env::var("TALLY_SOCKET").is_ok_and(|socket| socket.contains("bsize=9216"))
}

fn content(n: usize) -> Vec<u8> {
    pattern(n).repeat(if is_jumbo() { 6 } else { 1 })
}

fn big_pool(eal: &Eal) -> Mempool {
    let config = MempoolConfig {
        frames: 2047,
        cache_frames: 64,
        frame_bytes_max: if is_jumbo() { 9216 } else { 2048 },
        socket: None,
    };
    Mempool::new(eal, "p", &config).expect("memory")
}

/// No client comes before it crashes.
fn crash() {
    let eal = common::eal();
    let _thread = EalThread::register(&eal).expect("registered");
    let pool = pool(&eal, "p", 511, 0);
    let mut port = port(&eal, "server", &pool);
    assert!(!port.port.link().expect("link").up);
    let mut early = vec![frame(&pool, 0)];
    assert_eq!(port.tx[0].burst(&mut early), 0, "no link, no frames");
    std::process::abort();
}

/// Sends back what it gets, every second frame in two segments where the driver sends such frames.
fn server() {
    let eal = common::eal();
    let _thread = EalThread::register(&eal).expect("registered");
    let pool = big_pool(&eal);
    let mut port = port(&eal, "server", &pool);
    let in_segments = port.port.info().tx_multi_segment;
    let (mut echoed, mut frames) = (0, Vec::with_capacity(64));
    let (mut arrived, mut kept) = (Vec::with_capacity(64), Vec::new());
    wait_until("all frames are echoed", || {
        for _ in 0..1000 {
            let room = 32 - frames.len();
            port.rx[0].burst(&mut arrived, room);
            for (n, frame) in arrived.drain(..).enumerate() {
                if n % 2 == 0 || !in_segments {
                    frames.push(frame);
                } else {
                    let (chain, payload) = in_two(&pool, frame);
                    frames.push(chain);
                    kept.push(payload);
                }
            }
            echoed += port.tx[0].burst(&mut frames);
            kept.retain(|payload| !payload.is_unique());
        }
        echoed == FRAMES
    });
    assert!(frames.is_empty());
    wait_until("the client has gone", || {
        !port.port.link().expect("link").up
    });
    assert_eq!(port.tx[0].chained_dropped(), 0);
    drop(port);
    // Those of the last burst, whose frames are done with.
    assert!(kept.iter().all(Mbuf::is_unique));
    drop(kept);
    assert!(pool.is_whole());
}

fn client() {
    let socket = env::var("TALLY_SOCKET").expect("the parent sets it");
    let eal = Eal::init(&EalConfig::no_huge(64).for_device(&socket)).expect("the EAL starts");
    let _thread = EalThread::register(&eal).expect("registered");
    let pool = big_pool(&eal);
    if socket.contains("zero-copy=yes") {
        // Its successor reaches the server, too, and copies.
        drop(port(&eal, "client", &pool));
    }
    let started = Instant::now();
    let mut port = port(&eal, "client", &pool);
    eprintln!("link up after {:?}", started.elapsed());

    let mut waiting: Vec<Mbuf> = Vec::new();
    let mut received: Vec<Mbuf> = Vec::with_capacity(64);
    let (mut sent, mut back) = (0, 0);
    wait_until("all frames are back", || {
        for _ in 0..1000 {
            while waiting.len() < 32 && sent + waiting.len() < FRAMES {
                let bytes = content(sent + waiting.len());
                waiting.push(pool.alloc_copy(&bytes).expect("a frame"));
            }
            sent += port.tx[0].burst(&mut waiting);
            port.rx[0].burst(&mut received, 32);
            for frame in received.drain(..) {
                assert!(frame.is_contiguous());
                assert!(frame.data() == content(back), "frame {back}");
                assert_eq!(frame.data().as_ptr().addr() % 64, 0);
                back += 1;
            }
        }
        back == FRAMES
    });
    let stats = port.port.stats().expect("counters");
    assert_eq!(
        (stats.rx_frames, stats.tx_frames),
        (FRAMES as u64, FRAMES as u64)
    );
    drop(port);
    // The driver keeps what was in a shared ring when it was closed.
    assert!(pool.is_whole() || socket.contains("zero-copy=yes"));
}
