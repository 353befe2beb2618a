//! `tally-controller`'s process: arguments, exit code.

use clap::{CommandFactory as _, Parser as _};
use std::process::ExitCode;
use tally_controller::args::Arguments;
use tally_controller::run::run;
use tally_program::{Exit, documents};

fn main() -> ExitCode {
    match documents::write_if_asked(Arguments::command()) {
        Ok(true) => return Exit::Done.into(),
        Ok(false) => {}
        Err(error) => {
            eprintln!("tally-controller: {error}");
            return Exit::File.into();
        }
    }
    match run(&Arguments::parse()) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            eprintln!("tally-controller: {failure}");
            failure.exit().into()
        }
    }
}
