//! The command line.

use crate::progress::Progress;
use clap::{Args, Parser, Subcommand};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tally_agent::config::{DEFAULT_SOCKET, control_socket_of};
use tally_agent::link::loss::{Direction, Loss};
use tally_agent::{Arithmetic, Dtype, Op};
use tally_program::{Exit, VERSION, exit};
use tally_wire::netreduce::DEFAULT_DSCP;

const LOG: &str = "\
TALLY_LOG in the environment says how much goes to standard error: error, warn, info (the default) or
debug. Under systemd each line has its priority.";

/// The end of each help.
fn codes() -> String {
    format!("{}\n\n{LOG}", exit::help(&Exit::ALL))
}

fn codes_after(configuration: &str) -> String {
    format!("{}\n\n{}", configuration.trim(), codes())
}

const CONFIG: &str = r#"
The configuration of a worker:
  {
    "switch": {"address": "10.84.0.254", "port": 31249},
    "job": {"id": 7, "key": "<32 to 128 hexadecimal digits>", "workers": 4, "rank": 0},
    "transport": {"type": "udp", "bind": "10.84.0.1:0"}
  }
May be added: job.priority (0 to 255: who gets a slot in the switch first; without it, computed
from what the worker measures of the job: how long it communicates and computes, how much is
left of it, and the tensor's place), payload_bytes (a multiple of 64 up to 8192; 1024),
window (fragments; 256),
timeouts.join_ms (30000), timeouts.stall_ms (10000), timeouts.linger_ms (2000).
Another transport:
  {"type": "dpdk", "device": "net_memif0,role=client,id=0,socket=/run/tally/w0.sock",
   "mac": "02:00:00:00:00:01", "address": "10.84.0.1"}
with eal.memory (no-huge or hugepages), eal.megabytes (64) and port (40000), if wanted.

Every worker of a job needs the same tensors (names, types, shapes), arithmetic, operation and payload."#;

const PS_CONFIG: &str = r#"
The configuration of a parameter server:
  {
    "switch": {"address": "10.84.0.254", "port": 31249},
    "jobs": [{"id": 7, "key": "<32 to 128 hexadecimal digits>"}],
    "transport": {"type": "udp", "bind": "10.84.0.9:0"}
  }
Of several parameter servers of a job each has its part: "part": 0, "parts": 2 in the first, "part": 1,
"parts": 2 in the second, where the switch has "parameter_servers": 2 for the job.
Transports are those of a worker: see tally-agent allreduce --help."#;

const AGENT_CONFIG: &str = r#"
The configuration of an agent:
  {
    "switch": {"address": "10.84.0.254"},
    "transport": {"type": "udp", "bind": "10.84.0.1"},
    "jobs": [{"id": 7, "key": "<32 to 128 hexadecimal digits>", "workers": 4}]
  }
May be added: socket (/run/tally/agent/agent.sock), access.mode ("0660") and access.group of the socket,
controller.addresses, .certificate, .key and .ca for `tally-agent join`,
jobs[].priority, memory_mib that a process may share (16384), processes at a time (64), and
payload_bytes, window and timeouts as for a worker: the first is the same at all agents of a job.
The transport dpdk has the keys of a worker's; all processes share the port, and have UDP ports from
`port` (40000) on."#;

/// All-reduce of tensors through a Tally switch.
#[derive(Debug, Parser)]
#[command(name = "tally-agent", version = VERSION, after_help = codes())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sum tensors with the other workers of a job.
    #[command(after_help = codes(), after_long_help = codes_after(CONFIG))]
    Allreduce(AllreduceArgs),
    /// Sum tensors with the other hosts of a ring, on NICs that speak RoCEv2 (NetReduce).
    ///
    /// The switch on their path sums, for which it needs the ring (`netreduce.rings`). libibverbs
    /// is loaded when this runs.
    #[command(after_help = codes())]
    Ring(RingArgs),
    /// Serve jobs as their parameter server, until SIGINT or SIGTERM.
    #[command(after_help = codes(), after_long_help = codes_after(PS_CONFIG))]
    Ps(PsArgs),
    /// Take part in jobs for the processes that train on this host, until SIGINT or SIGTERM.
    #[command(after_help = codes(), after_long_help = codes_after(AGENT_CONFIG))]
    Serve(ServeArgs),
    /// Show the state of the jobs of this host's agent.
    Status(StatusArgs),
    /// Ask the fleet's controller for this host's place in a job, and let processes take part.
    ///
    /// The agent's configuration has the controllers (`controller`). The controller finds the tree
    /// of switches; the host learns number, key and its rank. Waits until the switches are ready.
    #[command(after_help = codes())]
    Join(JoinArgs),
    /// Add, change, remove or list the jobs of the running agent.
    ///
    /// Processes that are served keep what they came with. What is changed here is not in the
    /// agent's file.
    #[command(after_help = codes())]
    Job(JobArgs),
    /// Have the running agent read its configuration file again, as SIGHUP does.
    #[command(after_help = codes())]
    Reload(ReloadArgs),
    /// Refuse new processes at the running agent, and wait until the last one has left.
    #[command(after_help = codes())]
    Drain(DrainArgs),
    /// Have the program at the running agent's path take its place, without ending a job.
    ///
    /// The new process serves all processes that come from now on. The old one keeps those that it
    /// has until they leave, and then ends.
    #[command(after_help = codes())]
    Upgrade(UpgradeArgs),
    /// Diagnose what keeps this host from its jobs, or slows them down, and how to fix it.
    ///
    /// Works whether or not the agent and its jobs run, and disturbs neither. Run it as the agent's
    /// user. Takes less than ten seconds.
    #[command(after_help = codes())]
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AllreduceArgs {
    /// Worker's configuration file, JSON (--help shows one).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Tensors to sum: a safetensors file of F32, F16, BF16, I32, I16 and I8 tensors.
    #[arg(long, value_name = "FILE", required_unless_present = "synthetic")]
    pub(crate) input: Option<PathBuf>,
    /// Safetensors file for the result; written whole or not at all.
    #[arg(long, value_name = "FILE", required_unless_present = "synthetic")]
    pub(crate) output: Option<PathBuf>,
    /// Rank of this worker, instead of that in the configuration.
    #[arg(long)]
    pub(crate) rank: Option<u16>,
    /// Operation on the tensors.
    #[arg(long, value_enum, default_value = "sum")]
    pub(crate) op: Op,
    /// Arithmetic of floats: as integers with one exponent per fragment, whose sum does not
    /// depend on the order; all as f32, in the order of ranks; or each tensor in its own type,
    /// F16 and BF16 in half the bytes. Integers always travel in their own type.
    #[arg(long, value_enum, default_value = "fixed")]
    pub(crate) arithmetic: Arithmetic,
    /// One tensor of synthetic data instead of an input.
    #[arg(long, conflicts_with = "input", requires = "elements")]
    pub(crate) synthetic: bool,
    /// Elements of the synthetic tensor; K, M and G are 10^3, 10^6 and 10^9.
    #[arg(long, value_name = "N", value_parser = count, default_value = "0", hide_default_value = true)]
    pub(crate) elements: usize,
    /// Type of the synthetic tensor.
    #[arg(
        long,
        value_enum,
        value_name = "TYPE",
        default_value = "f32",
        requires = "synthetic"
    )]
    pub(crate) element: Dtype,
    /// Random seed of the synthetic data, the same at all workers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Rounds: number of times that all tensors are summed, for measuring.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// Pause before each round, in milliseconds, in place of a framework's computation.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) compute: u64,
    /// File for the report of the run, JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
    /// Display of progress; auto is a bar on a terminal, and lines elsewhere.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) progress: Progress,
}

