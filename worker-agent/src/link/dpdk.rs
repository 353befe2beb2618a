//! Over a port of its own, through DPDK: frames are built in the buffers that leave, and read in
//! the buffers that arrived.
//!
//! There is no kernel to resolve addresses, so the link asks for the switch's MAC with ARP before
//! it takes anything to send, and answers ARP and ICMP echo for its own address ([`Station`]).
//!
//! When there is nothing to do it yields its CPU at once, and after many times sleeps a little: a host may
//! run many of us, and then whoever we wait for waits for our CPU. (Where nobody does, a yield is a short
//! way to look again.)

use super::ethernet::{Local, Station};
use super::{Link, LinkError};
use crate::config::{Eal as EalOptions, Memory};
use nix::sys::prctl::set_timerslack;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, Port, PortConfig, RxQueue, Started,
    TxQueue, connect, free_bulk, is_pci,
};
use tally_endpoint::{Ecn, Transmit, datagram_bytes};
use tally_wire::frame::{ETHERNET_BYTES, UDP_END};
use tally_wire::{HEADERS_BYTES, MAX_UNITS};

/// Frames in one burst: what every driver takes.
const BURST: usize = 32;
/// Buffers: both rings full, and some in our hands.
const FRAMES: u32 = 4095;
const CACHE_FRAMES: u32 = 128;
/// Bytes of IPv4, UDP and Tally headers, which an MTU covers.
const HEADERS_IN_MTU: usize = HEADERS_BYTES - ETHERNET_BYTES;
const MTU_DEFAULT: usize = 1500;
/// Room for any ordinary frame, and what `net_memif` uses unless told otherwise.
const BUFFER_BYTES_MIN: usize = 2048;
const ARP_EVERY: Duration = Duration::from_millis(100);
/// How long a device may take to come up and its peer to appear.
const START_FOR: Duration = Duration::from_secs(20);
/// Idle rounds of yielding before sleeping: those of a window of fragments, many times over.
const YIELDS: u32 = 1000;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A DPDK port towards one switch.
pub struct DpdkLink {
    // Queues go before the port's other handles, and everything before the thread's registration.
    rx: RxQueue,
    tx: TxQueue,
    port: Port<Started>,
    pool: Mempool,
    _thread: EalThread,
    station: Station,
    frame_bytes: usize,
    received: Vec<Mbuf>,
    leaving: Vec<Mbuf>,
    /// Empty frames of full length.
    spare: Vec<Mbuf>,
    next_arp: Instant,
    idle: u32,
}

impl DpdkLink {
    /// Starts the EAL and the device, for datagrams of up to `units` units of elements; `None`
    /// for any.
    ///
    /// # Errors
    /// If DPDK does not let us, or the device's peer does not appear in time.
    pub fn open(
        eal: &EalOptions,
        device: &str,
        local: Local,
        switch: Ipv4Addr,
        group: Option<Ipv4Addr>,
        units: Option<u8>,
    ) -> Result<Self, LinkError> {
        let config = match eal.memory {
            Memory::NoHuge => EalConfig::no_huge(eal.megabytes),
            Memory::Hugepages => EalConfig::in_memory(eal.megabytes),
        };
        let config = EalConfig {
            pci_allow: if is_pci(device) {
                vec![device.to_owned()]
            } else {
                Vec::new()
            },
            // For `net_memif` to lend its peer the buffers themselves.
            extra_arguments: if device.split(',').any(|a| a == "zero-copy=yes") {
                vec!["--single-file-segments".to_owned()]
            } else {
                Vec::new()
            },
            ..config
        };
        let eal = Eal::init(&config)?;
        let thread = EalThread::register(&eal)?;
        let datagram = datagram_bytes(units.unwrap_or(MAX_UNITS));
        let frame_bytes = UDP_END + datagram;
        let mtu = frame_bytes - HEADERS_BYTES + HEADERS_IN_MTU;
        let buffer_bytes = buffer_bytes(device, frame_bytes);
        let pool = Mempool::new(
            &eal,
            "tally",
            &MempoolConfig {
                frames: frames_in(buffer_bytes, config.memory),
                cache_frames: CACHE_FRAMES,
                frame_bytes_max: buffer_bytes,
                socket: None,
            },
        )?;
        let port_config = PortConfig {
            mtu: (mtu > MTU_DEFAULT).then_some(mtu as u16),
            ..PortConfig::default()
        };
        let started = connect(&eal, device, &port_config, &pool, START_FOR)?;
        let (Some(rx), Some(tx)) = (started.rx.into_iter().next(), started.tx.into_iter().next())
        else {
            unreachable!("one queue each way was asked for");
        };
        // Short sleeps would else be 50 µs longer. It is a wish, not a need.
        let _ = set_timerslack(1_000);
        Ok(Self {
            rx,
            tx,
            port: started.port,
            pool,
            _thread: thread,
            station: Station::new(local, switch, group),
            frame_bytes,
            received: Vec::with_capacity(BURST),
            leaving: Vec::with_capacity(2 * BURST),
            spare: Vec::with_capacity(BURST),
            next_arp: Instant::now(),
            idle: 0,
        })
    }

