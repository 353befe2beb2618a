//! `tally-testkit ring-worker`: a member of a NetReduce ring where no RDMA stack is.
//!
//! It is a RoCEv2 host with [`tally_roce`]'s connections in place of a NIC's, on a DPDK device or
//! on an interface of the kernel. It meets the others as the members with NICs do
//! ([`tally_verbs::rendezvous`]), sums tensors of a file or synthetic ones, and writes the sums.
//!
//! When an epoch ends by an error, as after a restart of the switch, the members connect anew and
//! sum all tensors again. The catch: each keeps its input until all have left.

use crate::device::Device;
use crate::losses::Losses;
use crate::switchml::link::mac_of;
use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tally_agent::Dtype;
use tally_agent::tensors::Tensors;
use tally_roce::ring::{self, Event, Host, HostConfig, message_bytes};
use tally_verbs::Stop;
use tally_verbs::rendezvous::{Call, Client, Coordinator, Hello, Limits, RingConfig, Welcome};
use tally_wire::netreduce::{Channel, DEFAULT_DSCP, Element, RingEpoch, RingId};
use tally_wire::roce::{PORT, Psn, QueuePair, Verb};
use tally_wire::{Addresses, Key, Mac, Time};

/// How long to wait for the other members.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);
/// How long a neighbour may take to answer ARP.
const ARP_PATIENCE: Duration = Duration::from_secs(5);
/// How often the coordinator's connection is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Retransmission timeout, and timeouts before a connection fails.
const TIMEOUT: Duration = Duration::from_millis(20);
const RETRIES: u32 = 250;
/// UDP source port of the connections.
const SOURCE_PORT: u16 = 49_152;
/// Headers in front of the payload of the longest packet, and the ICRC.
const HEADERS_BYTES: usize = 128;

/// What a member is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Number of the ring
    #[arg(long)]
    ring: u32,

    /// File with the ring's key, 32 to 128 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,

    /// IPv4 addresses of all members by rank, with commas between
    #[arg(long, value_name = "IP", value_delimiter = ',', required = true)]
    members: Vec<Ipv4Addr>,

    /// Rank of this member
    #[arg(long)]
    rank: u8,

    /// TCP address at which rank 0 listens
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: SocketAddr,

    /// Interface of the kernel that has the member's address
    #[arg(long, required_unless_present = "device")]
    interface: Option<String>,

    /// DPDK device of its own, with --macs
    #[arg(long, conflicts_with = "interface", requires = "macs")]
    device: Option<String>,

    /// Ethernet addresses of all members by rank, with commas between [default: by ARP]
    #[arg(long, value_name = "MAC", value_delimiter = ',', value_parser = mac)]
    macs: Vec<Mac>,

    /// Safetensors file of the tensors to sum
    #[arg(long, value_name = "FILE", required_unless_present = "synthetic")]
    input: Option<PathBuf>,

    /// Synthetic tensor in place of a file
    #[arg(long, conflicts_with = "input")]
    synthetic: bool,

    /// Elements of the synthetic tensor
    #[arg(long, default_value_t = 100_000)]
    elements: usize,

    /// Element type of the synthetic tensor: f32, f16, bf16 or i32
    #[arg(long, default_value = "f32", value_parser = dtype)]
    element: Dtype,

    /// Random seed of the synthetic tensor
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Safetensors file for the sums
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// File for the report, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(long, default_value_t = 1024)]
    mtu: u16,

    /// Packets of a message
    #[arg(long, default_value_t = 170)]
    packets: u16,

    /// Messages in flight
    #[arg(long, default_value_t = 2)]
    window: u16,

    /// RDMA WRITE in place of SEND
    #[arg(long)]
    write: bool,

    /// Share of frames dropped on purpose, each way
    #[arg(long, default_value_t = 0.0)]
    loss: f64,

    /// Random seed of that loss
    #[arg(long, default_value_t = 1)]
    loss_seed: u64,

    /// Epochs that may end by an error
    #[arg(long, default_value_t = 0)]
    retries: u32,
}

