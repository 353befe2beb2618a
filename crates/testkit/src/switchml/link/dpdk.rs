//! Over a DPDK device, as the published client: with frames of its own making, whose checksums a
//! NIC would have finished, without ARP in either direction, and without a look at anything but its
//! own datagrams.

use super::{Link, Peer};
use anyhow::{Result, bail};
use std::time::Duration;
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, PortConfig, RxQueue, StartedPort,
    TxQueue, connect, free_bulk,
};
use tally_wire::frame::UDP_END;
use tally_wire::switchml::{FIRST_PORT, HEADERS_BYTES, Header, Size, emit_request};
use tally_wire::{Addresses, UdpFrame};

/// Frames in a burst.
const BURST: usize = 32;
const FRAMES: u32 = 2047;
const CACHE_FRAMES: u32 = 64;
const MEGABYTES: u32 = 64;
/// How long a device may take to come up and its peer to appear.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// The published client's first source port, which is the least of ours.
const OWN_PORT_MIN: u16 = 4000;
/// Looks at a device without frames before it sleeps in between.
const LOOKS: u32 = 200;
const SLEEP_MAX: Duration = Duration::from_micros(200);

/// A device.
pub struct DpdkLink {
    // Queues and frames go before the port and the pool.
    rx: RxQueue,
    tx: TxQueue,
    received: Vec<Mbuf>,
    leaving: Vec<Mbuf>,
    read: Vec<Mbuf>,
    pool: Mempool,
    own: Peer,
    /// For a port that no earlier session had, nor a process before this one, if that can be
    /// helped.
    turns: u16,
    /// To the switch.
    addresses: Option<Addresses>,
    frame_bytes: usize,
    idle: u32,
    _port: tally_dpdk::Port<tally_dpdk::Started>,
    _thread: EalThread,
}

impl DpdkLink {
    /// Starts DPDK and opens a device for packets of up to that size: once in a process.
    ///
    /// # Errors
    /// If DPDK does not let us, or the device's peer does not appear.
    pub fn open(device: &str, own: Peer, largest: Size) -> Result<Self> {
        let frame_bytes = HEADERS_BYTES + largest.payload_bytes();
        let buffer_bytes = frame_bytes.max(2048) as u16;
        let megabytes = MEGABYTES + FRAMES * (u32::from(buffer_bytes) + 512) / (1 << 20);
        let eal = Eal::init(&EalConfig::no_huge(megabytes).for_device(device))?;
        let thread = EalThread::register(&eal)?;
        let pool = MempoolConfig {
            frames: FRAMES,
            cache_frames: CACHE_FRAMES,
            frame_bytes_max: buffer_bytes,
            socket: None,
        };
        let pool = Mempool::new(&eal, "switchml", &pool)?;
        let config = PortConfig {
            mtu: (frame_bytes > 1514).then_some(9000),
            ..PortConfig::default()
        };
        let StartedPort { port, rx, tx } = connect(&eal, device, &config, &pool, START_PATIENCE)?;
        let (Some(rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
            bail!("{device}: no queues");
        };
        Ok(Self {
            rx,
            tx,
            received: Vec::with_capacity(BURST),
            leaving: Vec::with_capacity(BURST),
            read: Vec::with_capacity(BURST),
            pool,
            own,
            turns: getrandom::u32()? as u16,
            addresses: None,
            frame_bytes,
            idle: 0,
            _port: port,
            _thread: thread,
        })
    }
}

fn addresses(own: Peer, own_port: u16, switch: Peer) -> Addresses {
    Addresses {
        src_mac: own.mac,
        dst_mac: switch.mac,
        src_ip: own.ip,
        dst_ip: switch.ip,
        src_port: own_port,
        dst_port: FIRST_PORT,
    }
}

/// Who a frame must be from and to.
fn reversed(sent: &Addresses) -> Addresses {
    Addresses {
        src_mac: sent.dst_mac,
        dst_mac: sent.src_mac,
        src_ip: sent.dst_ip,
        dst_ip: sent.src_ip,
        src_port: sent.dst_port,
        dst_port: sent.src_port,
    }
}

impl Link for DpdkLink {
    fn turn_to(&mut self, switch: Peer, size: Size) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        self.addresses = Some(addresses(
            self.own,
            OWN_PORT_MIN + (self.turns & 0x3fff),
            switch,
        ));
        self.frame_bytes = HEADERS_BYTES + size.payload_bytes();
        Ok(())
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Result<usize> {
        let Some(addresses) = self.addresses else {
            bail!("nowhere to send to");
        };
        let mut sent = 0;
        // What the driver has not taken goes first, and nothing is made until it has gone.
        self.tx.burst(&mut self.leaving);
        while self.leaving.len() < BURST {
            let Some(mut mbuf) = self.pool.alloc() else {
                break;
            };
            let Some(frame) = mbuf.append(self.frame_bytes) else {
                bail!("a buffer is shorter than a frame");
            };
            if fill(&mut frame[UDP_END..]).is_none() {
                break;
            }
            let header = Header::parse(&frame[UDP_END..])?;
            emit_request(frame, &addresses, &header);
            self.leaving.push(mbuf);
            sent += 1;
        }
        self.tx.burst(&mut self.leaving);
        Ok(sent)
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let n = self.rx.burst(&mut self.received, BURST);
        let expected = self.addresses.as_ref().map(reversed);
        for mbuf in self.received.drain(..) {
            if mbuf.is_contiguous()
                && let Ok(udp) = UdpFrame::parse(mbuf.data())
                && Some(udp.addresses) == expected
            {
                take(udp.datagram(mbuf.data()));
            }
            self.read.push(mbuf);
        }
        free_bulk(&mut self.read);
        if n > 0 {
            self.idle = 0;
        }
        Ok(n)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.idle = self.idle.saturating_add(1);
        if self.idle <= LOOKS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(timeout.min(SLEEP_MAX));
        }
        Ok(())
    }
}
