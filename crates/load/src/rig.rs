//! DPDK at the generator's side: memory, ports, and the check of the switch behind them.
//!
//! Contributions leave in buffers of a pool of their own. The [common payload] is written into each
//! once, at the start, and a buffer that returns to the pool still has it. So a frame is made by
//! writing its first 128 bytes. All other frames come from a second pool.
//!
//! [common payload]: super::pattern::common_payload

use super::faults::{Faults, Held};
use super::pattern::common_payload;
use super::plan::{Host, Plan, PortPlan, SwitchPlan};
use anyhow::{Context, Result, bail, ensure};
use core_affinity::CoreId;
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, Port, PortConfig, RxQueue, Started,
    TxQueue, connect, free_bulk, is_pci,
};
use tally_endpoint::{Transmit, datagram_bytes};
use tally_schema::switch::config::MemoryKind;
use tally_wire::frame::{self, UDP_END};
use tally_wire::neighbour::{arp_request, arp_sender};
use tally_wire::{Addresses, Element, HEADERS_BYTES, Header, MAX_PAYLOAD_BYTES, MAX_UNITS, Mac};

/// Frames in one burst: what every driver takes.
pub const BURST: usize = 32;
/// Frames that may wait for one port before nothing new is made for it.
const WAITING_MAX: usize = 4 * BURST;
/// Buffers that a registered thread may keep for itself.
const CACHE_FRAMES: u32 = 256;
/// Buffers for a port: what waits, and what a device's rings hold beside it.
const FRAMES_VIRTUAL: u32 = 512;
const FRAMES_NIC: u32 = 3072;
/// Buffers for all frames but contributions.
const FRAMES_OTHER: u32 = 4095;
/// How long a device may take to come up and its peer to appear.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long the switch may take to answer ARP, and how often it is asked.
const ARP_PATIENCE: Duration = Duration::from_secs(3);
const ARP_EVERY: Duration = Duration::from_millis(100);

/// Memory, once per process. Made by the thread that will send.
pub struct Rig {
    eal: Eal,
    /// With the common payload in every buffer.
    contributions: Mempool,
    others: Mempool,
    arriving: Mempool,
    _thread: EalThread,
}

impl Rig {
    /// Starts the EAL, puts the calling thread on `cpu`, if it is to have one, and fills the pools.
    ///
    /// # Errors
    /// If DPDK does not let us, or there is no such CPU.
    pub fn new(plan: &Plan, element: Element, cpu: Option<usize>) -> Result<Self> {
        let devices = || plan.ports.iter().map(|port| port.device.as_str());
        let bytes = devices().filter_map(driver_frame_bytes).max().unwrap_or(0);
        let buffer_bytes = bytes.max(plan.frame_bytes_max);
        let each = if devices().any(is_pci) {
            FRAMES_NIC
        } else {
            FRAMES_VIRTUAL
        };
        let frames = (plan.ports.len() as u32 * each + 2 * CACHE_FRAMES).next_power_of_two() - 1;
        // Descriptor, headroom and DPDK's own header; on ordinary pages no buffer crosses one.
        let page = match plan.memory {
            MemoryKind::NoHuge => 4096,
            MemoryKind::InMemory | MemoryKind::Hugepages => 64,
        };
        let buffer = (u64::from(buffer_bytes) + 512).next_multiple_of(page);
        let buffers = u64::from(2 * frames + FRAMES_OTHER);
        let megabytes = (buffers * buffer * 9 / 8 / (1 << 20)) as u32 + 64;
        let config = match plan.memory {
            MemoryKind::NoHuge => EalConfig::no_huge(megabytes),
            // As files they would be the switch's.
            MemoryKind::InMemory | MemoryKind::Hugepages => EalConfig::in_memory(megabytes),
        };
        let eal = Eal::init(&EalConfig {
            pci_allow: devices().filter(|d| is_pci(d)).map(str::to_owned).collect(),
            ..config
        })?;
        // Not before: DPDK's own threads would stay on it, too.
        if let Some(id) = cpu {
            ensure!(
                core_affinity::set_for_current(CoreId { id }),
                "cannot run on CPU {id}: is it there, and allowed?"
            );
        }
        let thread = EalThread::register(&eal)?;
        let pool = |name, frames| {
            Mempool::new(
                &eal,
                name,
                &MempoolConfig {
                    frames,
                    cache_frames: CACHE_FRAMES,
                    frame_bytes_max: buffer_bytes,
                    socket: None,
                },
            )
        };
        let rig = Self {
            contributions: pool("contributions", frames)?,
            others: pool("others", FRAMES_OTHER)?,
            arriving: pool("arriving", frames)?,
            eal: eal.clone(),
            _thread: thread,
        };
        rig.fill(element)?;
        Ok(rig)
    }