#[derive(Debug, Args)]
pub(crate) struct RingArgs {
    /// Number of the ring in the switch's configuration.
    #[arg(long, value_name = "N")]
    pub(crate) ring: u32,
    /// File with the ring's key, 32 to 128 hexadecimal digits; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,
    /// Rank of this host: its place in the ring's `members`.
    #[arg(long, value_name = "N")]
    pub(crate) rank: u8,
    /// Number of the ring's members.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) members: u8,
    /// IPv4 address of the RoCE device.
    #[arg(long)]
    pub(crate) address: Ipv4Addr,
    /// Address and TCP port at which rank 0 listens for the others, such as 10.84.0.1:4790.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) coordinator: SocketAddr,
    /// DSCP of the ring's packets, as the switch has it.
    #[arg(long, default_value_t = DEFAULT_DSCP, value_parser = clap::value_parser!(u8).range(..64))]
    pub(crate) dscp: u8,
    /// Messages in flight, as the switch has it.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) window: u16,
    /// Packets of a message, at most the number that the switch has.
    #[arg(long, value_name = "N", default_value_t = 170, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) packets: u16,
    /// Seconds to wait for the other members.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub(crate) join: u64,
    /// Tensors to sum: a safetensors file of F32, F16, BF16 and I32 tensors.
    #[arg(long, value_name = "FILE", required_unless_present = "synthetic")]
    pub(crate) input: Option<PathBuf>,
    /// Safetensors file for the result; written whole or not at all.
    #[arg(long, value_name = "FILE", required_unless_present = "synthetic")]
    pub(crate) output: Option<PathBuf>,
    /// One tensor of synthetic data instead of an input.
    #[arg(long, conflicts_with = "input", requires = "elements")]
    pub(crate) synthetic: bool,
    /// Elements of the synthetic tensor; K, M and G are 10^3, 10^6 and 10^9.
    #[arg(long, value_name = "N", value_parser = count, default_value = "0", hide_default_value = true)]
    pub(crate) elements: usize,
    /// Type of the synthetic tensor.
    #[arg(
        long,
        value_enum,
        value_name = "TYPE",
        default_value = "f32",
        requires = "synthetic"
    )]
    pub(crate) element: Dtype,
    /// Random seed of the synthetic data, the same at all members.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Rounds: number of times that each tensor is summed, for measuring.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
}

