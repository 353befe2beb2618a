//! `tally-perf`: measures Tally, and says what it measured and where.
//!
//! A command is a file in `commands`: its arguments, and a `run` that returns a report. This file
//! lists the commands and prints the report, as a table or as one JSON object.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tally_perf::commands::{
    allreduce, card, compare, cores, datapath, demo, kernels, latency, load, loss, pktgen,
    policies, pool, switchml, switchml_worker, training,
};

/// Benchmarks of Tally.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print one JSON object in place of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// An all-reduce from end to end, beside Gloo, Open MPI and a parameter server, on the same links.
    Allreduce(allreduce::Args),
    /// Cycles that the FPGA card's design takes for each kind of traffic, and the line rate that follows.
    Card(card::Args),
    /// Writes a page: what was recorded here, beside what others published of hardware.
    Compare(compare::Args),
    /// What several data cores of the switch move, to what one does.
    Cores(cores::Args),
    /// What one core of the switch moves, beside dpdk-testpmd's macswap.
    Datapath(datapath::Args),
    /// The main job, from start to proof: workers all-reduce real gradients through a real switch.
    Demo(demo::Args),
    /// Throughput of the summation kernels, beside memcpy of the same bytes.
    Kernels(kernels::Args),
    /// How long a frame is in the switch under light and heavy load, beside dpdk-testpmd's macswap.
    Latency(latency::Args),
    /// Loads a running switch with simulated workers, as hard as it takes or at a rate.
    Load(load::Args),
    /// All-reduces over lossy links, beside SwitchML's clients and Gloo over TCP on the same links.
    Loss(loss::Args),
    /// Writes captures, scripts and a configuration for Pktgen-DPDK.
    Pktgen(pktgen::Args),
    /// Several jobs share a switch with little memory, under each of its policies in turn.
    Policies(policies::Args),
    /// What one core sums, by the size of the pool: from L1 to main memory.
    Pool(pool::Args),
    /// What one core of the switch moves for SwitchML's clients, beside the native protocol and macswap.
    Switchml(switchml::Args),
    /// One worker of a SwitchML job, which checks its sums.
    SwitchmlWorker(switchml_worker::Args),
    /// PyTorch trains over links of one rate: Tally beside Gloo.
    Training(training::Args),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tally-perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let report = match &cli.command {
        Command::Allreduce(args) => allreduce::run(args)?,
        Command::Card(args) => card::run(args)?,
        Command::Compare(args) => compare::run(args)?,
        Command::Cores(args) => cores::run(args)?,
        Command::Datapath(args) => datapath::run(args)?,
        Command::Demo(args) => demo::run(args)?,
        Command::Kernels(args) => kernels::run(args)?,
        Command::Latency(args) => latency::run(args)?,
        Command::Load(args) => load::run(args)?,
        Command::Loss(args) => loss::run(args)?,
        Command::Pktgen(args) => pktgen::run(args)?,
        Command::Policies(args) => policies::run(args)?,
        Command::Pool(args) => pool::run(args)?,
        Command::Switchml(args) => switchml::run(args)?,
        Command::SwitchmlWorker(args) => switchml_worker::run(args)?,
        Command::Training(args) => training::run(args)?,
    };
    report.print(cli.json)?;
    // A benchmark that misses a target has measured well. A wrong sum is a failure, and so is a fragment
    // that got lost.
    let is_proof = matches!(cli.command, Command::Demo(_) | Command::Load(_));
    Ok(if is_proof && report.is_missed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
