//! The commands: one file each, with its `Args` and a `run` that returns a
//! [`Report`](crate::report::Report).

pub mod datapath;
pub mod demo;
pub mod kernels;
