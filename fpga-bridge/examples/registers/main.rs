//! Generator of the card's register block, the driver's constants and their document, from
//! `registers.json`.
//!
//! ```text
//! cargo run -p tally-bridge --example registers
//! ```

mod generate;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let outcome = generate::files(folder).and_then(|files| {
        for (path, text) in files {
            let path = folder.join(path);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{}", path.display());
        }
        Ok(())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("registers: {problem}");
            ExitCode::FAILURE
        }
    }
}
