//! `tally-perf bridge`: TCP of two ordinary hosts through the switch, beside the kernel's bridge
//! and `dpdk-testpmd`.
//!
//! # What is compared
//!
//! Two hosts in network namespaces, each on a veth pair, and between the pairs one of: the kernel's
//! bridge; the switch on ports of interfaces (`packet0,iface=…`); `dpdk-testpmd` in forward mode
//! `io` on `net_af_packet`. iperf3 sends one TCP stream each way. Hosts have their default
//! offloads, but for testpmd, through which TCP does not get with them: it has them all off, and so
//! has the bridge once more, in the row `bridge, offloads off`.
//!
//! All take turns in each round. The ratio is that of the medians.
//!
//! # The catches
//!
//! - The bridge copies nothing and has no thread: its work is done by the sender. The switch copies
//!   twice, on a CPU of its own. So what is compared depends on the number of CPUs: with two, the
//!   switch takes from iperf3 one of the CPUs that the bridge leaves to it.
//! - iperf3 may use all CPUs; the scheduler places it.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tally_report::{Machine, Report, Spread, Target};
use tally_testkit::cluster::{Cpus, Links, Namespaces, Program, allowed, host_address, prefixed};
use tally_testkit::replay::Testpmd;

/// What the switch should reach of the bridge's rate.
const TARGET: f64 = 0.8;
/// How long a program may take until frames pass.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between attempts to start a stream.
const RETRY: Duration = Duration::from_millis(500);
/// Offloads by which a host hands on frames that are not finished.
const OFFLOADS: [&str; 5] = ["tso", "gso", "gro", "tx", "rx"];

/// What is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// MTUs of the links, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1500, 9000])]
    mtu: Vec<u16>,

    /// Rounds in which all take turns
    #[arg(long, default_value_t = 5)]
    rounds: u32,

    /// Seconds of each stream
    #[arg(long, default_value_t = 3)]
    seconds: u32,

    /// The program `tally-switch` [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    switch: Option<PathBuf>,

    /// No dpdk-testpmd
    #[arg(long)]
    no_testpmd: bool,
}

#[derive(Serialize)]
struct Parameters<'a> {
    mtu: &'a [u16],
    rounds: u32,
    seconds: u32,
    cpus: usize,
    switch_cpu: usize,
    testpmd: Option<String>,
}

/// What is between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Middle {
    Bridge,
    Tally,
    BridgeOffloadsOff,
    Testpmd,
}

impl Middle {
    const fn name(self) -> &'static str {
        match self {
            Self::Bridge => "kernel's bridge",
            Self::Tally => "tally-switch",
            Self::BridgeOffloadsOff => "bridge, offloads off",
            Self::Testpmd => "testpmd, offloads off",
        }
    }

    const fn has_offloads(self) -> bool {
        matches!(self, Self::Bridge | Self::Tally)
    }

    /// What it is compared with.
    const fn bridge(self) -> Self {
        if self.has_offloads() {
            Self::Bridge
        } else {
            Self::BridgeOffloadsOff
        }
    }
}

/// Which host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Direction {
    There,
    Back,
}

/// One stream.
#[derive(Clone, Copy, Debug)]
struct Sample {
    mtu: u16,
    middle: Middle,
    direction: Direction,
    gbit_per_s: f64,
    retransmits: f64,
}

/// All streams of a kind.
#[derive(Clone, Debug, Serialize)]
struct Row {
    mtu: u16,
    middle: Middle,
    direction: Direction,
    gbit_per_s: Spread,
    retransmits: Spread,
    /// Of the bridge's median with the same offloads.
    of_bridge: f64,
}

/// What iperf3 says with `--json`, as far as we want it.
#[derive(Deserialize)]
struct Said {
    end: Ended,
}

#[derive(Deserialize)]
struct Ended {
    sum_sent: Sum,
    sum_received: Sum,
}

#[derive(Deserialize)]
struct Sum {
    bits_per_second: f64,
    #[serde(default)]
    retransmits: f64,
}

/// Measures.
///
/// # Errors
/// When namespaces or iperf3 are missing, or frames do not pass.
pub fn run(args: &Args) -> Result<Report> {
    ensure!(allowed(), "network namespaces need root");
    let testpmd = if args.no_testpmd {
        None
    } else {
        Testpmd::find().ok()
    };
    let cpus = Cpus::of_this_machine(1)?;
    let folder = tempfile::tempdir()?;
    let bench = Bench {
        args,
        switch: args.switch.clone().unwrap_or_else(beside),
        cpu: cpus.switch[0],
        folder: folder.path(),
    };
    let mut samples = Vec::new();
    for &mtu in &args.mtu {
        bench.measure(mtu, testpmd.as_ref(), &mut samples)?;
    }
    let rows = rows(&samples);
    let parameters = Parameters {
        mtu: &args.mtu,
        rounds: args.rounds,
        seconds: args.seconds,
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        switch_cpu: bench.cpu,
        testpmd: testpmd.as_ref().map(Testpmd::version).transpose()?,
    };
    let table = table(&parameters, &rows);
    Report::new(Machine::detect(), &parameters, &rows, targets(&rows), table)
}

