//! A card in software: the engine behind port tags on a memif link, registers behind a socket, and
//! faults.

use crate::common::JOB;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_bridge::protocol::{BYTES, Operation, Request};
use tally_bridge::registers as reg;
use tally_bridge::tags;
use tally_dpdk::{Mbuf, Mempool, StartedPort};
use tally_engine::metrics::MetricSet as _;
use tally_engine::{
    Aggregator, Buffer, Egress, Member, PolicyName, PoolConfig, PoolJob, PortId, Roster, To,
};
use tally_kernels::Kernels;
use tally_wire::frame::{emit, group_of, internet_checksum};
use tally_wire::{
    Addresses, Epoch, EpochSecret, HEADERS_BYTES, Header, JobId, Mac, Rank, Time, UdpFrame,
};

const SLOTS: u32 = 256;
pub const RING: u32 = 256;
const PAYLOAD: u32 = 1024;

/// What a card may do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    None,
    /// Its registers do not answer.
    Hang,
    /// All its registers read ones.
    Ones,
    /// It says that it is another device.
    Stranger,
    /// Its clock stands still.
    Stopped,
    /// It says that it is broken.
    Broken,
    /// Its data path swallows everything.
    Deaf,
    /// The process is gone, as far as its registers and its data path go.
    Gone,
}

/// What its threads share.
#[derive(Default)]
struct Shared {
    fault: AtomicU32,
    stop: AtomicBool,
    /// Registers that were written.
    registers: Mutex<BTreeMap<u16, u32>>,
    /// With whether it is a child switch.
    members: Mutex<BTreeMap<(u32, u32), (Member, bool)>>,
    /// By place.
    jobs: Mutex<BTreeMap<u32, Option<Roster>>>,
    changed: AtomicBool,
    counters: Mutex<BTreeMap<&'static str, u64>>,
    /// To be sent to the switch as they are.
    injected: Mutex<Vec<Vec<u8>>>,
    /// Frames that came, other than probes.
    taken: AtomicU32,
}

impl Shared {
    fn is(&self, fault: Fault) -> bool {
        self.fault.load(Ordering::SeqCst) == fault as u32
    }
}

pub struct SoftwareCard {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    socket: PathBuf,
}

impl SoftwareCard {
    /// Behind `port`, with registers at `socket`.
    pub fn start(port: StartedPort, pool: &Mempool, socket: &Path, places: u32) -> Self {
        let shared = Arc::new(Shared::default());
        let data = Data {
            shared: Arc::clone(&shared),
            port,
            pool: pool.clone(),
            aggregator: Aggregator::new(config(), Kernels::best()),
            out: Out::default(),
            loaded: BTreeMap::new(),
        };
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let registers = Arc::clone(&shared);
        let threads = vec![
            std::thread::spawn(move || data.run()),
            std::thread::spawn(move || serve(&registers, &listener, places)),
        ];
        Self {
            shared,
            threads,
            socket: socket.to_owned(),
        }
    }

    pub fn fail(&self, fault: Fault) {
        self.shared.fault.store(fault as u32, Ordering::SeqCst);
    }

    pub fn inject(&self, frame: Vec<u8>) {
        self.shared.injected.lock().unwrap().push(frame);
    }

    /// Frames that came, other than probes.
    pub fn taken(&self) -> u32 {
        self.shared.taken.load(Ordering::SeqCst)
    }
}

