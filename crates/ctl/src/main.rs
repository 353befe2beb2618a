//! `tallyctl`'s process: arguments, exit code.

use clap::{CommandFactory as _, Parser as _};
use std::process::ExitCode;
use tally_ctl::args::Arguments;
use tally_ctl::run::run;
use tally_program::{Exit, documents};

fn main() -> ExitCode {
    match documents::write_if_asked(Arguments::command()) {
        Ok(true) => return Exit::Done.into(),
        Ok(false) => {}
        Err(error) => {
            eprintln!("tallyctl: {error}");
            return Exit::File.into();
        }
    }
    match run(&Arguments::parse()) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            eprintln!("tallyctl: {failure}");
            failure.exit().into()
        }
    }
}