fn beside() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name("tally-switch")
}

struct Bench<'a> {
    args: &'a Args,
    switch: PathBuf,
    cpu: usize,
    folder: &'a Path,
}

/// What is between the hosts, until it is dropped.
enum Running {
    /// Its namespace.
    Bridge(String),
    Program(#[expect(dead_code, reason = "it ends when it is dropped")] Program),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Self::Bridge(namespace) = self {
            let mut command = Command::new("ip");
            command.args(["-n", namespace, "link", "delete", "bridge"]);
            let _ = command.status();
        }
    }
}

impl Bench<'_> {
    fn measure(&self, mtu: u16, testpmd: Option<&Testpmd>, out: &mut Vec<Sample>) -> Result<()> {
        let links = Links {
            mtu,
            rate_mbit: None,
        };
        let hosts = Namespaces::new(2, links)?;
        let mut server = prefixed(&hosts.host_prefix(1), Path::new("iperf3"));
        server.arg("--server");
        let _server = Program::start("iperf3", server, &self.folder.join("iperf3.log"))?;
        let mut middles = vec![Middle::Bridge, Middle::Tally, Middle::BridgeOffloadsOff];
        if testpmd.is_some() {
            middles.push(Middle::Testpmd);
        }
        for round in 0..self.args.rounds {
            for &middle in &middles {
                for host in 0..2 {
                    set_offloads(&hosts, host, middle.has_offloads())?;
                }
                let running = self.start(middle, &hosts, mtu)?;
                wait_until_frames_pass(&hosts, middle)?;
                for direction in [Direction::There, Direction::Back] {
                    let said = self.stream(&hosts, direction)?;
                    out.push(Sample {
                        mtu,
                        middle,
                        direction,
                        gbit_per_s: said.sum_received.bits_per_second / 1e9,
                        retransmits: said.sum_sent.retransmits,
                    });
                }
                drop(running);
                eprintln!("MTU {mtu}, round {}: {}", round + 1, middle.name());
            }
        }
        Ok(())
    }

    fn start(&self, middle: Middle, hosts: &Namespaces, mtu: u16) -> Result<Running> {
        let log = self.folder.join("middle.log");
        let command = match middle {
            Middle::Bridge | Middle::BridgeOffloadsOff => {
                hosts.bridge()?;
                return Ok(Running::Bridge(hosts.names()[0].clone()));
            }
            Middle::Tally => {
                let file = self.folder.join("switch.json");
                std::fs::write(&file, self.configuration(mtu))?;
                let mut command = prefixed(&hosts.switch_prefix(), &self.switch);
                command.arg("--config").arg(file);
                command
            }
            Middle::Testpmd => {
                let mut command = prefixed(&hosts.switch_prefix(), Path::new("dpdk-testpmd"));
                // The main lcore sleeps.
                let lcores = format!("--lcores=0@{cpu},1@{cpu}", cpu = self.cpu);
                command.args([&lcores, "--main-lcore=0", "--no-pci", "--no-telemetry"]);
                command.args(["--no-huge", "--no-shconf", "--iova-mode=va", "-m512"]);
                for port in 0..2 {
                    command.arg(format!(
                        "--vdev=net_af_packet{port},iface=port{port},qdisc_bypass=1,\
                         blocksz=16384,framesz=16384,framecnt=512"
                    ));
                }
                command.args(["--", "--forward-mode=io", "--nb-cores=1", "--no-flush-rx"]);
                command.args(["--mbuf-size=16640", "--total-num-mbufs=8192"]);
                // Else it waits for a key, and ends.
                command.arg("--stats-period=3600");
                command
            }
        };
        Program::start(middle.name(), command, &log).map(Running::Program)
    }

    fn configuration(&self, mtu: u16) -> String {
        let port = |port| {
            format!(
                r#"{{"name": "p{port}", "device": "packet{port},iface=port{port}", "mtu": {mtu}}}"#
            )
        };
        format!(
            r#"{{"address": {{"mac": "02:54:41:4c:4c:59", "ip": "10.84.0.254"}},
                "eal": {{"memory": "no-huge"}}, "cores": [{}],
                "ports": [{}, {}], "jobs": []}}"#,
            self.cpu,
            port(0),
            port(1)
        )
    }

    fn stream(&self, hosts: &Namespaces, direction: Direction) -> Result<Ended> {
        let mut command = prefixed(&hosts.host_prefix(0), Path::new("iperf3"));
        let seconds = self.args.seconds.to_string();
        let to = host_address(1).to_string();
        command.args(["--json", "--client", &to, "--time", &seconds]);
        if direction == Direction::Back {
            command.arg("--reverse");
        }
        let start = Instant::now();
        loop {
            let mut output = command.output().context("iperf3")?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // Its server may still be at the end of the stream before.
            match simd_json::from_slice::<Said>(&mut output.stdout) {
                Ok(said) if output.status.success() => return Ok(said.end),
                _ => ensure!(start.elapsed() < PATIENCE, "iperf3: {text}"),
            }
            std::thread::sleep(RETRY);
        }
    }
}