impl Drop for SoftwareCard {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn config() -> PoolConfig {
    PoolConfig {
        slots: SLOTS,
        ways: 1,
        held: 0,
        window: (RING / 2) as u16,
        shards: 1,
        shard: 0,
        jobs: vec![PoolJob::unlimited(JOB)],
        policy: PolicyName::Esa,
        places: 0,
    }
}

// --- Registers. ---

fn serve(shared: &Shared, listener: &UnixListener, places: u32) {
    let since = Instant::now();
    while !shared.stop.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) if !shared.is(Fault::Gone) => {
                stream
                    .set_read_timeout(Some(Duration::from_millis(20)))
                    .unwrap();
                stream.set_nonblocking(false).unwrap();
                converse(shared, stream, places, since);
            }
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn converse(shared: &Shared, mut stream: UnixStream, places: u32, since: Instant) {
    let mut waiting = Vec::new();
    let mut bytes = [0; 4096];
    while !shared.stop.load(Ordering::SeqCst) && !shared.is(Fault::Gone) {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(n) => waiting.extend_from_slice(&bytes[..n]),
            Err(_) => continue,
        }
        while waiting.len() >= BYTES && !shared.is(Fault::Hang) {
            let request = Request::parse(waiting[..BYTES].try_into().unwrap()).unwrap();
            waiting.drain(..BYTES);
            let value = match request.operation {
                Operation::Read => read(shared, request.address, places, since),
                Operation::Write => {
                    write(shared, request.address, request.value);
                    request.value
                }
            };
            if stream.write_all(&request.reply(Some(value))).is_err() {
                return;
            }
        }
    }
}

fn read(shared: &Shared, address: u16, places: u32, since: Instant) -> u32 {
    if shared.is(Fault::Ones) {
        return u32::MAX;
    }
    match address {
        reg::ID if shared.is(Fault::Stranger) => 0x1234_5678,
        reg::ID => reg::ID_VALUE,
        reg::INTERFACE => reg::INTERFACE_VALUE,
        reg::SLOTS => SLOTS,
        reg::PAYLOAD_BYTES => PAYLOAD,
        reg::JOBS => places,
        reg::MEMBERS => 16,
        reg::RING => RING,
        reg::FEATURES => reg::BIT_F32,
        reg::CLOCK_KHZ => 250_000,
        reg::UPTIME if shared.is(Fault::Stopped) => 17,
        reg::UPTIME => since.elapsed().as_millis() as u32,
        reg::STATUS if shared.is(Fault::Broken) => reg::BIT_FAULT,
        reg::STATUS if shared.changed.load(Ordering::SeqCst) => reg::BIT_CLEARING,
        reg::STATUS => 0,
        reg::COUNTERS_AT.. => {
            let at = usize::from(address - reg::COUNTERS_AT);
            let counters = shared.counters.lock().unwrap();
            let value = reg::COUNTERS
                .get(at / 8)
                .and_then(|(_, name)| counters.get(name))
                .copied()
                .unwrap_or(0);
            if at % 8 == 0 {
                value as u32
            } else {
                (value >> 32) as u32
            }
        }
        _ => shared
            .registers
            .lock()
            .unwrap()
            .get(&address)
            .copied()
            .unwrap_or(0),
    }
}