/// What a member did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RingWorkerReport {
    /// Its rank.
    pub rank: u8,
    /// Epochs that were begun.
    pub epochs: u32,
    /// Why all but the last ended.
    pub failures: Vec<String>,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// From the first contribution to the last sum, in the last epoch.
    pub seconds: f64,
    /// Bits of the tensors by these seconds, in 10^9.
    pub goodput_gbit_per_s: f64,
    /// Packets of messages sent in the last epoch.
    pub sent: u64,
    /// Packets of messages retransmitted in the last epoch.
    pub retransmitted: u64,
    /// NAKs received in the last epoch.
    pub naks: u64,
    /// Packets that had come before, in the last epoch.
    pub duplicates: u64,
    /// Frames dropped on purpose.
    pub lost: u64,
}

fn mac(text: &str) -> Result<Mac, String> {
    text.parse()
        .map_err(|_| format!("{text}: no Ethernet address"))
}

fn dtype(text: &str) -> Result<Dtype, String> {
    match text {
        "f32" => Ok(Dtype::F32),
        "f16" => Ok(Dtype::F16),
        "bf16" => Ok(Dtype::Bf16),
        "i32" => Ok(Dtype::I32),
        _ => Err(format!("{text}: f32, f16, bf16 or i32")),
    }
}

fn element(dtype: Dtype) -> Result<Element> {
    Ok(match dtype {
        Dtype::F32 => Element::F32,
        Dtype::F16 => Element::F16,
        Dtype::Bf16 => Element::Bf16,
        Dtype::I32 => Element::I32,
        Dtype::I16 | Dtype::I8 => bail!("a ring sums f32, f16, bf16 and i32, not {dtype:?}"),
    })
}

/// A member and what it needs for each epoch.
struct Worker<'a> {
    args: &'a Args,
    ring: RingConfig,
    device: Device,
    losses: Losses,
    own: Mac,
    clock: Instant,
    last_epoch: Option<RingEpoch>,
    report: RingWorkerReport,
}

/// Runs it, and says what it measured.
///
/// # Errors
/// What ended the last epoch, or kept the first from beginning.
pub fn run(args: &Args) -> Result<()> {
    let members = args.members.len();
    ensure!(
        usize::from(args.rank) < members,
        "--rank {} of {members} members",
        args.rank
    );
    let text = std::fs::read_to_string(&args.key_file);
    let text = text.with_context(|| args.key_file.display().to_string())?;
    let key: Key = text.trim().parse()?;
    let input = match &args.input {
        Some(path) => Tensors::read(path)?,
        None => Tensors::synthetic(args.seed, args.rank.into(), args.elements, args.element),
    };
    // Without a socket at the port, the kernel answers packets with ICMP errors.
    let _sink = match args.interface {
        Some(_) => Some(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?),
        None => None,
    };
    let own = match (&args.interface, args.macs.get(usize::from(args.rank))) {
        (Some(interface), _) => mac_of(interface)?,
        (None, Some(&mac)) => mac,
        (None, None) => bail!("--macs: one for each of {members} members"),
    };
    let device = match (&args.interface, &args.device) {
        (Some(interface), _) => format!("net_af_packet0,iface={interface}"),
        (None, Some(device)) => device.clone(),
        (None, None) => bail!("--interface, or --device and --macs"),
    };
    let mut worker = Worker {
        args,
        ring: RingConfig {
            ring: RingId(args.ring),
            key,
            members: members as u8,
        },
        device: Device::open(&device, usize::from(args.mtu) + HEADERS_BYTES)?,
        losses: Losses::new(args.loss, args.loss_seed * 64 + u64::from(args.rank)),
        own,
        clock: Instant::now(),
        last_epoch: None,
        report: RingWorkerReport {
            rank: args.rank,
            epochs: 0,
            failures: Vec::new(),
            bytes: input.bytes() as u64,
            seconds: 0.0,
            goodput_gbit_per_s: 0.0,
            sent: 0,
            retransmitted: 0,
            naks: 0,
            duplicates: 0,
            lost: 0,
        },
    };
    let sums = loop {
        match worker.epoch(&input) {
            Ok(sums) => break sums,
            Err(error) if worker.report.failures.len() < args.retries as usize => {
                let why = format!("{error:#}");
                eprintln!(
                    "ring {}: rank {}: {why}; connecting anew",
                    args.ring, args.rank
                );
                worker.report.failures.push(why);
            }
            Err(error) => {
                return Err(error.context(format!("ring {}: rank {}", args.ring, args.rank)));
            }
        }
    };
    let mut report = worker.report;
    report.lost = worker.losses.lost;
    if let Some(path) = &args.output {
        sums.write(path)?;
    }
    if let Some(path) = &args.report {
        tally_config::write_whole(path, simd_json::to_string(&report)?)
            .with_context(|| path.display().to_string())?;
    }
    println!(
        "{} bytes summed in {:.3} s, {:.3} Gbit/s; {} packets, {} retransmitted, {} epochs",
        report.bytes,
        report.seconds,
        report.goodput_gbit_per_s,
        report.sent,
        report.retransmitted,
        report.epochs
    );
    Ok(())
}

