//! `tally-sim`: the whole system in simulated time.

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tally_sim::{check, jct, loss};

/// Simulates Tally: switch, workers and parameter servers as they are, in a network that is not.
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
    /// Random worlds with everything going wrong, and checkers that share no code with what they check.
    Check(check::command::Args),
    /// Bugs planted on purpose, each of which `check` must find.
    Planted(check::planted::Args),
    /// Job completion times of training jobs that share a switch, policy beside policy.
    Jct(jct::command::Args),
    /// Goodput and latency of one job over lossy links, with those without loss.
    Loss(loss::command::Args),
    /// One large simulation: how long it takes, and how much memory.
    Scale(jct::scale::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Check(args) => check::command::run_args(args, cli.json),
        Command::Planted(args) => check::planted::run_args(args, cli.json),
        Command::Jct(args) => jct::command::run_args(args, cli.json),
        Command::Loss(args) => loss::command::run_args(args, cli.json),
        Command::Scale(args) => jct::scale::run_args(args, cli.json),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tally-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
