//! `tally-switch`: the appliance's command line.

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tally_program::{Exit, documents, errors, exit, service};
use tally_schema::json_schema::File;
use tally_schema::switch::report::Report;
use tally_switch::config::{Config, PortSection};
use tally_switch::events;
use tally_switch::init::{self, Init};
use tally_switch::log;
use tally_switch::log::Log;
use tally_switch::log::tracing::error;
use tally_switch::machine;
use tally_switch::machine::fabric;
use tally_switch::monitor;
use tally_switch::run::{Signals, Switch};

/// How long `--stats` waits for the switch.
const STATS_PATIENCE: Duration = Duration::from_secs(10);

/// Codes that the switch ends with.
const CODES: [Exit; 5] = [
    Exit::Done,
    Exit::Failure,
    Exit::Usage,
    Exit::File,
    Exit::System,
];

/// A DPDK switch that sums gradients in the network.
///
/// Runs until SIGINT or SIGTERM, then prints its report. SIGHUP has it read its configuration
/// again.
/// Hosts behind its ports reach each other
/// through it as through any switch; it sums the gradients of the workers of configured jobs.
#[derive(Parser)]
#[command(
    name = "tally-switch",
    version = tally_program::VERSION,
    after_help = exit::help(&CODES),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    /// Configuration file, JSON (see docs/OPERATIONS.md)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["stats", "check"])]
    config: Option<PathBuf>,

    /// Check of the configuration and of the machine, all faults at once; starts nothing. Of
    /// several FILEs: check of the switches of a fabric against each other
    #[arg(long)]
    check: bool,

    /// Configuration files of the switches of a fabric, for --check
    #[arg(value_name = "FILE", requires = "check", conflicts_with = "config")]
    files: Vec<PathBuf>,

    /// File for the final report, JSON
    #[arg(long, value_name = "FILE", requires = "config")]
    report: Option<PathBuf>,

    /// Statistics of a running switch, from the `stats_socket` of its configuration
    #[arg(long, value_name = "SOCKET", conflicts_with = "config")]
    stats: Option<PathBuf>,

    /// Reports, statistics and checks on standard output as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Files of switch, parameter server, agents and workers that fit together, with a new key
    Init(InitArguments),
    /// What keeps this machine from running the switch, and what to do; as --check
    Doctor {
        /// Configuration file, JSON
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Output as JSON
        #[arg(long)]
        json: bool,
    },
    /// JSON Schema of a configuration file
    Schema {
        /// File: switch, agent, ps or worker
        file: File,
    },
}

#[derive(Args)]
struct InitArguments {
    /// Folder for the files; none that exists is overwritten
    #[arg(default_value = ".")]
    folder: PathBuf,

    /// Device of a port, for each port: an interface, a PCI address, or a net_… device
    #[arg(long = "port", value_name = "DEVICE", required = true)]
    ports: Vec<String>,

    /// Address of a training host, for each worker of the job
    #[arg(long = "host", value_name = "IP", required = true)]
    hosts: Vec<Ipv4Addr>,

    /// Address of the switch, in the network of the hosts
    #[arg(long, value_name = "IP")]
    address: Ipv4Addr,

    /// Address of the host with the parameter server; the first host's, unless given
    #[arg(long, value_name = "IP")]
    ps: Option<Ipv4Addr>,

    /// Number of the job
    #[arg(long, default_value_t = 1)]
    job: u16,

    /// MTU of all ports, 576 to 9000
    #[arg(long, default_value_t = 1500)]
    mtu: u16,

    /// CPU of the data core
    #[arg(long, default_value_t = 0)]
    cpu: usize,

    /// Sockets of agents with different names, for programs that share a machine
    #[arg(long)]
    one_machine: bool,
}

