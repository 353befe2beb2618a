//! The calls, generated from `proto/control.proto` and, in `fleet`, from `proto/fleet.proto`: both
//! halves.
#![allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic)]

tonic::include_proto!("tally.control.v1");

pub mod fleet {
    tonic::include_proto!("tally.fleet.v1");
}