    fn ask_for_switch(&mut self) {
        let now = Instant::now();
        if now >= self.next_arp {
            self.next_arp = now + ARP_EVERY;
            let request = self.pool.alloc_copy(&self.station.request());
            self.leaving.extend(request);
        }
    }

    /// An empty frame of full length.
    fn spare(&mut self) -> Option<Mbuf> {
        if self.spare.is_empty() && self.pool.alloc_bulk(&mut self.spare, BURST) {
            let frame_bytes = self.frame_bytes;
            self.spare.retain_mut(|mbuf| mbuf.set_len(frame_bytes));
        }
        self.spare.pop()
    }

    fn flush(&mut self) {
        if !self.leaving.is_empty() {
            self.tx.burst(&mut self.leaving);
        }
    }
}

/// Bytes of a buffer: a whole frame, and as much as `net_memif` is told to use (its `bsize`).
fn buffer_bytes(device: &str, frame_bytes: usize) -> u16 {
    let bsize = device.split(',').find_map(|a| a.strip_prefix("bsize="));
    let bsize = bsize.and_then(|n| n.parse().ok()).unwrap_or(0);
    let bytes = frame_bytes.max(BUFFER_BYTES_MIN).max(bsize);
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

/// As many buffers as fit in three quarters of the memory, and as are of use.
fn frames_in(buffer_bytes: u16, memory: tally_dpdk::Memory) -> u32 {
    let (tally_dpdk::Memory::NoHuge { megabytes }
    | tally_dpdk::Memory::InMemory { megabytes }
    | tally_dpdk::Memory::Hugepages { megabytes }) = memory;
    // Descriptor, headroom and the pool's own header.
    let each = u64::from(buffer_bytes) + 128 + 128 + 128;
    let fit = (u64::from(megabytes) << 20) * 3 / 4 / each;
    u32::try_from(fit).unwrap_or(u32::MAX).min(FRAMES)
}

impl Link for DpdkLink {
    fn send(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        if !self.station.knows_switch() {
            self.ask_for_switch();
            self.flush();
            return Ok(0);
        }
        let mut n = 0;
        // What the driver has not taken goes first, and nothing is made until it has gone.
        self.flush();
        while self.leaving.len() < BURST {
            let Some(mut mbuf) = self.spare() else {
                break;
            };
            let Some(buffer) = mbuf.data_mut() else {
                break;
            };
            let Some(transmit) = fill(&mut buffer[UDP_END..]) else {
                self.spare.push(mbuf);
                break;
            };
            let bytes = self.station.finish(buffer, transmit.len, transmit.port);
            if bytes.is_some_and(|bytes| mbuf.set_len(bytes)) {
                self.leaving.push(mbuf);
            }
            n += 1;
        }
        self.flush();
        if n > 0 {
            self.idle = 0;
        }
        Ok(n)
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        let mut received = std::mem::take(&mut self.received);
        let n = self.rx.burst(&mut received, BURST);
        for mbuf in &mut received {
            if !mbuf.is_contiguous() {
                continue;
            }
            if let Some((ecn, datagram)) = self.station.datagram(mbuf.data()) {
                take(ecn, datagram);
                continue;
            }
            self.station.learn(mbuf.data());
            if let Some(frame) = mbuf.data_mut()
                && self.station.answer(frame)
                && self.leaving.len() < BURST
            {
                self.leaving.extend(self.pool.alloc_copy(frame));
            }
        }
        free_bulk(&mut received);
        self.received = received;
        if n > 0 {
            self.idle = 0;
        }
        Ok(n)
    }

    fn wait(
        &mut self,
        timeout: Duration,
        _: Duration,
        _: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        self.flush();
        self.idle = self.idle.saturating_add(1);
        if self.idle <= YIELDS {
            std::thread::yield_now();
        } else {
            let doublings = (self.idle - YIELDS).min(16);
            let sleep = SLEEP_MIN
                .saturating_mul(1 << (doublings / 4))
                .min(SLEEP_MAX);
            std::thread::sleep(sleep.min(timeout));
        }
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        match self.port.link() {
            Ok(link) if !link.up => Some("the device's link is down".into()),
            _ if !self.station.knows_switch() => Some("the switch does not answer ARP".into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_a_frame_and_what_memif_is_told_to_use() {
        let memif = "net_memif0,role=client,bsize=9088,id=1";
        assert_eq!(buffer_bytes(memif, 1100), 9088);
        assert_eq!(buffer_bytes("net_memif0,bsize=x", 1100), 2048);
        assert_eq!(buffer_bytes("0000:01:00.0", 8256), 8256);
    }

    #[test]
    fn frames_fit_the_memory() {
        for megabytes in [16, 64, 1024] {
            let memory = tally_dpdk::Memory::NoHuge { megabytes };
            let frames = frames_in(9088, memory);
            assert!(u64::from(frames) * (9088 + 384) < u64::from(megabytes) << 20);
            assert!(frames > 1000 && frames <= FRAMES, "{frames}");
        }
    }
}
