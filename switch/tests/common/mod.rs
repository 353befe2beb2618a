//! What the tests of this folder share: the switch's addresses, a worker's header, captures, and a
//! data core that has a job of two workers to do.

#![allow(dead_code, reason = "each test takes what it needs")]

use crossbeam_channel::{Sender, unbounded};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tally_dpdk::{Eal, Mempool, Port, PortConfig, RxQueue, StartedPort, TxQueue};
use tally_engine::forwarding::FloodLimits;
use tally_engine::native::Native;
use tally_engine::queue::QueueConfig;
use tally_engine::switchml::{Switchml, SwitchmlConfig, SwitchmlDialect};
use tally_engine::{
    Aggregator, Command, Context, Dialects, Forwarding, ForwardingConfig, Member, PolicyName,
    PoolConfig, PoolJob, PortId, Ports, Roster, SwitchAddress,
};
use tally_kernels::Kernels;
use tally_schema::switch::config::{
    AddressConfig, Config, FixedMember, FixedMembers, Idle, JobSection, PortSection,
};
use tally_switch::control_queue::{ControlReceiver, control_queue};
use tally_switch::datapath::{Core, DataCore};
use tally_switch::drain::Drains;
use tally_switch::handover::{Inbox, Outbox};
use tally_switch::messages::CoreCommand;
use tally_switch::platform::{Driver, Memory, STAGE_FRAMES};
use tally_switch::queues::{Rx, Tx};
use tally_wire::{
    AuthTag, Element, Epoch, EpochSecret, Flags, FragmentId, Header, JobId, Key, Kind, Mac, Rank,
};

pub const OWN: SwitchAddress = SwitchAddress {
    mac: Mac([2, 0x54, 0x41, 0x4c, 0x4c, 0x59]),
    ip: Ipv4Addr::new(10, 84, 0, 254),
    base_port: 31249,
};
pub const JOB: JobId = JobId(7);
pub const KEY: &str = "00112233445566778899aabbccddeeff";

/// How long what must come is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The configuration of a switch with these ports, whose statistics socket is `stats` in `folder`.
pub fn config(folder: &Path, ports: Vec<PortSection>) -> Config {
    Config {
        stats_socket: Some(folder.join("stats")),
        ..Config::new(AddressConfig::new(OWN.mac, OWN.ip), ports)
    }
}

/// A port with a name of its own.
pub fn port(name: impl Into<String>, device: impl Into<String>) -> PortSection {
    PortSection {
        name: Some(name.into()),
        ..PortSection::new(device)
    }
}

/// The job, whose members need not join.
pub fn fixed_job(payload_bytes: usize, workers: Vec<FixedMember>, ps: FixedMember) -> JobSection {
    let key: Key = KEY.parse().unwrap();
    let count = workers.len() as u8;
    let fixed = FixedMembers {
        payload_bytes: payload_bytes as u16,
        workers,
        ps,
    };
    JobSection {
        fixed: Some(fixed),
        ..JobSection::new(JOB.0, key, count)
    }
}

/// Writes a configuration into `folder`; returns the file.
pub fn write_config(folder: &Path, config: &Config) -> PathBuf {
    let path = folder.join("switch.json");
    std::fs::write(&path, simd_json::to_string(config).unwrap()).unwrap();
    path
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client's memif port of so many queues each way, once the switch is at its other end.
pub fn connect(eal: &Eal, pool: &Mempool, id: u16, arguments: &str, queues: u16) -> StartedPort {
    let config = PortConfig {
        rx_queues: queues,
        tx_queues: queues,
        ..PortConfig::default()
    };
    let start = || {
        let port = Port::vdev(eal, &format!("net_memif{id}"), arguments).ok()?;
        port.configure(&config, std::slice::from_ref(pool))
            .ok()?
            .start()
            .ok()
    };
    let mut started = None;
    wait_until("the link is up", || {
        drop(started.take());
        started = start();
        let deadline = Instant::now() + Duration::from_millis(200);
        while let Some(port) = &started
            && Instant::now() < deadline
        {
            if port.port.link().unwrap().up {
                return true;
            }
        }
        false
    });
    started.unwrap()
}

/// A contribution of integers.
pub fn header(rank: u8, fragment: u32, payload_bytes: usize) -> Header {
    Header {
        kind: Kind::Data,
        flags: Flags::NONE,
        priority: 0,
        element: Element::I32,
        job: JOB,
        epoch: Epoch(1),
        fragment: FragmentId(fragment),
        rank: Rank(rank),
        units: (payload_bytes / 64) as u8,
        bitmap: 1 << rank,
        tag: AuthTag::NONE,
    }
}

/// A capture file: microseconds, version 2.4, Ethernet.
pub fn pcap<'a>(frames: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        out.extend(word.to_le_bytes());
    }
    for (n, frame) in (0..).zip(frames) {
        for word in [n, 0, frame.len() as u32, frame.len() as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(frame);
    }
    out
}

