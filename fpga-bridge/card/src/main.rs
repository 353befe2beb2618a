//! `tally-card`: the simulated card as a process, and how fast its design is.

mod process;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// The FPGA card that takes the switch's hot path, simulated: its RTL, compiled, attached as a card would be.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(process::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run(options) => run(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tally-card: {error:#}");
            ExitCode::FAILURE
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

/// A reader that went away (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