/// Injected loss, for tests.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LossArgs {
    /// Probability that a datagram is dropped, for tests; 0 counts datagrams only.
    #[arg(long, value_name = "P", value_parser = probability)]
    loss: Option<f64>,
    /// Datagrams dropped in a row; each burst begins with the probability of --loss.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "loss", value_parser = clap::value_parser!(u32).range(1..))]
    loss_burst: u32,
    /// Direction in which datagrams are dropped.
    #[arg(long, value_enum, default_value_t, requires = "loss")]
    loss_direction: Direction,
    /// Random seed of the injected loss.
    #[arg(long, value_name = "N", default_value_t = 1)]
    loss_seed: u64,
}

impl LossArgs {
    /// The injected loss, if there is any.
    pub(crate) fn loss(self) -> Option<Loss> {
        Some(Loss {
            probability: self.loss?,
            burst: self.loss_burst,
            direction: self.loss_direction,
            seed: self.loss_seed,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Parameter server's configuration file, JSON (--help shows one).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// File for the final report, JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Agent's configuration file, JSON (--help shows one).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check of the configuration only; starts nothing.
    #[arg(long)]
    pub(crate) check: bool,
    /// Succession of the agent at standard input, which starts this one.
    #[arg(long, hide = true, conflicts_with = "check")]
    pub(crate) take_over: bool,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Path of the agent's socket.
    #[arg(long, value_name = "PATH", env = "TALLY_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Output as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The running agent that is called.
#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// Path of the agent's socket, as for `status`; its control socket is beside it.
    #[arg(
        long,
        value_name = "PATH",
        global = true,
        env = "TALLY_SOCKET",
        default_value = DEFAULT_SOCKET
    )]
    pub(crate) socket: PathBuf,
    /// Path of the agent's control socket, if the configuration has another one (`control.socket`).
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) control: Option<PathBuf>,
}

impl ControlArgs {
    /// Where the agent takes changes.
    pub(crate) fn path(&self) -> PathBuf {
        let beside = || control_socket_of(&self.socket);
        self.control.clone().unwrap_or_else(beside)
    }
}

