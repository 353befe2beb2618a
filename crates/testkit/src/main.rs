//! `tally-testkit`: processes that tests start.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tally_program::{errors, exit};
use tally_testkit::{interactive, ring_worker, switchml_worker};

/// Test support of Tally: a cluster on this machine, a worker of our own SwitchML client.
#[derive(Parser)]
#[command(name = "tally-testkit", version = tally_program::VERSION)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Switch, parameter server and agents of one job in network namespaces, until standard input
    /// ends (root)
    #[command(after_help = interactive::COMMANDS)]
    Cluster(interactive::Args),
    /// Member of a NetReduce ring, with a RoCEv2 transport in software
    RingWorker(ring_worker::Args),
    /// Worker of a SwitchML job that checks its sums
    SwitchmlWorker(switchml_worker::Args),
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tally-testkit: {}", errors::chain(&*error));
            exit::of(&*error).into()
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Cluster(args) => interactive::run(args),
        Command::RingWorker(args) => ring_worker::run(args),
        Command::SwitchmlWorker(args) => switchml_worker::run(args),
    }
}
