//! The training host's side of Tally: all-reduce of tensors through the switch, the agent that does
//! it for the processes that train on a host ([`daemon`]), and the parameter server that completes
//! what the switch could not (`ps`).
//!
//! [`allreduce()`] takes [`Tensors`](tensors::Tensors) and returns their sum over all workers of a
//! job, by a [`session`] of its own; the `tally-agent` program is a thin layer over it. The
//! protocol is in `tally-endpoint`, and collectives are in `tally-session`, both without I/O; here
//! are the sockets ([`link`]), the clock and the files.
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
//! let (sum, report) = allreduce(&config, &Options::default(), gradients, &mut (), &stop)?;
//! sum.write(Path::new("sum.safetensors"))?;
//! println!("{} Gbit/s", report.goodput_gbit_per_s);
//! # Ok(())
//! # }
//! ```

mod allreduce;
pub mod control;
pub mod daemon;
pub mod doctor;
mod error;
pub mod link;
pub mod monitor;
pub mod ps;
pub mod report;
mod rina;
mod ring;
pub mod session;
pub mod tensors;

pub use allreduce::{Observer, Op, Options, allreduce};
pub use error::{AgentError, ControllerError};
pub use ps::serve;
pub use ring::{Summary, ring};
pub use tally_schema::agent::config;
pub use tally_session::{Arithmetic, Dtype};
pub use tally_telemetry as log;