fn write(shared: &Shared, address: u16, value: u32) {
    let mut registers = shared.registers.lock().unwrap();
    let at = |address: u16| registers.get(&address).copied().unwrap_or(0);
    let place = at(reg::JOB_SELECT);
    match address {
        reg::CONTROL => {
            if value & reg::BIT_CLEAR_ALL != 0 {
                let mut jobs = shared.jobs.lock().unwrap();
                jobs.values_mut().for_each(|job| *job = None);
                shared.changed.store(true, Ordering::SeqCst);
            }
            registers.insert(address, value & reg::BIT_ENABLE);
        }
        reg::MEMBER_COMMAND => {
            let mac =
                u64::from(at(reg::MEMBER_MAC_HIGH)) << 32 | u64::from(at(reg::MEMBER_MAC_LOW));
            let [_, _, mac @ ..] = mac.to_be_bytes();
            let member = Member {
                port: PortId(at(reg::MEMBER_PORT) as u16),
                mac: Mac(mac),
                ip: Ipv4Addr::from_bits(at(reg::MEMBER_IP)),
                udp_port: at(reg::MEMBER_UDP_PORT) as u16,
            };
            let key = (place, at(reg::MEMBER_SELECT));
            let is_child = at(reg::MEMBER_CHILD) & reg::BIT_MEMBER_CHILD != 0;
            (shared.members.lock().unwrap()).insert(key, (member, is_child));
        }
        reg::JOB_COMMAND => {
            let members = shared.members.lock().unwrap();
            let job = (value == reg::BIT_JOB_LOAD).then(|| {
                let ranks = 0..at(reg::JOB_WORKERS);
                let workers = ranks.clone().map(|rank| members[&(place, rank)].0);
                let children = ranks.filter(|rank| members[&(place, *rank)].1);
                let roster = Roster::new(
                    JobId(at(reg::JOB_NUMBER) as u16),
                    Epoch(at(reg::JOB_EPOCH) as u16),
                    SECRET,
                    at(reg::JOB_UNITS) as u8,
                    workers.collect(),
                    members[&(place, 255)].0,
                )
                .with_switches(children.fold(0, |children, rank| children | 1 << rank));
                let mask = roster.ports.iter().fold(0, |mask, port| mask | 1 << port.0);
                assert_eq!(mask, at(reg::JOB_PORTS));
                roster
            });
            shared.jobs.lock().unwrap().insert(place, job);
            shared.changed.store(true, Ordering::SeqCst);
        }
        reg::COUNTER_SNAPSHOT => {}
        _ => {
            registers.insert(address, value);
        }
    }
}

// --- The data path. ---

/// A card has no secrets; its engine, which wants one, has any.
const SECRET: EpochSecret = EpochSecret::new([7; 16]);

struct Frame(Vec<u8>);

impl Buffer for Frame {
    fn payload(&self) -> &[u8] {
        &self.0[HEADERS_BYTES..]
    }
    fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0[HEADERS_BYTES..]
    }
}

/// Frames on their way out.
#[derive(Default)]
struct Out(Vec<Vec<u8>>);

impl Out {
    fn emit(&mut self, mask: u16, to: (Mac, Ipv4Addr, u16), header: &Header, mut frame: Vec<u8>) {
        let own = super::OWN;
        let addresses = Addresses {
            src_mac: tags::mask_mac(mask),
            dst_mac: to.0,
            src_ip: own.ip,
            dst_ip: to.1,
            src_port: own.base_port,
            dst_port: to.2,
        };
        emit(&mut frame, &addresses, header);
        // A card leaves the tag, and what is behind a payload, to the switch.
        let trailer = header.kind.trailer_bytes() as u16;
        for at in [16, 38] {
            let bytes = u16::from_be_bytes([frame[at], frame[at + 1]]) - trailer;
            frame[at..at + 2].copy_from_slice(&bytes.to_be_bytes());
        }
        frame[24..26].fill(0);
        let checksum = internet_checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        self.0.push(frame);
    }
}

impl Egress<Frame> for Out {
    fn send(&mut self, roster: &Roster, to: To, header: &Header, buffer: Frame) {
        let to = match to {
            To::Ps => *roster.server_of(header.fragment),
            To::Worker(rank) => roster.workers[usize::from(rank.0)],
            To::Parent => unreachable!("a card has no job with a parent"),
        };
        self.emit(
            1 << to.port.0,
            (to.mac, to.ip, to.udp_port),
            header,
            buffer.0,
        );
    }

    fn publish(
        &mut self,
        roster: &Roster,
        header: &Header,
        buffer: Frame,
        _: Option<Time>,
    ) -> Frame {
        let mask = roster.ports.iter().fold(0, |mask, port| mask | 1 << port.0);
        let group = group_of(roster.job);
        let to = (Mac::of_group(group), group, super::OWN.base_port);
        self.emit(mask, to, header, buffer.0);
        Frame(self.0.last().unwrap().clone())
    }

