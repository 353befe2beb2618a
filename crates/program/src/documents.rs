//! Man pages and completions, made from the command line's own description.
//!
//! `PROGRAM __documents FOLDER` writes them, for packages. It is no option of the command line,
//! because it must work where others are required.

use clap::Command;
use clap_complete::Shell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// The first argument that asks for them.
pub const ASK: &str = "__documents";

/// Writes them and returns true if this process was started for that.
///
/// # Errors
/// The kernel's reason.
pub fn write_if_asked(command: Command) -> io::Result<bool> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() != Some(OsStr::new(ASK)) {
        return Ok(false);
    }
    let folder = arguments.next().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "__documents: no folder given")
    })?;
    write(command, Path::new(&folder))?;
    Ok(true)
}

/// Writes them into an existing folder: `NAME.1`, `NAME-SUBCOMMAND.1`, `NAME` (bash), `_NAME`
/// (zsh), `NAME.fish`.
///
/// # Errors
/// The kernel's reason.
pub fn write(mut command: Command, folder: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    for (shell, file) in [
        (Shell::Bash, name.clone()),
        (Shell::Zsh, format!("_{name}")),
        (Shell::Fish, format!("{name}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, &name, &mut text);
        std::fs::write(folder.join(file), text)?;
    }
    clap_mangen::generate_to(command, folder)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use clap::Arg;

    #[test]
    fn a_program_has_a_page_for_each_subcommand_and_three_completions() {
        let folder = tempfile::tempdir().unwrap();
        let command = Command::new("tally-x")
            .version("1")
            .arg(Arg::new("config").long("config").required(true))
            .subcommand(Command::new("run").about("Run it"));
        write(command, folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(read("tally-x.1").contains("config"));
        assert!(read("tally-x-run.1").contains("Run it"));
        assert!(read("tally-x").contains("--config"));
        assert!(read("_tally-x").starts_with("#compdef tally-x"));
        assert!(read("tally-x.fish").contains("complete -c tally-x"));
    }
}
