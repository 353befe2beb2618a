//! The reference: a Python program that computes a job's sum from the specification, shares no code
//! with Tally, and compares every worker's result with it, bit for bit.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Debian's own Python: it is the one that has Debian's numpy.
const PYTHON: &str = "/usr/bin/python3";

/// What the workers of a job summed.
#[derive(Clone, Debug)]
pub enum Inputs {
    /// One file for each rank.
    Files(Vec<PathBuf>),
    /// Made-up numbers.
    Synthetic {
        /// As the workers were told.
        seed: u64,
        /// Type of the elements, as the workers were told.
        element: &'static str,
        /// As the workers were told.
        elements: u64,
        /// How many there are.
        workers: u16,
    },
}

/// What the reference found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Every bit is right.
    pub exact: bool,
    /// What it said.
    pub text: String,
}

/// Where the reference is.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The program.
    pub program: PathBuf,
}

impl Reference {
    /// Compares the results in `outputs` with the sum of `inputs`.
    ///
    /// # Errors
    /// If it could not judge.
    pub fn check(
        &self,
        arithmetic: &str,
        payload_bytes: u16,
        inputs: &Inputs,
        outputs: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Verdict> {
        let mut command = Command::new(PYTHON);
        command.arg(&self.program);
        self.check_with(command, arithmetic, payload_bytes, inputs, outputs)
    }

    /// The same for a job with this tree of switches: nested lists of ranks, as `[[0,1],[2,3]]`.
    ///
    /// # Errors
    /// If it could not judge.
    pub fn check_tree(
        &self,
        tree: &str,
        arithmetic: &str,
        payload_bytes: u16,
        inputs: &Inputs,
        outputs: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Verdict> {
        let mut command = Command::new(PYTHON);
        command.arg(&self.program).args(["--tree", tree]);
        self.check_with(command, arithmetic, payload_bytes, inputs, outputs)
    }

    /// The same for a ring of these members (Rina): the ranks of each, as `[[0,1],[2]]`.
    ///
    /// # Errors
    /// If it could not judge.
    pub fn check_ring(
        &self,
        ring: &str,
        arithmetic: &str,
        payload_bytes: u16,
        inputs: &Inputs,
        outputs: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Verdict> {
        let mut command = Command::new(PYTHON);
        command.arg(&self.program).args(["--ring", ring]);
        self.check_with(command, arithmetic, payload_bytes, inputs, outputs)
    }

    fn check_with(
        &self,
        mut command: Command,
        arithmetic: &str,
        payload_bytes: u16,
        inputs: &Inputs,
        outputs: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Verdict> {
        command.args(["--arithmetic", arithmetic, "--op", "sum"]);
        command.args(["--payload", &payload_bytes.to_string()]);
        match inputs {
            Inputs::Files(files) => command.arg("--inputs").args(files),
            Inputs::Synthetic {
                seed,
                element,
                elements,
                workers,
            } => command
                .args(["--synthetic", &seed.to_string()])
                .args(["--element", element])
                .args(["--elements", &elements.to_string()])
                .args(["--workers", &workers.to_string()]),
        };
        let output = command
            .arg("--outputs")
            .args(outputs)
            .output()
            .with_context(|| format!("the reference, {PYTHON}"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let exact = match output.status.code() {
            Some(0) => true,
            Some(1) => false,
            _ => bail!(
                "the reference {} could not judge ({}): {}",
                self.program.display(),
                output.status,
                said(&output.stderr)
            ),
        };
        let mut text = said(&output.stdout);
        if !exact {
            text += &said(&output.stderr);
        }
        Ok(Verdict { exact, text })
    }
}