/// The frames of a capture file.
pub fn frames_of(pcap: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut rest = &pcap[24..];
    while let Some((head, tail)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize;
        frames.push(tail[..len].to_vec());
        rest = &tail[len..];
    }
    frames
}

/// Of the epoch that the job runs in.
pub const SECRET: EpochSecret = EpochSecret::new([7; 16]);

/// What a test holds of a data core that runs on another thread.
pub struct CoreHandle {
    pub commands: Sender<CoreCommand>,
    pub stop: Arc<AtomicBool>,
    /// Held, so that the core finds a receiver of JOINs.
    pub control: ControlReceiver,
}

/// Core 0, with these queues, a pool of 64 slots, and the job bound: two workers, and a PS.
pub fn data_core(
    rx: Vec<(PortId, RxQueue)>,
    tx: Vec<Result<(TxQueue, QueueConfig), usize>>,
    (inbox, outbox): (Inbox, Outbox),
    pool: &Mempool,
    payload_bytes: usize,
    member: impl Fn(u8) -> Member,
) -> (DataCore, CoreHandle) {
    switchml_core(rx, tx, (inbox, outbox), pool, payload_bytes, member, None)
}

/// As [`data_core`], also with SwitchML: its configuration, and whether ports send frames of
/// several segments.
pub fn switchml_core(
    rx: Vec<(PortId, RxQueue)>,
    tx: Vec<Result<(TxQueue, QueueConfig), usize>>,
    (inbox, outbox): (Inbox, Outbox),
    pool: &Mempool,
    payload_bytes: usize,
    member: impl Fn(u8) -> Member,
    switchml: Option<(SwitchmlConfig, bool)>,
) -> (DataCore, CoreHandle) {
    let config = PoolConfig {
        slots: 64,
        ways: 1,
        held: 0,
        window: 32,
        shards: 1,
        shard: 0,
        jobs: vec![PoolJob::unlimited(JOB)],
        policy: PolicyName::Esa,
        places: 0,
    };
    let (commands, orders) = unbounded();
    let (to_control, control) = control_queue(tx.len());
    let forwarding = Forwarding::new(&ForwardingConfig {
        mac: OWN.mac,
        ip: OWN.ip,
        ports: tx.len() as u16,
        ageing_s: 300,
        addresses: 1024,
        floods_per_s: FloodLimits::each(10_000),
        answers_per_s: 10_000,
        seed: 0x1234_5678_9abc_def0,
    });
    let stop = Arc::new(AtomicBool::new(false));
    let ports = tx.len();
    let (tx, waiting): (Vec<_>, Vec<_>) = tx
        .into_iter()
        .map(|queue| match queue {
            Ok((tx, config)) => (Some(Tx::Dpdk(tx)), Ok(config)),
            Err(core) => (None, Err(core)),
        })
        .unzip();
    let aggregator = Aggregator::new(config, Kernels::best());
    let switchml = switchml.map(|(config, chains)| {
        let pool = Switchml::new(config, Kernels::best());
        Box::new(SwitchmlDialect::new(pool, vec![chains; ports]))
    });
    let dialects = Dialects {
        native: Native::new(aggregator, OWN.base_port, 1, ports),
        switchml,
        netreduce: None,
        offload: None,
    };
    let ways = Ports::new(waiting, 2, STAGE_FRAMES);
    let context = Context::new(OWN, 0, 1, ways, Memory(pool.clone()), forwarding);
    let core = DataCore {
        core: Core::new(context, dialects).unwrap(),
        rx: rx.into_iter().map(|(id, rx)| (id, Rx::Dpdk(rx))).collect(),
        ready: None,
        driver: Driver {
            tx,
            outbox,
            capture: None,
        },
        inbox,
        commands: orders,
        drains: Drains::default(),
        refused_before: Vec::new(),
        control: to_control,
        idle: Idle::Backoff,
        epoch: Instant::now(),
        stop: Arc::clone(&stop),
    };
    let units = (payload_bytes / 64) as u8;
    let workers = vec![member(0), member(1)];
    let roster = Roster::new(JOB, Epoch(1), SECRET, units, workers, member(2));
    let bind = Command::Bind(Arc::new(roster));
    commands.send(bind.into()).unwrap();
    let handle = CoreHandle {
        commands,
        stop,
        control,
    };
    (core, handle)
}
