//! `tally-testkit switchml-worker`: one worker of a SwitchML job, for trying a switch without the
//! published client.
//!
//! Every rank of a job is started with the same arguments but for `--rank` and its addresses, on
//! its own host (over the kernel: `--interface eth0 --ip 10.84.0.1`) or anywhere (over a DPDK
//! device: `--device net_memif0,… --mac … --ip …`). It joins through the switch's controller, sums
//! tensors of made-up numbers that every rank can compute for all others, and checks every sum
//! itself; a wrong one is an error. Lists of numbers of workers, sizes and element types make one
//! session after the other.
//!
//! The catches: it is there to be right, not to be fast, and [`switchml`](crate::switchml) says
//! what it leaves out.

use crate::switchml::control::{Control, Member};
use crate::switchml::inputs::{Element, Inputs};
use crate::switchml::link::{DpdkLink, KernelLink, Link, Lossy, Peer, mac_of};
use crate::switchml::worker::{self, Outcome, Task};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;
use tally_wire::switchml::{MAX_SLOTS, Size};
use tally_wire::{MAX_WORKERS, Mac};

/// How long to look for the controller.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// What a worker is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The switch's controller, one of its `listen` addresses
    #[arg(long, value_name = "HOST:PORT")]
    controller: String,

    /// This worker's rank
    #[arg(long)]
    rank: u8,

    /// Workers of each job, 1 to 64
    #[arg(long)]
    workers: u8,

    /// This worker's IPv4 address
    #[arg(long)]
    ip: Ipv4Addr,

    /// Interface of the kernel that has the address
    #[arg(long, required_unless_present = "device")]
    interface: Option<String>,

    /// DPDK device of its own, with --mac
    #[arg(long, conflicts_with = "interface", requires = "mac")]
    device: Option<String>,

    /// Ethernet address on the DPDK device
    #[arg(long, value_parser = mac)]
    mac: Option<Mac>,

    /// Bytes of elements in a packet: 128 to 8192, powers of two. Up to 1024 is what SwitchML has,
    /// 256 and 1024 what its clients use
    #[arg(long, value_delimiter = ',', default_value = "256", value_parser = size)]
    size: Vec<Size>,

    /// Element types, separated by commas
    #[arg(long, value_delimiter = ',', value_enum, default_value = "i32")]
    element: Vec<Element>,

    /// Elements of each tensor
    #[arg(long, default_value_t = 100_000)]
    elements: usize,

    /// Tensors of each session
    #[arg(long, default_value_t = 3)]
    tensors: u32,

    /// Upper bound of packets in flight
    #[arg(long, default_value_t = 64)]
    window: u16,

    /// Random seed of the elements
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Share of datagrams dropped on purpose, each way
    #[arg(long, default_value_t = 0.0)]
    loss: f64,

    /// Random seed of that loss
    #[arg(long, default_value_t = 1)]
    loss_seed: u64,

    /// Timeout without any result, in milliseconds
    #[arg(long, default_value_t = 20_000)]
    stall_ms: u64,

    /// Number of the first session, which rank 0 gives to all [default: a random one]
    #[arg(long)]
    session: Option<u64>,

    /// File for the report, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn mac(text: &str) -> Result<Mac, String> {
    text.parse()
        .map_err(|_| format!("{text}: no Ethernet address"))
}

fn size(text: &str) -> Result<Size, String> {
    let bytes: usize = text.parse().map_err(|_| format!("{text}: no number"))?;
    let found = Size::ALL
        .into_iter()
        .find(|size| size.payload_bytes() == bytes);
    found.ok_or_else(|| format!("{bytes}: a power of two from 128 to 8192"))
}

/// Runs it, and prints what it measured.
///
/// # Errors
/// A refusal, a result that does not come, a wrong sum.
pub fn run(args: &Args) -> Result<()> {
    let workers = args.workers;
    ensure!(
        (1..=MAX_WORKERS as u8).contains(&workers) && args.rank < workers,
        "--rank {} of --workers {workers}: 0 to 63 of 1 to 64",
        args.rank
    );
    ensure!(
        (1..=MAX_SLOTS).contains(&args.window),
        "--window {}: 1 to {MAX_SLOTS}",
        args.window
    );
    let (link, station) = open(args)?;
    let mut link = Lossy::new(link, args.loss, args.loss_seed * 64 + u64::from(args.rank));
    let mut session = match args.session {
        Some(session) => session,
        None => getrandom::u64()?,
    };
    let mut outcomes = Vec::new();
    for &size in &args.size {
        for &element in &args.element {
            let member = Member {
                rank: args.rank,
                workers,
                station,
                size,
            };
            let task = Task {
                inputs: Inputs {
                    seed: args.seed,
                    element,
                    elements: args.elements,
                    workers,
                },
                tensors: args.tensors,
                window: args.window,
                stall: Duration::from_millis(args.stall_ms),
            };
            let control = Control::connect(&args.controller, CONNECT_PATIENCE)?;
            outcomes.push(worker::run(&control, &member, &task, session, &mut link)?);
            session = session.wrapping_add(1);
        }
    }
    if let Some(path) = &args.report {
        tally_config::write_whole(path, simd_json::to_string(&outcomes)?)
            .with_context(|| path.display().to_string())?;
    }
    print!("{}", table(&outcomes));
    Ok(())
}

fn open(args: &Args) -> Result<(Box<dyn Link>, Peer)> {
    let ip = args.ip;
    if let Some(interface) = &args.interface {
        let mac = mac_of(interface)?;
        return Ok((Box::new(KernelLink::open(ip, interface)?), Peer { mac, ip }));
    }
    let (Some(device), Some(mac)) = (&args.device, args.mac) else {
        bail!("--interface, or --device and --mac");
    };
    let station = Peer { mac, ip };
    let largest = args.size.iter().copied().max().unwrap_or(Size::B256);
    let link = DpdkLink::open(device, station, largest)?;
    Ok((Box::new(link), station))
}

fn table(outcomes: &[Outcome]) -> String {
    let mut out = format!(
        "{:>6} {:>5} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8} {:>8}\n",
        "bytes", "sums", "seconds", "Gbit/s", "sent", "again", "doubled", "foreign", "dropped"
    );
    for o in outcomes {
        let element = match o.element {
            Element::I32 => "i32",
            Element::F32 => "f32",
        };
        let _ = writeln!(
            out,
            "{:>6} {element:>5} {:>8.3} {:>8.3} {:>9} {:>9} {:>8} {:>8} {:>8}",
            o.packet_bytes,
            o.seconds,
            o.goodput_gbit_per_s,
            o.sent,
            o.sent_again,
            o.duplicates,
            o.foreign,
            o.lost
        );
    }
    out + "all sums are right\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_protocols() {
        for (text, expected) in [
            ("128", Size::B128),
            ("1024", Size::B1024),
            ("8192", Size::B8192),
        ] {
            assert_eq!(size(text), Ok(expected));
        }
        for text in ["0", "64", "192", "16384", "-1", "all"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
