//! The card's port, which may come and go with the switch at its other end.

use super::options::Options;
use anyhow::{Context, Result, ensure};
use nix::unistd::Uid;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Error, Mbuf, Mempool, MempoolConfig, Port, PortConfig, StartedPort,
    connect, is_pci,
};

/// Frames in one burst.
const BURST: usize = 32;
/// Bursts taken in a turn, at most.
const BURSTS: usize = 4;
/// Buffers: both rings full, and what waits to be sent.
const FRAMES: u32 = 4095;
const CACHE_FRAMES: u32 = 128;
/// Room for any ordinary frame, and what `net_memif` uses unless told otherwise.
const BUFFER_BYTES_MIN: u16 = 2048;
/// Frames that wait for room in the port's queue, at most.
const LEAVING_MAX: usize = 1024;
/// How long one try to reach the other end takes.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks whether there is a socket to go to.
const LOOK_AT_SOCKET: Duration = Duration::from_millis(20);
/// Between two looks at the link.
const LOOK_AT_LINK: Duration = Duration::from_millis(100);

/// The port, or what waits for it.
pub struct Line {
    state: State,
    leaving: Vec<Mbuf>,
    arrived: Vec<Mbuf>,
    /// Frames that found no room.
    unsent: u64,
    next_look: Instant,
    opener: Opener,
    // Behind all that holds buffers.
    _thread: EalThread,
}

enum State {
    Opening(JoinHandle<Result<Option<StartedPort>, Error>>),
    Open(StartedPort),
    Closed,
}

/// What it takes to open the port.
#[derive(Clone)]
struct Opener {
    eal: Eal,
    device: String,
    pool: Mempool,
    stop: Arc<AtomicBool>,
}

