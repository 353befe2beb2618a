//! Commands that the harness runs.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// A command that ends with this process, however that ends.
pub fn prefixed(prefix: &[String], program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    command.args(prefix).arg(program);
    command
}

/// Runs a command to its end; its standard error is part of the error.
pub(crate) fn check_run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &[&str]) -> Result<()> {
    check_run(Command::new("ip").args(arguments))
}
