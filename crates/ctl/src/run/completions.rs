//! Completions for a shell.

use super::print;
use crate::args::Arguments;
use crate::session::Failure;
use clap::CommandFactory as _;
use clap_complete::Shell;

/// Prints the completions of a shell.
pub(super) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tallyctl", &mut text);
    print(&String::from_utf8_lossy(&text)).map(drop)
}
