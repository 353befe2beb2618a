//! A DPDK device of a test's host: frames of the host's own making, to and from the wire.

use anyhow::{Result, bail};
use std::time::Duration;
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, PortConfig, RxQueue, StartedPort,
    TxQueue, connect, free_bulk,
};

/// Frames in a burst.
const BURST: usize = 32;
const FRAMES: u32 = 2047;
const CACHE_FRAMES: u32 = 64;
const MEGABYTES: u32 = 64;
/// How long a device may take to come up and its peer to appear.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Looks at a device without frames before it sleeps in between.
const LOOKS: u32 = 200;
const SLEEP_MAX: Duration = Duration::from_micros(200);

/// A device.
pub struct Device {
    // Queues and frames go before the port and the pool.
    rx: RxQueue,
    tx: TxQueue,
    received: Vec<Mbuf>,
    leaving: Vec<Mbuf>,
    read: Vec<Mbuf>,
    pool: Mempool,
    idle: u32,
    _port: tally_dpdk::Port<tally_dpdk::Started>,
    _thread: EalThread,
}

impl Device {
    /// Starts DPDK and opens a device for frames of up to that length: once in a process.
    ///
    /// # Errors
    /// If DPDK does not let us, or the device's peer does not appear.
    pub fn open(device: &str, frame_bytes: usize) -> Result<Self> {
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
        let pool = Mempool::new(&eal, "testkit", &pool)?;
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
            idle: 0,
            _port: port,
            _thread: thread,
        })
    }

    /// Sends the frames that `fill` writes into buffers of that length, until it has no more or
    /// there is no room. `fill` returns a frame's length. Returns their number.
    ///
    /// # Errors
    /// What `fill` returns, or a length beyond that of buffers.
    pub fn send(
        &mut self,
        frame_bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<Option<usize>>,
    ) -> Result<usize> {
        let mut sent = 0;
        // What the driver has not taken goes first, and nothing is made until it has gone.
        self.tx.burst(&mut self.leaving);
        while self.leaving.len() < BURST {
            let Some(mut mbuf) = self.pool.alloc() else {
                break;
            };
            let Some(frame) = mbuf.append(frame_bytes) else {
                bail!("a buffer is shorter than a frame");
            };
            let Some(bytes) = fill(frame)? else {
                break;
            };
            if !mbuf.set_len(bytes) {
                bail!("a frame of {bytes} bytes in a buffer of {frame_bytes}");
            }
            self.leaving.push(mbuf);
            sent += 1;
        }
        self.tx.burst(&mut self.leaving);
        Ok(sent)
    }

    /// Lends the frames that have arrived to `take`. Returns their number.
    pub fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> usize {
        let n = self.rx.burst(&mut self.received, BURST);
        for mbuf in self.received.drain(..) {
            if mbuf.is_contiguous() {
                take(mbuf.data());
            }
            self.read.push(mbuf);
        }
        free_bulk(&mut self.read);
        if n > 0 {
            self.idle = 0;
        }
        n
    }

    /// Waits for something to arrive, up to `timeout`; it may be less.
    pub fn wait(&mut self, timeout: Duration) {
        self.idle = self.idle.saturating_add(1);
        if self.idle <= LOOKS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(timeout.min(SLEEP_MAX));
        }
    }
}
