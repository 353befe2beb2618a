//! `tally-load pktgen`: files with which Pktgen-DPDK loads a real switch.
//!
//! # How it works
//!
//! It writes into a folder: a [capture](crate::capture) for each port, which Pktgen replays in a
//! loop; the configuration of a switch whose job has the workers in the captures as fixed members,
//! so that none joins; two Lua scripts from `crates/load/pktgen/`, with the settings that they
//! read; and a README with the two commands. Captures and configuration come from the same values,
//! so that every frame is from and to an address in the configuration.
//!
//! # The catches
//!
//! - Pktgen must hold its ports together: one that falls behind by a run of fragments loses them
//!   (`--run-fragments` is how far they may be apart). One core of Pktgen for all ports does.
//! - It replays what it has, whether answers come or not: an open loop, unlike workers.

use crate::capture::Shape;
use crate::capture::config::{self, Setting};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use tally_report::{Machine, Report};
use tally_schema::switch::config::MemoryKind;
use tally_wire::{MAX_UNITS, MAX_WORKERS, UNIT_BYTES};

/// As they are in the repository; the folder of the captures gets copies.
const SCRIPTS: [(&str, &str); 3] = [
    ("tally.lua", include_str!("../pktgen/tally.lua")),
    ("replay.lua", include_str!("../pktgen/replay.lua")),
    ("throughput.lua", include_str!("../pktgen/throughput.lua")),
];
/// Room for a file's name in the path of a socket.
const SOCKET_FOLDER_BYTES_MAX: usize = 90;
/// Most seconds of a trial: a mistyped one should not run for a week.
const SECONDS_MAX: u32 = 3600;

/// Examples, below `--help`.
pub const EXAMPLES: &str = "\
Examples:
  tally-load pktgen --out load --workers 2 --run-fragments 2048 --seconds 3
      shared memory to a Pktgen on this machine
  tally-load pktgen --out load --workers 8 --seconds 60 --cores 2,3 --generator-core 4 \\
      --port 0000:81:00.0 --port 0000:81:00.1 \\
      --generator-port 0000:02:00.0 --generator-port 0000:02:00.1
      two machines, two wires";

/// What is written.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder of the files; created if missing
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,

    /// Number of workers of the job
    #[arg(long, default_value_t = 8)]
    workers: u8,

    /// Payload of every frame in bytes, a multiple of 64 up to 8192
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    payload: u16,

    /// Element type, i32 or f32
    #[arg(long, default_value = "i32")]
    element: String,

    /// Fragments in each of a capture's three runs, and slots of the switch: the most by which
    /// ports may be apart
    #[arg(long, default_value_t = 4096, value_name = "FRAGMENTS")]
    run_fragments: u32,

    /// Port of the switch, a PCI address or a DPDK virtual device; once for each port, in turn
    /// among the workers [default: shared memory for each worker, net_vhost]
    #[arg(long = "port", value_name = "DEVICE", requires = "generator_ports")]
    ports: Vec<String>,

    /// Port of Pktgen, in the order of the switch's ports that they are wired to
    #[arg(long = "generator-port", value_name = "DEVICE", requires = "ports")]
    generator_ports: Vec<String>,

    /// CPUs of the switch's data cores, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [0], value_name = "CPU,…")]
    cores: Vec<usize>,

    /// CPU of the core that sends and receives for Pktgen
    #[arg(long, default_value_t = 1, value_name = "CPU")]
    generator_core: usize,

    /// CPU of Pktgen's screen and of the switch's control thread
    #[arg(long, default_value_t = 1, value_name = "CPU")]
    control_core: usize,

    /// Time of a trial in seconds; RFC 2544 asks for 60
    #[arg(long, default_value_t = 10)]
    seconds: u32,

    /// Highest rate of the search, and rate of the replay, in percent of the line rate
    #[arg(long, default_value_t = 100.0)]
    percent: f64,
}

#[derive(Serialize)]
struct Parameters<'a> {
    shape: &'a Shape,
    switch_ports: &'a [String],
    generator_ports: &'a [String],
    seconds: u32,
    percent: f64,
}

/// What came of it.
#[derive(Serialize)]
struct Written {
    files: Vec<PathBuf>,
    capture_bytes: u64,
    switch: String,
    pktgen: String,
}

