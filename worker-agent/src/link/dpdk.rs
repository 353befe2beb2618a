//! Over a port of its own, through DPDK: frames are built in the buffers that leave, and read in
//! the buffers that arrived.
//!
//! A [`DpdkPort`] is one device, and any number of [`DpdkLink`]s on one thread share it, each with
//! a UDP port of its own. The process that receives takes what has come from the device and puts it
//! into the inboxes of all (`inboxes.rs`); a result that several wait for is one buffer. A worker
//! or a parameter server has one link, the agent of a host one for each process.
//!
//! There is no kernel to resolve addresses, so the port asks for the switch's MAC with ARP before
//! it takes anything to send, and answers ARP and ICMP echo for its own address ([`Host`]).
//!
//! Once ACCEPT has given the switch's MAC, it is *pinned* for the link ([`Link::pin`], A-9): the
//! link sends to that MAC and drops what comes from another, regardless of ARP. A link without a
//! pin repeats the ARP request every 100 ms, so that a false answer does not last.
//!
//! When there is nothing to do it yields its CPU at once, and after many times sleeps a little: a
//! host may run many of us, and then the peer that we wait for needs our CPU. (Where none does, a
//! yield is a short poll.)
//!
//! # The catches
//!
//! * DPDK starts once in a process, so there is one port in it, for good. Its device can be opened
//!   again ([`DpdkPort::connect`]): `net_memif` connects only once, and its peer may be restarted.
//! * What is sent to a UDP port just after its link has gone belongs to the next owner of that
//!   port. Sessions drop frames of other jobs and epochs.

mod inboxes;

use super::ethernet::{Datagram, Host, Local};
use super::{Link, LinkError};
use crate::config::{Eal as EalOptions, Memory};
use inboxes::{Arrived, Inboxes};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use nix::sys::time::TimeSpec;
use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tally_dpdk::{
    Eal, EalConfig, EalThread, Mbuf, Mempool, MempoolConfig, Port, PortConfig, RxQueue, Started,
    TxQueue, connect, free_bulk,
};
use tally_endpoint::{Ecn, Transmit, datagram_bytes};
use tally_wire::frame::{ETHERNET_BYTES, UDP_END};
use tally_wire::{HEADERS_BYTES, MAX_UNITS, Mac};

pub use inboxes::Dropped;

/// Frames in one burst: what every driver takes.
const BURST: usize = 32;
/// Bursts taken from the device for one who receives, if all of it is for others.
const BURSTS_MAX: usize = 32;
/// Transmit queue of the device, where it can be so short: the order of sessions ends where it
/// begins ([`tally_endpoint::nic`]). 6 µs at 100 Gbit/s and 1 KiB.
const TX_FRAMES: u16 = 64;
/// Buffers: both rings full, the inboxes, and some in our hands.
const FRAMES: u32 = 4095;
const CACHE_FRAMES: u32 = 128;
/// Bytes of IPv4, UDP and Tally headers, which an MTU covers.
const HEADERS_IN_MTU: usize = HEADERS_BYTES - ETHERNET_BYTES;
const MTU_DEFAULT: usize = 1500;
/// Room for any ordinary frame, and what `net_memif` uses unless told otherwise.
const BUFFER_BYTES_MIN: usize = 2048;
const ARP_EVERY: Duration = Duration::from_millis(100);
/// How long a device may take to come up and its peer to appear.
pub const START_FOR: Duration = Duration::from_secs(20);
/// Idle rounds of yielding before sleeping: those of a window of fragments, many times over.
const YIELDS: u32 = 1000;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Rings of 1024 each way, the inboxes, and bursts on their way.
const _: () = assert!(2 * 1024 + inboxes::HELD_FRAMES_MAX + 8 * BURST < FRAMES as usize);

/// A DPDK port towards one switch, shared by links on this thread.
pub struct DpdkPort {
    shared: Rc<RefCell<Shared>>,
    eal: Eal,
    name: String,
    config: PortConfig,
}

