//! A process that sums tensors by the agent of its host.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tally_agent::tensors::Tensors;
use tally_local::{Arithmetic, Client, Dtype, Hello, Operation, Priority, Submission};

/// Where tensors come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A safetensors file.
    File(PathBuf),
    /// Made of random numbers, as the reference makes them.
    Synthetic {
        /// Random seed.
        seed: u64,
        /// The rank.
        rank: u16,
        /// Type of the elements: f32, f16 or i8.
        element: &'static str,
        /// How many there are.
        elements: u64,
    },
}

impl Source {
    fn tensors(&self) -> Result<Tensors> {
        match self {
            Self::File(path) => Ok(Tensors::read(path)?),
            &Self::Synthetic {
                seed,
                rank,
                element,
                elements,
            } => {
                let dtype = match element {
                    "f32" => tally_agent::Dtype::F32,
                    "f16" => tally_agent::Dtype::F16,
                    "i8" => tally_agent::Dtype::I8,
                    _ => bail!("elements of {element}: f32, f16 or i8"),
                };
                let elements = usize::try_from(elements)?;
                Ok(Tensors::synthetic(seed, rank, elements, dtype))
            }
        }
    }
}

/// A process that sums tensors by the agent of its host.
#[derive(Clone, Debug)]
pub struct Process {
    /// The agent's socket.
    pub socket: PathBuf,
    /// Job and rank.
    pub hello: Hello,
    /// Its tensors.
    pub source: Source,
    /// How floats are summed: fixed, native or own.
    pub arithmetic: &'static str,
    /// How often they are summed; the last sums are the result.
    pub rounds: usize,
    /// For each wait.
    pub patience: Duration,
}

impl Process {
    /// Sums, and writes the sums to `output`; the bytes of all tensors, and the seconds of each
    /// round. `begun` has a place for each process; `done` is called behind each round.
    ///
    /// # Errors
    /// The job's, or that of a file.
    pub fn sum(
        &self,
        output: &Path,
        begun: &Barrier,
        done: impl Fn(),
    ) -> Result<(usize, Vec<f64>)> {
        let connected = self.source.tensors().and_then(|tensors| {
            let client = Client::connect(&self.socket, &self.hello, self.patience)?;
            Ok((tensors, client))
        });
        // Others wait there for this one.
        begun.wait();
        let (mut tensors, mut client) = connected?;
        let region = client.region(tensors.bytes().max(1))?;
        let mut seconds = Vec::with_capacity(self.rounds);
        for _ in 0..self.rounds {
            let mut at = 0;
            for tensor in &tensors.tensors {
                region.write(at, &tensor.bytes);
                at += tensor.bytes.len();
            }
            let begin = Instant::now();
            let mut at = 0;
            let mut tickets = Vec::new();
            for tensor in &tensors.tensors {
                let submission = self.submission(tensor.dtype, &tensor.name);
                tickets.push(client.submit(&region, at, tensor.elements(), &submission)?);
                at += tensor.bytes.len();
            }
            for ticket in tickets {
                client.wait(ticket, Some(self.patience))?;
            }
            seconds.push(begin.elapsed().as_secs_f64());
            done();
        }
        let mut at = 0;
        for tensor in &mut tensors.tensors {
            region.read(at, &mut tensor.bytes);
            at += tensor.bytes.len();
        }
        client.finish(Some(self.patience))?;
        tensors.write(output)?;
        Ok((tensors.bytes(), seconds))
    }

    fn submission(&self, dtype: tally_agent::Dtype, name: &str) -> Submission {
        use tally_agent::Dtype as D;
        Submission {
            operation: Operation::Sum,
            dtype: match dtype {
                D::F32 => Dtype::F32,
                D::F16 => Dtype::F16,
                D::Bf16 => Dtype::Bf16,
                D::I32 => Dtype::I32,
                D::I16 => Dtype::I16,
                D::I8 => Dtype::I8,
            },
            arithmetic: match self.arithmetic {
                "fixed" => Arithmetic::Fixed,
                "native" => Arithmetic::Native,
                _ => Arithmetic::Own,
            },
            priority: Priority::FIRST,
            more_follow: false,
            name: name.to_owned(),
        }
    }
}