impl Worker<'_> {
    fn now(&self) -> Time {
        Time(self.clock.elapsed().as_nanos() as u64)
    }

    /// All sums, in one epoch.
    fn epoch(&mut self, input: &Tensors) -> Result<Tensors> {
        let coordinator = if self.args.rank == 0 {
            let address = self.args.coordinator;
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()));
            let listener = listener.with_context(|| format!("coordinator on {address}"))?;
            let limits = Limits {
                join: JOIN_PATIENCE,
                ..Limits::default()
            };
            Some(Coordinator::start(listener, self.ring.clone(), limits)?)
        } else {
            None
        };
        let random = getrandom::u64()?;
        let number = |at: u32| QueuePair((random >> at) as u32 & 0x00ff_ffff | 2);
        let (to, from) = (number(0), number(24));
        let hello = Hello {
            rank: self.args.rank,
            address: self.args.members[usize::from(self.args.rank)],
            to,
            from,
            psn: Psn::new(getrandom::u32()?),
            mtu: self.args.mtu,
            packets: self.args.packets,
            window: self.args.window,
            last_epoch: self.last_epoch,
        };
        let (client, welcome) = Client::join(
            self.args.coordinator,
            &self.ring,
            &hello,
            JOIN_PATIENCE,
            &Stop::default(),
        )?;
        self.last_epoch = Some(welcome.epoch);
        self.report.epochs += 1;
        let mut host = self.connect(&hello, &welcome)?;
        let sums = self.sum_all(&client, &mut host, input);
        let [sender, receiver] = host.counters();
        self.report.sent = sender.sent;
        self.report.retransmitted = sender.retransmitted;
        self.report.naks = sender.naks;
        self.report.duplicates = receiver.duplicates;
        match &sums {
            Ok(_) => self.enter(&client, &mut host, Call::Leave)?,
            Err(why) => client.fail(&format!("{why:#}")),
        }
        // It listens at the port that the next epoch's needs.
        if let Some(coordinator) = coordinator {
            coordinator.join();
        }
        sums
    }

    fn connect(&self, hello: &Hello, welcome: &Welcome) -> Result<Host> {
        let args = self.args;
        let n = args.members.len();
        let rank = usize::from(args.rank);
        let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
        let connection = |peer: usize, local, neighbour: &tally_verbs::rendezvous::Neighbour| {
            Ok::<_, anyhow::Error>(tally_roce::Config {
                addresses: Addresses {
                    src_mac: self.own,
                    dst_mac: self.mac_of_member(peer)?,
                    src_ip: args.members[rank],
                    dst_ip: neighbour.address,
                    src_port: SOURCE_PORT + u16::from(args.rank),
                    dst_port: PORT,
                },
                local,
                remote: neighbour.qp,
                mtu: welcome.mtu.into(),
                first: hello.psn,
                remote_first: neighbour.psn,
                in_flight: u32::from(args.packets) * u32::from(args.window),
                timeout: TIMEOUT,
                retries: RETRIES,
                dscp: DEFAULT_DSCP,
                memory: Vec::new(),
                rkey: args.ring,
            })
        };
        let secret = self.ring.key.ring_secret(self.ring.ring);
        Ok(Host::new(HostConfig {
            ring: ring::Config {
                ring: self.ring.ring,
                secret,
                epoch: welcome.epoch,
                rank: args.rank,
                members: n as u8,
                to: Channel {
                    source: args.members[rank],
                    destination: welcome.successor.address,
                    qp: welcome.successor.qp,
                },
                from: Channel {
                    source: welcome.predecessor.address,
                    destination: args.members[rank],
                    qp: hello.from,
                },
                message_bytes: message_bytes(args.packets.into(), welcome.mtu.into()),
                window: args.window.into(),
            },
            verb: if args.write { Verb::Write } else { Verb::Send },
            to: connection(next, hello.to, &welcome.successor)?,
            from: connection(before, hello.from, &welcome.predecessor)?,
        }))
    }

    /// The Ethernet address of a member.
    fn mac_of_member(&self, rank: usize) -> Result<Mac> {
        if let Some(&mac) = self.args.macs.get(rank) {
            return Ok(mac);
        }
        let address = self.args.members[rank];
        let deadline = Instant::now() + ARP_PATIENCE;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        loop {
            // The kernel asks for the address before it sends anything there.
            let _ = socket.send_to(&[0], (address, 9));
            let table = std::fs::read_to_string("/proc/net/arp")?;
            let of_host =
                |line: &&str| line.split_whitespace().next() == Some(&address.to_string());
            let entry = table.lines().find(of_host);
            let found = entry.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
            match found {
                Some(mac) if mac != Mac::default() => return Ok(mac),
                _ if Instant::now() >= deadline => bail!("{address}: no answer to ARP"),
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn sum_all(&mut self, client: &Client, host: &mut Host, input: &Tensors) -> Result<Tensors> {
        let mut sums = input.clone();
        let mut start = None;
        for tensor in &mut sums.tensors {
            let element = element(tensor.dtype)?;
            let bytes = tensor.bytes.len() as u64;
            self.enter(client, host, Call::AllReduce { element, bytes })?;
            start.get_or_insert_with(Instant::now);
            host.submit(element, std::mem::take(&mut tensor.bytes));
            tensor.bytes = self.drive(client, host)?;
        }
        let seconds = start.map_or(0.0, |it: Instant| it.elapsed().as_secs_f64());
        self.report.seconds = seconds;
        self.report.goodput_gbit_per_s = (8 * self.report.bytes) as f64 / 1e9 / seconds.max(1e-9);
        Ok(sums)
    }

    /// Runs the host until its all-reduce is done.
    fn drive(&mut self, client: &Client, host: &mut Host) -> Result<Vec<u8>> {
        let mut look_at = Instant::now();
        loop {
            let moved = self.step(host)?;
            match host.poll_event() {
                Some(Event::Done { tensor, .. }) => return Ok(tensor),
                Some(Event::Failed(failure)) => bail!(failure),
                None if moved => {}
                None => self.device.wait(LOOK_EVERY),
            }
            if Instant::now() >= look_at {
                look_at = Instant::now() + LOOK_EVERY;
                if is_readable(client)? {
                    return Err(client.failure().into());
                }
            }
        }
    }

    /// Receives and sends what there is; says whether there was anything.
    fn step(&mut self, host: &mut Host) -> Result<bool> {
        let now = self.now();
        let Self { device, losses, .. } = self;
        let mut moved = false;
        device.receive(&mut |frame| {
            moved = true;
            if !losses.loses() {
                host.receive(frame, now);
            }
        });
        if host.poll_timeout().is_some_and(|due| due <= now) {
            host.handle_timeout(now);
        }
        let frame_max = host.frame_max();
        let sent = device.send(frame_max, &mut |out| {
            loop {
                let Some(bytes) = host.poll_transmit(now, out) else {
                    return Ok(None);
                };
                if !losses.loses() {
                    return Ok(Some(bytes));
                }
            }
        })?;
        moved |= sent > 0;
        Ok(moved)
    }

    /// Waits until all members have entered. A neighbour may still want acknowledgements.
    fn enter(&mut self, client: &Client, host: &mut Host, call: Call) -> Result<()> {
        std::thread::scope(|scope| {
            let entered = scope.spawn(|| client.enter(call));
            while !entered.is_finished() {
                if !self.step(host)? {
                    self.device.wait(LOOK_EVERY);
                }
            }
            let joined = entered.join();
            Ok(joined.map_err(|_| anyhow::anyhow!("the thread that enters panicked"))??)
        })
    }
}

fn is_readable(client: &Client) -> Result<bool> {
    let mut ready = [PollFd::new(client.descriptor(), PollFlags::POLLIN)];
    Ok(poll(&mut ready, PollTimeout::ZERO)? > 0)
}