/// What links on a port share.
struct Shared {
    device: Option<Device>,
    /// Why there is none.
    trouble: String,
    inboxes: Inboxes<Mbuf>,
    received: Vec<Mbuf>,
    /// What has been read, to be freed at once.
    read: Vec<Mbuf>,
    leaving: Vec<Mbuf>,
    /// Empty frames of full length.
    spare: Vec<Mbuf>,
    pool: Mempool,
    host: Host,
    frame_bytes: usize,
    next_arp: Instant,
    idle: u32,
    // Behind all that holds buffers.
    _thread: EalThread,
}

/// A device that runs.
struct Device {
    // Queues go before the port's other handles.
    rx: RxQueue,
    tx: TxQueue,
    port: Port<Started>,
}

/// One of those who share a [`DpdkPort`].
pub struct DpdkLink {
    shared: Rc<RefCell<Shared>>,
    /// Its UDP port.
    port: u16,
    /// The switch's MAC, from ACCEPT.
    pinned: Option<Mac>,
}

impl DpdkPort {
    /// Starts the EAL, for the device of that name and datagrams of up to `units` units of
    /// elements; `None` for any. Links will have `port`, and those that follow, as their UDP ports.
    /// The device is opened by
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// If DPDK does not let us.
    pub fn new(
        eal: &EalOptions,
        device: &str,
        local: Local,
        port: u16,
        switch: Ipv4Addr,
        units: Option<u8>,
    ) -> Result<Self, LinkError> {
        let config = match eal.memory {
            Memory::NoHuge => EalConfig::no_huge(eal.megabytes),
            Memory::Hugepages => EalConfig::in_memory(eal.megabytes),
        };
        let config = config.for_device(device);
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
        // Short sleeps would else be 50 µs longer. It is a wish, not a need.
        let _ = set_timerslack(1_000);
        let shared = Shared {
            device: None,
            trouble: "the device is not open".into(),
            inboxes: Inboxes::new(port),
            received: Vec::with_capacity(BURST),
            read: Vec::with_capacity(BURST),
            leaving: Vec::with_capacity(2 * BURST),
            spare: Vec::with_capacity(BURST),
            pool,
            host: Host::new(local, switch),
            frame_bytes,
            next_arp: Instant::now(),
            idle: 0,
            _thread: thread,
        };
        Ok(Self {
            shared: Rc::new(RefCell::new(shared)),
            eal,
            name: device.to_owned(),
            config: PortConfig {
                mtu: (mtu > MTU_DEFAULT).then_some(mtu as u16),
                tx_descriptors: TX_FRAMES,
                ..PortConfig::default()
            },
        })
    }

    /// Opens the device, in place of the one that it was, and waits up to `patience` for its peer;
    /// without any, as long as a peer that is there needs.
    ///
    /// # Errors
    /// If the device cannot be opened, or its peer does not appear in time.
    pub fn connect(&mut self, patience: Duration) -> Result<(), LinkError> {
        let mut shared = self.shared.borrow_mut();
        shared.device = None;
        let started = connect(&self.eal, &self.name, &self.config, &shared.pool, patience);
        let started = started.inspect_err(|why| shared.trouble = why.to_string())?;
        let (Some(rx), Some(tx)) = (started.rx.into_iter().next(), started.tx.into_iter().next())
        else {
            unreachable!("one queue each way was asked for");
        };
        let port = started.port;
        shared.device = Some(Device { rx, tx, port });
        Ok(())
    }

    /// Whether its peer is another process on this machine.
    #[must_use]
    pub fn is_memif(&self) -> bool {
        self.name.starts_with("net_memif")
    }