fn main() -> ExitCode {
    match documents::write_if_asked(Arguments::command()) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tally-switch: {error}");
            return Exit::File.into();
        }
    }
    let arguments = Arguments::parse();
    let log = match Log::from_environment("tally-switch") {
        Ok(log) => log,
        Err(problem) => {
            eprintln!("tally-switch: {problem}");
            return Exit::Usage.into();
        }
    };
    log::take_panics();
    log::declare(&events::KINDS);
    let code = run(&arguments).unwrap_or_else(|Failed(exit, error)| {
        let text = errors::chain(&*error);
        error!(kind = "error", "{text}");
        exit.into()
    });
    log.flush();
    code
}

/// What ends the switch, and the exit code for it.
struct Failed(Exit, anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        let error = error.into();
        Self(exit::of(&*error), error)
    }
}

/// Gives an error its code.
trait Code<T> {
    fn code(self, exit: Exit) -> Result<T, Failed>;
}

impl<T, E: Into<anyhow::Error>> Code<T> for Result<T, E> {
    fn code(self, exit: Exit) -> Result<T, Failed> {
        self.map_err(|error| Failed(exit, error.into()))
    }
}

/// The statistics of a running switch. On another thread: at a socket whose owner hangs, even
/// connecting may not return.
fn ask(socket: PathBuf) -> Result<String> {
    let (answer, answered) = mpsc::channel();
    let path = socket.display().to_string();
    std::thread::spawn(move || {
        let mut text = String::new();
        let asked = std::os::unix::net::UnixStream::connect(&socket)
            .and_then(|mut stream| stream.read_to_string(&mut text));
        let _ = answer.send(asked.map(|_| text));
    });
    let text = answered
        .recv_timeout(STATS_PATIENCE)
        .with_context(|| format!("{path}: no answer within {} s", STATS_PATIENCE.as_secs()))?;
    text.with_context(|| format!("no switch answers at {path}"))
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failed> {
    match &arguments.command {
        Some(Command::Init(arguments)) => return init(arguments),
        Some(Command::Doctor { config, json }) => return check(config, None, *json),
        Some(Command::Schema { file }) => {
            write(&file.schema())?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    if let Some(socket) = &arguments.stats {
        let text = ask(socket.clone()).code(Exit::System)?;
        let report: Report = simd_json::from_slice(&mut text.into_bytes()).with_context(|| {
            let socket = socket.display();
            format!("{socket}: the answer is not a report of this version of tally-switch")
        })?;
        print(&report, arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.check {
        return check_asked(arguments);
    }
    let Some(path) = &arguments.config else {
        return Ok(ExitCode::FAILURE);
    };
    let signals = Signals::default();
    // It means a reload, and ends the switch at no time.
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&signals.hangup))?;
    let config = Config::load(path)?;
    // Before warnings about CPUs that are not there, and tens of lines of DPDK.
    machine::check_cpus(&config)
        .map_err(anyhow::Error::msg)
        .code(Exit::System)?;
    log::configure(config.log);
    if let Some(warning) = config.pool_warning() {
        log::line("configuration", warning);
    }
    if let Some(warning) = config.switchml_warning() {
        log::line("configuration", warning);
    }
    // Before hours of work whose report could not be written.
    if let Some(path) = &arguments.report {
        tally_config::try_write(path)
            .with_context(|| format!("{}: the report cannot be written", path.display()))
            .code(Exit::File)?;
    }
    let stop = &signals.stop;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one kills: a way out if the first finds the switch stuck.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(stop))?;
        signal_hook::flag::register(signal, Arc::clone(stop))?;
    }
    let listener = monitor::listen(config.metrics.as_ref()).code(Exit::System)?;
    let switch = Switch::start(&config, Some(path.clone()), signals).code(Exit::System)?;
    let running = format!(
        "running on CPU {:?}, {} ports, address {} {}, UDP port {}",
        config.cores,
        config.ports.len(),
        config.address.mac,
        config.address.ip,
        config.address.udp_port
    );
    service::ready(&running);
    log::line("start", running);
    for place in switch.control_places() {
        log::line("listens", format!("takes requests at {place}"));
    }
    for address in switch.switchml_addresses() {
        log::line(
            "listens",
            format!("SwitchML's controller listens at {address}"),
        );
    }
    // Until the switch has ended.
    let monitor = match listener {
        Some(listener) => {
            let server = monitor::start(listener, switch.handle()).code(Exit::System)?;
            let text = format!("metrics and page at http://{}/", server.address());
            log::line("listens", text);
            Some(server)
        }
        None => None,
    };
    let report = switch.wait()?;
    drop(monitor);
    if let Some(path) = &arguments.report {
        tally_config::write_whole(path, report.json())
            .with_context(|| path.display().to_string())
            .code(Exit::File)?;
    }
    print(&report, arguments.json)?;
    if let Some(left) = machine::left_over(&config) {
        log::line("end", left);
    }
    Ok(end(&config, &report))
}

/// Whether all frames are back in their pools at the end.
fn end(config: &Config, report: &Report) -> ExitCode {
    let missing = report.frames_missing.unwrap_or_default();
    if missing == 0 {
        return ExitCode::SUCCESS;
    }
    if config.ports.iter().any(PortSection::keeps_frames) {
        log::line(
            "end",
            "net_af_xdp does not give back the frames of its fill queue",
        );
        return ExitCode::SUCCESS;
    }
    log::line(
        "end",
        format!("{missing} frames missing from their pools at the end: a bug of the switch"),
    );
    ExitCode::FAILURE
}

/// Writes files that fit together.
fn init(arguments: &InitArguments) -> Result<ExitCode, Failed> {
    let init = Init {
        ports: arguments.ports.clone(),
        hosts: arguments.hosts.clone(),
        address: arguments.address,
        ps: arguments.ps,
        job: arguments.job,
        mtu: arguments.mtu,
        cpu: arguments.cpu,
        is_one_machine: arguments.one_machine,
    };
    let files = init.files().code(Exit::Usage)?;
    init::write(&arguments.folder, &files).code(Exit::File)?;
    let names: Vec<_> = files.iter().map(|it| it.name.as_str()).collect();
    let folder = arguments.folder.display();
    write(&format!(
        "{folder}: wrote {}\n\
         All have the key of job {}: give each to its host, readable by its program's user alone.\n\
         Next: tally-switch --check --config {folder}/switch.json\n",
        names.join(", "),
        arguments.job
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Checks what `--check` names: one file and the machine, or the files of a fabric.
fn check_asked(arguments: &Arguments) -> Result<ExitCode, Failed> {
    match (&arguments.config, arguments.files.as_slice()) {
        (Some(path), _) | (None, [path]) => {
            check(path, arguments.report.as_deref(), arguments.json)
        }
        (None, files) => check_fabric(files, arguments.json),
    }
}

/// Whether a switch with this configuration could start here.
fn check(path: &Path, report: Option<&Path>, json: bool) -> Result<ExitCode, Failed> {
    let found = machine::examine(path, report);
    let diagnosis = &found.diagnosis;
    write(&if json {
        diagnosis.to_json() + "\n"
    } else {
        diagnosis.to_string()
    })?;
    Ok(match (found.is_usable, diagnosis.is_good()) {
        (false, _) => Exit::Usage,
        (true, false) => Exit::Failure,
        (true, true) => Exit::Done,
    }
    .into())
}

/// Whether the switches of a fabric fit together. The machine is not looked at: it is that of none
/// of them, or of one.
fn check_fabric(files: &[PathBuf], json: bool) -> Result<ExitCode, Failed> {
    if files.is_empty() {
        let error = anyhow::anyhow!("--check needs --config FILE, or the FILEs of a fabric");
        return Err(Failed(Exit::Usage, error));
    }
    let diagnosis = fabric::examine(files);
    write(&if json {
        diagnosis.to_json() + "\n"
    } else {
        diagnosis.to_string()
    })?;
    let is_good = diagnosis.is_good();
    Ok(if is_good { Exit::Done } else { Exit::Usage }.into())
}

fn print(report: &Report, json: bool) -> Result<()> {
    write(&if json {
        report.json()
    } else {
        report.to_string()
    })
}

fn write(text: &str) -> Result<()> {
    // A reader that went away (`| head`) is no error.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