fn set_offloads(hosts: &Namespaces, host: usize, on: bool) -> Result<()> {
    let mut command = prefixed(&hosts.host_prefix(host), Path::new("ethtool"));
    command.args(["-K", "eth0"]);
    for feature in OFFLOADS {
        command.args([feature, if on { "on" } else { "off" }]);
    }
    let output = command.output().context("ethtool")?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {why}");
    Ok(())
}

fn wait_until_frames_pass(hosts: &Namespaces, middle: Middle) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut ping = prefixed(&hosts.host_prefix(0), Path::new("ping"));
        ping.args(["-c1", "-W1", &host_address(1).to_string()]);
        if ping.output().context("ping")?.status.success() {
            return Ok(());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "{}: no ping passes",
            middle.name()
        );
    }
}

fn rows(samples: &[Sample]) -> Vec<Row> {
    let of = |mtu, middle, direction| {
        samples
            .iter()
            .filter(move |it| it.mtu == mtu && it.middle == middle && it.direction == direction)
    };
    let spread = |mtu, middle, direction, figure: fn(&Sample) -> f64| {
        let figures: Vec<_> = of(mtu, middle, direction).map(figure).collect();
        Spread::of(&figures)
    };
    let mut rows: Vec<Row> = Vec::new();
    for &Sample {
        mtu,
        middle,
        direction,
        ..
    } in samples
    {
        let is_known =
            |row: &Row| row.mtu == mtu && row.middle == middle && row.direction == direction;
        let rate = |middle| spread(mtu, middle, direction, |it| it.gbit_per_s);
        let retransmits = spread(mtu, middle, direction, |it| it.retransmits);
        if !rows.iter().any(is_known)
            && let (Some(gbit_per_s), Some(bridge), Some(retransmits)) =
                (rate(middle), rate(middle.bridge()), retransmits)
        {
            rows.push(Row {
                mtu,
                middle,
                direction,
                gbit_per_s,
                retransmits,
                of_bridge: gbit_per_s.median / bridge.median,
            });
        }
    }
    rows
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let of_tally = rows.iter().filter(|row| row.middle == Middle::Tally);
    let target = |row: &Row| {
        let direction = match row.direction {
            Direction::There => "there",
            Direction::Back => "back",
        };
        Target::at_least(
            &format!(
                "TCP at default offloads, MTU {}, {direction}, of the bridge's rate",
                row.mtu
            ),
            row.of_bridge,
            "",
            TARGET,
            "ratio of the medians of interleaved rounds",
        )
    };
    of_tally.map(target).collect()
}

fn table(parameters: &Parameters, rows: &[Row]) -> String {
    let mut text = format!(
        "{} CPUs; tally-switch and testpmd on CPU {}, iperf3 on any\n\n\
         MTU   between the hosts       way    Gbit/s (min to max)       retransmits  of bridge\n",
        parameters.cpus, parameters.switch_cpu
    );
    for row in rows {
        let way = match row.direction {
            Direction::There => "there",
            Direction::Back => "back",
        };
        let Spread { median, min, max } = row.gbit_per_s;
        let rate = format!("{median:.2} ({min:.2} to {max:.2})");
        let _ = writeln!(
            text,
            "{:<5} {:<23} {way:<6} {rate:<25} {:>11.0} {:>10.2}",
            row.mtu,
            row.middle.name(),
            row.retransmits.median,
            row.of_bridge
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_with_the_bridge_of_the_same_offloads() {
        let sample = |middle, gbit_per_s| Sample {
            mtu: 1500,
            middle,
            direction: Direction::There,
            gbit_per_s,
            retransmits: 0.0,
        };
        let samples = [
            sample(Middle::Bridge, 10.0),
            sample(Middle::Tally, 8.5),
            sample(Middle::BridgeOffloadsOff, 2.0),
            sample(Middle::Testpmd, 1.0),
            sample(Middle::Bridge, 20.0),
            sample(Middle::Tally, 6.5),
        ];
        let rows = rows(&samples);
        let shares: Vec<_> = rows.iter().map(|row| row.of_bridge).collect();
        assert_eq!(shares, [1.0, 0.5, 1.0, 0.5]);
        let targets = targets(&rows);
        assert_eq!(targets.len(), 1);
        assert!(targets.iter().all(|target| target.met == Some(false)));
    }
}