    /// Whether there is no device, or one that will not come up again by itself: `net_memif`
    /// without its peer.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let shared = self.shared.borrow();
        let device = shared.device.as_ref();
        device.is_none_or(|it| self.is_memif() && !it.is_up())
    }

    /// A link, at the lowest UDP port that is free, that also listens to `group`.
    ///
    /// # Panics
    /// If there are no more UDP ports.
    #[must_use]
    pub fn link(&self, group: Option<Ipv4Addr>) -> DpdkLink {
        let port = self.shared.borrow_mut().inboxes.open(group);
        DpdkLink {
            shared: self.shared.clone(),
            port,
            pinned: None,
        }
    }

    /// Answers ARP requests for our address, while no thread receives.
    pub fn keep(&self) {
        let shared = &mut *self.shared.borrow_mut();
        shared.take_in();
        shared.flush();
    }

    /// As [`Link::wait`], when none of the links has anything to do.
    ///
    /// # Errors
    /// If `wake` cannot be waited for.
    pub fn wait(&self, timeout: Duration, wake: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        self.shared.borrow_mut().wait(timeout, wake)
    }

    /// What has been dropped because of us.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.shared.borrow().inboxes.dropped
    }
}

impl Device {
    fn is_up(&self) -> bool {
        self.port.link().is_ok_and(|link| link.up)
    }
}

