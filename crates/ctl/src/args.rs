//! The command line of `tallyctl`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;
use std::str::FromStr;
use tally_program::exit::{self, Exit};

/// How it may end.
const EXITS: [Exit; 5] = [
    Exit::Done,
    Exit::Failure,
    Exit::Usage,
    Exit::File,
    Exit::System,
];

/// Shows and changes a running switch.
///
/// The switch is the one at `--socket`, by default /run/tally/switch/control.sock. A user who may
/// not make changes is shown what the read-only socket beside it shows.
#[derive(Clone, Debug, Parser)]
#[command(name = "tallyctl", version = tally_program::VERSION, after_help = exit::help(&EXITS))]
pub struct Arguments {
    /// Where the switch is
    #[command(flatten)]
    pub target: TargetArguments,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Where the switch is.
#[derive(Clone, Debug, Default, Args)]
pub struct TargetArguments {
    /// Unix socket of the switch: `control.socket` or `control.read_socket` of its configuration
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "TALLY_CONTROL",
        conflicts_with = "tcp"
    )]
    pub socket: Option<PathBuf>,

    /// TCP port of the switch: `control.tcp` of its configuration
    #[arg(long, global = true, value_name = "HOST:PORT", requires_all = ["certificate", "key", "ca"])]
    pub tcp: Option<String>,

    /// Certificate to show to the switch, PEM
    #[arg(long, global = true, value_name = "FILE", requires = "tcp")]
    pub certificate: Option<PathBuf>,

    /// Key of that certificate, PEM
    #[arg(long, global = true, value_name = "FILE", requires = "tcp")]
    pub key: Option<PathBuf>,

    /// Authority of the switch's certificate, PEM
    #[arg(long, global = true, value_name = "FILE", requires = "tcp")]
    pub ca: Option<PathBuf>,

    /// Name in the switch's certificate, if it is not HOST
    #[arg(long, global = true, value_name = "NAME", requires = "tcp")]
    pub server_name: Option<String>,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Shows a part of what the switch does
    Show(Show),
    /// Shows goodput, stragglers and core load, live in a terminal
    Top {
        /// Time between two looks, in seconds
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
        interval: f64,
    },
    /// Lets `show` count from now; metrics count on from the start
    Clear,
    /// Adds, changes, drains and removes jobs
    #[command(subcommand)]
    Job(Job),
    /// Changes keys of jobs
    #[command(subcommand)]
    Key(Key),
    /// Adds, changes and removes tenants, whose workers make jobs by joining them
    #[command(subcommand)]
    Tenant(Tenant),
    /// Adds and removes rings of RoCEv2 hosts (NetReduce)
    #[command(subcommand)]
    Ring(Ring),
    /// Adds ports, and takes them up and down
    #[command(subcommand)]
    Port(Port),
    /// Writes frames of the switch as pcapng: `tallyctl capture | tshark -r -`
    Capture(Capture),
    /// Lets the switch read its configuration file again, and says what changed
    Reload {
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Prints the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// What `show` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Everything, as lines
    All,
    /// Jobs, and who each waits for
    Jobs,
    /// Members of jobs: place, silence, progress
    Members,
    /// Frames and bytes of ports
    Ports,
    /// Links to other switches
    Fabric,
    /// MAC addresses and their ports
    Macs,
    /// Queues of ports by class
    Queues,
    /// The aggregator pool
    Pool,
    /// Load of the data cores
    Cores,
    /// Dropped frames by reason
    Drops,
    /// The last events of the switch's log
    Events,
    /// Sessions of SwitchML
    Sessions,
    /// Rings of RoCEv2 hosts, and for whom each waits
    Rings,
    /// The card
    Card,
}

/// `show`.
#[derive(Clone, Debug, Args)]
pub struct Show {
    /// The part
    #[arg(default_value = "all")]
    pub part: Part,

    /// One line of JSON
    #[arg(long)]
    pub json: bool,

    /// Again and again, every second or every SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    pub watch: Option<f64>,

    /// Counters since the start of the switch, not since `clear`
    #[arg(long)]
    pub total: bool,
}

/// `capture`.
#[derive(Clone, Debug, Args)]
pub struct Capture {
    /// Frames of this port alone
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,

    /// Frames of this job alone
    #[arg(long, value_name = "JOB")]
    pub job: Option<u16>,

    /// Dropped frames alone, or those dropped for REASON; `show drops` has the names
    #[arg(long, value_name = "REASON", num_args = 0..=1)]
    pub drops: Option<Option<String>>,

    /// Bytes of each frame, 14 to 9216
    #[arg(long, value_name = "BYTES", default_value = "256")]
    pub snaplen: u32,

    /// Frames at most, 1 to 10,000,000; 100,000 by default
    #[arg(long, value_name = "FRAMES")]
    pub count: Option<u64>,

    /// Time of the capture, 0.1 to 3600 seconds; 60 by default
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,

