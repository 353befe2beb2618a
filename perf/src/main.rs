//! `tally-perf`: measures Tally, and says what it measured and where.
//!
//! A command is a file in `commands`: its arguments, and a `run` that returns a report. This file
//! lists the commands and prints the report, as a table or as one JSON object.

use anyhow::Result;
use clap::{Parser, Subcommand};
use tally_perf::commands::kernels;

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
    /// Throughput of the summation kernels, beside memcpy of the same bytes.
    Kernels(kernels::Args),
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let report = match &cli.command {
        Command::Kernels(args) => kernels::run(args)?,
    };
    if cli.json {
        println!("{}", report.to_json()?);
    } else {
        print!("{report}");
    }
    Ok(())
}