/// Runs it.
///
/// # Errors
/// On arguments that cannot be, and files that cannot be written.
pub fn run(args: &Args) -> Result<Report> {
    check(args)?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    // The commands work from anywhere.
    let folder = fs::canonicalize(&args.out)?;
    ensure!(
        folder.as_os_str().len() <= SOCKET_FOLDER_BYTES_MAX,
        "{}: sockets there would have names of more than 107 bytes",
        folder.display()
    );
    let (ports, generator_ports) = if args.ports.is_empty() {
        let both = (0..args.workers).map(|n| shared_memory(&folder, n));
        both.unzip()
    } else {
        (args.ports.clone(), args.generator_ports.clone())
    };
    let shape = Shape {
        jobs: 1,
        workers: args.workers,
        ports: ports.len() as u8,
        payload_bytes: args.payload,
        element: if args.element == "f32" { "f32" } else { "i32" },
        run_fragments: args.run_fragments,
        turn_fragments: 1,
        shards: args.cores.len() as u16,
    };
    let mut files = shape.write(&folder)?;
    let mut write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        files.push(path);
        anyhow::Ok(())
    };
    for (name, text) in SCRIPTS {
        write(name, text)?;
    }
    write("settings.lua", &settings(args, &shape))?;
    let path = folder.join("switch.json");
    let is_pci = |device: &String| device.contains(':');
    let config = config::config(
        &shape,
        ports.clone(),
        Setting {
            cores: args.cores.clone(),
            control_core: Some(args.control_core),
            descriptors: 1024,
            stats_socket: folder.join("switch.sock"),
            memory: if ports.iter().any(is_pci) {
                MemoryKind::InMemory
            } else {
                MemoryKind::NoHuge
            },
        },
    );
    config::write(&config, &path)?;
    let switch = format!("tally-switch --config {}", path.display());
    let pktgen = command(args, &folder, &generator_ports);
    write("README", &readme(&folder, &switch, &pktgen))?;
    files.push(path);
    let written = Written {
        files,
        capture_bytes: u64::from(shape.frames()) * shape.frame_bytes() as u64,
        switch,
        pktgen,
    };
    let mut table = format!(
        "{} files, captures of {} MiB, in {}\n\nthe switch:\n    {}\nPktgen, which ends by itself (or with replay.lua):\n    {}\n",
        written.files.len(),
        written.capture_bytes >> 20,
        folder.display(),
        written.switch,
        written.pktgen
    );
    let _ = writeln!(
        table,
        "what the switch made of it, any time until it ends:\n    socat - UNIX-CONNECT:{}",
        folder.join("switch.sock").display()
    );
    let parameters = Parameters {
        shape: &shape,
        switch_ports: &ports,
        generator_ports: &generator_ports,
        seconds: args.seconds,
        percent: args.percent,
    };
    Report::new(Machine::detect(), &parameters, &written, Vec::new(), table)
}

fn check(args: &Args) -> Result<()> {
    let Args {
        workers,
        payload,
        element,
        run_fragments,
        cores,
        seconds,
        percent,
        ..
    } = args;
    ensure!(
        (1..=MAX_WORKERS as u8).contains(workers),
        "--workers {workers}: 1 to {MAX_WORKERS}"
    );
    let limit = u16::from(MAX_UNITS) * UNIT_BYTES as u16;
    ensure!(
        (64..=limit).contains(payload) && payload.is_multiple_of(UNIT_BYTES as u16),
        "--payload {payload}: a multiple of 64 up to {limit}"
    );
    ensure!(
        ["i32", "f32"].contains(&element.as_str()),
        "--element {element}: i32 or f32"
    );
    ensure!(
        run_fragments.is_power_of_two() && (64..=32_768).contains(run_fragments),
        "--run-fragments {run_fragments}: a power of two from 64 to 32768"
    );
    ensure!(
        cores.len().is_power_of_two() && cores.len() <= 64,
        "--cores: 1, 2, 4, … or 64 of them (one shard each), not {}",
        cores.len()
    );
    ensure!(
        !cores.contains(&args.generator_core),
        "--generator-core {}: a core of the switch",
        args.generator_core
    );
    let (ports, generator) = (args.ports.len(), args.generator_ports.len());
    ensure!(
        ports == generator,
        "{ports} times --port, {generator} times --generator-port: one for one"
    );
    ensure!(
        ports <= usize::from(*workers) && workers.checked_rem(ports.max(1) as u8) == Some(0),
        "{ports} ports for {workers} workers: as many on each"
    );
    ensure!(
        (1..=SECONDS_MAX).contains(seconds),
        "--seconds {seconds}: 1 to {SECONDS_MAX}"
    );
    ensure!(
        *percent > 0.0 && *percent <= 100.0,
        "--percent {percent}: above 0, up to 100"
    );
    Ok(())
}

