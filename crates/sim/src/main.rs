//! `tally-sim`: the whole system in simulated time.

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tally_program::{errors, exit};
use tally_sim::{check, jct, loss, rina};

/// Simulates Tally: the production code of switches and endpoints in a simulated network.
#[derive(Parser)]
#[command(version = tally_program::VERSION)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// One JSON object in place of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Random worlds with faults of all kinds; independent checkers prove what must hold.
    Check(check::command::Args),
    /// Job completion times of training jobs that share a switch, by policy.
    Jct(jct::command::Args),
    /// Goodput and latency of one job over lossy links, beside those without loss.
    Loss(loss::command::Args),
    /// All-reduce over racks of which some have a switch that sums: Rina's ring and its rivals.
    Rina(rina::command::Args),
    /// Time and memory that one large simulation takes.
    Scale(jct::scale::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Check(args) => check::command::run_args(args, cli.json),
        Command::Jct(args) => jct::command::run_args(args, cli.json),
        Command::Loss(args) => loss::command::run_args(args, cli.json),
        Command::Rina(args) => rina::command::run_args(args, cli.json),
        Command::Scale(args) => jct::scale::run_args(args, cli.json),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tally-sim: {}", errors::chain(&*error));
            exit::of(&*error).into()
        }
    }
}
