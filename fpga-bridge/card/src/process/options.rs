//! The command line.

use super::faults::Fault;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// Run a card until SIGINT or SIGTERM, then print what it did
///
/// The switch's side is a port of its own and the section `card` of its configuration
/// (docs/OPERATIONS.md). For configs/switch-card.json, as any user:
///
///   tally-card run --registers /tmp/tally-card.sock --port \
///   net_memif0,role=client,id=3,socket=/tmp/tally-memif.sock,socket-abstract=no,bsize=2048,rsize=10
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct Options {
    /// The card's port, a device of DPDK with its arguments: net_memif0,role=client,... or
    /// net_af_packet0,iface=veth1. Its other end is a port of the switch
    #[arg(long, value_name = "DEVICE")]
    pub port: String,

    /// Unix socket for the card's driver; one that a crashed card left is replaced
    #[arg(long, value_name = "PATH")]
    pub registers: PathBuf,

    /// Who may connect there, in octal, as for chmod
    #[arg(long, value_name = "MODE", default_value = "660")]
    pub registers_mode: Mode,

    /// How many jobs it says that it has room for, at most: of a card with little room, jobs
    /// compete for places
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub places: u32,

    /// What is to go wrong, several times or with commas: hang-after=N (frames; then nothing is
    /// answered any more), reset-after=N (frames), drop=P (of the frames, each way), bad=P (of the
    /// frames that come in: damaged on the way, which the card notices), corrupt=P (of the frames
    /// that go out: one byte differs, unnoticed unless it is in the headers)
    #[arg(long = "fault", value_name = "FAULT", value_delimiter = ',')]
    pub faults: Vec<Fault>,

    /// Of faults, and of what is in memories after a reset; drawn if not given, and printed
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Write a waveform of all signals here, for GTKWave; needs a build with `--features trace`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Take packet memory from hugepages
    #[arg(long)]
    pub hugepages: bool,

    /// Packet memory, in MiB
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(32..))]
    pub megabytes: u32,

    /// Say what is done through the registers
    #[arg(long)]
    pub log: bool,

    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// Permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err("not a mode such as 660".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!("660".parse(), Ok(Mode(0o660)));
        assert_eq!("0600".parse(), Ok(Mode(0o600)));
        for wrong in ["", "8", "1000", "-1", "rw"] {
            assert!(wrong.parse::<Mode>().is_err(), "{wrong}");
        }
    }
}