    fn fill(&self, element: Element) -> Result<()> {
        let pool = &self.contributions;
        let payload = common_payload(element);
        let bytes = (pool.frame_bytes_max() - HEADERS_BYTES).min(MAX_PAYLOAD_BYTES);
        let mut all = Vec::new();
        ensure!(
            pool.alloc_bulk(&mut all, pool.size()),
            "the pool of contributions is not whole"
        );
        for mbuf in &mut all {
            let frame = mbuf.append(HEADERS_BYTES + bytes);
            let frame = frame.context("a buffer is shorter than its pool says")?;
            frame[..HEADERS_BYTES].fill(0);
            frame[HEADERS_BYTES..].copy_from_slice(&payload[..bytes]);
        }
        free_bulk(&mut all);
        Ok(())
    }

    /// Opens ports whose other end is anything.
    ///
    /// # Errors
    /// If a device does not come up.
    pub fn open(&self, ports: &[PortPlan]) -> Result<Wire> {
        let open = |plan: &PortPlan| {
            let what = || format!("port {} ({})", plan.name, plan.device);
            let config = PortConfig::default();
            let started = connect(
                &self.eal,
                &plan.device,
                &config,
                &self.arriving,
                START_PATIENCE,
            )
            .with_context(what)?;
            let (mut rx, mut tx) = (started.rx, started.tx);
            let (Some(rx), Some(tx)) = (rx.pop(), tx.pop()) else {
                bail!("{}: the device has no queues", what());
            };
            Ok(Line {
                name: plan.name.clone(),
                rx,
                tx,
                out: Vec::with_capacity(2 * WAITING_MAX),
                held: Held::default(),
                _port: started.port,
            })
        };
        Ok(Wire {
            lines: ports.iter().map(open).collect::<Result<_>>()?,
            contributions: self.contributions.clone(),
            others: self.others.clone(),
        })
    }
}

/// What a driver's own arguments say of the longest frame.
fn driver_frame_bytes(device: &str) -> Option<u16> {
    let sizes = device.split(',').filter_map(|argument| {
        let (key, bytes) = argument.split_once('=')?;
        ["bsize", "framesz"].contains(&key).then_some(bytes)
    });
    sizes.filter_map(|bytes| bytes.parse().ok()).max()
}

/// One port, open.
pub struct Line {
    name: String,
    // Queues go before the port.
    rx: RxQueue,
    tx: TxQueue,
    /// What waits to leave.
    out: Vec<Mbuf>,
    held: Held<Mbuf>,
    _port: Port<Started>,
}

/// All ports.
pub struct Wire {
    lines: Vec<Line>,
    contributions: Mempool,
    others: Mempool,
}

impl Wire {
    /// The number of ports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Receives up to a burst from a port.
    #[inline]
    pub fn receive(&mut self, port: usize, into: &mut Vec<Mbuf>) -> usize {
        self.lines[port].rx.burst(into, BURST)
    }

    /// Whether something new may be made for a port.
    #[inline]
    #[must_use]
    pub fn has_room(&self, port: usize) -> bool {
        self.lines[port].out.len() < WAITING_MAX
    }

    /// Queues `count` contributions of `bytes` bytes, each written by `write`, which is told its
    /// place; the common payload is in them. Returns how many there were buffers for.
    #[inline]
    pub fn contribute(
        &mut self,
        port: usize,
        count: usize,
        bytes: usize,
        faults: &mut Faults,
        mut write: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        let line = &mut self.lines[port];
        let from = line.out.len();
        if !self.contributions.alloc_bulk(&mut line.out, count) {
            return 0;
        }
        for (at, mbuf) in line.out[from..].iter_mut().enumerate() {
            if let Some(frame) = mbuf.append(bytes) {
                write(at, frame);
            }
        }
        if faults.is_on() {
            faults.pass(&mut line.out, from, &mut line.held);
        }
        count
    }