    fn send_up(&mut self, _: &Roster, _: &Header, _: Frame, _: Option<Time>) -> Frame {
        unreachable!("a card has no job with a parent")
    }

    fn copy_up(&mut self, _: &Roster, _: &Header, _: &Frame) {}

    fn is_queued(&self, _: &Frame) -> bool {
        false
    }

    fn republish(&mut self, roster: &Roster, to: Rank, frame: &Frame) {
        let mut frame = frame.0.clone();
        let mask = 1 << roster.workers[usize::from(to.0)].port.0;
        frame[6..12].copy_from_slice(&tags::mask_mac(mask).0);
        self.0.push(frame);
    }
}

struct Data {
    shared: Arc<Shared>,
    port: StartedPort,
    pool: Mempool,
    aggregator: Aggregator<Frame>,
    out: Out,
    loaded: BTreeMap<u32, Roster>,
}

impl Data {
    fn run(mut self) {
        let mut frames: Vec<Mbuf> = Vec::new();
        let mut waiting: Vec<Mbuf> = Vec::new();
        let start = Instant::now();
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.load();
            self.port.rx[0].burst(&mut frames, 32);
            if frames.is_empty() {
                std::thread::sleep(Duration::from_micros(50));
            }
            let now = Time(start.elapsed().as_nanos() as u64);
            for mbuf in frames.drain(..) {
                if !self.shared.is(Fault::Deaf) && !self.shared.is(Fault::Gone) {
                    self.take(now, mbuf.data());
                }
            }
            self.out.0.append(&mut self.shared.injected.lock().unwrap());
            waiting.extend(
                self.out
                    .0
                    .drain(..)
                    .filter_map(|frame| self.pool.alloc_copy(&frame)),
            );
            while !waiting.is_empty() && self.port.tx[0].burst(&mut waiting) > 0 {}
            waiting.clear();
        }
    }

    /// What the registers say of jobs.
    fn load(&mut self) {
        if !self.shared.changed.load(Ordering::SeqCst) {
            return;
        }
        for (&place, job) in self.shared.jobs.lock().unwrap().iter() {
            match job {
                Some(roster) if self.loaded.get(&place) == Some(roster) => {}
                Some(roster) => {
                    assert!(self.aggregator.bind(roster.clone(), &mut self.out));
                    self.loaded.insert(place, roster.clone());
                }
                None => {
                    if let Some(roster) = self.loaded.remove(&place) {
                        self.aggregator.unbind(roster.job, &mut self.out);
                    }
                }
            }
        }
        self.shared.changed.store(false, Ordering::SeqCst);
    }

    fn take(&mut self, now: Time, frame: &[u8]) {
        let mac = |at: usize| Mac(frame[at..at + 6].try_into().unwrap());
        if tags::probe_of(mac(0)).is_some() {
            self.out.0.push(frame.to_vec());
            return;
        }
        self.shared.taken.fetch_add(1, Ordering::SeqCst);
        let port = tags::port_of(mac(0));
        let udp = UdpFrame::parse(frame);
        let (Some(port), Ok(udp)) = (port, udp) else {
            self.out.0.push(frame.to_vec());
            return;
        };
        let header = Header::parse(udp.datagram(frame)).map(|h| h.received_with(udp.ecn));
        let Ok(header) = header else { return };
        if !self.loaded.values().any(|roster| roster.job == header.job) {
            self.out.0.push(frame.to_vec());
            return;
        }
        let from = Member {
            port,
            mac: mac(6),
            ip: udp.addresses.src_ip,
            udp_port: udp.addresses.src_port,
        };
        // The switch has checked the tag.
        let header = SECRET.seal(header);
        let buffer = Frame(frame[..HEADERS_BYTES + header.payload_bytes()].to_vec());
        self.aggregator
            .handle(now, &from, &header, buffer, &mut self.out);
        let mut counters = self.shared.counters.lock().unwrap();
        counters.extend(self.aggregator.counters().named());
    }
}