/// A time in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok();
    let time = number.and_then(|it| Duration::try_from_secs_f64(it).ok());
    time.ok_or_else(|| "expected seconds, such as 2.5".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    /// Name of the job in the fleet.
    #[arg(long, value_name = "NAME")]
    pub(crate) job: String,
    /// The agent's configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/tally/agent.json")]
    pub(crate) config: PathBuf,
    /// Ranks of each host, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) ranks_per_host: u16,
    /// Priority of collectives that have none of their own, 0 to 255.
    #[arg(long)]
    pub(crate) priority: Option<u8>,
    /// Time for a controller to answer and for switches to be ready, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Output as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Output as variables for a shell and torchrun: TALLY_JOB, NNODES, NODE_RANK,
    /// NPROC_PER_NODE, and MASTER_ADDR, which is the name of the host with rank 0.
    #[arg(long, conflicts_with = "json")]
    pub(crate) env: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    #[command(subcommand)]
    pub(crate) command: JobCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Let processes take part in a job. A job that is there alike is no change.
    Add(JobValues),
    /// Give a job other values, for processes that come from now on.
    Set(JobValues),
    /// Refuse new processes of a job. Those that are there stay until they leave.
    Remove(RemoveArgs),
    /// Show the jobs, and how many processes of each are on this host.
    List {
        /// Output as JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct JobValues {
    /// Number of the job in the switch's configuration.
    pub(crate) id: u16,
    /// Ranks of the job: 1 to 64 workers at one switch, to 4096 in a tree of switches.
    #[arg(long)]
    pub(crate) workers: u16,
    /// Ranks of each host that are one worker of the switch, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) ranks_per_host: u16,
    /// File with the job's key, 32 to 128 hexadecimal digits; - is standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,
    /// Priority of collectives that have none of their own, 0 to 255.
    #[arg(long)]
    pub(crate) priority: Option<u8>,
    #[command(flatten)]
    pub(crate) version: VersionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Number of the job.
    pub(crate) id: u16,
    #[command(flatten)]
    pub(crate) version: VersionArgs,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct VersionArgs {
    /// Version of the configuration that the change is for; another one is refused.
    #[arg(long, value_name = "VERSION")]
    pub(crate) expected: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    #[command(flatten)]
    pub(crate) version: VersionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    /// Seconds to wait for the last process; the agent stays drained after them.
    #[arg(long, value_name = "S")]
    pub(crate) timeout: Option<f64>,
    /// End of a drain: new processes are taken again.
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) cancel: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Agent's configuration file, JSON (serve --help shows one).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Output as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn count(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number: usize = digits
        .parse()
        .map_err(|_| "expected a whole number, with K, M or G behind it if wanted".to_owned())?;
    // The reference's bound; more elements than this are no memory's business anyway.
    number
        .checked_mul(unit)
        .filter(|&n| n < 1 << 40)
        .ok_or_else(|| "expected less than 2^40".to_owned())
}

fn probability(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|p| (0.0..1.0).contains(p))
        .ok_or_else(|| {
            "expected a number from 0 to below 1, such as 0.01 for one in a hundred".into()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn one_socket_names_an_agent_for_all_commands() {
        let path = |line: &str| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Reload(args) => args.control.path(),
            _ => panic!("another command"),
        };
        let own = control_socket_of("/a.sock".as_ref());
        assert_eq!(path("tally-agent reload --socket /a.sock"), own);
        let other = "tally-agent reload --socket /a.sock --control /c.sock";
        assert_eq!(path(other), PathBuf::from("/c.sock"));
        let default = control_socket_of(DEFAULT_SOCKET.as_ref());
        assert_eq!(path("tally-agent reload"), default);
    }

    #[test]
    fn counts_have_units() {
        assert_eq!(count("25M"), Ok(25_000_000));
        assert_eq!(count("3k"), Ok(3000));
        assert_eq!(count("17"), Ok(17));
        for bad in ["", "M", "1.5M", "-1", "9999999G"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn probabilities_are_below_one() {
        assert_eq!(probability("0.01"), Ok(0.01));
        for bad in ["1", "-0.1", "NaN", "5%"] {
            assert!(probability(bad).is_err(), "{bad}");
        }
    }
}