    /// Queues a datagram from `host` to the switch, if `fill` has one to write. Says whether it
    /// had.
    pub fn send(
        &mut self,
        switch: &SwitchPlan,
        host: &Host,
        faults: &mut Faults,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> bool {
        let line = &mut self.lines[host.port];
        let Some(mut mbuf) = self.others.alloc() else {
            return false;
        };
        let Some(buffer) = mbuf.append(UDP_END + datagram_bytes(MAX_UNITS).min(room(&self.others)))
        else {
            return false;
        };
        let Some(Transmit { len, port }) = fill(&mut buffer[UDP_END..]) else {
            return false;
        };
        let Ok(header) = Header::parse(&buffer[UDP_END..][..len]) else {
            return false;
        };
        frame::emit(buffer, &addresses(switch, host, port), &header);
        if mbuf.set_len(UDP_END + len) {
            let from = line.out.len();
            line.out.push(mbuf);
            if faults.is_on() {
                faults.pass(&mut line.out, from, &mut line.held);
            }
        }
        true
    }

    /// Offers what waits to the drivers; with `all`, what is held back, too. Says whether anything
    /// left.
    pub fn flush(&mut self, all: bool) -> bool {
        let mut sent = 0;
        for line in &mut self.lines {
            if all {
                line.held.release(&mut line.out);
            }
            if !line.out.is_empty() {
                sent += line.tx.burst(&mut line.out);
            }
        }
        sent > 0
    }

    /// Checks by ARP that the configured switch is at the other end of each port with a host. No
    /// other frame is sent before.
    ///
    /// # Errors
    /// If it does not answer, or is another one.
    pub fn find_switch<'a>(
        &mut self,
        switch: &SwitchPlan,
        hosts: impl Iterator<Item = &'a Host> + Clone,
    ) -> Result<()> {
        for (at, line) in self.lines.iter_mut().enumerate() {
            let Some(host) = hosts.clone().find(|host| host.port == at) else {
                continue;
            };
            let request = arp_request(host.mac, host.ip, switch.ip);
            let found = line.ask(&self.others, &request, switch);
            let name = &line.name;
            match found {
                None => bail!(
                    "port {name}: the switch at {} does not answer ARP within {ARP_PATIENCE:?}",
                    switch.ip
                ),
                Some(mac) => ensure!(
                    mac == switch.mac,
                    "port {name}: {} is at {mac}, which is not the configuration's {}",
                    switch.ip,
                    switch.mac
                ),
            }
        }
        Ok(())
    }
}

impl Line {
    fn ask(&mut self, pool: &Mempool, request: &[u8], switch: &SwitchPlan) -> Option<Mac> {
        let deadline = Instant::now() + ARP_PATIENCE;
        let mut next = Instant::now();
        let mut burst = Vec::with_capacity(BURST);
        while Instant::now() < deadline {
            if Instant::now() >= next {
                next += ARP_EVERY;
                self.out.extend(pool.alloc_copy(request));
                self.tx.burst(&mut self.out);
            }
            self.rx.burst(&mut burst, BURST);
            let found = burst
                .iter()
                .find_map(|mbuf| arp_sender(mbuf.data(), switch.ip));
            free_bulk(&mut burst);
            if found.is_some() {
                return found;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        None
    }
}

/// Bytes of a datagram that a buffer holds.
fn room(pool: &Mempool) -> usize {
    pool.frame_bytes_max() - UDP_END
}

/// From a member to one of the switch's ports.
#[must_use]
pub fn addresses(switch: &SwitchPlan, host: &Host, port: u16) -> Addresses {
    Addresses {
        src_mac: host.mac,
        dst_mac: switch.mac,
        src_ip: host.ip,
        dst_ip: switch.ip,
        src_port: host.udp_port,
        dst_port: port,
    }
}