impl Opener {
    /// Waits for the other end; `None` if the process is to end.
    fn open(&self) -> Result<Option<StartedPort>, Error> {
        let config = PortConfig::default();
        if !self.is_client() && !is_pci(&self.device) {
            // Its other end comes when it likes.
            let (name, arguments) = self.device.split_once(',').unwrap_or((&self.device, ""));
            let port = Port::vdev(&self.eal, name, arguments)?;
            let started = port.configure(&config, std::slice::from_ref(&self.pool))?;
            return started.start().map(Some);
        }
        while !self.stop.load(Ordering::Relaxed) {
            // Trying in vain, the driver would say so each time.
            if self.is_client() && self.socket().is_some_and(|path| !path.exists()) {
                std::thread::sleep(LOOK_AT_SOCKET);
                continue;
            }
            match connect(&self.eal, &self.device, &config, &self.pool, PATIENCE) {
                Ok(started) if started.port.link()?.up || is_pci(&self.device) => {
                    return Ok(Some(started));
                }
                // There is no peer yet.
                Ok(_) => {}
                Err(Error::Call {
                    call: "rte_eth_dev_start",
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Whether it connects to a peer that listens, and has to do so again if the peer has gone.
    fn is_client(&self) -> bool {
        let mut arguments = self.device.split(',');
        let is_memif = arguments
            .next()
            .is_some_and(|it| it.starts_with("net_memif"));
        is_memif && !arguments.any(|it| it == "role=server")
    }

    /// Where it goes to, if that is a file.
    fn socket(&self) -> Option<&Path> {
        let mut arguments = self.device.split(',');
        let is_file = arguments.clone().any(|it| it == "socket-abstract=no");
        let path = arguments.find_map(|it| it.strip_prefix("socket="));
        path.filter(|_| is_file).map(Path::new)
    }

    /// The device, for the error that it cannot be opened.
    fn describe(&self) -> String {
        let of_kernel = ["net_af_packet", "net_af_xdp", "net_tap"];
        let is_of_kernel = of_kernel.iter().any(|it| self.device.starts_with(it));
        let hint = if is_of_kernel && !Uid::effective().is_root() {
            " (interfaces of the kernel take root)"
        } else {
            ""
        };
        format!("--port {}{hint}", self.device)
    }

    fn start(&self) -> State {
        let opener = self.clone();
        State::Opening(std::thread::spawn(move || opener.open()))
    }
}

impl Line {
    /// Starts DPDK, and to wait for the other end.
    pub fn open(options: &Options, stop: Arc<AtomicBool>) -> Result<Self> {
        let device = options.port.clone();
        ensure!(
            is_pci(&device) || device.starts_with("net_"),
            "--port {device}: a card takes a PCI address or a device of DPDK, as net_memif0,role=client,id=0 or \
             net_af_packet0,iface=card1"
        );
        let base = if options.hugepages {
            EalConfig::in_memory(options.megabytes)
        } else {
            EalConfig::no_huge(options.megabytes)
        };
        let eal = Eal::init(&base.for_device(&device))?;
        let thread = EalThread::register(&eal)?;
        let bsize = device.split(',').find_map(|it| it.strip_prefix("bsize="));
        let bsize = bsize.and_then(|n| n.parse().ok()).unwrap_or(0);
        let pool = MempoolConfig {
            frames: FRAMES,
            cache_frames: CACHE_FRAMES,
            frame_bytes_max: BUFFER_BYTES_MIN.max(bsize),
            socket: None,
        };
        let opener = Opener {
            pool: Mempool::new(&eal, "card", &pool)?,
            eal,
            device,
            stop,
        };
        Ok(Self {
            state: opener.start(),
            leaving: Vec::with_capacity(LEAVING_MAX),
            arrived: Vec::with_capacity(BURST),
            unsent: 0,
            next_look: Instant::now() + LOOK_AT_LINK,
            opener,
            _thread: thread,
        })
    }

    /// Gives what has arrived to `take`, and says how many frames that were.
    pub fn receive(&mut self, mut take: impl FnMut(&[u8])) -> Result<usize> {
        self.look()?;
        let State::Open(port) = &mut self.state else {
            return Ok(0);
        };
        let mut taken = 0;
        for _ in 0..BURSTS {
            let burst = port.rx[0].burst(&mut self.arrived, BURST);
            for frame in self.arrived.drain(..) {
                if frame.is_contiguous() {
                    take(frame.data());
                } else {
                    take(&frame.parts().flatten().copied().collect::<Vec<_>>());
                }
            }
            taken += burst;
            if burst < BURST {
                break;
            }
        }
        Ok(taken)
    }

    /// Has the frame sent with the next flush.
    pub fn send(&mut self, frame: &[u8]) {
        if self.leaving.len() == LEAVING_MAX {
            self.flush();
        }
        let has_room = self.leaving.len() < LEAVING_MAX && matches!(self.state, State::Open(_));
        let buffer = has_room.then(|| self.opener.pool.alloc_copy(frame));
        match buffer.flatten() {
            Some(buffer) => self.leaving.push(buffer),
            None => self.unsent += 1,
        }
    }

    /// Sends what there is room for, and says whether anything went.
    pub fn flush(&mut self) -> bool {
        match &mut self.state {
            State::Open(port) if !self.leaving.is_empty() => {
                port.tx[0].burst(&mut self.leaving) > 0
            }
            _ => false,
        }
    }

    /// Frames that found no room.
    pub fn unsent(&self) -> u64 {
        self.unsent + self.leaving.len() as u64
    }

    /// Sees to it that there is a port, as soon as there can be.
    fn look(&mut self) -> Result<()> {
        match &self.state {
            State::Opening(thread) if thread.is_finished() => {
                let State::Opening(thread) = std::mem::replace(&mut self.state, State::Closed)
                else {
                    return Ok(());
                };
                let outcome = thread.join();
                let outcome =
                    outcome.map_err(|_| anyhow::anyhow!("the thread that opens it panicked"));
                let opened = outcome?.with_context(|| self.opener.describe())?;
                if let Some(port) = opened {
                    eprintln!("tally-card: the port is open");
                    self.state = State::Open(port);
                }
            }
            State::Open(port) if self.opener.is_client() => {
                let now = Instant::now();
                if now < self.next_look {
                    return Ok(());
                }
                self.next_look = now + LOOK_AT_LINK;
                if !port.port.link()?.up {
                    eprintln!("tally-card: the other end of the port has gone; waiting for it");
                    self.unsent += self.leaving.len() as u64;
                    self.leaving.clear();
                    self.state = State::Closed;
                    self.state = self.opener.start();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Gives the port back. `stop` is set.
    pub fn close(mut self) -> Result<()> {
        self.leaving.clear();
        self.opener.stop.store(true, Ordering::Relaxed);
        if let State::Opening(thread) = std::mem::replace(&mut self.state, State::Closed) {
            let outcome = thread.join();
            drop(outcome.map_err(|_| anyhow::anyhow!("the thread that opens the port panicked"))?);
        }
        Ok(())
    }
}
