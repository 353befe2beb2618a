//! A member of a ring that sums synthetic tensors and checks every element of the sums.
//!
//! Each member knows what all others contribute: it is a function of rank, round and index.

use clap::Parser;
use half::{bf16, f16};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tally_verbs::rendezvous::RingConfig;
use tally_verbs::{Config, Element, Member, MemberError, RingId};
use tally_wire::Key;

/// Member of a ring of RoCEv2 hosts that checks its sums.
#[derive(Parser)]
struct Args {
    /// Number of the ring
    #[arg(long, default_value_t = 1)]
    ring: u32,
    /// Key of the ring, in hexadecimal digits
    #[arg(long)]
    key: Key,
    /// Rank of this member
    #[arg(long)]
    rank: u8,
    /// Number of members
    #[arg(long)]
    members: u8,
    /// IPv4 address of the RoCE device
    #[arg(long)]
    address: Ipv4Addr,
    /// Address at which rank 0 listens
    #[arg(long)]
    coordinator: SocketAddr,
    /// Type of the elements: i32, f32, f16, bf16
    #[arg(long, default_value = "f32", value_parser = element)]
    element: Element,
    /// Elements of a tensor
    #[arg(long, default_value_t = 100_000)]
    elements: usize,
    /// Number of all-reduces
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Packets of a message
    #[arg(long, default_value_t = 170)]
    packets: u16,
    /// Messages in flight
    #[arg(long, default_value_t = 2)]
    window: u16,
}

fn element(text: &str) -> Result<Element, String> {
    match text {
        "i32" => Ok(Element::I32),
        "f32" => Ok(Element::F32),
        "f16" => Ok(Element::F16),
        "bf16" => Ok(Element::Bf16),
        _ => Err("not one of i32, f32, f16, bf16".into()),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let ring = RingConfig {
        ring: RingId(args.ring),
        key: args.key.clone(),
        members: args.members,
    };
    let config = Config {
        packets: args.packets,
        window: args.window,
        ..Config::new(ring, args.rank, args.address, args.coordinator)
    };
    let text = |error: MemberError| error.to_string();
    let mut member = Member::join(config).map_err(text)?;
    println!("epoch {} on {}", member.epoch().0, member.device().name());
    let bytes = args.elements * args.element.bytes();
    let mut tensor = member.tensor(bytes).map_err(text)?;
    let mut spent = Duration::ZERO;
    for round in 0..args.rounds {
        for (index, element) in tensor.chunks_exact_mut(args.element.bytes()).enumerate() {
            element.copy_from_slice(&contribution(args, args.rank, round, index)[..element.len()]);
        }
        let start = Instant::now();
        member.all_reduce(&mut tensor, args.element).map_err(text)?;
        spent += start.elapsed();
        for (index, found) in tensor.chunks_exact(args.element.bytes()).enumerate() {
            let expected = &sum(args, round, index)[..found.len()];
            if found != expected {
                return Err(format!(
                    "round {round}: element {index} is {found:02x?}, not {expected:02x?}"
                ));
            }
        }
    }
    member.leave().map_err(text)?;
    let mbit = (bytes * 8 * args.rounds as usize) as f64 / 1e6 / spent.as_secs_f64();
    println!(
        "{} sums of {} {:?} right, {mbit:.1} Mbit/s",
        args.rounds, args.elements, args.element
    );
    Ok(())
}

/// 64 bits that depend on all of this (splitmix64).
fn bits(rank: u8, round: u32, index: usize) -> u64 {
    let mut z = (u64::from(rank) << 56 | u64::from(round) << 40) + index as u64;
    z = z.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number of magnitude 2^-9 to 2^6, so that the order of additions matters.
fn float(bits: u64) -> f32 {
    let fraction = 1.0 + (bits & 0x7f_ffff) as f32 / 8_388_608.0;
    let magnitude = 2.0_f32.powi((bits >> 23 & 15) as i32 - 9);
    let sign = if bits >> 63 == 0 { 1.0 } else { -1.0 };
    sign * fraction * magnitude
}

/// What a rank contributes, little-endian.
fn contribution(args: &Args, rank: u8, round: u32, index: usize) -> [u8; 4] {
    let bits = bits(rank, round, index);
    match args.element {
        Element::I32 => (bits as u32).to_le_bytes(),
        Element::F32 => float(bits).to_le_bytes(),
        Element::F16 => wide(f16::from_f32(float(bits)).to_le_bytes()),
        Element::Bf16 => wide(bf16::from_f32(float(bits)).to_le_bytes()),
    }
}

fn wide([a, b]: [u8; 2]) -> [u8; 4] {
    [a, b, 0, 0]
}

/// The sum of all ranks' contributions, added in their order.
fn sum(args: &Args, round: u32, index: usize) -> [u8; 4] {
    let all = (0..args.members).map(|rank| contribution(args, rank, round, index));
    let fold = |of: fn([u8; 4]) -> f32| all.clone().map(of).reduce(|a, b| a + b).unwrap_or(0.0);
    match args.element {
        Element::I32 => {
            let all = all.map(i32::from_le_bytes);
            all.fold(0, i32::wrapping_add).to_le_bytes()
        }
        Element::F32 => fold(f32::from_le_bytes).to_le_bytes(),
        Element::F16 => {
            let sum = fold(|[a, b, ..]| f16::from_le_bytes([a, b]).to_f32());
            wide(f16::from_f32(sum).to_le_bytes())
        }
        Element::Bf16 => {
            let sum = fold(|[a, b, ..]| bf16::from_le_bytes([a, b]).to_f32());
            wide(bf16::from_f32(sum).to_le_bytes())
        }
    }
}
