//! `tally-perf`: benchmarks of Tally.
//!
//! A command is a file in `commands`: its arguments, and a `run` that returns a report. This file
//! lists the commands and prints the report, as a table or as one JSON object.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tally_perf::commands::{
    allreduce, bridge, card, compare, cores, datapath, demo, fabric, kernels, latency, loss, plan,
    plot, policies, pool, rina, roce, switchml, training,
};
use tally_program::{errors, exit};

/// Benchmarks of Tally.
#[derive(Parser)]
#[command(version = tally_program::VERSION)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// One JSON object in place of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// An all-reduce from end to end, beside Gloo, Open MPI and a parameter server on the same
    /// links
    Allreduce(allreduce::Args),
    /// TCP of ordinary hosts through the switch, beside the kernel's bridge and dpdk-testpmd
    Bridge(bridge::Args),
    /// Cycles of the FPGA card's design for each kind of traffic, and the resulting line rate
    Card(card::Args),
    /// A page of our records beside published figures of hardware
    Compare(compare::Args),
    /// Throughput of several data cores of the switch, beside that of one
    Cores(cores::Args),
    /// Throughput of one core of the switch, beside dpdk-testpmd's macswap
    Datapath(datapath::Args),
    /// All-reduces of real gradients through a real switch, compared bit for bit with a reference
    Demo(demo::Args),
    /// All-reduces over a tree of switches on shaped links, beside one switch and Gloo's ring
    Fabric(fabric::Args),
    /// Throughput of the summation kernels, beside memcpy of the same bytes
    Kernels(kernels::Args),
    /// Latency of the switch under light and heavy load, beside dpdk-testpmd's macswap
    Latency(latency::Args),
    /// All-reduces over lossy links, beside SwitchML's clients and Gloo over TCP on the same links
    Loss(loss::Args),
    /// Rates that plans for many switches predict, by algorithm, and the time to plan
    Plan(plan::Args),
    /// The plots in the docs, drawn from records
    Plot(plot::Args),
    /// Completion times of jobs that share a switch with little memory, under each policy
    Policies(policies::Args),
    /// Throughput of one core by the size of the pool, from L1 to main memory
    Pool(pool::Args),
    /// Ring all-reduces through racks of which some sum, beside Gloo's rings on the same links
    Rina(rina::Args),
    /// Throughput of one core for a ring of RoCEv2 hosts, beside the native protocol and macswap
    Roce(roce::Args),
    /// Throughput of one core for SwitchML's clients, beside the native protocol and macswap
    Switchml(switchml::Args),
    /// PyTorch training over links of one rate: Tally beside Gloo
    Training(training::Args),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tally-perf: {}", errors::chain(&*error));
            exit::of(&*error).into()
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let report = match &cli.command {
        Command::Allreduce(args) => allreduce::run(args)?,
        Command::Bridge(args) => bridge::run(args)?,
        Command::Card(args) => card::run(args)?,
        Command::Compare(args) => compare::run(args)?,
        Command::Cores(args) => cores::run(args)?,
        Command::Datapath(args) => datapath::run(args)?,
        Command::Demo(args) => demo::run(args)?,
        Command::Fabric(args) => fabric::run(args)?,
        Command::Kernels(args) => kernels::run(args)?,
        Command::Latency(args) => latency::run(args)?,
        Command::Loss(args) => loss::run(args)?,
        Command::Plan(args) => plan::run(args)?,
        Command::Plot(args) => plot::run(args)?,
        Command::Policies(args) => policies::run(args)?,
        Command::Pool(args) => pool::run(args)?,
        Command::Rina(args) => rina::run(args)?,
        Command::Roce(args) => roce::run(args)?,
        Command::Switchml(args) => switchml::run(args)?,
        Command::Training(args) => training::run(args)?,
    };
    report.print(cli.json)?;
    // A benchmark that misses a target has measured well. A wrong sum is a failure.
    let is_proof = matches!(cli.command, Command::Demo(_));
    Ok(if is_proof && report.is_missed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
