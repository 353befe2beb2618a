//! `tally-load`: the command line. [`tally_load`] says how it works.

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use tally_load::{args, command, pktgen};
use tally_program::{Exit, documents, errors, exit};

const EXAMPLES: &str = "\
Examples:
  tally-load run --config switch.json --seconds 60        highest rate that the switch takes (closed loop)
  tally-load run --config switch.json --rate 2Mpps        latency at a rate (open loop)
  tally-load pktgen --out load --workers 2                captures, scripts and configuration in load/

Code 1: a sum was wrong, a job ended, a fragment had no result within 2 s, or nothing could be started.";

/// Load generator for a Tally switch.
#[derive(Parser)]
#[command(name = "tally-load", version = tally_program::VERSION, after_help = after_help())]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Report as one JSON object in place of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Load on a running switch: simulated workers and parameter servers of its jobs, at the
    /// highest rate or at a given one
    #[command(after_help = args::EXAMPLES)]
    Run(args::Args),
    /// Files for Pktgen-DPDK: captures, Lua scripts, and the configuration of the switch that sums
    /// them
    #[command(after_help = pktgen::EXAMPLES)]
    Pktgen(pktgen::Args),
}

fn after_help() -> String {
    let codes = exit::help(&[Exit::Done, Exit::Failure, Exit::Usage]);
    format!("{EXAMPLES}\n\n{codes}")
}

fn main() -> ExitCode {
    match documents::write_if_asked(Cli::command()) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tally-load: {error}");
            return Exit::File.into();
        }
    }
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tally-load: {}", errors::chain(&*error));
            exit::of(&*error).into()
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let report = match &cli.command {
        Command::Run(args) => command::run(args)?,
        Command::Pktgen(args) => pktgen::run(args)?,
    };
    report.print(cli.json)?;
    // A lost fragment.
    Ok(if report.is_missed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
