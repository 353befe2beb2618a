//! The training host's side of Tally: all-reduce of tensors through the switch, the agent that does it for the
//! processes that train on a host ([`daemon`]), and the parameter server that finishes what the switch could not.
//!
//! [`allreduce()`] takes [`Tensors`](tensors::Tensors) and gives back their sum over all workers of
//! a job; the `tally-agent` program is a thin layer over it. The protocol is in `tally-endpoint`, which
//! knows no sockets; here are the sockets ([`link`]), the clock, the files and the fragments'
//! content.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::atomic::AtomicBool;
//! use tally_agent::{Options, allreduce, config::WorkerConfig, tensors::Tensors};
//!
//! # fn main() -> Result<(), tally_agent::AgentError> {
//! let config = WorkerConfig::load("worker.json")?;
//! let gradients = Tensors::read(Path::new("gradients.safetensors"))?;
//! let stop = AtomicBool::new(false);
//! let (sum, report) = allreduce(&config, &Options::default(), &gradients, &mut (), &stop)?;
//! sum.write(Path::new("sum.safetensors"))?;
//! println!("{} Gbit/s", report.goodput_gbit_per_s);
//! # Ok(())
//! # }
//! ```

mod allreduce;
pub mod config;
pub mod daemon;
pub mod doctor;
mod error;
mod kept;
pub mod link;
pub mod log;
mod ps;
pub mod report;
mod rounds;
pub mod session;
pub mod tensors;
mod vector;

pub use allreduce::{Observer, Op, Options, allreduce, open_link, over};
pub use error::AgentError;
pub use ps::serve;
pub use vector::Arithmetic;