impl Shared {
    fn ask_for_switch(&mut self) {
        let now = Instant::now();
        if now >= self.next_arp && self.leaving.len() < BURST {
            self.next_arp = now + ARP_EVERY;
            let request = self.pool.alloc_copy(&self.host.request());
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
        if let Some(device) = &mut self.device
            && !self.leaving.is_empty()
        {
            device.tx.burst(&mut self.leaving);
        }
    }

    /// Takes a burst from the device and puts it where it belongs. Returns how many frames it had.
    fn take_in(&mut self) -> usize {
        let Some(device) = &mut self.device else {
            return 0;
        };
        let n = device.rx.burst(&mut self.received, BURST);
        for mut mbuf in self.received.drain(..) {
            if !mbuf.is_contiguous() {
                continue;
            }
            if let Some(datagram) = self.host.datagram(mbuf.data()) {
                let Datagram {
                    to,
                    from,
                    ecn,
                    bytes,
                } = datagram;
                let arrived = Arrived {
                    frame: mbuf,
                    from,
                    ecn,
                    bytes,
                };
                self.inboxes.deliver(to, arrived, Mbuf::share);
                continue;
            }
            self.host.learn(mbuf.data());
            if let Some(frame) = mbuf.data_mut()
                && self.host.answer(frame)
                && self.leaving.len() < BURST
            {
                self.leaving.extend(self.pool.alloc_copy(frame));
            }
        }
        if n > 0 {
            self.idle = 0;
        }
        n
    }

    fn wait(&mut self, timeout: Duration, wake: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        self.flush();
        self.idle = self.idle.saturating_add(1);
        if self.idle <= YIELDS {
            std::thread::yield_now();
            return Ok(());
        }
        let doublings = (self.idle - YIELDS).min(16);
        let sleep = SLEEP_MIN
            .saturating_mul(1 << (doublings / 4))
            .min(SLEEP_MAX)
            .min(timeout);
        let mut fds: Vec<_> = wake
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .into_iter()
            .collect();
        match ppoll(&mut fds, Some(TimeSpec::from_duration(sleep)), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(LinkError::system("waiting", e)),
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
        let shared = &mut *self.shared.borrow_mut();
        if self.pinned.is_none() {
            shared.ask_for_switch();
        }
        let Some(switch_mac) = self.pinned.or(shared.host.arp_mac()) else {
            shared.flush();
            return Ok(0);
        };
        let mut n = 0;
        // What the driver has not taken goes first, and nothing is made until it has gone.
        shared.flush();
        while shared.leaving.len() < BURST {
            let Some(mut mbuf) = shared.spare() else {
                break;
            };
            let Some(buffer) = mbuf.data_mut() else {
                break;
            };
            let Some(transmit) = fill(&mut buffer[UDP_END..]) else {
                shared.spare.push(mbuf);
                break;
            };
            let ports = (self.port, transmit.port);
            let len = transmit.len;
            let bytes = shared.host.finish(buffer, len, ports, switch_mac);
            if mbuf.set_len(bytes) {
                shared.leaving.push(mbuf);
            }
            n += 1;
        }
        shared.flush();
        if n > 0 {
            shared.idle = 0;
        }
        Ok(n)
    }

    fn receive(&mut self, take: &mut dyn FnMut(Ecn, &[u8])) -> Result<usize, LinkError> {
        let shared = &mut *self.shared.borrow_mut();
        for _ in 0..BURSTS_MAX {
            if !shared.inboxes.is_empty(self.port) || shared.take_in() == 0 {
                break;
            }
        }
        let read = &mut shared.read;
        let n = shared.inboxes.take(self.port, BURST, |arrived| {
            let Arrived {
                frame, ecn, bytes, ..
            } = arrived;
            take(ecn, &frame.data()[UDP_END..][..bytes]);
            read.push(frame);
        });
        free_bulk(read);
        Ok(n)
    }

    fn wait(
        &mut self,
        timeout: Duration,
        _: Duration,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        self.shared.borrow_mut().wait(timeout, wake)
    }

    fn has_room(&self) -> bool {
        self.shared.borrow().leaving.len() < BURST
    }

    fn pin(&mut self, switch_mac: Option<Mac>) {
        if self.pinned == switch_mac {
            return;
        }
        let shared = &mut *self.shared.borrow_mut();
        if let (Some(last), None) = (self.pinned, switch_mac) {
            // ARP frames that came while it was pinned do not count: the last good MAC serves until
            // the next answer.
            shared.host.set_arp_mac(last);
        }
        shared.inboxes.pin(self.port, switch_mac);
        self.pinned = switch_mac;
    }

    fn trouble(&self) -> Option<String> {
        let shared = self.shared.borrow();
        let Some(device) = &shared.device else {
            return Some(shared.trouble.clone());
        };
        if !device.is_up() {
            return Some("the device's link is down".into());
        }
        let switch_mac = self.pinned.or(shared.host.arp_mac());
        switch_mac
            .is_none()
            .then(|| "the switch does not answer ARP".into())
    }
}

impl Drop for DpdkLink {
    fn drop(&mut self) {
        self.shared.borrow_mut().inboxes.close(self.port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_wire::frame::{ETHERTYPE_ARP, emit};
    use tally_wire::neighbour::answer_arp;
    use tally_wire::{
        Addresses, AuthTag, Element, Epoch, Flags, FragmentId, Header, JobId, Kind, Rank,
    };

    const LOCAL: Local = Local {
        mac: Mac([2, 0, 0, 0, 0, 1]),
        address: Ipv4Addr::new(10, 84, 0, 1),
    };
    const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 254);
    const SWITCH_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
    const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const PORT: u16 = 40_000;

    fn header() -> Header {
        Header {
            kind: Kind::Nack,
            flags: Flags::NONE,
            priority: 0,
            element: Element::None,
            job: JobId(7),
            epoch: Epoch(1),
            fragment: FragmentId(0),
            rank: Rank(0),
            units: 0,
            bitmap: 0,
            tag: AuthTag::NONE,
        }
    }

    /// A port whose device returns what it is given.
    struct Loopback(DpdkPort);

    impl Loopback {
        fn open() -> Self {
            let eal = EalOptions {
                memory: Memory::NoHuge,
                megabytes: 64,
            };
            let mut port = DpdkPort::new(&eal, "net_ring0", LOCAL, PORT, SWITCH, Some(2)).unwrap();
            port.connect(Duration::ZERO).unwrap();
            Self(port)
        }

        /// Makes a frame arrive.
        fn arrive(&self, frame: &[u8]) {
            let shared = &mut *self.0.shared.borrow_mut();
            let mut frames = vec![shared.pool.alloc_copy(frame).unwrap()];
            let device = shared.device.as_mut().unwrap();
            assert_eq!(device.tx.burst(&mut frames), 1);
        }

        /// Makes an ARP answer arrive that claims the switch's address for `mac`.
        fn arp(&self, link: &mut DpdkLink, mac: Mac) {
            let mut answer = self.0.shared.borrow().host.request();
            assert!(answer_arp(&mut answer, mac, SWITCH));
            self.arrive(&answer);
            assert_eq!(link.receive(&mut |_, _| ()).unwrap(), 0);
        }

        /// Makes a datagram of the switch's address arrive; whether the link takes it.
        fn takes(&self, link: &mut DpdkLink, src_mac: Mac) -> bool {
            let mut frame = [0; HEADERS_BYTES];
            let addresses = Addresses {
                src_mac,
                dst_mac: LOCAL.mac,
                src_ip: SWITCH,
                dst_ip: LOCAL.address,
                src_port: 31_249,
                dst_port: link.port,
            };
            emit(&mut frame, &addresses, &header());
            self.arrive(&frame);
            link.receive(&mut |_, _| ()).unwrap() == 1
        }

        /// Sends a datagram: the destination MAC of its frame, and whether an ARP request left.
        fn send(&self, link: &mut DpdkLink) -> (Option<Mac>, bool) {
            self.0.shared.borrow_mut().next_arp = Instant::now();
            let mut left = 1;
            link.send(&mut |out| {
                left -= 1;
                header().emit(out);
                (left == 0).then_some(Transmit {
                    len: tally_wire::header::HEADER_BYTES,
                    port: 31_249,
                })
            })
            .unwrap();
            let shared = &mut *self.0.shared.borrow_mut();
            let mut frames = Vec::new();
            let device = shared.device.as_mut().unwrap();
            device.rx.burst(&mut frames, BURST);
            let (mut to, mut asked) = (None, false);
            for frame in &frames {
                let bytes = frame.data();
                if bytes[12..14] == ETHERTYPE_ARP.to_be_bytes() {
                    asked = true;
                } else {
                    to = Some(Mac(*bytes.first_chunk().unwrap()));
                }
            }
            (to, asked)
        }
    }

    #[test]
    fn a_pinned_link_sends_to_one_mac_and_hears_one_mac_regardless_of_arp() {
        let port = Loopback::open();
        let (mut link, mut other) = (port.0.link(None), port.0.link(None));
        assert_eq!(port.send(&mut link), (None, true));
        port.arp(&mut link, SWITCH_MAC);
        assert_eq!(port.send(&mut link), (Some(SWITCH_MAC), true));
        assert!(port.takes(&mut link, OTHER_MAC), "before ACCEPT");

        link.pin(Some(SWITCH_MAC));
        port.arp(&mut link, OTHER_MAC);
        assert_eq!(port.send(&mut link), (Some(SWITCH_MAC), false));
        assert!(!port.takes(&mut link, OTHER_MAC));
        assert!(port.takes(&mut link, SWITCH_MAC));
        assert_eq!(port.0.dropped().wrong_mac, 1);

        // A link whose session has not been accepted takes the last answer and keeps asking.
        assert_eq!(port.send(&mut other), (Some(OTHER_MAC), true));
        port.arp(&mut other, SWITCH_MAC);
        assert_eq!(port.send(&mut other), (Some(SWITCH_MAC), true));

        // ACCEPT with another MAC: this link follows, the other does not.
        link.pin(Some(OTHER_MAC));
        assert_eq!(port.send(&mut link), (Some(OTHER_MAC), false));
        assert!(port.takes(&mut link, OTHER_MAC) && !port.takes(&mut link, SWITCH_MAC));
        assert_eq!(port.send(&mut other), (Some(SWITCH_MAC), true));

        // The switch is silent: the last good MAC serves until ARP says otherwise.
        link.pin(None);
        assert_eq!(port.send(&mut link), (Some(OTHER_MAC), true));
        port.arp(&mut link, SWITCH_MAC);
        assert_eq!(port.send(&mut link), (Some(SWITCH_MAC), true));
        assert!(port.takes(&mut link, SWITCH_MAC) && port.takes(&mut link, OTHER_MAC));

        // A new session starts without a pin.
        link.pin(Some(OTHER_MAC));
        drop(link);
        let mut new = port.0.link(None);
        assert_eq!(port.send(&mut new), (Some(SWITCH_MAC), true));
        assert!(port.takes(&mut new, SWITCH_MAC));
    }

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
