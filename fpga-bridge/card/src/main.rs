//! `tally-card`: the simulated card as a process, and how fast its design is.

mod process;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;
use tally_program::{errors, exit};

/// The FPGA card that takes the switch's hot path, simulated: its RTL, compiled, attached as a card
/// would be.
#[derive(Parser)]
#[command(name = "tally-card", version = tally_program::VERSION)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(process::Options),
    /// How many cycles the card takes for each kind of traffic, and the line rate that follows
    Measure {
        /// Print one JSON object in place of a table
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run(options) => run(&options),
        Command::Measure { json } => measure(json),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tally-card: {}", errors::chain(&*error));
            exit::of(&*error).into()
        }
    }
}

fn run(options: &process::Options) -> Result<ExitCode> {
    let summary = process::run(options)?;
    print(&if options.json {
        summary.json()
    } else {
        summary.to_string()
    })?;
    Ok(match summary.fault {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn measure(json: bool) -> Result<ExitCode> {
    let measurement = tally_card::measure::run().map_err(anyhow::Error::msg)?;
    print(&if json {
        simd_json::to_string(&measurement)? + "\n"
    } else {
        measurement.table()
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A reader that went away (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