/// The two ends of a connection through shared memory: the switch's and Pktgen's. (Not `net_memif`,
/// which has no MTU to set: Pktgen ends at that.)
fn shared_memory(folder: &Path, n: u8) -> (String, String) {
    let socket = folder.join(format!("port{n}.sock"));
    let socket = socket.display();
    (
        format!("net_vhost{n},iface={socket}"),
        format!("net_virtio_user{n},path={socket},queue_size=1024"),
    )
}

fn settings(args: &Args, shape: &Shape) -> String {
    let workers: Vec<_> = (0..shape.ports)
        .map(|port| shape.ranks(port).count().to_string())
        .collect();
    format!(
        "-- Written by tally-load pktgen, to fit the captures beside it.\n\
         return {{\n    workers = {}, ports = {}, workers_of_port = {{ {} }},\n    \
         payload_bytes = {}, element = \"{}\", frame_bytes = {}, capture_frames = {},\n    \
         percent_max = {percent}, trial_seconds = {seconds}, confirm_seconds = {},\n    \
         replay_percent = {percent}, replay_seconds = {seconds},\n}}\n",
        shape.workers,
        shape.ports,
        workers.join(", "),
        shape.payload_bytes,
        shape.element,
        shape.frame_bytes(),
        shape.frames() / u32::from(shape.ports),
        2 * args.seconds,
        percent = args.percent,
        seconds = args.seconds,
    )
}

fn command(args: &Args, folder: &Path, generator_ports: &[String]) -> String {
    let is_pci = |device: &&String| device.contains(':');
    let mut out = format!(
        "pktgen --lcores 0@{},1@{} --main-lcore 0 --file-prefix pktgen --no-telemetry",
        args.control_core, args.generator_core
    );
    if generator_ports.iter().any(|device| is_pci(&device)) {
        // A virtual device beside a NIC is no use to anybody.
        for device in generator_ports {
            let _ = write!(out, " -a {device}");
        }
    } else {
        // Ordinary pages: Pktgen's pools take 1.6 GiB a port.
        let megabytes = 512 + 1700 * generator_ports.len();
        let _ = write!(out, " --no-pci --no-huge -m {megabytes}");
        for device in generator_ports {
            let _ = write!(out, " --vdev {device}");
        }
    }
    // Results come to a group's MAC address: promiscuous.
    out.push_str(" -- -P");
    if args.payload > 1408 {
        out.push_str(" -j");
    }
    let last = generator_ports.len() - 1;
    let _ = match last {
        0 => write!(out, " -m 1.0"),
        _ => write!(out, " -m 1.[0-{last}]"),
    };
    for port in 0..=last {
        let capture = folder.join(format!("port{port}.pcap"));
        let _ = write!(out, " -s {port}:{}", capture.display());
    }
    let _ = write!(out, " -f {}", folder.join("throughput.lua").display());
    out
}

fn readme(folder: &Path, switch: &str, pktgen: &str) -> String {
    format!(
        "Written by tally-load pktgen; crates/load/pktgen/README.md of the source tells more.\n\n\
         1. The switch, until it says \"running on CPU\":\n\n    {switch}\n\n\
         2. Pktgen. It searches the highest rate without loss, writes throughput.json and ends. With\n   \
         replay.lua instead of throughput.lua it replays once at one rate.\n\n    {pktgen}\n\n\
         3. What the switch counted: every drop has a reason. Then Ctrl-C in the switch's terminal.\n\n    \
         socat - UNIX-CONNECT:{}\n",
        folder.join("switch.sock").display()
    )
}