    /// File to write; `-`: standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub write: PathBuf,
}

/// The version that a change is for.
#[derive(Clone, Debug, Default, Args)]
pub struct Expect {
    /// Version of the configuration that the change is for; another one refuses it
    #[arg(long, value_name = "VERSION")]
    pub expect: Option<u64>,

    /// One line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Changes of jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum Job {
    /// Adds a job
    Add {
        /// Number of the job
        id: u16,
        /// Workers of the job, 1 to 64; those at this switch, 0 to 64, with --total
        #[arg(long)]
        workers: u8,
        /// File with the job's key, 32 to 128 hexadecimal digits; `-`: standard input
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// Slots that the job has for certain
        #[arg(long, value_name = "SLOTS")]
        min_slots: Option<u32>,
        /// Slots that the job has at most
        #[arg(long, value_name = "SLOTS")]
        max_slots: Option<u32>,
        /// Parameter servers of the job, each for a part of its fragments: 1, 2, 4, 8 or 16
        #[arg(long, value_name = "COUNT")]
        parameter_servers: Option<u8>,
        /// Its place in a tree of switches
        #[command(flatten)]
        tree: Tree,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Changes workers or slots of a job
    Set {
        /// Number of the job
        id: u16,
        /// Workers of the job, 1 to 64
        #[arg(long)]
        workers: Option<u8>,
        /// Slots that the job has for certain, or `default`
        #[arg(long, value_name = "SLOTS")]
        min_slots: Option<Limit>,
        /// Slots that the job has at most, or `default`: no maximum
        #[arg(long, value_name = "SLOTS")]
        max_slots: Option<Limit>,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Removes a job; a running one ends
    Remove {
        /// Number of the job
        id: u16,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Lets a running job end, and no other epoch of it begin
    Drain {
        /// Number of the job
        id: u16,
        /// End of the drain: epochs may begin again
        #[arg(long)]
        undo: bool,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
}

/// The place of a switch in the tree of a job.
#[derive(Clone, Debug, Default, Args)]
pub struct Tree {
    /// Workers of a job whose tree has several switches, 1 to 4096
    #[arg(long, value_name = "WORKERS")]
    pub total: Option<u16>,
    /// Global rank of the first worker at or below this switch
    #[arg(long, value_name = "RANK", requires = "total", default_value_t = 0)]
    pub first: u16,
    /// Name of the switch above; without it, this is the root
    #[arg(long, value_name = "SWITCH", requires = "total", requires = "rank")]
    pub parent: Option<String>,
    /// Local rank of this switch there
    #[arg(long, requires = "parent")]
    pub rank: Option<u8>,
    /// A switch below, and the number of workers at and below it; again for each
    #[arg(long, value_name = "SWITCH=WORKERS", requires = "total", value_parser = child)]
    pub child: Vec<(String, u16)>,
}

/// A switch and a number of workers.
fn leaf(text: &str) -> Result<(String, u8), String> {
    let parsed = text.rsplit_once('=').and_then(|(switch, members)| {
        let members = members.parse().ok()?;
        (!switch.is_empty()).then(|| (switch.to_owned(), members))
    });
    parsed.ok_or_else(|| "expected SWITCH=MEMBERS, as in leaf1=4".to_owned())
}

fn child(text: &str) -> Result<(String, u16), String> {
    let parsed = text.rsplit_once('=').and_then(|(switch, ranks)| {
        let ranks = ranks.parse().ok()?;
        (!switch.is_empty()).then(|| (switch.to_owned(), ranks))
    });
    parsed.ok_or_else(|| "expected SWITCH=WORKERS, as in leaf1=4".to_owned())
}

/// Changes of keys.
#[derive(Clone, Debug, Subcommand)]
pub enum Key {
    /// Gives a job a new key; the key so far stays valid beside it
    Rotate {
        /// Number of the job
        id: u16,
        /// File with the new key, 32 to 128 hexadecimal digits; `-`: standard input
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Ends the validity of a job's previous key
    Retire {
        /// Number of the job
        id: u16,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
}

/// Changes of ports.
#[derive(Clone, Debug, Subcommand)]
pub enum Port {
    /// Adds a port
    Add {
        /// Name of the port in reports
        name: String,
        /// Device of the port, as `ports[].device` of the configuration
        device: String,
        /// Largest frames of the port, 576 to 9000 bytes
        #[arg(long, value_name = "BYTES")]
        mtu: Option<u16>,
        /// Descriptors of each queue of a NIC
        #[arg(long)]
        descriptors: Option<u16>,
        /// Data core that owns the port, counted from 0
        #[arg(long)]
        core: Option<u16>,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Has a port carry frames again
    Up {
        /// Name of the port
        name: String,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Has a port carry no frames
    Down {
        /// Name of the port
        name: String,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
}

/// Changes of tenants.
#[derive(Clone, Debug, Subcommand)]
pub enum Tenant {
    /// Adds a tenant
    Add {
        /// Name of the tenant
        name: String,
        /// File with the tenant's key, 32 to 128 hexadecimal digits; `-`: standard input
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// What the tenant may have
        #[command(flatten)]
        limits: TenantLimits,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Changes what a tenant may have
    Set {
        /// Name of the tenant
        name: String,
        /// What the tenant may have
        #[command(flatten)]
        limits: TenantLimits,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Removes a tenant with its jobs; running ones end
    Remove {
        /// Name of the tenant
        name: String,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Gives a tenant a new key; the key so far stays valid beside it
    Rotate {
        /// Name of the tenant
        name: String,
        /// File with the new key, 32 to 128 hexadecimal digits; `-`: standard input
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Ends the validity of a tenant's previous key
    Retire {
        /// Name of the tenant
        name: String,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
}

/// Changes of rings.
#[derive(Clone, Debug, Subcommand)]
pub enum Ring {
    /// Adds a ring
    Add {
        /// Number of the ring
        id: u32,
        /// IPv4 addresses of its hosts by rank, with commas between
        #[arg(long, value_name = "IP", required = true, value_delimiter = ',')]
        members: Vec<std::net::Ipv4Addr>,
        /// File with the ring's key, 32 to 128 hexadecimal digits; `-`: standard input
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// Messages that a host sends beyond the last sum that it has [default: 2]
        #[arg(long, value_name = "MESSAGES")]
        window_messages: Option<u8>,
        /// Packets of a message at most [default: 170]
        #[arg(long, value_name = "PACKETS")]
        message_packets: Option<u16>,
        /// Name of the switch that sums what the leaves send; with `--leaves`, and the same at all
        /// switches of the tree
        #[arg(long, value_name = "SWITCH", requires = "leaves")]
        root: Option<String>,
        /// Switches with the ring's hosts in the order of ranks, and how many each has, with commas
        /// between
        #[arg(long, value_name = "SWITCH=MEMBERS", requires = "root", value_delimiter = ',', value_parser = leaf)]
        leaves: Vec<(String, u8)>,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
    /// Removes a ring; its packets are dropped from then on
    Remove {
        /// Number of the ring
        id: u32,
        /// Version and form of the answer
        #[command(flatten)]
        expect: Expect,
    },
}

/// What a tenant may have.
#[derive(Clone, Debug, Default, Args)]
pub struct TenantLimits {
    /// Numbers that the tenant's jobs may have: `100-199` or `7`, several with commas
    #[arg(long, value_name = "RANGE", required = true, value_delimiter = ',')]
    pub jobs: Vec<String>,

    /// Jobs at a time at most
    #[arg(long, value_name = "JOBS")]
    pub max_jobs: Option<u16>,

    /// Workers of all jobs at most
    #[arg(long, value_name = "WORKERS")]
    pub max_workers: Option<u16>,

    /// Slots of all jobs at most
    #[arg(long, value_name = "SLOTS")]
    pub max_slots: Option<u32>,
}

/// A limit of a job: a number, or the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// As by default.
    Default,
    /// This number.
    Slots(u32),
}

impl Limit {
    /// The number, if it is one.
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        match self {
            Self::Default => None,
            Self::Slots(slots) => Some(slots),
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "default" {
            return Ok(Self::Default);
        }
        let wrong = |_| format!("found `{text}`, expected a number of slots, or `default`");
        text.parse().map(Self::Slots).map_err(wrong)
    }
}

/// Seconds from 0.1 to a day.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("found `{text}`, expected seconds"))?;
    if (0.1..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("found {seconds}, expected 0.1 to 86400 seconds"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// An example that the program does not take would be found by its reader.
    #[test]
    fn the_command_lines_of_the_documentation_are_right() {
        let text = include_str!("../../../docs/CONTROL.md");
        let mut lines = text.lines().filter(|line| line.starts_with("tallyctl "));
        let mut number = 0;
        lines
            .try_for_each(|line| {
                number += 1;
                let line = line.split(" # ").next().unwrap_or_default();
                Arguments::try_parse_from(line.split_whitespace()).map(drop)
            })
            .unwrap();
        assert!(number > 15, "{number}");
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let parse = |line: &str| Arguments::try_parse_from(line.split_whitespace());
        for wrong in [
            "tallyctl show nothing",
            "tallyctl show jobs --watch 0",
            "tallyctl --tcp host:1 show",
            "tallyctl --socket x --tcp host:1 --certificate a --key b --ca c show",
            "tallyctl job add 7 --workers 2",
            "tallyctl job set 7 --min-slots many",
            "tallyctl job remove 70000",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let Command::Show(show) = parse("tallyctl show jobs --watch").unwrap().command else {
            panic!("another command");
        };
        assert!(
            show.watch
                .is_some_and(|seconds| (seconds - 1.0).abs() < 1e-9)
        );
    }
}
